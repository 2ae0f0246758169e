//! A hash index over entries that are stored elsewhere: eight bytes per slot, whatever the key.
//!
//! ```text
//!   hash --> slot (upper half of the hash, entry number) --> entry, which contains the key
//! ```
//!
//! Open addressing with linear probing and deletion by shifting back. The number of slots is a power of two, of which at most
//! 3/4 are used. The caller computes the hash (keyed, if untrusted peers choose keys) and compares keys.
//!
//! ```
//! use anabranch_element::index::HashIndex;
//!
//! let names = ["ue-1", "ue-2"];
//! let hash = |name: &str| name.bytes().fold(0, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
//! let mut index = HashIndex::default();
//! for (entry, name) in (0..).zip(names) {
//!     index.insert(hash(name), entry);
//! }
//! assert_eq!(index.find(hash("ue-2"), |entry| names[entry as usize] == "ue-2"), Some(1));
//! ```

/// One slot; it is empty if `entry` is `NONE`.
#[derive(Debug, Clone, Copy)]
struct Slot {
    tag: u32,
    entry: u32,
}

const NONE: u32 = u32::MAX;
const EMPTY: Slot = Slot { tag: 0, entry: NONE };

/// The index. Entries are numbers below `u32::MAX`.
#[derive(Debug, Clone, Default)]
pub struct HashIndex {
    slots: Vec<Slot>,
    len: usize,
}

impl HashIndex {
    /// An index with room for `entries` entries.
    #[must_use]
    pub fn with_capacity(entries: usize) -> Self {
        Self { slots: vec![EMPTY; (entries * 4).div_ceil(3).next_power_of_two()], len: 0 }
    }

    /// The entry with this hash for which `is_it` is true.
    #[must_use]
    #[inline]
    pub fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        self.search(hash, is_it).map(|i| self.slots[i].entry)
    }

    /// Adds an entry that is not in the index.
    pub fn insert(&mut self, hash: u64, entry: u32) {
        if self.is_full() {
            let slots = vec![EMPTY; (self.slots.len() * 2).max(8)];
            let old = core::mem::replace(&mut self.slots, slots);
            old.into_iter().filter(|slot| slot.entry != NONE).for_each(|slot| self.place(slot));
        }
        self.place(Slot { tag: tag(hash), entry });
        self.len += 1;
    }

    /// Removes an entry; no effect if it is absent.
    pub fn remove(&mut self, hash: u64, entry: u32) {
        let Some(mut hole) = self.search(hash, |other| other == entry) else { return };
        let mut i = hole;
        loop {
            i = self.after(i);
            let slot = self.slots[i];
            if slot.entry == NONE {
                break;
            }
            if self.distance(self.home(slot.tag), i) >= self.distance(hole, i) {
                self.slots[hole] = slot;
                hole = i;
            }
        }
        self.slots[hole] = EMPTY;
        self.len -= 1;
    }

    /// Changes the number of an entry; no effect if it is absent.
    pub fn renumber(&mut self, hash: u64, entry: u32, to: u32) {
        if let Some(i) = self.search(hash, |other| other == entry) {
            self.slots[i].entry = to;
        }
    }

    /// Whether inserting one more entry enlarges the index.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        (self.len + 1) * 4 > self.slots.len() * 3
    }

    /// Number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes allocated.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
    }

    #[inline]
    fn search(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut i = self.home(tag(hash));
        // The loop ends because at least a quarter of the slots are empty.
        loop {
            let slot = self.slots[i];
            if slot.entry == NONE {
                return None;
            }
            if slot.tag == tag(hash) && is_it(slot.entry) {
                return Some(i);
            }
            i = self.after(i);
        }
    }

    fn place(&mut self, slot: Slot) {
        let mut i = self.home(slot.tag);
        while self.slots[i].entry != NONE {
            i = self.after(i);
        }
        self.slots[i] = slot;
    }

    #[inline]
    const fn home(&self, tag: u32) -> usize {
        tag as usize & (self.slots.len() - 1)
    }

    #[inline]
    const fn after(&self, i: usize) -> usize {
        (i + 1) & (self.slots.len() - 1)
    }

    const fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.slots.len() - 1)
    }
}

const fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Only a few different tags, so that runs are long.
    fn hash(key: u32) -> u64 {
        u64::from(key % 7) << 33
    }

    #[test]
    fn a_slot_is_eight_bytes_and_an_empty_index_none() {
        let mut index = HashIndex::default();
        assert_eq!((index.bytes(), index.find(1, |_| true), size_of::<Slot>()), (0, None, 8));
        for key in 0..100_000u32 {
            index.insert(u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15), key);
        }
        assert!(index.bytes() <= 22 * index.len() + 64, "{}", index.bytes());
    }

    #[test]
    fn renumbering_an_entry() {
        let mut index = HashIndex::with_capacity(3);
        (0..3).for_each(|key| index.insert(hash(key), key));
        assert!(index.is_full() && index.bytes() == 4 * 8, "room for three, and no more");
        index.renumber(hash(2), 2, 9);
        index.renumber(hash(1), 7, 8);
        assert_eq!(
            [9, 8, 2, 1].map(|n| index.find(hash(2), |entry| entry == n).is_some()),
            [true, false, false, false]
        );
        assert_eq!(index.find(hash(1), |entry| entry == 1), Some(1));
    }

    proptest! {
        #[test]
        fn behaves_like_a_set(steps in proptest::collection::vec((0u32..40, any::<bool>()), 0..300)) {
            let (mut index, mut model) = (HashIndex::default(), BTreeSet::new());
            for (key, insert) in steps {
                if insert && model.insert(key) {
                    index.insert(hash(key), key);
                } else if !insert {
                    model.remove(&key);
                    index.remove(hash(key), key);
                }
                prop_assert_eq!((index.len(), index.is_empty()), (model.len(), model.is_empty()));
                for key in 0..40 {
                    prop_assert_eq!(index.find(hash(key), |e| e == key), model.get(&key).copied());
                }
            }
        }
    }
}
