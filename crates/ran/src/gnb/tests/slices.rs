//! Limiters in cells of several slices: the MAC's forecast matches what it gives.

use super::*;
use crate::sched::InterAlgorithm::{Drr, EqpExact, Fixed, GpsPacking, RrmPolicy, StaticPriority};
use crate::sched::IntraKind;

/// One bulk flow and one call per slice: each slice's bytes without padding, and the mean delay of its call in ms.
fn go_with(
    queue: Algorithm,
    rbs: u16,
    bytes: usize,
    shares: &[f64],
    change: impl Fn(&mut GnbConfig),
) -> Vec<(u64, f64)> {
    let ues: Vec<usize> = (0..shares.len()).collect();
    let mut config = config(shares, &ues, queue);
    config.radio = RadioConfig::Nr(NrConfig { rbs, ..NrConfig::default() });
    change(&mut config);
    config.telemetry.packets = PacketEvents::All;
    for ue in &mut config.ues {
        ue.channel = ChannelConfig::mcs(16);
    }
    let mut run = Run::new(&config);
    let all: Vec<u32> = (0..shares.len() as u32).collect();
    let backlog = 4 * u64::from(*run.gnb.amc().full().row(16).last().unwrap()) + 6000;
    run.load_of(bytes, &all, backlog, &all, ms(100));
    let useful = |run: &Run| {
        let of = |ue: &u32| run.gnb.ue_link_stats(*ue, Direction::Downlink);
        all.iter().map(of).map(|s| s.block_bytes - s.padding_bytes).collect::<Vec<_>>()
    };
    let before = useful(&run);
    run.load_of(bytes, &all, backlog, &all, ms(500));
    let used = useful(&run).into_iter().zip(before).map(|(now, before)| now - before);
    used.zip(&all).map(|(used, ue)| (used, waits(&run.times(*ue, 1)).1)).collect()
}

#[test]
fn just_in_time_costs_no_slice_its_share() {
    let mut worse = Vec::new();
    for scheduler in [EqpExact, GpsPacking, Drr, Fixed] {
        for (rbs, bytes) in [25, 51, 106, 273].into_iter().flat_map(|rbs| [(rbs, 200), (rbs, 1500)]) {
            for shares in [&[5.0, 10.0, 30.0, 55.0][..], &[15.0, 85.0], &[5.0, 95.0], &[50.0, 50.0]] {
                let go =
                    |queue| go_with(queue, rbs, bytes, shares, |config| config.scheduler = scheduler.into());
                let (vanilla, jit) = (go(Algorithm::Vanilla), go(Algorithm::Jit));
                for ((share, vanilla), jit) in shares.iter().zip(vanilla).zip(jit) {
                    let line = format!(
                        "{scheduler}, {rbs} RBs, {share} % of {shares:?}, {bytes} B: {:.3} of {} B, {:.2} ms of {:.2}",
                        jit.0 as f64 / vanilla.0.max(1) as f64,
                        vanilla.0,
                        jit.1,
                        vanilla.1
                    );
                    println!("{line}");
                    // At least 0.95 except in 4 of 316 cases, mostly `drr` with a share of 1/20 in groups that are larger.
                    if (jit.0 as f64) < 0.89 * vanilla.0 as f64 {
                        worse.push(line);
                    }
                }
            }
        }
    }
    assert!(worse.is_empty(), "{} cases:\n{}", worse.len(), worse.join("\n"));
}

