//! Metrics and series from the observations of the network and the tunnel ends.

use super::backend::Observations;
use super::observe::{AckObservations, TraceObservations};
use super::program::Program;
use super::tunnels::{Tunnels, has_lane};
use crate::backend::{Outcome, Series};
use crate::measure::{Times, increments, rate_mbps};
use crate::scenario::Case;
use anyhow::{Context, Result};
use std::path::Path;

/// Metrics of accesses and links.
pub(super) fn network(case: &Case, seen: &Observations, out: &mut Outcome) {
    let (end_s, sample_s) = (seen.end_s, case.sample.as_secs_f64());
    let from_s = case.measure_from.as_secs_f64();
    // The bytes between two readings are placed in the middle of the interval.
    let deltas = |readings: &[(f64, [u64; 2])], way: usize| {
        let one: Vec<(f64, u64)> = readings.iter().map(|(t, both)| (t - sample_s / 2.0, both[way])).collect();
        increments(&one)
    };
    let in_window = |deltas: &[(f64, u64)]| -> u64 {
        deltas.iter().filter(|(t, _)| *t >= from_s && *t <= end_s).map(|(_, n)| n).sum()
    };
    for (ue, of) in &case.ues {
        for (way, name) in ["up", "down"].into_iter().enumerate() {
            let all: Vec<_> = of
                .accesses
                .iter()
                .filter_map(|a| {
                    let readings = seen.network.accesses.get(&(ue.clone(), a.name.clone()))?;
                    let within: Vec<_> =
                        readings.iter().filter(|(t, _)| *t <= end_s + sample_s).copied().collect();
                    Some((&a.name, within))
                })
                .collect();
            let sum: u64 = all.iter().map(|(_, r)| in_window(&deltas(r, way))).sum();
            for (access, readings) in &all {
                let path = format!("ue.{ue}.path.{access}");
                let deltas = deltas(readings, way);
                let bytes = readings.last().map_or(0, |(_, both)| both[way]);
                out.metrics.insert(format!("{path}.{name}_bytes"), bytes as f64);
                let share = if sum == 0 { 0.0 } else { in_window(&deltas) as f64 * 100.0 / sum as f64 };
                out.metrics.insert(format!("{path}.{name}_share_percent"), share);
                out.series.insert(format!("{path}.{name}_mbps"), rate_mbps(deltas, end_s, sample_s));
            }
        }
    }
    for (link, both) in &seen.network.links {
        for (name, c) in ["up", "down"].into_iter().zip(both) {
            let mut put = |what: &str, value: u64| {
                out.metrics.insert(format!("link.{link}.{name}.{what}"), value as f64)
            };
            put("carried_bytes", c.bytes_out);
            put("queue_drops", c.queue_drops);
            put("random_losses", c.random_drops);
            put("down_losses", c.down_drops + c.black_hole_drops);
        }
    }
    for (link, late) in &seen.network.late_p99_us {
        out.metrics.insert(format!("link.{link}.late_p99_us"), *late);
    }
    for (link, readings) in &seen.network.queues {
        for (way, name) in ["up", "down"].into_iter().enumerate() {
            let points = readings.iter().map(|(t, both)| (*t, both[way] as f64)).collect();
            out.series.insert(format!("link.{link}.{name}.queue_bytes"), Series { points });
        }
    }
}

