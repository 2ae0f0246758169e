//! Flows on paths with loss but without congestion.

use super::*;

#[test]
fn a_lossy_path_is_not_used_while_another_is_up() {
    let mut bed = Bed::new(&[load(5, 50, 100), load(20, 0, 0)]);
    bed.states.set(1, PathState { steady_loss_percent: 20, ..PathState::up(40_000) });
    let flow = &mut FlowSteer::default();
    assert_eq!((bed.packet(flow, 1), bed.packet(flow, 1)), (0, 0));
    bed.states.mark_down(0);
    assert_eq!(bed.packet(flow, 1), 1);
}

#[test]
fn a_bulk_flow_held_back_by_loss_moves() {
    let mut bed = Bed::new(&[LoadView { wild_ppm: 5_000, ..load(5, 0, 300) }, load(15, 0, 0)]);
    let flow = &mut FlowSteer::default();
    let mut path = 0;
    for _ in 0..2000 {
        path = bed.packet(flow, 1);
        bed.wait(1);
    }
    assert_eq!(path, 1);
    assert_eq!(bed.lane.view(bed.now).counts.left[..2], [1, 0]);
    assert_eq!(
        bed.lane.unreported_departures()[..2],
        [Departures { flows: 1, loss_ppm: 5_000 }, Departures::default()]
    );
}

/// 11 Mbit/s at home; the other path was never full, but was measured by trains.
#[test]
fn a_bulk_flow_stays_on_a_lossy_home_if_the_other_path_has_less_by_measurement() {
    for (mbps, end) in [(5, 0), (9, 0), (20, 1), (0, 1)] {
        let mut bed = Bed::new(&[LoadView { wild_ppm: 5_000, ..load(5, 0, 300) }, measured(15, mbps)]);
        let flow = &mut FlowSteer::default();
        let mut path = 0;
        for _ in 0..3_000 {
            path = bed.packet(flow, 1);
            bed.wait(1);
        }
        assert_eq!(path, end, "{mbps} Mbit/s");
    }
}

/// 4 Mbit/s at home, as in the first second of a flow. The home carries 10 Mbit/s; by its loss, a sender would have
/// 47 Mbit/s with a round trip of 4 ms, and 2 with one of 100 ms.
#[test]
fn a_bulk_flow_stays_on_a_lossy_home_if_loss_leaves_it_more_than_the_other_path() {
    for (base_ms, end) in [(2, 0), (50, 1)] {
        let home = LoadView { wild_ppm: 5_000, ..load(base_ms, 0, 10) };
        let mut bed = Bed::new(&[home, measured(15, 5)]);
        let flow = &mut FlowSteer::default();
        flow.set_home(0, bed.now);
        let mut path = 0;
        for _ in 0..3_000 {
            path = bed.packet(flow, 1);
            bed.now += Duration::from_micros(2_800);
        }
        assert_eq!(path, end, "round trip {} ms", 2 * base_ms);
    }
}

/// A sender that ignores loss (BBR) and leaves no queue, so the capacity of the lossy path is unknown. Either the
/// capacity of the other path is known; or it is not, and the flow has less there, or more and more.
#[test]
fn a_bulk_flow_goes_back_to_a_lossy_home_that_carried_more() {
    // Capacity of the other path in Mbit/s, µs between packets there at first and after 8 s, and the final path.
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
        // Nothing is sent for 200 ms every 2.5 s.
        if ms % 2_500 >= 200 {
            assert_eq!(bed.packet(flow, 1), 0, "11 of 10 Mbit/s, no queue");
        }
        bed.wait(1);
    }
}

#[test]
fn a_lossy_home_keeps_only_the_bulk_flow_that_fills_it() {
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
    // A quarter of that rate: its sender slows down because of the loss.
    let homes: Vec<_> = (0..500)
        .map(|_| {
            bed.wait(4);
            bed.packet(bulk, 1)
        })
        .collect();
    assert_eq!((homes[0], homes[499]), (0, 1));
}

/// Bulk flows on a path with 0.5 % loss, where each has `lossy_mbps`, and on a path of `clean_mbps` that they fill.
/// Returns the number of flows on the second path after ten seconds, and after thirty.
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
fn several_flows_share_a_clean_path_only_while_none_has_more_on_a_lossy_one() {
    // 40 Mbit/s for six flows, while two have 16 each on the lossy path: three of them then have 13.3 each.
    assert_eq!(shared([2, 6], 16.0, 40), [3, 3]);
    // If each has 2 there, all move to the clean path: eight have 5 each.
    assert_eq!(shared([6, 2], 2.0, 40), [8, 8]);
    // As many as have 90 % of 5 there: eight of twelve.
    assert_eq!(shared([10, 2], 5.0, 40), [8, 8]);
}

