//! The round in which the leading instance changes and checks cells, as in `node`'s `slice_manager::worker`, with requests and
//! answers as events. `upf.rs` has the part for the UPF and for CAMARA clients.

use super::check::{Invariant, Violation};
use super::plan::UPF;
use super::upf::PendingSession;
use super::world::{Failure, Instance, World};
use anabranch_element::time::{Duration, Instant};
use anabranch_slice::{Action, Expected, PendingPlacement, Released, Slice, SliceShare, State, Step, Ue};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum time to wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed step of a removal, or a failure of the store.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// Number of failed checks after which a cell counts as bad.
const FAILED_CHECKS_UNTIL_BAD: u32 = 2;
/// How long an instance leads before it must renew its lease.
const LEASE: Duration = Duration::from_secs(12);

/// A unit of work.
#[derive(Debug, Clone, PartialEq)]
pub enum Job {
    /// A step of the plan of a slice.
    Step(String, Option<Action>),
    /// Allows requests to cells that did not answer.
    AllowRequests,
    /// A check of a cell.
    CheckCell(usize),
    /// Repeats the configuration of a cell that deviates; with the deviation.
    Reconfigure(usize, String),
    /// Queues jobs for places that were not sent yet.
    PlacementsToSend,
    /// Sends a place to the cell of the first of these accesses.
    Attach(PendingPlacement, Vec<String>),
    /// A check of the slices of a cell's UEs.
    Places(usize),
    /// Queues jobs for UEs that are to be returned to the default slice.
    Released,
    /// Returns these UEs to the default slice at this cell and all later ones; with the index of the next one to send.
    Release(usize, Vec<Released>, usize),
    /// Queues jobs for sessions that the UPF has not created or ended.
    Sessions,
    /// Has the UPF create or end the session of a UE.
    Session(Box<Ue>),
    /// A check of the sessions of the UPF.
    CheckUpf,
    /// Ends expired sessions and bookings, and sends notifications.
    Camara,
}

/// A request to a cell.
#[derive(Debug, Clone, PartialEq)]
pub enum CellRequest {
    /// Set exactly these shares.
    Shares(Vec<SliceShare>),
    /// Report whether this state is present.
    Health(Expected),
    /// Move a UE to a slice.
    Attach(String, String),
    /// Return a UE to the default slice, if it is present.
    Release(String),
    /// Report the slices of the UEs.
    Places,
    /// UPF: create the session of a UE with this key, or end it.
    Session(String, Option<String>),
    /// UPF: report the keys of the sessions.
    Sessions,
}

/// An answer of a cell: the slice of each UE for [`CellRequest::Places`], its key for [`CellRequest::Sessions`], else empty.
pub type CellAnswer = Result<BTreeMap<String, String>, String>;

/// Work of an instance.
#[derive(Debug, Default)]
pub struct Work {
    /// When it continues.
    pub next: Instant,
    pub(super) queue: VecDeque<Job>,
    /// The pending request and its cell.
    waiting: Option<(Job, usize)>,
    /// The slice as it was when its step began.
    before: Option<Slice>,
    /// Number of the pending request.
    call: u64,
    lease_until: Instant,
    failed_checks: BTreeMap<usize, u32>,
    /// Cells that have not answered since the last check: no further request is sent to them before the next one.
    pub(super) silent: BTreeSet<usize>,
    last_checked: Option<Instant>,
    /// Sessions that the UPF has not created or ended.
    pub(super) pending_sessions: BTreeMap<String, PendingSession>,
}

impl Work {
    /// Wakes the instance because there is work.
    pub fn wake(&mut self, now: Instant) {
        if self.waiting.is_none() && self.queue.is_empty() {
            self.next = self.next.min(now);
        }
    }
}

/// The access of a cell.
pub fn access(cell: usize) -> String {
    format!("cell-{cell}")
}

/// Index of the cell of an access.
fn index(access: &str) -> usize {
    access.trim_start_matches("cell-").parse().unwrap_or(0)
}

