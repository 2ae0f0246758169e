//! Parameters, environment and events of a session.

use super::{RuleEvent, Security};
use crate::PathId;
use crate::classify::RuleIndex;
use crate::destinations::Destinations;
use crate::dns::DnsTable;
use crate::drops::DropCounters;
use crate::path::{DownReason, FlapParams, ProbeParams, TrainBudget};
use crate::reorder::Pool;
use crate::table::session::SessionTable;
use anabranch_element::time::{Duration, Instant};
use anabranch_steer::Exclusion;
use anabranch_wire::ip::FlowKey;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// The addresses a session owns inside the tunnel; they are its identity at the UPF (JUNCTION §V-C).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Addresses {
    /// Virtual IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// Virtual IPv6 address.
    pub v6: Option<Ipv6Addr>,
}

impl Addresses {
    /// Whether `address` is one of them.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(a) => self.v4 == Some(a),
            IpAddr::V6(a) => self.v6 == Some(a),
        }
    }

    /// Both, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> {
        self.v4.map(IpAddr::V4).into_iter().chain(self.v6.map(IpAddr::V6))
    }
}

/// Shared state that the owner passes to a session for one call.
pub struct Shared<'a> {
    /// Reorder buffers, bounded over all sessions.
    pub pool: &'a mut Pool,
    /// Limit of the traffic that all sessions may send to measure idle paths.
    pub trains: &'a mut TrainBudget,
    /// Drop counters of the whole tunnel end.
    pub drops: &'a mut DropCounters,
    /// Rates and intervals.
    pub params: &'a SessionParams,
    /// Names learned from DNS answers; the UE only.
    pub dns: Option<&'a DnsTable>,
    /// Exceptions of this user; the UPF only.
    pub exceptions: Option<UserExceptions<'a>>,
    /// When the session may next report a closed destination; the UPF only. Its owner keeps it while the
    /// session rests.
    pub closed_from: Option<&'a mut ReportFrom>,
}

/// Earliest time of the next report of a kind that is limited to one per interval, in whole seconds, so that
/// it takes little memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReportFrom(u32);

impl ReportFrom {
    /// Whether a report may be made now; the next one may be made after `interval`.
    pub fn permits(&mut self, now: Instant, interval: Duration) -> bool {
        let seconds = |at: Instant| u32::try_from(at.as_millis() / 1000).unwrap_or(u32::MAX);
        let permitted = seconds(now) >= self.0;
        if permitted {
            // Rounded up.
            self.0 = seconds(now + interval).saturating_add(1);
        }
        permitted
    }
}

/// The exceptions of one user in the table of all (JUNCTION §V-C1).
#[derive(Clone, Copy)]
pub struct UserExceptions<'a> {
    /// The session table, which all users share.
    pub table: &'a SessionTable,
    /// The user's index in it.
    pub user: u32,
}

impl UserExceptions<'_> {
    /// The rule that applies instead of an application's own, or that one.
    #[must_use]
    pub fn rule(&self, application: RuleIndex) -> RuleIndex {
        self.table.exception(self.user, application).map_or(application, |exception| exception.rule)
    }
}

/// The results of a handshake that concern a whole session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerSettings {
    /// Bit *i*: path *i* is configured `plain` at the peer.
    pub plain: u8,
    /// The largest inner packet agreed on, in bytes.
    pub inner_mtu: u16,
    /// Features of the peer, as bits.
    pub features: u8,
}

/// Parameters of all sessions of a tunnel end.
#[derive(Debug, Clone)]
pub struct SessionParams {
    /// Path probing and failure detection.
    pub probe: ProbeParams,
    /// When a user counts as flapping.
    pub flap: FlapParams,
    /// Largest outer UDP payload to search for on a path, in bytes (interface MTU less outer headers);
    /// 0 switches path MTU discovery off.
    pub max_payload: u16,
    /// Largest inner packet that this end accepts, in bytes. Packets larger than either end accepts are
    /// answered with Packet Too Big.
    pub inner_mtu: u16,
    /// Pausable queues of the pool for stream-wise reordering; see [`crate::reorder::PoolConfig`].
    pub reorder_queues: u16,
    /// After this time without a data packet, expanded ciphers are freed, and a session of the UPF goes to
    /// rest.
    pub cool_after: Duration,
    /// Flows in the plain form are handed over to a faster data path ([`crate::fast`]).
    pub fast_path: bool,
    /// This end has a TCP lane: packets of its addresses are accepted and sent ([`crate::tcp_lane`]).
    pub tcp_lane: bool,
    /// Destinations that UEs may reach (UPF).
    pub destinations: Arc<Destinations>,
}

