//! From a scenario to namespaces, interfaces, addresses and routes. Pure: nothing is made here.
//!
//! ```text
//!  ue ns                       link ns              upf ns                    server ns
//!  wifi  10.1.0.10 ──── a0 [anabranch link] b0 ──── l0    10.1.0.1
//!  5g    10.1.1.10 ──── a0 [anabranch link] b0 ──── l1    10.1.1.1
//!  5g    10.1.2.10 ┄┄┄┄ [anabranch gnb] ┄┄┄┄┄┄┄┄ l2    10.1.2.1
//!  anb0  10.45.0.2 ┄┄┄┄┄┄ tunnel ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ anb0  10.45.0.1
//!                                                   s0    10.2.0.1 ──────── u0  10.2.0.2
//!                                                                           lo  10.3.0.1
//! ```
//!
//! - access link number L (cells come after the links): 10.1.L.0/24 and fd00:1:L::/64; UPF p is host 1+p, UE k on it host 10+k
//! - N6 between server s and UPF p: 10.2.(8s+p).0/30 and fd00:2:(8s+p)::/64
//! - server s: 10.3.s.1 (CUBIC), 10.3.s.2 (Reno), 10.3.s.3 (BBR), and fd00:3:s::1 to ::3
//! - UE u of LWIP node n: 10.(64+n).0.0 + 16 + 2u on the bearer, the next one for what comes by Wi-Fi; 10.4.n.0/30 leads past
//!   the node
//! - pool of UPF p: 10.(45+p).0.0/16 and fd45:p::/64; the UPF is its first host, UE u host 2+u
//!
//! A flow with another congestion control goes to another address of the server: routes carry the
//! control, locked (`congctl lock cubic`), because the kernel refuses the sysctl in a namespace for
//! algorithms the host has not opened to everybody, and because the subflows MPTCP opens itself obey
//! nothing else.

mod lwip;

pub use lwip::{LWIP_RAN, LwipPlan, LwipUe, lwip_addresses};

use crate::scenario::file::{CongestionControl, Program};
use crate::scenario::model::{Case, Link, Via};
use anyhow::{Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A network to be made.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Every namespace: name and role.
    pub spaces: BTreeMap<String, Role>,
    /// Pairs of interfaces.
    pub veths: Vec<[End; 2]>,
    /// `ip -batch` lines per namespace, once the interfaces exist.
    pub setup: BTreeMap<String, String>,
    /// Emulated links: accesses by name, and server links that are not plain.
    pub links: Vec<EmulatedLink>,
    /// Cells.
    pub cells: Vec<CellPlan>,
    /// LWIP nodes.
    pub lwips: Vec<LwipPlan>,
    /// `ip -batch` lines per namespace, once the cells run: their interfaces are theirs.
    pub radio_setup: BTreeMap<String, String>,
    /// UEs by name.
    pub ues: BTreeMap<String, UePlan>,
    /// UPFs by name.
    pub upfs: BTreeMap<String, UpfPlan>,
    /// Servers by name.
    pub servers: BTreeMap<String, ServerPlan>,
}

/// What a namespace is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A UE.
    Ue,
    /// An emulated link, or a cell.
    Link,
    /// An LWIP node.
    Lwip,
    /// A UPF.
    Upf,
    /// A server.
    Server,
}

/// One end of a veth pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// Namespace.
    pub space: String,
    /// Interface.
    pub interface: String,
    /// MAC address.
    pub mac: String,
    /// Whether offloads are switched off: what leaves here must be whole packets on an emulated link.
    pub plain: bool,
}

/// An `anabranch link` to run.
#[derive(Debug, Clone)]
pub struct EmulatedLink {
    /// Its name in the scenario; `None` for a server's link.
    pub name: Option<String>,
    /// Its namespace.
    pub space: String,
    /// Interfaces of side A (UEs) and side B (UPFs).
    pub sides: [Vec<String>; 2],
    /// A to B is `up`.
    pub link: Link,
}

/// An `anabranch gnb` to run.
#[derive(Debug, Clone)]
pub struct CellPlan {
    /// Its name in the scenario.
    pub name: String,
    /// Its namespace.
    pub space: String,
    /// Namespace and interface towards the UPF.
    pub n3: (String, String),
    /// UEs in the cell's order.
    pub ues: Vec<CellUe>,
}

