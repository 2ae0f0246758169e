//! Slices and schedulers as a person writes them.
//!
//! ```toml
//! scheduler = "eqp_exact"                                            # the defaults
//! scheduler = { algorithm = "eqp_exact", quantum_limit_rbs = 50, idle = "idle_reset" }
//! [[slices]]
//! name = "voice"
//! share_percent = 25
//! intra = "pf"                 # rr | pf | priority
//! ```

use super::AnyInter;
use super::drr::Drr;
use super::eqp::{Eqp, EqpParams, Selection};
use super::fixed::Fixed;
use super::gps_packing::{GpsPacking, GpsPackingParams};
use super::intra::IntraKind;
use super::rrm_policy::RrmPolicy;
use super::static_priority::StaticPriority;
use crate::queue::NoParams;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Most slices of a cell (TS 38.413: maxnoofSliceItems).
pub const MAX_SLICES: usize = 1024;

/// A slice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SliceConfig {
    /// Its name, unique.
    pub name: String,
    /// Its share of the RBs, 0 to 100; those of all slices sum to 100 at most.
    pub share_percent: f64,
    /// How its UEs take turns.
    #[serde(default)]
    pub intra: IntraKind,
    /// `rrm_policy`: RBs kept for it even when it does not use them, 0 to its minimum.
    #[serde(default)]
    pub dedicated_percent: f64,
    /// `rrm_policy`: RBs it gets first; left out: its share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_percent: Option<f64>,
    /// `rrm_policy`: RBs it never exceeds; left out: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_percent: Option<f64>,
    /// `static_priority`: the lower, the sooner.
    #[serde(default)]
    pub priority: u8,
}

/// What a slice's shares are counted in: 1 % is 10⁴.
pub(super) const PARTS: u64 = 1_000_000;

fn parts(percent: f64) -> u64 {
    // Checked to be 0 to 100; `round` is a call.
    let parts = percent * 1e4;
    let whole = parts as u64;
    whole + u64::from(parts - whole as f64 >= 0.5)
}

impl SliceConfig {
    /// A slice with a share and every default.
    #[must_use]
    pub fn new(name: impl Into<String>, share_percent: f64) -> Self {
        Self {
            name: name.into(),
            share_percent,
            intra: IntraKind::default(),
            dedicated_percent: 0.0,
            min_percent: None,
            max_percent: None,
            priority: 0,
        }
    }

    /// Its share in millionths.
    #[must_use]
    pub fn share_parts(&self) -> u64 {
        parts(self.share_percent)
    }

    /// ⌊share · rbs⌋.
    pub(crate) fn share_of(&self, rbs: u16) -> u16 {
        floor_share(self.share_parts(), rbs)
    }

    /// Dedicated, minimum and maximum RBs of `rbs`.
    pub(crate) fn policy_of(&self, rbs: u16) -> (u16, u16, u16) {
        let min = self.min_percent.unwrap_or(self.share_percent);
        (
            floor_share(parts(self.dedicated_percent), rbs),
            floor_share(parts(min), rbs),
            floor_share(parts(self.max_percent.unwrap_or(100.0)), rbs),
        )
    }
}

fn floor_share(parts: u64, rbs: u16) -> u16 {
    (u64::from(rbs) * parts / PARTS).min(u64::from(rbs)) as u16
}

/// Why slices or a scheduler cannot be as written.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SchedError {
    /// A value of a slice is out of its range.
    #[error("slice \"{slice}\": {key} = {value}: must be {remedy}")]
    Slice {
        /// Its name.
        slice: String,
        /// The key.
        key: &'static str,
        /// Its value.
        value: f64,
        /// What would be valid.
        remedy: &'static str,
    },
    /// A name is used twice, or is empty.
    #[error("slice \"{0}\": give every slice a name of its own")]
    Name(String),
    /// The shares are more than there is.
    #[error("the {what} of all slices sum to {percent} %: must be 100 at most")]
    Sum {
        /// Which shares.
        what: &'static str,
        /// Their sum.
        percent: f64,
    },
    /// No slice, or too many.
    #[error("{0} slices: must be 1 to 1024")]
    Count(usize),
    /// A parameter of the scheduler is out of its range.
    #[error("scheduler {algorithm}: {key} = {value}: must be {remedy}")]
    Param {
        /// The scheduler.
        algorithm: InterAlgorithm,
        /// The key.
        key: &'static str,
        /// Its value.
        value: u32,
        /// What would be valid.
        remedy: &'static str,
    },
}

