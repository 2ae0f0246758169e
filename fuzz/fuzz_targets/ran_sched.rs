//! Schedulers: any carrier, slices, shares, limits and backlogs, changed from TTI to TTI.
//!
//! Whatever they are: no panic, no RB given twice, none beyond the carrier; Σ quantum = 0 and no quantum
//! beyond its bounds; no slice of `fixed` beyond its share, none of `rrm_policy` beyond its maximum; no RB idle
//! with the work-conserving ones while somebody waits.
#![no_main]

use anabranch_ran::amc::{Amc, LteConfig, NrConfig, RadioConfig, TbsTable};
use anabranch_ran::sched::eqp::Idle;
use anabranch_ran::sched::{
    Allocation, Backlog, InterAlgorithm, InterConfig, InterSlice, SliceConfig, Tti,
};
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    carrier: Carrier,
    algorithm: u8,
    idle_reset: bool,
    limit: u16,
    slices: Vec<Slice>,
    ues: Vec<u8>,
    ttis: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Carrier {
    Lte {
        rbs: u8,
    },
    Nr {
        rbs: u16,
        group: u8,
    },
    /// One MCS, so many bytes per RB.
    Linear {
        rbs: u8,
        bytes: u8,
    },
}

/// Percents, in steps of a half.
#[derive(Arbitrary, Debug, Clone, Copy)]
struct Slice {
    share: u8,
    dedicated: u8,
    min: Option<u8>,
    max: Option<u8>,
    priority: u8,
}

#[derive(Arbitrary, Debug)]
struct Step {
    /// RBs that retransmissions take.
    less_rbs: u16,
    rbg: u8,
    /// A slice with another share.
    share: Option<(u8, u8)>,
    queues: Vec<Queue>,
}

#[derive(Arbitrary, Debug)]
struct Queue {
    ue: u8,
    mcs: u8,
    sizes: Vec<u16>,
    more_bytes: u32,
}

fn config(name: usize, slice: &Slice) -> SliceConfig {
    let percent = |halves: u8| f64::from(halves) / 2.0;
    SliceConfig {
        dedicated_percent: percent(slice.dedicated),
        min_percent: slice.min.map(percent),
        max_percent: slice.max.map(percent),
        priority: slice.priority,
        ..SliceConfig::new(name.to_string(), percent(slice.share))
    }
}

/// The slices, mended where they cannot be as they are.
fn slices(of: &[Slice], config: &InterConfig) -> Vec<SliceConfig> {
    let mut slices: Vec<_> = of.iter().take(12).enumerate().map(|(i, s)| config(i, s)).collect();
    if slices.is_empty() {
        slices.push(SliceConfig::new("0", 100.0));
    }
    if config.check_slices(&slices).is_err() {
        let all = slices.len() as f64;
        for slice in &mut slices {
            *slice = SliceConfig {
                share_percent: slice.share_percent.min(100.0 / all),
                dedicated_percent: 0.0,
                min_percent: None,
                max_percent: None,
                ..slice.clone()
            };
        }
        config.check_slices(&slices).expect("slices that can be");
    }
    slices
}

