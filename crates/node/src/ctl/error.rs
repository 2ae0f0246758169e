//! What can go wrong when asking an agent, and the exit code that says so to scripts.

use crate::runtime::api::Problem;
use crate::runtime::config::ConfigError;
use std::fmt::Display;

/// A failure of `anabranch ctl`. Each text names the place and what to do.
#[derive(Debug, thiserror::Error)]
pub enum CtlError {
    /// It did not work, and neither the arguments nor the agent's refusal are why.
    #[error("{0}")]
    Failed(String),
    /// The arguments, or a file they name, are wrong.
    #[error("{0}")]
    Usage(String),
    /// Nobody answers.
    #[error("{place}: {cause}; {remedy}")]
    Unreachable {
        /// Socket or URL.
        place: String,
        /// Why not.
        cause: String,
        /// What to do.
        remedy: String,
    },
    /// The agent said no.
    #[error("{place}: {}", sentence(.problem))]
    Refused {
        /// Method and path.
        place: String,
        /// What it answered.
        problem: Box<Problem>,
    },
}

impl CtlError {
    /// 1 failed, 2 usage, 3 not reachable, 4 refused.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            Self::Unreachable { .. } => 3,
            Self::Refused { .. } => 4,
        }
    }

    /// A failure at `place`.
    pub fn failed(place: impl Display, cause: impl Display) -> Self {
        Self::Failed(format!("{place}: {cause}"))
    }
}

impl From<ConfigError> for CtlError {
    fn from(error: ConfigError) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<std::io::Error> for CtlError {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(format!("writing the answer: {error}"))
    }
}

fn sentence(problem: &Problem) -> String {
    let field = problem.field.as_ref().map(|f| format!(" (field \"{f}\")")).unwrap_or_default();
    format!("{} {}: {}{field}; {}", problem.status, problem.title, problem.detail, problem.remedy)
}
