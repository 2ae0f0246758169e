//! Data path and timers in batch form.

use super::users::{UserIndex, Users};
use super::{SessionEnd, Upf};
use crate::drops::DropReason;
use crate::fast::{self, FastLane, FastTraffic};
use crate::marks::Marked;
use crate::session::{Shared, UserExceptions};
use crate::table::Slab;
use crate::{DatagramSink, PacketSink, PathId, tcp_lane};
use anabranch_element::Reason;
use anabranch_element::ioam::NodeReport;
use anabranch_element::time::Instant;
use anabranch_wire::ip;
use anabranch_wire::tunnel::{InnerHeader, MessageType, SecureHeader, classify};
use std::net::SocketAddr;

/// The shared state that a session borrows for a call, in addition to the user's slot.
macro_rules! shared {
    ($upf:ident, $user:expr, $user_slot:ident) => {
        Shared {
            pool: &mut $upf.pool,
            trains: &mut $upf.trains,
            drops: &mut $upf.drops,
            params: &$upf.config.params,
            dns: None,
            exceptions: Some(UserExceptions { table: &$upf.users.table, user: $user }),
            closed_from: Some(&mut $user_slot.closed_from),
        }
    };
}

impl Upf {
    /// Processes an inner packet from N6 (batch form). Call [`Upf::poll`] after a batch.
    pub fn downlink(&mut self, packet: &mut [u8], now: Instant, out: &mut impl DatagramSink) {
        let addresses = ip::src_dst(packet).ok();
        let user = addresses.and_then(|(_, dst)| self.users.by_address(tcp_lane::session_address(dst)));
        let Some(user) = user else {
            let of_link = addresses.is_some_and(|(src, _)| ip::is_link_local(src));
            self.drops.count(if of_link { DropReason::LinkLocal } else { DropReason::NoSession });
            return;
        };
        let Some(user_slot) = self.users.slab.get_mut(user).and_then(|user| user.user_slot.as_deref_mut())
        else {
            self.drops.count(DropReason::NoSession);
            return;
        };
        if let Some(ioam) = &mut self.ioam {
            ioam.down.arrived(packet, now);
            ioam.down.fill(packet, now, now, || NodeReport { depth_bytes: Some(0), ..NodeReport::default() });
        }
        // The reason of a drop is counted; there is nobody else to inform.
        let _ = user_slot.session.send(packet, now, &mut shared!(self, user, user_slot), out);
        mark(&mut self.dirty, &mut user_slot.dirty, user);
    }

    /// Processes a datagram that arrived by access number `access` (batch form). Call [`Upf::poll`] after a
    /// batch. Returns whether it was sealed by the UE of a session and arrived for the first time. Only then
    /// does it prove anything about its sender.
    pub fn datagram(
        &mut self,
        access: PathId,
        from: SocketAddr,
        datagram: &mut [u8],
        now: Instant,
        out: &mut impl DatagramSink,
        inner: &mut impl PacketSink,
    ) -> bool {
        let mut ioam = self.ioam.take();
        let (held, most) = (self.pool.used_bytes(), self.pool.config().bytes);
        let inner = &mut Marked::new(ioam.as_mut().map(|ioam| &mut ioam.up), held, most, now, inner);
        let mut authentic = false;
        match classify(datagram) {
            Ok(MessageType::Secure) => authentic = self.on_secure(access, from, datagram, now, inner),
            Ok(MessageType::PlainData) => self.on_plain(access, from, datagram, now, inner),
            Ok(MessageType::Init) => self.on_init(access, from, datagram, now, out),
            Ok(_) => self.drops.count(DropReason::UnknownType),
            Err(_) => self.drops.count(DropReason::Malformed),
        }
        self.ioam = ioam;
        authentic
    }

    fn on_secure(
        &mut self,
        access: PathId,
        from: SocketAddr,
        datagram: &mut [u8],
        now: Instant,
        inner: &mut impl PacketSink,
    ) -> bool {
        let index = SecureHeader::parse(datagram).ok().map(|h| h.receiver);
        let user = index.and_then(|index| self.users.by_receiver(index));
        let user =
            user.and_then(|user| Some((user, self.users.slab.get_mut(user)?.user_slot.as_deref_mut()?)));
        let Some((user, user_slot)) = user else {
            self.drops.count(DropReason::UnknownIndex);
            return false;
        };
        let shared = &mut shared!(self, user, user_slot);
        let received = user_slot.session.receive_secure(access, from, datagram, now, shared, inner);
        // A forged packet must not cause further work.
        if received.is_ok() || user_slot.session.has_news() {
            mark(&mut self.dirty, &mut user_slot.dirty, user);
        }
        received.is_ok()
    }

