//! Shrinks a failing plan: fewer steps, faults and parts of the world, as long as the same invariant fails.

use super::check::{Invariant, Violation};
use super::run::run;
use super::system::System;

/// A failing plan and its failure.
#[derive(Debug, Clone, PartialEq)]
pub struct Shrunk<S> {
    /// The smallest plan found that still fails.
    pub plan: S,
    /// The violated invariant.
    pub violation: Violation,
    /// Number of runs used.
    pub runs: u32,
}

struct Search<S> {
    best: Shrunk<S>,
    invariant: Invariant,
    most: u32,
}

/// The smallest failing plan found within `most` runs.
#[must_use]
pub fn shrink<S: System>(plan: &S, violation: &Violation, most: u32) -> Shrunk<S> {
    let best = Shrunk { plan: plan.clone(), violation: violation.clone(), runs: 0 };
    let mut search = Search { best, invariant: violation.invariant, most };
    loop {
        let before = search.best.plan.clone();
        search.steps();
        search.faults();
        search.parts();
        search.lengths();
        if search.best.plan == before || search.is_over() {
            return search.best;
        }
    }
}

impl<S: System> Search<S> {
    fn is_over(&self) -> bool {
        self.best.runs >= self.most
    }

    /// Keeps a plan if it violates the same invariant.
    fn try_plan(&mut self, plan: S) -> bool {
        if self.is_over() || plan == self.best.plan {
            return false;
        }
        self.best.runs += 1;
        let outcome = run(&plan);
        match outcome.violation.filter(|violation| violation.invariant == self.invariant) {
            Some(violation) => {
                (self.best.plan, self.best.violation) = (plan, violation);
                true
            }
            None => false,
        }
    }

    fn steps(&mut self) {
        // Steps after the failure are not needed.
        let at = self.best.violation.step;
        if at > 0 && at < self.best.plan.steps() {
            let faults = self.best.plan.faults().iter().filter(|fault| fault.at <= at).cloned().collect();
            self.try_plan(self.best.plan.with(at, faults));
        }
        for divisor in [2, 4, 10] {
            while self.best.plan.steps() > 1 {
                let steps = self.best.plan.steps() - self.best.plan.steps().div_ceil(divisor);
                if !self.try_plan(self.best.plan.with(steps, self.best.plan.faults().to_vec())) {
                    break;
                }
            }
        }
    }

    /// Removes halves of the faults, then quarters, down to single faults (delta debugging).
    fn faults(&mut self) {
        let mut size = self.best.plan.faults().len();
        while size > 0 {
            let mut from = 0;
            while from < self.best.plan.faults().len() {
                let mut faults = self.best.plan.faults().to_vec();
                let to = (from + size).min(faults.len());
                faults.drain(from..to);
                if !self.try_plan(self.best.plan.with(self.best.plan.steps(), faults)) {
                    from += size;
                }
            }
            size /= 2;
        }
    }

    /// Simplifies other parts of the plan, each for as long as the failure persists.
    fn parts(&mut self) {
        let mut n = 0;
        while let Some(plan) = self.best.plan.simpler().into_iter().nth(n) {
            if !self.try_plan(plan) {
                n += 1;
            }
        }
    }

    fn lengths(&mut self) {
        for n in 0..self.best.plan.faults().len() {
            while self.best.plan.faults()[n].ms > 1 {
                let mut faults = self.best.plan.faults().to_vec();
                faults[n].ms /= 2;
                if !self.try_plan(self.best.plan.with(self.best.plan.steps(), faults)) {
                    break;
                }
            }
        }
    }
}
