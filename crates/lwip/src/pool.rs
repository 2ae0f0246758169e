//! Storage of held ACKs: slots of one size, linked to one list per flow, oldest first.
//!
//! Memory grows with the number of held ACKs up to the limit and is not returned. Nothing is allocated per packet
//! after that.

/// Longest packet that is held, bytes. IPv6 and TCP with all options that fit take 100.
pub(super) const MAX_HELD_BYTES: usize = 120;

const NONE: u32 = u32::MAX;

#[derive(Clone)]
struct Slot {
    next: u32,
    len: u16,
    bytes: [u8; MAX_HELD_BYTES],
}

/// The held ACKs of one flow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Queue {
    head: u32,
    tail: u32,
    len: u32,
}

impl Default for Queue {
    fn default() -> Self {
        Self { head: NONE, tail: NONE, len: 0 }
    }
}

impl Queue {
    /// Number of ACKs.
    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    /// Whether the queue is empty.
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The slots of all held ACKs.
pub(super) struct Pool {
    slots: Vec<Slot>,
    free: u32,
    used: u32,
}

impl Pool {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), free: NONE, used: 0 }
    }

    /// ACKs held in total.
    pub(super) const fn len(&self) -> u32 {
        self.used
    }

    /// Bytes allocated.
    pub(super) const fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
    }

    /// Appends a copy of a packet to a queue; `false` if it is too long or `limit` ACKs are already held.
    pub(super) fn push(&mut self, queue: &mut Queue, packet: &[u8], limit: u32) -> bool {
        if packet.len() > MAX_HELD_BYTES || self.used >= limit {
            return false;
        }
        let index = if self.free == NONE {
            let index = self.slots.len() as u32;
            self.slots.push(Slot { next: NONE, len: 0, bytes: [0; MAX_HELD_BYTES] });
            index
        } else {
            self.free
        };
        let Some(slot) = self.slots.get_mut(index as usize) else { return false };
        if self.free == index {
            self.free = slot.next;
        }
        slot.next = NONE;
        slot.len = packet.len() as u16;
        slot.bytes[..packet.len()].copy_from_slice(packet);
        if let Some(tail) = self.slots.get_mut(queue.tail as usize) {
            tail.next = index;
        } else {
            queue.head = index;
        }
        queue.tail = index;
        queue.len += 1;
        self.used += 1;
        true
    }

    /// The oldest ACK of a queue.
    pub(super) fn front(&self, queue: &Queue) -> Option<&[u8]> {
        let slot = self.slots.get(queue.head as usize)?;
        slot.bytes.get(..usize::from(slot.len))
    }

    /// Appends one queue to another.
    pub(super) fn append(&mut self, queue: &mut Queue, more: Queue) {
        if more.is_empty() {
            return;
        }
        match self.slots.get_mut(queue.tail as usize) {
            Some(tail) => tail.next = more.head,
            None => queue.head = more.head,
        }
        queue.tail = more.tail;
        queue.len += more.len;
    }

    /// Empties a queue, oldest ACK first.
    pub(super) fn drain(&mut self, queue: &mut Queue, mut each: impl FnMut(&[u8])) {
        let mut at = queue.head;
        while let Some(slot) = self.slots.get_mut(at as usize) {
            each(slot.bytes.get(..usize::from(slot.len)).unwrap_or_default());
            let next = core::mem::replace(&mut slot.next, self.free);
            self.free = at;
            self.used -= 1;
            at = next;
        }
        *queue = Queue::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn limits_hold() {
        let (mut pool, mut queue) = (Pool::new(), Queue::default());
        assert!(!pool.push(&mut queue, &[0; MAX_HELD_BYTES + 1], 9));
        assert!(pool.push(&mut queue, &[0; MAX_HELD_BYTES], 1));
        assert!(!pool.push(&mut queue, &[0], 1));
        assert_eq!((queue.len(), pool.len()), (1, 1));
        assert_eq!(size_of::<Slot>(), 128);
    }

    proptest! {
        #[test]
        fn behaves_like_queues(steps in proptest::collection::vec((0usize..3, 0usize..9), 0..200)) {
            let mut pool = Pool::new();
            let mut queues = [Queue::default(); 3];
            let mut model = [const { VecDeque::new() }; 3];
            for (i, (which, what)) in steps.into_iter().enumerate() {
                if what == 0 {
                    let mut out = VecDeque::new();
                    pool.drain(&mut queues[which], |packet| out.push_back(packet.to_vec()));
                    prop_assert_eq!(&out, &model[which]);
                    model[which].clear();
                } else if what == 1 {
                    let next = (which + 1) % 3;
                    let more = core::mem::take(&mut queues[next]);
                    pool.append(&mut queues[which], more);
                    let more = core::mem::take(&mut model[next]);
                    model[which].extend(more);
                } else {
                    let packet = vec![i as u8; i % 40];
                    let fits = pool.len() < 12;
                    prop_assert_eq!(pool.push(&mut queues[which], &packet, 12), fits);
                    if fits {
                        model[which].push_back(packet);
                    }
                }
                let held: usize = model.iter().map(VecDeque::len).sum();
                prop_assert_eq!(pool.len() as usize, held);
                prop_assert!(pool.slots.len() <= 12);
                for (queue, model) in queues.iter().zip(&model) {
                    prop_assert_eq!((queue.len() as usize, queue.is_empty()), (model.len(), model.is_empty()));
                }
            }
        }
    }
}
