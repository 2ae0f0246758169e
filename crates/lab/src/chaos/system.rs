//! What a system gives to be simulated: plans, how one is drawn, run and made smaller, and what its names mean. And what the
//! worlds of all systems have in common: faults that begin at steps, and end after a time.

use super::check::{Invariant, Tally, Violation};
use super::draw::Draw;
use anabranch_element::time::{Duration, Instant};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Debug;

/// A plan of a system: everything that happens in a run follows from it.
pub trait System: Clone + PartialEq + Debug + Serialize + DeserializeOwned + Send + Sync {
    /// A kind of fault.
    type Kind: Clone + PartialEq + Debug;

    /// The system's name, as in `--system` and in a plan.
    const NAME: &'static str;
    /// Names of all kinds of faults that a plan can have.
    const KINDS: &'static [&'static str];
    /// Names of what a plan can have besides, such as attackers: also in the table of what took effect.
    const ACTORS: &'static [&'static str];
    /// What is looked at.
    const INVARIANTS: &'static [Invariant];

    /// The plan of a seed.
    fn of(seed: u64, steps: u64) -> Self;
    /// What everything that is drawn while it runs follows from.
    fn seed(&self) -> u64;
    /// Steps, each one event, before the faults stop.
    fn steps(&self) -> u64;
    /// The faults, in the order in which they begin.
    fn faults(&self) -> &[Fault<Self::Kind>];
    /// The same with other steps and faults.
    #[must_use]
    fn with(&self, steps: u64, faults: Vec<Fault<Self::Kind>>) -> Self;
    /// Plans that are simpler in one respect that is neither steps nor the number or length of faults.
    fn simpler(&self) -> Vec<Self>;
    /// Whether such a plan can be run.
    ///
    /// # Errors
    /// What is wrong, and what would be valid.
    fn check(&self) -> Result<(), String>;
    /// Runs it. What happens is noted in `trace` if that is there.
    ///
    /// # Errors
    /// What does not hold.
    fn play(&self, tally: &mut Tally, trace: &mut Option<Vec<String>>) -> Result<(), Violation>;

    /// As it is written to a file.
    ///
    /// # Errors
    /// None that a plan could cause.
    fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }

    /// What a file says.
    ///
    /// # Errors
    /// It is not a plan of this system, or one of another version; what is wrong, and where.
    fn from_toml(text: &str) -> Result<Self, String> {
        let plan: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        plan.check()?;
        Ok(plan)
    }
}

/// The system a plan's file is of: `tunnel` where it does not say.
///
/// # Errors
/// It is not TOML.
pub fn named(text: &str) -> Result<String, String> {
    #[derive(Deserialize)]
    struct Head {
        system: Option<String>,
    }
    let head: Head = toml::from_str(text).map_err(|error| error.to_string())?;
    Ok(head.system.unwrap_or_else(|| "tunnel".into()))
}

/// Whether a plan is of this version and system.
///
/// # Errors
/// It is not; what would be.
pub fn known(version: u32, known: u32, system: &str, name: &str) -> Result<(), String> {
    if version != known {
        return Err(format!("version {version}: this program replays version {known}"));
    }
    if system != name {
        return Err(format!("system = \"{system}\": this is read as a plan of \"{name}\""));
    }
    Ok(())
}

/// A fault: when, how long, what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fault<K> {
    /// Step at which it begins.
    pub at: u64,
    /// How long it lasts, milliseconds of virtual time; what happens at once has no use for it.
    pub ms: u64,
    /// What happens.
    #[serde(flatten)]
    pub kind: K,
}

/// A plan whose world is a table of its own, a [`Setting`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanOf<W, K> {
    /// The system's name.
    pub system: String,
    /// Version of the file.
    pub version: u32,
    /// What everything that is drawn while it runs follows from.
    pub seed: u64,
    /// Steps, each one event, before the faults stop.
    pub steps: u64,
    /// What there is.
    pub world: W,
    /// What happens to it, in the order in which it begins.
    #[serde(default = "Vec::new", rename = "fault")]
    pub faults: Vec<Fault<K>>,
}

