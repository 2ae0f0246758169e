//! A limit on bytes: a burst, and a rate per second.

use anabranch_element::time::{Duration, Instant};

/// Bytes that may still be spent. It begins with `AT_ONCE`, which is also its maximum, and gains `PER_S` per
/// second.
#[derive(Debug, Clone, Copy)]
pub struct TokenBucket<const AT_ONCE: u64, const PER_S: u64> {
    bytes: u64,
    at: Instant,
}

impl<const AT_ONCE: u64, const PER_S: u64> Default for TokenBucket<AT_ONCE, PER_S> {
    /// A full bucket.
    fn default() -> Self {
        Self { bytes: AT_ONCE, at: Instant::ZERO }
    }
}

impl<const AT_ONCE: u64, const PER_S: u64> TokenBucket<AT_ONCE, PER_S> {
    /// Takes `bytes`; `false`, without taking any, if there are too few.
    pub fn take(&mut self, bytes: u64, now: Instant) -> bool {
        let waited = u64::try_from(now.saturating_since(self.at).as_millis()).unwrap_or(u64::MAX);
        self.bytes = self.bytes.saturating_add(waited.saturating_mul(PER_S) / 1_000).min(AT_ONCE);
        // The fraction of a millisecond counts with the next call.
        self.at = if self.bytes < AT_ONCE { self.at + Duration::from_millis(waited) } else { now };
        let left = self.bytes.checked_sub(bytes);
        self.bytes = left.unwrap_or(self.bytes);
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// For any sequence of calls, no more is taken over any time than the initial contents and the gain;
        /// calls for single bytes get all of it except that of the last millisecond.
        #[test]
        fn neither_more_nor_less_than_the_rate(gaps_us in prop::collection::vec(0_u64..3_000, 1..400), bytes in 1_u64..3_000) {
            let mut bucket = TokenBucket::<10_000, 250_000>::default();
            let (mut now, mut taken) = (Instant::ZERO, 0);
            for gap in [0].iter().chain(&gaps_us) {
                now += Duration::from_micros(*gap);
                while bucket.take(bytes, now) {
                    taken += bytes;
                }
            }
            let gained = 10_000 + gaps_us.iter().sum::<u64>() / 4;
            prop_assert!(taken <= gained, "{} of {}", taken, gained);
            prop_assert!(taken + bytes + 250 >= gained, "{} of {}", taken, gained);
        }
    }
}
