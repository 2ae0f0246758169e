//! The receiving half: reassembly, SACK and DSACK blocks, ACK timing, and the receive window.
//!
//! - ACKs: at once for the first 16 segments (Linux's quick ACKs), for a duplicate, for data that fills a gap, and for FIN;
//!   otherwise when more than one full segment waits, or after 40 ms. Behind a gap, three segments are acknowledged at once and
//!   later ones together, each millisecond or 20th of a round trip (Linux's SACK compression).
//! - SACK (RFC 2018): the block of the most recent segment first, then the others by recency. A duplicate is reported before
//!   them (DSACK, RFC 2883).
//! - Window: starts at 64 KiB and grows as Linux's dynamic right-sizing, to twice the data of the last round trip plus its
//!   expected growth, up to a bound. The application reads at once.

use super::Options;
use super::ranges::Ranges;
use super::rto::smoothed_ns;
use crate::sim::spare;
use anabranch_element::time::{Duration, Instant, nanos};
use std::collections::VecDeque;

/// Initial receive window, bytes.
pub const INITIAL_WINDOW_BYTES: u64 = 65_535;
/// Number of segments acknowledged at once on a new connection.
const QUICK_ACKS: u32 = 16;
/// Maximum payload that receive offload merges into one segment: the length of an IP packet has 16 bits.
const BATCH_BYTES: u64 = 65_535 - 52;
/// Segments behind a gap that are acknowledged at once (Linux `TCP_FASTRETRANS_THRESH`), the maximum number that wait, and for
/// how long, also as a fraction of the round trip (`tcp_comp_sack_nr`, `tcp_comp_sack_delay_ns`, `__tcp_ack_snd_check`).
const AT_ONCE_BEHIND_GAP: u32 = 3;
const MOST_COMPRESSED: u32 = 44;
const COMPRESSION_DELAY: Duration = Duration::from_millis(1);
const COMPRESSION_PART: u32 = 20;
/// Memory overhead of a stored piece, bytes; bounds the number of tiny pieces.
const PIECE_OVERHEAD: u64 = 64;
/// Number of SACK blocks stored.
const RECENT_BLOCKS: usize = 4;

/// The receiving half; see the module documentation. Sequence numbers are 64 bits: 0 is the peer's SYN, its first byte is 1.
#[derive(Debug)]
pub struct Receiver {
    next: u64,
    /// Sequence number of FIN, once it has arrived.
    fin_at: Option<u64>,
    finished: bool,
    /// Data received behind a gap, by sequence number.
    pieces: VecDeque<(u64, Vec<u8>)>,
    stored: Ranges,
    stored_bytes: u64,
    /// A sequence number within each block, the most recent first.
    recent: Vec<u64>,
    dsack: Option<(u64, u64)>,
    window: u64,
    window_max: u64,
    window_end: u64,
    ack_now: bool,
    unacked_bytes: u64,
    ack_at: Option<Instant>,
    ack_delay: Duration,
    quick_acks: u32,
    compression: Option<Compression>,
    largest_segment: u64,
    sizing: Sizing,
    /// Segments without new data.
    pub duplicate_segments: u64,
    /// Segments received behind a gap.
    pub out_of_order_segments: u64,
}

/// State of SACK compression.
#[derive(Debug)]
struct Compression {
    /// Maximum delay of a SACK, from the round trip of the handshake.
    delay: Duration,
    /// The sequence number expected when counting of segments behind the gap began.
    gap_at: u64,
    at_once: u32,
    waiting: u32,
}

/// Dynamic right-sizing.
#[derive(Debug)]
struct Sizing {
    /// Nanoseconds.
    rtt_ns: Option<u64>,
    since: Instant,
    arrived: u64,
    last_arrived: u64,
}

