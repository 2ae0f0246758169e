//! Limits the multiplications that one session can cause at this end.

use anabranch_element::time::{Duration, Instant};

/// A budget of bytes multiplied, refilled by the clock. At 0.3 ns per byte the rate is a twelfth of a core,
/// and the burst 2.5 ms of one.
#[derive(Debug, Clone)]
pub struct Work {
    left: u64,
    filled: Instant,
}

impl Work {
    /// Bytes per millisecond.
    const RATE: u64 = 256 << 10;
    /// Bytes that can be accumulated.
    const BURST: u64 = 8 << 20;

    /// A full budget.
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self { left: Self::BURST, filled: now }
    }

    /// Takes `bytes` from the budget; `false`, without taking any, if there are not enough.
    pub fn spend(&mut self, bytes: usize, now: Instant) -> bool {
        let whole_ms = now.saturating_since(self.filled).as_nanos() / 1_000_000;
        let whole_ms = u64::try_from(whole_ms).unwrap_or(u64::MAX);
        if whole_ms > 0 {
            self.filled += Duration::from_millis(whole_ms);
            self.left = self.left.saturating_add(whole_ms.saturating_mul(Self::RATE)).min(Self::BURST);
        }
        let Some(left) = self.left.checked_sub(bytes as u64) else { return false };
        self.left = left;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_spent_and_refilled_by_the_clock() {
        let mut now = Instant::from_secs(5);
        let mut work = Work::new(now);
        assert!(work.spend(Work::BURST as usize, now));
        assert!(!work.spend(1, now));
        now += Duration::from_micros(999);
        assert!(!work.spend(1, now));
        now += Duration::from_micros(1);
        assert!(work.spend(Work::RATE as usize, now) && !work.spend(1, now));
        now += Duration::from_secs(1000);
        assert!(!work.spend(Work::BURST as usize + 1, now));
        assert!(work.spend(Work::BURST as usize, now) && !work.spend(1, now));
    }
}
