//! An IOAM node (RFC 9197): measures arrivals and writes data into traces. Used by links, cells, both ends of the tunnel and
//! LWIP nodes.
//!
//! ```text
//!   packet arrives ──▶ Node::arrived      rate and number of flows of the last complete 50 ms
//!   packet leaves  ──▶ Node::fill         if it has a trace of our namespace with room: hop, stamp, queue, snapshot
//! ```
//!
//! The node is a bridge: it does not decrement the hop limit, and writes the received value.

use crate::time::{Duration, Instant, nanos};
use anabranch_wire::ioam::{
    self, Filled, HOP_BY_HOP, Hop, NodeData, Opaque, SNAPSHOT_SCHEMA, Snapshot, TraceKind, TraceType,
    TraceView,
};
use anabranch_wire::ip::FlowKey;
use serde::{Deserialize, Serialize};

/// Interval over which arrivals are measured.
pub const WINDOW: Duration = Duration::from_millis(50);
/// Number of 64-bit words of the flow-counting sketch. Flows with the same bit count once: 1 in 130 among 32 flows.
const SKETCH_WORDS: usize = 64;
/// The namespace used in the Linux kernel's examples and by our IOAM source.
pub const DEFAULT_NAMESPACE: u16 = 123;
/// Highest node id; all ones mean unknown.
pub const MOST_NODE_ID: u32 = 0x00ff_fffe;

/// Configuration of an IOAM node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IoamConfig {
    /// Node id, 1 to 16777214.
    pub node_id: u32,
    /// IOAM namespace; traces of other namespaces are not changed.
    #[serde(default = "default_namespace")]
    pub namespace: u16,
}

const fn default_namespace() -> u16 {
    DEFAULT_NAMESPACE
}

/// An invalid node id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("node_id is {0}: must be 1 to {MOST_NODE_ID}")]
pub struct BadNodeId(pub u32);

impl IoamConfig {
    /// Checks the node id.
    ///
    /// # Errors
    /// The node id is invalid.
    pub fn check(&self) -> Result<(), BadNodeId> {
        if (1..=MOST_NODE_ID).contains(&self.node_id) { Ok(()) } else { Err(BadNodeId(self.node_id)) }
    }

    /// The node with this configuration; for `epoch` see [`IoamNode::epoch`].
    #[must_use]
    pub const fn node(&self, epoch: Duration) -> IoamNode {
        IoamNode { node_id: self.node_id, namespace: self.namespace, epoch }
    }
}

/// Counters of packets with a trace, by result. Packets without a trace are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IoamStats {
    /// The node's data was written.
    pub marked: u64,
    /// The trace had no room; the overflow flag was set.
    pub no_room: u64,
    /// The trace has another namespace and was not changed.
    pub other_namespace: u64,
    /// The trace is malformed and was not changed.
    pub malformed: u64,
}

impl IoamStats {
    /// Each counter with its metrics label.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let Self { marked, no_room, other_namespace, malformed } = *self;
        let all = [
            ("marked", marked),
            ("no_room", no_room),
            ("other_namespace", other_namespace),
            ("malformed", malformed),
        ];
        all.into_iter()
    }
}

impl core::ops::AddAssign for IoamStats {
    fn add_assign(&mut self, more: Self) {
        self.marked += more.marked;
        self.no_room += more.no_room;
        self.other_namespace += more.other_namespace;
        self.malformed += more.malformed;
    }
}

/// Identity of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IoamNode {
    /// Node id, 24 bits.
    pub node_id: u32,
    /// IOAM namespace; traces of other namespaces are not changed.
    pub namespace: u16,
    /// Value of the time-stamp clock at time 0; Linux uses the time since 1970. Zero in virtual time.
    pub epoch: Duration,
}

/// State of a node when a packet leaves it; `None`: unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeReport {
    /// Bytes queued behind the packet.
    pub depth_bytes: Option<u64>,
    /// Capacity of the queue in bytes.
    pub capacity_bytes: Option<u64>,
    /// Current rate of the link behind the queue, bit/s.
    pub link_bps: Option<u64>,
    /// Packets dropped by the queue so far. An unknown number must not be reported as 0, or losses would be attributed to the
    /// medium.
    pub queue_drops: Option<u64>,
    /// Packets lost by the medium so far.
    pub medium_losses: Option<u64>,
    /// Modulation and coding scheme of the radio link.
    pub mcs: Option<u8>,
    /// Recent share of the carrier's resource blocks granted to the bearer, in units of half a percent.
    pub rb_half_percent: Option<u8>,
    /// The part of the depth that is in RLC, bytes.
    pub rlc_bytes: Option<u64>,
}

