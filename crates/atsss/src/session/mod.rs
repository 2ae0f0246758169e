//! One user's tunnel end, composed of keys, paths, steering, sequencing and reordering.
//!
//! The same type serves the UE (one session) and the UPF (many). It has no knowledge of sockets or of other
//! sessions. Its owner finds it by receiver index or virtual address.
//!
//! ```text
//!  inner packet ─▶ flow table ─▶ rule ─▶ mode.pick(path states) ─▶ mark / number ─▶ seal ─▶ datagram
//!                     (classify once per flow)                       (stream or flow sequence)
//!
//!  datagram ─▶ open ─▶ Data ──▶ as it is │ flow reorder │ stream reorder ─▶ inner packet
//!                  └─▶ Probe, Notify, Config, MtuProbe, Close ─▶ path states, events, answers
//! ```
//!
//! Most sessions of a UPF are idle. A session without data for a while goes to *rest* (`rest.rs`): it keeps
//! only the state that cannot be derived again, and continues to answer probes.

mod active;
mod coding;
mod control;
mod fast;
mod fragmentation;
mod path;
mod profile;
mod receive;
mod rest;
mod rules;
mod send;
mod types;

pub use coding::CodingStats;
pub use path::{Path, PathView, Security};
pub use profile::Profile;
pub use rules::{Definitions, Origin, PathLoad, RuleEvent, RuleView};
pub use send::RuleState;
pub use types::{
    Addresses, PeerSettings, ReportFrom, SessionEvent, SessionParams, Shared, Traffic, UserExceptions,
};

use crate::classify::RuleSet;
use crate::config_channel::ConfigChannel;
use crate::drops::DropReason;
use crate::keyring::KeyRing;
use crate::mtu::PathMtu;
use crate::path::{DownReason, Role};
use crate::reorder::{Pool, Usage};
use crate::table::flow::FlowTable;
use crate::{DatagramSink, PacketSink, PathId};
use active::Active;
use anabranch_element::Reason;
use anabranch_element::time::{Duration, Instant};
use anabranch_rules::AccessName;
use anabranch_steer::{PathSet, PathStates};
use anabranch_wire::ip::FlowKey;
use path::Paths;
use std::net::SocketAddr;
use std::sync::Arc;

/// One user's tunnel end.
pub struct Session {
    profile: Arc<Profile>,
    rules: Arc<RuleSet>,
    /// State that can be derived again. At rest it exists only between a packet and the next poll.
    active: Option<Box<Active>>,
    keys: KeyRing,
    paths: Paths,
    flows: FlowTable,
    traffic: Traffic,
    last_data: Instant,
    config: ConfigChannel,
    addresses: Addresses,
    generation: u32,
    notify_sequence: u32,
    /// UE: paths that packets of the TCP lane avoid while others are up.
    lane_avoids: PathSet,
    /// Of the pool that sessions share.
    held: Usage,
    resting: bool,
}

impl Session {
    /// A session that is not connected yet. `hash_key` seeds its flow hash.
    #[must_use]
    pub fn new(
        profile: Arc<Profile>,
        addresses: Addresses,
        rules: Arc<RuleSet>,
        hash_key: u64,
        now: Instant,
    ) -> Self {
        Self {
            profile,
            rules,
            active: None,
            keys: KeyRing::default(),
            paths: Paths::default(),
            flows: FlowTable::new(hash_key),
            traffic: Traffic::default(),
            last_data: now,
            config: ConfigChannel::default(),
            addresses,
            generation: 0,
            notify_sequence: 0,
            lane_avoids: PathSet::EMPTY,
            held: Usage::default(),
            resting: false,
        }
    }

    /// The key ring of the session, for rekeying.
    pub fn keys(&mut self) -> &mut KeyRing {
        &mut self.keys
    }

    /// When the UE should change keys.
    #[must_use]
    pub fn rekey_at(&self) -> Option<Instant> {
        self.keys.rekey_at()
    }

    /// The addresses the session owns inside the tunnel.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Sets the paths that packets of the TCP lane avoid while others are up (UE).
    pub fn set_lane_avoids(&mut self, paths: PathSet) {
        self.lane_avoids = paths;
    }

    /// Gives the session its addresses (UE: from the welcome).
    pub fn set_addresses(&mut self, addresses: Addresses) {
        self.addresses = addresses;
    }

    /// The properties shared with other sessions.
    #[must_use]
    pub fn profile(&self) -> &Arc<Profile> {
        &self.profile
    }

