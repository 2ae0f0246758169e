//! Sending of an inner packet, up to the datagrams that carry it.

use super::active::Active;
use super::coding::Covered;
use super::rules::Reported;
use super::{Security, Session, SessionEvent, Shared, micros};
use crate::classify::{FlowOwner, RuleIndex};
use crate::drops::DropReason;
use crate::mtu::PathMtu;
use crate::reorder::{StreamSender, Switch, hold_timeout};
use crate::{DatagramSink, MAX_PATHS, PathId, put, tcp_lane};
use anabranch_element::time::{Duration, Instant};
use anabranch_steer::{ACKNOWLEDGEMENT_BYTES, FlowSteer};
use anabranch_steer::{Mode, ModeState, Packet, PathSet, PathStates, Pick, Steer, View};
use anabranch_wire::control::Control;
use anabranch_wire::ip::{FlowKey, IpPacket, ends_connection, protocol};
use anabranch_wire::tunnel::{
    DeliveryOrder, InnerHeader, PLAIN_OVERHEAD, SECURE_OVERHEAD, SecureHeader, TAG_LEN,
};
use std::net::{IpAddr, SocketAddr};

/// The state of a rule that has had traffic.
pub struct RuleState {
    pub(super) mode: ModeState,
    stream: StreamSender,
    /// Current path of a switching rule.
    path: Option<PathId>,
    /// Packet counter for modes that use a sequence number which is not on the wire.
    packets: u32,
    /// Switches that were postponed because the peer had no free reorder queue (admission control).
    pub denied: u64,
    /// Switches performed.
    pub switches: u64,
    /// Packets sent, by path.
    pub(super) sent: [u64; MAX_PATHS],
    pub(super) told: Reported,
}

impl RuleState {
    pub(super) fn new(rule: RuleIndex) -> Self {
        Self {
            mode: ModeState::new(),
            stream: StreamSender::new(stream_id(rule)),
            path: None,
            packets: 0,
            denied: 0,
            switches: 0,
            sent: [0; MAX_PATHS],
            told: Reported::default(),
        }
    }

    /// The state of `rule` in `states`; created if there is none.
    #[inline]
    fn of(states: &mut Vec<Self>, rule: RuleIndex) -> &mut Self {
        let index = usize::from(rule);
        if states.len() <= index {
            Self::extend(states, index + 1);
        }
        &mut states[index]
    }

    #[cold]
    fn extend(states: &mut Vec<Self>, len: usize) {
        states.reserve_exact(len - states.len());
        let mut next = states.len() as RuleIndex..;
        states.resize_with(len, || Self::new(next.next().unwrap_or(RuleIndex::MAX)));
    }

    /// The rules have changed: counters restart. The far end identifies the stream by its number and
    /// continues to count its epochs.
    pub(super) fn renew(&mut self) {
        self.mode = ModeState::new();
        (self.sent, self.told) = ([0; MAX_PATHS], Reported::default());
        (self.denied, self.switches) = (0, 0);
    }

    /// A packet is sent by these paths.
    #[inline]
    fn count(&mut self, paths: PathSet) {
        for path in paths {
            self.sent[usize::from(path)] += 1;
        }
    }

    /// Whether the rule has had a packet.
    pub(super) fn is_used(&self) -> bool {
        self.sent.iter().any(|packets| *packets > 0)
    }

    /// The current path of a switching rule.
    #[must_use]
    pub const fn path(&self) -> Option<PathId> {
        self.path
    }

    /// The path of the newest packet of a coded rule.
    pub(super) const fn source_path(&self) -> Option<PathId> {
        self.mode.current()
    }

    /// The path that a packet would take now, for a packet that is not steered here.
    pub(super) fn pick_again(&mut self, mode: &Mode, view: View<'_>, now: Instant) -> Pick {
        let flow = &mut FlowSteer::default();
        let packet = Packet {
            sequence: self.packets,
            flow_hash: 0,
            remote: 0,
            bytes: 0,
            datagram: false,
            ends: false,
            flow,
        };
        self.mode.pick(mode, view, packet, now)
    }
}

