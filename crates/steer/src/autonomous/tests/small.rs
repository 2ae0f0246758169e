//! Paths with a small capacity or a short queue next to large ones.

use super::*;

/// For any queues: a path without a train result next to a measured one takes no packet of a home with more than
/// twice the highest rate seen on it. If no far end answers trains, the path is learned by use.
#[test]
fn no_packet_leaves_its_home_for_a_small_path_whose_queue_holds_no_train() {
    for (home_mbps, seen_mbps, is_measured, taken) in [
        (155, 0, true, false),
        (155, 3, true, false),
        (155, 80, true, true),
        (155, 0, false, true),
        (3, 0, true, false),
        (3, 2, true, true),
        (2, 0, true, true),
    ] {
        for (near_ms, far_ms, queue_ms, drop_us) in
            [(5, 67, 10, u32::MAX), (5, 67, 60, 70_000), (3, 10, 9, 10_000), (25, 20, 9, 10_000)]
        {
            let home = LoadView { is_measured, drop_us, ..load(far_ms, queue_ms, home_mbps) };
            let other = LoadView {
                seen_bps: seen_mbps * 1_000_000,
                capacity_bps: 0,
                estimate_bps: 0,
                ..load(near_ms, 0, 0)
            };
            let mut bed = Bed::new(&[other, home]);
            let flow = &mut FlowSteer::default();
            flow.set_home(1, bed.now);
            bed.packet(flow, 1);
            flow.bytes = [1 << 20; 2];
            let takes = bed.packet(flow, 1) == 0;
            let case = (home_mbps, seen_mbps, is_measured, near_ms, far_ms, queue_ms);
            assert_eq!(takes, taken, "{case:?}");
        }
    }
}

/// A path with a thirty-second of the home's capacity adds to it; with less, a loss there costs more.
#[test]
fn no_packet_leaves_its_home_for_a_path_with_almost_no_capacity() {
    for (home_mbps, mbps) in [(160, 4), (160, 6), (32, 1), (800, 24), (800, 26), (60, 1), (400, 13)] {
        for (own, overflows) in [(load(67, 60, home_mbps), true), (load(67, 0, home_mbps), false)] {
            for other in [load(5, 0, mbps), measured(5, mbps)] {
                let mut bed = Bed::new(&[other, LoadView { drop_us: 70_000, ..own }]);
                let flow = &mut FlowSteer::default();
                flow.set_home(1, bed.now);
                bed.wait(10_000);
                (flow.bytes, flow.period) = ([1 << 20; 2], (bed.now.as_millis() / PERIOD_MS) as u32);
                bed.lane.period = flow.period;
                let takes = bed.packet(flow, 1) == 0;
                assert_eq!(takes, overflows && mbps * 32 >= home_mbps, "{home_mbps} {other:?}");
            }
        }
    }
}

/// Acknowledgements at `kbps`, in packets of the given size, for `seconds`. Returns their home at the end of each
/// second.
fn acknowledge(bed: &mut Bed, flow: &mut FlowSteer, kbps: u64, seconds: u32) -> Vec<PathId> {
    bed.bytes = 52;
    let step = Duration::from_micros(52 * 8 * 1000 / kbps);
    let mut homes = Vec::new();
    for _ in 0..seconds {
        let end = bed.now + Duration::from_secs(1);
        while bed.now < end {
            flow.arrives(Arrived { bytes: 2_800, paths: 3 });
            bed.packet(flow, 1);
            bed.now += step;
        }
        homes.extend(flow.home());
    }
    homes
}

/// They take the nearest path of which they use at most half, with the tunnel's headers (about 90 bytes each),
/// wherever they began. They leave a path of which they use three quarters, although the data arrives by it, and
/// although it loses packets by being too small.
#[test]
fn acknowledgements_go_where_they_fit() {
    for (kbps, near_mbps, fits, stays) in [
        (1_000, 20, true, true),
        (1_000, 4, true, true),
        (1_000, 3, false, true),
        (1_000, 2, false, false),
        (8_000, 20, false, true),
        (8_000, 50, true, true),
        (8_000, 3, false, false),
        (8_000, 0, false, false),
        (900, 0, false, false),
    ] {
        for wild_ppm in [0, 600_000] {
            for far_ms in [20, 100] {
                let near = LoadView { is_measured: near_mbps > 0, ..measured(3, near_mbps) };
                let far = LoadView { is_measured: true, ..measured(far_ms, 400) };
                let case = (kbps, near_mbps, wild_ppm, far_ms);
                let mut bed = Bed::new(&[near, far]);
                let flow = &mut FlowSteer::default();
                flow.set_home(1, bed.now);
                bed.packet(flow, 1);
                let home = *acknowledge(&mut bed, flow, kbps, 4).last().unwrap();
                assert_eq!(home == 0, fits, "began far: {case:?}");
                let mut bed =
                    Bed::new(&[LoadView { wild_ppm: if stays { 0 } else { wild_ppm }, ..near }, far]);
                let flow = &mut FlowSteer::default();
                flow.set_home(0, bed.now);
                bed.packet(flow, 1);
                let homes = acknowledge(&mut bed, flow, kbps, 6);
                assert_eq!(homes, [u8::from(!stays); 6], "began near: {case:?}");
            }
        }
    }
}
