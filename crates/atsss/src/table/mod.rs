//! State tables of a tunnel end: who a packet belongs to, and what is remembered of its flow.
//!
//! ```text
//!   inner destination  --> session.rs  virtual IP -> (user, session); (session, application) -> exception
//!   receiver index     --> session.rs  index with generation -> (user, key epoch)
//!   5-tuple of a packet -> flow.rs     flow -> rule, sequence number (bounded, least recently used)
//! ```
//!
//! `open.rs`, `slab.rs` and [`HashIndex`](anabranch_element::index::HashIndex) are the containers underneath; `access::memory`
//! computes what they cost.

pub mod flow;
mod open;
pub mod session;
mod slab;

pub use slab::{Slab, SlabLayout};

use thiserror::Error;

/// Why a table refused an operation. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TableError {
    /// A configured limit is reached.
    #[error("the table of {what} is full ({limit} entries): raise the limit or remove entries")]
    Full {
        /// What the table holds.
        what: &'static str,
        /// Its configured size.
        limit: usize,
    },
    /// The key is already there.
    #[error("this entry is already in the table of {what}")]
    Exists {
        /// What the table holds.
        what: &'static str,
    },
    /// The key is not there, or its generation has passed.
    #[error("no such entry in the table of {what}")]
    Unknown {
        /// What the table holds.
        what: &'static str,
    },
    /// The user still has entries that refer to it.
    #[error(
        "the user still has {sessions} addresses, {receivers} receiver indices and {exceptions} exceptions: remove them first"
    )]
    InUse {
        /// Virtual addresses in the session table.
        sessions: u16,
        /// Receiver indices.
        receivers: u16,
        /// Exceptions.
        exceptions: u16,
    },
}
