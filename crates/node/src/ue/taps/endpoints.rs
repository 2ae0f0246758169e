//! Endpoints of Multipath TCP that plans name: made with the first plan that does, kept while their interface has the address,
//! since connections live by them, and removed with everything else.
//!
//! They are the host's: a connection of any program that speaks Multipath TCP may use them. So there is none until a program needs
//! more than one slice has.
//!
//! Subflows have an address each and no mark of their own, so the slice of a plan's path is told by its address. Where plans want
//! different slices for one address nothing tells their subflows apart, and they go by none.

use super::actions::Key;
use crate::runtime::netctl::{MOST_ENDPOINTS, MptcpEndpoint, Step};
use anabranch_selection::Host;
use anabranch_selection::plan::{Action, Answer};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Longest an answer waits until its endpoints are there. The kernel gives later ones to connections that are open already.
const WAIT: Duration = Duration::from_millis(500);

/// What plans have asked for.
pub struct Endpoints {
    asked: Mutex<Asked>,
    /// Up to which question everything is there; none while nobody installs anything.
    done: watch::Sender<Option<u64>>,
}

#[derive(Default)]
struct Asked {
    /// By address.
    all: BTreeMap<IpAddr, MptcpEndpoint>,
    /// What each address of a plan with several paths is to lead to.
    sources: BTreeMap<IpAddr, Source>,
    /// Counts changes.
    count: u64,
}

/// An address of a plan with several paths.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Source {
    interface: String,
    /// The slices that plans want there; one that is none is the interface by itself.
    slices: BTreeSet<Option<String>>,
}

impl Default for Endpoints {
    fn default() -> Self {
        Self { asked: Mutex::default(), done: watch::Sender::new(None) }
    }
}

impl Endpoints {
    /// Notes what an answer's plans name; whether anything is new.
    pub fn note(&self, answer: &Answer) -> bool {
        let mut asked = self.lock();
        let before = asked.count;
        for (candidate, step) in
            answer.candidates.iter().flat_map(|c| c.plan.iter().map(move |step| (c, step)))
        {
            if let Action::LocalAddress { address, interface }
            | Action::MptcpEndpoint { address, interface, .. } = step
            {
                let path = candidate.candidate.paths.iter().find(|path| path.interface == *interface);
                let source = Source { interface: interface.clone(), slices: BTreeSet::new() };
                let source = asked.sources.entry(*address).or_insert(source);
                let new = source.slices.insert(path.and_then(|path| path.pvd.clone()));
                asked.count += u64::from(new);
            }
            let Action::MptcpEndpoint { address, interface, backup } = step else { continue };
            let known = asked.all.get(address);
            // A path that one program keeps in reserve is another's second one.
            let backup = *backup && known.is_none_or(|k| k.backup);
            let new = MptcpEndpoint { device: interface.clone(), address: *address, backup };
            if known != Some(&new) && (known.is_some() || asked.all.len() < MOST_ENDPOINTS) {
                asked.all.insert(*address, new);
                asked.count += 1;
            }
        }
        asked.count != before
    }

    /// How much was asked for until now.
    pub fn asked(&self) -> u64 {
        self.lock().count
    }

    /// Everything up to there is in the kernel, or cannot be.
    pub fn done(&self, count: u64) {
        self.done.send_replace(Some(count));
    }

    /// Waits until what was asked for is there; not for long.
    pub async fn settled(&self) {
        let (mut done, asked) = (self.done.subscribe(), self.asked());
        let there = done.wait_for(|done| done.is_none_or(|done| done >= asked));
        // Late ones are as good.
        let _ = tokio::time::timeout(WAIT, there).await;
    }

    /// The slice that each address of plans with several paths leads to; `None`: plans want different ones. Without those that lead
    /// to none, and without those whose interface does not have them any more, which are forgotten.
    pub fn sources(&self, host: &Host) -> Vec<(IpAddr, Option<String>)> {
        let mut asked = self.lock();
        asked.sources.retain(|address, source| has(host, &source.interface, *address));
        let slice = |source: &Source| match source.slices.len() {
            1 => source.slices.first().cloned().flatten().map(Some),
            _ => Some(None),
        };
        asked.sources.iter().filter_map(|(address, source)| Some((*address, slice(source)?))).collect()
    }

    /// The steps for those whose interface has the address; the others are forgotten.
    pub fn steps(&self, host: &Host, wanted: &mut BTreeMap<Key, Step>) {
        let mut asked = self.lock();
        asked.all.retain(|address, endpoint| has(host, &endpoint.device, *address));
        if asked.all.is_empty() {
            return;
        }
        // There are eight at most.
        wanted.insert(Key::Subflows, Step::Subflows(asked.all.len() as u32));
        let steps = asked.all.iter().map(|(address, e)| (Key::Endpoint(*address), Step::Endpoint(e.clone())));
        wanted.extend(steps);
    }

    /// A panic in between leaves it whole: it is changed in one step.
    fn lock(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn has(host: &Host, interface: &str, address: IpAddr) -> bool {
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
    async fn they_are_wanted_once_a_plan_names_them_and_while_their_address_is_there() {
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
            wanted.contains_key(&Key::Subflows) && wanted.contains_key(&Key::Endpoint(second)),
            "{wanted:?}"
        );
        // Nobody installs: nobody waits. Then somebody does.
        endpoints.settled().await;
        endpoints.done(0);
        let waits = tokio::time::timeout(Duration::from_millis(50), endpoints.settled());
        assert!(waits.await.is_err());
        endpoints.done(endpoints.asked());
        endpoints.settled().await;
        let mut without = host();
        without.interfaces.remove("b");
        wanted.clear();
        endpoints.steps(&without, &mut wanted);
        endpoints.steps(&host(), &mut wanted);
        assert!(!wanted.contains_key(&Key::Endpoint(second)), "{wanted:?}");
    }
}