impl Receiver {
    /// A receiver that has received the peer's SYN.
    pub fn new(options: &Options, now: Instant) -> Self {
        Self {
            next: 1,
            fin_at: None,
            finished: false,
            pieces: VecDeque::new(),
            stored: Ranges::default(),
            stored_bytes: 0,
            recent: Vec::with_capacity(RECENT_BLOCKS + 1),
            dsack: None,
            window: INITIAL_WINDOW_BYTES.min(options.receive_buffer_bytes),
            window_max: options.receive_buffer_bytes,
            window_end: 1 + INITIAL_WINDOW_BYTES,
            ack_now: false,
            unacked_bytes: 0,
            ack_at: None,
            ack_delay: options.ack_delay,
            quick_acks: QUICK_ACKS,
            compression: None,
            largest_segment: 536,
            sizing: Sizing { rtt_ns: None, since: now, arrived: 0, last_arrived: 14_600 },
            duplicate_segments: 0,
            out_of_order_segments: 0,
        }
    }

    /// Enables SACK compression, once the handshake is complete.
    pub fn compress_sacks(&mut self, rtt: Option<Duration>) {
        let delay = rtt.map_or(COMPRESSION_DELAY, |rtt| COMPRESSION_DELAY.min(rtt / COMPRESSION_PART));
        self.compression = Some(Compression { delay, gap_at: 0, at_once: 0, waiting: 0 });
    }

    /// Processes a segment. Data that becomes available is passed to `deliver` in order.
    #[inline]
    pub fn on_segment(
        &mut self,
        seq: u64,
        payload: &[u8],
        fin: bool,
        now: Instant,
        deliver: &mut dyn FnMut(&[u8]),
    ) {
        if payload.is_empty() && !fin {
            // An empty segment below the expected number requests an ACK (a window probe).
            self.ack_now |= seq < self.next;
            return;
        }
        let end = seq + payload.len() as u64 + u64::from(fin);
        if end <= self.next {
            self.duplicate(seq, end);
            return;
        }
        if end > self.window_end {
            // Beyond the offered window; a conforming sender never does this.
            self.ack_now = true;
            return;
        }
        if fin {
            self.fin_at = Some(end - 1);
        }
        if seq > self.next {
            self.store(seq, payload, end, now);
            return;
        }
        if seq < self.next {
            self.dsack = Some((seq, self.next));
        }
        let new = payload.get((self.next - seq) as usize..).unwrap_or_default();
        let gap_before = !self.stored.is_empty();
        let before = self.next;
        self.take_in(new, deliver);
        self.take_stored(deliver);
        let at_once = fin || (gap_before && (self.compression.is_none() || self.stored.is_empty()));
        self.after_progress(self.next - before, payload.len() as u64, at_once, now);
        if gap_before && !self.ack_now {
            self.acknowledge_behind_gap(now);
        }
    }

    /// Updates the round trip from the timestamp echo of a data segment.
    #[inline]
    pub fn on_rtt(&mut self, rtt: Duration) {
        let rtt_ns = nanos(rtt);
        self.sizing.rtt_ns = Some(self.sizing.rtt_ns.map_or(rtt_ns, |old_ns| smoothed_ns(old_ns, rtt_ns)));
    }

    /// Whether an ACK is due now even without data.
    #[inline]
    pub fn ack_is_due(&self, now: Instant) -> bool {
        self.ack_now || self.ack_at.is_some_and(|at| at <= now)
    }

    /// Whether the ACK carries blocks that do not fit in a data segment.
    #[inline]
    pub fn has_blocks(&self) -> bool {
        self.dsack.is_some() || !self.stored.is_empty()
    }

    /// Whether all data waiting for an ACK arrived in order and would be one segment after receive offload.
    #[inline]
    pub fn is_within_batch(&self) -> bool {
        let full = self.unacked_bytes + self.largest_segment > BATCH_BYTES;
        self.unacked_bytes > 0 && !full && !self.has_blocks() && self.fin_at.is_none()
    }

    /// When the delayed ACK is due.
    #[inline]
    pub fn ack_timeout(&self) -> Option<Instant> {
        self.ack_at
    }

    /// Requests an ACK at once.
    pub fn want_ack(&mut self) {
        self.ack_now = true;
    }

    /// Marks an acknowledgment as sent. Returns its number and window.
    #[inline]
    pub fn acknowledge(&mut self) -> (u64, u64) {
        self.ack_now = false;
        self.ack_at = None;
        self.unacked_bytes = 0;
        if let Some(compression) = &mut self.compression {
            compression.waiting = 0;
        }
        self.window_end = self.window_end.max(self.next + self.window);
        (self.next, self.window_end - self.next)
    }

