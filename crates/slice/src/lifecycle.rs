//! The life of a slice (TS 28.531 §5.1; the states are Katana's, made explicit).
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

/// Where a slice is in its life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", content = "reason")]
pub enum State {
    /// Known, and nothing done yet.
    Init,
    /// Its accesses are chosen and its guarantees reserved.
    Placement,
    /// The network is being changed.
    Provisioning,
    /// The network was changed; it is made sure that it works.
    Activation,
    /// It carries traffic as promised.
    Running,
    /// It carries traffic, but not as promised: why.
    Degraded(String),
    /// The network is being changed back.
    Terminating,
    /// It could not be made: why. What was done was undone; it is tried again, or changed.
    Failed(String),
}

/// What happens to a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Accesses were chosen.
    Placed,
    /// Changing the network begins.
    Provision,
    /// The last change was made.
    Activate,
    /// It was made sure that it works.
    Run,
    /// Something is wrong.
    Degrade(String),
    /// Nothing is wrong any more.
    Recover,
    /// Other guarantees are wanted, or the same once more.
    Change,
    /// It cannot be made.
    Fail(String),
    /// It is not wanted any more.
    Terminate,
}

/// What cannot happen in this state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a slice that is {from} cannot {what}")]
pub struct Illegal {
    /// The state.
    pub from: &'static str,
    /// What was to happen.
    pub what: &'static str,
}

impl State {
    /// Its name, as Katana and the interface write it.
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

    /// Why, where that is known.
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

    /// The state after `phase`.
    ///
    /// # Errors
    /// The drawing has no such arrow.
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
            // A change that failed left the slice as it was.
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
    fn the_whole_life_and_no_other() {
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
