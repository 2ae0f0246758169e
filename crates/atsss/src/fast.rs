//! Flows that a session hands over to a faster data path, such as the kernel's.
//!
//! ```text
//!   Session::send ── the flow's packets go plain, in no order, by one path ──▶ DatagramSink::carry(FastFlow)
//!   Session::poll ── another path would be picked, or anything else changed ──▶ DatagramSink::revoke
//!   FastTraffic ──▶ Session::carried: counters, liveness of the path, and whether the lane may go on
//! ```
//!
//! Steering stays here: the faster path only repeats the last decision. A flow qualifies if its packets are
//! in the plain form and need no sequence numbers, that is, in every mode that does not split flows. Before a
//! switching rule changes its path, the flow is taken back, so that the marker is always the last packet of
//! the EX path.

use super::PathId;
use super::session::Addresses;
use anabranch_element::time::Duration;
use anabranch_wire::control::PathCounters;
use anabranch_wire::ip::FlowKey;
use std::net::SocketAddr;

/// After a change, a session hands over no flow for this time, so that packets in flight on the slower path
/// arrive first.
pub(crate) const KEEP_AFTER_CHANGE: Duration = Duration::from_secs(1);

const TCP: u8 = 6;
const UDP: u8 = 17;

/// One path of one session, as identified by both data paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FastLane {
    /// Inner addresses of the session, which identify it.
    pub session: Addresses,
    /// Our access by which the datagrams leave.
    pub access: PathId,
    /// Their destination.
    pub to: SocketAddr,
}

/// A flow that currently needs no decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FastFlow {
    /// The path of its packets.
    pub lane: FastLane,
    /// The 5-tuple of its packets.
    pub key: FlowKey,
    /// Largest inner packet, in bytes.
    pub mtu: u16,
}

/// Traffic of a lane since the last report.
pub type FastTraffic = PathCounters;

/// Whether there was no traffic.
#[must_use]
pub const fn is_none(traffic: &FastTraffic) -> bool {
    traffic.tx_packets == 0 && traffic.rx_packets == 0
}

/// Whether packets of this flow may be handed over: those with ports. Fragments have none, and neither have
/// other packets that two flows could share.
pub(crate) const fn has_ports(key: &FlowKey) -> bool {
    matches!(key.protocol, TCP | UDP) && key.src_port != 0 && key.dst_port != 0
}
