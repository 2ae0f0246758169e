//! The world: a node, two legs, UEs and servers.

use super::check::{Invariant, Tally, Violation};
use super::draw::RandomStream;
use super::plan::{Dida, Fault, Kind, Mode, Plan};
use super::stream::{SEGMENT, Stream, base, number};
use super::system::{self, Active, FaultSchedule, RunState, World as _, faulted};
use anabranch_element::time::{Duration, Instant};
use anabranch_lwip::{
    Config, DidaConfig, Hold, Leg, Node, NodeSink, ProbeConfig, Steering, SwitchTo, UeConfig, UeSide,
};
use anabranch_wire::ip;
use anabranch_wire::tcp::{TcpFlags, TcpHeader, TcpOptions, emit_packet, parse_packet};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Maximum number of polls at one instant without any event between them.
const POLLS: u32 = 64;
/// Upper bound on the delay of an ACK. The adaptive variant is bounded by the sender's timer, far below.
const HOLDS: Duration = Duration::from_secs(3);
/// Upper bound on the time until all data sent is acknowledged.
const DONE: Duration = Duration::from_secs(30);
/// While the LTE leg works, new data is acknowledged within this time, which allows the server a dozen retransmissions.
const SERVED: Duration = Duration::from_secs(5);
/// Without faults, both legs are known to be up within this time.
const CONVERGES: Duration = Duration::from_secs(30);
/// Maximum queueing delay of a leg; further packets are dropped.
const QUEUE: Duration = Duration::from_millis(400);
/// Bytes of the probe trains that measure the capacity of a leg, and the minimum interval of those sent without a budget, after
/// the leg was down.
const TRAINS: u64 = 250_000;
const TRAINS_AGAIN: Duration = Duration::from_secs(4);
/// Budget of trains: one part in this many of the bytes sent to a UE.
const TRAINS_PART: u64 = 50;
/// Memory of the node for each UE, bytes: steering state, flows, and delayed ACKs.
const MEMORY: usize = 100_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    Ue(usize, usize),
    Node,
}

struct Transit {
    at: Instant,
    order: u64,
    to: To,
    packet: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    Fault(u64),
    Arrives(usize),
    Node,
    Server(usize),
    Datagram(usize, usize),
}

/// Datagrams of a UE in one direction.
#[derive(Debug, Default)]
struct Datagrams {
    next: Instant,
    sent: u32,
    open: BTreeSet<u32>,
    last: u32,
    /// Number of them lost by a leg.
    lost: u64,
}

struct Ue {
    side: UeSide,
    stream: Stream,
    next: Instant,
    datagrams: [Datagrams; 2],
    clock: u32,
    /// Latest acknowledgment and timestamp received by the server.
    heard: (u32, u32),
    /// Acknowledgment at the server, and since when it has not advanced.
    waits: (u32, Instant),
    /// Bytes sent to the UE since the node started, and bytes of trains by leg.
    got: u64,
    trains: [u64; 2],
}

#[derive(Default)]
struct Out {
    backhaul: Vec<Vec<u8>>,
    legs: Vec<(usize, Vec<u8>)>,
}

impl NodeSink for Out {
    fn backhaul(&mut self, packet: &[u8]) {
        self.backhaul.push(packet.to_vec());
    }
    fn leg(&mut self, leg: Leg, packet: &[u8]) {
        self.legs.push((usize::from(leg == Leg::Wifi), packet.to_vec()));
    }
}

struct World {
    plan: Plan,
    node: Node,
    run_state: RunState,
    draw: RandomStream,
    ues: Vec<Ue>,
    transit: Vec<Transit>,
    orders: u64,
    /// Arrival time of the last packet of each leg and direction: without jitter, packets stay in order.
    last_at: [[Instant; 2]; 2],
    /// When a leg will have sent all packets in its downlink queue.
    free_at: [Instant; 2],
    /// When the node started.
    began: Instant,
    active: Active<Kind>,
    mode: Mode,
    dida: Dida,
    stopped: bool,
    jittered: bool,
    restarted: u64,
    polls: (Instant, u32),
}

