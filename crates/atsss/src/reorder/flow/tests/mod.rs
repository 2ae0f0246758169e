//! Tests of the individual rules; properties over random channels are in `properties.rs`.

use super::super::flows::FLOW_BYTES;
use super::super::{FlowLimits, PoolConfig, WINDOW};
use super::*;

mod properties;

/// Delivered packets: (flow, sequence) as written by [`TestBed::packet`].
#[derive(Default)]
pub(super) struct Out(pub Vec<(u8, u32)>);

impl PacketSink for Out {
    fn deliver(&mut self, packet: &mut [u8]) {
        let flow = packet[0];
        let sequence = u32::from_be_bytes([packet[1], packet[2], packet[3], packet[4]]);
        self.0.push((flow, sequence));
    }
}

pub(super) fn key(flow: u8) -> FlowKey {
    let address = |last| std::net::IpAddr::from([10, 0, 0, last]);
    FlowKey { protocol: 17, src: address(1), dst: address(flow), src_port: 9, dst_port: 9 }
}

/// One session with its pool.
pub(super) struct TestBed {
    pub reorder: FlowReorder,
    pub pool: Pool,
    pub out: Out,
    pub now: Instant,
    pub size: usize,
}

impl TestBed {
    pub fn new(config: PoolConfig) -> Self {
        Self {
            reorder: FlowReorder::new(),
            pool: Pool::new(config),
            out: Out::default(),
            now: Instant::ZERO,
            size: 100,
        }
    }

    /// Two live paths of 10 and 30 ms: path 0 waits about 20 ms.
    fn two_paths() -> Self {
        let mut bed = Self::new(PoolConfig::default());
        bed.reorder.set_path_rtt(0, 10_000);
        bed.reorder.set_path_rtt(1, 30_000);
        bed
    }

    pub fn packet(&mut self, flow: u8, sequence: u32, start: bool, hold: bool, path: PathId) -> Outcome {
        self.waiting(flow, sequence, start, if hold { Hold::Skew } else { Hold::Never }, path)
    }

    fn waiting(&mut self, flow: u8, sequence: u32, start: bool, wait: Hold, path: PathId) -> Outcome {
        let mut packet = vec![0; self.size];
        packet[0] = flow;
        packet[1..5].copy_from_slice(&sequence.to_be_bytes());
        let Self { reorder, pool, out, now, .. } = self;
        reorder.on_packet(&key(flow), sequence, start, wait, path, &mut packet, *now, pool, out)
    }

    fn get(&mut self, sequence: u32, path: PathId) -> Outcome {
        self.packet(1, sequence, false, true, path)
    }

    fn start(&mut self, sequence: u32) {
        assert_eq!(self.packet(1, sequence, true, true, 0), Outcome::Delivered);
    }

    pub fn at(&mut self, ms: u64) {
        self.now = Instant::from_millis(ms);
        let Self { reorder, pool, out, now, .. } = self;
        reorder.on_timeout(*now, pool, out);
        assert!(reorder.poll_timeout().is_none_or(|(at, _)| at > *now));
    }

    fn sequences(&mut self) -> Vec<u32> {
        core::mem::take(&mut self.out.0).into_iter().map(|(_, sequence)| sequence).collect()
    }
}

#[test]
fn in_order_goes_straight_through() {
    let mut bed = TestBed::two_paths();
    bed.start(u32::MAX - 1);
    for sequence in [u32::MAX, 0, 1] {
        assert_eq!(bed.get(sequence, 0), Outcome::Delivered);
    }
    assert_eq!(bed.sequences(), [u32::MAX - 1, u32::MAX, 0, 1]);
    assert_eq!(bed.pool.used_bytes(), FLOW_BYTES, "no packet memory, no ring");
    assert_eq!(bed.reorder.stats().in_order, 4);
}

#[test]
fn an_idle_session_is_three_words() {
    assert!(size_of::<FlowReorder>() <= 24);
    assert!(FLOW_BYTES <= 800 && size_of::<Inner>() <= 1024, "{FLOW_BYTES} {}", size_of::<Inner>());
    let mut bed = TestBed::two_paths();
    assert!(bed.reorder.inner.is_none() && bed.reorder.poll_timeout().is_none());
    bed.start(0);
    bed.at(59_999);
    assert_eq!(bed.reorder.flows(), 1);
    bed.at(60_000);
    assert_eq!((bed.reorder.flows(), bed.pool.used_bytes()), (0, 0));
    assert!(bed.reorder.poll_timeout().is_none());
}

