//! From the inner packet to the datagrams that carry it.

use super::{Session, SessionEvent, Shared, Security, MAX_ICMP};
use crate::access::classify::RuleIndex;
use crate::access::drops::DropReason;
use crate::access::path::Role;
use crate::access::reorder::StreamSender;
use crate::access::steer::{ModeState, PathSet, Pick};
use crate::access::{DatagramSink, PathId};
use crate::time::{Duration, Instant};
use anabranch_wire::ip::{self, FlowKey};
use anabranch_wire::tunnel::{
    InnerHeader, InnerKind, INNER_HEADER_BYTES, NEXT_NONE, SECURE_HEADER_BYTES, SECURE_OVERHEAD_BYTES, TAG_BYTES,
    data_flags,
};

/// What a session remembers per rule once traffic used it.
#[derive(Default)]
pub struct RuleState {
    mode: ModeState,
    stream: StreamSender,
    /// Path of a switching rule.
    path: Option<PathId>,
    /// Counter for modes that look at a sequence number the wire does not carry.
    packets: u32,
    /// Switches that waited because the peer had no reorder queue free (admission control).
    pub denied: u64,
    /// Switches done.
    pub switches: u64,
}

impl RuleState {
    /// The path a switching rule is on.
    #[must_use]
    pub const fn path(&self) -> Option<PathId> {
        self.path
    }
}

/// Longest a receiver may be asked to hold CURRENT-PATH packets.
const MAX_HOLD: Duration = Duration::from_millis(500);
/// Added to the computed hold: timer and scheduling slack of the far end.
const HOLD_SLACK_US: u64 = 5_000;

impl Session {
    /// Sends one inner packet to the peer.
    ///
    /// # Errors
    /// Why it was dropped; already counted. A packet larger than the tunnel carries is answered with
    /// an ICMP Packet Too Big, delivered by the next [`Session::poll`].
    pub fn send(
        &mut self,
        packet: &mut [u8],
        now: Instant,
        shared: &mut Shared<'_>,
        out: &mut impl DatagramSink,
    ) -> Result<(), DropReason> {
        self.try_send(packet, now, shared, out).inspect_err(|&reason| Self::count(shared, reason))
    }

    fn try_send(
        &mut self,
        packet: &mut [u8],
        now: Instant,
        shared: &mut Shared<'_>,
        out: &mut impl DatagramSink,
    ) -> Result<(), DropReason> {
        let key = FlowKey::parse(packet).map_err(|_| DropReason::NotIp)?;
        let mtu = self.inner_mtu(shared.params.inner_mtu);
        if packet.len() > usize::from(mtu) {
            self.refuse_too_big(packet, mtu);
            return Err(DropReason::TooBig);
        }
        ip::clamp_mss(packet, mtu);
        let key = if self.role == Role::Ue { key } else { key.reversed() };
        let next_protocol = if packet[0] >> 4 == 6 { ip::PROTOCOL_IPV6 } else { ip::PROTOCOL_IPV4 };

        let flow = self.flows.entry(&key, now);
        if flow.generation() != Some(self.generation) {
            let rule = self.rules.classify(&key);
            flow.assign(rule, self.generation);
        }
        let (rule, flow_hash) = (flow.rule(), flow.hash());
        self.last_data = now;
        self.traffic.tx_packets += 1;
        self.traffic.tx_bytes += packet.len() as u64;

        if self.per_rule.len() <= usize::from(rule) {
            self.per_rule.resize_with(usize::from(rule) + 1, RuleState::default);
        }
        let policy = self.rules.get(rule);
        let state = &mut self.per_rule[usize::from(rule)];
        if policy.mode.splits() {
            let (sequence, first) = flow.next_sequence();
            let pick = state.mode.pick(&policy.mode, &self.states, sequence, flow_hash, now);
            let mut flags = data_flags::SEQ;
            if first {
                flags |= data_flags::START;
            }
            if !policy.reorder {
                flags |= data_flags::STREAM;
            }
            return self.emit_copies(pick.paths(), flags, next_protocol, sequence, packet, now, shared, out);
        }
        state.packets = state.packets.wrapping_add(1);
        let Pick::One(picked) = state.mode.pick(&policy.mode, &self.states, state.packets, flow_hash, now) else {
            return Err(DropReason::NoPath);
        };
        let per_flow = policy.mode.per_flow();
        if per_flow || !policy.reorder {
            // Per-flow load-balance never moves a flow while its path lives: nothing to put in order.
            if !per_flow {
                self.note_move(rule, picked);
            }
            return self.emit(picked, InnerKind::Data, 0, next_protocol, 0, packet, now, shared, out);
        }
        let path = if state.path == Some(picked) { picked } else { self.switch(rule, picked, now, shared, out) };
        let word = self.per_rule[usize::from(rule)].stream.word(stream_id(rule));
        self.emit(path, InnerKind::Data, data_flags::STREAM, next_protocol, word.to_u32(), packet, now, shared, out)
    }

    /// Moves a switching rule to another path, if the far end can put the two streams in order.
    fn switch(
        &mut self,
        rule: RuleIndex,
        to: PathId,
        now: Instant,
        shared: &mut Shared<'_>,
        out: &mut impl DatagramSink,
    ) -> PathId {
        let from = self.per_rule[usize::from(rule)].path;
        let alive = from.filter(|&p| self.states.is_up(p));
        let hold = alive.map_or(Duration::ZERO, |ex| self.hold_for(ex, to));
        let available = self.peer_reorder_available();
        let state = &mut self.per_rule[usize::from(rule)];
        match (alive, from) {
            (Some(ex), _) => {
                let Some(word) = state.stream.switch(stream_id(rule), hold, available) else {
                    state.denied += 1;
                    return ex;
                };
                let marker = (data_flags::STREAM | data_flags::MARK, word.to_u32());
                // The marker is the last packet of the EX path; if it is lost, the hold timer covers it.
                let _ = self.emit(ex, InnerKind::Data, marker.0, NEXT_NONE, marker.1, &[], now, shared, out);
            }
            (None, Some(_)) => state.stream.switch_failed_path(),
            (None, None) => {}
        }
        self.note_move(rule, to);
        to
    }

