use super::super::{Ack, Algorithm, CcConfig, CongestionController, Controller};
use super::*;
use crate::int_cubic_l1::IntCubicL1;
use crate::int_cubic_l2::IntCubicL2;
use crate::int_cubic_ss::IntCubicSs;
use crate::int_rate::IntRate;
use anabranch_wire::ioam::Bottleneck;
use proptest::prelude::*;

const MSS: u32 = 1000;
const RTT: Duration = Duration::from_millis(20);

fn config() -> CcConfig {
    CcConfig { mss_bytes: MSS, initial_window_segments: 10, hystart: false, ..CcConfig::default() }
}

/// A path without drops and with a bottleneck of 20 Mbit/s.
fn report() -> Feedback {
    Feedback {
        flows: 1,
        complete: true,
        bottleneck: Some(Bottleneck {
            link_kbps: Some(20_000),
            arrival_kbps: Some(4_000),
            depth_bytes: Some(0),
            free_bytes: Some(30_000),
        }),
        ..Feedback::default()
    }
}

fn ack(ms: u64) -> Ack {
    Ack {
        now: Instant::from_millis(ms),
        acked_bytes: MSS.into(),
        delivered_bytes: MSS.into(),
        rtt: Some(RTT),
        srtt: RTT,
        cwnd_limited: true,
        ..Ack::default()
    }
}

fn report_and_ack(c: &mut impl CongestionController, report: &Feedback, ms: u64) {
    c.on_report(report, Instant::from_millis(ms));
    c.on_ack(&ack(ms));
}

fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

#[test]
fn l1_keeps_what_the_medium_lost() {
    let mut c = IntCubicL1::new(config());
    report_and_ack(&mut c, &report(), 20);
    c.on_loss(at(21), 0);
    assert_eq!((c.cwnd_bytes(), c.ssthresh_bytes()), (11_000, 11_000));
    // A timeout restarts towards the previous window; a second one does not forget it.
    c.on_rto(at(22), 0, true);
    assert_eq!((c.cwnd_bytes(), c.ssthresh_bytes()), (1000, 11_000));
    report_and_ack(&mut c, &report(), 40);
    c.on_rto(at(41), 0, true);
    assert_eq!((c.cwnd_bytes(), c.ssthresh_bytes()), (1000, 11_000));
}

#[test]
fn l2_reduces_by_a_twentieth() {
    let mut c = IntCubicL2::new(CcConfig { initial_window_segments: 99, ..config() });
    report_and_ack(&mut c, &report(), 20);
    // 5100 / 1024 segments: 4, with a remainder of 1004 / 1024; then 5.
    c.on_loss(at(21), 0);
    assert_eq!(c.cwnd_bytes(), 96_000);
    c.on_loss(at(22), 0);
    assert_eq!(c.cwnd_bytes(), 91_000);
}

/// A small window loses one segment every few losses, not a fifth at each.
#[test]
fn l2_takes_whole_segments_when_they_are_due() {
    let (mut cwnd, mut owed, mut exact) = (10_u32, 0, 10.0);
    for _ in 0..20 {
        (cwnd, owed) = View::reduce_by_five_percent(cwnd, owed);
        exact *= 973.0 / 1024.0;
        assert!((f64::from(cwnd) - exact).abs() < 1.2, "{cwnd} for {exact}");
    }
}

/// A loss on the way back from a timeout takes 5 % of the window before the timeout.
#[test]
fn l2_keeps_its_window_through_a_timeout() {
    let mut c = IntCubicL2::new(CcConfig { initial_window_segments: 99, ..config() });
    report_and_ack(&mut c, &report(), 20);
    c.on_rto(at(21), 0, true);
    assert_eq!((c.cwnd_bytes(), c.ssthresh_bytes()), (1000, 96_000));
    report_and_ack(&mut c, &report(), 40);
    c.on_loss(at(41), 0);
    assert_eq!(c.cwnd_bytes(), 91_000);
    c.on_rto(at(42), 0, true);
    assert_eq!((c.cwnd_bytes(), c.ssthresh_bytes()), (1000, 86_000));
}

/// A window kept after a medium timeout is forgotten on a congestion timeout.
#[test]
fn congestion_on_the_way_back_from_a_timeout_counts() {
    let dropped = Feedback { queue_drops: 1, ..report() };
    for algorithm in [Algorithm::IntCubicL1, Algorithm::IntCubicL2] {
        let mut c = algorithm.build(CcConfig { initial_window_segments: 100, ..config() });
        report_and_ack(&mut c, &report(), 20);
        c.on_rto(at(21), 0, true);
        report_and_ack(&mut c, &dropped, 40);
        c.on_rto(at(41), 0, true);
        let after = c.ssthresh_bytes();
        assert!(after <= 2000, "{algorithm}: 0.7 of the few segments there were, and not {after}");
        // The next medium loss keeps the present window.
        report_and_ack(&mut c, &dropped, 200);
        c.on_loss(at(201), 0);
        assert!(c.cwnd_bytes() <= 4000, "{algorithm}: {}", c.cwnd_bytes());
    }
}

