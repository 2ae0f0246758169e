//! Patterns of all metrics and series that a run produces. Both the reference in docs/scenarios.md and the check of names in
//! claims and plots use this list.

use crate::scenario::model::Case;
use anabranch_element::names::nearest;

/// A metric: its name, unit and description.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Name; `<flow>`, `<ue>`, `<access>`, `<upf>`, `<link>`, `<dir>`, `<gnb>`, `<lwip>`, `<qfi>`, `<slice>`, `<n>` stand for names of the scenario.
    pub name: &'static str,
    /// Unit of its values.
    pub unit: &'static str,
    /// Description.
    pub doc: &'static str,
}

const fn metric(name: &'static str, unit: &'static str, doc: &'static str) -> Metric {
    Metric { name, unit, doc }
}

/// Suffixes that exist where a scenario has more than one run.
pub const STATISTICS: [&str; 4] = ["mean", "min", "max", "p99"];

/// Single values.
pub const METRICS: &[Metric] = &[
    metric(
        "flow.<flow>.goodput_mbps",
        "Mbit/s",
        "application data delivered per second of sending within the window",
    ),
    metric("flow.<flow>.delivered_bytes", "bytes", "application data delivered within the window"),
    metric(
        "flow.<flow>.outage_ms",
        "ms",
        "longest time without a delivery while the flow was sending, within the window",
    ),
    metric("flow.<flow>.sent_packets", "packets", "UDP: packets sent in the whole run"),
    metric(
        "flow.<flow>.lost_packets",
        "packets",
        "UDP: packets sent but not delivered, neither until the end nor while packets under way still arrive after it",
    ),
    metric("flow.<flow>.lost_percent", "%", "UDP: the same, as a percentage of the packets sent"),
    metric("flow.<flow>.reordered_packets", "packets", "UDP: packets delivered after a later one"),
    metric("flow.<flow>.duplicate_packets", "packets", "UDP: packets delivered twice"),
    metric("flow.<flow>.delay_p50_ms", "ms", "UDP: one-way delay, median; for a ping flow, round-trip time"),
    metric("flow.<flow>.delay_p95_ms", "ms", "the same, 95th percentile"),
    metric("flow.<flow>.delay_p99_ms", "ms", "the same, 99th percentile"),
    metric("flow.<flow>.delay_max_ms", "ms", "the same, maximum"),
    metric(
        "flow.<flow>.paths",
        "",
        "`via = \"slices\"`: number of paths chosen by the UE's policy; several mean Multipath TCP, or in virtual time the UE's session",
    ),
    metric(
        "flow.<flow>.initial_window_segments",
        "segments",
        "`via = \"slices\"`: initial window of the route that the UE's agent set up for the flow",
    ),
    metric("flow.<flow>.retransmissions", "segments", "TCP: retransmitted data segments in the whole run"),
    metric("flow.<flow>.timeouts", "", "TCP: retransmission timeouts"),
    metric(
        "flow.<flow>.spurious_retransmissions",
        "segments",
        "TCP: data segments without new data for the receiver",
    ),
    metric("flow.<flow>.duplicate_acks", "", "TCP: duplicate ACKs received by the sender in the whole run"),
    metric(
        "flow.<flow>.triple_duplicates",
        "",
        "TCP: how often the sender received a third consecutive duplicate ACK",
    ),
    metric("flow.<flow>.fast_retransmits", "", "TCP: window reductions because of a loss, except timeouts"),
    metric("flow.<flow>.undos", "", "TCP: reductions undone because nothing had been lost"),
    metric(
        "flow.<flow>.cuts_per_mb",
        "1/MB",
        "TCP: reductions and timeouts per acknowledged megabyte, including those undone; absent if nothing was acknowledged",
    ),
    metric("flow.<flow>.traces", "", "TCP with `telemetry`: filled traces received"),
    metric("flow.<flow>.trace_nodes", "", "the same, virtual backend: largest number of nodes in a trace"),
    metric("flow.<flow>.reports", "", "TCP with `telemetry`: reports received by the sender"),
    metric(
        "flow.<flow>.report_age_ms",
        "ms",
        "the same, virtual backend: mean time from the arrival of a trace to the departure of its report with an ACK, in steps of \
         8 ms, plus the time in a broker",
    ),
    metric(
        "flow.<flow>.telemetry_percent",
        "%",
        "TCP with `telemetry`: share of traces and reports in all bytes of the flow's packets, both ways",
    ),
    metric("flow.<flow>.completed", "", "TCP with `bytes`: 1 if all bytes arrived"),
    metric(
        "flow.<flow>.intact",
        "",
        "TCP: 1 if all delivered bytes equal those sent; mavlink: 1 if everything received is messages with correct checksums",
    ),
    metric("flow.<flow>.frames", "pictures", "ffmpeg: pictures in the recording"),
    metric(
        "flow.<flow>.completion_s",
        "s",
        "TCP with `bytes`: time from start to the last byte; absent if it did not complete",
    ),
    metric("flow.<flow>.responses", "", "request_response and ping: responses received in the whole run"),
    metric(
        "flow.<flow>.response_p50_ms",
        "ms",
        "request_response: time from the request to the complete response, median",
    ),
    metric("flow.<flow>.response_p95_ms", "ms", "the same, 95th percentile"),
    metric("flow.<flow>.response_p99_ms", "ms", "the same, 99th percentile"),
    metric(
        "flow.<flow>.reorderings",
        "",
        "netns, TCP: gaps that the sender attributed to reordering; sum over all senders in its namespace",
    ),
    metric(
        "flow.<flow>.reordering_packets",
        "packets",
        "netns, TCP: largest reordering distance that the sender tolerated before it considered a packet lost",
    ),
    metric(
        "ue.<ue>.path.<access>.up_bytes",
        "bytes",
        "IP bytes that the UE sent on the access, including the tunnel",
    ),
    metric(
        "ue.<ue>.path.<access>.down_bytes",
        "bytes",
        "IP bytes that the UE received on the access, including the tunnel",
    ),
    metric(
        "ue.<ue>.path.<access>.up_share_percent",
        "%",
        "share of the access in the bytes that the UE sent within the window",
    ),
    metric(
        "ue.<ue>.path.<access>.down_share_percent",
        "%",
        "share of the access in the bytes that the UE received within the window",
    ),
    metric("ue.<ue>.path.<access>.rtt_ms", "ms", "mean RTT of the UE's probes within the window"),
    metric("ue.<ue>.path.<access>.failures", "", "number of path failures detected by the UE or the UPF"),
    metric(
        "ue.<ue>.memory_growth_percent",
        "%",
        "netns: growth of the memory of its process from the second to the last tenth of the run",
    ),
    metric("ue.<ue>.log_errors", "", "netns: warnings and errors in its log, except path failures"),
    metric(
        "ue.<ue>.cpu_percent",
        "%",
        "netns: processor time of its process within the window, relative to one core",
    ),
    metric(
        "ue.<ue>.tcp_lane_flows",
        "",
        "netns, with a rule of functionality `mptcp`: TCP flows that Multipath TCP carried from the UE to the UPF",
    ),
    metric("upf.<upf>.memory_growth_percent", "%", "the same for the UPF"),
    metric("upf.<upf>.cpu_percent", "%", "the same for the UPF"),
    metric("upf.<upf>.log_errors", "", "the same for the UPF"),
    metric("link.<link>.<dir>.carried_bytes", "bytes", "IP bytes that arrived at the far end of the link"),
    metric("link.<link>.<dir>.queue_drops", "packets", "packets dropped because the queue was full"),
    metric("link.<link>.<dir>.random_losses", "packets", "packets dropped by the loss model"),
    metric(
        "link.<link>.<dir>.down_losses",
        "packets",
        "packets lost because the link was down or a black hole",
    ),
    metric(
        "link.<link>.late_p99_us",
        "µs",
        "netns: delay of packets on the emulated link beyond that of the model, 99th percentile",
    ),
    metric(
        "gnb.<gnb>.rb_percent",
        "%",
        "downlink RBs that carried data within the window, including retransmissions",
    ),
    metric("gnb.<gnb>.retx_rb_percent", "%", "downlink RBs used for retransmissions"),
    metric("gnb.<gnb>.padding_percent", "%", "share of padding in the transport blocks"),
    metric(
        "gnb.<gnb>.useful_mbps",
        "Mbit/s",
        "data carried by the transport blocks, without padding and retransmissions",
    ),
    metric(
        "gnb.<gnb>.capacity_mbps",
        "Mbit/s",
        "virtual time: data if in each slot all RBs for data went to the UE with the largest block. Several smaller blocks may carry up to some percent more, most with few RBs (sizes of blocks are rounded)",
    ),
    metric("gnb.<gnb>.up_rb_percent", "%", "uplink RBs that carried data, including retransmissions"),
    metric("gnb.<gnb>.up_retx_rb_percent", "%", "uplink RBs used for retransmissions"),
    metric("gnb.<gnb>.up_padding_percent", "%", "share of padding in the uplink transport blocks"),
    metric(
        "gnb.<gnb>.up_useful_mbps",
        "Mbit/s",
        "data carried by the uplink transport blocks, without padding and retransmissions",
    ),
    metric(
        "gnb.<gnb>.up_capacity_mbps",
        "Mbit/s",
        "virtual time: upper bound of the data carried in the uplink",
    ),
    metric(
        "gnb.<gnb>.ue.<ue>.rb_share_percent",
        "%",
        "virtual time: the UE's share of the downlink RBs for new data",
    ),
    metric("gnb.<gnb>.ue.<ue>.useful_mbps", "Mbit/s", "virtual time: data carried by its transport blocks"),
    metric(
        "gnb.<gnb>.slice.<slice>.rb_share_percent",
        "%",
        "virtual time: the slice's share of the downlink RBs for new data",
    ),
    metric(
        "gnb.<gnb>.ue.<ue>.qfi<qfi>.wait_mean_ms",
        "ms",
        "waiting time from SDAP to the transmission of the last byte: mean over the packets of a QoS flow that were \
         delivered within the window",
    ),
    metric("gnb.<gnb>.ue.<ue>.qfi<qfi>.wait_p50_ms", "ms", "the same, median"),
    metric("gnb.<gnb>.ue.<ue>.qfi<qfi>.wait_p95_ms", "ms", "the same, 95th percentile"),
    metric("gnb.<gnb>.ue.<ue>.qfi<qfi>.wait_p99_ms", "ms", "the same, 99th percentile"),
    metric(
        "gnb.<gnb>.ue.<ue>.qfi<qfi>.least_wait_mean_ms",
        "ms",
        "virtual time: lower bound of the waiting time of the same packets, with no packet before them and all RBs of each \
         slot for the UE: mean",
    ),
    metric("gnb.<gnb>.ue.<ue>.qfi<qfi>.least_wait_p95_ms", "ms", "the same, 95th percentile"),
    metric("gnb.<gnb>.ue.<ue>.qfi<qfi>.least_wait_p99_ms", "ms", "the same, 99th percentile"),
    metric(
        "gnb.<gnb>.ue.<ue>.qfi<qfi>.up_wait_mean_ms",
        "ms",
        "virtual time: waiting time in the uplink, including that for the grant, mean",
    ),
    metric("gnb.<gnb>.ue.<ue>.qfi<qfi>.up_wait_p95_ms", "ms", "the same, 95th percentile"),
    metric("gnb.<gnb>.ue.<ue>.qfi<qfi>.up_wait_p99_ms", "ms", "the same, 99th percentile"),
    metric(
        "gnb.<gnb>.ue.<ue>.qfi<qfi>.up_least_wait_mean_ms",
        "ms",
        "virtual time: lower bound of the waiting time in the uplink, without that for the grant, mean",
    ),
    metric("gnb.<gnb>.ue.<ue>.qfi<qfi>.up_least_wait_p95_ms", "ms", "the same, 95th percentile"),
    metric("gnb.<gnb>.ue.<ue>.qfi<qfi>.up_least_wait_p99_ms", "ms", "the same, 99th percentile"),
    metric("gnb.<gnb>.ue.<ue>.qfi<qfi>.within_1ms_percent", "%", "packets that waited less than 1 ms"),
    metric("gnb.<gnb>.ue.<ue>.qfi<qfi>.within_2ms_percent", "%", "less than 2 ms"),
    metric("gnb.<gnb>.ue.<ue>.qfi<qfi>.within_4ms_percent", "%", "less than 4 ms"),
    metric("gnb.<gnb>.ue.<ue>.qfi<qfi>.within_50ms_percent", "%", "less than 50 ms"),
    metric("gnb.<gnb>.ue.<ue>.qfi<qfi>.sdap_wait_mean_ms", "ms", "waiting time in SDAP, mean"),
    metric("gnb.<gnb>.ue.<ue>.qfi<qfi>.rlc_wait_mean_ms", "ms", "waiting time in RLC, mean"),
    metric(
        "gnb.<gnb>.ue.<ue>.qfi<qfi>.reassembly_wait_mean_ms",
        "ms",
        "waiting time at the UE for the rest of the packet and for earlier packets, mean",
    ),
    metric("gnb.<gnb>.ue.<ue>.qfi<qfi>.total_mean_ms", "ms", "from SDAP to the UE's application side, mean"),
    metric("gnb.<gnb>.late_p50_us", "µs", "netns: lateness of the cell's slots, median"),
    metric("gnb.<gnb>.late_p99_us", "µs", "the same, 99th percentile"),
    metric("gnb.<gnb>.late_max_us", "µs", "the same, maximum"),
    metric("gnb.<gnb>.late_slots_percent", "%", "netns: slots processed at least one slot late"),
    metric(
        "gnb.<gnb>.processor_percent",
        "%",
        "netns: processor time of the cell's thread share of one processor",
    ),
    metric("lwip.<lwip>.lte_packets", "packets", "LWIP: downlink TCP packets with data sent over LTE"),
    metric("lwip.<lwip>.wifi_packets", "packets", "the same over Wi-Fi"),
    metric("lwip.<lwip>.lte_percent", "%", "share of LTE in the sum of both"),
    metric("lwip.<lwip>.acks", "", "LWIP: ACKs of downloads received by the node"),
    metric("lwip.<lwip>.duplicate_acks", "", "duplicates among these ACKs"),
    metric("lwip.<lwip>.let_through", "", "duplicate ACKs forwarded immediately"),
    metric("lwip.<lwip>.held_acks", "", "duplicate ACKs held"),
    metric(
        "lwip.<lwip>.triple_duplicates",
        "",
        "how often the node forwarded a third consecutive duplicate ACK to the sender",
    ),
    metric("lwip.<lwip>.superseded_acks", "", "held ACKs discarded because the missing ACK arrived"),
    metric("lwip.<lwip>.released_acks", "", "held ACKs forwarded later"),
    metric("lwip.<lwip>.holds", "", "number of holds; a hold begins with the first held ACK of a flow"),
    metric("lwip.<lwip>.holds_filled", "", "holds that ended because the missing ACK arrived"),
    metric("lwip.<lwip>.holds_timed_out", "", "holds that ended by the timer"),
    metric("lwip.<lwip>.holds_ended_otherwise", "", "holds that ended for another reason"),
    metric(
        "lwip.<lwip>.hidden_gaps",
        "",
        "ACKs that advanced and were forwarded without their SACK blocks, which were held",
    ),
    metric("lwip.<lwip>.flows", "", "flows in the table of the node, maximum over the samples"),
    metric(
        "lwip.<lwip>.memory_bytes",
        "bytes",
        "memory of its flows, held ACKs and timers, maximum over the samples",
    ),
    metric("lwip.<lwip>.hold_mean_ms", "ms", "duration of a hold, mean"),
    metric("lwip.<lwip>.hold_p50_ms", "ms", "the same, median"),
    metric("lwip.<lwip>.hold_p99_ms", "ms", "the same, 99th percentile"),
    metric("metric.<name>", "", "a user-defined metric, from `[metric]`"),
    metric("memory.<n>.naive_users", "users", "users that fit with the flat table (n sessions per user)"),
    metric("memory.<n>.htl_users", "users", "the same with hierarchical lookup only"),
    metric("memory.<n>.utss_users", "users", "the same with the unified steering structure only"),
    metric("memory.<n>.junction_users", "users", "the same with both"),
];