/// A UE of a cell.
#[derive(Debug, Clone)]
pub struct CellUe {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub space: String,
    /// The interface that the cell makes there.
    pub interface: String,
    /// Its addresses in the cell.
    pub addresses: Vec<IpAddr>,
}

/// A UE.
#[derive(Debug, Clone)]
pub struct UePlan {
    /// Its namespace.
    pub space: String,
    /// Its accesses, in the scenario's order.
    pub accesses: Vec<AccessPlan>,
    /// Its address inside the tunnel.
    pub inner: Ipv4Addr,
    /// The same for IPv6.
    pub inner6: String,
    /// Routes into the tunnel, to be set when it is up.
    pub tunnel_routes: String,
    /// Its UPF.
    pub upf: String,
}

/// An access of a UE.
#[derive(Debug, Clone)]
pub struct AccessPlan {
    /// Its name.
    pub name: String,
    /// The UE's interface.
    pub interface: String,
    /// The UE's address on it.
    pub address: Ipv4Addr,
    /// The UPF's address behind it.
    pub gateway: Ipv4Addr,
    /// UDP port the UPF serves this access name on.
    pub port: u16,
    /// Whether it is a cell, and the interface the cell's.
    pub cell: bool,
}

/// A UPF.
#[derive(Debug, Clone)]
pub struct UpfPlan {
    /// Its namespace.
    pub space: String,
    /// Prefix of the addresses inside the tunnel.
    pub pool: String,
    /// The same for IPv6.
    pub pool6: String,
    /// Access names with their UDP port.
    pub accesses: BTreeMap<String, u16>,
    /// Its UEs.
    pub ues: Vec<String>,
}

/// A server.
#[derive(Debug, Clone)]
pub struct ServerPlan {
    /// Its namespace.
    pub space: String,
    number: u8,
}

impl ServerPlan {
    /// The address at which flows with this congestion control reach it.
    #[must_use]
    pub fn address(&self, cc: CongestionControl) -> Ipv4Addr {
        Ipv4Addr::new(10, 3, self.number, host_of(cc))
    }
}

/// The inner interface at both tunnel ends.
pub const TUNNEL: &str = "anb0";
/// UDP port of the first access name; the others follow.
const FIRST_PORT: u16 = 4500;
/// Routing table of a UE's first access.
const FIRST_TABLE: usize = 101;
/// Up to this rate and down to this delay a server's link is a bare veth pair.
const PLAIN_SERVER: (f64, f64) = (1000.0, 0.5);

/// Whether a server's link is emulated: at the default (1 Gbit/s, 0.5 ms) it is no bottleneck, and a bare
/// pair of interfaces leaves the processor to what is measured.
#[must_use]
pub fn server_link_is_emulated(rate_mbps: f64, delay_ms: f64) -> bool {
    rate_mbps < PLAIN_SERVER.0 || delay_ms > PLAIN_SERVER.1
}

/// Lays out the network of `case`.
///
/// # Errors
/// More of something than the address plan has room for.
pub fn lay_out(case: &Case) -> Result<Plan> {
    lwip::check(case)?;
    if case.links.len() + case.gnbs.len() > 250
        || case.lwips.len() > 100
        || case.servers.len() > 31
        || case.upfs.len() > 8
        || case.ues.len() > 200
    {
        bail!(
            "the netns backend has room for 250 links and cells, 100 LWIP nodes, 200 UEs, 31 servers and 8 UPFs"
        );
    }
    let names = Names::of(case);
    let controls: BTreeSet<CongestionControl> = case
        .flows
        .values()
        .filter_map(|f| f.traffic.congestion_control())
        .chain([CongestionControl::Cubic])
        .collect();
    let mut plan = Plan::default();
    let mut build = Build { case, names: &names, controls: &controls, plan: &mut plan };
    build.spaces();
    build.accesses();
    build.servers();
    build.tunnels();
    build.lwips();
    Ok(plan)
}

/// Name of the namespace of each thing: its own name unless something of another kind has the same.
#[derive(Debug)]
struct Names(BTreeMap<(u8, String), String>);

