//! Entries by index. An index that was released is not mistaken for its next owner.
//!
//! ```text
//!   31        24..32-s         20                  0
//!   +-----------+--------------+-------------------+
//!   |   shard   |  generation  |       slot        |    s = shard bits (0 to 8)
//!   +-----------+--------------+-------------------+
//! ```
//!
//! The shard is constant per slab. With one slab per worker, the top bits of a receiver index identify the
//! worker, so that a socket filter can deliver a packet to it without any state. The generation counts the
//! owners of a slot, modulo 2^(12 - s).
//!
//! Entries are stored in chunks that are allocated as needed and never moved, so growing does not copy.

use super::TableError;

const SLOT_BITS: u32 = 20;
const CHUNK: usize = 256;
const NONE: u32 = u32::MAX;

/// Size and index layout of a [`Slab`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlabLayout {
    /// Most entries, at most 2^20 (larger values count as that).
    pub limit: u32,
    /// This slab's shard; bits above `shard_bits` are ignored.
    pub shard: u8,
    /// Bits of an index that hold the shard, 0 to 8.
    pub shard_bits: u8,
}

impl SlabLayout {
    /// A slab that is not sharded.
    #[must_use]
    pub const fn single(limit: u32) -> Self {
        Self { limit, shard: 0, shard_bits: 0 }
    }

    /// The shard of an index, given the number of shard bits.
    #[must_use]
    pub const fn shard_of(index: u32, shard_bits: u8) -> u8 {
        if shard_bits == 0 || shard_bits > 8 { 0 } else { (index >> (32 - shard_bits as u32)) as u8 }
    }
}

#[derive(Debug, Clone)]
struct Slot<T> {
    generation: u16,
    /// `Err(next free slot)`.
    entry: Result<T, u32>,
}

/// Entries by index with generation.
#[derive(Debug, Clone)]
pub struct Slab<T> {
    chunks: Vec<Box<[Slot<T>]>>,
    free: u32,
    /// Slots ever used.
    used: u32,
    len: u32,
    limit: u32,
    shard_field: u32,
    generation_mask: u16,
    what: &'static str,
}

impl<T> Slab<T> {
    /// Bytes of one slot, entry included.
    pub const SLOT_BYTES: usize = size_of::<Slot<T>>();

    /// An empty slab; `what` names its entries in errors.
    #[must_use]
    pub fn new(what: &'static str, layout: SlabLayout) -> Self {
        let shard_bits = u32::from(layout.shard_bits.min(8));
        let shard_field = u32::from(layout.shard).checked_shl(32 - shard_bits).unwrap_or(0);
        Self {
            chunks: Vec::new(),
            free: NONE,
            used: 0,
            len: 0,
            limit: layout.limit.min(1 << SLOT_BITS),
            shard_field,
            generation_mask: (1u16 << (32 - SLOT_BITS - shard_bits)) - 1,
            what,
        }
    }

