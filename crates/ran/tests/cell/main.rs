//! Limiters compared on one bearer: voice every 20 ms beside a bulk flow that never runs dry, the real SDAP, a
//! FIFO in RLC with the headers of TS 38.322, and a MAC that pulls once per TTI.
//!
//! ```text
//!   voice ─▶ SDAP ─ limiter ─▶ RLC ─▶ tick: TBS of the MCS, less HARQ retransmissions
//!   bulk  ─▶  │                         │
//!             └──────── report ◀────────┘
//! ```
//!
//! `cargo test -p anabranch-ran --test cell -- --nocapture` prints the figures of docs/ran-limiter.md.

mod chain;

use anabranch_ran::amc::lte;
use anabranch_ran::queue::jit::JitParams;
use anabranch_ran::queue::{Algorithm, QueueConfig};
use chain::{Cell, Outcome, Run};

/// Bytes per TTI on 25 RBs.
fn tbs_bytes(mcs: i32) -> u32 {
    lte::tbs_bits(mcs.clamp(0, 28) as u8, 25) / 8
}

/// One MCS per second: constant and best, slowly varying, and abruptly changing.
fn traces() -> [(&'static str, Vec<u32>); 3] {
    let (mut walk, mut leap, mut draw) = (12i32, Vec::new(), 1u64);
    let mut next = |n: u64| {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (draw >> 33) % n
    };
    let wander = (0..30).map(|_| {
        walk = (walk + next(5) as i32 - 2).clamp(6, 18);
        tbs_bytes(walk)
    });
    let wander = wander.collect();
    for second in 0..30 {
        leap.push(tbs_bytes(if second % 3 == 0 { 7 + next(22) } else { 8 + next(13) } as i32));
    }
    [("static", vec![tbs_bytes(28); 30]), ("wandering", wander), ("leaping", leap)]
}

fn run(config: QueueConfig, grants: &[u32], bler: f64, phase: u32, talkers: usize) -> Outcome {
    let cell = Cell { grants: grants.to_vec(), bler };
    Run { config, cell, poll_phase_us: phase, late_us: 0, voice_flows: talkers, seed: 1 }.go()
}

#[test]
fn pacers_rank_as_in_the_paper() {
    for (name, grants) in traces() {
        let go = |a: Algorithm| {
            let outcome = run(a.into(), &grants, 0.0, 100, 1);
            println!("{name:>9} {:>8}: {outcome}", a.name());
            outcome
        };
        let [dynrlc, drql, e5g] = [Algorithm::DynRlc, Algorithm::Drql, Algorithm::E5gBdp].map(go);
        go(Algorithm::Bdp);
        assert!(e5g.mean_ms() < 0.75 * dynrlc.mean_ms() && e5g.mean_ms() < 0.75 * drql.mean_ms(), "{name}");
        assert!(e5g.quantile_ms(0.95) < dynrlc.quantile_ms(0.95), "{name}");
        assert!(e5g.used > 0.98 && drql.used > 0.99, "{name}");
        assert!(name == "static" || dynrlc.used < 0.97, "{name}: DynRLC counts SDUs and wastes RBs");
    }
}

/// The claim of docs/ran-limiter.md.
#[test]
fn just_in_time_is_nowhere_worse_than_e5g_bdp_and_better_where_the_channel_moves() {
    for (name, grants) in traces() {
        for (bler, phase, talkers) in
            [(0.0, 0, 1), (0.0, 100, 1), (0.0, 150, 8), (0.1, 0, 8), (0.1, 50, 1), (0.1, 100, 1)]
        {
            let e5g = run(Algorithm::E5gBdp.into(), &grants, bler, phase, talkers);
            let jit = run(Algorithm::Jit.into(), &grants, bler, phase, talkers);
            println!(
                "{name:>9}, BLER {bler}, phase {phase:>3} µs, {talkers} talkers\n  e5g_bdp {e5g}\n  jit     {jit}"
            );
            let case = format!("{name}, BLER {bler}, phase {phase}, {talkers} talkers");
            assert!(jit.mean_ms() < 0.95 * e5g.mean_ms(), "{case}: mean");
            assert!(jit.quantile_ms(0.95) <= e5g.quantile_ms(0.95), "{case}: p95");
            assert!(jit.within(1.0) > e5g.within(1.0), "{case}: within 1 ms");
            assert!(jit.used > e5g.used - 0.0005, "{case}: RBs");
            assert!(jit.used > 0.998, "{case}: RBs");
        }
    }
}

#[test]
fn just_in_time_does_not_need_an_exact_clock() {
    for (name, grants) in traces() {
        for late_us in [50, 150, 300] {
            let go = |config: QueueConfig| {
                let cell = Cell { grants: grants.clone(), bler: 0.1 };
                Run { config, cell, poll_phase_us: 0, late_us, voice_flows: 1, seed: 1 }.go()
            };
            let (e5g, jit) = (go(Algorithm::E5gBdp.into()), go(Algorithm::Jit.into()));
            println!("{name:>9}, up to {late_us} µs late\n  e5g_bdp {e5g}\n  jit     {jit}");
            assert!(jit.used > 0.995, "{name}, {late_us} µs late: {jit}");
            assert!(jit.mean_ms() < e5g.mean_ms(), "{name}, {late_us} µs late");
        }
    }
}

/// Delay can be traded for resource blocks.
#[test]
fn spare_bytes_move_along_the_frontier() {
    let (_, grants) = &traces()[1];
    let mut last: Option<Outcome> = None;
    for spare_bytes in [0, 40, 160, 640] {
        let config = QueueConfig::Jit(JitParams { spare_bytes, ..JitParams::default() });
        let outcome = run(config, grants, 0.0, 0, 8);
        println!("spare {spare_bytes:>3} B: {outcome}");
        if let Some(last) = last {
            assert!(outcome.mean_ms() < last.mean_ms() && outcome.used < last.used + 1e-9, "{spare_bytes}");
        }
        last = Some(outcome);
    }
}