/// The forecast for a slice, and the link rate in traces, match what the scheduler gives, even with schedulers that use
/// other criteria than shares.
#[test]
fn priorities_and_ratios_are_expected() {
    let mut wrong = Vec::new();
    let cases = [
        (StaticPriority, 0, None),
        (StaticPriority, 1, None),
        (RrmPolicy, 0, None),
        (RrmPolicy, 0, Some(20.0)),
        (RrmPolicy, 0, Some(50.0)),
    ];
    for ((scheduler, high, max), rbs) in
        cases.into_iter().flat_map(|case| [25, 106, 273].map(|rbs| (case, rbs)))
    {
        let go = |queue| {
            go_with(queue, rbs, 1500, &[10.0, 90.0], |config| {
                config.scheduler = scheduler.into();
                config.slices[1 - high].priority = 9;
                config.slices[1].min_percent = Some(max.unwrap_or(50.0));
                config.slices[1].max_percent = max;
                config.slices[0].dedicated_percent = 10.0;
            })
        };
        let (vanilla, jit) = (go(Algorithm::Vanilla), go(Algorithm::Jit));
        for (slice, (vanilla, jit)) in vanilla.iter().zip(&jit).enumerate() {
            let share = jit.0 as f64 / vanilla.0.max(1) as f64;
            let line = format!(
                "{scheduler}, {high} first, max {max:?}, {rbs} RBs, slice {slice}: {share:.3} {jit:?}"
            );
            println!("{line}");
            if share < 0.97 && vanilla.0 > 0 {
                wrong.push(line);
            }
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_slice_at_its_maximum_is_as_one_of_a_partition() {
    for (rbs, numerology) in [25, 51, 106, 273].into_iter().flat_map(|rbs| [(rbs, 0), (rbs, 1), (rbs, 3)]) {
        let go = |scheduler: InterAlgorithm, share: f64| {
            let mut config = config(&[share, 100.0 - share], &[0, 1], Algorithm::Jit);
            config.radio = RadioConfig::Nr(NrConfig { rbs, numerology, ..NrConfig::default() });
            config.scheduler = scheduler.into();
            config.slices[0].max_percent = Some(share);
            config.telemetry = TelemetryConfig { packets: PacketEvents::All, slots: false, ues: true };
            let mut run = Run::new(&config);
            let backlog = 8 * u64::from(*run.gnb.amc().full().row(28).last().unwrap()) + 6000;
            run.load(&[0], backlog, &[0], ms(400));
            let later = |slot: &UeSlotStats| slot.at > ms(20);
            let most = run.slots().iter().filter(|s| later(s)).map(|s| s.buffer_bytes).max().unwrap();
            (most, waits(&run.times(0, 1)).1)
        };
        let ((_, fixed), (most, policy)) = (go(Fixed, 20.0), go(RrmPolicy, 20.0));
        // Over time the policy gives the whole maximum, in some slots the groups that cover it.
        let amc = Amc::new(&RadioConfig::Nr(NrConfig { rbs, ..NrConfig::default() })).unwrap();
        let covers = f64::from((rbs / 5 + 1).next_multiple_of(amc.rbg())) / f64::from(rbs);
        let (most_fixed, _) = go(Fixed, (100.0 * covers).ceil());
        println!("{rbs} RBs, µ {numerology}: {most} B in RLC after a tick, {policy:.3} ms of {fixed:.3}");
        // Where slots are shorter than the guard, RLC covers several grants.
        assert!(most < 2000.max(most_fixed + 200), "{rbs} RBs, µ {numerology}: {most} B");
        assert!(policy <= 1.2 * fixed, "{rbs} RBs, µ {numerology}: {policy} ms, {fixed} with `fixed`");
    }
}

#[test]
fn the_link_rate_is_what_a_slice_gets() {
    for scheduler in InterAlgorithm::ALL {
        for (shares, rbs) in
            [[10.0, 90.0], [30.0, 70.0], [50.0, 50.0]].into_iter().flat_map(|s| [(s, 51), (s, 106), (s, 273)])
        {
            for idle in [false, true] {
                let mut config = config(&shares, &[0, 1], Algorithm::Vanilla);
                config.radio = RadioConfig::Nr(NrConfig { rbs, ..NrConfig::default() });
                config.scheduler = scheduler.into();
                config.slices[1].priority = 9;
                config.slices[0].max_percent = Some(60.0);
                config.slices[1].dedicated_percent = 10.0;
                config.ioam = Some(serde_json::from_str(r#"{"node_id": 7}"#).unwrap());
                let mut run = Run::new(&config);
                let backlog = 8 * u64::from(*run.gnb.amc().full().row(28).last().unwrap()) + 6000;
                run.load(if idle { &[0] } else { &[0, 1] }, backlog, &[], ms(300));
                let stats = run.gnb.ue_link_stats(0, Direction::Downlink);
                let bps = (stats.block_bytes * 8) as f64 / 0.3;
                let reported = run.gnb.ues[0].reporters.as_ref().unwrap()[0].link_bps().unwrap() as f64;
                let case = format!(
                    "{scheduler}, {rbs} RBs, {shares:?}, idle {idle}: {reported} reported, {bps} given"
                );
                println!("{case}");
                assert!((reported - bps).abs() < 0.1 * bps, "{case}");
            }
        }
    }
}

/// What rounding to groups takes from a minimum in one slot is made up in others, even if other slices have less than a group.
#[test]
fn minima_hold_in_groups_that_do_not_divide_them() {
    for (rbs, numerology) in [25, 51, 106, 273].into_iter().flat_map(|rbs| [(rbs, 0), (rbs, 3)]) {
        for shares in
            [&[79.0, 12.0, 4.0, 5.0][..], &[12.0, 79.0, 5.0, 4.0], &[88.0, 12.0], &[30.0, 23.0, 47.0]]
        {
            let ues: Vec<usize> = (0..shares.len()).collect();
            let mut config = config(shares, &ues, Algorithm::Vanilla);
            config.radio = RadioConfig::Nr(NrConfig { rbs, numerology, ..NrConfig::default() });
            config.scheduler = RrmPolicy.into();
            let mut run = Run::new(&config);
            let all: Vec<u32> = (0..shares.len() as u32).collect();
            let backlog = 8 * u64::from(*run.gnb.amc().full().row(28).last().unwrap()) + 6000;
            run.load(&all, backlog, &[], ms(200));
            let total = run.gnb.link_stats(Direction::Downlink, ms(200)).rbs as f64;
            for (ue, share) in all.iter().zip(shares) {
                let got = run.gnb.ue_link_stats(*ue, Direction::Downlink).used_rbs as f64;
                assert!(
                    got > 0.97 * share / 100.0 * total,
                    "{rbs} RBs, {share} % of {shares:?}: {:.4}",
                    got / total
                );
            }
        }
    }
}

/// A UE whose RLC waits for an acknowledgement sends none of its waiting data, and other UEs get its RBs.
#[test]
fn a_stalled_ue_does_not_reduce_the_forecast_of_others() {
    let go = |queue: Algorithm| {
        let mut config = config(&[100.0], &[0; 3], queue);
        config.radio = RadioConfig::Nr(NrConfig { rbs: 273, numerology: 3, ..NrConfig::default() });
        config.mac.grant_delay_slots = Some(10);
        for (ue, mcs) in config.ues.iter_mut().zip([12, 20, 27]) {
            ue.bearer.rlc = RlcConfig::Am(AmConfig::default());
            ue.bearer.pdcp_sn_bits = 12;
            ue.channel = ChannelConfig::mcs(mcs);
        }
        let mut run = Run::new(&config);
        run.load_of(120, &[0, 1, 2], 900_000, &[], ms(300));
        let stats = run.gnb.link_stats(Direction::Downlink, ms(300));
        stats.block_bytes - stats.padding_bytes
    };
    let (vanilla, jit) = (go(Algorithm::Vanilla), go(Algorithm::Jit));
    println!("{:.3}", jit as f64 / vanilla as f64);
    assert!(jit as f64 > 0.97 * vanilla as f64, "{jit} of {vanilla} bytes");
}

#[test]
fn minima_count_only_where_they_are_used() {
    let mut config = config(&[30.0, 70.0], &[0, 1], Algorithm::Vanilla);
    config.slices[0].min_percent = Some(60.0);
    let mut gnb = build(&config).unwrap();
    let mut switch = |scheduler: InterAlgorithm| {
        let scheduler = scheduler.into();
        gnb.apply(GnbCommand::Scheduler { direction: Direction::Uplink, scheduler }, ms(1))
    };
    let sum =
        "the min_percent (share_percent where it is missing) of all slices sum to 130 %: must be 100 at most";
    assert_eq!(switch(RrmPolicy).unwrap_err().to_string(), sum);
    for unused in [StaticPriority, Fixed] {
        assert_eq!(switch(unused), Ok(()));
    }
    config.slices[0].min_percent = Some(20.0);
    gnb.apply(GnbCommand::Slices(config.slices.clone()), ms(1)).unwrap();
    for scheduler in InterAlgorithm::ALL {
        let scheduler = scheduler.into();
        gnb.apply(GnbCommand::Scheduler { direction: Direction::Uplink, scheduler }, ms(1)).unwrap();
    }
    config.slices[0].min_percent = Some(60.0);
    config.uplink_scheduler = Some(RrmPolicy.into());
    assert_eq!(build(&config).unwrap_err().to_string(), sum);
}

#[test]
fn keys_without_effect_are_named_in_files() {
    let base = || config(&[30.0, 70.0], &[0, 1], Algorithm::Vanilla);
    type Change = fn(&mut GnbConfig);
    let set: [(&str, InterAlgorithm, Change); 4] = [
        ("dedicated_percent", RrmPolicy, |c| c.slices[1].dedicated_percent = 5.0),
        ("min_percent", RrmPolicy, |c| c.slices[1].min_percent = Some(0.0)),
        ("max_percent", RrmPolicy, |c| c.slices[1].max_percent = Some(80.0)),
        ("priority", StaticPriority, |c| c.slices[1].priority = 1),
    ];
    for (key, user, set) in set {
        for scheduler in InterAlgorithm::ALL.iter().copied() {
            let mut config = base();
            set(&mut config);
            config.scheduler = scheduler.into();
            let why = config.check_effects().err().map(|why| why.to_string());
            let named = why.as_ref().map(|why| why.starts_with(&format!("slice \"s1\": {key} = ")));
            assert_eq!(named, (scheduler != user).then_some(true), "{scheduler}: {why:?}");
            config.uplink_scheduler = Some(user.into());
            assert_eq!(config.check_effects(), Ok(()), "{scheduler}");
        }
    }
    let mut defaults = base();
    (defaults.slices[0].min_percent, defaults.slices[0].max_percent) = (Some(30.0), Some(100.0));
    assert_eq!(defaults.check_effects(), Ok(()));
    defaults.ues[1].priority = 2;
    let why = defaults.check_effects().unwrap_err().to_string();
    assert_eq!(why, "ue \"ue1\": priority = 2: must be left out: no slice has intra = \"priority\"");
    defaults.slices[0].intra = IntraKind::Priority;
    assert_eq!(defaults.check_effects(), Ok(()));
}
