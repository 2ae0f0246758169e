//! The flow table: bounded, and resistant to floods.
//!
//! ```text
//!   5-tuple ── SipHash-1-3, keyed ──▶ index ──▶ flow, which is not moved
//!
//!                     on probation:  newest ... oldest      seen in one direction; at most a quarter of the table
//!                     proven:        newest ... oldest      data was acknowledged
//! ```
//!
//! Packets with random 5-tuples fill only the first list, where the oldest flow is evicted. A flow moves to the
//! front of its list at most once per [`STALE`], so a packet of a known flow touches only its own entry and not
//! those of its neighbours.

use super::flow::Flow;
use anabranch_element::index::HashIndex;
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ip::FlowKey;

const NONE: u32 = u32::MAX;
/// Precision of the order of use: a flow that was moved within this time is not moved again.
const STALE: Duration = Duration::from_secs(1);

#[expect(clippy::large_enum_variant, reason = "free ones are used again, in place")]
enum Entry {
    Used { flow: Flow, moved: Instant, newer: u32, older: u32, proven: bool },
    Free(u32),
}

#[derive(Clone, Copy)]
struct List {
    newest: u32,
    oldest: u32,
    len: u32,
}

/// The flow table.
pub(super) struct Flows {
    /// Flow numbers by the hash of the flow.
    index: HashIndex,
    entries: Vec<Entry>,
    free: u32,
    /// The lists: on probation, proven.
    lists: [List; 2],
    limit: u32,
    key: (u64, u64),
}

impl Flows {
    pub(super) fn new(seed: u64, limit: u32) -> Self {
        Self {
            index: HashIndex::default(),
            entries: Vec::new(),
            free: NONE,
            lists: [List { newest: NONE, oldest: NONE, len: 0 }; 2],
            limit: limit.max(1),
            key: (seed, !seed.rotate_left(32)),
        }
    }

    pub(super) const fn len(&self) -> u32 {
        self.lists[0].len + self.lists[1].len
    }

    pub(super) const fn bytes(&self) -> usize {
        self.index.bytes() + self.entries.capacity() * size_of::<Entry>()
    }

    #[inline]
    pub(super) fn hash(&self, key: &FlowKey) -> u64 {
        key.hash64(self.key)
    }

