//! Unacknowledged mode, TS 38.322 §5.2.2: segments are numbered per SDU; lost data is not retransmitted.
//!
//! ```text
//!                     RX_Next_Highest − window                     RX_Next_Highest
//!                              ▼                                          ▼
//!   ── gone ───────────────────┬──────────┬───────────────────────────────┬──────
//!                              │ done     │ ▒▒ incomplete or missing      │
//!                              └──────────┴───────────────────────────────┘
//!                                         ▲ RX_Next_Reassembly            ▲ RX_Timer_Trigger: SDUs before it that
//!                                                                           are incomplete when t-Reassembly
//!                                                                           expires are given up
//! ```
//!
//! A complete SDU carries no number and is delivered at once.
//!
//! A limitation of the mode: if exactly 64 · n (4096 · n with 12 bits) consecutive SDUs are lost between two segments with
//! the same number, the segments look like one SDU. Only losses that HARQ did not repair count.

use super::config::{UmConfig, ms};
use super::reassembly::{BufferPool, Outcome, Partial};
use super::{BufferStatus, Head, MAX_SDU_BYTES, RlcStats, SentLog, TxQueue};
use anabranch_element::time::Instant;
use anabranch_wire::rlc::{Segment, UmHeader, UmSn};

/// Room for the header (TS 38.322 §6.2.2.3: at most 4 bytes) and one of another layer in front of it.
const HEADERS: usize = 8;

/// Sender and receiver of one end of an unacknowledged bearer.
#[derive(Debug, Clone)]
pub struct Um {
    config: UmConfig,
    /// TX_Next.
    next: u32,
    head: Option<Head>,
    rx: Rx,
    pub(super) stats: RlcStats,
}

#[derive(Debug, Clone, Default)]
struct Rx {
    /// RX_Next_Reassembly.
    reassembly: u32,
    /// RX_Next_Highest.
    highest: u32,
    /// RX_Timer_Trigger, and the expiry time of t-Reassembly.
    timer: Option<(u32, Instant)>,
    /// Incomplete SDUs with at least one segment, unordered.
    partial: Vec<(u32, Partial)>,
    /// SDUs of the window that were delivered, one bit per number.
    done: Vec<u64>,
}

impl Um {
    pub(super) fn new(config: UmConfig) -> Self {
        let words = config.sn_bits.0.modulus().div_ceil(64) as usize;
        let rx = Rx { done: vec![0; words], ..Rx::default() };
        Self { config, next: 0, head: None, rx, stats: RlcStats::default() }
    }

    fn sn(&self) -> UmSn {
        self.config.sn_bits.0
    }

