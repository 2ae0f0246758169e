//! Every inter-slice scheduler on the same cells: the guarantees of each with any traffic.

mod expect;
mod policy;
mod shares;

use super::*;
use crate::amc::{Amc, LteConfig, RadioConfig};
use crate::sched::eqp::{EqpParams, Idle};
use crate::sched::gps_packing::GpsPackingParams;
use proptest::prelude::*;
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

/// A cell with `bytes` bytes per RB, as in the paper's examples.
fn linear(bytes: u32, rbs: u16) -> TbsTable {
    TbsTable::linear(bytes, rbs)
}

/// UEs with packets, a table and a scheduler, whose grants empty the queues.
struct Cell {
    table: TbsTable,
    rbg: u16,
    slices: Vec<SliceConfig>,
    scheduler: AnyInter,
    /// Slice and packets of each UE.
    ues: Vec<(u16, Vec<u32>)>,
    allocation: Allocation,
    /// RBs of each slice, and packets sent.
    got: Vec<u64>,
    left_whole: u64,
    unused: u64,
}

impl Cell {
    fn new(config: &InterConfig, shares: &[f64], table: TbsTable, rbg: u16, ues: &[u16]) -> Self {
        let slices: Vec<_> =
            (0..).zip(shares).map(|(i, s): (u32, _)| SliceConfig::new(i.to_string(), *s)).collect();
        config.check_slices(&slices).unwrap();
        Self {
            table,
            rbg,
            scheduler: config.build(slices.len(), ues.len()).unwrap(),
            got: vec![0; slices.len()],
            slices,
            ues: ues.iter().map(|slice| (*slice, Vec::new())).collect(),
            allocation: Allocation::default(),
            left_whole: 0,
            unused: 0,
        }
    }

    /// Runs one TTI with `rbs` RBs at MCS 0; returns the UEs whose packets were all sent.
    fn tti(&mut self, rbs: u16) -> Vec<(usize, usize)> {
        let (mut queues, mut sizes) = (Vec::new(), Vec::new());
        for slice in 0..self.slices.len() {
            for (ue, (_, packets)) in self.ues.iter().enumerate().filter(|(_, u)| usize::from(u.0) == slice) {
                if packets.is_empty() {
                    continue;
                }
                let from = sizes.len() as u32;
                sizes.extend(packets);
                let bytes = packets.iter().map(|p| u64::from(*p)).sum();
                let sizes = from..sizes.len() as u32;
                queues.push(Backlog { ue: ue as u32, slice: slice as u16, mcs: 0, bytes, sizes });
            }
        }
        let (table, slices) = (&self.table, &self.slices[..]);
        let tti = Tti { rbs, rbg: self.rbg, table, slices, queues: &queues, sizes: &sizes };
        self.allocation.start(&tti);
        self.scheduler.schedule(&tti, &mut self.allocation);
        let granted: u32 = self.allocation.grants.iter().map(|g| u32::from(*g)).sum();
        assert_eq!(
            granted + u32::from(self.allocation.unused_rbs()),
            u32::from(rbs),
            "every RB is given once, or not"
        );
        if matches!(self.scheduler, AnyInter::EqpExact(_) | AnyInter::EqpPaper(_)) {
            assert_eq!(self.scheduler.balances().iter().sum::<i32>(), 0, "Σ quantum");
        }
        self.unused += u64::from(self.allocation.unused_rbs());
        let mut whole = Vec::new();
        for (queue, grant) in queues.iter().zip(&self.allocation.grants) {
            self.got[usize::from(queue.slice)] += u64::from(*grant);
            let mut bytes = self.table.row(0)[usize::from(*grant)];
            let packets = &mut self.ues[queue.ue as usize].1;
            let before = packets.len();
            while let Some(first) = packets.first_mut() {
                let take = bytes.min(*first);
                *first -= take;
                bytes -= take;
                if *first > 0 {
                    break;
                }
                packets.remove(0);
            }
            self.left_whole += (before - packets.len()) as u64;
            whole.push((queue.ue as usize, before - packets.len()));
        }
        whole
    }
}

fn eqp(paper: bool, idle: Idle) -> InterConfig {
    let params = EqpParams { idle, ..EqpParams::default() };
    if paper { InterConfig::EqpPaper(params) } else { InterConfig::EqpExact(params) }
}

