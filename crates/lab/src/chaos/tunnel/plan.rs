//! Plan of a run: the world, and the faults with the step at which each begins. A plan is drawn from a seed, written to a file,
//! read back and shrunk; it determines everything that happens in a run.

use super::check::{Invariant, Tally, Violation};
use super::draw::RandomStream;
use super::run;
use super::system::{self, System};
use serde::{Deserialize, Serialize};

/// Maximum number of UEs without the hostile one.
pub const MAX_UES: u8 = 4;
/// Number of accesses of a UE.
pub const ACCESSES: u8 = 2;
/// Version of the file format. It also changes when a run draws differently from a seed.
pub const VERSION: u32 = 1;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The system's name.
    #[serde(default = "name")]
    pub system: String,
    /// Version of the file format.
    pub version: u32,
    /// Seed of all draws during the run.
    pub seed: u64,
    /// Number of steps, each one event, before the faults stop.
    pub steps: u64,
    /// Number of UPFs, 1 or 2; UE *i* starts at UPF *i* modulo this.
    pub upfs: u8,
    /// Whether user data is sent in clear text, by access.
    pub plain: [bool; 2],
    /// Whether there is a UE with valid keys that violates the protocol.
    #[serde(default)]
    pub hostile: bool,
    /// Whether there are senders without keys: garbage, replays, handshakes, spoofed sources.
    #[serde(default)]
    pub strangers: bool,
    /// The UEs.
    #[serde(default)]
    pub ues: Vec<UePlan>,
    /// The faults.
    #[serde(default, rename = "fault")]
    pub faults: Vec<Fault>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UePlan {
    /// Its steering mode.
    pub mode: Mode,
    /// Whether its rule restores the order.
    pub reorder: bool,
    /// One-way delay by access, milliseconds.
    pub delay_ms: [u64; 2],
    /// Maximum size of an IP packet by access, bytes.
    pub mtu: [usize; 2],
    /// Mean time between packets of a flow, milliseconds.
    pub pace_ms: u64,
    /// Whether traffic starts before there is a session.
    pub early: bool,
    /// The monotonic clock of its host; UPFs use the clock of the world.
    #[serde(default)]
    pub clock: HostClock,
}

/// A monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostClock {
    /// Uptime of the program when the world begins, milliseconds. After a restart its clock begins at 0.
    pub ahead_ms: u64,
    /// Drift relative to the clock of the world, parts per million.
    pub drift_ppm: i32,
}

/// A steering mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Active-standby on the first access.
    First,
    /// Active-standby on the second access.
    Second,
    /// Active-standby that changes the access of the uplink every few packets.
    Rotate,
    /// Smallest delay.
    SmallestDelay,
    /// Half of the packets on each access.
    Balance,
    /// Half of the flows on each access.
    BalanceFlows,
    /// Autonomous load-balance.
    Autonomous,
    /// The first access until its round trip exceeds a threshold.
    Priority,
    /// Every packet on both accesses.
    Redundant,
    /// With repair packets.
    Coded,
}

/// All modes.
pub const MODES: [Mode; 10] = [
    Mode::First,
    Mode::Second,
    Mode::Rotate,
    Mode::SmallestDelay,
    Mode::Balance,
    Mode::BalanceFlows,
    Mode::Autonomous,
    Mode::Priority,
    Mode::Redundant,
    Mode::Coded,
];

/// A fault of this system.
pub type Fault = system::Fault<Kind>;

fn name() -> String {
    Plan::NAME.into()
}

/// A direction: towards the UPF, towards the UE, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkDirection {
    /// Towards the UPF.
    Up,
    /// Towards the UE.
    Down,
    /// Both.
    Both,
}

impl LinkDirection {
    /// Whether a direction is included.
    #[must_use]
    pub const fn has(self, up: bool) -> bool {
        matches!((self, up), (Self::Both, _) | (Self::Up, true) | (Self::Down, false))
    }
}