/// A drop on the path, no telemetry, stale telemetry, or a hop that does not report drops: CUBIC's 0.7.
#[test]
fn ambiguous_losses_are_congestion() {
    let dropped = Feedback { queue_drops: 1, ..report() };
    let partial = Feedback { complete: false, ..report() };
    let is = |c: &Controller, segments: u64| c.cwnd_bytes() == 1000 * segments;
    for algorithm in [Algorithm::IntCubicL1, Algorithm::IntCubicL2] {
        let start = || algorithm.build(CcConfig { initial_window_segments: 100, ..config() });
        let mut never = start();
        never.on_loss(at(1), 0);
        assert!(is(&never, 70));

        let mut moved = start();
        report_and_ack(&mut moved, &report(), 20);
        report_and_ack(&mut moved, &dropped, 30);
        moved.on_loss(at(31), 0);
        assert!(is(&moved, 71), "two ACKs of slow start, then 0.7, rounded down");

        let mut incomplete = start();
        report_and_ack(&mut incomplete, &partial, 20);
        incomplete.on_loss(at(21), 0);
        assert!(is(&incomplete, 70));

        let mut stale = start();
        report_and_ack(&mut stale, &report(), 20);
        stale.on_ack(&ack(20 + 8 * 20 + 1));
        stale.on_loss(at(182), 0);
        assert!(is(&stale, 71));

        let mut ecn = start();
        report_and_ack(&mut ecn, &report(), 20);
        ecn.on_ecn(at(21), 0);
        assert!(is(&ecn, 70));
    }
}

#[test]
fn only_a_late_report_revokes_the_classification() {
    let dropped = Feedback { queue_drops: 1, ..report() };
    let mut c = IntCubicL1::new(CcConfig { initial_window_segments: 100, ..config() });
    report_and_ack(&mut c, &report(), 20);
    report_and_ack(&mut c, &dropped, 30);
    report_and_ack(&mut c, &dropped, 100);
    c.on_loss(at(101), 0);
    assert_eq!(c.cwnd_bytes(), 103_000, "the drop was 3.5 round trips ago");
    let twice = Feedback { queue_drops: 2, ..report() };
    c.on_report(&twice, at(110));
    assert_eq!(c.cwnd_bytes(), 72_000, "the report came after the loss was found");
    // Only once, and not after two round trips.
    c.on_report(&Feedback { queue_drops: 3, ..report() }, at(112));
    assert_eq!(c.cwnd_bytes(), 72_000);
    report_and_ack(&mut c, &twice, 300);
    report_and_ack(&mut c, &twice, 400);
    c.on_loss(at(401), 0);
    let kept = c.cwnd_bytes();
    report_and_ack(&mut c, &Feedback { queue_drops: 9, ..report() }, 450);
    assert!(c.cwnd_bytes() >= kept);
}

/// Reference values for the units of Eq. 1: 30,000 bytes free, and 4 Mbit/s arriving, which is 10,000 bytes per round trip of
/// 20 ms: three segments per acknowledged one, times the increment, capped.
#[test]
fn equation_one_units() {
    let mut view = View::default();
    view.on_report(&report(), 1);
    assert_eq!(view.slow_start_growth(20_000, 1, 16), Some(3 * GROWTH_UNIT));
    assert_eq!(view.slow_start_growth(20_000, 3, 16), Some(9 * GROWTH_UNIT));
    assert_eq!(view.slow_start_growth(20_000, 3, 2), Some(2 * GROWTH_UNIT));
    view.on_report(&Feedback { flows: 3, ..report() }, 2);
    assert_eq!(view.slow_start_growth(20_000, 1, 16), Some(GROWTH_UNIT));
    let full = Bottleneck { free_bytes: Some(0), ..report().bottleneck.unwrap() };
    view.on_report(&Feedback { bottleneck: Some(full), ..report() }, 3);
    assert_eq!(view.slow_start_growth(20_000, 3, 16), Some(0), "a full queue takes nothing");
    view.on_report(&Feedback { bottleneck: Some(Bottleneck::default()), ..report() }, 4);
    assert_eq!(view.slow_start_growth(20_000, 3, 16), None);

    let mut c = IntCubicSs::new(config());
    report_and_ack(&mut c, &report(), 20);
    assert_eq!(c.cwnd_bytes(), 12_000, "two segments for one: the cap");
    c.on_ack(&ack(20 + 1000));
    assert_eq!(c.cwnd_bytes(), 13_000, "stale: slow start");
    report_and_ack(&mut c, &Feedback { bottleneck: Some(full), ..report() }, 1021);
    assert_eq!(c.cwnd_bytes(), 13_000);
}

