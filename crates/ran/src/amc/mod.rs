//! Adaptive modulation and coding: from the channel quality to the number of bytes in a transport block.
//!
//! ```text
//!   CQI 0..15 ──▶ MCS ──▶ LTE: I_TBS ──▶ table (TS 36.213) ──┐
//!                    └──▶ NR: Qm, R ───▶ formula (TS 38.214) ─┴─▶ bytes per (MCS, RBs), per slot of the frame
//! ```
//!
//! [`Amc`] holds the tables of a cell, computed once: a [`TbsTable`] for each kind of slot. Row `mcs` of a table lists
//! the bytes of 0, 1, 2, … RBs. A row never decreases, so the RBs needed for a backlog are found by binary search.

mod config;
pub mod lte;
pub mod nr;
mod pulls;
mod table_36213;
mod tdd;

pub use config::{LteConfig, NrConfig, RadioConfig};
pub use pulls::Pulls;
pub use tdd::{Direction, TddConfig, TddPattern};

use anabranch_element::time::Duration;

/// Why a radio configuration is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AmcError {
    /// No such modulation and coding scheme.
    #[error("MCS {mcs} is out of range: {table} has MCS 0 to {most}")]
    Mcs {
        /// The requested MCS.
        mcs: u8,
        /// The table in use.
        table: &'static str,
        /// The highest MCS of that table.
        most: u8,
    },
    /// No such channel quality.
    #[error("CQI {0} is out of range: 0 to 15")]
    Cqi(u8),
    /// Zero resource blocks.
    #[error("0 RBs carry nothing: give the cell 1 to {most} RBs")]
    ZeroRbs {
        /// The maximum.
        most: u16,
    },
    /// More resource blocks than the table has columns.
    #[error("{rbs} RBs are not in the table: {rat} has 1 to {most}")]
    Rbs {
        /// The requested number.
        rbs: u16,
        /// `LTE` or `NR`.
        rat: &'static str,
        /// The maximum.
        most: u16,
    },
    /// Another value is out of range.
    #[error("radio: {key} = {value}: must be {remedy}")]
    Value {
        /// The configuration key.
        key: &'static str,
        /// The configured value.
        value: String,
        /// The valid values.
        remedy: &'static str,
    },
}

/// Bytes of a transport block for every MCS and number of RBs, in one kind of slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TbsTable {
    name: &'static str,
    rbs: u16,
    max_mcs: u8,
    /// `(rbs + 1)` values per MCS; the first of each row is 0.
    bytes: Vec<u32>,
}

impl TbsTable {
    /// Fills the table from a function of MCS and RBs. A size that exceeds a later size of the same row is lowered to the
    /// later one: LTE has one such size, and the code block rounding of NR produces a few.
    fn new(name: &'static str, mcs_count: u8, rbs: u16, bytes_of: impl Fn(u8, u16) -> u32) -> Self {
        let width = usize::from(rbs) + 1;
        let mut bytes = vec![0; usize::from(mcs_count) * width];
        for (mcs, row) in (0..mcs_count).zip(bytes.chunks_mut(width)) {
            let mut least = u32::MAX;
            for n in (1..=rbs).rev() {
                least = bytes_of(mcs, n).min(least);
                row[usize::from(n)] = least;
            }
        }
        Self { name, rbs, max_mcs: mcs_count.saturating_sub(1), bytes }
    }

    /// A table with one MCS at which each RB carries `bytes` bytes; for examples and tests.
    #[must_use]
    pub fn linear(bytes: u32, rbs: u16) -> Self {
        Self::new("a linear table", 1, rbs, |_, n| u32::from(n).saturating_mul(bytes))
    }

    /// Bytes of 0, 1, 2, … RBs at `mcs`; an MCS beyond the table is treated as the highest.
    #[must_use]
    #[inline]
    pub fn row(&self, mcs: u8) -> &[u32] {
        let width = usize::from(self.rbs) + 1;
        let start = usize::from(mcs.min(self.max_mcs())) * width;
        self.bytes.get(start..start + width).unwrap_or(&[0])
    }

    /// Bytes of a transport block.
    ///
    /// # Errors
    /// The MCS is not in the table, `rbs` is zero, or `rbs` exceeds the RBs of the cell.
    pub fn bytes(&self, mcs: u8, rbs: u16) -> Result<u32, AmcError> {
        if mcs > self.max_mcs() {
            return Err(AmcError::Mcs { mcs, table: self.name, most: self.max_mcs() });
        }
        match self.row(mcs).get(usize::from(rbs)) {
            Some(0) | None if rbs == 0 => Err(AmcError::ZeroRbs { most: self.rbs }),
            Some(bytes) => Ok(*bytes),
            None => Err(AmcError::Rbs { rbs, rat: self.name, most: self.rbs }),
        }
    }

    /// The smallest number of RBs that carry `bytes` at `mcs`; `None` if the whole carrier is too small.
    #[must_use]
    #[inline]
    pub fn rbs_for(&self, mcs: u8, bytes: u32) -> Option<u16> {
        rbs_for(self.row(mcs), bytes)
    }

    /// Whether any entry is larger than zero.
    fn carries_any(&self) -> bool {
        self.bytes.iter().any(|bytes| *bytes > 0)
    }

    /// RBs of the cell.
    #[must_use]
    pub fn rbs(&self) -> u16 {
        self.rbs
    }

