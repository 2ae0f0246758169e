//! Matching of flows to rules, and of rules to the host's slices (TS 24.526 §4.2.2).

use super::{Route, Rule, Snssai, TrafficDescriptor, Ursp};
use crate::{Host, Request};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// Known attributes of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Flow {
    /// Operating system id and application id.
    pub application: Option<(String, String)>,
    /// IP protocol number, and the server.
    pub server: Option<(u8, SocketAddr)>,
    /// Name of the server.
    pub domain: Option<String>,
    /// The data network requested by the application.
    pub dnn: Option<String>,
    /// The capability requested by the application.
    pub capability: Option<String>,
}

/// The rule that matches a flow, and its slices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matched {
    /// Index of the rule in the document.
    pub rule: usize,
    /// Index of the route in it.
    pub route: usize,
    /// The host's slices selected by the route, by id; at least one.
    pub slices: Vec<String>,
}

impl Matched {
    /// Binds a connection to the slices.
    pub fn apply(&self, request: &mut Request) {
        request.bound_to.clone_from(&self.slices);
    }
}

impl Ursp {
    /// The first rule, by precedence, that matches and has a route to a slice of this host.
    #[must_use]
    pub fn find(&self, flow: &Flow, host: &Host) -> Option<Matched> {
        let rules = by_precedence(&self.rules, |r| r.precedence);
        rules.into_iter().filter(|(_, rule)| rule.matches(flow)).find_map(|(rule, r)| {
            by_precedence(&r.routes, |r| r.precedence).into_iter().find_map(|(route, r)| {
                let slices = r.slices(host);
                (!slices.is_empty()).then_some(Matched { rule, route, slices })
            })
        })
    }
}

/// Items with their indices, the smallest precedence first, then in the order of the document.
fn by_precedence<T>(all: &[T], precedence: impl Fn(&T) -> Option<u32>) -> Vec<(usize, &T)> {
    let mut ordered: Vec<(usize, &T)> = all.iter().enumerate().collect();
    ordered.sort_by_key(|(_, t)| precedence(t).map_or(u64::MAX, u64::from));
    ordered
}

impl Rule {
    /// Whether a flow matches.
    #[must_use]
    pub fn matches(&self, flow: &Flow) -> bool {
        self.traffic.as_ref().is_none_or(|t| t.matches(flow))
    }
}

impl TrafficDescriptor {
    fn matches(&self, flow: &Flow) -> bool {
        let one_of = |all: &[String], has: &Option<String>| {
            all.is_empty() || has.as_ref().is_some_and(|h| all.iter().any(|a| a.eq_ignore_ascii_case(h)))
        };
        let application = self.applications.is_empty()
            || flow.application.as_ref().is_some_and(|(os, id)| {
                self.applications.get(os).is_some_and(|ids| ids.values().any(|i| i == id))
            });
        let server = self.flows.is_empty()
            || flow.server.is_some_and(|(protocol, to)| {
                self.flows.iter().any(|f| f.matches(protocol, to.ip(), to.port()))
            });
        let domain = self.domains.is_empty()
            || flow.domain.as_deref().is_some_and(|has| {
                let bare = |name: &str| name.trim_end_matches('.').to_ascii_lowercase();
                self.domains.iter().filter(|d| is_name(d)).any(|d| bare(d) == bare(has))
            });
        application
            && server
            && domain
            && one_of(&self.dnns, &flow.dnn)
            && one_of(&self.capabilities, &flow.capability)
            && self.ethernet.is_empty()
    }
}

/// Whether a domain descriptor is a name rather than a regular expression.
fn is_name(domain: &str) -> bool {
    domain.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

impl Route {
    /// The host's slices selected by the route; none if it is bound to locations, because the host does not know its location.
    fn slices(&self, host: &Host) -> Vec<String> {
        if !self.places.is_empty() {
            return Vec::new();
        }
        let named = |snssai: Option<Snssai>, dnn: Option<&str>| {
            self.snssai.is_none_or(|s| snssai == Some(s))
                && self.dnn.as_deref().is_none_or(|d| dnn.is_some_and(|has| has.eq_ignore_ascii_case(d)))
        };
        let all = host.slices.iter().filter(|(_, s)| named(s.snssai, s.dnn.as_deref()));
        all.map(|(id, _)| id.clone()).collect()
    }
}
