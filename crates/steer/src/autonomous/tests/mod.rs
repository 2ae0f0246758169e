mod calls;
mod loss;
mod small;

use super::super::{PathState, PathStates};
use super::*;
use crate::view::{Arrived, FlowSteer};
use proptest::prelude::*;

const CLEAN: LoadView = LoadView { base_us: Some(0), rtt_us: 10_000, ..LoadView::UNKNOWN };

/// A path model with a forward delay and a queue in ms, and a capacity in Mbit/s.
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
    lane: LawState,
    states: PathStates,
    loads: Vec<LoadView>,
    now: Instant,
    datagrams: bool,
    ends: bool,
    bytes: u32,
    restores: bool,
}

impl Bed {
    fn new(loads: &[LoadView]) -> Self {
        let mut states = PathStates::default();
        for (path, load) in (0..).zip(loads) {
            states.set(path, PathState::up(load.rtt_us));
        }
        Self {
            lane: LawState::default(),
            states,
            loads: loads.to_vec(),
            now: Instant::from_secs(1),
            datagrams: false,
            ends: false,
            bytes: 1400,
            restores: false,
        }
    }

    fn packet(&mut self, flow: &mut FlowSteer, remote: u64) -> PathId {
        self.packet_by(self.states.up(), flow, remote)
    }

