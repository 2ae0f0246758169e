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
//! Two guarantees hold in every mode, for any number of paths in any state: a path that is down is never
//! chosen, and a path is always chosen if any is up.
//!
//! Flap control holds back a path that came back while paths flap, so that flows do not move back and forth.
//! Modes that move no flows ([`redundant`], [`load_balance`] per packet) use such a path nevertheless: a
//! [`View`] has both states.
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
//! To add a mode: a file with its parameters and an implementation of [`Steer`] and [`Compile`], and one line
//! in the registry below (docs/add-an-algorithm.md).
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

use autonomous::LawState;
pub use autonomous::is_protected;
pub use compile::{Names, PolicyError};
pub use explain::{Cause, Exclusion, Explanation, LawCounts, LawView, Pause, Treatment};
pub use lossy::Lossy;
pub use params::{Param, ParamKind, ParamValue, Params, Value};
pub use path::{PathIter, PathSet, PathState, PathStates};
pub use record::Departures;
pub use rule::{Functionality, JointRule, OF_ALL, OF_UPF, Rule, chained, joint};
pub use view::{ACKNOWLEDGEMENT_BYTES, Arrived, DownReason, FlowSteer, LoadView};

use anabranch_element::time::Instant;
use anabranch_rules::AccessName;
use view::wrapping_ms;

/// Index of an access path within a session; equal on both ends.
pub type PathId = u8;

/// Most paths one session may have.
pub const MAX_PATHS: usize = 8;

/// The decision of a mode for one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pick {
    /// No path is up.
    None,
    /// The packet takes this path.
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

        /// How the packets of a rule are spread over the accesses, as in the configuration (JUNCTION §II-A; TS
        /// 23.501 §5.32.8).
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
            /// The parameters in the order of their declaration.
            #[must_use]
            pub fn params(self) -> &'static [Param] {
                match self { $( Self::$Variant => <$Mode as Compile>::Params::all(), )+ }
            }
        }

        impl SteeringMode {
            /// The mode's name in the configuration.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $( Self::$Variant(_) => $name, )+ }
            }

            /// The accesses that the mode names, each with its parameter.
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
            /// The mode's name in the configuration.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $( Self::$Variant(_) => $name, )+ }
            }
        }

        impl Steer for Mode {
            fn pick(&self, state: &mut ModeState, input: &mut Input<'_>) -> Pick {
                match self { $( Self::$Variant(mode) => mode.pick(state, input), )+ }
            }
            fn treatment(&self, state: &ModeState, input: &Input<'_>) -> Treatment {
                match self { $( Self::$Variant(mode) => mode.treatment(state, input), )+ }
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
            #[inline]
            fn protection(&self, state: &ModeState, remote: u64, load: &LoadView) -> Option<coded::Coded> {
                match self { $( Self::$Variant(mode) => mode.protection(state, remote, load), )+ }
            }
        }
    };
}

// One line per mode: file, name, variant, type, description. The first is the default of a name.
registry! {
    active_standby "active-standby" ActiveStandby(active_standby::ActiveStandby) "The primary access while it is available, otherwise the best other one.";
    load_balance "load-balance" LoadBalance(load_balance::LoadBalance) "A share per access; the share of an access that is down is redistributed.";
    smallest_delay "smallest-delay" SmallestDelay(smallest_delay::SmallestDelay) "The access with the smallest non-zero RTT.";
    priority_based "priority-based" PriorityBased(priority_based::PriorityBased) "The high-priority access until its RTT or loss exceeds a threshold; traffic then overflows to the others.";
    redundant "redundant" Redundant(redundant::Redundant) "Every packet on every access, with duplicates removed at the far end.";
    coded "coded" Coded(coded::Coded) "Every packet once, on the best access, and repair packets for the latest ones on another. Not part of TS 24.193.";
}