    /// Names of the accesses, by path id.
    #[must_use]
    pub fn accesses(&self) -> &Arc<[AccessName]> {
        self.profile.accesses()
    }

    /// Replaces the rules. Every flow is classified again with its next packet, except flows whose rule only
    /// the UE could determine: they follow the rule of the same name. Streams keep their paths, so that
    /// traffic which new rules move arrives in order.
    pub fn set_rules(&mut self, rules: Arc<RuleSet>) {
        let old = core::mem::replace(&mut self.rules, rules);
        if let Some(active) = &mut self.active {
            active.per_rule.iter_mut().for_each(RuleState::renew);
        }
        self.classify_again();
        self.flows.renumber_pinned(self.generation, |rule| self.rules.index_of(&old.get(rule).name));
    }

    /// Classifies every flow again with its next packet.
    fn classify_again(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.invalidate_fast();
    }

    /// The decisions for flows handed over to a faster data path are no longer valid.
    fn invalidate_fast(&mut self) {
        if let Some(active) = &mut self.active {
            active.fast.invalidate();
        }
    }

    /// The same for one flow, as seen from the UE.
    fn recall_fast(&mut self, key: &FlowKey) {
        let sent = if self.is_ue() { *key } else { key.reversed() };
        if let Some(active) = &mut self.active {
            active.fast.recall(sent);
        }
    }

    /// The rules in force.
    #[must_use]
    pub fn rules(&self) -> &Arc<RuleSet> {
        &self.rules
    }

    /// Traffic counters.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// The unified steering structure, from which every rule decides.
    #[must_use]
    pub fn states(&self) -> PathStates {
        match &self.active {
            Some(active) if !self.resting => active.states,
            _ => self.paths.states(),
        }
    }

