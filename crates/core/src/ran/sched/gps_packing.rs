//! `gps_packing`: whole packets first, never more than a bound away from fair sharing. Ours; derived in
//! docs/ran-scheduler.md.
//!
//! ```text
//!   reference   generalised processor sharing of the same RBs among those with a backlog *there*:
//!               w = what the slice would have got in this TTI
//!   lag         Σ (w − given): ahead of it < 0 < behind it, Σ over all slices = 0
//!
//!   −L ────────────────┬──────────────── +L      each slice, each TTI: give between
//!        may borrow    0    is owed                 lag + w − L   (its own, before all others)
//!                                             and   lag + w + L   (no packet beyond that)
//! ```
//!
//! 1. What the reference serves: shares of the slices, equal parts of the UEs in each, nobody more than its
//!    backlog there, which is the real one less the lag. A slice that is ahead goes on being served there after
//!    it is empty here, and so pays back; one that is empty in both has no claim, and its share is everybody's.
//! 2. The exact [`knapsack`](super::knapsack) picks the packets that leave whole, as EQP does, but between the
//!    bounds above. A UE that is more than L ahead of its own part picks no more: small packets cannot starve
//!    the slice's other UEs.
//! 3. What is left goes group by group to the slice and the UE that are furthest behind. It is given out as long
//!    as there is any backlog: the scheduler is work-conserving.
//!
//! Against EQP: no share is lost to a slice that is idle, so nothing has to be reset; no reserve of 25 %, no
//! inflated sizes, because what is left over moves lags towards 0 by itself; one bound for any number of slices.

use super::knapsack::{Problem, SliceBound};
use super::{Board, InterSlice, Tti};
use serde::{Deserialize, Serialize};

/// Parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GpsPackingParams {
    /// L: how far a slice may be ahead of or behind the reference, in RBs, 1 to 10⁶.
    pub lag_limit_rbs: u32,
}

impl Default for GpsPackingParams {
    fn default() -> Self {
        Self { lag_limit_rbs: 100 }
    }
}

/// Lags and what the reference serves are counted in RBs / 2¹⁶.
const RB: i64 = 1 << 16;
/// A backlog beyond this counts as this.
const MAX_DEMAND_RBS: u64 = 1 << 28;

/// See the top of this file.
#[derive(Debug, Clone)]
pub struct GpsPacking {
    limit: i64,
    /// Lag of each UE, and the slice it was last seen in.
    lags: Vec<i64>,
    slice_of: Vec<u16>,
    /// UEs with a lag, in order.
    lagging: Vec<u32>,
    members: Vec<Member>,
    slices: Vec<SliceState>,
    flows: Vec<Flow>,
    balances: Vec<i32>,
    problem: Problem,
}

/// A UE that has a backlog, here or in the reference.
#[derive(Debug, Clone, Copy)]
struct Member {
    ue: u32,
    slice: u16,
    /// Which of the TTI's queues; none if it has no backlog here.
    queue: Option<u32>,
    /// Backlog here.
    demand: i64,
    /// What the reference serves.
    served: i64,
}

#[derive(Debug, Clone, Copy, Default)]
struct SliceState {
    lag: i64,
    served: i64,
}

/// One claim on a server that is shared.
#[derive(Debug, Clone, Copy)]
struct Flow {
    weight: i64,
    backlog: i64,
    index: u32,
}

impl GpsPacking {
    /// A scheduler for so many slices and UEs, with nobody ahead or behind.
    #[must_use]
    pub fn new(params: GpsPackingParams, slices: usize, ues: usize) -> Self {
        Self {
            limit: i64::from(params.lag_limit_rbs) * RB,
            lags: vec![0; ues],
            slice_of: vec![0; ues],
            lagging: Vec::new(),
            members: Vec::new(),
            slices: vec![SliceState::default(); slices],
            flows: Vec::new(),
            balances: vec![0; slices],
            problem: Problem::default(),
        }
    }

    /// Lists everybody who has a backlog here or there, by UE.
    fn gather(&mut self, tti: &Tti<'_>, board: &Board) {
        self.members.clear();
        for (queue, backlog) in (0_u32..).zip(tti.queues) {
            let ue = backlog.ue as usize;
            if ue >= self.lags.len() || usize::from(backlog.slice) >= self.slices.len() {
                continue;
            }
            self.slice_of[ue] = backlog.slice;
            self.members.push(Member {
                ue: backlog.ue,
                slice: backlog.slice,
                queue: Some(queue),
                demand: demand_of(tti, board, queue as usize),
                served: 0,
            });
        }
        self.members.sort_unstable_by_key(|m| m.ue);
        let here = self.members.len();
        for ue in &self.lagging {
            if self.members[..here].binary_search_by_key(ue, |m| m.ue).is_err() {
                let slice = self.slice_of[*ue as usize];
                self.members.push(Member { ue: *ue, slice, queue: None, demand: 0, served: 0 });
            }
        }
        self.members.sort_unstable_by_key(|m| (m.slice, m.ue));
    }

