//! Bytes only: a checked view and a parsed value for every header anabranch speaks.
//!
//! Everything on the wire is big-endian. Parsers never panic, never allocate for what they only look
//! at, and refuse with a [`WireError`] that names the field; emitters write exactly what their parser
//! reads. `docs/wire-formats.md` is the same in prose.
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
//! | [`tcp`] | TCP segments for the simulated hosts |
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

/// Most paths one session may have; a path id is smaller than this everywhere on the wire.
pub const MAX_PATHS: usize = 8;
