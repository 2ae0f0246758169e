//! Redundant: every packet on every access, de-duplicated at the far end.
//!
//! TS 23.501 §5.32.8 *Redundant* (Release 18); JUNCTION does not have it. With a loss threshold the
//! copies are made only while the loss of even the best access (the one that loses least) is above
//! it, and until that loss has fallen to 80 % of it
//! ([`RETURN_PERCENT`](super::priority_based::RETURN_PERCENT)).
//! Below the threshold the mode is smallest-delay among the accesses whose own loss is not above the
//! threshold: otherwise a fast access that loses packets would be preferred to a clean one.
//!
//! A path that flap control holds back carries copies too. The hold keeps flows from moving to and fro; a copy
//! moves nothing, and is there when the path that is not held is the next one to fail.

use super::priority_based::above;
use super::smallest_delay::{DEFAULT_HYSTERESIS_PERCENT, SmallestDelay};
use super::{Input, ModeState, PathSet, Pick, Steer};
use crate::policy::DEFAULT_DWELL_MS;

/// Compiled redundant mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redundant {
    /// Loss threshold in parts per million; `None`: always redundant.
    above_loss_ppm: Option<u32>,
}

impl Redundant {
    const BELOW: SmallestDelay =
        SmallestDelay::new(DEFAULT_HYSTERESIS_PERCENT, DEFAULT_DWELL_MS).leaving_above(100);

    /// Redundant always, or only while the least loss is above a threshold in parts per million.
    #[must_use]
    pub const fn new(above_loss_ppm: Option<u32>) -> Self {
        Self { above_loss_ppm }
    }
}

impl Steer for Redundant {
    fn pick(&self, state: &mut ModeState, input: &mut Input<'_>) -> Pick {
        // Copies also go by a path that flap control holds back.
        let copies = Pick::Many(input.live.up());
        let Some(threshold) = self.above_loss_ppm else {
            return copies;
        };
        let loss_ppm = |path| input.live.get(path).loss_ppm;
        let least = input.up.iter().map(loss_ppm).min().unwrap_or(0);
        let engaged = above(least, threshold, state.engaged);
        if state.set_engaged(engaged) {
            return copies;
        }
        let clean: PathSet = input.up.iter().filter(|&p| loss_ppm(p) <= threshold).collect();
        Self::BELOW
            .choose(state, if clean.is_empty() { input.up } else { clean }, input.paths, input.now)
            .into()
    }
}