/// Whether slices can be as written.
///
/// # Errors
/// The first thing that is wrong: no slice, a name twice, a share that is no number of 0 to 100, shares that sum
/// to more than 100.
pub fn check_slices(slices: &[SliceConfig]) -> Result<(), SchedError> {
    if !(1..=MAX_SLICES).contains(&slices.len()) {
        return Err(SchedError::Count(slices.len()));
    }
    for (i, slice) in slices.iter().enumerate() {
        if slice.name.is_empty() || slices[..i].iter().any(|s| s.name == slice.name) {
            return Err(SchedError::Name(slice.name.clone()));
        }
        let min = slice.min_percent.unwrap_or(slice.share_percent);
        let max = slice.max_percent.unwrap_or(100.0);
        for (key, value) in [
            ("share_percent", slice.share_percent),
            ("dedicated_percent", slice.dedicated_percent),
            ("min_percent", min),
            ("max_percent", max),
        ] {
            if !(0.0..=100.0).contains(&value) {
                let remedy = "a number of 0 to 100";
                return Err(SchedError::Slice { slice: slice.name.clone(), key, value, remedy });
            }
        }
        let wrong =
            |key, value, remedy| Err(SchedError::Slice { slice: slice.name.clone(), key, value, remedy });
        if slice.dedicated_percent > min {
            return wrong("dedicated_percent", slice.dedicated_percent, "at most min_percent");
        }
        if min > max {
            return wrong("max_percent", max, "at least min_percent");
        }
    }
    for (what, of) in [
        ("share_percent", (|s| s.share_percent) as fn(&SliceConfig) -> f64),
        ("min_percent", |s| s.min_percent.unwrap_or(s.share_percent)),
    ] {
        let percent: f64 = slices.iter().map(of).sum();
        if percent > 100.0 + 1e-6 {
            return Err(SchedError::Sum { what, percent });
        }
    }
    Ok(())
}

/// The inter-slice schedulers by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InterAlgorithm {
    /// Fixed partition.
    Fixed,
    /// Dedicated, minimum and maximum shares.
    RrmPolicy,
    /// One slice before another.
    StaticPriority,
    /// Deficit round robin on RBs.
    Drr,
    /// Elastic quantum partition, the exact selection.
    EqpExact,
    /// Elastic quantum partition, the printed selection with its faults repaired.
    EqpPaper,
    /// Whole packets first, bounded around fair sharing.
    GpsPacking,
}

impl InterAlgorithm {
    /// Every scheduler.
    pub const ALL: [Self; 7] = [
        Self::Fixed,
        Self::RrmPolicy,
        Self::StaticPriority,
        Self::Drr,
        Self::EqpExact,
        Self::EqpPaper,
        Self::GpsPacking,
    ];

    /// Its name in files and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::RrmPolicy => "rrm_policy",
            Self::StaticPriority => "static_priority",
            Self::Drr => "drr",
            Self::EqpExact => "eqp_exact",
            Self::EqpPaper => "eqp_paper",
            Self::GpsPacking => "gps_packing",
        }
    }
}

impl fmt::Display for InterAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no scheduler.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no scheduler \"{name}\"{}; there are: {}", nearest(name), names())]
pub struct UnknownInter {
    /// The name as written.
    pub name: String,
}

fn names() -> String {
    InterAlgorithm::ALL.map(InterAlgorithm::name).join(", ")
}