impl Names {
    fn of(case: &Case) -> Self {
        let kinds: [(&str, Vec<&String>); 6] = [
            ("ue", case.ues.keys().collect()),
            ("upf", case.upfs.keys().collect()),
            ("server", case.servers.keys().collect()),
            ("link", case.links.keys().collect()),
            ("gnb", case.gnbs.keys().collect()),
            ("lwip", case.lwips.keys().collect()),
        ];
        let mut map = BTreeMap::new();
        for (k, (kind, names)) in kinds.iter().enumerate() {
            for name in names {
                let taken = kinds.iter().filter(|(_, others)| others.contains(name)).count() > 1;
                // Links and cells always say what they are: their names are often those of interfaces.
                let space = if taken || ["link", "gnb", "lwip"].contains(kind) {
                    format!("{kind}-{name}")
                } else {
                    (*name).clone()
                };
                map.insert((k as u8, (*name).clone()), space);
            }
        }
        Self(map)
    }

    fn get(&self, kind: u8, name: &str) -> String {
        self.0.get(&(kind, name.to_owned())).cloned().unwrap_or_default()
    }
    fn ue(&self, name: &str) -> String {
        self.get(0, name)
    }
    fn upf(&self, name: &str) -> String {
        self.get(1, name)
    }
    fn server(&self, name: &str) -> String {
        self.get(2, name)
    }
    fn link(&self, name: &str) -> String {
        self.get(3, name)
    }
    fn gnb(&self, name: &str) -> String {
        self.get(4, name)
    }
    fn lwip(&self, name: &str) -> String {
        self.get(5, name)
    }
}

/// `ip -batch` lines.
struct Lines {
    addresses: String,
    routes: String,
}

struct Build<'a> {
    case: &'a Case,
    names: &'a Names,
    controls: &'a BTreeSet<CongestionControl>,
    plan: &'a mut Plan,
}

