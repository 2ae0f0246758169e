//! Lists of operations on a UE and a UPF with an adversary between them: inner packets, time, datagrams
//! dropped, duplicated, delayed and damaged, accesses lost, rules changed, either end restarted.
//!
//! Whatever happens: no panic, no spinning, nothing delivered that was not sent, nothing twice, memory
//! bounded; and when the adversary is gone, the session works again. If nothing was lost on the way, nothing
//! is lost at all, and flows that are to be in order are.
#![no_main]

use anabranch_atsss::crypto::{PrivateKey, Suite};
use anabranch_atsss::session::{Addresses, Security, SessionParams};
use anabranch_atsss::ue::{Ue, UeAccess, UeCommand, UeConfig};
use anabranch_atsss::upf::{UeEntry, Upf, UpfAccess, UpfCommand, UpfConfig};
use anabranch_atsss::{DatagramSink, PacketSink, PathId};
use anabranch_element::time::{Duration, Instant};
use anabranch_steer::{
    Rule, SteeringMode, active_standby, coded,
    load_balance::{self, Granularity, Weight},
    priority_based, redundant, smallest_delay,
};
use anabranch_wire::ip;
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rand_chacha::ChaCha20Rng;
use rand_core::{RngCore, SeedableRng};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

#[derive(Arbitrary, Debug)]
struct Input {
    plain: [bool; 2],
    rules: Choice,
    delays_ms: [u8; 2],
    ops: Vec<Op>,
}

#[derive(Arbitrary, Debug, Clone, Copy)]
enum Op {
    Up {
        flow: u8,
        size: u16,
    },
    Down {
        flow: u8,
        size: u16,
    },
    /// Several packets at once, both ways.
    Burst {
        flow: u8,
        count: u8,
    },
    Pass {
        ms: u8,
    },
    /// Long enough for probes, rests, rekeys and expiry.
    Wait {
        s: u8,
    },
    // What the adversary does to the datagram with this number, of those under way.
    Drop(u8),
    Duplicate {
        which: u8,
        after_ms: u8,
    },
    Delay {
        which: u8,
        ms: u16,
    },
    Damage {
        which: u8,
        at: u16,
        bits: u8,
    },
    Truncate {
        which: u8,
        len: u16,
    },
    /// A datagram of the past once more, from where it came or from elsewhere.
    Replay {
        which: u8,
        elsewhere: bool,
    },
    /// One that nobody sent: a first byte, and noise.
    Forge {
        up: bool,
        path: bool,
        first: u8,
        len: u16,
    },
    /// A datagram of the UE comes from another address from now on.
    Roam {
        path: bool,
        port: u8,
    },
    Carrier {
        path: bool,
        up: bool,
    },
    Rules(Choice),
    UeRules(Choice),
    Exception(bool),
    RestartUpf,
    RestartUe,
    CloseAtUpf,
    CloseAtUe,
    /// Latency of an access changes.
    Latency {
        path: bool,
        ms: u8,
    },
}

#[derive(Arbitrary, Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Standby5g,
    StandbyWifi,
    SmallestDelay,
    Balance,
    BalanceByFlow,
    Priority,
    Redundant,
    Coded,
}

#[derive(Arbitrary, Debug, Clone, Copy)]
struct Choice {
    mode: Mode,
    reorder: bool,
}

