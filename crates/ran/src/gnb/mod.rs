//! A cell: gNB and UEs, SDAP to air and back, as one element.
//!
//! ```text
//!                  ┌────────────────────────────── Gnb ──────────────────────────────────┐
//!            N3    │  SDAP ─▶ limiter ─▶ PDCP, RLC ─▶ MAC: slices, HARQ ─▶ air ─▶ RLC … ─┼─▶ UE 0, 1, …
//!   Gnb::N3 ◀────▶ │                                                                     │   Gnb::ue(n)
//!                  │  … RLC ◀─ air ◀─ MAC ◀─ grant, some slots later ◀─ RLC ◀─ SDAP ◀────┼──
//!                  └─────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Both directions use the same code; the uplink differs in what the MAC knows, and when (`grants`). [`GnbConfig`]
//! contains the whole configuration. Events at the same instant are processed in this order: arriving blocks; the MAC tick,
//! downlink first; timers and SDAP polls. Slots in which no UE has anything to send or to wait for are counted but not run,
//! and leave all quanta unchanged.

mod bearer;
mod bound;
mod build;
mod classify;
mod command;
mod config;
mod effect;
mod egress;
mod forecast;
mod grants;
mod ioam;
mod slot;
mod stats;
#[cfg(test)]
mod tests;
mod ue;
mod unmapped;
mod unservable;

pub use command::GnbCommand;
pub use config::{
    BearerById, BearerConfig, GnbConfig, GnbError, IoamConfig, MAX_UES, MacConfig, N3, N3Fault, PacketEvents,
    QosRule, TelemetryConfig, UeConfig, UeError,
};
pub use stats::{BearerStats, GnbEvent, LinkStats, PacketTimes, SlotStats, UeLinkStats, UeSlotStats};
pub use ue::TraceLoader;
pub use unmapped::UnmappedPackets;
pub use unservable::{Remedy, UnservableQueue};

use crate::amc::{Amc, Direction};
use crate::mac::{ControlLoad, Harq, TransportBlock};
use crate::queue::TtiReport;
use crate::rlc::BufferPool;
use crate::sched::{AnyInter, InterConfig, InterSlice, SliceConfig};
use crate::sdap::{DrbId, FlowStats};
use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant};
use anabranch_element::{Element, Port, Reason};
use anabranch_wire::gtpu::{GtpuHeader, is_unknown_extension, message};
use anabranch_wire::ip::dst;
use bearer::Delivered;
use egress::{Egress, push_event};
use slot::{DeferredPackets, Scratch};
use std::collections::VecDeque;
use std::net::IpAddr;
use ue::{Ue, index};

/// Maximum number of queued events; beyond it the oldest is dropped.
const MAX_EVENTS: usize = 1 << 16;
/// Maximum number of late slots that are run after the clock jumped ahead; older ones are skipped.
const MAX_LATE_SLOTS: u64 = 1000;

/// A cell; see the module documentation.
#[derive(Debug)]
pub struct Gnb {
    n3: N3,
    amc: Amc,
    air_delay: Duration,
    control: Vec<ControlLoad>,
    forecast: bool,
    telemetry: TelemetryConfig,
    slices: Vec<SliceConfig>,
    inter: [InterConfig; 2],
    links: [Link; 2],
    ues: Vec<Ue>,
    /// Address and UE number, sorted by address.
    by_address: Vec<(IpAddr, u32)>,
    /// The entry found for the previous packet.
    recent_address: Option<(IpAddr, u32)>,
    by_teid: Vec<(u32, u32)>,
    /// Fault of the latest faulty packet on N3.
    n3_fault: Option<N3Fault>,
    /// UEs with something to send or to wait for.
    active: Vec<u32>,
    /// The earliest timer of these UEs.
    wake: Instant,
    /// Number of slots after which the RBs for data repeat.
    period_slots: u64,
    /// Duration of a slot in nanoseconds, at least 1.
    slot_ns: u64,
    /// The next slot, and whether it is scheduled to run.
    next_slot: u64,
    ticking: bool,
    /// Time of the next action of the cell.
    due: Instant,
    pool: BufferPool,
    out: VecDeque<(Port, Packet)>,
    events: VecDeque<GnbEvent>,
    scratch: Scratch,
}

/// State of one direction.
#[derive(Debug)]
struct Link {
    scheduler: AnyInter,
    harq: Harq,
    /// Blocks on the air, by arrival time.
    flights: VecDeque<Flight>,
    stats: LinkStats,
    /// Number of slots counted so far.
    counted: u64,
}

