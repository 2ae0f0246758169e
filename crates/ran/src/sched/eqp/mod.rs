//! `eqp_exact` and `eqp_paper`: elastic quantum partition, RLC §IV-B, Algorithms 4 and 5.
//!
//! ```text
//!            fixed partition                                 EQP
//!   TTI  1      2      3      4                      1      2      3      4
//!      ▤▥▦▧   ▤▥▦▧   ▤▥▦▧   ▤▥▦▧                   ▤▤▤▤   ▥▥▥▥   ▦▦▦▦   ▧▧▧▧        four packets of 4 RBs,
//!      every packet is whole after 4 TTIs           after 1, 2, 3, 4: 2.5 in the mean      4 RBs per TTI
//! ```
//!
//! Each TTI a slice's *quantum* grows by its share of the RBs and shrinks by what it gets. Within a limit it may
//! be negative (the slice has borrowed) or positive (it has lent).
//!
//! 1. Quanta grow by share.
//! 2. A knapsack picks the packets that leave whole: as many as can be, among those the largest Σ quantum.
//!    Packets of a slice that owes look larger, by max(1, 5 · x⁵) for x = borrowed / limit.
//! 3. What is left goes group by group to the slice that is owed most and has a backlog, unless it owes more
//!    than 75 % of the limit: a reserve for whole packets to come.
//! 4. What is left then is charged to the slices that are owed most, even if they have nothing to send.
//!
//! How this differs from the print, and why:
//!
//! - Algorithm 5 increments the packet index before it names the packet, memoises under indices it has changed,
//!   and memoises a value that holds the prefix: it selects other packets than it means. `eqp_exact` has the
//!   exact solution of [`knapsack`](super::knapsack); `eqp_paper` ([`paper`]) is Algorithm 5 with these three
//!   repaired.
//! - Σ quantum is 0 after every TTI, which the paper says and Algorithm 4 does not keep: what is charged are the
//!   RBs given, not those asked for; credit is whole and sums to the TTI's RBs; what is left over is charged.
//! - The larger look of step 2 is for the knapsack alone: the print does not say, but charging it would break
//!   the sum. A slice's packets are cut off where it would owe more than the limit.
//! - With more than two slices one could be owed more than the limit, as others borrow up to it each. RBs beyond
//!   the limit are its own in this TTI, before anybody borrows, group by group to whoever is owed most. So with
//!   groups of one RB every quantum is within ± limit, and a slice's RBs deviate from its share by at most
//!   2 · limit over any time. Groups are given whole: no slice owes more than the limit, or a group if that is
//!   more, and none of n slices is owed more than limit + group · (1/2 + 1/3 + … + 1/n): of two slices, no more
//!   than the other owes.
//! - `idle = "strict"` is the paper's: a slice that has nothing to send is owed more and more, until the others
//!   may borrow no more, and its share is lost. `idle = "idle_reset"`: what an idle slice is owed is forfeited to
//!   those that owe, and what step 4 charges is used by whoever has a backlog.
//!
//! - The print looks at no UE: the packets of fewest RBs are picked, TTI after TTI, and a slice in debt has no RBs left for others, so that
//!   a UE of a low MCS, or with larger packets, could have none at all for as long as others flood. Here, if the first in rank of a slice has
//!   had no block of any use for [`MOST_WAIT_TTIS`], only its packets are picked from that slice until it has one.
//!
//! The bound above the limit, with Sₖ the mean of the k largest quanta and g the largest group so far: if a TTI
//! ends with a quantum beyond the limit, all its RBs went to the largest quantum of the moment. Went they all to
//! the k that are largest in the end, then Sₖ has not grown; else one outside was larger than all of these
//! before its last group, so that Sₖ ≤ Sₖ₊₁ + g / (k + 1). Sₙ is 0. What idle slices forfeit lifts nobody above 0
//! as long as anybody owes, so that no Sₖ grows by it, and once nobody owes, Σ quantum is this TTI's RBs.

mod bank;
pub mod paper;

use super::knapsack::{Problem, SliceBound};
use super::{
    Allocation, Capacity, InterAlgorithm, InterSlice, OutOfRange, Outlook, Scheduler, Setup, Tti, bound,
};
use bank::Bank;
use serde::{Deserialize, Serialize};

