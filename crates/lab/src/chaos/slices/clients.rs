//! CAMARA clients and the operator: bookings, QoS sessions, and sessions of UEs at the UPF. Records the answers and checks that
//! they are honoured.

use super::check::{Invariant, Violation};
use super::commands::TENANTS;
use super::world::{DEFAULT_SLICE, Failure, World};
use anabranch_slice::manager::camara::{KEPT_MS, MAX_DURATION_S};
use anabranch_slice::record::SessionRule;
use anabranch_slice::{Attachment, Kind as Record, Manager, Refusal, Ue, Write};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of bookings and of QoS sessions per tenant.
const QUOTA: usize = 5;
/// Maximum number of concurrent QoS sessions requested.
const SESSIONS: usize = 40;

/// Whether the operator assigned a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assignment {
    /// Assigned and acknowledged.
    Yes,
    /// It is unknown whether the latest command was stored.
    Unsure,
}

/// An acknowledged QoS session.
#[derive(Debug)]
struct Qos {
    /// Possible end times, Unix milliseconds: as acknowledged, and as requested without an answer.
    ends: Vec<u64>,
    closed: bool,
}

/// State as known to the CAMARA clients and the operator.
#[derive(Debug, Default)]
pub struct Clients {
    next: u64,
    sessions: BTreeMap<String, Qos>,
    bookings: BTreeSet<String>,
    places: BTreeMap<(String, String), Assignment>,
    /// QoS sessions and bookings whose end was notified.
    expired: BTreeSet<String>,
    /// The latest change that was checked.
    last_checked: i64,
}

impl Clients {
    /// Records the outcome of assigning or removing a place.
    pub fn placed(&mut self, ue: &str, slice: &str, given: bool, done: &Result<(), Failure>) {
        let key = (ue.to_owned(), slice.to_owned());
        match done {
            Ok(()) if given => drop(self.places.insert(key, Assignment::Yes)),
            Ok(()) => drop(self.places.remove(&key)),
            Err(Failure::Unknown) => drop(self.places.insert(key, Assignment::Unsure)),
            Err(_) => {}
        }
    }

    /// Records the outcome of forgetting a UE.
    pub fn forgotten(&mut self, ue: &str, done: &Result<(), Failure>) {
        match done {
            Ok(()) => self.places.retain(|(of, _), _| of != ue),
            Err(Failure::Unknown) => {
                self.places
                    .iter_mut()
                    .filter(|((of, _), _)| of == ue)
                    .for_each(|(_, g)| *g = Assignment::Unsure);
            }
            Err(_) => {}
        }
    }

    /// Records the notification of the end of a QoS session or booking.
    ///
    /// # Errors
    /// The end had been notified before.
    pub fn told_expired(&mut self, id: &str) -> Result<(), String> {
        match self.expired.insert(id.to_owned()) {
            true => Ok(()),
            false => Err(format!("the end of {id} was told twice")),
        }
    }
}

/// Number of documents of a kind that a tenant owns.
fn owned(m: &Manager, kind: Record, owner: &str) -> usize {
    m.documents(kind).filter(|(_, v)| v["owner"] == owner).count()
}

fn room(m: &Manager, kind: Record, owner: Option<&str>) -> Result<(), Refusal> {
    match owner {
        Some(owner) if owned(m, kind, owner) >= QUOTA => {
            Err(Refusal::Full { what: "documents", most: QUOTA as u64 })
        }
        _ => Ok(()),
    }
}

