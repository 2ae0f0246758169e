//! The contents of streams: bytes whose value depends on their offset in the stream.

use std::sync::OnceLock;

/// A prime, so that the loss or duplication of any power of two is detected.
const LENGTH: usize = 65_521;

fn block() -> &'static [u8] {
    static BLOCK: OnceLock<Vec<u8>> = OnceLock::new();
    BLOCK.get_or_init(|| {
        (0..LENGTH as u64)
            .map(|i| {
                // One byte of SplitMix64.
                let mut z = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                (z >> 56) as u8
            })
            .collect()
    })
}

/// Fills `buffer` with the bytes of the stream from `offset`.
pub fn fill(offset: u64, buffer: &mut [u8]) {
    let mut at = (offset % LENGTH as u64) as usize;
    let mut rest = buffer;
    while !rest.is_empty() {
        let ours = &block()[at..];
        let n = ours.len().min(rest.len());
        let (now, later) = rest.split_at_mut(n);
        now.copy_from_slice(&ours[..n]);
        rest = later;
        at = 0;
    }
}

/// Whether `buffer` equals the bytes of the stream from `offset`.
pub fn matches(offset: u64, buffer: &[u8]) -> bool {
    let mut at = (offset % LENGTH as u64) as usize;
    let mut rest = buffer;
    while !rest.is_empty() {
        let ours = &block()[at..];
        let n = ours.len().min(rest.len());
        if ours[..n] != rest[..n] {
            return false;
        }
        rest = &rest[n..];
        at = 0;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_duplicated_or_changed_bytes_are_detected() {
        let mut stream = vec![0; 3 * LENGTH];
        fill(7, &mut stream);
        assert!(matches(7, &stream));
        assert!(matches(7 + 70_000, &stream[70_000..]));
        assert!(!matches(8, &stream));
        assert!(!matches(7, &stream[65_536..]));
        stream[100_000] ^= 1;
        assert!(!matches(7, &stream));
    }
}
