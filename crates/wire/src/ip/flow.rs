//! The flow of a packet.
//!
//! Plain IPv4 and IPv6 with TCP, UDP or ICMP directly after the fixed header are parsed here; IPv6 extension headers and other
//! rare cases are parsed with etherparse.

use super::protocol;
use crate::WireError;
use crate::read::{array, need, u16_at};
use core::ops::Range;
use etherparse::IpSlice;
use siphasher::sip::SipHasher13;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A validated IP packet: addresses, transport protocol, and position of the transport part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpPacket {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Transport protocol, extension headers skipped.
    pub protocol: u8,
    /// Part of a fragmented packet; the transport header may be missing.
    pub fragment: bool,
    /// Position of transport header and payload.
    pub payload: Range<usize>,
}

impl IpPacket {
    /// Parses an IP packet. Bytes beyond the length in the IP header are ignored.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::Length`] or [`WireError::Value`] if the headers are malformed.
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<Self, WireError> {
        match packet.first().map(|b| b >> 4) {
            Some(4) => v4(packet),
            Some(6) => v6(packet),
            Some(other) => Err(WireError::Value { what: "IP version", got: other.into() }),
            None => Err(WireError::Truncated { what: "IP packet", need: 1, have: 0 }),
        }
    }
}

/// A flow: the 5-tuple, in the direction of the packet.
///
/// All fragments have ports 0. An ICMP echo has its identifier in both ports, so that request and reply are each other's
/// reverse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source port; 0 if the protocol has none.
    pub src_port: u16,
    /// Destination port; 0 if the protocol has none.
    pub dst_port: u16,
    /// Transport protocol.
    pub protocol: u8,
}

/// The secret key of [`FlowKey::hash64`]. Without it, an attacker cannot produce colliding flows.
pub type HashKey = (u64, u64);

impl FlowKey {
    /// The flow of an IP packet.
    ///
    /// # Errors
    /// Those of [`IpPacket::parse`]; [`WireError::Truncated`] if the ports are missing.
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<Self, WireError> {
        Self::of(&IpPacket::parse(packet)?, packet)
    }

    /// The flow of a packet that was parsed as `ip`.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if the ports are missing.
    #[inline]
    pub fn of(ip: &IpPacket, packet: &[u8]) -> Result<Self, WireError> {
        let transport = packet.get(ip.payload.clone()).unwrap_or_default();
        let (src_port, dst_port) = if ip.fragment { (0, 0) } else { ports(ip.protocol, transport)? };
        Ok(Self { src: ip.src, dst: ip.dst, src_port, dst_port, protocol: ip.protocol })
    }

    /// Whether the source is unspecified or link-local: routers do not forward such a packet (RFC 4291 §2.5.2 and §2.5.6, RFC 3927
    /// §2.7).
    #[inline]
    #[must_use]
    pub fn is_link_local(&self) -> bool {
        is_link_local(self.src)
    }

    /// The same flow in the other direction.
    #[inline]
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self {
            src: self.dst,
            dst: self.src,
            src_port: self.dst_port,
            dst_port: self.src_port,
            protocol: self.protocol,
        }
    }

    /// SipHash-1-3 of the flow under `key`; identical on every machine.
    #[inline]
    #[must_use]
    pub fn hash64(&self, key: HashKey) -> u64 {
        let mut b = [0u8; 37];
        b[0..2].copy_from_slice(&self.src_port.to_be_bytes());
        b[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        b[4] = self.protocol;
        let len = match (self.src, self.dst) {
            (IpAddr::V4(s), IpAddr::V4(d)) => {
                b[5..9].copy_from_slice(&s.octets());
                b[9..13].copy_from_slice(&d.octets());
                13
            }
            (s, d) => {
                b[5..21].copy_from_slice(&v6_octets(s));
                b[21..37].copy_from_slice(&v6_octets(d));
                37
            }
        };
        SipHasher13::new_with_keys(key.0, key.1).hash(&b[..len])
    }
}