fn nearest(name: &str) -> String {
    InterAlgorithm::ALL
        .into_iter()
        .map(|a| (strsim::jaro_winkler(&name.to_lowercase(), a.name()), a))
        .filter(|(likeness, _)| *likeness > 0.7)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map_or_else(String::new, |(_, a)| format!(", did you mean \"{a}\"?"))
}

impl FromStr for InterAlgorithm {
    type Err = UnknownInter;
    fn from_str(name: &str) -> Result<Self, UnknownInter> {
        Self::ALL.into_iter().find(|a| a.name() == name).ok_or_else(|| UnknownInter { name: name.to_owned() })
    }
}

/// A scheduler and its parameters, as written: a name, or a table with `algorithm` and some of its parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", tag = "algorithm", rename_all = "snake_case")]
pub enum InterConfig {
    /// See [`super::fixed`].
    Fixed(NoParams),
    /// See [`super::rrm_policy`].
    RrmPolicy(NoParams),
    /// See [`super::static_priority`].
    StaticPriority(NoParams),
    /// See [`super::drr`].
    Drr(NoParams),
    /// See [`super::eqp`].
    EqpExact(EqpParams),
    /// See [`super::eqp`].
    EqpPaper(EqpParams),
    /// See [`super::gps_packing`].
    GpsPacking(GpsPackingParams),
}

impl Default for InterConfig {
    fn default() -> Self {
        Self::from(InterAlgorithm::Fixed)
    }
}

impl From<InterAlgorithm> for InterConfig {
    fn from(algorithm: InterAlgorithm) -> Self {
        match algorithm {
            InterAlgorithm::Fixed => Self::Fixed(NoParams {}),
            InterAlgorithm::RrmPolicy => Self::RrmPolicy(NoParams {}),
            InterAlgorithm::StaticPriority => Self::StaticPriority(NoParams {}),
            InterAlgorithm::Drr => Self::Drr(NoParams {}),
            InterAlgorithm::EqpExact => Self::EqpExact(EqpParams::default()),
            InterAlgorithm::EqpPaper => Self::EqpPaper(EqpParams::default()),
            InterAlgorithm::GpsPacking => Self::GpsPacking(GpsPackingParams::default()),
        }
    }
}

impl FromStr for InterConfig {
    type Err = UnknownInter;
    fn from_str(name: &str) -> Result<Self, UnknownInter> {
        name.parse::<InterAlgorithm>().map(Self::from)
    }
}

impl InterConfig {
    /// The scheduler's name.
    #[must_use]
    pub fn algorithm(&self) -> InterAlgorithm {
        match self {
            Self::Fixed(_) => InterAlgorithm::Fixed,
            Self::RrmPolicy(_) => InterAlgorithm::RrmPolicy,
            Self::StaticPriority(_) => InterAlgorithm::StaticPriority,
            Self::Drr(_) => InterAlgorithm::Drr,
            Self::EqpExact(_) => InterAlgorithm::EqpExact,
            Self::EqpPaper(_) => InterAlgorithm::EqpPaper,
            Self::GpsPacking(_) => InterAlgorithm::GpsPacking,
        }
    }

