use super::super::{PathState, PathStates};
use super::*;
use crate::view::{Arrived, FlowSteer};
use proptest::prelude::*;

const CLEAN: LoadView = LoadView { base_us: Some(0), rtt_us: 10_000, ..LoadView::UNKNOWN };

/// A path with a forward delay and a queue, both in ms, and a capacity in Mbit/s.
fn load(base_ms: i64, queue_ms: u32, mbps: u64) -> LoadView {
    LoadView {
        base_us: Some(base_ms * 1000),
        rtt_us: base_ms as u32 * 2000,
        queue_us: queue_ms * 1000,
        capacity_bps: mbps * 1_000_000,
        seen_bps: mbps * 1_000_000,
        ..CLEAN
    }
}

struct Bed {
    lane: Lane,
    states: PathStates,
    loads: Vec<LoadView>,
    now: Instant,
}

impl Bed {
    fn new(loads: &[LoadView]) -> Self {
        let mut states = PathStates::default();
        for (path, load) in (0..).zip(loads) {
            states.set(path, PathState::up(load.rtt_us));
        }
        Self { lane: Lane::default(), states, loads: loads.to_vec(), now: Instant::from_secs(1) }
    }

    fn packet(&mut self, flow: &mut FlowSteer, remote: u64) -> PathId {
        self.packet_by(self.states.up(), flow, remote)
    }

    /// A packet for which only these paths may be used.
    fn packet_by(&mut self, up: PathSet, flow: &mut FlowSteer, remote: u64) -> PathId {
        let input = &mut Input {
            paths: &self.states,
            up,
            live: &self.states,
            sequence: 0,
            flow_hash: 0,
            remote,
            bytes: 1400,
            flow,
            loads: &self.loads,
            now: self.now,
        };
        self.lane.pick(input, up, true).unwrap()
    }

    fn wait(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
    }
}

#[test]
fn a_flow_stays_where_it_arrives_first_until_that_is_full() {
    let load = |base_ms, queue_ms, mbps| LoadView { drop_us: 100_000, ..load(base_ms, queue_ms, mbps) };
    let mut bed = Bed::new(&[load(5, 0, 0), load(20, 0, 0)]);
    let flow = &mut FlowSteer::default();
    assert_eq!(bed.packet(flow, 1), 0);
    bed.loads[0] = load(5, 14, 100);
    assert_eq!(bed.packet(flow, 1), 0, "19 ms at home, 20 on the other");
    bed.loads[0] = load(5, 16, 100);
    assert_eq!(bed.packet(flow, 1), 1);
    bed.loads[1].queue_us = 3_000;
    assert_eq!(bed.packet(flow, 1), 0);
}

#[test]
fn a_home_that_drops_is_left_for_a_later_path_and_only_while_that_does_no_harm() {
    let mut bed = Bed::new(&[load(5, 9, 80), load(20, 0, 100)]);
    let flow = &mut FlowSteer::default();
    bed.packet(flow, 1);
    flow.bytes[0] = 1 << 20;
    bed.loads[0].drop_us = 10_000;
    assert_eq!(bed.packet(flow, 1), 1);
    // 250 ms at a seventh of the capacity, again and again: harm.
    for _ in 0..1200 {
        bed.packet(flow, 1);
        bed.wait(1);
    }
    assert_eq!(bed.packet(flow, 1), 0, "first it is more cautious");
    bed.loads[0].queue_us = 10_000;
    assert_eq!(bed.packet(flow, 1), 1);
    for _ in 0..1200 {
        bed.packet(flow, 1);
        bed.wait(1);
    }
    assert_eq!(bed.packet(flow, 1), 0, "then it stops");
    let LawView { counts, paused, .. } = bed.lane.view(bed.now);
    let pause = paused.unwrap();
    assert!(pause.sent_bps < pause.capacity_bps && pause.capacity_bps == 80_000_000, "{pause:?}");
    assert!(counts.pauses == 1 && counts.overflowed[1] > 0 && counts.spilled == [0; MAX_PATHS], "{counts:?}");
    assert!(bed.lane.view(pause.until).paused.is_none());
}