/// A direction of an access of a UE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkSelector {
    /// Index of the UE.
    pub ue: u8,
    /// Index of the access.
    pub access: u8,
    /// Direction.
    pub way: LinkDirection,
}

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Kind {
    /// Packets are lost in bursts.
    Loss {
        /// Where.
        #[serde(flatten)]
        place: LinkSelector,
        /// Share of the packets, percent.
        percent: u8,
        /// Mean length of a burst, packets.
        burst: u8,
    },
    /// No packet passes, without an indication.
    Partition {
        /// Where.
        #[serde(flatten)]
        place: LinkSelector,
    },
    /// Packets are reordered.
    Reorder {
        /// Where.
        #[serde(flatten)]
        place: LinkSelector,
        /// Maximum additional delay, milliseconds.
        jitter_ms: u16,
    },
    /// Packets are duplicated.
    Duplicate {
        /// Where.
        #[serde(flatten)]
        place: LinkSelector,
        /// Share of the packets, percent.
        percent: u8,
    },
    /// A byte is changed, and the outer checksum is adapted.
    Corrupt {
        /// Where.
        #[serde(flatten)]
        place: LinkSelector,
        /// Share of the packets, percent.
        percent: u8,
    },
    /// The one-way delay changes.
    Delay {
        /// Where.
        #[serde(flatten)]
        place: LinkSelector,
        /// New delay, milliseconds.
        delay_ms: u16,
    },
    /// The rate is limited, with a bounded queue.
    Rate {
        /// Where.
        #[serde(flatten)]
        place: LinkSelector,
        /// Rate, kbit/s.
        kbps: u32,
        /// Queue limit, packets.
        queue: u16,
    },
    /// Larger packets are dropped.
    Mtu {
        /// Where.
        #[serde(flatten)]
        place: LinkSelector,
        /// Maximum size of an IP packet, bytes.
        bytes: u16,
    },
    /// An access loses its carrier, and the UE is informed.
    Carrier {
        /// Index of the UE.
        ue: u8,
        /// Index of the access.
        access: u8,
    },
    /// A middlebox changes the source address of the UE's datagrams.
    Roam {
        /// Index of the UE.
        ue: u8,
        /// Index of the access.
        access: u8,
    },
    /// A UE ends and restarts after the given time, with or without its state file.
    RestartUe {
        /// Index of the UE.
        ue: u8,
        /// Whether the state file is kept.
        kept: bool,
    },
    /// A UPF ends and restarts after the given time.
    RestartUpf {
        /// Index of the UPF.
        upf: u8,
        /// Whether the state file is kept.
        kept: bool,
    },
    /// A UPF restarts with room for few sessions, and after the given time with enough.
    SmallUpf {
        /// Index of the UPF.
        upf: u8,
        /// Number of sessions.
        sessions: u8,
    },
    /// A UE restarts with a wrong wall clock, which is corrected after the given time.
    UeClock {
        /// Index of the UE.
        ue: u8,
        /// Offset, seconds.
        seconds: i32,
    },
    /// The wall clock of a UPF is changed, and corrected after the given time.
    UpfClock {
        /// Index of the UPF.
        upf: u8,
        /// Offset, seconds.
        seconds: i32,
    },
    /// The UE ends its session.
    CloseAtUe {
        /// Index of the UE.
        ue: u8,
    },
    /// The operator ends a session.
    CloseAtUpf {
        /// Index of the UE.
        ue: u8,
    },
    /// The operator removes a UE, and adds it again after the given time.
    Remove {
        /// Index of the UE.
        ue: u8,
    },
    /// A UE moves to the other UPF.
    Move {
        /// Index of the UE.
        ue: u8,
    },
    /// The rules of a UPF change.
    Rules {
        /// Index of the UPF.
        upf: u8,
        /// New mode.
        mode: Mode,
        /// Whether the order is restored.
        reorder: bool,
    },
    /// The UE's own rules change.
    UeRules {
        /// Index of the UE.
        ue: u8,
        /// New mode.
        mode: Mode,
        /// Whether the order is restored.
        reorder: bool,
    },
    /// The output queue of a UE is full.
    UeNoRoom {
        /// Index of the UE.
        ue: u8,
    },
    /// The output queue of a UPF is full.
    UpfNoRoom {
        /// Index of the UPF.
        upf: u8,
    },
    /// The events of a UPF are not read.
    Deaf {
        /// Index of the UPF.
        upf: u8,
    },
    /// No flow has data to send.
    Quiet,
    /// A burst of packets in both directions.
    Burst {
        /// Index of the UE.
        ue: u8,
        /// Packets per direction.
        packets: u8,
    },
}

