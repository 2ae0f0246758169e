//! The buffer pool shared by all reordering engines of one worker: bounded memory, reusable buffers, and the
//! number of pausable FIFO queues (JUNCTION §V-D1).
//!
//! ```text
//!   Pool ── slots ──▶ [packet bytes | arrival, sequence, owner | prev, next]   one per held packet
//!        ── rings ──▶ [slot, slot, -, slot ...]                                one per flow with a gap
//!        ── queues ─▶ 127 ... 0                                                one per paused epoch
//! ```
//!
//! All memory of an engine apart from its own few words is charged here, so the sum over all sessions of a
//! worker never exceeds [`PoolConfig::bytes`]. Freed buffers go to a free list of their size class, so after
//! the first seconds nothing is allocated any more. A free buffer of another class is released when its
//! memory is needed.
//!
//! A single user must not exhaust the pool. If a pool is [`PoolConfig::shared`], a session may hold at most
//! as many queues, and as many bytes, as are free (the dynamic threshold of Choudhury and Hahne, IEEE/ACM
//! Transactions on Networking 6(2), 1998, with α = 1). One greedy session thus gets half, *k* greedy sessions
//! together *k*/(*k* + 1), and some is always left for a session that holds nothing. [`Pool::serve`] sets the
//! session to which the following calls belong; its holdings are counted in its [`Usage`].
//!
//! There is one pool per worker thread, used only by the sessions of that worker, so there is no lock. A
//! session that ends must return everything it holds (`close` on both engines).

use super::{FlowLimits, StreamLimits};
use crate::PathId;
use anabranch_element::time::Instant;

/// "No slot" in lists, rings and queues.
pub(super) const NONE: u32 = u32::MAX;

/// Buffer sizes: acknowledgements, one Ethernet MTU, a jumbo frame, the largest IP packet.
const CLASSES: [usize; 4] = [256, 1536, 9216, 65_536];
/// Memory of a slot in addition to its buffer.
const SLOT_OVERHEAD: usize = core::mem::size_of::<Entry>();
/// Ring lengths, in slots; the last is the reordering window.
const RINGS: [usize; 3] = [128, 1024, super::WINDOW as usize];
/// A free queue is advertised only if this many bytes are available for it.
const QUEUE_SHARE: usize = 64 * 1024;

/// Size of a [`Pool`] and limits of the engines that use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolConfig {
    /// Most bytes of buffers, rings and flow states in total. Default 64 MiB.
    pub bytes: usize,
    /// Pausable FIFO queues for stream-wise reordering. Default 127, the number that a Tofino2 egress port
    /// has in addition to the default queue (JUNCTION §V-D1).
    pub queues: u16,
    /// The pool is shared by many sessions: one may hold at most as much as is free. Default: `false`, it
    /// belongs to one session.
    pub shared: bool,
    /// Limits of sequence-based reordering.
    pub flow: FlowLimits,
    /// Limits of stream-wise reordering.
    pub stream: StreamLimits,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            bytes: 64 << 20,
            queues: 127,
            shared: false,
            flow: FlowLimits::default(),
            stream: StreamLimits::default(),
        }
    }
}

/// The part of a pool that one session holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of buffers, rings and flow states; a pool has at most 4 GiB.
    pub bytes: u32,
    /// Paused queues.
    pub queues: u16,
}

/// The metadata of a packet in a slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meta {
    /// Arrival time.
    pub arrival: Instant,
    /// Its sequence number (flows) or epoch (streams).
    pub sequence: u32,
    /// Flow index within the session.
    pub owner: u16,
    /// The path on which it arrived.
    pub path: PathId,
}

struct Entry {
    data: Box<[u8]>,
    meta: Meta,
    len: u32,
    prev: u32,
    next: u32,
    class: u8,
}

/// Bounded, reusable packet memory. See the module's head.
pub struct Pool {
    config: PoolConfig,
    entries: Vec<Entry>,
    /// Free slots with a buffer, per class.
    free: [Vec<u32>; CLASSES.len()],
    /// Free slots whose buffer was released.
    bare: Vec<u32>,
    rings: [Vec<Box<[u32]>>; RINGS.len()],
    /// Bytes in use by engines.
    used: usize,
    /// Bytes of buffers on free lists.
    cached: usize,
    queues_used: u16,
    refused: u64,
    /// Usage of the session that is being served.
    served: Usage,
}

impl Pool {
    /// An empty pool. Memory is allocated as needed.
    #[must_use]
    pub fn new(config: PoolConfig) -> Self {
        Self {
            config,
            entries: Vec::new(),
            free: Default::default(),
            bare: Vec::new(),
            rings: Default::default(),
            used: 0,
            cached: 0,
            queues_used: 0,
            refused: 0,
            served: Usage::default(),
        }
    }