impl Choice {
    fn rules(self, name: &str) -> Vec<Rule> {
        let weights = || ["5g", "wifi"].map(|access| Weight { access: access.into(), percent: 50 }).to_vec();
        let steering = match self.mode {
            Mode::Standby5g => SteeringMode::ActiveStandby(active_standby::Params {
                primary: "5g".into(),
                rotate_packets: 0,
                leave_above_loss_percent: 5,
            }),
            Mode::StandbyWifi => SteeringMode::ActiveStandby(active_standby::Params {
                primary: "wifi".into(),
                rotate_packets: 0,
                leave_above_loss_percent: 5,
            }),
            Mode::SmallestDelay => SteeringMode::SmallestDelay(smallest_delay::Params {
                hysteresis_percent: 10,
                dwell_ms: 200,
                leave_above_loss_percent: 5,
            }),
            Mode::Balance | Mode::BalanceByFlow => {
                let per = if self.mode == Mode::Balance { Granularity::Packet } else { Granularity::Flow };
                SteeringMode::LoadBalance(load_balance::Params { weights: weights(), per, autonomous: false })
            }
            Mode::Priority => SteeringMode::PriorityBased(priority_based::Params {
                primary: "5g".into(),
                rtt_ms: Some(40.0),
                loss_percent: Some(5.0),
            }),
            Mode::Redundant => SteeringMode::Redundant(redundant::Params { above_loss_percent: None }),
            Mode::Coded => SteeringMode::Coded(coded::Params {
                overhead_percent: 50,
                window_packets: 16,
                longest_wait_ms: 100,
            }),
        };
        vec![
            Rule {
                name: name.into(),
                filter: Default::default(),
                steering,
                reorder: self.reorder,
                functionality: Default::default(),
            },
            Rule {
                name: "other".into(),
                filter: Default::default(),
                steering: SteeringMode::ActiveStandby(active_standby::Params {
                    primary: "5g".into(),
                    rotate_packets: 0,
                    leave_above_loss_percent: 5,
                }),
                reorder: true,
                functionality: Default::default(),
            },
        ]
    }
}

/// A datagram under way.
struct Flight {
    at: Instant,
    sent: Instant,
    serial: u64,
    up: bool,
    path: PathId,
    bytes: Vec<u8>,
}

/// A datagram of the past.
struct Past {
    up: bool,
    path: PathId,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct Out(Vec<(PathId, Vec<u8>)>);

impl DatagramSink for Out {
    fn reserve(&mut self, path: PathId, _to: SocketAddr, len: usize) -> Option<&mut [u8]> {
        self.0.push((path, vec![0; len]));
        self.0.last_mut().map(|(_, bytes)| bytes.as_mut_slice())
    }

    fn withdraw(&mut self, _path: PathId) {
        self.0.pop();
    }
}

#[derive(Default)]
struct Inner(Vec<Vec<u8>>);

impl PacketSink for Inner {
    fn deliver(&mut self, packet: &mut [u8]) {
        self.0.push(packet.to_vec());
    }
}

/// What was sent, and how often it arrived.
struct Sent {
    up: bool,
    flow: u8,
    bytes: Vec<u8>,
    arrived: u32,
}

struct World {
    now: Instant,
    ue: Ue,
    upf: Upf,
    ue_config: UeConfig,
    upf_config: UpfConfig,
    entry: UeEntry,
    flights: Vec<Flight>,
    serial: u64,
    /// What arrived lately.
    past: VecDeque<Past>,
    delays: [Duration; 2],
    /// When the last datagram of (direction, path) arrives: paths keep their order.
    last_arrival: [[Instant; 2]; 2],
    carrier: [bool; 2],
    ports: [u16; 2],
    sent: BTreeMap<u64, Sent>,
    next_id: u64,
    /// Ids in the order of their arrival, by direction and flow.
    order: BTreeMap<(bool, u8), Vec<u64>>,
    seed: u8,
    /// Nothing was lost so far, and nothing restarted.
    lossless: bool,
    /// Nothing disturbed the order so far.
    orderly: bool,
    plain: bool,
}

const UE_V4: Ipv4Addr = Ipv4Addr::new(10, 45, 0, 2);
const UE_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const SERVER_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 80);
/// Where attacks come from that do not come from the ends themselves.
const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7));
const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 80);
/// No network keeps a datagram for longer (RFC 9293 assumes two minutes; ours is a lively one).
const LIFETIME: Duration = Duration::from_secs(2);
const MAX_FLIGHTS: usize = 2000;
/// What the adversary has recorded: no more than this.
const MAX_PAST: usize = 256;

fn remote(path: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1 + path as u8], 4500))
}

