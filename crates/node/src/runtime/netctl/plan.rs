//! The network configuration of UE, UPF and proxy.
//!
//! The UE's routes into the tunnel are in tables of their own, numbered by the mark, behind rules that exempt
//! the tunnel's own datagrams, which carry the mark. Therefore there is no loop, whatever the routes are.
//!
//! ```text
//!  21000: not fwmark M  lookup M                               the prefixes listed in [device] routes
//!  21001: not fwmark M  lookup main suppress_prefixlength 0    the specific routes of the machine
//!  21002: not fwmark M  lookup M + 1                           the default route through the tunnel
//! ```

use super::super::config::{Device, N6Mode, UpfConfig, WithoutAddress, gateway_v4, gateway_v6};
use super::nat::{Filter, Nat};
use super::slices::{PROXY_PRIORITY, Selector};
use super::steps::Step;
use super::tproxy::Tproxy;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::path::Path;

const MAIN_TABLE: u32 = 254;

/// The veth pair that replaces TUN, with one end in a namespace of the program.
pub fn packet_device(device: &Device, namespace: Option<&File>) -> Vec<Step> {
    let namespace = namespace.map(AsRawFd::as_raw_fd);
    vec![Step::Veth { outside: device.name.clone(), inside: inside_name(&device.name), namespace }]
}

/// Name of the end of the veth pair that the program opens.
pub fn inside_name(device: &str) -> String {
    format!("{device}-i")
}

/// Settings of a UE's accesses: answers may arrive at an access that is not the best route to the UPF.
pub fn ue_accesses<'a>(interfaces: impl Iterator<Item = &'a str>) -> Vec<Step> {
    let interfaces: BTreeSet<&str> = interfaces.collect();
    let key = |name: &str| format!("net/ipv4/conf/{name}/rp_filter");
    let strict_everywhere =
        std::fs::read_to_string("/proc/sys/net/ipv4/conf/all/rp_filter").is_ok_and(|v| v.trim() == "1");
    interfaces
        .into_iter()
        .filter(|name| Path::new("/proc/sys").join(key(name)).exists())
        .map(|name| Step::Sysctl {
            key: key(name),
            value: "2",
            // The kernel applies the maximum of "all" and the interface's own value; loose is 2, strict is 1.
            only_from: if strict_everywhere { None } else { Some("1") },
        })
        .collect()
}

/// Whether a device uses IPv6; false if IPv6 is disabled in the kernel or for new devices (`disable_ipv6`).
pub fn has_ipv6(device: &str) -> bool {
    std::fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6"))
        .is_ok_and(|value| value.trim() == "0")
}

/// Addresses and routes of a UE's session. Prefixes in `routes` of a family without an address are routed to
/// the device, too, where packets are dropped, unless configured otherwise.
pub fn session_of_ue(device: &Device, addresses: &[IpAddr], mtu: u16) -> Vec<Step> {
    let name = &device.name;
    let mut plan = vec![Step::Up { device: name.clone(), mtu }];
    plan.extend(addresses.iter().map(|a| Step::Address { device: name.clone(), address: IpNet::from(*a) }));
    for v6 in [false, true] {
        let has_address = addresses.iter().any(|a| a.is_ipv6() == v6);
        let routes = || device.routes.iter().filter(|r| r.addr().is_ipv6() == v6);
        let blocks = device.without_address == WithoutAddress::Block && (!v6 || has_ipv6(name));
        if routes().next().is_none() || !has_address && !blocks {
            continue;
        }
        let rule = |order, table, suppress_default| Step::Rule {
            v6,
            order,
            table,
            unless_mark: device.mark,
            suppress_default,
        };
        for to in routes() {
            let table = if to.prefix_len() == 0 { device.mark + 1 } else { device.mark };
            plan.push(Step::Route { device: name.clone(), to: *to, table });
        }
        if routes().any(|r| r.prefix_len() > 0) {
            plan.push(rule(0, device.mark, false));
        }
        if routes().any(|r| r.prefix_len() == 0) {
            plan.push(rule(1, MAIN_TABLE, true));
            plan.push(rule(2, device.mark + 1, false));
        }
    }
    plan
}

/// Configuration of a transparent proxy: intercepted packets are routed to this machine, and there to the
/// proxy's sockets.
pub fn proxy(tproxy: Tproxy) -> Vec<Step> {
    let mut plan = Vec::new();
    for v6 in [false, true].into_iter().filter(|v6| !v6 || tproxy.v6) {
        let table = tproxy.mark;
        let all = if v6 { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
        plan.push(Step::Local { to: IpNet::new_assert(all, 0), table });
        let by = Selector { v6, mark: Some(tproxy.mark), ..Selector::default() };
        plan.push(Step::Select { priority: PROXY_PRIORITY, table, by });
    }
    plan.push(Step::Intercept(tproxy));
    plan
}

/// Configuration of a UPF: gateway addresses, forwarding, address translation.
pub fn upf(config: &UpfConfig, mtu: u16) -> Vec<Step> {
    let name = &config.device.name;
    let mut plan = vec![Step::Up { device: name.clone(), mtu }];
    let v4 = config.pool.v4.and_then(|p| Some((IpAddr::V4(gateway_v4(p)?), p.prefix_len())));
    let v6 = config.pool.v6.and_then(|p| Some((IpAddr::V6(gateway_v6(p)?), p.prefix_len())));
    for (address, prefix) in [v4, v6].into_iter().flatten() {
        if let Ok(address) = IpNet::new(address, prefix) {
            plan.push(Step::Address { device: name.clone(), address });
        }
    }
    if v4.is_some() {
        plan.push(Step::Sysctl { key: "net/ipv4/ip_forward".into(), value: "1", only_from: None });
    }
    if v6.is_some() {
        if let Some(interface) = &config.n6.interface {
            // For a router that learns its default route from advertisements; forwarding would disable them
            // otherwise.
            let key = format!("net/ipv6/conf/{interface}/accept_ra");
            plan.push(Step::Sysctl { key, value: "2", only_from: Some("1") });
        }
        plan.push(Step::Sysctl { key: "net/ipv6/conf/all/forwarding".into(), value: "1", only_from: None });
    }
    if config.device.fast_path {
        let (table, device) = (Filter::table_name(name), name.clone());
        plan.push(Step::Close(Filter { table, device, rules: config.destinations().rules() }));
    }
    if config.n6.mode == N6Mode::Nat {
        let sources = config.pools();
        plan.push(Step::Masquerade(Nat {
            table: Nat::table_name(name),
            sources,
            device: name.clone(),
            only_by: config.n6.interface.clone(),
        }));
    }
    plan
}
