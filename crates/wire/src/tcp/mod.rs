//! TCP segments (RFC 9293), as needed by the simulated hosts.
//!
//! ```text
//! +-------------------------------+-------------------------------+
//! |          source port          |       destination port        |
//! +-------------------------------+-------------------------------+
//! |                        sequence number                        |
//! +---------------------------------------------------------------+
//! |                    acknowledgment number                      |
//! +-------+-------+---------------+-------------------------------+
//! | offset|   0   |CEUAPRSF flags |            window             |
//! +-------+-------+---------------+-------------------------------+
//! |           checksum            |        urgent pointer         |
//! +-------------------------------+-------------------------------+
//! | options: MSS, window scale, SACK permitted, timestamps, SACK, |
//! |          telemetry report                                     |
//! +---------------------------------------------------------------+
//! ```

mod blank;
mod template;
mod view;

pub use blank::blank_option;
pub use template::TcpTemplate;
pub use view::{Options, TcpOption, TcpView};

use crate::WireError;
use crate::ioam::{FEEDBACK_LEN, FEEDBACK_SHORT_LEN, TCP_OPTION_KIND};
use crate::ip::{fold, protocol, pseudo_header_sum, sum};
use crate::read::{need, put, u16_at, u32_at};
use core::fmt;
use core::ops::{BitOr, BitOrAssign, Range};
use std::net::SocketAddr;

/// Bytes of the header without options.
pub const TCP_HEADER_LEN: usize = 20;
/// Maximum length of options in bytes.
pub const TCP_OPTIONS_MAX: usize = 40;

/// The flags byte.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// No flags.
    pub const NONE: Self = Self(0);
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Opens a connection.
    pub const SYN: Self = Self(0x02);
    /// Resets a connection.
    pub const RST: Self = Self(0x04);
    /// Push.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgment number is valid.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is valid.
    pub const URG: Self = Self(0x20);
    /// ECN echo (RFC 3168).
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Self = Self(0x80);

    /// Whether all flags of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for TcpFlags {
    type Output = Self;
    fn bitor(self, rhs: Self) -> Self {
        Self(self.0 | rhs.0)
    }
}

impl BitOrAssign for TcpFlags {
    fn bitor_assign(&mut self, rhs: Self) {
        self.0 |= rhs.0;
    }
}

impl fmt::Debug for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (bit, letter) in "FSRPAUEC".chars().enumerate() {
            if self.0 & 1 << bit != 0 {
                write!(f, "{letter}")?;
            }
        }
        if self.0 == 0 { write!(f, "-") } else { Ok(()) }
    }
}

/// Up to four SACK blocks (RFC 2018): `[left, right)` in sequence numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SackBlocks {
    blocks: [(u32, u32); 4],
    count: u8,
}

impl SackBlocks {
    /// Adds a block; returns `false` if there are already four.
    pub fn push(&mut self, left: u32, right: u32) -> bool {
        match self.blocks.get_mut(usize::from(self.count)) {
            Some(slot) => {
                *slot = (left, right);
                self.count += 1;
                true
            }
            None => false,
        }
    }

    /// The blocks, in the order of the option.
    #[must_use]
    pub fn as_slice(&self) -> &[(u32, u32)] {
        &self.blocks[..usize::from(self.count)]
    }

    /// Whether there are no blocks.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// The supported options; others are skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpOptions {
    /// Maximum segment size, bytes (RFC 9293 §3.7.1).
    pub mss: Option<u16>,
    /// Window scale, bits (RFC 7323 §2); values above 14 are treated as 14.
    pub window_scale: Option<u8>,
    /// SACK permitted (RFC 2018).
    pub sack_permitted: bool,
    /// Timestamp value and echo (RFC 7323 §3).
    pub timestamps: Option<(u32, u32)>,
    /// SACK blocks. With timestamps only the first three fit and are written.
    pub sack: SackBlocks,
    /// An encoded path report ([`crate::ioam::Feedback`]), starting with kind and length; zeros: none. The caller ensures that it
    /// fits together with the other options.
    pub report: [u8; FEEDBACK_LEN],
}

