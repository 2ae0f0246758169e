//! Pacing at the bottleneck's fair share. Developed in this project; the paper leaves fairness and flow control open (§VII).
//!
//! ```text
//!                                                   reports stale, or none; a timeout;
//!            reports with a link rate,              a loss, a mark or a delay of a
//!            or one that the window carries         queue without telemetry
//!   ┌─────────────────────────────────────┐          ┌─────────────────────────────┐
//!   │ paced: rate = fair share − drain    │ ───────▶ │ CUBIC, from the last        │
//!   │ cwnd = 2 · rate · RTT, a bound only │ ◀─────── │ rate · RTT                  │
//!   └─────────────────────────────────────┘          └─────────────────────────────┘
//! ```
//!
//! The law is in [`View`](super::int::View). If every hop reports its drops, losses have no effect while the flow is paced, whether
//! on the medium or in a queue: a queue that drops is full, and the drain term has already reacted. If a hop has no telemetry,
//! reports can make the flow slower than CUBIC, and faster only where CUBIC's own window reached the rate. The rate is updated
//! once per round trip, because its term for unused capacity is relative to the previous rate.

use super::int::{CubicWithTelemetry, View, micros};
use super::{Ack, CcConfig, CongestionController};
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ioam::Feedback;

/// The controller; see the module documentation.
#[derive(Debug, Clone)]
pub struct IntRate {
    inner: CubicWithTelemetry,
    /// Pacing rate, bit/s; 0: CUBIC is active.
    rate_bps: u64,
    /// Time of the next update of the rate, microseconds.
    next_us: u64,
    /// The bounding window, updated with the rate, bytes.
    window_bytes: u64,
    /// Minimum smoothed RTT since pacing began, microseconds; 0: none.
    min_srtt_us: u64,
    /// A queue without telemetry dropped: the window has to carry the rate before the flow is paced.
    window_must_sustain_rate: bool,
}

impl IntRate {
    /// A controller without reports: CUBIC in slow start.
    #[must_use]
    pub fn new(config: CcConfig) -> Self {
        Self {
            inner: CubicWithTelemetry::new(config),
            rate_bps: 0,
            next_us: 0,
            window_bytes: 0,
            min_srtt_us: 0,
            window_must_sustain_rate: false,
        }
    }

    /// Whether the flow is paced by telemetry.
    #[must_use]
    pub const fn paced(&self) -> bool {
        self.rate_bps != 0
    }

    /// Returns to CUBIC with the window of the present rate and a round trip of `rtt_us`.
    fn back_to_cubic(&mut self, rtt_us: u64) {
        let bdp = View::rate_window(self.rate_bps, rtt_us, self.inner.mss_bytes) / 2;
        self.inner.cubic.leave_slow_start_at(bdp as f64);
        (self.rate_bps, self.next_us, self.min_srtt_us) = (0, 0, 0);
    }

    fn may_be_unreported_drop(&self, now: Instant) -> bool {
        self.inner.view.may_be_unreported_drop(micros(now), self.inner.srtt_us)
    }

    /// Ends pacing if a loss or mark may be due to a queue without telemetry. Returns whether CUBIC must react to it.
    fn cubic_must_react(&mut self, now: Instant) -> bool {
        if self.paced() && self.may_be_unreported_drop(now) {
            self.leave_pacing();
        }
        !self.paced()
    }

    /// Returns to CUBIC with the window of the rate, or the segments delivered per round trip if less.
    fn leave_pacing(&mut self) {
        let complete = self.inner.view.is_complete();
        let delivered = f64::from(self.inner.view.delivered_per_rtt(self.inner.delivered()));
        self.window_must_sustain_rate = true;
        self.inner.view.forget_drops();
        self.back_to_cubic(self.min_srtt_us);
        if complete && delivered < self.inner.cubic.segments() {
            self.inner.cubic.leave_slow_start_at(delivered);
        }
    }

    /// Updates the rate, once per round trip.
    fn update_rate(&mut self, now_us: u64) {
        if now_us < self.next_us {
            return;
        }
        let CubicWithTelemetry { view, config, srtt_us, mss_bytes, .. } = &self.inner;
        let fresh = view.has_fresh_rates(*srtt_us, config.stale_rtts);
        match view.fair_rate(self.rate_bps, *srtt_us, *mss_bytes, config.ceiling_bps).filter(|_| fresh) {
            Some(rate) => {
                // In slow start, the path has carried half of the window.
                let slow_start = u64::from(self.inner.cubic.in_slow_start());
                let cwnd = self.inner.cubic.segments() as u64 >> slow_start;
                // A report delayed by SACK blocks: the queue that dropped was a reporting one.
                if self.window_must_sustain_rate && view.has_dropped() {
                    self.window_must_sustain_rate = false;
                }
                if !self.paced() && (self.window_must_sustain_rate || !view.is_complete()) {
                    if !View::window_sustains(cwnd, rate, *srtt_us, *mss_bytes) {
                        self.next_us = now_us + srtt_us / 8;
                        return;
                    }
                    self.window_must_sustain_rate = false;
                }
                if self.min_srtt_us == 0 || *srtt_us < self.min_srtt_us {
                    self.min_srtt_us = *srtt_us;
                }
                if self.paced() && !view.is_complete() && view.is_rtt_unexplained(self.min_srtt_us, *srtt_us)
                {
                    self.back_to_cubic(self.min_srtt_us);
                    return;
                }
                // A recovery may last long, and only its start is checked for losses in unreported queues.
                if self.paced()
                    && view.is_complete()
                    && view.round_totals[1] > 0
                    && view.may_be_unreported_drop(now_us, *srtt_us)
                {
                    self.leave_pacing();
                    return;
                }
                self.rate_bps = rate.max(1);
                self.next_us = now_us + srtt_us;
                let rtt_us = view.max_explained_rtt_us(self.min_srtt_us).min(*srtt_us);
                self.window_bytes = View::rate_window(self.rate_bps, rtt_us, *mss_bytes) * mss_bytes;
            }
            None if self.paced() => {
                let rtt_us = *srtt_us;
                self.back_to_cubic(rtt_us);
                let segments = self.inner.cubic.segments();
                let window = self.inner.view.window_with_reports(segments as u64);
                if (window as f64) < segments {
                    self.inner.cubic.leave_slow_start_at(window as f64);
                }
            }
            None => {}
        }
    }
}

impl CongestionController for IntRate {
    const READS_REPORTS: bool = true;

    fn on_ack(&mut self, ack: &Ack) {
        self.inner.on_ack(ack);
        self.inner.record_sample(ack);
        self.update_rate(micros(ack.now));
        if !self.paced() {
            self.inner.cubic.on_ack(ack);
        }
    }

    fn on_loss(&mut self, now: Instant, in_flight_bytes: u64) {
        if self.cubic_must_react(now) {
            self.inner.cubic.on_loss(now, in_flight_bytes);
        }
    }

    fn on_ecn(&mut self, now: Instant, in_flight_bytes: u64) {
        if self.cubic_must_react(now) {
            self.inner.cubic.on_ecn(now, in_flight_bytes);
        }
    }

    fn on_rto(&mut self, now: Instant, in_flight_bytes: u64, first: bool) {
        // After a long time without ACKs, the knowledge of the path may be outdated.
        if self.paced() {
            self.window_must_sustain_rate = self.may_be_unreported_drop(now);
            if self.window_must_sustain_rate {
                self.inner.view.forget_drops();
            }
            self.back_to_cubic(if self.window_must_sustain_rate {
                self.min_srtt_us
            } else {
                self.inner.srtt_us
            });
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
