//! CUBIC that keeps most of its window on medium loss: the common part of L1 and L2 of the paper.

use super::CubicWithReports;
use crate::{Ack, CcConfig, CongestionController};
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ioam::Feedback;
use std::fmt::Debug;

/// The reaction of the window to a medium loss.
pub trait Rule: Debug + Clone + Default {
    /// Whether, after a loss detected by duplicate ACKs, the window may grow back to its reduced value as after a timeout.
    const LOSS_LEADS_BACK: bool;

    /// The window after a loss at `segments`.
    fn left(&mut self, segments: f64) -> f64;
}

/// CUBIC with a [`Rule`].
#[derive(Debug, Clone)]
pub struct Keeping<R> {
    inner: CubicWithReports,
    /// Window to which the flow may grow back after medium losses, segments; 0: none.
    kept: f64,
    rule: R,
}

impl<R: Rule> Keeping<R> {
    /// A controller in slow start.
    #[must_use]
    pub fn new(config: CcConfig) -> Self {
        Self { inner: CubicWithReports::new(config), kept: 0.0, rule: R::default() }
    }
}

impl<R: Rule> CongestionController for Keeping<R> {
    const READS_REPORTS: bool = true;

    fn on_ack(&mut self, ack: &Ack) {
        self.inner.on_ack(ack);
        // The kernel does not call a controller based on CUBIC for ACKs during recovery.
        if !ack.in_recovery {
            self.inner.measured(ack);
        }
        self.inner.cubic.on_ack(ack);
        // The window has been reached again.
        if self.inner.cubic.segments() >= self.kept {
            self.kept = 0.0;
        }
    }

    fn on_loss(&mut self, now: Instant, in_flight_bytes: u64) {
        let from = self.inner.cubic.segments().max(self.kept);
        if self.inner.medium(now, from) {
            let left = self.rule.left(from);
            if R::LOSS_LEADS_BACK {
                self.kept = left;
            }
            self.inner.cubic.keep(left);
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
        let from = self.inner.cubic.segments().max(self.kept);
        if first && self.inner.medium(now, from) {
            self.kept = self.rule.left(from);
            self.inner.cubic.restart_towards(self.kept);
        } else {
            // A repeated timeout is a consequence of the reduction, not a new indication.
            if first {
                self.kept = 0.0;
            }
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
