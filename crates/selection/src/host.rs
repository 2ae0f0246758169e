//! What the host has: interfaces, slices with the facts the network told about them, protocols.

use super::ursp::Snssai;
use super::{Protocol, Stack};
use anabranch_element::time::{Duration, Instant};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Everything there is to choose from.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Host {
    /// Interfaces by name.
    pub interfaces: BTreeMap<String, Interface>,
    /// Slices by id, which is the name of their provisioning domain.
    pub slices: BTreeMap<String, Slice>,
    /// Protocols; of one named twice, the first counts.
    pub protocols: Vec<Stack>,
}

impl Host {
    /// A host without interfaces that speaks every protocol.
    #[must_use]
    pub fn with_all_protocols() -> Self {
        Self { protocols: Protocol::ALL.map(Stack::from).to_vec(), ..Self::default() }
    }
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Interface {
    /// `cellular`, `wifi`, `ethernet` and so on; empty: not known.
    pub kind: String,
    /// Whether it can carry packets.
    pub up: bool,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Whether one of them is a temporary one (RFC 8981).
    pub temporary_address: bool,
    /// Order among equals, as a route's metric: smaller first.
    pub metric: u32,
}

/// A slice this host belongs to, and how packets get into it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Slice {
    /// The interface its packets leave by.
    pub interface: String,
    /// The packet mark that selects it. Without one, the whole interface is the slice.
    pub mark: Option<u32>,
    /// The routing table of the mark.
    pub table: Option<u32>,
    /// Its identity, by which route selection policies name it.
    pub snssai: Option<Snssai>,
    /// The data network it leads to.
    pub dnn: Option<String>,
    /// What the network told about it, if anything.
    pub facts: Option<SliceFacts>,
}

impl Slice {
    /// What is known at `now`: nothing, once the facts are older than their time to live.
    #[must_use]
    pub fn facts_at(&self, now: Instant) -> Option<&SliceFacts> {
        self.facts.as_ref().filter(|f| now.saturating_since(f.as_of) < f.ttl)
    }
}

/// What the network told about a slice.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SliceFacts {
    /// When it was told.
    pub as_of: Instant,
    /// How long it counts.
    pub ttl: Duration,
    /// Upper bound of the round-trip time, in microseconds.
    pub rtt_us: Option<u64>,
    /// Guaranteed uplink rate of this UE, in bit/s.
    pub uplink_guaranteed_bps: Option<u64>,
    /// Largest uplink rate of this UE, in bit/s.
    pub uplink_max_bps: Option<u64>,
    /// Guaranteed downlink rate of this UE, in bit/s.
    pub downlink_guaranteed_bps: Option<u64>,
    /// Largest downlink rate of this UE, in bit/s.
    pub downlink_max_bps: Option<u64>,
    /// 5G QoS identifiers of its flows; empty: not known.
    pub five_qi: Vec<u8>,
    /// How it is kept apart from other slices.
    pub isolation: Option<Isolation>,
}

/// How a slice is kept apart from others (GSMA NG.116, "isolation level"), from least to most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// Not at all.
    None,
    /// By virtual resources, network functions or tenants.
    Logical,
    /// By hardware or place.
    Physical,
}
