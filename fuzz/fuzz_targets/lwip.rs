//! An LWIP node: packets and rubbish from both sides, of a few flows, with every kind of hold, time that passes, and
//! changes while it runs.
//!
//! Whatever happens: no panic; what comes from the backhaul leaves by a leg, as it was but for its destination; what comes
//! from a UE leaves in the order in which it came, at most once, and not later than its hold; what never leaves was
//! superseded by an acknowledgment that did; memory is bounded; and when nothing comes any more the node falls quiet.
//! Where SACK blocks are hidden an ACK may leave in two parts: each block at most once, with a good checksum, and
//! nothing else changed but a timestamp that becomes older; what was hidden follows in time, or is superseded.
#![no_main]

use anabranch_element::time::{Duration, Instant};
use anabranch_lwip::{
    Command, Config, DidaConfig, Hold, Leg, Node, NodeSink, OtherTraffic, ProbeConfig, Steering, SwitchTo,
    UeConfig, UeSide, WifiLeg,
};
use anabranch_wire::ip::{IpPacket, protocol};
use anabranch_wire::tcp::{SackBlocks, TcpFlags, TcpHeader, TcpOptions, TcpView, emit_packet, parse_packet};
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;
use std::net::SocketAddr;

#[derive(Arbitrary, Debug)]
struct Input {
    steering: u8,
    hold: u8,
    let_through: u8,
    tunnel: bool,
    flows: u8,
    per_flow: u8,
    held: u8,
    base: u32,
    ops: Vec<Op>,
}

#[derive(Arbitrary, Debug)]
enum Op {
    Down {
        flow: u8,
        at: u16,
        len: u8,
        flags: u8,
    },
    Up {
        flow: u8,
        ack: u16,
        flags: u8,
        window: u8,
        sack: Vec<(u16, u16)>,
        len: u8,
    },
    Dup {
        flow: u8,
        right: u16,
        again: bool,
    },
    Raw {
        up: bool,
        bytes: Vec<u8>,
    },
    /// A good packet with a byte changed.
    Odd {
        up: bool,
        flow: u8,
        at: u8,
        to: u8,
    },
    Pass(u8),
    Steering(u8),
    Dida(u8),
    Other(u8),
}

const HOLD_MS: u64 = 50;

fn steering(which: u8) -> Steering {
    match which % 5 {
        0 => Steering::FixedRatio { lte_percent: f64::from(which) / 2.55 },
        1 => Steering::RttWeighted { least_percent: 5.0 },
        2 => Steering::CapacityWeighted { least_percent: 5.0, lte_mbps: 10.0, wifi_mbps: 20.0 },
        3 => Steering::Switched { to: SwitchTo::Auto, hysteresis_percent: 25.0, dwell_ms: 10 },
        _ => Steering::Switched { to: SwitchTo::Wifi, hysteresis_percent: 25.0, dwell_ms: 10 },
    }
}

/// A flow of either family.
fn ends(flow: u8) -> (SocketAddr, SocketAddr) {
    let (server, ue) = if flow & 1 == 0 {
        ("10.99.0.1:80", "10.45.0.2:4000")
    } else {
        ("[fd00:99::1]:80", "[fd00:45::2]:4000")
    };
    let (server, mut ue): (SocketAddr, SocketAddr) = (server.parse().unwrap(), ue.parse().unwrap());
    ue.set_port(4000 + u16::from(flow % 6));
    (server, ue)
}

/// The number of its 5-tuple.
fn own(flow: u8) -> u8 {
    (flow % 6) << 1 | flow & 1
}

#[derive(Default)]
struct Out {
    packets: Vec<Vec<u8>>,
    probes: Vec<Vec<u8>>,
}

impl NodeSink for Out {
    fn backhaul(&mut self, packet: &[u8]) {
        self.packets.push(packet.to_vec());
    }
    fn leg(&mut self, _: Leg, packet: &[u8]) {
        self.probes.push(packet.to_vec());
    }
}

/// The echo of packets that carry their number, in its upper half.
const MARK: u32 = 0x00A5_0000;

/// What a UE sent: when, whose, what it said, and what of it has not left.
struct Sent {
    at: Instant,
    flow: u8,
    header: TcpHeader,
    len: usize,
    pure: bool,
    left: bool,
    unsaid: Vec<(u32, u32)>,
    /// It left as a whole, or what did not was superseded.
    gone: bool,
    /// It may have been superseded by an ACK of which only a duplicate SACK has left.
    excused: bool,
}

