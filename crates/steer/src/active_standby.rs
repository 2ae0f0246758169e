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
//! An access whose steady loss exceeds the rule's `leave_above_loss_percent` counts as down here while another
//! loses less ([`Lossy`](super::lossy::Lossy)). The paper has no such rule.
//!
//! The paper has no rule for more than one standby. Here the one with the smallest RTT is used, and kept as
//! long as it is up, so that standbys do not alternate. The return to the primary is immediate. Flap control
//! (JUNCTION §V-E), not the mode, decides when a path counts as up.
//!
//! *Rotation* is for experiments with switching (JUNCTION §VI-C): after a fixed number of packets, traffic
//! moves to the next path that is up, beginning with the primary.

use crate::lossy::DEFAULT_LEAVE_PERCENT;
use crate::{
    Cause, Compile, Exclusion, Input, ModeState, Names, PathId, Pick, PolicyError, Steer, Treatment,
};
use anabranch_rules::AccessName;

crate::params! {
    /// Parameters of active-standby.
    pub struct Params {
        /// Preferred access.
        primary: AccessName;
        /// Number of packets after which traffic moves to the next access that is up; 0: no rotation. Not part of TS 24.193:
        /// for tests of reordering after a switch (JUNCTION §VI-C). A value requested by a UE applies to its uplink only.
        rotate_packets: u32 = 0, quiet();
        /// Sustained loss above which traffic leaves an access while another one loses less, in percent; 100: loss is
        /// ignored.
        leave_above_loss_percent: u8 = DEFAULT_LEAVE_PERCENT, range(0.0, 100.0, "percent"), quiet();
    }
}

/// Compiled active-standby mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActiveStandby {
    /// Preferred path; `None` if the user does not have the preferred access.
    primary: Option<PathId>,
    /// Packets before moving to the next path; 0: no rotation.
    rotate_packets: u32,
    /// Limit of steady loss, percent.
    leave_above_loss: u8,
}

impl ActiveStandby {
    /// Prefers `primary`; with `None` every path is a standby.
    #[must_use]
    pub const fn new(primary: Option<PathId>) -> Self {
        Self { primary, rotate_packets: 0, leave_above_loss: DEFAULT_LEAVE_PERCENT }
    }

    /// Adds rotation among the paths that are up, after this number of packets; 0: none.
    const fn rotating(self, packets: u32) -> Self {
        Self { rotate_packets: packets, ..self }
    }

    /// Adds a limit of steady loss above which a path is left, in percent; 100: loss is ignored.
    #[must_use]
    pub const fn leaving_above(self, percent: u8) -> Self {
        Self { leave_above_loss: percent, ..self }
    }

    /// The current path of the rotation.
    fn turn(&self, input: &Input<'_>) -> Option<PathId> {
        let turn = input.sequence.checked_div(self.rotate_packets)?;
        let primary = self.primary.filter(|path| input.up.contains(*path));
        let others = input.up.iter().filter(|path| Some(*path) != primary);
        let count = input.up.len() as u32;
        primary.into_iter().chain(others).nth(turn.checked_rem(count)? as usize)
    }
}

impl Compile for ActiveStandby {
    type Params = Params;

    fn compile(params: &Params, names: &Names<'_>) -> Result<Self, PolicyError> {
        let mode = Self::new(names.path(&params.primary)?).leaving_above(params.leave_above_loss_percent);
        Ok(mode.rotating(params.rotate_packets))
    }
}

impl Steer for ActiveStandby {
    fn pick(&self, state: &mut ModeState, input: &mut Input<'_>) -> Pick {
        let usable = state.lossy.usable(input.up, input.paths, self.leave_above_loss);
        let up = |path: &PathId| usable.contains(*path);
        let path = self
            .turn(input)
            .or(self.primary.filter(up))
            .or_else(|| state.current().filter(up))
            .or_else(|| input.paths.fastest(usable));
        state.set_current(path, input.now);
        path.into()
    }
    fn treatment(&self, state: &ModeState, _: &Input<'_>) -> Treatment {
        let Some(current) = state.current() else { return Treatment::NoPath };
        let cause = if self.rotate_packets > 0 {
            Cause::Turn
        } else if self.primary == Some(current) {
            Cause::Preferred
        } else {
            Cause::Fallback
        };
        Treatment::One(current, cause)
    }

    fn excludes(&self, state: &ModeState, input: &Input<'_>, path: PathId) -> Option<Exclusion> {
        if self.rotate_packets > 0 || state.current() == Some(path) {
            return None;
        }
        let lossy = state.lossy.why(input.up, input.paths, self.leave_above_loss, path);
        Some(lossy.unwrap_or(Exclusion::Standby))
    }
}
