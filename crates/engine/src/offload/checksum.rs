//! The Internet checksum (RFC 1071), optimised so that its cost is negligible compared to copying.

/// Sum of `bytes` as big-endian 16-bit words, not complemented, folded to 16 bits. An odd last byte counts
/// as the high half of a word.
#[inline]
pub fn sum(bytes: &[u8]) -> u16 {
    // The sum does not depend on byte order (RFC 1071 §2B): add in the machine's, swap once at the end.
    // Four independent sums of 32-bit words vectorise.
    let (blocks, rest) = bytes.as_chunks::<32>();
    let mut lanes = [0u64; 8];
    for block in blocks {
        let (words, _) = block.as_chunks::<4>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
    }
    let mut total: u64 = lanes.iter().sum();
    let (pairs, last) = rest.as_chunks::<2>();
    for pair in pairs {
        total += u64::from(u16::from_ne_bytes(*pair));
    }
    if let [byte] = last {
        total += u64::from(u16::from_ne_bytes([*byte, 0]));
    }
    u16::from_be(fold(total))
}

/// Folds a sum of 16-bit words to 16 bits.
#[inline]
pub fn fold(mut total: u64) -> u16 {
    total = (total & 0xffff_ffff) + (total >> 32);
    total = (total & 0xffff) + (total >> 16 & 0xffff) + (total >> 32);
    total = (total & 0xffff) + (total >> 16);
    total = (total & 0xffff) + (total >> 16);
    total as u16
}

/// Sum of the pseudo header of TCP or UDP: `addresses` is source and destination, as in the IP header.
#[inline]
pub fn pseudo(addresses: &[u8], protocol: u8, transport_bytes: usize) -> u64 {
    u64::from(sum(addresses)) + u64::from(protocol) + transport_bytes as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive(bytes: &[u8]) -> u16 {
        let mut total = 0u32;
        for pair in bytes.chunks(2) {
            total += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            total = (total & 0xffff) + (total >> 16);
        }
        total as u16
    }

    proptest! {
        #[test]
        fn it_equals_the_sum_of_rfc_1071(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            // 0 and 0xffff are the same number in ones' complement.
            prop_assert_eq!(sum(&bytes) % 0xffff, naive(&bytes) % 0xffff);
            prop_assert_eq!(sum(&bytes) == 0, bytes.iter().all(|b| *b == 0));
        }
    }

    #[test]
    fn the_longest_packet_does_not_overflow() {
        assert_eq!(sum(&[0xff; 65535]) % 0xffff, naive(&[0xff; 65535]) % 0xffff);
        assert_eq!(fold(u64::MAX), 0xffff);
    }
}
