//! The UPF's tunnel end: many sessions, found by receiver index, endpoint or virtual address.
//!
//! ```text
//!   access sockets                                                       N6 / TUN
//!   Init ──────▶ mac, cookie, key, timestamp ─▶ slot, indices, welcome
//!   Secure ────▶ by receiver index ─┐
//!   Plain ─────▶ by endpoint ───────┴─▶ session ─▶ reorder ─▶ inner packet ─▶
//!              ◀────────────────────────── session ◀─ by virtual address ◀─── inner packet
//! ```
//!
//! One `Upf` is one shard, owned by one thread; a UE belongs to the shard its public key hashes to, so
//! shards share nothing. Receiver indices of a shard are congruent to its number, which lets the kernel
//! steer datagrams to the right thread.

mod element;
mod handshake;
mod timers;

pub use element::N6_PORT;

use crate::access::FixedHasher;
use crate::access::classify::RuleSet;
use crate::access::crypto::{PrivateKey, PublicKey, Responder};
use crate::access::document::Document;
use crate::access::drops::{DropCounters, DropReason};
use crate::access::reorder::{Pool, PoolConfig};
use crate::access::session::{
    Addresses, PathView, Security, Session, SessionEvent, SessionParams, Shared, Traffic,
};
use crate::access::steer::PolicyError;
use crate::access::{DatagramSink, PacketSink, PathId};
use crate::element::Reason;
use crate::policy::{AccessName, Rule, chained};
use crate::time::Instant;
use anabranch_wire::ip;
use anabranch_wire::tunnel::{MessageType, SecureHeader, classify};
use handshake::Limiter;
use rand_chacha::ChaCha20Rng;
use rand_core::{RngCore, SeedableRng};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use timers::{Slot, Timers};

/// One access the UPF listens on.
#[derive(Debug, Clone)]
pub struct UpfAccess {
    /// Its name; a UE's access of the same name gets its protection.
    pub name: AccessName,
    /// How user data is protected on it.
    pub security: Security,
    /// Our own address on it; only the [`crate::element::Element`] form needs it.
    pub local: Option<SocketAddr>,
}

/// What a UPF shard must know.
#[derive(Clone)]
pub struct UpfConfig {
    /// Our static key.
    pub private_key: PrivateKey,
    /// Accesses; the index is the access number of [`Upf::datagram`].
    pub accesses: Vec<UpfAccess>,
    /// Rules for every UE; a UE's own go before them.
    pub rules: Vec<Rule>,
    /// Rates and intervals.
    pub params: SessionParams,
    /// Number of this shard.
    pub shard: u32,
    /// Number of shards, at least 1.
    pub shards: u32,
    /// Most sessions at a time.
    pub max_sessions: u32,
}

/// A UE the UPF knows.
#[derive(Debug, Clone, PartialEq)]
pub struct UeEntry {
    /// Name, for people.
    pub name: String,
    /// Static public key: its identity.
    pub key: PublicKey,
    /// Virtual addresses of its session.
    pub addresses: Addresses,
    /// Rules for this UE alone, before those for all.
    pub rules: Vec<Rule>,
    /// Whether rules the UE brings along are followed for its downlink.
    pub accept_rules: bool,
}

/// Control in.
#[derive(Debug, Clone)]
pub enum UpfCommand {
    /// Adds a UE, or changes one; its session, if any, goes on with the new rules.
    AddUe(UeEntry),
    /// Forgets a UE and ends its session.
    RemoveUe(PublicKey),
    /// Ends the session of a UE; it may come back.
    CloseSession(PublicKey),
    /// New rules for every UE.
    Rules(Vec<Rule>),
    /// Handshakes of a UE up to this timestamp are recordings: what was seen before a restart.
    NotBefore {
        /// The UE.
        key: PublicKey,
        /// Newest timestamp seen, in nanoseconds of Unix time.
        timestamp_ns: u64,
    },
}

/// A command that cannot be carried out; nothing has changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum UpfError {
    /// The address belongs to another UE.
    #[error("address {address} of UE \"{name}\" already belongs to UE \"{other}\": give each its own")]
    AddressTaken {
        /// UE that asked for it.
        name: String,
        /// The address.
        address: IpAddr,
        /// UE that has it.
        other: String,
    },
    /// No such UE.
    #[error("no UE has the public key {0}")]
    UnknownUe(PublicKey),
    /// A rule does not fit the accesses.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// Telemetry out.
