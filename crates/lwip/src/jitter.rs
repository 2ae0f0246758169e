//! The round trip from which a leg counts as full, with allowance for the jitter of the leg.
//!
//! A round trip shows a queue if it exceeds 1.1 times the least one plus 2 ms ([`Jitter::is_beyond`]). This applies
//! until [`Meter`] finds that samples which should be those of a full leg are not. The excess of their round trips
//! over the least one then counts as jitter, which a round trip must exceed in addition. Without jitter, none of
//! this has an effect. See docs/lwip.md, "Telling jitter from a queue".
//!
//! ```text
//!   round trip   least ──────── 1.1 · least + 2 ms ──────── + jitter ────────▶
//!                      no queue                   jitter              claimed
//!                                                   │ full: jitter := 0    │ spare: jitter := most of these
//!                                                   └──────────────────────┴─▶ both begin anew
//! ```

use super::load::Meter;
use anabranch_element::time::{Duration, Instant};

/// Threshold for a queue: the least round trip times this factor, plus [`BUSY_US`].
const BUSY_RATIO: f64 = 1.1;
const BUSY_US: f64 = 2_000.0;
/// Shortest time between the probes of a sample; jitter affects only a part of it.
const SAMPLE: Duration = Duration::from_millis(80);
/// Longest time between them.
const LONGEST_SAMPLE: Duration = Duration::from_secs(4);
/// Load above which jitter is not evaluated, as a factor of the known rate: a full queue drops the excess, or the
/// capacity has grown.
const MAX_RATE_RATIO: f64 = 1.2;
/// A queue contains at least one packet of this size, bits.
const PACKET_BITS: f64 = 12_000.0;

/// An answered probe.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    /// Bytes sent by the leg when the probe left, itself included.
    pub bytes: u64,
    pub sent: Instant,
    pub answered: Instant,
    pub rtt_us: f64,
}

/// Jitter estimate of one leg, as the [module](self) describes.
#[derive(Debug, Clone)]
pub(super) struct Jitter {
    /// The previous sample.
    last: Option<Answer>,
    /// Samples whose round trips exceed the threshold.
    claimed: Meter,
    /// Samples that would exceed it if `top_us` were 0.
    refuted: Meter,
    /// Jitter of the leg: the excess of its own round trips over the least, microseconds; 0 while none is known.
    top_us: f64,
    /// Rate sent over the leg in the last sample, bits per second.
    sample_bps: f64,
    /// Maximum of `sample_bps` in the current period and in the previous one.
    most_bps: [f64; 2],
}

impl Jitter {
    /// Without samples.
    pub(super) const fn new() -> Self {
        Self {
            last: None,
            claimed: Meter::EMPTY,
            refuted: Meter::EMPTY,
            top_us: 0.0,
            sample_bps: 0.0,
            most_bps: [0.0; 2],
        }
    }

    /// Whether the leg is known to have jitter.
    pub(super) fn is_known(&self) -> bool {
        self.top_us > 0.0
    }

    /// Rate sent over the leg in the last sample, bits per second: at most the leg's rate, and not affected by
    /// jitter.
    pub(super) fn sample_bps(&self) -> f64 {
        self.sample_bps
    }

    /// Maximum of the recent samples.
    pub(super) fn most_bps(&self) -> f64 {
        self.most_bps[0].max(self.most_bps[1])
    }

    /// The next period begins.
    pub(super) fn turn(&mut self) {
        self.most_bps = [0.0, self.most_bps[0]];
    }

    /// Whether a round trip shows a queue, given the least round trip.
    pub(super) fn is_beyond(&self, rtt_us: f64, least_us: f64) -> bool {
        beyond(rtt_us, least_us, self.top_us)
    }

    /// Whether a queue that delays by `excess_us` can have this rate: it contains at least one packet.
    pub(super) fn is_possible(rate_bps: f64, excess_us: f64) -> bool {
        excess_us * 1e-6 * rate_bps >= PACKET_BITS
    }

    /// A probe was answered; `known_bps` is the known rate. Returns whether that rate must be forgotten, because it
    /// was not measured on a full leg.
    pub(super) fn answered(&mut self, answer: Answer, least_us: f64, known_bps: Option<f64>) -> bool {
        let Some(last) = self.last else {
            self.last = Some(answer);
            return false;
        };
        let sent = answer.sent.saturating_since(last.sent);
        if sent < SAMPLE {
            return false;
        }
        self.last = Some(answer);
        if sent > LONGEST_SAMPLE {
            return false;
        }
        let (bytes, took) = (answer.bytes - last.bytes, answer.answered.saturating_since(last.answered));
        let bits = bytes as f64 * 8.0;
        // Jitter shortens the time between two answers; the longer of both times is safe.
        self.sample_bps = bits / took.max(sent).as_secs_f64();
        if known_bps.is_some_and(|known| bits > MAX_RATE_RATIO * known * took.as_secs_f64()) {
            return false;
        }
        self.most_bps[0] = self.most_bps[0].max(self.sample_bps);
        let both_us = last.rtt_us.min(answer.rtt_us);
        let excess_us = answer.rtt_us - least_us;
        if self.is_beyond(both_us, least_us) {
            self.claimed.sample(bytes, sent, took, excess_us);
            if self.claimed.is_spare() {
                self.begin_anew(self.claimed.top_us());
                return true;
            }
        } else if beyond(both_us, least_us, 0.0) {
            self.refuted.sample(bytes, sent, took, excess_us);
            if self.refuted.is_full() {
                self.begin_anew(0.0);
            }
        }
        false
    }

    fn begin_anew(&mut self, top_us: f64) {
        self.top_us = top_us;
        (self.claimed, self.refuted) = (Meter::EMPTY, Meter::EMPTY);
    }
}

fn beyond(rtt_us: f64, least_us: f64, more_us: f64) -> bool {
    rtt_us > least_us * BUSY_RATIO + BUSY_US + more_us
}
