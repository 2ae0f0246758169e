//! The world: instances on one store, cells, messages between them, and sources of commands.

use super::check::{Invariant, Tally, Violation};
use super::clients::Clients;
use super::commands::{Command, RequestLog};
use super::draw::RandomStream;
use super::plan::{Fault, Kind, Plan, UPF};
use super::store::{Store, StoreBehaviour, same};
use super::system::{self, Active, FaultSchedule, RunState, World as _, faulted};
use super::worker::{CellAnswer, CellRequest, Work, access};
use anabranch_element::time::{Duration, Instant};
use anabranch_slice::manager::{MAX_SLICES, MAX_UE_SLICES};
use anabranch_slice::record::{Attachment, MAX_ERRORS, Need};
use anabranch_slice::{
    Access, Expected, GrowthLimits, Inventory, Manager, Refusal, SliceShare, State, Write,
};
use std::collections::{BTreeMap, BTreeSet};

/// Unix time at the start, milliseconds.
const EPOCH_MS: u64 = 1_700_000_000_000;
/// Interval at which an instance reads changes of others without a notification.
const SYNC: Duration = Duration::from_secs(2);
/// Maximum length of a record, bytes.
const MAX_RECORD_BYTES: usize = 64 << 10;
/// Time to converge after the faults: a failed slice is retried after at most 300 s, and then a step must succeed at each cell.
const CONVERGENCE_TIME: Duration = Duration::from_secs(360);
/// Slice of a UE when a cell starts.
pub(super) const DEFAULT_SLICE: &str = "rest";
/// Time until the leases of UEs have expired and all removed state is gone.
const CLEANUP_TIME: Duration = Duration::from_secs(60);

/// Why a command did not lead to a change.
#[derive(Debug, Clone, PartialEq)]
pub enum Failure {
    /// Refused by the manager.
    Refused(Refusal),
    /// Refused by the store; nothing has changed.
    Unchanged,
    /// It is unknown whether the change is stored.
    Unknown,
}

/// An instance of the manager.
pub struct Instance {
    /// Whether it runs.
    pub up: bool,
    /// Its state.
    pub manager: Manager,
    /// Revision up to which it has read.
    pub revision: i64,
    pub work: Work,
    /// Number of starts.
    started: u64,
    clock_s: i64,
    sync_at: Instant,
    /// Its revision and state when it ended.
    before: Option<(i64, Manager)>,
}

struct Message {
    at: Instant,
    instance: usize,
    started: u64,
    call: u64,
    cell: usize,
    request: CellRequest,
    /// Whether this is a repetition.
    is_repetition: bool,
}

struct Answer {
    at: Instant,
    instance: usize,
    started: u64,
    what: Payload,
}

enum Payload {
    Cell(u64, CellAnswer),
    Command(Command),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    Fault(u64),
    Message(usize),
    Answer(usize),
    Work(usize),
    Sync(usize),
    Command,
    Client,
}

/// The world of the slice manager; see the module documentation.
pub struct World {
    pub(super) plan: Plan,
    pub(super) draw: RandomStream,
    pub(super) instances: Vec<Instance>,
    pub(super) store: Store,
    pub(super) request_log: RequestLog,
    pub(super) client_draw: RandomStream,
    pub(super) clients: Clients,
    /// Keys of the sessions at the UPF, by UE.
    pub(super) upf: BTreeMap<String, String>,
    /// No fault affects clocks.
    pub(super) clocks_agree: bool,
    /// The leading instance, and the end of its lease.
    pub(super) lease: Option<(usize, Instant)>,
    /// No fault affects cells or clocks.
    pub(super) calm: bool,
    pub(super) run_state: RunState,
    /// Shares of each cell, by slice.
    cells: Vec<BTreeMap<String, SliceShare>>,
    /// Slice of each UE by cell; [`DEFAULT_SLICE`] without a slice of the manager.
    places: Vec<BTreeMap<String, String>>,
    messages: Vec<Message>,
    answers: Vec<Answer>,
    active: Active<Kind>,
    next_command: Instant,
    next_client: Instant,
    /// Messages may arrive late or twice, so superseded values may be in force.
    pub(super) late: bool,
    /// Cells that hang after executing their last change of shares.
    hung: BTreeSet<usize>,
}