/// Series, for plots.
pub const SERIES: &[Metric] = &[
    metric("flow.<flow>.goodput_mbps", "Mbit/s", "application data delivered, per sample"),
    metric(
        "flow.<flow>.delay_ms",
        "ms",
        "UDP: one-way delay of each packet (thinned); for a ping flow, each round-trip time",
    ),
    metric("flow.<flow>.response_ms", "ms", "request_response: each response time"),
    metric("flow.<flow>.cwnd_bytes", "bytes", "TCP: congestion window of the sender"),
    metric(
        "flow.<flow>.cwnd_change_bytes",
        "bytes",
        "TCP with `telemetry`: change of the same since the previous sample",
    ),
    metric(
        "flow.<flow>.told_losses",
        "packets",
        "TCP with `telemetry`: medium losses reported to the sender, per sample",
    ),
    metric(
        "flow.<flow>.told_queue_bytes",
        "bytes",
        "TCP with `telemetry`: bottleneck queue in the sender's latest report",
    ),
    metric(
        "flow.<flow>.triple_duplicates",
        "",
        "TCP: third consecutive duplicate ACKs received by the sender so far",
    ),
    metric(
        "ue.<ue>.path.<access>.up_mbps",
        "Mbit/s",
        "rate of IP bytes that the UE sent on the access, per sample",
    ),
    metric(
        "ue.<ue>.path.<access>.down_mbps",
        "Mbit/s",
        "rate of IP bytes that the UE received on the access, per sample",
    ),
    metric("ue.<ue>.path.<access>.rtt_ms", "ms", "RTT measured by the UE's probes; 0 while the path is down"),
    metric("link.<link>.<dir>.queue_bytes", "bytes", "bytes in the link's queue"),
    metric(
        "gnb.<gnb>.ue.<ue>.qfi<qfi>.wait_ms",
        "ms",
        "waiting time from SDAP to the MAC of each packet of a QoS flow",
    ),
    metric("gnb.<gnb>.ue.<ue>.qfi<qfi>.sdap_wait_ms", "ms", "the part of this time in SDAP"),
    metric("gnb.<gnb>.ue.<ue>.qfi<qfi>.rlc_wait_ms", "ms", "the part of this time in RLC"),
    metric(
        "gnb.<gnb>.ue.<ue>.rlc_bytes",
        "bytes",
        "bytes in the UE's RLC buffers after the tick, per sample",
    ),
    metric("gnb.<gnb>.ue.<ue>.mcs", "", "virtual time: the UE's MCS, per sample"),
    metric(
        "gnb.<gnb>.ue.<ue>.tbs_bytes",
        "bytes",
        "virtual time: size of a transport block with all RBs of the cell at this MCS, per sample",
    ),
    metric("lwip.<lwip>.hold_ms", "ms", "LWIP: duration of each hold, at its end"),
    metric("lwip.<lwip>.held_acks", "", "ACKs held so far, per sample"),
    metric("lwip.<lwip>.lte_percent", "%", "share of LTE in the downlink TCP packets with data, per sample"),
    metric(
        "gnb.<gnb>.slice.<slice>.owed_rbs",
        "RBs",
        "RBs owed to a slice, per sample: its quantum or lag, if the scheduler maintains one",
    ),
];

