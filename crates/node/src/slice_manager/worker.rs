//! Background tasks: reading changes of other instances and, in one instance at a time, configuring the
//! network, health checks, and ending what has expired.

use super::callbacks::Callbacks;
use super::camara::{BOOKING_EVENT, QOD_EVENT};
use super::engine::Engine;
use super::now_ms;
use super::southbound::{Failure, Gnb, Network, Southbound, Upf};
use anabranch_slice::manager::camara::SinkNotification;
use anabranch_slice::record::SessionRule;
use anabranch_slice::{Action, Attachment, Expected, Kind, Manager, SliceShare, State, Step, Ue};
use futures_util::future::join_all;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Duration of the lease to change the network, milliseconds. Once half of it has passed, it is extended
/// before every step.
const LEASE_MS: u64 = 12_000;
/// Pause after a failed step of a removal.
const RETRY: Duration = Duration::from_secs(1);
/// Longest pause before a retry of a session that the UPF could not create.
const BUSY: Duration = Duration::from_secs(30);
/// Longest pause before a retry of a session that the UPF refused.
const REFUSED: Duration = Duration::from_secs(300);
/// Number of consecutive failed health checks after which an access counts as bad.
const FAILURES_TO_REPORT: u32 = 2;
/// Number of cells contacted in parallel, so that unresponsive cells delay each other little.
const SIDE_BY_SIDE: usize = 32;

/// Sets the shares of a cell, if it has an agent; returns its answer, or the reason why it is not contacted.
async fn send_cell_shares(
    cell: Result<Option<&Gnb>, String>,
    shares: &[SliceShare],
) -> Result<Result<(), Failure>, String> {
    match cell? {
        Some(cell) => Ok(cell.shares(shares).await),
        None => Ok(Ok(())),
    }
}

