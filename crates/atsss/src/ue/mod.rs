//! The UE's tunnel end: one session with a UPF over every access the device has.
//!
//! ```text
//!           ┌───────────┐ response ┌─────────────┐  keys 120 s old  ┌──────────┐
//!  start ──▶│ handshake │─────────▶│ established │◀────────────────▶│ rekeying │
//!           └───────────┘          └─────────────┘     response     └──────────┘
//!                 ▲  init again, next access     │ no path is up (UPF restarted, or no coverage)
//!                 └──────────────────────────────┘
//! ```
//!
//! Inner packets that arrive before the first handshake is complete, or while no path is up, wait in a small
//! bounded queue, so that the first packet of a connection does not cost a retransmission timeout.

mod element;
mod handshake;

pub use element::IP_PORT;

use crate::classify::{CompiledRule, FlowOwner, RuleSet};
use crate::crypto::{PrivateKey, PublicKey, Suite};
use crate::dns::DnsTable;
use crate::document::{Document, FlowHint};
use crate::drops::{DropCounters, DropReason};
use crate::fast::{FastLane, FastTraffic};
use crate::marks::Marked;
use crate::path::{Role, TrainBudget};
use crate::reorder::{Pool, PoolConfig};
use crate::session::{
    Addresses, Definitions, Origin, PathView, Profile, RuleView, Security, Session, SessionEvent,
    SessionParams, Shared, Traffic,
};
use crate::tcp_lane::{self, Start};
use crate::{DatagramSink, MAX_PATHS, PacketSink, PathId};
use anabranch_element::Reason;
use anabranch_element::ioam::{BothWays, IoamNode, IoamStats, NodeReport};
use anabranch_element::time::{Duration, Instant};
use anabranch_rules::AccessName;
use anabranch_steer::{OF_UPF, Rule, SteeringMode, active_standby, chained};
use anabranch_steer::{PathSet, PolicyError};
use anabranch_wire::tunnel::{MessageType, classify};
use handshake::Handshake;
use rand_chacha::ChaCha20Rng;
use rand_core::{RngCore, SeedableRng};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

/// One access of the UE.
#[derive(Debug, Clone)]
pub struct UeAccess {
    /// Its name, such as `wifi`.
    pub name: AccessName,
    /// The address at which the UPF listens for this access.
    pub remote: SocketAddr,
    /// Our own address on it; only the [`anabranch_element::Element`] form needs it.
    pub local: Option<SocketAddr>,
    /// How user data is protected on it.
    pub security: Security,
    /// Largest UDP payload to search for, in bytes (interface MTU less outer headers).
    pub max_payload: u16,
}

/// The configuration of a UE.
#[derive(Clone)]
pub struct UeConfig {
    /// The UE's static key.
    pub private_key: PrivateKey,
    /// The UPF's static key.
    pub upf_key: PublicKey,
    /// Cipher suite to propose.
    pub suite: Suite,
    /// Accesses; the index is the path id.
    pub accesses: Vec<UeAccess>,
    /// The UE's own rules; they precede those of the UPF.
    pub rules: Vec<Rule>,
    /// Rates and intervals.
    pub params: SessionParams,
    /// Unix time at [`Instant::ZERO`], in nanoseconds: handshake timestamps must grow across restarts.
    pub unix_epoch_ns: u64,
    /// The largest timestamp of a handshake that a UPF accepted, in nanoseconds of Unix time
    /// ([`UeEvent::Handshake`]); 0: none.
    pub last_timestamp_ns: u64,
}

/// An invalid configuration.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum UeConfigError {
    /// There is no access.
    #[error("no access is configured: name at least one")]
    NoAccess,
    /// More accesses than path ids.
    #[error("{0} accesses are configured: at most {MAX_PATHS} are supported")]
    TooManyAccesses(usize),
    /// The same name is used twice.
    #[error("access \"{0}\" is configured twice: give each its own name")]
    DuplicateAccess(String),
    /// A rule does not fit the accesses.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// Commands of the control plane to the UE.