fn every() -> Vec<InterConfig> {
    let mut all: Vec<_> = InterAlgorithm::ALL.into_iter().map(InterConfig::from).collect();
    all.extend([eqp(false, Idle::IdleReset), eqp(true, Idle::IdleReset)]);
    all
}

#[test]
fn figure_4_of_the_paper() {
    // Four slices, one packet of 4 RBs each, 4 RBs per TTI: the TTI in which each packet is complete.
    for config in every() {
        let mut cell = Cell::new(&config, &[25.0; 4], linear(100, 4), 1, &[0, 1, 2, 3]);
        cell.ues.iter_mut().for_each(|ue| ue.1.push(400));
        let mut done = Vec::new();
        for tti in 1..=8 {
            done.extend(cell.tti(4).into_iter().filter(|(_, whole)| *whole > 0).map(|_| tti));
        }
        let mean = done.iter().sum::<i32>() as f64 / 4.0;
        let expected = match config.algorithm() {
            InterAlgorithm::Fixed | InterAlgorithm::Drr => 4.0,
            // With equal minima, the result is the same as that of the fixed partition.
            InterAlgorithm::RrmPolicy => 4.0,
            _ => 2.5,
        };
        assert_eq!((done.len(), mean), (4, expected), "{config:?}");
    }
}

#[test]
fn packets_of_the_paper_in_rbs() {
    // RLC §IV-B: 1500 and 500 bytes at 88 bytes per RB are 18 and 5 RBs.
    let (table, slices) = (linear(88, 25), [SliceConfig::new("a", 100.0)]);
    let queues = [Backlog { ue: 0, slice: 0, mcs: 0, bytes: 2000, sizes: 0..2 }];
    let tti = Tti { rbs: 25, rbg: 1, table: &table, slices: &slices, queues: &queues, sizes: &[1500, 500] };
    let mut problem = knapsack::Problem::default();
    problem.clear(tti.room());
    problem.push_queue(&tti, 0, 0, 1.0);
    assert_eq!(problem.needs, [18, 18 + 5]);
    // §VI-B: 1650 bytes take 18 RBs at MCS 28, which carry 1692: 42 bytes of padding.
    let amc = Amc::new(&RadioConfig::Lte(LteConfig::default())).unwrap();
    let rbs = amc.full().rbs_for(28, 1650).unwrap();
    assert_eq!((rbs, amc.full().bytes(28, rbs).unwrap() - 1650), (18, 42));
}

/// With backlogged slices, shares hold within the bounds of each scheduler.
#[test]
fn shares_hold() {
    for config in every() {
        for shares in [vec![25.0, 75.0], vec![50.0, 50.0], vec![10.0, 30.0, 60.0]] {
            let ues: Vec<u16> = (0..shares.len() as u16).collect();
            let mut cell = Cell::new(&config, &shares, linear(88, 25), 2, &ues);
            let ttis = 2000;
            for _ in 0..ttis {
                for (ue, packets) in cell.ues.iter_mut().map(|ue| &mut ue.1).enumerate() {
                    while packets.len() < 8 {
                        packets.push(if ue == 0 { 200 } else { 1500 });
                    }
                }
                cell.tti(25);
                if matches!(config, InterConfig::EqpExact(_) | InterConfig::EqpPaper(_)) {
                    assert!(cell.scheduler.balances().iter().all(|q| q.abs() <= 100), "{config:?}");
                }
            }
            for (slice, share) in shares.iter().enumerate() {
                let due = share / 100.0 * 25.0 * f64::from(ttis);
                let deviation = (cell.got[slice] as f64 - due).abs();
                let most = match config.algorithm() {
                    InterAlgorithm::StaticPriority => continue,
                    // Rounded down to groups, every TTI.
                    InterAlgorithm::Fixed | InterAlgorithm::RrmPolicy => 2.0 * f64::from(ttis),
                    InterAlgorithm::Drr => 60.0,
                    // 2 · limit / (share · TTIs), RLC §IV-B.
                    _ => 2.0 * 100.0,
                };
                assert!(deviation <= most, "{config:?} {shares:?}: slice {slice} {deviation} RBs off");
            }
        }
    }
}

