//! Transport blocks: RLC PDUs behind MAC sub-headers, in the order of logical channel priority.
//!
//! A logical channel is served completely before the next one (TS 38.321 §5.4.3.1 without prioritised bit rates).

use crate::rlc::{BufferPool, Entity};
use anabranch_element::time::Instant;
use anabranch_wire::mac::{MAC_SUBHEADER_LEN, MacSubPdus, subheader};

/// Overhead in bytes of each RLC PDU.
pub const PER_PDU: u32 = MAC_SUBHEADER_LEN as u32;
/// LCID of the first data radio bearer; 1 to 3 are signalling.
pub const FIRST_LCID: u8 = 4;

/// A transport block. Padding is not stored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TransportBlock {
    /// The sub-PDUs.
    pub bytes: Vec<u8>,
    /// Size in bytes.
    pub tbs_bytes: u32,
    /// RBs of each transmission.
    pub rbs: u16,
    /// Number of transmissions so far.
    pub transmissions: u8,
    /// Whether it was built for the downlink part of a special slot, and therefore fits into one again.
    pub special: bool,
}

impl TransportBlock {
    /// An empty block with a buffer from the pool.
    #[must_use]
    #[inline]
    pub fn new(tbs_bytes: u32, rbs: u16, pool: &mut BufferPool) -> Self {
        Self { bytes: pool.take_block(), tbs_bytes, rbs, transmissions: 0, special: false }
    }

    /// Free bytes.
    #[must_use]
    #[inline]
    pub fn room(&self) -> usize {
        (self.tbs_bytes as usize).saturating_sub(self.bytes.len())
    }

    /// Appends PDUs of one logical channel until nothing is left or nothing fits.
    pub fn fill(&mut self, lcid: u8, entity: &mut Entity, now: Instant, pool: &mut BufferPool) {
        while self.room() > MAC_SUBHEADER_LEN {
            let room = (self.room() - MAC_SUBHEADER_LEN).min(usize::from(u16::MAX));
            let front = |len: usize| subheader(lcid, len as u16);
            if entity.pull_behind(room, now, &mut self.bytes, pool, front) == 0 {
                return;
            }
        }
    }

    /// The LCIDs and PDUs in the block; iteration ends at malformed data.
    #[inline]
    pub fn pdus(&self) -> impl Iterator<Item = (u8, &[u8])> {
        MacSubPdus::new(&self.bytes).map_while(Result::ok)
    }
}