impl Session {
    /// Sends one inner packet to the peer.
    ///
    /// # Errors
    /// The reason of a drop, which has already been counted. A packet larger than the tunnel's MTU is
    /// answered with an ICMP Packet Too Big, delivered by the next [`Session::poll`].
    pub fn send(
        &mut self,
        packet: &mut [u8],
        now: Instant,
        shared: &mut Shared<'_>,
        out: &mut impl DatagramSink,
    ) -> Result<(), DropReason> {
        shared.pool.serve(&mut self.held);
        let sent = self.try_send(packet, now, shared, out);
        shared.pool.serve(&mut self.held);
        sent.inspect_err(|&reason| Self::count(shared, reason))
    }

    fn try_send(
        &mut self,
        packet: &mut [u8],
        now: Instant,
        shared: &mut Shared<'_>,
        out: &mut impl DatagramSink,
    ) -> Result<(), DropReason> {
        let ip = IpPacket::parse(packet).map_err(|_| DropReason::NotIp)?;
        let sent = FlowKey::of(&ip, packet).map_err(|_| DropReason::NotIp)?;
        if sent.is_link_local() {
            return Err(DropReason::LinkLocal);
        }
        if self.resting {
            self.wake(now);
        }
        let mtu = self.profile.inner_mtu();
        if packet.len() > usize::from(mtu) {
            self.refuse_too_big(packet, mtu);
            return Err(DropReason::TooBig);
        }
        self.clamp_mss(&ip, packet);
        if tcp_lane::contains(sent.dst) || tcp_lane::contains(sent.src) {
            return self.send_lane(&sent, packet, now, out);
        }
        let key = if self.is_ue() { sent } else { sent.reversed() };

        let at = self.flows.touch(&key, now);
        if self.flows.at(at).and_then(|flow| flow.generation()) != Some(self.generation) {
            let rule = self.classify_flow(&key, None, now, shared);
            let generation = self.generation;
            self.flows.entry(&key, now).assign(rule, generation);
        }
        self.note_data(now);
        self.traffic.tx_packets += 1;
        self.traffic.tx_bytes += packet.len() as u64;

        let flow = self.flows.at(at).ok_or(DropReason::NoPath)?; // always there
        let (rule, flow_hash) = (flow.rule(), flow.hash());
        let active = Active::of(&mut self.active, &self.profile);
        let state = RuleState::of(&mut active.per_rule, rule);
        let policy = self.rules.get(rule);
        let loads = policy.mode.is_autonomous().then(|| self.paths.loads(now));
        let loads = loads.as_ref().map_or(&[][..], |loads| &loads[..]);
        let view = View {
            steady: &active.states,
            live: &active.live,
            loads,
            restores: policy.reorder && self.profile.restores(),
        };
        let bytes = u32::try_from(packet.len()).unwrap_or(u32::MAX);
        let remote = remote_hash(key.dst);
        let datagram = key.protocol != protocol::TCP;
        let ends = policy.mode.is_autonomous() && ends_connection(&ip, packet);
        if policy.mode.splits() {
            let (sequence, start) = flow.next_sequence();
            let steer = &mut flow.steer;
            if policy.mode.is_autonomous() && (packet.len() <= ACKNOWLEDGEMENT_BYTES || steer.is_due(now)) {
                steer.arrives(active.flow_reorder.take_arrived(&sent.reversed()));
            }
            let info = Packet { sequence, flow_hash, remote, bytes, datagram, ends, flow: steer };
            let pick = state.mode.pick(&policy.mode, view, info, now);
            let order = match pick {
                // Coded packets carry their own hold time.
                Pick::One(path) if policy.reorder && policy.mode.coded().is_none() => {
                    let sole = steer.takes(path, longest_way(&active.live), now);
                    DeliveryOrder::Flow { sequence, start, sole }
                }
                _ if policy.reorder => DeliveryOrder::Flow { sequence, start, sole: false },
                _ => DeliveryOrder::Dedup { sequence, start },
            };
            state.count(pick.paths());
            if let (Some(&mode), Pick::One(path)) = (policy.mode.coded(), pick) {
                return self.send_coded(Covered::Rule(rule), mode, path, order, packet, now, shared, out);
            }
            if let (true, Pick::One(path)) = (view.restores, pick)
                && let Some(load) = loads.get(usize::from(path))
                && let Some(mode) = policy.mode.protection(&state.mode, remote, load)
            {
                // The symbol of a packet does not contain whether its flow is on one path only.
                let order = DeliveryOrder::Flow { sequence, start, sole: false };
                return self.send_coded(Covered::Path(path), mode, path, order, packet, now, shared, out);
            }
            return self.emit_copies(pick.paths(), order, packet, now, out);
        }
        state.packets = state.packets.wrapping_add(1);
        let (sequence, flow) = (state.packets, &mut flow.steer);
        let info = Packet { sequence, flow_hash, remote, bytes, datagram, ends, flow };
        let Pick::One(picked) = state.mode.pick(&policy.mode, view, info, now) else {
            return Err(DropReason::NoPath);
        };
        if policy.mode.per_flow() {
            // Per-flow load-balance never moves a flow while its path is up, so there is no order to restore.
            state.count(PathSet::single(picked));
            self.emit_data(picked, DeliveryOrder::None, packet, now, out)?;
            self.give(&sent, picked, now, out);
            return Ok(());
        }
        let (reorder, mut path) = (policy.reorder, picked);
        if state.path != Some(picked) {
            if state.path.is_some() {
                self.revoke(now, out);
            }
            if reorder {
                path = self.switch(rule, picked, now, out);
            } else {
                self.note_move(rule, picked, now);
            }
        }
        let state = self.rule_state(rule);
        state.count(PathSet::single(path));
        let order = if reorder { DeliveryOrder::Stream(state.stream.stamp()) } else { DeliveryOrder::None };
        self.emit_data(path, order, packet, now, out)?;
        self.give(&sent, path, now, out);
        Ok(())
    }