const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
const NODE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 45, 255, 1));

fn bearer(ue: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 45, 0, 2 + ue as u8))
}

fn ue_config(ue: usize, wifi: bool) -> UeConfig {
    let at = IpAddr::V4(Ipv4Addr::new(10, 46, 0, 2 + ue as u8));
    UeConfig {
        name: format!("ue{ue}"),
        addresses: vec![bearer(ue)],
        wifi: wifi.then_some(at).into_iter().collect(),
    }
}

const fn steering(mode: Mode) -> Steering {
    match mode {
        Mode::Half => Steering::FixedRatio { lte_percent: 50.0 },
        Mode::Rtt => Steering::RttWeighted { least_percent: 5.0 },
        Mode::Capacity => Steering::CapacityWeighted { least_percent: 5.0, lte_mbps: 10.0, wifi_mbps: 10.0 },
        Mode::Switched => {
            Steering::Switched { to: SwitchTo::Auto, hysteresis_percent: 25.0, dwell_ms: 1_000 }
        }
        Mode::Autonomous => Steering::Autonomous,
    }
}

fn dida(dida: Dida) -> Option<DidaConfig> {
    let with = |hold: Hold| DidaConfig { hold, ..DidaConfig::default() };
    match dida {
        Dida::Off => None,
        Dida::Fixed => Some(DidaConfig::default()),
        Dida::Printed => Some(DidaConfig { hide_sack: false, ..DidaConfig::default() }),
        Dida::Optimal => Some(with(Hold::Optimal)),
        Dida::Adaptive => Some(with(Hold::Adaptive)),
    }
}

/// One run of a plan.
///
/// # Errors
/// The invariant that was violated.
pub fn play(plan: &Plan, tally: &mut Tally, trace: &mut Option<Vec<String>>) -> Result<(), Violation> {
    let mut world = World::new(plan, trace.is_some())?;
    let result = faulted(&mut world, plan, FaultSchedule::Steps).and_then(|_| world.after());
    world.run_state.report(tally, trace);
    result
}

impl World {
    fn new(plan: &Plan, traced: bool) -> Result<Self, Violation> {
        let bad = |what: String| Violation { invariant: Invariant::NoPanic, step: 0, what };
        let mut draw = RandomStream::new(plan.seed, 1);
        let ues: Result<Vec<Ue>, String> = (0..usize::from(plan.world.ues))
            .map(|n| {
                let mut later = || Instant::ZERO + Duration::from_micros(draw.below(plan.world.pace_us));
                Ok(Ue {
                    side: UeSide::new(&ue_config(n, true)).map_err(|error| error.to_string())?,
                    stream: Stream::default(),
                    next: later(),
                    datagrams: [0, 1].map(|_| Datagrams { next: later(), ..Datagrams::default() }),
                    clock: 0,
                    heard: (0, 0),
                    waits: (0, Instant::ZERO),
                    got: 0,
                    trains: [0; 2],
                })
            })
            .collect();
        let mut world = Self {
            node: node(plan, plan.world.mode, plan.world.dida, &[], 0, Instant::ZERO).map_err(bad)?,
            run_state: RunState::new(traced),
            ues: ues.map_err(bad)?,
            draw,
            transit: Vec::new(),
            orders: 0,
            last_at: [[Instant::ZERO; 2]; 2],
            free_at: [Instant::ZERO; 2],
            began: Instant::ZERO,
            active: Active::default(),
            mode: plan.world.mode,
            dida: plan.world.dida,
            stopped: false,
            jittered: false,
            restarted: 0,
            polls: (Instant::ZERO, 0),
            plan: plan.clone(),
        };
        (0..world.ues.len()).try_for_each(|ue| world.open(ue))?;
        Ok(world)
    }