    /// Appends the next PDU after the header that `front` builds from its length.
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "what belongs to the entity, and what to the call")]
    pub(super) fn pull<const N: usize>(
        &mut self,
        queue: &mut TxQueue,
        room: usize,
        now: Instant,
        out: &mut Vec<u8>,
        sent: &mut SentLog,
        pool: &mut BufferPool,
        front: impl FnOnce(usize) -> [u8; N],
    ) -> usize {
        const { assert!(N + UmHeader::MAX_LEN <= HEADERS) }
        let sn = self.sn();
        let head = match &mut self.head {
            Some(head) => head,
            none => {
                // A complete SDU has the smallest header; that of a first segment is at least as long.
                if room < 1 + UmHeader::len(Segment::Complete, sn) {
                    return 0;
                }
                let Some((count, sdu)) = queue.pop(now) else { return 0 };
                let len = sdu.packet.len();
                if len > 0 && UmHeader::len(Segment::Complete, sn) + len <= room {
                    // Sent unsegmented, so it never becomes the head.
                    let header = UmHeader { segment: Segment::Complete, sn: 0, offset: 0 };
                    let len = UmHeader::len(Segment::Complete, sn) + len;
                    append(out, front(len), header, sn, &sdu.packet);
                    self.stats.data_pdus += 1;
                    sent.record(Head::sent_of(&sdu, count, now, now));
                    pool.give(sdu.packet.into_buffer());
                    return len;
                }
                none.insert(Head { sdu, count, offset: 0, first_pull: now })
            }
        };
        let left = head.left();
        let whole = Segment::of(head.offset, true);
        let to_end = UmHeader::len(whole, sn) + left <= room;
        let segment = Segment::of(head.offset, to_end);
        let header_len = UmHeader::len(segment, sn);
        let take = left.min(room.saturating_sub(header_len));
        if take == 0 && left > 0 {
            return 0;
        }
        if head.offset == 0 {
            head.first_pull = now;
        }
        let header = UmHeader { segment, sn: self.next as u16, offset: head.offset as u16 };
        append(out, front(header_len + take), header, sn, &head.sdu.packet[head.offset..head.offset + take]);
        head.offset += take;
        self.stats.data_pdus += 1;
        if to_end {
            sent.record(head.sent(now));
            if segment != Segment::Complete {
                self.next = (self.next + 1) % sn.modulus();
                self.stats.segmented_sdus += 1;
            }
            if let Some(head) = self.head.take() {
                pool.give(head.sdu.packet.into_buffer());
            }
        }
        header_len + take
    }

    /// Bytes of the header of a segment other than the first.
    pub(super) fn segment_header_len(&self) -> u32 {
        UmHeader::len(Segment::Last, self.sn()) as u32
    }

    /// Whether a packet is partly sent.
    #[inline]
    pub(super) fn has_head(&self) -> bool {
        self.head.is_some()
    }

    /// Remaining bytes of a partly sent packet.
    #[inline]
    pub(super) fn head_bytes(&self) -> u64 {
        self.head.as_ref().map_or(0, |head| head.left() as u64)
    }

    #[inline]
    pub(super) fn add_status(&self, status: &mut BufferStatus) {
        status.sdus += u64::from(self.head.is_some());
    }

    pub(super) fn head_sizes(&self, out: &mut Vec<u32>) {
        if let Some(head) = &self.head {
            out.push((head.left() + UmHeader::len(Segment::Last, self.sn())) as u32);
        }
    }

    /// Processes a received PDU; returns the SDU that is now complete, if any.
    #[inline]
    pub(super) fn receive(&mut self, pdu: &[u8], now: Instant, pool: &mut BufferPool) -> Option<Vec<u8>> {
        let Ok((header, data)) = UmHeader::parse(pdu, self.sn()) else {
            self.stats.malformed_pdus += 1;
            return None;
        };
        if header.segment != Segment::Complete {
            return self.receive_segment(header, data, now, pool);
        }
        if data.len() > MAX_SDU_BYTES {
            self.stats.malformed_pdus += 1;
            return None;
        }
        self.stats.delivered_sdus += 1;
        Some(pool.filled(data))
    }

    /// Processes a segment; returns the SDU if it is now complete.
    fn receive_segment(
        &mut self,
        header: UmHeader,
        data: &[u8],
        now: Instant,
        pool: &mut BufferPool,
    ) -> Option<Vec<u8>> {
        let sn = self.sn();
        let x = u32::from(header.sn);
        let rx = &mut self.rx;
        if rx.is_before_reassembly(x, sn) || rx.is_done(x) {
            self.stats.stale_pdus += 1;
            return None;
        }
        let index = match rx.partial.iter().position(|(number, _)| *number == x) {
            Some(index) => index,
            None => {
                rx.partial.push((x, Partial::new(pool)));
                rx.partial.len() - 1
            }
        };
        let mut whole = None;
        match rx.partial[index].1.insert(header.offset, data, header.segment.to_end()) {
            Outcome::Refused => {
                // Segments of two SDUs under the same number: neither can be trusted.
                self.stats.malformed_pdus += 1;
                self.stats.discarded_sdus += 1;
                rx.partial.swap_remove(index).1.discard(pool);
                return None;
            }
            Outcome::Duplicate => {
                self.stats.stale_pdus += 1;
                return None;
            }
            Outcome::Kept => {}
            Outcome::Whole => {
                whole = Some(rx.partial.swap_remove(index).1.into_bytes(pool));
                rx.set_done(x, true);
                self.stats.delivered_sdus += 1;
            }
        }
        self.update(x, now, pool);
        whole
    }

    /// §5.2.2.2.3: actions after a segment of SDU `x` was stored or completed it.
    fn update(&mut self, x: u32, now: Instant, pool: &mut BufferPool) {
        let sn = self.sn();
        let rx = &mut self.rx;
        if rx.is_outside(x, sn) {
            rx.move_highest((x + 1) % sn.modulus(), sn);
            self.stats.discarded_sdus += rx.discard(pool, |rx, number| rx.is_outside(number, sn));
            if rx.is_outside(rx.reassembly, sn) {
                rx.reassembly = rx.window_start(sn);
            }
        }
        rx.skip_done(sn);
        let gap = rx.has_gap(sn);
        if let Some((trigger, _)) = rx.timer {
            let passed = rx.age(trigger, sn) <= rx.age(rx.reassembly, sn);
            let outside = rx.is_outside(trigger, sn) && trigger != rx.highest;
            if passed || outside || !gap {
                rx.timer = None;
            }
        }
        if rx.timer.is_none() && gap {
            rx.timer = Some((rx.highest, now + ms(self.config.t_reassembly_ms)));
        }
    }

    /// §5.2.2.2.4.
    pub(super) fn on_timeout(&mut self, now: Instant, pool: &mut BufferPool) {
        let sn = self.sn();
        let rx = &mut self.rx;
        let Some((trigger, at)) = rx.timer else { return };
        if at > now {
            return;
        }
        rx.timer = None;
        rx.reassembly = trigger;
        rx.skip_done(sn);
        let until = rx.age(rx.reassembly, sn);
        self.stats.discarded_sdus += rx.discard(pool, |rx, number| rx.age(number, sn) < until);
        if rx.has_gap(sn) {
            rx.timer = Some((rx.highest, now + ms(self.config.t_reassembly_ms)));
        }
    }

    #[inline]
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.rx.timer.map(|(_, at)| at)
    }
}

