//! `gps_packing`: whole packets first, within a bound around fair sharing. An algorithm of this project, derived in
//! docs/ran-scheduler.md.
//!
//! ```text
//!   reference   the RBs of the TTI, shared by weight among the slices that have, or recently had, a backlog:
//!               due = RBs of the slice in the reference
//!   lag         Σ (due − given): ahead of it < 0 < behind it, Σ over all slices = 0
//!
//!   −L ────────────────┬──────────── +B         B = L / (slices − 1)
//!        may borrow    0   is owed   │
//!                                    └─ beyond: served before all others
//! ```
//!
//! 1. Slices that are owed more than B are served first, group by group, always the one furthest behind.
//! 2. The exact [`knapsack`](super::knapsack) selects the packets that are sent completely, as in EQP, from slices and UEs
//!    that this puts at most L ahead.
//! 3. The remaining RBs go group by group to the slice and the UE furthest behind, as long as there is any backlog: the
//!    scheduler is work-conserving.
//!
//! A slice with empty buffers continues to be owed its share, up to B, for as long as it is likely to return ([`account`]).
//! Behind a limiter, a buffer is empty after nearly every TTI, and a flow must not lose its claim to others for that reason.
//! Service that such a slice cannot keep goes to the others at once, by share.
//!
//! The UEs of a slice share the slice's RBs in the same way, equally. While a UE is owed more than B/2, no packets of the
//! slice are selected, and the UE furthest behind comes first. B/2 of a UE is at least the RBs of one TTI, because whole
//! packets need that much.
//!
//! Only RBs are counted, never bytes: neither packet sizes nor changes of the MCS affect the bound.
//!
//! Compared with EQP: no share is lost to an idle slice, so nothing has to be reset. There is no reserve of 25 % and no
//! inflated size, because the remaining RBs move lags towards 0. One bound holds for any number of slices.

use super::account::{self, Account, Claim, RB, UNBOUNDED};
use super::knapsack::{Problem, SliceBound};
use super::{Allocation, InterSlice, OutOfRange, Scheduler, Setup, Tti, bound};
use serde::{Deserialize, Serialize};

/// Parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GpsPackingParams {
    /// L: how far a slice may be ahead of the reference, in RBs, 1 to 10⁶. All slices together may be behind by as much.
    pub lag_limit_rbs: u32,
}

impl Default for GpsPackingParams {
    fn default() -> Self {
        Self { lag_limit_rbs: 100 }
    }
}

/// The scheduler of one direction.
#[derive(Debug, Clone)]
pub struct GpsPacking {
    limit: i64,
    slices: Vec<Account>,
    /// For each slice, the accounts of the participating UEs, sorted by number.
    ues: Vec<Vec<Account>>,
    /// For each queue of the TTI, the index of its account in `ues` of its slice.
    account_index: Vec<usize>,
    claims: Vec<Claim>,
    balances: Vec<i32>,
    problem: Problem,
}

impl GpsPacking {
    /// A scheduler for `slices` slices and `ues` UEs, with all lags 0.
    #[must_use]
    pub fn new(params: GpsPackingParams, slices: usize, ues: usize) -> Self {
        Self {
            limit: i64::from(params.lag_limit_rbs) * RB,
            slices: (0..slices as u32).map(|id| Account::new(id, 0)).collect(),
            // Most slices have few UEs.
            ues: (0..slices).map(|_| Vec::with_capacity(ues.min(16))).collect(),
            account_index: Vec::new(),
            claims: Vec::new(),
            balances: vec![0; slices],
            problem: Problem::default(),
        }
    }

    /// Upper bound of the lag of each UE of a slice.
    fn max_lag(&self, tti: &Tti<'_>, slice: usize) -> i64 {
        let ues = self.ues.get(slice).map_or(&[][..], |ues| ues);
        account::max_lag(ues, self.limit).max(2 * i64::from(tti.rbs) * RB)
    }

