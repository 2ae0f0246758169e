//! Wire formats: a validated view and a parsed value for every header used by anabranch.
//!
//! All fields are big-endian. Parsers never panic and do not allocate for views; they reject malformed data with a
//! [`WireError`] that names the field. Emitters write exactly the format that the parsers accept. `docs/wire-formats.md`
//! describes the formats in prose.
//!
//! | module | what |
//! |---|---|
//! | [`tunnel`] | outer classification, inner (plain) header, secure header, overheads |
//! | [`handshake`] | init, response and cookie messages; hello and welcome |
//! | [`control`] | probes, notifications, configuration, MTU probes, close |
//! | [`coding`] | coded source packets and repair packets |
//! | [`convert`] | the 0-RTT TCP Convert Protocol: how a TCP lane says where to connect to |
//! | [`ioam`] | in-situ OAM as IPv6 options; telemetry as a TCP option |
//! | [`ip`] | flow keys, checksums, MSS clamping, packet-too-big, outer UDP/IP |
//! | [`convert`] | the 0-RTT TCP Convert Protocol, with which a TCP lane requests a connection |
//! | [`mac`] | MAC sub-PDUs of a transport block |
//! | [`pdcp`] | PDCP data PDUs |
//! | [`rlc`] | RLC data and STATUS PDUs of the radio access |
//! | [`gtpu`] | GTP-U with the PDU session container: N3 |
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod coding;
pub mod control;
pub mod convert;
mod error;
pub mod gtpu;
pub mod handshake;
pub mod ioam;
pub mod ip;
pub mod mac;
pub mod pdcp;
mod read;
pub mod rlc;
pub mod tcp;
pub mod tunnel;

pub use error::WireError;

/// Maximum number of paths of a session; path ids on the wire are smaller than this.
pub const MAX_PATHS: usize = 8;
