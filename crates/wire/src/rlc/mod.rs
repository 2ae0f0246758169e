//! RLC headers, 3GPP TS 38.322 §6.2: data PDUs of unacknowledged and acknowledged mode, STATUS PDUs.
//!
//! ```text
//! UMD, complete SDU     UMD, 6 bit SN            UMD, 12 bit SN           + in a middle or last segment
//! +--+------------+     +--+------------+        +--+--+--------+         +---------------------------+
//! |00| R          |     |SI|     SN     |        |SI|R | SN     |         |      segment offset       |
//! +--+------------+     +--+------------+        +--+--+--------+         +---------------------------+
//! | SDU …               | segment …              |      SN      |         |             (SO)          |
//!                                                +--------------+         +---------------------------+
//!
//! AMD, 12 bit SN        AMD, 18 bit SN           SI  00 complete SDU
//! +-+-+--+--------+     +-+-+--+--+-----+            01 first segment
//! |1|P|SI| SN     |     |1|P|SI|R | SN  |            10 last segment
//! +-+-+--+--------+     +-+-+--+--+-----+            11 middle segment
//! |      SN       |     |      SN       |        P   requests a STATUS PDU
//! +---------------+     +---------------+        + the segment offset in a middle or last segment
//! | SDU …               |      SN       |
//! ```
//!
//! Reserved bits are written as 0 and ignored when parsed (§6.2.3.8).

mod am;
mod status;
mod um;

pub use am::{AmHeader, AmPdu, AmSn};
pub use status::{Nack, SO_END, StatusPdu, StatusWriter};
pub use um::{UmHeader, UmSn};

/// The part of an SDU in a data PDU (§6.2.3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment {
    /// The complete SDU.
    Complete,
    /// The first bytes.
    First,
    /// The last bytes.
    Last,
    /// Bytes in the middle.
    Middle,
}

impl Segment {
    /// The part that starts at `offset` and, with `to_end`, extends to the end of the SDU.
    #[inline]
    #[must_use]
    pub const fn of(offset: usize, to_end: bool) -> Self {
        match (offset, to_end) {
            (0, true) => Self::Complete,
            (0, false) => Self::First,
            (_, true) => Self::Last,
            (_, false) => Self::Middle,
        }
    }

    /// Whether the header has a segment offset.
    #[inline]
    #[must_use]
    pub const fn has_offset(self) -> bool {
        matches!(self, Self::Last | Self::Middle)
    }

    /// Whether the part extends to the end of the SDU.
    #[inline]
    #[must_use]
    pub const fn to_end(self) -> bool {
        matches!(self, Self::Complete | Self::Last)
    }

    const fn from_bits(bits: u8) -> Self {
        match bits & 0b11 {
            0b00 => Self::Complete,
            0b01 => Self::First,
            0b10 => Self::Last,
            _ => Self::Middle,
        }
    }

    const fn bits(self) -> u8 {
        match self {
            Self::Complete => 0b00,
            Self::First => 0b01,
            Self::Last => 0b10,
            Self::Middle => 0b11,
        }
    }
}

/// The segment offset at `at`; 0 if there is none. An offset of 0 in a middle or last segment is an error.
fn offset(pdu: &[u8], segment: Segment, at: usize) -> Result<u16, crate::WireError> {
    if !segment.has_offset() {
        return Ok(0);
    }
    match crate::read::u16_at(pdu, at) {
        0 => Err(crate::WireError::Value { what: "segment offset", got: 0 }),
        so => Ok(so),
    }
}
