//! A data radio bearer: both ends of RLC and PDCP, and the packets between them.

use super::config::{BearerConfig, UeError};
use super::stats::BearerStats;
use crate::amc::{Amc, Direction};
use crate::mac::{PER_PDU, TransportBlock};
use crate::pdcp::{PdcpRx, PdcpTx};
use crate::queue::{AnyBuffer, AnyLimiter, Forecast, QueueConfig};
use crate::rlc::{BufferPool, BufferStatus, Entity, RlcConfig, SentLog, SentSdu, TxQueue};
use crate::sdap::{DrbConfig, DrbId, Held, Sdap};
use anabranch_element::packet::Packet;
use anabranch_element::time::Instant;

/// See the top of this file.
#[derive(Debug)]
pub(super) struct Bearer {
    pub(super) id: DrbId,
    pub(super) lcid: u8,
    pub(super) priority: u8,
    /// Whether RLC sends again what was lost.
    pub(super) acknowledged: bool,
    /// Most bytes in its RLC buffer.
    pub(super) limit_bytes: u64,
    /// The gNB's end, and the UE's.
    ends: [BearerEnd; 2],
}

#[derive(Debug)]
struct BearerEnd {
    rlc: Entity,
    pdcp: PdcpRx,
    delivered: DeliveryState,
    /// What the MAC took since limiters were told last.
    served: Served,
}

/// Packets that were handed up at an end.
#[derive(Debug)]
struct DeliveryState {
    /// Whether they carry the SDAP header.
    header: bool,
    packets: u64,
    bytes: u64,
}

/// What the MAC took from a bearer whose limiter goes by it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Served {
    /// Bytes it had room for.
    pub(super) granted_bytes: u32,
    /// SDU bytes that left the buffer.
    pub(super) sdu_bytes: u32,
}

/// A packet that was handed up.
#[derive(Debug)]
pub(super) struct Delivered {
    pub(super) packet: Packet,
    pub(super) qfi: u8,
    /// When it was where; none if too many were under way.
    pub(super) sent: Option<SentSdu>,
}

/// Index of the sending end.
const fn sender(direction: Direction) -> usize {
    match direction {
        Direction::Downlink => 0,
        Direction::Uplink => 1,
    }
}

impl Bearer {
    /// A bearer, and the limiters of its downlink and uplink.
    pub(super) fn new(
        drb: &DrbConfig,
        lcid: u8,
        config: &BearerConfig,
        amc: &Amc,
        delay_slots: u8,
        seed: u64,
    ) -> Result<(Self, [AnyLimiter; 2]), UeError> {
        if !matches!(config.pdcp_sn_bits, 12 | 18) {
            return Err(UeError::value("pdcp_sn_bits", config.pdcp_sn_bits, "12 or 18"));
        }
        if let Some(wait @ 3001..) = config.t_reordering_ms {
            return Err(UeError::value("t_reordering_ms", wait, "0 to 3000"));
        }
        if !(1..=9000).contains(&config.mtu_bytes) {
            return Err(UeError::value("mtu_bytes", config.mtu_bytes, "1 to 9000"));
        }
        let end = |direction, queue: &QueueConfig| -> Result<(AnyLimiter, BearerEnd), UeError> {
            let (limiter, buffer) = queue.build(config.params(amc, direction, delay_slots, seed))?;
            let queue = TxQueue::new(buffer, PdcpTx::new(config.pdcp_sn()));
            let end = BearerEnd {
                rlc: Entity::new(&config.rlc, queue)?,
                pdcp: PdcpRx::new(config.pdcp_sn(), config.t_reordering()),
                delivered: DeliveryState { header: drb.header, packets: 0, bytes: 0 },
                served: Served::default(),
            };
            Ok((limiter, end))
        };
        let (down, gnb) = end(Direction::Downlink, &config.queue)?;
        let (up, ue) = end(Direction::Uplink, config.uplink_queue.as_ref().unwrap_or(&config.queue))?;
        let (id, priority) = (drb.id, config.priority);
        let acknowledged = matches!(config.rlc, RlcConfig::Am(_));
        let limit_bytes = config.limit_bytes;
        Ok((Self { id, lcid, priority, acknowledged, limit_bytes, ends: [gnb, ue] }, [down, up]))
    }

    /// The entity that sends in a direction.
    #[inline]
    pub(super) fn tx(&mut self, direction: Direction) -> &mut Entity {
        &mut self.ends[sender(direction)].rlc
    }

    #[inline]
    pub(super) fn status(&self, direction: Direction, now: Instant) -> BufferStatus {
        self.ends[sender(direction)].rlc.status(now)
    }

    /// Bytes of the least PDU that carries on with a packet of a direction.
    pub(super) fn least_pdu(&self, direction: Direction) -> u32 {
        self.ends[sender(direction)].rlc.least_pdu()
    }