/// Bounds of the quanta of n slices with EQP and groups of `group` RBs: see the documentation of `eqp`.
fn quantum_bounds(limit: u32, group: u16, slices: usize) -> std::ops::RangeInclusive<i32> {
    let harmonic: f64 = (2..=slices).map(|k| 1.0 / k as f64).sum();
    let above = if group > 1 { (f64::from(group) * harmonic) as i32 } else { 0 };
    -(limit.max(group.into()) as i32)..=limit as i32 + above
}

#[test]
fn one_group_for_all_slices() {
    // The whole carrier is one group, larger than the limit: slices take turns.
    for (idle, n) in [Idle::Strict, Idle::IdleReset].into_iter().flat_map(|idle| [(idle, 2), (idle, 12)]) {
        for paper in [false, true] {
            let mut config = eqp(paper, idle);
            if let InterConfig::EqpExact(p) | InterConfig::EqpPaper(p) = &mut config {
                p.quantum_limit_rbs = 9;
            }
            let ues: Vec<u16> = (0..n).collect();
            let mut cell =
                Cell::new(&config, &vec![100.0 / f64::from(n); ues.len()], linear(88, 149), 149, &ues);
            let bounds = quantum_bounds(9, 149, ues.len());
            for tti in 0..3000 {
                // All slices backlogged at once, none, and some.
                for (ue, (_, packets)) in cell.ues.iter_mut().enumerate() {
                    let busy = match tti / 100 % 3 {
                        0 => true,
                        1 => ue == 0,
                        _ => (ue + tti).is_multiple_of(3),
                    };
                    packets.resize(if busy { 20 } else { 0 }, 1500);
                }
                cell.tti(149);
                let balances = cell.scheduler.balances();
                assert!(balances.iter().all(|q| bounds.contains(q)), "{config:?} {n}, {tti}: {balances:?}");
                assert!(
                    cell.allocation.unused_rbs() == 0
                        || idle == Idle::Strict
                        || cell.ues.iter().all(|u| u.1.is_empty())
                );
            }
        }
    }
}

#[test]
fn slices_that_go_idle_together_leave_nobody_a_fortune() {
    let mut config = eqp(false, Idle::IdleReset);
    if let InterConfig::EqpExact(p) = &mut config {
        p.quantum_limit_rbs = 50;
    }
    let ues: Vec<u16> = (0..12).collect();
    let mut cell = Cell::new(&config, &[100.0 / 12.0; 12], linear(88, 30), 1, &ues);
    for _ in 0..500 {
        // Slices with small packets borrow, those with large packets lend.
        for (ue, (_, packets)) in cell.ues.iter_mut().enumerate() {
            packets.resize(20, if ue < 6 { 80 } else { 9000 });
        }
        cell.tti(30);
    }
    let balances = cell.scheduler.balances();
    assert!(balances.iter().max() > Some(&30) && balances.iter().min() < Some(&-30), "{balances:?}");
    for _ in 0..3 {
        cell.ues.iter_mut().take(11).for_each(|ue| ue.1.clear());
        cell.ues[11].1.resize(20, 1500);
        cell.tti(30);
        let balances = cell.scheduler.balances();
        assert!(balances.iter().all(|q| q.abs() <= 50), "{balances:?}");
    }
}

#[test]
fn an_idle_share_is_lost_or_not() {
    for (config, conserving) in [
        (InterConfig::from(InterAlgorithm::Fixed), false),
        (InterConfig::from(InterAlgorithm::RrmPolicy), true),
        (InterConfig::from(InterAlgorithm::StaticPriority), true),
        (InterConfig::from(InterAlgorithm::Drr), true),
        (eqp(false, Idle::Strict), false),
        (eqp(true, Idle::Strict), false),
        (eqp(false, Idle::IdleReset), true),
        (eqp(true, Idle::IdleReset), true),
        (InterConfig::from(InterAlgorithm::GpsPacking), true),
    ] {
        let mut cell = Cell::new(&config, &[25.0, 75.0], linear(88, 25), 2, &[0, 1]);
        for _ in 0..500 {
            cell.ues[0].1.resize(8, 1500);
            cell.tti(25);
        }
        let used = cell.got[0] as f64 / (500.0 * 25.0);
        if conserving {
            assert!(used > 0.999, "{config:?}: {used}");
        } else {
            assert!((0.22..0.30).contains(&used), "{config:?}: {used}");
        }
    }
}

