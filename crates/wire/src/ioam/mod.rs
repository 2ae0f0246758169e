//! In-situ OAM, RFC 9197, as IPv6 options, RFC 9486: telemetry carried in the packets that it describes.
//!
//! ```text
//! IPv6 ── hop-by-hop options: pre-allocated trace ── destination options: edge-to-edge, TCP state ── TCP
//!
//! option, RFC 9486 §3 (4-byte aligned)
//! +---------------+---------------+---------------+---------------+   0x31 may change on the way (trace),
//! | 0x31 or 0x11  |  length       |  reserved (0) |  IOAM type    |   0x11 may not (edge-to-edge)
//! +---------------+---------------+---------------+---------------+   IOAM type: 0 pre-allocated trace,
//! | option data: one of the following …                           |   1 incremental trace, 3 edge-to-edge
//!
//! trace, RFC 9197 §4.4
//! +-------------------------------+---------+-------+-------------+   flags: overflow, loopback, active, 0
//! |         namespace             | NodeLen | flags | RemainingLen|   lengths in units of 4 bytes; NodeLen
//! +-------------------------------+---------+-------+-------------+   is without the opaque snapshot
//! |         trace type, 24 bits                     |  reserved   |
//! +-------------------------------------------------+-------------+
//! | free space, RemainingLen · 4 bytes (pre-allocated only)       |
//! +---------------------------------------------------------------+
//! | node data, newest node first …                                |
//!
//! edge-to-edge, RFC 9197 §4.6
//! +-------------------------------+-------------------------------+
//! |         namespace             |  type: 64-bit or 32-bit       |   sequence, seconds, fraction
//! +-------------------------------+-------------------------------+
//! ```
//!
//! | file | what |
//! |---|---|
//! | `types` | the data requested by a trace, and its sizes |
//! | `node` | the data of one node |
//! | `trace` | both kinds of trace: validated view, filling and pushing |
//! | `snapshot` | our schema of the opaque state snapshot: state of a queue and a link |
//! | `edge` | edge-to-edge option, and an option with the sender's TCP state |
//! | `ipv6` | extension headers: building, finding, inserting, removing |
//! | `feedback` | the receiver's report to the sender, as a TCP option |
//! | `path` | computes this report from a received trace |
//! | `head` | all telemetry in the first bytes of a packet, for passive observers |
//!
//! The incremental trace grows in transit, which IPv6 forbids for extension headers; RFC 9486 omits it, and so does `ipv6`. Its
//! codec is provided for other carriers.

mod edge;
mod feedback;
mod head;
mod ipv6;
mod node;
mod path;
mod snapshot;
mod trace;
mod types;

pub use edge::{EdgeToEdge, Sequence, TCP_STATE_LEN, TcpState};
pub use feedback::{
    Bottleneck, Code, FEEDBACK_LEN, FEEDBACK_SHORT_LEN, Feedback, TCP_MARK_KIND, TCP_OPTION_KIND, code,
    decode,
};
pub use head::{Head, head};
pub use ipv6::{
    DESTINATION_OPTIONS, ExtOption, HOP_BY_HOP, OptionsHeaders, emit_edge_header, emit_trace_header,
    find_options, insert, options, strip, trace_header_len, trace_range,
};
pub use node::{Hop, HopWide, NodeData, Opaque, TransitDelay};
pub use path::{report, routers};
pub use snapshot::{SNAPSHOT_LEN, SNAPSHOT_SCHEMA, Snapshot};
pub use trace::{Filled, Nodes, TRACE_HEADER_LEN, TraceHeader, TraceKind, TraceView, fill, push};
pub use types::TraceType;

/// IOAM option types (RFC 9197 §7.1).
pub mod option_type {
    /// Pre-allocated trace.
    pub const PRE_ALLOCATED: u8 = 0;
    /// Edge-to-edge option.
    pub const EDGE_TO_EDGE: u8 = 3;
}

#[cfg(test)]
mod tests;
