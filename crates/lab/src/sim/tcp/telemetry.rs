//! In-band telemetry of one end (docs/int-cc.md).
//!
//! ```text
//!   sender    one data segment in `every` ──▶ an empty IOAM trace in front of TCP
//!   receiver  a filled trace ──▶ report, TCP option 0x72 on the pure ACKs of the next 248 ms
//!   sender    option 0x72 ──▶ congestion controller
//! ```
//!
//! With a broker (§VI-B of the paper: the sink publishes, the controller subscribes), a report reaches the controller later:
//!
//! ```text
//!   option 0x72 ──▶ the newest one, every `interval` ──▶ `delay` ──▶ congestion controller
//! ```
//!
//! As in `bpf/`, the reply is the newest report: in the long form if it fits, in the short form beside two SACK blocks, and none
//! beside three.

use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ioam::{
    self, FEEDBACK_LEN, FEEDBACK_SHORT_LEN, Feedback, HOP_BY_HOP, TraceHeader, TraceType, trace_header_len,
};
use anabranch_wire::tcp::{TCP_OPTIONS_MAX, TcpOptions};
use std::collections::VecDeque;

/// IOAM namespace of the kernel's examples, also used by this project.
pub const NAMESPACE: u16 = 123;
/// Size of the data of a node that reports all fields, units of 4 bytes: hop, queue depth, opaque snapshot.
const NODE_WORDS: u8 = 9;
/// Maximum number of nodes in an IPv6 option.
pub const MOST_NODES: u8 = 6;
/// How long a report is repeated: the range of the age field.
const ANSWER: Duration = Duration::from_millis(248);
/// Unit of the age field, ms.
const AGE_UNIT_MS: u128 = 8;
const NEXT_HEADER_TCP: u8 = 6;

/// Telemetry options of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Telemetry {
    /// One data segment in this many carries a trace; at least 1.
    pub every: u32,
    /// Nodes a trace has room for, 1 to [`MOST_NODES`].
    pub nodes: u8,
    /// Broker that delivers reports to the controller. Without one they are delivered with the ACK that carries them.
    pub broker: Option<Broker>,
}

/// A broker between the sink of traces and the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broker {
    /// Time between two published reports.
    pub interval: Duration,
    /// Time from publication to delivery at the controller.
    pub delay: Duration,
}

impl Telemetry {
    /// Size of a trace with its IPv6 extension header, bytes.
    #[must_use]
    pub const fn header_bytes(&self) -> usize {
        trace_header_len(NODE_WORDS * self.nodes)
    }
}

/// Counters of one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TelemetryStats {
    /// Traces sent.
    pub traces_out: u64,
    /// Traces received with data of at least one node.
    pub traces_in: u64,
    /// Maximum number of nodes in one of them.
    pub trace_nodes: u64,
    /// Reports passed to the congestion controller.
    pub reports_in: u64,
    /// Sum of their ages at that time since the trace arrived at the sink, in steps of [`AGE_UNIT_MS`] except for the broker's part.
    pub reports_age: Duration,
    /// Bytes of all IP packets sent, and of traces and reports among them.
    pub sent_bytes: u64,
    /// See `sent_bytes`.
    pub telemetry_bytes: u64,
}

/// Telemetry state of one end; see the module documentation.
#[derive(Debug)]
pub struct TelemetryEnd {
    config: Telemetry,
    /// Data segments sent since the last trace.
    credit: u32,
    answer: Option<(Instant, Feedback)>,
    /// The newest report.
    report: Option<Feedback>,
    /// Time of the last publication by the broker, and the reports in delivery with their publication times.
    published_at: Option<Instant>,
    published: VecDeque<(Instant, Feedback)>,
    stats: TelemetryStats,
}

impl TelemetryEnd {
    /// An end without any report.
    pub fn new(config: Telemetry) -> Self {
        Self {
            config,
            credit: 0,
            answer: None,
            report: None,
            published_at: None,
            published: VecDeque::new(),
            stats: TelemetryStats::default(),
        }
    }

