//! The data of one node in a trace, RFC 9197 §4.4.2.
//!
//! All ones mean that the value is not available (§4.4.2); it is represented as `None`. A field whose bit is not set in the
//! trace type is not on the wire, and is also `None`.

use super::types::TraceType;
use crate::WireError;
use crate::read::{put, u16_at, u32_at, u64_at};

/// Hop limit and short id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hop {
    /// Hop limit of the packet when it left the node.
    pub limit: u8,
    /// Node id, 24 bits.
    pub node_id: Option<u32>,
}

/// Hop limit and wide id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HopWide {
    /// Hop limit of the packet when it left the node.
    pub limit: u8,
    /// Node id, 56 bits.
    pub node_id: Option<u64>,
}

/// Time a packet spent in a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransitDelay {
    /// The time exceeds the range of the field.
    pub overflow: bool,
    /// Nanoseconds, 31 bits.
    pub ns: u32,
}

/// An opaque state snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opaque<'a> {
    /// Schema of the data, 24 bits; all ones: none.
    pub schema: u32,
    /// Length: a multiple of 4, at most 1,020 bytes.
    pub data: &'a [u8],
}

/// Node data of a trace (RFC 9197 §4.4.2): the fields that its trace type selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeData<'a> {
    /// Hop limit and short id.
    pub hop: Option<Hop>,
    /// Short interface ids, in and out.
    pub interfaces: Option<(u16, u16)>,
    /// Arrival time of the packet: seconds in the namespace's format (Linux: since 1970).
    pub seconds: Option<u32>,
    /// Arrival time of the packet: fraction of a second (Linux: microseconds).
    pub fraction: Option<u32>,
    /// Time spent in the node.
    pub transit_delay: Option<TransitDelay>,
    /// Data defined by the namespace.
    pub namespace: Option<u32>,
    /// Bytes waiting at the egress (in Linux and here).
    pub queue_depth: Option<u32>,
    /// Checksum complement, which keeps the transport checksum valid.
    pub checksum_complement: Option<u32>,
    /// Hop limit and wide id.
    pub hop_wide: Option<HopWide>,
    /// Wide interface ids, in and out.
    pub interfaces_wide: Option<(u32, u32)>,
    /// Wide data defined by the namespace.
    pub namespace_wide: Option<u64>,
    /// Occupancy of the node's buffers.
    pub buffer: Option<u32>,
    /// Opaque state snapshot; an empty snapshot without schema is `None`.
    pub snapshot: Option<Opaque<'a>>,
}

const NO_ID: u32 = 0x00ff_ffff;
const NO_ID_WIDE: u64 = 0x00ff_ffff_ffff_ffff;

impl<'a> NodeData<'a> {
    /// Encoded length in bytes for this trace type, including the snapshot.
    #[must_use]
    pub fn len_in(&self, of: TraceType) -> usize {
        let snapshot = match self.snapshot {
            _ if !of.contains(TraceType::SNAPSHOT) => 0,
            snapshot => 4 + snapshot.map_or(0, |s| s.data.len()),
        };
        4 * of.node_words() + snapshot
    }

    /// Parses the node at the start of `b`; returns it and its length.
    ///
    /// # Errors
    /// `b` ends before the end of the node's data.
    pub fn parse(b: &'a [u8], of: TraceType) -> Result<(Self, usize), WireError> {
        const WHAT: &str = "node data of an IOAM trace";
        let fixed = 4 * of.node_words();
        crate::read::need(b, WHAT, fixed)?;
        let mut at = 0;
        // The offset of the field of `bit`, if the trace contains it.
        let mut next = |bit: TraceType, len: usize| {
            of.contains(bit).then(|| {
                at += len;
                at - len
            })
        };
        let word = |at: Option<usize>| at.map(|at| u32_at(b, at)).filter(|v| *v != u32::MAX);
        let mut node = Self {
            hop: next(TraceType::HOP, 4).map(|at| Hop {
                limit: b[at],
                node_id: Some(u32_at(b, at) & NO_ID).filter(|id| *id != NO_ID),
            }),
            interfaces: next(TraceType::INTERFACES, 4).map(|at| (u16_at(b, at), u16_at(b, at + 2))),
            seconds: word(next(TraceType::SECONDS, 4)),
            fraction: word(next(TraceType::FRACTION, 4)),
            transit_delay: word(next(TraceType::TRANSIT_DELAY, 4))
                .map(|v| TransitDelay { overflow: v >> 31 == 1, ns: v & 0x7fff_ffff }),
            namespace: word(next(TraceType::NAMESPACE, 4)),
            queue_depth: word(next(TraceType::QUEUE_DEPTH, 4)),
            checksum_complement: word(next(TraceType::CHECKSUM, 4)),
            hop_wide: next(TraceType::HOP_WIDE, 8).map(|at| HopWide {
                limit: b[at],
                node_id: Some(u64_at(b, at) & NO_ID_WIDE).filter(|id| *id != NO_ID_WIDE),
            }),
            interfaces_wide: next(TraceType::INTERFACES_WIDE, 8).map(|at| (u32_at(b, at), u32_at(b, at + 4))),
            namespace_wide: next(TraceType::NAMESPACE_WIDE, 8)
                .map(|at| u64_at(b, at))
                .filter(|v| *v != u64::MAX),
            buffer: word(next(TraceType::BUFFER, 4)),
            snapshot: None,
        };
        if !of.contains(TraceType::SNAPSHOT) {
            return Ok((node, fixed));
        }
        crate::read::need(b, WHAT, fixed + 4)?;
        let end = fixed + 4 + 4 * usize::from(b[fixed]);
        crate::read::need(b, "opaque state snapshot", end)?;
        let schema = u32_at(b, fixed) & NO_ID;
        let data = &b[fixed + 4..end];
        if schema != NO_ID || !data.is_empty() {
            node.snapshot = Some(Opaque { schema, data });
        }
        Ok((node, end))
    }

