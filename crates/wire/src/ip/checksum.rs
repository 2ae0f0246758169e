//! The internet checksum: full (RFC 1071) and incremental (RFC 1624).

use super::IpPacket;
use std::net::IpAddr;

/// One's-complement sum of `bytes` as 16-bit big-endian words, unfolded; an odd last byte is padded with a zero. Sums of
/// even-length parts may be added. Exact up to 4 GiB.
#[inline]
#[must_use]
pub fn sum(bytes: &[u8]) -> u64 {
    // Native-order words of any width give the correct sum with its bytes swapped (RFC 1071 §2 (B)), and carries of a sum of
    // 64-bit words cost one addition each: fewer instructions than vector code without AVX.
    let word = |w: &[u8; 8]| u128::from(u64::from_ne_bytes(*w));
    let (blocks, rest) = bytes.as_chunks::<32>();
    let mut total = 0;
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        total += word(&words[0]);
        total += word(&words[1]);
        total += word(&words[2]);
        total += word(&words[3]);
    }
    let (words, tail) = rest.as_chunks::<8>();
    total += words.iter().map(word).sum::<u128>();
    let mut last = [0; 8];
    for (to, from) in last.iter_mut().zip(tail) {
        *to = *from;
    }
    total += word(&last);
    // 2³² is congruent to 1 in 16-bit one's complement as well.
    let halves = (total as u64 & 0xFFFF_FFFF) + (total as u64 >> 32) + (total >> 64) as u64;
    u64::from(u16::from_be_bytes(fold(halves).to_ne_bytes()))
}

/// Folds an unfolded sum to 16 bits.
#[inline]
#[must_use]
pub fn fold(mut total: u64) -> u16 {
    while total > 0xFFFF {
        total = (total & 0xFFFF) + (total >> 16);
    }
    total as u16
}

/// Checksum of `bytes` (complemented), as stored in a header whose checksum field was zero.
#[inline]
#[must_use]
pub fn internet_checksum(bytes: &[u8]) -> u16 {
    !fold(sum(bytes))
}

/// Unfolded sum of the pseudo header of TCP, UDP or ICMPv6 (RFC 9293 §3.1, RFC 8200 §8.1).
///
/// `length` is the number of bytes of transport header and payload.
#[inline]
#[must_use]
pub fn pseudo_header_sum(src: IpAddr, dst: IpAddr, protocol: u8, length: usize) -> u64 {
    let addresses = match (src, dst) {
        (IpAddr::V4(s), IpAddr::V4(d)) => sum(&s.octets()) + sum(&d.octets()),
        (IpAddr::V6(s), IpAddr::V6(d)) => sum(&s.octets()) + sum(&d.octets()),
        // Never a valid packet; callers reject mixed families.
        _ => 0,
    };
    addresses + u64::from(protocol) + u64::from(fold(length as u64))
}

/// Completes the checksum of a TCP or UDP packet if the field contains the sum of the pseudo header, as left by the kernel for
/// an interface with checksum offload. Any other packet is not changed. One in 65,536 complete packets happens to have that
/// value as well, and keeps it.
pub fn complete_checksum(packet: &mut [u8]) {
    let Ok(ip) = IpPacket::parse(packet) else { return };
    let at = match ip.protocol {
        6 if !ip.fragment => 16,
        17 if !ip.fragment => 6,
        _ => return,
    };
    let pseudo = fold(pseudo_header_sum(ip.src, ip.dst, ip.protocol, ip.payload.len()));
    let Some(covered) = packet.get_mut(ip.payload) else { return };
    if covered.get(at..at + 2) != Some(&pseudo.to_be_bytes()[..]) {
        return;
    }
    // The field is part of the sum, and represents the pseudo header.
    let value = internet_checksum(covered);
    // A UDP checksum of 0 would mean no checksum (RFC 768).
    let value = if value == 0 && at == 6 { 0xffff } else { value };
    covered[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// The checksum after a 16-bit word at an even offset changed from `old` to `new`
/// (RFC 1624 eqn. 3).
#[inline]
#[must_use]
pub fn update_u16(checksum: u16, old: u16, new: u16) -> u16 {
    !fold(u64::from(!checksum) + u64::from(!old) + u64::from(new))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071 §3, word by word.
    fn by_the_book(bytes: &[u8]) -> u16 {
        let mut total = 0u64;
        for pair in bytes.chunks(2) {
            total += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
        }
        fold(total)
    }

    #[test]
    fn only_partial_checksums_are_completed() {
        let (from, to) = ("10.0.0.1:5000".parse().unwrap(), "10.0.0.2:9".parse().unwrap());
        let right = crate::ip::udp_datagram(from, to, &[7; 101]).unwrap();
        let mut packet = right.clone();
        let pseudo = fold(pseudo_header_sum([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, 109));
        packet[26..28].copy_from_slice(&pseudo.to_be_bytes());
        complete_checksum(&mut packet);
        assert_eq!(packet, right);
        complete_checksum(&mut packet);
        assert_eq!(packet, right, "it is complete");
        packet[26] ^= 1;
        let wrong = packet.clone();
        complete_checksum(&mut packet);
        assert_eq!(packet, wrong, "damage is not covered up");
        for len in 0..right.len() {
            complete_checksum(&mut right[..len].to_vec());
        }
    }

    #[test]
    fn rfc_1071_example() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(sum(&bytes)), 0xddf2);
        assert_eq!(internet_checksum(&bytes), !0xddf2);
    }

    proptest! {
        #[test]
        fn agrees_with_the_book(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(fold(sum(&bytes)), by_the_book(&bytes));
        }

        #[test]
        fn update_agrees_with_recomputing(mut bytes in proptest::collection::vec(any::<u8>(), 4..64), new: u16) {
            // A real header always contains a non-zero word.
            bytes[0] = 0x45;
            let before = internet_checksum(&bytes);
            let old = u16::from_be_bytes([bytes[2], bytes[3]]);
            bytes[2..4].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(update_u16(before, old, new), internet_checksum(&bytes));
        }
    }
}
