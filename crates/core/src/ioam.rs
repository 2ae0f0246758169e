//! An IOAM node (RFC 9197): what it measures of arrivals, and its pen. A link and a cell are nodes by it.
//!
//! ```text
//!   packet arrives ──▶ Node::arrived      rate and flows of the last whole 50 ms
//!   packet leaves  ──▶ Node::fill         has a trace of our namespace with room? hop, stamp, queue, snapshot
//! ```
//!
//! The node leaves the hop limit as it is, and writes the one it saw: it bridges.

use crate::time::{Duration, Instant, nanos};
use anabranch_wire::ioam::{
    self, Hop, NodeData, Opaque, SNAPSHOT_SCHEMA, Snapshot, TraceKind, TraceType, TraceView,
};
use anabranch_wire::ip::FlowKey;

/// How long arrivals are measured before they are told.
pub const WINDOW: Duration = Duration::from_millis(50);
/// Bits of the sketch that counts flows: what two flows share is missed, 1 in 130 among 32.
const SKETCH_WORDS: usize = 64;
/// The namespace of the kernel's own examples, and of our source.
pub const DEFAULT_NAMESPACE: u16 = 123;
/// Highest node id: all ones are none.
pub const MOST_NODE_ID: u32 = 0x00ff_fffe;

/// Who the node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IoamNode {
    /// Node id, 24 bits.
    pub node_id: u32,
    /// IOAM namespace: traces of others are left alone.
    pub namespace: u16,
    /// What the clock of time stamps says when ours says 0; Linux stamps with the time since 1970. Zero in virtual time.
    pub epoch: Duration,
}

/// What a node tells when a packet leaves it. `None`: it does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Told {
    /// Bytes behind the packet.
    pub depth_bytes: u64,
    /// Most bytes the queue holds.
    pub capacity_bytes: u64,
    /// What the link behind it carries at present, bit/s.
    pub link_bps: Option<u64>,
    /// Packets the queue dropped so far.
    pub queue_drops: u64,
    /// Packets the medium lost so far.
    pub medium_losses: u64,
    /// Modulation and coding scheme of the radio link.
    pub mcs: Option<u8>,
    /// Resource blocks the bearer got of late, half percents of the carrier's.
    pub rb_half_percent: Option<u8>,
    /// Of the depth, the bytes in RLC.
    pub rlc_bytes: Option<u64>,
}

/// See the top of this file.
#[derive(Debug, Clone)]
pub struct Node {
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
    /// A node that has seen nothing.
    #[must_use]
    pub fn new(config: IoamNode) -> Self {
        Self {
            config,
            since: Instant::ZERO,
            bytes: 0,
            flows: Box::new([0; SKETCH_WORDS]),
            arrival_kbps: None,
            flow_count: None,
        }
    }

    /// See [`IoamNode::epoch`].
    pub fn set_epoch(&mut self, epoch: Duration) {
        self.config.epoch = epoch;
    }

    /// An IP packet was offered to the queue.
    pub fn arrived(&mut self, packet: &[u8], at: Instant) {
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

    /// A packet that came at `arrived` leaves at `at`: fills its trace, if it has one of our namespace with room; `told` is
    /// asked for only then. The stamp is that of its coming (RFC 9197 §4.4.2.3).
    pub fn fill(&mut self, packet: &mut [u8], arrived: Instant, at: Instant, told: impl FnOnce() -> Told) {
        let Ok(Some(range)) = ioam::trace_range(packet) else { return };
        let limit = packet[7];
        let option = &mut packet[range];
        let Ok(trace) = TraceView::parse(option, TraceKind::PreAllocated) else { return };
        if trace.header().namespace != self.config.namespace {
            return;
        }
        self.turn(at);
        let told = told();
        let short = |value: u64| u32::try_from(value).unwrap_or(u32::MAX - 1);
        let snapshot = Snapshot {
            arrival_kbps: self.arrival_kbps,
            link_kbps: told.link_bps.map(|bps| short(bps / 1000)),
            capacity_bytes: Some(short(told.capacity_bytes)),
            flows: self.flow_count,
            mcs: told.mcs,
            rb_half_percent: told.rb_half_percent,
            // Counters wrap.
            queue_drops: told.queue_drops as u32,
            medium_losses: told.medium_losses as u32,
        };
        let data = snapshot.emit();
        let asked = |bit| trace.header().trace_type.contains(bit);
        let stamp_us = nanos(self.config.epoch).saturating_add(arrived.as_nanos()) / 1000;
        let node = NodeData {
            hop: Some(Hop { limit, node_id: Some(self.config.node_id) }),
            seconds: asked(TraceType::SECONDS).then_some((stamp_us / 1_000_000) as u32),
            fraction: asked(TraceType::FRACTION).then_some((stamp_us % 1_000_000) as u32),
            queue_depth: Some(short(told.depth_bytes)),
            buffer: told.rlc_bytes.filter(|_| asked(TraceType::BUFFER)).map(short),
            snapshot: Some(Opaque { schema: SNAPSHOT_SCHEMA, data: &data }),
            ..NodeData::default()
        };
        // It parsed, so the only outcome beside yes is the overflow flag.
        let _ = ioam::fill(option, &node);
    }
}