    /// Whether nothing new of a direction can leave before an acknowledgement comes.
    pub(super) fn is_stalled(&self, direction: Direction) -> bool {
        self.ends[sender(direction)].rlc.is_stalled()
    }

    /// Whether SDUs of which nothing was sent lie in the buffer of a direction.
    #[inline]
    pub(super) fn has_whole_sdus(&self, direction: Direction) -> bool {
        self.ends[sender(direction)].rlc.has_whole_sdus()
    }

    /// SDU bytes in the buffer of a direction.
    #[inline]
    pub(super) fn buffer_bytes(&self, direction: Direction) -> u64 {
        self.ends[sender(direction)].rlc.waiting_bytes()
    }

    /// Bytes on the air that would empty the buffer of a direction.
    #[inline]
    pub(super) fn air_bytes(&self, direction: Direction, per_pdu: u32, now: Instant) -> u64 {
        self.ends[sender(direction)].rlc.air_bytes(per_pdu, now)
    }

    /// The same with what waits in SDAP: what a UE reports of its uplink, and what a grant takes.
    #[inline]
    pub(super) fn air_bytes_with(&self, direction: Direction, above: Held, now: Instant) -> u64 {
        self.ends[sender(direction)].rlc.air_bytes_with(above, PER_PDU, now)
    }

    /// Bytes around a packet of a direction that goes whole, on its way from SDAP to the air.
    pub(super) fn around(&self, direction: Direction) -> u32 {
        self.ends[sender(direction)].rlc.headers_len() + PER_PDU
    }

    /// What of a forecast is left to bearers of lower priority.
    pub(super) fn take_from(&self, direction: Direction, next: &mut Forecast, now: Instant) {
        let before = self.air_bytes(direction, PER_PDU, now);
        next.bytes = next.bytes.saturating_sub(u32::try_from(before).unwrap_or(u32::MAX));
    }

    pub(super) fn sizes(
        &self,
        direction: Direction,
        most: usize,
        per_pdu: u32,
        now: Instant,
        out: &mut Vec<u32>,
    ) {
        self.ends[sender(direction)].rlc.sizes(most, per_pdu, now, out);
    }

    /// Lets a block have what the bearer holds.
    #[inline]
    pub(super) fn fill(
        &mut self,
        direction: Direction,
        block: &mut TransportBlock,
        now: Instant,
        pool: &mut BufferPool,
    ) {
        block.fill(self.lcid, &mut self.ends[sender(direction)].rlc, now, pool);
    }

    /// The same where somebody wants to know: counts what is taken, and `sent` gets every packet of which the last byte
    /// goes. In the uplink, where all layers are in the UE, the block also gets what waits in SDAP.
    pub(super) fn fill_noted(
        &mut self,
        direction: Direction,
        sdap: &mut Sdap,
        block: &mut TransportBlock,
        now: Instant,
        pool: &mut BufferPool,
        mut sent: impl FnMut(&mut Sdap, &SentSdu),
    ) {
        let rlc = self.tx(direction);
        let granted = u32::try_from(block.room()).unwrap_or(u32::MAX);
        let (mut before, noted) = (rlc.waiting_bytes(), rlc.sent().noted());
        self.fill(direction, block, now, pool);
        if direction == Direction::Uplink && sdap.backlog_bytes(self.id) > 0 {
            before += self.fetch(sdap, block, now, pool);
        }
        let BearerEnd { rlc, served, .. } = &mut self.ends[sender(direction)];
        let left = before.saturating_sub(rlc.waiting_bytes());
        served.granted_bytes = served.granted_bytes.saturating_add(granted);
        served.sdu_bytes = served.sdu_bytes.saturating_add(u32::try_from(left).unwrap_or(u32::MAX));
        rlc.sent().since(noted).for_each(|sdu| sent(sdap, sdu));
    }

    /// Fills what is left of an uplink block from SDAP, packet by packet; returns the bytes that came down.
    fn fetch(
        &mut self,
        sdap: &mut Sdap,
        block: &mut TransportBlock,
        now: Instant,
        pool: &mut BufferPool,
    ) -> u64 {
        let direction = Direction::Uplink;
        let mut fetched = 0;
        loop {
            let (room, rlc) = (block.room(), &mut self.ends[sender(direction)].rlc);
            // With less nothing is sent, and a full window lets nothing through.
            if room <= (PER_PDU + rlc.header_len()) as usize || rlc.status(now).stalled {
                return fetched;
            }
            let Some(sdu) = sdap.fetch(self.id, now) else { return fetched };
            let before = rlc.waiting_bytes();
            rlc.push(sdu, now);
            rlc.set_more_above(sdap.backlog_bytes(self.id) > 0, now);
            fetched += rlc.waiting_bytes().saturating_sub(before);
            self.fill(direction, block, now, pool);
            if block.room() == room {
                return fetched;
            }
        }
    }

