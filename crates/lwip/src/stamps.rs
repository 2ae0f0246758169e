//! Round trips from TCP timestamps (RFC 7323 §4), measured in the middle of the path.
//!
//! ```text
//!   down:  TSval  7   7   8   9   9   9   10      the first segment with a value is noted with its time,
//!          note   ●       ○   ●           ●       if it is far enough from the previous note
//!   up:    ACK that advances, TSecr = 9           its time minus that of the note of 9 is a round trip behind the node
//! ```
//!
//! A receiver echoes the timestamp of the segment that made the acknowledgment advance (RFC 7323 §4.3): the
//! earliest of those that a delayed ACK covers; the segment that closed a gap, not those that waited behind it; and
//! of a retransmitted segment, the copy that arrived first. An echo is therefore correct where the time from a
//! segment to its acknowledgment is not: while packets are out of order, and after retransmissions. Only ACKs that
//! advance count (§4.1), and only the first one after each note.
//!
//! Values between two notes are interpolated linearly, because the clock is the sender's. A clock with ticks of
//! more than an eighth of a round trip does not identify the segment; then there is no sample.

use super::dida::before;
use anabranch_element::time::{Duration, Instant, nanos};

/// Notes per flow, and therefore the maximum number of samples per round trip.
const MAX_NOTES: usize = 8;
/// A clock that runs backwards is accepted after this time. Until then, the segment is taken for one that was
/// overtaken.
const RESYNC_AFTER: Duration = Duration::from_secs(10);
/// Ticks up to this length are accepted even if the round trip is short.
const MIN_TICK: Duration = Duration::from_millis(2);

/// Timestamps of some of the segments in flight of one flow.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Stamps {
    at: [Instant; MAX_NOTES],
    value: [u32; MAX_NOTES],
    /// The newest value, and when it was first seen.
    newest_at: Instant,
    newest: u32,
    spacing_us: u32,
    len: u8,
    has_seen: bool,
}

impl Stamps {
    /// A data segment with timestamp `value` is sent down. `trip_us` is the approximate round trip behind the node.
    #[inline]
    pub(super) fn on_segment(&mut self, value: u32, trip_us: u32, now: Instant) {
        if self.has_seen && value == self.newest {
            // The clock has not advanced for too long.
            let last = usize::from(self.len).wrapping_sub(1);
            if now.saturating_since(self.newest_at) > longest_tick(trip_us)
                && self.value.get(last) == Some(&value)
            {
                self.len -= 1;
            }
            return;
        }
        if self.has_seen && before(value, self.newest) {
            if now.saturating_since(self.newest_at) < RESYNC_AFTER {
                return;
            }
            self.len = 0;
        }
        (self.has_seen, self.newest, self.newest_at) = (true, value, now);
        self.note(value, now);
    }

    /// The time since the segment passed for which an ACK with this echo was sent. Notes up to it are removed, and
    /// the following ones are spaced so that they span this time.
    #[inline]
    pub(super) fn on_echo(&mut self, echo: u32, trip_us: u32, now: Instant) -> Option<Duration> {
        if !self.has_seen || before(self.newest, echo) {
            return None;
        }
        let notes = usize::from(self.len);
        let old = self.value.iter().take(notes).take_while(|value| !before(echo, **value)).count();
        let last = old.checked_sub(1)?;
        let (from, from_at) = (*self.value.get(last)?, *self.at.get(last)?);
        let (to, to_at) = if old < notes {
            (*self.value.get(old)?, *self.at.get(old)?)
        } else {
            (self.newest, self.newest_at)
        };
        self.at.copy_within(old..notes, 0);
        self.value.copy_within(old..notes, 0);
        self.len -= old as u8;
        let passed_at = if echo == from {
            from_at
        } else {
            let span = nanos(to_at.saturating_since(from_at));
            let (part, whole) = (echo.wrapping_sub(from), to.wrapping_sub(from).max(1));
            if span / u64::from(whole) > nanos(longest_tick(trip_us)) {
                return None;
            }
            let since = u128::from(span) * u128::from(part) / u128::from(whole);
            from_at + Duration::from_nanos(u64::try_from(since).unwrap_or(span))
        };
        let trip = now.saturating_since(passed_at);
        self.spacing_us = u32::try_from(nanos(trip) / 1_000).unwrap_or(u32::MAX) / MAX_NOTES as u32;
        Some(trip)
    }

    fn note(&mut self, value: u32, now: Instant) {
        let mut len = usize::from(self.len);
        let last = len.checked_sub(1).and_then(|last| self.at.get(last));
        let spacing = Duration::from_micros(self.spacing_us.into());
        if last.is_some_and(|last| now.saturating_since(*last) < spacing) {
            return;
        }
        if len == MAX_NOTES {
            // The round trip has grown: keep every second note, and double the distance.
            for kept in 1..MAX_NOTES / 2 {
                (self.at[kept], self.value[kept]) = (self.at[2 * kept], self.value[2 * kept]);
            }
            len = MAX_NOTES / 2;
            self.spacing_us = self.spacing_us.saturating_mul(2).max(1_000);
        }
        (self.at[len], self.value[len]) = (now, value);
        self.len = len as u8 + 1;
    }
}

