//! Complete outer packets, as carried by links of the simulator.

use super::{IpPacket, fold, internet_checksum, protocol, pseudo_header_sum, sum};
use crate::WireError;
use crate::read::{need, put, u16_at};
use core::ops::Range;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Size of the IP and UDP headers of a packet to `dst`.
#[must_use]
pub const fn ip_udp_len(dst: &SocketAddr) -> usize {
    match dst {
        SocketAddr::V4(_) => 28,
        SocketAddr::V6(_) => 48,
    }
}

/// Builds a whole IP packet with UDP, with checksums.
///
/// IPv4 packets have don't-fragment set, because a tunnel discovers its MTU.
///
/// # Errors
/// [`WireError::Family`] if source and destination differ in family; [`WireError::TooLong`] if the
/// packet would exceed 65,535 bytes (IPv6: of payload).
pub fn udp_datagram(src: SocketAddr, dst: SocketAddr, payload: &[u8]) -> Result<Vec<u8>, WireError> {
    let headers = ip_udp_len(&dst);
    let mut b = vec![0; headers + payload.len()];
    put(&mut b, headers, payload);
    emit_ip(&mut b, src.ip(), dst.ip(), protocol::UDP)?;
    let udp = &mut b[headers - 8..];
    put(udp, 0, &src.port().to_be_bytes());
    put(udp, 2, &dst.port().to_be_bytes());
    let length = udp.len();
    // `emit_ip` has bounded the length.
    put(udp, 4, &(length as u16).to_be_bytes());
    let pseudo = pseudo_header_sum(src.ip(), dst.ip(), protocol::UDP, length);
    // Zero means no checksum; 0xffff represents the same number (RFC 768).
    let checksum = match !fold(pseudo + sum(udp)) {
        0 => 0xFFFF,
        other => other,
    };
    put(udp, 6, &checksum.to_be_bytes());
    Ok(b)
}

/// Source, destination and payload of a whole IP packet with UDP; both checksums are verified.
///
/// # Errors
/// Those of [`IpPacket::parse`]; [`WireError::Value`] if it is not UDP or is a fragment; [`WireError::Length`] if the UDP
/// length does not match the payload; [`WireError::Checksum`].
pub fn parse_udp(packet: &[u8]) -> Result<(SocketAddr, SocketAddr, Range<usize>), WireError> {
    let ip = checked_ip(packet, protocol::UDP)?;
    let udp = &packet[ip.payload.clone()];
    need(udp, "UDP header", 8)?;
    let length = usize::from(u16_at(udp, 4));
    if length < 8 || length > udp.len() {
        return Err(WireError::Length { what: "UDP length", expected: length, have: udp.len() });
    }
    let udp = &udp[..length];
    let unused = u16_at(udp, 6) == 0 && ip.src.is_ipv4();
    if !unused && fold(pseudo_header_sum(ip.src, ip.dst, protocol::UDP, length) + sum(udp)) != 0xFFFF {
        return Err(WireError::Checksum("UDP"));
    }
    let src = SocketAddr::new(ip.src, u16_at(udp, 0));
    let dst = SocketAddr::new(ip.dst, u16_at(udp, 2));
    Ok((src, dst, ip.payload.start + 8..ip.payload.start + length))
}

/// Parses an unfragmented IP packet of `protocol` with a correct header checksum.
#[inline]
pub(crate) fn checked_ip(packet: &[u8], protocol: u8) -> Result<IpPacket, WireError> {
    let ip = IpPacket::parse(packet)?;
    if ip.protocol != protocol {
        return Err(WireError::Value { what: "transport protocol", got: ip.protocol.into() });
    }
    if ip.fragment {
        return Err(WireError::Value { what: "fragment", got: 1 });
    }
    let header = &packet[..ip.payload.start];
    // The common case without options: the length is a compile-time constant.
    let checksum = || match header.first_chunk::<20>().filter(|plain| plain.len() == header.len()) {
        Some(plain) => internet_checksum(plain),
        None => internet_checksum(header),
    };
    if ip.src.is_ipv4() && checksum() != 0 {
        return Err(WireError::Checksum("IPv4"));
    }
    Ok(ip)
}

/// Writes the IP header of a packet that fills `b`.
pub(crate) fn emit_ip(b: &mut [u8], src: IpAddr, dst: IpAddr, protocol: u8) -> Result<(), WireError> {
    match (src, dst) {
        (IpAddr::V4(s), IpAddr::V4(d)) => {
            most(b.len(), 0xFFFF)?;
            emit_ipv4(b, s, d, protocol);
        }
        (IpAddr::V6(s), IpAddr::V6(d)) => {
            most(b.len(), 0xFFFF + 40)?;
            emit_ipv6(b, s, d, protocol);
        }
        _ => return Err(WireError::Family),
    }
    Ok(())
}

