//! Limiters of UEs whose MCS alternates between two values.

use super::*;

fn carriers() -> [RadioConfig; 4] {
    [lte_carrier(25), lte_carrier(100), nr_carrier(51, 1), nr_carrier(106, 3)]
}

/// A cell of `ues` UEs, and the bytes that its carrier takes in a millisecond at `mcs`.
fn cell(queue: Algorithm, radio: &RadioConfig, ues: usize, mcs: u8) -> (Run, u64) {
    let mut config = config(&[100.0], &vec![0; ues], queue);
    config.radio = radio.clone();
    config.telemetry.packets = PacketEvents::All;
    config.ues.iter_mut().for_each(|ue| ue.sdap.poll_us = 203);
    let run = Run::new(&config);
    let per_ms = run.bytes_per_ms(mcs);
    (run, per_ms)
}

fn set(run: &mut Run, ues: u32, mcs: u8, now: u64) {
    for ue in 0..ues {
        let channel = Channel::constant(Quality::Mcs(mcs));
        let (ue, direction) = (format!("ue{ue}"), Direction::Downlink);
        run.gnb.apply(GnbCommand::Channel { ue, direction, channel }, ms(now)).unwrap();
    }
}

/// Bytes without padding of bulk flows in packets of `size`.
fn useful(queue: Algorithm, radio: &RadioConfig, ues: u32, size: usize, mcs: [u8; 2], turn_ms: u64) -> u64 {
    let (mut run, per_ms) = cell(queue, radio, ues as usize, mcs[1]);
    let backlog = 6000 + 4 * per_ms / u64::from(ues.min(4));
    let all: Vec<u32> = (0..ues).collect();
    let useful = |run: &mut Run| {
        let stats = run.gnb.link_stats(Direction::Downlink, run.out.now);
        stats.block_bytes - stats.padding_bytes
    };
    let (mut now, mut before) = (0, 0);
    for turn in 0..(400 / turn_ms).max(6) {
        if turn == 2 {
            before = useful(&mut run);
        }
        set(&mut run, ues, mcs[turn as usize % 2], now);
        now += turn_ms;
        run.load_of(size, &all, backlog, &[0], ms(now));
    }
    useful(&mut run) - before
}

#[test]
fn the_bandwidth_leaps_with_the_mcs() {
    let mut wrong = Vec::new();
    for radio in carriers() {
        for (ues, mcs) in [(1, [4, 27]), (1, [12, 24]), (5, [6, 22])] {
            for (size, turn_ms) in [(1500, 3), (1500, 7), (300, 20), (1500, 50)] {
                let [most, e5g, jit] = [Algorithm::Vanilla, Algorithm::E5gBdp, Algorithm::Jit]
                    .map(|queue| useful(queue, &radio, ues, size, mcs, turn_ms) as f64);
                let case = format!(
                    "{:.3}, jit {:.3}: {ues} UEs, MCS {mcs:?}, {size} B, {turn_ms} ms, {radio:?}",
                    e5g / most,
                    jit / most
                );
                println!("{case}");
                if e5g < 0.92 * jit {
                    wrong.push(case);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}

/// Mean wait in ms of packets of `size` bytes that come at `part` of the lower MCS's rate, beside a call.
fn wait_ms(queue: Algorithm, radio: &RadioConfig, part: f64, size: usize, mcs: [u8; 2], turn_ms: u64) -> f64 {
    let (mut run, per_ms) = cell(queue, radio, 1, mcs[0]);
    let every_ns = (size as f64 / (per_ms as f64 * part) * 1e6) as u64;
    let (mut now, mut at_ns, mut calls) = (0, 0, Calls::new(1));
    for turn in 0..1000 / turn_ms {
        set(&mut run, 1, mcs[turn as usize % 2], now);
        now += turn_ms;
        let mut due: Vec<Due> = Vec::new();
        while at_ns < now * 1_000_000 {
            due.push((at_ns / 1000, 0, 5000, size));
            at_ns += every_ns;
        }
        calls.take(now * 1000, &mut due);
        due.sort_unstable();
        for (at, ue, port, bytes) in due {
            run.offer(Gnb::N3, down(ue, port, bytes, 0), Instant::from_micros(at));
        }
        run.until(ms(now));
    }
    waits(&run.times(0, 9)).1
}

#[test]
fn a_fall_of_the_mcs_holds_up_no_flow_that_still_fits() {
    let mut wrong = Vec::new();
    for radio in carriers() {
        for (part, size, turn_ms) in [(0.3, 300, 7), (0.8, 1500, 7), (0.8, 300, 20), (0.95, 1000, 20)] {
            let [most, e5g] = [Algorithm::Vanilla, Algorithm::E5gBdp]
                .map(|queue| wait_ms(queue, &radio, part, size, [4, 27], turn_ms));
            let case = format!("{e5g:.3} ms, vanilla {most:.3}: {part} of {radio:?}, {size} B, {turn_ms} ms");
            println!("{case}");
            if e5g > most + 0.5 {
                wrong.push(case);
            }
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}
