//! The UPF's side of the handshake. For an unknown sender it keeps no state and computes little.
//!
//! ```text
//!   above the hard limit ─▶ drop                   (leaves the CPU to packets of sessions)
//!   wrong mac1 ─▶ drop                             (anyone can send bytes)
//!   under load, no cookie ─▶ cookie reply          (the sender must prove that it receives at its address)
//!   under load, network above its share ─▶ drop    (addresses of live sessions have a budget of their own)
//!   unknown key ─▶ drop
//!   timestamp not newer, or a day ahead ─▶ refusal (a replayed init, or a wrong clock)
//!   no room ─▶ refusal                             (sealed: only this UPF can send it)
//!   ─▶ session, receiver index, welcome; the old keys stay in force until the new ones are used
//! ```

use super::api::UpfEvent;
use super::users::UserIndex;
use super::{SessionEnd, Slab, Upf};
use crate::crypto::{PendingInit, Refusal, UnreadInit, Verdict};
use crate::drops::DropReason;
use crate::keyring::{Epoch, PeerInstance};
use crate::session::PeerSettings;
use crate::{DatagramSink, PathId};
use anabranch_element::time::Instant;
use anabranch_rules::AccessName;
use anabranch_wire::handshake::{Access, FEATURE_PATH_REPAIRS, Refused, Welcome};
use rand_core::RngCore;
use std::net::SocketAddr;
use std::sync::Arc;

/// How far in the future a UE's timestamp may be. An accepted timestamp blocks handshakes with an older one,
/// so a wrong clock must not block the UE for long. A clock that reads local time as UTC is wrong by at most
/// half a day.
const MOST_AHEAD_NS: u64 = 24 * 3600 * 1_000_000_000;
/// An init that is older than the newest one by at most this much may be merely late: sent by another access,
/// or delayed by a queue there.
const LATE_NS: u64 = 30 * 1_000_000_000;

/// An init to be computed, on any thread.
#[derive(Debug)]
pub struct DeferredInit {
    access: PathId,
    from: SocketAddr,
    init: UnreadInit,
}

/// The result of the computation.
#[derive(Debug)]
pub struct ComputedInit {
    access: PathId,
    from: SocketAddr,
    result: Result<PendingInit, Refusal>,
}

impl DeferredInit {
    /// Reads the init and prepares the response: five products of X25519, 0.3 ms. This is done for unknown
    /// senders as well, whose number is limited.
    #[must_use]
    pub fn compute(self) -> ComputedInit {
        let computed = self.read();
        if let Ok(pending) = &computed.result {
            pending.prepare();
        }
        computed
    }

    /// Reads the init: two products of X25519. The other three are computed with the answer, if the sender is
    /// known.
    #[must_use]
    pub fn read(self) -> ComputedInit {
        ComputedInit { access: self.access, from: self.from, result: self.init.read() }
    }
}

impl Upf {
    /// Whether a path of a live session is bound to this address.
    fn is_bound(&self, from: SocketAddr, access: PathId) -> bool {
        let user_slot = self.users.bound(from).and_then(|user| self.users.user_slot(user));
        user_slot.is_some_and(|user_slot| user_slot.confirmed && user_slot.session.is_bound_to(from, access))
    }

    pub(super) fn on_init(
        &mut self,
        access: PathId,
        from: SocketAddr,
        datagram: &mut [u8],
        now: Instant,
        out: &mut impl DatagramSink,
    ) {
        match self.check_init(access, from, datagram, now, out) {
            Err(reason) => self.drops.count(reason),
            Ok(init) => match &mut self.deferred {
                Some(deferred) => deferred.push_back(DeferredInit { access, from, init }),
                None => self.on_read(access, from, init.read(), now, out),
            },
        }
    }

    /// From now on, handshakes are computed elsewhere: each init that passed the cheap checks must be taken
    /// from [`Self::poll_handshake`], computed on any thread, and passed to [`Self::finish_handshake`].
    pub fn defer_handshakes(&mut self) {
        self.deferred.get_or_insert_default();
    }

    /// The next init to be computed. Their number is limited as for handshakes computed here: 300 in 0.1 s.
    pub fn poll_handshake(&mut self) -> Option<DeferredInit> {
        self.deferred.as_mut()?.pop_front()
    }

    /// Answers a computed init.
    pub fn finish_handshake(&mut self, init: ComputedInit, now: Instant, out: &mut impl DatagramSink) {
        self.on_read(init.access, init.from, init.result, now, out);
    }

    /// An init could not be computed for lack of room.
    pub fn drop_handshake(&mut self) {
        self.drops.count(DropReason::HandshakeRate);
    }

