//! `rrm_policy`: the RRM policy ratios of TS 28.541 §4.3.36, which O-RAN sets over E2 (slice-level PRB quota).
//!
//! ```text
//!   0 ────────── dedicated ─────────── min ──────────────── max ───── 100 %
//!   kept for the slice,  │ the slice comes  │ shared, by share  │ never
//!   used or not          │ first            │                   │
//! ```
//!
//! In this order: every slice gets what it needs of its dedicated RBs; then up to its minimum; what is left,
//! dedicated RBs excepted, goes group by group to the slice that has least for its share, up to the maximum; of several
//! to the one that waited longest for such a group. So slices whose minimum is less than a group take turns.
//!
//! Groups are whole, and neither a minimum nor a maximum is. Both are kept over time, as the quotas of TS 28.541 are: what a slice with
//! a backlog got less than its minimum in one TTI is added to the minimum of the next, two groups at most; what whole groups leave
//! of a maximum is added to the maximum of the next, two groups at most, and less than one of a slice without a backlog. So a slice never
//! has more than its maximum of all RBs so far; one whose maximum is less than a group gets a group now and then. A maximum that
//! is whole groups is kept in each TTI, unless others made the slice wait.

use super::config::PARTS;
use super::{Allocation, InterSlice, NoParams, Outlook, Scheduler, Setup, SliceConfig, Tti};

/// See the top of this file.
#[derive(Debug, Clone, Default)]
pub struct RrmPolicy {
    /// RBs that each slice is expected to have got, and `last` of then. Kept for their memory only.
    got: Vec<u16>,
    then: Vec<u64>,
    /// The last of the groups left over that each slice got, counted from 1, and how many there were.
    last: Vec<u64>,
    groups: u64,
    carried: Vec<Carried>,
    /// Of the TTI at hand. Kept for its memory only.
    bounds: Vec<Bounds>,
}

/// What the TTIs before left of a slice's bounds, in millionths of an RB.
#[derive(Debug, Clone, Copy, Default)]
struct Carried {
    /// Of its minimum.
    owed: u64,
    /// Of its maximum.
    spare: u64,
}

/// A slice's RBs in a TTI, what was carried included.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    dedicated: u16,
    min: u16,
    max: u16,
}

impl Carried {
    /// The minimum and the maximum of `rbs` RBs, in millionths.
    fn limits(self, slice: &SliceConfig, rbs: u16) -> (u64, u64) {
        let (min, max) = slice.policy_parts();
        (min * u64::from(rbs) + self.owed, max * u64::from(rbs) + self.spare)
    }

    fn bounds(self, slice: &SliceConfig, rbs: u16) -> Bounds {
        let (min, max) = self.limits(slice, rbs);
        let whole = |parts: u64| u16::try_from(parts / PARTS).unwrap_or(u16::MAX);
        Bounds { dedicated: slice.dedicated_of(rbs), min: whole(min.min(max)), max: whole(max) }
    }

    /// It got so many of the TTI's RBs. With a backlog it is owed the rest even if that is gone now: behind a limiter a buffer is empty
    /// after nearly every TTI.
    fn settle(&mut self, slice: &SliceConfig, tti: &Tti<'_>, got: u16, had_backlog: bool) {
        let (min, max) = self.limits(slice, tti.rbs);
        let (got, group) = (u64::from(got) * PARTS, u64::from(tti.rbg.max(1)) * PARTS);
        let (most_owed, most_spare) = if had_backlog { (2 * group, 2 * group) } else { (0, group - 1) };
        self.owed = min.saturating_sub(got).min(most_owed);
        self.spare = max.saturating_sub(got).min(most_spare);
    }
}

impl Scheduler for RrmPolicy {
    type Params = NoParams;

    fn build(_: &NoParams, cell: &Setup) -> Self {
        Self { last: vec![0; cell.slices], carried: vec![Carried::default(); cell.slices], ..Self::default() }
    }
}

impl RrmPolicy {
    fn set_bounds(&mut self, slices: &[SliceConfig], rbs: u16) {
        let carried = self.carried.iter().copied().chain(std::iter::repeat(Carried::default()));
        self.bounds.clear();
        self.bounds.extend(slices.iter().zip(carried).map(|(slice, carried)| carried.bounds(slice, rbs)));
    }

    /// Who has least goes first.
    fn rank(last: &[u64], config: &SliceConfig, slice: usize, rbs: u16) -> (u64, u64) {
        (load(config, rbs), last.get(slice).copied().unwrap_or(0))
    }
}

impl InterSlice for RrmPolicy {
    fn schedule(&mut self, tti: &Tti<'_>, allocation: &mut Allocation) {
        self.set_bounds(tti.slices, tti.rbs);
        let Self { last, groups, carried, bounds, .. } = self;
        // Dedicated RBs that their slice does not use: nobody does.
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
        for (slice, (carried, config)) in carried.iter_mut().zip(tti.slices).enumerate() {
            carried.settle(config, tti, allocation.slice_rbs(slice), allocation.is_active(slice));
        }
        allocation.room.put_back(idle);
    }

    /// The same with what the slices want in place of queues.
    fn expect(&mut self, slice: usize, next: &Outlook<'_>) -> u16 {
        self.set_bounds(next.slices, next.rbs);
        let Self { got, then, last, groups, bounds, .. } = self;
        let mut room = next.room();
        let mut taken = 0;
        then.clone_from(last);
        got.clear();
        got.resize(next.slices.len(), 0);
        let unmet = |of: usize, got: u16| match of == slice {
            true => next.rbs - got,
            false => next.demand(of).saturating_sub(got),
        };
        let mut idle = room.split(0);
        for (of, (got, bounds)) in got.iter_mut().zip(&*bounds).enumerate() {
            let mut part = room.split(bounds.dedicated);
            *got += part.take(unmet(of, *got));
            idle.put_back(part);
        }
        for (of, (got, bounds)) in got.iter_mut().zip(&*bounds).enumerate() {
            let mut part = room.split(bounds.min.saturating_sub(*got));
            *got += part.take(unmet(of, *got));
            room.put_back(part);
        }
        while room.rbs() > 0 {
            let group = room.would_take(1);
            let wants = |of: &usize| unmet(*of, got[*of]) > 0 && got[*of] + group <= bounds[*of].max;
            let rank = |of: &usize| Self::rank(then, &next.slices[*of], *of, got[*of]);
            let next_of = (0..got.len()).filter(wants).min_by_key(rank);
            let Some(of) = next_of else { break };
            got[of] += room.take(1);
            taken += 1;
            if let Some(then) = then.get_mut(of) {
                *then = *groups + taken;
            }
        }
        got.get(slice).copied().unwrap_or(0)
    }
}

/// RBs per share, compared without dividing: the larger share is the smaller load.
fn load(slice: &SliceConfig, rbs: u16) -> u64 {
    u64::from(rbs) * PARTS / slice.share_parts().max(1)
}
