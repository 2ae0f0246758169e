//! What no limiter and no scheduler can go below or beyond: the least wait of a packet, and the most bytes of a cell.

use super::Gnb;
use super::ue::index;
use crate::amc::Direction;
use crate::mac::PER_PDU;
use anabranch_element::time::{Duration, Instant};

/// Slots after which a packet that has not left is given up.
const MOST_SLOTS: u64 = 100_000;
/// Bytes of the least RLC header.
const RLC_HEADER: u32 = 1;

impl Gnb {
    /// The least time from `from` until the MAC has all of a packet of `bytes`: nothing is before it, every slot gives its UE all RBs
    /// for data, and of what a block has room for only its sub-header and the least RLC header are taken. `None` if there
    /// is no such UE, or it does not leave within 100,000 slots.
    pub fn least_wait(
        &mut self,
        ue: u32,
        direction: Direction,
        from: Instant,
        bytes: u32,
    ) -> Option<Duration> {
        let first = from.as_nanos().div_ceil(self.slot_ns);
        let mut left = bytes.max(1);
        for slot in first..first.saturating_add(MOST_SLOTS) {
            let block = self.block_bytes(ue, direction, slot)?;
            left = left.saturating_sub(block.saturating_sub(PER_PDU + RLC_HEADER));
            if left == 0 {
                return Some(self.time_of(slot).saturating_since(from));
            }
        }
        None
    }

    /// Bytes of the blocks of the slots from `from` until `until`, if each goes to the UE for which it is largest.
    pub fn capacity_bytes(&mut self, direction: Direction, from: Instant, until: Instant) -> u64 {
        let slots = from.as_nanos().div_ceil(self.slot_ns)..until.as_nanos().div_ceil(self.slot_ns);
        let ues = self.ues.len() as u32;
        let mut sum = 0;
        for slot in slots {
            if self.amc.table(direction, slot).is_none() {
                continue;
            }
            let largest = (0..ues).filter_map(|ue| self.block_bytes(ue, direction, slot)).max();
            sum += u64::from(largest.unwrap_or(0));
        }
        sum
    }

    /// Bytes of a slot's block if a UE has all RBs for data.
    fn block_bytes(&mut self, ue: u32, direction: Direction, slot: u64) -> Option<u32> {
        let rbs = self.data_rbs(direction, slot).unwrap_or(0);
        let at = self.time_of(slot);
        let Self { ues, amc, .. } = self;
        let side = ues.get_mut(ue as usize)?.sides.get_mut(index(direction))?;
        let Some(table) = amc.table(direction, slot) else { return Some(0) };
        let Some(mcs) = side.channel.quality(at).mcs(amc) else { return Some(0) };
        Some(table.row(mcs).get(usize::from(rbs)).copied().unwrap_or(0))
    }
}
