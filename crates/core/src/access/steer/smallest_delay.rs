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
//! A path that goes down is left at once, whatever the dwell.

use super::{Input, ModeState, PathSet, Pick, Steer};
use crate::access::PathId;

/// Hysteresis where none is configured, in percent.
pub const DEFAULT_HYSTERESIS_PERCENT: u8 = 10;

/// Compiled smallest-delay mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmallestDelay {
    hysteresis_percent: u8,
    dwell_ms: u32,
}

impl SmallestDelay {
    /// `hysteresis_percent` 0 to 99 (larger values count as 99), `dwell_ms` the least time between
    /// two changes that are not forced.
    #[must_use]
    pub const fn new(hysteresis_percent: u8, dwell_ms: u32) -> Self {
        let hysteresis_percent = if hysteresis_percent > 99 { 99 } else { hysteresis_percent };
        Self { hysteresis_percent, dwell_ms }
    }

    /// The rule, among some paths that are up.
    pub(super) fn choose(&self, state: &mut ModeState, among: PathSet, input: &Input<'_>) -> Option<PathId> {
        let best = input.paths.fastest(among)?;
        let path = match state.current().filter(|&p| among.contains(p)) {
            Some(current) if !self.worth_it(state, current, best, input) => current,
            _ => best,
        };
        state.set_current(Some(path), input.now);
        Some(path)
    }

    fn worth_it(&self, state: &ModeState, current: PathId, best: PathId, input: &Input<'_>) -> bool {
        let old = u64::from(input.paths.get(current).rtt_us);
        let new = u64::from(input.paths.get(best).rtt_us);
        new * 100 < old * u64::from(100 - self.hysteresis_percent)
            && state.since_change_ms(input.now) >= self.dwell_ms
    }
}

impl Steer for SmallestDelay {
    fn pick(&self, state: &mut ModeState, input: &Input<'_>) -> Pick {
        self.choose(state, input.up, input).into()
    }
}