#[test]
fn rate_paces_and_returns_to_cubic() {
    let mut c = IntRate::new(config());
    c.on_ack(&ack(1));
    assert_eq!((c.pacing_bps(), c.cwnd_bytes(), c.rules_recovery()), (None, 11_000, false));
    report_and_ack(&mut c, &report(), 20);
    let rate = c.pacing_bps().unwrap();
    assert!(c.rules_recovery() && (19_900_000..=20_000_000).contains(&rate), "{rate}");
    assert_eq!(c.cwnd_bytes(), 104_000, "two bandwidth-delay products and four segments");
    c.on_loss(at(21), 0);
    assert_eq!(c.pacing_bps(), Some(rate));
    // Reports stop but ACKs continue: CUBIC from one bandwidth-delay product.
    for ms in (40..400).step_by(20) {
        c.on_ack(&ack(ms));
    }
    assert_eq!((c.pacing_bps(), c.rules_recovery()), (None, false));
    assert!((50_000..60_000).contains(&c.cwnd_bytes()), "{}", c.cwnd_bytes());
    let before = c.cwnd_bytes();
    c.on_loss(at(400), 0);
    assert!((c.cwnd_bytes() as f64 / before as f64 - 0.7).abs() < 0.01);
    report_and_ack(&mut c, &report(), 420);
    assert!(c.rules_recovery(), "reports again");
    c.on_rto(at(440), 0, true);
    assert_eq!((c.cwnd_bytes(), c.pacing_bps()), (1000, None));
}

/// A path with a hop that does not report drops.
fn incomplete() -> Feedback {
    Feedback { complete: false, ..report() }
}

/// A CUBIC flow that has grown to `segments`, and receives `report` from then on.
fn grown(segments: u32, report: &Feedback) -> IntRate {
    let mut c = IntRate::new(CcConfig { initial_window_segments: segments, ..config() });
    report_and_ack(&mut c, report, 20);
    c
}

/// 20 Mbit/s at 20 ms are 52 segments including the two of the bound; seven eighths of that are 46.
#[test]
fn the_window_must_carry_the_rate_on_an_incomplete_path() {
    let mut c = grown(10, &incomplete());
    assert_eq!((c.pacing_bps(), c.cwnd_bytes()), (None, 11_000), "slow start goes on");
    for ms in 21..120 {
        report_and_ack(&mut c, &incomplete(), ms);
    }
    assert!(c.paced());
    // In slow start, half of the window has been carried.
    assert!(grown(92, &incomplete()).paced());
    assert!(!grown(91, &incomplete()).paced());
    assert!(grown(10, &report()).paced(), "and nothing where all tell their drops");
}

#[test]
fn loss_on_an_incomplete_path_is_an_unreported_queue() {
    let mut c = grown(100, &incomplete());
    assert!(c.paced());
    c.on_loss(at(21), 0);
    assert_eq!((c.pacing_bps(), c.cwnd_bytes()), (None, 36_000), "0.7 of 52");
    // Not paced again before the window carries the rate, even if the path becomes complete.
    report_and_ack(&mut c, &incomplete(), 40);
    report_and_ack(&mut c, &report(), 60);
    assert!(!c.paced());
    c.on_spurious(at(61));
    report_and_ack(&mut c, &report(), 80);
    assert!(c.paced(), "nothing was lost");
    // A mark has the same effect, and so has a timeout.
    for timeout in [false, true] {
        let mut c = grown(100, &incomplete());
        if timeout {
            c.on_rto(at(21), 0, true)
        } else {
            c.on_ecn(at(21), 0)
        };
        assert_eq!((c.pacing_bps(), c.ssthresh_bytes()), (None, 36_000));
        report_and_ack(&mut c, &incomplete(), 40);
        assert!(!c.paced());
    }
    // A reported drop is handled by the telemetry law.
    let mut c = grown(100, &incomplete());
    report_and_ack(&mut c, &Feedback { queue_drops: 1, ..incomplete() }, 30);
    c.on_loss(at(31), 0);
    assert!(c.paced());
}

