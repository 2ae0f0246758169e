//! The world: a gNB, flows of honest UEs in both directions, a flooding UE, and a record of every packet.

use super::check::{Invariant, Tally, Violation};
use super::draw::RandomStream;
use super::plan::{Fault, Kind, LinkDirection, Plan};
use super::system::{self, Active, FaultSchedule, RunState, Span, World as _, faulted};
use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant};
use anabranch_element::{Element, Port, Sink, drive};
use anabranch_ran::amc::Direction;
use anabranch_ran::channel::{Channel, ChannelConfig, Quality};
use anabranch_ran::gnb::{BearerConfig, Gnb, GnbCommand, GnbConfig, GnbEvent, UeConfig};
use anabranch_ran::queue::{Algorithm, BearerParams, BufferLimit};
use anabranch_ran::rlc::{AmConfig, RlcConfig};
use anabranch_ran::sched::{InterAlgorithm, SliceConfig};
use anabranch_ran::sdap::{FlowConfig, SdapConfig};
use anabranch_wire::ip;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Limit of each RLC buffer and of each queue of a flow.
const LIMIT: BufferLimit = BufferLimit { bytes: 100_000, sdus: 500 };
/// Largest SDU: a packet, and the headers of SDAP and PDCP.
const SDU: u64 = 1_500 + 1 + 3;
/// Upper bound on the bytes that a bearer holds: a full queue and a full RLC buffer, and outside each of them one SDU. A
/// limiter has taken one from the queue and refused it; RLC has taken one from its buffer and sent a part of it.
const MAX_BEARER_BYTES: u64 = 2 * (LIMIT.bytes + SDU);
/// Times in a row at which the gNB asks for the same instant.
const MAX_REPEATS: u32 = 64;
/// Upper bound on the time until all buffered packets have been delivered, once the channel is good and the senders have stopped.
const DRAIN_TIME: Duration = Duration::from_secs(60);
/// Maximum increase of the mean delay by a hostile UE: what a debt of 100 RBs takes at a fifth of 25 RBs.
const MAX_ADDED_DELAY: Duration = Duration::from_millis(20);
/// Limit of EQP's quanta, RBs, plus what whole groups add (`sched::eqp`).
const QUANTUM_RBS: i32 = 100;
/// Bytes of an IPv4 and a UDP header, followed by the fields that identify a packet.
const HEADERS: usize = 28;
const LABEL: usize = 8;

/// Record of the packets of a UE in one direction.
#[derive(Debug, Default)]
struct Flow {
    next: Instant,
    sent: u32,
    /// Packets that have not arrived, by number: send time and payload bytes.
    open: BTreeMap<u32, (Instant, usize)>,
    last: u32,
    delivered: u64,
    wait_ns: u128,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    Fault(u64),
    Gnb,
    Flow(usize, usize),
    Hostile,
}

#[derive(Default)]
struct Output {
    packets: Vec<(Port, Packet)>,
    refused: u64,
}

impl Sink<GnbEvent> for Output {
    fn transmit(&mut self, port: Port, packet: Packet) {
        self.packets.push((port, packet));
    }
    fn event(&mut self, event: GnbEvent) {
        self.refused += u64::from(matches!(event, GnbEvent::Refused(_)));
    }
}

struct World {
    plan: Plan,
    gnb: Gnb,
    run_state: RunState,
    draw: RandomStream,
    hostile_draw: RandomStream,
    hostile: Instant,
    flows: Vec<[Flow; 2]>,
    active: Active<Kind>,
    /// Packets that arrived while the gNB was not driven.
    waiting: Vec<(Port, Vec<u8>)>,
    schedulers: [InterAlgorithm; 2],
    repeats: (Instant, u32),
    stopped: bool,
    out: Output,
}

const DIRECTIONS: [Direction; 2] = [Direction::Downlink, Direction::Uplink];

const fn direction(way: LinkDirection) -> Direction {
    match way {
        LinkDirection::Down => Direction::Downlink,
        LinkDirection::Up => Direction::Uplink,
    }
}

fn place(way: LinkDirection) -> usize {
    usize::from(way == LinkDirection::Up)
}

