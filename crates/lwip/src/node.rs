//! The node in batch form: packets are processed in place, one at a time, as they are read from a device.

use super::Leg;
use super::adaptive::Gaps;
use super::config::{Config, ConfigError, DidaConfig, OtherTraffic, Steering, UeConfig, WifiLeg};
use super::element::Outbox;
use super::events::{Event, ReleaseReason};
use super::flow::{Flow, FlowView};
use super::flows::Flows;
use super::law::{FlowLaw, Law, Segment};
use super::link::Link;
use super::pool::{Pool, Queue};
use super::stats::{PassReason, Stats};
use super::steer::{Switch, lte_share, of_flow};
use super::timers::Timers;
use super::ue::family;
use anabranch_element::Reason;
use anabranch_element::ioam::{BothWays, IoamNode, IoamStats, NodeReport};
use anabranch_element::time::{Duration, Instant};
use anabranch_steer::Mode;
use anabranch_steer::measure::TrainBudget;
use anabranch_wire::ip::{FlowKey, IpPacket, dst, protocol, rewrite_dst, src_dst};
use anabranch_wire::tcp::{TcpFlags, TcpView};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

/// Most idle flows removed per call of [`Node::poll`].
const EXPIRE_AT_A_TIME: usize = 1024;

/// Receives the packets that a node sends (batch form).
pub trait NodeSink {
    /// A packet for the backhaul.
    fn backhaul(&mut self, packet: &[u8]);
    /// A packet that the node itself originates, for a leg.
    fn leg(&mut self, leg: Leg, packet: &[u8]);
}

pub(super) struct Ue {
    pub config: UeConfig,
    pub wifi: [Option<IpAddr>; 2],
    pub gaps: Gaps,
    /// The legs, in the order of [`Leg::ALL`].
    pub links: [Link; 2],
    pub switch: Switch,
    /// Measurements of the legs; present while the node steers by the autonomous law.
    pub law: Option<Box<Law>>,
    /// Share of LTE among its packets, in parts of [`ONE`](super::steer::ONE).
    pub lte_share: u32,
    /// Whether it received packets since the last probe.
    pub is_busy: bool,
    pub probed_at: Instant,
}

impl Ue {
    fn new() -> Self {
        Self {
            config: UeConfig::default(),
            wifi: [None; 2],
            gaps: Gaps::default(),
            links: [Link::new(), Link::new()],
            switch: Switch::new(),
            law: None,
            lte_share: 0,
            is_busy: false,
            probed_at: Instant::ZERO,
        }
    }

    /// Updates the share of LTE from the current state of the legs.
    pub(super) fn divide(&mut self, steering: &Steering, now: Instant) {
        self.lte_share = lte_share(steering, &self.links, &mut self.switch, now);
    }

    /// Estimate of the largest difference between the arrivals of packets that leave at the same time by different
    /// legs; `None` without the autonomous law.
    pub(super) fn spread(&self, now: Instant) -> Option<Duration> {
        self.law.as_ref().map(|law| law.spread(&self.links, now))
    }

    /// Creates or removes the measurements that a steering requires.
    fn measures(&mut self, steering: &Steering) {
        match (*steering == Steering::Autonomous, &self.law) {
            (true, None) => self.law = Some(Box::default()),
            (false, Some(_)) => self.law = None,
            _ => {}
        }
    }
}

/// An LWIP node.
pub struct Node {
    pub(super) config: Config,
    pub(super) key: u64,
    pub(super) ues: Vec<Ue>,
    pub(super) by_address: BTreeMap<IpAddr, u32>,
    pub(super) flows: Flows,
    pub(super) pool: Pool,
    pub(super) timers: Timers,
    pub(super) probe_timers: Timers,
    /// Held ACKs of removed flows, to be sent with the next call that can send.
    pub(super) orphans: Queue,
    pub(super) stats: Stats,
    pub(super) events: VecDeque<Event>,
    pub(super) packets: Outbox,
    mode: Mode,
    /// Budget of trains of all UEs.
    pub(super) trains: TrainBudget,
    /// The IOAM node as which it writes into traces.
    ioam: Option<Box<BothWays>>,
}

