//! Transport Services on this host: what the engine of `selection` needs of the machine, and what it is told.
//!
//! ```text
//!  REST ──▶ Taps ──▶ selection::select        interfaces are read at every question; slices are told
//!  Usci ───▶ │  └──▶ selection::neat::Manager  (by hand, PUT /connections/slices, or by the slice manager)
//!            └── slices, policies, CIB: in memory, bounded
//! ```

pub mod actions;
pub mod endpoints;
pub mod needs;
pub mod routes;
pub mod schema;
pub mod slices;
#[cfg(test)]
pub mod tests;
pub mod usci;
pub mod view;
pub mod windows;

pub use actions::Installed;
pub use needs::Needs;
pub use slices::SliceSpec;
pub use usci::{ManagerView, Usci};
pub use windows::Windows;

use crate::runtime::config::{Mapping, SliceBinding};
use anabranch_element::time::Instant;
use anabranch_selection::neat::{Candidate, Manager, NeatError, slice_node};
use anabranch_selection::plan::Answer;
use anabranch_selection::ursp::{Flow, Ursp};
use anabranch_selection::{Host, Refusal, Request, Slice, select};
use endpoints::Endpoints;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;

/// Most slices a host is told about.
pub const MAX_SLICES: usize = 64;

/// What this host knows about slices and policies.
pub struct Taps {
    started: std::time::Instant,
    told: Mutex<KnownSlices>,
    interfaces: fn() -> Host,
    /// How slices are reached from here, by configuration.
    bindings: Vec<SliceBinding>,
    mappings: Vec<Mapping>,
    usci: OnceLock<Arc<Usci>>,
    changed: Notify,
    needs: Needs,
    endpoints: Endpoints,
    /// Whether the slice manager is asked for more.
    asks: bool,
    /// Whether routes carry the initial windows.
    window_routes: bool,
}

#[derive(Default)]
struct KnownSlices {
    /// By hand.
    slices: BTreeMap<String, (SliceSpec, Slice)>,
    /// By the slice manager; they win.
    managed: BTreeMap<String, (SliceSpec, Slice)>,
    /// Their identifiers there, by name here.
    ids: BTreeMap<String, String>,
    manager: Manager,
    /// Names of the manager's policies and profiles that the slice manager pushed.
    pushed: Vec<String>,
    ursp: Ursp,
    /// Whether the slice manager pushed it.
    pushed_ursp: bool,
}

impl KnownSlices {
    fn all(&self) -> impl Iterator<Item = (&String, &(SliceSpec, Slice))> {
        let by_hand = self.slices.iter().filter(|(id, _)| !self.managed.contains_key(*id));
        by_hand.chain(&self.managed)
    }
}

impl Default for Taps {
    fn default() -> Self {
        Self::new(Vec::new(), Vec::new())
    }
}

impl Taps {
    /// One that knows no slice yet.
    pub fn new(bindings: Vec<SliceBinding>, mappings: Vec<Mapping>) -> Self {
        Self {
            started: std::time::Instant::now(),
            told: Mutex::default(),
            interfaces: anabranch_kern::host::interfaces,
            bindings,
            mappings,
            usci: OnceLock::new(),
            changed: Notify::new(),
            needs: Needs::default(),
            endpoints: Endpoints::default(),
            asks: false,
            window_routes: true,
        }
    }

    /// One that asks the slice manager for more where no slice promises what a program needs.
    #[must_use]
    pub fn asking(self, asks: bool) -> Self {
        Self { asks, ..self }
    }

    /// One whose initial windows are set by a kernel program, or else by routes.
    #[must_use]
    pub fn with_window_program(self, program: bool) -> Self {
        Self { window_routes: !program, ..self }
    }

    /// Waits until what is known of slices changes.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Who follows the slice manager, once there is one.
    pub fn usci(&self) -> Option<&Arc<Usci>> {
        self.usci.get()
    }

