//! The machine's interfaces as seen by Transport Services: for the agent of a UE, and for programs without an agent.

use anabranch_selection::{Host, Interface};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The current interfaces, without loopback. Empty if the system does not answer, which the refusal of a connection then states.
pub fn interfaces() -> Host {
    let mut host = Host::with_all_protocols();
    let metrics = default_routes();
    for entry in getifaddrs().into_iter().flatten() {
        if entry.flags.contains(InterfaceFlags::IFF_LOOPBACK) {
            continue;
        }
        let address = entry.address.as_ref().and_then(|a| {
            a.as_sockaddr_in()
                .map(|a| IpAddr::V4(a.ip()))
                .or_else(|| a.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
        });
        let interface = host.interfaces.entry(entry.interface_name).or_insert_with_key(|name| Interface {
            kind: kind(name),
            // Without requirements about paths, the interface used by the host's routes comes first.
            metric: metrics.get(name).copied().unwrap_or(u32::MAX),
            up: entry.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING),
            ..Interface::default()
        });
        interface.addresses.extend(address.filter(|a| !is_link_local(*a)));
    }
    host
}

/// The metric of each interface's default route in the main table, the lower one of both families.
fn default_routes() -> BTreeMap<String, u32> {
    let read =
        |name: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    let mut found = BTreeMap::new();
    for (name, metric) in defaults_v4(&read("route")).chain(defaults_v6(&read("ipv6_route"))) {
        let least = found.entry(name.to_owned()).or_insert(metric);
        *least = metric.min(*least);
    }
    found
}

/// Fields: Iface Destination Gateway Flags RefCnt Use Metric Mask …
fn defaults_v4(text: &str) -> impl Iterator<Item = (&str, u32)> {
    text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, "00000000", _, _, _, _, metric, "00000000", ..] = words[..] else { return None };
        Some((name, metric.parse().ok()?))
    })
}

/// Fields: destination and length, source and length, next hop, metric, RefCnt, Use, flags, device; in hexadecimal.
fn defaults_v6(text: &str) -> impl Iterator<Item = (&str, u32)> {
    const ANY: &str = "00000000000000000000000000000000";
    text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [ANY, "00", _, "00", _, metric, _, _, _, name] = words[..] else { return None };
        // The kernel's unreachable default route is on lo.
        Some((name, u32::from_str_radix(metric, 16).ok()?)).filter(|(name, _)| *name != "lo")
    })
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => a.is_link_local(),
        IpAddr::V6(a) => a.is_unicast_link_local(),
    }
}

/// The kind of an interface by the kernel's name: `wwan` is cellular, `wlan` Wi-Fi; others are Ethernet.
fn kind(name: &str) -> String {
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/uevent")).unwrap_or_default();
    match text.lines().find_map(|l| l.strip_prefix("DEVTYPE=")) {
        Some("wwan") => "cellular".into(),
        Some("wlan") => "wifi".into(),
        Some(other) => other.into(),
        None => "ethernet".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::in_private_network;

    #[test]
    fn the_interface_of_the_default_route_comes_first() {
        in_private_network(
            "for i in 0 1 2; do ip link add a$i type veth peer b$i; ip link set a$i up; ip link set b$i up; done
             ip addr add 192.0.2.2/24 dev a0; ip addr add 198.51.100.2/24 dev a1; ip addr add 2001:db8::2/64 dev a2 nodad
             ip route add default via 192.0.2.1 metric 200; ip route add default via 198.51.100.1 metric 100
             ip -6 route add default via 2001:db8::1 dev a2 metric 300",
            || {
                let host = interfaces();
                let metric = |name: &str| host.interfaces[name].metric;
                assert_eq!(["a0", "a1", "a2", "b0"].map(metric), [200, 100, 300, u32::MAX]);
            },
        );
    }
}
