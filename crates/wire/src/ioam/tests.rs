use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

prop_compose! {
    fn any_type()(bits in 0u32..1 << 24) -> TraceType {
        let wanted = TraceType::from_bits(bits);
        if wanted.node_words() == 0 { wanted | TraceType::HOP } else { wanted }
    }
}

/// Values of a node: available fields, and all ones for unavailable ones.
#[derive(Debug, Clone)]
struct Said {
    words: [u32; 12],
    missing: u16,
    snapshot: Option<(u32, Vec<u8>)>,
}

prop_compose! {
    fn said()(
        words: [u32; 12], missing: u16,
        snapshot in proptest::option::of((0u32..0xff_ffff, vec(any::<u8>(), 0..9))),
    ) -> Said {
        let snapshot = snapshot.map(|(schema, data)| (schema, data.repeat(4)));
        Said { words: words.map(|w| w & 0x7fff_fff0), missing, snapshot }
    }
}

impl Said {
    fn node(&self, of: TraceType) -> NodeData<'_> {
        let get = |i: usize, bit| (of.contains(bit) && self.missing >> i & 1 == 0).then_some(self.words[i]);
        let pair = |i: usize, bit| of.contains(bit).then_some(self.words[i]);
        let w = &self.words;
        NodeData {
            hop: pair(0, TraceType::HOP)
                .map(|v| Hop { limit: v as u8, node_id: (self.missing & 1 == 0).then_some(v >> 8) }),
            interfaces: pair(1, TraceType::INTERFACES).map(|v| (v as u16, (v >> 16) as u16)),
            seconds: get(2, TraceType::SECONDS),
            fraction: get(3, TraceType::FRACTION),
            transit_delay: get(4, TraceType::TRANSIT_DELAY)
                .map(|ns| TransitDelay { overflow: ns & 16 != 0, ns }),
            namespace: get(5, TraceType::NAMESPACE),
            queue_depth: get(6, TraceType::QUEUE_DEPTH),
            checksum_complement: get(7, TraceType::CHECKSUM),
            hop_wide: pair(8, TraceType::HOP_WIDE).map(|v| HopWide {
                limit: v as u8,
                node_id: (self.missing & 2 == 0).then_some(u64::from(v) << 20 | 5),
            }),
            interfaces_wide: pair(9, TraceType::INTERFACES_WIDE).map(|v| (v, w[0])),
            namespace_wide: get(10, TraceType::NAMESPACE_WIDE).map(|v| u64::from(v) << 32 | 9),
            buffer: get(11, TraceType::BUFFER),
            snapshot: (self.snapshot.as_ref().filter(|_| of.contains(TraceType::SNAPSHOT)))
                .map(|(schema, data)| Opaque { schema: *schema, data }),
        }
    }
}