    /// The following calls belong to the session with `usage`. To be called again after them, to store the
    /// usage back.
    pub const fn serve(&mut self, usage: &mut Usage) {
        core::mem::swap(&mut self.served, usage);
    }

    /// The number of queues to advertise to the peer of the served session (`reorder_available` of a probe):
    /// how many more of its switches can be reordered here. 0 also if queues are free but bytes are not.
    #[must_use]
    pub fn available(&self) -> u16 {
        self.available_to(self.served)
    }

    /// As [`Self::available`], for the session that holds `usage`.
    #[must_use]
    pub fn available_to(&self, usage: Usage) -> u16 {
        let free = self.config.queues - self.queues_used;
        // The n-th further queue is granted if afterwards at least as many are free as the session holds.
        let queues = if self.config.shared { free.saturating_sub(usage.queues).div_ceil(2) } else { free };
        queues.min(u16::try_from(self.free_bytes_of(usage) / QUEUE_SHARE).unwrap_or(u16::MAX))
    }

    /// Bytes in use now.
    #[must_use]
    pub const fn used_bytes(&self) -> usize {
        self.used
    }

    /// Bytes allocated from the system: in use and free.
    #[must_use]
    pub const fn resident_bytes(&self) -> usize {
        self.used + self.cached
    }

    /// Queues paused now.
    #[must_use]
    pub const fn queues_used(&self) -> u16 {
        self.queues_used
    }

    /// Requests refused because of a bound.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// The configuration.
    #[must_use]
    pub const fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Copies `packet` into a slot; `None` if there is no memory left.
    pub(super) fn store(&mut self, packet: &[u8], meta: Meta) -> Option<u32> {
        let Some(class) = CLASSES.iter().position(|&size| packet.len() <= size) else {
            self.refused += 1;
            return None;
        };
        let cost = CLASSES[class] + SLOT_OVERHEAD;
        let reused = if cost <= self.free_bytes() { self.free[class].pop() } else { None };
        let slot = if let Some(slot) = reused {
            self.cached -= cost;
            slot
        } else {
            if !self.make_room(cost) {
                return None;
            }
            let data = vec![0; CLASSES[class]].into_boxed_slice();
            let class = class as u8;
            if let Some(slot) = self.bare.pop() {
                let entry = &mut self.entries[slot as usize];
                entry.data = data;
                entry.class = class;
                slot
            } else {
                self.entries.push(Entry { data, meta, len: 0, prev: NONE, next: NONE, class });
                (self.entries.len() - 1) as u32
            }
        };
        self.lend(cost);
        let entry = &mut self.entries[slot as usize];
        entry.data[..packet.len()].copy_from_slice(packet);
        entry.len = packet.len() as u32;
        entry.meta = meta;
        Some(slot)
    }

    /// The packet in a slot.
    pub(super) fn packet(&mut self, slot: u32) -> &mut [u8] {
        let entry = &mut self.entries[slot as usize];
        &mut entry.data[..entry.len as usize]
    }

    /// Length of the packet in a slot.
    pub(super) fn len(&self, slot: u32) -> u32 {
        self.entries[slot as usize].len
    }

    /// The metadata of the packet in a slot.
    pub(super) fn meta(&self, slot: u32) -> Meta {
        self.entries[slot as usize].meta
    }

    /// Releases a slot, which must not be in a list.
    pub(super) fn release(&mut self, slot: u32) {
        let class = usize::from(self.entries[slot as usize].class);
        let cost = CLASSES[class] + SLOT_OVERHEAD;
        self.free[class].push(slot);
        self.uncharge(cost);
        self.cached += cost;
    }

    /// An empty ring of at least `len` slots (at most the window); `None` if there is no memory left.
    pub(super) fn ring(&mut self, len: usize) -> Option<Box<[u32]>> {
        let class = RINGS.iter().position(|&size| len <= size)?;
        let cost = RINGS[class] * size_of::<u32>();
        let reused = if cost <= self.free_bytes() { self.rings[class].pop() } else { None };
        let ring = if let Some(ring) = reused {
            self.cached -= cost;
            ring
        } else {
            if !self.make_room(cost) {
                return None;
            }
            vec![NONE; RINGS[class]].into_boxed_slice()
        };
        self.lend(cost);
        Some(ring)
    }

    /// Releases a ring, whose slots must all be `NONE`.
    pub(super) fn release_ring(&mut self, ring: Box<[u32]>) {
        let Some(class) = RINGS.iter().position(|&size| ring.len() == size) else { return };
        let cost = RINGS[class] * size_of::<u32>();
        self.rings[class].push(ring);
        self.uncharge(cost);
        self.cached += cost;
    }

    /// Bytes that can still be charged for the served session.
    #[must_use]
    pub const fn free_bytes(&self) -> usize {
        self.free_bytes_of(self.served)
    }