/// A TCP packet, parsed as far as a node needs.
pub(super) struct ParsedPacket<'a> {
    pub ip: IpPacket,
    pub tcp: TcpView<'a>,
    /// The 5-tuple in the direction of the packet.
    pub key: FlowKey,
}

impl Node {
    /// A node. `seed` keys the flow table; in a real run it must be secret.
    ///
    /// # Errors
    /// The first error in the configuration.
    pub fn new(config: Config, seed: u64, now: Instant) -> Result<Self, ConfigError> {
        config.check()?;
        let mut node = Self {
            key: seed,
            ues: Vec::new(),
            by_address: BTreeMap::new(),
            flows: Flows::new(seed, config.flows),
            pool: Pool::new(),
            timers: Timers::default(),
            probe_timers: Timers::default(),
            orphans: Queue::default(),
            stats: Stats::default(),
            events: VecDeque::new(),
            packets: Outbox::default(),
            mode: Mode::autonomous_in_order(),
            trains: TrainBudget::default(),
            ioam: None,
            config,
        };
        node.configured(now);
        Ok(node)
    }

    /// From now on, fills the traces of packets in both directions as this IOAM node. The queues are behind the
    /// node, in the legs, so it reports its identity, arrival times, rates and flows, but no queue.
    pub fn set_ioam(&mut self, node: IoamNode) {
        self.ioam = Some(Box::new(BothWays::new(node)));
    }

    /// Sets the wall-clock time at time 0 ([`IoamNode::epoch`]), after the clock was changed. No effect without
    /// [`Self::set_ioam`].
    pub fn set_ioam_epoch(&mut self, epoch: Duration) {
        if let Some(ioam) = &mut self.ioam {
            ioam.set_epoch(epoch);
        }
    }

    /// Counters of IOAM traces.
    #[must_use]
    pub fn ioam_stats(&self) -> IoamStats {
        self.ioam.as_ref().map_or_else(IoamStats::default, |ioam| ioam.stats())
    }

    /// Processes a packet from the backhaul and returns the leg by which it is to be sent. With `wifi_leg =
    /// "translate"`, the destination of a packet for Wi-Fi has been rewritten.
    pub fn downlink(&mut self, packet: &mut [u8], now: Instant) -> Leg {
        if let Some(ioam) = &mut self.ioam {
            ioam.down.arrived(packet, now);
            ioam.down.fill(packet, now, now, NodeReport::default);
        }
        let leg = match parse_tcp_packet(packet) {
            Ok(parsed) => {
                let dst = parsed.key.dst;
                let (leg, ue) = self.steer_tcp(&parsed, packet.len(), now);
                let leg = self.by_wifi(leg, dst, packet);
                if let Some(ue) = ue.and_then(|ue| self.ues.get_mut(ue as usize)) {
                    ue.links[leg as usize].sent_bytes += packet.len() as u64;
                    if let Some(law) = &mut ue.law {
                        law.sent(leg, packet.len(), now);
                    }
                }
                leg
            }
            Err(reason) => {
                self.stats.passed(reason);
                let dst = dst(packet).ok();
                let leg = self.steer_other(reason, packet);
                if let Some(law) = self.law_of(dst) {
                    law.on_other_sent(leg, packet.len(), now);
                }
                leg
            }
        };
        self.stats.left_by(leg, packet.len());
        leg
    }

