//! ICMP and ICMPv6 echo (RFC 792, RFC 4443 §4).

use super::{checked_ip, emit_ip, fold, protocol, pseudo_header_sum, sum};
use crate::WireError;
use crate::read::{need, put, u16_at};
use core::ops::Range;
use std::net::IpAddr;

/// Size of the header of an echo message in bytes.
pub const ECHO_HEADER_LEN: usize = 8;

/// An echo request or reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Echo {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// A reply, not a request.
    pub reply: bool,
    /// Identifier of the sender; a reply repeats it.
    pub id: u16,
    /// Sequence number of the request; a reply repeats it.
    pub sequence: u16,
    /// Position of the payload in the packet.
    pub payload: Range<usize>,
}

/// Builds a whole IP packet with an echo message, with checksums.
///
/// # Errors
/// [`WireError::Family`] if source and destination differ in family; [`WireError::TooLong`].
pub fn emit_echo(
    src: IpAddr,
    dst: IpAddr,
    reply: bool,
    (id, sequence): (u16, u16),
    payload: &[u8],
) -> Result<Vec<u8>, WireError> {
    let (start, protocol, kind) = match (dst, reply) {
        (IpAddr::V4(_), false) => (20, protocol::ICMP, 8),
        (IpAddr::V4(_), true) => (20, protocol::ICMP, 0),
        (IpAddr::V6(_), false) => (40, protocol::ICMPV6, 128),
        (IpAddr::V6(_), true) => (40, protocol::ICMPV6, 129),
    };
    let mut b = vec![0; start + ECHO_HEADER_LEN + payload.len()];
    emit_ip(&mut b, src, dst, protocol)?;
    let icmp = &mut b[start..];
    put(icmp, 0, &[kind]);
    put(icmp, 4, &id.to_be_bytes());
    put(icmp, 6, &sequence.to_be_bytes());
    put(icmp, ECHO_HEADER_LEN, payload);
    let checksum = !fold(pseudo(src, dst, icmp.len()) + sum(icmp));
    put(icmp, 2, &checksum.to_be_bytes());
    Ok(b)
}

/// Parses a whole IP packet with an echo message; checksums are verified.
///
/// # Errors
/// Those of [`super::IpPacket::parse`]; [`WireError::Value`] if it is a fragment or not an echo message;
/// [`WireError::Checksum`].
pub fn parse_echo(packet: &[u8]) -> Result<Echo, WireError> {
    let v4 = packet.first().is_some_and(|b| b >> 4 == 4);
    let ip = checked_ip(packet, if v4 { protocol::ICMP } else { protocol::ICMPV6 })?;
    let icmp = &packet[ip.payload.clone()];
    need(icmp, "ICMP echo", ECHO_HEADER_LEN)?;
    let reply = match (v4, icmp[0]) {
        (true, 8) | (false, 128) => false,
        (true, 0) | (false, 129) => true,
        (_, other) => return Err(WireError::Value { what: "ICMP type", got: other.into() }),
    };
    if fold(pseudo(ip.src, ip.dst, icmp.len()) + sum(icmp)) != 0xFFFF {
        return Err(WireError::Checksum("ICMP"));
    }
    Ok(Echo {
        src: ip.src,
        dst: ip.dst,
        reply,
        id: u16_at(icmp, 4),
        sequence: u16_at(icmp, 6),
        payload: ip.payload.start + ECHO_HEADER_LEN..ip.payload.end,
    })
}

fn pseudo(src: IpAddr, dst: IpAddr, len: usize) -> u64 {
    // ICMP for IPv4 has no pseudo header.
    if dst.is_ipv4() { 0 } else { pseudo_header_sum(src, dst, protocol::ICMPV6, len) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::PacketBuilder;
    use proptest::prelude::*;

    #[test]
    fn the_same_bytes_as_etherparse_writes() {
        let (s, d) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let mut theirs = Vec::new();
        PacketBuilder::ipv4(s, d, 64).icmpv4_echo_request(7, 9).write(&mut theirs, b"probe").unwrap();
        assert_eq!(emit_echo(s.into(), d.into(), false, (7, 9), b"probe").unwrap(), theirs);
        let (s, d) = ([1; 16], [2; 16]);
        let mut theirs = Vec::new();
        PacketBuilder::ipv6(s, d, 64).icmpv6_echo_reply(7, 9).write(&mut theirs, b"probe").unwrap();
        assert_eq!(emit_echo(s.into(), d.into(), true, (7, 9), b"probe").unwrap(), theirs);
        assert_eq!(emit_echo([1; 4].into(), d.into(), true, (7, 9), b""), Err(WireError::Family));
    }

    proptest! {
        #[test]
        fn round_trips(
            v6: bool, reply: bool, id: u16, sequence: u16, at: usize, bit in 0u8..8,
            payload in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let (s, d): (IpAddr, IpAddr) =
                if v6 { ([1; 16].into(), [2; 16].into()) } else { ([1; 4].into(), [2; 4].into()) };
            let mut p = emit_echo(s, d, reply, (id, sequence), &payload).unwrap();
            let echo = parse_echo(&p).unwrap();
            prop_assert_eq!((echo.src, echo.dst, echo.reply, echo.id, echo.sequence), (s, d, reply, id, sequence));
            prop_assert_eq!(&p[echo.payload], &payload[..]);
            let at = at % p.len();
            if !v6 || at >= 8 {
                p[at] ^= 1 << bit;
                prop_assert!(parse_echo(&p).is_err());
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..60), v6: bool) {
            if let Some(first) = bytes.first_mut() {
                *first = if v6 { 0x60 } else { 0x45 };
            }
            let _ = parse_echo(&bytes);
        }
    }
}
