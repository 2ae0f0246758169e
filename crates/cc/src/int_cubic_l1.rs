//! CUBIC that keeps its window on medium loss. Paper §VI-A.1, Table I "CUBIC New L1".
//!
//! The paper keeps cwnd constant at every loss "due to the lossy medium". Points left open by the paper:
//!
//! - Classification of losses: [`View`](super::int::View); a late report may revoke it.
//! - Timeout: cwnd restarts from one segment (RFC 5681 §3.1), but ssthresh is the window before the first medium loss, so that
//!   slow start returns to it; the paper's tool would have lost this value.

use super::int::{LossTolerantCubic, MediumLossResponse};

/// The controller.
pub type IntCubicL1 = LossTolerantCubic<KeepWindow>;

/// Keeps the whole window.
#[derive(Debug, Clone, Default)]
pub struct KeepWindow;

impl MediumLossResponse for KeepWindow {
    const RESTORES_AFTER_FAST_RETRANSMIT: bool = false;

    fn window(&mut self, segments: f64) -> f64 {
        segments
    }
}
