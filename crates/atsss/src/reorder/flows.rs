//! The flow table of one session: found by key, ordered by last use, bounded in number.

use super::WINDOW;
use super::flow::LISTS;
use super::law::ahead;
use super::pool::{NONE, Pool};
use super::seen::Seen;
use crate::PathId;
use anabranch_element::time::Instant;
use anabranch_steer::Arrived;
use anabranch_wire::ip::FlowKey;
use core::hash::{BuildHasherDefault, Hasher};
use std::collections::HashMap;

/// "No flow" in links.
const NIL: u16 = u16::MAX;
/// Of an unknown flow, sequence numbers before the first one received for which packets may still wait.
const ADOPT_BACK: u32 = 64;
/// Memory of one flow in bytes: its state and its place in the index.
pub(super) const FLOW_BYTES: usize = size_of::<Flow>() + 2 * (size_of::<FlowKey>() + 4);

/// The packets given up last, to determine how late they would have been.
#[derive(Debug, Clone, Copy)]
pub(super) struct Skip {
    pub first: u32,
    pub count: u32,
    pub since: Instant,
    pub path: u8,
    /// They were taken for lost because every path had overtaken them.
    pub given_up: bool,
}

/// State of one flow in one direction.
pub(super) struct Flow {
    key: FlowKey,
    newer: u16,
    older: u16,
    /// The next sequence number to deliver.
    pub expected: u32,
    /// Packets held.
    pub held: u16,
    /// The flow was first received without its START: `expected` is a guess below the first packet received.
    pub adopting: bool,
    pub held_bytes: u32,
    /// Number of held packets by the path on which they arrived. All of them overtook `expected`.
    pub above: [u16; LISTS],
    /// Until this time, packets of the flow wait for lost ones that may be restored.
    pub patient_until: Instant,
    pub touched: Instant,
    /// The path that all missing packets took, if the sender stated it.
    pub sole: Option<PathId>,
    /// Packets received since this was last taken.
    pub arrived: Arrived,
    pub skip: Option<Skip>,
    /// Slot of each held packet at `sequence % len`; present only while packets are held.
    pub ring: Option<Box<[u32]>>,
    pub seen: Seen,
}

impl Flow {
    /// The slot that holds `sequence`, which must be within the window.
    pub(super) fn slot(&self, sequence: u32) -> Option<u32> {
        let ring = self.ring.as_deref()?;
        if ahead(sequence, self.expected) as u32 >= ring.len() as u32 {
            return None;
        }
        let slot = ring[sequence as usize & (ring.len() - 1)];
        (slot != NONE).then_some(slot)
    }

    /// The lowest sequence number held.
    pub(super) fn lowest(&self) -> Option<u32> {
        let ring = self.ring.as_deref().filter(|_| self.held > 0)?;
        (0..ring.len() as u32)
            .map(|n| self.expected.wrapping_add(n))
            .find(|&sequence| ring[sequence as usize & (ring.len() - 1)] != NONE)
    }

    /// Ensures that the ring reaches `sequence`, which must be ahead of `expected` and inside the window.
    pub(super) fn reach(&mut self, sequence: u32, pool: &mut Pool) -> bool {
        let need = sequence.wrapping_sub(self.expected) as usize + 1;
        let have = self.ring.as_deref().map_or(0, <[u32]>::len);
        if need <= have {
            return true;
        }
        let Some(mut wider) = pool.ring(need) else { return false };
        if let Some(mut old) = self.ring.take() {
            let mask = wider.len() - 1;
            for n in 0..old.len() as u32 {
                let sequence = self.expected.wrapping_add(n) as usize;
                wider[sequence & mask] = core::mem::replace(&mut old[sequence & (have - 1)], NONE);
            }
            pool.release_ring(old);
        }
        self.ring = Some(wider);
        true
    }

    /// Removes the held packet at `expected`, of `len` bytes from `path`, from the accounts and advances.
    pub(super) fn take(&mut self, len: u32, path: usize) {
        if let Some(ring) = self.ring.as_deref_mut() {
            let mask = ring.len() - 1;
            ring[self.expected as usize & mask] = NONE;
        }
        self.held -= 1;
        self.held_bytes -= len;
        self.above[path] -= 1;
        self.seen.set(self.expected);
        self.expected = self.expected.wrapping_add(1);
    }