    /// The highest MCS.
    #[must_use]
    #[inline]
    pub fn max_mcs(&self) -> u8 {
        self.max_mcs
    }
}

/// The smallest number of RBs of a [`TbsTable::row`] that carry `bytes`.
#[must_use]
pub fn rbs_for(row: &[u32], bytes: u32) -> Option<u16> {
    // A row never decreases, so its last entry shows whether such a number exists.
    if row.last().is_none_or(|most| *most < bytes) {
        return None;
    }
    u16::try_from(row.partition_point(|have| *have < bytes)).ok()
}

/// The constant properties of a carrier: its slots and the sizes of their transport blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Amc {
    slot: Duration,
    rbs: u16,
    rbg: u16,
    cqi_to_mcs: [u8; 16],
    full: TbsTable,
    /// The downlink part of a special slot; `None` if it is too short for data.
    special: Option<TbsTable>,
    tdd: Option<TddPattern>,
}

impl Amc {
    /// Computes the tables.
    ///
    /// # Errors
    /// The first value that is out of range.
    pub fn new(config: &RadioConfig) -> Result<Self, AmcError> {
        config::build(config)
    }

    /// Time from one slot (LTE: TTI) to the next.
    #[must_use]
    pub fn slot(&self) -> Duration {
        self.slot
    }

    /// RBs of the carrier.
    #[must_use]
    pub fn rbs(&self) -> u16 {
        self.rbs
    }

    /// RBs of a resource block group, the unit of allocation; the last group may be smaller.
    #[must_use]
    pub fn rbg(&self) -> u16 {
        self.rbg
    }

    /// The highest MCS.
    #[must_use]
    pub fn max_mcs(&self) -> u8 {
        self.full.max_mcs()
    }

    /// The MCS used at a channel quality.
    ///
    /// # Errors
    /// The CQI is above 15.
    pub fn mcs_of_cqi(&self, cqi: u8) -> Result<u8, AmcError> {
        self.cqi_to_mcs.get(usize::from(cqi)).copied().ok_or(AmcError::Cqi(cqi))
    }

    /// Returns `mcs` if it is in the table.
    ///
    /// # Errors
    /// `mcs` is not in the table.
    pub fn check_mcs(&self, mcs: u8) -> Result<u8, AmcError> {
        if mcs > self.max_mcs() {
            return Err(AmcError::Mcs { mcs, table: self.full.name, most: self.max_mcs() });
        }
        Ok(mcs)
    }

    /// Sizes in a slot used entirely for one direction (or in an FDD slot): the largest ones.
    #[must_use]
    pub fn full(&self) -> &TbsTable {
        &self.full
    }

    /// Number of slots after which the slot directions repeat.
    #[must_use]
    pub fn period_slots(&self) -> u64 {
        self.tdd.as_ref().map_or(1, TddPattern::len)
    }

    /// The times at which the MAC pulls data of a direction.
    #[must_use]
    pub fn pulls(&self, direction: Direction) -> Pulls {
        let Some(tdd) = &self.tdd else { return Pulls::every(self.slot) };
        let most = |table: &TbsTable| table.row(table.max_mcs()).last().copied().unwrap_or(0);
        let special = self.special.as_ref().map_or(0, most);
        Pulls::of_pattern(tdd, self.slot, direction, (special, most(&self.full)))
    }

    /// Transport block sizes in slot number `slot` (from 0) for one direction; `None` if the slot carries no data that way.
    #[must_use]
    #[inline]
    pub fn table(&self, direction: Direction, slot: u64) -> Option<&TbsTable> {
        let Some(tdd) = &self.tdd else { return Some(&self.full) };
        match (tdd.at(slot), direction) {
            (tdd::Slot::Downlink, Direction::Downlink) | (tdd::Slot::Uplink, Direction::Uplink) => {
                Some(&self.full)
            }
            (tdd::Slot::Special, Direction::Downlink) => self.special.as_ref(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named() {
        let amc = Amc::new(&RadioConfig::default()).unwrap();
        let why = |r: Result<u32, AmcError>| r.unwrap_err().to_string();
        assert_eq!(
            why(amc.full().bytes(29, 1)),
            "MCS 29 is out of range: TS 36.213 Table 7.1.7.2.1-1 has MCS 0 to 28"
        );
        assert_eq!(why(amc.full().bytes(28, 0)), "0 RBs carry nothing: give the cell 1 to 25 RBs");
        assert_eq!(
            why(amc.full().bytes(28, 26)),
            "26 RBs are not in the table: TS 36.213 Table 7.1.7.2.1-1 has 1 to 25"
        );
        assert_eq!(amc.mcs_of_cqi(16).unwrap_err().to_string(), "CQI 16 is out of range: 0 to 15");
        assert!(amc.check_mcs(29).is_err());
    }

    #[test]
    fn rbs_for_is_the_inverse_of_bytes() {
        let amc = Amc::new(&RadioConfig::default()).unwrap();
        for mcs in 0..=28 {
            for bytes in (0..2300).step_by(7) {
                match amc.full().rbs_for(mcs, bytes) {
                    Some(n) => {
                        assert!(amc.full().row(mcs)[usize::from(n)] >= bytes);
                        assert!(n == 0 || amc.full().row(mcs)[usize::from(n) - 1] < bytes);
                    }
                    None => assert!(amc.full().row(mcs)[25] < bytes),
                }
            }
        }
    }
}
