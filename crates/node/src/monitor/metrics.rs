//! `--metrics`: metrics of the last report in the Prometheus text format.

use super::report::Report;
use crate::runtime::metrics::{Text, count, encoded, gauge, one};
use anabranch_cc::collect::{FlowView, HopView, LatencyView, PathView};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::registry::{Registry, Unit};

/// Maximum number of flows with metrics of their own; beyond it, only the metrics of paths remain.
pub const MAX_FLOWS: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PathLabels {
    namespace: u32,
    path: Text,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HopLabels {
    namespace: u32,
    path: Text,
    hop: u32,
    node: Text,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FlowLabels {
    source: Text,
    destination: Text,
    protocol: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    what: &'static str,
}

/// All metrics as OpenMetrics text. Names begin with `anabranch_int_`.
pub fn text(report: &Report) -> String {
    let mut registry = Registry::with_prefix("anabranch_int");
    own(&mut registry, report);
    paths(&mut registry, &report.paths);
    hops(&mut registry, &report.paths);
    if report.flows.len() <= MAX_FLOWS {
        flows(&mut registry, &report.flows);
    }
    encoded(&registry)
}

fn own(registry: &mut Registry, report: &Report) {
    let c = &report.counters;
    let rows = [
        ("traces", c.traces),
        ("passed", c.passed),
        ("malformed", c.malformed),
        ("kernel_drops", report.kernel_drops),
    ];
    let rows = rows.map(|(what, n)| (EventLabels { what }, n));
    count(registry, "packets", "Packets with hop-by-hop options, by result", rows);
    let rows = [
        ("overflowed", c.overflowed),
        ("hops_left_out", c.hops_left_out),
        ("paths_evicted", c.paths_evicted),
        ("paths_aged", c.paths_aged),
        ("flows_evicted", c.flows_evicted),
        ("flows_aged", c.flows_aged),
        ("node_restarts", c.node_restarts),
        ("clock_errors", c.clock_errors),
    ];
    let rows = rows.map(|(what, n)| (EventLabels { what }, n));
    count(registry, "events", "Events of the collector, by kind", rows);
    one(registry, "paths", "Known paths", None, report.paths.len() as f64);
    one(registry, "flows", "Known flows", None, report.flows.len() as f64);
}

fn paths(registry: &mut Registry, paths: &[PathView]) {
    let label =
        |path: &PathView| PathLabels { namespace: path.namespace.into(), path: path.name.as_str().into() };
    let counters: [Count<PathView, u64>; 2] = [
        ("path_traces", "Traces", |path| path.traces),
        ("path_bytes", "Bytes of the packets that carried traces", |p| p.bytes),
    ];
    for (name, help, value) in counters {
        count(registry, name, help, paths.iter().map(|path| (label(path), value(path))));
    }
    let on = paths.iter().map(|path| (label(path), path.flows_seen as f64));
    gauge(registry, "path_flows", "Known flows on the path", None, on);
    let complete = paths.iter().map(|path| (label(path), f64::from(u8::from(path.complete))));
    let help = "1 while every hop reports its drops and none is silent";
    gauge(registry, "path_complete", help, None, complete);
    let latency = paths.iter().filter_map(|path| Some((label(path), seconds(path.end_to_end)?)));
    let help = "Latency from the source to the monitor, smoothed";
    gauge(registry, "path_latency", help, Some(Unit::Seconds), latency);
}

/// Name, help text, value.
type Count<T, V> = (&'static str, &'static str, fn(&T) -> V);
/// Name, help text, unit, value.
type Column = (&'static str, &'static str, Option<Unit>, fn(&HopView) -> Option<f64>);

fn hops(registry: &mut Registry, paths: &[PathView]) {
    let rows = || {
        paths.iter().flat_map(|path| {
            path.hops.iter().zip(1u32..).map(move |(hop, at)| {
                let node = hop.node.map_or_else(String::new, |id| id.to_string()).as_str().into();
                (
                    HopLabels {
                        namespace: path.namespace.into(),
                        path: path.name.as_str().into(),
                        hop: at,
                        node,
                    },
                    hop,
                )
            })
        })
    };
    let gauges: [Column; 11] = [
        ("hop_queue", "Queue depth in the newest trace", Some(Unit::Bytes), |h| {
            Some(h.depth_bytes?.last.into())
        }),
        ("hop_queue_peak", "Recent maximum of the queue depth", Some(Unit::Bytes), |h| {
            Some(h.depth_bytes?.most.into())
        }),
        ("hop_capacity", "Capacity of the queue", Some(Unit::Bytes), |h| Some(h.capacity_bytes?.into())),
        ("hop_arrival_bps", "Arrival rate, bit/s", None, |h| Some(f64::from(h.arrival_kbps?.last) * 1e3)),
        ("hop_link_bps", "Link rate, bit/s", None, |h| Some(f64::from(h.link_kbps?.last) * 1e3)),
        ("hop_flows", "Flows as counted by the node", None, |h| Some(h.flows?.into())),
        ("hop_latency", "Latency to the next node or to the monitor, smoothed", Some(Unit::Seconds), |h| {
            seconds(h.latency)
        }),
        ("hop_mcs", "Modulation and coding scheme", None, |h| Some(h.mcs?.into())),
        ("hop_rb_share", "Share of the cell's resource blocks", Some(Unit::Ratios), |h| {
            Some(h.rb_share_percent? / 100.0)
        }),
        ("hop_rlc", "Bytes waiting in RLC", Some(Unit::Bytes), |h| Some(h.rlc_bytes?.last.into())),
        ("hop_transit", "Time in the node, as measured by it", Some(Unit::Seconds), |h| {
            Some(f64::from(h.transit_us?.last) / 1e6)
        }),
    ];
    for (name, help, unit, value) in gauges {
        let rows = rows().filter_map(|(label, hop)| Some((label, value(hop)?)));
        gauge(registry, name, help, unit, rows);
    }
    let counters: [Count<HopView, Option<u64>>; 2] = [
        ("hop_dropped_packets", "Packets dropped by the queue since it was first seen", |h| h.queue_drops),
        ("hop_lost_packets", "Packets lost by the medium since it was first seen", |h| h.medium_losses),
    ];
    for (name, help, value) in counters {
        count(registry, name, help, rows().filter_map(|(label, hop)| Some((label, value(hop)?))));
    }
}

fn flows(registry: &mut Registry, flows: &[FlowView]) {
    let label = |flow: &FlowView| FlowLabels {
        source: flow.source.to_string().as_str().into(),
        destination: flow.destination.to_string().as_str().into(),
        protocol: flow.protocol.into(),
    };
    count(registry, "flow_traces", "Traces", flows.iter().map(|flow| (label(flow), flow.traces)));
    let missing = flows.iter().filter_map(|flow| Some((label(flow), flow.missing?)));
    count(registry, "flow_missing_packets", "Packets numbered by the source that did not arrive", missing);
    let cwnd = flows.iter().filter_map(|flow| Some((label(flow), flow.cwnd_segments?.into())));
    gauge(registry, "flow_cwnd_segments", "Congestion window of the sender, segments", None, cwnd);
    let rtt = flows.iter().filter_map(|flow| Some((label(flow), f64::from(flow.srtt_us?) / 1e6)));
    gauge(registry, "flow_rtt", "Smoothed round-trip time of the sender", Some(Unit::Seconds), rtt);
}

fn seconds(latency: Option<LatencyView>) -> Option<f64> {
    Some(f64::from(latency?.mean_us) / 1e6)
}

#[cfg(test)]
mod tests {
    use super::super::show::tests::sample;
    use super::*;
    use crate::testing::{documented_metrics, metric_rows};

    const PAGE: &str = include_str!("../../../../docs/int-cc.md");

    /// Name, type and labels of every metric, in the form of the table on the page.
    #[test]
    fn every_metric_is_documented_and_every_documented_metric_exists() {
        let mut report = sample();
        report.paths[0].hops.iter_mut().for_each(|hop| hop.transit_us = hop.depth_bytes);
        let rows = metric_rows(&text(&report), "anabranch_int_");
        for row in &rows {
            assert!(PAGE.lines().any(|line| line.starts_with(row)), "docs/int-cc.md lacks {row}");
        }
        assert_eq!(documented_metrics(PAGE), rows.len(), "{rows:#?}");
    }
}
