//! Round-trip time: RFC 6298 smoothing, and a minimum over a sliding window.

use anabranch_element::time::{Duration, Instant};

/// Larger samples are rejected: no usable path is slower, and the arithmetic stays within 32 bits.
pub(super) const MAX_RTT: Duration = Duration::from_secs(60);
/// Period of the minimum filter: the minimum covers the last one or two periods.
const MIN_WINDOW_S: u16 = 10;

/// Estimates of a path's round-trip time; all zero before the first sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RttEstimate {
    /// The newest sample.
    pub latest: Duration,
    /// Smoothed (RFC 6298 §2, gain 1/8).
    pub smoothed: Duration,
    /// Mean deviation (RFC 6298 §2, gain 1/4).
    pub variance: Duration,
    /// The smallest sample of the last 10 to 20 seconds.
    pub minimum: Duration,
}

/// The estimator. All values are in microseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RttMeter {
    latest: u32,
    /// Eight times the smoothed value, so that the gain of 1/8 loses nothing.
    smoothed_x8: u32,
    /// Four times the deviation.
    variance_x4: u32,
    min_now: u32,
    min_before: u32,
    window_start_s: u16,
    restart: bool,
}

impl RttMeter {
    /// Takes a sample; samples above [`MAX_RTT`] are rejected. Returns whether it was taken.
    pub(super) fn sample(&mut self, rtt: Duration, now: Instant) -> bool {
        if rtt > MAX_RTT {
            return false;
        }
        // A sample of zero would mean "no sample" (and, at the UPF, "down").
        let us = u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX).max(1);
        let first = self.latest == 0;
        self.latest = us;
        if first || self.restart {
            self.smoothed_x8 = us * 8;
            self.variance_x4 = us * 2;
            self.restart = false;
        } else {
            let deviation = (self.smoothed_x8 / 8).abs_diff(us);
            self.variance_x4 = self.variance_x4 - self.variance_x4 / 4 + deviation;
            self.smoothed_x8 = self.smoothed_x8 - self.smoothed_x8 / 8 + us;
        }
        let now_s = (now.as_millis() / 1000) as u16;
        if first {
            (self.min_now, self.min_before, self.window_start_s) = (us, us, now_s);
        } else if now_s.wrapping_sub(self.window_start_s) >= MIN_WINDOW_S {
            (self.min_before, self.min_now, self.window_start_s) = (self.min_now, us, now_s);
        } else {
            self.min_now = self.min_now.min(us);
        }
        true
    }

    /// Restarts the smoothing with the next sample, because the path was down and may have changed.
    pub(super) fn restart(&mut self) {
        self.restart = true;
    }

    pub(super) fn estimate(&self) -> RttEstimate {
        let us = |v: u32| Duration::from_micros(v.into());
        RttEstimate {
            latest: us(self.latest),
            smoothed: us(self.smoothed_x8 / 8),
            variance: us(self.variance_x4 / 4),
            minimum: us(self.min_now.min(self.min_before)),
        }
    }

    /// Whether there has been a sample.
    pub(super) fn known(&self) -> bool {
        self.latest != 0
    }

    /// The minimum in microseconds; 0 before the first sample.
    pub(super) fn minimum_us(&self) -> u32 {
        if self.known() { self.min_now.min(self.min_before) } else { 0 }
    }

    pub(super) fn smoothed_us(&self) -> u32 {
        self.smoothed_x8 / 8
    }

    /// The round-trip time used for failure detection: the larger of newest and smoothed, so that a new queue
    /// is taken into account at once.
    pub(super) fn cautious(&self) -> Duration {
        Duration::from_micros(self.latest.max(self.smoothed_x8 / 8).into())
    }

    /// Whether the smoothed value is not much above the newest sample: by at most half of it and 5 ms.
    pub(super) fn is_settled(&self) -> bool {
        self.smoothed_x8 / 8 <= self.latest.saturating_add(self.latest / 2 + 5_000)
    }

    /// Four deviations.
    pub(super) fn spread(&self) -> Duration {
        Duration::from_micros(self.variance_x4.into())
    }

    /// When an answer is late enough to repeat the request: smoothed + 4 deviations, the latter at least 10
    /// ms.
    pub(super) fn late_after(&self) -> Duration {
        Duration::from_micros(u64::from(self.smoothed_x8 / 8) + u64::from(self.variance_x4.max(10_000)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_example_of_rfc_6298() {
        let mut m = RttMeter::default();
        assert!(m.sample(80 * MS, Instant::ZERO));
        let e = m.estimate();
        assert_eq!((e.smoothed, e.variance), (80 * MS, 40 * MS));
        assert!(m.sample(160 * MS, Instant::from_secs(1)));
        let e = m.estimate();
        // 7/8 · 80 + 1/8 · 160 = 90; 3/4 · 40 + 1/4 · |80 − 160| = 50.
        assert_eq!((e.latest, e.smoothed, e.variance, e.minimum), (160 * MS, 90 * MS, 50 * MS, 80 * MS));
        assert_eq!(m.cautious(), 160 * MS);
    }

    #[test]
    fn the_minimum_forgets() {
        let mut m = RttMeter::default();
        m.sample(5 * MS, Instant::ZERO);
        for s in 1..=21 {
            m.sample(50 * MS, Instant::from_secs(s));
        }
        assert_eq!(m.estimate().minimum, 50 * MS);
    }

    #[test]
    fn restart_adopts_the_next_sample_and_absurd_ones_are_rejected() {
        let mut m = RttMeter::default();
        m.sample(400 * MS, Instant::ZERO);
        m.restart();
        m.sample(10 * MS, Instant::from_secs(1));
        assert_eq!(m.estimate().smoothed, 10 * MS);
        assert!(!m.sample(Duration::from_secs(61), Instant::from_secs(2)));
        assert!(m.sample(Duration::ZERO, Instant::from_secs(2)));
        assert_eq!(m.estimate().latest, Duration::from_micros(1));
    }
}