/// A block on its way to the receiver.
#[derive(Debug)]
struct Flight {
    due: Instant,
    ue: u32,
    block: TransportBlock,
}

impl Gnb {
    /// The port towards the UPF.
    pub const N3: Port = Port(0);

    /// The port of a UE.
    #[must_use]
    pub const fn ue(number: u16) -> Port {
        Port(number + 1)
    }

    /// Names of the UEs, by number.
    pub fn ue_names(&self) -> impl Iterator<Item = &str> + '_ {
        self.ues.iter().map(|ue| ue.name.as_str())
    }

    /// The current slices.
    #[must_use]
    pub fn slices(&self) -> &[SliceConfig] {
        &self.slices
    }

    /// The slice of a UE as an index into [`slices`](Self::slices).
    #[must_use]
    pub fn slice_of(&self, ue: u32) -> Option<usize> {
        self.ues.get(ue as usize).map(|ue| usize::from(ue.slice))
    }

    /// The MCS of a UE at `now`; `None` in an outage.
    pub fn mcs(&mut self, ue: u32, direction: Direction, now: Instant) -> Option<u8> {
        let Self { ues, amc, .. } = self;
        ues.get_mut(ue as usize)?.mcs(direction, amc, now)
    }

    /// Time of the next slot to run; `None` while no UE has anything to send or to wait for.
    #[must_use]
    pub fn slot_due(&self) -> Option<Instant> {
        self.ticking.then(|| self.time_of(self.next_slot))
    }

    /// The configured events.
    #[must_use]
    pub const fn telemetry(&self) -> TelemetryConfig {
        self.telemetry
    }

    /// The carrier.
    #[must_use]
    pub fn amc(&self) -> &Amc {
        &self.amc
    }

    /// Balance of each slice in a direction, in RBs, positive if the slice is owed service; empty if the scheduler keeps none.
    #[must_use]
    pub fn balances(&self, direction: Direction) -> &[i32] {
        self.links[index(direction)].scheduler.balances()
    }

    /// The MCS of a UE at `now`, and the bytes of a transport block on the whole carrier with it; `None` in an outage.
    pub fn radio(&mut self, ue: u32, direction: Direction, now: Instant) -> Option<(u8, u32)> {
        let mcs = self.ues.get_mut(ue as usize)?.mcs(direction, &self.amc, now)?;
        Some((mcs, self.amc.full().row(mcs).last().copied().unwrap_or(0)))
    }

    /// Counters of a direction up to `now`.
    pub fn link_stats(&mut self, direction: Direction, now: Instant) -> LinkStats {
        self.count_slots(direction, now.as_nanos() / self.slot_ns);
        self.links[index(direction)].stats
    }

    /// Counters of a UE in a direction; all 0 if there is no such UE.
    #[must_use]
    pub fn ue_link_stats(&self, ue: u32, direction: Direction) -> UeLinkStats {
        self.ues.get(ue as usize).map(|ue| ue.direction_state(direction).stats).unwrap_or_default()
    }

    /// Counters of a UE's bearers in a direction.
    pub fn bearer_stats(
        &self,
        ue: u32,
        direction: Direction,
        now: Instant,
    ) -> impl Iterator<Item = BearerStats> + '_ {
        let bearers = self.ues.get(ue as usize).map_or(&[][..], |ue| &ue.bearers);
        bearers.iter().map(move |b| b.stats(direction, now))
    }

    /// QFI and counters of each of a UE's QoS flows in a direction.
    pub fn flow_stats(&self, ue: u32, direction: Direction) -> impl Iterator<Item = (u8, FlowStats)> + '_ {
        let state = self.ues.get(ue as usize).map(|ue| ue.direction_state(direction));
        state.into_iter().flat_map(|state| state.sdap.flow_stats())
    }

    #[inline]
    fn time_of(&self, slot: u64) -> Instant {
        Instant::from_nanos(slot.saturating_mul(self.slot_ns))
    }

    /// RBs for data in a slot; `None` if the slot does not carry this direction.
    #[inline]
    fn data_rbs(&self, direction: Direction, slot: u64) -> Option<u16> {
        self.amc.table(direction, slot)?;
        let control = self.control.iter().filter(|_| direction == Direction::Downlink);
        let taken = control.fold(0_u16, |sum, load| sum.saturating_add(load.rbs_at(slot)));
        Some(self.amc.rbs().saturating_sub(taken))
    }

    /// Counts the slots before `until` that were not run.
    fn count_slots(&mut self, direction: Direction, until: u64) {
        let from = self.links[index(direction)].counted;
        if until <= from {
            return;
        }
        let count = |range: std::ops::Range<u64>| {
            let carries = range.filter_map(|slot| self.data_rbs(direction, slot));
            carries.fold((0, 0), |(slots, sum), rbs| (slots + 1, sum + u64::from(rbs)))
        };
        // After a long idle time, whole periods are counted at once.
        let periods = (until - from) / self.period_slots.max(1);
        let of_period = if periods > 0 { count(from..from + self.period_slots) } else { (0, 0) };
        let rest = count(from + periods * self.period_slots..until);
        let link = &mut self.links[index(direction)];
        let (slots, rbs) = (periods * of_period.0 + rest.0, periods * of_period.1 + rest.1);
        link.stats.slots += slots;
        link.stats.rbs += rbs;
        link.stats.unused_rbs += rbs;
        link.counted = until;
    }

    #[inline]
    fn event(&mut self, event: GnbEvent) {
        push_event(&mut self.events, event);
    }

    /// Activates a UE that has, or will have, something to send: slots are run from now on.
    fn activate(&mut self, number: u32, now: Instant) {
        if !self.ticking {
            self.ticking = true;
            self.next_slot = self.next_slot.max(now.as_nanos().div_ceil(self.slot_ns));
        }
        self.active.push(number);
        self.ues[number as usize].active = true;
        // Report the idle slots to the limiters of the UE.
        self.record_first(number, self.next_slot.saturating_sub(1));
        if let Some(last) = self.next_slot.checked_sub(1) {
            for direction in Direction::ALL {
                let next = self.forecast(direction, number, last);
                let report = TtiReport { at: self.time_of(last), ..TtiReport::default() };
                self.ues[number as usize].report(direction, last, &report, next);
            }
        }
    }

    #[inline]
    fn downlink(&mut self, mut packet: Packet, now: Instant) {
        let found = match self.n3 {
            N3::Ip => self.ue_by_address(&packet).map(|number| (number, None)),
            N3::Gtpu => match GtpuHeader::parse(&packet) {
                Ok((header, rest)) if header.message == message::G_PDU => {
                    let len = packet.len() - rest.len();
                    packet.pull_front(len);
                    let number = self.ue_by_teid(header.teid);
                    self.n3_fault = number.is_none().then_some(N3Fault::NoTunnel(header.teid));
                    number.map(|number| (number, header.session.map(|s| s.qfi)))
                }
                Ok((header, _)) if header.message == message::ECHO_REQUEST => {
                    return self.echo(header.sequence, now);
                }
                Err(error) if is_unknown_extension(&error) && packet.get(1) == Some(&message::G_PDU) => {
                    self.n3_fault = Some(N3Fault::UnknownExtension);
                    None
                }
                _ => None,
            },
        };
        match found {
            Some((number, qfi)) => self.pass_to_sdap(Direction::Downlink, number, qfi, packet, now),
            None => self.links[0].stats.unroutable_packets += 1,
        }
    }

    /// Passes a packet to SDAP at the sending end of a direction.
    #[inline]
    fn pass_to_sdap(
        &mut self,
        direction: Direction,
        number: u32,
        qfi: Option<u8>,
        packet: Packet,
        now: Instant,
    ) {
        if self.ues.get(number as usize).is_some_and(|ue| !ue.active) {
            self.activate(number, now);
        }
        let Some(ue) = self.ues.get_mut(number as usize) else { return };
        let qfi = qfi.unwrap_or_else(|| ue.qfi_of(direction, &packet));
        if ue.enqueue(direction, qfi, packet, now).is_err() {
            self.links[index(direction)].stats.unroutable_packets += 1;
        }
        self.wake = self.wake.min(ue.wake);
    }

    #[inline]
    fn ue_by_address(&mut self, packet: &[u8]) -> Option<u32> {
        let to = dst(packet).ok()?;
        if let Some((known, number)) = self.recent_address
            && known == to
        {
            return Some(number);
        }
        let at = self.by_address.binary_search_by_key(&to, |(address, _)| *address).ok()?;
        self.recent_address = Some(self.by_address[at]);
        Some(self.by_address[at].1)
    }

    fn ue_by_teid(&self, teid: u32) -> Option<u32> {
        let at = self.by_teid.binary_search_by_key(&teid, |(teid, _)| *teid).ok()?;
        Some(self.by_teid[at].1)
    }

    /// Returns the fault of the latest faulty packet on N3, once; the caller reports it to the sender.
    pub fn take_n3_fault(&mut self) -> Option<N3Fault> {
        self.n3_fault.take()
    }

    /// Answers an echo request (TS 29.281 §7.2) with a Recovery element of 0.
    fn echo(&mut self, sequence: Option<u16>, now: Instant) {
        const RECOVERY: [u8; 2] = [14, 0];
        let header = GtpuHeader { message: message::ECHO_RESPONSE, sequence, ..GtpuHeader::g_pdu(0, None) };
        let mut bytes = vec![0; header.header_len()];
        if header.emit(RECOVERY.len(), &mut bytes).is_ok() {
            bytes.extend(RECOVERY);
            self.out.push_back((Self::N3, Packet::new(now, bytes)));
        }
    }

    /// Sends out a packet that was delivered at the receiving end of a direction.
    fn deliver(
        &mut self,
        direction: Direction,
        number: u32,
        drb: DrbId,
        mut delivered: Delivered,
        now: Instant,
    ) {
        let Some((mut egress, ue, ..)) = self.egress(direction, number) else { return };
        if direction == Direction::Uplink {
            let arrived = delivered.sent.map_or(now, |sent| sent.arrived);
            ue.mark_uplink_packet(drb, &mut delivered.packet, arrived, now);
        }
        egress.deliver(drb, delivered, now);
    }

    /// Sends out the packets that were put aside.
    fn deliver_deferred(&mut self, number: u32, now: Instant) {
        let mut up = std::mem::take(&mut self.scratch.delivered);
        for (direction, drb, delivered) in up.drain(..) {
            self.deliver(direction, number, drb, delivered, now);
        }
        self.scratch.delivered = up;
    }

    /// The exit for the packets of a UE in a direction, and the other state needed while it is borrowed; the last element is
    /// the list for packets that are put aside.
    #[inline]
    fn egress(
        &mut self,
        direction: Direction,
        number: u32,
    ) -> Option<(Egress<'_>, &mut Ue, &mut BufferPool, &mut DeferredPackets)> {
        let Self { n3, air_delay, telemetry, links, out, events, ues, pool, scratch, .. } = self;
        let ue = ues.get_mut(number as usize)?;
        let stats = &mut links[index(direction)].stats;
        let teid_uplink = ue.teid_uplink;
        let (gtpu, air_delay) = (*n3 == N3::Gtpu, *air_delay);
        let packet_events = telemetry.packets.has(direction);
        let egress =
            Egress { direction, ue: number, teid_uplink, gtpu, air_delay, packet_events, stats, out, events };
        Some((egress, ue, pool, &mut scratch.delivered))
    }

    /// Processes the blocks of a direction that have arrived by `now`.
    fn receive_due(&mut self, direction: Direction, now: Instant) {
        let is_there = |link: &Link| link.flights.front().is_some_and(|flight| flight.due <= now);
        while is_there(&self.links[index(direction)])
            && let Some(flight) = self.links[index(direction)].flights.pop_front()
        {
            self.receive_block(direction, flight);
        }
    }

    /// Processes a block that has arrived.
    #[inline]
    fn receive_block(&mut self, direction: Direction, flight: Flight) {
        let Flight { due, ue: number, block } = flight;
        let Some((mut egress, ue, pool, rest)) = self.egress(direction, number) else { return };
        // The trace reports the state of the bearers after the whole block has been processed.
        let at_once = direction == Direction::Downlink || ue.reporters.is_none();
        for (lcid, pdu) in block.pdus() {
            let Some(bearer) = ue.bearers.iter_mut().find(|b| b.lcid == lcid) else { continue };
            let id = bearer.id;
            let mut defer = |delivered| rest.push((direction, id, delivered));
            match bearer.receive(direction, pdu, due, pool, &mut defer) {
                // Packets must not overtake those put aside.
                Some(next) if at_once && rest.is_empty() => egress.deliver(id, next, due),
                Some(next) => rest.push((direction, id, next)),
                None => {}
            }
        }
        let late = !rest.is_empty();
        ue.update_next_timer(due);
        // The UE may now have a STATUS PDU to send, or a running timer.
        let (active, wake) = (ue.active, ue.wake);
        let wakes_up = !active && ue.is_busy(due);
        pool.give_block(block.bytes);
        if late {
            self.deliver_deferred(number, due);
        }
        if wakes_up {
            self.activate(number, due);
        }
        if active || wakes_up {
            self.wake = self.wake.min(wake);
        }
    }

    /// Handles the timers of UEs that are due at `now`.
    fn wake_ues(&mut self, now: Instant) {
        self.announce(now);
        let mut wake = Instant::MAX;
        for at in 0..self.active.len() {
            let number = self.active[at];
            let Some(ue) = self.ues.get_mut(number as usize) else { continue };
            let due = ue.wake <= now;
            if due {
                let rest = &mut self.scratch.delivered;
                ue.on_timeout(now, &mut self.pool, &mut |direction, drb, delivered| {
                    rest.push((direction, drb, delivered));
                });
            }
            wake = wake.min(ue.wake);
            if due {
                self.deliver_deferred(number, now);
            }
        }
        self.wake = wake;
    }

    /// Runs the next slot.
    fn tick(&mut self) {
        let slot = self.next_slot;
        let at = self.time_of(slot);
        self.next_slot = slot + 1;
        for direction in Direction::ALL {
            self.run_slot(direction, slot, at);
        }
        let Self { ues, active, wake, .. } = self;
        *wake = Instant::MAX;
        active.retain(|number| {
            let Some(ue) = ues.get_mut(*number as usize) else { return false };
            ue.after_slot(at);
            *wake = (*wake).min(ue.wake);
            ue.active
        });
        self.ticking = !self.active.is_empty();
    }

    /// Skips slots that are more than a thousand behind `now`. Called automatically for timeouts; a caller that passes the due
    /// time instead of the current time to [`Element::on_timeout`] must call it explicitly.
    pub fn skip_late_slots(&mut self, now: Instant) {
        if !self.ticking || now <= self.time_of(self.next_slot + MAX_LATE_SLOTS) {
            return;
        }
        let current = now.as_nanos() / self.slot_ns;
        let late = current.saturating_sub(self.next_slot);
        if late > MAX_LATE_SLOTS {
            let missed = late - MAX_LATE_SLOTS;
            self.next_slot += missed;
            self.links.iter_mut().for_each(|link| link.stats.missed_slots += missed);
            self.update_due();
        }
    }

    #[inline]
    fn next_flight(&self) -> Instant {
        let [down, up] = &self.links;
        let first = |link: &Link| link.flights.front().map_or(Instant::MAX, |f| f.due);
        first(down).min(first(up))
    }

    /// Does everything that is due at or before `now`.
    fn catch_up(&mut self, now: Instant) {
        self.skip_late_slots(now);
        loop {
            let (flight, tick) = (self.next_flight(), self.next_tick());
            let next = flight.min(tick).min(self.wake);
            if next > now || next == Instant::MAX {
                return;
            }
            if flight == next {
                Direction::ALL.into_iter().for_each(|direction| self.receive_due(direction, next));
            } else if tick == next {
                self.tick();
            } else {
                // Missed polls are replaced by a single one, before the slot that takes the packets it passes on.
                let behind = self.slot_ns.saturating_mul(MAX_LATE_SLOTS);
                let earliest = Instant::from_nanos(now.as_nanos().saturating_sub(behind));
                self.wake_ues(next.max(earliest).min(tick));
            }
        }
    }

    /// Updates the time of the next action after a change.
    #[inline]
    fn update_due(&mut self) {
        self.due = self.next_flight().min(self.next_tick()).min(self.wake);
    }

    #[inline]
    fn next_tick(&self) -> Instant {
        if self.ticking { self.time_of(self.next_slot) } else { Instant::MAX }
    }
}

