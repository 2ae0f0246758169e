//! SDAP with queues and a scheduler, RLC §II (Fig. 1); the mapping of QoS flows to bearers is that of TS 37.324 §5.2.
//!
//! ```text
//!   QFI 1 ─▶ ▯▯▯▯ ─┐
//!   QFI 2 ─▶ ▯     ─┼─ scheduler ─ limiter ─▶ DRB 1      one scheduler and one limiter per bearer
//!   QFI 5 ─▶ ▯▯    ─┘
//!   QFI 9 ─▶ ▯▯▯▯▯ ─── scheduler ─ limiter ─▶ DRB 2
//! ```
//!
//! TS 37.324 has neither queues nor a scheduler: a packet goes to the RLC of its bearer at once. Here it waits until the
//! bearer's limiter ([`crate::queue`]) admits it, and can be overtaken until then.
//!
//! The scheduler selects one packet as the next; if the limiter refuses it, all other packets of the bearer wait as well. The
//! limiter is evaluated when a packet arrives and at each poll, every 200 µs in RLC §V-A. The distance between the polls and
//! the MAC's tick determines how many packets still reach the next TTI, so that phase is a parameter.
//!
//! The wait of a packet is from `Sdu::arrived` to `Sdu::forwarded`; [`FlowStats`] has the sums per flow.

mod config;
#[cfg(test)]
mod tests;

pub use config::{DrbConfig, FlowConfig, MAX_DRBS, SchedulerKind, SdapConfig, SdapError};

use super::queue::{
    AnyBuffer, AnyLimiter, Buffer, BufferStats, Candidate, Forecast, Limiter, Sdu, TtiReport,
};
use anabranch_element::Reason;
use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant, nanos};

/// QoS flow identifiers are 6 bits.
pub const QFIS: usize = 64;
/// Largest packet a bearer carries (TS 38.323 §4.3.1).
pub const MAX_SDU_BYTES: usize = 9000;

/// Identity of a data radio bearer, 1 to 32 (TS 38.331).
pub type DrbId = u8;

/// Why a packet was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SdapDrop {
    /// No flow has this QFI, and no flow accepts unmapped QFIs.
    #[error("QFI {0} is not mapped; add a flow with it, or one with unmapped = true")]
    Unmapped(u8),
    /// Larger than [`MAX_SDU_BYTES`].
    #[error("packet of {0} bytes exceeds 9000")]
    TooLarge(usize),
}

/// Counters of one QoS flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct FlowStats {
    /// Packets passed to RLC.
    pub forwarded_sdus: u64,
    /// Bytes of these packets, without SDAP header.
    pub forwarded_bytes: u64,
    /// Sum of waiting times, nanoseconds.
    pub wait_total_ns: u64,
    /// Longest waiting time, nanoseconds.
    pub wait_max_ns: u64,
    /// Packets waiting now.
    pub waiting_sdus: u64,
    /// Bytes waiting now.
    pub waiting_bytes: u64,
    /// Counters of the flow's queue; `popped_sdus` is one ahead of `forwarded_sdus` while the head is held for the scheduler.
    #[serde(flatten)]
    pub queue: BufferStats,
}

/// The queues of a bearer's flows, summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DrbQueue {
    /// Bytes of the waiting packets.
    pub waiting_bytes: u64,
    /// Maximum number of waiting bytes.
    pub limit_bytes: u64,
    /// Packets dropped.
    pub drops: u64,
}

/// Packets waiting for one bearer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WaitingPackets {
    /// Number of packets.
    pub sdus: u64,
    /// Their bytes as RLC will count them, without PDCP headers.
    pub bytes: u64,
}

/// One SDAP entity: one direction of one PDU session.
#[derive(Debug, Clone)]
pub struct Sdap {
    flows: Vec<Flow>,
    drbs: Vec<Drb>,
    /// Index of the flow of each QFI.
    by_qfi: [Option<u8>; QFIS],
    scheduler: SchedulerKind,
    poll: Duration,
    phase: Duration,
    polled_at: Option<Instant>,
    unmapped_drops: u64,
    too_large_drops: u64,
}

#[derive(Debug, Clone)]
struct Flow {
    config: FlowConfig,
    drb: usize,
    queue: AnyBuffer,
    /// The packet offered to the scheduler: removed from its queue, but not yet passed to RLC.
    head: Option<Sdu>,
    deficit: i64,
    stats: FlowStats,
}

