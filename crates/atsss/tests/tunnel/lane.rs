//! Packets of the TCP lane between the tunnel ends: each takes the access given by its address, and none of
//! another session passes.

use crate::world::{SERVER, Setup, UE_IP, World};
use crate::{connected, rule};
use anabranch_atsss::drops::DropReason;
use anabranch_atsss::session::{Security, SessionParams};
use anabranch_atsss::tcp_lane::{PORT, UPF, address};
use anabranch_atsss::ue::{UeCommand, UeEvent};
use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant};
use anabranch_element::{Element, Port};
use anabranch_steer::{Functionality, PathSet, Rule, SteeringMode, active_standby};
use anabranch_wire::ip::{FlowKey, parse_udp, protocol, udp_datagram};
use anabranch_wire::tcp::{TcpFlags, TcpHeader, TcpOptions, emit_packet, parse_packet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Larger than control packets, smaller than the tunnel's MTU.
const BYTES: usize = 1000;

/// A rule that sends packets by Wi-Fi, and flows by the lane.
fn rules() -> Vec<Rule> {
    let steering = SteeringMode::ActiveStandby(active_standby::Params {
        primary: "wifi".into(),
        rotate_packets: 0,
        leave_above_loss_percent: 5,
    });
    vec![Rule { functionality: Functionality::Mptcp, ..rule(steering).remove(0) }]
}

fn with_lane(security: Security) -> World {
    let params = SessionParams { tcp_lane: true, ..SessionParams::default() };
    connected(Setup { security: [security; 2], upf_rules: rules(), params, ..Setup::default() })
}

fn segment(from: impl Into<IpAddr>, to: impl Into<IpAddr>, seq: u32) -> Vec<u8> {
    let header = TcpHeader { seq, flags: TcpFlags::ACK, ..TcpHeader::default() };
    let [from, to] = [SocketAddr::new(from.into(), PORT), SocketAddr::new(to.into(), PORT)];
    emit_packet(from, to, &header, &[0; BYTES]).unwrap()
}

fn send_up(w: &mut World, packet: Vec<u8>) {
    w.ue.on_packet(Port(0), Packet::new(w.now, packet), w.now);
    w.run_until(w.now);
}

fn send_down(w: &mut World, packet: Vec<u8>) {
    w.upf.on_packet(Port(0), Packet::new(w.now, packet), w.now);
    w.run_until(w.now);
}

fn seqs(at: &[(Instant, Vec<u8>)]) -> Vec<u32> {
    at.iter().map(|(_, packet)| parse_packet(packet).unwrap().header.seq).collect()
}

#[test]
fn a_packet_takes_the_access_its_address_names_both_ways() {
    for security in [Security::Secure, Security::Plain] {
        let mut w = with_lane(security);
        assert!(w.ue_events.iter().any(|(_, event)| *event == UeEvent::TcpLane(true)), "it is offered");
        for (path, counts) in [[50, 0], [50, 50]].into_iter().enumerate() {
            let ue = address(UE_IP, path as u8);
            if path == 0 {
                w.tap.clear();
            }
            for seq in 0..50 {
                send_up(&mut w, segment(ue, UPF, seq));
                send_down(&mut w, segment(UPF, ue, seq));
                w.run_ms(1);
            }
            assert_eq!(w.tapped(true, BYTES), counts, "{security:?}");
            assert_eq!(w.tapped(false, BYTES), counts, "{security:?}");
        }
        w.run_ms(100);
        // Order is kept per access, and the accesses do not wait for each other.
        for at in [&w.at_server, &w.at_device] {
            let mut seqs = seqs(at);
            seqs.sort_unstable();
            assert!(seqs.iter().copied().eq((0..50).flat_map(|seq| [seq; 2])), "{security:?} {seqs:?}");
        }
        // The faster access first, although the slower one takes 5 ms longer and was requested first.
        w.at_server.clear();
        send_up(&mut w, segment(address(UE_IP, 0), UPF, 0));
        send_up(&mut w, segment(address(UE_IP, 1), UPF, 1));
        let sent = w.now;
        w.run_ms(50);
        assert_eq!(seqs(&w.at_server), [1, 0]);
        assert!(w.at_server[0].0 - sent < Duration::from_millis(6), "{security:?}");
    }
}

#[test]
fn while_an_access_is_down_another_one_carries_its_packets() {
    for (down, up) in [(0, 1), (1, 0)] {
        let mut w = with_lane(Security::Secure);
        let ue = address(UE_IP, down);
        w.channels[usize::from(down)].cut = true;
        w.ue.on_command(UeCommand::Carrier { path: down, up: false }, w.now);
        w.run_ms(300);
        w.tap.clear();
        send_up(&mut w, segment(ue, UPF, 1));
        send_down(&mut w, segment(UPF, ue, 2));
        let mut counts = [0; 2];
        counts[up] = 1;
        assert_eq!((w.tapped(true, BYTES), w.tapped(false, BYTES)), (counts, counts));
        w.run_ms(50);
        assert_eq!((seqs(&w.at_server), seqs(&w.at_device)), (vec![1], vec![2]));
    }
}

/// An access that the UE avoids carries packets of the lane only where there is no other one, in either direction: the UPF follows.
#[test]
fn an_access_to_be_avoided_carries_nothing_both_ways_while_there_is_another_one() {
    let mut w = with_lane(Security::Secure);
    let of = |paths: &[u8]| paths.iter().copied().collect::<PathSet>();
    let by = |w: &mut World, named: u8| {
        w.tap.clear();
        send_up(w, segment(address(UE_IP, named), UPF, 1));
        w.run_ms(50);
        send_down(w, segment(UPF, address(UE_IP, named), 2));
        w.run_ms(50);
        assert_eq!(w.tapped(true, BYTES), w.tapped(false, BYTES));
        w.tapped(true, BYTES)
    };
    let (first, second) = ([1, 0], [0, 1]);
    for (avoided, expected) in [
        (vec![], [first, second]),
        (vec![0], [second, second]),
        (vec![1], [first, first]),
        (vec![0, 1], [second, second]),
        (vec![], [first, second]),
    ] {
        w.ue.on_command(UeCommand::LaneAvoids(of(&avoided)), w.now);
        let all = (w.ue.lane_starts().len(), [by(&mut w, 0), by(&mut w, 1)]);
        assert_eq!(all, (2, expected), "{avoided:?}");
    }
    // The only one that is up is taken, avoided or not.
    w.ue.on_command(UeCommand::LaneAvoids(of(&[1])), w.now);
    w.channels[0].cut = true;
    w.ue.on_command(UeCommand::Carrier { path: 0, up: false }, w.now);
    w.run_ms(300);
    assert_eq!([by(&mut w, 0), by(&mut w, 1)], [second, second]);
}

#[test]
fn what_does_not_fit_the_session_is_dropped_at_its_own_end_and_by_the_other() {
    let own = address(UE_IP, 0);
    let [other, no_path] = [address(Ipv4Addr::new(10, 45, 0, 3), 0), address(UE_IP, 7)];
    let stray = Ipv6Addr::new(0xfd6b, 0x97c2, 0x5e1a, 0, 0, 0, 0, 2);
    let mut w = with_lane(Security::Secure);
    for (from, to) in [(other, UPF), (own, stray), (own, other), (UPF, own), (stray, UPF)] {
        let before = w.ue.drops().get(DropReason::SpoofedSource);
        send_up(&mut w, segment(from, to, 0));
        assert_eq!(w.ue.drops().get(DropReason::SpoofedSource), before + 1, "{from} to {to}");
    }
    for (from, to) in [(own, own), (stray, own), (other, own)] {
        let before = w.upf.drops().get(DropReason::SpoofedSource);
        send_down(&mut w, segment(from, to, 0));
        assert_eq!(w.upf.drops().get(DropReason::SpoofedSource), before + 1, "{from} to {to}");
    }
    let before = w.upf.drops().get(DropReason::NoSession);
    send_down(&mut w, segment(UPF, other, 0));
    assert_eq!(w.upf.drops().get(DropReason::NoSession), before + 1);
    // A path that the session does not have is treated as one that is down.
    send_up(&mut w, segment(no_path, UPF, 5));
    w.run_ms(50);
    assert_eq!((seqs(&w.at_server), seqs(&w.at_device)), (vec![5], vec![]));
}

/// A lying UE: packets that its own end would have dropped are put on the wire.
#[test]
fn the_upf_checks_lane_packets_itself() {
    let mut w = with_lane(Security::Plain);
    let [own, second] = [0, 1].map(|path| address(UE_IP, path));
    let other = address(Ipv4Addr::new(10, 45, 0, 3), 0);
    w.tap.clear();
    send_up(&mut w, segment(own, UPF, 0));
    w.run_ms(50);
    let (_, _, path, datagram) = w.tap.iter().find(|(_, up, _, p)| *up && p.len() > BYTES).unwrap().clone();
    let (from, to, payload) = parse_udp(&datagram).unwrap();
    let (overhead, payload) = (payload.len() - segment(own, UPF, 0).len(), datagram[payload].to_vec());
    for (src, dst, reason) in [
        (own, second, DropReason::SpoofedSource),
        (own, other, DropReason::SpoofedSource),
        (other, UPF, DropReason::UnknownEndpoint),
        (UPF, own, DropReason::UnknownEndpoint),
    ] {
        let lie = [&payload[..overhead], &segment(src, dst, 0)].concat();
        let before = w.upf.drops().get(reason);
        w.inject(true, path + 1, udp_datagram(from, to, &lie).unwrap(), Duration::ZERO);
        w.run_ms(5);
        assert_eq!(w.upf.drops().get(reason), before + 1, "{src} to {dst}: {:?}", w.upf.drops());
    }
    assert_eq!(w.at_server.len(), 1);
}

#[test]
fn without_a_lane_its_addresses_belong_to_no_session() {
    let mut w = connected(Setup { upf_rules: rules(), ..Setup::default() });
    let ue = address(UE_IP, 0);
    send_up(&mut w, segment(ue, UPF, 0));
    send_down(&mut w, segment(UPF, ue, 0));
    w.run_ms(50);
    assert!(w.at_server.is_empty() && w.at_device.is_empty());
    assert_eq!(w.ue.drops().get(DropReason::SpoofedSource), 1);
    assert_eq!(w.upf.drops().get(DropReason::SpoofedSource), 1);
    assert!(!w.ue_events.iter().any(|(_, event)| *event == UeEvent::TcpLane(true)));
}

/// Both ends limit the MSS of a subflow, as of any TCP connection.
#[test]
fn the_largest_lane_segment_fits_the_tunnel() {
    let mut w = with_lane(Security::Secure);
    let options = TcpOptions { mss: Some(8960), ..TcpOptions::default() };
    let header = TcpHeader { flags: TcpFlags::SYN, options, ..TcpHeader::default() };
    let [ue, upf] = [address(UE_IP, 0), UPF].map(|ip| SocketAddr::new(ip.into(), PORT));
    send_up(&mut w, emit_packet(ue, upf, &header, &[]).unwrap());
    send_down(&mut w, emit_packet(upf, ue, &header, &[]).unwrap());
    w.run_ms(50);
    for at in [&w.at_server, &w.at_device] {
        let syn = parse_packet(&at[0].1).unwrap();
        let most = w.ue_config.params.inner_mtu - 60;
        assert_eq!(syn.header.options.mss, Some(most));
    }
}

/// Packets that the lane does not carry follow the rule, in both directions.
#[test]
fn packets_of_programs_are_steered_by_the_rule_and_the_verdict_is_the_lane() {
    let mut w = with_lane(Security::Secure);
    w.tap.clear();
    for seq in 0..20 {
        send_up(&mut w, segment(UE_IP, SERVER, seq));
        send_down(&mut w, segment(SERVER, UE_IP, seq));
        w.run_ms(1);
    }
    w.run_ms(50);
    assert_eq!((w.tapped(true, BYTES), w.tapped(false, BYTES)), ([0, 20], [0, 20]));
    assert_eq!((w.at_server.len(), w.at_device.len()), (20, 20));
    let key = FlowKey {
        src: UE_IP.into(),
        dst: SERVER.into(),
        src_port: 4000,
        dst_port: 443,
        protocol: protocol::TCP,
    };
    assert_eq!(w.ue.verdict(&key, None, w.now).functionality, Functionality::Mptcp);
}

#[test]
fn a_connection_begins_on_the_access_with_the_shortest_expected_handshake() {
    let order = |w: &World| w.ue.lane_starts().iter().map(|start| start.path).collect::<Vec<_>>();
    for security in [Security::Plain, Security::Secure] {
        let mut w = with_lane(security);
        assert_eq!(order(&w), [1, 0], "by the fastest access first: {:?}", w.ue.lane_starts());
        w.run_ms(5000);
        assert_eq!(order(&w), [1, 0]);
        for towards_upf in [None, Some(true), Some(false)] {
            w.channels.iter_mut().for_each(|channel| channel.lossy_towards_upf = towards_upf);
            w.channels[1].loss = 0.4;
            // Without any traffic, by probes only.
            w.run_ms(8000);
            assert_eq!(order(&w), [0, 1], "{:?}", w.ue.lane_starts());
            w.channels[1].loss = 0.0;
            w.run_ms(120_000);
            assert_eq!(order(&w), [1, 0], "{:?}", w.ue.lane_starts());
        }
        w.ue.on_command(UeCommand::Carrier { path: 1, up: false }, w.now);
        assert_eq!(order(&w), [0]);
        w.ue.on_command(UeCommand::Carrier { path: 0, up: false }, w.now);
        assert!(order(&w).is_empty());
    }
}
