//! From policy (access names, percent, milliseconds) to compiled modes (path ids, ppm, microseconds).

use super::{ActiveStandby, Coded, LoadBalance, Mode, PriorityBased, Redundant, SmallestDelay};
use crate::{MAX_PATHS, PathId};
use anabranch_rules::{AccessName, SteeringMode, Weight};
use thiserror::Error;

/// Largest valid loss threshold, in percent.
pub const MAX_LOSS_PERCENT: f64 = 100.0;
/// Largest valid RTT threshold, in milliseconds.
const MAX_RTT_MS: f64 = 60_000.0;
/// Largest valid dwell time, in milliseconds.
const MAX_DWELL_MS: u32 = 60_000;
/// Least and largest valid overhead of coded mode, in percent.
const OVERHEAD_PERCENT: [f64; 2] = [10.0, 100.0];
/// Largest valid window of coded mode, in packets.
const MAX_WINDOW_PACKETS: f64 = 128.0;
/// Least and largest valid longest wait of coded mode, in milliseconds.
const LONGEST_WAIT_MS: [f64; 2] = [10.0, 1000.0];

/// What is wrong with a policy, and what would be valid.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum PolicyError {
    /// A rule in a list of rules is wrong.
    #[error("rule \"{rule}\": {error}")]
    Rule {
        /// Name of the rule.
        rule: String,
        /// What is wrong with it.
        error: Box<PolicyError>,
    },
    /// Two rules have the same name.
    #[error("two rules are named \"{0}\": rule names must be unique")]
    RuleTwice(String),
    /// The list of rules is too long.
    #[error("{count} rules: at most {max} are supported")]
    TooManyRules {
        /// Rules given.
        count: usize,
        /// Rules supported.
        max: usize,
    },
    /// A filter names an empty or malformed domain.
    #[error(
        "domain \"{0}\": write a name like \"example.org\" (at most 253 characters, no wildcard: names below it match too)"
    )]
    Domain(String),
    /// An access that does not exist is named.
    #[error("{mode}: no access is named \"{access}\"; valid names: {valid}")]
    UnknownAccess {
        /// The steering mode.
        mode: &'static str,
        /// The name that was not found.
        access: AccessName,
        /// The names that exist, separated by commas.
        valid: String,
    },
    /// An access is named twice.
    #[error("{mode}: access \"{access}\" is named twice")]
    AccessTwice {
        /// The steering mode.
        mode: &'static str,
        /// The name.
        access: AccessName,
    },
    /// The path id of an access is out of range.
    #[error("access \"{access}\" has path id {path}: valid are 0 to {max}, each once", max = MAX_PATHS - 1)]
    PathId {
        /// The access.
        access: AccessName,
        /// Its path id.
        path: PathId,
    },
    /// A weight is not a multiple of ten percent.
    #[error("load-balance: weight {percent} of access \"{access}\": valid are 0, 10, 20, ... 100")]
    WeightStep {
        /// The access.
        access: AccessName,
        /// Its weight in percent.
        percent: u8,
    },
    /// The weights do not add up.
    #[error(
        "load-balance: the weights sum to {sum} %, they must sum to 100 %; leave them out for equal shares"
    )]
    WeightSum {
        /// Their sum in percent.
        sum: u32,
    },
    /// A number is out of range.
    #[error("{mode}: {key} = {value}: valid are {valid}")]
    Range {
        /// The steering mode.
        mode: &'static str,
        /// Key in the configuration.
        key: &'static str,
        /// What was given.
        value: f64,
        /// The valid range, in words.
        valid: &'static str,
    },
}

impl Mode {
    /// Compiles a policy for a user with these accesses. Every access the policy names must be there.
    ///
    /// # Errors
    /// [`PolicyError`] names the access, weight or threshold that is wrong, and what would be valid.
    pub fn compile(policy: &SteeringMode, accesses: &[(PathId, AccessName)]) -> Result<Self, PolicyError> {
        Self::compile_for(policy, accesses, &[])
    }

