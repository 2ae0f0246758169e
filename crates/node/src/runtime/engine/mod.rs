//! The data path: threads with epoll that move packets in batches through the state machines of crate
//! `atsss`.

pub mod deferred;
pub mod device;
pub mod ends;
pub mod fast;
pub mod handover;
pub mod inner;
pub mod offload;
pub mod udp;
pub mod worker;

#[cfg(test)]
mod tests;
