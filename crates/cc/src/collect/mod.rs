//! The collector: in-band telemetry, aggregated per path and per flow.
//!
//! ```text
//!  packet ──▶ ioam::head ──▶ Collector::observe ─┬─▶ path  (namespace, nodes in order)   hops, rates, queues, losses
//!             flow, trace,                       └─▶ flow  (5-tuple)                     its path, cwnd, end-to-end loss
//!             edge-to-edge, TCP state                    │
//!                                                        └─▶ views: table, JSON, metrics, MQTT, BPF map
//! ```
//!
//! - **Bounded.** The numbers of paths and flows are configured; a path has up to 16 hops. Idle entries are removed after a
//!   timeout. If there is no room, an entry that has been silent for an eighth of that timeout is removed, otherwise one with
//!   the fewest traces; both are counted.
//! - **Forged or malformed packets** cost no more than parsing them. They can create entries for paths and flows that do not
//!   exist. These cannot displace an active path or flow as long as each has less than half as many traces (256 traces rank
//!   equal to any higher number), and an eighth of the idle timeout after they stop they make room for all others. They can
//!   report arbitrary values for the node ids they use: keep the option inside your domain.
//! - **Counters of nodes wrap and restart.** Losses and drops of a node are accumulated from the first trace with that node;
//!   traces that were overtaken never decrease the sums.
//! - **Overtaken traces**, detected by the time stamps of each node, and for a flow by the source's numbers or stamps, are
//!   counted and can raise maxima, but do not replace newer values. Without time stamps, the last trace received is the newest.
//! - **Latency** of a hop is the time between its stamp and that of the next node: queue, link, and the difference of the two
//!   clocks. A value below zero or above a minute is counted as a clock error and not shown.
//!
//! | file | what |
//! |---|---|
//! | `bounded` | a map with a maximum number of entries, ordered by use |
//! | `stats` | a gauge; a wrapping counter; a latency |
//! | `path` | one path, from its traces |
//! | `flow` | one flow |
//! | `view` | representation of paths and flows |

mod bounded;
mod flow;
mod path;
mod stats;
#[cfg(test)]
mod tests;
mod view;

pub use path::MAX_HOPS;
pub use view::{FlowView, GaugeView, HopView, LatencyView, PathView};

use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ip::FlowKey;
use bounded::BoundedMap;
use flow::Flow;
use path::{Path, PathKey, TraceNodes};
use serde::{Deserialize, Serialize};

pub use anabranch_wire::ioam::{Head, head};

/// A path or flow that was silent for 1/8 of the idle timeout may be removed to make room.
const SILENT_DIVISOR: u32 = 8;

/// Limits of a collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectConfig {
    /// IOAM namespace of the traces to collect; `None`: all.
    pub namespace: Option<u16>,
    /// Maximum number of paths, 1 to 4096. Default 64.
    pub paths: usize,
    /// Maximum number of flows, 1 to 65,536. Default 1024.
    pub flows: usize,
    /// Time after which a silent path or flow is removed. Default 60 s.
    pub idle: Duration,
    /// Window of maxima, which cover the last one to two windows. Default 1 s.
    pub window: Duration,
    /// Number of routers on a path that are known to have no dropping queue. Default 0.
    pub known_routers: u8,
}

impl Default for CollectConfig {
    fn default() -> Self {
        Self {
            namespace: None,
            paths: 64,
            flows: 1024,
            idle: Duration::from_secs(60),
            window: Duration::from_secs(1),
            known_routers: 0,
        }
    }
}

/// Counters of a collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CollectCounters {
    /// Packets whose trace was recorded.
    pub traces: u64,
    /// Packets without usable data: no trace, another namespace, or a trace without nodes.
    pub passed: u64,
    /// Packets with malformed headers or options.
    pub malformed: u64,
    /// Traces in which a node found no room.
    pub overflowed: u64,
    /// Nodes beyond the 16th of a trace, which were ignored.
    pub hops_left_out: u64,
    /// Paths removed to make room.
    pub paths_evicted: u64,
    /// Paths removed after the idle timeout.
    pub paths_aged: u64,
    /// Flows removed to make room.
    pub flows_evicted: u64,
    /// Flows removed after the idle timeout.
    pub flows_aged: u64,
    /// Restarts of a node's counters.
    pub node_restarts: u64,
    /// Latencies below zero or above a minute, caused by differing clocks.
    pub clock_errors: u64,
}

