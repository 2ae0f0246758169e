//! One path: the sequence of nodes in its traces, and the state of each.

use super::stats::{CounterUpdate, Gauge, Latency, OvertakenDetector, WrappingCounter, stamp_us};
use super::view::{HopView, PathView};
use super::{CaptureInfo, CollectConfig, CollectCounters};
use anabranch_element::time::{Duration, Instant, nanos};
use anabranch_wire::ioam::{Head, NodeData, Snapshot, TraceView, routers};

/// Maximum number of hops; an IPv6 option has no room for more with our data.
pub const MAX_HOPS: usize = 16;
/// A node without an id.
const NO_ID: u64 = u64::MAX;

/// Identity of a path: the namespace and the nodes, first hop first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PathKey {
    namespace: u16,
    hops: u8,
    nodes: [u64; MAX_HOPS],
}

/// The nodes of one trace, first hop first.
#[derive(Debug)]
pub(super) struct TraceNodes<'a> {
    namespace: u16,
    overflow: bool,
    hops: usize,
    nodes: [NodeData<'a>; MAX_HOPS],
    /// Number of nodes beyond the maximum: those nearest to the collector.
    pub(super) excess_nodes: u64,
}

impl<'a> TraceNodes<'a> {
    /// Reads the nodes of a trace; `None` if it has none.
    pub(super) fn read(trace: &TraceView<'a>) -> Option<Self> {
        let all = trace.nodes().count();
        let hops = all.min(MAX_HOPS);
        let mut nodes = [NodeData::default(); MAX_HOPS];
        // Nodes in a trace are listed newest first.
        for (slot, node) in nodes[..hops].iter_mut().rev().zip(trace.nodes().skip(all - hops)) {
            *slot = node;
        }
        let header = trace.header();
        (hops > 0).then_some(Self {
            namespace: header.namespace,
            overflow: header.overflow,
            hops,
            nodes,
            excess_nodes: (all - hops) as u64,
        })
    }

    pub(super) fn key(&self) -> PathKey {
        let mut nodes = [NO_ID; MAX_HOPS];
        for (id, node) in nodes.iter_mut().zip(self.nodes()) {
            let wide = node.hop_wide.and_then(|hop| hop.node_id);
            *id = wide.or(node.hop.and_then(|hop| hop.node_id).map(u64::from)).unwrap_or(NO_ID);
        }
        PathKey { namespace: self.namespace, hops: self.hops as u8, nodes }
    }

    fn nodes(&self) -> &[NodeData<'a>] {
        &self.nodes[..self.hops]
    }

    /// Whether the hop limits show no more than `known_routers` routers, see `wire::ioam::report`.
    fn is_contiguous(&self, arrived: u8, known_routers: u8) -> bool {
        if self.overflow || self.excess_nodes > 0 {
            return false;
        }
        let mut before = arrived;
        for (at, node) in self.nodes().iter().rev().enumerate() {
            match limit(node) {
                // The newest node must have the hop limit of the arrival; each older one the same as its successor, or one more.
                Some(limit)
                    if limit.checked_sub(before).is_some_and(|routers| routers <= at.min(1) as u8) =>
                {
                    before = limit
                }
                _ => return false,
            }
        }
        routers(before, arrived).is_some_and(|routers| routers <= known_routers)
    }
}

fn limit(node: &NodeData<'_>) -> Option<u8> {
    node.hop.map(|hop| hop.limit).or(node.hop_wide.map(|hop| hop.limit))
}

/// State of one hop.
#[derive(Debug, Clone, Copy, Default)]
struct Hop {
    limit: Option<u8>,
    interfaces: Option<(u32, u32)>,
    depth: Option<Gauge>,
    capacity: Option<u32>,
    arrival: Option<Gauge>,
    link: Option<Gauge>,
    flows: Option<u16>,
    drops: Option<WrappingCounter>,
    losses: Option<WrappingCounter>,
    mcs: Option<u8>,
    rb_half_percent: Option<u8>,
    buffer: Option<Gauge>,
    transit: Option<Gauge>,
    overtaken_detector: OvertakenDetector,
    /// Time from this node's stamp to that of the next node, or to the collector.
    latency: Latency,
}

