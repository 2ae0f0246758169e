//! The bytes applications send: a function of a seed and the place in the stream, so that a sender needs no
//! buffer and a receiver can check every byte.

/// A stream of pseudo-random bytes that can be read at any place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeededStream {
    seed: u64,
}

impl SeededStream {
    /// The stream of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Writes the bytes from `offset` on.
    pub fn fill(&self, offset: u64, out: &mut [u8]) {
        self.walk(offset, out.len(), |place, bytes| out[place..place + bytes.len()].copy_from_slice(bytes));
    }

    /// Whether `bytes` are what the stream has from `offset` on.
    #[must_use]
    pub fn matches(&self, offset: u64, bytes: &[u8]) -> bool {
        let mut same = true;
        self.walk(offset, bytes.len(), |place, want| same &= &bytes[place..place + want.len()] == want);
        same
    }

    /// Calls `visit` with the pieces of `len` bytes from `offset` on: place in the piece list, bytes.
    fn walk(&self, offset: u64, len: usize, mut visit: impl FnMut(usize, &[u8])) {
        let (mut at, mut place) = (offset, 0);
        while place < len {
            let word = self.word(at / 8).to_le_bytes();
            let skip = (at % 8) as usize;
            let take = (8 - skip).min(len - place);
            visit(place, &word[skip..skip + take]);
            place += take;
            at += take as u64;
        }
    }

    /// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) at index `i`.
    fn word(&self, i: u64) -> u64 {
        let mut z = self.seed.wrapping_add(i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_piece_is_part_of_the_same_stream() {
        let stream = SeededStream::new(9);
        let mut whole = [0; 100];
        stream.fill(1000, &mut whole);
        for (from, to) in [(0, 100), (3, 4), (5, 29), (7, 8), (50, 50)] {
            let mut piece = vec![0; to - from];
            stream.fill(1000 + from as u64, &mut piece);
            assert_eq!(piece, whole[from..to]);
            assert!(stream.matches(1000 + from as u64, &piece));
            if let Some(last) = piece.last_mut() {
                *last ^= 1;
                assert!(!stream.matches(1000 + from as u64, &piece));
            }
        }
        assert!(!SeededStream::new(10).matches(1000, &whole));
    }
}