    /// Processes a packet of a UE from either leg. Packets for the backhaul, now or later, are passed to `out` in
    /// the order of their arrival.
    pub fn uplink(&mut self, packet: &mut [u8], now: Instant, out: &mut impl NodeSink) {
        self.send_orphans(out);
        if let Some(ioam) = &mut self.ioam {
            ioam.up.arrived(packet, now);
            ioam.up.fill(packet, now, now, NodeReport::default);
        }
        let packet = &*packet;
        let parsed = parse_tcp_packet(packet);
        if matches!(parsed, Err(PassReason::NotTcp)) && self.take_answer(packet, now) {
            return;
        }
        self.stats.uplink_packets += 1;
        if let Some(law) = self.law_of(src_dst(packet).ok().map(|(src, _)| src)) {
            law.uplink(packet.len());
        }
        let passed = match parsed {
            Ok(parsed) => self.uplink_tcp(&parsed, packet, now, out),
            Err(reason) => {
                out.backhaul(packet);
                Some(reason)
            }
        };
        if let Some(reason) = passed {
            self.stats.passed(reason);
        }
    }

    /// Performs all due work.
    pub fn poll(&mut self, now: Instant, out: &mut impl NodeSink) {
        self.send_orphans(out);
        while let Some((at, number)) = self.timers.first() {
            if at > now {
                break;
            }
            self.end_hold(number, ReleaseReason::Timer, now, out);
        }
        self.send_probes(now, out);
        let idle = self.idle();
        for _ in 0..EXPIRE_AT_A_TIME {
            let silent = |(_, flow): &(u32, &Flow)| now.saturating_since(flow.seen) >= idle;
            let Some((number, _)) = self.flows.oldest().find(silent) else { break };
            self.end_hold(number, ReleaseReason::Evicted, now, out);
            self.flows.remove(number);
        }
    }

    /// The time of the next due work, and its reason.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        let orphans = (!self.orphans.is_empty()).then_some((Instant::ZERO, "ACKs of a flow that is no more"));
        let held = self.timers.first().map(|(at, _)| (at, "held ACKs"));
        let idle = self.flows.oldest().map(|(_, flow)| flow.seen).min();
        let idle = idle.map(|seen| (seen + self.idle(), "silent flows"));
        let probe = self.probe_timers.first().map(|(at, _)| (at, "probes"));
        [orphans, held, probe, idle].into_iter().flatten().min_by_key(|(at, _)| *at)
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

    /// The current configuration.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// All flows, in an unspecified but reproducible order.
    pub fn flows(&self) -> impl Iterator<Item = FlowView> {
        let min_rto_s = f64::from(self.config.dida.unwrap_or_default().min_rto_ms) / 1e3;
        self.flows.iter().map(move |(_, flow)| flow.view(min_rto_s))
    }

    /// Number of flows in the table.
    #[must_use]
    pub const fn flow_count(&self) -> u32 {
        self.flows.len()
    }

    /// Number of ACKs held now.
    #[must_use]
    pub const fn held_acks(&self) -> u32 {
        self.pool.len()
    }

