//! Autonomous load-balance: the shares follow the measured delivery rates.
//!
//! TS 23.501 §5.32.8 *Load-Balancing with autonomous load-balance indicator* lets UE and UPF choose
//! "percentages ... for maximum throughput" and leaves the law open; JUNCTION has only fixed ratios.
//! The law here, every [`PERIOD_MS`]:
//!
//! ```text
//!   full(path)      :=  loss > 1 %   or   RTT > 1.5 x base RTT + 5 ms
//!   capacity(path)  :=  delivery rate while there is a queue, smoothed;
//!                       forgotten when the path delivers 1/8 more and is not full
//!   load(path)      :=  capacity x (1 - (RTT - base RTT) / 1 s) x (1 + probe)
//!
//!   every capacity known, some full    move half way to the ratio of the loads
//!                         none full    move 1/8 of the way
//!   some unknown, some full            each full one gives 1/4 of the smaller of (its share,
//!                                      the share of those that are not) to those that are not
//!                 none full            leave the shares alone
//! ```
//!
//! Why not simply "share = delivery rate / sum"? A path that is not full delivers what it is given, so
//! that rule confirms any split it starts from; and a TCP flow slows down to what its fullest path
//! carries, so the ratio stays wrong. Only a full path's delivery rate says something about the path.
//!
//! *Why the queue is in it.* A queue is the integral of the load that was too much, so a law that takes from a
//! path for as long as there is one takes too much, and the shares swing. The load under which a queue of
//! `q` is gone in [`DRAIN_US`] is `1 - q / 1 s` of the capacity: a first-order loop, stable without a swing as long
//! as a second is more than e times the delay of its measurements (a period and the smoothing of the RTT,
//! 0.3 s to 0.4 s).
//!
//! *Probing upwards.* A capacity may grow unseen, for the path is never given more than it is known to take; and a
//! sender that was cut back by a loss fills no path for a while. So whenever some path is full, one that is
//! not is taken to carry 1/16 more than known, in each period 1/16 more, 1/4 at most. If it does, its capacity
//! counts as unknown, and its share grows by up to 1/4 in a period for as long as others are full. If it does not, it
//! is full soon, and measured: the price is 1/4 of its share for a period.
//!
//! Shares are in units of 0.01 %, at least [`LEAST_SHARE`] each, so that every path is still measured
//! under traffic. The base RTT is a minimum that creeps up by 1/256 per period, so a route change is
//! forgotten. Packet *n* goes to position `n * 6181 mod 10000` of the shares laid end to end: exact over
//! 10000 packets, and evenly mixed over a few (0.6181 is close to the golden ratio).

use super::{PathSet, PathState, PathStates};
use crate::access::{MAX_PATHS, PathId};
use crate::time::Instant;

/// Units in the whole.
const WHOLE: u32 = 10_000;
/// Coprime to [`WHOLE`].
const STRIDE: u64 = 6_181;
/// Smallest share of a path that is up.
pub(super) const LEAST_SHARE: u32 = 100;
/// Time between two changes of the shares.
pub(super) const PERIOD_MS: u64 = 250;
/// Where capacities are unknown, this part of a share is moved in one period.
const STEP_PART: u32 = 4;
/// What a path is taken to carry more than known grows in steps of 1/16, this many at most.
const MOST_PROBE: u8 = 4;
/// Time in which a queue is to drain.
const DRAIN_US: u64 = 1_000_000;
const CONGESTED_LOSS_PPM: u32 = 10_000;
const CONGESTED_RTT_SLACK_US: u64 = 5_000;

/// The shares of one (session, rule).
#[derive(Debug, Clone)]
pub(super) struct Shares {
    /// Shares of the paths in `of`, summing to [`WHOLE`].
    share: [u32; MAX_PATHS],
    of: PathSet,
    base_rtt_us: [u32; MAX_PATHS],
    /// What each path delivered when it was full; 0: not known, or no longer.
    capacity_bps: [u64; MAX_PATHS],
    /// What it is taken to carry more than that, in 1/16.
    probe: [u8; MAX_PATHS],
    weights: [u8; MAX_PATHS],
    next: Instant,
}

