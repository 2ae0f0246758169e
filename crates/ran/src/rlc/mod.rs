//! RLC, TS 38.322: segments packets to fit the grants of the MAC, and reassembles them.
//!
//! ```text
//!            TxQueue                  segmentation           air            reassembly
//!  SDU ─▶ ▯▯▯▯▯▯ ─▶ PDCP number ─▶ [ head │ rest ] ─▶ PDU ─▶ ≋≋≋ ─▶ ▒▒ ▒▒▒ ─▶ whole ─▶ PDCP
//!         a Buffer                     ▲                                │
//!                                      └── AM: retransmission ◀─ STATUS ┘
//! ```
//!
//! An [`Entity`] is one end of a bearer, in unacknowledged ([`um`]) or acknowledged ([`am`]) mode. The MAC calls
//! [`Entity::pull`] until it has no room or nothing is left; each call yields one PDU.
//!
//! Differences from the standard: there is no transparent mode. Packets are numbered when they are first pulled, not before.
//! Windows hold at most [`MAX_WINDOW`] SDUs, which bounds memory. An SDU that was retransmitted `max_retx` times is counted,
//! and its retransmissions continue, because there is no RRC to re-establish the bearer.

pub mod am;
mod config;
mod reassembly;
mod sent;
#[cfg(test)]
mod tests;
pub mod um;

pub use config::{AmConfig, AmSnBits, RlcConfig, RlcError, UmConfig, UmSnBits};
pub use reassembly::{BufferPool, MAX_SDU_BYTES};
pub use sent::{SentLog, SentSdu};

use super::pdcp::PdcpTx;
use super::queue::{AnyBuffer, Buffer, BufferStats, Sdu};
use super::sdap::WaitingPackets;
use anabranch_element::time::Instant;

/// Maximum number of SDUs in a window.
pub const MAX_WINDOW: u32 = 8192;

/// Data waiting in an entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BufferStatus {
    /// SDU bytes not yet pulled, including the rest of a partly pulled SDU.
    pub sdu_bytes: u64,
    /// SDUs not yet completely pulled.
    pub sdus: u64,
    /// Lost bytes that wait for retransmission.
    pub retx_bytes: u64,
    /// Minimum number of PDUs for them.
    pub retx_pdus: u64,
    /// Bytes of the STATUS PDU that is due; 0 if none is.
    pub status_bytes: u64,
    /// The window is full: no SDU can be pulled, whatever is granted.
    pub stalled: bool,
}

impl BufferStatus {
    /// Bytes on the air if everything that can be pulled were pulled unsegmented, each PDU with `header` bytes in front and
    /// an overhead of `per_pdu`.
    #[must_use]
    pub fn air_bytes(&self, header: u32, per_pdu: u32) -> u64 {
        let (sdus, sdu_bytes) = if self.stalled { (0, 0) } else { (self.sdus, self.sdu_bytes) };
        let status = if self.status_bytes > 0 { self.status_bytes + u64::from(per_pdu) } else { 0 };
        // The header of a segment is 2 bytes longer, in UM up to 1 byte more.
        let partly = 3 * (self.retx_pdus + u64::from(sdus > 0));
        sdu_bytes + self.retx_bytes + (sdus + self.retx_pdus) * u64::from(header + per_pdu) + partly + status
    }
}

/// The transmission buffer, and the PDCP entity that numbers the packets leaving it.
#[derive(Debug, Clone)]
pub struct TxQueue {
    buffer: AnyBuffer,
    /// Counters of replaced buffers.
    past: BufferStats,
    pdcp: PdcpTx,
    /// More packets wait in SDAP, which a grant will fetch.
    more_above: bool,
}

impl TxQueue {
    /// An empty buffer with the PDCP entity of a new bearer.
    #[must_use]
    pub fn new(buffer: AnyBuffer, pdcp: PdcpTx) -> Self {
        Self { buffer, past: BufferStats::default(), pdcp, more_above: false }
    }

    /// Appends a packet after reserving its PDCP header; drops are counted by the buffer.
    #[inline(always)]
    fn push(&mut self, mut sdu: Sdu, now: Instant) {
        self.pdcp.reserve(&mut sdu);
        self.buffer.push(sdu, now);
    }

    /// Removes the next packet, numbers it, and returns it with its COUNT.
    #[inline(always)]
    fn pop(&mut self, now: Instant) -> Option<(u32, Sdu)> {
        self.buffer.pop(now).map(|mut sdu| (self.pdcp.number(&mut sdu), sdu))
    }

