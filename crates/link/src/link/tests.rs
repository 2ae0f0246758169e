use super::*;
use crate::trace::Trace;
use proptest::prelude::*;
use std::sync::Arc;

const MBIT: u64 = 1_000_000;

fn packet(at: Instant, len: usize, tag: u8) -> Packet {
    let mut bytes = vec![0; len];
    if let Some(first) = bytes.first_mut() {
        *first = tag;
    }
    Packet::new(at, bytes)
}

fn ms(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

/// 12 Mbit/s: 1500 bytes take 1 ms.
fn base() -> LinkConfig {
    LinkConfig { rate: Rate::Fixed(12 * MBIT), delay: Duration::from_millis(10), ..Default::default() }
}

fn drain(link: &mut Link, now: Instant) -> Vec<(Instant, u8)> {
    std::iter::from_fn(|| link.take(now)).map(|p| (p.at, p.first().copied().unwrap_or(0))).collect()
}

#[test]
fn serialisation_and_delay_follow_logical_time() {
    let mut link = Link::new(base(), 1);
    link.offer(packet(ms(0), 1500, 1));
    link.offer(packet(ms(0), 1500, 2));
    assert_eq!(link.next_at(), Some(ms(11)));
    assert!(drain(&mut link, Instant::from_micros(10_999)).is_empty());
    // A wake-up 50 ms late changes no arrival time, nor that of a packet offered after it.
    assert_eq!(drain(&mut link, ms(60)), [(ms(11), 1), (ms(12), 2)]);
    link.offer(packet(ms(2), 1500, 3));
    assert_eq!(drain(&mut link, ms(60)), [(ms(13), 3)]);
    assert_eq!(link.next_at(), None);
}

#[test]
fn the_queue_is_bounded_by_packets_and_by_bytes() {
    let mut by_packets =
        Link::new(LinkConfig { queue: QueueLimit { packets: 2, bytes: usize::MAX }, ..base() }, 1);
    let mut by_bytes = Link::new(LinkConfig { queue: QueueLimit { packets: 100, bytes: 3000 }, ..base() }, 1);
    for link in [&mut by_packets, &mut by_bytes] {
        for tag in 0..5 {
            link.offer(packet(ms(0), 1500, tag));
        }
        let stats = link.stats(ms(0));
        assert_eq!((stats.queue_drops, stats.queue_packets, stats.queue_bytes), (2, 3, 4500));
        assert_eq!(drain(link, ms(100)), [(ms(11), 0), (ms(12), 1), (ms(13), 2)]);
        let stats = link.stats(ms(100));
        assert_eq!((stats.packets_in, stats.packets_out, stats.drops()), (5, 3, 2));
        assert_eq!((stats.sojourn_max_ns, stats.sojourn_total_ns), (3_000_000, 6_000_000));
        assert_eq!(stats.queue_bytes_max, 4500);
    }
}

#[test]
fn a_rate_step_takes_effect_inside_a_packet() {
    let mut link = Link::new(base(), 1);
    link.offer(packet(ms(0), 15_000, 1));
    link.change(LinkChange::Rate(Rate::Fixed(6 * MBIT)), ms(5));
    link.offer(packet(ms(5), 750, 2));
    assert_eq!(drain(&mut link, ms(100)), [(ms(25), 1), (ms(26), 2)]);
}

#[test]
fn a_stalled_link_keeps_its_queue_and_goes_on() {
    let mut link = Link::new(LinkConfig { rate: Rate::Fixed(0), ..base() }, 1);
    link.offer(packet(ms(0), 1500, 1));
    link.offer(packet(ms(1), 1500, 2));
    assert_eq!(link.next_at(), None);
    link.change(LinkChange::Rate(Rate::Fixed(12 * MBIT)), ms(50));
    assert_eq!(drain(&mut link, ms(100)), [(ms(61), 1), (ms(62), 2)]);
}

#[test]
fn down_drops_everything_and_black_hole_only_what_is_sent() {
    let mut down = Link::new(base(), 1);
    let mut hole = Link::new(base(), 1);
    for link in [&mut down, &mut hole] {
        for tag in 0..5 {
            link.offer(packet(ms(0), 1500, tag));
        }
    }
    // At 2.5 ms two packets are in flight, one is being sent, two wait.
    let at = Instant::from_micros(2500);
    down.change(LinkChange::Up(false), at);
    hole.change(LinkChange::BlackHole(true), at);
    down.offer(packet(ms(3), 1500, 9));
    assert!(drain(&mut down, ms(50)).is_empty());
    assert_eq!(down.stats(ms(50)).down_drops, 6);
    assert!(!down.is_up() && hole.is_up());
    assert_eq!(drain(&mut hole, ms(50)), [(ms(11), 0), (ms(12), 1)]);
    assert_eq!(hole.stats(ms(50)).black_hole_drops, 3);
    down.change(LinkChange::Up(true), ms(60));
    hole.change(LinkChange::BlackHole(false), ms(60));
    for link in [&mut down, &mut hole] {
        link.offer(packet(ms(60), 1500, 7));
        assert_eq!(drain(link, ms(100)), [(ms(71), 7)]);
    }
}

#[test]
fn arrived_packets_survive_going_down() {
    let mut link = Link::new(base(), 1);
    link.offer(packet(ms(0), 1500, 1));
    link.change(LinkChange::Up(false), ms(30));
    assert_eq!(drain(&mut link, ms(30)), [(ms(11), 1)]);
}

#[test]
fn jitter_keeps_order_unless_reorder_is_set() {
    for reorder in [false, true] {
        let mut link = Link::new(LinkConfig { jitter: Duration::from_millis(5), reorder, ..base() }, 3);
        for i in 0..200u8 {
            link.offer(packet(ms(u64::from(i)), 1500, i));
        }
        let mut got = Vec::new();
        // Wake only at the announced times: no arrival may be missed.
        while let Some(at) = link.next_at() {
            got.extend(drain(&mut link, at));
        }
        assert_eq!(got.len(), 200);
        assert!(got.windows(2).all(|w| w[0].0 <= w[1].0));
        assert_eq!(got.windows(2).all(|w| w[0].1 < w[1].1), !reorder);
        for (at, tag) in got {
            let sent = u64::from(tag) + 1;
            assert!(at >= ms(sent + 10) && at <= ms(sent + 15), "{tag} at {at}");
        }
    }
}

#[test]
fn a_mahimahi_trace_sets_the_rate() {
    let trace = Trace::parse("t", "10\n20\n").unwrap();
    let mut link = Link::new(LinkConfig { rate: Rate::Trace(Arc::new(trace)), ..base() }, 1);
    for tag in 0..3 {
        link.offer(packet(ms(1), 1500, tag));
    }
    assert_eq!(drain(&mut link, ms(100)), [(ms(20), 0), (ms(30), 1), (ms(40), 2)]);
}

#[test]
fn oversize_packets_are_dropped_silently() {
    let mut link = Link::new(LinkConfig { mtu_bytes: Some(1400), ..base() }, 1);
    link.offer(packet(ms(0), 1401, 1));
    link.offer(packet(ms(0), 1400, 2));
    assert_eq!(drain(&mut link, ms(50)).len(), 1);
    assert_eq!(link.stats(ms(50)).oversize_drops, 1);
}

#[test]
fn memory_is_bounded_even_without_a_rate() {
    let mut link = Link::new(
        LinkConfig { rate: Rate::Unlimited, delay: Duration::from_secs(1000), ..Default::default() },
        1,
    );
    for _ in 0..MAX_IN_FLIGHT_PACKETS + 10 {
        link.offer(packet(ms(0), 0, 0));
    }
    assert_eq!(link.stats(ms(1)).overflow_drops, 10);
}

proptest! {
    /// The caller's polling pattern does not change which packets arrive, or when; no packet is invented or forgotten.
    #[test]
    fn results_do_not_depend_on_polling(
        offers in prop::collection::vec((0u64..3_000, 1usize..1600), 1..80),
        polls in prop::collection::vec(0u64..120_000, 0..40),
        reorder: bool,
        rate in prop_oneof![Just(Rate::Unlimited), (100_000u64..50_000_000).prop_map(Rate::Fixed)],
        seed: u64,
    ) {
        let config = LinkConfig {
            rate,
            jitter: Duration::from_millis(3),
            reorder,
            loss: LossModel::bursts(0.1, 2.0),
            queue: QueueLimit { packets: 10, bytes: 9000 },
            ..base()
        };
        let (mut lazy, mut eager) = (Link::new(config.clone(), seed), Link::new(config, seed));
        let mut at = 0;
        let mut polls = polls;
        polls.sort_unstable();
        let mut polls = polls.into_iter().peekable();
        let mut seen = Vec::new();
        for (i, (gap, len)) in offers.iter().enumerate() {
            at += gap;
            while let Some(poll) = polls.next_if(|p| *p <= at) {
                seen.extend(drain(&mut eager, Instant::from_micros(poll)));
            }
            for link in [&mut lazy, &mut eager] {
                link.offer(packet(Instant::from_micros(at), *len, i as u8));
            }
        }
        let end = Instant::from_secs(10_000);
        seen.extend(drain(&mut eager, end));
        prop_assert_eq!(&seen, &drain(&mut lazy, end));
        let stats = lazy.stats(end);
        prop_assert_eq!(stats, eager.stats(end));
        prop_assert_eq!(stats.packets_in, stats.packets_out + stats.drops());
    }
}

/// A trace is filled with the state of the queue when the packet was sent; other packets are not changed.
#[test]
fn a_link_fills_traces() {
    use super::super::IoamNode;
    use anabranch_wire::ioam::{self, HOP_BY_HOP, Snapshot, TraceHeader, TraceKind, TraceType, TraceView};
    use anabranch_wire::tcp::{TcpHeader, emit_packet};

    let config = LinkConfig {
        rate: Rate::Fixed(8_000_000),
        queue: QueueLimit { packets: 20, bytes: usize::MAX },
        ioam: Some(IoamNode { node_id: 7, namespace: 123, ..IoamNode::default() }),
        ..LinkConfig::default()
    };
    let plain = |port: u16| {
        let (src, dst) = (format!("[fd00::1]:{port}"), "[fd00::2]:80");
        emit_packet(src.parse().unwrap(), dst.parse().unwrap(), &TcpHeader::default(), &[0; 940]).unwrap()
    };
    let with_trace = |namespace| {
        let mut bytes = plain(1);
        let of = TraceType::REPORTED;
        let mut header = [0; 160];
        let len = ioam::emit_trace_header(6, &TraceHeader::new(namespace, of, 36), &mut header).unwrap();
        ioam::insert(&mut bytes, HOP_BY_HOP, &header[..len]).unwrap();
        bytes
    };
    let mut link = Link::new(config, 1);
    // 60 ms of 1,000-byte packets of two flows, 2 ms apart: 4 Mbit/s.
    for i in 0..30 {
        link.offer(Packet::new(Instant::from_millis(2 * i), plain(1 + (i % 2) as u16)));
    }
    let at = Instant::from_millis(60);
    for i in 0..30 {
        let bytes = if i == 0 { with_trace(123) } else { plain(1) };
        link.offer(Packet::new(at, bytes));
    }
    link.offer(Packet::new(Instant::from_millis(200), with_trace(9)));
    let mut filled = Vec::new();
    while let Some(next) = link.next_at() {
        let packet = link.take(next).unwrap();
        let Some(range) = ioam::trace_range(&packet).unwrap() else {
            assert_eq!(packet.len(), 1000);
            continue;
        };
        let trace = TraceView::parse(&packet[range], TraceKind::PreAllocated).unwrap();
        filled.push((trace.header().namespace, trace.nodes().count()));
        if let Some(node) = trace.nodes().next() {
            assert_eq!(node.hop.unwrap().node_id, Some(7));
            assert_eq!(node.hop.unwrap().limit, packet[7]);
            assert_eq!(node.queue_depth, Some(20_000), "a full queue behind it");
            let told = Snapshot::parse(node.snapshot.unwrap()).unwrap().unwrap();
            assert_eq!((told.link_kbps, told.capacity_bytes), (Some(8000), Some(30_000)));
            assert_eq!((told.flows, told.queue_drops, told.medium_losses), (Some(2), Some(9), Some(0)));
            assert!((3800..=4200).contains(&told.arrival_kbps.unwrap()), "{told:?}");
        }
    }
    assert_eq!(filled, [(123, 1), (9, 0)], "of its namespace only");
}

/// A middlebox removes traces or reports, and does not change the rest of the packet.
#[test]
fn a_link_removes_telemetry() {
    use super::super::Strip;
    use anabranch_wire::ioam::{self, Feedback, HOP_BY_HOP, TraceHeader, TraceType};
    use anabranch_wire::tcp::{TcpHeader, TcpOptions, emit_packet, parse_packet};

    let mut options = TcpOptions::default();
    Feedback { flows: 2, ..Feedback::default() }.emit(&mut options.report).unwrap();
    let header = TcpHeader { seq: 5, options, ..TcpHeader::default() };
    let (src, dst) = ("[fd00::1]:1".parse().unwrap(), "[fd00::2]:80".parse().unwrap());
    let mut bytes = emit_packet(src, dst, &header, b"payload").unwrap();
    let mut trace = [0; 160];
    let len =
        ioam::emit_trace_header(6, &TraceHeader::new(123, TraceType::REPORTED, 36), &mut trace).unwrap();
    ioam::insert(&mut bytes, HOP_BY_HOP, &trace[..len]).unwrap();
    let mut link = Link::new(LinkConfig::default(), 1);
    for (strip, traced, reported) in [
        (Strip::None, true, true),
        (Strip::Traces, false, true),
        (Strip::Reports, true, false),
        (Strip::Both, false, false),
        (Strip::None, true, true),
    ] {
        link.change(LinkChange::Strip(strip), Instant::ZERO);
        let mut frame = Packet::new(Instant::ZERO, [&[0xee; 14], &bytes[..]].concat());
        frame.pull_front(14);
        link.offer(frame);
        let mut packet = link.take(Instant::ZERO).unwrap();
        packet.restore_front(14);
        assert_eq!(packet[..14], [0xee; 14], "what is in front of the packet stays");
        packet.pull_front(14);
        let seen = parse_packet(&packet).unwrap();
        assert_eq!(ioam::trace_range(&packet).unwrap().is_some(), traced, "{strip:?}");
        assert_eq!(seen.header.options.report != [0; 16], reported, "{strip:?}");
        assert_eq!((seen.header.seq, &packet[seen.payload]), (5, &b"payload"[..]));
    }
}
