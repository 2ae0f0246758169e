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
//! Groups are whole, and a minimum is not: what a slice with a backlog got less than that in one TTI is added to its minimum in
//! the next, two groups at most.

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
    /// RBs that each slice has got less than its minimum.
    owed: Vec<u16>,
}

impl Scheduler for RrmPolicy {
    type Params = NoParams;

    fn build(_: &NoParams, cell: &Setup) -> Self {
        Self { last: vec![0; cell.slices], owed: vec![0; cell.slices], ..Self::default() }
    }
}

impl RrmPolicy {
    /// Who has least goes first.
    fn rank(last: &[u64], config: &SliceConfig, slice: usize, rbs: u16) -> (u64, u64) {
        (load(config, rbs), last.get(slice).copied().unwrap_or(0))
    }

    /// RBs that a slice comes first for, beside the `got` that were kept for it.
    fn first(owed: &[u16], (_, min, max): (u16, u16, u16), slice: usize, got: u16) -> u16 {
        let owed = owed.get(slice).copied().unwrap_or(0);
        min.saturating_add(owed).min(max).saturating_sub(got)
    }
}

impl InterSlice for RrmPolicy {
    fn schedule(&mut self, tti: &Tti<'_>, allocation: &mut Allocation) {
        let policy = |slice: usize| tti.slices[slice].policy_of(tti.rbs);
        // Dedicated RBs that their slice does not use: nobody does.
        let mut idle = allocation.room.split(0);
        for slice in 0..tti.slices.len() {
            let mut part = allocation.room.split(policy(slice).0);
            allocation.serve_from(tti, slice, &mut part);
            idle.put_back(part);
        }
        for slice in 0..tti.slices.len() {
            let first = Self::first(&self.owed, policy(slice), slice, allocation.slice_rbs(slice));
            let mut part = allocation.room.split(first);
            allocation.serve_from(tti, slice, &mut part);
            allocation.room.put_back(part);
        }
        while allocation.room.rbs() > 0 {
            let group = allocation.room.would_take(1);
            let wants = |slice: &usize| {
                allocation.next_queue(*slice).is_some()
                    && allocation.slice_rbs(*slice) + group <= policy(*slice).2
            };
            let rank = |slice: &usize| {
                Self::rank(&self.last, &tti.slices[*slice], *slice, allocation.slice_rbs(*slice))
            };
            let Some(slice) = (0..tti.slices.len()).filter(wants).min_by_key(rank) else { break };
            let Some(queue) = allocation.next_queue(slice) else { break };
            if allocation.grant(tti, queue, 1) == 0 {
                break;
            }
            self.groups += 1;
            if let Some(last) = self.last.get_mut(slice) {
                *last = self.groups;
            }
        }
        for (slice, owed) in self.owed.iter_mut().enumerate().take(tti.slices.len()) {
            let wants = allocation.next_queue(slice).is_some();
            let due = if wants { policy(slice).1.saturating_add(*owed) } else { 0 };
            *owed = due.saturating_sub(allocation.slice_rbs(slice)).min(tti.rbg.saturating_mul(2));
        }
        allocation.room.put_back(idle);
    }

    /// The same with what the slices want in place of queues.
    fn expect(&mut self, slice: usize, next: &Outlook<'_>) -> u16 {
        let Self { got, then, last, groups, owed } = self;
        let mut room = next.room();
        let mut taken = 0;
        then.clone_from(last);
        got.clear();
        got.resize(next.slices.len(), 0);
        let policy = |of: usize| next.slices[of].policy_of(next.rbs);
        let unmet = |of: usize, got: u16| match of == slice {
            true => next.rbs - got,
            false => next.demand(of).saturating_sub(got),
        };
        let mut idle = room.split(0);
        for (of, got) in got.iter_mut().enumerate() {
            let mut part = room.split(policy(of).0);
            *got += part.take(unmet(of, *got));
            idle.put_back(part);
        }
        for (of, got) in got.iter_mut().enumerate() {
            let mut part = room.split(Self::first(owed, policy(of), of, *got));
            *got += part.take(unmet(of, *got));
            room.put_back(part);
        }
        while room.rbs() > 0 {
            let group = room.would_take(1);
            let wants = |of: &usize| unmet(*of, got[*of]) > 0 && got[*of] + group <= policy(*of).2;
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
    u64::from(rbs) * super::config::PARTS / slice.share_parts().max(1)
}