/// A round trip that grows from 20 ms to 50 ms: 10 ms more than twice the minimum is tolerated.
#[test]
fn an_unexplained_round_trip_indicates_an_unreported_queue() {
    let slow = |c: &mut IntRate, report: &Feedback, ms: u64, srtt_ms: u64| {
        c.on_report(report, at(ms));
        c.on_ack(&Ack { srtt: Duration::from_millis(srtt_ms), ..ack(ms) });
    };
    let full = Bottleneck { depth_bytes: Some(75_000), ..report().bottleneck.unwrap() };
    let (told_queue, lossy) = (Feedback { bottleneck: Some(full), ..incomplete() }, report());
    for (report, srtt_ms, window) in [
        (incomplete(), 50, None),
        (incomplete(), 51, Some(52)),
        // 75,000 bytes at 20 Mbit/s are 30 ms; they are drained at half the rate.
        (told_queue, 80, None),
        (told_queue, 81, Some(27)),
        (lossy, 600, None),
    ] {
        let mut c = grown(100, &report);
        slow(&mut c, &report, 41, srtt_ms);
        assert_eq!(c.paced(), window.is_none(), "{srtt_ms} ms");
        if let Some(segments) = window {
            assert_eq!(c.cwnd_bytes(), 1000 * segments, "what the rate is in the least round trip");
        }
    }
    // The bounding window is computed for an explained round trip: 2 · 20 Mbit/s · 50 ms.
    let mut c = grown(100, &report());
    slow(&mut c, &report(), 41, 600);
    assert_eq!(c.cwnd_bytes(), 254_000);
}

/// Round trips of `ms` with one ACK per millisecond, for `for_ms`.
fn round_trips(c: &mut impl CongestionController, report: &Feedback, from_ms: u64, for_ms: u64, ms: u64) {
    for now in from_ms..from_ms + for_ms {
        c.on_report(report, at(now));
        let rtt = Duration::from_millis(ms);
        c.on_ack(&Ack { rtt: Some(rtt), srtt: rtt, cwnd_limited: false, ..ack(now) });
    }
}

/// A bridge without telemetry: the path looks complete. A loss alone is classified as medium loss, a loss with a round trip that
/// stays long is not.
#[test]
fn an_unreported_standing_queue_is_congestion() {
    let queue = |kb: u64, free_kb: u64| Feedback {
        bottleneck: Some(Bottleneck {
            depth_bytes: Some(kb * 1000),
            free_bytes: Some(free_kb * 1000),
            ..report().bottleneck.unwrap()
        }),
        ..report()
    };
    let short = Feedback { bottleneck: None, ..report() };
    // A quarter of 20 ms is 5 ms; 25,000 bytes at 20 Mbit/s are 10 ms. With SACK blocks no queue is reported: then any depth for
    // which there is room is possible.
    for (report, least_ms, ms, medium) in [
        (queue(0, 100), 20, 25, true),
        (queue(0, 100), 20, 26, false),
        (queue(25, 100), 20, 35, true),
        (queue(25, 100), 20, 36, false),
        (queue(0, 100), 200, 210, true),
        (queue(0, 100), 200, 211, false),
        (queue(0, 100), 4, 6, true),
        (queue(0, 100), 4, 7, false),
        (short, 20, 65, true),
        (short, 20, 66, false),
    ] {
        let large = CcConfig { initial_window_segments: 100, ..config() };
        let (mut l1, mut rate) = (IntCubicL1::new(large), IntRate::new(large));
        round_trips(&mut l1, &queue(0, 100), 21, 400, least_ms);
        round_trips(&mut rate, &queue(0, 100), 21, 400, least_ms);
        let window = l1.cwnd_bytes();
        // A single long round trip is not a standing queue.
        round_trips(&mut l1, &report, 421, 1, ms);
        round_trips(&mut l1, &report, 422, 2, least_ms);
        l1.on_loss(at(424), 0);
        assert!(l1.cwnd_bytes() >= window, "{ms} of {least_ms} ms, once");
        let window = l1.cwnd_bytes();
        round_trips(&mut l1, &report, 424, 4 * ms, ms);
        round_trips(&mut rate, &report, 424, 4 * ms, ms);
        l1.on_loss(at(425 + 4 * ms), 0);
        rate.on_loss(at(425 + 4 * ms), 0);
        assert_eq!(l1.cwnd_bytes() >= window, medium, "{ms} of {least_ms} ms");
        assert_eq!(rate.paced(), medium, "{ms} of {least_ms} ms");
        // Reports for 20 ms.
        if !medium && least_ms == 20 {
            report_and_ack(&mut rate, &queue(0, 100), 426 + 4 * ms);
            assert!(!rate.paced(), "the window has to carry the rate first");
        }
    }
}

/// An unreported queue too short to be detected by round trips: if more is lost than delivered, no flow keeps its rate.
#[test]
fn an_unreported_queue_with_heavy_loss_is_congestion() {
    let mss = u64::from(MSS);
    for (lost, paced) in [(0, true), (mss, true), (mss + mss / 5, false), (6 * mss, false)] {
        let mut c = grown(100, &report());
        for ms in 21..200 {
            c.on_report(&report(), at(ms));
            c.on_ack(&Ack { lost_bytes: lost, in_recovery: true, ..ack(ms) });
        }
        assert_eq!(c.paced(), paced, "{lost} bytes lost for each {mss} delivered");
        // 20 segments arrived in a round trip of 20 ms.
        let window = c.cwnd_bytes() / mss;
        assert!(paced || (10..=21).contains(&window), "{window}");
    }
}