/// One run of a plan.
///
/// # Errors
/// The invariant that was violated.
pub fn play(plan: &Plan, tally: &mut Tally, trace: &mut Option<Vec<String>>) -> Result<(), Violation> {
    let mut world = World::new(plan, trace.is_some());
    let result = faulted(&mut world, plan, FaultSchedule::Steps).and_then(|_| world.after());
    world.run_state.report(tally, trace);
    result
}

fn inventory(plan: &Plan) -> Inventory {
    let access = |(n, mbps): (usize, &u64)| Access {
        name: access(n),
        location: String::new(),
        downlink_bps: mbps * 1_000_000,
        uplink_bps: mbps * 500_000,
        max_share_ppm: 900_000,
        delay_ms: 0.0,
        rest_slice: DEFAULT_SLICE.to_owned(),
    };
    Inventory::new(plan.world.cells_mbps.iter().enumerate().map(access)).unwrap_or_default()
}

fn manager(plan: &Plan) -> Manager {
    Manager::new(inventory(plan), GrowthLimits { percent: 50, seconds: 30 })
}

/// The UEs of a cell when it starts: each UE is at one of the cells.
fn at_start(plan: &Plan, cell: usize) -> BTreeMap<String, String> {
    let here = (0..plan.world.ues).filter(|ue| usize::from(*ue) % plan.world.cells_mbps.len() == cell);
    here.map(|ue| (format!("ue{ue}"), DEFAULT_SLICE.to_owned())).collect()
}

impl World {
    fn new(plan: &Plan, traced: bool) -> Self {
        let instance = |_| Instance {
            up: true,
            manager: manager(plan),
            revision: 0,
            work: Work::default(),
            started: 0,
            clock_s: 0,
            sync_at: Instant::ZERO + SYNC,
            before: None,
        };
        let cell = |kind: &Kind| kind.cell().is_some() || matches!(kind, Kind::Clock { .. });
        Self {
            draw: RandomStream::new(plan.seed, 1),
            instances: (0..plan.world.instances).map(instance).collect(),
            store: Store::default(),
            request_log: RequestLog::default(),
            client_draw: RandomStream::new(plan.seed, 2),
            clients: Clients::default(),
            upf: BTreeMap::new(),
            clocks_agree: !plan.faults.iter().any(|fault| matches!(fault.kind, Kind::Clock { .. })),
            lease: None,
            calm: !plan.faults.iter().any(|fault| cell(&fault.kind)),
            run_state: RunState::new(traced),
            cells: vec![BTreeMap::new(); plan.world.cells_mbps.len()],
            places: (0..plan.world.cells_mbps.len()).map(|cell| at_start(plan, cell)).collect(),
            messages: Vec::new(),
            answers: Vec::new(),
            active: Active::default(),
            next_command: Instant::ZERO,
            next_client: if plan.world.clients_ms == 0 { Instant::MAX } else { Instant::ZERO },
            late: false,
            hung: BTreeSet::new(),
            plan: plan.clone(),
        }
    }

    /// Wall clock of an instance, Unix milliseconds.
    pub(super) fn clock_ms(&self, n: usize) -> u64 {
        (EPOCH_MS + self.run_state.now.as_millis()).saturating_add_signed(self.instances[n].clock_s * 1_000)
    }

    // ---- the store ---------------------------------------------------------------------------------------

    fn behaviour(&self) -> StoreBehaviour {
        let mut behaviour = StoreBehaviour::Good;
        for kind in self.active.kinds() {
            let worse = match kind {
                Kind::StoreFull => StoreBehaviour::Full,
                Kind::StoreFails { stored: false } => StoreBehaviour::FailsBefore,
                Kind::StoreFails { stored: true } => StoreBehaviour::FailsAfter,
                Kind::StoreGone => return StoreBehaviour::Gone,
                _ => continue,
            };
            behaviour = worse;
        }
        behaviour
    }

