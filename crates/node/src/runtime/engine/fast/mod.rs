//! The kernel's fast path of the tunnel's plain form ([docs/fast-path.md](../../../../docs/fast-path.md)): `[device]
//! fast_path = true`. `lanes.rs` has what a worker does for it; without the feature `bpf` there is none.

#[cfg(not(feature = "bpf"))]
mod absent;
#[cfg(feature = "bpf")]
mod lanes;
mod place;

#[cfg(not(feature = "bpf"))]
pub use absent::{Fast, start};
#[cfg(feature = "bpf")]
pub use lanes::{Fast, start};
pub use place::{Place, place};

use anabranch_atsss::fast::FastTraffic;

/// What a worker counts of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FastStatus {
    /// Paths of sessions that the kernel serves now.
    pub lanes: u64,
    /// Flows given to it.
    pub flows: u64,
    /// Times that a session took everything back.
    pub taken_back: u64,
    /// What went by it.
    pub traffic: FastTraffic,
    /// Datagrams it lost while it made them.
    pub failed: u64,
}

/// Why a worker looks at what the kernel has carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CollectReason {
    /// The time may have come.
    IfDue,
    /// Datagrams have come that it did not carry: probes say what had been sent by then, and are compared with what had
    /// been received by then.
    Received,
    /// Something is about to be sent: probes say what has been sent so far.
    Sending,
}