impl Default for SessionParams {
    fn default() -> Self {
        Self {
            probe: ProbeParams::default(),
            flap: FlapParams::default(),
            max_payload: 1472,
            inner_mtu: 1400,
            reorder_queues: 127,
            cool_after: Duration::from_secs(10),
            fast_path: false,
            tcp_lane: false,
            destinations: Arc::new(Destinations::any()),
        }
    }
}

/// An event of a session.
#[derive(Debug, Clone, PartialEq)]
pub enum SessionEvent {
    /// A path can carry traffic.
    PathUp {
        /// Path id: index of the access.
        path: PathId,
        /// Its RTT, in microseconds.
        rtt_us: u32,
    },
    /// A path stopped carrying traffic.
    PathDown {
        /// Path id: index of the access.
        path: PathId,
        /// How the failure was detected.
        reason: DownReason,
    },
    /// The lasting loss of a path has changed (UE).
    LastingLoss {
        /// Path id: index of the access.
        path: PathId,
        /// Its lasting loss without congestion, the larger of both directions, in percent.
        percent: u8,
    },
    /// Whether answers by a path are overdue has changed (UE). If they stay away, the path is declared down a little later.
    Overdue {
        /// The path.
        path: PathId,
        /// Whether they are.
        overdue: bool,
    },
    /// A path carries nothing, because it is configured `plain` at one end only.
    AccessRefused {
        /// Path id: index of the access.
        path: PathId,
        /// The configuration of this end; the peer has the other one.
        here: Security,
    },
    /// A switching rule has moved to another path.
    Moved {
        /// The rule's name.
        rule: String,
        /// Its previous path; `None` for the first packet.
        from: Option<PathId>,
        /// Its current path.
        to: PathId,
        /// Why it left the previous path; `None` for the first packet, and if paths take turns.
        why: Option<Exclusion>,
    },
    /// The behaviour of a rule has changed.
    Rule {
        /// The rule's name.
        rule: String,
        /// The change.
        event: RuleEvent,
    },
    /// The preferred path changed too often; direct updates are suspended for this time.
    Flapping {
        /// Duration of the suspension.
        pause: Duration,
    },
    /// A path was bound to, or moved to, this endpoint.
    Endpoint {
        /// Path id: index of the access.
        path: PathId,
        /// The address from which its datagrams arrive now.
        address: SocketAddr,
    },
    /// A packet of the UE was for a destination that is closed to UEs (UPF). Reported at most every ten
    /// minutes ([`Shared::closed_from`]).
    ClosedDestination(IpAddr),
    /// A rule requires the owner of this flow (UE).
    OwnerWanted(FlowKey),
    /// Only the UE can classify this flow: the UPF must be informed (UE).
    Hint {
        /// The flow as seen from the UE.
        key: FlowKey,
        /// Name of its rule.
        rule: String,
    },
    /// A complete CONFIG document arrived from the peer (UTF-8 JSON).
    Config(Vec<u8>),
    /// The peer ended the session.
    Closed {
        /// Reason code of the CLOSE message.
        reason: u8,
    },
    /// The peer confirmed new keys.
    Rekeyed {
        /// Receiver index of the keys now in use.
        local_index: u32,
        /// The peer has restarted: everything it had been sent must be sent again.
        fresh_peer: bool,
    },
}

/// Counters of a session, at either end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Inner packets sent to the peer.
    pub tx_packets: u64,
    /// Inner bytes sent to the peer.
    pub tx_bytes: u64,
    /// Inner packets received from the peer, without duplicates, before reordering.
    pub rx_packets: u64,
    /// Inner bytes received from the peer, without duplicates, before reordering.
    pub rx_bytes: u64,
}
