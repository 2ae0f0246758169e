//! Schedulers of resource blocks: an inter-slice scheduler allocates the RBs, an intra-slice scheduler ranks the UEs.
//!
//! ```text
//!            slices, shares                      per UE: packets, MCS
//!                  │                                    │
//!                  ▼                                    ▼
//!   RBs free ─▶ InterSlice ──── RBs per UE ────▶ TBS ─▶ transport block
//!   this TTI       ▲
//!                  └── UEs of a slice, best first ◀── IntraSlice: rr, pf, priority
//! ```
//!
//! | name | what | work-conserving |
//! |---|---|---|
//! | `fixed` | [`fixed`]: ⌊share · RBs⌋ each, used or not | no |
//! | `rrm_policy` | [`rrm_policy`]: dedicated, minimum and maximum shares (O-RAN, TS 28.541) | except for dedicated RBs |
//! | `static_priority` | [`static_priority`]: the first slice with a backlog | yes |
//! | `drr` | [`drr`]: deficit round robin on RBs | yes |
//! | `eqp_exact`, `eqp_paper` | [`eqp`]: elastic quantum partition, whole packets first | with `idle_reset` |
//! | `gps_packing` | [`gps_packing`]: whole packets first, within a bound around fair sharing | yes |
//!
//! RBs are allocated in resource block groups (RBGs). The last group of a carrier may be shorter than the others: 25 RBs in
//! groups of 2 are 12 groups and one RB.
//!
//! To add a scheduler: a file with an implementation of [`InterSlice`] and [`Scheduler`], or of [`IntraSlice`], and one line
//! in the registry below, or in that of [`intra`] (docs/add-an-algorithm.md).

mod account;
mod capacity;
mod config;
pub mod intra;
pub mod knapsack;
mod preview;
#[cfg(test)]
mod tests;

pub use crate::registry::{NoParams, OutOfRange};
pub use capacity::Capacity;
pub(crate) use config::check_slice_keys;
pub use config::{SchedError, SliceConfig};
pub use intra::{IntraKind, IntraSlice};
pub use preview::TtiPreview;

use super::amc::{TbsTable, rbs_for};
use crate::registry::{configs, in_range};
use std::ops::Range;

/// The backlog of a UE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backlog {
    /// Number of the UE, below the number of UEs.
    pub ue: u32,
    /// Index of the slice, below the number of slices.
    pub slice: u16,
    /// MCS of the UE in this TTI.
    pub mcs: u8,
    /// Bytes on the air that would empty the queue.
    pub bytes: u64,
    /// Range of its packets in [`Tti::sizes`].
    pub sizes: Range<u32>,
}

/// Input of a scheduler in one TTI.
#[derive(Debug, Clone, Copy)]
pub struct Tti<'a> {
    /// RBs free for new data: groups of `rbg`, and at most one shorter group.
    pub rbs: u16,
    /// RBs of a group, at least 1.
    pub rbg: u16,
    /// Transport block sizes by MCS and RBs.
    pub table: &'a TbsTable,
    /// Configuration of the slices, by slice index.
    pub slices: &'a [SliceConfig],
    /// UEs with a backlog, sorted by slice; within a slice the best ranked first.
    pub queues: &'a [Backlog],
    /// Sizes on the air of the packets of all queues, in order; a partly sent packet counts with its rest.
    pub sizes: &'a [u32],
}

impl Tti<'_> {
    /// Packet sizes of a queue.
    #[must_use]
    pub fn sizes_of(&self, queue: usize) -> &[u32] {
        let range = self.queues.get(queue).map_or(0..0, |q| q.sizes.start as usize..q.sizes.end as usize);
        self.sizes.get(range).unwrap_or(&[])
    }

    /// RBs that would empty a queue, at most all RBs of the carrier.
    #[must_use]
    #[inline]
    pub fn need(&self, queue: &Backlog) -> u16 {
        let bytes = u32::try_from(queue.bytes).unwrap_or(u32::MAX);
        rbs_for(self.table.row(queue.mcs), bytes).unwrap_or(self.table.rbs())
    }

    /// The free groups.
    #[must_use]
    #[inline]
    pub fn room(&self) -> Capacity {
        Capacity::new(self.rbs, self.rbg)
    }
}

