//! From a datagram to the inner packets it releases.

use super::{Security, Session, SessionEvent, Shared};
use crate::access::drops::DropReason;
use crate::access::path::Role;
use crate::access::reorder::Outcome;
use crate::access::{PacketSink, PathId};
use crate::time::Instant;
use anabranch_wire::control::Control;
use anabranch_wire::ip::{self, FlowKey};
use anabranch_wire::tunnel::{InnerHeader, InnerType, Order};
use std::net::SocketAddr;

impl Session {
    /// Takes a sealed datagram whose receiver index is one of this session's; it came in by our
    /// access number `access`.
    ///
    /// # Errors
    /// Why it was dropped; already counted.
    pub fn receive_secure(
        &mut self,
        access: PathId,
        from: SocketAddr,
        datagram: &mut [u8],
        now: Instant,
        shared: &mut Shared<'_>,
        inner: &mut impl PacketSink,
    ) -> Result<(), DropReason> {
        self.try_secure(access, from, datagram, now, shared, inner)
            .inspect_err(|&reason| Self::count(shared, reason))
    }

    /// Takes a plain-form datagram that came from the bound endpoint of `path`.
    ///
    /// # Errors
    /// Why it was dropped; already counted.
    pub fn receive_plain(
        &mut self,
        path: PathId,
        datagram: &mut [u8],
        now: Instant,
        shared: &mut Shared<'_>,
        inner: &mut impl PacketSink,
    ) -> Result<(), DropReason> {
        self.try_plain(path, datagram, now, shared, inner).inspect_err(|&reason| Self::count(shared, reason))
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
        let path = opened.path;
        let state = self.paths.get_mut(usize::from(path)).ok_or(DropReason::UnknownPath)?;
        // Roaming: only the newest packet of a path tells where the path is now.
        let moved = self.role == Role::Upf
            && opened.newest
            && (state.endpoint != Some(from) || state.access != access);
        if moved {
            state.endpoint = Some(from);
            state.access = access;
        }
        let plaintext = opened.plaintext;
        if let Some(confirmed) = opened.confirmed {
            self.event(SessionEvent::Rekeyed { local_index: confirmed.local_index });
            let channel = self.channel.as_mut();
            if let Some(channel) = channel {
                channel.sender.restart(now);
            }
        }
        if moved {
            self.event(SessionEvent::Endpoint { path, address: from });
        }
        let (header, body) = InnerHeader::parse(plaintext).map_err(|_| DropReason::Malformed)?;
        if header.kind == InnerType::Data {
            self.data(path, &header, &mut plaintext[InnerHeader::LEN..], size, now, shared, inner)
        } else {
            let message = Control::parse_body(&header, body).map_err(|_| DropReason::Malformed)?;
            self.on_control(path, message, now, shared)
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
        let state = self.path(path).ok_or(DropReason::UnknownPath)?;
        if state.security != Security::Plain {
            return Err(DropReason::PlainRefused);
        }
        let (header, _) = InnerHeader::parse(datagram).map_err(|_| DropReason::Malformed)?;
        if header.kind != InnerType::Data {
            return Err(DropReason::PlainRefused);
        }
        self.data(path, &header, &mut datagram[InnerHeader::LEN..], size, now, shared, inner)
    }

    #[expect(clippy::too_many_arguments, reason = "one packet and its surroundings")]
    fn data(
        &mut self,
        path: PathId,
        header: &InnerHeader,
        packet: &mut [u8],
        size: usize,
        now: Instant,
        shared: &mut Shared<'_>,
        inner: &mut impl PacketSink,
    ) -> Result<(), DropReason> {
        if let Some(state) = self.path_mut(path) {
            state.monitor.on_data_received(size, now);
        }
        let order = header.order().map_err(|_| DropReason::Malformed)?;
        if let Order::Mark(word) = order {
            self.stream_reorder.on_marker(word, now, shared.pool, inner);
            return Ok(());
        }
        let key = FlowKey::parse(packet).map_err(|_| DropReason::NotIp)?;
        if self.role == Role::Upf && !self.addresses.contains(key.src) {
            return Err(DropReason::SpoofedSource);
        }
        self.traffic.rx_packets += 1;
        self.traffic.rx_bytes += packet.len() as u64;
        self.last_data = now;
        // The far end clamped towards its MTU already; ours may be smaller.
        // What the peer's host may send is what this end can carry back.
        ip::clamp_mss(packet, self.inner_mtu(shared.params.inner_mtu));
        match order {
            Order::Flow { sequence, start } | Order::Dedup { sequence, start } => {
                let hold = matches!(order, Order::Flow { .. });
                let outcome = self.flow_reorder.on_packet(
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
            Order::Stream(word) => {
                self.stream_reorder.on_packet(word, packet, now, shared.pool, inner);
            }
            Order::None | Order::Mark(_) => inner.deliver(packet),
        }
        Ok(())
    }
}
