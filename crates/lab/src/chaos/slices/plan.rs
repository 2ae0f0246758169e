//! Plan of a run of the slice manager.

use super::check::{Invariant, Tally, Violation};
use super::draw::RandomStream;
use super::system::{self, PlanOf};
use super::world;
use serde::{Deserialize, Serialize};

/// Maximum number of cells.
pub const MAX_CELLS: u8 = 3;
/// Maximum number of instances on one store.
pub const MAX_INSTANCES: u8 = 2;
/// Index of the UPF among the cells.
pub const UPF: usize = 100;

/// The world of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Downlink rate of each cell, Mbit/s; the uplink rate is half of it.
    pub cells_mbps: Vec<u64>,
    /// Instances of the manager on the same store, 1 or 2.
    pub instances: u8,
    /// UEs that may have slices.
    pub ues: u8,
    /// Mean time between commands, milliseconds.
    pub pace_ms: u64,
    /// Time between two checks of a cell, milliseconds.
    pub look_ms: u64,
    /// Mean time between requests of CAMARA clients, and of the operator about sessions at the UPF, milliseconds; 0: no such
    /// requests.
    #[serde(default)]
    pub clients_ms: u64,
}

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Kind {
    /// A cell refuses requests.
    Refuse {
        /// Index of the cell.
        cell: u8,
    },
    /// No message reaches a cell.
    Silent {
        /// Index of the cell.
        cell: u8,
    },
    /// A cell executes requests, and its answers are lost.
    AnswerLost {
        /// Index of the cell.
        cell: u8,
    },
    /// Answers of a cell are delayed.
    Slow {
        /// Index of the cell.
        cell: u8,
        /// Additional delay, milliseconds.
        delay_ms: u16,
    },
    /// Requests reach a cell a second time, later.
    Repeat {
        /// Index of the cell.
        cell: u8,
        /// Time between the two, milliseconds.
        later_ms: u16,
    },
    /// A cell executes the next change of shares and then hangs: neither this nor a later request is answered.
    Hang {
        /// Index of the cell.
        cell: u8,
    },
    /// A cell restarts without slices.
    RestartCell {
        /// Index of the cell.
        cell: u8,
    },
    /// The UPF temporarily cannot create or end sessions.
    UpfBusy,
    /// No message reaches the UPF.
    UpfSilent,
    /// The UPF executes requests, and its answers are lost.
    UpfAnswerLost,
    /// Answers of the UPF are delayed.
    UpfSlow {
        /// Additional delay, milliseconds.
        delay_ms: u16,
    },
    /// The UPF restarts without sessions.
    RestartUpf,
    /// A third party removes the session of a UE at the UPF, or changes its key.
    Beside {
        /// Index of the UE.
        ue: u8,
        /// Whether the key changes.
        key: bool,
    },
    /// The disk is full: changes are not stored.
    StoreFull,
    /// The store reports an error for a change, before or after storing it.
    StoreFails {
        /// Whether the change is stored.
        stored: bool,
    },
    /// Storing a change is delayed.
    StoreSlow {
        /// Additional delay, milliseconds.
        delay_ms: u16,
    },
    /// The store does not answer.
    StoreGone,
    /// An instance ends, and restarts from the stored records after the given time.
    RestartManager {
        /// Index of the instance.
        instance: u8,
    },
    /// The wall clock of an instance is wrong until the given time has passed.
    Clock {
        /// Index of the instance.
        instance: u8,
        /// Offset, seconds.
        seconds: i32,
    },
    /// Instances are not notified of each other's changes.
    NoNews,
    /// A burst of commands.
    Burst {
        /// Number of commands.
        commands: u8,
    },
}

impl Kind {
    /// Its name, as in a plan.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Refuse { .. } => "refuse",
            Self::Silent { .. } => "silent",
            Self::AnswerLost { .. } => "answer-lost",
            Self::Slow { .. } => "slow",
            Self::Repeat { .. } => "repeat",
            Self::Hang { .. } => "hang",
            Self::RestartCell { .. } => "restart-cell",
            Self::UpfBusy => "upf-busy",
            Self::UpfSilent => "upf-silent",
            Self::UpfAnswerLost => "upf-answer-lost",
            Self::UpfSlow { .. } => "upf-slow",
            Self::RestartUpf => "restart-upf",
            Self::Beside { .. } => "beside",
            Self::StoreFull => "store-full",
            Self::StoreFails { .. } => "store-fails",
            Self::StoreSlow { .. } => "store-slow",
            Self::StoreGone => "store-gone",
            Self::RestartManager { .. } => "restart-manager",
            Self::Clock { .. } => "clock",
            Self::NoNews => "no-news",
            Self::Burst { .. } => "burst",
        }
    }

    /// The cell affected.
    #[must_use]
    pub const fn cell(&self) -> Option<u8> {
        match self {
            Self::Refuse { cell }
            | Self::Silent { cell }
            | Self::AnswerLost { cell }
            | Self::Slow { cell, .. }
            | Self::Repeat { cell, .. }
            | Self::Hang { cell }
            | Self::RestartCell { cell } => Some(*cell),
            _ => None,
        }
    }

    /// Whether the fault affects requests to the UPF.
    #[must_use]
    pub const fn is_of_upf(&self) -> bool {
        matches!(self, Self::UpfBusy | Self::UpfSilent | Self::UpfAnswerLost | Self::UpfSlow { .. })
    }
}

/// A fault of this system.
pub type Fault = system::Fault<Kind>;
/// A plan of this system.
pub type Plan = PlanOf<Setting, Kind>;

