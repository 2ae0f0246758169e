//! Narrow slices, in which a packet of a bulk flow takes the share of several slots: delay of a call beside it.

use super::*;
use crate::amc::Amc;
use crate::sched::InterAlgorithm::{Drr, EqpExact, GpsPacking};

/// Result of a slice.
struct Got {
    /// Its part of the used RBs.
    part: f64,
    /// Bytes without padding.
    bytes: f64,
    /// Mean delay of its call, ms.
    wait: f64,
}

/// A slice of `share` percent beside one with the rest, each with a bulk flow that never runs dry and a call.
fn go(
    queue: Algorithm,
    scheduler: InterAlgorithm,
    share: f64,
    radio: &RadioConfig,
    channel: &ChannelConfig,
) -> Got {
    let mut config = config(&[share, 100.0 - share], &[0, 1], queue);
    (config.scheduler, config.radio) = (scheduler.into(), radio.clone());
    config.telemetry.packets = PacketEvents::All;
    for ue in &mut config.ues {
        ue.channel = channel.clone();
    }
    let mut run = Run::new(&config);
    let all = run.gnb.amc().full().row(28).last().copied().unwrap();
    let per_ms = u64::from(all) * 1_000_000 / u64::try_from(run.gnb.amc().slot().as_nanos()).unwrap();
    // Short slots mean many packets.
    let end = ms(if run.gnb.amc().slot() < Duration::from_micros(200) { 800 } else { 3000 });
    run.load(&[0, 1], 20_000 + 2 * per_ms, &[0, 1], end);
    let stats = [0, 1].map(|ue| run.gnb.ue_link_stats(ue, Direction::Downlink));
    let used = stats.map(|stats| stats.used_rbs as f64);
    Got {
        part: 100.0 * used[0] / (used[0] + used[1]),
        bytes: (stats[0].block_bytes - stats[0].padding_bytes) as f64,
        wait: waits(&run.times(0, 1)[4..]).1,
    }
}

/// A scheduler of whole packets gives a narrow slice one packet at a time, and then nothing until its balance is 0. A limiter
/// that is told to expect its share in each slot passes the next packet to RLC at once, and the call waits behind it for as
/// long as the slice is ahead. With a forecast of the slice's next turn, RLC stays empty and the call goes first.
#[test]
fn a_call_does_not_wait_for_packets_of_a_later_turn() {
    let nr = |numerology, rbs| RadioConfig::Nr(NrConfig { rbs, numerology, ..NrConfig::default() });
    let lte = RadioConfig::Lte(LteConfig { rbs: 25, rbg_rbs: None });
    let walk = ChannelConfig::Pedestrian { seed: Some(1), length_s: 60, start_s: 0.0 };
    let train = ChannelConfig::Train { seed: Some(1), length_s: 60, start_s: 0.0 };
    let channels = [("MCS 28", ChannelConfig::mcs(28)), ("walk", walk), ("train", train)];
    let carriers =
        [("LTE", lte), ("µ 0", nr(0, 106)), ("µ 1", nr(1, 51)), ("µ 3", nr(3, 132)), ("µ 4", nr(4, 51))];
    let (mut late, mut lost) = (Vec::new(), Vec::new());
    for (carrier, radio) in &carriers {
        let slot_ms = Amc::new(radio).unwrap().slot().as_secs_f64() * 1e3;
        for ((name, channel), share) in channels.iter().flat_map(|c| [2.0, 5.0, 10.0, 20.0].map(|s| (c, s))) {
            let by_groups = go(Algorithm::Jit, Drr, share, radio, channel);
            for scheduler in [GpsPacking, EqpExact] {
                let vanilla = go(Algorithm::Vanilla, scheduler, share, radio, channel);
                let jit = go(Algorithm::Jit, scheduler, share, radio, channel);
                let line = format!(
                    "{carrier}, {name}, {share} %, {scheduler}: {:.3} ms, drr {:.3}, bytes {:.3}, {:.2} % of the RBs",
                    jit.wait,
                    by_groups.wait,
                    jit.bytes / vanilla.bytes,
                    jit.part
                );
                println!("{line}");
                // Where a packet takes the share of many slots, whole packets are far sooner; where it takes few, no later.
                let most = match *carrier {
                    "LTE" if share < 10.0 => 0.5 * by_groups.wait,
                    _ => 1.8 * by_groups.wait + 3.0 * slot_ms,
                };
                if jit.wait > most {
                    late.push(line.clone());
                }
                // Rounding whole packets to whole groups costs more, the narrower the slice.
                let least = if share < 5.0 { 0.88 } else { 0.93 };
                if jit.bytes < least * vanilla.bytes || jit.part < 0.97 * share {
                    lost.push(line);
                }
            }
        }
    }
    assert!(late.is_empty(), "{} late:\n{}", late.len(), late.join("\n"));
    assert!(lost.is_empty(), "{} lost:\n{}", lost.len(), lost.join("\n"));
}