/// TTIs with a backlog after which the first in rank of a slice comes before the others of the slice.
const MOST_WAIT_TTIS: u32 = 200;
/// Bytes of a block that is of use, whatever waits: headers, and more data than that.
const USEFUL_BYTES: u32 = 24;

/// What becomes of the share of a slice that has nothing to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Idle {
    /// It is owed, up to the limit; then it is lost.
    #[default]
    Strict,
    /// The others have it.
    IdleReset,
}

/// Parameters; the defaults are the paper's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EqpParams {
    /// Most RBs a slice may owe, 1 to 10⁶.
    pub quantum_limit_rbs: u32,
    /// What becomes of the share of a slice that has nothing to send.
    pub idle: Idle,
}

impl Default for EqpParams {
    fn default() -> Self {
        Self { quantum_limit_rbs: 100, idle: Idle::Strict }
    }
}

/// How whole packets are picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// [`super::knapsack`].
    Exact,
    /// [`paper`].
    Paper,
}

/// See the top of this file.
#[derive(Debug, Clone)]
pub struct Eqp {
    limit: i32,
    idle: Idle,
    selection: Selection,
    bank: Bank,
    problem: Problem,
    paper: paper::Memo,
    /// Of each UE, TTIs with a backlog since it had a block of any use.
    waits: Vec<u32>,
}

impl Eqp {
    /// A scheduler for so many slices and UEs, with nobody owing anything.
    #[must_use]
    pub fn new(params: EqpParams, selection: Selection, slices: usize, ues: usize) -> Self {
        Self {
            limit: i32::try_from(params.quantum_limit_rbs).unwrap_or(i32::MAX / 4),
            idle: params.idle,
            selection,
            bank: Bank::new(slices),
            problem: Problem::default(),
            paper: paper::Memo::default(),
            waits: vec![0; ues],
        }
    }

    /// How long a queue's UE has had no block of any use.
    fn wait(&self, tti: &Tti<'_>, queue: usize) -> u32 {
        tti.queues.get(queue).and_then(|q| self.waits.get(q.ue as usize)).copied().unwrap_or(0)
    }

    /// Counts the TTI for those that got nothing of any use.
    fn note_waits(&mut self, tti: &Tti<'_>, allocation: &Allocation) {
        for (queue, backlog) in tti.queues.iter().enumerate() {
            let Some(wait) = self.waits.get_mut(backlog.ue as usize) else { continue };
            let rbs = allocation.grants.get(queue).copied().unwrap_or(0);
            let block = tti.table.row(backlog.mcs).get(usize::from(rbs)).copied().unwrap_or(0);
            let of_use = block > 0 && u64::from(block) >= backlog.bytes.min(USEFUL_BYTES.into());
            *wait = if of_use { 0 } else { wait.saturating_add(1) };
        }
    }

    /// What is owed beyond the limit is the slice's own now, group by group to whoever is owed most. Returns what
    /// nobody may use.
    fn serve_lenders(&mut self, tti: &Tti<'_>, allocation: &mut Allocation) -> Capacity {
        let mut unused = allocation.room.split(0);
        let beyond = |quantum: i32| quantum.saturating_sub(self.limit).clamp(0, tti.rbs.into()) as u16;
        let wanted = self.bank.quanta().iter().map(|q| u32::from(beyond(*q).next_multiple_of(tti.rbg)));
        // As long as there is enough for all, one after another is the same.
        let enough = wanted.sum::<u32>() <= u32::from(allocation.room.groups) * u32::from(tti.rbg);
        while let Some(slice) = self.bank.richest(|_| true) {
            let beyond = beyond(self.bank.get(slice));
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
            self.bank.charge(slice, before - part.rbs());
            // What it has no use for it pays for all the same.
            match self.idle {
                Idle::Strict => self.bank.charge_unused(slice, part.rbs()),
                Idle::IdleReset => self.bank.prepay(slice, part.rbs()),
            }
            unused.put_back(part);
        }
        if self.idle == Idle::IdleReset {
            allocation.room.put_back(std::mem::take(&mut unused));
        }
        unused
    }

