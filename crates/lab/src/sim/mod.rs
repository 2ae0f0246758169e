//! The virtual-time network: hosts with a TCP of their own, wires, routers, links, and any element.

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

/// A timer that may not run: when it is due, [`Instant::MAX`] if it does not.
#[inline(always)]
fn due(timer: Option<Instant>) -> Instant {
    timer.unwrap_or(Instant::MAX)
}