    /// Replaces the discipline and moves the waiting packets. Drops of either buffer during the move are counted.
    fn replace(&mut self, mut buffer: AnyBuffer, now: Instant) {
        let mut moved = 0;
        while let Some(sdu) = self.buffer.pop(now) {
            buffer.push(sdu, now);
            moved += 1;
        }
        self.past = self.stats();
        // The moved packets were neither handed on nor offered again.
        self.past.popped_sdus -= moved;
        self.past.pushed_sdus -= moved;
        self.buffer = buffer;
    }

    /// Counters since the start, over all disciplines.
    fn stats(&self) -> BufferStats {
        let (now, past) = (self.buffer.stats(), self.past);
        BufferStats {
            pushed_sdus: past.pushed_sdus + now.pushed_sdus,
            popped_sdus: past.popped_sdus + now.popped_sdus,
            full_drops: past.full_drops + now.full_drops,
            aqm_drops: past.aqm_drops + now.aqm_drops,
            ce_marks: past.ce_marks + now.ce_marks,
            max_bytes: past.max_bytes.max(now.max_bytes),
        }
    }
}

/// Counters of an entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct RlcStats {
    /// Data PDUs sent, including retransmissions.
    pub data_pdus: u64,
    /// SDUs that were segmented.
    pub segmented_sdus: u64,
    /// PDUs retransmitted.
    pub retx_pdus: u64,
    /// STATUS PDUs sent.
    pub status_pdus: u64,
    /// SDUs that reached `max_retx`.
    pub max_retx_reached: u64,
    /// SDUs delivered to the upper layer.
    pub delivered_sdus: u64,
    /// SDUs given up before they were complete.
    pub discarded_sdus: u64,
    /// PDUs without new data, or outside the window.
    pub stale_pdus: u64,
    /// PDUs that were malformed, or inconsistent with others.
    pub malformed_pdus: u64,
}

/// Error of [`Entity::receive_one`]: the entity is in acknowledged mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IsAcknowledged;

/// One end of a bearer: sender and receiver.
#[derive(Debug, Clone)]
pub struct Entity {
    queue: TxQueue,
    mode: Mode,
    sent: SentLog,
}

#[derive(Debug, Clone)]
enum Mode {
    Um(Box<um::Um>),
    Am(Box<am::Am>),
}

impl Entity {
    /// An empty entity.
    ///
    /// # Errors
    /// Those of [`RlcConfig::check`].
    pub fn new(config: &RlcConfig, queue: TxQueue) -> Result<Self, RlcError> {
        config.check()?;
        let mode = match config {
            RlcConfig::Um(config) => Mode::Um(Box::new(um::Um::new(*config))),
            // Packets beyond PDCP's window would make PDCP give up packets that RLC still delivers.
            RlcConfig::Am(config) => Mode::Am(Box::new(am::Am::new(*config, queue.pdcp.window()))),
        };
        Ok(Self { queue, mode, sent: SentLog::default() })
    }

    /// Queues a packet from SDAP.
    #[inline(always)]
    pub fn push(&mut self, sdu: Sdu, now: Instant) {
        self.queue.push(sdu, now);
    }

    /// Appends the next PDU of at most `room` bytes to `out`; returns its length, or 0 if there is none or not a single byte
    /// of data fits.
    pub fn pull(&mut self, room: usize, now: Instant, out: &mut Vec<u8>, pool: &mut BufferPool) -> usize {
        self.pull_behind(room, now, out, pool, |_| [])
    }

    /// Like [`pull`](Self::pull), but first appends the header of another layer, which `front` builds from the PDU's length.
    #[inline]
    pub fn pull_behind<const N: usize>(
        &mut self,
        room: usize,
        now: Instant,
        out: &mut Vec<u8>,
        pool: &mut BufferPool,
        front: impl FnOnce(usize) -> [u8; N],
    ) -> usize {
        match &mut self.mode {
            Mode::Um(um) => um.pull(&mut self.queue, room, now, out, &mut self.sent, pool, front),
            Mode::Am(am) => {
                let start = out.len();
                out.extend_from_slice(&[0; N]);
                let len = am.pull(&mut self.queue, room, now, out, &mut self.sent);
                match len {
                    0 => out.truncate(start),
                    _ => out[start..start + N].copy_from_slice(&front(len)),
                }
                len
            }
        }
    }

