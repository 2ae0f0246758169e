//! Conversion of the node's state into its REST representation.

use crate::runtime::api;
use anabranch_element::time::Instant;
use anabranch_lwip::{FlowView, HOLD_BUCKETS_US, Leg, LinkView, Node, PassReason, ReleaseReason, Stats};
use std::net::SocketAddr;

/// Maximum number of UEs whose links are shown and have metrics of their own.
pub const MAX_UES: usize = 256;

/// State of the node.
pub fn node(name: &str, node: &Node) -> api::LwipNode {
    let (config, stats) = (node.config(), node.stats());
    api::LwipNode {
        name: name.to_owned(),
        steering: config.steering,
        other: config.other,
        wifi_leg: config.wifi_leg,
        dida: config.dida,
        ues: config.ues.len() as u64,
        flows: node.flow_count().into(),
        new_flows: stats.new_flows,
        evicted_flows: stats.evicted_flows,
        memory_bytes: node.bytes() as u64,
        legs: Leg::ALL.map(|leg| self::leg(leg, stats)).to_vec(),
        links: config.ues.iter().take(MAX_UES).flat_map(|ue| links(&ue.name, node)).collect(),
        acks: api::LwipAcks {
            uplink_packets: stats.uplink_packets,
            advances: stats.advances,
            duplicates: stats.dup_acks,
            let_through: stats.dup_acks_passed,
            triple_duplicates: stats.triple_dup_acks,
            held: stats.held,
            holding: node.held_acks().into(),
            released: stats.released_acks,
            superseded: stats.superseded_acks,
        },
        holds: holds(stats),
        passed: PassReason::ALL.map(|r| (r.name().to_owned(), stats.passed[r.index()])).into(),
    }
}

/// State of a flow.
pub fn flow(view: &FlowView, now: Instant) -> api::LwipFlow {
    let key = &view.key;
    let [lte, wifi] = Leg::ALL.map(|leg| view.packets[leg as usize]);
    api::LwipFlow {
        server: SocketAddr::new(key.src, key.src_port).to_string(),
        ue: SocketAddr::new(key.dst, key.dst_port).to_string(),
        lte_packets: lte,
        wifi_packets: wifi,
        in_flight_bytes: view.in_flight_bytes,
        holding: view.holding,
        held: view.held_acks,
        idle_s: now.saturating_since(view.last_seen).as_secs_f64(),
    }
}

fn leg(leg: Leg, stats: &Stats) -> api::LwipLeg {
    let (of, steered) = (&stats.legs[leg as usize], stats.steered[leg as usize]);
    let all: u64 = stats.steered.iter().sum();
    api::LwipLeg {
        leg: leg.name().to_owned(),
        packets: of.packets,
        bytes: of.bytes,
        steered,
        steered_percent: if all == 0 { 0.0 } else { steered as f64 * 100.0 / all as f64 },
    }
}

fn links(ue: &str, node: &Node) -> Vec<api::LwipLink> {
    let known = |value: f64| (value > 0.0).then_some(value);
    let link = |view: LinkView| api::LwipLink {
        ue: ue.to_owned(),
        leg: view.leg.name().to_owned(),
        up: view.up,
        rtt_ms: known(view.rtt_us / 1e3),
        rate_bps: known(view.rate_bps),
        probes: view.probes,
        answers: view.answers,
    };
    // Without probes there are no measurements.
    let probed = node.config().probe.is_some();
    node.links(ue).filter(|_| probed).map_or_else(Vec::new, |links| links.map(link).to_vec())
}

fn holds(stats: &Stats) -> api::LwipHolds {
    api::LwipHolds {
        ended: ReleaseReason::ALL.map(|r| (r.name().to_owned(), stats.releases[r.index()])).into(),
        bounds_ms: HOLD_BUCKETS_US.iter().map(|us| *us as f64 / 1e3).collect(),
        counts: stats.hold_histogram.to_vec(),
        sum_ms: stats.hold_sum_ns as f64 / 1e6,
    }
}