impl TcpOptions {
    /// Encoded length in bytes, padded to a multiple of 4; at most [`TCP_OPTIONS_MAX`], except for a SYN with SACK blocks, which
    /// [`emit_packet`] rejects.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        if self.only_timestamps().is_some() {
            return 12;
        }
        self.len_of_any()
    }

    fn len_of_any(&self) -> usize {
        let mut len = 0;
        if self.mss.is_some() {
            len += 4;
        }
        if self.window_scale.is_some() {
            len += 3;
        }
        if self.sack_permitted {
            len += 2;
        }
        if self.timestamps.is_some() {
            len += 10;
        }
        let blocks = self.blocks().len();
        if blocks > 0 {
            len += 2 + 8 * blocks;
        }
        len += self.report().len();
        len.next_multiple_of(4)
    }

    /// The timestamps, if they are the only option.
    #[inline]
    fn only_timestamps(&self) -> Option<(u32, u32)> {
        // Evaluated without short-circuiting, which is faster.
        let others = self.mss.is_some() | self.window_scale.is_some() | self.sack_permitted;
        let more = !self.sack.is_empty() | (self.report[1] != 0);
        if others | more { None } else { self.timestamps }
    }

    /// Whether there are no options.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn blocks(&self) -> &[(u32, u32)] {
        let all = self.sack.as_slice();
        let most = if self.timestamps.is_some() { 3 } else { 4 };
        &all[..all.len().min(most)]
    }

    fn report(&self) -> &[u8] {
        &self.report[..usize::from(self.report[1]).min(FEEDBACK_LEN)]
    }

    fn emit(&self, b: &mut [u8]) {
        let mut at = 0;
        let mut write = |bytes: &[u8]| {
            put(b, at, bytes);
            at += bytes.len();
        };
        if let Some(mss) = self.mss {
            write(&[2, 4]);
            write(&mss.to_be_bytes());
        }
        if self.sack_permitted {
            write(&[4, 2]);
        }
        if let Some((value, echo)) = self.timestamps {
            write(&[8, 10]);
            write(&value.to_be_bytes());
            write(&echo.to_be_bytes());
        }
        if let Some(shift) = self.window_scale {
            write(&[3, 3, shift]);
        }
        let blocks = self.blocks();
        if !blocks.is_empty() {
            write(&[5, 2 + 8 * blocks.len() as u8]);
            for (left, right) in blocks {
                write(&left.to_be_bytes());
                write(&right.to_be_bytes());
            }
        }
        write(self.report());
        b[at..].fill(1);
    }

    #[inline]
    fn parse(options: &[u8]) -> Result<Self, WireError> {
        // The common case: timestamps alone, in either of the usual orders.
        if let Ok([8, 10, v @ .., 1, 1] | [1, 1, 8, 10, v @ ..]) = <&[u8; 12]>::try_from(options) {
            return Ok(Self { timestamps: Some((u32_at(v, 0), u32_at(v, 4))), ..Self::default() });
        }
        Self::parse_any(options)
    }

    fn parse_any(options: &[u8]) -> Result<Self, WireError> {
        let mut parsed = Self::default();
        let mut rest = options;
        while let Some((&kind, tail)) = rest.split_first() {
            match kind {
                0 => break,
                1 => {
                    rest = tail;
                    continue;
                }
                _ => {}
            }
            let length = usize::from(*tail.first().unwrap_or(&0));
            if length < 2 || length > rest.len() {
                return Err(WireError::Length { what: "TCP option", expected: length, have: rest.len() });
            }
            let (option, after) = rest.split_at(length);
            rest = after;
            match (kind, length) {
                (2, 4) => parsed.mss = Some(u16_at(option, 2)),
                (3, 3) => parsed.window_scale = Some(option[2].min(14)),
                (4, 2) => parsed.sack_permitted = true,
                (8, 10) => parsed.timestamps = Some((u32_at(option, 2), u32_at(option, 6))),
                (5, _) if length % 8 == 2 => {
                    for block in option[2..].chunks_exact(8) {
                        parsed.sack.push(u32_at(block, 0), u32_at(block, 4));
                    }
                }
                (2..=5 | 8, _) => {
                    return Err(WireError::Value { what: "length of a TCP option", got: length as u64 });
                }
                (TCP_OPTION_KIND, FEEDBACK_LEN | FEEDBACK_SHORT_LEN) => put(&mut parsed.report, 0, option),
                _ => {}
            }
        }
        Ok(parsed)
    }
}

/// A TCP header without ports and checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpHeader {
    /// Sequence number of the first byte of payload (or of SYN or FIN).
    pub seq: u32,
    /// Next sequence number expected; valid with [`TcpFlags::ACK`].
    pub ack: u32,
    /// Control bits (RFC 9293 §3.1), including those of ECN.
    pub flags: TcpFlags,
    /// Receive window as on the wire, unscaled.
    pub window: u16,
    /// The options that this crate interprets.
    pub options: TcpOptions,
}