#[derive(Debug, Clone, PartialEq)]
pub enum UpfEvent {
    /// A handshake was accepted; to be remembered across restarts (see [`UpfCommand::NotBefore`]).
    Handshake {
        /// The UE.
        key: PublicKey,
        /// Its timestamp, in nanoseconds of Unix time.
        timestamp_ns: u64,
    },
    /// A UE proved its keys: its session carries traffic.
    SessionUp {
        /// The UE.
        ue: String,
    },
    /// A session ended.
    SessionDown {
        /// The UE.
        ue: String,
        /// Why.
        reason: &'static str,
    },
    /// A document of a UE could not be used.
    BadConfig {
        /// The UE.
        ue: String,
        /// What is wrong.
        error: String,
    },
    /// From a session.
    Session {
        /// The UE.
        ue: String,
        /// Names of its accesses, by path id.
        accesses: Arc<[AccessName]>,
        /// What happened.
        event: SessionEvent,
    },
}

/// One session as shown to people and metrics.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionView {
    /// Name of the UE.
    pub ue: String,
    /// Its public key.
    pub key: PublicKey,
    /// Its addresses.
    pub addresses: Addresses,
    /// Whether it has a session.
    pub connected: bool,
    /// Traffic counters; `tx` is downlink.
    pub traffic: Traffic,
    /// Paths, empty without a session.
    pub paths: Vec<PathView>,
}

struct UeRecord {
    entry: UeEntry,
    last_timestamp_ns: u64,
    slot: Option<Slot>,
}

struct Seat {
    key: PublicKey,
    session: Session,
    confirmed: bool,
    own_rules: Vec<Rule>,
    endpoints: Vec<Option<SocketAddr>>,
    dirty: bool,
}

const MAX_EVENTS: usize = 4096;

/// One shard of the UPF's tunnel end.
pub struct Upf {
    config: UpfConfig,
    responder: Responder,
    rng: ChaCha20Rng,
    limiter: Limiter,
    instance: u32,
    ues: BTreeMap<PublicKey, UeRecord>,
    owners: BTreeMap<IpAddr, PublicKey>,
    seats: Vec<Option<Box<Seat>>>,
    free: Vec<Slot>,
    indices: Vec<Option<Slot>>,
    free_indices: VecDeque<u32>,
    by_address: HashMap<IpAddr, Slot, FixedHasher>,
    by_endpoint: HashMap<SocketAddr, (Slot, PathId), FixedHasher>,
    timers: Timers,
    dirty: Vec<Slot>,
    connected: usize,
    rule_sets: BTreeMap<RuleKey, Arc<RuleSet>>,
    pool: Pool,
    drops: DropCounters,
    events: VecDeque<UpfEvent>,
    packets: element::Outbox,
}

/// Rule sets are compiled once per combination of rules and access names and shared by all users.
type RuleKey = (Vec<AccessName>, String);

impl Upf {
    /// A UPF shard without UEs. `seed` must be secret and fresh in a real run.
    ///
    /// # Errors
    /// [`UpfError::Policy`] if the shared rules do not fit the accesses.
    pub fn new(config: UpfConfig, seed: [u8; 32], _now: Instant) -> Result<Self, UpfError> {
        let names: Vec<AccessName> = config.accesses.iter().map(|a| a.name.clone()).collect();
        RuleSet::compile(&config.rules, &names)?;
        let mut rng = ChaCha20Rng::from_seed(seed);
        let mut responder_seed = [0; 32];
        rng.fill_bytes(&mut responder_seed);
        let hasher = FixedHasher::new(rng.next_u64());
        Ok(Self {
            responder: Responder::new(config.private_key.clone(), responder_seed),
            limiter: Limiter::default(),
            instance: rng.next_u32(),
            ues: BTreeMap::new(),
            owners: BTreeMap::new(),
            seats: Vec::new(),
            free: Vec::new(),
            indices: Vec::new(),
            free_indices: VecDeque::new(),
            by_address: HashMap::with_hasher(hasher.clone()),
            by_endpoint: HashMap::with_hasher(hasher),
            timers: Timers::default(),
            dirty: Vec::new(),
            connected: 0,
            rule_sets: BTreeMap::new(),
            pool: Pool::new(PoolConfig { queues: config.params.reorder_queues, ..PoolConfig::default() }),
            drops: DropCounters::default(),
            events: VecDeque::new(),
            packets: element::Outbox::default(),
            rng,
            config,
        })
    }

