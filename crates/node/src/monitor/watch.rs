//! The monitor's loop: packets in, a report every interval, until a signal.

use super::report::Report;
use anabranch_cc::collect::{CollectConfig, Collector, Sighting};
use anabranch_element::time::Instant;
use anabranch_kern::interface;
use anabranch_kern::packet::{Framing, Only, Options, PacketSocket};
use anyhow::{Context, Result, ensure};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use std::os::fd::AsFd;
use std::time::Duration;

/// A trace's headers, with room to spare: an options header of ours has at most 272 bytes.
const SLOT_BYTES: usize = 1024;
/// Batches of one interface before the others, and the clock, have their turn.
const BATCHES: usize = 16;

/// A monitor at work.
pub struct Watch {
    name: String,
    interfaces: Vec<String>,
    taps: Vec<PacketSocket>,
    /// Those that are said to be gone.
    gone: Vec<bool>,
    signals: SignalFd,
    collector: Collector,
    kernel_drops: u64,
    start_ns: u64,
    /// The wall clock's lead over the monotonic one.
    ahead_ns: u64,
}

impl Watch {
    /// Opens the interfaces of this network namespace. Before other threads are started: signals are for this one. `reloads`: SIGHUP
    /// is not, for something is read again on it.
    pub fn open(name: String, interfaces: &[String], config: CollectConfig, reloads: bool) -> Result<Self> {
        let open = |name: &String| {
            tap(name)
                .with_context(|| format!("--interface {name} (it must be there, and CAP_NET_RAW is needed)"))
        };
        let taps: Vec<PacketSocket> = interfaces.iter().map(open).collect::<Result<_>>()?;
        for (at, name) in interfaces.iter().enumerate() {
            let is_before = taps[..at].iter().any(|before| before.index() == taps[at].index());
            ensure!(!is_before, "--interface {name} is named twice: each trace would count twice");
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

    /// Collects, and gives a report every `every`, until that says no more or a signal ends it.
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
                // What was missed while it was slow is not made up for.
                due = (due + every).max(self.now());
            }
        }
    }

    fn read(&mut self, at: usize) -> Result<()> {
        let Self { taps, collector, start_ns, ahead_ns, interfaces, .. } = self;
        for _ in 0..BATCHES {
            let got = taps[at].recv(|packet| {
                let seen = Sighting {
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

    /// Goes over to interfaces that have a name now: a tunnel's is made anew, when its program is started again. One that is only
    /// called otherwise is listened to until another has its name.
    fn follow(&mut self) {
        for ((name, tap), gone) in self.interfaces.iter().zip(&mut self.taps).zip(&mut self.gone) {
            let (at, named) = (tap.index(), interface::index(name).ok());
            if named.is_some()
                && at != named
                && let Ok(anew) = self::tap(name)
            {
                tracing::info!("{name} was made anew");
                self.kernel_drops += tap.kernel_drops().unwrap_or(0);
                *tap = anew;
            } else if at.is_none() && !*gone {
                tracing::warn!("{name} is gone: listening again when it is made anew");
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

/// What an interface receives that can carry a trace.
fn tap(interface: &str) -> std::io::Result<PacketSocket> {
    let options = Options {
        // Packets of tunnels have no Ethernet header; nothing is sent.
        framing: Framing::Ip { peer: [0; 6] },
        slot_bytes: SLOT_BYTES,
        only: Only::HopByHop,
        ..Options::default()
    };
    PacketSocket::open(interface, &options)
}

/// What ends a monitor. Blocked from here on, in threads to come as well.
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
