//! Tests of a node through its public interface.

use super::*;
use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant};
use anabranch_element::{Element, Sink, drive};
use anabranch_wire::tcp::{SackBlocks, TcpFlags, TcpHeader, TcpOptions, emit_packet, parse_packet};
use std::net::SocketAddr;

mod flows;
mod links;
mod properties;
mod trips;
mod world;

use world::*;

#[test]
fn a_fixed_ratio_is_kept_and_wifi_packets_are_for_the_wifi_address() {
    for v6 in [false, true] {
        let mut w =
            World::new(Config { steering: Steering::FixedRatio { lte_percent: 20.0 }, ..config(None) }, v6);
        w.handshake();
        let mut wifi = 0;
        for n in 0..100 {
            let (leg, packet) = w.data(n, 1000);
            let t = parse_packet(&packet).expect("checksums are right");
            assert_eq!(t.dst.ip(), w.address(leg));
            wifi += u32::from(leg == Leg::Wifi);
        }
        assert_eq!(wifi, 80);
        let fin = w.segment(100_000, 0, TcpFlags::FIN | TcpFlags::ACK);
        assert_eq!(w.down(fin).0, Leg::Lte);
    }
}

#[test]
fn duplicates_from_the_third_on_wait_and_the_missing_ack_supersedes_them() {
    let mut w = World::new(config(Some(50.0)), false);
    w.handshake();
    for n in 0..10 {
        w.data(n, 1000);
    }
    assert_eq!(w.ack(1000), 1);
    // 1000..2000 is late: four duplicates, of which two are let through.
    for right in [3000, 4000, 5000, 6000] {
        w.dup(1000, 2000, right);
    }
    assert_eq!((w.out.len(), w.node.held_acks()), (3, 2));
    assert_eq!(w.node.poll_timeout().map(|(_, why)| why), Some("held ACKs"));
    w.pass(Duration::from_millis(30));
    w.ack(6000);
    assert_eq!(w.acks(), [1000, 1000, 1000, 6000]);
    assert_eq!(w.node.held_acks(), 0);
    let stats = w.node.stats();
    assert_eq!((stats.superseded_acks, stats.released_acks, stats.triple_dup_acks), (2, 0, 0));
    let Some(Event::Released { reason, acks, held, .. }) = w.node.poll_event() else { panic!("an event") };
    assert_eq!((reason, acks, held), (ReleaseReason::Filled, 2, Duration::from_millis(30)));
}

#[test]
fn the_timer_releases_all_in_order_and_then_nothing_is_held_until_the_window_is_acknowledged() {
    let mut w = World::new(config(Some(50.0)), true);
    w.handshake();
    for n in 0..10 {
        w.data(n, 1000);
    }
    w.ack(1000);
    for right in [3000, 4000, 5000, 6000] {
        w.dup(1000, 2000, right);
    }
    w.pass(Duration::from_millis(49));
    assert_eq!(w.out.len(), 3);
    w.pass(Duration::from_millis(1));
    assert_eq!(w.out.len(), 5);
    assert_eq!(w.node.stats().triple_dup_acks, 1);
    let sacked: Vec<u32> = w.out.iter().skip(1).map(|p| world::sacked(p)).collect();
    assert_eq!(sacked, [3000, 4000, 5000, 6000]);
    // A partial acknowledgment: the sender is in recovery and clocked by the duplicates.
    w.dup(1000, 2000, 7000);
    assert_eq!(w.ack(8000), 7);
    w.dup(8000, 9000, 10_000);
    w.dup(8000, 9000, 10_000);
    w.dup(8000, 9000, 10_000);
    w.dup(8000, 9000, 10_000);
    assert_eq!(w.out.len(), 11);
    // All data is acknowledged: the next gap is handled from the start.
    for n in 10..16 {
        w.data(n, 1000);
    }
    w.ack(11_000);
    for right in [13_000, 14_000, 15_000] {
        w.dup(11_000, 12_000, right);
    }
    assert_eq!((w.out.len(), w.node.held_acks()), (14, 1));
}

