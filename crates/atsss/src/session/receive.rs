//! Processing of a received datagram, up to the inner packets that it releases.

use super::active::Active;
use super::fragmentation::lost_piece;
use super::path::Origin;
use super::{Path, Security, Session, SessionEvent, Shared};
use crate::drops::DropReason;
use crate::reorder::{Hold, Outcome};
use crate::{PacketSink, PathId, tcp_lane};
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::coding::CodeWord;
use anabranch_wire::control::Control;
use anabranch_wire::ip::{self, FlowKey, IpPacket};
use anabranch_wire::tunnel::{DeliveryOrder, Fragment, InnerHeader, InnerType};
use std::net::SocketAddr;

/// Least time between two events about closed destinations of one session.
const TELL_CLOSED: Duration = Duration::from_secs(600);

impl Session {
    /// Processes a sealed datagram whose receiver index belongs to this session; it arrived by our access
    /// `access`.
    ///
    /// # Errors
    /// The reason of a drop, which has already been counted.
    pub fn receive_secure(
        &mut self,
        access: PathId,
        from: SocketAddr,
        datagram: &mut [u8],
        now: Instant,
        shared: &mut Shared<'_>,
        inner: &mut impl PacketSink,
    ) -> Result<(), DropReason> {
        shared.pool.serve(&mut self.held);
        let received = self.try_secure(access, from, datagram, now, shared, inner);
        shared.pool.serve(&mut self.held);
        if let Err(reason) = received {
            Self::count(shared, reason);
            if self.resting {
                // Forged packets must not keep the ciphers of resting sessions expanded.
                self.keys.cool_down();
            }
        }
        received
    }

    /// Processes a datagram in the plain form that came from the bound endpoint of `path`.
    ///
    /// # Errors
    /// The reason of a drop, which has already been counted.
    pub fn receive_plain(
        &mut self,
        path: PathId,
        datagram: &mut [u8],
        now: Instant,
        shared: &mut Shared<'_>,
        inner: &mut impl PacketSink,
    ) -> Result<(), DropReason> {
        shared.pool.serve(&mut self.held);
        let received = self.try_plain(path, datagram, now, shared, inner);
        shared.pool.serve(&mut self.held);
        received.inspect_err(|&reason| Self::count(shared, reason))
    }

    fn try_secure(
        &mut self,
        access: PathId,
        from: SocketAddr,
        datagram: &mut [u8],
        now: Instant,
        shared: &mut Shared<'_>,
        inner: &mut impl PacketSink,
    ) -> Result<(), DropReason> {
        let size = datagram.len();
        let opened = self.keys.open(datagram, now)?;
        let (path, plaintext) = (opened.path, opened.plaintext);
        if let Some(confirmed) = opened.confirmed {
            if confirmed.fresh_peer {
                self.begin_anew(now, shared.pool);
            }
            self.active().confirm(confirmed);
        }
        if !self.profile.has(path) {
            return Err(DropReason::UnknownPath);
        }
        if self.profile.is_refused(path) {
            return Err(DropReason::AccessRefused);
        }
        let origin =
            if self.is_ue() { Origin::Endpoint } else { self.follow(path, from, access, opened.newest, now) };
        let (header, body) = InnerHeader::parse(plaintext).map_err(|_| DropReason::Malformed)?;
        if header.kind != InnerType::Fragment {
            if header.kind == InnerType::Data {
                self.on_datagram(path, size, now);
            }
            return self.message(path, origin, plaintext, now, shared, inner);
        }
        let piece = Fragment::parse_body(&header, body).map_err(|_| DropReason::Malformed)?;
        self.on_datagram(path, size, now);
        if self.resting {
            self.wake(now);
        }
        let active = Active::of(&mut self.active, &self.profile);
        let (paths, drops) = (&mut self.paths, &mut *shared.drops);
        paths.get_mut(path).into_iter().for_each(|path| path.fragments().rx_pieces += 1);
        let lost = &mut |path| lost_piece(paths, path, drops);
        let Some(mut whole) = active.assembler.on_piece(path, &piece, now, shared.pool, lost)? else {
            return Ok(());
        };
        let taken = self.message(path, Origin::Elsewhere, whole.message(), now, shared, inner);
        self.active().assembler.give_back(whole);
        taken
    }

