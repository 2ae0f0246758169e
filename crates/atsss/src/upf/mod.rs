//! The UPF's tunnel end: many sessions, found by receiver index or virtual address.
//!
//! ```text
//!   access sockets                                                       N6 / TUN
//!   Init ──────▶ mac, cookie, key, timestamp ─▶ session, receiver index, welcome
//!   Secure ────▶ by receiver index ─┐
//!   Plain ─────▶ by inner source ───┴─▶ session ─▶ reorder ─▶ inner packet ─▶
//!              ◀────────────────────────── session ◀─ by virtual address ◀─── inner packet
//! ```
//!
//! One `Upf` is one shard, owned by one thread. A UE belongs to the shard given by the hash of its public
//! key, so shards share nothing. Receiver indices of a shard are congruent to its number, which lets the
//! kernel deliver datagrams to the right thread.
//!
//! | file | about |
//! |---|---|
//! | `api.rs` | configuration, commands, events, views |
//! | `users.rs` | records of UEs, and the tables that find them |
//! | `handshake`, `limiter`, `key_conflicts` | new keys; limits for unknown senders; two devices with one key |
//! | `sessions.rs` | begin and end of sessions, their events |
//! | `rules.rs` | compiled rules, exceptions, documents |
//! | `datapath.rs`, `timers.rs` | packets and time |
//! | `element.rs` | the element for the simulator |

mod api;
mod datapath;
mod element;
mod handshake;
mod key_conflicts;
mod limiter;
mod rules;
mod sessions;
mod timers;
mod users;

pub use api::{
    MAX_EXCEPTIONS, SessionEnd, SessionView, UeEntry, UpfAccess, UpfCommand, UpfConfig, UpfError, UpfEvent,
};
pub use element::N6_PORT;
pub use handshake::{ComputedInit, DeferredInit};

use crate::classify::RuleSet;
use crate::crypto::{PublicKey, Responder};
use crate::drops::DropCounters;
use crate::path::{ProbeParams, TrainBudget};
use crate::reorder::{Pool, PoolConfig};
use crate::session::{Addresses, RuleView, Session};
use crate::table::Slab;
use anabranch_element::ioam::{BothWays, IoamNode, IoamStats};
use anabranch_element::time::{Duration, Instant};
use anabranch_rules::AccessName;
use key_conflicts::KeyConflictDetector;
use limiter::Limiter;
use rand_chacha::ChaCha20Rng;
use rand_core::{RngCore, SeedableRng};
use rules::{RuleBook, definitions, place};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use timers::Timers;
use users::{User, UserIndex, UserSlot, Users};

const MAX_EVENTS: usize = 4096;