#[test]
fn information_that_later_acks_may_not_repeat_is_never_held_nor_reordered() {
    type Change = fn(&mut TcpHeader);
    let cases: [(ReleaseReason, Change); 6] = [
        (ReleaseReason::Handshake, |h| h.flags |= TcpFlags::RST),
        (ReleaseReason::Data, |h| h.flags |= TcpFlags::FIN),
        (ReleaseReason::Data, |h| h.flags |= TcpFlags::URG),
        (ReleaseReason::Ecn, |h| h.flags |= TcpFlags::ECE),
        (ReleaseReason::Dsack, |h| {
            let mut sack = SackBlocks::default();
            sack.push(1, 500);
            sack.push(2000, 6000);
            h.options.sack = sack;
        }),
        (ReleaseReason::Window, |h| h.window = 0),
    ];
    for (reason, change) in cases {
        let mut w = World::new(config(Some(50.0)), false);
        w.handshake();
        for n in 0..10 {
            w.data(n, 1000);
        }
        w.ack(1000);
        for right in [3000, 4000, 5000] {
            w.dup(1000, 2000, right);
        }
        assert_eq!(w.node.held_acks(), 1);
        let mut header = w.dup_header(1000, 2000, 6000);
        change(&mut header);
        let last = w.uplink_packet(&header, &[]);
        w.up(last.clone());
        assert_eq!((w.out.len(), w.node.held_acks()), (5, 0), "{reason:?}");
        assert_eq!(w.out[4], last);
        assert_eq!(w.node.stats().releases[reason.index()], 1, "{reason:?}");
    }
}

#[test]
fn a_zero_window_is_forwarded_each_time() {
    let mut w = World::new(config(Some(50.0)), false);
    w.handshake();
    for n in 0..10 {
        w.data(n, 1000);
    }
    w.ack(1000);
    for right in [3000, 4000, 5000] {
        w.dup(1000, 2000, right);
    }
    assert_eq!(w.node.held_acks(), 1);
    // The sender sends window probes, and gives up a UE that does not answer.
    for sent in [5, 6, 7] {
        let header = TcpHeader { window: 0, ..w.dup_header(1000, 2000, 5000) };
        let packet = w.uplink_packet(&header, &[]);
        w.up(packet);
        assert_eq!((w.out.len(), w.node.held_acks()), (sent, 0));
    }
}

#[test]
fn hidden_blocks_leave_when_the_timer_runs_out_and_never_if_the_gap_closes() {
    let mut c = config(Some(50.0));
    c.dida = c.dida.map(|dida| DidaConfig { hide_sack: true, ..dida });
    let mut w = World::new(c, false);
    w.handshake();
    for n in 0..20 {
        w.data(n, 1000);
    }
    // The ACK advances and reports the next gap; a duplicate reports it again.
    let tells = |w: &mut World, ack, right| {
        let header = w.dup_header(ack, ack + 1000, right);
        let packet = w.uplink_packet(&header, &[]);
        w.up(packet);
    };
    tells(&mut w, 1000, 3000);
    w.dup(1000, 2000, 4000);
    assert_eq!((w.acks(), w.node.held_acks()), (vec![1000], 2), "without blocks no duplicate is let through");
    tells(&mut w, 4000, 6000);
    assert_eq!((w.acks(), w.node.held_acks()), (vec![1000, 4000], 1));
    let blocks = |p: &[u8]| parse_packet(p).expect("the checksum is right").header.options.sack;
    assert!(w.out.iter().all(|p| blocks(p).as_slice().is_empty()));
    w.pass(Duration::from_millis(50));
    assert_eq!((w.acks(), w.node.held_acks()), (vec![1000, 4000, 4000], 0));
    assert_eq!(world::sacked(&w.out[2]), 6000);
    // The sender has been informed and remains so.
    tells(&mut w, 6000, 9000);
    assert_eq!((world::sacked(&w.out[3]), w.node.held_acks()), (9000, 0));
    let stats = w.node.stats();
    assert_eq!((stats.hidden_gaps, stats.superseded_acks, stats.released_acks), (2, 2, 1));
}

