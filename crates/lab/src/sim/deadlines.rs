//! When each node wants to be driven, and which of them is first: a tournament.
//!
//! ```text
//!                  2 @ 5                 the root is the winner: the earliest deadline, and of
//!             ┌──────┴──────┐            several at one time the lowest number
//!           0 @ 7         2 @ 5
//!          ┌──┴──┐       ┌──┴──┐
//!        0 @ 7  1 @ 9  2 @ 5  3 @ –      a deadline that moves is compared again on its way up, and
//!                                        only as far as it won before or wins now
//! ```

use anabranch_core::time::Instant;

/// See the top of this file.
#[derive(Debug, Default)]
pub struct Deadlines {
    /// By number; [`Instant::MAX`] is none.
    at: Vec<Instant>,
    /// Winners: the root is 1, the children of `n` are `2n` and `2n + 1`, the leaves begin at half of the length.
    winners: Vec<u32>,
}

impl Deadlines {
    /// Adds a number, the one after the last, without a deadline.
    pub fn add(&mut self) {
        self.at.push(Instant::MAX);
        let leaves = self.at.len().next_power_of_two();
        if 2 * leaves == self.winners.len() {
            return;
        }
        self.at.reserve(leaves - self.at.len());
        self.winners = vec![0; 2 * leaves];
        for (number, leaf) in self.winners[leaves..].iter_mut().enumerate() {
            *leaf = number as u32;
        }
        for place in (1..leaves).rev() {
            self.winners[place] = self.winner(place);
        }
    }

    /// The deadline of a number; [`Instant::MAX`] if it has none.
    #[inline]
    pub fn get(&self, number: u32) -> Instant {
        self.at.get(number as usize).copied().unwrap_or(Instant::MAX)
    }

    /// The first deadline and whose it is.
    #[inline]
    pub fn first(&self) -> Option<(Instant, u32)> {
        let number = *self.winners.get(1)?;
        Some((self.get(number), number)).filter(|(at, _)| *at < Instant::MAX)
    }

    /// Sets the deadline of a number; [`Instant::MAX`]: it has none.
    #[inline]
    pub fn set(&mut self, number: u32, at: Instant) {
        match self.at.get_mut(number as usize) {
            Some(before) if *before != at => *before = at,
            _ => return,
        }
        let mut place = (self.winners.len() / 2 + number as usize) / 2;
        while place > 0 {
            let winner = self.winner(place);
            let before = std::mem::replace(&mut self.winners[place], winner);
            // Somebody else wins, as before: nothing further up knows of this one.
            if winner == before && winner != number {
                return;
            }
            place /= 2;
        }
    }

    #[inline]
    fn winner(&self, place: usize) -> u32 {
        let (left, right) = (self.winners[2 * place], self.winners[2 * place + 1]);
        // The left one has the lower number.
        if self.get(right) < self.get(left) { right } else { left }
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
