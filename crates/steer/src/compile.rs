//! From policy (access names, percent, milliseconds) to compiled modes (path ids, ppm, microseconds).

use crate::{MAX_PATHS, PathId};
use anabranch_rules::AccessName;
use thiserror::Error;

/// An error in a policy, and the valid values.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum PolicyError {
    /// An error in one rule of a list.
    #[error("rule \"{rule}\": {error}")]
    Rule {
        /// Name of the rule.
        rule: String,
        /// The first problem found in the rule.
        error: Box<PolicyError>,
    },
    /// The name of a rule contains characters that cannot be displayed everywhere.
    #[error("rule name {0:?}: give 1 to 128 bytes without control characters, quotes and backslashes")]
    RuleName(String),
    /// Two rules have the same name.
    #[error("two rules are named \"{0}\": rule names must be unique")]
    RuleTwice(String),
    /// The list of rules is too long.
    #[error("{count} rules: at most {max} are supported")]
    TooManyRules {
        /// Number of rules given.
        count: usize,
        /// Number of rules supported.
        max: usize,
    },
    /// A filter contains an empty or malformed domain.
    #[error(
        "domain \"{0}\": write a name like \"example.org\" (at most 253 characters, no wildcard: names below it match too)"
    )]
    Domain(String),
    /// A policy names an access that does not exist.
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
        /// The sum in percent.
        sum: u32,
    },
    /// A number is out of range.
    #[error("{mode}: {key} = {value}: valid are {valid}")]
    Range {
        /// The steering mode.
        mode: &'static str,
        /// Key in the configuration.
        key: &'static str,
        /// The given value.
        value: f64,
        /// The valid range, in words.
        valid: String,
    },
}

/// The accesses that a policy may name.
#[derive(Debug)]
pub struct Names<'a> {
    /// The steering mode, for messages.
    pub mode: &'static str,
    /// The accesses of the user.
    pub accesses: &'a [(PathId, AccessName)],
    known: &'a [AccessName],
}

impl<'a> Names<'a> {
    /// The accesses of a user, and the names of accesses that other users have.
    ///
    /// # Errors
    /// A path id or name occurs twice, or a path id is out of range.
    pub fn new(
        mode: &'static str,
        accesses: &'a [(PathId, AccessName)],
        known: &'a [AccessName],
    ) -> Result<Self, PolicyError> {
        for (i, (path, access)) in accesses.iter().enumerate() {
            let before = &accesses[..i];
            if usize::from(*path) >= MAX_PATHS || before.iter().any(|(p, _)| p == path) {
                return Err(PolicyError::PathId { access: access.clone(), path: *path });
            }
            if before.iter().any(|(_, a)| a == access) {
                return Err(PolicyError::AccessTwice { mode, access: access.clone() });
            }
        }
        Ok(Self { mode, accesses, known })
    }

    /// The path of an access; `None` if this user does not have it.
    ///
    /// # Errors
    /// No user has it.
    pub fn path(&self, access: &AccessName) -> Result<Option<PathId>, PolicyError> {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::active_standby::ActiveStandby;
    use crate::load_balance::Granularity;
    use crate::{Mode, SteeringMode, active_standby, load_balance, redundant};

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
        let nan = SteeringMode::Redundant(redundant::Params { above_loss_percent: Some(f64::NAN) });
        assert!(Mode::compile(&nan, &two()).is_err());
    }

    #[test]
    fn accesses_are_checked() {
        let policy = SteeringMode::LoadBalance(load_balance::Params {
            weights: vec![],
            per: Granularity::Flow,
            autonomous: false,
        });
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
        let policy = SteeringMode::ActiveStandby(active_standby::Params {
            primary: "lte".into(),
            rotate_packets: 0,
            leave_above_loss_percent: 5,
        });
        let known = ["lte".to_string(), "wifi".to_string()];
        let mode = Mode::compile_for(&policy, &two(), &known).unwrap();
        assert_eq!(mode, Mode::ActiveStandby(ActiveStandby::new(None)));
        let text = Mode::compile_for(
            &SteeringMode::ActiveStandby(active_standby::Params {
                primary: "x".into(),
                rotate_packets: 0,
                leave_above_loss_percent: 5,
            }),
            &two(),
            &known,
        )
        .unwrap_err()
        .to_string();
        assert!(text.contains("5g, lte, wifi"), "{text}");
    }
}
