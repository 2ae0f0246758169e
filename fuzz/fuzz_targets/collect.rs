//! The collector: any packets, at any time, keep it within its bounds; every packet is counted once; the same again gives the
//! same.
#![no_main]

use anabranch_core::collect::{CollectConfig, Collector, Sighting};
use anabranch_core::time::{Duration, Instant};
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
struct Step {
    later_ms: u16,
    wall_us: Option<u32>,
    /// Put behind an IPv6 header with the right length and a hop-by-hop header.
    framed: bool,
    bytes: Vec<u8>,
}

fn play(steps: &[Step]) -> (Collector, Instant) {
    let config = CollectConfig { paths: 4, flows: 8, ..CollectConfig::default() };
    let mut collector = Collector::new(config);
    let mut at = Instant::ZERO;
    for step in steps {
        at += Duration::from_millis(step.later_ms.into());
        let mut packet = step.bytes.clone();
        if step.framed {
            packet.truncate(2000);
            let length = packet.len() as u16;
            let mut front = vec![0x60, 0, 0, 0, 0, 0, 0, 63];
            front[4..6].copy_from_slice(&length.to_be_bytes());
            front.resize(40, 0xfd);
            packet.splice(0..0, front);
        }
        let wall = step.wall_us.map(|us| Duration::from_micros(us.into()));
        collector.observe_packet(&packet, Sighting { at, wall, bytes: packet.len() as u32 });
        let (paths, flows) = collector.len();
        assert!(paths <= 4 && flows <= 8);
    }
    (collector, at)
}

fuzz_target!(|steps: Vec<Step>| {
    let (one, at) = play(&steps);
    let (two, _) = play(&steps);
    assert_eq!((one.paths(at), one.flows(at)), (two.paths(at), two.flows(at)));
    let c = one.counters();
    assert_eq!(c.traces + c.passed + c.malformed, steps.len() as u64);
});
