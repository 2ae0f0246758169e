//! Randomly generated cells with limiters, schedulers, slices, carriers, traffic, RLC modes, HARQ and outages. Every packet
//! is accounted for, everything leaves in the end, slices get their share, and `jit` costs neither RBs nor time.

use super::*;
use crate::amc::Amc;
use crate::rlc::UmConfig;
use crate::sched::InterConfig;
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

struct Draw(ChaCha12Rng);

impl Draw {
    fn of<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.0.next_u32() as usize % from.len()].clone()
    }

    /// A number from 0 to `below` − 1.
    fn n(&mut self, below: u32) -> u32 {
        self.0.next_u32() % below
    }
}

/// Traffic of a UE besides its call.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Traffic {
    /// Packets of this size, always more than can leave.
    Bulk(usize),
    /// One packet of this size per interval in microseconds.
    Steady(usize, u64),
    /// Bursts: number of packets, their size in bytes, and the interval in milliseconds.
    Burst(u32, usize, u64),
    Nothing,
}

struct Cell {
    name: String,
    config: GnbConfig,
    direction: Direction,
    traffic: Vec<Traffic>,
    /// MCS of each UE; `turns` alternates it with another MCS (`None`: an outage) every so many milliseconds.
    mcs: Vec<u8>,
    turns: Option<(Option<u8>, u64)>,
}

const LOAD_MS: u64 = 400;

fn draw(seed: u64) -> Cell {
    let mut d = Draw(ChaCha12Rng::seed_from_u64(seed));
    let slices = d.of(&[1, 1, 2, 2, 3, 4, 8, 16]);
    let ues = d.of(&[1, 1, 2, 3, 5, 8, 16, 64]);
    let mut weights: Vec<f64> = (0..slices).map(|_| f64::from(1 + d.n(20) * d.n(3))).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|w| *w = (*w / sum * 100.0).floor().max(1.0));
    let slice_of: Vec<usize> = (0..ues).map(|_| d.n(slices as u32) as usize).collect();
    let mut config = config(&weights, &slice_of, Algorithm::Vanilla);
    config.scheduler = d.of(&InterAlgorithm::ALL).into();
    config.radio = match d.n(3) {
        0 => RadioConfig::Lte(LteConfig { rbs: d.of(&[6, 25, 50, 100]), rbg_rbs: None }),
        tdd => RadioConfig::Nr(NrConfig {
            rbs: d.of(&[24, 51, 106, 273]),
            numerology: d.n(5) as u8,
            tdd: (tdd == 1 && d.n(2) == 0).then(|| TddConfig {
                pattern: d.of(&["DDDDDDDSUU", "DSUUUUUUUU"]).into(),
                downlink_symbols: 10,
                uplink_symbols: 2,
            }),
            ..NrConfig::default()
        }),
    };
    let (bler, bler_retx) = d.of(&[(0.0, 0.01), (0.0, 0.01), (0.1, 0.0), (0.3, 0.3), (0.1, 0.5)]);
    config.harq = HarqConfig { bler, bler_retx, max_transmissions: d.of(&[2, 4]), ..HarqConfig::default() };
    config.telemetry.packets = PacketEvents::All;
    config.mac.grant_delay_slots = Some(d.of(&[0, 4, 10]));
    let low = d.n(3) == 0;
    let rlc = d.n(4);
    let mcs: Vec<u8> = (0..ues).map(|_| if low { d.n(8) } else { 8 + d.n(21) } as u8).collect();
    for (ue, mcs) in config.ues.iter_mut().zip(&mcs) {
        ue.channel = ChannelConfig::mcs(*mcs);
        ue.sdap.poll_us = d.of(&[200, 203, 997]);
        ue.bearer.pdcp_sn_bits = d.of(&[12, 18]);
        ue.bearer.rlc = match rlc {
            0 | 1 => RlcConfig::Um(UmConfig {
                sn_bits: (if rlc == 0 { 12 } else { 6 }).try_into().unwrap(),
                ..UmConfig::default()
            }),
            _ => RlcConfig::Am(AmConfig {
                sn_bits: d.of(&[12_u8, 18]).try_into().unwrap(),
                ..AmConfig::default()
            }),
        };
    }
    let kind = d.n(6);
    let size = d.of(&[120, 400, 1500]);
    let traffic: Vec<Traffic> = (0..ues)
        .map(|_| match kind {
            0..=2 => Traffic::Bulk(size),
            3 => d.of(&[Traffic::Bulk(1500), Traffic::Steady(172, 2000), Traffic::Burst(30, 1400, 40)]),
            4 => d.of(&[Traffic::Burst(60, 1400, 100), Traffic::Nothing]),
            _ => d.of(&[Traffic::Bulk(1500), Traffic::Bulk(100), Traffic::Nothing]),
        })
        .collect();
    let turns = match d.n(5) {
        0 => Some((Some(d.n(10) as u8), d.of(&[5, 20, 100]))),
        1 => Some((None, d.of(&[20, 60]))),
        _ => None,
    };
    let direction = d.of(&[Direction::Downlink, Direction::Downlink, Direction::Uplink]);
    let name = format!(
        "{seed}: {direction:?} {} {:?} shares {weights:?} ues {slice_of:?} {:?} harq {bler} {bler_retx} rlc {rlc} {:?} turns {turns:?} mcs {}",
        config.scheduler.algorithm(),
        config.radio,
        traffic.iter().take(4).collect::<Vec<_>>(),
        config.mac.grant_delay_slots,
        if low { "low" } else { "high" }
    );
    Cell { name, config, direction, traffic, mcs, turns }
}