    /// Opens the connection, before any fault.
    fn open(&mut self, ue: usize) -> Result<(), Violation> {
        let options = TcpOptions { window_scale: Some(7), sack_permitted: true, ..TcpOptions::default() };
        let syn = TcpHeader { flags: TcpFlags::SYN, window: 64_000, options, ..TcpHeader::default() };
        let (from, to) = ends(ue);
        let mut out = Out::default();
        let mut packet = emit_packet(to, from, &syn, &[]).unwrap_or_default();
        self.node.uplink(&mut packet, self.run_state.now, &mut out);
        let answer =
            TcpHeader { seq: base(0).wrapping_sub(1), ack: 1, flags: TcpFlags::SYN | TcpFlags::ACK, ..syn };
        let mut packet = emit_packet(from, to, &answer, &[]).unwrap_or_default();
        self.node.downlink(&mut packet, self.run_state.now);
        Ok(())
    }

    // ---- legs --------------------------------------------------------------------------------------------

    /// Puts a packet on a leg. Its kind is used to count losses.
    fn put(&mut self, leg: usize, to: To, packet: Vec<u8>) {
        let up = usize::from(to == To::Node);
        let (mut delay_ms, mut jitter_ms) = (u64::from(self.plan.world.delay_ms[leg]), 0);
        let (mut mbps, mut lost) = (u64::from(self.plan.world.mbps[leg]), None);
        for kind in self.active.kinds() {
            match *kind {
                Kind::Partition { leg: l } if usize::from(l) == leg => lost = Some("partition"),
                Kind::Loss { leg: l, percent }
                    if usize::from(l) == leg && self.draw.percent(percent.into()) =>
                {
                    lost = Some("loss");
                }
                Kind::Jitter { leg: l, most_ms } if usize::from(l) == leg => jitter_ms = u64::from(most_ms),
                Kind::Delay { leg: l, delay_ms: ms } if usize::from(l) == leg => {
                    self.run_state.tally.effect("delay", 1);
                    delay_ms = ms.into();
                }
                Kind::Rate { leg: l, mbps: of_leg } if usize::from(l) == leg => {
                    self.run_state.tally.effect("rate", 1);
                    mbps = of_leg.into();
                }
                _ => {}
            }
        }
        let mut sent_at = self.run_state.now;
        if up == 0 && lost.is_none() {
            let begins = self.free_at[leg].max(sent_at);
            if begins.saturating_since(sent_at) > QUEUE {
                lost = Some("queue");
            } else {
                sent_at = begins + Duration::from_nanos(packet.len() as u64 * 8_000 / mbps);
                self.free_at[leg] = sent_at;
            }
        }
        if let Some(why) = lost {
            if why != "queue" {
                self.run_state.tally.effect(why, 1);
            }
            if let Some((ue, way, _)) = datagram(&packet) {
                self.ues[ue].datagrams[way].lost += 1;
            }
            return;
        }
        let mut at = sent_at + Duration::from_millis(delay_ms);
        if jitter_ms > 0 {
            self.run_state.tally.effect("jitter", 1);
            self.jittered = true;
            at += Duration::from_micros(self.draw.below(1_000 * jitter_ms));
        } else {
            at = at.max(self.last_at[leg][up]);
            self.last_at[leg][up] = at;
        }
        self.orders += 1;
        self.transit.push(Transit { at, order: self.orders, to, packet });
    }

    fn downlink(&mut self, mut packet: Vec<u8>) -> Result<(), Violation> {
        let leg = usize::from(self.node.downlink(&mut packet, self.run_state.now) == Leg::Wifi);
        self.send_down(leg, packet)
    }

