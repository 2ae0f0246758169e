//! Stream-wise reordering with pausable FIFO queues for switching modes (JUNCTION §V-D1).
//!
//! One path carries the stream at a time, so sequence numbers are not needed: it is sufficient to distinguish
//! the EX-PATH (before a switch) from the CURRENT-PATH (after it). The paper uses one bit; here it is an
//! 8-bit epoch, so that several switches may be in flight. The last EX packet is an explicit, empty MARK.
//!
//! ```text
//!  sender    EX       ──e7──e7──e7──MARK7                        (7 ends; nothing more on EX)
//!            CURRENT                     └─e8──e8──e8──e8──▶     (every packet says: hold ≤ timeout)
//!
//!  receiver  EX       ······e7·····e7······e7·····MARK7
//!            CURRENT  ··········e8──e8──e8             ·e8
//!                               ║ paused FIFO ║        │
//!            out      ······e7·····e7······e7 └▶e8e8e8 e8        in the order sent
//!                               ├─ timeout ──────────────┤       MARK7 lost: released here
//! ```
//!
//! | packet's epoch | what happens |
//! |---|---|
//! | current | delivered |
//! | older (EX, after its end was assumed) | delivered at once |
//! | newer | held in the paused queue of its epoch |
//! | newer, timeout 0 (switched because EX failed) | all held packets are delivered, then this one |
//! | newer, no queue or no memory | the same, and counted |
//! | of an unknown stream | adopted: with a timeout, it is held as if newer; otherwise it is delivered |
//!
//! Differences from the paper: the MARK is a datagram of its own (the paper flags the last EX packet, which
//! has already been sent when the sender decides to switch). As in the paper, the sender does not switch if
//! no queue is free, but a switch away from a failed path is never refused. Epochs are compared in 8-bit
//! serial arithmetic, so 127 switches may be in flight.

use super::pool::{Fifo, Meta, Pool};
use crate::PacketSink;
use anabranch_element::Reason;
use anabranch_element::time::{Duration, Instant, nanos};
use anabranch_wire::tunnel::StreamWord;

/// A stream received only in older epochs for this time has restarted.
const RESYNC_AFTER: Duration = Duration::from_secs(2);
/// Unit of [`StreamWord::timeout_100us`], in microseconds.
const TIMEOUT_UNIT_US: u128 = 100;
const MIN_HOLD_US: u64 = 2_000;
const MAX_HOLD_US: u64 = 500_000;

/// Limits of stream-wise reordering.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamLimits {
    /// Most epochs of one stream that may be held at once. Default 8.
    pub epochs: u8,
    /// Most bytes in one paused queue. Default 8 MiB.
    pub bytes_per_queue: u32,
    /// Upper limit of the sender's timeout. Default 1 s.
    pub max_hold: Duration,
}

impl Default for StreamLimits {
    fn default() -> Self {
        Self { epochs: 8, bytes_per_queue: 8 << 20, max_hold: Duration::from_secs(1) }
    }
}

/// How long the receiver may wait for the last packet of the EX path, as chosen by the sender: `srtt +
/// 4·rttvar + 1 ms` of the EX path, between 2 and 500 ms.
///
/// The MARK ends the wait after the difference of the one-way delays. The timeout matters only if the MARK is
/// lost, so it may be long: the whole round trip of the EX path.
#[must_use]
pub fn hold_timeout(ex_srtt_us: u32, ex_rttvar_us: u32) -> Duration {
    let us = u64::from(ex_srtt_us) + 4 * u64::from(ex_rttvar_us) + 1_000;
    Duration::from_micros(us.clamp(MIN_HOLD_US, MAX_HOLD_US))
}

/// The last packet of the EX path: an empty datagram with STREAM and MARK and this word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marker {
    /// The epoch that ends, and the hold timeout of the one that begins.
    pub word: StreamWord,
}

/// The answer to a sender that wants to switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Switch {
    /// The peer has no free queue: stay on the EX path, and ask again after the next probe.
    Stay,
    /// Switch. Send the marker on the EX path. A second copy is harmless and protects against the loss of
    /// one.
    Ordered(Marker),
    /// Switch without a marker: either the EX path failed and order is not kept, or nothing was sent since
    /// the last switch.
    Unmarked,
}

/// Sender side of one stream: all packets of one rule with a switching mode. Six bytes.
#[derive(Debug, Clone)]
pub struct StreamSender {
    stream: u8,
    epoch: u8,
    timeout_100us: u16,
    used: bool,
}

impl StreamSender {
    /// A stream that has sent nothing.
    #[must_use]
    pub const fn new(stream: u8) -> Self {
        Self { stream, epoch: 0, timeout_100us: 0, used: false }
    }

