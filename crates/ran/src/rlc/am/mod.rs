//! Acknowledged mode, TS 38.322 §5.2.3 and §5.3: every SDU is numbered and retransmitted until it is acknowledged.
//!
//! ```text
//!   sender      TX_Next_Ack ▼          ▼ TX_Next
//!               ────────────┬──────────┬─────────        STATUS: ACK_SN, and the missing parts before it
//!               acknowledged│ in flight│ in the buffer   ◀──────────────────────────────────────┐
//!                           └──────────┘                                                        │
//!   receiver         RX_Next ▼      ▼ RX_Highest_Status  ▼ RX_Next_Highest                      │
//!               ─────────────┬──────┬────────────────────┬─────     after t-Reassembly: report ─┘
//!               delivered    │report│ may still arrive   │
//! ```

mod rx;
mod tx;

use super::config::AmConfig;
use super::reassembly::BufferPool;
use super::{BufferStatus, RlcStats, SentLog, TxQueue};
use anabranch_element::time::Instant;
use anabranch_wire::rlc::{AmHeader, AmPdu, AmSn, Segment};

/// Sender and receiver of one end of an acknowledged bearer.
#[derive(Debug, Clone)]
pub struct Am {
    sn: AmSn,
    tx: tx::Tx,
    rx: rx::Rx,
    malformed_pdus: u64,
}

impl Am {
    /// At most `most` SDUs are in flight at a time.
    pub(super) fn new(config: AmConfig, most: u32) -> Self {
        Self {
            sn: config.sn_bits.0,
            tx: tx::Tx::new(config, most),
            rx: rx::Rx::new(config),
            malformed_pdus: 0,
        }
    }

    /// §5.2.3.1.1: sends first the STATUS PDU, then retransmissions, then new data.
    pub(super) fn pull(
        &mut self,
        queue: &mut TxQueue,
        room: usize,
        now: Instant,
        out: &mut Vec<u8>,
        sent: &mut SentLog,
    ) -> usize {
        let status = self.rx.pull_status(room, now, out);
        if status > 0 {
            return status;
        }
        let again = self.tx.pull_retx(queue, room, now, out);
        if again > 0 { again } else { self.tx.pull_new(queue, room, now, out, sent) }
    }

    pub(super) fn receive(
        &mut self,
        queue: &TxQueue,
        pdu: &[u8],
        now: Instant,
        pool: &mut BufferPool,
        up: &mut impl FnMut(Vec<u8>, &mut BufferPool),
    ) {
        match AmPdu::parse(pdu, self.sn) {
            Ok(AmPdu::Data(header, data)) => self.rx.receive(&header, data, now, pool, up),
            Ok(AmPdu::Status(status)) => self.tx.on_status(&status, queue, now, pool),
            Err(_) => self.malformed_pdus += 1,
        }
    }

    pub(super) fn on_timeout(&mut self, now: Instant, queue: &TxQueue) {
        self.tx.on_timeout(now, queue);
        self.rx.on_timeout(now);
    }

    /// Handles a change of the buffer, which may now be empty.
    pub(super) fn buffer_changed(&mut self, queue: &TxQueue, now: Instant) {
        self.tx.settle(queue, now);
    }

    pub(super) fn unacknowledged(&self) -> impl Iterator<Item = u32> {
        self.tx.unacknowledged()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        [self.tx.poll_timeout(), self.rx.poll_timeout()].into_iter().flatten().min()
    }

    pub(super) fn head_bytes(&self) -> u64 {
        self.tx.head_bytes()
    }

    pub(super) fn add_status(&self, status: &mut BufferStatus, now: Instant) {
        self.tx.add_status(status);
        status.status_bytes = self.rx.status_bytes(now);
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.tx.is_stalled()
    }

    pub(super) fn header_len(&self) -> u32 {
        AmHeader::len(Segment::Complete, self.sn) as u32
    }

    pub(super) fn head_sizes(&self, most: usize, now: Instant, out: &mut Vec<u32>) {
        let status = self.rx.status_bytes(now);
        if status > 0 {
            out.push(status as u32);
        }
        self.tx.head_sizes(most, out);
    }

    pub(super) fn stats(&self) -> RlcStats {
        let (tx, rx) = (self.tx.stats, self.rx.stats);
        RlcStats {
            data_pdus: tx.data_pdus,
            segmented_sdus: tx.segmented_sdus,
            retx_pdus: tx.retx_pdus,
            max_retx_reached: tx.max_retx_reached,
            status_pdus: rx.status_pdus,
            delivered_sdus: rx.delivered_sdus,
            discarded_sdus: rx.discarded_sdus,
            stale_pdus: rx.stale_pdus + tx.stale_pdus,
            malformed_pdus: rx.malformed_pdus + tx.malformed_pdus + self.malformed_pdus,
        }
    }
}

/// Distance from `base` forward to `number`.
fn ahead(number: u32, base: u32, sn: AmSn) -> u32 {
    number.wrapping_sub(base) & (sn.modulus() - 1)
}

/// `number + n`, modulo the number space.
fn after(number: u32, n: u32, sn: AmSn) -> u32 {
    number.wrapping_add(n) & (sn.modulus() - 1)
}
