//! A link as an IOAM node: what its queue and its medium know, written into traces that pass (RFC 9197).
//!
//! ```text
//!  packet sent ──▶ has a trace of our namespace? ──▶ hop, queue depth, snapshot ──▶ medium
//!                                                     │
//!     arrivals of the last 50 ms: rate, flows ────────┤
//!     queue: capacity, drops · medium: losses ────────┘   `anabranch_wire::ioam::Snapshot`
//! ```
//!
//! The node bridges: it leaves the hop limit as it is, and writes the one it saw. Its losses of the medium are
//! what a Wi-Fi or cellular transmitter learns from missing acknowledgements; it does not tell of the packet at
//! hand, which the receiver would see anyway.
//!
//! A link can also be the middlebox that takes telemetry off ([`Strip`]).

use super::link::LinkStats;
use crate::packet::Packet;
use crate::time::{Duration, Instant};
use anabranch_wire::ioam::{
    self, Hop, NodeData, Opaque, SNAPSHOT_SCHEMA, Snapshot, TraceKind, TraceType, TraceView,
};
use anabranch_wire::ip::FlowKey;
use anabranch_wire::tcp::blank_option;
use serde::{Deserialize, Serialize};

/// How long arrivals are measured before they are told.
const WINDOW: Duration = Duration::from_millis(50);
/// Bits of the sketch that counts flows: what two flows share is missed, 1 in 130 among 32.
const SKETCH_WORDS: usize = 64;

/// Who the node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoamNode {
    /// Node id, 24 bits.
    pub node_id: u32,
    /// IOAM namespace: traces of others are left alone.
    pub namespace: u16,
}

/// What a link takes off the packets that pass, as middleboxes do with options they do not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strip {
    /// Nothing.
    #[default]
    None,
    /// IOAM options headers.
    Traces,
    /// Reports: TCP options of kind 0x72.
    Reports,
    /// Both.
    Both,
}

/// All that one direction of a link does to telemetry.
#[derive(Debug, Clone)]
pub(super) struct Telemetry {
    pub node: Option<Node>,
    pub strip: Strip,
}

impl Telemetry {
    /// Nothing at all for a link that does nothing, so that one look tells.
    pub(super) fn new(node: Option<IoamNode>, strip: Strip) -> Option<Box<Self>> {
        (node.is_some() || strip != Strip::None).then(|| Box::new(Self { node: node.map(Node::new), strip }))
    }

    /// A packet goes to the medium.
    pub(super) fn passes(&mut self, packet: &mut Packet, at: Instant, queue: Queue, stats: &LinkStats) {
        if let Some(node) = &mut self.node {
            node.fill(packet, at, queue, stats);
        }
        if matches!(self.strip, Strip::Traces | Strip::Both)
            && ioam::trace_range(packet).is_ok_and(|trace| trace.is_some())
        {
            let mut bytes = packet.to_vec();
            // What cannot be read stays as it is. So does what is in front: a frame's header, in real time.
            if ioam::strip(&mut bytes).is_ok() {
                packet[..bytes.len()].copy_from_slice(&bytes);
                packet.truncate(bytes.len());
            }
        }
        if matches!(self.strip, Strip::Reports | Strip::Both) {
            let _ = blank_option(packet, ioam::TCP_OPTION_KIND);
        }
    }
}

/// What the queue knows when a packet leaves it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Queue {
    /// Bytes behind the packet.
    pub depth_bytes: usize,
    /// Most bytes it holds.
    pub capacity_bytes: usize,
    /// Present rate, bit/s.
    pub rate_bps: Option<u64>,
}

/// The node of one direction of a link.
#[derive(Debug, Clone)]
pub(super) struct Node {
    config: IoamNode,
    /// The window under way.
    since: Instant,
    bytes: u64,
    flows: Box<[u64; SKETCH_WORDS]>,
    /// The last whole window.
    arrival_kbps: Option<u32>,
    flow_count: Option<u16>,
}

impl Node {
    pub(super) fn new(config: IoamNode) -> Self {
        Self {
            config,
            since: Instant::ZERO,
            bytes: 0,
            flows: Box::new([0; SKETCH_WORDS]),
            arrival_kbps: None,
            flow_count: None,
        }
    }

    /// A packet was offered to the queue.
    pub(super) fn arrived(&mut self, packet: &[u8], at: Instant) {
        self.turn(at);
        self.bytes += packet.len() as u64;
        if let Ok(flow) = FlowKey::parse(packet) {
            // No secret key: a flow that hides in another's bit gains nothing it could not have by being one.
            let hash = flow.hash64((0, 0)) as usize % (64 * SKETCH_WORDS);
            self.flows[hash / 64] |= 1 << (hash % 64);
        }
    }

    /// Ends the window if its time is over.
    fn turn(&mut self, at: Instant) {
        let passed = at.saturating_since(self.since);
        if passed < WINDOW {
            return;
        }
        // Bits per millisecond are kbit/s. Silence of more than a window counts as part of it.
        let ms = passed.as_millis().max(1) as u64;
        self.arrival_kbps = Some(u32::try_from(self.bytes * 8 / ms).unwrap_or(u32::MAX - 1));
        let flows: u32 = self.flows.iter().map(|w| w.count_ones()).sum();
        self.flow_count = Some(flows.max(1) as u16);
        self.flows.fill(0);
        self.bytes = 0;
        self.since = at;
    }

    /// Fills the packet's trace, if it has one of our namespace with room.
    pub(super) fn fill(&mut self, packet: &mut [u8], at: Instant, queue: Queue, stats: &LinkStats) {
        let Ok(Some(range)) = ioam::trace_range(packet) else { return };
        let limit = packet[7];
        let option = &mut packet[range];
        let Ok(trace) = TraceView::parse(option, TraceKind::PreAllocated) else { return };
        if trace.header().namespace != self.config.namespace {
            return;
        }
        self.turn(at);
        let told = |value: usize| u32::try_from(value).unwrap_or(u32::MAX - 1);
        let snapshot = Snapshot {
            arrival_kbps: self.arrival_kbps,
            link_kbps: queue.rate_bps.map(|bps| u32::try_from(bps / 1000).unwrap_or(u32::MAX - 1)),
            capacity_bytes: Some(told(queue.capacity_bytes)),
            flows: self.flow_count,
            mcs: None,
            // Counters wrap.
            queue_drops: (stats.queue_drops + stats.overflow_drops) as u32,
            medium_losses: (stats.random_drops + stats.black_hole_drops) as u32,
        };
        let data = snapshot.emit();
        let node = NodeData {
            hop: Some(Hop { limit, node_id: Some(self.config.node_id) }),
            seconds: trace_has(&trace, TraceType::SECONDS).then_some((at.as_nanos() / 1_000_000_000) as u32),
            fraction: trace_has(&trace, TraceType::FRACTION)
                .then_some((at.as_nanos() % 1_000_000_000 / 1000) as u32),
            queue_depth: Some(told(queue.depth_bytes)),
            snapshot: Some(Opaque { schema: SNAPSHOT_SCHEMA, data: &data }),
            ..NodeData::default()
        };
        // It parsed, so the only outcome beside yes is the overflow flag.
        let _ = ioam::fill(option, &node);
    }
}

fn trace_has(trace: &TraceView<'_>, bit: TraceType) -> bool {
    trace.header().trace_type.contains(bit)
}
