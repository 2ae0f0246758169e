//! Figures of a path: a gauge, a wrapping counter, and a latency.

use super::view::{GaugeView, LatencyView};
use anabranch_element::time::{Duration, Instant};

/// Weight of the mean: each value contributes 1/8, as in TCP's smoothed RTT.
const WEIGHT: u64 = 8;
/// Scale of the fixed-point mean, so that rounding does not stall it.
const SCALE: u64 = 1 << 8;

/// A gauge: its last value, mean, and recent maximum.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gauge {
    last: u32,
    mean_scaled: u64,
    /// Maximum of the current window, and of the previous one.
    most: [u32; 2],
    window_start: Instant,
}

/// [`Gauge::record`] or [`Gauge::record_overtaken`].
pub(super) type Recorder = fn(&mut Option<Gauge>, Option<u32>, Instant, Duration);

impl Gauge {
    /// The function that records a value, depending on whether its packet was overtaken.
    pub(super) fn recorder(overtaken: bool) -> Recorder {
        if overtaken { Self::record_overtaken } else { Self::record }
    }

    fn new(value: u32, at: Instant) -> Self {
        Self { last: value, mean_scaled: u64::from(value) * SCALE, most: [value, value], window_start: at }
    }

    /// Records a value in `gauge`; nothing if the node did not report one.
    pub(super) fn record(gauge: &mut Option<Self>, value: Option<u32>, at: Instant, window: Duration) {
        let Some(value) = value else { return };
        let Some(gauge) = gauge else {
            *gauge = Some(Self::new(value, at));
            return;
        };
        gauge.advance_window(at, window);
        gauge.last = value;
        gauge.most[0] = gauge.most[0].max(value);
        gauge.mean_scaled = (gauge.mean_scaled * (WEIGHT - 1) + u64::from(value) * SCALE) / WEIGHT;
    }

    /// Records the value of a packet that was overtaken; it affects only the maximum, which does not depend on order.
    pub(super) fn record_overtaken(
        gauge: &mut Option<Self>,
        value: Option<u32>,
        at: Instant,
        window: Duration,
    ) {
        let Some((known, value)) = gauge.as_mut().zip(value) else {
            return Self::record(gauge, value, at, window);
        };
        known.advance_window(at, window);
        known.most[0] = known.most[0].max(value);
    }

    fn advance_window(&mut self, at: Instant, window: Duration) {
        let passed = at.saturating_since(self.window_start);
        if passed < window {
            return;
        }
        // After a long pause only the last value is known.
        self.most = [0, if passed < window * 2 { self.most[0] } else { self.last }];
        self.window_start = at;
    }

    pub(super) fn view(mut self, now: Instant, window: Duration) -> GaugeView {
        self.advance_window(now, window);
        let mean = u32::try_from((self.mean_scaled + SCALE / 2) / SCALE).unwrap_or(u32::MAX);
        GaugeView { last: self.last, mean, most: self.most[0].max(self.most[1]) }
    }

    pub(super) const fn last(&self) -> u32 {
        self.last
    }
}

/// A counter that decreases after its node has been silent for this time means that the node restarted.
const RESTART_SILENCE: Duration = Duration::from_secs(1);
/// A difference above this, modulo 2^32, is negative.
const HALF_RANGE: u32 = 1 << 31;

/// A node's 32-bit counter, accumulated since it was first seen.
#[derive(Debug, Clone, Copy)]
pub(super) struct WrappingCounter {
    value: u32,
    at: Instant,
    pub(super) total: u64,
}

/// Interpretation of a counter value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CounterUpdate {
    /// The counter continues, or the value is of a trace that was overtaken.
    Continued,
    /// The counter restarted; what it counted in the meantime is unknown.
    Restarted,
}

impl WrappingCounter {
    pub(super) const fn new(value: u32, at: Instant) -> Self {
        Self { value, at, total: 0 }
    }

    /// Records the counter value of a trace seen at `at`.
    pub(super) fn record(&mut self, value: u32, at: Instant) -> CounterUpdate {
        let more = value.wrapping_sub(self.value);
        if more < HALF_RANGE {
            self.total = self.total.saturating_add(more.into());
        } else if at.saturating_since(self.at) < RESTART_SILENCE {
            return CounterUpdate::Continued;
        }
        self.value = value;
        self.at = at;
        if more < HALF_RANGE { CounterUpdate::Continued } else { CounterUpdate::Restarted }
    }
}

/// Tracks the newest packet by the time stamps of one clock.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OvertakenDetector(Option<(i64, Instant)>);

impl OvertakenDetector {
    /// Whether a packet seen at `at` was overtaken by an earlier one; `false` without a time stamp. If the clock steps back by more
    /// than [`RESTART_SILENCE`], or stays behind for that long, it was adjusted.
    pub(super) fn was_overtaken(&mut self, stamp_us: Option<i64>, at: Instant) -> bool {
        let Some(stamp_us) = stamp_us else { return false };
        let overtaken = self.0.is_some_and(|(newest_us, seen)| {
            let behind = u64::try_from(newest_us.saturating_sub(stamp_us)).unwrap_or(0);
            behind > 0
                && Duration::from_micros(behind) < RESTART_SILENCE
                && at.saturating_since(seen) < RESTART_SILENCE
        });
        if !overtaken {
            self.0 = Some((stamp_us, at));
        }
        overtaken
    }
}