    pub(super) fn store_answers(&self) -> bool {
        self.behaviour() != StoreBehaviour::Gone
    }

    fn slow_ms(&self) -> u64 {
        let slow = |kind: &Kind| {
            if let Kind::StoreSlow { delay_ms } = kind { Some(u64::from(*delay_ms)) } else { None }
        };
        self.active.kinds().filter_map(slow).max().unwrap_or(0)
    }

    /// An instance reads newer records.
    pub(super) fn take(&mut self, n: usize) -> Result<(), Violation> {
        let known = self.instances[n].revision;
        self.run_state.tally.count_check(Invariant::Versions);
        if self.store.revision < known {
            let what = format!("instance {n} knows change {known}, the store {}", self.store.revision);
            return Err(self.run_state.violation(Invariant::Versions, what));
        }
        let newer = self.store.newer(known);
        let newer = newer.map_err(|what| self.run_state.violation(Invariant::Remembered, what))?;
        let (now, revision) = (self.run_state.now, self.store.revision);
        let instance = &mut self.instances[n];
        if !newer.is_empty() {
            instance.work.wake(now);
        }
        newer.into_iter().for_each(|write| instance.manager.put(write));
        instance.revision = revision;
        Ok(())
    }

    /// Makes a decision on the newest records, and stores it.
    ///
    /// # Errors
    /// The invariant that was violated.
    pub(super) fn commit(
        &mut self,
        n: usize,
        decide: impl FnOnce(&Manager) -> Result<Vec<Write>, Refusal>,
    ) -> Result<Result<(), Failure>, Violation> {
        let behaviour = self.behaviour();
        if behaviour == StoreBehaviour::Gone {
            self.run_state.tally.effect("store-gone", 1);
            return Ok(Err(Failure::Unchanged));
        }
        self.take(n)?;
        let writes = match decide(&self.instances[n].manager) {
            Ok(writes) if writes.is_empty() => return Ok(Ok(())),
            Ok(writes) => writes,
            Err(refusal) => return Ok(Err(Failure::Refused(refusal))),
        };
        if behaviour == StoreBehaviour::Full {
            self.run_state.tally.effect("store-full", 1);
            return Ok(Err(Failure::Unchanged));
        }
        if behaviour == StoreBehaviour::FailsBefore {
            self.run_state.tally.effect("store-fails", 1);
            return Ok(Err(Failure::Unknown));
        }
        let revision = self.instances[n].revision + 1;
        self.run_state.tally.count_check(Invariant::Versions);
        if revision != self.store.revision + 1 {
            let what =
                format!("change {revision} of instance {n} comes after change {}", self.store.revision);
            return Err(self.run_state.violation(Invariant::Versions, what));
        }
        for write in &writes {
            if let Some(Ok(json)) = write.record.as_ref().map(anabranch_slice::Record::to_json) {
                self.run_state.tally.digest(json.as_bytes());
            }
        }
        self.store
            .put(revision, &writes)
            .map_err(|what| self.run_state.violation(Invariant::Remembered, what))?;
        self.news(n);
        if behaviour == StoreBehaviour::FailsAfter {
            self.run_state.tally.effect("store-fails", 1);
            return Ok(Err(Failure::Unknown));
        }
        let now = self.run_state.now;
        let instance = &mut self.instances[n];
        writes.into_iter().for_each(|write| instance.manager.put(write));
        instance.revision = revision;
        instance.work.wake(now);
        Ok(Ok(()))
    }

