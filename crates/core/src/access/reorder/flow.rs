//! Sequence-based reordering per flow for splitting modes, and de-duplication for redundant mode.
//!
//! The paper leaves uplink splitting unsolved (JUNCTION §V-D "Design limitation"); this is our answer,
//! the same in both directions. Every flow has its own sequence, so a gap in one flow never delays
//! another.
//!
//! ```text
//!      delivered, remembered in `seen`         ring: held, by sequence
//!   ◀─────────── WINDOW ───────────▶◀──────────────── ≤ WINDOW ───────────────▶
//!   ▓▓▓▓▓▓▓▓▓▓▓░▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓ ·  ▓ ▓ · ▓ ▓ ▓
//!              ▲                     ▲    ▲
//!              given up; may still   │    held, waiting for `expected`
//!              come, is "late"       expected
//! ```
//!
//! | packet | what happens |
//! |---|---|
//! | `expected` | delivered from where it is: no copy, no allocation; then everything contiguous |
//! | ahead, inside the window | held (copied into the pool) |
//! | ahead, beyond it | oldest held ones leave until it fits; if it never does: new sequence |
//! | behind, not seen | late: delivered at once |
//! | behind, seen | duplicate: dropped |
//! | behind the window | reordering: delivered; de-duplicating: dropped; after 250 ms of nothing else: new sequence |
//!
//! A gap ends when it fills; when a packet above it has waited its hold time (see `law.rs`); when a bound
//! is reached (oldest first; user data is never dropped for a bound); or when it *cannot* fill any more:
//! paths are FIFO, so once **every** live path of the session has delivered [`FlowLimits::overtakes`]
//! packets of this flow from above the gap, what is missing is lost. Three packets of tolerance pass
//! over mild reordering inside a path; a packet that turns up after it was taken for lost doubles the
//! tolerance (at most 64), every RTT report lowers it by one again. A path that carries nothing of the
//! flow keeps the rule from firing; the hold time then decides.
//!
//! A flow first met without its START is adopted: its first packets wait for earlier ones like after
//! any gap, once.
//!
//! [`FlowLimits::overtakes`]: super::FlowLimits::overtakes

use super::flows::{FLOW_BYTES, Flows, Skip};
use super::law::{HoldLaw, ahead, compact};
use super::pool::{Fifo, Meta, Pool};
use super::{FlowLimits, WINDOW};
use crate::access::{MAX_PATHS, PacketSink, PathId};
use crate::element::Reason;
use crate::time::{Duration, Instant, nanos};
use anabranch_wire::ip::FlowKey;

/// Packets only from behind the window for this long: the sender has begun a new sequence.
const RESTART_AFTER: Duration = Duration::from_millis(250);
/// A START that was seen before is a duplicate, unless the flow was silent this long.
const RESTART_SEEN_AFTER: Duration = Duration::from_secs(5);
/// Flows unused this long are forgotten.
const IDLE: Duration = Duration::from_secs(60);
const MAX_OVERTAKES: u16 = 64;

/// What became of a packet given to [`FlowReorder::on_packet`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It was delivered, and perhaps others behind it.
    Delivered,
    /// It was copied and waits.
    Held,
    /// It had been delivered before (or was held already): dropped.
    Duplicate,
    /// It came after its place was given up: delivered at once, out of order.
    Late,
}

