use super::*;
use anabranch_wire::ioam::{
    DESTINATION_OPTIONS, EdgeToEdge, HOP_BY_HOP, Hop, NodeData, Opaque, SNAPSHOT_SCHEMA, Sequence, Snapshot,
    TcpState, TraceHeader, TraceType, emit_edge_header, emit_trace_header, fill, insert, trace_header_len,
    trace_range,
};
use anabranch_wire::tcp::{TcpHeader, emit_packet};
use proptest::collection::vec;
use proptest::prelude::*;

const EVERYTHING: [TraceType; 6] = [
    TraceType::HOP,
    TraceType::SECONDS,
    TraceType::FRACTION,
    TraceType::QUEUE_DEPTH,
    TraceType::BUFFER,
    TraceType::SNAPSHOT,
];

/// Data of a node in short form.
#[derive(Debug, Clone, Copy, Default)]
struct TestNode {
    id: u32,
    at_us: u64,
    depth: u32,
    rlc: Option<u32>,
    snapshot: Option<Snapshot>,
}

fn packet(port: u16, test_nodes: &[TestNode], edge: Option<(EdgeToEdge, TcpState)>) -> Vec<u8> {
    let (src, dst) = (format!("[fd00::1]:{port}"), "[fd00::2]:80".parse().unwrap());
    let mut packet = emit_packet(src.parse().unwrap(), dst, &TcpHeader::default(), &[7; 100]).unwrap();
    if let Some((edge, tcp)) = edge {
        let mut header = [0; 56];
        let len = emit_edge_header(6, &edge, Some(&tcp), &mut header).unwrap();
        insert(&mut packet, DESTINATION_OPTIONS, &header[..len]).unwrap();
    }
    let all = EVERYTHING.into_iter().reduce(std::ops::BitOr::bitor).unwrap();
    let mut header = vec![0; trace_header_len(60)];
    emit_trace_header(packet[6], &TraceHeader::new(1, all, 60), &mut header).unwrap();
    insert(&mut packet, HOP_BY_HOP, &header).unwrap();
    for test_nodes in test_nodes {
        packet[7] -= 1;
        let data = test_nodes.snapshot.map(|s| s.emit());
        let node = NodeData {
            hop: Some(Hop { limit: packet[7], node_id: Some(test_nodes.id) }),
            seconds: Some((test_nodes.at_us / 1_000_000) as u32),
            fraction: Some((test_nodes.at_us % 1_000_000) as u32),
            queue_depth: Some(test_nodes.depth),
            buffer: test_nodes.rlc,
            snapshot: data.as_ref().map(|data| Opaque { schema: SNAPSHOT_SCHEMA, data }),
            ..NodeData::default()
        };
        let range = trace_range(&packet).unwrap().unwrap();
        fill(&mut packet[range], &node).unwrap();
    }
    packet
}

fn seen(ms: u64, wall_us: u64) -> CaptureInfo {
    CaptureInfo { at: Instant::from_millis(ms), wall: Some(Duration::from_micros(wall_us)), bytes: 1000 }
}

fn queue(link_kbps: u32, flows: u16, queue_drops: u32, medium_losses: u32) -> Option<Snapshot> {
    Some(Snapshot {
        arrival_kbps: Some(5_000),
        link_kbps: Some(link_kbps),
        capacity_bytes: Some(150_000),
        flows: Some(flows),
        mcs: Some(17),
        rb_half_percent: Some(75),
        queue_drops: Some(queue_drops),
        medium_losses: Some(medium_losses),
    })
}

