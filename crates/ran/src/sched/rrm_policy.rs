//! `rrm_policy`: the RRM policy ratios of TS 28.541 §4.3.36, which O-RAN sets over E2 (slice-level PRB quota).
//!
//! ```text
//!   0 ────────── dedicated ─────────── min ──────────────── max ───── 100 %
//!   reserved for the     │ before other     │ shared, by share  │ never
//!   slice, even unused   │ slices           │                   │
//! ```
//!
//! In this order: every slice gets what it needs of its dedicated RBs; then up to its minimum; then the rest, except unused
//! dedicated RBs, goes group by group to the slice with the least RBs for its share, up to the maximum. On ties, the slice
//! that has waited longest for such a group gets it, so slices whose minimum is less than a group take turns.
//!
//! Minima and maxima are not multiples of a group. Both are kept over time, as the quotas of TS 28.541 are. If a slice with a
//! backlog got less than its minimum in a TTI, the difference is added to the minimum of the next TTI, up to two groups. What
//! rounding to groups leaves of a maximum is added to the maximum of the next TTI, up to two groups, or to less than one
//! group for a slice without a backlog. A slice therefore never has more than its maximum of all RBs so far, and a slice
//! whose maximum is less than a group gets a group occasionally. A maximum that is a multiple of a group is kept in each TTI,
//! unless other slices made the slice wait.

use super::config::{PARTS, check_ratios};
use super::{Allocation, InterSlice, NoParams, SchedError, Scheduler, Setup, SliceConfig, Tti, TtiPreview};

/// The scheduler of one direction.
#[derive(Debug, Clone, Default)]
pub struct RrmPolicy {
    /// Temporary data of `expect`: RBs expected for each slice, and its copy of `last`. Kept only to reuse their memory.
    granted: Vec<u16>,
    last_copy: Vec<u64>,
    /// For each slice, the sequence number (from 1) of the last shared group it got; and the number of such groups so far.
    last: Vec<u64>,
    groups: u64,
    carry_over: Vec<CarryOver>,
    /// Bounds of the current TTI, kept only to reuse their memory.
    bounds: Vec<Bounds>,
}

/// Carry-over of a slice's bounds from earlier TTIs, in millionths of an RB.
#[derive(Debug, Clone, Copy, Default)]
struct CarryOver {
    /// Carry-over of the minimum.
    min_carry: u64,
    /// Carry-over of the maximum.
    max_carry: u64,
}

/// Bounds of a slice in a TTI in RBs, including the carry-over.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    dedicated: u16,
    min: u16,
    max: u16,
}

impl CarryOver {
    /// Minimum and maximum out of `rbs` RBs, in millionths of an RB.
    fn limits(self, slice: &SliceConfig, rbs: u16) -> (u64, u64) {
        let (min, max) = slice.policy_parts();
        (min * u64::from(rbs) + self.min_carry, max * u64::from(rbs) + self.max_carry)
    }

    fn bounds(self, slice: &SliceConfig, rbs: u16) -> Bounds {
        let (min, max) = self.limits(slice, rbs);
        let whole = |parts: u64| u16::try_from(parts / PARTS).unwrap_or(u16::MAX);
        Bounds { dedicated: slice.dedicated_of(rbs), min: whole(min.min(max)), max: whole(max) }
    }

    /// Updates the carry-over after a TTI in which the slice got `granted` RBs. A slice that had a backlog is owed the rest even if
    /// its queues are empty now, because behind a limiter a buffer is empty after nearly every TTI.
    fn update(&mut self, slice: &SliceConfig, tti: &Tti<'_>, granted: u16, had_backlog: bool) {
        let (min, max) = self.limits(slice, tti.rbs);
        let (granted, group) = (u64::from(granted) * PARTS, u64::from(tti.rbg.max(1)) * PARTS);
        let (min_carry_limit, max_carry_limit) =
            if had_backlog { (2 * group, 2 * group) } else { (0, group - 1) };
        self.min_carry = min.saturating_sub(granted).min(min_carry_limit);
        self.max_carry = max.saturating_sub(granted).min(max_carry_limit);
    }
}

impl Scheduler for RrmPolicy {
    type Params = NoParams;

    const SLICE_KEYS: &'static [&'static str] = &["dedicated_percent", "min_percent", "max_percent"];

    fn check_slices(slices: &[SliceConfig]) -> Result<(), SchedError> {
        check_ratios(slices)
    }

    fn build(_: &NoParams, cell: &Setup) -> Self {
        Self {
            last: vec![0; cell.slices],
            carry_over: vec![CarryOver::default(); cell.slices],
            ..Self::default()
        }
    }
}