fn address(ue: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(0x0a2d_0001 + ue as u32))
}

const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));

/// One run of a plan.
///
/// # Errors
/// The invariant that was violated.
pub fn play(plan: &Plan, tally: &mut Tally, trace: &mut Option<Vec<String>>) -> Result<(), Violation> {
    let mut world = World::new(plan, trace.is_some())?;
    let result = faulted(&mut world, plan, FaultSchedule::Steps);
    let served: Vec<[(u64, u128); 2]> = world.served();
    let result = result.and_then(|span| world.after().map(|()| span));
    world.run_state.report(tally, trace);
    let span = result?;
    if plan.world.hostile && is_comparable(plan) {
        independent(plan, &span, &served, world.run_state.step, tally)?;
    }
    Ok(())
}

/// Whether honest UEs have the same events with and without the hostile one, except for the capacity it uses.
fn is_comparable(plan: &Plan) -> bool {
    let world = &plan.world;
    let light = world.ues.iter().all(|ue| ue.mcs == 28 && ue.pace_us >= 20_000) && world.ues.len() <= 2;
    let harmless = |fault: &Fault| match fault.kind {
        Kind::Burst { packets, .. } => packets <= 20,
        kind => kind == Kind::Quiet,
    };
    light && world.bler_percent == 0 && plan.faults.iter().all(harmless)
}

/// Repeats the run without the hostile UE. Honest UEs must have been served as well with it.
fn independent(
    plan: &Plan,
    span: &Span,
    with: &[[(u64, u128); 2]],
    step: u64,
    tally: &mut Tally,
) -> Result<(), Violation> {
    let mut alone = plan.clone();
    alone.world.hostile = false;
    let mut world = World::new(&alone, false)?;
    faulted(&mut world, &alone, FaultSchedule::Times(&span.began, span.ended))?;
    for (ue, (with, without)) in with.iter().zip(world.served()).enumerate() {
        for way in 0..2 {
            tally.count_check(Invariant::Independent);
            let mean = |(packets, wait): (u64, u128)| wait / u128::from(packets.max(1));
            let ((some, _), (all, _)) = (with[way], without[way]);
            // Packets in transit at the end count for neither run.
            let fewer = some + 25 + all / 100 < all;
            if fewer || mean(with[way]) > mean(without[way]) + MAX_ADDED_DELAY.as_nanos() {
                let what = format!(
                    "UE {ue}, {:?}: {some} packets in {} ns with the hostile UE, {all} in {} ns without",
                    DIRECTIONS[way],
                    mean(with[way]),
                    mean(without[way])
                );
                return Err(Violation { invariant: Invariant::Independent, step, what });
            }
        }
    }
    Ok(())
}

impl World {
    fn new(plan: &Plan, traced: bool) -> Result<Self, Violation> {
        let setting = &plan.world;
        let slices = slices(&setting.slices);
        let bearer = |queue: Algorithm, acknowledged: bool| BearerConfig {
            rlc: if acknowledged { RlcConfig::Am(AmConfig::default()) } else { RlcConfig::default() },
            limit_bytes: LIMIT.bytes,
            limit_sdus: LIMIT.sdus,
            ..BearerConfig::with_queue(queue)
        };
        let flow = || FlowConfig {
            unmapped: true,
            limit_bytes: LIMIT.bytes,
            limit_sdus: LIMIT.sdus,
            ..FlowConfig::new(9, 1)
        };
        let ue = |n: usize, slice: usize, mcs: u8, bearer: BearerConfig| UeConfig {
            addresses: vec![address(n)],
            sdap: SdapConfig { flows: vec![flow()], ..SdapConfig::default() },
            bearer,
            ..UeConfig::new(format!("ue{n}"), format!("s{slice}"), ChannelConfig::mcs(mcs))
        };
        let mut ues: Vec<UeConfig> = setting
            .ues
            .iter()
            .enumerate()
            .map(|(n, u)| ue(n, u.slice.into(), u.mcs, bearer(u.queue, u.acknowledged)))
            .collect();
        if setting.hostile {
            ues.push(ue(ues.len(), setting.slices.len() - 1, 28, bearer(Algorithm::Vanilla, false)));
        }
        let bler = f64::from(setting.bler_percent) / 100.0;
        let config = serde_json::json!({
            "seed": plan.seed, "ues": [], "radio": { "rat": "lte", "rbs": setting.rbs },
            "harq": { "bler": bler, "bler_retx": bler / 2.0 },
        });
        let bad = |what: String| Violation { invariant: Invariant::NoPanic, step: 0, what };
        let config: GnbConfig = serde_json::from_value(config).map_err(|error| bad(error.to_string()))?;
        let config = GnbConfig { slices, ues, scheduler: setting.scheduler.into(), ..config };
        let gnb = Gnb::new(&config, &mut |file| Err(format!("no file {file}")));
        let mut draw = RandomStream::new(plan.seed, 1);
        let flows = setting.ues.iter().map(|ue| {
            [0, 1].map(|_| Flow {
                next: Instant::ZERO + Duration::from_micros(draw.below(ue.pace_us)),
                ..Flow::default()
            })
        });
        Ok(Self {
            gnb: gnb.map_err(|error| bad(error.to_string()))?,
            run_state: RunState::new(traced),
            flows: flows.collect(),
            draw,
            hostile_draw: RandomStream::new(plan.seed, 2),
            hostile: Instant::ZERO,
            active: Active::default(),
            waiting: Vec::new(),
            schedulers: [setting.scheduler; 2],
            repeats: (Instant::ZERO, 0),
            stopped: false,
            out: Output::default(),
            plan: plan.clone(),
        })
    }

