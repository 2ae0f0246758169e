//! Paths and flows as the OpenAPI description shows them: `cc::collect`, whose types know nothing of OpenAPI, mirrored.
//! A test holds the two together.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A figure that goes up and down.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = IntLevel)]
#[serde(deny_unknown_fields)]
pub struct LevelSchema {
    /// Of the newest trace.
    last: u32,
    /// Smoothed: each trace moves it by an eighth.
    mean: u32,
    /// Highest of the last one to two windows.
    most: u32,
}

/// A time between two stamps.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = IntLatency)]
#[serde(deny_unknown_fields)]
pub struct LatencySchema {
    /// Of the newest trace, microseconds.
    last_us: u32,
    /// Smoothed, microseconds.
    mean_us: u32,
    /// Highest of the last one to two windows, microseconds.
    most_us: u32,
}

/// A node of a path. What it did not tell is null.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = IntHop)]
#[serde(deny_unknown_fields)]
pub struct HopSchema {
    /// Node id.
    node: Option<u64>,
    /// Hop limit with which packets leave it.
    hop_limit: Option<u8>,
    /// Id of the interface they came in by.
    interface_in: Option<u32>,
    /// Id of the interface they leave by.
    interface_out: Option<u32>,
    /// Queue behind the packet, bytes.
    depth_bytes: Option<LevelSchema>,
    /// Most bytes the queue holds.
    capacity_bytes: Option<u32>,
    /// What arrives at the queue, kbit/s.
    arrival_kbps: Option<LevelSchema>,
    /// What the link behind it carries, kbit/s.
    link_kbps: Option<LevelSchema>,
    /// Flows of late.
    flows: Option<u16>,
    /// Packets its queue dropped since the first trace.
    queue_drops: Option<u64>,
    /// Packets its medium lost since the first trace.
    medium_losses: Option<u64>,
    /// Modulation and coding scheme.
    mcs: Option<u8>,
    /// Part of the carrier's resource blocks that the bearer got, percent.
    rb_share_percent: Option<f64>,
    /// Buffer occupancy, bytes; of a cell: what waits in RLC.
    rlc_bytes: Option<LevelSchema>,
    /// How long the queue takes to leave at the link's rate, microseconds.
    queue_us: Option<u64>,
    /// Time in the node as it measured it, microseconds.
    transit_us: Option<LevelSchema>,
    /// From its stamp to the next node's, or to the collector.
    latency: Option<LatencySchema>,
}

/// A path.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = IntPath)]
#[serde(deny_unknown_fields)]
pub struct PathSchema {
    /// In the order of first sight, from 1.
    number: u64,
    /// Its nodes as people write them: `1-2-3`, `?` for one without an id.
    name: String,
    /// IOAM namespace.
    namespace: u16,
    /// Its nodes, first hop first.
    hops: Vec<HopSchema>,
    /// Which of them, from 0, has the least link rate per flow; null: none told its rate.
    bottleneck: Option<u64>,
    /// Traces.
    traces: u64,
    /// Bytes of the packets that carried them.
    bytes: u64,
    /// Flows that the collector knows on it.
    flows_seen: u64,
    /// When it was first seen, milliseconds of the collector's clock.
    first_ms: u64,
    /// How long ago it was last seen, milliseconds.
    silent_ms: u64,
    /// Every hop told its drops and none on the way was silent: a loss without a drop was the medium's.
    complete: bool,
    /// A node found no room in the newest trace.
    overflow: bool,
    /// From the source to the first node.
    to_first: Option<LatencySchema>,
    /// From the source to the collector.
    end_to_end: Option<LatencySchema>,
}

/// A flow.
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
    /// How often that changed.
    path_changes: u64,
    /// Traces.
    traces: u64,
    /// Bytes of the packets that carried them.
    bytes: u64,
    /// When it was first seen, milliseconds of the collector's clock.
    first_ms: u64,
    /// How long ago it was last seen, milliseconds.
    silent_ms: u64,
    /// Packets that the source had numbered; null: it does not.
    numbered: Option<u64>,
    /// Numbers that never came.
    missing: Option<u64>,
    /// The sender's congestion window.
    cwnd_segments: Option<u32>,
    /// Its slow-start threshold; null: not told, or before the first loss.
    ssthresh_segments: Option<u32>,
    /// Its smoothed round trip, microseconds.
    srtt_us: Option<u32>,
    /// From the source to the collector.
    end_to_end: Option<LatencySchema>,
}

/// What a collector counts of itself.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = IntCounters)]
#[serde(deny_unknown_fields)]
pub struct CountersSchema {
    /// Packets with a trace that was taken.
    traces: u64,
    /// Packets without anything to take: no trace, of another namespace, or one that no node has written in.
    passed: u64,
    /// Packets whose headers or options do not hold together.
    malformed: u64,
    /// Traces in which a node found no room.
    overflowed: u64,
    /// Nodes beyond the 16th of a trace.
    hops_left_out: u64,
    /// Paths that made room for others.
    paths_evicted: u64,
    /// Paths that were silent for too long.
    paths_aged: u64,
    /// Flows that made room for others.
    flows_evicted: u64,
    /// Flows that were silent for too long.
    flows_aged: u64,
    /// Nodes whose counters started again.
    node_restarts: u64,
    /// Latencies below zero or above a minute: clocks that differ.
    clock_errors: u64,
}

#[cfg(test)]
mod tests {
    use super::super::show::tests::sample;
    use super::*;
    use serde::de::DeserializeOwned;
    use serde_json::Value;

    /// Every field of the one is a field of the other, with the same value.
    fn mirrored<T: DeserializeOwned + Serialize>(core: &impl Serialize) {
        let value: Value = serde_json::to_value(core).unwrap();
        let mirror: T = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(serde_json::to_value(&mirror).unwrap(), value);
    }

    #[test]
    fn the_mirror_shows_what_core_says() {
        let report = sample();
        mirrored::<PathSchema>(&report.paths[0]);
        mirrored::<FlowSchema>(&report.flows[0]);
        mirrored::<CountersSchema>(&report.counters);
    }
}
