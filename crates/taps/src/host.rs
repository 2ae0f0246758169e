//! Description of this host, used without an agent: interfaces without slices.
//!
//! The kernel's routes are then the policy. A program without path requirements gets the path selected by the routes, unbound, so
//! that tunnels and policy routing work as usual; only a program with such requirements also gets the other paths.

use anabranch_element::time::Instant;
use anabranch_selection::plan::{Action, Answer, PlanConfig, plan};
use anabranch_selection::{
    Endpoint, Host, Interface, Multipath, Preference, Properties, Refusal, Request, select,
};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Ranked candidates of this host. `interfaces` returns its description.
pub(crate) fn answer(request: &Request, interfaces: fn() -> Host) -> Result<Answer, Refusal> {
    let properties = &request.properties;
    let wishes = has_path_wishes(properties);
    let mut host =
        if request.remote.iter().all(|e| e.address.is_loopback()) { loopback() } else { interfaces() };
    // The interface selected by the kernel comes first, and is the only one unless the program has path requirements.
    let routed: BTreeSet<IpAddr> = request.remote.iter().filter_map(source).collect();
    let is_routed = |i: &Interface| i.addresses.iter().any(|a| routed.contains(a));
    host.interfaces.values_mut().for_each(|i| i.metric = u32::from(!is_routed(i)));
    // The address may be on none of them, for example on loopback, which is independent of the state of any link.
    if !wishes && host.interfaces.values().any(is_routed) {
        host.interfaces.retain(|_, interface| interface.metric == 0);
    }
    let now = Instant::ZERO;
    let selection = select(request, &host, now)?;
    Ok(Answer::new(selection, None, |candidate| {
        let mut steps = plan(candidate, properties, &host, &PlanConfig::default(), now);
        // No policy has selected a congestion control here: the kernel's default stays.
        steps.retain(|s| !matches!(s, Action::CongestionControl { .. }));
        if !wishes || candidate.endpoint.address.is_loopback() {
            steps.retain(|s| !matches!(s, Action::Device { .. }));
        }
        steps
    }))
}

/// Whether a program has requirements that distinguish paths.
fn has_path_wishes(p: &Properties) -> bool {
    let wish = |level: &Preference| *level != Preference::NoPreference;
    p.interface.values().any(wish)
        || p.pvd.values().any(wish)
        || p.slice_5qi.values().any(wish)
        || matches!(p.multipath, Some(Multipath::Active | Multipath::Passive))
        || matches!(p.use_temporary_local_address, Preference::Require | Preference::Prohibit)
        || p.slice_latency.is_some()
        || p.slice_send_rate.is_some()
        || p.slice_recv_rate.is_some()
        || p.slice_isolation.is_some()
}

fn loopback() -> Host {
    let mut host = Host::with_all_protocols();
    let lo = Interface {
        kind: "loopback".into(),
        up: true,
        addresses: vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
        ..Interface::default()
    };
    host.interfaces.insert("lo".into(), lo);
    host
}

/// The source address that the kernel would use; nothing is sent.
fn source(to: &Endpoint) -> Option<IpAddr> {
    let any: IpAddr =
        if to.address.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
    // Connecting to port 0 is not possible; any other port works.
    socket.connect(SocketAddr::new(to.address, to.port.max(1))).ok()?;
    socket.local_addr().ok().map(|a| a.ip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_selection::{PathName, Protocol};

    fn made_up() -> Host {
        with_addresses(["192.0.2.1", "192.0.2.2"])
    }

    fn with_addresses(addresses: [&str; 2]) -> Host {
        let mut host = Host::with_all_protocols();
        for (name, address) in ["eth0", "wlan0"].into_iter().zip(addresses) {
            let up = Interface {
                kind: if name == "eth0" { "ethernet".into() } else { "wifi".into() },
                up: true,
                addresses: vec![address.parse().unwrap()],
                ..Interface::default()
            };
            host.interfaces.insert(name.into(), up);
        }
        host
    }

    fn request(to: &str, properties: Properties) -> Request {
        let remote = vec![Endpoint::new(to.parse().unwrap(), 443)];
        Request { properties, remote, ..Request::default() }
    }

    fn names(answer: &Answer) -> Vec<String> {
        let mut all: Vec<String> = answer
            .candidates
            .iter()
            .flat_map(|c| c.candidate.paths.iter().map(PathName::to_string))
            .collect();
        all.dedup();
        all
    }

    #[test]
    fn loopback_is_a_path_where_the_peer_is_here() {
        let answer = answer(&request("127.0.0.1", Properties::default()), made_up).unwrap();
        assert_eq!(names(&answer), ["lo"]);
        assert_eq!(
            answer.candidates[0].candidate.protocol,
            Protocol::Quic,
            "streams are preferred by default"
        );
        assert!(answer.candidates.iter().all(|c| c.plan.is_empty()), "{:?}", answer.candidates);
    }

    #[test]
    fn only_wishes_about_paths_bind_to_devices() {
        // None of the invented interfaces has the address that the kernel would use, if it has a route at all.
        let wishes = Properties {
            interface: [("wifi".to_owned(), Preference::Prefer)].into(),
            ..Properties::default()
        };
        let answer = answer(&request("198.51.100.7", wishes), made_up).unwrap();
        assert_eq!(names(&answer), ["wlan0", "eth0"]);
        let device = |interface: &str| Action::Device { interface: interface.into() };
        assert!(answer.candidates.iter().all(|c| c.plan == [device(&c.candidate.paths[0].interface)]));
    }

    /// If the kernel's source address is on no interface, or there is no route, no interface is excluded.
    #[test]
    fn an_address_on_no_interface_excludes_none() {
        // Addresses that are never used as source.
        let others = || with_addresses(["203.0.113.1", "203.0.113.2"]);
        let answer = answer(&request("198.51.100.7", Properties::default()), others).unwrap();
        assert_eq!(names(&answer), ["eth0", "wlan0"]);
        assert!(answer.candidates.iter().all(|c| c.plan.is_empty()), "{:?}", answer.candidates);
    }

    #[test]
    fn slices_require_an_agent_and_the_refusal_states_it() {
        let wishes =
            Properties { pvd: [("B".to_owned(), Preference::Require)].into(), ..Properties::default() };
        let refusal = answer(&request("198.51.100.7", wishes), made_up).unwrap_err();
        assert!(
            refusal.failed.iter().any(|f| f.property == "pvd" && f.has.contains("no slice")),
            "{refusal}"
        );
    }
}
