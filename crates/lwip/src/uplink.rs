//! The uplink of a node: applies the decisions of DIDA.

use super::config::{DidaConfig, Hold};
use super::dida::{Verdict, before};
use super::events::{Event, ReleaseReason};
use super::flow::{Flow, Gap};
use super::holding_time::GUARD_S;
use super::node::{Node, NodeSink, ParsedPacket, Ue};
use super::pool::{MAX_HELD_BYTES, Queue};
use super::sack::{RetainedBlocks, stamp_of, with_blocks};
use super::stats::{PassReason, Stats};
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ip::IpPacket;
use anabranch_wire::tcp::TcpFlags;

/// Allowance for the error of the modelled difference between the legs: a packet may be late by that difference
/// plus this time.
const LATE_ALLOWANCE: Duration = Duration::from_millis(20);
/// Most events waiting to be taken; beyond that, the oldest are dropped.
const MAX_EVENTS: usize = 512;

impl Node {
    pub(super) fn uplink_tcp(
        &mut self,
        parsed: &ParsedPacket<'_>,
        packet: &[u8],
        now: Instant,
        out: &mut impl NodeSink,
    ) -> Option<PassReason> {
        let key = parsed.key.reversed();
        let hash = self.flows.hash(&key);
        let is_syn = parsed.tcp.flags().contains(TcpFlags::SYN);
        let number = match (self.flows.find(&key, hash), self.by_address.get(&key.dst)) {
            (Some(number), _) => number,
            // Only the SYN carries the window scale, so a flow is created for it.
            (None, Some(&ue)) if is_syn => {
                let number = self.new_flow(Flow::new(key, hash, ue, now), now);
                self.send_orphans(out);
                number
            }
            (None, ue) => {
                out.backhaul(packet);
                return Some(if ue.is_some() { PassReason::UnknownFlow } else { PassReason::UnknownUe });
            }
        };
        let mut dida = self.config.dida.filter(|dida| dida.hold != Hold::Fixed { ms: 0.0 });
        if dida.is_some()
            && let Some(flow) = self.flows.get(number)
            && let Some(of_flow) = &flow.law
            && let Some(ue) = self.ues.get(flow.ue as usize)
        {
            let longest = if of_flow.is_split() {
                ue.spread(now).unwrap_or_default() + LATE_ALLOWANCE
            } else {
                LATE_ALLOWANCE
            };
            let una =
                if before(flow.track.una, parsed.tcp.ack()) { parsed.tcp.ack() } else { flow.track.una };
            if !of_flow.may_be_late(&parsed.tcp, una, longest, now) {
                dida = None;
                if parsed.tcp.ack() == flow.track.una && !flow.track.held.is_empty() {
                    self.end_hold(number, ReleaseReason::Lost, now, out);
                }
            }
        }
        let let_through = dida.map(|dida| dida.let_through);
        let hides = dida.is_some_and(|dida| dida.hide_sack);
        let flow = self.flows.get_mut(number)?;
        if let (Some(of_flow), Some(Ue { law: Some(law), links, .. })) =
            (&mut flow.law, self.ues.get_mut(flow.ue as usize))
        {
            law.acknowledged(links, of_flow, &parsed.tcp, packet.len(), now);
        }
        let (verdict, reason) = flow.track.decide(&parsed.ip, &parsed.tcp, let_through, hides);
        if matches!(verdict, Verdict::PassDuplicate | Verdict::Hold | Verdict::Divide) {
            flow.estimate.on_gap();
            if let_through.is_some_and(|let_through| flow.track.dups > let_through) && flow.gap.is_none() {
                flow.gap = Some(Gap::new(now));
            }
        }
        match verdict {
            Verdict::Pass => out.backhaul(packet),
            Verdict::PassDuplicate => self.pass_duplicate(number, packet, now, out),
            Verdict::Advance => {
                self.end_hold(number, ReleaseReason::Filled, now, out);
                self.stats.advances += 1;
                self.end_gap(number, parsed.tcp.timestamps().map(|(_, echo)| echo), now);
                let mut retained = None;
                if let Some(flow) = self.flows.get_mut(number) {
                    flow.estimate.on_advance(&parsed.tcp, flow.track.una, now);
                    flow.track.advance(&parsed.tcp, now);
                    retained = flow.track.retained_blocks(&parsed.tcp).filter(|_| hides);
                }
                match retained {
                    Some(retained) => self.hold_gap(number, &parsed.ip, packet, retained, now, out),
                    None => out.backhaul(packet),
                }
            }
            Verdict::Release(why) => {
                self.end_hold(number, why, now, out);
                if is_syn && let Some(flow) = self.flows.get_mut(number) {
                    flow.track.on_uplink_syn(&parsed.tcp);
                    // After a retransmitted SYN, the answer is ambiguous, so it gives no round trip.
                    flow.syn_at = flow.syn_at.is_none().then_some(now);
                    flow.gap = None;
                }
                out.backhaul(packet);
            }
            Verdict::Hold => self.hold(number, packet, now, out),
            Verdict::Divide => self.divide(number, &parsed.ip, packet, now, out),
        }
        let proven = self.flows.get(number).is_some_and(|flow| flow.track.is_proven());
        self.flows.touch(number, proven, now);
        reason
    }