/// Metrics of the tunnel ends.
///
/// # Errors
/// A log cannot be read.
pub(super) fn ends(case: &Case, tunnels: &Tunnels, seen: &Observations, out: &mut Outcome) -> Result<()> {
    let (from_s, end_s) = (case.measure_from.as_secs_f64(), seen.end_s);
    for ((ue, access), rtts) in &seen.rtts {
        let path = format!("ue.{ue}.path.{access}");
        let measured: Vec<f64> = rtts
            .iter()
            .filter(|(t, rtt)| *t >= from_s && *t <= end_s && *rtt > 0.0)
            .map(|(_, rtt)| *rtt)
            .collect();
        if !measured.is_empty() {
            let mean = measured.iter().sum::<f64>() / measured.len() as f64;
            out.metrics.insert(format!("{path}.rtt_ms"), mean);
        }
        out.series.insert(format!("{path}.rtt_ms"), Series { points: rtts.clone() });
    }
    for ue in tunnels.ues.keys() {
        for access in case.ues.get(ue).iter().flat_map(|u| &u.accesses) {
            let failures = |events: &Vec<super::agent::Event>| {
                let of_path = events.iter().filter(|e| {
                    e.kind == "path-down"
                        && e.access.as_ref() == Some(&access.name)
                        && e.ue.as_ref().is_none_or(|name| name == ue)
                });
                of_path.count()
            };
            let at_ue = seen.events_by_end[0].get(ue).map_or(0, failures);
            let at_upf = case.ues.get(ue).and_then(|u| seen.events_by_end[1].get(&u.upf)).map_or(0, failures);
            // A failure that one end detects and reports to the other counts once.
            out.metrics.insert(format!("ue.{ue}.path.{}.failures", access.name), at_ue.max(at_upf) as f64);
        }
    }
    for (ue, running) in tunnels.ues.iter().filter(|(ue, _)| has_lane(&case.ues[*ue].rules)) {
        let lane = running.agent.tcp_lane()?;
        let flows = lane.carried.iter().filter(|c| c.carrier == "mptcp").map(|c| c.flows).sum::<u64>();
        out.metrics.insert(format!("ue.{ue}.tcp_lane_flows"), flows as f64);
    }
    for (kind, ends) in [("ue", &tunnels.ues), ("upf", &tunnels.upfs)] {
        for (name, running) in ends {
            let program: &Program = &running.program;
            let usage = seen.usage.get(&program.pid());
            let growth = usage.and_then(|usage| growth_percent(&usage.memory, end_s));
            let cpu = usage.and_then(|usage| cpu_percent(&usage.cpu, from_s, end_s));
            for (what, value) in [("memory_growth_percent", growth), ("cpu_percent", cpu)] {
                out.metrics.extend(value.map(|value| (format!("{kind}.{name}.{what}"), value)));
            }
            out.metrics.insert(format!("{kind}.{name}.log_errors"), log_errors(program.log())? as f64);
        }
    }
    Ok(())
}

/// Cost of a flow's telemetry, and the reports received by its sender.
pub(super) fn telemetry(
    flow: &str,
    acks: Option<&AckObservations>,
    traces: Option<&TraceObservations>,
    cwnd: &[(f64, f64)],
    times: &Times,
    out: &mut Outcome,
) {
    let traces = traces.copied().unwrap_or_default();
    let bytes = acks.map_or([0; 2], |acks| acks.bytes);
    let mut put = |what: &str, value: f64| out.metrics.insert(format!("flow.{flow}.{what}"), value);
    put("traces", traces.traces as f64);
    put("reports", acks.map_or(0, |acks| acks.reports) as f64);
    let all = (traces.bytes[0] + bytes[0]) as f64;
    put("telemetry_percent", (traces.bytes[1] + bytes[1]) as f64 * 100.0 / all.max(1.0));
    let told = sampled(acks.map_or(&[][..], |acks| acks.reports_over_time.as_slice()), times);
    let depth = told.iter().filter_map(|(at, told)| Some((*at, told.depth_bytes? as f64))).collect();
    let losses =
        told.windows(2).map(|w| (w[1].0, f64::from(w[1].1.losses.wrapping_sub(w[0].1.losses)))).collect();
    let changes = sampled(cwnd, times).windows(2).map(|w| (w[1].0, w[1].1 - w[0].1)).collect();
    for (what, points) in
        [("told_queue_bytes", depth), ("told_losses", losses), ("cwnd_change_bytes", changes)]
    {
        out.series.insert(format!("flow.{flow}.{what}"), Series { points });
    }
}

/// The latest value at the end of every sampling interval.
fn sampled<T: Copy>(changes: &[(f64, T)], times: &Times) -> Vec<(f64, T)> {
    let mut points = Vec::new();
    let mut next = changes.iter().peekable();
    let mut last = None;
    for sample in 1.. {
        let at = f64::from(sample) * times.sample_s;
        if at > times.end_s + times.sample_s / 2.0 {
            break;
        }
        while let Some((_, value)) = next.next_if(|(change, _)| *change <= at) {
            last = Some(*value);
        }
        points.extend(last.map(|value| (at, value)));
    }
    points
}