    /// Packets delivered to each UE and from it, and the sum of their delays.
    fn served(&self) -> Vec<[(u64, u128); 2]> {
        self.flows.iter().map(|ways| [0, 1].map(|way| (ways[way].delivered, ways[way].wait_ns))).collect()
    }

    fn is_late(&self) -> bool {
        self.active.kinds().any(|kind| *kind == Kind::Late)
    }

    // ---- packets -----------------------------------------------------------------------------------------

    fn payload(&self, ue: usize, way: usize, number: u32, len: usize) -> Vec<u8> {
        let mut payload = vec![0; len];
        payload[..4].copy_from_slice(&number.to_be_bytes());
        (payload[4], payload[5]) = (ue as u8, way as u8);
        let mut word = self.plan.seed ^ u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for byte in &mut payload[LABEL..] {
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            *byte = (word >> 56) as u8;
        }
        payload
    }

    fn send(&mut self, ue: usize, way: usize, bytes: usize) -> Result<(), Violation> {
        let len = bytes.max(HEADERS + LABEL) - HEADERS;
        let flow = &mut self.flows[ue][way];
        flow.sent += 1;
        let number = flow.sent;
        flow.open.insert(number, (self.run_state.now, len));
        let payload = self.payload(ue, way, number, len);
        let (server, ue_end) = (SocketAddr::new(SERVER, 9), SocketAddr::new(address(ue), 5_000));
        let (from, to, port) =
            if way == 0 { (server, ue_end, Gnb::N3) } else { (ue_end, server, Gnb::ue(ue as u16)) };
        let packet = ip::udp_datagram(from, to, &payload).unwrap_or_default();
        self.offer(port, packet)
    }

    fn offer(&mut self, port: Port, packet: Vec<u8>) -> Result<(), Violation> {
        if self.is_late() {
            self.waiting.push((port, packet));
            return Ok(());
        }
        self.gnb.on_packet(port, Packet::new(self.run_state.now, packet), self.run_state.now);
        self.drive()
    }

    fn drive(&mut self) -> Result<(), Violation> {
        drive(&mut self.gnb, self.run_state.now, &mut self.out);
        for (port, packet) in std::mem::take(&mut self.out.packets) {
            self.deliver(port, &packet)?;
        }
        Ok(())
    }