impl World {
    fn new(input: &Input) -> Self {
        let mut rng = ChaCha20Rng::from_seed([5; 32]);
        let (ue_key, upf_key) = (PrivateKey::generate(&mut rng), PrivateKey::generate(&mut rng));
        let security = input.plain.map(|p| if p { Security::Plain } else { Security::Secure });
        let params = SessionParams::default();
        let names = ["5g", "wifi"];
        let upf_config = UpfConfig {
            private_key: upf_key.clone(),
            accesses: (0..2)
                .map(|i| UpfAccess { name: names[i].into(), security: security[i], local: None })
                .collect(),
            rules: input.rules.rules("all"),
            params: params.clone(),
            shard: 2,
            shards: 3,
            max_sessions: 2,
            unix_epoch_ns: 1_000_000_000,
        };
        let entry = UeEntry {
            name: "ue".into(),
            key: ue_key.public(),
            addresses: Addresses { v4: Some(UE_V4), v6: Some(UE_V6) },
            rules: Vec::new(),
            accept_rules: true,
        };
        let ue_config = UeConfig {
            private_key: ue_key,
            upf_key: upf_key.public(),
            suite: Suite::Aes256Gcm,
            accesses: (0..2)
                .map(|i| UeAccess {
                    name: names[i].into(),
                    remote: remote(i),
                    local: None,
                    security: security[i],
                    max_payload: 1472,
                })
                .collect(),
            rules: Vec::new(),
            params,
            unix_epoch_ns: 1_000_000_000,
            last_timestamp_ns: 0,
        };
        let now = Instant::ZERO;
        let mut upf = Upf::new(upf_config.clone(), [1; 32], now).expect("rules fit");
        upf.command(UpfCommand::AddUe(entry.clone()), now).expect("a free address");
        let mut world = Self {
            now,
            ue: Ue::new(ue_config.clone(), [2; 32], now).expect("valid"),
            upf,
            ue_config,
            upf_config,
            entry,
            flights: Vec::new(),
            serial: 0,
            past: VecDeque::new(),
            delays: input.delays_ms.map(|ms| Duration::from_millis(u64::from(ms) / 2 + 1)),
            last_arrival: [[Instant::ZERO; 2]; 2],
            carrier: [true; 2],
            ports: [1000, 1001],
            sent: BTreeMap::new(),
            next_id: 1,
            order: BTreeMap::new(),
            seed: 3,
            lossless: true,
            orderly: true,
            plain: input.plain.contains(&true),
        };
        world.run(Duration::from_secs(2));
        assert!(world.ue.is_connected(), "{:?} {:?}", world.ue.drops(), world.upf.drops());
        world
    }

    fn source(&self, path: PathId) -> SocketAddr {
        SocketAddr::from(([100, 64, 0, path + 1], self.ports[usize::from(path) % 2]))
    }

    fn put(&mut self, up: bool, datagrams: Vec<(PathId, Vec<u8>)>) {
        for (path, bytes) in datagrams {
            let p = usize::from(path);
            assert!(p < 2 && bytes.len() <= 1500, "path {path}, {} bytes", bytes.len());
            if !self.carrier[p] || self.flights.len() >= MAX_FLIGHTS {
                self.lossless = false;
                continue;
            }
            let at = (self.now + self.delays[p]).max(self.last_arrival[usize::from(up)][p]);
            self.last_arrival[usize::from(up)][p] = at;
            self.serial += 1;
            self.flights.push(Flight { at, sent: self.now, serial: self.serial, up, path, bytes });
        }
    }

    /// Takes what came out, and checks it.
    fn take(&mut self, up: bool, packets: Vec<Vec<u8>>) {
        for packet in packets {
            let protocol = match packet[0] >> 4 {
                4 => packet[9],
                _ => packet[6],
            };
            if protocol == 1 || protocol == 58 {
                continue; // "too big", to whoever sent it
            }
            let (_, _, payload) = ip::parse_udp(&packet).expect("what was sent was UDP");
            let id = u64::from_be_bytes(packet[payload][..8].try_into().expect("an id"));
            let sent = self.sent.get_mut(&id).expect("nothing is delivered that was not sent");
            assert_eq!((sent.up, &sent.bytes), (up, &packet), "what arrives is what was sent");
            sent.arrived += 1;
            // Without keys nobody can tell a copy, unless a sequence number shows it.
            assert!(sent.arrived == 1 || self.plain, "packet {id} arrived twice");
            self.order.entry((up, sent.flow)).or_default().push(id);
        }
    }