/// Growth of memory from one fifth of the run, when buffers have reached their size, to the end, percent.
fn growth_percent(readings: &[(f64, u64)], end_s: f64) -> Option<f64> {
    let mean = |from: f64, to: f64| {
        let all: Vec<f64> = readings
            .iter()
            .filter(|(t, _)| *t >= from * end_s && *t <= to * end_s)
            .map(|(_, b)| *b as f64)
            .collect();
        (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
    };
    let (early, late) = (mean(0.1, 0.2)?, mean(0.9, 1.0)?);
    Some((late / early - 1.0) * 100.0)
}

/// Processor time within an interval, percent of one core.
fn cpu_percent(readings: &[(f64, f64)], from_s: f64, end_s: f64) -> Option<f64> {
    let within = || readings.iter().filter(|(t, _)| *t >= from_s && *t <= end_s);
    let (first, last) = (within().next()?, within().next_back()?);
    (last.0 > first.0).then(|| (last.1 - first.1) / (last.0 - first.0) * 100.0)
}

/// Log message of a tunnel end when an access goes down, which is expected.
const PATH_EVENT: &str = "not usable: no carrier";

/// Number of log lines of level WARN or ERROR, except those about accesses that go down.
fn log_errors(log: &Path) -> Result<usize> {
    let text = std::fs::read(log).with_context(|| log.display().to_string())?;
    let text = String::from_utf8_lossy(&text);
    let bad = |line: &&str| {
        let level = line.split_whitespace().take(2).any(|word| word == "WARN" || word == "ERROR");
        level && !line.contains(PATH_EVENT)
    };
    Ok(text.lines().filter(bad).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_growth_is_from_the_fifth_to_the_end() {
        let steady: Vec<(f64, u64)> =
            (0..100).map(|i| (f64::from(i), if i < 10 { 5 } else { 100 })).collect();
        assert_eq!(growth_percent(&steady, 100.0), Some(0.0));
        let leak: Vec<(f64, u64)> = (0..100).map(|i| (f64::from(i), 1000 + i as u64 * 10)).collect();
        assert!(growth_percent(&leak, 100.0).unwrap() > 60.0);
        assert_eq!(growth_percent(&[], 100.0), None);
    }

    #[test]
    fn processor_time_is_that_within_the_window() {
        let busy_from_2s: Vec<(f64, f64)> = (0..=10).map(|t| (t.into(), f64::from((t - 2).max(0)))).collect();
        assert_eq!(cpu_percent(&busy_from_2s, 2.0, 10.0), Some(100.0));
        assert_eq!(cpu_percent(&busy_from_2s, 0.0, 4.0), Some(50.0));
        assert_eq!(cpu_percent(&busy_from_2s, 9.5, 10.0), None);
        let own = crate::netns::program::cpu_s(std::process::id()).unwrap();
        assert!((0.0..1e6).contains(&own), "{own}");
    }

    #[test]
    fn samples_have_the_latest_value() {
        let times = Times { sample_s: 0.1, end_s: 0.5, ..Times::default() };
        let points = sampled(&[(0.15, 1), (0.21, 2), (0.29, 3), (0.6, 4)], &times);
        let expected = [(0.2, 1), (0.3, 3), (0.4, 3), (0.5, 3)];
        assert_eq!(points.len(), expected.len());
        assert!(
            points.iter().zip(expected).all(|(a, b)| (a.0 - b.0).abs() < 1e-9 && a.1 == b.1),
            "{points:?}"
        );
    }

    #[test]
    fn errors_are_found_by_their_level() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("l");
        let text = "2026-01-01T00:00:00Z  WARN anabranch: a\n2026-01-01T00:00:00Z  INFO anabranch: no WARN here\n\
                    2026-01-01T00:00:00Z ERROR anabranch: b\n\
                    2026-01-01T00:00:00Z  WARN anabranch::agent::ue_access: not usable: no carrier access=\"wifi\"\n";
        std::fs::write(&log, text).unwrap();
        assert_eq!(log_errors(&log).unwrap(), 2);
    }
}
