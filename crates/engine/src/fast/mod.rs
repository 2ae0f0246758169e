//! The kernel's fast path for the plain form of the tunnel
//! ([docs/fast-path.md](../../../../docs/fast-path.md)). `lanes.rs` is the worker's part; without the feature `bpf` there is no
//! fast path.

#[cfg(not(feature = "bpf"))]
mod absent;
#[cfg(feature = "bpf")]
mod lanes;
mod local_endpoint;

#[cfg(not(feature = "bpf"))]
pub use absent::{Fast, start};
#[cfg(feature = "bpf")]
pub use lanes::{Fast, start};
pub use local_endpoint::{LocalEndpoint, local_endpoint};

use anabranch_atsss::fast::FastTraffic;

/// A worker's counters of the fast path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FastStatus {
    /// Paths of sessions that the kernel serves at present.
    pub lanes: u64,
    /// Flows given to it.
    pub flows: u64,
    /// Number of times a session took its flows back.
    pub taken_back: u64,
    /// Traffic of the fast path.
    pub traffic: FastTraffic,
    /// Datagrams that it failed to create.
    pub failed: u64,
}

/// The reason for collecting the kernel's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CollectReason {
    /// A periodic collection may be due.
    IfDue,
    /// Datagrams arrived through user space: probes among them contain the number of packets sent by then,
    /// which is compared with the number received by then.
    Received,
    /// A datagram is about to be sent: probes contain the number of packets sent so far.
    Sending,
}
