//! Explanations of the paths that a rule uses, for people. Evaluated on request and once a second, never per
//! packet.
//!
//! Each mode explains itself next to its algorithm ([`Steer::treatment`], [`Steer::excludes`]), from the values on
//! which the algorithm decides.

use super::record::Departures;
use super::{Input, Mode, ModeState, Packet, PathSet, Steer, View};
use crate::view::{DownReason, FlowSteer};
use crate::{MAX_PATHS, PathId};
use anabranch_element::time::Instant;

/// Why a rule currently sends nothing by a path, or not more than it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exclusion {
    /// The path is down.
    Down {
        /// The reason, if it is known here.
        reason: Option<DownReason>,
    },
    /// It came back while the paths flap, and flap control holds it back.
    Held,
    /// Its steady loss exceeds the limit of the rule, while another path loses less.
    SteadyLoss {
        /// Steady loss, percent.
        loss: u8,
        /// Limit, percent.
        limit: u8,
    },
    /// Its loss exceeds a threshold of the rule.
    Loss {
        /// Loss, parts per million.
        loss_ppm: u32,
        /// Threshold, parts per million.
        limit_ppm: u32,
    },
    /// Its round trip exceeds a threshold of the rule.
    RoundTrip {
        /// Round trip, microseconds.
        rtt_us: u32,
        /// Threshold, microseconds.
        limit_us: u32,
    },
    /// The rule gives it no share, and a path with a share is up.
    NoShare,
    /// The rule prefers another path, which is usable.
    Standby,
    /// Another path has a smaller delay.
    Slower {
        /// Its round trip in microseconds; in coded mode, with loss counted as delay.
        rtt_us: u32,
        /// The round trip of the path in use.
        than_us: u32,
    },
    /// Autonomous: it loses packets without congestion, more than the home.
    RandomLoss {
        /// Wild loss, parts per million.
        loss_ppm: u32,
        /// Limit, parts per million.
        limit_ppm: u32,
    },
    /// Autonomous: its queue has reached the drop level.
    Dropping {
        /// Queue, microseconds.
        queue_us: u32,
        /// Drop level, microseconds.
        drop_us: u32,
    },
    /// Autonomous: it has a queue, and a small capacity compared with the home: a loss there costs more than
    /// the path adds.
    HasQueue {
        /// Queue, microseconds.
        queue_us: u32,
        /// Limit, microseconds.
        limit_us: u32,
    },
    /// Autonomous: its capacity is so small compared with the home that a loss there costs more than the path
    /// adds.
    TooSmall {
        /// Its estimate, in bit/s.
        bps: u64,
        /// The capacity of the home, in bit/s.
        home_bps: u64,
    },
    /// Autonomous: even without a queue, packets arrive so much later on it that the far end would not wait for
    /// them.
    TooFar {
        /// Difference of the base delays, microseconds.
        later_us: u32,
        /// Limit, microseconds.
        limit_us: u32,
    },
    /// Autonomous: packets arrive later on it than behind the queue of the home.
    Later {
        /// Difference of the arrivals, microseconds.
        later_us: u32,
    },
    /// Autonomous: the home has no queue, so using the path gains nothing.
    HomeNotFull {
        /// The home.
        home: PathId,
        /// Queue of the home, in microseconds.
        queue_us: u32,
    },
}

impl Exclusion {
    /// The name in the REST API, events and scripts.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Down { .. } => "down",
            Self::Held => "held",
            Self::SteadyLoss { .. } => "steady-loss",
            Self::Loss { .. } => "loss",
            Self::RoundTrip { .. } => "round-trip",
            Self::NoShare => "no-share",
            Self::Standby => "standby",
            Self::Slower { .. } => "slower",
            Self::RandomLoss { .. } => "random-loss",
            Self::Dropping { .. } => "dropping",
            Self::HasQueue { .. } => "has-queue",
            Self::TooSmall { .. } => "too-small",
            Self::TooFar { .. } => "too-far",
            Self::Later { .. } => "later",
            Self::HomeNotFull { .. } => "home-not-full",
        }
    }

    /// Whether the path is left because a measurement exceeds a limit of the rule, for longer than a packet.
    /// Begin and end of such an exclusion are events.
    const fn is_verdict(&self) -> bool {
        matches!(self, Self::SteadyLoss { .. } | Self::Loss { .. } | Self::RoundTrip { .. })
    }
}

/// The current treatment of a rule's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// No path is up.
    NoPath,
    /// All packets take one path.
    One(PathId, Cause),
    /// All packets take one path, and repair packets another.
    Coded {
        /// The path of the packets.
        source: PathId,
        /// The path of the repairs.
        repair: PathId,
    },
    /// Packets or flows in fixed shares.
    Shares,
    /// A copy on each path.
    Copies,
    /// Autonomous: each flow takes its home; bulk flows have homes on several paths.
    Homes,
    /// Autonomous: packets spill to another path than their home, where they arrive no later.
    Spills,
    /// Autonomous: packets overflow to another path than their home, although they may arrive later.
    Overflows,
}