struct Run {
    node: Node,
    now: Instant,
    sent: Vec<Sent>,
    /// First of `sent` that may still be held.
    from: usize,
    /// Newest timestamp that left, by flow.
    stamps: BTreeMap<u8, u32>,
    base: u32,
    side: UeSide,
}

impl Run {
    fn down(&mut self, packet: &[u8]) {
        let mut copy = packet.to_vec();
        let leg = self.node.downlink(&mut copy, self.now);
        if leg == Leg::Wifi {
            self.side.restore(&mut copy);
        }
        assert_eq!(copy, packet, "{leg:?}");
    }

    /// A packet that carries its number as its timestamp.
    fn up(&mut self, flow: u8, mut header: TcpHeader, len: u8) {
        let (server, ue) = ends(flow);
        let number = self.sent.len() as u32;
        header.options.timestamps = Some((number, MARK | number));
        let Ok(packet) = emit_packet(ue, server, &header, &vec![7; usize::from(len)]) else { return };
        let never = TcpFlags::SYN.0 | TcpFlags::FIN.0 | TcpFlags::RST.0 | TcpFlags::URG.0;
        let pure = len == 0 && header.flags.contains(TcpFlags::ACK) && header.flags.0 & never == 0;
        // The packet has fewer blocks than the header where options are full.
        let Ok(read) = parse_packet(&packet) else { return };
        header = read.header;
        let unsaid = header.options.sack.as_slice().to_vec();
        let (at, len) = (self.now, packet.len());
        self.sent.push(Sent {
            at,
            flow: own(flow),
            header,
            len,
            pure,
            left: false,
            unsaid,
            gone: false,
            excused: false,
        });
        let mut out = Out::default();
        self.node.uplink(&mut packet.clone(), self.now, &mut out);
        self.left(out);
    }

    /// A packet that carries no number: it passes, unless it is an ACK that may be held.
    fn rubbish(&mut self, packet: &[u8]) {
        let mut out = Out::default();
        self.node.uplink(&mut packet.to_vec(), self.now, &mut out);
        // Whatever else leaves with it was held, or waited.
        if out.packets.last().is_none_or(|last| last != packet) {
            let ip = IpPacket::parse(packet).expect("only an ACK waits");
            let tcp = TcpView::parse(&packet[ip.payload]).expect("only an ACK waits");
            assert!(tcp.flags().contains(TcpFlags::ACK) && tcp.payload_len() == 0);
        }
        self.left(out);
        if let Some((flow, ack)) = acknowledges(packet) {
            for before in &mut self.sent[self.from..] {
                before.excused |= before.flow == flow && (before.header.ack.wrapping_sub(ack) as i32) < 0;
            }
        }
    }

    fn left(&mut self, out: Out) {
        for probe in out.probes {
            if let Some(mut answer) = self.side.answer(&probe) {
                let mut out = Out::default();
                self.node.uplink(&mut answer, self.now, &mut out);
                assert!(out.packets.is_empty(), "answers are the node's");
            }
        }
        for packet in out.packets {
            // What was sent without a number, or is the answer to a probe of another node.
            let Some(number) = stamp(&packet) else { continue };
            let number = number as usize;
            let is_past = self.part(number, &packet);
            let (flow, ack) = (self.sent[number].flow, self.sent[number].header.ack);
            for before in &mut self.sent[self.from..number] {
                // What this one overtook is superseded by it, or by one that came in between and left; unless it is
                // a duplicate SACK, which goes past.
                if before.flow != flow || before.gone {
                    continue;
                }
                let is_older = (before.header.ack.wrapping_sub(ack) as i32) < 0;
                if is_past {
                    before.excused |= is_older;
                    continue;
                }
                let is_superseded = is_older && (before.pure || before.left);
                assert!(before.excused || is_superseded, "order, and nothing lost");
                before.gone = true;
            }
        }
        while self.sent.get(self.from).is_some_and(|sent| sent.gone) {
            self.from += 1;
        }
    }