    /// Lists the packets that could leave whole (`generate_rbs` of Algorithm 4).
    fn list_packets(&mut self, tti: &Tti<'_>, allocation: &Allocation) {
        self.problem.clear(allocation.room);
        for slice in 0..tti.slices.len() {
            let quantum = self.bank.get(slice);
            let queues = allocation.queues_of(slice);
            let inflation = self.inflation(quantum);
            let first_alone = self.wait(tti, queues.start) >= MOST_WAIT_TTIS;
            for queue in queues.clone() {
                // What it got as a lender comes first.
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

    /// How much larger packets of a slice look.
    fn inflation(&self, quantum: i32) -> f64 {
        let x = f64::from(-quantum.min(0)) / f64::from(self.limit.max(1));
        (5.0 * (x * x * x * x * x)).max(1.0)
    }

    /// Gives the picked packets their RBs, those with the short group first.
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
            if self.bank.get(slice).saturating_sub(i32::from(allocation.room.would_take(rbs))) < -self.limit {
                continue;
            }
            let got = allocation.grant(tti, queue, rbs);
            self.bank.charge(slice, got);
        }
    }

    /// Lines 9 to 17 of Algorithm 4.
    fn share_out(&mut self, tti: &Tti<'_>, allocation: &mut Allocation) {
        let stop = -(i64::from(self.limit) * 3 / 4);
        while allocation.room.rbs() > 0 {
            let Some(slice) = self.bank.richest(|slice| allocation.next_queue(slice).is_some()) else {
                return;
            };
            let Some(queue) = allocation.next_queue(slice) else { return };
            let quantum = self.bank.get(slice);
            let group = i32::from(allocation.room.would_take(1));
            if i64::from(quantum) <= stop || quantum - group < -self.limit {
                return;
            }
            let got = allocation.grant(tti, queue, 1);
            self.bank.charge(slice, got);
        }
    }

    /// Lines 18 to 20: what is left is charged to those that are owed most.
    fn charge_the_rest(&mut self, tti: &Tti<'_>, allocation: &mut Allocation) {
        let mut left = match self.idle {
            Idle::Strict => allocation.room.rbs(),
            // Some of it is paid for.
            Idle::IdleReset => allocation.room.rbs().saturating_sub(self.bank.prepaid()),
        };
        while left > 0 {
            let Some(slice) = self.bank.richest(|_| true) else { break };
            let part = left.min(tti.rbg);
            match self.idle {
                Idle::Strict => self.bank.charge_unused(slice, part),
                Idle::IdleReset => self.bank.prepay(slice, part),
            }
            left -= part;
        }
        if self.idle == Idle::IdleReset {
            // It is paid for: whoever has a backlog may have it, the richest first.
            while allocation.room.rbs() > 0 {
                let Some(slice) = self.bank.richest(|slice| allocation.next_queue(slice).is_some()) else {
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
        self.bank.credit(tti.slices, tti.rbs);
        if self.idle == Idle::IdleReset {
            self.bank.forfeit(|slice| !allocation.is_active(slice));
        }
        let unused = self.serve_lenders(tti, allocation);
        self.list_packets(tti, allocation);
        match self.selection {
            Selection::Exact => self.problem.solve(),
            Selection::Paper => self.paper.solve(&mut self.problem),
        }
        self.assign(tti, allocation);
        self.share_out(tti, allocation);
        self.charge_the_rest(tti, allocation);
        self.note_waits(tti, allocation);
        allocation.room.put_back(unused);
        debug_assert_eq!(self.bank.sum(), 0, "what is given out is charged, and no more");
    }

    fn wants_sizes(&self) -> bool {
        true
    }

    fn expect(&mut self, slice: usize, next: &Outlook<'_>) -> u16 {
        match self.idle {
            // Idle slices lend, but get it back.
            Idle::Strict => next.by_share_of(slice, |_| next.rbs),
            Idle::IdleReset => next.by_share(slice),
        }
    }

    fn most_ahead(&self) -> Option<u16> {
        Some(u16::try_from(self.limit).unwrap_or(u16::MAX))
    }

    fn balances(&self) -> &[i32] {
        self.bank.quanta()
    }
}