    fn hold(&mut self, number: u32, packet: &[u8], now: Instant, out: &mut impl NodeSink) {
        let (Some(dida), Some(flow)) = (self.config.dida, self.flows.get(number)) else {
            return out.backhaul(packet);
        };
        let until = if flow.track.held.is_empty() { self.hold_until(&dida, flow, now) } else { Instant::MAX };
        if until <= now {
            return self.pass_duplicate(number, packet, now, out);
        }
        let Some(flow) = self.flows.get_mut(number) else { return };
        let track = &mut flow.track;
        if track.held.len() >= dida.held_per_flow || !self.pool.push(&mut track.held, packet, dida.held) {
            track.gave_up();
            self.end_hold(number, ReleaseReason::Full, now, out);
            return self.pass_duplicate(number, packet, now, out);
        }
        flow.held_acks += 1;
        self.stats.dup_acks += 1;
        self.stats.held += 1;
        if until < Instant::MAX {
            track.held_since = now;
            self.timers.set(number, until);
        }
    }

    /// Forwards an ACK without the SACK blocks that report a gap, and holds the original.
    fn hold_gap(
        &mut self,
        number: u32,
        ip: &IpPacket,
        packet: &[u8],
        retained: RetainedBlocks,
        now: Instant,
        out: &mut impl NodeSink,
    ) {
        let (Some(dida), Some(flow)) = (self.config.dida, self.flows.get(number)) else {
            return out.backhaul(packet);
        };
        let until = self.hold_until(&dida, flow, now);
        let (mut forwarded_copy, mut held_copy) = ([0; MAX_HELD_BYTES], [0; MAX_HELD_BYTES]);
        let held_copy = match retained {
            RetainedBlocks::First => with_blocks(ip, packet, RetainedBlocks::Others, None, &mut held_copy),
            RetainedBlocks::None | RetainedBlocks::Others => Some(packet),
        };
        if until > now
            && let (Some(hidden), Some(held_copy)) =
                (with_blocks(ip, packet, retained, None, &mut forwarded_copy), held_copy)
            && let Some(flow) = self.flows.get_mut(number)
            && self.pool.push(&mut flow.track.held, held_copy, dida.held)
        {
            self.stats.hidden_gaps += 1;
            flow.gap = Some(Gap::new(now));
            flow.track.held_since = now;
            self.timers.set(number, until);
            return out.backhaul(hidden);
        }
        out.backhaul(packet);
    }

    /// Forwards the duplicate SACK of an ACK, and holds its other blocks.
    fn divide(&mut self, number: u32, ip: &IpPacket, packet: &[u8], now: Instant, out: &mut impl NodeSink) {
        let Some(flow) = self.flows.get(number) else { return out.backhaul(packet) };
        let stamp = self.pool.front(&flow.track.held).and_then(stamp_of);
        let (mut forwarded_copy, mut held_copy) = ([0; MAX_HELD_BYTES], [0; MAX_HELD_BYTES]);
        let Some(first) = with_blocks(ip, packet, RetainedBlocks::First, stamp, &mut forwarded_copy) else {
            self.end_hold(number, ReleaseReason::Dsack, now, out);
            return out.backhaul(packet);
        };
        out.backhaul(first);
        // There may be no other blocks.
        if let Some(others) = with_blocks(ip, packet, RetainedBlocks::Others, None, &mut held_copy) {
            self.hold(number, others, now, out);
        }
    }