    /// A packet of the TCP lane. Its address names the path. While that path is down or, at a UE, to be avoided, another one
    /// carries the packet, so that the subflow goes on. The UPF follows the UE: it answers by the path that the UE uses.
    fn send_lane(
        &mut self,
        flow: &FlowKey,
        packet: &[u8],
        now: Instant,
        out: &mut impl DatagramSink,
    ) -> Result<(), DropReason> {
        let path = self.lane_path(flow, self.is_ue()).ok_or(DropReason::SpoofedSource)?;
        let (is_ue, avoids) = (self.is_ue(), self.lane_avoids);
        self.note_data(now);
        self.traffic.tx_packets += 1;
        self.traffic.tx_bytes += packet.len() as u64;
        let active = self.active();
        let path = if is_ue { path } else { active.lane_by[usize::from(path)] };
        let live = &active.live;
        let path = if live.is_up(path) && !avoids.contains(path) {
            Some(path)
        } else {
            live.fastest(PathSet::ALL.without(avoids)).or_else(|| live.smallest_delay())
        };
        self.emit_data(path.ok_or(DropReason::NoPath)?, DeliveryOrder::None, packet, now, out)
    }

    /// The path of a packet of the TCP lane, if there is a lane and the packet belongs to this session.
    pub(super) fn lane_path(&self, flow: &FlowKey, by_ue: bool) -> Option<PathId> {
        tcp_lane::path_of(flow, self.addresses.v4, by_ue).filter(|_| self.profile.tcp_lane)
    }

    /// User data was sent or received. After a pause the peer may have been at rest, and does not wait for
    /// earlier packets.
    #[inline]
    pub(super) fn note_data(&mut self, now: Instant) {
        if now.saturating_since(self.last_data) >= QUIET {
            self.settle_streams();
        }
        self.last_data = now;
    }

    /// Nothing is in flight any more: packets for which the streams would have waited have arrived or are
    /// lost.
    #[cold]
    pub(super) fn settle_streams(&mut self) {
        if let Some(active) = &mut self.active {
            active.per_rule.iter_mut().for_each(|rule| rule.stream.settle());
        }
    }

    fn rule_state(&mut self, rule: RuleIndex) -> &mut RuleState {
        RuleState::of(&mut Active::of(&mut self.active, &self.profile).per_rule, rule)
    }

