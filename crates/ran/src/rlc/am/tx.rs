//! The sender of acknowledged mode, TS 38.322 §5.2.3.1, §5.3.2 and §5.3.3.

use super::super::config::{AmConfig, ms};
use super::super::reassembly::BufferPool;
use super::super::{BufferStatus, Head, RlcStats, SentLog, TxQueue};
use super::{after, ahead};
use crate::queue::Buffer;
use anabranch_element::time::Instant;
use anabranch_wire::rlc::{AmHeader, AmSn, SO_END, Segment, StatusPdu};
use std::collections::VecDeque;

#[derive(Debug, Clone)]
pub(super) struct Tx {
    config: AmConfig,
    sn: AmSn,
    /// Maximum number of unacknowledged SDUs.
    window: u32,
    /// TX_Next_Ack: the number of the first of `flight`.
    next_ack: u32,
    /// SDUs sent, the last perhaps in part, and not yet acknowledged.
    flight: VecDeque<InFlight>,
    /// Whether the last of `flight` is only partly sent.
    partial: bool,
    /// Parts of SDUs in flight to retransmit, as reported by STATUS PDUs.
    retx: VecDeque<Retx>,
    retx_bytes: u64,
    pdu_without_poll: u32,
    byte_without_poll: u32,
    /// POLL_SN while t-PollRetransmit runs, and its expiry time.
    poll: Option<(u32, Instant)>,
    /// t-PollRetransmit has expired: the next PDU carries a poll.
    must_poll: bool,
    pub(super) stats: RlcStats,
}

#[derive(Debug, Clone)]
struct InFlight {
    head: Head,
    acked: bool,
    retx_count: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Retx {
    sn: u32,
    from: u16,
    to: u16,
}

impl Tx {
    pub(super) fn new(config: AmConfig, most: u32) -> Self {
        Self {
            config,
            sn: config.sn_bits.0,
            window: config.window().min(most),
            next_ack: 0,
            flight: VecDeque::new(),
            partial: false,
            retx: VecDeque::new(),
            retx_bytes: 0,
            pdu_without_poll: 0,
            byte_without_poll: 0,
            poll: None,
            must_poll: false,
            stats: RlcStats::default(),
        }
    }

    pub(super) fn pull_new(
        &mut self,
        queue: &mut TxQueue,
        room: usize,
        now: Instant,
        out: &mut Vec<u8>,
        sent: &mut SentLog,
    ) -> usize {
        let least = AmHeader::len(Segment::Complete, self.sn) + 1;
        if room < least {
            return 0;
        }
        if !self.partial {
            if self.stalled() {
                return 0;
            }
            let Some((count, sdu)) = queue.pop(now) else {
                // An AQM has dropped all waiting SDUs.
                self.settle(queue, now);
                return 0;
            };
            let head = Head { sdu, count, offset: 0, first_pull: now };
            self.flight.push_back(InFlight { head, acked: false, retx_count: 0 });
            self.partial = true;
        }
        let number = after(self.next_ack, self.flight.len() as u32 - 1, self.sn);
        let Some(InFlight { head, .. }) = self.flight.back_mut() else { return 0 };
        let (offset, left) = (head.offset, head.left());
        let to_end = AmHeader::len(Segment::of(offset, true), self.sn) + left <= room;
        let segment = Segment::of(offset, to_end);
        let header_len = AmHeader::len(segment, self.sn);
        let take = left.min(room.saturating_sub(header_len));
        if take == 0 {
            return 0;
        }
        head.offset += take;
        if to_end {
            sent.record(head.sent(now));
            self.partial = false;
            self.stats.segmented_sdus += u64::from(segment != Segment::Complete);
        }
        self.pdu_without_poll += 1;
        self.byte_without_poll = self.byte_without_poll.saturating_add(take as u32);
        let often =
            self.pdu_without_poll >= self.config.poll_pdu || self.byte_without_poll >= self.config.poll_bytes;
        let poll = often || self.must_poll || self.is_blocked(queue);
        if poll {
            self.polled(now);
        }
        self.write(AmHeader { poll, segment, sn: number, offset: offset as u16 }, take, out)
    }