impl Shares {
    /// Starts from these weights (all zero: equal shares).
    pub(super) const fn new(weights: [u8; MAX_PATHS]) -> Self {
        Self {
            share: [0; MAX_PATHS],
            of: PathSet::EMPTY,
            base_rtt_us: [0; MAX_PATHS],
            capacity_bps: [0; MAX_PATHS],
            probe: [0; MAX_PATHS],
            weights,
            next: Instant::ZERO,
        }
    }

    /// The path of packet (or flow) `number`; `up` is what [`Self::update`] was last called with.
    pub(super) fn path(&self, number: u64, up: PathSet) -> Option<PathId> {
        let whole = u64::from(WHOLE);
        let mut left = number % whole * STRIDE % whole;
        up.iter().find(|&path| {
            let share = u64::from(self.share[usize::from(path)]);
            let mine = left < share;
            left = left.saturating_sub(share);
            mine
        })
    }

    /// Brings the shares up to date with the paths.
    pub(super) fn update(&mut self, paths: &PathStates, up: PathSet, now: Instant) {
        if up != self.of {
            self.admit(up);
            self.next = now + core::time::Duration::from_millis(PERIOD_MS);
        } else if now >= self.next {
            self.next = now + core::time::Duration::from_millis(PERIOD_MS);
            self.follow(paths, up);
        }
    }

    /// The set of paths changed: one that left gives its share to the others in proportion, one that
    /// came gets what its weight says.
    fn admit(&mut self, up: PathSet) {
        let weight = |w: &[u8; MAX_PATHS], p: PathId| u32::from(w[usize::from(p)]);
        let sum: u32 = up.iter().map(|p| weight(&self.weights, p)).sum();
        let even = WHOLE / u32::try_from(up.len()).unwrap_or(1).max(1);
        for path in up.without(self.of) {
            let fresh = (WHOLE * weight(&self.weights, path)).checked_div(sum);
            self.share[usize::from(path)] = fresh.unwrap_or(even);
            self.base_rtt_us[usize::from(path)] = 0;
            self.capacity_bps[usize::from(path)] = 0;
            self.probe[usize::from(path)] = 0;
        }
        self.of = up;
        let fresh = self.share;
        self.normalise(up, &fresh);
    }

    fn follow(&mut self, paths: &PathStates, up: PathSet) {
        let full = self.measure(paths, up);
        let known = up.iter().all(|p| self.capacity_bps[usize::from(p)] > 0);
        let mut wish = self.share;
        if known {
            let load = |p: PathId| u128::from(self.load_bps(paths, p));
            let sum: u128 = up.iter().map(load).sum();
            for path in up {
                let share = &mut wish[usize::from(path)];
                let target = (u128::from(WHOLE) * load(path)).checked_div(sum);
                let target = target.and_then(|t| u32::try_from(t).ok()).unwrap_or(*share);
                let part = if full.is_empty() { 8 } else { 2 };
                *share = share.saturating_add_signed((target.cast_signed() - share.cast_signed()) / part);
            }
        } else {
            let free = up.without(full);
            let free_share: u32 = free.iter().map(|p| self.share[usize::from(p)]).sum();
            let mut moved = 0;
            for path in full {
                let give = self.share[usize::from(path)].min(free_share) / STEP_PART;
                wish[usize::from(path)] -= give;
                moved += give;
            }
            for path in free {
                let share = &mut wish[usize::from(path)];
                *share += moved * *share / free_share.max(1);
            }
        }
        self.normalise(up, &wish);
    }

    /// Which paths are full; and what is known of their capacities.
    fn measure(&mut self, paths: &PathStates, up: PathSet) -> PathSet {
        let full: PathSet = up.iter().filter(|&p| self.is_full(paths.get(p), p)).collect();
        for path in up {
            let i = usize::from(path);
            let (state, capacity) = (paths.get(path), &mut self.capacity_bps[i]);
            let rate = state.delivery_bps;
            if full.contains(path) {
                self.probe[i] = 0;
                // The loss is of the past, and the sender may have slowed down: less was delivered than could be.
                let queue = u64::from(state.rtt_us) > high_rtt_us(self.base_rtt_us[i]);
                let smooth = *capacity > 0 && queue;
                *capacity = if smooth { u64::midpoint(*capacity, rate) } else { rate.max(*capacity) };
            } else if rate > capacity.saturating_add(*capacity / 8) {
                (*capacity, self.probe[i]) = (0, 0);
            } else if !full.is_empty() {
                self.probe[i] = (self.probe[i] + 1).min(MOST_PROBE);
            }
        }
        full
    }

