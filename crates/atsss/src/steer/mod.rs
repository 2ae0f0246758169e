//! Steering modes: which path, or paths, the next packet takes.
//!
//! JUNCTION §II-A and §V-C3; TS 23.501 §5.32.8; TS 24.193 §6.1.3. One file per mode, one trait
//! ([`Steer`]), enum dispatch. The input of every mode is the same *unified steering structure*
//! (JUNCTION §V-C2): one [`PathStates`] per user, shared by all sessions and rules of that user.
//!
//! ```text
//!   policy::SteeringMode --compile(names -> PathIds)--> Mode        shared by all users of one layout
//!                                                         |
//!   PathStates (per user) ---+                            v
//!   ModeState  (session, rule) --> ModeState::pick(mode, paths, sequence, flow hash, now) --> Pick
//! ```
//!
//! Every mode keeps two promises, whatever the number of paths and whichever are down: a path that is
//! down is never picked, and a path is picked whenever one is up.
//!
//! Flap control holds back a path that came back among flapping ones, so that flows are not moved to and fro.
//! Modes that do not move flows ([`Redundant`], [`LoadBalance`] per packet) use it all the same: they see the
//! paths both ways ([`View`]).

mod active_standby;
mod autonomous;
mod coded;
mod compile;
mod explain;
mod load_balance;
mod lossy;
mod path;
mod priority_based;
mod record;
mod redundant;
mod smallest_delay;

pub use active_standby::ActiveStandby;
use autonomous::Lane;
pub use coded::Coded;
pub use compile::{MAX_LOSS_PERCENT, PolicyError};
pub use explain::{Because, Doing, Exclusion, Explanation, LawCounts, LawView, Pause};
pub use load_balance::LoadBalance;
use lossy::Lossy;
pub use path::{PathIter, PathSet, PathState, PathStates};
pub use priority_based::{PriorityBased, RETURN_PERCENT};
pub(crate) use record::Left;
pub use redundant::Redundant;
pub use smallest_delay::{DEFAULT_HYSTERESIS_PERCENT, SmallestDelay};

use crate::PathId;
use crate::view::{FlowSteer, LoadView, wrapping_ms};
use anabranch_element::time::Instant;

/// What a mode decided for one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pick {
    /// No path is up.
    None,
    /// One path.
    One(PathId),
    /// A copy on each of these paths (redundant mode); never empty.
    Many(PathSet),
}

impl Pick {
    /// The picked paths as a set.
    #[must_use]
    pub const fn paths(self) -> PathSet {
        match self {
            Self::None => PathSet::EMPTY,
            Self::One(path) => PathSet::single(path),
            Self::Many(set) => set,
        }
    }
}

impl From<Option<PathId>> for Pick {
    fn from(path: Option<PathId>) -> Self {
        path.map_or(Self::None, Self::One)
    }
}

/// A steering mode compiled to path ids; immutable, shared by all users with the same accesses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// See [`ActiveStandby`].
    ActiveStandby(ActiveStandby),
    /// See [`LoadBalance`].
    LoadBalance(LoadBalance),
    /// See [`SmallestDelay`].
    SmallestDelay(SmallestDelay),
    /// See [`PriorityBased`].
    PriorityBased(PriorityBased),
    /// See [`Redundant`].
    Redundant(Redundant),
    /// See [`Coded`].
    Coded(Coded),
}

impl Mode {
    /// The mode of last resort: active-standby with path 0 as the primary.
    pub const DEFAULT: Self = Self::ActiveStandby(ActiveStandby::new(Some(0)));

    /// Whether packets of one flow may be on several paths at the same time, so that they need
    /// sequence numbers (JUNCTION §V-C3, "Design limitation").
    #[must_use]
    pub const fn splits(&self) -> bool {
        match self {
            Self::ActiveStandby(_) | Self::SmallestDelay(_) => false,
            Self::LoadBalance(mode) => mode.per_packet(),
            Self::PriorityBased(_) | Self::Redundant(_) | Self::Coded(_) => true,
        }
    }