    /// The number of a flow in the table.
    #[inline]
    pub(super) fn find(&self, key: &FlowKey, hash: u64) -> Option<u32> {
        self.index.find(hash, |number| self.get(number).is_some_and(|flow| flow.key == *key))
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&Flow> {
        match self.entries.get(number as usize) {
            Some(Entry::Used { flow, .. }) => Some(flow),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Flow> {
        match self.entries.get_mut(number as usize) {
            Some(Entry::Used { flow, .. }) => Some(flow),
            _ => None,
        }
    }

    /// Notes a packet of a flow, and whether the flow is proven now.
    #[inline]
    pub(super) fn touch(&mut self, number: u32, is_proven: bool, now: Instant) {
        let Some(Entry::Used { flow, moved, proven, .. }) = self.entries.get_mut(number as usize) else {
            return;
        };
        flow.seen = now;
        if now.saturating_since(*moved) < STALE && (*proven || !is_proven) {
            return;
        }
        *moved = now;
        self.unlink(number);
        if let Some(Entry::Used { proven, .. }) = self.entries.get_mut(number as usize) {
            *proven |= is_proven;
        }
        self.link(number);
    }

    /// The flow to evict before another one can be inserted.
    pub(super) fn victim(&self) -> Option<u32> {
        let quarter = (self.limit / 4).max(1);
        let [probation, proven] = &self.lists;
        if probation.len >= quarter {
            return Some(probation.oldest);
        }
        (self.len() >= self.limit).then_some(if proven.len > 0 { proven.oldest } else { probation.oldest })
    }

    /// The flows that have been idle longest, one of each list.
    pub(super) fn oldest(&self) -> impl Iterator<Item = (u32, &Flow)> {
        self.lists.iter().filter_map(|list| Some((list.oldest, self.get(list.oldest)?)))
    }

    /// Inserts a flow that is not in the table. There must be room.
    pub(super) fn insert(&mut self, flow: Flow) -> u32 {
        let (hash, moved) = (flow.hash, flow.seen);
        let entry = Entry::Used { flow, moved, newer: NONE, older: NONE, proven: false };
        let number = self.free;
        let number = match self.entries.get_mut(number as usize) {
            Some(free) => {
                if let Entry::Free(next) = *free {
                    self.free = next;
                }
                *free = entry;
                number
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.index.insert(hash, number);
        self.link(number);
        number
    }

    /// Removes a flow.
    pub(super) fn remove(&mut self, number: u32) {
        let Some(hash) = self.get(number).map(|flow| flow.hash) else { return };
        self.index.remove(hash, number);
        self.unlink(number);
        self.entries[number as usize] = Entry::Free(self.free);
        self.free = number;
    }

    /// All flows, in the order of their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Flow)> {
        (0..).zip(&self.entries).filter_map(|(number, entry)| match entry {
            Entry::Used { flow, .. } => Some((number, flow)),
            Entry::Free(_) => None,
        })
    }

    /// The number after the highest one ever used.
    pub(super) const fn end(&self) -> u32 {
        self.entries.len() as u32
    }

    fn link(&mut self, number: u32) {
        let Some(Entry::Used { proven, .. }) = self.entries.get(number as usize) else { return };
        let list = &mut self.lists[usize::from(*proven)];
        let next = core::mem::replace(&mut list.newest, number);
        list.len += 1;
        if list.oldest == NONE {
            list.oldest = number;
        }
        if let Some(Entry::Used { newer, .. }) = self.entries.get_mut(next as usize) {
            *newer = number;
        }
        if let Some(Entry::Used { newer, older, .. }) = self.entries.get_mut(number as usize) {
            (*newer, *older) = (NONE, next);
        }
    }

    fn unlink(&mut self, number: u32) {
        let Some(&Entry::Used { newer: before, older: behind, proven, .. }) =
            self.entries.get(number as usize)
        else {
            return;
        };
        let list = &mut self.lists[usize::from(proven)];
        list.len -= 1;
        if list.newest == number {
            list.newest = behind;
        }
        if list.oldest == number {
            list.oldest = before;
        }
        if let Some(Entry::Used { older, .. }) = self.entries.get_mut(before as usize) {
            *older = behind;
        }
        if let Some(Entry::Used { newer, .. }) = self.entries.get_mut(behind as usize) {
            *newer = before;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::net::Ipv4Addr;

    fn key(n: u16) -> FlowKey {
        let address = Ipv4Addr::new(10, 0, 0, 1).into();
        FlowKey { src: address, dst: address, src_port: n, dst_port: 80, protocol: 6 }
    }

    fn add(flows: &mut Flows, n: u16, now: Instant) -> u32 {
        while let Some(victim) = flows.victim() {
            flows.remove(victim);
        }
        let hash = flows.hash(&key(n));
        flows.insert(Flow::new(key(n), hash, 0, now))
    }

    #[test]
    fn a_flood_leaves_proven_flows_alone() {
        let mut flows = Flows::new(7, 100);
        let now = Instant::from_secs(1);
        for n in 0..60 {
            let number = add(&mut flows, n, now);
            flows.touch(number, true, now);
        }
        for n in 1000..9000 {
            add(&mut flows, n, now);
        }
        assert_eq!(flows.len(), 85);
        for n in 0..60 {
            assert!(flows.find(&key(n), flows.hash(&key(n))).is_some());
        }
        assert!(flows.find(&key(8999), flows.hash(&key(8999))).is_some(), "the newest flow is kept");
        // Further proven flows: the one that has been idle longest is evicted.
        let later = Instant::from_secs(9);
        for n in 1..90 {
            let number = flows.find(&key(n), flows.hash(&key(n)));
            let number = number.unwrap_or_else(|| add(&mut flows, n, later));
            flows.touch(number, true, later);
        }
        assert!(flows.len() <= 100);
        assert!(flows.find(&key(89), flows.hash(&key(89))).is_some());
        assert!(flows.find(&key(0), flows.hash(&key(0))).is_some() || flows.len() == 100);
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(steps in proptest::collection::vec((0u16..40, 0u8..4), 0..400), limit in 1u32..40) {
            let mut flows = Flows::new(1, limit);
            let mut model: BTreeMap<u16, u32> = BTreeMap::new();
            let mut now = Instant::ZERO;
            for (n, what) in steps {
                now += Duration::from_millis(300);
                let found = flows.find(&key(n), flows.hash(&key(n)));
                prop_assert_eq!(found, model.get(&n).copied());
                match (what, found) {
                    (0, Some(number)) => {
                        flows.remove(number);
                        model.remove(&n);
                    }
                    (_, Some(number)) => flows.touch(number, what == 1, now),
                    (_, None) => {
                        while let Some(victim) = flows.victim() {
                            model.retain(|_, number| *number != victim);
                            flows.remove(victim);
                        }
                        let hash = flows.hash(&key(n));
                        model.insert(n, flows.insert(Flow::new(key(n), hash, 0, now)));
                    }
                }
                prop_assert!(flows.len() <= limit && flows.end() <= limit);
                prop_assert_eq!(flows.len() as usize, model.len());
                let numbers: Vec<u32> = flows.iter().map(|(number, _)| number).collect();
                let mut expected: Vec<u32> = model.values().copied().collect();
                expected.sort_unstable();
                prop_assert_eq!(numbers, expected);
            }
        }
    }
}
