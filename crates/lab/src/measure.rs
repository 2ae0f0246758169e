//! Computes the metrics and series of [`crate::metrics`] from the records of a flow.
//!
//! Times are seconds since the start of the run. A point of a rate series is in the middle of its sample.

use crate::backend::{Outcome, Series};
use crate::claims::percentile;
use std::collections::BTreeSet;

/// Time bounds of a flow.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Times {
    /// First moment of sending.
    pub start_s: f64,
    /// Last moment of sending.
    pub stop_s: f64,
    /// Start of the averaging window.
    pub window_from_s: f64,
    /// End of the run and of the window.
    pub end_s: f64,
    /// Width of a sample.
    pub sample_s: f64,
}

impl Times {
    fn first_s(&self) -> f64 {
        self.start_s.max(self.window_from_s)
    }

    fn last_s(&self) -> f64 {
        self.stop_s.min(self.end_s)
    }
}

/// A delivered packet of a UDP flow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrival {
    /// Sequence number, from 0.
    pub number: u64,
    /// Sending time.
    pub sent_s: f64,
    /// Arrival time.
    pub arrived_s: f64,
}

/// Maximum number of points in a series of single packets.
const MAX_POINTS: usize = 4000;

/// `goodput_mbps`, `delivered_bytes` and `outage_ms` of a flow with these deliveries (times in order, and bytes), and its goodput
/// over time.
pub fn deliveries(
    out: &mut Outcome,
    flow: &str,
    deliveries: impl Iterator<Item = (f64, u64)> + Clone,
    times: &Times,
) {
    let in_window = |t: f64| t >= times.window_from_s && t <= times.end_s;
    let bytes: u64 = deliveries.clone().filter(|(t, _)| in_window(*t)).map(|(_, n)| n).sum();
    let seconds = times.last_s() - times.first_s();
    let mut put = |name: &str, value| out.metrics.insert(format!("flow.{flow}.{name}"), value);
    put("delivered_bytes", bytes as f64);
    if seconds > 0.0 {
        put("goodput_mbps", bytes as f64 * 8e-6 / seconds);
    }
    put("outage_ms", outage_s(deliveries.clone().map(|(t, _)| t), times) * 1e3);
    let series = rate_mbps(deliveries, times.end_s, times.sample_s);
    out.series.insert(format!("flow.{flow}.goodput_mbps"), series);
}

/// The longest time without a delivery between the first one and the end of sending, within the window.
/// The time before the first delivery is connection setup. A flow without deliveries has an outage over the entire window.
#[must_use]
pub fn outage_s(deliveries: impl Iterator<Item = f64>, times: &Times) -> f64 {
    let (from, to) = (times.first_s(), times.last_s());
    let mut last = None;
    let mut longest: f64 = 0.0;
    for t in deliveries {
        let before = last.unwrap_or(t);
        // Only the part of the gap within the window counts.
        longest = longest.max(t.min(to) - f64::max(before, from));
        last = Some(t);
        if t >= to {
            break;
        }
    }
    longest.max(to - last.unwrap_or(from).max(from))
}

/// Packet metrics of a UDP flow, and its deliveries and delay over time.
pub fn packets(
    out: &mut Outcome,
    flow: &str,
    sent: u64,
    payload_bytes: u64,
    arrivals: &[Arrival],
    times: &Times,
) {
    let mut seen = BTreeSet::new();
    let (mut reordered, mut duplicates, mut highest) = (0u64, 0u64, None);
    let mut first = Vec::with_capacity(arrivals.len());
    for arrival in arrivals {
        if !seen.insert(arrival.number) {
            duplicates += 1;
            continue;
        }
        reordered += u64::from(highest.is_some_and(|h| arrival.number < h));
        highest = highest.max(Some(arrival.number));
        first.push(*arrival);
    }
    let lost = sent.saturating_sub(first.len() as u64);
    let mut put = |name: &str, value: f64| out.metrics.insert(format!("flow.{flow}.{name}"), value);
    put("sent_packets", sent as f64);
    put("lost_packets", lost as f64);
    put("lost_percent", if sent == 0 { 0.0 } else { lost as f64 * 100.0 / sent as f64 });
    put("reordered_packets", reordered as f64);
    put("duplicate_packets", duplicates as f64);
    // Packets that arrive after the end are not lost, but excluded from delays and rates.
    let within = first.iter().filter(|a| a.arrived_s <= times.end_s);
    let delays: Vec<(f64, f64)> =
        within.map(|a| (a.arrived_s, (a.arrived_s - a.sent_s).max(0.0) * 1e3)).collect();
    delay_metrics(out, flow, "delay", &delays, times);
    deliveries(out, flow, first.iter().map(|a| (a.arrived_s, payload_bytes)), times);
}

