//! Slices in virtual time: manager, view and policy are those of the programs (`slice`, `selection`). The REST interfaces between
//! them and their delays are omitted: UEs have received their slices before anything is sent.
//!
//! ```text
//!  [slice.x] ─▶ slice::Manager ─ view, as JSON ─▶ taps::Slice ─▶ select ─▶ plan ─▶ path, pacing, first window
//!                                                   flow's `needs` ─┘        └─▶ several paths: the session, split by a rule
//! ```
//!
//! There is no Multipath TCP here. A flow whose plan has several paths is one TCP connection in the UE's ATSSS session. The session
//! splits it packet by packet, first in proportion to the guarantees of the slices, then to the measured rates, and restores the
//! order.

use super::addresses;
use crate::scenario::Case;
use crate::scenario::file::CongestionControl;
use crate::scenario::model::{Direction, Flow, Traffic, Via};
use crate::slices::{ACCESS, FIRST_MARK, capacity_bps, of_ue, profile, question};
use anabranch_atsss::PathId;
use anabranch_element::time::{Duration, Instant};
use anabranch_rules::{Filter, PortRange, Protocol as Carried};
use anabranch_selection::plan::{Action, PlanConfig, plan};
use anabranch_selection::{Endpoint, Host, Interface, Properties, Request, Slice, SliceFacts, select};
use anabranch_slice::view::view;
use anabranch_slice::{Access, GrowthLimits, Inventory, Manager, SliceRequest, Ue, UeView, Write};
use anabranch_steer::{
    Rule, SteeringMode,
    load_balance::{self, Granularity, Weight},
};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// The choice of a UE's policy for a flow.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Choice {
    /// The accesses it uses, the best first. With several, the flow uses the session.
    pub paths: Vec<PathId>,
    /// Initial window, segments.
    pub window: Option<u32>,
    /// Maximum pacing rate, bit/s.
    pub pacing_bps: Option<u64>,
    /// Congestion control.
    pub congestion_control: Option<CongestionControl>,
    /// Rule by which the session splits it.
    pub rule: Option<Rule>,
}

/// The choices of the UEs' policies for all flows with needs; `server` and `local` return addresses.
///
/// # Errors
/// The manager or a policy refuses; with the property.
pub fn choices(
    case: &Case,
    server: impl Fn(&str) -> Option<SocketAddr>,
    local: impl Fn(&str, usize) -> Option<IpAddr>,
) -> Result<BTreeMap<String, Choice>> {
    let asking = || case.flows.iter().filter(|(_, flow)| flow.via == Via::Slices);
    if asking().next().is_none() {
        return Ok(BTreeMap::new());
    }
    let manager = manager(case)?;
    let mut hosts = BTreeMap::new();
    for (_, flow) in asking() {
        if !hosts.contains_key(&flow.ue) {
            hosts.insert(flow.ue.clone(), host(case, &manager, &flow.ue, &local)?);
        }
    }
    let of = |(name, flow): (&String, &Flow)| {
        let server =
            server(&flow.server).map(|s| SocketAddr::new(s.ip(), flow.port)).context("its server")?;
        let choice = choose(case, name, flow, &hosts[&flow.ue], server);
        Ok((name.clone(), choice.with_context(|| format!("flow {name}"))?))
    };
    asking().map(of).collect()
}

/// A slice manager with active slices, assigned to all UEs with a suitable access.
fn manager(case: &Case) -> Result<Manager> {
    let bps = capacity_bps(case);
    let access = Access {
        name: ACCESS.into(),
        location: String::new(),
        downlink_bps: bps,
        uplink_bps: bps,
        max_share_ppm: anabranch_slice::inventory::WHOLE,
        delay_ms: 0.0,
        rest_slice: "default".into(),
    };
    let mut manager = Manager::new(Inventory::new([access])?, GrowthLimits::default());
    let keep = |manager: &mut Manager, writes: Vec<Write>| writes.into_iter().for_each(|w| manager.put(w));
    for (name, slice) in &case.slices {
        let profile = serde_json::from_value(profile(slice)).with_context(|| format!("slice {name}"))?;
        let order = SliceRequest { name: name.clone(), profile, ..SliceRequest::default() };
        let writes = manager.create(name, order, 0).with_context(|| format!("slice {name}"))?;
        keep(&mut manager, writes);
        // Every step of the network succeeds.
        while manager.slices().get(name).is_some_and(|s| s.plan.is_some()) {
            let writes = manager.step_done(name, Ok(()), 0)?;
            keep(&mut manager, writes);
        }
    }
    for ue in case.ues.keys() {
        // The REST interface is not used here.
        let token_hash = String::new();
        keep(&mut manager, vec![Write::ue(Ue::new(ue.clone(), token_hash))]);
        for (slice, ..) in of_ue(case, ue) {
            let writes = manager.assign(ue, slice, None)?;
            keep(&mut manager, writes);
        }
    }
    Ok(manager)
}