    /// Takes an inner packet from N6 (batch form).
    pub fn downlink(&mut self, packet: &mut [u8], now: Instant, out: &mut impl DatagramSink) {
        let slot = ip::src_dst(packet).ok().and_then(|(_, dst)| self.by_address.get(&dst).copied());
        let Some(seat) = slot.and_then(|s| self.seats.get_mut(s as usize)).and_then(Option::as_mut) else {
            self.drops.count(DropReason::NoSession);
            return;
        };
        let mut shared =
            Shared { pool: &mut self.pool, drops: &mut self.drops, params: &self.config.params, dns: None };
        let sent = seat.session.send(packet, now, &mut shared, out);
        if let Some(slot) = slot {
            if sent.is_err() {
                self.mark(slot);
            }
            self.rearm(slot);
        }
    }

    /// Takes a datagram that arrived by way of access number `access` (batch form). Call [`Upf::poll`]
    /// after a batch.
    pub fn datagram(
        &mut self,
        access: PathId,
        from: SocketAddr,
        datagram: &mut [u8],
        now: Instant,
        out: &mut impl DatagramSink,
        inner: &mut impl PacketSink,
    ) {
        match classify(datagram) {
            Ok(MessageType::Secure) => self.on_secure(access, from, datagram, now, inner),
            Ok(MessageType::PlainData) => self.on_plain(from, datagram, now, inner),
            Ok(MessageType::Init) => self.on_init(access, from, datagram, now, out),
            Ok(_) => self.drops.count(DropReason::UnknownType),
            Err(_) => self.drops.count(DropReason::Malformed),
        }
    }

    fn on_secure(
        &mut self,
        access: PathId,
        from: SocketAddr,
        datagram: &mut [u8],
        now: Instant,
        inner: &mut impl PacketSink,
    ) {
        let index = SecureHeader::parse(datagram).ok().map(|h| h.receiver);
        let slot = index.and_then(|i| self.slot_of_index(i));
        let Some(slot) = slot else {
            self.drops.count(DropReason::UnknownIndex);
            return;
        };
        let Some(seat) = self.seats.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        let mut shared =
            Shared { pool: &mut self.pool, drops: &mut self.drops, params: &self.config.params, dns: None };
        let _ = seat.session.receive_secure(access, from, datagram, now, &mut shared, inner);
        self.mark(slot);
    }

    fn on_plain(&mut self, from: SocketAddr, datagram: &mut [u8], now: Instant, inner: &mut impl PacketSink) {
        let Some(&(slot, path)) = self.by_endpoint.get(&from) else {
            self.drops.count(DropReason::UnknownEndpoint);
            return;
        };
        let Some(seat) = self.seats.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        let mut shared =
            Shared { pool: &mut self.pool, drops: &mut self.drops, params: &self.config.params, dns: None };
        let _ = seat.session.receive_plain(path, datagram, now, &mut shared, inner);
        self.mark(slot);
    }

    /// Serves the sessions that have something to say or whose time has come (batch form).
    pub fn poll(&mut self, now: Instant, out: &mut impl DatagramSink, inner: &mut impl PacketSink) {
        while let Some(slot) = self.timers.pop_due(now) {
            self.mark(slot);
        }
        for slot in core::mem::take(&mut self.dirty) {
            let Some(seat) = self.seats.get_mut(slot as usize).and_then(Option::as_mut) else { continue };
            seat.dirty = false;
            let mut shared = Shared {
                pool: &mut self.pool,
                drops: &mut self.drops,
                params: &self.config.params,
                dns: None,
            };
            for index in seat.session.keys().expire(now) {
                release_index(&mut self.indices, &mut self.free_indices, &self.config, index);
            }
            seat.session.poll(now, &mut shared, out, inner);
            let gone = seat.session.keys().indices().next().is_none();
            self.drain_session_events(slot, now);
            if gone {
                self.remove_session(slot, "keys expired");
            } else {
                self.rearm(slot);
            }
        }
    }

