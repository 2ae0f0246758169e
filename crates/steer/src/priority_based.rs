//! Priority-based: one access until it is congested, then overflow to the others.
//!
//! JUNCTION §V-C3 ("compare the retrieved RTT value for the high-priority path with a pre-defined
//! threshold; if it surpasses the threshold, the packet overflows to the low-priority path");
//! TS 23.501 §5.32.8 *Priority-based*; thresholds on RTT and packet loss: TS 29.244 §8.2.146 ff.
//!
//! ```text
//!                   RTT > threshold, or loss > threshold, or down
//!    high priority ------------------------------------------------> overflow (smallest-delay of the others)
//!                  <------------------------------------------------
//!                   RTT and loss <= 80 % of their thresholds, and up
//! ```
//!
//! The paper has no hysteresis: it returns when the RTT falls below the same threshold. Here both RTT and loss
//! must fall to [`RETURN_PERCENT`] of their thresholds, so that an RTT near the threshold does not cause a
//! switch with every probe. Without thresholds, the high-priority access is left only when it is down. If no
//! other path is up, a congested high-priority access is used.

use crate::smallest_delay::{DEFAULT_DWELL_MS, DEFAULT_HYSTERESIS_PERCENT, SmallestDelay};
use crate::{
    Cause, Compile, Exclusion, Input, ModeState, Names, PathId, PathSet, PathState, Pick, PolicyError, Steer,
    Treatment, to_ppm,
};
use anabranch_rules::AccessName;

crate::params! {
    /// Parameters of priority-based.
    pub struct Params {
        /// High-priority access.
        primary: AccessName;
        /// RTT above which traffic overflows, in milliseconds.
        rtt_ms: Option<f64> = None, range(0.001, 60_000.0, "ms");
        /// Packet loss above which traffic overflows, in percent.
        loss_percent: Option<f64> = None, range(0.0, 100.0, "%");
    }
}

/// Percentage of a threshold to which RTT or loss must fall before traffic returns.
pub const RETURN_PERCENT: u64 = 80;

/// Compiled priority-based mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PriorityBased {
    primary: Option<PathId>,
    rtt_us: u32,
    loss_ppm: u32,
}

impl PriorityBased {
    /// How overflowing packets choose among the other paths: smallest-delay with its defaults.
    const OVERFLOW: SmallestDelay = SmallestDelay::new(DEFAULT_HYSTERESIS_PERCENT, DEFAULT_DWELL_MS);

    /// Prefers `primary` while its RTT is at most `rtt_us` and its loss at most `loss_ppm`.
    #[must_use]
    pub const fn new(primary: Option<PathId>, rtt_us: Option<u32>, loss_ppm: Option<u32>) -> Self {
        const fn or_never(threshold: Option<u32>) -> u32 {
            match threshold {
                Some(threshold) => threshold,
                None => u32::MAX,
            }
        }
        Self { primary, rtt_us: or_never(rtt_us), loss_ppm: or_never(loss_ppm) }
    }

    fn congested(&self, state: PathState, already: bool) -> bool {
        above(state.rtt_us, self.rtt_us, already) || above(state.loss_ppm, self.loss_ppm, already)
    }
}

/// The threshold of `value`, if `value` counts as above it.
fn passed(value: u32, threshold: u32, already: bool) -> Option<u32> {
    above(value, threshold, already).then_some(threshold)
}

/// Whether `value` counts as above `threshold`; `already`: whether it did before.
pub(super) fn above(value: u32, threshold: u32, already: bool) -> bool {
    let percent = if already { RETURN_PERCENT } else { 100 };
    threshold != u32::MAX && u64::from(value) * 100 > u64::from(threshold) * percent
}

impl Compile for PriorityBased {
    type Params = Params;

    fn compile(params: &Params, names: &Names<'_>) -> Result<Self, PolicyError> {
        let rtt_us = params.rtt_ms.map(|ms| (ms * 1e3).round() as u32);
        Ok(Self::new(names.path(&params.primary)?, rtt_us, params.loss_percent.map(to_ppm)))
    }
}

impl Steer for PriorityBased {
    fn splits(&self) -> bool {
        true
    }

    fn pick(&self, state: &mut ModeState, input: &mut Input<'_>) -> Pick {
        let primary = self.primary.filter(|&p| input.up.contains(p));
        if let Some(primary) = primary {
            let congested = self.congested(input.paths.get(primary), state.engaged);
            if !state.set_engaged(congested) {
                return Pick::One(primary);
            }
        }
        let others = input.up.without(primary.map_or(PathSet::EMPTY, PathSet::single));
        Self::OVERFLOW.choose(state, others, input.paths, input.now).or(primary).into()
    }
    fn treatment(&self, state: &ModeState, input: &Input<'_>) -> Treatment {
        match self.primary.filter(|&p| input.up.contains(p)) {
            Some(primary) if !self.congested(input.paths.get(primary), state.engaged) => {
                Treatment::One(primary, Cause::Preferred)
            }
            primary => {
                let used = state.current().filter(|&p| input.up.contains(p)).or(primary);
                used.map_or(Treatment::NoPath, |path| Treatment::One(path, Cause::Fallback))
            }
        }
    }

    fn excludes(&self, state: &ModeState, input: &Input<'_>, path: PathId) -> Option<Exclusion> {
        let Treatment::One(used, cause) = self.treatment(state, input) else { return None };
        let PathState { rtt_us, loss_ppm, .. } = input.paths.get(path);
        if used == path {
            None
        } else if self.primary == Some(path) {
            let by_loss = passed(loss_ppm, self.loss_ppm, state.engaged);
            let by_loss = by_loss.map(|limit_ppm| Exclusion::Loss { loss_ppm, limit_ppm });
            let by_rtt = passed(rtt_us, self.rtt_us, state.engaged);
            by_loss.or_else(|| by_rtt.map(|limit_us| Exclusion::RoundTrip { rtt_us, limit_us }))
        } else if cause == Cause::Preferred {
            Some(Exclusion::Standby)
        } else {
            let others = input.up.without(self.primary.map_or(PathSet::EMPTY, PathSet::single));
            Self::OVERFLOW.refuses(state, others, input.paths, path)
        }
    }
}
