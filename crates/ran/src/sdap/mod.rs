//! SDAP with queues and a scheduler, RLC §II (Fig. 1); the map from QoS flows to bearers is TS 37.324 §5.2.
//!
//! ```text
//!   QFI 1 ─▶ ▯▯▯▯ ─┐
//!   QFI 2 ─▶ ▯     ─┼─ scheduler ─ limiter ─▶ DRB 1      one scheduler and one limiter per bearer
//!   QFI 5 ─▶ ▯▯    ─┘
//!   QFI 9 ─▶ ▯▯▯▯▯ ─── scheduler ─ limiter ─▶ DRB 2
//! ```
//!
//! TS 37.324 has neither queues nor a scheduler: a packet goes to its bearer's RLC at once. Here it waits
//! until the bearer's limiter ([`crate::queue`]) lets it down, and can be overtaken until then.
//!
//! The scheduler names the one packet that is next; if the limiter keeps that one, all others of the bearer
//! wait as well. It is asked when a packet arrives and at each poll, 200 µs apart in RLC §V-A. How far the
//! polls are from the MAC's tick decides how many packets still make the next TTI: that phase is a parameter.
//!
//! Per packet: `Sdu::arrived` to `Sdu::forwarded` is its wait here; per flow [`FlowStats`] sums them up.

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

/// Why a packet was not taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SdapDrop {
    /// No flow has this QFI, and there is none for what is left over.
    #[error("QFI {0} is not mapped; add a flow with it, or one with unmapped = true")]
    Unmapped(u8),
    /// Larger than [`MAX_SDU_BYTES`].
    #[error("packet of {0} bytes exceeds 9000")]
    TooLarge(usize),
}

/// Counters of one QoS flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct FlowStats {
    /// Packets let down.
    pub forwarded_sdus: u64,
    /// Their bytes, without SDAP header.
    pub forwarded_bytes: u64,
    /// Sum of their waits, nanoseconds.
    pub wait_total_ns: u64,
    /// Longest wait, nanoseconds.
    pub wait_max_ns: u64,
    /// Packets waiting now.
    pub waiting_sdus: u64,
    /// Bytes waiting now.
    pub waiting_bytes: u64,
    /// The flow's queue; `popped_sdus` is one ahead of `forwarded_sdus` while the head is looked at.
    #[serde(flatten)]
    pub queue: BufferStats,
}

/// The queues of a bearer's flows, all together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DrbQueue {
    /// Bytes waiting.
    pub waiting_bytes: u64,
    /// Most bytes that may.
    pub limit_bytes: u64,
    /// Packets dropped.
    pub drops: u64,
}

/// Packets that wait for one bearer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// How many.
    pub sdus: u64,
    /// Their bytes as RLC will count them, PDCP headers apart.
    pub bytes: u64,
}

/// One SDAP entity: one direction of one PDU session.
#[derive(Debug, Clone)]
pub struct Sdap {
    flows: Vec<Flow>,
    drbs: Vec<Drb>,
    /// Flow of each QFI.
    by_qfi: [Option<u8>; QFIS],
    scheduler: SchedulerKind,
    poll: Duration,
    phase: Duration,
    polled_at: Option<Instant>,
    /// Bearers to ask, in turn.
    turn: usize,
    unmapped_drops: u64,
    too_large_drops: u64,
}

#[derive(Debug, Clone)]
struct Flow {
    config: FlowConfig,
    drb: usize,
    queue: AnyBuffer,
    /// The packet the scheduler looks at: out of its queue, not yet let down.
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
    /// Position in `flows` of the flow whose round it is.
    round: usize,
    backlog_sdus: u64,
    backlog_bytes: u64,
    /// Something happened that may let a packet go.
    ask: bool,
    /// When the limiter wants to be asked.
    wake_at: Option<Instant>,
}

