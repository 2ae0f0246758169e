//! Link emulation: rate, delay, jitter, loss, a bounded queue, and the ways a link can fail.
//!
//! The same [`DuplexLink`] runs in virtual time (the simulator) and in real time (`anabranch link`).
//!
//! ```text
//!            tail drop                medium
//!  offer ─▶ [ waiting ... ] ─▶ server ─▶ loss ─▶ delay + jitter ─▶ take
//!             queue limit      rate or    Bernoulli,   ordered unless
//!                              trace      Gilbert–     `reorder`
//!                                         Elliott
//! ```
//!
//! - [`link`]: one direction. [`duplex`]: both, as an element. [`spec`]: how a person writes a link.
//! - [`ioam`]: a link that fills IOAM traces.
//! - [`rate`]: when a packet has been sent. [`trace`]: recorded rates. [`loss`]: loss models.

pub mod duplex;
pub mod ioam;
pub mod link;
pub mod loss;
pub mod rate;
pub mod spec;
pub mod trace;

pub use duplex::{Direction, DuplexLink, LinkCommand, LinkEvent};
pub use ioam::{IoamNode, Strip};
pub use link::{Link, LinkChange, LinkConfig, LinkStats, QueueLimit};
pub use loss::LossModel;
pub use rate::Rate;
pub use spec::{LinkPatch, LinkSpec, SpecError};
pub use trace::{Trace, TraceError};
