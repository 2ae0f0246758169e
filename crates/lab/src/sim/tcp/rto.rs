//! Retransmission timeout: RFC 6298 with Linux's bounds.
//!
//! `RTO = SRTT + max(4·RTTVAR, 200 ms)`, doubled per timeout up to 120 s; 1 s before the first sample. The
//! 200 ms are a floor of the variance term, as in Linux, so the RTO is at least SRTT + 200 ms.

use anabranch_core::time::{Duration, Instant};

/// Floor of the variance term.
pub const RTO_MIN: Duration = Duration::from_millis(200);
/// Largest timeout.
pub const RTO_MAX: Duration = Duration::from_secs(120);
/// Timeout before the first RTT sample (RFC 6298 §2.1).
pub const RTO_INITIAL: Duration = Duration::from_secs(1);
/// How long a minimum of the RTT counts, as in Linux.
const MIN_RTT_WINDOW: Duration = Duration::from_secs(300);

/// RTT estimate and timeout of a connection.
#[derive(Debug, Clone, Default)]
pub struct RttEstimator {
    srtt: Option<Duration>,
    rttvar: Duration,
    min: Option<(Duration, Instant)>,
    latest: Duration,
    backoff: u32,
}

impl RttEstimator {
    /// Takes in a sample, and ends back-off.
    pub fn sample(&mut self, rtt: Duration, now: Instant) {
        self.latest = rtt;
        self.backoff = 0;
        if self.min.is_none_or(|(min, at)| rtt <= min || now.saturating_since(at) > MIN_RTT_WINDOW) {
            self.min = Some((rtt, now));
        }
        match self.srtt {
            None => {
                self.srtt = Some(rtt);
                self.rttvar = rtt / 2;
            }
            Some(srtt) => {
                self.rttvar = self.rttvar * 3 / 4 + srtt.abs_diff(rtt) / 4;
                self.srtt = Some(srtt * 7 / 8 + rtt / 8);
            }
        }
    }

    /// The timeout with back-off.
    pub fn rto(&self) -> Duration {
        let base = self.srtt.map_or(RTO_INITIAL, |srtt| srtt + (self.rttvar * 4).max(RTO_MIN));
        base.saturating_mul(1 << self.backoff.min(16)).min(RTO_MAX)
    }

    /// A timeout happened: the next one is twice as long.
    pub fn back_off(&mut self) {
        self.backoff += 1;
    }

    /// Smoothed RTT; zero before the first sample.
    pub fn srtt(&self) -> Duration {
        self.srtt.unwrap_or_default()
    }

    /// Whether there is a sample.
    pub fn has_sample(&self) -> bool {
        self.srtt.is_some()
    }

    /// The smallest RTT of the last five minutes; zero before the first sample.
    pub fn min(&self) -> Duration {
        self.min.map_or(Duration::ZERO, |(min, _)| min)
    }

    /// The last sample.
    pub fn latest(&self) -> Duration {
        self.latest
    }
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
        e.sample(ms(100), Instant::ZERO);
        assert_eq!((e.srtt(), e.rto()), (ms(100), ms(300)));
        e.sample(ms(180), Instant::ZERO);
        // RTTVAR = 3/4·50 + 1/4·80 = 57.5; SRTT = 7/8·100 + 1/8·180 = 110.
        assert_eq!((e.srtt(), e.rto()), (ms(110), ms(340)));
        assert_eq!((e.min(), e.latest()), (ms(100), ms(180)));
    }

    #[test]
    fn back_off_doubles_to_a_bound_and_ends_with_a_sample() {
        let mut e = RttEstimator::default();
        e.sample(ms(20), Instant::ZERO);
        let mut seen = Vec::new();
        for _ in 0..12 {
            seen.push(e.rto().as_millis());
            e.back_off();
        }
        assert_eq!(seen[..4], [220, 440, 880, 1760]);
        assert_eq!(seen[11], 120_000);
        e.sample(ms(20), Instant::ZERO);
        assert_eq!(e.rto(), ms(220));
    }

    #[test]
    fn the_minimum_is_forgotten_after_five_minutes() {
        let mut e = RttEstimator::default();
        e.sample(ms(10), Instant::ZERO);
        e.sample(ms(30), Instant::from_secs(200));
        assert_eq!(e.min(), ms(10));
        e.sample(ms(30), Instant::from_secs(301));
        assert_eq!(e.min(), ms(30));
    }
}
