//! When each node wants to be driven, and which of them is first.
//!
//! ```text
//!   at        7  9  5  –  │  8  6  –  …  │  …        a change is a look at its four, and at the firsts of four fours
//!   of fours        5 @ 2 │     6 @ 5    │  …
//!   of a block      5 @ 2                           the first of all is the first of the blocks' firsts
//! ```
//!
//! Most networks are one block: their first stands ready. Time and place in the block are one number, so that the
//! sooner of two is the lesser of two numbers.

use anabranch_core::time::Instant;

/// Deadlines of a block: four times four.
const BLOCK: u32 = 16;
/// Bits for the place in a block, below the nanoseconds.
const PLACE_BITS: u32 = BLOCK.ilog2();
/// No deadline.
const NEVER: u64 = u64::MAX;
/// From then on, after 36 years, is never.
const NEVER_NS: u64 = NEVER >> PLACE_BITS;

/// See the top of this file. Of several at one time the lowest number is first.
#[derive(Debug, Default)]
pub struct Deadlines {
    numbers: u32,
    blocks: Vec<Block>,
    /// The first of each block.
    firsts: Vec<u64>,
}

/// Nanoseconds and place, or [`NEVER`].
#[derive(Debug)]
struct Block {
    at: [[u64; 4]; 4],
    /// The first of each four.
    firsts: [u64; 4],
}

impl Deadlines {
    /// Adds a number, the one after the last, without a deadline.
    pub fn add(&mut self) {
        if self.numbers.is_multiple_of(BLOCK) {
            self.firsts.push(NEVER);
            self.blocks.push(Block { at: [[NEVER; 4]; 4], firsts: [NEVER; 4] });
        }
        self.numbers += 1;
    }

    /// The first deadline and whose it is.
    #[inline]
    pub fn first(&self) -> Option<(Instant, u32)> {
        let (first, others) = self.firsts.split_first()?;
        let (mut first, mut block) = (*first, 0);
        for (number, other) in (1..).zip(others) {
            if other >> PLACE_BITS < first >> PLACE_BITS {
                (first, block) = (*other, number);
            }
        }
        let place = first as u32 % BLOCK;
        (first != NEVER).then(|| (Instant::from_nanos(first >> PLACE_BITS), block * BLOCK + place))
    }

    /// Sets the deadline of a number; [`Instant::MAX`]: it has none.
    #[inline]
    pub fn set(&mut self, number: u32, at: Instant) {
        let (block, place) = ((number / BLOCK) as usize, number % BLOCK);
        let (Some(of_block), true) = (self.blocks.get_mut(block), number < self.numbers) else { return };
        let ns = at.as_nanos();
        let deadline = if ns < NEVER_NS { ns << PLACE_BITS | u64::from(place) } else { NEVER };
        let row = (place / 4) as usize;
        let own = &mut of_block.at[row][place as usize % 4];
        if *own == deadline {
            return;
        }
        *own = deadline;
        of_block.firsts[row] = soonest(of_block.at[row]);
        self.firsts[block] = soonest(of_block.firsts);
    }
}

#[inline(always)]
fn soonest([a, b, c, d]: [u64; 4]) -> u64 {
    a.min(b).min(c.min(d))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nobody_is_first_of_none() {
        let mut deadlines = Deadlines::default();
        assert_eq!(deadlines.first(), None);
        deadlines.add();
        assert_eq!(deadlines.first(), None);
        deadlines.set(0, Instant::from_millis(3));
        deadlines.set(1, Instant::ZERO);
        assert_eq!(deadlines.first(), Some((Instant::from_millis(3), 0)), "there is no number 1");
    }

    #[test]
    fn what_is_decades_away_is_never() {
        let mut deadlines = Deadlines::default();
        deadlines.add();
        deadlines.set(0, Instant::from_secs(1 << 30));
        assert_eq!(deadlines.first(), Some((Instant::from_secs(1 << 30), 0)));
        deadlines.set(0, Instant::from_secs(1 << 31));
        assert_eq!(deadlines.first(), None);
    }

    proptest! {
        /// Whatever is added and set, the first is the one a search would find.
        #[test]
        fn as_a_search_finds_it(steps in prop::collection::vec((0u32..40, 0u64..12, any::<bool>()), 0..300)) {
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
