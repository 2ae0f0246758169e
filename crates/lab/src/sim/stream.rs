//! The bytes applications send: a function of a seed and the place in the stream, so that a sender needs no
//! buffer and a receiver can check every byte.

/// A stream of pseudo-random bytes that can be read at any place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeededStream {
    /// Word 0 before it is mixed.
    start: u64,
}

/// From one word to the next: 2⁶⁴ over the golden ratio, odd, so that no word is there twice.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl SeededStream {
    /// The stream of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        // SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) puts streams of near seeds far apart.
        let mut z = seed.wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self { start: z ^ (z >> 31) }
    }

    /// Writes the bytes from `offset` on.
    pub fn fill(&self, offset: u64, out: &mut [u8]) {
        let (head, rest) = out.split_at_mut(until_word(offset, out.len()));
        self.part(offset, head);
        let mut at = offset + head.len() as u64;
        // Every byte of every transfer passes here twice: additions and shifts alone become vector code.
        let (words, tail) = rest.as_chunks_mut::<8>();
        let mut raw = self.raw(at / 8);
        for word in &mut *words {
            *word = mix(raw).to_le_bytes();
            raw = raw.wrapping_add(STEP);
        }
        at += 8 * words.len() as u64;
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
        let (mut raw, mut differs) = (self.raw(at / 8), 0);
        for word in words {
            differs |= u64::from_le_bytes(*word) ^ mix(raw);
            raw = raw.wrapping_add(STEP);
        }
        same(offset, head) && differs == 0 && same(at + 8 * words.len() as u64, tail)
    }

    /// Writes less than a word, within one.
    fn part(&self, offset: u64, out: &mut [u8]) {
        let word = mix(self.raw(offset / 8)).to_le_bytes();
        let skip = (offset % 8) as usize;
        out.copy_from_slice(&word[skip..skip + out.len()]);
    }

    /// Word `i` before it is mixed.
    fn raw(&self, i: u64) -> u64 {
        self.start.wrapping_add(i.wrapping_mul(STEP))
    }
}

/// Low bytes of a Weyl sequence repeat soon; those of the upper half do not.
const fn mix(raw: u64) -> u64 {
    raw ^ (raw >> 29)
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
