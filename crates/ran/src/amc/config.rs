//! Configuration of a carrier.
//!
//! ```toml
//! [radio]
//! rat = "lte"                  # TTI 1 ms
//! rbs = 25
//! # or
//! [radio]
//! rat = "nr"
//! rbs = 106
//! numerology = 1               # slots of 1 ms / 2^numerology
//! mcs_table = "qam256"
//! layers = 2
//! tdd = { pattern = "DDDSU", downlink_symbols = 10, uplink_symbols = 2 }
//! ```

use super::nr::{Grid, McsTable};
use super::tdd::{TddConfig, TddPattern};
use super::{Amc, AmcError, TbsTable, lte, nr};
use anabranch_element::time::Duration;
use serde::{Deserialize, Serialize};

/// Configuration of a carrier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "rat", rename_all = "snake_case")]
pub enum RadioConfig {
    /// LTE, FDD.
    Lte(LteConfig),
    /// NR, FDD or TDD.
    Nr(NrConfig),
}

impl Default for RadioConfig {
    /// The carrier of the paper: LTE with 25 RBs (5 MHz).
    fn default() -> Self {
        Self::Lte(LteConfig::default())
    }
}

/// An LTE carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LteConfig {
    /// Resource blocks, 1 to 110: 6, 15, 25, 50, 75 or 100 for 1.4, 3, 5, 10, 15 or 20 MHz.
    pub rbs: u16,
    /// RBs per resource block group; default: Table 7.1.6.1-1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rbg_rbs: Option<u16>,
}

impl Default for LteConfig {
    fn default() -> Self {
        Self { rbs: 25, rbg_rbs: None }
    }
}

/// An NR carrier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NrConfig {
    /// Resource blocks, 1 to 275.
    pub rbs: u16,
    /// Numerology µ, 0 to 4: subcarriers of 15 kHz · 2^µ, slots of 1 ms / 2^µ.
    pub numerology: u8,
    /// MCS and CQI tables.
    pub mcs_table: McsTable,
    /// MIMO layers, 1 to 4.
    pub layers: u8,
    /// Symbols of a slot that carry control information, 0 to 3.
    pub control_symbols: u8,
    /// REs per RB used for DM-RS, 0 to 36.
    pub dmrs_res: u8,
    /// `xOverhead` in REs per RB: 0, 6, 12 or 18.
    pub overhead_res: u8,
    /// RBs per resource block group; default: Table 5.1.2.2.1-1, configuration 1. A value of 1 is allocation type 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rbg_rbs: Option<u16>,
    /// TDD pattern; default: FDD.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tdd: Option<TddConfig>,
}

impl Default for NrConfig {
    /// 106 RBs of 30 kHz, 40 MHz, one layer.
    fn default() -> Self {
        Self {
            rbs: 106,
            numerology: 1,
            mcs_table: McsTable::Qam64,
            layers: 1,
            control_symbols: 2,
            dmrs_res: 12,
            overhead_res: 0,
            rbg_rbs: None,
            tdd: None,
        }
    }
}

pub(super) fn build(config: &RadioConfig) -> Result<Amc, AmcError> {
    match config {
        RadioConfig::Lte(lte) => build_lte(lte),
        RadioConfig::Nr(nr) => build_nr(nr),
    }
}

fn check_rbs(rbs: u16, rat: &'static str, most: u16) -> Result<(), AmcError> {
    match rbs {
        0 => Err(AmcError::ZeroRbs { most }),
        n if n > most => Err(AmcError::Rbs { rbs, rat, most }),
        _ => Ok(()),
    }
}

fn check<T: PartialOrd + ToString>(
    key: &'static str,
    value: T,
    most: T,
    remedy: &'static str,
) -> Result<(), AmcError> {
    if value > most {
        return Err(AmcError::Value { key, value: value.to_string(), remedy });
    }
    Ok(())
}

