//! A report as text: a table of hops, a table of flows, and a summary of problems.

use super::report::Report;
use crate::ctl::table::{bytes, or_dash, rate, table};
use anabranch_cc::collect::{CollectCounters, FlowView, GaugeView, HopView, LatencyView, PathView};

/// Maximum number of flows in the table; JSON has all of them.
const MOST_ROWS: usize = 50;

const HOPS: [&str; 14] = [
    "path", ">hop", "node", ">queue", ">peak", ">of", ">waits", ">arrives", ">link", ">flows", ">dropped",
    ">lost", ">latency", "radio",
];
const FLOWS: [&str; 10] =
    ["from", "to", ">path", ">traces", ">missing", ">cwnd", ">ssthresh", ">RTT", ">latency", ">silent"];

/// The complete report.
pub fn text(report: &Report) -> String {
    if report.paths.is_empty() {
        return format!(
            "no traces on {} yet{}\n",
            report.interfaces.join(" "),
            troubles(report).map_or_else(String::new, |what| format!(" ({what})"))
        );
    }
    let mut page = hops_table(&report.paths);
    page.push('\n');
    page += &flows_table(&report.flows[..report.flows.len().min(MOST_ROWS)]);
    if report.flows.len() > MOST_ROWS {
        page += &format!("and {} more: --json prints all of them\n", report.flows.len() - MOST_ROWS);
    }
    page += &format!("\n{} traces on {}", report.counters.traces, report.interfaces.join(" "));
    if let Some(what) = troubles(report) {
        page += &format!("; {what}");
    }
    page.push('\n');
    page
}

/// Paths, one row per hop.
pub fn hops_table(paths: &[PathView]) -> String {
    table(&HOPS, paths.iter().flat_map(hops))
}

/// Flows, one row per flow.
pub fn flows_table(flows: &[FlowView]) -> String {
    table(&FLOWS, flows.iter().map(flow))
}

fn hops(path: &PathView) -> impl Iterator<Item = Vec<String>> + '_ {
    path.hops.iter().enumerate().map(move |(at, hop)| {
        let first = if at == 0 { format!("{}: {}", path.number, path.name) } else { String::new() };
        let mark = if path.bottleneck == Some(at) { " *" } else { "" };
        let id = hop.node.map_or_else(|| "?".to_owned(), |id| id.to_string());
        vec![
            first,
            (at + 1).to_string(),
            format!("{id}{mark}"),
            or_dash(hop.depth_bytes.map(|l| bytes(l.last.into()))),
            or_dash(hop.depth_bytes.map(|l| bytes(l.most.into()))),
            or_dash(hop.capacity_bytes.map(|b| bytes(b.into()))),
            or_dash(hop.queue_us.map(millis)),
            or_dash(hop.arrival_kbps.map(kbps)),
            or_dash(hop.link_kbps.map(kbps)),
            or_dash(hop.flows.map(|n| n.to_string())),
            or_dash(hop.queue_drops.map(|n| n.to_string())),
            or_dash(hop.medium_losses.map(|n| n.to_string())),
            or_dash(hop.latency.map(latency)),
            radio(hop),
        ]
    })
}