    fn send_down(&mut self, leg: usize, packet: Vec<u8>) -> Result<(), Violation> {
        let Ok(to) = ip::dst(&packet) else {
            return Err(self
                .run_state
                .violation(Invariant::Intact, "the node makes what is no packet".into()));
        };
        let wifi = |ue: &Ue| leg == 1 && ue.side.wifi(to) == Some(to);
        let Some(ue) = self.ues.iter().position(|ue| ue.side.bearer(to) == Some(to) || wifi(ue)) else {
            return Err(self
                .run_state
                .violation(Invariant::Intact, format!("a packet to {to}, by leg {leg}")));
        };
        let is_train = ip::parse_echo(&packet).is_ok_and(|echo| echo.reply);
        let state = &mut self.ues[ue];
        state.got += packet.len() as u64;
        state.trains[leg] += if is_train { packet.len() as u64 } else { 0 };
        self.put(leg, To::Ue(ue, leg), packet);
        Ok(())
    }

    /// A packet from a UE arrives at the node.
    fn uplink(&mut self, mut packet: Vec<u8>) -> Result<(), Violation> {
        let told = parse_packet(&packet).ok().and_then(|tcp| {
            let ue = (0..self.ues.len()).find(|ue| tcp.src.ip() == bearer(*ue))?;
            Some((ue, number(tcp.header.ack)))
        });
        let mut out = Out::default();
        self.node.uplink(&mut packet, self.run_state.now, &mut out);
        self.take(out)?;
        if let Some((ue, there)) = told {
            let stream = &mut self.ues[ue].stream;
            stream.acked_at_node = stream.acked_at_node.max(there);
            self.run_state.tally.count_check(Invariant::Prompt);
            // A new acknowledgment is never delayed.
            let stream = &self.ues[ue].stream;
            if stream.acked_at_server < stream.acked_at_node {
                let what = format!(
                    "UE {ue}: the node was told {}, the server knows {}",
                    stream.acked_at_node, stream.acked_at_server
                );
                return Err(self.run_state.violation(Invariant::Prompt, what));
            }
        }
        Ok(())
    }

    /// Processes the output of the node.
    fn take(&mut self, out: Out) -> Result<(), Violation> {
        for packet in out.backhaul {
            self.run_state.tally.digest(&packet);
            self.at_server(&packet)?;
        }
        out.legs.into_iter().try_for_each(|(leg, packet)| self.send_down(leg, packet))
    }

    fn at_server(&mut self, packet: &[u8]) -> Result<(), Violation> {
        self.run_state.tally.count_check(Invariant::Intact);
        // An unsolicited reply is forwarded as an ordinary packet.
        if ip::parse_echo(packet).is_ok() {
            return Ok(());
        }
        if let Ok(tcp) = parse_packet(packet) {
            let Some(ue) = (0..self.ues.len()).find(|ue| tcp.src.ip() == bearer(*ue)) else {
                return Err(self
                    .run_state
                    .violation(Invariant::Intact, format!("a segment from {}", tcp.src)));
            };
            if tcp.header.flags.contains(TcpFlags::SYN) {
                return Ok(());
            }
            let known = number(tcp.header.ack);
            let heard = (known, tcp.header.options.timestamps.map_or(0, |(value, _)| value));
            let last = std::mem::replace(&mut self.ues[ue].heard, heard);
            if !self.jittered {
                self.run_state.tally.count_check(Invariant::Order);
                if heard.0 < last.0 || heard.1 < last.1 {
                    let what = format!("UE {ue}: acknowledgment and time stamp {heard:?} after {last:?}");
                    return Err(self.run_state.violation(Invariant::Order, what));
                }
            }
            if known > self.ues[ue].stream.received {
                let what = format!("UE {ue}: {known} acknowledged of {}", self.ues[ue].stream.received);
                return Err(self.run_state.violation(Invariant::Intact, what));
            }
            if let Some(again) = self.ues[ue].stream.on_ack(known, self.run_state.now) {
                self.segment(ue, again)?;
            }
            return Ok(());
        }
        self.delivered(packet, 1)
    }