    /// When [`Upf::poll`] has something to do next, and why.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        if !self.dirty.is_empty() {
            return Some((Instant::ZERO, "session output"));
        }
        self.timers.next().map(|at| (at, "session timer"))
    }

    /// A command takes effect, whole or not at all.
    ///
    /// # Errors
    /// [`UpfError`]; nothing has changed then.
    pub fn command(&mut self, command: UpfCommand, now: Instant) -> Result<(), UpfError> {
        match command {
            UpfCommand::AddUe(entry) => self.add_ue(entry, now),
            UpfCommand::RemoveUe(key) => {
                let record = self.ues.remove(&key).ok_or(UpfError::UnknownUe(key))?;
                for address in record.entry.addresses.iter() {
                    self.owners.remove(&address);
                }
                if let Some(slot) = record.slot {
                    self.end_session(slot, &record.entry.name, "UE removed");
                }
                Ok(())
            }
            UpfCommand::CloseSession(key) => {
                let record = self.ues.get(&key).ok_or(UpfError::UnknownUe(key))?;
                if let Some(slot) = record.slot {
                    self.remove_session(slot, "closed");
                }
                Ok(())
            }
            UpfCommand::Rules(rules) => {
                RuleSet::compile(&rules, &self.access_names())?;
                self.config.rules = rules;
                self.rule_sets.clear();
                for slot in 0..self.seats.len() as Slot {
                    self.refresh_rules(slot, now);
                }
                Ok(())
            }
            UpfCommand::NotBefore { key, timestamp_ns } => {
                let record = self.ues.get_mut(&key).ok_or(UpfError::UnknownUe(key))?;
                record.last_timestamp_ns = record.last_timestamp_ns.max(timestamp_ns);
                Ok(())
            }
        }
    }

    fn add_ue(&mut self, entry: UeEntry, now: Instant) -> Result<(), UpfError> {
        for address in entry.addresses.iter() {
            if let Some(owner) = self.owners.get(&address).filter(|&&owner| owner != entry.key) {
                let other = self.ues.get(owner).map_or_else(String::new, |r| r.entry.name.clone());
                return Err(UpfError::AddressTaken { name: entry.name, address, other });
            }
        }
        RuleSet::compile(&entry.rules, &self.access_names())?;
        let key = entry.key;
        let old = self.ues.remove(&key);
        for address in old.iter().flat_map(|r| r.entry.addresses.iter()) {
            self.owners.remove(&address);
        }
        for address in entry.addresses.iter() {
            self.owners.insert(address, key);
        }
        let moved = old.as_ref().is_some_and(|r| r.entry.addresses != entry.addresses);
        let (last_timestamp_ns, slot) = old.map_or((0, None), |r| (r.last_timestamp_ns, r.slot));
        self.ues.insert(key, UeRecord { entry, last_timestamp_ns, slot });
        if let Some(slot) = slot {
            if moved {
                // The UE learns its new addresses from the welcome of its next handshake.
                self.remove_session(slot, "addresses changed");
            } else {
                self.refresh_rules(slot, now);
            }
        }
        Ok(())
    }

    /// The next event, oldest first.
    pub fn poll_event(&mut self) -> Option<UpfEvent> {
        self.events.pop_front()
    }

    /// One row per known UE, by public key.
    pub fn sessions(&self) -> impl Iterator<Item = SessionView> + '_ {
        self.ues.values().map(|record| self.view_of(record))
    }

    /// The row of one UE.
    #[must_use]
    pub fn view(&self, key: &PublicKey) -> Option<SessionView> {
        self.ues.get(key).map(|record| self.view_of(record))
    }

    fn view_of(&self, record: &UeRecord) -> SessionView {
        let seat = record.slot.and_then(|s| self.seats.get(s as usize)).and_then(Option::as_ref);
        SessionView {
            ue: record.entry.name.clone(),
            key: record.entry.key,
            addresses: record.entry.addresses,
            connected: seat.is_some_and(|s| s.confirmed),
            traffic: seat.map(|s| s.session.traffic()).unwrap_or_default(),
            paths: seat.map(|s| s.session.path_views().collect()).unwrap_or_default(),
        }
    }

    /// Number of sessions whose UE proved its keys.
    #[must_use]
    pub const fn connected_count(&self) -> usize {
        self.connected
    }

    /// Number of sessions.
    #[must_use]
    pub fn session_count(&self) -> usize {
        self.seats.len() - self.free.len()
    }

    /// Drop counters by reason.
    #[must_use]
    pub fn drops(&self) -> &DropCounters {
        &self.drops
    }

    /// The session of a UE, for what is not summarised here.
    #[must_use]
    pub fn session(&self, key: &PublicKey) -> Option<&Session> {
        let slot = self.ues.get(key)?.slot?;
        self.seats.get(slot as usize)?.as_ref().map(|seat| &seat.session)
    }

    fn slot_of_index(&self, index: u32) -> Option<Slot> {
        if index % self.config.shards != self.config.shard {
            return None;
        }
        self.indices.get((index / self.config.shards) as usize).copied().flatten()
    }

    fn mark(&mut self, slot: Slot) {
        if let Some(seat) = self.seats.get_mut(slot as usize).and_then(Option::as_mut)
            && !seat.dirty
        {
            seat.dirty = true;
            self.dirty.push(slot);
        }
    }

    fn rearm(&mut self, slot: Slot) {
        if let Some(seat) = self.seats.get(slot as usize).and_then(Option::as_ref)
            && let Some((at, _)) = seat.session.poll_timeout()
        {
            self.timers.arm(slot, at);
        }
    }

    fn event(&mut self, event: UpfEvent) {
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn name_of(&self, slot: Slot) -> String {
        let seat = self.seats.get(slot as usize).and_then(Option::as_ref);
        seat.and_then(|s| self.ues.get(&s.key)).map_or_else(String::new, |r| r.entry.name.clone())
    }

    fn drain_session_events(&mut self, slot: Slot, now: Instant) {
        loop {
            let Some(seat) = self.seats.get_mut(slot as usize).and_then(Option::as_mut) else { return };
            let Some(event) = seat.session.poll_event() else { return };
            let accesses = Arc::clone(seat.session.accesses());
            let ue = self.name_of(slot);
            match event {
                SessionEvent::Config(document) => self.on_document(slot, &document, now),
                SessionEvent::Closed { .. } => {
                    self.remove_session(slot, "closed by the UE");
                    return;
                }
                SessionEvent::Endpoint { path, address } => {
                    self.bind_endpoint(slot, path, address);
                    let event = SessionEvent::Endpoint { path, address };
                    self.event(UpfEvent::Session { ue, accesses, event });
                }
                SessionEvent::Rekeyed { local_index } => {
                    self.on_confirmed(slot, now);
                    let event = SessionEvent::Rekeyed { local_index };
                    self.event(UpfEvent::Session { ue, accesses, event });
                }
                event => self.event(UpfEvent::Session { ue, accesses, event }),
            }
        }
    }

    fn on_confirmed(&mut self, slot: Slot, now: Instant) {
        let Some(seat) = self.seats.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        if !core::mem::replace(&mut seat.confirmed, true) {
            self.connected += 1;
            let ue = self.name_of(slot);
            self.event(UpfEvent::SessionUp { ue });
            self.push_rules(slot, now);
        }
    }

    fn push_rules(&mut self, slot: Slot, now: Instant) {
        let Some(seat) = self.seats.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        let own = self.ues.get(&seat.key).map(|r| r.entry.rules.as_slice()).unwrap_or_default();
        let rules = chained([own, &self.config.rules]);
        seat.session.push_config(Document { rules: Some(rules), flows: Vec::new() }.encode(), now);
    }

    fn on_document(&mut self, slot: Slot, bytes: &[u8], now: Instant) {
        let ue = self.name_of(slot);
        let document = match Document::decode(bytes) {
            Ok(document) => document,
            Err(error) => return self.event(UpfEvent::BadConfig { ue, error }),
        };
        let known = self.access_names();
        let Some(seat) = self.seats.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        let accepts = self.ues.get(&seat.key).is_some_and(|r| r.entry.accept_rules);
        if let Some(rules) = document.rules.filter(|_| accepts) {
            if let Err(error) = RuleSet::compile_for(&rules, seat.session.accesses(), &known) {
                return self.event(UpfEvent::BadConfig { ue, error: error.to_string() });
            }
            if seat.own_rules != rules {
                seat.own_rules = rules;
                self.refresh_rules(slot, now);
            }
        }
        let Some(seat) = self.seats.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        for hint in &document.flows {
            if accepts && seat.session.addresses().contains(hint.local) {
                seat.session.assign_hint(&hint.key(), &hint.rule, now);
            }
        }
    }

    /// Compiles (or finds) the rule set of a session and tells the UE.
    fn refresh_rules(&mut self, slot: Slot, now: Instant) {
        let Some(seat) = self.seats.get(slot as usize).and_then(Option::as_ref) else { return };
        let own = self.ues.get(&seat.key).map(|r| r.entry.rules.as_slice()).unwrap_or_default();
        let rules = chained([&seat.own_rules, own, &self.config.rules]);
        let accesses = Arc::clone(seat.session.accesses());
        let set = self.rule_set(&accesses, &rules);
        let ue = self.name_of(slot);
        let Some(seat) = self.seats.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        let confirmed = seat.confirmed;
        match set {
            Ok(set) => seat.session.set_rules(set),
            Err(error) => return self.event(UpfEvent::BadConfig { ue, error: error.to_string() }),
        }
        if confirmed {
            self.push_rules(slot, now);
            self.mark(slot);
        }
    }

    fn access_names(&self) -> Vec<AccessName> {
        self.config.accesses.iter().map(|a| a.name.clone()).collect()
    }

    fn rule_set(&mut self, accesses: &[AccessName], rules: &[Rule]) -> Result<Arc<RuleSet>, PolicyError> {
        let text = serde_json::to_string(rules).unwrap_or_default();
        let key = (accesses.to_vec(), text);
        if let Some(set) = self.rule_sets.get(&key) {
            return Ok(Arc::clone(set));
        }
        let set = Arc::new(RuleSet::compile_for(rules, accesses, &self.access_names())?);
        self.rule_sets.retain(|_, set| Arc::strong_count(set) > 1);
        self.rule_sets.insert(key, Arc::clone(&set));
        Ok(set)
    }

    fn bind_endpoint(&mut self, slot: Slot, path: PathId, address: SocketAddr) {
        let Some(seat) = self.seats.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        let index = usize::from(path);
        if seat.endpoints.len() <= index {
            seat.endpoints.resize(index + 1, None);
        }
        if let Some(old) = seat.endpoints[index].replace(address)
            && self.by_endpoint.get(&old) == Some(&(slot, path))
        {
            self.by_endpoint.remove(&old);
        }
        self.by_endpoint.insert(address, (slot, path));
    }

    fn end_session(&mut self, slot: Slot, ue: &str, reason: &'static str) {
        let Some(mut seat) = self.seats.get_mut(slot as usize).and_then(Option::take) else { return };
        self.connected -= usize::from(seat.confirmed);
        seat.session.release(&mut self.pool);
        for index in seat.session.keys().indices().collect::<Vec<_>>() {
            release_index(&mut self.indices, &mut self.free_indices, &self.config, index);
        }
        for address in seat.session.addresses().iter() {
            self.by_address.remove(&address);
        }
        for (path, endpoint) in (0u8..).zip(&seat.endpoints) {
            if let Some(endpoint) = endpoint
                && self.by_endpoint.get(endpoint) == Some(&(slot, path))
            {
                self.by_endpoint.remove(endpoint);
            }
        }
        self.timers.disarm(slot);
        self.free.push(slot);
        self.event(UpfEvent::SessionDown { ue: ue.to_owned(), reason });
    }

    fn remove_session(&mut self, slot: Slot, reason: &'static str) {
        let Some(seat) = self.seats.get(slot as usize).and_then(Option::as_ref) else { return };
        let key = seat.key;
        let ue = self.name_of(slot);
        if let Some(record) = self.ues.get_mut(&key) {
            record.slot = None;
        }
        self.end_session(slot, &ue, reason);
    }
}

fn release_index(indices: &mut [Option<Slot>], free: &mut VecDeque<u32>, config: &UpfConfig, index: u32) {
    let position = index / config.shards;
    if let Some(entry) = indices.get_mut(position as usize)
        && entry.take().is_some()
    {
        // Reused last: packets under old keys should meet an empty index, not a stranger's.
        free.push_back(position);
    }
}
