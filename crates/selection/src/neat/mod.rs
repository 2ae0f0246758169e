//! A policy manager that speaks NEAT: its files (`.policy`, `.profile`, `.cib`), its requests, its ranking.
//!
//! ```text
//!  request ──▶ profiles ──▶ CIB rows ──▶ policies ──▶ one transport each ──▶ sorted by score, the first 10
//!  [{property: {value, precedence, score}}]
//! ```
//!
//! Written after the behaviour of the policy manager in Python of <https://github.com/NEAT-project/neat>
//! (`policy/`), which is compared with by recorded vectors (`vectors.json`). A property's value is a single
//! value, a set, a numeric range `{"start", "end"}` or anything (`null`); precedence 2 cannot be changed, 1 may
//! be, 0 is a default. Where two properties meet, equal or overlapping ones become their intersection and add
//! their scores; of differing ones that of higher precedence stays, and two of precedence 2 reject the candidate.
//!
//! Deliberate differences:
//! - The order is total: equal scores keep the request before rows, then go by content. NEAT leaves it to the
//!   order of a directory and of hash sets.
//! - A set of one value is that value, also against a range; a set and a range that have nothing in common do
//!   not match (NEAT: a match with the empty set); a text is in no range (NEAT stops with an exception); the
//!   empty text equals itself.
//! - What NEAT stops at with an exception is an error that names the place: two properties of precedence 2 in
//!   one request that differ, a malformed `local_endpoint`, precedences other than 0, 1, 2. A candidate without
//!   `transport` is kept.
//! - CIB nodes that expire stop counting when they do; NEAT looks only when it loads them.
//! - A policy or node without `uid` gets one from its content (NEAT: from its address in memory).
//! - `Infinity` is written as the text `"Inf"`, which both read; NEAT writes what is no JSON. Read are both.
//! - Bounds: [`MAX_ROWS`] alternatives per entry, rows and candidates.

mod array;
mod cib;
mod json;
mod manager;
mod pib;
mod property;
mod slices;
mod sockopt;
mod value;

pub use array::{MultiArray, PropertyArray, Score};
pub use cib::{Cib, Node};
pub use manager::{Candidate, Manager};
pub use pib::{Pib, Policy};
pub use property::{Precedence, Property};
pub use slices::slice_node;
pub use value::{Scalar, Value};

/// Most alternatives of one entry, rows of the CIB, and candidates under way.
pub const MAX_ROWS: usize = 1024;
/// Most entries of one repository.
pub const MAX_ENTRIES: usize = 1024;

/// Why something NEAT-like cannot be read or answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct NeatError {
    /// Where: an entry's uid, a property's key, or the request.
    pub place: String,
    /// What is wrong, and what would be right.
    pub reason: String,
}

impl NeatError {
    pub(crate) fn new(place: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { place: place.into(), reason: reason.into() }
    }

    /// The same, further out.
    fn within(self, outer: &str) -> Self {
        Self { place: format!("{outer}: {}", self.place), reason: self.reason }
    }

    fn too_many(place: impl Into<String>) -> Self {
        Self::new(place, format!("more than {MAX_ROWS} alternatives; split the entry"))
    }
}

#[cfg(test)]
mod tests;