impl Kind {
    /// Its name, as in a plan.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Loss { .. } => "loss",
            Self::Partition { .. } => "partition",
            Self::Reorder { .. } => "reorder",
            Self::Duplicate { .. } => "duplicate",
            Self::Corrupt { .. } => "corrupt",
            Self::Delay { .. } => "delay",
            Self::Rate { .. } => "rate",
            Self::Mtu { .. } => "mtu",
            Self::Carrier { .. } => "carrier",
            Self::Roam { .. } => "roam",
            Self::RestartUe { .. } => "restart-ue",
            Self::RestartUpf { .. } => "restart-upf",
            Self::SmallUpf { .. } => "small-upf",
            Self::UeClock { .. } => "ue-clock",
            Self::UpfClock { .. } => "upf-clock",
            Self::CloseAtUe { .. } => "close-at-ue",
            Self::CloseAtUpf { .. } => "close-at-upf",
            Self::Remove { .. } => "remove",
            Self::Move { .. } => "move",
            Self::Rules { .. } => "rules",
            Self::UeRules { .. } => "ue-rules",
            Self::UeNoRoom { .. } => "ue-no-room",
            Self::UpfNoRoom { .. } => "upf-no-room",
            Self::Deaf { .. } => "deaf",
            Self::Quiet => "quiet",
            Self::Burst { .. } => "burst",
        }
    }

    /// The UE affected, for plans with fewer UEs.
    #[must_use]
    pub const fn ue(mut self) -> Option<u8> {
        match self.ue_mut() {
            Some(ue) => Some(*ue),
            None => None,
        }
    }

    /// The UE affected, mutable.
    pub const fn ue_mut(&mut self) -> Option<&mut u8> {
        match self {
            Self::Loss { place, .. }
            | Self::Partition { place }
            | Self::Reorder { place, .. }
            | Self::Duplicate { place, .. }
            | Self::Corrupt { place, .. }
            | Self::Delay { place, .. }
            | Self::Rate { place, .. }
            | Self::Mtu { place, .. } => Some(&mut place.ue),
            Self::Carrier { ue, .. }
            | Self::Roam { ue, .. }
            | Self::RestartUe { ue, .. }
            | Self::UeClock { ue, .. }
            | Self::CloseAtUe { ue }
            | Self::CloseAtUpf { ue }
            | Self::Remove { ue }
            | Self::Move { ue }
            | Self::UeRules { ue, .. }
            | Self::UeNoRoom { ue }
            | Self::Burst { ue, .. } => Some(ue),
            _ => None,
        }
    }
}

/// Names of all kinds of faults of a plan, for the table of effects.
pub const KINDS: [&str; 26] = [
    "loss",
    "partition",
    "reorder",
    "duplicate",
    "corrupt",
    "delay",
    "rate",
    "mtu",
    "carrier",
    "roam",
    "restart-ue",
    "restart-upf",
    "small-upf",
    "ue-clock",
    "upf-clock",
    "close-at-ue",
    "close-at-upf",
    "remove",
    "move",
    "rules",
    "ue-rules",
    "ue-no-room",
    "upf-no-room",
    "deaf",
    "quiet",
    "burst",
];

/// Severity of the faults of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FaultSeverity {
    /// No fault that may lose or reorder packets: nothing may be lost, and the order holds.
    Calm,
    /// Faults of accesses; programs keep running.
    Accesses,
    /// All faults.
    All,
}

impl Plan {
    fn drawn(seed: u64, steps: u64) -> Self {
        let draw = &mut RandomStream::new(seed, 0);
        let severity = match draw.below(10) {
            0..=2 => FaultSeverity::Calm,
            3..=5 => FaultSeverity::Accesses,
            _ => FaultSeverity::All,
        };
        let count = draw.of(&[1, 1, 2, 2, 3, MAX_UES]);
        // A separate stream, so that plans of earlier seeds do not change.
        let clocks = &mut RandomStream::new(seed, 1);
        let ues: Vec<UePlan> = (0..count).map(|_| ue(draw, clocks, severity)).collect();
        let mut plan = Self {
            system: name(),
            version: VERSION,
            seed,
            steps,
            upfs: if draw.percent(30) { 2 } else { 1 },
            plain: [draw.percent(15), draw.percent(5)],
            hostile: draw.percent(40),
            strangers: draw.percent(40),
            ues,
            faults: Vec::new(),
        };
        let faults = match severity {
            FaultSeverity::Calm => draw.between((0, 3)),
            _ => draw.between((1, 4 + steps / 400)),
        };
        for _ in 0..faults {
            let fault = plan.fault(draw, severity);
            plan.faults.push(fault);
        }
        plan.faults.sort_by_key(|fault| fault.at);
        plan
    }