#[derive(Debug, Clone)]
pub enum UeCommand {
    /// The carrier or address of an access was gained or lost.
    Carrier {
        /// Path id: index of the access.
        path: PathId,
        /// Whether it can be used.
        up: bool,
    },
    /// The UPF has another address on this access.
    Remote {
        /// Path id: index of the access.
        path: PathId,
        /// New address.
        remote: SocketAddr,
    },
    /// New rules of the UE.
    Rules(Vec<Rule>),
    /// The owner of a flow, as requested by [`UeEvent::OwnerWanted`].
    Owner {
        /// The flow as seen from the UE.
        key: anabranch_wire::ip::FlowKey,
        /// User and cgroup.
        owner: FlowOwner,
    },
    /// Packets of the TCP lane avoid these paths while others are up.
    LaneAvoids(PathSet),
    /// The machine's clock was set: this is the Unix time, in nanoseconds, at which `now` was 0.
    Clock {
        /// Unix time at which `now` was 0, in nanoseconds; see [`UeConfig::unix_epoch_ns`].
        unix_epoch_ns: u64,
    },
    /// Ends the session.
    Close,
}

/// Events of the UE, for the control plane.
#[derive(Debug, Clone, PartialEq)]
pub enum UeEvent {
    /// The session is established: the device can be given its addresses.
    Connected {
        /// Addresses of the session.
        addresses: Addresses,
        /// MTU of the inner interface, in bytes.
        mtu: u16,
    },
    /// The UPF was restarted and has lost the state of all flows. Not reported if the keys had expired, because that also ends
    /// a session, and connections may continue.
    UpfRestarted,
    /// The UPF accepted a handshake; to be remembered across restarts (see [`UeConfig::last_timestamp_ns`]).
    Handshake {
        /// Its timestamp, in nanoseconds of Unix time.
        timestamp_ns: u64,
    },
    /// A handshake got no usable answer.
    HandshakeTimeout {
        /// The access by which it was sent.
        path: PathId,
        /// Number of consecutive tries.
        tries: u32,
    },
    /// The UPF knows this UE but grants no session now; the UE asks again later.
    Refused {
        /// The reason given by the UPF.
        reason: &'static str,
        /// Time until the next try.
        retry_in: Duration,
    },
    /// The UPF's rules arrived and are in force.
    Rules(usize),
    /// Whether the UPF offers a TCP lane has changed.
    TcpLane(bool),
    /// A document of the UPF, or the rules in it, could not be used.
    BadConfig(String),
    /// A rule requires the owner of this flow.
    OwnerWanted(anabranch_wire::ip::FlowKey),
    /// An event of the session.
    Session(SessionEvent),
}

/// The current state of what events report changes of.
#[derive(Debug, Clone, PartialEq)]
pub struct UeState {
    /// Addresses of the session; none before the first one.
    pub addresses: Addresses,
    /// MTU of the inner interface, in bytes.
    pub mtu: u16,
    /// Whether the UPF offers a TCP lane.
    pub tcp_lane: bool,
    /// The rules in force, without the rule of last resort.
    pub rules: Vec<Rule>,
    /// State of each path.
    pub paths: Vec<UePath>,
}

/// The current state of a path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UePath {
    /// Whether it is up, without flap control.
    pub up: bool,
    /// Whether answers are overdue.
    pub overdue: bool,
    /// Lasting loss in percent, the larger of both directions.
    pub loss_percent: u8,
}

/// Inner packets kept while no path is up.
const MAX_PENDING: usize = 128;
const MAX_EVENTS: usize = 512;
/// Most flow hints waiting to be sent to the UPF. Flows whose hint was sent keep their rule there.
const MAX_HINTS: usize = 256;
/// Most hints per document.
const HINTS_AT_A_TIME: usize = 64;
/// Addresses remembered from DNS answers.
const MAX_NAMES: usize = 4096;

/// The UE's tunnel end.
pub struct Ue {
    config: UeConfig,
    session: Session,
    handshake: Handshake,
    rng: ChaCha20Rng,
    pool: Pool,
    trains: TrainBudget,
    drops: DropCounters,
    dns: DnsTable,
    upf_rules: Vec<Rule>,
    upf_has_lane: bool,
    /// Hints to be sent to the UPF, one document after another.
    hints: VecDeque<FlowHint>,
    rules_untold: bool,
    /// Packets waiting for a path, with their arrival times.
    pending: VecDeque<(Instant, Vec<u8>)>,
    pending_bytes: usize,
    /// The IOAM node as which it fills traces.
    ioam: Option<Box<BothWays>>,
    events: VecDeque<UeEvent>,
    connected: bool,
    /// Instance of the session that the UPF has, or last had, for this UE.
    instance: Option<u32>,
    packets: element::Outbox,
}