    pub(super) fn pull_retx(
        &mut self,
        queue: &TxQueue,
        room: usize,
        now: Instant,
        out: &mut Vec<u8>,
    ) -> usize {
        let Some(Retx { sn: number, from, to }) = self.retx.front().copied() else { return 0 };
        let Some(flying) = self.flight.get(ahead(number, self.next_ack, self.sn) as usize) else { return 0 };
        let ends_sdu = usize::from(to) == flying.head.sdu.packet.len();
        let left = usize::from(to - from);
        let fits = AmHeader::len(Segment::of(from.into(), ends_sdu), self.sn) + left <= room;
        let segment = Segment::of(from.into(), fits && ends_sdu);
        let take = left.min(room.saturating_sub(AmHeader::len(segment, self.sn)));
        if take == 0 {
            return 0;
        }
        self.retx_bytes -= take as u64;
        if take == left {
            self.retx.pop_front();
        } else if let Some(rest) = self.retx.front_mut() {
            rest.from += take as u16;
        }
        self.stats.retx_pdus += 1;
        let poll = self.must_poll || self.is_blocked(queue);
        if poll {
            self.polled(now);
        }
        self.write(AmHeader { poll, segment, sn: number, offset: from }, take, out)
    }

    /// Appends header and data of an SDU in flight.
    fn write(&mut self, header: AmHeader, take: usize, out: &mut Vec<u8>) -> usize {
        let start = out.len();
        let header_len = AmHeader::len(header.segment, self.sn);
        out.resize(start + header_len, 0);
        // The room was reserved above.
        let _ = header.emit(self.sn, &mut out[start..]);
        let index = ahead(header.sn, self.next_ack, self.sn) as usize;
        let from = usize::from(header.offset);
        if let Some(bytes) = self.flight.get(index).and_then(|f| f.head.sdu.packet.get(from..from + take)) {
            out.extend_from_slice(bytes);
        }
        self.stats.data_pdus += 1;
        out.len() - start
    }

    /// Whether the window is full.
    fn stalled(&self) -> bool {
        self.flight.len() >= self.window as usize
    }

    /// Whether no new data can be sent before a STATUS PDU arrives.
    pub(super) fn is_stalled(&self) -> bool {
        !self.partial && self.stalled()
    }

    /// Whether nothing, neither new data nor a retransmission, can be sent before a STATUS PDU arrives.
    fn is_blocked(&self, queue: &TxQueue) -> bool {
        let is_empty = queue.buffer.len_sdus() == 0 && !queue.more_above;
        !self.partial && self.retx.is_empty() && (is_empty || self.stalled())
    }

    /// TX_Next: the number of the next SDU, or of the one that is partly sent.
    fn next(&self) -> u32 {
        after(self.next_ack, self.flight.len() as u32 - u32::from(self.partial), self.sn)
    }

    /// §5.3.3.2: a poll is sent now.
    fn polled(&mut self, now: Instant) {
        self.pdu_without_poll = 0;
        self.byte_without_poll = 0;
        self.must_poll = false;
        self.start_poll_timer(now);
    }

    /// Starts t-PollRetransmit; POLL_SN is the highest number sent so far.
    fn start_poll_timer(&mut self, now: Instant) {
        let highest = after(self.next_ack, (self.flight.len() as u32).saturating_sub(1), self.sn);
        self.poll = Some((highest, now + ms(self.config.t_poll_retransmit_ms)));
    }

    /// §5.3.2, §5.3.3.3.
    pub(super) fn on_status(
        &mut self,
        status: &StatusPdu<'_>,
        queue: &TxQueue,
        now: Instant,
        pool: &mut BufferPool,
    ) {
        let (base, sn) = (self.next_ack, self.sn);
        let reported = ahead(status.ack_sn, base, sn) as usize;
        let known = ahead(self.next(), base, sn) as usize;
        if reported > known {
            // It reports numbers of an old window, or numbers never sent.
            self.stats.stale_pdus += 1;
            return;
        }
        let mut at = 0;
        for nack in status.nacks() {
            for i in 0..u32::from(nack.count) {
                let number = after(nack.sn, i, sn);
                let index = ahead(number, base, sn) as usize;
                // A number before the window belongs to a STATUS PDU that was overtaken; numbers after it may be inside. A
                // number beyond ACK_SN was never sent; ACK_SN itself may be an SDU that is partly sent and lacks bytes.
                if index >= self.flight.len() || index > reported {
                    continue;
                }
                let (first, last) = nack.bytes.unwrap_or((0, SO_END));
                let from = if i == 0 { first } else { 0 };
                let to = if i + 1 == u32::from(nack.count) { last } else { SO_END };
                self.acknowledge(at, index.max(at));
                at = at.max(index + 1);
                self.schedule_retx(index, from, to);
            }
        }
        self.acknowledge(at, reported);
        if let Some((poll_sn, _)) = self.poll
            && (ahead(poll_sn, base, sn) as usize) < reported.max(at)
        {
            self.poll = None;
        }
        let (flight, bytes) = (&self.flight, &mut self.retx_bytes);
        self.retx.retain(|r| {
            let acked = flight.get(ahead(r.sn, base, sn) as usize).is_none_or(|f| f.acked);
            *bytes -= if acked { u64::from(r.to - r.from) } else { 0 };
            !acked
        });
        while self.flight.front().is_some_and(|f| f.acked) {
            if let Some(done) = self.flight.pop_front() {
                pool.give(done.head.sdu.packet.into_buffer());
            }
            self.next_ack = after(self.next_ack, 1, sn);
        }
        // This STATUS PDU may have removed all pending retransmissions.
        self.settle(queue, now);
    }

