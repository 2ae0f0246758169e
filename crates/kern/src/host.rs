//! The machine's interfaces as Transport Services see them: for the agent of a UE, and for programs where none runs.

use anabranch_core::taps::{Host, Interface};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use std::net::IpAddr;

/// The interfaces there are now, loopback left out. A machine that does not answer has none, and the refusal of
/// a connection says so.
pub fn interfaces() -> Host {
    let mut host = Host::with_all_protocols();
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
            up: entry.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING),
            ..Interface::default()
        });
        interface.addresses.extend(address.filter(|a| !is_link_local(*a)));
    }
    host
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => a.is_link_local(),
        IpAddr::V6(a) => a.is_unicast_link_local(),
    }
}

/// What the kernel calls the device: `wwan` is cellular, `wlan` Wi-Fi; what it has no name for is Ethernet.
fn kind(name: &str) -> String {
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/uevent")).unwrap_or_default();
    match text.lines().find_map(|l| l.strip_prefix("DEVTYPE=")) {
        Some("wwan") => "cellular".into(),
        Some("wlan") => "wifi".into(),
        Some(other) => other.into(),
        None => "ethernet".into(),
    }
}
