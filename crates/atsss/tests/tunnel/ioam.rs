//! Both tunnel ends as IOAM nodes: the contents of a trace in an inner packet at the far end.

use super::standby;
use super::world::{Setup, World};
use anabranch_atsss::ue::IP_PORT;
use anabranch_atsss::upf::{N6_PORT, UpfCommand};
use anabranch_element::Element;
use anabranch_element::ioam::{IoamConfig, IoamStats};
use anabranch_element::packet::Packet;
use anabranch_element::time::Duration;
use anabranch_wire::ioam::{
    self, HOP_BY_HOP, Snapshot, TraceHeader, TraceKind, TraceType, TraceView, emit_trace_header,
    trace_header_len,
};
use anabranch_wire::tcp::{TcpHeader, emit_packet};
use std::net::SocketAddr;

const DEVICE: &str = "[fd45::2]:4711";
const SERVER: &str = "[fd00:3::1]:80";

fn traced(from: &str, to: &str) -> Vec<u8> {
    let ends: [SocketAddr; 2] = [from.parse().unwrap(), to.parse().unwrap()];
    let mut packet = emit_packet(ends[0], ends[1], &TcpHeader::default(), &[9; 700]).unwrap();
    let mut header = vec![0; trace_header_len(27)];
    let trace = TraceHeader::new(123, TraceType::REPORTED | TraceType::SECONDS | TraceType::FRACTION, 27);
    emit_trace_header(6, &trace, &mut header).unwrap();
    ioam::insert(&mut packet, HOP_BY_HOP, &header).unwrap();
    packet
}

/// Node id, queue depth, time of arrival in microseconds, and snapshot, in the order of the nodes.
fn said(packet: &[u8]) -> Vec<(u32, Option<u32>, u64, Snapshot)> {
    let range = ioam::trace_range(packet).unwrap().unwrap();
    let trace = TraceView::parse(&packet[range], TraceKind::PreAllocated).unwrap();
    let mut nodes: Vec<_> = trace
        .nodes()
        .map(|node| {
            let us = u64::from(node.seconds.unwrap()) * 1_000_000 + u64::from(node.fraction.unwrap());
            let snapshot = Snapshot::parse(node.snapshot.unwrap()).unwrap().unwrap();
            (node.hop.unwrap().node_id.unwrap(), node.queue_depth, us, snapshot)
        })
        .collect();
    nodes.reverse();
    nodes
}

fn world() -> World {
    let mut w = World::new(Setup { upf_rules: standby("5g"), ..Setup::default() });
    let mut entry = w.entry.clone();
    entry.addresses.v6 = Some("fd45::2".parse().unwrap());
    w.upf.command(UpfCommand::AddUe(entry), w.now).unwrap();
    w.ue.set_ioam(IoamConfig { node_id: 11, namespace: 123 }.node(Duration::ZERO));
    w.upf.set_ioam(IoamConfig { node_id: 22, namespace: 123 }.node(Duration::ZERO));
    w
}

#[test]
fn both_ends_write_in_the_order_of_the_way() {
    let mut w = world();
    w.run_ms(300);
    for _ in 0..3 {
        w.ue.on_packet(IP_PORT, Packet::new(w.now, traced(DEVICE, SERVER)), w.now);
        w.upf.on_packet(N6_PORT, Packet::new(w.now, traced(SERVER, DEVICE)), w.now);
        w.run_ms(60);
    }
    for (packets, way) in [(&w.at_server, [11, 22]), (&w.at_device, [22, 11])] {
        let traced: Vec<_> = packets.iter().filter(|(_, p)| p[0] >> 4 == 6).collect();
        assert_eq!(traced.len(), 3);
        let told = said(&traced[2].1);
        assert_eq!(told.iter().map(|node| node.0).collect::<Vec<_>>(), way);
        assert_eq!(told[1].2 - told[0].2, 10_000, "the way through the tunnel");
        for (_, depth, _, snapshot) in &told {
            assert_eq!((*depth, snapshot.flows), (Some(0), Some(1)));
            assert!(snapshot.arrival_kbps.is_some_and(|kbps| kbps > 50));
            // Drops by routers on the tunnel's path are unknown.
            assert_eq!(
                (snapshot.queue_drops, snapshot.medium_losses, snapshot.link_kbps),
                (None, None, None)
            );
        }
        let report = ioam::report(&traced[2].1, 0).unwrap().unwrap();
        assert!(!report.complete, "so a loss is taken for congestion");
    }
    let all = IoamStats { marked: 6, ..IoamStats::default() };
    assert_eq!((w.ue.ioam_stats(), w.upf.ioam_stats()), (all, all));
}

#[test]
fn packets_waiting_for_a_path_are_the_ues_queue() {
    let mut w = world();
    let bytes = traced(DEVICE, SERVER).len() as u32;
    for _ in 0..3 {
        w.ue.on_packet(IP_PORT, Packet::new(w.now, traced(DEVICE, SERVER)), w.now);
    }
    w.run_ms(500);
    let depths: Vec<_> = w.at_server.iter().map(|(_, packet)| said(packet)[0]).collect();
    assert_eq!(depths.iter().map(|node| node.1).collect::<Vec<_>>(), [Some(2 * bytes), Some(bytes), Some(0)]);
    assert!(depths.iter().all(|node| node.2 == 0), "when they came, not when they left");
}
