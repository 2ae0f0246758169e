//! `static_priority`: the slice with the lowest `priority` number gets what it needs, then the next.
//!
//! ```text
//!   priority 0  ▦▦▦▦▦▦▦▦▦▦▦▦▦
//!   priority 1               ▦▦▦▦▦▦▦▦▦▦▦▦      shares have no influence: a slice can starve all later ones
//! ```

use super::{Allocation, InterSlice, NoParams, Scheduler, Setup, Tti, TtiPreview};

/// The scheduler of one direction.
#[derive(Debug, Clone, Default)]
pub struct StaticPriority {
    order: Vec<u16>,
}

impl Scheduler for StaticPriority {
    type Params = NoParams;

    const SLICE_KEYS: &'static [&'static str] = &["priority"];

    fn build(_: &NoParams, _: &Setup) -> Self {
        Self::default()
    }
}

impl InterSlice for StaticPriority {
    fn schedule(&mut self, tti: &Tti<'_>, allocation: &mut Allocation) {
        self.order.clear();
        self.order.extend(0..tti.slices.len() as u16);
        // The sort is stable: slices of equal priority keep the order of the configuration.
        self.order.sort_by_key(|slice| tti.slices[usize::from(*slice)].priority);
        for slice in &self.order {
            let mut all = std::mem::take(&mut allocation.room);
            allocation.serve_from(tti, usize::from(*slice), &mut all);
            allocation.room = all;
        }
    }

    fn expect(&mut self, slice: usize, next: &TtiPreview<'_>) -> u16 {
        let place = |slice: usize| (next.slices.get(slice).map(|s| s.priority), slice);
        let mut room = next.room();
        for before in (0..next.slices.len()).filter(|other| place(*other) < place(slice)) {
            room.take(next.demand(before));
        }
        room.rbs()
    }
}