#[derive(Debug, Clone)]
struct Drb {
    config: DrbConfig,
    limiter: AnyLimiter,
    /// Flows of this bearer, in the order of the configuration.
    flows: Vec<u8>,
    /// Position in `flows` of the flow whose turn it is.
    round: usize,
    backlog_sdus: u64,
    backlog_bytes: u64,
    /// The limiter must be evaluated because of a change.
    evaluate: bool,
    /// Time at which the limiter must be evaluated.
    wake_at: Option<Instant>,
}

impl Sdap {
    /// Creates an entity with empty queues. `limiter` builds the limiter of each bearer. The bearers of `config` are in the order
    /// in which the MAC serves them.
    ///
    /// # Errors
    /// Those of [`SdapConfig::check`].
    pub fn new(config: &SdapConfig, mut limiter: impl FnMut(DrbId) -> AnyLimiter) -> Result<Self, SdapError> {
        config.check()?;
        let mut drbs: Vec<Drb> = Vec::with_capacity(config.drbs.len());
        for drb in &config.drbs {
            drbs.push(Drb {
                config: *drb,
                limiter: limiter(drb.id),
                flows: Vec::new(),
                round: 0,
                backlog_sdus: 0,
                backlog_bytes: 0,
                evaluate: false,
                wake_at: None,
            });
        }
        let mut flows = Vec::with_capacity(config.flows.len());
        let mut by_qfi = [None; QFIS];
        for (index, flow) in config.flows.iter().enumerate() {
            let drb = config.drbs.iter().position(|d| d.id == flow.drb).unwrap_or_default();
            drbs[drb].flows.push(index as u8);
            by_qfi[usize::from(flow.qfi) % QFIS] = Some(index as u8);
            flows.push(Flow {
                queue: flow.build_queue()?,
                config: flow.clone(),
                drb,
                head: None,
                deficit: 0,
                stats: FlowStats::default(),
            });
        }
        if let Some(index) = config.flows.iter().position(|f| f.unmapped) {
            for entry in &mut by_qfi {
                entry.get_or_insert(index as u8);
            }
        }
        let poll = Duration::from_micros(config.poll_us.into());
        Ok(Self {
            flows,
            drbs,
            by_qfi,
            scheduler: config.scheduler,
            poll,
            phase: Duration::from_micros(u64::from(config.poll_phase_us % config.poll_us.max(1))),
            polled_at: None,
            unmapped_drops: 0,
            too_large_drops: 0,
        })
    }

    /// Passes a packet of QoS flow `qfi` (the low 6 bits), arriving at `packet.at`, directly to its bearer if nothing waits and
    /// the limiter is open, so that neither a queue nor a choice is needed. All counters change as if
    /// [`enqueue`](Self::enqueue) and [`poll_forward`](Self::poll_forward) had been called.
    ///
    /// # Errors
    /// Returns the packet if these must be called.
    #[inline(always)]
    pub fn pass(&mut self, qfi: u8, packet: Packet, now: Instant) -> Result<(DrbId, Sdu), Packet> {
        let Some(index) = self.by_qfi[usize::from(qfi) % QFIS] else { return Err(packet) };
        let flow = &mut self.flows[usize::from(index)];
        let drb = &self.drbs[flow.drb];
        let open = drb.limiter.is_open() && drb.backlog_sdus == 0 && !drb.evaluate;
        let AnyBuffer::Fifo(queue) = &mut flow.queue else { return Err(packet) };
        // Rounds of DRR advance even while nothing waits.
        let may = open && self.scheduler != SchedulerKind::Drr && packet.len() <= MAX_SDU_BYTES;
        if !may || !queue.pass(packet.len() as u64) {
            return Err(packet);
        }
        let mut sdu = Sdu::new(packet, qfi);
        flow.submit(&mut sdu, drb.config.header, now);
        Ok((drb.config.id, sdu))
    }

    /// Queues a packet of QoS flow `qfi` (the low 6 bits), arriving at `packet.at`. Call [`poll_forward`](Self::poll_forward)
    /// afterwards.
    ///
    /// # Errors
    /// Why the packet was rejected; drops by a full queue appear only in its counters.
    pub fn enqueue(&mut self, qfi: u8, packet: Packet, now: Instant) -> Result<(), SdapDrop> {
        if packet.len() > MAX_SDU_BYTES {
            self.too_large_drops += 1;
            return Err(SdapDrop::TooLarge(packet.len()));
        }
        let Some(index) = self.by_qfi[usize::from(qfi) % QFIS] else {
            self.unmapped_drops += 1;
            return Err(SdapDrop::Unmapped(qfi));
        };
        let flow = &mut self.flows[usize::from(index)];
        let before = flow.waiting();
        flow.queue.push(Sdu::new(packet, qfi), now);
        let drb = &mut self.drbs[flow.drb];
        drb.account(before, flow.waiting());
        drb.evaluate = true;
        Ok(())
    }

