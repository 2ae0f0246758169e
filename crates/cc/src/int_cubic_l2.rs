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

use super::int::{Keeping, Rule, View};

/// See the top of this file.
pub type IntCubicL2 = Keeping<LessATwentieth>;

/// A twentieth of the window is taken.
#[derive(Debug, Clone, Default)]
pub struct LessATwentieth {
    /// 1/1024 segments still to take.
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