#[test]
fn a_loss_in_a_flow_on_one_path_is_not_awaited_on_other_paths() {
    let mut bed = TestBed::two_paths();
    bed.start(0);
    let mut get = |sequence, wait| {
        let outcome = bed.waiting(1, sequence, false, wait, 0);
        (outcome, bed.sequences())
    };
    get(1, Hold::OnPath);
    for sequence in [3, 4] {
        assert_eq!(get(sequence, Hold::OnPath), (Outcome::Held, vec![]));
    }
    assert_eq!(get(5, Hold::OnPath), (Outcome::Held, vec![3, 4, 5]), "overtaken three times on its own path");
    // Once the flow is on two paths, missing packets may arrive by the other one.
    for sequence in [7, 8, 9, 10] {
        assert_eq!(get(sequence, Hold::Skew), (Outcome::Held, vec![]));
    }
    // Once it is on one path again, no missing packet is in flight elsewhere.
    assert_eq!(get(11, Hold::OnPath), (Outcome::Held, vec![7, 8, 9, 10, 11]));
}

#[test]
fn a_gap_fills_across_the_wrap() {
    let mut bed = TestBed::two_paths();
    bed.start(u32::MAX - 2);
    for sequence in [u32::MAX, 1, 0] {
        assert_eq!(bed.get(sequence, 0), Outcome::Held);
    }
    assert_eq!(bed.get(u32::MAX - 1, 1), Outcome::Delivered);
    assert_eq!(bed.sequences(), [u32::MAX - 2, u32::MAX - 1, u32::MAX, 0, 1]);
    let stats = bed.reorder.stats();
    assert_eq!((stats.held, stats.released_in_order, stats.max_depth), (3, 3, 3));
}

#[test]
fn a_gap_in_one_flow_delays_no_other() {
    let mut bed = TestBed::two_paths();
    bed.start(0);
    assert_eq!(bed.get(2, 0), Outcome::Held);
    assert_eq!(bed.packet(2, 0, true, true, 0), Outcome::Delivered);
    assert_eq!(bed.packet(2, 1, false, true, 1), Outcome::Delivered);
}

#[test]
fn a_gap_ends_with_the_hold_time_and_what_comes_later_is_late() {
    let mut bed = TestBed::two_paths();
    bed.start(0);
    bed.get(2, 0);
    bed.get(4, 0);
    let (at, why) = bed.reorder.poll_timeout().unwrap();
    assert_eq!(why, "reorder hold");
    let hold = bed.reorder.hold_time(0);
    assert_eq!(at, Instant::ZERO + hold);
    assert!(hold > Duration::from_millis(20) && hold < Duration::from_millis(40), "{hold:?}");
    bed.at(hold.as_millis() as u64 + 1);
    assert_eq!(bed.sequences(), [0, 2, 4]);
    assert_eq!(bed.reorder.stats().timed_out, 2);
    assert_eq!(bed.get(1, 1), Outcome::Late);
    assert_eq!(bed.get(1, 1), Outcome::Duplicate);
    assert_eq!(bed.get(5, 1), Outcome::Delivered);
    assert_eq!(bed.sequences(), [1, 5]);
}

#[test]
fn observed_lateness_lengthens_the_hold() {
    let mut bed = TestBed::two_paths();
    bed.start(0);
    bed.get(2, 0);
    let before = bed.reorder.hold_time(0);
    bed.at(100);
    assert_eq!(bed.get(1, 1), Outcome::Late);
    assert!(bed.reorder.hold_time(0) >= Duration::from_millis(100) && before < Duration::from_millis(40));
}

#[test]
fn a_gap_every_live_path_has_passed_is_given_up_at_once() {
    let mut bed = TestBed::two_paths();
    bed.start(0);
    for (sequence, path) in [(2, 0), (3, 0), (4, 0), (6, 1), (7, 1)] {
        assert_eq!(bed.get(sequence, path), Outcome::Held);
    }
    assert_eq!(bed.sequences(), [0], "path 1 may still deliver 1: it has overtaken it only twice");
    bed.get(8, 1);
    assert_eq!(bed.sequences(), [2, 3, 4], "1 is lost; 5 is not: path 0 has not overtaken it");
    let stats = bed.reorder.stats();
    assert_eq!((stats.given_up, stats.timed_out), (3, 0));
    bed.get(5, 0);
    assert_eq!(bed.sequences(), [5, 6, 7, 8]);
}

