//! The network in virtual time: hosts with a TCP implementation, wires, routers, links, and any element.

mod deadlines;
pub mod host;
pub mod network;
pub mod resequence;
pub mod router;
mod spare;
pub mod stream;
pub mod tcp;
pub mod tcp_app;
pub mod udp_app;

use anabranch_element::time::Instant;

/// Deadline of an optional timer; [`Instant::MAX`] if it is not set.
#[inline(always)]
fn due(timer: Option<Instant>) -> Instant {
    timer.unwrap_or(Instant::MAX)
}