/// The reported radio state, such as `MCS 17, 37.5 % of RBs, RLC 12.0 KiB`.
fn radio(hop: &HopView) -> String {
    let parts = [
        hop.mcs.map(|mcs| format!("MCS {mcs}")),
        hop.rb_share_percent.map(|share| format!("{share} % of RBs")),
        hop.rlc_bytes.map(|rlc| format!("RLC {}", bytes(rlc.last.into()))),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

fn flow(flow: &FlowView) -> Vec<String> {
    vec![
        flow.source.to_string(),
        flow.destination.to_string(),
        flow.path.to_string(),
        flow.traces.to_string(),
        or_dash(flow.missing.map(|n| n.to_string())),
        or_dash(flow.cwnd_segments.map(|n| n.to_string())),
        or_dash(flow.ssthresh_segments.map(|n| n.to_string())),
        or_dash(flow.srtt_us.map(|us| millis(us.into()))),
        or_dash(flow.end_to_end.map(latency)),
        format!("{:.1} s", flow.silent_ms as f64 / 1000.0),
    ]
}

fn kbps(level: GaugeView) -> String {
    rate(f64::from(level.last) * 1000.0)
}

fn latency(latency: LatencyView) -> String {
    millis(latency.mean_us.into())
}

fn millis(us: u64) -> String {
    format!("{:.1} ms", us as f64 / 1000.0)
}

/// The problems that occurred, with their counters; `None` if there were none.
fn troubles(report: &Report) -> Option<String> {
    let CollectCounters {
        malformed,
        overflowed,
        hops_left_out,
        paths_evicted,
        flows_evicted,
        node_restarts,
        clock_errors,
        ..
    } = report.counters;
    let parts: Vec<String> = [
        (malformed, "malformed"),
        (overflowed, "without room for a node"),
        (hops_left_out, "hops left out"),
        (paths_evicted, "paths evicted"),
        (flows_evicted, "flows evicted"),
        (node_restarts, "restarts of nodes' counters"),
        (clock_errors, "with clock errors"),
        (report.kernel_drops, "lost for lack of kernel buffers"),
    ]
    .into_iter()
    .filter(|(n, _)| *n > 0)
    .map(|(n, what)| format!("{n} {what}"))
    .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::json;

    /// A report in which every field has a value.
    pub fn sample() -> Report {
        let level = |last| GaugeView { last, mean: last, most: 2 * last };
        let latency = LatencyView { last_us: 3000, mean_us: 2900, most_us: 3100 };
        let hop = HopView {
            node: Some(2),
            hop_limit: Some(63),
            interface_in: None,
            interface_out: None,
            depth_bytes: Some(level(1500)),
            capacity_bytes: Some(150_000),
            arrival_kbps: Some(level(19_000)),
            link_kbps: Some(level(20_000)),
            flows: Some(3),
            queue_drops: Some(7),
            medium_losses: Some(9),
            mcs: Some(17),
            rb_share_percent: Some(37.5),
            rlc_bytes: Some(level(640)),
            queue_us: Some(600),
            transit_us: None,
            latency: Some(latency),
        };
        let path = PathView {
            number: 1,
            name: "?-2".to_owned(),
            namespace: 123,
            hops: vec![HopView { node: None, link_kbps: None, mcs: None, ..hop.clone() }, hop],
            bottleneck: Some(1),
            traces: 10,
            bytes: 9000,
            flows_seen: 1,
            first_ms: 0,
            silent_ms: 4,
            complete: true,
            overflow: false,
            to_first: None,
            end_to_end: Some(latency),
        };
        let flow = FlowView {
            source: "[fd00::1]:4711".parse().unwrap(),
            destination: "[fd00::2]:80".parse().unwrap(),
            protocol: 6,
            path: 1,
            path_changes: 0,
            traces: 10,
            bytes: 9000,
            first_ms: 0,
            silent_ms: 40,
            numbered: Some(10),
            missing: Some(1),
            cwnd_segments: Some(33),
            ssthresh_segments: None,
            srtt_us: Some(9000),
            end_to_end: Some(latency),
        };
        Report {
            sink: "s".to_owned(),
            unix_ms: 1,
            interval_ms: 1000,
            interfaces: vec!["eth0".to_owned()],
            kernel_drops: 5,
            counters: CollectCounters { traces: 10, malformed: 2, ..CollectCounters::default() },
            paths: vec![path],
            flows: vec![flow],
        }
    }

    #[test]
    fn the_text_shows_bottleneck_and_problems() {
        let page = text(&sample());
        let lines: Vec<&str> = page.lines().collect();
        assert!(lines[1].starts_with("1: ?-2") && !lines[1].contains('*'), "{page}");
        assert!(lines[2].contains("2 *") && lines[2].contains("20.0 Mbit/s"), "{page}");
        assert!(lines[2].ends_with("MCS 17, 37.5 % of RBs, RLC 640 B"), "{page}");
        assert!(page.contains("[fd00::1]:4711") && page.contains("2.9 ms"), "{page}");
        assert!(
            page.ends_with("10 traces on eth0; 2 malformed, 5 lost for lack of kernel buffers\n"),
            "{page}"
        );
        let none = Report { paths: Vec::new(), flows: Vec::new(), kernel_drops: 0, ..sample() };
        assert_eq!(text(&none), "no traces on eth0 yet (2 malformed)\n");
    }

    #[test]
    fn json_contains_the_whole_report() {
        let line = sample().json().unwrap();
        assert_eq!(line.lines().count(), 1);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        let hop = &value["paths"][0]["hops"][1];
        assert_eq!(hop["depth_bytes"], json!({ "last": 1500, "mean": 1500, "most": 3000 }));
        assert_eq!((&hop["mcs"], &hop["rb_share_percent"]), (&json!(17), &json!(37.5)));
        assert_eq!(value["flows"][0]["source"], "[fd00::1]:4711");
        assert_eq!(value["counters"]["malformed"], 2);
    }
}
