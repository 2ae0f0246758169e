//! Errors of parsers and emitters.

use thiserror::Error;

/// Why a message could not be read or written.
///
/// `what` names the message or field in a form suitable for log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum WireError {
    /// Fewer bytes than the format requires.
    #[error("{what}: needs {need} bytes, has {have}")]
    Truncated {
        /// The item being read.
        what: &'static str,
        /// Number of bytes required.
        need: usize,
        /// Number of bytes present.
        have: usize,
    },
    /// A length field, or the length of the message, is inconsistent with the bytes present.
    #[error("{what}: says or must be {expected} bytes, has {have}")]
    Length {
        /// The item being read.
        what: &'static str,
        /// Number of bytes expected.
        expected: usize,
        /// Number of bytes present.
        have: usize,
    },
    /// The first byte is not a message type, or one that is not allowed here.
    #[error("message type 0x{0:02x} is unknown or not allowed here")]
    Type(u8),
    /// A field has a value that is not allowed.
    #[error("{what}: value {got} is not allowed")]
    Value {
        /// The field.
        what: &'static str,
        /// The value.
        got: u64,
    },
    /// A mandatory part is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A part occurs more often than allowed.
    #[error("{0} is repeated")]
    Repeated(&'static str),
    /// The text is not a valid name: 1 to 32 bytes of letters, digits, `-`, `_`, `.`.
    #[error("{0} is not a name of 1 to 32 letters, digits, '-', '_' or '.'")]
    Name(&'static str),
    /// A checksum is wrong.
    #[error("{0}: checksum does not verify")]
    Checksum(&'static str),
    /// The item is too large for this format.
    #[error("{what}: {have} is more than {most}")]
    TooLong {
        /// The item being written.
        what: &'static str,
        /// The maximum.
        most: usize,
        /// The requested size.
        have: usize,
    },
    /// Two addresses that must be of the same family are not.
    #[error("source and destination are not of the same address family")]
    Family,
}
