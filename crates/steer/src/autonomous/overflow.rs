//! Harm control: whether packets may overflow to a path with a later arrival, judged by the rate while they do.
//!
//! The total rate is compared with the capacity of the homes (see [the law](super)). Harm first makes overflow
//! cautious, and then pauses it for a while.

use super::super::Pause;
use super::GROWTH_PERCENT;
use crate::view::LoadView;
use anabranch_element::time::{Duration, Instant};

/// Percentage of the drop level from which on packets overflow: normal state, cautious state. In the next state,
/// overflow is paused.
const OVERFLOW_PERCENT: [u32; 2] = [50, 100];
/// A rate below this is harm, and one above [`GAIN_PERCENT`] is gain, in percent of the capacity of the homes.
const HARM_PERCENT: u64 = 95;
const GAIN_PERCENT: u64 = 103;
/// Consecutive periods of harm that cause the next state, and of gain that reset the pause to its first value.
const HARM_PERIODS: u8 = 2;
const GAIN_PERIODS: u8 = 8;
/// First and longest pause after harm.
const PAUSE: (Duration, Duration) = (Duration::from_secs(16), Duration::from_secs(128));

/// The state of harm control.
#[derive(Debug, Clone)]
pub(super) struct Overflow {
    /// Index into [`OVERFLOW_PERCENT`]; beyond its end: paused.
    pub(super) caution: u8,
    pub(super) harm: u8,
    pub(super) gain: u8,
    /// Whether packets overflowed in the current period.
    pub(super) used: bool,
    /// Highest rate of a period since packets overflow, and in the period before, bit/s.
    pub(super) sent_bps: u64,
    pub(super) retry_at: Instant,
    pub(super) pause: Duration,
    /// Rate sent when the last pause began, and capacity of the homes, in bit/s.
    pub(super) harmed: (u64, u64),
    /// Number of pauses.
    pub(super) pauses: u64,
}

impl Default for Overflow {
    fn default() -> Self {
        Self {
            caution: 0,
            harm: 0,
            gain: 0,
            used: false,
            sent_bps: 0,
            retry_at: Instant::ZERO,
            pause: PAUSE.0,
            harmed: (0, 0),
            pauses: 0,
        }
    }
}

impl Overflow {
    /// Overflow is never allowed, because the far end does not restore order.
    pub(super) fn never() -> Self {
        Self { caution: OVERFLOW_PERCENT.len() as u8, retry_at: Instant::MAX, ..Self::default() }
    }

    /// See [`Self::never`].
    pub(super) fn is_never(&self) -> bool {
        self.retry_at == Instant::MAX
    }

    /// Whether the queue of a home with this path model is long enough for overflow.
    pub(super) fn begins(&self, home: &LoadView) -> bool {
        if home.drop_us == u32::MAX {
            return self.caution == 0;
        }
        let percent = OVERFLOW_PERCENT.get(usize::from(self.caution));
        percent.is_some_and(|percent| {
            u64::from(home.queue_us) * 100 >= u64::from(home.drop_us) * u64::from(*percent)
        })
    }

    fn has_ended(&self) -> bool {
        usize::from(self.caution) == OVERFLOW_PERCENT.len()
    }

    pub(super) fn paused(&self, now: Instant) -> Option<Pause> {
        let (until, (sent_bps, capacity_bps)) = (self.retry_at, self.harmed);
        (self.has_ended() && now < until).then_some(Pause { until, sent_bps, capacity_bps })
    }

    /// Evaluates a completed period with the rate `sent_bps`, and homes with a capacity of `capacity_bps`.
    pub(super) fn review(&mut self, sent_bps: u64, capacity_bps: u64, now: Instant) {
        if !core::mem::take(&mut self.used) {
            self.sent_bps = sent_bps;
            if self.caution > 0 && now >= self.retry_at {
                self.caution -= 1;
                self.retry_at = now + self.pause;
            }
            return;
        }
        let grows = sent_bps * 100 > self.sent_bps * GROWTH_PERCENT;
        self.sent_bps = self.sent_bps.max(sent_bps);
        if sent_bps * 100 < capacity_bps * HARM_PERCENT {
            (self.harm, self.gain) = (self.harm + u8::from(!grows), 0);
        } else {
            self.harm = 0;
            self.gain = if sent_bps * 100 > capacity_bps * GAIN_PERCENT { self.gain + 1 } else { 0 };
        }
        if self.harm >= HARM_PERIODS {
            self.harm = 0;
            self.caution = (self.caution + 1).min(OVERFLOW_PERCENT.len() as u8);
            if self.has_ended() {
                (self.harmed, self.pauses) = ((sent_bps, capacity_bps), self.pauses + 1);
            }
            self.retry_at = now + self.pause;
            self.pause = (self.pause * 2).min(PAUSE.1);
        }
        if self.gain >= GAIN_PERIODS {
            (self.gain, self.pause) = (0, PAUSE.0);
        }
    }
}
