//! The monitor's main loop: reads packets and makes a report per interval, until a signal.

use super::report::Report;
use anabranch_cc::collect::{CaptureInfo, CollectConfig, Collector};
use anabranch_element::time::Instant;
use anabranch_kern::interface;
use anabranch_kern::packet::{Framing, Options, PacketFilter, PacketSocket};
use anyhow::{Context, Result, ensure};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use std::os::fd::AsFd;
use std::time::Duration;

/// Bytes read of each packet: the headers with a trace. An options header has at most 272 bytes.
const SLOT_BYTES: usize = 1024;
/// Batches read from one interface before the other interfaces and the timer are served.
const BATCHES: usize = 16;

/// A running monitor.
pub struct Watch {
    name: String,
    interfaces: Vec<String>,
    taps: Vec<PacketSocket>,
    /// Per interface: whether its disappearance has been logged.
    gone: Vec<bool>,
    signals: SignalFd,
    collector: Collector,
    kernel_drops: u64,
    start_ns: u64,
    /// Offset of the wall clock from the monotonic clock, nanoseconds.
    ahead_ns: u64,
}

impl Watch {
    /// Opens the interfaces in this network namespace. Must be called before other threads start, because
    /// signals are blocked for all of them. `reloads`: SIGHUP does not end the monitor, because it reloads a
    /// certificate.
    pub fn open(name: String, interfaces: &[String], config: CollectConfig, reloads: bool) -> Result<Self> {
        let open = |name: &String| {
            tap(name)
                .with_context(|| format!("--interface {name} (it must exist, and CAP_NET_RAW is needed)"))
        };
        let taps: Vec<PacketSocket> = interfaces.iter().map(open).collect::<Result<_>>()?;
        for (at, name) in interfaces.iter().enumerate() {
            let is_before = taps[..at].iter().any(|before| before.index() == taps[at].index());
            ensure!(!is_before, "--interface {name} is given twice: each trace would count twice");
        }
        Ok(Self {
            name,
            interfaces: interfaces.to_vec(),
            gone: vec![false; taps.len()],
            taps,
            signals: signals(reloads)?,
            collector: Collector::new(config),
            kernel_drops: 0,
            start_ns: clock(ClockId::CLOCK_MONOTONIC),
            ahead_ns: ahead_ns(),
        })
    }

    /// Collects, and passes a report to `each` at the interval `every`, until `each` returns false or a
    /// signal arrives.
    pub fn run(&mut self, every: Duration, mut each: impl FnMut(Report) -> Result<bool>) -> Result<()> {
        let mut due = self.now() + every;
        loop {
            let timeout = TimeSpec::from(due.saturating_since(self.now()));
            let mut readable = Vec::with_capacity(1 + self.taps.len());
            {
                let fds = std::iter::once(self.signals.as_fd()).chain(self.taps.iter().map(AsFd::as_fd));
                let mut polled: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
                match ppoll(&mut polled, Some(timeout), None) {
                    Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                    Err(error) => return Err(error).context("waiting for packets"),
                }
                readable.extend(polled.iter().map(|p| p.any().unwrap_or(false)));
            }
            if readable[0] {
                return Ok(());
            }
            for at in (0..self.taps.len()).filter(|at| readable[1 + at]) {
                self.read(at)?;
            }
            let now = self.now();
            if now >= due {
                if !each(self.report(now, every))? {
                    return Ok(());
                }
                // Missed reports are not made up for.
                due = (due + every).max(self.now());
            }
        }
    }

    fn read(&mut self, at: usize) -> Result<()> {
        let Self { taps, collector, start_ns, ahead_ns, interfaces, .. } = self;
        for _ in 0..BATCHES {
            let got = taps[at].recv(|packet| {
                let seen = CaptureInfo {
                    at: Instant::from_nanos(packet.arrived_ns.saturating_sub(*start_ns)),
                    wall: Some(Duration::from_nanos(packet.arrived_ns.wrapping_add(*ahead_ns))),
                    bytes: u32::try_from(packet.wire_bytes).unwrap_or(u32::MAX),
                };
                collector.observe_packet(packet.bytes, seen);
            });
            if got.with_context(|| format!("reading from {}", interfaces[at]))? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Reopens interfaces that were created again under their name, as a tunnel's is when its program
    /// restarts. An interface that was only renamed is used until another one has its name.
    fn follow(&mut self) {
        for ((name, tap), gone) in self.interfaces.iter().zip(&mut self.taps).zip(&mut self.gone) {
            let (at, named) = (tap.index(), interface::index(name).ok());
            if named.is_some()
                && at != named
                && let Ok(anew) = self::tap(name)
            {
                tracing::info!("{name} was created again");
                self.kernel_drops += tap.kernel_drops().unwrap_or(0);
                *tap = anew;
            } else if at.is_none() && !*gone {
                tracing::warn!("{name} has disappeared: listening again once it is created again");
            }
            *gone = tap.index().is_none();
        }
    }

    fn report(&mut self, now: Instant, every: Duration) -> Report {
        self.ahead_ns = ahead_ns();
        self.follow();
        self.collector.age(now);
        for tap in &self.taps {
            self.kernel_drops += tap.kernel_drops().unwrap_or(0);
        }
        Report {
            sink: self.name.clone(),
            unix_ms: clock(ClockId::CLOCK_REALTIME) / 1_000_000,
            interval_ms: u64::try_from(every.as_millis()).unwrap_or(u64::MAX),
            interfaces: self.interfaces.clone(),
            kernel_drops: self.kernel_drops,
            counters: *self.collector.counters(),
            paths: self.collector.paths(now),
            flows: self.collector.flows(now),
        }
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(clock(ClockId::CLOCK_MONOTONIC).saturating_sub(self.start_ns))
    }
}

/// Opens a packet socket for the incoming packets that can carry a trace.
fn tap(interface: &str) -> std::io::Result<PacketSocket> {
    let options = Options {
        // Packets of tunnels have no Ethernet header; nothing is sent here.
        framing: Framing::Ip { peer: [0; 6] },
        slot_bytes: SLOT_BYTES,
        filter: PacketFilter::HopByHop,
        ..Options::default()
    };
    PacketSocket::open(interface, &options)
}

/// The signals that end a monitor; blocked from here on, also in threads that start later.
fn signals(reloads: bool) -> Result<SignalFd> {
    let hangup = (!reloads).then_some(Signal::SIGHUP);
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().chain(hangup).collect();
    signals.thread_block().context("blocking signals")?;
    SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).context("reading signals")
}

fn ahead_ns() -> u64 {
    clock(ClockId::CLOCK_REALTIME).wrapping_sub(clock(ClockId::CLOCK_MONOTONIC))
}

fn clock(id: ClockId) -> u64 {
    let time = clock_gettime(id).map(Duration::from).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
