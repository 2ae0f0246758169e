//! The collector: what in-band telemetry tells, kept per path and per flow.
//!
//! ```text
//!  packet ──▶ ioam::head ──▶ Collector::observe ─┬─▶ path  (namespace, nodes in order)   hops, rates, queues, losses
//!             flow, trace,                       └─▶ flow  (5-tuple)                     its path, cwnd, end-to-end loss
//!             edge-to-edge, TCP state                    │
//!                                                        └─▶ views: table, JSON, metrics, MQTT, BPF map
//! ```
//!
//! - **Bounded.** As many paths and flows as configured, 16 hops each; what has been silent for long goes by itself. Where there
//!   is no room it is made, and counted, by one that was silent for an eighth of that time, else by one of those with the fewest traces.
//! - **Forged or broken packets** cost what they cost to read. They can enter paths and flows that are not there. None that goes on is
//!   pushed out by those that have less than half as many traces each (what has 256 counts as no less than any), and an eighth of the idle
//!   time after they end they make room for all others. They can say what they like of nodes whose ids they use: keep the option inside
//!   your domain.
//! - **Counters of nodes wrap and restart.** What a node lost or dropped is summed from the first trace that it was seen
//!   in; traces that overtook one another take nothing back.
//! - **Traces that were overtaken**, as the stamps of each node tell and for a flow the source's numbers or stamps, count, raise
//!   maxima, and leave what newer ones told. Without stamps what came last is the newest.
//! - **Latency** of a hop is the time between its stamp and the next node's: its queue, its link, and what the two clocks
//!   differ by. What comes out below zero or above a minute is counted as an error of the clocks, and not shown.
//!
//! | file | what |
//! |---|---|
//! | `bounded` | a map that holds so many, and knows which was used longest ago |
//! | `level` | a figure that goes up and down; a counter that wraps; a latency |
//! | `path` | one path: what its traces said |
//! | `flow` | one flow |
//! | `view` | both as they are shown |

mod bounded;
mod flow;
mod level;
mod path;
#[cfg(test)]
mod tests;
mod view;

pub use path::MAX_HOPS;
pub use view::{FlowView, HopView, LatencyView, LevelView, PathView};

use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ip::FlowKey;
use bounded::Bounded;
use flow::Flow;
use path::{Path, PathKey, Trail};
use serde::{Deserialize, Serialize};

pub use anabranch_wire::ioam::{Head, head};

/// A path or flow that was silent for this part of the idle time makes room for others.
const SILENT_PART: u32 = 8;

/// How much a collector keeps, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectConfig {
    /// Traces of this namespace only; `None`: of all.
    pub namespace: Option<u16>,
    /// Most paths, 1 to 4096. Default 64.
    pub paths: usize,
    /// Most flows, 1 to 65,536. Default 1024.
    pub flows: usize,
    /// A path or flow that was silent for so long is forgotten. Default 60 s.
    pub idle: Duration,
    /// Maxima are of the last one to two of these. Default 1 s.
    pub window: Duration,
    /// Routers on a path that are known to have no queue that drops. Default 0.
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

/// What a collector counts of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CollectCounters {
    /// Packets with a trace that was taken.
    pub traces: u64,
    /// Packets without anything to take: no trace, of another namespace, or one that no node has written in.
    pub passed: u64,
    /// Packets whose headers or options do not hold together.
    pub malformed: u64,
    /// Traces in which a node found no room.
    pub overflowed: u64,
    /// Nodes beyond the 16th of a trace.
    pub hops_left_out: u64,
    /// Paths that made room for others.
    pub paths_evicted: u64,
    /// Paths that were silent for too long.
    pub paths_aged: u64,
    /// Flows that made room for others.
    pub flows_evicted: u64,
    /// Flows that were silent for too long.
    pub flows_aged: u64,
    /// Nodes whose counters started again.
    pub node_restarts: u64,
    /// Latencies below zero or above a minute: clocks that differ.
    pub clock_errors: u64,
}

/// A packet with telemetry, as it was seen.
#[derive(Debug, Clone, Copy)]
pub struct Sighting {
    /// When, on the collector's own clock.
    pub at: Instant,
    /// The same on the clock of the nodes' stamps (Linux: since 1970), for the latency of the last hop; `None`: there is no
    /// such clock.
    pub wall: Option<Duration>,
    /// The packet's length, bytes.
    pub bytes: u32,
}

/// See the top of this file.
#[derive(Debug)]
pub struct Collector {
    config: CollectConfig,
    paths: Bounded<PathKey, Path>,
    flows: Bounded<FlowKey, Flow>,
    /// Paths seen so far.
    numbers: u64,
    counters: CollectCounters,
}

impl Collector {
    /// An empty one. Numbers out of range are taken as the nearest in it.
    #[must_use]
    pub fn new(config: CollectConfig) -> Self {
        Self {
            paths: Bounded::new(config.paths.clamp(1, 4096)),
            flows: Bounded::new(config.flows.clamp(1, 65_536)),
            numbers: 0,
            counters: CollectCounters::default(),
            config,
        }
    }

    /// Takes a packet, or the first bytes of one: see [`head`]. Whatever it is, the cost is bounded.
    pub fn observe_packet(&mut self, packet: &[u8], seen: Sighting) {
        match head(packet) {
            Ok(head) => self.observe(&head, seen),
            Err(_) => self.counters.malformed += 1,
        }
    }

    /// Takes what the head of a packet told.
    pub fn observe(&mut self, head: &Head<'_>, seen: Sighting) {
        self.age(seen.at);
        let wanted = |namespace| self.config.namespace.is_none_or(|ours| ours == namespace);
        let Some(trace) = head.trace.filter(|trace| wanted(trace.header().namespace)) else {
            self.counters.passed += 1;
            return;
        };
        let Some(trail) = Trail::read(&trace) else {
            self.counters.passed += 1;
            return;
        };
        self.counters.traces += 1;
        self.counters.overflowed += u64::from(trace.header().overflow);
        self.counters.hops_left_out += trail.left_out;

        let Self { numbers, paths, flows, counters, config } = self;
        let is_silent = |last: Instant| seen.at.saturating_since(last) > config.idle / SILENT_PART;
        let (path, evicted) = paths.at(
            trail.key(),
            |path| is_silent(path.last),
            || {
                *numbers += 1;
                Path::new(*numbers, &trail, seen.at)
            },
        );
        counters.paths_evicted += u64::from(evicted);
        path.take(&trail, head, &seen, config, counters);
        let number = path.number;
        let (flow, evicted) = flows.at(head.flow, |flow| is_silent(flow.last), || Flow::new(number, seen.at));
        counters.flows_evicted += u64::from(evicted);
        flow.take(number, head, &seen, config.window);
    }

    /// Forgets what has been silent for too long. `observe` does it, too.
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

    /// Paths known, and flows.
    #[must_use]
    pub fn len(&self) -> (usize, usize) {
        (self.paths.len(), self.flows.len())
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == (0, 0)
    }

    /// What it counted.
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

    /// The flows as of `now`, by addresses and ports.
    #[must_use]
    pub fn flows(&self, now: Instant) -> Vec<FlowView> {
        self.flows.iter().map(|(key, flow)| flow.view(key, now, self.config.window)).collect()
    }
}