    /// The rule of a flow by all information available at this end. The UE informs the UPF of what only the
    /// UE can determine.
    fn classify_flow(
        &mut self,
        key: &FlowKey,
        owner: Option<&FlowOwner>,
        now: Instant,
        shared: &Shared<'_>,
    ) -> RuleIndex {
        let plain = self.rules.classify(key);
        let Some(dns) = shared.dns else {
            // At the UPF, the application is known: is there an exception for this user?
            return shared.exceptions.map_or(plain, |exceptions| exceptions.rule(plain));
        };
        let verdict = self.rules.classify_at_ue(key, owner, dns, now);
        let active = Active::of(&mut self.active, &self.profile);
        if verdict.owner_wanted {
            active.event(SessionEvent::OwnerWanted(*key));
        }
        if verdict.rule != plain {
            let rule = self.rules.get(verdict.rule).name.clone();
            active.event(SessionEvent::Hint { key: *key, rule });
        }
        verdict.rule
    }

    /// The owner of a flow has been determined (UE): its next packet follows the rule that matches.
    pub fn assign_owner(&mut self, key: &FlowKey, owner: &FlowOwner, now: Instant, shared: &Shared<'_>) {
        let rule = self.classify_flow(key, Some(owner), now, shared);
        self.recall_fast(key);
        let generation = self.generation;
        self.flows.entry(key, now).assign(rule, generation);
    }

    /// The UE stated the rule of a flow (UPF). Unknown rules are ignored.
    pub fn assign_hint(&mut self, key: &FlowKey, rule: &str, now: Instant) {
        if let Some(rule) = self.rules.index_of(rule) {
            self.recall_fast(key);
            let generation = self.generation;
            self.flows.entry(key, now).pin(rule, generation);
        }
    }

    /// Moves a switching rule to another path, if the far end can restore the order across the switch.
    fn switch(&mut self, rule: RuleIndex, to: PathId, now: Instant, out: &mut impl DatagramSink) -> PathId {
        let from = self.rule_state(rule).path;
        if let Some(ex) = from {
            let alive = self.active().states.get(ex).is_up();
            let rtt = self.paths.get(ex).map(|p| p.monitor.rtt()).unwrap_or_default();
            let hold = hold_timeout(micros(rtt.smoothed), micros(rtt.variance));
            let available = self.peer_reorder_available();
            let state = self.rule_state(rule);
            match state.stream.switch(alive, hold, available) {
                Switch::Stay => {
                    state.denied += 1;
                    return ex;
                }
                // The marker is the last packet of the EX path; if it is lost, the hold timer covers it.
                Switch::Ordered(marker) => {
                    let _ = self.emit_data(ex, DeliveryOrder::Mark(marker.word), &[], now, out);
                }
                Switch::Unmarked => {}
            }
        }
        self.note_move(rule, to, now);
        to
    }

    fn note_move(&mut self, rule: RuleIndex, to: PathId, now: Instant) {
        let state = self.rule_state(rule);
        if state.path == Some(to) {
            return;
        }
        let from = state.path.replace(to);
        state.switches += u64::from(from.is_some());
        let why = from.and_then(|from| self.why_left(rule, from, now));
        let rule = self.rules.get(rule).name.clone();
        self.active().event(SessionEvent::Moved { rule, from, to, why });
    }

    fn peer_reorder_available(&self) -> u16 {
        let up = self.paths.iter().filter(|p| p.monitor.is_up());
        up.map(|p| p.monitor.peer_reorder_available()).max().unwrap_or(0)
    }

    fn emit_copies(
        &mut self,
        paths: PathSet,
        order: DeliveryOrder,
        packet: &[u8],
        now: Instant,
        out: &mut impl DatagramSink,
    ) -> Result<(), DropReason> {
        let mut result = Err(DropReason::NoPath);
        for path in paths.iter() {
            let sent = self.emit_data(path, order, packet, now, out);
            // One successfully sent copy is sufficient.
            if result.is_err() {
                result = sent;
            }
        }
        result
    }

