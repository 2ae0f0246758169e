//! Why a rule uses the paths it uses, for people. Asked when somebody looks, and once a second; never for a packet.
//!
//! Each mode says so itself, beside its law ([`Steer::doing`], [`Steer::excludes`]), from the values its law decides from.

use super::record::Left;
use super::{Input, Mode, ModeState, Packet, PathSet, Steer, View};
use crate::view::{DownReason, FlowSteer};
use crate::{MAX_PATHS, PathId};
use anabranch_element::time::Instant;

/// Why a rule sends nothing by a path at this moment, or no more than it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exclusion {
    /// The path is down.
    Down {
        /// Why, as far as it is known here.
        reason: Option<DownReason>,
    },
    /// It came back while the paths flap: flap control holds it back.
    Held,
    /// It steadily loses more than the rule allows, while another path loses less.
    SteadyLoss {
        /// Percent.
        loss: u8,
        /// Percent.
        limit: u8,
    },
    /// Its loss is above a threshold of the rule.
    Loss {
        /// Parts per million.
        loss_ppm: u32,
        /// Parts per million.
        limit_ppm: u32,
    },
    /// Its round trip is above a threshold of the rule.
    RoundTrip {
        /// Microseconds.
        rtt_us: u32,
        /// Microseconds.
        limit_us: u32,
    },
    /// The rule gives it no share while a path that has one is up.
    NoShare,
    /// The rule prefers another path, which may be used.
    Standby,
    /// Another path has a smaller delay.
    Slower {
        /// Its round trip in microseconds, loss counted as delay in coded mode.
        rtt_us: u32,
        /// That of the path in use.
        than_us: u32,
    },
    /// Autonomous: it loses packets without congestion, more than the home does.
    RandomLoss {
        /// Parts per million.
        loss_ppm: u32,
        /// Parts per million.
        limit_ppm: u32,
    },
    /// Autonomous: its queue is where it drops.
    Dropping {
        /// Microseconds.
        queue_us: u32,
        /// Microseconds.
        drop_us: u32,
    },
    /// Autonomous: it has a queue, and is small beside the home: a loss there costs more than it carries.
    HasQueue {
        /// Microseconds.
        queue_us: u32,
        /// Microseconds.
        limit_us: u32,
    },
    /// Autonomous: it carries so little of what the home does that a loss there costs more than it carries.
    TooSmall {
        /// What it is taken to carry, in bit/s.
        bps: u64,
        /// The same of the home.
        home_bps: u64,
    },
    /// Autonomous: without any queue, a packet arrives so much later by it that the far end would not wait.
    TooFar {
        /// Microseconds.
        later_us: u32,
        /// Microseconds.
        limit_us: u32,
    },
    /// Autonomous: a packet arrives later by it than behind the queue of the home.
    Later {
        /// Microseconds.
        later_us: u32,
    },
    /// Autonomous: the home has no queue, so nothing is gained by it.
    HomeNotFull {
        /// The home.
        home: PathId,
        /// Queue of the home, in microseconds.
        queue_us: u32,
    },
}

impl Exclusion {
    /// In REST, events and scripts.
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

    /// Whether the path is left for what was measured of it against a limit of the rule, for longer than a packet: what
    /// is worth an event when it begins and ends.
    #[must_use]
    pub const fn is_verdict(&self) -> bool {
        matches!(self, Self::SteadyLoss { .. } | Self::Loss { .. } | Self::RoundTrip { .. })
    }
}

/// What a rule does with its packets now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// No path is up.
    NoPath,
    /// All by one path.
    One(PathId, Because),
    /// All by one path, repair packets by another.
    Coded {
        /// The path of the packets.
        source: PathId,
        /// The path of the repairs.
        repair: PathId,
    },
    /// Packets, or flows, by fixed shares.
    Shares,
    /// A copy by each path.
    Copies,
    /// Autonomous: each flow by its home; bulk flows have their homes on several paths.
    Homes,
    /// Autonomous: packets take another path than their home where they arrive no later.
    Spills,
    /// Autonomous: packets take another path than their home although they may arrive later.
    Overflows,
}

