//! Errors by action. A refusal names the property; a failed establishment lists every candidate with its error.

use crate::framer::FramerError;
use crate::security::SecurityError;
use anabranch_selection::{Candidate, PropertyError, Refusal};
use std::{fmt, io};

/// The connection was not established (RFC 9622 §7: `EstablishmentError`).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No candidate satisfies the properties.
    #[error("{reason}")]
    Refused {
        /// The first violated property.
        property: String,
        /// Every violated property, with the items that violate it and their values.
        reason: String,
    },
    /// Contradictory properties.
    #[error(transparent)]
    Property(#[from] PropertyError),
    /// An endpoint is incomplete.
    #[error("endpoint: {0}")]
    Endpoint(String),
    /// A name cannot be resolved.
    #[error("{name} cannot be resolved: {source}")]
    Resolve {
        /// The host name.
        name: String,
        /// Error of the resolver.
        source: io::Error,
    },
    /// The answer of the agent is not understood.
    #[error("the agent at {place}: {reason}")]
    Agent {
        /// Socket of the agent.
        place: String,
        /// The fault, and the remedy.
        reason: String,
    },
    /// Every candidate failed.
    #[error("no candidate could be connected{}", Attempts(.0))]
    Failed(Vec<Attempt>),
    /// The time limit was exceeded.
    #[error("not connected in time{}", Attempts(.0))]
    TimedOut(Vec<Attempt>),
    /// Invalid certificates, keys or names.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// The local endpoint cannot be listened on.
    #[error("cannot listen: {0}")]
    Listen(String),
    /// The first message was rejected.
    #[error(transparent)]
    Send(#[from] SendError),
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let property = refusal.failed.first().map(|f| f.property.clone()).unwrap_or_default();
        Self::Refused { property, reason: refusal.to_string() }
    }
}

/// A candidate that failed.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The candidate that was tried.
    pub candidate: Candidate,
    /// Error of the attempt.
    pub error: String,
}

struct Attempts<'a>(&'a [Attempt]);

impl fmt::Display for Attempts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, attempt) in self.0.iter().enumerate() {
            f.write_str(if i == 0 { ": " } else { "; " })?;
            let c = &attempt.candidate;
            let paths: Vec<String> = c.paths.iter().map(ToString::to_string).collect();
            let (protocol, to) = (c.protocol, c.endpoint.socket_addr());
            write!(f, "{protocol} to {to} by {}: {}", paths.join(" + "), attempt.error)?;
        }
        Ok(())
    }
}

/// A message was not sent (RFC 9622 §9.2.2.3).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The connection is closed, or its sending side is.
    #[error("the connection is closed for sending")]
    Closed,
    /// A final message was sent before.
    #[error("property \"final\": the last message was sent already")]
    AfterFinal,
    /// A message property that this connection does not support.
    #[error("property \"{property}\": {reason}")]
    Property {
        /// Its name in RFC 9622.
        property: &'static str,
        /// The reason, and the remedy.
        reason: String,
    },
    /// The message exceeds the maximum of this connection.
    #[error("a message of {bytes} bytes: this connection sends at most {most}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The maximum.
        most: usize,
    },
    /// Rejected by a framer.
    #[error(transparent)]
    Framer(#[from] FramerError),
}

/// Nothing more can be received (RFC 9622 §9.3.2.3).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The connection was closed locally.
    #[error("the connection is closed")]
    Closed,
    /// The protocol failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// The received data is not a valid message of the framer.
    #[error(transparent)]
    Framer(#[from] FramerError),
    /// The peer ended within a message.
    #[error("the peer ended inside a message: {0} bytes of it arrived")]
    Incomplete(usize),
}

/// A connection that cannot be cloned, or has left its group (RFC 9622 §7.4).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloneError {
    /// Only the side that opened it can open another one.
    #[error("the peer opened this connection: over {0} only the peer can open another one")]
    Passive(anabranch_selection::Protocol),
    /// The connection is closed.
    #[error("the connection is closed")]
    Closed,
    /// The clone cannot be opened.
    #[error("the clone cannot be opened: {0}")]
    Open(#[from] io::Error),
}
