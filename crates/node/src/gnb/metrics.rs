//! Metrics of a gNB in the Prometheus text format, built from the current state at each request.

use crate::runtime::api::{BearerLink, Cell, CellLink, CellUe, SliceLink, SliceUse, Status, UeFlow};
use crate::runtime::metrics::{Text, count, encoded, gauge, one, program, traces};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::registry::{Registry, Unit};

/// Maximum number of UEs with metrics of their own; beyond it, only the metrics of cell and slices remain.
pub const MAX_UES: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QuantileLabels {
    quantile: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DirectionLabels {
    direction: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SliceLabels {
    slice: Text,
    direction: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SliceWaitLabels {
    slice: Text,
    direction: &'static str,
    quantile: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UeLabels {
    ue: Text,
    direction: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BearerLabels {
    ue: Text,
    drb: u32,
    direction: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FlowLabels {
    ue: Text,
    qfi: u32,
    direction: &'static str,
}

/// Name, help text, value.
type Column<T, V> = (&'static str, &'static str, fn(&T) -> V);
const DOWN: &str = "downlink";
const UP: &str = "uplink";

/// All metrics as OpenMetrics text. Names begin with `anabranch_gnb_`.
pub fn text(status: &Status, cell: &Cell, slices: &[SliceUse], ues: &[CellUe]) -> String {
    let mut registry = program(status, "Packets not accepted by the cell, by reason");
    one(&mut registry, "ues", "UEs of the cell", None, cell.ues as f64);
    traces(&mut registry, status);
    ticks(&mut registry, cell);
    links(&mut registry, cell);
    of_slices(&mut registry, slices);
    if ues.len() <= MAX_UES {
        of_ues(&mut registry, ues);
        of_flows(&mut registry, ues);
    }
    encoded(&registry)
}

fn ticks(registry: &mut Registry, cell: &Cell) {
    let ticks = &cell.ticks;
    let rows = [("0.5", ticks.p50_us), ("0.99", ticks.p99_us), ("1", ticks.max_us)];
    let rows = rows.map(|(quantile, us)| (QuantileLabels { quantile }, us / 1e6));
    let help = "Lateness of slots since the start; quantile 1 is the maximum";
    gauge(registry, "tick_lateness", help, Some(Unit::Seconds), rows);
    one(registry, "ticks", "Slots run since the start", None, ticks.count as f64);
    one(registry, "late_ticks", "Slots run at least one whole slot late", None, ticks.late as f64);
    let help = "Processor time of the cell's thread since the start";
    one(registry, "cell_processor", help, Some(Unit::Seconds), ticks.processor_ms / 1e3);
}

fn links(registry: &mut Registry, cell: &Cell) {
    let counters: [Column<CellLink, u64>; 13] = [
        ("slots", "Slots of this direction", |l| l.slots),
        ("rbs", "RBs for new data and retransmissions", |l| l.rbs),
        ("used_rbs", "RBs granted for new data", |l| l.used_rbs),
        ("retx_rbs", "RBs of retransmissions", |l| l.retx_rbs),
        ("unused_rbs", "RBs not granted", |l| l.unused_rbs),
        ("blocks", "Transport blocks, first transmissions", |l| l.blocks),
        ("block_bytes", "Capacity of these blocks, bytes", |l| l.block_bytes),
        ("padding_bytes", "Bytes of padding in these blocks", |l| l.padding_bytes),
        ("nacks", "Transmissions that were not decoded", |l| l.nacks),
        ("lost_blocks", "Blocks discarded after the last retransmission", |l| l.lost_blocks),
        ("delivered_packets", "Packets delivered", |l| l.delivered_packets),
        ("delivered_bytes", "Bytes of these packets", |l| l.delivered_bytes),
        ("missed_slots", "Slots skipped because the program was behind the clock", |l| l.missed_slots),
    ];
    for (name, help, value) in counters {
        let rows = [(DOWN, &cell.downlink), (UP, &cell.uplink)];
        count(
            registry,
            name,
            help,
            rows.map(|(direction, link)| (DirectionLabels { direction }, value(link))),
        );
    }
}

fn of_slices(registry: &mut Registry, slices: &[SliceUse]) {
    let rows = || slices.iter().flat_map(|s| [(s, DOWN, &s.downlink), (s, UP, &s.uplink)]);
    let label = |s: &SliceUse, direction| SliceLabels { slice: s.slice.as_str().into(), direction };
    let counters: [Column<SliceLink, u64>; 2] = [
        ("slice_packets", "Packets delivered", |l| l.packets),
        ("slice_bytes", "Bytes of these packets", |l| l.bytes),
    ];
    for (name, help, value) in counters {
        count(registry, name, help, rows().map(|(s, way, link)| (label(s, way), value(link))));
    }
    let waits = rows().flat_map(|(s, direction, link)| {
        let of = |(quantile, ms)| {
            (SliceWaitLabels { slice: s.slice.as_str().into(), direction, quantile }, ms / 1e3)
        };
        [("0.5", link.wait_p50_ms), ("0.99", link.wait_p99_ms), ("1", link.wait_max_ms)].map(of)
    });
    let help = "Wait in SDAP and RLC of packets delivered in the last second";
    gauge(registry, "slice_wait", help, Some(Unit::Seconds), waits.collect::<Vec<_>>());
    let balances = rows().filter_map(|(s, way, link)| Some((label(s, way), f64::from(link.balance_rbs?))));
    gauge(registry, "slice_balance_rbs", "Credit of the slice", None, balances.collect::<Vec<_>>());
}

fn of_ues(registry: &mut Registry, ues: &[CellUe]) {
    let mcs = ues.iter().flat_map(|ue| {
        let of = |direction, mcs: Option<u8>| {
            Some((UeLabels { ue: ue.name.as_str().into(), direction }, f64::from(mcs?)))
        };
        [of(DOWN, ue.downlink_mcs), of(UP, ue.uplink_mcs)].into_iter().flatten()
    });
    gauge(registry, "ue_mcs", "MCS in force; absent in an outage", None, mcs.collect::<Vec<_>>());
    let rows = || {
        ues.iter().flat_map(|ue| {
            ue.bearers.iter().flat_map(move |b| {
                let label =
                    |direction| BearerLabels { ue: ue.name.as_str().into(), drb: b.drb.into(), direction };
                [(label(DOWN), &b.downlink), (label(UP), &b.uplink)]
            })
        })
    };
    let buffered = rows().map(|(label, link)| (label, link.buffer_bytes as f64));
    gauge(
        registry,
        "bearer_buffer",
        "Bytes in the RLC buffer",
        Some(Unit::Bytes),
        buffered.collect::<Vec<_>>(),
    );
    let counters: [Column<BearerLink, u64>; 10] = [
        ("bearer_packets", "Packets delivered", |l| l.delivered_packets),
        ("bearer_bytes", "Bytes of these packets", |l| l.delivered_bytes),
        ("bearer_full_drops", "Packets dropped because the RLC buffer was full", |l| l.full_drops),
        ("bearer_aqm_drops", "Packets dropped by an AQM", |l| l.aqm_drops),
        ("bearer_ce_marks", "Packets marked by an AQM instead of a drop", |l| l.ce_marks),
        ("bearer_retx_pdus", "RLC PDUs retransmitted", |l| l.retx_pdus),
        ("bearer_max_retx_packets", "Packets that RLC AM retransmitted max_retx times", |l| {
            l.max_retx_packets
        }),
        ("bearer_discarded_packets", "Packets that RLC gave up before they were complete", |l| {
            l.discarded_packets
        }),
        ("bearer_missing_packets", "Packets that PDCP waited for and gave up", |l| l.missing_packets),
        ("bearer_late_packets", "Packets that reached PDCP twice, or after they were given up", |l| {
            l.late_packets
        }),
    ];
    for (name, help, value) in counters {
        count(registry, name, help, rows().map(|(label, link)| (label, value(link))));
    }
}

fn of_flows(registry: &mut Registry, ues: &[CellUe]) {
    let rows = || {
        ues.iter().flat_map(|ue| {
            ue.flows.iter().map(move |flow| {
                let direction = if flow.downlink { DOWN } else { UP };
                (FlowLabels { ue: ue.name.as_str().into(), qfi: flow.qfi.into(), direction }, flow)
            })
        })
    };
    let waiting = rows().map(|(label, flow)| (label, flow.waiting_packets as f64));
    gauge(registry, "flow_waiting_packets", "Packets waiting in SDAP", None, waiting.collect::<Vec<_>>());
    let counters: [Column<UeFlow, u64>; 3] = [
        ("flow_full_drops", "Packets dropped because the SDAP queue was full", |f| f.full_drops),
        ("flow_aqm_drops", "Packets dropped in SDAP by an AQM", |f| f.aqm_drops),
        ("flow_ce_marks", "Packets marked in SDAP by an AQM instead of a drop", |f| f.ce_marks),
    ];
    for (name, help, value) in counters {
        count(registry, name, help, rows().map(|(label, flow)| (label, value(flow))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::api::{SlotTimings, UeBearer};
    use crate::testing::{documented_metrics, metric_rows};
    use anabranch_ran::channel::ChannelConfig;
    use anabranch_ran::queue::Algorithm;
    use anabranch_ran::sched::InterAlgorithm;

    const PAGE: &str = include_str!("../../../../docs/ran.md");

    fn sample() -> String {
        let scheduler = serde_json::from_str(&format!("\"{}\"", InterAlgorithm::Drr)).unwrap();
        let cell = Cell {
            name: "g".into(),
            rat: "lte".into(),
            rbs: 25,
            slot_us: 1000.0,
            n3: "ip".into(),
            uplink_scheduler: serde_json::from_str("\"fixed\"").unwrap(),
            scheduler,
            slices: 1,
            ues: 1,
            ticks: SlotTimings {
                count: 9,
                late: 1,
                p50_us: 20.0,
                p99_us: 50.0,
                max_us: 1500.0,
                processor_ms: 250.0,
            },
            downlink: CellLink { missed_slots: 7, ..CellLink::default() },
            uplink: CellLink::default(),
        };
        let link = SliceLink { balance_rbs: Some(-3), ..SliceLink::default() };
        let slice = SliceUse { slice: "a \"b\"\\\nc".into(), ues: 1, downlink: link.clone(), uplink: link };
        let bearer = BearerLink {
            queue: Algorithm::Vanilla.into(),
            delivered_packets: 1,
            delivered_bytes: 2,
            buffer_bytes: 3,
            buffer_max_bytes: 4,
            full_drops: 5,
            aqm_drops: 6,
            ce_marks: 7,
            retx_pdus: 8,
            discarded_packets: 9,
            max_retx_packets: 10,
            missing_packets: 11,
            late_packets: 12,
        };
        let flow = UeFlow {
            qfi: 1,
            downlink: true,
            packets: 1,
            bytes: 2,
            waiting_packets: 3,
            full_drops: 4,
            aqm_drops: 5,
            ce_marks: 6,
            wait_mean_ms: 7.0,
            wait_max_ms: 8.0,
        };
        let ue = CellUe {
            name: "u".into(),
            slice: "a".into(),
            addresses: Vec::new(),
            device: "ue0".into(),
            downlink_mcs: Some(28),
            uplink_mcs: None,
            channel: ChannelConfig::mcs(28),
            uplink_channel: ChannelConfig::mcs(28),
            bearers: vec![UeBearer { drb: 1, rlc: "um".into(), downlink: bearer.clone(), uplink: bearer }],
            flows: vec![flow],
        };
        let status = Status {
            part: "gnb".into(),
            name: "g".into(),
            version: "v".into(),
            uptime_s: 1,
            public_key: String::new(),
            device: String::new(),
            mtu_bytes: 1500,
            sessions: 1,
            connected: 1,
            trouble: [].into(),
            drops: [("unroutable".to_owned(), 1)].into(),
            ioam: [("marked".into(), 3)].into(),
            workers: Vec::new(),
        };
        text(&status, &cell, &[slice], &[ue])
    }

    #[test]
    fn values_appear_at_their_metrics() {
        let text = sample();
        for line in [
            "anabranch_gnb_tick_lateness_seconds{quantile=\"0.99\"} 0.00005",
            "anabranch_gnb_tick_lateness_seconds{quantile=\"1\"} 0.0015",
            "anabranch_gnb_cell_processor_seconds 0.25",
            "anabranch_gnb_missed_slots_total{direction=\"downlink\"} 7",
            "anabranch_gnb_slice_balance_rbs{slice=\"a \\\"b\\\"\\\\\\nc\",direction=\"uplink\"} -3.0",
            "anabranch_gnb_bearer_full_drops_total{ue=\"u\",drb=\"1\",direction=\"downlink\"} 5",
            "anabranch_gnb_bearer_max_retx_packets_total{ue=\"u\",drb=\"1\",direction=\"uplink\"} 10",
            "anabranch_gnb_bearer_missing_packets_total{ue=\"u\",drb=\"1\",direction=\"downlink\"} 11",
            "anabranch_gnb_bearer_late_packets_total{ue=\"u\",drb=\"1\",direction=\"downlink\"} 12",
            "anabranch_gnb_flow_full_drops_total{ue=\"u\",qfi=\"1\",direction=\"downlink\"} 4",
            "anabranch_gnb_flow_aqm_drops_total{ue=\"u\",qfi=\"1\",direction=\"downlink\"} 5",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        assert!(!text.contains("ue_mcs{ue=\"u\",direction=\"uplink\"}"), "an outage has no MCS\n{text}");
    }

    /// Name, type and labels of every metric, in the form of the table on the page.
    #[test]
    fn every_metric_is_documented_and_every_documented_metric_exists() {
        let rows = metric_rows(&sample(), "anabranch_gnb_");
        for row in &rows {
            assert!(PAGE.lines().any(|line| line.starts_with(row)), "docs/ran.md lacks {row}");
        }
        assert_eq!(documented_metrics(PAGE), rows.len());
        assert!(PAGE.contains(&format!("Beyond {MAX_UES} UEs")));
    }
}
