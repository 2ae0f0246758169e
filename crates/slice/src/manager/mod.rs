//! Decides what becomes of slices and UEs: commands in, records out.

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
pub use places::{Place, Released};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Most slices.
pub const MAX_SLICES: usize = 1000;
/// Most UEs.
pub const MAX_UES: usize = 100_000;
/// Most slices of one UE (TS 23.501 §5.15.1: eight S-NSSAIs at a time).
pub const MAX_UE_SLICES: usize = 8;

/// A record to be stored; without one, it is to be removed.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// Its kind.
    pub kind: Kind,
    /// Its identifier.
    pub id: String,
    /// The record.
    pub record: Option<Record>,
}

impl Write {
    fn slice(slice: Slice) -> Self {
        Self { kind: Kind::Slice, id: slice.id.clone(), record: Some(Record::Slice(Box::new(slice))) }
    }

    /// A UE to be stored.
    #[must_use]
    pub fn ue(ue: Ue) -> Self {
        Self { kind: Kind::Ue, id: ue.id.clone(), record: Some(Record::Ue(Box::new(ue))) }
    }
}

/// A slice that is asked for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SliceRequest {
    /// Its name.
    pub name: String,
    /// What it is to promise.
    pub profile: ServiceProfile,
    /// The NEST, as sent.
    pub nest: Option<Value>,
    /// Network services it needs.
    pub services: bool,
    /// Where; empty: where its coverage says.
    pub accesses: Vec<String>,
    /// Share of the RBs, whatever the rates, millionths.
    pub share_ppm: Option<u32>,
    /// The tenant it is made for; one that is there keeps its own.
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

