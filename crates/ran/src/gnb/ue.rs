//! A UE and its bearers: the gNB's end and the UE's end of each.

use super::bearer::{Bearer, Delivered};
use super::classify;
use super::config::{QosRule, UeConfig, UeError};
use super::forecast::Surplus;
use super::grants::GrantDelay;
use super::ioam::Reporter;
use super::stats::UeLinkStats;
use crate::amc::{Amc, Direction};
use crate::channel::Channel;
use crate::mac::{FIRST_LCID, PER_PDU};
use crate::queue::{AnyLimiter, Forecast, Sdu, TtiReport};
use crate::rlc::BufferPool;
use crate::sched::intra::{Average, UeMetric};
use crate::sdap::{DrbId, Sdap, SdapConfig, SdapDrop};
use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant};
use rand_chacha::ChaCha12Rng;
use rand_core::RngCore;

/// Returns the text of a channel trace by name, or why it cannot be read.
pub type TraceLoader<'a> = dyn FnMut(&str) -> Result<String, String> + 'a;

/// A UE.
#[derive(Debug)]
pub(super) struct Ue {
    pub(super) name: String,
    pub(super) slice: u16,
    pub(super) priority: u8,
    /// TEID of the uplink, at the UPF.
    pub(super) teid_uplink: u32,
    /// Sorted by logical channel priority.
    pub(super) bearers: Vec<Bearer>,
    /// Whether the UE has anything to send or to wait for.
    pub(super) active: bool,
    /// The earliest timer of the UE.
    pub(super) wake: Instant,
    pub(super) grants: GrantDelay,
    /// IOAM reporters by direction; `None` without IOAM.
    pub(super) reporters: Option<Box<[Reporter; 2]>>,
    /// Whether a limiter may need polling: one of them paces, or was replaced.
    limited: bool,
    /// Whether a slot may start timers of the UE: those of limiters, and of RLC in acknowledged mode.
    timed: bool,
    qos: Vec<QosRule>,
    default_qfi: u8,
    pub(super) directions: [DirectionState; 2],
}

/// State of one direction.
#[derive(Debug)]
pub(super) struct DirectionState {
    pub(super) sdap: Sdap,
    /// Whether a limiter uses the reports of slots.
    pub(super) uses_reports: bool,
    pub(super) channel: Channel,
    /// The slot after the one in which the UE was last served; 0 if never.
    pub(super) last_served: u64,
    pub(super) average: Average,
    /// Number of blocks that wait for retransmission.
    pub(super) harq_waiting: u8,
    /// The slot after the one of the last retransmission.
    pub(super) retx_at: u64,
    /// The slot after the last one reported to the limiters.
    pub(super) reported_until: u64,
    /// Bytes granted beyond the forecast.
    pub(super) surplus: Surplus,
    pub(super) stats: UeLinkStats,
}

/// Array index of a direction.
pub(super) const fn index(direction: Direction) -> usize {
    match direction {
        Direction::Downlink => 0,
        Direction::Uplink => 1,
    }
}