/// Round trips of 20 ms with 20 segments delivered and `lost` lost in each, without reports. Returns when pacing ended.
fn lossy_round_trips(c: &mut IntRate, lost: u64, by_timer: bool, from_ms: u64, for_ms: u64) -> Option<u64> {
    (from_ms..from_ms + for_ms).find(|ms| {
        let bytes = (ms % 20 < lost) as u64 * u64::from(MSS);
        let (lost_bytes, timer_lost_bytes) = if by_timer { (0, bytes) } else { (bytes, 0) };
        c.on_ack(&Ack { lost_bytes, timer_lost_bytes, in_recovery: true, ..ack(*ms) });
        !c.paced()
    })
}

/// With three losses per round trip, ACKs have no room for reports, which are then fresh for 32 round trips instead of 8. A loss of
/// more than a fifth has another cause. The flow continues with the window that leaves room for reports.
#[test]
fn reports_suppressed_by_sack_blocks_are_fresh_for_longer() {
    for (lost, round_trips, segments) in
        [(0, 8, 52..53), (2, 8, 52..53), (3, 32, 13..16), (5, 32, 10..13), (6, 8, 10..13)]
    {
        for by_timer in [false, true] {
            let mut c = grown(10, &report());
            let ended_ms = lossy_round_trips(&mut c, lost, by_timer, 21, 2000).unwrap();
            let expected_ms = 20 + round_trips * 20;
            assert!((expected_ms..=expected_ms + 20).contains(&ended_ms), "{lost} lost: {ended_ms} ms");
            let window = c.cwnd_bytes() / u64::from(MSS);
            assert!(segments.contains(&window), "{lost} lost: {window} segments");
        }
    }
}

/// Suppressed reports say nothing about the present queue: it is that of the RTT.
#[test]
fn the_round_trip_replaces_a_suppressed_queue() {
    let full =
        Bottleneck { depth_bytes: Some(200_000), arrival_kbps: Some(0), ..report().bottleneck.unwrap() };
    for (told, rtt_ms, mbps) in [
        (report(), 20, 18.66),
        (report(), 25, 16.79),
        (report(), 30, 16.32),
        (report(), 60, 16.32),
        (Feedback { bottleneck: Some(full), ..report() }, 20, 18.66),
    ] {
        let mut view = View::default();
        let sample = |view: &mut View, ms: u64, rtt_ms: u64| {
            view.record_ack(ms * 1000);
            view.record_sample(ms * 1000, rtt_ms * 1000, rtt_ms * 1000, ms as u32, (ms / 5) as u32);
        };
        view.on_report(&told, 1000);
        (1..30).for_each(|ms| sample(&mut view, ms, 20));
        (30..200).for_each(|ms| sample(&mut view, ms, rtt_ms));
        // 20 Mbit/s without headers, less the queue within two round trips, at most an eighth.
        for own_bps in [0, 1_000_000, 100_000_000] {
            let rate = view.fair_rate(own_bps, rtt_ms * 1000, 1000, 1 << 40).unwrap();
            assert!((rate as f64 / 1e6 - mbps).abs() < 0.1, "{rate} with {rtt_ms} ms");
        }
        // One of four flows that has twice its share gives up its part of the queue.
        if rtt_ms == 60 {
            view.flows = 4;
            let rate = view.fair_rate(10_000_000, rtt_ms * 1000, 1000, 1 << 40).unwrap();
            assert!((rate as f64 / 1e6 - (10.0 - 18.66 / 3.0 / 4.0)).abs() < 0.1, "{rate}");
            view.flows = 1;
        }
        // Without losses, the last report still applies.
        view.round_totals = [20, 0];
        assert!(view.fair_rate(0, rtt_ms * 1000, 1000, 1 << 40).unwrap() > 19_000_000 || told != report());
    }
}

/// A flow that fills the reported queue while reports are suppressed: that queue may have grown by a quarter of the round trip.
#[test]
fn growth_since_a_suppressed_report_is_not_an_unreported_queue() {
    for (lost, rtt_ms, found) in [(3, 211, false), (3, 258, false), (3, 259, true), (2, 211, true)] {
        let mut view = View::default();
        view.on_report(&report(), 1000);
        for ms in 1..650 {
            let rtt_us = if ms < 200 { 200_000 } else { rtt_ms * 1000 };
            view.record_ack(ms * 1000);
            // Rates are about two round trips old.
            view.rates_us = (ms * 1000).saturating_sub(390_000);
            view.record_sample(ms * 1000, rtt_us, 200_000, (ms / 10) as u32, (ms * lost / 190) as u32);
        }
        assert_eq!(view.has_unreported_queue(), found, "{lost} lost, {rtt_ms} ms");
    }
}

