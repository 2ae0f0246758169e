//! Multipath TCP endpoints required by plans. They are created with the first plan that requires them, kept
//! while their interface has the address, because connections depend on them, and removed when the agent
//! stops.
//!
//! Endpoints are global to the host: connections of any program that uses Multipath TCP may use them.
//! Therefore none is created until a program needs more than one slice can provide.
//!
//! A subflow has an address of its own but no mark, so the slice of a plan's path is identified by its
//! address. If plans require different slices for one address, their subflows cannot be told apart and use no
//! slice.

use super::actions::StepKey;
use crate::runtime::netctl::{MAX_ENDPOINTS, MptcpEndpoint, Step};
use anabranch_selection::Host;
use anabranch_selection::plan::{Action, Answer};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Longest delay of an answer until its endpoints exist. The kernel also adds later ones to open connections.
const WAIT: Duration = Duration::from_millis(500);

/// The endpoints that plans require.
pub struct Endpoints {
    requested: Mutex<RequestedEndpoints>,
    /// Number of the last change that is installed completely; `None` while there is no installer.
    installed: watch::Sender<Option<u64>>,
}

#[derive(Default)]
struct RequestedEndpoints {
    /// Endpoints by address.
    all: BTreeMap<IpAddr, MptcpEndpoint>,
    /// Required path by local address, for plans with several paths.
    sources: BTreeMap<IpAddr, Source>,
    /// Number of changes.
    count: u64,
}

/// A local address of a plan with several paths.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Source {
    interface: String,
    /// The slices that plans require for the address; `None` is the interface without a slice.
    slices: BTreeSet<Option<String>>,
}

impl Default for Endpoints {
    fn default() -> Self {
        Self { requested: Mutex::default(), installed: watch::Sender::new(None) }
    }
}

impl Endpoints {
    /// Records the endpoints of an answer's plans; true if there are new ones.
    pub fn note(&self, answer: &Answer) -> bool {
        let mut requested = self.lock();
        let before = requested.count;
        for (candidate, step) in
            answer.candidates.iter().flat_map(|c| c.plan.iter().map(move |step| (c, step)))
        {
            if let Action::LocalAddress { address, interface }
            | Action::MptcpEndpoint { address, interface, .. } = step
            {
                let path = candidate.candidate.paths.iter().find(|path| path.interface == *interface);
                let source = Source { interface: interface.clone(), slices: BTreeSet::new() };
                let source = requested.sources.entry(*address).or_insert(source);
                let new = source.slices.insert(path.and_then(|path| path.pvd.clone()));
                requested.count += u64::from(new);
            }
            let Action::MptcpEndpoint { address, interface, backup } = step else { continue };
            let known = requested.all.get(address);
            // A path that is a backup for one program may be a regular path for another.
            let backup = *backup && known.is_none_or(|k| k.backup);
            let new = MptcpEndpoint { device: interface.clone(), address: *address, backup };
            if known != Some(&new) && (known.is_some() || requested.all.len() < MAX_ENDPOINTS) {
                requested.all.insert(*address, new);
                requested.count += 1;
            }
        }
        requested.count != before
    }

    /// Number of the last change.
    pub fn requested(&self) -> u64 {
        self.lock().count
    }

    /// Reports that all changes up to `count` are installed or have failed.
    pub fn installed(&self, count: u64) {
        self.installed.send_replace(Some(count));
    }

    /// Waits, for a limited time, until the recorded changes are installed.
    pub async fn settled(&self) {
        let (mut installed, requested) = (self.installed.subscribe(), self.requested());
        let there = installed.wait_for(|installed| installed.is_none_or(|installed| installed >= requested));
        // Late endpoints are used as well.
        let _ = tokio::time::timeout(WAIT, there).await;
    }