/// Why a command is refused. Nothing has changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// There is no such thing.
    #[error("there is no {0} \"{1}\"")]
    Unknown(&'static str, String),
    /// There is one already.
    #[error("there is a {0} \"{1}\" already")]
    Exists(&'static str, String),
    /// There is not enough.
    #[error(transparent)]
    Shortage(#[from] Shortage),
    /// Not in this state.
    #[error(transparent)]
    State(#[from] Illegal),
    /// No access serves what it needs.
    #[error("no access serves {0}: see the configuration of the slice manager for those there are")]
    Nowhere(String),
    /// It has as many as it can have.
    #[error("{what}: at most {most}")]
    Full {
        /// Of what.
        what: &'static str,
        /// How many there can be.
        most: u64,
    },
    /// It is still needed.
    #[error("{0}")]
    InUse(String),
}

/// By how much UEs may have slices grow, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrowthLimits {
    /// Of the rates of each access, most for all that one UE needs, percent.
    pub percent: u32,
    /// How long a need counts that is not said again, seconds.
    pub seconds: u32,
}

impl Default for GrowthLimits {
    fn default() -> Self {
        Self { percent: 50, seconds: 3600 }
    }
}

/// Every record, and what there is to share.
#[derive(Debug, Clone, Default)]
pub struct Manager {
    inventory: Inventory,
    growth: GrowthLimits,
    slices: BTreeMap<String, Slice>,
    ues: BTreeMap<String, Ue>,
    documents: BTreeMap<(Kind, String), Value>,
}

impl Manager {
    /// Without any record.
    #[must_use]
    pub fn new(inventory: Inventory, growth: GrowthLimits) -> Self {
        Self { inventory, growth, ..Self::default() }
    }

    /// What there is to share.
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

    /// One slice.
    ///
    /// # Errors
    /// There is none of this identifier.
    pub fn slice(&self, id: &str) -> Result<&Slice, Refusal> {
        self.slices.get(id).ok_or_else(|| Refusal::Unknown("slice", id.to_owned()))
    }

    /// One UE.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn ue(&self, id: &str) -> Result<&Ue, Refusal> {
        self.ues.get(id).ok_or_else(|| Refusal::Unknown("UE", id.to_owned()))
    }

    /// One document.
    #[must_use]
    pub fn document(&self, kind: Kind, id: &str) -> Option<&Value> {
        self.documents.get(&(kind, id.to_owned()))
    }

    /// Documents of a kind, by identifier.
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

    /// Takes over a record that was stored, or removes it.
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

    /// What was promised, but to slice `except`.
    #[must_use]
    pub fn ledger(&self, except: Option<&str>) -> Ledger {
        let mut ledger = Ledger::default();
        self.slices.values().filter(|s| except != Some(&s.id)).for_each(|s| ledger.add(&s.reserved()));
        ledger
    }

    /// Makes a slice: its accesses are chosen and its guarantees reserved.
    ///
    /// # Errors
    /// No access serves it, or one has too little left; the identifier is taken; there are too many.
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

    /// A name at the cells that no other slice has, nor what is there for those of no slice.
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

    /// A slice to be stored, first, and the accesses that it is the first to have a share of.
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

    /// Gives a slice another profile. The old one holds until everything is in place; of one that failed nothing does. What
    /// UEs had it grow by is forgotten: they ask again.
    ///
    /// # Errors
    /// As [`Self::create`]; a change is under way.
    pub fn modify(&self, id: &str, mut order: SliceRequest, now_ms: u64) -> Result<Vec<Write>, Refusal> {
        let slice = self.slice(id)?;
        if order.nest.is_none() {
            order.nest = slice.asked().nest;
            if let Some(document) = &mut order.nest {
                nest::reflect(document, &order.profile);
            }
            order.services = Slice::has_services(order.nest.as_ref());
        }
        let places = order.accesses.clone();
        self.change(slice.clone(), order, places, Growth::default(), now_ms)
    }

    /// Has a slice changed. `places` is where, and may be less than `order` says.
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
            // There is nothing to go back to.
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

    /// What a slice's operator asked for, as it would be asked for again.
    fn order(slice: &Slice) -> SliceRequest {
        let asked = slice.asked();
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

    /// What time alone brings: slices that failed are tried again, and what UEs do not need any more is given back.
    #[must_use]
    pub fn due(&self, now_ms: u64) -> Vec<Write> {
        let of = |slice: &Slice| {
            if slice.plan.is_some() {
                return Vec::new();
            }
            // Later than the longest pause: the clock was ahead when it failed.
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

    /// What a UE needed counts no longer: it has left.
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

    /// Begins to remove a slice; with `force`, failures on the way do not keep it.
    ///
    /// # Errors
    /// There is none; it is being removed already (with `force` that is allowed); a QoS session or a booking has it.
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

    /// What is to be done in the network, slice by slice: its identifier and the action.
    pub fn todo(&self) -> impl Iterator<Item = (&str, Option<Action>)> {
        self.slices.values().filter_map(|s| Some((s.id.as_str(), s.plan.as_ref()?.next().ok())))
    }

    /// Whether a slice waits for `action`, and for the change that was under way in `before`: what was learnt of the action
    /// then counts now. The action alone does not tell, since a slice that is removed begins with the same as one that is
    /// made.
    #[must_use]
    pub fn waits_for(&self, before: &Slice, action: Option<&Action>) -> bool {
        self.slices.get(&before.id).is_some_and(|now| {
            let same = now.state == before.state && now.plan == before.plan && now.wanted == before.wanted;
            same && now.plan.as_ref().is_some_and(|plan| plan.next().ok().as_ref() == action)
        })
    }

    /// Tells how the step went that is to be done for slice `id`; with no step left, ends the plan.
    ///
    /// # Errors
    /// There is no such slice. One without a plan is left as it is.
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
            // Removing neither turns round nor gives up; forced, it goes on.
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
                            // It said that it has nothing: nothing is held back there, nor is it waited for.
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
                // What it should have now, and what cells are told again where they have something else.
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

    /// A slice that is gone with its NEST as it was sent, and the UEs that had it. A cell that refused the place may have the UE in another one yet.
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

    /// What a UE asks a slice of its own to promise it at least, bit/s: the slice grows within its maximum and what is
    /// left. Nothing where it promises as much.
    ///
    /// # Errors
    /// It is not the UE's; it is not running; its maximum, or an access, has too little.
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
            // One that failed is tried again as its operator asked for it.
            return Err(Illegal { from: slice.state.name(), what: "grow" }.into());
        }
        let asked = slice.asked().profile;
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
            // It promises as much; that this one needs it is remembered, and not written with every question.
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

    /// Whether what one UE has slices grow by, this one grown to `alone` for it alone, is within its share of each access.
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
                let asked = other.asked().profile;
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

    /// Has a slice promise what its operator asked for and what these UEs need.
    fn regrow(
        &self,
        slice: &Slice,
        needs: BTreeMap<String, Need>,
        now_ms: u64,
    ) -> Result<Vec<Write>, Refusal> {
        let order = Self::order(slice);
        let profile = grown(&order.profile, needs.values());
        let asked = (!needs.is_empty()).then(|| Box::new(order.profile));
        // Where it is: it is not to move because a UE asks.
        let places = slice.applied.keys().cloned().collect();
        let order = SliceRequest { profile, ..order };
        self.change(slice.clone(), order, places, Growth { needs, asked }, now_ms)
    }

    /// Where a slice goes, and what it is promised there. Its guarantee holds on each of its accesses: all of its UEs
    /// may be at one of them.
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
