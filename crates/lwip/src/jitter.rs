//! From which round trip on a leg is taken for full, and what jitter does to that.
//!
//! A round trip shows a queue if it is well above the least: more than 1.1 times, and 2 ms ([`Jitter::is_beyond`]). That is so until
//! samples that should be those of a full leg turn out not to be, by [`Meter`]: what lies between the least and their round trips is jitter
//! of the leg's own then, and a round trip must exceed that, too. Without jitter nothing of this happens.
//!
//! ```text
//!   round trip   least ──────── 1.1 · least + 2 ms ──────── + jitter ────────▶
//!                      no queue                   jitter              claimed
//!                                                   │ full: jitter := 0    │ spare: jitter := most of these
//!                                                   └──────────────────────┴─▶ both begin anew
//! ```

use super::load::Meter;
use anabranch_element::time::{Duration, Instant};

/// A round trip is well above the least from here on: so much more, and so many microseconds.
const BUSY_RATIO: f64 = 1.1;
const BUSY_US: f64 = 2_000.0;
/// Samples are of probes so far apart, at least and at most: jitter is a part of what lies between.
const SAMPLE: Duration = Duration::from_millis(80);
const LONGEST_SAMPLE: Duration = Duration::from_secs(4);
/// More than so many times the known rate is what a full queue drops, or capacity that was not there: it says nothing of jitter.
const TOO_MUCH: f64 = 1.2;
/// Bits of a packet that a queue has at least.
const PACKET_BITS: f64 = 12_000.0;

/// A probe that was answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    /// Bytes sent on the leg when it was, itself included.
    pub bytes: u64,
    pub sent: Instant,
    pub answered: Instant,
    pub rtt_us: f64,
}

/// See the top of this file.
#[derive(Debug, Clone)]
pub(super) struct Jitter {
    last: Option<Answer>,
    /// Samples beyond `top_us`, and those that would be if it was 0.
    claimed: Meter,
    refuted: Meter,
    /// What the leg's own round trips are beyond the least, microseconds; 0 as long as nothing is known of it.
    top_us: f64,
    /// What went over the leg in the last sample, bits per second.
    sample_bps: f64,
    /// Most of these, of this window of time and of the one before.
    most_bps: [f64; 2],
}

impl Jitter {
    /// Nothing is known.
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

    /// What went over the leg in the last sample, bits per second: no more than its rate, and no jitter in it.
    pub(super) fn sample_bps(&self) -> f64 {
        self.sample_bps
    }

    /// Most of these of late.
    pub(super) fn most_bps(&self) -> f64 {
        self.most_bps[0].max(self.most_bps[1])
    }

    /// The next window of time begins.
    pub(super) fn turn(&mut self) {
        self.most_bps = [0.0, self.most_bps[0]];
    }

    /// Whether a round trip shows a queue, where `least_us` is the least.
    pub(super) fn is_beyond(&self, rtt_us: f64, least_us: f64) -> bool {
        beyond(rtt_us, least_us, self.top_us)
    }

    /// Whether a rate can be that of a queue that delays by `excess_us`: in a queue is a packet at least.
    pub(super) fn is_possible(rate_bps: f64, excess_us: f64) -> bool {
        excess_us * 1e-6 * rate_bps >= PACKET_BITS
    }

    /// A probe was answered; `known_bps` is the rate, as far as it is known. Whether that must be forgotten: it was not measured while
    /// the leg was full.
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
        // What jitter takes from the time between two answers is no rate.
        self.sample_bps = bits / took.max(sent).as_secs_f64();
        if known_bps.is_some_and(|known| bits > TOO_MUCH * known * took.as_secs_f64()) {
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