    /// The SACK blocks of an ACK sent now, a DSACK first; at most `most`.
    pub fn blocks(&mut self, most: usize) -> impl Iterator<Item = (u64, u64)> {
        let Self { recent, stored, .. } = self;
        let (mut blocks, mut free) = ([None; RECENT_BLOCKS], 0);
        recent.retain(|seq| {
            let block = stored.containing(*seq);
            if let (Some(_), Some(place)) = (block, blocks.get_mut(free)) {
                *place = block;
                free += 1;
            }
            block.is_some()
        });
        self.dsack.take().into_iter().chain(blocks.into_iter().flatten()).take(most)
    }

    /// The next sequence number expected.
    #[inline]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether everything up to and including FIN has arrived.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Bytes delivered to the application.
    pub fn delivered_bytes(&self) -> u64 {
        self.next - 1 - u64::from(self.finished)
    }

    fn duplicate(&mut self, seq: u64, end: u64) {
        self.duplicate_segments += 1;
        self.dsack = Some((seq, end));
        self.ack_now = true;
    }

    /// Stores a segment that is behind a gap.
    fn store(&mut self, seq: u64, payload: &[u8], end: u64, now: Instant) {
        self.acknowledge_behind_gap(now);
        if self.stored.covers(seq, end) {
            self.duplicate(seq, end);
            return;
        }
        let cost = payload.len() as u64 + PIECE_OVERHEAD;
        if self.stored_bytes + cost > 2 * self.window_max.max(INITIAL_WINDOW_BYTES) {
            // Handled as a loss. Only a sender of tiny segments gets here.
            return;
        }
        self.out_of_order_segments += 1;
        for (from, to) in self.stored.missing(seq, end) {
            let part = payload.get((from - seq) as usize..((to - seq) as usize).min(payload.len()));
            if let Some(part) = part.filter(|part| !part.is_empty()) {
                self.stored_bytes += part.len() as u64 + PIECE_OVERHEAD;
                let place = self.pieces.partition_point(|(start, _)| *start < from);
                self.pieces.insert(place, (from, spare::copy(part)));
            }
        }
        let (start, end) = self.stored.insert(seq, end);
        self.recent.retain(|other| !(start..end).contains(other));
        self.recent.insert(0, start);
        self.recent.truncate(RECENT_BLOCKS);
    }

    /// Requests an ACK for a segment received behind a gap, at once or together with later ones.
    fn acknowledge_behind_gap(&mut self, now: Instant) {
        let Some(compression) = &mut self.compression else {
            self.ack_now = true;
            return;
        };
        if self.quick_acks > 0 {
            self.quick_acks -= 1;
            self.ack_now = true;
            return;
        }
        if compression.gap_at != self.next {
            compression.gap_at = self.next;
            compression.at_once = 0;
        }
        if compression.at_once < AT_ONCE_BEHIND_GAP {
            compression.at_once += 1;
            self.ack_now = true;
        } else if compression.waiting >= MOST_COMPRESSED {
            self.ack_now = true;
        } else {
            let measured = self.sizing.rtt_ns.map(|ns| Duration::from_nanos(ns) / COMPRESSION_PART);
            let at = now + compression.delay.min(measured.unwrap_or(COMPRESSION_DELAY));
            if compression.waiting == 0 {
                self.ack_at = Some(self.ack_at.map_or(at, |other| other.min(at)));
            }
            compression.waiting += 1;
        }
    }

    #[inline]
    fn take_in(&mut self, bytes: &[u8], deliver: &mut dyn FnMut(&[u8])) {
        if !bytes.is_empty() {
            deliver(bytes);
            self.next += bytes.len() as u64;
        }
        if self.fin_at == Some(self.next) {
            self.next += 1;
            self.finished = true;
        }
    }

    #[inline]
    fn take_stored(&mut self, deliver: &mut dyn FnMut(&[u8])) {
        if self.stored.is_empty() {
            return;
        }
        while self.pieces.front().is_some_and(|(start, _)| *start <= self.next)
            && let Some((start, piece)) = self.pieces.pop_front()
        {
            self.stored_bytes -= piece.len() as u64 + PIECE_OVERHEAD;
            self.take_in(piece.get((self.next - start) as usize..).unwrap_or_default(), deliver);
            spare::give(piece);
        }
        self.stored.remove_below(self.next);
    }