    /// The scheduler, for so many slices and UEs.
    ///
    /// # Errors
    /// A parameter out of its range.
    pub fn build(&self, slices: usize, ues: usize) -> Result<AnyInter, SchedError> {
        let limit = |key, value: u32| {
            let algorithm = self.algorithm();
            let remedy = "1 to 1000000";
            let ok = (1..=1_000_000).contains(&value);
            if ok { Ok(()) } else { Err(SchedError::Param { algorithm, key, value, remedy }) }
        };
        Ok(match self {
            Self::Fixed(_) => AnyInter::Fixed(Fixed),
            Self::RrmPolicy(_) => AnyInter::RrmPolicy(RrmPolicy),
            Self::StaticPriority(_) => AnyInter::StaticPriority(StaticPriority::default()),
            Self::Drr(_) => AnyInter::Drr(Drr::new(slices)),
            Self::EqpExact(params) => {
                limit("quantum_limit_rbs", params.quantum_limit_rbs)?;
                AnyInter::Eqp(Box::new(Eqp::new(*params, Selection::Exact, slices)))
            }
            Self::EqpPaper(params) => {
                limit("quantum_limit_rbs", params.quantum_limit_rbs)?;
                AnyInter::Eqp(Box::new(Eqp::new(*params, Selection::Paper, slices)))
            }
            Self::GpsPacking(params) => {
                limit("lag_limit_rbs", params.lag_limit_rbs)?;
                AnyInter::GpsPacking(Box::new(GpsPacking::new(*params, slices, ues)))
            }
        })
    }
}

impl Serialize for InterConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for InterConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrTable;
        impl<'de> Visitor<'de> for NameOrTable {
            type Value = InterConfig;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a scheduler ({}), or a table with `algorithm` and its parameters", names())
            }
            fn visit_str<E: de::Error>(self, name: &str) -> Result<InterConfig, E> {
                name.parse().map_err(E::custom)
            }
            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<InterConfig, M::Error> {
                InterConfig::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_any(NameOrTable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_or_a_table() {
        for algorithm in InterAlgorithm::ALL {
            let config: InterConfig = serde_json::from_str(&format!("\"{algorithm}\"")).unwrap();
            assert_eq!(config, InterConfig::from(algorithm));
            let written = serde_json::to_string(&config).unwrap();
            assert!(written.contains(algorithm.name()));
            assert_eq!(serde_json::from_str::<InterConfig>(&written).unwrap(), config);
            config.build(3, 5).unwrap();
        }
        let why = |text: &str| serde_json::from_str::<InterConfig>(text).unwrap_err().to_string();
        assert!(why("\"eqp_exakt\"").contains("did you mean \"eqp_exact\"?"));
        assert!(why("{\"algorithm\": \"drr\", \"limit\": 3}").contains("limit"));
        let none = InterConfig::EqpExact(EqpParams { quantum_limit_rbs: 0, ..EqpParams::default() });
        assert_eq!(
            none.build(2, 2).unwrap_err().to_string(),
            "scheduler eqp_exact: quantum_limit_rbs = 0: must be 1 to 1000000"
        );
    }

    #[test]
    fn slices_that_cannot_be() {
        let why = |slices: &[SliceConfig]| check_slices(slices).unwrap_err().to_string();
        let slice = SliceConfig::new;
        assert_eq!(why(&[]), "0 slices: must be 1 to 1024");
        assert_eq!(
            why(&[slice("a", 60.0), slice("b", 60.0)]),
            "the share_percent of all slices sum to 120 %: must be 100 at most"
        );
        assert_eq!(
            why(&[slice("a", f64::NAN)]),
            "slice \"a\": share_percent = NaN: must be a number of 0 to 100"
        );
        assert!(why(&[slice("a", -1.0)]).contains("share_percent = -1"));
        assert!(why(&[slice("a", 1.0), slice("a", 1.0)]).contains("name of its own"));
        let policy = |dedicated, min, max| SliceConfig {
            dedicated_percent: dedicated,
            min_percent: Some(min),
            max_percent: Some(max),
            ..slice("a", 10.0)
        };
        assert!(
            why(&[policy(20.0, 10.0, 50.0)]).contains("dedicated_percent = 20: must be at most min_percent")
        );
        assert!(why(&[policy(5.0, 60.0, 50.0)]).contains("max_percent = 50: must be at least min_percent"));
        assert_eq!(check_slices(&[slice("a", 25.0), slice("b", 75.0)]), Ok(()));
        assert_eq!((slice("a", 25.0).share_of(25), slice("b", 75.0).share_of(25)), (6, 18));
        assert_eq!(slice("third", 100.0 / 3.0).share_of(275), 91);
    }
}
