//! The source alone, on a router: its effect on forwarded packets.

// Packets need real time.
#![allow(clippy::disallowed_methods)]

use super::alone;
use crate::bpf::{Source, SourceConfig};
use crate::packet::{Options, PacketSocket};
use crate::tests::in_private_network;
use anabranch_wire::ioam::{self, TCP_MARK_KIND};
use anabranch_wire::tcp::{TcpFlags, TcpHeader, TcpOptions, blank_option, emit_packet, parse_packet};
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

/// `x1` sends to the router's `x0`; packets that leave by `v0`, where the source is attached, are seen at `v1`.
const NETWORK: &str = "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
for i in x v; do ip link add ${i}0 type veth peer name ${i}1; ip link set ${i}0 up; ip link set ${i}1 up; done
ip link set x0 address 02:00:00:00:00:02
ip -6 route add fd00::2/128 dev v0; ip -6 neigh add fd00::2 lladdr 02:00:00:00:00:03 dev v0";
const ETHERNET: usize = 14;
const IPV6_LEN: usize = 40;
const HOP_LIMIT: usize = 7;
const TCP_LEN: usize = 20;

/// The form in which a forwarded packet arrives, from its IPv6 header on.
fn passed(out: &mut PacketSocket, wire: &mut PacketSocket, packet: &[u8]) -> Vec<u8> {
    let frame = [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd][..], packet].concat();
    assert!(out.push(&frame));
    assert_eq!(out.flush().unwrap().sent, 1);
    // Longer than the minimum interval between traces of a flow.
    std::thread::sleep(Duration::from_millis(20));
    let (mut seen, ports) = (Vec::new(), &packet[IPV6_LEN..][..4]);
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

        // The order of Linux: NOPs first. The checksum does not change, because whole words are moved.
        let mut sent = segment(with, &[7; 301]);
        sent[IPV6_LEN + TCP_LEN..][..12].rotate_right(2);
        let mut marked = passed(&mut out, &mut wire, &sent);
        assert!(ioam::trace_range(&marked).unwrap().is_some());
        assert!(ioam::strip(&mut marked).is_ok());
        assert_eq!(marked[IPV6_LEN + TCP_LEN..][..4], [TCP_MARK_KIND, 2, 8, 10]);
        assert_eq!(parse_packet(&marked), parse_packet(&sent), "the checksum is right, the rest the same");
        assert_eq!(blank_option(&mut marked, TCP_MARK_KIND), Ok(true));
        assert_eq!(marked, sent);

        // A trace for monitors, but no mark: options in another order, and none.
        for unmarked in [segment(with, b"data"), segment(TcpOptions::default(), b"data")] {
            let mut bare = passed(&mut out, &mut wire, &unmarked);
            assert!(ioam::trace_range(&bare).unwrap().is_some());
            assert!(ioam::strip(&mut bare).is_ok());
            assert_eq!(bare, unmarked);
        }

        // Neither.
        let ack = segment(with, b"");
        assert_eq!(passed(&mut out, &mut wire, &ack), ack);
        assert_eq!(source.counters().unwrap().traces_out, 3);
    });
}

/// Segments that open or close a connection carry no trace, even with data, because middleboxes inspect them.
#[test]
fn connections_are_made_and_closed_without() {
    let Some(_alone) = alone() else { return };
    in_private_network(NETWORK, || {
        let config = SourceConfig { every: 1, nodes: 1, beyond_headroom: true, ..SourceConfig::default() };
        let source = Source::attach("v0", config).unwrap();
        let mut out = PacketSocket::open("x1", &Options::default()).unwrap();
        let mut wire = PacketSocket::open("v1", &Options::default()).unwrap();
        let (src, dst) = ("[fd00::1]:4711".parse().unwrap(), "[fd00::2]:5201".parse().unwrap());
        let ack = TcpFlags::ACK;
        for flags in [TcpFlags::SYN, TcpFlags::SYN | ack, TcpFlags::FIN | ack, TcpFlags::RST | ack, ack] {
            let header = TcpHeader { seq: 9, flags, ..TcpHeader::default() };
            let sent = emit_packet(src, dst, &header, b"data").unwrap();
            let traced = passed(&mut out, &mut wire, &sent) != sent;
            assert_eq!(traced, flags == ack, "{flags:?}");
        }
        assert_eq!(source.counters().unwrap().traces_out, 1);
    });
}

/// One segment in a fixed number of each flow: other flows do not reduce a flow's traces.
#[test]
fn every_flow_has_its_traces() {
    let Some(_alone) = alone() else { return };
    in_private_network(NETWORK, || {
        let config = SourceConfig { every: 4, nodes: 1, beyond_headroom: true, ..SourceConfig::default() };
        let _source = Source::attach("v0", config).unwrap();
        let mut out = PacketSocket::open("x1", &Options::default()).unwrap();
        let mut wire = PacketSocket::open("v1", &Options::default()).unwrap();
        // Flows with the same hash share, which is rare: one of two attempts uses different ones.
        let shares = [1000u16, 2000].map(|first| {
            let mut is_traced = |port: u16| {
                let (src, dst) = (format!("[fd00::1]:{port}"), "[fd00::2]:5201".parse().unwrap());
                let sent = emit_packet(src.parse().unwrap(), dst, &TcpHeader::default(), b"data").unwrap();
                usize::from(passed(&mut out, &mut wire, &sent) != sent)
            };
            // In step: each fourth packet belongs to the thin flow.
            let rounds = (0..8).map(|_| {
                let bulk = (0..3).map(|_| is_traced(first)).sum::<usize>();
                [bulk, is_traced(first + 1)]
            });
            rounds.fold([0, 0], |sums, round| [sums[0] + round[0], sums[1] + round[1]])
        });
        assert!(shares.contains(&[6, 2]), "of 24 and 8 segments: {shares:?}");
    });
}

