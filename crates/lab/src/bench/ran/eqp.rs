//! How long EQP decides, on 275 RBs and 64 backlogged queues, and how that grows with either.

use super::super::{Result1, figures, stats};
use anabranch_ran::amc::{Amc, NrConfig, RadioConfig};
use anabranch_ran::sched::{Allocation, Backlog, InterAlgorithm, InterConfig, InterSlice, SliceConfig, Tti};
use anyhow::Result;
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use serde_json::{Value, json};
use std::time::Instant;

const ROUNDS: usize = 10_000;
/// The shortest slot of NR, numerology 4.
const SLOT_US: f64 = 62.5;
/// RBs and groups of the full carrier: NR's configuration 1, and groups of one RB, the hardest.
const GROUPS: [u16; 2] = [16, 1];
const RBS: u16 = 275;
const QUEUES: u32 = 64;

/// What is offered to a decision.
#[derive(Debug, Clone, Copy)]
struct Load {
    rbs: u16,
    group: u16,
    queues: u32,
    slices: u16,
    /// Whether every queue has the same number of packets, small enough for the narrowest carrier measured.
    even: bool,
}

/// A series of loads that differ in one thing.
struct Growth {
    what: &'static str,
    loads: Vec<(f64, Load)>,
}

pub fn run() -> Result<Result1> {
    let mut table = figures(&["scheduler", "RBs", "group", "queues", "slices", "p50 µs", "p99 µs"]);
    let mut rows = Vec::new();
    let mut notes = Vec::new();
    let mut row = |algorithm: InterAlgorithm, load: Load, (p50, p99): (f64, f64)| {
        table.add_row([
            algorithm.name().to_owned(),
            load.rbs.to_string(),
            load.group.to_string(),
            load.queues.to_string(),
            load.slices.to_string(),
            format!("{p50:.1}"),
            format!("{p99:.1}"),
        ]);
        rows.push(json!({
            "scheduler": algorithm.name(), "rbs": load.rbs, "group": load.group, "queues": load.queues,
            "slices": load.slices, "even": load.even, "p50_us": p50, "p99_us": p99,
        }));
    };
    for algorithm in [InterAlgorithm::EqpExact, InterAlgorithm::EqpPaper] {
        let mut worst: f64 = 0.0;
        for group in GROUPS {
            for slices in [64, 8] {
                let load = Load { rbs: RBS, group, queues: QUEUES, slices, even: false };
                let took = measure(&algorithm.into(), load)?;
                worst = worst.max(took.1);
                row(algorithm, load, took);
            }
        }
        let fits = if worst <= SLOT_US { "fits" } else { "does not fit" };
        notes.push(format!("{algorithm}: p99 of at most {worst:.1} µs {fits} a slot of {SLOT_US} µs."));
    }
    let exact = InterAlgorithm::EqpExact;
    let even = |rbs, queues| Load { rbs, group: 1, queues, slices: queues as u16, even: true };
    for growth in [
        Growth { what: "queues", loads: [8, 16, 32, 64, 128].map(|n| (f64::from(n), even(RBS, n))).to_vec() },
        Growth {
            what: "RBs",
            loads: [55, 110, 165, 220, 275].map(|n| (f64::from(n), even(n, QUEUES))).to_vec(),
        },
    ] {
        let mut points = Vec::new();
        for (x, load) in growth.loads {
            let took = measure(&exact.into(), load)?;
            row(exact, load, took);
            points.push((x, took.0));
        }
        let Fit { at_zero, slope, r2 } = fit(&points);
        let exponent = fit(&points.iter().map(|(x, y)| (x.ln(), y.ln())).collect::<Vec<_>>()).slope;
        notes.push(format!(
            "{exact} over {}: {at_zero:.1} + {slope:.3} x µs (p50, least squares, R² = {r2:.3}); log-log slope \
             {exponent:.2}.",
            growth.what
        ));
    }
    Ok(Result1 { name: "eqp", table, json: Value::from(rows), notes })
}

/// Median and 99th percentile of a decision, microseconds.
fn measure(config: &InterConfig, load: Load) -> Result<(f64, f64)> {
    let Load { rbs, group, queues, slices, even } = load;
    let amc = Amc::new(&RadioConfig::Nr(NrConfig { rbs, rbg_rbs: Some(group), ..NrConfig::default() }))?;
    let of_slice: Vec<_> =
        (0..slices).map(|n| SliceConfig::new(n.to_string(), 100.0 / f64::from(slices))).collect();
    let mut scheduler = config.build(of_slice.len(), queues as usize)?;
    let mut rng = ChaCha12Rng::seed_from_u64(1);
    let mut below = |n: u32| rng.next_u32() % n;
    let mut allocation = Allocation::default();
    let (mut backlogs, mut sizes, mut took): (Vec<Backlog>, Vec<u32>, Vec<u64>) = Default::default();
    for _ in 0..ROUNDS {
        backlogs.clear();
        sizes.clear();
        for ue in 0..queues {
            let start = sizes.len();
            if even {
                sizes.extend((0..6).map(|_| 60 + below(200)));
            } else {
                let packets = 1 + below(12);
                sizes.extend((0..packets).map(|_| if below(3) == 0 { 60 + below(300) } else { 1508 }));
            }
            let bytes = sizes[start..].iter().map(|size| u64::from(*size)).sum();
            backlogs.push(Backlog {
                ue,
                slice: (ue * u32::from(slices) / queues) as u16,
                mcs: if even { 20 + below(8) as u8 } else { 4 + below(22) as u8 },
                bytes,
                sizes: start as u32..sizes.len() as u32,
            });
        }
        let tti = Tti {
            rbs,
            rbg: amc.rbg(),
            table: amc.full(),
            slices: &of_slice,
            queues: &backlogs,
            sizes: &sizes,
        };
        let from = Instant::now();
        allocation.start(&tti);
        scheduler.schedule(&tti, &mut allocation);
        took.push(u64::try_from(from.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    let us = |share, took: &mut [u64]| stats::quantile(took, share) as f64 * 1e-3;
    Ok((us(0.5, &mut took), us(0.99, &mut took)))
}

/// A straight line through points.
struct Fit {
    at_zero: f64,
    slope: f64,
    /// Share of the variance that the line explains.
    r2: f64,
}

fn fit(points: &[(f64, f64)]) -> Fit {
    let n = points.len().max(1) as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let sum = |of: &dyn Fn(f64, f64) -> f64| points.iter().map(|p| of(p.0 - x, p.1 - y)).sum::<f64>();
    let (xx, xy, yy) = (sum(&|dx, _| dx * dx), sum(&|dx, dy| dx * dy), sum(&|_, dy| dy * dy));
    let slope = xy / xx;
    Fit { at_zero: y - slope * x, slope, r2: xy * xy / (xx * yy) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found() {
        let line = fit(&[(1.0, 5.0), (2.0, 7.0), (4.0, 11.0)]);
        assert!((line.at_zero - 3.0).abs() < 1e-9 && (line.slope - 2.0).abs() < 1e-9 && line.r2 > 0.999);
        assert!(fit(&[(0.0, 0.0), (1.0, 5.0), (2.0, 0.0)]).r2 < 0.1);
    }
}
