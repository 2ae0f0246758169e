//! Ranked candidates with their plans for the requirements of a program, from the agent or from this host's interfaces.

use crate::endpoint::{LocalEndpoint, Resolved};
use crate::error::Error;
use crate::security::Security;
use crate::{Agent, host};
use anabranch_selection::plan::{Answer, Planned};
use anabranch_selection::{Host, Preference, Properties, PropertyError, Protocol, Request};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Candidates, and their origin.
pub(crate) struct RankedCandidates {
    pub candidates: Vec<Planned>,
    pub by_agent: bool,
}

/// The input.
pub(crate) struct CandidateQuery<'a> {
    pub properties: &'a Properties,
    pub local: &'a LocalEndpoint,
    pub security: &'a Security,
    pub agent: &'a Agent,
    /// Description of this host, used without an agent.
    pub interfaces: fn() -> Host,
}

impl CandidateQuery<'_> {
    /// Ranked candidates.
    pub async fn answer(&self, resolved: &Resolved) -> Result<RankedCandidates, Error> {
        let properties = self.restricted()?;
        let (allowed, left_out) = self.protocols(&properties);
        let mut request = Request { properties, remote: resolved.endpoints.clone(), ..Request::default() };
        for endpoint in &mut request.remote {
            // For most peers the supported protocols are unknown.
            let spoken: BTreeSet<Protocol> = if endpoint.protocols.is_empty() {
                allowed.clone()
            } else {
                endpoint.protocols.intersection(&allowed).copied().collect()
            };
            endpoint.protocols = spoken;
        }
        request.remote.retain(|e| !e.protocols.is_empty());
        let refused = |property: &str, reason: &str| {
            Err(Error::Refused { property: property.into(), reason: reason.into() })
        };
        if request.remote.is_empty() {
            return match left_out.first() {
                Some((property, reason)) => refused(property, &format!("{property}: {reason}")),
                None => refused("protocol", "no remote endpoint speaks a protocol that there is here"),
            };
        }
        if let Some(address) = self.local.address {
            request.remote.retain(|e| e.address.is_ipv6() == address.is_ipv6());
            if request.remote.is_empty() {
                return refused("endpoint", "no remote endpoint has the address family of the local one");
            }
        }
        // The host's own addresses are in no slice.
        let here = request.remote.iter().all(|e| e.address.is_loopback());
        let flow = flow(&request, resolved);
        let asked = if here { Ok(None) } else { self.agent.query(&request, &flow).await };
        let (answer, by_agent) = match asked.map_err(|e| explained(e, &left_out))? {
            Some(answer) => (answer, true),
            None => {
                let answer = host::answer(&request, self.interfaces);
                (answer.map_err(|refusal| explained(refusal.into(), &left_out))?, false)
            }
        };
        Ok(RankedCandidates { candidates: usable(answer, &allowed), by_agent })
    }

    /// The properties, restricted by the local endpoint.
    fn restricted(&self) -> Result<Properties, Error> {
        let mut properties = self.properties.clone();
        properties.check()?;
        if let Some(name) = &self.local.interface {
            if properties.interface.get(name) == Some(&Preference::Prohibit) {
                let reason = format!("\"{name}\" is prohibited, and the local endpoint is on it");
                return Err(PropertyError { property: "interface".into(), reason }.into());
            }
            // Any of several required ones would suffice; the local endpoint selects this one.
            properties.interface.retain(|_, level| *level != Preference::Require);
            properties.interface.insert(name.clone(), Preference::Require);
        }
        Ok(properties)
    }

    /// The usable protocols, and the reasons why others are excluded.
    fn protocols(&self, properties: &Properties) -> (BTreeSet<Protocol>, Vec<(String, String)>) {
        let mut left_out = Vec::new();
        let strict = strict_path_property(properties);
        let mut allowed = BTreeSet::from(Protocol::ALL);
        allowed.retain(|protocol| match (protocol, strict) {
            (Protocol::Quic, _) if !self.security.allows_quic() => {
                let reason = "quic is always protected, and security is disabled: Security::opportunistic";
                left_out.push(("security".into(), reason.into()));
                false
            }
            (Protocol::Tcp | Protocol::Mptcp | Protocol::Udp, _) if !self.security.allows_plain() => {
                left_out.push(("security".into(), format!("{protocol} is not protected")));
                false
            }
            (Protocol::Mptcp, Some(property)) => {
                let reason = "further subflows of mptcp go where the host's endpoints lead, so that no path can be ruled out";
                left_out.push((property.into(), reason.into()));
                false
            }
            _ => true,
        });
        (allowed, left_out)
    }
}

