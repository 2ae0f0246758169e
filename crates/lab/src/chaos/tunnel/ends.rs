//! The programs of a world: UEs and UPFs with their configuration, state files and sockets.

use super::draw::RandomStream;
use super::flow::{Flow, Transport};
use super::plan::{Mode, UePlan};
use anabranch_atsss::crypto::{PrivateKey, PublicKey, Suite};
use anabranch_atsss::session::{Addresses, Security, SessionParams};
use anabranch_atsss::ue::{Ue, UeAccess, UeCommand, UeConfig};
use anabranch_atsss::upf::{ComputedInit, UeEntry, Upf, UpfAccess, UpfCommand, UpfConfig};
use anabranch_atsss::{DatagramSink, PacketSink, PathId};
use anabranch_element::time::{Duration, Instant};
use anabranch_steer::{
    Rule, SteeringMode, active_standby, coded,
    load_balance::{self, Granularity, Weight},
    priority_based, redundant, smallest_delay,
};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Names of the accesses.
pub const NAMES: [&str; 2] = ["5g", "wifi"];
const MILLION: i128 = 1_000_000;
/// Unix time at which a world begins, nanoseconds.
const EPOCH_NS: i128 = 1_750_000_000_000_000_000;
/// Addresses of the server.
pub const SERVER: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 80)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x80))];

/// Rules for all traffic, besides one that matches nothing until an exception is added.
#[must_use]
pub fn rules(name: &str, mode: Mode, reorder: bool) -> Vec<Rule> {
    let standby = |primary: &str, rotate_packets| {
        SteeringMode::ActiveStandby(active_standby::Params {
            primary: primary.into(),
            rotate_packets,
            leave_above_loss_percent: 5,
        })
    };
    let balance = |per, autonomous| {
        SteeringMode::LoadBalance(load_balance::Params {
            weights: if autonomous {
                Vec::new()
            } else {
                NAMES.map(|access| Weight { access: access.into(), percent: 50 }).to_vec()
            },
            per,
            autonomous,
        })
    };
    let steering = match mode {
        Mode::First => standby(NAMES[0], 0),
        Mode::Second => standby(NAMES[1], 0),
        Mode::Rotate => standby(NAMES[0], 5),
        Mode::SmallestDelay => SteeringMode::SmallestDelay(smallest_delay::Params {
            hysteresis_percent: 10,
            dwell_ms: 200,
            leave_above_loss_percent: 5,
        }),
        Mode::Balance => balance(Granularity::Packet, false),
        Mode::BalanceFlows => balance(Granularity::Flow, false),
        Mode::Autonomous => balance(Granularity::Packet, true),
        Mode::Priority => SteeringMode::PriorityBased(priority_based::Params {
            primary: NAMES[0].into(),
            rtt_ms: Some(60.0),
            loss_percent: Some(5.0),
        }),
        Mode::Redundant => SteeringMode::Redundant(redundant::Params { above_loss_percent: None }),
        Mode::Coded => SteeringMode::Coded(coded::Params {
            overhead_percent: 50,
            window_packets: 16,
            longest_wait_ms: 100,
        }),
    };
    vec![Rule {
        name: name.into(),
        filter: Default::default(),
        steering,
        reorder,
        functionality: Default::default(),
    }]
}

/// Output of an end: datagrams and inner packets.
#[derive(Default)]
pub struct Out {
    /// Datagrams: access, destination, payload.
    pub datagrams: Vec<(PathId, SocketAddr, Vec<u8>)>,
    /// Inner packets.
    pub packets: Vec<Vec<u8>>,
}

/// The sockets of an end, which may have no room.
pub struct Sockets<'a> {
    datagrams: &'a mut Vec<(PathId, SocketAddr, Vec<u8>)>,
    room: bool,
    /// Number of datagrams refused for lack of room.
    pub refused: u64,
}

/// The device of an end.
pub struct Device<'a>(&'a mut Vec<Vec<u8>>);

impl Out {
    /// Sockets and device.
    pub fn sides(&mut self, room: bool) -> (Sockets<'_>, Device<'_>) {
        (Sockets { datagrams: &mut self.datagrams, room, refused: 0 }, Device(&mut self.packets))
    }
}