impl World {
    /// Whether this instance is the leader, which changes the network.
    fn leads(&mut self, n: usize) -> bool {
        let now = self.run_state.now;
        if now + LEASE / 2 > self.instances[n].work.lease_until && self.store_answers() {
            let free = self.lease.is_none_or(|(owner, until)| owner == n || until <= now);
            self.instances[n].work.lease_until = if free { now + LEASE } else { Instant::ZERO };
            if free {
                self.lease = Some((n, now + LEASE));
            }
        }
        now < self.instances[n].work.lease_until
    }

    /// Continues the work of an instance: handles a timeout, starts the next job, or a new round.
    ///
    /// # Errors
    /// The invariant that was violated.
    pub fn work(&mut self, n: usize) -> Result<(), Violation> {
        if let Some((job, cell)) = self.instances[n].work.waiting.take() {
            let work = &mut self.instances[n].work;
            work.call += 1;
            work.silent.insert(cell);
            return self.finish(n, job, Err("no answer".into()));
        }
        let now = self.run_state.now;
        if !self.leads(n) {
            self.instances[n].work.queue.clear();
            self.instances[n].work.next = now + RETRY;
            return Ok(());
        }
        match self.instances[n].work.queue.pop_front() {
            Some(job) => self.start(n, job),
            None => self.round(n),
        }
    }

    fn round(&mut self, n: usize) -> Result<(), Violation> {
        let (now, now_ms) = (self.run_state.now, self.clock_ms(n));
        if !self.store_answers() {
            self.instances[n].work.next = now + RETRY;
            return Ok(());
        }
        self.take(n)?;
        if !self.instances[n].manager.due(now_ms).is_empty() {
            let before = self.instances[n].manager.due(now_ms);
            match self.commit(n, move |m| Ok(m.due(now_ms)))? {
                Ok(()) => {}
                Err(_) => {
                    self.instances[n].work.next = now + RETRY;
                    return Ok(());
                }
            }
            self.run_state.tally.count_check(Invariant::NoSpin);
            if self.instances[n].manager.due(now_ms) == before {
                return Err(self
                    .run_state
                    .violation(Invariant::NoSpin, format!("due, and due again: {before:?}")));
            }
        }
        let todo: Vec<Job> =
            self.instances[n].manager.todo().map(|(id, a)| Job::Step(id.to_owned(), a)).collect();
        let interval = Duration::from_millis(self.plan.world.look_ms);
        let work = &mut self.instances[n].work;
        work.queue.extend(todo);
        work.queue.push_back(Job::PlacementsToSend);
        let clients = self.plan.world.clients_ms > 0;
        if clients {
            work.queue.push_back(Job::Sessions);
        }
        if work.last_checked.is_none_or(|at| now >= at + interval) {
            work.last_checked = Some(now);
            work.queue.push_back(Job::AllowRequests);
            if clients {
                work.queue.push_back(Job::CheckUpf);
            }
            work.queue.extend((0..self.plan.world.cells_mbps.len()).map(Job::CheckCell));
            work.queue.push_back(Job::Released);
        }
        if clients {
            work.queue.push_back(Job::Camara);
        }
        work.next = now;
        Ok(())
    }

