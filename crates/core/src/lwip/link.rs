//! What is known of one leg of one UE: round-trip time and rate, by echo requests that any UE answers, and by what the
//! node itself sends.
//!
//! *RTT*: EWMA with 0.6 of the new value, as the authors' code has it. *Rate*: the data between two probes is the train;
//! [`super::load`] tells what its dispersion says. Nothing is sent to find out: what is not used is not measured.

use super::Leg;
use super::load::Meter;
use crate::time::{Duration, Instant, nanos};

/// Weight of a new round trip.
const NEW: f64 = 0.6;
/// Probes of which the answer is waited for.
const OUTSTANDING: usize = 16;
/// The least round trip is that of the last one or two of these.
const LEAST_OVER: Duration = Duration::from_secs(10);
/// A round trip is above those without a queue from here on: so much more, and so many microseconds.
const BUSY_RATIO: f64 = 1.1;
const BUSY_US: f64 = 2_000.0;
/// Samples of the rate are of probes so far apart, at least and at most: jitter is a part of what lies between.
const SAMPLE: Duration = Duration::from_millis(80);
const LONGEST_SAMPLE: Duration = Duration::from_secs(4);

#[derive(Debug, Clone, Copy)]
struct Probe {
    sequence: u16,
    at: Instant,
    /// Bytes sent when it was, itself included.
    bytes: u64,
    /// It bounds a sample of the rate.
    is_mark: bool,
}

/// A mark that was answered.
#[derive(Debug, Clone, Copy)]
struct Mark {
    bytes: u64,
    sent: Instant,
    answered: Instant,
    rtt_us: f64,
}

/// Round trips while there is no queue, by those samples from which [`Meter`] can tell.
#[derive(Debug, Clone, Copy)]
struct Quiet {
    seen: u32,
    mean_us: f64,
    variance: f64,
}

impl Quiet {
    fn learn(&mut self, rtt_us: f64) {
        self.seen = self.seen.saturating_add(1);
        let (new, off) = ((1.0 / f64::from(self.seen)).max(1.0 / 8.0), rtt_us - self.mean_us);
        self.mean_us += new * off;
        self.variance = (1.0 - new) * (self.variance + new * off * off);
    }

    /// What hardly any round trip exceeds; infinite as long as nothing is known.
    fn top_us(&self) -> f64 {
        if self.seen < 2 { f64::INFINITY } else { self.mean_us + 2.0 * self.variance.sqrt() }
    }
}

/// One leg of one UE.
#[derive(Debug, Clone)]
pub(super) struct Link {
    outstanding: [Option<Probe>; OUTSTANDING],
    next: u16,
    unanswered: u16,
    rtt_us: f64,
    /// Least round trip of this window of time and of the one before.
    least_us: [f64; 2],
    least_since: Instant,
    marked_at: Option<Instant>,
    last: Option<Mark>,
    meter: Meter,
    quiet: Quiet,
    is_queued: bool,
    /// Bits and seconds of the last samples with a queue.
    bits: f64,
    seconds: f64,
    /// Samples of the rate.
    pub samples: u64,
    rate_bps: f64,
    /// It was full once: the rate is not a lower bound.
    rate_known: bool,
    pub sent_bytes: u64,
    pub up: bool,
    pub probes: u64,
    pub answers: u64,
}

impl Link {
    /// A leg that is taken for up until probes say otherwise.
    pub(super) const fn new() -> Self {
        Self {
            outstanding: [None; OUTSTANDING],
            next: 0,
            unanswered: 0,
            rtt_us: 0.0,
            least_us: [f64::INFINITY; 2],
            least_since: Instant::ZERO,
            marked_at: None,
            last: None,
            meter: Meter::EMPTY,
            quiet: Quiet { seen: 0, mean_us: 0.0, variance: 0.0 },
            is_queued: false,
            bits: 0.0,
            seconds: 0.0,
            samples: 0,
            rate_bps: 0.0,
            rate_known: false,
            sent_bytes: 0,
            up: true,
            probes: 0,
            answers: 0,
        }
    }

    /// A probe of `bytes` is being sent; its sequence number. The leg is down after `lost_after` without an answer.
    pub(super) fn probe(&mut self, bytes: usize, lost_after: u16, now: Instant) -> u16 {
        if self.unanswered >= lost_after {
            self.up = false;
        }
        let sequence = self.next;
        self.next = sequence.wrapping_add(1);
        self.sent_bytes += bytes as u64;
        let is_mark = self.marked_at.is_none_or(|at| now.saturating_since(at) >= SAMPLE);
        if is_mark {
            self.marked_at = Some(now);
        }
        self.outstanding[usize::from(sequence) % OUTSTANDING] =
            Some(Probe { sequence, at: now, bytes: self.sent_bytes, is_mark });
        self.unanswered = self.unanswered.saturating_add(1);
        self.probes += 1;
        sequence
    }