    /// One row per path in use.
    pub fn path_views(&self) -> impl Iterator<Item = PathView> + '_ {
        self.paths.iter().map(|path| {
            let mtu = self.active.as_ref().and_then(|a| a.mtu(path.id)).and_then(PathMtu::proven);
            let name = self.accesses().get(usize::from(path.id)).map_or("", |name| name.as_str());
            path.view(name, self.profile.own_security(path.id), mtu.unwrap_or(path.mtu_bounds.low_bytes()))
        })
    }

    /// The path with this id, if it is in use.
    #[must_use]
    pub fn path(&self, path: PathId) -> Option<&Path> {
        self.paths.get(path)
    }

    /// Number of paths that are up.
    #[must_use]
    pub fn paths_up(&self) -> usize {
        self.paths.iter().filter(|p| p.monitor.is_up()).count()
    }

    /// Adds a path, or moves it: the far end is at `address`, reached by our access `access` (UE: the path
    /// id). Ids that are not among the session's accesses are ignored.
    pub fn bind(&mut self, path: PathId, address: SocketAddr, access: PathId, now: Instant) {
        if self.profile.has(path) && self.paths.get(path).is_none() {
            self.paths.add(Path::new(self.profile.role, path, &self.profile.probe, now));
        }
        if self.paths.get_mut(path).is_some_and(|path| path.bind(address, access)) {
            self.invalidate_fast();
        }
    }

    /// The results of the handshake. A path on which the ends differ is refused and carries nothing.
    pub fn set_peer(&mut self, peer: PeerSettings, now: Instant) {
        if self.profile.peer() != peer {
            self.profile = Arc::new(self.profile.with_peer(peer));
            self.invalidate_fast();
        }
        self.refuse_paths(now);
    }

    /// Bars the paths that the profile refuses, and no others. Each newly refused path causes an event.
    pub fn refuse_paths(&mut self, now: Instant) {
        for path in 0..self.accesses().len() as PathId {
            let refused = self.profile.is_refused(path);
            if refused && self.paths.get(path).is_none() {
                self.paths.add(Path::new(self.profile.role, path, &self.profile.probe, now));
            }
            let Some(state) = self.paths.get_mut(path) else { continue };
            let known = state.monitor.down_reason() == Some(DownReason::Security);
            let event = state.monitor.bar(refused.then_some(DownReason::Security), now);
            if refused && !known {
                let here = self.profile.own_security(path);
                self.active().event(SessionEvent::AccessRefused { path, here });
            }
            self.on_path_event(path, event, now);
        }
    }

    /// Searches the path MTU of `path` from now on, up to this UDP payload in bytes. For the UE; the UPF
    /// searches every path that comes up.
    pub fn search_mtu(&mut self, path: PathId, max_payload: u16, now: Instant) {
        let max = max_payload.min(self.profile.max_payload);
        if max > 0 {
            self.active().set_mtu(path, PathMtu::new(max, now));
        }
    }

    /// Whether one of its paths is bound to this address by our access `access`.
    #[must_use]
    pub fn is_bound_to(&self, address: SocketAddr, access: PathId) -> bool {
        self.paths.iter().any(|path| path.is_bound_to(address, access))
    }

    /// The path on which plain data from this address by our access `access` is accepted.
    #[must_use]
    pub fn plain_path(&self, address: SocketAddr, access: PathId) -> Option<PathId> {
        let plain = |path: &&Path| {
            self.profile.security(path.id) == Security::Plain && path.is_bound_to(address, access)
        };
        self.paths.iter().find(plain).map(|path| path.id)
    }

    /// The next event: first those on which the owner must act, then the others, oldest first.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        self.active.as_mut()?.poll_event()
    }

    /// Whether anything is waiting for the next poll or for the owner.
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.active.as_ref().is_some_and(|active| !active.is_empty())
    }

    /// Sends everything that is due, and delivers packets whose hold time is over.
    pub fn poll(
        &mut self,
        now: Instant,
        shared: &mut Shared<'_>,
        out: &mut impl DatagramSink,
        inner: &mut impl PacketSink,
    ) {
        shared.pool.serve(&mut self.held);
        self.on_timeout(now, shared, inner);
        self.reconsider(now, shared, out);
        self.send_control(now, shared, out);
        shared.pool.serve(&mut self.held);
        self.send_repairs(now, out);
        self.review_rules(now);
        while let Some(mut packet) = self.active.as_mut().and_then(|active| active.icmp.pop_front()) {
            inner.deliver(&mut packet);
        }
    }

    /// When [`Session::poll`] has work to do next, and the reason.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        let sealing = self.keys.rekey_at().is_some();
        let bound = self.paths.iter().filter(|p| sealing && p.is_bound());
        let paths = bound.filter_map(|p| p.monitor.poll_timeout());
        let repeat = self.config.poll_timeout().filter(|_| self.paths_up() > 0);
        paths
            .chain(repeat.map(|at| (at, "config repeat")))
            .chain(self.keys.expires_at().map(|at| (at, "key expiry")))
            .chain(self.active_timeout())
            .min_by_key(|(at, _)| *at)
    }

    /// Returns what the session holds of the shared pool. To be called before dropping the session.
    pub fn release(&mut self, pool: &mut Pool) {
        pool.serve(&mut self.held);
        self.give_back(pool);
        pool.serve(&mut self.held);
    }

    /// As [`Self::release`], if the pool is already serving this session.
    fn give_back(&mut self, pool: &mut Pool) {
        self.config.release(pool);
        if let Some(active) = &mut self.active {
            active.flow_reorder.close(pool);
            active.stream_reorder.close(pool);
            active.assembler.close(pool);
            if let Some(coding) = &mut active.coding {
                coding.close(pool);
            }
        }
    }

    /// The part of the shared pool that the session holds.
    #[must_use]
    pub const fn held(&self) -> Usage {
        self.held
    }

    /// The peer has restarted: its counters begin at zero, and everything it had been sent is lost.
    pub fn peer_restarted(&mut self, now: Instant, pool: &mut Pool) {
        pool.serve(&mut self.held);
        self.begin_anew(now, pool);
        pool.serve(&mut self.held);
    }

    /// As [`Self::peer_restarted`], if the pool is already serving this session.
    fn begin_anew(&mut self, now: Instant, pool: &mut Pool) {
        self.give_back(pool);
        self.config.peer_restarted(pool);
        if self.is_ue() {
            // Packets that a UPF sent before its restart are no longer valid. (A UPF has put such keys
            // aside.)
            self.keys.forget_previous();
        }
        self.flows.rest(Duration::ZERO, now);
        self.settle_streams();
        self.active().peer_restarted();
        self.paths.iter_mut().for_each(|path| path.monitor.peer_restarted(now));
        let rtts: Vec<_> = self.paths.iter().map(|path| (path.id, path.state().rtt_us)).collect();
        for (path, rtt_us) in rtts {
            self.active().flow_reorder.set_path_rtt(path, rtt_us);
        }
        self.classify_again();
    }

    fn active(&mut self) -> &mut Active {
        Active::of(&mut self.active, &self.profile)
    }

    fn is_ue(&self) -> bool {
        self.profile.role == Role::Ue
    }

    fn count(shared: &mut Shared<'_>, reason: DropReason) {
        shared.drops.count(reason);
    }
}

/// A duration in whole microseconds, the unit of the steering structure.
pub(crate) fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}