#[test]
fn a_path_that_carries_little_takes_nothing_late() {
    let mut bed = Bed::new(&[load(5, 9, 200), load(20, 0, 20)]);
    bed.loads[0].drop_us = 9_000;
    let flow = &mut FlowSteer::default();
    assert_eq!((bed.packet(flow, 1), bed.packet(flow, 1)), (0, 0));
}

#[test]
fn flows_to_one_host_at_once_are_spread_by_capacity_and_others_are_not() {
    let mut bed = Bed::new(&[load(5, 0, 150), load(20, 0, 50)]);
    let homes: Vec<_> = (0..8).map(|_| bed.packet(&mut FlowSteer::default(), 7)).collect();
    assert_eq!(homes.iter().filter(|home| **home == 1).count(), 2, "{homes:?}");
    for remote in 100..110 {
        assert_eq!(bed.packet(&mut FlowSteer::default(), remote), 0);
    }
    bed.wait(3_000);
    assert_eq!(bed.packet(&mut FlowSteer::default(), 7), 0, "no longer the same transfer");
}

#[test]
fn a_host_with_a_new_flow_every_second_for_a_day_is_spread_by_capacity_to_the_end() {
    let mut bed = Bed::new(&[load(5, 0, 150), load(20, 0, 50)]);
    let mut on_second = 0;
    for i in 0..86_400 {
        let home = bed.packet(&mut FlowSteer::default(), 7);
        on_second += u32::from(home == 1 && i >= 85_400);
        bed.wait(1_000);
    }
    assert!((225..=275).contains(&on_second), "a quarter of the last 1000: {on_second}");
}

#[test]
fn a_lossy_path_carries_nothing_while_another_is_up() {
    let mut bed = Bed::new(&[load(5, 50, 100), load(20, 0, 0)]);
    bed.states.set(1, PathState { steady_loss_percent: 20, ..PathState::up(40_000) });
    let flow = &mut FlowSteer::default();
    assert_eq!((bed.packet(flow, 1), bed.packet(flow, 1)), (0, 0));
    bed.states.mark_down(0);
    assert_eq!(bed.packet(flow, 1), 1);
}

#[test]
fn a_bulk_flow_that_loss_keeps_from_filling_its_home_moves() {
    let mut bed = Bed::new(&[LoadView { wild_ppm: 5_000, ..load(5, 0, 300) }, load(15, 0, 0)]);
    let flow = &mut FlowSteer::default();
    let mut path = 0;
    for _ in 0..2000 {
        path = bed.packet(flow, 1);
        bed.wait(1);
    }
    assert_eq!(path, 1);
    assert_eq!(bed.lane.view(bed.now).counts.left[..2], [1, 0]);
    assert_eq!(bed.lane.untold_left()[..2], [Left { flows: 1, loss_ppm: 5_000 }, Left::default()]);
}

/// A sender that does not take loss for congestion (BBR) and leaves no queue, so that the lossy path's capacity is not known.
/// The other path's is known, or it is not and the flow has less there, or more and more.
#[test]
fn a_bulk_flow_goes_back_to_a_lossy_home_that_carried_more() {
    // Capacity of the other path in Mbit/s, µs from packet to packet there at first and after 8 s, and the path at the end.
    for (mbps, first_us, last_us, end) in
        [(8, 1_000, 1_000, 0), (80, 1_000, 1_000, 1), (0, 4_000, 4_000, 0), (0, 4_000, 800, 1)]
    {
        let mut bed = Bed::new(&[LoadView { wild_ppm: 5_000, ..load(5, 0, 0) }, load(15, 0, 0)]);
        let flow = &mut FlowSteer::default();
        let left = (0..3_000).find(|_| {
            bed.wait(1);
            bed.packet(flow, 1) == 1
        });
        assert!(left.is_some(), "it leaves for its loss");
        bed.loads[1] = load(15, 0, mbps);
        let from = bed.now;
        let mut path = 1;
        while bed.now < from + Duration::from_secs(20) {
            let part = bed.now.saturating_since(from).as_millis().min(8_000) as u64;
            let wait_us = if path == 0 { 1_000 } else { first_us - (first_us - last_us) * part / 8_000 };
            bed.now += Duration::from_micros(wait_us);
            path = bed.packet(flow, 1);
        }
        assert_eq!(path, end, "{mbps} Mbit/s, {first_us} to {last_us} us");
        assert_eq!(bed.lane.view(bed.now).counts.left[0], 1, "it leaves once");
    }
}

