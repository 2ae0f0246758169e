//! One deadline per flow: a binary heap with an index of the position of each flow.

use anabranch_element::time::Instant;

const NONE: u32 = u32::MAX;

/// Deadlines by flow number. Equal deadlines are ordered by number.
#[derive(Default)]
pub(super) struct Timers {
    heap: Vec<(Instant, u32)>,
    /// Position of each flow in the heap.
    place: Vec<u32>,
}

impl Timers {
    /// The earliest deadline and its flow.
    pub(super) fn first(&self) -> Option<(Instant, u32)> {
        self.heap.first().copied()
    }

    /// Sets or changes the deadline of a flow.
    pub(super) fn set(&mut self, flow: u32, at: Instant) {
        if self.place.len() <= flow as usize {
            self.place.resize(flow as usize + 1, NONE);
        }
        let place = self.place[flow as usize];
        if let Some(entry) = self.heap.get_mut(place as usize) {
            entry.0 = at;
            self.settle(place as usize);
        } else {
            self.place[flow as usize] = self.heap.len() as u32;
            self.heap.push((at, flow));
            self.settle(self.heap.len() - 1);
        }
    }

    /// Removes the deadline of a flow, if it has one.
    pub(super) fn clear(&mut self, flow: u32) {
        let Some(place) = self.place.get_mut(flow as usize) else { return };
        let place = core::mem::replace(place, NONE) as usize;
        if place >= self.heap.len() {
            return;
        }
        self.heap.swap_remove(place);
        if let Some((_, moved)) = self.heap.get(place) {
            self.place[*moved as usize] = place as u32;
            self.settle(place);
        }
    }

    /// Bytes allocated.
    pub(super) fn bytes(&self) -> usize {
        self.heap.capacity() * size_of::<(Instant, u32)>() + self.place.capacity() * size_of::<u32>()
    }

    fn settle(&mut self, mut at: usize) {
        while at > 0 && self.heap[at] < self.heap[(at - 1) / 2] {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
        loop {
            let children = 2 * at + 1..(2 * at + 3).min(self.heap.len());
            let Some(child) = children.min_by_key(|child| self.heap[*child]) else { return };
            if self.heap[at] <= self.heap[child] {
                return;
            }
            self.swap(at, child);
            at = child;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.place[self.heap[a].1 as usize] = a as u32;
        self.place[self.heap[b].1 as usize] = b as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn behaves_like_a_map(steps in proptest::collection::vec((0u32..12, proptest::option::of(0u64..50)), 0..200)) {
            let (mut timers, mut model) = (Timers::default(), BTreeMap::new());
            for (flow, at) in steps {
                match at.map(Instant::from_nanos) {
                    Some(at) => {
                        timers.set(flow, at);
                        model.insert(flow, at);
                    }
                    None => {
                        timers.clear(flow);
                        model.remove(&flow);
                    }
                }
                prop_assert_eq!(timers.first(), model.iter().map(|(flow, at)| (*at, *flow)).min());
                prop_assert_eq!(timers.heap.len(), model.len());
            }
        }
    }
}
