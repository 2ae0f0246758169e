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
        estimate_bps: mbps * 1_000_000,
        seen_bps: mbps * 1_000_000,
        ..CLEAN
    }
}

struct Bed {
    lane: Lane,
    states: PathStates,
    loads: Vec<LoadView>,
    now: Instant,
    datagrams: bool,
    ends: bool,
    bytes: u32,
}

impl Bed {
    fn new(loads: &[LoadView]) -> Self {
        let mut states = PathStates::default();
        for (path, load) in (0..).zip(loads) {
            states.set(path, PathState::up(load.rtt_us));
        }
        Self {
            lane: Lane::default(),
            states,
            loads: loads.to_vec(),
            now: Instant::from_secs(1),
            datagrams: false,
            ends: false,
            bytes: 1400,
        }
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
            bytes: self.bytes,
            datagram: self.datagrams,
            ends: self.ends,
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
    bed.loads[0] = load(5, 16, 100);
    assert_eq!(bed.packet(flow, 1), 0, "the packets of a small flow stay together");
    flow.bytes[1] = BULK_BYTES;
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
fn where_nothing_is_put_in_order_packets_neither_come_late_nor_by_a_small_path() {
    let late = [LoadView { drop_us: 9_000, ..load(5, 9, 80) }, load(20, 0, 100)];
    let small = [load(5, 0, 20), load(25, 20, 200)];
    let half = [load(5, 0, 100), load(25, 20, 200)];
    for (loads, ordered, unordered) in
        [(late, [0, 1], [0, 0]), (small, [1, 0], [1, 1]), (half, [1, 0], [1, 0])]
    {
        for (overflows, paths) in [(true, ordered), (false, unordered)] {
            let mut bed = Bed::new(&loads);
            bed.lane = Lane::new([0; MAX_PATHS], overflows);
            let flow = &mut FlowSteer::default();
            flow.set_home(paths[0], bed.now);
            bed.wait(1_000);
            (flow.bytes, flow.period) = ([1 << 20; 2], (bed.now.as_millis() / PERIOD_MS) as u32);
            bed.lane.period = flow.period;
            assert_eq!(
                (flow.home(), bed.packet(flow, 1)),
                (Some(paths[0]), paths[1]),
                "{loads:?} {overflows}"
            );
        }
    }
}

#[test]
fn a_path_that_carries_little_takes_nothing_late() {
    // Known by traffic that filled it, or by a train while it was idle; an eighth of 200 Mbit/s is 25.
    let others = [
        (20, load(20, 0, 20), 0),
        (30, load(20, 0, 30), 1),
        (20, measured(20, 20), 0),
        (30, measured(20, 30), 1),
    ];
    let full = LoadView { drop_us: 9_000, ..load(5, 9, 200) };
    for home in [full, LoadView { capacity_bps: 0, drop_us: u32::MAX, ..full }] {
        for (mbps, other, taken) in others {
            let mut bed = Bed::new(&[home, other]);
            let flow = &mut FlowSteer::default();
            flow.set_home(0, bed.now);
            bed.packet(flow, 1);
            flow.bytes[0] = 1 << 20;
            assert_eq!(bed.packet(flow, 1), taken, "{mbps} Mbit/s: {other:?} beside {home:?}");
        }
    }
}

#[test]
fn a_path_that_carries_less_than_half_takes_spill_with_a_short_queue_only() {
    for drop_us in [u32::MAX, 5_000] {
        let mut bed = Bed::new(&[LoadView { drop_us, ..load(5, 0, 20) }, load(25, 0, 200)]);
        let flow = &mut FlowSteer::default();
        assert_eq!(bed.packet(flow, 1), 1);
        flow.bytes[1] = BULK_BYTES;
        bed.loads[1].queue_us = 20_000;
        for (queue_us, mbps, path) in [(2_000, 20, 0), (3_000, 20, 1), (3_000, 120, 0)] {
            bed.loads[0] = LoadView { queue_us, drop_us, ..load(5, 0, mbps) };
            assert_eq!(bed.packet(flow, 1), path, "{mbps} Mbit/s, {queue_us} µs, drops at {drop_us}");
        }
    }
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

/// A connection of so many packets that begins and ends now; where it begins.
fn connection(bed: &mut Bed, remote: u64, packets: u32) -> PathId {
    let flow = &mut FlowSteer::default();
    let home = bed.packet(flow, remote);
    for _ in 1..packets {
        bed.packet(flow, remote);
    }
    bed.ends = true;
    // Its end is sent again.
    for _ in 0..2 {
        bed.packet(flow, remote);
    }
    bed.ends = false;
    home
}

#[test]
fn connections_one_after_the_other_are_no_parts_of_one_transfer() {
    let mut bed = Bed::new(&[load(5, 0, 150), load(20, 0, 50)]);
    for bytes in [100, 1400] {
        bed.bytes = bytes;
        for n in 0..8 {
            assert_eq!(connection(&mut bed, 7, 50), 0, "{n}, {bytes} bytes a packet");
            bed.wait(600);
        }
    }
}

#[test]
fn a_host_that_is_asked_questions_is_asked_by_the_nearest_path() {
    let mut bed = Bed::new(&[measured(5, 20), measured(25, 200)]);
    // A transfer of 100 kB would end first on the second.
    let homes: Vec<_> = (0..6).map(|_| connection(&mut bed, 7, 5)).collect();
    assert_eq!(homes, [1, 1, 0, 0, 0, 0]);
    assert_eq!(connection(&mut bed, 8, 5), 1, "another host");
    bed.wait(30_000);
    assert_eq!(connection(&mut bed, 7, 5), 0, "half a minute later");
    // At once they are spread all the same.
    let homes: Vec<_> = (0..11).map(|_| bed.packet(&mut FlowSteer::default(), 7)).collect();
    assert_eq!(homes.iter().filter(|home| **home == 0).count(), 2, "{homes:?}");
    bed.wait(3_000);
    // Each is closed after the next one was opened.
    let mut before: Option<FlowSteer> = None;
    for _ in 0..5 {
        let mut flow = FlowSteer::default();
        assert_eq!(bed.packet(&mut flow, 7), 0);
        bed.ends = true;
        before.iter_mut().for_each(|before| assert_eq!(bed.packet(before, 7), 0));
        bed.ends = false;
        before = Some(flow);
        bed.wait(100);
    }
    bed.wait(3_000);
    // One that was bulk: the next may be so, too.
    connection(&mut bed, 7, 50);
    assert_eq!(connection(&mut bed, 7, 5), 1);
}

#[test]
fn a_transfer_with_a_control_connection_is_none_of_questions() {
    let mut bed = Bed::new(&[measured(5, 20), measured(25, 200)]);
    for _ in 0..4 {
        let (control, data) = (&mut FlowSteer::default(), &mut FlowSteer::default());
        assert_eq!(bed.packet(control, 7), 1);
        for _ in 0..50 {
            bed.packet(data, 7);
        }
        bed.ends = true;
        bed.packet(data, 7);
        bed.packet(control, 7);
        bed.ends = false;
        bed.wait(1_000);
    }
}

/// A path without a queue that was measured and never full.
fn measured(base_ms: i64, mbps: u64) -> LoadView {
    LoadView { capacity_bps: 0, ..load(base_ms, 0, mbps) }
}

#[test]
fn the_first_flow_begins_where_100_kb_end_first_by_what_was_measured() {
    for (near, far, home) in
        [((5, 20), (25, 200), 1), ((5, 5), (30, 50), 1), ((15, 50), (30, 400), 0), ((5, 200), (25, 20), 0)]
    {
        let mut bed = Bed::new(&[measured(near.0, near.1), measured(far.0, far.1)]);
        assert_eq!(bed.packet(&mut FlowSteer::default(), 1), home, "{near:?} {far:?}");
    }
}

#[test]
fn a_question_of_one_packet_takes_the_nearest_path_whatever_the_others_carry() {
    let mut bed = Bed::new(&[measured(5, 5), measured(30, 50)]);
    bed.datagrams = true;
    for (bytes, home) in [(80, 0), (1_000, 0), (1_200, 1), (1_400, 1)] {
        bed.bytes = bytes;
        for _ in 0..3 {
            assert_eq!(bed.packet(&mut FlowSteer::default(), u64::from(bytes)), home, "{bytes} bytes");
        }
    }
}

#[test]
fn a_young_bulk_flow_leaves_a_near_path_for_one_that_carries_much_more_and_for_no_other() {
    // 50 Mbit/s at 15 ms; the other at 30 ms: as much again arrives there earlier once more than 190 kB were sent.
    for (mbps, until_kb) in [(400, 210..230), (100, 370..390), (90, 1000..1002), (0, 1000..1002)] {
        let mut bed = Bed::new(&[measured(15, 50), measured(30, mbps)]);
        let flow = &mut FlowSteer::default();
        flow.set_home(0, bed.now);
        let mut sent = 0;
        while sent < 1_000_000 && bed.packet(flow, 1) == 0 {
            sent += 1_400;
            bed.now += Duration::from_micros(300);
        }
        assert!(until_kb.contains(&(sent / 1_000)), "{mbps} Mbit/s: {sent} bytes");
    }
}

#[test]
fn acknowledgements_of_bulk_go_back_the_shortest_way() {
    // An uplink of 40 Mbit/s at 15 ms and one of 10 at 5: the connection begins on the first.
    let mut bed = Bed::new(&[measured(15, 40), measured(5, 10)]);
    let flow = &mut FlowSteer::default();
    assert_eq!(bed.packet(flow, 1), 0);
    bed.bytes = 80;
    for _ in 0..10_000 {
        flow.arrives(Arrived { bytes: 2_800, paths: 3 });
        bed.packet(flow, 1);
        bed.now += Duration::from_micros(200);
    }
    assert!(flow.is_large() && flow.home() == Some(1), "3 Mbit/s of acknowledgements");
}

#[test]
fn a_lone_bulk_flow_that_fills_its_home_goes_to_an_idle_path_that_carries_twice_as_much() {
    for (own_kbps, other, flows, moves) in [
        (19_000, measured(25, 200), 1, true),
        (19_000, measured(25, 39), 1, false),
        (19_000, measured(160, 200), 1, false),
        (19_000, LoadView { wild_ppm: 5_000, ..measured(25, 200) }, 1, false),
        // What does not fill its home is well served.
        (8_000, measured(25, 200), 1, false),
        // Not a lone one.
        (9_500, measured(25, 200), 2, false),
    ] {
        let mut bed = Bed::new(&[measured(5, 20), other]);
        let mut all = vec![FlowSteer::default(); flows];
        let mut homes = vec![0; flows];
        for flow in &mut all {
            flow.set_home(0, bed.now);
        }
        bed.wait(600);
        let step_us = 1_400 * 8 * 1000 / own_kbps;
        for _ in 0..6_000_000 / step_us {
            for (flow, home) in all.iter_mut().zip(&mut homes) {
                *home = bed.packet(flow, 1);
            }
            bed.now += Duration::from_micros(step_us);
        }
        assert_eq!(homes.contains(&1), moves, "{own_kbps} kbit/s, {other:?}");
    }
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

    /// The next flow of a host that slowed down for loss begins where loss leaves it more; one of a host that did not goes
    /// to a lossy path that carries twice as much. Another host's begins as if nothing were known.
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
            // What a period holds has to be bulk.
            let per_round = per_round.max(6e-6 * rtt_us * 50.0);
            // Well below what only a sender has that does not answer loss: whole packets are counted.
            prop_assume!(home == 0 || per_round + 1.0 < 2.8 * window);
            run(&mut bed, first, per_round, rtt_us, 1_250);
            // More than a new flow may begin with, as it is known by now.
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
                estimate_bps: mbps * 1_000_000,
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
            bed.lane.overflow = Overflow::never();
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

/// Packets of 1,400 bytes at this rate for a second; their path.
fn send(bed: &mut Bed, flow: &mut FlowSteer, kbps: u64) -> PathId {
    let (step_us, end) = (1_400 * 8 * 1000 / kbps, bed.now + Duration::from_secs(1));
    let path = bed.packet(flow, 1);
    while bed.now < end {
        bed.now += Duration::from_micros(step_us);
        assert_eq!(bed.packet(flow, 1), path);
    }
    path
}

#[test]
fn a_call_goes_where_it_arrives_first_and_its_packets_stay_together() {
    let loads = |first_ms, second_ms| {
        [(5, first_ms), (20, second_ms)].map(|(base, queue)| LoadView {
            drop_us: 400_000,
            seen_bps: 100_000_000,
            rtt_us: 2000 * base as u32,
            ..load(base, queue, 100)
        })
    };
    for (datagrams, kbps, moves) in [
        (true, 300, true),
        (true, 1_500, true),
        (true, 3_900, true),
        (true, 6_000, false),
        (false, 1_500, false),
    ] {
        let mut bed = Bed::new(&loads(40, 0));
        bed.datagrams = datagrams;
        let flow = &mut FlowSteer::default();
        let mut at = |first_ms| {
            bed.loads = loads(first_ms, 0).to_vec();
            send(&mut bed, flow, kbps)
        };
        assert_eq!(at(40), 1, "the first has a queue");
        let to = if moves { 0 } else { 1 };
        assert_eq!(at(9), to, "6 ms sooner: {datagrams} {kbps}");
        assert_eq!(at(24), to, "9 ms later, less than a quarter of the longer round trip");
        assert_eq!(at(60), 1);
    }
}

#[test]
fn a_call_leaves_a_path_that_loses_for_one_that_does_not_unless_that_is_far() {
    let lossy = |path| LoadView { wild_ppm: 20_000, ..path };
    for (far_ms, to) in [(20, 1), (300, 0)] {
        let (near, far) = (load(5, 0, 100), load(far_ms, 0, 100));
        let mut bed = Bed::new(&[near, far]);
        bed.datagrams = true;
        let flow = &mut FlowSteer::default();
        assert_eq!(send(&mut bed, flow, 1_500), 0);
        bed.loads[0] = lossy(near);
        assert_eq!(send(&mut bed, flow, 1_500), to, "the first loses 2 %");
        bed.loads[1] = lossy(far);
        assert_eq!(send(&mut bed, flow, 1_500), 0, "both do");
        bed.loads = vec![near, lossy(far)];
        assert_eq!(send(&mut bed, flow, 1_500), 0);
    }
}

#[test]
fn what_is_acknowledged_and_fills_its_home_is_no_call() {
    let acknowledged = |bytes| Arrived { bytes, paths: 1 };
    let mut flow = FlowSteer::default();
    flow.bytes = [50_000; 2];
    assert!(flow.is_call(4_000_000), "nothing comes back");
    flow.arrived = [acknowledged(1_000); 2];
    assert!(!flow.is_call(4_000_000), "1.6 of 4 Mbit/s");
    assert!(flow.is_call(8_000_000), "1.6 of 8 Mbit/s");
    flow.arrived = [acknowledged(45_000); 2];
    assert!(flow.is_call(4_000_000), "as much comes back");
    flow.arrived = [acknowledged(500_000); 2];
    assert!(!flow.is_call(8_000_000), "it acknowledges");
}

#[test]
fn a_transfer_after_a_call_to_the_same_host_begins_where_it_ends_first() {
    let mut bed = Bed::new(&[load(5, 0, 0), load(10, 0, 0)]);
    bed.datagrams = true;
    assert_eq!(bed.packet(&mut FlowSteer::default(), 1), 0);
    bed.datagrams = false;
    assert_eq!(bed.packet(&mut FlowSteer::default(), 1), 0);
    assert_eq!(bed.packet(&mut FlowSteer::default(), 1), 1, "the second connection is another part of it");
}
