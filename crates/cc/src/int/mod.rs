//! Controllers that use path telemetry: *Adaptive Transport Layer Protocols using In-band Network Telemetry and eBPF* (§VI),
//! and one developed in this project.
//!
//! ```text
//! IOAM trace, filled by the nodes ──▶ receiver ──TCP option 0x72, on ACKs──▶ [`View`] ──▶ control law
//! ```
//!
//! | name | law | file |
//! |---|---|---|
//! | `int_cubic_l1` | CUBIC; a medium loss does not change the window | `int_cubic_l1.rs` |
//! | `int_cubic_l2` | CUBIC; a medium loss reduces the window by 5 % (β = 0.95) | `int_cubic_l2.rs` |
//! | `int_cubic_ss` | CUBIC; Eq. 1 of the paper in slow start | `int_cubic_ss.rs` |
//! | `int_rate` | this project's: paces at the bottleneck's fair share, minus a term that drains its queue | `int_rate.rs` |
//!
//! Each also runs in the kernel (`bpf/`). Decisions based on telemetry are integer arithmetic in [`View`], and identical C code
//! in `bpf/lib/int_law.h`; a test of `anabranch-kern` compares the two.
//!
//! **Trust.** Reports come from the network. They can make a flow slower, but never faster than [`IntConfig::ceiling_bps`].
//! [`IntConfig::stale_rtts`] round trips after its reports stop, a flow is a plain CUBIC flow.

mod loss_tolerant;
#[cfg(test)]
mod tests;
mod view;

pub use loss_tolerant::{LossTolerantCubic, MediumLossResponse};
pub use view::{GROWTH_UNIT, View};

use super::Ack;
use super::cubic::Cubic;
use anabranch_element::time::{Duration, Instant, nanos};
use anabranch_wire::ioam::Feedback;

/// Limits of the controllers of this module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntConfig {
    /// Upper bound of the rate to which telemetry can raise a flow, bit/s. Default 1 Gbit/s; set it to the rate of the access.
    pub ceiling_bps: u64,
    /// *increment* of Eq. 1: 1, 2 or 3 in the paper; 1 to 16. Default 2.
    pub increment: u32,
    /// Maximum number of segments that Eq. 1 may add per acknowledged one; 1 is ordinary slow start. 1 to 16, default 2.
    pub growth_cap: u32,
    /// Age in round trips above which a report is ignored, measured when an ACK without a report arrives. 1 to 255, default 8.
    pub stale_rtts: u32,
}

impl Default for IntConfig {
    fn default() -> Self {
        Self { ceiling_bps: 1_000_000_000, increment: 2, growth_cap: 2, stale_rtts: 8 }
    }
}

/// Microseconds since the start, at least 1: 0 means "never".
pub(crate) fn micros(now: Instant) -> u64 {
    now.as_micros() + 1
}

pub(crate) fn rtt_us(srtt: Duration) -> u64 {
    nanos(srtt) / 1000
}

/// Common part of the laws based on CUBIC: CUBIC, the view, and the classification of losses.
#[derive(Debug, Clone)]
pub(crate) struct CubicWithTelemetry {
    pub(crate) cubic: Cubic,
    pub(crate) view: View,
    pub(crate) config: IntConfig,
    pub(crate) mss_bytes: u64,
    pub(crate) srtt_us: u64,
    delivered_bytes: u64,
    lost_bytes: u64,
}

impl CubicWithTelemetry {
    pub(crate) fn new(config: super::CcConfig) -> Self {
        Self {
            cubic: Cubic::new(config),
            view: View::default(),
            config: config.int,
            mss_bytes: u64::from(config.mss_bytes.max(1)),
            srtt_us: 0,
            delivered_bytes: 0,
            lost_bytes: 0,
        }
    }

    pub(crate) fn on_ack(&mut self, ack: &Ack) {
        self.srtt_us = rtt_us(ack.srtt);
        self.view.record_ack(micros(ack.now));
        self.delivered_bytes += ack.delivered_bytes;
        self.lost_bytes += ack.lost_bytes + ack.timer_lost_bytes;
    }

    /// Number of segments delivered, modulo 2^32.
    pub(crate) const fn delivered(&self) -> u32 {
        (self.delivered_bytes / self.mss_bytes) as u32
    }

    /// Updates the measurements needed for classifying losses.
    pub(crate) fn record_sample(&mut self, ack: &Ack) {
        self.view.record_sample(
            micros(ack.now),
            ack.rtt.map_or(0, rtt_us),
            self.srtt_us,
            self.delivered(),
            (self.lost_bytes / self.mss_bytes) as u32,
        );
    }

    /// Whether the loss just detected occurred on the medium, and `cwnd_segments` is within the ceiling and may be kept.
    pub(crate) fn classify_medium(&mut self, now: Instant, cwnd_segments: f64) -> bool {
        self.view.classify_medium(micros(now), self.srtt_us, self.config.stale_rtts)
            && cwnd_segments
                <= View::ceiling_window(self.config.ceiling_bps, self.srtt_us, self.mss_bytes) as f64
    }

    /// Processes a report; returns true if it shows that the last loss was due to congestion after all.
    pub(crate) fn on_report(&mut self, report: &Feedback, now: Instant) -> bool {
        self.view.on_report(report, micros(now))
    }
}