    /// What a path of known capacity is to carry: what it can, less what lets its queue drain.
    fn load_bps(&self, paths: &PathStates, path: PathId) -> u64 {
        let i = usize::from(path);
        let queue_us =
            u64::from(paths.get(path).rtt_us.saturating_sub(self.base_rtt_us[i])).min(DRAIN_US / 2);
        let parts = u128::from(16 + self.probe[i]) * u128::from(DRAIN_US - queue_us);
        u64::try_from(u128::from(self.capacity_bps[i]) * parts / u128::from(16 * DRAIN_US))
            .unwrap_or(u64::MAX)
    }

    fn is_full(&mut self, state: PathState, path: PathId) -> bool {
        let base = &mut self.base_rtt_us[usize::from(path)];
        let crept = base.saturating_add(*base / 256 + 1);
        *base = if *base == 0 { state.rtt_us } else { state.rtt_us.min(crept) };
        state.loss_ppm > CONGESTED_LOSS_PPM || u64::from(state.rtt_us) > high_rtt_us(*base)
    }

    /// Scales `wish` so that the paths of `up` have at least [`LEAST_SHARE`] and sum to [`WHOLE`].
    fn normalise(&mut self, up: PathSet, wish: &[u32; MAX_PATHS]) {
        let n = u32::try_from(up.len()).unwrap_or(0);
        let spare = u64::from(WHOLE - n * LEAST_SHARE);
        let over = |p: PathId| u64::from(wish[usize::from(p)].saturating_sub(LEAST_SHARE));
        let sum: u64 = up.iter().map(over).sum();
        let mut left = WHOLE;
        let mut largest = None;
        self.share = [0; MAX_PATHS];
        for path in up {
            let part = (spare * over(path)).checked_div(sum).unwrap_or(spare / u64::from(n.max(1)));
            let share = LEAST_SHARE + u32::try_from(part).unwrap_or(0);
            self.share[usize::from(path)] = share;
            left -= share;
            if largest.is_none_or(|(_, most)| share > most) {
                largest = Some((path, share));
            }
        }
        // What rounding left over, at most 8 units.
        if let Some((path, _)) = largest {
            self.share[usize::from(path)] += left;
        }
    }
}