    fn deliver(&mut self, port: Port, packet: &[u8]) -> Result<(), Violation> {
        self.run_state.tally.digest(packet);
        self.run_state.tally.count_check(Invariant::Intact);
        let wrong = |world: &Self, what: &str| {
            Err(world
                .run_state
                .violation(Invariant::Intact, format!("port {port:?}: {what}, {} bytes", packet.len())))
        };
        let hostile = self.flows.len();
        let Ok((from, to, range)) = ip::parse_udp(packet) else {
            // Only the hostile UE sends and receives packets outside the ledger.
            return if port == Gnb::N3 || port == Gnb::ue(hostile as u16) {
                Ok(())
            } else {
                wrong(self, "no datagram")
            };
        };
        let payload = &packet[range];
        let (way, end) = if port == Gnb::N3 { (1, from.ip()) } else { (0, to.ip()) };
        let Some(ue) = (0..=hostile).find(|ue| address(*ue) == end) else { return wrong(self, "of nobody") };
        if ue == hostile {
            return Ok(());
        }
        if (way == 0 && port != Gnb::ue(ue as u16)) || payload.len() < LABEL {
            return wrong(self, "to somebody else");
        }
        let number = u32::from_be_bytes([payload[0], payload[1], payload[2], payload[3]]);
        // The hostile UE spoofs addresses of others: its packets are marked.
        if payload[4] == 0xff {
            return Ok(());
        }
        let flow = &self.flows[ue][way];
        let Some((sent, len)) = flow.open.get(&number).copied() else {
            self.run_state.tally.count_check(Invariant::Once);
            return Err(self.run_state.violation(
                Invariant::Once,
                format!("UE {ue}, {:?}: packet {number} again", DIRECTIONS[way]),
            ));
        };
        if payload != self.payload(ue, way, number, len) {
            return wrong(self, "other bytes than were sent");
        }
        self.run_state.tally.count_check(Invariant::Once);
        self.run_state.tally.count_check(Invariant::Order);
        if number < flow.last {
            let what = format!("UE {ue}, {:?}: packet {number} after packet {}", DIRECTIONS[way], flow.last);
            return Err(self.run_state.violation(Invariant::Order, what));
        }
        let now = self.run_state.now;
        let flow = &mut self.flows[ue][way];
        flow.last = number;
        flow.open.remove(&number);
        flow.delivered += 1;
        flow.wait_ns += (now - sent).as_nanos();
        Ok(())
    }

    // ---- events ------------------------------------------------------------------------------------------

    fn attack(&mut self) -> Result<(), Violation> {
        self.run_state.tally.effect("hostile", 1);
        let own = self.flows.len();
        let draw = &mut self.hostile_draw;
        self.hostile = self.run_state.now + Duration::from_micros(draw.between((100, 5_000)));
        let (count, up) = (draw.between((1, 12)), draw.percent(50));
        let mut packets = Vec::new();
        for _ in 0..count {
            let len = draw.of(&[LABEL, LABEL, 30, 1_000]);
            let mut payload = draw.bytes(len);
            payload[4] = 0xff;
            let victim = draw.below(own as u64) as usize;
            let me = SocketAddr::new(address(if draw.percent(10) { victim } else { own }), 1);
            let server = SocketAddr::new(SERVER, 2);
            let packet = match draw.below(20) {
                0 => draw.bytes(27),
                1 => Vec::new(),
                _ if up => ip::udp_datagram(me, server, &payload).unwrap_or_default(),
                _ => ip::udp_datagram(server, SocketAddr::new(address(own), 1), &payload).unwrap_or_default(),
            };
            packets.push((if up { Gnb::ue(own as u16) } else { Gnb::N3 }, packet));
        }
        packets.into_iter().try_for_each(|(port, packet)| self.offer(port, packet))
    }

    fn command(&mut self, command: GnbCommand, name: &'static str) -> Result<(), Violation> {
        let now = self.run_state.now;
        self.gnb.on_timeout(now);
        match self.gnb.apply(command, now) {
            Ok(()) => self.run_state.tally.effect(name, 1),
            Err(why) => self.run_state.note(|| format!("{name}: {why}")),
        }
        self.gnb.on_command(GnbCommand::Telemetry(self.gnb.telemetry()), now);
        self.drive()
    }

