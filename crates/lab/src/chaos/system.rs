//! The interface of a simulated system: how plans are drawn, run, simplified and named. Also the common part of all worlds:
//! faults that begin at steps and end after a time.

use super::check::{Invariant, Tally, Violation};
use super::draw::RandomStream;
use anabranch_element::time::{Duration, Instant};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Debug;

/// A plan of a system. It determines everything that happens in a run.
pub trait System: Clone + PartialEq + Debug + Serialize + DeserializeOwned + Send + Sync {
    /// A kind of fault.
    type Kind: Clone + PartialEq + Debug;

    /// The system's name, as in `--system` and in a plan.
    const NAME: &'static str;
    /// Names of all kinds of faults of a plan.
    const KINDS: &'static [&'static str];
    /// Names of other parts of a plan, such as attackers, for the table of effects.
    const ACTORS: &'static [&'static str];
    /// Invariants that are checked.
    const INVARIANTS: &'static [Invariant];

    /// The plan for a seed.
    fn of(seed: u64, steps: u64) -> Self;
    /// Seed of all draws during the run.
    fn seed(&self) -> u64;
    /// Number of steps, each one event, before the faults stop.
    fn steps(&self) -> u64;
    /// The faults, in the order in which they begin.
    fn faults(&self) -> &[Fault<Self::Kind>];
    /// The same plan with other steps and faults.
    #[must_use]
    fn with(&self, steps: u64, faults: Vec<Fault<Self::Kind>>) -> Self;
    /// Plans that are simpler in one respect other than steps and the number or length of faults.
    fn simpler(&self) -> Vec<Self>;
    /// Checks that the plan can be run.
    ///
    /// # Errors
    /// What is wrong, and what would be valid.
    fn check(&self) -> Result<(), String>;
    /// Runs the plan. Events are added to `trace` if it is present.
    ///
    /// # Errors
    /// The invariant that was violated.
    fn play(&self, tally: &mut Tally, trace: &mut Option<Vec<String>>) -> Result<(), Violation>;

    /// The plan in the format of its file.
    ///
    /// # Errors
    /// None that a plan could cause.
    fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }

    /// Reads a plan from the text of its file.
    ///
    /// # Errors
    /// The text is not a plan of this system, or of another version; states what is wrong, and where.
    fn from_toml(text: &str) -> Result<Self, String> {
        let plan: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        plan.check()?;
        Ok(plan)
    }
}

/// The system of a plan file; `tunnel` if it is not stated.
///
/// # Errors
/// The text is not TOML.
pub fn named(text: &str) -> Result<String, String> {
    #[derive(Deserialize)]
    struct Head {
        system: Option<String>,
    }
    let head: Head = toml::from_str(text).map_err(|error| error.to_string())?;
    Ok(head.system.unwrap_or_else(|| "tunnel".into()))
}

/// Checks that a plan is of this version and system.
///
/// # Errors
/// It is not; states what is expected.
pub fn known(version: u32, known: u32, system: &str, name: &str) -> Result<(), String> {
    if version != known {
        return Err(format!("version {version}: this program replays version {known}"));
    }
    if system != name {
        return Err(format!("system = \"{system}\": this is read as a plan of \"{name}\""));
    }
    Ok(())
}

/// A fault: start, duration, kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fault<K> {
    /// Step at which it begins.
    pub at: u64,
    /// Duration in virtual time, milliseconds; not used by instantaneous faults.
    pub ms: u64,
    /// What happens.
    #[serde(flatten)]
    pub kind: K,
}

/// A plan whose world is a separate table, a [`Setting`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanOf<W, K> {
    /// The system's name.
    pub system: String,
    /// Version of the file.
    pub version: u32,
    /// Seed of all draws during the run.
    pub seed: u64,
    /// Number of steps, each one event, before the faults stop.
    pub steps: u64,
    pub world: W,
    /// The faults, in the order in which they begin.
    #[serde(default = "Vec::new", rename = "fault")]
    pub faults: Vec<Fault<K>>,
}

