//! CUBIC whose slow start follows the state of the bottleneck's queue. Paper §VI-A, Eq. 1.
//!
//! ```text
//!   cwnd += available_queue_capacity · increment / (arrival_rate · flow_count)      on every ACK
//! ```
//!
//! The paper specifies neither units nor a bound: both are in [`View`](super::int::View) and
//! [`IntConfig`](super::int::IntConfig). While Eq. 1 applies, HyStart is disabled: the queue is measured, not estimated. If the
//! path does not report enough, slow start is CUBIC's. With a queue much smaller than the bandwidth-delay product, Eq. 1 is
//! slower than doubling, because it does not account for the empty pipe; the paper's law is kept as it is.

use super::int::{CubicWithTelemetry, GROWTH_UNIT, View};
use super::{Ack, CcConfig, CongestionController};
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ioam::Feedback;

/// The controller.
#[derive(Debug, Clone)]
pub struct IntCubicSs {
    inner: CubicWithTelemetry,
}

impl IntCubicSs {
    /// A controller in slow start.
    #[must_use]
    pub fn new(config: CcConfig) -> Self {
        Self { inner: CubicWithTelemetry::new(config) }
    }

    /// Segments to add for `acked` acknowledged ones, if Eq. 1 applies.
    fn growth(&self, acked: f64) -> Option<f64> {
        let CubicWithTelemetry { view, config, srtt_us, mss_bytes, cubic, .. } = &self.inner;
        let max_segments = View::ceiling_window(config.ceiling_bps, *srtt_us, *mss_bytes) as f64;
        if !view.has_fresh_rates(*srtt_us, config.stale_rtts) || cubic.segments() >= max_segments {
            return None;
        }
        view.slow_start_growth(*srtt_us, config.increment, config.growth_cap)
            .map(|growth| (acked * growth as f64 / GROWTH_UNIT as f64).min(max_segments - cubic.segments()))
    }
}

impl CongestionController for IntCubicSs {
    const READS_REPORTS: bool = true;

    fn on_ack(&mut self, ack: &Ack) {
        self.inner.on_ack(ack);
        let grows = !ack.in_recovery && ack.cwnd_limited && ack.acked_bytes > 0;
        let acked = ack.acked_bytes as f64 / self.inner.mss_bytes as f64;
        match self.growth(acked).filter(|_| grows && self.in_slow_start()) {
            Some(segments) => self.inner.cubic.add_in_slow_start(segments),
            None => self.inner.cubic.on_ack(ack),
        }
    }

    fn on_loss(&mut self, now: Instant, in_flight_bytes: u64) {
        self.inner.cubic.on_loss(now, in_flight_bytes);
    }

    fn on_ecn(&mut self, now: Instant, in_flight_bytes: u64) {
        self.inner.cubic.on_ecn(now, in_flight_bytes);
    }

    fn on_rto(&mut self, now: Instant, in_flight_bytes: u64, first: bool) {
        self.inner.cubic.on_rto(now, in_flight_bytes, first);
    }

    fn on_spurious(&mut self, now: Instant) {
        self.inner.cubic.on_spurious(now);
    }

    fn on_idle(&mut self, now: Instant, idle: Duration, rto: Duration) {
        self.inner.cubic.on_idle(now, idle, rto);
    }

    fn on_report(&mut self, report: &Feedback, now: Instant) {
        self.inner.on_report(report, now);
    }

    fn cwnd_bytes(&self) -> u64 {
        self.inner.cubic.cwnd_bytes()
    }

    fn ssthresh_bytes(&self) -> u64 {
        self.inner.cubic.ssthresh_bytes()
    }
}
