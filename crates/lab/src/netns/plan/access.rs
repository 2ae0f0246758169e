//! UEs and UPFs on their links and cells.

use super::servers::ETHERNET_MTU;
use super::{
    AccessPlan, Build, CellPlan, CellUe, EmulatedLink, End, FIRST_PORT, FIRST_TABLE, TUNNEL, UePlan,
    access_names, lwip_addresses, mac, net6, position,
};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Lines for `ip -batch`.
struct Lines {
    addresses: String,
    routes: String,
    /// The addresses in them.
    own: [IpAddr; 2],
}

impl Build<'_> {
    /// UEs and UPFs on their access links.
    pub(super) fn accesses(&mut self) {
        let case = self.case;
        for (number, (link, of)) in case.links.iter().enumerate() {
            let space = self.names.link(link);
            let users: Vec<(&String, usize)> = case
                .ues
                .iter()
                .flat_map(|(ue, u)| {
                    u.accesses.iter().enumerate().filter(|(_, a)| a.link == *link).map(move |(i, _)| (ue, i))
                })
                .collect();
            let upfs: BTreeSet<&String> = users.iter().map(|(ue, _)| &case.ues[*ue].upf).collect();
            let mut sides = [Vec::new(), Vec::new()];
            for (k, (ue, index)) in users.iter().enumerate() {
                sides[0].push(self.ue_access(number, &space, k, ue, *index));
            }
            for upf in upfs {
                sides[1].push(self.upf_access(number, &space, upf, &users));
            }
            self.plan.links.push(EmulatedLink { name: Some(link.clone()), space, sides, link: of.clone() });
        }
        for (number, gnb) in (case.links.len()..).zip(case.gnbs.keys()) {
            self.cell(number, gnb);
        }
        // The order of links differs from that of the UE's accesses.
        for (name, plan) in &mut self.plan.ues {
            let order = |a: &AccessPlan| case.ues[name].accesses.iter().position(|x| x.name == a.name);
            plan.accesses.sort_by_key(order);
        }
    }

    /// Connects the `k`-th user of link `number`. Returns the interface at the link.
    fn ue_access(&mut self, number: usize, link_space: &str, k: usize, ue: &str, index: usize) -> String {
        let (space, interface) = (self.names.ue(ue), self.interface_of(ue, index));
        let (upf, host) = (position(&self.case.upfs, &self.case.ues[ue].upf), 10 + k);
        let inside = format!("a{k}");
        self.on_link(number, host, (&space, &interface), (link_space, &inside));
        let lines = self.ue_side(number, k, ue, index);
        let (gateway, net6, lladdr) = (1 + upf, net6(number), mac(number, 1 + upf));
        self.ip(&space, &lines.addresses);
        for gateway in [format!("10.1.{number}.{gateway}"), format!("{net6}:{gateway:x}")] {
            self.ip(&space, &format!("neigh add {gateway} lladdr {lladdr} dev {interface} nud permanent"));
        }
        self.ip(&space, &lines.routes);
        inside
    }

    /// Connects an interface of host number `host` to link `number`.
    fn on_link(&mut self, number: usize, host: usize, outside: (&str, &str), inside: (&str, &str)) {
        let end = |(space, interface): (&str, &str), host| End {
            space: space.to_owned(),
            interface: interface.to_owned(),
            mac: mac(number, host),
            plain: true,
        };
        self.veth(end(outside, host), end(inside, 128 + host));
    }

    /// Addresses and routes of the `k`-th user of link `number`, and its access in the plan.
    fn ue_side(&mut self, number: usize, k: usize, ue: &str, index: usize) -> Lines {
        let case = self.case;
        let of = &case.ues[ue];
        let access = &of.accesses[index];
        let interface = self.interface_of(ue, index);
        let (host, gateway) = (10 + k, 1 + position(&case.upfs, &of.upf));
        let address = Ipv4Addr::new(10, 1, number as u8, host as u8);
        let address6 = Ipv6Addr::new(0xfd00, 1, number as u16, 0, 0, 0, 0, host as u16);
        let gateway4 = Ipv4Addr::new(10, 1, number as u8, gateway as u8);
        let port = FIRST_PORT + position(&access_names(case, &of.upf), &access.name) as u16;
        let (net6, table) = (net6(number), FIRST_TABLE + index);
        let addresses = format!(
            "addr add {address}/24 dev {interface}\naddr add {net6}:{host:x}/64 dev {interface} nodad"
        );
        // Traffic bound to the access (direct flows, MPTCP subflows) uses it.
        let ways = self.to_servers(&format!("via {gateway4} dev {interface}"), &format!("table {table}"));
        let ways6 = self.to_servers6(
            &format!("via {net6}:{gateway:x} dev {interface}"),
            &format!("table {table}"),
            ETHERNET_MTU,
        );
        let mut routes = format!(
            "rule add from {address} table {table}\n-6 rule add from {net6}:{host:x} table {table}\n{ways}\n\
             route add default via {gateway4} dev {interface} table {table}\n\
             route add default via {net6}:{gateway:x} dev {interface} table {table}{ways6}"
        );
        if self.uses_mptcp(ue) {
            routes.push_str("\nmptcp limits set subflow 8 add_addr_accepted 8");
            // The first access carries the first subflow and needs no endpoint.
            if index > 0 {
                routes.push_str(&format!("\nmptcp endpoint add {address} dev {interface} subflow"));
            }
        }
        let cell = case.gnbs.contains_key(&access.link);
        let plan = AccessPlan {
            name: access.name.clone(),
            interface,
            address,
            address6,
            gateway: gateway4,
            port,
            cell,
        };
        let names = self.names;
        let plans = self.plan.ues.entry(ue.to_owned()).or_insert_with(|| UePlan {
            space: names.ue(ue),
            accesses: Vec::new(),
            inner: Ipv4Addr::UNSPECIFIED,
            inner6: String::new(),
            tunnel_routes: String::new(),
            upf: of.upf.clone(),
        });
        plans.accesses.push(plan);
        Lines { addresses, routes, own: [address.into(), address6.into()] }
    }

    /// A cell instead of link `number`; its program creates the interfaces.
    fn cell(&mut self, number: usize, gnb: &str) {
        let case = self.case;
        let users = case.ues_of(gnb);
        let mut ues = Vec::new();
        // All users have the same UPF; the scenario was checked for this.
        let upf = users.first().map_or("", |(ue, _)| &case.ues[*ue].upf);
        let (upf_space, at_upf, gateway) =
            (self.far_space(gnb, upf), format!("l{number}"), 1 + position(&case.upfs, upf));
        self.later(
            &upf_space,
            &format!(
                "addr add 10.1.{number}.{gateway}/24 dev {at_upf}\naddr add {}:{gateway:x}/64 dev {at_upf} nodad",
                net6(number)
            ),
        );
        for (k, (ue, index)) in users.into_iter().enumerate() {
            let (space, interface) = (self.names.ue(ue), self.interface_of(ue, index));
            let lines = self.ue_side(number, k, ue, index);
            self.later(&space, &lines.addresses);
            self.later(&space, &lines.routes);
            let mut addresses = lines.own.to_vec();
            let nodes = case.lwips.iter().enumerate().filter(|(_, (_, node))| node.lte == gnb);
            addresses.extend(nodes.map(|(n, _)| IpAddr::V4(lwip_addresses(case, n, ue)[0])));
            ues.push(CellUe { name: ue.clone(), space, interface, addresses });
        }
        let space = self.names.gnb(gnb);
        self.plan.cells.push(CellPlan { name: gnb.to_owned(), space, n3: (upf_space, at_upf), ues });
    }

    pub(super) fn later(&mut self, space: &str, line: &str) {
        let lines = self.plan.radio_setup.entry(space.to_owned()).or_default();
        lines.push_str(line);
        lines.push('\n');
    }

    /// Name of the UE's interface for an access: that of the access if it is a valid interface name.
    pub(super) fn interface_of(&self, ue: &str, index: usize) -> String {
        let access = &self.case.ues[ue].accesses[index];
        let reserved = ["lo", TUNNEL, "all", "default"];
        // The interface of a cell may have a companion with a longer name.
        let longest = if self.case.gnbs.contains_key(&access.link) { 13 } else { 15 };
        let fits = access.name.len() <= longest && !reserved.contains(&access.name.as_str());
        if fits { access.name.clone() } else { format!("acc{index}") }
    }

    fn upf_access(
        &mut self,
        number: usize,
        link_space: &str,
        upf: &str,
        users: &[(&String, usize)],
    ) -> String {
        let p = position(&self.case.upfs, upf);
        let link = self.case.links.keys().nth(number).cloned().unwrap_or_default();
        let space = self.far_space(&link, upf);
        let (interface, inside, host) = (format!("l{number}"), format!("b{p}"), 1 + p);
        self.on_link(number, host, (&space, &interface), (link_space, &inside));
        self.ip(&space, &format!("addr add 10.1.{number}.{host}/24 dev {interface}"));
        self.ip(&space, &format!("addr add fd00:1:{number:x}::{host:x}/64 dev {interface} nodad"));
        // Neighbours are static: an address resolution lost on the link would cost a second.
        for k in 0..users.len() {
            let (to, lladdr) = (10 + k, mac(number, 10 + k));
            self.ip(
                &space,
                &format!("neigh add 10.1.{number}.{to} lladdr {lladdr} dev {interface} nud permanent"),
            );
            self.ip(
                &space,
                &format!("neigh add fd00:1:{number:x}::{to:x} lladdr {lladdr} dev {interface} nud permanent"),
            );
        }
        inside
    }
}
