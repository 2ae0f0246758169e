//! Layout of namespaces, interfaces, addresses and routes for a scenario. Pure: nothing is created here.
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
//! - UE u of LWIP node n: 10.(64+n).0.0 + 16 + 2u on the bearer, the next address over Wi-Fi; 10.4.n.0/30 bypasses the node
//! - pool of UPF p: 10.(45+p).0.0/16 and fd45:p::/64; the UPF is its first host, UE u host 2+u
//!
//! Telemetry: controllers are loaded before the routes that refer to them. Sources are attached to the interfaces by which data
//! leaves, and routes reserve room for a trace (`mtu`).
//!
//! Each congestion control has its own address of the server. Routes set the locked control (`congctl lock cubic`), because the
//! kernel does not allow the sysctl in a namespace for algorithms that the host has not enabled for all users, and because it is
//! the only setting that applies to subflows opened by MPTCP itself.

mod access;
mod lwip;
mod names;
mod servers;
mod telemetry;

pub use lwip::{LWIP_RAN, LwipPlan, LwipUe, lwip_addresses};
pub use servers::server_link_is_emulated;
pub use telemetry::{SourcePlan, TelemetryPlan, trace_bytes};

use crate::scenario::file::CongestionControl;
use crate::scenario::model::{Case, Link, Via};
use anyhow::{Result, bail};
use names::Names;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The layout of a network.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Every namespace: name and role.
    pub spaces: BTreeMap<String, Role>,
    /// Pairs of interfaces.
    pub veths: Vec<[End; 2]>,
    /// `ip -batch` lines per namespace, to run once the interfaces exist.
    pub setup: BTreeMap<String, String>,
    /// Emulated links: accesses by name, and server links that are not plain.
    pub links: Vec<EmulatedLink>,
    /// Cells (`anabranch gnb`).
    pub cells: Vec<CellPlan>,
    /// LWIP nodes.
    pub lwips: Vec<LwipPlan>,
    /// `ip -batch` lines per namespace, to run once the cells have created their interfaces.
    pub radio_setup: BTreeMap<String, String>,
    /// UEs by name.
    pub ues: BTreeMap<String, UePlan>,
    /// UPFs by name.
    pub upfs: BTreeMap<String, UpfPlan>,
    /// Servers by name.
    pub servers: BTreeMap<String, ServerPlan>,
    /// Requirements of in-band telemetry.
    pub telemetry: TelemetryPlan,
}

/// The role of a namespace.
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
    /// Name of the interface in the namespace.
    pub interface: String,
    /// MAC address.
    pub mac: String,
    /// Whether offloads are disabled: packets that leave here must be whole packets on an emulated link.
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
    /// The link; A to B is `up`.
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
    /// Name in the scenario.
    pub name: String,
    /// Its namespace.
    pub space: String,
    /// The interface that the cell creates there.
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
    /// Its IPv6 address inside the tunnel.
    pub inner6: String,
    /// Routes into the tunnel, to be set when it is up.
    pub tunnel_routes: String,
    /// Name of its UPF.
    pub upf: String,
}

/// An access of a UE.
#[derive(Debug, Clone)]
pub struct AccessPlan {
    /// Name in the scenario.
    pub name: String,
    /// The UE's interface.
    pub interface: String,
    /// The UE's address on it.
    pub address: Ipv4Addr,
    /// The UE's IPv6 address on it.
    pub address6: Ipv6Addr,
    /// The UPF's address behind it.
    pub gateway: Ipv4Addr,
    /// UDP port of the UPF for this access name.
    pub port: u16,
    /// Whether it is a cell, which creates the interface.
    pub cell: bool,
}

/// A UPF.
#[derive(Debug, Clone)]
pub struct UpfPlan {
    /// Its namespace.
    pub space: String,
    /// Prefix of the addresses inside the tunnel.
    pub pool: String,
    /// Prefix of the IPv6 addresses inside the tunnel.
    pub pool6: String,
    /// Access names with their UDP port.
    pub accesses: BTreeMap<String, u16>,
    /// Names of the UEs with a session at this UPF.
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
        Ipv4Addr::new(10, 3, self.number, servers::host_of(cc))
    }

    /// The IPv6 address at which flows with this congestion control reach it.
    #[must_use]
    pub fn address6(&self, cc: CongestionControl) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 3, self.number.into(), 0, 0, 0, 0, servers::host_of(cc).into())
    }
}

/// The inner interface at both tunnel ends.
pub const TUNNEL: &str = "anb0";
/// UDP port of the first access name; the others follow.
const FIRST_PORT: u16 = 4500;
/// Routing table of a UE's first access.
const FIRST_TABLE: usize = 101;

/// Lays out the network of `case`.
///
/// # Errors
/// A number exceeds the limits of the address plan.
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
    let ipv6 = case.flows.values().any(|f| f.ipv6);
    let mut plan = Plan { telemetry: TelemetryPlan::of(case)?, ..Plan::default() };
    let mut build = Build { case, names: &names, controls: &controls, ipv6, plan: &mut plan };
    build.spaces();
    build.accesses();
    build.servers();
    build.tunnels();
    build.lwips();
    build.sources()?;
    Ok(plan)
}

struct Build<'a> {
    case: &'a Case,
    names: &'a Names,
    controls: &'a BTreeSet<CongestionControl>,
    /// Whether a flow runs over IPv6.
    ipv6: bool,
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
            self.ip(&space, &format!("link set dev {interface} up"));
        }
        self.plan.veths.push([a, b]);
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
        let way = format!("dev {TUNNEL}");
        let routes =
            format!("{}{}", self.to_servers(&way, ""), self.to_servers6(&way, "", servers::TUNNEL_MTU));
        let lock = self.lock();
        for (u, (ue, of)) in case.ues.iter().enumerate() {
            let p = position(&case.upfs, &of.upf);
            let Some(plan) = self.plan.ues.get_mut(ue) else { continue };
            plan.inner = Ipv4Addr::new(10, 45 + p as u8, 0, 2 + u as u8);
            plan.inner6 = format!("fd45:{p:x}::{:x}", 2 + u);
            plan.tunnel_routes = format!("{routes}\nroute add fd00:3::/32 dev {TUNNEL} congctl {lock}cubic");
        }
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

/// IPv6 prefix of link `number`, to be followed by a colon and a host.
fn net6(number: usize) -> String {
    format!("fd00:1:{number:x}:")
}

fn pool(p: usize) -> String {
    format!("10.{}.0.0/16", 45 + p)
}

fn position<V>(map: &BTreeMap<String, V>, name: &str) -> usize {
    map.keys().position(|n| n == name).unwrap_or(0)
}

/// A locally administered MAC address, the same in every run.
fn mac(net: usize, host: usize) -> String {
    format!("02:ab:{:02x}:{:02x}:{:02x}:{:02x}", net >> 8 & 255, net & 255, host >> 8 & 255, host & 255)
}

#[cfg(test)]
mod tests;