/// Known attributes of the flow for the route selection policy: the name of the peer, and the protocol if there is only one.
fn flow(request: &Request, resolved: &Resolved) -> Value {
    let names: BTreeSet<&String> = resolved.names.values().collect();
    let number = |protocol: &Protocol| match protocol {
        Protocol::Tcp | Protocol::Mptcp => 6,
        Protocol::Quic | Protocol::Udp => 17,
    };
    let numbers: BTreeSet<u8> = request.remote.iter().flat_map(|e| e.protocols.iter().map(number)).collect();
    let mut flow = Map::new();
    if let (Some(name), 1) = (names.first(), names.len()) {
        flow.insert("domain".into(), name.as_str().into());
    }
    if let (Some(number), 1) = (numbers.first(), numbers.len()) {
        flow.insert("protocol".into(), (*number).into());
    }
    flow.into()
}

/// A refusal, extended by earlier exclusions.
fn explained(error: Error, left_out: &[(String, String)]) -> Error {
    match error {
        Error::Refused { property, mut reason } => {
            for (left, why) in left_out {
                reason = format!("{reason}; {left}: {why}");
            }
            Error::Refused { property, reason }
        }
        other => other,
    }
}

/// Drops candidates that an agent of another version did not exclude.
fn usable(answer: Answer, allowed: &BTreeSet<Protocol>) -> Vec<Planned> {
    answer.candidates.into_iter().filter(|c| allowed.contains(&c.candidate.protocol)).collect()
}

