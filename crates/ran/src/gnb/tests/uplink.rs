//! Limiters in the uplink: a grant takes packets that wait above RLC, and the buffer status report counts them.

use super::*;
use proptest::prelude::*;

const LIMITERS: [Algorithm; 5] =
    [Algorithm::DynRlc, Algorithm::Drql, Algorithm::Bdp, Algorithm::E5gBdp, Algorithm::Jit];

/// An IP packet of `bytes` bytes from a UE.
fn up(ue: u32, port: u16, bytes: usize) -> Vec<u8> {
    udp_datagram(SocketAddr::new(address(ue), port), "198.51.100.1:9".parse().unwrap(), &vec![0; bytes - 28])
        .unwrap()
}

fn lte(rbs: u16) -> RadioConfig {
    RadioConfig::Lte(LteConfig { rbs, rbg_rbs: None })
}

fn nr(numerology: u8, pattern: Option<&str>) -> RadioConfig {
    let tdd =
        pattern.map(|pattern| TddConfig { pattern: pattern.into(), downlink_symbols: 10, uplink_symbols: 2 });
    RadioConfig::Nr(NrConfig { numerology, rbs: 10, tdd, ..NrConfig::default() })
}

/// Traffic of a UE besides its call.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Traffic {
    /// Packets of 1500 bytes, always more than can leave.
    Bulk,
    /// Only calls.
    Calls,
    /// By UE in turn: bulk of 1500 bytes, endless packets of 172 bytes, one packet of 1200 bytes every 4 ms.
    Mixed,
}

/// Bytes without padding, and the mean delay of the calls in ms.
fn go(radio: &RadioConfig, delay: u8, ues: u32, traffic: Traffic, algorithm: Algorithm) -> (u64, f64) {
    let mut config = config(&[100.0], &vec![0; ues as usize], algorithm);
    config.radio = radio.clone();
    config.mac.grant_delay_slots = Some(delay);
    config.telemetry.packets = PacketEvents::All;
    for ue in &mut config.ues {
        ue.channel = ChannelConfig::mcs(20);
        ue.sdap.poll_us = 203;
    }
    let mut run = Run::new(&config);
    let amc = run.gnb.amc();
    let (carrier, slot) = (u64::from(*amc.full().row(20).last().unwrap()), amc.slot().as_nanos() as u64);
    // More than the carrier takes between a report and the resulting grant, plus the longest gap.
    let backlog = 6000 + carrier * (u64::from(delay) + 2 + 6_000_000 / slot);
    let end_ms = 130;
    let mut calls: Vec<u64> = (0..u64::from(ues)).map(|ue| 1370 + 5119 * ue % 20_000).collect();
    let mut before = LinkStats::default();
    for ms_now in 0..end_ms {
        if ms_now == 30 {
            before = run.gnb.link_stats(Direction::Uplink, ms(30));
        }
        let mut due: Vec<(u64, u32, u16, usize)> = Vec::new();
        for ue in 0..ues {
            let bulk = match (traffic, ue % 3) {
                (Traffic::Calls, _) => None,
                (Traffic::Mixed, 1) => Some(172),
                (Traffic::Mixed, 2) => {
                    due.extend((ms_now % 4 == 0).then_some((ms_now * 1000 + 300, ue, 5000, 1200)));
                    None
                }
                _ => Some(1500),
            };
            if let Some(bytes) = bulk {
                let sdap: u64 = run.gnb.flow_stats(ue, Direction::Uplink).map(|(_, f)| f.waiting_bytes).sum();
                let stats = run.gnb.bearer_stats(ue, Direction::Uplink, ms(ms_now));
                let rlc: u64 = stats.map(|b| b.buffer_bytes).sum();
                let missing = backlog.saturating_sub(sdap + rlc) / bytes as u64;
                due.extend((0..missing).map(|_| (ms_now * 1000, ue, 5000, bytes)));
            }
            let at = &mut calls[ue as usize];
            while *at < ms_now * 1000 + 1000 {
                due.push((*at, ue, VOICE, 200));
                *at += 20_377;
            }
        }
        due.sort_unstable();
        for (at, ue, port, bytes) in due {
            run.offer(Gnb::ue(ue as u16), up(ue, port, bytes), Instant::from_micros(at));
        }
        run.until(ms(ms_now + 1));
    }
    let stats = run.gnb.link_stats(Direction::Uplink, ms(end_ms));
    let useful = |s: &LinkStats| s.block_bytes - s.padding_bytes;
    // Packets that waited longest are included in the mean.
    run.until(ms(end_ms + 4000));
    let times: Vec<PacketTimes> = (0..ues).flat_map(|ue| run.times(ue, 1)).collect();
    (useful(&stats) - useful(&before), waits(&times).1)
}