#[test]
fn a_path_is_reported_hop_by_hop() {
    let mut collector = Collector::new(CollectConfig { known_routers: 3, ..CollectConfig::default() });
    let mut strict = Collector::new(CollectConfig { known_routers: 2, ..CollectConfig::default() });
    for (i, (drops, losses)) in [(10, 3), (14, 3), (14, 9)].into_iter().enumerate() {
        let base = 1_000_000 * (i as u64 + 1);
        let test_nodes = [
            TestNode { id: 1, at_us: base + 100, depth: 0, rlc: None, snapshot: queue(100_000, 2, 0, 0) },
            TestNode {
                id: 2,
                at_us: base + 400,
                depth: 12_500,
                rlc: None,
                snapshot: queue(40_000, 2, drops, 0),
            },
            TestNode {
                id: 3,
                at_us: base + 3_400,
                depth: 90,
                rlc: Some(80),
                snapshot: queue(50_000, 2, 0, losses),
            },
        ];
        let edge = EdgeToEdge {
            namespace: 1,
            sequence: Some(Sequence::Short(2 * i as u32)),
            seconds: Some((base / 1_000_000) as u32),
            fraction: Some(0),
        };
        let tcp = TcpState { cwnd: 20 + i as u32, ssthresh: u32::MAX, srtt_us: 9_000 };
        let packet = packet(4711, &test_nodes, Some((edge, tcp)));
        collector.observe_packet(&packet, seen(i as u64 * 10, base + 8_400));
        strict.observe_packet(&packet, seen(i as u64 * 10, base + 8_400));
    }
    assert!(!strict.paths(Instant::from_millis(25))[0].complete, "three routers took one from the hop limit");
    let now = Instant::from_millis(25);
    let paths = collector.paths(now);
    let [path] = &paths[..] else { panic!("{paths:#?}") };
    assert_eq!((path.name.clone(), path.bottleneck, path.complete), ("1-2-3".into(), Some(1), true));
    assert_eq!((path.traces, path.bytes, path.flows_seen, path.silent_ms), (3, 3000, 1, 5));
    // 12,500 bytes at 40 Mbit/s are 2.5 ms; counters start with the first trace.
    let [_, two, three] = &path.hops[..] else { panic!("{path:#?}") };
    assert_eq!((two.queue_us, two.queue_drops, two.medium_losses), (Some(2_500), Some(4), Some(0)));
    assert_eq!((three.medium_losses, three.mcs, three.rb_share_percent), (Some(6), Some(17), Some(37.5)));
    assert_eq!(three.rlc_bytes.map(|l| l.last), Some(80));
    let latency: Vec<_> = path.hops.iter().map(|hop| hop.latency.map(|l| l.last_us)).collect();
    assert_eq!(latency, [Some(300), Some(3_000), Some(5_000)]);
    let whole = path.to_first.zip(path.end_to_end).map(|(a, b)| (a.last_us, b.last_us));
    assert_eq!(whole, Some((100, 8_400)));

    let flows = collector.flows(now);
    let [flow] = &flows[..] else { panic!("{flows:#?}") };
    assert_eq!((flow.path, flow.cwnd_segments, flow.ssthresh_segments), (1, Some(22), None));
    // Numbers 0, 2 and 4: two are missing.
    assert_eq!((flow.numbered, flow.missing), (Some(3), Some(2)));
    assert_eq!(collector.counters().traces, 3);
    assert_eq!(collector.counters().clock_errors, 0);
}

#[test]
fn unreported_values_are_absent() {
    let mut collector = Collector::new(CollectConfig::default());
    // A Linux router without a snapshot, and clocks that differ by an hour.
    let test_nodes = [TestNode { id: 7, at_us: 5, depth: 1, ..TestNode::default() }];
    let mut cut = packet(1, &test_nodes, None);
    cut.truncate(cut.len() - 100);
    collector.observe_packet(&cut, CaptureInfo { wall: Some(Duration::from_secs(3600)), ..seen(0, 0) });
    let path = collector.paths(Instant::ZERO).remove(0);
    assert!(!path.complete && path.bottleneck.is_none() && path.hops[0].latency.is_none());
    assert_eq!((path.hops[0].queue_drops, path.hops[0].link_kbps), (None, None));
    assert_eq!(collector.counters().clock_errors, 1);
    // Malformed packets, packets without a trace and empty traces do not create paths.
    let bare = emit_packet(
        "[fd00::1]:1".parse().unwrap(),
        "[fd00::2]:2".parse().unwrap(),
        &TcpHeader::default(),
        &[],
    );
    for other in [bare.unwrap(), packet(1, &[], None)] {
        collector.observe_packet(&other, seen(0, 0));
    }
    collector.observe_packet(&cut[..45], seen(0, 0));
    let counters = collector.counters();
    assert_eq!((counters.passed, counters.malformed, collector.len()), (2, 1, (1, 1)));
}

#[test]
fn traces_of_other_namespaces_are_ignored() {
    let config = CollectConfig { namespace: Some(2), ..CollectConfig::default() };
    let mut collector = Collector::new(config);
    collector.observe_packet(&packet(1, &[TestNode::default()], None), seen(0, 0));
    assert!(collector.is_empty() && collector.counters().passed == 1);
}

