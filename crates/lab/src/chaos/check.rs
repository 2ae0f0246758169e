//! What must hold, each under its own name, and how often it was looked at.

use std::collections::BTreeMap;
use std::fmt;

/// An invariant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// What is delivered was sent, to whom it is delivered, with these bytes.
    Intact,
    /// No packet is delivered twice where a copy can be told.
    Once,
    /// A reliable flow has every byte once, in order, as it was sent.
    Reliable,
    /// No user data in the clear on a secure access.
    Sealed,
    /// No packet is delivered with the source of another UE.
    OwnSource,
    /// Where accesses lost nothing, nothing is lost.
    Lossless,
    /// Where accesses kept the order, a rule that restores it keeps it.
    Order,
    /// There, nothing waits longer than the slower access takes.
    Prompt,
    /// There, both ends see neither queue nor loss, whatever their clocks do.
    Measured,
    /// A UE with a good access is served.
    Served,
    /// What nobody may take notice of is counted as dropped.
    Counted,
    /// One UE leaves reorder queues and memory for others.
    Share,
    /// Tables and queues are bounded.
    Bounded,
    /// Nobody asks to be woken without having anything to do.
    NoSpin,
    /// After the faults stop, sessions and paths come up within the bound.
    Converges,
    /// In peace, nothing is held any more.
    Empty,
    /// The service of an honest UE does not depend on a hostile one.
    Independent,
    /// No panic on any input.
    NoPanic,
    /// What is promised, and what is in force, never exceeds what there is.
    Admitted,
    /// A change that was answered is there, whatever happens afterwards.
    Remembered,
    /// Versions grow, one for each change.
    Versions,
    /// What a session took is returned once it is over, once, and what others have is left to them.
    Returned,
    /// No identifier is handed out twice.
    Unique,
    /// What slices are owed sums to 0, and is within its bound.
    Balanced,
}

impl Invariant {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Intact => "intact",
            Self::Once => "once",
            Self::Reliable => "reliable",
            Self::Sealed => "sealed",
            Self::OwnSource => "own-source",
            Self::Lossless => "lossless",
            Self::Order => "order",
            Self::Prompt => "prompt",
            Self::Measured => "measured",
            Self::Served => "served",
            Self::Counted => "counted",
            Self::Share => "share",
            Self::Bounded => "bounded",
            Self::NoSpin => "no-spin",
            Self::Converges => "converges",
            Self::Empty => "empty",
            Self::Independent => "independent",
            Self::NoPanic => "no-panic",
            Self::Admitted => "admitted",
            Self::Remembered => "remembered",
            Self::Versions => "versions",
            Self::Returned => "returned",
            Self::Unique => "unique",
            Self::Balanced => "balanced",
        }
    }
}

/// An invariant does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub invariant: Invariant,
    /// At which step.
    pub step: u64,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at step {}: {}", self.invariant.name(), self.step, self.what)
    }
}

/// What a run did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Steps made.
    pub steps: u64,
    /// Virtual time that passed, milliseconds.
    pub virtual_ms: u64,
    /// Faults of the plan, by kind.
    pub planned: BTreeMap<&'static str, u64>,
    /// How often each kind did something: a packet lost, a program started again.
    pub effects: BTreeMap<&'static str, u64>,
    /// How often each invariant was looked at.
    pub checked: BTreeMap<&'static str, u64>,
    /// A number that differs if anything that was sent differs.
    pub digest: u64,
}

impl Tally {
    /// A fault did something.
    pub fn effect(&mut self, kind: &'static str, times: u64) {
        if times > 0 {
            *self.effects.entry(kind).or_default() += times;
        }
    }

    /// An invariant was looked at.
    pub fn look(&mut self, invariant: Invariant) {
        *self.checked.entry(invariant.name()).or_default() += 1;
    }

    /// Adds another run's.
    pub fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.virtual_ms += other.virtual_ms;
        self.digest ^= other.digest.rotate_left((self.steps % 63) as u32);
        for (all, one) in [
            (&mut self.planned, &other.planned),
            (&mut self.effects, &other.effects),
            (&mut self.checked, &other.checked),
        ] {
            for (name, count) in one {
                *all.entry(name).or_default() += count;
            }
        }
    }

    /// Takes bytes into the digest.
    pub fn digest(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        let mut digest = self.digest ^ bytes.len() as u64;
        for word in &mut words {
            let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
            digest = (digest.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
        for byte in words.remainder() {
            digest = (digest.rotate_left(5) ^ u64::from(*byte)).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
        self.digest = digest;
    }
}