/// One shard of the UPF's tunnel end.
pub struct Upf {
    config: UpfConfig,
    /// The probing parameters, one copy for all paths of all sessions.
    probe: Arc<ProbeParams>,
    responder: Responder,
    rng: ChaCha20Rng,
    limiter: Limiter,
    /// Handshakes to be computed, if that is done elsewhere.
    deferred: Option<VecDeque<DeferredInit>>,
    key_conflicts: KeyConflictDetector,
    users: Users,
    connected: usize,
    timers: Timers,
    /// Users whose sessions the next poll serves.
    dirty: Vec<UserIndex>,
    /// Ended sessions that must still send CLOSE to their UE.
    leaving: Vec<UserSlot>,
    rule_book: RuleBook,
    /// The rule of last resort alone.
    no_rules: Arc<RuleSet>,
    /// The rules for all have changed; the slots of users from here on must still adopt them.
    renew_from: Option<u32>,
    pool: Pool,
    trains: TrainBudget,
    drops: DropCounters,
    events: VecDeque<UpfEvent>,
    packets: element::Outbox,
    /// The IOAM node as which it fills traces.
    ioam: Option<Box<BothWays>>,
}

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
        Ok(Self {
            probe: Arc::new(config.params.probe),
            responder: Responder::new(config.private_key.clone(), responder_seed),
            limiter: Limiter::new(rng.next_u64()),
            deferred: None,
            key_conflicts: KeyConflictDetector::default(),
            users: Users::new(config.shard, config.shards, config.max_sessions, rng.next_u64()),
            connected: 0,
            timers: Timers::default(),
            dirty: Vec::new(),
            leaving: Vec::new(),
            rule_book: RuleBook::default(),
            no_rules: Arc::new(RuleSet::compile(&[], &[])?),
            renew_from: None,
            trains: TrainBudget::default(),
            pool: Pool::new(PoolConfig {
                queues: config.params.reorder_queues,
                shared: true,
                ..PoolConfig::default()
            }),
            drops: DropCounters::default(),
            events: VecDeque::new(),
            packets: element::Outbox::default(),
            ioam: None,
            rng,
            config,
        })
    }

    /// Executes a command completely, or not at all.
    ///
    /// # Errors
    /// [`UpfError`]; nothing has changed then.
    pub fn command(&mut self, command: UpfCommand, now: Instant) -> Result<(), UpfError> {
        match command {
            UpfCommand::AddUe(entry) => self.add_ue(entry, now),
            UpfCommand::RemoveUe(key) => self.remove_ue(key),
            UpfCommand::CloseSession(key) => self.close_session(key),
            UpfCommand::Rules(rules) => self.set_rules(rules),
            UpfCommand::SetException { key, application, rule } => {
                self.set_exception(key, application, rule, now)
            }
            UpfCommand::ClearException { key, application } => self.clear_exception(key, &application, now),
            UpfCommand::Clock { unix_epoch_ns } => {
                self.config.unix_epoch_ns = unix_epoch_ns;
                if let Some(ioam) = &mut self.ioam {
                    ioam.set_epoch(Duration::from_nanos(unix_epoch_ns));
                }
                Ok(())
            }
            UpfCommand::ForgetTimestamp(key) => {
                self.record(&key)?.last_timestamp_ns = 0;
                Ok(())
            }
            UpfCommand::NotBefore { key, timestamp_ns } => {
                let user = self.record(&key)?;
                user.last_timestamp_ns = user.last_timestamp_ns.max(timestamp_ns);
                Ok(())
            }
        }
    }

    fn record(&mut self, key: &PublicKey) -> Result<&mut User, UpfError> {
        let user = self.users.find(key).and_then(|user| self.users.slab.get_mut(user));
        user.ok_or(UpfError::UnknownUe(*key))
    }

    /// From now on, fills the traces of inner packets in both directions as this IOAM node: in the downlink
    /// before a packet is sealed, where there is no queue; in the uplink when a packet is delivered, with the
    /// packets held for order. Rate and flows are those of this shard.
    pub fn set_ioam(&mut self, node: IoamNode) {
        self.ioam = Some(Box::new(BothWays::new(node)));
    }

    /// Counters of IOAM traces.
    #[must_use]
    pub fn ioam_stats(&self) -> IoamStats {
        self.ioam.as_ref().map_or_else(IoamStats::default, |ioam| ioam.stats())
    }

    /// The next event, oldest first.
    pub fn poll_event(&mut self) -> Option<UpfEvent> {
        self.events.pop_front()
    }

    /// One row per known UE, approximately in the order in which they were added.
    pub fn sessions(&self) -> impl Iterator<Item = SessionView> + '_ {
        self.users.iter().map(|(_, user)| view_of(user))
    }

    /// The row of one UE.
    #[must_use]
    pub fn view(&self, key: &PublicKey) -> Option<SessionView> {
        self.users.slab.get(self.users.find(key)?).map(view_of)
    }

    /// The current behaviour of each rule of one UE in the downlink, and its reasons; the rule of last resort
    /// last. Empty without a session.
    #[must_use]
    pub fn rule_views(&self, key: &PublicKey, now: Instant) -> Vec<RuleView> {
        let user = self.users.find(key).and_then(|user| self.users.slab.get(user));
        let Some((user, user_slot)) = user.and_then(|user| Some((user, user.user_slot.as_deref()?))) else {
            return Vec::new();
        };
        let definitions = definitions(user, user_slot.own_rules(), &self.config.rules);
        let mut views: Vec<_> = user_slot.session.rule_views(now, &definitions).collect();
        for (application, rule) in user.exceptions() {
            let place = |name: &str| place(user, &self.config.rules, &definitions, name).map(usize::from);
            let follows = place(rule).and_then(|rule| views.get(rule)).map(|view| view.rule.clone());
            if let Some(view) = place(application).and_then(|application| views.get_mut(application)) {
                view.follows = follows;
            }
        }
        views
    }

    /// Number of sessions whose UE proved that it has the keys.
    #[must_use]
    pub const fn connected_count(&self) -> usize {
        self.connected
    }

    /// Number of sessions.
    #[must_use]
    pub const fn session_count(&self) -> usize {
        self.users.sessions
    }

    /// Drop counters by reason.
    #[must_use]
    pub fn drops(&self) -> &DropCounters {
        &self.drops
    }

    /// How often a UE was displaced from its session by another device with its key.
    #[must_use]
    pub const fn key_conflicts(&self) -> u64 {
        self.key_conflicts.turns()
    }

    /// The reorder buffers of all sessions.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Memory of the tables that find users, in bytes, without their sessions.
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        self.users.table_bytes()
    }

    /// The addresses of the connected session that has this address; `None` if it does not belong to this
    /// shard.
    #[must_use]
    pub fn addresses_of(&self, address: IpAddr) -> Option<Addresses> {
        let user = self.users.slab.get(self.users.by_address(address)?)?;
        user.user_slot.as_ref().filter(|user_slot| user_slot.confirmed).map(|_| user.addresses)
    }

    /// The session of a UE, for values that are not summarised here.
    #[must_use]
    pub fn session(&self, key: &PublicKey) -> Option<&Session> {
        self.users.user_slot(self.users.find(key)?).map(|user_slot| &user_slot.session)
    }
}

fn view_of(user: &User) -> SessionView {
    let session = user.user_slot.as_ref().map(|user_slot| &user_slot.session);
    SessionView {
        ue: user.name.as_str().to_owned(),
        key: user.key,
        addresses: user.addresses,
        connected: user.user_slot.as_ref().is_some_and(|user_slot| user_slot.confirmed),
        resting: session.is_some_and(Session::is_resting),
        traffic: session.map(Session::traffic).unwrap_or_default(),
        paths: session.map(|s| s.path_views().collect()).unwrap_or_default(),
    }
}
