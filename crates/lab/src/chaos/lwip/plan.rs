//! Plan of a run of an LWIP node.

use super::check::{Invariant, Tally, Violation};
use super::draw::RandomStream;
use super::system::{self, PlanOf};
use super::world;
use serde::{Deserialize, Serialize};

/// Possible rates of legs, Mbit/s. A download sends at most 8 Mbit/s.
const RATES: [u16; 4] = [4, 8, 20, 200];
/// Maximum number of UEs.
pub const MAX_UES: u8 = 3;

/// How TCP is steered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Half of the packets on each leg.
    Half,
    /// By round-trip time.
    Rtt,
    /// In proportion to the capacities of the legs.
    Capacity,
    /// All packets on the better leg.
    Switched,
    /// By the node's own measurements of the legs.
    Autonomous,
}

/// All modes.
pub const MODES: [Mode; 5] = [Mode::Half, Mode::Rtt, Mode::Capacity, Mode::Switched, Mode::Autonomous];

/// How ACKs are delayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dida {
    /// Not at all.
    Off,
    /// For at most 50 ms, including SACK blocks.
    Fixed,
    /// As in the paper: for 50 ms, and SACK blocks pass.
    Printed,
    /// For the optimum of the paper's model.
    Optimal,
    /// For as long as it is beneficial.
    Adaptive,
}

/// All variants.
pub const DIDAS: [Dida; 5] = [Dida::Off, Dida::Fixed, Dida::Printed, Dida::Optimal, Dida::Adaptive];

/// The world of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// How TCP is steered.
    pub mode: Mode,
    /// How ACKs are delayed.
    pub dida: Dida,
    /// Number of UEs, each with one download and datagrams in both directions.
    pub ues: u8,
    /// One-way delays of the LTE leg and the Wi-Fi leg, milliseconds.
    pub delay_ms: [u16; 2],
    /// Downlink capacities of the legs, Mbit/s.
    pub mbps: [u16; 2],
    /// Mean time between packets of a flow, microseconds.
    pub pace_us: u64,
}

/// A kind of fault. Leg 0 is LTE, leg 1 is Wi-Fi.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Kind {
    /// Packets are lost.
    Loss {
        /// Index of the leg.
        leg: u8,
        /// Share of the packets, percent.
        percent: u8,
    },
    /// No packet passes.
    Partition {
        /// Index of the leg.
        leg: u8,
    },
    /// Packets are reordered.
    Jitter {
        /// Index of the leg.
        leg: u8,
        /// Maximum additional delay, milliseconds.
        most_ms: u16,
    },
    /// The one-way delay changes.
    Delay {
        /// Index of the leg.
        leg: u8,
        /// New delay, milliseconds.
        delay_ms: u16,
    },
    /// The downlink capacity of a leg changes.
    Rate {
        /// Index of the leg.
        leg: u8,
        /// New rate, Mbit/s.
        mbps: u16,
    },
    /// A UE has no Wi-Fi, and the node is informed.
    Carrier {
        /// Index of the UE.
        ue: u8,
    },
    /// The node restarts; ACKs that it delayed are lost.
    Restart,
    /// The steering mode changes.
    Steering {
        /// The new mode.
        mode: Mode,
    },
    /// The way of delaying ACKs changes.
    Dida {
        /// The new way.
        dida: Dida,
    },
    /// Replies to probes are lost, delayed, duplicated, or unsolicited.
    Lies,
    /// No flow sends while the fault lasts.
    Quiet,
}

impl Kind {
    /// Its name, as in a plan.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Loss { .. } => "loss",
            Self::Partition { .. } => "partition",
            Self::Jitter { .. } => "jitter",
            Self::Delay { .. } => "delay",
            Self::Rate { .. } => "rate",
            Self::Carrier { .. } => "carrier",
            Self::Restart => "restart",
            Self::Steering { .. } => "steering",
            Self::Dida { .. } => "dida",
            Self::Lies => "lies",
            Self::Quiet => "quiet",
        }
    }
}

/// A fault of this system.
pub type Fault = system::Fault<Kind>;
/// A plan of this system.
pub type Plan = PlanOf<Setting, Kind>;

impl system::Setting for Setting {
    type Kind = Kind;

    const NAME: &'static str = "lwip";
    const VERSION: u32 = 2;
    const KINDS: &'static [&'static str] = &[
        "loss",
        "partition",
        "jitter",
        "delay",
        "rate",
        "carrier",
        "restart",
        "steering",
        "dida",
        "lies",
        "quiet",
    ];
    const ACTORS: &'static [&'static str] = &[];
    const INVARIANTS: &'static [Invariant] = &[
        Invariant::Intact,
        Invariant::Once,
        Invariant::Order,
        Invariant::Lossless,
        Invariant::Prompt,
        Invariant::Reliable,
        Invariant::Served,
        Invariant::Bounded,
        Invariant::NoSpin,
        Invariant::Converges,
        Invariant::Empty,
        Invariant::NoPanic,
    ];
    const SIMPLER: &'static [fn(&mut Self)] = &[
        |w| w.ues = 1,
        |w| w.delay_ms = [20, 10],
        |w| w.mbps = [200; 2],
        |w| w.mode = Mode::Half,
        |w| w.dida = Dida::Off,
    ];

    fn of(seed: u64, steps: u64) -> Plan {
        let draw = &mut RandomStream::new(seed, 0);
        let world = Setting {
            mode: draw.of(&MODES),
            dida: draw.of(&DIDAS),
            ues: draw.between((1, MAX_UES.into())) as u8,
            delay_ms: [draw.between((5, 60)) as u16, draw.between((1, 60)) as u16],
            mbps: [draw.of(&RATES), draw.of(&RATES)],
            pace_us: draw.of(&[1_000, 5_000, 30_000]),
        };
        Plan::drawn((seed, steps), draw, world, 3 + steps / 200, fault)
    }

    fn check(&self) -> Result<(), String> {
        if !(1..=MAX_UES).contains(&self.ues) || self.pace_us == 0 || self.mbps.contains(&0) {
            return Err(format!("ues: write 1 to {MAX_UES}; pace_us, mbps: 1 or more"));
        }
        Ok(())
    }

    fn play(plan: &Plan, tally: &mut Tally, trace: &mut Option<Vec<String>>) -> Result<(), Violation> {
        world::play(plan, tally, trace)
    }
}

fn fault(draw: &mut RandomStream, plan: &Plan) -> Fault {
    let at = draw.below(plan.steps);
    let ms = match draw.below(3) {
        0 => draw.between((1, 50)),
        1 => draw.between((50, 1_000)),
        _ => draw.between((500, 8_000)),
    };
    let leg = draw.of(&[0, 1, 1]);
    let kind = match draw.below(14) {
        0 | 1 => Kind::Loss { leg, percent: draw.between((1, 60)) as u8 },
        2 => Kind::Partition { leg },
        3 | 4 => Kind::Jitter { leg, most_ms: draw.between((1, 100)) as u16 },
        5 => Kind::Delay { leg, delay_ms: draw.between((0, 300)) as u16 },
        6 | 7 => Kind::Carrier { ue: draw.below(plan.world.ues.into()) as u8 },
        8 => Kind::Restart,
        9 => Kind::Steering { mode: draw.of(&MODES) },
        10 => Kind::Dida { dida: draw.of(&DIDAS) },
        11 => Kind::Lies,
        12 => Kind::Rate { leg, mbps: draw.of(&RATES) },
        _ => Kind::Quiet,
    };
    Fault { at, ms, kind }
}
