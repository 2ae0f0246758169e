//! IPv6 extension headers with IOAM options, RFC 8200 §4.2 and RFC 9486.
//!
//! ```text
//! +---------------+---------------+---------------+---------------+
//! |  next header  | length/8 − 1  |  PadN, so that the option     |
//! +---------------+---------------+       starts at 4n            |
//! |  option, its type IOAM …                                      |
//! |  … Pad1 or PadN up to 8n                                      |
//! +---------------------------------------------------------------+
//! ```

use super::edge::{EdgeToEdge, TCP_STATE_LEN, TcpState};
use super::option_type;
use super::trace::{TRACE_HEADER_LEN, TraceHeader};
use crate::WireError;
use crate::read::{need, put, u16_at};
use core::ops::Range;

/// Next-header value of hop-by-hop options.
pub const HOP_BY_HOP: u8 = 0;
/// Next-header value of destination options.
pub const DESTINATION_OPTIONS: u8 = 60;

/// IOAM option that nodes may change in transit (RFC 9486 §3).
const MUTABLE: u8 = 0x31;
/// IOAM option that nodes must not change.
const FIXED: u8 = 0x11;
/// Option type for experiments (RFC 4727 §3.3).
const EXPERIMENT: u8 = 0x1e;
const PAD1: u8 = 0;
const PADN: u8 = 1;
const IPV6_LEN: usize = 40;
/// Maximum length of option data in bytes.
const OPTION_MAX: usize = 255;

/// An option in an extension header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtOption<'a> {
    /// IOAM option: its IOAM type and data.
    Ioam {
        /// See [`option_type`].
        kind: u8,
        /// Data, starting with the namespace.
        data: &'a [u8],
    },
    /// The sender's TCP state.
    Tcp(TcpState),
    /// Any other option.
    Other {
        /// Type, including the bits for unknown options (RFC 8200 §4.2).
        kind: u8,
        /// Contents, without type and length.
        data: &'a [u8],
    },
}

/// The options of a whole extension header without padding. A malformed option ends the iteration with its error.
pub fn options(header: &[u8]) -> impl Iterator<Item = Result<ExtOption<'_>, WireError>> {
    let mut at = Some(2);
    core::iter::from_fn(move || {
        while let Some(start) = at.filter(|start| *start < header.len()) {
            if header[start] == PAD1 {
                at = Some(start + 1);
                continue;
            }
            at = None;
            let range = match option_range(header, start) {
                Ok(range) => range,
                Err(error) => return Some(Err(error)),
            };
            at = Some(range.end);
            if header[start] != PADN {
                return Some(read_option(header[start], &header[range]));
            }
        }
        None
    })
}

fn option_range(header: &[u8], start: usize) -> Result<Range<usize>, WireError> {
    const WHAT: &str = "IPv6 option";
    need(header, WHAT, start + 2)?;
    let end = start + 2 + usize::from(header[start + 1]);
    need(header, WHAT, end)?;
    Ok(start + 2..end)
}

fn read_option(kind: u8, data: &[u8]) -> Result<ExtOption<'_>, WireError> {
    match kind {
        MUTABLE | FIXED => {
            need(data, "IOAM option", 2)?;
            Ok(ExtOption::Ioam { kind: data[1], data: &data[2..] })
        }
        EXPERIMENT => Ok(match TcpState::parse(data)? {
            Some(state) => ExtOption::Tcp(state),
            None => ExtOption::Other { kind, data },
        }),
        _ => Ok(ExtOption::Other { kind, data }),
    }
}

/// Up to two options headers of a packet: their next-header values and positions.
pub type OptionsHeaders = [Option<(u8, Range<usize>)>; 2];

/// Positions of the hop-by-hop (if first) and destination options headers of an IPv6 packet.
///
/// # Errors
/// Not a complete IPv6 packet, or a header that extends beyond it.
pub fn find_options(packet: &[u8]) -> Result<OptionsHeaders, WireError> {
    let (found, _) = options_in_front(packet)?;
    let expected = IPV6_LEN + usize::from(u16_at(packet, 4));
    if packet.len() != expected {
        return Err(WireError::Length { what: WHAT, expected, have: packet.len() });
    }
    Ok(found)
}

