//! Holding loses no information, for any interleaving.

use super::*;
use anabranch_wire::ip::IpPacket;
use anabranch_wire::tcp::TcpView;
use proptest::prelude::*;

/// One step of a run with three flows.
#[derive(Debug, Clone)]
enum Step {
    /// The server sends this many segments.
    Data(u8),
    /// The server retransmits the first missing segment.
    Again,
    /// The UE acknowledges this many more segments.
    Advance(u8),
    /// The same, reporting this many gaps behind them, and optionally a duplicate segment.
    Tell(u8, u8, bool),
    /// The UE sends this many duplicates.
    Dup(u8),
    /// The same with this many blocks, and optionally that of a duplicate segment.
    DupBlocks(u8, bool),
    /// An ACK of an earlier time that was overtaken.
    Old,
    /// A packet that must not be held.
    News(u8),
    Pass(u16),
}

fn step() -> impl Strategy<Value = (usize, Step)> {
    let what = prop_oneof![
        3 => (1u8..20).prop_map(Step::Data),
        1 => Just(Step::Again),
        3 => (1u8..6).prop_map(Step::Advance),
        3 => (1u8..6, 1u8..4, prop::bool::weighted(0.2)).prop_map(|(n, gaps, twice)| Step::Tell(n, gaps, twice)),
        8 => (1u8..6).prop_map(Step::Dup),
        3 => (0u8..4, prop::bool::weighted(0.4)).prop_map(|(gaps, twice)| Step::DupBlocks(gaps, twice)),
        1 => Just(Step::Old),
        1 => (0u8..6).prop_map(Step::News),
        3 => (0u16..80).prop_map(Step::Pass),
    ];
    (0usize..3, what)
}

/// An uplink packet: its contents, its arrival time, and its fate.
struct Offered {
    flow: usize,
    ack: u32,
    at: Instant,
    may_wait: bool,
    header: TcpHeader,
    payload: Vec<u8>,
    len: usize,
    /// When it was forwarded, with or without its blocks.
    left: Option<Instant>,
    /// Blocks that have not been forwarded.
    unsaid: Vec<(u32, u32)>,
}

impl Offered {
    fn is_through(&self) -> bool {
        self.left.is_some() && self.unsaid.is_empty()
    }
}

struct Run {
    node: Node,
    now: Instant,
    ends: [(SocketAddr, SocketAddr); 3],
    base: u32,
    hides: bool,
    /// Newest timestamp forwarded, by flow.
    stamp: [Option<u32>; 3],
    /// Segments sent, by flow.
    sent: [u32; 3],
    /// Segments acknowledged, by flow.
    acked: [u32; 3],
    offered: Vec<Offered>,
    /// Numbers in the order of forwarding.
    order: Vec<usize>,
}

impl Run {
    fn new(config: Config, base: u32) -> Self {
        let hides = config.dida.is_some_and(|dida| dida.hide_sack);
        let end = |text: &str| text.parse::<SocketAddr>().unwrap();
        Self {
            node: Node::new(config, 3, Instant::ZERO).unwrap(),
            now: Instant::ZERO,
            ends: [
                (end("10.99.0.1:80"), end("10.45.0.2:4000")),
                (end("10.99.0.1:80"), end("10.45.0.2:4001")),
                (end("[fd00:99::1]:80"), end("[fd00:45::2]:4000")),
            ],
            base,
            hides,
            stamp: [None; 3],
            sent: [0; 3],
            acked: [0; 3],
            offered: Vec::new(),
            order: Vec::new(),
        }
    }

    fn down(&mut self, flow: usize, segment: u32) {
        let (server, ue) = self.ends[flow];
        let seq = self.base.wrapping_add(segment * 1000);
        let header = TcpHeader { seq, flags: TcpFlags::ACK, ..TcpHeader::default() };
        let mut packet = emit_packet(server, ue, &header, &[7; 1000]).unwrap();
        self.node.downlink(&mut packet, self.now);
    }

