//! IOAM as others see it: packets that scapy built and tshark dissected (`tests/vectors/ioam.py` makes them
//! anew) read the same here, and are written byte for byte the same.

use anabranch_wire::ioam::{
    self, EdgeToEdge, ExtOption, NodeData, Sequence, Snapshot, TcpState, TraceHeader, TraceKind, TraceView,
};
use std::collections::BTreeMap;

struct Vector {
    name: String,
    packet: Vec<u8>,
    tshark: BTreeMap<String, String>,
}

fn vectors() -> Vec<Vector> {
    let mut all: Vec<Vector> = Vec::new();
    for line in include_str!("vectors/ioam.txt").lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["vector", name, hex] => {
                let byte = |i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap();
                let packet = (0..hex.len()).step_by(2).map(byte).collect();
                all.push(Vector { name: name.into(), packet, tshark: BTreeMap::new() });
            }
            ["tshark", field, value] => {
                all.last_mut().unwrap().tshark.insert(field.into(), value.into());
            }
            _ => assert!(line.starts_with('#'), "{line}"),
        }
    }
    assert!(all.len() >= 8);
    all
}

fn find(name: &str) -> Vec<u8> {
    vectors().into_iter().find(|v| v.name == name).unwrap().packet
}

/// What we read, in tshark's field names and notation.
fn as_tshark(trace: &TraceView<'_>) -> BTreeMap<String, String> {
    let header = trace.header();
    let mut fields = BTreeMap::<String, Vec<String>>::new();
    let mut say = |field: &str, value: String| fields.entry(field.into()).or_default().push(value);
    say("ns", header.namespace.to_string());
    say("nodelen", header.trace_type.node_words().to_string());
    say("flag.o", u8::from(header.overflow).to_string());
    say("remlen", header.remaining_words.to_string());
    say("type", format!("{:#08x}", header.trace_type.bits()));
    // tshark shows what is not available as the ones it is on the wire.
    let has = |bit| header.trace_type.contains(bit);
    for node in trace.nodes() {
        let word = |v: Option<u32>| format!("{:#010x}", v.unwrap_or(u32::MAX));
        if let Some(hop) = node.hop {
            say("node.hlim", hop.limit.to_string());
            say("node.id", format!("{:#08x}", hop.node_id.unwrap_or(0xff_ffff)));
        }
        if let Some((i, o)) = node.interfaces {
            say("node.iif", format!("{i:#06x}"));
            say("node.eif", format!("{o:#06x}"));
        }
        let delay = node.transit_delay.map(|d| u32::from(d.overflow) << 31 | d.ns);
        for (bit, field, value) in [
            (ioam::TraceType::SECONDS, "node.tss", node.seconds),
            (ioam::TraceType::FRACTION, "node.tsf", node.fraction),
            (ioam::TraceType::TRANSIT_DELAY, "node.trdelay", delay),
            (ioam::TraceType::NAMESPACE, "node.nsdata", node.namespace),
            (ioam::TraceType::QUEUE_DEPTH, "node.qdepth", node.queue_depth),
            (ioam::TraceType::CHECKSUM, "node.csum", node.checksum_complement),
            (ioam::TraceType::BUFFER, "node.bufoccup", node.buffer),
        ] {
            if has(bit) {
                say(field, word(value));
            }
        }
        if let Some(hop) = node.hop_wide {
            say("node.hlim", hop.limit.to_string());
            say("node.id_wide", format!("{:#018x}", hop.node_id.unwrap_or(0xff_ffff_ffff_ffff)));
        }
        if let Some((i, o)) = node.interfaces_wide {
            say("node.iif_wide", format!("{i:#010x}"));
            say("node.eif_wide", format!("{o:#010x}"));
        }
        if let Some(value) = node.namespace_wide {
            say("node.nsdata_wide", format!("{value:#018x}"));
        }
        if has(ioam::TraceType::SNAPSHOT) {
            let (schema, data) = node.snapshot.map_or((0xff_ffff, &[][..]), |s| (s.schema, s.data));
            say("node.oss.len", (data.len() / 4).to_string());
            say("node.oss.scid", format!("{schema:#08x}"));
            if !data.is_empty() {
                say("node.oss.data", data.iter().map(|b| format!("{b:02x}")).collect());
            }
        }
    }
    fields.into_iter().map(|(field, values)| (field, values.join(","))).collect()
}

#[test]
fn tshark_reads_the_same() {
    let mut traces = 0;
    for Vector { name, packet, tshark } in vectors() {
        let Some(range) = ioam::trace_range(&packet).unwrap() else {
            assert!(tshark.is_empty(), "{name}");
            continue;
        };
        let trace = TraceView::parse(&packet[range], TraceKind::PreAllocated).unwrap();
        assert_eq!(as_tshark(&trace), tshark, "{name}");
        traces += 1;
    }
    assert_eq!(traces, 6);
}

