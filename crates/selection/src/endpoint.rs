//! Remote endpoints: resolved addresses, and the order in which equal ones are tried (RFC 8305 §4).

use super::Protocol;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// One resolved address of the peer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// Priority given by the resolver (SVCB, SRV): smaller first. Default: 0.
    #[serde(default)]
    pub priority: u16,
    /// IP address of the remote end.
    pub address: IpAddr,
    /// Port of the remote end.
    pub port: u16,
    /// Protocols known to be supported; empty: unknown, all are tried.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub protocols: BTreeSet<Protocol>,
}

impl Endpoint {
    /// An address without further information.
    #[must_use]
    pub fn new(address: IpAddr, port: u16) -> Self {
        Self { priority: 0, address, port, protocols: BTreeSet::new() }
    }

    /// Address and port.
    #[must_use]
    pub const fn socket_addr(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }

    /// Whether it is known not to support `protocol`.
    #[must_use]
    pub fn refuses(&self, protocol: Protocol) -> bool {
        !self.protocols.is_empty() && !self.protocols.contains(&protocol)
    }
}

/// Sorts endpoints: by priority, then alternating IPv6 and IPv4, IPv6 first; by address within a family, so that the result does
/// not depend on the order of the DNS answer.
pub(super) fn in_order(endpoints: &[Endpoint]) -> Vec<Endpoint> {
    let sorted: BTreeSet<&Endpoint> = endpoints.iter().collect();
    let mut ordered = Vec::with_capacity(sorted.len());
    let priorities: BTreeSet<u16> = sorted.iter().map(|e| e.priority).collect();
    for priority in priorities {
        let of = |v6: bool| {
            sorted.iter().filter(move |e| e.priority == priority && e.address.is_ipv6() == v6).copied()
        };
        let (mut six, mut four) = (of(true), of(false));
        loop {
            let pair = (six.next(), four.next());
            ordered.extend([pair.0, pair.1].into_iter().flatten().cloned());
            if pair == (None, None) {
                break;
            }
        }
    }
    ordered
}