    /// Number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there is no entry.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes allocated, without what entries own elsewhere.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK * Self::SLOT_BYTES + self.chunks.capacity() * size_of::<Box<[Slot<T>]>>()
    }

    /// Adds an entry and returns its index.
    ///
    /// # Errors
    /// [`TableError::Full`] at the limit; the entry is dropped.
    pub fn insert(&mut self, entry: T) -> Result<u32, TableError> {
        self.insert_with(|_| entry)
    }

    /// Adds an entry that contains its own index.
    ///
    /// # Errors
    /// [`TableError::Full`] at the limit; `entry` is not called.
    fn insert_with(&mut self, entry: impl FnOnce(u32) -> T) -> Result<u32, TableError> {
        let number = if self.free != NONE {
            self.free
        } else if self.used < self.limit {
            self.grow();
            self.used
        } else {
            return Err(TableError::Full { what: self.what, limit: self.limit as usize });
        };
        let (shard_field, what) = (self.shard_field, self.what);
        let Some(slot) = self.slot_mut(number) else { return Err(TableError::Unknown { what }) };
        let index = shard_field | u32::from(slot.generation) << SLOT_BITS | number;
        let next = core::mem::replace(&mut slot.entry, Ok(entry(index)));
        if number == self.used {
            self.used += 1;
        } else {
            self.free = next.err().unwrap_or(NONE);
        }
        self.len += 1;
        Ok(index)
    }

    /// Removes and returns an entry. Its index stays invalid until the generation repeats.
    ///
    /// # Errors
    /// [`TableError::Unknown`] if the index is not, or no longer, in use.
    pub fn remove(&mut self, index: u32) -> Result<T, TableError> {
        let unknown = TableError::Unknown { what: self.what };
        if self.get(index).is_none() {
            return Err(unknown);
        }
        let (free, mask) = (self.free, self.generation_mask);
        let slot = self.slot_mut(index & SLOT_MASK).ok_or(unknown)?;
        slot.generation = slot.generation.wrapping_add(1) & mask;
        let entry = core::mem::replace(&mut slot.entry, Err(free)).map_err(|_| unknown)?;
        self.free = index & SLOT_MASK;
        self.len -= 1;
        Ok(entry)
    }

    /// The entry of an index.
    #[must_use]
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        let slot = self.slot(index & SLOT_MASK)?;
        if self.index_of(slot, index) == index { slot.entry.as_ref().ok() } else { None }
    }

    /// The entry of an index, mutable.
    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.get(index)?;
        self.slot_mut(index & SLOT_MASK)?.entry.as_mut().ok()
    }

    /// The index and entry now in a slot (the low bits of an index), for any generation.
    #[must_use]
    #[inline]
    pub fn at_slot(&self, number: u32) -> Option<(u32, &T)> {
        let slot = self.slot(number)?;
        slot.entry.as_ref().ok().map(|entry| (self.index_of(slot, number), entry))
    }

    /// Indices and entries in ascending order of slots.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..self.used).filter_map(|number| self.at_slot(number))
    }

    /// Number of slots ever used: [`Self::at_slot`] finds nothing from here on.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.used
    }

    /// The slot part of an index.
    #[must_use]
    pub const fn slot_number(index: u32) -> u32 {
        index & SLOT_MASK
    }

    fn index_of(&self, slot: &Slot<T>, number: u32) -> u32 {
        self.shard_field | u32::from(slot.generation) << SLOT_BITS | number & SLOT_MASK
    }

    #[inline]
    fn slot(&self, number: u32) -> Option<&Slot<T>> {
        self.chunks.get(number as usize / CHUNK)?.get(number as usize % CHUNK)
    }

    #[inline]
    fn slot_mut(&mut self, number: u32) -> Option<&mut Slot<T>> {
        self.chunks.get_mut(number as usize / CHUNK)?.get_mut(number as usize % CHUNK)
    }

    fn grow(&mut self) {
        if self.used as usize == self.chunks.len() * CHUNK {
            let chunk = (0..CHUNK).map(|_| Slot { generation: 0, entry: Err(NONE) });
            self.chunks.push(chunk.collect());
        }
    }
}

const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_stale_index_is_not_its_next_owner() {
        let mut slab = Slab::new("x", SlabLayout { limit: 1, shard: 5, shard_bits: 3 });
        let first = slab.insert_with(|index| index).unwrap();
        assert_eq!((slab.get(first), SlabLayout::shard_of(first, 3)), (Some(&first), 5));
        assert_eq!(slab.insert(0), Err(TableError::Full { what: "x", limit: 1 }));
        assert_eq!(slab.remove(first), Ok(first));
        let second = slab.insert(7).unwrap();
        assert_eq!((slab.get(first), slab.get(second)), (None, Some(&7)));
        assert!(slab.remove(first).is_err());
        assert!(slab.get(second ^ 1 << 31).is_none(), "another shard");
        // After 2^9 owners the generation repeats.
        let mut index = second;
        for _ in 0..511 {
            slab.remove(index).unwrap();
            index = slab.insert(7).unwrap();
        }
        assert_eq!(index, first);
    }

    #[test]
    fn all_shard_widths_fit() {
        for shard_bits in 0..=9 {
            let mut slab = Slab::new("x", SlabLayout { limit: u32::MAX, shard: 0xff, shard_bits });
            let index = slab.insert(()).unwrap();
            let width = if shard_bits > 8 { 8 } else { shard_bits };
            assert_eq!(u32::from(SlabLayout::shard_of(index, width)), (1u32 << width) - 1, "{shard_bits}");
            slab.remove(index).unwrap();
            assert_ne!(slab.insert(()), Ok(index));
        }
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(steps in proptest::collection::vec((any::<bool>(), 0usize..8), 0..300)) {
            let mut slab = Slab::new("x", SlabLayout::single(6));
            let mut model = BTreeMap::new();
            let mut gone = Vec::new();
            for (i, (insert, nth)) in steps.into_iter().enumerate() {
                if insert {
                    match slab.insert(i) {
                        Ok(index) => prop_assert!(model.insert(index, i).is_none()),
                        Err(_) => prop_assert_eq!(model.len(), 6),
                    }
                } else if let Some(&index) = model.keys().nth(nth) {
                    prop_assert_eq!(slab.remove(index).ok(), model.remove(&index));
                    gone.push(index);
                }
                prop_assert_eq!(slab.len(), model.len());
                prop_assert!(gone.iter().all(|index| slab.get(*index).is_none()));
                let mut all: Vec<_> = slab.iter().map(|(index, entry)| (index, *entry)).collect();
                all.sort_unstable();
                prop_assert_eq!(all, model.iter().map(|(a, b)| (*a, *b)).collect::<Vec<_>>());
                prop_assert!(model.iter().all(|(index, entry)| slab.get(*index) == Some(entry)));
            }
        }
    }
}