#[test]
fn silent_entries_age_and_full_tables_evict() {
    let config = CollectConfig { paths: 2, flows: 3, ..CollectConfig::default() };
    let mut collector = Collector::new(config);
    for (ms, id, port) in [(0, 1, 1), (1, 2, 2), (2, 1, 3), (3, 3, 4), (4, 1, 5)] {
        collector.observe_packet(&packet(port, &[TestNode { id, ..TestNode::default() }], None), seen(ms, 0));
    }
    let names = |collector: &Collector| -> Vec<String> {
        collector.paths(Instant::from_millis(5)).into_iter().map(|path| path.name).collect()
    };
    // Path 2 was unused for the longest time when 3 arrived.
    assert_eq!(names(&collector), ["1", "3"]);
    let counters = *collector.counters();
    assert_eq!((counters.paths_evicted, counters.flows_evicted), (1, 2));
    collector.age(Instant::from_millis(60_004));
    assert_eq!(names(&collector), ["1"]);
    collector.age(Instant::from_millis(60_005));
    assert!(collector.is_empty());
    assert_eq!((collector.counters().paths_aged, collector.counters().flows_aged), (2, 3));
}

/// One step: a packet of some flow over some nodes, possibly damaged, some time later.
#[derive(Debug, Clone)]
struct Step {
    nodes: Vec<u32>,
    port: u16,
    later_ms: u64,
    words: [u32; 4],
    broken: Option<(usize, u8)>,
    cut: usize,
}

prop_compose! {
    fn step()(
        nodes in vec(0u32..6, 0..5), port in 0u16..20, later_ms in 0u64..3000, words: [u32; 4],
        broken in proptest::option::of((0usize..400, any::<u8>())), cut in 0usize..400,
    ) -> Step {
        Step { nodes, port, later_ms, words, broken, cut }
    }
}

fn play(steps: &[Step], config: CollectConfig) -> (Collector, Instant) {
    let mut collector = Collector::new(config);
    let mut at = Instant::ZERO;
    let mut before = Vec::<PathView>::new();
    for step in steps {
        at += Duration::from_millis(step.later_ms);
        let [a, b, c, d] = step.words;
        let snapshot = Some(Snapshot {
            arrival_kbps: Some(a),
            link_kbps: Some(b),
            flows: Some(c as u16),
            queue_drops: Some(c).filter(|_| c % 5 > 0),
            medium_losses: Some(d).filter(|_| d % 5 > 0),
            ..Snapshot::default()
        });
        let test_nodes: Vec<TestNode> = step
            .nodes
            .iter()
            .map(|id| TestNode { id: *id, at_us: u64::from(a), depth: b, rlc: Some(c), snapshot })
            .collect();
        let edge = EdgeToEdge { namespace: 1, sequence: Some(Sequence::Short(d)), ..EdgeToEdge::default() };
        let mut packet = packet(step.port, &test_nodes, Some((edge, TcpState::default())));
        if let Some((place, value)) = step.broken {
            let place = place % packet.len();
            packet[place] = value;
        }
        packet.truncate(packet.len().saturating_sub(step.cut % 200));
        let wall = Some(Duration::from_micros(u64::from(a)));
        collector.observe_packet(&packet, CaptureInfo { at, wall, bytes: u32::MAX });

        let (paths, flows) = collector.len();
        assert!(paths <= config.paths && flows <= config.flows);
        let now = collector.paths(at);
        for path in &now {
            let Some(old) = before.iter().find(|old| old.number == path.number) else { continue };
            assert!(old.traces <= path.traces && old.bytes <= path.bytes);
            for (old, new) in old.hops.iter().zip(&path.hops) {
                assert!(old.queue_drops <= new.queue_drops && old.medium_losses <= new.medium_losses);
            }
        }
        before = now;
    }
    (collector, at)
}

/// A trace of a flow over nodes 1 and 2 as generated, and its delay.
#[derive(Debug, Clone, Copy)]
struct SentTrace {
    at_us: u64,
    late_us: u64,
    number: u32,
    depth: u32,
    drops: u32,
}

/// Less than the threshold for a restarted node.
const LATE_US: u64 = 500_000;

prop_compose! {
    fn sent()(steps in vec((1u64..50_000, 0..LATE_US, any::<u16>(), 0u32..1000), 1..60), start: u32) -> Vec<SentTrace> {
        let first = SentTrace { at_us: 1_000_000, late_us: 0, number: 0, depth: 9, drops: start };
        let mut all = vec![first];
        for (later_us, late_us, depth, more) in steps {
            let before = all[all.len() - 1];
            all.push(SentTrace {
                at_us: before.at_us + later_us,
                late_us,
                number: before.number + 1,
                depth: depth.into(),
                drops: before.drops.wrapping_add(more),
            });
        }
        all
    }
}