/// Whether `name` can exist for one of `cases`.
///
/// # Errors
/// The problem, with similar names.
pub fn check(name: &str, list: &[Metric], cases: &[&Case]) -> Result<(), String> {
    let base = STATISTICS.iter().find_map(|s| name.strip_suffix(s)?.strip_suffix('.'));
    let of = |name: &str| {
        cases.iter().any(|case| {
            case.own_name(name).is_some_and(|own| list.iter().any(|metric| is_of(metric.name, own, case)))
        })
    };
    if of(name) || base.is_some_and(of) {
        return Ok(());
    }
    let mut known: Vec<String> = Vec::new();
    for case in cases {
        let prefix = case.variant.as_ref().map_or(String::new(), |v| format!("{v}."));
        known.extend(names(list, case).into_iter().map(|n| format!("{prefix}{n}")));
    }
    Err(format!("there is no `{name}`{}", near(name, known.iter().map(String::as_str))))
}

/// Whether `name` matches a pattern of [`METRICS`] or [`SERIES`] in a case. Equivalent to a search in [`names`], without the list.
fn is_of(pattern: &str, name: &str, case: &Case) -> bool {
    let (mut ue, mut gnb) = (None, "");
    let mut names = name.split('.');
    let fits = pattern.split('.').all(|part| {
        let Some(name) = names.next() else { return false };
        match part {
            "<flow>" => case.flows.contains_key(name),
            "<ue>" if gnb.is_empty() => {
                ue = case.ues.get(name);
                ue.is_some()
            }
            "<ue>" => case.ues_of(gnb).iter().any(|(ue, _)| *ue == name),
            "<access>" => ue.is_some_and(|ue| ue.accesses.iter().any(|access| access.name == name)),
            "<upf>" => case.upfs.contains_key(name),
            "<link>" => case.links.contains_key(name),
            "<dir>" => matches!(name, "up" | "down"),
            "<gnb>" => {
                gnb = name;
                case.gnbs.contains_key(name)
            }
            "<slice>" => case.gnbs.get(gnb).is_some_and(|gnb| gnb.slices().iter().any(|s| s.name == name)),
            "qfi<qfi>" => name.strip_prefix("qfi").is_some_and(|qfi| {
                case.gnbs.get(gnb).is_some_and(|gnb| gnb.qfis().iter().any(|known| known.to_string() == qfi))
            }),
            "<lwip>" => case.lwips.contains_key(name),
            "<name>" => case.derived.contains_key(name),
            "<n>" => case.memory.is_some() && matches!(name, "1" | "2" | "4" | "8"),
            word => word == name,
        }
    });
    fits && names.next().is_none()
}