/// Counters of one session's flow reordering, in packets where not said otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowStats {
    /// Delivered straight through.
    pub in_order: u64,
    /// Put on hold.
    pub held: u64,
    /// Held, and delivered because the gap before them filled.
    pub released_in_order: u64,
    /// Held, and delivered because a hold time passed.
    pub timed_out: u64,
    /// Held, and delivered because the gap could not fill any more.
    pub given_up: u64,
    /// Held, and delivered because a bound was reached or on request.
    pub early: u64,
    /// Dropped: delivered before.
    pub duplicates: u64,
    /// Delivered after their place was given up.
    pub late: u64,
    /// Came from behind the window.
    pub too_old: u64,
    /// New sequences taken up in a known flow.
    pub resyncs: u64,
    /// Flows forgotten to make room for others.
    pub evicted: u64,
    /// Delivered without any order because there was no room for the flow's state.
    pub unordered: u64,
    /// Most packets held at once in this session.
    pub max_depth: u32,
    /// Sum of the hold times, in nanoseconds.
    pub hold_ns: u64,
    /// Longest hold time, in nanoseconds.
    pub max_hold_ns: u64,
}

/// Flow reordering of one session, one direction. Costs three words until the first packet.
///
/// Memory comes from the [`Pool`] given to each call, which must always be the same one. Call
/// [`Self::close`] before dropping a session, or the pool stays charged.
#[derive(Default)]
pub struct FlowReorder {
    inner: Option<Box<Inner>>,
    /// RTTs learned before the first packet, in 100 µs.
    rtts: [u16; MAX_PATHS],
}

impl FlowReorder {
    /// Nothing known, nothing held.
    #[must_use]
    pub const fn new() -> Self {
        Self { inner: None, rtts: [0; MAX_PATHS] }
    }

    /// One packet of `flow` with its `sequence` arrived by `path`.
    ///
    /// `start`: it is the first of the flow's sequence. `hold`: restore order; `false` only drops
    /// duplicates (redundant mode). Whatever is due to leave goes to `out`, this packet included
    /// unless the outcome is [`Outcome::Held`] or [`Outcome::Duplicate`].
    #[expect(
        clippy::too_many_arguments,
        reason = "the packet and its header; a struct would only rename them"
    )]
    pub fn on_packet(
        &mut self,
        flow: &FlowKey,
        sequence: u32,
        start: bool,
        hold: bool,
        path: PathId,
        packet: &mut [u8],
        now: Instant,
        pool: &mut Pool,
        out: &mut impl PacketSink,
    ) -> Outcome {
        let rtts = self.rtts;
        let inner = self.inner.get_or_insert_with(|| Box::new(Inner::new(&pool.config().flow, &rtts)));
        let arrival = Arrival { sequence, start, hold, path: path.min(MAX_PATHS as PathId - 1) };
        inner.on_packet(flow, arrival, packet, &mut Ctx { now, pool, out })
    }

    /// Delivers what has waited long enough, forgets flows that are no longer used.
    pub fn on_timeout(&mut self, now: Instant, pool: &mut Pool, out: &mut impl PacketSink) {
        if let Some(inner) = &mut self.inner {
            inner.on_timeout(&mut Ctx { now, pool, out });
        }
    }

    /// When [`Self::on_timeout`] is due, and why.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        self.inner.as_ref()?.poll_timeout()
    }

    /// A new round-trip time of `path` in microseconds; 0: the path is down.
    pub fn set_path_rtt(&mut self, path: PathId, rtt_us: u32) {
        if let Some(inner) = &mut self.inner {
            inner.law.on_rtt(path, rtt_us);
            inner.overtakes = inner.overtakes.saturating_sub(1).max(inner.base_overtakes);
        } else if let Some(rtt) = self.rtts.get_mut(usize::from(path)) {
            *rtt = compact(rtt_us);
        }
    }

    /// How long a packet that came by `path` waits at most, as the law stands now.
    #[must_use]
    pub fn hold_time(&self, path: PathId) -> Duration {
        self.inner.as_ref().map_or(Duration::ZERO, |inner| inner.law.hold(path))
    }

    /// Packets held now.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.inner.as_ref().map_or(0, |inner| inner.held as usize)
    }

    /// Flows with state now.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.inner.as_ref().map_or(0, |inner| inner.flows.len())
    }

    /// Counters since the session began.
    #[must_use]
    pub fn stats(&self) -> FlowStats {
        self.inner.as_ref().map(|inner| inner.stats).unwrap_or_default()
    }

    /// Delivers everything held, each flow in order, at once.
    pub fn flush(&mut self, now: Instant, pool: &mut Pool, out: &mut impl PacketSink) {
        if let Some(inner) = &mut self.inner {
            inner.flush(&mut Ctx { now, pool, out });
        }
    }

    /// Ends the session: drops what is held and gives all memory back. Counters and RTTs start anew.
    pub fn close(&mut self, pool: &mut Pool) {
        if let Some(mut inner) = self.inner.take() {
            let ctx = &mut Ctx { now: Instant::ZERO, pool, out: &mut Nowhere };
            inner.flush(ctx);
            while let Some(index) = inner.flows.oldest() {
                inner.forget(index, ctx);
            }
        }
        self.rtts = [0; MAX_PATHS];
    }
}

