//! CUBIC that keeps most of its window on medium loss: the common part of L1 and L2 of the paper.

use super::CubicWithTelemetry;
use crate::{Ack, CcConfig, CongestionController};
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ioam::Feedback;
use std::fmt::Debug;

/// The reaction of the window to a medium loss.
pub trait MediumLossResponse: Debug + Clone + Default {
    /// Whether, after a loss detected by duplicate ACKs, the window may grow back to its reduced value as after a timeout.
    const RESTORES_AFTER_FAST_RETRANSMIT: bool;

    /// The window after a loss at `segments`.
    fn window(&mut self, segments: f64) -> f64;
}

/// CUBIC with a [`MediumLossResponse`].
#[derive(Debug, Clone)]
pub struct LossTolerantCubic<R> {
    inner: CubicWithTelemetry,
    /// Window to which the flow may grow back after medium losses, segments; 0: none.
    restore_segments: f64,
    response: R,
}

impl<R: MediumLossResponse> LossTolerantCubic<R> {
    /// A controller in slow start.
    #[must_use]
    pub fn new(config: CcConfig) -> Self {
        Self { inner: CubicWithTelemetry::new(config), restore_segments: 0.0, response: R::default() }
    }
}

impl<R: MediumLossResponse> CongestionController for LossTolerantCubic<R> {
    const READS_REPORTS: bool = true;

    fn on_ack(&mut self, ack: &Ack) {
        self.inner.on_ack(ack);
        // The kernel does not call a controller based on CUBIC for ACKs during recovery.
        if !ack.in_recovery {
            self.inner.record_sample(ack);
        }
        self.inner.cubic.on_ack(ack);
        // The window has been reached again.
        if self.inner.cubic.segments() >= self.restore_segments {
            self.restore_segments = 0.0;
        }
    }

    fn on_loss(&mut self, now: Instant, in_flight_bytes: u64) {
        let from = self.inner.cubic.segments().max(self.restore_segments);
        if self.inner.classify_medium(now, from) {
            let window = self.response.window(from);
            if R::RESTORES_AFTER_FAST_RETRANSMIT {
                self.restore_segments = window;
            }
            self.inner.cubic.reduce_to(window);
        } else {
            self.restore_segments = 0.0;
            self.inner.cubic.on_loss(now, in_flight_bytes);
        }
    }

    fn on_ecn(&mut self, now: Instant, in_flight_bytes: u64) {
        self.restore_segments = 0.0;
        self.inner.cubic.on_ecn(now, in_flight_bytes);
    }

    fn on_rto(&mut self, now: Instant, in_flight_bytes: u64, first: bool) {
        let from = self.inner.cubic.segments().max(self.restore_segments);
        if first && self.inner.classify_medium(now, from) {
            self.restore_segments = self.response.window(from);
            self.inner.cubic.restart_towards(self.restore_segments);
        } else {
            // A repeated timeout is a consequence of the reduction, not a new indication.
            if first {
                self.restore_segments = 0.0;
            }
            self.inner.cubic.on_rto(now, in_flight_bytes, first);
        }
    }

    fn on_spurious(&mut self, now: Instant) {
        self.inner.cubic.on_spurious(now);
    }

    fn on_idle(&mut self, now: Instant, idle: Duration, rto: Duration) {
        self.restore_segments = 0.0;
        self.inner.cubic.on_idle(now, idle, rto);
    }

    fn on_report(&mut self, report: &Feedback, now: Instant) {
        if self.inner.on_report(report, now) {
            self.restore_segments = 0.0;
            self.inner.cubic.on_loss(now, 0);
        }
    }

    fn cwnd_bytes(&self) -> u64 {
        self.inner.cubic.cwnd_bytes()
    }

    fn ssthresh_bytes(&self) -> u64 {
        self.inner.cubic.ssthresh_bytes()
    }
}