#[derive(Debug, Default)]
struct Outcome {
    /// RBs of new data, without the part that was padding.
    useful: u64,
    /// RBs of new data of each UE.
    rbs: Vec<u64>,
    all_rbs: u64,
    unused: u64,
    mean_ms: f64,
    calls: usize,
    wrong: Vec<String>,
}

fn go(cell: &Cell, queue: Algorithm) -> Outcome {
    let mut config = cell.config.clone();
    for ue in &mut config.ues {
        ue.bearer.queue = queue.into();
    }
    let mut run = Run::new(&config);
    let stuck = run.gnb.unservable_queues().len();
    let (way, ues) = (cell.direction, config.ues.len() as u32);
    let carrier = u64::from(*run.gnb.amc().full().row(28).last().unwrap());
    let slots_per_ms = (1_000_000 / run.gnb.amc().slot().as_nanos() as u64).max(1);
    let backlog = 6000 + carrier * (slots_per_ms * 2 + 14);
    let mut next: Vec<u64> = (0..u64::from(ues)).map(|ue| 1000 + 2347 * ue % 20_000).collect();
    let mut calls = Calls::new(ues as usize);
    let (mut number, mut offered) = (0, 0_u64);
    let mut before = (LinkStats::default(), vec![0; ues as usize]);
    let set = |run: &mut Run, quality: &dyn Fn(usize) -> Quality, at| {
        for ue in 0..ues as usize {
            let channel = Channel::constant(quality(ue));
            let ue = format!("ue{ue}");
            for direction in Direction::ALL {
                let (ue, channel) = (ue.clone(), channel.clone());
                run.gnb.apply(GnbCommand::Channel { ue, direction, channel }, at).unwrap();
            }
        }
    };
    for now in 0..LOAD_MS {
        if let Some((other, period)) = cell.turns
            && now % period == 0
        {
            let quality = |ue: usize| match (now / period) % 2 == 0 {
                true => Quality::Mcs(cell.mcs[ue]),
                false => other.map_or(Quality::Outage, Quality::Mcs),
            };
            set(&mut run, &quality, ms(now));
        }
        if now == LOAD_MS / 4 {
            before.0 = run.gnb.link_stats(way, ms(now));
            before.1 = (0..ues).map(|ue| run.gnb.ue_link_stats(ue, way).used_rbs).collect();
        }
        let (now_us, end_us) = (now * 1000, now * 1000 + 1000);
        let mut due: Vec<Due> = Vec::new();
        for (ue, traffic) in (0..ues).zip(&cell.traffic) {
            let waiting = |run: &mut Run| {
                let sdap: u64 = run.gnb.flow_stats(ue, way).map(|(_, f)| f.waiting_bytes).sum();
                sdap + run.gnb.bearer_stats(ue, way, ms(now)).map(|b| b.buffer_bytes).sum::<u64>()
            };
            match *traffic {
                Traffic::Bulk(bytes) => {
                    let missing = backlog.min(900_000).saturating_sub(waiting(&mut run)) / bytes as u64;
                    due.extend((0..missing).map(|_| (now_us, ue, 5000, bytes)));
                }
                Traffic::Steady(bytes, every) => {
                    while next[ue as usize] < end_us {
                        due.push((next[ue as usize], ue, 5000, bytes));
                        next[ue as usize] += every;
                    }
                }
                Traffic::Burst(n, bytes, every) if (now + u64::from(ue) * 7) % every == 0 => {
                    due.extend((0..n).map(|_| (now_us + 300, ue, 5000, bytes)));
                }
                _ => {}
            }
        }
        calls.take(end_us, &mut due);
        due.sort_unstable();
        for (at, ue, port, bytes) in due {
            number += 1;
            offered += 1;
            let packet = down(ue, port, bytes, number);
            let (to, packet) = match way {
                Direction::Downlink => (Gnb::N3, packet),
                Direction::Uplink => {
                    let from = SocketAddr::new(address(ue), port);
                    (
                        Gnb::ue(ue as u16),
                        udp_datagram(from, "198.51.100.1:9".parse().unwrap(), &packet[28..]).unwrap(),
                    )
                }
            };
            run.offer(to, packet, Instant::from_micros(at));
        }
        run.until(Instant::from_micros(end_us));
    }
    let end = ms(LOAD_MS);
    let stats = run.gnb.link_stats(way, end);
    let blocks = stats.block_bytes - before.0.block_bytes;
    let filled = blocks - (stats.padding_bytes - before.0.padding_bytes);
    let used = stats.used_rbs - before.0.used_rbs;
    let useful_rbs = (used as f64 * filled as f64 / blocks.max(1) as f64) as u64;
    let mut o = Outcome {
        useful: useful_rbs,
        all_rbs: stats.rbs - before.0.rbs - (stats.retx_rbs - before.0.retx_rbs),
        unused: stats.unused_rbs - before.0.unused_rbs,
        rbs: (0..ues).map(|ue| run.gnb.ue_link_stats(ue, way).used_rbs - before.1[ue as usize]).collect(),
        ..Outcome::default()
    };
    // With a good channel and another scheduler, everything leaves.
    let at = ms(LOAD_MS);
    set(&mut run, &|_| Quality::Mcs(20), at);
    let scheduler: InterConfig = InterAlgorithm::GpsPacking.into();
    for direction in Direction::ALL {
        run.gnb.apply(GnbCommand::Scheduler { direction, scheduler: scheduler.clone() }, at).unwrap();
    }
    run.until(ms(LOAD_MS + 60_000));
    let at = run.out.now;
    let link = run.gnb.link_stats(way, at);
    let (mut dropped, mut missing, mut waiting) = (0, 0, 0);
    for ue in 0..ues {
        for (_, f) in run.gnb.flow_stats(ue, way) {
            dropped += f.queue.full_drops + f.queue.aqm_drops;
            waiting += f.waiting_sdus;
        }
        for b in run.gnb.bearer_stats(ue, way, at) {
            dropped += b.buffer.full_drops + b.buffer.aqm_drops;
            missing += b.order.missing_sdus;
            waiting += u64::from(b.buffer_bytes > 0);
        }
    }
    let gone = offered as i64 - (link.delivered_packets + dropped + missing + waiting) as i64;
    let am = matches!(config.ues[0].bearer.rlc, RlcConfig::Am(_));
    if waiting > 0 {
        o.wrong.push(format!("{waiting} still wait, stuck {stuck}"));
    }
    if gone < 0 || gone > 0 && (am || link.lost_blocks == 0) || gone > link.lost_blocks as i64 * 40 {
        o.wrong.push(format!(
            "{offered} offered, {} delivered, {dropped} dropped, {missing} missing, {waiting} wait: {gone} gone, {} blocks lost",
            link.delivered_packets, link.lost_blocks
        ));
    }
    let times: Vec<PacketTimes> =
        (0..ues).flat_map(|ue| run.times(ue, 1)).filter(|t| t.arrived > ms(LOAD_MS / 4)).collect();
    o.calls = times.len();
    o.mean_ms = waits(&times).1;
    o
}