/// A TCP segment parsed from a whole IP packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpPacket {
    /// Source address and port.
    pub src: SocketAddr,
    /// Destination address and port.
    pub dst: SocketAddr,
    /// Header fields without ports and checksum.
    pub header: TcpHeader,
    /// Position of the payload in the packet.
    pub payload: Range<usize>,
}

/// Builds a whole IP packet with a TCP segment, with checksums.
///
/// # Errors
/// [`WireError::Family`] if source and destination differ in family; [`WireError::TooLong`] if options
/// or packet would be too long.
pub fn emit_packet(
    src: SocketAddr,
    dst: SocketAddr,
    header: &TcpHeader,
    payload: &[u8],
) -> Result<Vec<u8>, WireError> {
    let headers = headers_len(dst, header);
    let mut b = vec![0; headers + payload.len()];
    put(&mut b, headers, payload);
    emit_around(&mut b, src, dst, header)?;
    Ok(b)
}

/// Size of the IP and TCP headers in front of a payload.
#[must_use]
pub fn headers_len(dst: SocketAddr, header: &TcpHeader) -> usize {
    let ip = if dst.is_ipv4() { 20 } else { 40 };
    ip + TCP_HEADER_LEN + header.options.len()
}

/// Writes the headers in front of a payload that is already in `b`, at offset [`headers_len`].
///
/// # Errors
/// Those of [`emit_packet`]; [`WireError::Truncated`] if `b` is shorter than the headers.
fn emit_around(b: &mut [u8], src: SocketAddr, dst: SocketAddr, header: &TcpHeader) -> Result<(), WireError> {
    let payload = b.get(headers_len(dst, header)..).unwrap_or_default();
    let payload_sum = sum(payload);
    TcpTemplate::new(src, dst)?.emit(b, header, payload_sum)
}

/// Parses a whole IP packet with a TCP segment; both checksums are verified.
///
/// # Errors
/// Those of [`crate::ip::IpPacket::parse`]; [`WireError::Value`] if it is not TCP, is a fragment, or has an invalid header
/// length or option; [`WireError::Checksum`].
pub fn parse_packet(packet: &[u8]) -> Result<TcpPacket, WireError> {
    parse_packet_with(packet, |_, _| None)
}

/// Like [`parse_packet`], for callers that may already have the [`sum`] of the payload: `payload_sum` is called with the header,
/// which is not verified yet, and the payload. If it returns `None`, the sum is computed.
///
/// # Errors
/// Those of [`parse_packet`].
#[inline]
pub fn parse_packet_with(
    packet: &[u8],
    payload_sum: impl FnOnce(&TcpHeader, &[u8]) -> Option<u64>,
) -> Result<TcpPacket, WireError> {
    let ip = crate::ip::checked_ip(packet, protocol::TCP)?;
    let tcp = &packet[ip.payload.clone()];
    need(tcp, "TCP header", TCP_HEADER_LEN)?;
    let length = usize::from(tcp[12] >> 4) * 4;
    if length < TCP_HEADER_LEN || length > tcp.len() {
        return Err(WireError::Value { what: "TCP header length", got: length as u64 });
    }
    let header = TcpHeader {
        seq: u32_at(tcp, 4),
        ack: u32_at(tcp, 8),
        flags: TcpFlags(tcp[13]),
        window: u16_at(tcp, 14),
        options: TcpOptions::parse(&tcp[TCP_HEADER_LEN..length])?,
    };
    let (head, payload) = tcp.split_at(length);
    // Headers are whole words, so both sums may be added.
    let sums = sum_of_header(head) + payload_sum(&header, payload).unwrap_or_else(|| sum(payload));
    if fold(pseudo_header_sum(ip.src, ip.dst, protocol::TCP, tcp.len()) + sums) != 0xFFFF {
        return Err(WireError::Checksum("TCP"));
    }
    Ok(TcpPacket {
        src: SocketAddr::new(ip.src, u16_at(tcp, 0)),
        dst: SocketAddr::new(ip.dst, u16_at(tcp, 2)),
        header,
        payload: ip.payload.start + length..ip.payload.end,
    })
}

