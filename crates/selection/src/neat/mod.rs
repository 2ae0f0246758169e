//! A policy manager compatible with NEAT: its files (`.policy`, `.profile`, `.cib`), requests and ranking.
//!
//! ```text
//!  request ──▶ profiles ──▶ CIB rows ──▶ policies ──▶ one transport each ──▶ sorted by score, the first 10
//!  [{property: {value, precedence, score}}]
//! ```
//!
//! Reimplements the behaviour of the Python policy manager of <https://github.com/NEAT-project/neat> (`policy/`), and is compared
//! with it by recorded vectors (`vectors.json`). The value of a property is a single value, a set, a numeric range
//! `{"start", "end"}` or any value (`null`). Precedence 2 is immutable, 1 may change, 0 is a default. If two properties meet,
//! equal or overlapping ones become their intersection and their scores are added; of differing ones, the one with higher
//! precedence is kept, and two with precedence 2 reject the candidate.
//!
//! Deliberate differences:
//! - The order is total: on equal scores the request precedes rows, and then the content decides. In NEAT, it depends on the order
//!   of a directory and of hash sets.
//! - A set with one value equals that value, also compared with a range; a set and a range without common values do not match
//!   (NEAT: they match with the empty set); a text is in no range (NEAT: an exception); the empty text equals itself.
//! - Conditions in which NEAT raises an exception are errors that name the place: two differing properties of precedence 2 in one
//!   request, a malformed `local_endpoint`, precedences other than 0, 1, 2. A candidate without `transport` is kept.
//! - Expired CIB nodes are ignored from that moment on; NEAT checks expiry only when it loads them.
//! - A policy or node without `uid` gets one derived from its content (NEAT: from its memory address).
//! - `Infinity` is written as the text `"Inf"`, which both can read; NEAT writes invalid JSON. Both forms are read.
//! - Limits: [`MAX_ROWS`] alternatives per entry, rows and candidates.

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

/// Maximum number of alternatives of one entry, rows of the CIB, and candidates during processing.
pub const MAX_ROWS: usize = 1024;
/// Maximum number of entries of one repository.
pub const MAX_ENTRIES: usize = 1024;

/// Why a document cannot be read, or a question not be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct NeatError {
    /// Place: an entry's uid, a property's key, or the request.
    pub place: String,
    /// The fault, and the valid form.
    pub reason: String,
}

impl NeatError {
    pub(crate) fn new(place: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { place: place.into(), reason: reason.into() }
    }

    /// Adds an outer place.
    fn within(self, outer: &str) -> Self {
        Self { place: format!("{outer}: {}", self.place), reason: self.reason }
    }

    fn too_many(place: impl Into<String>) -> Self {
        Self::new(place, format!("more than {MAX_ROWS} alternatives; split the entry"))
    }
}

#[cfg(test)]
mod tests;