    fn delivered(&mut self, packet: &[u8], way: usize) -> Result<(), Violation> {
        let Some((ue, label_way, n)) = datagram(packet) else {
            return Err(self
                .run_state
                .violation(Invariant::Intact, format!("{} bytes are of nobody", packet.len())));
        };
        self.run_state.tally.count_check(Invariant::Intact);
        if label_way != way || packet.len() != 28 + 64 {
            return Err(self
                .run_state
                .violation(Invariant::Intact, format!("UE {ue}: datagram {n} goes the other way")));
        }
        self.run_state.tally.count_check(Invariant::Once);
        let datagrams = &mut self.ues[ue].datagrams[way];
        if !datagrams.open.remove(&n) {
            return Err(self.run_state.violation(Invariant::Once, format!("UE {ue}: datagram {n} again")));
        }
        let last = std::mem::replace(&mut datagrams.last, n);
        if !self.jittered {
            self.run_state.tally.count_check(Invariant::Order);
            if n < last {
                return Err(self
                    .run_state
                    .violation(Invariant::Order, format!("UE {ue}: datagram {n} after {last}")));
            }
        }
        Ok(())
    }

    fn at_ue(&mut self, ue: usize, leg: usize, mut packet: Vec<u8>) -> Result<(), Violation> {
        self.run_state.tally.digest(&packet);
        if let Some(answer) = self.ues[ue].side.answer(&packet) {
            let lies = self.active.kinds().any(|kind| *kind == Kind::Lies);
            let copies = if lies { self.draw.below(4) } else { 1 };
            self.run_state.tally.effect("lies", u64::from(lies));
            for _ in 0..copies {
                let other = if lies { self.lie(&answer) } else { None };
                self.put(leg, To::Node, other.unwrap_or_else(|| answer.clone()));
            }
            return Ok(());
        }
        // An unsolicited reply carries a capacity measurement; a kernel drops it.
        if ip::parse_echo(&packet).is_ok_and(|echo| echo.reply && echo.src == NODE) {
            return Ok(());
        }
        self.ues[ue].side.restore(&mut packet);
        let Ok(tcp) = parse_packet(&packet) else { return self.delivered(&packet, 0) };
        self.run_state.tally.count_check(Invariant::Intact);
        let n = number(tcp.header.seq);
        let right = tcp.dst == ends(ue).1 && tcp.payload.len() == SEGMENT as usize;
        if !right || packet[tcp.payload.clone()].iter().any(|byte| *byte != n as u8) {
            return Err(self
                .run_state
                .violation(Invariant::Intact, format!("UE {ue}: segment {n} to {}", tcp.dst)));
        }
        let ms = 1 + self.run_state.now.as_millis() as u32;
        let state = &mut self.ues[ue];
        let again = state.stream.take(n).then_some(n);
        state.clock = state.clock.max(ms);
        let header = state.stream.acknowledgment(again, state.clock);
        let (server, own) = ends(ue);
        let answer = emit_packet(own, server, &header, &[]).unwrap_or_default();
        self.put(0, To::Node, answer);
        Ok(())
    }

    /// A reply to a question that was not asked.
    fn lie(&mut self, answer: &[u8]) -> Option<Vec<u8>> {
        let echo = ip::parse_echo(answer).ok().filter(|_| self.draw.percent(30))?;
        let sequence = echo.sequence ^ (1 << self.draw.below(16));
        ip::emit_echo(echo.src, echo.dst, true, (echo.id, sequence), &answer[echo.payload]).ok()
    }

    fn segment(&mut self, ue: usize, n: u32) -> Result<(), Violation> {
        let header =
            TcpHeader { seq: base(n), ack: 1, flags: TcpFlags::ACK, window: 500, ..TcpHeader::default() };
        let (server, own) = ends(ue);
        let packet = emit_packet(server, own, &header, &vec![n as u8; SEGMENT as usize]).unwrap_or_default();
        self.downlink(packet)
    }

    // ---- events ------------------------------------------------------------------------------------------

    fn quiet(&self) -> bool {
        self.active.kinds().any(|kind| *kind == Kind::Quiet)
    }

    fn pause(&mut self) -> Instant {
        self.run_state.now + Duration::from_micros(self.draw.between((1, 2 * self.plan.world.pace_us)))
    }

