//! Detection of queues that can never be served: no block of their UE is ever large enough for a PDU with a byte of data.
//!
//! The MAC pulls a PDU only if its sub-header, its RLC header and a byte of data fit (TS 38.321 §6.1.2, 38.322 §6.2). A
//! slice of one RB at MCS 0 has blocks of 2 bytes: packets wait until the buffer is full. This is not a configuration error,
//! because shares and channels change while a cell runs, but without a warning the cell would stall silently.

use super::Gnb;
use super::ue::{Ue, index};
use crate::amc::{Direction, TbsTable, rbs_for};
use crate::mac::PER_PDU;
use crate::sched::{Capacity, InterAlgorithm};
use std::fmt;

/// A queue that can never be served in the present state of the cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnservableQueue {
    /// Name of the UE.
    pub ue: String,
    /// Direction of the queue.
    pub direction: Direction,
    /// Bytes of the largest block the UE can get, and its RBs.
    pub block_bytes: u32,
    /// See `block_bytes`.
    pub block_rbs: u16,
    /// Bytes of the smallest block that carries any data.
    pub least_bytes: u32,
    /// The change that would help.
    pub remedy: Remedy,
}

/// A change of the configuration that lets data leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remedy {
    /// A larger share of the slice, set with `key`, percent.
    Share {
        /// Name of the slice.
        slice: String,
        /// `share_percent` or `max_percent`.
        key: &'static str,
        /// The smallest sufficient percentage.
        percent: u16,
    },
    /// Fewer RBs for control.
    Control,
    /// A TDD pattern with slots for the direction.
    Pattern,
    /// More RBs, or a channel that is better at times.
    Carrier,
}

impl fmt::Display for UnservableQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ue, direction, block_bytes, block_rbs, least_bytes, remedy } = self;
        let way = match direction {
            Direction::Downlink => "downlink",
            Direction::Uplink => "uplink",
        };
        write!(
            f,
            "ue \"{ue}\": nothing can ever leave its {way} queue: its blocks have at most {block_bytes} bytes ({block_rbs} RBs), and \
             the headers of a PDU and a byte of data are {least_bytes}: "
        )?;
        match remedy {
            Remedy::Share { slice, key, percent } => {
                write!(f, "give slice \"{slice}\" a {key} of {percent} or more")
            }
            Remedy::Control => f.write_str("leave more RBs beside those of control"),
            Remedy::Pattern => f.write_str("give the TDD pattern slots that carry data this way"),
            Remedy::Carrier => {
                f.write_str("give the cell more rbs, or the UE a channel with a higher mcs or cqi")
            }
        }
    }
}

impl Gnb {
    /// The queues that can never be served with the present shares, channels and scheduler; at most one per UE and direction.
    #[must_use]
    pub fn unservable_queues(&self) -> Vec<UnservableQueue> {
        let slots = Direction::ALL.map(|direction| self.kinds_of_slots(direction));
        let both = |ue| {
            Direction::ALL.map(|direction| self.unservable_queue(ue, direction, &slots[index(direction)]))
        };
        self.ues.iter().flat_map(both).flatten().collect()
    }

    /// The distinct slots of a direction: block sizes and RBs for data. A period may have a million slots.
    fn kinds_of_slots(&self, direction: Direction) -> Vec<(&TbsTable, u16)> {
        let mut kinds: Vec<(&TbsTable, u16)> = Vec::new();
        for slot in 0..self.period_slots {
            let Some(table) = self.amc.table(direction, slot) else { continue };
            let rbs = self.data_rbs(direction, slot).unwrap_or(0);
            if !kinds.iter().any(|known| std::ptr::eq(known.0, table) && known.1 == rbs) {
                kinds.push((table, rbs));
            }
        }
        kinds
    }

    fn unservable_queue(
        &self,
        ue: &Ue,
        direction: Direction,
        slots: &[(&TbsTable, u16)],
    ) -> Option<UnservableQueue> {
        let least_bytes = ue.bearers.iter().map(|bearer| bearer.min_pdu(direction)).min()? + PER_PDU;
        let qualities = ue.directions[index(direction)].channel.qualities();
        let mut mcs: Vec<u8> = qualities.filter_map(|quality| quality.mcs(&self.amc)).collect();
        mcs.sort_unstable();
        mcs.dedup();
        // The largest block over all kinds of slots and all qualities.
        let (mut block, mut without_control, mut whole) = ((0, 0), 0, None);
        for (table, rbs) in slots.iter().copied() {
            let rbs = self.most_rbs(ue, direction, rbs);
            block = block.max(largest(table, &mcs, rbs));
            without_control =
                without_control.max(largest(table, &mcs, self.most_rbs(ue, direction, self.amc.rbs())).0);
            let needs = mcs.iter().filter_map(|mcs| rbs_for(table.row(*mcs), least_bytes)).min();
            whole = [whole, needs].into_iter().flatten().min();
        }
        if block.0 >= least_bytes {
            return None;
        }
        let slice = self.slices.get(usize::from(ue.slice));
        let remedy = match (whole, slice) {
            _ if slots.is_empty() => Remedy::Pattern,
            (Some(_), _) if without_control >= least_bytes => Remedy::Control,
            (Some(rbs), Some(slice)) => Remedy::Share {
                slice: slice.name.clone(),
                key: match self.inter[index(direction)].algorithm() {
                    InterAlgorithm::RrmPolicy => "max_percent",
                    _ => "share_percent",
                },
                percent: percent_of(rbs.next_multiple_of(self.amc.rbg().max(1)), self.amc.rbs()),
            },
            _ => Remedy::Carrier,
        };
        Some(UnservableQueue {
            ue: ue.name.clone(),
            direction,
            block_bytes: block.0,
            block_rbs: block.1,
            least_bytes,
            remedy,
        })
    }

    /// The maximum number of RBs out of `rbs` that the slice of a UE can get, whatever other slices have to send.
    fn most_rbs(&self, ue: &Ue, direction: Direction, rbs: u16) -> u16 {
        let Some(slice) = self.slices.get(usize::from(ue.slice)) else { return rbs };
        let mut room = Capacity::new(rbs, self.amc.rbg());
        match self.inter[index(direction)].algorithm() {
            InterAlgorithm::Fixed => room.split(slice.share_of(rbs)).rbs(),
            InterAlgorithm::RrmPolicy => {
                for other in self.slices.iter().filter(|other| other.name != slice.name) {
                    room.split(other.dedicated_of(rbs));
                }
                let all = room.rbs();
                // Over time the slice gets its whole maximum, so in some slots it gets the groups that cover it.
                let (most, min_is_max) = slice.most_of(rbs);
                let mut room = Capacity::new(rbs, self.amc.rbg());
                // Above a minimum, the short group is taken first.
                all.min(if min_is_max { room.take(most) } else { room.take_by_groups(most) })
            }
            _ => rbs,
        }
    }
}

/// Bytes of the largest block on `rbs` RBs over all `mcs`, and `rbs`.
fn largest(table: &TbsTable, mcs: &[u8], rbs: u16) -> (u32, u16) {
    let bytes = |mcs: &u8| table.row(*mcs).get(usize::from(rbs)).copied().unwrap_or(0);
    (mcs.iter().map(bytes).max().unwrap_or(0), rbs)
}

/// The smallest whole percentage that yields `rbs` of `all`.
fn percent_of(rbs: u16, all: u16) -> u16 {
    (u32::from(rbs) * 100).div_ceil(u32::from(all.max(1))).min(100) as u16
}