    /// Notifies other instances of a change.
    fn news(&mut self, from: usize) {
        let deaf = self.active.kinds().any(|kind| *kind == Kind::NoNews);
        for (_, instance) in self.instances.iter_mut().enumerate().filter(|(n, _)| *n != from) {
            if deaf {
                self.run_state.tally.effect("no-news", 1);
            } else {
                instance.sync_at = instance.sync_at.min(self.run_state.now);
            }
        }
    }

    /// Answers a command once it is stored.
    pub(super) fn answer_later(&mut self, instance: usize, command: Command) {
        match self.slow_ms() {
            0 => self.answered(command),
            slow => {
                self.run_state.tally.effect("store-slow", 1);
                let at = self.run_state.now + Duration::from_millis(slow);
                let started = self.instances[instance].started;
                self.answers.push(Answer { at, instance, started, what: Payload::Command(command) });
            }
        }
    }

    // ---- cells -------------------------------------------------------------------------------------------

    /// Active faults of a cell, or of the [`UPF`].
    pub(super) fn suffers(&self, cell: usize) -> impl Iterator<Item = &Kind> {
        let of = move |kind: &&Kind| match cell {
            UPF => kind.is_of_upf(),
            _ => kind.cell() == Some(cell as u8),
        };
        self.active.kinds().filter(of)
    }

    pub(super) fn send(&mut self, instance: usize, call: u64, cell: usize, request: CellRequest) {
        let started = self.instances[instance].started;
        let mut at = self.run_state.now + Duration::from_micros(self.draw.between((100, 20_000)));
        let kinds: Vec<Kind> = self.suffers(cell).copied().collect();
        for kind in kinds {
            match kind {
                Kind::Silent { .. } | Kind::UpfSilent => {
                    self.run_state.tally.effect(kind.name(), 1);
                    return;
                }
                Kind::Slow { delay_ms, .. } | Kind::UpfSlow { delay_ms } => {
                    self.run_state.tally.effect(kind.name(), 1);
                    self.late = true;
                    at += Duration::from_millis(delay_ms.into());
                }
                Kind::Repeat { later_ms, .. } => {
                    self.run_state.tally.effect("repeat", 1);
                    self.late = true;
                    let at = at + Duration::from_millis(later_ms.into());
                    self.messages.push(Message {
                        at,
                        instance,
                        started,
                        call,
                        cell,
                        request: request.clone(),
                        is_repetition: true,
                    });
                }
                _ => {}
            }
        }
        self.messages.push(Message { at, instance, started, call, cell, request, is_repetition: false });
    }

