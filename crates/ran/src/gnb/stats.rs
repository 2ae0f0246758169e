//! What a cell tells: events as they happen, counters since the start.

use crate::amc::Direction;
use crate::pdcp::PdcpRxStats;
use crate::queue::BufferStats;
use crate::rlc::RlcStats;
use crate::sdap::DrbId;
use anabranch_element::time::{Duration, Instant};
use serde::Serialize;

/// Something worth telling.
#[derive(Debug, Clone, PartialEq)]
pub enum GnbEvent {
    /// A packet was delivered.
    Packet(PacketTimes),
    /// A slot passed in one direction.
    Slot(SlotStats),
    /// A UE with a backlog in a slot.
    Ue(UeSlotStats),
    /// A command could not be followed, and changed nothing.
    Refused(super::GnbError),
}

/// When a packet was where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketTimes {
    /// Which way.
    pub direction: Direction,
    /// Number of the UE.
    pub ue: u32,
    /// The bearer.
    pub drb: DrbId,
    /// The QoS flow.
    pub qfi: u8,
    /// Its bytes.
    pub bytes: u32,
    /// When it entered SDAP.
    pub arrived: Instant,
    /// When SDAP let it down to RLC.
    pub forwarded: Instant,
    /// When its first byte went to the MAC.
    pub first_pull: Instant,
    /// When its last byte went to the MAC, for the first time.
    pub last_pull: Instant,
    /// When its first byte could be at the receiver.
    pub first_received: Instant,
    /// When it was handed up, whole and in order.
    pub delivered: Instant,
}

impl PacketTimes {
    /// Wait in SDAP.
    #[must_use]
    pub fn sdap_wait(&self) -> Duration {
        self.forwarded - self.arrived
    }

    /// Wait in RLC, until the last byte is gone.
    #[must_use]
    pub fn rlc_wait(&self) -> Duration {
        self.last_pull - self.forwarded
    }

    /// The sum of both: what RLC §V-G measures, without the air and HARQ.
    #[must_use]
    pub fn queue_wait(&self) -> Duration {
        self.last_pull - self.arrived
    }

    /// Wait at the receiver for the rest of the packet, and for those before it.
    #[must_use]
    pub fn reassembly_wait(&self) -> Duration {
        self.delivered - self.first_received
    }

    /// From entry to delivery.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.delivered - self.arrived
    }
}

/// One slot of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotStats {
    /// Which way.
    pub direction: Direction,
    /// The tick.
    pub at: Instant,
    /// RBs for new data and retransmissions.
    pub rbs: u16,
    /// RBs granted for new data.
    pub used_rbs: u16,
    /// RBs of retransmissions.
    pub retx_rbs: u16,
    /// RBs nobody got.
    pub unused_rbs: u16,
    /// SDU bytes in the RLC buffers after the slot.
    pub buffer_bytes: u64,
}

/// One UE in one slot of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UeSlotStats {
    /// Which way.
    pub direction: Direction,
    /// The tick.
    pub at: Instant,
    /// Number of the UE.
    pub ue: u32,
    /// Its MCS.
    pub mcs: u8,
    /// RBs granted.
    pub rbs: u16,
    /// Bytes of the transport block.
    pub tbs_bytes: u32,
    /// Bytes of it that were padding.
    pub padding_bytes: u32,
    /// SDU bytes in its RLC buffers after the slot.
    pub buffer_bytes: u64,
    /// Packets of which the last byte left RLC in this slot.
    pub sent_sdus: u32,
    /// The sum of their waits in RLC, nanoseconds.
    pub rlc_wait_ns: u64,
    /// What its slice is owed, RBs: quantum or lag.
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
    /// Slots of this direction.
    pub slots: u64,
    /// RBs for new data and retransmissions, Σ over slots.
    pub rbs: u64,
    /// RBs granted for new data.
    pub used_rbs: u64,
    /// RBs of retransmissions.
    pub retx_rbs: u64,
    /// RBs nobody got.
    pub unused_rbs: u64,
    /// Transport blocks, the first time each.
    pub blocks: u64,
    /// Bytes they had room for.
    pub block_bytes: u64,
    /// Bytes of padding in them.
    pub padding_bytes: u64,
    /// Transmissions that were not decoded.
    pub nacks: u64,
    /// Blocks given up.
    pub lost_blocks: u64,
    /// Packets handed up.
    pub delivered_packets: u64,
    /// Their bytes.
    pub delivered_bytes: u64,
    /// Packets for nobody, that could not be read, or that no QoS flow takes.
    pub unroutable_packets: u64,
    /// Slots that were left out because the clock ran ahead of them.
    pub missed_slots: u64,
}

impl LinkStats {
    /// Share of the RBs that carried data, 0 to 1; retransmissions count.
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
    /// Bytes that its transport blocks had room for, the first time each.
    pub block_bytes: u64,
    /// Bytes of padding in them.
    pub padding_bytes: u64,
}

/// Counters of one direction of a bearer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BearerStats {
    /// The bearer.
    pub drb: DrbId,
    /// Packets handed up.
    pub delivered_packets: u64,
    /// Their bytes.
    pub delivered_bytes: u64,
    /// The sender's RLC buffer.
    pub buffer: BufferStats,
    /// SDU bytes in it now.
    pub buffer_bytes: u64,
    /// The sender's RLC.
    pub sender: RlcStats,
    /// The receiver's RLC.
    pub receiver: RlcStats,
    /// The receiver's PDCP: among others what it gave up or came too late.
    pub order: PdcpRxStats,
}
