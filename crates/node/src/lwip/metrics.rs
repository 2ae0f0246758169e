//! Metrics of an LWIP node in the Prometheus text format, built from the current state at each request.

use crate::runtime::api::{LwipAcks, LwipHolds, LwipLink, LwipNode, Status};
use crate::runtime::metrics::{Text, count, encoded, gauge, one, program, tally, traces};
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LegLabels {
    leg: Text,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LinkLabels {
    ue: Text,
    leg: Text,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: Text,
}

/// Name, help text, value.
type Column<T> = (&'static str, &'static str, fn(&T) -> u64);

/// All metrics as OpenMetrics text. Names begin with `anabranch_lwip_`.
pub fn text(status: &Status, node: &LwipNode) -> String {
    let mut registry = program(status, "Packets dropped, by reason");
    one(&mut registry, "ues", "Known UEs", None, node.ues as f64);
    one(&mut registry, "flows", "Flows in the flow table", None, node.flows as f64);
    let memory = node.memory_bytes as f64;
    one(&mut registry, "memory", "Memory of flows, held ACKs and timers", Some(Unit::Bytes), memory);
    one(&mut registry, "holding", "ACKs currently held", None, node.acks.holding as f64);
    let on = f64::from(u8::from(node.dida.is_some()));
    one(&mut registry, "dida", "1 while duplicate ACKs are held", None, on);
    traces(&mut registry, status);
    legs(&mut registry, node);
    links(&mut registry, node);
    acks(&mut registry, node);
    let passed = node.passed.iter().map(|(reason, n)| (ReasonLabels { reason: reason.as_str().into() }, *n));
    count(&mut registry, "passed_packets", "Packets forwarded without steering or inspection", passed);
    let errors: u64 = status.workers.iter().map(|w| w.device_errors).sum();
    tally(&mut registry, "device_errors", "Frames rejected by an interface", errors);
    encoded(&registry)
}

fn legs(registry: &mut Registry, node: &LwipNode) {
    let label = |leg: &str| LegLabels { leg: leg.into() };
    let counters: [Column<crate::runtime::api::LwipLeg>; 3] = [
        ("leg_packets", "Downlink packets", |leg| leg.packets),
        ("leg_bytes", "Bytes of these packets", |leg| leg.bytes),
        ("leg_steered_packets", "TCP packets with data among them", |leg| leg.steered),
    ];
    for (name, help, value) in counters {
        count(registry, name, help, node.legs.iter().map(|leg| (label(&leg.leg), value(leg))));
    }
    let share = node.legs.iter().map(|leg| (label(&leg.leg), leg.steered_percent / 100.0));
    gauge(
        registry,
        "leg_share",
        "Share of TCP packets with data, since the start",
        Some(Unit::Ratios),
        share,
    );
}

fn links(registry: &mut Registry, node: &LwipNode) {
    let label = |link: &LwipLink| LinkLabels { ue: link.ue.as_str().into(), leg: link.leg.as_str().into() };
    let rows = |value: fn(&LwipLink) -> Option<f64>| {
        node.links.iter().filter_map(|link| Some((label(link), value(link)?))).collect::<Vec<_>>()
    };
    let up = rows(|link| Some(f64::from(u8::from(link.up))));
    gauge(registry, "link_up", "1 while probes are answered", None, up);
    let rtt = rows(|link| Some(link.rtt_ms? / 1e3));
    gauge(registry, "link_rtt", "Smoothed round-trip time of probes", Some(Unit::Seconds), rtt);
    gauge(registry, "link_rate_bps", "Estimated rate", None, rows(|link| link.rate_bps));
    let counters: [Column<LwipLink>; 2] = [
        ("probes", "Probes sent", |link| link.probes),
        ("probe_answers", "Probes answered", |link| link.answers),
    ];
    for (name, help, value) in counters {
        count(registry, name, help, node.links.iter().map(|link| (label(link), value(link))));
    }
}

fn acks(registry: &mut Registry, node: &LwipNode) {
    let counters: [Column<LwipAcks>; 8] = [
        ("uplink_packets", "Packets from UEs", |acks| acks.uplink_packets),
        ("advancing_acks", "ACKs that advanced", |acks| acks.advances),
        ("duplicate_acks", "Duplicate ACKs from UEs", |acks| acks.duplicates),
        ("let_through_acks", "Duplicate ACKs forwarded at once", |acks| acks.let_through),
        ("triple_duplicates", "Third duplicates in a row sent to a sender", |acks| acks.triple_duplicates),
        ("held_acks", "Duplicate ACKs held", |acks| acks.held),
        ("released_acks", "Held ACKs that were sent after all", |acks| acks.released),
        ("superseded_acks", "Held ACKs made redundant by the missing one", |acks| acks.superseded),
    ];
    for (name, help, value) in counters {
        tally(registry, name, help, value(&node.acks));
    }
    let ended =
        node.holds.ended.iter().map(|(reason, n)| (ReasonLabels { reason: reason.as_str().into() }, *n));
    count(registry, "releases", "Holds, by the reason of their end", ended);
    let help = "Duration of holds";
    registry.register_with_unit("hold", help, Unit::Seconds, Histogram::new(&node.holds));
}

/// A histogram whose buckets were counted by the data path.
#[derive(Debug)]
struct Histogram {
    sum: f64,
    buckets: Vec<(f64, u64)>,
}

impl Histogram {
    fn new(holds: &LwipHolds) -> Self {
        let bounds = holds.bounds_ms.iter().map(|ms| ms / 1e3).chain([f64::MAX]);
        Self { sum: holds.sum_ms / 1e3, buckets: bounds.zip(holds.counts.iter().copied()).collect() }
    }
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> std::fmt::Result {
        let count = self.buckets.iter().map(|(_, n)| n).sum();
        encoder.encode_histogram::<NoLabelSet>(self.sum, count, &self.buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[cfg(test)]
mod tests {
    use super::super::views;
    use super::*;
    use crate::testing::{documented_metrics, metric_rows};
    use anabranch_element::time::Instant;
    use anabranch_lwip::{Config, Node, PassReason, ReleaseReason};

    const PAGE: &str = include_str!("../../../../docs/lwip-operation.md");

    fn sample() -> String {
        let node = Node::new(Config::default(), 1, Instant::ZERO).unwrap();
        let mut node = views::node("n", &node);
        node.links = vec![LwipLink {
            ue: "a \"b\"\\\nc".into(),
            leg: "wifi".into(),
            up: true,
            rtt_ms: Some(12.0),
            rate_bps: Some(1e6),
            probes: 9,
            answers: 8,
        }];
        node.acks.held = 7;
        node.holds.counts[1] = 3;
        node.holds.counts[13] = 1;
        node.holds.sum_ms = 1500.0;
        let status = Status {
            part: "lwip".into(),
            name: "n".into(),
            version: "v".into(),
            uptime_s: 1,
            public_key: String::new(),
            device: String::new(),
            mtu_bytes: 1500,
            sessions: 1,
            connected: 1,
            trouble: [].into(),
            drops: [("unknown_tunnel".to_owned(), 2)].into(),
            ioam: [("marked".into(), 3)].into(),
            workers: Vec::new(),
        };
        text(&status, &node)
    }

    #[test]
    fn values_appear_at_their_metrics() {
        let text = sample();
        for line in [
            "anabranch_lwip_held_acks_total 7",
            "anabranch_lwip_dropped_packets_total{reason=\"unknown_tunnel\"} 2",
            "anabranch_lwip_link_rtt_seconds{ue=\"a \\\"b\\\"\\\\\\nc\",leg=\"wifi\"} 0.012",
            "anabranch_lwip_hold_seconds_sum 1.5",
            "anabranch_lwip_hold_seconds_count 4",
            "anabranch_lwip_hold_seconds_bucket{le=\"0.002\"} 3",
            "anabranch_lwip_hold_seconds_bucket{le=\"+Inf\"} 4",
            "anabranch_lwip_releases_total{reason=\"timer\"} 0",
            "anabranch_lwip_leg_packets_total{leg=\"wifi\"} 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
    }

    /// Name, type and labels of every metric, in the form of the table on the page.
    #[test]
    fn every_metric_is_documented_and_every_documented_metric_exists() {
        let rows = metric_rows(&sample(), "anabranch_lwip_");
        for row in &rows {
            assert!(PAGE.lines().any(|line| line.starts_with(row)), "docs/lwip-operation.md lacks {row}");
        }
        assert_eq!(documented_metrics(PAGE), rows.len());
    }

    #[test]
    fn every_reason_is_documented_once() {
        let passed = PassReason::ALL.iter().map(|reason| reason.name());
        for name in passed.chain(ReleaseReason::ALL.iter().map(|reason| reason.name())) {
            let row = format!("| `{name}` |");
            let rows = PAGE.lines().filter(|line| line.starts_with(&row)).count();
            assert_eq!(rows, 1, "docs/lwip-operation.md: {row}");
        }
    }
}