    #[inline]
    fn after_progress(&mut self, arrived: u64, payload: u64, at_once: bool, now: Instant) {
        self.largest_segment = self.largest_segment.max(payload);
        self.unacked_bytes += arrived;
        if at_once || self.quick_acks > 0 || self.unacked_bytes > self.largest_segment {
            self.ack_now = true;
            self.quick_acks = self.quick_acks.saturating_sub(1);
        } else {
            self.ack_at.get_or_insert(now + self.ack_delay);
        }
        let s = &mut self.sizing;
        s.arrived += arrived;
        let Some(rtt_ns) = s.rtt_ns else { return };
        if now.as_nanos().saturating_sub(s.since.as_nanos()) >= rtt_ns {
            if s.arrived > s.last_arrived {
                let wanted = 2 * s.arrived + 16 * self.largest_segment;
                let growth = u128::from(wanted) * u128::from(s.arrived - s.last_arrived)
                    / u128::from(s.last_arrived.max(1));
                let growth = u64::try_from(growth).unwrap_or(u64::MAX);
                self.window =
                    self.window.max(wanted.saturating_add(growth.saturating_mul(2)).min(self.window_max));
                s.last_arrived = s.arrived;
            }
            s.arrived = 0;
            s.since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receiver() -> Receiver {
        Receiver::new(&Options { receive_buffer_bytes: 1 << 20, ..Options::default() }, Instant::ZERO)
    }

    fn feed(r: &mut Receiver, seq: u64, bytes: &[u8]) -> Vec<u8> {
        let mut got = Vec::new();
        r.on_segment(seq, bytes, false, Instant::ZERO, &mut |b| got.extend_from_slice(b));
        got
    }

    fn blocks(r: &mut Receiver) -> Vec<(u64, u64)> {
        r.blocks(4).collect()
    }

    #[test]
    fn reassembles_and_reports_the_latest_block_first() {
        let mut r = receiver();
        assert!(feed(&mut r, 4, b"de").is_empty());
        assert!(feed(&mut r, 8, b"hi").is_empty());
        assert_eq!(blocks(&mut r), [(8, 10), (4, 6)]);
        assert!(feed(&mut r, 5, b"ef").is_empty());
        assert_eq!(blocks(&mut r), [(4, 7), (8, 10)]);
        assert_eq!(feed(&mut r, 1, b"abc"), b"abcdef");
        assert_eq!(blocks(&mut r), [(8, 10)]);
        assert_eq!(feed(&mut r, 6, b"fgh"), b"ghi");
        assert_eq!(blocks(&mut r), [(6, 7)], "the overlap is told as a duplicate");
        assert_eq!(r.acknowledge().0, 10);
        assert!(!r.has_blocks());
    }

    #[test]
    fn duplicates_are_reported_once() {
        let mut r = receiver();
        feed(&mut r, 1, b"abc");
        feed(&mut r, 6, b"f");
        feed(&mut r, 2, b"b");
        assert_eq!(blocks(&mut r), [(2, 3), (6, 7)]);
        assert_eq!(blocks(&mut r), [(6, 7)]);
        feed(&mut r, 6, b"f");
        assert_eq!(blocks(&mut r), [(6, 7), (6, 7)]);
        assert_eq!(r.duplicate_segments, 2);
    }

    #[test]
    fn fin_counts_only_after_all_earlier_data() {
        let mut r = receiver();
        let mut got = Vec::new();
        r.on_segment(3, b"c", true, Instant::ZERO, &mut |b| got.extend_from_slice(b));
        assert!(!r.is_finished());
        assert_eq!(blocks(&mut r), [(3, 5)]);
        r.on_segment(1, b"ab", false, Instant::ZERO, &mut |b| got.extend_from_slice(b));
        assert!(r.is_finished());
        assert_eq!((got.as_slice(), r.delivered_bytes(), r.acknowledge().0), (&b"abc"[..], 3, 5));
    }

    #[test]
    fn acks_are_quick_then_delayed_by_two_segments_or_40_ms() {
        let mut r = receiver();
        let mut seq = 1;
        let mut next = |r: &mut Receiver| {
            r.on_segment(seq, &[0; 1000], false, Instant::from_millis(5), &mut |_| ());
            seq += 1000;
        };
        for _ in 0..16 {
            next(&mut r);
            assert!(r.ack_is_due(Instant::from_millis(5)));
            r.acknowledge();
        }
        next(&mut r);
        assert!(!r.ack_is_due(Instant::from_millis(44)));
        assert_eq!(r.ack_timeout(), Some(Instant::from_millis(45)));
        next(&mut r);
        assert!(r.ack_is_due(Instant::from_millis(5)));
    }

    /// A receiver whose quick ACKs are used up, and the number it expects next.
    fn settled(rtt: Option<Duration>) -> (Receiver, u64) {
        let mut r = receiver();
        for i in 0..16 {
            feed(&mut r, 1 + 1000 * i, &[0; 1000]);
            r.acknowledge();
        }
        r.compress_sacks(rtt);
        (r, 16_001)
    }

    #[test]
    fn behind_a_gap_three_are_acknowledged_at_once_and_the_rest_together() {
        let (mut r, next) = settled(Some(Duration::from_millis(40)));
        let told = |r: &mut Receiver, place: u64| {
            feed(r, next + 1000 * place, &[0; 1000]);
            let due = r.ack_is_due(Instant::ZERO);
            if due {
                r.acknowledge();
            }
            due
        };
        let at_once: Vec<bool> = (1..=5).map(|place| told(&mut r, place)).collect();
        assert_eq!(at_once, [true, true, true, false, false]);
        assert_eq!(r.ack_timeout(), Some(Instant::from_millis(1)));
        assert!(r.ack_is_due(Instant::from_millis(1)));
        r.acknowledge();
        // At most this many wait.
        assert_eq!((6..).position(|place| told(&mut r, place)), Some(44));
        // Data that fills part of the gap starts a new gap; data that fills the gap is acknowledged at once.
        assert!(!told(&mut r, 52));
        let gap = 60;
        assert!(!told(&mut r, gap) && told(&mut r, 0), "some of it arrived");
        assert_eq!((gap + 1..).take(4).map(|place| told(&mut r, place)).filter(|due| *due).count(), 3);
        assert!([51].into_iter().chain(53..gap).all(|place| told(&mut r, place)));
        assert!(!r.has_blocks());
    }

    #[test]
    fn sacks_wait_for_a_20th_of_a_short_round_trip() {
        for (handshake_ms, measured_ms, want_us) in
            [(Some(4), None, 200), (Some(100), Some(8), 400), (None, None, 1000), (Some(10), Some(90), 500)]
        {
            let (mut r, next) = settled(handshake_ms.map(Duration::from_millis));
            if let Some(rtt) = measured_ms {
                r.on_rtt(Duration::from_millis(rtt));
            }
            for place in 1..=4 {
                r.acknowledge();
                feed(&mut r, next + 1000 * place, &[0; 1000]);
            }
            assert_eq!(
                r.ack_timeout(),
                Some(Instant::from_micros(want_us)),
                "{handshake_ms:?} {measured_ms:?}"
            );
        }
    }

    #[test]
    fn the_window_grows_ahead_of_the_sender_up_to_its_bound() {
        let mut r = receiver();
        r.on_rtt(Duration::from_millis(100));
        let (mut seq, mut window) = (1, 0);
        for round in 0..12u64 {
            for i in 0..(10 << round.min(6)) {
                let now = Instant::from_millis(round * 100) + Duration::from_micros(i);
                r.on_segment(seq, &[0; 1000], false, now, &mut |_| ());
                seq += 1000;
                window = r.acknowledge().1;
            }
        }
        assert_eq!(window, 1 << 20);
    }

    #[test]
    fn data_beyond_the_window_or_memory_is_dropped() {
        let mut r = receiver();
        feed(&mut r, 1 + INITIAL_WINDOW_BYTES, b"x");
        assert!(!r.has_blocks() && r.ack_is_due(Instant::ZERO));
        for i in 0..32_000 {
            feed(&mut r, 3 + 2 * i, b"x");
        }
        assert!(r.stored_bytes <= 2 << 20);
    }
}