/// The decision of a scheduler with its temporary data, kept between TTIs only to reuse its memory.
#[derive(Debug, Clone, Default)]
pub struct Allocation {
    /// RBs granted to each queue of [`Tti::queues`].
    pub grants: Vec<u16>,
    /// RBs that would empty each queue.
    needs: Vec<u16>,
    /// For each slice, the range of its queues, and the index of the first queue that is not completely served.
    of_slice: Vec<Range<usize>>,
    served: Vec<usize>,
    /// RBs granted to each slice.
    slice_rbs: Vec<u16>,
    room: Capacity,
}

impl Allocation {
    /// Resets the allocation for a TTI.
    #[inline]
    pub fn start(&mut self, tti: &Tti<'_>) {
        self.room = tti.room();
        self.grants.clear();
        self.grants.resize(tti.queues.len(), 0);
        self.needs.clear();
        self.needs.extend(tti.queues.iter().map(|q| tti.need(q)));
        self.slice_rbs.clear();
        self.slice_rbs.resize(tti.slices.len(), 0);
        self.of_slice.clear();
        self.served.clear();
        let mut at = 0;
        for slice in 0..tti.slices.len() {
            let mine = tti.queues[at..].iter().take_while(|q| usize::from(q.slice) == slice).count();
            self.of_slice.push(at..at + mine);
            self.served.push(at);
            at += mine;
        }
    }

    /// RBs not granted.
    #[must_use]
    pub fn unused_rbs(&self) -> u16 {
        self.room.rbs()
    }

    /// RBs granted to a slice.
    #[must_use]
    pub fn slice_rbs(&self, slice: usize) -> u16 {
        self.slice_rbs.get(slice).copied().unwrap_or(0)
    }

    /// RBs that would empty a slice in addition to those granted.
    #[must_use]
    pub fn unmet_rbs(&self, slice: usize) -> u32 {
        self.queues_of(slice).map(|q| u32::from(self.unmet(q))).sum()
    }

    /// Whether a slice has a UE with a backlog, served or not.
    #[must_use]
    pub fn is_active(&self, slice: usize) -> bool {
        !self.queues_of(slice).is_empty()
    }

    /// The best ranked queue of a slice that is not completely served.
    #[must_use]
    #[inline]
    pub fn next_queue(&self, slice: usize) -> Option<usize> {
        let from = self.served.get(slice).copied().unwrap_or(0);
        (from..self.queues_of(slice).end).find(|q| self.unmet(*q) > 0)
    }

    /// Queues of a slice, the best ranked first.
    #[must_use]
    #[inline]
    pub fn queues_of(&self, slice: usize) -> Range<usize> {
        self.of_slice.get(slice).cloned().unwrap_or_default()
    }

    /// RBs a queue still needs.
    #[must_use]
    #[inline]
    pub fn unmet(&self, queue: usize) -> u16 {
        let need = self.needs.get(queue).copied().unwrap_or(0);
        need.saturating_sub(self.grants.get(queue).copied().unwrap_or(0))
    }

    /// Grants a queue groups that cover `rbs` RBs, as far as they are free; returns the RBs granted.
    #[inline]
    pub fn grant(&mut self, tti: &Tti<'_>, queue: usize, rbs: u16) -> u16 {
        let got = self.room.take(rbs);
        self.note(tti, queue, got);
        got
    }

    /// Grants RBs from `part`, split off before, to the queues of a slice according to need, the best ranked first.
    #[inline]
    fn serve_from(&mut self, tti: &Tti<'_>, slice: usize, part: &mut Capacity) {
        while let Some(queue) = self.next_queue(slice) {
            let got = part.take(self.unmet(queue));
            if got == 0 {
                return;
            }
            self.note(tti, queue, got);
        }
    }

    #[inline]
    fn note(&mut self, tti: &Tti<'_>, queue: usize, rbs: u16) {
        if let (Some(grant), Some(q)) = (self.grants.get_mut(queue), tti.queues.get(queue)) {
            *grant += rbs;
            let slice = usize::from(q.slice);
            if let Some(total) = self.slice_rbs.get_mut(slice) {
                *total += rbs;
            }
            let end = self.queues_of(slice).end;
            while self.served.get(slice).is_some_and(|at| *at < end && self.unmet(*at) == 0) {
                self.served[slice] += 1;
            }
        }
    }
}

