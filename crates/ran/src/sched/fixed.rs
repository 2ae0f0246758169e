//! `fixed`: the fixed partition of RLC §V-E, as in OpenAirInterface's slicing: ⌊share · RBs⌋ for each slice in every TTI.
//!
//! ```text
//!   75 %  ▦▦▦▦▦▦▦▦▦▦▦▦▦▦▦▦▦▦            RBs that a slice does not use, or that rounding leaves, stay unused
//!   25 %                    ▦▦▦▦▦▦ ▯
//! ```
//!
//! Shares are rounded down to whole groups, the unit of allocation.

use super::{Allocation, InterSlice, NoParams, Scheduler, Setup, Tti, TtiPreview};

/// The scheduler of one direction.
#[derive(Debug, Clone, Copy)]
pub struct Fixed;

impl Scheduler for Fixed {
    type Params = NoParams;

    fn build(_: &NoParams, _: &Setup) -> Self {
        Self
    }
}

impl InterSlice for Fixed {
    fn schedule(&mut self, tti: &Tti<'_>, allocation: &mut Allocation) {
        for (slice, config) in tti.slices.iter().enumerate() {
            let mut part = allocation.room.split(config.share_of(tti.rbs));
            allocation.serve_from(tti, slice, &mut part);
            allocation.room.put_back(part);
        }
    }

    fn schedule_single(&mut self, tti: &Tti<'_>, need: u16) -> Option<u16> {
        let [slice] = tti.slices else { return None };
        Some(tti.room().split(slice.share_of(tti.rbs)).take(need))
    }

    fn expect(&mut self, slice: usize, next: &TtiPreview<'_>) -> u16 {
        let mut room = next.room();
        for (before, config) in next.slices.iter().enumerate().take(slice) {
            let mut part = room.split(config.share_of(next.rbs));
            part.take(next.demand(before));
            room.put_back(part);
        }
        next.slices.get(slice).map_or(0, |config| room.split(config.share_of(next.rbs)).rbs())
    }
}