    const fn free_bytes_of(&self, usage: Usage) -> usize {
        let free = self.config.bytes.saturating_sub(self.used);
        if self.config.shared { free.saturating_sub(usage.bytes as usize) } else { free }
    }

    /// Charges `bytes` that the caller allocates itself; `false`: it must not.
    pub(crate) fn charge(&mut self, bytes: usize) -> bool {
        let granted = self.make_room(bytes);
        if granted {
            self.lend(bytes);
        }
        granted
    }

    /// Reverts a [`Self::charge`].
    pub(crate) fn refund(&mut self, bytes: usize) {
        self.uncharge(bytes);
    }

    /// Acquires one pausable queue.
    pub(super) fn acquire_queue(&mut self) -> bool {
        let free = self.config.queues.saturating_sub(self.queues_used);
        let granted = free > if self.config.shared { self.served.queues } else { 0 };
        if granted {
            self.queues_used += 1;
            self.served.queues += 1;
        } else {
            self.refused += 1;
        }
        granted
    }

    /// Releases one pausable queue.
    pub(super) fn release_queue(&mut self) {
        debug_assert!(self.queues_used > 0);
        self.queues_used = self.queues_used.saturating_sub(1);
        self.served.queues = self.served.queues.saturating_sub(1);
    }

    fn lend(&mut self, cost: usize) {
        self.used += cost;
        self.served.bytes = self.served.bytes.saturating_add(cost as u32);
    }

    fn uncharge(&mut self, cost: usize) {
        debug_assert!(self.used >= cost);
        self.used = self.used.saturating_sub(cost);
        self.served.bytes = self.served.bytes.saturating_sub(cost as u32);
    }

    /// Ensures that `cost` more bytes fit, if necessary by releasing free buffers, largest first.
    fn make_room(&mut self, cost: usize) -> bool {
        if cost > self.free_bytes() {
            self.refused += 1;
            return false;
        }
        while self.used + self.cached + cost > self.config.bytes {
            if let Some(class) = (0..CLASSES.len()).rev().find(|&class| !self.free[class].is_empty()) {
                if let Some(slot) = self.free[class].pop() {
                    self.entries[slot as usize].data = Box::default();
                    self.bare.push(slot);
                }
                self.cached -= CLASSES[class] + SLOT_OVERHEAD;
            } else if let Some(class) = (0..RINGS.len()).rev().find(|&class| !self.rings[class].is_empty()) {
                self.rings[class].pop();
                self.cached -= RINGS[class] * size_of::<u32>();
            } else {
                return false; // cached would be zero, which is impossible because used + cost fits
            }
        }
        true
    }
}

impl core::fmt::Debug for Pool {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "Pool({} of {} bytes, {} of {} queues)",
            self.used, self.config.bytes, self.queues_used, self.config.queues
        )
    }
}

/// A doubly linked FIFO of the pool's slots; eight bytes, whatever its length.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fifo {
    head: u32,
    tail: u32,
}

impl Fifo {
    pub(super) const EMPTY: Self = Self { head: NONE, tail: NONE };