    fn without_wifi(&self) -> Vec<u8> {
        let of = |kind: &Kind| if let Kind::Carrier { ue } = kind { Some(*ue) } else { None };
        self.active.kinds().filter_map(of).collect()
    }

    fn set_ues(&mut self) -> Result<(), Violation> {
        let gone = self.without_wifi();
        let ues = (0..self.ues.len()).map(|ue| ue_config(ue, !gone.contains(&(ue as u8)))).collect();
        if let Err(why) = self.node.set_ues(ues, self.run_state.now) {
            return Err(self.run_state.violation(Invariant::NoPanic, why.to_string()));
        }
        self.flush()
    }

    /// Sends what a command released.
    fn flush(&mut self) -> Result<(), Violation> {
        let mut out = Out::default();
        self.node.poll(self.run_state.now, &mut out);
        self.take(out)
    }

    fn end_fault(&mut self, number: u64) -> Result<(), Violation> {
        let Some(kind) = self.active.end(number) else { return Ok(()) };
        self.run_state.note(|| format!("fault {number} ends: {kind:?}"));
        if matches!(kind, Kind::Carrier { .. }) { self.set_ues() } else { Ok(()) }
    }

    /// Checks memory and the cost of probe trains.
    fn look_at_cost(&mut self) -> Result<(), Violation> {
        let (memory, most) = (self.node.bytes(), MEMORY * self.ues.len());
        if memory > most {
            let what = format!("{memory} bytes of memory, of {most}");
            return Err(self.run_state.violation(Invariant::Bounded, what));
        }
        let times = 2 + self.run_state.now.saturating_since(self.began).as_millis() as u64
            / TRAINS_AGAIN.as_millis() as u64;
        for ue in 0..self.ues.len() {
            let Ue { got, trains, .. } = self.ues[ue];
            let most = TRAINS * times + got / TRAINS_PART;
            if trains.iter().any(|bytes| *bytes > most) {
                let what = format!("UE {ue}: {trains:?} bytes of trains, of {most}");
                return Err(self.run_state.violation(Invariant::Bounded, what));
            }
        }
        Ok(())
    }

    /// Checks that downloads progress while the LTE leg, which is always available, works.
    fn look_at_progress(&mut self) -> Result<(), Violation> {
        let is_hurt = |kind: &Kind| matches!(kind, Kind::Loss { leg: 0, .. } | Kind::Partition { leg: 0 });
        let works = !self.active.kinds().any(is_hurt);
        let now = self.run_state.now;
        for ue in 0..self.ues.len() {
            let Ue { stream, waits, .. } = &mut self.ues[ue];
            if !works || stream.acked_at_server == stream.sent || stream.acked_at_server != waits.0 {
                *waits = (stream.acked_at_server, now);
                continue;
            }
            self.run_state.tally.count_check(Invariant::Served);
            if now.saturating_since(waits.1) > SERVED {
                let what = format!("UE {ue}: nothing new since {}: {stream:?}", waits.1);
                return Err(self.run_state.violation(Invariant::Served, what));
            }
        }
        Ok(())
    }

    fn after(&mut self) -> Result<(), Violation> {
        while let Some((_, number)) = self.active.next_end() {
            self.end_fault(number)?;
        }
        self.stopped = true;
        self.run_state.tally.count_check(Invariant::Reliable);
        system::wait(self, DONE, Invariant::Reliable, |world| {
            let open = world.ues.iter().position(|ue| ue.stream.acked_at_server < ue.stream.sent);
            open.map(|ue| format!("UE {ue}: {:?}", world.ues[ue].stream))
        })?;
        self.run_state.tally.count_check(Invariant::Converges);
        system::wait(self, CONVERGES, Invariant::Converges, |world| {
            (0..world.ues.len()).find_map(|ue| {
                let links = world.node.links(&ue_config(ue, true).name)?;
                links.iter().any(|link| !link.up || link.answers == 0).then(|| format!("UE {ue}: {links:?}"))
            })
        })?;
        self.run_state.tally.count_check(Invariant::Empty);
        system::wait(self, HOLDS, Invariant::Empty, |world| {
            let held = world.node.held_acks();
            (held > 0).then(|| format!("{held} ACKs are held"))
        })?;
        self.pass(Duration::from_secs(1))?;
        for ue in 0..self.ues.len() {
            for way in 0..2 {
                self.run_state.tally.count_check(Invariant::Lossless);
                let datagrams = &self.ues[ue].datagrams[way];
                if datagrams.open.len() as u64 != datagrams.lost {
                    let what = format!(
                        "UE {ue}: {} of {} datagrams are missing, {} were lost by legs",
                        datagrams.open.len(),
                        datagrams.sent,
                        datagrams.lost
                    );
                    return Err(self.run_state.violation(Invariant::Lossless, what));
                }
            }
        }
        Ok(())
    }
}

