//! Delivery of held packets: gaps that fill or cannot fill any more, hold times that end, and bounds.

use super::super::flows::Skip;
use super::super::law::ahead;
use super::super::pool::{Meta, Pool};
use super::{Cause, Ctx, IDLE, Inner, LISTS, PATIENT};
use crate::{MAX_PATHS, PacketSink, PathId};
use anabranch_element::Reason;
use anabranch_element::time::{Duration, Instant, nanos};

impl Inner {
    /// Advances `expected` of a flow to `target`: delivers the packets held below it, then settles.
    pub(super) fn advance(
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

    /// Delivers contiguous packets, skips gaps that cannot fill any more, frees an empty ring.
    pub(super) fn settle(&mut self, index: u16, mut cause: Cause, ctx: &mut Ctx<'_, impl PacketSink>) {
        loop {
            let flow = self.flows.get(index);
            let live = flow.sole.map_or(self.law.live(), |path| 1 << path);
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

    /// Gives up the missing packets before `lowest`, the lowest packet held.
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
    pub(super) fn release_lowest(&mut self, index: u16, ctx: &mut Ctx<'_, impl PacketSink>) {
        if let Some(lowest) = self.flows.get(index).lowest() {
            self.skip_to(index, lowest, Cause::Early, ctx);
        }
        self.settle(index, Cause::Early, ctx);
    }

    /// Delivers the packets held before `sequence`, which is not held itself.
    pub(super) fn release_below(&mut self, index: u16, sequence: u32, ctx: &mut Ctx<'_, impl PacketSink>) {
        loop {
            let flow = self.flows.get(index);
            let Some(lowest) = flow.lowest().filter(|lowest| ahead(*lowest, sequence) < 0) else { break };
            if lowest != flow.expected {
                self.skip_to(index, lowest, Cause::Early, ctx);
            }
            if let Some(slot) = self.flows.get(index).slot(lowest) {
                self.deliver(index, slot, Cause::Early, ctx);
            }
        }
        if self.flows.get(index).held == 0 {
            self.settle(index, Cause::Early, ctx); // frees an empty ring
        }
    }

    pub(super) fn release_all(&mut self, index: u16, ctx: &mut Ctx<'_, impl PacketSink>) {
        while self.flows.get(index).held > 0 {
            self.release_lowest(index, ctx);
        }
    }

    /// The packet of this session that has been held longest.
    pub(super) fn oldest(&self, pool: &Pool) -> Option<Meta> {
        let heads = (0..LISTS).filter_map(|path| Some((self.firsts[path], self.lists[path].head()?)));
        heads.min_by_key(|(arrival, _)| *arrival).map(|(_, slot)| pool.meta(slot))
    }

    /// Delivers the packet that has been held longest, and those before it. Returns `false` without any
    /// effect if there is none, or if it comes after `sequence` in flow `index`.
    pub(super) fn release_oldest_but(
        &mut self,
        index: u16,
        sequence: u32,
        ctx: &mut Ctx<'_, impl PacketSink>,
    ) -> bool {
        let Some(meta) = self.oldest(ctx.pool) else { return false };
        if meta.owner == index && ahead(meta.sequence, sequence) > 0 {
            return false;
        }
        self.advance(meta.owner, meta.sequence, Cause::Early, Some((meta.arrival, meta.path)), ctx);
        true
    }

    pub(super) fn flush(&mut self, ctx: &mut Ctx<'_, impl PacketSink>) {
        while let Some(meta) = self.oldest(ctx.pool) {
            self.advance(meta.owner, meta.sequence, Cause::Early, Some((meta.arrival, meta.path)), ctx);
        }
    }

    pub(super) fn on_timeout(&mut self, ctx: &mut Ctx<'_, impl PacketSink>) {
        for path in 0..LISTS {
            while let Some(slot) = self.lists[path].head() {
                let Meta { arrival, sequence, owner, path } = ctx.pool.meta(slot);
                if arrival + self.hold_time(path) > ctx.now {
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

    /// Hold time of the packets in a list.
    fn hold_time(&self, list: PathId) -> Duration {
        if list == PATIENT { self.patience } else { self.law.hold(list) }
    }

    pub(super) fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        let held = (0..LISTS).filter(|&list| self.lists[list].head().is_some());
        let held = held.map(|list| self.firsts[list] + self.hold_time(list as PathId)).min();
        match (held, self.idle_at) {
            (Some(at), idle) if idle.is_none_or(|idle| at <= idle) => Some((at, "reorder hold")),
            (_, idle) => idle.map(|at| (at, "reorder idle")),
        }
    }
}
