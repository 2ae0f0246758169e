//! Flows of a lane.

use crate::runtime::relay::{self, Full, Kind, Named, Tally, Totals, named};
use anabranch_kern::socket::mptcp_paths;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use tokio::net::TcpStream;

/// One flow.
pub type Flow = relay::Flow<Known>;
/// All flows of a lane. An owner is a session at a UPF, and at a UE an address that it forwards for.
pub type Flows = relay::Flows<Known>;
/// A flow as long as it is there.
pub type Entry = relay::Entry<Known>;

named! {
    /// What carries a flow between UE and UPF.
    pub enum Carrier {
        /// Multipath TCP.
        Mptcp = "mptcp",
        /// TCP on one path: something in between took the options of Multipath TCP away.
        Tcp = "tcp",
        /// The packet lane: the flow goes on to its server as any other.
        Packets = "packets",
    }
}

const CARRIERS: usize = <Carrier as Named>::ALL.len();

named! {
    /// Why a flow was refused, or (at a UE) went by the packet lane.
    pub enum Why {
        /// There are as many as there may be.
        Limit = "limit",
        /// The session, or the address that a UE forwards for, has as many as it may have.
        SessionLimit = "session_limit",
        /// The first bytes are no message of the Convert Protocol, or one that is not served.
        Malformed = "malformed",
        /// The first bytes did not come in time, or the far end left before.
        Silent = "silent",
        /// Its destination is not served.
        Destination = "destination",
        /// The server cannot be reached.
        Unreachable = "unreachable",
        /// The server refuses.
        Reset = "reset",
        /// A socket could not be opened, for instance because there are no descriptors left.
        Socket = "socket",
        /// UE: its rule says `ll`; it was led here because of another rule.
        Rule = "rule",
        /// UE: the UPF's lane does not answer, or refuses.
        NoLane = "no_lane",
        /// UE: Multipath TCP was stripped a short while ago.
        Stripped = "stripped",
    }
}

/// What is counted beside refusals.
#[derive(Debug, Default)]
pub struct Counters {
    /// UE: flows that go by the packet lane.
    pub packets: Tally<Why>,
}

/// What a lane knows of a flow.
#[derive(Debug, Default)]
pub struct Known {
    /// Where it goes. The UPF's has none before the first bytes.
    pub server: OnceLock<SocketAddr>,
    /// What carries it, once something does.
    pub carrier: OnceLock<Carrier>,
    /// UE: a program of the UE itself opened it.
    pub own: bool,
    /// The connection between UE and UPF.
    pub between: OnceLock<Arc<TcpStream>>,
}

impl Known {
    /// Subflows there are; 1 where there is no Multipath TCP.
    pub fn subflows(&self) -> u8 {
        let between = self.between.get();
        between.and_then(|stream| mptcp_paths(&**stream).ok().flatten()).unwrap_or(1)
    }
}

impl Kind for Known {
    type Why = Why;
    type Counters = Counters;
    type Sums = [Totals; CARRIERS];

    const LIMIT_KEY: &'static str = "[tcp_lane] flows";

    fn shares(&self) -> bool {
        !self.own
    }

    fn why(full: Full) -> Why {
        match full {
            Full::Table => Why::Limit,
            Full::Share => Why::SessionLimit,
            Full::Descriptors => Why::Socket,
        }
    }

    fn add(flow: &Flow, totals: Totals, to: &mut Self::Sums) {
        // Those that nothing carried are among the refused.
        if let Some(carrier) = flow.of.carrier.get() {
            to[*carrier as usize].add(totals);
        }
    }
}