impl SteeringMode {
    /// Whether packets of one flow may be on several paths at the same time; `false` if a parameter is out of
    /// range.
    #[must_use]
    pub fn splits(&self) -> bool {
        let known: Vec<AccessName> = self.accesses().map(|(_, access)| access.clone()).collect();
        Mode::compile_for(self, &[], &known).is_ok_and(|mode| mode.splits())
    }
}

impl Mode {
    /// The mode of last resort: active-standby with path 0 as the primary.
    pub const DEFAULT: Self = Self::ActiveStandby(active_standby::ActiveStandby::new(Some(0)));

    /// Load-balance by the autonomous law, per packet, over all paths that are up, for a far end that does not
    /// restore order: no packet overflows.
    #[must_use]
    pub fn autonomous_in_order() -> Self {
        let per = load_balance::Granularity::Packet;
        Self::LoadBalance(load_balance::LoadBalance::new(&[], per, true).in_order())
    }

    /// Compiles a policy for a user with these accesses. All accesses that the policy names must exist.
    ///
    /// # Errors
    /// [`PolicyError`] names the invalid access, weight or threshold, and the valid values.
    pub fn compile(policy: &SteeringMode, accesses: &[(PathId, AccessName)]) -> Result<Self, PolicyError> {
        Self::compile_for(policy, accesses, &[])
    }

    /// Compiles a policy that is shared by users with different accesses. An access in `known` but not in
    /// `accesses` is one that this user lacks; it is treated as down.
    ///
    /// # Errors
    /// As [`Self::compile`], for names in neither list.
    pub fn compile_for(
        policy: &SteeringMode,
        accesses: &[(PathId, AccessName)],
        known: &[AccessName],
    ) -> Result<Self, PolicyError> {
        policy.compile(&Names::new(policy.name(), accesses, known)?)
    }
}

/// The user's paths in the form used by modes (docs/atsss-steering.md, "Path state common to all modes").
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The steady view, with flap control applied: a path held back is down, and RTTs do not change. For
    /// decisions that move flows. A path that is up here is also up in `live`. If no path is up here, none is
    /// up there.
    pub steady: &'a PathStates,
    /// The live view: the current states. For decisions that move no flows.
    pub live: &'a PathStates,
    /// The path models by path id, as far as known; used only by the autonomous mode.
    pub loads: &'a [LoadView],
    /// Whether the far end restores lost packets from repair packets, and the order of packets.
    pub restores: bool,
}

/// The properties of a packet that modes may use.
#[derive(Debug)]
pub struct Packet<'a> {
    /// The sequence number it will carry, or any counter that increases by one per packet.
    pub sequence: u32,
    /// Hash of its flow, well mixed.
    pub flow_hash: u64,
    /// Hash of the remote host's address.
    pub remote: u64,
    /// Its length in bytes.
    pub bytes: u32,
    /// Whether its flow is not a TCP connection.
    pub datagram: bool,
    /// Whether it ends the connection in its direction.
    pub ends: bool,
    /// The state of its flow for steering.
    pub flow: &'a mut FlowSteer,
}

impl<'a> From<&'a PathStates> for View<'a> {
    /// States without flap control.
    fn from(paths: &'a PathStates) -> Self {
        Self { steady: paths, live: paths, loads: &[], restores: false }
    }
}

/// The input of every mode.
#[derive(Debug)]
pub struct Input<'a> {
    /// The steady view of the user's paths.
    pub paths: &'a PathStates,
    /// The paths that are up in `paths`; not empty when a mode is called.
    pub up: PathSet,
    /// The live view of the user's paths.
    pub live: &'a PathStates,
    /// Sequence number the packet will carry.
    pub sequence: u32,
    /// Hash of the packet's flow, well mixed.
    pub flow_hash: u64,
    /// Hash of the remote host's address.
    pub remote: u64,
    /// Bytes of the packet.
    pub bytes: u32,
    /// Whether its flow is not a TCP connection.
    pub datagram: bool,
    /// Whether it ends the connection in its direction.
    pub ends: bool,
    /// The state of its flow for steering.
    pub flow: &'a mut FlowSteer,
    /// See [`View::loads`].
    pub loads: &'a [LoadView],
    /// See [`View::restores`].
    pub restores: bool,
    /// The current time.
    pub now: Instant,
}