/// Final state after traces in this order.
fn collected(order: &[(u64, SentTrace)]) -> (PathView, FlowView, CollectCounters) {
    let config = CollectConfig { window: Duration::from_secs(3600), ..CollectConfig::default() };
    let mut collector = Collector::new(config);
    for (at_us, sent) in order {
        let node = |id, after_us| TestNode {
            id,
            at_us: sent.at_us + after_us,
            depth: sent.depth,
            rlc: None,
            snapshot: queue(sent.depth, sent.number as u16, sent.drops, sent.drops.wrapping_mul(2)),
        };
        let edge = EdgeToEdge {
            namespace: 1,
            sequence: Some(Sequence::Short(sent.number)),
            seconds: Some((sent.at_us / 1_000_000) as u32),
            fraction: Some((sent.at_us % 1_000_000) as u32),
        };
        let tcp = TcpState { cwnd: sent.number, ssthresh: 7, srtt_us: sent.depth };
        let packet = packet(1, &[node(1, 10), node(2, 20 + u64::from(sent.depth))], Some((edge, tcp)));
        let seen = CaptureInfo {
            at: Instant::from_micros(*at_us),
            wall: Some(Duration::from_micros(*at_us + 100_000)),
            bytes: 100,
        };
        collector.observe_packet(&packet, seen);
    }
    let end = Instant::from_micros(10_000_000);
    (collector.paths(end).remove(0), collector.flows(end).remove(0), *collector.counters())
}

proptest! {
    /// Traces in any order, each up to half a second late: sums, newest values and maxima equal those in order. Means cover the
    /// traces that were not overtaken, and thus lie between the minimum and the maximum reported.
    #[test]
    fn overtaken_traces_change_sums_and_maxima_only(sent in sent()) {
        let in_order: Vec<(u64, SentTrace)> = sent.iter().map(|sent| (sent.at_us, *sent)).collect();
        let mut late: Vec<(u64, SentTrace)> = sent.iter().map(|sent| (sent.at_us + sent.late_us, *sent)).collect();
        late.sort_by_key(|(at_us, _)| *at_us);
        let (mut path, mut flow, counters) = collected(&late);
        let (wanted_path, wanted_flow, wanted_counters) = collected(&in_order);
        prop_assert_eq!(counters, wanted_counters);
        prop_assert_eq!(counters.node_restarts + counters.clock_errors, 0);
        // The latency to the collector includes the delay.
        path.end_to_end = wanted_path.end_to_end;
        path.silent_ms = wanted_path.silent_ms;
        path.hops[1].latency = wanted_path.hops[1].latency;
        (flow.end_to_end, flow.silent_ms) = (wanted_flow.end_to_end, wanted_flow.silent_ms);
        let least = sent.iter().map(|sent| sent.depth).min().unwrap_or(0);
        for (hop, wanted) in path.hops.iter_mut().zip(&wanted_path.hops) {
            for (gauge, wanted) in [(&mut hop.depth_bytes, wanted.depth_bytes), (&mut hop.link_kbps, wanted.link_kbps)] {
                let (gauge, wanted) = (gauge.as_mut().unwrap(), wanted.unwrap());
                prop_assert!((least..=wanted.most).contains(&gauge.mean), "{gauge:?}");
                gauge.mean = wanted.mean;
            }
        }
        if let Some((latency, wanted)) = path.hops[0].latency.as_mut().zip(wanted_path.hops[0].latency) {
            latency.mean_us = wanted.mean_us;
        }
        prop_assert_eq!(path, wanted_path);
        prop_assert_eq!(flow, wanted_flow);
    }
}

/// Traces of an attacker who invents nodes: a new list of nodes, repeated a number of times, as a flow of its own.
#[derive(Debug, Clone)]
struct ForgedPath {
    nodes: usize,
    twice: bool,
    times: u32,
    words: [u32; 4],
}

prop_compose! {
    fn forged_path()(nodes in 1usize..6, twice: bool, times in 1u32..8, words: [u32; 4]) -> ForgedPath {
        ForgedPath { nodes, twice, times, words }
    }
}

/// The honest source: one trace per 100 ms over nodes 1 and 2.
fn honest(collector: &mut Collector, n: u64) {
    let test_nodes = |id| TestNode {
        id,
        at_us: n * 100_000,
        depth: n as u32,
        rlc: None,
        snapshot: queue(9, 1, n as u32, 0),
    };
    collector
        .observe_packet(&packet(1, &[test_nodes(1), test_nodes(2)], None), seen(n * 100, n * 100_000 + 5));
}