impl Doing {
    /// In REST and scripts.
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
pub enum Because {
    /// No other path may be used.
    Only,
    /// It is the one the rule prefers.
    Preferred,
    /// The one the rule prefers may not be used.
    Fallback,
    /// Its delay is the smallest, by more than the rule's hysteresis or for as long.
    Fastest,
    /// Paths take turns, and this is its turn.
    Turn,
    /// Redundant: loss is below the threshold, so no copies are made.
    LittleLoss,
    /// Autonomous: it has no queue, or no other path is better.
    Home,
}

/// What a rule does with its packets, and why not more. Of the time it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explanation {
    /// What it does.
    pub doing: Doing,
    /// By path id: why it is not used, or no more than it is.
    pub excluded: [Option<Exclusion>; MAX_PATHS],
}

impl Explanation {
    /// The paths that are left for what was measured of them.
    #[must_use]
    pub fn verdicts(&self) -> PathSet {
        let verdict = |(path, why): (PathId, &Option<Exclusion>)| {
            why.is_some_and(|why| why.is_verdict()).then_some(path)
        };
        (0..).zip(&self.excluded).filter_map(verdict).collect()
    }
}

impl ModeState {
    /// What the rule does now and why, for the paths in `known`.
    #[must_use]
    pub fn explain(&self, mode: &Mode, view: View<'_>, known: PathSet, now: Instant) -> Explanation {
        let flow = &mut FlowSteer::default();
        let packet =
            Packet { sequence: 0, flow_hash: 0, remote: 0, bytes: 0, datagram: false, ends: false, flow };
        let input = &Input::new(view, packet, now);
        let up = if mode.uses_held() { input.live.up() } else { input.up };
        let doing = if up.is_empty() { Doing::NoPath } else { mode.doing(self, input) };
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
        if let Doing::Coded { repair, .. } = doing
            && input.live.is_up(repair)
        {
            excluded[usize::from(repair)] = None;
        }
        let mut explanation = Explanation { doing, excluded };
        explanation.name_the_only_one(known);
        explanation
    }

    /// What the autonomous law did and does; `None` before its first packet.
    #[must_use]
    pub fn law(&self, now: Instant) -> Option<LawView> {
        self.lane.as_deref().map(|lane| lane.view(now))
    }

    /// Autonomous: bulk flows that left a path for its random loss, by path, and of which nobody was told.
    pub fn untold_left(&mut self) -> impl Iterator<Item = (PathId, &mut Left)> {
        self.lane.as_deref_mut().into_iter().flat_map(|lane| (0..).zip(lane.untold_left()))
    }
}

impl Explanation {
    /// A path that is used because all others are down, held back or left for what was measured of them.
    fn name_the_only_one(&mut self, known: PathSet) {
        let Doing::One(path, because) = self.doing else { return };
        let bad =
            |why: Exclusion| matches!(why, Exclusion::Down { .. } | Exclusion::Held) || why.is_verdict();
        let others = known.without(PathSet::single(path));
        let all = others.iter().all(|other| self.excluded[usize::from(other)].is_some_and(bad));
        if all && because != Because::Fallback {
            self.doing = Doing::One(path, Because::Only);
        }
    }
}

/// What the autonomous law did since its first packet, by path id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LawCounts {
    /// Packets that took their flow's home, this path.
    pub at_home: [u64; MAX_PATHS],
    /// Packets that took this path for their home, and arrive no later by it.
    pub spilled: [u64; MAX_PATHS],
    /// Packets that took this path for their home, and may arrive later by it.
    pub overflowed: [u64; MAX_PATHS],
    /// Flows that were given this home when they began, or when theirs could not be used any more.
    pub placed: [u64; MAX_PATHS],
    /// Flows that moved to this home: from a full one, or a small flow to where it arrives earlier.
    pub moved: [u64; MAX_PATHS],
    /// Bulk flows that left this home for its random loss.
    pub left: [u64; MAX_PATHS],
    /// Times that overflow was paused, for it did harm.
    pub pauses: u64,
}

/// What the autonomous law did and does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LawView {
    /// Since the law's first packet.
    pub counts: LawCounts,
    /// Bulk flows by home, of the last quarter of a second.
    pub bulk: [u16; MAX_PATHS],
    /// Overflow is paused, for it did harm.
    pub paused: Option<Pause>,
}

/// A pause of overflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// When it ends.
    pub until: Instant,
    /// What was sent when it began, in bit/s.
    pub sent_bps: u64,
    /// What the homes of bulk flows carry, in bit/s.
    pub capacity_bps: u64,
}
