//! Backends that run a scenario: virtual time or network namespaces.

use crate::scenario::Case;
use crate::scenario::file::BackendName;
use std::collections::BTreeMap;

/// Runs one variant of a scenario once.
pub trait Backend: Sync {
    /// Name on the command line and in results.
    fn name(&self) -> BackendName;

    /// Whether several runs can execute concurrently without affecting each other.
    fn parallel(&self) -> bool;

    /// Runs `case` with `seed` and reports progress.
    ///
    /// # Errors
    /// [`Unable`] if this machine cannot run it; other errors if the run fails.
    fn run(&self, case: &Case, seed: u64, progress: &dyn Progress) -> anyhow::Result<Outcome>;
}

/// Results of one run.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Single values; the names are in docs/scenarios.md.
    pub metrics: BTreeMap<String, f64>,
    /// Series for plots, without variant prefixes.
    pub series: BTreeMap<String, Series>,
    /// Facts needed to interpret the numbers: kernel, congestion control, programs and versions.
    pub facts: Vec<(String, String)>,
    /// Events: time in seconds and a short description.
    pub events: Vec<(f64, String)>,
}

/// Points of a series: x is the time in seconds, or the number of the run.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct Series {
    /// In order of x.
    pub points: Vec<(f64, f64)>,
}

/// Receiver of the progress of a run.
pub trait Progress: Sync {
    /// The completed share of the run, 0 to 1.
    fn at(&self, share: f64);
    /// A short description of the current step.
    fn doing(&self, what: &str);
}

/// Ignores progress.
pub struct Quiet;

impl Progress for Quiet {
    fn at(&self, _: f64) {}
    fn doing(&self, _: &str) {}
}

/// This machine cannot execute the request. The text states the reason and a remedy.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unable(pub String);
