//! Data sent and not yet acknowledged: which segments were SACKed, are considered lost, or have been retransmitted.
//!
//! ```text
//!              push                ack (cumulative): gone
//!                │                        ▲
//!                ▼       sack             │
//!           ┌─────────┐ ───────▶ ┌────────┴──┐
//!           │ in      │          │  sacked   │
//!           │ flight  │ ◀──┐     └───────────┘
//!           └─────────┘    │ retransmit  ▲
//!                │ lost    │             │ sack
//!                ▼         │             │
//!           ┌──────────────┴──┐          │
//!           │ lost, to resend │──────────┘
//!           └─────────────────┘
//! ```
//!
//! Transmissions are also kept in the order in which they were sent, as RACK needs it.

use super::ranges::Ranges;
use super::rate::SentState;
use anabranch_element::time::Instant;
use std::collections::{BTreeSet, VecDeque};

/// A segment that was sent.
#[derive(Debug, Clone, Copy)]
pub struct Segment {
    /// First sequence number.
    pub seq: u64,
    /// Length in sequence numbers: bytes, and one for FIN.
    pub len: u32,
    /// Whether the last sequence number is FIN.
    pub fin: bool,
    /// Time of the last transmission.
    pub sent_at: Instant,
    /// Number of that transmission; increases over the connection.
    pub transmission: u64,
    /// Whether it was ever retransmitted.
    pub retransmitted: bool,
    /// Delivery state at the last transmission.
    pub sent_state: SentState,
    status: Status,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    InFlight,
    Sacked,
    /// Considered lost and not retransmitted since.
    Lost,
}

impl Segment {
    /// One past its last sequence number.
    pub fn end(&self) -> u64 {
        self.seq + u64::from(self.len)
    }

    /// Whether a SACK covered it.
    pub fn is_sacked(&self) -> bool {
        self.status == Status::Sacked
    }

    /// Whether it waits for retransmission.
    pub fn is_lost(&self) -> bool {
        self.status == Status::Lost
    }
}

/// The scoreboard of a sender; see the module documentation.
#[derive(Debug, Default)]
pub struct Scoreboard {
    segments: VecDeque<Segment>,
    /// SACKed ranges at or above the first segment.
    sacked: Ranges,
    /// Lost segments by sequence number, which is the order of retransmission.
    lost: BTreeSet<u64>,
    /// Transmissions in order: (sequence number, transmission). May contain stale entries.
    order: VecDeque<(u64, u64)>,
    transmissions: u64,
    sacked_bytes: u64,
    sacked_segments: usize,
    lost_bytes: u64,
    outstanding_bytes: u64,
}

impl Scoreboard {
    /// A new segment was sent, directly after the last one.
    #[inline]
    pub fn push(&mut self, seq: u64, len: u32, fin: bool, now: Instant, sent_state: SentState) {
        self.transmissions += 1;
        self.order.push_back((seq, self.transmissions));
        self.outstanding_bytes += u64::from(len);
        self.segments.push_back(Segment {
            seq,
            len,
            fin,
            sent_at: now,
            transmission: self.transmissions,
            retransmitted: false,
            sent_state,
            status: Status::InFlight,
        });
    }

    /// Everything below `una` was acknowledged. Calls `delivered` for each segment that was not SACKed before.
    #[inline]
    pub fn acknowledge(&mut self, una: u64, mut delivered: impl FnMut(&Segment)) {
        while let Some(first) = self.segments.front() {
            if first.end() > una {
                if first.seq < una {
                    self.trim_front(una);
                }
                break;
            }
            let Some(segment) = self.segments.pop_front() else { break };
            self.forget(&segment);
            // Its transmission is nearly always the oldest.
            if self.order.front() == Some(&(segment.seq, segment.transmission)) {
                self.order.pop_front();
            }
            if segment.status != Status::Sacked {
                delivered(&segment);
            }
        }
        self.sacked.remove_below(una);
    }

    /// `start..end` was SACKed. Calls `delivered` for each segment within it that was not SACKed before.
    pub fn sack(&mut self, start: u64, end: u64, mut delivered: impl FnMut(&Segment)) {
        let Some(first) = self.segments.front().map(|s| s.seq) else { return };
        let start = start.max(first);
        let mut at = start;
        while let Some((gap_start, gap_end)) = self.sacked.gap(at, end) {
            at = gap_end;
            let mut index = self.segments.partition_point(|s| s.seq < gap_start);
            while let Some(segment) = self.segments.get_mut(index).filter(|s| s.end() <= gap_end) {
                index += 1;
                if segment.status == Status::Sacked {
                    continue;
                }
                let before = *segment;
                segment.status = Status::Sacked;
                let len = u64::from(before.len);
                if before.status == Status::Lost {
                    self.lost_bytes -= len;
                    self.lost.remove(&before.seq);
                }
                self.sacked_bytes += len;
                self.sacked_segments += 1;
                self.sacked.insert(before.seq, before.end());
                delivered(&before);
            }
        }
    }