/// Divides the RBs of a TTI among the queues.
pub trait InterSlice {
    /// Fills `allocation.grants`. [`Allocation::start`] was called for this TTI.
    fn schedule(&mut self, tti: &Tti<'_>, allocation: &mut Allocation);
    /// Shortcut of [`schedule`](Self::schedule) for a single UE in a single slice that needs `need` RBs: returns the RBs granted
    /// and updates the state in the same way. `None`, without any change, if the scheduler has no shortcut.
    fn schedule_single(&mut self, tti: &Tti<'_>, need: u16) -> Option<u16> {
        let _ = (tti, need);
        None
    }
    /// Whether the scheduler uses packet sizes; if not, [`Tti::sizes`] may be empty.
    fn needs_packet_sizes(&self) -> bool {
        false
    }
    /// RBs that a slice with an unlimited backlog may expect of a TTI.
    fn expect(&mut self, slice: usize, next: &TtiPreview<'_>) -> u16 {
        next.by_share(slice)
    }
    /// RBs by which a slice may be ahead of its share in order to send whole packets, as shown by its balance; `None` if the
    /// scheduler does not do this.
    fn max_ahead_rbs(&self) -> Option<u16> {
        None
    }
    /// Balance of each slice in RBs (quantum, deficit or lag); negative if the slice is ahead. Empty if the scheduler has none.
    fn balances(&self) -> &[i32] {
        &[]
    }
}

/// Parameters of the cell for building a scheduler.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// The configured name.
    pub algorithm: InterAlgorithm,
    /// Number of slices of the cell.
    pub slices: usize,
    /// Number of UEs of the cell.
    pub ues: usize,
}

/// Construction of a scheduler for the registry, in addition to [`InterSlice`].
pub trait Scheduler: Sized {
    /// Parameters as configured, with defaults.
    type Params;

    /// The keys of slices that this scheduler uses, of those that not all schedulers use.
    const SLICE_KEYS: &'static [&'static str] = &[];

    /// Checks that every parameter is in range.
    ///
    /// # Errors
    /// The first parameter that is not, with its range.
    fn check(_: &Self::Params) -> Result<(), OutOfRange> {
        Ok(())
    }

    /// Checks the values of [`SLICE_KEYS`](Self::SLICE_KEYS), each of which is in range.
    ///
    /// # Errors
    /// The first fault.
    fn check_slices(_: &[SliceConfig]) -> Result<(), SchedError> {
        Ok(())
    }

    /// Builds an instance for a cell from checked parameters.
    fn build(params: &Self::Params, cell: &Setup) -> Self;
}

impl<T: Scheduler> Scheduler for Box<T> {
    type Params = T::Params;

    const SLICE_KEYS: &'static [&'static str] = T::SLICE_KEYS;

    fn check(params: &T::Params) -> Result<(), OutOfRange> {
        T::check(params)
    }

    fn check_slices(slices: &[SliceConfig]) -> Result<(), SchedError> {
        T::check_slices(slices)
    }

    fn build(params: &T::Params, cell: &Setup) -> Self {
        Self::new(T::build(params, cell))
    }
}

/// Checks a limit in RBs.
fn bound(key: &'static str, rbs: u32) -> Result<(), OutOfRange> {
    in_range(key, rbs, (1..=1_000_000).contains(&rbs), "1 to 1000000")
}

