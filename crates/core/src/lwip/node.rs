//! The node in batch form: packets in place, one at a time, from whoever reads them off a device.

use super::Leg;
use super::adaptive::Gaps;
use super::config::{Config, ConfigError, DidaConfig, Hold, OtherTraffic, Steering, UeConfig, WifiLeg};
use super::dida::Verdict;
use super::element::Outbox;
use super::events::{Event, ReleaseReason};
use super::flow::{Flow, FlowView, Gap};
use super::flows::Flows;
use super::holding_time::GUARD_S;
use super::pool::{MAX_HELD_BYTES, Pool, Queue};
use super::sack::{Keep, with_blocks};
use super::stats::{PassReason, Stats};
use super::steer::{of_flow, share};
use super::timers::Timers;
use super::ue::family;
use crate::element::Reason;
use crate::time::{Duration, Instant};
use anabranch_wire::ip::{FlowKey, IpPacket, protocol, rewrite_dst};
use anabranch_wire::tcp::{TcpFlags, TcpView};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

/// Events kept until they are taken; then the oldest go.
const MAX_EVENTS: usize = 512;
/// Flows forgotten at a time.
const EXPIRE_AT_A_TIME: usize = 1024;

/// Where a node puts what leaves it (batch form).
pub trait NodeSink {
    /// A packet for the backhaul.
    fn backhaul(&mut self, packet: &[u8]);
    /// A packet of the node's own for a leg.
    fn leg(&mut self, leg: Leg, packet: &[u8]);
}

pub(super) struct Ue {
    pub config: UeConfig,
    pub wifi: [Option<IpAddr>; 2],
    pub gaps: Gaps,
}

/// A node.
pub struct Node {
    pub(super) config: Config,
    lte_share: u32,
    ues: Vec<Ue>,
    by_address: BTreeMap<IpAddr, u32>,
    flows: Flows,
    pool: Pool,
    timers: Timers,
    /// Held ACKs of flows that are no more, to be sent with the next call that can.
    orphans: Queue,
    stats: Stats,
    events: VecDeque<Event>,
    pub(super) packets: Outbox,
}

/// A TCP packet, read as far as a node needs.
struct Seen<'a> {
    ip: IpPacket,
    tcp: TcpView<'a>,
    /// In the direction of the packet.
    key: FlowKey,
}

