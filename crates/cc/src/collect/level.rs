//! Figures of a path: a level that goes up and down, a counter that wraps, a latency.

use super::view::{LatencyView, LevelView};
use anabranch_element::time::{Duration, Instant};

/// A mean moves an eighth of the way to each new value, as TCP's smoothed round trip.
const WEIGHT: u64 = 8;
/// The mean's fraction, so that it does not stick.
const SCALE: u64 = 1 << 8;

/// A figure that goes up and down: its last value, its mean, its maximum of late.
#[derive(Debug, Clone, Copy)]
pub(super) struct Level {
    last: u32,
    mean_scaled: u64,
    /// Maximum of the window under way, and of the one before.
    most: [u32; 2],
    since: Instant,
}

/// [`Level::note`] or [`Level::note_behind`].
pub(super) type Note = fn(&mut Option<Level>, Option<u32>, Instant, Duration);

impl Level {
    /// How to note what was overtaken, or was not.
    pub(super) fn noting(overtaken: bool) -> Note {
        if overtaken { Self::note_behind } else { Self::note }
    }

    fn new(value: u32, at: Instant) -> Self {
        Self { last: value, mean_scaled: u64::from(value) * SCALE, most: [value, value], since: at }
    }

    /// Notes a value in `level`; nothing if the node did not know.
    pub(super) fn note(level: &mut Option<Self>, value: Option<u32>, at: Instant, window: Duration) {
        let Some(value) = value else { return };
        let Some(level) = level else {
            *level = Some(Self::new(value, at));
            return;
        };
        level.turn(at, window);
        level.last = value;
        level.most[0] = level.most[0].max(value);
        level.mean_scaled = (level.mean_scaled * (WEIGHT - 1) + u64::from(value) * SCALE) / WEIGHT;
    }

    /// Notes a value that a newer one has overtaken: the maximum asks for no order.
    pub(super) fn note_behind(level: &mut Option<Self>, value: Option<u32>, at: Instant, window: Duration) {
        let Some((known, value)) = level.as_mut().zip(value) else {
            return Self::note(level, value, at, window);
        };
        known.turn(at, window);
        known.most[0] = known.most[0].max(value);
    }

    fn turn(&mut self, at: Instant, window: Duration) {
        let passed = at.saturating_since(self.since);
        if passed < window {
            return;
        }
        // After a longer silence the last value is all that is known.
        self.most = [0, if passed < window * 2 { self.most[0] } else { self.last }];
        self.since = at;
    }

    pub(super) fn view(mut self, now: Instant, window: Duration) -> LevelView {
        self.turn(now, window);
        let mean = u32::try_from((self.mean_scaled + SCALE / 2) / SCALE).unwrap_or(u32::MAX);
        LevelView { last: self.last, mean, most: self.most[0].max(self.most[1]) }
    }

    pub(super) const fn last(&self) -> u32 {
        self.last
    }
}

/// A node that has been silent for so long, and now counts less than before, has started again.
const RESTART: Duration = Duration::from_secs(1);
/// What is further ahead than this is behind.
const HALF: u32 = 1 << 31;

/// A node's 32-bit counter, summed since it was first seen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tally {
    value: u32,
    at: Instant,
    pub(super) total: u64,
}

/// What became of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    /// It counts on, or is of a trace that was overtaken.
    On,
    /// It starts again: what it had counted meanwhile is not known.
    Restarted,
}

impl Tally {
    pub(super) const fn new(value: u32, at: Instant) -> Self {
        Self { value, at, total: 0 }
    }

    /// Notes the counter's value in a trace seen at `at`.
    pub(super) fn note(&mut self, value: u32, at: Instant) -> Counted {
        let more = value.wrapping_sub(self.value);
        if more < HALF {
            self.total = self.total.saturating_add(more.into());
        } else if at.saturating_since(self.at) < RESTART {
            return Counted::On;
        }
        self.value = value;
        self.at = at;
        if more < HALF { Counted::On } else { Counted::Restarted }
    }
}

/// Which of the packets of one clock is the newest, by its stamps.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Newest(Option<(i64, Instant)>);

impl Newest {
    /// Whether a packet that was seen at `at` was overtaken by one before; without a stamp it was not. A clock that goes back further
    /// than [`RESTART`], or stays behind for that long, was set.
    pub(super) fn was_overtaken(&mut self, stamp_us: Option<i64>, at: Instant) -> bool {
        let Some(stamp_us) = stamp_us else { return false };
        let overtaken = self.0.is_some_and(|(newest_us, seen)| {
            let behind = u64::try_from(newest_us.saturating_sub(stamp_us)).unwrap_or(0);
            behind > 0 && Duration::from_micros(behind) < RESTART && at.saturating_since(seen) < RESTART
        });
        if !overtaken {
            self.0 = Some((stamp_us, at));
        }
        overtaken
    }
}