    /// Returns the next packet to pass to RLC now, and its bearer. Call repeatedly until `None`.
    pub fn poll_forward(&mut self, now: Instant) -> Option<(DrbId, Sdu)> {
        for drb in 0..self.drbs.len() {
            if self.drbs[drb].evaluate {
                if let Some(sdu) = self.forward(drb, now) {
                    return Some((self.drbs[drb].config.id, sdu));
                }
                self.drbs[drb].evaluate = false;
                self.drbs[drb].settle(now);
            }
        }
        None
    }

    /// Returns the next packet for `drb` regardless of its limiter, because an uplink grant has room for it.
    pub fn fetch(&mut self, drb: DrbId, now: Instant) -> Option<Sdu> {
        let drb = self.drbs.iter().position(|d| d.config.id == drb)?;
        let chosen = self.choose(drb, now)?;
        self.submit(drb, chosen, now)
    }

    /// Whether [`poll_forward`](Self::poll_forward) may return a packet.
    #[inline]
    #[must_use]
    pub fn has_pending_evaluation(&self) -> bool {
        self.drbs.iter().any(|drb| drb.evaluate)
    }

    /// Marks the limiters for evaluation if a poll is due. Call [`poll_forward`](Self::poll_forward) afterwards.
    pub fn on_timeout(&mut self, now: Instant) {
        let poll = self.next_poll() <= now;
        if poll {
            self.polled_at = Some(now);
        }
        for drb in &mut self.drbs {
            drb.evaluate |= (poll && drb.needs_polling()) || drb.wake_at.is_some_and(|at| at <= now);
        }
    }