    /// The latest end of a hold that begins now.
    fn hold_until(&self, dida: &DidaConfig, flow: &Flow, now: Instant) -> Instant {
        let trips = flow.estimate.round_trips();
        let spread =
            flow.law.as_ref().and_then(|_| self.ues.get(flow.ue as usize)).and_then(|ue| ue.spread(now));
        let seconds = match (spread, dida.hold) {
            // Where a loss is recognised by its leg, a hold may last as long as a packet can be late.
            (Some(spread), _) => (spread + LATE_ALLOWANCE).as_secs_f64(),
            (None, Hold::Fixed { ms }) => ms / 1e3,
            (None, Hold::Optimal) => flow.model(now).map_or(0.0, |model| model.optimum_s()),
            (None, Hold::Adaptive) => match (trips, self.ues.get(flow.ue as usize)) {
                (Some(trips), Some(ue)) => ue.gaps.best_s(flow.window(), trips.smoothed_s),
                _ => 0.0,
            },
        };
        let until = now + span(seconds);
        if !dida.respect_rto {
            return until;
        }
        let floor_s = f64::from(dida.min_rto_ms) / 1e3;
        let longest_s = trips.map_or(floor_s - GUARD_S, |trips| trips.mht_s(floor_s));
        until.min(flow.track.advanced_at + span(longest_s))
    }

    fn pass_duplicate(&mut self, number: u32, packet: &[u8], now: Instant, out: &mut impl NodeSink) {
        self.stats.dup_acks += 1;
        self.stats.dup_acks_passed += 1;
        if let Some(flow) = self.flows.get_mut(number) {
            count_sent(flow, 1, now, &mut self.stats);
        }
        out.backhaul(packet);
    }

    /// The missing ACK arrived: decides whether its packet was late or lost.
    fn end_gap(&mut self, number: u32, echo: Option<u32>, now: Instant) {
        let Some(flow) = self.flows.get_mut(number) else { return };
        let Some(gap) = flow.gap.take() else { return };
        let shortest = Duration::from_micros(flow.estimate.down_min_us.into());
        let late = gap.was_late(echo, shortest, now);
        let Some(ue) = self.ues.get_mut(flow.ue as usize) else { return };
        if late {
            self.stats.late_gaps += 1;
            ue.gaps.was_late(now.saturating_since(gap.since));
        } else {
            self.stats.lost_gaps += 1;
            ue.gaps.was_lost();
        }
    }

    /// Ends the hold of a flow: the held ACKs are sent in order, or dropped if the missing ACK arrived.
    pub(super) fn end_hold(
        &mut self,
        number: u32,
        reason: ReleaseReason,
        now: Instant,
        out: &mut impl NodeSink,
    ) {
        let Some(mut held) = self.take_held(number, reason, now) else { return };
        self.pool.drain(&mut held, |packet| {
            if reason != ReleaseReason::Filled {
                out.backhaul(packet);
            }
        });
    }

    /// As [`Self::end_hold`], where packets cannot be sent: they are sent with the next call that can.
    pub(super) fn orphan(&mut self, number: u32, reason: ReleaseReason, now: Instant) {
        if let Some(held) = self.take_held(number, reason, now) {
            self.pool.append(&mut self.orphans, held);
        }
    }

    fn take_held(&mut self, number: u32, reason: ReleaseReason, now: Instant) -> Option<Queue> {
        let flow = self.flows.get_mut(number)?;
        if flow.track.held.is_empty() {
            return None;
        }
        self.timers.clear(number);
        let held = core::mem::take(&mut flow.track.held);
        let time = now.saturating_since(flow.track.held_since);
        if reason != ReleaseReason::Filled {
            flow.track.gave_up();
            count_sent(flow, held.len(), now, &mut self.stats);
        }
        self.stats.hold_ended(reason, held.len(), time);
        let event = Event::Released { flow: flow.key, reason, acks: held.len(), held: time };
        self.event(event);
        Some(held)
    }

    pub(super) fn event(&mut self, event: Event) {
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    pub(super) fn send_orphans(&mut self, out: &mut impl NodeSink) {
        if !self.orphans.is_empty() {
            self.pool.drain(&mut self.orphans, |packet| out.backhaul(packet));
        }
    }
}

/// Counts duplicates sent since the last advance. At the third, the sender reduces its window, so a new period of
/// window growth begins.
fn count_sent(flow: &mut Flow, more: u32, now: Instant, stats: &mut Stats) {
    let before = flow.track.dups_sent;
    let sent = u32::from(before).saturating_add(more).min(u16::MAX.into()) as u16;
    flow.track.dups_sent = sent;
    if before < 3 && sent >= 3 {
        stats.triple_dup_acks += 1;
        flow.estimate.epoch = now;
    }
}

/// A duration of `seconds`; zero if that is not a valid duration.
fn span(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
