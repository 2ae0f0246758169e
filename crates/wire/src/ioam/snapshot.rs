//! Our schema of the opaque state snapshot: state of a queue and the link behind it.
//!
//! ```text
//!  0                   1                   2                   3
//! +---------------+-----------------------------------------------+
//! | length 6      |  schema 0x414201                              |  RFC 9197 §4.4.2.12
//! +---------------+-----------------------------------------------+
//! |  arrival rate, kbit/s                                         |
//! +---------------------------------------------------------------+
//! |  link rate, kbit/s                                            |
//! +---------------------------------------------------------------+
//! |  queue capacity, bytes                                        |
//! +-------------------------------+---------------+---------------+
//! |  flow count                   |  MCS          |  RB share     |
//! +-------------------------------+---------------+---------------+
//! |  packets dropped because the queue was full, modulo 2^32 − 1  |
//! +---------------------------------------------------------------+
//! |  packets the medium lost, modulo 2^32 − 1                     |
//! +---------------------------------------------------------------+
//! ```
//!
//! All ones: unknown, for example at the ends of a tunnel, which do not know what was dropped inside it; known counters skip
//! that value. The RB share is 1 plus the share in half percents; 0 (formerly reserved): not reported. The queue depth is in
//! the standard field (bit 6), in bytes as in Linux. A cell also reports the part of that depth that has passed the limiter and
//! waits in RLC, as the standard buffer occupancy (bit 11), in bytes, if the trace requests it.

use super::node::Opaque;
use crate::WireError;
use crate::read::{put, u16_at, u32_at};

/// Schema id, 24 bits: "AB", version 1.
pub const SNAPSHOT_SCHEMA: u32 = 0x41_42_01;
/// Length of the data in bytes, without the word that contains length and schema.
pub const SNAPSHOT_LEN: usize = 24;

/// All RBs of the carrier, in half percents.
const MOST_SHARE: u8 = 200;

/// State of a queue and its link; see the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Arrival rate at the queue over the last measuring interval, kbit/s.
    pub arrival_kbps: Option<u32>,
    /// Current rate of the link behind the queue, kbit/s.
    pub link_kbps: Option<u32>,
    /// Capacity of the queue in bytes.
    pub capacity_bytes: Option<u32>,
    /// Flows with packets in the last measuring interval.
    pub flows: Option<u16>,
    /// Modulation and coding scheme of the radio link.
    pub mcs: Option<u8>,
    /// Share of the carrier's resource blocks granted to the bearer over the last measuring interval, in half percents, at most
    /// 200.
    pub rb_half_percent: Option<u8>,
    /// Packets dropped because the queue was full or by its discipline; wraps.
    pub queue_drops: Option<u32>,
    /// Packets lost by the medium in spite of retransmission; wraps.
    pub medium_losses: Option<u32>,
}

impl Snapshot {
    /// Parses a snapshot; `None` if it has another schema.
    ///
    /// # Errors
    /// Our schema with a wrong length.
    pub fn parse(opaque: Opaque<'_>) -> Result<Option<Self>, WireError> {
        if opaque.schema != SNAPSHOT_SCHEMA {
            return Ok(None);
        }
        let b = opaque.data;
        if b.len() != SNAPSHOT_LEN {
            return Err(WireError::Length {
                what: "opaque state snapshot",
                expected: SNAPSHOT_LEN,
                have: b.len(),
            });
        }
        let word = |at| Some(u32_at(b, at)).filter(|v| *v != u32::MAX);
        Ok(Some(Self {
            arrival_kbps: word(0),
            link_kbps: word(4),
            capacity_bytes: word(8),
            flows: Some(u16_at(b, 12)).filter(|v| *v != u16::MAX),
            mcs: Some(b[14]).filter(|v| *v != u8::MAX),
            rb_half_percent: b[15].checked_sub(1).filter(|v| *v <= MOST_SHARE),
            queue_drops: word(16),
            medium_losses: word(20),
        }))
    }

    /// The encoded data, for [`Opaque::data`].
    #[must_use]
    pub fn emit(&self) -> [u8; SNAPSHOT_LEN] {
        let mut b = [0; SNAPSHOT_LEN];
        put(&mut b, 0, &self.arrival_kbps.unwrap_or(u32::MAX).to_be_bytes());
        put(&mut b, 4, &self.link_kbps.unwrap_or(u32::MAX).to_be_bytes());
        put(&mut b, 8, &self.capacity_bytes.unwrap_or(u32::MAX).to_be_bytes());
        put(&mut b, 12, &self.flows.unwrap_or(u16::MAX).to_be_bytes());
        b[14] = self.mcs.unwrap_or(u8::MAX);
        b[15] = self.rb_half_percent.map_or(0, |share| share.min(MOST_SHARE) + 1);
        put(&mut b, 16, &self.queue_drops.unwrap_or(u32::MAX).to_be_bytes());
        put(&mut b, 20, &self.medium_losses.unwrap_or(u32::MAX).to_be_bytes());
        b
    }
}