impl DatagramSink for Sockets<'_> {
    fn reserve(&mut self, path: PathId, to: SocketAddr, len: usize) -> Option<&mut [u8]> {
        if !self.room {
            self.refused += 1;
            return None;
        }
        self.datagrams.push((path, to, vec![0; len]));
        self.datagrams.last_mut().map(|(_, _, bytes)| bytes.as_mut_slice())
    }

    fn withdraw(&mut self, _path: PathId) {
        self.datagrams.pop();
    }
}

impl PacketSink for Device<'_> {
    fn deliver(&mut self, packet: &mut [u8]) {
        self.0.push(packet.to_vec());
    }
}

/// Whether a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Running {
    /// It has run since then.
    Since(Instant),
    /// It does not run.
    No,
}

/// A UE and the flows of its device.
pub struct UeEnd {
    /// The state machine.
    pub ue: Ue,
    /// Its configuration at start.
    pub config: UeConfig,
    /// Its entry at the UPFs.
    pub entry: UeEntry,
    /// Index of its UPF.
    pub home: usize,
    /// Whether it runs.
    pub running: Running,
    /// Its source addresses after translation by a middlebox, by access.
    pub source: [SocketAddr; 2],
    /// Offset of its wall clock, seconds.
    pub clock_s: i32,
    /// Contents of the state file.
    pub state_file_timestamp_ns: u64,
    /// Number of active faults that fill its queues.
    pub no_room: u32,
    /// Its traffic.
    pub flows: Vec<Flow>,
    /// Nothing happened to it that may lose a packet, apart from losses of its accesses.
    pub lossless: bool,
    /// By access: whether it was slow enough to be declared dead.
    silent: [bool; 2],
    /// Nothing happened that may change the order of packets.
    pub orderly: bool,
    /// Whether rules, its own or the UPF's, restore the order.
    pub reorder: bool,
    /// Packets sent since the last arrival, while a good access was available for long, and the time of the first; by direction
    /// and flow.
    pub unserved: [[(u32, Instant); super::ledger::MAX_FLOWS]; 2],
    /// Until then it may be without service.
    pub excused_until: Instant,
    /// Seeds of its processes.
    pub draw: RandomStream,
    /// Number of address changes.
    pub roamed: u16,
    pub plan: UePlan,
    /// When its process started, and the value of its clock at that time.
    began: (Instant, Duration),
}

/// Address of a UE on an access, before translation by a middlebox.
#[must_use]
pub fn local(ue: usize, access: usize, roamed: u16) -> SocketAddr {
    SocketAddr::from(([10, 100 + access as u8, ue as u8, 2 + (roamed % 200) as u8], 4_000 + roamed))
}

/// The address of a UPF on an access.
#[must_use]
pub fn remote(upf: usize, access: usize) -> SocketAddr {
    SocketAddr::from(([10, 110 + access as u8, upf as u8, 1], 4_500))
}

/// Virtual addresses of a UE.
#[must_use]
pub fn inner(ue: usize) -> Addresses {
    Addresses {
        v4: Some(Ipv4Addr::new(10, 45, 0, 2 + ue as u8)),
        v6: Some(Ipv6Addr::new(0xfd45, 0, 0, 0, 0, 0, 0, 2 + ue as u16)),
    }
}

/// Unix time at the start of a world by a clock with this offset.
#[must_use]
pub fn epoch_ns(clock_s: i32) -> u64 {
    u64::try_from(EPOCH_NS + i128::from(clock_s) * 1_000_000_000).unwrap_or(0)
}