struct Nowhere;
impl PacketSink for Nowhere {
    fn deliver(&mut self, _: &mut [u8]) {}
}

struct Arrival {
    sequence: u32,
    start: bool,
    hold: bool,
    path: PathId,
}

/// What every step needs from outside.
struct Ctx<'a, S> {
    now: Instant,
    pool: &'a mut Pool,
    out: &'a mut S,
}

/// Why held packets leave.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Filled,
    TimedOut,
    GivenUp,
    Early,
}

/// Whether a packet can be held.
enum Room {
    Fits,
    /// It is itself the next to leave.
    Leaves,
    /// It is beyond the window, and nothing held could leave to change that.
    Beyond,
}

struct Inner {
    law: HoldLaw,
    flows: Flows,
    /// Everything held, by the path it came by, oldest first: the heads have the next deadlines.
    lists: [Fifo; MAX_PATHS],
    /// When the head of each list came.
    firsts: [Instant; MAX_PATHS],
    held: u32,
    held_bytes: u32,
    overtakes: u16,
    base_overtakes: u16,
    idle_at: Option<Instant>,
    stats: FlowStats,
}

impl Inner {
    fn new(limits: &FlowLimits, rtts: &[u16; MAX_PATHS]) -> Self {
        let mut law = HoldLaw::new(limits);
        for (path, &rtt) in rtts.iter().enumerate().filter(|(_, rtt)| **rtt != 0) {
            law.on_rtt(path as PathId, u32::from(rtt) * 100);
        }
        let overtakes = limits.overtakes.max(1);
        Self {
            law,
            flows: Flows::new(),
            lists: [Fifo::EMPTY; MAX_PATHS],
            firsts: [Instant::ZERO; MAX_PATHS],
            held: 0,
            held_bytes: 0,
            overtakes,
            base_overtakes: overtakes,
            idle_at: None,
            stats: FlowStats::default(),
        }
    }

    fn on_packet(
        &mut self,
        key: &FlowKey,
        arrival: Arrival,
        packet: &mut [u8],
        ctx: &mut Ctx<'_, impl PacketSink>,
    ) -> Outcome {
        let Arrival { sequence, start, hold, path } = arrival;
        self.law.on_arrival(path);
        let index = match self.flows.find(key) {
            Some(index) => index,
            None => match self.admit(key, sequence, start || !hold, ctx) {
                Some(index) => index,
                None => {
                    self.stats.unordered += 1;
                    ctx.out.deliver(packet);
                    return Outcome::Delivered;
                }
            },
        };
        if !hold && self.flows.get(index).held > 0 {
            self.release_all(index, ctx); // the rule changed from splitting to redundant
        }
        let flow = self.flows.get(index);
        let distance = ahead(sequence, flow.expected);
        if distance == 0 {
            return self.in_order(index, sequence, packet, ctx);
        }
        if distance < 0 {
            return self.behind(index, arrival, packet, ctx);
        }
        if start {
            let begins = flow.adopting && flow.lowest().is_none_or(|lowest| ahead(sequence, lowest) < 0);
            if begins {
                flow.expected = sequence;
                return self.in_order(index, sequence, packet, ctx);
            }
            // A START that is held already: the sender's or the network's duplicate.
            if (distance as u32) >= WINDOW || flow.slot(sequence).is_none() {
                return self.restart(index, sequence, packet, ctx);
            }
        }
        if hold {
            return self.hold(index, arrival, packet, ctx);
        }
        flow.seen.clear(flow.expected, distance as u32);
        flow.expected = sequence;
        self.in_order(index, sequence, packet, ctx)
    }