impl Ue {
    pub(super) fn new(
        config: &UeConfig,
        slice: u16,
        amc: &Amc,
        delay_slots: u8,
        seeds: &mut ChaCha12Rng,
        load: &mut TraceLoader<'_>,
    ) -> Result<Self, UeError> {
        classify::check(&config.qos)?;
        if config.default_qfi > 63 {
            return Err(UeError::value("default_qfi", config.default_qfi, "0 to 63"));
        }
        config.sdap.check()?;
        let up = config.uplink_sdap.as_ref().unwrap_or(&config.sdap);
        up.check()?;
        let ids = |drbs: &[crate::sdap::DrbConfig]| drbs.iter().map(|d| d.id).collect::<Vec<_>>();
        if ids(&up.drbs) != ids(&config.sdap.drbs) {
            return Err(UeError::value(
                "uplink_sdap.drbs",
                "other bearers",
                "those of sdap, in the same order",
            ));
        }
        for (i, bearer) in config.bearers.iter().enumerate() {
            let known = config.sdap.drbs.iter().any(|d| d.id == bearer.id);
            if !known || config.bearers[..i].iter().any(|b| b.id == bearer.id) {
                return Err(UeError::value("bearers.id", bearer.id, "a bearer of sdap.drbs, each once"));
            }
        }
        let (mut bearers, mut limiters) = (Vec::new(), Vec::new());
        for (lcid, drb) in (FIRST_LCID..).zip(&config.sdap.drbs) {
            let config = config.bearer(drb.id);
            let (bearer, pair) = Bearer::new(drb, lcid, config, amc, delay_slots, seeds.next_u64())?;
            bearers.push(bearer);
            limiters.push((drb.id, pair));
        }
        // The sort is stable: bearers of equal priority keep the order of the configuration.
        bearers.sort_by_key(|b| b.priority);
        let mut new_direction = |direction, sdap, channel: &crate::channel::ChannelConfig, seed| {
            let limiter = |id: DrbId| {
                let pair = limiters.iter().find(|(drb, _)| *drb == id);
                // `pairs` has an entry for every bearer.
                pair.map_or(AnyLimiter::UNLIMITED, |(_, pair)| pair[index(direction)].clone())
            };
            // In the order in which the MAC serves them.
            let mut sdap = SdapConfig::clone(sdap);
            sdap.drbs.sort_by_key(|drb| bearers.iter().position(|bearer| bearer.id == drb.id));
            let sdap = Sdap::new(&sdap, limiter)?;
            Ok::<_, UeError>(DirectionState {
                uses_reports: sdap.uses_reports(),
                sdap,
                channel: channel.build(amc, seed, load)?,
                last_served: 0,
                average: Average::default(),
                harq_waiting: 0,
                retx_at: 0,
                reported_until: 0,
                surplus: Surplus::default(),
                stats: UeLinkStats::default(),
            })
        };
        // Both directions use the same generated channel.
        let seed = seeds.next_u64();
        let up_channel = config.uplink_channel.as_ref().unwrap_or(&config.channel);
        let directions = [
            new_direction(Direction::Downlink, &config.sdap, &config.channel, seed)?,
            new_direction(Direction::Uplink, up, up_channel, seed)?,
        ];
        let of_bearer = |bearer: &Bearer| bearer.min_pdu(Direction::Uplink) + PER_PDU;
        let least_block = bearers.iter().map(of_bearer).max().unwrap_or(0);
        let limited = directions.iter().any(|state| state.uses_reports);
        Ok(Self {
            name: config.name.clone(),
            slice,
            priority: config.priority,
            teid_uplink: 0,
            active: false,
            wake: Instant::MAX,
            grants: GrantDelay::new(delay_slots, least_block),
            reporters: None,
            limited,
            timed: limited || bearers.iter().any(|bearer| bearer.acknowledged),
            bearers,
            qos: config.qos.clone(),
            default_qfi: config.default_qfi,
            directions,
        })
    }

    #[inline]
    pub(super) fn direction_state_mut(&mut self, direction: Direction) -> &mut DirectionState {
        &mut self.directions[index(direction)]
    }

    #[inline]
    pub(super) fn direction_state(&self, direction: Direction) -> &DirectionState {
        &self.directions[index(direction)]
    }

    /// The QoS flow of an IP packet.
    #[inline]
    pub(super) fn qfi_of(&self, direction: Direction, packet: &[u8]) -> u8 {
        classify::qfi_of(&self.qos, self.default_qfi, direction, packet)
    }

    /// The QFI of packets without a matching rule, if there can be any and SDAP drops them.
    pub(super) fn unmapped_qfi(&self, direction: Direction) -> Option<u8> {
        let sdap = &self.direction_state(direction).sdap;
        let dropped = sdap.drb_of(self.default_qfi).is_none() && !self.qos.iter().any(classify::matches_all);
        dropped.then_some(self.default_qfi)
    }

    /// Queues a packet in SDAP, and passes on what the limiter admits.
    #[inline(always)]
    pub(super) fn enqueue(
        &mut self,
        direction: Direction,
        qfi: u8,
        packet: Packet,
        now: Instant,
    ) -> Result<(), SdapDrop> {
        let sdap = &mut self.directions[index(direction)].sdap;
        if let Some(reporters) = &mut self.reporters
            && let Some(id) = sdap.drb_of(qfi)
        {
            reporters[index(direction)].arrived(id, &packet, now);
        }
        let packet = match sdap.pass(qfi, packet, now) {
            Ok((id, sdu)) => {
                self.push(direction, id, sdu, now);
                // A packet passed directly starts no timer and requires no poll of the limiter.
                return Ok(());
            }
            Err(packet) => packet,
        };
        let result = sdap.enqueue(qfi, packet, now);
        self.forward(direction, now);
        self.update_next_timer(now);
        result
    }

    /// Passes admitted packets to their bearers.
    fn forward(&mut self, direction: Direction, now: Instant) {
        if !self.directions[index(direction)].sdap.has_pending_evaluation() {
            return;
        }
        while let Some((id, sdu)) = self.directions[index(direction)].sdap.poll_forward(now) {
            self.push(direction, id, sdu, now);
        }
        if direction == Direction::Uplink {
            let Self { bearers, directions, .. } = self;
            let sdap = &directions[index(direction)].sdap;
            for bearer in bearers {
                let more = sdap.backlog_bytes(bearer.id) > 0;
                bearer.tx(direction).set_more_above(more, now);
            }
        }
    }

