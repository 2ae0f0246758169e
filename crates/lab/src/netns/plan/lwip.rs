//! LWIP nodes in the plan.

use super::servers::table_of;
use super::{Build, CongestionControl, End, FIRST_TABLE, mac, position};
use crate::backend::Unable;
use crate::scenario::model::{Case, Flow, Ue, Via};
use anyhow::{Result, bail};
use std::net::Ipv4Addr;

/// An `anabranch lwip` to run.
#[derive(Debug, Clone)]
pub struct LwipPlan {
    /// Its name in the scenario.
    pub name: String,
    /// Its namespace.
    pub space: String,
    /// Namespace and interface towards servers, created by the program.
    pub backhaul: (String, String),
    /// The addresses of its UEs.
    pub prefix: String,
    /// Source address of its measurements of the legs.
    pub prober: Ipv4Addr,
    /// UEs served by the node.
    pub ues: Vec<LwipUe>,
    /// `ip -batch` lines for its namespace, once the program runs.
    pub setup: String,
}

/// A UE of an LWIP node.
#[derive(Debug, Clone)]
pub struct LwipUe {
    /// Name of the UE in the scenario.
    pub name: String,
    /// Its namespace.
    pub space: String,
    /// Its address on the bearer, which servers use.
    pub bearer: Ipv4Addr,
    /// Its destination address over Wi-Fi.
    pub wifi: Ipv4Addr,
    /// Its Wi-Fi interface.
    pub wifi_interface: String,
}

/// The interface of an LWIP node towards its legs.
pub const LWIP_RAN: &str = "ran";
/// Routing table for packets from the LTE leg of an LWIP node.
const LWIP_TABLE: usize = 50;
/// Checks the limits of LWIP nodes in namespaces.
///
/// # Errors
/// Its UEs have several UPFs, or a session over its legs.
pub(super) fn check(case: &Case) -> Result<()> {
    for (name, node) in &case.lwips {
        let is_on = |ue: &Ue| ue.accesses.iter().any(|a| a.link == node.lte || a.link == node.wifi);
        let mut upfs = case.ues.values().filter(|ue| is_on(ue));
        let first = upfs.next().map(|ue| &ue.upf);
        if upfs.any(|ue| Some(&ue.upf) != first) {
            bail!(Unable(format!("lwip.{name}: in namespaces the UEs on its legs have one UPF")));
        }
        let tunnelled = |flow: &Flow| flow.via == Via::Atsss && case.ues.get(&flow.ue).is_some_and(is_on);
        if let Some((flow, _)) = case.flows.iter().find(|(_, flow)| tunnelled(flow)) {
            bail!(Unable(format!(
                "flow.{flow}: in namespaces there is no session over the legs of lwip.{name}"
            )));
        }
    }
    Ok(())
}

