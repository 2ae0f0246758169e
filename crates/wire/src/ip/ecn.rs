//! Explicit congestion notification: the two low bits of the IPv4 TOS and IPv6 traffic class (RFC 3168 §5).
//!
//! ```text
//! IPv4  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5      IPv6  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5
//!      +-------+-------+-----------+---+          +-------+-----------+---+-------+
//!      |version|  IHL  |   DSCP    |ECN|          |version|   DSCP    |ECN| flow… |
//!      +-------+-------+-----------+---+          +-------+-----------+---+-------+
//! ```

use super::update_u16;
use crate::read::{put, u16_at};

/// The ECN codepoint of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ecn {
    /// Not ECN-capable.
    NotEct,
    /// ECN-capable; with L4S, a request for low-latency treatment (RFC 9331).
    Ect1,
    /// ECN-capable.
    Ect0,
    /// Congestion experienced.
    Ce,
}

/// The codepoint of an IP packet; `NotEct` for other data.
#[inline]
#[must_use]
pub fn ecn(packet: &[u8]) -> Ecn {
    let bits = match packet {
        [first, tos, ..] if first >> 4 == 4 => tos & 3,
        [first, second, ..] if first >> 4 == 6 => second >> 4 & 3,
        _ => 0,
    };
    [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce][usize::from(bits)]
}

/// Sets CE if the packet is ECN-capable, and updates the IPv4 checksum; returns whether the packet now has CE.
#[inline]
pub fn set_ce(packet: &mut [u8]) -> bool {
    if ecn(packet) == Ecn::NotEct {
        return false;
    }
    if packet[0] >> 4 == 6 {
        packet[1] |= 0x30;
        return true;
    }
    if packet.len() < 20 {
        return false;
    }
    let old = u16_at(packet, 0);
    packet[1] |= 3;
    let checksum = update_u16(u16_at(packet, 10), old, u16_at(packet, 0));
    put(packet, 10, &checksum.to_be_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::{internet_checksum, udp_datagram};
    use proptest::prelude::*;

    fn packet(v6: bool, bits: u8) -> Vec<u8> {
        let (src, dst) = if v6 { ("[::1]:1", "[::2]:2") } else { ("10.0.0.1:1", "10.0.0.2:2") };
        let mut p = udp_datagram(src.parse().unwrap(), dst.parse().unwrap(), b"abc").unwrap();
        if v6 {
            p[1] |= bits << 4;
        } else {
            p[1] |= bits;
            p[10..12].fill(0);
            let sum = internet_checksum(&p[..20]);
            p[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        p
    }

    #[test]
    fn ce_is_set_on_ecn_capable_packets() {
        for v6 in [false, true] {
            for (bits, was) in [(0, Ecn::NotEct), (1, Ecn::Ect1), (2, Ecn::Ect0), (3, Ecn::Ce)] {
                let mut p = packet(v6, bits);
                let before = p.clone();
                assert_eq!(ecn(&p), was);
                assert_eq!(set_ce(&mut p), was != Ecn::NotEct);
                if was == Ecn::NotEct {
                    assert_eq!(p, before);
                } else {
                    assert_eq!(ecn(&p), Ecn::Ce);
                    assert!(v6 || internet_checksum(&p[..20]) == 0, "checksum of the header holds");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(mut bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let marked = set_ce(&mut bytes);
            prop_assert!(!marked || ecn(&bytes) == Ecn::Ce);
        }
    }
}