    /// Passes a packet to its bearer.
    #[inline(always)]
    fn push(&mut self, direction: Direction, id: DrbId, mut sdu: Sdu, now: Instant) {
        if let Some(bearer) = self.bearers.iter_mut().find(|b| b.id == id) {
            if direction == Direction::Downlink
                && let Some([reporter, _]) = self.reporters.as_deref_mut()
            {
                let (sdap, arrived) = (&self.directions[index(direction)].sdap, sdu.arrived);
                reporter.leaves(direction, bearer, sdap, sdu.ip_mut(), arrived, now);
            }
            bearer.tx(direction).push(sdu, now);
        }
    }

    /// Fills the trace of an uplink packet that leaves the cell.
    pub(super) fn mark_uplink_packet(
        &mut self,
        id: DrbId,
        packet: &mut [u8],
        arrived: Instant,
        now: Instant,
    ) {
        if let Some([_, reporter]) = self.reporters.as_deref_mut()
            && let Some(bearer) = self.bearers.iter().find(|b| b.id == id)
        {
            let sdap = &self.directions[index(Direction::Uplink)].sdap;
            reporter.leaves(Direction::Uplink, bearer, sdap, packet, arrived, now);
        }
    }

    /// Handles timers and polls that are due at `now`.
    pub(super) fn on_timeout(
        &mut self,
        now: Instant,
        pool: &mut BufferPool,
        up: &mut impl FnMut(Direction, DrbId, Delivered),
    ) {
        for direction in Direction::ALL {
            for bearer in &mut self.bearers {
                let id = bearer.id;
                bearer.on_timeout(direction, now, pool, &mut |delivered| up(direction, id, delivered));
            }
            let sdap = &mut self.directions[index(direction)].sdap;
            if sdap.poll_timeout().is_some_and(|(at, _)| at <= now) {
                sdap.on_timeout(now);
                self.forward(direction, now);
            }
        }
        self.update_next_timer(now);
        // A timer in the past is handled again, but not in the same instant.
        self.wake = self.wake.max(now + Duration::from_nanos(1));
    }

    /// Updates the time of the earliest timer.
    #[inline(always)]
    pub(super) fn update_next_timer(&mut self, now: Instant) {
        self.wake = self.next_limiter_poll().min(self.next_bearer_timer()).max(now);
    }

    /// When the first timer of its bearers is due; [`Instant::MAX`] if none runs.
    #[inline]
    fn next_bearer_timer(&self) -> Instant {
        self.bearers.iter().fold(Instant::MAX, |wake, bearer| wake.min(bearer.wake()))
    }

    /// Time of the earliest poll of SDAP or its limiters; [`Instant::MAX`] if there is none.
    #[inline]
    fn next_limiter_poll(&self) -> Instant {
        if !self.limited {
            return Instant::MAX;
        }
        let timers = self.directions.iter().filter_map(|state| state.sdap.poll_timeout());
        timers.fold(Instant::MAX, |wake, (at, _)| wake.min(at))
    }

    /// Whether the UE has anything to send or to wait for.
    #[inline]
    pub(super) fn is_busy(&self, now: Instant) -> bool {
        self.next_bearer_timer() < Instant::MAX || self.has_pending_data(now)
    }

    #[inline]
    fn has_pending_data(&self, now: Instant) -> bool {
        let waits = |id| self.directions.iter().any(|state| state.sdap.backlog_bytes(id) > 0);
        self.directions.iter().any(|state| state.harq_waiting > 0)
            || self.bearers.iter().any(|bearer| bearer.has_pending_data(now) || waits(bearer.id))
    }

    /// After a slot: updates `active` and the earliest timer. An inactive UE has no timer.
    #[inline]
    pub(super) fn after_slot(&mut self, now: Instant) {
        if self.wake == Instant::MAX && !self.timed {
            // No timer runs, and the slot has started none.
            self.active = self.has_pending_data(now);
            return;
        }
        let bearers = self.next_bearer_timer();
        self.active = bearers < Instant::MAX || self.has_pending_data(now);
        self.wake = if self.active { self.next_limiter_poll().min(bearers).max(now) } else { Instant::MAX };
    }

    /// Bytes on the air that would empty the buffers of a direction.
    #[inline]
    pub(super) fn air_bytes(&self, direction: Direction, per_pdu: u32, now: Instant) -> u64 {
        self.bearers.iter().map(|b| b.air_bytes(direction, per_pdu, now)).sum()
    }

