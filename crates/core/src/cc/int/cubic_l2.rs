//! CUBIC that gives way by 5 % when the medium loses. Paper §VI-A.2, Table I "CUBIC New L2".
//!
//! The paper's β = 0.95 in place of 0.7, W_max and fast convergence with it. How a loss is told from congestion is
//! in [`super::View`]; a late report is answered with CUBIC's own reduction of what is left.

use super::super::{Ack, CcConfig, CongestionController};
use super::Judge;
use crate::time::{Duration, Instant};
use anabranch_wire::ioam::Feedback;

/// Multiplicative decrease on medium loss (§VI-A).
pub const BETA_MEDIUM: f64 = 0.95;

/// See the top of this file.
#[derive(Debug, Clone)]
pub struct IntCubicL2 {
    judge: Judge,
}

impl IntCubicL2 {
    /// A controller in slow start.
    #[must_use]
    pub fn new(config: CcConfig) -> Self {
        Self { judge: Judge::new(config) }
    }
}

impl CongestionController for IntCubicL2 {
    fn on_ack(&mut self, ack: &Ack) {
        self.judge.on_ack(ack);
        self.judge.cubic.on_ack(ack);
    }

    fn on_loss(&mut self, now: Instant, in_flight_bytes: u64) {
        let cwnd = self.judge.cubic.segments();
        if self.judge.medium(now, cwnd) {
            self.judge.cubic.reduce_by(BETA_MEDIUM);
        } else {
            self.judge.cubic.on_loss(now, in_flight_bytes);
        }
    }

    fn on_ecn(&mut self, now: Instant, in_flight_bytes: u64) {
        self.judge.cubic.on_ecn(now, in_flight_bytes);
    }

    fn on_rto(&mut self, now: Instant, in_flight_bytes: u64, first: bool) {
        let cwnd = self.judge.cubic.segments();
        if first && self.judge.medium(now, cwnd) {
            self.judge.cubic.restart_towards(cwnd * BETA_MEDIUM);
        } else {
            self.judge.cubic.on_rto(now, in_flight_bytes, first);
        }
    }

    fn on_spurious(&mut self, now: Instant) {
        self.judge.cubic.on_spurious(now);
    }

    fn on_idle(&mut self, now: Instant, idle: Duration, rto: Duration) {
        self.judge.cubic.on_idle(now, idle, rto);
    }

    fn on_report(&mut self, report: &Feedback, now: Instant) {
        if self.judge.on_report(report, now) {
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
