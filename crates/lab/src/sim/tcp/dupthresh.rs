//! Loss detection by counting duplicates, as before RACK: RFC 5681, RFC 6675, RFC 6582.
//!
//! ```text
//!   SACK      a segment is lost when `threshold` segments above it were SACKed (RFC 6675 §4, IsLost)
//!   no SACK   the first segment is lost at the third duplicate ACK (RFC 5681 §3.2), and again at each
//!             acknowledgment that ends before the recovery does (RFC 6582 §3.2, NewReno)
//! ```
//!
//! The threshold is 3. The adaptive form behaves as `tcp_reordering` of Linux before RACK: a segment that arrives `n` segments
//! late raises the threshold to `n`, at most 300, and a timeout resets it to 3. A lost retransmission is detected only by
//! the timeout, as in the RFCs.

use super::scoreboard::{Scoreboard, Segment};

/// Number of duplicates of RFC 5681, and Linux's `tcp_reordering`.
const DUP_THRESH: usize = 3;
/// Linux's `tcp_max_reordering`.
const MAX_THRESH: usize = 300;

/// Method by which a sender detects lost segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recovery {
    /// By time, with tail loss probes; unnecessary reductions are undone (RFC 8985): Linux since 4.18.
    #[default]
    Rack,
    /// By the third duplicate, without adaptation; nothing is undone (RFC 5681, RFC 6675).
    Classic,
    /// By a number of duplicates that grows with observed reordering; unnecessary reductions are undone: Linux 2.6 to 4.17, and
    /// later with `tcp_recovery = 0`.
    Adaptive,
}

/// State of loss detection by counting; see the module documentation.
#[derive(Debug, Clone)]
pub struct DupThresh {
    threshold: usize,
    adapts: bool,
    mss: u64,
    /// Highest sequence number delivered.
    highest: u64,
}

impl DupThresh {
    /// Detection for segments of `mss` bytes.
    pub fn new(adapts: bool, mss: u32) -> Self {
        Self { threshold: DUP_THRESH, adapts, mss: u64::from(mss.max(1)), highest: 0 }
    }

    /// A segment was delivered.
    pub fn on_delivered(&mut self, s: &Segment) {
        if s.end() > self.highest {
            self.highest = s.end();
        } else if self.adapts && !s.retransmitted {
            let late = (self.highest - s.seq).div_ceil(self.mss);
            let late = usize::try_from(late).unwrap_or(MAX_THRESH).min(MAX_THRESH);
            self.threshold = self.threshold.max(late);
        }
    }

    /// A retransmission timeout occurred.
    pub fn on_timeout(&mut self) {
        self.threshold = DUP_THRESH;
    }

    /// Marks segments that the present SACKs show as lost.
    pub fn detect(&self, board: &mut Scoreboard) {
        board.lose_below_sacked(self.threshold);
    }

    /// Number of duplicates that indicates a loss.
    pub fn threshold(&self) -> usize {
        self.threshold
    }
}

#[cfg(test)]
mod tests {
    use super::super::rate::SentState;
    use super::*;
    use anabranch_element::time::Instant;

    fn board(n: u64) -> Scoreboard {
        let mut b = Scoreboard::default();
        for i in 0..n {
            b.push(i * 100, 100, false, Instant::from_millis(i), SentState::default());
        }
        b
    }

    #[test]
    fn the_third_sack_above_makes_a_loss() {
        let (d, mut b) = (DupThresh::new(false, 100), board(8));
        b.sack(100, 300, |_| ());
        d.detect(&mut b);
        assert_eq!(b.lost_bytes(), 0);
        b.sack(500, 600, |_| ());
        d.detect(&mut b);
        assert_eq!(b.lost_bytes(), 100, "segment 0; 3 and 4 have one above them");
        b.sack(600, 800, |_| ());
        d.detect(&mut b);
        assert_eq!(b.lost_bytes(), 300);
        b.retransmit(0, Instant::from_millis(50), SentState::default());
        d.detect(&mut b);
        assert_eq!(b.lost_bytes(), 200, "what was sent again is not found lost again");
    }

    #[test]
    fn the_threshold_grows_with_the_reordering_distance() {
        for (adapts, expected) in [(true, 7), (false, 3)] {
            let (mut d, mut b) = (DupThresh::new(adapts, 100), board(8));
            b.sack(600, 800, |s| d.on_delivered(s));
            b.sack(100, 200, |s| d.on_delivered(s));
            assert_eq!(d.threshold(), expected);
            d.on_timeout();
            assert_eq!(d.threshold(), 3);
        }
    }
}
