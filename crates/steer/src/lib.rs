//! Steering modes: which path, or paths, the next packet takes.
//!
//! JUNCTION §II-A and §V-C3; TS 23.501 §5.32.8; TS 24.193 §6.1.3. One file per mode, one trait
//! ([`Steer`]), enum dispatch. The input of every mode is the same *unified steering structure*
//! (JUNCTION §V-C2): one [`PathStates`] per user, shared by all sessions and rules of that user.
//!
//! ```text
//!   SteeringMode --compile(names -> PathIds)--> Mode                shared by all users of one layout
//!                                                 |
//!   PathStates (per user) ---+                    v
//!   ModeState  (session, rule) --> ModeState::pick(mode, paths, sequence, flow hash, now) --> Pick
//! ```
//!
//! Every mode keeps two promises, whatever the number of paths and whichever are down: a path that is
//! down is never picked, and a path is picked whenever one is up.
//!
//! Flap control holds back a path that came back among flapping ones, so that flows are not moved to and fro.
//! Modes that do not move flows ([`redundant`], [`load_balance`] per packet) use it all the same: they see the
//! paths both ways ([`View`]).
//!
//! ```
//! use anabranch_steer::{Rule, SteeringMode};
//!
//! let rule: Rule = serde_json::from_str(
//!     r#"{ "name": "calls", "filter": { "protocol": "udp" }, "steering": { "mode": "redundant" } }"#,
//! )?;
//! assert!(matches!(rule.steering, SteeringMode::Redundant(_)));
//! # Ok::<(), serde_json::Error>(())
//! ```
//!
//! To add one: a file with its parameters and an implementation of [`Steer`] and [`Compile`], and one line in the registry
//! below (docs/add-an-algorithm.md).
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod autonomous;
mod compile;
mod explain;
mod lossy;
pub mod measure;
mod params;
mod path;
mod record;
mod rule;
pub mod token_bucket;
mod view;

use autonomous::Lane;
pub use compile::{Names, PolicyError};
pub use explain::{Because, Doing, Exclusion, Explanation, LawCounts, LawView, Pause};
pub use lossy::Lossy;
pub use params::{Given, Kind, Param, Params, Value};
pub use path::{PathIter, PathSet, PathState, PathStates};
pub use record::Left;
pub use rule::{Functionality, Rule, chained};
pub use view::{ACKNOWLEDGEMENT_BYTES, Arrived, DownReason, FlowSteer, LoadView};

use anabranch_element::time::Instant;
use anabranch_rules::AccessName;
use view::wrapping_ms;

/// Index of an access path within a session; equal on both ends.
pub type PathId = u8;

/// Most paths one session may have.
pub const MAX_PATHS: usize = 8;

/// What a mode decided for one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pick {
    /// No path is up.
    None,
    /// All of the packet by this path.
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

