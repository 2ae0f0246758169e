//! What is known of one leg of one UE: round-trip time and rate, by echo requests that any UE answers, and by what the
//! node itself sends.
//!
//! *RTT*: EWMA with 0.6 of the new value, as the authors' code has it. *Rate*: the data itself is the train. A leg is a
//! queue in front of a bottleneck, so between the answers to two probes left what was sent between the probes:
//!
//! ```text
//!   sent      P1 ▪▪▪▪▪▪▪▪▪ P2              bytes between: b, with P2
//!   answered        ●───────────────●      time between the answers: t
//! ```
//!
//! If P1 found a queue (its round trip was well above the least), the leg was busy all that time, and b/t is its rate.
//! Otherwise b/t is no more than a lower bound, which only ever raises the estimate. Nothing is sent to find out: what
//! is not used is not measured.

use super::Leg;
use crate::time::{Duration, Instant, nanos};

/// Weight of a new round trip.
const NEW: f64 = 0.6;
/// Probes of which the answer is waited for.
const OUTSTANDING: usize = 16;
/// The least round trip is that of the last one or two of these.
const LEAST_OVER: Duration = Duration::from_secs(10);
/// A round trip is well above the least from here on: so much more, and so many microseconds.
const BUSY_RATIO: f64 = 1.1;
const BUSY_US: f64 = 2_000.0;

#[derive(Debug, Clone, Copy)]
struct Probe {
    sequence: u16,
    at: Instant,
    /// Bytes sent when it was, itself included.
    bytes: u64,
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
    /// Bytes before the last probe that was answered, when that was, and whether there was a queue.
    last: Option<(u64, Instant, bool)>,
    rate_bps: f64,
    /// It was busy once: the rate is not a lower bound.
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
            last: None,
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
        self.outstanding[usize::from(sequence) % OUTSTANDING] =
            Some(Probe { sequence, at: now, bytes: self.sent_bytes });
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
        let is_busy = rtt_us > self.least_rtt_us() * BUSY_RATIO + BUSY_US;
        if let Some((bytes, at, was_busy)) = self.last
            && probe.bytes > bytes
        {
            let seconds = now.saturating_since(at).as_secs_f64();
            let rate = (probe.bytes - bytes) as f64 * 8.0 / seconds;
            if seconds > 0.0 {
                self.rate_sample(rate, was_busy && is_busy);
            }
        }
        if self.last.is_none_or(|(bytes, ..)| probe.bytes > bytes) {
            self.last = Some((probe.bytes, now, is_busy));
        }
        true
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

    fn rate_sample(&mut self, rate: f64, is_exact: bool) {
        if is_exact && self.rate_known {
            self.rate_bps = NEW * rate + (1.0 - NEW) * self.rate_bps;
        } else if is_exact {
            (self.rate_bps, self.rate_known) = (rate, true);
        } else {
            self.rate_bps = self.rate_bps.max(rate);
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
    /// Rate, bits per second; a lower bound as long as the leg was not busy; 0 as long as nothing is known.
    pub rate_bps: f64,
    /// Bytes of TCP and probes sent.
    pub sent_bytes: u64,
    /// Probes sent.
    pub probes: u64,
    /// Probes answered.
    pub answers: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A leg of 8 Mbit/s with 20 ms round trip; offers `load_bps`, and probes every 100 ms.
    fn run(load_bps: f64, seconds: u64) -> Link {
        let mut link = Link::new();
        let mut answers: Vec<(Instant, u16)> = Vec::new();
        let (mut busy_until, mut credit) = (0.0f64, 0.0);
        for ms in 0..seconds * 1000 {
            let (now, t) = (Instant::from_millis(ms), ms as f64 / 1e3);
            answers.retain(|(at, sequence)| *at > now || !link.answered(*sequence, *at));
            credit += load_bps / 1e3;
            while credit >= 12_000.0 {
                credit -= 12_000.0;
                // A queue of 200 ms, and no more.
                if busy_until < t + 0.2 {
                    busy_until = busy_until.max(t) + 0.0015;
                    link.sent_bytes += 1500;
                }
            }
            if ms % 100 == 0 {
                busy_until = busy_until.max(t) + 0.000_052;
                let sequence = link.probe(52, 4, now);
                answers.push((Instant::from_nanos(((busy_until + 0.02) * 1e9) as u64), sequence));
            }
        }
        link
    }

    #[test]
    fn a_busy_leg_is_measured_and_an_idle_one_is_bounded() {
        let busy = run(20e6, 10);
        assert!((7.6e6..8.4e6).contains(&busy.rate_bps()), "{}", busy.rate_bps());
        assert!(busy.rtt_us() > 150_000.0 && busy.up);
        let idle = run(2e6, 10);
        assert!((1.8e6..3e6).contains(&idle.rate_bps()), "{}", idle.rate_bps());
        assert!((20_000.0..23_000.0).contains(&idle.rtt_us()), "{}", idle.rtt_us());
        assert_eq!((idle.probes, idle.answers), (100, 100));
    }

    #[test]
    fn the_authors_average() {
        let mut link = Link::new();
        for (n, rtt, average) in [(0u64, 100u64, 100.0), (1, 50, 70.0), (2, 50, 58.0)] {
            let at = Instant::from_millis(1000 * n);
            let sequence = link.probe(52, 4, at);
            assert!(link.answered(sequence, at + Duration::from_millis(rtt)));
            assert!(!link.answered(sequence, at + Duration::from_millis(rtt)), "once");
            assert!((link.rtt_us() - 1000.0 * average).abs() < 1e-6);
        }
    }

    #[test]
    fn silence_is_noticed_and_forgiven() {
        let mut link = Link::new();
        for n in 0..4 {
            link.probe(52, 4, Instant::from_millis(n));
            assert!(link.up);
        }
        let last = link.probe(52, 4, Instant::from_millis(4));
        assert!(!link.up);
        assert!(link.answered(last, Instant::from_millis(5)) && link.up);
    }

    proptest! {
        #[test]
        fn any_answers_leave_numbers(steps in proptest::collection::vec((any::<bool>(), any::<u16>(), 0u64..10_000), 0..100)) {
            let mut link = Link::new();
            let mut now = Instant::ZERO;
            for (probes, sequence, us) in steps {
                now += Duration::from_micros(us);
                if probes {
                    link.probe(52, 4, now);
                } else {
                    link.answered(sequence % 40, now);
                }
                let view = link.view(Leg::Lte);
                prop_assert!(view.rtt_us.is_finite() && view.rate_bps.is_finite() && view.answers <= view.probes);
            }
        }
    }
}
