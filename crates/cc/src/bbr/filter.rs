//! Path estimates of BBR: the recent maximum delivery rate, and the degree of ACK aggregation.

use crate::Ack;
use anabranch_element::time::{Duration, Instant};

/// Maximum over a window of rounds, in constant space: Kathleen Nichols' algorithm as in Linux `lib/win_minmax.c`. It stores the
/// best value, the best one after that, and the best one after that.
#[derive(Debug, Clone)]
pub(super) struct MaxFilter {
    window: u64,
    best: [(u64, f64); 3],
}

impl MaxFilter {
    pub(super) const fn new(window: u64) -> Self {
        Self { window, best: [(0, 0.0); 3] }
    }

    pub(super) fn max(&self) -> f64 {
        self.best[0].1
    }

    pub(super) fn update(&mut self, round: u64, value: f64) {
        let new = (round, value);
        let b = &mut self.best;
        if value >= b[0].1 || round.saturating_sub(b[2].0) > self.window {
            *b = [new; 3];
            return;
        }
        if value >= b[1].1 {
            (b[1], b[2]) = (new, new);
        } else if value >= b[2].1 {
            b[2] = new;
        }
        let age = round.saturating_sub(b[0].0);
        if age > self.window {
            // The best value has left the window: the next ones move up.
            *b = [b[1], b[2], new];
            if round.saturating_sub(b[0].0) > self.window {
                *b = [b[1], b[2], new];
            }
        } else if b[1].0 == b[0].0 && age > self.window / 4 {
            (b[1], b[2]) = (new, new);
        } else if b[2].0 == b[1].0 && age > self.window / 2 {
            b[2] = new;
        }
    }
}

/// Excess of acknowledged data over what the bandwidth explains. The window is enlarged by this amount; otherwise the sender
/// would pause between bundled ACKs (Linux 5.1 and later).
#[derive(Debug, Clone, Default)]
pub(super) struct AckAggregation {
    epoch: Instant,
    acked: u64,
    /// Maximum excess in the last windows of five rounds.
    excess: [u64; 2],
    current: usize,
    rounds: u32,
}

impl AckAggregation {
    const ROUNDS: u32 = 5;
    /// Upper bound of the excess, in seconds of bandwidth.
    const MOST: f64 = 0.1;

    pub(super) fn update(&mut self, ack: &Ack, round_start: bool, bandwidth: f64, cwnd: u64) {
        if ack.delivered_bytes == 0 {
            return;
        }
        if round_start {
            self.rounds += 1;
            if self.rounds >= Self::ROUNDS {
                self.rounds = 0;
                self.current ^= 1;
                self.excess[self.current] = 0;
            }
        }
        let since: Duration = ack.now.saturating_since(self.epoch);
        let mut expected = (bandwidth * since.as_secs_f64()) as u64;
        if self.acked <= expected {
            self.acked = 0;
            self.epoch = ack.now;
            expected = 0;
        }
        self.acked = self.acked.saturating_add(ack.delivered_bytes);
        let excess = self.acked.saturating_sub(expected).min(cwnd);
        let most = &mut self.excess[self.current];
        *most = (*most).max(excess);
    }

    pub(super) fn restart(&mut self, now: Instant) {
        self.epoch = now;
        self.acked = 0;
    }

    pub(super) fn extra(&self, bandwidth: f64) -> u64 {
        self.excess[0].max(self.excess[1]).min((bandwidth * Self::MOST) as u64)
    }
}