    /// Adds a trace to a data packet that leaves, if it is due.
    pub fn trace(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        self.stats.sent_bytes += packet.len() as u64;
        self.credit = self.credit.saturating_add(1);
        if self.credit < self.config.every {
            return None;
        }
        let trace = TraceHeader::new(NAMESPACE, TraceType::REPORTED, NODE_WORDS * self.config.nodes);
        let mut header = [0; trace_header_len(NODE_WORDS * MOST_NODES)];
        let len = ioam::emit_trace_header(NEXT_HEADER_TCP, &trace, &mut header).ok()?;
        let mut bytes = Vec::with_capacity(packet.len() + len);
        bytes.extend_from_slice(packet);
        // Only an IPv6 packet can carry a trace.
        ioam::insert(&mut bytes, HOP_BY_HOP, &header[..len]).ok()?;
        self.credit = 0;
        self.stats.traces_out += 1;
        self.stats.sent_bytes += len as u64;
        self.stats.telemetry_bytes += len as u64;
        Some(bytes)
    }

    /// Processes a packet with hop-by-hop options.
    pub fn on_trace(&mut self, packet: &[u8], now: Instant) {
        // With traces, the elements that join wires leave hop limits unchanged, so they do not appear as routers.
        if let Ok(Some(report)) = ioam::report(packet, 0) {
            self.stats.traces_in += 1;
            let trace = ioam::head(packet).ok().and_then(|head| head.trace);
            let nodes = trace.map_or(0, |trace| trace.nodes().count() as u64);
            self.stats.trace_nodes = self.stats.trace_nodes.max(nodes);
            self.answer = Some((now, report));
        }
    }

    /// Adds the report to a pure ACK that leaves, if there is one and it fits.
    pub fn answer(&mut self, options: &mut TcpOptions, headers_bytes: usize, now: Instant) {
        self.stats.sent_bytes += headers_bytes as u64;
        let Some((at, mut report)) = self.answer else { return };
        let waited = now.saturating_since(at);
        let room = TCP_OPTIONS_MAX - options.len();
        if waited > ANSWER || room < FEEDBACK_SHORT_LEN {
            return;
        }
        if room < FEEDBACK_LEN {
            report.bottleneck = None;
        }
        report.age = (waited.as_millis() / AGE_UNIT_MS).min(31) as u8;
        let before = options.len();
        if report.emit(&mut options.report).is_ok() {
            let added = (options.len() - before) as u64;
            self.stats.sent_bytes += added;
            self.stats.telemetry_bytes += added;
        }
    }

    /// Processes the options of a segment. Returns the report to pass to the congestion controller now, if any.
    pub fn on_segment(&mut self, options: &TcpOptions, now: Instant) -> Option<Feedback> {
        let report = Feedback::parse(&options.report).ok().flatten();
        let (report, waited) = match self.config.broker {
            None => (report?, Duration::ZERO),
            Some(broker) => self.by_broker(broker, report, now)?,
        };
        self.stats.reports_in += 1;
        self.stats.reports_age += Duration::from_millis(u64::from(report.age) * AGE_UNIT_MS as u64) + waited;
        let age = u128::from(report.age) + waited.as_millis() / AGE_UNIT_MS;
        let report = Feedback { age: age.min(31) as u8, ..report };
        self.report = Some(report);
        Some(report)
    }

    /// The newest report delivered by the broker so far, and its age from publication to delivery.
    fn by_broker(
        &mut self,
        broker: Broker,
        report: Option<Feedback>,
        now: Instant,
    ) -> Option<(Feedback, Duration)> {
        let due = |at: Instant| now.saturating_since(at);
        if let Some(report) = report
            && self.published_at.is_none_or(|at| due(at) >= broker.interval)
        {
            self.published_at = Some(now);
            self.published.push_back((now, report));
        }
        let mut newest = None;
        while let Some(&(at, report)) = self.published.front().filter(|(at, _)| due(*at) >= broker.delay) {
            newest = Some((report, due(at)));
            self.published.pop_front();
        }
        // As with ACKs: a report older than the age field can express is not delivered.
        newest.filter(|(_, waited)| *waited <= ANSWER)
    }

    /// The newest report.
    pub fn report(&self) -> Option<&Feedback> {
        self.report.as_ref()
    }

    /// Counters.
    pub fn stats(&self) -> TelemetryStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_wire::ioam::{Hop, NodeData, Opaque, SNAPSHOT_SCHEMA, Snapshot};
    use anabranch_wire::tcp::{SackBlocks, TcpHeader, emit_packet};