/// What there is in the world of a [`PlanOf`]: all that one system has and another has not.
pub trait Setting: Clone + PartialEq + Debug + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// As in [`System`].
    type Kind: Clone + PartialEq + Debug + Serialize + DeserializeOwned + Send + Sync;

    /// As in [`System`].
    const NAME: &'static str;
    /// Version of its files.
    const VERSION: u32;
    /// As in [`System`].
    const KINDS: &'static [&'static str];
    /// As in [`System`].
    const ACTORS: &'static [&'static str];
    /// As in [`System`].
    const INVARIANTS: &'static [Invariant];
    /// Changes of which each makes it simpler, or leaves it as it is.
    const SIMPLER: &'static [fn(&mut Self)];

    /// The plan of a seed.
    fn of(seed: u64, steps: u64) -> PlanOf<Self, Self::Kind>;
    /// Takes away the last of what faults name by number, unless it is the only one; how many are left.
    fn take_last(&mut self) -> Option<usize> {
        None
    }
    /// The number that a fault names.
    fn target(_: &Self::Kind) -> Option<u8> {
        None
    }
    /// Whether such a world can be run.
    ///
    /// # Errors
    /// What is wrong, and what would be valid.
    fn check(&self) -> Result<(), String>;
    /// As in [`System`].
    ///
    /// # Errors
    /// What does not hold.
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
        draw: &mut Draw,
        world: W,
        most: u64,
        fault: impl Fn(&mut Draw, &Self) -> Fault<W::Kind>,
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

/// What every world keeps of its run: how far it is, what was done and looked at, and what happened.
pub struct Course {
    /// The virtual time.
    pub now: Instant,
    /// Steps made so far.
    pub step: u64,
    /// What was done and looked at.
    pub tally: Tally,
    /// Events since the time last moved, and when that was.
    same_time: (Instant, u32),
    /// What happened, line by line, if somebody reads it.
    lines: Option<Vec<String>>,
}

impl Course {
    /// At its beginning; what happens is noted if it is `traced`.
    #[must_use]
    pub fn new(traced: bool) -> Self {
        let (now, lines) = (Instant::ZERO, traced.then(Vec::new));
        Self { now, step: 0, tally: Tally::default(), same_time: (now, 0), lines }
    }

    /// Whether somebody reads what happens.
    #[must_use]
    pub const fn is_traced(&self) -> bool {
        self.lines.is_some()
    }

    /// Notes what happened, with its time and step.
    pub fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{} step {} {}", self.now, self.step, what()));
        }
    }

    /// Notes and counts that a fault begins.
    pub fn begins<K: Debug>(&mut self, number: u64, fault: &Fault<K>, name: &'static str) {
        self.note(|| format!("fault {number} begins: {:?}, {} ms", fault.kind, fault.ms));
        *self.tally.planned.entry(name).or_default() += 1;
    }

    /// Something does not hold at this step.
    #[must_use]
    pub const fn violation(&self, invariant: Invariant, what: String) -> Violation {
        Violation { invariant, step: self.step, what }
    }

    /// Adds the run to `tally`, and gives away what was noted.
    pub fn report(&mut self, tally: &mut Tally, trace: &mut Option<Vec<String>>) {
        self.tally.virtual_ms = self.now.as_millis();
        tally.add(&self.tally);
        if let Some(trace) = trace {
            *trace = self.lines.take().unwrap_or_default();
        }
    }
}

/// A world that runs, one event after the other.
pub trait World<K> {
    /// What may happen next.
    type Event: Copy + Debug;

    /// More events than this at one time mean that time stands still.
    const MOST_AT_ONE_TIME: u32;

    /// How far it is.
    fn course(&self) -> &Course;
    /// The same, to be changed.
    fn course_mut(&mut self) -> &mut Course;
    /// The next event, and when it is.
    fn next(&self) -> (Instant, Self::Event);
    /// Has an event happen.
    ///
    /// # Errors
    /// What does not hold.
    fn happen(&mut self, event: Self::Event) -> Result<(), Violation>;
    /// Looks at what must hold after each event.
    ///
    /// # Errors
    /// What does not hold.
    fn look(&mut self) -> Result<(), Violation>;
    /// Has a fault begin.
    ///
    /// # Errors
    /// What does not hold.
    fn begin_fault(&mut self, number: u64, fault: &Fault<K>) -> Result<(), Violation>;

    /// When the next event is; not in the past.
    fn next_at(&self) -> Instant {
        self.next().0.max(self.course().now)
    }