/// Upper bound of a plausible latency; longer ones are due to differing clocks.
const MAX_LATENCY_US: i64 = 60_000_000;

/// Time between two stamps.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Latency(Option<Gauge>);

impl Latency {
    /// Records the time between two stamps, both in microseconds of the same clock, using [`Gauge::record`] or
    /// [`Gauge::record_overtaken`]; returns `false` if the difference is implausible.
    pub(super) fn record(
        &mut self,
        (from, to): (Option<i64>, Option<i64>),
        record: Recorder,
        at: Instant,
        window: Duration,
    ) -> bool {
        let (Some(from), Some(to)) = (from, to) else { return true };
        let passed = to - from;
        if !(0..=MAX_LATENCY_US).contains(&passed) {
            return false;
        }
        record(&mut self.0, u32::try_from(passed).ok(), at, window);
        true
    }

    pub(super) fn view(&self, now: Instant, window: Duration) -> Option<LatencyView> {
        let view = self.0?.view(now, window);
        Some(LatencyView { last_us: view.last, mean_us: view.mean, most_us: view.most })
    }
}

/// Converts a time stamp of a node or source to microseconds: seconds plus a fraction in Linux format. A fraction of one second
/// or more has another format and yields `None`.
pub(super) fn stamp_us(seconds: Option<u32>, fraction: Option<u32>) -> Option<i64> {
    let fraction = fraction.filter(|us| *us < 1_000_000)?;
    Some(i64::from(seconds?) * 1_000_000 + i64::from(fraction))
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: Duration = Duration::from_secs(1);

    #[test]
    fn a_level_remembers_its_maximum_for_a_window_or_two() {
        let mut gauge = None;
        let ms = Instant::from_millis;
        Gauge::record(&mut gauge, None, ms(0), W);
        assert!(gauge.is_none());
        for (at, value) in [(0, 100), (100, 900), (200, 100)] {
            Gauge::record(&mut gauge, Some(value), ms(at), W);
        }
        let view = |at| gauge.unwrap().view(ms(at), W);
        assert_eq!((view(200).last, view(200).most), (100, 900));
        // 100 + 800/8, minus an eighth of that.
        assert_eq!(view(200).mean, 188);
        assert_eq!((view(1100).most, view(2100).most), (900, 100));
    }

    #[test]
    fn a_tally_wraps_restarts_and_ignores_what_was_overtaken() {
        let ms = Instant::from_millis;
        let mut counter = WrappingCounter::new(u32::MAX - 1, ms(0));
        assert_eq!((counter.record(3, ms(1)), counter.total), (CounterUpdate::Continued, 5));
        assert_eq!((counter.record(1, ms(2)), counter.total), (CounterUpdate::Continued, 5));
        assert_eq!((counter.record(4, ms(3)), counter.total), (CounterUpdate::Continued, 6));
        assert_eq!((counter.record(0, ms(2000)), counter.total), (CounterUpdate::Restarted, 6));
        assert_eq!((counter.record(2, ms(2001)), counter.total), (CounterUpdate::Continued, 8));
    }

    #[test]
    fn overtaken_values_affect_only_the_maximum() {
        let ms = Instant::from_millis;
        let (mut gauge, mut overtaken_detector) = (None, OvertakenDetector::default());
        let mut take = |at, stamp_ms: i64, value| {
            let record = Gauge::recorder(overtaken_detector.was_overtaken(Some(stamp_ms * 1000), ms(at)));
            record(&mut gauge, Some(value), ms(at), W);
            gauge.unwrap().view(ms(at), W)
        };
        assert_eq!(take(0, 5000, 100).last, 100);
        let overtaken = take(10, 4990, 900);
        assert_eq!((overtaken.last, overtaken.mean, overtaken.most), (100, 100, 900));
        // The clock was set back: by much, which is detected at once, or by little.
        assert_eq!(take(20, 4000, 300).last, 300);
        assert_eq!([(1019, 400), (1020, 500)].map(|(at, value)| take(at, 3999, value).last), [300, 500]);
        // A single stamp in the far future does not block later ones.
        assert_eq!(
            [(1030, 9_000_000, 1), (1040, 4020, 2)].map(|(at, stamp, v)| take(at, stamp, v).last),
            [1, 2]
        );
    }

    #[test]
    fn stamps_of_other_formats_are_ignored() {
        assert_eq!(stamp_us(Some(2), Some(5)), Some(2_000_005));
        assert_eq!((stamp_us(Some(2), Some(1_000_000)), stamp_us(None, Some(5))), (None, None));
        let mut latency = Latency::default();
        assert!(!latency.record((Some(10), Some(5)), Gauge::record, Instant::ZERO, W));
        assert!(!latency.record((Some(0), Some(MAX_LATENCY_US + 1)), Gauge::record, Instant::ZERO, W));
        assert!(
            latency.record((Some(0), None), Gauge::record, Instant::ZERO, W)
                && latency.view(Instant::ZERO, W).is_none()
        );
        assert!(latency.record((Some(5), Some(12)), Gauge::record, Instant::ZERO, W));
        assert_eq!(latency.view(Instant::ZERO, W).map(|l| l.last_us), Some(7));
    }
}