    /// A UE is not owed more than it could use: the rest is forgiven to those ahead, in proportion. So is the
    /// short group where it comes on top of what a UE needs, which happens only while RBs are left over.
    fn forgive(&mut self) {
        let (mut excess, mut debts, mut sum) = (0, 0, 0);
        for m in &self.members {
            let lag = &mut self.lags[m.ue as usize];
            sum += *lag;
            if *lag > m.demand {
                excess += *lag - m.demand;
                *lag = m.demand;
            }
            debts += -(*lag).min(0);
        }
        let excess = (excess - sum.min(0)).min(debts);
        let mut left = excess;
        for m in &self.members {
            let lag = &mut self.lags[m.ue as usize];
            if *lag >= 0 || left == 0 {
                continue;
            }
            // Rounded up: the last ones get what is left.
            let part =
                (i128::from(excess) * i128::from(-*lag)).div_ceil_by(i128::from(debts)).min(left).min(-*lag);
            *lag += part;
            left -= part;
        }
    }

    /// What the reference serves in this TTI.
    fn serve_reference(&mut self, tti: &Tti<'_>) {
        let Self { members, lags, slices, flows, .. } = self;
        for state in slices.iter_mut() {
            *state = SliceState::default();
        }
        let backlog = |m: &Member| (m.demand - lags[m.ue as usize]).max(0);
        flows.clear();
        let mut at = 0;
        while let Some(first) = members.get(at) {
            let slice = first.slice;
            let end = at + members[at..].iter().take_while(|m| m.slice == slice).count();
            let of_slice = &members[at..end];
            slices[usize::from(slice)].lag = of_slice.iter().map(|m| lags[m.ue as usize]).sum();
            let weight = tti.slices.get(usize::from(slice)).map_or(0, |s| s.share_parts() as i64);
            flows.push(Flow { weight, backlog: of_slice.iter().map(backlog).sum(), index: slice.into() });
            at = end;
        }
        share(i64::from(tti.rbs) * RB, flows, |slice, served| slices[slice as usize].served = served);
        at = 0;
        while let Some(first) = members.get(at) {
            let slice = first.slice;
            let end = at + members[at..].iter().take_while(|m| m.slice == slice).count();
            flows.clear();
            let of_slice = (at as u32..).zip(&members[at..end]);
            flows.extend(of_slice.map(|(index, m)| Flow { weight: 1, backlog: backlog(m), index }));
            share(slices[usize::from(slice)].served, flows, |index, served| {
                members[index as usize].served = served
            });
            at = end;
        }
    }

    /// Lists the packets between the bounds.
    fn list_packets(&mut self, tti: &Tti<'_>, board: &Board) {
        self.problem.clear(board.room);
        let rbg = i64::from(tti.rbg.max(1)) * RB;
        for slice in 0..tti.slices.len() {
            let state = self.slices.get(slice).copied().unwrap_or_default();
            let queues = board.queues_of(slice);
            for queue in queues.clone() {
                self.problem.push_queue(tti, queue, 0, 1.0);
                self.problem.cut_queue(self.most_of(tti, queue));
            }
            let own = (state.lag + state.served - self.limit).max(0);
            self.problem.slices.push(SliceBound {
                quantum: i32::try_from(state.lag / RB).unwrap_or(0),
                least_groups: u16::try_from(own / rbg).unwrap_or(u16::MAX),
                most_rbs: u32::try_from((state.lag + state.served + self.limit).max(0) / RB)
                    .unwrap_or(u32::MAX),
                queues,
            });
        }
    }

    /// RBs beyond which a UE would be too far ahead.
    fn most_of(&self, tti: &Tti<'_>, queue: usize) -> u16 {
        let Some(backlog) = tti.queues.get(queue) else { return 0 };
        let key = (backlog.slice, backlog.ue);
        let Ok(at) = self.members.binary_search_by_key(&key, |m| (m.slice, m.ue)) else { return 0 };
        let most = (self.lags[backlog.ue as usize] + self.members[at].served + self.limit) / RB;
        u16::try_from(most.max(0)).unwrap_or(u16::MAX)
    }

    /// A UE was given RBs: the lags as they will be after this TTI.
    fn give(&mut self, tti: &Tti<'_>, board: &mut Board, queue: usize, rbs: u16) -> u16 {
        let got = board.give(tti, queue, rbs);
        let backlog = &tti.queues[queue];
        if let Some(lag) = self.lags.get_mut(backlog.ue as usize) {
            *lag -= i64::from(got) * RB;
        }
        if let Some(state) = self.slices.get_mut(usize::from(backlog.slice)) {
            state.lag -= i64::from(got) * RB;
        }
        got
    }

    /// The UE of a slice that is furthest behind, of those that are not served wholly.
    fn furthest_behind(&self, tti: &Tti<'_>, board: &Board, slice: usize) -> Option<usize> {
        let lag = |queue: &usize| self.lags.get(tti.queues[*queue].ue as usize).copied().unwrap_or(0);
        // The better ranked of equals.
        board.queues_of(slice).filter(|queue| board.unmet(*queue) > 0).rev().max_by_key(lag)
    }