    /// A message reaches a cell, which executes it and answers, as `node`'s `slice_manager::southbound`.
    fn arrive(&mut self, message: Message) {
        let Message { instance, started, call, cell, request, is_repetition, .. } = message;
        if cell == UPF {
            if let Some(result) = self.upf_does(request) {
                let at = self.run_state.now + Duration::from_micros(self.draw.between((100, 20_000)));
                self.answers.push(Answer { at, instance, started, what: Payload::Cell(call, result) });
            }
            return;
        }
        if self.hung.contains(&cell) {
            self.run_state.tally.effect("hang", 1);
            return;
        }
        let hangs = self.suffers(cell).any(|kind| matches!(kind, Kind::Hang { .. }));
        if hangs && matches!(request, CellRequest::Shares(_)) {
            self.hung.insert(cell);
        }
        let refuses = self.suffers(cell).any(|kind| matches!(kind, Kind::Refuse { .. }));
        let mute = self.suffers(cell).any(|kind| matches!(kind, Kind::AnswerLost { .. }));
        let (has, ues) = (&mut self.cells[cell], &mut self.places[cell]);
        let nothing = BTreeMap::new();
        let result = match request {
            CellRequest::Shares(_) | CellRequest::Attach(..) | CellRequest::Release(_) if refuses => {
                self.run_state.tally.effect("refuse", 1);
                Err("refused".to_owned())
            }
            CellRequest::Shares(shares) => {
                *has = shares.into_iter().map(|share| (share.name.clone(), share)).collect();
                for slice in ues.values_mut().filter(|slice| !has.contains_key(*slice)) {
                    DEFAULT_SLICE.clone_into(slice);
                }
                Ok(nothing)
            }
            CellRequest::Attach(_, slice) if !has.contains_key(&slice) => Err(format!("no slice {slice}")),
            CellRequest::Attach(ue, slice) => match ues.get_mut(&ue) {
                Some(place) => {
                    *place = slice;
                    Ok(nothing)
                }
                None => Err(format!("no UE {ue}")),
            },
            CellRequest::Release(ue) => {
                ues.entry(ue).and_modify(|place| DEFAULT_SLICE.clone_into(place));
                Ok(nothing)
            }
            CellRequest::Places => Ok(ues.clone()),
            CellRequest::Health(Expected { shares, others }) => {
                let same = |s: &&SliceShare| {
                    let has = has.get(&s.name).map(|has| (has.share_ppm, has.dedicated_ppm, has.max_ppm));
                    has == Some((s.share_ppm, s.dedicated_ppm, s.max_ppm))
                };
                let wrong = shares.iter().find(|s| !same(s));
                let known = |name: &String| shares.iter().any(|s| s.name == *name);
                let is_other =
                    |name: &String| others.as_ref().is_some_and(|o| !known(name) && !o.contains(name));
                let other = has.keys().find(|name| is_other(name));
                match (wrong, other) {
                    (Some(share), _) => Err(format!("{:?}, not {share:?}", has.get(&share.name))),
                    (None, Some(name)) => Err(format!("slice {name} is still there")),
                    (None, None) => Ok(nothing),
                }
            }
            CellRequest::Session(..) | CellRequest::Sessions => Err("this is a cell".into()),
        };
        if self.hung.contains(&cell) {
            self.run_state.tally.effect("hang", 1);
        } else if mute {
            self.run_state.tally.effect("answer-lost", 1);
        } else if !is_repetition {
            let at = self.run_state.now + Duration::from_micros(self.draw.between((100, 20_000)));
            self.answers.push(Answer { at, instance, started, what: Payload::Cell(call, result) });
        }
    }

    // ---- faults ------------------------------------------------------------------------------------------

