//! What is read over and over while a scenario runs: TCP sockets, interfaces, links, tunnel ends.

pub mod ends;
pub mod network;
pub mod tcp;

pub use network::{LinkCounters, NetworkSeen, NetworkWatch};
pub use tcp::{TcpSeen, TcpWatch};