impl Node {
    /// A node. `seed` keys the table of flows: strangers must not know it in a real run.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn new(config: Config, seed: u64, _now: Instant) -> Result<Self, ConfigError> {
        config.check()?;
        let mut node = Self {
            lte_share: 0,
            ues: Vec::new(),
            by_address: BTreeMap::new(),
            flows: Flows::new(seed, config.flows),
            pool: Pool::new(),
            timers: Timers::default(),
            orphans: Queue::default(),
            stats: Stats::default(),
            events: VecDeque::new(),
            packets: Outbox::default(),
            config,
        };
        node.configured();
        Ok(node)
    }

    /// Takes a packet from the backhaul, and says by which leg it leaves. For the Wi-Fi leg its destination has
    /// been rewritten, if that is how the leg works.
    pub fn downlink(&mut self, packet: &mut [u8], now: Instant) -> Leg {
        let leg = match see(packet) {
            Ok(seen) => {
                let dst = seen.key.dst;
                let leg = self.steer_tcp(&seen, now);
                self.by_wifi(leg, dst, packet)
            }
            Err(reason) => {
                self.stats.passed(reason);
                self.steer_other(reason, packet)
            }
        };
        self.stats.left_by(leg, packet.len());
        leg
    }

    /// Takes a packet of a UE, from either leg. What goes on to the backhaul, at once or later, goes to `out`, in
    /// the order in which it came.
    pub fn uplink(&mut self, packet: &[u8], now: Instant, out: &mut impl NodeSink) {
        self.send_orphans(out);
        self.stats.uplink_packets += 1;
        let passed = match see(packet) {
            Ok(seen) => self.uplink_tcp(&seen, packet, now, out),
            Err(reason) => {
                out.backhaul(packet);
                Some(reason)
            }
        };
        if let Some(reason) = passed {
            self.stats.passed(reason);
        }
    }

    /// Does what is due.
    pub fn poll(&mut self, now: Instant, out: &mut impl NodeSink) {
        self.send_orphans(out);
        while let Some((at, number)) = self.timers.first() {
            if at > now {
                break;
            }
            self.end_hold(number, ReleaseReason::Timer, now, out);
        }
        let idle = self.idle();
        for _ in 0..EXPIRE_AT_A_TIME {
            let silent = |(_, flow): &(u32, &Flow)| now.saturating_since(flow.seen) >= idle;
            let Some((number, _)) = self.flows.oldest().find(silent) else { break };
            self.end_hold(number, ReleaseReason::Evicted, now, out);
            self.flows.remove(number);
        }
    }

    /// When [`Node::poll`] has something to do next, and why.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        let orphans = (!self.orphans.is_empty()).then_some((Instant::ZERO, "ACKs of a flow that is no more"));
        let held = self.timers.first().map(|(at, _)| (at, "held ACKs"));
        let idle = self.flows.oldest().map(|(_, flow)| flow.seen).min();
        let idle = idle.map(|seen| (seen + self.idle(), "silent flows"));
        [orphans, held, idle].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// The next event, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Counters.
    #[must_use]
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The configuration in force.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Flows, in no particular order, but always the same.
    pub fn flows(&self) -> impl Iterator<Item = FlowView> {
        let min_rto_s = f64::from(self.config.dida.unwrap_or_default().min_rto_ms) / 1e3;
        self.flows.iter().map(move |(_, flow)| flow.view(min_rto_s))
    }

    /// Number of flows remembered.
    #[must_use]
    pub const fn flow_count(&self) -> u32 {
        self.flows.len()
    }

    /// ACKs held now.
    #[must_use]
    pub const fn held_acks(&self) -> u32 {
        self.pool.len()
    }

    /// Bytes of memory for flows, held ACKs and timers.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.flows.bytes() + self.pool.bytes() + self.timers.bytes()
    }

    /// Other shares from the next packet on.
    ///
    /// # Errors
    /// What is wrong; then nothing has changed.
    pub fn set_steering(&mut self, steering: Steering) -> Result<(), ConfigError> {
        steering.check()?;
        self.config.steering = steering;
        self.configured();
        Ok(())
    }

    /// Switches DIDA on, off, or changes it; what is held is sent.
    ///
    /// # Errors
    /// What is wrong; then nothing has changed.
    pub fn set_dida(&mut self, dida: Option<DidaConfig>, now: Instant) -> Result<(), ConfigError> {
        dida.as_ref().map_or(Ok(()), DidaConfig::check)?;
        self.config.dida = dida;
        self.configured();
        for number in 0..self.flows.end() {
            self.orphan(number, ReleaseReason::Reconfigured, now);
        }
        Ok(())
    }

    /// The leg of UDP from the next packet on.
    pub const fn set_other(&mut self, other: OtherTraffic) {
        self.config.other = other;
    }

    /// Other UEs. Flows of those that stay are kept.
    ///
    /// # Errors
    /// What is wrong; then nothing has changed.
    pub fn set_ues(&mut self, ues: Vec<UeConfig>, now: Instant) -> Result<(), ConfigError> {
        let old = core::mem::replace(&mut self.config.ues, ues);
        if let Err(error) = self.config.check() {
            self.config.ues = old;
            return Err(error);
        }
        self.configured();
        for number in 0..self.flows.end() {
            let Some(flow) = self.flows.get_mut(number) else { continue };
            if let Some(ue) = self.by_address.get(&flow.key.dst) {
                flow.ue = *ue;
            } else {
                self.orphan(number, ReleaseReason::Reconfigured, now);
                self.flows.remove(number);
            }
        }
        Ok(())
    }

    /// Derives what the data path needs.
    fn configured(&mut self) {
        let Steering::FixedRatio { lte_percent } = self.config.steering;
        self.lte_share = share(lte_percent);
        let mut old = core::mem::take(&mut self.ues);
        self.by_address.clear();
        for (number, ue) in (0..).zip(&self.config.ues) {
            for address in &ue.addresses {
                self.by_address.insert(*address, number);
            }
            let mut wifi = [None; 2];
            for address in &ue.wifi {
                wifi[family(*address)] = Some(*address);
            }
            let known = old.iter_mut().find(|known| known.config.name == ue.name);
            let gaps = known.map(|known| core::mem::take(&mut known.gaps)).unwrap_or_default();
            self.ues.push(Ue { config: ue.clone(), wifi, gaps });
        }
    }

    /// The UEs.
    pub fn ues(&self) -> impl Iterator<Item = &UeConfig> {
        self.ues.iter().map(|ue| &ue.config)
    }

    fn idle(&self) -> Duration {
        Duration::from_secs(self.config.idle_s.into())
    }

    fn steer_tcp(&mut self, seen: &Seen<'_>, now: Instant) -> Leg {
        let hash = self.flows.hash(&seen.key);
        let number = match self.flows.find(&seen.key, hash) {
            Some(number) => number,
            None => match self.by_address.get(&seen.key.dst) {
                Some(&ue) => self.new_flow(Flow::new(seen.key, hash, ue, now), now),
                None => {
                    self.stats.passed(PassReason::UnknownUe);
                    return Leg::Lte;
                }
            },
        };
        let flags = seen.tcp.flags();
        if flags.contains(TcpFlags::SYN) || flags.contains(TcpFlags::RST) {
            self.orphan(number, ReleaseReason::Handshake, now);
        }
        let lte_share = self.lte_share;
        let Some(flow) = self.flows.get_mut(number) else { return Leg::Lte };
        let is_again = flow.track.is_again(&seen.tcp);
        if let Some(gap) = &mut flow.gap
            && is_again
            && gap.again_at.is_none()
            && flow.track.fills(&seen.tcp)
        {
            gap.again_at = Some(now);
        }
        flow.track.on_segment(&seen.tcp);
        flow.estimate.on_segment(&seen.tcp, is_again, now);
        if let Some(at) = flow.syn_at.filter(|_| flags.contains(TcpFlags::SYN)) {
            flow.syn_at = None;
            flow.estimate.on_handshake(now.saturating_since(at));
        }
        let is_anchored =
            [TcpFlags::SYN, TcpFlags::FIN, TcpFlags::RST].into_iter().any(|f| flags.contains(f));
        // ACKs of an upload, too: they are small, and two ways would only change their order.
        let leg = if is_anchored || seen.tcp.payload_len() == 0 {
            Leg::Lte
        } else {
            let leg = flow.carry.next(lte_share);
            flow.sent[leg as usize] += 1;
            self.stats.steered[leg as usize] += 1;
            leg
        };
        let proven = flow.track.is_proven();
        self.flows.touch(number, proven, now);
        leg
    }

    fn steer_other(&self, reason: PassReason, packet: &mut [u8]) -> Leg {
        if reason != PassReason::NotTcp || self.config.other == OtherTraffic::Lte {
            return Leg::Lte;
        }
        let Ok(key) = FlowKey::parse(packet) else { return Leg::Lte };
        if key.protocol != protocol::UDP || !self.by_address.contains_key(&key.dst) {
            return Leg::Lte;
        }
        let leg = match self.config.other {
            OtherTraffic::Lte => Leg::Lte,
            OtherTraffic::Wifi => Leg::Wifi,
            OtherTraffic::ByFlow => of_flow(self.flows.hash(&key), self.lte_share),
        };
        if leg == Leg::Wifi && !self.to_wifi(key.dst, packet) { Leg::Lte } else { leg }
    }

    /// Makes a packet ready for its leg; LTE if it cannot be.
    fn by_wifi(&mut self, leg: Leg, dst: IpAddr, packet: &mut [u8]) -> Leg {
        if leg == Leg::Wifi && !self.to_wifi(dst, packet) {
            self.stats.passed(PassReason::NoWifiAddress);
            return Leg::Lte;
        }
        leg
    }

    fn to_wifi(&self, dst: IpAddr, packet: &mut [u8]) -> bool {
        match self.config.wifi_leg {
            WifiLeg::Tunnel => true,
            WifiLeg::Translate => {
                let ue = self.by_address.get(&dst).and_then(|ue| self.ues.get(*ue as usize));
                let wifi = ue.and_then(|ue| ue.wifi[family(dst)]);
                wifi.is_some_and(|wifi| rewrite_dst(packet, wifi).is_ok())
            }
        }
    }

    fn uplink_tcp(
        &mut self,
        seen: &Seen<'_>,
        packet: &[u8],
        now: Instant,
        out: &mut impl NodeSink,
    ) -> Option<PassReason> {
        let key = seen.key.reversed();
        let hash = self.flows.hash(&key);
        let is_syn = seen.tcp.flags().contains(TcpFlags::SYN);
        let number = match (self.flows.find(&key, hash), self.by_address.get(&key.dst)) {
            (Some(number), _) => number,
            // Its window scale is in the SYN only.
            (None, Some(&ue)) if is_syn => {
                let number = self.new_flow(Flow::new(key, hash, ue, now), now);
                self.send_orphans(out);
                number
            }
            (None, ue) => {
                out.backhaul(packet);
                return Some(if ue.is_some() { PassReason::UnknownFlow } else { PassReason::UnknownUe });
            }
        };
        let dida = self.config.dida.filter(|dida| dida.hold != Hold::Fixed { ms: 0.0 });
        let let_through = dida.map(|dida| dida.let_through);
        let hides = dida.is_some_and(|dida| dida.hide_sack);
        let flow = self.flows.get_mut(number)?;
        let (verdict, reason) = flow.track.judge(&seen.ip, &seen.tcp, let_through, hides);
        if matches!(verdict, Verdict::PassDuplicate | Verdict::Hold) {
            flow.estimate.on_gap();
            if let_through.is_some_and(|let_through| flow.track.dups > let_through) && flow.gap.is_none() {
                flow.gap = Some(Gap { since: now, again_at: None });
            }
        }
        match verdict {
            Verdict::Pass => out.backhaul(packet),
            Verdict::PassDuplicate => self.pass_duplicate(number, packet, now, out),
            Verdict::Advance => {
                self.end_hold(number, ReleaseReason::Filled, now, out);
                self.stats.advances += 1;
                self.end_gap(number, now);
                let mut goes_on_with = None;
                if let Some(flow) = self.flows.get_mut(number) {
                    flow.estimate.on_advance(&seen.tcp, now);
                    flow.track.advance(&seen.tcp, now);
                    goes_on_with = flow.track.keeps_gap(&seen.tcp).filter(|_| hides);
                }
                match goes_on_with {
                    Some(keep) => self.hold_gap(number, &seen.ip, packet, keep, now, out),
                    None => out.backhaul(packet),
                }
            }
            Verdict::Release(why) => {
                self.end_hold(number, why, now, out);
                if is_syn && let Some(flow) = self.flows.get_mut(number) {
                    flow.track.on_uplink_syn(&seen.tcp);
                    // One that is sent again cannot be told from the first by its answer.
                    flow.syn_at = flow.syn_at.is_none().then_some(now);
                    flow.gap = None;
                }
                out.backhaul(packet);
            }
            Verdict::Hold => self.hold(number, packet, now, out),
            Verdict::Divide => {
                let (mut goes_on, mut stays) = ([0; MAX_HELD_BYTES], [0; MAX_HELD_BYTES]);
                let first = with_blocks(&seen.ip, packet, Keep::First, &mut goes_on);
                let others = with_blocks(&seen.ip, packet, Keep::Others, &mut stays);
                if let (Some(first), Some(others)) = (first, others) {
                    out.backhaul(first);
                    self.hold(number, others, now, out);
                } else {
                    // It says nothing else.
                    out.backhaul(packet);
                }
            }
        }
        let proven = self.flows.get(number).is_some_and(|flow| flow.track.is_proven());
        self.flows.touch(number, proven, now);
        reason
    }

    fn hold(&mut self, number: u32, packet: &[u8], now: Instant, out: &mut impl NodeSink) {
        let (Some(dida), Some(flow)) = (self.config.dida, self.flows.get(number)) else {
            return out.backhaul(packet);
        };
        let until = if flow.track.held.is_empty() { self.hold_until(&dida, flow, now) } else { Instant::MAX };
        if until <= now {
            return self.pass_duplicate(number, packet, now, out);
        }
        let Some(flow) = self.flows.get_mut(number) else { return };
        let track = &mut flow.track;
        if track.held.len() >= dida.held_per_flow || !self.pool.push(&mut track.held, packet, dida.held) {
            track.gave_up();
            self.end_hold(number, ReleaseReason::Full, now, out);
            return self.pass_duplicate(number, packet, now, out);
        }
        flow.held_acks += 1;
        self.stats.dup_acks += 1;
        self.stats.held += 1;
        if until < Instant::MAX {
            track.held_since = now;
            self.timers.set(number, until);
        }
    }

    /// Sends an ACK on without the SACK blocks that tell of a gap, and holds it with them.
    fn hold_gap(
        &mut self,
        number: u32,
        ip: &IpPacket,
        packet: &[u8],
        keep: Keep,
        now: Instant,
        out: &mut impl NodeSink,
    ) {
        let (Some(dida), Some(flow)) = (self.config.dida, self.flows.get(number)) else {
            return out.backhaul(packet);
        };
        let until = self.hold_until(&dida, flow, now);
        let (mut goes_on, mut stays) = ([0; MAX_HELD_BYTES], [0; MAX_HELD_BYTES]);
        let stays = match keep {
            Keep::First => with_blocks(ip, packet, Keep::Others, &mut stays),
            Keep::None | Keep::Others => Some(packet),
        };
        if until > now
            && let (Some(hidden), Some(stays)) = (with_blocks(ip, packet, keep, &mut goes_on), stays)
            && let Some(flow) = self.flows.get_mut(number)
            && self.pool.push(&mut flow.track.held, stays, dida.held)
        {
            self.stats.hidden_gaps += 1;
            flow.gap = Some(Gap { since: now, again_at: None });
            flow.track.held_since = now;
            self.timers.set(number, until);
            return out.backhaul(hidden);
        }
        out.backhaul(packet);
    }

    /// When a hold that begins now ends, at the latest.
    fn hold_until(&self, dida: &DidaConfig, flow: &Flow, now: Instant) -> Instant {
        let trips = flow.estimate.round_trips();
        let seconds = match dida.hold {
            Hold::Fixed { ms } => ms / 1e3,
            Hold::Optimal => flow.model(now).map_or(0.0, |model| model.optimum_s()),
            Hold::Adaptive => match (trips, self.ues.get(flow.ue as usize)) {
                (Some(trips), Some(ue)) => ue.gaps.best_s(flow.window(), trips.smoothed_s),
                _ => 0.0,
            },
        };
        let until = now + span(seconds);
        if !dida.respect_rto {
            return until;
        }
        let floor_s = f64::from(dida.min_rto_ms) / 1e3;
        let longest_s = trips.map_or(floor_s - GUARD_S, |trips| trips.mht_s(floor_s));
        until.min(flow.track.advanced_at + span(longest_s))
    }

    fn pass_duplicate(&mut self, number: u32, packet: &[u8], now: Instant, out: &mut impl NodeSink) {
        self.stats.dup_acks += 1;
        self.stats.dup_acks_passed += 1;
        if let Some(flow) = self.flows.get_mut(number) {
            count_sent(flow, 1, now, &mut self.stats);
        }
        out.backhaul(packet);
    }

    /// The missing ACK is there: was its packet late, or lost?
    fn end_gap(&mut self, number: u32, now: Instant) {
        let Some(flow) = self.flows.get_mut(number) else { return };
        let Some(gap) = flow.gap.take() else { return };
        let shortest = Duration::from_micros(flow.estimate.down_min_us.into());
        let late = gap.again_at.is_none_or(|at| now.saturating_since(at) < shortest);
        let Some(ue) = self.ues.get_mut(flow.ue as usize) else { return };
        if late {
            self.stats.late_gaps += 1;
            ue.gaps.was_late(now.saturating_since(gap.since));
        } else {
            self.stats.lost_gaps += 1;
            ue.gaps.was_lost();
        }
    }

    /// Takes what is held of a flow: sent in order, or dropped when the missing ACK is there.
    fn end_hold(&mut self, number: u32, reason: ReleaseReason, now: Instant, out: &mut impl NodeSink) {
        let Some(mut held) = self.take_held(number, reason, now) else { return };
        self.pool.drain(&mut held, |packet| {
            if reason != ReleaseReason::Filled {
                out.backhaul(packet);
            }
        });
    }

    /// As [`Self::end_hold`], where there is nowhere to send to.
    fn orphan(&mut self, number: u32, reason: ReleaseReason, now: Instant) {
        if let Some(held) = self.take_held(number, reason, now) {
            self.pool.append(&mut self.orphans, held);
        }
    }

    fn take_held(&mut self, number: u32, reason: ReleaseReason, now: Instant) -> Option<Queue> {
        let flow = self.flows.get_mut(number)?;
        if flow.track.held.is_empty() {
            return None;
        }
        self.timers.clear(number);
        let held = core::mem::take(&mut flow.track.held);
        let time = now.saturating_since(flow.track.held_since);
        if reason != ReleaseReason::Filled {
            flow.track.gave_up();
            count_sent(flow, held.len(), now, &mut self.stats);
        }
        self.stats.hold_ended(reason, held.len(), time);
        let event = Event::Released { flow: flow.key, reason, acks: held.len(), held: time };
        self.event(event);
        Some(held)
    }

    pub(super) fn event(&mut self, event: Event) {
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn send_orphans(&mut self, out: &mut impl NodeSink) {
        if !self.orphans.is_empty() {
            self.pool.drain(&mut self.orphans, |packet| out.backhaul(packet));
        }
    }

    fn new_flow(&mut self, flow: Flow, now: Instant) -> u32 {
        while let Some(victim) = self.flows.victim() {
            self.orphan(victim, ReleaseReason::Evicted, now);
            self.flows.remove(victim);
            self.stats.evicted_flows += 1;
        }
        self.stats.new_flows += 1;
        self.flows.insert(flow)
    }
}

