//! Representation of paths and flows, common to tables, JSON, metrics and MQTT.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// Values of a gauge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GaugeView {
    /// Value in the newest trace.
    pub last: u32,
    /// Mean; each trace contributes 1/8.
    pub mean: u32,
    /// Maximum of the last one to two windows.
    pub most: u32,
}

/// A time between two stamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyView {
    /// Value of the newest trace, microseconds.
    pub last_us: u32,
    /// Mean, microseconds.
    pub mean_us: u32,
    /// Maximum of the last one to two windows, microseconds.
    pub most_us: u32,
}

/// A node of a path. Values that it did not report are `None`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HopView {
    /// Node id.
    pub node: Option<u64>,
    /// Hop limit written by the node.
    pub hop_limit: Option<u8>,
    /// Id of the ingress interface.
    pub interface_in: Option<u32>,
    /// Id of the egress interface.
    pub interface_out: Option<u32>,
    /// Queue depth behind the packet, bytes.
    pub depth_bytes: Option<GaugeView>,
    /// Capacity of the queue, bytes.
    pub capacity_bytes: Option<u32>,
    /// Arrival rate at the queue, kbit/s.
    pub arrival_kbps: Option<GaugeView>,
    /// Rate of the link behind the queue, kbit/s.
    pub link_kbps: Option<GaugeView>,
    /// Number of recently active flows.
    pub flows: Option<u16>,
    /// Packets dropped by its queue since the first trace.
    pub queue_drops: Option<u64>,
    /// Packets lost by its medium since the first trace.
    pub medium_losses: Option<u64>,
    /// Modulation and coding scheme.
    pub mcs: Option<u8>,
    /// Share of the carrier's resource blocks granted to the bearer, percent.
    pub rb_share_percent: Option<f64>,
    /// Buffer occupancy, bytes; for a cell, the bytes in RLC.
    pub rlc_bytes: Option<GaugeView>,
    /// Time to drain the queue at the link rate, microseconds.
    pub queue_us: Option<u64>,
    /// Transit delay measured by the node, microseconds.
    pub transit_us: Option<GaugeView>,
    /// Time from its stamp to that of the next node, or to the collector.
    pub latency: Option<LatencyView>,
}

/// State of a path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathView {
    /// Number in the order of first sight, from 1.
    pub number: u64,
    /// The node ids as text: `1-2-3`, `?` for a node without id.
    pub name: String,
    /// IOAM namespace.
    pub namespace: u16,
    /// Its nodes, first hop first.
    pub hops: Vec<HopView>,
    /// Index of the node with the smallest link rate per flow; `None` if no node reported its rate.
    pub bottleneck: Option<usize>,
    /// Traces received.
    pub traces: u64,
    /// Bytes of the packets with these traces.
    pub bytes: u64,
    /// Number of flows on the path known to the collector.
    pub flows_seen: u64,
    /// When the path was first seen, milliseconds of the collector's clock.
    pub first_ms: u64,
    /// Time since it was last seen, milliseconds.
    pub silent_ms: u64,
    /// Every hop reported its drops and no hop is without telemetry: a loss without a drop occurred on the medium.
    pub complete: bool,
    /// A node found no room in the newest trace.
    pub overflow: bool,
    /// Latency from the source to the first node.
    pub to_first: Option<LatencyView>,
    /// Latency from the source to the collector.
    pub end_to_end: Option<LatencyView>,
}

/// State of a flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowView {
    /// Sender.
    pub source: SocketAddr,
    /// Receiver.
    pub destination: SocketAddr,
    /// IANA protocol number.
    pub protocol: u8,
    /// Number of the flow's path.
    pub path: u64,
    /// Number of times that the flow moved to another path.
    pub path_changes: u64,
    /// Traces received.
    pub traces: u64,
    /// Bytes of the packets with these traces.
    pub bytes: u64,
    /// When the flow was first seen, milliseconds of the collector's clock.
    pub first_ms: u64,
    /// Time since it was last seen, milliseconds.
    pub silent_ms: u64,
    /// Packets with a sequence number of the source; `None` if the source does not number them.
    pub numbered: Option<u64>,
    /// Sequence numbers that were not seen.
    pub missing: Option<u64>,
    /// Congestion window of the sender, segments.
    pub cwnd_segments: Option<u32>,
    /// Slow-start threshold of the sender, segments; `None`: not reported, or before the first loss.
    pub ssthresh_segments: Option<u32>,
    /// Smoothed RTT of the sender, microseconds.
    pub srtt_us: Option<u32>,
    /// Latency from the source to the collector.
    pub end_to_end: Option<LatencyView>,
}