/// A property that excludes paths. The kernel opens additional subflows of Multipath TCP by itself, over all addresses in
/// `ip mptcp endpoint` and for every connection of the host; binding the first subflow does not restrict them.
pub(crate) fn strict_path_property(p: &Properties) -> Option<&'static str> {
    let strict = |level: &Preference| matches!(level, Preference::Require | Preference::Prohibit);
    let of = |bound: Option<Preference>| bound.is_some_and(|level| strict(&level));
    [
        ("interface", p.interface.values().any(strict)),
        ("pvd", p.pvd.values().any(strict)),
        ("_slice.5qi", p.slice_5qi.values().any(strict)),
        ("useTemporaryLocalAddress", strict(&p.use_temporary_local_address)),
        ("_slice.latency", of(p.slice_latency.map(|b| b.preference))),
        ("_slice.guaranteedSendRate", of(p.slice_send_rate.map(|b| b.preference))),
        ("_slice.guaranteedRecvRate", of(p.slice_recv_rate.map(|b| b.preference))),
        ("_slice.isolation", of(p.slice_isolation.map(|b| b.preference))),
    ]
    .into_iter()
    .find_map(|(name, is)| is.then_some(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_selection::{Endpoint, Interface, Multipath};
    use serde_json::json;
    use std::collections::BTreeMap;

    fn two() -> Host {
        let mut host = Host::with_all_protocols();
        for name in ["wwan0", "wlan0"] {
            let addresses = vec!["192.0.2.1".parse().unwrap()];
            host.interfaces.insert(name.into(), Interface { up: true, addresses, ..Interface::default() });
        }
        host
    }

    async fn ask(
        properties: Properties,
        security: Security,
        local: LocalEndpoint,
    ) -> Result<Vec<String>, Error> {
        let (agent, properties, local) = (Agent::None, &properties, &local);
        let query = CandidateQuery { properties, local, security: &security, agent: &agent, interfaces: two };
        let resolved = Resolved {
            endpoints: vec![Endpoint::new([198, 51, 100, 7].into(), 443)],
            names: BTreeMap::new(),
            failed: None,
        };
        let choice = query.answer(&resolved).await?;
        let shown = |c: &Planned| {
            let paths: Vec<&str> = c.candidate.paths.iter().map(|p| p.interface.as_str()).collect();
            format!("{} {}", c.candidate.protocol, paths.join("+"))
        };
        Ok(choice.candidates.iter().map(shown).collect())
    }

    #[test]
    fn the_policy_gets_the_known_attributes_of_a_flow() {
        let peer = |protocols: &[Protocol]| Endpoint {
            protocols: protocols.iter().copied().collect(),
            ..Endpoint::new([198, 51, 100, 7].into(), 443)
        };
        let of = |protocols: &[Protocol], names: &[&str]| {
            let endpoints = vec![peer(protocols)];
            let request = Request { remote: endpoints.clone(), ..Request::default() };
            let at =
                |i: usize| (std::net::SocketAddr::from(([198, 51, 100, i as u8], 443)), names[i].to_owned());
            let names = (0..names.len()).map(at).collect();
            flow(&request, &Resolved { endpoints, names, failed: None })
        };
        let (tcp, any) = (&[Protocol::Tcp, Protocol::Mptcp][..], &Protocol::ALL[..]);
        assert_eq!(of(tcp, &["a.example", "a.example"]), json!({"domain": "a.example", "protocol": 6}));
        assert_eq!(of(&[Protocol::Quic], &["a.example", "b.example"]), json!({"protocol": 17}));
        assert_eq!(of(any, &[]), json!({}));
    }

    fn level(name: &str, level: Preference) -> Properties {
        Properties { interface: [(name.to_owned(), level)].into(), ..Properties::default() }
    }

    #[tokio::test]
    async fn protocols_follow_security() {
        let wish = || level("wwan0", Preference::Prefer);
        let plain = ask(wish(), Security::disabled(), LocalEndpoint::new()).await.unwrap();
        assert_eq!(plain, ["tcp wwan0", "tcp wlan0"]);
        let safe = ask(wish(), Security::required(), LocalEndpoint::new()).await.unwrap();
        assert_eq!(safe, ["quic wwan0", "quic wlan0"]);
        let datagrams = Properties {
            preserve_msg_boundaries: Preference::Require,
            reliability: Preference::NoPreference,
            preserve_order: Preference::NoPreference,
            congestion_control: Preference::NoPreference,
            ..wish()
        };
        let refused =
            ask(datagrams, Security::required(), LocalEndpoint::new()).await.unwrap_err().to_string();
        assert!(refused.contains("security: udp is not protected"), "{refused}");
    }

    #[tokio::test]
    async fn multipath_tcp_is_excluded_if_paths_are_excluded() {
        let several = |p: Properties| Properties { multipath: Some(Multipath::Active), ..p };
        let free =
            ask(several(Properties::default()), Security::disabled(), LocalEndpoint::new()).await.unwrap();
        assert_eq!(free[0], "mptcp wlan0+wwan0");
        let strict = several(level("wlan0", Preference::Prohibit));
        let found = ask(strict, Security::disabled(), LocalEndpoint::new()).await.unwrap();
        assert_eq!(found, ["tcp wwan0"]);
    }

    #[tokio::test]
    async fn the_local_endpoint_restricts_and_can_conflict() {
        let on = |name: &str| LocalEndpoint::new().interface(name);
        let found = ask(Properties::default(), Security::disabled(), on("wlan0")).await.unwrap();
        assert_eq!(found, ["tcp wlan0"]);
        let error =
            ask(level("wlan0", Preference::Prohibit), Security::disabled(), on("wlan0")).await.unwrap_err();
        assert!(error.to_string().contains("\"interface\""), "{error}");
        let six = LocalEndpoint::new().ip(std::net::Ipv6Addr::LOCALHOST);
        let error = ask(Properties::default(), Security::disabled(), six).await.unwrap_err();
        assert!(matches!(error, Error::Refused { property, .. } if property == "endpoint"));
    }
}