    fn on_read(
        &mut self,
        access: PathId,
        from: SocketAddr,
        init: Result<PendingInit, Refusal>,
        now: Instant,
        out: &mut impl DatagramSink,
    ) {
        let answered = match init {
            Ok(pending) => self.answer(access, from, Box::new(pending), now, out),
            Err(refusal) => Err(drop_reason(refusal)),
        };
        if let Err(reason) = answered {
            self.drops.count(reason);
        }
    }

    /// The cheap checks, which fail for unknown senders and for senders above their share.
    fn check_init(
        &mut self,
        access: PathId,
        from: SocketAddr,
        datagram: &[u8],
        now: Instant,
        out: &mut impl DatagramSink,
    ) -> Result<UnreadInit, DropReason> {
        let under_load = self.limiter.note(now);
        let bound = self.is_bound(from, access);
        if self.limiter.is_spent(bound) {
            return Err(DropReason::HandshakeRate);
        }
        let limiter = &mut self.limiter;
        let may_compute = || limiter.take(from, bound);
        match self.responder.inspect_if(datagram, from, now, under_load, may_compute) {
            Verdict::Refused(refusal) => Err(drop_reason(refusal)),
            Verdict::Cookie(reply) => {
                send(access, from, &reply, out)?;
                Err(DropReason::HandshakeCookie)
            }
            Verdict::Passed(init) => Ok(init),
        }
    }

    /// Gives a UE that proved its key a session, if all checks pass.
    fn answer(
        &mut self,
        access: PathId,
        from: SocketAddr,
        pending: Box<PendingInit>,
        now: Instant,
        out: &mut impl DatagramSink,
    ) -> Result<(), DropReason> {
        let user = self.users.find(&pending.peer()).ok_or(DropReason::HandshakeUnknownUe)?;
        let record = self.users.slab.get_mut(user).ok_or(DropReason::HandshakeUnknownUe)?;
        let (key, timestamp_ns) = (record.key, pending.timestamp_ns());
        let latest_ns =
            self.config.unix_epoch_ns.saturating_add(now.as_nanos()).saturating_add(MOST_AHEAD_NS);
        if timestamp_ns > latest_ns {
            self.refuse(user, *pending, Refused::CLOCK_AHEAD, access, from, out)?;
            return Err(DropReason::HandshakeClock);
        }
        let last_ns = record.last_timestamp_ns;
        if timestamp_ns <= last_ns {
            // The newest timestamp again: a copy of the init, from anybody. The UE already has its answer.
            if last_ns - timestamp_ns > LATE_NS {
                self.refuse(user, *pending, Refused::CLOCK_BEHIND, access, from, out)?;
            } else if timestamp_ns < last_ns {
                // An init of the same UE that took longer than the next one by another access. If its clock
                // did go back, the clock has caught up before anybody could set it.
                answer_no(*pending, Refused::CLOCK_BEHIND, access, from, out)?;
            }
            return Err(DropReason::HandshakeReplayed);
        }
        record.last_timestamp_ns = timestamp_ns;
        self.event(UpfEvent::Handshake { key, timestamp_ns });
        let response = match self.accept(user, pending, now) {
            Ok(response) => response,
            Err((refused, pending)) => {
                self.refuse(user, *pending, refused, access, from, out)?;
                return Err(DropReason::Exhausted);
            }
        };
        send(access, from, &response.ok_or(DropReason::HandshakeInvalid)?, out)
    }

    /// Refuses a session to a UE that proved its key: sends the reason to the UE and reports it to the
    /// operator.
    fn refuse(
        &mut self,
        user: UserIndex,
        pending: PendingInit,
        refused: Refused,
        access: PathId,
        from: SocketAddr,
        out: &mut impl DatagramSink,
    ) -> Result<(), DropReason> {
        let ue = self.users.name(user);
        self.event(UpfEvent::Refused { ue, reason: refused.as_str() });
        answer_no(pending, refused, access, from, out)
    }