    /// Processes a received PDU; `up` is called for each SDU that is now complete.
    #[inline]
    pub fn receive(
        &mut self,
        pdu: &[u8],
        now: Instant,
        pool: &mut BufferPool,
        up: &mut impl FnMut(Vec<u8>, &mut BufferPool),
    ) {
        match &mut self.mode {
            Mode::Um(um) => {
                if let Some(sdu) = um.receive(pdu, now, pool) {
                    up(sdu, pool);
                }
            }
            Mode::Am(am) => am.receive(&self.queue, pdu, now, pool, up),
        }
    }

    /// Like [`receive`](Self::receive) for unacknowledged mode, in which a PDU completes at most one SDU, which is returned. In
    /// acknowledged mode nothing happens.
    ///
    /// # Errors
    /// [`IsAcknowledged`]: call [`receive`](Self::receive) instead.
    #[inline]
    pub fn receive_one(
        &mut self,
        pdu: &[u8],
        now: Instant,
        pool: &mut BufferPool,
    ) -> Result<Option<Vec<u8>>, IsAcknowledged> {
        match &mut self.mode {
            Mode::Um(um) => Ok(um.receive(pdu, now, pool)),
            Mode::Am(_) => Err(IsAcknowledged),
        }
    }

    /// Handles timers that are due.
    pub fn on_timeout(&mut self, now: Instant, pool: &mut BufferPool) {
        match &mut self.mode {
            Mode::Um(um) => um.on_timeout(now, pool),
            Mode::Am(am) => am.on_timeout(now, &self.queue),
        }
    }

