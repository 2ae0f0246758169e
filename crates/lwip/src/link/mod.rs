//! Round-trip time and rate of one leg of one UE, measured with echo requests, which any UE answers, and with the
//! data that the node sends.
//!
//! *RTT*: EWMA with weight 0.6 for the new value, as in the authors' code. *Rate*: no traffic is sent to measure
//! it. A leg is a queue in front of a bottleneck, so the data sent between two probes left the queue between their
//! answers:
//!
//! ```text
//!   sent      P1 ▪▪▪▪▪▪▪▪▪ P2              bytes between: b, with P2
//!   answered        ●───────────────●      time between the answers: t
//! ```
//!
//! If P1 met a queue (its round trip was well above the least one), the leg was busy for all of t, and b/t is its
//! rate. Otherwise b/t is a lower bound and can only raise the estimate. Jitter looks like a queue;
//! [`super::jitter`] tells them apart. A leg that carries no traffic is not measured.

use super::Leg;
use super::jitter::{Answer, Jitter};
use anabranch_element::time::{Duration, Instant, nanos};

/// Weight of a new round trip (the authors' code).
const RTT_WEIGHT: f64 = 0.6;
/// Weight of the previous samples where jitter affects each of them.
const SAMPLE_DECAY: f64 = 0.8;
/// Probes whose answers are awaited.
const MAX_OUTSTANDING: usize = 16;
/// A probe without an answer for this time is lost.
const PROBE_LIFETIME: Duration = Duration::from_secs(2);
/// Period of the minimum filter of round trips: the least is that of the last one or two periods.
const MIN_FILTER_PERIOD: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy)]
struct Probe {
    sequence: u16,
    at: Instant,
    /// Bytes sent by the leg when the probe left, itself included.
    bytes: u64,
}

/// One leg of one UE.
#[derive(Debug, Clone)]
pub(super) struct Link {
    outstanding: [Option<Probe>; MAX_OUTSTANDING],
    next: u16,
    unanswered: u16,
    rtt_us: f64,
    /// Least round trip of the current period and of the previous one, microseconds.
    least_us: [f64; 2],
    least_since: Instant,
    /// At the last answered probe: bytes sent before it, the time of the answer, and whether there was a queue.
    last: Option<(u64, Instant, bool)>,
    jitter: Jitter,
    /// Fading sums of bits and seconds of the samples of a busy leg with jitter.
    busy: (f64, f64),
    rate_bps: f64,
    /// The leg was busy at least once, so the rate is not merely a lower bound.
    rate_known: bool,
    pub sent_bytes: u64,
    pub up: bool,
    pub probes: u64,
    pub answers: u64,
    /// When the last answer arrived.
    heard: Instant,
    /// Departure of the newest answered probe.
    newest: Option<Instant>,
}

impl Link {
    /// A leg that is up until probes remain unanswered.
    pub(super) const fn new() -> Self {
        Self {
            outstanding: [None; MAX_OUTSTANDING],
            next: 0,
            unanswered: 0,
            rtt_us: 0.0,
            least_us: [f64::INFINITY; 2],
            least_since: Instant::ZERO,
            last: None,
            jitter: Jitter::new(),
            busy: (0.0, 0.0),
            rate_bps: 0.0,
            rate_known: false,
            sent_bytes: 0,
            up: true,
            probes: 0,
            answers: 0,
            heard: Instant::ZERO,
            newest: None,
        }
    }

    /// A probe of `bytes` is sent. Returns its sequence number. The leg is down after `lost_after` probes without
    /// an answer.
    pub(super) fn probe(&mut self, bytes: usize, lost_after: u16, now: Instant) -> u16 {
        if self.unanswered >= lost_after {
            self.up = false;
        }
        let sequence = self.next;
        self.next = sequence.wrapping_add(1);
        self.sent_bytes += bytes as u64;
        self.outstanding[usize::from(sequence) % MAX_OUTSTANDING] =
            Some(Probe { sequence, at: now, bytes: self.sent_bytes });
        self.unanswered = self.unanswered.saturating_add(1);
        self.probes += 1;
        sequence
    }

    /// Whether the next probe may be sent without discarding one whose answer may be under way. A leg preserves
    /// order, so a probe that left before an answered one is lost.
    pub(super) fn may_ask(&self, now: Instant) -> bool {
        let slot = self.outstanding[usize::from(self.next) % MAX_OUTSTANDING];
        let is_lost = |probe: Probe| self.newest.is_some_and(|at| probe.at < at);
        slot.is_none_or(|probe| is_lost(probe) || now.saturating_since(probe.at) > PROBE_LIFETIME)
    }

    /// The leg is down if `lost_after` probes are unanswered and no answer arrived for `patience` plus two round
    /// trips.
    pub(super) fn check(&mut self, lost_after: u16, patience: Duration, now: Instant) {
        let most = patience + Duration::from_micros(2 * self.rtt_us as u64);
        if self.unanswered >= lost_after && now.saturating_since(self.heard) > most {
            self.up = false;
        }
    }