impl Element for Gnb {
    type Command = GnbCommand;
    type Event = GnbEvent;

    fn on_packet(&mut self, port: Port, packet: Packet, now: Instant) {
        // Overdue work comes first, regardless of the order in which elements are driven.
        self.on_timeout(now);
        match port.0.checked_sub(1) {
            None => self.downlink(packet, now),
            Some(number) if usize::from(number) < self.ues.len() => {
                self.pass_to_sdap(Direction::Uplink, number.into(), None, packet, now);
            }
            Some(_) => self.links[1].stats.unroutable_packets += 1,
        }
        // A packet can start slots and timers, but never delays any.
        self.due = self.due.min(self.next_tick()).min(self.wake);
    }

    #[inline]
    fn poll_transmit(&mut self, _: Instant) -> Option<(Port, Packet)> {
        self.out.pop_front()
    }

    fn on_command(&mut self, command: GnbCommand, now: Instant) {
        if let Err(why) = self.apply(command, now) {
            self.event(GnbEvent::Refused(why));
        }
        self.update_due();
    }

    #[inline]
    fn poll_event(&mut self) -> Option<GnbEvent> {
        self.events.pop_front()
    }

    #[inline]
    fn on_timeout(&mut self, now: Instant) {
        if self.due > now {
            return;
        }
        self.catch_up(now);
        self.update_due();
    }

    #[inline]
    fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        let next = self.due;
        let why = if self.next_flight() == next {
            "block"
        } else if self.next_tick() == next {
            "slot"
        } else {
            "ran timer"
        };
        (next < Instant::MAX).then_some((next, why))
    }
}