    /// Gives a UE that proved its key the keys of a new epoch, and a session if it has none. `Ok(None)`: its
    /// ephemeral key is unusable.
    fn accept(
        &mut self,
        user: UserIndex,
        pending: Box<PendingInit>,
        now: Instant,
    ) -> Result<Option<Vec<u8>>, (Refused, Box<PendingInit>)> {
        let hello = pending.hello();
        let Some(accesses) = by_path(&hello.accesses, hello.path) else {
            return Err((Refused::ACCESSES, pending));
        };
        let mtu = self.config.params.inner_mtu.min(hello.mtu.max(1280));
        let peer = PeerSettings {
            plain: hello.plain,
            inner_mtu: mtu,
            features: hello.features & FEATURE_PATH_REPAIRS,
        };
        let resume = hello.resume;
        let profile = self.profile(&accesses, peer);
        let user_slot = self.users.user_slot_mut(user);
        let same =
            user_slot.as_ref().is_some_and(|user_slot| Arc::ptr_eq(user_slot.session.profile(), &profile));
        // A UE that does not know this session's keys has been restarted.
        let confirmed = user_slot.as_ref().is_some_and(|user_slot| user_slot.confirmed);
        let peer_instance =
            resume.zip(user_slot).and_then(|(index, slot)| slot.session.keys().peer_instance(index));
        let displaced = peer_instance.is_none() && resume.is_some() && confirmed;
        if displaced && self.key_conflicts.on_keys_displaced(user, now) {
            let ue = self.users.name(user);
            self.event(UpfEvent::SharedKey { ue });
        }
        if !same {
            self.end_session(user, SessionEnd::AccessesChanged, false);
            if profile.refuses_all() {
                return Err((Refused::SECURITY, pending));
            }
            if self.users.sessions >= self.config.max_sessions as usize {
                return Err((Refused::FULL, pending));
            }
        }
        let Ok(index) = self.users.claim_receiver(user) else { return Err((Refused::FULL, pending)) };
        if !same {
            self.open_session(user, Arc::clone(&profile), now);
        }
        // A UE that was not restarted learns by a different instance number that what it had sent is lost.
        let peer_instance = peer_instance.filter(|_| same);
        let peer_instance =
            peer_instance.unwrap_or_else(|| PeerInstance { instance: self.rng.next_u32(), fresh_peer: same });
        let addresses = self.users.slab.get(user).map(|record| record.addresses).unwrap_or_default();
        let held = self.users.user_slot(user).map(|slot| slot.session.held()).unwrap_or_default();
        let welcome = Welcome {
            ipv4: addresses.v4.map(|a| (a, 32)),
            ipv6: addresses.v6.map(|a| (a, 128)),
            inner_mtu: mtu,
            reorder_available: self.pool.available_to(held),
            instance: peer_instance.instance,
            plain: profile.plain(),
            features: profile.own_features(),
        };
        let sender_index = pending.sender_index();
        let (Ok((keys, response)), Some(user_slot)) =
            (pending.respond(index, &welcome), self.users.user_slot_mut(user))
        else {
            self.users.release_receiver(index);
            return Ok(None);
        };
        let epoch = Epoch::new(index, sender_index, keys, now)
            .with_instance(peer_instance.instance)
            .with_fresh_peer(peer_instance.fresh_peer);
        if let Some(stale) = user_slot.session.keys().install_unconfirmed(epoch) {
            self.users.release_receiver(stale);
        }
        self.timers.arm(Slab::<()>::slot_number(user), now);
        Ok(Some(response))
    }
}

/// Sends a UE that proved its key the reason of a refusal.
fn answer_no(
    pending: PendingInit,
    refused: Refused,
    access: PathId,
    from: SocketAddr,
    out: &mut impl DatagramSink,
) -> Result<(), DropReason> {
    let answer = pending.refuse(refused).map_err(|_| DropReason::HandshakeInvalid)?;
    send(access, from, &answer, out)
}

fn send(
    access: PathId,
    to: SocketAddr,
    message: &[u8],
    out: &mut impl DatagramSink,
) -> Result<(), DropReason> {
    out.reserve(access, to, message.len()).ok_or(DropReason::NoRoom)?.copy_from_slice(message);
    Ok(())
}

/// Names by path id; `None` if there are gaps, or if the init came by a path that is not announced.
fn by_path(announced: &[Access], path: PathId) -> Option<Vec<AccessName>> {
    let mut names = vec![AccessName::new(); announced.len()];
    for access in announced {
        // The parser has checked that no path id occurs twice.
        names.get_mut(usize::from(access.path))?.clone_from(&access.name);
    }
    (usize::from(path) < names.len()).then_some(names)
}

const fn drop_reason(refusal: Refusal) -> DropReason {
    match refusal {
        Refusal::Mac1 => DropReason::HandshakeMac,
        Refusal::Version => DropReason::HandshakeVersion,
        Refusal::UnknownUe => DropReason::HandshakeUnknownUe,
        Refusal::Replayed => DropReason::HandshakeReplayed,
        Refusal::Rate => DropReason::HandshakeRate,
        Refusal::Full => DropReason::Exhausted,
        Refusal::Malformed | Refusal::Suite | Refusal::Authentication | Refusal::Hello | Refusal::Shard => {
            DropReason::HandshakeInvalid
        }
    }
}