fn ends(ue: usize) -> (SocketAddr, SocketAddr) {
    (SocketAddr::new(SERVER, 80), SocketAddr::new(bearer(ue), 4_000))
}

/// The UE, direction and number of a datagram.
fn datagram(packet: &[u8]) -> Option<(usize, usize, u32)> {
    let (_, _, range) = ip::parse_udp(packet).ok()?;
    let payload = packet.get(range)?;
    let n = u32::from_be_bytes(*payload.first_chunk()?);
    Some(((*payload.get(4)?).into(), (*payload.get(5)?).into(), n))
}

fn node(plan: &Plan, mode: Mode, how: Dida, gone: &[u8], started: u64, now: Instant) -> Result<Node, String> {
    let config = Config {
        steering: steering(mode),
        dida: dida(how),
        probe: Some(ProbeConfig::new(vec![NODE])),
        ues: (0..usize::from(plan.world.ues)).map(|ue| ue_config(ue, !gone.contains(&(ue as u8)))).collect(),
        ..Config::default()
    };
    Node::new(config, plan.seed.wrapping_add(started), now).map_err(|error| error.to_string())
}

impl system::World<Kind> for World {
    type Event = Event;

    const MOST_AT_ONE_TIME: u32 = 2_000;

    fn run_state(&self) -> &RunState {
        &self.run_state
    }

    fn course_mut(&mut self) -> &mut RunState {
        &mut self.run_state
    }

