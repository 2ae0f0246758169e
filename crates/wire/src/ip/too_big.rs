//! ICMP errors for packets that exceed the MTU (RFC 1191, RFC 8201).

use super::{IpPacket, fold, internet_checksum, protocol, pseudo_header_sum, sum};
use crate::read::put;
use std::net::IpAddr;

/// Maximum size of an ICMPv4 error in bytes (RFC 1812 §4.3.2.3).
const ICMPV4_ERROR_MAX: usize = 576;
/// Maximum size of an ICMPv6 error in bytes (RFC 4443 §2.4 (c)).
const ICMPV6_ERROR_MAX: usize = 1280;

/// Whether routers may fragment this packet: IPv4 without don't-fragment. Such a packet needs no error, because it can be
/// fragmented instead.
#[must_use]
pub fn may_fragment(packet: &[u8]) -> bool {
    matches!(packet, [first, _, _, _, _, _, flags, ..] if first >> 4 == 4 && flags & 0x40 == 0)
}

/// The ICMP error for the sender of `original`, stating that only `mtu` bytes fit, with source address `from`: ICMPv4
/// *fragmentation needed* or ICMPv6 *packet too big*.
///
/// An IPv6 `mtu` below 1280 is reported as 1280: a smaller value only makes senders add a fragment header (RFC 8201 §4).
///
/// `None` if no error may be sent (for an ICMP error, a later fragment, or a source or destination address that does not
/// identify a single host; RFC 1122 §3.2.2, RFC 4443 §2.4 (e)), if `original` is malformed, or if `from` is of the other family.
#[must_use]
pub fn packet_too_big(original: &[u8], mtu: u16, from: IpAddr) -> Option<Vec<u8>> {
    let ip = IpPacket::parse(original).ok()?;
    if !one_host(ip.src) || !one_host(ip.dst) || is_icmp_error(original, &ip) {
        return None;
    }
    let original = &original[..ip.payload.end];
    match (ip.src, from) {
        (IpAddr::V4(to), IpAddr::V4(from)) => {
            let later_fragment = original[6] & 0x1F != 0 || original[7] != 0;
            if later_fragment {
                return None;
            }
            let quoted = &original[..original.len().min(ICMPV4_ERROR_MAX - 28)];
            let mut b = vec![0; 28 + quoted.len()];
            super::udp::emit_ipv4(&mut b, from, to, protocol::ICMP);
            put(&mut b, 20, &[3, 4]);
            put(&mut b, 26, &mtu.to_be_bytes());
            put(&mut b, 28, quoted);
            let checksum = internet_checksum(&b[20..]);
            put(&mut b, 22, &checksum.to_be_bytes());
            Some(b)
        }
        (IpAddr::V6(to), IpAddr::V6(from)) => {
            let quoted = &original[..original.len().min(ICMPV6_ERROR_MAX - 48)];
            let mut b = vec![0; 48 + quoted.len()];
            super::udp::emit_ipv6(&mut b, from, to, protocol::ICMPV6);
            b[40] = 2;
            put(&mut b, 44, &u32::from(mtu.max(1280)).to_be_bytes());
            put(&mut b, 48, quoted);
            let pseudo = pseudo_header_sum(from.into(), to.into(), protocol::ICMPV6, b.len() - 40);
            let checksum = !fold(pseudo + sum(&b[40..]));
            put(&mut b, 42, &checksum.to_be_bytes());
            Some(b)
        }
        _ => None,
    }
}

fn one_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => !a.is_multicast() && !a.is_broadcast() && !a.is_unspecified(),
        IpAddr::V6(a) => !a.is_multicast() && !a.is_unspecified(),
    }
}