proptest! {
    /// Nodes fill until there is no room; exactly their data is read back, newest first.
    #[test]
    fn filled_nodes_are_read_back(namespace: u16, of in any_type(), words in 0u8..=61, said in vec(said(), 0..5)) {
        let mut out = [0xaa; 264];
        let header = TraceHeader::new(namespace, of, words);
        let len = emit_trace_header(6, &header, &mut out).unwrap();
        prop_assert!(len.is_multiple_of(8) && out[len..].iter().all(|b| *b == 0xaa));
        let option = &mut out[8..8 + TRACE_HEADER_LEN + 4 * usize::from(words)];
        let (mut kept, mut room, mut overflow) = (Vec::new(), 4 * usize::from(words), false);
        for said in &said {
            let node = said.node(of);
            let need = node.len_in(of);
            overflow |= need > room;
            let filled = fill(option, &node).unwrap();
            prop_assert_eq!(filled, if overflow { Filled::NoRoom } else { Filled::Yes });
            if !overflow {
                room -= need;
                kept.insert(0, node);
            }
        }
        let trace = TraceView::parse(option, TraceKind::PreAllocated).unwrap();
        prop_assert_eq!(*trace.header(), TraceHeader { overflow, remaining_words: (room / 4) as u8, ..header });
        prop_assert_eq!(trace.nodes().collect::<Vec<_>>(), kept);
    }

    /// The same for an incremental trace; both kinds contain the same nodes.
    #[test]
    fn pushed_nodes_are_read_back(of in any_type(), words in 0u8..=127, said in vec(said(), 0..5)) {
        let header = TraceHeader::new(7, of, words);
        let mut grows = vec![0; TRACE_HEADER_LEN];
        header.emit(&mut grows).unwrap();
        let mut fixed = vec![0; TRACE_HEADER_LEN + 4 * usize::from(words)];
        header.emit(&mut fixed).unwrap();
        for said in &said {
            let node = said.node(of);
            prop_assert_eq!(push(&mut grows, &node), fill(&mut fixed, &node));
        }
        let grown = TraceView::parse(&grows, TraceKind::Incremental).unwrap();
        let filled = TraceView::parse(&fixed, TraceKind::PreAllocated).unwrap();
        prop_assert_eq!(grown.header(), filled.header());
        prop_assert!(grown.nodes().eq(filled.nodes()));
    }

    #[test]
    fn edge_and_tcp_state_round_trip(
        namespace: u16, long: Option<bool>, n: u64, seconds: Option<u32>, fraction: Option<u32>,
        state: Option<(u32, u32, u32)>, next: u8,
    ) {
        let sequence = long.map(|l| if l { Sequence::Long(n) } else { Sequence::Short(n as u32) });
        let edge = EdgeToEdge { namespace, sequence, seconds, fraction };
        let tcp = state.map(|(cwnd, ssthresh, srtt_us)| TcpState { cwnd, ssthresh, srtt_us });
        let mut out = [0; 56];
        let len = emit_edge_header(next, &edge, tcp.as_ref(), &mut out).unwrap();
        prop_assert!(len.is_multiple_of(8) && out[0] == next && len == 8 * (usize::from(out[1]) + 1));
        let found: Vec<_> = options(&out[..len]).map(Result::unwrap).collect();
        let ExtOption::Ioam { kind: option_type::EDGE_TO_EDGE, data } = found[0] else { panic!("{found:?}") };
        prop_assert_eq!(EdgeToEdge::parse(data), Ok(edge));
        prop_assert_eq!(&found[1..], &tcp.map(ExtOption::Tcp).into_iter().collect::<Vec<_>>()[..]);
    }

    #[test]
    fn snapshots_round_trip(
        arrival in proptest::option::of(0..u32::MAX), link in proptest::option::of(0..u32::MAX),
        capacity in proptest::option::of(0..u32::MAX), flows in proptest::option::of(0..u16::MAX),
        mcs in proptest::option::of(0..u8::MAX), rb_half_percent in proptest::option::of(0u8..=200),
        queue_drops in proptest::option::of(0..u32::MAX), medium_losses in proptest::option::of(0..u32::MAX),
    ) {
        let snapshot = Snapshot {
            arrival_kbps: arrival, link_kbps: link, capacity_bytes: capacity, flows, mcs, rb_half_percent,
            queue_drops, medium_losses,
        };
        let opaque = |schema| Snapshot::parse(Opaque { schema, data: &snapshot.emit() });
        prop_assert_eq!(opaque(SNAPSHOT_SCHEMA), Ok(Some(snapshot)));
        prop_assert_eq!(opaque(1), Ok(None));
    }

    /// Decoded codes never exceed the value, and are at most 2^-10 lower.
    #[test]
    fn codes_round_down(value in 0u64..1 << 42, shift in 0u32..42) {
        let value = value >> shift;
        let back = decode(code(value)).unwrap();
        prop_assert!(back <= value && value - back <= value >> 10, "{value} {back}");
        prop_assert!(decode(code(u64::MAX)).unwrap() < 1 << 42);
    }

    #[test]
    fn feedback_keeps_what_its_fields_can_say(
        flows in 0u16..5000, complete: bool, age in 0u8..=40, queue_drops: u16, medium_losses: u16,
        hop: Option<[Option<u32>; 4]>,
    ) {
        let bottleneck = hop.map(|[l, a, d, f]| Bottleneck {
            link_kbps: l.map(u64::from), arrival_kbps: a.map(u64::from),
            depth_bytes: d.map(u64::from), free_bytes: f.map(u64::from),
        });
        let said = Feedback { flows, complete, age, queue_drops, medium_losses, bottleneck };
        let mut out = [0; FEEDBACK_LEN];
        let len = said.emit(&mut out).unwrap();
        let read = Feedback::parse(&out[..len]).unwrap().unwrap();
        prop_assert!(read.flows <= flows && u32::from(flows.min(3968) - read.flows) <= u32::from(flows) / 16);
        prop_assert_eq!((read.age, read.complete), (age.min(31), complete));
        prop_assert_eq!((read.queue_drops, read.medium_losses), (queue_drops, medium_losses));
        let rounded = |v: Option<u64>| v.map(|v| decode(code(v)).unwrap());
        prop_assert_eq!(read.bottleneck, bottleneck.map(|b| Bottleneck {
            link_kbps: rounded(b.link_kbps), arrival_kbps: rounded(b.arrival_kbps),
            depth_bytes: rounded(b.depth_bytes), free_bytes: rounded(b.free_bytes),
        }));
        // Parsed data is parsed again identically after being written.
        let again = read.emit(&mut out).unwrap();
        prop_assert_eq!(Feedback::parse(&out[..again]), Ok(Some(read)));
    }

    /// Arbitrary bytes for every parser: no panic, and what parses is written identically.
    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..200), at in 0usize..60, of in any_type()) {
        for kind in [TraceKind::PreAllocated, TraceKind::Incremental] {
            if let Ok(trace) = TraceView::parse(&bytes, kind) {
                let sum: usize = trace.nodes().map(|n| n.len_in(trace.header().trace_type)).sum();
                prop_assert!(sum <= bytes.len());
            }
        }
        let _ = (EdgeToEdge::parse(&bytes), TcpState::parse(&bytes), Feedback::parse(&bytes));
        let _ = options(&bytes).count();
        let _ = NodeData::parse(&bytes, of);
        // A packet that is valid up to its extension headers.
        let mut packet = vec![0x60; 40];
        packet[4..6].copy_from_slice(&(bytes.len() as u16).to_be_bytes());
        packet[6] = if at % 2 == 0 { HOP_BY_HOP } else { DESTINATION_OPTIONS };
        packet.extend(&bytes);
        let _ = trace_range(&packet);
        if let Ok(range) = trace_range(&packet).map(Option::unwrap_or_default) {
            let _ = fill(&mut packet[range], &NodeData::default());
        }
        let _ = strip(&mut packet);
        packet.truncate(at);
        let _ = (find_options(&packet), trace_range(&packet), strip(&mut packet));
    }
}

