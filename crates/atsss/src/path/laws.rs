//! The rules of path monitoring, measured on the virtual channel, and arbitrary orders of operations.

use super::bench::{Bench, PROBE_BYTES, Traffic, UE, UPF};
use super::{DownReason, PathEvent, PathMonitor, ProbeParams, Role};
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::control::{PathCounters, Probe, ProbeKind};
use proptest::prelude::*;
use std::sync::Arc;

const MS: Duration = Duration::from_millis(1);
const FOREVER: Instant = Instant::MAX;

fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

fn cbr(gap: Duration, bytes: usize) -> Traffic {
    Traffic { from: at(500), until: FOREVER, gap, bytes }
}

/// Median and maximum, in milliseconds.
fn spread(mut values: Vec<Duration>) -> (f64, f64) {
    values.sort();
    let ms = |d: &Duration| d.as_secs_f64() * 1e3;
    (ms(&values[values.len() / 2]), ms(&values[values.len() - 1]))
}

#[test]
fn a_monitor_fits_the_memory_budget() {
    assert!(size_of::<PathMonitor>() <= 136, "{}", size_of::<PathMonitor>());
}

#[test]
fn three_legs_give_both_ends_the_round_trip_time() {
    let p = Arc::new(ProbeParams::default());
    let (mut ue, mut upf) = (PathMonitor::new(Role::Ue, &p, at(0)), PathMonitor::new(Role::Upf, &p, at(0)));
    assert!(!ue.is_up() && !upf.is_up());
    let request = ue.poll_probe(1, at(0)).unwrap();
    let (reply, event) = upf.on_probe(&request, 7, at(10));
    assert_eq!(event, None);
    let (ack, event) = ue.on_probe(&reply.unwrap(), 1, at(25));
    assert_eq!((event, ue.rtt().latest), (Some(PathEvent::Up), 25 * MS));
    assert_eq!(ue.peer_reorder_available(), 7);
    let (nothing, event) = upf.on_probe(&ack.unwrap(), 7, at(35));
    assert_eq!((nothing, event, upf.rtt().latest), (None, Some(PathEvent::Up), 25 * MS));
    // A repeated message changes nothing and is not answered.
    assert_eq!(ue.on_probe(&reply.unwrap(), 1, at(40)), (None, None));
    assert_eq!(upf.on_probe(&ack.unwrap(), 7, at(41)), (None, None));
    // The next one is an update for the very next packet.
    let request = ue.poll_probe(1, at(1000)).unwrap();
    let (reply, _) = upf.on_probe(&request, 7, at(1010));
    let (ack, event) = ue.on_probe(&reply.unwrap(), 1, at(1020));
    assert_eq!(event, Some(PathEvent::Rtt(20 * MS)));
    let (_, event) = upf.on_probe(&ack.unwrap(), 7, at(1030));
    assert_eq!(event, Some(PathEvent::Rtt(20 * MS)));
}

#[test]
fn loss_reported_by_the_far_end_is_returned_when_it_changes() {
    let p = Arc::new(ProbeParams::default());
    let (mut ue, mut upf) = (PathMonitor::new(Role::Ue, &p, at(0)), PathMonitor::new(Role::Upf, &p, at(0)));
    let mut now = 0;
    let mut probe = |ue: &mut PathMonitor, lasting_loss| {
        now += 1000;
        let request = ue.poll_probe(1, at(now)).unwrap();
        let (reply, _) = upf.on_probe(&request, 7, at(now + 10));
        let _ = ue.on_probe(&Probe { lasting_loss, ..reply.unwrap() }, 1, at(now + 20));
        ue.take_lasting_loss()
    };
    assert_eq!(probe(&mut ue, 0), Some(0));
    assert_eq!(probe(&mut ue, 2050), Some(20));
    assert_eq!(ue.lasting_loss_rx(), 2050);
    assert_eq!(probe(&mut ue, 2099), None);
    // A restarted far end has no measurements.
    ue.peer_restarted(at(10_000));
    assert_eq!(ue.take_lasting_loss(), Some(0));
}

#[test]
fn an_idle_path_is_probed_once_a_second() {
    let mut b = Bench::new(30 * MS, 1);
    b.run(at(60_000));
    assert_eq!((b.probes_sent, b.downs()), ([120, 60], 0));
}