    /// The oldest slot.
    pub(super) fn head(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    pub(super) fn push_back(&mut self, pool: &mut Pool, slot: u32) {
        let entry = &mut pool.entries[slot as usize];
        (entry.prev, entry.next) = (self.tail, NONE);
        if self.tail == NONE {
            self.head = slot;
        } else {
            pool.entries[self.tail as usize].next = slot;
        }
        self.tail = slot;
    }

    pub(super) fn remove(&mut self, pool: &mut Pool, slot: u32) {
        let Entry { prev, next, .. } = pool.entries[slot as usize];
        if prev == NONE {
            self.head = next;
        } else {
            pool.entries[prev as usize].next = next;
        }
        if next == NONE {
            self.tail = prev;
        } else {
            pool.entries[next as usize].prev = prev;
        }
    }

    pub(super) fn pop_front(&mut self, pool: &mut Pool) -> Option<u32> {
        let slot = self.head()?;
        self.remove(pool, slot);
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn meta(sequence: u32) -> Meta {
        Meta { arrival: Instant::ZERO, sequence, owner: 0, path: 0 }
    }

    fn pool(bytes: usize) -> Pool {
        Pool::new(PoolConfig { bytes, queues: 2, ..PoolConfig::default() })
    }

    #[test]
    fn buffers_are_reused_and_bounded() {
        let mut pool = pool(2 * (1536 + SLOT_OVERHEAD) + 100);
        let a = pool.store(&[1; 1400], meta(1)).unwrap();
        let b = pool.store(&[2; 1500], meta(2)).unwrap();
        assert!(pool.store(&[3; 1400], meta(3)).is_none());
        assert_eq!(pool.refused(), 1);
        assert_eq!(pool.packet(a), [1; 1400]);
        assert_eq!(pool.len(b), 1500);
        pool.release(a);
        let resident = pool.resident_bytes();
        assert_eq!(pool.store(&[4; 300], meta(4)), Some(a), "the free buffer is reused");
        assert_eq!(pool.resident_bytes(), resident);
        assert_eq!(pool.meta(a).sequence, 4);
    }

    #[test]
    fn a_free_buffer_of_another_class_is_given_up_for_room() {
        let mut pool = pool(9216 + SLOT_OVERHEAD);
        let jumbo = pool.store(&[0; 9000], meta(0)).unwrap();
        pool.release(jumbo);
        assert_eq!(pool.used_bytes(), 0);
        assert!(pool.store(&[0; 64], meta(1)).is_some());
        assert!(pool.resident_bytes() <= pool.config().bytes);
        assert!(pool.store(&[0; 9000], meta(2)).is_none());
    }

    #[test]
    fn oversize_packets_are_refused() {
        assert!(pool(1 << 20).store(&vec![0; 65_537], meta(0)).is_none());
    }

    #[test]
    fn queues_count_down_and_bytes_cap_them() {
        let mut small = pool(1 << 20);
        assert_eq!(small.available(), 2);
        assert!(small.acquire_queue() && small.acquire_queue() && !small.acquire_queue());
        assert_eq!(small.available(), 0);
        small.release_queue();
        assert_eq!(small.available(), 1);
        assert!(small.charge((1 << 20) - 1000));
        assert_eq!(small.available(), 0, "a queue without bytes is not advertised");
    }

    #[test]
    fn a_session_that_takes_all_it_can_leaves_as_much_as_it_has() {
        let mut pool = Pool::new(PoolConfig { bytes: 16 << 20, shared: true, ..PoolConfig::default() });
        for k in 1..=6 {
            let mut hog = Usage::default();
            pool.serve(&mut hog);
            while pool.acquire_queue() {}
            while pool.store(&[0; 1400], meta(0)).is_some() {}
            assert_eq!((pool.available(), pool.charge(2000)), (0, false));
            pool.serve(&mut hog);
            let left = (16 << 20) - pool.used_bytes();
            assert_eq!((hog.queues, 127 - pool.queues_used()), (128 >> k, 127 >> k), "hog {k}");
            assert!(left + 4000 >= hog.bytes as usize, "{k}: {hog:?}, {left} free");
        }
        let honest = Usage::default();
        assert!(pool.available_to(honest) > 0, "{pool:?}");
    }

    proptest! {
        /// For any requests and releases, the usages add up, and a session that holds nothing is granted a
        /// queue as long as one is free, and it is advertised to it.
        #[test]
        fn usage_adds_up_and_a_session_that_holds_nothing_is_granted_a_queue(
            steps in proptest::collection::vec((0usize..5, 0u8..4), 0..400),
        ) {
            let mut pool = Pool::new(PoolConfig { queues: 9, shared: true, ..PoolConfig::default() });
            let mut sessions = [Usage::default(); 5];
            let mut slots: [Vec<u32>; 5] = Default::default();
            for (s, what) in steps {
                let offered = pool.available_to(sessions[s]);
                let free = 9 - pool.queues_used();
                prop_assert!(free == 0 || sessions[s].queues > 0 || offered > 0);
                pool.serve(&mut sessions[s]);
                match what {
                    0 => prop_assert_eq!(pool.acquire_queue(), offered > 0),
                    1 if pool.served.queues > 0 => pool.release_queue(),
                    2 => slots[s].extend(pool.store(&[0; 900], meta(0))),
                    3 => if let Some(slot) = slots[s].pop() { pool.release(slot) },
                    _ => {}
                }
                pool.serve(&mut sessions[s]);
                prop_assert_eq!(sessions.iter().map(|u| u.queues).sum::<u16>(), pool.queues_used());
                prop_assert_eq!(sessions.iter().map(|u| u.bytes as usize).sum::<usize>(), pool.used_bytes());
            }
        }
    }

    #[test]
    fn fifo_keeps_order_through_removals() {
        let mut pool = pool(1 << 20);
        let mut fifo = Fifo::EMPTY;
        let slots: Vec<u32> = (0..5).map(|n| pool.store(&[n as u8], meta(n)).unwrap()).collect();
        for &slot in &slots {
            fifo.push_back(&mut pool, slot);
        }
        for gone in [2, 0, 4] {
            fifo.remove(&mut pool, slots[gone]);
        }
        let left: Vec<_> = core::iter::from_fn(|| fifo.pop_front(&mut pool)).collect();
        assert_eq!(left, [slots[1], slots[3]]);
        assert!(fifo.head().is_none());
    }
}