/// Runs a command that must succeed.
fn ip(words: &str) {
    let status = Command::new("ip").args(words.split_whitespace()).status().unwrap();
    assert!(status.success(), "ip {words}");
}

/// A source stays attached to a renamed interface, and reports when its interface is gone, or another one has the name.
#[test]
fn a_source_knows_its_interface() {
    let Some(_alone) = alone() else { return };
    in_private_network(NETWORK, || {
        let config = SourceConfig { every: 1, nodes: 1, beyond_headroom: true, ..SourceConfig::default() };
        let source = Source::attach("v0", config).unwrap();
        let mut out = PacketSocket::open("x1", &Options::default()).unwrap();
        let mut wire = PacketSocket::open("v1", &Options::default()).unwrap();
        let (src, dst) = ("[fd00::1]:4711".parse().unwrap(), "[fd00::2]:5201".parse().unwrap());
        let sent = emit_packet(src, dst, &TcpHeader::default(), b"data").unwrap();
        let mut is_traced = || passed(&mut out, &mut wire, &sent) != sent;
        assert!(is_traced() && !source.is_gone());
        ip("link set v0 name w0");
        assert!(is_traced() && !source.is_gone(), "called otherwise");
        ip("link add v0 type veth peer name other");
        assert!(source.is_gone(), "another has the name");
        ip("link del v0");
        ip("link set w0 name v0");
        assert!(is_traced() && !source.is_gone());

        // Moved to another network namespace and back, it is the same interface with the same index.
        let mut other = Command::new("unshare").args(["-n", "sleep", "60"]).spawn().unwrap();
        let pid = other.id();
        // SAFETY: the call takes nothing and always succeeds.
        let here = unsafe { libc::gettid() };
        super::until("the other namespace is there", || {
            let net = |id: &str| std::fs::read_link(format!("/proc/{id}/ns/net")).ok();
            net(&pid.to_string()) != net("thread-self")
        });
        ip(&format!("link set v0 netns {pid}"));
        let back = ["-n", "-t", &pid.to_string(), "ip", "link", "set", "v0", "netns", &here.to_string()];
        assert!(Command::new("nsenter").args(back).status().unwrap().success());
        let _ = other.kill();
        let _ = other.wait();
        ip("link set v0 up");
        ip("-6 route add fd00::2/128 dev v0");
        ip("-6 neigh add fd00::2 lladdr 02:00:00:00:00:03 dev v0");
        assert_eq!(
            source.is_gone(),
            !is_traced(),
            "it has no program and does not know, or the other way round"
        );
    });
}

/// A TUN device with this hardware type (linux/if_arp.h).
fn tun(kind: libc::c_ulong) -> File {
    const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
    const TUNSETLINK: libc::c_ulong = 0x4004_54cd;
    let tun = File::options().read(true).write(true).open("/dev/net/tun").unwrap();
    // SAFETY: an all-zero ifreq is a valid value; both calls read one, or take a number, and the descriptor is open.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[..2].copy_from_slice(&[b't' as libc::c_char, b'0' as libc::c_char]);
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
        assert_eq!(libc::ioctl(tun.as_raw_fd(), TUNSETIFF as _, &raw mut request), 0);
        assert_eq!(libc::ioctl(tun.as_raw_fd(), TUNSETLINK as _, kind), 0);
    }
    tun
}

/// Tunnels, PPP and modems have bare IP packets at their egress, like TUN devices.
#[test]
fn devices_for_bare_packets_have_traces() {
    let Some(_alone) = alone() else { return };
    in_private_network(NETWORK, || {
        let mut out = PacketSocket::open("x1", &Options::default()).unwrap();
        let (src, dst) = ("[fd00::1]:4711".parse().unwrap(), "[fd00::4]:5201".parse().unwrap());
        let sent = emit_packet(src, dst, &TcpHeader::default(), b"data").unwrap();
        // None, PPP, TUNNEL6, SIT, RAWIP.
        for kind in [0xfffe, 512, 769, 776, 519] {
            let mut tun = tun(kind);
            ip("link set t0 up");
            ip("-6 route add fd00::4/128 dev t0");
            let config =
                SourceConfig { every: 1, nodes: 1, beyond_headroom: true, ..SourceConfig::default() };
            let _source = Source::attach("t0", config).unwrap();
            let frame = [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd][..], &sent].concat();
            assert!(out.push(&frame));
            assert_eq!(out.flush().unwrap().sent, 1);
            // Among packets sent by the kernel itself.
            let passed = loop {
                let mut packet = [0; 2000];
                let n = tun.read(&mut packet).unwrap();
                if packet[24..40] == sent[24..40] {
                    break packet[..n].to_vec();
                }
            };
            let mut bare = passed.clone();
            assert!(ioam::strip(&mut bare).is_ok_and(|taken| taken > 0), "kind {kind}: {passed:02x?}");
            bare[HOP_LIMIT] += 1;
            assert_eq!(bare, sent, "kind {kind}");
        }
    });
}
