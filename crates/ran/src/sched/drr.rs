//! `drr`: deficit round robin (Shreedhar and Varghese 1996) on RBs instead of bytes.
//!
//! ```text
//!   turn ─▶ slice A: deficit += share · RBs of the TTI; groups as long as the deficit lasts
//!           slice B: the same …                           a slice without backlog loses its deficit
//! ```
//!
//! The turn and the deficits persist across TTIs, so that shares hold over time although groups are indivisible. The packet
//! size has no influence. Each round gives a slice at least 1/16 of a group, however small its share.

use super::config::PARTS;
use super::{Allocation, InterSlice, NoParams, Scheduler, Setup, Tti};

/// The scheduler of one direction.
#[derive(Debug, Clone)]
pub struct Drr {
    /// Deficits in RBs · 10⁶.
    deficits: Vec<i64>,
    balances: Vec<i32>,
    turn: usize,
}

impl Drr {
    /// A scheduler for `slices` slices.
    #[must_use]
    pub fn new(slices: usize) -> Self {
        Self { deficits: vec![0; slices], balances: vec![0; slices], turn: 0 }
    }
}

impl Scheduler for Drr {
    type Params = NoParams;

    fn build(_: &NoParams, cell: &Setup) -> Self {
        Self::new(cell.slices)
    }
}

impl InterSlice for Drr {
    fn schedule(&mut self, tti: &Tti<'_>, allocation: &mut Allocation) {
        let slices = tti.slices.len().min(self.deficits.len());
        let mut unmet: usize = (0..slices).filter(|s| allocation.next_queue(*s).is_some()).count();
        while allocation.room.rbs() > 0 && unmet > 0 {
            let Some(queue) = allocation.next_queue(self.turn) else {
                self.deficits[self.turn] = 0;
                self.next_turn(tti, slices);
                continue;
            };
            let group = i64::from(allocation.room.would_take(1)) * PARTS as i64;
            if self.deficits[self.turn] < group {
                self.next_turn(tti, slices);
                continue;
            }
            allocation.grant(tti, queue, 1);
            self.deficits[self.turn] -= group;
            unmet -= usize::from(allocation.next_queue(self.turn).is_none());
        }
        self.update_balances();
    }

    /// Adds as many quanta as the grant requires.
    fn schedule_single(&mut self, tti: &Tti<'_>, need: u16) -> Option<u16> {
        let ([_], [deficit], 0) = (tti.slices, &mut self.deficits[..], self.turn) else { return None };
        let got = tti.room().take_by_groups(need);
        let missing = i64::from(got) * PARTS as i64 - *deficit;
        if got > 0 && missing > 0 {
            let quantum = quantum(tti, 0);
            *deficit += (missing as u64).div_ceil(quantum as u64) as i64 * quantum;
        }
        *deficit -= i64::from(got) * PARTS as i64;
        self.update_balances();
        Some(got)
    }

    fn balances(&self) -> &[i32] {
        &self.balances
    }
}

impl Drr {
    /// Moves the turn to the next slice and gives it its quantum.
    fn next_turn(&mut self, tti: &Tti<'_>, slices: usize) {
        self.turn = (self.turn + 1) % slices.max(1);
        self.deficits[self.turn] += quantum(tti, self.turn);
    }

    fn update_balances(&mut self) {
        for (balance, deficit) in self.balances.iter_mut().zip(&self.deficits) {
            *balance = (*deficit / PARTS as i64) as i32;
        }
    }
}

/// The quantum of a slice per turn.
fn quantum(tti: &Tti<'_>, slice: usize) -> i64 {
    let share = tti.slices[slice].share_parts() * u64::from(tti.rbs);
    let least = u64::from(tti.rbg) * PARTS / 16;
    share.max(least) as i64
}
