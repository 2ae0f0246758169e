//! The data path: own threads, readiness from epoll, batches in and out, the state machines of `core` in
//! the middle.

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
