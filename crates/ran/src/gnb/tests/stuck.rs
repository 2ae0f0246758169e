//! Queues reported as stuck are stuck, all others are served, and the proposed remedy works.

use super::*;
use crate::mac::ControlLoad;

const SHARES: [f64; 5] = [1.0, 4.0, 8.0, 30.0, 100.0];

fn cell(radio: RadioConfig, mcs: u8, inter: InterAlgorithm, share: f64, rlc: RlcConfig) -> GnbConfig {
    let mut config = config(&[share, 100.0 - share], &[0], Algorithm::Vanilla);
    if inter == InterAlgorithm::RrmPolicy {
        config.slices[0].max_percent = Some(share);
    }
    config.radio = radio;
    config.scheduler = inter.into();
    config.ues[0].channel = ChannelConfig::mcs(mcs);
    config.ues[0].bearer.rlc = rlc;
    config
}

/// Bytes still waiting after 5 s of those offered at the start.
fn waits(config: &GnbConfig, direction: Direction) -> u64 {
    let mut run = Run::new(config);
    for number in 0..3 {
        let packet = down(0, 5000, 60, number);
        let port = if direction == Direction::Downlink { Gnb::N3 } else { Gnb::ue(0) };
        run.offer(port, packet, Instant::from_micros(700));
    }
    run.until(ms(5_000));
    let sdap: u64 = run.gnb.flow_stats(0, direction).map(|(_, flow)| flow.waiting_bytes).sum();
    sdap + run.gnb.bearer_stats(0, direction, ms(5_000)).map(|bearer| bearer.buffer_bytes).sum::<u64>()
}

#[test]
fn other_queues_drain_and_the_remedy_works() {
    let lte = |rbs| RadioConfig::Lte(LteConfig { rbs, rbg_rbs: None });
    let nr = RadioConfig::Nr(NrConfig { rbs: 11, numerology: 0, ..NrConfig::default() });
    let modes = [RlcConfig::default(), RlcConfig::Am(AmConfig::default())];
    let (mut stuck, mut free, mut carriers) = (0, 0, 0);
    for radio in [lte(1), lte(2), lte(6), lte(25), nr] {
        for mcs in [0, 1, 2, 4, 28] {
            for inter in [InterAlgorithm::Fixed, InterAlgorithm::RrmPolicy, InterAlgorithm::Drr] {
                for (share, rlc) in
                    SHARES.into_iter().flat_map(|share| modes.iter().map(move |rlc| (share, rlc)))
                {
                    let mut config = cell(radio.clone(), mcs, inter, share, *rlc);
                    let gnb = build(&config).unwrap();
                    for direction in Direction::ALL {
                        let said =
                            gnb.unservable_queues().into_iter().find(|stuck| stuck.direction == direction);
                        let case = format!("{radio:?} MCS {mcs} {inter} {share} % {direction:?}: {said:?}");
                        assert_eq!(waits(&config, direction) > 0, said.is_some(), "{case}");
                        let Some(said) = said else {
                            free += 1;
                            continue;
                        };
                        stuck += 1;
                        match said.remedy {
                            Remedy::Share { percent, .. } => {
                                assert!(f64::from(percent) > share, "{case}");
                                config = cell(radio.clone(), mcs, inter, f64::from(percent), *rlc);
                                assert_eq!(waits(&config, direction), 0, "{case}");
                                config = cell(radio.clone(), mcs, inter, share, *rlc);
                            }
                            Remedy::Carrier => {
                                carriers += 1;
                                config = cell(radio.clone(), mcs, inter, 100.0, *rlc);
                                assert!(waits(&config, direction) > 0, "{case}");
                                config = cell(radio.clone(), mcs, inter, share, *rlc);
                            }
                            Remedy::Control | Remedy::Pattern => panic!("{case}"),
                        }
                    }
                }
            }
        }
    }
    assert!(stuck > 100 && free > 100 && carriers > 10, "{stuck} {free} {carriers}");
}

#[test]
fn the_message_states_the_remedy() {
    let lte = RadioConfig::Lte(LteConfig { rbs: 25, rbg_rbs: None });
    let mut config = cell(lte, 0, InterAlgorithm::Fixed, 8.0, RlcConfig::default());
    let said = build(&config).unwrap().unservable_queues();
    assert_eq!(
        said[0].to_string(),
        "ue \"ue0\": nothing can ever leave its downlink queue: its blocks have at most 4 bytes (2 RBs), and the headers of \
         a PDU and a byte of data are 8: give slice \"s0\" a share_percent of 16 or more"
    );
    config.slices[0].share_percent = 100.0;
    config.slices[1].share_percent = 0.0;
    assert_eq!(build(&config).unwrap().unservable_queues(), []);
    config.mac.control = vec![ControlLoad { every_slots: 1, offset_slots: 0, rbs: 25 }];
    let said = build(&config).unwrap().unservable_queues();
    assert_eq!((said.len(), &said[0].remedy), (1, &Remedy::Control));
    // Control in every second slot leaves enough.
    config.mac.control[0].every_slots = 2;
    assert_eq!(build(&config).unwrap().unservable_queues(), []);
}

#[test]
fn a_pattern_without_uplink_is_named() {
    let tdd = TddConfig { pattern: "DDDDDDDDDD".to_owned(), downlink_symbols: 10, uplink_symbols: 2 };
    let nr = RadioConfig::Nr(NrConfig { tdd: Some(tdd), ..NrConfig::default() });
    let said =
        build(&cell(nr, 10, InterAlgorithm::Fixed, 100.0, RlcConfig::default())).unwrap().unservable_queues();
    assert_eq!((said.len(), said[0].direction, &said[0].remedy), (1, Direction::Uplink, &Remedy::Pattern));
    assert!(
        said[0].to_string().ends_with("give the TDD pattern slots that carry data this way"),
        "{}",
        said[0]
    );
}

/// Control loads that coincide once in a million slots, and many UEs.
#[test]
fn a_long_period_is_examined_once() {
    let mut config = config(&[50.0], &[0; 400], Algorithm::Vanilla);
    config.mac.control =
        [1009, 1013].map(|every_slots| ControlLoad { every_slots, offset_slots: 0, rbs: 5 }).into();
    assert_eq!(build(&config).unwrap().unservable_queues(), []);
}