/// An IOAM node; see the module documentation.
#[derive(Debug, Clone)]
pub struct Node {
    config: IoamNode,
    /// Start of the current window.
    since: Instant,
    bytes: u64,
    flows: Box<[u64; SKETCH_WORDS]>,
    /// Rate in the last complete window.
    arrival_kbps: Option<u32>,
    flow_count: Option<u16>,
    stats: IoamStats,
}

/// The node of a bidirectional forwarder: arrivals are measured separately per direction.
#[derive(Debug, Clone)]
pub struct BothWays {
    /// Towards the data network.
    pub up: Node,
    /// Towards the device.
    pub down: Node,
}

impl BothWays {
    /// A node without any measurement.
    #[must_use]
    pub fn new(config: IoamNode) -> Self {
        Self { up: Node::new(config), down: Node::new(config) }
    }

    /// See [`IoamNode::epoch`].
    pub fn set_epoch(&mut self, epoch: Duration) {
        self.up.set_epoch(epoch);
        self.down.set_epoch(epoch);
    }

    /// Counters of both directions, summed.
    #[must_use]
    pub fn stats(&self) -> IoamStats {
        let mut stats = self.up.stats();
        stats += self.down.stats();
        stats
    }
}

impl Node {
    /// A node without any measurement.
    #[must_use]
    pub fn new(config: IoamNode) -> Self {
        Self {
            config,
            since: Instant::ZERO,
            bytes: 0,
            flows: Box::new([0; SKETCH_WORDS]),
            arrival_kbps: None,
            flow_count: None,
            stats: IoamStats::default(),
        }
    }

    /// See [`IoamNode::epoch`].
    pub fn set_epoch(&mut self, epoch: Duration) {
        self.config.epoch = epoch;
    }

    /// Counters of traces.
    #[must_use]
    pub const fn stats(&self) -> IoamStats {
        self.stats
    }

    /// Records an IP packet that was offered to the queue.
    pub fn arrived(&mut self, packet: &[u8], at: Instant) {
        self.turn(at);
        self.bytes += packet.len() as u64;
        if let Ok(flow) = FlowKey::parse(packet) {
            // No secret key is needed: a flow that shares another's bit gains no more than by being part of that flow.
            let hash = flow.hash64((0, 0)) as usize % (64 * SKETCH_WORDS);
            self.flows[hash / 64] |= 1 << (hash % 64);
        }
    }

    /// Ends the window if its time has elapsed.
    fn turn(&mut self, at: Instant) {
        let passed = at.saturating_since(self.since);
        if passed < WINDOW {
            return;
        }
        // Bits per millisecond are kbit/s. A pause longer than the window is part of it.
        let ms = passed.as_millis().max(1) as u64;
        self.arrival_kbps = Some(u32::try_from(self.bytes * 8 / ms).unwrap_or(u32::MAX - 1));
        let flows: u32 = self.flows.iter().map(|w| w.count_ones()).sum();
        self.flow_count = Some(flows.max(1) as u16);
        self.flows.fill(0);
        self.bytes = 0;
        self.since = at;
    }

