//! The UPF's side of the handshake: nothing is kept, and little computed, for a stranger.
//!
//! ```text
//!   mac1 wrong ─▶ drop                         (anyone can send bytes)
//!   under load, no cookie ─▶ cookie reply      (prove that you receive at your address)
//!   over the hard limit ─▶ drop                (existing sessions keep the CPU)
//!   key not configured ─▶ drop
//!   timestamp not newer ─▶ drop                (a recorded init)
//!   ─▶ slot, receiver index, welcome; old keys stay in force until the new ones are used
//! ```

use super::{Seat, Upf};
use crate::access::crypto::{PendingInit, Refusal, Verdict};
use crate::access::drops::DropReason;
use crate::access::keyring::Epoch;
use crate::access::path::Role;
use crate::access::session::{Security, Session};
use crate::access::{DatagramSink, MAX_PATHS, PathId};
use crate::policy::AccessName;
use crate::time::{Duration, Instant};
use anabranch_wire::handshake::Welcome;
use rand_core::RngCore;
use std::net::SocketAddr;
use std::sync::Arc;

/// Handshakes are counted per window of this length.
const WINDOW: Duration = Duration::from_millis(100);
/// From this many inits in a window on, initiators must prove their address.
const COOKIE_ABOVE: u32 = 20;
/// This many are computed per window at most: about a tenth of one core.
const HARD_LIMIT: u32 = 60;

/// Counts handshakes per window.
#[derive(Default)]
pub(super) struct Limiter {
    window: u64,
    seen: u32,
    computed: u32,
}

impl Limiter {
    fn note(&mut self, now: Instant) -> bool {
        let window = now.as_nanos() / crate::time::nanos(WINDOW);
        if self.window != window {
            // A burst keeps the guard up for one more window.
            self.seen = if window == self.window + 1 && self.seen > COOKIE_ABOVE { COOKIE_ABOVE } else { 0 };
            (self.window, self.computed) = (window, 0);
        }
        self.seen = self.seen.saturating_add(1);
        self.seen > COOKIE_ABOVE
    }

    fn may_compute(&mut self) -> bool {
        self.computed += 1;
        self.computed <= HARD_LIMIT
    }
}

impl Upf {
    pub(super) fn on_init(
        &mut self,
        access: PathId,
        from: SocketAddr,
        datagram: &mut [u8],
        now: Instant,
        out: &mut impl DatagramSink,
    ) {
        let result = self.try_init(access, from, datagram, now, out);
        if let Err(reason) = result {
            self.drops.count(reason);
        }
    }

    fn try_init(
        &mut self,
        access: PathId,
        from: SocketAddr,
        datagram: &[u8],
        now: Instant,
        out: &mut impl DatagramSink,
    ) -> Result<(), DropReason> {
        let under_load = self.limiter.note(now);
        if self.limiter.computed >= HARD_LIMIT {
            return Err(DropReason::HandshakeRate);
        }
        let pending = match self.responder.inspect(datagram, from, now, under_load) {
            Verdict::Refused(refusal) => {
                if matches!(refusal, Refusal::Authentication | Refusal::Hello | Refusal::Shard) {
                    self.limiter.may_compute();
                }
                return Err(drop_reason(refusal));
            }
            Verdict::Cookie(reply) => {
                let slot = out.reserve(access, from, reply.len()).ok_or(DropReason::NoRoom)?;
                slot.copy_from_slice(&reply);
                return Err(DropReason::HandshakeCookie);
            }
            Verdict::Pending(pending) => *pending,
        };
        self.limiter.may_compute();
        self.accept(access, from, pending, now, out)
    }

    fn accept(
        &mut self,
        access: PathId,
        from: SocketAddr,
        pending: PendingInit,
        now: Instant,
        out: &mut impl DatagramSink,
    ) -> Result<(), DropReason> {
        let key = pending.peer();
        let record = self.ues.get_mut(&key).ok_or(DropReason::HandshakeUnknownUe)?;
        let timestamp_ns = pending.timestamp_ns();
        if timestamp_ns <= record.last_timestamp_ns {
            return Err(DropReason::HandshakeReplayed);
        }
        let (addresses, existing) = (record.entry.addresses, record.slot);
        let hello = pending.hello();
        let path = hello.path;
        let mut accesses: Vec<AccessName> = Vec::new();
        for announced in &hello.accesses {
            let index = usize::from(announced.path);
            if index >= MAX_PATHS {
                return Err(DropReason::UnknownPath);
            }
            if accesses.len() <= index {
                accesses.resize(index + 1, AccessName::new());
            }
            accesses[index].clone_from(&announced.name);
        }
        if usize::from(path) >= accesses.len() {
            return Err(DropReason::UnknownPath);
        }
        let mtu = self.config.params.inner_mtu.min(hello.mtu.max(576));

        let slot = match existing {
            Some(slot) if self.same_accesses(slot, &accesses) => slot,
            other => {
                if let Some(slot) = other {
                    self.remove_session(slot, "accesses changed");
                }
                self.open_session(key, accesses, now)?
            }
        };
        let Some(index) = self.claim_index(slot) else {
            return Err(DropReason::Exhausted);
        };
        if let Some(record) = self.ues.get_mut(&key) {
            record.last_timestamp_ns = timestamp_ns;
            record.slot = Some(slot);
        }
        let welcome = Welcome {
            ipv4: addresses.v4.map(|a| (a, 32)),
            ipv6: addresses.v6.map(|a| (a, 128)),
            inner_mtu: mtu,
            reorder_available: self.pool.available(),
            instance: self.instance,
        };
        let sender_index = pending.sender_index();
        let (keys, response) = pending.respond(index, &welcome).map_err(|_| DropReason::HandshakeInvalid)?;
        if let Some(seat) = self.seats.get_mut(slot as usize).and_then(Option::as_mut) {
            let epoch = Epoch::new(index, sender_index, keys, now);
            if let Some(stale) = seat.session.keys().install_unconfirmed(epoch) {
                super::release_index(&mut self.indices, &mut self.free_indices, &self.config, stale);
            }
        }
        self.rearm(slot);
        self.event(super::UpfEvent::Handshake { key, timestamp_ns });
        let room = out.reserve(access, from, response.len()).ok_or(DropReason::NoRoom)?;
        room.copy_from_slice(&response);
        Ok(())
    }

