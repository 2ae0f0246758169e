//! Loss and delivery rate of one direction, from the counters both ends exchange.
//!
//! Counters are compared modulo 2³². A difference that jumps by more than [`MAX_STEP`], or further back
//! than [`LATE`], is a counter that started again: the meter takes the new values as its base and
//! measures on from there. A smaller step back is a probe that was overtaken by a newer one, and is left
//! out (should it be a young counter that started again, nothing is measured until it has caught up).

use crate::time::Instant;

/// Packets between two probes beyond which a difference is not believed.
const MAX_STEP: u32 = 1 << 24;
/// Packets a late probe may lie behind the newest.
const LATE: u32 = 1 << 16;
/// An interval closes after so many packets ...
const INTERVAL_PACKETS: u32 = 32;
/// ... or after this time, whichever is first.
const INTERVAL_MS: i64 = 1000;
const TICK_MS: u64 = 16;
/// A sample over `n` packets weighs `n / (n + 512)`: about the last 500 packets count. Packets that
/// overtake a probe shift a sample by `d / n`, and so the result by `d / (n + 512)` only. A young meter
/// has fewer packets to remember, but never trusts less than this few.
const MEMORY_PACKETS: u8 = 255; // in units of two
const MEMORY_PACKETS_YOUNG: u8 = 32;
/// And one over `t` weighs at least `t / 30 s`, so that a path without traffic forgets too.
const MEMORY_MS: i64 = 30_000;

/// Loss of one direction.
///
/// The smoothed value is kept signed: packets that overtake a probe make one interval read too high and
/// the next one too low by the same count, and the two must cancel.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LossMeter {
    sent: u32,
    got: u32,
    /// In units of [`TICK_MS`], to fit.
    since: u16,
    lost: u32,
    smoothed_ppm: i32,
    /// Packets seen, in units of two, up to the memory.
    seen: u8,
    flags: u8,
}

const BASED: u8 = 1;
const SKIP: u8 = 2;

impl LossMeter {
    /// `sent` packets had left and `got` of them arrived, since the start.
    pub(super) fn update(&mut self, sent: u32, got: u32, now: Instant) {
        let now = (now.as_millis() / TICK_MS) as u16;
        let (sent_step, got_step) = (sent.wrapping_sub(self.sent), got.wrapping_sub(self.got));
        let late = self.sent.wrapping_sub(sent) <= LATE && sent_step != 0;
        let based = self.flags & BASED != 0;
        if based && late {
            return;
        }
        if !based || sent_step > MAX_STEP || got_step > MAX_STEP {
            (self.sent, self.got, self.since) = (sent, got, now);
            self.flags |= BASED;
            return;
        }
        let elapsed = i64::from(now.wrapping_sub(self.since)) * TICK_MS as i64;
        if sent_step == 0 || (sent_step < INTERVAL_PACKETS && elapsed < INTERVAL_MS) {
            return;
        }
        let missing = i64::from(sent_step) - i64::from(got_step);
        self.lost = u32::try_from((i64::from(self.lost) + missing).max(0)).unwrap_or(u32::MAX);
        if self.flags & SKIP != 0 {
            self.flags &= !SKIP;
        } else {
            let n = i64::from(sent_step);
            let memory = 2 * i64::from(self.seen.max(MEMORY_PACKETS_YOUNG));
            self.seen = u8::try_from(i64::from(self.seen) + n / 2).unwrap_or(MEMORY_PACKETS);
            let sample = (missing * 1_000_000 / n).clamp(-1_000_000, 1_000_000);
            let weight = (n * 4096 / (n + memory) + elapsed * 4096 / MEMORY_MS).min(4096);
            let old = i64::from(self.smoothed_ppm);
            // Both terms are within ±10⁶, so the sum fits.
            self.smoothed_ppm = (old + (sample - old) * weight / 4096) as i32;
        }
        (self.sent, self.got, self.since) = (sent, got, now);
    }

    /// The interval now open spans an outage: its losses count in the total, not in the smoothed value.
    pub(super) fn skip_interval(&mut self) {
        self.flags |= SKIP;
    }

    /// Smoothed loss in parts per million, 0 to 1 000 000.
    pub(super) fn ppm(&self) -> u32 {
        self.smoothed_ppm.clamp(0, 1_000_000) as u32
    }