/// The sum of a header; for the usual header with timestamps, the length is a compile-time constant.
#[inline]
fn sum_of_header(head: &[u8]) -> u64 {
    match head.first_chunk::<32>().filter(|usual| usual.len() == head.len()) {
        Some(usual) => sum(usual),
        None => sum(head),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{PacketBuilder, TcpOptionElement};
    use proptest::prelude::*;

    fn pair(v6: bool) -> (SocketAddr, SocketAddr) {
        if v6 {
            ("[fd00::1]:1000".parse().unwrap(), "[fd00::2]:80".parse().unwrap())
        } else {
            ("10.0.0.1:1000".parse().unwrap(), "10.0.0.2:80".parse().unwrap())
        }
    }

    #[test]
    fn the_same_bytes_as_etherparse_writes() {
        let (s, d) = pair(false);
        let header = TcpHeader {
            seq: 0x0102_0304,
            ack: 0,
            flags: TcpFlags::SYN,
            window: 0xFFFF,
            options: TcpOptions {
                mss: Some(1460),
                window_scale: Some(7),
                sack_permitted: true,
                timestamps: Some((1, 2)),
                ..TcpOptions::default()
            },
        };
        let ours = emit_packet(s, d, &header, &[]).unwrap();
        let mut theirs = Vec::new();
        PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .tcp(1000, 80, 0x0102_0304, 0xFFFF)
            .syn()
            .options(&[
                TcpOptionElement::MaximumSegmentSize(1460),
                TcpOptionElement::SelectiveAcknowledgementPermitted,
                TcpOptionElement::Timestamp(1, 2),
                TcpOptionElement::WindowScale(7),
                TcpOptionElement::Noop,
            ])
            .unwrap()
            .write(&mut theirs, &[])
            .unwrap();
        assert_eq!(ours, theirs);
        assert_eq!(format!("{:?}", TcpFlags::SYN | TcpFlags::ACK), "SA");
    }

    #[test]
    fn sack_blocks_fit_beside_timestamps() {
        let mut sack = SackBlocks::default();
        for i in 0..4 {
            assert!(sack.push(i * 100, i * 100 + 50));
        }
        assert!(!sack.push(9, 9));
        let (s, d) = pair(false);
        let with = |timestamps| TcpHeader {
            flags: TcpFlags::ACK,
            options: TcpOptions { sack, timestamps, ..TcpOptions::default() },
            ..TcpHeader::default()
        };
        let parse = |h: &TcpHeader| parse_packet(&emit_packet(s, d, h, b"x").unwrap()).unwrap();
        assert_eq!(parse(&with(None)).header.options.sack.as_slice().len(), 4);
        assert_eq!(parse(&with(Some((1, 2)))).header.options.sack.as_slice().len(), 3);
    }

    #[test]
    fn options_are_skipped_or_refused() {
        let known = TcpOptions::parse(&[254, 4, 0, 0, 1, 2, 4, 5, 0xb4, 0, 9, 9]).unwrap();
        assert_eq!(known.mss, Some(1460), "after an unknown one, before the end of the list");
        for bad in [&[2u8, 3, 0][..], &[5, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[8, 1], &[8], &[3, 4, 0]] {
            assert!(TcpOptions::parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(TcpOptions::parse(&[3, 3, 200]).unwrap().window_scale, Some(14), "RFC 7323 §2.3");
    }

    proptest! {
        #[test]
        fn round_trips(
            v6: bool, seq: u32, ack: u32, flags: u8, window: u16,
            mss: Option<u16>, window_scale in proptest::option::of(0u8..=14), sack_permitted: bool,
            timestamps: Option<(u32, u32)>, blocks in proptest::collection::vec(any::<(u32, u32)>(), 0..=1),
            payload in proptest::collection::vec(any::<u8>(), 0..100), at: usize, bit in 0u8..8, report: bool,
        ) {
            let (s, d) = pair(v6);
            let mut sack = SackBlocks::default();
            for (l, r) in blocks {
                sack.push(l, r);
            }
            let mut options = TcpOptions { mss, window_scale, sack_permitted, timestamps, ..TcpOptions::default() };
            if report {
                let told = crate::ioam::Feedback { queue_drops: window, ..Default::default() };
                told.emit(&mut options.report).unwrap();
            } else {
                options.sack = sack;
            }
            let header = TcpHeader { seq, ack, flags: TcpFlags(flags), window, options };
            let mut p = emit_packet(s, d, &header, &payload).unwrap();
            let t = parse_packet(&p).unwrap();
            prop_assert_eq!((t.src, t.dst, t.header), (s, d, header));
            prop_assert_eq!(&p[t.payload], &payload[..]);
            let at = at % p.len();
            if !v6 || at >= 8 {
                p[at] ^= 1 << bit;
                prop_assert!(parse_packet(&p).is_err());
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = TcpOptions::parse(&bytes);
            let _ = parse_packet(&bytes);
        }
    }
}