impl Ue {
    /// A UE that starts its first handshake with the first [`Ue::poll`].
    ///
    /// `seed` must be secret and fresh in a real run: ephemeral keys come from it.
    ///
    /// # Errors
    /// [`UeConfigError`] states the problem.
    pub fn new(config: UeConfig, seed: [u8; 32], now: Instant) -> Result<Self, UeConfigError> {
        if config.accesses.is_empty() {
            return Err(UeConfigError::NoAccess);
        }
        if config.accesses.len() > MAX_PATHS {
            return Err(UeConfigError::TooManyAccesses(config.accesses.len()));
        }
        for (i, access) in config.accesses.iter().enumerate() {
            if config.accesses[..i].iter().any(|other| other.name == access.name) {
                return Err(UeConfigError::DuplicateAccess(access.name.clone()));
            }
        }
        let mut rng = ChaCha20Rng::from_seed(seed);
        let accesses = config.accesses.iter().map(|a| (a.name.clone(), a.security));
        let probe = Arc::new(config.params.probe);
        let profile = Profile::new(Role::Ue, accesses, &probe, &config.params);
        let rules = Arc::new(RuleSet::compile(&config.rules, profile.accesses())?);
        let mut session = Session::new(Arc::new(profile), Addresses::default(), rules, rng.next_u64(), now);
        for (id, access) in (0u8..).zip(&config.accesses) {
            session.bind(id, access.remote, id, now);
            session.search_mtu(id, access.max_payload, now);
        }
        Ok(Self {
            session,
            handshake: Handshake::new(config.last_timestamp_ns, now),
            rng,
            pool: Pool::new(PoolConfig::default()),
            trains: TrainBudget::default(),
            drops: DropCounters::default(),
            dns: DnsTable::new(MAX_NAMES),
            upf_rules: Vec::new(),
            upf_has_lane: false,
            hints: VecDeque::new(),
            rules_untold: false,
            pending: VecDeque::new(),
            pending_bytes: 0,
            ioam: None,
            events: VecDeque::new(),
            connected: false,
            instance: None,
            packets: element::Outbox::default(),
            config,
        })
    }

    /// From now on, fills the traces of inner packets in both directions as this IOAM node: in the uplink
    /// before a packet is sealed, with the packets waiting for a path as its queue; in the downlink when a
    /// packet is delivered, with the packets held for order.
    pub fn set_ioam(&mut self, node: IoamNode) {
        self.ioam = Some(Box::new(BothWays::new(node)));
    }

    /// Counters of IOAM traces.
    #[must_use]
    pub fn ioam_stats(&self) -> IoamStats {
        self.ioam.as_ref().map_or_else(IoamStats::default, |ioam| ioam.stats())
    }

    /// Processes an inner packet of the device (batch form).
    pub fn uplink(&mut self, packet: &mut [u8], now: Instant, out: &mut impl DatagramSink) {
        if let Some(ioam) = &mut self.ioam {
            ioam.up.arrived(packet, now);
        }
        if self.session.states().up().is_empty() {
            if self.pending.len() == MAX_PENDING {
                self.drops.count(DropReason::NoPath);
                return;
            }
            self.pending_bytes += packet.len();
            self.pending.push_back((now, packet.to_vec()));
            return;
        }
        self.send(packet, now, now, out);
    }

    fn send(&mut self, packet: &mut [u8], arrived: Instant, now: Instant, out: &mut impl DatagramSink) {
        if let Some(ioam) = &mut self.ioam {
            ioam.up.fill(packet, arrived, now, || NodeReport {
                depth_bytes: Some(self.pending_bytes as u64),
                capacity_bytes: Some(MAX_PENDING as u64 * u64::from(self.config.params.inner_mtu)),
                ..NodeReport::default()
            });
        }
        self.dns.track_question(packet, now);
        let mut shared = Shared {
            pool: &mut self.pool,
            trains: &mut self.trains,
            drops: &mut self.drops,
            params: &self.config.params,
            dns: Some(&self.dns),
            exceptions: None,
            closed_from: None,
        };
        // The reason is counted; there is nobody else to inform.
        let _ = self.session.send(packet, now, &mut shared, out);
    }