/// A UE as seen by its policy: its accesses, and the manager's view of its slices.
fn host(
    case: &Case,
    manager: &Manager,
    ue: &str,
    local: &impl Fn(&str, usize) -> Option<IpAddr>,
) -> Result<Host> {
    let mut host = Host::with_all_protocols();
    for (path, access) in case.ues[ue].accesses.iter().enumerate() {
        let addresses = local(ue, path).into_iter().collect();
        let interface = Interface { up: true, addresses, metric: path as u32, ..Interface::default() };
        host.interfaces.insert(access.name.clone(), interface);
    }
    // Encoded as JSON and decoded again, so that any loss of that conversion applies here as well.
    let told = serde_json::to_vec(&view(manager, manager.ue(ue)?, u32::MAX))?;
    let told: UeView = serde_json::from_slice(&told)?;
    for (name, slice, path) in of_ue(case, ue) {
        let Some(facts) = told.slices.iter().find(|f| f.name == *name) else {
            bail!("UE {ue} is not told of slice {name}")
        };
        let mark = FIRST_MARK + 2 * path as u32;
        // The delay budget is one-way, for the slower direction (TS 28.541, dLLatency and uLLatency).
        let facts = SliceFacts {
            as_of: Instant::ZERO,
            ttl: Duration::from_secs(u64::from(told.ttl_s)),
            rtt_us: facts.latency_ms.map(|ms| (ms * 2e3).round() as u64),
            uplink_guaranteed_bps: facts.ul_guaranteed_bps,
            uplink_max_bps: facts.ul_max_bps,
            downlink_guaranteed_bps: facts.dl_guaranteed_bps,
            downlink_max_bps: facts.dl_max_bps,
            five_qi: facts.qi.clone(),
            isolation: None,
        };
        let (mark, interface) = (Some(mark), slice.access.clone());
        let known = Slice { interface, mark, table: mark, facts: Some(facts), ..Slice::default() };
        host.slices.insert(name.clone(), known);
    }
    Ok(host)
}

/// Requests a flow, and reads the plan of the best candidate.
fn choose(case: &Case, name: &str, flow: &Flow, host: &Host, server: SocketAddr) -> Result<Choice> {
    let mut question = question(flow, server);
    let remote: Vec<Endpoint> = serde_json::from_value(question["remote"].take())?;
    let properties = Properties::from_json(question["properties"].take())?;
    let request = Request { properties, remote, ..Request::default() };
    let selection = select(&request, host, Instant::ZERO).context("the UE's policy refuses")?;
    let best = selection.candidates.into_iter().next().context("no candidate")?;
    let ue = &case.ues[&flow.ue];
    let path = |interface: &str| ue.path_of(interface).context("its access");
    let paths = best.paths.iter().map(|p| path(&p.interface)).collect::<Result<Vec<PathId>>>()?;
    let alpha = best.paths.first().and_then(|p| case.slices.get(p.pvd.as_ref()?)).map(|slice| slice.alpha);
    let config = PlanConfig { alpha: alpha.unwrap_or(PlanConfig::default().alpha), ..PlanConfig::default() };
    let mut choice = Choice { paths, ..Choice::default() };
    for action in plan(&best, &request.properties, host, &config, Instant::ZERO) {
        match action {
            Action::InitialWindow { window, .. } => choice.window = Some(window.segments),
            Action::Pacing { bps } if best.paths.len() == 1 => choice.pacing_bps = Some(bps),
            Action::CongestionControl { name } => {
                choice.congestion_control = name.parse().ok();
            }
            // The paths are determined above, the rate of datagrams is that of the traffic, and code points have no effect here.
            _ => {}
        }
    }
    if choice.paths.len() > 1 {
        let guaranteed = |pvd: Option<&String>| {
            let facts = host.slices.get(pvd?)?.facts_at(Instant::ZERO)?;
            match flow.traffic {
                Traffic::BulkTcp { direction: Direction::Up, .. } => facts.uplink_guaranteed_bps,
                _ => facts.downlink_guaranteed_bps,
            }
        };
        let parts = best.paths.iter().map(|p| (p.interface.clone(), guaranteed(p.pvd.as_ref()).unwrap_or(1)));
        let all = ue.accesses.len();
        choice.rule = Some(split(name, flow, &parts.collect::<Vec<_>>(), all));
    }
    Ok(choice)
}