/// Up to three similar names, as the end of a sentence.
#[must_use]
pub fn near<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> String {
    let found: Vec<String> = nearest(wrong, known, 3).iter().map(|name| format!("`{name}`")).collect();
    if found.is_empty() { String::new() } else { format!("; near: {}", found.join(", ")) }
}

/// All names of `list` for one case.
fn names(list: &[Metric], case: &Case) -> Vec<String> {
    let mut names = Vec::new();
    for metric in list {
        let flows =
            |pattern: &str| case.flows.keys().map(|f| pattern.replace("<flow>", f)).collect::<Vec<_>>();
        match metric.name.split('.').next() {
            Some("flow") => names.extend(flows(metric.name)),
            Some("ue") => {
                for (ue, of) in &case.ues {
                    let one = metric.name.replace("<ue>", ue);
                    names.extend(of.accesses.iter().map(|a| one.replace("<access>", &a.name)));
                }
            }
            Some("upf") => names.extend(case.upfs.keys().map(|u| metric.name.replace("<upf>", u))),
            Some("link") => {
                for link in case.links.keys() {
                    let one = metric.name.replace("<link>", link);
                    names.extend(["up", "down"].map(|d| one.replace("<dir>", d)));
                }
            }
            Some("gnb") => {
                for (name, gnb) in &case.gnbs {
                    let one = metric.name.replace("<gnb>", name);
                    let slices = gnb.slices().into_iter().map(|s| one.replace("<slice>", &s.name));
                    let ues = case.ues_of(name).into_iter().map(|(ue, _)| one.replace("<ue>", ue));
                    let qfis = |one: String| {
                        gnb.qfis().into_iter().map(move |q| one.replace("<qfi>", &q.to_string()))
                    };
                    let all: std::collections::BTreeSet<String> =
                        match (one.contains("<slice>"), one.contains("<ue>")) {
                            (true, _) => slices.collect(),
                            (_, true) => ues.flat_map(qfis).collect(),
                            _ => [one].into(),
                        };
                    names.extend(all);
                }
            }
            Some("lwip") => names.extend(case.lwips.keys().map(|l| metric.name.replace("<lwip>", l))),
            Some("metric") => {
                names.extend(case.derived.keys().map(|n| metric.name.replace("<name>", n)));
            }
            Some("memory") => {
                let counts = case.memory.iter().flat_map(|_| ["1", "2", "4", "8"]);
                names.extend(counts.map(|n| metric.name.replace("<n>", n)));
            }
            _ => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario;
    use std::path::Path;

    #[test]
    fn a_name_is_known_by_its_parts_as_by_the_list_of_all() {
        let scenarios = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
        for file in [
            "papers/rlc/table6-slices.toml",
            "papers/lwip/fig2-3-cwnd.toml",
            "papers/junction/table5-memory.toml",
            "papers/junction/fig12-aggregation.toml",
            "atsss/handover-to-cell.toml",
        ] {
            let scenario = scenario::load(&scenarios.join(file), &[], scenario::Form::Full).unwrap();
            for case in &scenario.cases {
                for list in [METRICS, SERIES] {
                    let known = names(list, case);
                    let is_known = |name: &str| list.iter().any(|metric| is_of(metric.name, name, case));
                    for name in &known {
                        assert!(is_known(name), "{file}: {name}");
                        for wrong in [format!("{name}.x"), format!("x{name}"), name.replacen('.', ".x", 1)] {
                            assert!(!is_known(&wrong) || known.contains(&wrong), "{file}: {wrong}");
                        }
                    }
                }
            }
        }
    }
}
