//! What a session leaves to a faster data path than its own, such as the kernel's.
//!
//! ```text
//!   Session::send ── the flow's packets go plain, in no order, by one path ──▶ DatagramSink::carry(FastFlow)
//!   Session::poll ── another path would be picked, or anything else changed ──▶ DatagramSink::revoke
//!   FastTraffic ──▶ Session::carried: counters, liveness of the path, and whether the lane may go on
//! ```
//!
//! Steering stays here: the faster path only repeats the last decision. A flow qualifies if its packets are in the plain
//! form and need no sequence numbers: that is every mode that does not split flows. Before a switching rule changes
//! path, the flow is taken back, so that the marker is the last packet of the EX path as ever.

use super::PathId;
use super::session::Addresses;
use anabranch_element::time::Duration;
use anabranch_wire::control::PathCounters;
use anabranch_wire::ip::FlowKey;
use std::net::SocketAddr;

/// After a change a session keeps its flows for this long: what is under way by the slower path should arrive first.
pub(crate) const KEEP_AFTER_CHANGE: Duration = Duration::from_secs(1);

const TCP: u8 = 6;
const UDP: u8 = 17;

/// One path of one session, as both data paths know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FastLane {
    /// The session.
    pub session: Addresses,
    /// Our access that the datagrams leave by.
    pub access: PathId,
    /// Where they go.
    pub to: SocketAddr,
}

/// A flow that needs no decision for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FastFlow {
    /// How its packets go.
    pub lane: FastLane,
    /// As its packets have it.
    pub key: FlowKey,
    /// Largest inner packet, in bytes.
    pub mtu: u16,
}

/// What went through a lane since it was told last.
pub type FastTraffic = PathCounters;

/// Whether nothing went through.
#[must_use]
pub const fn is_none(traffic: &FastTraffic) -> bool {
    traffic.tx_packets == 0 && traffic.rx_packets == 0
}

/// Whether packets of this flow may be given away: those that have ports. Fragments have none, nor has anything else
/// that two flows could share.
pub(crate) const fn has_ports(key: &FlowKey) -> bool {
    matches!(key.protocol, TCP | UDP) && key.src_port != 0 && key.dst_port != 0
}
