//! One access path of a session: where it leads, how it is protected, how it is doing.

use crate::access::PathId;
use crate::access::mtu::PathMtu;
use crate::access::path::{PathMonitor, ProbeParams, Role};
use crate::element::Reason;
use crate::time::Instant;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// How user data is protected on a path. Control is always sealed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Security {
    /// Encrypted and authenticated: the default, and right for every Wi-Fi hop.
    #[default]
    Secure,
    /// In the clear with the 8-byte header only: for an access that is protected underneath, as 5G is.
    Plain,
}

/// One access path of a session.
pub struct Path {
    /// Where its datagrams go; unknown at the UPF until the first authenticated packet.
    pub endpoint: Option<SocketAddr>,
    /// Which of our own accesses (sockets) they leave by. At the UE this is the path id; at the UPF
    /// the access the path's newest packet came in by.
    pub access: PathId,
    /// How user data is protected.
    pub security: Security,
    /// Probes, RTT, loss and availability.
    pub monitor: PathMonitor,
    /// Path MTU search; only the UE probes.
    pub mtu: Option<Box<PathMtu>>,
}

/// A path as shown to people and metrics.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PathView {
    /// Path id.
    pub path: PathId,
    /// Name of the access.
    pub access: String,
    /// Peer address in use.
    pub endpoint: Option<SocketAddr>,
    /// Protection of user data.
    pub security: Security,
    /// Whether it carries traffic.
    pub up: bool,
    /// Why it does not, as [`crate::access::path::DownReason::as_str`] says it.
    pub down: Option<&'static str>,
    /// Smoothed RTT, in microseconds; 0 when unknown.
    pub rtt_us: u32,
    /// Smallest RTT seen, in microseconds; 0 when unknown.
    pub rtt_min_us: u32,
    /// Loss towards the peer, in parts per million.
    pub loss_tx_ppm: u32,
    /// Loss from the peer, in parts per million.
    pub loss_rx_ppm: u32,
    /// User-data datagrams sent.
    pub tx_packets: u64,
    /// User-data bytes sent, headers of the tunnel included.
    pub tx_bytes: u64,
    /// User-data datagrams received.
    pub rx_packets: u64,
    /// User-data bytes received, headers of the tunnel included.
    pub rx_bytes: u64,
    /// Largest UDP payload the path is known to carry, in bytes; 0 when not searched.
    pub mtu_bytes: u16,
}

impl Path {
    /// A path that leads nowhere yet.
    #[must_use]
    pub fn new(role: Role, access: PathId, params: &ProbeParams, now: Instant) -> Self {
        Self {
            endpoint: None,
            access,
            security: Security::Secure,
            monitor: PathMonitor::new(role, params, now),
            mtu: None,
        }
    }

    /// When the path wants attention, and why.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        self.endpoint?;
        let up = self.monitor.is_up();
        let mtu = self.mtu.as_ref().filter(|_| up).and_then(|m| m.poll_timeout());
        [self.monitor.poll_timeout(), mtu].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    pub(super) fn view(&self, id: usize, access: &str) -> PathView {
        let rtt = self.monitor.rtt();
        let counters = self.monitor.counters();
        PathView {
            path: PathId::try_from(id).unwrap_or(PathId::MAX),
            access: access.to_owned(),
            endpoint: self.endpoint,
            security: self.security,
            up: self.monitor.is_up(),
            down: self.monitor.down_reason().map(|reason| reason.as_str()),
            rtt_us: super::micros(rtt.smoothed),
            rtt_min_us: super::micros(rtt.minimum),
            loss_tx_ppm: self.monitor.loss_tx_ppm(),
            loss_rx_ppm: self.monitor.loss_rx_ppm(),
            tx_packets: counters.tx_packets,
            tx_bytes: counters.tx_bytes,
            rx_packets: counters.rx_packets,
            rx_bytes: counters.rx_bytes,
            mtu_bytes: self.mtu.as_ref().map_or(0, |m| m.usable()),
        }
    }
}
