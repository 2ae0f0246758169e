//! The REST representation of a TCP lane, and its routes.

use crate::runtime::api::extract::Params;
use crate::runtime::api::problem::Problem;
use crate::runtime::api::request::{ControlRequest, Reply};
use crate::runtime::api::routes::{Answer, Page, Shared};
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Requests that only a UE or a UPF answers.
pub enum TcpLaneRequest {
    /// State of the lane.
    Lane(Reply<TcpLane>),
    /// Flows from index `offset` on, at most `limit`.
    Flows {
        /// Number of flows to skip.
        offset: usize,
        /// Maximum number of flows in the answer.
        limit: usize,
        /// Receives the answer.
        reply: Reply<TcpLaneFlows>,
    },
}

impl TcpLaneRequest {
    /// Refuses the request in a program without a TCP lane.
    pub fn refuse(self) {
        let why = || {
            Problem::not_here(
                "there is no TCP lane",
                "send the request to the agent of `anabranch ue` or `anabranch upf`",
            )
        };
        match self {
            Self::Lane(reply) => drop(reply.send(Err(why()))),
            Self::Flows { reply, .. } => drop(reply.send(Err(why()))),
        }
    }
}

/// State and counters of the TCP lane of a UE or UPF.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TcpLane {
    /// `runs`; `rests`: flows use the packet lane for a while; `unused`; `failed`.
    pub state: String,
    /// Reason why it does not run, or does not match the rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Number of flows at present.
    pub flows: u64,
    /// Maximum number of simultaneous flows.
    pub max_flows: u64,
    /// Traffic since the start, including current flows: by Multipath TCP (`mptcp`), by TCP on one path
    /// (`tcp`), by the packet lane as a fallback (`packets`).
    pub carried: Vec<TcpLaneCarried>,
    /// UE: flows that used the packet lane, by reason.
    pub fallbacks: BTreeMap<String, u64>,
    /// Refused flows, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Flows that ended with a reset.
    pub resets: u64,
    /// Memory of the flows' data in this program's socket buffers and pipes, bytes.
    #[serde(default)]
    pub held_bytes: u64,
    /// Of these, data of directions without progress for a second.
    #[serde(default)]
    pub waiting_bytes: u64,
    /// Directions of flows with limited buffers, because their session or client holds much of what it may.
    #[serde(default)]
    pub limited: u64,
    /// UE: accesses that are not used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<TcpLaneLeft>,
}

/// An access that a lane does not use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TcpLaneLeft {
    /// Name of the access.
    pub access: String,
    /// Why: it is down, or loses more than the limit. Also how many connections have no subflow elsewhere.
    pub why: String,
}

/// Traffic of a carrier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TcpLaneCarried {
    /// `mptcp`, `tcp` or `packets`.
    pub carrier: String,
    /// Number of flows.
    pub flows: u64,
    /// Bytes to servers.
    pub up_bytes: u64,
    /// Bytes from servers.
    pub down_bytes: u64,
}

/// A page of flows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TcpLaneFlows {
    /// Number of all flows.
    pub total: u64,
    /// The flows of this page, the oldest first.
    pub flows: Vec<TcpLaneFlow>,
}

/// An open flow of the TCP lane.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TcpLaneFlow {
    /// Identifier; counts up from the start.
    pub id: u64,
    /// UE: address and port of the program. UPF: address and port of the UE's end of the lane.
    pub client: String,
    /// Address and port of the server; empty until it is known.
    pub server: String,
    /// UE: name of its rule.
    pub rule: String,
    /// Carrier; absent while the flow connects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier: Option<String>,
    /// Number of subflows.
    pub subflows: u8,
    /// Age, seconds.
    pub age_s: f64,
    /// Bytes to the server.
    pub up_bytes: u64,
    /// Bytes from the server.
    pub down_bytes: u64,
}

/// The routes and their OpenAPI description.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(tcp_lane)).routes(routes!(tcp_lane_flows))
}

/// The TCP lane: state, traffic, flows that used the packet lane or were refused, with reasons.
#[utoipa::path(get, path = "/v1/tcp-lane", responses((status = 200, body = TcpLane), (status = 405, body = Problem)))]
async fn tcp_lane(State(shared): State<Shared>) -> Answer<TcpLane> {
    shared.control.request(|reply| ControlRequest::TcpLane(TcpLaneRequest::Lane(reply))).await.map(Json)
}

/// Flows of the TCP lane with carrier, subflows and bytes, a page at a time.
#[utoipa::path(
    get,
    path = "/v1/tcp-lane/flows",
    params(Page),
    responses((status = 200, body = TcpLaneFlows), (status = 405, body = Problem))
)]
async fn tcp_lane_flows(State(shared): State<Shared>, Params(page): Params<Page>) -> Answer<TcpLaneFlows> {
    let (offset, limit) = page.bounds();
    shared
        .control
        .request(|reply| ControlRequest::TcpLane(TcpLaneRequest::Flows { offset, limit, reply }))
        .await
        .map(Json)
}
