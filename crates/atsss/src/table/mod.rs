//! State tables of a tunnel end: the session of a packet, and the state of its flow.
//!
//! ```text
//!   inner destination  --> session.rs  virtual IP -> (user, session); (session, application) -> exception
//!   receiver index     --> session.rs  index with generation -> (user, key epoch)
//!   5-tuple of a packet -> flow.rs     flow -> rule, sequence number (bounded, least recently used)
//! ```
//!
//! The containers are in `open.rs`, `slab.rs` and [`HashIndex`](anabranch_element::index::HashIndex).
//! `access::memory` computes their memory.

pub mod flow;
mod open;
pub mod session;
mod slab;

pub use slab::{Slab, SlabLayout};

use thiserror::Error;

/// Why a table rejected an operation. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TableError {
    /// A configured limit is reached.
    #[error("the table of {what} is full ({limit} entries): raise the limit or remove entries")]
    Full {
        /// Contents of the table.
        what: &'static str,
        /// Its configured size.
        limit: usize,
    },
    /// The key already exists.
    #[error("this entry is already in the table of {what}")]
    Exists {
        /// Contents of the table.
        what: &'static str,
    },
    /// The key does not exist, or its generation has passed.
    #[error("no such entry in the table of {what}")]
    Unknown {
        /// Contents of the table.
        what: &'static str,
    },
    /// There are still entries that refer to the user.
    #[error(
        "the user still has {sessions} addresses, {receivers} receiver indices and {exceptions} exceptions: remove them first"
    )]
    InUse {
        /// Virtual addresses in the session table.
        sessions: u16,
        /// Receiver indices.
        receivers: u16,
        /// Exceptions (rules for single applications).
        exceptions: u16,
    },
}