    /// The answer to a probe; `false` if nobody waits for it.
    pub(super) fn answered(&mut self, sequence: u16, now: Instant) -> bool {
        let slot = &mut self.outstanding[usize::from(sequence) % OUTSTANDING];
        let Some(probe) = slot.take_if(|probe| probe.sequence == sequence) else { return false };
        self.answers += 1;
        (self.unanswered, self.up) = (0, true);
        let rtt_us = nanos(now.saturating_since(probe.at)) as f64 / 1e3;
        self.rtt_us = if self.rtt_us == 0.0 { rtt_us } else { NEW * rtt_us + (1.0 - NEW) * self.rtt_us };
        if now.saturating_since(self.least_since) > LEAST_OVER {
            self.least_us = [rtt_us, self.least_us[0]];
            self.least_since = now;
        }
        self.least_us[0] = self.least_us[0].min(rtt_us);
        if probe.is_mark {
            self.mark_answered(Mark { bytes: probe.bytes, sent: probe.at, answered: now, rtt_us });
        }
        true
    }

    fn mark_answered(&mut self, mark: Mark) {
        let Some(last) = self.last.filter(|last| mark.sent > last.sent) else {
            self.last = self.last.or(Some(mark));
            return;
        };
        self.last = Some(mark);
        let sent = mark.sent.saturating_since(last.sent);
        if sent > LONGEST_SAMPLE {
            return;
        }
        self.samples += 1;
        let (bytes, took) = (mark.bytes - last.bytes, mark.answered.saturating_since(last.answered));
        self.meter.sample(bytes, sent, took);
        if self.meter.is_quiet() {
            self.quiet.learn(mark.rtt_us);
        }
        // A queue at both ends: the leg had something to do all the time.
        let top_us = self.quiet.top_us() * BUSY_RATIO + BUSY_US;
        self.is_queued = self.meter.is_full() || last.rtt_us.min(mark.rtt_us) > top_us;
        let (bits, took) = (bytes as f64 * 8.0, took.as_secs_f64());
        if self.is_queued && took > 0.0 {
            self.bits = (1.0 - NEW) * self.bits + bits;
            self.seconds = (1.0 - NEW) * self.seconds + took;
            (self.rate_bps, self.rate_known) = (self.bits / self.seconds, true);
        } else {
            (self.bits, self.seconds) = (0.0, 0.0);
            // What jitter takes from the time between two answers is no rate.
            self.rate_bps = self.rate_bps.max(bits / took.max(sent.as_secs_f64()));
        }
    }

    /// Smoothed round-trip time, microseconds; 0 before the first.
    pub(super) const fn rtt_us(&self) -> f64 {
        self.rtt_us
    }

    /// The least of lately; infinite before the first.
    pub(super) const fn least_rtt_us(&self) -> f64 {
        self.least_us[0].min(self.least_us[1])
    }

    /// Rate in bits per second; 0 as long as nothing is known.
    pub(super) const fn rate_bps(&self) -> f64 {
        self.rate_bps
    }

    /// Whether capacity is left over, for sure.
    pub(super) fn is_spare(&self) -> bool {
        !self.is_queued && self.meter.is_spare()
    }

    /// Whether the last sample was of a full leg.
    pub(super) const fn is_queued(&self) -> bool {
        self.is_queued
    }

    /// Its rate is taken to be this, until more is known.
    pub(super) const fn suppose_bps(&mut self, rate_bps: f64) {
        self.rate_bps = rate_bps;
    }

    /// Whether the rate was measured while the leg was full.
    pub(super) const fn is_rate_known(&self) -> bool {
        self.rate_known
    }

    pub(super) fn view(&self, leg: Leg) -> LinkView {
        let least = self.least_rtt_us();
        LinkView {
            leg,
            up: self.up,
            rtt_us: self.rtt_us,
            least_rtt_us: if least.is_finite() { least } else { 0.0 },
            rate_bps: self.rate_bps,
            sent_bytes: self.sent_bytes,
            probes: self.probes,
            answers: self.answers,
        }
    }
}

/// A leg of a UE, for those who look.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkView {
    /// Which.
    pub leg: Leg,
    /// Whether probes are answered.
    pub up: bool,
    /// Smoothed round-trip time, microseconds; 0 before the first.
    pub rtt_us: f64,
    /// The least of the last 10 to 20 s, microseconds; 0 before the first.
    pub least_rtt_us: f64,
    /// Rate, bits per second; a lower bound as long as the leg was never full; 0 as long as nothing is known.
    pub rate_bps: f64,
    /// Bytes of TCP and probes sent.
    pub sent_bytes: u64,
    /// Probes sent.
    pub probes: u64,
    /// Probes answered.
    pub answers: u64,
}

#[cfg(test)]
mod tests;
