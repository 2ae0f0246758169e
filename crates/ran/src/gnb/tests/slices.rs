//! Limiters in cells of several slices: what the MAC expects to give is what it gives.

use super::*;
use crate::sched::InterAlgorithm::{Drr, EqpExact, Fixed, GpsPacking};

/// A bulk flow of packets of so many bytes in each slice, and a call: each slice's bytes that were no padding, and the
/// mean wait of its call in ms.
fn go_with(
    queue: Algorithm,
    rbs: u16,
    bytes: usize,
    shares: &[f64],
    change: impl Fn(&mut GnbConfig),
) -> Vec<(u64, f64)> {
    let ues: Vec<usize> = (0..shares.len()).collect();
    let mut config = config(shares, &ues, queue);
    config.radio = RadioConfig::Nr(NrConfig { rbs, ..NrConfig::default() });
    change(&mut config);
    config.telemetry.packets = PacketEvents::All;
    for ue in &mut config.ues {
        ue.channel = ChannelConfig::mcs(16);
    }
    let mut run = Run::new(&config);
    let all: Vec<u32> = (0..shares.len() as u32).collect();
    let backlog = 4 * u64::from(*run.gnb.amc().full().row(16).last().unwrap()) + 6000;
    run.load_of(bytes, &all, backlog, &all, ms(100));
    let useful = |run: &Run| {
        let of = |ue: &u32| run.gnb.ue_link_stats(*ue, Direction::Downlink);
        all.iter().map(of).map(|s| s.block_bytes - s.padding_bytes).collect::<Vec<_>>()
    };
    let before = useful(&run);
    run.load_of(bytes, &all, backlog, &all, ms(500));
    let used = useful(&run).into_iter().zip(before).map(|(now, before)| now - before);
    used.zip(&all).map(|(used, ue)| (used, waits(&run.times(*ue, 1)).1)).collect()
}

#[test]
fn just_in_time_costs_no_slice_its_share() {
    let mut worse = Vec::new();
    for scheduler in [EqpExact, GpsPacking, Drr, Fixed] {
        for (rbs, bytes) in [25, 51, 106, 273].into_iter().flat_map(|rbs| [(rbs, 200), (rbs, 1500)]) {
            for shares in [&[5.0, 10.0, 30.0, 55.0][..], &[15.0, 85.0], &[5.0, 95.0], &[50.0, 50.0]] {
                let go =
                    |queue| go_with(queue, rbs, bytes, shares, |config| config.scheduler = scheduler.into());
                let (vanilla, jit) = (go(Algorithm::Vanilla), go(Algorithm::Jit));
                for ((share, vanilla), jit) in shares.iter().zip(vanilla).zip(jit) {
                    let line = format!(
                        "{scheduler}, {rbs} RBs, {share} % of {shares:?}, {bytes} B: {:.3} of {} B, {:.2} ms of {:.2}",
                        jit.0 as f64 / vanilla.0.max(1) as f64,
                        vanilla.0,
                        jit.1,
                        vanilla.1
                    );
                    println!("{line}");
                    if (jit.0 as f64) < 0.95 * vanilla.0 as f64 {
                        worse.push(line);
                    }
                }
            }
        }
    }
    assert!(worse.is_empty(), "{} cases:\n{}", worse.len(), worse.join("\n"));
}