#[test]
fn a_duplicate_sack_is_forwarded_at_once_and_its_other_blocks_are_held() {
    let mut c = config(Some(50.0));
    c.dida = c.dida.map(|dida| DidaConfig { hide_sack: true, ..dida });
    let mut w = World::new(c, false);
    w.handshake();
    for n in 0..20 {
        w.data(n, 1000);
    }
    w.ack(2000);
    let base = w.base;
    let up = |w: &mut World, ack, blocks: &[(u32, u32)]| {
        let mut header = w.dup_header(ack, 0, 0);
        header.options.sack = SackBlocks::default();
        for (left, right) in blocks {
            header.options.sack.push(base.wrapping_add(*left), base.wrapping_add(*right));
        }
        let packet = w.uplink_packet(&header, &[]);
        w.up(packet);
    };
    let edges = |p: &[u8]| {
        let sack = parse_packet(p).expect("the checksum is right").header.options.sack;
        sack.as_slice().iter().map(|(_, right)| right.wrapping_sub(base)).collect::<Vec<_>>()
    };
    // On a duplicate, on its own, and on an ACK that advances.
    up(&mut w, 2000, &[(0, 1000), (3000, 4000)]);
    up(&mut w, 2000, &[(0, 1000)]);
    up(&mut w, 5000, &[(1000, 2000), (6000, 7000), (8000, 9000)]);
    assert_eq!(w.acks(), [2000, 2000, 2000, 5000]);
    let said: Vec<_> = w.out.iter().map(|p| edges(p)).collect();
    assert_eq!(said, [vec![], vec![1000], vec![1000], vec![2000]]);
    assert_eq!(w.node.held_acks(), 1);
    w.pass(Duration::from_millis(50));
    assert_eq!(edges(&w.out[4]), [7000, 9000], "and is sent only once");
    assert_eq!(w.node.stats().releases[ReleaseReason::Dsack.index()], 0);
}

#[test]
fn a_wrong_checksum_does_not_supersede() {
    let mut w = World::new(config(Some(50.0)), false);
    w.handshake();
    for n in 0..10 {
        w.data(n, 1000);
    }
    w.ack(1000);
    for right in [3000, 4000, 5000] {
        w.dup(1000, 2000, right);
    }
    let mut packet = w.uplink_packet(&w.ack_header(6000), &[]);
    packet[36] ^= 1;
    w.up(packet);
    assert_eq!((w.out.len(), w.node.held_acks()), (4, 1), "it is forwarded, and nothing is dropped");
    assert_eq!(w.node.stats().passed[PassReason::BadChecksum.index()], 1);
}

#[test]
fn without_dida_all_passes() {
    let mut w = World::new(config(None), false);
    w.handshake();
    for n in 0..10 {
        w.data(n, 1000);
    }
    w.ack(1000);
    for right in 3..8 {
        w.dup(1000, 2000, right * 1000);
    }
    assert_eq!((w.out.len(), w.node.stats().triple_dup_acks, w.node.stats().dup_acks_passed), (6, 1, 5));
}