#[test]
fn a_flow_goes_to_a_lossy_path_where_each_has_more_only_if_that_may_be_used() {
    for (up, end) in [([0, 1, 2], 0), ([1, 1, 2], 1)] {
        let lossy = LoadView { wild_ppm: 5_000, ..load(5, 0, 0) };
        let mut bed = Bed::new(&[lossy, load(15, 0, 40), load(15, 0, 40)]);
        let flow = &mut on_full_home(&mut bed, [(1, 16), (2, 8), (1, 8)]);
        let may = up.iter().fold(PathSet::EMPTY, |set, path| set.union(PathSet::single(*path)));
        assert_eq!(bed.packet_by(may, flow, 1), end, "{up:?}");
    }
}

/// Three flows have 16 Mbit/s each on a lossy path; the fourth has 6 on its own on the other one.
#[test]
fn a_lone_flow_goes_to_a_lossy_path_where_each_has_more_if_that_has_room_for_it() {
    for (mbps, end) in [(116, 0), (60, 1), (0, 1)] {
        let lossy = LoadView { wild_ppm: 5_000, ..load(5, 0, mbps) };
        let mut bed = Bed::new(&[lossy, load(70, 0, 6)]);
        let flow = &mut on_full_home(&mut bed, [(3, 16), (1, 6)]);
        assert_eq!(bed.packet(flow, 1), end, "{mbps} Mbit/s");
    }
}

/// A bulk flow whose home, path 1, is full, with the number of flows and their rate in Mbit/s for each path.
fn on_full_home<const N: usize>(bed: &mut Bed, paths: [(u16, u64); N]) -> FlowSteer {
    let mut flow = FlowSteer::default();
    flow.set_home(1, bed.now);
    bed.lane.period = (bed.now.as_millis() / PERIOD_MS) as u32;
    flow.begin(bed.lane.period, true);
    flow.bytes[1] = BULK_BYTES;
    for (path, (bulk, mbps)) in paths.into_iter().enumerate() {
        (bed.lane.bulk[0][path], bed.lane.carried_bps[path]) = (bulk, mbps * 1_000_000);
    }
    bed.lane.full.insert(1);
    flow
}

