//! TCP flows that take turns. Other load on the machine affects all of them equally, so differences in cost are visible to
//! within one per cent.
//!
//! ```text
//!   core 0: one sender   ──▶ flow 0 ──▶ │ one reading thread per flow, all on core 1
//!                        ──▶ flow 1 ──▶ │      turn: 5 ms, then 60 ms measured, then wait for all sent data
//! ```

use super::{Bench, Core, core_number, stats};
use crate::netns::program::Interrupted;
use crate::netns::space::Space;
use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use rand_chacha::ChaCha20Rng;
use rand_core::{RngCore, SeedableRng};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Size of a write and of a read.
const BLOCK: usize = 128 * 1024;
const LEAD: Duration = Duration::from_millis(5);
/// Measured part of a turn.
pub const TURN: Duration = Duration::from_millis(60);
/// Warm-up of each flow before the measured turns, in which windows and buffers grow.
const GROW: Duration = Duration::from_secs(1);
/// Time limit for the arrival of sent data.
const DRAIN: Duration = Duration::from_secs(5);

/// A connection whose far end is read on the core of the server.
pub struct Flow {
    to: TcpStream,
    sent: u64,
    received: Arc<AtomicU64>,
}

impl Flow {
    /// Connects `client` to `address` in `server`. Sockets belong to the control group of the process.
    ///
    /// # Errors
    /// The kernel rejects the connection or the congestion control.
    pub fn connect(client: &Space, server: &Space, address: Ipv6Addr, congestion: &str) -> Result<Self> {
        let listener = server.enter(|| {
            TcpListener::bind(SocketAddr::new(address.into(), 0)).with_context(|| address.to_string())
        })?;
        let at = listener.local_addr().context("address of a socket")?;
        let to = client.enter(|| {
            let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP)).context("socket")?;
            socket.set_tcp_congestion(congestion.as_bytes()).with_context(|| congestion.to_owned())?;
            socket.connect(&at.into()).with_context(|| at.to_string())?;
            Ok(TcpStream::from(socket))
        })?;
        let (mut from, _) = listener.accept().context("accept")?;
        let received = Arc::new(AtomicU64::new(0));
        let counted = received.clone();
        thread::spawn(move || {
            let mut block = vec![0; BLOCK];
            let _ = pin(Core::Server);
            loop {
                match from.read(&mut block) {
                    Ok(0) => return,
                    Ok(bytes) => counted.fetch_add(bytes as u64, Ordering::Release),
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(_) => return,
                };
            }
        });
        Ok(Self { to, sent: 0, received })
    }

    fn received(&self) -> u64 {
        self.received.load(Ordering::Acquire)
    }

    /// Sends for a time; returns the rate received meanwhile, bit/s.
    fn send(&mut self, block: &[u8], time: Duration) -> Result<f64> {
        let (start, before) = (Instant::now(), self.received());
        while start.elapsed() < time {
            self.to.write_all(block).context("sending")?;
            self.sent += block.len() as u64;
        }
        Ok((self.received() - before) as f64 * 8.0 / start.elapsed().as_secs_f64())
    }

    fn drain(&self) -> Result<()> {
        let start = Instant::now();
        while self.received() < self.sent {
            ensure!(start.elapsed() < DRAIN, "bytes not received: {}", self.sent - self.received());
            thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    fn turn(&mut self, block: &[u8]) -> Result<f64> {
        self.send(block, LEAD)?;
        let bps = self.send(block, TURN)?;
        self.drain()?;
        Ok(bps)
    }
}

/// Runs the flows in turns, in a different order in each cycle. Returns medians over the cycles: Mbit/s of each flow, and ratio of
/// its goodput to that of the first flow in the same cycle.
///
/// # Errors
/// A connection fails, or the user interrupts.
pub fn run(bench: &Bench, flows: Vec<Flow>, seed: u64) -> Result<Vec<[f64; 2]>> {
    // On a separate thread, bound to the core of the client.
    thread::scope(|scope| scope.spawn(|| take(bench, flows, seed)).join())
        .unwrap_or_else(|_| bail!("the sender's thread failed"))
}

fn take(bench: &Bench, mut flows: Vec<Flow>, seed: u64) -> Result<Vec<[f64; 2]>> {
    pin(Core::Client)?;
    let block = vec![0x5a; BLOCK];
    for flow in &mut flows {
        flow.send(&block, GROW)?;
        flow.drain()?;
    }
    let mut rng = ChaCha20Rng::seed_from_u64(seed);
    let mut order: Vec<usize> = (0..flows.len()).collect();
    let mut measured = vec![[Vec::new(), Vec::new()]; flows.len()];
    for _ in 0..(bench.seconds.as_nanos() / TURN.as_nanos()).max(1) {
        ensure!(!bench.sandbox.stop.requested(), Interrupted);
        for last in (1..order.len()).rev() {
            order.swap(last, rng.next_u32() as usize % (last + 1));
        }
        let mut bps = vec![0.0; flows.len()];
        for number in &order {
            bps[*number] = flows[*number].turn(&block)?;
        }
        for (measured, own) in measured.iter_mut().zip(&bps) {
            measured[0].push(own * 1e-6);
            measured[1].push(own / bps[0]);
        }
    }
    Ok(measured.iter_mut().map(|both| [stats::median(&mut both[0]), stats::median(&mut both[1])]).collect())
}

fn pin(core: Core) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core_number(core)).context("a core")?;
    sched_setaffinity(Pid::from_raw(0), &set).context("sched_setaffinity")
}