impl Treatment {
    /// The name in the REST API and scripts.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::NoPath => "no-path",
            Self::One(..) => "one-path",
            Self::Coded { .. } => "coded",
            Self::Shares => "shares",
            Self::Copies => "copies",
            Self::Homes => "homes",
            Self::Spills => "spills",
            Self::Overflows => "overflows",
        }
    }
}

/// Why a rule uses one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// No other path is usable.
    Only,
    /// It is the path that the rule prefers.
    Preferred,
    /// The preferred path is not usable.
    Fallback,
    /// Its delay is the smallest, or the smallest one is not smaller by the hysteresis, or not yet for the
    /// dwell time.
    Fastest,
    /// Paths alternate, and it is the turn of this one.
    Turn,
    /// Redundant: loss is below the threshold, so no copies are made.
    LittleLoss,
    /// Autonomous: it has no queue, or no other path is better.
    Home,
}

/// The current treatment of a rule's packets, and its reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explanation {
    /// The treatment.
    pub treatment: Treatment,
    /// By path id: why the path is not used, or not more than it is.
    pub excluded: [Option<Exclusion>; MAX_PATHS],
}

impl Explanation {
    /// The paths that are left because of a measurement.
    #[must_use]
    pub fn verdicts(&self) -> PathSet {
        let verdict = |(path, why): (PathId, &Option<Exclusion>)| {
            why.is_some_and(|why| why.is_verdict()).then_some(path)
        };
        (0..).zip(&self.excluded).filter_map(verdict).collect()
    }
}

impl ModeState {
    /// The current treatment and its reasons, for the paths in `known`.
    #[must_use]
    pub fn explain(&self, mode: &Mode, view: View<'_>, known: PathSet, now: Instant) -> Explanation {
        let flow = &mut FlowSteer::default();
        let packet =
            Packet { sequence: 0, flow_hash: 0, remote: 0, bytes: 0, datagram: false, ends: false, flow };
        let input = &Input::new(view, packet, now);
        let up = if mode.uses_held() { input.live.up() } else { input.up };
        let treatment = if up.is_empty() { Treatment::NoPath } else { mode.treatment(self, input) };
        let why = |path: PathId| {
            if !input.live.is_up(path) {
                Some(Exclusion::Down { reason: None })
            } else if !up.contains(path) {
                Some(Exclusion::Held)
            } else {
                mode.excludes(self, input, path)
            }
        };
        let mut excluded = [None; MAX_PATHS];
        for path in known {
            excluded[usize::from(path)] = why(path);
        }
        if let Treatment::Coded { repair, .. } = treatment
            && input.live.is_up(repair)
        {
            excluded[usize::from(repair)] = None;
        }
        let mut explanation = Explanation { treatment, excluded };
        explanation.name_the_only_one(known);
        explanation
    }

    /// Counters and state of the autonomous law; `None` before its first packet.
    #[must_use]
    pub fn law(&self, now: Instant) -> Option<LawView> {
        self.lane.as_deref().map(|lane| lane.view(now))
    }

    /// Autonomous: bulk flows that left a path for its wild loss, by path, and have not been reported yet.
    pub fn unreported_departures(&mut self) -> impl Iterator<Item = (PathId, &mut Departures)> {
        self.lane.as_deref_mut().into_iter().flat_map(|lane| (0..).zip(lane.unreported_departures()))
    }
}

impl Explanation {
    /// Marks a path as the only one if all others are down, held back, or left because of a measurement.
    fn name_the_only_one(&mut self, known: PathSet) {
        let Treatment::One(path, cause) = self.treatment else { return };
        let bad =
            |why: Exclusion| matches!(why, Exclusion::Down { .. } | Exclusion::Held) || why.is_verdict();
        let others = known.without(PathSet::single(path));
        let all = others.iter().all(|other| self.excluded[usize::from(other)].is_some_and(bad));
        if all && cause != Cause::Fallback {
            self.treatment = Treatment::One(path, Cause::Only);
        }
    }
}

/// Counters of the autonomous law since its first packet, by path id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LawCounts {
    /// Packets that took their flow's home, if this path is the home.
    pub at_home: [u64; MAX_PATHS],
    /// Packets that spilled to this path.
    pub spilled: [u64; MAX_PATHS],
    /// Packets that overflowed to this path.
    pub overflowed: [u64; MAX_PATHS],
    /// Flows that got this home at their beginning, or because their home had become unusable.
    pub placed: [u64; MAX_PATHS],
    /// Flows that moved to this home: from a full one, or small flows with an earlier arrival there.
    pub moved: [u64; MAX_PATHS],
    /// Bulk flows that left this home for its wild loss.
    pub left: [u64; MAX_PATHS],
    /// Number of times that overflow was paused because it reduced the rate.
    pub pauses: u64,
}

/// Counters and state of the autonomous law.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LawView {
    /// Counters since the law's first packet.
    pub counts: LawCounts,
    /// Bulk flows by home, in the last period of 250 ms.
    pub bulk: [u16; MAX_PATHS],
    /// The current pause of overflow, if harm control has paused it.
    pub paused: Option<Pause>,
}

/// A pause of overflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// End of the pause.
    pub until: Instant,
    /// The rate sent when it began, in bit/s.
    pub sent_bps: u64,
    /// The capacity of the homes of bulk flows, in bit/s.
    pub capacity_bps: u64,
}