    /// A packet left, as a whole or in part. Whether it is a duplicate SACK alone.
    fn part(&mut self, number: usize, packet: &[u8]) -> bool {
        let ip = IpPacket::parse(packet).expect("a packet");
        assert!(
            TcpView::parse(&packet[ip.payload.clone()]).expect("a segment").verifies(&ip),
            "a good checksum"
        );
        let read = parse_packet(packet).expect("a packet");
        let hides = self.node.config().dida.is_some_and(|dida| dida.hide_sack);
        let sent = &mut self.sent[number];
        let said = read.header.options.sack;
        let (value, echo) = read.header.options.timestamps.expect("a number");
        let mut expected = sent.header;
        expected.options.sack = said;
        expected.options.timestamps = Some((value, echo));
        assert_eq!((read.header, packet.len()), (expected, sent.len), "only blocks and the timestamp differ");
        assert!(value <= number as u32, "a timestamp becomes older only");
        let newest = self.stamps.entry(sent.flow).or_insert(value);
        assert!(*newest <= value, "no timestamp is older than one that left");
        *newest = value;
        assert!(!sent.gone && (!sent.left || !sent.unsaid.is_empty()), "it leaves once");
        for block in said.as_slice() {
            let place = sent.unsaid.iter().position(|unsaid| unsaid == block);
            sent.unsaid.remove(place.expect("a block leaves once"));
        }
        let is_part = !sent.unsaid.is_empty();
        let ends = TcpFlags::SYN.0 | TcpFlags::FIN.0 | TcpFlags::RST.0;
        let is_bare = sent.header.flags.0 & ends == 0;
        assert!(!is_part || is_bare && hides && !sent.left, "two parts at most, of ACKs without data");
        sent.left = true;
        sent.gone = !is_part;
        let twice = |right: u32| sent.header.ack.wrapping_sub(right) as i32 >= 0;
        let inner = sent.header.options.sack;
        let within = matches!(inner.as_slice(), [(l, r), (a, b), ..]
            if l.wrapping_sub(*a) as i32 >= 0 && b.wrapping_sub(*r) as i32 >= 0);
        match said.as_slice() {
            [first] if hides => inner.as_slice().first() == Some(first) && (twice(first.1) || within),
            _ => false,
        }
    }

    fn pass(&mut self, ms: u64) {
        let end = self.now + Duration::from_millis(ms);
        for _ in 0..100_000 {
            let Some((at, _)) = self.node.poll_timeout().filter(|(at, _)| *at <= end) else {
                self.now = end;
                self.check();
                return;
            };
            self.now = self.now.max(at);
            let mut out = Out::default();
            self.node.poll(self.now, &mut out);
            self.left(out);
        }
        panic!("it spins before {end}");
    }

    fn check(&self) {
        for sent in &self.sent[self.from..] {
            let age = self.now.saturating_since(sent.at);
            assert!(sent.gone || sent.excused || age <= Duration::from_millis(10_000), "held too long");
        }
        let config = self.node.config();
        assert!(self.node.flow_count() <= config.flows);
        assert!(self.node.held_acks() <= 255);
    }
}

/// Whose acknowledgment a packet of a UE is, and of what.
fn acknowledges(packet: &[u8]) -> Option<(u8, u32)> {
    let ip = IpPacket::parse(packet).ok().filter(|ip| ip.protocol == protocol::TCP)?;
    let tcp = TcpView::parse(packet.get(ip.payload.clone())?).ok()?;
    let (from, to) = tcp.ports();
    let flow = (0..6).find(|flow| {
        let (server, ue) = ends(*flow);
        (ip.src, from, ip.dst, to) == (ue.ip(), ue.port(), server.ip(), server.port())
    })?;
    tcp.flags().contains(TcpFlags::ACK).then(|| (own(flow), tcp.ack()))
}

fn stamp(packet: &[u8]) -> Option<u32> {
    let ip = IpPacket::parse(packet).ok().filter(|ip| ip.protocol == protocol::TCP)?;
    let tcp = TcpView::parse(&packet[ip.payload]).ok()?;
    tcp.options().find_map(|option| match option {
        Ok(anabranch_wire::tcp::TcpOption::Timestamps(_, echo)) if echo & 0xFFFF_0000 == MARK => {
            Some(echo & 0xFFFF)
        }
        _ => None,
    })
}

