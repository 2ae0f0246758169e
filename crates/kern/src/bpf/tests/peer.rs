//! A sender in the kernel, and a peer implemented by this test, which determines the contents of the ACKs.

// They wait for the kernel, in real time.
#![allow(clippy::disallowed_methods)]

use super::*;
use crate::packet::{Options, PacketSocket};
use crate::tests::in_private_network;
use anabranch_wire::ioam::{
    Bottleneck, HOP_BY_HOP, Hop, NodeData, Opaque, SNAPSHOT_SCHEMA, Snapshot, TCP_MARK_KIND, TraceHeader,
    TraceType, emit_trace_header, fill, insert, report, trace_header_len, trace_range,
};
use anabranch_wire::ip::{complete_checksum, fold, pseudo_header_sum, sum, update_u16};
use anabranch_wire::tcp::{
    SackBlocks, TcpFlags, TcpHeader, TcpOptions, TcpPacket, emit_packet, parse_packet,
};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Packets sent by `v0` are seen at `v1`, and packets written there arrive at `v0`.
const WIRE: &str = "ip link add v0 address 02:00:00:00:00:01 type veth peer name v1 address 02:00:00:00:00:02
echo 1 > /proc/sys/net/ipv6/conf/v1/disable_ipv6; echo 1 > /proc/sys/net/ipv4/tcp_ecn
ip link set v0 up; ip link set v1 up; ip -6 addr add fd00::1/64 dev v0 nodad
ip -6 neigh add fd00::2 lladdr 02:00:00:00:00:02 dev v0";
const PORT: u16 = 5201;
/// Payload of a segment: the value set by `connect_to`, minus the time stamps.
const MSS: u32 = 1200 - 12;

struct Peer {
    wire: PacketSocket,
    seen: VecDeque<TcpPacket>,
    sender: SocketAddr,
    own: SocketAddr,
    /// The first data byte of the kernel's sender, and its newest time stamp.
    start: u32,
    stamp: u32,
    now: u32,
}

impl Peer {
    /// A connection of the kernel, and its peer.
    fn connected(controller: &str) -> (TcpStream, Self) {
        let wire = PacketSocket::open("v1", &Options::default()).unwrap();
        let own = SocketAddr::new("fd00::2".parse().unwrap(), PORT);
        let to = "fd00::2".parse::<Ipv6Addr>().unwrap();
        std::thread::scope(|scope| {
            let stream = scope.spawn(|| connect_to(to, PORT, controller));
            let mut peer = Self { wire, seen: VecDeque::new(), sender: own, own, start: 0, stamp: 0, now: 1 };
            let syn = peer.next(|packet| packet.header.flags.contains(TcpFlags::SYN));
            (peer.sender, peer.start) = (syn.src, syn.header.seq.wrapping_add(1));
            let options = TcpOptions { mss: Some(1400), sack_permitted: true, ..TcpOptions::default() };
            peer.send(0, TcpFlags::SYN | TcpFlags::ACK | TcpFlags::ECE, 0, options);
            let stream = stream.join().unwrap();
            // The send buffer determines how much data is written.
            stream.set_nonblocking(true).unwrap();
            (stream, peer)
        })
    }

    /// The next packet of the sender for which `wanted` is true.
    fn next(&mut self, wanted: impl Fn(&TcpPacket) -> bool) -> TcpPacket {
        let mut found = None;
        until("the sender sends", || {
            let Self { wire, seen, stamp, .. } = self;
            let _ = wire.recv(|frame| {
                let packet = &mut frame.bytes[14..];
                complete_checksum(packet);
                seen.extend(parse_packet(packet));
            });
            while found.is_none()
                && let Some(packet) = seen.pop_front()
            {
                *stamp = packet.header.options.timestamps.map_or(*stamp, |(value, _)| value);
                found = Some(packet).filter(&wanted);
            }
            found.is_some()
        });
        found.unwrap()
    }