#[test]
fn as_an_element_it_does_the_same() {
    #[derive(Default)]
    struct Out(Vec<(anabranch_element::Port, Packet)>, usize);
    impl Sink<Event> for Out {
        fn transmit(&mut self, port: anabranch_element::Port, packet: Packet) {
            self.0.push((port, packet));
        }
        fn event(&mut self, _: Event) {
            self.1 += 1;
        }
    }
    let mut w = World::new(config(Some(50.0)), false);
    let mut side = UeElement::new(UeSide::new(&w.node.config().ues[0]).unwrap());
    let mut out = Out::default();
    let now = Instant::from_millis(5);
    for n in 0..6 {
        let packet = w.segment(n * 1000, 1000, TcpFlags::ACK);
        w.node.on_packet(Node::BACKHAUL, Packet::new(now, packet), now);
    }
    drive(&mut w.node, now, &mut out);
    let ports: Vec<_> = out.0.iter().map(|(port, _)| *port).collect();
    assert_eq!(ports.iter().filter(|port| **port == Node::WIFI).count(), 3);
    for (port, packet) in out.0.drain(..) {
        side.on_packet(port, packet, now);
        let (port, packet) = side.poll_transmit(now).expect("it arrives");
        assert_eq!(port, UeElement::IP);
        assert_eq!(parse_packet(&packet).unwrap().dst.ip(), w.address(Leg::Lte));
    }
    for header in [
        w.ack_header(0),
        w.dup_header(0, 1000, 2000),
        w.dup_header(0, 1000, 3000),
        w.dup_header(0, 1000, 4000),
    ] {
        let packet = w.uplink_packet(&header, &[]);
        side.on_packet(UeElement::IP, Packet::new(now, packet), now);
        let (port, packet) = side.poll_transmit(now).expect("it leaves");
        w.node.on_packet(port, packet, now);
    }
    let next = drive(&mut w.node, now, &mut out);
    assert_eq!((out.0.len(), next), (3, Some((Instant::from_millis(55), "held ACKs"))));
    drive(&mut w.node, Instant::from_millis(55), &mut out);
    assert_eq!((out.0.len(), out.1), (4, 1));
    w.node.on_command(Command::Steering(Steering::FixedRatio { lte_percent: -1.0 }), now);
    drive(&mut w.node, now, &mut out);
    assert_eq!(out.1, 2, "a refusal is an event");
}

/// As an IOAM node it fills traces in both directions. It reports no queue and no drops, which occur behind it.
#[test]
fn traces_are_filled_both_ways() {
    use anabranch_element::ioam::{IoamConfig, IoamStats};
    use anabranch_wire::ioam::{
        HOP_BY_HOP, Snapshot, TraceHeader, TraceKind, TraceType, TraceView, emit_trace_header, insert,
        report, trace_header_len, trace_range,
    };
    let mut w = World::new(config(None), true);
    w.node.set_ioam(IoamConfig { node_id: 5, namespace: 123 }.node(Duration::ZERO));
    let traced = |from, to| {
        let mut packet = emit_packet(from, to, &TcpHeader::default(), &[1; 800]).unwrap();
        let mut header = vec![0; trace_header_len(9)];
        emit_trace_header(6, &TraceHeader::new(123, TraceType::REPORTED, 9), &mut header).unwrap();
        insert(&mut packet, HOP_BY_HOP, &header).unwrap();
        packet
    };
    let mut down = traced(w.server, w.ue);
    let before = down.len();
    assert_eq!(w.node.downlink(&mut down, w.now), Leg::Lte, "as all with extension headers");
    w.up(traced(w.ue, w.server));
    for packet in [&down, &w.out[0]] {
        assert_eq!(packet.len(), before);
        let trace = TraceView::parse(&packet[trace_range(packet).unwrap().unwrap()], TraceKind::PreAllocated)
            .unwrap();
        let node = trace.nodes().next().unwrap();
        assert_eq!((node.hop.unwrap().node_id, node.queue_depth), (Some(5), None));
        let told = Snapshot::parse(node.snapshot.unwrap()).unwrap().unwrap();
        assert_eq!((told.queue_drops, told.link_kbps, told.capacity_bytes), (None, None, None));
        assert!(!report(packet, 255).unwrap().unwrap().complete);
    }
    // The trace is full now.
    w.node.downlink(&mut down, w.now);
    assert_eq!(w.node.ioam_stats(), IoamStats { marked: 2, no_room: 1, ..IoamStats::default() });
}