/// The world of a [`PlanOf`]: the part of a plan that is specific to one system.
pub trait Setting: Clone + PartialEq + Debug + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// As in [`System`].
    type Kind: Clone + PartialEq + Debug + Serialize + DeserializeOwned + Send + Sync;

    /// As in [`System`].
    const NAME: &'static str;
    /// Version of the file format.
    const VERSION: u32;
    /// As in [`System`].
    const KINDS: &'static [&'static str];
    /// As in [`System`].
    const ACTORS: &'static [&'static str];
    /// As in [`System`].
    const INVARIANTS: &'static [Invariant];
    /// Simplifications; each makes the world simpler or leaves it unchanged.
    const SIMPLER: &'static [fn(&mut Self)];

    /// The plan for a seed.
    fn of(seed: u64, steps: u64) -> PlanOf<Self, Self::Kind>;
    /// Removes the last of the items that faults refer to by index, unless it is the only one. Returns how many are left.
    fn take_last(&mut self) -> Option<usize> {
        None
    }
    /// The index that a fault refers to.
    fn target(_: &Self::Kind) -> Option<u8> {
        None
    }
    /// Checks that the world can be run.
    ///
    /// # Errors
    /// What is wrong, and what would be valid.
    fn check(&self) -> Result<(), String>;
    /// As in [`System`].
    ///
    /// # Errors
    /// The invariant that was violated.
    fn play(
        plan: &PlanOf<Self, Self::Kind>,
        tally: &mut Tally,
        trace: &mut Option<Vec<String>>,
    ) -> Result<(), Violation>;
}

impl<W: Setting> PlanOf<W, W::Kind> {
    /// A plan of this world with up to `most` faults.
    pub(super) fn drawn(
        (seed, steps): (u64, u64),
        draw: &mut RandomStream,
        world: W,
        most: u64,
        fault: impl Fn(&mut RandomStream, &Self) -> Fault<W::Kind>,
    ) -> Self {
        let (system, version) = (W::NAME.into(), W::VERSION);
        let mut plan = Self { system, version, seed, steps, world, faults: Vec::new() };
        for _ in 0..draw.between((0, most)) {
            let fault = fault(draw, &plan);
            plan.faults.push(fault);
        }
        plan.faults.sort_by_key(|fault| fault.at);
        plan
    }
}

impl<W: Setting> System for PlanOf<W, W::Kind> {
    type Kind = W::Kind;

    const NAME: &'static str = W::NAME;
    const KINDS: &'static [&'static str] = W::KINDS;
    const ACTORS: &'static [&'static str] = W::ACTORS;
    const INVARIANTS: &'static [Invariant] = W::INVARIANTS;

    fn of(seed: u64, steps: u64) -> Self {
        W::of(seed, steps)
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn faults(&self) -> &[Fault<W::Kind>] {
        &self.faults
    }

    fn with(&self, steps: u64, faults: Vec<Fault<W::Kind>>) -> Self {
        Self { steps, faults, ..self.clone() }
    }

    fn simpler(&self) -> Vec<Self> {
        let mut fewer = self.clone();
        let left = fewer.world.take_last();
        let fewer = left.map(|left| {
            fewer.faults.retain(|fault| W::target(&fault.kind).is_none_or(|n| usize::from(n) < left));
            fewer
        });
        let changed = W::SIMPLER.iter().map(|change| {
            let mut plan = self.clone();
            change(&mut plan.world);
            plan
        });
        fewer.into_iter().chain(changed).collect()
    }

    fn check(&self) -> Result<(), String> {
        known(self.version, W::VERSION, &self.system, W::NAME)?;
        self.world.check()
    }

    fn play(&self, tally: &mut Tally, trace: &mut Option<Vec<String>>) -> Result<(), Violation> {
        W::play(self, tally, trace)
    }
}

