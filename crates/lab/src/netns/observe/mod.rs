//! Periodic observations during a run: TCP sockets, interfaces, links, tunnel ends.

pub mod acks;
pub mod ends;
mod listen;
pub mod mib;
pub mod network;
pub mod tcp;
pub mod traces;

pub use acks::{AckTap, AcksSeen};
pub use network::{LinkCounters, NetworkSeen, NetworkWatch};
pub use tcp::{TcpSeen, TcpWatch};
pub use traces::{TraceTap, TracesSeen};