    /// Processes a message that was sealed: inner header, and a packet or control.
    fn message(
        &mut self,
        path: PathId,
        origin: Origin,
        message: &mut [u8],
        now: Instant,
        shared: &mut Shared<'_>,
        inner: &mut impl PacketSink,
    ) -> Result<(), DropReason> {
        let (header, body) = InnerHeader::parse(message).map_err(|_| DropReason::Malformed)?;
        if header.kind == InnerType::Data {
            return self.data(path, &header, &mut message[InnerHeader::LEN..], now, shared, inner);
        }
        let message = Control::parse_body(&header, body).map_err(|_| DropReason::Malformed)?;
        self.on_control(path, origin, message, now, shared)
    }

    /// A datagram with user data has arrived and counts as received, whatever happens to it afterwards.
    fn on_datagram(&mut self, path: PathId, size: usize, now: Instant) {
        if let Some(state) = self.paths.get_mut(path) {
            state.monitor.on_data_received(size, now);
        }
    }

    fn try_plain(
        &mut self,
        path: PathId,
        datagram: &mut [u8],
        now: Instant,
        shared: &mut Shared<'_>,
        inner: &mut impl PacketSink,
    ) -> Result<(), DropReason> {
        let size = datagram.len();
        if self.profile.security(path) != Security::Plain {
            return Err(DropReason::PlainRefused);
        }
        let (header, _) = InnerHeader::parse(datagram).map_err(|_| DropReason::Malformed)?;
        // Control is always sealed, and so are markers (a forged one would end the wait for order) and
        // repairs.
        let sealed = matches!(header.order(), Ok(DeliveryOrder::Mark(_) | DeliveryOrder::Repair(_)));
        if header.kind != InnerType::Data || sealed {
            return Err(DropReason::PlainRefused);
        }
        if header.length == 0 {
            // A fast path in the kernel leaves checksums to the interface, and a virtual interface leaves
            // them incomplete.
            ip::complete_checksum(&mut datagram[InnerHeader::LEN..]);
        }
        self.on_datagram(path, size, now);
        self.data(path, &header, &mut datagram[InnerHeader::LEN..], now, shared, inner)
    }

    /// Adds a path, or updates its address (UPF). Only the newest packet of a path determines its address.
    /// For a path with user data in the clear, the new address must also have answered first.
    fn follow(
        &mut self,
        path: PathId,
        from: SocketAddr,
        access: PathId,
        newest: bool,
        now: Instant,
    ) -> Origin {
        let plain = self.profile.security(path) == Security::Plain;
        let state = match self.paths.get_mut(path) {
            Some(state) => state,
            None => {
                self.paths.add(Path::new(self.profile.role, path, &self.profile.probe, now));
                let Some(state) = self.paths.get_mut(path) else { return Origin::Elsewhere };
                state
            }
        };
        let origin = state.origin(from, access);
        if plain && state.is_bound() && state.is_proven() {
            match origin {
                Origin::Elsewhere if newest => {
                    state.set_candidate(from, access);
                    return Origin::Candidate;
                }
                // The peer has not moved: the candidate did not receive an answer.
                Origin::Endpoint if newest => state.forget_candidate(),
                _ => {}
            }
            return origin;
        }
        if !newest && state.is_bound() {
            return origin;
        }
        if state.bind(from, access) {
            self.active().event(SessionEvent::Endpoint { path, address: from });
            self.invalidate_fast();
        }
        Origin::Endpoint
    }