    /// Traverses the transmissions from the oldest while `is_lost` returns true, and marks them as lost. Returns the first one for
    /// which it returns false.
    #[inline]
    pub fn lose_oldest(&mut self, mut is_lost: impl FnMut(&Segment) -> bool) -> Option<&Segment> {
        while let Some(&(seq, transmission)) = self.order.front() {
            if let Some(index) = self.find(seq) {
                let segment = &self.segments[index];
                if segment.transmission == transmission && segment.status == Status::InFlight {
                    if !is_lost(segment) {
                        return self.segments.get(index);
                    }
                    self.set_lost(index);
                }
            }
            self.order.pop_front();
        }
        None
    }

    /// Marks segments with `threshold` SACKed ones above them as lost, unless they were retransmitted.
    pub fn lose_below_sacked(&mut self, threshold: usize) {
        let mut above = self.sacked_segments;
        for index in 0..self.segments.len() {
            if above < threshold.max(1) {
                break;
            }
            let segment = &self.segments[index];
            match segment.status {
                Status::Sacked => above -= 1,
                Status::InFlight if !segment.retransmitted => self.set_lost(index),
                Status::InFlight | Status::Lost => {}
            }
        }
    }

    /// Marks the first segment as lost, unless it was retransmitted.
    pub fn lose_first(&mut self) {
        if self.segments.front().is_some_and(|s| s.status == Status::InFlight && !s.retransmitted) {
            self.set_lost(0);
        }
    }

    /// A timeout occurred: marks the first segment as lost, and all others for which `is_lost` returns true.
    pub fn lose_on_timeout(&mut self, mut is_lost: impl FnMut(&Segment) -> bool) {
        // The first segment was SACKed but is not acknowledged: the receiver has reneged (RFC 2018 §8), so all its SACKs
        // are discarded.
        if self.segments.front().is_some_and(Segment::is_sacked) {
            for segment in self.segments.iter_mut().filter(|s| s.is_sacked()) {
                segment.status = Status::InFlight;
            }
            self.sacked.clear();
            self.sacked_bytes = 0;
            self.sacked_segments = 0;
            self.rebuild_order();
        }
        for index in 0..self.segments.len() {
            let segment = self.segments[index];
            if segment.status == Status::InFlight && (index == 0 || is_lost(&segment)) {
                self.set_lost(index);
            }
        }
    }

    /// Undoes loss marks: lost segments that have not been retransmitted are in flight again.
    pub fn forgive(&mut self) {
        for seq in std::mem::take(&mut self.lost) {
            if let Some(index) = self.find(seq) {
                self.segments[index].status = Status::InFlight;
            }
        }
        self.lost_bytes = 0;
        self.rebuild_order();
    }

    /// Number of retransmitted segments without any acknowledgment since.
    pub fn retransmissions_in_flight(&self) -> u64 {
        self.segments.iter().filter(|s| s.retransmitted && s.status == Status::InFlight).count() as u64
    }

    /// The next lost segment to retransmit.
    pub fn next_lost(&self) -> Option<Segment> {
        self.segments.get(self.find(*self.lost.first()?)?).copied()
    }

    /// The segment at `seq` is retransmitted.
    pub fn retransmit(&mut self, seq: u64, now: Instant, sent_state: SentState) {
        let Some(index) = self.find(seq) else { return };
        self.transmissions += 1;
        let segment = &mut self.segments[index];
        if segment.status == Status::Lost {
            self.lost_bytes -= u64::from(segment.len);
            self.lost.remove(&seq);
            segment.status = Status::InFlight;
        }
        segment.sent_at = now;
        segment.transmission = self.transmissions;
        segment.retransmitted = true;
        segment.sent_state = sent_state;
        self.order.push_back((seq, self.transmissions));
    }

    /// Bytes (sequence numbers) considered to be in the network: sent, not SACKed, not lost.
    #[inline]
    pub fn in_flight_bytes(&self) -> u64 {
        self.outstanding_bytes - self.sacked_bytes - self.lost_bytes
    }

    /// Number of segments SACKed above the cumulative acknowledgment.
    pub fn sacked_segments(&self) -> usize {
        self.sacked_segments
    }

    /// Bytes that wait for retransmission.
    pub fn lost_bytes(&self) -> u64 {
        self.lost_bytes
    }

    /// Whether there is no unacknowledged data.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Number of unacknowledged segments.
    #[inline]
    pub fn len(&self) -> usize {
        self.segments.len()
    }

    /// The segment with the highest sequence number.
    pub fn last(&self) -> Option<Segment> {
        self.segments.back().copied()
    }

    /// The segment with the lowest sequence number.
    pub fn first(&self) -> Option<Segment> {
        self.segments.front().copied()
    }

    #[inline]
    fn find(&self, seq: u64) -> Option<usize> {
        // Usually all earlier segments are as long as the first.
        let first = self.segments.front()?;
        let guess = (seq.checked_sub(first.seq)? / u64::from(first.len.max(1))) as usize;
        if self.segments.get(guess).is_some_and(|s| s.seq == seq) {
            return Some(guess);
        }
        self.segments.binary_search_by_key(&seq, |s| s.seq).ok()
    }

