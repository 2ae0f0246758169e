//! A data radio bearer: both ends of RLC and PDCP, and the packets between them.

use super::config::{BearerConfig, UeError};
use super::stats::BearerStats;
use crate::amc::{Amc, Direction};
use crate::mac::{PER_PDU, TransportBlock};
use crate::pdcp::{PdcpRx, PdcpTx};
use crate::queue::{AnyBuffer, AnyLimiter, Forecast, QueueConfig};
use crate::rlc::{BufferPool, BufferStatus, Entity, RlcConfig, SentLog, SentSdu, TxQueue};
use crate::sdap::{DrbConfig, DrbId, Sdap, WaitingPackets};
use anabranch_element::packet::Packet;
use anabranch_element::time::Instant;

/// A data radio bearer.
#[derive(Debug)]
pub(super) struct Bearer {
    pub(super) id: DrbId,
    pub(super) lcid: u8,
    pub(super) priority: u8,
    /// Whether RLC retransmits lost data (acknowledged mode).
    pub(super) acknowledged: bool,
    /// Maximum number of bytes in the RLC buffer.
    pub(super) limit_bytes: u64,
    /// The end at the gNB and the end at the UE.
    ends: [BearerEnd; 2],
}

#[derive(Debug)]
struct BearerEnd {
    rlc: Entity,
    pdcp: PdcpRx,
    delivered: DeliveryState,
    /// Bytes taken by the MAC since the last report to the limiter.
    served: Served,
}

/// Counters of packets delivered at an end.
#[derive(Debug)]
struct DeliveryState {
    /// Whether packets carry the SDAP header.
    header: bool,
    packets: u64,
    bytes: u64,
}

/// Bytes taken by the MAC; counted only for bearers whose limiter uses reports.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Served {
    /// Bytes of room in the transport blocks.
    pub(super) granted_bytes: u32,
    /// SDU bytes that left the buffer.
    pub(super) sdu_bytes: u32,
}

/// A packet that was delivered in order.
#[derive(Debug)]
pub(super) struct Delivered {
    pub(super) packet: Packet,
    pub(super) qfi: u8,
    /// Time stamps of the packet; `None` if too many packets were in flight.
    pub(super) sent: Option<SentSdu>,
}

/// Index in `ends` of the sending end.
const fn sender(direction: Direction) -> usize {
    match direction {
        Direction::Downlink => 0,
        Direction::Uplink => 1,
    }
}

impl Bearer {
    /// Creates a bearer, and the limiters of its downlink and uplink.
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

    /// The RLC entity that sends in a direction.
    #[inline]
    pub(super) fn tx(&mut self, direction: Direction) -> &mut Entity {
        &mut self.ends[sender(direction)].rlc
    }

    #[inline]
    pub(super) fn status(&self, direction: Direction, now: Instant) -> BufferStatus {
        self.ends[sender(direction)].rlc.status(now)
    }

    /// Bytes of the smallest PDU that continues a segmented packet of a direction.
    pub(super) fn min_pdu(&self, direction: Direction) -> u32 {
        self.ends[sender(direction)].rlc.min_pdu()
    }

    /// Whether new data of a direction must wait for an acknowledgement.
    pub(super) fn is_stalled(&self, direction: Direction) -> bool {
        self.ends[sender(direction)].rlc.is_stalled()
    }

    /// Whether the buffer of a direction holds SDUs of which nothing was sent.
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

    /// Like [`air_bytes`](Self::air_bytes), including the packets in SDAP: the amount a UE reports for its uplink, and that a
    /// grant can take.
    #[inline]
    pub(super) fn air_bytes_with(&self, direction: Direction, above: WaitingPackets, now: Instant) -> u64 {
        self.ends[sender(direction)].rlc.air_bytes_with(above, PER_PDU, now)
    }

    /// Overhead in bytes of an unsegmented packet of a direction between SDAP and the air.
    pub(super) fn around(&self, direction: Direction) -> u32 {
        self.ends[sender(direction)].rlc.headers_len() + PER_PDU
    }

    /// Reduces a forecast to what remains for bearers of lower priority.
    pub(super) fn subtract_from(&self, direction: Direction, next: &mut Forecast, now: Instant) {
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

    /// Fills a block from the bearer.
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

    /// Like [`fill`](Self::fill), but counts the bytes taken and calls `sent` for every packet whose last byte was taken. In
    /// the uplink, where all layers are in the UE, the block also takes packets that wait in SDAP.
    pub(super) fn fill_counted(
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
        let (mut before, recorded) = (rlc.waiting_bytes(), rlc.sent().recorded());
        self.fill(direction, block, now, pool);
        if direction == Direction::Uplink && sdap.backlog_bytes(self.id) > 0 {
            before += self.fetch(sdap, block, now, pool);
        }
        let BearerEnd { rlc, served, .. } = &mut self.ends[sender(direction)];
        let left = before.saturating_sub(rlc.waiting_bytes());
        served.granted_bytes = served.granted_bytes.saturating_add(granted);
        served.sdu_bytes = served.sdu_bytes.saturating_add(u32::try_from(left).unwrap_or(u32::MAX));
        rlc.sent().since(recorded).for_each(|sdu| sent(sdap, sdu));
    }

    /// Fills the rest of an uplink block from SDAP, packet by packet; returns the bytes fetched.
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
            // No PDU fits into less room, and nothing can be sent while the window is full.
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

    /// Returns the bytes taken by the MAC since the last call, and resets the counter.
    #[inline]
    pub(super) fn take_counters(&mut self, direction: Direction) -> Served {
        std::mem::take(&mut self.ends[sender(direction)].served)
    }

    /// Replaces the buffer of a direction.
    pub(super) fn set_buffer(&mut self, direction: Direction, buffer: AnyBuffer, now: Instant) {
        self.tx(direction).set_buffer(buffer, now);
    }

    /// Time of the earliest timer of both ends; [`Instant::MAX`] if none runs.
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

    /// Passes a PDU to the receiving end of a direction. In the common case (the PDU completes the next packet and none is
    /// held back) the packet is returned; in all other cases `out` is called for each delivered packet.
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

    /// Handles expired timers of both ends of a direction.
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

    /// Whether an end has anything to send.
    #[inline]
    pub(super) fn has_pending_data(&self, now: Instant) -> bool {
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
    /// Takes a packet from PDCP, removes the SDAP header and looks up its time stamps.
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