    fn start(&mut self, n: usize, mut job: Job) -> Result<(), Violation> {
        // The state of an access whose shares are being changed is not significant.
        if let Job::CheckCell(cell) = job
            && self.instances[n].manager.expected_configuration(&access(cell)).is_none()
        {
            self.instances[n].work.next = self.run_state.now;
            return Ok(());
        }
        if let Job::Step(id, _) = &job {
            self.instances[n].work.before = self.instances[n].manager.slice(id).ok().cloned();
        }
        let manager = &self.instances[n].manager;
        if let Job::Release(cell, names, 0) = &mut job {
            manager.note_placed(&access(*cell), names);
        }
        let request = match &job {
            Job::Step(id, Some(action)) => match action {
                Action::Do(Step::Shares { access }) | Action::Undo(Step::Shares { access }) => {
                    Some((index(access), CellRequest::Shares(manager.shares(access, id, action))))
                }
                Action::Do(Step::Verify { access }) => {
                    Some((index(access), CellRequest::Health(manager.verified(access, id, action))))
                }
                _ => None,
            },
            Job::Step(_, None) => None,
            Job::CheckCell(cell) => manager
                .expected_configuration(&access(*cell))
                .map(|expected| (*cell, CellRequest::Health(expected))),
            Job::Reconfigure(cell, _) => {
                Some((*cell, CellRequest::Shares(manager.shares_now(&access(*cell)))))
            }
            Job::Attach(place, accesses) => {
                let to = accesses.first().zip(place.cell_ue.clone());
                to.map(|(access, ue)| (index(access), CellRequest::Attach(ue, place.cell_name.clone())))
            }
            Job::Places(cell) => Some((*cell, CellRequest::Places)),
            Job::Release(cell, names, next) => {
                let name = names.get(*next).filter(|name| !name.placed_at.contains(&access(*cell)));
                name.map(|name| (*cell, CellRequest::Release(name.cell_ue.clone())))
            }
            Job::Session(ue) => {
                let key = ue.session.as_ref().map(|session| session.public_key.clone());
                Some((UPF, CellRequest::Session(ue.id.clone(), key)))
            }
            Job::CheckUpf => Some((UPF, CellRequest::Sessions)),
            Job::AllowRequests | Job::PlacementsToSend | Job::Released | Job::Sessions | Job::Camara => None,
        };
        match request {
            None => self.finish(n, job, Ok(BTreeMap::new())),
            Some((cell, _)) if self.instances[n].work.silent.contains(&cell) => {
                self.finish(n, job, Err("no answer".into()))
            }
            Some((cell, request)) => {
                let until = self.run_state.now + ANSWER_TIMEOUT;
                let work = &mut self.instances[n].work;
                work.call += 1;
                work.next = until;
                work.waiting = Some((job, cell));
                let call = work.call;
                self.send(n, call, cell, request);
                Ok(())
            }
        }
    }

    /// A cell answers. The answer is ignored if the request has timed out.
    ///
    /// # Errors
    /// The invariant that was violated.
    pub fn cell_answers(&mut self, n: usize, call: u64, result: CellAnswer) -> Result<(), Violation> {
        if self.instances[n].work.call != call {
            return Ok(());
        }
        match self.instances[n].work.waiting.take() {
            Some((job, _)) => self.finish(n, job, result),
            None => Ok(()),
        }
    }