/// One path.
#[derive(Debug)]
pub(super) struct Path {
    /// Number in the order of first sight, from 1.
    pub(super) number: u64,
    hops: Box<[Hop]>,
    traces: u64,
    bytes: u64,
    first: Instant,
    pub(super) last: Instant,
    /// Every hop reported its drops, and the hop limits show no hop without telemetry.
    complete: bool,
    overflow: bool,
    overtaken_detector: OvertakenDetector,
    /// Time from the source's stamp to the first node, and to the collector.
    to_first: Latency,
    end_to_end: Latency,
}

impl Path {
    pub(super) fn new(number: u64, trace_nodes: &TraceNodes<'_>, at: Instant) -> Self {
        Self {
            number,
            hops: vec![Hop::default(); trace_nodes.hops].into_boxed_slice(),
            traces: 0,
            bytes: 0,
            first: at,
            last: at,
            complete: false,
            overflow: false,
            overtaken_detector: OvertakenDetector::default(),
            to_first: Latency::default(),
            end_to_end: Latency::default(),
        }
    }

    /// Records a trace of this path.
    pub(super) fn take(
        &mut self,
        trace_nodes: &TraceNodes<'_>,
        head: &Head<'_>,
        seen: &CaptureInfo,
        config: &CollectConfig,
        counters: &mut CollectCounters,
    ) {
        let window = config.window;
        self.traces += 1;
        self.bytes += u64::from(seen.bytes);
        self.last = self.last.max(seen.at);
        self.overflow = trace_nodes.overflow;
        let stamp = |node: &NodeData<'_>| stamp_us(node.seconds, node.fraction);
        let arrived = wall_us(seen);
        let nodes = trace_nodes.nodes();
        let next = nodes.iter().skip(1).map(stamp).chain([arrived]);
        let (mut drops_known, mut plausible) = (true, true);
        for ((hop, node), next) in self.hops.iter_mut().zip(nodes).zip(next) {
            let written = stamp(node);
            let overtaken = hop.overtaken_detector.was_overtaken(written, seen.at);
            drops_known &= hop.take(node, overtaken, seen.at, window, counters);
            plausible &= hop.latency.record((written, next), Gauge::recorder(overtaken), seen.at, window);
        }
        self.complete = drops_known && trace_nodes.is_contiguous(head.hop_limit, config.known_routers);
        if let Some(edge) = head.edge {
            let sent = stamp_us(edge.seconds, edge.fraction);
            let record = Gauge::recorder(self.overtaken_detector.was_overtaken(sent, seen.at));
            plausible &= self.to_first.record((sent, nodes.first().and_then(stamp)), record, seen.at, window);
            plausible &= self.end_to_end.record((sent, arrived), record, seen.at, window);
        }
        counters.clock_errors += u64::from(!plausible);
    }

    pub(super) fn view(&self, key: &PathKey, now: Instant, window: Duration) -> PathView {
        let hops: Vec<HopView> =
            self.hops.iter().zip(&key.nodes).map(|(hop, id)| hop.view(*id, now, window)).collect();
        let share = |hop: &HopView| {
            let link = hop.link_kbps?.last;
            Some(link / u32::from(hop.flows.unwrap_or(1).max(1)))
        };
        let ids = hops.iter().map(|hop| hop.node.map_or_else(|| "?".to_owned(), |id| id.to_string()));
        let name = ids.collect::<Vec<_>>().join("-");
        let shares = hops.iter().enumerate().filter_map(|(at, hop)| Some((share(hop)?, at)));
        PathView {
            number: self.number,
            name,
            namespace: key.namespace,
            bottleneck: shares.min().map(|(_, at)| at),
            hops,
            traces: self.traces,
            bytes: self.bytes,
            flows_seen: 0,
            first_ms: self.first.as_millis(),
            silent_ms: ms(now.saturating_since(self.last)),
            complete: self.complete,
            overflow: self.overflow,
            to_first: self.to_first.view(now, window),
            end_to_end: self.end_to_end.view(now, window),
        }
    }
}