    /// Updates the accounts with the backlogs of this TTI.
    fn gather(&mut self, tti: &Tti<'_>, allocation: &Allocation) {
        account::start_tti(&mut self.slices);
        for ues in &mut self.ues {
            account::start_tti(ues);
            ues.retain(Account::participates);
        }
        for (slice, account) in self.slices.iter_mut().enumerate() {
            account.weight = tti.slices.get(slice).map_or(0, |s| s.share_parts() as i64);
        }
        for (queue, backlog) in tti.queues.iter().enumerate() {
            let slice = usize::from(backlog.slice);
            let (Some(of_slice), Some(ues)) = (self.slices.get_mut(slice), self.ues.get_mut(slice)) else {
                continue;
            };
            let all = tti.table.row(backlog.mcs).last().copied().unwrap_or(0);
            let need = match backlog.bytes {
                bytes if bytes > all.into() => UNBOUNDED,
                _ => i64::from(allocation.unmet(queue).next_multiple_of(tti.rbg.max(1))) * RB,
            };
            of_slice.add_need(need);
            let place = ues.binary_search_by_key(&backlog.ue, |a| a.id).unwrap_or_else(|place| {
                ues.insert(place, Account::new(backlog.ue, 1));
                place
            });
            ues[place].add_need(need);
        }
        self.account_index.clear();
        let place = |ues: &Vec<Account>, ue| ues.binary_search_by_key(&ue, |a: &Account| a.id).unwrap_or(0);
        let of_queue =
            |q: &super::Backlog| self.ues.get(usize::from(q.slice)).map_or(0, |ues| place(ues, q.ue));
        self.account_index.extend(tti.queues.iter().map(of_queue));
    }

    /// Computes what is due to every slice and UE if all RBs for which there is a backlog are given.
    fn compute_due(&mut self, tti: &Tti<'_>) {
        let wanted = self.slices.iter().fold(0_i64, |sum, a| sum.saturating_add(a.need));
        let total = wanted.min(i64::from(tti.rbs) * RB);
        let max_lag = account::max_lag(&self.slices, self.limit);
        account::compute_due(&mut self.slices, total, max_lag, &mut self.claims);
        for slice in 0..self.slices.len() {
            let max_lag = self.max_lag(tti, slice);
            account::compute_due(&mut self.ues[slice], self.slices[slice].due, max_lag, &mut self.claims);
        }
    }

    /// The account of the UE of a queue.
    fn ue(&self, tti: &Tti<'_>, queue: usize) -> Option<&Account> {
        self.ues.get(usize::from(tti.queues.get(queue)?.slice))?.get(*self.account_index.get(queue)?)
    }

    /// The slice furthest behind among those with a remaining backlog.
    fn most_lagging_slice(&self, allocation: &Allocation) -> Option<usize> {
        // On ties, the first slice.
        let open = (0..self.slices.len()).rev().filter(|slice| allocation.next_queue(*slice).is_some());
        open.max_by_key(|slice| self.slices[*slice].projected_lag())
    }

    /// The queue furthest behind among those of a slice that are not completely served.
    fn most_lagging_queue(&self, tti: &Tti<'_>, allocation: &Allocation, slice: usize) -> Option<usize> {
        // On ties, the better ranked queue.
        let unmet = allocation.queues_of(slice).filter(|queue| allocation.unmet(*queue) > 0).rev();
        unmet.max_by_key(|queue| self.ue(tti, *queue).map(Account::projected_lag))
    }

    fn grant(&mut self, tti: &Tti<'_>, allocation: &mut Allocation, queue: usize, rbs: u16) -> u16 {
        let got = allocation.grant(tti, queue, rbs);
        let slice = usize::from(tti.queues[queue].slice);
        let served = i64::from(got) * RB;
        if let Some(account) = self.slices.get_mut(slice) {
            account.served += served;
        }
        if let (Some(ues), Some(place)) = (self.ues.get_mut(slice), self.account_index.get(queue))
            && let Some(account) = ues.get_mut(*place)
        {
            account.served += served;
        }
        got
    }

    /// Grants group by group to the slice furthest behind, as long as it is behind by more than `least`.
    fn grant_by_lag(&mut self, tti: &Tti<'_>, allocation: &mut Allocation, least: i64) {
        while allocation.room.rbs() > 0
            && let Some(slice) = self.most_lagging_slice(allocation)
            && self.slices[slice].projected_lag() > least
            && let Some(queue) = self.most_lagging_queue(tti, allocation, slice)
            && self.grant(tti, allocation, queue, 1) > 0
        {}
    }

