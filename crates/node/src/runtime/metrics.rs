//! Metrics in the Prometheus text format, built from the current state at each request.

use super::api::{Counters, Path, PathLoad, RuleUse, Session, Status, TcpLane, WorkerStatus};
use crate::ue::taps::Taps;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::AtomicU64;

/// A label value from user input, escaped for Prometheus: names may contain any character, and
/// `prometheus_client` does not escape them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Text(String);

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
    }
}

impl EncodeLabelValue for Text {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> std::fmt::Result {
        self.0.encode(encoder)
    }
}

/// Maximum number of sessions whose paths have metrics of their own; beyond it, the sums per access and
/// worker remain.
pub const MAX_SESSIONS: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: Text,
    name: Text,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: Text,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WorkerLabels {
    worker: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WorkerAccessLabels {
    worker: u32,
    access: Text,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SessionLabels {
    ue: Text,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PathLabels {
    ue: Text,
    access: Text,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodingLabels {
    ue: Text,
    what: Text,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RuleLabels {
    ue: Text,
    rule: Text,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RulePathLabels {
    ue: Text,
    rule: Text,
    access: Text,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RuleReasonLabels {
    ue: Text,
    rule: Text,
    access: Text,
    what: Text,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: Text,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnswerLabels {
    what: Text,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AccessLabels {
    access: Text,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CarrierLabels {
    carrier: Text,
}

/// Name, help text, value.
type Column<T> = (&'static str, &'static str, fn(&T) -> u64);
type Number = Gauge<f64, AtomicU64>;

/// All metrics as OpenMetrics text. Names begin with `anabranch_ue_` or `anabranch_upf_`.
pub fn text(status: &Status, sessions: &[Session], lane: &TcpLane) -> String {
    encoded(&registry(status, sessions, lane))
}

/// The metrics of a UE, with its slices.
pub fn ue_text(status: &Status, session: &Session, lane: &TcpLane, taps: &Taps) -> String {
    let mut registry = registry(status, std::slice::from_ref(session), lane);
    slices(&mut registry, taps);
    encoded(&registry)
}

fn slices(registry: &mut Registry, taps: &Taps) {
    let (fresh, stale) = taps.fresh_and_stale();
    let rows = [("fresh", fresh), ("stale", stale)]
        .map(|(state, n)| (StateLabels { state: state.into() }, n as f64));
    gauge(registry, "slices", "Known slices, by whether their data is still valid", None, rows);
    let Some(manager) = taps.usci().map(|usci| usci.view()) else { return };
    let answers = f64::from(u8::from(manager.answers));
    one(registry, "slice_manager_answers", "1 while the slice manager answers", None, answers);
    let answers =
        [("changes", manager.changes), ("unchanged", manager.unchanged), ("failures", manager.failures)];
    let rows = answers.map(|(what, n)| (AnswerLabels { what: what.into() }, n));
    count(
        registry,
        "slice_manager_heard",
        "Answers and events of the slice manager, and failed requests",
        rows,
    );
    let rows = taps.needs().counts().map(|(what, n)| (AnswerLabels { what: what.into() }, n));
    count(registry, "slice_manager_needs", "Requested rates that no slice guarantees, by result", rows);
}

fn registry(status: &Status, sessions: &[Session], lane: &TcpLane) -> Registry {
    let mut registry = program(status, "Packets dropped, by reason");
    one(&mut registry, "sessions", "Sessions configured", None, status.sessions as f64);
    one(&mut registry, "sessions_connected", "Sessions that are up", None, status.connected as f64);
    traces(&mut registry, status);
    workers(&mut registry, status);
    if sessions.len() <= MAX_SESSIONS {
        paths(&mut registry, sessions);
        rules(&mut registry, sessions);
    }
    tcp_lane(&mut registry, lane);
    registry
}

fn tcp_lane(registry: &mut Registry, lane: &TcpLane) {
    let runs = f64::from(u8::from(lane.state == "runs"));
    one(registry, "tcp_lane_runs", "1 while the TCP lane accepts flows", None, runs);
    one(registry, "tcp_lane_flows_now", "Current flows of the TCP lane", None, lane.flows as f64);
    let left = lane.left.iter().map(|left| (AccessLabels { access: left.access.as_str().into() }, 1.0));
    gauge(registry, "tcp_lane_left", "1 for an access without subflows of the TCP lane", None, left);
    let label = |carrier: &str| CarrierLabels { carrier: carrier.into() };
    let columns: [Column<super::api::TcpLaneCarried>; 3] = [
        ("tcp_lane_flows", "Flows of the TCP lane, by transport", |c| c.flows),
        ("tcp_lane_up_bytes", "Bytes of these flows to servers", |c| c.up_bytes),
        ("tcp_lane_down_bytes", "Bytes of these flows from servers", |c| c.down_bytes),
    ];
    for (name, help, value) in columns {
        count(registry, name, help, lane.carried.iter().map(|c| (label(&c.carrier), value(c))));
    }
    let rows = |of: &std::collections::BTreeMap<String, u64>| {
        of.iter().map(|(reason, n)| (ReasonLabels { reason: reason.as_str().into() }, *n)).collect::<Vec<_>>()
    };
    let help = "Flows that used the packet lane instead, by reason";
    count(registry, "tcp_lane_fallback_flows", help, rows(&lane.fallbacks));
    count(
        registry,
        "tcp_lane_refused_flows",
        "Flows refused by the TCP lane, by reason",
        rows(&lane.refused),
    );
    let memory = [
        ("tcp_lane_held", "Memory of data in flows of the TCP lane", lane.held_bytes),
        ("tcp_lane_waiting", "Of it, data of directions without progress for a second", lane.waiting_bytes),
    ];
    for (name, help, value) in memory {
        one(registry, name, help, Some(Unit::Bytes), value as f64);
    }
    let help = "Directions of flows of the TCP lane with limited buffers";
    one(registry, "tcp_lane_limited", help, None, lane.limited as f64);
    tally(registry, "tcp_lane_resets", "Flows of the TCP lane that ended with a reset", lane.resets);
}

/// The metrics common to all agents: build, uptime, drops (with the help text of the drops).
pub(crate) fn program(status: &Status, drops_help: &str) -> Registry {
    let mut registry = Registry::with_prefix(format!("anabranch_{}", status.part));
    let build = BuildLabels { version: status.version.as_str().into(), name: status.name.as_str().into() };
    gauge(&mut registry, "build", "Version and name of the program, always 1", None, [(build, 1.0)]);
    let uptime = status.uptime_s as f64;
    one(&mut registry, "uptime", "Time since the program started", Some(Unit::Seconds), uptime);
    let drops = status.drops.iter().map(|(reason, n)| (ReasonLabels { reason: reason.as_str().into() }, *n));
    count(&mut registry, "dropped_packets", drops_help, drops);
    registry
}

/// The metrics of an IOAM node about traces.
pub(crate) fn traces(registry: &mut Registry, status: &Status) {
    let rows = status.ioam.iter().map(|(what, n)| (AnswerLabels { what: what.as_str().into() }, *n));
    count(registry, "ioam_packets", "Packets with IOAM traces, by result", rows);
}

pub(crate) fn encoded(registry: &Registry) -> String {
    let mut out = String::new();
    // Writing into a String cannot fail.
    let _ = encode(&mut out, registry);
    out
}

fn workers(registry: &mut Registry, status: &Status) {
    let rows = || (0u32..).zip(&status.workers);
    let counters: [Column<WorkerStatus>; 13] = [
        ("device_rx_packets", "Packets read from the inner interface", |w| w.device_rx_packets),
        ("device_rx_frames", "Frames that contained them", |w| w.device_rx_frames),
        ("device_tx_packets", "Packets delivered to the inner interface", |w| w.device_tx_packets),
        ("device_tx_frames", "Frames that contained them", |w| w.device_tx_frames),
        ("device_errors", "Frames rejected by the inner interface", |w| w.device_errors),
        ("handover_packets", "Packets passed to the worker that has their session", |w| w.handed_over),
        ("handover_drops", "Packets dropped because the queue to that worker was full", |w| w.handover_full),
        ("key_conflicts", "Times that a UE was displaced by another device with the same key", |w| {
            w.key_conflicts
        }),
        ("fast_path_flows", "Flows passed to the kernel's fast path", |w| w.fast_flows),
        ("fast_path_taken_back", "Times that a session took its flows back from the fast path", |w| {
            w.fast_taken_back
        }),
        ("fast_path_tx_datagrams", "Datagrams sent by the kernel's fast path", |w| w.fast_tx_datagrams),
        ("fast_path_rx_datagrams", "Datagrams received by the kernel's fast path", |w| w.fast_rx_datagrams),
        ("fast_path_failed", "Datagrams that the fast path lost while building them", |w| w.fast_failed),
    ];
    for (name, help, value) in counters {
        count(registry, name, help, rows().map(|(worker, w)| (WorkerLabels { worker }, value(w))));
    }
    let counters: [Column<Counters>; 8] = [
        ("socket_rx_datagrams", "Datagrams received", |c| c.rx_datagrams),
        ("socket_rx_bytes", "Bytes received, without IP and UDP headers", |c| c.rx_bytes),
        ("socket_tx_datagrams", "Datagrams sent", |c| c.tx_datagrams),
        ("socket_tx_bytes", "Bytes sent, without IP and UDP headers", |c| c.tx_bytes),
        ("socket_tx_batches", "System calls used for sending", |c| c.tx_batches),
        ("socket_tx_full", "Datagrams dropped because the socket buffer was full", |c| c.tx_full),
        ("socket_tx_too_big", "Datagrams larger than the MTU of the interface", |c| c.tx_too_big),
        ("socket_tx_errors", "Datagrams rejected by the kernel", |c| c.tx_errors),
    ];
    for (name, help, value) in counters {
        let rows = rows().flat_map(|(worker, w)| {
            w.accesses.iter().map(move |(access, c)| {
                (WorkerAccessLabels { worker, access: access.as_str().into() }, value(c))
            })
        });
        count(registry, name, help, rows);
    }
}

fn paths(registry: &mut Registry, sessions: &[Session]) {
    let label = |s: &Session| SessionLabels { ue: s.ue.as_str().into() };
    let connected = sessions.iter().map(|s| (label(s), f64::from(u8::from(s.connected))));
    gauge(registry, "session_connected", "1 while the session is up", None, connected);
    let counters: [Column<Session>; 4] = [
        ("session_tx_packets", "Inner packets sent to the peer", |s| s.tx_packets),
        ("session_tx_bytes", "Inner bytes sent to the peer", |s| s.tx_bytes),
        ("session_rx_packets", "Inner packets received from the peer", |s| s.rx_packets),
        ("session_rx_bytes", "Inner bytes received from the peer", |s| s.rx_bytes),
    ];
    for (name, help, value) in counters {
        count(registry, name, help, sessions.iter().map(|s| (label(s), value(s))));
    }

    let rows = || sessions.iter().flat_map(|s| &s.paths);
    let label = |p: &Path| PathLabels { ue: p.ue.as_str().into(), access: p.access.as_str().into() };
    let up = rows().map(|p| (label(p), f64::from(u8::from(p.up))));
    gauge(registry, "path_up", "1 while the path carries traffic", None, up);
    let rtt = rows().filter_map(|p| Some((label(p), p.rtt_ms? / 1000.0)));
    gauge(registry, "path_rtt", "Smoothed round-trip time", Some(Unit::Seconds), rtt);
    let loss = rows().map(|p| (label(p), p.loss_tx_percent / 100.0));
    gauge(registry, "path_loss_tx", "Loss towards the peer", Some(Unit::Ratios), loss);
    let loss = rows().map(|p| (label(p), p.loss_rx_percent / 100.0));
    gauge(registry, "path_loss_rx", "Loss from the peer", Some(Unit::Ratios), loss);
    let known = |value: fn(&PathLoad) -> Option<f64>| {
        rows().filter_map(move |p| Some((label(p), value(p.load.as_ref()?)?))).collect::<Vec<_>>()
    };
    let queue = known(|load| Some(load.queue_ms / 1000.0));
    gauge(registry, "path_queue", "Queueing delay towards the peer", Some(Unit::Seconds), queue);
    let drops = known(|load| Some(load.drops_at_ms? / 1000.0));
    gauge(
        registry,
        "path_drop_level",
        "Queueing delay at which packets are dropped",
        Some(Unit::Seconds),
        drops,
    );
    let capacity = known(|load| Some(load.capacity_bps? as f64));
    gauge(registry, "path_capacity_bps", "Measured capacity towards the peer, in bit/s", None, capacity);
    let estimate = known(|load| Some(load.estimate_bps? as f64));
    gauge(registry, "path_estimate_bps", "Estimated capacity, in bit/s", None, estimate);
    let random = known(|load| Some(load.random_loss_percent / 100.0));
    gauge(
        registry,
        "path_random_loss",
        "Loss towards the peer without congestion",
        Some(Unit::Ratios),
        random,
    );
    let lasting = known(|load| Some(load.lasting_loss_rx_percent / 100.0));
    gauge(
        registry,
        "path_lasting_loss_rx",
        "Loss from the peer without congestion, median of two seconds",
        Some(Unit::Ratios),
        lasting,
    );
    let steady = known(|load| Some(f64::from(load.steady_loss_percent) / 100.0));
    gauge(
        registry,
        "path_steady_loss",
        "Loss towards the peer without congestion, median of eight samples",
        Some(Unit::Ratios),
        steady,
    );
    let mtu = rows().map(|p| (label(p), f64::from(p.mtu_bytes)));
    gauge(registry, "path_mtu", "Largest UDP payload known to pass", Some(Unit::Bytes), mtu);
    let counters: [Column<Path>; 7] = [
        ("path_tx_packets", "Datagrams with user data or a probe sent", |p| p.tx_packets),
        ("path_tx_bytes", "Bytes of user data, including tunnel headers", |p| p.tx_bytes),
        ("path_rx_packets", "Datagrams with user data or a probe received", |p| p.rx_packets),
        ("path_rx_bytes", "Bytes of user data, including tunnel headers", |p| p.rx_bytes),
        ("path_tx_fragments", "Fragments sent, of packets larger than the path MTU", |p| p.tx_fragments),
        ("path_rx_fragments", "Fragments received", |p| p.rx_fragments),
        ("path_rx_incomplete", "Packets lost because a fragment did not arrive", |p| p.rx_incomplete),
    ];
    for (name, help, value) in counters {
        count(registry, name, help, rows().map(|p| (label(p), value(p))));
    }
}

/// The metrics of rules that have seen packets, and of coded redundancy.
fn rules(registry: &mut Registry, sessions: &[Session]) {
    let uses = || sessions.iter().flat_map(|s| &s.uses).filter(|used| !used.packets.is_empty());
    let packets = uses().flat_map(|used| {
        let label = |access: &String| {
            let (ue, rule) = (used.ue.as_str().into(), used.rule.as_str().into());
            RulePathLabels { ue, rule, access: access.as_str().into() }
        };
        used.packets.iter().map(move |(access, n)| (label(access), *n)).collect::<Vec<_>>()
    });
    count(registry, "rule_packets", "Packets sent under a rule", packets);
    let of = |used: &RuleUse, access: &String, what: &str| RuleReasonLabels {
        ue: used.ue.as_str().into(),
        rule: used.rule.as_str().into(),
        access: access.as_str().into(),
        what: what.into(),
    };
    let excluded = uses()
        .flat_map(|used| used.not_used.iter().map(move |not| (of(used, &not.access, &not.reason), 1.0)));
    gauge(registry, "rule_not_used", "1 while a rule does not use an access, by reason", None, excluded);
    let laws = || {
        let paths = uses().filter_map(|used| Some((used, &used.law.as_ref()?.paths)));
        paths.flat_map(|(used, paths)| paths.iter().map(move |(access, path)| (used, access, path)))
    };
    let packets = laws().flat_map(|(used, access, path)| {
        let counts = [("home", path.at_home), ("spilled", path.spilled), ("overflowed", path.overflowed)];
        counts.map(|(what, n)| (of(used, access, what), n))
    });
    count(registry, "rule_law_packets", "Packets of autonomous rules, by how they were assigned", packets);
    let flows = laws().flat_map(|(used, access, path)| {
        let counts = [("placed", path.placed), ("moved", path.moved), ("left", path.left)];
        counts.map(|(what, n)| (of(used, access, what), n))
    });
    count(registry, "rule_law_flows", "Flows of autonomous rules, by event", flows);
    let pauses = uses().filter_map(|used| {
        Some((
            RuleLabels { ue: used.ue.as_str().into(), rule: used.rule.as_str().into() },
            used.law.as_ref()?.pauses,
        ))
    });
    count(
        registry,
        "rule_overflow_pauses",
        "Times that overflow was paused because it reduced throughput",
        pauses,
    );
    let coded = sessions.iter().filter_map(|s| Some((s, s.coded.as_ref()?))).flat_map(|(s, coded)| {
        let counts = [
            ("sent", coded.tx_packets),
            ("repairs_sent", coded.tx_repairs),
            ("received", coded.rx_packets),
            ("repairs_received", coded.rx_repairs),
            ("restored", coded.restored),
            ("late", coded.late),
            ("given_up", coded.given_up),
        ];
        counts.map(|(what, n)| (CodingLabels { ue: s.ue.as_str().into(), what: what.into() }, n))
    });
    count(registry, "session_coded_packets", "Packets of coded mode, by kind and result", coded);
}

/// The labels of a metric.
pub(crate) trait Label:
    std::fmt::Debug + Clone + Eq + std::hash::Hash + EncodeLabelSet + Send + Sync + 'static
{
}
impl<T: std::fmt::Debug + Clone + Eq + std::hash::Hash + EncodeLabelSet + Send + Sync + 'static> Label for T {}

/// Registers a counter with the current values of its rows.
pub(crate) fn count<L: Label>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    rows: impl IntoIterator<Item = (L, u64)>,
) {
    let family = Family::<L, Counter>::default();
    for (label, value) in rows {
        family.get_or_create(&label).inc_by(value);
    }
    registry.register(name, help, family);
}

/// Registers a counter without labels.
pub(crate) fn tally(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let counter = Counter::<u64>::default();
    counter.inc_by(value);
    registry.register(name, help, counter);
}

/// Registers a gauge with the current values of its rows.
pub(crate) fn gauge<L: Label>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    rows: impl IntoIterator<Item = (L, f64)>,
) {
    let family = Family::<L, Number>::default();
    for (label, value) in rows {
        family.get_or_create(&label).set(value);
    }
    match unit {
        Some(unit) => registry.register_with_unit(name, help, unit, family),
        None => registry.register(name, help, family),
    }
}

/// Registers a gauge without labels.
pub(crate) fn one(registry: &mut Registry, name: &str, help: &str, unit: Option<Unit>, value: f64) {
    let number = Number::default();
    number.set(value);
    match unit {
        Some(unit) => registry.register_with_unit(name, help, unit, number),
        None => registry.register(name, help, number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{documented_metrics, metric_rows};
    use anabranch_atsss::drops::DropReason;
    use std::collections::BTreeSet;

    const PAGE: &str = include_str!("../../../../docs/operations.md");

    fn sample(part: &str) -> String {
        let path = Path {
            ue: "u".into(),
            id: 0,
            access: "5g".into(),
            up: true,
            why: None,
            endpoint: None,
            security: "secure".into(),
            rtt_ms: Some(1.0),
            rtt_min_ms: None,
            loss_tx_percent: 0.0,
            loss_rx_percent: 0.0,
            tx_packets: 0,
            tx_bytes: 0,
            rx_packets: 0,
            rx_bytes: 0,
            mtu_bytes: 0,
            tx_fragments: 0,
            rx_fragments: 0,
            rx_incomplete: 0,
            load: Some(PathLoad {
                drops_at_ms: Some(1.0),
                capacity_bps: Some(1),
                estimate_bps: Some(1),
                ..PathLoad::default()
            }),
        };
        let not =
            super::super::api::NotUsed { access: "5g".into(), reason: "later".into(), why: String::new() };
        let law = super::super::api::Law {
            paths: [("5g".to_owned(), super::super::api::LawPath::default())].into(),
            ..super::super::api::Law::default()
        };
        let used = RuleUse {
            ue: "u".into(),
            packets: [("5g".to_owned(), 1)].into(),
            not_used: vec![not],
            law: Some(law),
            ..RuleUse::default()
        };
        let session = Session {
            ue: "u".into(),
            public_key: String::new(),
            addresses: Vec::new(),
            connected: true,
            tx_packets: 0,
            tx_bytes: 0,
            rx_packets: 0,
            rx_bytes: 0,
            paths: vec![path],
            uses: vec![used],
            coded: Some(super::super::api::CodingCounters::default()),
        };
        let worker = WorkerStatus {
            accesses: [("5g".to_owned(), Counters::default())].into(),
            ..WorkerStatus::default()
        };
        let status = Status {
            part: part.into(),
            name: "n".into(),
            version: "v".into(),
            uptime_s: 1,
            public_key: String::new(),
            device: String::new(),
            mtu_bytes: 0,
            sessions: 1,
            connected: 1,
            trouble: [].into(),
            drops: [("forged".to_owned(), 1)].into(),
            ioam: [("marked".into(), 3)].into(),
            workers: vec![worker],
        };
        let carried = super::super::api::TcpLaneCarried {
            carrier: "mptcp".into(),
            flows: 1,
            up_bytes: 2,
            down_bytes: 3,
        };
        let lane = TcpLane {
            state: "runs".into(),
            why: None,
            flows: 1,
            max_flows: 2,
            carried: vec![carried],
            fallbacks: [("no_lane".to_owned(), 1)].into(),
            refused: [("limit".to_owned(), 1)].into(),
            resets: 0,
            held_bytes: 3,
            waiting_bytes: 2,
            limited: 1,
            left: vec![super::super::api::TcpLaneLeft { access: "wifi".into(), why: "down".into() }],
        };
        text(&status, &[session], &lane)
    }

    /// Name, type and labels of every metric, in the form of the table on the page.
    #[test]
    fn every_metric_is_documented_and_every_documented_metric_exists() {
        for part in ["ue", "upf"] {
            let rows = metric_rows(&sample(part), &format!("anabranch_{part}_"));
            for row in &rows {
                assert!(PAGE.lines().any(|line| line.starts_with(row)), "docs/operations.md lacks {row}");
            }
            assert_eq!(documented_metrics(PAGE), rows.len());
        }
    }

    #[test]
    fn every_reason_of_a_drop_is_documented_once() {
        for reason in DropReason::ALL {
            let row = format!("| `{}` |", reason.name());
            assert_eq!(PAGE.lines().filter(|l| l.starts_with(&row)).count(), 1, "docs/operations.md: {row}");
        }
    }

    /// The kinds of events in the sources of the agents.
    #[test]
    fn every_event_is_documented() {
        let sources = [
            include_str!("../ue/run.rs"),
            include_str!("../upf/run.rs"),
            include_str!("../upf/requests.rs"),
            include_str!("../gnb/mod.rs"),
            include_str!("../gnb/requests.rs"),
            include_str!("../lwip/requests.rs"),
            include_str!("../proxy/run/requests.rs"),
            include_str!("views.rs"),
            include_str!("why.rs"),
        ];
        let kind = |call: &'static str| {
            sources.iter().flat_map(move |source| {
                source.split(call).skip(1).filter_map(|rest| rest.split('"').next()).collect::<Vec<_>>()
            })
        };
        let kinds: BTreeSet<&str> = kind("event(\"").chain(kind("about(\"")).collect();
        assert!(kinds.len() >= 12, "{kinds:?}");
        for kind in kinds {
            assert!(
                PAGE.lines()
                    .any(|l| l.starts_with("| `")
                        && l.split('|').nth(1).unwrap().contains(&format!("`{kind}`"))),
                "docs/operations.md lacks the event {kind}"
            );
        }
    }

    #[test]
    fn limits_are_as_documented() {
        let limits = PAGE.split("## Limits").nth(1).unwrap();
        for row in [
            format!("paths of a session | {} |", anabranch_atsss::MAX_PATHS),
            format!("with metrics of their own | {MAX_SESSIONS} sessions |"),
            format!("events kept | {} |", super::super::api::MAX_STORED_EVENTS),
        ] {
            assert!(limits.contains(&row), "docs/operations.md lacks: {row}");
        }
    }
}