    /// Time of the next poll; `None` while no packet waits for time to pass.
    #[must_use]
    #[inline]
    pub fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        let (mut polls, mut wake) = (false, None);
        for drb in &self.drbs {
            polls |= drb.needs_polling();
            if let Some(at) = drb.wake_at
                && wake.is_none_or(|first| at < first)
            {
                wake = Some(at);
            }
        }
        let poll = if polls { Some((self.next_poll(), "sdap poll")) } else { None };
        match (poll, wake) {
            (Some((poll, _)), Some(at)) if at < poll => Some((at, "sdap limiter")),
            (None, Some(at)) => Some((at, "sdap limiter")),
            (poll, _) => poll,
        }
    }

    /// Whether a limiter uses the reports of slots.
    #[must_use]
    #[inline]
    pub fn uses_reports(&self) -> bool {
        self.drbs.iter().any(|drb| !drb.limiter.is_open())
    }

    /// Reports to the limiter that the MAC served `drb`, see [`Limiter::on_tti`].
    pub fn on_tti(&mut self, drb: DrbId, report: &TtiReport) {
        if let Some(drb) = self.drb_mut(drb) {
            drb.limiter.on_tti(report);
            drb.settle(report.at);
        }
    }

    /// Updates the forecast of the MAC's next pull from `drb`, see [`Limiter::on_forecast`].
    pub fn on_forecast(&mut self, drb: DrbId, next: Forecast) {
        if let Some(drb) = self.drb_mut(drb) {
            drb.limiter.on_forecast(next);
        }
    }

    /// Reports to the limiter that an SDU left `drb`'s RLC buffer, see [`Limiter::on_sent`].
    #[inline]
    pub fn on_sent(&mut self, drb: DrbId, bytes: u32, sojourn: Duration, now: Instant) {
        if let Some(drb) = self.drb_mut(drb) {
            drb.limiter.on_sent(bytes, sojourn, now);
        }
    }

    /// Replaces the limiter of `drb`; returns whether the bearer exists. The new limiter learns the occupancy of RLC from the
    /// next report.
    pub fn set_limiter(&mut self, drb: DrbId, limiter: AnyLimiter) -> bool {
        let Some(drb) = self.drb_mut(drb) else { return false };
        // Packets that waited for the old limiter need an evaluation: an open limiter requests no wake-up.
        (drb.limiter, drb.evaluate, drb.wake_at) = (limiter, true, Some(Instant::ZERO));
        true
    }

    /// The limiter of a bearer.
    #[must_use]
    pub fn limiter(&self, drb: DrbId) -> Option<&AnyLimiter> {
        self.drbs.iter().find(|d| d.config.id == drb).map(|d| &d.limiter)
    }

    /// Bytes waiting for `drb`.
    #[must_use]
    #[inline]
    pub fn backlog_bytes(&self, drb: DrbId) -> u64 {
        self.drbs.iter().find(|d| d.config.id == drb).map_or(0, |d| d.backlog_bytes)
    }

    /// Packets waiting for `drb`.
    #[must_use]
    #[inline]
    pub fn waiting_packets(&self, drb: DrbId) -> WaitingPackets {
        self.drbs.iter().find(|d| d.config.id == drb).map_or(WaitingPackets::default(), |d| WaitingPackets {
            sdus: d.backlog_sdus,
            bytes: d.backlog_bytes + d.backlog_sdus * u64::from(d.config.header),
        })
    }

    /// Appends the sizes of the packets waiting for `drb`, as RLC will count them plus `around` bytes each, at most `most`
    /// packets. The order is by flow priority, an estimate if the scheduler uses another criterion.
    pub fn sizes(&self, drb: DrbId, most: usize, around: u32, out: &mut Vec<u32>) {
        let Some(drb) = self.drbs.iter().find(|d| d.config.id == drb) else { return };
        if drb.backlog_sdus == 0 {
            return;
        }
        let (start, mut after) = (out.len(), None);
        // Flows by priority, equal ones in the order of the configuration.
        let rank = |index: u8| (self.flows[usize::from(index)].config.priority, index);
        while let Some(next) = drb.flows.iter().map(|i| rank(*i)).filter(|r| Some(*r) > after).min() {
            let flow = &self.flows[usize::from(next.1)];
            out.extend(flow.head.iter().map(Sdu::bytes));
            let left = most.saturating_sub(out.len() - start);
            flow.queue.sizes(left, out);
            after = Some(next);
        }
        out.truncate(start + most);
        for size in &mut out[start..] {
            *size += around + u32::from(drb.config.header);
        }
    }

    /// Whether `drb`'s limiter passes the amount of the MAC's forecast.
    #[must_use]
    pub fn follows_forecast(&self, drb: DrbId) -> bool {
        self.limiter(drb).is_some_and(|limiter| limiter.follows_forecast())
    }

    /// Bytes waiting for limiters that follow the forecast, and for other limiters.
    #[must_use]
    pub fn waiting_for_limiters(&self) -> (u64, u64) {
        self.drbs.iter().fold((0, 0), |(following, others), drb| {
            let bytes = drb.backlog_bytes;
            if drb.limiter.follows_forecast() {
                (following + bytes, others)
            } else {
                (following, others + bytes)
            }
        })
    }

    /// The bearer of QoS flow `qfi`.
    #[must_use]
    pub fn drb_of(&self, qfi: u8) -> Option<DrbId> {
        let flow = self.flows.get(usize::from(self.by_qfi[usize::from(qfi) % QFIS]?))?;
        self.drbs.get(flow.drb).map(|drb| drb.config.id)
    }

    /// The queues of a bearer's flows, summed.
    #[must_use]
    pub fn queue_of(&self, drb: DrbId) -> DrbQueue {
        let Some(drb) = self.drbs.iter().find(|d| d.config.id == drb) else { return DrbQueue::default() };
        let empty = DrbQueue { waiting_bytes: drb.backlog_bytes, ..DrbQueue::default() };
        drb.flows.iter().fold(empty, |sum, index| {
            let flow = &self.flows[usize::from(*index)];
            let stats = flow.queue.stats();
            DrbQueue {
                limit_bytes: sum.limit_bytes.saturating_add(flow.config.limit_bytes),
                drops: sum.drops + stats.full_drops + stats.aqm_drops,
                ..sum
            }
        })
    }

    /// QFI and counters of each flow, in the order of the configuration.
    pub fn flow_stats(&self) -> impl Iterator<Item = (u8, FlowStats)> + '_ {
        self.flows.iter().map(|f| {
            let (waiting_sdus, waiting_bytes) = f.waiting();
            let stats = FlowStats { waiting_sdus, waiting_bytes, queue: f.queue.stats(), ..f.stats };
            (f.config.qfi, stats)
        })
    }

    /// Packets dropped because no flow has their QFI, and packets dropped because they were too large.
    #[must_use]
    pub fn drops(&self) -> (u64, u64) {
        (self.unmapped_drops, self.too_large_drops)
    }

    fn drb_mut(&mut self, id: DrbId) -> Option<&mut Drb> {
        self.drbs.iter_mut().find(|d| d.config.id == id)
    }

    /// The first time `phase + k · poll` after the last poll.
    fn next_poll(&self) -> Instant {
        let (poll, phase) = (nanos(self.poll).max(1), nanos(self.phase));
        match self.polled_at.and_then(|at| at.as_nanos().checked_sub(phase)) {
            Some(since) => Instant::from_nanos((since / poll + 1).saturating_mul(poll).saturating_add(phase)),
            None => Instant::from_nanos(phase),
        }
    }

    /// Passes the next packet of a bearer if its limiter admits it.
    fn forward(&mut self, drb: usize, now: Instant) -> Option<Sdu> {
        let chosen = self.choose(drb, now)?;
        let head = self.flows[chosen].head.as_ref()?;
        let (bytes, arrived) = (head.bytes() + u32::from(self.drbs[drb].config.header), head.arrived);
        if !self.drbs[drb].limiter.is_open() {
            // The MAC serves the bearers before this one first.
            let overtakable = drb > 0 || self.is_overtakable(chosen, arrived, now);
            let next_poll_in = self.next_poll().saturating_since(now);
            let Drb { limiter, backlog_bytes, .. } = &mut self.drbs[drb];
            let backlog_bytes = *backlog_bytes;
            if !limiter.admits(&Candidate { bytes, arrived, backlog_bytes, overtakable, next_poll_in }, now) {
                return None;
            }
        }
        self.submit(drb, chosen, now)
    }

    /// Passes the head of a flow.
    fn submit(&mut self, drb: usize, flow: usize, now: Instant) -> Option<Sdu> {
        let (drbs, flow) = (&mut self.drbs[drb..], &mut self.flows[flow]);
        let (drb, later) = drbs.split_first_mut()?;
        let mut sdu = flow.head.take()?;
        let own_bytes = sdu.bytes();
        let bytes = own_bytes + u32::from(drb.config.header);
        drb.limiter.on_forwarded(bytes, now);
        later.iter_mut().for_each(|later| later.limiter.on_taken(bytes));
        drb.account((1, own_bytes.into()), (0, 0));
        flow.submit(&mut sdu, drb.config.header, now);
        Some(sdu)
    }

    /// The flow whose head goes next; the head has been removed from its queue.
    fn choose(&mut self, drb: usize, now: Instant) -> Option<usize> {
        if self.drbs[drb].backlog_sdus == 0 {
            return None;
        }
        for i in 0..self.drbs[drb].flows.len() {
            self.load_head(usize::from(self.drbs[drb].flows[i]), now);
        }
        let of_drb = &self.drbs[drb].flows;
        let waiting = of_drb.iter().map(|f| usize::from(*f)).filter(|f| self.flows[*f].head.is_some());
        match self.scheduler {
            SchedulerKind::Priority => waiting.min_by_key(|f| self.flows[*f].config.priority),
            SchedulerKind::Edf => waiting.min_by_key(|f| {
                let flow = &self.flows[*f];
                let budget = Duration::from_micros(flow.config.delay_budget_us.into());
                flow.head.as_ref().map_or(Instant::MAX, |sdu| sdu.arrived + budget)
            }),
            SchedulerKind::Drr => self.round_robin(drb),
        }
    }

    /// Whether a packet of another flow that arrives after `now` would go before the head of `chosen`.
    fn is_overtakable(&self, chosen: usize, arrived: Instant, now: Instant) -> bool {
        let own = &self.flows[chosen].config;
        let budget = |flow: &FlowConfig| Duration::from_micros(flow.delay_budget_us.into());
        let of_drb = &self.drbs[self.flows[chosen].drb].flows;
        let mut others =
            of_drb.iter().map(|f| &self.flows[usize::from(*f)].config).filter(|f| f.qfi != own.qfi);
        match self.scheduler {
            SchedulerKind::Priority => others.any(|f| f.priority < own.priority),
            SchedulerKind::Edf => others.any(|f| now + budget(f) < arrived + budget(own)),
            SchedulerKind::Drr => others.next().is_some(),
        }
    }

    /// Removes the next packet of a flow from its queue, which may drop others, and stores it as head.
    fn load_head(&mut self, flow: usize, now: Instant) {
        let flow = &mut self.flows[flow];
        if flow.head.is_none() && flow.queue.len_sdus() > 0 {
            let before = flow.waiting();
            flow.head = flow.queue.pop(now);
            self.drbs[flow.drb].account(before, flow.waiting());
        }
    }

    /// Deficit round robin (Shreedhar and Varghese 1996): the turn of a flow lasts while its deficit covers its head; then the
    /// next flow with packets gets its quantum.
    fn round_robin(&mut self, drb: usize) -> Option<usize> {
        let drb = &mut self.drbs[drb];
        // One pass finds a flow if the quanta cover the packets. Otherwise all flows get as many rounds at once as the closest flow
        // needs, and a second pass finds it.
        for _ in 0..2 {
            for _ in 0..=drb.flows.len() {
                let index = usize::from(*drb.flows.get(drb.round)?);
                let flow = &mut self.flows[index];
                match &flow.head {
                    None => flow.deficit = 0,
                    Some(head) if flow.deficit >= i64::from(head.bytes()) => return Some(index),
                    Some(_) => {}
                }
                drb.round = (drb.round + 1) % drb.flows.len();
                let entered = &mut self.flows[usize::from(drb.flows[drb.round])];
                if entered.head.is_some() {
                    entered.deficit += i64::from(entered.config.quantum_bytes);
                }
            }
            let flows = || drb.flows.iter().map(|f| usize::from(*f));
            let rounds = flows().filter_map(|f| self.flows[f].rounds_needed()).min()?;
            for f in flows() {
                let flow = &mut self.flows[f];
                if flow.head.is_some() {
                    flow.deficit += i64::from(flow.config.quantum_bytes) * rounds.saturating_sub(1);
                }
            }
        }
        None
    }
}