/// Counts duplicates that were sent since the last advance. The third is the one that matters: the sender reduces its
/// window, and what it has grown to is another epoch's.
fn count_sent(flow: &mut Flow, more: u32, now: Instant, stats: &mut Stats) {
    let before = flow.track.dups_sent;
    let sent = u32::from(before).saturating_add(more).min(u16::MAX.into()) as u16;
    flow.track.dups_sent = sent;
    if before < 3 && sent >= 3 {
        stats.triple_dup_acks += 1;
        flow.estimate.epoch = now;
    }
}

/// A duration of so many seconds; none, if that is no number.
fn span(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// Reads a TCP packet; the reason if it is none.
#[inline]
fn see(packet: &[u8]) -> Result<Seen<'_>, PassReason> {
    let ip = IpPacket::parse(packet).map_err(|_| PassReason::Malformed)?;
    if ip.fragment {
        return Err(PassReason::Fragment);
    }
    if ip.src.is_ipv6() && ip.payload.start != 40 {
        return Err(PassReason::ExtensionHeaders);
    }
    if ip.protocol != protocol::TCP {
        return Err(PassReason::NotTcp);
    }
    let tcp = packet.get(ip.payload.clone()).ok_or(PassReason::Malformed)?;
    let tcp = TcpView::parse(tcp).map_err(|_| PassReason::BadTcp)?;
    let (src_port, dst_port) = tcp.ports();
    let key = FlowKey { src: ip.src, dst: ip.dst, src_port, dst_port, protocol: protocol::TCP };
    Ok(Seen { ip, tcp, key })
}
