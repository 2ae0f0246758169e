//! Retransmission timeout: RFC 6298 with Linux's bounds.
//!
//! `RTO = SRTT + max(4·RTTVAR, 200 ms)`, doubled per timeout up to 120 s; 1 s before the first sample. The 200 ms are a lower
//! bound of the variance term, as in Linux, so the RTO is at least SRTT + 200 ms.

use anabranch_element::time::{Duration, Instant, nanos};

/// Lower bound of the variance term.
pub const RTO_MIN: Duration = Duration::from_millis(200);
/// Maximum timeout.
pub const RTO_MAX: Duration = Duration::from_secs(120);
/// Timeout before the first RTT sample (RFC 6298 §2.1).
pub const RTO_INITIAL: Duration = Duration::from_secs(1);
/// Window of the minimum RTT, as in Linux.
const MIN_RTT_WINDOW: Duration = Duration::from_secs(300);

/// RTT estimate and timeout of a connection.
#[derive(Debug, Clone, Default)]
pub struct RttEstimator {
    /// Nanoseconds, the unit of the calculation at every ACK.
    srtt_ns: Option<u64>,
    rttvar_ns: u64,
    min: Option<(Duration, Instant)>,
    latest: Duration,
    backoff: u32,
}

impl RttEstimator {
    /// Adds a sample and ends back-off. `shortest`: RTT of the last segment acknowledged with it, whose acknowledgment was not
    /// delayed.
    #[inline]
    pub fn sample(&mut self, rtt: Duration, shortest: Duration, now: Instant) {
        self.latest = rtt;
        self.backoff = 0;
        if self.min.is_none_or(|(min, at)| shortest <= min || now.saturating_since(at) > MIN_RTT_WINDOW) {
            self.min = Some((shortest, now));
        }
        let rtt_ns = nanos(rtt);
        match self.srtt_ns {
            None => {
                self.srtt_ns = Some(rtt_ns);
                self.rttvar_ns = rtt_ns / 2;
            }
            Some(srtt_ns) => {
                self.rttvar_ns = self.rttvar_ns * 3 / 4 + srtt_ns.abs_diff(rtt_ns) / 4;
                self.srtt_ns = Some(smoothed_ns(srtt_ns, rtt_ns));
            }
        }
    }

    /// The timeout, back-off included.
    #[inline]
    pub fn rto(&self) -> Duration {
        const MIN_NS: u64 = RTO_MIN.as_nanos() as u64;
        const MAX_NS: u64 = RTO_MAX.as_nanos() as u64;
        const INITIAL_NS: u64 = RTO_INITIAL.as_nanos() as u64;
        let base_ns = self.srtt_ns.map_or(INITIAL_NS, |srtt_ns| srtt_ns + (self.rttvar_ns * 4).max(MIN_NS));
        Duration::from_nanos(base_ns.saturating_mul(1 << self.backoff.min(16)).min(MAX_NS))
    }

    /// A timeout occurred: doubles the next one.
    pub fn back_off(&mut self) {
        self.backoff += 1;
    }

    /// Smoothed RTT; zero before the first sample.
    #[inline]
    pub fn srtt(&self) -> Duration {
        Duration::from_nanos(self.srtt_ns.unwrap_or_default())
    }

    /// Whether there is a sample.
    #[inline]
    pub fn has_sample(&self) -> bool {
        self.srtt_ns.is_some()
    }

    /// The minimum RTT of the last five minutes; zero before the first sample.
    #[inline]
    pub fn min(&self) -> Duration {
        self.min.map_or(Duration::ZERO, |(min, _)| min)
    }

    /// The latest sample.
    pub fn latest(&self) -> Duration {
        self.latest
    }
}

/// An RTT smoothed with a weight of 1/8 (RFC 6298 §2).
#[inline]
pub fn smoothed_ns(smoothed_ns: u64, sample_ns: u64) -> u64 {
    smoothed_ns * 7 / 8 + sample_ns / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn follows_rfc_6298() {
        let mut e = RttEstimator::default();
        assert_eq!(e.rto(), ms(1000));
        e.sample(ms(100), ms(100), Instant::ZERO);
        assert_eq!((e.srtt(), e.rto()), (ms(100), ms(300)));
        e.sample(ms(180), ms(180), Instant::ZERO);
        // RTTVAR = 3/4·50 + 1/4·80 = 57.5; SRTT = 7/8·100 + 1/8·180 = 110.
        assert_eq!((e.srtt(), e.rto()), (ms(110), ms(340)));
        assert_eq!((e.min(), e.latest()), (ms(100), ms(180)));
    }

    #[test]
    fn back_off_doubles_to_a_bound_and_ends_with_a_sample() {
        let mut e = RttEstimator::default();
        e.sample(ms(20), ms(20), Instant::ZERO);
        let mut seen = Vec::new();
        for _ in 0..12 {
            seen.push(e.rto().as_millis());
            e.back_off();
        }
        assert_eq!(seen[..4], [220, 440, 880, 1760]);
        assert_eq!(seen[11], 120_000);
        e.sample(ms(20), ms(20), Instant::ZERO);
        assert_eq!(e.rto(), ms(220));
    }

    #[test]
    fn the_minimum_is_forgotten_after_five_minutes() {
        let mut e = RttEstimator::default();
        e.sample(ms(10), ms(10), Instant::ZERO);
        e.sample(ms(30), ms(30), Instant::from_secs(200));
        assert_eq!(e.min(), ms(10));
        e.sample(ms(40), ms(30), Instant::from_secs(301));
        assert_eq!(e.min(), ms(30), "of the last segment that was acknowledged");
    }
}
