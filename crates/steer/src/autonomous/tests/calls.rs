//! Calls, and flows of datagrams that are none.

use super::*;

/// Packets of 1,400 bytes at this rate for a second; their path.
fn send(bed: &mut Bed, flow: &mut FlowSteer, kbps: u64) -> PathId {
    let (step_us, end) = (1_400 * 8 * 1000 / kbps, bed.now + Duration::from_secs(1));
    let path = bed.packet(flow, 1);
    while bed.now < end {
        bed.now += Duration::from_micros(step_us);
        assert_eq!(bed.packet(flow, 1), path);
    }
    path
}

#[test]
fn a_call_goes_where_it_arrives_first_and_its_packets_stay_together() {
    let loads = |first_ms, second_ms| {
        [(5, first_ms), (20, second_ms)].map(|(base, queue)| LoadView {
            drop_us: 400_000,
            seen_bps: 100_000_000,
            rtt_us: 2000 * base as u32,
            ..load(base, queue, 100)
        })
    };
    for (datagrams, kbps, moves) in [
        (true, 300, true),
        (true, 1_500, true),
        (true, 3_900, true),
        (true, 6_000, false),
        (false, 1_500, false),
    ] {
        let mut bed = Bed::new(&loads(40, 0));
        bed.datagrams = datagrams;
        let flow = &mut FlowSteer::default();
        let mut at = |first_ms| {
            bed.loads = loads(first_ms, 0).to_vec();
            send(&mut bed, flow, kbps)
        };
        assert_eq!(at(40), 1, "the first has a queue");
        let to = if moves { 0 } else { 1 };
        assert_eq!(at(9), to, "6 ms sooner: {datagrams} {kbps}");
        assert_eq!(at(24), to, "9 ms later, less than a quarter of the longer round trip");
        assert_eq!(at(60), 1);
    }
}

#[test]
fn a_call_leaves_a_lossy_path_for_a_clean_one_unless_that_is_far() {
    let lossy = |path| LoadView { wild_ppm: 20_000, ..path };
    for (far_ms, to) in [(20, 1), (300, 0)] {
        let (near, far) = (load(5, 0, 100), load(far_ms, 0, 100));
        let mut bed = Bed::new(&[near, far]);
        bed.datagrams = true;
        let flow = &mut FlowSteer::default();
        assert_eq!(send(&mut bed, flow, 1_500), 0);
        bed.loads[0] = lossy(near);
        assert_eq!(send(&mut bed, flow, 1_500), to, "the first loses 2 %");
        bed.loads[1] = lossy(far);
        assert_eq!(send(&mut bed, flow, 1_500), 0, "both do");
        bed.loads = vec![near, lossy(far)];
        assert_eq!(send(&mut bed, flow, 1_500), 0);
    }
}

#[test]
fn an_acknowledged_flow_that_fills_its_home_is_not_a_call() {
    let acknowledged = |bytes| Arrived { bytes, paths: 1 };
    let mut flow = FlowSteer::default();
    flow.bytes = [50_000; 2];
    assert!(flow.is_call(4_000_000), "nothing comes back");
    flow.arrived = [acknowledged(1_000); 2];
    assert!(!flow.is_call(4_000_000), "1.6 of 4 Mbit/s");
    assert!(flow.is_call(8_000_000), "1.6 of 8 Mbit/s");
    flow.arrived = [acknowledged(45_000); 2];
    assert!(flow.is_call(4_000_000), "as much comes back");
    flow.arrived = [acknowledged(500_000); 2];
    assert!(!flow.is_call(8_000_000), "it acknowledges");
}

#[test]
fn a_transfer_after_a_call_to_the_same_host_begins_where_it_ends_first() {
    let mut bed = Bed::new(&[load(5, 0, 0), load(10, 0, 0)]);
    bed.datagrams = true;
    assert_eq!(bed.packet(&mut FlowSteer::default(), 1), 0);
    bed.datagrams = false;
    assert_eq!(bed.packet(&mut FlowSteer::default(), 1), 0);
    assert_eq!(bed.packet(&mut FlowSteer::default(), 1), 1, "the second connection is another part of it");
}