const WHAT: &str = "IPv6 packet";

/// Like [`find_options`] for a packet that may be truncated after these headers; also returns the protocol after them and its
/// position.
///
/// # Errors
/// Not an IPv6 packet, or a header that extends beyond the bytes present.
pub(super) fn options_in_front(packet: &[u8]) -> Result<(OptionsHeaders, (u8, usize)), WireError> {
    need(packet, WHAT, IPV6_LEN)?;
    if packet[0] >> 4 != 6 {
        return Err(WireError::Value { what: "IP version", got: u64::from(packet[0] >> 4) });
    }
    let (mut next, mut at) = (packet[6], IPV6_LEN);
    let mut found = [None, None];
    for (slot, kinds) in
        found.iter_mut().zip([&[HOP_BY_HOP, DESTINATION_OPTIONS][..], &[DESTINATION_OPTIONS]])
    {
        if !kinds.contains(&next) {
            break;
        }
        need(packet, "IPv6 extension header", at + 8)?;
        let end = at + 8 * (usize::from(packet[at + 1]) + 1);
        need(packet, "IPv6 extension header", end)?;
        *slot = Some((next, at..end));
        (next, at) = (packet[at], end);
    }
    Ok((found, (next, at)))
}

/// Position of a packet's pre-allocated trace, starting with its namespace, as expected by [`fill`](super::fill) and
/// [`TraceView`](super::TraceView). `None` if there is none.
///
/// # Errors
/// Those of [`find_options`]; a hop-by-hop header with inconsistent options.
pub fn trace_range(packet: &[u8]) -> Result<Option<Range<usize>>, WireError> {
    let Some((HOP_BY_HOP, header)) = find_options(packet)?[0].clone() else { return Ok(None) };
    let mut at = 2;
    let bytes = &packet[header.clone()];
    while at < bytes.len() {
        if bytes[at] == PAD1 {
            at += 1;
            continue;
        }
        let range = option_range(bytes, at)?;
        if bytes[at] == MUTABLE && range.len() >= 2 && bytes[range.start + 1] == option_type::PRE_ALLOCATED {
            return Ok(Some(header.start + range.start + 2..header.start + range.end));
        }
        at = range.end;
    }
    Ok(None)
}

/// Size in bytes of a hop-by-hop header with a trace that has room for `words` units of 4 bytes.
#[must_use]
pub const fn trace_header_len(words: u8) -> usize {
    (4 + 4 + TRACE_HEADER_LEN + 4 * words as usize).next_multiple_of(8)
}

/// Writes a hop-by-hop options header with an empty pre-allocated trace to the start of `out`; returns its length, which is
/// [`trace_header_len`] of [`TraceHeader::remaining_words`].
///
/// # Errors
/// `out` is too short, or the trace exceeds the maximum length of an IPv6 option (61 units).
pub fn emit_trace_header(next_header: u8, trace: &TraceHeader, out: &mut [u8]) -> Result<usize, WireError> {
    let data = TRACE_HEADER_LEN + 4 * usize::from(trace.remaining_words);
    let len = trace_header_len(trace.remaining_words);
    start(next_header, len, out)?;
    let at = emit_ioam(MUTABLE, option_type::PRE_ALLOCATED, data, 4, out)?;
    trace.emit(&mut out[at..])?;
    pad(&mut out[at + data..len]);
    Ok(len)
}

