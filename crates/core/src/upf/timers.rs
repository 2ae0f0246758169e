//! Deadlines of many sessions in one heap.
//!
//! A session's deadline changes with every packet; the heap is only touched when it moves *earlier*.
//! One that moved later is found out when the old entry comes up, and put back.

use crate::time::Instant;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Handle of a session slot.
pub type Slot = u32;

/// Which session wants attention first.
#[derive(Default)]
pub struct Timers {
    heap: BinaryHeap<Reverse<(Instant, Slot)>>,
    armed: Vec<Instant>,
}

impl Timers {
    /// Makes sure that `slot` comes up no later than `at`.
    pub fn arm(&mut self, slot: Slot, at: Instant) {
        let index = slot as usize;
        if self.armed.len() <= index {
            self.armed.resize(index + 1, Instant::MAX);
        }
        if at < self.armed[index] {
            self.armed[index] = at;
            self.heap.push(Reverse((at, slot)));
        }
    }

    /// Forgets `slot`.
    pub fn disarm(&mut self, slot: Slot) {
        if let Some(armed) = self.armed.get_mut(slot as usize) {
            *armed = Instant::MAX;
        }
    }

    /// The next slot that is due; the caller serves it and arms it again.
    pub fn pop_due(&mut self, now: Instant) -> Option<Slot> {
        while let Some(&Reverse((at, slot))) = self.heap.peek() {
            let armed = self.armed.get_mut(slot as usize)?;
            if at > now && *armed == at {
                return None;
            }
            self.heap.pop();
            // An entry whose slot was armed earlier since, or disarmed, is stale.
            if *armed == at {
                *armed = Instant::MAX;
                return Some(slot);
            }
        }
        None
    }

    /// The earliest deadline.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(t.next(), Some(ms(3)));
        assert_eq!(t.pop_due(ms(2)), None);
        assert_eq!(t.pop_due(ms(30)), Some(1));
        assert_eq!(t.pop_due(ms(30)), Some(2));
        assert_eq!(t.pop_due(ms(30)), None);
    }
}