    fn same_accesses(&self, slot: super::Slot, accesses: &[AccessName]) -> bool {
        let seat = self.seats.get(slot as usize).and_then(Option::as_ref);
        seat.is_some_and(|s| s.session.accesses()[..] == *accesses)
    }

    fn open_session(
        &mut self,
        key: crate::access::crypto::PublicKey,
        accesses: Vec<AccessName>,
        now: Instant,
    ) -> Result<super::Slot, DropReason> {
        let record = self.ues.get(&key).ok_or(DropReason::HandshakeUnknownUe)?;
        let entry = record.entry.clone();
        let rules: Vec<_> = entry.rules.iter().chain(&self.config.rules).cloned().collect();
        let accesses: Arc<[AccessName]> = self.intern(accesses);
        // Rules that name an access this UE lacks must not lock it out: the shared default applies.
        let set = match self.rule_set(&accesses, &rules) {
            Ok(set) => set,
            Err(error) => {
                let error = error.to_string();
                self.event(super::UpfEvent::BadConfig { ue: entry.name.clone(), error });
                self.rule_set(&accesses, &[]).map_err(|_| DropReason::Exhausted)?
            }
        };
        if self.session_count() >= self.config.max_sessions as usize {
            return Err(DropReason::Exhausted);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.seats.push(None);
            (self.seats.len() - 1) as super::Slot
        });
        for address in entry.addresses.iter() {
            self.by_address.insert(address, slot);
        }
        let hash_key = self.rng.next_u64();
        let mut session = Session::new(
            Role::Upf,
            Arc::clone(&accesses),
            entry.addresses,
            set,
            &self.config.params,
            hash_key,
            now,
        );
        for (id, name) in (0u8..).zip(accesses.iter()) {
            let security = self.config.accesses.iter().find(|a| a.name == *name).map(|a| a.security);
            if let Some(path) = session.path_mut(id) {
                path.security = security.unwrap_or(Security::Secure);
            }
        }
        self.seats[slot as usize] = Some(Box::new(Seat {
            key,
            session,
            confirmed: false,
            own_rules: Vec::new(),
            endpoints: Vec::new(),
            dirty: false,
        }));
        Ok(slot)
    }

    /// One copy of each list of access names, shared by all sessions that have it.
    fn intern(&mut self, accesses: Vec<AccessName>) -> Arc<[AccessName]> {
        let shared = self.seats.iter().rev().take(8).flatten().map(|s| s.session.accesses());
        match shared.into_iter().find(|known| known[..] == accesses[..]) {
            Some(known) => Arc::clone(known),
            None => accesses.into(),
        }
    }

    fn claim_index(&mut self, slot: super::Slot) -> Option<u32> {
        let position = match self.free_indices.len() {
            // Keep a few in the drawer so that an index rests before it is used again.
            n if n > 64 || (n > 0 && self.indices.len() >= MAX_INDICES) => self.free_indices.pop_front()?,
            _ if self.indices.len() < MAX_INDICES => {
                self.indices.push(None);
                (self.indices.len() - 1) as u32
            }
            _ => return None,
        };
        *self.indices.get_mut(position as usize)? = Some(slot);
        Some(position * self.config.shards + self.config.shard)
    }
}

/// Receiver indices a shard hands out at most.
const MAX_INDICES: usize = 1 << 22;

const fn drop_reason(refusal: Refusal) -> DropReason {
    match refusal {
        Refusal::Mac1 => DropReason::HandshakeMac,
        Refusal::UnknownUe => DropReason::HandshakeUnknownUe,
        Refusal::Replayed => DropReason::HandshakeReplayed,
        Refusal::Full => DropReason::Exhausted,
        Refusal::Malformed
        | Refusal::Version
        | Refusal::Suite
        | Refusal::Authentication
        | Refusal::Hello
        | Refusal::Shard => DropReason::HandshakeInvalid,
    }
}
