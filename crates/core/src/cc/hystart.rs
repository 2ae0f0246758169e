//! HyStart++: leave slow start when delay rises, before the queue overflows. RFC 9406.
//!
//! ```text
//!              RTT rises by clamp(last round's RTT / 8, 4 ms, 16 ms)
//!  slow start ──────────────────────────────────▶ conservative slow start
//!      ▲                                            (a quarter of the growth)
//!      │ RTT falls below the baseline                        │ 5 rounds
//!      └─────────────────────────────────────────────────────┤
//!                                                            ▼
//!                                                   congestion avoidance
//! ```

use super::Ack;
use crate::time::Duration;

const MIN_RTT_THRESH: Duration = Duration::from_millis(4);
const MAX_RTT_THRESH: Duration = Duration::from_millis(16);
const MIN_RTT_DIVISOR: u32 = 8;
const N_RTT_SAMPLE: u32 = 8;
const CSS_GROWTH_DIVISOR: f64 = 4.0;
const CSS_ROUNDS: u32 = 5;
/// Limit L on growth per ACK, in segments, when the sender does not pace.
const L_SEGMENTS: f64 = 8.0;

/// The state of RFC 9406 §4.2 for one slow start.
#[derive(Debug, Clone, Copy)]
pub struct HyStart {
    window_end: Option<u64>,
    last_round_min_rtt: Duration,
    current_round_min_rtt: Duration,
    samples: u32,
    css: Option<Css>,
}

#[derive(Debug, Clone, Copy)]
struct Css {
    baseline_min_rtt: Duration,
    rounds: u32,
}

/// What slow start does with an ACK.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
    /// Grow by this many segments.
    Grow(f64),
    /// Slow start is over: ssthresh becomes cwnd.
    Exit,
}

impl Default for HyStart {
    fn default() -> Self {
        Self {
            window_end: None,
            last_round_min_rtt: Duration::MAX,
            current_round_min_rtt: Duration::MAX,
            samples: 0,
            css: None,
        }
    }
}

impl HyStart {
    /// Takes in an ACK for `segments` during slow start.
    pub fn on_ack(&mut self, ack: &Ack, segments: f64) -> Step {
        // A round is over when what was sent when it began is acknowledged.
        if self.window_end.is_none_or(|end| ack.unacknowledged >= end) {
            if let Some(css) = &mut self.css {
                css.rounds += 1;
                if css.rounds >= CSS_ROUNDS {
                    return Step::Exit;
                }
            }
            self.window_end = Some(ack.next_to_send);
            self.last_round_min_rtt = self.current_round_min_rtt;
            self.current_round_min_rtt = Duration::MAX;
            self.samples = 0;
        }
        if let Some(rtt) = ack.rtt {
            self.current_round_min_rtt = self.current_round_min_rtt.min(rtt);
            self.samples += 1;
        }
        if self.samples >= N_RTT_SAMPLE && self.current_round_min_rtt < Duration::MAX {
            match self.css {
                None if self.last_round_min_rtt < Duration::MAX => {
                    let thresh =
                        (self.last_round_min_rtt / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH, MAX_RTT_THRESH);
                    if self.current_round_min_rtt >= self.last_round_min_rtt + thresh {
                        self.css = Some(Css { baseline_min_rtt: self.current_round_min_rtt, rounds: 0 });
                    }
                }
                // The rise was a passing one.
                Some(css) if self.current_round_min_rtt < css.baseline_min_rtt => self.css = None,
                _ => {}
            }
        }
        let limited = if ack.paced { segments } else { segments.min(L_SEGMENTS) };
        Step::Grow(if self.css.is_some() { limited / CSS_GROWTH_DIVISOR } else { limited })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One round of ten ACKs at an RTT; returns the segments grown, or `None` on exit.
    fn round(h: &mut HyStart, n: u64, rtt_ms: u64) -> Option<f64> {
        let mut grown = 0.0;
        for i in 0..10 {
            let ack = Ack {
                unacknowledged: n * 1000 + i,
                next_to_send: (n + 1) * 1000,
                rtt: Some(Duration::from_millis(rtt_ms)),
                ..Ack::default()
            };
            match h.on_ack(&ack, 1.0) {
                Step::Grow(segments) => grown += segments,
                Step::Exit => return None,
            }
        }
        Some(grown)
    }

    #[test]
    fn a_lasting_rise_ends_slow_start_after_five_slow_rounds() {
        let mut h = HyStart::default();
        assert_eq!(round(&mut h, 0, 40), Some(10.0));
        assert_eq!(round(&mut h, 1, 44), Some(10.0), "less than an eighth is no rise");
        let rise = round(&mut h, 2, 50).unwrap();
        assert!(rise < 10.0, "{rise}");
        for n in 3..7 {
            assert_eq!(round(&mut h, n, 50), Some(2.5), "round {n}");
        }
        assert_eq!(round(&mut h, 7, 50), None);
    }

    #[test]
    fn a_passing_rise_is_forgiven() {
        let mut h = HyStart::default();
        round(&mut h, 0, 40);
        round(&mut h, 1, 60);
        round(&mut h, 2, 41);
        assert_eq!(round(&mut h, 3, 41), Some(10.0));
    }

    #[test]
    fn a_big_ack_counts_for_eight_segments_unless_paced() {
        let ack = Ack::default();
        assert_eq!(HyStart::default().on_ack(&ack, 20.0), Step::Grow(8.0));
        assert_eq!(HyStart::default().on_ack(&Ack { paced: true, ..ack }, 20.0), Step::Grow(20.0));
    }
}