/// An overflow while reports are suppressed: pacing ends, and begins again at once only if the delayed report has a drop.
#[test]
fn a_delayed_report_shows_which_queue_overflowed() {
    for queue_drops in [0, 40] {
        let mut c = grown(10, &report());
        let heavy = |c: &mut IntRate, ms: u64| {
            c.on_ack(&Ack { lost_bytes: 2 * u64::from(MSS), in_recovery: true, ..ack(ms) });
        };
        (21..100).for_each(|ms| heavy(&mut c, ms));
        assert!(!c.paced());
        report_and_ack(&mut c, &Feedback { queue_drops, ..report() }, 120);
        report_and_ack(&mut c, &Feedback { queue_drops, ..report() }, 140);
        assert_eq!(c.paced(), queue_drops > 0, "{queue_drops} drops");
    }
}

/// A flow that is sprayed over two paths receives the drop counters of both in turn; the differences are not drops. A loss is then
/// neither attributed to a reporting queue nor certain to be a medium loss.
#[test]
fn alternating_reports_of_two_paths_are_not_drops() {
    for there in [1, 100, 4_900, 0x7fff, 0x8000, 0xff00, 0xffff] {
        let drops = |ms: u64| if ms.is_multiple_of(2) { 0 } else { there };
        let mut rate = grown(100, &incomplete());
        let mut l1 = IntCubicL1::new(CcConfig { initial_window_segments: 100, ..config() });
        for ms in 21..500 {
            report_and_ack(&mut rate, &Feedback { queue_drops: drops(ms), ..incomplete() }, ms);
            l1.on_report(&Feedback { queue_drops: drops(ms), ..report() }, at(ms));
        }
        l1.on_ack(&ack(500));
        assert!(rate.paced(), "{there}");
        rate.on_loss(at(500), 0);
        assert!(!rate.paced(), "{there}: a loss of a queue that tells nothing counts as told");
        l1.on_loss(at(500), 0);
        assert_eq!(l1.cwnd_bytes(), 70_000, "{there}");
    }
}

/// An ACK with an old report after one with a newer report does not make telemetry older: an age of 31 is 248 ms, more than 8
/// round trips.
#[test]
fn an_overtaken_report_makes_none_stale() {
    let mut c = grown(100, &report());
    report_and_ack(&mut c, &report(), 480);
    let paced = (c.pacing_bps(), c.cwnd_bytes());
    assert!(c.paced());
    c.on_report(&Feedback { age: 31, ..report() }, at(501));
    c.on_ack(&ack(501));
    assert_eq!((c.pacing_bps(), c.cwnd_bytes()), paced);
}

/// Reported values may jump; a flow over a hop without telemetry at most doubles its rate.
#[test]
fn the_rate_at_most_doubles_on_an_incomplete_path() {
    let faster =
        Bottleneck { link_kbps: Some(1_000_000), arrival_kbps: Some(20_000), ..report().bottleneck.unwrap() };
    for complete in [false, true] {
        let mut view = View::default();
        view.on_report(&Feedback { complete, bottleneck: Some(faster), ..report() }, 1);
        let rate = view.fair_rate(20_000_000, 20_000, MSS.into(), 1 << 40).unwrap();
        assert_eq!(rate, if complete { 1_000_000_000 } else { 40_000_000 });
    }
}

/// Flows that share one queue, as a fluid model: they converge to equal rates, fill the link, and keep the queue short.
#[test]
fn rate_shares_a_link() {
    for (flows, link_bps) in [(1, 20e6), (2, 20e6), (8, 50e6)] {
        let rtt = 0.02;
        let mut rates: Vec<u64> = (1..=flows).map(|i| 1_000_000 * i * i).collect();
        let (mut queue, mut arrival) = (200_000.0f64, 0.0);
        let mut seen = Feedback::default();
        for _ in 0..200 {
            let before = seen;
            seen = Feedback {
                flows: flows as u16,
                complete: true,
                bottleneck: Some(Bottleneck {
                    link_kbps: Some((link_bps / 1e3) as u64),
                    arrival_kbps: Some((arrival / 1e3) as u64),
                    depth_bytes: Some(queue as u64),
                    free_bytes: None,
                }),
                ..Feedback::default()
            };
            for rate in &mut rates {
                let mut view = View::default();
                view.on_report(&before, 1);
                if let Some(next) = view.fair_rate(*rate, 20_000, MSS.into(), 1 << 40) {
                    *rate = next;
                }
            }
            // On the wire 5 % more than the paced payload.
            arrival = rates.iter().sum::<u64>() as f64 * 1.05;
            queue = (queue + (arrival - link_bps) * rtt / 8.0).max(0.0);
        }
        let sum: f64 = rates.iter().map(|r| *r as f64).sum();
        let squares: f64 = rates.iter().map(|r| (*r as f64).powi(2)).sum();
        assert!(sum * sum / (flows as f64 * squares) > 0.99, "{flows}: {rates:?}");
        assert!((0.97..=1.03).contains(&(sum * 1.05 / link_bps)), "{flows}: {sum}");
        assert!(queue < 0.3 * link_bps * rtt / 8.0, "{flows}: {queue}");
    }
}

