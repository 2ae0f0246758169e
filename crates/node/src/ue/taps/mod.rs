//! Transport Services on this host: the machine's state for the engine of crate `selection`, and the facts
//! about slices.
//!
//! ```text
//!  REST ──▶ Taps ──▶ selection::select        interfaces are read for each request; slices are set
//!  Usci ───▶ │  └──▶ selection::neat::Manager  (over REST, PUT /connections/slices, or by the slice manager)
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

use crate::runtime::config::types::check_interface_name;
use crate::runtime::config::{Mapping, SliceBinding};
use anabranch_element::time::Instant;
use anabranch_selection::neat::{Candidate, Manager, NeatError, slice_node};
use anabranch_selection::plan::Answer;
use anabranch_selection::ursp::{Flow, Ursp};
use anabranch_selection::{Host, Refusal, Request, Slice, select};
use endpoints::Endpoints;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;

/// Maximum number of slices.
pub const MAX_SLICES: usize = 64;
/// Maximum length of a slice's name, bytes.
const MAX_ID: usize = 128;
/// Routing tables default, main and local.
const KERNEL_TABLES: RangeInclusive<u32> = 253..=255;

/// Slices and policies of this host.
pub struct Taps {
    started: std::time::Instant,
    known_slices: Mutex<KnownSlices>,
    interfaces: fn() -> Host,
    /// The configured bindings of slices to interfaces.
    bindings: Vec<SliceBinding>,
    mappings: Vec<Mapping>,
    usci: OnceLock<Arc<Usci>>,
    changed: Notify,
    needs: Needs,
    endpoints: Endpoints,
    /// Whether the slice manager is asked for larger guarantees.
    requests_growth: bool,
    /// Whether routes carry the initial windows.
    window_routes: bool,
    /// Marks of the tunnel's own packets, which no slice may have.
    own_marks: Option<RangeInclusive<u32>>,
}

#[derive(Default)]
struct KnownSlices {
    /// Slices set over REST.
    slices: BTreeMap<String, (SliceSpec, Slice)>,
    /// Slices set by the slice manager; they take precedence.
    managed: BTreeMap<String, (SliceSpec, Slice)>,
    /// Identifiers at the slice manager, by local name.
    ids: BTreeMap<String, String>,
    manager: Manager,
    /// Names of the NEAT policies and profiles that the slice manager pushed.
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
    /// A state without slices.
    pub fn new(bindings: Vec<SliceBinding>, mappings: Vec<Mapping>) -> Self {
        Self {
            started: std::time::Instant::now(),
            known_slices: Mutex::default(),
            interfaces: anabranch_kern::host::interfaces,
            bindings,
            mappings,
            usci: OnceLock::new(),
            changed: Notify::new(),
            needs: Needs::default(),
            endpoints: Endpoints::default(),
            requests_growth: false,
            window_routes: true,
            own_marks: None,
        }
    }

    /// The mark of the tunnel's own packets; the next number belongs to it, too.
    #[must_use]
    pub fn with_own_mark(self, mark: u32) -> Self {
        Self { own_marks: Some(mark..=mark.saturating_add(1)), ..self }
    }

    /// Whether to ask the slice manager for larger guarantees if no slice has what a program needs.
    #[must_use]
    pub fn with_growth_requests(self, requests_growth: bool) -> Self {
        Self { requests_growth, ..self }
    }

    /// Whether a kernel program sets the initial windows; otherwise routes carry them.
    #[must_use]
    pub fn with_window_program(self, program: bool) -> Self {
        Self { window_routes: !program, ..self }
    }

    /// Waits until slices or policies change.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The client of the slice manager, if one is configured.
    pub fn usci(&self) -> Option<&Arc<Usci>> {
        self.usci.get()
    }

    /// Sets the client of the slice manager; effective once.
    pub fn set_usci(&self, usci: Arc<Usci>) {
        // There is only one in the lifetime of the program.
        let _ = self.usci.set(usci);
    }

    /// A state with simulated interfaces.
    #[cfg(test)]
    fn on(interfaces: fn() -> Host) -> Self {
        Self { interfaces, ..Self::default() }
    }

    /// Selects ranked candidates, each with its steps. If `flow` is given, the slices of its route selection
    /// rule are the only ones considered.
    pub fn select(&self, mut request: Request, flow: Option<&Flow>) -> Result<Answer, Refusal> {
        let now = self.now();
        let host = self.host();
        let rule = flow.and_then(|flow| self.known_slices().ursp.find(flow, &host));
        if let Some(rule) = &rule {
            rule.apply(&mut request);
        }
        let selection = select(&request, &host, now)?;
        self.queue_needs(&selection.needs, &request.properties);
        let plan = |candidate: &_| self.plan_here(candidate, &request.properties, &host, now);
        let answer = Answer::new(selection, rule, plan);
        if self.endpoints.note(&answer) {
            self.changed.notify_one();
        }
        Ok(answer)
    }