#[test]
fn a_path_that_is_down_is_not_awaited() {
    let mut bed = TestBed::two_paths();
    bed.start(0);
    bed.reorder.set_path_rtt(1, 0);
    for sequence in 2..5 {
        bed.get(sequence, 0);
    }
    assert_eq!(bed.sequences(), [0, 2, 3, 4]);
}

#[test]
fn reordering_deeper_than_the_tolerance_raises_it() {
    let mut bed = TestBed::new(PoolConfig::default());
    bed.start(0);
    for sequence in [2, 3, 4] {
        bed.get(sequence, 0);
    }
    assert_eq!(bed.get(1, 0), Outcome::Late);
    for sequence in [6, 7, 8, 9, 10] {
        assert_eq!(bed.get(sequence, 0), Outcome::Held);
    }
    assert_eq!(bed.get(5, 0), Outcome::Delivered);
    assert_eq!(bed.sequences(), [0, 2, 3, 4, 1, 5, 6, 7, 8, 9, 10]);
}

#[test]
fn a_flow_met_without_its_start_waits_once() {
    let mut bed = TestBed::two_paths();
    assert_eq!(bed.get(11, 0), Outcome::Held);
    assert_eq!(bed.packet(1, 10, true, true, 1), Outcome::Delivered);
    assert_eq!(bed.sequences(), [10, 11]);

    let mut bed = TestBed::two_paths();
    assert_eq!(bed.get(500, 0), Outcome::Held);
    assert_eq!(bed.get(501, 0), Outcome::Held);
    bed.at(100);
    assert_eq!(bed.get(502, 0), Outcome::Delivered);
    assert_eq!(bed.get(499, 0), Outcome::Late);
    assert_eq!(bed.get(7, 0), Outcome::Late);
    assert_eq!(bed.sequences(), [500, 501, 502, 499, 7]);
}

#[test]
fn a_new_sequence_is_adopted() {
    let mut bed = TestBed::two_paths();
    bed.start(0);
    bed.get(2, 0);
    bed.start(1_000_000);
    bed.get(1_000_001, 0);
    assert_eq!(bed.sequences(), [0, 2, 1_000_000, 1_000_001]);
    // Forwards without a START: beyond the window, so at once.
    assert_eq!(bed.get(9_000_000, 0), Outcome::Delivered);
    // Backwards: after 250 ms of only such packets.
    assert_eq!(bed.get(50, 0), Outcome::Late);
    bed.at(250);
    assert_eq!(bed.get(51, 0), Outcome::Delivered);
    assert_eq!(bed.get(52, 0), Outcome::Delivered);
    assert_eq!(bed.reorder.stats().resyncs, 3);
}

#[test]
fn a_start_by_a_slow_path_comes_before_what_overtook_it_and_after_what_is_older() {
    // After a pause: the flow is known, its next number is higher, and the first packet takes the slow path.
    for (begin, first, old) in [(0, 7, &[][..]), (u32::MAX - 8, u32::MAX - 1, &[]), (0, 40, &[3, 5])] {
        let mut bed = TestBed::two_paths();
        bed.start(begin);
        for &sequence in old {
            assert_eq!(bed.get(sequence, 0), Outcome::Held);
        }
        let number = |n: u32| first.wrapping_add(n);
        for n in 1..4 {
            assert_eq!(bed.get(number(n), 0), Outcome::Held, "{first}");
        }
        assert_eq!(bed.packet(1, first, true, true, 1), Outcome::Delivered, "{first}");
        assert_eq!(bed.packet(1, first, true, true, 1), Outcome::Duplicate, "{first}");
        assert_eq!(bed.get(number(4), 0), Outcome::Delivered);
        let mut expected: Vec<u32> = old.to_vec();
        expected.extend((0..5).map(number));
        let got = bed.sequences();
        assert_eq!(got[got.len() - expected.len()..], expected, "{first}");
        assert_eq!((bed.pool.used_bytes(), bed.reorder.stats().late), (FLOW_BYTES, 0));
        // The packets before it are the only ones held; no hold state is left over.
        assert_eq!(bed.get(number(10), 0), Outcome::Held);
        assert_eq!(bed.packet(1, number(20), true, true, 0), Outcome::Delivered);
        assert_eq!(bed.sequences(), [number(10), number(20)]);
        assert_eq!(bed.pool.used_bytes(), FLOW_BYTES);
    }
}