    /// Whether the unit that is steered is a flow, which then keeps its path while that is up.
    #[must_use]
    pub const fn per_flow(&self) -> bool {
        matches!(self, Self::LoadBalance(mode) if !mode.per_packet())
    }

    /// Whether the mode uses a path that flap control holds back: a copy more, or a share, moves no flow.
    #[must_use]
    pub const fn uses_held(&self) -> bool {
        match self {
            Self::Redundant(_) => true,
            Self::LoadBalance(mode) => mode.per_packet(),
            _ => false,
        }
    }

    /// Whether the mode decides from the load of the paths.
    #[must_use]
    pub const fn is_autonomous(&self) -> bool {
        matches!(self, Self::LoadBalance(mode) if mode.is_autonomous())
    }

    /// Whether the mode may send several copies of one packet.
    #[must_use]
    pub const fn duplicates(&self) -> bool {
        matches!(self, Self::Redundant(_))
    }

    /// The mode's name as written in configuration.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::ActiveStandby(_) => "active-standby",
            Self::LoadBalance(_) => "load-balance",
            Self::SmallestDelay(_) => "smallest-delay",
            Self::PriorityBased(_) => "priority-based",
            Self::Redundant(_) => "redundant",
            Self::Coded(_) => "coded",
        }
    }

    fn steer(&self) -> &dyn Steer {
        match self {
            Self::ActiveStandby(mode) => mode,
            Self::LoadBalance(mode) => mode,
            Self::SmallestDelay(mode) => mode,
            Self::PriorityBased(mode) => mode,
            Self::Redundant(mode) => mode,
            Self::Coded(mode) => mode,
        }
    }

    /// Coded mode's parameters.
    #[must_use]
    pub const fn coded(&self) -> Option<&Coded> {
        match self {
            Self::Coded(mode) => Some(mode),
            _ => None,
        }
    }
}

/// The user's paths as a mode sees them (see `docs/atsss-steering.md`).
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// As flap control lets them be seen: a path that came back while they flap is down here, and an RTT stays
    /// as it was. What moves flows decides from this. Up here is up in `live`, too; nothing is up here only
    /// if nothing is up there.
    pub steady: &'a PathStates,
    /// As they are now. What does not move flows decides from this.
    pub live: &'a PathStates,
    /// Their load by path id, as far as it is known; only the autonomous mode reads it.
    pub loads: &'a [LoadView],
}

/// What modes may know of a packet.
#[derive(Debug)]
pub struct Packet<'a> {
    /// Sequence number it will carry; any counter that goes up by one per packet will do.
    pub sequence: u32,
    /// Hash of its flow, well mixed.
    pub flow_hash: u64,
    /// Hash of the far host's address.
    pub remote: u64,
    /// Its length in bytes.
    pub bytes: u32,
    /// What steering remembers of its flow.
    pub flow: &'a mut FlowSteer,
}

impl<'a> From<&'a PathStates> for View<'a> {
    /// Paths that do not flap.
    fn from(paths: &'a PathStates) -> Self {
        Self { steady: paths, live: paths, loads: &[] }
    }
}

/// What every mode decides from.
#[derive(Debug)]
pub struct Input<'a> {
    /// The user's path states, as flap control lets them be seen.
    pub paths: &'a PathStates,
    /// The paths that are up in `paths`; not empty when a mode is asked.
    pub up: PathSet,
    /// The user's path states as they are now.
    pub live: &'a PathStates,
    /// Sequence number the packet will carry.
    pub sequence: u32,
    /// Hash of the packet's flow, well mixed.
    pub flow_hash: u64,
    /// Hash of the far host's address.
    pub remote: u64,
    /// Bytes of the packet.
    pub bytes: u32,
    /// What steering remembers of its flow.
    pub flow: &'a mut FlowSteer,
    /// See [`View::loads`].
    pub loads: &'a [LoadView],
    /// The current time.
    pub now: Instant,
}