impl Build<'_> {
    /// The namespace behind a link or cell: the UPF, or the LWIP node of which it is a leg.
    pub(super) fn far_space(&self, link: &str, upf: &str) -> String {
        let node = self.case.lwips.iter().find(|(_, node)| node.lte == link || node.wifi == link);
        node.map_or_else(|| self.names.upf(upf), |(name, _)| self.names.lwip(name))
    }

    /// LWIP nodes: between the UPF and their legs.
    pub(super) fn lwips(&mut self) {
        let case = self.case;
        for (n, (name, node)) in case.lwips.iter().enumerate() {
            let space = self.names.lwip(name);
            let users = case.ues_of_lwip(name);
            // All UEs have the same UPF; this was checked.
            let Some(upf) = users.first().map(|(ue, _)| &case.ues[*ue].upf) else { continue };
            let (upf_space, p) = (self.names.upf(upf), position(&case.upfs, upf));
            let number = |link: &str| {
                case.links.keys().chain(case.gnbs.keys()).position(|name| name == link).unwrap_or(0)
            };
            let (lte, wifi) = (number(&node.lte), number(&node.wifi));
            // The path that bypasses the node.
            let (at_upf, at_node) = (format!("x{n}"), "x".to_owned());
            let end = |space: &str, interface: &str, host| End {
                space: space.to_owned(),
                interface: interface.to_owned(),
                mac: mac(1024 + n, host),
                plain: false,
            };
            self.veth(end(&upf_space, &at_upf, 1), end(&space, &at_node, 2));
            for (space, interface, host, peer) in [(&upf_space, &at_upf, 1, 2), (&space, &at_node, 2, 1)] {
                self.ip(space, &format!("addr add 10.4.{n}.{host}/30 dev {interface}"));
                let lladdr = mac(1024 + n, peer);
                self.ip(
                    space,
                    &format!("neigh add 10.4.{n}.{peer} lladdr {lladdr} dev {interface} nud permanent"),
                );
            }
            for leg in [lte, wifi] {
                self.ip(&upf_space, &format!("route add 10.1.{leg}.0/24 via 10.4.{n}.2 dev {at_upf}"));
            }
            self.ip(&space, &format!("route add default via 10.4.{n}.1 dev {at_node}"));
            let mut setup = format!(
                "rule add iif l{lte} table {LWIP_TABLE}\nroute add default dev {LWIP_RAN} table {LWIP_TABLE}"
            );
            // Replies to probes over Wi-Fi also belong to the node.
            let prober = Ipv4Addr::new(10, (LWIP_NET + n) as u8, 0, 1);
            setup.push_str(&format!("\nroute add {prober}/32 dev {LWIP_RAN}"));
            let mut ues = Vec::new();
            for (ue, paths) in users {
                let [bearer, by_wifi] = lwip_addresses(case, n, ue);
                let [at_lte, at_wifi] = paths.map(|path| self.interface_of(ue, path));
                let host = |link: &str| 10 + self.place_on(link, ue);
                let (lte_host, wifi_host) = (host(&node.lte), host(&node.wifi));
                let ue_space = self.names.ue(ue);
                let lines = format!(
                    "addr add {bearer}/32 dev {at_lte}\nrule add from {bearer} table {}",
                    FIRST_TABLE + paths[0]
                );
                if case.gnbs.contains_key(&node.lte) {
                    self.later(&ue_space, &lines);
                } else {
                    self.ip(&ue_space, &lines);
                }
                let table = FIRST_TABLE + paths[1];
                self.ip(
                    &ue_space,
                    &format!("addr add {by_wifi}/32 dev {at_wifi}\nrule add from {by_wifi} table {table}"),
                );
                // A cell accepts all packets routed to its interface.
                let via = |link: &str, number: usize, host: usize| match case.gnbs.contains_key(link) {
                    true => String::new(),
                    false => format!("via 10.1.{number}.{host} "),
                };
                let (to_lte, to_wifi) = (via(&node.lte, lte, lte_host), via(&node.wifi, wifi, wifi_host));
                setup.push_str(&format!(
                    "\nroute add {bearer}/32 {to_lte}dev l{lte}\nroute add {by_wifi}/32 {to_wifi}dev l{wifi}"
                ));
                ues.push(LwipUe {
                    name: ue.clone(),
                    space: ue_space,
                    bearer,
                    wifi: by_wifi,
                    wifi_interface: at_wifi,
                });
            }
            self.back_to(&format!("10.{}.0.0/16", LWIP_NET + n), p);
            self.plan.lwips.push(LwipPlan {
                name: name.clone(),
                space,
                backhaul: (upf_space, format!("lw{n}")),
                prefix: format!("10.{}.0.0/16", LWIP_NET + n),
                prober,
                ues,
                setup,
            });
        }
    }

    /// Index of a UE among the users of a link.
    fn place_on(&self, link: &str, ue: &str) -> usize {
        let users = self.case.ues.iter().flat_map(|(name, u)| u.accesses.iter().map(move |a| (name, a)));
        users.filter(|(_, a)| a.link == link).position(|(name, _)| name == ue).unwrap_or(0)
    }

    /// Routes from every server to addresses behind a UPF.
    fn back_to(&mut self, target: &str, p: usize) {
        let (case, lock) = (self.case, self.lock());
        for (s, server) in case.servers.keys().enumerate() {
            let (space, net) = (self.names.server(server), 8 * s + p);
            for cc in self.controls {
                let table =
                    if *cc == CongestionControl::Cubic { "main".into() } else { table_of(*cc).to_string() };
                self.ip(
                    &space,
                    &format!("route add {target} via 10.2.{net}.1 dev u{p} table {table} congctl {lock}{cc}"),
                );
            }
        }
    }
}

