//! Reassembly of one SDU, and the pool of buffers used for it.

/// Maximum size of an SDU: a packet of 9000 bytes (TS 38.323 §4.3.1) plus the headers of SDAP and PDCP.
pub const MAX_SDU_BYTES: usize = 9000 + 8;

/// Reusable buffers, so that no packet needs an allocation: a receiver fills the buffers that a sender has released.
#[derive(Debug, Clone, Default)]
pub struct BufferPool {
    /// Small and large buffers, kept apart so that small ones are not enlarged while large ones are free.
    free: [Vec<Vec<u8>>; 2],
    /// Buffers of transport blocks, larger than any packet. They are few and never delivered.
    blocks: Vec<Vec<u8>>,
    /// Lists of received ranges.
    ranges: Vec<Vec<(u16, u16)>>,
}

/// Maximum number of buffers kept of each kind.
const MAX_FREE_BUFFERS: usize = 1024;
/// Maximum size of a small buffer: an ACK, or a packet of a call.
const SMALL_BYTES: usize = 256;

impl BufferPool {
    /// An empty buffer, with a capacity of `bytes` if the pool has one.
    #[inline]
    pub fn take(&mut self, bytes: usize) -> Vec<u8> {
        let [small, large] = &mut self.free;
        let (first, second) = if bytes <= SMALL_BYTES { (small, large) } else { (large, small) };
        first.pop().or_else(|| second.pop()).unwrap_or_default()
    }

    /// A buffer with a copy of `bytes`.
    #[inline]
    pub fn filled(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut buffer = self.take(bytes.len());
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// Returns a buffer to the pool; its contents are discarded.
    #[inline]
    pub fn give(&mut self, buffer: Vec<u8>) {
        let [small, large] = &mut self.free;
        keep(if buffer.capacity() <= SMALL_BYTES { small } else { large }, buffer);
    }

    /// An empty buffer for a transport block.
    #[inline]
    pub fn take_block(&mut self) -> Vec<u8> {
        self.blocks.pop().unwrap_or_default()
    }

    /// Returns the buffer of a transport block.
    #[inline]
    pub fn give_block(&mut self, buffer: Vec<u8>) {
        keep(&mut self.blocks, buffer);
    }
}

#[inline]
fn keep(free: &mut Vec<Vec<u8>>, mut buffer: Vec<u8>) {
    if free.len() < MAX_FREE_BUFFERS {
        buffer.clear();
        free.push(buffer);
    }
}

/// Effect of a segment on an SDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It contained new bytes; the SDU is still incomplete.
    Kept,
    /// The SDU is now complete.
    Whole,
    /// It contained nothing new.
    Duplicate,
    /// It contradicts earlier segments, or is too long; discarded.
    Refused,
}

/// The received bytes of an SDU.
#[derive(Debug, Clone, Default)]
pub(super) struct Partial {
    bytes: Vec<u8>,
    /// Received ranges `[from, to)`, sorted, neither adjacent nor overlapping.
    have: Vec<(u16, u16)>,
    /// Length of the SDU, once its last segment has arrived.
    total: Option<u16>,
}

impl Partial {
    #[inline]
    pub(super) fn new(pool: &mut BufferPool) -> Self {
        Self { bytes: pool.take(MAX_SDU_BYTES), have: pool.ranges.pop().unwrap_or_default(), total: None }
    }

    /// Appends a non-empty segment that fits, if it is the next in order; otherwise returns `false` and changes nothing.
    #[inline]
    fn extend(&mut self, offset: u16, data: &[u8]) -> bool {
        let end = offset + data.len() as u16;
        match &mut self.have[..] {
            [] if offset == 0 => self.have.push((0, end)),
            [(0, last)] if *last == offset => *last = end,
            _ => return false,
        }
        self.bytes.extend_from_slice(data);
        true
    }

    /// Stores a segment. Bytes received earlier are not overwritten.
    #[inline]
    pub(super) fn insert(&mut self, offset: u16, data: &[u8], to_end: bool) -> Outcome {
        let to = usize::from(offset) + data.len();
        let last = self.have.last().map_or(0, |range| usize::from(range.1));
        let total = if to_end { Some(to) } else { self.total.map(usize::from) };
        let contradicts = to_end && self.total.is_some_and(|t| usize::from(t) != to);
        let beyond = total.is_some_and(|t| to > t || last > t) || (!to_end && total == Some(to));
        if data.is_empty() || to > MAX_SDU_BYTES || contradicts || beyond {
            return Outcome::Refused;
        }
        self.total = total.map(|t| t as u16);
        if self.extend(offset, data) {
            // The common case: the next segment in order.
            return if self.total == Some(to as u16) { Outcome::Whole } else { Outcome::Kept };
        }
        self.fill_in(offset, data)
    }

    /// Like [`insert`](Self::insert), for a segment that fits and is not the next in order.
    fn fill_in(&mut self, start: u16, data: &[u8]) -> Outcome {
        let from = usize::from(start);
        let to = from + data.len();
        let end = to as u16;
        // The ranges [first, after) touch the new one.
        let first = self.have.partition_point(|range| range.1 < start);
        let after = first + self.have[first..].iter().take_while(|range| range.0 <= end).count();
        if self.have.get(first).is_some_and(|range| range.0 <= start && end <= range.1) {
            return Outcome::Duplicate;
        }
        if self.bytes.len() < to {
            self.bytes.resize(to, 0);
        }
        let mut at = start;
        for i in first..after {
            let (gap_end, next) = self.have[i];
            if at < gap_end {
                self.copy(at, gap_end.min(end), data, from);
            }
            at = at.max(next);
        }
        if at < end {
            self.copy(at, end, data, from);
        }
        let merged = match (self.have.get(first), after.checked_sub(1).and_then(|i| self.have.get(i))) {
            (Some(a), Some(b)) if first < after => (a.0.min(start), b.1.max(end)),
            _ => (start, end),
        };
        self.have.splice(first..after, [merged]);
        if self.total.is_some_and(|total| self.have[..] == [(0, total)]) {
            Outcome::Whole
        } else {
            Outcome::Kept
        }
    }

