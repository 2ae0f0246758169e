//! Active-standby: the primary while it is available, else the best other one.
//!
//! JUNCTION §V-C3 ("if the retrieved RTT value for the primary path is non-zero ... otherwise traffic
//! is directed to the backup path if available"); TS 23.501 §5.32.8 *Active-Standby*.
//!
//! ```text
//!            primary down                      standby down
//!   primary --------------> fastest other up --------------> next fastest up
//!      ^                        |                                 |
//!      +------ primary up ------+---------------------------------+
//! ```
//!
//! With more than one standby the paper has no rule: the one with the smallest RTT is taken, and kept
//! for as long as it is up, so that standbys do not take turns. Return to the primary is immediate;
//! flap control (JUNCTION §V-E) decides when a path counts as up, not the mode.

use super::{Input, ModeState, Pick, Steer};
use crate::access::PathId;

/// Compiled active-standby mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActiveStandby {
    /// Preferred path; `None` if the user does not have the preferred access.
    primary: Option<PathId>,
}

impl ActiveStandby {
    /// Prefers `primary`; with `None` every path is a standby.
    #[must_use]
    pub const fn new(primary: Option<PathId>) -> Self {
        Self { primary }
    }

    /// The preferred path.
    #[must_use]
    pub const fn primary(&self) -> Option<PathId> {
        self.primary
    }
}

impl Steer for ActiveStandby {
    fn pick(&self, state: &mut ModeState, input: &Input<'_>) -> Pick {
        let up = |path: &PathId| input.up.contains(*path);
        let path = self
            .primary
            .filter(up)
            .or_else(|| state.current().filter(up))
            .or_else(|| input.paths.fastest(input.up));
        state.set_current(path, input.now);
        path.into()
    }
}