impl UeEnd {
    /// UE `number` at UPF `home`.
    ///
    /// # Panics
    /// Never: its configuration is valid.
    #[must_use]
    pub fn new(
        plan: &UePlan,
        plain: [bool; 2],
        number: usize,
        home: usize,
        upf_key: PublicKey,
        seed: u64,
        now: Instant,
    ) -> Self {
        let mut draw = RandomStream::new(seed, 100 + number as u64);
        let key = PrivateKey::generate(draw.rng());
        let entry = UeEntry {
            name: format!("ue{number}"),
            key: key.public(),
            addresses: inner(number),
            rules: Vec::new(),
            accept_rules: true,
        };
        let config = UeConfig {
            private_key: key,
            upf_key,
            suite: if draw.percent(50) { Suite::Aes256Gcm } else { Suite::ChaCha20Poly1305 },
            accesses: (0..2)
                .map(|access| UeAccess {
                    name: NAMES[access].into(),
                    remote: remote(home, access),
                    local: None,
                    security: security(plain[access]),
                    max_payload: 1_472,
                })
                .collect(),
            rules: rules("own", plan.mode, plan.reorder),
            params: SessionParams::default(),
            unix_epoch_ns: 0,
            last_timestamp_ns: 0,
        };
        let begin = if plan.early { now } else { Instant::from_secs(3) };
        let flows = [
            (true, false, Transport::Udp),
            (false, false, Transport::Udp),
            (true, true, Transport::Reliable),
            (false, false, Transport::Reliable),
        ];
        let flows = (0_u8..)
            .zip(flows)
            .map(|(n, (up, v6, transport))| {
                let own = RandomStream::new(draw.bits(), n.into());
                Flow::new(n, up, v6, transport, plan.pace_ms, begin, own)
            })
            .collect();
        let ahead = Duration::from_millis(plan.clock.ahead_ms);
        let (ue, config) = started_ue(config, 0, (now, ahead), &mut draw);
        Self {
            ue,
            config,
            entry,
            home,
            running: Running::Since(now),
            source: [local(number, 0, 0), local(number, 1, 0)],
            clock_s: 0,
            state_file_timestamp_ns: 0,
            no_room: 0,
            flows,
            lossless: !plan.early,
            silent: [false; 2],
            orderly: !plan.early,
            reorder: plan.reorder,
            unserved: [[(0, now); super::ledger::MAX_FLOWS]; 2],
            excused_until: now,
            draw,
            roamed: 0,
            plan: plan.clone(),
            began: (now, ahead),
        }
    }

    /// Value of the clock of its process.
    #[must_use]
    pub fn clock(&self, now: Instant) -> Instant {
        let (began, shown) = self.began;
        let passed = i128::from((now - began).as_nanos() as u64);
        let drifted = passed + passed * i128::from(self.plan.clock.drift_ppm) / MILLION;
        Instant::ZERO + shown + Duration::from_nanos(u64::try_from(drifted).unwrap_or(0))
    }

    /// Passes a command to the UE.
    pub fn command(&mut self, command: UeCommand, now: Instant) {
        self.ue.on_command(command, self.clock(now));
    }

    /// Its next timer, by the clock of the world.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        let (at, _) = self.ue.poll_timeout()?;
        let (began, shown) = self.began;
        let shows = i128::from((at - (Instant::ZERO + shown)).as_nanos() as u64);
        let passed = shows * MILLION / (MILLION + i128::from(self.plan.clock.drift_ppm));
        // The first nanosecond at which its clock has that value.
        let mut due = began + Duration::from_nanos(u64::try_from(passed).unwrap_or(u64::MAX));
        while self.clock(due) < at && due < Instant::MAX {
            due += Duration::from_nanos(1);
        }
        Some(due)
    }

    /// Restarts the program.
    ///
    /// # Panics
    /// Never: its configuration was valid before.
    pub fn start(&mut self, now: Instant) {
        self.config.last_timestamp_ns = self.state_file_timestamp_ns;
        self.began = (now, Duration::ZERO);
        (self.ue, self.config) = started_ue(self.config.clone(), self.clock_s, self.began, &mut self.draw);
        self.running = Running::Since(now);
    }

    /// Records an event that may lose or reorder packets.
    pub fn disturb(&mut self) {
        (self.lossless, self.orderly) = (false, false);
    }

    /// An access is slower for a while, so packets may be reordered. If every access was `silent` long enough to be declared dead,
    /// there may have been no path.
    pub fn slow(&mut self, access: usize, silent: bool) {
        self.orderly = false;
        self.silent[access] |= silent;
        self.lossless &= self.silent.contains(&false);
    }

    /// Whether the process runs.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.running != Running::No
    }
}

/// A UE whose process starts at `began.0`, when its clock has the value `began.1`.
fn started_ue(
    config: UeConfig,
    clock_s: i32,
    began: (Instant, Duration),
    draw: &mut RandomStream,
) -> (Ue, UeConfig) {
    // Unix time at which its own clock was 0.
    let unix_epoch_ns = (epoch_ns(clock_s) + began.0.as_nanos()).saturating_sub(began.1.as_nanos() as u64);
    let config = UeConfig { unix_epoch_ns, ..config };
    (Ue::new(config.clone(), draw.secret(), Instant::ZERO + began.1).expect("valid"), config)
}