    fn note_move(&mut self, rule: RuleIndex, to: PathId) {
        let state = &mut self.per_rule[usize::from(rule)];
        if state.path == Some(to) {
            return;
        }
        let from = state.path.replace(to);
        state.switches += u64::from(from.is_some());
        let rule = self.rules.get(rule).name.clone();
        self.event(SessionEvent::Moved { rule, from, to });
    }

    /// How long the far end may hold CURRENT-PATH packets for EX-PATH stragglers: the difference of
    /// the one-way delays (half the RTTs) plus the spread of the slower path (JUNCTION §V-D1).
    fn hold_for(&self, ex: PathId, current: PathId) -> Duration {
        let rtt = |p: PathId| self.path(p).map(|path| path.monitor.rtt()).unwrap_or_default();
        let (ex, current) = (rtt(ex), rtt(current));
        let slow = u64::from(ex.smoothed_us.max(ex.latest_us)) / 2 + 2 * u64::from(ex.variance_us);
        let fast = u64::from(current.minimum_us) / 2;
        Duration::from_micros(slow.saturating_sub(fast) + HOLD_SLACK_US).min(MAX_HOLD)
    }

    fn peer_reorder_available(&self) -> u16 {
        self.paths.iter().filter(|p| p.monitor.is_up()).map(|p| p.monitor.peer_reorder_available()).max().unwrap_or(0)
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one header and where they go")]
    fn emit_copies(
        &mut self,
        paths: PathSet,
        flags: u8,
        next_protocol: u8,
        sequence: u32,
        packet: &[u8],
        now: Instant,
        shared: &mut Shared<'_>,
        out: &mut impl DatagramSink,
    ) -> Result<(), DropReason> {
        let mut result = Err(DropReason::NoPath);
        for path in paths.iter() {
            let sent = self.emit(path, InnerKind::Data, flags, next_protocol, sequence, packet, now, shared, out);
            // One copy out is enough.
            if result.is_err() {
                result = sent;
            }
        }
        result
    }

    /// Writes one message into the sink: header, payload, seal.
    #[expect(clippy::too_many_arguments, reason = "the fields of one header and where they go")]
    pub(super) fn emit(
        &mut self,
        path: PathId,
        kind: InnerKind,
        flags: u8,
        next_protocol: u8,
        sequence: u32,
        payload: &[u8],
        now: Instant,
        _shared: &mut Shared<'_>,
        out: &mut impl DatagramSink,
    ) -> Result<(), DropReason> {
        let state = self.paths.get_mut(usize::from(path)).ok_or(DropReason::UnknownPath)?;
        let to = state.endpoint.ok_or(DropReason::NoPath)?;
        let length = u16::try_from(payload.len()).map_err(|_| DropReason::TooBig)?;
        let header = InnerHeader { kind, flags, next_protocol, length, sequence };
        let is_data = kind == InnerKind::Data;
        let size = if is_data && state.security == Security::Plain {
            let size = INNER_HEADER_BYTES + payload.len();
            let slot = out.reserve(state.access, to, size).ok_or(DropReason::NoRoom)?;
            header.emit(slot);
            slot[INNER_HEADER_BYTES..].copy_from_slice(payload);
            size
        } else {
            if !self.keys.can_seal(now) {
                return Err(DropReason::NoKeys);
            }
            let size = SECURE_OVERHEAD_BYTES + payload.len();
            let slot = out.reserve(state.access, to, size).ok_or(DropReason::NoRoom)?;
            let body = &mut slot[SECURE_HEADER_BYTES..size - TAG_BYTES];
            header.emit(body);
            body[INNER_HEADER_BYTES..].copy_from_slice(payload);
            self.keys.seal(path, slot, now)?;
            size
        };
        if is_data {
            state.monitor.on_data_sent(size, now);
        }
        Ok(())
    }

    /// Largest inner packet every live path carries whole.
    fn inner_mtu(&self, configured: u16) -> u16 {
        let overhead = SECURE_OVERHEAD_BYTES as u16;
        self.paths
            .iter()
            .filter(|p| p.monitor.is_up())
            .filter_map(|p| p.mtu.as_ref())
            .map(|m| m.current().saturating_sub(overhead).max(MIN_INNER_MTU))
            .fold(configured, u16::min)
    }

    fn refuse_too_big(&mut self, packet: &[u8], mtu: u16) {
        let from = match packet.first().map(|b| b >> 4) {
            Some(6) => self.addresses.v6.map(Into::into),
            _ => self.addresses.v4.map(Into::into),
        };
        if self.icmp.len() < MAX_ICMP
            && let Some(from) = from
            && let Some(message) = ip::packet_too_big(packet, mtu, from)
        {
            self.icmp.push_back(message);
        }
    }
}

/// IPv6's smallest MTU less nothing: an inner link must carry 1280 bytes; below, IPv4 still works.
const MIN_INNER_MTU: u16 = 576;

/// The stream a rule's packets belong to. Rule sets have at most 250 rules.
fn stream_id(rule: RuleIndex) -> u8 {
    u8::try_from(rule).unwrap_or(u8::MAX)
}
