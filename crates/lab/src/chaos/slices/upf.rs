//! The UPF, and the work of the leading instance for it and for CAMARA clients, as in `node`'s `slice_manager::worker`.

use super::check::{Invariant, Violation};
use super::plan::{Kind, UPF};
use super::system::World as _;
use super::worker::{CellAnswer, CellRequest, Job, RETRY};
use super::world::{Failure, World};
use anabranch_element::time::{Duration, Instant};
use anabranch_slice::manager::camara::KEPT_MS;
use anabranch_slice::record::SessionRule;
use anabranch_slice::{Attachment, Kind as Record, Ue};
use std::collections::BTreeMap;

/// Maximum pause before retrying a session that the UPF could not create.
const BUSY: Duration = Duration::from_secs(30);
/// Maximum pause before retrying a session that the UPF refused.
const REFUSED: Duration = Duration::from_secs(300);

/// A session that the UPF has not created or ended yet.
#[derive(Debug)]
pub struct PendingSession {
    session: Option<SessionRule>,
    state: Option<Attachment>,
    times: u32,
    at: Instant,
}

impl World {
    /// The UPF executes a request. Returns its answer, unless that is lost.
    pub fn upf_does(&mut self, request: CellRequest) -> Option<CellAnswer> {
        let suffers = |world: &Self, of: Kind| world.suffers(UPF).any(|kind| *kind == of);
        let result = match request {
            CellRequest::Session(..) if suffers(self, Kind::UpfBusy) => {
                self.run_state.tally.effect("upf-busy", 1);
                Err("busy".to_owned())
            }
            CellRequest::Session(ue, Some(key)) => {
                if self.upf.iter().any(|(other, has)| *has == key && *other != ue) {
                    Err("refused: another UE has this key".to_owned())
                } else {
                    self.upf.insert(ue, key);
                    Ok(BTreeMap::new())
                }
            }
            CellRequest::Session(ue, None) => {
                self.upf.remove(&ue);
                Ok(BTreeMap::new())
            }
            CellRequest::Sessions => Ok(self.upf.clone()),
            _ => Err("this is a UPF".to_owned()),
        };
        if suffers(self, Kind::UpfAnswerLost) {
            self.run_state.tally.effect("upf-answer-lost", 1);
            return None;
        }
        Some(result)
    }

    /// The UPF loses its sessions, or a third party changes one.
    pub fn upf_changes(&mut self, kind: Kind) {
        let changed = match kind {
            Kind::Beside { ue, key } => {
                let ue = format!("ue{ue}");
                let before = self.upf.remove(&ue);
                if key && before.is_some() {
                    self.upf.insert(ue, "another".into());
                }
                before.is_some()
            }
            _ => !std::mem::take(&mut self.upf).is_empty(),
        };
        self.run_state.tally.effect(kind.name(), changed.into());
    }

    /// Queues jobs for the sessions to be sent to the UPF now.
    pub fn sessions_due(&mut self, n: usize) {
        let now = self.run_state.now;
        let work = &self.instances[n].work;
        if work.silent.contains(&UPF) {
            return;
        }
        let waits = |ue: &Ue| {
            work.pending_sessions.get(&ue.id).is_some_and(|pending| {
                now < pending.at && pending.session == ue.session && pending.state == ue.session_state
            })
        };
        let due: Vec<Ue> =
            self.instances[n].manager.open_sessions().filter(|ue| !waits(ue)).cloned().collect();
        for ue in due.into_iter().rev() {
            self.instances[n].work.queue.push_front(Job::Session(Box::new(ue)));
        }
    }

    /// Processes the result of a session request to the UPF.
    ///
    /// # Errors
    /// The invariant that was violated.
    pub fn record_session_result(
        &mut self,
        n: usize,
        ue: Ue,
        result: Result<(), String>,
    ) -> Result<Result<(), Failure>, Violation> {
        let refused = result.as_ref().is_err_and(|why| why.starts_with("refused"));
        let state = match (&result, ue.leaving) {
            (Ok(()), true) => None,
            (Ok(()), false) => Some(Attachment::Active),
            (Err(why), false) if refused => Some(Attachment::Failed(why.clone())),
            (Err(_), _) => Some(Attachment::Pending),
        };
        let done = self.commit(n, |m| Ok(m.record_session_result(&ue, state.clone())))?;
        let now = self.run_state.now;
        let pending_sessions = &mut self.instances[n].work.pending_sessions;
        if result.is_ok() {
            pending_sessions.remove(&ue.id);
        } else {
            let before = pending_sessions.get(&ue.id).filter(|pending| pending.session == ue.session);
            let times = before.map_or(0, |pending| pending.times);
            let pause = Duration::from_secs(RETRY.as_secs() << times.min(16));
            let at = now + pause.min(if refused { REFUSED } else { BUSY });
            pending_sessions.insert(
                ue.id,
                PendingSession { session: ue.session, state, times: times.saturating_add(1), at },
            );
        }
        Ok(done)
    }

    /// Ends expired sessions and bookings, and sends notifications of status changes.
    ///
    /// # Errors
    /// The invariant that was violated.
    pub fn camara(&mut self, n: usize) -> Result<Result<(), Failure>, Violation> {
        let now_ms = self.clock_ms(n);
        for due in self.instances[n].manager.camara_due(now_ms) {
            let mut notification = None;
            let done = self.commit(n, |m| {
                let (writes, told) = m.camara_settled(&due, now_ms);
                notification = told;
                Ok(writes)
            })?;
            self.run_state.note(|| format!("instance {n}: {due:?}: {notification:?}: {done:?}"));
            if done.is_err() {
                return Ok(done);
            }
            if notification.is_some_and(|notification| notification.info == Some("DURATION_EXPIRED"))
                && let Err(what) = self.clients.told_expired(&due.1)
            {
                return Err(self.run_state.violation(Invariant::Returned, what));
            }
        }
        Ok(Ok(()))
    }

    /// Checks that bookings and QoS sessions are deleted, once there is no slice left and they were shown for long enough.
    ///
    /// # Errors
    /// One of them still exists.
    pub fn forgotten(&mut self) -> Result<(), Violation> {
        self.pass(Duration::from_millis(KEPT_MS + 20_000))?;
        let (m, now_ms) = (&self.instances[0].manager, self.clock_ms(0));
        let long_ago =
            |v: &serde_json::Value| v["ended_ms"].as_u64().is_some_and(|at| at + KEPT_MS + 15_000 < now_ms);
        let live = m.documents(Record::Booking).filter(|(_, v)| !v["ended_ms"].is_u64());
        let old = m.documents(Record::Booking).chain(m.documents(Record::Qod)).filter(|(_, v)| long_ago(v));
        match live.chain(old).next() {
            Some((id, v)) => {
                Err(self.run_state.violation(Invariant::Empty, format!("{id} is still there: {v}")))
            }
            None => Ok(()),
        }
    }
}
