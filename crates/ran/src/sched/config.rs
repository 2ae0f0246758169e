//! Configuration of slices and schedulers.
//!
//! ```toml
//! scheduler = "eqp_exact"                                            # the defaults
//! scheduler = { algorithm = "eqp_exact", quantum_limit_rbs = 50, idle = "idle_reset" }
//! [[slices]]
//! name = "voice"
//! share_percent = 25
//! intra = "pf"                 # rr | pf | priority
//! ```

use super::intra::IntraKind;
use super::{InterAlgorithm, OutOfRange};
use serde::{Deserialize, Serialize};

/// Maximum number of slices in a cell (TS 38.413: maxnoofSliceItems).
pub const MAX_SLICES: usize = 1024;

/// Configuration of a slice in the scheduler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SliceConfig {
    /// Its name, unique.
    pub name: String,
    /// Share of the RBs in percent, 0 to 100; the shares of all slices sum to at most 100.
    pub share_percent: f64,
    /// Intra-slice scheduler.
    #[serde(default)]
    pub intra: IntraKind,
    /// `rrm_policy`: percentage of RBs reserved for the slice even if unused, 0 to its minimum.
    #[serde(default)]
    pub dedicated_percent: f64,
    /// `rrm_policy`: percentage of RBs that the slice gets before others; default: its share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_percent: Option<f64>,
    /// `rrm_policy`: percentage of all RBs that the slice never exceeds over time; default: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_percent: Option<f64>,
    /// `static_priority`: a lower number goes first.
    #[serde(default)]
    pub priority: u8,
}

/// Unit of shares: the whole carrier is 10⁶ parts, 1 % is 10⁴.
pub(super) const PARTS: u64 = 1_000_000;

fn parts(percent: f64) -> u64 {
    // Validated to be 0 to 100. `round` would be a function call.
    let parts = percent * 1e4;
    let whole = parts as u64;
    whole + u64::from(parts - whole as f64 >= 0.5)
}

impl SliceConfig {
    /// A slice with a share and default values.
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

    /// The keys that only some schedulers use, with their values, as far as these are not the defaults.
    fn special_keys(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let values = [
            ("dedicated_percent", Some(self.dedicated_percent).filter(|dedicated| *dedicated != 0.0)),
            ("min_percent", self.min_percent.filter(|min| *min != self.share_percent)),
            ("max_percent", self.max_percent.filter(|max| *max != 100.0)),
            ("priority", Some(f64::from(self.priority)).filter(|priority| *priority != 0.0)),
        ];
        values.into_iter().filter_map(|(key, value)| Some((key, value?)))
    }

    /// Minimum and maximum share in percent.
    fn ratios(&self) -> (f64, f64) {
        (self.min_percent.unwrap_or(self.share_percent), self.max_percent.unwrap_or(100.0))
    }

    /// The share in millionths.
    #[must_use]
    pub fn share_parts(&self) -> u64 {
        parts(self.share_percent)
    }

    /// ⌊share · rbs⌋.
    pub(crate) fn share_of(&self, rbs: u16) -> u16 {
        floor_share(self.share_parts(), rbs)
    }

    /// Dedicated RBs out of `rbs`.
    pub(crate) fn dedicated_of(&self, rbs: u16) -> u16 {
        floor_share(parts(self.dedicated_percent), rbs)
    }

    /// Minimum and maximum share in millionths.
    pub(super) fn policy_parts(&self) -> (u64, u64) {
        let (min, max) = self.ratios();
        (parts(min), parts(max))
    }

    /// RBs out of `rbs` that cover the maximum, and whether minimum and maximum are equal.
    pub(crate) fn most_of(&self, rbs: u16) -> (u16, bool) {
        let (min, max) = self.policy_parts();
        let most = (u64::from(rbs) * max).div_ceil(PARTS).min(u64::from(rbs));
        (most as u16, min == max)
    }
}

fn floor_share(parts: u64, rbs: u16) -> u16 {
    (u64::from(rbs) * parts / PARTS).min(u64::from(rbs)) as u16
}

/// Why a configuration of slices or a scheduler is invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SchedError {
    /// A value of a slice is out of range.
    #[error("slice \"{slice}\": {key} = {value}: must be {remedy}")]
    Slice {
        /// Name of the slice.
        slice: String,
        /// The configuration key.
        key: &'static str,
        /// The configured value.
        value: f64,
        /// The valid values.
        remedy: &'static str,
    },
    /// A name is empty or used twice.
    #[error("slice \"{0}\": give every slice a name of its own")]
    Name(String),
    /// A key has no effect.
    #[error(
        "slice \"{slice}\": {key} = {value} has no effect: leave it out, or set the scheduler to {users}"
    )]
    NoEffect {
        /// Name of the slice.
        slice: String,
        /// The configuration key.
        key: &'static str,
        /// The configured value.
        value: f64,
        /// The schedulers that use the key.
        users: String,
    },
    /// The shares sum to more than 100 %.
    #[error("the {what} of all slices sum to {percent} %: must be 100 at most")]
    Sum {
        /// The summed keys.
        what: &'static str,
        /// The sum in percent.
        percent: f64,
    },
    /// No slices, or too many.
    #[error("{0} slices: must be 1 to 1024")]
    Count(usize),
    /// A parameter of the scheduler is out of range.
    #[error("scheduler {algorithm}: {wrong}")]
    Param {
        /// The scheduler.
        algorithm: InterAlgorithm,
        /// The fault.
        wrong: OutOfRange,
    },
}

