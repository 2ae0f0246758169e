//! The REST representation of an LWIP node, and the changes that it accepts at run time.

use crate::runtime::api::problem::Problem;
use crate::runtime::api::request::Reply;
use anabranch_lwip::{DidaConfig, Hold, OtherTraffic, Steering, WifiLeg};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A request to an LWIP node.
pub enum LwipRequest {
    /// State of the node.
    Node(Reply<LwipNode>),
    /// Change steering or hold time.
    Set(Box<LwipChange>, Reply<LwipNode>),
    /// Flows from index `offset` on, at most `limit`.
    Flows {
        /// Number of flows to skip.
        offset: usize,
        /// Maximum number of flows in the answer.
        limit: usize,
        /// Receives the answer.
        reply: Reply<LwipFlows>,
    },
}

impl LwipRequest {
    /// Refuses the request in a program that is not an LWIP node.
    pub fn refuse(self) {
        let why = || {
            Problem::not_here("this is not an LWIP node", "send the request to the agent of `anabranch lwip`")
        };
        match self {
            Self::Node(reply) | Self::Set(_, reply) => drop(reply.send(Err(why()))),
            Self::Flows { reply, .. } => drop(reply.send(Err(why()))),
        }
    }
}

/// Configuration in force and counters of an LWIP node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LwipNode {
    /// Name of the node.
    pub name: String,
    /// Division of TCP between the legs, an object with `mode`.
    #[schema(value_type = Object)]
    pub steering: Steering,
    /// Leg of UDP: `lte`, `wifi` or `by_flow`.
    #[schema(value_type = String)]
    pub other: OtherTraffic,
    /// Form of packets on the Wi-Fi leg: `translate` or `tunnel`.
    #[schema(value_type = String)]
    pub wifi_leg: WifiLeg,
    /// DIDA, an object with `let_through` and `hold`; absent: ACKs are not held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub dida: Option<DidaConfig>,
    /// Number of configured UEs.
    pub ues: u64,
    /// Number of flows in the table.
    pub flows: u64,
    /// Flows created since the start.
    pub new_flows: u64,
    /// Flows evicted to make room for others.
    pub evicted_flows: u64,
    /// Memory of flows, held ACKs and timers, bytes.
    pub memory_bytes: u64,
    /// The two legs: LTE, then Wi-Fi.
    pub legs: Vec<LwipLeg>,
    /// Measurements of the probes, per UE and leg; at most 256 UEs.
    pub links: Vec<LwipLink>,
    /// ACKs in the uplink.
    pub acks: LwipAcks,
    /// Durations of the holds.
    pub holds: LwipHolds,
    /// Packets that were passed on without steering or inspection, by reason.
    pub passed: BTreeMap<String, u64>,
}

/// One of the two legs to the UEs, since the start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LwipLeg {
    /// `lte` or `wifi`.
    pub leg: String,
    /// Downlink packets.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// TCP packets with data among them, which are subject to steering.
    pub steered: u64,
    /// The leg's share of the TCP packets with data, percent.
    pub steered_percent: f64,
}

/// Measurements of the probes on one leg of a UE.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LwipLink {
    /// Name of the UE.
    pub ue: String,
    /// `lte` or `wifi`.
    pub leg: String,
    /// Whether probes are being answered.
    pub up: bool,
    /// Smoothed round-trip time, milliseconds; absent when unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_ms: Option<f64>,
    /// Rate, bit/s; a lower bound until the leg has been busy. Absent when unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<f64>,
    /// Probes sent.
    pub probes: u64,
    /// Probes answered.
    pub answers: u64,
}

/// ACKs in the uplink, since the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LwipAcks {
    /// Uplink packets of any kind.
    pub uplink_packets: u64,
    /// ACKs that acknowledge new data.
    pub advances: u64,
    /// Duplicate ACKs from UEs, held or not.
    pub duplicates: u64,
    /// Duplicate ACKs forwarded without a hold.
    pub let_through: u64,
    /// Third consecutive duplicate ACKs that were forwarded to a sender.
    pub triple_duplicates: u64,
    /// Duplicate ACKs that were held.
    pub held: u64,
    /// ACKs held at present.
    pub holding: u64,
    /// Held ACKs that were forwarded.
    pub released: u64,
    /// Held ACKs that were discarded because the missing data was acknowledged.
    pub superseded: u64,
}

/// Histogram of the durations of holds, since the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LwipHolds {
    /// Number of holds by reason of their end.
    pub ended: BTreeMap<String, u64>,
    /// Upper bounds of the buckets, milliseconds; the last bucket is unbounded.
    pub bounds_ms: Vec<f64>,
    /// Number of holds in each bucket.
    pub counts: Vec<u64>,
    /// Sum of all durations, milliseconds.
    pub sum_ms: f64,
}

/// Changes. Members that are left out stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LwipChange {
    /// Division of TCP between the legs, an object with `mode`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub steering: Option<Steering>,
    /// Leg of UDP: `lte`, `wifi` or `by_flow`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub other: Option<OtherTraffic>,
    /// Switches DIDA on or off. If it is switched on without further members, the previous parameters apply,
    /// or else the defaults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dida: Option<bool>,
    /// Hold time of duplicate ACKs, an object with `mode`; switches DIDA on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub hold: Option<Hold>,
    /// Number of duplicate ACKs that pass before holding starts; switches DIDA on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub let_through: Option<u16>,
}

/// A page of flows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LwipFlows {
    /// Number of all flows.
    pub total: u64,
    /// The flows of this page, in no particular order.
    pub flows: Vec<LwipFlow>,
}

/// A TCP connection, from the server to the UE.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LwipFlow {
    /// The server's address and port.
    pub server: String,
    /// The UE's address and port.
    pub ue: String,
    /// Packets with data over LTE.
    pub lte_packets: u64,
    /// Packets with data over Wi-Fi.
    pub wifi_packets: u64,
    /// Bytes sent and not yet acknowledged.
    pub in_flight_bytes: u32,
    /// ACKs held at present.
    pub holding: u32,
    /// ACKs held since the flow was created.
    pub held: u64,
    /// Time since its last packet, seconds.
    pub idle_s: f64,
}
