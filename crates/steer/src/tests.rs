use super::*;
use crate::MAX_PATHS;
use crate::view::FlowSteer;
use crate::{
    SteeringMode, active_standby, coded,
    load_balance::{self, Granularity, Weight},
    priority_based, redundant, smallest_delay,
};
use anabranch_rules::AccessName;
use proptest::prelude::*;

fn accesses(n: u8) -> Vec<(PathId, AccessName)> {
    (0..n).map(|p| (p, format!("a{p}"))).collect()
}

fn compile(json: &str, n: u8) -> Mode {
    Mode::compile(&serde_json::from_str(json).unwrap(), &accesses(n)).unwrap()
}

fn weighted(tenths: &[u8], per: Granularity) -> Mode {
    let weight = |(i, t): (usize, &u8)| Weight { access: format!("a{i}"), percent: t * 10 };
    let weights = tenths.iter().enumerate().map(weight).collect();
    let policy = SteeringMode::LoadBalance(load_balance::Params { weights, per, autonomous: false });
    Mode::compile(&policy, &accesses(tenths.len() as u8)).unwrap()
}

/// Paths with these RTTs in milliseconds; 0 is down.
fn paths(rtt_ms: &[u32]) -> PathStates {
    let mut paths = PathStates::default();
    for (i, ms) in rtt_ms.iter().enumerate() {
        paths.set(i as u8, PathState { rtt_us: ms * 1000, loss_ppm: 0, steady_loss_percent: 0 });
    }
    paths
}

fn steer<'a>(
    state: &mut ModeState,
    mode: &Mode,
    paths: impl Into<View<'a>>,
    sequence: u32,
    flow_hash: u64,
    now: Instant,
) -> Pick {
    let view = paths.into();
    let flow = &mut FlowSteer::default();
    let packet = Packet { sequence, flow_hash, remote: 0, bytes: 1400, datagram: false, ends: false, flow };
    state.pick(mode, View { loads: &[], ..view }, packet, now)
}

struct Run(ModeState, Mode);

impl Run {
    fn new(mode: Mode) -> Self {
        Self(ModeState::new(), mode)
    }
    fn at(&mut self, ms: u64, paths: &PathStates) -> Pick {
        steer(&mut self.0, &self.1, paths, 0, 0, Instant::from_millis(ms))
    }
}

#[test]
fn the_state_of_a_rule_is_small() {
    assert_eq!(size_of::<ModeState>(), 16);
    assert_eq!(size_of::<PathStates>(), 96);
}

