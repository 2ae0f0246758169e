//! MAC, TS 38.321: composition of transport blocks, and their loss and retransmission on the air.
//!
//! ```text
//!   TTI k:  RBs ─ control ─ retransmissions due ─▶ scheduler ─▶ RBs per UE ─▶ TBS ─▶ ┌────┬────┬────┬───┐
//!                                                                                    │PDU │PDU │PDU │pad│
//!           ┌── 8 ms later, same RBs ◀── NACK ◀── air (BLER) ◀───────────────────────└────┴────┴────┴───┘
//!           └──────────────▶ air                    └──▶ receiver, `air_delay` after the tick
//! ```
//!
//! [`block`] fills a transport block from the RLC entities of a UE in the order of logical channel priority. [`harq`]
//! decides which blocks are decoded, and stores the others for retransmission.

pub mod block;
pub mod harq;

pub use block::{FIRST_LCID, PER_PDU, TransportBlock};
pub use harq::{Harq, HarqConfig, Outcome};

use serde::{Deserialize, Serialize};

/// RBs without user data in some slots, such as system information and paging.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControlLoad {
    /// Period in slots, at least 1.
    pub every_slots: u32,
    /// Slot within the period, below `every_slots`.
    #[serde(default)]
    pub offset_slots: u32,
    /// RBs occupied in this slot.
    pub rbs: u16,
}

impl ControlLoad {
    /// RBs used in a slot.
    #[must_use]
    pub fn rbs_at(&self, slot: u64) -> u16 {
        let at = slot % u64::from(self.every_slots.max(1));
        if at == u64::from(self.offset_slots) { self.rbs } else { 0 }
    }
}
