//! The deadlines of all nodes, and the first of them.
//!
//! ```text
//!   at        7  9  5  –  8  6  –  …   │  …        blocks of 16
//!   first     5 @ 2                    │  …        earliest of each block, then of all blocks
//! ```
//!
//! Most networks fit in one block. A time and its position in the block are stored as one number, so that one comparison finds
//! the earlier deadline.

use anabranch_element::time::Instant;

/// Deadlines per block.
const BLOCK: usize = 16;
/// Bits of the position in the block, below the nanoseconds.
const PLACE_BITS: u32 = BLOCK.ilog2();
/// No deadline.
const NEVER: u64 = u64::MAX;
/// Times from this one on (36 years) count as never.
const NEVER_NS: u64 = NEVER >> PLACE_BITS;

/// Deadlines by number. Of several at the same time, the lowest number is first. See the module documentation.
#[derive(Debug, Default)]
pub struct Deadlines {
    numbers: u32,
    /// Nanoseconds and position, or [`NEVER`].
    blocks: Vec<[u64; BLOCK]>,
}

impl Deadlines {
    /// Adds the next number, without a deadline.
    pub fn add(&mut self) {
        if (self.numbers as usize).is_multiple_of(BLOCK) {
            self.blocks.push([NEVER; BLOCK]);
        }
        self.numbers += 1;
    }

    /// The first deadline and its number.
    #[inline]
    pub fn first(&self) -> Option<(Instant, u32)> {
        let (first, others) = self.blocks.split_first()?;
        let (mut first, mut block) = (least(first), 0);
        for (number, other) in (1..).zip(others) {
            let other = least(other);
            if other >> PLACE_BITS < first >> PLACE_BITS {
                (first, block) = (other, number);
            }
        }
        let place = first as u32 % BLOCK as u32;
        (first != NEVER).then(|| (Instant::from_nanos(first >> PLACE_BITS), block * BLOCK as u32 + place))
    }

    /// Sets the deadline of a number. [`Instant::MAX`] removes it.
    #[inline]
    pub fn set(&mut self, number: u32, at: Instant) {
        let (block, place) = (number as usize / BLOCK, number as usize % BLOCK);
        let (Some(block), true) = (self.blocks.get_mut(block), number < self.numbers) else { return };
        let ns = at.as_nanos();
        block[place] = if ns < NEVER_NS { ns << PLACE_BITS | place as u64 } else { NEVER };
    }
}

/// The earliest entry of a block.
#[inline(always)]
fn least(block: &[u64; BLOCK]) -> u64 {
    block.iter().copied().min().unwrap_or(NEVER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn first_is_none_without_deadlines() {
        let mut deadlines = Deadlines::default();
        assert_eq!(deadlines.first(), None);
        deadlines.add();
        assert_eq!(deadlines.first(), None);
        deadlines.set(0, Instant::from_millis(3));
        deadlines.set(1, Instant::ZERO);
        assert_eq!(deadlines.first(), Some((Instant::from_millis(3), 0)), "there is no number 1");
    }

    #[test]
    fn deadlines_decades_away_count_as_never() {
        let mut deadlines = Deadlines::default();
        deadlines.add();
        deadlines.set(0, Instant::from_secs(1 << 30));
        assert_eq!(deadlines.first(), Some((Instant::from_secs(1 << 30), 0)));
        deadlines.set(0, Instant::from_secs(1 << 31));
        assert_eq!(deadlines.first(), None);
    }

    proptest! {
        /// After any sequence of additions and changes, the first deadline is the one that a linear search finds.
        #[test]
        fn agrees_with_a_search(steps in prop::collection::vec((0u32..40, 0u64..12, any::<bool>()), 0..300)) {
            let mut deadlines = Deadlines::default();
            let mut all: Vec<Instant> = Vec::new();
            for (number, at, add) in steps {
                if add && all.len() < 37 {
                    deadlines.add();
                    all.push(Instant::MAX);
                }
                let at = if at == 11 { Instant::MAX } else { Instant::from_nanos(at) };
                deadlines.set(number, at);
                if let Some(deadline) = all.get_mut(number as usize) {
                    *deadline = at;
                }
                let set = (0..).zip(&all).filter(|(_, at)| **at < Instant::MAX);
                let first = set.map(|(number, at)| (*at, number)).min();
                prop_assert_eq!(deadlines.first(), first);
            }
        }
    }
}
