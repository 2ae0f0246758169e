//! What runs a scenario: virtual time or network namespaces.

use crate::scenario::Case;
use crate::scenario::file::BackendName;
use std::collections::BTreeMap;

/// Runs one variant of a scenario once.
pub trait Backend: Sync {
    /// Its name.
    fn name(&self) -> BackendName;

    /// Whether several runs may go on at the same time without disturbing one another.
    fn parallel(&self) -> bool;

    /// Runs `case` with `seed` and says how far it is.
    ///
    /// # Errors
    /// [`Unable`] if this machine cannot run it; anything else that went wrong.
    fn run(&self, case: &Case, seed: u64, progress: &dyn Progress) -> anyhow::Result<Outcome>;
}

/// What one run produced.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Single values; the names are in docs/scenarios.md.
    pub metrics: BTreeMap<String, f64>,
    /// Series for plots, without the names of variants.
    pub series: BTreeMap<String, Series>,
    /// What a reader must know to judge the numbers: kernel, congestion control, programs and versions.
    pub facts: Vec<(String, String)>,
    /// What happened when: seconds and a few words.
    pub events: Vec<(f64, String)>,
}

/// Points of a series: x is the time in seconds, or the number of the run.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct Series {
    /// In order of x.
    pub points: Vec<(f64, f64)>,
}

/// Told how far a run is.
pub trait Progress: Sync {
    /// The run is `share` (0 to 1) through.
    fn at(&self, share: f64);
    /// What the run is doing, in a few words.
    fn doing(&self, what: &str);
}

/// Nobody looks.
pub struct Quiet;

impl Progress for Quiet {
    fn at(&self, _: f64) {}
    fn doing(&self, _: &str) {}
}

/// This machine cannot do what was asked; says why and what would help.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unable(pub String);
