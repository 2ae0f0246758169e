//! Report of the path state from the receiver to the sender, in ACKs: a TCP option of kind 0x72.
//!
//! ```text
//! +---------------+---------------+---------------+---+-+---------+
//! | 0x72          |  length 8, 16 |  flow count   | v |C|  age    |  flow count: 5 bits of mantissa, 3 of shift
//! +---------------+---------------+---------------+---+-+---------+  v: 1; C: complete; age: units of 8 ms
//! |  queue drops                  |  medium losses                |  modulo 2^16
//! +-------------------------------+-------------------------------+  the short form ends here
//! |  link rate                    |  arrival rate                 |  codes of kbit/s
//! +-------------------------------+-------------------------------+
//! |  queue depth                  |  free space of the queue      |  codes of bytes
//! +-------------------------------+-------------------------------+
//!
//! code: 0xffff unknown, else mantissa (11 bits) << shift (5 bits): 0 to 2^42, at most 2^-10 too low
//! ```
//!
//! Rates, queue and flow count are those of the bottleneck, the hop with the smallest link rate per flow. Drops and losses are
//! sums over all hops. *Complete*: every hop from the source to the receiver reported its drops, so a loss without a drop
//! occurred on the medium. *Age*: time the trace waited at the receiver; 31 means 248 ms or more.
//!
//! TCP has 40 bytes for options. 28 are left with timestamps, 16 with one SACK block as well, 8 with two, and none with three:
//! the short form is what still fits while losses are being reported. Kind 0x72 is not assigned by IANA; Intel's TCP-INT uses
//! it with a length of 12, which distinguishes the two.
//!
//! If both ends have a key, the kernel programs (`bpf/feedback.bpf.c`) append a tag of 8 bytes to either form and set v to 2;
//! this parser then treats the option as foreign.
//!
//! In the other direction, an option of two bytes indicates that a trace precedes the TCP header, so that a receiver need not
//! search every packet for one. It replaces the two NOPs that the kernel puts in front of the time stamps
//! (`bpf/ioam_source.bpf.c`):
//!
//! ```text
//! +---------------+---------------+---------------+---------------+
//! | 0x73          |  length 2     |  8            |  length 10    |  time stamps (RFC 7323)
//! +---------------+---------------+---------------+---------------+
//! ```

use crate::WireError;
use crate::read::{put, u16_at};

/// Kind of the TCP option that contains a path report.
pub const TCP_OPTION_KIND: u8 = 0x72;
/// Kind of the option that indicates a trace in the packet.
pub const TCP_MARK_KIND: u8 = 0x73;
/// Size of the full form in bytes, including kind and length.
pub const FEEDBACK_LEN: usize = 16;
/// Size of the short form in bytes.
pub const FEEDBACK_SHORT_LEN: usize = 8;

const VERSION: u8 = 1 << 6;
const COMPLETE: u8 = 1 << 5;
const UNKNOWN: u16 = u16::MAX;

/// A floating-point number in 16 bits; see the module documentation.
pub type Code = u16;

/// Encodes `value`, rounded down; larger values than can be encoded yield the maximum.
#[must_use]
pub const fn code(value: u64) -> Code {
    let bits = 64 - value.leading_zeros();
    let shift = bits.saturating_sub(11);
    if shift > 31 {
        return UNKNOWN - 1;
    }
    let code = (shift << 11) as u16 | (value >> shift) as u16;
    if code == UNKNOWN { UNKNOWN - 1 } else { code }
}

/// Decodes a code; `None` if it means unknown.
#[must_use]
pub const fn decode(code: Code) -> Option<u64> {
    if code == UNKNOWN { None } else { Some(((code & 0x7ff) as u64) << (code >> 11)) }
}

/// Contents of the option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Feedback {
    /// Flows at the bottleneck, rounded down to 5 significant bits, at most 3,968; 0: unknown.
    pub flows: u16,
    /// Whether every hop reported its drops.
    pub complete: bool,
    /// Time the trace waited at the receiver, in units of 8 ms; at most 31.
    pub age: u8,
    /// Packets dropped by all queues on the path, modulo 2^16.
    pub queue_drops: u16,
    /// Packets lost by all media on the path, modulo 2^16.
    pub medium_losses: u16,
    /// State of the bottleneck; absent in the short form.
    pub bottleneck: Option<Bottleneck>,
}

/// The hop with the smallest link rate per flow. `None` in a field: unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bottleneck {
    /// Link rate, kbit/s.
    pub link_kbps: Option<u64>,
    /// Arrival rate, kbit/s.
    pub arrival_kbps: Option<u64>,
    /// Queue depth, bytes.
    pub depth_bytes: Option<u64>,
    /// Free space of the queue, bytes.
    pub free_bytes: Option<u64>,
}

impl Feedback {
    /// Encoded length in bytes.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        if self.bottleneck.is_some() { FEEDBACK_LEN } else { FEEDBACK_SHORT_LEN }
    }

    /// Parses a whole option of kind 0x72; `None` if it has another format.
    ///
    /// # Errors
    /// The option is shorter than its length field.
    pub fn parse(b: &[u8]) -> Result<Option<Self>, WireError> {
        crate::read::need(b, "TCP option", 2)?;
        let len = usize::from(b[1]);
        if b[0] != TCP_OPTION_KIND || !matches!(len, FEEDBACK_LEN | FEEDBACK_SHORT_LEN) {
            return Ok(None);
        }
        crate::read::need(b, "telemetry TCP option", len)?;
        if b[3] & 0xc0 != VERSION {
            return Ok(None);
        }
        let field = |at| decode(u16_at(b, at));
        Ok(Some(Self {
            flows: u16::from(b[2] & 0x1f) << (b[2] >> 5),
            complete: b[3] & COMPLETE != 0,
            age: b[3] & 0x1f,
            queue_drops: u16_at(b, 4),
            medium_losses: u16_at(b, 6),
            bottleneck: (len == FEEDBACK_LEN).then(|| Bottleneck {
                link_kbps: field(8),
                arrival_kbps: field(10),
                depth_bytes: field(12),
                free_bytes: field(14),
            }),
        }))
    }

    /// Writes the option to the start of `out`; returns its length.
    ///
    /// # Errors
    /// `out` is too short.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let len = self.encoded_len();
        crate::read::need(out, "room for a TCP option", len)?;
        let shift = (16 - self.flows.leading_zeros()).saturating_sub(5);
        let flows = if shift > 7 { 0xff } else { (shift << 5) as u8 | (self.flows >> shift) as u8 };
        let complete = if self.complete { COMPLETE } else { 0 };
        put(out, 0, &[TCP_OPTION_KIND, len as u8, flows, VERSION | complete | self.age.min(31)]);
        put(out, 4, &self.queue_drops.to_be_bytes());
        put(out, 6, &self.medium_losses.to_be_bytes());
        if let Some(hop) = self.bottleneck {
            let fields = [hop.link_kbps, hop.arrival_kbps, hop.depth_bytes, hop.free_bytes];
            for (i, field) in fields.into_iter().enumerate() {
                put(out, 8 + 2 * i, &field.map_or(UNKNOWN, code).to_be_bytes());
            }
        }
        Ok(len)
    }
}