/// Declares the modes.
macro_rules! registry {
    ($( $module:ident $name:literal $Variant:ident($Mode:ty) $about:literal; )+) => {
        $( pub mod $module; )+

        anabranch_element::names! {
            /// The modes by name.
            pub enum ModeName("steering mode") { $( $Variant = $name, $about; )+ }
        }

        /// How the packets of a rule are spread over the accesses, as written (JUNCTION §II-A; TS 23.501 §5.32.8).
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(tag = "mode")]
        pub enum SteeringMode {
            $( #[doc = $about] #[serde(rename = $name)] $Variant(<$Mode as Compile>::Params), )+
        }

        $(
            impl From<<$Mode as Compile>::Params> for SteeringMode {
                fn from(params: <$Mode as Compile>::Params) -> Self {
                    Self::$Variant(params)
                }
            }
        )+

        impl ModeName {
            /// Its parameters, in the order they are written in.
            #[must_use]
            pub fn params(self) -> &'static [Param] {
                match self { $( Self::$Variant => <$Mode as Compile>::Params::all(), )+ }
            }
        }

        impl SteeringMode {
            /// The mode's name as written in configuration.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $( Self::$Variant(_) => $name, )+ }
            }

            /// The accesses the mode names, each with the parameter.
            pub fn accesses(&self) -> impl Iterator<Item = (&'static str, &AccessName)> {
                let (params, values) = match self {
                    $( Self::$Variant(params) => (<$Mode as Compile>::Params::all(), params.values()), )+
                };
                params.iter().zip(values).flat_map(|(param, given)| {
                    given.accesses.into_iter().map(|access| (param.name, access))
                })
            }

            fn compile(&self, names: &Names<'_>) -> Result<Mode, PolicyError> {
                Ok(match self {
                    $( Self::$Variant(params) => {
                        params.check($name)?;
                        Mode::$Variant(<$Mode>::compile(params, names)?)
                    } )+
                })
            }
        }

        /// A steering mode compiled to path ids; immutable, shared by all users with the same accesses.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Mode { $( #[doc = $about] $Variant($Mode), )+ }

        impl Mode {
            /// The mode's name as written in configuration.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $( Self::$Variant(_) => $name, )+ }
            }
        }

        impl Steer for Mode {
            fn pick(&self, state: &mut ModeState, input: &mut Input<'_>) -> Pick {
                match self { $( Self::$Variant(mode) => mode.pick(state, input), )+ }
            }
            fn doing(&self, state: &ModeState, input: &Input<'_>) -> Doing {
                match self { $( Self::$Variant(mode) => mode.doing(state, input), )+ }
            }
            fn excludes(&self, state: &ModeState, input: &Input<'_>, path: PathId) -> Option<Exclusion> {
                match self { $( Self::$Variant(mode) => mode.excludes(state, input, path), )+ }
            }
            #[inline]
            fn splits(&self) -> bool {
                match self { $( Self::$Variant(mode) => mode.splits(), )+ }
            }
            #[inline]
            fn per_flow(&self) -> bool {
                match self { $( Self::$Variant(mode) => mode.per_flow(), )+ }
            }
            fn uses_held(&self) -> bool {
                match self { $( Self::$Variant(mode) => mode.uses_held(), )+ }
            }
            #[inline]
            fn is_autonomous(&self) -> bool {
                match self { $( Self::$Variant(mode) => mode.is_autonomous(), )+ }
            }
            #[inline]
            fn coded(&self) -> Option<&coded::Coded> {
                match self { $( Self::$Variant(mode) => mode.coded(), )+ }
            }
        }
    };
}

// One line for each: file, name, variant, type, what it is. The first is the default of a name.
registry! {
    active_standby "active-standby" ActiveStandby(active_standby::ActiveStandby) "The primary access while it is available, else the best other one.";
    load_balance "load-balance" LoadBalance(load_balance::LoadBalance) "A share per access; an access that is down is skipped and its share redistributed.";
    smallest_delay "smallest-delay" SmallestDelay(smallest_delay::SmallestDelay) "The access with the smallest non-zero RTT.";
    priority_based "priority-based" PriorityBased(priority_based::PriorityBased) "The high-priority access until its RTT or loss passes a threshold, then overflow to the others.";
    redundant "redundant" Redundant(redundant::Redundant) "Every packet on every access, de-duplicated at the far end.";
    coded "coded" Coded(coded::Coded) "Every packet once, on the best access, and repair packets over the latest ones on another. Not of TS 24.193.";
}

impl SteeringMode {
    /// Whether packets of one flow may be on several paths at the same time; a mode with a parameter out of its range does
    /// nothing.
    #[must_use]
    pub fn splits(&self) -> bool {
        let known: Vec<AccessName> = self.accesses().map(|(_, access)| access.clone()).collect();
        Mode::compile_for(self, &[], &known).is_ok_and(|mode| mode.splits())
    }
}

impl Mode {
    /// The mode of last resort: active-standby with path 0 as the primary.
    pub const DEFAULT: Self = Self::ActiveStandby(active_standby::ActiveStandby::new(Some(0)));

