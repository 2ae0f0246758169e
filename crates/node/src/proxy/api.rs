//! The REST representation of a transparent proxy.

use crate::runtime::api::problem::Problem;
use crate::runtime::api::request::Reply;
use anabranch_selection::plan::Action;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Requests that only a proxy answers.
pub enum ProxyRequest {
    /// State of the proxy.
    Node(Reply<ProxyNode>),
    /// Flows from index `offset` on, at most `limit`.
    Flows {
        /// Number of flows to skip.
        offset: usize,
        /// Maximum number of flows in the answer.
        limit: usize,
        /// Receives the answer.
        reply: Reply<ProxyFlows>,
    },
}

impl ProxyRequest {
    /// Refuses the request in a program that is not a proxy.
    pub fn refuse(self) {
        let why =
            || Problem::not_here("this is not a proxy", "send the request to the agent of `anabranch proxy`");
        match self {
            Self::Node(reply) => drop(reply.send(Err(why()))),
            Self::Flows { reply, .. } => drop(reply.send(Err(why()))),
        }
    }
}

/// Configuration in force and counters of a transparent proxy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProxyNode {
    /// Name of the proxy.
    pub name: String,
    /// Port on 127.0.0.1 and ::1 to which flows are redirected.
    pub port: u16,
    /// Whether flows of programs on this machine are intercepted.
    pub local: bool,
    /// Interfaces whose incoming flows are intercepted.
    pub interfaces: Vec<String>,
    /// Names of the rules, in the order of matching.
    pub rules: Vec<String>,
    /// State of the policy agent.
    pub agent: ProxyAgent,
    /// Number of flows at present.
    pub flows: u64,
    /// Maximum number of simultaneous flows.
    pub max_flows: u64,
    /// Traffic since the start, by rule and slice, including that of current flows.
    pub carried: Vec<ProxyCarried>,
    /// Number of flows by origin of their plan: `asked`, `recent`, `last`, `plain`.
    pub plans: BTreeMap<String, u64>,
    /// Flows refused, by reason: `limit`, `client_limit`, `unmet`, `no_rule`, `unreachable`, `socket`.
    pub refused: BTreeMap<String, u64>,
    /// Further candidates that were tried after an earlier one failed or was late.
    pub retries: u64,
    /// TCP flows that ended with a reset.
    pub resets: u64,
    /// Datagrams dropped because a queue was full or the kernel refused them.
    pub datagrams_dropped: u64,
    /// Steps of plans that the kernel refused.
    pub plan_failures: u64,
}

/// State of the policy agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProxyAgent {
    /// Address of the agent; `off`: the proxy runs without one.
    pub place: String,
    /// Whether the agent answered the last request; absent before the first request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<bool>,
    /// Requests that the agent answered.
    pub asked: u64,
    /// Requests that the agent did not answer in time.
    pub failures: u64,
    /// Cause of the last failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Number of cached answers.
    pub known: u64,
}

/// Traffic of a rule on a slice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProxyCarried {
    /// Name of the rule.
    pub rule: String,
    /// Name of the slice; empty: none.
    pub slice: String,
    /// Number of flows.
    pub flows: u64,
    /// Bytes from clients to servers.
    pub up_bytes: u64,
    /// Bytes from servers to clients.
    pub down_bytes: u64,
}

/// A page of flows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProxyFlows {
    /// Number of all flows.
    pub total: u64,
    /// The flows of this page, the oldest first.
    pub flows: Vec<ProxyFlow>,
}

/// An open flow, its candidate and its traffic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProxyFlow {
    /// Identifier; counts up from the start.
    pub id: u64,
    /// Transport protocol of the program: `tcp` or `udp`.
    pub transport: String,
    /// The program's address and port.
    pub client: String,
    /// The server's address and port.
    pub server: String,
    /// Name of its rule; empty until the rule is known.
    pub rule: String,
    /// Age of the flow, seconds.
    pub age_s: f64,
    /// Selected candidate; absent while the flow connects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way: Option<ProxyCandidate>,
    /// Bytes from the client to the server.
    pub up_bytes: u64,
    /// Bytes from the server to the client.
    pub down_bytes: u64,
}

/// The candidate that a flow uses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProxyCandidate {
    /// Protocol towards the server: `tcp`, `mptcp` or `udp`.
    pub protocol: String,
    /// Egress interface; absent: chosen by the routes of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Name of the slice; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<String>,
    /// Origin of the plan: `asked`, `recent`, `last`, `plain`.
    pub origin: String,
    /// Steps of the plan, in the form of `POST /connections/select`.
    #[schema(value_type = Vec<Object>)]
    pub plan: Vec<Action>,
}
