//! Events of a connection (RFC 9622 §7 to §10).

use crate::message::MessageId;

/// An event. Events of a connection are in order; if they are not read, the oldest beyond 256 are dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The connection is established.
    Ready,
    /// A message was passed to the kernel, or to QUIC.
    Sent(MessageId),
    /// A message exceeded its lifetime and was not sent.
    Expired(MessageId),
    /// A message was not sent.
    SendError(MessageId, String),
    /// A message, or a part of one, was returned to the program.
    Received {
        /// Its length.
        bytes: usize,
        /// Whether it ends the message.
        end_of_message: bool,
    },
    /// A path was added or lost, or the connection moved to another path.
    PathChange {
        /// Number of paths in use; 0 if unknown.
        paths: u8,
    },
    /// An error that does not end the connection: an ICMP error; or a failed step of the plan that concerns the treatment of packets
    /// but not their path.
    SoftError(String),
    /// The connection has left its group: a property could not be set on it.
    CloneError(String),
    /// The connection was closed without error; no further events.
    Closed,
    /// The connection failed; no further events.
    ConnectionError(String),
    /// This number of events was dropped because they were not read.
    Lost(u64),
}