    fn fault(&self, draw: &mut RandomStream, severity: FaultSeverity) -> Fault {
        let at = draw.below(self.steps);
        // As short as a fade, or as long as a road tunnel.
        let ms = match draw.below(4) {
            0 => draw.between((1, 50)),
            1 => draw.between((50, 1_000)),
            2 => draw.between((200, 5_000)),
            _ => draw.between((1_000, 20_000)),
        };
        let ue = draw.below(self.ues.len() as u64) as u8;
        let upf = draw.below(self.upfs.into()) as u8;
        let access = draw.below(ACCESSES.into()) as u8;
        let way =
            draw.of(&[LinkDirection::Up, LinkDirection::Down, LinkDirection::Both, LinkDirection::Both]);
        let place = LinkSelector { ue, access, way };
        let kind = match severity {
            FaultSeverity::Calm => match draw.below(3) {
                0 => Kind::Duplicate { place, percent: draw.between((5, 60)) as u8 },
                1 => Kind::Quiet,
                _ => Kind::Burst { ue, packets: draw.between((2, 40)) as u8 },
            },
            FaultSeverity::Accesses => self.access_kind(draw, place),
            FaultSeverity::All if draw.percent(40) => self.access_kind(draw, place),
            FaultSeverity::All => match draw.below(17) {
                0 | 1 => Kind::RestartUe { ue, kept: draw.percent(50) },
                2 | 3 => Kind::RestartUpf { upf, kept: draw.percent(50) },
                4 => Kind::SmallUpf { upf, sessions: draw.below(3) as u8 },
                5 => Kind::UeClock { ue, seconds: clock(draw) },
                6 => Kind::UpfClock { upf, seconds: clock(draw) },
                7 => Kind::CloseAtUe { ue },
                8 => Kind::CloseAtUpf { ue },
                9 => Kind::Remove { ue },
                10 => Kind::Move { ue },
                11 => Kind::Rules { upf, mode: draw.of(&MODES), reorder: draw.percent(75) },
                12 => Kind::UeRules { ue, mode: draw.of(&MODES), reorder: draw.percent(75) },
                13 => Kind::UeNoRoom { ue },
                14 => Kind::UpfNoRoom { upf },
                15 => Kind::Deaf { upf },
                _ => Kind::Quiet,
            },
        };
        // A silence long enough that sessions become idle, and keys change or expire.
        let ms = if kind == Kind::Quiet { draw.of(&[3_000, 12_000, 70_000, 130_000, 200_000]) } else { ms };
        Fault { at, ms, kind }
    }

    fn access_kind(&self, draw: &mut RandomStream, place: LinkSelector) -> Kind {
        let percent = draw.between((1, 60)) as u8;
        match draw.below(12) {
            0 | 1 => Kind::Loss { place, percent, burst: draw.between((1, 20)) as u8 },
            2 | 3 => Kind::Partition { place },
            4 => Kind::Reorder { place, jitter_ms: draw.between((1, 120)) as u16 },
            5 => Kind::Duplicate { place, percent },
            // Corruption in clear text cannot be detected.
            6 if !self.plain.contains(&true) => Kind::Corrupt { place, percent },
            7 => Kind::Delay { place, delay_ms: draw.between((0, 400)) as u16 },
            8 => Kind::Rate {
                place,
                kbps: draw.between((20, 3_000)) as u32,
                queue: draw.between((1, 50)) as u16,
            },
            9 => Kind::Mtu { place, bytes: draw.between((1_280, 1_500)) as u16 },
            10 => Kind::Carrier { ue: place.ue, access: place.access },
            _ => Kind::Roam { ue: place.ue, access: place.access },
        }
    }
}

fn ue(draw: &mut RandomStream, clocks: &mut RandomStream, severity: FaultSeverity) -> UePlan {
    let calm = severity == FaultSeverity::Calm;
    UePlan {
        mode: draw.of(&MODES),
        reorder: draw.percent(80),
        delay_ms: [draw.between((1, 80)), draw.between((1, 80))],
        mtu: if calm || draw.percent(70) {
            [1_500; 2]
        } else {
            [draw.between((1_280, 1_500)) as usize, draw.between((1_280, 1_500)) as usize]
        },
        pace_ms: draw.of(&[5, 20, 50, 100]),
        early: !calm && draw.percent(30),
        clock: host_clock(clocks),
    }
}

/// A quartz oscillator is within 100 ppm; the clock of a virtual machine may be worse. 32-bit counters of microseconds and of
/// milliseconds wrap some seconds after the start of some worlds.
fn host_clock(draw: &mut RandomStream) -> HostClock {
    const WRAP: u64 = 1 << 32;
    HostClock {
        ahead_ms: draw.of(&[
            0,
            0,
            1,
            WRAP / 2_000 - 5_000,
            WRAP / 1_000 - 10_000,
            WRAP - 20_000,
            34_560_000_000,
        ]),
        drift_ppm: match draw.below(4) {
            0 => 0,
            1 | 2 => draw.below(201) as i32 - 100,
            _ => draw.below(1_001) as i32 - 500,
        },
    }
}