    fn set_queue(&mut self, ue: u8, way: LinkDirection, queue: Algorithm) -> Result<(), Violation> {
        let direction = direction(way);
        let params = BearerParams {
            pulls: self.gnb.amc().pulls(direction),
            mtu_bytes: 1_500,
            limit: LIMIT,
            seed: self.plan.seed,
            ..BearerParams::default()
        };
        let ue = format!("ue{ue}");
        self.gnb.on_timeout(self.run_state.now);
        let after = GnbCommand::Queue { ue, drb: 1, direction, queue: queue.into(), params };
        if self.gnb.apply(after, self.run_state.now).is_ok() {
            self.run_state.tally.effect("queue", 1);
        }
        self.gnb.on_command(GnbCommand::Telemetry(self.gnb.telemetry()), self.run_state.now);
        self.drive()
    }

    fn buffer_drops(&self, ue: usize, direction: Direction) -> u64 {
        let bearers = self.gnb.bearer_stats(ue as u32, direction, self.run_state.now);
        bearers.map(|bearer| bearer.buffer.full_drops + bearer.buffer.aqm_drops).sum()
    }

    /// Packets of a UE counted as dropped, and bytes buffered.
    fn dropped_and_held(&self, ue: usize, direction: Direction) -> (u64, u64) {
        let flows = self.gnb.flow_stats(ue as u32, direction);
        let (drops, waiting) = flows.fold((0, 0), |(drops, waiting), (_, flow)| {
            (drops + flow.queue.full_drops + flow.queue.aqm_drops, waiting + flow.waiting_bytes)
        });
        let bearers = self.gnb.bearer_stats(ue as u32, direction, self.run_state.now);
        let held: u64 = bearers.map(|bearer| bearer.buffer_bytes).sum();
        (drops + self.buffer_drops(ue, direction), waiting + held)
    }

    fn end_fault(&mut self, number: u64) -> Result<(), Violation> {
        let Some(kind) = self.active.end(number) else { return Ok(()) };
        self.run_state.note(|| format!("fault {number} ends: {kind:?}"));
        match kind {
            Kind::Fade { ue, way, .. } => {
                let again =
                    |other: &Kind| matches!(other, Kind::Fade { ue: u, way: w, .. } if *u == ue && *w == way);
                if self.active.kinds().any(again) {
                    return Ok(());
                }
                self.channel(ue, way, Quality::Mcs(self.plan.world.ues[usize::from(ue)].mcs))
            }
            Kind::Late if !self.is_late() => {
                let waiting = std::mem::take(&mut self.waiting);
                self.run_state.tally.effect("late", waiting.len() as u64);
                self.drive()?;
                waiting.into_iter().try_for_each(|(port, packet)| self.offer(port, packet))
            }
            _ => Ok(()),
        }
    }

    fn channel(&mut self, ue: u8, way: LinkDirection, quality: Quality) -> Result<(), Violation> {
        let channel = Channel::constant(quality);
        self.command(
            GnbCommand::Channel { ue: format!("ue{ue}"), direction: direction(way), channel },
            "fade",
        )
    }

    // ---- invariants --------------------------------------------------------------------------------------

    fn held(&self) -> Option<String> {
        let of = |ue: usize| DIRECTIONS.map(|direction| self.dropped_and_held(ue, direction).1);
        (0..self.flows.len())
            .find(|ue| of(*ue) != [0, 0])
            .map(|ue| format!("UE {ue} has {:?} bytes waiting", of(ue)))
    }