    /// Packets lost so far.
    pub(super) fn lost(&self) -> u32 {
        self.lost
    }
}

/// Shortest interval a rate is computed over.
const RATE_INTERVAL_US: u32 = 100_000;
/// A sample over `t` weighs `t / (t + 300 ms)`.
const RATE_MEMORY_US: u64 = 300_000;

/// Rate at which the far end receives, from its byte counter and its own clock.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RateMeter {
    bytes: u32,
    at_us: u32,
    /// Kilobit per second, to fit: up to 4 Tbit/s.
    kbps: u32,
}

impl RateMeter {
    /// `bytes` had arrived when the far end's clock showed `at_us` (both modulo 2³²).
    pub(super) fn update(&mut self, bytes: u32, at_us: u32) {
        let (step, elapsed) = (bytes.wrapping_sub(self.bytes), at_us.wrapping_sub(self.at_us));
        let unbased = (self.bytes, self.at_us) == (0, 0);
        if unbased || step > 1 << 31 || elapsed > 1 << 31 {
            (self.bytes, self.at_us) = (bytes, at_us);
            return;
        }
        if elapsed < RATE_INTERVAL_US {
            return;
        }
        let sample = u64::from(step) * 8_000 / u64::from(elapsed);
        let (old, t) = (u64::from(self.kbps), u64::from(elapsed));
        let mixed = (old * RATE_MEMORY_US + sample * t) / (RATE_MEMORY_US + t);
        self.kbps = u32::try_from(mixed).unwrap_or(u32::MAX);
        (self.bytes, self.at_us) = (bytes, at_us);
    }

    pub(super) fn bps(&self) -> u64 {
        u64::from(self.kbps) * 1000
    }

    /// Starts afresh: nothing is delivered over a path that is down.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(v: u32) -> Instant {
        Instant::from_millis(v.into())
    }

    #[test]
    fn a_steady_loss_is_found_and_summed() {
        let mut m = LossMeter::default();
        for i in 0..200u32 {
            m.update(i * 100, i * 95, ms(i * 20));
        }
        assert_eq!(m.lost(), 199 * 5);
        assert!((49_000..=51_000).contains(&m.ppm()), "{}", m.ppm());
    }

    #[test]
    fn reordering_around_the_probe_cancels() {
        let mut m = LossMeter::default();
        for i in 1..400u32 {
            // Every second time ten packets are still on their way when the probe arrives.
            m.update(i * 100, i * 100 - if i % 2 == 0 { 10 } else { 0 }, ms(i * 20));
        }
        assert_eq!(m.lost(), 0);
        assert!(m.ppm() < 60_000, "{}", m.ppm());
        for i in 400..500u32 {
            m.update(i * 100, i * 100, ms(i * 20));
        }
        assert_eq!(m.ppm(), 0);
    }

    #[test]
    fn a_counter_that_starts_again_is_a_new_base() {
        let mut m = LossMeter::default();
        m.update(3_000_000_000, 3_000_000_000, ms(0));
        m.update(3_000_000_100, 3_000_000_100, ms(20));
        m.update(100, 100, ms(40));
        m.update(200, 190, ms(60));
        assert_eq!(m.lost(), 10);
        assert!(m.ppm() < 60_000);
        // Across 2³² the counters simply go on.
        let mut m = LossMeter::default();
        m.update(u32::MAX - 49, u32::MAX - 49, ms(0));
        m.update(50, 40, ms(20));
        assert_eq!(m.lost(), 10);
    }

    #[test]
    fn an_outage_counts_in_the_total_only() {
        let mut m = LossMeter::default();
        m.update(0, 0, ms(0));
        m.update(100, 100, ms(20));
        m.skip_interval();
        m.update(200, 100, ms(5000));
        assert_eq!((m.lost(), m.ppm()), (100, 0));
    }

    #[test]
    fn the_rate_is_that_of_the_far_end() {
        let mut m = RateMeter::default();
        for i in 0..100u32 {
            m.update((i * 100_000).wrapping_sub(1_000_000), (i * 100_000).wrapping_sub(5_000_000));
        }
        assert!((7_900_000..=8_000_000).contains(&m.bps()), "{}", m.bps());
    }
}
