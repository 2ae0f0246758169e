//! Smallest-delay: the access with the smallest non-zero RTT.
//!
//! JUNCTION §V-C3 ("the path with the smallest, non-zero RTT is selected"); TS 23.501 §5.32.8
//! *Smallest Delay*.
//!
//! The paper compares raw RTTs per packet; two paths of like RTT then change places with every
//! probe. Here a change needs both
//! * the new RTT below the old one by the *hysteresis*: `new < old * (100 - hysteresis) / 100`, and
//! * the *dwell* time to have passed since the last change.
//!
//! A path that goes down is left at once, whatever the dwell; and so is one that steadily loses more than the rule's
//! `leave_above_loss_percent` while another loses less.

use super::{Input, ModeState, PathSet, PathStates, Pick, Steer};
use crate::access::PathId;
use crate::policy::DEFAULT_LEAVE_PERCENT;
use crate::time::Instant;

/// Hysteresis where none is configured, in percent.
pub const DEFAULT_HYSTERESIS_PERCENT: u8 = 10;

/// Compiled smallest-delay mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmallestDelay {
    hysteresis_percent: u8,
    dwell_ms: u32,
    /// Percent.
    leave_above_loss: u8,
}

impl SmallestDelay {
    /// `hysteresis_percent` 0 to 99 (larger values count as 99), `dwell_ms` the least time between
    /// two changes that are not forced.
    #[must_use]
    pub const fn new(hysteresis_percent: u8, dwell_ms: u32) -> Self {
        let hysteresis_percent = if hysteresis_percent > 99 { 99 } else { hysteresis_percent };
        Self { hysteresis_percent, dwell_ms, leave_above_loss: DEFAULT_LEAVE_PERCENT }
    }

    /// The same, but a path that steadily loses more than this is left, in percent; 100: loss does not matter.
    #[must_use]
    pub const fn leaving_above(self, percent: u8) -> Self {
        Self { leave_above_loss: percent, ..self }
    }

    /// The rule, among some paths that are up.
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

impl Steer for SmallestDelay {
    fn pick(&self, state: &mut ModeState, input: &mut Input<'_>) -> Pick {
        self.choose(state, input.up, input.paths, input.now).into()
    }
}
