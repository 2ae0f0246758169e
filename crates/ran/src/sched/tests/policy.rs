//! Minima and maxima of `rrm_policy` over time, for any fraction of a group.

use super::*;

/// A carrier with groups, and slices with these dedicated, minimum and maximum percentages; all slices always have data, for
/// `ttis` TTIs.
fn run(rbs: u16, rbg: u16, slices: &[[f64; 3]], ttis: u64) -> Cell {
    let shares = vec![100.0 / slices.len() as f64; slices.len()];
    let ues: Vec<u16> = (0..slices.len() as u16).collect();
    let config = InterConfig::from(InterAlgorithm::RrmPolicy);
    let mut cell = Cell::new(&config, &shares, linear(10, rbs), rbg, &ues);
    for (slice, [dedicated, min, max]) in cell.slices.iter_mut().zip(slices) {
        slice.dedicated_percent = *dedicated;
        (slice.min_percent, slice.max_percent) = (Some(*min), Some(*max));
    }
    config.check_slices(&cell.slices).unwrap();
    for _ in 0..ttis {
        for (_, packets) in &mut cell.ues {
            packets.clear();
            packets.push(10 * u32::from(rbs) + 10);
        }
        cell.tti(rbs);
    }
    cell
}

#[test]
fn a_minimum_that_is_the_maximum_is_both_over_time() {
    // 25 RBs in groups of 2, 100 in groups of 4, 273 in groups of 16.
    for (rbs, rbg, percent) in [
        (25, 2, 2.0),
        (25, 2, 13.0),
        (100, 4, 1.0),
        (100, 4, 19.5),
        (273, 16, 0.3),
        (273, 16, 5.0),
        (6, 1, 94.0),
    ] {
        let cell = run(rbs, rbg, &[[0.0, percent, percent], [0.0, 0.0, 100.0]], 4000);
        let due = percent / 100.0 * f64::from(rbs) * 4000.0;
        let got = cell.got[0] as f64;
        assert!(got <= due && got >= due - 2.0 * f64::from(rbg), "{rbs}, {percent} %: {got} of {due}");
        assert_eq!(cell.unused, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn bounds_hold_over_time(
        (rbs, rbg) in (1u16..276, prop::sample::select(vec![1u16, 2, 3, 4, 8, 16])),
        slices in prop::collection::vec(([0u32..=2500, 0..=2500, 0..=10_000], prop::bool::ANY), 1..5),
    ) {
        let percent = |parts: u32| f64::from(parts) / 100.0;
        let slices: Vec<[f64; 3]> = slices
            .iter()
            .map(|([dedicated, min, max], narrow)| {
                let most = if *narrow { *min } else { (*max).max(*min) };
                [percent(*dedicated.min(min)), percent(*min), percent(most)]
            })
            .collect();
        let ttis = 1000;
        let cell = run(rbs, rbg, &slices, ttis);
        let all = f64::from(rbs) * ttis as f64;
        let group = f64::from(rbg);
        for ([_, min, max], got) in slices.iter().zip(&cell.got) {
            let got = *got as f64;
            prop_assert!(got <= max / 100.0 * all + 0.01, "{:?}: {} of {}", slices, got, max / 100.0 * all);
            let least = min / 100.0 * all - 2.0 * group - 1.0;
            prop_assert!(got >= least, "{:?}: {} of {}", slices, got, min / 100.0 * all);
        }
        // RBs permitted by the maxima are used.
        let most = slices.iter().map(|[.., max]| max / 100.0 * all).sum::<f64>().min(all);
        let used = all - cell.unused as f64;
        prop_assert!(used >= 0.98 * most - 3.0 * group * slices.len() as f64, "{:?}: {} of {}", slices, used, most);
    }
}