    /// Gives groups to a slice while `more` says so.
    fn fill(
        &mut self,
        tti: &Tti<'_>,
        board: &mut Board,
        slice: usize,
        mut more: impl FnMut(&Self, &Board) -> bool,
    ) {
        while board.room.rbs() > 0 && more(self, board) {
            let Some(queue) = self.furthest_behind(tti, board, slice) else { return };
            if self.give(tti, board, queue, 1) == 0 {
                return;
            }
        }
    }
}

impl InterSlice for GpsPacking {
    fn schedule(&mut self, tti: &Tti<'_>, board: &mut Board) {
        self.gather(tti, board);
        self.forgive();
        self.serve_reference(tti);
        self.list_packets(tti, board);
        self.problem.solve();
        // From here on lags include what the reference serves, and what is given is taken off at once.
        for m in &self.members {
            self.lags[m.ue as usize] += m.served;
        }
        for state in &mut self.slices {
            state.lag += state.served;
        }
        let first = self.problem.short_at;
        for queue in first.into_iter().chain((0..tti.queues.len()).filter(|queue| Some(*queue) != first)) {
            let packets = self.problem.packets[queue] as usize;
            if packets > 0 {
                self.give(tti, board, queue, Problem::rbs_of(tti, queue, packets));
            }
        }
        for slice in 0..tti.slices.len() {
            let own = u32::from(self.problem.slices[slice].least_groups) * u32::from(tti.rbg);
            self.fill(tti, board, slice, |_, board| u32::from(board.slice_rbs(slice)) < own);
        }
        let slices = tti.slices.len().min(self.slices.len());
        while board.room.rbs() > 0 {
            let open = (0..slices).rev().filter(|slice| board.next_queue(*slice).is_some());
            let Some(slice) = open.max_by_key(|slice| self.slices[*slice].lag) else { break };
            let before = board.room.rbs();
            let mut first = true;
            self.fill(tti, board, slice, |_, _| std::mem::take(&mut first));
            if board.room.rbs() == before {
                break;
            }
        }
        // What is drained now is owed nothing.
        for m in &mut self.members {
            m.demand = m.queue.map_or(0, |queue| demand_of(tti, board, queue as usize));
        }
        self.forgive();
        debug_assert_eq!(self.lags.iter().sum::<i64>(), 0, "what one is behind, others are ahead");
        self.lagging.clear();
        self.lagging.extend(self.members.iter().map(|m| m.ue).filter(|ue| self.lags[*ue as usize] != 0));
        for (balance, state) in self.balances.iter_mut().zip(&mut self.slices) {
            state.lag = 0;
            *balance = 0;
        }
        for m in &self.members {
            self.slices[usize::from(m.slice)].lag += self.lags[m.ue as usize];
        }
        for (balance, state) in self.balances.iter_mut().zip(&self.slices) {
            *balance = (state.lag / RB) as i32;
        }
    }

    fn wants_sizes(&self) -> bool {
        true
    }

    fn balances(&self) -> &[i32] {
        &self.balances
    }
}

/// RBs a UE could still use, however many TTIs that takes, in whole groups.
fn demand_of(tti: &Tti<'_>, board: &Board, queue: usize) -> i64 {
    let group = u64::from(tti.rbg.max(1));
    let beyond = tti.queues.get(queue).map_or(0, |q| {
        let all = u64::from(tti.table.row(q.mcs).last().copied().unwrap_or(0)).max(1);
        // What one TTI cannot carry counts by the whole carrier's rate.
        let later = q.bytes.saturating_sub(all).min(u64::from(u32::MAX));
        (later * u64::from(tti.table.rbs())).div_ceil(all)
    });
    let demand = (u64::from(board.unmet(queue)) + beyond.min(MAX_DEMAND_RBS)).next_multiple_of(group);
    i64::try_from(demand).unwrap_or(0) * RB
}

/// Generalised processor sharing of `total` among claims, none more than its backlog: by weight, and what one
/// does not need is shared by the others.
fn share(total: i64, flows: &mut [Flow], mut serve: impl FnMut(u32, i64)) {
    // Who needs least for its weight is satisfied first.
    let first = |a: &Flow, b: &Flow| {
        let (left, right) =
            (i128::from(a.backlog) * i128::from(b.weight), i128::from(b.backlog) * i128::from(a.weight));
        let idle = (a.weight == 0).cmp(&(b.weight == 0));
        idle.then(left.cmp(&right)).then(a.index.cmp(&b.index))
    };
    flows.sort_unstable_by(first);
    let mut weights: i128 = flows.iter().map(|f| i128::from(f.weight)).sum();
    let mut left = total;
    for flow in flows.iter() {
        let fair = match weights {
            0 => left,
            _ => (i128::from(left) * i128::from(flow.weight) / weights) as i64,
        };
        let served = fair.min(flow.backlog);
        weights -= i128::from(flow.weight);
        left -= served;
        serve(flow.index, served);
    }
}

/// Division that rounds up, of what is not negative.
trait DivCeilBy {
    fn div_ceil_by(self, by: Self) -> i64;
}

impl DivCeilBy for i128 {
    fn div_ceil_by(self, by: Self) -> i64 {
        ((self + by - 1) / by.max(1)) as i64
    }
}
