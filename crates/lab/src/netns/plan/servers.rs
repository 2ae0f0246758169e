//! Servers, their links to every UPF, and the routes that select a congestion control.

use super::{Build, EmulatedLink, End, Role, ServerPlan, mac, pool};
use crate::scenario::file::Server;
use crate::scenario::file::{CongestionControl, Program};
use std::fmt::Write;

/// Rate in Mbit/s up to which, and delay in ms down to which, a server's link is a plain veth pair.
const PLAIN_SERVER: (f64, f64) = (1000.0, 0.5);

/// Whether a server's link is emulated. At the default (1 Gbit/s, 0.5 ms) it is no bottleneck, and a plain veth pair leaves the
/// processor to the measured programs. A link with a node that fills traces is always emulated.
#[must_use]
pub fn server_link_is_emulated(of: &Server) -> bool {
    of.rate_mbps < PLAIN_SERVER.0 || of.delay_ms > PLAIN_SERVER.1 || of.ioam_node.is_some()
}

impl Build<'_> {
    /// Servers and their links to every UPF.
    pub(super) fn servers(&mut self) {
        let case = self.case;
        for (s, (server, of)) in case.servers.iter().enumerate() {
            let space = self.names.server(server);
            self.plan.servers.insert(server.clone(), ServerPlan { space: space.clone(), number: s as u8 });
            for cc in self.controls {
                let host = host_of(*cc);
                self.ip(&space, &format!("addr add 10.3.{s}.{host}/32 dev lo"));
                self.ip(&space, &format!("addr add fd00:3:{s:x}::{host:x}/128 dev lo"));
                if *cc != CongestionControl::Cubic {
                    let table = table_of(*cc);
                    self.ip(&space, &format!("rule add from 10.3.{s}.{host} table {table}"));
                    if self.ipv6 {
                        self.ip(&space, &format!("-6 rule add from fd00:3:{s:x}::{host:x} table {table}"));
                    }
                }
            }
            if case.ues.keys().any(|ue| self.uses_mptcp(ue)) {
                self.ip(&space, "mptcp limits set subflow 8 add_addr_accepted 8");
            }
            for (p, upf) in case.upfs.keys().enumerate() {
                self.server_to_upf(s, &space, p, upf, server_link_is_emulated(of));
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
                link: of.link(),
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
        // Back to the pool of this UPF, and to its UEs without tunnel.
        let mut targets = vec![pool(p)];
        let mut targets6 = vec![(format!("fd45:{p:x}::/64"), TUNNEL_MTU)];
        for (number, link) in case.links.keys().chain(case.gnbs.keys()).enumerate() {
            let users = case.ues.values().flat_map(|u| u.accesses.iter().map(move |a| (u, a)));
            for (k, (ue, _)) in users.filter(|(_, a)| a.link == *link).enumerate() {
                if ue.upf == upf {
                    targets.push(format!("10.1.{number}.{}/32", 10 + k));
                    targets6.push((format!("fd00:1:{number:x}::{:x}/128", 10 + k), ETHERNET_MTU));
                }
            }
        }
        let (lock, cubic, ipv6) = (self.lock(), CongestionControl::Cubic, self.ipv6);
        for cc in self.controls.iter().filter(|cc| ipv6 || **cc == cubic) {
            for (target, mtu) in &targets6 {
                let room = self.room(*cc, *mtu);
                let via = format!("via fd00:2:{net:x}::1 dev {at_server} table {}", table(*cc));
                self.ip(space, &format!("route add {target} {via} congctl {lock}{cc}{room}"));
            }
        }
        for target in targets {
            for cc in self.controls {
                let via = format!("via 10.2.{net}.1 dev {at_server} table {}", table(*cc));
                self.ip(space, &format!("route add {target} {via} congctl {lock}{cc}"));
            }
        }
    }

    /// Routes to the servers' addresses, each with its congestion control.
    pub(super) fn to_servers(&self, way: &str, table: &str) -> String {
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

    /// The same over IPv6, if a flow needs them; `mtu` is that of the path.
    pub(super) fn to_servers6(&self, way: &str, table: &str, mtu: u32) -> String {
        let (lock, mut lines) = (self.lock(), String::new());
        let servers = if self.ipv6 { self.case.servers.len() } else { 0 };
        for s in 0..servers {
            for cc in self.controls {
                let (host, room) = (host_of(*cc), self.room(*cc, mtu));
                // Writing to a String cannot fail.
                let _ = write!(
                    lines,
                    "\nroute add fd00:3:{s:x}::{host:x}/128 {way} {table} congctl {lock}{cc}{room}"
                );
            }
        }
        lines
    }

    /// Route option that limits packets so that a trace and the tunnel header fit.
    fn room(&self, cc: CongestionControl, mtu: u32) -> String {
        let bytes = self.plan.telemetry.room.get(&cc).copied().unwrap_or(0);
        // IPv6 requires 1280 bytes. Flows that need more room than the tunnel leaves are refused (TelemetryPlan::of), unless they do
        // not use the tunnel.
        let fits = (mtu - bytes).max(IPV6_MTU);
        if fits == ETHERNET_MTU { String::new() } else { format!(" mtu {fits}") }
    }

    /// Programs do not choose the control, except for iperf3: both its ends set the one they were given.
    pub(super) fn lock(&self) -> &'static str {
        let insists = self.case.flows.values().any(|f| f.program == Program::Iperf3);
        if insists { "" } else { "lock " }
    }
}

/// MTU of every interface except that of the tunnel.
pub(super) const ETHERNET_MTU: u32 = 1500;
/// MTU of a UPF's tunnel, the default of its configuration.
pub(super) const TUNNEL_MTU: u32 = 1400;
/// Minimum MTU of IPv6 (RFC 8200 §5).
pub(super) const IPV6_MTU: u32 = 1280;

fn table(cc: CongestionControl) -> String {
    if cc == CongestionControl::Cubic { "main".into() } else { table_of(cc).to_string() }
}

pub(super) const fn host_of(cc: CongestionControl) -> u8 {
    cc as u8 + 1
}

pub(super) const fn table_of(cc: CongestionControl) -> u8 {
    200 + host_of(cc)
}