fn is_icmp_error(original: &[u8], ip: &IpPacket) -> bool {
    let kind = original.get(ip.payload.start).copied();
    match ip.protocol {
        // Destination unreachable, source quench, redirect, time exceeded, parameter problem.
        protocol::ICMP => ip.fragment || matches!(kind, Some(3 | 4 | 5 | 11 | 12) | None),
        protocol::ICMPV6 => ip.fragment || kind.is_none_or(|k| k < 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::udp_datagram;
    use etherparse::{Icmpv4Type, Icmpv6Type, PacketHeaders, TransportHeader, icmpv4};
    use proptest::prelude::*;

    fn big(v6: bool) -> Vec<u8> {
        let (s, d) = if v6 { ("[fd00::1]:9", "[fd00::2]:9") } else { ("10.0.0.1:9", "10.0.0.2:9") };
        udp_datagram(s.parse().unwrap(), d.parse().unwrap(), &[7; 1472]).unwrap()
    }

    #[test]
    fn icmpv4_is_what_etherparse_reads() {
        let original = big(false);
        let b = packet_too_big(&original, 1400, "10.0.0.254".parse().unwrap()).unwrap();
        assert_eq!(b.len(), 576);
        assert_eq!(internet_checksum(&b[..20]), 0);
        assert_eq!(internet_checksum(&b[20..]), 0);
        let p = PacketHeaders::from_ip_slice(&b).unwrap();
        let Some(TransportHeader::Icmpv4(icmp)) = p.transport else { panic!("not ICMPv4") };
        assert_eq!(
            icmp.icmp_type,
            Icmpv4Type::DestinationUnreachable(icmpv4::DestUnreachableHeader::FragmentationNeeded {
                next_hop_mtu: 1400
            })
        );
        assert_eq!(b[28..], original[..548]);
        assert_eq!(crate::ip::src_dst(&b).unwrap().1, "10.0.0.1".parse::<IpAddr>().unwrap());
        assert_eq!(packet_too_big(&b, 1400, "10.0.0.3".parse().unwrap()), None, "no error about an error");
    }

    #[test]
    fn icmpv6_is_what_etherparse_reads() {
        let original = big(true);
        let b = packet_too_big(&original, 1400, "fd00::ff".parse().unwrap()).unwrap();
        assert_eq!(b.len(), 1280);
        let p = PacketHeaders::from_ip_slice(&b).unwrap();
        let Some(TransportHeader::Icmpv6(icmp)) = p.transport else { panic!("not ICMPv6") };
        assert_eq!(icmp.icmp_type, Icmpv6Type::PacketTooBig { mtu: 1400 });
        let ip = IpPacket::parse(&b).unwrap();
        let pseudo = pseudo_header_sum(ip.src, ip.dst, protocol::ICMPV6, b.len() - 40);
        assert_eq!(fold(pseudo + sum(&b[40..])), 0xFFFF);
        assert_eq!(packet_too_big(&b, 1400, "fd00::1".parse().unwrap()), None, "no error about an error");
    }

    #[test]
    fn no_error_where_none_may_be_sent() {
        let from = "10.0.0.254".parse().unwrap();
        let with = |at: usize, v: u8| {
            let mut p = big(false);
            p[at] = v;
            packet_too_big(&p, 1400, from)
        };
        assert!(with(8, 1).is_some());
        assert_eq!(with(16, 224), None, "to a group");
        assert_eq!(with(7, 1), None, "a later fragment");
        assert_eq!(packet_too_big(&big(true), 1400, from), None, "other family");
        assert_eq!(packet_too_big(&big(false)[..40], 1400, from), None, "truncated");
    }

    #[test]
    fn only_ipv4_without_df_may_be_fragmented() {
        let mut p = big(false);
        p[6] |= 0x40;
        assert!(!may_fragment(&p));
        p[6] &= !0x40;
        assert!(may_fragment(&p));
        assert!(!may_fragment(&big(true)));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..120), v6: bool, mtu: u16) {
            if bytes.len() > 6 {
                bytes[0] = if v6 { 0x60 } else { 0x45 };
                bytes[2] = 0;
                bytes[4] = 0;
            }
            let from: IpAddr = if v6 { "::1".parse().unwrap() } else { "127.0.0.1".parse().unwrap() };
            let _ = may_fragment(&bytes);
            if let Some(error) = packet_too_big(&bytes, mtu, from) {
                prop_assert!(IpPacket::parse(&error).is_ok());
            }
        }
    }
}