/// Slices whose UEs always have data and that got more than 10 % less than the smaller of their share and their result
/// without a limiter.
fn short(cell: &Cell, amc: &Amc, got: &Outcome, vanilla: &Outcome) -> Vec<String> {
    let mut short = Vec::new();
    for (slice, config) in cell.config.slices.iter().enumerate() {
        let of = format!("s{slice}");
        let members: Vec<usize> =
            (0..cell.traffic.len()).filter(|ue| cell.config.ues[*ue].slice == of).collect();
        let bulk = |ue: &usize| matches!(cell.traffic[*ue], Traffic::Bulk(_));
        if members.is_empty() || !members.iter().all(bulk) {
            continue;
        }
        let of_all = |o: &Outcome| members.iter().map(|ue| o.rbs[*ue]).sum::<u64>() as f64;
        let mine = config.share_percent / 100.0 * f64::from(amc.rbs());
        // A fixed partition rounds down to groups.
        let lost = match cell.config.scheduler.algorithm() {
            InterAlgorithm::Fixed => mine % f64::from(amc.rbg()),
            _ => 0.0,
        };
        let due = ((mine - lost) / f64::from(amc.rbs()) * got.all_rbs as f64).min(of_all(vanilla));
        if of_all(got) < 0.9 * due - 300.0 {
            short.push(format!("slice {slice}: {} RBs of {due:.0}", of_all(got)));
        }
    }
    short
}