/// From a packet without extension headers and what its nodes said, the vector's very bytes.
#[test]
fn scapy_writes_the_same() {
    let mut filled = 0;
    for Vector { name, packet, .. } in vectors() {
        let mut bare = packet.clone();
        assert!(ioam::strip(&mut bare).unwrap() > 0, "{name}");
        assert!(bare.ends_with(b"payload") && bare.len() == 40 + 20 + 7 && bare[6] == 6, "{name}");
        assert_eq!(ioam::strip(&mut bare), Ok(0));

        let found = ioam::find_options(&packet).unwrap();
        let mut again = bare;
        for (kind, range) in found.into_iter().flatten().rev() {
            let header = &packet[range];
            let options: Vec<_> = ioam::options(header).map(Result::unwrap).collect();
            let mut out = [0xee; 264];
            let len = match options[..] {
                [ExtOption::Ioam { kind: ioam::option_type::PRE_ALLOCATED, data }] => {
                    filled += 1;
                    let trace = TraceView::parse(data, TraceKind::PreAllocated).unwrap();
                    let words = ((data.len() - ioam::TRACE_HEADER_LEN) / 4) as u8;
                    let empty = TraceHeader {
                        overflow: false,
                        ..TraceHeader::new(trace.header().namespace, trace.header().trace_type, words)
                    };
                    let len = ioam::emit_trace_header(again[6], &empty, &mut out).unwrap();
                    assert_eq!(len, ioam::trace_header_len(words));
                    let nodes: Vec<NodeData<'_>> = trace.nodes().collect();
                    for node in nodes.iter().rev() {
                        let option = &mut out[8..8 + data.len()];
                        assert_eq!(ioam::fill(option, node), Ok(ioam::Filled::Yes), "{name}");
                    }
                    if trace.header().overflow {
                        let option = &mut out[8..8 + data.len()];
                        assert_eq!(ioam::fill(option, &nodes[0]), Ok(ioam::Filled::NoRoom), "{name}");
                    }
                    len
                }
                [ExtOption::Ioam { kind: ioam::option_type::EDGE_TO_EDGE, data }, ref rest @ ..] => {
                    let edge = EdgeToEdge::parse(data).unwrap();
                    let tcp = match rest {
                        [ExtOption::Tcp(state)] => Some(state),
                        _ => None,
                    };
                    ioam::emit_edge_header(again[6], &edge, tcp, &mut out).unwrap()
                }
                _ => panic!("{name}: {options:?}"),
            };
            ioam::insert(&mut again, kind, &out[..len]).unwrap();
        }
        assert_eq!(again, packet, "{name}");
    }
    assert_eq!(filled, 6);
}

#[test]
fn what_the_vectors_say() {
    let packet = find("snapshots");
    let range = ioam::trace_range(&packet).unwrap().unwrap();
    let trace = TraceView::parse(&packet[range], TraceKind::PreAllocated).unwrap();
    let nodes: Vec<_> = trace.nodes().collect();
    assert_eq!(nodes[0].queue_depth, Some(70_000));
    let ours = Snapshot::parse(nodes[0].snapshot.unwrap()).unwrap().unwrap();
    let expected = Snapshot {
        arrival_kbps: Some(19_500),
        link_kbps: Some(20_000),
        capacity_bytes: Some(150_000),
        flows: Some(2),
        mcs: None,
        rb_half_percent: None,
        queue_drops: Some(17),
        medium_losses: Some(1234),
    };
    assert_eq!(ours, expected);
    assert_eq!(ours.emit(), *nodes[0].snapshot.unwrap().data);
    assert_eq!(Snapshot::parse(nodes[1].snapshot.unwrap()), Ok(None), "another schema");
    assert_eq!(nodes[1].queue_depth, None);
    assert_eq!(nodes[2].snapshot, None);

    let packet = find("edge-with-tcp");
    let [Some((60, range)), None] = ioam::find_options(&packet).unwrap() else { panic!() };
    let options: Vec<_> = ioam::options(&packet[range]).map(Result::unwrap).collect();
    let ExtOption::Ioam { kind: 3, data } = options[0] else { panic!("{options:?}") };
    let edge = EdgeToEdge::parse(data).unwrap();
    assert_eq!(edge.sequence, Some(Sequence::Long(1 << 40)));
    assert_eq!((edge.namespace, edge.seconds, edge.fraction), (123, Some(1_700_000_000), Some(5)));
    let state = TcpState { cwnd: 42, ssthresh: u32::MAX, srtt_us: 20_500 };
    assert_eq!(options[1..], [ExtOption::Tcp(state)]);
}
