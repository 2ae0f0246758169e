//! Continuous traffic during changes to the programs: duration of the outage, and losses.

use super::net::Namespace;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval between blocks of TCP: with [`BLOCK`], 16 Mbit/s in each direction.
const EVERY_TCP: Duration = Duration::from_millis(4);
const BLOCK: usize = 8192;
/// Interval between datagrams.
const EVERY_UDP: Duration = Duration::from_millis(5);
/// Time after the last datagram after which missing echoes count as lost.
const LATE: Duration = Duration::from_secs(1);
/// Longest outage after which a connection counts as broken.
const PATIENCE: Duration = Duration::from_secs(30);

/// A TCP connection and a flow of datagrams to echo servers.
pub struct Live {
    stop: Arc<AtomicBool>,
    tcp: JoinHandle<Flow>,
    udp: JoinHandle<Flow>,
}

/// Result of a flow.
#[derive(Debug, Clone, Default)]
pub struct Flow {
    /// Longest time without an echo, milliseconds.
    pub outage_ms: f64,
    /// Bytes of TCP, or datagrams, sent.
    pub sent: u64,
    /// Of these, the number without an echo.
    pub lost: u64,
    /// The error, if it broke.
    pub broken: Option<String>,
}

/// Starts the servers for [`Live`] on one address.
pub fn serve(ns: &Namespace, at: SocketAddr) {
    let (listener, socket) = ns.run(move || (TcpListener::bind(at).unwrap(), UdpSocket::bind(at).unwrap()));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut copy = stream.try_clone().unwrap();
                let _ = std::io::copy(&mut stream, &mut copy);
                let _ = copy.shutdown(Shutdown::Write);
            });
        }
    });
    std::thread::spawn(move || {
        let mut buffer = vec![0; 2048];
        loop {
            // An ICMP error about an earlier answer is no reason to stop.
            if let Ok((len, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..len], from);
            }
        }
    });
}

impl Live {
    /// Starts the traffic in a namespace; both servers are at `to`.
    pub fn start(from: &Namespace, to: SocketAddr) -> Self {
        let any: SocketAddr = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
        let (stream, socket) = from.run(move || {
            let stream = TcpStream::connect_timeout(&to, Duration::from_secs(10)).unwrap();
            let socket = UdpSocket::bind(any).unwrap();
            socket.connect(to).unwrap();
            (stream, socket)
        });
        let stop = Arc::new(AtomicBool::new(false));
        let (tcp, udp) = (stop.clone(), stop.clone());
        Self {
            tcp: std::thread::spawn(move || connection(stream, &tcp)),
            udp: std::thread::spawn(move || datagrams(&socket, &udp)),
            stop,
        }
    }

    /// Stops the traffic and waits for outstanding echoes; returns TCP, then UDP.
    pub fn end(self) -> [Flow; 2] {
        self.stop.store(true, Relaxed);
        [self.tcp.join().unwrap(), self.udp.join().unwrap()]
    }
}

impl Flow {
    /// A row of the table in docs/testing.md; bounds of the outages of TCP and UDP, milliseconds.
    #[track_caller]
    pub fn judge([tcp, udp]: &[Self; 2], fault: &str, most_ms: [f64; 2], logs: impl Fn() -> String) {
        let row = format!(
            "| {fault} | {:.0} ms | {} of {} | {:.0} ms | {} of {} |",
            tcp.outage_ms, tcp.lost, tcp.sent, udp.outage_ms, udp.lost, udp.sent
        );
        println!("{row}");
        assert!(tcp.broken.is_none() && tcp.lost == 0, "{row} {tcp:?}\n{}", logs());
        assert!(tcp.outage_ms < most_ms[0] && udp.outage_ms < most_ms[1], "{row}\n{}", logs());
    }
}

fn byte(position: u64) -> u8 {
    (position * 31 + position / 251) as u8
}

fn connection(stream: TcpStream, stop: &AtomicBool) -> Flow {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut write = stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let mut sent = 0;
            while !stop.load(Relaxed) {
                let block: Vec<u8> = (sent..sent + BLOCK as u64).map(byte).collect();
                if write.write_all(&block).is_err() {
                    break;
                }
                sent += BLOCK as u64;
                std::thread::sleep(EVERY_TCP);
            }
            // The reader reports a broken connection.
            let _ = write.shutdown(Shutdown::Write);
            sent
        });
        let mut flow = Flow::default();
        let (mut got, mut last) = (0_u64, Instant::now());
        let mut buffer = vec![0; 1 << 16];
        loop {
            match (&stream).read(&mut buffer) {
                Ok(0) => break,
                Ok(len) => {
                    if let Some(at) = (0..len).find(|i| buffer[*i] != byte(got + *i as u64)) {
                        flow.broken = Some(format!("byte {} is another", got + at as u64));
                        break;
                    }
                    flow.outage_ms = flow.outage_ms.max(last.elapsed().as_secs_f64() * 1e3);
                    (got, last) = (got + len as u64, Instant::now());
                }
                Err(error) => {
                    flow.broken = Some(error.to_string());
                    break;
                }
            }
        }
        // Ends the writer, too.
        let _ = stream.shutdown(Shutdown::Both);
        flow.sent = writer.join().unwrap();
        flow.lost = flow.sent.saturating_sub(got);
        flow
    })
}

fn datagrams(socket: &UdpSocket, stop: &AtomicBool) -> Flow {
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut sent = 0_u64;
            while !stop.load(Relaxed) {
                // Datagrams that cannot be sent count as lost.
                let _ = socket.send(&sent.to_le_bytes());
                sent += 1;
                std::thread::sleep(EVERY_UDP);
            }
            sent
        });
        let mut came = std::collections::BTreeSet::new();
        let (mut flow, mut last) = (Flow::default(), Instant::now());
        let mut ended: Option<Instant> = None;
        let mut buffer = [0; 64];
        while ended.is_none_or(|at| at.elapsed() < LATE) {
            if ended.is_none() && sender.is_finished() {
                ended = Some(Instant::now());
            }
            if let Ok(8) = socket.recv(&mut buffer) {
                came.insert(u64::from_le_bytes(buffer[..8].try_into().unwrap()));
                flow.outage_ms = flow.outage_ms.max(last.elapsed().as_secs_f64() * 1e3);
                last = Instant::now();
            }
        }
        flow.sent = sender.join().unwrap();
        flow.lost = flow.sent.saturating_sub(came.len() as u64);
        flow
    })
}