    /// A plain datagram is assigned by its inner source address, which must be the user's own anyway. It is
    /// accepted only from an endpoint to which a path of that user is bound.
    fn on_plain(
        &mut self,
        access: PathId,
        from: SocketAddr,
        datagram: &mut [u8],
        now: Instant,
        inner: &mut impl PacketSink,
    ) {
        let source = InnerHeader::packet(datagram).and_then(|packet| ip::src_dst(packet).ok());
        let user = source.and_then(|(source, _)| self.users.by_address(tcp_lane::session_address(source)));
        let user =
            user.and_then(|user| Some((user, self.users.slab.get_mut(user)?.user_slot.as_deref_mut()?)));
        let bound = user.and_then(|(user, user_slot)| {
            Some((user, user_slot.session.plain_path(from, access)?, user_slot))
        });
        let Some((user, path, user_slot)) = bound else {
            self.drops.count(DropReason::UnknownEndpoint);
            return;
        };
        let shared = &mut shared!(self, user, user_slot);
        if user_slot.session.receive_plain(path, datagram, now, shared, inner).is_ok() {
            mark(&mut self.dirty, &mut user_slot.dirty, user);
        }
    }

    /// Accounts for the traffic that a lane of a faster data path carried. `false`: the lane is no longer
    /// valid and must be closed.
    pub fn carried(&mut self, lane: &FastLane, traffic: &FastTraffic, now: Instant) -> bool {
        let user = lane.session.iter().next().and_then(|address| self.users.by_address(address));
        let user =
            user.and_then(|user| Some((user, self.users.slab.get_mut(user)?.user_slot.as_deref_mut()?)));
        let Some((user, user_slot)) =
            user.filter(|(_, user_slot)| user_slot.session.addresses() == lane.session)
        else {
            return false;
        };
        let alive = user_slot.session.carried(lane.access, lane.to, traffic, now);
        if !fast::is_none(traffic) {
            mark(&mut self.dirty, &mut user_slot.dirty, user);
        }
        alive
    }

    /// Serves the sessions that have output or whose deadline has passed (batch form).
    pub fn poll(&mut self, now: Instant, out: &mut impl DatagramSink, inner: &mut impl PacketSink) {
        self.renew_rules(now);
        let mut ioam = self.ioam.take();
        let (held, most) = (self.pool.used_bytes(), self.pool.config().bytes);
        let inner = &mut Marked::new(ioam.as_mut().map(|ioam| &mut ioam.up), held, most, now, inner);
        for mut user_slot in core::mem::take(&mut self.leaving) {
            let mut shared = shared!(self, UserIndex::MAX, user_slot);
            user_slot.session.poll(now, &mut shared, out, inner);
            user_slot.session.release(&mut self.pool);
        }
        while let Some(slot) = self.timers.pop_due(now) {
            if let Some((user, _)) = self.users.slab.at_slot(slot) {
                self.mark(user);
            }
        }
        let mut batch = core::mem::take(&mut self.dirty);
        for user in &batch {
            self.serve(*user, now, out, inner);
        }
        // Sessions marked in the meantime are served by the next poll; the buffer is reused.
        batch.clear();
        batch.append(&mut self.dirty);
        self.dirty = batch;
        self.ioam = ioam;
    }

    fn serve(
        &mut self,
        user: UserIndex,
        now: Instant,
        out: &mut impl DatagramSink,
        inner: &mut impl PacketSink,
    ) {
        let Some(user_slot) = self.users.slab.get_mut(user).and_then(|user| user.user_slot.as_deref_mut())
        else {
            return;
        };
        user_slot.dirty = false;
        let gone = user_slot.session.keys().expire(now);
        user_slot.session.poll(now, &mut shared!(self, user, user_slot), out, inner);
        let dead = user_slot.session.keys().indices().next().is_none();
        gone.into_iter().for_each(|index| self.users.release_receiver(index));
        if self.drain_session_events(user, now) {
            return;
        }
        if dead {
            self.end_session(user, SessionEnd::KeysExpired, false);
            return;
        }
        let Some(user_slot) = self.users.slab.get_mut(user).and_then(|user| user.user_slot.as_deref_mut())
        else {
            return;
        };
        user_slot.session.rest(now, &mut shared!(self, user, user_slot));
        let due = user_slot.session.poll_timeout().map(|(at, _)| at);
        let rest = user_slot.session.rest_due_at(now, self.config.params.cool_after);
        if let Some(at) = due.into_iter().chain(rest).min() {
            self.timers.arm(Slab::<()>::slot_number(user), at);
        }
    }

    /// When [`Upf::poll`] has work to do next, and the reason.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        if !self.dirty.is_empty() || !self.leaving.is_empty() {
            return Some((Instant::ZERO, "session output"));
        }
        if self.renew_from.is_some() {
            return Some((Instant::ZERO, "new rules"));
        }
        self.timers.next().map(|at| (at, "session timer"))
    }

    /// Marks this user's session to be served by the next poll.
    pub(super) fn mark(&mut self, user: UserIndex) {
        let Users { slab, .. } = &mut self.users;
        if let Some(user_slot) = slab.get_mut(user).and_then(|user| user.user_slot.as_deref_mut()) {
            mark(&mut self.dirty, &mut user_slot.dirty, user);
        }
    }
}

#[inline]
fn mark(list: &mut Vec<UserIndex>, dirty: &mut bool, user: UserIndex) {
    if !core::mem::replace(dirty, true) {
        list.push(user);
    }
}