    fn in_order(
        &mut self,
        index: u16,
        sequence: u32,
        packet: &mut [u8],
        ctx: &mut Ctx<'_, impl PacketSink>,
    ) -> Outcome {
        let flow = self.flows.get(index);
        flow.seen.set(sequence);
        flow.expected = sequence.wrapping_add(1);
        flow.adopting = false;
        flow.touched = ctx.now;
        self.stats.in_order += 1;
        ctx.out.deliver(packet);
        if flow.held > 0 {
            if let Some(slot) = flow.slot(flow.expected) {
                let next = ctx.pool.meta(slot);
                self.law.on_lateness(next.path, ctx.now.saturating_since(next.arrival));
            }
            self.settle(index, Cause::Filled, ctx);
        }
        Outcome::Delivered
    }

    fn behind(
        &mut self,
        index: u16,
        arrival: Arrival,
        packet: &mut [u8],
        ctx: &mut Ctx<'_, impl PacketSink>,
    ) -> Outcome {
        let Arrival { sequence, start, hold, .. } = arrival;
        let flow = self.flows.get(index);
        let silent = ctx.now.saturating_since(flow.touched);
        if ahead(sequence, flow.expected).unsigned_abs() > WINDOW {
            if silent >= RESTART_AFTER {
                return self.restart(index, sequence, packet, ctx);
            }
            self.stats.too_old += 1;
            if !hold {
                self.stats.duplicates += 1;
                return Outcome::Duplicate;
            }
        } else if flow.seen.contains(sequence) {
            if start && silent >= RESTART_SEEN_AFTER {
                return self.restart(index, sequence, packet, ctx);
            }
            flow.touched = ctx.now;
            self.stats.duplicates += 1;
            return Outcome::Duplicate;
        } else {
            flow.touched = ctx.now;
            flow.seen.set(sequence);
            if let Some(skip) = flow.skip
                && sequence.wrapping_sub(skip.first) < skip.count
            {
                self.law.on_lateness(skip.path, ctx.now.saturating_since(skip.since));
                if skip.given_up {
                    self.overtakes =
                        self.overtakes.saturating_mul(2).min(MAX_OVERTAKES.max(self.base_overtakes));
                }
            }
        }
        self.stats.late += 1;
        ctx.out.deliver(packet);
        Outcome::Late
    }

    /// The sender has begun a new sequence at this packet.
    fn restart(
        &mut self,
        index: u16,
        sequence: u32,
        packet: &mut [u8],
        ctx: &mut Ctx<'_, impl PacketSink>,
    ) -> Outcome {
        self.release_all(index, ctx);
        self.stats.resyncs += 1;
        self.flows.get(index).restart(sequence);
        self.in_order(index, sequence, packet, ctx)
    }