/// Capacity left unused by one flow is taken up by another.
#[test]
fn rate_takes_up_what_others_leave() {
    let mut rate = 5_000_000;
    for _ in 0..100 {
        let bottleneck = Some(Bottleneck {
            link_kbps: Some(20_000),
            arrival_kbps: Some(rate / 1000 + 1_000),
            depth_bytes: Some(0),
            free_bytes: None,
        });
        let mut view = View::default();
        view.on_report(&Feedback { flows: 2, bottleneck, ..Feedback::default() }, 1);
        rate = view.fair_rate(rate, 20_000, 1000, 1 << 40).unwrap();
    }
    assert!((18_500_000..=19_500_000).contains(&rate), "{rate}");
}

/// One step of a random sequence.
#[derive(Debug, Clone)]
enum Step {
    Ack { srtt_us: u32 },
    Report { bytes: [u8; 16] },
    Loss,
    Rto,
    Spurious,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u32..2_000_000).prop_map(|srtt_us| Step::Ack { srtt_us }),
        4 => any::<[u8; 16]>().prop_map(|bytes| Step::Report { bytes }),
        1 => Just(Step::Loss),
        1 => Just(Step::Rto),
        1 => Just(Step::Spurious),
    ]
}

fn play(c: &mut Controller, steps: &[Step], mut after: impl FnMut(&Controller, u64, u64)) {
    let (mut now_us, mut srtt) = (1000, 0);
    for step in steps {
        now_us += 7000;
        let (now, before) = (Instant::from_micros(now_us), c.cwnd_bytes());
        match step {
            Step::Ack { srtt_us } => {
                srtt = u64::from(*srtt_us);
                c.on_ack(&Ack { now, srtt: Duration::from_micros(srtt), ..ack(0) });
            }
            Step::Report { bytes } => {
                let mut option = *bytes;
                option[..2].copy_from_slice(&[0x72, 16]);
                option[3] = 0x60;
                c.on_report(&Feedback::parse(&option).unwrap().unwrap(), now);
            }
            Step::Loss => c.on_loss(now, 0),
            Step::Rto => c.on_rto(now, 0, true),
            Step::Spurious => c.on_spurious(now),
        }
        after(c, srtt, before);
    }
}

/// Delay of the reports below, less than the threshold for a restarted node.
const LATE_US: u64 = 200_000;

/// The view after these reports at these times, and the number of drop counter increments.
fn view_of<'a>(reports: impl IntoIterator<Item = &'a (u64, Feedback)>) -> (View, usize) {
    let (mut view, mut drops) = (View::default(), 0);
    for (now_us, report) in reports {
        let before = view;
        view.on_report(report, *now_us);
        drops += usize::from(view.dropped_us != before.dropped_us);
    }
    (view, drops)
}