#[test]
fn an_idle_path_whose_first_sample_was_late_settles_soon() {
    for base_ms in [5, 10, 40, 120, 600] {
        for excess_ms in [20, 100, 400, 2000] {
            let mut b = Bench::new((base_ms + excess_ms) * MS, 1);
            b.ends[UE].settle();
            for direction in &mut b.directions {
                direction.delay = Box::new(move |_| base_ms * MS / 2);
            }
            // From the second probe on, 16 follow each other.
            let settled = at(2_000 + 16 * u64::from(base_ms.max(40)));
            b.run(settled);
            let limit = base_ms * MS * 3 / 2 + 5 * MS + excess_ms * MS / 7;
            for end in &b.ends {
                assert!(end.rtt().smoothed <= limit, "{base_ms} + {excess_ms} ms: {:?}", end.rtt());
            }
            b.run(at(60_000));
            assert!(b.probes_sent[UPF] <= 60 + 16, "{base_ms} + {excess_ms} ms: {}", b.probes_sent[UPF]);
            assert_eq!(b.downs(), 0);
        }
    }
}

#[test]
fn the_probe_rate_follows_the_packet_rate_within_its_bounds() {
    let mut cost = Vec::new();
    for (pps, exchanges_per_s) in
        [(1, 6.0), (10, 25.0), (100, 25.0), (1000, 25.0), (2000, 40.0), (10_000, 50.0)]
    {
        let mut b = Bench::new(30 * MS, 1).traffic(UE, cbr(Duration::from_secs(1) / pps, 1400));
        b.run(at(10_500));
        let exchanges = b.probes_sent[UPF] as f64 / 10.0;
        assert!((exchanges / exchanges_per_s - 1.0).abs() < 0.15, "{pps} pps: {exchanges}/s");
        let share = (b.probes_sent[UE] + b.probes_sent[UPF]) as f64 * PROBE_BYTES as f64
            / (b.data[UE].0 as f64 * (1400.0 + 28.0));
        cost.push((pps, share));
    }
    // Less than one per cent from 1000 packets a second (11 Mbit/s) on; below that, at most 25 exchanges a
    // second.
    for (pps, share) in cost {
        assert!(pps < 1000 || share < 0.01, "{pps} pps: {share}");
    }
}