    fn segment() -> Vec<u8> {
        let (src, dst) = ("[fd00::1]:1".parse().unwrap(), "[fd00::2]:2".parse().unwrap());
        emit_packet(src, dst, &TcpHeader::default(), &[0; 500]).unwrap()
    }

    #[test]
    fn one_segment_in_so_many_carries_a_trace() {
        let mut end = TelemetryEnd::new(Telemetry { every: 4, nodes: 2, broker: None });
        let with: Vec<bool> = (0..12).map(|_| end.trace(&segment()).is_some()).collect();
        assert_eq!(with.iter().filter(|b| **b).count(), 3);
        assert!(with[3] && with[7] && with[11]);
        let bytes = Telemetry { every: 4, nodes: 2, broker: None }.header_bytes() as u64;
        let stats = end.stats();
        assert_eq!((stats.traces_out, stats.telemetry_bytes), (3, 3 * bytes));
        assert_eq!(stats.sent_bytes, 12 * segment().len() as u64 + 3 * bytes);
    }

    #[test]
    fn reports_are_returned_as_far_as_they_fit() {
        let mut end = TelemetryEnd::new(Telemetry { every: 1, nodes: 6, broker: None });
        let mut packet = end.trace(&segment()).unwrap();
        let (queue_drops, medium_losses) = (Some(0), Some(7));
        let snapshot =
            Snapshot { link_kbps: Some(20_000), queue_drops, medium_losses, ..Snapshot::default() };
        let data = snapshot.emit();
        let node = NodeData {
            hop: Some(Hop { limit: 64, node_id: Some(1) }),
            snapshot: Some(Opaque { schema: SNAPSHOT_SCHEMA, data: &data }),
            ..NodeData::default()
        };
        let range = ioam::trace_range(&packet).unwrap().unwrap();
        ioam::fill(&mut packet[range], &node).unwrap();
        let at = Instant::from_millis(100);
        end.on_trace(&packet, at);
        let answer = |end: &mut TelemetryEnd, blocks: u32, now| {
            let mut options = TcpOptions { timestamps: Some((1, 2)), ..TcpOptions::default() };
            let mut sack = SackBlocks::default();
            (0..blocks).for_each(|i| assert!(sack.push(i, i + 1)));
            options.sack = sack;
            end.answer(&mut options, 0, now);
            assert!(options.len() <= TCP_OPTIONS_MAX);
            end.on_segment(&options, now)
        };
        for blocks in 0..=2 {
            let told = answer(&mut end, blocks, at + Duration::from_millis(17)).unwrap();
            assert_eq!((told.medium_losses, told.age, told.complete), (7, 2, true));
            assert_eq!(told.bottleneck.is_some(), blocks < 2, "the short form beside two blocks");
        }
        assert_eq!(answer(&mut end, 3, at), None, "no room beside three");
        assert_eq!(answer(&mut end, 0, at + Duration::from_millis(249)), None, "too old to be worth sending");
        assert_eq!(end.stats().reports_in, 3);
    }

    #[test]
    fn a_broker_publishes_at_intervals_and_delivers_later() {
        let ms = Duration::from_millis;
        let broker = Some(Broker { interval: ms(50), delay: ms(20) });
        let mut end = TelemetryEnd::new(Telemetry { every: 1, nodes: 2, broker });
        let mut told = Vec::new();
        // One ACK every 10 ms; its report contains its number.
        for n in 0..20 {
            let mut options = TcpOptions::default();
            Feedback { medium_losses: n, ..Feedback::default() }.emit(&mut options.report).unwrap();
            let at = Instant::from_millis(1000 + 10 * u64::from(n));
            told.extend(end.on_segment(&options, at).map(|report| (n, report.medium_losses, report.age)));
        }
        assert_eq!(told, [(2, 0, 2), (7, 5, 2), (12, 10, 2), (17, 15, 2)]);
        assert_eq!(end.stats().reports_in, 4);
        assert_eq!(end.stats().reports_age, ms(80));
        // A report that was not fetched for long is not delivered.
        assert_eq!(end.on_segment(&TcpOptions::default(), Instant::from_millis(9000)), None);
    }
}
