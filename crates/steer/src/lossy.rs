//! Which paths are left for their loss, by every mode that moves flows and by the TCP lane.
//!
//! A path that is up may lose so much that TCP stands still on it and a call breaks up, while another is clean.
//! Loss by overflow of a queue does not count: it says that the path is used, not that it is bad (`measure/load.rs`).
//!
//! ```text
//!   steady loss > limit          left, while another path that is up is not left
//!   steady loss <= 80 % of it    used again
//! ```
//!
//! 3GPP leaves this open: TS 23.501 §5.32.8 makes an access unavailable or compares it with thresholds of
//! priority-based and load-balance modes only.

use super::priority_based::RETURN_PERCENT;
use super::{Exclusion, PathSet, PathStates};
use crate::PathId;

/// Steady loss above which a path is left where none is configured, in percent.
pub(crate) const DEFAULT_LEAVE_PERCENT: u8 = 5;

/// The paths left for their loss.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lossy(PathSet);

impl Lossy {
    /// None is left.
    pub const NONE: Self = Self(PathSet::EMPTY);

    /// The paths of `up` that may be used: those whose steady loss is not above `limit_percent`; all, if
    /// there is none. 100: loss does not matter.
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

    /// Why `path` would not be among the usable ones now.
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
