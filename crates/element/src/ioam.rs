//! An IOAM node (RFC 9197): what it measures of arrivals, and what it writes into traces. Links, cells, both ends of the tunnel and LWIP nodes
//! are nodes by it.
//!
//! ```text
//!   packet arrives ──▶ Node::arrived      rate and flows of the last whole 50 ms
//!   packet leaves  ──▶ Node::fill         has a trace of our namespace with room? hop, stamp, queue, snapshot
//! ```
//!
//! The node leaves the hop limit as it is, and writes the one it saw: it bridges.

use crate::time::{Duration, Instant, nanos};
use anabranch_wire::ioam::{
    self, Filled, HOP_BY_HOP, Hop, NodeData, Opaque, SNAPSHOT_SCHEMA, Snapshot, TraceKind, TraceType,
    TraceView,
};
use anabranch_wire::ip::FlowKey;
use serde::{Deserialize, Serialize};

/// How long arrivals are measured before they are told.
pub const WINDOW: Duration = Duration::from_millis(50);
/// Bits of the sketch that counts flows: what two flows share is missed, 1 in 130 among 32.
const SKETCH_WORDS: usize = 64;
/// The namespace of the kernel's own examples, and of our source.
pub const DEFAULT_NAMESPACE: u16 = 123;
/// Highest node id: all ones are none.
pub const MOST_NODE_ID: u32 = 0x00ff_fffe;

/// What people say of a node, wherever there may be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IoamConfig {
    /// Node id, 1 to 16777214.
    pub node_id: u32,
    /// IOAM namespace: traces of others are left alone.
    #[serde(default = "default_namespace")]
    pub namespace: u16,
}

const fn default_namespace() -> u16 {
    DEFAULT_NAMESPACE
}

/// A node id that is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("node_id is {0}: must be 1 to {MOST_NODE_ID}")]
pub struct BadNodeId(pub u32);

impl IoamConfig {
    /// Whether a node can be called so.
    ///
    /// # Errors
    /// It cannot.
    pub fn check(&self) -> Result<(), BadNodeId> {
        if (1..=MOST_NODE_ID).contains(&self.node_id) { Ok(()) } else { Err(BadNodeId(self.node_id)) }
    }

    /// The node; see [`IoamNode::epoch`].
    #[must_use]
    pub const fn node(&self, epoch: Duration) -> IoamNode {
        IoamNode { node_id: self.node_id, namespace: self.namespace, epoch }
    }
}

/// Packets with a trace, by what became of it. Others are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IoamStats {
    /// The node wrote into it.
    pub marked: u64,
    /// There was no room: the overflow flag is set.
    pub no_room: u64,
    /// It is of another namespace, and left as it is.
    pub other_namespace: u64,
    /// It does not hold together, and is left as it is.
    pub malformed: u64,
}

impl IoamStats {
    /// Each with its name as a metrics label.
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
pub struct NodeReport {
    /// Bytes behind the packet.
    pub depth_bytes: Option<u64>,
    /// Most bytes the queue holds.
    pub capacity_bytes: Option<u64>,
    /// What the link behind it carries at present, bit/s.
    pub link_bps: Option<u64>,
    /// Packets the queue dropped so far. Who does not know must not say 0: losses would be taken for the medium's.
    pub queue_drops: Option<u64>,
    /// Packets the medium lost so far.
    pub medium_losses: Option<u64>,
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
    stats: IoamStats,
}

/// A node of what forwards both ways: each way has its own arrivals.
#[derive(Debug, Clone)]
pub struct BothWays {
    /// Towards the data network.
    pub up: Node,
    /// Towards the device.
    pub down: Node,
}

impl BothWays {
    /// A node that has seen nothing either way.
    #[must_use]
    pub fn new(config: IoamNode) -> Self {
        Self { up: Node::new(config), down: Node::new(config) }
    }

    /// See [`IoamNode::epoch`].
    pub fn set_epoch(&mut self, epoch: Duration) {
        self.up.set_epoch(epoch);
        self.down.set_epoch(epoch);
    }