    /// Lets both ends do what is due now, until both are silent.
    fn turn(&mut self) {
        for round in 0.. {
            assert!(round < 32, "spins: {:?} {:?}", self.ue.poll_timeout(), self.upf.poll_timeout());
            let due = |at: Option<(Instant, &str)>| at.is_some_and(|(at, _)| at <= self.now);
            if round > 0 && !due(self.ue.poll_timeout()) && !due(self.upf.poll_timeout()) {
                break;
            }
            let (mut out, mut inner) = (Out::default(), Inner::default());
            self.ue.poll(self.now, &mut out, &mut inner);
            self.put(true, out.0);
            self.take(false, inner.0);
            let (mut out, mut inner) = (Out::default(), Inner::default());
            self.upf.poll(self.now, &mut out, &mut inner);
            self.put(false, out.0);
            self.take(true, inner.0);
        }
        while self.ue.poll_event().is_some() {}
        while self.upf.poll_event().is_some() {}
        assert!(self.upf.session_count() <= 1);
        assert!(self.upf.pool().used_bytes() <= self.upf.pool().config().bytes);
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.turn();
            let flight = self.flights.iter().map(|f| f.at).min();
            let timers = [self.ue.poll_timeout(), self.upf.poll_timeout()];
            let next = timers.into_iter().flatten().map(|(at, _)| at).chain(flight).min();
            let Some(at) = next.filter(|at| *at <= end) else { break };
            self.now = self.now.max(at);
            self.arrive();
        }
        self.now = end;
    }

    fn arrive(&mut self) {
        let mut due: Vec<Flight> = Vec::new();
        let mut i = 0;
        while i < self.flights.len() {
            if self.flights[i].at <= self.now { due.push(self.flights.swap_remove(i)) } else { i += 1 }
        }
        due.sort_by_key(|f| (f.at, f.serial));
        for mut f in due {
            if !self.carrier[usize::from(f.path)] || self.now - f.sent > LIFETIME {
                self.lossless = false;
                continue;
            }
            if self.past.len() == MAX_PAST {
                self.past.pop_front();
            }
            self.past.push_back(Past { up: f.up, path: f.path, bytes: f.bytes.clone() });
            let from = if f.up { self.source(f.path) } else { remote(f.path.into()) };
            self.hand_over(f.up, f.path, from, &mut f.bytes);
        }
    }

    fn hand_over(&mut self, up: bool, path: PathId, from: SocketAddr, bytes: &mut [u8]) {
        let (mut out, mut inner) = (Out::default(), Inner::default());
        if up {
            self.upf.datagram(path, from, bytes, self.now, &mut out, &mut inner);
            if from.ip() == STRANGER {
                out.0.clear(); // answers go to the stranger
            }
            self.put(false, out.0);
        } else {
            self.ue.datagram(path, from, bytes, self.now, &mut inner);
        }
        self.take(up, inner.0);
    }

    /// A datagram of which nobody may take notice: none is delivered, and each counts as dropped.
    fn attack(&mut self, up: bool, path: PathId, from: SocketAddr, mut bytes: Vec<u8>) {
        let drops = |w: &Self| if up { w.upf.drops().total() } else { w.ue.drops().total() };
        let before = drops(self);
        self.hand_over(up, path, from, &mut bytes);
        assert!(
            drops(self) > before,
            "not counted: {up} {path} {from} {:02x?}",
            &bytes[..bytes.len().min(64)]
        );
    }

    fn send(&mut self, up: bool, flow: u8, size: u16) {
        let id = self.next_id;
        self.next_id += 1;
        let flow = flow % 6;
        let (device, server): (IpAddr, IpAddr) =
            if flow < 4 { (UE_V4.into(), SERVER_V4.into()) } else { (UE_V6.into(), SERVER_V6.into()) };
        let (device, server) = (SocketAddr::new(device, 5000 + u16::from(flow)), SocketAddr::new(server, 9));
        let mut payload = vec![id as u8; 8 + usize::from(size % 1500)];
        payload[..8].copy_from_slice(&id.to_be_bytes());
        let (from, to) = if up { (device, server) } else { (server, device) };
        let mut packet = ip::udp_datagram(from, to, &payload).expect("same family");
        self.sent.insert(id, Sent { up, flow, bytes: packet.clone(), arrived: 0 });
        // Too large, or no path: dropped and counted.
        let drops = |w: &Self| if up { w.ue.drops().total() } else { w.upf.drops().total() };
        let before = drops(self);
        let mut out = Out::default();
        if up {
            self.ue.uplink(&mut packet, self.now, &mut out);
        } else {
            self.upf.downlink(&mut packet, self.now, &mut out);
        }
        self.put(up, out.0);
        if drops(self) != before {
            self.sent.remove(&id);
        }
    }

    fn flight(&mut self, which: u8) -> Option<&mut Flight> {
        let n = self.flights.len();
        self.flights.get_mut(usize::from(which) % n.max(1))
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Up { flow, size } => self.send(true, flow, size),
            Op::Down { flow, size } => self.send(false, flow, size),
            Op::Burst { flow, count } => {
                for n in 0..count % 32 {
                    self.send(n % 2 == 0, flow, 100);
                }
            }
            Op::Pass { ms } => self.run(Duration::from_millis(ms.into())),
            Op::Wait { s } => self.run(Duration::from_secs(u64::from(s % 64))),
            Op::Drop(which) => {
                if !self.flights.is_empty() {
                    let n = self.flights.len();
                    self.flights.remove(usize::from(which) % n);
                    (self.lossless, self.orderly) = (false, false);
                }
            }
            Op::Duplicate { which, after_ms } => {
                let (now, serial) = (self.now, self.serial + 1);
                if let Some(f) = self.flight(which) {
                    let at = f.at.max(now) + Duration::from_millis(after_ms.into());
                    let copy = Flight { at, serial, bytes: f.bytes.clone(), ..*f };
                    self.serial = serial;
                    // Nothing tells a copy of plain data, which may come later than what follows it.
                    self.orderly &= copy.bytes.first().is_none_or(|first| first >> 4 != 8);
                    self.flights.push(copy);
                }
            }
            Op::Delay { which, ms } => {
                if let Some(f) = self.flight(which) {
                    f.at += Duration::from_millis((ms % 3000).into());
                    self.orderly = false;
                    // It may come too late to count, or make a probe look lost.
                    self.lossless = false;
                }
            }
            Op::Damage { which, at, bits } => {
                if let Some(f) = self.flight(which)
                    && f.bytes.first().is_some_and(|first| first >> 4 != 8)
                    && bits != 0
                {
                    let at = usize::from(at) % f.bytes.len();
                    f.bytes[at] ^= bits;
                    (self.lossless, self.orderly) = (false, false);
                }
            }
            Op::Truncate { which, len } => {
                if let Some(f) = self.flight(which) {
                    f.bytes.truncate(usize::from(len) % f.bytes.len().max(1));
                    (self.lossless, self.orderly) = (false, false);
                }
            }
            Op::Replay { which, elsewhere } => {
                let n = self.past.len().max(1);
                let Some(past) = self.past.get(usize::from(which) % n) else { return };
                let (up, path, bytes) = (past.up, past.path, past.bytes.clone());
                let home = if up { self.source(path) } else { remote(path.into()) };
                let from = if elsewhere { SocketAddr::new(STRANGER, 7) } else { home };
                // Plain data has no number that tells the copy, nor has a cookie.
                match bytes.first().map_or(0, |b| b >> 4) {
                    8 => self.orderly = false,
                    _ => self.lossless = false,
                }
                let mut bytes = bytes;
                self.hand_over(up, path, from, &mut bytes);
            }
            Op::Forge { up, path, first, len } => {
                let mut bytes = vec![0; usize::from(len % 1600)];
                ChaCha20Rng::seed_from_u64(self.next_id).fill_bytes(&mut bytes);
                if let Some(b) = bytes.first_mut() {
                    *b = first;
                }
                self.attack(up, path.into(), SocketAddr::new(STRANGER, 7), bytes);
            }
            Op::Roam { path, port } => {
                self.ports[usize::from(path)] = 1000 + u16::from(port);
                // Plain data from the new address is refused until a sealed packet has moved the path.
                self.lossless &= !self.plain;
                self.orderly &= !self.plain;
            }
            Op::Carrier { path, up } => {
                let path = usize::from(path);
                if self.carrier[path] != up {
                    self.carrier[path] = up;
                    (self.lossless, self.orderly) = (false, false);
                    let command = UeCommand::Carrier { path: path as PathId, up };
                    self.ue.on_command(command, self.now);
                }
            }
            Op::Rules(choice) => {
                self.upf_config.rules = choice.rules("all");
                let rules = self.upf_config.rules.clone();
                self.upf.command(UpfCommand::Rules(rules), self.now).expect("rules fit");
                self.orderly = false;
            }
            Op::UeRules(choice) => {
                self.ue_config.rules = choice.rules("own");
                let rules = self.ue_config.rules.clone();
                self.ue.on_command(UeCommand::Rules(rules), self.now);
                self.orderly = false;
            }
            Op::Exception(set) => {
                let (key, application) = (self.entry.key, "all".to_owned());
                let command = if set {
                    UpfCommand::SetException { key, application, rule: "other".into() }
                } else {
                    UpfCommand::ClearException { key, application }
                };
                self.upf.command(command, self.now).expect("the rules are there");
                self.orderly = false;
            }
            Op::RestartUpf => {
                self.seed = self.seed.wrapping_add(1);
                self.upf = Upf::new(self.upf_config.clone(), [self.seed; 32], self.now).expect("rules fit");
                self.upf.command(UpfCommand::AddUe(self.entry.clone()), self.now).expect("free");
                (self.lossless, self.orderly) = (false, false);
            }
            Op::RestartUe => {
                self.seed = self.seed.wrapping_add(1);
                self.ue = Ue::new(self.ue_config.clone(), [self.seed; 32], self.now).expect("valid");
                (self.lossless, self.orderly) = (false, false);
            }
            Op::CloseAtUpf => {
                self.upf.command(UpfCommand::CloseSession(self.entry.key), self.now).expect("known");
                (self.lossless, self.orderly) = (false, false);
            }
            Op::CloseAtUe => {
                self.ue.on_command(UeCommand::Close, self.now);
                (self.lossless, self.orderly) = (false, false);
            }
            Op::Latency { path, ms } => {
                // A path's delay may change; packets on it stay in order. What the far end holds packets
                // for is learned from round trips, so others' order may suffer for a moment.
                self.delays[usize::from(path)] = Duration::from_millis(u64::from(ms) + 1);
                self.orderly = false;
            }
        }
    }

    /// Every packet of a flow in the order it was sent.
    fn in_order(&self) -> bool {
        self.order.values().all(|ids| ids.is_sorted())
    }

    fn finish(mut self, choice: Choice) {
        self.run(Duration::from_secs(3));
        if self.lossless {
            for (id, sent) in &self.sent {
                assert!(sent.arrived >= 1, "packet {id} ({}) is lost", if sent.up { "up" } else { "down" });
            }
            if self.orderly && choice.reorder {
                assert!(self.in_order(), "{:?}", self.order);
            }
        }
        // The adversary goes away, the accesses come back: so must the session.
        for path in 0..2 {
            self.apply(Op::Carrier { path: path == 1, up: true });
        }
        self.run(Duration::from_secs(15));
        assert!(self.ue.is_connected(), "{:?} {:?}", self.ue.drops(), self.upf.drops());
        assert!(self.ue.paths().iter().all(|p| p.up), "{:?}", self.ue.paths());
        let first = self.next_id;
        for flow in 0..6 {
            self.send(true, flow, 1000);
            self.send(false, flow, 1000);
        }
        self.run(Duration::from_secs(2));
        for (id, sent) in self.sent.range(first..) {
            assert!(
                sent.arrived >= 1,
                "packet {id} ({}) is lost in the end",
                if sent.up { "up" } else { "down" }
            );
        }
        // And in peace it rests, and holds nothing. Paths that flapped are watched for a minute.
        let view = |w: &Self| w.upf.view(&w.entry.key).expect("known");
        for _ in 0..80 {
            self.run(Duration::from_secs(1));
            if view(&self).resting {
                break;
            }
        }
        let view = view(&self);
        assert!(view.connected && view.resting, "{view:?}");
        assert_eq!((self.upf.pool().used_bytes(), self.upf.pool().queues_used()), (0, 0));
    }
}

fuzz_target!(|input: Input| {
    let mut world = World::new(&input);
    for op in input.ops.iter().take(200) {
        world.apply(*op);
        world.turn();
    }
    world.finish(input.rules);
});