/// Progress of a run, common to all worlds: time, step, statistics, and log.
pub struct RunState {
    /// The virtual time.
    pub now: Instant,
    /// Steps made so far.
    pub step: u64,
    /// Statistics.
    pub tally: Tally,
    /// Time of the last event, and the number of events since at the same time.
    same_time: (Instant, u32),
    /// Log lines, if the run is traced.
    lines: Option<Vec<String>>,
}

impl RunState {
    /// The start of a run; events are logged if it is `traced`.
    #[must_use]
    pub fn new(traced: bool) -> Self {
        let (now, lines) = (Instant::ZERO, traced.then(Vec::new));
        Self { now, step: 0, tally: Tally::default(), same_time: (now, 0), lines }
    }

    /// Whether the run is traced.
    #[must_use]
    pub const fn is_traced(&self) -> bool {
        self.lines.is_some()
    }

    /// Logs an event, with its time and step.
    pub fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{} step {} {}", self.now, self.step, what()));
        }
    }

    /// Logs and counts the start of a fault.
    pub fn begins<K: Debug>(&mut self, number: u64, fault: &Fault<K>, name: &'static str) {
        self.note(|| format!("fault {number} begins: {:?}, {} ms", fault.kind, fault.ms));
        *self.tally.planned.entry(name).or_default() += 1;
    }

    /// A violation at this step.
    #[must_use]
    pub const fn violation(&self, invariant: Invariant, what: String) -> Violation {
        Violation { invariant, step: self.step, what }
    }

    /// Adds the run to `tally`, and moves the log to `trace`.
    pub fn report(&mut self, tally: &mut Tally, trace: &mut Option<Vec<String>>) {
        self.tally.virtual_ms = self.now.as_millis();
        tally.add(&self.tally);
        if let Some(trace) = trace {
            *trace = self.lines.take().unwrap_or_default();
        }
    }
}

/// A world that is run event by event.
pub trait World<K> {
    /// The kinds of events.
    type Event: Copy + Debug;

    /// Maximum number of events at one time; with more, time does not advance.
    const MOST_AT_ONE_TIME: u32;

    /// Progress of the run.
    fn run_state(&self) -> &RunState;
    /// Mutable progress of the run.
    fn course_mut(&mut self) -> &mut RunState;
    /// The next event and its time.
    fn next(&self) -> (Instant, Self::Event);
    /// Executes an event.
    ///
    /// # Errors
    /// The invariant that was violated.
    fn happen(&mut self, event: Self::Event) -> Result<(), Violation>;
    /// Checks the invariants after each event.
    ///
    /// # Errors
    /// The invariant that was violated.
    fn check_invariants(&mut self) -> Result<(), Violation>;
    /// Starts a fault.
    ///
    /// # Errors
    /// The invariant that was violated.
    fn begin_fault(&mut self, number: u64, fault: &Fault<K>) -> Result<(), Violation>;

    /// Time of the next event, not before the present time.
    fn next_at(&self) -> Instant {
        self.next().0.max(self.run_state().now)
    }

    /// Makes one step: executes the next event and checks the invariants.
    ///
    /// # Errors
    /// The invariant that was violated.
    fn step(&mut self) -> Result<(), Violation> {
        let (at, event) = self.next();
        let run_state = self.course_mut();
        run_state.now = run_state.now.max(at);
        run_state.step += 1;
        run_state.tally.steps += 1;
        let (since, events) = run_state.same_time;
        run_state.same_time = if since == run_state.now { (since, events + 1) } else { (run_state.now, 0) };
        if run_state.same_time.1 > Self::MOST_AT_ONE_TIME {
            let what = format!("{} events at {}: {event:?}", Self::MOST_AT_ONE_TIME, run_state.now);
            return Err(run_state.violation(Invariant::NoSpin, what));
        }
        self.happen(event)?;
        self.check_invariants()
    }