/// Percentiles within the window, and the series, of timed values in milliseconds: `delay` or `response`.
pub fn delay_metrics(out: &mut Outcome, flow: &str, what: &str, values: &[(f64, f64)], times: &Times) {
    let window: Vec<f64> = values
        .iter()
        .filter(|(t, _)| *t >= times.window_from_s && *t <= times.end_s)
        .map(|(_, v)| *v)
        .collect();
    if !window.is_empty() {
        let shares: &[(&str, f64)] = if what == "delay" {
            &[("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0)]
        } else {
            &[("p50", 0.5), ("p95", 0.95), ("p99", 0.99)]
        };
        for (name, share) in shares {
            out.metrics.insert(format!("flow.{flow}.{what}_{name}_ms"), percentile(&window, *share));
        }
    }
    out.series.insert(format!("flow.{flow}.{what}_ms"), Series { points: thinned(values) });
}

/// Converts timed bytes to a rate per sample.
#[must_use]
pub fn rate_mbps(deliveries: impl IntoIterator<Item = (f64, u64)>, end_s: f64, sample_s: f64) -> Series {
    let count = (end_s / sample_s).ceil().clamp(0.0, 1e6) as usize;
    let mut bytes = vec![0u64; count];
    for (t, n) in deliveries {
        if let Some(sum) = bytes.get_mut((t / sample_s).max(0.0) as usize) {
            *sum += n;
        }
    }
    let point = |(i, n): (usize, &u64)| ((i as f64 + 0.5) * sample_s, *n as f64 * 8e-6 / sample_s);
    Series { points: bytes.iter().enumerate().map(point).collect() }
}

/// Converts the readings of a counter to increments since the previous reading.
#[must_use]
pub fn increments(readings: &[(f64, u64)]) -> Vec<(f64, u64)> {
    let mut last = 0;
    let mut deltas = Vec::new();
    for (t, value) in readings {
        if *value > last {
            deltas.push((*t, value - last));
            last = *value;
        }
    }
    deltas
}

/// Selects at most [`MAX_POINTS`] of them, at even intervals of their index.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let step = points.len().div_ceil(MAX_POINTS).max(1);
    points.iter().step_by(step).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Times = Times { start_s: 1.0, stop_s: 9.0, window_from_s: 2.0, end_s: 10.0, sample_s: 0.5 };

    fn steady(gaps: &[(f64, f64)]) -> Vec<(f64, u64)> {
        let all = (0..800).map(|i| 1.0 + f64::from(i) * 0.01);
        all.filter(|t| !gaps.iter().any(|(a, b)| t > a && t < b)).map(|t| (t, 1250)).collect()
    }

    #[test]
    fn goodput_is_per_second_of_sending_in_the_window() {
        let mut out = Outcome::default();
        deliveries(&mut out, "f", steady(&[]).into_iter(), &TIMES);
        assert!((out.metrics["flow.f.goodput_mbps"] - 1.0).abs() < 0.01);
        assert!(out.metrics["flow.f.outage_ms"] < 21.0);
        let series = &out.series["flow.f.goodput_mbps"].points;
        assert_eq!((series.len(), series[0]), (20, (0.25, 0.0)));
        assert!((series[4].1 - 1.0).abs() < 0.05);
    }

    #[test]
    fn only_silence_while_sending_and_in_the_window_counts() {
        let outage = |gaps: &[(f64, f64)]| outage_s(steady(gaps).iter().map(|d| d.0), &TIMES);
        assert!((outage(&[(4.0, 4.5)]) - 0.5).abs() < 0.03);
        assert!((outage(&[(1.5, 2.3)]) - 0.3).abs() < 0.03, "the window begins at 2");
        assert!((outage(&[(6.0, 99.0)]) - 3.0).abs() < 0.03, "it never came back before 9");
        assert!((outage_s([0.5; 0].into_iter(), &TIMES) - 7.0).abs() < 1e-9);
        // A late first delivery is setup; deliveries after the end of sending close the last gap.
        assert!(outage_s([5.0, 9.5].into_iter(), &TIMES) - 4.0 < 1e-9);
    }

    #[test]
    fn packets_are_judged_by_number() {
        let at = |number, sent_s, arrived_s| Arrival { number, sent_s, arrived_s };
        let arrivals =
            [at(0, 3.0, 3.01), at(2, 3.2, 3.21), at(1, 3.1, 3.22), at(2, 3.2, 3.25), at(4, 3.4, 3.41)];
        let mut out = Outcome::default();
        packets(&mut out, "f", 6, 1000, &arrivals, &TIMES);
        let metric = |name: &str| out.metrics[&format!("flow.f.{name}")];
        assert_eq!(metric("lost_packets"), 2.0);
        assert_eq!(metric("reordered_packets"), 1.0);
        assert_eq!(metric("duplicate_packets"), 1.0);
        assert_eq!(metric("delivered_bytes"), 4000.0);
        assert!((metric("delay_max_ms") - 120.0).abs() < 1e-6);
        assert_eq!(out.series["flow.f.delay_ms"].points.len(), 4);
    }

    #[test]
    fn a_counter_becomes_increments() {
        assert_eq!(increments(&[(0.0, 0), (1.0, 5), (2.0, 5), (3.0, 9)]), [(1.0, 5), (3.0, 4)]);
    }
}
