//! Loss on a leg that carries little traffic, recognised earlier than by the path model.
//!
//! The path model ([`anabranch_steer::measure::Load`]) takes several samples of some hundred packets, because a queue that
//! overflows also looks like random loss for a moment. On a leg that carries less than half of its capacity, no queue
//! overflows for long:
//!
//! ```text
//!   retransmissions in three round trips within 3,000 packets, while the leg carried less than half of its estimate and
//!   had no queue   ──▶   loss := round trips with loss / packets, until 3,000 packets have passed since the first of them
//! ```
//!
//! A slow start into a short queue also loses packets at a low rate, but only in one or two round trips; after that it uses
//! more than half of the leg.

use anabranch_element::time::{Duration, Instant};

/// Round trips with loss that count as evidence.
const ROUNDS: u32 = 3;
/// Packets within which they must occur.
const PACKETS: u64 = 3_000;
/// Shortest period over which the rate of the leg is measured.
const RATE: Duration = Duration::from_millis(50);

/// The current use of a leg.
#[derive(Debug, Clone, Copy)]
pub(super) struct Use {
    /// Packets sent by the leg so far.
    pub packets: u64,
    /// Bytes sent by the leg so far.
    pub bytes: u64,
    /// Estimated capacity, bit/s; 0: unknown.
    pub estimate_bps: u64,
    /// Whether the leg has a queue.
    pub has_queue: bool,
    /// Round trip of a flow on the leg.
    pub rtt: Duration,
}

/// Loss of one leg, from retransmissions.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct EarlyLoss {
    /// Bytes sent by the leg when the current period began, and when that was.
    window: (u64, Instant),
    /// Rate of the previous period, bit/s.
    rate_bps: u64,
    /// Packets sent by the leg at the first round trip with loss.
    from: u64,
    /// Round trips with loss since then.
    rounds: u32,
    /// Begin of the newest of them.
    round_at: Instant,
    /// Loss in parts per million; 0: unknown.
    ppm: u32,
}

impl EarlyLoss {
    /// Whether [`Self::update`] has something to do.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now.saturating_since(self.window.1) >= RATE
    }

    /// Updates the rate, and discards evidence that is too old.
    pub(super) fn update(&mut self, of: &Use, now: Instant) {
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
        self.update(of, now);
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

    /// A duplicate SACK shows that a segment counted as lost had arrived.
    pub(super) fn found(&mut self) {
        self.rounds = self.rounds.saturating_sub(1);
        if self.rounds < ROUNDS {
            self.ppm = 0;
        }
    }

    /// The leg was down: losses of that time are no evidence.
    pub(super) fn interrupted(&mut self) {
        *self = Self::default();
    }

    /// Loss in parts per million; 0: none is known.
    pub(super) const fn ppm(&self) -> u32 {
        self.ppm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    /// A sender on a leg of 100 Mbit/s, with `packets` per round trip, for ten round trips; a segment is lost in
    /// those of `lossy`. Returns the loss known after each.
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
                early.update(&of, now);
                if lossy.contains(&round) && sent % packets < 3 {
                    early.lost(&of, now);
                }
            }
            known.push(early.ppm());
        }
        known
    }

    #[test]
    fn the_third_round_trip_with_loss_on_an_underused_leg_is_evidence() {
        let known = rounds(50, &[2, 3, 5], false);
        assert_eq!(known[..5], [0; 5]);
        assert!(known[5..].iter().all(|ppm| (10_000..40_000).contains(ppm)), "{known:?}");
    }

    #[test]
    fn an_overflowing_queue_is_no_evidence() {
        let full = 100 * 125_000 / 10 / 1_440;
        assert_eq!(rounds(full, &[2, 3, 5, 6, 7], false), [0; 10], "a full leg");
        assert_eq!(rounds(50, &[2, 3, 5, 6, 7], true), [0; 10], "a queue");
        assert_eq!(rounds(50, &[2, 3], false), [0; 10], "a slow start that overshot");
    }

    #[test]
    fn revoked_and_old_losses_do_not_count() {
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
        early.update(&of(3_010), now);
        assert_eq!(early.ppm(), 30_000);
        early.update(&of(3_011), now);
        assert_eq!(early.ppm(), 0);
    }
}
