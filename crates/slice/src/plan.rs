//! Plan, execute, roll back: the steps of a change in the network, one at a time, each of which can be undone.
//!
//! ```text
//!  steps  a ─▶ b ─▶ c ─▶ Done          a step describes a target state, not a difference: it is
//!              │ fails                 idempotent and can be repeated after a crash
//!         undo a ◀─ undo b ─▶ Undone(why)
//! ```

use serde::{Deserialize, Serialize};

/// A change in the network.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// The RB shares of a cell.
    Shares {
        /// Name of the access.
        access: String,
    },
    /// Network services started by MANO (a NEST's `ns_list`).
    Services,
    /// Verification that the changes are in force.
    Verify {
        /// Name of the access.
        access: String,
    },
}

/// The next action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Apply the step.
    Do(Step),
    /// Restore the previous state.
    Undo(Step),
}

/// Result of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All steps were applied.
    Done,
    /// A step failed; all steps before it were undone, except those listed.
    Undone {
        /// Why the step failed.
        why: String,
        /// Steps that could not be undone.
        left: Vec<Step>,
    },
}

/// A plan and its progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Execution {
    steps: Vec<Step>,
    /// Forward: number of steps applied. Backward: number of steps still to undo.
    at: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    left: Vec<Step>,
}

impl Execution {
    /// A plan with these steps in order.
    #[must_use]
    pub fn new(steps: Vec<Step>) -> Self {
        Self { steps, at: 0, failed: None, left: Vec::new() }
    }

    /// The next action, or the outcome.
    ///
    /// # Errors
    /// No failure: `Err` is the outcome of a plan that has ended.
    pub fn next(&self) -> Result<Action, Outcome> {
        match &self.failed {
            None => self.steps.get(self.at).cloned().map(Action::Do).ok_or(Outcome::Done),
            Some(why) => match self.at.checked_sub(1).and_then(|last| self.steps.get(last)) {
                Some(step) => Ok(Action::Undo(step.clone())),
                None => Err(Outcome::Undone { why: why.clone(), left: self.left.clone() }),
            },
        }
    }

    /// Records the result of the action returned by [`Self::next`]. A failure starts the rollback; a failure during the rollback is
    /// recorded, and the rollback continues.
    pub fn done(&mut self, result: Result<(), String>) {
        match (&self.failed, result) {
            (None, Ok(())) => self.at = (self.at + 1).min(self.steps.len()),
            // The failed step may have been applied in part, so it is undone as well.
            (None, Err(why)) => {
                self.failed = Some(why);
                self.at = (self.at + 1).min(self.steps.len());
            }
            (Some(_), result) => {
                self.at = self.at.saturating_sub(1);
                if let (Err(_), Some(step)) = (result, self.steps.get(self.at)) {
                    self.left.push(step.clone());
                }
            }
        }
    }

    /// The steps, as planned.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn steps(n: usize) -> Vec<Step> {
        (0..n).map(|i| Step::Shares { access: i.to_string() }).collect()
    }

    proptest! {
        /// With any failures, the plan ends, and the steps applied and not undone are exactly those reported.
        #[test]
        fn remaining_steps_are_reported_exactly(n in 0_usize..6, fails in prop::collection::vec(any::<bool>(), 16)) {
            let mut plan = Execution::new(steps(n));
            let mut made = std::collections::BTreeSet::new();
            let mut fails = fails.into_iter();
            for _ in 0..=2 * n {
                // After a crash, execution continues from the stored state.
                plan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).unwrap();
                let Ok(action) = plan.next() else { break };
                let fail = fails.next().unwrap_or(false);
                match action {
                    Action::Do(step) => drop(made.insert(step)),
                    Action::Undo(step) if !fail => drop(made.remove(&step)),
                    Action::Undo(_) => {}
                }
                plan.done(if fail { Err("no".into()) } else { Ok(()) });
            }
            match plan.next() {
                Err(Outcome::Done) => prop_assert_eq!(made.len(), n),
                Err(Outcome::Undone { left, .. }) => {
                    prop_assert_eq!(made, left.into_iter().collect());
                }
                Ok(action) => prop_assert!(false, "does not end: {:?}", action),
            }
        }
    }
}