    /// The word of the next packet on the CURRENT path.
    pub fn stamp(&mut self) -> StreamWord {
        self.used = true;
        self.word()
    }

    /// Nothing is in flight any more: the peer need not wait for anything before the current epoch. To be
    /// called if nothing was sent for two seconds, or if the peer has restarted.
    pub fn settle(&mut self) {
        self.timeout_100us = 0;
    }

    /// Requests to move the stream to another path.
    ///
    /// `ex_alive`: the path to be left still delivers; `false` switches at once, without order. `hold`: how
    /// long the peer may wait, from [`hold_timeout`] (0.1 ms to 6.5 s). `peer_available`: free queues in the
    /// peer's newest probe; 0 refuses the switch (admission control, JUNCTION §V-D1).
    pub fn switch(&mut self, ex_alive: bool, hold: Duration, peer_available: u16) -> Switch {
        let hold = u16::try_from(hold.as_micros() / TIMEOUT_UNIT_US).unwrap_or(u16::MAX).max(1);
        if !self.used {
            // Packets in flight still belong to the previous epoch on the previous path; keep the longer
            // timeout.
            if self.timeout_100us > 0 {
                self.timeout_100us = self.timeout_100us.max(hold);
            }
            return Switch::Unmarked;
        }
        if ex_alive && peer_available == 0 {
            return Switch::Stay;
        }
        self.timeout_100us = if ex_alive { hold } else { 0 };
        let marker = Marker { word: self.word() };
        self.epoch = self.epoch.wrapping_add(1);
        self.used = false;
        if ex_alive { Switch::Ordered(marker) } else { Switch::Unmarked }
    }

    const fn word(&self) -> StreamWord {
        StreamWord { stream: self.stream, epoch: self.epoch, timeout_100us: self.timeout_100us }
    }
}

/// What [`StreamReorder::on_packet`] did with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamOutcome {
    /// Delivered.
    Passed,
    /// Held in a paused queue.
    Held,
    /// It belongs to an epoch that has ended: delivered at once.
    Late,
    /// It should have been held, but there was no queue or no memory: delivered.
    Unordered,
}

/// Counters of one session's stream reordering, in packets unless stated otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamStats {
    /// Delivered without being held.
    pub passed: u64,
    /// Held in a paused queue.
    pub held: u64,
    /// Received after the end of their epoch.
    pub late: u64,
    /// Delivered without order for lack of a queue or of memory.
    pub unordered: u64,
    /// Epochs begun because the MARK of the previous one arrived.
    pub by_marker: u64,
    /// Epochs begun because the sender's timeout ended.
    pub by_timeout: u64,
    /// Epochs begun because the sender stated that the EX path failed.
    pub by_failure: u64,
    /// Markers received.
    pub markers: u64,
    /// Most packets in paused queues at once.
    pub max_depth: u32,
    /// Sum of the hold times, in nanoseconds.
    pub hold_ns: u64,
    /// Longest hold time, in nanoseconds.
    pub max_hold_ns: u64,
}

/// Receiver side of all streams of one session. One pointer until the first packet.
///
/// Call [`Self::close`] before dropping a session; otherwise its memory stays charged to the pool.
#[derive(Default)]
pub struct StreamReorder {
    inner: Option<Box<Inner>>,
}

impl StreamReorder {
    /// No streams, nothing held.
    #[must_use]
    pub const fn new() -> Self {
        Self { inner: None }
    }

    /// A data packet with its stream word. Packets that are due are passed to `out`.
    pub fn on_packet(
        &mut self,
        word: StreamWord,
        packet: &mut [u8],
        now: Instant,
        pool: &mut Pool,
        out: &mut impl PacketSink,
    ) -> StreamOutcome {
        self.inner.get_or_insert_default().on_packet(word, packet, &mut Ctx { now, pool, out })
    }

    /// A MARK: all packets of `word.epoch` on the EX path have been received.
    pub fn on_marker(&mut self, word: StreamWord, now: Instant, pool: &mut Pool, out: &mut impl PacketSink) {
        self.inner.get_or_insert_default().on_marker(word, &mut Ctx { now, pool, out });
    }

    /// Delivers every queue whose timeout has ended.
    pub fn on_timeout(&mut self, now: Instant, pool: &mut Pool, out: &mut impl PacketSink) {
        if let Some(inner) = &mut self.inner {
            inner.on_timeout(&mut Ctx { now, pool, out });
        }
    }