/// An RTT above this tells of a queue.
fn high_rtt_us(base_rtt_us: u32) -> u64 {
    u64::from(base_rtt_us) * 3 / 2 + CONGESTED_RTT_SLACK_US
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two links with a capacity each, a queue of 100 ms, and a sender.
    fn run(capacity: [f64; 2], offered: impl Fn([f64; 2]) -> f64, seconds: u64) -> ([f64; 2], f64) {
        let all = run_varying(|_| capacity, |_, ratio| offered(ratio), seconds);
        all[all.len() - 1]
    }

    /// The same with capacities that depend on the second; one row per 50 ms: shares and what is delivered.
    fn run_varying(
        capacity: impl Fn(u64) -> [f64; 2],
        offered: impl Fn(u64, [f64; 2]) -> f64,
        seconds: u64,
    ) -> Vec<([f64; 2], f64)> {
        let up = PathSet::from_bits(0b11);
        let mut shares = Shares::new([0; MAX_PATHS]);
        let mut queue = [0.0f64; 2];
        let (mut ratio, mut all) = ([0.5, 0.5], Vec::new());
        for tick in 0..seconds * 20 {
            let mut paths = PathStates::default();
            let (capacity, mut delivered) = (capacity(tick / 20), 0.0);
            let total = offered(tick / 20, ratio);
            for i in 0..2 {
                let rate = total * ratio[i];
                let full = capacity[i] * 0.1;
                let wanted = queue[i] + (rate - capacity[i]) * 0.05;
                let lost = (wanted - full).max(0.0) / 0.05;
                queue[i] = wanted.clamp(0.0, full);
                let out = if queue[i] > 0.0 { capacity[i] } else { rate };
                delivered += out;
                let state = PathState {
                    rtt_us: (20_000.0 + queue[i] / capacity[i] * 1e6) as u32,
                    loss_ppm: (lost / rate.max(0.001) * 1e6) as u32,
                    delivery_bps: (out * 1e6) as u64,
                };
                paths.set(i as u8, state);
            }
            shares.update(&paths, up, Instant::from_millis(tick * 50));
            ratio = [0, 1].map(|i| f64::from(shares.share[i]) / f64::from(WHOLE));
            all.push((ratio, delivered));
        }
        all
    }

    #[test]
    fn an_overload_is_split_by_capacity() {
        let (ratio, delivered) = run([60.0, 20.0], |_| 100.0, 60);
        assert!((ratio[0] - 0.75).abs() < 0.05, "{ratio:?}");
        assert!(delivered > 79.0, "{delivered}");
    }

    #[test]
    fn a_sender_that_slows_to_its_fullest_path_still_gets_most_of_both() {
        // Like TCP: the total is what the binding path allows, and a little more to fill its queue.
        for capacity in [[50.0, 50.0], [100.0, 20.0], [100.0, 2.0]] {
            let offered = |r: [f64; 2]| 1.02 * (capacity[0] / r[0]).min(capacity[1] / r[1]);
            let (ratio, delivered) = run(capacity, offered, 60);
            assert!(delivered > 0.8 * (capacity[0] + capacity[1]), "{capacity:?} {ratio:?} {delivered}");
        }
    }

    #[test]
    fn capacities_that_change_are_found_again_in_five_seconds() {
        // 60 + 60; the second falls to 10 and recovers. The sender slows down to its fullest path.
        let capacity = |s: u64| if (20..40).contains(&s) { [60.0, 10.0] } else { [60.0, 60.0] };
        let offered = |s: u64, r: [f64; 2]| 1.02 * (capacity(s)[0] / r[0]).min(capacity(s)[1] / r[1]);
        let all = run_varying(capacity, offered, 70);
        let mean = |from: usize, to: usize| {
            all[from * 20..to * 20].iter().map(|(_, d)| d).sum::<f64>() / ((to - from) * 20) as f64
        };
        assert!(mean(10, 20) > 110.0, "before {}", mean(10, 20));
        assert!(mean(25, 40) > 0.9 * 70.0, "with 10 {}", mean(25, 40));
        assert!(mean(45, 70) > 0.95 * mean(10, 20), "after {}", mean(45, 70));
        let swing = |from: usize| {
            let shares = || all[from * 20..].iter().map(|(ratio, _)| ratio[0]);
            shares().fold(0.0, f64::max) - shares().fold(1.0, f64::min)
        };
        assert!(swing(50) < 0.15, "{}", swing(50));
    }

    #[test]
    fn without_congestion_the_shares_stay() {
        let (ratio, _) = run([60.0, 20.0], |_| 10.0, 60);
        assert_eq!(ratio, [0.5, 0.5]);
    }

    proptest! {
        #[test]
        fn shares_are_whole_and_every_live_path_has_one(
            steps in proptest::collection::vec((any::<u8>(), any::<[(u32, u32, u64); 8]>()), 1..20),
            weights in proptest::array::uniform8(0u8..=10),
        ) {
            let mut shares = Shares::new(weights);
            for (i, (bits, states)) in steps.into_iter().enumerate() {
                let up = PathSet::from_bits(bits | 1);
                let mut paths = PathStates::default();
                for path in up {
                    let (rtt, loss_ppm, delivery_bps) = states[usize::from(path)];
                    paths.set(path, PathState { rtt_us: rtt.max(1), loss_ppm, delivery_bps });
                }
                let now = Instant::from_millis(i as u64 * PERIOD_MS);
                shares.update(&paths, up, now);
                shares.update(&paths, up, now + core::time::Duration::from_millis(PERIOD_MS));
                prop_assert_eq!(shares.share.iter().sum::<u32>(), WHOLE);
                let mut seen = [0u32; MAX_PATHS];
                for n in 0..u64::from(WHOLE) {
                    seen[usize::from(shares.path(n, up).unwrap())] += 1;
                }
                prop_assert_eq!(seen, shares.share);
                prop_assert!(up.iter().all(|p| seen[usize::from(p)] >= LEAST_SHARE));
            }
        }
    }
}