/// Circumstances in which a packet was seen.
#[derive(Debug, Clone, Copy)]
pub struct CaptureInfo {
    /// Time on the collector's own clock.
    pub at: Instant,
    /// Time on the clock of the nodes' stamps (Linux: since 1970), for the latency of the last hop; `None` without such a clock.
    pub wall: Option<Duration>,
    /// Length of the packet in bytes.
    pub bytes: u32,
}

/// The collector; see the module documentation.
#[derive(Debug)]
pub struct Collector {
    config: CollectConfig,
    paths: BoundedMap<PathKey, Path>,
    flows: BoundedMap<FlowKey, Flow>,
    /// Number of paths seen so far.
    numbers: u64,
    counters: CollectCounters,
}

impl Collector {
    /// An empty collector. Values out of range are replaced by the nearest valid ones.
    #[must_use]
    pub fn new(config: CollectConfig) -> Self {
        Self {
            paths: BoundedMap::new(config.paths.clamp(1, 4096)),
            flows: BoundedMap::new(config.flows.clamp(1, 65_536)),
            numbers: 0,
            counters: CollectCounters::default(),
            config,
        }
    }

    /// Records a packet, or its first bytes: see [`head`]. The cost is bounded for any input.
    pub fn observe_packet(&mut self, packet: &[u8], seen: CaptureInfo) {
        match head(packet) {
            Ok(head) => self.observe(&head, seen),
            Err(_) => self.counters.malformed += 1,
        }
    }

    /// Records the parsed head of a packet.
    pub fn observe(&mut self, head: &Head<'_>, seen: CaptureInfo) {
        self.age(seen.at);
        let wanted = |namespace| self.config.namespace.is_none_or(|ours| ours == namespace);
        let Some(trace) = head.trace.filter(|trace| wanted(trace.header().namespace)) else {
            self.counters.passed += 1;
            return;
        };
        let Some(trace_nodes) = TraceNodes::read(&trace) else {
            self.counters.passed += 1;
            return;
        };
        self.counters.traces += 1;
        self.counters.overflowed += u64::from(trace.header().overflow);
        self.counters.hops_left_out += trace_nodes.excess_nodes;

        let Self { numbers, paths, flows, counters, config } = self;
        let is_idle = |last: Instant| seen.at.saturating_since(last) > config.idle / SILENT_DIVISOR;
        let (path, evicted) = paths.get_or_insert(
            trace_nodes.key(),
            |path| is_idle(path.last),
            || {
                *numbers += 1;
                Path::new(*numbers, &trace_nodes, seen.at)
            },
        );
        counters.paths_evicted += u64::from(evicted);
        path.take(&trace_nodes, head, &seen, config, counters);
        let number = path.number;
        let (flow, evicted) =
            flows.get_or_insert(head.flow, |flow| is_idle(flow.last), || Flow::new(number, seen.at));
        counters.flows_evicted += u64::from(evicted);
        flow.take(number, head, &seen, config.window);
    }

    /// Removes entries after the idle timeout. `observe` does the same.
    pub fn age(&mut self, now: Instant) {
        let idle = self.config.idle;
        let old = |last: Instant| now.saturating_since(last) > idle;
        while self.paths.oldest().is_some_and(|path| old(path.last)) {
            self.paths.remove_oldest();
            self.counters.paths_aged += 1;
        }
        while self.flows.oldest().is_some_and(|flow| old(flow.last)) {
            self.flows.remove_oldest();
            self.counters.flows_aged += 1;
        }
    }

    /// Number of paths, and of flows.
    #[must_use]
    pub fn len(&self) -> (usize, usize) {
        (self.paths.len(), self.flows.len())
    }

    /// Whether there are neither paths nor flows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == (0, 0)
    }

    /// Counters since the collector was created.
    #[must_use]
    pub const fn counters(&self) -> &CollectCounters {
        &self.counters
    }

    /// The paths as of `now`, in the order in which they were first seen.
    #[must_use]
    pub fn paths(&self, now: Instant) -> Vec<PathView> {
        let mut views: Vec<PathView> =
            self.paths.iter().map(|(key, path)| path.view(key, now, self.config.window)).collect();
        views.sort_unstable_by_key(|view| view.number);
        for (_, flow) in self.flows.iter() {
            if let Ok(at) = views.binary_search_by_key(&flow.path, |view| view.number) {
                views[at].flows_seen += 1;
            }
        }
        views
    }

    /// The flows as of `now`, sorted by addresses and ports.
    #[must_use]
    pub fn flows(&self, now: Instant) -> Vec<FlowView> {
        self.flows.iter().map(|(key, flow)| flow.view(key, now, self.config.window)).collect()
    }
}