impl system::Setting for Setting {
    type Kind = Kind;

    const NAME: &'static str = "slices";
    const VERSION: u32 = 1;
    const KINDS: &'static [&'static str] = &[
        "refuse",
        "silent",
        "answer-lost",
        "slow",
        "repeat",
        "hang",
        "restart-cell",
        "store-full",
        "store-fails",
        "store-slow",
        "store-gone",
        "restart-manager",
        "clock",
        "no-news",
        "burst",
        "upf-busy",
        "upf-silent",
        "upf-answer-lost",
        "upf-slow",
        "restart-upf",
        "beside",
    ];
    const ACTORS: &'static [&'static str] = &[];
    const INVARIANTS: &'static [Invariant] = &[
        Invariant::Admitted,
        Invariant::Remembered,
        Invariant::Versions,
        Invariant::Bounded,
        Invariant::NoSpin,
        Invariant::Converges,
        Invariant::Empty,
        Invariant::Returned,
        Invariant::Unique,
        Invariant::NoPanic,
    ];
    const SIMPLER: &'static [fn(&mut Self)] =
        &[|w| w.instances = 1, |w| w.ues = 1, |w| w.look_ms = 2_000, |w| w.clients_ms = 0];

    fn of(seed: u64, steps: u64) -> Plan {
        let draw = &mut RandomStream::new(seed, 0);
        let calm = draw.percent(25);
        let cells = draw.between((1, MAX_CELLS.into()));
        let world = Setting {
            cells_mbps: (0..cells).map(|_| draw.of(&[20, 100, 333])).collect(),
            instances: draw.of(&[1, 1, MAX_INSTANCES]),
            ues: draw.between((1, 6)) as u8,
            pace_ms: draw.of(&[20, 200, 2_000]),
            look_ms: draw.of(&[500, 2_000, 10_000]),
            clients_ms: RandomStream::new(seed, 3).of(&[100, 500, 3_000]),
        };
        Plan::drawn((seed, steps), draw, world, 3 + steps / 200, |draw, plan| fault(draw, plan, calm))
    }

    fn take_last(&mut self) -> Option<usize> {
        (self.cells_mbps.len() > 1).then(|| {
            self.cells_mbps.pop();
            self.cells_mbps.len()
        })
    }

    fn target(kind: &Kind) -> Option<u8> {
        kind.cell()
    }

    fn check(&self) -> Result<(), String> {
        let cells = self.cells_mbps.len();
        if cells == 0 || cells > usize::from(MAX_CELLS) {
            return Err(format!("{cells} cells: write 1 to {MAX_CELLS}"));
        }
        if let Some(mbps) = self.cells_mbps.iter().find(|mbps| !(1..=100_000).contains(*mbps)) {
            return Err(format!("cells_mbps: {mbps}: write 1 to 100000"));
        }
        if !(1..=MAX_INSTANCES).contains(&self.instances) {
            return Err(format!("instances = {}: write 1 or 2", self.instances));
        }
        if self.ues == 0 || self.pace_ms == 0 || !(100..=60_000).contains(&self.look_ms) {
            return Err("ues and pace_ms: write 1 or more; look_ms: 100 to 60000".into());
        }
        Ok(())
    }

    fn play(plan: &Plan, tally: &mut Tally, trace: &mut Option<Vec<String>>) -> Result<(), Violation> {
        world::play(plan, tally, trace)
    }
}

fn fault(draw: &mut RandomStream, plan: &Plan, calm: bool) -> Fault {
    let at = draw.below(plan.steps);
    let ms = match draw.below(3) {
        0 => draw.between((100, 1_000)),
        1 => draw.between((1_000, 15_000)),
        _ => draw.between((5_000, 120_000)),
    };
    let cell = draw.below(plan.world.cells_mbps.len() as u64) as u8;
    let instance = draw.below(plan.world.instances.into()) as u8;
    let kind = match draw.below(if calm { 13 } else { 23 }) {
        0 => Kind::StoreFull,
        1 => Kind::StoreFails { stored: draw.percent(50) },
        2 => Kind::StoreSlow { delay_ms: draw.between((1, 3_000)) as u16 },
        3 => Kind::StoreGone,
        4 | 5 => Kind::RestartManager { instance },
        6 => Kind::NoNews,
        7 => Kind::Burst { commands: draw.between((2, 20)) as u8 },
        // Faults of the UPF, in calm plans as well: the last five.
        n if n >= if calm { 8 } else { 18 } => match draw.below(6) {
            0 => Kind::UpfBusy,
            1 => Kind::UpfSilent,
            2 => Kind::UpfAnswerLost,
            3 => Kind::UpfSlow { delay_ms: draw.between((1, 9_000)) as u16 },
            4 => Kind::RestartUpf,
            _ => Kind::Beside { ue: draw.below(plan.world.ues.into()) as u8, key: draw.percent(50) },
        },
        8 | 9 => Kind::Refuse { cell },
        10 => Kind::Silent { cell },
        11 => Kind::AnswerLost { cell },
        12 => Kind::Slow { cell, delay_ms: draw.between((1, 9_000)) as u16 },
        13 => Kind::Repeat { cell, later_ms: draw.between((1, 6_000)) as u16 },
        14 => Kind::RestartCell { cell },
        15 | 16 => Kind::Hang { cell },
        _ => Kind::Clock { instance, seconds: draw.of(&[-86_400, -3_600, -10, 10, 3_600, 86_400]) },
    };
    Fault { at, ms, kind }
}
