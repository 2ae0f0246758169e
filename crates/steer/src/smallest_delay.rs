//! Smallest-delay: the access with the smallest non-zero RTT.
//!
//! JUNCTION §V-C3 ("the path with the smallest, non-zero RTT is selected"); TS 23.501 §5.32.8
//! *Smallest Delay*.
//!
//! The paper compares raw RTTs per packet, so two paths with similar RTTs alternate with every probe. Here a
//! change requires that
//! * the new RTT is smaller by the *hysteresis*: `new < old * (100 - hysteresis) / 100`, and
//! * the *dwell* time has passed since the last change.
//!
//! A path that goes down is left at once, whatever the dwell time. So is one whose steady loss exceeds the
//! rule's `leave_above_loss_percent` while another loses less.

use crate::lossy::DEFAULT_LEAVE_PERCENT;
use crate::{
    Cause, Compile, Exclusion, Input, ModeState, Names, PathId, PathSet, PathStates, Pick, PolicyError,
    Steer, Treatment,
};
use anabranch_element::time::Instant;

/// Default hysteresis, in percent.
pub const DEFAULT_HYSTERESIS_PERCENT: u8 = 10;
/// Default dwell time, in milliseconds.
pub const DEFAULT_DWELL_MS: u32 = 500;

crate::params! {
    /// Parameters of smallest-delay.
    pub struct Params {
        /// Amount by which the RTT of another access must be smaller for a change, in percent of the current RTT.
        hysteresis_percent: u8 = DEFAULT_HYSTERESIS_PERCENT, range(0.0, 99.0, "");
        /// Minimum time between two changes while both accesses are up, in milliseconds.
        dwell_ms: u32 = DEFAULT_DWELL_MS, range(0.0, 60_000.0, "ms");
        /// Sustained loss above which traffic leaves an access while another one loses less, in percent; 100: loss is
        /// ignored.
        leave_above_loss_percent: u8 = DEFAULT_LEAVE_PERCENT, range(0.0, 100.0, "percent"), quiet();
    }
}

/// Compiled smallest-delay mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmallestDelay {
    hysteresis_percent: u8,
    dwell_ms: u32,
    /// Limit of steady loss, percent.
    leave_above_loss: u8,
}

impl SmallestDelay {
    /// `hysteresis_percent` is 0 to 99 (larger values count as 99); `dwell_ms` is the least time between two
    /// changes that are not forced.
    #[must_use]
    pub const fn new(hysteresis_percent: u8, dwell_ms: u32) -> Self {
        let hysteresis_percent = if hysteresis_percent > 99 { 99 } else { hysteresis_percent };
        Self { hysteresis_percent, dwell_ms, leave_above_loss: DEFAULT_LEAVE_PERCENT }
    }

    /// Adds a limit of steady loss above which a path is left, in percent; 100: loss is ignored.
    #[must_use]
    pub const fn leaving_above(self, percent: u8) -> Self {
        Self { leave_above_loss: percent, ..self }
    }

    /// Chooses among the given paths, which are up.
    pub(super) fn choose(
        &self,
        state: &mut ModeState,
        among: PathSet,
        paths: &PathStates,
        now: Instant,
    ) -> Option<PathId> {
        let among = state.lossy.usable(among, paths, self.leave_above_loss);
        let best = paths.fastest(among)?;
        let path = match state.current().filter(|&p| among.contains(p)) {
            Some(current) if !self.worth_it(state, current, best, paths, now) => current,
            _ => best,
        };
        state.set_current(Some(path), now);
        Some(path)
    }

    /// Why `path` is not the one chosen among these.
    pub(super) fn refuses(
        &self,
        state: &ModeState,
        among: PathSet,
        paths: &PathStates,
        path: PathId,
    ) -> Option<Exclusion> {
        let current = state.current()?;
        if current == path {
            return None;
        }
        let (rtt_us, than_us) = (paths.get(path).rtt_us, paths.get(current).rtt_us);
        let lossy = state.lossy.why(among, paths, self.leave_above_loss, path);
        Some(lossy.unwrap_or(Exclusion::Slower { rtt_us, than_us }))
    }

    fn worth_it(
        &self,
        state: &ModeState,
        current: PathId,
        best: PathId,
        paths: &PathStates,
        now: Instant,
    ) -> bool {
        let old = u64::from(paths.get(current).rtt_us);
        let new = u64::from(paths.get(best).rtt_us);
        new * 100 < old * u64::from(100 - self.hysteresis_percent)
            && state.since_change_ms(now) >= self.dwell_ms
    }
}

impl Compile for SmallestDelay {
    type Params = Params;

    fn compile(params: &Params, _: &Names<'_>) -> Result<Self, PolicyError> {
        let mode = Self::new(params.hysteresis_percent, params.dwell_ms);
        Ok(mode.leaving_above(params.leave_above_loss_percent))
    }
}

impl Steer for SmallestDelay {
    fn pick(&self, state: &mut ModeState, input: &mut Input<'_>) -> Pick {
        self.choose(state, input.up, input.paths, input.now).into()
    }
    fn treatment(&self, state: &ModeState, _: &Input<'_>) -> Treatment {
        state.current().map_or(Treatment::NoPath, |path| Treatment::One(path, Cause::Fastest))
    }

    fn excludes(&self, state: &ModeState, input: &Input<'_>, path: PathId) -> Option<Exclusion> {
        self.refuses(state, input.up, input.paths, path)
    }
}