/// Declares the inter-slice schedulers: their files, names and parameters, and the enum that dispatches to them.
macro_rules! registry {
    ($( $($module:ident)? : $name:literal $Variant:ident($Scheduler:ty) $about:literal; )+) => {
        $( $( pub mod $module; )? )+

        configs! {
            /// The inter-slice schedulers by name.
            InterAlgorithm("scheduler");
            /// A scheduler and its parameters. Unset parameters have the defaults in the scheduler's file.
            InterConfig { $( $Variant(<$Scheduler as Scheduler>::Params) = $name, $about; )+ }
        }

        impl InterAlgorithm {
            /// The keys of slices that the scheduler uses, of those that not all schedulers use.
            pub(crate) const fn slice_keys(self) -> &'static [&'static str] {
                match self { $( Self::$Variant => <$Scheduler as Scheduler>::SLICE_KEYS, )+ }
            }
        }

        impl InterConfig {
            /// Checks a list of slices for this scheduler. Keys that it does not use only have to be in range.
            ///
            /// # Errors
            /// The first fault: no slice, a duplicate name, a percentage that is not a number from 0 to 100, shares or minima that
            /// sum to more than 100, or minima and maxima out of order.
            pub fn check_slices(&self, slices: &[SliceConfig]) -> Result<(), SchedError> {
                config::check_slices(slices)?;
                match self { $( Self::$Variant(_) => <$Scheduler as Scheduler>::check_slices(slices), )+ }
            }

            /// Builds the scheduler for a number of slices and UEs.
            ///
            /// # Errors
            /// A parameter is out of range.
            pub fn build(&self, slices: usize, ues: usize) -> Result<AnyInter, SchedError> {
                let algorithm = self.algorithm();
                let cell = &Setup { algorithm, slices, ues };
                match self {
                    $( Self::$Variant(params) => <$Scheduler>::check(params)
                        .map(|()| AnyInter::$Variant(<$Scheduler>::build(params, cell))), )+
                }
                .map_err(|wrong| SchedError::Param { algorithm, wrong })
            }
        }

        /// Any inter-slice scheduler, without a virtual call.
        #[derive(Debug, Clone)]
        pub enum AnyInter { $( #[doc = $about] $Variant($Scheduler), )+ }

        impl InterSlice for AnyInter {
            fn schedule(&mut self, tti: &Tti<'_>, allocation: &mut Allocation) {
                match self { $( Self::$Variant(s) => s.schedule(tti, allocation), )+ }
            }
            #[inline]
            fn schedule_single(&mut self, tti: &Tti<'_>, need: u16) -> Option<u16> {
                match self { $( Self::$Variant(s) => s.schedule_single(tti, need), )+ }
            }
            fn needs_packet_sizes(&self) -> bool {
                match self { $( Self::$Variant(s) => s.needs_packet_sizes(), )+ }
            }
            fn expect(&mut self, slice: usize, next: &TtiPreview<'_>) -> u16 {
                match self { $( Self::$Variant(s) => s.expect(slice, next), )+ }
            }
            fn balances(&self) -> &[i32] {
                match self { $( Self::$Variant(s) => s.balances(), )+ }
            }
            fn max_ahead_rbs(&self) -> Option<u16> {
                match self { $( Self::$Variant(s) => s.max_ahead_rbs(), )+ }
            }
        }
    };
}

// One line per scheduler, the first is the default: file (unless a line above names it), name, variant, type, description.
registry! {
    fixed: "fixed" Fixed(fixed::Fixed) "Fixed partition: ⌊share · RBs⌋ for each slice, even if unused.";
    rrm_policy: "rrm_policy" RrmPolicy(rrm_policy::RrmPolicy) "Dedicated, minimum and maximum shares (O-RAN).";
    static_priority: "static_priority" StaticPriority(static_priority::StaticPriority) "Slices in the order of their priority.";
    drr: "drr" Drr(drr::Drr) "Deficit round robin on RBs.";
    eqp: "eqp_exact" EqpExact(Box<eqp::Eqp>) "Elastic quantum partition with exact selection.";
    : "eqp_paper" EqpPaper(Box<eqp::Eqp>) "Elastic quantum partition with the selection printed in the paper, errors corrected.";
    gps_packing: "gps_packing" GpsPacking(Box<gps_packing::GpsPacking>) "Whole packets first, with bounded deviation from fair sharing; developed in this project.";
}

impl Default for InterConfig {
    fn default() -> Self {
        Self::from(InterAlgorithm::default())
    }
}

impl AnyInter {
    /// Fills `allocation.grants` for a TTI; the other fields of `allocation` are unspecified afterwards.
    #[inline]
    pub fn allocate(&mut self, tti: &Tti<'_>, allocation: &mut Allocation) {
        if let ([_], [queue]) = (tti.slices, tti.queues)
            && let Some(rbs) = self.schedule_single(tti, tti.need(queue))
        {
            allocation.grants.clear();
            allocation.grants.push(rbs);
            return;
        }
        allocation.start(tti);
        self.schedule(tti, allocation);
    }
}
