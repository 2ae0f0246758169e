//! Paths and flows as they are shown: the same in tables, JSON, metrics and MQTT.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A figure that goes up and down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelView {
    /// Of the newest trace.
    pub last: u32,
    /// Smoothed: each trace moves it by an eighth.
    pub mean: u32,
    /// Highest of the last one to two windows.
    pub most: u32,
}

/// A time between two stamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyView {
    /// Of the newest trace, microseconds.
    pub last_us: u32,
    /// Smoothed, microseconds.
    pub mean_us: u32,
    /// Highest of the last one to two windows, microseconds.
    pub most_us: u32,
}

/// A node of a path. What it did not tell is `None`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HopView {
    /// Node id.
    pub node: Option<u64>,
    /// Hop limit with which packets leave it.
    pub hop_limit: Option<u8>,
    /// Id of the interface they came in by.
    pub interface_in: Option<u32>,
    /// Id of the interface they leave by.
    pub interface_out: Option<u32>,
    /// Queue behind the packet, bytes.
    pub depth_bytes: Option<LevelView>,
    /// Most bytes the queue holds.
    pub capacity_bytes: Option<u32>,
    /// What arrives at the queue, kbit/s.
    pub arrival_kbps: Option<LevelView>,
    /// What the link behind it carries, kbit/s.
    pub link_kbps: Option<LevelView>,
    /// Flows of late.
    pub flows: Option<u16>,
    /// Packets its queue dropped since the first trace.
    pub queue_drops: Option<u64>,
    /// Packets its medium lost since the first trace.
    pub medium_losses: Option<u64>,
    /// Modulation and coding scheme.
    pub mcs: Option<u8>,
    /// Part of the carrier's resource blocks that the bearer got, percent.
    pub rb_share_percent: Option<f64>,
    /// Buffer occupancy, bytes; of a cell: what waits in RLC.
    pub rlc_bytes: Option<LevelView>,
    /// How long the queue takes to leave at the link's rate, microseconds.
    pub queue_us: Option<u64>,
    /// Time in the node as it measured it, microseconds.
    pub transit_us: Option<LevelView>,
    /// From its stamp to the next node's, or to the collector.
    pub latency: Option<LatencyView>,
}

/// A path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathView {
    /// In the order of first sight, from 1.
    pub number: u64,
    /// Its nodes as people write them: `1-2-3`, `?` for one without an id.
    pub name: String,
    /// IOAM namespace.
    pub namespace: u16,
    /// Its nodes, first hop first.
    pub hops: Vec<HopView>,
    /// Which of them has the least link rate per flow; `None`: none told its rate.
    pub bottleneck: Option<usize>,
    /// Traces.
    pub traces: u64,
    /// Bytes of the packets that carried them.
    pub bytes: u64,
    /// Flows that the collector knows on it.
    pub flows_seen: u64,
    /// When it was first seen, milliseconds of the collector's clock.
    pub first_ms: u64,
    /// How long ago it was last seen, milliseconds.
    pub silent_ms: u64,
    /// Every hop told its drops and none on the way was silent: a loss without a drop was the medium's.
    pub complete: bool,
    /// A node found no room in the newest trace.
    pub overflow: bool,
    /// From the source to the first node.
    pub to_first: Option<LatencyView>,
    /// From the source to the collector.
    pub end_to_end: Option<LatencyView>,
}

/// A flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowView {
    /// Sender.
    pub source: SocketAddr,
    /// Receiver.
    pub destination: SocketAddr,
    /// IANA protocol number.
    pub protocol: u8,
    /// Number of its path.
    pub path: u64,
    /// How often that changed.
    pub path_changes: u64,
    /// Traces.
    pub traces: u64,
    /// Bytes of the packets that carried them.
    pub bytes: u64,
    /// When it was first seen, milliseconds of the collector's clock.
    pub first_ms: u64,
    /// How long ago it was last seen, milliseconds.
    pub silent_ms: u64,
    /// Packets that the source had numbered; `None`: it does not.
    pub numbered: Option<u64>,
    /// Numbers that never came.
    pub missing: Option<u64>,
    /// The sender's congestion window.
    pub cwnd_segments: Option<u32>,
    /// Its slow-start threshold; `None`: not told, or before the first loss.
    pub ssthresh_segments: Option<u32>,
    /// Its smoothed round trip, microseconds.
    pub srtt_us: Option<u32>,
    /// From the source to the collector.
    pub end_to_end: Option<LatencyView>,
}
