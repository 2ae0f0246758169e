//! Time taken by one slot's scheduling decision: every inter-slice scheduler on up to 275 RBs and 64 backlogged UEs.
//!
//! `cargo bench -p anabranch-ran --bench sched` prints the median and the 99th percentile. EQP must fit into the
//! shortest NR slot, 62.5 µs.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use anabranch_ran::amc::{Amc, NrConfig, RadioConfig};
use anabranch_ran::sched::{Allocation, Backlog, InterAlgorithm, InterConfig, InterSlice, SliceConfig, Tti};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use std::time::Instant;

const ROUNDS: usize = 20_000;

/// Median and 99th percentile of the decision time in microseconds, for `queues` UEs in `slices` slices on `rbs` RBs in
/// groups of `group`.
fn measure(config: &InterConfig, (rbs, group): (u16, u16), queues: u32, slices: u16) -> (f64, f64) {
    let amc = Amc::new(&RadioConfig::Nr(NrConfig { rbs, rbg_rbs: Some(group), ..NrConfig::default() }))
        .expect("a carrier");
    let of_slice: Vec<_> =
        (0..slices).map(|n| SliceConfig::new(n.to_string(), 100.0 / f64::from(slices))).collect();
    let mut scheduler = config.build(of_slice.len(), queues as usize).expect("a scheduler");
    let mut rng = ChaCha12Rng::seed_from_u64(1);
    let (mut allocation, mut took) = (Allocation::default(), Vec::with_capacity(ROUNDS));
    let (mut backlogs, mut sizes): (Vec<Backlog>, Vec<u32>) = Default::default();
    for _ in 0..ROUNDS {
        backlogs.clear();
        sizes.clear();
        for ue in 0..queues {
            let start = sizes.len() as u32;
            for _ in 0..1 + rng.next_u32() % 12 {
                sizes.push(if rng.next_u32().is_multiple_of(3) { 60 + rng.next_u32() % 300 } else { 1508 });
            }
            let bytes = sizes[start as usize..].iter().map(|size| u64::from(*size)).sum();
            let slice = (ue * u32::from(slices) / queues) as u16;
            let mcs = 4 + (rng.next_u32() % 22) as u8;
            backlogs.push(Backlog { ue, slice, mcs, bytes, sizes: start..sizes.len() as u32 });
        }
        let (table, rbg) = (amc.full(), amc.rbg());
        let tti = Tti { rbs, rbg, table, slices: &of_slice, queues: &backlogs, sizes: &sizes };
        let from = Instant::now();
        allocation.start(&tti);
        scheduler.schedule(&tti, &mut allocation);
        took.push(from.elapsed().as_nanos() as f64 / 1e3);
    }
    took.sort_by(f64::total_cmp);
    (took[ROUNDS / 2], took[ROUNDS * 99 / 100])
}

fn main() {
    println!(
        "{:>15} {:>5} {:>5} {:>5} {:>7}   p50 µs   p99 µs",
        "scheduler", "RBs", "group", "UEs", "slices"
    );
    for algorithm in InterAlgorithm::ALL {
        for (rbs, group, queues, slices) in [
            (275, 16, 64, 64),
            (275, 16, 64, 8),
            (275, 16, 32, 32),
            (275, 1, 64, 64),
            (137, 1, 64, 64),
            (68, 1, 64, 64),
            (25, 2, 2, 2),
        ] {
            let (median, p99) = measure(&algorithm.into(), (rbs, group), queues, slices);
            println!(
                "{:>15} {rbs:>5} {group:>5} {queues:>5} {slices:>7} {median:>8.2} {p99:>8.2}",
                algorithm.name()
            );
        }
    }
}