    /// Writes one Data message into the sink: header, payload, seal.
    pub(super) fn emit_data(
        &mut self,
        path: PathId,
        order: DeliveryOrder,
        payload: &[u8],
        now: Instant,
        out: &mut impl DatagramSink,
    ) -> Result<(), DropReason> {
        if self.profile.is_refused(path) {
            return Err(DropReason::AccessRefused);
        }
        let state = self.paths.get_mut(path).ok_or(DropReason::UnknownPath)?;
        let to = state.endpoint().ok_or(DropReason::NoPath)?;
        let header = InnerHeader::data(payload, order).ok_or(DropReason::NotIp)?;
        // Markers are always sealed, because a forged one would end the wait for order. So are repairs, which
        // may contain packets that were sealed.
        let sealed = matches!(order, DeliveryOrder::Mark(_) | DeliveryOrder::Repair(_));
        let active = Active::of(&mut self.active, &self.profile);
        let max = active.usable(path, self.profile.max_payload, now);
        let clear = self.profile.security(path) == Security::Plain && state.is_proven();
        let size = if clear && !sealed {
            let size = PLAIN_OVERHEAD + payload.len();
            if size > max {
                return self.emit_pieces(path, header, payload, max, now, out);
            }
            put(out, state.access(), to, size, |slot| {
                header.emit(slot).map_err(|_| DropReason::NoRoom)?;
                slot[InnerHeader::LEN..].copy_from_slice(payload);
                Ok(())
            })?;
            size
        } else {
            if !self.keys.can_seal(now) {
                return Err(DropReason::NoKeys);
            }
            let size = SECURE_OVERHEAD + payload.len();
            if size > max {
                return self.emit_pieces(path, header, payload, max, now, out);
            }
            let keys = &mut self.keys;
            put(out, state.access(), to, size, |slot| {
                let body = &mut slot[SecureHeader::LEN..size - TAG_LEN];
                header.emit(body).map_err(|_| DropReason::NoRoom)?;
                body[InnerHeader::LEN..].copy_from_slice(payload);
                keys.seal(path, slot, now)
            })?;
            size
        };
        state.monitor.on_data_sent(size, now);
        Ok(())
    }

    /// Writes one control message into the sink; always sealed. `to`: an address and access other than the
    /// path's.
    pub(super) fn emit_control(
        &mut self,
        path: PathId,
        to: Option<(SocketAddr, PathId)>,
        message: &Control<'_>,
        now: Instant,
        out: &mut impl DatagramSink,
    ) -> Result<(), DropReason> {
        let state = self.paths.get(path).ok_or(DropReason::UnknownPath)?;
        let to = to.or_else(|| Some((state.endpoint()?, state.access())));
        let (to, access) = to.ok_or(DropReason::NoPath)?;
        if !self.keys.can_seal(now) {
            return Err(DropReason::NoKeys);
        }
        let size = SecureHeader::LEN + message.encoded_len() + TAG_LEN;
        if let Control::Config(_) = message
            && let Some(most) = self.active.as_ref().and_then(|active| active.mtu(path)).map(PathMtu::usable)
            && size > usize::from(most)
        {
            return self.emit_config_pieces(path, message, most.into(), now, out);
        }
        let keys = &mut self.keys;
        put(out, access, to, size, |slot| {
            message.emit(&mut slot[SecureHeader::LEN..size - TAG_LEN]).map_err(|_| DropReason::Malformed)?;
            keys.seal(path, slot, now)
        })
    }
}

/// A packet sent before this time has arrived or is lost, whatever path it took.
fn longest_way(paths: &PathStates) -> Duration {
    let rtt_us = paths.up().iter().map(|path| paths.get(path).rtt_us).max().unwrap_or(0);
    Duration::from_micros(2 * u64::from(rtt_us)) + Duration::from_millis(100)
}

/// Distinguishes remote hosts. A collision only puts flows to two hosts into one group.
fn remote_hash(address: IpAddr) -> u64 {
    let bits = match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    };
    (bits ^ (bits >> 64)) as u64
}

/// After this time without a packet, nothing of a stream is in flight any more.
const QUIET: Duration = Duration::from_secs(2);

/// The stream a rule's packets belong to; below the streams of paths, since a rule set has at most
/// [`MAX_RULES`](crate::classify::MAX_RULES).
pub(super) fn stream_id(rule: RuleIndex) -> u8 {
    u8::try_from(rule).unwrap_or(u8::MAX)
}
