//! OpenAPI schemas of paths and flows. They mirror the types of `cc::collect`, which do not depend on utoipa;
//! a test keeps the two consistent.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A value that varies over time.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = IntGauge)]
#[serde(deny_unknown_fields)]
pub struct GaugeSchema {
    /// Value in the newest trace.
    last: u32,
    /// Moving average: each trace contributes an eighth.
    mean: u32,
    /// Maximum of the last one to two windows.
    most: u32,
}

/// The difference of two time stamps.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = IntLatency)]
#[serde(deny_unknown_fields)]
pub struct LatencySchema {
    /// Value in the newest trace, microseconds.
    last_us: u32,
    /// Moving average, microseconds.
    mean_us: u32,
    /// Maximum of the last one to two windows, microseconds.
    most_us: u32,
}

/// A node of a path. Values that the node does not report are null.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = IntHop)]
#[serde(deny_unknown_fields)]
pub struct HopSchema {
    /// Node id.
    node: Option<u64>,
    /// Hop limit of packets that leave the node.
    hop_limit: Option<u8>,
    /// Id of the ingress interface.
    interface_in: Option<u32>,
    /// Id of the egress interface.
    interface_out: Option<u32>,
    /// Queue length behind the packet, bytes.
    depth_bytes: Option<GaugeSchema>,
    /// Capacity of the queue, bytes.
    capacity_bytes: Option<u32>,
    /// Arrival rate at the queue, kbit/s.
    arrival_kbps: Option<GaugeSchema>,
    /// Rate of the link behind the queue, kbit/s.
    link_kbps: Option<GaugeSchema>,
    /// Number of recent flows, as counted by the node.
    flows: Option<u16>,
    /// Packets dropped by the node's queue since the first trace.
    queue_drops: Option<u64>,
    /// Packets lost by the node's medium since the first trace.
    medium_losses: Option<u64>,
    /// Modulation and coding scheme.
    mcs: Option<u8>,
    /// Share of the carrier's resource blocks that the bearer received, percent.
    rb_share_percent: Option<f64>,
    /// Buffer occupancy, bytes; for a cell: data waiting in RLC.
    rlc_bytes: Option<GaugeSchema>,
    /// Time in which the queue drains at the link's rate, microseconds.
    queue_us: Option<u64>,
    /// Time in the node as measured by the node, microseconds.
    transit_us: Option<GaugeSchema>,
    /// From the node's time stamp to the time stamp of the next node or of the collector.
    latency: Option<LatencySchema>,
}

/// A path: a sequence of nodes on which traces were collected.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = IntPath)]
#[serde(deny_unknown_fields)]
pub struct PathSchema {
    /// Number of the path, from 1, in the order in which paths were first seen.
    number: u64,
    /// The nodes in short form: `1-2-3`, with `?` for a node without an id.
    name: String,
    /// IOAM namespace.
    namespace: u16,
    /// The nodes, first hop first.
    hops: Vec<HopSchema>,
    /// Index (from 0) of the hop with the lowest link rate per flow; null if no hop reports its rate.
    bottleneck: Option<u64>,
    /// Number of traces.
    traces: u64,
    /// Bytes of the packets with these traces.
    bytes: u64,
    /// Number of flows on the path that the collector knows.
    flows_seen: u64,
    /// Time at which it was first seen, milliseconds of the collector's clock.
    first_ms: u64,
    /// Time since it was last seen, milliseconds.
    silent_ms: u64,
    /// True if every hop reports its drops and no hop lacks telemetry: then a loss without a drop was a loss
    /// of the medium.
    complete: bool,
    /// True if a node found no room in the newest trace.
    overflow: bool,
    /// Latency from the source to the first node.
    to_first: Option<LatencySchema>,
    /// Latency from the source to the collector.
    end_to_end: Option<LatencySchema>,
}

/// A flow from which traces were collected.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = IntFlow)]
#[serde(deny_unknown_fields)]
pub struct FlowSchema {
    /// Sender, `ADDRESS:PORT`.
    #[schema(example = "[fd00::1]:4711")]
    source: String,
    /// Receiver, `ADDRESS:PORT`.
    #[schema(example = "[fd00::2]:5201")]
    destination: String,
    /// IANA protocol number.
    protocol: u8,
    /// Number of its path.
    path: u64,
    /// Number of changes of the path.
    path_changes: u64,
    /// Number of traces.
    traces: u64,
    /// Bytes of the packets with these traces.
    bytes: u64,
    /// Time at which it was first seen, milliseconds of the collector's clock.
    first_ms: u64,
    /// Time since it was last seen, milliseconds.
    silent_ms: u64,
    /// Packets numbered by the source; null if the source does not number packets.
    numbered: Option<u64>,
    /// Numbers that did not arrive.
    missing: Option<u64>,
    /// Congestion window of the sender, segments.
    cwnd_segments: Option<u32>,
    /// Slow-start threshold of the sender, segments; null if not reported, or before the first loss.
    ssthresh_segments: Option<u32>,
    /// Smoothed round-trip time of the sender, microseconds.
    srtt_us: Option<u32>,
    /// Latency from the source to the collector.
    end_to_end: Option<LatencySchema>,
}

/// Counters of a collector.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = IntCounters)]
#[serde(deny_unknown_fields)]
pub struct CountersSchema {
    /// Packets whose trace was evaluated.
    traces: u64,
    /// Packets without a usable trace: no trace, another namespace, or not filled by any node.
    passed: u64,
    /// Packets with inconsistent headers or options.
    malformed: u64,
    /// Traces in which a node found no room.
    overflowed: u64,
    /// Nodes beyond the 16th of a trace, which are ignored.
    hops_left_out: u64,
    /// Paths evicted to make room for others.
    paths_evicted: u64,
    /// Paths removed because they were idle too long.
    paths_aged: u64,
    /// Flows evicted to make room for others.
    flows_evicted: u64,
    /// Flows removed because they were idle too long.
    flows_aged: u64,
    /// Restarts of nodes, detected by their counters.
    node_restarts: u64,
    /// Latencies below zero or above a minute, which are due to unsynchronised clocks.
    clock_errors: u64,
}

#[cfg(test)]
mod tests {
    use super::super::show::tests::sample;
    use super::*;
    use serde::de::DeserializeOwned;
    use serde_json::Value;

    /// Asserts that both types have the same fields with the same values.
    fn mirrored<T: DeserializeOwned + Serialize>(core: &impl Serialize) {
        let value: Value = serde_json::to_value(core).unwrap();
        let mirror: T = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(serde_json::to_value(&mirror).unwrap(), value);
    }

    #[test]
    fn the_schemas_mirror_the_types_of_the_collector() {
        let report = sample();
        mirrored::<PathSchema>(&report.paths[0]);
        mirrored::<FlowSchema>(&report.flows[0]);
        mirrored::<CountersSchema>(&report.counters);
    }
}
