//! The collector: any packets, at any time, keep it within its bounds; every packet is counted once; the same again gives the
//! same.
#![no_main]

use anabranch_cc::collect::{CaptureInfo, CollectConfig, Collector};
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ioam::{
    self, Hop, NodeData, Opaque, SNAPSHOT_SCHEMA, Snapshot, TraceHeader, TraceType, emit_trace_header,
    trace_header_len,
};
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

/// A trace that holds together; chance alone does not find one.
#[derive(Debug, Arbitrary)]
struct Trace {
    namespace: u8,
    /// Which data nodes are to write.
    kind: u32,
    nodes: Vec<Node>,
    /// A byte of the header becomes another.
    damage: Option<(u8, u8)>,
}

#[derive(Debug, Arbitrary)]
struct Node {
    limit: u8,
    id: u8,
    seconds: Option<u32>,
    fraction: Option<u32>,
    depth: Option<u32>,
    buffer: Option<u32>,
    /// Arrival and link rate, capacity, drops, losses.
    snapshot: Option<[u32; 5]>,
    flows: u16,
}

impl Trace {
    /// The hop-by-hop header, with as many of the nodes as it has room for.
    fn header(&self) -> Vec<u8> {
        let of = TraceType::from_bits(TraceType::REPORTED.bits() | self.kind & 0x00ff_fffe);
        let mut header = vec![0; trace_header_len(60)];
        let trace = TraceHeader::new(self.namespace.into(), of, 60);
        if emit_trace_header(6, &trace, &mut header).is_err() {
            return header;
        }
        for node in &self.nodes {
            let data = node.snapshot.map(|[arrival, link, capacity, drops, losses]| {
                let told = Snapshot {
                    arrival_kbps: Some(arrival),
                    link_kbps: Some(link),
                    capacity_bytes: Some(capacity),
                    flows: Some(node.flows),
                    queue_drops: Some(drops),
                    medium_losses: Some(losses),
                    ..Snapshot::default()
                };
                told.emit()
            });
            let node = NodeData {
                hop: Some(Hop { limit: node.limit, node_id: Some(node.id.into()) }),
                seconds: node.seconds,
                fraction: node.fraction,
                queue_depth: node.depth,
                buffer: node.buffer,
                snapshot: data.as_ref().map(|data| Opaque { schema: SNAPSHOT_SCHEMA, data }),
                ..NodeData::default()
            };
            // Behind the beginnings of header and option; 60 units end with the header.
            let _ = ioam::fill(&mut header[8..], &node);
        }
        if let Some((at, value)) = self.damage {
            let at = usize::from(at) % header.len();
            header[at] = value;
        }
        header
    }
}

#[derive(Debug, Arbitrary)]
struct Step {
    trace: Option<Trace>,
    later_ms: u16,
    wall_us: Option<u32>,
    /// Put behind an IPv6 header with the right length and a hop-by-hop header.
    framed: bool,
    bytes: Vec<u8>,
}

fn play(steps: &[Step]) -> (Collector, Instant) {
    let config = CollectConfig { paths: 4, flows: 8, ..CollectConfig::default() };
    let mut collector = Collector::new(config);
    let mut at = Instant::ZERO;
    for step in steps {
        at += Duration::from_millis(step.later_ms.into());
        let mut packet = step.bytes.clone();
        if step.framed {
            packet.truncate(2000);
            if let Some(trace) = &step.trace {
                packet.splice(0..0, trace.header());
            }
            let length = packet.len() as u16;
            let mut front = vec![0x60, 0, 0, 0, 0, 0, 0, 63];
            front[4..6].copy_from_slice(&length.to_be_bytes());
            front.resize(40, 0xfd);
            packet.splice(0..0, front);
        }
        let wall = step.wall_us.map(|us| Duration::from_micros(us.into()));
        collector.observe_packet(&packet, CaptureInfo { at, wall, bytes: packet.len() as u32 });
        let (paths, flows) = collector.len();
        assert!(paths <= 4 && flows <= 8);
    }
    (collector, at)
}

fuzz_target!(|steps: Vec<Step>| {
    let (one, at) = play(&steps);
    let (two, _) = play(&steps);
    assert_eq!((one.paths(at), one.flows(at)), (two.paths(at), two.flows(at)));
    let c = one.counters();
    assert_eq!(c.traces + c.passed + c.malformed, steps.len() as u64);
});
