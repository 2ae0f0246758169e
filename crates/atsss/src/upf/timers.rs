//! Deadlines of many sessions in one 4-ary heap, with an index of the position of each session's entry.
//!
//! A session's deadline changes with every packet, but the heap is updated only when it becomes *earlier*. A
//! deadline that has become later is detected when its entry is due; the entry is then inserted again. There
//! is never more than one entry per session: sixteen bytes for it and its position.

use anabranch_element::time::Instant;

/// Number of a user's slot.
pub type Slot = u32;

const NOWHERE: u32 = u32::MAX;
const ARITY: usize = 4;

/// Memory per session, bytes.
#[cfg(test)]
pub const ENTRY_BYTES: usize = size_of::<Instant>() + size_of::<Slot>() + size_of::<u32>();

/// The deadlines of sessions.
#[derive(Default)]
pub struct Timers {
    times: Vec<Instant>,
    slots: Vec<Slot>,
    /// Position of each slot's entry in the heap.
    places: Vec<u32>,
}

impl Timers {
    /// Ensures that `slot` is due no later than `at`.
    #[inline]
    pub fn arm(&mut self, slot: Slot, at: Instant) {
        match self.place(slot) {
            Some(place) if self.times[place] <= at => {}
            Some(place) => {
                self.times[place] = at;
                self.rise(place);
            }
            None => self.add(slot, at),
        }
    }

    /// Removes the entry of `slot`.
    pub fn disarm(&mut self, slot: Slot) {
        let Some(place) = self.place(slot) else { return };
        self.places[slot as usize] = NOWHERE;
        self.times.swap_remove(place);
        self.slots.swap_remove(place);
        if place < self.times.len() {
            self.places[self.slots[place] as usize] = place as u32;
            let place = self.rise(place);
            self.sink(place);
        }
    }

    /// The next slot that is due; the caller serves it and arms it again.
    pub fn pop_due(&mut self, now: Instant) -> Option<Slot> {
        let slot = self.slots.first().copied().filter(|_| self.times[0] <= now)?;
        self.disarm(slot);
        Some(slot)
    }

    /// The earliest deadline.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.times.first().copied()
    }

    #[inline]
    fn place(&self, slot: Slot) -> Option<usize> {
        self.places.get(slot as usize).filter(|place| **place != NOWHERE).map(|place| *place as usize)
    }

    fn add(&mut self, slot: Slot, at: Instant) {
        let index = slot as usize;
        if self.places.len() <= index {
            self.places.resize(index + 1, NOWHERE);
        }
        let place = self.times.len();
        self.times.push(at);
        self.slots.push(slot);
        self.places[index] = place as u32;
        self.rise(place);
    }

    fn rise(&mut self, mut place: usize) -> usize {
        while place > 0 {
            let parent = (place - 1) / ARITY;
            if self.times[parent] <= self.times[place] {
                break;
            }
            self.swap(place, parent);
            place = parent;
        }
        place
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let children = place * ARITY + 1..self.times.len().min(place * ARITY + 1 + ARITY);
            let Some(least) = children.min_by_key(|child| self.times[*child]) else { return };
            if self.times[place] <= self.times[least] {
                return;
            }
            self.swap(place, least);
            place = least;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.times.swap(a, b);
        self.slots.swap(a, b);
        self.places[self.slots[a] as usize] = a as u32;
        self.places[self.slots[b] as usize] = b as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn comes_up_once_in_order_and_only_when_due() {
        let mut t = Timers::default();
        let ms = Instant::from_millis;
        t.arm(1, ms(10));
        t.arm(2, ms(5));
        t.arm(1, ms(20));
        t.arm(1, ms(3));
        t.arm(3, ms(4));
        t.disarm(3);
        t.disarm(9);
        assert_eq!(t.next(), Some(ms(3)));
        assert_eq!(t.pop_due(ms(2)), None);
        assert_eq!(t.pop_due(ms(30)), Some(1));
        assert_eq!(t.pop_due(ms(30)), Some(2));
        assert_eq!((t.pop_due(ms(30)), t.next()), (None, None));
    }

    proptest! {
        #[test]
        fn behaves_like_a_sorted_map(steps in proptest::collection::vec((0u8..3, 0u32..20, 0u64..50), 0..300)) {
            let mut timers = Timers::default();
            let mut model: BTreeMap<Slot, u64> = BTreeMap::new();
            for (what, slot, at) in steps {
                match what {
                    0 => {
                        timers.arm(slot, Instant::from_nanos(at));
                        let armed = model.entry(slot).or_insert(at);
                        *armed = (*armed).min(at);
                    }
                    1 => {
                        timers.disarm(slot);
                        model.remove(&slot);
                    }
                    _ => {
                        let due = timers.pop_due(Instant::from_nanos(at));
                        let first = model.values().min().copied().filter(|first| *first <= at);
                        prop_assert_eq!(due.and_then(|slot| model.remove(&slot)), first);
                    }
                }
                prop_assert_eq!(timers.next(), model.values().min().map(|at| Instant::from_nanos(*at)));
                prop_assert_eq!(timers.slots.len(), model.len());
            }
        }
    }
}
