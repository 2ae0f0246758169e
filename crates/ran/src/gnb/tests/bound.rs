//! No packet waits less than the lower bound, and no cell carries more than the upper bound.

use super::*;
use crate::mac::ControlLoad;

#[test]
fn the_minimum_wait_ends_at_the_next_pull_with_room() {
    let gnb = |radio, mcs| {
        let mut config = config(&[100.0], &[0], Algorithm::Vanilla);
        config.radio = radio;
        config.ues[0].channel = ChannelConfig::mcs(mcs);
        config
    };
    let us = Instant::from_micros;
    let least = |config: &GnbConfig, at: u64, bytes| {
        build(config)
            .unwrap()
            .min_wait(0, Direction::Downlink, us(at), bytes)
            .map(|wait| wait.as_micros() as u64)
    };
    let lte = |rbs| RadioConfig::Lte(LteConfig { rbs, rbg_rbs: None });
    // 25 RBs at MCS 28 carry the packet in one slot; 6 RBs carry 549 bytes per slot.
    assert_eq!(least(&gnb(lte(25), 28), 5300, 200), Some(700));
    assert_eq!(least(&gnb(lte(25), 28), 6000, 200), Some(0));
    assert_eq!(least(&gnb(lte(6), 28), 5300, 545), Some(700));
    assert_eq!(least(&gnb(lte(6), 28), 5300, 546), Some(1700));
    assert_eq!(least(&gnb(lte(1), 0), 5300, 60), None, "2 bytes are no room");
    // DDDUU: from the last downlink slot to the first one of the next period.
    let tdd =
        serde_json::from_str(r#"{"rat": "nr", "rbs": 51, "numerology": 0, "tdd": {"pattern": "DDDUU"}}"#);
    assert_eq!(least(&gnb(tdd.unwrap(), 20), 2300, 200), Some(2700));
    let mut busy = gnb(lte(25), 28);
    busy.mac.control = vec![ControlLoad { every_slots: 2, offset_slots: 0, rbs: 25 }];
    assert_eq!(least(&busy, 5300, 200), Some(1700));
}

#[test]
fn no_packet_waits_less_and_no_more_is_carried() {
    for algorithm in [Algorithm::Vanilla, Algorithm::E5gBdp, Algorithm::Jit] {
        let mut config = config(&[100.0], &[0, 0], algorithm);
        config.ues[0].channel = serde_json::from_str(r#"{"model": "train", "seed": 3}"#).unwrap();
        config.telemetry.packets = PacketEvents::All;
        let mut run = Run::new(&config);
        run.load(&[0, 1], 20_000, &[0, 1], ms(4000));
        let packets: Vec<_> = (0..2).flat_map(|ue| [1, 9].map(|qfi| (ue, qfi))).collect();
        for (ue, qfi) in packets {
            let times = run.times(ue, qfi);
            assert!(times.len() > 100, "{algorithm:?}: {}", times.len());
            for t in times {
                let least = run.gnb.min_wait(ue, Direction::Downlink, t.arrived, t.bytes).unwrap();
                assert!(t.queue_wait() >= least, "{algorithm:?}: {least:?}, {t:?}");
            }
        }
        let stats = run.gnb.link_stats(Direction::Downlink, ms(4000));
        let most = run.gnb.capacity_bytes(Direction::Downlink, Instant::ZERO, ms(4000));
        assert!(stats.block_bytes <= most, "{stats:?} {most}");
    }
}
