//! The virtual-time network: hosts with a TCP of their own, wires, routers, links, and any element.

pub mod host;
pub mod network;
pub mod resequence;
pub mod router;
mod spare;
pub mod stream;
pub mod tcp;
pub mod tcp_app;
pub mod udp_app;