impl World {
    /// A client or the operator sends a request.
    ///
    /// # Errors
    /// The invariant that was violated.
    pub fn client(&mut self) -> Result<(), Violation> {
        let n = self.client_draw.below(self.instances.len() as u64) as usize;
        if !self.instances[n].up {
            return Ok(());
        }
        let now_ms = self.clock_ms(n);
        let owner = self.client_draw.of(&[None, Some(TENANTS[0]), Some(TENANTS[1])]);
        let ue = format!("ue{}", self.client_draw.below(self.plan.world.ues.into()));
        let slices: Vec<String> = self.instances[n].manager.slices().keys().cloned().collect();
        let slice = match slices.len() as u64 {
            0 => String::new(),
            of => slices[self.client_draw.below(of) as usize].clone(),
        };
        let sessions: Vec<&String> = self.clients.sessions.keys().collect();
        let session = match sessions.len() as u64 {
            0 => String::new(),
            of => sessions[self.client_draw.below(of) as usize].clone(),
        };
        match self.client_draw.below(12) {
            0 | 1 if slices.len() < 12 => self.book(n, owner, now_ms),
            2 => {
                let bookings: Vec<&String> = self.clients.bookings.iter().collect();
                let Some(id) = bookings.first().map(|id| (*id).clone()) else { return Ok(()) };
                let done = self.commit(n, |m| Ok(m.unbook(&id, now_ms)))?;
                self.run_state.note(|| format!("instance {n}: unbook {id}: {done:?}"));
                self.clients.bookings.remove(&id);
                Ok(())
            }
            0..=5 if self.clients.sessions.len() < SESSIONS => {
                let seconds = self.client_draw.between((1, 60));
                self.clients.next += 1;
                let id = format!("{:08}-session", self.clients.next);
                let given = json!({"request": {"duration": seconds}, "owner": owner});
                let done = self.commit(n, |m| {
                    room(m, Record::Qod, owner)?;
                    m.open_session(&id, (&ue, &slice), (given, seconds), now_ms)
                })?;
                self.run_state
                    .note(|| format!("instance {n}: session {id} {ue} {slice} {seconds} s: {done:?}"));
                if done.is_ok() {
                    let ends = vec![now_ms + seconds * 1000];
                    self.clients.sessions.insert(id, Qos { ends, closed: false });
                }
                Ok(())
            }
            6 => {
                let more = self.client_draw.of(&[1, 20, 60, MAX_DURATION_S, u64::MAX]);
                let mut end = None;
                let done = self.commit(n, |m| {
                    let v = m.document(Record::Qod, &session).and_then(|v| m.extended(v, more, now_ms));
                    end = v.as_ref().and_then(|v| v["end_ms"].as_u64());
                    let record = v.map(|v| Some(anabranch_slice::Record::Document(v)));
                    Ok(record
                        .map(|record| Write { kind: Record::Qod, id: session.clone(), record })
                        .into_iter()
                        .collect())
                })?;
                self.run_state.note(|| format!("instance {n}: extend {session} {more} s, {end:?}: {done:?}"));
                if let (Some(end), Some(known)) = (end, self.clients.sessions.get_mut(&session)) {
                    match done {
                        Ok(()) => known.ends = vec![end],
                        Err(Failure::Unknown) => known.ends.push(end),
                        Err(_) => {}
                    }
                }
                Ok(())
            }
            7 => {
                let done = self.commit(n, |m| {
                    Ok(m.document(Record::Qod, &session)
                        .map(|v| m.close_session(&session, v))
                        .unwrap_or_default())
                })?;
                self.run_state.note(|| format!("instance {n}: close {session}: {done:?}"));
                if let Some(known) = self.clients.sessions.get_mut(&session) {
                    known.closed |= matches!(done, Ok(()) | Err(Failure::Unknown));
                }
                Ok(())
            }
            8 | 9 => {
                // Occasionally the key of another UE.
                let key = format!("key-{}", self.client_draw.below(u64::from(self.plan.world.ues) * 3));
                let done = self.commit(n, |m| {
                    let ue = m.ue(&ue)?.clone();
                    if ue.leaving {
                        return Err(Refusal::Unknown("UE that stays", ue.id));
                    }
                    let session = Some(SessionRule { public_key: key.clone(), rules: Vec::new() });
                    Ok(vec![Write::ue(Ue { session, session_state: Some(Attachment::Pending), ..ue })])
                })?;
                self.run_state.note(|| format!("instance {n}: {ue} has {key}: {done:?}"));
                Ok(())
            }
            10 => {
                // PUT /v1/ues/{ue}: an existing place remains unchanged.
                let done = self.commit(n, |m| {
                    let has = m.ue(&ue)?.slices.iter().any(|place| place.slice == slice);
                    let mut writes = if has { Vec::new() } else { m.assign(&ue, &slice, None)? };
                    writes.extend(m.place_stays(&ue, &slice, true));
                    Ok(writes)
                })?;
                self.run_state.note(|| format!("instance {n}: {ue} is to be in {slice}: {done:?}"));
                self.clients.placed(&ue, &slice, true, &done);
                Ok(())
            }
            _ => {
                let done = self.commit(n, |m| {
                    let mut writes = m.unassign(&ue, &slice)?;
                    writes.extend(m.place_stays(&ue, &slice, false));
                    Ok(writes)
                })?;
                self.run_state.note(|| format!("instance {n}: {ue} is not to be in {slice}: {done:?}"));
                self.clients.placed(&ue, &slice, false, &done);
                Ok(())
            }
        }
    }