    /// Acknowledges `segments` segments.
    fn send(&mut self, seq: u32, flags: TcpFlags, segments: u32, options: TcpOptions) {
        self.now += 1;
        let header = TcpHeader {
            seq,
            ack: self.start.wrapping_add(segments * MSS),
            flags,
            window: u16::MAX,
            options: TcpOptions { timestamps: Some((self.now, self.stamp)), ..options },
        };
        self.put(&emit_packet(self.own, self.sender, &header, &[]).unwrap());
    }

    /// Sends a packet to the sender.
    fn put(&mut self, packet: &[u8]) {
        let frame = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd][..], packet].concat();
        assert!(self.wire.push(&frame));
        assert_eq!(self.wire.flush().unwrap().sent, 1);
    }

    /// Acknowledges `segments` segments and waits for the next one; returns the packets received, starting with their IPv6 headers.
    fn packets_after(&mut self, segments: u32) -> Vec<Vec<u8>> {
        self.send(1, TcpFlags::ACK, segments, TcpOptions::default());
        let (port, mut packets) = (self.sender.port().to_be_bytes(), Vec::new());
        until("the sender sends", || {
            let from_there = |packet: &[u8]| packet.windows(2).take(300).any(|window| window == port);
            let _ = self
                .wire
                .recv(|frame| packets.extend(Some(frame.bytes[14..].to_vec()).filter(|p| from_there(p))));
            !packets.is_empty()
        });
        packets
    }

    /// Waits until `is` holds for the sender's socket, and returns its state.
    fn sender_is(&self, what: &str, is: impl Fn(&SocketState) -> bool) -> SocketState {
        let mut found = None;
        until(what, || {
            found = sockets().unwrap().into_iter().find(|socket| socket.local == self.sender);
            found.as_ref().is_some_and(&is)
        });
        found.unwrap()
    }
}

/// A path without drops.
fn told() -> TcpOptions {
    let hop = Bottleneck { link_kbps: Some(20_000), ..Bottleneck::default() };
    let report = Report { flows: 1, complete: true, bottleneck: Some(hop), ..Report::default() };
    let mut options = TcpOptions::default();
    report.emit(&mut options.report).unwrap();
    options
}

/// On a path without drops a loss is a medium loss. An ECN mark is congestion regardless, and L1 and L2 reduce their windows.
#[test]
fn a_mark_is_congestion_whatever_reports_say() {
    let Some(_alone) = alone() else { return };
    let Some(group) = own_group() else { return };
    in_private_network(WIRE, || {
        crate::interface::disable_offloads("v0").unwrap();
        for algorithm in [Algorithm::IntCubicL1, Algorithm::IntCubicL2] {
            let controllers = Controllers::load(&[algorithm], &IntConfig::default()).unwrap();
            let feedback = controllers.feedback(&group.path, &FeedbackConfig::default()).unwrap();
            for marked in [false, true] {
                let what = format!("{algorithm}, marked {marked}");
                let (mut stream, mut peer) = Peer::connected(algorithm.name());
                assert!(stream.write(&[7; 100 * MSS as usize]).unwrap() > 20 * MSS as usize);
                let last = peer.start.wrapping_add(9 * MSS);
                peer.next(|packet| packet.header.seq == last);
                peer.send(1, TcpFlags::ACK, 4, told());
                let before = peer.sender_is(&what, |socket| socket.report_age.is_some() && socket.fresh);
                assert!(before.complete, "{what}: {before:?}");
                if marked {
                    peer.send(1, TcpFlags::ACK | TcpFlags::ECE, 5, told());
                } else {
                    let mut sack = SackBlocks::default();
                    let at = |segment: u32| peer.start.wrapping_add(segment * MSS);
                    sack.push(at(5), at(10));
                    peer.send(1, TcpFlags::ACK, 4, TcpOptions { sack, ..told() });
                }
                let after =
                    peer.sender_is(&what, |socket| socket.losses_congestion + socket.losses_medium > 0);
                assert_eq!(
                    (after.losses_congestion, after.losses_medium),
                    if marked { (1, 0) } else { (0, 1) },
                    "{what}"
                );
                let (left, from) = (after.ssthresh.unwrap(), before.cwnd);
                let reduced = left <= from * 7 / 10 + 1;
                assert_eq!(reduced, marked, "{what}: {left} of {from}");
            }
            drop((feedback, controllers));
        }
    });
}