    /// Time of the next timer.
    #[must_use]
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.mode {
            Mode::Um(um) => um.poll_timeout(),
            Mode::Am(am) => am.poll_timeout(),
        }
    }

    /// The next SDU whose last byte was pulled for the first time.
    #[inline]
    pub fn poll_sent(&mut self) -> Option<SentSdu> {
        self.sent.pop()
    }

    /// The log of such SDUs that were neither polled nor taken yet.
    #[inline]
    pub fn sent(&mut self) -> &mut SentLog {
        &mut self.sent
    }

    /// Whether nothing is to be sent: all of [`status`](Self::status) is 0.
    #[inline]
    #[must_use]
    pub fn is_idle(&self, now: Instant) -> bool {
        match &self.mode {
            // In unacknowledged mode, there is nothing to send but SDUs.
            Mode::Um(um) => !um.has_head() && self.queue.buffer.len_sdus() == 0,
            Mode::Am(_) => self.status(now) == BufferStatus::default(),
        }
    }

    /// SDU bytes not yet pulled, as in [`BufferStatus::sdu_bytes`].
    #[inline]
    #[must_use]
    pub fn waiting_bytes(&self) -> u64 {
        let head = match &self.mode {
            Mode::Um(um) => um.head_bytes(),
            Mode::Am(am) => am.head_bytes(),
        };
        self.queue.buffer.len_bytes() + head
    }

    /// Bytes on the air that would empty the buffer, see [`BufferStatus::air_bytes`].
    #[inline]
    #[must_use]
    pub fn air_bytes(&self, per_pdu: u32, now: Instant) -> u64 {
        match &self.mode {
            Mode::Um(um) if !um.has_head() && self.queue.buffer.len_sdus() == 0 => 0,
            Mode::Um(_) => self.status(now).air_bytes(1, per_pdu),
            Mode::Am(am) => self.status(now).air_bytes(am.header_len(), per_pdu),
        }
    }

    /// Like [`air_bytes`](Self::air_bytes), with the packets `above` in the buffer as well.
    #[inline]
    #[must_use]
    pub fn air_bytes_with(&self, above: WaitingPackets, per_pdu: u32, now: Instant) -> u64 {
        if above.sdus == 0 {
            return self.air_bytes(per_pdu, now);
        }
        let mut status = self.status(now);
        status.sdus += above.sdus;
        status.sdu_bytes += above.bytes + above.sdus * u64::from(self.queue.pdcp.header_len());
        status.air_bytes(self.header_len(), per_pdu)
    }

    /// Bytes of the PDCP and RLC headers of an unsegmented packet.
    #[must_use]
    pub fn headers_len(&self) -> u32 {
        self.queue.pdcp.header_len() + self.header_len()
    }

    /// Whether SDUs wait of which nothing was pulled.
    #[must_use]
    #[inline]
    pub fn has_whole_sdus(&self) -> bool {
        self.queue.buffer.len_sdus() > 0
    }

    /// Whether new data must wait for an acknowledgement.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        matches!(&self.mode, Mode::Am(am) if am.is_stalled())
    }

    /// The data waiting in the entity.
    #[inline]
    #[must_use]
    pub fn status(&self, now: Instant) -> BufferStatus {
        let mut status = BufferStatus {
            sdu_bytes: self.waiting_bytes(),
            sdus: self.queue.buffer.len_sdus() as u64,
            ..BufferStatus::default()
        };
        match &self.mode {
            Mode::Um(um) => um.add_status(&mut status),
            Mode::Am(am) => am.add_status(&mut status, now),
        }
        status
    }

    /// Bytes of the header of a PDU with a complete SDU.
    #[must_use]
    #[inline]
    pub fn header_len(&self) -> u32 {
        match &self.mode {
            Mode::Um(_) => 1,
            Mode::Am(am) => am.header_len(),
        }
    }

    /// Bytes of the smallest PDU that continues an SDU: a header with an offset, and a byte of data. A first segment may be
    /// shorter, but the segments after it are not.
    #[must_use]
    pub fn min_pdu(&self) -> u32 {
        match &self.mode {
            Mode::Um(um) => um.segment_header_len() + 1,
            // TS 38.322 §6.2.2.4: the offset is 2 bytes.
            Mode::Am(am) => am.header_len() + 2 + 1,
        }
    }

    /// Appends the sizes on the air of the next PDUs, each including an overhead of `per_pdu`, at most `most` PDUs.
    pub fn sizes(&self, most: usize, per_pdu: u32, now: Instant, out: &mut Vec<u32>) {
        let start = out.len();
        match &self.mode {
            Mode::Um(um) => um.head_sizes(out),
            Mode::Am(am) => am.head_sizes(most, now, out),
        }
        for size in &mut out[start..] {
            *size += per_pdu;
        }
        let most = most.saturating_sub(out.len() - start);
        let header = self.header_len() + per_pdu;
        let queued = out.len();
        self.queue.buffer.sizes(most, out);
        for size in &mut out[queued..] {
            *size += header;
        }
    }

    /// Records whether more packets wait in SDAP that a grant will fetch; an empty buffer then does not poll (TS 38.322 §5.3.3.2,
    /// note).
    pub fn set_more_above(&mut self, more: bool, now: Instant) {
        let ends = std::mem::replace(&mut self.queue.more_above, more) && !more;
        if let (true, Mode::Am(am)) = (ends, &mut self.mode) {
            am.buffer_changed(&self.queue, now);
        }
    }

    /// Replaces the discipline of the transmission buffer.
    pub fn set_buffer(&mut self, buffer: AnyBuffer, now: Instant) {
        self.queue.replace(buffer, now);
        if let Mode::Am(am) = &mut self.mode {
            am.buffer_changed(&self.queue, now);
        }
    }

    /// COUNTs, ascending, of SDUs that are at least partly sent and not known to have arrived; none in UM, which has no
    /// acknowledgements.
    pub fn unacknowledged(&self) -> impl Iterator<Item = u32> {
        let am = match &self.mode {
            Mode::Um(_) => None,
            Mode::Am(am) => Some(am.unacknowledged()),
        };
        am.into_iter().flatten()
    }

    /// Counters of the entity.
    #[must_use]
    pub fn stats(&self) -> RlcStats {
        match &self.mode {
            Mode::Um(um) => um.stats,
            Mode::Am(am) => am.stats(),
        }
    }

    /// Counters of the transmission buffer.
    #[must_use]
    pub fn buffer_stats(&self) -> BufferStats {
        self.queue.stats()
    }
}

/// An SDU of which some bytes were pulled.
#[derive(Debug, Clone)]
struct Head {
    sdu: Sdu,
    count: u32,
    /// Number of bytes pulled.
    offset: usize,
    first_pull: Instant,
}

impl Head {
    fn left(&self) -> usize {
        self.sdu.packet.len().saturating_sub(self.offset)
    }

    /// The record of the SDU, whose last byte is pulled now.
    fn sent(&self, now: Instant) -> SentSdu {
        Self::sent_of(&self.sdu, self.count, self.first_pull, now)
    }

    /// The record of an SDU whose last byte is pulled at `last_pull`.
    #[inline]
    fn sent_of(sdu: &Sdu, count: u32, first_pull: Instant, last_pull: Instant) -> SentSdu {
        SentSdu {
            count,
            qfi: sdu.qfi,
            bytes: sdu.bytes(),
            arrived: sdu.arrived,
            forwarded: sdu.forwarded,
            first_pull,
            last_pull,
        }
    }
}