#[test]
fn quantum_is_borrowed_for_whole_packets_and_given_back() {
    // One slice has few RBs and occasionally a small packet behind a large one; the other is always backlogged.
    for (config, together) in
        [(InterConfig::from(InterAlgorithm::Fixed), false), (eqp(false, Idle::Strict), true)]
    {
        let mut cell = Cell::new(&config, &[25.0, 75.0], linear(88, 25), 2, &[0, 1]);
        let mut at_once = 0;
        for tti in 0..400 {
            cell.ues[1].1.resize(8, 1500);
            if tti % 20 == 0 {
                cell.ues[0].1 = vec![1500, 200];
            }
            let whole = cell.tti(25);
            at_once += u32::from(tti % 20 == 0 && whole[0] == (0, 2));
        }
        assert_eq!(at_once, if together { 20 } else { 0 }, "{config:?}");
    }
}

#[test]
fn small_packets_do_not_starve_the_other_ues_of_their_slice() {
    let config = InterConfig::GpsPacking(GpsPackingParams { lag_limit_rbs: 50 });
    let mut cell = Cell::new(&config, &[100.0], linear(88, 25), 1, &[0, 0]);
    let mut bytes = [0_u64; 2];
    for _ in 0..1000 {
        cell.ues[0].1.resize(60, 80);
        cell.ues[1].1.resize(8, 1500);
        let before: Vec<u64> = cell.ues.iter().map(|u| u.1.iter().map(|p| u64::from(*p)).sum()).collect();
        cell.tti(25);
        for (ue, sum) in before.into_iter().enumerate() {
            bytes[ue] += sum - cell.ues[ue].1.iter().map(|p| u64::from(*p)).sum::<u64>();
        }
    }
    let part = bytes[1] as f64 / (bytes[0] + bytes[1]) as f64;
    assert!((part - 0.5).abs() < 0.03, "{part}");
}

#[test]
fn policy_ratios() {
    let slices = |dedicated, min, max| SliceConfig {
        dedicated_percent: dedicated,
        min_percent: Some(min),
        max_percent: Some(max),
        ..SliceConfig::new("a", 20.0)
    };
    let run = |first: SliceConfig, backlog: [usize; 2]| {
        let mut cell =
            Cell::new(&InterAlgorithm::RrmPolicy.into(), &[20.0, 80.0], linear(88, 50), 1, &[0, 1]);
        cell.slices[0] = first;
        cell.slices[1].min_percent = Some(10.0);
        (0..2).for_each(|ue| cell.ues[ue].1.resize(backlog[ue], 1500));
        cell.tti(50);
        (cell.got[0], cell.got[1])
    };
    assert_eq!(run(slices(10.0, 20.0, 100.0), [0, 9]), (0, 45), "dedicated RBs stay idle");
    assert_eq!(run(slices(0.0, 20.0, 100.0), [0, 9]), (0, 50), "minimum RBs do not");
    assert_eq!(run(slices(10.0, 20.0, 40.0), [9, 0]), (20, 0), "never more than the maximum");
    assert_eq!(run(slices(10.0, 20.0, 100.0), [9, 9]), (10, 40), "shares, with both backlogged");
    assert_eq!(run(slices(10.0, 60.0, 100.0), [9, 9]).0, 30, "a minimum above the share comes first");
}