/// A UPF.
pub struct UpfEnd {
    /// The state machine.
    pub upf: Upf,
    /// Its configuration at start.
    pub config: UpfConfig,
    /// Whether it runs.
    pub running: Running,
    /// Contents of the state file: newest timestamps, by the bytes of the key.
    pub state_file: BTreeMap<[u8; 32], (PublicKey, u64)>,
    /// UEs configured at it.
    pub known: Vec<UeEntry>,
    /// Number of active faults that fill its queues.
    pub no_room: u32,
    /// Number of active faults during which its events are not read.
    pub deaf: u32,
    /// Number of sessions it has room for, if reduced.
    pub sessions: Option<u32>,
    /// Offset of its wall clock, seconds.
    pub clock_s: i32,
    /// Size of its tables after the start, bytes.
    pub table_bytes: usize,
    /// Handshakes in computation and when each is answered, in that order.
    pub answers: VecDeque<(Instant, ComputedInit)>,
    draw: RandomStream,
}

/// Maximum time to compute a handshake, with others before it, microseconds.
const HANDSHAKE_US: u64 = 2000;

/// Number of sessions of a UPF.
const SESSIONS: u32 = 8;

impl UpfEnd {
    /// UPF `number`, without UEs; `plain` marks the accesses in clear text.
    ///
    /// # Panics
    /// Never: its configuration is valid.
    #[must_use]
    pub fn new(number: usize, plain: [bool; 2], seed: u64, now: Instant) -> Self {
        let mut draw = RandomStream::new(seed, 200 + number as u64);
        let config = UpfConfig {
            private_key: PrivateKey::generate(draw.rng()),
            accesses: (0..2)
                .map(|access| UpfAccess {
                    name: NAMES[access].into(),
                    security: security(plain[access]),
                    local: None,
                })
                .collect(),
            rules: Vec::new(),
            params: SessionParams::default(),
            shard: 0,
            shards: 1,
            max_sessions: SESSIONS,
            unix_epoch_ns: epoch_ns(0),
        };
        Self {
            upf: started(&config, &mut draw, now),
            config,
            running: Running::Since(now),
            state_file: BTreeMap::new(),
            known: Vec::new(),
            no_room: 0,
            deaf: 0,
            sessions: None,
            clock_s: 0,
            table_bytes: 0,
            answers: VecDeque::new(),
            draw,
        }
    }

    /// Takes received handshakes, to be answered later.
    pub fn compute_handshakes(&mut self, now: Instant) {
        while let Some(handshake) = self.upf.poll_handshake() {
            let before = self.answers.back().map_or(now, |(at, _)| *at);
            let at = before.max(now) + Duration::from_micros(self.draw.below(HANDSHAKE_US));
            self.answers.push_back((at, handshake.compute()));
        }
    }

    /// Its public key.
    #[must_use]
    pub fn key(&self) -> PublicKey {
        self.config.private_key.public()
    }

    /// Adds a UE, which persists over restarts.
    ///
    /// # Panics
    /// Never: each UE has addresses of its own.
    pub fn know(&mut self, entry: &UeEntry, now: Instant) {
        self.known.retain(|known| known.key != entry.key);
        self.known.push(entry.clone());
        self.upf.command(UpfCommand::AddUe(entry.clone()), now).expect("a free address");
        self.table_bytes = self.table_bytes.max(self.upf.table_bytes());
    }

    /// Restarts the program.
    ///
    /// # Panics
    /// Never: its configuration was valid before.
    pub fn start(&mut self, now: Instant) {
        self.config.unix_epoch_ns = epoch_ns(self.clock_s);
        self.config.max_sessions = self.sessions.unwrap_or(SESSIONS);
        self.upf = started(&self.config, &mut self.draw, now);
        self.answers.clear();
        for entry in &self.known {
            self.upf.command(UpfCommand::AddUe(entry.clone()), now).expect("a free address");
        }
        for (key, timestamp_ns) in self.state_file.values().copied() {
            // A UE that is no longer configured needs no protection.
            let _ = self.upf.command(UpfCommand::NotBefore { key, timestamp_ns }, now);
        }
        self.running = Running::Since(now);
        self.table_bytes = self.upf.table_bytes();
    }

    /// Whether the process runs.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.running != Running::No
    }
}

/// A UPF that computes handshakes outside the datapath, as the program does.
fn started(config: &UpfConfig, draw: &mut RandomStream, now: Instant) -> Upf {
    let mut upf = Upf::new(config.clone(), draw.secret(), now).expect("valid");
    upf.defer_handshakes();
    upf
}

fn security(plain: bool) -> Security {
    if plain { Security::Plain } else { Security::Secure }
}
