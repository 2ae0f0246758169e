//! Frames with VLAN tags over an emulated link.

use crate::net::{ANABRANCH, Namespace};
use crate::paths::{alone, until};
use anabranch_kern::packet::{Options, PacketSocket};
use anabranch_wire::ioam::{
    HOP_BY_HOP, TraceHeader, TraceKind, TraceType, TraceView, emit_trace_header, insert, trace_header_len,
    trace_range,
};
use anabranch_wire::tcp::{TcpHeader, emit_packet};

/// VLAN tags are kept, and a packet with tags is treated like any other: the link fills its trace.
#[test]
fn packets_behind_tags_are_marked_and_keep_them() {
    let Some(_alone) = alone() else { return };
    let Some(ns) = Namespace::new() else { return };
    for (near, far) in [("a0", "a1"), ("b0", "b1")] {
        ns.sh(&format!(
            "ip link add {near} type veth peer name {far}; ip link set {near} up; ip link set {far} up
             sysctl -qw net.ipv6.conf.{near}.disable_ipv6=1 net.ipv6.conf.{far}.disable_ipv6=1"
        ));
    }
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("link.log");
    let _link = ns.spawn(ANABRANCH, &["link", "--a", "a1", "--b", "b1", "--both", "ioam_node=9"], &log);
    let (src, dst) = ("[fd00::1]:1".parse().unwrap(), "[fd00::2]:2".parse().unwrap());
    let mut packet = emit_packet(src, dst, &TcpHeader::default(), &[7; 100]).unwrap();
    let mut header = vec![0; trace_header_len(18)];
    emit_trace_header(6, &TraceHeader::new(123, TraceType::REPORTED, 18), &mut header).unwrap();
    insert(&mut packet, HOP_BY_HOP, &header).unwrap();
    let (q, ad) = ([0x81, 0, 0x60, 7], [0x88, 0xa8, 0, 9]);
    for tags in [&[][..], &[q], &[ad], &[ad, q], &[q, q]] {
        let front = [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1][..], &tags.concat(), &[0x86, 0xdd]].concat();
        let frame = [&front[..], &packet].concat();
        let got = ns.run(move || {
            let [mut from, mut to] =
                ["a0", "b0"].map(|name| PacketSocket::open(name, &Options::default()).unwrap());
            let mut got = Vec::new();
            until("a frame passes", || {
                assert!(from.push(&frame));
                from.flush().unwrap();
                to.recv(|frame| got.push(frame.bytes.to_vec())).unwrap() > 0
            });
            got.remove(0)
        });
        let tags = tags.len();
        assert_eq!((&got[..front.len()], got.len()), (&front[..], front.len() + packet.len()), "{tags} tags");
        let passed = &got[front.len()..];
        let trace = TraceView::parse(&passed[trace_range(passed).unwrap().unwrap()], TraceKind::PreAllocated);
        let nodes: Vec<_> = trace.unwrap().nodes().filter_map(|node| node.hop?.node_id).collect();
        assert_eq!(nodes, [9], "{tags} tags");
    }
}
