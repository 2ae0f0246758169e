//! Limiters of a UE whose channel is repeatedly lost for some milliseconds.

use super::*;

/// Bytes without padding of a bulk flow in packets of `size`; the channel is lost for the last `gone` ms of every `period` ms.
fn useful(queue: Algorithm, radio: &RadioConfig, mcs: u8, size: usize, gone: u64, period: u64) -> u64 {
    let mut config = config(&[100.0], &[0], queue);
    config.radio = radio.clone();
    config.ues[0].sdap.poll_us = 203;
    let mut run = Run::new(&config);
    let backlog = 6000 + 4 * run.bytes_per_ms(mcs);
    let useful = |run: &Run| {
        let stats = run.gnb.ue_link_stats(0, Direction::Downlink);
        stats.block_bytes - stats.padding_bytes
    };
    let (mut now, mut before) = (0, 0);
    for turn in 0..5 {
        if turn == 1 {
            before = useful(&run);
        }
        for (quality, length) in [(Quality::Mcs(mcs), period - gone), (Quality::Outage, gone)] {
            let (ue, direction) = ("ue0".to_owned(), Direction::Downlink);
            let channel = Channel::constant(quality);
            run.gnb.apply(GnbCommand::Channel { ue, direction, channel }, ms(now)).unwrap();
            now += length;
            run.load_of(size, &[0], backlog, &[], ms(now));
        }
    }
    useful(&run) - before
}

#[test]
fn an_outage_says_nothing_of_the_bandwidth_after_it() {
    let mut wrong = Vec::new();
    for (radio, mcs) in
        [lte_carrier(15), lte_carrier(25), lte_carrier(100), nr_carrier(51, 1), nr_carrier(98, 3)]
            .into_iter()
            .flat_map(|r| [(r.clone(), 5), (r, 24)])
    {
        for (size, (gone, period)) in
            [100, 1500].into_iter().flat_map(|size| [(4, 20), (8, 40), (30, 100)].map(|times| (size, times)))
        {
            let most = useful(Algorithm::Vanilla, &radio, mcs, size, gone, period);
            for queue in [Algorithm::E5gBdp, Algorithm::Bdp, Algorithm::Jit] {
                let share = useful(queue, &radio, mcs, size, gone, period) as f64 / most as f64;
                let case =
                    format!("{share:.3}: {queue}, {radio:?}, MCS {mcs}, {size} B, {gone} of {period} ms");
                println!("{case}");
                if share < 0.95 {
                    wrong.push(case);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}
