//! What a system gives to be simulated: plans, how one is drawn, run and made smaller, and what its names mean. And what the
//! worlds of all systems have in common: faults that begin at steps, and end after a time.

use super::check::{Invariant, Tally, Violation};
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
    /// What.
    #[serde(flatten)]
    pub kind: K,
}

/// A plan whose world is a table of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanOf<W, K> {
    /// The system's name.
    pub system: String,
    /// Of this file.
    pub version: u32,
    /// What everything that is drawn while it runs follows from.
    pub seed: u64,
    /// Steps, each one event, before the faults stop.
    pub steps: u64,
    /// What there is.
    pub world: W,
    /// The faults.
    #[serde(default = "Vec::new", rename = "fault")]
    pub faults: Vec<Fault<K>>,
}

/// A world that runs.
pub trait World<K> {
    /// The time.
    fn now(&self) -> Instant;
    /// Sets the time, which does not go back.
    fn set_now(&mut self, now: Instant);
    /// Steps made.
    fn steps(&self) -> u64;
    /// When the next event is.
    fn next_at(&self) -> Instant;
    /// Makes one step.
    ///
    /// # Errors
    /// What does not hold.
    fn step(&mut self) -> Result<(), Violation>;
    /// A fault begins.
    ///
    /// # Errors
    /// What does not hold.
    fn begin_fault(&mut self, number: u64, fault: &Fault<K>) -> Result<(), Violation>;

    /// Runs for a time.
    ///
    /// # Errors
    /// What does not hold.
    fn pass(&mut self, time: Duration) -> Result<(), Violation> {
        let end = self.now() + time;
        while self.next_at() <= end {
            self.step()?;
        }
        self.set_now(end);
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

/// When faults began, and when the part with faults was over.
#[derive(Debug, Clone)]
pub struct Span {
    /// Of each fault.
    pub began: Vec<Instant>,
    /// Of all.
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
                When::Steps => fault.at <= world.steps(),
                When::Times(times, _) => {
                    let at = times.get(began.len()).copied().unwrap_or(Instant::MAX);
                    let due = at <= world.next_at();
                    if due {
                        world.set_now(world.now().max(at));
                    }
                    due
                }
            };
            if !due {
                break;
            }
            began.push(world.now());
            world.begin_fault(began.len() as u64, fault)?;
        }
        let over = match when {
            When::Steps => world.steps() >= plan.steps(),
            When::Times(_, end) => world.next_at() > end,
        };
        if over {
            break;
        }
        world.step()?;
    }
    // The same moment for both: the last event before it may be long ago.
    if let When::Times(_, end) = when {
        world.set_now(end);
    }
    Ok(Span { began, ended: world.now() })
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
    let end = world.now() + bound;
    while let Some(what) = open(world) {
        if world.now() >= end {
            let what = format!("after {} s: {what}", bound.as_secs());
            return Err(Violation { invariant, step: world.steps(), what });
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
    /// One is in force from now on.
    pub fn begin(&mut self, number: u64, end: Instant, kind: K) {
        self.0.insert(number, (end, kind));
    }

    /// The one that ends next: when, and its number.
    #[must_use]
    pub fn next_end(&self) -> Option<(Instant, u64)> {
        self.0.iter().map(|(number, (end, _))| (*end, *number)).min()
    }

    /// One ends.
    pub fn end(&mut self, number: u64) -> Option<K> {
        self.0.remove(&number).map(|(_, kind)| kind)
    }

    /// Those in force, in the order in which they began.
    pub fn kinds(&self) -> impl Iterator<Item = &K> {
        self.0.values().map(|(_, kind)| kind)
    }

    /// All end.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