    /// When [`Self::on_timeout`] is due, and the reason.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        let at = self.inner.as_ref()?.deadline?;
        Some((at, "stream hold"))
    }

    /// Number of packets held now.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.inner.as_ref().map_or(0, |inner| inner.held as usize)
    }

    /// Counters since the session began.
    #[must_use]
    pub fn stats(&self) -> StreamStats {
        self.inner.as_ref().map(|inner| inner.stats).unwrap_or_default()
    }

    /// Delivers all held packets at once, each stream in order.
    pub fn flush(&mut self, now: Instant, pool: &mut Pool, out: &mut impl PacketSink) {
        if let Some(inner) = &mut self.inner {
            let ctx = &mut Ctx { now, pool, out };
            for index in 0..inner.streams.len() {
                if let Some(last) = inner.streams[index].pending.last().map(|pending| pending.epoch) {
                    inner.begin(index, last, ctx);
                }
            }
            inner.set_deadline();
        }
    }

    /// Ends the session: drops all held packets and returns all memory and queues.
    pub fn close(&mut self, pool: &mut Pool) {
        self.flush(Instant::ZERO, pool, &mut DiscardSink);
        self.inner = None;
    }
}

struct DiscardSink;
impl PacketSink for DiscardSink {
    fn deliver(&mut self, _: &mut [u8]) {}
}

struct Ctx<'a, S> {
    now: Instant,
    pool: &'a mut Pool,
    out: &'a mut S,
}

/// A paused epoch.
struct Pending {
    epoch: u8,
    /// Its own MARK has arrived: the epoch is complete once it has begun.
    ended: bool,
    /// It holds one of the pool's queues.
    queued: bool,
    bytes: u32,
    queue: Fifo,
    deadline: Instant,
}

struct Stream {
    id: u8,
    /// The epoch that is delivered without being held.
    current: u8,
    /// When a packet of this epoch or of a newer one last arrived.
    heard: Instant,
    /// Paused epochs, in order.
    pending: Vec<Pending>,
}

#[derive(Default)]
struct Inner {
    /// Sorted by id; at most 256.
    streams: Vec<Stream>,
    held: u32,
    deadline: Option<Instant>,
    stats: StreamStats,
}

impl Inner {
    fn on_packet(
        &mut self,
        word: StreamWord,
        packet: &mut [u8],
        ctx: &mut Ctx<'_, impl PacketSink>,
    ) -> StreamOutcome {
        // A stream first received in the middle of a switch has more packets in flight on its EX path.
        let adopt = word.epoch.wrapping_sub(u8::from(word.timeout_100us > 0));
        let index = self.stream(word.stream, adopt, ctx.now);
        let stream = &mut self.streams[index];
        let mut distance = ahead(word.epoch, stream.current);
        if distance < 0 && ctx.now.saturating_since(stream.heard) >= RESYNC_AFTER && stream.pending.is_empty()
        {
            stream.current = word.epoch;
            distance = 0;
        }
        if distance < 0 {
            self.stats.late += 1;
            ctx.out.deliver(packet);
            return StreamOutcome::Late;
        }
        stream.heard = ctx.now;
        if distance == 0 {
            self.stats.passed += 1;
            ctx.out.deliver(packet);
            return StreamOutcome::Passed;
        }
        if word.timeout_100us > 0 && self.hold(index, word, packet, ctx) {
            self.stats.held += 1;
            self.stats.max_depth = self.stats.max_depth.max(self.held);
            return StreamOutcome::Held;
        }
        self.begin(index, word.epoch, ctx);
        self.set_deadline();
        ctx.out.deliver(packet);
        if word.timeout_100us == 0 {
            self.stats.by_failure += 1;
            self.stats.passed += 1;
            StreamOutcome::Passed
        } else {
            self.stats.unordered += 1;
            StreamOutcome::Unordered
        }
    }

    fn on_marker(&mut self, word: StreamWord, ctx: &mut Ctx<'_, impl PacketSink>) {
        self.stats.markers += 1;
        let index = self.stream(word.stream, word.epoch, ctx.now);
        let stream = &mut self.streams[index];
        match ahead(word.epoch, stream.current) {
            0 => {
                self.stats.by_marker += 1;
                let next = word.epoch.wrapping_add(1);
                self.begin(index, next, ctx);
                self.set_deadline();
            }
            1.. => {
                if let Some(pending) = self.pending(index, word, ctx) {
                    pending.ended = true;
                }
                self.set_deadline();
            }
            _ => {} // the end of an epoch that had already ended
        }
    }