    fn hold(
        &mut self,
        index: u16,
        arrival: Arrival,
        packet: &mut [u8],
        ctx: &mut Ctx<'_, impl PacketSink>,
    ) -> Outcome {
        let Arrival { sequence, path, .. } = arrival;
        if self.flows.get(index).slot(sequence).is_some() {
            self.stats.duplicates += 1;
            return Outcome::Duplicate;
        }
        let slot = match self.make_room(index, sequence, packet.len(), ctx) {
            Room::Beyond => return self.restart(index, sequence, packet, ctx),
            Room::Leaves => None,
            Room::Fits => self.store(index, sequence, path, packet, ctx),
        };
        let Some(slot) = slot else {
            // Nothing is missing any more, or there is no room and it is the next to leave.
            if ahead(sequence, self.flows.get(index).expected) < 0 {
                return self.behind(index, arrival, packet, ctx);
            }
            self.advance(index, sequence, Cause::Early, None, ctx);
            return self.in_order(index, sequence, packet, ctx);
        };
        if self.lists[usize::from(path)].head().is_none() {
            self.firsts[usize::from(path)] = ctx.now;
        }
        self.lists[usize::from(path)].push_back(ctx.pool, slot);
        let len = packet.len() as u32;
        let flow = self.flows.get(index);
        if let Some(ring) = flow.ring.as_deref_mut() {
            let mask = ring.len() - 1;
            ring[sequence as usize & mask] = slot;
        }
        flow.held += 1;
        flow.held_bytes += len;
        flow.above[usize::from(path)] += 1;
        flow.touched = ctx.now;
        self.held += 1;
        self.held_bytes += len;
        self.stats.held += 1;
        self.stats.max_depth = self.stats.max_depth.max(self.held);
        self.settle(index, Cause::GivenUp, ctx);
        Outcome::Held
    }

    /// Lets the oldest packets leave until one of `len` bytes with `sequence` is within every bound.
    fn make_room(
        &mut self,
        index: u16,
        sequence: u32,
        len: usize,
        ctx: &mut Ctx<'_, impl PacketSink>,
    ) -> Room {
        let limits = &ctx.pool.config().flow;
        let (packets, flow_bytes, bytes) =
            (limits.packets_per_flow.clamp(1, WINDOW as u16), limits.bytes_per_flow, limits.bytes);
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        loop {
            let flow = self.flows.get(index);
            let distance = ahead(sequence, flow.expected);
            if distance <= 0 {
                return Room::Leaves;
            }
            let inside = (distance as u32) < WINDOW;
            let Some(lowest) = flow.lowest() else {
                if !inside {
                    return Room::Beyond;
                }
                break;
            };
            if inside && flow.held < packets && flow.held_bytes.saturating_add(len) <= flow_bytes {
                break;
            }
            if ahead(lowest, sequence) > 0 {
                return Room::Leaves;
            }
            self.release_lowest(index, ctx);
        }
        while self.held > 0 && self.held_bytes.saturating_add(len) > bytes {
            if !self.release_oldest_but(index, sequence, ctx) {
                return Room::Leaves;
            }
        }
        Room::Fits
    }

    /// A slot with a copy of the packet, and room for it in the flow's ring.
    fn store(
        &mut self,
        index: u16,
        sequence: u32,
        path: PathId,
        packet: &[u8],
        ctx: &mut Ctx<'_, impl PacketSink>,
    ) -> Option<u32> {
        let meta = Meta { arrival: ctx.now, sequence, owner: index, path };
        loop {
            let flow = self.flows.get(index);
            if ahead(sequence, flow.expected) <= 0 {
                return None;
            }
            if flow.reach(sequence, ctx.pool)
                && let Some(slot) = ctx.pool.store(packet, meta)
            {
                return Some(slot);
            }
            if !self.release_oldest_but(index, sequence, ctx) {
                self.settle(index, Cause::Early, ctx); // gives an empty ring back
                return None;
            }
        }
    }

