//! `eqp_exact` and `eqp_paper`: elastic quantum partition, RLC §IV-B, Algorithms 4 and 5.
//!
//! ```text
//!            fixed partition                                 EQP
//!   TTI  1      2      3      4                      1      2      3      4
//!      ▤▥▦▧   ▤▥▦▧   ▤▥▦▧   ▤▥▦▧                   ▤▤▤▤   ▥▥▥▥   ▦▦▦▦   ▧▧▧▧        four packets of 4 RBs,
//!      every packet is complete after 4 TTIs        after 1, 2, 3, 4: mean 2.5             4 RBs per TTI
//! ```
//!
//! In each TTI, the *quantum* of a slice grows by its share of the RBs and shrinks by the RBs it gets. Within a limit it may be
//! negative (the slice has borrowed) or positive (it has lent).
//!
//! 1. Quanta grow by share.
//! 2. A knapsack selects the packets that are sent completely: as many as possible, and among those selections the one with
//!    the largest Σ quantum. Packets of a slice in debt count as larger, by max(1, 5 · x⁵) for x = borrowed / limit.
//! 3. The remaining RBs go group by group to the slice with the highest quantum that has a backlog, unless it owes more
//!    than 75 % of the limit: a reserve for future whole packets.
//! 4. RBs left after that are charged to the slices with the highest quanta, even if these have nothing to send.
//!
//! Differences from the printed algorithms, with reasons:
//!
//! - Algorithm 5 increments the packet index before it records the packet, memoises under indices that it has changed, and
//!   memoises a value that includes the prefix. It therefore selects other packets than intended. `eqp_exact` uses the exact
//!   solution of [`knapsack`](super::knapsack); `eqp_paper` ([`paper`]) is Algorithm 5 with these three faults repaired.
//! - Σ quantum is 0 after every TTI, as stated in the paper but not ensured by Algorithm 4: the RBs given are charged, not
//!   those requested; the credit is in whole RBs and sums to the RBs of the TTI; RBs left over are charged.
//! - The inflated size of step 2 is used only by the knapsack. The paper does not specify this, but charging it would break
//!   the sum. The packet list of a slice is cut where the slice would owe more than the limit.
//! - With more than two slices, one slice could be owed more than the limit, because each of the others borrows up to it. RBs
//!   beyond the limit are reserved for that slice in this TTI, before any borrowing, group by group to the slice with the
//!   highest quantum. With groups of one RB, every quantum is therefore within ± limit, and the RBs of a slice deviate from
//!   its share by at most 2 · limit over any time. Groups are indivisible: no slice owes more than the limit (or one group,
//!   if that is larger), and none of n slices is owed more than limit + group · (1/2 + 1/3 + … + 1/n). With two slices,
//!   neither is owed more than the other owes.
//! - `idle = "strict"` is the behaviour of the paper: the quantum of an idle slice grows until the others may borrow no more,
//!   and its share is lost. With `idle = "idle_reset"`, an idle slice forfeits its quantum to the slices in debt, and the RBs
//!   charged in step 4 may be used by any slice with a backlog.
//!
//! - The printed algorithm ignores UEs: it selects the packets with the fewest RBs, TTI after TTI, and a slice in debt has no
//!   RBs left for others. A UE with a low MCS or larger packets could get none while others flood. Here, if the first in rank
//!   of a slice has had no useful block for [`MAX_WAIT_TTIS`], only its packets are selected from that slice until it gets one.
//!
//! Proof of the bound above the limit, with Sₖ the mean of the k largest quanta and g the largest group so far. If a TTI ends
//! with a quantum beyond the limit, every RB went to the largest quantum at that moment. If all went to the k slices that are
//! largest at the end, Sₖ has not grown. Otherwise a slice outside was larger than all of these before its last group, so
//! Sₖ ≤ Sₖ₊₁ + g / (k + 1). Sₙ is 0. Forfeits of idle slices raise no quantum above 0 while any slice is in debt, so they
//! increase no Sₖ; once none is in debt, Σ quantum equals the RBs of this TTI.

pub mod paper;
mod quanta;

use super::knapsack::{Problem, SliceBound};
use super::{
    Allocation, Capacity, InterAlgorithm, InterSlice, OutOfRange, Scheduler, Setup, Tti, TtiPreview, bound,
};
use quanta::Quanta;
use serde::{Deserialize, Serialize};

/// TTIs with a backlog but no useful block after which only packets of the first in rank of a slice are selected.
const MAX_WAIT_TTIS: u32 = 200;
/// Minimum size of a useful block: it holds headers and more data than that. If less waits, that is enough.
const USEFUL_BYTES: u32 = 24;

/// Treatment of the share of a slice that has nothing to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Idle {
    /// The slice is owed its share up to the limit; beyond that the share is lost.
    #[default]
    Strict,
    /// The other slices use it.
    IdleReset,
}

