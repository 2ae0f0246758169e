//! A set of half-open ranges of sequence numbers, merged where they touch.

use std::collections::BTreeMap;

/// See the top of this file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds `start..end`; returns the merged range it is part of now.
    pub fn insert(&mut self, start: u64, end: u64) -> (u64, u64) {
        let (mut start, mut end) = (start, end);
        if start >= end {
            return (start, end);
        }
        // Whatever begins at or before `end` and ends at or after `start` becomes part of it.
        while let Some((&s, &e)) = self.0.range(..=end).next_back()
            && e >= start
        {
            self.0.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        self.0.insert(start, end);
        (start, end)
    }

    /// The parts of `start..end` that are not in the set, in order.
    pub fn missing(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut at = self.containing(start).map_or(start, |(_, e)| e);
        if at < end {
            for (&s, &e) in self.0.range(at..end) {
                if s > at {
                    gaps.push((at, s));
                }
                at = e;
            }
        }
        if at < end {
            gaps.push((at, end));
        }
        gaps
    }

    /// The range that contains `seq`.
    pub fn containing(&self, seq: u64) -> Option<(u64, u64)> {
        self.0.range(..=seq).next_back().map(|(s, e)| (*s, *e)).filter(|(_, e)| *e > seq)
    }

    /// Whether all of `start..end` is in the set.
    pub fn covers(&self, start: u64, end: u64) -> bool {
        start >= end || self.containing(start).is_some_and(|(_, e)| e >= end)
    }

    /// Removes everything below `seq`.
    pub fn remove_below(&mut self, seq: u64) {
        while let Some((&s, &e)) = self.0.first_key_value()
            && s < seq
        {
            self.0.pop_first();
            if e > seq {
                self.0.insert(seq, e);
                break;
            }
        }
    }

    /// The range that starts at `seq`, taken out.
    pub fn take_at(&mut self, seq: u64) -> Option<u64> {
        self.0.remove(&seq)
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
        self.0.iter().map(|(s, e)| (*s, *e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// The set behaves like a set of its members.
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
            let missing: Vec<u64> = ranges.missing(qs, qe).into_iter().flat_map(|(s, e)| s..e).collect();
            prop_assert_eq!(&missing, &(qs..qe).filter(|x| !model.contains(x)).collect::<Vec<_>>());
            prop_assert_eq!(ranges.covers(qs, qe), missing.is_empty());
            let members: Vec<u64> = ranges.iter().flat_map(|(s, e)| s..e).collect();
            prop_assert_eq!(members, model.into_iter().collect::<Vec<_>>());
            let all: Vec<_> = ranges.iter().collect();
            prop_assert!(all.windows(2).all(|w| w[0].1 < w[1].0));
        }
    }
}