    /// Begins a new sequence at `expected`; no packet may be held.
    pub(super) fn restart(&mut self, expected: u32) {
        debug_assert_eq!(self.held, 0);
        self.expected = expected;
        self.adopting = false;
        self.skip = None;
        self.seen.clear(0, WINDOW);
    }
}

/// All flows of a session. The head of the recency list is `newest`.
pub(super) struct Flows {
    slab: Vec<Flow>,
    free: Vec<u16>,
    index: HashMap<FlowKey, u16, BuildHasherDefault<FoldHasher>>,
    newest: u16,
    oldest: u16,
}

impl Flows {
    pub(super) fn new() -> Self {
        Self { slab: Vec::new(), free: Vec::new(), index: HashMap::default(), newest: NIL, oldest: NIL }
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn get(&mut self, index: u16) -> &mut Flow {
        &mut self.slab[usize::from(index)]
    }

    /// Finds the flow of `key` and makes it the newest.
    pub(super) fn find(&mut self, key: &FlowKey) -> Option<u16> {
        // Packets arrive in bursts of one flow, so the newest one is compared first.
        if let Some(newest) = self.slab.get(usize::from(self.newest))
            && newest.key == *key
        {
            return Some(self.newest);
        }
        let index = *self.index.get(key)?;
        self.unlink(index);
        self.link_newest(index);
        Some(index)
    }

    /// The least recently used flow.
    pub(super) fn oldest(&self) -> Option<u16> {
        (self.oldest != NIL).then_some(self.oldest)
    }

    /// Inserts a flow; the caller has charged [`FLOW_BYTES`] and ensured that `key` is unknown.
    pub(super) fn insert(&mut self, key: FlowKey, sequence: u32, started: bool, now: Instant) -> u16 {
        let flow = Flow {
            key,
            newer: NIL,
            older: NIL,
            expected: if started { sequence } else { sequence.wrapping_sub(ADOPT_BACK) },
            held: 0,
            adopting: !started,
            held_bytes: 0,
            above: [0; LISTS],
            patient_until: Instant::ZERO,
            touched: now,
            sole: None,
            arrived: Arrived::default(),
            skip: None,
            ring: None,
            seen: Seen::new(),
        };
        let index = if let Some(index) = self.free.pop() {
            self.slab[usize::from(index)] = flow;
            index
        } else {
            self.slab.push(flow);
            (self.slab.len() - 1) as u16
        };
        self.index.insert(key, index);
        self.link_newest(index);
        index
    }

    /// Removes a flow, which must not hold packets. The caller refunds [`FLOW_BYTES`].
    pub(super) fn remove(&mut self, index: u16) {
        debug_assert_eq!(self.get(index).held, 0);
        self.unlink(index);
        let key = self.slab[usize::from(index)].key;
        self.index.remove(&key);
        self.free.push(index);
        if self.index.is_empty() {
            *self = Self::new();
        }
    }

    fn unlink(&mut self, index: u16) {
        let Flow { newer, older, .. } = self.slab[usize::from(index)];
        match self.slab.get_mut(usize::from(newer)) {
            Some(flow) => flow.older = older,
            None => self.newest = older,
        }
        match self.slab.get_mut(usize::from(older)) {
            Some(flow) => flow.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn link_newest(&mut self, index: u16) {
        let second = self.newest;
        let flow = &mut self.slab[usize::from(index)];
        (flow.newer, flow.older) = (NIL, second);
        match self.slab.get_mut(usize::from(second)) {
            Some(flow) => flow.newer = index,
            None => self.oldest = index,
        }
        self.newest = index;
    }
}

/// A fast hash without a key. Collisions cost only an attacker's own session a few comparisons, because the
/// table has at most [`super::FlowLimits::flows`] entries.
#[derive(Default)]
pub(super) struct FoldHasher(u64);

impl FoldHasher {
    fn fold(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

impl Hasher for FoldHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.fold(u64::from_le_bytes(word));
        }
    }
    fn write_u8(&mut self, n: u8) {
        self.fold(u64::from(n));
    }
    fn write_u16(&mut self, n: u16) {
        self.fold(u64::from(n));
    }
    fn write_u32(&mut self, n: u32) {
        self.fold(u64::from(n));
    }
    fn write_u64(&mut self, n: u64) {
        self.fold(n);
    }
    fn write_u128(&mut self, n: u128) {
        self.fold(n as u64);
        self.fold((n >> 64) as u64);
    }
    fn write_usize(&mut self, n: usize) {
        self.fold(n as u64);
    }
}