    /// Bytes in the uplink's RLC buffers and SDAP, as in the buffer status report. TS 38.323 §5.6 counts packets that PDCP has
    /// not numbered yet.
    #[inline]
    pub(super) fn reported_bytes(&self, now: Instant) -> u64 {
        let direction = Direction::Uplink;
        let state = self.direction_state(direction);
        if !state.uses_reports {
            return self.air_bytes(direction, PER_PDU, now);
        }
        self.bearers.iter().map(|b| b.air_bytes_with(direction, state.sdap.waiting_packets(b.id), now)).sum()
    }

    /// Appends the sizes on the air of the UE's next PDUs, at most `most`.
    pub(super) fn sizes(&self, direction: Direction, most: usize, now: Instant, out: &mut Vec<u32>) {
        let start = out.len();
        for bearer in &self.bearers {
            let left = most.saturating_sub(out.len() - start);
            bearer.sizes(direction, left, PER_PDU, now, out);
            if direction == Direction::Uplink {
                let left = most.saturating_sub(out.len() - start);
                self.direction_state(direction).sdap.sizes(bearer.id, left, bearer.around(direction), out);
            }
        }
    }

    /// SDU bytes in the buffers of a direction.
    #[inline]
    pub(super) fn buffer_bytes(&self, direction: Direction) -> u64 {
        self.bearers.iter().map(|b| b.buffer_bytes(direction)).sum()
    }

    /// The current MCS; `None` in an outage.
    #[inline]
    pub(super) fn mcs(&mut self, direction: Direction, amc: &Amc, now: Instant) -> Option<u8> {
        self.direction_state_mut(direction).channel.quality(now).mcs(amc)
    }

    /// The inputs of an intra-slice scheduler.
    #[inline]
    pub(super) fn metric(&self, direction: Direction, slot: u64, rate_bytes: u32) -> UeMetric {
        let state = self.direction_state(direction);
        UeMetric {
            last_served: state.last_served,
            rate_bytes,
            average_bytes: state.average.at(slot),
            priority: self.priority,
        }
    }

    /// Whether a limiter or an IOAM reporter uses the slots of a direction.
    #[inline]
    pub(super) fn uses_reports(&self, direction: Direction) -> bool {
        self.reporters.is_some() || self.direction_state(direction).uses_reports
    }

    /// Reports a slot to the limiters of a direction; `next` is the forecast of the MAC's next pull, if there is one.
    pub(super) fn report(
        &mut self,
        direction: Direction,
        slot: u64,
        report: &TtiReport,
        next: Option<Forecast>,
    ) {
        let state = &mut self.directions[index(direction)];
        let elapsed = (slot + 1).saturating_sub(state.reported_until);
        state.reported_until = slot + 1;
        if !state.uses_reports {
            return;
        }
        let mut left = next;
        for bearer in &mut self.bearers {
            let status = bearer.status(direction, report.at);
            let served = bearer.take_counters(direction);
            let report = TtiReport {
                elapsed_ttis: u32::try_from(elapsed).unwrap_or(u32::MAX),
                granted_bytes: served.granted_bytes,
                served_bytes: served.sdu_bytes,
                buffer_bytes: u32::try_from(status.sdu_bytes).unwrap_or(u32::MAX),
                buffer_sdus: u32::try_from(status.sdus).unwrap_or(u32::MAX),
                next: left,
                ..*report
            };
            state.sdap.on_tti(bearer.id, &report);
            if let Some(next) = &mut left {
                bearer.subtract_from(direction, next, report.at);
            }
        }
    }

    /// Sends a changed forecast of the MAC's next pull to the limiters of a direction.
    pub(super) fn announce(&mut self, direction: Direction, mut next: Forecast, now: Instant) {
        for bearer in &self.bearers {
            self.directions[index(direction)].sdap.on_forecast(bearer.id, next);
            bearer.subtract_from(direction, &mut next, now);
        }
    }

    /// Replaces the limiter of a bearer.
    pub(super) fn set_limiter(&mut self, direction: Direction, drb: DrbId, limiter: AnyLimiter) {
        let state = &mut self.directions[index(direction)];
        state.sdap.set_limiter(drb, limiter);
        state.uses_reports = state.sdap.uses_reports();
        (self.limited, self.timed) = (true, true);
        // Bytes taken before do not concern the new limiter.
        for bearer in &mut self.bearers {
            bearer.take_counters(direction);
        }
    }

    /// Replaces the channel of a direction.
    pub(super) fn set_channel(&mut self, direction: Direction, channel: Channel) {
        self.direction_state_mut(direction).channel = channel;
    }
}