    fn after(&mut self) -> Result<(), Violation> {
        while let Some((_, number)) = self.active.next_end() {
            self.end_fault(number)?;
        }
        self.stopped = true;
        self.command(GnbCommand::Slices(slices(&self.plan.world.slices)), "shares")?;
        self.run_state.tally.count_check(Invariant::Converges);
        system::wait(self, DRAIN_TIME, Invariant::Converges, Self::held)?;
        // Blocks in the air or waiting for their turn arrive within this time.
        self.pass(Duration::from_secs(5))?;
        if self.gnb.poll_timeout().is_some_and(|(at, _)| at < self.run_state.now + Duration::from_secs(1)) {
            let what = format!("nothing is held, and the gNB is due: {:?}", self.gnb.poll_timeout());
            return Err(self.run_state.violation(Invariant::NoSpin, what));
        }
        let missed =
            DIRECTIONS.map(|direction| self.gnb.link_stats(direction, self.run_state.now).lost_blocks);
        // A receiver gives up a packet whose blocks are retransmitted while the gNB is driven late.
        let late = self.plan.faults.iter().any(|fault| fault.kind == Kind::Late);
        let air = missed != [0, 0] || (late && self.plan.world.bler_percent > 0);
        for ue in 0..self.flows.len() {
            for (way, direction) in DIRECTIONS.into_iter().enumerate() {
                let flow = &self.flows[ue][way];
                let dropped = self.dropped_and_held(ue, direction).0;
                let missing = flow.open.len() as u64;
                self.run_state.tally.count_check(Invariant::Counted);
                // If the air lost blocks, more packets are missing than were dropped.
                if missing < dropped || (!air && missing > dropped) {
                    let what = format!(
                        "UE {ue}, {direction:?}: {missing} of {} packets are missing, {dropped} are counted as dropped, {missed:?} blocks are lost",
                        flow.sent
                    );
                    return Err(self.run_state.violation(Invariant::Counted, what));
                }
            }
        }
        self.run_state.tally.effect("bler", missed[0] + missed[1]);
        Ok(())
    }
}

fn slices(shares: &[u8]) -> Vec<SliceConfig> {
    let slice = |(n, share): (usize, &u8)| SliceConfig {
        priority: n as u8,
        ..SliceConfig::new(format!("s{n}"), f64::from(*share))
    };
    shares.iter().enumerate().map(slice).collect()
}

impl system::World<Kind> for World {
    type Event = Event;

    const MOST_AT_ONE_TIME: u32 = 20_000;

    fn run_state(&self) -> &RunState {
        &self.run_state
    }

    fn course_mut(&mut self) -> &mut RunState {
        &mut self.run_state
    }

