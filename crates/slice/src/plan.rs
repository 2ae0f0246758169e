//! Plan, execute, roll back: the steps that make a change in the network, one at a time, each of which can be undone.
//!
//! ```text
//!  steps  a ─▶ b ─▶ c ─▶ Done          a step says what is to be so, not what is to be changed: done twice
//!              │ fails                 (after a crash) it is the same
//!         undo a ◀─ undo b ─▶ Undone(why)
//! ```

use serde::{Deserialize, Serialize};

/// One change in the network.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// The RB shares of a cell.
    Shares {
        /// Which.
        access: String,
    },
    /// Network services that MANO starts (a NEST's `ns_list`).
    Services,
    /// Whether what was changed is in force.
    Verify {
        /// Where.
        access: String,
    },
}

/// What is to be done now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Make it so.
    Do(Step),
    /// Make it as it was before.
    Undo(Step),
}

/// How a plan ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Everything is done.
    Done,
    /// A step failed, for this reason; all before it were undone, but for those listed.
    Undone {
        /// Why the step failed.
        why: String,
        /// What could not be undone.
        left: Vec<Step>,
    },
}

/// A plan and how far it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Execution {
    steps: Vec<Step>,
    /// Going forward: steps done. Going back: steps still to undo.
    at: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    left: Vec<Step>,
}

impl Execution {
    /// Steps in the order they are done.
    #[must_use]
    pub fn new(steps: Vec<Step>) -> Self {
        Self { steps, at: 0, failed: None, left: Vec::new() }
    }

    /// What is to be done, or how it ended.
    ///
    /// # Errors
    /// None; the `Err` side is the end.
    pub fn next(&self) -> Result<Action, Outcome> {
        match &self.failed {
            None => self.steps.get(self.at).cloned().map(Action::Do).ok_or(Outcome::Done),
            Some(why) => match self.at.checked_sub(1).and_then(|last| self.steps.get(last)) {
                Some(step) => Ok(Action::Undo(step.clone())),
                None => Err(Outcome::Undone { why: why.clone(), left: self.left.clone() }),
            },
        }
    }

    /// Tells how the step went that [`Self::next`] named. A failure turns round; a failure on the way back is noted,
    /// and the way goes on.
    pub fn done(&mut self, result: Result<(), String>) {
        match (&self.failed, result) {
            (None, Ok(())) => self.at = (self.at + 1).min(self.steps.len()),
            // The step that failed may have been done in part: it is undone, too.
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
        /// Whatever fails: the plan ends, and what was done and not undone is exactly what it says.
        #[test]
        fn what_is_left_is_what_it_says(n in 0_usize..6, fails in prop::collection::vec(any::<bool>(), 16)) {
            let mut plan = Execution::new(steps(n));
            let mut made = std::collections::BTreeSet::new();
            let mut fails = fails.into_iter();
            for _ in 0..=2 * n {
                // As a crash would: what is stored goes on.
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
