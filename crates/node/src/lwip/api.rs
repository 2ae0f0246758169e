//! An LWIP node as the interface shows it, and what can be changed while it runs.

use crate::runtime::api::problem::Problem;
use crate::runtime::api::request::Reply;
use anabranch_lwip::{DidaConfig, Hold, OtherTraffic, Steering, WifiLeg};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A question to an LWIP node.
pub enum LwipRequest {
    /// The node.
    Node(Reply<LwipNode>),
    /// Other steering, or another hold.
    Set(Box<LwipChange>, Reply<LwipNode>),
    /// Flows from the `offset`th on, at most `limit`.
    Flows {
        /// How many to skip.
        offset: usize,
        /// How many to show.
        limit: usize,
        /// Answer.
        reply: Reply<LwipFlows>,
    },
}

impl LwipRequest {
    /// The answer of whoever is no such node.
    pub fn refuse(self) {
        let why = || Problem::not_here("this is no LWIP node", "ask the agent of `anabranch lwip`");
        match self {
            Self::Node(reply) | Self::Set(_, reply) => drop(reply.send(Err(why()))),
            Self::Flows { reply, .. } => drop(reply.send(Err(why()))),
        }
    }
}

/// An LWIP node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LwipNode {
    /// Its name.
    pub name: String,
    /// How TCP is divided between the legs, an object with `mode`.
    #[schema(value_type = Object)]
    pub steering: Steering,
    /// The leg of UDP: `lte`, `wifi` or `by_flow`.
    #[schema(value_type = String)]
    pub other: OtherTraffic,
    /// `translate` or `tunnel`.
    #[schema(value_type = String)]
    pub wifi_leg: WifiLeg,
    /// DIDA, an object with `let_through` and `hold`; absent: ACKs pass as they come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub dida: Option<DidaConfig>,
    /// UEs known.
    pub ues: u64,
    /// Flows remembered now.
    pub flows: u64,
    /// Flows seen first, since the start.
    pub new_flows: u64,
    /// Flows that made room for others.
    pub evicted_flows: u64,
    /// Memory of flows, held ACKs and timers, bytes.
    pub memory_bytes: u64,
    /// LTE, then Wi-Fi.
    pub legs: Vec<LwipLeg>,
    /// What probes measure, by UE and leg; of the first 256 UEs.
    pub links: Vec<LwipLink>,
    /// Uplink: what became of ACKs.
    pub acks: LwipAcks,
    /// How long holds were.
    pub holds: LwipHolds,
    /// Packets that were neither steered nor looked at any further, by reason.
    pub passed: BTreeMap<String, u64>,
}

/// One of the two ways to UEs, since the start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LwipLeg {
    /// `lte` or `wifi`.
    pub leg: String,
    /// Downlink packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of them, TCP packets with data, which steering divides.
    pub steered: u64,
    /// Its part of those of both legs, percent.
    pub steered_percent: f64,
}

/// What probes measure of a leg of a UE.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LwipLink {
    /// Name of the UE.
    pub ue: String,
    /// `lte` or `wifi`.
    pub leg: String,
    /// Whether probes are answered.
    pub up: bool,
    /// Smoothed round-trip time, milliseconds; absent when unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_ms: Option<f64>,
    /// Rate, bit/s, a lower bound as long as the leg was not busy; absent when unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<f64>,
    /// Probes sent.
    pub probes: u64,
    /// Probes answered.
    pub answers: u64,
}

/// What became of ACKs, since the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LwipAcks {
    /// Uplink packets of any kind.
    pub uplink_packets: u64,
    /// ACKs that advanced.
    pub advances: u64,
    /// Duplicate ACKs.
    pub duplicates: u64,
    /// Of them, those let through at once.
    pub let_through: u64,
    /// Third duplicates in a row that left towards a sender.
    pub triple_duplicates: u64,
    /// Held.
    pub held: u64,
    /// Held now.
    pub holding: u64,
    /// Held, and sent in the end.
    pub released: u64,
    /// Held, and superseded by the ACK that was missing.
    pub superseded: u64,
}

/// How long holds were, since the start: a histogram.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LwipHolds {
    /// Holds by why they ended.
    pub ended: BTreeMap<String, u64>,
    /// Upper bounds of the buckets, milliseconds; the last bucket has none.
    pub bounds_ms: Vec<f64>,
    /// Holds in each bucket.
    pub counts: Vec<u64>,
    /// All of them together, milliseconds.
    pub sum_ms: f64,
}

/// Changes. What is left out stays.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LwipChange {
    /// How TCP is divided between the legs, an object with `mode`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub steering: Option<Steering>,
    /// The leg of UDP: `lte`, `wifi` or `by_flow`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub other: Option<OtherTraffic>,
    /// Switches DIDA on or off; on without further keys: as it was last, or the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dida: Option<bool>,
    /// How long duplicate ACKs are held, an object with `mode`; switches DIDA on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub hold: Option<Hold>,
    /// Duplicates that pass before the next ones are held; switches DIDA on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub let_through: Option<u16>,
}

/// A page of flows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LwipFlows {
    /// How many there are.
    pub total: u64,
    /// Those asked for, in no particular order.
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
    /// Bytes sent and not acknowledged.
    pub in_flight_bytes: u32,
    /// ACKs held now.
    pub holding: u32,
    /// ACKs ever held.
    pub held: u64,
    /// Since its last packet, seconds.
    pub idle_s: f64,
}
