//! CUBIC that keeps its window when the medium loses. Paper §VI-A.1, Table I "CUBIC New L1".
//!
//! The paper keeps cwnd constant at every loss "due to the lossy medium". What it leaves open, and how it is here:
//!
//! - how a loss is told from congestion: [`View`](super::int::View), and a late report takes the judgement back;
//! - a timeout: cwnd starts anew from one segment (RFC 5681 §3.1), but ssthresh is the window before the first
//!   medium loss, so that slow start leads back to it; the paper's tool would have forgotten it.

use super::int::CubicWithReports;
use super::{Ack, CcConfig, CongestionController};
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ioam::Feedback;

/// See the top of this file.
#[derive(Debug, Clone)]
pub struct IntCubicL1 {
    inner: CubicWithReports,
    /// Window that medium loss must not take, segments; 0: none.
    kept: f64,
}

impl IntCubicL1 {
    /// A controller in slow start.
    #[must_use]
    pub fn new(config: CcConfig) -> Self {
        Self { inner: CubicWithReports::new(config), kept: 0.0 }
    }
}

impl CongestionController for IntCubicL1 {
    const READS_REPORTS: bool = true;

    fn on_ack(&mut self, ack: &Ack) {
        self.inner.on_ack(ack);
        self.inner.cubic.on_ack(ack);
        // Grown back to where it was: nothing is owed any more.
        if self.inner.cubic.segments() >= self.kept {
            self.kept = 0.0;
        }
    }

    fn on_loss(&mut self, now: Instant, in_flight_bytes: u64) {
        let keep = self.inner.cubic.segments().max(self.kept);
        if self.inner.medium(now, keep) {
            self.inner.cubic.keep(keep);
        } else {
            self.kept = 0.0;
            self.inner.cubic.on_loss(now, in_flight_bytes);
        }
    }

    fn on_ecn(&mut self, now: Instant, in_flight_bytes: u64) {
        self.kept = 0.0;
        self.inner.cubic.on_ecn(now, in_flight_bytes);
    }

    fn on_rto(&mut self, now: Instant, in_flight_bytes: u64, first: bool) {
        let keep = self.inner.cubic.segments().max(self.kept);
        if first && self.inner.medium(now, keep) {
            self.kept = keep;
            self.inner.cubic.restart_towards(keep);
        } else {
            self.inner.cubic.on_rto(now, in_flight_bytes, first);
        }
    }

    fn on_spurious(&mut self, now: Instant) {
        self.inner.cubic.on_spurious(now);
    }

    fn on_idle(&mut self, now: Instant, idle: Duration, rto: Duration) {
        self.kept = 0.0;
        self.inner.cubic.on_idle(now, idle, rto);
    }

    fn on_report(&mut self, report: &Feedback, now: Instant) {
        if self.inner.on_report(report, now) {
            self.kept = 0.0;
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