    /// Processes a datagram that arrived by `path` (batch form). Call [`Ue::poll`] after a batch.
    pub fn datagram(
        &mut self,
        path: PathId,
        from: SocketAddr,
        datagram: &mut [u8],
        now: Instant,
        inner: &mut impl PacketSink,
    ) {
        let held = self.held();
        let mut shared = Shared {
            pool: &mut self.pool,
            trains: &mut self.trains,
            drops: &mut self.drops,
            params: &self.config.params,
            dns: None,
            exceptions: None,
            closed_from: None,
        };
        let mut inner =
            Marked::new(self.ioam.as_mut().map(|ioam| &mut ioam.down), held.0, held.1, now, inner);
        let mut snoop = SnoopDns { dns: &mut self.dns, inner: &mut inner, now };
        match classify(datagram) {
            Ok(MessageType::Secure) => {
                let _ = self.session.receive_secure(path, from, datagram, now, &mut shared, &mut snoop);
            }
            Ok(MessageType::PlainData) => {
                if self.session.path(path).is_some_and(|p| p.endpoint() == Some(from)) {
                    let _ = self.session.receive_plain(path, datagram, now, &mut shared, &mut snoop);
                } else {
                    self.drops.count(DropReason::UnknownEndpoint);
                }
            }
            Ok(MessageType::Response) => self.on_response(datagram, now),
            Ok(MessageType::Cookie) => self.on_cookie(datagram, now),
            Ok(_) => self.drops.count(DropReason::UnknownType),
            Err(_) => self.drops.count(DropReason::Malformed),
        }
    }

    /// Performs all due work: handshakes, probes, answers, delivery of held packets (batch form).
    pub fn poll(&mut self, now: Instant, out: &mut impl DatagramSink, inner: &mut impl PacketSink) {
        // The UE does not look sessions up by receiver index, so expired keys need no further action.
        self.session.keys().expire(now);
        self.drive_handshake(now, out);
        let held = self.held();
        let mut shared = Shared {
            pool: &mut self.pool,
            trains: &mut self.trains,
            drops: &mut self.drops,
            params: &self.config.params,
            dns: None,
            exceptions: None,
            closed_from: None,
        };
        let mut inner =
            Marked::new(self.ioam.as_mut().map(|ioam| &mut ioam.down), held.0, held.1, now, inner);
        let mut snoop = SnoopDns { dns: &mut self.dns, inner: &mut inner, now };
        self.session.poll(now, &mut shared, out, &mut snoop);
        self.drain_session_events(now);
        self.notify_upf(now);
        if !self.pending.is_empty() && !self.session.states().up().is_empty() {
            for (arrived, mut packet) in core::mem::take(&mut self.pending) {
                self.pending_bytes -= packet.len();
                self.send(&mut packet, arrived, now, out);
            }
        }
    }

    /// Accounts for the traffic that a lane of a faster data path carried. `false`: the lane is no longer
    /// valid and must be closed.
    pub fn carried(&mut self, lane: &FastLane, traffic: &FastTraffic, now: Instant) -> bool {
        lane.session == self.session.addresses() && self.session.carried(lane.access, lane.to, traffic, now)
    }

    /// Bytes held for reordering, and their limit.
    fn held(&self) -> (usize, usize) {
        (self.pool.used_bytes(), self.pool.config().bytes)
    }