/// Parameters; the defaults are the paper's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EqpParams {
    /// Maximum number of RBs a slice may owe, 1 to 10⁶.
    pub quantum_limit_rbs: u32,
    /// Treatment of the share of a slice that has nothing to send.
    pub idle: Idle,
}

impl Default for EqpParams {
    fn default() -> Self {
        Self { quantum_limit_rbs: 100, idle: Idle::Strict }
    }
}

/// Algorithm that selects whole packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// The optimal selection ([`super::knapsack`]).
    Exact,
    /// The paper's selection ([`paper`]).
    Paper,
}

/// The scheduler of one direction.
#[derive(Debug, Clone)]
pub struct Eqp {
    limit: i32,
    idle: Idle,
    selection: Selection,
    quanta: Quanta,
    problem: Problem,
    paper: paper::PaperTable,
    /// For each UE, TTIs with a backlog since its last useful block.
    waits: Vec<u32>,
}

impl Eqp {
    /// A scheduler for `slices` slices and `ues` UEs, with all quanta 0.
    #[must_use]
    pub fn new(params: EqpParams, selection: Selection, slices: usize, ues: usize) -> Self {
        Self {
            limit: i32::try_from(params.quantum_limit_rbs).unwrap_or(i32::MAX / 4),
            idle: params.idle,
            selection,
            quanta: Quanta::new(slices),
            problem: Problem::default(),
            paper: paper::PaperTable::default(),
            waits: vec![0; ues],
        }
    }

    /// TTIs that the UE of a queue has waited for a useful block.
    fn wait(&self, tti: &Tti<'_>, queue: usize) -> u32 {
        tti.queues.get(queue).and_then(|q| self.waits.get(q.ue as usize)).copied().unwrap_or(0)
    }

    /// Counts this TTI for the UEs that got no useful block.
    fn count_waits(&mut self, tti: &Tti<'_>, allocation: &Allocation) {
        for (queue, backlog) in tti.queues.iter().enumerate() {
            let Some(wait) = self.waits.get_mut(backlog.ue as usize) else { continue };
            let rbs = allocation.grants.get(queue).copied().unwrap_or(0);
            let block = tti.table.row(backlog.mcs).get(usize::from(rbs)).copied().unwrap_or(0);
            let of_use = block > 0 && u64::from(block) >= backlog.bytes.min(USEFUL_BYTES.into());
            *wait = if of_use { 0 } else { wait.saturating_add(1) };
        }
    }

    /// Serves slices whose quantum exceeds the limit, group by group, the highest quantum first. Returns the RBs that no other
    /// slice may use.
    fn serve_above_limit(&mut self, tti: &Tti<'_>, allocation: &mut Allocation) -> Capacity {
        let mut unused = allocation.room.split(0);
        let beyond = |quantum: i32| quantum.saturating_sub(self.limit).clamp(0, tti.rbs.into()) as u16;
        let wanted = self.quanta.quanta().iter().map(|q| u32::from(beyond(*q).next_multiple_of(tti.rbg)));
        // If there is enough for all, the order does not matter.
        let enough = wanted.sum::<u32>() <= u32::from(allocation.room.groups) * u32::from(tti.rbg);
        while let Some(slice) = self.quanta.with_highest(|_| true) {
            let beyond = beyond(self.quanta.get(slice));
            if beyond == 0 {
                break;
            }
            let rbs = if enough { beyond } else { 1 };
            let mut part = allocation.room.split(rbs.next_multiple_of(tti.rbg));
            let before = part.rbs();
            if before == 0 {
                break;
            }
            allocation.serve_from(tti, slice, &mut part);
            self.quanta.charge(slice, before - part.rbs());
            // The slice also pays for RBs that it cannot use.
            match self.idle {
                Idle::Strict => self.quanta.charge_unused(slice, part.rbs()),
                Idle::IdleReset => self.quanta.prepay(slice, part.rbs()),
            }
            unused.put_back(part);
        }
        if self.idle == Idle::IdleReset {
            allocation.room.put_back(std::mem::take(&mut unused));
        }
        unused
    }

    /// Lists the packets that could be sent completely (`generate_rbs` of Algorithm 4).
    fn list_packets(&mut self, tti: &Tti<'_>, allocation: &Allocation) {
        self.problem.clear(allocation.room);
        for slice in 0..tti.slices.len() {
            let quantum = self.quanta.get(slice);
            let queues = allocation.queues_of(slice);
            let inflation = self.inflation(quantum);
            let first_alone = self.wait(tti, queues.start) >= MAX_WAIT_TTIS;
            for queue in queues.clone() {
                // RBs already granted because of a quantum beyond the limit.
                let granted = allocation.grants[queue];
                self.problem.push_queue(tti, queue, granted, inflation);
                if first_alone && queue != queues.start {
                    self.problem.cut_queue(0);
                }
            }
            self.problem.slices.push(SliceBound {
                quantum,
                most_rbs: u32::try_from(quantum.saturating_add(self.limit)).unwrap_or(0),
                queues,
            });
        }
    }