    fn data(
        &mut self,
        path: PathId,
        header: &InnerHeader,
        packet: &mut [u8],
        now: Instant,
        shared: &mut Shared<'_>,
        inner: &mut impl PacketSink,
    ) -> Result<(), DropReason> {
        let order = header.order().map_err(|_| DropReason::Malformed)?;
        match order {
            DeliveryOrder::Mark(word) => {
                let active = Active::of(&mut self.active, &self.profile);
                active.stream_reorder.on_marker(word, now, shared.pool, inner);
                Ok(())
            }
            DeliveryOrder::Repair(word) => self.coded_repair(path, word, packet, now, shared, inner),
            DeliveryOrder::Coded { sequence, start, hold } => {
                let (word, packet) = CodeWord::split(packet).ok_or(DropReason::Malformed)?;
                // Only what may be delivered may be a part of what is restored.
                let key = FlowKey::parse(packet).map_err(|_| DropReason::NotIp)?;
                self.check_addresses(path, &key, now, shared)?;
                let order = DeliveryOrder::sequenced(sequence, start, hold);
                let hold = self.coded_source(path, word, order, packet, now, shared);
                let taken = self.take_in(path, order, hold, packet, now, shared, inner);
                self.deliver_recovered(path, word.stream, now, shared, inner);
                taken
            }
            DeliveryOrder::Flow { sole: true, .. } => {
                self.take_in(path, order, Hold::OnPath, packet, now, shared, inner)
            }
            DeliveryOrder::Flow { .. } => self.take_in(path, order, Hold::Skew, packet, now, shared, inner),
            _ => self.take_in(path, order, Hold::Never, packet, now, shared, inner),
        }
    }

    /// The UPF takes packets of the session's own addresses only, to destinations that are open to UEs; both ends take those
    /// of the TCP lane that are the session's. `by` is the path that this one came by.
    fn check_addresses(
        &mut self,
        by: PathId,
        key: &FlowKey,
        now: Instant,
        shared: &mut Shared<'_>,
    ) -> Result<(), DropReason> {
        let of_lane = tcp_lane::contains(key.src) || tcp_lane::contains(key.dst);
        let admitted = if of_lane {
            let path = self.lane_path(key, !self.is_ue());
            if let Some(path) = path {
                self.active().lane_by[usize::from(path)] = by;
            }
            path.is_some()
        } else {
            self.is_ue() || self.addresses.contains(key.src)
        };
        if !admitted {
            return Err(if key.is_link_local() { DropReason::LinkLocal } else { DropReason::SpoofedSource });
        }
        if of_lane || self.is_ue() || shared.params.destinations.admits(key.dst) {
            return Ok(());
        }
        if shared.closed_from.as_deref_mut().is_some_and(|from| from.permits(now, TELL_CLOSED)) {
            self.active().event(SessionEvent::ClosedDestination(key.dst));
        }
        Err(DropReason::ClosedDestination)
    }

    /// Delivers an inner packet, received or restored, in its order.
    #[expect(clippy::too_many_arguments, reason = "one packet and its surroundings")]
    pub(super) fn take_in(
        &mut self,
        path: PathId,
        order: DeliveryOrder,
        hold: Hold,
        packet: &mut [u8],
        now: Instant,
        shared: &mut Shared<'_>,
        inner: &mut impl PacketSink,
    ) -> Result<(), DropReason> {
        let ip = IpPacket::parse(packet).map_err(|_| DropReason::NotIp)?;
        let key = FlowKey::of(&ip, packet).map_err(|_| DropReason::NotIp)?;
        self.check_addresses(path, &key, now, shared)?;
        if self.resting {
            self.wake(now);
        }
        let bytes = packet.len() as u64;
        self.note_data(now);
        // The MSS of the peer's host is limited to what this end can carry back.
        self.clamp_mss(&ip, packet);
        match order {
            DeliveryOrder::Flow { sequence, start, .. } | DeliveryOrder::Dedup { sequence, start } => {
                let active = Active::of(&mut self.active, &self.profile);
                let outcome = active.flow_reorder.on_packet(
                    &key,
                    sequence,
                    start,
                    hold,
                    path,
                    packet,
                    now,
                    shared.pool,
                    inner,
                );
                if outcome == Outcome::Duplicate {
                    return Err(DropReason::Duplicate);
                }
            }
            DeliveryOrder::Stream(word) => {
                let active = Active::of(&mut self.active, &self.profile);
                active.stream_reorder.on_packet(word, packet, now, shared.pool, inner);
            }
            _ => inner.deliver(packet),
        }
        self.traffic.rx_packets += 1;
        self.traffic.rx_bytes += bytes;
        Ok(())
    }
}