    /// Lists the packets within the bounds.
    fn list_packets(&mut self, tti: &Tti<'_>, allocation: &Allocation) {
        self.problem.clear(allocation.room);
        let rbs = |units: i64| units.max(0) / RB;
        for slice in 0..tti.slices.len() {
            let queues = allocation.queues_of(slice);
            let most = self.max_lag(tti, slice);
            let closed = queues.clone().any(|queue| {
                allocation.unmet(queue) > 0
                    && self.ue(tti, queue).is_some_and(|a| a.projected_lag() > most / 2)
            });
            for queue in queues.clone() {
                self.problem.push_queue(tti, queue, allocation.grants[queue], 1.0);
                let ahead = self.ue(tti, queue).map_or(0, |a| rbs(a.projected_lag() + self.limit));
                self.problem.cut_queue(if closed { 0 } else { u16::try_from(ahead).unwrap_or(u16::MAX) });
            }
            let behind = self.slices.get(slice).map_or(0, Account::projected_lag);
            self.problem.slices.push(SliceBound {
                quantum: i32::try_from(self.slices.get(slice).map_or(0, |a| a.lag) / RB).unwrap_or(0),
                most_rbs: u32::try_from(rbs(behind + self.limit)).unwrap_or(u32::MAX),
                queues,
            });
        }
    }

    /// Grants RBs to the selected packets, those with the short group first.
    fn assign(&mut self, tti: &Tti<'_>, allocation: &mut Allocation) {
        let first = self.problem.short_at;
        for queue in first.into_iter().chain((0..tti.queues.len()).filter(|queue| Some(*queue) != first)) {
            let packets = self.problem.packets[queue] as usize;
            if packets > 0 {
                let rbs = Problem::rbs_of(tti, queue, packets).saturating_sub(allocation.grants[queue]);
                self.grant(tti, allocation, queue, rbs);
            }
        }
    }

    /// Ends the TTI: computes what was finally due to every slice and UE.
    fn finish_tti(&mut self, tti: &Tti<'_>, allocation: &Allocation) {
        for account in self.slices.iter_mut().chain(self.ues.iter_mut().flatten()) {
            account.has_backlog = account.need == UNBOUNDED;
        }
        for queue in (0..tti.queues.len()).filter(|queue| allocation.unmet(*queue) > 0) {
            let slice = usize::from(tti.queues[queue].slice);
            let (Some(of_slice), Some(ues)) = (self.slices.get_mut(slice), self.ues.get_mut(slice)) else {
                continue;
            };
            of_slice.has_backlog = true;
            ues[self.account_index[queue]].has_backlog = true;
        }
        let max_lag = account::max_lag(&self.slices, self.limit);
        account::finish_tti(&mut self.slices, max_lag, &mut self.claims);
        for slice in 0..self.slices.len() {
            let max_lag = self.max_lag(tti, slice);
            account::finish_tti(&mut self.ues[slice], max_lag, &mut self.claims);
        }
        for (balance, account) in self.balances.iter_mut().zip(&self.slices) {
            *balance = (account.lag / RB) as i32;
        }
    }
}

impl Scheduler for GpsPacking {
    type Params = GpsPackingParams;

    fn check(params: &GpsPackingParams) -> Result<(), OutOfRange> {
        bound("lag_limit_rbs", params.lag_limit_rbs)
    }

    fn build(params: &GpsPackingParams, cell: &Setup) -> Self {
        Self::new(*params, cell.slices, cell.ues)
    }
}

impl InterSlice for GpsPacking {
    fn schedule(&mut self, tti: &Tti<'_>, allocation: &mut Allocation) {
        self.gather(tti, allocation);
        self.compute_due(tti);
        self.grant_by_lag(tti, allocation, account::max_lag(&self.slices, self.limit) / 2);
        self.list_packets(tti, allocation);
        self.problem.solve();
        self.assign(tti, allocation);
        self.grant_by_lag(tti, allocation, i64::MIN);
        self.finish_tti(tti, allocation);
    }

    fn needs_packet_sizes(&self) -> bool {
        true
    }

    fn max_ahead_rbs(&self) -> Option<u16> {
        Some(u16::try_from(self.limit / RB).unwrap_or(u16::MAX))
    }

    fn balances(&self) -> &[i32] {
        &self.balances
    }
}
