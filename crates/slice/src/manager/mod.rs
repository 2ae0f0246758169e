//! The decision logic for slices and UEs: commands in, records out.

pub mod camara;
mod cells;
mod change;
mod places;
mod sessions;

use super::admission::{Demand, Guarantee, Ledger, Shortage, larger};
use super::inventory::{Inventory, WHOLE};
use super::lifecycle::{Illegal, Phase, State};
use super::nest::{self, Nest};
use super::plan::{Action, Execution, Outcome, Step};
use super::profile::ServiceProfile;
use super::record::{Growth, Kind, Need, Pending, Record, Slice, Timing, Ue};
pub use cells::Expected;
use change::{MAX_RETRY_MS, degrade, grown, settle, steps, wait};
pub use places::{PendingPlacement, Released};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of slices.
pub const MAX_SLICES: usize = 1000;
/// Maximum number of UEs.
pub const MAX_UES: usize = 100_000;
/// Maximum number of slices of one UE (TS 23.501 §5.15.1: eight S-NSSAIs at a time).
pub const MAX_UE_SLICES: usize = 8;

/// A record to store, or to remove if `record` is `None`.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// Kind of the record.
    pub kind: Kind,
    /// Identifier of the record, unique within its kind.
    pub id: String,
    /// New contents; `None` removes the record.
    pub record: Option<Record>,
}

impl Write {
    fn slice(slice: Slice) -> Self {
        Self { kind: Kind::Slice, id: slice.id.clone(), record: Some(Record::Slice(Box::new(slice))) }
    }

    /// Stores a UE.
    #[must_use]
    pub fn ue(ue: Ue) -> Self {
        Self { kind: Kind::Ue, id: ue.id.clone(), record: Some(Record::Ue(Box::new(ue))) }
    }
}

/// The requested properties of a new or changed slice, from any interface.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SliceRequest {
    /// Name for operators; not unique.
    pub name: String,
    /// The requested profile.
    pub profile: ServiceProfile,
    /// The NEST as received.
    pub nest: Option<Value>,
    /// Whether it needs network services.
    pub services: bool,
    /// Accesses; empty: those of its coverage.
    pub accesses: Vec<String>,
    /// Minimum share of the RBs regardless of the rates, millionths.
    pub share_ppm: Option<u32>,
    /// The tenant; an existing slice keeps its tenant.
    pub owner: Option<String>,
}

impl From<&Nest> for SliceRequest {
    fn from(nest: &Nest) -> Self {
        Self {
            name: nest.name.clone(),
            profile: ServiceProfile::from(nest),
            nest: Some(Value::Object(nest.document.clone())),
            services: !nest.services().is_empty(),
            accesses: Vec::new(),
            share_ppm: None,
            owner: None,
        }
    }
}

