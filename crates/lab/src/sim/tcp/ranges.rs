//! A set of half-open ranges of sequence numbers; adjacent ranges are merged.
//!
//! The set is small, new ranges are added at the end and old ones removed at the front, so a sorted queue is used.

use std::collections::VecDeque;

/// A set of ranges; see the module documentation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges(VecDeque<(u64, u64)>);

impl Ranges {
    /// Index of the first range that ends after `seq`.
    #[inline]
    fn behind(&self, seq: u64) -> usize {
        self.0.partition_point(|(_, e)| *e <= seq)
    }

    /// Adds `start..end`. Returns the merged range that contains it.
    pub fn insert(&mut self, start: u64, end: u64) -> (u64, u64) {
        if start >= end {
            return (start, end);
        }
        // Ranges that begin at or before `end` and end at or after `start` are merged with it.
        let first = if start > 0 { self.behind(start - 1) } else { 0 };
        let mut merged = (start, end);
        let mut after = first;
        while let Some((s, e)) = self.0.get(after).filter(|(s, _)| *s <= end) {
            merged = (merged.0.min(*s), merged.1.max(*e));
            after += 1;
        }
        match self.0.get_mut(first).filter(|_| after > first) {
            Some(range) => {
                *range = merged;
                self.0.drain(first + 1..after);
            }
            None => self.0.insert(first, merged),
        }
        merged
    }

    /// The first part of `start..end` that is not in the set.
    pub fn gap(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let mut at = start;
        for (s, e) in self.0.range(self.behind(start)..) {
            if *s > at {
                return (at < end).then_some((at, end.min(*s)));
            }
            at = *e;
        }
        (at < end).then_some((at, end))
    }

    /// The parts of `start..end` that are not in the set, in order.
    pub fn missing(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        let mut at = start;
        std::iter::from_fn(move || {
            let gap = self.gap(at, end)?;
            at = gap.1;
            Some(gap)
        })
    }

    /// The range that contains `seq`.
    pub fn containing(&self, seq: u64) -> Option<(u64, u64)> {
        self.0.get(self.behind(seq)).copied().filter(|(s, _)| *s <= seq)
    }

    /// Whether all of `start..end` is in the set.
    pub fn covers(&self, start: u64, end: u64) -> bool {
        self.gap(start, end).is_none()
    }

    /// Removes everything below `seq`.
    pub fn remove_below(&mut self, seq: u64) {
        while let Some((s, e)) = self.0.front_mut().filter(|(s, _)| *s < seq) {
            if *e > seq {
                *s = seq;
                break;
            }
            self.0.pop_front();
        }
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether there is nothing in the set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// The set is equivalent to a set of its members.
        #[test]
        fn as_a_set_of_numbers(
            inserts in prop::collection::vec((0u64..60, 0u64..12), 0..20),
            below in 0u64..60,
            query in (0u64..60, 0u64..20),
        ) {
            let (mut ranges, mut model) = (Ranges::default(), BTreeSet::new());
            for (s, n) in inserts {
                let (from, to) = ranges.insert(s, s + n);
                model.extend(s..s + n);
                prop_assert!(from <= s && to >= s + n && (n == 0 || (from..to).all(|x| model.contains(&x))));
            }
            ranges.remove_below(below);
            model = model.split_off(&below);
            let (qs, qe) = (query.0, query.0 + query.1);
            let missing: Vec<u64> = ranges.missing(qs, qe).flat_map(|(s, e)| s..e).collect();
            prop_assert_eq!(&missing, &(qs..qe).filter(|x| !model.contains(x)).collect::<Vec<_>>());
            prop_assert_eq!(ranges.covers(qs, qe), missing.is_empty());
            let around = ranges.iter().find(|(s, e)| (*s..*e).contains(&qs));
            prop_assert_eq!(ranges.containing(qs), around);
            let members: Vec<u64> = ranges.iter().flat_map(|(s, e)| s..e).collect();
            prop_assert_eq!(members, model.into_iter().collect::<Vec<_>>());
            let all: Vec<_> = ranges.iter().collect();
            prop_assert!(all.windows(2).all(|w| w[0].1 < w[1].0));
        }
    }
}
