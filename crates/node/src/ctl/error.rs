//! Errors of requests to an agent, and the exit codes that report them to scripts.

use crate::runtime::api::Problem;
use crate::runtime::config::ConfigError;
use std::fmt::Display;

/// A failure of `anabranch ctl`. Each text names the place and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum CtlError {
    /// A failure that is due neither to the arguments nor to a refusal by the agent.
    #[error("{0}")]
    Failed(String),
    /// The arguments, or a file that they name, are invalid.
    #[error("{0}")]
    Usage(String),
    /// The agent does not answer.
    #[error("{place}: {cause}; {remedy}")]
    Unreachable {
        /// Socket or URL.
        place: String,
        cause: String,
        remedy: String,
    },
    /// The agent refused the request.
    #[error("{place}: {}", sentence(.problem))]
    Refused {
        /// Method and path.
        place: String,
        /// The problem document of the answer.
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

    /// A failure at `place` (file, URL or operation).
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
