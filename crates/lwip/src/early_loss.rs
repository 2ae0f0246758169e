//! Loss of a leg that shows while the leg carries little: known sooner than by the model of its load.
//!
//! That model ([`anabranch_steer::measure::Load`]) takes some hundred packets for a sample and several samples, for a queue that overflows
//! looks like loss for a moment. Where a leg carries less than half of what it can, nothing overflows for long:
//!
//! ```text
//!   segments sent again in three round trips, each while the leg carried less than half of its estimate without a queue, within 3,000
//!   packets   ──▶   it loses (round trips with loss / packets), until 3,000 packets in a row say less
//! ```
//!
//! A slow start that meets a short queue loses packets at a low rate, too, but in a round trip or two; then it is more than
//! half of the leg that it has.

use anabranch_element::time::{Duration, Instant};

/// Round trips with loss that are no accident.
const ROUNDS: u32 = 3;
/// Packets within which they have to be.
const PACKETS: u64 = 3_000;
/// The rate is taken over so long at least.
const RATE: Duration = Duration::from_millis(50);

/// What a leg carries now, and how.
#[derive(Debug, Clone, Copy)]
pub(super) struct Use {
    /// Packets and bytes sent by it so far.
    pub packets: u64,
    pub bytes: u64,
    /// What it is taken to carry, bit/s; 0: nothing is known.
    pub estimate_bps: u64,
    /// Whether packets wait in it.
    pub has_queue: bool,
    /// Round trip of a flow on it.
    pub rtt: Duration,
}

/// Loss of one leg, as retransmissions tell it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct EarlyLoss {
    /// Bytes sent when this window of time began, and the rate of the one before.
    window: (u64, Instant),
    rate_bps: u64,
    /// Packets sent when the first round trip with loss was, how many there were, and when the newest began.
    from: u64,
    rounds: u32,
    round_at: Instant,
    ppm: u32,
}

impl EarlyLoss {
    /// Whether there may be something to look at.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now.saturating_since(self.window.1) >= RATE
    }

    /// Time passes.
    pub(super) fn look(&mut self, of: &Use, now: Instant) {
        let (bytes, since) = self.window;
        let time = now.saturating_since(since);
        if time >= of.rtt.max(RATE) {
            let bits = u128::from(of.bytes.saturating_sub(bytes)) * 8_000_000;
            self.rate_bps = u64::try_from(bits / time.as_micros().max(1)).unwrap_or(u64::MAX);
            self.window = (of.bytes, now);
        }
        if self.rounds > 0 && of.packets.saturating_sub(self.from) > PACKETS {
            (self.rounds, self.ppm) = (0, 0);
        }
    }

    /// A segment was lost.
    pub(super) fn lost(&mut self, of: &Use, now: Instant) {
        self.look(of, now);
        let is_little = self.rate_bps < of.estimate_bps / 2;
        if !is_little || of.has_queue || self.rounds > 0 && now.saturating_since(self.round_at) < of.rtt {
            return;
        }
        if self.rounds == 0 {
            self.from = of.packets;
        }
        (self.rounds, self.round_at) = (self.rounds + 1, now);
        let packets = of.packets.saturating_sub(self.from).max(1);
        if self.rounds >= ROUNDS {
            self.ppm = u32::try_from(u64::from(self.rounds) * 1_000_000 / packets)
                .unwrap_or(u32::MAX)
                .min(1_000_000);
        }
    }

    /// One that was lost was not.
    pub(super) fn found(&mut self) {
        self.rounds = self.rounds.saturating_sub(1);
        if self.rounds < ROUNDS {
            self.ppm = 0;
        }
    }

    /// The leg was down: what was missing says nothing.
    pub(super) fn interrupted(&mut self) {
        *self = Self::default();
    }

    /// Parts per million; 0: none is known.
    pub(super) const fn ppm(&self) -> u32 {
        self.ppm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    /// A sender on a leg of 100 Mbit/s, of so many packets per round trip, in ten of which a segment is lost in some. What is known after
    /// each.
    fn rounds(packets: u64, lossy: &[u64], has_queue: bool) -> Vec<u32> {
        let (mut early, mut sent, mut now) = (EarlyLoss::default(), 0, Instant::from_secs(1));
        let mut known = Vec::new();
        for round in 0..10 {
            for _ in 0..packets {
                sent += 1;
                now += RTT / packets as u32;
                let of = Use {
                    packets: sent,
                    bytes: sent * 1_440,
                    estimate_bps: 100_000_000,
                    has_queue,
                    rtt: RTT,
                };
                early.look(&of, now);
                if lossy.contains(&round) && sent % packets < 3 {
                    early.lost(&of, now);
                }
            }
            known.push(early.ppm());
        }
        known
    }

    #[test]
    fn the_third_round_trip_with_loss_on_a_leg_that_carries_little_tells() {
        let known = rounds(50, &[2, 3, 5], false);
        assert_eq!(known[..5], [0; 5]);
        assert!(known[5..].iter().all(|ppm| (10_000..40_000).contains(ppm)), "{known:?}");
    }

    #[test]
    fn an_overflow_does_not() {
        let full = 100 * 125_000 / 10 / 1_440;
        assert_eq!(rounds(full, &[2, 3, 5, 6, 7], false), [0; 10], "a leg that carries all it can");
        assert_eq!(rounds(50, &[2, 3, 5, 6, 7], true), [0; 10], "a queue");
        assert_eq!(rounds(50, &[2, 3], false), [0; 10], "a slow start that went too far");
    }

    #[test]
    fn what_was_found_or_is_long_ago_counts_no_more() {
        let mut early = EarlyLoss::default();
        let of =
            |packets: u64| Use { packets, bytes: 0, estimate_bps: 1_000_000, has_queue: false, rtt: RTT };
        let mut now = Instant::from_secs(1);
        for packets in [10, 60, 110] {
            early.lost(&of(packets), now);
            now += RTT;
        }
        assert_eq!(early.ppm(), 30_000);
        let mut found = early;
        found.found();
        assert_eq!(found.ppm(), 0);
        early.look(&of(3_010), now);
        assert_eq!(early.ppm(), 30_000);
        early.look(&of(3_011), now);
        assert_eq!(early.ppm(), 0);
    }
}
