//! A hold that follows what happens: ours, not of the paper.
//!
//! Every gap the node sees ends in one of two ways. The packet was late, by D after the first duplicate that was to be
//! held; or it was lost, and only its retransmission ends the gap. With a hold of h the time that a sender loses is
//!
//! ```text
//!   late, D ≤ h:  nothing                      the sender never learns of it
//!   late, D > h:  h + T_cut                    it waits, and then reduces its window for nothing
//!   lost:         h                            its recovery begins so much later
//! ```
//!
//! where T_cut is the time it takes to make up for a reduction. A window of w segments that falls by β(w) and grows by
//! α(w) a round trip is short of (βw)²/2α segments in all, which at w segments a round trip is `R·β²·w/2α`. So the best h
//! makes
//!
//! ```text
//!   J(h) = N(late, D > h)·(h + T_cut) + N(lost)·h
//! ```
//!
//! least, with the counts of lately: each new gap weighs 1/64 more than the one before. Without losses it is the longest
//! delay seen; with losses only, it is 0; and a flow with a small window, which loses little by a reduction, holds shorter
//! than a large one on the same legs. The delays are a property of the legs, so all flows of a UE share the counts.
//!
//! D is known even when it is beyond h: nothing is held any more then, but the ACK that ends the gap is seen. If the
//! retransmission passed the node less than the shortest round trip behind it before that ACK, it was not the
//! retransmission that ended the gap.

use super::holding_time::{alpha, beta};
use anabranch_element::time::{Duration, nanos};

/// Buckets of delays: up to 1 ms, and up to √2 times as much each, to 2.9 s.
const BUCKETS: usize = 24;
/// What is left of a count when another gap has ended.
const FADE: f32 = 63.0 / 64.0;

fn bucket_of(seconds: f64) -> usize {
    (0..BUCKETS).find(|bucket| seconds <= edge_s(*bucket)).unwrap_or(BUCKETS - 1)
}

/// How gaps ended, lately.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Gaps {
    late: [f32; BUCKETS],
    lost: f32,
}

fn edge_s(bucket: usize) -> f64 {
    0.001 * 2f64.powf(bucket as f64 / 2.0)
}

impl Gaps {
    /// A packet came so long after the first duplicate that was to be held.
    pub(super) fn was_late(&mut self, by: Duration) {
        self.fade();
        self.late[bucket_of(nanos(by) as f64 / 1e9)] += 1.0;
    }

    /// A packet was lost.
    pub(super) fn was_lost(&mut self) {
        self.fade();
        self.lost += 1.0;
    }

    /// The best hold for a window of `w` segments and an RTT, seconds. Half of the RTT as long as nothing is known.
    pub(super) fn best_s(&self, w: f64, rtt_s: f64) -> f64 {
        let all: f32 = self.late.iter().sum();
        if all + self.lost < 0.5 {
            return rtt_s / 2.0;
        }
        let b = beta(w);
        let cut_s = rtt_s * b * b * w / (2.0 * alpha(w));
        let (mut beyond, lost) = (f64::from(all), f64::from(self.lost));
        let (mut best, mut least) = (0.0, beyond * cut_s);
        for (bucket, count) in self.late.iter().enumerate() {
            beyond = (beyond - f64::from(*count)).max(0.0);
            let h = edge_s(bucket);
            let cost = beyond * (h + cut_s) + lost * h;
            // What is nearly never seen any more is no reason to wait.
            if cost + 1e-9 < least {
                (best, least) = (h, cost);
            }
        }
        best
    }

    fn fade(&mut self) {
        self.lost *= FADE;
        self.late.iter_mut().for_each(|count| *count *= FADE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn late_packets_are_waited_for_and_lost_ones_are_not() {
        let mut gaps = Gaps::default();
        assert!((gaps.best_s(100.0, 0.1) - 0.05).abs() < 1e-9);
        for i in 0..100 {
            gaps.was_late(Duration::from_millis(5 + i % 20));
        }
        let hold = gaps.best_s(100.0, 0.1);
        assert!((0.024..0.036).contains(&hold), "{hold}");
        for _ in 0..1000 {
            gaps.was_lost();
        }
        assert_eq!(gaps.best_s(100.0, 0.1), 0.0);
        for _ in 0..300 {
            gaps.was_late(Duration::from_millis(60));
        }
        let hold = gaps.best_s(100.0, 0.1);
        assert!((0.06..0.1).contains(&hold), "{hold}: it follows");
    }

    #[test]
    fn a_small_window_has_less_to_lose() {
        let mut gaps = Gaps::default();
        for _ in 0..16 {
            gaps.was_late(Duration::from_millis(60));
            gaps.was_lost();
        }
        assert_eq!(gaps.best_s(4.0, 0.1), 0.0);
        assert!(gaps.best_s(200.0, 0.1) > 0.06);
    }

    proptest! {
        #[test]
        fn no_other_hold_costs_less(
            gaps in proptest::collection::vec(proptest::option::of(0u64..3000), 1..100), w in 1.0..2000.0f64,
            rtt_s in 0.001..0.5f64,
        ) {
            let mut seen = Gaps::default();
            for gap in &gaps {
                match gap {
                    Some(ms) => seen.was_late(Duration::from_millis(*ms)),
                    None => seen.was_lost(),
                }
            }
            let cut_s = rtt_s * beta(w) * beta(w) * w / (2.0 * alpha(w));
            let cost = |h: f64| {
                let mut cost = 0.0;
                for (age, gap) in gaps.iter().rev().enumerate() {
                    let weight = f64::from(FADE).powi(age as i32);
                    cost += weight * match gap {
                        None => h,
                        Some(ms) if edge_s(bucket_of(*ms as f64 / 1e3)) <= h => 0.0,
                        Some(_) => h + cut_s,
                    };
                }
                cost
            };
            let best = seen.best_s(w, rtt_s);
            for bucket in 0..BUCKETS {
                prop_assert!(cost(best) <= cost(edge_s(bucket)) * 1.001 + 1e-6);
            }
            prop_assert!(cost(best) <= cost(0.0) * 1.001 + 1e-6);
        }
    }
}
