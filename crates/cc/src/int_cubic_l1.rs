//! CUBIC that keeps its window when the medium loses. Paper §VI-A.1, Table I "CUBIC New L1".
//!
//! The paper keeps cwnd constant at every loss "due to the lossy medium". What it leaves open, and how it is here:
//!
//! - how a loss is told from congestion: [`View`](super::int::View), and a late report takes the judgement back;
//! - a timeout: cwnd starts anew from one segment (RFC 5681 §3.1), but ssthresh is the window before the first
//!   medium loss, so that slow start leads back to it; the paper's tool would have forgotten it.

use super::int::{Keeping, Rule};

/// See the top of this file.
pub type IntCubicL1 = Keeping<All>;

/// All of the window is left.
#[derive(Debug, Clone, Default)]
pub struct All;

impl Rule for All {
    const LOSS_LEADS_BACK: bool = false;

    fn left(&mut self, segments: f64) -> f64 {
        segments
    }
}
