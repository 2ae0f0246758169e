//! The direction of each slot: FDD, or a TDD pattern, TS 38.213 §11.1.
//!
//! ```text
//!   D D D S U  D D D S U …      pattern = "DDDSU": tdd-UL-DL-ConfigurationCommon with 3 downlink slots,
//!         │                     1 uplink slot, and the symbols of S: downlink first, then a gap, then uplink
//!         └─ ▇▇▇▇▇▇▇▇▇▇··▁▁
//! ```
//!
//! The uplink symbols of a special slot carry only sounding and random access in this model, no data.

use super::AmcError;
use anabranch_element::time::Duration;
use serde::{Deserialize, Serialize};

/// Direction of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the gNB to the UE.
    Downlink,
    /// From the UE to the gNB.
    Uplink,
}

impl Direction {
    /// Both directions, downlink first.
    pub const ALL: [Self; 2] = [Self::Downlink, Self::Uplink];
}

/// Configuration of a TDD pattern.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TddConfig {
    /// `D`, `S` or `U` for each slot, repeated. All D come first, then at most one S, then all U.
    pub pattern: String,
    /// Downlink symbols of the special slot, 0 to 14.
    #[serde(default = "default_downlink_symbols")]
    pub downlink_symbols: u8,
    /// Uplink symbols of the special slot, 0 to 14 minus `downlink_symbols`.
    #[serde(default = "default_uplink_symbols")]
    pub uplink_symbols: u8,
}

const fn default_downlink_symbols() -> u8 {
    10
}
const fn default_uplink_symbols() -> u8 {
    2
}

/// The direction of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    Downlink,
    Special,
    Uplink,
}

/// A validated pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TddPattern {
    slots: Vec<Slot>,
}

/// Periods that can be signalled, in microseconds.
const PERIODS_US: [u128; 10] = [500, 625, 1000, 1250, 2000, 2500, 3000, 4000, 5000, 10_000];

impl TddPattern {
    /// Validates a pattern for slots of duration `slot`.
    ///
    /// # Errors
    /// An invalid letter, order, period or number of symbols.
    pub fn new(config: &TddConfig, slot: Duration) -> Result<Self, AmcError> {
        let wrong =
            |key, value: &dyn ToString, remedy| AmcError::Value { key, value: value.to_string(), remedy };
        let of_letter = |letter| match letter {
            'D' => Some(Slot::Downlink),
            'S' => Some(Slot::Special),
            'U' => Some(Slot::Uplink),
            _ => None,
        };
        let pattern = &config.pattern;
        let slots: Option<Vec<Slot>> = pattern.chars().take(1000).map(of_letter).collect();
        let slots =
            slots.ok_or_else(|| wrong("pattern", pattern, "letters D, S and U, such as \"DDDSU\""))?;
        if !slots.is_sorted_by_key(|s| *s as u8) || slots.iter().filter(|s| **s == Slot::Special).count() > 1
        {
            return Err(wrong("pattern", pattern, "downlink slots, at most one S, uplink slots"));
        }
        if !PERIODS_US.contains(&(slot * slots.len() as u32).as_micros()) {
            let remedy = "0.5, 0.625, 1, 1.25, 2, 2.5, 3, 4, 5 or 10 ms long (TS 38.331)";
            return Err(wrong("pattern", pattern, remedy));
        }
        let symbols = u16::from(config.downlink_symbols) + u16::from(config.uplink_symbols);
        if symbols > 14 {
            return Err(wrong("downlink_symbols + uplink_symbols", &symbols, "at most 14"));
        }
        Ok(Self { slots })
    }

    /// Number of slots.
    pub(super) fn len(&self) -> u64 {
        self.slots.len().max(1) as u64
    }

    pub(super) fn at(&self, slot: u64) -> Slot {
        let index = (slot % self.slots.len().max(1) as u64) as usize;
        self.slots.get(index).copied().unwrap_or(Slot::Downlink)
    }
}