    /// Waits, for a limited time, until the kernel configuration for earlier plans is installed.
    pub async fn settled(&self) {
        self.endpoints.settled().await;
    }

    /// The route selection policy.
    pub fn ursp(&self) -> Value {
        self.known_slices().ursp.json()
    }

    /// Replaces the route selection policy.
    pub fn set_ursp(&self, ursp: Ursp) {
        self.known_slices().ursp = ursp;
    }

    /// Answers a request in the format of NEAT; known slices count as nodes of the CIB.
    pub fn select_neat(&self, question: &Value) -> Result<Vec<Candidate>, NeatError> {
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
        manager.query_value(question, unix_s)
    }

    /// Reads or changes NEAT's repositories.
    pub fn manager<T>(&self, with: impl FnOnce(&mut Manager) -> T) -> T {
        with(&mut self.known_slices().manager)
    }

    /// The slices as they were set.
    pub fn slices(&self) -> BTreeMap<String, SliceSpec> {
        self.known_slices().all().map(|(id, (spec, _))| (id.clone(), spec.clone())).collect()
    }

    /// Numbers of slices with valid facts and with expired facts.
    pub fn fresh_and_stale(&self) -> (usize, usize) {
        let now = self.now();
        let known_slices = self.known_slices();
        let fresh = known_slices.all().filter(|(_, (_, slice))| slice.facts_at(now).is_some()).count();
        (fresh, known_slices.all().count() - fresh)
    }

    /// Replaces the slices set over REST; their validity starts now. The error has the slice and the reason.
    pub fn set_slices(&self, slices: BTreeMap<String, SliceSpec>) -> Result<(), (String, String)> {
        if slices.len() > MAX_SLICES {
            return Err((String::new(), format!("{} slices; at most {MAX_SLICES}", slices.len())));
        }
        let now = self.now();
        let mut read = BTreeMap::new();
        let mut marks = BTreeMap::new();
        for (id, spec) in slices {
            let checked = self.check_slice(&id, &spec).and_then(|()| spec.slice(now));
            let slice = checked.map_err(|reason| (id.clone(), reason))?;
            if let Some(mark) = spec.mark
                && let Some(other) = marks.insert(mark, id.clone())
            {
                return Err((
                    id,
                    format!("mark {mark} is already that of \"{other}\": each slice needs its own"),
                ));
            }
            read.insert(id, (spec, slice));
        }
        let mut known = self.known_slices();
        if let Some(id) = read.keys().find(|id| known.managed.contains_key(*id)) {
            return Err((
                id.clone(),
                "is set by the slice manager: change it there, or use another name".to_owned(),
            ));
        }
        known.slices = read;
        drop(known);
        self.changed.notify_one();
        Ok(())
    }

    /// Checks what a slice set over REST must not do on this host.
    fn check_slice(&self, id: &str, spec: &SliceSpec) -> Result<(), String> {
        if id.is_empty() || id.len() > MAX_ID || id.chars().any(char::is_control) {
            return Err(format!("names have 1 to {MAX_ID} bytes, without control characters"));
        }
        check_interface_name(&spec.interface).map_err(|wrong| format!("interface: {wrong}"))?;
        let is_own = |mark: &u32| self.own_marks.as_ref().is_some_and(|own| own.contains(mark));
        if let Some(mark) = spec.mark.filter(is_own) {
            return Err(format!("mark {mark} is the mark of the tunnel's own packets: choose another"));
        }
        match spec.table {
            Some(table) if KERNEL_TABLES.contains(&table) || table == u32::MAX => Err(format!(
                "table {table} is one of the kernel's: choose another, and add the slice's routes to it"
            )),
            _ => Ok(()),
        }
    }

    fn host(&self) -> Host {
        let mut host = (self.interfaces)();
        host.slices = self.known_slices().all().map(|(id, (_, slice))| (id.clone(), slice.clone())).collect();
        host
    }

    fn now(&self) -> Instant {
        // Nanoseconds in a u64 last for 584 years.
        Instant::from_nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// The mutex may be poisoned: maps are replaced in a single step, so the state is consistent.
    fn known_slices(&self) -> MutexGuard<'_, KnownSlices> {
        self.known_slices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Unix time, seconds.
pub fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
