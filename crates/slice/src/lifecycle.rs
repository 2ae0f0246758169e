//! Life cycle of a slice (TS 28.531 §5.1; the states are those of Katana, made explicit).
//!
//! ```text
//!  Init ─placed─▶ Placement ─provision─▶ Provisioning ─activate─▶ Activation ─run─▶ Running ⇄ Degraded(why)
//!                     ▲                        │                      │                │           │
//!                     │ change                 └──────── fail ────────┴─▶ Failed(why)  │           │
//!                     └───────────────────────────────────────────────────────┴────────┴───────────┘
//!  every state but Terminating ─terminate─▶ Terminating ─▶ gone
//! ```

use serde::{Deserialize, Serialize};
use std::fmt;

/// State of a slice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", content = "reason")]
pub enum State {
    /// The slice is known; nothing has been done yet.
    Init,
    /// Its accesses are selected and its guarantees reserved.
    Placement,
    /// The network is being configured.
    Provisioning,
    /// The network has been configured; the result is being verified.
    Activation,
    /// The slice carries traffic with its guarantees.
    Running,
    /// The slice carries traffic, but not as guaranteed, for this reason.
    Degraded(String),
    /// The configuration is being removed.
    Terminating,
    /// The slice could not be created, for this reason. Its steps were undone; it will be retried or changed.
    Failed(String),
}

/// An event in the life cycle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Accesses were selected.
    Placed,
    /// Configuration of the network begins.
    Provision,
    /// The last configuration step was completed.
    Activate,
    /// The configuration was verified.
    Run,
    /// A fault was detected.
    Degrade(String),
    /// All faults are cleared.
    Recover,
    /// A change of the guarantees, or a retry with the same ones.
    Change,
    /// The slice cannot be created.
    Fail(String),
    /// The slice is to be removed.
    Terminate,
}

/// An event that is not permitted in a state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a slice that is {from} cannot {what}")]
pub struct Illegal {
    /// The state.
    pub from: &'static str,
    /// The event.
    pub what: &'static str,
}

impl State {
    /// Name of the state, as in Katana and in the interface.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Init => "Init",
            Self::Placement => "Placement",
            Self::Provisioning => "Provisioning",
            Self::Activation => "Activation",
            Self::Running => "Running",
            Self::Degraded(_) => "Degraded",
            Self::Terminating => "Terminating",
            Self::Failed(_) => "Failed",
        }
    }

    /// The reason, if there is one.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Degraded(why) | Self::Failed(why) => Some(why),
            _ => None,
        }
    }

    /// Whether traffic can use it.
    #[must_use]
    pub const fn usable(&self) -> bool {
        matches!(self, Self::Running | Self::Degraded(_))
    }

    /// The state after an event.
    ///
    /// # Errors
    /// The transition is not in the diagram.
    pub fn after(&self, phase: &Phase) -> Result<Self, Illegal> {
        Ok(match (self, phase) {
            (Self::Init, Phase::Placed) => Self::Placement,
            (Self::Placement, Phase::Provision) => Self::Provisioning,
            (Self::Provisioning, Phase::Activate) => Self::Activation,
            (Self::Activation, Phase::Run) => Self::Running,
            (Self::Running | Self::Degraded(_), Phase::Degrade(why)) => Self::Degraded(why.clone()),
            (Self::Degraded(_), Phase::Recover) => Self::Running,
            (Self::Running | Self::Degraded(_) | Self::Failed(_), Phase::Change) => Self::Placement,
            (Self::Init | Self::Placement | Self::Provisioning | Self::Activation, Phase::Fail(why)) => {
                Self::Failed(why.clone())
            }
            // After a failed change, the slice is as before.
            (Self::Provisioning | Self::Activation | Self::Placement, Phase::Recover) => Self::Running,
            (from, Phase::Terminate) if *from != Self::Terminating => Self::Terminating,
            (from, phase) => return Err(Illegal { from: from.name(), what: phase.name() }),
        })
    }
}

impl Phase {
    const fn name(&self) -> &'static str {
        match self {
            Self::Placed => "be placed",
            Self::Provision => "be provisioned",
            Self::Activate => "be activated",
            Self::Run => "begin to run",
            Self::Degrade(_) => "degrade",
            Self::Recover => "recover",
            Self::Change => "be changed",
            Self::Fail(_) => "fail",
            Self::Terminate => "be removed",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason() {
            Some(why) => write!(f, "{}: {why}", self.name()),
            None => f.write_str(self.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_transitions_of_the_diagram_are_permitted() {
        let mut state = State::Init;
        for phase in [
            Phase::Placed,
            Phase::Provision,
            Phase::Activate,
            Phase::Run,
            Phase::Degrade("cell down".into()),
            Phase::Recover,
            Phase::Change,
            Phase::Provision,
            Phase::Activate,
            Phase::Run,
            Phase::Terminate,
        ] {
            state = state.after(&phase).unwrap();
        }
        assert_eq!(state, State::Terminating);
        let error = state.after(&Phase::Run).unwrap_err().to_string();
        assert_eq!(error, "a slice that is Terminating cannot begin to run");
        assert!(State::Terminating.after(&Phase::Terminate).is_err());
        assert!(State::Running.after(&Phase::Fail("x".into())).is_err());
        assert!(State::Failed("x".into()).after(&Phase::Recover).is_err());
        assert_eq!(State::Failed("x".into()).after(&Phase::Change), Ok(State::Placement));
        assert_eq!(State::Failed("x".into()).after(&Phase::Terminate), Ok(State::Terminating));
    }
}