/// Checks a list of slices for any scheduler.
///
/// # Errors
/// The first fault: no slice, a duplicate name, a percentage that is not a number from 0 to 100, or shares that sum to more
/// than 100.
pub(super) fn check_slices(slices: &[SliceConfig]) -> Result<(), SchedError> {
    if !(1..=MAX_SLICES).contains(&slices.len()) {
        return Err(SchedError::Count(slices.len()));
    }
    for (i, slice) in slices.iter().enumerate() {
        if slice.name.is_empty() || slices[..i].iter().any(|s| s.name == slice.name) {
            return Err(SchedError::Name(slice.name.clone()));
        }
        let (min, max) = slice.ratios();
        for (key, value) in [
            ("share_percent", slice.share_percent),
            ("dedicated_percent", slice.dedicated_percent),
            ("min_percent", min),
            ("max_percent", max),
        ] {
            if !(0.0..=100.0).contains(&value) {
                return Err(slice_error(slice, key, value, "a number of 0 to 100"));
            }
        }
    }
    check_sum("share_percent", slices, |slice| slice.share_percent)
}

/// Checks the dedicated, minimum and maximum shares of a list of slices, for a scheduler that uses them.
///
/// # Errors
/// The first slice whose percentages are out of order, or minima that sum to more than 100.
pub(super) fn check_ratios(slices: &[SliceConfig]) -> Result<(), SchedError> {
    for slice in slices {
        let (min, max) = slice.ratios();
        if slice.dedicated_percent > min {
            let dedicated = slice.dedicated_percent;
            return Err(slice_error(slice, "dedicated_percent", dedicated, "at most min_percent"));
        }
        if min > max {
            return Err(slice_error(slice, "max_percent", max, "at least min_percent"));
        }
    }
    check_sum("min_percent (share_percent where it is missing)", slices, |slice| slice.ratios().0)
}

/// Checks that keys of slices that only some schedulers use are used by one of `algorithms`, or have their defaults.
///
/// # Errors
/// The first key without effect.
pub(crate) fn check_slice_keys(
    slices: &[SliceConfig],
    algorithms: [InterAlgorithm; 2],
) -> Result<(), SchedError> {
    let uses = |algorithm: &InterAlgorithm, key| algorithm.slice_keys().contains(&key);
    for slice in slices {
        let unused = |(key, _): &(&'static str, f64)| !algorithms.iter().any(|a| uses(a, *key));
        if let Some((key, value)) = slice.special_keys().find(unused) {
            let users: Vec<&str> =
                InterAlgorithm::ALL.iter().filter(|a| uses(a, key)).map(|a| a.name()).collect();
            return Err(SchedError::NoEffect {
                slice: slice.name.clone(),
                key,
                value,
                users: users.join(" or "),
            });
        }
    }
    Ok(())
}

fn slice_error(slice: &SliceConfig, key: &'static str, value: f64, remedy: &'static str) -> SchedError {
    SchedError::Slice { slice: slice.name.clone(), key, value, remedy }
}

fn check_sum(
    what: &'static str,
    slices: &[SliceConfig],
    of: fn(&SliceConfig) -> f64,
) -> Result<(), SchedError> {
    let percent: f64 = slices.iter().map(of).sum();
    if percent > 100.0 + 1e-6 { Err(SchedError::Sum { what, percent }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_slices_are_refused() {
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
        let why = |slices: &[SliceConfig]| check_ratios(slices).unwrap_err().to_string();
        assert!(
            why(&[policy(20.0, 10.0, 50.0)]).contains("dedicated_percent = 20: must be at most min_percent")
        );
        assert!(why(&[policy(5.0, 60.0, 50.0)]).contains("max_percent = 50: must be at least min_percent"));
        assert_eq!(
            why(&[policy(5.0, 70.0, 80.0), slice("b", 40.0)]),
            "the min_percent (share_percent where it is missing) of all slices sum to 110 %: must be 100 at most"
        );
        assert_eq!(check_slices(&[slice("a", 25.0), slice("b", 75.0)]), Ok(()));
        assert_eq!((slice("a", 25.0).share_of(25), slice("b", 75.0).share_of(25)), (6, 18));
        assert_eq!(slice("third", 100.0 / 3.0).share_of(275), 91);
    }
}
