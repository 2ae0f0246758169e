//! Redundant: a copy of every packet on every access, de-duplicated at the far end.
//!
//! TS 23.501 §5.32.8 *Redundant* (Release 18); JUNCTION does not have it. With a loss threshold, copies are
//! made only while even the least lossy access loses more than the threshold, and until that loss has fallen to
//! 80 % of it ([`RETURN_PERCENT`](super::priority_based::RETURN_PERCENT)). Below the threshold, the mode is
//! smallest-delay among the accesses whose own loss does not exceed the threshold; otherwise a fast access with
//! loss would be preferred to one without.
//!
//! A path that flap control holds back carries copies, too. Flap control prevents flows from moving back and
//! forth; a copy moves no flow, and is available when another path fails.

use crate::priority_based::above;
use crate::smallest_delay::{DEFAULT_DWELL_MS, DEFAULT_HYSTERESIS_PERCENT, SmallestDelay};
use crate::{
    Cause, Compile, Exclusion, Input, ModeState, Names, PathId, PathSet, Pick, PolicyError, Steer, Treatment,
    to_ppm,
};

crate::params! {
    /// Parameters of redundant.
    pub struct Params {
        /// Loss of the best access above which packets are duplicated, in percent; default: always duplicated.
        above_loss_percent: Option<f64> = None, range(0.0, 100.0, "%");
    }
}

/// Compiled redundant mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redundant {
    /// Loss threshold in parts per million; `None`: always redundant.
    above_loss_ppm: Option<u32>,
}

impl Redundant {
    const BELOW: SmallestDelay =
        SmallestDelay::new(DEFAULT_HYSTERESIS_PERCENT, DEFAULT_DWELL_MS).leaving_above(100);

    /// Redundant always, or only while the least loss exceeds a threshold in parts per million.
    #[must_use]
    pub const fn new(above_loss_ppm: Option<u32>) -> Self {
        Self { above_loss_ppm }
    }

    /// The paths whose loss does not exceed the threshold; all that are up, if there is none.
    fn clean(threshold: u32, input: &Input<'_>) -> PathSet {
        let clean: PathSet = input.up.iter().filter(|&p| input.live.get(p).loss_ppm <= threshold).collect();
        if clean.is_empty() { input.up } else { clean }
    }
}

impl Compile for Redundant {
    type Params = Params;

    fn compile(params: &Params, _: &Names<'_>) -> Result<Self, PolicyError> {
        Ok(Self::new(params.above_loss_percent.map(to_ppm)))
    }
}

impl Steer for Redundant {
    fn splits(&self) -> bool {
        true
    }

    fn uses_held(&self) -> bool {
        true
    }

    fn pick(&self, state: &mut ModeState, input: &mut Input<'_>) -> Pick {
        // Copies also take paths that flap control holds back.
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
        Self::BELOW.choose(state, Self::clean(threshold, input), input.paths, input.now).into()
    }

    fn treatment(&self, state: &ModeState, _: &Input<'_>) -> Treatment {
        match (self.above_loss_ppm, state.current()) {
            (None, _) => Treatment::Copies,
            _ if state.engaged => Treatment::Copies,
            (_, Some(path)) => Treatment::One(path, Cause::LittleLoss),
            (_, None) => Treatment::NoPath,
        }
    }

    fn excludes(&self, state: &ModeState, input: &Input<'_>, path: PathId) -> Option<Exclusion> {
        let limit_ppm = self.above_loss_ppm.filter(|_| !state.engaged)?;
        let clean = Self::clean(limit_ppm, input);
        if clean.contains(path) {
            return Self::BELOW.refuses(state, clean, input.paths, path);
        }
        Some(Exclusion::Loss { loss_ppm: input.live.get(path).loss_ppm, limit_ppm })
    }
}