#[test]
fn active_standby_leaves_the_primary_only_while_it_is_down() {
    let mut run = Run::new(compile(r#"{"mode":"active-standby","primary":"a1"}"#, 3));
    assert_eq!(run.at(0, &paths(&[5, 90, 7])), Pick::One(1));
    assert_eq!(run.at(1, &paths(&[9, 0, 7])), Pick::One(2), "the faster standby");
    assert_eq!(run.at(2, &paths(&[1, 0, 7])), Pick::One(2), "standbys do not alternate");
    assert_eq!(run.at(3, &paths(&[1, 0, 0])), Pick::One(0));
    assert_eq!(run.at(4, &paths(&[0, 0, 0])), Pick::None);
    assert_eq!(run.at(5, &paths(&[1, 90, 1])), Pick::One(1));
}

#[test]
fn active_standby_can_rotate() {
    let mode = compile(r#"{"mode":"active-standby","primary":"a1","rotate_packets":2}"#, 3);
    let take = |paths: &PathStates| -> Vec<PathId> {
        let mut state = ModeState::new();
        let pick =
            |sequence| steer(&mut state, &mode, paths, sequence, 0, Instant::ZERO).paths().iter().next();
        (0..8).filter_map(pick).collect()
    };
    assert_eq!(take(&paths(&[5, 90, 7])), [1, 1, 0, 0, 2, 2, 1, 1]);
    assert_eq!(take(&paths(&[5, 0, 7])), [0, 0, 2, 2, 0, 0, 2, 2], "only those that are up");
    assert_eq!(take(&paths(&[0, 3, 0])), [1; 8]);
}

#[test]
fn a_path_held_back_carries_copies_and_shares_but_no_flow_moves_to_it() {
    let (steady, live) = (paths(&[9, 0, 7]), paths(&[9, 5, 7]));
    let seen = View { steady: &steady, live: &live, loads: &[], restores: false };
    let pick = |mode: &Mode, sequence| steer(&mut ModeState::new(), mode, seen, sequence, 0, Instant::ZERO);
    let redundant = compile(r#"{"mode":"redundant"}"#, 3);
    assert_eq!(pick(&redundant, 0).paths(), live.up());
    let balance = compile(r#"{"mode":"load-balance"}"#, 3);
    assert_eq!([0, 1, 2].map(|n| pick(&balance, n)), [0, 1, 2].map(Pick::One));
    for (json, path) in [
        (r#"{"mode":"active-standby","primary":"a1"}"#, 2),
        (r#"{"mode":"smallest-delay"}"#, 2),
        (r#"{"mode":"priority-based","primary":"a1"}"#, 2),
        (r#"{"mode":"redundant","above_loss_percent":1}"#, 2),
    ] {
        let mode = compile(json, 3);
        assert_eq!(pick(&mode, 0), Pick::One(path), "{json}");
    }
    let by_flow = compile(r#"{"mode":"load-balance","per":"flow"}"#, 3);
    for hash in 0..100 {
        assert_ne!(
            steer(&mut ModeState::new(), &by_flow, seen, 0, hash, Instant::ZERO),
            Pick::One(1),
            "{hash}"
        );
    }
}

#[test]
fn load_balance_follows_the_papers_example() {
    let mode = weighted(&[3, 7], Granularity::Packet);
    let both = paths(&[10, 20]);
    let mut state = ModeState::new();
    for n in 0..100 {
        let pick = steer(&mut state, &mode, &both, n, 0, Instant::ZERO);
        assert_eq!(pick, Pick::One(u8::from(n % 10 > 2)), "{n}");
    }
    assert_eq!(steer(&mut state, &mode, &paths(&[0, 20]), 1, 0, Instant::ZERO), Pick::One(1));
}

#[test]
fn the_share_of_a_path_that_is_down_goes_to_the_others_in_proportion() {
    let mode = weighted(&[5, 3, 2], Granularity::Packet);
    let mut state = ModeState::new();
    let mut seen = [0; 3];
    for n in 0..50 {
        let Pick::One(p) = steer(&mut state, &mode, &paths(&[0, 1, 1]), n, 0, Instant::ZERO) else {
            panic!()
        };
        seen[usize::from(p)] += 1;
    }
    assert_eq!(seen, [0, 30, 20]);
    // A share of zero makes a path a standby, used if nothing else is up.
    let mode = weighted(&[10, 0, 0], Granularity::Packet);
    let count = |p| {
        (0..40)
            .filter(|&n| {
                steer(&mut ModeState::new(), &mode, &paths(&[0, 1, 1]), n, 0, Instant::ZERO) == Pick::One(p)
            })
            .count()
    };
    assert_eq!((count(1), count(2)), (20, 20));
}

#[test]
fn equal_shares_of_three() {
    let mode = compile(r#"{"mode":"load-balance"}"#, 3);
    let three = paths(&[1, 1, 1]);
    let picks: Vec<_> =
        (0..6).map(|n| steer(&mut ModeState::new(), &mode, &three, n, 0, Instant::ZERO)).collect();
    assert_eq!(picks, [0, 1, 2, 0, 1, 2].map(Pick::One));
}

#[test]
fn per_flow_keeps_a_flow_on_its_path_and_shares_the_flows() {
    let mode = weighted(&[3, 7], Granularity::Flow);
    assert!(!mode.splits() && weighted(&[3, 7], Granularity::Packet).splits());
    let both = paths(&[1, 1]);
    let pick = |flow: u64, sequence, paths: &PathStates| {
        steer(
            &mut ModeState::new(),
            &mode,
            paths,
            sequence,
            flow.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            Instant::ZERO,
        )
    };
    let first = (0..1000).filter(|&f| pick(f, 0, &both) == Pick::One(0)).count();
    assert!((250..350).contains(&first), "{first}");
    for flow in 0..100 {
        assert!((0..20).all(|n| pick(flow, n, &both) == pick(flow, 0, &both)));
        if pick(flow, 0, &both) == Pick::One(1) {
            assert_eq!(pick(flow, 0, &paths(&[0, 1])), Pick::One(1), "the live flows do not move");
        }
    }
}

#[test]
fn smallest_delay_requires_a_gain_and_the_dwell_time() {
    let mut run = Run::new(compile(r#"{"mode":"smallest-delay","hysteresis_percent":20,"dwell_ms":100}"#, 3));
    assert_eq!(run.at(0, &paths(&[50, 40, 0])), Pick::One(1));
    assert_eq!(run.at(500, &paths(&[33, 40, 0])), Pick::One(1), "not 20 % better");
    assert_eq!(run.at(501, &paths(&[31, 40, 0])), Pick::One(0));
    assert_eq!(run.at(550, &paths(&[40, 5, 0])), Pick::One(0), "too soon");
    assert_eq!(run.at(601, &paths(&[40, 5, 0])), Pick::One(1));
    assert_eq!(run.at(602, &paths(&[40, 0, 30])), Pick::One(2), "a path that is down is left at once");
}

#[test]
fn probe_noise_does_not_flap() {
    let mut run = Run::new(compile(r#"{"mode":"smallest-delay"}"#, 2));
    let mut changes = 0;
    let mut last = run.at(0, &paths(&[20, 21]));
    for tick in 1..1000u64 {
        let noise = [20 + (tick % 3) as u32, 20 + (tick % 2) as u32];
        let pick = run.at(tick * 100, &paths(&noise));
        changes += u32::from(pick != last);
        last = pick;
    }
    assert_eq!(changes, 0);
}

#[test]
fn priority_overflows_above_and_returns_well_below() {
    let mut run = Run::new(compile(r#"{"mode":"priority-based","primary":"a0","rtt_ms":50}"#, 3));
    assert_eq!(run.at(0, &paths(&[50, 90, 80])), Pick::One(0), "at the threshold is not above it");
    assert_eq!(run.at(1, &paths(&[51, 90, 80])), Pick::One(2));
    assert_eq!(run.at(2, &paths(&[45, 70, 80])), Pick::One(2), "not yet 80 %, and no alternation");
    assert_eq!(run.at(3, &paths(&[40, 70, 80])), Pick::One(0));
    assert_eq!(run.at(4, &paths(&[500, 0, 0])), Pick::One(0), "nothing to overflow to");
    assert_eq!(run.at(5, &paths(&[0, 3, 0])), Pick::One(1));
}

#[test]
fn priority_considers_loss() {
    let mut run = Run::new(compile(r#"{"mode":"priority-based","primary":"a1","loss_percent":2}"#, 2));
    let mut two = paths(&[10, 9999]);
    assert_eq!(run.at(0, &two), Pick::One(1), "no RTT threshold is set");
    two.get_mut(1).unwrap().loss_ppm = 20_001;
    assert_eq!(run.at(1, &two), Pick::One(0));
    two.get_mut(1).unwrap().loss_ppm = 16_000;
    assert_eq!(run.at(2, &two), Pick::One(1));
}

#[test]
fn redundancy_can_depend_on_loss() {
    let mut run = Run::new(compile(r#"{"mode":"redundant","above_loss_percent":1}"#, 2));
    let mut two = paths(&[10, 30]);
    assert_eq!(run.at(0, &two), Pick::One(0), "smallest delay below the threshold");
    two.get_mut(0).unwrap().loss_ppm = 50_000;
    assert_eq!(run.at(1, &two), Pick::One(1), "the clean path, though slower");
    two.get_mut(1).unwrap().loss_ppm = 10_001;
    assert_eq!(run.at(2, &two), Pick::Many(PathSet::from_bits(0b11)));
    two.get_mut(1).unwrap().loss_ppm = 9_000;
    assert_eq!(run.at(3, &two), Pick::Many(PathSet::from_bits(0b11)));
    two.get_mut(1).unwrap().loss_ppm = 8_000;
    assert_eq!(run.at(4, &two), Pick::One(1));
}

#[test]
fn coded_mode_counts_loss_as_delay_and_sends_repairs_by_another_path() {
    let mode = compile(r#"{"mode":"coded","longest_wait_ms":100}"#, 3);
    let coded = *mode.coded().unwrap();
    let mut run = Run::new(mode);
    let mut live = paths(&[40, 20, 30]);
    assert_eq!(run.at(0, &live), Pick::One(1), "the smallest delay");
    assert_eq!(coded.repair_path(1, &live), 2);
    live.get_mut(1).unwrap().loss_ppm = 50_000;
    assert_eq!(run.at(1000, &live), Pick::One(2), "5 % are 40 ms of round trip");
    assert_eq!(coded.repair_path(2, &live), 0);
    live.get_mut(2).unwrap().rtt_us = 130_000;
    assert_eq!(coded.repair_path(1, &live), 0);
    live.mark_down(0);
    assert_eq!(coded.repair_path(1, &live), 1, "55 ms later is too late for half of 100 ms");
    live.get_mut(2).unwrap().rtt_us = 119_000;
    assert_eq!(coded.repair_path(1, &live), 2);
    assert_eq!(coded.repair_path(2, &paths(&[0, 0, 30])), 2, "the only one");
}

fn any_mode() -> impl Strategy<Value = SteeringMode> {
    let access = (0u8..8).prop_map(|p| format!("a{p}"));
    let per = prop_oneof![Just(Granularity::Packet), Just(Granularity::Flow)];
    prop_oneof![
        access.clone().prop_map(|primary| SteeringMode::ActiveStandby(active_standby::Params {
            primary,
            rotate_packets: 0,
            leave_above_loss_percent: 5
        })),
        (tenths(), per, any::<bool>()).prop_map(|(tenths, per, autonomous)| {
            let weight = |(i, t): (usize, &u8)| Weight { access: format!("a{i}"), percent: t * 10 };
            let weights = tenths.iter().enumerate().map(weight).collect();
            SteeringMode::LoadBalance(load_balance::Params { weights, per, autonomous })
        }),
        (0u8..100, 0u32..1000).prop_map(|(hysteresis_percent, dwell_ms)| SteeringMode::SmallestDelay(
            smallest_delay::Params { hysteresis_percent, dwell_ms, leave_above_loss_percent: 5 }
        )),
        (access, proptest::option::of(0.1..100.0), proptest::option::of(0.0..100.0)).prop_map(
            |(primary, rtt_ms, loss_percent)| SteeringMode::PriorityBased(priority_based::Params {
                primary,
                rtt_ms,
                loss_percent
            })
        ),
        proptest::option::of(0.0..100.0)
            .prop_map(|above_loss_percent| SteeringMode::Redundant(redundant::Params { above_loss_percent })),
        (10u8..=100, 1u8..=128, 10u16..=1000).prop_map(
            |(overhead_percent, window_packets, longest_wait_ms)| {
                SteeringMode::Coded(coded::Params { overhead_percent, window_packets, longest_wait_ms })
            }
        ),
    ]
}

/// Eight shares in tenths that sum to ten, or none.
fn tenths() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(0usize..8, 10).prop_map(|balls| {
        let mut tenths = vec![0; 8];
        balls.into_iter().for_each(|b| tenths[b] += 1);
        tenths
    })
}

fn any_paths() -> impl Strategy<Value = PathStates> {
    let state = (prop_oneof![Just(0u32), 1..200_000u32], 0..1_000_001u32, 0u8..=100);
    proptest::array::uniform8(state).prop_map(|states| {
        let mut paths = PathStates::default();
        for (i, (rtt_us, loss_ppm, steady_loss_percent)) in states.into_iter().enumerate() {
            paths.set(i as u8, PathState { rtt_us, loss_ppm, steady_loss_percent });
        }
        paths
    })
}

/// The explanation of a rule agrees with its last decision: no reason is given against a picked path, and a
/// reason against every other one, unless packets alternate.
fn agrees(said: &Explanation, mode: &Mode, picked: Pick, seen: View<'_>) -> Result<(), TestCaseError> {
    let why = |path: PathId| said.excluded[usize::from(path)];
    prop_assert_eq!(said.treatment == Treatment::NoPath, picked == Pick::None);
    for path in PathSet::ALL {
        let down = matches!(why(path), Some(Exclusion::Down { .. }));
        prop_assert_eq!(down, !seen.live.is_up(path), "{:?}", said);
    }
    prop_assert!(picked.paths().iter().all(|path| why(path).is_none()), "{:?} {:?}", picked, said);
    let others = PathSet::ALL.without(picked.paths());
    match said.treatment {
        Treatment::One(path, cause) => {
            prop_assert_eq!(picked, Pick::One(path), "{:?}", said);
            let silent = mode.is_autonomous() && cause != Cause::Only;
            prop_assert!(silent || others.iter().all(|path| why(path).is_some()), "{:?}", said);
        }
        Treatment::Coded { source, repair } => {
            prop_assert_eq!(picked, Pick::One(source));
            prop_assert!(others.iter().all(|path| path == repair || why(path).is_some()), "{:?}", said);
        }
        Treatment::Copies => prop_assert_eq!(picked.paths(), seen.live.up()),
        _ => {}
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_picked_path_is_up_and_one_is_picked_if_any_is_up(
        policy in any_mode(),
        known in 0u8..=8,
        steps in proptest::collection::vec((any_paths(), any::<u32>(), any::<u64>(), 0u64..1000), 1..30),
        held in any::<u8>(),
    ) {
        let names: Vec<AccessName> = accesses(8).into_iter().map(|(_, name)| name).collect();
        let mode = Mode::compile_for(&policy, &accesses(known), &names).unwrap();
        let mut state = ModeState::new();
        let mut now = Instant::ZERO;
        for (paths, sequence, flow_hash, ms) in steps {
            now += core::time::Duration::from_millis(ms);
            // Some are held back, but never all.
            let mut steady = paths;
            PathSet::from_bits(held).iter().for_each(|path| steady.mark_down(path));
            if steady.none_up() {
                steady = paths;
            }
            let seen = View { steady: &steady, live: &paths, loads: &[], restores: false };
            let picked = steer(&mut state, &mode, seen, sequence, flow_hash, now);
            prop_assert_eq!(picked == Pick::None, paths.up().is_empty());
            let may = if mode.uses_held() { paths.up() } else { steady.up() };
            prop_assert!(picked.paths().without(may).is_empty());
            prop_assert_eq!(picked.paths().is_empty(), paths.up().is_empty());
            if !matches!(mode, Mode::Redundant(_)) {
                prop_assert!(picked.paths().len() <= 1);
            }
            if policy == (SteeringMode::Redundant(redundant::Params { above_loss_percent: None })) {
                prop_assert_eq!(picked.paths(), paths.up());
            }
            agrees(&state.explain(&mode, seen, PathSet::ALL, now), &mode, picked, seen)?;
        }
    }

    #[test]
    fn shares_are_exact_over_any_ten_sequence_numbers(tenths in tenths(), start in any::<u32>()) {
        // A run of ten that does not cross the wrap of the 32-bit counter (2^32 is no multiple of ten).
        prop_assume!(start <= u32::MAX - 10);
        let mode = weighted(&tenths, Granularity::Packet);
        let all = paths(&[1; MAX_PATHS]);
        let mut seen = vec![0u8; MAX_PATHS];
        let mut state = ModeState::new();
        for n in start..start + 10 {
            let Pick::One(p) = steer(&mut state, &mode, &all, n, 0, Instant::ZERO) else { panic!("not one path") };
            seen[usize::from(p)] += 1;
        }
        prop_assert_eq!(seen, tenths);
    }
}
