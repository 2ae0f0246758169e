//! Endpoints of a flow, and the choice of its UE's policy.

use super::super::plan::{Plan, ServerPlan, UePlan, lwip_addresses};
use super::super::slices::{self, Choice};
use super::super::tunnels::Tunnels;
use crate::scenario::file::CongestionControl;
use crate::scenario::model::{Case, Flow, Via};
use anyhow::{Result, anyhow};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The two ends of a flow in the network.
#[derive(Clone, Copy)]
pub(in super::super) struct Ends<'a> {
    pub ue_space: &'a str,
    pub server_space: &'a str,
    pub ue: SocketAddr,
    pub server: SocketAddr,
}

/// An unlimited rate for sockets that TCP paces at its own rate.
const PACED_BPS: u64 = 100_000_000_000;

/// How a flow is opened: according to the policy of its UE, or to the scenario.
pub(super) fn chosen(flow: &Flow, ends: &Ends<'_>, tunnels: &Tunnels) -> Result<Choice> {
    let mut choice = match (&flow.via, tunnels.ues.get(&flow.ue)) {
        (Via::Slices, Some(ue)) => slices::choose(&ue.agent, flow, ends.server)?,
        (via, _) => Choice { mptcp: *via == Via::Mptcp, ..Choice::default() },
    };
    if flow.paced && choice.setup.pacing_bps.is_none() {
        choice.setup.pacing_bps = Some(PACED_BPS);
    }
    Ok(choice)
}

/// The ends of a flow.
pub(super) fn ends<'a>(case: &Case, plan: &'a Plan, flow: &Flow) -> Result<Ends<'a>> {
    let ue: &UePlan = plan.ues.get(&flow.ue).ok_or_else(|| anyhow!("no UE {}", flow.ue))?;
    let server: &ServerPlan =
        plan.servers.get(&flow.server).ok_or_else(|| anyhow!("no server {}", flow.server))?;
    let access_of = |name: &str| ue.accesses.iter().find(|a| a.name == name);
    let access = |name: &str| access_of(name).map(|a| a.address);
    let cc = flow.traffic.congestion_control().unwrap_or(CongestionControl::Cubic);
    if flow.ipv6 {
        let own = match &flow.via {
            Via::Direct(name) => access_of(name).map(|own| own.address6),
            Via::Atsss => ue.inner6.parse().ok(),
            _ => None,
        };
        let own = own.ok_or_else(|| anyhow!("UE {} has no such access", flow.ue))?;
        return Ok(Ends {
            ue_space: &ue.space,
            server_space: &server.space,
            ue: SocketAddr::new(own.into(), flow.port),
            server: SocketAddr::new(server.address6(cc).into(), flow.port),
        });
    }
    let own = match &flow.via {
        Via::Atsss => Some(ue.inner),
        Via::Direct(name) => access(name),
        // The mark or the routes determine the outgoing interface.
        Via::Slices => Some(Ipv4Addr::UNSPECIFIED),
        Via::Mptcp => case.ues[&flow.ue].accesses.first().and_then(|a| access(&a.name)),
        Via::Lwip(node) => {
            let number = case.lwips.keys().position(|name| name == node);
            number.map(|number| lwip_addresses(case, number, &flow.ue)[0])
        }
    };
    let own = own.ok_or_else(|| anyhow!("UE {} has no such access", flow.ue))?;
    Ok(Ends {
        ue_space: &ue.space,
        server_space: &server.space,
        ue: SocketAddr::new(IpAddr::V4(own), flow.port),
        server: SocketAddr::new(IpAddr::V4(server.address(cc)), flow.port),
    })
}