impl Flow {
    /// Number and bytes of waiting packets.
    fn waiting(&self) -> (u64, u64) {
        let head = self.head.as_ref();
        let sdus = self.queue.len_sdus() as u64 + u64::from(head.is_some());
        (sdus, self.queue.len_bytes() + head.map_or(0, |sdu| u64::from(sdu.bytes())))
    }

    /// Records that a packet is passed to RLC now, and adds the SDAP header if the bearer has one.
    #[inline(always)]
    fn submit(&mut self, sdu: &mut Sdu, header: bool, now: Instant) {
        let bytes = sdu.bytes();
        self.deficit = self.deficit.saturating_sub(bytes.into());
        sdu.forwarded = now;
        let wait = nanos(now.saturating_since(sdu.arrived));
        self.stats.forwarded_sdus += 1;
        self.stats.forwarded_bytes += u64::from(bytes);
        self.stats.wait_total_ns = self.stats.wait_total_ns.saturating_add(wait);
        self.stats.wait_max_ns = self.stats.wait_max_ns.max(wait);
        if header {
            // Downlink: RDI 0, RQI 0, QFI (TS 37.324 §6.2.2.2).
            sdu.packet.push_front(1)[0] = sdu.qfi % QFIS as u8;
            sdu.ip_offset = sdu.ip_offset.saturating_add(1);
        }
    }

    /// Number of DRR rounds until the deficit covers the head.
    fn rounds_needed(&self) -> Option<i64> {
        let missing = i64::from(self.head.as_ref()?.bytes()) - self.deficit;
        let quantum = i64::from(self.config.quantum_bytes.max(1));
        Some((missing + quantum - 1) / quantum)
    }
}

impl Drb {
    /// Updates the sums of the bearer after a flow changed from `before` to `after` (packets, bytes).
    fn account(&mut self, before: (u64, u64), after: (u64, u64)) {
        self.backlog_sdus = (self.backlog_sdus + after.0).saturating_sub(before.0);
        self.backlog_bytes = (self.backlog_bytes + after.1).saturating_sub(before.1);
    }

    #[inline]
    fn needs_polling(&self) -> bool {
        self.backlog_sdus > 0 && self.limiter.needs_polling()
    }

    /// No packet can be passed now: determines when to evaluate the limiter next.
    fn settle(&mut self, now: Instant) {
        self.wake_at = if self.backlog_sdus > 0 { self.limiter.wake_at(now) } else { None };
    }
}