    /// Compiles a policy that is shared by users with different accesses: an access that is not in
    /// `accesses` but in `known` is one this user does not have, and treated as one that is down.
    ///
    /// # Errors
    /// As [`Self::compile`], for names that are in neither list.
    pub fn compile_for(
        policy: &SteeringMode,
        accesses: &[(PathId, AccessName)],
        known: &[AccessName],
    ) -> Result<Self, PolicyError> {
        let names = Names { mode: policy.name(), accesses, known };
        names.check()?;
        Ok(match policy {
            SteeringMode::ActiveStandby { primary, rotate_packets, leave_above_loss_percent } => {
                let leave = names.leave(*leave_above_loss_percent)?;
                let mode = ActiveStandby::new(names.path(primary)?).leaving_above(leave);
                Self::ActiveStandby(mode.rotating(*rotate_packets))
            }
            SteeringMode::LoadBalance { weights, per, autonomous } => {
                let tenths = names.tenths(weights)?;
                Self::LoadBalance(LoadBalance::new(&tenths, *per, *autonomous))
            }
            SteeringMode::SmallestDelay { hysteresis_percent, dwell_ms, leave_above_loss_percent } => {
                names.range("hysteresis_percent", f64::from(*hysteresis_percent), 0.0, 99.0, "0 to 99")?;
                let max = f64::from(MAX_DWELL_MS);
                names.range("dwell_ms", f64::from(*dwell_ms), 0.0, max, "0 to 60000 (ms)")?;
                let leave = names.leave(*leave_above_loss_percent)?;
                Self::SmallestDelay(SmallestDelay::new(*hysteresis_percent, *dwell_ms).leaving_above(leave))
            }
            SteeringMode::PriorityBased { primary, rtt_ms, loss_percent } => {
                let primary = names.path(primary)?;
                let rtt_us = rtt_ms.map(|ms| names.rtt_us(ms)).transpose()?;
                let loss_ppm = loss_percent.map(|p| names.loss_ppm("loss_percent", p)).transpose()?;
                Self::PriorityBased(PriorityBased::new(primary, rtt_us, loss_ppm))
            }
            SteeringMode::Redundant { above_loss_percent } => {
                let ppm = above_loss_percent.map(|p| names.loss_ppm("above_loss_percent", p)).transpose()?;
                Self::Redundant(Redundant::new(ppm))
            }
            SteeringMode::Coded { overhead_percent, window_packets, longest_wait_ms } => {
                let [least, most] = OVERHEAD_PERCENT;
                let percent = f64::from(*overhead_percent);
                names.range("overhead_percent", percent, least, most, "10 to 100 (%)")?;
                let packets = f64::from(*window_packets);
                names.range("window_packets", packets, 1.0, MAX_WINDOW_PACKETS, "1 to 128 (packets)")?;
                let [least, most] = LONGEST_WAIT_MS;
                let wait = f64::from(*longest_wait_ms);
                names.range("longest_wait_ms", wait, least, most, "10 to 1000 (ms)")?;
                Self::Coded(Coded::new(*overhead_percent, *window_packets, *longest_wait_ms))
            }
        })
    }
}

struct Names<'a> {
    mode: &'static str,
    accesses: &'a [(PathId, AccessName)],
    known: &'a [AccessName],
}