fn clock(draw: &mut RandomStream) -> i32 {
    let seconds = draw.of(&[1, 60, 3_600, 43_200, 172_800, 31_536_000]);
    if draw.percent(50) { seconds } else { -seconds }
}

impl System for Plan {
    type Kind = Kind;

    const NAME: &'static str = "tunnel";
    const KINDS: &'static [&'static str] = &KINDS;
    const ACTORS: &'static [&'static str] = &["hostile", "strangers"];
    const INVARIANTS: &'static [Invariant] = &[
        Invariant::Intact,
        Invariant::Once,
        Invariant::Reliable,
        Invariant::Sealed,
        Invariant::OwnSource,
        Invariant::Lossless,
        Invariant::Order,
        Invariant::Prompt,
        Invariant::Measured,
        Invariant::Served,
        Invariant::Counted,
        Invariant::Share,
        Invariant::Bounded,
        Invariant::NoSpin,
        Invariant::Converges,
        Invariant::Empty,
        Invariant::Independent,
        Invariant::NoPanic,
    ];

    fn of(seed: u64, steps: u64) -> Self {
        Self::drawn(seed, steps)
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn faults(&self) -> &[Fault] {
        &self.faults
    }

    fn with(&self, steps: u64, faults: Vec<Fault>) -> Self {
        Self { steps, faults, ..self.clone() }
    }

    fn simpler(&self) -> Vec<Self> {
        let mut plans = vec![
            Self { hostile: false, ..self.clone() },
            Self { strangers: false, ..self.clone() },
            Self { upfs: 1, ..self.clone() },
            Self { plain: [false; 2], ..self.clone() },
        ];
        if self.ues.len() > 1 {
            plans.extend((0..self.ues.len()).rev().map(|ue| self.without_ue(ue as u8)));
        }
        for n in 0..self.faults.len() {
            let mut plan = self.clone();
            if let Kind::Burst { packets, .. } = &mut plan.faults[n].kind {
                *packets = (*packets / 2).max(1);
                plans.push(plan);
            }
        }
        let changes: [fn(&mut UePlan); 5] = [
            |ue| ue.clock = HostClock::default(),
            |ue| ue.mode = Mode::First,
            |ue| ue.mtu = [1_500; 2],
            |ue| ue.early = false,
            |ue| ue.delay_ms = [10, 20],
        ];
        for n in 0..self.ues.len() {
            for change in changes {
                let mut plan = self.clone();
                change(&mut plan.ues[n]);
                plans.push(plan);
            }
        }
        plans
    }

    fn play(&self, tally: &mut Tally, trace: &mut Option<Vec<String>>) -> Result<(), Violation> {
        run::whole(self, tally, trace)
    }

    fn check(&self) -> Result<(), String> {
        let plan = self;
        system::known(plan.version, VERSION, &plan.system, Self::NAME)?;
        if plan.ues.is_empty() || plan.ues.len() > usize::from(MAX_UES) {
            return Err(format!("{} UEs: write 1 to {MAX_UES}", plan.ues.len()));
        }
        if !(1..=2).contains(&plan.upfs) {
            return Err(format!("upfs = {}: write 1 or 2", plan.upfs));
        }
        let access = |fault: &Fault| match fault.kind {
            Kind::Loss { place, .. }
            | Kind::Partition { place }
            | Kind::Reorder { place, .. }
            | Kind::Duplicate { place, .. }
            | Kind::Corrupt { place, .. }
            | Kind::Delay { place, .. }
            | Kind::Rate { place, .. }
            | Kind::Mtu { place, .. } => place.access,
            Kind::Carrier { access, .. } | Kind::Roam { access, .. } => access,
            _ => 0,
        };
        if let Some(fault) = plan.faults.iter().find(|fault| access(fault) >= ACCESSES) {
            return Err(format!("fault at {}: access {}: write 0 or 1", fault.at, access(fault)));
        }
        Ok(())
    }
}

impl Plan {
    /// The same plan without one UE. Later UEs, and the faults that affect them, move up.
    #[must_use]
    pub fn without_ue(&self, gone: u8) -> Self {
        let mut plan = self.clone();
        plan.ues.remove(usize::from(gone).min(self.ues.len().saturating_sub(1)));
        plan.faults.retain(|fault| fault.kind.ue() != Some(gone));
        for fault in &mut plan.faults {
            if let Some(ue) = fault.kind.ue_mut()
                && *ue > gone
            {
                *ue -= 1;
            }
        }
        plan
    }
}