proptest! {
    /// Whatever number of invented nodes, their counters and time stamps: a path with twice as many traces as each of these has the
    /// same state as without them.
    #[test]
    fn a_flood_of_forged_nodes_displaces_no_path_seen_more_often(flood in vec(vec(forged_path(), 0..20), 1..12)) {
        let config = CollectConfig { paths: 3, flows: 3, ..CollectConfig::default() };
        let (mut flooded, mut quiet) = (Collector::new(config), Collector::new(config));
        let both = |flooded: &mut Collector, quiet: &mut Collector, n| {
            honest(flooded, n);
            honest(quiet, n);
        };
        for n in 0..8 {
            both(&mut flooded, &mut quiet, n);
        }
        let mut id = 10;
        for (n, forged_path) in (8..).zip(&flood) {
            for forged_path in forged_path {
                let [a, b, c, d] = forged_path.words;
                let mut test_nodes = Vec::new();
                for _ in 0..forged_path.nodes {
                    id += u32::from(!forged_path.twice || test_nodes.is_empty());
                    let snapshot = Snapshot { queue_drops: Some(c), medium_losses: Some(d), ..queue(a, 1, 0, 0).unwrap() };
                    test_nodes.push(TestNode { id, at_us: u64::from(a) * 1000, depth: b, rlc: None, snapshot: Some(snapshot) });
                }
                for _ in 0..forged_path.times {
                    flooded.observe_packet(&packet(id as u16, &test_nodes, None), seen(n * 100, n * 100_000 + 5));
                }
            }
            both(&mut flooded, &mut quiet, n);
            prop_assert!(flooded.len().0 <= 3 && flooded.len().1 <= 3);
        }
        let now = Instant::from_millis(2000);
        prop_assert_eq!(&flooded.paths(now)[0], &quiet.paths(now)[0]);
        let known = flooded.flows(now).into_iter().find(|flow| flow.source.port() == 1);
        prop_assert_eq!(known, quiet.flows(now).pop());
    }
}

/// Invented nodes with any number of traces may occupy all the room. A path that starts an eighth of the idle timeout after they
/// stop is kept.
#[test]
fn room_is_available_again_after_a_flood() {
    let config =
        CollectConfig { paths: 4, flows: 4, idle: Duration::from_secs(8), ..CollectConfig::default() };
    let mut collector = Collector::new(config);
    for n in 0..4 * 1000_u32 {
        let test_nodes = TestNode { id: 10 + n % 4, ..TestNode::default() };
        collector.observe_packet(&packet(10 + (n % 4) as u16, &[test_nodes], None), seen(0, 0));
    }
    let both = |collector: &mut Collector, ms| {
        for id in [1_u16, 2] {
            let test_nodes = TestNode { id: id.into(), ..TestNode::default() };
            collector.observe_packet(&packet(id, &[test_nodes], None), seen(ms, 0));
        }
    };
    // Until then, each of the two displaces the other.
    both(&mut collector, 900);
    both(&mut collector, 1000);
    assert_eq!(collector.counters().paths_evicted, 4);
    for ms in [1001, 1100, 1200, 1300] {
        both(&mut collector, ms);
    }
    let paths = collector.paths(Instant::from_millis(1300));
    let known: Vec<_> =
        paths.iter().map(|path| (&path.name[..], path.traces)).filter(|(name, _)| name.len() < 2).collect();
    // The second was already present.
    assert_eq!(known, [("2", 5), ("1", 4)]);
    let flows = collector.flows(Instant::from_millis(1300));
    assert_eq!(flows.iter().filter(|flow| flow.source.port() < 10).count(), 2);
    assert_eq!((collector.counters().paths_evicted, collector.counters().flows_evicted), (5, 5));
}

proptest! {
    /// For any input, state is bounded, sums never decrease, every packet is counted once, and equal packets yield equal views.
    #[test]
    fn anything_is_bounded_and_deterministic(steps in vec(step(), 0..60)) {
        let config = CollectConfig { paths: 3, flows: 5, idle: Duration::from_secs(10), ..CollectConfig::default() };
        let (one, at) = play(&steps, config);
        let (two, _) = play(&steps, config);
        prop_assert_eq!(one.paths(at), two.paths(at));
        prop_assert_eq!(one.flows(at), two.flows(at));
        prop_assert_eq!(one.counters(), two.counters());
        let c = one.counters();
        prop_assert_eq!(c.traces + c.passed + c.malformed, steps.len() as u64);
        for path in one.paths(at) {
            for hop in &path.hops {
                let gauge = |l: Option<GaugeView>| l.is_none_or(|l| l.last <= l.most);
                prop_assert!(gauge(hop.depth_bytes) && gauge(hop.arrival_kbps) && gauge(hop.link_kbps));
            }
        }
    }
}