    fn copy(&mut self, from: u16, to: u16, data: &[u8], base: usize) {
        let (from, to) = (usize::from(from), usize::from(to));
        self.bytes[from..to].copy_from_slice(&data[from - base..to - base]);
    }

    /// Whether bytes before the last received one are missing.
    #[inline]
    pub(super) fn has_gap(&self) -> bool {
        !matches!(self.have[..], [] | [(0, _)])
    }

    /// Missing ranges `[from, to)`; the last has no end if the length of the SDU is unknown.
    pub(super) fn missing(&self) -> impl Iterator<Item = (u16, Option<u16>)> + '_ {
        let starts = std::iter::once(0).chain(self.have.iter().map(|range| range.1));
        let ends = self.have.iter().map(|range| Some(range.0)).chain(std::iter::once(self.total));
        starts.zip(ends).filter(|(from, to)| to.is_none_or(|to| *from < to))
    }

    /// The buffer with its present contents.
    #[inline]
    pub(super) fn into_bytes(self, pool: &mut BufferPool) -> Vec<u8> {
        let mut ranges = self.have;
        if pool.ranges.len() < MAX_FREE_BUFFERS {
            ranges.clear();
            pool.ranges.push(ranges);
        }
        self.bytes
    }

    /// Returns both buffers to the pool.
    pub(super) fn discard(self, pool: &mut BufferPool) {
        let bytes = self.into_bytes(pool);
        pool.give(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_and_large_buffers_are_kept_apart() {
        let mut pool = BufferPool::default();
        let (small, large) = (Vec::with_capacity(SMALL_BYTES), Vec::with_capacity(1500));
        let (of_small, of_large) = (small.as_ptr(), large.as_ptr());
        pool.give(large);
        pool.give(small);
        let (filled, next) = (pool.filled(&[1; 1500]), pool.take(1500));
        assert_eq!(filled.as_ptr(), of_large, "nothing was enlarged");
        assert_eq!(next.as_ptr(), of_small, "what there is rather than a new one");
        pool.give_block(vec![3; 9]);
        assert_eq!((pool.take(9).capacity(), pool.take_block().len()), (0, 0), "a block's is a block's");
        assert_eq!(pool.take_block().capacity(), 0);
    }

    proptest! {
        /// Any segments of an SDU in any order, repeated and overlapping: the SDU is complete exactly when every byte has arrived,
        /// and its bytes are correct.
        #[test]
        fn segments_in_any_order(
            len in 1usize..200,
            cuts in prop::collection::vec((0usize..200, 1usize..80), 1..40),
        ) {
            let sdu: Vec<u8> = (0..len).map(|i| i as u8 ^ 0x5a).collect();
            let mut partial = Partial::default();
            let mut seen = vec![false; len];
            let mut whole = false;
            for (from, size) in cuts {
                let (from, to) = (from % len, (from % len + size).min(len));
                let news = seen[from..to].iter().any(|s| !s);
                seen[from..to].fill(true);
                let outcome = partial.insert(from as u16, &sdu[from..to], to == len);
                let all = seen.iter().all(|s| *s);
                let expected = match (news, all) {
                    (false, _) => Outcome::Duplicate,
                    (true, true) => Outcome::Whole,
                    (true, false) => Outcome::Kept,
                };
                prop_assert_eq!(outcome, expected);
                let end = partial.total.map_or(len, usize::from);
                let missing: Vec<usize> = partial
                    .missing()
                    .flat_map(|(from, to)| usize::from(from)..to.map_or(end, usize::from))
                    .collect();
                let expected: Vec<usize> = (0..len).filter(|i| !seen[*i]).collect();
                prop_assert_eq!(missing, expected);
                whole |= all;
            }
            if whole {
                prop_assert_eq!(partial.into_bytes(&mut BufferPool::default()), sdu);
            }
        }
    }

    #[test]
    fn contradictions_are_refused() {
        let mut p = Partial::default();
        assert_eq!(p.insert(10, &[1; 10], true), Outcome::Kept);
        assert_eq!(p.insert(10, &[1; 11], true), Outcome::Refused, "another end");
        assert_eq!(p.insert(15, &[1; 6], false), Outcome::Refused, "beyond the end");
        assert_eq!(p.insert(15, &[1; 5], false), Outcome::Refused, "the end, but not marked so");
        assert!(p.has_gap());
        assert_eq!(p.insert(0, &[1; 10], false), Outcome::Whole);
        let mut p = Partial::default();
        assert_eq!(p.insert(0, &[1; 10], false), Outcome::Kept);
        assert!(!p.has_gap());
        assert_eq!(p.insert(2, &[1; 3], true), Outcome::Refused, "an end before what has come");
        assert_eq!(p.insert(9000, &[1; 9], true), Outcome::Refused, "too long");
        assert_eq!(p.insert(3, &[], true), Outcome::Refused);
    }
}
