//! Theoretical limits of a cell: the minimum delay of a packet, and the maximum number of bytes carried.

use super::Gnb;
use super::ue::index;
use crate::amc::Direction;
use crate::mac::PER_PDU;
use anabranch_element::time::{Duration, Instant};

/// Number of slots after which the search for a packet's departure ends.
const MAX_SLOTS: u64 = 100_000;
/// Bytes of the smallest RLC header.
const RLC_HEADER: u32 = 1;

impl Gnb {
    /// The minimum time from `from` until the MAC has taken all of a packet of `bytes` bytes. The queue is empty, the UE gets
    /// all RBs for data in every slot, and each block loses only its sub-header and the smallest RLC header. `None` if there is
    /// no such UE or the packet does not leave within 100,000 slots.
    pub fn min_wait(&mut self, ue: u32, direction: Direction, from: Instant, bytes: u32) -> Option<Duration> {
        let first = from.as_nanos().div_ceil(self.slot_ns);
        let mut left = bytes.max(1);
        for slot in first..first.saturating_add(MAX_SLOTS) {
            let block = self.block_bytes(ue, direction, slot)?;
            left = left.saturating_sub(block.saturating_sub(PER_PDU + RLC_HEADER));
            if left == 0 {
                return Some(self.time_of(slot).saturating_since(from));
            }
        }
        None
    }

    /// Bytes of all blocks in the slots from `from` until `until`, each given to the UE with the largest block.
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

    /// Bytes of a slot's block if one UE has all RBs for data.
    fn block_bytes(&mut self, ue: u32, direction: Direction, slot: u64) -> Option<u32> {
        let rbs = self.data_rbs(direction, slot).unwrap_or(0);
        let at = self.time_of(slot);
        let Self { ues, amc, .. } = self;
        let state = ues.get_mut(ue as usize)?.directions.get_mut(index(direction))?;
        let Some(table) = amc.table(direction, slot) else { return Some(0) };
        let Some(mcs) = state.channel.quality(at).mcs(amc) else { return Some(0) };
        Some(table.row(mcs).get(usize::from(rbs)).copied().unwrap_or(0))
    }
}
