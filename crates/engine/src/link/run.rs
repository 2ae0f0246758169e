//! The main loop of a running link: reads frames, drives the emulated link, writes frames, sleeps until the
//! next deadline.

use super::control::{Control, Request};
use super::ports::{Counters, Ports};
use crate::clock::{Clock, histogram};
use crate::thread::on_time;
use anabranch_element::packet::Packet;
use anabranch_element::time::Instant;
use anabranch_element::{Element, Port as Side, Sink, drive};
use anabranch_kern::file::read_text;
use anabranch_link::{Direction, DuplexLink, LinkCommand, LinkConfig, LinkEvent, LinkPatch, LinkStats};
use anyhow::{Context, Result, anyhow};
use hdrhistogram::Histogram;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;
use serde::Serialize;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

/// Interval at which the wall clock is read, because it may have been set.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A running link.
pub struct Running {
    link: DuplexLink,
    outside: Output,
    /// Time of the next reading of the wall clock.
    next_clock_check: Instant,
    clock: Clock,
}

/// The output side of the link.
struct Output {
    ports: Ports,
    /// Sides whose interfaces lose their carrier while the link is down.
    carrier: &'static [Side],
    /// Lateness of the packets written, nanoseconds.
    lateness_ns: Histogram<u64>,
    now: Instant,
    failed: Result<()>,
}

/// The counters of a link, as returned by `stats` and printed at the end.
#[derive(Debug, Serialize)]
pub struct Stats {
    uptime_s: f64,
    carrier: bool,
    a_to_b: LinkStats,
    b_to_a: LinkStats,
    /// Error of the emulation: departure of packets after the time that the model gives, microseconds.
    late_us: LatenessPercentiles,
    #[serde(flatten)]
    counters: Counters,
}

#[derive(Debug, Serialize)]
struct LatenessPercentiles {
    p50: f64,
    p99: f64,
    max: f64,
}

impl Running {
    pub fn new(
        ports: Ports,
        a_to_b: LinkConfig,
        b_to_a: LinkConfig,
        seed: u64,
        carrier: &'static [Side],
    ) -> Self {
        let link = DuplexLink::new(a_to_b, b_to_a, seed);
        let outside = Output { ports, carrier, lateness_ns: histogram(), now: Instant::ZERO, failed: Ok(()) };
        if !link.has_carrier() {
            outside.set_carrier(false);
        }
        Self { link, outside, next_clock_check: Instant::ZERO, clock: Clock::start() }
    }

    /// Runs until a signal or a `stop` request.
    pub fn run(&mut self, mut control: Option<Control>) -> Result<()> {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        signals.thread_block().context("blocking signals")?;
        let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
            .context("reading signals")?;
        on_time();

        let mut readable = Vec::new();
        loop {
            let deadline = self.drive()?;
            let timeout = deadline.map(|at| at.saturating_since(self.clock.now()));
            readable.clear();
            {
                let fds = std::iter::once(signals.as_fd())
                    .chain(self.outside.ports.fds())
                    .chain(control.iter().flat_map(Control::fds));
                let mut polled: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
                match ppoll(&mut polled, timeout.map(TimeSpec::from), None) {
                    Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                    Err(error) => return Err(error).context("waiting for packets"),
                }
                readable.extend(polled.iter().map(|p| p.any().unwrap_or(false)));
            }
            if readable[0] {
                return Ok(());
            }
            let ports = self.outside.ports.len();
            for index in (0..ports).filter(|i| readable[1 + i]) {
                let now = self.clock.now();
                let Self { link, outside, clock, .. } = self;
                outside.ports.read(index, *clock, |side, packet| link.on_packet(side, packet, now))?;
            }
            if let Some(control) = &mut control {
                let mut stop = false;
                control.serve(&readable[1 + ports..], |request| self.answer(request, &mut stop));
                if stop {
                    return Ok(());
                }
            }
        }
    }

    /// The current counters.
    pub fn stats(&mut self) -> Stats {
        let now = self.clock.now();
        let [a_to_b, b_to_a] = self.link.stats(now);
        let late = &self.outside.lateness_ns;
        let us = |ns: u64| ns as f64 / 1e3;
        Stats {
            uptime_s: now.as_secs_f64(),
            carrier: self.link.has_carrier(),
            a_to_b,
            b_to_a,
            late_us: LatenessPercentiles {
                p50: us(late.value_at_quantile(0.5)),
                p99: us(late.value_at_quantile(0.99)),
                max: us(late.max()),
            },
            counters: self.outside.ports.counters(),
        }
    }

    fn drive(&mut self) -> Result<Option<Instant>> {
        let now = self.clock.now();
        self.outside.now = now;
        if self.next_clock_check <= now {
            self.next_clock_check = now + CLOCK_CHECK_INTERVAL;
            // Time stamps in traces use the wall clock, like those of a router.
            self.link.set_ioam_epoch(Duration::from_nanos(self.clock.start_unix_ns()));
        }
        let next = drive(&mut self.link, now, &mut self.outside).map(|(at, _)| at);
        std::mem::replace(&mut self.outside.failed, Ok(()))?;
        self.outside.ports.flush()?;
        Ok(next)
    }

    fn answer(&mut self, request: Request, stop: &mut bool) -> Result<serde_json::Value> {
        match request {
            Request::Set { direction, change } => self.set(direction, &change)?,
            Request::Stats => return serde_json::to_value(self.stats()).context("counters as JSON"),
            Request::Stop => *stop = true,
        }
        Ok(serde_json::json!({ "ok": true }))
    }

    fn set(&mut self, direction: Direction, patch: &LinkPatch) -> Result<()> {
        let mut read_trace = |file: &str| read_text(Path::new(file)).map_err(|e| e.to_string());
        let changes = patch.build(&mut read_trace).map_err(|e| anyhow!("{e}"))?;
        // Frames that have arrived by now are still handled with the old parameters, as in the model.
        self.drive()?;
        let now = self.clock.now();
        for change in changes {
            tracing::debug!("{direction:?}: {change:?}");
            self.link.on_command(LinkCommand { direction, change }, now);
        }
        self.drive().map(drop)
    }
}

impl Output {
    fn set_carrier(&self, up: bool) {
        for side in self.carrier {
            self.ports.set_carrier(*side, up);
        }
    }
}

impl Sink<LinkEvent> for Output {
    fn transmit(&mut self, side: Side, packet: Packet) {
        let late = self.now.saturating_since(packet.at);
        self.lateness_ns.saturating_record(u64::try_from(late.as_nanos()).unwrap_or(u64::MAX));
        if let Err(error) = self.ports.write(side, packet) {
            self.failed = Err(error);
        }
    }

    fn event(&mut self, event: LinkEvent) {
        let LinkEvent::Carrier { up } = event;
        tracing::info!("carrier {}", if up { "up" } else { "down" });
        self.set_carrier(up);
    }
}