#[test]
fn refusals() {
    let option = |lengths: u16, kind: u32, data: usize| {
        let mut b = vec![0, 1];
        b.extend(lengths.to_be_bytes());
        b.extend(kind.to_be_bytes());
        b.resize(8 + data, 0);
        b
    };
    let why = |b: &[u8]| TraceView::parse(b, TraceKind::PreAllocated).unwrap_err().to_string();
    assert_eq!(why(&[0; 7]), "IOAM trace: needs 8 bytes, has 7");
    assert_eq!(why(&option(0, 0, 0)), "NodeLen of an IOAM trace: value 0 is not allowed");
    assert_eq!(
        why(&option(2 << 11, 0x8000_0000, 0)),
        "NodeLen of an IOAM trace: value 2 is not allowed",
        "the type says 1"
    );
    assert_eq!(why(&option(1 << 11 | 3, 0x8000_0000, 8)), "IOAM trace: needs 20 bytes, has 16");
    assert_eq!(
        why(&option(2 << 11, 0xc000_0000, 4)),
        "node data of an IOAM trace: needs 8 bytes, has 4",
        "half a node"
    );
    let mut snapshot = option(1 << 11, 0x8000_0200, 8);
    snapshot[12] = 1;
    assert_eq!(why(&snapshot), "opaque state snapshot: needs 12 bytes, has 8");

    let long = TraceHeader::new(1, TraceType::HOP, 62);
    assert_eq!(
        emit_trace_header(6, &long, &mut [0; 300]).unwrap_err().to_string(),
        "IOAM option: 258 is more than 255"
    );
    let odd = NodeData { snapshot: Some(Opaque { schema: 1, data: &[0; 3] }), ..NodeData::default() };
    assert!(odd.emit(TraceType::SNAPSHOT, &mut [0; 64]).is_err());
    assert!(EdgeToEdge::parse(&[0, 0, 0xc0, 0, 0, 0, 0, 0]).is_err(), "both sequence numbers");
    assert!(EdgeToEdge::parse(&[0, 0, 0x08, 0]).is_err(), "not defined");
    let ours = Opaque { schema: SNAPSHOT_SCHEMA, data: &[0; 20] };
    assert_eq!(
        Snapshot::parse(ours).unwrap_err().to_string(),
        "opaque state snapshot: says or must be 24 bytes, has 20"
    );
    assert_eq!(Feedback::parse(&[0x72, 12, 0, 0]), Ok(None), "TCP-INT's");
    assert!(Feedback::parse(&[0x72, 8, 0, 0x40]).is_err(), "cut off");
    let mut v4 = vec![0x45; 60];
    assert!(strip(&mut v4).is_err());
}

/// A trace inside a foreign hop-by-hop header is found after padding and foreign options.
#[test]
fn foreign_options_are_kept() {
    let mut packet = vec![0x60; 40];
    packet[4..6].copy_from_slice(&24u16.to_be_bytes());
    packet[6] = HOP_BY_HOP;
    // Router alert, then Pad1 four times, then a whole second header of destination options without IOAM.
    packet.extend([60, 0, 5, 2, 0, 0, 0, 0]);
    packet.extend([59, 0, 1, 4, 0, 0, 0, 0]);
    packet.extend([0xab; 8]);
    let before = packet.clone();
    assert_eq!(trace_range(&packet), Ok(None));
    assert_eq!(strip(&mut packet), Ok(0));
    assert_eq!(packet, before);
    let found: Vec<_> = options(&packet[40..48]).map(Result::unwrap).collect();
    assert_eq!(found, [ExtOption::Other { kind: 5, data: &[0, 0] }]);
}
