//! Replaces the destination address of a packet in transit, as for network address translation; checksums are updated
//! incrementally (RFC 1624).

use super::{IpPacket, fold, protocol, sum};
use crate::WireError;
use crate::read::{put, u16_at};
use std::net::IpAddr;

/// Replaces the destination address. The checksums of the IPv4 header and of the transport that covers the address (TCP, UDP,
/// UDP-Lite, DCCP, ICMPv6) remain as correct, or as wrong, as before.
///
/// # Errors
/// Those of [`IpPacket::parse`]; [`WireError::Family`] if `to` is of the other family; [`WireError::Value`] for IPv6 with
/// extension headers, which may contain the final destination; [`WireError::Truncated`] if the transport checksum is missing.
/// The packet is not changed in these cases.
pub fn rewrite_dst(packet: &mut [u8], to: IpAddr) -> Result<(), WireError> {
    let ip = IpPacket::parse(packet)?;
    match (ip.src, to) {
        (IpAddr::V4(_), IpAddr::V4(to)) => {
            // Only the first fragment contains the transport header. Its checksum covers the whole datagram, but an incremental
            // update does not need the rest.
            let first = u16_at(packet, 6) & 0x1FFF == 0;
            let transport = if first { checksum_at(ip.protocol, ip.payload.start) } else { None };
            let transport = checked(transport, ip.payload.end)?;
            replace(packet, 16, &to.octets(), [Some((10, false)), transport]);
        }
        (IpAddr::V6(_), IpAddr::V6(to)) => {
            if ip.payload.start != 40 {
                return Err(WireError::Value { what: "IPv6 extension headers", got: packet[6].into() });
            }
            let transport = checked(checksum_at(ip.protocol, 40), ip.payload.end)?;
            replace(packet, 24, &to.octets(), [None, transport]);
        }
        _ => return Err(WireError::Family),
    }
    Ok(())
}

/// Position of a checksum that covers the pseudo header, and whether zero means no checksum.
const fn checksum_at(protocol: u8, start: usize) -> Option<(usize, bool)> {
    match protocol {
        protocol::TCP => Some((start + 16, false)),
        protocol::UDP => Some((start + 6, true)),
        protocol::UDP_LITE | protocol::DCCP => Some((start + 6, false)),
        protocol::ICMPV6 => Some((start + 2, false)),
        _ => None,
    }
}

fn checked(at: Option<(usize, bool)>, end: usize) -> Result<Option<(usize, bool)>, WireError> {
    match at {
        Some((at, _)) if at + 2 > end => {
            Err(WireError::Truncated { what: "transport checksum", need: at + 2, have: end })
        }
        at => Ok(at),
    }
}

fn replace(packet: &mut [u8], at: usize, to: &[u8], checksums: [Option<(usize, bool)>; 2]) {
    let Some(old) = packet.get(at..at + to.len()) else { return };
    // `~m + m'` over all words at once: the complement of n words is n * 0xFFFF minus their sum.
    let change = (to.len() as u64 / 2) * 0xFFFF - u64::from(fold(sum(old))) + sum(to);
    put(packet, at, to);
    for (at, zero_is_none) in checksums.into_iter().flatten() {
        let was = u16_at(packet, at);
        if zero_is_none && was == 0 {
            continue;
        }
        let is = match !fold(u64::from(!was) + change) {
            0 if zero_is_none => 0xFFFF,
            other => other,
        };
        put(packet, at, &is.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::{parse_udp, udp_datagram};
    use crate::tcp::{TcpFlags, TcpHeader, emit_packet, parse_packet};
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

    fn ends(v6: bool) -> (SocketAddr, SocketAddr) {
        if v6 {
            ("[fd00::1]:1000".parse().unwrap(), "[fd00::2]:80".parse().unwrap())
        } else {
            ("10.0.0.1:1000".parse().unwrap(), "10.0.0.2:80".parse().unwrap())
        }
    }

    #[test]
    fn a_udp_packet_without_checksum_stays_so() {
        let (s, d) = ends(false);
        let mut p = udp_datagram(s, d, b"hello").unwrap();
        p[26..28].fill(0);
        rewrite_dst(&mut p, Ipv4Addr::new(192, 0, 2, 7).into()).unwrap();
        assert_eq!(p[26..28], [0, 0]);
        assert_eq!(parse_udp(&p).unwrap().1.ip(), IpAddr::from([192, 0, 2, 7]));
    }

    #[test]
    fn packets_that_cannot_be_rewritten_are_not_changed() {
        let (s, d) = ends(true);
        let mut p = udp_datagram(s, d, b"hello").unwrap();
        let before = p.clone();
        assert_eq!(rewrite_dst(&mut p, Ipv4Addr::LOCALHOST.into()), Err(WireError::Family));
        p[6] = 0; // hop-by-hop options that are not there
        assert!(rewrite_dst(&mut p, Ipv6Addr::LOCALHOST.into()).is_err());
        p[6] = 17;
        assert_eq!(p, before);
        let (s, d) = ends(false);
        let mut short = emit_packet(s, d, &TcpHeader::default(), &[]).unwrap();
        short.truncate(30);
        short[3] = 30;
        let before = short.clone();
        assert!(rewrite_dst(&mut short, Ipv4Addr::LOCALHOST.into()).is_err());
        assert_eq!(short, before);
    }

    proptest! {
        #[test]
        fn checksums_stay_right(
            v6: bool, udp: bool, to: [u8; 16], payload in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let (s, d) = ends(v6);
            let to: IpAddr = if v6 { to.into() } else { [to[0], to[1], to[2], to[3]].into() };
            if udp {
                let mut p = udp_datagram(s, d, &payload).unwrap();
                let before = p.clone();
                rewrite_dst(&mut p, to).unwrap();
                prop_assert_eq!(parse_udp(&p).unwrap().1.ip(), to);
                rewrite_dst(&mut p, d.ip()).unwrap();
                prop_assert_eq!(&p, &before);
            } else {
                let header = TcpHeader { flags: TcpFlags::ACK, ..TcpHeader::default() };
                let mut p = emit_packet(s, d, &header, &payload).unwrap();
                rewrite_dst(&mut p, to).unwrap();
                prop_assert_eq!(parse_packet(&p).unwrap().dst.ip(), to);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..80), to: [u8; 16], v6: bool) {
            if let Some(first) = bytes.first_mut() {
                *first = if v6 { 0x60 } else { 0x45 };
            }
            let _ = rewrite_dst(&mut bytes, to.into());
            let _ = rewrite_dst(&mut bytes, IpAddr::from([to[0], to[1], to[2], to[3]]));
        }
    }
}