    fn end_fault(&mut self, number: u64) -> Result<(), Violation> {
        let Some(kind) = self.active.end(number) else { return Ok(()) };
        self.run_state.note(|| format!("fault {number} ends: {kind:?}"));
        match kind {
            Kind::RestartManager { instance } => self.start_again(usize::from(instance)),
            Kind::Clock { instance, .. } => {
                self.instances[usize::from(instance)].clock_s = 0;
                Ok(())
            }
            Kind::Hang { cell } => {
                self.hung.remove(&cell.into());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Restarts an instance from the stored records.
    fn start_again(&mut self, n: usize) -> Result<(), Violation> {
        let down =
            |kind: &Kind| matches!(kind, Kind::RestartManager { instance } if usize::from(*instance) == n);
        if self.instances[n].up || self.active.kinds().any(down) {
            return Ok(());
        }
        let fresh = manager(&self.plan);
        let now = self.run_state.now;
        let instance = &mut self.instances[n];
        instance.manager = fresh;
        instance.revision = 0;
        instance.up = true;
        instance.started += 1;
        instance.work = Work::default();
        instance.work.next = now;
        instance.sync_at = now + SYNC;
        let before = instance.before.take();
        self.take(n)?;
        self.run_state.tally.count_check(Invariant::Remembered);
        if let Some((revision, before)) = before
            && revision == self.instances[n].revision
            && !same(&before, &self.instances[n].manager)
        {
            let what = format!("instance {n} knows something else of change {revision} than before it ended");
            return Err(self.run_state.violation(Invariant::Remembered, what));
        }
        self.remembered(n)
    }

    // ---- invariants --------------------------------------------------------------------------------------

    /// A deviation from the manager's state after the faults, if any.
    fn unsettled(&self) -> Option<String> {
        let Some(at) = self.instances.iter().position(|i| i.revision == self.store.revision) else {
            return Some("no instance knows the last change".into());
        };
        let manager = &self.instances[at].manager;
        for slice in manager.slices().values() {
            if let Some(plan) = &slice.plan {
                return Some(format!("slice {} is {:?}, at {:?}", slice.id, slice.state, plan.next()));
            }
            match &slice.state {
                State::Running if slice.problems.is_empty() && slice.unsure.is_empty() => {}
                // Capacity assigned to others in the meantime is not available to it.
                State::Failed(why) if why.contains("left, and") || why.contains("no access") => {}
                state => return Some(format!("slice {} is {state:?}, unsure {:?}", slice.id, slice.unsure)),
            }
        }
        for (cell, has) in self.cells.iter().enumerate() {
            let mut missing = manager.shares_now(&access(cell)).into_iter();
            let wanted: BTreeSet<String> = missing.clone().map(|share| share.name).collect();
            if let Some(share) = missing.find(|share| has.get(&share.name) != Some(share)) {
                return Some(format!("cell {cell} gives {:?}, not {share:?}", has.get(&share.name)));
            }
            if let Some(share) = has.values().find(|share| !wanted.contains(&share.name)) {
                return Some(format!("cell {cell} gives {share:?}, which is not there any more"));
            }
        }
        self.misplaced(manager).or_else(|| self.unsettled_clients(at))
    }

    /// A UE whose slice differs from the manager's state, or that the manager has not fully configured.
    fn misplaced(&self, manager: &Manager) -> Option<String> {
        if let Some(released) = manager.released(1).first() {
            return Some(format!("{released:?}"));
        }
        for (cell, ues) in self.places.iter().enumerate() {
            let access = access(cell);
            for (name, there) in ues {
                let all = manager.ues().values().flat_map(|ue| &ue.slices);
                let place = all.filter(|place| place.cell_ue.as_ref() == Some(name)).find_map(|place| {
                    let slice = manager.slice(&place.slice).ok()?;
                    slice.applied.contains_key(&access).then_some((place, slice))
                });
                // A failed slice is not configured.
                if place.is_some_and(|(_, slice)| !slice.state.usable()) {
                    continue;
                }
                let wanted = place.map_or(DEFAULT_SLICE, |(_, slice)| slice.cell_name.as_str());
                // A late message may put a UE into a slice without a place; the manager does not check for that.
                if wanted != there && !(place.is_none() && self.late) {
                    return Some(format!("cell {cell} has {name} in {there}, not {wanted}: {place:?}"));
                }
                if let Some((place, _)) = place
                    && place.attachment != Attachment::Active
                {
                    return Some(format!("{name} is in {wanted}, and {place:?}"));
                }
            }
        }
        None
    }

    fn after(&mut self) -> Result<(), Violation> {
        while let Some((_, number)) = self.active.next_end() {
            self.end_fault(number)?;
        }
        // No further commands.
        self.next_command = Instant::MAX;
        self.next_client = Instant::MAX;
        self.run_state.tally.count_check(Invariant::Converges);
        self.pass(Duration::from_secs(10))?;
        system::wait(self, CONVERGENCE_TIME, Invariant::Converges, Self::unsettled)?;
        for n in 0..self.instances.len() {
            self.remembered(n)?;
        }
        // Everything is removed, and nothing must remain.
        for id in self.instances[0].manager.slices().keys().cloned().collect::<Vec<_>>() {
            let now_ms = self.clock_ms(0);
            drop(self.commit(0, move |m| m.remove(&id, false, now_ms))?);
        }
        let left = self.request_log.left;
        self.request_log = RequestLog::default();
        self.request_log.left = left;
        self.run_state.tally.count_check(Invariant::Empty);
        system::wait(self, CLEANUP_TIME, Invariant::Empty, |world| {
            let left = world.instances.iter().flat_map(|i| i.manager.slices().keys()).next();
            let kept = world.cells.iter().find(|cell| !cell.is_empty());
            let ue = world.instances[0].manager.ues().values().find(|ue| !ue.slices.is_empty());
            (left.is_some() || kept.is_some() || ue.is_some()).then(|| format!("{left:?}, {kept:?}, {ue:?}"))
        })?;
        self.forgotten()
    }
}

impl system::World<Kind> for World {
    type Event = Event;

    const MOST_AT_ONE_TIME: u32 = 2_000;

    fn run_state(&self) -> &RunState {
        &self.run_state
    }

    fn course_mut(&mut self) -> &mut RunState {
        &mut self.run_state
    }

    fn next(&self) -> (Instant, Event) {
        let mut first = (self.next_command, Event::Command);
        let mut earlier = |at: Instant, event: Event| {
            if (at, event) < first {
                first = (at, event);
            }
        };
        earlier(self.next_client, Event::Client);
        if let Some((at, number)) = self.active.next_end() {
            earlier(at, Event::Fault(number));
        }
        for (n, message) in self.messages.iter().enumerate() {
            earlier(message.at, Event::Message(n));
        }
        for (n, answer) in self.answers.iter().enumerate() {
            earlier(answer.at, Event::Answer(n));
        }
        for (n, instance) in self.instances.iter().enumerate().filter(|(_, instance)| instance.up) {
            earlier(instance.work.next, Event::Work(n));
            earlier(instance.sync_at, Event::Sync(n));
        }
        first
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        self.run_state.tally.count_check(Invariant::NoSpin);
        match event {
            Event::Fault(number) => self.end_fault(number),
            Event::Message(n) => {
                let message = self.messages.remove(n);
                self.arrive(message);
                Ok(())
            }
            Event::Answer(n) => {
                let answer = self.answers.remove(n);
                let instance = &self.instances[answer.instance];
                if !instance.up || instance.started != answer.started {
                    return Ok(());
                }
                match answer.what {
                    Payload::Cell(call, result) => self.cell_answers(answer.instance, call, result),
                    Payload::Command(command) => {
                        self.answered(command);
                        Ok(())
                    }
                }
            }
            Event::Work(n) => self.work(n),
            Event::Sync(n) => {
                self.instances[n].sync_at = self.run_state.now + SYNC;
                if self.store_answers() { self.take(n) } else { Ok(()) }
            }
            Event::Command => {
                let mean = self.plan.world.pace_ms;
                let pause = Duration::from_millis(self.draw.between((1, 2 * mean)));
                self.next_command = self.run_state.now + pause;
                self.command()
            }
            Event::Client => {
                let mean = self.plan.world.clients_ms;
                let pause = Duration::from_millis(self.client_draw.between((1, 2 * mean)));
                self.next_client = self.run_state.now + pause;
                self.client()
            }
        }
    }

    fn check_invariants(&mut self) -> Result<(), Violation> {
        self.run_state.tally.count_check(Invariant::Admitted);
        let cells = self.plan.world.cells_mbps.clone();
        for (cell, mbps) in cells.iter().enumerate() {
            let access = access(cell);
            let told: u64 = self.cells[cell].values().map(|share| u64::from(share.share_ppm)).sum();
            if told > 900_000 {
                let what = format!("{access} has {told} of 900000 millionths: {:?}", self.cells[cell]);
                return Err(self.run_state.violation(Invariant::Admitted, what));
            }
            // The capacity that a cell assigns is reserved, unless messages arrive late or state was given up.
            if self.instances.len() == 1 && !self.late && !self.request_log.left {
                let slices = self.instances[0].manager.slices();
                for (name, SliceShare { share_ppm: ppm, .. }) in &self.cells[cell] {
                    let slice = slices.values().find(|slice| slice.cell_name == *name);
                    let reserved = slice.and_then(|s| Some(s.reserved().get(&access)?.share_ppm));
                    if reserved.is_none_or(|reserved| reserved < *ppm) {
                        let what =
                            format!("{access} gives {ppm} to {name}, for which {reserved:?} is reserved");
                        return Err(self.run_state.violation(Invariant::Admitted, what));
                    }
                }
            }
            for n in 0..self.instances.len() {
                let manager = &self.instances[n].manager;
                let sum = |of: &dyn Fn(&anabranch_slice::Slice) -> [u64; 3]| {
                    manager
                        .slices()
                        .values()
                        .map(of)
                        .fold([0_u64; 3], |a, b| [a[0] + b[0], a[1] + b[1], a[2] + b[2]])
                };
                let promised = sum(&|slice| {
                    let of = [&slice.applied, &slice.wanted, &slice.before, &slice.unsure];
                    of.iter().filter_map(|demand| demand.get(&access)).fold([0_u64; 3], |a, g| {
                        [a[0].max(g.downlink_bps), a[1].max(g.uplink_bps), a[2].max(g.share_ppm.into())]
                    })
                });
                if promised[0] > mbps * 1_000_000 || promised[1] > mbps * 500_000 || promised[2] > 900_000 {
                    let what = format!("instance {n} promises {promised:?} on {access} of {mbps} Mbit/s");
                    return Err(self.run_state.violation(Invariant::Admitted, what));
                }
            }
        }
        self.run_state.tally.count_check(Invariant::Bounded);
        for (n, instance) in self.instances.iter().enumerate() {
            let m = &instance.manager;
            let wide = m.slices().values().find(|s| {
                let unknown = |(ue, need): (&String, &Need)| need.until_ms != 0 && m.ue(ue).is_err();
                s.errors.len() > MAX_ERRORS || s.growth.needs.iter().any(unknown)
            });
            let many =
                m.ues().values().any(|ue| ue.slices.len() > MAX_UE_SLICES) || m.slices().len() > MAX_SLICES;
            if wide.is_some() || many || self.store.longest() > MAX_RECORD_BYTES {
                let what =
                    format!("instance {n}: {wide:?}, or a UE with too many slices, or a record too long");
                return Err(self.run_state.violation(Invariant::Bounded, what));
            }
        }
        self.clients_served()?;
        if self.messages.len() + self.answers.len() > 10_000 {
            return Err(self
                .run_state
                .violation(Invariant::Bounded, "10000 questions and answers are under way".into()));
        }
        Ok(())
    }

    fn begin_fault(&mut self, number: u64, fault: &Fault) -> Result<(), Violation> {
        let kind = fault.kind;
        self.run_state.begins(number, fault, kind.name());
        if kind.cell().is_some_and(|cell| usize::from(cell) >= self.cells.len()) {
            return Ok(());
        }
        match kind {
            Kind::RestartCell { cell } => {
                self.cells[usize::from(cell)].clear();
                self.places[usize::from(cell)] = at_start(&self.plan, cell.into());
                self.run_state.tally.effect(kind.name(), 1);
                return Ok(());
            }
            Kind::RestartUpf | Kind::Beside { .. } => {
                self.upf_changes(kind);
                return Ok(());
            }
            Kind::Burst { commands } => {
                self.run_state.tally.effect(kind.name(), 1);
                return (0..commands).try_for_each(|_| self.command());
            }
            Kind::RestartManager { instance } | Kind::Clock { instance, .. }
                if usize::from(instance) >= self.instances.len() =>
            {
                return Ok(());
            }
            Kind::RestartManager { instance } => {
                let instance = &mut self.instances[usize::from(instance)];
                if instance.up {
                    instance.up = false;
                    instance.before = Some((instance.revision, instance.manager.clone()));
                }
                self.run_state.tally.effect(kind.name(), 1);
            }
            Kind::Clock { instance, seconds } => {
                self.instances[usize::from(instance)].clock_s = seconds.into();
                self.run_state.tally.effect(kind.name(), 1);
            }
            _ => {}
        }
        self.active.begin(number, self.run_state.now + Duration::from_millis(fault.ms), kind);
        Ok(())
    }
}
