//! LWIP nodes in the network.
//!
//! ```text
//!                      ┌─0─ node ─1─────────── LTE link or cell ── near ──1─┐
//!   server ── core ────┤      └────2─┐                                      ue.lwip ─0─ (ue.order) ─ ue.host
//!                      └──────── far ┴──────── Wi-Fi link ──────── near ──2─┘
//! ```
//!
//! All traffic of the LTE leg passes the node. `far` joins its Wi-Fi traffic with other traffic of the Wi-Fi link. `ue.order`
//! exists if the UE restores the order of data.

use super::addresses;
use super::world::Junction;
use crate::backend::{Outcome, Series};
use crate::scenario::Case;
use crate::scenario::model::ms;
use crate::sim::network::{Network, NodeId};
use crate::sim::resequence::Resequencer;
use anabranch_element::Port;
use anabranch_element::time::Instant;
use anabranch_lwip::{Config, Event, Leg, Node, ReleaseReason, Stats, UeConfig, UeElement, UeSide};
use anyhow::{Context, Result};
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// A node in the network.
pub struct Site {
    /// The node.
    pub id: NodeId,
    /// The link or cell of its LTE leg.
    lte: String,
    /// The link of its Wi-Fi leg.
    wifi: String,
    /// Its UEs by name, with their index in the case.
    ues: BTreeMap<String, usize>,
    /// Its index among the nodes of the case.
    number: usize,
}

/// A UE's end of a node.
#[derive(Debug, Clone, Copy)]
pub struct UeEnd {
    /// The element that restores addresses.
    pub id: NodeId,
    /// Port towards the applications.
    pub host: (NodeId, Port),
}

/// Adds the nodes of `case`.
///
/// # Errors
/// A configuration that `anabranch_lwip` refuses.
pub fn build(
    case: &Case,
    net: &mut Network,
    mut seed: impl FnMut() -> u64,
) -> Result<BTreeMap<String, Site>> {
    let mut sites = BTreeMap::new();
    for (number, (name, lwip)) in case.lwips.iter().enumerate() {
        let mut ues = BTreeMap::new();
        let mut configs = Vec::new();
        for (ue, _) in case.ues_of_lwip(name) {
            let u = case.ues.keys().position(|n| n == ue).context("a UE")?;
            ues.insert(ue.clone(), u);
            configs.push(ue_config(ue, number, u));
        }
        let config: Config =
            lwip.config_at(configs, &[addresses::prober(number).into()]).map_err(anyhow::Error::msg)?;
        let node = Node::new(config, seed(), Instant::ZERO).with_context(|| format!("lwip {name}"))?;
        let id = net.add(name, node);
        let (lte, wifi) = (lwip.lte.clone(), lwip.wifi.clone());
        sites.insert(name.clone(), Site { id, lte, wifi, ues, number });
    }
    Ok(sites)
}

/// Connects the network side of a link or cell, through a node if the link is one of its legs.
pub fn attach(
    sites: &BTreeMap<String, Site>,
    (link, prefixes): (&str, &[IpNet]),
    end: (NodeId, Port),
    core: &mut Junction,
    net: &mut Network,
) {
    let bearers = |site: &Site| -> Vec<_> {
        site.ues.values().map(|u| addresses::host(addresses::bearer(site.number, *u))).collect()
    };
    if let Some(site) = sites.values().find(|site| site.lte == link) {
        net.connect((site.id, Node::LTE), end);
        core.join((site.id, Node::BACKHAUL), bearers(site).into_iter().chain(prefixes.iter().copied()));
    } else if let Some(site) = sites.values().find(|site| site.wifi == link) {
        let mut far = Junction::new();
        let wifi = site.ues.values().map(|u| addresses::host(addresses::wifi(site.number, *u)));
        far.join(end, wifi.chain(bearers(site)).chain(prefixes.iter().copied()));
        far.join((site.id, Node::WIFI), [addresses::host(addresses::prober(site.number))]);
        let to_core = far.leave_open([addresses::anywhere()]);
        let id = far.build(net, format!("{link}.far"));
        core.join((id, to_core), prefixes.iter().copied());
    } else {
        core.join(end, prefixes.iter().copied());
    }
}

/// The UE's end of the node, before it is connected to the legs.
///
/// # Errors
/// Addresses that `anabranch_lwip` refuses.
pub fn ue(case: &Case, node: &str, site: &Site, ue: &str, net: &mut Network) -> Result<Option<UeEnd>> {
    let Some(&u) = site.ues.get(ue) else { return Ok(None) };
    let side = UeSide::new(&ue_config(ue, site.number, u))?;
    let id = net.add(format!("{ue}.lwip"), UeElement::new(side));
    let hold = case.lwips.get(node).map_or(0.0, |lwip| lwip.ue_reorder_ms);
    if hold <= 0.0 {
        return Ok(Some(UeEnd { id, host: (id, UeElement::IP) }));
    }
    let order = net.add(format!("{ue}.order"), Resequencer::new(ms(hold)));
    net.connect((id, UeElement::IP), (order, Resequencer::NETWORK));
    Ok(Some(UeEnd { id, host: (order, Resequencer::HOST) }))
}

