//! Description of the host: interfaces, slices with the facts received from the network, protocols.

use super::ursp::Snssai;
use super::{Protocol, Stack};
use anabranch_element::time::{Duration, Instant};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Everything available for selection.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Host {
    /// Interfaces by name.
    pub interfaces: BTreeMap<String, Interface>,
    /// Slices by id, which is the name of their provisioning domain.
    pub slices: BTreeMap<String, Slice>,
    /// Protocols; the first of duplicates is used.
    pub protocols: Vec<Stack>,
}

impl Host {
    /// A host without interfaces that supports every protocol.
    #[must_use]
    pub fn with_all_protocols() -> Self {
        Self { protocols: Protocol::ALL.map(Stack::from).to_vec(), ..Self::default() }
    }
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Interface {
    /// `cellular`, `wifi`, `ethernet` and so on; empty: unknown.
    pub kind: String,
    /// Whether it can carry packets.
    pub up: bool,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Whether one of them is temporary (RFC 8981).
    pub temporary_address: bool,
    /// Order among equals, like the metric of a route: smaller first.
    pub metric: u32,
}

/// A slice that this host may use, and how packets are sent into it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Slice {
    /// The interface on which its packets leave.
    pub interface: String,
    /// The packet mark that selects it; `None` if the whole interface is the slice.
    pub mark: Option<u32>,
    /// The routing table for the mark.
    pub table: Option<u32>,
    /// Its identity in route selection policies.
    pub snssai: Option<Snssai>,
    /// The data network to which it connects.
    pub dnn: Option<String>,
    /// Facts received from the network, if any.
    pub facts: Option<SliceFacts>,
}

impl Slice {
    /// The facts valid at `now`; `None` once they have exceeded their time to live.
    #[must_use]
    pub fn facts_at(&self, now: Instant) -> Option<&SliceFacts> {
        self.facts.as_ref().filter(|f| now.saturating_since(f.as_of) < f.ttl)
    }
}

/// Facts about a slice received from the network.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SliceFacts {
    /// When they were received.
    pub as_of: Instant,
    /// Time to live.
    pub ttl: Duration,
    /// Upper bound of the round-trip time, in microseconds.
    pub rtt_us: Option<u64>,
    /// Guaranteed uplink rate of this UE, in bit/s.
    pub uplink_guaranteed_bps: Option<u64>,
    /// Maximum uplink rate of this UE, in bit/s.
    pub uplink_max_bps: Option<u64>,
    /// Guaranteed downlink rate of this UE, in bit/s.
    pub downlink_guaranteed_bps: Option<u64>,
    /// Maximum downlink rate of this UE, in bit/s.
    pub downlink_max_bps: Option<u64>,
    /// 5G QoS identifiers of its flows; empty: unknown.
    pub five_qi: Vec<u8>,
    /// Isolation from other slices.
    pub isolation: Option<Isolation>,
}

/// Isolation of a slice from others (GSMA NG.116, "isolation level"), from least to most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// No isolation.
    None,
    /// By virtual resources, network functions or tenants.
    Logical,
    /// By hardware or location.
    Physical,
}
