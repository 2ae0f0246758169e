//! Estimated round trips while packets are permanently out of order.

use super::*;
use std::collections::{BTreeMap, BTreeSet};

/// A server that sends a segment every millisecond, alternating between two legs.
#[derive(Clone, Copy)]
struct Path {
    /// Period of the server's clock, microseconds; 0: no timestamps.
    tick_us: u64,
    base: u32,
    /// The UE acknowledges every second segment that is in order.
    delays_acks: bool,
    /// Every n-th segment is lost and retransmitted after 150 ms.
    loses: Option<u64>,
}

const STEADY: Path = Path { tick_us: 1_000, base: 7, delays_acks: false, loses: None };
/// Round trips behind the node by LTE and by Wi-Fi, microseconds. From the step on, both are longer.
const LEGS_US: [u64; 2] = [30_000, 10_000];
const STEP_AT_US: u64 = 2_000_000;
const STEP_US: u64 = 40_000;

/// A UE that follows RFC 5681 and RFC 7323 §4.3.
#[derive(Default)]
struct Receiver {
    next: u64,
    acked: u64,
    early: BTreeSet<u64>,
    recent: Option<u32>,
}

impl Receiver {
    /// Receives a segment; returns the acknowledgment to send, if any.
    fn take(&mut self, n: u64, value: Option<u32>, delays: bool) -> Option<u64> {
        if n <= self.acked
            && self.recent.is_none_or(|old| value.is_some_and(|v| v.wrapping_sub(old) as i32 > 0))
        {
            self.recent = value;
        }
        let had_gap = !self.early.is_empty();
        if n >= self.next {
            self.early.insert(n);
        }
        let before = self.next;
        while self.early.remove(&self.next) {
            self.next += 1;
        }
        let is_plain = self.next == before + 1 && !had_gap;
        if delays && is_plain && self.next < self.acked + 2 {
            return None;
        }
        self.acked = self.next;
        Some(self.next)
    }
}

/// Time in microseconds, R' and SRTT in milliseconds, at each ACK.
fn run(path: Path) -> Vec<(u64, f64, f64)> {
    enum What {
        Down(u64),
        Arrives(u64, Option<u32>),
        Up(u64, Option<u32>, Option<u64>),
    }
    let mut w = World::new(config(None), false);
    w.handshake();
    let mut ue = Receiver::default();
    let mut due: BTreeMap<(u64, u64), What> = (0..4_000).map(|n| ((n * 1_000, n), What::Down(n))).collect();
    let (mut seen, mut number, mut lost) = (Vec::new(), 10_000, BTreeSet::new());
    while let Some(((us, _), what)) = due.pop_first() {
        w.now = Instant::from_micros(1_000_000 + us);
        number += 1;
        match what {
            What::Down(n) => {
                let value = (path.tick_us > 0).then(|| path.base.wrapping_add((us / path.tick_us) as u32));
                let options =
                    TcpOptions { timestamps: value.map(|value| (value, 0)), ..TcpOptions::default() };
                let seq = w.base.wrapping_add(n as u32 * 1_000);
                let header = TcpHeader { seq, ack: 1, flags: TcpFlags::ACK, window: 500, options };
                w.down(emit_packet(w.server, w.ue, &header, &[7; 1_000]).unwrap());
                if path.loses.is_some_and(|every| n % every == 5) && lost.insert(n) {
                    due.insert((us + 150_000, number), What::Down(n));
                    continue;
                }
                let step_us = if us >= STEP_AT_US { STEP_US } else { 0 };
                due.insert((us + LEGS_US[n as usize % 2] + step_us, number), What::Arrives(n, value));
            }
            What::Arrives(n, value) => {
                if let Some(ack) = ue.take(n, value, path.delays_acks) {
                    due.insert((us, number), What::Up(ack, ue.recent, ue.early.first().copied()));
                }
            }
            What::Up(ack, echo, early) => {
                let mut header = w.ack_header(ack as u32 * 1_000);
                header.options.timestamps = echo.map(|echo| ((us / 1_000) as u32, echo));
                if let Some(early) = early {
                    let left = w.base.wrapping_add(early as u32 * 1_000);
                    header.options.sack.push(left, left.wrapping_add(1_000));
                }
                w.up(w.uplink_packet(&header, &[]));
                let trips = w.node.flows().next().and_then(|flow| flow.round_trips);
                seen.extend(trips.map(|trips| (us, trips.last_s * 1e3, trips.smoothed_s * 1e3)));
            }
        }
    }
    seen
}

/// Checks that every sample is a round trip of some leg to within `off_ms`, and that samples follow the step within
/// `within_us`.
fn follows(path: Path, off_ms: f64, within_us: u64) {
    let seen = run(path);
    let legs = [LEGS_US[1] as f64 / 1e3, LEGS_US[0] as f64 / 1e3];
    let step = STEP_US as f64 / 1e3;
    for (us, last, _) in &seen {
        let (low, high) = match us {
            ..STEP_AT_US => (legs[0], legs[1]),
            // Segments in flight at the step may still be answered.
            us if *us < STEP_AT_US + within_us => (legs[0], legs[1] + step),
            _ => (legs[0] + step, legs[1] + step),
        };
        assert!((low - 0.01..=high + off_ms).contains(last), "{last} ms at {us} us, {low} to {high}");
    }
    let smoothed =
        |at: u64| seen.iter().rev().find(|(us, ..)| *us <= at).map(|(.., smoothed)| *smoothed).unwrap();
    let (before, after) = (smoothed(STEP_AT_US), smoothed(STEP_AT_US + 20 * within_us));
    assert!((after - before - step).abs() < 0.3 * step, "{before} ms before, {after} ms after");
}

#[test]
fn timestamps_give_correct_round_trips_under_permanent_reordering() {
    // Allowance for the timestamp of a millisecond, and for the second segment of a delayed ACK.
    follows(STEADY, 1.0, 100_000);
    follows(Path { delays_acks: true, ..STEADY }, 2.0, 100_000);
    for base in [u32::MAX - 2_000, i32::MAX as u32 - 2_000] {
        follows(Path { base, ..STEADY }, 1.0, 100_000);
    }
}

#[test]
fn losses_do_not_distort_round_trips() {
    for loses in [7, 23, 97] {
        follows(Path { loses: Some(loses), ..STEADY }, 1.0, 300_000);
        follows(Path { loses: Some(loses), delays_acks: true, ..STEADY }, 2.0, 300_000);
    }
}

#[test]
fn without_usable_timestamps_round_trips_are_measured_by_sequence_numbers() {
    // One segment at a time is timed, and half of them wait behind a gap.
    for tick_us in [0, 1_000_000, 10_000] {
        follows(Path { tick_us, ..STEADY }, 1.0, 400_000);
        follows(Path { tick_us, loses: Some(997), ..STEADY }, 1.0, 600_000);
    }
}
