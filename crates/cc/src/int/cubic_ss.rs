//! CUBIC whose slow start follows the queue ahead. Paper §VI-A, Eq. 1.
//!
//! ```text
//!   cwnd += available_queue_capacity · increment / (arrival_rate · flow_count)      on every ACK
//! ```
//!
//! The paper gives no units and no bound: both are in [`super::View`] and [`super::IntConfig`]. While Eq. 1 is in
//! force HyStart is not: the queue is seen, not guessed at. Where the path does not tell enough, or no
//! longer, slow start is CUBIC's. With a queue much smaller than the bandwidth-delay product Eq. 1 is slower
//! than doubling, for it knows nothing of the empty pipe; that is the paper's law and stays so.

use super::super::{Ack, CcConfig, CongestionController};
use super::{GROWTH_UNIT, Judge, View};
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ioam::Feedback;

/// See the top of this file.
#[derive(Debug, Clone)]
pub struct IntCubicSs {
    judge: Judge,
}

impl IntCubicSs {
    /// A controller in slow start.
    #[must_use]
    pub fn new(config: CcConfig) -> Self {
        Self { judge: Judge::new(config) }
    }

    /// Segments to add for `acked` acknowledged ones, if Eq. 1 is in force.
    fn growth(&self, acked: f64) -> Option<f64> {
        let Judge { view, config, srtt_us, mss_bytes, cubic } = &self.judge;
        let most = View::ceiling_window(config.ceiling_bps, *srtt_us, *mss_bytes) as f64;
        if !view.detailed(*srtt_us, config.stale_rtts) || cubic.segments() >= most {
            return None;
        }
        view.slow_start_growth(*srtt_us, config.increment, config.growth_cap)
            .map(|growth| (acked * growth as f64 / GROWTH_UNIT as f64).min(most - cubic.segments()))
    }
}

impl CongestionController for IntCubicSs {
    fn on_ack(&mut self, ack: &Ack) {
        self.judge.on_ack(ack);
        let grows = !ack.in_recovery && ack.cwnd_limited && ack.acked_bytes > 0;
        let acked = ack.acked_bytes as f64 / self.judge.mss_bytes as f64;
        match self.growth(acked).filter(|_| grows && self.in_slow_start()) {
            Some(segments) => self.judge.cubic.grow(segments),
            None => self.judge.cubic.on_ack(ack),
        }
    }

    fn on_loss(&mut self, now: Instant, in_flight_bytes: u64) {
        self.judge.cubic.on_loss(now, in_flight_bytes);
    }

    fn on_ecn(&mut self, now: Instant, in_flight_bytes: u64) {
        self.judge.cubic.on_ecn(now, in_flight_bytes);
    }

    fn on_rto(&mut self, now: Instant, in_flight_bytes: u64, first: bool) {
        self.judge.cubic.on_rto(now, in_flight_bytes, first);
    }

    fn on_spurious(&mut self, now: Instant) {
        self.judge.cubic.on_spurious(now);
    }

    fn on_idle(&mut self, now: Instant, idle: Duration, rto: Duration) {
        self.judge.cubic.on_idle(now, idle, rto);
    }

    fn on_report(&mut self, report: &Feedback, now: Instant) {
        self.judge.on_report(report, now);
    }

    fn cwnd_bytes(&self) -> u64 {
        self.judge.cubic.cwnd_bytes()
    }

    fn ssthresh_bytes(&self) -> u64 {
        self.judge.cubic.ssthresh_bytes()
    }
}