/// TCP counts the segments of a large packet by their length: a trace in each does not increase their number.
#[test]
fn a_trace_leaves_the_segments_of_a_large_packet_as_long() {
    let Some(_alone) = alone() else { return };
    in_private_network(WIRE, || {
        let tso = std::process::Command::new("ethtool").args(["-K", "v0", "tso", "off"]).status().unwrap();
        assert!(tso.success());
        let source = Source::attach("v0", loopback_source()).unwrap();
        let (mut stream, mut peer) = Peer::connected("cubic");
        assert!(stream.write(&[7; 100 * MSS as usize]).unwrap() > 20 * MSS as usize);
        let mut lengths = Vec::new();
        while lengths.len() < 10 {
            let data = peer.next(|packet| !packet.payload.is_empty());
            lengths.push(data.payload.len());
        }
        assert!(source.counters().unwrap().traces_out > 0);
        assert_eq!(lengths, [MSS as usize; 10]);
    });
}

/// An ICMPv6 packet-too-big message (RFC 4443 §3.2) from a router on the path.
fn too_big(packet: &[u8], mtu: u32) -> Vec<u8> {
    let (from, to) = ("fd00::9".parse::<Ipv6Addr>().unwrap(), "fd00::1".parse::<Ipv6Addr>().unwrap());
    let packet = &packet[..packet.len().min(1280 - 48)];
    let mut message = [&[2, 0, 0, 0][..], &mtu.to_be_bytes(), packet].concat();
    let check = fold(pseudo_header_sum(from.into(), to.into(), 58, message.len()) + sum(&message));
    message[2..4].copy_from_slice(&(!check).to_be_bytes());
    let length = (message.len() as u16).to_be_bytes();
    [&[0x60, 0, 0, 0, length[0], length[1], 58, 64][..], &from.octets(), &to.octets(), &message].concat()
}

/// A packet that exceeds the path MTU only because of its trace: TCP does not change its segments for this, and would retransmit
/// endlessly. This connection gets no further such traces, and the next one to that destination starts without.
#[test]
fn a_trace_that_the_path_has_no_room_for_is_left_out() {
    let Some(_alone) = alone() else { return };
    in_private_network(WIRE, || {
        crate::interface::disable_offloads("v0").unwrap();
        let source = Source::attach("v0", loopback_source()).unwrap();
        let has_trace = |packet: &Vec<u8>| packet[6] == HOP_BY_HOP;
        let with_trace = MSS + 12 + 20 + 40 + 56;
        // The path MTU, and whether it is sufficient.
        for (mtu, enough) in [(with_trace, true), (with_trace - 1, false)] {
            let (mut stream, mut peer) = Peer::connected("cubic");
            let mut first = None;
            let mut acknowledged = 0;
            let mut feed = |peer: &mut Peer| {
                let _ = stream.write(&[7; 20 * MSS as usize]);
                // Two round trips exceed the interval of traces.
                std::thread::sleep(std::time::Duration::from_millis(3));
                acknowledged += 1;
                peer.packets_after(acknowledged)
            };
            // After the acknowledgement no report is pending.
            feed(&mut peer);
            // The first connection to a destination gets an answer within two round trips; until then there is no further trace.
            for _ in 0..200 {
                first = first.or_else(|| feed(&mut peer).into_iter().find(has_trace));
            }
            let first = first.unwrap_or_else(|| panic!("no trace before anybody told of {mtu}"));
            assert_eq!(first.len(), with_trace as usize);
            peer.put(&too_big(&first, mtu));
            // One may be in flight.
            feed(&mut peer);
            let later = (0..20).flat_map(|_| feed(&mut peer)).filter(has_trace).count();
            assert_eq!(later > 0, enough, "{later} traces on a path of {mtu} bytes");
        }
        let skipped = source.counters().unwrap().traces_skipped;
        assert!(skipped > 0);
        let (mut stream, mut peer) = Peer::connected("cubic");
        let _ = stream.write(&[7; 100 * MSS as usize]);
        let traces = (1..20).flat_map(|n| peer.packets_after(n)).filter(has_trace).count();
        assert_eq!(traces, 0, "the next connection has traces that do not fit");
        assert!(source.counters().unwrap().traces_skipped > skipped);
    });
}