    /// Both ways together.
    #[must_use]
    pub fn stats(&self) -> IoamStats {
        let mut stats = self.up.stats();
        stats += self.down.stats();
        stats
    }
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
            stats: IoamStats::default(),
        }
    }

    /// See [`IoamNode::epoch`].
    pub fn set_epoch(&mut self, epoch: Duration) {
        self.config.epoch = epoch;
    }

    /// What became of the traces so far.
    #[must_use]
    pub const fn stats(&self) -> IoamStats {
        self.stats
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
    pub fn fill(
        &mut self,
        packet: &mut [u8],
        arrived: Instant,
        at: Instant,
        told: impl FnOnce() -> NodeReport,
    ) {
        // Most have none.
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
        let told = told();
        let short = |value: u64| u32::try_from(value).unwrap_or(u32::MAX - 1);
        // Counters wrap, and leave out what stands for unknown.
        let counter = |value: u64| (value % u64::from(u32::MAX)) as u32;
        let snapshot = Snapshot {
            arrival_kbps: self.arrival_kbps,
            link_kbps: told.link_bps.map(|bps| short(bps / 1000)),
            capacity_bytes: told.capacity_bytes.map(short),
            flows: self.flow_count,
            mcs: told.mcs,
            rb_half_percent: told.rb_half_percent,
            queue_drops: told.queue_drops.map(counter),
            medium_losses: told.medium_losses.map(counter),
        };
        let data = snapshot.emit();
        let asked = |bit| trace.header().trace_type.contains(bit);
        let stamp_us = nanos(self.config.epoch).saturating_add(arrived.as_nanos()) / 1000;
        let node = NodeData {
            hop: Some(Hop { limit, node_id: Some(self.config.node_id) }),
            seconds: asked(TraceType::SECONDS).then_some((stamp_us / 1_000_000) as u32),
            fraction: asked(TraceType::FRACTION).then_some((stamp_us % 1_000_000) as u32),
            queue_depth: told.depth_bytes.map(short),
            buffer: told.rlc_bytes.filter(|_| asked(TraceType::BUFFER)).map(short),
            snapshot: Some(Opaque { schema: SNAPSHOT_SCHEMA, data: &data }),
            ..NodeData::default()
        };
        match ioam::fill(option, &node) {
            Ok(Filled::Yes) => self.stats.marked += 1,
            Ok(Filled::NoRoom) => self.stats.no_room += 1,
            // It parsed before.
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

    fn told() -> NodeReport {
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
        node.fill(&mut packet, at, Instant::from_millis(1600), told);
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
    fn what_is_not_ours_or_does_not_hold_together_is_left_alone() {
        let mut node = Node::new(ME);
        let at = Instant::from_millis(1);
        let mut unchanged = |mut packet: Vec<u8>, stats: IoamStats| {
            let before = packet.clone();
            node.fill(&mut packet, at, at, told);
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
        // Shorter than it says; a header beyond the packet; a length of nodes that the type does not ask for.
        let whole = traced(123, TraceType::REPORTED, 9);
        for (at, value) in [(5, 0), (41, 200), (50, 0xf8), (45, 60)] {
            let mut broken = whole.clone();
            broken[at] = value;
            stats.malformed += 1;
            unchanged(broken, stats);
        }
    }

    #[test]
    fn without_room_the_overflow_flag_is_all() {
        let mut node = Node::new(ME);
        let at = Instant::from_millis(1);
        let before = traced(123, TraceType::REPORTED, 10);
        let mut packet = before.clone();
        node.fill(&mut packet, at, at, told);
        let full = packet.clone();
        node.fill(&mut packet, at, at, told);
        assert_eq!(node.stats(), IoamStats { marked: 1, no_room: 1, ..IoamStats::default() });
        let different: Vec<usize> = (0..full.len()).filter(|i| packet[*i] != full[*i]).collect();
        let start = trace_range(&packet).unwrap().unwrap().start;
        assert_eq!(different, [start + 2], "one byte, of the flags");
        assert_eq!((packet.len(), packet[start + 2] ^ full[start + 2]), (before.len(), 4));
    }

    proptest! {
        /// Damage anywhere changes nothing outside of the option, and no length.
        #[test]
        fn any_damage_is_harmless(damage in proptest::collection::vec((0usize..120, any::<u8>()), 0..6), words in 0u8..40) {
            let mut packet = traced(123, TraceType::REPORTED, words);
            damage.iter().for_each(|(at, value)| packet[*at] = *value);
            let before = packet.clone();
            let mut node = Node::new(ME);
            node.arrived(&packet, Instant::ZERO);
            node.fill(&mut packet, Instant::ZERO, Instant::ZERO, told);
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