#[test]
fn a_limiter_costs_the_uplink_nothing() {
    let mut cases = Vec::new();
    for delay in 0..=10 {
        cases.push((lte(25), delay, 1));
    }
    for (radio, delay) in [
        (lte(6), 4),
        (lte(25), 4),
        (lte(100), 5),
        (nr(0, None), 3),
        (nr(1, None), 10),
        (nr(2, None), 4),
        (nr(3, None), 8),
        (nr(4, None), 4),
        (nr(0, Some("DDDSU")), 4),
        (nr(0, Some("DSUUUUUUUU")), 2),
        (nr(1, Some("DDDSU")), 4),
        (nr(1, Some("DDDDDDDSUU")), 10),
        (nr(2, Some("DSUUUUUU")), 5),
        (nr(3, Some("DDDSU")), 4),
        (nr(4, Some("DDDDDDSU")), 6),
    ] {
        cases.extend([1, 2, 5, 8].map(|ues| (radio.clone(), delay, ues)));
    }
    let mut worse = Vec::new();
    for (radio, delay, ues) in cases {
        for traffic in [Traffic::Bulk, Traffic::Calls, Traffic::Mixed] {
            // One UE of mixed traffic equals one of bulk, and calls do not disturb each other.
            if matches!((traffic, ues), (Traffic::Mixed, 1) | (Traffic::Calls, 2 | 5)) {
                continue;
            }
            let (most, bloat) = go(&radio, delay, ues, traffic, Algorithm::Vanilla);
            for algorithm in LIMITERS {
                let (used, wait) = go(&radio, delay, ues, traffic, algorithm);
                let share = used as f64 / most as f64;
                let case = format!("{algorithm}, {ues} UEs, {traffic:?}, delay {delay}, {radio:?}");
                let line = format!("{:.2} %, {wait:.3} ms of {bloat:.3}: {case}", share * 100.0);
                println!("{line}");
                if share < 0.99 || wait > bloat {
                    worse.push(line);
                }
            }
        }
    }
    assert!(worse.is_empty(), "{} cases:\n{}", worse.len(), worse.join("\n"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Packets of one flow leave in exactly the slots in which they leave without a limiter.
    #[test]
    fn no_limiter_delays_the_uplink(
        packets in prop::collection::vec((0u64..60_000, 0u32..3, 40usize..1501), 1..200),
        delay in 0u8..12, numerology in 0u8..=4, rbs in prop::sample::select(vec![2u16, 6, 25, 100]),
        pattern in prop::sample::select(vec![None, Some("DDDSU"), Some("DSUUU")]), mcs in 2u8..28,
        scheduler in prop::sample::select(vec![
            InterAlgorithm::Drr, InterAlgorithm::EqpExact, InterAlgorithm::GpsPacking, InterAlgorithm::Fixed,
        ]),
        acknowledged in any::<bool>(), lost in any::<bool>(),
    ) {
        let go = |algorithm| {
            let mut config = config(&[60.0, 40.0], &[0, 1, 1], algorithm);
            config.radio = match nr(numerology, pattern.filter(|_| numerology < 2)) {
                RadioConfig::Nr(nr) => RadioConfig::Nr(NrConfig { rbs, ..nr }),
                lte => lte,
            };
            config.mac.grant_delay_slots = Some(delay);
            config.scheduler = scheduler.into();
            config.telemetry.packets = PacketEvents::All;
            config.harq = HarqConfig { bler: if lost { 0.2 } else { 0.0 }, ..config.harq };
            for ue in &mut config.ues {
                ue.channel = ChannelConfig::mcs(mcs);
                if acknowledged {
                    ue.bearer.rlc = RlcConfig::Am(AmConfig::default());
                }
            }
            let mut run = Run::new(&config);
            let mut packets = packets.clone();
            packets.sort_unstable();
            for (at, ue, bytes) in &packets {
                run.offer(Gnb::ue(*ue as u16), up(*ue, 5000, *bytes), Instant::from_micros(*at));
            }
            run.until(ms(20_000));
            let times = (0..3).flat_map(|ue| run.times(ue, 9));
            times.map(|t| (t.ue, t.arrived, t.last_pull)).collect::<Vec<_>>()
        };
        let plain = go(Algorithm::Vanilla);
        for algorithm in LIMITERS {
            prop_assert_eq!(&go(algorithm), &plain, "{}", algorithm);
        }
    }
}