proptest! {
    /// Reports of one path in any order, each up to 200 ms late: the counter is the same as in order and moved no more often, times
    /// are later by at most the delay (by ages, exact to 8 ms), and rates are those of a report older by at most the delay.
    #[test]
    fn overtaken_reports_change_little(
        steps in proptest::collection::vec((1u64..30_000, 0..LATE_US, 0u16..3, 0u8..32, any::<bool>()), 1..80), start: u16,
    ) {
        let first = Feedback { queue_drops: start, ..report() };
        let mut in_order = vec![(1_000_000, first)];
        let mut late = in_order.clone();
        for (number, (later_us, late_us, more, age, full)) in (1..).zip(steps) {
            let (before_us, before) = in_order[in_order.len() - 1];
            let hop = Bottleneck { link_kbps: Some(number), ..Bottleneck::default() };
            let bottleneck = full.then_some(hop);
            let queue_drops = before.queue_drops.wrapping_add(more);
            let next = Feedback { queue_drops, age, bottleneck, ..report() };
            in_order.push((before_us + later_us, next));
            late.push((before_us + later_us + late_us, next));
        }
        late.sort_by_key(|(now_us, _)| *now_us);
        let ((wanted, most), (view, drops)) = (view_of(&in_order), view_of(&late));
        prop_assert_eq!(view.drops, wanted.drops);
        prop_assert!(drops <= most, "{} drops of {}", drops, most);
        for (was, wanted, exact_us) in [
            (view.received_us, wanted.received_us, 8_000),
            (view.rates_us, wanted.rates_us, 8_000),
            (view.newest_us, wanted.newest_us, 0),
            (view.counter_moved_us, wanted.counter_moved_us, 0),
            (view.dropped_us, wanted.dropped_us, 0),
        ] {
            prop_assert!(was + exact_us >= wanted && was <= wanted + LATE_US + exact_us, "{} for {}", was, wanted);
        }
        let told_us = |kbps| in_order.iter().rev().find(|(_, r)| r.bottleneck.and_then(|b| b.link_kbps) == Some(kbps)).map(|(at, _)| *at);
        prop_assert!(told_us(view.link_kbps) >= told_us(wanted.link_kbps).map(|at| at.saturating_sub(LATE_US)));
    }

    /// After any false reports, an honest reporter is believed after the answer time plus two round trips.
    #[test]
    fn honest_reports_are_believed_after_false_ones(lies in proptest::collection::vec((any::<[u8; 16]>(), 0u64..50_000), 0..50), queue_drops: u16) {
        let (mut view, mut now_us) = (View::default(), 1_000_000);
        for (mut option, later_us) in lies {
            (option[0], option[1]) = (0x72, if option[1] % 2 == 0 { 8 } else { 16 });
            option[3] = 0x40 | option[3] & 0x3f;
            now_us += later_us;
            view.on_report(&Feedback::parse(&option).unwrap().unwrap(), now_us);
        }
        let truth = Feedback { queue_drops, ..report() };
        let end_us = now_us + super::view::MAX_REPORT_AGE_US + 2 * 20_000 + 10_000;
        while now_us < end_us {
            now_us += 5_000;
            view.on_report(&truth, now_us);
            view.record_ack(now_us);
        }
        prop_assert!(view.classify_medium(now_us, 20_000, 8) && view.is_fresh(20_000, 8) && view.has_fresh_rates(20_000, 8));
        let honest = view_of(&[(now_us, truth)]).0;
        prop_assert_eq!(view.fair_rate(0, 20_000, 1000, 1 << 40), honest.fair_rate(0, 20_000, 1000, 1 << 40));
        prop_assert_eq!((view.drops, view.losses, view.flows), (honest.drops, honest.losses, honest.flows));
        // A drop reported next is recognised as a drop.
        let dropped = Feedback { queue_drops: queue_drops.wrapping_add(1), ..truth };
        prop_assert!(view.on_report(&dropped, now_us + 1) && view.dropped_us == now_us + 1);
    }

    /// For any input from the network: no panic, a window of at least one segment, and no flow faster than the ceiling because of
    /// it.
    #[test]
    fn hostile_reports_are_bounded(steps in proptest::collection::vec(step(), 1..200), ceiling_kbps in 1u64..1_000_000) {
        let ceiling_bps = ceiling_kbps * 1000;
        let int = IntConfig { ceiling_bps, increment: 16, growth_cap: 16, ..IntConfig::default() };
        for algorithm in [Algorithm::IntCubicL1, Algorithm::IntCubicL2, Algorithm::IntCubicSs, Algorithm::IntRate] {
            let mut c = algorithm.build(CcConfig { int, ..config() });
            let mut grown = Vec::new();
            play(&mut c, &steps, |c, srtt_us, before| {
                grown.push((c.cwnd_bytes(), c.pacing_bps(), srtt_us, before, c.in_slow_start()));
            });
            for (cwnd, pacing, srtt_us, before, _) in grown {
                prop_assert!(cwnd >= u64::from(MSS));
                prop_assert!(pacing.is_none_or(|rate| rate <= ceiling_bps), "{algorithm}");
                // Growth by telemetry beyond one segment per acknowledged segment ends at the ceiling's window.
                let most = View::ceiling_window(ceiling_bps, srtt_us, MSS.into()) * u64::from(MSS);
                if algorithm == Algorithm::IntCubicSs && cwnd > before + u64::from(MSS) && cwnd > most {
                    prop_assert!(steps.iter().any(|s| matches!(s, Step::Spurious)), "{cwnd} {before} {most}");
                }
            }
        }
    }

    /// Without reports, each controller equals CUBIC to the byte.
    #[test]
    fn without_reports_each_controller_is_cubic(steps in proptest::collection::vec(step(), 1..200)) {
        let steps: Vec<Step> = steps.into_iter().filter(|s| !matches!(s, Step::Report { .. })).collect();
        let mut cubic = Vec::new();
        play(&mut Algorithm::Cubic.build(config()), &steps, |c, _, _| cubic.push((c.cwnd_bytes(), c.ssthresh_bytes())));
        for algorithm in [Algorithm::IntCubicL1, Algorithm::IntCubicL2, Algorithm::IntCubicSs, Algorithm::IntRate] {
            let mut ours = Vec::new();
            play(&mut algorithm.build(config()), &steps, |c, _, _| ours.push((c.cwnd_bytes(), c.ssthresh_bytes())));
            prop_assert_eq!(&ours, &cubic, "{}", algorithm);
        }
    }
}
