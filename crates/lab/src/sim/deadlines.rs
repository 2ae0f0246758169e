//! When each node wants to be driven, and which of them is first.
//!
//! ```text
//!   at        7  9  5  –  │  8  6  –  …  │  …        a change is a look at its four, and at the firsts of four fours
//!   of fours        5 @ 2 │     6 @ 5    │  …
//!   of a block      5 @ 2                           the first of all is the first of the blocks' firsts
//! ```
//!
//! Most networks are one block: their first stands ready.

use anabranch_core::time::Instant;

/// Deadlines of a block: four times four.
const BLOCK: usize = 16;

/// A deadline and whose it is.
type Deadline = (Instant, u32);

/// See the top of this file. Of several at one time the lowest number is first.
#[derive(Debug, Default)]
pub struct Deadlines {
    numbers: u32,
    blocks: Vec<Block>,
    /// The first of each block.
    firsts: Vec<Deadline>,
}

#[derive(Debug)]
struct Block {
    /// By number; [`Instant::MAX`] is none.
    at: [[Instant; 4]; 4],
    /// The first of each four.
    firsts: [Deadline; 4],
}

impl Deadlines {
    /// Adds a number, the one after the last, without a deadline.
    pub fn add(&mut self) {
        if (self.numbers as usize).is_multiple_of(BLOCK) {
            let none = (Instant::MAX, self.numbers);
            self.firsts.push(none);
            self.blocks.push(Block { at: [[Instant::MAX; 4]; 4], firsts: [none; 4] });
        }
        self.numbers += 1;
    }

    /// The first deadline and whose it is.
    #[inline]
    pub fn first(&self) -> Option<Deadline> {
        let (first, others) = self.firsts.split_first()?;
        let first = others.iter().fold(*first, |first, other| sooner(first, *other));
        Some(first).filter(|(at, _)| *at < Instant::MAX)
    }

    /// Sets the deadline of a number; [`Instant::MAX`]: it has none.
    #[inline]
    pub fn set(&mut self, number: u32, at: Instant) {
        let place = number as usize / BLOCK;
        let (Some(block), true) = (self.blocks.get_mut(place), number < self.numbers) else { return };
        let four = &mut block.at[number as usize / 4 % 4];
        let own = &mut four[number as usize % 4];
        if *own == at {
            return;
        }
        *own = at;
        let start = number / 4 * 4;
        let of_four = [(four[0], start), (four[1], start + 1), (four[2], start + 2), (four[3], start + 3)];
        block.firsts[number as usize / 4 % 4] = soonest(of_four);
        self.firsts[place] = soonest(block.firsts);
    }
}

#[inline(always)]
fn soonest([a, b, c, d]: [Deadline; 4]) -> Deadline {
    sooner(sooner(a, b), sooner(c, d))
}

/// The sooner one; the one before if they are at one time.
#[inline(always)]
fn sooner(a: Deadline, b: Deadline) -> Deadline {
    if b.0 < a.0 { b } else { a }
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