    fn on_timeout(&mut self, ctx: &mut Ctx<'_, impl PacketSink>) {
        if self.deadline.is_none_or(|at| at > ctx.now) {
            return;
        }
        for index in 0..self.streams.len() {
            let Stream { current, ref pending, .. } = self.streams[index];
            let due =
                pending.iter().filter(|pending| pending.deadline <= ctx.now).map(|pending| pending.epoch);
            if let Some(epoch) = due.max_by_key(|epoch| ahead(*epoch, current)) {
                self.stats.by_timeout += 1;
                self.begin(index, epoch, ctx);
            }
        }
        self.set_deadline();
    }

    /// The index of a stream. An unknown stream is adopted at `epoch`.
    fn stream(&mut self, id: u8, epoch: u8, now: Instant) -> usize {
        match self.streams.binary_search_by_key(&id, |stream| stream.id) {
            Ok(index) => index,
            Err(index) => {
                self.streams.insert(index, Stream { id, current: epoch, heard: now, pending: Vec::new() });
                index
            }
        }
    }

    /// Appends a packet of a newer epoch to its queue; `false`: no room.
    fn hold(
        &mut self,
        index: usize,
        word: StreamWord,
        packet: &[u8],
        ctx: &mut Ctx<'_, impl PacketSink>,
    ) -> bool {
        let most = ctx.pool.config().stream.bytes_per_queue;
        let len = u32::try_from(packet.len()).unwrap_or(u32::MAX);
        let meta = Meta { arrival: ctx.now, sequence: u32::from(word.epoch), owner: 0, path: 0 };
        let before = self.deadline;
        let Some(pending) = self.pending(index, word, ctx) else { return false };
        if pending.bytes.saturating_add(len) > most || !(pending.queued || ctx.pool.acquire_queue()) {
            return false;
        }
        pending.queued = true;
        let Some(slot) = ctx.pool.store(packet, meta) else { return false };
        pending.queue.push_back(ctx.pool, slot);
        pending.bytes += len;
        let deadline = pending.deadline;
        self.held += 1;
        self.deadline = Some(before.map_or(deadline, |at| at.min(deadline)));
        true
    }

    /// The paused epoch of `word`; created if another one is allowed.
    fn pending(
        &mut self,
        index: usize,
        word: StreamWord,
        ctx: &Ctx<'_, impl PacketSink>,
    ) -> Option<&mut Pending> {
        let limits = &ctx.pool.config().stream;
        let Stream { current, pending, .. } = &mut self.streams[index];
        let rank = |epoch: u8| epoch.wrapping_sub(*current);
        match pending.binary_search_by_key(&rank(word.epoch), |pending| rank(pending.epoch)) {
            Ok(at) => Some(&mut pending[at]),
            Err(_) if pending.len() >= usize::from(limits.epochs) => None,
            Err(at) => {
                let hold = Duration::from_micros(u64::from(word.timeout_100us) * TIMEOUT_UNIT_US as u64);
                pending.insert(
                    at,
                    Pending {
                        epoch: word.epoch,
                        ended: false,
                        queued: false,
                        bytes: 0,
                        queue: Fifo::EMPTY,
                        deadline: ctx.now + hold.min(limits.max_hold),
                    },
                );
                Some(&mut pending[at])
            }
        }
    }

    /// Makes `epoch` the current one: delivers all queues up to it, and later ones that are complete.
    fn begin(&mut self, index: usize, epoch: u8, ctx: &mut Ctx<'_, impl PacketSink>) {
        let stream = &mut self.streams[index];
        let mut target = epoch;
        // Taken from the front to keep the memory of the Vec; there are only a few elements.
        while let Some(first) = stream.pending.first()
            && ahead(first.epoch, target) <= 0
        {
            let mut pending = stream.pending.remove(0);
            while let Some(slot) = pending.queue.pop_front(ctx.pool) {
                let waited = nanos(ctx.now.saturating_since(ctx.pool.meta(slot).arrival));
                self.stats.hold_ns = self.stats.hold_ns.saturating_add(waited);
                self.stats.max_hold_ns = self.stats.max_hold_ns.max(waited);
                self.held -= 1;
                ctx.out.deliver(ctx.pool.packet(slot));
                ctx.pool.release(slot);
            }
            if pending.queued {
                ctx.pool.release_queue();
            }
            if pending.ended && pending.epoch == target {
                target = target.wrapping_add(1);
                self.stats.by_marker += 1;
            }
        }
        stream.current = target;
    }

    fn set_deadline(&mut self) {
        let pending = self.streams.iter().flat_map(|stream| &stream.pending);
        self.deadline = pending.map(|pending| pending.deadline).min();
    }
}

/// How far `epoch` is ahead of `reference` in 8-bit serial arithmetic; negative: behind.
const fn ahead(epoch: u8, reference: u8) -> i8 {
    epoch.wrapping_sub(reference) as i8
}

#[cfg(test)]
mod tests;
