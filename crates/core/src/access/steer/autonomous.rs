//! Autonomous load-balance: the shares follow the measured delivery rates.
//!
//! TS 23.501 §5.32.8 *Load-Balancing with autonomous load-balance indicator* lets UE and UPF choose
//! "percentages ... for maximum throughput" and leaves the law open; JUNCTION has only fixed ratios.
//! The law here, every [`PERIOD_MS`]:
//!
//! ```text
//!   congested(path)  :=  loss > 1 %   or   RTT > 1.5 x base RTT + 5 ms
//!
//!   all paths congested   delivery rates are the capacities: move half way to their ratio
//!   some congested        each gives 1/8 of the smaller of (its share, the free paths' share)
//!                         to the paths that are not
//!   none congested        leave the shares alone
//! ```
//!
//! Why not simply "share = delivery rate / sum"? A path that is not full delivers what it is given, so
//! that rule confirms any split it starts from; and a TCP flow slows down to what its fullest path
//! carries, so the ratio stays wrong. Only a full path's delivery rate says something about the path.
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
/// A free path whose capacity is not known gets at most this part more in one period.
const MOST_PART: u32 = 4;
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
    /// Delivery rates of paths that were full when last looked at; 0: not known, or no longer.
    capacity_bps: [u64; MAX_PATHS],
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
        }
        self.of = up;
        let fresh = self.share;
        self.normalise(up, &fresh);
    }

    fn follow(&mut self, paths: &PathStates, up: PathSet) {
        let full = self.measure(paths, up);
        let free = up.without(full);
        let offered = up.iter().map(|p| offered_bps(paths.get(p))).fold(0, u64::saturating_add);
        let known = up.iter().all(|p| self.capacity_bps[usize::from(p)] > 0);
        let mut wish = self.share;
        if free.is_empty() || (full.is_empty() && known) {
            // What each can take, less what its queue needs to drain.
            let room = |p: PathId| u128::from(self.drained_bps(paths, p));
            let sum: u128 = up.iter().map(room).sum();
            for path in up {
                let share = &mut wish[usize::from(path)];
                let target = (u128::from(WHOLE) * room(path)).checked_div(sum);
                let target = target.and_then(|t| u32::try_from(t).ok()).unwrap_or(*share);
                let part = if full.is_empty() { 8 } else { 2 };
                *share = share.saturating_add_signed((target as i32 - *share as i32) / part);
            }
        } else if !full.is_empty() {
            let free_share: u32 = free.iter().map(|p| self.share[usize::from(p)]).sum();
            let unknown = free.iter().any(|p| self.capacity_bps[usize::from(p)] == 0);
            let mut moved = 0;
            for path in full {
                let share = self.share[usize::from(path)];
                let most = share.min(free_share) / MOST_PART;
                let target = u128::from(self.drained_bps(paths, path)) * u128::from(WHOLE);
                let target = target.checked_div(offered.into()).and_then(|t| u32::try_from(t).ok());
                let give = match target {
                    // How much the free ones can take nobody knows: try.
                    _ if unknown => most,
                    Some(target) => share.saturating_sub(target).min(most),
                    None => 0,
                };
                wish[usize::from(path)] -= give;
                moved += give;
            }
            for path in free {
                let share = &mut wish[usize::from(path)];
                *share += moved * *share / free_share.max(1);
            }
        }
        self.normalise(up, &wish);
        if std::env::var("AB_LOG").is_ok() {
            let v: Vec<_> = up.iter().map(|p| { let s = paths.get(p); (self.share[usize::from(p)], s.rtt_us / 1000, self.base_rtt_us[usize::from(p)] / 1000, s.loss_ppm, s.delivery_bps / 1_000_000, self.capacity_bps[usize::from(p)] / 1_000_000) }).collect();
            eprintln!("SH {:?} full {:?} {:?}", self.next, full, v);
        }
    }

    /// Which paths are full; and what is known of their capacities.
    fn measure(&mut self, paths: &PathStates, up: PathSet) -> PathSet {
        let mut full = PathSet::EMPTY;
        for path in up {
            let rate = paths.get(path).delivery_bps;
            let is_full = self.congested(paths, path);
            let capacity = &mut self.capacity_bps[usize::from(path)];
            if is_full {
                full.insert(path);
                *capacity = if *capacity == 0 { rate } else { u64::midpoint(*capacity, rate) };
            } else if rate > *capacity + *capacity / 8 {
                *capacity = 0;
            }
        }
        full
    }

    /// The load under which the path's queue is gone in [`DRAIN_US`].
    fn drained_bps(&self, paths: &PathStates, path: PathId) -> u64 {
        let i = usize::from(path);
        let queue_us = u64::from(paths.get(path).rtt_us.saturating_sub(self.base_rtt_us[i])).min(DRAIN_US / 2);
        let rate = u128::from(self.capacity_bps[i]) * u128::from(DRAIN_US - queue_us) / u128::from(DRAIN_US);
        u64::try_from(rate).unwrap_or(u64::MAX)
    }

    fn congested(&mut self, paths: &PathStates, path: PathId) -> bool {
        let state = paths.get(path);
        let base = &mut self.base_rtt_us[usize::from(path)];
        let crept = base.saturating_add(*base / 256 + 1);
        *base = if *base == 0 { state.rtt_us } else { state.rtt_us.min(crept) };
        let high = u64::from(*base) * 3 / 2 + CONGESTED_RTT_SLACK_US;
        state.loss_ppm > CONGESTED_LOSS_PPM || u64::from(state.rtt_us) > high
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

/// What was sent to deliver this much.
fn offered_bps(state: PathState) -> u64 {
    let arrived_ppm = u128::from(1_000_000 - state.loss_ppm.min(900_000));
    u64::try_from(u128::from(state.delivery_bps) * 1_000_000 / arrived_ppm).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two links with a capacity each, a queue of 100 ms, and a sender.
    fn run(capacity: [f64; 2], offered: impl Fn([f64; 2]) -> f64, seconds: u64) -> ([f64; 2], f64) {
        let up = PathSet::from_bits(0b11);
        let mut shares = Shares::new([0; MAX_PATHS]);
        let mut queue = [0.0f64; 2];
        let (mut ratio, mut delivered) = ([0.5, 0.5], 0.0);
        for tick in 0..seconds * 20 {
            let mut paths = PathStates::default();
            let total = offered(ratio);
            delivered = 0.0;
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
        }
        (ratio, delivered)
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