/// Data of a node: hop limit, queue depth, snapshot.
type HopRecord = (u8, u32, Option<Snapshot>);

/// A data segment of the peer with a trace written by these nodes, marked as by the source.
fn traced(peer: &Peer, nodes: &[HopRecord], more: TraceType, words: u8) -> Vec<u8> {
    let timestamps = Some((peer.now + 1, peer.stamp));
    let options = TcpOptions { timestamps, ..TcpOptions::default() };
    let (ack, flags, window) = (peer.start, TcpFlags::ACK, u16::MAX);
    let header = TcpHeader { seq: 1, ack, flags, window, options };
    let mut packet = emit_packet(peer.own, peer.sender, &header, b"data").unwrap();
    // The order of Linux, in whole words; then the mark replaces the NOPs.
    packet[60..72].rotate_right(2);
    let mark = [TCP_MARK_KIND, 2];
    let check = update_u16(u16::from_be_bytes([packet[56], packet[57]]), 0x0101, u16::from_be_bytes(mark));
    packet[56..58].copy_from_slice(&check.to_be_bytes());
    packet[60..62].copy_from_slice(&mark);
    let mut front = vec![0; trace_header_len(words)];
    emit_trace_header(6, &TraceHeader::new(123, TraceType::REPORTED | more, words), &mut front).unwrap();
    insert(&mut packet, HOP_BY_HOP, &front).unwrap();
    for (limit, depth, snapshot) in nodes {
        let data = snapshot.map(|snapshot| snapshot.emit());
        let node = NodeData {
            hop: Some(Hop { limit: *limit, node_id: Some(1) }),
            queue_depth: Some(*depth),
            snapshot: data.as_ref().map(|data| Opaque { schema: SNAPSHOT_SCHEMA, data }),
            ..NodeData::default()
        };
        let range = trace_range(&packet).unwrap().unwrap();
        fill(&mut packet[range], &node).unwrap();
    }
    packet
}

/// The report sent by the kernel's receiver for a packet, without its age.
fn answer(make: impl Fn(&Peer) -> Vec<u8>) -> (Vec<u8>, Option<[u8; 16]>) {
    let (_stream, mut peer) = Peer::connected("cubic");
    let packet = make(&peer);
    peer.put(&packet);
    let wanted = peer.start;
    for _ in 0..15 {
        std::thread::sleep(std::time::Duration::from_millis(10));
        let mut told = None;
        let sender = peer.sender;
        let _ = peer.wire.recv(|frame| {
            let packet = &mut frame.bytes[14..];
            complete_checksum(packet);
            let ack = parse_packet(packet).ok().filter(|ack| ack.src == sender && ack.header.ack == 5);
            told = told.or(ack.map(|ack| (ack.header.seq, ack.header.options.report)));
        });
        if let Some((seq, mut report)) = told {
            assert_eq!(seq, wanted);
            report[3] &= 0xe0;
            return (packet, Some(report).filter(|report| report[0] != 0));
        }
    }
    // The kernel dropped the packet.
    (packet, None)
}

