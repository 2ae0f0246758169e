//! Loss without congestion of one path in the sending direction: packets missing between probes that met no
//! queue.
//!
//! Three kinds of samples are taken of the same packets. The last eight of each kind are kept:
//!
//! ```text
//!   wild      many packets     mean random loss, for comparing paths
//!   short     few packets      steady loss, for leaving a path soon
//!   lasting   a longer time    lasting loss, for flows that cannot return to a path soon
//! ```

/// A sample of wild loss has at least this many packets and the first time, or at least the second time. A
/// queue that overflows between two probes looks like wild loss, but only briefly, so [`WILD_SAMPLES`] of the
/// last eight samples must have loss.
const WILD_PACKETS: u32 = 256;
const WILD_NS: (u64, u64) = (100_000_000, 10_000_000_000);
const WILD_SAMPLES: usize = 3;
/// A short sample has the first number of packets, or the second after [`LOSSY_NS`].
const LOSSY_PACKETS: (u32, u32) = (32, 8);
const LOSSY_NS: u64 = 250_000_000;
/// A sample of lasting loss has the first number of packets and the first time, or the second number and the
/// second time. A queue that overflows for a round trip or two affects one or two of eight samples.
const LASTING_PACKETS: (u32, u32) = (32, 8);
const LASTING_NS: (u64, u64) = (250_000_000, 1_000_000_000);
/// Above this steady loss, in percent, losses next to a queue do not indicate congestion.
const LOSSY_PERCENT: u8 = 3;

/// Packets counted since some time, by the peer's clock.
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    sent: u32,
    /// Signed: a packet that overtakes a probe counts as lost before it, and as found after it.
    lost: i32,
    since_ns: u64,
}

impl Sample {
    fn add(&mut self, sent: u32, lost: i32) {
        (self.sent, self.lost) = (self.sent.saturating_add(sent), self.lost.saturating_add(lost));
    }

    const fn age_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.since_ns)
    }

    /// The loss in parts per million. Begins the next sample.
    fn take_ppm(&mut self, now_ns: u64) -> u32 {
        let lost = u64::from(self.lost.max(0).unsigned_abs());
        let ppm = lost * 1_000_000 / u64::from(self.sent.max(1));
        *self = Self { sent: 0, lost: 0, since_ns: now_ns };
        u32::try_from(ppm).unwrap_or(u32::MAX)
    }
}

/// Recent losses of one path.
#[derive(Debug, Clone, Default)]
pub(super) struct Losses {
    /// The last samples of wild loss, in parts per million, and their evaluation.
    wild_samples: [u32; 8],
    wild_ppm: u32,
    wild: Sample,
    /// The last short samples, in percent.
    short_percent: [u8; 8],
    short: Sample,
    /// The last samples of lasting loss, in hundredths of a percent.
    lasting: [u16; 8],
    long: Sample,
}

impl Losses {
    /// Of `sent` packets until `at_ns`, by the peer's clock, `lost` were lost.
    pub(super) fn add(&mut self, sent: u32, lost: i32, at_ns: u64) {
        self.wild.add(sent, lost);
        self.short.add(sent, lost);
        let (enough, time) = (self.wild.sent >= WILD_PACKETS, self.wild.age_ns(at_ns));
        if self.wild.sent > 0 && (enough && time >= WILD_NS.0 || time >= WILD_NS.1) {
            self.wild_samples.rotate_left(1);
            self.wild_samples[7] = self.wild.take_ppm(at_ns);
            self.wild_ppm = mean_ppm(&self.wild_samples);
        }
        let old = self.short.age_ns(at_ns) >= LOSSY_NS;
        if self.short.sent >= if old { LOSSY_PACKETS.1 } else { LOSSY_PACKETS.0 } {
            self.short_percent.rotate_left(1);
            self.short_percent[7] = u8::try_from(self.short.take_ppm(at_ns) / 10_000).unwrap_or(100);
        }
        self.long.add(sent, lost);
        let age_ns = self.long.age_ns(at_ns);
        let enough = |packets: u32, ns: u64| self.long.sent >= packets && age_ns >= ns;
        if enough(LASTING_PACKETS.0, LASTING_NS.0) || enough(LASTING_PACKETS.1, LASTING_NS.1) {
            self.lasting.rotate_left(1);
            self.lasting[7] = u16::try_from(self.long.take_ppm(at_ns) / 100).unwrap_or(u16::MAX).min(10_000);
        }
    }

    /// The path was down: complete samples remain valid.
    pub(super) fn interrupted(&self) -> Self {
        Self {
            wild_samples: self.wild_samples,
            wild_ppm: self.wild_ppm,
            short_percent: self.short_percent,
            lasting: self.lasting,
            ..Self::default()
        }
    }

    /// The mean of the wild samples, in parts per million; 0 if too few of them have loss.
    pub(super) fn wild_ppm(&self) -> u32 {
        self.wild_ppm
    }

    /// Whether packets were recently lost without a queue.
    pub(super) fn has_lost(&self) -> bool {
        self.wild.lost > 0 || self.wild_samples.iter().any(|ppm| *ppm > 0)
    }

    /// Whether losses next to a queue do not indicate congestion.
    pub(super) fn is_lossy(&self) -> bool {
        self.steady_percent() > LOSSY_PERCENT
    }

    /// The loss that half of the samples of the last two seconds had or exceeded, in hundredths of a percent.
    pub(super) fn lasting(&self) -> u16 {
        had_by_half(self.lasting)
    }

    /// The loss that half of the last short samples had or exceeded, in percent.
    pub(super) fn steady_percent(&self) -> u8 {
        had_by_half(self.short_percent)
    }
}

/// The value that half of the samples had or exceeded.
fn had_by_half<T: Ord + Copy>(mut samples: [T; 8]) -> T {
    samples.sort_unstable();
    samples[4]
}

/// The mean of the samples, if enough of them have loss.
fn mean_ppm(samples: &[u32; 8]) -> u32 {
    let lossy = samples.iter().filter(|ppm| **ppm > 0).count();
    let sum: u64 = samples.iter().map(|ppm| u64::from(*ppm)).sum();
    if lossy < WILD_SAMPLES { 0 } else { u32::try_from(sum / samples.len() as u64).unwrap_or(u32::MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_overtake_probes_do_not_count_as_loss() {
        let mut sample = Sample::default();
        for i in 0..256 {
            sample.add(1, if i % 2 == 0 { 1 } else { -1 });
        }
        assert_eq!(sample.take_ppm(0), 0);
        sample.add(256, 1);
        assert_eq!(sample.take_ppm(0), 3906);
        sample.add(256, -1);
        assert_eq!(sample.take_ppm(0), 0);
    }
}
