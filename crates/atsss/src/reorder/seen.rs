//! Which of the last [`WINDOW`] sequence numbers below the expected one have been delivered.

use super::WINDOW;

const WORDS: usize = WINDOW as usize / 64;

/// One bit per sequence number, at `sequence % WINDOW`. The owner clears the bits of skipped numbers.
pub(super) struct Seen([u64; WORDS]);

impl Seen {
    pub(super) const fn new() -> Self {
        Self([0; WORDS])
    }

    pub(super) fn set(&mut self, sequence: u32) {
        let bit = sequence % WINDOW;
        self.0[(bit / 64) as usize] |= 1 << (bit % 64);
    }

    pub(super) fn contains(&self, sequence: u32) -> bool {
        let bit = sequence % WINDOW;
        self.0[(bit / 64) as usize] & (1 << (bit % 64)) != 0
    }

    /// Clears the bits of `count` sequence numbers beginning at `first`.
    pub(super) fn clear(&mut self, first: u32, count: u32) {
        if count >= WINDOW {
            self.0 = [0; WORDS];
            return;
        }
        let (mut bit, mut left) = (first % WINDOW, count);
        while left > 0 {
            let offset = bit % 64;
            let run = left.min(64 - offset);
            let mask = (u64::MAX >> (64 - run)) << offset;
            self.0[(bit / 64) as usize] &= !mask;
            bit = (bit + run) % WINDOW;
            left -= run;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clear_takes_exactly_the_range() {
        for (first, count) in
            [(0, 1), (63, 2), (100, 200), (WINDOW - 3, 7), (u32::MAX - 70, 150), (5, WINDOW)]
        {
            let mut seen = Seen::new();
            seen.0 = [u64::MAX; WORDS];
            seen.clear(first, count);
            for n in 0..WINDOW {
                let sequence = first.wrapping_add(n);
                assert_eq!(seen.contains(sequence), n >= count, "{first}+{n} of {count}");
            }
            seen.set(first);
            assert!(seen.contains(first));
        }
    }
}
