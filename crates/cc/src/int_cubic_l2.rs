//! CUBIC that reduces its window by 5 % on medium loss. Paper §VI-A.2, Table I "CUBIC New L2".
//!
//! The paper uses β = 0.95 instead of 0.7 (§VI-A.2). Points left open by the paper:
//!
//! - Classification of losses: [`View`](super::int::View); after a late report, CUBIC's own reduction is applied to the
//!   remaining window.
//! - CUBIC's curve (W_max, its epoch) is not changed: medium losses contain no information about where the queue overflows.
//! - Timeout: cwnd restarts from one segment (RFC 5681 §3.1), but ssthresh is 95 % of the window before the first medium loss, and
//!   another medium loss on the way back takes 5 % of that, not of the few segments in the window.
//! - 5 % of a small window is less than a segment: [`View::reduce_by_five_percent`].

use super::int::{LossTolerantCubic, MediumLossResponse, View};

/// The controller.
pub type IntCubicL2 = LossTolerantCubic<ReduceByFivePercent>;

/// Removes a twentieth of the window.
#[derive(Debug, Clone, Default)]
pub struct ReduceByFivePercent {
    /// Reduction still to be applied, in 1/1024 segments.
    remainder: u32,
}

impl MediumLossResponse for ReduceByFivePercent {
    const RESTORES_AFTER_FAST_RETRANSMIT: bool = true;

    fn window(&mut self, segments: f64) -> f64 {
        let (window, remainder) = View::reduce_by_five_percent(segments as u32, self.remainder);
        self.remainder = remainder;
        f64::from(window) + segments.fract()
    }
}
