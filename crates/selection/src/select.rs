//! Selection: ranked candidates with reasons, or a refusal that names the violated properties.

use super::candidate::{Candidate, PathName};
use super::properties::{Multipath, Properties, PropertyError};
use super::{Host, MAX_CANDIDATES, MAX_ENDPOINTS, Need, Protocol, Request, Stack};
use super::{endpoint, gather, needs, rank};
use anabranch_element::time::Instant;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Ranked candidates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Selection {
    /// The candidates, the best first; never empty.
    pub candidates: Vec<Candidate>,
    /// Excluded paths, protocols and endpoints, with reasons.
    pub pruned: Vec<Pruned>,
    /// Required rates that no single slice guarantees.
    pub needs: Vec<Need>,
}

/// Something that was excluded.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Pruned {
    /// The violated property.
    pub property: String,
    /// The paths, protocols or endpoints that violate it.
    pub candidate: String,
    /// Their value of the property.
    pub has: String,
}

impl Pruned {
    fn new(candidate: String, property: String, has: String) -> Self {
        Self { property, candidate, has }
    }

    pub(super) fn path(name: &PathName, property: String, has: String) -> Self {
        Self::new(name.to_string(), property, has)
    }

    pub(super) fn paths(names: &[PathName], property: String, has: String) -> Self {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        Self::new(names.join(" + "), property, has)
    }
}

/// No candidate is left: the violated properties.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The violated properties, each with the items that violate it.
    pub failed: Vec<Pruned>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no candidate is left")?;
        for (i, p) in self.failed.iter().enumerate() {
            let lead = if i == 0 { ": " } else { "; " };
            write!(f, "{lead}{} fails for {} ({})", p.property, p.candidate, p.has)?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}

impl From<PropertyError> for Refusal {
    fn from(e: PropertyError) -> Self {
        Self { failed: vec![Pruned::new("the request".into(), e.property, e.reason)] }
    }
}

/// Gathers, prunes and ranks (RFC 9623 §4.1).
///
/// # Errors
/// No candidate satisfies every requirement and prohibition: the violated properties with the paths, protocols or endpoints that
/// violate them.
pub fn select(request: &Request, host: &Host, now: Instant) -> Result<Selection, Refusal> {
    let p = &request.properties;
    p.check()?;
    let (sets, mut pruned) = gather::path_sets(request, host, now);
    let stacks = stacks(p, host, &mut pruned);
    let mut endpoints = endpoint::in_order(&request.remote);
    endpoints.truncate(MAX_ENDPOINTS);
    let needs = needs::open(p, &sets);
    let protocols = rank::protocols(p, &stacks);
    let mut candidates = Vec::new();
    for paths in rank::paths(p, sets) {
        let mut carried = false;
        for protocol in protocols.iter().filter(|r| carries(p, r.protocol, paths.set.is_several())) {
            carried = true;
            for endpoint in &endpoints {
                let candidate = || format!("{} to {}", protocol.protocol, endpoint.socket_addr());
                if endpoint.refuses(protocol.protocol) {
                    let has = "the endpoint does not speak it".to_owned();
                    pruned.push(Pruned::new(candidate(), "protocol".into(), has));
                } else if let Some(member) = paths.set.members.iter().find(|m| !m.reaches(endpoint.address)) {
                    let has = format!("{} has no address of that family", member.name);
                    pruned.push(Pruned::new(candidate(), "endpoint".into(), has));
                } else if candidates.len() < MAX_CANDIDATES {
                    candidates.push(Candidate {
                        rank: candidates.len(),
                        paths: paths.set.names(),
                        protocol: protocol.protocol,
                        endpoint: endpoint.clone(),
                        rtt_us: paths.set.rtt_us(),
                        path_points: paths.points,
                        protocol_points: protocol.points,
                        reasons: paths.reasons.iter().chain(&protocol.reasons).cloned().collect(),
                    });
                }
            }
        }
        if !carried && !protocols.is_empty() {
            let several = paths.set.is_several();
            let has = if several { "no multipath protocol is left" } else { "no protocol is left" };
            pruned.push(Pruned::paths(&paths.set.names(), "protocol".into(), has.into()));
        }
    }
    pruned.sort();
    pruned.dedup();
    if candidates.is_empty() {
        return Err(Refusal { failed: refused(request, host, pruned) });
    }
    Ok(Selection { candidates, pruned, needs })
}

/// Whether a protocol can carry a connection over these paths: several paths require a multipath protocol, which is used over a
/// single path only if the application wants additional paths to be used when they appear.
fn carries(p: &Properties, protocol: Protocol, several: bool) -> bool {
    let wanted = matches!(p.multipath, Some(Multipath::Active | Multipath::Passive));
    if protocol.is_multipath() { several || wanted } else { !several }
}

/// The protocols that violate no requirement.
fn stacks(p: &Properties, host: &Host, pruned: &mut Vec<Pruned>) -> Vec<Stack> {
    let mut by_name = BTreeMap::new();
    for stack in &host.protocols {
        by_name.entry(stack.protocol).or_insert_with(|| stack.clone());
    }
    by_name.retain(|protocol, stack| match rank::protocol_violation(p, stack) {
        None => true,
        Some((property, has)) => {
            pruned.push(Pruned::new(protocol.to_string(), property, has));
            false
        }
    });
    by_name.into_values().collect()
}

/// The reasons of a refusal; an empty host or request is a reason of its own.
fn refused(request: &Request, host: &Host, mut failed: Vec<Pruned>) -> Vec<Pruned> {
    let mut nothing = |what: &str, has: &str| {
        failed.insert(0, Pruned::new("the host".into(), what.into(), has.into()));
    };
    if host.interfaces.is_empty() {
        nothing("interface", "it has no interface");
    }
    if host.protocols.is_empty() {
        nothing("protocol", "it speaks no protocol");
    }
    if request.remote.is_empty() {
        failed.insert(0, Pruned::new("the request".into(), "remote".into(), "it names no endpoint".into()));
    }
    failed
}