/// A latency that is longer is a difference of clocks.
const MOST_US: i64 = 60_000_000;

/// Time between two stamps.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Latency(Option<Level>);

impl Latency {
    /// Notes the time from the first to the second, both in microseconds of the same clock, by [`Level::note`] or
    /// [`Level::note_behind`]; `false` if there is none that makes sense.
    pub(super) fn note(
        &mut self,
        (from, to): (Option<i64>, Option<i64>),
        note: Note,
        at: Instant,
        window: Duration,
    ) -> bool {
        let (Some(from), Some(to)) = (from, to) else { return true };
        let passed = to - from;
        if !(0..=MOST_US).contains(&passed) {
            return false;
        }
        note(&mut self.0, u32::try_from(passed).ok(), at, window);
        true
    }

    pub(super) fn view(&self, now: Instant, window: Duration) -> Option<LatencyView> {
        let view = self.0?.view(now, window);
        Some(LatencyView { last_us: view.last, mean_us: view.mean, most_us: view.most })
    }
}

/// A node's or a source's stamp as microseconds: seconds, and the fraction as Linux has it. A fraction of a second or
/// more is of another format.
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
        let mut level = None;
        let ms = Instant::from_millis;
        Level::note(&mut level, None, ms(0), W);
        assert!(level.is_none());
        for (at, value) in [(0, 100), (100, 900), (200, 100)] {
            Level::note(&mut level, Some(value), ms(at), W);
        }
        let view = |at| level.unwrap().view(ms(at), W);
        assert_eq!((view(200).last, view(200).most), (100, 900));
        // 100 + 800/8, and an eighth of that back.
        assert_eq!(view(200).mean, 188);
        assert_eq!((view(1100).most, view(2100).most), (900, 100));
    }

    #[test]
    fn a_tally_wraps_restarts_and_ignores_what_was_overtaken() {
        let ms = Instant::from_millis;
        let mut tally = Tally::new(u32::MAX - 1, ms(0));
        assert_eq!((tally.note(3, ms(1)), tally.total), (Counted::On, 5));
        assert_eq!((tally.note(1, ms(2)), tally.total), (Counted::On, 5));
        assert_eq!((tally.note(4, ms(3)), tally.total), (Counted::On, 6));
        assert_eq!((tally.note(0, ms(2000)), tally.total), (Counted::Restarted, 6));
        assert_eq!((tally.note(2, ms(2001)), tally.total), (Counted::On, 8));
    }

    #[test]
    fn what_was_overtaken_raises_the_maximum_and_no_more() {
        let ms = Instant::from_millis;
        let (mut level, mut newest) = (None, Newest::default());
        let mut take = |at, stamp_ms: i64, value| {
            let note = Level::noting(newest.was_overtaken(Some(stamp_ms * 1000), ms(at)));
            note(&mut level, Some(value), ms(at), W);
            level.unwrap().view(ms(at), W)
        };
        assert_eq!(take(0, 5000, 100).last, 100);
        let overtaken = take(10, 4990, 900);
        assert_eq!((overtaken.last, overtaken.mean, overtaken.most), (100, 100, 900));
        // Its clock was set back: much, which is seen at once, or a little.
        assert_eq!(take(20, 4000, 300).last, 300);
        assert_eq!([(1019, 400), (1020, 500)].map(|(at, value)| take(at, 3999, value).last), [300, 500]);
        // A stamp that lies far ahead holds nobody up.
        assert_eq!(
            [(1030, 9_000_000, 1), (1040, 4020, 2)].map(|(at, stamp, v)| take(at, stamp, v).last),
            [1, 2]
        );
    }

    #[test]
    fn stamps_of_other_formats_are_none() {
        assert_eq!(stamp_us(Some(2), Some(5)), Some(2_000_005));
        assert_eq!((stamp_us(Some(2), Some(1_000_000)), stamp_us(None, Some(5))), (None, None));
        let mut latency = Latency::default();
        assert!(!latency.note((Some(10), Some(5)), Level::note, Instant::ZERO, W));
        assert!(!latency.note((Some(0), Some(MOST_US + 1)), Level::note, Instant::ZERO, W));
        assert!(
            latency.note((Some(0), None), Level::note, Instant::ZERO, W)
                && latency.view(Instant::ZERO, W).is_none()
        );
        assert!(latency.note((Some(5), Some(12)), Level::note, Instant::ZERO, W));
        assert_eq!(latency.view(Instant::ZERO, W).map(|l| l.last_us), Some(7));
    }
}