impl Build<'_> {
    fn spaces(&mut self) {
        let (case, names) = (self.case, self.names);
        let spaces = &mut self.plan.spaces;
        spaces.extend(case.ues.keys().map(|n| (names.ue(n), Role::Ue)));
        spaces.extend(case.upfs.keys().map(|n| (names.upf(n), Role::Upf)));
        spaces.extend(case.servers.keys().map(|n| (names.server(n), Role::Server)));
        spaces.extend(case.links.keys().map(|n| (names.link(n), Role::Link)));
        spaces.extend(case.gnbs.keys().map(|n| (names.gnb(n), Role::Link)));
        spaces.extend(case.lwips.keys().map(|n| (names.lwip(n), Role::Lwip)));
        for space in self.plan.spaces.keys().cloned().collect::<Vec<_>>() {
            self.ip(&space, "link set lo up");
        }
    }

    fn ip(&mut self, space: &str, line: &str) {
        let lines = self.plan.setup.entry(space.to_owned()).or_default();
        lines.push_str(line);
        lines.push('\n');
    }

    fn veth(&mut self, a: End, b: End) {
        for end in [&a, &b] {
            let (space, interface) = (end.space.clone(), end.interface.clone());
            self.ip(&space, &format!("link set {interface} up"));
        }
        self.plan.veths.push([a, b]);
    }

    /// UEs and UPFs on their access links.
    fn accesses(&mut self) {
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
        // The order of the links is not that of the UE's accesses.
        for (name, plan) in &mut self.plan.ues {
            let order = |a: &AccessPlan| case.ues[name].accesses.iter().position(|x| x.name == a.name);
            plan.accesses.sort_by_key(order);
        }
    }

    /// Connects the `k`-th user of link `number`; returns the interface on the link's side.
    fn ue_access(&mut self, number: usize, link_space: &str, k: usize, ue: &str, index: usize) -> String {
        let (space, interface) = (self.names.ue(ue), self.interface_of(ue, index));
        let (upf, host) = (position(&self.case.upfs, &self.case.ues[ue].upf), 10 + k);
        let inside = format!("a{k}");
        self.veth(
            End { space: space.clone(), interface: interface.clone(), mac: mac(number, host), plain: true },
            End {
                space: link_space.to_owned(),
                interface: inside.clone(),
                mac: mac(number, 128 + host),
                plain: true,
            },
        );
        let lines = self.ue_side(number, k, ue, index);
        let (gateway, net6, lladdr) = (1 + upf, net6(number), mac(number, 1 + upf));
        self.ip(&space, &lines.addresses);
        for gateway in [format!("10.1.{number}.{gateway}"), format!("{net6}:{gateway:x}")] {
            self.ip(&space, &format!("neigh add {gateway} lladdr {lladdr} dev {interface} nud permanent"));
        }
        self.ip(&space, &lines.routes);
        inside
    }

    /// Addresses and routes of the `k`-th user of link `number`, and its access in the plan.
    fn ue_side(&mut self, number: usize, k: usize, ue: &str, index: usize) -> Lines {
        let case = self.case;
        let of = &case.ues[ue];
        let access = &of.accesses[index];
        let interface = self.interface_of(ue, index);
        let (host, gateway) = (10 + k, 1 + position(&case.upfs, &of.upf));
        let address = Ipv4Addr::new(10, 1, number as u8, host as u8);
        let gateway4 = Ipv4Addr::new(10, 1, number as u8, gateway as u8);
        let port = FIRST_PORT + position(&access_names(case, &of.upf), &access.name) as u16;
        let (net6, table) = (net6(number), FIRST_TABLE + index);
        let addresses = format!(
            "addr add {address}/24 dev {interface}\naddr add {net6}:{host:x}/64 dev {interface} nodad"
        );
        // What is bound to the access (direct flows, MPTCP subflows) leaves by it.
        let ways = self.to_servers(&format!("via {gateway4} dev {interface}"), &format!("table {table}"));
        let mut routes = format!(
            "rule add from {address} table {table}\n-6 rule add from {net6}:{host:x} table {table}\n{ways}\n\
             route add default via {gateway4} dev {interface} table {table}\n\
             route add default via {net6}:{gateway:x} dev {interface} table {table}"
        );
        if self.uses_mptcp(ue) {
            routes.push_str("\nmptcp limits set subflow 8 add_addr_accepted 8");
            // The first access carries the first subflow, without an endpoint of its own.
            if index > 0 {
                routes.push_str(&format!("\nmptcp endpoint add {address} dev {interface} subflow"));
            }
        }
        let cell = case.gnbs.contains_key(&access.link);
        let plan =
            AccessPlan { name: access.name.clone(), interface, address, gateway: gateway4, port, cell };
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
        Lines { addresses, routes }
    }

    /// A cell in the place of link `number`: its program makes the interfaces.
    fn cell(&mut self, number: usize, gnb: &str) {
        let case = self.case;
        let users = case.ues_of(gnb);
        let mut ues = Vec::new();
        // All of one UPF; the scenario was checked for it.
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
            let (space, interface, host) = (self.names.ue(ue), self.interface_of(ue, index), 10 + k);
            let lines = self.ue_side(number, k, ue, index);
            self.later(&space, &lines.addresses);
            self.later(&space, &lines.routes);
            let v6 = Ipv6Addr::new(0xfd00, 1, number as u16, 0, 0, 0, 0, host as u16);
            let mut addresses = vec![Ipv4Addr::new(10, 1, number as u8, host as u8).into(), v6.into()];
            let nodes = case.lwips.iter().enumerate().filter(|(_, (_, node))| node.lte == gnb);
            addresses.extend(nodes.map(|(n, _)| IpAddr::V4(lwip_addresses(case, n, ue)[0])));
            ues.push(CellUe { name: ue.clone(), space, interface, addresses });
        }
        let space = self.names.gnb(gnb);
        self.plan.cells.push(CellPlan { name: gnb.to_owned(), space, n3: (upf_space, at_upf), ues });
    }

    fn later(&mut self, space: &str, line: &str) {
        let lines = self.plan.radio_setup.entry(space.to_owned()).or_default();
        lines.push_str(line);
        lines.push('\n');
    }

    /// The UE's interface for an access: the access's name where that can be an interface's.
    fn interface_of(&self, ue: &str, index: usize) -> String {
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
        self.veth(
            End { space: space.clone(), interface: interface.clone(), mac: mac(number, host), plain: true },
            End {
                space: link_space.to_owned(),
                interface: inside.clone(),
                mac: mac(number, 128 + host),
                plain: true,
            },
        );
        self.ip(&space, &format!("addr add 10.1.{number}.{host}/24 dev {interface}"));
        self.ip(&space, &format!("addr add fd00:1:{number:x}::{host:x}/64 dev {interface} nodad"));
        // Neighbours are fixed: an address resolution lost on the link would cost a second.
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

    /// Servers and their links to every UPF.
    fn servers(&mut self) {
        let case = self.case;
        for (s, (server, of)) in case.servers.iter().enumerate() {
            let space = self.names.server(server);
            self.plan.servers.insert(server.clone(), ServerPlan { space: space.clone(), number: s as u8 });
            for cc in self.controls {
                let host = host_of(*cc);
                self.ip(&space, &format!("addr add 10.3.{s}.{host}/32 dev lo"));
                self.ip(&space, &format!("addr add fd00:3:{s:x}::{host:x}/128 dev lo"));
                if *cc != CongestionControl::Cubic {
                    self.ip(&space, &format!("rule add from 10.3.{s}.{host} table {}", table_of(*cc)));
                }
            }
            if case.ues.keys().any(|ue| self.uses_mptcp(ue)) {
                self.ip(&space, "mptcp limits set subflow 8 add_addr_accepted 8");
            }
            for (p, upf) in case.upfs.keys().enumerate() {
                self.server_to_upf(s, &space, p, upf, server_link_is_emulated(of.rate_mbps, of.delay_ms));
            }
        }
    }

    fn server_to_upf(&mut self, s: usize, space: &str, p: usize, upf: &str, emulated: bool) {
        let case = self.case;
        let upf_space = self.names.upf(upf);
        let net = 8 * s + p;
        let (at_server, at_upf) = (format!("u{p}"), format!("s{s}"));
        let end = |space: &str, interface: &str, host: usize| End {
            space: space.to_owned(),
            interface: interface.to_owned(),
            mac: mac(256 + net, host),
            plain: emulated,
        };
        if emulated {
            let of = case.servers.values().nth(s).cloned().unwrap_or_default();
            let inside = format!("n6-{s}-{p}");
            self.plan.spaces.insert(inside.clone(), Role::Link);
            self.veth(end(&upf_space, &at_upf, 1), end(&inside, "a0", 129));
            self.veth(end(&inside, "b0", 130), end(space, &at_server, 2));
            self.plan.links.push(EmulatedLink {
                name: None,
                space: inside,
                sides: [vec!["a0".into()], vec!["b0".into()]],
                link: server_link(of.rate_mbps, of.delay_ms),
            });
        } else {
            self.veth(end(&upf_space, &at_upf, 1), end(space, &at_server, 2));
        }
        for (space, interface, host, peer) in [(&*upf_space, &at_upf, 1, 2), (space, &at_server, 2, 1)] {
            self.ip(space, &format!("addr add 10.2.{net}.{host}/30 dev {interface}"));
            self.ip(space, &format!("addr add fd00:2:{net:x}::{host}/64 dev {interface} nodad"));
            let lladdr = mac(256 + net, peer);
            self.ip(
                space,
                &format!("neigh add 10.2.{net}.{peer} lladdr {lladdr} dev {interface} nud permanent"),
            );
            self.ip(
                space,
                &format!("neigh add fd00:2:{net:x}::{peer} lladdr {lladdr} dev {interface} nud permanent"),
            );
        }
        self.ip(&upf_space, &format!("route add 10.3.{s}.0/24 via 10.2.{net}.2 dev {at_upf}"));
        self.ip(&upf_space, &format!("route add fd00:3:{s:x}::/64 via fd00:2:{net:x}::2 dev {at_upf}"));
        let lock = self.lock();
        // Back to the pool of this UPF, and to the UEs of this UPF without tunnel.
        let mut targets = vec![pool(p)];
        let mut targets6 = vec![format!("fd45:{p:x}::/64")];
        for (number, link) in case.links.keys().chain(case.gnbs.keys()).enumerate() {
            let users = case.ues.values().flat_map(|u| u.accesses.iter().map(move |a| (u, a)));
            for (k, (ue, _)) in users.filter(|(_, a)| a.link == *link).enumerate() {
                if ue.upf == upf {
                    targets.push(format!("10.1.{number}.{}/32", 10 + k));
                    targets6.push(format!("fd00:1:{number:x}::{:x}/128", 10 + k));
                }
            }
        }
        for target in targets {
            for cc in self.controls {
                let table =
                    if *cc == CongestionControl::Cubic { "main".into() } else { table_of(*cc).to_string() };
                self.ip(
                    space,
                    &format!(
                        "route add {target} via 10.2.{net}.1 dev {at_server} table {table} congctl {lock}{cc}"
                    ),
                );
            }
        }
        for target in targets6 {
            let line =
                format!("route add {target} via fd00:2:{net:x}::1 dev {at_server} congctl {lock}cubic");
            self.ip(space, &line);
        }
    }

    fn tunnels(&mut self) {
        let case = self.case;
        for (p, upf) in case.upfs.keys().enumerate() {
            let names = access_names(case, upf);
            let accesses =
                names.keys().enumerate().map(|(i, n)| (n.clone(), FIRST_PORT + i as u16)).collect();
            let plan = UpfPlan {
                space: self.names.upf(upf),
                pool: pool(p),
                pool6: format!("fd45:{p:x}::/64"),
                accesses,
                ues: case.ues.iter().filter(|(_, u)| u.upf == *upf).map(|(n, _)| n.clone()).collect(),
            };
            self.plan.upfs.insert(upf.clone(), plan);
        }
        let (routes, lock) = (self.to_servers(&format!("dev {TUNNEL}"), ""), self.lock());
        for (u, (ue, of)) in case.ues.iter().enumerate() {
            let p = position(&case.upfs, &of.upf);
            let Some(plan) = self.plan.ues.get_mut(ue) else { continue };
            plan.inner = Ipv4Addr::new(10, 45 + p as u8, 0, 2 + u as u8);
            plan.inner6 = format!("fd45:{p:x}::{:x}", 2 + u);
            plan.tunnel_routes = format!("{routes}\nroute add fd00:3::/32 dev {TUNNEL} congctl {lock}cubic");
        }
    }

    /// Routes to the servers' addresses, each with its congestion control.
    fn to_servers(&self, way: &str, table: &str) -> String {
        let lock = self.lock();
        let mut lines = format!("route add 10.3.0.0/16 {way} {table} congctl {lock}cubic");
        for s in 0..self.case.servers.len() {
            for cc in self.controls.iter().filter(|cc| **cc != CongestionControl::Cubic) {
                let host = host_of(*cc);
                // Writing to a String cannot fail.
                let _ = write!(lines, "\nroute add 10.3.{s}.{host}/32 {way} {table} congctl {lock}{cc}");
            }
        }
        lines
    }

    /// Programs do not choose the control, but iperf3 insists: both its ends set what it was told.
    fn lock(&self) -> &'static str {
        let insists = self.case.flows.values().any(|f| f.program == Program::Iperf3);
        if insists { "" } else { "lock " }
    }

    fn uses_mptcp(&self, ue: &str) -> bool {
        self.case.flows.values().any(|f| f.ue == ue && f.via == Via::Mptcp)
    }
}

