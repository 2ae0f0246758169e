//! What can go wrong, by action. A refusal names the property; a failed establishment names every candidate and its error.

use crate::framer::FramerError;
use crate::security::SecurityError;
use anabranch_selection::{Candidate, PropertyError, Refusal};
use std::{fmt, io};

/// No connection (RFC 9622 §7: `EstablishmentError`).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No candidate satisfies the properties.
    #[error("{reason}")]
    Refused {
        /// The first property that failed.
        property: String,
        /// Every property that failed, for what, and what that has instead.
        reason: String,
    },
    /// A property contradicts itself or another.
    #[error(transparent)]
    Property(#[from] PropertyError),
    /// An endpoint lacks something.
    #[error("endpoint: {0}")]
    Endpoint(String),
    /// A name has no address.
    #[error("{name} cannot be resolved: {source}")]
    Resolve {
        /// The name.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// The agent answers what cannot be understood.
    #[error("the agent at {place}: {reason}")]
    Agent {
        /// Where it was asked.
        place: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// Every candidate was tried.
    #[error("no candidate could be connected{}", Attempts(.0))]
    Failed(Vec<Attempt>),
    /// It took longer than the caller allows.
    #[error("not connected in time{}", Attempts(.0))]
    TimedOut(Vec<Attempt>),
    /// Certificates, keys or names are wrong.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// A local address cannot be listened at.
    #[error("cannot listen: {0}")]
    Listen(String),
    /// The first message was refused.
    #[error(transparent)]
    Send(#[from] SendError),
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let property = refusal.failed.first().map(|f| f.property.clone()).unwrap_or_default();
        Self::Refused { property, reason: refusal.to_string() }
    }
}

/// A candidate that did not become the connection.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The candidate.
    pub candidate: Candidate,
    /// Why not.
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

/// A message that is not sent (RFC 9622 §9.2.2.3).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The connection is closed, or its sending side is.
    #[error("the connection is closed for sending")]
    Closed,
    /// A final message was sent already.
    #[error("property \"final\": the last message was sent already")]
    AfterFinal,
    /// A message property that this connection cannot keep.
    #[error("property \"{property}\": {reason}")]
    Property {
        /// Its name in RFC 9622.
        property: &'static str,
        /// Why not, and what would be right.
        reason: String,
    },
    /// It is longer than this connection sends.
    #[error("a message of {bytes} bytes: this connection sends at most {most}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The most there is.
        most: usize,
    },
    /// A framer refuses it.
    #[error(transparent)]
    Framer(#[from] FramerError),
}

/// Nothing more can be received (RFC 9622 §9.3.2.3).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The connection is closed here.
    #[error("the connection is closed")]
    Closed,
    /// The protocol failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// What arrived is no message of the framer's.
    #[error(transparent)]
    Framer(#[from] FramerError),
    /// The peer ended in the middle of a message.
    #[error("the peer ended inside a message: {0} bytes of it arrived")]
    Incomplete(usize),
}

/// A connection that cannot be cloned, or left its group (RFC 9622 §7.4).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloneError {
    /// Only who opened it can open another one.
    #[error("the peer opened this connection: over {0} only the peer can open another one")]
    Passive(anabranch_selection::Protocol),
    /// It is closed.
    #[error("the connection is closed")]
    Closed,
    /// The new one cannot be opened.
    #[error("the clone cannot be opened: {0}")]
    Open(#[from] io::Error),
}
