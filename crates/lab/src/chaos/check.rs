//! The invariants by name, and how often each was checked.

use std::collections::BTreeMap;
use std::fmt;

/// An invariant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// Every delivered packet was sent, to this receiver and with these bytes.
    Intact,
    /// No packet is delivered twice where duplicates can be detected.
    Once,
    /// A reliable flow delivers every byte once, in order and unchanged.
    Reliable,
    /// No user data in clear text on a secure access.
    Sealed,
    /// No packet is delivered with the source address of another UE.
    OwnSource,
    /// If the accesses lost nothing, nothing is lost.
    Lossless,
    /// If the accesses preserved the order, a rule with reordering preserves it.
    Order,
    /// In that case, no packet waits longer than the delay of the slower access.
    Prompt,
    /// In that case, both ends measure neither a queue nor loss, whatever their clocks do.
    Measured,
    /// A UE with a good access receives service.
    Served,
    /// Packets that must be ignored are counted as dropped.
    Counted,
    /// One UE leaves reorder queues and memory to others.
    Share,
    /// The sizes of tables and queues are bounded.
    Bounded,
    /// No component requests a wake-up without having anything to do.
    NoSpin,
    /// After the faults end, sessions and paths come up within the bound.
    Converges,
    /// Without faults and traffic, nothing stays buffered.
    Empty,
    /// The service of an honest UE does not depend on a hostile UE.
    Independent,
    /// No panic on any input.
    NoPanic,
    /// What is promised or in force never exceeds the capacity.
    Admitted,
    /// An acknowledged change persists, whatever happens afterwards.
    Remembered,
    /// Versions increase by one per change.
    Versions,
    /// Resources of a session are released exactly once when it ends, and those of others remain.
    Returned,
    /// No identifier is assigned twice.
    Unique,
    /// The balances of slices sum to 0 and are bounded.
    Balanced,
}

impl Invariant {
    /// Name in messages and reports.
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

/// A violated invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub invariant: Invariant,
    /// Step at which it was violated.
    pub step: u64,
    /// What was observed.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at step {}: {}", self.invariant.name(), self.step, self.what)
    }
}

/// Statistics of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of steps.
    pub steps: u64,
    /// Virtual time elapsed, milliseconds.
    pub virtual_ms: u64,
    /// Faults of the plan, by kind.
    pub planned: BTreeMap<&'static str, u64>,
    /// How often each kind had an effect, such as a lost packet or a restarted program.
    pub effects: BTreeMap<&'static str, u64>,
    /// How often each invariant was checked.
    pub checked: BTreeMap<&'static str, u64>,
    /// Digest of everything that was sent.
    pub digest: u64,
}

impl Tally {
    /// Counts effects of a fault.
    pub fn effect(&mut self, kind: &'static str, times: u64) {
        if times > 0 {
            *self.effects.entry(kind).or_default() += times;
        }
    }

    /// Counts a check of an invariant.
    pub fn count_check(&mut self, invariant: Invariant) {
        *self.checked.entry(invariant.name()).or_default() += 1;
    }

    /// Adds the statistics of another run.
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

    /// Adds bytes to the digest.
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
