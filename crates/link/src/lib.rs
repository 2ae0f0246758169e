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
//! - [`link`]: one direction. [`duplex`]: both, as an element. [`spec`]: the configuration of a link.
//! - [`ioam`]: a link that fills IOAM traces.
//! - [`rate`]: transmission times. [`trace`]: recorded rates. [`loss`]: loss models.
//!
//! ```
//! use anabranch_element::packet::Packet;
//! use anabranch_element::time::Instant;
//! use anabranch_link::{Link, LinkSpec};
//!
//! // 12 Mbit/s, 10 ms: a packet of 1500 bytes takes 1 ms to send.
//! let spec: LinkSpec = serde_json::from_str(r#"{ "rate_bps": 12000000, "delay_ms": 10 }"#)?;
//! let mut link = Link::new(spec.build(&mut |file| Err(format!("there is no file {file}")))?, 1);
//! link.offer(Packet::new(Instant::ZERO, vec![0; 1500]));
//! assert_eq!(link.next_at(), Some(Instant::from_millis(11)));
//! assert!(link.take(Instant::from_millis(11)).is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

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