    /// Fills the trace of a packet that arrived at `arrived` and leaves at `at`, if it has one of our namespace with room; `report`
    /// is called only in that case. The time stamp is that of the arrival (RFC 9197 §4.4.2.3).
    pub fn fill(
        &mut self,
        packet: &mut [u8],
        arrived: Instant,
        at: Instant,
        report: impl FnOnce() -> NodeReport,
    ) {
        // Most packets have no trace.
        if packet.len() < 48 || packet[0] >> 4 != 6 || packet[6] != HOP_BY_HOP {
            return;
        }
        let range = match ioam::trace_range(packet) {
            Ok(Some(range)) => range,
            Ok(None) => return,
            Err(_) => {
                self.stats.malformed += 1;
                return;
            }
        };
        let limit = packet[7];
        let option = &mut packet[range];
        let Ok(trace) = TraceView::parse(option, TraceKind::PreAllocated) else {
            self.stats.malformed += 1;
            return;
        };
        if trace.header().namespace != self.config.namespace {
            self.stats.other_namespace += 1;
            return;
        }
        self.turn(at);
        let report = report();
        let short = |value: u64| u32::try_from(value).unwrap_or(u32::MAX - 1);
        // Counters wrap before the value that means unknown.
        let counter = |value: u64| (value % u64::from(u32::MAX)) as u32;
        let snapshot = Snapshot {
            arrival_kbps: self.arrival_kbps,
            link_kbps: report.link_bps.map(|bps| short(bps / 1000)),
            capacity_bytes: report.capacity_bytes.map(short),
            flows: self.flow_count,
            mcs: report.mcs,
            rb_half_percent: report.rb_half_percent,
            queue_drops: report.queue_drops.map(counter),
            medium_losses: report.medium_losses.map(counter),
        };
        let data = snapshot.emit();
        let asked = |bit| trace.header().trace_type.contains(bit);
        let stamp_us = nanos(self.config.epoch).saturating_add(arrived.as_nanos()) / 1000;
        let node = NodeData {
            hop: Some(Hop { limit, node_id: Some(self.config.node_id) }),
            seconds: asked(TraceType::SECONDS).then_some((stamp_us / 1_000_000) as u32),
            fraction: asked(TraceType::FRACTION).then_some((stamp_us % 1_000_000) as u32),
            queue_depth: report.depth_bytes.map(short),
            buffer: report.rlc_bytes.filter(|_| asked(TraceType::BUFFER)).map(short),
            snapshot: Some(Opaque { schema: SNAPSHOT_SCHEMA, data: &data }),
            ..NodeData::default()
        };
        match ioam::fill(option, &node) {
            Ok(Filled::Yes) => self.stats.marked += 1,
            Ok(Filled::NoRoom) => self.stats.no_room += 1,
            // Cannot happen: the option was parsed above.
            Err(_) => self.stats.malformed += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_wire::ioam::{TraceHeader, emit_trace_header, insert, trace_header_len, trace_range};
    use anabranch_wire::ip::{IpPacket, fold, pseudo_header_sum, sum};
    use anabranch_wire::tcp::{TcpHeader, emit_packet};
    use proptest::prelude::*;

    const ME: IoamNode = IoamNode { node_id: 7, namespace: 123, epoch: Duration::from_secs(1_700_000_000) };

    fn traced(namespace: u16, of: TraceType, words: u8) -> Vec<u8> {
        let (src, dst) = ("[fd00::1]:4711".parse().unwrap(), "[fd00::2]:80".parse().unwrap());
        let mut packet = emit_packet(src, dst, &TcpHeader::default(), &[7; 500]).unwrap();
        let mut header = vec![0; trace_header_len(words)];
        emit_trace_header(6, &TraceHeader::new(namespace, of, words), &mut header).unwrap();
        insert(&mut packet, HOP_BY_HOP, &header).unwrap();
        packet
    }

    fn report() -> NodeReport {
        NodeReport {
            depth_bytes: Some(3000),
            queue_drops: Some(u64::from(u32::MAX) + 4),
            ..NodeReport::default()
        }
    }

    fn checksum_is_right(packet: &[u8]) -> bool {
        let ip = IpPacket::parse(packet).unwrap();
        let tcp = &packet[ip.payload.clone()];
        fold(pseudo_header_sum(ip.src, ip.dst, ip.protocol, tcp.len()) + sum(tcp)) == 0xffff
    }

    #[test]
    fn a_packet_with_room_is_marked_and_nothing_else_of_it_changes() {
        let of = TraceType::REPORTED | TraceType::SECONDS | TraceType::FRACTION;
        let mut node = Node::new(ME);
        let before = traced(123, of, 30);
        let mut packet = before.clone();
        let at = Instant::from_millis(1500);
        node.arrived(&packet, Instant::from_millis(10));
        node.arrived(&packet, at);
        node.fill(&mut packet, at, Instant::from_millis(1600), report);
        assert_eq!(node.stats(), IoamStats { marked: 1, ..IoamStats::default() });

        let range = trace_range(&packet).unwrap().unwrap();
        assert_eq!((packet.len(), &packet[..range.start]), (before.len(), &before[..range.start]));
        assert_eq!(packet[range.end..], before[range.end..]);
        assert!(checksum_is_right(&packet));
        let trace = TraceView::parse(&packet[range], TraceKind::PreAllocated).unwrap();
        let said = trace.nodes().next().unwrap();
        assert_eq!(said.hop, Some(Hop { limit: 64, node_id: Some(7) }));
        assert_eq!((said.seconds, said.fraction), (Some(1_700_000_001), Some(500_000)), "when it came");
        assert_eq!(said.queue_depth, Some(3000));
        let snapshot = Snapshot::parse(said.snapshot.unwrap()).unwrap().unwrap();
        assert_eq!(
            (snapshot.queue_drops, snapshot.medium_losses),
            (Some(4), None),
            "a counter skips all ones"
        );
        assert_eq!((snapshot.capacity_bytes, snapshot.flows), (None, Some(1)));
        assert!(snapshot.arrival_kbps.is_some() && trace.nodes().count() == 1);
    }

    #[test]
    fn other_namespaces_and_malformed_traces_are_not_changed() {
        let mut node = Node::new(ME);
        let at = Instant::from_millis(1);
        let mut unchanged = |mut packet: Vec<u8>, stats: IoamStats| {
            let before = packet.clone();
            node.fill(&mut packet, at, at, report);
            assert_eq!((packet, node.stats()), (before, stats));
        };
        let mut stats = IoamStats::default();
        // IPv4, IPv6 without options, and another option.
        unchanged(vec![0x45; 60], stats);
        let plain = emit_packet(
            "[fd00::1]:1".parse().unwrap(),
            "[fd00::2]:2".parse().unwrap(),
            &TcpHeader::default(),
            &[],
        );
        unchanged(plain.unwrap(), stats);
        let mut other = traced(123, TraceType::REPORTED, 9);
        other[44] = 0x1e;
        unchanged(other, stats);
        stats.other_namespace = 1;
        unchanged(traced(124, TraceType::REPORTED, 9), stats);
        // Truncated, with a header beyond the packet, and with a node length that does not match the type.
        let whole = traced(123, TraceType::REPORTED, 9);
        for (at, value) in [(5, 0), (41, 200), (50, 0xf8), (45, 60)] {
            let mut broken = whole.clone();
            broken[at] = value;
            stats.malformed += 1;
            unchanged(broken, stats);
        }
    }

    #[test]
    fn without_room_only_the_overflow_flag_is_set() {
        let mut node = Node::new(ME);
        let at = Instant::from_millis(1);
        let before = traced(123, TraceType::REPORTED, 10);
        let mut packet = before.clone();
        node.fill(&mut packet, at, at, report);
        let full = packet.clone();
        node.fill(&mut packet, at, at, report);
        assert_eq!(node.stats(), IoamStats { marked: 1, no_room: 1, ..IoamStats::default() });
        let different: Vec<usize> = (0..full.len()).filter(|i| packet[*i] != full[*i]).collect();
        let start = trace_range(&packet).unwrap().unwrap().start;
        assert_eq!(different, [start + 2], "one byte, of the flags");
        assert_eq!((packet.len(), packet[start + 2] ^ full[start + 2]), (before.len(), 4));
    }

    proptest! {
        /// Any damage causes no change outside the option, nor of its length.
        #[test]
        fn any_damage_is_harmless(damage in proptest::collection::vec((0usize..120, any::<u8>()), 0..6), words in 0u8..40) {
            let mut packet = traced(123, TraceType::REPORTED, words);
            damage.iter().for_each(|(at, value)| packet[*at] = *value);
            let before = packet.clone();
            let mut node = Node::new(ME);
            node.arrived(&packet, Instant::ZERO);
            node.fill(&mut packet, Instant::ZERO, Instant::ZERO, report);
            prop_assert_eq!(packet.len(), before.len());
            let range = trace_range(&before).ok().flatten().unwrap_or(0..0);
            prop_assert_eq!(&packet[..range.start], &before[..range.start]);
            prop_assert_eq!(&packet[range.end..], &before[range.end..]);
            if node.stats().malformed > 0 || node.stats().other_namespace > 0 {
                prop_assert_eq!(packet, before);
            }
        }
    }
}
