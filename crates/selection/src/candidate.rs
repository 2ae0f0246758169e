//! One way to make the connection, and why it ranks where it does.

use super::{Endpoint, Protocol};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A path by name: an interface, and the slice on it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PathName {
    /// The interface.
    pub interface: String,
    /// The slice, if it is not the interface's default.
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

/// One way to make the connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Place in the order, from 0.
    pub rank: usize,
    /// The paths, the best first; more than one only for a multipath protocol.
    pub paths: Vec<PathName>,
    /// The protocol.
    pub protocol: Protocol,
    /// Where to.
    pub endpoint: Endpoint,
    /// Upper bound of the round-trip time, in microseconds, of the slowest path; none if not known of all. Racing waits by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<u64>,
    /// Wishes about the path fulfilled, less those to avoid that it has.
    pub path_points: i32,
    /// The same about the protocol.
    pub protocol_points: i32,
    /// Why it ranks where it does, in the order of weight.
    pub reasons: Vec<Reason>,
}

/// One reason for a candidate's rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// The property.
    pub property: String,
    /// What it does to the rank.
    pub effect: Effect,
    /// What the candidate has.
    pub has: String,
}

impl Reason {
    pub(super) fn new(property: impl Into<String>, effect: Effect, has: impl Into<String>) -> Self {
        Self { property: property.into(), effect, has: has.into() }
    }
}

/// What a property does to a candidate's rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// It was required and is there, or was prohibited and is not.
    Satisfies,
    /// A wish fulfilled: up.
    Preferred,
    /// A wish not fulfilled, or not known to be.
    Missed,
    /// Something to avoid: down.
    Avoided,
    /// A measure that equals are ordered by.
    Orders,
}
