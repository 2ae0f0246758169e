//! Limiters designed for LTE's 1 ms TTI, on every numerology and on TDD patterns.

use super::*;

/// Numerologies and TDD patterns; `None` is FDD.
const CARRIERS: [(u8, Option<&str>); 20] = [
    (0, None),
    (0, Some("DDDSU")),
    (0, Some("DSUUU")),
    (0, Some("DDDDDDDSUU")),
    (0, Some("DSUUUUUUUU")),
    (1, None),
    (1, Some("DDDSU")),
    (1, Some("DSUU")),
    (1, Some("DDDDDDDSUU")),
    (1, Some("DDSUUUUUUU")),
    (2, None),
    (2, Some("DDDSU")),
    (2, Some("DSUUUUUU")),
    (3, None),
    (3, Some("DDDSU")),
    (3, Some("DDDDDDSUUUUUUUUU")),
    (4, None),
    (4, Some("DDDDDDSU")),
    (4, Some("DDDSUUUUUUUUUUUU")),
    (4, Some("DSUUUUUUUU")),
];

/// Bytes without padding, and the mean delay of voice in ms, beside a bulk flow that never runs dry.
fn go(algorithm: Algorithm, radio: NrConfig, phase_us: u32, mcs: u8) -> (u64, f64) {
    let mut config = config(&[100.0], &[0], algorithm);
    config.radio = RadioConfig::Nr(radio);
    config.telemetry.packets = PacketEvents::All;
    config.ues[0].sdap.poll_phase_us = phase_us;
    config.ues[0].channel = ChannelConfig::mcs(mcs);
    let mut run = Run::new(&config);
    // More than the carrier takes in the longest gap.
    let carrier = u64::from(*run.gnb.amc().full().row(mcs).last().unwrap());
    let per_ms = carrier * 1_000_000 / u64::try_from(run.gnb.amc().slot().as_nanos()).unwrap();
    let backlog = 20_000 + 6 * per_ms;
    run.load(&[0], backlog, &[0], ms(160));
    let before = run.gnb.link_stats(Direction::Downlink, ms(160));
    run.load(&[0], backlog, &[0], ms(320));
    let stats = run.gnb.link_stats(Direction::Downlink, ms(320));
    let useful = |s: &LinkStats| s.block_bytes - s.padding_bytes;
    (useful(&stats) - useful(&before), waits(&run.times(0, 1)).1)
}

#[test]
fn limiters_fill_every_numerology_and_tdd_pattern() {
    let mut worst = Vec::new();
    for (numerology, pattern) in CARRIERS {
        let tdd = pattern.map(|pattern| TddConfig {
            pattern: pattern.into(),
            downlink_symbols: 10,
            uplink_symbols: 2,
        });
        for (rbs, layers, mcs, phase) in [(51, 1, 20, 0), (25, 1, 4, 130), (273, 2, 27, 70)] {
            // Short slots mean many packets: two numerologies suffice here.
            if mcs == 27 && numerology > 1 {
                continue;
            }
            let radio = NrConfig { numerology, rbs, layers, tdd: tdd.clone(), ..NrConfig::default() };
            let (most, bloat) = go(Algorithm::Vanilla, radio.clone(), phase, mcs);
            for algorithm in
                [Algorithm::DynRlc, Algorithm::Drql, Algorithm::Bdp, Algorithm::E5gBdp, Algorithm::Jit]
            {
                let (used, wait) = go(algorithm, radio.clone(), phase, mcs);
                let share = used as f64 / most as f64;
                let case = format!("{algorithm}, µ {numerology}, {pattern:?}, {rbs} RBs, MCS {mcs}");
                println!("{case}: {:.2} % of vanilla's, {wait:.2} ms of {bloat:.2}", share * 100.0);
                // DynRLC counts SDUs: where one SDU exceeds a pull, it wastes as much as on LTE.
                let least = if algorithm == Algorithm::DynRlc && mcs == 4 { 0.8 } else { 0.97 };
                if share < least || wait > bloat / 2.0 {
                    worst.push(format!("{case}: {:.2} %, {wait:.2} ms of {bloat:.2}", share * 100.0));
                }
            }
        }
    }
    assert!(worst.is_empty(), "{} cases:\n{}", worst.len(), worst.join("\n"));
}