    fn book(&mut self, n: usize, owner: Option<&str>, now_ms: u64) -> Result<(), Violation> {
        let seconds = self.client_draw.between((1, 90));
        let most = self.plan.world.cells_mbps.iter().max().copied().unwrap_or(1) * 1_000;
        let kbps = self.client_draw.between((1, most * 2 / 3)) as f64;
        let mut order = self.client_order(kbps);
        // The name of an existing slice, or one that cells use themselves.
        let names: Vec<String> =
            self.instances[n].manager.slices().values().map(|s| s.cell_name.clone()).collect();
        order.name = match self.client_draw.below(6) {
            0 => DEFAULT_SLICE.to_owned(),
            1 | 2 if !names.is_empty() => names[self.client_draw.below(names.len() as u64) as usize].clone(),
            // The name that another slice would get if its name were taken.
            3 => format!("name-0-{:08}", self.clients.next + 2),
            _ => "name-0".to_owned(),
        };
        order.owner = owner.map(str::to_owned);
        self.clients.next += 1;
        let id = format!("{:08}-booking", self.clients.next);
        let end = self.client_draw.percent(80).then_some(now_ms + seconds * 1000);
        let given = json!({"request": {}, "owner": owner});
        let done = self.commit(n, |m| {
            room(m, Record::Booking, owner)?;
            m.book(&id, order, (given, end), now_ms)
        })?;
        self.run_state.note(|| format!("instance {n}: book {id} {kbps} kbit/s until {end:?}: {done:?}"));
        if done.is_ok() {
            self.clients.bookings.insert(id);
        }
        Ok(())
    }

    /// Checks that the answers to clients are honoured.
    ///
    /// # Errors
    /// The invariant that was violated.
    pub fn clients_served(&mut self) -> Result<(), Violation> {
        let fresh = |i: &&super::world::Instance| i.revision == self.store.revision;
        let Some(instance) = self.instances.iter().find(fresh) else { return Ok(()) };
        if instance.revision == self.clients.last_checked {
            return Ok(());
        }
        let (m, revision) = (&instance.manager, instance.revision);
        self.run_state.tally.count_check(Invariant::Returned);
        self.run_state.tally.count_check(Invariant::Unique);
        if let Some((invariant, what)) = self.unserved(m) {
            return Err(self.run_state.violation(invariant, what));
        }
        self.clients.last_checked = revision;
        Ok(())
    }

