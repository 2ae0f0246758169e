//! The source alone, at a router: what it makes of packets that pass.

// Packets take their time.
#![allow(clippy::disallowed_methods)]

use super::alone;
use crate::bpf::{Source, SourceConfig};
use crate::packet::{Options, PacketSocket};
use crate::tests::in_private_network;
use anabranch_wire::ioam::{self, TCP_MARK_KIND};
use anabranch_wire::tcp::{TcpHeader, TcpOptions, blank_option, emit_packet, parse_packet};
use std::time::Duration;

/// `x1` sends to the router's `x0`; what leaves by `v0`, where the source is, is seen at `v1`.
const NETWORK: &str = "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
for i in x v; do ip link add ${i}0 type veth peer name ${i}1; ip link set ${i}0 up; ip link set ${i}1 up; done
ip link set x0 address 02:00:00:00:00:02
ip -6 route add fd00::2/128 dev v0; ip -6 neigh add fd00::2 lladdr 02:00:00:00:00:03 dev v0";
const ETHERNET: usize = 14;
const IPV6_LEN: usize = 40;
const HOP_LIMIT: usize = 7;
const TCP_LEN: usize = 20;

/// What comes of a packet that passes, from its IPv6 header on.
fn passed(out: &mut PacketSocket, wire: &mut PacketSocket, packet: &[u8]) -> Vec<u8> {
    let frame = [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd][..], packet].concat();
    assert!(out.push(&frame));
    assert_eq!(out.flush().unwrap().sent, 1);
    // Longer than a flow's traces are apart at least.
    std::thread::sleep(Duration::from_millis(20));
    let (mut seen, ports) = (Vec::new(), [4711u16.to_be_bytes(), 5201u16.to_be_bytes()].concat());
    while wire
        .recv(|frame| {
            if frame.bytes.windows(ports.len()).any(|window| window == ports) {
                seen.push(frame.bytes[ETHERNET..].to_vec());
            }
        })
        .unwrap()
        > 0
    {}
    assert_eq!(seen.len(), 1, "one packet out, one seen");
    let mut packet = seen.remove(0);
    packet[HOP_LIMIT] += 1;
    packet
}

#[test]
fn data_with_time_stamps_is_marked_and_its_checksum_right() {
    let Some(_alone) = alone() else { return };
    in_private_network(NETWORK, || {
        let config = SourceConfig { every: 1, nodes: 1, beyond_headroom: true, ..SourceConfig::default() };
        let source = Source::attach("v0", config).unwrap();
        let mut out = PacketSocket::open("x1", &Options::default()).unwrap();
        let mut wire = PacketSocket::open("v1", &Options::default()).unwrap();
        let (src, dst) = ("[fd00::1]:4711".parse().unwrap(), "[fd00::2]:5201".parse().unwrap());
        let with = TcpOptions { timestamps: Some((1, 2)), ..TcpOptions::default() };
        let segment = |options: TcpOptions, data: &[u8]| {
            emit_packet(src, dst, &TcpHeader { seq: 9, options, ..TcpHeader::default() }, data).unwrap()
        };

        // As Linux orders them: the NOPs first. The checksum stays the same, for they go by whole words.
        let mut sent = segment(with, &[7; 301]);
        sent[IPV6_LEN + TCP_LEN..][..12].rotate_right(2);
        let mut marked = passed(&mut out, &mut wire, &sent);
        assert!(ioam::trace_range(&marked).unwrap().is_some());
        assert!(ioam::strip(&mut marked).is_ok());
        assert_eq!(marked[IPV6_LEN + TCP_LEN..][..4], [TCP_MARK_KIND, 2, 8, 10]);
        assert_eq!(parse_packet(&marked), parse_packet(&sent), "the checksum is right, the rest the same");
        assert_eq!(blank_option(&mut marked, TCP_MARK_KIND), Ok(true));
        assert_eq!(marked, sent);

        // A trace for monitors, and no mark: options that begin otherwise, and none.
        for unmarked in [segment(with, b"data"), segment(TcpOptions::default(), b"data")] {
            let mut bare = passed(&mut out, &mut wire, &unmarked);
            assert!(ioam::trace_range(&bare).unwrap().is_some());
            assert!(ioam::strip(&mut bare).is_ok());
            assert_eq!(bare, unmarked);
        }

        // Nothing at all.
        let ack = segment(with, b"");
        assert_eq!(passed(&mut out, &mut wire, &ack), ack);
        assert_eq!(source.counters().unwrap().traces_out, 3);
    });
}