    /// Memory of flows, held ACKs, timers, and the state of the autonomous law, in bytes. With the autonomous law,
    /// it iterates over all flows.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let laws = self.ues.iter().filter(|ue| ue.law.is_some()).count() * size_of::<Law>();
        let of_flows = || self.flows.iter().filter_map(|(_, flow)| flow.law.as_ref()).map(|law| law.bytes());
        let law = if laws > 0 { laws + of_flows().sum::<usize>() } else { 0 };
        self.flows.bytes() + self.pool.bytes() + self.timers.bytes() + law
    }

    /// Changes the steering from the next packet on.
    ///
    /// # Errors
    /// The first error; then nothing has changed.
    pub fn set_steering(&mut self, steering: Steering, now: Instant) -> Result<(), ConfigError> {
        steering.check()?;
        self.config.check_probe(&steering)?;
        self.config.steering = steering;
        for ue in &mut self.ues {
            ue.measures(&steering);
            ue.divide(&steering, now);
        }
        if steering != Steering::Autonomous {
            self.forget_laws();
        }
        Ok(())
    }

    /// Switches DIDA on or off, or changes it. Held ACKs are sent.
    ///
    /// # Errors
    /// The first error; then nothing has changed.
    pub fn set_dida(&mut self, dida: Option<DidaConfig>, now: Instant) -> Result<(), ConfigError> {
        dida.as_ref().map_or(Ok(()), DidaConfig::check)?;
        self.config.dida = dida;
        for number in 0..self.flows.end() {
            self.orphan(number, ReleaseReason::Reconfigured, now);
        }
        Ok(())
    }

    /// Changes the leg of UDP from the next packet on.
    pub const fn set_other(&mut self, other: OtherTraffic) {
        self.config.other = other;
    }

    /// Replaces the UEs. Flows of UEs that remain are kept.
    ///
    /// # Errors
    /// The first error; then nothing has changed.
    pub fn set_ues(&mut self, ues: Vec<UeConfig>, now: Instant) -> Result<(), ConfigError> {
        let old = core::mem::replace(&mut self.config.ues, ues);
        if let Err(error) = self.config.check() {
            self.config.ues = old;
            return Err(error);
        }
        self.configured(now);
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

    /// Derives the state of the data path from the configuration. The state of a UE is kept by its name.
    fn configured(&mut self, now: Instant) {
        let mut old = core::mem::take(&mut self.ues);
        self.by_address.clear();
        self.probe_timers = Timers::default();
        for (number, config) in (0..).zip(&self.config.ues) {
            for address in &config.addresses {
                self.by_address.insert(*address, number);
            }
            let known = old.iter().position(|known| known.config.name == config.name);
            let mut ue = known.map_or_else(Ue::new, |known| old.swap_remove(known));
            ue.wifi = [None; 2];
            for address in &config.wifi {
                ue.wifi[family(*address)] = Some(*address);
            }
            ue.config = config.clone();
            ue.measures(&self.config.steering);
            ue.divide(&self.config.steering, now);
            if self.config.probe.is_some() {
                self.probe_timers.set(number, now);
            }
            self.ues.push(ue);
        }
    }

    /// Removes the state of the autonomous law from all flows, which becomes invalid with another steering.
    fn forget_laws(&mut self) {
        for number in 0..self.flows.end() {
            if let Some(flow) = self.flows.get_mut(number) {
                flow.law = None;
            }
        }
    }

    /// The configured UEs.
    pub fn ues(&self) -> impl Iterator<Item = &UeConfig> {
        self.ues.iter().map(|ue| &ue.config)
    }

    fn idle(&self) -> Duration {
        Duration::from_secs(self.config.idle_s.into())
    }

    fn steer_tcp(&mut self, parsed: &ParsedPacket<'_>, bytes: usize, now: Instant) -> (Leg, Option<u32>) {
        let hash = self.flows.hash(&parsed.key);
        let number = match self.flows.find(&parsed.key, hash) {
            Some(number) => number,
            None => match self.by_address.get(&parsed.key.dst) {
                Some(&ue) => self.new_flow(Flow::new(parsed.key, hash, ue, now), now),
                None => {
                    self.stats.passed(PassReason::UnknownUe);
                    return (Leg::Lte, None);
                }
            },
        };
        let flags = parsed.tcp.flags();
        if flags.contains(TcpFlags::SYN) || flags.contains(TcpFlags::RST) {
            self.orphan(number, ReleaseReason::Handshake, now);
        }
        let Some(flow) = self.flows.get_mut(number) else { return (Leg::Lte, None) };
        let number_of_ue = flow.ue;
        let is_retransmission = flow.track.is_retransmission(&parsed.tcp);
        if let Some(gap) = &mut flow.gap
            && is_retransmission
            && gap.again.is_none()
            && flow.track.fills(&parsed.tcp)
        {
            gap.again = Some((now, parsed.tcp.timestamps().map(|(value, _)| value)));
        }
        flow.track.on_segment(&parsed.tcp);
        flow.estimate.on_segment(&parsed.tcp, is_retransmission, now);
        if let Some(at) = flow.syn_at.filter(|_| flags.contains(TcpFlags::SYN)) {
            flow.syn_at = None;
            flow.estimate.on_handshake(now.saturating_since(at));
        }
        let is_first = flags.contains(TcpFlags::SYN);
        let ends = flags.contains(TcpFlags::FIN) || flags.contains(TcpFlags::RST);
        let has_data = parsed.tcp.payload_len() > 0;
        let leg = match self.ues.get_mut(number_of_ue as usize) {
            // This includes ACKs of an upload: they are small, and splitting them would only reorder them.
            _ if !(is_first || ends || has_data) => Leg::Lte,
            Some(Ue { law: Some(law), links, wifi, .. }) => {
                let segment = Segment {
                    seq: parsed.tcp.seq(),
                    payload: parsed.tcp.payload_len(),
                    bytes,
                    hash: flow.hash,
                    is_retransmission,
                    ends,
                    recovers: flow.track.is_recovering(),
                    has_wifi: self.config.wifi_leg == WifiLeg::Tunnel
                        || wifi[family(parsed.key.dst)].is_some(),
                };
                let remote =
                    || FlowKey { src_port: 0, dst_port: 0, ..parsed.key }.hash64((self.key, self.key));
                if is_first {
                    flow.law = None;
                }
                let of_flow = flow.law.get_or_insert_with(|| Box::new(FlowLaw::new(remote())));
                if is_retransmission && has_data {
                    law.again(links, of_flow, &segment, now);
                }
                let (leg, queue_us) = law.pick(&self.mode, links, of_flow, &segment, now);
                if is_first && !is_retransmission && law.is_further(links, leg) {
                    leg
                } else if is_first || ends {
                    Leg::Lte
                } else {
                    of_flow.takes(&segment, leg, queue_us, now);
                    leg
                }
            }
            _ if is_first || ends => Leg::Lte,
            Some(ue) => flow.carry.next(ue.lte_share),
            None => Leg::Lte,
        };
        if has_data && !is_first && !ends {
            flow.sent[leg as usize] += 1;
            self.stats.steered[leg as usize] += 1;
        }
        let proven = flow.track.is_proven();
        self.flows.touch(number, proven, now);
        self.wake(number_of_ue);
        (leg, Some(number_of_ue))
    }

    /// The law of the UE with this address, if it is in use.
    fn law_of(&mut self, address: Option<IpAddr>) -> Option<&mut Law> {
        if self.config.steering != Steering::Autonomous {
            return None;
        }
        let ue = self.by_address.get(&address?)?;
        self.ues.get_mut(*ue as usize)?.law.as_deref_mut()
    }

    fn steer_other(&self, reason: PassReason, packet: &mut [u8]) -> Leg {
        if reason != PassReason::NotTcp || self.config.other == OtherTraffic::Lte {
            return Leg::Lte;
        }
        let Ok(key) = FlowKey::parse(packet) else { return Leg::Lte };
        let ue = self.by_address.get(&key.dst).and_then(|ue| self.ues.get(*ue as usize));
        let Some(ue) = ue.filter(|_| key.protocol == protocol::UDP) else { return Leg::Lte };
        if !ue.links[Leg::Wifi as usize].up {
            return Leg::Lte;
        }
        let leg = match self.config.other {
            OtherTraffic::Lte => Leg::Lte,
            OtherTraffic::Wifi => Leg::Wifi,
            OtherTraffic::ByFlow => of_flow(self.flows.hash(&key), ue.lte_share),
        };
        if leg == Leg::Wifi && !self.to_wifi(key.dst, packet) { Leg::Lte } else { leg }
    }

    /// Prepares a packet for its leg; LTE if the packet cannot use Wi-Fi.
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

    pub(super) fn new_flow(&mut self, flow: Flow, now: Instant) -> u32 {
        while let Some(victim) = self.flows.victim() {
            self.orphan(victim, ReleaseReason::Evicted, now);
            self.flows.remove(victim);
            self.stats.evicted_flows += 1;
        }
        self.stats.new_flows += 1;
        self.flows.insert(flow)
    }
}

/// Parses a TCP packet; otherwise the reason why it is not steered.
#[inline]
fn parse_tcp_packet(packet: &[u8]) -> Result<ParsedPacket<'_>, PassReason> {
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
    Ok(ParsedPacket { ip, tcp, key })
}