    /// Runs for a given time.
    ///
    /// # Errors
    /// The invariant that was violated.
    fn pass(&mut self, time: Duration) -> Result<(), Violation> {
        let end = self.run_state().now + time;
        while self.next_at() <= end {
            self.step()?;
        }
        self.course_mut().now = end;
        Ok(())
    }
}

/// When the faults of a plan begin: at steps, or at the times of another run.
#[derive(Debug, Clone, Copy)]
pub enum FaultSchedule<'a> {
    /// At the steps of the plan.
    Steps,
    /// At these times; the run ends at the second value.
    Times(&'a [Instant], Instant),
}

/// Times of the part of a run with faults.
#[derive(Debug, Clone)]
pub struct Span {
    /// Time at which each fault began.
    pub began: Vec<Instant>,
    /// End of the part with faults.
    pub ended: Instant,
}

/// Runs the part of a plan with faults.
///
/// # Errors
/// The invariant that was violated.
pub fn faulted<S: System>(
    world: &mut impl World<S::Kind>,
    plan: &S,
    when: FaultSchedule<'_>,
) -> Result<Span, Violation> {
    let mut began = Vec::with_capacity(plan.faults().len());
    loop {
        while let Some(fault) = plan.faults().get(began.len()) {
            let due = match when {
                FaultSchedule::Steps => fault.at <= world.run_state().step,
                FaultSchedule::Times(times, _) => {
                    let at = times.get(began.len()).copied().unwrap_or(Instant::MAX);
                    let due = at <= world.next_at();
                    if due {
                        let run_state = world.course_mut();
                        run_state.now = run_state.now.max(at);
                    }
                    due
                }
            };
            if !due {
                break;
            }
            began.push(world.run_state().now);
            world.begin_fault(began.len() as u64, fault)?;
        }
        let over = match when {
            FaultSchedule::Steps => world.run_state().step >= plan.steps(),
            FaultSchedule::Times(_, end) => world.next_at() > end,
        };
        if over {
            break;
        }
        world.step()?;
    }
    // Both runs must end at the same time; the last event may be long before it.
    if let FaultSchedule::Times(_, end) = when {
        world.course_mut().now = end;
    }
    Ok(Span { began, ended: world.run_state().now })
}

/// Runs a world until nothing is pending, for at most the given time.
///
/// # Errors
/// The invariant, with what is still pending, or another invariant that was violated in the meantime.
pub fn wait<K, W: World<K>>(
    world: &mut W,
    bound: Duration,
    invariant: Invariant,
    open: impl Fn(&W) -> Option<String>,
) -> Result<(), Violation> {
    let end = world.run_state().now + bound;
    while let Some(what) = open(world) {
        if world.run_state().now >= end {
            let what = format!("after {} s: {what}", bound.as_secs());
            return Err(world.run_state().violation(invariant, what));
        }
        world.pass(Duration::from_millis(200))?;
    }
    Ok(())
}

/// Active faults, by number.
#[derive(Debug, Clone)]
pub struct Active<K>(BTreeMap<u64, (Instant, K)>);

impl<K> Default for Active<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K> Active<K> {
    /// Adds a fault that is active from now to `end`.
    pub fn begin(&mut self, number: u64, end: Instant, kind: K) {
        self.0.insert(number, (end, kind));
    }

    /// Time and number of the fault that ends next.
    #[must_use]
    pub fn next_end(&self) -> Option<(Instant, u64)> {
        self.0.iter().map(|(number, (end, _))| (*end, *number)).min()
    }

    /// Removes a fault. Returns its kind if it was active.
    pub fn end(&mut self, number: u64) -> Option<K> {
        self.0.remove(&number).map(|(_, kind)| kind)
    }

    /// Number of the fault that began first.
    #[must_use]
    pub fn first(&self) -> Option<u64> {
        self.0.keys().next().copied()
    }

    /// Active faults, in the order in which they began.
    pub fn kinds(&self) -> impl Iterator<Item = &K> {
        self.0.values().map(|(_, kind)| kind)
    }

    /// Removes all faults, without the actions of their ends.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