    /// Sets it, once.
    pub fn set_usci(&self, usci: Arc<Usci>) {
        // There is one for the life of the program.
        let _ = self.usci.set(usci);
    }

    /// One that looks at other interfaces than this machine's.
    #[cfg(test)]
    fn on(interfaces: fn() -> Host) -> Self {
        Self { interfaces, ..Self::default() }
    }

    /// Ranked candidates, each with its steps. A flow that is described is bound to the slices of
    /// its route selection rule first.
    pub fn select(&self, mut request: Request, flow: Option<&Flow>) -> Result<Answer, Refusal> {
        let now = self.now();
        let host = self.host();
        let rule = flow.and_then(|flow| self.told().ursp.find(flow, &host));
        if let Some(rule) = &rule {
            rule.apply(&mut request);
        }
        let selection = select(&request, &host, now)?;
        self.carry_up(&selection.needs, &request.properties);
        let plan = |candidate: &_| self.plan_here(candidate, &request.properties, &host, now);
        let answer = Answer::new(selection, rule, plan);
        if self.endpoints.note(&answer) {
            self.changed.notify_one();
        }
        Ok(answer)
    }

    /// Waits until what plans asked of the kernel is there; not for long.
    pub async fn settled(&self) {
        self.endpoints.settled().await;
    }

    /// The route selection policy.
    pub fn ursp(&self) -> Value {
        self.told().ursp.json()
    }

    /// Replaces it.
    pub fn set_ursp(&self, ursp: Ursp) {
        self.told().ursp = ursp;
    }

    /// NEAT's answer to NEAT's question; slices that are known count as nodes of the CIB.
    pub fn ask_neat(&self, question: &Value) -> Result<Vec<Candidate>, NeatError> {
        let (now, unix_s) = (self.now(), unix_s());
        let host = self.host();
        let mut manager = self.manager(|m| m.clone());
        for (id, slice) in &host.slices {
            if let Some(interface) = host.interfaces.get(&slice.interface)
                && let Some(node) = slice_node(id, slice, interface, now, unix_s)?
            {
                manager.cib.insert(node)?;
            }
        }
        manager.ask_value(question, unix_s)
    }

    /// Reads or changes NEAT's repositories.
    pub fn manager<T>(&self, with: impl FnOnce(&mut Manager) -> T) -> T {
        with(&mut self.told().manager)
    }

    /// The slices as they were told.
    pub fn slices(&self) -> BTreeMap<String, SliceSpec> {
        self.told().all().map(|(id, (spec, _))| (id.clone(), spec.clone())).collect()
    }

    /// How many slices there are of which something is known that still counts, and how many of which it does not.
    pub fn fresh_and_stale(&self) -> (usize, usize) {
        let now = self.now();
        let told = self.told();
        let fresh = told.all().filter(|(_, (_, slice))| slice.facts_at(now).is_some()).count();
        (fresh, told.all().count() - fresh)
    }

    /// Replaces what is known about slices; it counts from now.
    pub fn set_slices(&self, slices: BTreeMap<String, SliceSpec>) -> Result<(), (String, String)> {
        if slices.len() > MAX_SLICES {
            return Err((String::new(), format!("{} slices; at most {MAX_SLICES}", slices.len())));
        }
        let now = self.now();
        let mut read = BTreeMap::new();
        for (id, spec) in slices {
            let slice = spec.slice(now).map_err(|reason| (id.clone(), reason))?;
            read.insert(id, (spec, slice));
        }
        self.told().slices = read;
        self.changed.notify_one();
        Ok(())
    }

    fn host(&self) -> Host {
        let mut host = (self.interfaces)();
        host.slices = self.told().all().map(|(id, (_, slice))| (id.clone(), slice.clone())).collect();
        host
    }

    fn now(&self) -> Instant {
        // As long as a u64 of nanoseconds lasts: 584 years.
        Instant::from_nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// A panic in between leaves maps whole: they are replaced in one step.
    fn told(&self) -> MutexGuard<'_, KnownSlices> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Seconds since 1970.
pub fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