    fn finish(&mut self, n: usize, job: Job, result: CellAnswer) -> Result<(), Violation> {
        let (now, now_ms) = (self.run_state.now, self.clock_ms(n));
        self.run_state.note(|| format!("instance {n}: {job:?}: {result:?}"));
        let mut next = now;
        let done = match job {
            Job::Step(id, action) => {
                let failed = result.is_err();
                let step = id.clone();
                let before = self.instances[n].work.before.take();
                let done = self.commit(n, move |m| {
                    // Another instance or a command may have advanced the slice in the meantime.
                    let same = before.is_some_and(|before| m.waits_for(&before, action.as_ref()));
                    if same { m.step_done(&step, result.map(drop), now_ms) } else { Ok(Vec::new()) }
                })?;
                let slice = self.instances[n].manager.slice(&id);
                if failed && slice.is_ok_and(|slice| slice.state == State::Terminating) {
                    next = now + RETRY;
                }
                done
            }
            Job::AllowRequests => {
                self.instances[n].work.silent.clear();
                Ok(())
            }
            Job::CheckCell(cell) => match result {
                Ok(_) => {
                    self.queue_places(n, cell);
                    self.report_health(n, cell, None)?
                }
                Err(why) => {
                    self.instances[n].work.queue.push_front(Job::Reconfigure(cell, why));
                    Ok(())
                }
            },
            Job::Reconfigure(cell, why) => {
                if result.is_ok() {
                    self.queue_places(n, cell);
                }
                self.report_health(n, cell, Some(why))?
            }
            Job::PlacementsToSend => {
                let Instance { manager, work, .. } = &mut self.instances[n];
                for place in manager.pending_placements(1000).into_iter().rev() {
                    let accesses = place.accesses.clone();
                    work.queue.push_front(Job::Attach(place, accesses));
                }
                if work.queue.is_empty() {
                    next = now + Duration::from_millis(self.plan.world.look_ms).min(RETRY);
                }
                Ok(())
            }
            Job::Attach(place, mut accesses) => {
                accesses.drain(..accesses.len().min(1));
                if result.is_err() && !accesses.is_empty() {
                    self.instances[n].work.queue.push_front(Job::Attach(place, accesses));
                    Ok(())
                } else {
                    self.commit(n, |m| Ok(m.record_placements(vec![(place, result.map(drop))])))?
                }
            }
            Job::Places(cell) => match result {
                Ok(there) => self.commit(n, |m| Ok(m.strays(&access(cell), &there)))?,
                Err(_) => Ok(()),
            },
            Job::Sessions => {
                self.sessions_due(n);
                Ok(())
            }
            Job::Session(ue) => self.record_session_result(n, *ue, result.map(drop))?,
            Job::CheckUpf => match result {
                Ok(there) => self.commit(n, |m| Ok(m.sessions_lost(&there)))?,
                Err(_) => Ok(()),
            },
            Job::Camara => {
                next = now + Duration::from_millis(self.plan.world.look_ms).min(RETRY);
                self.camara(n)?
            }
            Job::Released => {
                let Instance { manager, work, .. } = &mut self.instances[n];
                let names = manager.released(1000);
                if !names.is_empty() {
                    work.queue.push_front(Job::Release(0, names, 0));
                }
                Ok(())
            }
            Job::Release(cell, mut names, mut told) => {
                match result {
                    Ok(_) => told += 1,
                    // No further request to this cell in this round.
                    Err(_) => names.truncate(told),
                }
                if told < names.len() {
                    self.instances[n].work.queue.push_front(Job::Release(cell, names, told));
                    Ok(())
                } else if cell + 1 < self.plan.world.cells_mbps.len() && !names.is_empty() {
                    self.instances[n].work.queue.push_front(Job::Release(cell + 1, names, 0));
                    Ok(())
                } else {
                    self.commit(n, |m| Ok(m.put_back(&names)))?
                }
            }
        };
        let work = &mut self.instances[n].work;
        if matches!(done, Err(Failure::Unchanged | Failure::Unknown)) {
            // The round ends; the next one starts from the stored records.
            work.queue.clear();
            next = now + RETRY;
        }
        work.next = next;
        Ok(())
    }

    fn queue_places(&mut self, n: usize, cell: usize) {
        let Instance { manager, work, .. } = &mut self.instances[n];
        if manager.has_place(&access(cell)) {
            work.queue.push_front(Job::Places(cell));
        }
    }

    fn report_health(
        &mut self,
        n: usize,
        cell: usize,
        problem: Option<String>,
    ) -> Result<Result<(), Failure>, Violation> {
        let now_ms = self.clock_ms(n);
        let failures = self.instances[n].work.failed_checks.entry(cell).or_default();
        *failures = if problem.is_some() { failures.saturating_add(1) } else { 0 };
        if problem.is_some() && *failures < FAILED_CHECKS_UNTIL_BAD {
            return Ok(Ok(()));
        }
        let access = access(cell);
        if self.instances[n].manager.health(&access, problem.as_deref(), now_ms).is_empty() {
            return Ok(Ok(()));
        }
        self.commit(n, move |m| Ok(m.health(&access, problem.as_deref(), now_ms)))
    }
}
