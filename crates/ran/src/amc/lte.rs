//! LTE: MCS to transport block size by table, TS 36.213 §7.1.7.
//!
//! ```text
//!   MCS    0 … 9 10 │ 11 … 16 17 │ 18 … 28
//!   Qm         2    │      4     │    6
//!   I_TBS  0 … 9  9 │ 10 … 15 15 │ 16 … 26      Table 7.1.7.1-1
//! ```

use super::table_36213::TBS_BITS;

/// Maximum number of resource blocks: the columns of Table 7.1.7.2.1-1.
pub const MAX_RBS: u16 = 110;
/// The highest MCS with a transport block size of its own; MCS 29 to 31 repeat the previous size.
pub const MAX_MCS: u8 = 28;
/// MCS for CQI 0 to 15, as in OpenAirInterface.
pub const CQI_TO_MCS: [u8; 16] = [0, 0, 1, 2, 4, 6, 8, 11, 13, 16, 18, 20, 23, 25, 27, 28];

/// I_TBS, the row of the size table, Table 7.1.7.1-1.
const fn i_tbs(mcs: u8) -> u8 {
    match mcs {
        0..=9 => mcs,
        10..=16 => mcs - 1,
        17 => 15,
        18..=MAX_MCS => mcs - 2,
        _ => MAX_MCS - 2,
    }
}

/// Size in bits of a transport block on `rbs` RBs (1 to 110); 0 outside the table.
#[must_use]
pub fn tbs_bits(mcs: u8, rbs: u16) -> u32 {
    let row = &TBS_BITS[usize::from(i_tbs(mcs)) % TBS_BITS.len()];
    usize::from(rbs).checked_sub(1).and_then(|i| row.get(i)).copied().unwrap_or(0)
}

/// RBs per resource block group, Table 7.1.6.1-1.
#[must_use]
pub const fn rbg(rbs: u16) -> u16 {
    match rbs {
        0..=10 => 1,
        11..=26 => 2,
        27..=63 => 3,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_the_standard() {
        assert_eq!([0, 9, 10, 11, 16, 17, 18, 28].map(i_tbs), [0, 9, 9, 10, 15, 15, 16, 26]);
        assert_eq!(tbs_bits(0, 1), 16);
        assert_eq!(tbs_bits(28, 100), 75_376, "the well-known 75 Mbit/s of 20 MHz");
        // RLC §VI: 25 RBs carry 2289 bytes plus a MAC header of 3, 18 RBs carry 1692, 17 RBs carry 1569 plus 3.
        assert_eq!([25, 18, 17].map(|n| tbs_bits(28, n) / 8), [2292, 1692, 1572]);
        assert_eq!((tbs_bits(28, 0), tbs_bits(28, 111)), (0, 0));
        assert_eq!([6, 15, 25, 50, 75, 100].map(rbg), [1, 2, 2, 3, 4, 4]);
    }

    #[test]
    fn sizes_are_whole_bytes_and_never_fall() {
        for rbs in 1..=MAX_RBS {
            for mcs in 0..=MAX_MCS {
                assert_eq!(tbs_bits(mcs, rbs) % 8, 0);
                let odd_one = |mcs| i_tbs(mcs) == 6 && rbs <= 2;
                assert!(odd_one(mcs) || tbs_bits(mcs, rbs) >= tbs_bits(mcs, rbs - 1));
                assert!(mcs == 0 || odd_one(mcs - 1) || tbs_bits(mcs, rbs) >= tbs_bits(mcs - 1, rbs));
            }
        }
    }
}
