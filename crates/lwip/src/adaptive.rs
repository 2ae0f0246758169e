//! `hold = adaptive`: a hold derived from how recent gaps ended. Not part of the paper.
//!
//! Every gap that the node sees ends in one of two ways. Either the packet was late, by D after the first duplicate
//! that was to be held, or it was lost and a retransmission ended the gap. With a hold of h the sender loses this
//! much time:
//!
//! ```text
//!   late, D ≤ h:  nothing                      the sender does not notice the gap
//!   late, D > h:  h + T_cut                    it waits, and then reduces its window needlessly
//!   lost:         h                            its recovery begins later by this time
//! ```
//!
//! T_cut is the time to recover from a window reduction. A window of w segments that falls by β(w)·w and grows by
//! α(w) per round trip falls short by (βw)²/2α segments in total, which takes `R·β²·w/2α` at w segments per round
//! trip R. The best h minimises
//!
//! ```text
//!   J(h) = N(late, D > h)·(h + T_cut) + N(lost)·h
//! ```
//!
//! with counts that fade: each gap multiplies the older counts by 63/64. Without losses, h is the longest delay
//! seen; with losses only, it is 0. A flow with a small window loses little by a reduction, so its hold is shorter
//! than that of a large one on the same legs. The delays are a property of the legs, so all flows of a UE share the
//! counts.
//!
//! D is measured even if it exceeds h: nothing is held any more, but the ACK that ends the gap is observed. If the
//! retransmission passed the node less than the shortest round trip behind it before that ACK, it was not the
//! retransmission that ended the gap (`Gap::was_late`).

use super::holding_time::{alpha, beta};
use anabranch_element::time::{Duration, nanos};

/// Buckets of the delay histogram: the upper bounds are 1 ms times powers of √2, up to 2.9 s. Longer delays count
/// in the last bucket.
const BUCKETS: usize = 24;
/// Factor by which all counts fade when another gap has ended.
const FADE: f32 = 63.0 / 64.0;

fn bucket_of(seconds: f64) -> usize {
    (0..BUCKETS).find(|bucket| seconds <= edge_s(*bucket)).unwrap_or(BUCKETS - 1)
}

/// Counts of how recent gaps ended; they fade by [`FADE`] with each gap.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Gaps {
    late: [f32; BUCKETS],
    lost: f32,
}

fn edge_s(bucket: usize) -> f64 {
    0.001 * 2f64.powf(bucket as f64 / 2.0)
}

impl Gaps {
    /// A packet arrived `by` after the first duplicate that was to be held.
    pub(super) fn was_late(&mut self, by: Duration) {
        self.fade();
        self.late[bucket_of(nanos(by) as f64 / 1e9)] += 1.0;
    }

    /// A packet was lost.
    pub(super) fn was_lost(&mut self) {
        self.fade();
        self.lost += 1.0;
    }

    /// The best hold in seconds, for a window of `w` segments and the given RTT. Half of the RTT while there are no
    /// counts.
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
            // Ignore improvements that come from counts which have faded to almost nothing.
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
