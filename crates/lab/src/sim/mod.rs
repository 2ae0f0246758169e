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

use anabranch_core::element::Reason;
use anabranch_core::time::Instant;

/// The sooner of two deadlines; the first if they are at one time.
#[inline(always)]
fn sooner(a: Option<(Instant, Reason)>, b: Option<(Instant, Reason)>) -> Option<(Instant, Reason)> {
    match (a, b) {
        (Some(first), Some(second)) => Some(if second.0 < first.0 { second } else { first }),
        (a, b) => a.or(b),
    }
}