#[test]
fn a_jump_that_fits_after_the_oldest_left_is_no_restart() {
    let mut bed = TestBed::two_paths();
    bed.start(0);
    bed.get(2, 0);
    bed.get(3, 0);
    assert_eq!(bed.get(WINDOW + 1, 0), Outcome::Held);
    assert_eq!(bed.sequences(), [0, 2, 3]);
    assert_eq!(bed.reorder.stats().resyncs, 0);
    assert_eq!(bed.get(4, 0), Outcome::Delivered);
}

#[test]
fn bounds_deliver_early_and_drop_nothing() {
    let flow = FlowLimits { packets_per_flow: 8, ..FlowLimits::default() };
    let mut bed = TestBed::new(PoolConfig { flow, ..PoolConfig::default() });
    bed.reorder.set_path_rtt(0, 10_000);
    bed.reorder.set_path_rtt(1, 30_000);
    bed.start(0);
    for n in 1..100 {
        bed.get(2 * n, 0);
    }
    assert_eq!(bed.reorder.depth(), 8);
    bed.at(1000);
    assert_eq!(bed.sequences(), (0..100).map(|n| 2 * n).collect::<Vec<_>>());
    assert_eq!(bed.reorder.stats().early, 91);
}

#[test]
fn a_packet_below_everything_held_is_the_one_to_leave_when_full() {
    let flow = FlowLimits { packets_per_flow: 2, ..FlowLimits::default() };
    let mut bed = TestBed::new(PoolConfig { flow, ..PoolConfig::default() });
    bed.reorder.set_path_rtt(1, 30_000);
    bed.start(0);
    bed.get(5, 0);
    bed.get(7, 0);
    assert_eq!(bed.get(3, 0), Outcome::Delivered);
    assert_eq!(bed.sequences(), [0, 3]);
    bed.get(4, 0);
    assert_eq!(bed.sequences(), [4, 5]);
}

#[test]
fn the_lowest_packet_is_also_delivered_at_the_byte_bound_of_the_session() {
    let flow = FlowLimits { bytes: 250, ..FlowLimits::default() };
    let mut bed = TestBed::new(PoolConfig { flow, ..PoolConfig::default() });
    bed.reorder.set_path_rtt(1, 30_000);
    bed.start(0);
    bed.get(5, 0);
    bed.get(7, 0);
    assert_eq!(bed.get(3, 0), Outcome::Delivered);
    assert_eq!(bed.sequences(), [0, 3]);
    // A packet of another flow causes the oldest one of this flow to be delivered.
    bed.packet(2, 0, true, true, 0);
    assert_eq!(bed.packet(2, 2, false, true, 0), Outcome::Held);
    assert_eq!(bed.out.0, [(2, 0), (1, 5)]);
}

#[test]
fn session_bytes_and_an_exhausted_pool_deliver_early() {
    for (flow, bytes) in [
        (FlowLimits { bytes: 5000, ..FlowLimits::default() }, 1 << 20),
        (FlowLimits { bytes_per_flow: 5000, ..FlowLimits::default() }, 1 << 20),
        (FlowLimits::default(), 12_000),
        (FlowLimits::default(), 1_000),
        (FlowLimits::default(), 0),
    ] {
        let mut bed = TestBed::new(PoolConfig { bytes, flow, ..PoolConfig::default() });
        bed.size = 1400;
        bed.reorder.set_path_rtt(1, 30_000);
        bed.packet(2, 0, true, true, 0);
        bed.start(0);
        bed.packet(2, 2, false, true, 0);
        for n in 1..50 {
            bed.get(2 * n, 0);
            assert!(bed.pool.resident_bytes() <= bytes);
        }
        bed.at(10_000);
        let all = core::mem::take(&mut bed.out.0);
        let first: Vec<u32> =
            all.iter().filter(|(flow, _)| *flow == 1).map(|(_, sequence)| *sequence).collect();
        assert_eq!(first, (0..50).map(|n| 2 * n).collect::<Vec<_>>());
        assert_eq!(all.len(), 52);
    }
}

#[test]
fn flows_are_bounded_and_an_evicted_flow_loses_nothing() {
    let flow = FlowLimits { flows: 4, ..FlowLimits::default() };
    let mut bed = TestBed::new(PoolConfig { flow, ..PoolConfig::default() });
    bed.reorder.set_path_rtt(1, 30_000);
    for flow in 0..50 {
        bed.packet(flow, 0, true, true, 0);
        bed.packet(flow, 2, false, true, 0);
    }
    assert_eq!((bed.reorder.flows(), bed.reorder.depth()), (4, 4));
    bed.at(1000);
    assert_eq!(bed.out.0.len(), 100);
    assert_eq!(bed.reorder.stats().evicted, 46);
    bed.reorder.close(&mut bed.pool);
    assert_eq!(bed.pool.used_bytes(), 0);
}