#[test]
fn a_bulk_flow_that_fills_its_home_in_spite_of_loss_stays() {
    let mut bed = Bed::new(&[LoadView { wild_ppm: 5_000, ..load(5, 0, 10) }, load(15, 0, 0)]);
    let flow = &mut FlowSteer::default();
    flow.set_home(0, bed.now);
    for ms in 0..10_000 {
        // Nothing for 200 ms every 2.5 s.
        if ms % 2_500 >= 200 {
            assert_eq!(bed.packet(flow, 1), 0, "11 of 10 Mbit/s, no queue");
        }
        bed.wait(1);
    }
}

#[test]
fn a_lossy_home_keeps_the_bulk_flow_that_fills_it_and_no_other() {
    let mut bed = Bed::new(&[load(5, 0, 10), load(20, 0, 10)]);
    let (bulk, small) = (&mut FlowSteer::default(), &mut FlowSteer::default());
    bulk.set_home(0, bed.now);
    small.set_home(0, bed.now);
    for _ in 0..500 {
        assert_eq!(bed.packet(bulk, 1), 0);
        bed.wait(1);
    }
    bed.states.set(0, PathState { steady_loss_percent: 20, ..PathState::up(10_000) });
    assert_eq!(bed.packet(small, 2), 1);
    for _ in 0..2_000 {
        assert_eq!(bed.packet(bulk, 1), 0, "11 of 10 Mbit/s");
        bed.wait(1);
    }
    // A quarter of that: its sender takes the loss for congestion.
    let homes: Vec<_> = (0..500)
        .map(|_| {
            bed.wait(4);
            bed.packet(bulk, 1)
        })
        .collect();
    assert_eq!((homes[0], homes[499]), (0, 1));
}

#[test]
fn before_the_first_loss_packets_overflow_by_what_fits() {
    let mut bed = Bed::new(&[load(5, 0, 0), load(20, 0, 0)]);
    let flow = &mut FlowSteer::default();
    assert_eq!(bed.packet(flow, 1), 0);
    bed.loads[0] = load(5, 3, 100);
    assert_eq!(bed.packet(flow, 1), 0, "a flow that sends little does not overflow");
    flow.bytes[0] = 1 << 20;
    assert_eq!(bed.packet(flow, 1), 1, "3 of 10 ms in use, none of 40");
    bed.loads[1].modelled_us = 13_000;
    assert_eq!(bed.packet(flow, 1), 0, "3 of 10 ms in use, 13 of 40");
}

#[test]
fn one_of_two_bulk_flows_moves_to_an_idle_path() {
    let full = LoadView { drop_us: 100_000, ..load(5, 5, 100) };
    let mut bed = Bed::new(&[full, load(20, 0, 100)]);
    let flows = &mut [FlowSteer::default(), FlowSteer::default()];
    for (remote, flow) in (0..).zip(flows.iter_mut()) {
        flow.set_home(0, bed.now);
        assert_eq!(bed.packet(flow, remote), 0);
    }
    for _ in 0..1000 {
        for (remote, flow) in (0..).zip(flows.iter_mut()) {
            bed.packet(flow, remote);
        }
        bed.wait(1);
    }
    let homes: PathSet = flows.iter().filter_map(FlowSteer::home).collect();
    assert_eq!(homes.bits(), 0b11, "one on each: {flows:?}");
    let LawView { counts, bulk, .. } = bed.lane.view(bed.now);
    assert_eq!((counts.moved[1], bulk[..2].to_vec()), (1, vec![1, 1]), "{counts:?}");
}