impl<'a> Input<'a> {
    fn new(view: View<'a>, packet: Packet<'a>, now: Instant) -> Self {
        let View { steady: paths, live, loads } = view;
        let Packet { sequence, flow_hash, remote, bytes, flow } = packet;
        Self { paths, up: paths.up(), live, sequence, flow_hash, remote, bytes, flow, loads, now }
    }

    /// The load of a path; nothing is known of one that is not in the table.
    fn load(&self, path: PathId) -> LoadView {
        self.loads.get(usize::from(path)).copied().unwrap_or(LoadView::UNKNOWN)
    }
}

/// One steering mode. `input.up` is never empty.
pub trait Steer {
    /// Decides for one packet.
    fn pick(&self, state: &mut ModeState, input: &mut Input<'_>) -> Pick;

    /// What the mode does now with the packets of a rule; for people.
    fn doing(&self, state: &ModeState, input: &Input<'_>) -> Doing;

    /// Why a path that is up, and not held back, is not used now, or no more than it is; for people.
    fn excludes(&self, state: &ModeState, input: &Input<'_>, path: PathId) -> Option<Exclusion>;
}

/// What a mode remembers between packets of one (session, rule): 16 bytes until an autonomous mode runs.
#[derive(Debug, Clone, Default)]
pub struct ModeState {
    /// State of autonomous load-balance; allocated by its first packet.
    lane: Option<Box<Lane>>,
    /// Milliseconds (wrapping) at which `current` or `overflow` last changed.
    changed_ms: u32,
    /// Path in use, plus one; 0 = none yet.
    current: u8,
    /// Priority-based: overflowing. Redundant: above the loss threshold.
    engaged: bool,
    /// Paths that are left for their loss.
    lossy: Lossy,
}

impl ModeState {
    /// A state that has not seen a packet.
    #[must_use]
    pub const fn new() -> Self {
        Self { lane: None, changed_ms: 0, current: 0, engaged: false, lossy: Lossy::NONE }
    }

    /// Picks the path or paths of one packet.
    ///
    /// Does not allocate, except once for the first
    /// packet of an autonomous load-balance mode.
    pub fn pick<'a>(
        &mut self,
        mode: &Mode,
        paths: impl Into<View<'a>>,
        packet: Packet<'a>,
        now: Instant,
    ) -> Pick {
        let input = &mut Input::new(paths.into(), packet, now);
        if input.up.is_empty() {
            return Pick::None;
        }
        match mode {
            Mode::ActiveStandby(mode) => mode.pick(self, input),
            Mode::LoadBalance(mode) => mode.pick(self, input),
            Mode::SmallestDelay(mode) => mode.pick(self, input),
            Mode::PriorityBased(mode) => mode.pick(self, input),
            Mode::Redundant(mode) => mode.pick(self, input),
            Mode::Coded(mode) => mode.pick(self, input),
        }
    }

    /// The path in use by a mode that switches, `None` before its first packet.
    #[must_use]
    pub const fn current(&self) -> Option<PathId> {
        self.current.checked_sub(1)
    }

    /// Whether a priority-based mode is overflowing, or a redundant mode is above its loss threshold.
    #[must_use]
    pub const fn engaged(&self) -> bool {
        self.engaged
    }

    fn set_current(&mut self, path: Option<PathId>, now: Instant) {
        let current = path.map_or(0, |p| p + 1);
        if self.current != current {
            self.current = current;
            self.changed_ms = wrapping_ms(now);
        }
    }

    fn set_engaged(&mut self, engaged: bool) -> bool {
        self.engaged = engaged;
        engaged
    }

    /// Milliseconds since the last change, modulo 49 days.
    fn since_change_ms(&self, now: Instant) -> u32 {
        wrapping_ms(now).wrapping_sub(self.changed_ms)
    }
}

#[cfg(test)]
mod tests;
