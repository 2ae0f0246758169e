//! What happens to a connection (RFC 9622 §7 to §10).

use crate::message::MessageId;

/// Something that happened. Events of a connection come in order; who does not ask for them loses the oldest beyond 256.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// It is established.
    Ready,
    /// A message was handed to the kernel, or to QUIC.
    Sent(MessageId),
    /// A message waited longer than its lifetime, and is not sent.
    Expired(MessageId),
    /// A message is not sent.
    SendError(MessageId, String),
    /// A message, or a part of one, was given to the program.
    Received {
        /// Its length.
        bytes: usize,
        /// Whether it ends the message.
        end_of_message: bool,
    },
    /// A path was added or lost, or the connection moved to another one.
    PathChange {
        /// How many paths it uses now; 0 while that is not known.
        paths: u8,
    },
    /// The network said something that does not end the connection: an ICMP error; or a step of the plan that concerns how
    /// packets are treated, not where they go, could not be done.
    SoftError(String),
    /// It is no longer entangled with its group: a property could not be set on it.
    CloneError(String),
    /// It was closed without error; nothing follows.
    Closed,
    /// It failed; nothing follows.
    ConnectionError(String),
    /// So many events were lost because nobody asked for them.
    Lost(u64),
}