    fn set_lost(&mut self, index: usize) {
        let segment = &mut self.segments[index];
        segment.status = Status::Lost;
        self.lost_bytes += u64::from(segment.len);
        self.lost.insert(segment.seq);
    }

    /// Subtracts a segment from the sums.
    #[inline]
    fn forget(&mut self, segment: &Segment) {
        let len = u64::from(segment.len);
        self.outstanding_bytes -= len;
        match segment.status {
            Status::InFlight => {}
            Status::Sacked => {
                self.sacked_bytes -= len;
                self.sacked_segments -= 1;
            }
            Status::Lost => {
                self.lost_bytes -= len;
                self.lost.remove(&segment.seq);
            }
        }
    }

    /// An acknowledgment within a segment: removes its front.
    fn trim_front(&mut self, una: u64) {
        let Some(mut segment) = self.segments.pop_front() else { return };
        self.forget(&segment);
        segment.len = u32::try_from(segment.end() - una).unwrap_or(segment.len);
        segment.seq = una;
        let len = u64::from(segment.len);
        self.outstanding_bytes += len;
        match segment.status {
            Status::InFlight => {}
            Status::Sacked => {
                self.sacked_bytes += len;
                self.sacked_segments += 1;
            }
            Status::Lost => {
                self.lost_bytes += len;
                self.lost.insert(una);
            }
        }
        self.segments.push_front(segment);
        self.rebuild_order();
    }

    fn rebuild_order(&mut self) {
        let in_flight = self.segments.iter().filter(|s| s.status == Status::InFlight);
        let mut order: Vec<(u64, u64)> = in_flight.map(|s| (s.seq, s.transmission)).collect();
        order.sort_unstable_by_key(|(_, transmission)| *transmission);
        self.order = order.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board(segments: u64) -> Scoreboard {
        let mut b = Scoreboard::default();
        for i in 0..segments {
            b.push(i * 100, 100, false, Instant::from_millis(i), SentState::default());
        }
        b
    }

    fn seqs(run: impl FnOnce(&mut dyn FnMut(&Segment))) -> Vec<u64> {
        let mut seen = Vec::new();
        run(&mut |s: &Segment| seen.push(s.seq));
        seen
    }

    #[test]
    fn sacks_count_once_and_acks_deliver_the_rest() {
        let mut b = board(10);
        assert_eq!(seqs(|f| b.sack(300, 500, f)), [300, 400]);
        assert_eq!(seqs(|f| b.sack(200, 600, f)), [200, 500]);
        assert_eq!(seqs(|f| b.sack(650, 850, f)), [700], "a segment counts when all of it is covered");
        assert_eq!((b.in_flight_bytes(), b.sacked_segments()), (500, 5));
        assert_eq!(seqs(|f| b.acknowledge(700, f)), [0, 100, 600]);
        assert_eq!((b.in_flight_bytes(), b.len()), (200, 3));
    }

    #[test]
    fn lost_segments_are_resent_in_order_and_judged_again() {
        let mut b = board(5);
        b.sack(300, 500, |_| ());
        let next = b.lose_oldest(|s| s.seq < 200);
        assert_eq!(next.map(|s| s.seq), Some(200));
        assert_eq!((b.in_flight_bytes(), b.lost_bytes()), (100, 200));
        assert_eq!(b.next_lost().map(|s| s.seq), Some(0));
        b.retransmit(0, Instant::from_millis(50), SentState::default());
        assert_eq!(b.next_lost().map(|s| s.seq), Some(100));
        // The retransmission is now the latest transmission, so 200 is judged before it.
        assert_eq!(
            seqs(|f| assert!(
                b.lose_oldest(|s| {
                    f(s);
                    true
                })
                .is_none()
            )),
            [200, 0]
        );
        assert_eq!((b.in_flight_bytes(), b.lost_bytes()), (0, 300));
    }

    #[test]
    fn undoing_losses_restores_the_state() {
        let mut b = board(4);
        b.lose_on_timeout(|_| true);
        assert_eq!(b.in_flight_bytes(), 0);
        b.retransmit(0, Instant::from_millis(9), SentState::default());
        b.forgive();
        assert_eq!((b.in_flight_bytes(), b.next_lost().is_none()), (400, true));
        assert_eq!(
            seqs(|f| assert!(
                b.lose_oldest(|s| {
                    f(s);
                    true
                })
                .is_none()
            )),
            [100, 200, 300, 0]
        );
    }

    #[test]
    fn sacks_of_a_receiver_that_reneges_are_discarded() {
        let mut b = board(3);
        b.sack(0, 200, |_| ());
        b.lose_on_timeout(|s| s.seq == 100);
        assert_eq!((b.in_flight_bytes(), b.lost_bytes(), b.sacked_segments()), (100, 200, 0));
    }

    #[test]
    fn an_ack_inside_a_segment_trims_it() {
        let mut b = board(2);
        b.lose_on_timeout(|_| false);
        b.acknowledge(30, |_| ());
        assert_eq!(b.next_lost().map(|s| (s.seq, s.len)), Some((30, 70)));
        assert_eq!((b.in_flight_bytes(), b.lost_bytes()), (100, 70));
    }
}