/// Appends a PDU after the header of another layer.
#[inline(always)]
fn append<const N: usize>(out: &mut Vec<u8>, front: [u8; N], header: UmHeader, sn: UmSn, data: &[u8]) {
    let mut bytes = [0; HEADERS];
    bytes[..N].copy_from_slice(&front);
    // The room was reserved above.
    let _ = header.emit(sn, &mut bytes[N..]);
    // One copy of constant length; the surplus is overwritten.
    let end = out.len() + N + UmHeader::len(header.segment, sn);
    out.extend_from_slice(&bytes);
    out.truncate(end);
    out.extend_from_slice(data);
}

impl Rx {
    #[inline]
    fn window_start(&self, sn: UmSn) -> u32 {
        self.highest.wrapping_sub(sn.modulus() / 2) & (sn.modulus() - 1)
    }

    /// Distance from the start of the window: numbers in the window are below half of the number space, and RX_Next_Highest is
    /// exactly half.
    #[inline]
    fn age(&self, number: u32, sn: UmSn) -> u32 {
        number.wrapping_sub(self.window_start(sn)) & (sn.modulus() - 1)
    }

    /// Whether the number is at or after RX_Next_Highest, or was left behind by the window.
    #[inline]
    fn is_outside(&self, number: u32, sn: UmSn) -> bool {
        self.age(number, sn) >= sn.modulus() / 2
    }

    #[inline]
    fn is_before_reassembly(&self, number: u32, sn: UmSn) -> bool {
        !self.is_outside(number, sn) && self.age(number, sn) < self.age(self.reassembly, sn)
    }

    #[inline]
    fn is_done(&self, number: u32) -> bool {
        self.done[number as usize / 64] & 1 << (number % 64) != 0
    }

    #[inline]
    fn set_done(&mut self, number: u32, done: bool) {
        let word = &mut self.done[number as usize / 64];
        let bit = 1 << (number % 64);
        if done { *word |= bit } else { *word &= !bit }
    }

    /// Moves the window up to `highest`; numbers that enter it are reset.
    #[inline]
    fn move_highest(&mut self, highest: u32, sn: UmSn) {
        let mask = sn.modulus() - 1;
        // For each number that enters at the end, one leaves at the start.
        let steps = highest.wrapping_sub(self.highest) & mask;
        let start = self.window_start(sn);
        for i in 0..steps {
            self.set_done(start.wrapping_add(i) & mask, false);
        }
        self.highest = highest;
    }

    /// Advances RX_Next_Reassembly over delivered SDUs.
    #[inline]
    fn skip_done(&mut self, sn: UmSn) {
        while self.reassembly != self.highest && self.is_done(self.reassembly) {
            self.reassembly = (self.reassembly + 1) & (sn.modulus() - 1);
        }
    }

    /// Whether t-Reassembly must run.
    #[inline]
    fn has_gap(&self, sn: UmSn) -> bool {
        let ahead = self.highest.wrapping_sub(self.reassembly) & (sn.modulus() - 1);
        let gap = |number| self.partial.iter().any(|(n, partial)| *n == number && partial.has_gap());
        ahead > 1 || (ahead == 1 && gap(self.reassembly))
    }

    /// Gives up the incomplete SDUs selected by `which`.
    fn discard(&mut self, pool: &mut BufferPool, which: impl Fn(&Self, u32) -> bool) -> u64 {
        let mut discarded = 0;
        let mut i = 0;
        while i < self.partial.len() {
            if which(self, self.partial[i].0) {
                self.partial.swap_remove(i).1.discard(pool);
                discarded += 1;
            } else {
                i += 1;
            }
        }
        discarded
    }
}
