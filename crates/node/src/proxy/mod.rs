//! A transparent proxy: flows of programs that know nothing of Transport Services get slice, path, pacing and congestion
//! control as if they had asked.
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
//! One task per flow on a few threads; nothing is locked or allocated per packet. Flows, answers, pipes and buffers are
//! bounded. Where policy is missing a flow goes on without: it is never broken for that.

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
use policy::Way;
use rules::Transport;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

/// How a flow is to go.
struct Chosen {
    /// Ways, the best first; one or more.
    ways: Vec<Arc<Way>>,
    /// Where they came from.
    origin: Origin,
    /// The client's address, if the server is to see it.
    source: Option<IpAddr>,
}

/// What every flow's task needs.
pub struct Proxy {
    /// Flows there are, and what was counted.
    pub flows: Arc<Flows>,
    /// Rules in force.
    pub rules: ArcSwap<Rules>,
    /// Who says how a flow is to go.
    pub policy: Policy,
    /// Limits in force.
    pub limits: ArcSwap<ProxyLimits>,
    owners: Mutex<Owners>,
    own_mark: u32,
}

impl Proxy {
    /// One without flows.
    ///
    /// # Errors
    /// The kernel does not tell who owns sockets.
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

    /// How a flow is to go.
    ///
    /// # Errors
    /// It is for the proxy's port itself, or nothing meets what it needs and its rule says that it is not to go on then.
    async fn choose(&self, flow: &Flow) -> Result<Chosen, Refused> {
        let (transport, client, server) = (flow.of.transport, flow.client, flow.of.server);
        // Nothing for this machine is led here: we would connect to ourselves, again and again.
        if server.ip().to_canonical().is_loopback() {
            return Err(Refused::NoRule);
        }
        let plain = || vec![Arc::new(Way::plain(transport))];
        let Some(rule) = self.rule(transport, client, server) else {
            self.flows.counters.origins.count(Origin::Plain);
            return Ok(Chosen { ways: plain(), origin: Origin::Plain, source: None });
        };
        // Set once, here.
        let _ = flow.rule.set(rule.name.clone());
        let (answer, origin) = self.policy.ways(&rule, transport, server).await;
        self.flows.counters.origins.count(origin);
        let ways = match &*answer {
            Answer::Ways(ways) => ways.clone(),
            Answer::Unmet(why) if rule.unmet == Unmet::Refuse => {
                tracing::debug!(%client, %server, rule = rule.name, "refused: {why}");
                return Err(Refused::Unmet);
            }
            Answer::Unmet(_) => plain(),
        };
        let source = (rule.source == Source::Client).then_some(client.ip());
        Ok(Chosen { ways, origin, source })
    }

    /// The rule of a flow. None: nftables does not know the cgroup that a rule asks for, so others' flows come here, too; or the
    /// rules have changed since it was led here.
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
            // A panic in between leaves a socket with an answer in it at worst, which the next query drains.
            self.owners.lock().unwrap_or_else(PoisonError::into_inner).owner(&key)
        } else {
            FlowOwner::default()
        };
        rules.find(&key, &owner)
    }
}