impl Sdap {
    /// An entity with empty queues. `limiter` makes the limiter of each bearer.
    ///
    /// # Errors
    /// What [`SdapConfig::check`] finds.
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
                ask: false,
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
            turn: 0,
            unmapped_drops: 0,
            too_large_drops: 0,
        })
    }

    /// A packet of QoS flow `qfi` (its low 6 bits) arrives at `packet.at` and goes on to its bearer at once: where
    /// nothing waits and nothing is held back, it needs no queue and no choice. Everything is counted as if
    /// [`enqueue`](Self::enqueue) and [`poll_forward`](Self::poll_forward) had done it.
    ///
    /// # Errors
    /// The packet, if they have to.
    #[inline(always)]
    pub fn pass(&mut self, qfi: u8, packet: Packet, now: Instant) -> Result<(DrbId, Sdu), Packet> {
        let Some(index) = self.by_qfi[usize::from(qfi) % QFIS] else { return Err(packet) };
        let flow = &mut self.flows[usize::from(index)];
        let drb = &self.drbs[flow.drb];
        let open = drb.limiter.is_open() && drb.backlog_sdus == 0 && !drb.ask;
        let AnyBuffer::Fifo(queue) = &mut flow.queue else { return Err(packet) };
        // Rounds of DRR go on while nothing waits.
        let may = open && self.scheduler != SchedulerKind::Drr && packet.len() <= MAX_SDU_BYTES;
        if !may || !queue.pass(packet.len() as u64) {
            return Err(packet);
        }
        let mut sdu = Sdu::new(packet, qfi);
        flow.submit(&mut sdu, drb.config.header, now);
        self.turn = flow.drb;
        Ok((drb.config.id, sdu))
    }

    /// A packet of QoS flow `qfi` (its low 6 bits) arrives at `packet.at`. Call
    /// [`poll_forward`](Self::poll_forward) next.
    ///
    /// # Errors
    /// Why it was dropped; drops of a full queue are in its counters only.
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
        drb.ask = true;
        Ok(())
    }

    /// The next packet that goes down now, and the bearer it goes to. Call until there is none.
    pub fn poll_forward(&mut self, now: Instant) -> Option<(DrbId, Sdu)> {
        for _ in 0..self.drbs.len() {
            let turn = self.turn;
            if self.drbs[turn].ask {
                if let Some(sdu) = self.forward(turn, now) {
                    return Some((self.drbs[turn].config.id, sdu));
                }
                self.drbs[turn].ask = false;
                self.drbs[turn].settle(now);
            }
            self.turn = (turn + 1) % self.drbs.len();
        }
        None
    }

    /// The next packet for `drb`, whatever its limiter says: a grant of the uplink has room for it.
    pub fn fetch(&mut self, drb: DrbId, now: Instant) -> Option<Sdu> {
        let drb = self.drbs.iter().position(|d| d.config.id == drb)?;
        let chosen = self.choose(drb, now)?;
        self.submit(drb, chosen, now)
    }

    /// Whether [`poll_forward`](Self::poll_forward) may have something.
    #[inline]
    #[must_use]
    pub fn has_to_ask(&self) -> bool {
        self.drbs.iter().any(|drb| drb.ask)
    }

    /// Asks the limiters again if a poll is due. Call [`poll_forward`](Self::poll_forward) next.
    pub fn on_timeout(&mut self, now: Instant) {
        let poll = self.next_poll() <= now;
        if poll {
            self.polled_at = Some(now);
        }
        for drb in &mut self.drbs {
            drb.ask |= (poll && drb.wants_polls()) || drb.wake_at.is_some_and(|at| at <= now);
        }
    }

    /// When the next poll is due; none while nothing waits for time to pass.
    #[must_use]
    #[inline]
    pub fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        let (mut polls, mut wake) = (false, None);
        for drb in &self.drbs {
            polls |= drb.wants_polls();
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

    /// Whether a limiter goes by what it is told of slots.
    #[must_use]
    #[inline]
    pub fn listens(&self) -> bool {
        self.drbs.iter().any(|drb| !drb.limiter.is_open())
    }

    /// The MAC served `drb`, see [`Limiter::on_tti`].
    pub fn on_tti(&mut self, drb: DrbId, report: &TtiReport) {
        if let Some(drb) = self.drb_mut(drb) {
            drb.limiter.on_tti(report);
            drb.settle(report.at);
        }
    }

    /// The MAC expects something else of its next pull from `drb` than it said, see [`Limiter::on_forecast`].
    pub fn on_forecast(&mut self, drb: DrbId, next: Forecast) {
        if let Some(drb) = self.drb_mut(drb) {
            drb.limiter.on_forecast(next);
        }
    }

    /// An SDU left `drb`'s RLC buffer, see [`Limiter::on_sent`].
    #[inline]
    pub fn on_sent(&mut self, drb: DrbId, bytes: u32, sojourn: Duration, now: Instant) {
        if let Some(drb) = self.drb_mut(drb) {
            drb.limiter.on_sent(bytes, sojourn, now);
        }
    }

    /// Changes how `drb` is paced; whether there is such a bearer. What RLC holds is told to the new limiter
    /// by the next report.
    pub fn set_limiter(&mut self, drb: DrbId, limiter: AnyLimiter) -> bool {
        let Some(drb) = self.drb_mut(drb) else { return false };
        // What waited for the old one may be for nobody else to wake: a limiter that is open asks for nothing.
        (drb.limiter, drb.ask, drb.wake_at) = (limiter, true, Some(Instant::ZERO));
        true
    }

    /// The limiter of a bearer.
    #[must_use]
    pub fn limiter(&self, drb: DrbId) -> Option<&AnyLimiter> {
        self.drbs.iter().find(|d| d.config.id == drb).map(|d| &d.limiter)
    }

    /// Bytes that wait for `drb`.
    #[must_use]
    #[inline]
    pub fn backlog_bytes(&self, drb: DrbId) -> u64 {
        self.drbs.iter().find(|d| d.config.id == drb).map_or(0, |d| d.backlog_bytes)
    }

    /// What waits for `drb`.
    #[must_use]
    #[inline]
    pub fn held(&self, drb: DrbId) -> Held {
        self.drbs.iter().find(|d| d.config.id == drb).map_or(Held::default(), |d| Held {
            sdus: d.backlog_sdus,
            bytes: d.backlog_bytes + d.backlog_sdus * u64::from(d.config.header),
        })
    }

    /// Appends the sizes of what waits for `drb`, as RLC will count them and `around` bytes more each, until `most` are named;
    /// flow by flow as the priorities are, which is a guess where the scheduler goes by anything else.
    pub fn sizes(&self, drb: DrbId, most: usize, around: u32, out: &mut Vec<u32>) {
        let Some(drb) = self.drbs.iter().find(|d| d.config.id == drb) else { return };
        if drb.backlog_sdus == 0 {
            return;
        }
        let (start, mut after) = (out.len(), None);
        // The flows by priority, equal ones as they are written.
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

    /// Whether `drb`'s limiter lets down what the MAC says it will take next.
    #[must_use]
    pub fn follows_forecast(&self, drb: DrbId) -> bool {
        self.limiter(drb).is_some_and(|limiter| limiter.follows_forecast())
    }

    /// Bytes that wait for a limiter which follows the forecast, and for others.
    #[must_use]
    pub fn held_bytes(&self) -> (u64, u64) {
        self.drbs.iter().fold((0, 0), |(following, others), drb| {
            let bytes = drb.backlog_bytes;
            if drb.limiter.follows_forecast() {
                (following + bytes, others)
            } else {
                (following, others + bytes)
            }
        })
    }

    /// The bearer that QoS flow `qfi` goes to.
    #[must_use]
    pub fn drb_of(&self, qfi: u8) -> Option<DrbId> {
        let flow = self.flows.get(usize::from(self.by_qfi[usize::from(qfi) % QFIS]?))?;
        self.drbs.get(flow.drb).map(|drb| drb.config.id)
    }

    /// The queues of a bearer's flows, all together.
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

    /// Counters of each flow, in the order of the configuration.
    pub fn flow_stats(&self) -> impl Iterator<Item = (u8, FlowStats)> + '_ {
        self.flows.iter().map(|f| {
            let (waiting_sdus, waiting_bytes) = f.waiting();
            let stats = FlowStats { waiting_sdus, waiting_bytes, queue: f.queue.stats(), ..f.stats };
            (f.config.qfi, stats)
        })
    }

    /// Packets dropped because no flow has their QFI, and because they were too large.
    #[must_use]
    pub fn drops(&self) -> (u64, u64) {
        (self.unmapped_drops, self.too_large_drops)
    }

    fn drb_mut(&mut self, id: DrbId) -> Option<&mut Drb> {
        self.drbs.iter_mut().find(|d| d.config.id == id)
    }

    /// The first point of the grid `phase + k · poll` after the last poll.
    fn next_poll(&self) -> Instant {
        let (poll, phase) = (nanos(self.poll).max(1), nanos(self.phase));
        match self.polled_at.and_then(|at| at.as_nanos().checked_sub(phase)) {
            Some(since) => Instant::from_nanos((since / poll + 1).saturating_mul(poll).saturating_add(phase)),
            None => Instant::from_nanos(phase),
        }
    }

    /// Lets down the packet that is next for a bearer, if its limiter does.
    fn forward(&mut self, drb: usize, now: Instant) -> Option<Sdu> {
        let chosen = self.choose(drb, now)?;
        let head = self.flows[chosen].head.as_ref()?;
        let (bytes, arrived) = (head.bytes() + u32::from(self.drbs[drb].config.header), head.arrived);
        if !self.drbs[drb].limiter.is_open() {
            let overtakable = self.is_overtakable(chosen, arrived, now);
            let next_poll_in = self.next_poll().saturating_since(now);
            let Drb { limiter, backlog_bytes, .. } = &mut self.drbs[drb];
            let backlog_bytes = *backlog_bytes;
            if !limiter.admits(&Candidate { bytes, arrived, backlog_bytes, overtakable, next_poll_in }, now) {
                return None;
            }
        }
        self.submit(drb, chosen, now)
    }

    /// Lets down the head of a flow.
    fn submit(&mut self, drb: usize, flow: usize, now: Instant) -> Option<Sdu> {
        let (drb, flow) = (&mut self.drbs[drb], &mut self.flows[flow]);
        let mut sdu = flow.head.take()?;
        let own_bytes = sdu.bytes();
        drb.limiter.on_forwarded(own_bytes + u32::from(drb.config.header), now);
        drb.account((1, own_bytes.into()), (0, 0));
        flow.submit(&mut sdu, drb.config.header, now);
        Some(sdu)
    }

    /// The flow whose head goes next, its head looked at.
    fn choose(&mut self, drb: usize, now: Instant) -> Option<usize> {
        if self.drbs[drb].backlog_sdus == 0 {
            return None;
        }
        for i in 0..self.drbs[drb].flows.len() {
            self.look_at_head(usize::from(self.drbs[drb].flows[i]), now);
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

    /// Takes the next packet of a flow out of its queue, which may drop others.
    fn look_at_head(&mut self, flow: usize, now: Instant) {
        let flow = &mut self.flows[flow];
        if flow.head.is_none() && flow.queue.len_sdus() > 0 {
            let before = flow.waiting();
            flow.head = flow.queue.pop(now);
            self.drbs[flow.drb].account(before, flow.waiting());
        }
    }

    /// Deficit round robin (Shreedhar and Varghese 1996): a flow's turn lasts while its deficit covers its
    /// head; the next flow with packets then gets its quantum.
    fn round_robin(&mut self, drb: usize) -> Option<usize> {
        let drb = &mut self.drbs[drb];
        // One pass finds a flow if the quanta cover the packets; otherwise as many rounds as the nearest
        // flow needs are given at once, and a second pass finds it.
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
    /// Packets and bytes waiting.
    fn waiting(&self) -> (u64, u64) {
        let head = self.head.as_ref();
        let sdus = self.queue.len_sdus() as u64 + u64::from(head.is_some());
        (sdus, self.queue.len_bytes() + head.map_or(0, |sdu| u64::from(sdu.bytes())))
    }

    /// Notes that a packet goes down now, with the SDAP header in front if there is one.
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

    /// Rounds of DRR until the head may go.
    fn rounds_needed(&self) -> Option<i64> {
        let missing = i64::from(self.head.as_ref()?.bytes()) - self.deficit;
        let quantum = i64::from(self.config.quantum_bytes.max(1));
        Some((missing + quantum - 1) / quantum)
    }
}

impl Drb {
    /// A flow of this bearer went from `before` to `after` packets and bytes.
    fn account(&mut self, before: (u64, u64), after: (u64, u64)) {
        self.backlog_sdus = (self.backlog_sdus + after.0).saturating_sub(before.0);
        self.backlog_bytes = (self.backlog_bytes + after.1).saturating_sub(before.1);
    }

    #[inline]
    fn wants_polls(&self) -> bool {
        self.backlog_sdus > 0 && self.limiter.wants_polls()
    }

    /// Nothing more goes down now: when to look again.
    fn settle(&mut self, now: Instant) {
        self.wake_at = if self.backlog_sdus > 0 { self.limiter.wake_at(now) } else { None };
    }
}