/// The rule that splits a flow over several of `all` accesses: in proportion to the given rates at first and, if the flow may use
/// all accesses, to the measured rates later.
fn split(name: &str, flow: &Flow, parts: &[(String, u64)], all: usize) -> Rule {
    let autonomous = parts.len() == all;
    let port = PortRange { first: flow.port, last: flow.port };
    Rule {
        name: format!("{name}-paths"),
        filter: Filter { protocol: Some(Carried::Tcp), remote_port: Some(port), ..Filter::default() },
        steering: SteeringMode::LoadBalance(load_balance::Params {
            weights: tenths(parts),
            per: Granularity::Packet,
            autonomous,
        }),
        reorder: true,
        functionality: Default::default(),
    }
}

/// Shares in steps of 10 % with the sum 100, each at least 10 %. The remainder goes to the parts with the largest deficit.
fn tenths(parts: &[(String, u64)]) -> Vec<Weight> {
    let sum: u64 = parts.iter().map(|p| p.1.max(1)).sum();
    let exact = |part: &(String, u64)| part.1.max(1) as f64 * 10.0 / sum as f64;
    let mut shares: Vec<u8> = parts.iter().map(|p| (exact(p).floor() as u8).max(1)).collect();
    let missing = |shares: &[u8], i: usize| exact(&parts[i]) - f64::from(shares[i]);
    while shares.iter().sum::<u8>() != 10 {
        let more = shares.iter().sum::<u8>() < 10;
        let by = |a: &usize, b: &usize| missing(&shares, *a).total_cmp(&missing(&shares, *b));
        let places = (0..shares.len()).filter(|i| more || shares[*i] > 1);
        let place = if more { places.max_by(by) } else { places.min_by(by) };
        // There are at most eight paths.
        let Some(i) = place else { break };
        shares[i] = if more { shares[i] + 1 } else { shares[i] - 1 };
    }
    let weight =
        |((access, _), share): (&(String, u64), u8)| Weight { access: access.clone(), percent: share * 10 };
    parts.iter().zip(shares).map(weight).collect()
}

/// Address of a UE on an access outside any tunnel.
pub fn local(case: &Case, ue: &str, path: usize) -> Option<IpAddr> {
    let u = case.ues.keys().position(|name| name == ue)?;
    let link = &case.ues.get(ue)?.accesses.get(path)?.link;
    Some(addresses::direct(addresses::link_number(case, link)?, u).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_sum_to_the_whole_and_none_is_zero() {
        let shares = |rates: &[u64]| {
            let parts: Vec<_> = rates.iter().enumerate().map(|(i, r)| (i.to_string(), *r)).collect();
            tenths(&parts).iter().map(|w| w.percent).collect::<Vec<_>>()
        };
        assert_eq!(shares(&[100, 60]), [60, 40]);
        assert_eq!(shares(&[1, 1]), [50, 50]);
        assert_eq!(shares(&[1, 1_000_000]), [10, 90]);
        assert_eq!(shares(&[1, 1, 1]).iter().sum::<u8>(), 100);
        assert_eq!(shares(&[1000, 1, 1, 1, 1, 1, 1, 1]), [30, 10, 10, 10, 10, 10, 10, 10]);
        assert_eq!(shares(&[0, 0]), [50, 50]);
    }
}