/// All access names of the UEs of a UPF.
fn access_names(case: &Case, upf: &str) -> BTreeMap<String, ()> {
    let of_upf = case.ues.values().filter(|u| u.upf == *upf);
    of_upf.flat_map(|u| u.accesses.iter().map(|a| (a.name.clone(), ()))).collect()
}

fn server_link(rate_mbps: f64, delay_ms: f64) -> Link {
    let direction = crate::scenario::file::LinkDirection { rate_mbps, delay_ms, ..Default::default() };
    Link { up: direction.clone(), down: direction }
}

/// Network part of link `number`, for IPv6; a host follows after a colon.
fn net6(number: usize) -> String {
    format!("fd00:1:{number:x}:")
}

fn pool(p: usize) -> String {
    format!("10.{}.0.0/16", 45 + p)
}

fn position<V>(map: &BTreeMap<String, V>, name: &str) -> usize {
    map.keys().position(|n| n == name).unwrap_or(0)
}

/// A locally administered address; the same in every run.
fn mac(net: usize, host: usize) -> String {
    format!("02:ab:{:02x}:{:02x}:{:02x}:{:02x}", net >> 8 & 255, net & 255, host >> 8 & 255, host & 255)
}

const fn host_of(cc: CongestionControl) -> u8 {
    match cc {
        CongestionControl::Cubic => 1,
        CongestionControl::Reno => 2,
        CongestionControl::Bbr => 3,
        CongestionControl::IntCubicL1 => 4,
        CongestionControl::IntCubicL2 => 5,
        CongestionControl::IntCubicSs => 6,
        CongestionControl::IntRate => 7,
    }
}

const fn table_of(cc: CongestionControl) -> u8 {
    200 + host_of(cc)
}

#[cfg(test)]
mod tests;
