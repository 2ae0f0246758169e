//! A map that holds so many and no more: who was used longest ago makes room.

use std::collections::BTreeMap;

/// See the top of this file.
#[derive(Debug)]
pub(super) struct Bounded<K, V> {
    most: usize,
    by_key: BTreeMap<K, (u64, V)>,
    /// By when they were used last.
    by_use: BTreeMap<u64, K>,
    uses: u64,
}

impl<K: Ord + Copy, V> Bounded<K, V> {
    /// An empty one for `most` entries, at least one.
    pub(super) fn new(most: usize) -> Self {
        Self { most: most.max(1), by_key: BTreeMap::new(), by_use: BTreeMap::new(), uses: 0 }
    }

    /// The entry of a key, made if it is not there, and whether another made room for it. It counts as used now.
    pub(super) fn at(&mut self, key: K, make: impl FnOnce() -> V) -> (&mut V, bool) {
        let mut evicted = false;
        match self.by_key.get(&key) {
            Some((used, _)) => {
                self.by_use.remove(used);
            }
            None if self.by_key.len() >= self.most => {
                self.remove_oldest();
                evicted = true;
            }
            None => {}
        }
        self.uses += 1;
        self.by_use.insert(self.uses, key);
        let entry = self.by_key.entry(key).or_insert_with(|| (0, make()));
        entry.0 = self.uses;
        (&mut entry.1, evicted)
    }

    /// The one that was used longest ago.
    pub(super) fn oldest(&self) -> Option<&V> {
        let (_, key) = self.by_use.first_key_value()?;
        self.by_key.get(key).map(|(_, value)| value)
    }

    /// Takes that one out.
    pub(super) fn remove_oldest(&mut self) {
        if let Some((_, key)) = self.by_use.pop_first() {
            self.by_key.remove(&key);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// All, by key.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.by_key.iter().map(|(key, (_, value))| (key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_makes_room() {
        let mut map = Bounded::new(2);
        for (key, evicted) in [(1, false), (2, false), (1, false), (3, true)] {
            assert_eq!(map.at(key, || key * 10).1, evicted, "{key}");
        }
        assert_eq!(map.iter().collect::<Vec<_>>(), [(&1, &10), (&3, &30)]);
        assert_eq!(map.oldest(), Some(&10));
        map.remove_oldest();
        assert_eq!((map.len(), map.oldest()), (1, Some(&30)));
        assert_eq!(map.by_use.len(), 1);
    }
}