/// Sends packets at a constant rate of `per_round` per round trip. Returns the final path.
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

    /// The next flow of a host that slows down begins on the path where loss leaves it more. That of a host that
    /// ignores loss begins on a lossy path with twice the capacity. The flow of another host begins as if nothing
    /// were known.
    #[test]
    fn the_next_flow_of_a_host_begins_where_its_sender_does_better(
        loss_ppm in 5_000_u32..200_000,
        rtt_ms in 8_u32..60,
        clean_mbps in 20_u64..400,
        times in 2_u64..8,
    ) {
        let window = (1.5e6 / f64::from(loss_ppm)).sqrt();
        let lossy = LoadView { wild_ppm: loss_ppm, ..load(i64::from(rtt_ms) / 2, 0, clean_mbps * times) };
        let clean = load(i64::from(rtt_ms), 0, clean_mbps);
        for (per_round, home) in [(window, 1), (window * 4.0 + 12.0, 0)] {
            let mut bed = Bed::new(&[lossy, clean]);
            let first = &mut FlowSteer::default();
            first.set_home(0, bed.now);
            let rtt_us = f64::from(lossy.rtt_us);
            // The flow must be bulk in each period.
            let per_round = per_round.max(6e-6 * rtt_us * 50.0);
            // Well below the threshold of ignoring loss, because whole packets are counted.
            if home == 1 && per_round + 1.0 >= 2.8 * window {
                continue;
            }
            run(&mut bed, first, per_round, rtt_us, 1_250);
            // More than the initial window, because that is known by now.
            let steady = home == 0;
            let steady_loss_percent = if steady { 10 } else { 0 };
            bed.states.set(0, PathState { steady_loss_percent, ..PathState::up(lossy.rtt_us) });
            bed.wait(5_000);
            let next = &mut FlowSteer::default();
            run(&mut bed, next, (clean_mbps * 1_000_000 / 11_200) as f64, 1e6, 400);
            let own_us = 0.8e6 * f64::from(rtt_ms) / (window.floor().max(1.0) * 11.2) + f64::from(rtt_ms) * 500.0;
            let other_us = 0.8e6 / clean_mbps as f64 + f64::from(rtt_ms) * 1000.0;
            if home == 0 || own_us > other_us {
                prop_assert_eq!(next.home(), Some(home), "{:?}", bed.lane.senders);
            }
            bed.wait(5_000);
            let other = &mut FlowSteer::default();
            bed.packet(other, 2);
            prop_assert_eq!(other.home(), Some(u8::from(steady)));
        }
    }

    /// A sender that ignores loss keeps its home, whose capacity is unknown. One with the window that loss leaves
    /// it moves within a second, or five round trips.
    #[test]
    fn a_flow_leaves_its_lossy_home_only_if_its_sender_slows_down(
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
fn acknowledgements_of_data_from_a_lossy_home_stay_there() {
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

/// A flow at home on path 0 with a round trip of 10 ms that sends a full packet every `gap_us`, acknowledged, for some seconds.
/// Returns its last path.
fn run_bulk(bed: &mut Bed, remote: u64, gap_us: u64, seconds: u64) -> PathId {
    let flow = &mut FlowSteer::default();
    let mut path = 0;
    for _ in 0..seconds * 1_000_000 / gap_us {
        flow.arrives(Arrived { bytes: 40, paths: 1 });
        path = bed.packet(flow, remote);
        bed.now += Duration::from_micros(gap_us);
    }
    path
}

/// With a loss of 0.5 %, a sender that slows down has 17 packets per round trip of 10 ms, one that ignores loss has 83.
#[test]
fn flows_of_senders_that_slow_down_stay_and_are_protected_if_lost_packets_are_restored() {
    for (restores, gap_us, end) in [(true, 600, 0), (false, 600, 1), (true, 120, 0), (false, 120, 0)] {
        let home = LoadView { wild_ppm: 5_000, ..load(5, 0, 100) };
        let mut bed = Bed { restores, ..Bed::new(&[home, load(15, 0, 100)]) };
        assert_eq!(run_bulk(&mut bed, 7, gap_us, 4), end, "restores {restores}, {gap_us} us");
        if restores {
            assert_eq!(bed.lane.protection(7, &home).is_some(), gap_us == 600, "{gap_us} us");
        }
        assert_eq!(bed.lane.protection(8, &home), None, "another host");
    }
}

#[test]
fn the_next_flow_of_a_protected_host_uses_a_lossy_path_like_one_without_loss() {
    for restores in [true, false] {
        // 100 kB end first on the lossy path, unless its loss leaves the sender 17 packets per round trip.
        let lossy = LoadView { wild_ppm: 5_000, ..load(15, 0, 200) };
        let mut bed = Bed { restores, ..Bed::new(&[lossy, load(15, 0, 60)]) };
        bed.lane.senders.note_slowing(7);
        let flow = &mut FlowSteer::default();
        assert_eq!(bed.packet(flow, 7), if restores { 0 } else { 1 });
    }
}

#[test]
fn a_loss_that_repairs_do_not_cover_is_treated_as_before() {
    for (wild_ppm, covered) in
        [(0, false), (WILD_PPM, false), (WILD_PPM + 1, true), (30_000, true), (30_001, false)]
    {
        let path = LoadView { wild_ppm, ..load(5, 0, 100) };
        assert_eq!(protection::covers(&path), covered, "{wild_ppm}");
        let seen = protection::restored(&[path])[0];
        assert_eq!(seen.wild_ppm + seen.restored_ppm, wild_ppm);
        assert_eq!(seen.wild_ppm == 0, covered || wild_ppm == 0);
    }
}

proptest! {
    /// Packets that meet a long queue are not protected; the overhead grows with the loss and stays below a fifth.
    #[test]
    fn congestion_stays_visible(
        wild_ppm in WILD_PPM + 1..=30_000,
        rtt_ms in 1_u32..1_000,
        queue_us in 0_u32..2_000_000,
        drop_us in prop_oneof![Just(u32::MAX), 1_000_u32..1_000_000],
    ) {
        let path = LoadView { wild_ppm, rtt_us: rtt_ms * 1_000, queue_us, drop_us, ..CLEAN };
        let long_us = if drop_us == u32::MAX { 0 } else { drop_us };
        match protection::of(&path) {
            Some(mode) => {
                prop_assert!(queue_us < 2_000.max(rtt_ms * 500).max(long_us));
                prop_assert!((6..=18).contains(&mode.overhead_percent()));
                prop_assert!(u32::from(mode.overhead_percent()) >= 4 * wild_ppm / 10_000 + 6);
                prop_assert!((16..=128).contains(&mode.wait_ms()) && mode.wait_ms().is_power_of_two());
            }
            None => prop_assert!(queue_us >= 2_000 && queue_us >= rtt_ms * 500),
        }
    }
}
