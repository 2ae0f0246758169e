//! One run of a plan of any system.

use super::check::{Invariant, Tally, Violation};
use super::system::System;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Statistics.
    pub tally: Tally,
    /// The violated invariant, if any.
    pub violation: Option<Violation>,
}

/// Runs a plan.
#[must_use]
pub fn run<S: System>(plan: &S) -> Outcome {
    run_with(plan, &mut None)
}

/// Runs a plan and returns a log of events (of the run with attackers, if there are any).
#[must_use]
pub fn run_traced<S: System>(plan: &S) -> (Outcome, Vec<String>) {
    let mut trace = Some(Vec::new());
    (run_with(plan, &mut trace), trace.unwrap_or_default())
}

fn run_with<S: System>(plan: &S, trace: &mut Option<Vec<String>>) -> Outcome {
    let mut tally = Tally::default();
    let result = catch_unwind(AssertUnwindSafe(|| plan.play(&mut tally, trace)));
    tally.count_check(Invariant::NoPanic);
    let violation = match result {
        Ok(result) => result.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            let what = text.unwrap_or_else(|| "a panic without a text".into());
            Some(Violation { invariant: Invariant::NoPanic, step: 0, what })
        }
    };
    Outcome { tally, violation }
}