#[test]
fn no_drawn_cell_loses_packets_shares_or_time_by_a_limiter() {
    let mut all = Vec::new();
    for seed in 0..50 {
        let cell = draw(seed);
        let probe = build(&cell.config).unwrap();
        let (amc, scheduler) = (probe.amc(), cell.config.scheduler.algorithm());
        let slot_ms = amc.slot().as_secs_f64() * 1e3;
        let vanilla = go(&cell, Algorithm::Vanilla);
        let mut wrong: Vec<String> = vanilla.wrong.clone();
        // The window of RLC AM may be smaller than what the carrier takes before the acknowledgement.
        let steady = cell.turns.is_none() && matches!(cell.config.ues[0].bearer.rlc, RlcConfig::Um(_));
        let by_share = steady && scheduler != InterAlgorithm::StaticPriority;
        if by_share {
            wrong.extend(short(
                &cell,
                amc,
                &vanilla,
                &Outcome { rbs: vec![u64::MAX / 128; 64], ..Outcome::default() },
            ));
        }
        let conserves = matches!(
            scheduler,
            InterAlgorithm::GpsPacking | InterAlgorithm::Drr | InterAlgorithm::StaticPriority
        );
        let busy = cell.traffic.iter().all(|traffic| matches!(traffic, Traffic::Bulk(_)));
        if steady && conserves && busy && vanilla.unused * 50 > vanilla.all_rbs {
            wrong.push(format!("{} of {} RBs unused", vanilla.unused, vanilla.all_rbs));
        }
        for queue in [Algorithm::E5gBdp, Algorithm::Jit] {
            let got = go(&cell, queue);
            let note = |what: String| format!("{queue}: {what}");
            wrong.extend(got.wrong.iter().cloned().map(note));
            if by_share {
                wrong.extend(short(&cell, amc, &got, &vanilla).into_iter().map(note));
            }
            if queue != Algorithm::Jit {
                continue;
            }
            if (got.useful as f64) < 0.85 * vanilla.useful as f64 {
                wrong.push(note(format!("{} useful RBs of {}", got.useful, vanilla.useful)));
            }
            if got.mean_ms > 1.02 * vanilla.mean_ms + 2.0 * slot_ms && got.calls >= vanilla.calls {
                wrong.push(note(format!("{:.3} ms, without it {:.3}", got.mean_ms, vanilla.mean_ms)));
            }
        }
        if !wrong.is_empty() {
            all.push(format!("{}\n    {}", cell.name, wrong.join("\n    ")));
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}
