//! CUBIC that keeps its window when the medium loses. Paper §VI-A.1, Table I "CUBIC New L1".
//!
//! The paper keeps cwnd constant at every loss "due to the lossy medium". What it leaves open, and how it is here:
//!
//! - how a loss is told from congestion: [`super::View`], and a late report takes the judgement back;
//! - a timeout: cwnd starts anew from one segment (RFC 5681 §3.1), but ssthresh is the window before the first
//!   medium loss, so that slow start leads back to it; the paper's tool would have forgotten it.

use super::super::{Ack, CcConfig, CongestionController};
use super::Judge;
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ioam::Feedback;

/// See the top of this file.
#[derive(Debug, Clone)]
pub struct IntCubicL1 {
    judge: Judge,
    /// Window that medium loss must not take, segments; 0: none.
    kept: f64,
}

impl IntCubicL1 {
    /// A controller in slow start.
    #[must_use]
    pub fn new(config: CcConfig) -> Self {
        Self { judge: Judge::new(config), kept: 0.0 }
    }
}

impl CongestionController for IntCubicL1 {
    fn on_ack(&mut self, ack: &Ack) {
        self.judge.on_ack(ack);
        self.judge.cubic.on_ack(ack);
        // Grown back to where it was: nothing is owed any more.
        if self.judge.cubic.segments() >= self.kept {
            self.kept = 0.0;
        }
    }

    fn on_loss(&mut self, now: Instant, in_flight_bytes: u64) {
        let keep = self.judge.cubic.segments().max(self.kept);
        if self.judge.medium(now, keep) {
            self.judge.cubic.keep(keep);
        } else {
            self.kept = 0.0;
            self.judge.cubic.on_loss(now, in_flight_bytes);
        }
    }

    fn on_ecn(&mut self, now: Instant, in_flight_bytes: u64) {
        self.kept = 0.0;
        self.judge.cubic.on_ecn(now, in_flight_bytes);
    }

    fn on_rto(&mut self, now: Instant, in_flight_bytes: u64, first: bool) {
        let keep = self.judge.cubic.segments().max(self.kept);
        if first && self.judge.medium(now, keep) {
            self.kept = keep;
            self.judge.cubic.restart_towards(keep);
        } else {
            self.judge.cubic.on_rto(now, in_flight_bytes, first);
        }
    }

    fn on_spurious(&mut self, now: Instant) {
        self.judge.cubic.on_spurious(now);
    }

    fn on_idle(&mut self, now: Instant, idle: Duration, rto: Duration) {
        self.kept = 0.0;
        self.judge.cubic.on_idle(now, idle, rto);
    }

    fn on_report(&mut self, report: &Feedback, now: Instant) {
        if self.judge.on_report(report, now) {
            self.kept = 0.0;
            self.judge.cubic.on_loss(now, 0);
        }
    }

    fn cwnd_bytes(&self) -> u64 {
        self.judge.cubic.cwnd_bytes()
    }

    fn ssthresh_bytes(&self) -> u64 {
        self.judge.cubic.ssthresh_bytes()
    }
}