fn check_rbg(rbg: Option<u16>, rbs: u16, default: u16) -> Result<u16, AmcError> {
    match rbg {
        None => Ok(default.min(rbs)),
        Some(n) if (1..=rbs).contains(&n) => Ok(n),
        Some(n) => {
            Err(AmcError::Value { key: "rbg_rbs", value: n.to_string(), remedy: "1 to the cell's RBs" })
        }
    }
}

fn build_lte(config: &LteConfig) -> Result<Amc, AmcError> {
    let rbs = config.rbs;
    check_rbs(rbs, "LTE", lte::MAX_RBS)?;
    let name = "TS 36.213 Table 7.1.7.2.1-1";
    Ok(Amc {
        slot: Duration::from_millis(1),
        rbs,
        rbg: check_rbg(config.rbg_rbs, rbs, lte::rbg(rbs))?,
        cqi_to_mcs: lte::CQI_TO_MCS,
        full: TbsTable::new(name, lte::MAX_MCS + 1, rbs, |mcs, n| lte::tbs_bits(mcs, n) / 8),
        special: None,
        tdd: None,
    })
}

fn build_nr(config: &NrConfig) -> Result<Amc, AmcError> {
    let rbs = config.rbs;
    check_rbs(rbs, "NR", nr::MAX_RBS)?;
    check("numerology", config.numerology, 4, "0 to 4")?;
    check("control_symbols", config.control_symbols, 3, "0 to 3")?;
    check("dmrs_res", config.dmrs_res, 36, "0 to 36")?;
    if !(1..=4).contains(&config.layers) {
        return Err(AmcError::Value { key: "layers", value: config.layers.to_string(), remedy: "1 to 4" });
    }
    if !matches!(config.overhead_res, 0 | 6 | 12 | 18) {
        let value = config.overhead_res.to_string();
        return Err(AmcError::Value { key: "overhead_res", value, remedy: "0, 6, 12 or 18" });
    }
    let slot = Duration::from_nanos(1_000_000 >> config.numerology);
    let tdd = config.tdd.as_ref().map(|tdd| TddPattern::new(tdd, slot)).transpose()?;
    let table = |symbols: u8| {
        let symbols = symbols.saturating_sub(config.control_symbols);
        let (dmrs_res, overhead_res, layers) = (config.dmrs_res, config.overhead_res, config.layers);
        let grid = Grid { symbols, dmrs_res, overhead_res, layers };
        let bytes_of = |mcs, n| nr::tbs_bits(config.mcs_table, mcs, grid, n) / 8;
        TbsTable::new(config.mcs_table.name(), config.mcs_table.mcs_count(), rbs, bytes_of)
    };
    Ok(Amc {
        slot,
        rbs,
        rbg: check_rbg(config.rbg_rbs, rbs, nr::rbg(rbs, false))?,
        cqi_to_mcs: config.mcs_table.cqi_to_mcs(),
        full: table(14),
        special: config.tdd.as_ref().map(|tdd| table(tdd.downlink_symbols)).filter(TbsTable::carries_any),
        tdd,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amc::Direction::{Downlink, Uplink};

    fn nr(config: NrConfig) -> Result<Amc, AmcError> {
        Amc::new(&RadioConfig::Nr(config))
    }

    #[test]
    fn every_numerology_has_its_slot() {
        let slots_us = [1000.0, 500.0, 250.0, 125.0, 62.5];
        for (numerology, us) in (0..).zip(slots_us) {
            let amc = nr(NrConfig { numerology, ..NrConfig::default() }).unwrap();
            assert_eq!(amc.slot().as_nanos() as f64 / 1e3, us);
        }
        let lte = Amc::new(&RadioConfig::default()).unwrap();
        assert_eq!((lte.slot(), lte.rbs(), lte.rbg()), (Duration::from_millis(1), 25, 2));
        assert_eq!(lte.full().bytes(28, 25).unwrap(), 2292);
        assert_eq!(lte.full().row(6)[..3], [0, 22, 22], "the size that falls counts as the smaller");
        assert_eq!(lte.mcs_of_cqi(15), Ok(28));
    }

    #[test]
    fn rows_never_fall() {
        for rbs in [25, 106, 273, 275] {
            let amc = nr(NrConfig { rbs, ..NrConfig::default() }).unwrap();
            for mcs in 0..=amc.max_mcs() {
                assert!(amc.full().row(mcs).is_sorted());
            }
        }
    }

    #[test]
    fn a_pattern_determines_the_direction_of_slots() {
        let tdd = TddConfig { pattern: "DDDSU".into(), downlink_symbols: 10, uplink_symbols: 2 };
        let amc = nr(NrConfig { tdd: Some(tdd), ..NrConfig::default() }).unwrap();
        let bytes = |direction, slot| amc.table(direction, slot).map(|t| t.bytes(28, 106).unwrap());
        let (full, special) = (bytes(Downlink, 0).unwrap(), bytes(Downlink, 3).unwrap());
        assert_eq!([0, 1, 2, 5].map(|slot| bytes(Downlink, slot)), [Some(full); 4]);
        // 12 symbols less DM-RS against 8: 132 REs per RB and 84.
        assert!((f64::from(special) / f64::from(full) - 84.0 / 132.0).abs() < 0.01);
        assert_eq!((bytes(Downlink, 4), bytes(Uplink, 3), bytes(Uplink, 9)), (None, None, Some(full)));
    }

    #[test]
    fn errors_state_the_valid_values() {
        let why = |c: NrConfig| nr(c).unwrap_err().to_string();
        let d = NrConfig::default;
        assert_eq!(why(NrConfig { rbs: 0, ..d() }), "0 RBs carry nothing: give the cell 1 to 275 RBs");
        assert_eq!(why(NrConfig { rbs: 276, ..d() }), "276 RBs are not in the table: NR has 1 to 275");
        assert_eq!(why(NrConfig { numerology: 5, ..d() }), "radio: numerology = 5: must be 0 to 4");
        assert_eq!(why(NrConfig { layers: 0, ..d() }), "radio: layers = 0: must be 1 to 4");
        assert!(why(NrConfig { rbg_rbs: Some(0), ..d() }).contains("rbg_rbs = 0"));
        for (pattern, what) in [
            ("DDX", "letters"),
            ("UD", "downlink slots"),
            ("DDDSSU", "at most one S"),
            ("DDD", "ms long"),
            ("", "ms long"),
        ] {
            let tdd = TddConfig { pattern: pattern.into(), downlink_symbols: 10, uplink_symbols: 2 };
            assert!(why(NrConfig { tdd: Some(tdd), ..d() }).contains(what), "{pattern}");
        }
        let tdd = TddConfig { pattern: "DDDSU".into(), downlink_symbols: 13, uplink_symbols: 2 };
        assert!(why(NrConfig { tdd: Some(tdd), ..d() }).contains("at most 14"));
        let lte = Amc::new(&RadioConfig::Lte(LteConfig { rbs: 111, rbg_rbs: None }));
        assert_eq!(lte.unwrap_err().to_string(), "111 RBs are not in the table: LTE has 1 to 110");
    }

    #[test]
    fn the_configuration_examples_in_the_documentation_parse() {
        let parse = |text: &str| serde_json::from_str::<RadioConfig>(text);
        assert_eq!(parse(r#"{"rat": "lte", "rbs": 25}"#).unwrap(), RadioConfig::default());
        let nr = parse(r#"{"rat": "nr", "numerology": 2, "tdd": {"pattern": "DDDSU"}}"#).unwrap();
        assert!(matches!(nr, RadioConfig::Nr(NrConfig { numerology: 2, tdd: Some(_), .. })));
        assert!(parse(r#"{"rat": "nr", "rbs": 25, "mu": 1}"#).unwrap_err().to_string().contains("mu"));
    }
}
