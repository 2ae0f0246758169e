//! MAC, TS 38.321: what a transport block is made of, and what the air does to it.
//!
//! ```text
//!   TTI k:  RBs ─ control ─ retransmissions due ─▶ scheduler ─▶ RBs per UE ─▶ TBS ─▶ ┌────┬────┬────┬───┐
//!                                                                                    │PDU │PDU │PDU │pad│
//!           ┌── 8 ms later, same RBs ◀── NACK ◀── air (BLER) ◀───────────────────────└────┴────┴────┴───┘
//!           └──────────────▶ air                    └──▶ receiver, `air_delay` after the tick
//! ```
//!
//! [`block`] fills a transport block from the RLC entities of a UE, by priority of the logical channel;
//! [`harq`] decides which blocks arrive, and keeps those that are sent again.

pub mod block;
pub mod harq;

pub use block::{FIRST_LCID, PER_PDU, TransportBlock};
pub use harq::{Harq, HarqConfig, Outcome};

use serde::{Deserialize, Serialize};

/// RBs that carry no user data in some slots: system information, paging.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControlLoad {
    /// Once in so many slots, at least 1.
    pub every_slots: u32,
    /// In which of them, below `every_slots`.
    #[serde(default)]
    pub offset_slots: u32,
    /// So many RBs.
    pub rbs: u16,
}

impl ControlLoad {
    /// RBs it takes in a slot.
    #[must_use]
    pub fn rbs_at(&self, slot: u64) -> u16 {
        let at = slot % u64::from(self.every_slots.max(1));
        if at == u64::from(self.offset_slots) { self.rbs } else { 0 }
    }
}