/// Reads changes of other instances when they are notified, and every few seconds in addition.
pub async fn follow(engine: Arc<Engine>) -> anyhow::Result<()> {
    let mut listener = engine.store().listen().await?;
    loop {
        let lost = match &mut listener {
            // The listener restores a lost connection; the timeout covers notifications missed meanwhile.
            Some(listener) => {
                matches!(tokio::time::timeout(Duration::from_secs(2), listener.recv()).await, Ok(Err(_)))
            }
            None => std::future::pending().await,
        };
        if lost {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        if let Err(error) = engine.sync().await {
            tracing::warn!("database: {error:#}");
        }
    }
}

/// Configures the network while this instance has the lease.
pub async fn southbound(
    engine: Arc<Engine>,
    network: Network,
    callbacks: Arc<Callbacks>,
    owner: String,
    interval: Duration,
) -> anyhow::Result<()> {
    let mut work = Reconciler {
        engine,
        network: network.into(),
        callbacks,
        owner,
        lease_term: LeaseTerm::default(),
        failures: BTreeMap::new(),
        retry_at: BTreeMap::new(),
        pending_sessions: BTreeMap::new(),
        unresponsive: BTreeMap::new(),
        upf_unresponsive: false,
        logged: BTreeMap::new(),
        next_check: Instant::now(),
        interval,
    };
    let mut changes = work.engine.changes();
    loop {
        changes.borrow_and_update();
        let mut again = false;
        if work.holds_lease().await {
            match work.round().await {
                Ok(more) => again = more,
                Err(problem) => tracing::warn!("{}", problem.detail),
            }
        }
        if !again {
            // Woken by a change, or by the time of the next check.
            let _ = tokio::time::timeout(interval.min(Duration::from_secs(1)), changes.changed()).await;
        }
    }
}

struct Reconciler {
    engine: Arc<Engine>,
    network: Arc<Network>,
    callbacks: Arc<Callbacks>,
    owner: String,
    lease_term: LeaseTerm,
    /// Number of consecutive failures per access.
    failures: BTreeMap<String, u32>,
    /// Slices whose removal failed at a step, with the time of the next attempt.
    retry_at: BTreeMap<String, Instant>,
    /// Sessions that the UPF has not created or ended yet, by UE.
    pending_sessions: BTreeMap<String, PendingSession>,
    /// Accesses whose cell has not answered since the last check, with the cause; they are not contacted
    /// before the next one.
    unresponsive: BTreeMap<String, String>,
    /// The same for the UPF.
    upf_unresponsive: bool,
    /// The problem of each access as it was last logged.
    logged: BTreeMap<String, String>,
    /// Time of the next health check.
    next_check: Instant,
    interval: Duration,
}

/// The period in which this instance may change the network, Unix time in milliseconds. A time before its
/// beginning means that the clock was set back. Then the lease in the database lasts longer than intended,
/// and no other instance would take over if this one failed.
#[derive(Debug, Clone, Copy, Default)]
struct LeaseTerm {
    from: u64,
    until: u64,
}

impl LeaseTerm {
    /// Whether the lease must be acquired or extended.
    const fn is_due(self, now: u64) -> bool {
        now < self.from || now + LEASE_MS / 2 > self.until
    }

    const fn holds(self, now: u64) -> bool {
        self.from <= now && now < self.until
    }
}

/// A session that the UPF has not created or ended yet.
struct PendingSession {
    session: Option<SessionRule>,
    state: Option<Attachment>,
    /// Number of consecutive failures.
    times: u32,
    /// Time of the next attempt, unless the request changes.
    at: Instant,
}

impl PendingSession {
    fn waits(&self, ue: &Ue, now: Instant) -> bool {
        now < self.at && self.session == ue.session && self.state == ue.session_state
    }
}

impl Reconciler {
    /// Whether this instance has the lease.
    async fn holds_lease(&mut self) -> bool {
        let now = now_ms();
        if self.lease_term.is_due(now) {
            let until = now + LEASE_MS;
            let lease = self.engine.store().lease(&self.owner, until as i64, now as i64).await;
            self.engine.record_write(lease.as_ref().map(drop));
            match lease {
                Ok(true) => self.lease_term = LeaseTerm { from: now, until },
                Ok(false) => self.lease_term = LeaseTerm::default(),
                Err(_) => {}
            }
        }
        self.lease_term.holds(now)
    }

    /// One step for every waiting slice and UE, and health checks when they are due. True if there may be
    /// more to do.
    async fn round(&mut self) -> Result<bool, crate::runtime::api::Problem> {
        // A change with unknown outcome may be stored, and another instance may have had the lease.
        if let Err(error) = self.engine.sync().await {
            tracing::warn!("database: {error:#}");
            return Ok(false);
        }
        // Failed slices are retried, and growth that UEs no longer need is released.
        if self.engine.read(|m| !m.due(now_ms()).is_empty()) {
            self.engine.commit(|m| Ok((m.due(now_ms()), ()))).await?;
        }
        let todo: Vec<(String, Option<Action>)> =
            self.engine.read(|m| m.todo().map(|(id, action)| (id.to_owned(), action)).collect());
        let mut again = false;
        self.retry_at.retain(|_, at| *at > Instant::now());
        for (id, action) in todo {
            if self.retry_at.contains_key(&id) {
                continue;
            }
            if !self.holds_lease().await {
                return Ok(false);
            }
            let before = self.engine.read(|m| m.slices().get(&id).cloned());
            let result = match &action {
                Some(action) => self.act(&id, action).await,
                None => Ok(()),
            };
            let failed = result.is_err();
            let step = |m: &Manager| {
                // Another instance may have continued meanwhile, or the slice may be in removal.
                let same = before.as_ref().is_some_and(|before| m.waits_for(before, action.as_ref()));
                let writes =
                    if same { m.step_done(&id, result, now_ms()).unwrap_or_default() } else { Vec::new() };
                Ok((writes, ()))
            };
            self.engine.commit(step).await?;
            let is_going = |m: &Manager| m.slice(&id).is_ok_and(|s| s.state == State::Terminating);
            if failed && self.engine.read(is_going) {
                self.retry_at.insert(id, Instant::now() + RETRY);
            }
            again = true;
        }
        again |= self.attach().await?;
        self.sessions().await?;
        let now = Instant::now();
        if self.next_check <= now {
            let moved = self.check_health().await;
            // With unresponsive cells a check takes long; until the next one there is as much time for other
            // work.
            self.next_check = Instant::now() + self.interval.max(now.elapsed());
            again |= moved?;
        }
        self.camara().await?;
        Ok(again)
    }

    /// Executes one step in the network.
    async fn act(&mut self, id: &str, action: &Action) -> Result<(), String> {
        let (Action::Do(step) | Action::Undo(step)) = action;
        let slice = self.engine.read(|m| m.slices().get(id).cloned());
        let Some(slice) = slice else { return Ok(()) };
        tracing::info!(slice = id, state = slice.state.name(), "{action:?}");
        match step {
            Step::Shares { access } => {
                let shares = self.engine.read(|m| m.shares(access, id, action));
                self.send_shares(access, &shares).await
            }
            Step::Services => {
                // A failed change keeps the services of the slice that remains.
                let running = match action {
                    Action::Do(_) => slice.state != State::Terminating,
                    Action::Undo(_) => slice.pending.is_some(),
                };
                match &self.network.mano {
                    Some(mano) => mano.services(&slice, running).await.map_err(String::from),
                    None => Ok(()),
                }
            }
            Step::Verify { access } => {
                let network = Arc::clone(&self.network);
                match (self.cell(&network, access)?, action) {
                    (Some(cell), Action::Do(_)) => {
                        let expected = self.engine.read(|m| m.verified(access, id, action));
                        let health = cell.health(&expected).await;
                        self.record_answer(access, health)
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    /// Sets the shares of an access.
    async fn send_shares(&mut self, access: &str, shares: &[SliceShare]) -> Result<(), String> {
        let network = Arc::clone(&self.network);
        let sent = send_cell_shares(self.cell(&network, access), shares).await;
        sent.and_then(|done| self.record_answer(access, done))
    }

    /// The cell of an access, if it has an agent; the error is the reason why it did not answer.
    fn cell<'n>(&self, network: &'n Network, access: &str) -> Result<Option<&'n Gnb>, String> {
        match self.unresponsive.get(access) {
            Some(why) => Err(why.clone()),
            None => Ok(network.cell(access)),
        }
    }

    /// The result of a request to the cell of an access; a missing answer is recorded.
    fn record_answer<T>(&mut self, access: &str, answer: Result<T, Failure>) -> Result<T, String> {
        if let Err(Failure::Silent(why)) = &answer {
            self.unresponsive.insert(access.to_owned(), why.clone());
        }
        answer.map_err(String::from)
    }

    /// Moves UEs into their slices at the cells.
    async fn attach(&mut self) -> Result<bool, crate::runtime::api::Problem> {
        let network = Arc::clone(&self.network);
        let mut results = Vec::new();
        'places: for place in self.engine.read(|m| m.pending_placements(1000)) {
            let mut result = Ok(());
            if let Some(cell_ue) = &place.cell_ue {
                // The UE is at one of the cells.
                result = Err("no cell of the slice has a gNB agent".to_owned());
                for access in &place.accesses {
                    if !self.holds_lease().await {
                        break 'places;
                    }
                    result = match self.cell(&network, access) {
                        Ok(Some(cell)) => {
                            let done = cell.attach(cell_ue, &place.cell_name).await;
                            self.record_answer(access, done)
                        }
                        Ok(None) => continue,
                        Err(why) => Err(why),
                    };
                    if result.is_ok() {
                        break;
                    }
                }
            }
            results.push((place, result));
        }
        let any = !results.is_empty();
        if any {
            self.engine.commit(|m| Ok((m.record_placements(results), ()))).await?;
        }
        Ok(any)
    }

    /// Moves UEs whose membership has ended to the cells' default slices. A cell that fails is not contacted
    /// again in this round.
    async fn release(&mut self) -> Result<(), crate::runtime::api::Problem> {
        let network = Arc::clone(&self.network);
        let mut names = self.engine.read(|m| m.released(1000));
        for (access, _) in network.cells() {
            self.engine.read(|m| m.note_placed(access, &mut names));
            let mut released = Vec::new();
            for name in names {
                if name.placed_at.last().is_none_or(|at| at != access) {
                    if !self.holds_lease().await {
                        return Ok(());
                    }
                    let done = match self.cell(&network, access) {
                        Ok(Some(cell)) => {
                            let done = cell.release(&name.cell_ue).await;
                            self.record_answer(access, done)
                        }
                        other => other.map(drop),
                    };
                    if let Err(why) = done {
                        tracing::warn!(access, "{why}");
                        break;
                    }
                }
                released.push(name);
            }
            names = released;
        }
        if !names.is_empty() {
            self.engine.commit(|m| Ok((m.put_back(&names), ()))).await?;
        }
        Ok(())
    }

    /// Creates, changes and ends the UEs' sessions at the UPF, with retries.
    async fn sessions(&mut self) -> Result<(), crate::runtime::api::Problem> {
        // The next health check shows whether it answers.
        if self.upf_unresponsive {
            return Ok(());
        }
        let now = Instant::now();
        let is_due =
            |ue: &&Ue| self.pending_sessions.get(&ue.id).is_none_or(|pending| !pending.waits(ue, now));
        let due: Vec<Ue> =
            self.engine.read(|m| m.open_sessions().filter(is_due).take(100).cloned().collect());
        for ue in due {
            if !self.holds_lease().await {
                break;
            }
            let result = match &self.network.upf {
                Some(upf) => upf.session(&ue.id, ue.session.as_ref()).await,
                None if ue.leaving => Ok(()),
                None => Err(Failure::Refused("there is no [upf] in the configuration".to_owned())),
            };
            if let Err(why) = &result {
                tracing::warn!(ue = ue.id, "{why}");
            }
            let state = match (&result, ue.leaving) {
                (Ok(()), true) => None,
                (Ok(()), false) => Some(Attachment::Active),
                (Err(Failure::Refused(why)), false) => Some(Attachment::Failed(why.clone())),
                (Err(_), _) => Some(Attachment::Pending),
            };
            self.engine.commit(|m| Ok((m.record_session_result(&ue, state.clone()), ()))).await?;
            match result {
                Ok(()) => drop(self.pending_sessions.remove(&ue.id)),
                Err(failure) => {
                    self.try_later(ue, state, &failure);
                    if let Failure::Silent(_) = failure {
                        self.upf_unresponsive = true;
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Schedules a retry of a session; the pause grows with the number of failures.
    fn try_later(&mut self, ue: Ue, state: Option<Attachment>, failure: &Failure) {
        let longest = if matches!(failure, Failure::Refused(_)) { REFUSED } else { BUSY };
        let before = self.pending_sessions.get(&ue.id).filter(|pending| pending.session == ue.session);
        let times = before.map_or(0, |pending| pending.times);
        let at = Instant::now() + (RETRY * (1 << times.min(16))).min(longest);
        self.pending_sessions
            .insert(ue.id, PendingSession { session: ue.session, state, times: times.saturating_add(1), at });
    }

    /// Checks every access; shares that were lost are set again. True if UEs must be moved again.
    async fn check_health(&mut self) -> Result<bool, crate::runtime::api::Problem> {
        let mut again = false;
        let network = Arc::clone(&self.network);
        self.unresponsive.clear();
        let upf = match &network.upf {
            Some(upf) => self.check_upf(upf).await?.err(),
            None => None,
        };
        self.upf_unresponsive = matches!(upf, Some(Failure::Silent(_)));
        let upf = upf.map(|why| format!("UPF: {why}"));
        self.engine.read(|m| self.pending_sessions.retain(|ue, _| m.ues().contains_key(ue)));
        let accesses: Vec<String> =
            self.engine.read(|m| m.inventory().iter().map(|a| a.name.clone()).collect());
        for some in accesses.chunks(SIDE_BY_SIDE) {
            match self.check_cells(some, upf.as_deref()).await? {
                Some(more) => again |= more,
                None => return Ok(again),
            }
        }
        for access in self.engine.read(Manager::unknown_accesses) {
            let why =
                format!("{access} is not in the configuration: add it again, or change or remove the slice");
            self.record_health(&access, Some(&why)).await?;
        }
        self.release().await?;
        Ok(again)
    }

    /// Checks the UPF; sessions that it has lost are marked for creation.
    async fn check_upf(&mut self, upf: &Upf) -> Result<Result<(), Failure>, crate::runtime::api::Problem> {
        let is_active = |ue: &Ue| ue.session_state == Some(Attachment::Active);
        // A UPF without sessions of this manager may have thousands of others.
        if !self.engine.read(|m| m.ues().values().any(is_active)) {
            return Ok(upf.health(&Expected::default()).await);
        }
        let there = match upf.sessions().await {
            Ok(there) => there,
            Err(failure) => return Ok(Err(failure)),
        };
        if !self.engine.read(|m| m.sessions_lost(&there).is_empty()) {
            tracing::warn!("UPF: sessions are missing; they are created again");
            self.engine.commit(|m| Ok((m.sessions_lost(&there), ()))).await?;
        }
        Ok(Ok(()))
    }

    /// Checks all cells of some accesses in parallel; `upf` is the failure of the UPF, if any. Returns
    /// whether UEs must be moved again; `None` if another instance has the lease.
    async fn check_cells(
        &mut self,
        accesses: &[String],
        upf: Option<&str>,
    ) -> Result<Option<bool>, crate::runtime::api::Problem> {
        let network = Arc::clone(&self.network);
        if !self.holds_lease().await {
            return Ok(None);
        }
        // A cell whose shares are being changed proves neither health nor failure.
        let expected: Vec<Option<Expected>> =
            self.engine.read(|m| accesses.iter().map(|access| m.expected_configuration(access)).collect());
        let checked = accesses.iter().zip(&expected);
        let checked: Vec<(&String, &Gnb, &Expected)> =
            checked.filter_map(|(a, expected)| Some((a, network.cell(a)?, expected.as_ref()?))).collect();
        let health = join_all(checked.iter().map(|(_, cell, expected)| cell.health(expected))).await;
        let mut cells = BTreeMap::new();
        for ((access, ..), health) in checked.into_iter().zip(health) {
            cells.insert(access, self.record_answer(access, health));
        }
        let ill: Vec<&String> = cells.iter().filter(|(_, h)| h.is_err()).map(|(access, _)| *access).collect();
        let problems: BTreeMap<&String, String> =
            cells.iter().filter_map(|(access, health)| Some((*access, health.clone().err()?))).collect();
        if !ill.is_empty() {
            if !self.holds_lease().await {
                return Ok(None);
            }
            // The target state may have changed meanwhile.
            let shares = |access| self.engine.read(|m| m.shares_now(access));
            let targets: Vec<_> =
                ill.iter().map(|access| (self.cell(&network, access), shares(access))).collect();
            let updates =
                targets.into_iter().map(async |(cell, shares)| send_cell_shares(cell, &shares).await);
            let sent = join_all(updates).await;
            for (access, sent) in ill.into_iter().zip(sent) {
                let sent = sent.and_then(|sent| self.record_answer(access, sent));
                cells.insert(access, sent);
            }
        }
        // After a restart, a cell has every UE in its configured slice.
        let placed = |access: &String| self.engine.read(|m| m.has_place(access));
        let well: Vec<&String> = cells
            .iter()
            .filter(|(access, health)| health.is_ok() && placed(access))
            .map(|(a, _)| *a)
            .collect();
        if !well.is_empty() && !self.holds_lease().await {
            return Ok(None);
        }
        let places = join_all(well.iter().filter_map(|access| Some(network.cell(access)?.places()))).await;
        let mut again = false;
        for (access, places) in well.into_iter().zip(places) {
            match self.record_answer(access, places) {
                Ok(places) => {
                    if !self.engine.read(|m| m.strays(access, &places).is_empty()) {
                        self.engine.commit(|m| Ok((m.strays(access, &places), ()))).await?;
                        again = true;
                    }
                }
                Err(why) => tracing::warn!(access, "{why}"),
            }
        }
        for (access, health) in &cells {
            self.log_health(access, health.as_ref().err());
        }
        for (access, expected) in accesses.iter().zip(&expected) {
            let problem = problems.get(access).cloned().or_else(|| upf.map(str::to_owned));
            if expected.is_none() && network.cell(access).is_some() && problem.is_none() {
                continue;
            }
            let failures = self.failures.entry(access.clone()).or_default();
            *failures = if problem.is_some() { failures.saturating_add(1) } else { 0 };
            if problem.is_some() && *failures < FAILURES_TO_REPORT {
                continue;
            }
            self.record_health(access, problem.as_deref()).await?;
        }
        Ok(Some(again))
    }

    /// Records the health of an access in the slices there.
    async fn record_health(
        &self,
        access: &str,
        problem: Option<&str>,
    ) -> Result<(), crate::runtime::api::Problem> {
        let health = |m: &Manager| m.health(access, problem, now_ms());
        if self.engine.read(health).is_empty() {
            return Ok(());
        }
        self.engine.commit(|m| Ok((health(m), ()))).await
    }

    /// Logs the problem of an access when it begins, changes or ends.
    fn log_health(&mut self, access: &str, problem: Option<&String>) {
        if self.logged.get(access) == problem {
            return;
        }
        match problem {
            Some(why) => {
                tracing::warn!(access, "{why}");
                self.logged.insert(access.to_owned(), why.clone());
            }
            None => {
                tracing::info!(access, "the cell is as expected again");
                self.logged.remove(access);
            }
        }
    }

    /// Ends expired bookings and sessions, and sends notifications of status changes.
    async fn camara(&self) -> Result<(), crate::runtime::api::Problem> {
        for due in self.engine.read(|m| m.camara_due(now_ms())) {
            let notification = self.engine.commit(|m| Ok(m.camara_settled(&due, now_ms()))).await?;
            let (kind, id, v) = due;
            let (event, base, key) = match kind {
                Kind::Booking => (BOOKING_EVENT, "/network-slice-booking/v0.1/sessions", "status"),
                _ => (QOD_EVENT, "/quality-on-demand/v1/sessions", "qosStatus"),
            };
            if let Some(SinkNotification { status, info, reason }) = notification {
                let mut data = json!({"sessionId": id, key: status, "reason": reason});
                if let Some(info) = info {
                    data["statusInfo"] = json!(info);
                }
                self.callbacks.send(&v, event, &format!("{base}/{id}"), &data);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_extended_in_time_and_after_the_clock_was_set_back() {
        let lease_term = LeaseTerm { from: 100_000, until: 100_000 + LEASE_MS };
        for (now, is_due, holds) in [
            (100_000, false, true),
            (100_000 + LEASE_MS / 2, false, true),
            (100_001 + LEASE_MS / 2, true, true),
            (100_000 + LEASE_MS, true, false),
            (99_999, true, false),
            (0, true, false),
        ] {
            assert_eq!((lease_term.is_due(now), lease_term.holds(now)), (is_due, holds), "{now}");
        }
        assert!(LeaseTerm::default().is_due(1) && !LeaseTerm::default().holds(1));
    }
}