/// When the packet was seen, on the clock of the stamps.
pub(super) fn wall_us(seen: &CaptureInfo) -> Option<i64> {
    i64::try_from(nanos(seen.wall?) / 1000).ok()
}

pub(super) fn ms(time: Duration) -> u64 {
    nanos(time) / 1_000_000
}

/// Stores a reported value, unless a newer one is known.
fn update_if_newer<T: Copy>(known: &mut Option<T>, reported: Option<T>, overtaken: bool) {
    *known = if overtaken { known.or(reported) } else { reported.or(*known) };
}

impl Hop {
    /// Records the data of the node; with `overtaken`, newer data is already known. Returns whether the node reported its drops.
    fn take(
        &mut self,
        node: &NodeData<'_>,
        overtaken: bool,
        at: Instant,
        window: Duration,
        counters: &mut CollectCounters,
    ) -> bool {
        let gauge = Gauge::recorder(overtaken);
        if !overtaken {
            self.limit = limit(node);
        }
        let short = node.interfaces.map(|(i, o)| (u32::from(i), u32::from(o)));
        update_if_newer(&mut self.interfaces, node.interfaces_wide.or(short), overtaken);
        gauge(&mut self.depth, node.queue_depth, at, window);
        gauge(&mut self.buffer, node.buffer, at, window);
        let transit = node.transit_delay.filter(|delay| !delay.overflow);
        gauge(&mut self.transit, transit.map(|delay| delay.ns / 1000), at, window);
        // A snapshot of another schema or with a wrong length contains no usable data.
        let Some(Ok(Some(snapshot))) = node.snapshot.map(Snapshot::parse) else { return false };
        gauge(&mut self.arrival, snapshot.arrival_kbps, at, window);
        gauge(&mut self.link, snapshot.link_kbps, at, window);
        update_if_newer(&mut self.capacity, snapshot.capacity_bytes, overtaken);
        update_if_newer(&mut self.flows, snapshot.flows, overtaken);
        update_if_newer(&mut self.mcs, snapshot.mcs, overtaken);
        update_if_newer(&mut self.rb_half_percent, snapshot.rb_half_percent, overtaken);
        let record = |counter: &mut Option<WrappingCounter>, value: Option<u32>| {
            value.is_some_and(|value| {
                counter.get_or_insert(WrappingCounter::new(value, at)).record(value, at)
                    == CounterUpdate::Restarted
            })
        };
        let restarted =
            record(&mut self.drops, snapshot.queue_drops) | record(&mut self.losses, snapshot.medium_losses);
        counters.node_restarts += u64::from(restarted);
        snapshot.queue_drops.is_some()
    }

    fn view(&self, id: u64, now: Instant, window: Duration) -> HopView {
        let gauge = |gauge: Option<Gauge>| gauge.map(|gauge| gauge.view(now, window));
        let depth = gauge(self.depth);
        HopView {
            node: Some(id).filter(|id| *id != NO_ID),
            hop_limit: self.limit,
            interface_in: self.interfaces.map(|(i, _)| i),
            interface_out: self.interfaces.map(|(_, o)| o),
            depth_bytes: depth,
            capacity_bytes: self.capacity,
            arrival_kbps: gauge(self.arrival),
            link_kbps: gauge(self.link),
            flows: self.flows,
            queue_drops: self.drops.map(|counter| counter.total),
            medium_losses: self.losses.map(|counter| counter.total),
            mcs: self.mcs,
            rb_share_percent: self.rb_half_percent.map(|half| f64::from(half) / 2.0),
            rlc_bytes: gauge(self.buffer),
            queue_us: self.depth.zip(self.link).and_then(|(depth, link)| {
                // Bits divided by kbit/s yield milliseconds.
                let us = u64::from(depth.last()) * 8_000;
                us.checked_div(u64::from(link.last()))
            }),
            transit_us: gauge(self.transit),
            latency: self.latency.view(now, window),
        }
    }
}
