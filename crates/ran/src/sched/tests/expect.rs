//! Estimates of a scheduler match what it gives.

use super::*;

proptest! {
    /// One slice has an unlimited backlog, the others have the same demand in every TTI.
    #[test]
    fn what_is_expected_is_given(
        (rbs, rbg) in (1u16..276, prop::sample::select(vec![1u16, 2, 4, 8, 16])),
        slices in prop::collection::vec((0u32..30, 0u8..3, [0u32..30, 0..20, 0..100], 0u32..200, prop::bool::ANY), 1..5),
        mine in any::<prop::sample::Index>(),
        which in any::<prop::sample::Index>(),
    ) {
        let shares: Vec<f64> = slices.iter().map(|s| s.0.min(25).into()).collect();
        let mut all = every();
        // Forfeits of idle slices raise the slices in debt there, whatever their share.
        all.retain(|config| {
            !matches!(config, InterConfig::EqpExact(p) | InterConfig::EqpPaper(p) if p.idle == Idle::IdleReset)
        });
        let config = which.get(&all);
        let of_slice: Vec<u16> = (0..slices.len() as u16).collect();
        let mut cell = Cell::new(config, &shares, linear(10, rbs), rbg, &of_slice);
        let (mut demands, mine) = (Vec::new(), mine.index(slices.len()));
        for (i, (_, priority, [dedicated, min, max], demand, idle)) in slices.iter().enumerate() {
            let slice = &mut cell.slices[i];
            slice.priority = *priority;
            let min = (*min).max(*dedicated).min(25);
            slice.dedicated_percent = (*dedicated).min(min).into();
            (slice.min_percent, slice.max_percent) = (Some(min.into()), Some(f64::from(min.max(*max))));
            demands.push(if *idle && i != mine { 0 } else { *demand });
        }
        config.check_slices(&cell.slices).unwrap();
        let (mut expected, ttis) = (0, 400);
        for _ in 0..ttis {
            let next = TtiPreview { rbs, rbg, slices: &cell.slices, demands: &demands };
            expected += u64::from(cell.scheduler.expect(mine, &next));
            for (i, demand) in demands.iter().enumerate() {
                let packets = if i == mine { 600 } else { *demand as usize };
                cell.ues[i].1.clear();
                cell.ues[i].1.resize(packets, 10);
            }
            cell.tti(rbs);
        }
        let got = cell.got[mine] as f64 / f64::from(ttis);
        let expected = expected as f64 / f64::from(ttis);
        // Other slices get whole groups, and balances of EQP and similar schedulers are not 0 at the end.
        let within = match config.algorithm() {
            InterAlgorithm::Fixed | InterAlgorithm::StaticPriority | InterAlgorithm::RrmPolicy => 0.0,
            _ => 2.0 + f64::from(rbg) * slices.len() as f64,
        };
        prop_assert!((got - expected).abs() <= within, "{:?}: {} expected, {} given", config, expected, got);
    }
}

/// The last group of a TTI goes to one of two slices with equal load, the one that has waited longest, also within this TTI.
#[test]
fn ties_of_a_policy_are_expected_as_they_are_given() {
    let mut cell =
        Cell::new(&InterConfig::from(InterAlgorithm::RrmPolicy), &[9.0, 6.0], linear(10, 242), 2, &[0, 1]);
    for (slice, max) in cell.slices.iter_mut().zip([61.0, 41.0]) {
        (slice.min_percent, slice.max_percent) = (Some(0.0), Some(max));
    }
    let mut expected = 0;
    for _ in 0..20 {
        let next = TtiPreview { rbs: 242, rbg: 2, slices: &cell.slices, demands: &[0, 97] };
        expected += u64::from(cell.scheduler.expect(0, &next));
        for (ue, packets) in [600, 97].into_iter().enumerate() {
            cell.ues[ue].1.clear();
            cell.ues[ue].1.resize(packets, 10);
        }
        cell.tti(242);
    }
    assert_eq!(cell.got[0], expected);
}