    /// Writes the node's data to the start of `out`; returns its length.
    ///
    /// # Errors
    /// `out` is too short, or the length of the snapshot is not a multiple of 4 or exceeds its length field.
    pub fn emit(&self, of: TraceType, out: &mut [u8]) -> Result<usize, WireError> {
        let len = self.len_in(of);
        let snapshot = self.snapshot.map_or(0, |s| s.data.len());
        if !snapshot.is_multiple_of(4) || snapshot > 1020 {
            return Err(WireError::TooLong { what: "opaque state snapshot", most: 1020, have: snapshot });
        }
        crate::read::need(out, "room for a node's IOAM data", len)?;
        let mut at = 0;
        let mut write = |bit: TraceType, bytes: &[u8]| {
            if of.contains(bit) {
                put(out, at, bytes);
                at += bytes.len();
            }
        };
        let word = |v: Option<u32>| v.unwrap_or(u32::MAX).to_be_bytes();
        let hop = self
            .hop
            .map_or(u32::MAX, |h| u32::from(h.limit) << 24 | h.node_id.map_or(NO_ID, |id| id & NO_ID));
        write(TraceType::HOP, &hop.to_be_bytes());
        let (i, o) = self.interfaces.unwrap_or((u16::MAX, u16::MAX));
        write(TraceType::INTERFACES, &(u32::from(i) << 16 | u32::from(o)).to_be_bytes());
        write(TraceType::SECONDS, &word(self.seconds));
        write(TraceType::FRACTION, &word(self.fraction));
        let delay = self.transit_delay.map(|d| u32::from(d.overflow) << 31 | (d.ns & 0x7fff_ffff));
        write(TraceType::TRANSIT_DELAY, &word(delay));
        write(TraceType::NAMESPACE, &word(self.namespace));
        write(TraceType::QUEUE_DEPTH, &word(self.queue_depth));
        write(TraceType::CHECKSUM, &word(self.checksum_complement));
        let wide = self.hop_wide.map_or(u64::MAX, |h| {
            u64::from(h.limit) << 56 | h.node_id.map_or(NO_ID_WIDE, |id| id & NO_ID_WIDE)
        });
        write(TraceType::HOP_WIDE, &wide.to_be_bytes());
        let (i, o) = self.interfaces_wide.unwrap_or((u32::MAX, u32::MAX));
        write(TraceType::INTERFACES_WIDE, &(u64::from(i) << 32 | u64::from(o)).to_be_bytes());
        write(TraceType::NAMESPACE_WIDE, &self.namespace_wide.unwrap_or(u64::MAX).to_be_bytes());
        write(TraceType::BUFFER, &word(self.buffer));
        // Fields of undefined bits are not available (§4.4.2).
        let unknown = at + 4 * of.undefined();
        out[at..unknown].fill(0xff);
        if of.contains(TraceType::SNAPSHOT) {
            let (schema, data) = self.snapshot.map_or((NO_ID, &[][..]), |s| (s.schema & NO_ID, s.data));
            let words = (data.len() / 4) as u32;
            put(out, unknown, &(words << 24 | schema).to_be_bytes());
            put(out, unknown + 4, data);
        }
        Ok(len)
    }
}
