//! NR: MCS to transport block size by formula, TS 38.214 §5.1.3.
//!
//! ```text
//!   N'_RE  = 12 · symbols − DM-RS − overhead          REs of one RB in the slot, at most 156 of them
//!   N_info = N_RE · R · Qm · layers
//!      ≤ 3824: quantised down, then the next size of Table 5.1.3.2-1
//!      > 3824: quantised to the nearest, then made to fill code blocks of one size
//! ```
//!
//! Code rates are stored as R · 2048: 682.5/1024 becomes an integer, and the formula is computed without rounding.

use serde::{Deserialize, Serialize};

/// Maximum number of resource blocks of a carrier (TS 38.211 §4.4.2).
pub const MAX_RBS: u16 = 275;
/// Upper limit of the REs counted per RB.
const MAX_RES: u32 = 156;

/// The MCS and CQI tables a UE is configured with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum McsTable {
    /// Up to 64QAM: Tables 5.1.3.1-1 and 5.2.2.1-2.
    #[default]
    Qam64,
    /// Up to 256QAM: Tables 5.1.3.1-2 and 5.2.2.1-3.
    Qam256,
    /// Low spectral efficiency: Tables 5.1.3.1-3 and 5.2.2.1-4.
    Qam64LowSe,
}

/// Modulation order and R · 2048.
type Scheme = (u8, u32);

const fn r(qm: u8, rate_1024: u32) -> Scheme {
    (qm, 2 * rate_1024)
}

#[rustfmt::skip]
const MCS_64: [Scheme; 29] = [
    r(2, 120), r(2, 157), r(2, 193), r(2, 251), r(2, 308), r(2, 379), r(2, 449), r(2, 526), r(2, 602), r(2, 679),
    r(4, 340), r(4, 378), r(4, 434), r(4, 490), r(4, 553), r(4, 616), r(4, 658),
    r(6, 438), r(6, 466), r(6, 517), r(6, 567), r(6, 616), r(6, 666), r(6, 719), r(6, 772), r(6, 822), r(6, 873),
    r(6, 910), r(6, 948),
];
#[rustfmt::skip]
const MCS_256: [Scheme; 28] = [
    r(2, 120), r(2, 193), r(2, 308), r(2, 449), r(2, 602),
    r(4, 378), r(4, 434), r(4, 490), r(4, 553), r(4, 616), r(4, 658),
    r(6, 466), r(6, 517), r(6, 567), r(6, 616), r(6, 666), r(6, 719), r(6, 772), r(6, 822), r(6, 873),
    (8, 1365), r(8, 711), r(8, 754), r(8, 797), r(8, 841), r(8, 885), (8, 1833), r(8, 948),
];
#[rustfmt::skip]
const MCS_64_LOW_SE: [Scheme; 29] = [
    r(2, 30), r(2, 40), r(2, 50), r(2, 64), r(2, 78), r(2, 99), r(2, 120), r(2, 157), r(2, 193), r(2, 251),
    r(2, 308), r(2, 379), r(2, 449), r(2, 526), r(2, 602),
    r(4, 340), r(4, 378), r(4, 434), r(4, 490), r(4, 553), r(4, 616),
    r(6, 438), r(6, 466), r(6, 517), r(6, 567), r(6, 616), r(6, 666), r(6, 719), r(6, 772),
];
/// CQI 1 to 15; CQI 0 means out of range.
#[rustfmt::skip]
const CQI_64: [Scheme; 15] = [
    r(2, 78), r(2, 120), r(2, 193), r(2, 308), r(2, 449), r(2, 602), r(4, 378), r(4, 490), r(4, 616),
    r(6, 466), r(6, 567), r(6, 666), r(6, 772), r(6, 873), r(6, 948),
];
#[rustfmt::skip]
const CQI_256: [Scheme; 15] = [
    r(2, 78), r(2, 193), r(2, 449), r(4, 378), r(4, 490), r(4, 616), r(6, 466), r(6, 567), r(6, 666),
    r(6, 772), r(6, 873), r(8, 711), r(8, 797), r(8, 885), r(8, 948),
];
#[rustfmt::skip]
const CQI_64_LOW_SE: [Scheme; 15] = [
    r(2, 30), r(2, 50), r(2, 78), r(2, 120), r(2, 193), r(2, 308), r(2, 449), r(2, 602), r(4, 378),
    r(4, 490), r(4, 616), r(6, 466), r(6, 567), r(6, 666), r(6, 772),
];
/// Table 5.1.3.2-1.
#[rustfmt::skip]
const SMALL_TBS_BITS: [u32; 93] = [
    24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128, 136, 144, 152, 160, 168, 176, 184, 192, 208, 224,
    240, 256, 272, 288, 304, 320, 336, 352, 368, 384, 408, 432, 456, 480, 504, 528, 552, 576, 608, 640, 672, 704,
    736, 768, 808, 848, 888, 928, 984, 1032, 1064, 1128, 1160, 1192, 1224, 1256, 1288, 1320, 1352, 1416, 1480,
    1544, 1608, 1672, 1736, 1800, 1864, 1928, 2024, 2088, 2152, 2216, 2280, 2408, 2472, 2536, 2600, 2664, 2728,
    2792, 2856, 2976, 3104, 3240, 3368, 3496, 3624, 3752, 3824,
];

