//! A transparent proxy: it applies slice, path, pacing and congestion control to flows of programs that do
//! not use Transport Services.
//!
//! ```text
//!  program ─ SYN, datagram ─▶ nftables: tproxy ─▶ listen ─▶ rule ─▶ Policy ─ POST /connections/select ─▶ anabranch ue
//!                                                   │                 └─ ways: ranked, each with its plan
//!                                                   ▼
//!                                            race over the ways ─▶ socket with mark, device, pacing, cc
//!                                                   │
//!            client ◀──────────── relay: splice (TCP), recvmmsg + GSO (UDP) ────────────▶ server
//! ```
//!
//! There is one task per flow on a few threads; no lock is taken and no memory allocated per packet. Flows,
//! answers, pipes and buffers are bounded. If the policy agent is unavailable, flows continue without a
//! policy; they are never broken for lack of one.

pub mod agent;
pub mod api;
pub mod config;
pub mod ctl;
pub mod flows;
pub mod listen;
pub mod open;
pub mod policy;
pub mod race;
pub mod routes;
pub mod rules;
pub mod run;
pub mod tcp;
pub mod udp;
pub mod udp_flow;

pub use flows::{Flow, Flows, Refused};
pub use listen::Listeners;
pub use policy::{Origin, Policy};
pub use rules::Rules;

use crate::runtime::config::{ProxyLimits, Source, Unmet};
use crate::runtime::netctl::Owners;
use agent::Answer;
use anabranch_atsss::classify::FlowOwner;
use anabranch_wire::ip::FlowKey;
use arc_swap::ArcSwap;
use policy::Candidate;
use rules::Transport;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

/// The candidates for a flow.
struct ChosenCandidates {
    /// Candidates, the best first; at least one.
    candidates: Vec<Arc<Candidate>>,
    origin: Origin,
    /// The client's address, if the server is to see it.
    source: Option<IpAddr>,
}

/// State shared by the tasks of all flows.
pub struct Proxy {
    /// Flows and counters.
    pub flows: Arc<Flows>,
    /// Rules in force.
    pub rules: ArcSwap<Rules>,
    /// Source of the candidates for flows.
    pub policy: Policy,
    /// Limits in force.
    pub limits: ArcSwap<ProxyLimits>,
    owners: Mutex<Owners>,
    own_mark: u32,
}

impl Proxy {
    /// A proxy without flows.
    ///
    /// # Errors
    /// The kernel does not provide the owners of sockets.
    pub fn new(
        rules: Rules,
        policy: Policy,
        limits: ProxyLimits,
        flows: Flows,
        own_mark: u32,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            flows: Arc::new(flows),
            rules: ArcSwap::from_pointee(rules),
            policy,
            limits: ArcSwap::from_pointee(limits),
            owners: Mutex::new(Owners::open()?),
            own_mark,
        })
    }

    /// Selects the candidates for a flow.
    ///
    /// # Errors
    /// The flow was addressed to the proxy's port itself, or no candidate meets its requirements and the rule
    /// says `refuse`.
    async fn choose(&self, flow: &Flow) -> Result<ChosenCandidates, Refused> {
        let (transport, client, server) = (flow.of.transport, flow.client, flow.of.server);
        // Flows to this machine are never redirected; serving one would make the proxy connect to itself in a
        // loop.
        if server.ip().to_canonical().is_loopback() {
            return Err(Refused::NoRule);
        }
        let plain = || vec![Arc::new(Candidate::plain(transport))];
        let Some(rule) = self.rule(transport, client, server) else {
            self.flows.counters.origins.count(Origin::Plain);
            return Ok(ChosenCandidates { candidates: plain(), origin: Origin::Plain, source: None });
        };
        // The rule of a flow is set only here.
        let _ = flow.rule.set(rule.name.clone());
        let (answer, origin) = self.policy.candidates(&rule, transport, server).await;
        self.flows.counters.origins.count(origin);
        let candidates = match &*answer {
            Answer::Candidates(candidates) => candidates.clone(),
            Answer::Unmet(why) if rule.unmet == Unmet::Refuse => {
                tracing::debug!(%client, %server, rule = rule.name, "refused: {why}");
                return Err(Refused::Unmet);
            }
            Answer::Unmet(_) => plain(),
        };
        let source = (rule.source == Source::Client).then_some(client.ip());
        Ok(ChosenCandidates { candidates, origin, source })
    }

    /// The rule of a flow. `None` is possible in two cases: nftables cannot match the cgroup of a rule, so
    /// flows of other programs arrive here, too; or the rules have changed since the flow was redirected.
    fn rule(&self, transport: Transport, client: SocketAddr, server: SocketAddr) -> Option<Arc<rules::Rule>> {
        let key = FlowKey {
            src: client.ip(),
            dst: server.ip(),
            src_port: client.port(),
            dst_port: server.port(),
            protocol: transport.number(),
        };
        let rules = self.rules.load();
        let owner = if rules.need_owner() {
            // A panic of another task can at worst leave an unread answer in the socket, which the next query
            // discards.
            self.owners.lock().unwrap_or_else(PoisonError::into_inner).owner(&key)
        } else {
            FlowOwner::default()
        };
        rules.find(&key, &owner)
    }
}