    /// When [`Ue::poll`] has work to do next, and the reason.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        let untold = self.rules_untold || !self.hints.is_empty();
        let tell = (untold && self.connected && self.session.is_config_delivered())
            .then_some((Instant::ZERO, "news for the UPF"));
        let pending = (!self.pending.is_empty() && !self.session.states().up().is_empty())
            .then_some((Instant::ZERO, "pending packets"));
        [Some(self.handshake_timeout()), self.session.poll_timeout(), pending, tell]
            .into_iter()
            .flatten()
            .min_by_key(|(at, _)| *at)
    }

    /// Executes a command.
    pub fn on_command(&mut self, command: UeCommand, now: Instant) {
        match command {
            UeCommand::Carrier { path, up } => {
                self.session.set_carrier(path, up, now);
                if up && self.session.states().up().is_empty() {
                    self.handshake.hurry(now);
                }
            }
            UeCommand::Remote { path, remote } => {
                self.session.bind(path, remote, path, now);
                if let Some(access) = self.config.accesses.get_mut(usize::from(path)) {
                    access.remote = remote;
                }
            }
            UeCommand::Rules(rules) => {
                self.config.rules = rules;
                self.rules_untold = true;
                self.recompile();
            }
            UeCommand::Owner { key, owner } => {
                let shared = Shared {
                    pool: &mut self.pool,
                    trains: &mut self.trains,
                    drops: &mut self.drops,
                    params: &self.config.params,
                    dns: Some(&self.dns),
                    exceptions: None,
                    closed_from: None,
                };
                self.session.assign_owner(&key, &owner, now, &shared);
                self.drain_session_events(now);
            }
            UeCommand::Clock { unix_epoch_ns } => {
                if let Some(ioam) = &mut self.ioam {
                    ioam.set_epoch(Duration::from_nanos(unix_epoch_ns));
                }
                self.on_clock(unix_epoch_ns, now);
            }
            UeCommand::LaneAvoids(paths) => self.session.set_lane_avoids(paths),
            UeCommand::Close => self.session.close(0),
        }
    }

    /// The next event, oldest first.
    pub fn poll_event(&mut self) -> Option<UeEvent> {
        self.events.pop_front()
    }

    /// One row per path.
    pub fn paths(&self) -> Vec<PathView> {
        self.session.path_views().collect()
    }

    /// The current behaviour of each rule in the uplink, and its reasons; the rule of last resort last.
    #[must_use]
    pub fn rule_views(&self, now: Instant) -> Vec<RuleView> {
        let definitions = Definitions::new(&self.config.rules, &[(Origin::Upf, &self.upf_rules)]);
        self.session.rule_views(now, &definitions).collect()
    }

    /// Whether a session is established and at least one path is up.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connected && !self.session.states().up().is_empty()
    }

    /// Addresses of the session.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        self.session.addresses()
    }

    /// Traffic counters.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.session.traffic()
    }

    /// Drop counters by reason.
    #[must_use]
    pub fn drops(&self) -> &DropCounters {
        &self.drops
    }

    /// The session, for values that are not summarised here.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    fn event(&mut self, event: UeEvent) {
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn drain_session_events(&mut self, now: Instant) {
        while let Some(event) = self.session.poll_event() {
            match event {
                SessionEvent::Config(document) => self.on_document(&document),
                SessionEvent::OwnerWanted(key) => self.event(UeEvent::OwnerWanted(key)),
                SessionEvent::Hint { key, rule } => self.push_hint(FlowHint::new(&key, &rule)),
                // It arrives by every path that is up.
                SessionEvent::Closed { .. } if !self.connected => {}
                SessionEvent::Closed { reason } => {
                    self.on_closed(now);
                    self.event(UeEvent::Session(SessionEvent::Closed { reason }));
                }
                event => self.event(UeEvent::Session(event)),
            }
        }
    }

    fn on_document(&mut self, bytes: &[u8]) {
        match Document::decode(bytes) {
            Ok(Document { rules: Some(rules), tcp_lane, .. }) => {
                if rules != self.upf_rules {
                    self.upf_rules = rules;
                    self.recompile();
                }
                if core::mem::replace(&mut self.upf_has_lane, tcp_lane) != tcp_lane {
                    self.event(UeEvent::TcpLane(tcp_lane));
                }
            }
            Ok(_) => {}
            Err(error) => self.event(UeEvent::BadConfig(error)),
        }
    }

    /// The current state. Events can be lost if they are not taken in time.
    #[must_use]
    pub fn state(&self) -> UeState {
        let paths = (0..self.config.accesses.len() as PathId).map(|path| {
            let monitor = self.session.path(path).map(|path| &path.monitor);
            monitor.map_or_else(UePath::default, |monitor| UePath {
                up: monitor.is_up(),
                overdue: monitor.was_overdue(),
                loss_percent: monitor.lasting_loss_percent(),
            })
        });
        UeState {
            addresses: self.session.addresses(),
            mtu: self.session.profile().inner_mtu(),
            tcp_lane: self.upf_has_lane,
            rules: self.rules(),
            paths: paths.collect(),
        }
    }

    fn rules(&self) -> Vec<Rule> {
        chained([self.config.rules.as_slice(), &self.upf_rules], OF_UPF)
    }

    /// The rule of a flow.
    #[must_use]
    pub fn verdict(
        &self,
        key: &anabranch_wire::ip::FlowKey,
        owner: Option<&FlowOwner>,
        now: Instant,
    ) -> &CompiledRule {
        let rules = self.session.rules();
        rules.get(rules.classify_at_ue(key, owner, &self.dns, now).rule)
    }

    /// The paths that are up, in the order in which a connection of the TCP lane tries them for its first
    /// subflow.
    #[must_use]
    pub fn lane_starts(&self) -> Vec<Start> {
        let states = self.session.states();
        let start = |path: PathId| Start {
            path,
            rtt_us: states.get(path).rtt_us,
            loss_ppm: self.session.path(path).and_then(|path| path.monitor.round_trip_loss_ppm()),
        };
        tcp_lane::starts(states.up().iter().map(start).collect())
    }

    /// Whether these rules of the UE can be put in force before those of the UPF.
    ///
    /// # Errors
    /// The first error; [`UeCommand::Rules`] would keep the old rules in force.
    pub fn check_rules(&self, rules: &[Rule]) -> Result<(), PolicyError> {
        let all = chained([rules, &self.upf_rules], OF_UPF);
        RuleSet::compile_for(&all, self.session.accesses(), &self.known_accesses()).map(drop)
    }

    /// Puts the rules of the UE and of the UPF in force. If they are invalid, the old set stays.
    fn recompile(&mut self) {
        let all = self.rules();
        match RuleSet::compile_for(&all, self.session.accesses(), &self.known_accesses()) {
            Ok(rules) => {
                self.session.set_rules(Arc::new(rules));
                self.event(UeEvent::Rules(all.len()));
            }
            Err(error) => self.event(UeEvent::BadConfig(error.to_string())),
        }
    }

    /// Access names that the UPF's rules may contain although this device lacks them.
    fn known_accesses(&self) -> Vec<AccessName> {
        self.upf_rules
            .iter()
            .flat_map(|rule| rule.steering.accesses())
            .map(|(_, access)| access.clone())
            .collect()
    }

    /// Sends the UPF our rules, and properties of flows that only the UE can determine. Each document waits
    /// until the previous one is delivered, so none supersedes the contents of another.
    fn notify_upf(&mut self, now: Instant) {
        let something = self.rules_untold || !self.hints.is_empty();
        if !something || !self.connected || !self.session.is_config_delivered() {
            return;
        }
        let rules = core::mem::take(&mut self.rules_untold).then(|| self.rules_for_the_upf());
        let flows = self.hints.drain(..self.hints.len().min(HINTS_AT_A_TIME)).collect();
        self.session.push_config(Document { rules, tcp_lane: false, flows }.encode(), now);
    }

    /// Our rules in the form for the downlink: only the uplink rotates.
    fn rules_for_the_upf(&self) -> Vec<Rule> {
        let mut rules = self.config.rules.clone();
        for rule in &mut rules {
            if let SteeringMode::ActiveStandby(active_standby::Params { rotate_packets, .. }) =
                &mut rule.steering
            {
                *rotate_packets = 0;
            }
        }
        rules
    }

    fn push_hint(&mut self, hint: FlowHint) {
        self.hints.retain(|other| other.key() != hint.key());
        if self.hints.len() == MAX_HINTS {
            self.hints.pop_front();
        }
        self.hints.push_back(hint);
    }
}

/// Reads DNS answers on their way to the device.
struct SnoopDns<'a, S> {
    dns: &'a mut DnsTable,
    inner: &'a mut S,
    now: Instant,
}

impl<S: PacketSink> PacketSink for SnoopDns<'_, S> {
    fn deliver(&mut self, packet: &mut [u8]) {
        self.dns.snoop(packet, self.now);
        self.inner.deliver(packet);
    }
}
