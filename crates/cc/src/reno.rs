//! NewReno. RFC 5681 (slow start, congestion avoidance), RFC 6582 (one reduction per recovery), with appropriate byte counting
//! (RFC 3465, without its limit, as in Linux). Recovery itself is implemented by the sender.

use super::{Ack, CcConfig, CongestionController, after_idle, to_bytes};
use anabranch_element::time::{Duration, Instant};

/// A NewReno controller. Windows are kept in segments.
#[derive(Debug, Clone)]
pub struct Reno {
    config: CcConfig,
    state: State,
    before_reduction: Option<State>,
}

#[derive(Debug, Clone, Copy)]
struct State {
    cwnd: f64,
    ssthresh: f64,
}

impl Reno {
    /// A controller in slow start.
    #[must_use]
    pub fn new(config: CcConfig) -> Self {
        let config = CcConfig { mss_bytes: config.mss_bytes.max(1), ..config };
        let cwnd = f64::from(config.initial_window_segments.max(1));
        Self { config, state: State { cwnd, ssthresh: f64::INFINITY }, before_reduction: None }
    }
}

impl CongestionController for Reno {
    fn on_ack(&mut self, ack: &Ack) {
        if ack.in_recovery || !ack.cwnd_limited || ack.acked_bytes == 0 {
            return;
        }
        let s = &mut self.state;
        let mut segments = ack.acked_bytes as f64 / f64::from(self.config.mss_bytes);
        if s.cwnd < s.ssthresh {
            let grown = segments.min(s.ssthresh - s.cwnd);
            s.cwnd += grown;
            segments -= grown;
        }
        s.cwnd += segments / s.cwnd;
    }

    fn on_loss(&mut self, _: Instant, _: u64) {
        self.before_reduction = Some(self.state);
        self.state.ssthresh = (self.state.cwnd / 2.0).max(2.0);
        self.state.cwnd = self.state.ssthresh;
    }

    fn on_rto(&mut self, now: Instant, in_flight_bytes: u64, first: bool) {
        if first {
            self.on_loss(now, in_flight_bytes);
        }
        self.state.cwnd = 1.0;
    }

    fn on_spurious(&mut self, _: Instant) {
        if let Some(before_reduction) = self.before_reduction.take() {
            self.state = State {
                cwnd: before_reduction.cwnd.max(self.state.cwnd),
                ssthresh: before_reduction.ssthresh,
            };
        }
    }

    fn on_idle(&mut self, _: Instant, idle: Duration, rto: Duration) {
        let initial = f64::from(self.config.initial_window_segments);
        let (cwnd, ssthresh) = after_idle(self.state.cwnd, self.state.ssthresh, initial, idle, rto);
        self.state = State { cwnd, ssthresh };
    }

    fn cwnd_bytes(&self) -> u64 {
        to_bytes(self.state.cwnd, self.config.mss_bytes)
    }

    fn ssthresh_bytes(&self) -> u64 {
        to_bytes(self.state.ssthresh, self.config.mss_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1000;

    fn reno() -> Reno {
        Reno::new(CcConfig { mss_bytes: 1000, ..CcConfig::default() })
    }

    fn ack(segments: u64) -> Ack {
        Ack { acked_bytes: segments * MSS, cwnd_limited: true, ..Ack::default() }
    }

    #[test]
    fn slow_start_doubles_then_one_segment_per_round() {
        let mut c = reno();
        for _ in 0..10 {
            c.on_ack(&ack(1));
        }
        assert_eq!(c.cwnd_bytes(), 20 * MSS);
        c.on_loss(Instant::ZERO, 20 * MSS);
        assert_eq!((c.cwnd_bytes(), c.ssthresh_bytes()), (10 * MSS, 10 * MSS));
        for _ in 0..10 {
            c.on_ack(&ack(1));
        }
        let cwnd = c.cwnd_bytes();
        assert!((10_900..=11_000).contains(&cwnd), "{cwnd}");
    }

    #[test]
    fn rto_starts_again_from_one_segment_up_to_half() {
        let mut c = reno();
        c.on_rto(Instant::ZERO, 10 * MSS, true);
        c.on_rto(Instant::ZERO, MSS, false);
        assert_eq!((c.cwnd_bytes(), c.ssthresh_bytes()), (MSS, 5 * MSS));
        assert!(c.in_slow_start());
        c.on_ack(&ack(4));
        assert_eq!(c.cwnd_bytes(), 5 * MSS);
        assert!(!c.in_slow_start());
        c.on_spurious(Instant::ZERO);
        assert_eq!((c.cwnd_bytes(), c.ssthresh_bytes()), (10 * MSS, u64::MAX));
    }

    #[test]
    fn no_growth_without_need_or_in_recovery() {
        let mut c = reno();
        c.on_ack(&Ack { cwnd_limited: false, ..ack(5) });
        c.on_ack(&Ack { in_recovery: true, ..ack(5) });
        assert_eq!(c.cwnd_bytes(), 10 * MSS);
    }
}
