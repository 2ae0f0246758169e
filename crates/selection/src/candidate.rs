//! A candidate connection, and the reasons for its rank.

use super::{Endpoint, Protocol};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Name of a path: an interface, and a slice on it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PathName {
    /// Name of the interface.
    pub interface: String,
    /// The slice, unless it is the interface's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pvd: Option<String>,
}

impl fmt::Display for PathName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pvd {
            Some(pvd) => write!(f, "{pvd} on {}", self.interface),
            None => f.write_str(&self.interface),
        }
    }
}

/// A candidate connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Rank, from 0.
    pub rank: usize,
    /// The paths, best first; several only for a multipath protocol.
    pub paths: Vec<PathName>,
    /// Transport protocol, possibly multipath.
    pub protocol: Protocol,
    /// The remote endpoint.
    pub endpoint: Endpoint,
    /// Upper bound of the round-trip time of the slowest path, in microseconds; `None` if it is not known for all paths. Determines
    /// the delay between attempts when racing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<u64>,
    /// Number of path preferences fulfilled, minus the properties to avoid that the paths have.
    pub path_points: i32,
    /// The same for protocol preferences.
    pub protocol_points: i32,
    /// Reasons for the rank, in the order of weight.
    pub reasons: Vec<Reason>,
}

/// One reason for a candidate's rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// Name of the selection property.
    pub property: String,
    /// Its effect on the rank.
    pub effect: Effect,
    /// The candidate's value of the property.
    pub has: String,
}

impl Reason {
    pub(super) fn new(property: impl Into<String>, effect: Effect, has: impl Into<String>) -> Self {
        Self { property: property.into(), effect, has: has.into() }
    }
}

/// Effect of a property on the rank of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// Required and present, or prohibited and absent.
    Satisfies,
    /// A fulfilled preference: raises the rank.
    Preferred,
    /// A preference that is not fulfilled, or not known to be.
    Missed,
    /// A property to avoid: lowers the rank.
    Avoided,
    /// A measure that orders otherwise equal candidates.
    Orders,
}
