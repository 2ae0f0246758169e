//! `rrm_policy`: the RRM policy ratios of TS 28.541 §4.3.36, which O-RAN sets over E2 (slice-level PRB quota).
//!
//! ```text
//!   0 ────────── dedicated ─────────── min ──────────────── max ───── 100 %
//!   kept for the slice,  │ the slice comes  │ shared, by share  │ never
//!   used or not          │ first            │                   │
//! ```
//!
//! In this order: every slice gets what it needs of its dedicated RBs; then up to its minimum; what is left,
//! dedicated RBs excepted, goes group by group to the slice that has least for its share, up to the maximum.

use super::{Allocation, InterSlice, NoParams, Scheduler, Setup, Tti};

/// See the top of this file.
#[derive(Debug, Clone, Copy)]
pub struct RrmPolicy;

impl Scheduler for RrmPolicy {
    type Params = NoParams;

    fn build(_: &NoParams, _: &Setup) -> Self {
        Self
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
            let (dedicated, min, _) = policy(slice);
            let mut part = allocation.room.split(min - dedicated.min(min));
            allocation.serve_from(tti, slice, &mut part);
            allocation.room.put_back(part);
        }
        while allocation.room.rbs() > 0 {
            let group = allocation.room.would_take(1);
            let wants = |slice: &usize| {
                allocation.next_queue(*slice).is_some()
                    && allocation.slice_rbs(*slice) + group <= policy(*slice).2
            };
            let load = |slice: &usize| {
                // RBs per share, compared without dividing: the larger share is the smaller load.
                let share = tti.slices[*slice].share_parts().max(1);
                u64::from(allocation.slice_rbs(*slice)) * super::config::PARTS / share
            };
            let Some(slice) = (0..tti.slices.len()).filter(wants).min_by_key(load) else { break };
            let Some(queue) = allocation.next_queue(slice) else { break };
            if allocation.grant(tti, queue, 1) == 0 {
                break;
            }
        }
        allocation.room.put_back(idle);
    }
}