    /// Makes one step: the next event, and a look at what must hold.
    ///
    /// # Errors
    /// What does not hold.
    fn step(&mut self) -> Result<(), Violation> {
        let (at, event) = self.next();
        let course = self.course_mut();
        course.now = course.now.max(at);
        course.step += 1;
        course.tally.steps += 1;
        let (since, events) = course.same_time;
        course.same_time = if since == course.now { (since, events + 1) } else { (course.now, 0) };
        if course.same_time.1 > Self::MOST_AT_ONE_TIME {
            let what = format!("{} events at {}: {event:?}", Self::MOST_AT_ONE_TIME, course.now);
            return Err(course.violation(Invariant::NoSpin, what));
        }
        self.happen(event)?;
        self.look()
    }

    /// Runs for a time.
    ///
    /// # Errors
    /// What does not hold.
    fn pass(&mut self, time: Duration) -> Result<(), Violation> {
        let end = self.course().now + time;
        while self.next_at() <= end {
            self.step()?;
        }
        self.course_mut().now = end;
        Ok(())
    }
}

/// When the faults of a plan begin: at steps, or at times, those of another run.
#[derive(Debug, Clone, Copy)]
pub enum When<'a> {
    /// At the steps of the plan.
    Steps,
    /// At these times; the run ends at that one.
    Times(&'a [Instant], Instant),
}

/// The part of a run with faults.
#[derive(Debug, Clone)]
pub struct Span {
    /// When each fault began.
    pub began: Vec<Instant>,
    /// When the part with faults was over.
    pub ended: Instant,
}

/// The part of a run with faults.
///
/// # Errors
/// What does not hold.
pub fn faulted<S: System>(
    world: &mut impl World<S::Kind>,
    plan: &S,
    when: When<'_>,
) -> Result<Span, Violation> {
    let mut began = Vec::with_capacity(plan.faults().len());
    loop {
        while let Some(fault) = plan.faults().get(began.len()) {
            let due = match when {
                When::Steps => fault.at <= world.course().step,
                When::Times(times, _) => {
                    let at = times.get(began.len()).copied().unwrap_or(Instant::MAX);
                    let due = at <= world.next_at();
                    if due {
                        let course = world.course_mut();
                        course.now = course.now.max(at);
                    }
                    due
                }
            };
            if !due {
                break;
            }
            began.push(world.course().now);
            world.begin_fault(began.len() as u64, fault)?;
        }
        let over = match when {
            When::Steps => world.course().step >= plan.steps(),
            When::Times(_, end) => world.next_at() > end,
        };
        if over {
            break;
        }
        world.step()?;
    }
    // The same moment for both: the last event before it may be long ago.
    if let When::Times(_, end) = when {
        world.course_mut().now = end;
    }
    Ok(Span { began, ended: world.course().now })
}

/// Runs a world until nothing is open any more, for so long at most.
///
/// # Errors
/// The invariant, with what is still open; or what does not hold meanwhile.
pub fn wait<K, W: World<K>>(
    world: &mut W,
    bound: Duration,
    invariant: Invariant,
    open: impl Fn(&W) -> Option<String>,
) -> Result<(), Violation> {
    let end = world.course().now + bound;
    while let Some(what) = open(world) {
        if world.course().now >= end {
            let what = format!("after {} s: {what}", bound.as_secs());
            return Err(world.course().violation(invariant, what));
        }
        world.pass(Duration::from_millis(200))?;
    }
    Ok(())
}

/// Faults in force, by number.
#[derive(Debug, Clone)]
pub struct Active<K>(BTreeMap<u64, (Instant, K)>);

impl<K> Default for Active<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K> Active<K> {
    /// A fault is in force from now to `end`.
    pub fn begin(&mut self, number: u64, end: Instant, kind: K) {
        self.0.insert(number, (end, kind));
    }

    /// The one that ends next: when, and its number.
    #[must_use]
    pub fn next_end(&self) -> Option<(Instant, u64)> {
        self.0.iter().map(|(number, (end, _))| (*end, *number)).min()
    }

    /// A fault ends: its kind, if it was in force.
    pub fn end(&mut self, number: u64) -> Option<K> {
        self.0.remove(&number).map(|(_, kind)| kind)
    }

    /// The number of the one that began first.
    #[must_use]
    pub fn first(&self) -> Option<u64> {
        self.0.keys().next().copied()
    }

    /// Those in force, in the order in which they began.
    pub fn kinds(&self) -> impl Iterator<Item = &K> {
        self.0.values().map(|(_, kind)| kind)
    }

    /// Every fault ends, without what its end would do.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