/// So many bulk flows on a path that loses half a percent, where each has `lossy_mbps`, and on one of `clean_mbps` that they
/// fill; how many are on the second after ten seconds, and after thirty.
fn shared(flows: [usize; 2], lossy_mbps: f64, clean_mbps: u64) -> [usize; 2] {
    let clean = LoadView { drop_us: 100_000, ..load(15, 20, clean_mbps) };
    let mut bed = Bed::new(&[LoadView { wild_ppm: 5_000, ..load(5, 0, 0) }, clean]);
    let mut all: Vec<FlowSteer> = (0..flows[0] + flows[1]).map(|_| FlowSteer::default()).collect();
    let mut homes = vec![0; flows[0]];
    homes.extend(vec![1; flows[1]]);
    for (flow, home) in all.iter_mut().zip(&homes) {
        flow.set_home(*home, bed.now);
    }
    let mut credit = vec![0.0; all.len()];
    [10, 20].map(|seconds| {
        for _ in 0..seconds * 1000 {
            let sharing = homes.iter().filter(|home| **home == 1).count() as f64;
            for (at, flow) in all.iter_mut().enumerate() {
                let mbps = if homes[at] == 0 { lossy_mbps } else { clean_mbps as f64 / sharing };
                credit[at] += mbps / 11.2;
                while credit[at] >= 1.0 {
                    flow.arrives(Arrived { bytes: 30, paths: 3 });
                    bed.packet(flow, at as u64);
                    credit[at] -= 1.0;
                }
                homes[at] = flow.home().unwrap();
            }
            bed.wait(1);
        }
        homes.iter().filter(|home| **home == 1).count()
    })
}

#[test]
fn several_flows_share_a_clean_path_only_while_a_lossy_one_gives_none_of_them_more() {
    // 40 Mbit/s for six, where the lossy path gives each of two 16: three of them have 13.3.
    assert_eq!(shared([2, 6], 16.0, 40), [3, 3]);
    // Where it gives each 2, all go to the clean one: eight have 5.
    assert_eq!(shared([6, 2], 2.0, 40), [8, 8]);
    // And as many as have 90 % of 5 there: eight of twelve.
    assert_eq!(shared([10, 2], 5.0, 40), [8, 8]);
}

#[test]
fn a_flow_goes_to_a_lossy_path_where_each_has_more_only_if_that_may_be_used() {
    for (up, end) in [([0, 1, 2], 0), ([1, 1, 2], 1)] {
        let lossy = LoadView { wild_ppm: 5_000, ..load(5, 0, 0) };
        let mut bed = Bed::new(&[lossy, load(15, 0, 40), load(15, 0, 40)]);
        let flow = &mut FlowSteer::default();
        flow.set_home(1, bed.now);
        let period = (bed.now.as_millis() / PERIOD_MS) as u32;
        flow.begin(period, true);
        flow.bytes[1] = BULK_BYTES;
        bed.lane.period = period;
        bed.lane.bulk[0][..3].copy_from_slice(&[1, 2, 1]);
        bed.lane.carried_bps[..3].copy_from_slice(&[16_000_000, 8_000_000, 8_000_000]);
        bed.lane.full.insert(1);
        let may = up.iter().fold(PathSet::EMPTY, |set, path| set.union(PathSet::single(*path)));
        assert_eq!(bed.packet_by(may, flow, 1), end, "{up:?}");
    }
}

#[test]
fn a_flow_is_alone_on_its_path_again_after_the_longest_way() {
    let mut flow = FlowSteer::default();
    let at = |ms| Instant::from_millis(ms);
    let longest = Duration::from_millis(100);
    assert!(flow.takes(0, longest, at(0)) && flow.takes(0, longest, at(1)));
    assert!(!flow.takes(1, longest, at(2)) && !flow.takes(0, longest, at(50)));
    assert!(!flow.takes(0, longest, at(150)));
    assert!(flow.takes(0, longest, at(151)));
}