fn longest_tick(trip_us: u32) -> Duration {
    Duration::from_micros((trip_us / MAX_NOTES as u32).into()).max(MIN_TICK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn at(us: u64) -> Instant {
        Instant::from_micros(1_000_000 + us)
    }

    /// Segments every `every_us` with a clock of `tick_us`, echoed in order after `trip_us`. Returns the number of
    /// samples, and the shortest and the longest one in microseconds.
    fn steady(base: u32, every_us: u64, tick_us: u64, trip_us: u64) -> (usize, u64, u64) {
        let mut stamps = Stamps::default();
        let value = |us: u64| base.wrapping_add((us / tick_us) as u32);
        let mut seen: Vec<u64> = Vec::new();
        for us in (0..4_000_000).step_by(every_us as usize) {
            stamps.on_segment(value(us), trip_us as u32, at(us));
            if let Some(sent) = us.checked_sub(trip_us) {
                let trip = stamps.on_echo(value(sent / every_us * every_us), trip_us as u32, at(us));
                seen.extend(trip.map(|trip| nanos(trip) / 1_000));
            }
        }
        (seen.len(), seen.iter().copied().min().unwrap_or(0), seen.iter().copied().max().unwrap_or(0))
    }

    #[test]
    fn round_trips_are_right_also_where_the_value_wraps_around() {
        for base in [0, u32::MAX - 2_000, i32::MAX as u32 - 2_000] {
            for trip_us in [3_000, 20_000, 100_000, 700_000] {
                let (n, least, most) = steady(base, 500, 1_000, trip_us);
                assert!(least >= trip_us && most <= trip_us + 1_000, "{trip_us}: {least} to {most}");
                let trips = (4_000_000 - trip_us) / trip_us;
                assert!(n as u64 >= 2 * trips && n as u64 <= 9 * trips + 8, "{n} in {trips} of {trip_us}");
            }
        }
    }

    #[test]
    fn a_clock_that_stands_still_gives_no_samples() {
        assert_eq!(steady(5, 500, 1_000_000, 20_000).0, 0, "ticks of a second");
        let (n, least, most) = steady(5, 500, 10_000, 200_000);
        assert!(n > 50 && least >= 200_000 && most <= 210_000, "ticks of 10 ms: {n}, {least} to {most}");
        // Single segments that are answered before the next one are unambiguous whatever the clock.
        let mut stamps = Stamps::default();
        for second in 0..10 {
            stamps.on_segment(second, 30_000, at(u64::from(second) * 1_000_000));
            let trip = stamps.on_echo(second, 30_000, at(u64::from(second) * 1_000_000 + 30_000));
            assert_eq!(trip, Some(Duration::from_millis(30)));
        }
        // A retransmission with the same value is ambiguous.
        stamps.on_segment(77, 30_000, at(20_000_000));
        stamps.on_segment(77, 30_000, at(20_250_000));
        assert_eq!(stamps.on_echo(77, 30_000, at(20_280_000)), None);
    }

    #[test]
    fn an_echo_removes_older_notes_and_values_between_notes_are_interpolated() {
        let mut stamps = Stamps::default();
        for value in [10, 12, 14, 11, 16] {
            stamps.on_segment(value, 0, at(u64::from(value) * 1_000));
        }
        let mut echo = |value, ms: u64| stamps.on_echo(value, 0, at(ms * 1_000)).map(|trip| trip.as_millis());
        assert_eq!(echo(17, 30), None, "never seen");
        assert_eq!(echo(13, 30), Some(17), "between 12 and 14");
        assert_eq!(echo(12, 30), None, "removed with it");
        assert_eq!(echo(11, 30), None, "overtaken");
        assert_eq!(echo(14, 34), Some(20));
        assert_eq!(echo(14, 35), None, "once only");
        assert_eq!(echo(16, 36), Some(20));
        // The notes are too far apart for their values, so some tick between them was long.
        let mut stamps = Stamps::default();
        stamps.on_segment(1, 0, at(0));
        stamps.on_segment(3, 0, at(900_000));
        assert_eq!(stamps.on_echo(2, 0, at(910_000)), None);
        // A different clock is accepted in the end.
        stamps.on_segment(0x8000_0000, 0, at(940_000));
        stamps.on_segment(5, 0, at(11_100_000));
        assert_eq!(stamps.on_echo(5, 0, at(11_130_000)), Some(Duration::from_millis(30)));
    }

    proptest! {
        #[test]
        fn a_trip_began_while_its_value_was_the_newest_or_between_its_neighbours(
            steps in proptest::collection::vec((0u32..6, 0u64..4_000, any::<bool>(), 0u32..40), 0..300), base: u32,
            trip_us in 0u32..100_000,
        ) {
            let mut stamps = Stamps::default();
            let mut first = vec![];
            let (mut now, mut value) = (at(0), base);
            for (by, wait, down, back) in steps {
                now += Duration::from_micros(wait);
                if down {
                    value = value.wrapping_add(by);
                    if first.last().is_none_or(|(last, _)| *last != value) {
                        first.push((value, now));
                    }
                    stamps.on_segment(value, trip_us, now);
                } else {
                    let echo = value.wrapping_sub(back);
                    let noted: Vec<u32> = stamps.value[..usize::from(stamps.len)].to_vec();
                    if let Some(trip) = stamps.on_echo(echo, trip_us, now) {
                        let (from, to) = (now - trip, |value: u32| first.iter().find(|(v, _)| *v == value).unwrap().1);
                        let below = *noted.iter().rfind(|value| !before(echo, **value)).unwrap();
                        let above = noted.iter().find(|value| before(echo, **value)).copied();
                        prop_assert!(to(below) <= from && from <= to(above.unwrap_or(stamps.newest)));
                        prop_assert!(echo != below || from == to(below));
                        prop_assert_eq!(stamps.on_echo(echo, trip_us, now), None);
                    }
                }
                prop_assert!(usize::from(stamps.len) <= MAX_NOTES);
            }
        }
    }
}