    fn next(&self) -> (Instant, Event) {
        let mut first = (Instant::MAX, Event::Hostile);
        let mut earlier = |at: Instant, event: Event| {
            if (at, event) < first {
                first = (at, event);
            }
        };
        if let Some((at, number)) = self.active.next_end() {
            earlier(at, Event::Fault(number));
        }
        if let Some((at, _)) = self.gnb.poll_timeout().filter(|_| !self.is_late()) {
            earlier(at.max(self.run_state.now), Event::Gnb);
        }
        if !self.stopped {
            for (ue, ways) in self.flows.iter().enumerate() {
                ways.iter().enumerate().for_each(|(way, flow)| earlier(flow.next, Event::Flow(ue, way)));
            }
            if self.plan.world.hostile {
                earlier(self.hostile, Event::Hostile);
            }
        }
        first
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Fault(number) => self.end_fault(number),
            Event::Gnb => {
                self.run_state.tally.count_check(Invariant::NoSpin);
                let (now, before) = (self.run_state.now, self.gnb.poll_timeout());
                self.drive()?;
                let same = self.gnb.poll_timeout().is_some_and(|(at, _)| at <= now);
                self.repeats = if same { (now, self.repeats.1 + 1) } else { (now, 0) };
                if self.repeats.1 > MAX_REPEATS {
                    return Err(self
                        .run_state
                        .violation(Invariant::NoSpin, format!("due at {now} again and again: {before:?}")));
                }
                Ok(())
            }
            Event::Flow(ue, way) => {
                let pace = self.plan.world.ues[ue].pace_us;
                let pause = Duration::from_micros(self.draw.between((1, 2 * pace)));
                self.flows[ue][way].next = self.run_state.now + pause;
                let bytes = self.draw.of(&[40, 60, 200, 700, 1_400, 1_500]);
                if self.active.kinds().any(|kind| *kind == Kind::Quiet) {
                    self.run_state.tally.effect("quiet", 1);
                    return Ok(());
                }
                self.send(ue, way, bytes)
            }
            Event::Hostile => self.attack(),
        }
    }

    fn check_invariants(&mut self) -> Result<(), Violation> {
        for (way, scheduler) in self.schedulers.into_iter().enumerate() {
            if !matches!(scheduler, InterAlgorithm::EqpExact | InterAlgorithm::EqpPaper) {
                continue;
            }
            self.run_state.tally.count_check(Invariant::Balanced);
            let balances = self.gnb.balances(DIRECTIONS[way]);
            let sum: i64 = balances.iter().map(|balance| i64::from(*balance)).sum();
            let group = i32::from(self.plan.world.rbs) / 25 + 2;
            let within = balances.iter().all(|b| (-QUANTUM_RBS..=QUANTUM_RBS + 2 * group).contains(b));
            if sum != 0 || !within {
                let what = format!("{scheduler}, {:?}: {balances:?}", DIRECTIONS[way]);
                return Err(self.run_state.violation(Invariant::Balanced, what));
            }
        }
        for ue in 0..self.flows.len() {
            for (way, direction) in DIRECTIONS.into_iter().enumerate() {
                self.run_state.tally.count_check(Invariant::Bounded);
                let (_, held) = self.dropped_and_held(ue, direction);
                if held > MAX_BEARER_BYTES {
                    let what = format!("UE {ue}, {direction:?}: {held} bytes are held");
                    return Err(self.run_state.violation(Invariant::Bounded, what));
                }
                let flow = &self.flows[ue][way];
                if flow.delivered > u64::from(flow.sent) {
                    return Err(self
                        .run_state
                        .violation(Invariant::Once, format!("UE {ue}: {} delivered", flow.delivered)));
                }
            }
        }
        Ok(())
    }

    fn begin_fault(&mut self, number: u64, fault: &Fault) -> Result<(), Violation> {
        let kind = fault.kind;
        self.run_state.begins(number, fault, kind.name());
        if kind.ue().is_some_and(|ue| usize::from(ue) >= self.flows.len()) {
            return Ok(());
        }
        let end = self.run_state.now + Duration::from_millis(fault.ms);
        match kind {
            Kind::Fade { ue, way, cqi } => {
                self.active.begin(number, end, kind);
                // As a CQI, 0 would be served at MCS 0.
                self.channel(ue, way, if cqi == 0 { Quality::Outage } else { Quality::Cqi(cqi) })
            }
            Kind::Shares { a, b } => {
                let mut shares = self.plan.world.slices.clone();
                if usize::from(a.max(b)) >= shares.len() {
                    return Ok(());
                }
                shares.swap(a.into(), b.into());
                self.command(GnbCommand::Slices(slices(&shares)), "shares")
            }
            Kind::Scheduler { way, to } => {
                self.schedulers[place(way)] = to;
                let direction = direction(way);
                self.command(GnbCommand::Scheduler { direction, scheduler: to.into() }, "scheduler")
            }
            Kind::Queue { ue, way, to } => self.set_queue(ue, way, to),
            Kind::Move { ue, slice } => {
                let (ue, slice) = (format!("ue{ue}"), format!("s{slice}"));
                self.command(GnbCommand::Move { ue, slice }, "move")
            }
            Kind::Burst { ue, packets, bytes } => {
                self.run_state.tally.effect("burst", 1);
                for way in [0, 1] {
                    (0..packets).try_for_each(|_| self.send(ue.into(), way, bytes.into()))?;
                }
                Ok(())
            }
            Kind::Late | Kind::Quiet => {
                self.active.begin(number, end, kind);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Setting;
    use super::*;

    #[test]
    fn a_fade_to_cqi_0_is_an_outage_until_it_ends() {
        let plan = <Setting as system::Setting>::of(0, 10);
        let mut world = World::new(&plan, false).unwrap();
        for (way, direction) in
            [(LinkDirection::Down, Direction::Downlink), (LinkDirection::Up, Direction::Uplink)]
        {
            let fade = |cqi| Fault { at: 0, ms: 10, kind: Kind::Fade { ue: 0, way, cqi } };
            world.begin_fault(1, &fade(0)).unwrap();
            assert_eq!(world.gnb.mcs(0, direction, Instant::ZERO), None);
            world.end_fault(1).unwrap();
            assert_eq!(world.gnb.mcs(0, direction, Instant::ZERO), Some(plan.world.ues[0].mcs));
            world.begin_fault(2, &fade(1)).unwrap();
            assert!(world.gnb.mcs(0, direction, Instant::ZERO).is_some());
            world.end_fault(2).unwrap();
        }
    }
}
