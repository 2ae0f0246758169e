//! Plan of a run of a cell.

use super::check::{Invariant, Tally, Violation};
use super::draw::RandomStream;
use super::system::{self, PlanOf};
use super::world;
use anabranch_ran::queue::Algorithm;
use anabranch_ran::sched::InterAlgorithm;
use serde::{Deserialize, Serialize};

/// Maximum number of honest UEs.
pub const MAX_UES: u8 = 4;
/// Maximum number of slices.
pub const MAX_SLICES: u8 = 4;

/// The cell of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Resource blocks of an LTE carrier: 25, 50 or 100.
    pub rbs: u16,
    /// How both directions are shared among slices.
    pub scheduler: InterAlgorithm,
    /// Shares of the slices, percent; the sum is 100.
    pub slices: Vec<u8>,
    /// Blocks that fail at the first transmission, percent.
    pub bler_percent: u8,
    /// Whether there is a flooding UE, in the last slice.
    pub hostile: bool,
    /// The honest UEs.
    pub ues: Vec<UePlan>,
}

/// An honest UE and its traffic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UePlan {
    /// Index of its slice.
    pub slice: u8,
    /// Its MCS in both directions.
    pub mcs: u8,
    /// Its queue discipline.
    pub queue: Algorithm,
    /// Whether RLC uses acknowledged mode.
    pub acknowledged: bool,
    /// Mean time between packets of a flow, microseconds.
    pub pace_us: u64,
}

/// A direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkDirection {
    /// Towards the UE.
    Down,
    /// From the UE.
    Up,
}

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Kind {
    /// The channel quality of a UE changes; CQI 0 is an outage.
    Fade {
        /// Index of the UE.
        ue: u8,
        /// Direction affected.
        way: LinkDirection,
        /// 0 to 15.
        cqi: u8,
    },
    /// Two slices swap their shares.
    Shares {
        /// Index of the first slice.
        a: u8,
        /// Index of the second slice.
        b: u8,
    },
    /// The scheduler of slices changes.
    Scheduler {
        /// Direction affected.
        way: LinkDirection,
        /// The new scheduler.
        to: InterAlgorithm,
    },
    /// The queue discipline of a UE changes.
    Queue {
        /// Index of the UE.
        ue: u8,
        /// Direction affected.
        way: LinkDirection,
        /// The new queue discipline.
        to: Algorithm,
    },
    /// A UE moves to another slice.
    Move {
        /// Index of the UE.
        ue: u8,
        /// Index of the new slice.
        slice: u8,
    },
    /// The gNB is not driven for a while and then receives all input at once.
    Late,
    /// A burst of packets in both directions.
    Burst {
        /// Index of the UE.
        ue: u8,
        /// Number of packets per direction.
        packets: u16,
        /// Bytes per packet.
        bytes: u16,
    },
    /// No flow sends while the fault lasts.
    Quiet,
}

impl Kind {
    /// Its name, as in a plan.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Fade { .. } => "fade",
            Self::Shares { .. } => "shares",
            Self::Scheduler { .. } => "scheduler",
            Self::Queue { .. } => "queue",
            Self::Move { .. } => "move",
            Self::Late => "late",
            Self::Burst { .. } => "burst",
            Self::Quiet => "quiet",
        }
    }

    /// The UE affected.
    #[must_use]
    pub const fn ue(&self) -> Option<u8> {
        match self {
            Self::Fade { ue, .. }
            | Self::Queue { ue, .. }
            | Self::Move { ue, .. }
            | Self::Burst { ue, .. } => Some(*ue),
            _ => None,
        }
    }
}

/// A fault of this system.
pub type Fault = system::Fault<Kind>;
/// A plan of this system.
pub type Plan = PlanOf<Setting, Kind>;

impl system::Setting for Setting {
    type Kind = Kind;