/// Why a command was rejected. Nothing has changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The object does not exist.
    #[error("there is no {0} \"{1}\"")]
    Unknown(&'static str, String),
    /// The object exists already.
    #[error("there is a {0} \"{1}\" already")]
    Exists(&'static str, String),
    /// Insufficient capacity.
    #[error(transparent)]
    Shortage(#[from] Shortage),
    /// Not permitted in the present state.
    #[error(transparent)]
    State(#[from] Illegal),
    /// No access satisfies the requirements.
    #[error("no access serves {0}: see the configuration of the slice manager for those there are")]
    Nowhere(String),
    /// A limit is reached.
    #[error("{what}: at most {most}")]
    Full {
        /// What is limited.
        what: &'static str,
        /// The limit.
        most: u64,
    },
    /// The object is in use.
    #[error("{0}")]
    InUse(String),
}

/// Limits for the growth of slices requested by UEs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrowthLimits {
    /// Maximum growth for all needs of one UE, in percent of the rates of each access.
    pub percent: u32,
    /// Lifetime of a need that is not renewed, seconds.
    pub seconds: u32,
}

impl Default for GrowthLimits {
    fn default() -> Self {
        Self { percent: 50, seconds: 3600 }
    }
}

/// All records, and the inventory.
#[derive(Debug, Clone, Default)]
pub struct Manager {
    inventory: Inventory,
    growth: GrowthLimits,
    slices: BTreeMap<String, Slice>,
    ues: BTreeMap<String, Ue>,
    documents: BTreeMap<(Kind, String), Value>,
}

impl Manager {
    /// A manager without records.
    #[must_use]
    pub fn new(inventory: Inventory, growth: GrowthLimits) -> Self {
        Self { inventory, growth, ..Self::default() }
    }

    /// The accesses of the network and the reservations on them.
    #[must_use]
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// Slices by identifier.
    #[must_use]
    pub fn slices(&self) -> &BTreeMap<String, Slice> {
        &self.slices
    }

    /// UEs by name.
    #[must_use]
    pub fn ues(&self) -> &BTreeMap<String, Ue> {
        &self.ues
    }

    /// Returns a slice.
    ///
    /// # Errors
    /// There is no slice with this identifier.
    pub fn slice(&self, id: &str) -> Result<&Slice, Refusal> {
        self.slices.get(id).ok_or_else(|| Refusal::Unknown("slice", id.to_owned()))
    }

    /// Returns a UE.
    ///
    /// # Errors
    /// There is no UE with this name.
    pub fn ue(&self, id: &str) -> Result<&Ue, Refusal> {
        self.ues.get(id).ok_or_else(|| Refusal::Unknown("UE", id.to_owned()))
    }

    /// Returns a document.
    #[must_use]
    pub fn document(&self, kind: Kind, id: &str) -> Option<&Value> {
        self.documents.get(&(kind, id.to_owned()))
    }

    /// The documents of a kind, by identifier.
    pub fn documents(&self, kind: Kind) -> impl Iterator<Item = (&str, &Value)> {
        let from = (kind, String::new());
        self.documents
            .range(from..)
            .take_while(move |((k, _), _)| *k == kind)
            .map(|((_, id), v)| (id.as_str(), v))
    }

    /// The base slice descriptor with this `base_slice_des_id`.
    #[must_use]
    pub fn base(&self, name: &str) -> Option<Map<String, Value>> {
        let named = |v: &&Value| v.get("base_slice_des_id").and_then(Value::as_str) == Some(name);
        self.documents(Kind::Base).map(|(_, v)| v).find(named).and_then(Value::as_object).cloned()
    }

    /// Applies a record that was stored, or a removal.
    pub fn put(&mut self, write: Write) {
        let Write { kind, id, record } = write;
        match record {
            Some(Record::Slice(slice)) => drop(self.slices.insert(id, *slice)),
            Some(Record::Ue(ue)) => drop(self.ues.insert(id, *ue)),
            Some(Record::Document(value)) => drop(self.documents.insert((kind, id), value)),
            None => match kind {
                Kind::Slice => drop(self.slices.remove(&id)),
                Kind::Ue => drop(self.ues.remove(&id)),
                _ => drop(self.documents.remove(&(kind, id))),
            },
        }
    }

    /// Sum of the guarantees of all slices except `except`.
    #[must_use]
    pub fn ledger(&self, except: Option<&str>) -> Ledger {
        let mut ledger = Ledger::default();
        self.slices.values().filter(|s| except != Some(&s.id)).for_each(|s| ledger.add(&s.reserved()));
        ledger
    }

    /// Creates a slice: selects its accesses and reserves its guarantees.
    ///
    /// # Errors
    /// No access satisfies the requirements, capacity is insufficient, the identifier is taken, or there are too many slices.
    pub fn create(&self, id: &str, order: SliceRequest, now_ms: u64) -> Result<Vec<Write>, Refusal> {
        if self.slices.contains_key(id) {
            return Err(Refusal::Exists("slice", id.to_owned()));
        }
        if self.slices.len() >= MAX_SLICES {
            return Err(Refusal::Full { what: "slices", most: MAX_SLICES as u64 });
        }
        let (wanted, not_supported) = self.place(&order, &order.accesses)?;
        self.ledger(None).admit(&wanted, &self.inventory)?;
        let cell_name = self.cell_name(&order.name, id);
        let mut slice = Slice {
            id: id.to_owned(),
            owner: order.owner,
            name: order.name,
            cell_name,
            state: State::Init.after(&Phase::Placed)?,
            profile: order.profile,
            nest: order.nest,
            share_ppm: order.share_ppm,
            accesses: Some(order.accesses),
            growth: Growth::default(),
            applied: Demand::new(),
            wanted,
            before: Demand::new(),
            unsure: Demand::new(),
            plan: None,
            pending: None,
            force: false,
            problems: BTreeMap::new(),
            errors: Vec::new(),
            not_supported,
            created_ms: now_ms,
            since_ms: now_ms,
            tries: 0,
            retry_ms: None,
            timing: Timing::default(),
        };
        slice.plan = Some(steps(&slice, order.services));
        Ok(self.with_accesses(slice))
    }

    /// A name at the cells that is used neither by another slice nor for UEs without a slice.
    fn cell_name(&self, name: &str, id: &str) -> String {
        let is_free = |name: &String| {
            !self.slices.values().any(|s| s.cell_name == *name)
                && !self.inventory.iter().any(|access| access.rest_slice == *name)
        };
        let short: String = id.chars().take(8).collect();
        let first = [name.to_owned(), format!("{name}-{short}"), format!("{name}-{id}")];
        let more = (2..=MAX_SLICES + 2).map(|n| format!("{name}-{id}-{n}"));
        first.into_iter().chain(more).find(is_free).unwrap_or_else(|| id.to_owned())
    }

    /// Stores a slice, and then the accesses that get shares from this manager for the first time.
    fn with_accesses(&self, slice: Slice) -> Vec<Write> {
        let new = |access: &&String| !self.sets_shares(access);
        let accesses = slice.wanted.keys().filter(new).map(|access| Write {
            kind: Kind::Access,
            id: access.clone(),
            record: Some(Record::Document(Value::Bool(true))),
        });
        let mut writes: Vec<Write> = accesses.collect();
        writes.insert(0, Write::slice(slice));
        writes
    }

    /// Changes the profile of a slice. The old profile applies until the change is complete; a failed slice has none. Growth requested
    /// by UEs is discarded; they repeat their requests.
    ///
    /// # Errors
    /// Those of [`Self::create`]; a change is in progress.
    pub fn modify(&self, id: &str, mut order: SliceRequest, now_ms: u64) -> Result<Vec<Write>, Refusal> {
        let slice = self.slice(id)?;
        if order.nest.is_none() {
            order.nest = slice.requested_slice().nest;
            if let Some(document) = &mut order.nest {
                nest::reflect(document, &order.profile);
            }
            order.services = Slice::has_services(order.nest.as_ref());
        }
        let places = order.accesses.clone();
        self.change(slice.clone(), order, places, Growth::default(), now_ms)
    }

    /// Starts a change of a slice. `places` are the accesses; they may be fewer than in `order`.
    fn change(
        &self,
        mut slice: Slice,
        order: SliceRequest,
        places: Vec<String>,
        growth: Growth,
        now_ms: u64,
    ) -> Result<Vec<Write>, Refusal> {
        let failed = matches!(slice.state, State::Failed(_));
        let held = slice.reserved();
        slice.state = slice.state.after(&Phase::Change)?;
        let (wanted, not_supported) = self.place(&order, &places)?;
        slice.before.clone_from(&slice.applied);
        slice.wanted = wanted;
        self.ledger(Some(&slice.id)).admit_change(&held, &slice.reserved(), &self.inventory)?;
        slice.not_supported = not_supported;
        slice.plan = Some(steps(&slice, order.services));
        if failed {
            // There is no earlier state to return to.
            (slice.name, slice.profile, slice.nest) = (order.name, order.profile, order.nest);
            (slice.accesses, slice.share_ppm, slice.growth) = (Some(order.accesses), order.share_ppm, growth);
        } else {
            slice.pending = Some(Box::new(Pending {
                profile: order.profile,
                nest: order.nest,
                name: Some(order.name),
                accesses: Some(order.accesses),
                share_ppm: order.share_ppm,
                growth,
                applied: BTreeSet::new(),
            }));
        }
        slice.since_ms = now_ms;
        slice.retry_ms = None;
        Ok(self.with_accesses(slice))
    }

    /// The last request of the slice's operator.
    fn order(slice: &Slice) -> SliceRequest {
        let asked = slice.requested_slice();
        SliceRequest {
            services: Slice::has_services(asked.nest.as_ref()),
            name: asked.name,
            profile: asked.profile,
            nest: asked.nest,
            accesses: asked.accesses,
            share_ppm: asked.share_ppm,
            owner: slice.owner.clone(),
        }
    }

    /// Actions due to the passage of time: retries of failed slices, and release of growth that UEs no longer need.
    #[must_use]
    pub fn due(&self, now_ms: u64) -> Vec<Write> {
        let of = |slice: &Slice| {
            if slice.plan.is_some() {
                return Vec::new();
            }
            // Later than the maximum pause: the clock was ahead when the slice failed.
            let longest = now_ms.saturating_add(MAX_RETRY_MS);
            if slice.retry_ms.is_some_and(|at| at <= now_ms || at > longest) {
                return self.retry(slice, now_ms);
            }
            let lapsed = |ue: &String, need: &Need| {
                let has = self.ues.get(ue).is_some_and(|u| u.slices.iter().any(|a| a.slice == slice.id));
                need.until_ms <= now_ms || !has
            };
            if slice.state.usable() && slice.growth.needs.iter().any(|(ue, need)| lapsed(ue, need)) {
                let mut needs = slice.growth.needs.clone();
                needs.retain(|ue, need| !lapsed(ue, need));
                return self.regrow(slice, needs, now_ms).unwrap_or_default();
            }
            Vec::new()
        };
        self.slices.values().map(of).find(|writes| !writes.is_empty()).unwrap_or_default()
    }

    fn retry(&self, slice: &Slice, now_ms: u64) -> Vec<Write> {
        let order = Self::order(slice);
        let places = order.accesses.clone();
        match self.change(slice.clone(), order, places, Growth::default(), now_ms) {
            Ok(writes) => writes,
            Err(refusal) => {
                let mut slice = slice.clone();
                let why = refusal.to_string();
                slice.note(why.clone());
                if matches!(slice.state, State::Failed(_)) {
                    slice.state = State::Failed(why);
                }
                wait(&mut slice, now_ms);
                vec![Write::slice(slice)]
            }
        }
    }

    /// Discards the needs of a UE that has left.
    #[must_use]
    pub fn needs_nothing(&self, ue: &str) -> Vec<Write> {
        let of = |slice: &Slice| {
            let mut slice = slice.clone();
            let pending = slice.pending.as_mut().and_then(|p| p.growth.needs.get_mut(ue));
            let needs: Vec<&mut Need> = slice.growth.needs.get_mut(ue).into_iter().chain(pending).collect();
            if needs.is_empty() {
                return None;
            }
            needs.into_iter().for_each(|need| need.until_ms = 0);
            Some(Write::slice(slice))
        };
        self.slices.values().filter_map(of).collect()
    }

    /// Starts the removal of a slice; with `force`, failures do not stop it.
    ///
    /// # Errors
    /// There is no such slice; its removal is in progress (permitted with `force`); or a QoS session or a booking uses it.
    pub fn remove(&self, id: &str, force: bool, now_ms: u64) -> Result<Vec<Write>, Refusal> {
        let mut slice = self.slice(id)?.clone();
        if slice.state == State::Terminating {
            if force && !slice.force {
                slice.force = true;
                return Ok(vec![Write::slice(slice)]);
            }
            slice.state.after(&Phase::Terminate)?;
        }
        slice.state = slice.state.after(&Phase::Terminate)?;
        slice.before = slice.reserved();
        slice.wanted = Demand::new();
        slice.pending = None;
        slice.retry_ms = None;
        slice.force |= force;
        slice.since_ms = now_ms;
        let accesses = slice.before.keys().cloned();
        let mut all: Vec<Step> = accesses.map(|access| Step::Shares { access }).collect();
        if Slice::has_services(slice.nest.as_ref()) {
            all.push(Step::Services);
        }
        slice.plan = Some(Execution::new(all));
        Ok(vec![Write::slice(slice)])
    }

    /// Pending actions in the network: slice identifier, and the action (`None`: the plan has ended).
    pub fn todo(&self) -> impl Iterator<Item = (&str, Option<Action>)> {
        self.slices.values().filter_map(|s| Some((s.id.as_str(), s.plan.as_ref()?.next().ok())))
    }

    /// Whether a slice still waits for `action` of the change in progress in `before`, so that a result of the action applies. The
    /// action alone is not sufficient, because removal of a slice begins with the same action as its creation.
    #[must_use]
    pub fn waits_for(&self, before: &Slice, action: Option<&Action>) -> bool {
        self.slices.get(&before.id).is_some_and(|now| {
            let same = now.state == before.state && now.plan == before.plan && now.wanted == before.wanted;
            same && now.plan.as_ref().is_some_and(|plan| plan.next().ok().as_ref() == action)
        })
    }

    /// Records the result of the current step of slice `id`; ends the plan if no step is left.
    ///
    /// # Errors
    /// There is no such slice. A slice without a plan is not changed.
    pub fn step_done(
        &self,
        id: &str,
        result: Result<(), String>,
        now_ms: u64,
    ) -> Result<Vec<Write>, Refusal> {
        let mut slice = self.slice(id)?.clone();
        let Some(mut plan) = slice.plan.take() else { return Ok(Vec::new()) };
        if let Err(why) = &result {
            slice.note(why.clone());
        }
        let move_to = |slice: &mut Slice, phase: &Phase| {
            let took = now_ms.saturating_sub(slice.since_ms);
            match slice.state {
                State::Placement => slice.timing.placement_ms = took,
                State::Provisioning => slice.timing.provisioning_ms = took,
                State::Activation => slice.timing.activation_ms = took,
                _ => {}
            }
            slice.state = slice.state.after(phase)?;
            slice.since_ms = now_ms;
            Ok::<_, Illegal>(())
        };
        if slice.state == State::Placement {
            move_to(&mut slice, &Phase::Provision)?;
        }
        let is_done = result.is_ok();
        let result = match result {
            // Removal neither rolls back nor gives up; forced removal proceeds despite the failure.
            Err(_) if slice.state == State::Terminating && !slice.force => {
                slice.plan = Some(plan);
                return Ok(vec![Write::slice(slice)]);
            }
            Err(_) if slice.state == State::Terminating => Ok(()),
            result => result,
        };
        if let Ok(action) = plan.next() {
            if result.is_ok() {
                match &action {
                    Action::Do(Step::Shares { access }) => {
                        settle(&mut slice, access, false);
                        if is_done && slice.state == State::Terminating {
                            // The access confirmed that it has nothing: nothing remains reserved there, and it is no longer waited for.
                            slice.before.remove(access);
                        }
                    }
                    Action::Undo(Step::Shares { access }) => settle(&mut slice, access, true),
                    _ => {}
                }
            }
            plan.done(result);
        }
        match plan.next() {
            Ok(Action::Do(Step::Verify { .. })) if slice.state == State::Provisioning => {
                move_to(&mut slice, &Phase::Activate)?;
                slice.plan = Some(plan);
            }
            Ok(_) => slice.plan = Some(plan),
            Err(_) if slice.state == State::Terminating => {
                return Ok(self.gone(id));
            }
            Err(Outcome::Done) => {
                if slice.state == State::Provisioning {
                    move_to(&mut slice, &Phase::Activate)?;
                }
                move_to(&mut slice, &Phase::Run)?;
                slice.before = Demand::new();
                slice.tries = 0;
                if let Some(pending) = slice.pending.take() {
                    slice.profile = pending.profile;
                    slice.nest = pending.nest.or(slice.nest);
                    slice.name = pending.name.unwrap_or(slice.name);
                    slice.accesses = pending.accesses.or(slice.accesses);
                    slice.share_ppm = pending.share_ppm;
                    slice.growth = pending.growth;
                }
            }
            Err(Outcome::Undone { why, left }) => {
                let was_there = slice.pending.take().is_some();
                let left: BTreeSet<&String> = left
                    .iter()
                    .filter_map(|s| if let Step::Shares { access } = s { Some(access) } else { None })
                    .collect();
                // Where undoing failed, the cell may have either: the larger stays reserved.
                let unsure: Demand = slice.reserved().into_iter().filter(|(a, _)| left.contains(a)).collect();
                slice.wanted = std::mem::take(&mut slice.before);
                slice.unsure = larger(&slice.unsure, &unsure);
                // The expected configuration; cells with a different one are reconfigured.
                slice.applied.clone_from(&slice.wanted);
                move_to(&mut slice, &if was_there { Phase::Recover } else { Phase::Fail(why) })?;
                if !was_there {
                    wait(&mut slice, now_ms);
                }
            }
        }
        if slice.plan.is_none() {
            degrade(&mut slice)?;
        }
        Ok(vec![Write::slice(slice)])
    }

    /// Removes a slice with its NEST, and its places from UEs. A cell that refused a place may still have the UE in another slice.
    fn gone(&self, id: &str) -> Vec<Write> {
        let mut writes = vec![Write { kind: Kind::Slice, id: id.to_owned(), record: None }];
        if self.document(Kind::Gst, id).is_some() {
            writes.push(Write { kind: Kind::Gst, id: id.to_owned(), record: None });
        }
        for ue in self.ues.values().filter(|ue| ue.slices.iter().any(|a| a.slice == id)) {
            let mut ue = ue.clone();
            ue.release(|place| place.slice == id);
            writes.push(Write::ue(ue));
        }
        writes
    }

    /// Raises the guarantee of a slice at the request of one of its UEs to at least these rates, bit/s, within the slice's maximum and
    /// the free capacity. No change if the guarantee is sufficient.
    ///
    /// # Errors
    /// The slice is not one of the UE's; it is not running; or its maximum, or the capacity of an access, is insufficient.
    pub fn grow(
        &self,
        ue: &str,
        id: &str,
        dl_bps: u64,
        ul_bps: u64,
        now_ms: u64,
    ) -> Result<Vec<Write>, Refusal> {
        let own = self.ue(ue)?.slices.iter().any(|a| a.slice == id);
        let slice = self.slice(id).ok().filter(|_| own);
        let slice = slice.ok_or_else(|| Refusal::Unknown("slice of this UE", id.to_owned()))?;
        if !slice.state.usable() {
            // A failed slice is retried with its operator's request.
            return Err(Illegal { from: slice.state.name(), what: "grow" }.into());
        }
        let asked = slice.requested_slice().profile;
        let until_ms = now_ms.saturating_add(u64::from(self.growth.seconds) * 1000);
        let need = Need { dl_bps, ul_bps, until_ms };
        let alone = grown(&asked, std::iter::once(&need));
        for (thpt, ue, wanted) in
            [(&asked.dl_slice, &asked.dl_ue, dl_bps), (&asked.ul_slice, &asked.ul_ue, ul_bps)]
        {
            let most = thpt.max.into_iter().chain(ue.max).min_by(f64::total_cmp);
            if let Some(most) = most.filter(|most| wanted as f64 / 1e3 > *most) {
                return Err(Refusal::Full { what: "bit/s of this slice", most: (most * 1e3) as u64 });
            }
        }
        if alone == asked {
            return Ok(Vec::new());
        }
        self.bounded(ue, slice, &asked, &alone)?;
        let mut needs = slice.growth.needs.clone();
        needs.retain(|other, need| other != ue && need.until_ms > now_ms);
        needs.insert(ue.to_owned(), need);
        if grown(&asked, needs.values()) == slice.profile && slice.pending.is_none() {
            // The guarantee is sufficient: the need is recorded, but not stored with every request.
            let half = u64::from(self.growth.seconds) * 500;
            let known = slice.growth.needs.get(ue);
            if known.is_some_and(|k| (k.dl_bps, k.ul_bps) == (dl_bps, ul_bps) && k.until_ms > now_ms + half) {
                return Ok(Vec::new());
            }
            let mut slice = slice.clone();
            slice.growth.needs = needs;
            return Ok(vec![Write::slice(slice)]);
        }
        self.regrow(slice, needs, now_ms)
    }

    /// Checks that the growth of all slices for one UE, including this slice grown to `alone` for it, is within the UE's limit on each
    /// access.
    fn bounded(
        &self,
        ue: &str,
        slice: &Slice,
        asked: &ServiceProfile,
        alone: &ServiceProfile,
    ) -> Result<(), Refusal> {
        let mut grown_by: Vec<(&str, u64, u64)> = Vec::new();
        let mut add = |demand: &Demand, asked: &ServiceProfile, grown: &ServiceProfile| {
            let ((dl, ul), (more_dl, more_ul)) = (asked.rates_bps(), grown.rates_bps());
            for access in self.inventory.iter().filter(|a| demand.contains_key(&a.name)) {
                grown_by.push((&access.name, more_dl.saturating_sub(dl), more_ul.saturating_sub(ul)));
            }
        };
        add(&slice.applied, asked, alone);
        for other in self.slices.values().filter(|s| s.id != slice.id) {
            if let Some(need) = other.growth.needs.get(ue) {
                let asked = other.requested_slice().profile;
                add(&other.applied, &asked, &grown(&asked, std::iter::once(need)));
            }
        }
        for access in self.inventory.iter() {
            let here = grown_by.iter().filter(|(name, ..)| *name == access.name);
            let (dl, ul) = here.fold((0_u64, 0_u64), |(a, b), (_, dl, ul)| (a + dl, b + ul));
            for (more, of) in [(dl, access.downlink_bps), (ul, access.uplink_bps)] {
                let most = of / 100 * u64::from(self.growth.percent);
                if more > most {
                    return Err(Refusal::Full { what: "bit/s that slices grow by for one UE", most });
                }
            }
        }
        Ok(())
    }

    /// Starts a change to the operator's request plus the needs of these UEs.
    fn regrow(
        &self,
        slice: &Slice,
        needs: BTreeMap<String, Need>,
        now_ms: u64,
    ) -> Result<Vec<Write>, Refusal> {
        let order = Self::order(slice);
        let profile = grown(&order.profile, needs.values());
        let asked = (!needs.is_empty()).then(|| Box::new(order.profile));
        // At its present accesses: a UE's request must not move the slice.
        let places = slice.applied.keys().cloned().collect();
        let order = SliceRequest { profile, ..order };
        self.change(slice.clone(), order, places, Growth { needs, asked }, now_ms)
    }

    /// Selects the accesses of a slice and its guarantees there. The guarantee is reserved in full on each access, because all of
    /// its UEs may be at the same one.
    fn place(&self, order: &SliceRequest, places: &[String]) -> Result<(Demand, Vec<String>), Refusal> {
        let mut chosen = BTreeSet::new();
        let mut not_supported = Vec::new();
        let latency =
            order.profile.dl_latency.into_iter().chain(order.profile.ul_latency).min_by(f64::total_cmp);
        let fast = |delay_ms: f64| latency.is_none_or(|most| delay_ms <= most);
        for name in places {
            let access = self.inventory.get(name).ok_or_else(|| Shortage::Unknown(name.clone()))?;
            if !fast(access.delay_ms) {
                return Err(Refusal::Nowhere(format!("{} ms on \"{name}\"", latency.unwrap_or(0.0))));
            }
            chosen.insert(access.name.as_str());
        }
        if places.is_empty() {
            for place in &order.profile.coverage {
                let mut here = self.inventory.at(place).filter(|a| fast(a.delay_ms)).peekable();
                if here.peek().is_none() {
                    not_supported.push(place.clone());
                }
                chosen.extend(here.map(|a| a.name.as_str()));
            }
            if order.profile.coverage.is_empty() {
                chosen.extend(self.inventory.iter().filter(|a| fast(a.delay_ms)).map(|a| a.name.as_str()));
            }
        }
        if chosen.is_empty() {
            let where_to = order.profile.coverage.join(", ");
            let where_to = if where_to.is_empty() { "it".to_owned() } else { format!("\"{where_to}\"") };
            let how = latency.map_or_else(String::new, |ms| format!(" within {ms} ms"));
            return Err(Refusal::Nowhere(format!("{where_to}{how}")));
        }
        let (dl, ul) = order.profile.rates_bps();
        let demand = chosen.into_iter().filter_map(|name| {
            let access = self.inventory.get(name)?;
            let mut guarantee = Guarantee::of_rates(dl, ul, access);
            if let Some(share) = order.share_ppm {
                guarantee.share_ppm = guarantee.share_ppm.max(share.min(WHOLE));
            }
            Some((name.to_owned(), guarantee))
        });
        Ok((demand.collect(), not_supported))
    }
}

#[cfg(test)]
mod tests;