/// Writes a 20-byte IPv4 header for a packet that fills `b` (at most 65,535 bytes).
pub(crate) fn emit_ipv4(b: &mut [u8], src: Ipv4Addr, dst: Ipv4Addr, protocol: u8) {
    let total = b.len() as u16;
    put(b, 0, &[0x45, 0]);
    put(b, 2, &total.to_be_bytes());
    put(b, 4, &[0, 0, 0x40, 0, 64, protocol, 0, 0]);
    put(b, 12, &src.octets());
    put(b, 16, &dst.octets());
    let checksum = internet_checksum(&b[..20]);
    put(b, 10, &checksum.to_be_bytes());
}

/// Writes a 40-byte IPv6 header for a packet that fills `b` (at most 65,575 bytes).
pub(crate) fn emit_ipv6(b: &mut [u8], src: Ipv6Addr, dst: Ipv6Addr, protocol: u8) {
    let payload = b.len().saturating_sub(40) as u16;
    put(b, 0, &[0x60, 0, 0, 0]);
    put(b, 4, &payload.to_be_bytes());
    put(b, 6, &[protocol, 64]);
    put(b, 8, &src.octets());
    put(b, 24, &dst.octets());
}

pub(crate) fn most(have: usize, most: usize) -> Result<(), WireError> {
    if have <= most { Ok(()) } else { Err(WireError::TooLong { what: "IP packet", most, have }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::PacketBuilder;
    use proptest::prelude::*;

    fn pair(v6: bool) -> (SocketAddr, SocketAddr) {
        if v6 {
            ("[fd00::1]:1000".parse().unwrap(), "[fd00::2]:4500".parse().unwrap())
        } else {
            ("10.0.0.1:1000".parse().unwrap(), "10.0.0.2:4500".parse().unwrap())
        }
    }

    #[test]
    fn the_same_bytes_as_etherparse_writes() {
        let (s, d) = pair(false);
        let ours = udp_datagram(s, d, b"hello").unwrap();
        let mut theirs = Vec::new();
        PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .udp(1000, 4500)
            .write(&mut theirs, b"hello")
            .unwrap();
        assert_eq!(ours, theirs);
        let (s, d) = pair(true);
        let ours = udp_datagram(s, d, b"hello").unwrap();
        let mut theirs = Vec::new();
        let (SocketAddr::V6(a), SocketAddr::V6(b)) = (s, d) else { unreachable!("both are IPv6") };
        PacketBuilder::ipv6(a.ip().octets(), b.ip().octets(), 64)
            .udp(1000, 4500)
            .write(&mut theirs, b"hello")
            .unwrap();
        assert_eq!(ours, theirs);
    }

    #[test]
    fn limits_and_families() {
        let (s, d) = pair(false);
        let (s6, _) = pair(true);
        assert_eq!(udp_datagram(s6, d, b""), Err(WireError::Family));
        assert!(udp_datagram(s, d, &vec![0; 65_507]).is_ok());
        assert!(matches!(udp_datagram(s, d, &vec![0; 65_508]), Err(WireError::TooLong { .. })));
    }

    #[test]
    fn a_zero_checksum_is_none_on_ipv4_only() {
        let (s, d) = pair(false);
        let mut p = udp_datagram(s, d, b"x").unwrap();
        p[26..28].fill(0);
        assert!(parse_udp(&p).is_ok());
        let (s, d) = pair(true);
        let mut p = udp_datagram(s, d, b"x").unwrap();
        p[46..48].fill(0);
        assert_eq!(parse_udp(&p), Err(WireError::Checksum("UDP")));
    }

    proptest! {
        #[test]
        fn round_trips_and_notices_any_flipped_bit(
            v6: bool, sp: u16, dp: u16, payload in proptest::collection::vec(any::<u8>(), 0..100), at: usize, bit in 0u8..8,
        ) {
            let (mut s, mut d) = pair(v6);
            s.set_port(sp);
            d.set_port(dp);
            let mut p = udp_datagram(s, d, &payload).unwrap();
            let (ps, pd, range) = parse_udp(&p).unwrap();
            prop_assert_eq!((ps, pd), (s, d));
            prop_assert_eq!(&p[range], &payload[..]);
            // Traffic class, flow label and hop limit of IPv6 are covered by nothing.
            let at = at % p.len();
            if !v6 || at >= 8 {
                p[at] ^= 1 << bit;
                prop_assert!(parse_udp(&p).is_err());
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = parse_udp(&bytes);
            if bytes.len() > 40 {
                bytes[0] = 0x60;
                bytes[4] = 0;
                bytes[5] = (bytes.len() - 40) as u8;
                bytes[6] = 17;
            }
            let _ = parse_udp(&bytes);
        }
    }
}
