//! The five levels of preference (RFC 9622 §6.2, table 2).

use serde::{Deserialize, Serialize};
use std::fmt;

/// Preference of an application for a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preference {
    /// Only candidates that have it.
    Require,
    /// Candidates that have it rank higher.
    Prefer,
    /// It does not matter.
    #[default]
    #[serde(alias = "none")]
    NoPreference,
    /// Candidates that have it rank lower.
    Avoid,
    /// Only candidates that do not have it.
    Prohibit,
}

impl Preference {
    /// All levels, from the most to the least wanted.
    pub const ALL: [Self; 5] = [Self::Require, Self::Prefer, Self::NoPreference, Self::Avoid, Self::Prohibit];

    /// Whether a candidate with or without the property may be used. Unknown values do not satisfy Require, and do not violate
    /// Prohibit.
    #[must_use]
    pub const fn allows(self, has: Option<bool>) -> bool {
        match self {
            Self::Require => matches!(has, Some(true)),
            Self::Prohibit => !matches!(has, Some(true)),
            Self::Prefer | Self::NoPreference | Self::Avoid => true,
        }
    }

    /// Contribution to a candidate's rank: 1 for a fulfilled preference, -1 for a property to avoid, otherwise 0.
    #[must_use]
    pub const fn points(self, has: Option<bool>) -> i32 {
        match (self, has) {
            (Self::Prefer, Some(true)) => 1,
            (Self::Avoid, Some(true)) => -1,
            _ => 0,
        }
    }

    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Require => "require",
            Self::Prefer => "prefer",
            Self::NoPreference => "no-preference",
            Self::Avoid => "avoid",
            Self::Prohibit => "prohibit",
        }
    }
}

impl fmt::Display for Preference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