    /// What the MAC took since the last call.
    #[inline]
    pub(super) fn take_served(&mut self, direction: Direction) -> Served {
        std::mem::take(&mut self.ends[sender(direction)].served)
    }

    /// Changes the buffer of a direction.
    pub(super) fn set_buffer(&mut self, direction: Direction, buffer: AnyBuffer, now: Instant) {
        self.tx(direction).set_buffer(buffer, now);
    }

    /// When one of its timers is due; [`Instant::MAX`] if none runs.
    #[inline]
    pub(super) fn wake(&self) -> Instant {
        let mut wake = Instant::MAX;
        for end in &self.ends {
            if let Some(at) = end.rlc.poll_timeout() {
                wake = wake.min(at);
            }
            if let Some(at) = end.pdcp.poll_timeout() {
                wake = wake.min(at);
            }
        }
        wake
    }

    /// A PDU arrives at the receiving end of a direction: the packet that is handed up, where that is the next and nothing
    /// waits, as nearly always. `out` gets what is handed up otherwise.
    #[inline]
    pub(super) fn receive(
        &mut self,
        direction: Direction,
        pdu: &[u8],
        now: Instant,
        pool: &mut BufferPool,
        out: &mut impl FnMut(Delivered),
    ) -> Option<Delivered> {
        let (from, to) = self.both(direction);
        let BearerEnd { rlc, pdcp, delivered, .. } = to;
        let sent = from.rlc.sent();
        match rlc.receive_one(pdu, now, pool) {
            Ok(whole) => match pdcp.receive_next(whole?, now) {
                Ok((count, packet)) => return Some(delivered.deliver(sent, count, packet)),
                Err(sdu) => pdcp.receive(sdu, now, pool, |count, packet| {
                    out(delivered.deliver(sent, count, packet));
                }),
            },
            Err(_) => rlc.receive(pdu, now, pool, &mut |sdu, pool| {
                pdcp.receive(sdu, now, pool, |count, packet| out(delivered.deliver(sent, count, packet)));
            }),
        }
        None
    }

    /// Timers of the receiving end of a direction, and of the sending one.
    pub(super) fn on_timeout(
        &mut self,
        direction: Direction,
        now: Instant,
        pool: &mut BufferPool,
        out: &mut impl FnMut(Delivered),
    ) {
        let (from, to) = self.both(direction);
        if from.rlc.poll_timeout().is_some_and(|at| at <= now) {
            from.rlc.on_timeout(now, pool);
        }
        if to.rlc.poll_timeout().is_some_and(|at| at <= now) {
            to.rlc.on_timeout(now, pool);
        }
        if to.pdcp.poll_timeout().is_some_and(|at| at <= now) {
            let BearerEnd { pdcp, delivered, .. } = to;
            let sent = from.rlc.sent();
            pdcp.on_timeout(now, |count, packet| out(delivered.deliver(sent, count, packet)));
        }
    }

    /// Whether anything is to be sent.
    #[inline]
    pub(super) fn has_to_send(&self, now: Instant) -> bool {
        self.ends.iter().any(|end| !end.rlc.is_idle(now))
    }

    pub(super) fn stats(&self, direction: Direction, now: Instant) -> BearerStats {
        let (from, to) = match direction {
            Direction::Downlink => (&self.ends[0], &self.ends[1]),
            Direction::Uplink => (&self.ends[1], &self.ends[0]),
        };
        BearerStats {
            drb: self.id,
            delivered_packets: to.delivered.packets,
            delivered_bytes: to.delivered.bytes,
            buffer: from.rlc.buffer_stats(),
            buffer_bytes: from.rlc.status(now).sdu_bytes,
            sender: from.rlc.stats(),
            receiver: to.rlc.stats(),
            order: to.pdcp.stats(),
        }
    }

    #[inline]
    fn both(&mut self, direction: Direction) -> (&mut BearerEnd, &mut BearerEnd) {
        let [gnb, ue] = &mut self.ends;
        match direction {
            Direction::Downlink => (gnb, ue),
            Direction::Uplink => (ue, gnb),
        }
    }
}

impl DeliveryState {
    /// A packet comes out of PDCP: takes the SDAP header off, and finds its times.
    #[inline(always)]
    fn deliver(&mut self, sent: &mut SentLog, count: u32, mut packet: Packet) -> Delivered {
        let sent = sent.take(count);
        let mut qfi = sent.as_ref().map_or(0, |sent| sent.qfi);
        if self.header {
            qfi = packet.first().map_or(qfi, |byte| byte & 0x3f);
            packet.pull_front(1);
        }
        self.packets += 1;
        self.bytes += packet.len() as u64;
        Delivered { packet, qfi, sent }
    }
}
