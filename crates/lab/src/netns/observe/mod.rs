//! Periodic observations during a run: TCP sockets, interfaces, links, tunnel ends.

pub mod acks;
pub mod ends;
mod listen;
pub mod mib;
pub mod network;
pub mod tcp;
pub mod traces;

pub use acks::{AckObservations, AckTap};
pub use network::{LinkCounters, NetworkObservations, NetworkWatch};
pub use tcp::{TcpObservations, TcpWatch};
pub use traces::{TraceObservations, TraceTap};