    /// A packet that may use only the paths `up`.
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
            restores: self.restores,
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
fn packets_overflow_from_a_dropping_home_while_that_does_no_harm() {
    let mut bed = Bed::new(&[load(5, 9, 80), load(20, 0, 100)]);
    let flow = &mut FlowSteer::default();
    bed.packet(flow, 1);
    flow.bytes[0] = 1 << 20;
    bed.loads[0].drop_us = 10_000;
    assert_eq!(bed.packet(flow, 1), 1);
    // 250 ms at a seventh of the capacity, repeatedly, which is harm.
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

/// 11 Mbit/s on a home with an estimate of 80 that was never full, so the highest rate seen is that of this sender.
#[test]
fn harm_is_judged_by_the_estimate_of_the_home() {
    for (measured_mbps, end) in [(80, 0), (11, 1)] {
        let home = LoadView { queue_us: 9_000, drop_us: 10_000, ..measured(5, measured_mbps) };
        let mut bed = Bed::new(&[LoadView { seen_bps: 10_000_000, ..home }, load(20, 0, 100)]);
        let flow = &mut FlowSteer::default();
        flow.set_home(0, bed.now);
        let mut path = 0;
        for _ in 0..2_400 {
            path = bed.packet(flow, 1);
            bed.wait(1);
        }
        assert_eq!(path, end, "{measured_mbps} Mbit/s");
    }
}

#[test]
fn without_reordering_packets_neither_overflow_nor_take_a_small_path() {
    let late = [LoadView { drop_us: 9_000, ..load(5, 9, 80) }, load(20, 0, 100)];
    let small = [load(5, 0, 20), load(25, 20, 200)];
    let half = [load(5, 0, 100), load(25, 20, 200)];
    for (loads, ordered, unordered) in
        [(late, [0, 1], [0, 0]), (small, [1, 0], [1, 1]), (half, [1, 0], [1, 0])]
    {
        for (overflows, paths) in [(true, ordered), (false, unordered)] {
            let mut bed = Bed::new(&loads);
            bed.lane = LawState::new([0; MAX_PATHS], overflows);
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

/// A long queue at home is no reason to stay: after a loss, the packets would wait there beside an empty path.
#[test]
fn without_reordering_packets_spill_from_any_queue_but_not_to_a_much_nearer_path() {
    for (nearer_ms, queue_ms, path) in
        [(0, 20, 1), (0, 500, 1), (40, 20, 1), (40, 500, 1), (41, 20, 0), (41, 500, 0)]
    {
        let mut bed = Bed::new(&[load(50, queue_ms, 50), load(50 - nearer_ms, 0, 50)]);
        bed.lane = LawState::new([0; MAX_PATHS], false);
        let flow = &mut FlowSteer::default();
        flow.set_home(0, bed.now);
        bed.wait(1_000);
        (flow.bytes, flow.period) = ([1 << 20; 2], (bed.now.as_millis() / PERIOD_MS) as u32);
        bed.lane.period = flow.period;
        assert_eq!(
            (bed.packet(flow, 1), flow.home()),
            (path, Some(0)),
            "{nearer_ms} ms nearer, {queue_ms} ms of queue"
        );
    }
}

#[test]
fn a_small_path_takes_no_overflow() {
    // Measured by traffic that filled it, or by a train while it was idle; an eighth of 200 Mbit/s is 25.
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
fn a_path_below_half_of_the_home_takes_spill_only_with_a_short_queue() {
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

/// iperf3 and FTP open a control connection, exchange a few messages, and then open the data connections.
#[test]
fn a_flow_that_begins_after_a_control_connection_begins_where_a_first_flow_does() {
    for (later_ms, homes) in
        [(0, [0, 1, 0]), (10, [0, 1, 0]), (20, [0, 0, 1]), (500, [0, 0, 1]), (1_900, [0, 0, 1])]
    {
        let mut bed = Bed::new(&[load(5, 0, 20), load(20, 0, 18)]);
        let begin = |bed: &mut Bed| bed.packet(&mut FlowSteer::default(), 7);
        let control = begin(&mut bed);
        bed.wait(later_ms);
        assert_eq!([control, begin(&mut bed), begin(&mut bed)], homes, "{later_ms} ms later");
    }
}

/// A connection of `packets` that begins and ends now. Returns where it begins.
fn connection(bed: &mut Bed, remote: u64, packets: u32) -> PathId {
    let flow = &mut FlowSteer::default();
    let home = bed.packet(flow, remote);
    for _ in 1..packets {
        bed.packet(flow, remote);
    }
    bed.ends = true;
    // The end of the connection is sent again.
    for _ in 0..2 {
        bed.packet(flow, remote);
    }
    bed.ends = false;
    home
}

#[test]
fn sequential_connections_are_not_parts_of_a_transfer() {
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
fn connections_to_a_query_host_begin_on_the_nearest_path() {
    let mut bed = Bed::new(&[measured(5, 20), measured(25, 200)]);
    // A transfer of 100 kB would end first on the second path.
    let homes: Vec<_> = (0..6).map(|_| connection(&mut bed, 7, 5)).collect();
    assert_eq!(homes, [1, 1, 0, 0, 0, 0]);
    assert_eq!(connection(&mut bed, 8, 5), 1, "another host");
    bed.wait(30_000);
    assert_eq!(connection(&mut bed, 7, 5), 0, "half a minute later");
    // Parallel connections are spread nevertheless.
    let homes: Vec<_> = (0..11).map(|_| bed.packet(&mut FlowSteer::default(), 7)).collect();
    assert_eq!(homes.iter().filter(|home| **home == 0).count(), 2, "{homes:?}");
    bed.wait(3_000);
    // Each is closed after the next one has been opened.
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
    // A connection that was bulk: the next one may be bulk, too.
    connection(&mut bed, 7, 50);
    assert_eq!(connection(&mut bed, 7, 5), 1);
}

/// 100 kB end first on the near path. A transfer of seconds moves to the far one, and the next transfer of its host begins there, with
/// a sender that has not seen the shorter round trip; until one was short.
#[test]
fn a_transfer_begins_where_the_last_one_of_its_host_ended() {
    for (far_mbps, next) in [(400, 1), (90, 0)] {
        let mut bed = Bed::new(&[measured(15, 50), measured(38, far_mbps)]);
        let transfer = |bed: &mut Bed, ms: u64| {
            let flow = &mut FlowSteer::default();
            let home = bed.packet(flow, 7);
            for _ in 0..ms * 4 {
                bed.packet(flow, 7);
                bed.now += Duration::from_micros(250);
            }
            bed.ends = true;
            bed.packet(flow, 7);
            bed.ends = false;
            bed.wait(3_000);
            (home, flow.home().unwrap())
        };
        assert_eq!(transfer(&mut bed, 2_000), (0, next), "{far_mbps}");
        assert_eq!(bed.packet(&mut FlowSteer::default(), 8), 0, "another host");
        for _ in 0..2 {
            assert_eq!(transfer(&mut bed, 2_000), (next, next), "{far_mbps}");
        }
        assert_eq!(transfer(&mut bed, 30), (next, next), "{far_mbps}");
        assert_eq!(transfer(&mut bed, 30), (0, 0), "{far_mbps}: after a short one");
    }
}

#[test]
fn a_control_connection_does_not_make_a_query_host() {
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

/// A path without a queue that was measured by trains and never full.
fn measured(base_ms: i64, mbps: u64) -> LoadView {
    LoadView { capacity_bps: 0, ..load(base_ms, 0, mbps) }
}

#[test]
fn the_first_flow_begins_where_100_kb_end_first_by_what_was_measured() {
    // The last three cases: 100 kB end 3 and 29 % later on the far path, and 3 % later on one with less than twice
    // the capacity.
    for (near, far, home) in [
        ((5, 20), (25, 200), 1),
        ((5, 5), (30, 50), 1),
        ((5, 200), (25, 20), 0),
        ((15, 50), (30, 400), 1),
        ((15, 50), (38, 400), 0),
        ((20, 50), (28, 90), 0),
    ] {
        let mut bed = Bed::new(&[measured(near.0, near.1), measured(far.0, far.1)]);
        assert_eq!(bed.packet(&mut FlowSteer::default(), 1), home, "{near:?} {far:?}");
    }
    let mut bed = Bed::new(&[measured(15, 50), LoadView { wild_ppm: 5_000, ..measured(30, 400) }]);
    assert_eq!(bed.packet(&mut FlowSteer::default(), 1), 0, "it loses");
}

#[test]
fn no_flow_begins_on_the_only_unmeasured_path_unless_others_are_much_further() {
    for (delays_ms, mbps, home) in
        [([13, 5, 4], [113, 82, 0], 1), ([13, 5, 4], [0, 0, 0], 2), ([900, 850, 4], [113, 82, 0], 2)]
    {
        let loads = [0, 1, 2].map(|path| measured(delays_ms[path], mbps[path]));
        let mut bed = Bed::new(&loads);
        assert_eq!(bed.packet(&mut FlowSteer::default(), 1), home, "{delays_ms:?} {mbps:?}");
        // The highest rate seen on it counts.
        let mut bed = Bed::new(&loads);
        bed.loads[2].seen_bps = 500_000_000;
        assert_eq!(bed.packet(&mut FlowSteer::default(), 1), 2, "{delays_ms:?} {mbps:?}");
    }
}

#[test]
fn a_query_of_one_packet_takes_the_nearest_path_whatever_the_capacities() {
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
fn a_young_bulk_flow_leaves_a_near_path_only_for_a_much_larger_one() {
    // 50 Mbit/s at 15 ms, the other path at 30 ms: the same amount would arrive there earlier once more than 190 kB
    // have been sent.
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

/// A sender that begins with ten packets and doubles them in each round trip, all at once. It begins on the far
/// path, where 100 kB end first, and sends little there in its first round trips. A flow that continues to send
/// little moves to the near path.
#[test]
fn a_flow_that_grows_stays_on_a_far_home_and_one_that_stays_small_does_not() {
    for rtt_ms in [80, 120, 180, 242, 260, 300, 450, 600] {
        let mut bed = Bed::new(&[measured(3, 1), measured(rtt_ms / 2, 400)]);
        let flow = &mut FlowSteer::default();
        for round in 0..10 {
            for packet in 0..10 << round {
                assert_eq!(bed.packet(flow, 1), 1, "{rtt_ms} ms, round {round}, packet {packet}");
            }
            bed.wait(rtt_ms as u64);
        }
        let mut bed = Bed::new(&[measured(3, 1), measured(rtt_ms / 2, 400)]);
        let flow = &mut FlowSteer::default();
        let moved = (0..100).position(|_| {
            bed.wait(100);
            bed.packet(flow, 1) == 0
        });
        let rounds_ms = u64::from(SMALL_ROUNDS) * rtt_ms as u64;
        let wanted = rounds_ms.max(500).div_ceil(100) as usize;
        assert_eq!(moved, Some(wanted), "{rtt_ms} ms, packets of 100 ms");
    }
}

/// On a far path, BBR sends four packets per round trip for a while; a completed transfer does so permanently.
#[test]
fn a_bulk_flow_that_pauses_stays_on_its_far_home() {
    for rtt_ms in [120, 215, 290] {
        let mut bed = Bed::new(&[measured(3, 7), measured(rtt_ms / 2, 70)]);
        let flow = &mut FlowSteer::default();
        flow.set_home(1, bed.now);
        for _ in 0..3_000 {
            bed.packet(flow, 1);
            bed.wait(1);
        }
        assert_eq!(flow.home(), Some(1));
        let moved = (0..100).position(|_| {
            let path = (0..4).map(|_| bed.packet(flow, 1)).last();
            bed.wait(rtt_ms as u64);
            path == Some(0)
        });
        let after_ms = moved.map_or(i64::MAX, |round| round as i64 * rtt_ms);
        assert!((700 + rtt_ms..2_500 + 6 * rtt_ms).contains(&after_ms), "{rtt_ms} ms: {after_ms} ms");
    }
}

#[test]
fn acknowledgements_of_bulk_go_back_the_shortest_way() {
    // An uplink of 40 Mbit/s at 15 ms and one of 10 at 5 ms: the connection begins on the first.
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
        // A flow that does not fill its home stays.
        (8_000, measured(25, 200), 1, false),
        // Not a lone flow.
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

/// A lone flow that has had its home for longer sends `kbps` for six seconds. Returns its last home.
fn lone(loads: [LoadView; 2], overflows: bool, kbps: u64) -> PathId {
    let mut bed = Bed::new(&loads);
    bed.lane = LawState::new([0; MAX_PATHS], overflows);
    let flow = &mut FlowSteer::default();
    flow.set_home(0, bed.now);
    bed.wait(600);
    let step_us = 1_400 * 8 * 1000 / kbps;
    for _ in 0..6_000_000 / step_us {
        bed.packet(flow, 1);
        bed.now += Duration::from_micros(step_us);
    }
    flow.home().unwrap()
}

#[test]
fn without_reordering_a_lone_flow_moves_only_if_its_window_supports_the_same_rate() {
    for (home, kbps, other, overflows, goes) in [
        (measured(50, 100), 95_000, measured(100, 300), false, false),
        (measured(50, 100), 95_000, measured(100, 300), true, true),
        (measured(50, 100), 95_000, measured(45, 300), false, true),
        // A window of so few packets grows to any size soon.
        (measured(5, 20), 19_000, measured(25, 200), false, true),
    ] {
        let home_then = lone([home, other], overflows, kbps);
        assert_eq!(home_then, u8::from(goes), "{home:?}, {other:?}, {overflows}");
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

/// The window that fills both paths is `(home + later) x (round trip + further)`. At 5 % per round trip, it grows
/// to that from the window that fills the home and its queue. A path that is much larger is used in any case.
#[test]
fn packets_overflow_only_where_the_window_for_both_grows_soon() {
    let (mut soon, mut beside) = ([[0; 2]; 2], [0; 2]);
    for (home_mbps, home_ms, queue_ms, mbps, further_ms) in
        unlike_paths(&[20, 25, 35, 100, 400], &[3, 10, 40])
    {
        let mut bed = Bed::new(&[
            LoadView { drop_us: queue_ms * 1000, ..load(home_ms, queue_ms, home_mbps) },
            load(home_ms + further_ms, 0, mbps),
        ]);
        let flow = &mut FlowSteer::default();
        flow.set_home(0, bed.now);
        let period = (bed.now.as_millis() / PERIOD_MS) as u32;
        flow.begin(period, true);
        flow.bytes[0] = 1 << 24;
        bed.lane.period = period;
        let round_s = (2 * home_ms + further_ms) as f64 / 1000.0;
        let alone = home_mbps as f64 * (2 * home_ms + i64::from(queue_ms)) as f64 / 1000.0;
        let times = (home_mbps + mbps) as f64 * round_s / alone;
        let grown_s = times.ln().max(0.0) / 1.05_f64.ln() * round_s;
        let overflows = bed.packet(flow, 1) == 1;
        if mbps * 2 >= home_mbps * 3 {
            assert!(overflows, "a path that is much larger: {home_mbps} {mbps} {further_ms}");
            bed.lane.bulk[0][..2].fill(1);
            let overflows = bed.packet(flow, 1) == 1;
            assert!(overflows || mbps < 2 * home_mbps);
            assert!(!overflows || grown_s < 6.3 || mbps >= 2 * home_mbps, "beside a second flow");
            beside[usize::from(overflows)] += usize::from(mbps < 2 * home_mbps);
            continue;
        }
        let [fast, slow] = if mbps > home_mbps { [4.3, 6.3] } else { [2.0, 3.1] };
        let case = (home_mbps, home_ms, queue_ms, mbps, further_ms, grown_s);
        assert!(overflows || grown_s > fast, "{case:?}");
        assert!(!overflows || grown_s < slow, "{case:?}");
        soon[usize::from(mbps > home_mbps)][usize::from(overflows)] += 1;
    }
    assert!(soon.as_flattened().iter().chain(&beside).all(|cases| *cases > 3), "{soon:?} {beside:?}");
}

/// Rates and one-way delays of a home and of a path with a later arrival, with the queue at which the home drops,
/// ms.
fn unlike_paths(rates: &[u64], delays_ms: &[i64]) -> Vec<(u64, i64, u32, u64, i64)> {
    let mut cases = Vec::new();
    for home_mbps in rates {
        for home_ms in delays_ms {
            for parts in [1, 2, 8] {
                for mbps in rates {
                    for further_ms in [10, 40, 80, 120] {
                        let queue_ms = (home_ms * parts) as u32;
                        // Paths without a later arrival, or with less than an eighth, are covered by other rules.
                        if i64::from(queue_ms) < further_ms && mbps * 8 >= *home_mbps {
                            cases.push((*home_mbps, *home_ms, queue_ms, *mbps, further_ms));
                        }
                    }
                }
            }
        }
    }
    cases
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

#[test]
fn a_flow_is_on_one_path_again_after_the_longest_delay() {
    let mut flow = FlowSteer::default();
    let at = |ms| Instant::from_millis(ms);
    let longest = Duration::from_millis(100);
    assert!(flow.takes(0, longest, at(0)) && flow.takes(0, longest, at(1)));
    assert!(!flow.takes(1, longest, at(2)) && !flow.takes(0, longest, at(50)));
    assert!(!flow.takes(0, longest, at(150)));
    assert!(flow.takes(0, longest, at(151)));
}

proptest! {
    /// For any path models: a path that is up is chosen; a packet that does not overflow arrives no later than at
    /// its home; no packet spills to a path at its drop level.
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
                is_measured: mbps % 2 == 1,
                wild_ppm,
                restored_ppm: 0,
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

proptest! {
    /// Whatever is known of the paths: a datagram that leaves its home is earlier or later by no more than the far end waits.
    #[test]
    fn the_far_end_waits_for_datagrams_that_leave_their_home(
        paths in prop::collection::vec(
            (0_i64..200, 0_u32..600, 1_u64..200, prop::option::of(1_u32..600)),
            2..4,
        ),
    ) {
        let load = |&(base_ms, queue_ms, mbps, drop_ms): &(i64, u32, u64, Option<u32>)| LoadView {
            modelled_us: queue_ms * 1000,
            drop_us: drop_ms.map_or(u32::MAX, |ms| ms * 1000),
            ..load(base_ms, queue_ms, mbps)
        };
        let loads: Vec<_> = paths.iter().map(load).collect();
        let mut bed = Bed::new(&loads);
        bed.datagrams = true;
        let flow = &mut FlowSteer::default();
        flow.set_home(0, bed.now);
        let period = (bed.now.as_millis() / PERIOD_MS) as u32;
        flow.begin(period, true);
        flow.bytes[0] = 1 << 24;
        bed.lane.period = period;
        let path = bed.packet(flow, 1);
        let arrival_us = |path: PathId| {
            let load = loads[usize::from(path)];
            load.base_us.unwrap() + i64::from(load.queue_us)
        };
        let apart_us = arrival_us(path) - arrival_us(flow.home().unwrap());
        prop_assert!(apart_us.abs() <= MAX_SKEW_US, "{} ms", apart_us / 1000);
    }
}