/// See [`FlowKey::is_link_local`].
#[inline]
#[must_use]
pub fn is_link_local(source: IpAddr) -> bool {
    match source {
        IpAddr::V4(source) => source.is_link_local() || source.is_unspecified(),
        IpAddr::V6(source) => source.is_unicast_link_local() || source.is_unspecified(),
    }
}

/// Transport protocol and destination port of an IP packet, as in [`FlowKey::parse`].
///
/// # Errors
/// Those of [`FlowKey::parse`].
#[inline]
pub fn protocol_and_port(packet: &[u8]) -> Result<(u8, u16), WireError> {
    let ip = IpPacket::parse(packet)?;
    let (_, to) = if ip.fragment { (0, 0) } else { ports(ip.protocol, &packet[ip.payload])? };
    Ok((ip.protocol, to))
}

/// Source and destination of an IP packet, without any other validation.
///
/// # Errors
/// [`WireError::Truncated`] if shorter than the fixed header; [`WireError::Value`] for an unknown version.
#[inline]
pub fn src_dst(packet: &[u8]) -> Result<(IpAddr, IpAddr), WireError> {
    match packet.first().map(|b| b >> 4) {
        Some(4) => {
            need(packet, "IPv4 header", 20)?;
            Ok((v4_at(packet, 12), v4_at(packet, 16)))
        }
        Some(6) => {
            need(packet, "IPv6 header", 40)?;
            Ok((v6_at(packet, 8), v6_at(packet, 24)))
        }
        Some(other) => Err(WireError::Value { what: "IP version", got: other.into() }),
        None => Err(WireError::Truncated { what: "IP packet", need: 1, have: 0 }),
    }
}

/// Destination of an IP packet, as in [`src_dst`].
///
/// # Errors
/// Those of [`src_dst`].
#[inline]
pub fn dst(packet: &[u8]) -> Result<IpAddr, WireError> {
    src_dst(packet).map(|(_, dst)| dst)
}

#[inline]
fn v4(packet: &[u8]) -> Result<IpPacket, WireError> {
    need(packet, "IPv4 header", 20)?;
    let header = usize::from(packet[0] & 0xF) * 4;
    if header < 20 {
        return Err(WireError::Value { what: "IPv4 header length", got: header as u64 });
    }
    let total = usize::from(u16_at(packet, 2));
    if total < header {
        return Err(WireError::Length { what: "IPv4 total length", expected: header, have: total });
    }
    need(packet, "IPv4 packet", total)?;
    Ok(IpPacket {
        src: v4_at(packet, 12),
        dst: v4_at(packet, 16),
        protocol: packet[9],
        // More-fragments, or an offset; the don't-fragment bit is masked out.
        fragment: u16_at(packet, 6) & 0x3FFF != 0,
        payload: header..total,
    })
}

#[inline]
fn v6(packet: &[u8]) -> Result<IpPacket, WireError> {
    need(packet, "IPv6 header", 40)?;
    let total = 40 + usize::from(u16_at(packet, 4));
    need(packet, "IPv6 packet", total)?;
    let (src, dst) = (v6_at(packet, 8), v6_at(packet, 24));
    match packet[6] {
        protocol::TCP | protocol::UDP | protocol::ICMPV6 => {
            Ok(IpPacket { src, dst, protocol: packet[6], fragment: false, payload: 40..total })
        }
        _ => v6_extended(packet, total, src, dst),
    }
}

#[cold]
fn v6_extended(packet: &[u8], total: usize, src: IpAddr, dst: IpAddr) -> Result<IpPacket, WireError> {
    let ip = IpSlice::from_slice(&packet[..total])
        .map_err(|_| WireError::Value { what: "IPv6 extension headers", got: packet[6].into() })?;
    let payload = ip.payload();
    // etherparse's payload extends to the end of its input, so its length determines its start.
    let start = total.saturating_sub(payload.payload.len());
    Ok(IpPacket {
        src,
        dst,
        protocol: payload.ip_number.0,
        fragment: payload.fragmented,
        payload: start..total,
    })
}

