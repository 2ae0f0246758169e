//! Pre-allocated and incremental trace, RFC 9197 §4.4: parsing, and adding a node's data in transit.

use super::node::NodeData;
use super::types::TraceType;
use crate::WireError;
use crate::read::{need, put, u16_at, u32_at};

/// Bytes of the header in front of the node data.
pub const TRACE_HEADER_LEN: usize = 8;

const OVERFLOW: u16 = 0x0400;
const LOOPBACK: u16 = 0x0200;
const ACTIVE: u16 = 0x0100;
const WHAT: &str = "IOAM trace";

/// How room for node data is provided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceKind {
    /// The source reserves free space, which nodes fill from its end.
    PreAllocated,
    /// Nodes insert their data in front of the existing data.
    Incremental,
}

/// Header of a trace (RFC 9197 §4.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceHeader {
    /// Namespace; nodes fill only traces of namespaces to which they belong.
    pub namespace: u16,
    /// A node had no room; no further data is added.
    pub overflow: bool,
    /// A copy is sent back to the source (RFC 9322).
    pub loopback: bool,
    /// The packet is a probe (RFC 9322).
    pub active: bool,
    /// Units of 4 bytes that are free (pre-allocated), or may still be added (incremental); at most 127.
    pub remaining_words: u8,
    /// The data requested of each node.
    pub trace_type: TraceType,
}

impl TraceHeader {
    /// The header of an empty trace with room for `words` units of 4 bytes.
    #[must_use]
    pub const fn new(namespace: u16, trace_type: TraceType, words: u8) -> Self {
        Self {
            namespace,
            overflow: false,
            loopback: false,
            active: false,
            remaining_words: words,
            trace_type,
        }
    }

    /// Parses the header at the start of a trace option.
    ///
    /// # Errors
    /// Too short, or a NodeLen that does not match the trace type.
    pub fn parse(b: &[u8]) -> Result<Self, WireError> {
        need(b, WHAT, TRACE_HEADER_LEN)?;
        let lengths = u16_at(b, 2);
        let trace_type = TraceType::from_bits(u32_at(b, 4) >> 8);
        let words = usize::from(lengths >> 11);
        // A trace with snapshots alone has no other data per node; Linux and tshark require at least one word.
        if words == 0 || words != trace_type.node_words() {
            return Err(WireError::Value { what: "NodeLen of an IOAM trace", got: words as u64 });
        }
        Ok(Self {
            namespace: u16_at(b, 0),
            overflow: lengths & OVERFLOW != 0,
            loopback: lengths & LOOPBACK != 0,
            active: lengths & ACTIVE != 0,
            remaining_words: (lengths & 0x7f) as u8,
            trace_type,
        })
    }

    /// Writes the header to the start of `out`.
    ///
    /// # Errors
    /// `out` is too short, more than 127 units remain, or the type requests nothing.
    pub fn emit(&self, out: &mut [u8]) -> Result<(), WireError> {
        need(out, "room for an IOAM trace", TRACE_HEADER_LEN)?;
        let (most, have) = (127, usize::from(self.remaining_words));
        if have > most {
            return Err(WireError::TooLong { what: "remaining length of an IOAM trace", most, have });
        }
        let words = self.trace_type.node_words();
        if words == 0 {
            return Err(WireError::Value { what: "NodeLen of an IOAM trace", got: 0 });
        }
        let mut lengths = (words as u16) << 11 | u16::from(self.remaining_words);
        for (set, flag) in [(self.overflow, OVERFLOW), (self.loopback, LOOPBACK), (self.active, ACTIVE)] {
            lengths |= if set { flag } else { 0 };
        }
        put(out, 0, &self.namespace.to_be_bytes());
        put(out, 2, &lengths.to_be_bytes());
        put(out, 4, &(self.trace_type.bits() << 8).to_be_bytes());
        Ok(())
    }
}

/// A validated trace option, whose nodes can be read without errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceView<'a> {
    header: TraceHeader,
    nodes: &'a [u8],
}

impl<'a> TraceView<'a> {
    /// Validates the data of an option, starting with the namespace.
    ///
    /// # Errors
    /// Inconsistent lengths, or a node that extends beyond the option.
    pub fn parse(b: &'a [u8], kind: TraceKind) -> Result<Self, WireError> {
        let header = TraceHeader::parse(b)?;
        let free = match kind {
            TraceKind::PreAllocated => 4 * usize::from(header.remaining_words),
            TraceKind::Incremental => 0,
        };
        need(b, WHAT, TRACE_HEADER_LEN + free)?;
        let nodes = &b[TRACE_HEADER_LEN + free..];
        let mut rest = nodes;
        while !rest.is_empty() {
            let (_, len) = NodeData::parse(rest, header.trace_type)?;
            rest = &rest[len..];
        }
        Ok(Self { header, nodes })
    }

    /// Header of the trace option (RFC 9197 §4.4.1).
    #[must_use]
    pub const fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// The nodes, newest first.
    #[must_use]
    pub const fn nodes(&self) -> Nodes<'a> {
        Nodes { rest: self.nodes, of: self.header.trace_type }
    }
}

/// The nodes of a trace, newest first.
#[derive(Debug, Clone)]
pub struct Nodes<'a> {
    rest: &'a [u8],
    of: TraceType,
}

impl<'a> Iterator for Nodes<'a> {
    type Item = NodeData<'a>;
    fn next(&mut self) -> Option<NodeData<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let (node, len) = NodeData::parse(self.rest, self.of).ok()?;
        self.rest = &self.rest[len..];
        Some(node)
    }
}

/// Result of adding a node's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filled {
    /// The data was added.
    Yes,
    /// There was no room: the overflow flag is set.
    NoRoom,
}

/// Adds a node's data to a pre-allocated trace, in place (RFC 9197 §4.4): the length of the option does not change.
///
/// # Errors
/// The option is not a valid trace, or the node's snapshot cannot be encoded.
pub fn fill(option: &mut [u8], node: &NodeData<'_>) -> Result<Filled, WireError> {
    let mut header = TraceHeader::parse(option)?;
    let free = 4 * usize::from(header.remaining_words);
    need(option, WHAT, TRACE_HEADER_LEN + free)?;
    let len = node.len_in(header.trace_type);
    if header.overflow || len > free {
        header.overflow = true;
        header.emit(option)?;
        return Ok(Filled::NoRoom);
    }
    node.emit(header.trace_type, &mut option[TRACE_HEADER_LEN + free - len..TRACE_HEADER_LEN + free])?;
    header.remaining_words = ((free - len) / 4) as u8;
    header.emit(option)?;
    Ok(Filled::Yes)
}

/// Adds a node's data to an incremental trace: the option grows by [`NodeData::len_in`], or only its overflow flag is set.
///
/// # Errors
/// Those of [`fill`].
pub fn push(option: &mut Vec<u8>, node: &NodeData<'_>) -> Result<Filled, WireError> {
    let mut header = TraceHeader::parse(option)?;
    let len = node.len_in(header.trace_type);
    if header.overflow || len > 4 * usize::from(header.remaining_words) {
        header.overflow = true;
        header.emit(option)?;
        return Ok(Filled::NoRoom);
    }
    let mut data = vec![0; len];
    node.emit(header.trace_type, &mut data)?;
    option.splice(TRACE_HEADER_LEN..TRACE_HEADER_LEN, data);
    header.remaining_words -= (len / 4) as u8;
    header.emit(option)?;
    Ok(Filled::Yes)
}