    /// If nothing can be sent any more and the last PDU carried no poll, starts t-PollRetransmit; otherwise the loss of that
    /// PDU would never be detected.
    pub(super) fn settle(&mut self, queue: &TxQueue, now: Instant) {
        if self.poll.is_none() && !self.flight.is_empty() && self.is_blocked(queue) {
            self.start_poll_timer(now);
        }
    }

    /// COUNTs, ascending, of SDUs that are at least partly sent and not acknowledged.
    pub(super) fn unacknowledged(&self) -> impl Iterator<Item = u32> {
        self.flight.iter().filter(|flying| !flying.acked).map(|flying| flying.head.count)
    }

    /// Marks SDUs `[from, to)` of the window as acknowledged.
    fn acknowledge(&mut self, from: usize, to: usize) {
        // The SDU that is partly sent cannot be acknowledged.
        let whole = self.flight.len() - usize::from(self.partial && !self.flight.is_empty());
        for flying in self.flight.range_mut(from.min(whole)..to.min(whole).max(from.min(whole))) {
            flying.acked = true;
        }
    }

    /// Schedules bytes `from` to `last`, inclusive, of an SDU in flight for retransmission.
    fn schedule_retx(&mut self, index: usize, from: u16, last: u16) {
        let number = after(self.next_ack, index as u32, self.sn);
        let Some(flying) = self.flight.get_mut(index) else { return };
        let sent = flying.head.offset as u16;
        let to = if last == SO_END { sent } else { sent.min(last.saturating_add(1)) };
        if flying.acked || from >= to {
            return;
        }
        let pending = self.retx.iter().any(|r| r.sn == number && r.from < to && from < r.to);
        if !pending {
            flying.retx_count = flying.retx_count.saturating_add(1);
            self.stats.max_retx_reached += u64::from(flying.retx_count == self.config.max_retx);
        }
        // Skip the parts that are already scheduled.
        let mut at = from;
        while at < to {
            let covering =
                self.retx.iter().filter(|r| r.sn == number && r.from <= at && at < r.to).map(|r| r.to).max();
            if let Some(end) = covering {
                at = end;
                continue;
            }
            let next = self.retx.iter().filter(|r| r.sn == number && r.from > at).map(|r| r.from).min();
            let end = next.map_or(to, |next| next.min(to));
            self.retx.push_back(Retx { sn: number, from: at, to: end });
            self.retx_bytes += u64::from(end - at);
            at = end;
        }
    }

    /// §5.3.3.4: the poll was not answered in time.
    pub(super) fn on_timeout(&mut self, now: Instant, queue: &TxQueue) {
        let Some((_, at)) = self.poll else { return };
        if at > now {
            return;
        }
        self.poll = None;
        self.must_poll = true;
        if self.is_blocked(queue)
            && let Some(last) = self.flight.iter().rposition(|f| !f.acked)
        {
            self.schedule_retx(last, 0, SO_END);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.poll.map(|(_, at)| at)
    }

    /// Remaining bytes of a partly sent packet.
    pub(super) fn head_bytes(&self) -> u64 {
        self.flight.back().filter(|_| self.partial).map_or(0, |last| last.head.left() as u64)
    }

    pub(super) fn add_status(&self, status: &mut BufferStatus) {
        status.sdus += u64::from(self.partial && !self.flight.is_empty());
        status.retx_bytes = self.retx_bytes;
        status.retx_pdus = self.retx.len() as u64;
        status.stalled = self.is_stalled();
    }

    pub(super) fn head_sizes(&self, most: usize, out: &mut Vec<u32>) {
        let header = AmHeader::len(Segment::Last, self.sn);
        out.extend(self.retx.iter().take(most).map(|r| (usize::from(r.to - r.from) + header) as u32));
        if self.partial
            && let Some(last) = self.flight.back()
        {
            out.push((last.head.left() + header) as u32);
        }
    }
}
