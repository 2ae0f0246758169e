//! A limit on bytes: so many at once, and so many more each second.

use anabranch_element::time::{Duration, Instant};

/// Bytes that may still be spent. It starts with `AT_ONCE`, never holds more, and gains `PER_S` each second.
#[derive(Debug, Clone, Copy)]
pub struct TokenBucket<const AT_ONCE: u64, const PER_S: u64> {
    bytes: u64,
    at: Instant,
}

impl<const AT_ONCE: u64, const PER_S: u64> Default for TokenBucket<AT_ONCE, PER_S> {
    /// A full one.
    fn default() -> Self {
        Self { bytes: AT_ONCE, at: Instant::ZERO }
    }
}

impl<const AT_ONCE: u64, const PER_S: u64> TokenBucket<AT_ONCE, PER_S> {
    /// Takes so many bytes; `false`: there are too few, and none is taken.
    pub fn take(&mut self, bytes: u64, now: Instant) -> bool {
        let waited = u64::try_from(now.saturating_since(self.at).as_millis()).unwrap_or(u64::MAX);
        self.bytes = self.bytes.saturating_add(waited.saturating_mul(PER_S) / 1_000).min(AT_ONCE);
        // What is left of a millisecond counts next time.
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
        /// However often it is asked, over any time no more is taken than what it held and gained; and who asks for a byte
        /// at a time gets all of it, but for the last millisecond's.
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
