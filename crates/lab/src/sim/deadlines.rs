//! When each node wants to be driven, and which of them is first.
//!
//! ```text
//!   at      7  9  5  –  8  │  6  –  …  │        a block's first is looked for again only when it moves;
//!   first         5 @ 2    │  6 @ 5    │        the first of all is the first of the blocks' firsts
//! ```
//!
//! Most networks are one block: their first stands ready.

use anabranch_core::time::Instant;

/// Deadlines of a block.
const BLOCK: usize = 16;

/// See the top of this file. Of several at one time the lowest number is first.
#[derive(Debug, Default)]
pub struct Deadlines {
    /// By number; [`Instant::MAX`] is none.
    at: Vec<Instant>,
    /// The first deadline of each block, and whose it is.
    firsts: Vec<(Instant, u32)>,
}

impl Deadlines {
    /// Adds a number, the one after the last, without a deadline.
    pub fn add(&mut self) {
        if self.at.len().is_multiple_of(BLOCK) {
            self.firsts.push((Instant::MAX, self.at.len() as u32));
        }
        self.at.push(Instant::MAX);
    }

    /// The first deadline and whose it is.
    #[inline]
    pub fn first(&self) -> Option<(Instant, u32)> {
        let (first, others) = self.firsts.split_first()?;
        let first = others.iter().fold(*first, |first, other| if other.0 < first.0 { *other } else { first });
        Some(first).filter(|(at, _)| *at < Instant::MAX)
    }

    /// Sets the deadline of a number; [`Instant::MAX`]: it has none.
    #[inline]
    pub fn set(&mut self, number: u32, at: Instant) {
        let block = number as usize / BLOCK;
        let Some(own) = self.at.get_mut(number as usize) else { return };
        *own = at;
        let first = self.firsts[block];
        if (at, number) <= first {
            self.firsts[block] = (at, number);
        } else if first.1 == number {
            self.firsts[block] = self.search(block);
        }
    }

    /// The first deadline of a block.
    fn search(&self, block: usize) -> (Instant, u32) {
        let start = block * BLOCK;
        let mut first = (Instant::MAX, start as u32);
        for (number, at) in (start as u32..).zip(self.at[start..].iter().take(BLOCK)) {
            if *at < first.0 {
                first = (*at, number);
            }
        }
        first
    }
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