impl McsTable {
    fn schemes(self) -> (&'static [Scheme], &'static [Scheme; 15]) {
        match self {
            Self::Qam64 => (&MCS_64, &CQI_64),
            Self::Qam256 => (&MCS_256, &CQI_256),
            Self::Qam64LowSe => (&MCS_64_LOW_SE, &CQI_64_LOW_SE),
        }
    }

    /// The clause that defines the MCS table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Qam64 => "TS 38.214 Table 5.1.3.1-1",
            Self::Qam256 => "TS 38.214 Table 5.1.3.1-2",
            Self::Qam64LowSe => "TS 38.214 Table 5.1.3.1-3",
        }
    }

    /// Number of entries that specify a code rate.
    #[must_use]
    pub fn mcs_count(self) -> u8 {
        self.schemes().0.len() as u8
    }

    /// For CQI 0 to 15, the highest MCS whose efficiency does not exceed that of the CQI; 0 for CQI 0.
    #[must_use]
    pub fn cqi_to_mcs(self) -> [u8; 16] {
        let (mcs, cqi) = self.schemes();
        let bits = |(qm, rate): &Scheme| u32::from(*qm) * rate;
        let mut map = [0; 16];
        for (to, quality) in map[1..].iter_mut().zip(cqi) {
            let fits = mcs.iter().rposition(|scheme| bits(scheme) <= bits(quality));
            *to = fits.unwrap_or(0) as u8;
        }
        map
    }
}

/// The part of a slot that carries data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Symbols of the shared channel, 1 to 14.
    pub symbols: u8,
    /// REs per RB used for DM-RS within these symbols.
    pub dmrs_res: u8,
    /// `xOverhead` per RB: 0, 6, 12 or 18 REs.
    pub overhead_res: u8,
    /// Layers, 1 to 4.
    pub layers: u8,
}

/// Size in bits of a transport block, §5.1.3.2; 0 if nothing fits.
#[must_use]
pub fn tbs_bits(table: McsTable, mcs: u8, grid: Grid, rbs: u16) -> u32 {
    let Some((qm, rate)) = table.schemes().0.get(usize::from(mcs)) else { return 0 };
    let per_rb = (12 * u32::from(grid.symbols))
        .saturating_sub(u32::from(grid.dmrs_res) + u32::from(grid.overhead_res))
        .min(MAX_RES);
    let res = u64::from(per_rb) * u64::from(rbs);
    // N_info · 2048.
    let info = res * u64::from(*rate) * u64::from(*qm) * u64::from(grid.layers);
    let bits = quantised(info, *rate);
    u32::try_from(bits).unwrap_or(u32::MAX)
}

const ONE: u64 = 2048;