/// The kernel's receiver and `wire::ioam::report` yield the same for correct, false and malformed traces.
#[test]
fn the_kernel_reads_traces_as_wire_does() {
    let Some(_alone) = alone() else { return };
    let Some(group) = own_group() else { return };
    in_private_network(WIRE, || {
        crate::interface::disable_offloads("v0").unwrap();
        let honest = Snapshot {
            arrival_kbps: Some(7_000),
            link_kbps: Some(20_000),
            capacity_bytes: Some(100_000),
            flows: Some(3),
            mcs: None,
            rb_half_percent: None,
            queue_drops: Some(0xfffe),
            medium_losses: Some(2),
        };
        let most = u32::MAX - 1;
        let liars = [
            Some(honest),
            None,
            Some(Snapshot { link_kbps: Some(0), ..honest }),
            Some(Snapshot { link_kbps: Some(most), arrival_kbps: Some(0), flows: Some(0), ..honest }),
            Some(Snapshot { link_kbps: None, ..honest }),
            Some(Snapshot { link_kbps: Some(9), flows: Some(0xfffe), arrival_kbps: Some(most), ..honest }),
            Some(Snapshot { flows: None, capacity_bytes: Some(most), ..honest }),
            Some(Snapshot {
                capacity_bytes: Some(0),
                queue_drops: Some(most),
                medium_losses: Some(most),
                ..honest
            }),
            Some(Snapshot { queue_drops: None, medium_losses: None, capacity_bytes: None, ..honest }),
        ];
        for known_routers in [0, 1] {
            let config = FeedbackConfig { known_routers, ..FeedbackConfig::default() };
            let feedback = Feedback::receiver(&group.path, &config).unwrap();
            let mut heard = 0;
            let mut is_the_same = |what: &str, make: &dyn Fn(&Peer) -> Vec<u8>| {
                let (packet, told) = answer(make);
                // Only traces of our source are read: the option is first, after an empty PadN, and requests hop limits.
                let ours = packet[40 + 2..][..3] == [1, 0, 0x31]
                    && packet[40 + 7] == 0
                    && packet[40 + 12] & 0x80 > 0;
                let report = report(&packet, known_routers).ok().flatten().filter(|_| ours);
                let wanted = report.map(|report| {
                    let mut option = [0; 16];
                    report.emit(&mut option).unwrap();
                    option
                });
                heard += usize::from(told.is_some());
                assert_eq!(told, wanted, "{what}, {known_routers} routers known");
            };
            for (at, liar) in liars.into_iter().enumerate() {
                for depth in [0, 99_000, 150_000, u32::MAX] {
                    let nodes = [(64, 10, Some(honest)), (64, depth, liar)];
                    is_the_same(&format!("liar {at}, queue {depth}"), &|peer| {
                        traced(peer, &nodes, TraceType::default(), 18)
                    });
                }
            }
            // Hop limits written by the nodes and at arrival: none, loops, jumps, an overflow.
            for limits in [&[][..], &[64], &[63, 64], &[62], &[255, 0], &[0, 0], &[64, 63, 62], &[64; 6]] {
                let nodes: Vec<HopRecord> = limits.iter().map(|limit| (*limit, 5, Some(honest))).collect();
                for arrived in [64, 63, 0, 255] {
                    is_the_same(&format!("hop limits {limits:?}, at last {arrived}"), &|peer| {
                        let mut packet = traced(peer, &nodes, TraceType::default(), 45);
                        packet[7] = arrived;
                        packet
                    });
                }
            }
            if known_routers > 0 {
                break;
            }
            // Every byte in front of the nodes and of the first node, corrupted in several ways; and the same with details.
            let details = TraceType::SECONDS | TraceType::FRACTION | TraceType::BUFFER;
            for (more, words) in [(TraceType::default(), 20), (details, 25)] {
                for at in (2..16).chain(16 + 8..16 + 8 + 24) {
                    for wrong in [0xff, 0x01, 0x10] {
                        is_the_same(&format!("byte {at} off by {wrong:#x}, {words} words"), &|peer| {
                            let mut packet =
                                traced(peer, &[(64, 7, None), (64, 10, Some(honest))], more, words);
                            packet[40 + at] ^= wrong;
                            packet
                        });
                    }
                }
            }
            assert!(heard > 50, "{heard} reports, which compares little");
            drop(feedback);
        }
    });
}