#[test]
fn a_black_hole_under_traffic_is_detected_in_time() {
    let (mut ue, mut upf, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    for seed in 0..60u64 {
        for (up_gap, down_gap) in [
            (Some(MS / 2), None),
            (None, Some(MS / 2)),
            (Some(MS * 10), Some(MS * 10)),
            (Some(MS), Some(MS / 4)),
        ] {
            for notify in [Some(10 * MS), None] {
                let rtt = MS * [4, 10, 30, 60][seed as usize % 4];
                let start = Instant::from_micros(3_000_000 + seed * 7_919);
                let mut b = Bench::new(rtt, seed).dead(0, start, FOREVER).dead(1, start, FOREVER);
                for (end, gap) in [(UE, up_gap), (UPF, down_gap)] {
                    if let Some(gap) = gap {
                        b = b.traffic(end, cbr(gap, 1200));
                    }
                }
                b.notify = notify;
                b.run(start + 2000 * MS);
                let found = b.down_at(UE, start).expect("the UE notices") - start;
                match notify {
                    Some(_) => {
                        ue.push(found);
                        upf.push(b.down_at(UPF, start).expect("the UPF is told") - start);
                    }
                    // Without another access for a notification, the UPF detects the failure itself while it
                    // sends.
                    None if down_gap.is_some() => {
                        alone.push(b.down_at(UPF, start).expect("the UPF notices") - start);
                    }
                    None => {}
                }
            }
        }
    }
    let (ue, upf, alone) = (spread(ue), spread(upf), spread(alone));
    println!("UE {ue:?} ms, UPF told {upf:?} ms, UPF alone {alone:?} ms (median, max)");
    assert!(ue.1 <= 250.0 && upf.1 <= 250.0, "UE {ue:?}, UPF {upf:?}");
    // Eight packets at 100 a second, then 240 ms.
    assert!(alone.1 <= 350.0, "UPF alone {alone:?}");
}

#[test]
fn one_dead_direction_is_enough() {
    for direction in [0, 1] {
        for seed in 0..20 {
            let start = Instant::from_micros(3_000_000 + seed * 7_919);
            let mut b = Bench::new(30 * MS, seed)
                .dead(direction, start, FOREVER)
                .traffic(UE, cbr(MS, 1200))
                .traffic(UPF, cbr(MS, 1200));
            b.run(start + 1000 * MS);
            let (ue, upf) = (b.down_at(UE, start).unwrap() - start, b.down_at(UPF, start).unwrap() - start);
            assert!(ue <= 250 * MS && upf <= 350 * MS, "direction {direction}: {ue:?} {upf:?}");
        }
    }
}

#[test]
fn traffic_steered_to_a_path_that_died_idle_is_found_in_time() {
    for seed in 0..40u64 {
        // The path failed shortly before; probes have not detected it yet.
        let steered = Instant::from_micros(5_000_000 + seed * 24_001);
        for end in [UE, UPF] {
            let traffic = Traffic { from: steered, until: FOREVER, gap: MS, bytes: 1200 };
            let mut b = Bench::new(20 * MS, seed)
                .dead(0, at(4_950), FOREVER)
                .dead(1, at(4_950), FOREVER)
                .traffic(end, traffic);
            b.run(steered + 2000 * MS);
            // The idle rule may have detected the failure before.
            let found = b.down_at(end, at(4_950)).unwrap().saturating_since(steered);
            assert!(found <= 250 * MS, "end {end}: {found:?}");
        }
    }
}

#[test]
fn an_idle_black_hole_is_found_by_the_idle_law() {
    let mut found = Vec::new();
    for seed in 0..50u64 {
        let start = Instant::from_micros(5_000_000 + seed * 20_011);
        let mut b = Bench::new(30 * MS, seed).dead(0, start, FOREVER).dead(1, start, FOREVER);
        b.run(start + 10_000 * MS);
        let (when, end, event) =
            b.events.iter().find(|e| e.0 >= start && e.2 != PathEvent::Rtt(30 * MS)).unwrap();
        assert_eq!((*end, *event), (UE, PathEvent::Down(DownReason::Probes)));
        found.push(*when - start);
        let upf = b.down_at(UPF, start).unwrap() - start;
        assert!(upf <= 5_300 * MS, "{upf:?}");
    }
    let (median, max) = spread(found);
    println!("idle: median {median} ms, max {max} ms");
    assert!(max <= 1_700.0, "{max}");
}

#[test]
fn random_loss_of_a_fifth_takes_no_path_down() {
    let (mut hours, mut downs) = (0.0, 0);
    for seed in 0..12u64 {
        for (up_gap, down_gap) in [
            (None, None),
            (Some(MS * 2), None),
            (None, Some(MS * 2)),
            (Some(MS * 5), Some(MS * 5)),
            (Some(MS * 100), None),
            (None, Some(MS * 100)),
        ] {
            let mut b = Bench::new(MS * [4, 30, 60][seed as usize % 3], seed).loss(0.2);
            for (end, gap) in [(UE, up_gap), (UPF, down_gap)] {
                if let Some(gap) = gap {
                    b = b.traffic(end, cbr(gap, 1200));
                }
            }
            b.run(at(120_000));
            hours += 2.0 / 60.0;
            downs += b.downs();
        }
    }
    println!("20 % loss each way: {downs} false alarms in {hours:.1} h");
    assert_eq!(downs, 0);
}

/// A queue builds up in front of a link: the round trip grows from 30 to 400 ms within a second, stays there,
/// and falls again.
fn bloat(b: &mut Bench, direction: usize, base: Duration) {
    b.directions[direction].delay = Box::new(move |t| {
        let ms = t.as_millis() % 10_000;
        let queue = match ms {
            0..2_000 => 0,
            2_000..3_000 => (ms - 2_000) * 370 / 1_000,
            3_000..6_000 => 370,
            6_000..6_500 => 370 - (ms - 6_000) * 370 / 500,
            _ => 0,
        };
        base + MS * queue as u32
    });
}

#[test]
fn bufferbloat_takes_no_path_down() {
    for seed in 0..16u64 {
        for loss in [0.0, 0.01, 0.05] {
            for direction in [0, 1] {
                let mut b = Bench::new(30 * MS, seed).loss(loss).traffic(direction, cbr(MS, 1400));
                bloat(&mut b, direction, 15 * MS);
                b.run(at(60_000));
                assert_eq!(b.downs(), 0, "seed {seed} loss {loss} direction {direction}");
                let rtts = b.events.iter().filter_map(|e| match e.2 {
                    PathEvent::Rtt(rtt) => Some(rtt),
                    _ => None,
                });
                assert!(rtts.max().unwrap() >= 400 * MS);
            }
        }
    }
}

#[test]
fn a_dead_link_behind_a_full_buffer_is_found_after_three_round_trips() {
    let mut b = Bench::new(30 * MS, 3).traffic(UE, cbr(MS, 1400)).dead(0, at(5_000), FOREVER);
    bloat(&mut b, 0, 15 * MS);
    b.run(at(9_000));
    let found = b.down_at(UE, at(5_000)).unwrap() - at(5_000);
    assert!((1_200 * MS..=1_700 * MS).contains(&found), "{found:?}");
}

#[test]
fn a_path_is_back_after_three_replies() {
    let mut back = Vec::new();
    for seed in 0..40u64 {
        let end = Instant::from_micros(6_000_000 + seed * 10_007);
        let mut b = Bench::new(30 * MS, seed)
            .dead(0, at(3_000), end)
            .dead(1, at(3_000), end)
            .traffic(UE, cbr(MS, 1200));
        b.notify = Some(10 * MS);
        b.run(end + 3_000 * MS);
        let ue = b.up_at(UE, end).unwrap();
        let upf = b.up_at(UPF, end).unwrap();
        assert!(b.up_at(UE, at(3_001)).unwrap() >= end);
        assert!(upf <= ue + 10 * MS);
        assert_eq!(b.downs(), 2);
        back.push(ue - end);
    }
    let (median, max) = spread(back);
    println!("back up: median {median} ms, max {max} ms");
    assert!(max <= 600.0, "{max}");
}

#[test]
fn carrier_loss_takes_effect_at_once_and_its_return_probes_at_once() {
    let mut b = Bench::new(20 * MS, 1).carrier(false, at(2_000)).carrier(true, at(4_000));
    b.notify = Some(5 * MS);
    b.run(at(8_000));
    assert_eq!(b.down_at(UE, at(0)), Some(at(2_000)));
    assert_eq!(b.down_at(UPF, at(0)), Some(at(2_005)));
    let silent = b.events.iter().filter(|e| e.0 > at(2_030) && e.0 < at(4_000)).count();
    assert_eq!(silent, 0);
    assert!(b.up_at(UE, at(4_000)).unwrap() <= at(4_100));
    assert!(b.up_at(UPF, at(4_000)).unwrap() <= at(4_110));
    assert_eq!(b.ends[UPF].notified_reason(), None);
}

#[test]
fn admin_off_is_silent_and_final_until_on() {
    let mut m = PathMonitor::new(Role::Ue, &Arc::default(), at(0));
    m.confirm(None, at(0));
    assert_eq!(m.bar(Some(DownReason::Admin), at(10)), Some(PathEvent::Down(DownReason::Admin)));
    assert_eq!((m.poll_probe(0, at(99_000)), m.poll_timeout()), (None, None));
    assert_eq!(m.set_carrier(true, at(20)), None);
    assert_eq!(m.poll_timeout(), None);
    assert_eq!(m.set_carrier(false, at(21)), None);
    assert_eq!(m.down_reason(), Some(DownReason::Carrier));
    assert_eq!(m.set_carrier(true, at(22)), None);
    assert_eq!(m.down_reason(), Some(DownReason::Admin));
    assert_eq!(m.bar(None, at(30)), None);
    assert!(m.poll_probe(0, at(30)).is_some());
}

#[test]
fn on_a_flapping_link_the_ends_never_disagree_for_long() {
    let mut b = Bench::new(20 * MS, 5).traffic(UE, cbr(MS, 1200)).traffic(UPF, cbr(MS, 1200));
    for i in 0..10u64 {
        // Five seconds up, five seconds down.
        b = b.dead(0, at(5_000 + i * 10_000), at(10_000 + i * 10_000));
        b = b.dead(1, at(5_000 + i * 10_000), at(10_000 + i * 10_000));
    }
    b.notify = Some(10 * MS);
    b.run(at(104_000));
    assert_eq!(b.downs(), 20);
    for i in 0..10u64 {
        let (off, on) = (at(5_000 + i * 10_000), at(10_000 + i * 10_000));
        assert!(b.down_at(UE, off).unwrap() - off <= 250 * MS);
        if i < 9 {
            assert!(b.up_at(UE, on).unwrap() - on <= 1_200 * MS);
        }
    }
    assert!(b.ends.iter().all(PathMonitor::is_up) || !b.ends.iter().any(PathMonitor::is_up));
}

#[test]
fn loss_is_measured_per_direction_even_with_reordering() {
    for jitter in [Duration::ZERO, 8 * MS] {
        let mut b = Bench::new(30 * MS, 9).traffic(UE, cbr(MS, 1000)).traffic(UPF, cbr(MS, 1000));
        b.directions[0].loss = 0.05;
        b.directions[1].loss = 0.01;
        for d in &mut b.directions {
            d.jitter = jitter;
        }
        b.run(at(60_500));
        for (end, ppm) in [(UE, 50_000.0), (UPF, 10_000.0)] {
            let (sent, lost) = b.data[end];
            let smoothed_tx = f64::from(b.ends[end].loss_tx_ppm());
            let smoothed_rx = f64::from(b.ends[1 - end].loss_rx_ppm());
            let (total_tx, total_rx) = (b.ends[end].lost_packets().0, b.ends[1 - end].lost_packets().1);
            // Probes are lost too: up to 3 more per 40 packets of data.
            for total in [total_tx, total_rx] {
                let total = f64::from(total);
                assert!((0.97..1.15).contains(&(total / lost as f64)), "{end}: {total} of {lost}/{sent}");
            }
            for smoothed in [smoothed_tx, smoothed_rx] {
                assert!((smoothed - ppm).abs() < 25_000.0, "{end}: {smoothed} for {ppm}");
            }
        }
    }
}

/// Round trips of 5 to 300 ms, up to 30 ms of jitter each way, loss, and traffic of 10 to 1000 packets/s.
#[test]
fn answers_of_a_working_path_are_not_overdue() {
    let mut seed = 0;
    for rtt_ms in [5, 20, 40, 60, 100, 300] {
        for jitter_ms in [0, 10, 30] {
            for loss in [0.0, 0.02, 0.1] {
                for gap_ms in [1, 10, 100] {
                    seed += 1;
                    let mut b = Bench::new(MS * rtt_ms, seed).loss(loss).traffic(UE, cbr(MS * gap_ms, 1200));
                    b.directions.iter_mut().for_each(|direction| direction.jitter = MS * jitter_ms);
                    b.run(at(60_000));
                    assert_eq!(b.overdue, [], "{rtt_ms} ms ± {jitter_ms} ms, loss {loss}, {gap_ms} ms apart");
                }
            }
        }
    }
}

/// Both directions stall regularly, as at handovers. A path that stalls for long is withdrawn for it once or twice.
#[test]
fn stalls_are_remembered() {
    for stall_ms in (20..=190).step_by(10) {
        for every_ms in [500, 5000] {
            let mut b = Bench::new(MS * 30, 1).traffic(UE, cbr(MS, 1200));
            for i in 1..60_000 / every_ms {
                let from = at(i * every_ms);
                b = b.dead(0, from, from + MS * stall_ms).dead(1, from, from + MS * stall_ms);
            }
            b.run(at(60_000));
            let most = if stall_ms < 100 { 0 } else { 2 + b.downs() };
            println!("{stall_ms} ms every {every_ms} ms: {} times, down {}", b.overdue.len(), b.downs());
            assert!(b.overdue.len() <= most, "{stall_ms} ms every {every_ms} ms: {} times", b.overdue.len());
        }
    }
}

#[test]
fn answers_are_overdue_long_before_a_failed_path_is_down() {
    for rtt_ms in [5, 20, 40, 60, 100, 300] {
        for jitter_ms in [0, 5, 15, 30] {
            let mut delays = [Vec::new(), Vec::new()];
            for seed in 0..50 {
                let dead = at(5000 + 7 * seed);
                let mut b = Bench::new(MS * rtt_ms, seed)
                    .traffic(UE, cbr(MS, 1200))
                    .dead(0, dead, FOREVER)
                    .dead(1, dead, FOREVER);
                b.directions.iter_mut().for_each(|direction| direction.jitter = MS * jitter_ms);
                b.run(at(8000));
                let down = b.down_at(UE, dead).unwrap();
                delays[0].push(b.overdue.first().map_or(down, |at| *at) - dead);
                delays[1].push(down - dead);
            }
            let [overdue, down] = delays.map(spread);
            println!("RTT {rtt_ms} ms, jitter {jitter_ms} ms: overdue {overdue:?}, down {down:?}");
            assert!(jitter_ms > 5 || overdue.0 < down.0 - 30.0);
        }
    }
}

#[test]
fn restarted_counters_of_the_peer_do_not_count_as_loss() {
    let p = Arc::new(ProbeParams::default());
    let mut upf = PathMonitor::new(Role::Upf, &p, at(0));
    let ask = |id: u32, tx_packets: u64, ms: u64| Probe {
        kind: ProbeKind::Request,
        id,
        timestamp_ns: at(ms).as_nanos(),
        echo_ns: 0,
        rtt_us: 0,
        counters: PathCounters { tx_packets, ..PathCounters::default() },
        reorder_available: 0,
        lasting_loss: 0,
    };
    for i in 0..100u32 {
        let sent = if i < 50 { 5_000_000_000 + u64::from(i) } else { u64::from(i) - 49 };
        let (reply, _) = upf.on_probe(&ask(i % 50, sent, u64::from(i) * 1000), 0, at(u64::from(i) * 1000));
        assert!(reply.is_some());
    }
    assert_eq!((upf.loss_rx_ppm(), upf.lost_packets().1), (0, 0));
}

#[test]
fn a_stall_of_the_process_does_not_count_as_silence() {
    let mut m = PathMonitor::new(Role::Ue, &Arc::default(), at(0));
    m.confirm(Some(10 * MS), at(0));
    let mut upf = PathMonitor::new(Role::Upf, &Arc::default(), at(0));
    for i in 0..10u64 {
        m.on_data_sent(1000, at(i * 40));
        if let Some(request) = m.poll_probe(0, at(i * 40)) {
            let (reply, _) = upf.on_probe(&request, 0, at(i * 40 + 5));
            assert!(m.on_probe(&reply.unwrap(), 0, at(i * 40 + 10)).0.is_some());
        }
    }
    m.on_data_sent(1000, at(401));
    let request = m.poll_probe(0, at(402)).unwrap();
    // The process stalls for two seconds; the reply waits in the socket while the timer is overdue.
    assert_eq!(m.on_timeout(at(2_400)), None);
    let (reply, _) = upf.on_probe(&request, 0, at(407));
    assert!(m.poll_probe(0, at(2_400)).is_some());
    assert!(m.on_probe(&reply.unwrap(), 0, at(2_401)).0.is_some());
    assert_eq!(m.on_timeout(at(2_402)), None);
    assert!(m.is_up());
}

#[derive(Debug, Clone)]
enum Op {
    Sent(usize),
    Received(usize),
    Probe { kind: u8, id: u32, time: u64, echo: u64, counter: u64 },
    Answer,
    Carrier(bool),
    Admin(bool),
    Notify(bool, u8),
    Poll,
}

fn op() -> impl Strategy<Value = Op> {
    let small = || prop_oneof![0..40u64, any::<u64>()];
    prop_oneof![
        (0usize..70_000).prop_map(Op::Sent),
        (0usize..70_000).prop_map(Op::Received),
        (0u8..3, prop_oneof![0..40u32, any::<u32>()], small(), small(), small())
            .prop_map(|(kind, id, time, echo, counter)| Op::Probe { kind, id, time, echo, counter }),
        Just(Op::Answer),
        any::<bool>().prop_map(Op::Carrier),
        any::<bool>().prop_map(Op::Admin),
        (any::<bool>(), any::<u8>()).prop_map(|(up, reason)| Op::Notify(up, reason)),
        Just(Op::Poll),
    ]
}

proptest! {
    /// For any order of operations: no panic, no busy loop, no traffic on a path that is switched off, and
    /// exactly one event per change of `is_up`.
    #[test]
    fn any_order_of_operations_is_survived(
        ue in any::<bool>(),
        params in any::<[u16; 6]>(),
        ops in prop::collection::vec((op(), 0u64..300_000_000), 1..200),
    ) {
        let [idle_interval_ms, active_interval_min_ms, active_interval_max_ms, down_interval_ms, silence_ms, packets_per_probe] = params;
        let params = ProbeParams {
            idle_interval_ms, active_interval_min_ms, active_interval_max_ms, down_interval_ms, silence_ms,
            packets_per_probe, ..ProbeParams::default()
        };
        let role = if ue { Role::Ue } else { Role::Upf };
        let mut m = PathMonitor::new(role, &Arc::new(params), Instant::ZERO);
        let mut now = Instant::ZERO;
        let (mut told_up, mut admin, mut last) = (false, true, None::<Probe>);
        for (op, step) in ops {
            now += Duration::from_nanos(step);
            let mut events = Vec::new();
            match op {
                Op::Sent(bytes) => m.on_data_sent(bytes, now),
                Op::Received(bytes) => m.on_data_received(bytes, now),
                Op::Probe { kind, id, time, echo, counter } => {
                    let kind = [ProbeKind::Request, ProbeKind::Reply, ProbeKind::Ack][usize::from(kind)];
                    let counters = PathCounters { tx_packets: counter, tx_bytes: time, rx_packets: echo, rx_bytes: counter };
                    let msg = Probe { kind, id, timestamp_ns: time, echo_ns: echo, rtt_us: id, counters, reorder_available: 1, lasting_loss: 0 };
                    let (answer, event) = m.on_probe(&msg, 2, now);
                    prop_assert!(admin || answer.is_none());
                    last = answer.or(last);
                    events.extend(event);
                }
                Op::Answer => if let Some(sent) = last {
                    let kind = if ue { ProbeKind::Reply } else { ProbeKind::Ack };
                    let msg = Probe { kind, echo_ns: sent.timestamp_ns, ..sent };
                    events.extend(m.on_probe(&msg, 2, now).1);
                },
                Op::Carrier(up) => events.extend(m.set_carrier(up, now)),
                Op::Admin(up) => { admin = up; events.extend(m.bar((!up).then_some(DownReason::Admin), now)); }
                Op::Notify(up, reason) => events.extend(m.on_notify(up, reason, now)),
                Op::Poll => {
                    events.extend(m.on_timeout(now));
                    let request = m.poll_probe(3, now);
                    prop_assert!(request.is_none() || (ue && admin));
                    last = request.or(last);
                    prop_assert_eq!(m.poll_probe(3, now), None);
                    if let Some((next, why)) = m.poll_timeout() {
                        prop_assert!(next > now, "{} at {} spins at {}", why, next, now);
                    }
                }
            }
            for event in events {
                match event {
                    PathEvent::Up => { prop_assert!(!told_up); told_up = true; }
                    PathEvent::Down(_) => { prop_assert!(told_up); told_up = false; }
                    PathEvent::Rtt(_) => prop_assert!(told_up),
                }
            }
            prop_assert_eq!(m.is_up(), told_up);
            prop_assert!(!m.is_up() || admin);
            prop_assert!(m.loss_tx_ppm() <= 1_000_000 && m.loss_rx_ppm() <= 1_000_000);
            let rtt = m.rtt();
            prop_assert!(rtt.minimum <= rtt.latest);
        }
    }

    /// For any loss below 10 %, any delay and any steady traffic: a working path is never declared down, and
    /// a failed one always is.
    #[test]
    fn only_failed_paths_are_declared_down(
        seed in any::<u64>(),
        rtt_ms in 2u32..120,
        loss in 0.0f64..0.1,
        gap_us in prop::array::uniform2(300u64..200_000),
        dead_ms in 3_000u64..4_000,
    ) {
        let traffic = |gap| cbr(Duration::from_micros(gap), 1200);
        let mut b = Bench::new(MS * rtt_ms, seed)
            .loss(loss)
            .traffic(UE, traffic(gap_us[0]))
            .traffic(UPF, traffic(gap_us[1]))
            .dead(0, at(dead_ms), FOREVER)
            .dead(1, at(dead_ms), FOREVER);
        b.run(at(7_000));
        prop_assert_eq!(b.events.iter().find(|e| e.0 < at(dead_ms) && matches!(e.2, PathEvent::Down(_))), None);
        // Until the UE sends the first packet after the failure, there may be nothing from which to detect
        // it.
        let wait = Duration::from_micros(gap_us[0]);
        let limit = MS * (200.max(3 * (rtt_ms + 10)) + rtt_ms + 60) + wait;
        let found = b.down_at(UE, at(dead_ms)).unwrap() - at(dead_ms);
        prop_assert!(found <= limit, "{:?} > {:?}", found, limit);
    }
}
