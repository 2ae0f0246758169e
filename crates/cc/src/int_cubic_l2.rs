//! CUBIC that reduces its window by 5 % on medium loss. Paper §VI-A.2, Table I "CUBIC New L2".
//!
//! The paper uses β = 0.95 instead of 0.7 (§VI-A.2). Points left open by the paper:
//!
//! - Classification of losses: [`View`](super::int::View); after a late report, CUBIC's own reduction is applied to the
//!   remaining window.
//! - CUBIC's curve (W_max, its epoch) is not changed: medium losses contain no information about where the queue overflows.
//! - Timeout: cwnd restarts from one segment (RFC 5681 §3.1), but ssthresh is 95 % of the window before the first medium loss, and
//!   another medium loss on the way back takes 5 % of that, not of the few segments in the window.
//! - 5 % of a small window is less than a segment: [`View::give_way`].

use super::int::{Keeping, Rule, View};

/// The controller.
pub type IntCubicL2 = Keeping<LessATwentieth>;

/// Removes a twentieth of the window.
#[derive(Debug, Clone, Default)]
pub struct LessATwentieth {
    /// Reduction still to be applied, in 1/1024 segments.
    owed: u32,
}

impl Rule for LessATwentieth {
    const LOSS_LEADS_BACK: bool = true;

    fn left(&mut self, segments: f64) -> f64 {
        let (less, owed) = View::give_way(segments as u32, self.owed);
        self.owed = owed;
        f64::from(less) + segments.fract()
    }
}
