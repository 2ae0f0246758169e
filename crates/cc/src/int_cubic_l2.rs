//! CUBIC that gives way by 5 % when the medium loses. Paper §VI-A.2, Table I "CUBIC New L2".
//!
//! The paper's β = 0.95 in place of 0.7 (§VI-A.2). What it leaves open, and how it is here:
//!
//! - how a loss is told from congestion: [`View`](super::int::View), and a late report is answered with CUBIC's own reduction of
//!   what is left;
//! - CUBIC's curve (W_max, its epoch) stays as it is: the medium's losses say nothing about where the queue overflows;
//! - a timeout: cwnd starts anew from one segment (RFC 5681 §3.1), but ssthresh is 95 % of the window before the first
//!   medium loss, and another medium loss on the way back takes 5 % of that, not of the few segments there are;
//! - 5 % of a small window are less than a segment: [`View::give_way`].

use super::int::{CubicWithReports, View};
use super::{Ack, CcConfig, CongestionController};
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ioam::Feedback;

/// See the top of this file.
#[derive(Debug, Clone)]
pub struct IntCubicL2 {
    inner: CubicWithReports,
    /// Window that medium losses leave, segments; 0: none.
    kept: f64,
    /// 1/1024 segments still to take.
    owed: u32,
}

impl IntCubicL2 {
    /// A controller in slow start.
    #[must_use]
    pub fn new(config: CcConfig) -> Self {
        Self { inner: CubicWithReports::new(config), kept: 0.0, owed: 0 }
    }

    /// The window a twentieth below `segments`.
    fn give_way(&mut self, segments: f64) -> f64 {
        let (less, owed) = View::give_way(segments as u32, self.owed);
        self.owed = owed;
        f64::from(less) + segments.fract()
    }
}

impl CongestionController for IntCubicL2 {
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
        let from = self.inner.cubic.segments().max(self.kept);
        if self.inner.medium(now, from) {
            self.kept = self.give_way(from);
            self.inner.cubic.keep(self.kept);
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
            self.kept = self.give_way(from);
            self.inner.cubic.restart_towards(self.kept);
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