    /// Moves `expected` of a flow up to `target`, delivering what is held below it, then settles.
    fn advance(
        &mut self,
        index: u16,
        target: u32,
        cause: Cause,
        noticed: Option<(Instant, PathId)>,
        ctx: &mut Ctx<'_, impl PacketSink>,
    ) {
        let flow = self.flows.get(index);
        debug_assert!(ahead(target, flow.expected) >= 0);
        flow.adopting = false;
        if let Some((since, path)) = noticed {
            let (first, count) = (flow.expected, target.wrapping_sub(flow.expected));
            flow.skip = Some(Skip { first, count, since, path, given_up: cause == Cause::GivenUp });
        }
        loop {
            let flow = self.flows.get(index);
            if flow.expected == target {
                break;
            }
            if flow.held == 0 {
                flow.seen.clear(flow.expected, target.wrapping_sub(flow.expected));
                flow.expected = target;
                break;
            }
            match flow.slot(flow.expected) {
                Some(slot) => self.deliver(index, slot, cause, ctx),
                None => {
                    flow.seen.clear(flow.expected, 1);
                    flow.expected = flow.expected.wrapping_add(1);
                }
            }
        }
        self.settle(index, cause, ctx);
    }

    /// Delivers what is contiguous, jumps gaps that cannot fill any more, gives an empty ring back.
    fn settle(&mut self, index: u16, mut cause: Cause, ctx: &mut Ctx<'_, impl PacketSink>) {
        loop {
            let live = self.law.live();
            let flow = self.flows.get(index);
            if let Some(slot) = flow.slot(flow.expected) {
                self.deliver(index, slot, cause, ctx);
                continue;
            }
            if flow.held == 0 {
                if let Some(ring) = flow.ring.take() {
                    ctx.pool.release_ring(ring);
                }
                return;
            }
            let overtaken = live != 0
                && (0..MAX_PATHS).all(|path| live & (1 << path) == 0 || flow.above[path] >= self.overtakes);
            let Some(lowest) = flow.lowest().filter(|_| overtaken) else { return };
            cause = Cause::GivenUp;
            self.skip_to(index, lowest, cause, ctx);
        }
    }

    /// Gives up what is missing before `lowest`, the lowest packet held.
    fn skip_to(&mut self, index: u16, lowest: u32, cause: Cause, ctx: &mut Ctx<'_, impl PacketSink>) {
        let flow = self.flows.get(index);
        let (first, count) = (flow.expected, lowest.wrapping_sub(flow.expected));
        if let Some(slot) = flow.slot(lowest) {
            let Meta { arrival: since, path, .. } = ctx.pool.meta(slot);
            flow.skip = Some(Skip { first, count, since, path, given_up: cause == Cause::GivenUp });
        }
        flow.seen.clear(first, count);
        flow.expected = lowest;
        flow.adopting = false;
    }

    /// Delivers the held packet at `expected`.
    fn deliver(&mut self, index: u16, slot: u32, cause: Cause, ctx: &mut Ctx<'_, impl PacketSink>) {
        let meta = ctx.pool.meta(slot);
        let path = usize::from(meta.path);
        let len = ctx.pool.len(slot);
        let flow = self.flows.get(index);
        flow.take(len, path);
        self.held -= 1;
        self.held_bytes -= len;
        let waited = nanos(ctx.now.saturating_since(meta.arrival));
        let stats = &mut self.stats;
        match cause {
            Cause::Filled => stats.released_in_order += 1,
            Cause::TimedOut => stats.timed_out += 1,
            Cause::GivenUp => stats.given_up += 1,
            Cause::Early => stats.early += 1,
        }
        stats.hold_ns = stats.hold_ns.saturating_add(waited);
        stats.max_hold_ns = stats.max_hold_ns.max(waited);
        self.lists[path].remove(ctx.pool, slot);
        if let Some(head) = self.lists[path].head() {
            self.firsts[path] = ctx.pool.meta(head).arrival;
        }
        ctx.out.deliver(ctx.pool.packet(slot));
        ctx.pool.release(slot);
    }

    /// Ends the first gap of a flow early.
    fn release_lowest(&mut self, index: u16, ctx: &mut Ctx<'_, impl PacketSink>) {
        if let Some(lowest) = self.flows.get(index).lowest() {
            self.skip_to(index, lowest, Cause::Early, ctx);
        }
        self.settle(index, Cause::Early, ctx);
    }

