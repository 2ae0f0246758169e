//! A map with a maximum number of entries.
//!
//! If the map is full, the entry unused for the longest time is removed if it is silent. Otherwise the victim is, among the
//! entries with the fewest uses (compared by powers of two), the one unused for the longest time. Keys that are always new thus
//! replace each other, but not keys that are used repeatedly.

use std::collections::BTreeMap;

/// Number of ranks. An entry used at least 2^n times has rank n; the last rank has no upper bound.
const RANKS: usize = 9;

/// A map with a maximum number of entries; see the module documentation.
#[derive(Debug)]
pub(super) struct BoundedMap<K, V> {
    capacity: usize,
    by_key: BTreeMap<K, Entry<V>>,
    /// For each rank, its keys by last use.
    by_use: [BTreeMap<u64, K>; RANKS],
    uses: u64,
}

#[derive(Debug)]
struct Entry<V> {
    /// Sequence number of the last use, among all uses of the map.
    last: u64,
    uses: u64,
    value: V,
}

impl<V> Entry<V> {
    fn rank(&self) -> usize {
        (self.uses.max(1).ilog2() as usize).min(RANKS - 1)
    }
}

impl<K: Ord + Copy, V> BoundedMap<K, V> {
    /// An empty map for up to `capacity` entries, at least one.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), by_key: BTreeMap::new(), by_use: Default::default(), uses: 0 }
    }

    /// Returns the entry of a key, creating it if absent, and whether another entry was removed for it. Counts as a use.
    pub(super) fn get_or_insert(
        &mut self,
        key: K,
        is_idle: impl FnOnce(&V) -> bool,
        make: impl FnOnce() -> V,
    ) -> (&mut V, bool) {
        let mut evicted = false;
        match self.by_key.get(&key) {
            Some(entry) => {
                self.by_use[entry.rank()].remove(&entry.last);
            }
            None if self.by_key.len() >= self.capacity => {
                if self.oldest().is_some_and(is_idle) {
                    self.remove_oldest();
                } else {
                    self.remove_least_used();
                }
                evicted = true;
            }
            None => {}
        }
        self.uses += 1;
        let entry = self.by_key.entry(key).or_insert_with(|| Entry { last: 0, uses: 0, value: make() });
        (entry.last, entry.uses) = (self.uses, entry.uses + 1);
        self.by_use[entry.rank()].insert(self.uses, key);
        (&mut entry.value, evicted)
    }

    /// The entry that has been unused for the longest time.
    pub(super) fn oldest(&self) -> Option<&V> {
        let (_, key) = self.by_use[self.oldest_rank()?].first_key_value()?;
        self.by_key.get(key).map(|entry| &entry.value)
    }

    /// Removes that entry.
    pub(super) fn remove_oldest(&mut self) {
        self.remove_first_of(self.oldest_rank());
    }

    /// Removes the entry that has been unused for the longest time among those of the lowest rank.
    fn remove_least_used(&mut self) {
        self.remove_first_of(self.by_use.iter().position(|of| !of.is_empty()));
    }

    /// The rank of the entry that has been unused for the longest time.
    fn oldest_rank(&self) -> Option<usize> {
        let last = |rank: usize| self.by_use[rank].first_key_value().map(|(last, _)| (*last, rank));
        (0..RANKS).filter_map(last).min().map(|(_, rank)| rank)
    }

    fn remove_first_of(&mut self, rank: Option<usize>) {
        if let Some((_, key)) = rank.and_then(|rank| self.by_use[rank].pop_first()) {
            self.by_key.remove(&key);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// All entries, by key.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.by_key.iter().map(|(key, entry)| (key, &entry.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_used_entry_is_removed() {
        let mut map = BoundedMap::new(2);
        let is_used = |_: &i32| false;
        for (key, evicted) in [(1, false), (2, false), (1, false), (3, true), (4, true), (3, true)] {
            assert_eq!(map.get_or_insert(key, is_used, || key * 10).1, evicted, "{key}");
        }
        assert_eq!(map.iter().collect::<Vec<_>>(), [(&1, &10), (&3, &30)]);
        // Among entries with equal use, the one unused for the longest time.
        assert!(!map.get_or_insert(3, is_used, || 0).1 && map.get_or_insert(5, is_used, || 50).1);
        assert_eq!(map.iter().collect::<Vec<_>>(), [(&3, &30), (&5, &50)]);
        // A silent entry is removed however often it was used.
        assert!(map.get_or_insert(6, |oldest| *oldest == 30, || 60).1);
        assert_eq!((map.iter().collect::<Vec<_>>(), map.oldest()), (vec![(&5, &50), (&6, &60)], Some(&50)));
        map.remove_oldest();
        assert_eq!((map.len(), map.oldest()), (1, Some(&60)));
        assert_eq!(map.by_use.iter().map(BTreeMap::len).sum::<usize>(), 1);
    }
}
