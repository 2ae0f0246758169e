//! CUBIC that keeps its window on medium loss. Paper §VI-A.1, Table I "CUBIC New L1".
//!
//! The paper keeps cwnd constant at every loss "due to the lossy medium". Points left open by the paper:
//!
//! - Classification of losses: [`View`](super::int::View); a late report may revoke it.
//! - Timeout: cwnd restarts from one segment (RFC 5681 §3.1), but ssthresh is the window before the first medium loss, so that
//!   slow start returns to it; the paper's tool would have lost this value.

use super::int::{Keeping, Rule};

/// The controller.
pub type IntCubicL1 = Keeping<All>;

/// Keeps the whole window.
#[derive(Debug, Clone, Default)]
pub struct All;

impl Rule for All {
    const LOSS_LEADS_BACK: bool = false;

    fn left(&mut self, segments: f64) -> f64 {
        segments
    }
}
