//! Reordering: packets of one flow or stream that took different paths are delivered in the order in which
//! they were sent (JUNCTION §V-D1, and for splitting modes in the uplink, which the paper leaves open).
//!
//! | engine | modes | order kept by |
//! |---|---|---|
//! | [`FlowReorder`] | load-balance, priority-based, redundant | sequence number per flow |
//! | [`StreamReorder`], [`StreamSender`] | active-standby, smallest-delay | epoch per stream, paused FIFO queues |
//!
//! Both take packet memory from one [`Pool`] per worker, deliver into a [`PacketSink`], and never drop a
//! packet because a bound was reached: they deliver it early. docs/atsss-reordering.md describes the rules,
//! the bounds and the limitations.
//!
//! [`PacketSink`]: super::PacketSink

mod flow;
mod flows;
mod law;
mod pool;
mod seen;
mod stream;

pub use flow::{FlowReorder, FlowStats, Hold, Outcome};
pub use law::initial_sequence;
pub use pool::{Pool, PoolConfig, Usage};
pub use stream::{
    Marker, StreamLimits, StreamOutcome, StreamReorder, StreamSender, StreamStats, Switch, hold_timeout,
};

use anabranch_element::time::Duration;

/// Largest distance between the expected packet and the furthest one held, and range below the expected one
/// in which duplicates are recognised. 4096 packets of 1400 bytes are 50 ms at 900 Mbit/s.
pub const WINDOW: u32 = 4096;

/// Limits of sequence-based reordering, per session unless stated otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowLimits {
    /// Flows with state; the least recently used one is evicted. Default 256.
    pub flows: u16,
    /// Packets held per flow, at most [`WINDOW`]. Default 4096.
    pub packets_per_flow: u16,
    /// Bytes held per flow. Default 4 MiB.
    pub bytes_per_flow: u32,
    /// Bytes held per session. Default 16 MiB.
    pub bytes: u32,
    /// Least hold time. Default 1 ms.
    pub min_hold: Duration,
    /// Longest hold time: no packet ever waits longer. Default 200 ms.
    pub max_hold: Duration,
    /// A path is taken to have lost a missing packet once it has delivered this many later packets of the
    /// flow. Reordering within a path by one packet less is tolerated. Default 3, TCP's threshold of
    /// duplicate acknowledgements (RFC 5681 §3.2).
    pub overtakes: u16,
}

impl Default for FlowLimits {
    fn default() -> Self {
        Self {
            flows: 256,
            packets_per_flow: WINDOW as u16,
            bytes_per_flow: 4 << 20,
            bytes: 16 << 20,
            min_hold: Duration::from_millis(1),
            max_hold: Duration::from_millis(200),
            overtakes: 3,
        }
    }
}