#[test]
fn closing_gives_everything_back() {
    let mut bed = TestBed::two_paths();
    for flow in 0..20 {
        bed.packet(flow, 0, true, true, 0);
        bed.packet(flow, 200 * u32::from(flow) + 2, false, true, 0);
    }
    assert!(bed.pool.used_bytes() > 20 * FLOW_BYTES);
    bed.reorder.close(&mut bed.pool);
    assert_eq!(bed.pool.used_bytes(), 0);
}

#[test]
fn redundant_mode_delivers_each_once_and_never_waits() {
    let mut bed = TestBed::two_paths();
    assert_eq!(bed.packet(1, 0, true, false, 0), Outcome::Delivered);
    assert_eq!(bed.packet(1, 2, false, false, 0), Outcome::Delivered);
    assert_eq!(bed.packet(1, 0, true, false, 1), Outcome::Duplicate);
    assert_eq!(bed.packet(1, 1, false, false, 1), Outcome::Late);
    assert_eq!(bed.packet(1, 2, false, false, 1), Outcome::Duplicate);
    // Older than the window: its earlier receipt is unknown, so it is not delivered again.
    assert_eq!(bed.packet(1, 3 + WINDOW, false, false, 0), Outcome::Delivered);
    assert_eq!(bed.packet(1, 2, false, false, 1), Outcome::Duplicate);
    assert_eq!(bed.reorder.depth(), 0);
}

#[test]
fn a_rule_that_becomes_redundant_releases_held_packets() {
    let mut bed = TestBed::two_paths();
    bed.start(0);
    bed.get(2, 0);
    assert_eq!(bed.packet(1, 3, false, false, 0), Outcome::Delivered);
    assert_eq!(bed.sequences(), [0, 2, 3]);
}

#[test]
fn unknown_paths_and_empty_packets_are_accepted() {
    let mut bed = TestBed::two_paths();
    bed.start(0);
    assert_eq!(bed.packet(1, 2, false, true, 200), Outcome::Held);
    struct Count(usize);
    impl PacketSink for Count {
        fn deliver(&mut self, _: &mut [u8]) {
            self.0 += 1;
        }
    }
    let mut out = Count(0);
    let outcome =
        bed.reorder.on_packet(&key(1), 3, false, Hold::Skew, 0, &mut [], bed.now, &mut bed.pool, &mut out);
    assert_eq!(outcome, Outcome::Held);
    bed.reorder.flush(bed.now, &mut bed.pool, &mut out);
    assert_eq!(out.0, 2);
}

#[test]
fn packets_without_a_code_wait_for_those_that_may_be_restored() {
    let patient = Hold::For(Duration::from_millis(100));
    for restored in [true, false] {
        let mut bed = TestBed::two_paths();
        bed.waiting(1, 0, true, patient, 0);
        bed.waiting(1, 2, false, patient, 0);
        for sequence in 3..20 {
            let (hold, path) = if sequence % 2 == 0 { (Hold::OnPath, 0) } else { (Hold::Skew, 1) };
            assert_eq!(bed.waiting(1, sequence, false, hold, path), Outcome::Held, "{sequence}");
        }
        bed.now += Duration::from_millis(99);
        bed.reorder.on_timeout(bed.now, &mut bed.pool, &mut bed.out);
        assert_eq!(bed.out.0, [(1, 0)], "longer than the paths differ");
        if restored {
            bed.waiting(1, 1, false, patient, 0);
            assert!(bed.out.0.is_sorted() && bed.out.0.len() == 20);
        }
        bed.now += Duration::from_millis(1);
        bed.reorder.on_timeout(bed.now, &mut bed.pool, &mut bed.out);
        assert_eq!((bed.reorder.depth(), bed.out.0.len()), (0, if restored { 20 } else { 19 }));
        // Without packets that have a code, the usual rules apply again.
        bed.now += Duration::from_millis(100);
        assert_eq!(bed.waiting(1, 21, false, Hold::OnPath, 0), Outcome::Held);
        for sequence in 22..25 {
            bed.waiting(1, sequence, false, Hold::OnPath, 0);
        }
        assert_eq!(bed.reorder.depth(), 0, "overtaken by three");
    }
}