    /// Sends a packet of the UE, which is identified by its echo. Blocks are in segments.
    fn up(
        &mut self,
        flow: usize,
        segment: u32,
        blocks: &[(u32, u32)],
        change: impl FnOnce(&mut TcpHeader, &mut Vec<u8>),
    ) {
        let (server, ue) = self.ends[flow];
        let base = self.base;
        let place = |segment: u32| base.wrapping_add(segment.wrapping_mul(1000));
        let number = self.offered.len() as u32;
        let mut options = TcpOptions {
            timestamps: Some((self.base.wrapping_add(number), number)),
            ..TcpOptions::default()
        };
        for (left, right) in blocks {
            options.sack.push(place(*left), place(*right));
        }
        let (mut header, mut payload) = (
            TcpHeader { seq: 1, ack: place(segment), flags: TcpFlags::ACK, window: 900, options },
            Vec::new(),
        );
        let plain = header;
        change(&mut header, &mut payload);
        let packet = emit_packet(ue, server, &header, &payload).unwrap();
        let may_wait = header == plain && payload.is_empty();
        let (len, unsaid) = (packet.len(), header.options.sack.as_slice().to_vec());
        let at = self.now;
        self.offered.push(Offered {
            flow,
            ack: segment,
            at,
            may_wait,
            header,
            payload,
            len,
            left: None,
            unsaid,
        });
        let mut out = Vec::new();
        self.node.uplink(&mut packet.clone(), self.now, &mut Wire(&mut out));
        self.left(&out);
        if !may_wait {
            assert!(
                out.contains(&packet) || self.hides,
                "a packet that must not be held is forwarded at once, unchanged"
            );
            assert_eq!(self.offered[number as usize].left, Some(self.now));
        }
        // A sender that retransmitted needlessly must be informed at once.
        if blocks.first().is_some_and(|(_, right)| *right <= segment) {
            assert!(
                !self.offered[number as usize].unsaid.contains(&(place(blocks[0].0), place(blocks[0].1)))
            );
        }
    }

    fn left(&mut self, packets: &[Vec<u8>]) {
        for packet in packets {
            let ip = IpPacket::parse(packet).unwrap();
            let tcp = TcpView::parse(&packet[ip.payload.clone()]).unwrap();
            assert!(tcp.verifies(&ip), "a good checksum");
            let read = parse_packet(packet).unwrap();
            let (stamp, number) = read.header.options.timestamps.expect("it was offered");
            let (number, now) = (number as usize, self.now);
            let offered = &mut self.offered[number];
            // It equals the offered packet except for blocks and a timestamp that is not newer.
            let mut expected = offered.header;
            expected.options.sack = read.header.options.sack;
            expected.options.timestamps = Some((stamp, number as u32));
            assert_eq!((read.header, packet.len()), (expected, offered.len));
            assert_eq!(packet[read.payload], offered.payload);
            let own = self.base.wrapping_add(number as u32);
            assert!(stamp == own || self.hides && (stamp.wrapping_sub(own) as i32) < 0);
            let last = self.stamp[offered.flow].replace(stamp);
            assert!(last.is_none_or(|last| stamp.wrapping_sub(last) as i32 >= 0), "PAWS would drop it");
            // Each block is forwarded once. Without hiding, all leave together; otherwise in at most two parts.
            let before = offered.unsaid.len();
            let said = read.header.options.sack;
            for block in said.as_slice() {
                let place = offered.unsaid.iter().position(|unsaid| unsaid == block);
                offered.unsaid.remove(place.expect("a block is forwarded once"));
            }
            match offered.left {
                None => assert!(offered.unsaid.is_empty() || self.hides && said.as_slice().len() <= 1),
                Some(_) => {
                    assert!(self.hides && before > 0 && offered.unsaid.is_empty(), "it is forwarded once")
                }
            }
            offered.left.get_or_insert(now);
            // A duplicate SACK on its own overtakes held ACKs.
            let ack = offered.header.ack;
            let is_past =
                self.hides && matches!(said.as_slice(), [(_, right)] if ack.wrapping_sub(*right) as i32 >= 0);
            if !is_past {
                self.order.push(number);
            }
        }
    }

    fn pass(&mut self, time: Duration, hold: Duration) {
        let end = self.now + time;
        while let Some((at, _)) = self.node.poll_timeout()
            && at <= end
        {
            self.now = self.now.max(at);
            let mut out = Vec::new();
            self.node.poll(self.now, &mut Wire(&mut out));
            self.left(&out);
        }
        self.now = end;
        for (number, offered) in self.offered.iter().enumerate() {
            if !offered.is_through() && self.now.saturating_since(offered.at) > hold {
                assert!(self.superseder(number).is_some(), "held or hidden beyond its deadline");
            }
        }
    }