#[test]
fn strict_priority() {
    let mut cell =
        Cell::new(&InterAlgorithm::StaticPriority.into(), &[50.0, 50.0], linear(88, 25), 1, &[0, 1]);
    cell.slices[0].priority = 5;
    cell.ues[0].1 = vec![1500; 3];
    cell.ues[1].1 = vec![880];
    cell.tti(25);
    assert_eq!(cell.got, [15, 10]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// The shortcut for a single UE grants the same as the general path, and leaves the same balances.
    #[test]
    fn alone_it_gets_the_same(
        share in 0.0..=100.0_f64,
        rbg in 1u16..6,
        ttis in prop::collection::vec((0u16..=30, 0u64..3500), 1..60),
        which in 0..every().len(),
    ) {
        let config = &every()[which];
        let slices = [SliceConfig::new("a", share)];
        let table = linear(88, 30);
        let (mut short, mut long) = (config.build(1, 1).unwrap(), config.build(1, 1).unwrap());
        let (mut allocation, mut plain) = (Allocation::default(), Allocation::default());
        for (rbs, bytes) in ttis {
            let sizes = [bytes as u32];
            let queues = [Backlog { ue: 0, slice: 0, mcs: 0, bytes, sizes: 0..1 }];
            let tti = Tti { rbs, rbg, table: &table, slices: &slices, queues: &queues, sizes: &sizes };
            short.allocate(&tti, &mut allocation);
            plain.start(&tti);
            long.schedule(&tti, &mut plain);
            prop_assert_eq!(&allocation.grants, &plain.grants);
            prop_assert_eq!(short.balances(), long.balances());
            prop_assert_eq!(format!("{short:?}"), format!("{long:?}"));
        }
    }

    /// With any traffic, RBs and groups: nothing is granted twice, Σ quantum and Σ lag are 0 (asserted inside), all bounds hold,
    /// and a work-conserving scheduler leaves no RB idle while a UE waits.
    #[test]
    fn any_traffic(
        seed in any::<u64>(),
        shares in prop::collection::vec(0u32..=100, 1..5),
        ues in prop::collection::vec(0usize..5, 1..7),
        (rbg, limit) in (1u16..5, 5u32..200),
        which in 0usize..9,
    ) {
        let total: u32 = shares.iter().sum::<u32>().max(100);
        let shares: Vec<f64> = shares.iter().map(|s| f64::from(*s) * 100.0 / f64::from(total)).collect();
        let ues: Vec<u16> = ues.iter().map(|slice| (slice % shares.len()) as u16).collect();
        let mut config = every()[which].clone();
        match &mut config {
            InterConfig::EqpExact(p) | InterConfig::EqpPaper(p) => p.quantum_limit_rbs = limit,
            InterConfig::GpsPacking(p) => p.lag_limit_rbs = limit,
            _ => {}
        }
        let conserving = match &config {
            InterConfig::Fixed(_) | InterConfig::RrmPolicy(_) => false,
            InterConfig::EqpExact(p) | InterConfig::EqpPaper(p) => p.idle == Idle::IdleReset,
            _ => true,
        };
        let bounded = match &config {
            InterConfig::EqpExact(_) | InterConfig::EqpPaper(_) => Some(quantum_bounds(limit, rbg, shares.len())),
            InterConfig::GpsPacking(_) => {
                let most = (limit + shares.len() as u32 * u32::from(rbg)) as i32;
                Some(-most..=most)
            }
            _ => None,
        };
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let mut below = |n: u32| rng.next_u32() % n;
        let rates: Vec<u32> = ues.iter().map(|_| 1 + below(30)).collect();
        let mut cell = Cell::new(&config, &shares, linear(70, 30), rbg, &ues);
        for _ in 0..300 {
            for (ue, rate) in rates.iter().enumerate() {
                if below(30) < *rate && cell.ues[ue].1.len() < 40 {
                    let size = if below(2) == 0 { 40 + below(200) } else { 1500 };
                    cell.ues[ue].1.push(size);
                }
            }
            // Retransmissions occasionally take RBs.
            let rbs = if below(4) == 0 { below(31) as u16 } else { 30 };
            cell.tti(rbs);
            if conserving && cell.allocation.unused_rbs() > 0 {
                prop_assert!(cell.ues.iter().all(|ue| ue.1.is_empty()), "{:?}", config);
            }
            if let Some(bounds) = &bounded {
                let balances = cell.scheduler.balances();
                prop_assert!(balances.iter().all(|b| bounds.contains(b)), "{:?}: {:?}", config, balances);
            }
        }
    }

    /// The repaired printed selection is never better than the exact one, and equally good without a short group.
    #[test]
    fn the_printed_selection_against_the_exact_one(seed in any::<u64>(), rbg in 1u16..4, rbs in 1u16..40) {
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let mut below = |n: u32| rng.next_u32() % n;
        let mut problem = knapsack::Problem::default();
        problem.clear(Capacity::new(rbs, rbg));
        for slice in 0..1 + below(6) as usize {
            let (from, mut need) = (problem.needs.len(), 0);
            for _ in 0..below(8) {
                need += 1 + below(9) as u16;
                problem.needs.push(need);
            }
            problem.queues.push(from..problem.needs.len());
            problem.slices.push(knapsack::SliceBound {
                quantum: below(41) as i32 - 20,
                most_rbs: below(60),
                queues: slice..slice + 1,
            });
        }
        let score = |p: &knapsack::Problem| {
            let quantum = |(k, s): (&u32, &knapsack::SliceBound)| i64::from(*k) * i64::from(s.quantum);
            let sum: i64 = p.packets.iter().zip(&p.slices).map(quantum).sum();
            (p.packets.iter().sum::<u32>(), sum)
        };
        let mut printed = problem.clone();
        eqp::paper::PaperTable::default().solve(&mut printed);
        problem.solve();
        prop_assert!(score(&printed) <= score(&problem));
        if problem.room.short == 0 {
            prop_assert_eq!(score(&printed), score(&problem));
        }
    }
}
#[test]
fn a_name_or_a_table() {
    for algorithm in InterAlgorithm::ALL {
        let config: InterConfig = serde_json::from_str(&format!("\"{algorithm}\"")).unwrap();
        assert_eq!(config, InterConfig::from(algorithm));
        let written = serde_json::to_string(&config).unwrap();
        assert!(written.contains(algorithm.name()));
        assert_eq!(serde_json::from_str::<InterConfig>(&written).unwrap(), config);
        config.build(3, 5).unwrap();
    }
    let why = |text: &str| serde_json::from_str::<InterConfig>(text).unwrap_err().to_string();
    assert!(why("\"eqp_exakt\"").contains("did you mean \"eqp_exact\"?"));
    assert!(why("{\"algorithm\": \"drr\", \"limit\": 3}").contains("limit"));
    let none = InterConfig::EqpExact(EqpParams { quantum_limit_rbs: 0, ..EqpParams::default() });
    assert_eq!(
        none.build(2, 2).unwrap_err().to_string(),
        "scheduler eqp_exact: quantum_limit_rbs = 0: must be 1 to 1000000"
    );
}

#[test]
fn slices_without_a_share_take_turns() {
    let gps = InterConfig::from(InterAlgorithm::GpsPacking);
    for (shares, rbs, rbg) in [&[0.0, 0.0][..], &[100.0, 0.0, 0.0], &[0.0, 60.0, 0.0, 0.0], &[0.0; 5]]
        .into_iter()
        .flat_map(|shares| [(6, 1), (25, 2), (106, 8), (273, 16)].map(|(rbs, rbg)| (shares, rbs, rbg)))
    {
        let without: Vec<usize> = (0..shares.len()).filter(|slice| shares[*slice] == 0.0).collect();
        for busy in [false, true] {
            let ues: Vec<u16> = (0..shares.len() as u16).collect();
            let mut cell = Cell::new(&gps, shares, linear(10, rbs), rbg, &ues);
            for _ in 0..2000 {
                for (ue, (_, packets)) in cell.ues.iter_mut().enumerate() {
                    if busy || without.contains(&ue) {
                        packets.resize(packets.len().max(2 * usize::from(rbs)), 30);
                    }
                }
                cell.tti(rbs);
            }
            let all = 2000.0 * f64::from(rbs);
            let part = match busy && without.len() < shares.len() {
                true => 0.0,
                false => all / without.len() as f64,
            };
            for slice in &without {
                let off = (cell.got[*slice] as f64 - part).abs();
                assert!(off < 0.02 * all, "{shares:?}, busy {busy}, {rbs} RBs: {:?}", cell.got);
            }
        }
    }
}

#[test]
fn slices_of_less_than_a_group_take_turns() {
    // Of 25 RBs in groups of 2, the first slice has 11 groups at once and the second the single RB.
    for shares in [&[90.0, 4.0, 3.0, 3.0][..], &[50.0, 50.0], &[3.25; 30]] {
        let of_slice: Vec<u16> = (0..shares.len() as u16).collect();
        let mut cell = Cell::new(&InterAlgorithm::RrmPolicy.into(), shares, linear(88, 25), 2, &of_slice);
        for _ in 0..600 {
            cell.ues.iter_mut().for_each(|ue| ue.1.resize(30, 1500));
            cell.tti(25);
        }
        for (slice, share) in shares.iter().enumerate() {
            let got = cell.got[slice] as f64 * 100.0 / (600.0 * 25.0);
            assert!(got > 0.5 * share && got < 2.0 * share, "{shares:?}: slice {slice} got {got} %");
        }
        if let [_, _] = shares {
            assert_eq!(cell.got[0].abs_diff(cell.got[1]), 0, "{:?}", cell.got);
        }
    }
}
