//! A transparent proxy as the interface shows it.

use crate::runtime::api::problem::Problem;
use crate::runtime::api::request::Reply;
use anabranch_selection::plan::Action;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A question to a proxy.
pub enum ProxyRequest {
    /// The proxy.
    Node(Reply<ProxyNode>),
    /// Flows from the `offset`th on, at most `limit`.
    Flows {
        /// How many to skip.
        offset: usize,
        /// How many to show.
        limit: usize,
        /// Answer.
        reply: Reply<ProxyFlows>,
    },
}

impl ProxyRequest {
    /// The answer of whoever is no such proxy.
    pub fn refuse(self) {
        let why = || Problem::not_here("this is no proxy", "ask the agent of `anabranch proxy`");
        match self {
            Self::Node(reply) => drop(reply.send(Err(why()))),
            Self::Flows { reply, .. } => drop(reply.send(Err(why()))),
        }
    }
}

/// A transparent proxy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProxyNode {
    /// Its name.
    pub name: String,
    /// Where flows are led to, on 127.0.0.1 and ::1.
    pub port: u16,
    /// Whether flows of programs of this machine are taken.
    pub local: bool,
    /// Interfaces whose flows are taken.
    pub interfaces: Vec<String>,
    /// Names of the rules, the first first.
    pub rules: Vec<String>,
    /// How it stands with the agent that knows the slices.
    pub agent: ProxyAgent,
    /// Flows now.
    pub flows: u64,
    /// Most flows at a time.
    pub max_flows: u64,
    /// What flows carried since the start, by rule and slice, those of now included.
    pub carried: Vec<ProxyCarried>,
    /// Flows by where their plan came from: `asked`, `recent`, `last`, `plain`.
    pub plans: BTreeMap<String, u64>,
    /// Flows refused, by reason: `limit`, `client_limit`, `unmet`, `no_rule`, `unreachable`, `socket`.
    pub refused: BTreeMap<String, u64>,
    /// Further candidates that were tried because an earlier one failed or was late.
    pub retries: u64,
    /// TCP flows that ended by a reset.
    pub resets: u64,
    /// Datagrams dropped.
    pub datagrams_dropped: u64,
    /// Parts of plans that the kernel refused.
    pub plan_failures: u64,
}

/// How it stands with the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProxyAgent {
    /// Where it is; `off`: there is none.
    pub place: String,
    /// Whether it answered when it was asked last; absent: it was not asked yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<bool>,
    /// Questions it answered.
    pub asked: u64,
    /// Questions it did not answer in time.
    pub failures: u64,
    /// Why it did not answer last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Answers remembered.
    pub known: u64,
}

/// What the flows of a rule carried on a slice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProxyCarried {
    /// Name of the rule.
    pub rule: String,
    /// The slice; empty: none.
    pub slice: String,
    /// Flows.
    pub flows: u64,
    /// Bytes from programs.
    pub up_bytes: u64,
    /// Bytes to programs.
    pub down_bytes: u64,
}

/// A page of flows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProxyFlows {
    /// How many there are.
    pub total: u64,
    /// Those asked for, the oldest first.
    pub flows: Vec<ProxyFlow>,
}

/// A flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProxyFlow {
    /// Counts up by one.
    pub id: u64,
    /// What the program speaks: `tcp` or `udp`.
    pub transport: String,
    /// The program's address and port.
    pub client: String,
    /// The server's address and port.
    pub server: String,
    /// Name of its rule; empty: not known yet.
    pub rule: String,
    /// Since when, seconds.
    pub age_s: f64,
    /// How it goes; absent while it connects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way: Option<ProxyWay>,
    /// Bytes from the program.
    pub up_bytes: u64,
    /// Bytes to the program.
    pub down_bytes: u64,
}

/// How a flow goes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProxyWay {
    /// The protocol to the server: `tcp`, `mptcp` or `udp`.
    pub protocol: String,
    /// The interface it leaves by; absent: as routes have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The slice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<String>,
    /// Where the plan came from: `asked`, `recent`, `last`, `plain`.
    pub origin: String,
    /// The steps of the plan, as `POST /connections/select` gives them.
    #[schema(value_type = Vec<Object>)]
    pub plan: Vec<Action>,
}
