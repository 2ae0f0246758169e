//! Makes a failing plan small: fewer steps, faults, UEs and attackers, as long as the same invariant fails.

use super::check::{Invariant, Violation};
use super::plan::{Kind, Mode, Plan, UePlan};
use super::run::run;

/// A plan that fails, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct Shrunk {
    /// The plan.
    pub plan: Plan,
    /// What does not hold.
    pub violation: Violation,
    /// Runs it took.
    pub runs: u32,
}

struct Search {
    best: Shrunk,
    invariant: Invariant,
    most: u32,
}

/// The smallest plan that was found within `most` runs.
#[must_use]
pub fn shrink(plan: &Plan, violation: &Violation, most: u32) -> Shrunk {
    let best = Shrunk { plan: plan.clone(), violation: violation.clone(), runs: 0 };
    let mut search = Search { best, invariant: violation.invariant, most };
    loop {
        let before = search.best.plan.clone();
        search.steps();
        search.faults();
        search.parts();
        search.ues();
        search.details();
        if search.best.plan == before || search.is_over() {
            return search.best;
        }
    }
}

impl Search {
    fn is_over(&self) -> bool {
        self.best.runs >= self.most
    }

    /// Keeps a plan if it fails in the same way.
    fn try_plan(&mut self, plan: Plan) -> bool {
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
        // Whatever comes after what fails is not needed.
        let at = self.best.violation.step;
        if at > 0 && at < self.best.plan.steps {
            let faults = self.best.plan.faults.iter().filter(|fault| fault.at <= at).cloned().collect();
            self.try_plan(Plan { steps: at, faults, ..self.best.plan.clone() });
        }
        for divisor in [2, 4, 10] {
            while self.best.plan.steps > 1 {
                let steps = self.best.plan.steps - self.best.plan.steps.div_ceil(divisor);
                if !self.try_plan(Plan { steps, ..self.best.plan.clone() }) {
                    break;
                }
            }
        }
    }

    /// Leaves out halves, then quarters, down to single faults (delta debugging).
    fn faults(&mut self) {
        let mut size = self.best.plan.faults.len();
        while size > 0 {
            let mut from = 0;
            while from < self.best.plan.faults.len() {
                let mut plan = self.best.plan.clone();
                let to = (from + size).min(plan.faults.len());
                plan.faults.drain(from..to);
                if !self.try_plan(plan) {
                    from += size;
                }
            }
            size /= 2;
        }
    }

    fn parts(&mut self) {
        let plan = |search: &Self| search.best.plan.clone();
        let without = Plan { hostile: false, ..plan(self) };
        self.try_plan(without);
        let without = Plan { strangers: false, ..plan(self) };
        self.try_plan(without);
        let without = Plan { upfs: 1, ..plan(self) };
        self.try_plan(without);
        let without = Plan { plain: [false; 2], ..plan(self) };
        self.try_plan(without);
    }

    fn ues(&mut self) {
        let mut ue = self.best.plan.ues.len();
        while ue > 0 && self.best.plan.ues.len() > 1 {
            ue -= 1;
            self.try_plan(self.best.plan.without_ue(ue as u8));
        }
    }

    fn details(&mut self) {
        for n in 0..self.best.plan.faults.len() {
            while self.best.plan.faults[n].ms > 1 {
                let mut plan = self.best.plan.clone();
                plan.faults[n].ms /= 2;
                if !self.try_plan(plan) {
                    break;
                }
            }
            let mut plan = self.best.plan.clone();
            if let Kind::Burst { packets, .. } = &mut plan.faults[n].kind {
                *packets = (*packets / 2).max(1);
                self.try_plan(plan);
            }
        }
        for n in 0..self.best.plan.ues.len() {
            let changes: [fn(&mut UePlan); 4] = [
                |ue| ue.mode = Mode::First,
                |ue| ue.mtu = [1_500; 2],
                |ue| ue.early = false,
                |ue| ue.delay_ms = [10, 20],
            ];
            for change in changes {
                let mut plan = self.best.plan.clone();
                change(&mut plan.ues[n]);
                self.try_plan(plan);
            }
        }
    }
}