fn quantised(info: u64, rate: u32) -> u64 {
    if info == 0 {
        return 0;
    }
    if info <= 3824 * ONE {
        let n = (info / ONE).max(1).ilog2().saturating_sub(6).max(3);
        let down = (((info / ONE) >> n) << n).max(24);
        let at = SMALL_TBS_BITS.partition_point(|bits| u64::from(*bits) < down);
        return u64::from(SMALL_TBS_BITS[at.min(SMALL_TBS_BITS.len() - 1)]);
    }
    let above = info - 24 * ONE;
    let n = (above / ONE).ilog2() - 5;
    // Round to nearest, halves up.
    let near = (((above + (ONE << n) / 2) / (ONE << n)) << n).max(3840) + 24;
    let blocks = if 4 * u64::from(rate) <= ONE {
        near.div_ceil(3816)
    } else if near > 8424 + 24 {
        near.div_ceil(8424)
    } else {
        1
    };
    8 * blocks * near.div_ceil(8 * blocks) - 24
}

/// RBs of a resource block group, Table 5.1.2.2.1-1.
#[must_use]
pub const fn rbg(rbs: u16, second_configuration: bool) -> u16 {
    match (rbs, second_configuration) {
        (0..=36, false) => 2,
        (0..=36, true) | (37..=72, false) => 4,
        (37..=72, true) | (73..=144, false) => 8,
        _ => 16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The maximum number of REs in a slot.
    const ALL: Grid = Grid { symbols: 14, dmrs_res: 12, overhead_res: 0, layers: 1 };

    #[test]
    fn worked_by_hand() {
        // 156 REs · 2 · 120/1024 = 36.6 → 32 → 32.
        assert_eq!(tbs_bits(McsTable::Qam64, 0, ALL, 1), 32);
        // 4·156·2·120/1024 = 146.25 → 144 → 144; 3.66 bits would still give 24.
        assert_eq!(tbs_bits(McsTable::Qam64, 0, ALL, 4), 144);
        let little = Grid { symbols: 2, dmrs_res: 12, ..ALL };
        assert_eq!(tbs_bits(McsTable::Qam64LowSe, 0, little, 1), 24);
        // 273·156·8·948/1024·4 = 1261669.5 → 39·2^15 → 152 code blocks: the largest block of 100 MHz.
        assert_eq!(tbs_bits(McsTable::Qam256, 27, Grid { layers: 4, ..ALL }, 273), 1_277_992);
        // A low rate uses code blocks of 3816 bits: 275·156·2·30/1024 = 2513.7 → 64·39 = 2496 → 2536 by table,
        // and with 4 layers 10054.7 → 256·39 = 9984 → 3 blocks → 8·3·417 − 24.
        assert_eq!(tbs_bits(McsTable::Qam64LowSe, 0, ALL, 275), 2536);
        assert_eq!(tbs_bits(McsTable::Qam64LowSe, 0, Grid { layers: 4, ..ALL }, 275), 9984);
        assert_eq!(tbs_bits(McsTable::Qam64, 29, ALL, 1), 0);
        assert_eq!(tbs_bits(McsTable::Qam64, 28, Grid { symbols: 1, ..ALL }, 10), 0);
    }

    #[test]
    fn sizes_are_whole_bytes_and_grow_with_the_mcs() {
        for table in [McsTable::Qam64, McsTable::Qam256, McsTable::Qam64LowSe] {
            for rbs in 1..=MAX_RBS {
                let mut before = 0;
                for mcs in 0..table.mcs_count() {
                    let bits = tbs_bits(table, mcs, Grid { symbols: 12, ..ALL }, rbs);
                    assert_eq!(bits % 8, 0, "{table:?} {mcs} {rbs}");
                    // 64QAM at 438/1024 carries slightly less than 16QAM at 658/1024; the same holds for 466.
                    assert!(f64::from(bits) >= f64::from(before) * 0.94, "{table:?} {mcs} {rbs}");
                    before = bits;
                }
            }
        }
    }

    #[test]
    fn quality_to_scheme() {
        assert_eq!(McsTable::Qam64.cqi_to_mcs(), [0, 0, 0, 2, 4, 6, 8, 11, 13, 15, 18, 20, 22, 24, 26, 28]);
        assert_eq!(McsTable::Qam256.cqi_to_mcs()[15], 27);
        assert_eq!(McsTable::Qam64LowSe.cqi_to_mcs()[1..4], [0, 2, 4]);
        assert_eq!(rbg(25, false), 2);
        assert_eq!((rbg(106, false), rbg(273, false), rbg(273, true)), (8, 16, 16));
    }
}