impl<'a> Input<'a> {
    fn new(view: View<'a>, packet: Packet<'a>, now: Instant) -> Self {
        let View { steady: paths, live, loads, restores } = view;
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
            restores,
            now,
        }
    }

    /// The path model of a path; [`LoadView::UNKNOWN`] if it is not in the table.
    fn load(&self, path: PathId) -> LoadView {
        self.loads.get(usize::from(path)).copied().unwrap_or(LoadView::UNKNOWN)
    }
}

/// One steering mode. `input.up` is never empty.
pub trait Steer {
    /// Decides for one packet.
    fn pick(&self, state: &mut ModeState, input: &mut Input<'_>) -> Pick;

    /// The current treatment of a rule's packets; for people.
    fn treatment(&self, state: &ModeState, input: &Input<'_>) -> Treatment;

    /// Why a path that is up and not held back is not used now, or not more than it is; for people.
    fn excludes(&self, state: &ModeState, input: &Input<'_>, path: PathId) -> Option<Exclusion>;

    /// Whether packets of one flow may be on several paths at the same time, so that they need
    /// sequence numbers (JUNCTION §V-C3, "Design limitation").
    fn splits(&self) -> bool {
        false
    }

    /// Whether whole flows are steered, which keep their path as long as it is up.
    fn per_flow(&self) -> bool {
        false
    }

    /// Whether the mode uses a path that flap control holds back, because a copy or a share moves no flow.
    fn uses_held(&self) -> bool {
        false
    }

    /// Whether the mode decides by the path models.
    fn is_autonomous(&self) -> bool {
        false
    }

    /// The parameters of a mode with repair packets.
    fn coded(&self) -> Option<&coded::Coded> {
        None
    }

    /// The repair packets for a packet to the host `remote` that takes a path with this model, if the far end restores
    /// lost packets.
    fn protection(&self, _state: &ModeState, _remote: u64, _load: &LoadView) -> Option<coded::Coded> {
        None
    }
}

impl ModeName {
    /// Each parameter of all modes once, with the names of the modes that have it.
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

/// The conversion of a configured mode into a compiled one.
pub trait Compile: Steer + Sized {
    /// Its parameters in the configuration.
    type Params: Params;

    /// The mode with these parameters, whose numbers have been range-checked.
    ///
    /// # Errors
    /// An access that does not exist, or another error.
    fn compile(params: &Self::Params, names: &Names<'_>) -> Result<Self, PolicyError>;
}

/// The state of one (session, rule) between packets: 16 bytes unless an autonomous mode is used.
#[derive(Debug, Clone, Default)]
pub struct ModeState {
    /// State of autonomous load-balance; allocated by its first packet.
    lane: Option<Box<LawState>>,
    /// Milliseconds (wrapping) at which `current` or `overflow` last changed.
    changed_ms: u32,
    /// Path in use, plus one; 0 = none yet.
    current: u8,
    /// Priority-based: overflowing. Redundant: above the loss threshold.
    engaged: bool,
    /// Paths that are left because of their loss.
    lossy: Lossy,
}

impl ModeState {
    /// The state before the first packet.
    #[must_use]
    pub const fn new() -> Self {
        Self { lane: None, changed_ms: 0, current: 0, engaged: false, lossy: Lossy::NONE }
    }

    /// Picks the path or paths of one packet.
    ///
    /// Allocates only once, for the first packet of an autonomous load-balance mode.
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

    /// The current path of a switching mode; `None` before its first packet.
    #[must_use]
    pub const fn current(&self) -> Option<PathId> {
        self.current.checked_sub(1)
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
