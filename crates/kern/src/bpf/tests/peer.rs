//! A sender that the kernel runs, and a peer that is this test: it says what the ACKs say.

use super::*;
use crate::packet::{Options, PacketSocket};
use crate::tests::in_private_network;
use anabranch_wire::ioam::{Bottleneck, HOP_BY_HOP};
use anabranch_wire::ip::{complete_checksum, fold, pseudo_header_sum, sum};
use anabranch_wire::tcp::{
    SackBlocks, TcpFlags, TcpHeader, TcpOptions, TcpPacket, emit_packet, parse_packet,
};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// What `v0` sends is seen at `v1`, and what is written there comes to it.
const WIRE: &str = "ip link add v0 address 02:00:00:00:00:01 type veth peer name v1 address 02:00:00:00:00:02
echo 1 > /proc/sys/net/ipv6/conf/v1/disable_ipv6; echo 1 > /proc/sys/net/ipv4/tcp_ecn
ip link set v0 up; ip link set v1 up; ip -6 addr add fd00::1/64 dev v0 nodad
ip -6 neigh add fd00::2 lladdr 02:00:00:00:00:02 dev v0";
const PORT: u16 = 5201;
/// Bytes of a segment: what `connect_to` sets, less the time stamps.
const MSS: u32 = 1200 - 12;

struct Peer {
    wire: PacketSocket,
    seen: VecDeque<TcpPacket>,
    sender: SocketAddr,
    own: SocketAddr,
    /// Of the kernel's sender: its first byte of data, and its newest time stamp.
    start: u32,
    stamp: u32,
    now: u32,
}

impl Peer {
    /// A connection of the kernel's, and its peer.
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
            // What it is given is what it has room for.
            stream.set_nonblocking(true).unwrap();
            (stream, peer)
        })
    }

    /// The next packet of the sender's that is wanted.
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

    /// Acknowledges so many segments.
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

    /// A packet to the sender, as it is.
    fn put(&mut self, packet: &[u8]) {
        let frame = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd][..], packet].concat();
        assert!(self.wire.push(&frame));
        assert_eq!(self.wire.flush().unwrap().sent, 1);
    }

    /// Acknowledges so many segments, and waits for the next; the packets that it came in and after, from their IPv6 headers on.
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

    /// What the sender's socket has come to, once that is so.
    fn sender_is(&self, what: &str, is: impl Fn(&SocketState) -> bool) -> SocketState {
        let mut found = None;
        until(what, || {
            found = sockets().unwrap().into_iter().find(|socket| socket.local == self.sender);
            found.as_ref().is_some_and(&is)
        });
        found.unwrap()
    }
}

/// A path on which nothing was dropped.
fn told() -> TcpOptions {
    let hop = Bottleneck { link_kbps: Some(20_000), ..Bottleneck::default() };
    let report = Report { flows: 1, complete: true, bottleneck: Some(hop), ..Report::default() };
    let mut options = TcpOptions::default();
    report.emit(&mut options.report).unwrap();
    options
}

/// Where nothing was dropped a loss is the medium's. An ECN mark is congestion all the same, and L1 and L2 give way to it.
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

/// TCP counts the segments of a large packet by their length: a trace in each makes them no more.
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

/// An ICMPv6 message that a packet was too big (RFC 4443 §3.2), from a router on the way.
fn too_big(packet: &[u8], mtu: u32) -> Vec<u8> {
    let (from, to) = ("fd00::9".parse::<Ipv6Addr>().unwrap(), "fd00::1".parse::<Ipv6Addr>().unwrap());
    let packet = &packet[..packet.len().min(1280 - 48)];
    let mut message = [&[2, 0, 0, 0][..], &mtu.to_be_bytes(), packet].concat();
    let check = fold(pseudo_header_sum(from.into(), to.into(), 58, message.len()) + sum(&message));
    message[2..4].copy_from_slice(&(!check).to_be_bytes());
    let length = (message.len() as u16).to_be_bytes();
    [&[0x60, 0, 0, 0, length[0], length[1], 58, 64][..], &from.octets(), &to.octets(), &message].concat()
}

/// A packet that the path does not carry for its trace, while it carries the segment: TCP does not change its segments for that
/// and would send it in vain for ever. This connection has no more such traces, and the next one to there begins without.
#[test]
fn a_trace_that_the_path_has_no_room_for_is_left_out() {
    let Some(_alone) = alone() else { return };
    in_private_network(WIRE, || {
        crate::interface::disable_offloads("v0").unwrap();
        let source = Source::attach("v0", loopback_source()).unwrap();
        let has_trace = |packet: &Vec<u8>| packet[6] == HOP_BY_HOP;
        let with_trace = MSS + 12 + 20 + 40 + 56;
        // What the path carries; whether that is enough.
        for (mtu, enough) in [(with_trace, true), (with_trace - 1, false)] {
            let (mut stream, mut peer) = Peer::connected("cubic");
            let mut first = None;
            let mut acknowledged = 0;
            let mut feed = |peer: &mut Peer| {
                let _ = stream.write(&[7; 20 * MSS as usize]);
                // Two round trips are longer than traces are apart.
                std::thread::sleep(std::time::Duration::from_millis(3));
                acknowledged += 1;
                peer.packets_after(acknowledged)
            };
            // What has been acknowledged nobody tells of.
            feed(&mut peer);
            for _ in 0..20 {
                first = first.or_else(|| feed(&mut peer).into_iter().find(has_trace));
            }
            let first = first.unwrap_or_else(|| panic!("no trace before anybody told of {mtu}"));
            assert_eq!(first.len(), with_trace as usize);
            peer.put(&too_big(&first, mtu));
            // One may be under way.
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