    const NAME: &'static str = "cell";
    const VERSION: u32 = 1;
    const KINDS: &'static [&'static str] =
        &["fade", "shares", "scheduler", "queue", "move", "late", "burst", "quiet"];
    const ACTORS: &'static [&'static str] = &["hostile", "bler"];
    const INVARIANTS: &'static [Invariant] = &[
        Invariant::Intact,
        Invariant::Once,
        Invariant::Order,
        Invariant::Balanced,
        Invariant::Counted,
        Invariant::Bounded,
        Invariant::NoSpin,
        Invariant::Converges,
        Invariant::Independent,
        Invariant::NoPanic,
    ];
    const SIMPLER: &'static [fn(&mut Self)] = &[
        |w| w.hostile = false,
        |w| w.bler_percent = 0,
        |w| w.rbs = 25,
        |w| w.ues.iter_mut().for_each(|ue| ue.queue = Algorithm::Vanilla),
        |w| w.ues.iter_mut().for_each(|ue| ue.acknowledged = false),
    ];

    fn of(seed: u64, steps: u64) -> Plan {
        let draw = &mut RandomStream::new(seed, 0);
        let hostile = draw.percent(50);
        let slices: &[u8] =
            draw.of::<&[u8]>(&[&[100], &[50, 50], &[70, 30], &[20, 30, 50], &[25, 25, 25, 25]]);
        // The flooding UE has a slice of its own.
        let slices: &[u8] = if hostile && slices.len() == 1 { &[60, 40] } else { slices };
        let free = slices.len() as u64 - u64::from(hostile);
        // Plans that allow a comparison of the service with and without the hostile UE.
        let light = draw.percent(40);
        let ue = |draw: &mut RandomStream| UePlan {
            slice: draw.below(free) as u8,
            mcs: if light { 28 } else { draw.between((10, 28)) as u8 },
            queue: draw.of(&Algorithm::ALL),
            acknowledged: draw.percent(50),
            pace_us: if light { draw.of(&[20_000, 50_000]) } else { draw.of(&[700, 3_000, 10_000, 100_000]) },
        };
        let count = draw.between((1, if light { 2 } else { MAX_UES.into() }));
        let world = Setting {
            rbs: draw.of(&[25, 50, 100]),
            scheduler: draw.of(&InterAlgorithm::ALL),
            slices: slices.to_vec(),
            bler_percent: if light { 0 } else { draw.of(&[0, 0, 10, 50]) },
            hostile,
            ues: (0..count).map(|_| ue(draw)).collect(),
        };
        Plan::drawn((seed, steps), draw, world, if light { 3 } else { 4 + steps / 200 }, |draw, plan| {
            fault(draw, plan, light)
        })
    }

    fn take_last(&mut self) -> Option<usize> {
        (self.ues.len() > 1).then(|| {
            self.ues.pop();
            self.ues.len()
        })
    }

    fn target(kind: &Kind) -> Option<u8> {
        kind.ue()
    }

    fn check(&self) -> Result<(), String> {
        if ![25, 50, 100].contains(&self.rbs) {
            return Err(format!("rbs = {}: write 25, 50 or 100", self.rbs));
        }
        let sum: u64 = self.slices.iter().map(|share| u64::from(*share)).sum();
        if self.slices.is_empty() || self.slices.len() > usize::from(MAX_SLICES) || sum > 100 {
            return Err(format!("slices: write 1 to {MAX_SLICES} shares of 100 in all"));
        }
        if self.ues.is_empty() || self.ues.len() > usize::from(MAX_UES) {
            return Err(format!("{} UEs: write 1 to {MAX_UES}", self.ues.len()));
        }
        let wrong =
            |ue: &&UePlan| usize::from(ue.slice) >= self.slices.len() || ue.mcs > 28 || ue.pace_us == 0;
        if let Some(ue) = self.ues.iter().find(wrong) {
            return Err(format!(
                "{ue:?}: slice must be one of those there are, mcs 0 to 28, pace_us 1 or more"
            ));
        }
        if self.bler_percent > 100 {
            return Err(format!("bler_percent = {}: write 0 to 100", self.bler_percent));
        }
        Ok(())
    }

    fn play(plan: &Plan, tally: &mut Tally, trace: &mut Option<Vec<String>>) -> Result<(), Violation> {
        world::play(plan, tally, trace)
    }
}

fn fault(draw: &mut RandomStream, plan: &Plan, light: bool) -> Fault {
    let at = draw.below(plan.steps);
    let ms = match draw.below(3) {
        0 => draw.between((1, 20)),
        1 => draw.between((10, 300)),
        _ => draw.between((100, 3_000)),
    };
    let ue = draw.below(plan.world.ues.len() as u64) as u8;
    let slices = plan.world.slices.len() as u64;
    let way = draw.of(&[LinkDirection::Down, LinkDirection::Up]);
    let kind = match draw.below(if light { 2 } else { 12 }) {
        0 => {
            Kind::Burst { ue, packets: draw.between((1, 20)) as u16, bytes: draw.between((40, 1_500)) as u16 }
        }
        1 => Kind::Quiet,
        2..=4 => Kind::Fade { ue, way, cqi: draw.of(&[0, 0, 1, 7, 15]) },
        5 => Kind::Shares { a: draw.below(slices) as u8, b: draw.below(slices) as u8 },
        6 => Kind::Scheduler { way, to: draw.of(&InterAlgorithm::ALL) },
        7 | 8 => Kind::Queue { ue, way, to: draw.of(&Algorithm::ALL) },
        9 => Kind::Move { ue, slice: draw.below(slices) as u8 },
        10 => Kind::Late,
        _ => Kind::Burst {
            ue,
            packets: draw.between((50, 2_000)) as u16,
            bytes: draw.between((40, 1_500)) as u16,
        },
    };
    Fault { at, ms, kind }
}