    fn unserved(&self, m: &Manager) -> Option<(Invariant, String)> {
        let mut names = BTreeSet::from([DEFAULT_SLICE]);
        if let Some(slice) = m.slices().values().find(|s| !names.insert(&s.cell_name)) {
            return Some((Invariant::Unique, format!("two slices of a cell are called {}", slice.cell_name)));
        }
        for tenant in TENANTS {
            let of = |kind| owned(m, kind, tenant);
            if of(Record::Qod) > QUOTA || of(Record::Booking) > QUOTA {
                return Some((Invariant::Admitted, format!("{tenant} has more than {QUOTA}")));
            }
        }
        let is_live = |v: &Value| !v["ended_ms"].is_u64();
        let live: BTreeSet<(&str, &str)> = m
            .documents(Record::Qod)
            .filter(|(_, v)| is_live(v))
            .filter_map(|(_, v)| Some((v["ue"].as_str()?, v["slice"].as_str()?)))
            .collect();
        for ue in m.ues().values() {
            for place in &ue.slices {
                let given = self.clients.places.get(&(ue.id.clone(), place.slice.clone()));
                if given.is_none() && !live.contains(&(ue.id.as_str(), place.slice.as_str())) {
                    let what = format!(
                        "{} is in {}, which neither a session nor the operator has",
                        ue.id, place.slice
                    );
                    return Some((Invariant::Returned, what));
                }
            }
        }
        for ((ue, slice), _) in self.clients.places.iter().filter(|(_, given)| **given == Assignment::Yes) {
            if let (Ok(ue), Ok(_)) = (m.ue(ue), m.slice(slice))
                && !ue.leaving
                && !ue.slices.iter().any(|place| place.slice == *slice)
            {
                let what = format!("{} is not in {slice}, where the operator put it", ue.id);
                return Some((Invariant::Returned, what));
            }
        }
        if self.clocks_agree {
            let early = |v: &Value| {
                v["ended_ms"].as_u64().zip(v["end_ms"].as_u64()).is_some_and(|(at, end)| at < end)
            };
            if let Some((id, v)) = m.documents(Record::Qod).find(|(_, v)| early(v)) {
                return Some((Invariant::Returned, format!("{id} ended before its time: {v}")));
            }
        }
        None
    }

    /// Checks that every acknowledged QoS session exists, with the acknowledged end.
    pub fn sessions_remembered(&self, n: usize) -> Option<String> {
        let (m, now_ms) = (&self.instances[n].manager, self.clock_ms(n));
        for (id, known) in self.clients.sessions.iter().filter(|(_, known)| !known.closed) {
            match m.document(Record::Qod, id) {
                Some(v) if v["end_ms"].as_u64().is_some_and(|end| known.ends.contains(&end)) => {}
                Some(v) => return Some(format!("{id} was to end at {:?}: {v}", known.ends)),
                None if known.ends.iter().any(|end| end + KEPT_MS <= now_ms) || !self.clocks_agree => {}
                None => return Some(format!("instance {n} has no session {id}, which was answered")),
            }
        }
        None
    }

    /// A deviation from the requests at the UPF or for the CAMARA clients, if any.
    pub fn unsettled_clients(&self, at: usize) -> Option<String> {
        let m = &self.instances[at].manager;
        if let Some(due) = m.camara_due(self.clock_ms(at)).first() {
            return Some(format!("{due:?}"));
        }
        for ue in m.ues().values() {
            let (has, wanted) = (self.upf.get(&ue.id), ue.session.as_ref().map(|s| &s.public_key));
            let is_taken = |key: &String| self.upf.iter().any(|(other, k)| k == key && *other != ue.id);
            let fits = match &ue.session_state {
                None => !ue.leaving,
                Some(Attachment::Active) => has == wanted,
                Some(Attachment::Failed(_)) => wanted.is_some_and(is_taken),
                Some(Attachment::Pending) => false,
            };
            if !fits {
                return Some(format!(
                    "{}: {:?}; the UPF has {has:?}, not {wanted:?}",
                    ue.id, ue.session_state
                ));
            }
        }
        let unknown = self.upf.keys().find(|ue| m.ue(ue).is_err());
        // A late message may recreate a session; the manager does not check for that.
        unknown.filter(|_| !self.late).map(|ue| format!("the UPF has a session of {ue}"))
    }
}
