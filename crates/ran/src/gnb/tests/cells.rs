//! Limiters in cells of several UEs: `jit` compared with `e5g_bdp` and with no limiter.

use super::*;
use crate::queue::jit::JitParams;

/// Downlink traffic of a UE.
#[derive(Debug, Clone, Copy)]
enum Traffic {
    /// Packets of this size, always more than can leave.
    Bulk(usize),
    /// One packet of this size per interval in microseconds.
    Steady(usize, u64),
}

/// A cell: RBs, the MCS of every UE (or two that alternate every so many milliseconds), and the UEs.
struct Cell {
    name: String,
    rbs: u16,
    mcs: (u8, Option<(u8, u64)>),
    ues: Vec<Traffic>,
    /// Number of UEs that also have a call.
    calls: usize,
}

struct Outcome {
    useful_bytes: u64,
    mean_ms: f64,
    p95_ms: f64,
}

fn go(cell: &Cell, queue: QueueOf, end_ms: u64) -> Outcome {
    let mut config = config(&[100.0], &vec![0; cell.ues.len()], queue);
    config.radio = RadioConfig::Lte(LteConfig { rbs: cell.rbs, rbg_rbs: None });
    config.telemetry.packets = PacketEvents::All;
    for ue in &mut config.ues {
        ue.channel = ChannelConfig::mcs(cell.mcs.0);
        ue.sdap.poll_us = 203;
    }
    let mut run = Run::new(&config);
    let mut next: Vec<u64> = (0..cell.ues.len() as u64).map(|ue| 1000 + 2347 * ue % 20_000).collect();
    let mut calls = Calls::new(cell.calls);
    let (mut number, mut before, mut high) = (0, LinkStats::default(), true);
    for ms_now in 0..end_ms {
        let (now_us, end_us) = (ms_now * 1000, ms_now * 1000 + 1000);
        if let (mcs, Some((other, period))) = cell.mcs
            && ms_now % period == 0
        {
            high = !high;
            let channel = Channel::constant(Quality::Mcs(if high { mcs } else { other }));
            for ue in 0..cell.ues.len() {
                let (ue, direction) = (format!("ue{ue}"), Direction::Downlink);
                let channel = channel.clone();
                run.gnb.apply(GnbCommand::Channel { ue, direction, channel }, ms(ms_now)).unwrap();
            }
        }
        // All packets of this millisecond, by time.
        let mut due: Vec<Due> = Vec::new();
        for (ue, traffic) in (0_u32..).zip(&cell.ues) {
            match *traffic {
                Traffic::Bulk(bytes) => {
                    let sdap: u64 =
                        run.gnb.flow_stats(ue, Direction::Downlink).map(|(_, f)| f.waiting_bytes).sum();
                    let rlc: u64 = run
                        .gnb
                        .bearer_stats(ue, Direction::Downlink, ms(ms_now))
                        .map(|b| b.buffer_bytes)
                        .sum();
                    let missing = 24_000_u64.saturating_sub(sdap + rlc) / bytes as u64;
                    due.extend((0..missing).map(|_| (now_us, ue, 5000, bytes)));
                }
                Traffic::Steady(bytes, every) => {
                    let at = &mut next[ue as usize];
                    while *at < end_us {
                        due.push((*at, ue, 5000, bytes));
                        *at += every;
                    }
                }
            }
        }
        calls.take(end_us, &mut due);
        due.sort_unstable();
        for (at, ue, port, bytes) in due {
            number += 1;
            run.offer(Gnb::N3, down(ue, port, bytes, number), Instant::from_micros(at));
        }
        run.until(Instant::from_micros(end_us));
        if ms_now == end_ms / 5 {
            before = run.gnb.link_stats(Direction::Downlink, ms(ms_now + 1));
        }
    }
    let stats = run.gnb.link_stats(Direction::Downlink, ms(end_ms));
    let useful = |s: &LinkStats| s.block_bytes - s.padding_bytes;
    let times = (0..cell.calls as u32).flat_map(|ue| run.times(ue, 1));
    let mut waits: Vec<f64> =
        times.filter(|t| t.arrived > ms(end_ms / 5)).map(|t| t.queue_wait().as_secs_f64() * 1e3).collect();
    waits.sort_by(f64::total_cmp);
    Outcome {
        useful_bytes: useful(&stats) - useful(&before),
        mean_ms: waits.iter().sum::<f64>() / waits.len() as f64,
        p95_ms: waits[waits.len() * 95 / 100],
    }
}

fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut cell = |name: String, rbs, mcs, ues, calls| cells.push(Cell { name, rbs, mcs, ues, calls });
    for rbs in [6, 25, 100] {
        for mcs in [4, 12, 20, 28] {
            cell(format!("1 bulk, {rbs} RBs, MCS {mcs}"), rbs, (mcs, None), vec![Traffic::Bulk(1500)], 1);
        }
    }
    for period in [5, 20, 100, 500] {
        let ues = vec![Traffic::Bulk(1500)];
        cell(format!("1 bulk, MCS 6/22 by {period} ms"), 25, (22, Some((6, period))), ues, 1);
    }
    for (others, bytes, every) in
        [(1, 200, 20_000), (5, 128, 4000), (5, 200, 20_000), (19, 128, 8000), (3, 1200, 3000)]
    {
        let mut ues = vec![Traffic::Bulk(1500)];
        ues.extend((0..others).map(|_| Traffic::Steady(bytes, every)));
        cell(format!("1 bulk, {others} of {bytes} B every {every} µs"), 25, (28, None), ues, 1);
    }
    for (ues, bytes, rbs) in [
        (2, 1500, 25),
        (5, 1500, 25),
        (8, 200, 25),
        (8, 1500, 25),
        (20, 1500, 25),
        (5, 200, 6),
        (8, 200, 100),
        (20, 400, 100),
    ] {
        cell(format!("{ues} of {bytes} B, {rbs} RBs"), rbs, (28, None), vec![Traffic::Bulk(bytes); ues], ues);
    }
    cell("5 bulk, MCS 6/22 by 20 ms".into(), 25, (22, Some((6, 20))), vec![Traffic::Bulk(1500); 5], 5);
    cells
}

#[test]
fn just_in_time_with_several_ues() {
    let mut worse = Vec::new();
    for cell in cells() {
        let vanilla = go(&cell, Algorithm::Vanilla.into(), 3000);
        let e5g = go(&cell, Algorithm::E5gBdp.into(), 3000);
        let jit = go(&cell, QueueOf(crate::queue::QueueConfig::Jit(JitParams::default())), 3000);
        let share = |o: &Outcome| o.useful_bytes as f64 / vanilla.useful_bytes as f64 * 100.0;
        let line = format!(
            "{:>32}: vanilla {:6.2} ms; e5g {:6.2} % {:6.3} {:7.3} ms; jit {:6.2} % {:6.3} {:7.3} ms",
            cell.name,
            vanilla.mean_ms,
            share(&e5g),
            e5g.mean_ms,
            e5g.p95_ms,
            share(&jit),
            jit.mean_ms,
            jit.p95_ms
        );
        println!("{line}");
        // Where e5G-BDP wastes several percent on padding, it may have the lower delay: docs/ran-limiter.md.
        let sooner = jit.mean_ms <= e5g.mean_ms || share(&e5g) < 95.0;
        if share(&jit) < 99.0_f64.min(share(&e5g)) || !sooner {
            worse.push(line);
        }
    }
    assert!(worse.is_empty(), "{} cells:\n{}", worse.len(), worse.join("\n"));
}
