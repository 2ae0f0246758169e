//! Events and counters of a cell.

use crate::amc::Direction;
use crate::pdcp::PdcpRxStats;
use crate::queue::BufferStats;
use crate::rlc::RlcStats;
use crate::sdap::DrbId;
use anabranch_element::time::{Duration, Instant};
use serde::Serialize;

/// An event of a cell.
#[derive(Debug, Clone, PartialEq)]
pub enum GnbEvent {
    /// A packet was delivered.
    Packet(PacketTimes),
    /// A slot of one direction has passed.
    Slot(SlotStats),
    /// A UE with a backlog in a slot.
    Ue(UeSlotStats),
    /// A command was rejected and has changed nothing.
    Refused(super::GnbError),
}

/// Time stamps of a delivered packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketTimes {
    /// Direction of the packet.
    pub direction: Direction,
    /// Index of the UE in the cell.
    pub ue: u32,
    /// Identity of the bearer.
    pub drb: DrbId,
    /// The QoS flow.
    pub qfi: u8,
    /// Size of the packet in bytes.
    pub bytes: u32,
    /// When it entered SDAP.
    pub arrived: Instant,
    /// When SDAP passed it to RLC.
    pub forwarded: Instant,
    /// When the MAC took its first byte.
    pub first_pull: Instant,
    /// When the MAC first took its last byte.
    pub last_pull: Instant,
    /// When its first byte could have reached the receiver at the earliest.
    pub first_received: Instant,
    /// When it was delivered, complete and in order.
    pub delivered: Instant,
}

impl PacketTimes {
    /// Waiting time in SDAP.
    #[must_use]
    pub fn sdap_wait(&self) -> Duration {
        self.forwarded - self.arrived
    }

    /// Waiting time in RLC until the last byte was taken.
    #[must_use]
    pub fn rlc_wait(&self) -> Duration {
        self.last_pull - self.forwarded
    }

    /// Waiting time in SDAP and RLC, the delay measured in RLC §V-G: without the air and HARQ.
    #[must_use]
    pub fn queue_wait(&self) -> Duration {
        self.last_pull - self.arrived
    }

    /// Waiting time at the receiver for the rest of the packet and for the packets before it.
    #[must_use]
    pub fn reassembly_wait(&self) -> Duration {
        self.delivered - self.first_received
    }

    /// Time from entry to delivery.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.delivered - self.arrived
    }
}

/// Statistics of one slot of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotStats {
    /// Downlink or uplink.
    pub direction: Direction,
    /// Start of the slot.
    pub at: Instant,
    /// RBs available for new data and retransmissions.
    pub rbs: u16,
    /// RBs granted for new data.
    pub used_rbs: u16,
    /// RBs used for retransmissions.
    pub retx_rbs: u16,
    /// RBs not used.
    pub unused_rbs: u16,
    /// SDU bytes in the RLC buffers after the slot.
    pub buffer_bytes: u64,
}

/// Statistics of one UE in one slot of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UeSlotStats {
    /// Downlink or uplink.
    pub direction: Direction,
    /// Start of the slot.
    pub at: Instant,
    /// Index of the UE in the cell.
    pub ue: u32,
    /// MCS index of the grant.
    pub mcs: u8,
    /// RBs granted.
    pub rbs: u16,
    /// Size of the transport block in bytes.
    pub tbs_bytes: u32,
    /// Padding in the transport block, bytes.
    pub padding_bytes: u32,
    /// SDU bytes in the UE's RLC buffers after the slot.
    pub buffer_bytes: u64,
    /// Packets whose last byte left RLC in this slot.
    pub sent_sdus: u32,
    /// Sum of these packets' waiting times in RLC, nanoseconds.
    pub rlc_wait_ns: u64,
    /// Balance of the UE's slice (quantum or lag), RBs; positive if the slice is owed service.
    pub balance_rbs: i32,
}

impl UeSlotStats {
    pub(super) fn none(direction: Direction, at: Instant) -> Self {
        Self {
            direction,
            at,
            ue: 0,
            mcs: 0,
            rbs: 0,
            tbs_bytes: 0,
            padding_bytes: 0,
            buffer_bytes: 0,
            sent_sdus: 0,
            rlc_wait_ns: 0,
            balance_rbs: 0,
        }
    }
}

/// Counters of one direction of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct LinkStats {
    /// Slots that carried this direction.
    pub slots: u64,
    /// RBs available for new data and retransmissions, summed over slots.
    pub rbs: u64,
    /// RBs granted for new data.
    pub used_rbs: u64,
    /// RBs used for retransmissions.
    pub retx_rbs: u64,
    /// RBs not used.
    pub unused_rbs: u64,
    /// Transport blocks, without retransmissions.
    pub blocks: u64,
    /// Size of these blocks, bytes.
    pub block_bytes: u64,
    /// Padding in these blocks, bytes.
    pub padding_bytes: u64,
    /// Transmissions that were not decoded.
    pub nacks: u64,
    /// Blocks that HARQ gave up.
    pub lost_blocks: u64,
    /// Packets delivered.
    pub delivered_packets: u64,
    /// Bytes of the delivered packets.
    pub delivered_bytes: u64,
    /// Packets for an unknown UE, malformed packets, and packets that no QoS flow accepts.
    pub unroutable_packets: u64,
    /// Slots skipped because the clock ran ahead of them.
    pub missed_slots: u64,
}

impl LinkStats {
    /// Share of the RBs that carried data, retransmissions included, 0 to 1.
    #[must_use]
    #[cfg(test)]
    pub fn utilisation(&self) -> f64 {
        if self.rbs == 0 { 0.0 } else { (self.used_rbs + self.retx_rbs) as f64 / self.rbs as f64 }
    }
}

/// Counters of one direction of a UE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct UeLinkStats {
    /// RBs granted for new data.
    pub used_rbs: u64,
    /// Size of the UE's transport blocks, without retransmissions, bytes.
    pub block_bytes: u64,
    /// Padding in these blocks, bytes.
    pub padding_bytes: u64,
}

/// Counters of one direction of a bearer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BearerStats {
    /// Identity of the bearer.
    pub drb: DrbId,
    /// Packets delivered.
    pub delivered_packets: u64,
    /// Bytes of the delivered packets.
    pub delivered_bytes: u64,
    /// Counters of the sender's RLC buffer.
    pub buffer: BufferStats,
    /// SDU bytes in the sender's RLC buffer now.
    pub buffer_bytes: u64,
    /// Counters of the sender's RLC entity.
    pub sender: RlcStats,
    /// Counters of the receiver's RLC entity.
    pub receiver: RlcStats,
    /// Counters of the receiver's PDCP entity, among others packets given up or received too late.
    pub order: PdcpRxStats,
}
