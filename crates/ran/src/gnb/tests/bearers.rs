//! UEs with several bearers: the first in priority is not held up by data of the others.

use super::*;
use crate::gnb::config::BearerById;
use crate::sdap::DrbConfig;

/// Delivered share of packets of 1000 bytes on the first bearer of each UE, which takes `part` of the UE's share, and their mean
/// wait in ms. The other bearers have a backlog. `reversed`: the priorities of the bearers, not their order, put it first.
fn first_bearer(
    queue: Algorithm,
    scheduler: InterAlgorithm,
    radio: &RadioConfig,
    (ues, bearers, reversed): (u32, u32, bool),
    mcs: u8,
    part: f64,
) -> (f64, f64) {
    let mut config = config(&[100.0], &vec![0; ues as usize], queue);
    config.radio = radio.clone();
    config.scheduler = scheduler.into();
    config.telemetry.packets = PacketEvents::All;
    let first = if reversed { bearers as u8 } else { 1 };
    for ue in &mut config.ues {
        ue.channel = ChannelConfig::mcs(mcs);
        ue.sdap.drbs = (1..=bearers as u8).map(|id| DrbConfig { id, header: false }).collect();
        ue.sdap.flows[0].drb = first;
        ue.sdap.flows[1].drb = if reversed { 1 } else { 2 };
        // Without packets, but it could overtake those of the same bearer.
        ue.sdap.flows.push(FlowConfig { priority: 10, ..FlowConfig::new(5, first) });
        for id in 1..=bearers as u8 {
            let priority = if reversed { 10 + bearers as u8 - id } else { 10 };
            let bearer = BearerConfig { priority, ..ue.bearer.clone() };
            ue.bearers.push(BearerById { id, bearer });
        }
    }
    let mut run = Run::new(&config);
    let per_ms = run.bytes_per_ms(mcs);
    let every_ns = (1000.0 / (per_ms as f64 * part / f64::from(ues)) * 1e6) as u64;
    let (mut at_ns, mut offered) = (vec![0; ues as usize], 0);
    for now in 0..300 {
        let mut due: Vec<Due> = Vec::new();
        for ue in 0..ues {
            let sdap: u64 = run.gnb.flow_stats(ue, Direction::Downlink).map(|(_, f)| f.waiting_bytes).sum();
            due.extend(
                (0..(6000 + 4 * per_ms).saturating_sub(sdap) / 1500).map(|_| (now * 1000, ue, 5000, 1500)),
            );
            let at = &mut at_ns[ue as usize];
            while *at < (now + 1) * 1_000_000 {
                due.push((*at / 1000 + u64::from(ue) * 7 % 400, ue, VOICE, 1000));
                (*at, offered) = (*at + every_ns, offered + 1);
            }
        }
        due.sort_unstable();
        for (at, ue, port, bytes) in due {
            let at = Instant::from_micros(at).max(run.out.now);
            run.offer(Gnb::N3, down(ue, port, bytes, 0), at);
        }
        run.until(ms(now + 1));
    }
    let times: Vec<PacketTimes> = (0..ues).flat_map(|ue| run.times(ue, 1)).collect();
    (times.len() as f64 / f64::from(offered), waits(&times).1)
}

#[test]
fn the_first_bearer_is_served_first() {
    let mut wrong = Vec::new();
    let schedulers =
        [InterAlgorithm::Fixed, InterAlgorithm::Drr, InterAlgorithm::EqpExact, InterAlgorithm::GpsPacking];
    for (radio, mcs) in
        [(lte_carrier(50), 10), (lte_carrier(25), 28), (nr_carrier(24, 1), 18), (nr_carrier(24, 4), 22)]
    {
        for scheduler in schedulers {
            for (ues, part) in [(1, 0.5), (3, 0.1), (3, 1.3)] {
                for kind in [(ues, 2, false), (ues, 2, true), (ues, 3, false)] {
                    let [vanilla, e5g, jit] = [Algorithm::Vanilla, Algorithm::E5gBdp, Algorithm::Jit]
                        .map(|queue| first_bearer(queue, scheduler, &radio, kind, mcs, part));
                    let case = format!(
                        "vanilla {vanilla:.3?}, e5g {e5g:.3?}, jit {jit:.3?}: {scheduler}, {kind:?}, {part}, MCS {mcs} of {radio:?}"
                    );
                    println!("{case}");
                    if jit.0 < vanilla.0 - 0.02 || part < 1.0 && jit.1 > vanilla.1 + 1.0 {
                        wrong.push(case);
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}