    /// Load-balance by the autonomous law, packet by packet, over whatever paths are up, where the far end does not put packets in
    /// order: none overflows.
    #[must_use]
    pub fn autonomous_in_order() -> Self {
        let per = load_balance::Granularity::Packet;
        Self::LoadBalance(load_balance::LoadBalance::new(&[], per, true).in_order())
    }

    /// Compiles a policy for a user with these accesses. Every access the policy names must be there.
    ///
    /// # Errors
    /// [`PolicyError`] names the access, weight or threshold that is wrong, and what would be valid.
    pub fn compile(policy: &SteeringMode, accesses: &[(PathId, AccessName)]) -> Result<Self, PolicyError> {
        Self::compile_for(policy, accesses, &[])
    }

    /// Compiles a policy that is shared by users with different accesses: an access that is not in
    /// `accesses` but in `known` is one this user does not have, and treated as one that is down.
    ///
    /// # Errors
    /// As [`Self::compile`], for names that are in neither list.
    pub fn compile_for(
        policy: &SteeringMode,
        accesses: &[(PathId, AccessName)],
        known: &[AccessName],
    ) -> Result<Self, PolicyError> {
        policy.compile(&Names::new(policy.name(), accesses, known)?)
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
    /// Whether its flow is no TCP connection.
    pub datagram: bool,
    /// Whether it ends the connection in its direction.
    pub ends: bool,
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
    /// Whether its flow is no TCP connection.
    pub datagram: bool,
    /// Whether it ends the connection in its direction.
    pub ends: bool,
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
        let Packet { sequence, flow_hash, remote, bytes, datagram, ends, flow } = packet;
        Self {
            paths,
            up: paths.up(),
            live,
            sequence,
            flow_hash,
            remote,
            bytes,
            datagram,
            ends,
            flow,
            loads,
            now,
        }
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

    /// Whether packets of one flow may be on several paths at the same time, so that they need
    /// sequence numbers (JUNCTION §V-C3, "Design limitation").
    fn splits(&self) -> bool {
        false
    }

    /// Whether the unit that is steered is a flow, which then keeps its path while that is up.
    fn per_flow(&self) -> bool {
        false
    }

    /// Whether the mode uses a path that flap control holds back: a copy more, or a share, moves no flow.
    fn uses_held(&self) -> bool {
        false
    }

    /// Whether the mode decides from the load of the paths.
    fn is_autonomous(&self) -> bool {
        false
    }

    /// The parameters of a mode whose packets are repaired.
    fn coded(&self) -> Option<&coded::Coded> {
        None
    }
}

impl ModeName {
    /// Each parameter of any mode once, with the names of the modes that have it.
    #[must_use]
    pub fn all_params() -> Vec<(&'static Param, Vec<&'static str>)> {
        let mut all: Vec<(&Param, Vec<&str>)> = Vec::new();
        for mode in Self::ALL {
            for param in mode.params() {
                match all.iter_mut().find(|(known, _)| known.name == param.name) {
                    Some((_, modes)) => modes.push(mode.name()),
                    None => all.push((param, vec![mode.name()])),
                }
            }
        }
        all
    }
}

/// How a mode that is written becomes one that decides.
pub trait Compile: Steer + Sized {
    /// Its parameters as people write them.
    type Params: Params;

    /// The mode with these parameters, whose numbers are in their ranges.
    ///
    /// # Errors
    /// An access that is not there; what else is wrong.
    fn compile(params: &Self::Params, names: &Names<'_>) -> Result<Self, PolicyError>;
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
        mode: &impl Steer,
        paths: impl Into<View<'a>>,
        packet: Packet<'a>,
        now: Instant,
    ) -> Pick {
        let input = &mut Input::new(paths.into(), packet, now);
        if input.up.is_empty() {
            return Pick::None;
        }
        mode.pick(self, input)
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

/// A share in percent in parts per million.
fn to_ppm(percent: f64) -> u32 {
    (percent * 1e4).round() as u32
}

#[cfg(test)]
mod tests;