    /// The time at which a later ACK of the flow with a higher acknowledgment was forwarded.
    fn superseder(&self, number: usize) -> Option<Instant> {
        let old = &self.offered[number];
        let later = self.offered[number + 1..].iter();
        later.filter(|new| new.flow == old.flow && new.ack > old.ack).find_map(|new| new.left)
    }

    fn step(&mut self, flow: usize, step: Step, hold: Duration) {
        let acked = self.acked[flow];
        match step {
            Step::Data(n) => {
                for _ in 0..n {
                    self.down(flow, self.sent[flow]);
                    self.sent[flow] += 1;
                }
            }
            Step::Again if acked < self.sent[flow] => self.down(flow, acked),
            Step::Again => {}
            Step::Advance(n) => {
                let to = (acked + u32::from(n)).min(self.sent[flow]);
                self.acked[flow] = to;
                self.up(flow, to, &[], |_, _| {});
            }
            Step::Tell(n, gaps, twice) => {
                let to = (acked + u32::from(n)).min(self.sent[flow]);
                self.acked[flow] = to;
                self.up(flow, to, &blocks(to, gaps, twice), |_, _| {});
            }
            Step::Dup(n) => {
                for right in 1..=u32::from(n) {
                    self.up(flow, acked, &[(acked + right, acked + right + 1)], |_, _| {});
                }
            }
            Step::DupBlocks(gaps, twice) => self.up(flow, acked, &blocks(acked, gaps, twice), |_, _| {}),
            Step::Old => self.up(flow, acked.saturating_sub(1), &[], |_, _| {}),
            Step::News(which) => {
                self.up(flow, acked, &[(acked + 1, acked + 2)], |header, payload| match which {
                    0 => header.flags |= TcpFlags::FIN,
                    1 => header.flags |= TcpFlags::RST,
                    2 => header.flags |= TcpFlags::URG,
                    3 => payload.extend_from_slice(b"data"),
                    4 => header.window = 0,
                    _ => {
                        let mut sack = SackBlocks::default();
                        sack.push(header.ack.wrapping_sub(1000), header.ack);
                        header.options.sack = sack;
                    }
                })
            }
            Step::Pass(ms) => self.pass(Duration::from_millis(ms.into()), hold),
        }
    }
}

