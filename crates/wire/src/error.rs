//! Why bytes were refused.

use thiserror::Error;

/// Why a message could not be read or written.
///
/// `what` names the message or field in words fit for a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum WireError {
    /// Fewer bytes than the format needs.
    #[error("{what}: needs {need} bytes, has {have}")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Bytes needed.
        need: usize,
        /// Bytes there.
        have: usize,
    },
    /// A length field or the message's own length contradicts what is there.
    #[error("{what}: says or must be {expected} bytes, has {have}")]
    Length {
        /// What was being read.
        what: &'static str,
        /// Bytes expected.
        expected: usize,
        /// Bytes there.
        have: usize,
    },
    /// The first byte names no message type, or one that is not allowed here.
    #[error("message type 0x{0:02x} is unknown or not allowed here")]
    Type(u8),
    /// A field holds a value that is not allowed.
    #[error("{what}: value {got} is not allowed")]
    Value {
        /// Which field.
        what: &'static str,
        /// What it held.
        got: u64,
    },
    /// A part that must be there exactly once is not there.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A part that may be there once is there again, or more often than allowed.
    #[error("{0} is repeated")]
    Repeated(&'static str),
    /// Text is not what a name may be: 1 to 32 bytes of letters, digits, `-`, `_`, `.`.
    #[error("{0} is not a name of 1 to 32 letters, digits, '-', '_' or '.'")]
    Name(&'static str),
    /// A checksum does not verify.
    #[error("{0}: checksum does not verify")]
    Checksum(&'static str),
    /// Something too large to be written in this format.
    #[error("{what}: {have} is more than {most}")]
    TooLong {
        /// What was being written.
        what: &'static str,
        /// The most allowed.
        most: usize,
        /// What was asked for.
        have: usize,
    },
    /// Two addresses that must be of one family are not.
    #[error("source and destination are not of the same address family")]
    Family,
}
