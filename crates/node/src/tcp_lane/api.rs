//! A TCP lane as the interface shows it, and its paths.

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

/// A question to a TCP lane.
pub enum TcpLaneRequest {
    /// The lane.
    Lane(Reply<TcpLane>),
    /// Flows from the `offset`th on, at most `limit`.
    Flows {
        /// How many to skip.
        offset: usize,
        /// How many to show.
        limit: usize,
        /// Answer.
        reply: Reply<TcpLaneFlows>,
    },
}

impl TcpLaneRequest {
    /// The answer of whoever has none.
    pub fn refuse(self) {
        let why = || {
            Problem::not_here("this has no TCP lane", "ask the agent of `anabranch ue` or `anabranch upf`")
        };
        match self {
            Self::Lane(reply) => drop(reply.send(Err(why()))),
            Self::Flows { reply, .. } => drop(reply.send(Err(why()))),
        }
    }
}

/// A TCP lane.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TcpLane {
    /// `runs`; `rests`: flows go by the packet lane for a while; `unused`; `failed`.
    pub state: String,
    /// Why it does not run, or not as the rules say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Flows now.
    pub flows: u64,
    /// Most flows at a time.
    pub max_flows: u64,
    /// What flows carried since the start, those of now included: by Multipath TCP (`mptcp`), by TCP on one path (`tcp`), by
    /// the packet lane after all (`packets`).
    pub carried: Vec<TcpLaneCarried>,
    /// UE: flows that went by the packet lane, by reason.
    pub fallbacks: BTreeMap<String, u64>,
    /// Flows refused, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Flows that ended by a reset.
    pub resets: u64,
    /// UE: accesses without subflows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<TcpLaneLeft>,
}

/// An access on which a lane has no subflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TcpLaneLeft {
    /// Name of the access.
    pub access: String,
    /// Why: it is down, or loses more than the limit.
    pub why: String,
}

/// What the flows of a carrier carried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TcpLaneCarried {
    /// `mptcp`, `tcp` or `packets`.
    pub carrier: String,
    /// Flows.
    pub flows: u64,
    /// Bytes to servers.
    pub up_bytes: u64,
    /// Bytes from servers.
    pub down_bytes: u64,
}

/// A page of flows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TcpLaneFlows {
    /// How many there are.
    pub total: u64,
    /// Those asked for, the oldest first.
    pub flows: Vec<TcpLaneFlow>,
}

/// A flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TcpLaneFlow {
    /// Counts up by one.
    pub id: u64,
    /// UE: the program's address and port. UPF: those of the UE's end of the lane.
    pub client: String,
    /// The server's address and port; empty before it is known.
    pub server: String,
    /// UE: name of its rule.
    pub rule: String,
    /// What carries it; absent while it connects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier: Option<String>,
    /// Subflows.
    pub subflows: u8,
    /// Since when, seconds.
    pub age_s: f64,
    /// Bytes to the server.
    pub up_bytes: u64,
    /// Bytes from the server.
    pub down_bytes: u64,
}

/// The routes and their description.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(tcp_lane)).routes(routes!(tcp_lane_flows))
}

/// The TCP lane: whether it runs, what its flows carried, how many went by the packet lane or were refused, and why.
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