/// The last segment as a duplicate, and `gaps` blocks behind the next gaps; at most three blocks, because there are
/// timestamps.
fn blocks(acked: u32, gaps: u8, twice: bool) -> Vec<(u32, u32)> {
    let again = twice.then(|| (acked.wrapping_sub(1), acked));
    let behind = (0..u32::from(gaps)).rev().map(|gap| (acked + 3 * gap + 1, acked + 3 * gap + 3));
    again.into_iter().chain(behind).take(3).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn each_ack_leaves_once_in_order_or_is_superseded(
        steps in proptest::collection::vec(step(), 1..150), hold in 0u8..4, let_through in 0u16..4,
        base in prop_oneof![Just(0u32), Just(u32::MAX - 20_000), any::<u32>()],
        flows in prop_oneof![Just(100u32), 1u32..4], per_flow in 1u32..40, held in 1u32..60, hide_sack: bool,
    ) {
        let longest = Duration::from_millis(2_000);
        let (mode, limit) = match hold {
            0 => (Hold::Fixed { ms: 0.0 }, Duration::ZERO),
            1 => (Hold::Fixed { ms: 40.0 }, Duration::from_millis(40)),
            2 => (Hold::Optimal, longest),
            _ => (Hold::Adaptive, longest),
        };
        let dida = DidaConfig { let_through, hold: mode, held_per_flow: per_flow, held, hide_sack, ..DidaConfig::default() };
        let mut run = Run::new(Config { flows, dida: Some(dida), ..config(None) }, base);
        for (flow, step) in steps {
            run.step(flow, step, limit);
            prop_assert!(run.node.held_acks() <= held && run.node.flow_count() <= flows);
            prop_assert!(run.node.flows().all(|flow| flow.holding <= per_flow));
        }
        run.pass(Duration::from_secs(300), limit);
        prop_assert_eq!((run.node.held_acks(), run.node.flow_count()), (0, 0));

        // Packets leave in the order of their arrival.
        for flow in 0..3 {
            let order: Vec<usize> =
                run.order.iter().copied().filter(|number| run.offered[*number].flow == flow).collect();
            prop_assert!(order.is_sorted(), "{:?}", order);
        }
        for (number, offered) in run.offered.iter().enumerate() {
            if !offered.is_through() {
                // A packet that must not wait has been forwarded without its blocks, if it advanced.
                prop_assert!(offered.may_wait || hide_sack && offered.left == Some(offered.at));
                let superseded = run.superseder(number);
                prop_assert!(superseded.is_some_and(|at| at <= offered.at + limit), "{} of {:?}", number, superseded);
            }
        }
        let stats = run.node.stats();
        let gone = run.offered.iter().filter(|offered| !offered.is_through()).count() as u64;
        prop_assert_eq!(stats.superseded_acks, gone);
        prop_assert_eq!(stats.held + stats.hidden_gaps, stats.superseded_acks + stats.released_acks);
        prop_assert_eq!(stats.releases.iter().sum::<u64>(), stats.hold_histogram.iter().sum::<u64>());
    }

    #[test]
    fn malformed_packets_pass_unchanged(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..120), head in 0u8..4, up: bool,
    ) {
        let mut w = World::new(config(Some(50.0)), false);
        if let Some(first) = bytes.first_mut() {
            *first = [0x45, 0x60, 0x46, *first][usize::from(head)];
        }
        let mut copy = bytes.clone();
        if up {
            w.up(copy);
            prop_assert_eq!(w.out, vec![bytes]);
        } else {
            prop_assert_eq!(w.node.downlink(&mut copy, w.now), Leg::Lte);
            prop_assert_eq!(copy, bytes);
        }
        let stats = w.node.stats();
        prop_assert_eq!(stats.passed.iter().sum::<u64>(), 1);
    }
}

#[test]
fn unsteered_packets_are_counted_by_reason() {
    let mut w = World::new(config(Some(50.0)), false);
    let good = w.segment(0, 30, TcpFlags::ACK);
    let with = |at: usize, to: u8| {
        let mut packet = good.clone();
        packet[at] = to;
        packet
    };
    let cases = [
        (PassReason::Malformed, with(0, 0x44)),
        (PassReason::Malformed, with(0, 0x15)),
        (PassReason::Malformed, good[..30].to_vec()),
        (PassReason::Malformed, Vec::new()),
        (PassReason::Fragment, with(6, 0x20)),
        (PassReason::Fragment, with(7, 9)),
        (PassReason::NotTcp, with(9, 17)),
        (PassReason::BadTcp, with(32, 0x40)),
        (PassReason::BadTcp, with(32, 0xf0)),
        (PassReason::UnknownUe, with(19, 99)),
    ];
    for (reason, packet) in cases {
        let before = w.node.stats().passed[reason.index()];
        let (leg, after) = w.down(packet.clone());
        assert_eq!((leg, after), (Leg::Lte, packet), "{reason:?}");
        assert_eq!(w.node.stats().passed[reason.index()], before + 1, "{reason:?}");
    }
    // IPv6 with a hop-by-hop header in front of TCP.
    let mut w = World::new(config(Some(50.0)), true);
    let mut packet = w.segment(0, 100, TcpFlags::ACK);
    packet[6] = 0;
    packet[5] += 8;
    packet.splice(40..40, [6, 0, 1, 4, 0, 0, 0, 0]);
    assert_eq!(w.down(packet.clone()), (Leg::Lte, packet));
    assert_eq!(w.node.stats().passed[PassReason::ExtensionHeaders.index()], 1);
    // A duplicate with unreadable options.
    let mut w = World::new(config(Some(50.0)), false);
    w.handshake();
    for n in 0..5 {
        w.data(n, 1000);
    }
    w.ack(1000);
    for right in [3000, 4000] {
        w.dup(1000, 2000, right);
    }
    let mut packet = w.uplink_packet(&w.dup_header(1000, 2000, 5000), &[]);
    packet[41] = 77;
    w.up(packet.clone());
    assert_eq!((w.out.len(), w.out.last()), (4, Some(&packet)));
    assert_eq!(w.node.stats().passed[PassReason::BadOptions.index()], 1);
}