impl RrmPolicy {
    fn set_bounds(&mut self, slices: &[SliceConfig], rbs: u16) {
        let carry_over = self.carry_over.iter().copied().chain(std::iter::repeat(CarryOver::default()));
        self.bounds.clear();
        self.bounds
            .extend(slices.iter().zip(carry_over).map(|(slice, carry_over)| carry_over.bounds(slice, rbs)));
    }

    /// Sort key: the slice with the least RBs for its share goes first.
    fn rank(last: &[u64], config: &SliceConfig, slice: usize, rbs: u16) -> (u64, u64) {
        (load(config, rbs), last.get(slice).copied().unwrap_or(0))
    }
}

impl InterSlice for RrmPolicy {
    fn schedule(&mut self, tti: &Tti<'_>, allocation: &mut Allocation) {
        self.set_bounds(tti.slices, tti.rbs);
        let Self { last, groups, carry_over, bounds, .. } = self;
        // Dedicated RBs that their slice does not use remain unused.
        let mut idle = allocation.room.split(0);
        for (slice, bounds) in bounds.iter().enumerate() {
            let mut part = allocation.room.split(bounds.dedicated);
            allocation.serve_from(tti, slice, &mut part);
            idle.put_back(part);
        }
        for (slice, bounds) in bounds.iter().enumerate() {
            let first = bounds.min.saturating_sub(allocation.slice_rbs(slice));
            let mut part = allocation.room.split(first);
            allocation.serve_from(tti, slice, &mut part);
            allocation.room.put_back(part);
        }
        while allocation.room.rbs() > 0 {
            let group = allocation.room.would_take(1);
            let wants = |slice: &usize| {
                allocation.next_queue(*slice).is_some()
                    && allocation.slice_rbs(*slice) + group <= bounds[*slice].max
            };
            let rank =
                |slice: &usize| Self::rank(last, &tti.slices[*slice], *slice, allocation.slice_rbs(*slice));
            let Some(slice) = (0..tti.slices.len()).filter(wants).min_by_key(rank) else { break };
            let Some(queue) = allocation.next_queue(slice) else { break };
            if allocation.grant(tti, queue, 1) == 0 {
                break;
            }
            *groups += 1;
            if let Some(last) = last.get_mut(slice) {
                *last = *groups;
            }
        }
        for (slice, (carry_over, config)) in carry_over.iter_mut().zip(tti.slices).enumerate() {
            carry_over.update(config, tti, allocation.slice_rbs(slice), allocation.is_active(slice));
        }
        allocation.room.put_back(idle);
    }

    /// Repeats [`schedule`](InterSlice::schedule) with the demands of the slices instead of queues.
    fn expect(&mut self, slice: usize, next: &TtiPreview<'_>) -> u16 {
        self.set_bounds(next.slices, next.rbs);
        let Self { granted, last_copy, last, groups, bounds, .. } = self;
        let mut room = next.room();
        let mut taken = 0;
        last_copy.clone_from(last);
        granted.clear();
        granted.resize(next.slices.len(), 0);
        let unmet = |of: usize, granted: u16| match of == slice {
            true => next.rbs - granted,
            false => next.demand(of).saturating_sub(granted),
        };
        let mut idle = room.split(0);
        for (of, (granted, bounds)) in granted.iter_mut().zip(&*bounds).enumerate() {
            let mut part = room.split(bounds.dedicated);
            *granted += part.take(unmet(of, *granted));
            idle.put_back(part);
        }
        for (of, (granted, bounds)) in granted.iter_mut().zip(&*bounds).enumerate() {
            let mut part = room.split(bounds.min.saturating_sub(*granted));
            *granted += part.take(unmet(of, *granted));
            room.put_back(part);
        }
        while room.rbs() > 0 {
            let group = room.would_take(1);
            let wants = |of: &usize| unmet(*of, granted[*of]) > 0 && granted[*of] + group <= bounds[*of].max;
            let rank = |of: &usize| Self::rank(last_copy, &next.slices[*of], *of, granted[*of]);
            let next_of = (0..granted.len()).filter(wants).min_by_key(rank);
            let Some(of) = next_of else { break };
            granted[of] += room.take(1);
            taken += 1;
            if let Some(last_copy) = last_copy.get_mut(of) {
                *last_copy = *groups + taken;
            }
        }
        granted.get(slice).copied().unwrap_or(0)
    }
}

/// RBs relative to the share, as an integer for comparison.
fn load(slice: &SliceConfig, rbs: u16) -> u64 {
    u64::from(rbs) * PARTS / slice.share_parts().max(1)
}