    /// Whether an answer is late: probes of a leg that is up remained unanswered for `interval` plus two round trips.
    /// Further probes then decide soon whether the leg is down.
    pub(super) fn is_overdue(&self, interval: Duration, now: Instant) -> bool {
        let most = interval + Duration::from_micros(2 * self.rtt_us as u64);
        self.up && self.unanswered > 0 && now.saturating_since(self.heard) > most
    }

    /// A probe is answered; `false` if no such probe is outstanding.
    pub(super) fn answered(&mut self, sequence: u16, now: Instant) -> bool {
        let slot = &mut self.outstanding[usize::from(sequence) % MAX_OUTSTANDING];
        let Some(probe) = slot.take_if(|probe| probe.sequence == sequence) else { return false };
        self.answers += 1;
        (self.unanswered, self.up, self.heard) = (0, true, now);
        self.newest = self.newest.max(Some(probe.at));
        let rtt_us = nanos(now.saturating_since(probe.at)) as f64 / 1e3;
        self.rtt_us =
            if self.rtt_us == 0.0 { rtt_us } else { RTT_WEIGHT * rtt_us + (1.0 - RTT_WEIGHT) * self.rtt_us };
        if now.saturating_since(self.least_since) > MIN_FILTER_PERIOD {
            self.least_us = [rtt_us, self.least_us[0]];
            self.least_since = now;
            self.jitter.turn();
        }
        self.least_us[0] = self.least_us[0].min(rtt_us);
        let least_us = self.least_rtt_us();
        let answer = Answer { bytes: probe.bytes, sent: probe.at, answered: now, rtt_us };
        if self.jitter.answered(answer, least_us, self.rate_known.then_some(self.rate_bps)) {
            (self.rate_bps, self.rate_known) = (self.jitter.most_bps(), false);
            self.busy = (0.0, 0.0);
        }
        let is_busy = self.jitter.is_beyond(rtt_us, least_us);
        if let Some((bytes, at, was_busy)) = self.last
            && probe.bytes > bytes
        {
            let (bits, seconds) =
                ((probe.bytes - bytes) as f64 * 8.0, now.saturating_since(at).as_secs_f64());
            if seconds > 0.0 {
                let is_exact = was_busy && is_busy && Jitter::is_possible(bits / seconds, rtt_us - least_us);
                self.rate_sample(bits, seconds, is_exact);
            }
        }
        if self.last.is_none_or(|(bytes, ..)| probe.bytes > bytes) {
            self.last = Some((probe.bytes, now, is_busy));
        }
        true
    }

    /// Smoothed round-trip time, microseconds; 0 before the first sample.
    pub(super) const fn rtt_us(&self) -> f64 {
        self.rtt_us
    }

    /// Least recent round trip, microseconds; infinite before the first sample.
    pub(super) const fn least_rtt_us(&self) -> f64 {
        self.least_us[0].min(self.least_us[1])
    }

    /// Rate in bits per second; 0 while nothing is known.
    pub(super) const fn rate_bps(&self) -> f64 {
        self.rate_bps
    }

    fn rate_sample(&mut self, bits: f64, seconds: f64, is_exact: bool) {
        let rate = bits / seconds;
        if self.jitter.is_known() {
            return self.rate_sample_with_jitter(bits, seconds, is_exact);
        }
        if is_exact && self.rate_known {
            self.rate_bps = RTT_WEIGHT * rate + (1.0 - RTT_WEIGHT) * self.rate_bps;
        } else if is_exact {
            (self.rate_bps, self.rate_known) = (rate, true);
        } else {
            self.rate_bps = self.rate_bps.max(rate);
        }
    }

    /// Over several samples, the time that jitter adds to one is subtracted from the next.
    fn rate_sample_with_jitter(&mut self, bits: f64, seconds: f64, is_exact: bool) {
        if is_exact {
            self.busy = (SAMPLE_DECAY * self.busy.0 + bits, SAMPLE_DECAY * self.busy.1 + seconds);
            (self.rate_bps, self.rate_known) = (self.busy.0 / self.busy.1, true);
        } else {
            self.busy = (0.0, 0.0);
            self.rate_bps = self.rate_bps.max(self.jitter.sample_bps());
        }
    }

    /// Whether the rate was measured while the leg was busy.
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

/// The state of a leg of a UE, for inspection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkView {
    /// LTE or Wi-Fi.
    pub leg: Leg,
    /// Whether probes are answered.
    pub up: bool,
    /// Smoothed round-trip time, microseconds; 0 before the first sample.
    pub rtt_us: f64,
    /// Least round trip of the last 10 to 20 s, microseconds; 0 before the first sample.
    pub least_rtt_us: f64,
    /// Rate, bits per second; a lower bound until the leg has been busy; 0 while nothing is known.
    pub rate_bps: f64,
    /// Bytes of TCP packets and probes sent.
    pub sent_bytes: u64,
    /// Probes sent.
    pub probes: u64,
    /// Probes answered.
    pub answers: u64,
}

#[cfg(test)]
mod tests;