impl Names<'_> {
    fn check(&self) -> Result<(), PolicyError> {
        for (i, (path, access)) in self.accesses.iter().enumerate() {
            let before = &self.accesses[..i];
            if usize::from(*path) >= MAX_PATHS || before.iter().any(|(p, _)| p == path) {
                return Err(PolicyError::PathId { access: access.clone(), path: *path });
            }
            if before.iter().any(|(_, a)| a == access) {
                return Err(PolicyError::AccessTwice { mode: self.mode, access: access.clone() });
            }
        }
        Ok(())
    }

    fn leave(&self, percent: u8) -> Result<u8, PolicyError> {
        self.range(
            "leave_above_loss_percent",
            f64::from(percent),
            0.0,
            MAX_LOSS_PERCENT,
            "0 to 100 (percent)",
        )?;
        Ok(percent)
    }

    fn path(&self, access: &AccessName) -> Result<Option<PathId>, PolicyError> {
        if let Some((path, _)) = self.accesses.iter().find(|(_, name)| name == access) {
            return Ok(Some(*path));
        }
        if self.known.contains(access) {
            return Ok(None);
        }
        let mut valid: Vec<&str> =
            self.accesses.iter().map(|(_, name)| name).chain(self.known).map(String::as_str).collect();
        valid.sort_unstable();
        valid.dedup();
        let valid = if valid.is_empty() { "none, there is no access".into() } else { valid.join(", ") };
        Err(PolicyError::UnknownAccess { mode: self.mode, access: access.clone(), valid })
    }

    /// The share of each path in tenths, ascending by position in the policy; equal if none are given.
    fn tenths(&self, weights: &[Weight]) -> Result<Vec<(PathId, u8)>, PolicyError> {
        if weights.is_empty() {
            return Ok(self.accesses.iter().map(|(path, _)| (*path, 1)).collect());
        }
        let mut tenths = Vec::with_capacity(weights.len());
        for (i, Weight { access, percent }) in weights.iter().enumerate() {
            if weights[..i].iter().any(|w| w.access == *access) {
                return Err(PolicyError::AccessTwice { mode: self.mode, access: access.clone() });
            }
            if *percent > 100 || percent % 10 != 0 {
                return Err(PolicyError::WeightStep { access: access.clone(), percent: *percent });
            }
            if let Some(path) = self.path(access)? {
                tenths.push((path, percent / 10));
            }
        }
        let sum = weights.iter().map(|w| u32::from(w.percent)).sum();
        if sum == 100 { Ok(tenths) } else { Err(PolicyError::WeightSum { sum }) }
    }

    fn rtt_us(&self, ms: f64) -> Result<u32, PolicyError> {
        self.range("rtt_ms", ms, 0.001, MAX_RTT_MS, "0.001 to 60000 (ms)")?;
        Ok(whole(ms * 1e3))
    }

    fn loss_ppm(&self, key: &'static str, percent: f64) -> Result<u32, PolicyError> {
        self.range(key, percent, 0.0, MAX_LOSS_PERCENT, "0 to 100 (%)")?;
        Ok(whole(percent * 1e4))
    }

    fn range(
        &self,
        key: &'static str,
        value: f64,
        least: f64,
        most: f64,
        valid: &'static str,
    ) -> Result<(), PolicyError> {
        // NaN is in no range.
        if (least..=most).contains(&value) {
            Ok(())
        } else {
            Err(PolicyError::Range { mode: self.mode, key, value, valid })
        }
    }
}
fn whole(value: f64) -> u32 {
    value.round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_rules::Granularity;

    fn two() -> Vec<(PathId, AccessName)> {
        vec![(0, "5g".into()), (1, "wifi".into())]
    }

    fn error(json: &str) -> String {
        let policy: SteeringMode = serde_json::from_str(json).unwrap();
        Mode::compile(&policy, &two()).unwrap_err().to_string()
    }

    #[test]
    fn errors_name_the_place_and_what_is_valid() {
        let cases = [
            (r#"{"mode":"active-standby","primary":"lte"}"#, &["active-standby", "\"lte\"", "5g, wifi"][..]),
            (r#"{"mode":"priority-based","primary":"5g","rtt_ms":-1}"#, &["rtt_ms = -1", "60000"]),
            (r#"{"mode":"priority-based","primary":"5g","loss_percent":101}"#, &["loss_percent", "0 to 100"]),
            (r#"{"mode":"redundant","above_loss_percent":1e9}"#, &["above_loss_percent"]),
            (r#"{"mode":"coded","overhead_percent":9}"#, &["coded", "overhead_percent = 9", "10 to 100"]),
            (r#"{"mode":"coded","window_packets":129}"#, &["window_packets = 129", "1 to 128"]),
            (r#"{"mode":"coded","longest_wait_ms":5}"#, &["longest_wait_ms = 5", "10 to 1000"]),
            (r#"{"mode":"smallest-delay","hysteresis_percent":100}"#, &["hysteresis_percent", "0 to 99"]),
            (r#"{"mode":"smallest-delay","dwell_ms":60001}"#, &["dwell_ms", "60000"]),
            (r#"{"mode":"load-balance","weights":[{"access":"5g","percent":35}]}"#, &["35", "0, 10"]),
            (r#"{"mode":"load-balance","weights":[{"access":"5g","percent":90}]}"#, &["90 %", "100 %"]),
            (
                r#"{"mode":"load-balance","weights":[{"access":"5g","percent":50},{"access":"5g","percent":50}]}"#,
                &["twice", "\"5g\""],
            ),
        ];
        for (json, parts) in cases {
            let text = error(json);
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
        let nan = SteeringMode::Redundant { above_loss_percent: Some(f64::NAN) };
        assert!(Mode::compile(&nan, &two()).is_err());
    }

    #[test]
    fn accesses_are_checked() {
        let policy = SteeringMode::LoadBalance { weights: vec![], per: Granularity::Flow, autonomous: false };
        let compile = |a: &[(PathId, &str)]| {
            let accesses: Vec<_> = a.iter().map(|(p, n)| (*p, (*n).to_string())).collect();
            Mode::compile(&policy, &accesses)
        };
        assert!(matches!(compile(&[(8, "a")]), Err(PolicyError::PathId { path: 8, .. })));
        assert!(matches!(compile(&[(1, "a"), (1, "b")]), Err(PolicyError::PathId { path: 1, .. })));
        assert!(matches!(compile(&[(1, "a"), (2, "a")]), Err(PolicyError::AccessTwice { .. })));
        assert!(compile(&[]).is_ok());
    }

    #[test]
    fn an_access_the_user_lacks_is_not_an_error_in_a_shared_policy() {
        let policy = SteeringMode::ActiveStandby {
            primary: "lte".into(),
            rotate_packets: 0,
            leave_above_loss_percent: 5,
        };
        let known = ["lte".to_string(), "wifi".to_string()];
        let mode = Mode::compile_for(&policy, &two(), &known).unwrap();
        assert_eq!(mode, Mode::ActiveStandby(ActiveStandby::new(None)));
        let text = Mode::compile_for(
            &SteeringMode::ActiveStandby {
                primary: "x".into(),
                rotate_packets: 0,
                leave_above_loss_percent: 5,
            },
            &two(),
            &known,
        )
        .unwrap_err()
        .to_string();
        assert!(text.contains("5g, lte, wifi"), "{text}");
    }
}
