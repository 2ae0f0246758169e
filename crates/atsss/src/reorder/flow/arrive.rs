//! Arriving packets of a flow: delivered, held, late or dropped; creation and removal of flows.

use super::super::flows::{FLOW_BYTES, Flows};
use super::super::law::{HoldPolicy, ahead};
use super::super::pool::{Fifo, Meta};
use super::super::{FlowLimits, WINDOW};
use super::{Arrival, Cause, Ctx, FlowStats, Hold, IDLE, Inner, LISTS, Outcome, PATIENT};
use crate::{MAX_PATHS, PacketSink, PathId};
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ip::FlowKey;

/// If only packets from behind the window arrive for this time, the sender has begun a new sequence.
const RESTART_AFTER: Duration = Duration::from_millis(250);
/// A START that was already received is a duplicate, unless the flow was idle for this time.
const RESTART_SEEN_AFTER: Duration = Duration::from_secs(5);
const MAX_OVERTAKES: u16 = 64;

/// Whether a packet can be held.
enum Capacity {
    Fits,
    /// The packet is itself the next one to be delivered.
    Leaves,
    /// The packet is beyond the window, and no held packet could be delivered to change that.
    Beyond,
}

impl Inner {
    pub(super) fn new(limits: &FlowLimits, rtts: &[u16; MAX_PATHS]) -> Self {
        let mut law = HoldPolicy::new(limits);
        for (path, &rtt) in rtts.iter().enumerate().filter(|(_, rtt)| **rtt != 0) {
            law.on_rtt(path as PathId, u32::from(rtt) * 100);
        }
        let overtakes = limits.overtakes.max(1);
        Self {
            law,
            flows: Flows::new(),
            lists: [Fifo::EMPTY; LISTS],
            firsts: [Instant::ZERO; LISTS],
            patience: Duration::ZERO,
            held: 0,
            held_bytes: 0,
            overtakes,
            base_overtakes: overtakes,
            idle_at: None,
            stats: FlowStats::default(),
        }
    }

    pub(super) fn on_packet(
        &mut self,
        key: &FlowKey,
        mut arrival: Arrival,
        packet: &mut [u8],
        ctx: &mut Ctx<'_, impl PacketSink>,
    ) -> Outcome {
        self.law.on_arrival(arrival.path, ctx.now);
        let sole = (arrival.hold == Hold::OnPath).then_some(arrival.path);
        let by = 1 << arrival.path;
        let Arrival { sequence, start, hold, .. } = arrival;
        let patience = match hold {
            Hold::For(patience) => Some(patience),
            _ => None,
        };
        let hold = hold != Hold::Never;
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
            self.release_all(index, ctx); // the rule changed from a splitting mode to redundant
        }
        let hold_time = self.law.hold(arrival.path);
        let flow = self.flows.get(index);
        let sole = match patience {
            Some(patience) => {
                self.patience = patience;
                flow.patient_until = ctx.now + patience;
                arrival.path = PATIENT;
                None
            }
            // Packets without a code also wait for those that may be restored.
            None if flow.patient_until > ctx.now => {
                self.patience = self.patience.max(hold_time);
                arrival.path = PATIENT;
                None
            }
            None => sole,
        };
        let flow = self.flows.get(index);
        let spreads = flow.sole.is_some() && sole.is_none() && arrival.path != PATIENT;
        flow.sole = sole;
        flow.arrived.bytes = flow.arrived.bytes.saturating_add(packet.len() as u32);
        flow.arrived.paths |= by;
        if spreads {
            self.law.on_spread();
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
            // A START that is already held is a duplicate by the sender or the network.
            if (distance as u32) >= WINDOW {
                return self.restart(index, sequence, packet, ctx);
            }
            if flow.slot(sequence).is_none() {
                return self.start_at(index, sequence, packet, ctx);
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
        let hold = hold != Hold::Never;
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

    /// The sender has begun again at this packet, which is ahead of `expected` and within the window: nothing
    /// before it is missing. Packets held after it arrived by a faster path and follow it.
    fn start_at(
        &mut self,
        index: u16,
        sequence: u32,
        packet: &mut [u8],
        ctx: &mut Ctx<'_, impl PacketSink>,
    ) -> Outcome {
        self.release_below(index, sequence, ctx);
        let flow = self.flows.get(index);
        flow.seen.clear(flow.expected, sequence.wrapping_sub(flow.expected));
        (flow.expected, flow.skip) = (sequence, None);
        self.stats.resyncs += 1;
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
            Capacity::Beyond => return self.restart(index, sequence, packet, ctx),
            Capacity::Leaves => None,
            Capacity::Fits => self.store(index, sequence, path, packet, ctx),
        };
        let Some(slot) = slot else {
            // Nothing is missing any more, or there is no room and this packet is the next one to be
            // delivered.
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

    /// Delivers the oldest packets until a packet of `len` bytes with `sequence` is within all bounds.
    fn make_room(
        &mut self,
        index: u16,
        sequence: u32,
        len: usize,
        ctx: &mut Ctx<'_, impl PacketSink>,
    ) -> Capacity {
        let limits = &ctx.pool.config().flow;
        let (packets, flow_bytes, bytes) =
            (limits.packets_per_flow.clamp(1, WINDOW as u16), limits.bytes_per_flow, limits.bytes);
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        loop {
            let flow = self.flows.get(index);
            let distance = ahead(sequence, flow.expected);
            if distance <= 0 {
                return Capacity::Leaves;
            }
            let inside = (distance as u32) < WINDOW;
            let Some(lowest) = flow.lowest() else {
                if !inside {
                    return Capacity::Beyond;
                }
                break;
            };
            if inside && flow.held < packets && flow.held_bytes.saturating_add(len) <= flow_bytes {
                break;
            }
            if ahead(lowest, sequence) > 0 {
                return Capacity::Leaves;
            }
            self.release_lowest(index, ctx);
        }
        while self.held > 0 && self.held_bytes.saturating_add(len) > bytes {
            if !self.release_oldest_but(index, sequence, ctx) {
                return Capacity::Leaves;
            }
        }
        Capacity::Fits
    }

    /// A slot with a copy of the packet; its place in the flow's ring has been allocated.
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
                self.settle(index, Cause::Early, ctx); // frees an empty ring
                return None;
            }
        }
    }

    /// Inserts a new flow, in the place of the least recently used one if necessary.
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

    /// Removes a flow that holds no packets.
    pub(super) fn forget(&mut self, index: u16, ctx: &mut Ctx<'_, impl PacketSink>) {
        self.flows.remove(index);
        ctx.pool.refund(FLOW_BYTES);
    }
}
