//! HyStart: ends slow start when ACKs show that the path is full, before the queue overflows. Ha and Rhee, *Hybrid slow start
//! for high-bandwidth and long-distance networks*, PFLDnet 2008, as in `tcp_cubic.c` of Linux 6.18.
//!
//! ```text
//!   ACKs of one round trip
//!   ─|||||||||||||||||||||||──────────────────▶ t
//!    └───── train ────────┘  longer than half the minimum RTT (+ 1 ms): a window fills half of the path there and back
//!       minimum of the first 8 RTTs > minimum RTT + 1/8 of it (4 ms to 16 ms): there is a standing queue
//! ```
//!
//! RFC 9406 (HyStart++) uses no train, compares a round with the previous one, and slows down before it stops; Linux has not
//! adopted it.

use super::Ack;
use anabranch_element::time::{Duration, Instant};

/// Windows below this number of segments are too small for a decision.
const LOW_WINDOW: f64 = 16.0;
/// A larger gap between ACKs ends a train.
const TRAIN_GAP: Duration = Duration::from_millis(2);
/// Time that offloads at both ends may add to a train. Above 2 Gbit/s, Linux uses less.
const OFFLOAD_DELAY: Duration = Duration::from_millis(1);
const MIN_RISE: Duration = Duration::from_millis(4);
const MAX_RISE: Duration = Duration::from_millis(16);
const RISE_DIVISOR: u32 = 8;
const SAMPLES: u32 = 8;

/// State of a slow start.
#[derive(Debug, Clone, Copy, Default)]
pub struct HyStart {
    /// The round ends when more than this is acknowledged; `None` before the first ACK.
    end: Option<u64>,
    started: Instant,
    /// Time of the last ACK of the train.
    last_train_ack: Instant,
    min_rtt: Option<Duration>,
    samples: u32,
}

impl HyStart {
    /// Processes an ACK in slow start with a window of `cwnd` segments; `min_rtt` is the minimum RTT of the connection. Returns
    /// whether slow start must end.
    pub fn on_ack(&mut self, ack: &Ack, rtt: Duration, min_rtt: Duration, cwnd: f64) -> bool {
        if self.end.is_none_or(|end| ack.unacknowledged > end) {
            let end = Some(ack.next_to_send);
            *self = Self { end, started: ack.now, last_train_ack: ack.now, min_rtt: None, samples: 0 };
        }
        if cwnd < LOW_WINDOW {
            return false;
        }
        let mut full = false;
        if ack.now.saturating_since(self.last_train_ack) <= TRAIN_GAP {
            self.last_train_ack = ack.now;
            let length = min_rtt + OFFLOAD_DELAY;
            // A pacing sender spreads a window over half a round trip by itself.
            let length = if ack.paced { length } else { length / 2 };
            full = ack.now.saturating_since(self.started) > length;
        }
        let round = self.min_rtt.map_or(rtt, |round| round.min(rtt));
        self.min_rtt = Some(round);
        if self.samples < SAMPLES {
            self.samples += 1;
            return full;
        }
        full || round > min_rtt + (min_rtt / RISE_DIVISOR).clamp(MIN_RISE, MAX_RISE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A round of `acks` ACKs, `apart` from each other, all with the same RTT; returns whether one of them ends slow start.
    fn round(h: &mut HyStart, n: u64, acks: u32, apart: Duration, rtt_ms: u32, paced: bool) -> bool {
        (0..acks).any(|i| {
            let ack = Ack {
                now: Instant::from_secs(n) + apart * i,
                unacknowledged: n * 1000 + u64::from(i) + 1,
                next_to_send: (n + 1) * 1000,
                paced,
                ..Ack::default()
            };
            h.on_ack(&ack, MS * rtt_ms, MS * 40, 20.0)
        })
    }

    #[test]
    fn a_rise_of_an_eighth_in_all_first_samples_is_a_queue() {
        let mut h = HyStart::default();
        assert!(!round(&mut h, 0, 10, 3 * MS, 40, false));
        assert!(!round(&mut h, 1, 10, 3 * MS, 45, false), "an eighth is no rise");
        assert!(!round(&mut h, 2, 8, 3 * MS, 46, false), "too few samples");
        assert!(round(&mut h, 3, 9, 3 * MS, 46, false));
    }

    #[test]
    fn one_fast_ack_among_the_first_means_no_queue() {
        let mut h = HyStart::default();
        let ack = Ack { now: Instant::from_secs(5), unacknowledged: 1, next_to_send: 1000, ..Ack::default() };
        assert!(!h.on_ack(&ack, MS * 40, MS * 40, 20.0));
        assert!(!(2..50u64).any(|i| {
            let now = ack.now + 3 * MS * i as u32;
            h.on_ack(&Ack { now, unacknowledged: i, ..ack }, MS * 90, MS * 40, 20.0)
        }));
    }

    #[test]
    fn a_train_longer_than_half_the_round_trip_fills_the_path() {
        let mut h = HyStart::default();
        assert!(!round(&mut h, 0, 20, MS, 40, false), "19 ms of 20.5");
        assert!(!round(&mut h, 1, 20, 3 * MS, 40, false), "57 ms, but with gaps");
        assert!(!round(&mut h, 2, 30, MS, 40, true), "29 ms of 41, paced");
        assert!(round(&mut h, 3, 22, MS, 40, false), "21 ms");
        assert!(round(&mut h, 4, 43, MS, 40, true), "42 ms, paced");
    }

    #[test]
    fn small_windows_do_not_end_slow_start() {
        let mut h = HyStart::default();
        assert!(!(1..99u64).any(|i| {
            let ack =
                Ack { now: Instant::from_millis(i), unacknowledged: 1, next_to_send: 1000, ..Ack::default() };
            h.on_ack(&ack, MS * 90, MS * 40, 15.0)
        }));
    }
}