/// Packets at an even pace, as many per round trip as given, and the path each second and at the end.
fn run(bed: &mut Bed, flow: &mut FlowSteer, per_round: f64, rtt_us: f64, ms: u64) -> PathId {
    let (until, wait_us) = (bed.now + Duration::from_millis(ms), (rtt_us / per_round) as u64);
    let mut path = flow.home().unwrap_or(0);
    while bed.now < until {
        flow.arrives(Arrived { bytes: 30, paths: 1 });
        path = bed.packet(flow, 1);
        bed.now += Duration::from_micros(wait_us.max(1));
    }
    path
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// A sender that loss does not slow down keeps its home, whose capacity is not known; one that has the window that
    /// loss leaves it moves within a second, or five round trips.
    #[test]
    fn a_flow_leaves_its_lossy_home_if_it_answers_loss_and_only_then(
        loss_ppm in 2_000_u32..300_000,
        base_ms in 2_i64..60,
        times in 1.3_f64..4.0,
    ) {
        let base_us = base_ms as f64 * 2000.0;
        let window = (1_500_000.0 / f64::from(loss_ppm)).sqrt();
        let percent = (loss_ppm / 10_000) as u8;
        for (per_round, end) in [((3.0 * window * times).max(12.0), 0), (window.max(2.0), 1)] {
            let mut bed = Bed::new(&[load(base_ms, 0, 0), load(2 * base_ms, 0, 0)]);
            let flow = &mut FlowSteer::default();
            prop_assert_eq!(run(&mut bed, flow, per_round.max(20.0), base_us, 300), 0);
            bed.loads[0].wild_ppm = loss_ppm;
            bed.states.set(0, PathState { steady_loss_percent: percent, ..PathState::up(base_us as u32) });
            let least = f64::from(BULK_BYTES) / 1400.0 * base_us / 250_000.0;
            let ms = 1_300 + 5 * base_us as u64 / 1_000;
            prop_assert_eq!(run(&mut bed, flow, per_round.max(1.1 * least), base_us, ms), end, "{} packets", per_round);
        }
    }
}

#[test]
fn acknowledgements_of_what_comes_by_a_lossy_home_stay_there() {
    for (paths, end) in [(0b01, 0), (0b10, 1)] {
        let mut bed = Bed::new(&[load(5, 0, 100), load(20, 0, 50)]);
        let flow = &mut FlowSteer::default();
        assert_eq!(bed.packet(flow, 1), 0);
        bed.states.set(0, PathState { steady_loss_percent: 20, ..PathState::up(10_000) });
        let mut path = 0;
        for _ in 0..1_000 {
            flow.arrives(Arrived { bytes: 28_000, paths });
            path = bed.packet(flow, 1);
            bed.wait(4);
        }
        assert_eq!(path, end, "paths {paths:b}");
    }
}

proptest! {
    /// Whatever is known of the paths: a path that is up is taken; a packet that does not overflow arrives no later
    /// than it would at its home; a path that drops is not spilled to.
    #[test]
    fn a_packet_that_spills_arrives_no_later_than_at_home(
        paths in prop::collection::vec(
            (0_i64..400_000, 0_u32..300_000, 0_u64..1_000, prop::option::of(1_000_u32..200_000), 0_u32..20_000),
            1..8,
        ),
        down in any::<u8>(),
        packets in 1_usize..50,
    ) {
        let loads: Vec<_> = paths
            .iter()
            .map(|&(base, queue_us, mbps, drop, wild_ppm)| LoadView {
                base_us: Some(base),
                rtt_us: 2 * base as u32,
                queue_us,
                modelled_us: queue_us,
                drop_us: drop.unwrap_or(u32::MAX),
                capacity_bps: mbps * 1_000_000,
                seen_bps: mbps * 1_000_000,
                wild_ppm,
            })
            .collect();
        let mut bed = Bed::new(&loads);
        for path in 0..loads.len() as u8 {
            if down & 1 << path != 0 && bed.states.up().len() > 1 {
                bed.states.mark_down(path);
            }
        }
        let flow = &mut FlowSteer::default();
        for _ in 0..packets {
            bed.lane.overflow = Overflow { caution: 2, retry_at: Instant::from_secs(1000), ..Overflow::default() };
            let path = bed.packet(flow, 1);
            prop_assert!(bed.states.is_up(path));
            let home = flow.home().unwrap();
            let arrival = |p: PathId| loads[usize::from(p)].base_us.unwrap() + i64::from(loads[usize::from(p)].queue_us);
            if path != home {
                prop_assert!(arrival(path) < arrival(home));
                let load = loads[usize::from(path)];
                prop_assert!(load.queue_us < load.drop_us);
            }
            bed.wait(10);
        }
        let counts = bed.lane.view(bed.now).counts;
        let all = [counts.at_home, counts.spilled, counts.overflowed];
        prop_assert_eq!(all.iter().flatten().sum::<u64>(), packets as u64);
        prop_assert_eq!(counts.overflowed, [0; MAX_PATHS]);
    }
}
