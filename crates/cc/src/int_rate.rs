//! Paced at the bottleneck's fair share. Ours; the paper leaves fairness and flow control open (§VII).
//!
//! ```text
//!            reports with a link rate                     reports stale, or none
//!   ┌─────────────────────────────────────┐          ┌─────────────────────────────┐
//!   │ paced: rate = fair share − drain    │ ───────▶ │ CUBIC, from the last        │
//!   │ cwnd = 2 · rate · RTT, a bound only │ ◀─────── │ rate · RTT                  │
//!   └─────────────────────────────────────┘          └─────────────────────────────┘
//! ```
//!
//! The law is in [`View`](super::int::View). What is lost changes nothing while paced, be it the medium's or a queue's: a
//! queue that drops is full, and the drain term has answered that already. The rate is set anew once per round
//! trip, for its term of unused capacity adds to what the flow had.

use super::int::{CubicWithReports, View, micros};
use super::{Ack, CcConfig, CongestionController};
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ioam::Feedback;

/// See the top of this file.
#[derive(Debug, Clone)]
pub struct IntRate {
    inner: CubicWithReports,
    /// Rate paced at, bit/s; 0: CUBIC is in force.
    rate_bps: u64,
    /// When the rate is set next, microseconds.
    next_us: u64,
    /// The window that bounds it, set with the rate, bytes.
    window_bytes: u64,
}

impl IntRate {
    /// A controller without reports: CUBIC in slow start.
    #[must_use]
    pub fn new(config: CcConfig) -> Self {
        Self { inner: CubicWithReports::new(config), rate_bps: 0, next_us: 0, window_bytes: 0 }
    }

    /// Whether telemetry rules.
    #[must_use]
    pub const fn paced(&self) -> bool {
        self.rate_bps != 0
    }

    fn back_to_cubic(&mut self) {
        let bdp = View::rate_window(self.rate_bps, self.inner.srtt_us, self.inner.mss_bytes) / 2;
        self.inner.cubic.resume(bdp as f64);
        self.rate_bps = 0;
        self.next_us = 0;
    }

    /// Sets the rate, once per round trip.
    fn steer(&mut self, now_us: u64) {
        if now_us < self.next_us {
            return;
        }
        let CubicWithReports { view, config, srtt_us, mss_bytes, .. } = &self.inner;
        let fresh = view.detailed(*srtt_us, config.stale_rtts);
        match view.rate(self.rate_bps, *srtt_us, *mss_bytes, config.ceiling_bps).filter(|_| fresh) {
            Some(rate) => {
                self.rate_bps = rate.max(1);
                self.next_us = now_us + srtt_us;
                self.window_bytes = View::rate_window(self.rate_bps, *srtt_us, *mss_bytes) * mss_bytes;
            }
            None if self.paced() => self.back_to_cubic(),
            None => {}
        }
    }
}

impl CongestionController for IntRate {
    const READS_REPORTS: bool = true;

    fn on_ack(&mut self, ack: &Ack) {
        self.inner.on_ack(ack);
        self.steer(micros(ack.now));
        if !self.paced() {
            self.inner.cubic.on_ack(ack);
        }
    }

    fn on_loss(&mut self, now: Instant, in_flight_bytes: u64) {
        if !self.paced() {
            self.inner.cubic.on_loss(now, in_flight_bytes);
        }
    }

    fn on_ecn(&mut self, now: Instant, in_flight_bytes: u64) {
        if !self.paced() {
            self.inner.cubic.on_ecn(now, in_flight_bytes);
        }
    }

    fn on_rto(&mut self, now: Instant, in_flight_bytes: u64, first: bool) {
        // Nothing came for a long time: what was known of the path may be wrong.
        if self.paced() {
            self.back_to_cubic();
        }
        self.inner.cubic.on_rto(now, in_flight_bytes, first);
    }

    fn on_spurious(&mut self, now: Instant) {
        if !self.paced() {
            self.inner.cubic.on_spurious(now);
        }
    }

    fn on_idle(&mut self, now: Instant, idle: Duration, rto: Duration) {
        if !self.paced() {
            self.inner.cubic.on_idle(now, idle, rto);
        }
    }

    fn on_report(&mut self, report: &Feedback, now: Instant) {
        self.inner.on_report(report, now);
    }

    fn cwnd_bytes(&self) -> u64 {
        if self.paced() { self.window_bytes } else { self.inner.cubic.cwnd_bytes() }
    }

    fn ssthresh_bytes(&self) -> u64 {
        if self.paced() { self.cwnd_bytes() } else { self.inner.cubic.ssthresh_bytes() }
    }

    fn pacing_bps(&self) -> Option<u64> {
        self.paced().then_some(self.rate_bps)
    }

    fn rules_recovery(&self) -> bool {
        self.paced()
    }
}