fuzz_target!(|input: Input| {
    let dida = |which: u8| {
        let hold = match which % 4 {
            0 => return None,
            1 => Hold::Fixed { ms: HOLD_MS as f64 },
            2 => Hold::Optimal,
            _ => Hold::Adaptive,
        };
        Some(DidaConfig {
            let_through: u16::from(input.let_through % 4),
            hold,
            respect_rto: which & 16 == 0,
            hide_sack: which & 32 == 0,
            held_per_flow: 1 + u32::from(input.per_flow),
            held: 1 + u32::from(input.held) % 255,
            ..DidaConfig::default()
        })
    };
    let ue = UeConfig {
        name: "ue".into(),
        addresses: vec!["10.45.0.2".parse().unwrap(), "fd00:45::2".parse().unwrap()],
        wifi: vec!["10.46.0.2".parse().unwrap(), "fd00:46::2".parse().unwrap()],
    };
    let config = Config {
        wifi_leg: if input.tunnel { WifiLeg::Tunnel } else { WifiLeg::Translate },
        steering: steering(input.steering),
        probe: Some(ProbeConfig::new(vec!["10.45.0.1".parse().unwrap()])),
        dida: dida(input.hold),
        flows: 1 + u32::from(input.flows) % 12,
        idle_s: 5,
        ues: vec![ue.clone()],
        ..Config::default()
    };
    let mut run = Run {
        node: Node::new(config, 1, Instant::ZERO).expect("it can be"),
        now: Instant::ZERO,
        sent: Vec::new(),
        from: 0,
        stamps: BTreeMap::new(),
        base: input.base,
        side: UeSide::new(&ue).expect("it can be"),
    };
    for op in input.ops.into_iter().take(400) {
        match op {
            Op::Down { flow, at, len, flags } => {
                let (server, ue) = ends(flow);
                let header = TcpHeader {
                    seq: run.base.wrapping_add(at.into()),
                    flags: TcpFlags(flags),
                    options: TcpOptions { timestamps: Some((at.into(), at.into())), ..TcpOptions::default() },
                    ..TcpHeader::default()
                };
                let packet = emit_packet(server, ue, &header, &vec![7; usize::from(len)]).expect("a packet");
                run.down(&packet);
            }
            Op::Up { flow, ack, flags, window, sack, len } => {
                let mut blocks = SackBlocks::default();
                for (left, right) in sack.into_iter().take(3) {
                    blocks.push(run.base.wrapping_add(left.into()), run.base.wrapping_add(right.into()));
                }
                let header = TcpHeader {
                    seq: 1,
                    ack: run.base.wrapping_add(ack.into()),
                    flags: TcpFlags(flags),
                    window: window.into(),
                    options: TcpOptions { sack: blocks, ..TcpOptions::default() },
                };
                run.up(flow, header, len);
            }
            Op::Dup { flow, right, again } => {
                let mut sack = SackBlocks::default();
                let end = run.base.wrapping_add(right.into());
                if again {
                    sack.push(run.base, run.base.wrapping_add(5));
                }
                sack.push(end.wrapping_sub(100), end);
                let header = TcpHeader {
                    seq: 1,
                    ack: run.base.wrapping_add(10),
                    flags: TcpFlags::ACK,
                    window: 9,
                    options: TcpOptions { sack, ..TcpOptions::default() },
                };
                run.up(flow, header, 0);
            }
            Op::Raw { up: false, bytes } => run.down(&bytes),
            Op::Raw { up: true, bytes } => {
                if stamp(&bytes).is_none() {
                    run.rubbish(&bytes);
                }
            }
            Op::Odd { up, flow, at, to } => {
                let (server, ue) = ends(flow);
                let (from, to_whom) = if up { (ue, server) } else { (server, ue) };
                let header = TcpHeader { flags: TcpFlags::ACK, ..TcpHeader::default() };
                let mut packet = emit_packet(from, to_whom, &header, b"odd").expect("a packet");
                let at = usize::from(at) % packet.len();
                if packet[at] == to {
                    continue;
                }
                packet[at] = to;
                if up {
                    if stamp(&packet).is_none() {
                        run.rubbish(&packet);
                    }
                } else {
                    run.down(&packet);
                }
            }
            Op::Pass(ms) => run.pass(ms.into()),
            Op::Steering(which) => {
                run.node.apply(Command::Steering(steering(which)), run.now).expect("it can be")
            }
            Op::Dida(which) => run.node.apply(Command::Dida(dida(which)), run.now).expect("it can be"),
            Op::Other(which) => {
                let other =
                    [OtherTraffic::Lte, OtherTraffic::Wifi, OtherTraffic::ByFlow][usize::from(which) % 3];
                run.node.apply(Command::Other(other), run.now).expect("it can be");
            }
        }
        while run.node.poll_event().is_some() {}
    }
    run.pass(20_000);
    assert_eq!((run.node.held_acks(), run.node.flow_count()), (0, 0));
});
