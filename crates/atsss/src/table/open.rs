//! An open-addressing hash table: keys in the slots, linear probing, deletion by shifting back.
//!
//! The slots are one allocation, so there is no pointer to follow. At the highest load of 3/4, a hit costs
//! one cache line in nearly all cases (2.5 probes on average, 8.5 for a miss). The table grows by half until
//! it reaches its limit, or is fully reserved at the start, which avoids later pauses. A slot index is
//! `hash * slots / 2^32`, so the size need not be a power of two, and the last step wastes nothing.
//!
//! Keys are virtual addresses and session ids, which this end assigns. A seeded multiply-fold is sufficient
//! for keys that no attacker can choose (flows use a keyed SipHash).

use super::TableError;

/// Value of an empty slot; never a valid value.
const EMPTY: u32 = u32::MAX;

/// Initial capacity of a table, in entries.
const FIRST: usize = 6;

/// A key that consists of two words.
pub(super) trait Key: Copy + Eq {
    /// An arbitrary value for empty slots.
    const FILL: Self;
    /// The key as two words, different for different keys.
    fn words(&self) -> (u64, u64);
}

impl Key for u32 {
    const FILL: Self = 0;
    fn words(&self) -> (u64, u64) {
        (u64::from(*self), 0)
    }
}

/// An IPv6 address, aligned to 4 bytes so that a slot is 20 bytes.
impl Key for [u32; 4] {
    const FILL: Self = [0; 4];
    fn words(&self) -> (u64, u64) {
        let word = |a: u32, b: u32| u64::from(a) << 32 | u64::from(b);
        (word(self[0], self[1]), word(self[2], self[3]))
    }
}

/// One slot, as stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot<K> {
    key: K,
    value: u32,
}

/// The table. Values are below `u32::MAX`.
#[derive(Debug, Clone)]
pub(super) struct OpenTable<K> {
    slots: Vec<Slot<K>>,
    len: usize,
    limit: usize,
    seed: [u64; 2],
    what: &'static str,
}

/// Slots for `limit` entries: the load never exceeds 3/4.
pub(super) const fn slots_for(limit: usize) -> usize {
    limit.saturating_mul(4).div_ceil(3).saturating_add(1)
}

impl<K: Key> OpenTable<K> {
    /// Bytes of one slot.
    pub(super) const SLOT_BYTES: usize = size_of::<Slot<K>>();

    /// A table for up to `limit` entries.
    pub(super) fn new(what: &'static str, limit: usize, seed: [u64; 2]) -> Self {
        Self { slots: Self::empty(limit.min(FIRST)), len: 0, limit, seed, what }
    }

    /// Allocates the memory for the limit.
    pub(super) fn reserve(&mut self) {
        if self.slots.len() < slots_for(self.limit) {
            self.resize(self.limit);
        }
    }

    fn empty(entries: usize) -> Vec<Slot<K>> {
        vec![Slot { key: K::FILL, value: EMPTY }; slots_for(entries)]
    }

    fn resize(&mut self, entries: usize) {
        let old = core::mem::replace(&mut self.slots, Self::empty(entries));
        for slot in old.into_iter().filter(|slot| slot.value != EMPTY) {
            self.place(slot);
        }
    }

    fn place(&mut self, slot: Slot<K>) {
        let mut i = self.home(&slot.key);
        while self.slots[i].value != EMPTY {
            i = self.after(i);
        }
        self.slots[i] = slot;
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes allocated.
    pub(super) const fn bytes(&self) -> usize {
        self.slots.capacity() * Self::SLOT_BYTES
    }

    #[inline]
    pub(super) fn get(&self, key: &K) -> Option<u32> {
        self.find(key).map(|i| self.slots[i].value)
    }

    pub(super) fn insert(&mut self, key: K, value: u32) -> Result<(), TableError> {
        if self.find(&key).is_some() {
            return Err(TableError::Exists { what: self.what });
        }
        if self.len >= self.limit || value == EMPTY {
            return Err(TableError::Full { what: self.what, limit: self.limit });
        }
        if slots_for(self.len + 1) > self.slots.len() {
            self.resize((self.len + self.len / 2).clamp(FIRST, self.limit.max(FIRST)).min(self.limit));
        }
        self.place(Slot { key, value });
        self.len += 1;
        Ok(())
    }

    /// Changes the value of an existing key.
    pub(super) fn replace(&mut self, key: &K, value: u32) {
        if let Some(i) = self.find(key) {
            self.slots[i].value = value;
        }
    }

    pub(super) fn remove(&mut self, key: &K) -> Result<u32, TableError> {
        let mut hole = self.find(key).ok_or(TableError::Unknown { what: self.what })?;
        let value = self.slots[hole].value;
        let mut i = hole;
        // Shift back every entry of the run that can move closer to its home slot.
        loop {
            i = self.after(i);
            let slot = self.slots[i];
            if slot.value == EMPTY {
                break;
            }
            if self.distance(self.home(&slot.key), i) >= self.distance(hole, i) {
                self.slots[hole] = slot;
                hole = i;
            }
        }
        self.slots[hole].value = EMPTY;
        self.len -= 1;
        Ok(value)
    }

    #[inline]
    fn find(&self, key: &K) -> Option<usize> {
        let mut i = self.home(key);
        // Terminates, because at least a quarter of the slots is empty.
        loop {
            let slot = &self.slots[i];
            if slot.value == EMPTY {
                return None;
            }
            if slot.key == *key {
                return Some(i);
            }
            i = self.after(i);
        }
    }

    #[inline]
    fn home(&self, key: &K) -> usize {
        let (a, b) = key.words();
        let hash = fold(fold(a ^ self.seed[0], b ^ self.seed[1]), 0x9e37_79b9_7f4a_7c15) >> 32;
        ((hash * self.slots.len() as u64) >> 32) as usize
    }

    #[inline]
    const fn after(&self, i: usize) -> usize {
        if i + 1 == self.slots.len() { 0 } else { i + 1 }
    }

    const fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.slots.len() - from }
    }
}

#[inline]
const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    (product as u64) ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn slots_are_as_small_as_they_can_be() {
        assert_eq!((size_of::<Slot<u32>>(), size_of::<Slot<[u32; 4]>>()), (8, 20));
    }

    #[test]
    fn a_table_of_size_zero_works() {
        let mut table = OpenTable::<u32>::new("x", 0, [1, 2]);
        assert_eq!(table.get(&1), None);
        assert_eq!(table.insert(1, 1), Err(TableError::Full { what: "x", limit: 0 }));
        assert!(table.remove(&1).is_err());
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(
            limit in 0usize..40,
            seed in any::<[u64; 2]>(),
            steps in proptest::collection::vec((0u32..60, any::<bool>()), 0..400),
        ) {
            let mut table = OpenTable::<u32>::new("x", limit, seed);
            let mut model = BTreeMap::new();
            for (i, (key, insert)) in steps.into_iter().enumerate() {
                let value = i as u32;
                if insert {
                    let wanted = if model.contains_key(&key) {
                        Err(TableError::Exists { what: "x" })
                    } else if model.len() == limit {
                        Err(TableError::Full { what: "x", limit })
                    } else {
                        model.insert(key, value);
                        Ok(())
                    };
                    prop_assert_eq!(table.insert(key, value), wanted);
                } else {
                    prop_assert_eq!(table.remove(&key).ok(), model.remove(&key));
                }
                prop_assert_eq!(table.len(), model.len());
                for key in 0..60 {
                    prop_assert_eq!(table.get(&key), model.get(&key).copied());
                }
            }
        }
    }
}