#[inline]
fn ports(protocol: u8, transport: &[u8]) -> Result<(u16, u16), WireError> {
    match protocol {
        protocol::TCP | protocol::UDP | protocol::SCTP | protocol::DCCP | protocol::UDP_LITE => {
            need(transport, "ports", 4)?;
            Ok((u16_at(transport, 0), u16_at(transport, 2)))
        }
        protocol::ICMP | protocol::ICMPV6 => {
            let echo = match transport.first() {
                Some(8 | 0) => protocol == protocol::ICMP,
                Some(128 | 129) => protocol == protocol::ICMPV6,
                _ => false,
            };
            if !echo {
                return Ok((0, 0));
            }
            need(transport, "ICMP echo", 8)?;
            let id = u16_at(transport, 4);
            Ok((id, id))
        }
        _ => Ok((0, 0)),
    }
}

#[inline]
fn v4_at(packet: &[u8], at: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(array::<4>(packet, at)))
}

#[inline]
fn v6_at(packet: &[u8], at: usize) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(array::<16>(packet, at)))
}

fn v6_octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{Ipv6FragmentHeader, PacketBuilder};
    use proptest::prelude::*;

    fn build(builder: etherparse::PacketBuilderStep<etherparse::UdpHeader>, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        builder.write(&mut out, payload).unwrap();
        out
    }

    #[test]
    fn udp_both_families() {
        let p = build(PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).udp(1000, 53), b"hi");
        let key = FlowKey::parse(&p).unwrap();
        assert_eq!(key.src, "10.0.0.1".parse::<IpAddr>().unwrap());
        assert_eq!((key.src_port, key.dst_port, key.protocol), (1000, 53, 17));
        assert_eq!(src_dst(&p), Ok((key.src, key.dst)));
        assert_eq!(key.reversed().reversed(), key);
        assert_eq!(key.reversed().src_port, 53);
        let p = build(PacketBuilder::ipv6([1; 16], [2; 16], 64).udp(7, 8), b"hi");
        let key = FlowKey::parse(&p).unwrap();
        assert_eq!((key.src_port, key.dst_port, key.protocol), (7, 8, 17));
        assert_eq!(src_dst(&p), Ok((key.src, key.dst)));
    }

    #[test]
    fn trailing_bytes_do_not_count() {
        let mut p = build(PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).udp(1000, 53), b"hi");
        let len = p.len();
        p.extend_from_slice(&[0; 18]);
        assert_eq!(IpPacket::parse(&p).unwrap().payload, 20..len);
    }

    #[test]
    fn fragments_share_a_key_without_ports() {
        let mut p = build(PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).udp(1000, 53), b"hi");
        p[6] = 0x20; // more fragments
        let first = FlowKey::parse(&p).unwrap();
        p[6] = 0;
        p[7] = 1; // last fragment
        assert_eq!(FlowKey::parse(&p).unwrap(), first);
        assert_eq!((first.src_port, first.dst_port, first.protocol), (0, 0, 17));
        p[6] = 0x40; // don't fragment is not a fragment
        p[7] = 0;
        assert_eq!(FlowKey::parse(&p).unwrap().src_port, 1000);
    }

    #[test]
    fn ipv6_extension_headers_are_skipped() {
        let udp = build(PacketBuilder::ipv6([1; 16], [2; 16], 64).udp(7, 8), b"hi");
        // Hop-by-hop options, one unit of padding, in front of UDP.
        let mut p = udp.clone();
        p[6] = 0;
        p[5] += 8;
        p.splice(40..40, [17, 0, 1, 4, 0, 0, 0, 0]);
        let key = FlowKey::parse(&p).unwrap();
        assert_eq!((key.src_port, key.dst_port, key.protocol), (7, 8, 17));
        assert_eq!(IpPacket::parse(&p).unwrap().payload, 48..p.len());
        // A fragment header in front of it.
        let mut p = udp.clone();
        p[6] = 44;
        p[5] += 8;
        let fragment = Ipv6FragmentHeader::new(etherparse::IpNumber::UDP, Default::default(), true, 9);
        p.splice(40..40, fragment.to_bytes());
        let key = FlowKey::parse(&p).unwrap();
        assert_eq!((key.src_port, key.dst_port, key.protocol), (0, 0, 17));
    }

    #[test]
    fn icmp_echo_keeps_its_identifier() {
        let mut p = Vec::new();
        PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .icmpv4_echo_request(77, 1)
            .write(&mut p, b"x")
            .unwrap();
        let request = FlowKey::parse(&p).unwrap();
        assert_eq!((request.src_port, request.dst_port, request.protocol), (77, 77, 1));
        let mut p = Vec::new();
        PacketBuilder::ipv4([10, 0, 0, 2], [10, 0, 0, 1], 64)
            .icmpv4_echo_reply(77, 1)
            .write(&mut p, b"x")
            .unwrap();
        assert_eq!(FlowKey::parse(&p).unwrap(), request.reversed());
    }

    #[test]
    fn malformed_headers_are_refused() {
        let p = build(PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).udp(1, 2), b"hi");
        assert!(FlowKey::parse(&p[..p.len() - 1]).is_err(), "shorter than total length");
        for (at, value) in [(0, 0x44), (0, 0x55), (3, 19), (3, 22)] {
            let mut bad = p.clone();
            bad[at] = value;
            assert!(FlowKey::parse(&bad).is_err(), "byte {at} = {value:#x}");
        }
        assert!(FlowKey::parse(&[]).is_err());
    }

    #[test]
    fn the_hash_depends_on_every_part_and_on_the_key() {
        let key = FlowKey {
            src: "10.0.0.1".parse().unwrap(),
            dst: "10.0.0.2".parse().unwrap(),
            src_port: 1,
            dst_port: 2,
            protocol: 6,
        };
        let h = key.hash64((1, 2));
        assert_eq!(h, key.hash64((1, 2)));
        assert_ne!(h, key.hash64((1, 3)));
        assert_ne!(h, key.reversed().hash64((1, 2)));
        assert_ne!(h, FlowKey { protocol: 17, ..key }.hash64((1, 2)));
        assert_ne!(h, FlowKey { dst_port: 3, ..key }.hash64((1, 2)));
        let six = FlowKey { src: "::1".parse().unwrap(), dst: "::2".parse().unwrap(), ..key };
        assert_ne!(six.hash64((1, 2)), six.reversed().hash64((1, 2)));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..120), v6: bool,
        ) {
            let _ = (FlowKey::parse(&bytes), src_dst(&bytes));
            if bytes.len() > 6 {
                bytes[0] = if v6 { 0x60 } else { 0x45 };
                bytes[2] = 0;
                bytes[4] = 0;
                bytes[6] &= 0x3F;
            }
            let to = FlowKey::parse(&bytes).map(|key| (key.protocol, key.dst_port));
            prop_assert_eq!(protocol_and_port(&bytes), to);
            prop_assert_eq!(dst(&bytes), src_dst(&bytes).map(|(_, to)| to));
            if let Ok(ip) = IpPacket::parse(&bytes) {
                prop_assert!(ip.payload.end <= bytes.len() && ip.payload.start <= ip.payload.end);
                prop_assert_eq!(src_dst(&bytes), Ok((ip.src, ip.dst)));
            }
            let _ = FlowKey::parse(&bytes);
        }

        #[test]
        fn agrees_with_etherparse(a: [u8; 16], b: [u8; 16], s: u16, d: u16, v6: bool, len in 0usize..50) {
            let payload = vec![0u8; len];
            let v4 = |x: [u8; 16]| [x[0], x[1], x[2], x[3]];
            let p = if v6 {
                build(PacketBuilder::ipv6(a, b, 9).udp(s, d), &payload)
            } else {
                build(PacketBuilder::ipv4(v4(a), v4(b), 9).udp(s, d), &payload)
            };
            let key = FlowKey::parse(&p).unwrap();
            let slice = IpSlice::from_slice(&p).unwrap();
            prop_assert_eq!((key.src, key.dst), (slice.source_addr(), slice.destination_addr()));
            prop_assert_eq!((key.src_port, key.dst_port), (s, d));
        }
    }
}
