//! The data path: own threads, readiness from epoll, batches in and out, the state machines of `core` in
//! the middle.

pub mod offload;