/// Writes a destination options header with an edge-to-edge option, and optionally the TCP state, to the start of `out` (at
/// most 56 bytes); returns its length.
///
/// # Errors
/// `out` is too short.
pub fn emit_edge_header(
    next_header: u8,
    edge: &EdgeToEdge,
    tcp: Option<&TcpState>,
    out: &mut [u8],
) -> Result<usize, WireError> {
    let data = edge.encoded_len();
    let tcp_len = if tcp.is_some() { 2 + TCP_STATE_LEN } else { 0 };
    let len = (4 + 4 + data + tcp_len).next_multiple_of(8);
    start(next_header, len, out)?;
    let at = emit_ioam(FIXED, option_type::EDGE_TO_EDGE, data, 4, out)?;
    edge.emit(&mut out[at..])?;
    let mut at = at + data;
    if let Some(state) = tcp {
        put(out, at, &[EXPERIMENT, TCP_STATE_LEN as u8]);
        put(out, at + 2, &state.emit());
        at += tcp_len;
    }
    pad(&mut out[at..len]);
    Ok(len)
}

/// Inserts a whole extension header after the fixed header of an IPv6 packet. The header's next-header byte must equal that of
/// the packet.
///
/// # Errors
/// Not an IPv6 packet; a header whose length is not a multiple of 8, or with another next-header value; or a packet that would
/// exceed its length field.
pub fn insert(packet: &mut Vec<u8>, kind: u8, header: &[u8]) -> Result<(), WireError> {
    find_options(packet)?;
    if header.is_empty() || !header.len().is_multiple_of(8) {
        let what = "IPv6 extension header";
        return Err(WireError::Length {
            what,
            expected: header.len().next_multiple_of(8),
            have: header.len(),
        });
    }
    if header[0] != packet[6] {
        return Err(WireError::Value { what: "next header", got: u64::from(header[0]) });
    }
    let (most, have) = (usize::from(u16::MAX), packet.len() - IPV6_LEN + header.len());
    let length = u16::try_from(have).map_err(|_| WireError::TooLong { what: "IPv6 packet", most, have })?;
    packet.splice(IPV6_LEN..IPV6_LEN, header.iter().copied());
    put(packet, 4, &length.to_be_bytes());
    packet[6] = kind;
    Ok(())
}

/// Removes the options headers at the start of a packet that contain IOAM; others are kept. Returns the number of bytes
/// removed.
///
/// # Errors
/// Those of [`find_options`]; inconsistent options.
pub fn strip(packet: &mut Vec<u8>) -> Result<usize, WireError> {
    let found = find_options(packet)?;
    let before = packet.len();
    // The last header first, so that positions before it remain valid.
    for (i, slot) in found.iter().enumerate().rev() {
        let Some((_, range)) = slot else { continue };
        let mut ioam = false;
        for option in options(&packet[range.clone()]) {
            ioam |= matches!(option?, ExtOption::Ioam { .. } | ExtOption::Tcp(_));
        }
        if ioam {
            let next = packet[range.start];
            let names_it = match i.checked_sub(1).and_then(|j| found[j].as_ref()) {
                Some((_, earlier)) => earlier.start,
                None => 6,
            };
            packet[names_it] = next;
            packet.drain(range.clone());
        }
    }
    let length = (packet.len() - IPV6_LEN) as u16;
    put(packet, 4, &length.to_be_bytes());
    Ok(before - packet.len())
}

/// Writes the first four bytes of an extension header: PadN aligns the option to 4n.
fn start(next_header: u8, len: usize, out: &mut [u8]) -> Result<(), WireError> {
    need(out, "room for an IPv6 extension header", len)?;
    out[..len].fill(0);
    put(out, 0, &[next_header, (len / 8 - 1) as u8, PADN, 0]);
    Ok(())
}

/// Writes the first four bytes of an IOAM option at `at`; returns the position of its data.
fn emit_ioam(kind: u8, ioam: u8, data: usize, at: usize, out: &mut [u8]) -> Result<usize, WireError> {
    let have = data + 2;
    let length =
        u8::try_from(have).map_err(|_| WireError::TooLong { what: "IOAM option", most: OPTION_MAX, have })?;
    put(out, at, &[kind, length, 0, ioam]);
    Ok(at + 4)
}

/// Pads the rest of an extension header; zeros are already Pad1.
fn pad(rest: &mut [u8]) {
    if let Some(data) = rest.len().checked_sub(2) {
        put(rest, 0, &[PADN, data as u8]);
    }
}
