//! The paths that are left because of their loss, for all modes that move flows and for the TCP lane.
//!
//! A path that is up may lose so much that TCP stalls and calls break up, while another one has no loss. Loss
//! by queue overflow does not count, because it indicates use of the path and not its quality
//! (`measure/loss.rs`).
//!
//! ```text
//!   steady loss > limit          left, while another path that is up is not left
//!   steady loss <= 80 % of it    used again
//! ```
//!
//! 3GPP leaves this open: by TS 23.501 §5.32.8, an access is either unavailable, or compared with thresholds in
//! priority-based and load-balance modes only.

use super::priority_based::RETURN_PERCENT;
use super::{Exclusion, PathSet, PathStates};
use crate::PathId;

/// Default of the steady loss above which a path is left, in percent.
pub(crate) const DEFAULT_LEAVE_PERCENT: u8 = 5;

/// The paths that are currently left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lossy(PathSet);

impl Lossy {
    /// None is left.
    pub const NONE: Self = Self(PathSet::EMPTY);

    /// The usable paths of `up`: those whose steady loss does not exceed `limit_percent`, or all if there is
    /// none. 100: loss is ignored.
    pub fn usable(&mut self, up: PathSet, paths: &PathStates, limit_percent: u8) -> PathSet {
        for path in up {
            let loss = u64::from(paths.get(path).steady_loss_percent) * 100;
            let percent = if self.0.contains(path) { RETURN_PERCENT } else { 100 };
            if loss > u64::from(limit_percent) * percent {
                self.0.insert(path);
            } else {
                self.0.remove(path);
            }
        }
        let clean = up.without(self.0);
        if clean.is_empty() { up } else { clean }
    }

    /// Why `path` is currently not usable.
    pub(super) fn why(
        mut self,
        up: PathSet,
        paths: &PathStates,
        limit: u8,
        path: PathId,
    ) -> Option<Exclusion> {
        let loss = paths.get(path).steady_loss_percent;
        (!self.usable(up, paths, limit).contains(path)).then_some(Exclusion::SteadyLoss { loss, limit })
    }
}
