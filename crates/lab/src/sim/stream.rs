//! The bytes that applications send: a function of a seed and the offset in the stream. A sender therefore needs no buffer, and
//! a receiver can check every byte.
//!
//! Every byte of every transfer is generated and checked here, so both are copies from and comparisons with one table: a stream
//! repeats the table, from an offset given by the seed. The sums of the table are precomputed, so the checksum of bytes that
//! were compared needs no further pass over them.

use anabranch_wire::ip::fold;

/// Period of a stream, bytes. It is prime: pieces of equal size at the wrong offset are detected unless they are displaced by
/// this many pieces.
const PERIOD: usize = 65_521;

static TABLE: [u8; PERIOD] = table();

/// Folded sums of the 16-bit words (RFC 1071) of the table before each word.
static SUMS: [u16; PERIOD / 2 + 1] = sums();

/// A pseudo-random stream of bytes that can be read at any offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeededStream {
    /// Offset in the table at which the stream begins.
    start: u64,
}

impl SeededStream {
    /// The stream of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { start: mix(seed) % PERIOD as u64 }
    }

    /// Appends `len` bytes from `offset`. Returns their sum as 16-bit words, as used for the checksum; folded, it is the sum of the
    /// bytes themselves.
    #[inline]
    pub fn append(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> u64 {
        let from = self.place(offset);
        if let Some(piece) = TABLE.get(from..from + len) {
            out.extend_from_slice(piece);
            return piece_sum(from, from + len);
        }
        pieces(from, len, |_, piece| {
            out.extend_from_slice(piece);
            true
        })
        .unwrap_or_default()
    }

    /// The sum of `bytes`, as returned by [`append`](Self::append), if they equal the stream from `offset`.
    #[inline]
    #[must_use]
    pub fn sum_if_equal(&self, offset: u64, bytes: &[u8]) -> Option<u64> {
        let from = self.place(offset);
        let len = bytes.len();
        if let Some(piece) = TABLE.get(from..from + len) {
            return (piece == bytes).then(|| piece_sum(from, from + len));
        }
        pieces(from, len, |done, piece| bytes.get(done..done + piece.len()) == Some(piece))
    }

    /// Whether `bytes` equal the stream from `offset`.
    #[must_use]
    pub fn matches(&self, offset: u64, bytes: &[u8]) -> bool {
        self.sum_if_equal(offset, bytes).is_some()
    }

    /// Offset in the table of the byte at stream offset `offset`.
    const fn place(&self, offset: u64) -> usize {
        // Both terms are below the period.
        let place = (self.start + offset % PERIOD as u64) as usize;
        if place < PERIOD { place } else { place - PERIOD }
    }
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): spreads adjacent seeds.
const fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Checks `len` bytes that extend beyond the end of the table, piece by piece; `good` receives the number of bytes before each
/// piece. Returns their sum if all pieces are good.
fn pieces(mut from: usize, len: usize, mut good: impl FnMut(usize, &[u8]) -> bool) -> Option<u64> {
    let (mut done, mut total) = (0, 0);
    while done < len {
        let now = (len - done).min(PERIOD - from);
        if !good(done, &TABLE[from..from + now]) {
            return None;
        }
        let sum = piece_sum(from, from + now);
        // A piece that begins in the middle of a word has its bytes swapped.
        total += if done % 2 == 0 { sum } else { swapped(sum) };
        (done, from) = (done + now, 0);
    }
    Some(total)
}

/// The sum of a piece of the table as 16-bit words, of which the first begins at the start of the piece.
fn piece_sum(from: usize, to: usize) -> u64 {
    let half = |at: usize| if at.is_multiple_of(2) { 0 } else { u64::from(TABLE[at - 1]) << 8 };
    let before = |at: usize| u64::from(SUMS[at / 2]) + half(at);
    // 0xFFFF is 0 in one's complement; twice that is never less than the subtrahend.
    let total = before(to) + 2 * 0xFFFF - before(from);
    if from.is_multiple_of(2) { total } else { swapped(total) }
}

/// A sum with the bytes of its words swapped (RFC 1071 §2 (B)).
fn swapped(total: u64) -> u64 {
    fold(total).swap_bytes().into()
}

const fn sums() -> [u16; PERIOD / 2 + 1] {
    let mut sums = [0; PERIOD / 2 + 1];
    let (mut word, mut total) = (0, 0);
    while word < PERIOD / 2 {
        sums[word] = total as u16;
        total += (TABLE[2 * word] as u32) << 8 | TABLE[2 * word + 1] as u32;
        total = (total & 0xFFFF) + (total >> 16);
        word += 1;
    }
    sums[word] = total as u16;
    sums
}

const fn table() -> [u8; PERIOD] {
    let mut table = [0; PERIOD];
    let mut at = 0;
    while at < PERIOD {
        // Eight bytes per draw.
        table[at] = (mix(at as u64 / 8) >> (8 * (at % 8))) as u8;
        at += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_wire::ip::sum;

    fn piece(stream: &SeededStream, offset: u64, len: usize) -> Vec<u8> {
        let mut piece = Vec::new();
        stream.append(offset, len, &mut piece);
        piece
    }

    #[test]
    fn any_piece_is_part_of_the_same_stream() {
        let stream = SeededStream::new(9);
        let whole = piece(&stream, 1000, 100);
        for (from, to) in [(0, 100), (3, 4), (5, 29), (7, 8), (50, 50)] {
            let mut piece = piece(&stream, 1000 + from as u64, to - from);
            assert_eq!(piece, whole[from..to]);
            assert!(stream.matches(1000 + from as u64, &piece));
            if let Some(last) = piece.last_mut() {
                *last ^= 1;
                assert!(!stream.matches(1000 + from as u64, &piece));
            }
        }
        assert!(!SeededStream::new(10).matches(1000, &whole));
    }

    #[test]
    fn the_sum_of_any_piece_equals_that_of_its_bytes() {
        let stream = SeededStream::new(4);
        let starts = (0..200).chain(PERIOD as u64 - 200..PERIOD as u64 + 200);
        for (turn, offset) in starts.enumerate() {
            for len in [0, 1, 2, 63, 64, 65, turn, 1448, 1449] {
                let mut piece = Vec::new();
                let appended = stream.append(offset, len, &mut piece);
                assert_eq!(fold(appended) % 0xFFFF, fold(sum(&piece)) % 0xFFFF, "{len} from {offset}");
                assert_eq!(stream.sum_if_equal(offset, &piece), Some(appended), "{len} from {offset}");
            }
        }
        let mut long = Vec::new();
        let appended = stream.append(5, 3 * PERIOD, &mut long);
        assert_eq!((long.len(), fold(appended)), (3 * PERIOD, fold(sum(&long))));
        assert_eq!(stream.sum_if_equal(5, &long), Some(appended));
    }

    #[test]
    fn the_stream_continues_where_it_repeats() {
        let stream = SeededStream::new(3);
        let mut long = piece(&stream, 7, 2 * PERIOD + 100);
        assert!(stream.matches(7, &long));
        assert_eq!(long[..100], long[PERIOD..PERIOD + 100]);
        for at in [0, 50, PERIOD - 20] {
            assert!(stream.matches(7 + at as u64, &long[at..at + 60]));
            assert!(!stream.matches(8 + at as u64, &long[at..at + 60]), "a byte further");
        }
        long[PERIOD + 9] ^= 4;
        assert!(!stream.matches(7, &long));
    }
}