    fn next(&self) -> (Instant, Event) {
        let mut first = (Instant::MAX, Event::Node);
        let mut earlier = |at: Instant, event: Event| {
            if (at, event) < first {
                first = (at, event);
            }
        };
        if let Some((at, number)) = self.active.next_end() {
            earlier(at, Event::Fault(number));
        }
        let arrives = self.transit.iter().enumerate().min_by_key(|(_, transit)| (transit.at, transit.order));
        if let Some((n, transit)) = arrives {
            earlier(transit.at, Event::Arrives(n));
        }
        if let Some((at, _)) = self.node.poll_timeout() {
            earlier(at.max(self.run_state.now), Event::Node);
        }
        for (n, ue) in self.ues.iter().enumerate() {
            if !self.stopped || ue.stream.acked_at_server < ue.stream.sent {
                earlier(ue.next, Event::Server(n));
            }
            if !self.stopped {
                ue.datagrams.iter().enumerate().for_each(|(way, d)| earlier(d.next, Event::Datagram(n, way)));
            }
        }
        first
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Fault(number) => self.end_fault(number),
            Event::Arrives(n) => {
                let Transit { to, packet, .. } = self.transit.swap_remove(n);
                match to {
                    To::Ue(ue, leg) => self.at_ue(ue, leg, packet),
                    To::Node => self.uplink(packet),
                }
            }
            Event::Node => {
                self.run_state.tally.count_check(Invariant::NoSpin);
                self.polls = if self.polls.0 == self.run_state.now {
                    (self.run_state.now, self.polls.1 + 1)
                } else {
                    (self.run_state.now, 0)
                };
                if self.polls.1 > POLLS {
                    let what =
                        format!("{POLLS} polls at {}: {:?}", self.run_state.now, self.node.poll_timeout());
                    return Err(self.run_state.violation(Invariant::NoSpin, what));
                }
                let mut out = Out::default();
                self.node.poll(self.run_state.now, &mut out);
                self.take(out)
            }
            Event::Server(ue) => {
                self.ues[ue].next = self.pause();
                let quiet = self.quiet();
                self.run_state.tally.effect("quiet", u64::from(quiet));
                let begins = !quiet && !self.stopped;
                match self.ues[ue].stream.turn(self.run_state.now, begins) {
                    Some(n) => self.segment(ue, n),
                    None => Ok(()),
                }
            }
            Event::Datagram(ue, way) => {
                self.ues[ue].datagrams[way].next = self.pause();
                if self.quiet() {
                    return Ok(());
                }
                let datagrams = &mut self.ues[ue].datagrams[way];
                datagrams.sent += 1;
                datagrams.open.insert(datagrams.sent);
                let mut payload = [0; 64];
                payload[..4].copy_from_slice(&datagrams.sent.to_be_bytes());
                (payload[4], payload[5]) = (ue as u8, way as u8);
                let (server, own) = (SocketAddr::new(SERVER, 9), SocketAddr::new(bearer(ue), 9));
                let (from, to) = if way == 0 { (server, own) } else { (own, server) };
                let packet = ip::udp_datagram(from, to, &payload).unwrap_or_default();
                if way == 0 {
                    self.downlink(packet)
                } else {
                    self.put(0, To::Node, packet);
                    Ok(())
                }
            }
        }
    }

    fn check_invariants(&mut self) -> Result<(), Violation> {
        self.run_state.tally.count_check(Invariant::Bounded);
        let held = self.node.held_acks();
        let most = dida(self.dida).map_or(0, |dida| dida.held_per_flow * self.ues.len() as u32);
        if held > most || self.node.flow_count() > 8 * self.ues.len() as u32 {
            let what = format!("{held} ACKs are held, of {most}; {} flows", self.node.flow_count());
            return Err(self.run_state.violation(Invariant::Bounded, what));
        }
        self.look_at_cost()?;
        self.look_at_progress()
    }

    fn begin_fault(&mut self, number: u64, fault: &Fault) -> Result<(), Violation> {
        let kind = fault.kind;
        self.run_state.begins(number, fault, kind.name());
        let bad = |world: &Self, what: String| world.run_state.violation(Invariant::NoPanic, what);
        match kind {
            Kind::Restart => {
                self.restarted += 1;
                let made = node(
                    &self.plan,
                    self.mode,
                    self.dida,
                    &self.without_wifi(),
                    self.restarted,
                    self.run_state.now,
                );
                self.node = made.map_err(|what| bad(self, what))?;
                self.began = self.run_state.now;
                for ue in &mut self.ues {
                    (ue.got, ue.trains) = (0, [0; 2]);
                }
                self.run_state.tally.effect(kind.name(), 1);
                Ok(())
            }
            Kind::Steering { mode } => {
                self.mode = mode;
                self.run_state.tally.effect(kind.name(), 1);
                let set = self.node.set_steering(steering(mode), self.run_state.now);
                set.map_err(|error| bad(self, error.to_string()))
            }
            Kind::Dida { dida: how } => {
                self.dida = how;
                self.run_state.tally.effect(kind.name(), 1);
                let set = self.node.set_dida(dida(how), self.run_state.now);
                set.map_err(|error| bad(self, error.to_string()))?;
                self.flush()
            }
            Kind::Carrier { .. } => {
                self.active.begin(number, self.run_state.now + Duration::from_millis(fault.ms), kind);
                self.run_state.tally.effect(kind.name(), 1);
                self.set_ues()
            }
            _ => {
                self.active.begin(number, self.run_state.now + Duration::from_millis(fault.ms), kind);
                Ok(())
            }
        }
    }
}