/// The addresses of a UE by leg.
pub fn prefixes(site: &Site, ue: &str) -> [Vec<ipnet::IpNet>; 2] {
    let Some(&u) = site.ues.get(ue) else { return [Vec::new(), Vec::new()] };
    let bearer = addresses::host(addresses::bearer(site.number, u));
    [vec![bearer], vec![addresses::host(addresses::wifi(site.number, u)), bearer]]
}

/// The address of a UE that servers use.
pub fn bearer(site: &Site, ue: &str) -> Option<Ipv4Addr> {
    site.ues.get(ue).map(|u| addresses::bearer(site.number, *u))
}

fn ue_config(name: &str, number: usize, u: usize) -> UeConfig {
    UeConfig {
        name: name.to_owned(),
        addresses: vec![addresses::bearer(number, u).into()],
        wifi: vec![addresses::wifi(number, u).into()],
    }
}

/// Observations of a node during a run.
#[derive(Default)]
pub struct Observations {
    /// Counters at each reading.
    samples: Vec<(f64, Stats)>,
    /// Time and duration of each delayed ACK, milliseconds.
    holds: Vec<(f64, f64)>,
    /// Maximum number of flows and maximum bytes of memory.
    maxima: [u64; 2],
}

/// Maximum number of delayed ACKs recorded.
const MAX_HOLDS: usize = 1 << 20;

impl Observations {
    /// Reads the state of a node; `seconds` converts to the time since the run began.
    pub fn sample(&mut self, net: &mut Network, id: NodeId, now: Instant, seconds: &impl Fn(Instant) -> f64) {
        for (at, event) in net.take_events::<Node>(id) {
            match event {
                Event::Released { held, .. } if self.holds.len() < MAX_HOLDS => {
                    self.holds.push((seconds(at), held.as_secs_f64() * 1e3));
                }
                _ => {}
            }
        }
        if let Some(node) = net.get_mut::<Node>(id) {
            self.samples.push((seconds(now), node.stats().clone()));
            let size = [u64::from(node.flow_count()), node.bytes() as u64];
            self.maxima = [self.maxima[0].max(size[0]), self.maxima[1].max(size[1])];
        }
    }

    /// Metrics and series.
    pub fn collect(&self, name: &str, out: &mut Outcome) {
        let Some((_, last)) = self.samples.last() else { return };
        let mut put = |what: &str, value: f64| out.metrics.insert(format!("lwip.{name}.{what}"), value);
        for leg in Leg::ALL {
            put(&format!("{}_packets", leg.name()), last.steered[leg as usize] as f64);
        }
        let steered: u64 = last.steered.iter().sum();
        put("lte_percent", 100.0 * last.steered[Leg::Lte as usize] as f64 / (steered as f64).max(1.0));
        put("acks", (last.advances + last.dup_acks) as f64);
        put("duplicate_acks", last.dup_acks as f64);
        put("let_through", last.dup_acks_passed as f64);
        put("held_acks", last.held as f64);
        put("triple_duplicates", last.triple_dup_acks as f64);
        put("superseded_acks", last.superseded_acks as f64);
        put("released_acks", last.released_acks as f64);
        let by = |reason: ReleaseReason| last.releases[reason.index()] as f64;
        let all: u64 = last.releases.iter().sum();
        put("holds", all as f64);
        put("holds_filled", by(ReleaseReason::Filled));
        put("holds_timed_out", by(ReleaseReason::Timer));
        put("holds_ended_otherwise", all as f64 - by(ReleaseReason::Filled) - by(ReleaseReason::Timer));
        put("hidden_gaps", last.hidden_gaps as f64);
        put("flows", self.maxima[0] as f64);
        put("memory_bytes", self.maxima[1] as f64);
        put("hold_mean_ms", last.hold_sum_ns as f64 * 1e-6 / (all as f64).max(1.0));
        let mut lengths: Vec<f64> = self.holds.iter().map(|(_, ms)| *ms).collect();
        lengths.sort_by(f64::total_cmp);
        let rank = |share: f64| {
            let at = (share * lengths.len() as f64) as usize;
            lengths.get(at.min(lengths.len().saturating_sub(1))).copied().unwrap_or(0.0)
        };
        put("hold_p50_ms", rank(0.5));
        put("hold_p99_ms", rank(0.99));
        let mut series = |what: &str, points: Vec<(f64, f64)>| {
            out.series.insert(format!("lwip.{name}.{what}"), Series { points });
        };
        series("hold_ms", self.holds.clone());
        series("held_acks", self.samples.iter().map(|(at, s)| (*at, s.held as f64)).collect());
        let shares = self.samples.windows(2).filter_map(|pair| {
            let [(_, a), (at, b)] = pair else { return None };
            let of = |leg: Leg| (b.steered[leg as usize] - a.steered[leg as usize]) as f64;
            let sum = of(Leg::Lte) + of(Leg::Wifi);
            (sum > 0.0).then(|| (*at, 100.0 * of(Leg::Lte) / sum))
        });
        series("lte_percent", shares.collect());
    }
}