    /// The slice of each address of plans with several paths; `None`: plans require different slices.
    /// Addresses that lead to no slice are omitted; addresses that their interface no longer has are omitted
    /// and forgotten.
    pub fn sources(&self, host: &Host) -> Vec<(IpAddr, Option<String>)> {
        let mut requested = self.lock();
        requested.sources.retain(|address, source| has_address(host, &source.interface, *address));
        let slice = |source: &Source| match source.slices.len() {
            1 => source.slices.first().cloned().flatten().map(Some),
            _ => Some(None),
        };
        requested.sources.iter().filter_map(|(address, source)| Some((*address, slice(source)?))).collect()
    }

    /// Adds the steps for the endpoints whose interface has the address; forgets the others.
    pub fn steps(&self, host: &Host, wanted: &mut BTreeMap<StepKey, Step>) {
        let mut requested = self.lock();
        requested.all.retain(|address, endpoint| has_address(host, &endpoint.device, *address));
        if requested.all.is_empty() {
            return;
        }
        // The limit is eight.
        wanted.insert(StepKey::Subflows, Step::Subflows(requested.all.len() as u32));
        let steps =
            requested.all.iter().map(|(address, e)| (StepKey::Endpoint(*address), Step::Endpoint(e.clone())));
        wanted.extend(steps);
    }

    /// The mutex may be poisoned: each change is a single step, so the state is consistent.
    fn lock(&self) -> MutexGuard<'_, RequestedEndpoints> {
        self.requested.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn has_address(host: &Host, interface: &str, address: IpAddr) -> bool {
    host.interfaces.get(interface).is_some_and(|i| i.up && i.addresses.contains(&address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_element::time::Instant;
    use anabranch_selection::{Endpoint, Interface, Multipath, Properties, Request, plan, select};

    fn host() -> Host {
        let mut host = Host::with_all_protocols();
        for name in ["a", "b"] {
            let addresses = vec![format!("10.0.{}.2", name.as_bytes()[0]).parse().unwrap()];
            let interface = Interface { up: true, addresses, ..Interface::default() };
            host.interfaces.insert(name.into(), interface);
        }
        host
    }

    fn answer(multipath: Option<Multipath>) -> Answer {
        let properties = Properties { multipath, ..Properties::default() };
        let remote = vec![Endpoint::new("198.51.100.7".parse().unwrap(), 443)];
        let request = Request { properties, remote, ..Request::default() };
        let (host, now) = (host(), Instant::ZERO);
        let config = plan::PlanConfig::default();
        let selection = select(&request, &host, now).unwrap();
        Answer::new(selection, None, |c| plan::plan(c, &request.properties, &host, &config, now))
    }

    #[tokio::test]
    async fn endpoints_exist_from_the_first_plan_on_while_their_address_exists() {
        let endpoints = Endpoints::default();
        assert!(!endpoints.note(&answer(Some(Multipath::Disabled))));
        let mut wanted = BTreeMap::new();
        endpoints.steps(&host(), &mut wanted);
        assert!(wanted.is_empty(), "{wanted:?}");
        let several = answer(Some(Multipath::Active));
        assert!(endpoints.note(&several) && !endpoints.note(&several), "once");
        endpoints.steps(&host(), &mut wanted);
        let second: IpAddr = "10.0.98.2".parse().unwrap();
        assert!(
            wanted.contains_key(&StepKey::Subflows) && wanted.contains_key(&StepKey::Endpoint(second)),
            "{wanted:?}"
        );
        // Without an installer there is no wait; then there is one.
        endpoints.settled().await;
        endpoints.installed(0);
        let waits = tokio::time::timeout(Duration::from_millis(50), endpoints.settled());
        assert!(waits.await.is_err());
        endpoints.installed(endpoints.requested());
        endpoints.settled().await;
        let mut without = host();
        without.interfaces.remove("b");
        wanted.clear();
        endpoints.steps(&without, &mut wanted);
        endpoints.steps(&host(), &mut wanted);
        assert!(!wanted.contains_key(&StepKey::Endpoint(second)), "{wanted:?}");
    }
}