/// First value of the second byte of addresses of LWIP UEs.
const LWIP_NET: usize = 64;

/// Addresses of a UE of the `n`th LWIP node: on the bearer, and over Wi-Fi.
#[must_use]
pub fn lwip_addresses(case: &Case, n: usize, ue: &str) -> [Ipv4Addr; 2] {
    let first = 16 + 2 * position(&case.ues, ue);
    [first, first + 1].map(|host| Ipv4Addr::new(10, (LWIP_NET + n) as u8, (host >> 8) as u8, host as u8))
}

#[cfg(test)]
mod tests {
    use crate::netns::plan::lay_out;
    use std::path::Path;

    #[test]
    fn an_lwip_node_stands_between_the_upf_and_its_legs() {
        let text = r#"
title = "t"
[link.wifi]
[gnb.cell]
[lwip.node]
lte = "cell"
wifi = "wifi"
[ue.one]
accesses = [{ name = "wifi", link = "wifi" }]
[ue.two]
accesses = [{ name = "wifi", link = "wifi" }, { name = "5g", link = "cell" }]
[flow.a]
kind = "bulk_tcp"
ue = "two"
via = "lwip"
[flow.b]
kind = "bulk_tcp"
ue = "one"
via = "direct:wifi"
"#;
        let scenario = crate::scenario::parse(Path::new("t.toml"), text, &[]).unwrap();
        let plan = lay_out(&scenario.cases[0]).unwrap();
        let [node] = &plan.lwips[..] else { panic!("{:?}", plan.lwips) };
        let [ue] = &node.ues[..] else { panic!("{node:?}") };
        assert_eq!((ue.name.as_str(), ue.wifi_interface.as_str()), ("two", "wifi"));
        assert_eq!([ue.bearer, ue.wifi].map(|a| a.to_string()), ["10.64.0.18", "10.64.0.19"]);
        assert_eq!(node.backhaul, ("upf".to_owned(), "lw0".to_owned()));
        assert!(node.setup.contains("rule add iif l1 table 50"), "{}", node.setup);
        assert!(
            node.setup.contains("10.64.0.18/32 dev l1")
                && node.setup.contains("10.64.0.19/32 via 10.1.0.11 dev l0")
        );
        // The N3 interface of the cell and the far end of Wi-Fi are at the node.
        let [cell] = &plan.cells[..] else { panic!("{:?}", plan.cells) };
        assert_eq!(cell.n3, ("lwip-node".to_owned(), "l1".to_owned()));
        assert!(cell.ues[0].addresses.contains(&ue.bearer.into()));
        assert!(plan.setup["lwip-node"].contains("addr add 10.1.0.1/24 dev l0"));
        assert!(plan.setup["upf"].contains("route add 10.1.0.0/24 via 10.4.0.2"));
        assert!(plan.setup["server"].contains("route add 10.64.0.0/16 via"));
        assert!(plan.radio_setup["two"].contains("addr add 10.64.0.18/32 dev 5g"));
        assert!(plan.setup["two"].contains("addr add 10.64.0.19/32 dev wifi"));
    }
}
