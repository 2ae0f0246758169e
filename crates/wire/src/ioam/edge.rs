//! Edge-to-edge option, RFC 9197 §4.6, and an option with the sender's TCP state.
//!
//! The source paper puts the congestion window into the end-to-end part of its telemetry, with a flag that indicates this
//! (Fig. 2). RFC 9197 has no such field and reserves the type bits, so the TCP state is a separate option in the same
//! destination options header: type 0x1e, which is reserved for experiments and skipped by receivers that do not know it
//! (RFC 4727 §3.3), starting with an identifier of this project.
//!
//! ```text
//! +---------------+---------------+-------------------------------+
//! | 0x1e          |  length 18    |  0x4142                       |
//! +---------------+---------------+-------------------------------+
//! |  flags: 0x80000000 the rest is valid (the paper's TCP flag)   |
//! +---------------------------------------------------------------+
//! |  cwnd, segments                                               |
//! +---------------------------------------------------------------+
//! |  ssthresh, segments                                           |
//! +---------------------------------------------------------------+
//! |  smoothed RTT, us                                             |
//! +---------------------------------------------------------------+
//! ```

use crate::WireError;
use crate::read::{need, put, u16_at, u32_at, u64_at};

/// Number of a packet within its flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sequence {
    /// 32 bits.
    Short(u32),
    /// 64 bits.
    Long(u64),
}

/// Edge-to-edge option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EdgeToEdge {
    /// Namespace of the data.
    pub namespace: u16,
    /// Number of the packet within its flow.
    pub sequence: Option<Sequence>,
    /// Send time at the source: seconds.
    pub seconds: Option<u32>,
    /// Send time at the source: fraction of a second.
    pub fraction: Option<u32>,
}

const LONG: u16 = 0x8000;
const SHORT: u16 = 0x4000;
const SECONDS: u16 = 0x2000;
const FRACTION: u16 = 0x1000;

impl EdgeToEdge {
    /// Encoded length in bytes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let sequence = match self.sequence {
            None => 0,
            Some(Sequence::Short(_)) => 4,
            Some(Sequence::Long(_)) => 8,
        };
        4 + sequence + 4 * (usize::from(self.seconds.is_some()) + usize::from(self.fraction.is_some()))
    }

    /// Parses the data of an option, starting with the namespace.
    ///
    /// # Errors
    /// The length does not match the type; both sequence numbers are present; or the type is undefined.
    pub fn parse(b: &[u8]) -> Result<Self, WireError> {
        const WHAT: &str = "IOAM edge-to-edge option";
        need(b, WHAT, 4)?;
        let kind = u16_at(b, 2);
        if kind & !(LONG | SHORT | SECONDS | FRACTION) != 0 || kind & (LONG | SHORT) == LONG | SHORT {
            return Err(WireError::Value { what: "type of an IOAM edge-to-edge option", got: kind.into() });
        }
        let mut at = 4;
        let mut next = |bit: u16, len: usize| {
            (kind & bit != 0).then(|| {
                at += len;
                at - len
            })
        };
        let (long, short) = (next(LONG, 8), next(SHORT, 4));
        let (seconds, fraction) = (next(SECONDS, 4), next(FRACTION, 4));
        if at != b.len() {
            return Err(WireError::Length { what: WHAT, expected: at, have: b.len() });
        }
        Ok(Self {
            namespace: u16_at(b, 0),
            sequence: long
                .map(|at| Sequence::Long(u64_at(b, at)))
                .or_else(|| short.map(|at| Sequence::Short(u32_at(b, at)))),
            seconds: seconds.map(|at| u32_at(b, at)),
            fraction: fraction.map(|at| u32_at(b, at)),
        })
    }

    /// Writes the option's data to the start of `out`; returns its length.
    ///
    /// # Errors
    /// `out` is too short.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let len = self.encoded_len();
        need(out, "room for an IOAM edge-to-edge option", len)?;
        let mut kind = 0;
        let mut at = 4;
        let mut write = |bit: u16, bytes: &[u8]| {
            kind |= bit;
            put(out, at, bytes);
            at += bytes.len();
        };
        match self.sequence {
            None => {}
            Some(Sequence::Short(n)) => write(SHORT, &n.to_be_bytes()),
            Some(Sequence::Long(n)) => write(LONG, &n.to_be_bytes()),
        }
        if let Some(seconds) = self.seconds {
            write(SECONDS, &seconds.to_be_bytes());
        }
        if let Some(fraction) = self.fraction {
            write(FRACTION, &fraction.to_be_bytes());
        }
        put(out, 0, &self.namespace.to_be_bytes());
        put(out, 2, &kind.to_be_bytes());
        Ok(len)
    }
}

/// Length of the data of the TCP state option in bytes.
pub const TCP_STATE_LEN: usize = 18;
const IDENTIFIER: u16 = 0x4142;
const FILLED: u32 = 0x8000_0000;

/// TCP state of the sender when the packet was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpState {
    /// Congestion window, segments.
    pub cwnd: u32,
    /// Slow-start threshold, segments; all ones before the first congestion event.
    pub ssthresh: u32,
    /// Smoothed RTT, microseconds.
    pub srtt_us: u32,
}

impl TcpState {
    /// Parses the data of an option of type 0x1e; `None` if it has another identifier, or is not valid.
    ///
    /// # Errors
    /// Our identifier with a wrong length.
    pub fn parse(b: &[u8]) -> Result<Option<Self>, WireError> {
        if b.len() < 2 || u16_at(b, 0) != IDENTIFIER {
            return Ok(None);
        }
        if b.len() != TCP_STATE_LEN {
            return Err(WireError::Length {
                what: "TCP state option",
                expected: TCP_STATE_LEN,
                have: b.len(),
            });
        }
        let state = Self { cwnd: u32_at(b, 6), ssthresh: u32_at(b, 10), srtt_us: u32_at(b, 14) };
        Ok((u32_at(b, 2) & FILLED != 0).then_some(state))
    }

    /// The encoded data.
    #[must_use]
    pub fn emit(&self) -> [u8; TCP_STATE_LEN] {
        let mut b = [0; TCP_STATE_LEN];
        put(&mut b, 0, &IDENTIFIER.to_be_bytes());
        put(&mut b, 2, &FILLED.to_be_bytes());
        put(&mut b, 6, &self.cwnd.to_be_bytes());
        put(&mut b, 10, &self.ssthresh.to_be_bytes());
        put(&mut b, 14, &self.srtt_us.to_be_bytes());
        b
    }
}
