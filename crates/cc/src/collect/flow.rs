//! One flow: its path, its sender's TCP state, and the losses between source and collector.

use super::CaptureInfo;
use super::path::{ms, wall_us};
use super::stats::{Gauge, Latency, OvertakenDetector, stamp_us};
use super::view::FlowView;
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ioam::{Head, Sequence, TcpState};
use anabranch_wire::ip::FlowKey;

/// A packet number that differs by more than this from the expected one means that the source restarted.
const MAX_JUMP: i64 = 1 << 20;

/// Accounting of packets by the sequence numbers of the source.
#[derive(Debug, Clone, Copy)]
struct SequenceTracker {
    first: i64,
    highest: i64,
    /// The highest number in its wire form, wrapped.
    raw: Sequence,
    received: u64,
    /// Missing packets before the last restart of the source.
    missing_before: u64,
}

impl SequenceTracker {
    const fn new(raw: Sequence, missing_before: u64) -> Self {
        Self { first: 0, highest: 0, raw, received: 1, missing_before }
    }

    /// Records a packet; returns whether it was overtaken by a newer one.
    fn take(&mut self, raw: Sequence) -> bool {
        let offset = match (self.raw, raw) {
            (Sequence::Short(before), Sequence::Short(now)) => i64::from(now.wrapping_sub(before) as i32),
            (Sequence::Long(before), Sequence::Long(now)) => now.wrapping_sub(before) as i64,
            _ => i64::MAX,
        };
        if !(-MAX_JUMP..=MAX_JUMP).contains(&offset) {
            *self = Self::new(raw, self.missing());
            return false;
        }
        let number = self.highest + offset;
        self.first = self.first.min(number);
        self.received += 1;
        if offset > 0 {
            self.highest = number;
            self.raw = raw;
        }
        offset < 0
    }

    /// Number of sequence numbers that were sent but not seen; duplicates reduce it.
    fn missing(&self) -> u64 {
        let sent = (self.highest - self.first + 1).unsigned_abs();
        self.missing_before + sent.saturating_sub(self.received)
    }
}

/// One flow.
#[derive(Debug)]
pub(super) struct Flow {
    /// Number of the flow's path.
    pub(super) path: u64,
    path_changes: u64,
    traces: u64,
    bytes: u64,
    first: Instant,
    pub(super) last: Instant,
    numbered: Option<SequenceTracker>,
    tcp: Option<TcpState>,
    overtaken_detector: OvertakenDetector,
    end_to_end: Latency,
}

impl Flow {
    pub(super) fn new(path: u64, at: Instant) -> Self {
        Self {
            path,
            path_changes: 0,
            traces: 0,
            bytes: 0,
            first: at,
            last: at,
            numbered: None,
            tcp: None,
            overtaken_detector: OvertakenDetector::default(),
            end_to_end: Latency::default(),
        }
    }

    /// Records a packet of this flow.
    pub(super) fn take(&mut self, path: u64, head: &Head<'_>, seen: &CaptureInfo, window: Duration) {
        self.traces += 1;
        self.bytes += u64::from(seen.bytes);
        self.last = self.last.max(seen.at);
        let sent = head.edge.and_then(|edge| stamp_us(edge.seconds, edge.fraction));
        let mut overtaken = self.overtaken_detector.was_overtaken(sent, seen.at);
        // Sequence numbers are more reliable than time stamps.
        match (&mut self.numbered, head.edge.and_then(|edge| edge.sequence)) {
            (Some(numbered), Some(raw)) => overtaken = numbered.take(raw),
            (none, Some(raw)) => *none = Some(SequenceTracker::new(raw, 0)),
            _ => {}
        }
        if !overtaken {
            self.path_changes += u64::from(path != self.path);
            self.path = path;
            self.tcp = head.tcp.or(self.tcp);
        }
        // Clock errors are counted by the path; this is the same packet.
        let _ = self.end_to_end.record((sent, wall_us(seen)), Gauge::recorder(overtaken), seen.at, window);
    }

    pub(super) fn view(&self, key: &FlowKey, now: Instant, window: Duration) -> FlowView {
        FlowView {
            source: (key.src, key.src_port).into(),
            destination: (key.dst, key.dst_port).into(),
            protocol: key.protocol,
            path: self.path,
            path_changes: self.path_changes,
            traces: self.traces,
            bytes: self.bytes,
            first_ms: self.first.as_millis(),
            silent_ms: ms(now.saturating_since(self.last)),
            numbered: self.numbered.map(|n| n.received),
            missing: self.numbered.map(|n| n.missing()),
            cwnd_segments: self.tcp.map(|tcp| tcp.cwnd),
            ssthresh_segments: self.tcp.map(|tcp| tcp.ssthresh).filter(|v| *v != u32::MAX),
            srtt_us: self.tcp.map(|tcp| tcp.srtt_us),
            end_to_end: self.end_to_end.view(now, window),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_numbers_are_counted_and_late_ones_deducted() {
        let short = Sequence::Short;
        let mut numbered = SequenceTracker::new(short(u32::MAX), 0);
        let mut missing = |raw| {
            let _ = numbered.take(raw);
            numbered.missing()
        };
        // Across the 32-bit wrap; 1 and 2 arrive late.
        assert_eq!([0, 3, 2, 1].map(|n| missing(short(n))), [0, 2, 1, 0]);
        // A packet sent before the first one that was seen.
        assert_eq!(missing(short(u32::MAX - 1)), 0);
        // A restart of the source keeps the earlier count of missing packets.
        assert_eq!(missing(short(6)), 2);
        assert_eq!([7, 9].map(|n| missing(Sequence::Long(n))), [2, 3]);
    }
}