fuzz_target!(|input: Input| {
    let (table, rbg) = match input.carrier {
        Carrier::Lte { rbs } => {
            let radio = RadioConfig::Lte(LteConfig { rbs: rbs.into(), ..LteConfig::default() });
            let Ok(amc) = Amc::new(&radio) else { return };
            (amc.full().clone(), amc.rbg())
        }
        Carrier::Nr { rbs, group } => {
            let rbg_rbs = (group > 0).then_some(group.into());
            let Ok(amc) = Amc::new(&RadioConfig::Nr(NrConfig { rbs, rbg_rbs, ..NrConfig::default() })) else {
                return;
            };
            (amc.full().clone(), amc.rbg())
        }
        Carrier::Linear { rbs, bytes } => (TbsTable::linear(u32::from(bytes).max(1), rbs.into()), 1),
    };
    let mut config = InterConfig::from(InterAlgorithm::ALL[usize::from(input.algorithm) % 7]);
    let mut slices = slices(&input.slices, &config);
    let places = slices.len();
    let limit = u32::from(input.limit).max(1);
    let mut conserving = false;
    match &mut config {
        InterConfig::EqpExact(params) | InterConfig::EqpPaper(params) => {
            params.quantum_limit_rbs = limit;
            params.idle = if input.idle_reset { Idle::IdleReset } else { Idle::Strict };
            conserving = input.idle_reset;
        }
        InterConfig::GpsPacking(params) => {
            params.lag_limit_rbs = limit;
            conserving = true;
        }
        InterConfig::StaticPriority(_) | InterConfig::Drr(_) => conserving = true,
        InterConfig::Fixed(_) | InterConfig::RrmPolicy(_) => {}
    }
    let ues = input.ues.len().min(48);
    let mut scheduler = config.build(places, ues).expect("a scheduler");
    // 1/2 + 1/3 + … + 1/n, and the largest group so far.
    let harmonic: f64 = (2..=places).map(|k| 1.0 / k as f64).sum();
    let mut group = 0_u32;
    let (mut allocation, mut backlogs, mut sizes) = (Allocation::default(), Vec::new(), Vec::new());
    for step in input.ttis.iter().take(64) {
        if let Some((place, share)) = step.share {
            let slice = &mut slices[usize::from(place) % places];
            let before = slice.share_percent;
            slice.share_percent = f64::from(share) / 2.0;
            if config.check_slices(&slices).is_err() {
                slices[usize::from(place) % places].share_percent = before;
            }
        }
        // By slice, each UE once.
        backlogs.clear();
        sizes.clear();
        for slice in 0..places {
            let of_slice = |ue: usize| usize::from(input.ues[ue]) % places == slice;
            let mut listed = 0_u64;
            for queue in step.queues.iter().take(48) {
                let ue = usize::from(queue.ue);
                if ue >= ues || !of_slice(ue) || listed >> ue & 1 == 1 {
                    continue;
                }
                listed |= 1 << ue;
                let start = sizes.len() as u32;
                sizes.extend(queue.sizes.iter().take(64).map(|size| u32::from(*size).max(1)));
                let sum: u64 = sizes[start as usize..].iter().map(|size| u64::from(*size)).sum();
                backlogs.push(Backlog {
                    ue: ue as u32,
                    slice: slice as u16,
                    mcs: queue.mcs % (table.max_mcs() + 1),
                    bytes: (sum + u64::from(queue.more_bytes)).max(1),
                    sizes: start..sizes.len() as u32,
                });
            }
        }
        let rbs = table.rbs().saturating_sub(step.less_rbs);
        let rbg = if step.rbg == 0 { rbg } else { u16::from(step.rbg) };
        let tti = Tti { rbs, rbg, table: &table, slices: &slices, queues: &backlogs, sizes: &sizes };
        allocation.start(&tti);
        scheduler.schedule(&tti, &mut allocation);

        assert_eq!(allocation.grants.len(), backlogs.len());
        let granted: u64 = allocation.grants.iter().map(|rbs| u64::from(*rbs)).sum();
        assert_eq!(granted + u64::from(allocation.unused_rbs()), u64::from(rbs), "every RB once, or not");
        for (slice, share) in slices.iter().enumerate().take(places) {
            let of_slice = allocation.queues_of(slice).map(|queue| allocation.grants[queue]);
            assert_eq!(of_slice.sum::<u16>(), allocation.slice_rbs(slice));
            let most = match &config {
                InterConfig::Fixed(_) => share.share_percent,
                InterConfig::RrmPolicy(_) => share.max_percent.unwrap_or(100.0),
                _ => 100.0,
            };
            let most = most / 100.0 * f64::from(rbs) + 1e-6;
            assert!(f64::from(allocation.slice_rbs(slice)) <= most, "slice {slice}: more than {most} RBs");
        }
        let balances = scheduler.balances();
        if let InterConfig::EqpExact(_) | InterConfig::EqpPaper(_) = &config {
            assert_eq!(balances.iter().map(|quantum| i64::from(*quantum)).sum::<i64>(), 0, "Σ quantum");
            // Groups are given whole; see the top of `eqp`.
            group = group.max(rbg.min(rbs).into());
            let owes = i64::from(limit.max(group));
            let owed = i64::from(limit) + if group > 1 { (f64::from(group) * harmonic) as i64 } else { 0 };
            let within = balances.iter().all(|quantum| (-owes..=owed).contains(&i64::from(*quantum)));
            assert!(within, "quanta {balances:?} with limit {limit} and groups of up to {group}");
        }
        if conserving && allocation.unused_rbs() > 0 {
            let unmet: u32 = (0..places).map(|slice| allocation.unmet_rbs(slice)).sum();
            assert_eq!(unmet, 0, "{} RBs are idle", allocation.unused_rbs());
        }
    }
});