    /// Factor by which packets of a slice count as larger.
    fn inflation(&self, quantum: i32) -> f64 {
        let x = f64::from(-quantum.min(0)) / f64::from(self.limit.max(1));
        (5.0 * (x * x * x * x * x)).max(1.0)
    }

    /// Grants RBs to the selected packets, those with the short group first.
    fn assign(&mut self, tti: &Tti<'_>, allocation: &mut Allocation) {
        let first = self.problem.short_at;
        let rest = (0..tti.queues.len()).filter(|queue| Some(*queue) != first);
        for queue in first.into_iter().chain(rest) {
            let packets = self.problem.packets[queue] as usize;
            if packets == 0 {
                continue;
            }
            let already = allocation.grants[queue];
            let rbs = Problem::rbs_of(tti, queue, packets).saturating_sub(already);
            let slice = usize::from(tti.queues[queue].slice);
            if self.quanta.get(slice).saturating_sub(i32::from(allocation.room.would_take(rbs))) < -self.limit
            {
                continue;
            }
            let got = allocation.grant(tti, queue, rbs);
            self.quanta.charge(slice, got);
        }
    }

    /// Lines 9 to 17 of Algorithm 4.
    fn distribute(&mut self, tti: &Tti<'_>, allocation: &mut Allocation) {
        let stop = -(i64::from(self.limit) * 3 / 4);
        while allocation.room.rbs() > 0 {
            let Some(slice) = self.quanta.with_highest(|slice| allocation.next_queue(slice).is_some()) else {
                return;
            };
            let Some(queue) = allocation.next_queue(slice) else { return };
            let quantum = self.quanta.get(slice);
            let group = i32::from(allocation.room.would_take(1));
            if i64::from(quantum) <= stop || quantum - group < -self.limit {
                return;
            }
            let got = allocation.grant(tti, queue, 1);
            self.quanta.charge(slice, got);
        }
    }

    /// Lines 18 to 20: charges the RBs left to the slices with the highest quanta.
    fn charge_remaining(&mut self, tti: &Tti<'_>, allocation: &mut Allocation) {
        let mut left = match self.idle {
            Idle::Strict => allocation.room.rbs(),
            // The prepaid RBs are already charged.
            Idle::IdleReset => allocation.room.rbs().saturating_sub(self.quanta.prepaid()),
        };
        while left > 0 {
            let Some(slice) = self.quanta.with_highest(|_| true) else { break };
            let part = left.min(tti.rbg);
            match self.idle {
                Idle::Strict => self.quanta.charge_unused(slice, part),
                Idle::IdleReset => self.quanta.prepay(slice, part),
            }
            left -= part;
        }
        if self.idle == Idle::IdleReset {
            // The RBs are prepaid: any slice with a backlog may use them, the highest quantum first.
            while allocation.room.rbs() > 0 {
                let Some(slice) = self.quanta.with_highest(|slice| allocation.next_queue(slice).is_some())
                else {
                    return;
                };
                let Some(queue) = allocation.next_queue(slice) else { return };
                allocation.grant(tti, queue, 1);
            }
        }
    }
}

impl Scheduler for Eqp {
    type Params = EqpParams;

    fn check(params: &EqpParams) -> Result<(), OutOfRange> {
        bound("quantum_limit_rbs", params.quantum_limit_rbs)
    }

    fn build(params: &EqpParams, cell: &Setup) -> Self {
        let paper = cell.algorithm == InterAlgorithm::EqpPaper;
        let selection = if paper { Selection::Paper } else { Selection::Exact };
        Self::new(*params, selection, cell.slices, cell.ues)
    }
}

impl InterSlice for Eqp {
    fn schedule(&mut self, tti: &Tti<'_>, allocation: &mut Allocation) {
        self.quanta.credit(tti.slices, tti.rbs);
        if self.idle == Idle::IdleReset {
            self.quanta.redistribute_idle(|slice| !allocation.is_active(slice));
        }
        let unused = self.serve_above_limit(tti, allocation);
        self.list_packets(tti, allocation);
        match self.selection {
            Selection::Exact => self.problem.solve(),
            Selection::Paper => self.paper.solve(&mut self.problem),
        }
        self.assign(tti, allocation);
        self.distribute(tti, allocation);
        self.charge_remaining(tti, allocation);
        self.count_waits(tti, allocation);
        allocation.room.put_back(unused);
        debug_assert_eq!(self.quanta.sum(), 0, "what is given out is charged, and no more");
    }

    fn needs_packet_sizes(&self) -> bool {
        true
    }

    fn expect(&mut self, slice: usize, next: &TtiPreview<'_>) -> u16 {
        match self.idle {
            // Idle slices lend, but are repaid.
            Idle::Strict => next.by_share_of(slice, |_| next.rbs),
            Idle::IdleReset => next.by_share(slice),
        }
    }

    fn max_ahead_rbs(&self) -> Option<u16> {
        Some(u16::try_from(self.limit).unwrap_or(u16::MAX))
    }

    fn balances(&self) -> &[i32] {
        self.quanta.quanta()
    }
}