    fn release_all(&mut self, index: u16, ctx: &mut Ctx<'_, impl PacketSink>) {
        while self.flows.get(index).held > 0 {
            self.release_lowest(index, ctx);
        }
    }

    /// The packet that has waited longest in this session.
    fn oldest(&self, pool: &Pool) -> Option<Meta> {
        let heads = (0..MAX_PATHS).filter_map(|path| Some((self.firsts[path], self.lists[path].head()?)));
        heads.min_by_key(|(arrival, _)| *arrival).map(|(_, slot)| pool.meta(slot))
    }

    /// Lets the packet that has waited longest leave, and what is before it; `false`, and nothing
    /// happens, if there is none or it comes after `sequence` in flow `index`.
    fn release_oldest_but(&mut self, index: u16, sequence: u32, ctx: &mut Ctx<'_, impl PacketSink>) -> bool {
        let Some(meta) = self.oldest(ctx.pool) else { return false };
        if meta.owner == index && ahead(meta.sequence, sequence) > 0 {
            return false;
        }
        self.advance(meta.owner, meta.sequence, Cause::Early, Some((meta.arrival, meta.path)), ctx);
        true
    }

    fn flush(&mut self, ctx: &mut Ctx<'_, impl PacketSink>) {
        while let Some(meta) = self.oldest(ctx.pool) {
            self.advance(meta.owner, meta.sequence, Cause::Early, Some((meta.arrival, meta.path)), ctx);
        }
    }

    /// A new flow, in the place of the least recently used one if need be.
    fn admit(
        &mut self,
        key: &FlowKey,
        sequence: u32,
        started: bool,
        ctx: &mut Ctx<'_, impl PacketSink>,
    ) -> Option<u16> {
        let most = usize::from(ctx.pool.config().flow.flows.clamp(1, u16::MAX - 1));
        while self.flows.len() >= most || !ctx.pool.charge(FLOW_BYTES) {
            let oldest = self.flows.oldest()?;
            self.release_all(oldest, ctx);
            self.forget(oldest, ctx);
            self.stats.evicted += 1;
        }
        self.idle_at.get_or_insert(ctx.now + IDLE);
        Some(self.flows.insert(*key, sequence, started, ctx.now))
    }

    /// Forgets a flow that holds nothing.
    fn forget(&mut self, index: u16, ctx: &mut Ctx<'_, impl PacketSink>) {
        self.flows.remove(index);
        ctx.pool.refund(FLOW_BYTES);
    }

    fn on_timeout(&mut self, ctx: &mut Ctx<'_, impl PacketSink>) {
        for path in 0..MAX_PATHS {
            while let Some(slot) = self.lists[path].head() {
                let Meta { arrival, sequence, owner, path } = ctx.pool.meta(slot);
                if arrival + self.law.hold(path) > ctx.now {
                    break;
                }
                self.advance(owner, sequence, Cause::TimedOut, Some((arrival, path)), ctx);
            }
        }
        if self.idle_at.is_some_and(|at| at <= ctx.now) {
            self.idle_at = None;
            while let Some(oldest) = self.flows.oldest() {
                let until = self.flows.get(oldest).touched + IDLE;
                if until > ctx.now {
                    self.idle_at = Some(until);
                    break;
                }
                self.release_all(oldest, ctx);
                self.forget(oldest, ctx);
            }
        }
    }

    fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        let held = (0..MAX_PATHS).filter(|&path| self.lists[path].head().is_some());
        let held = held.map(|path| self.firsts[path] + self.law.hold(path as PathId)).min();
        match (held, self.idle_at) {
            (Some(at), idle) if idle.is_none_or(|idle| at <= idle) => Some((at, "reorder hold")),
            (_, idle) => idle.map(|at| (at, "reorder idle")),
        }
    }
}

#[cfg(test)]
mod tests;
