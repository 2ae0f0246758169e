//! The flows of a lane, and their counters.

use crate::runtime::relay::{self, LimitReached, Named, RelayKind, Tally, Totals, named};
use anabranch_kern::socket::mptcp_paths;
use std::net::SocketAddr;
use std::sync::{OnceLock, Weak};
use tokio::net::TcpStream;

pub type Flow = relay::Flow<FlowProperties>;
/// All flows of a lane. The owner of a flow is a session at a UPF, and a client address of forwarded flows at
/// a UE.
pub type Flows = relay::Flows<FlowProperties>;
/// A flow's registration, which ends when it is dropped.
pub type Entry = relay::Entry<FlowProperties>;

named! {
    /// The carrier of a flow between UE and UPF.
    pub enum Carrier {
        /// Multipath TCP.
        Mptcp = "mptcp",
        /// TCP on one path, because a middlebox removed the options of Multipath TCP.
        Tcp = "tcp",
        /// The packet lane: the flow continues to its server like any other.
        Packets = "packets",
    }
}

const CARRIERS: usize = <Carrier as Named>::ALL.len();

named! {
    /// Reason why a flow was refused, or (at a UE) used the packet lane.
    pub enum Reason {
        /// The maximum number of flows is reached.
        Limit = "limit",
        /// The maximum number of flows of the session, or of the client address of forwarded flows, is
        /// reached.
        SessionLimit = "session_limit",
        /// The first bytes are not a message of the Convert Protocol, or not a supported one.
        Malformed = "malformed",
        /// The first bytes did not arrive in time, or the peer closed the connection before.
        Silent = "silent",
        /// The destination is not permitted.
        Destination = "destination",
        /// The server cannot be reached.
        Unreachable = "unreachable",
        /// The server refused the connection.
        Reset = "reset",
        /// A socket could not be opened, for example for lack of file descriptors.
        Socket = "socket",
        /// The flows of the session or client hold more data than they may.
        Memory = "memory",
        /// UE: its rule has `ll`; it was redirected because of another rule.
        Rule = "rule",
        /// UE: the UPF's lane does not answer, or refuses the flow.
        NoLane = "no_lane",
        /// UE: Multipath TCP options were removed a short while ago.
        Stripped = "stripped",
    }
}

/// Counters besides the refusals.
#[derive(Debug, Default)]
pub struct Counters {
    /// UE: flows on the packet lane, by reason.
    pub packets: Tally<Reason>,
}

/// Properties of a flow that only the TCP lane has.
#[derive(Debug, Default)]
pub struct FlowProperties {
    /// Destination. At the UPF unset until the first bytes arrive.
    pub server: OnceLock<SocketAddr>,
    /// The carrier; unset while the flow connects.
    pub carrier: OnceLock<Carrier>,
    /// UE: whether a program of the UE itself opened it.
    pub own: bool,
    /// The connection between UE and UPF.
    pub lane_stream: OnceLock<Weak<TcpStream>>,
}

impl FlowProperties {
    /// Whether it has a connection between UE and UPF.
    pub fn is_connected(&self) -> bool {
        self.lane_stream.get().is_some_and(|stream| stream.strong_count() > 0)
    }

    /// Number of subflows; 1 without Multipath TCP.
    pub fn subflows(&self) -> u8 {
        let lane_stream = self.lane_stream.get().and_then(Weak::upgrade);
        lane_stream.and_then(|stream| mptcp_paths(&*stream).ok().flatten()).unwrap_or(1)
    }
}

impl RelayKind for FlowProperties {
    type Reason = Reason;
    type Counters = Counters;
    type Sums = [Totals; CARRIERS];

    const LIMIT_KEY: &'static str = "[tcp_lane] flows";

    fn shares(&self) -> bool {
        !self.own
    }

    fn reason(full: LimitReached) -> Reason {
        match full {
            LimitReached::Table => Reason::Limit,
            LimitReached::Share => Reason::SessionLimit,
            LimitReached::Descriptors => Reason::Socket,
        }
    }

    fn add(flow: &Flow, totals: Totals, to: &mut Self::Sums) {
        // Flows without a carrier are among the refused ones.
        if let Some(carrier) = flow.of.carrier.get() {
            to[*carrier as usize].add(totals);
        }
    }
}
