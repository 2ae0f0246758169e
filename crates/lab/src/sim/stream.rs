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
        let (head, rest) = out.split_at_mut(until_word(offset, out.len()));
        self.part(offset, head);
        let mut at = offset + head.len() as u64;
        // Word by word: every byte of every transfer passes here twice.
        let (words, tail) = rest.as_chunks_mut::<8>();
        for word in words {
            *word = self.word(at / 8).to_le_bytes();
            at += 8;
        }
        self.part(at, tail);
    }

    /// Whether `bytes` are what the stream has from `offset` on.
    #[must_use]
    pub fn matches(&self, offset: u64, bytes: &[u8]) -> bool {
        let same = |at: u64, found: &[u8]| {
            let mut want = [0; 8];
            self.part(at, &mut want[..found.len()]);
            want[..found.len()] == *found
        };
        let (head, rest) = bytes.split_at(until_word(offset, bytes.len()));
        let at = offset + head.len() as u64;
        let (words, tail) = rest.as_chunks::<8>();
        let differs =
            (at / 8..).zip(words).fold(0, |sum, (i, word)| sum | (u64::from_le_bytes(*word) ^ self.word(i)));
        same(offset, head) && differs == 0 && same(at + 8 * words.len() as u64, tail)
    }

    /// Writes less than a word, within one.
    fn part(&self, offset: u64, out: &mut [u8]) {
        let word = self.word(offset / 8).to_le_bytes();
        let skip = (offset % 8) as usize;
        out.copy_from_slice(&word[skip..skip + out.len()]);
    }

    /// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) at index `i`.
    fn word(&self, i: u64) -> u64 {
        let mut z = self.seed.wrapping_add(i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Bytes before the next word begins, `len` at most.
fn until_word(offset: u64, len: usize) -> usize {
    ((8 - offset % 8) % 8).min(len as u64) as usize
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
