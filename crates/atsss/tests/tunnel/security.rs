//! The settings of an access at both ends, in every combination: user data is in the clear only if both are
//! `plain`.

use super::world::{Setup, UE_IP, World, address, udp};
use super::{balance, standby};
use anabranch_atsss::destinations::Destinations;
use anabranch_atsss::drops::DropReason;
use anabranch_atsss::session::{PathView, Security, SessionEvent, SessionParams};
use anabranch_atsss::ue::{UeCommand, UeEvent};
use anabranch_atsss::upf::{UpfCommand, UpfEvent};
use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant};
use anabranch_element::{Element, Port};
use anabranch_wire::ip;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

const PLAIN: Security = Security::Plain;
const SECURE: Security = Security::Secure;
const WHY: &str = "security is plain at one end and secure at the other";

#[test]
fn packets_for_closed_destinations_are_dropped_and_reported_once() {
    let pool = ["10.45.0.0/16".parse().unwrap(), "fd45::/64".parse().unwrap()];
    let destinations = Destinations::new(pool, [Ipv4Addr::new(10, 45, 0, 1).into()], [], false);
    let params = SessionParams { destinations: Arc::new(destinations), ..SessionParams::default() };
    for (security, rules) in
        [PLAIN, SECURE].into_iter().flat_map(|s| [(s, standby("5g")), (s, balance(50, 50))])
    {
        let setup =
            Setup { security: [security; 2], upf_rules: rules, params: params.clone(), ..Setup::default() };
        let mut w = World::new(setup);
        w.entry.addresses.v6 = Some("fd45::2".parse().unwrap());
        w.upf.command(UpfCommand::AddUe(w.entry.clone()), w.now).unwrap();
        w.run_ms(1_000);
        let (mut open, mut closed) = (0, 0);
        for (number, (to, admitted)) in (0..).zip([
            ("9.9.9.9", true),
            ("10.45.0.1", true),
            ("10.45.0.3", false),
            ("192.168.1.1", false),
            ("100.64.0.1", false),
            ("169.254.169.254", false),
            ("127.0.0.1", false),
            ("255.255.255.255", false),
            ("2001:db8::1", true),
            ("fd45::3", false),
            ("fe80::1", false),
            ("::1", false),
            ("64:ff9b::a9fe:a9fe", false),
        ]) {
            let to: IpAddr = to.parse().unwrap();
            let from = if to.is_ipv4() { UE_IP.into() } else { "fd45::2".parse().unwrap() };
            let packet = udp(from, to, 5000, 9, number, 100);
            w.ue.on_packet(Port(0), Packet::new(w.now, packet), w.now);
            w.run_ms(50);
            (open, closed) = (open + usize::from(admitted), closed + u64::from(!admitted));
            assert_eq!(w.at_server.len(), open, "{to}, {security:?}");
            assert_eq!(w.upf.drops().get(DropReason::ClosedDestination), closed, "{to}, {security:?}");
        }
        let told =
            |e: &UpfEvent| matches!(e, UpfEvent::Session { event: SessionEvent::ClosedDestination(_), .. });
        assert_eq!(w.upf_events.iter().filter(|(_, e)| told(e)).count(), 1);
    }
}

/// Packets to closed destinations are no data, so a session that sends nothing else rests between them.
#[test]
fn a_resting_session_reports_closed_destinations_at_most_once_in_ten_minutes() {
    let pool = ["10.45.0.0/16".parse().unwrap()];
    let destinations = Destinations::new(pool, [], [], false);
    let params = SessionParams { destinations: Arc::new(destinations), ..SessionParams::default() };
    for security in [PLAIN, SECURE] {
        let setup = Setup {
            security: [security; 2],
            upf_rules: standby("5g"),
            params: params.clone(),
            ..Setup::default()
        };
        let mut w = World::new(setup);
        w.run_ms(30_000);
        let mut told = Vec::new();
        for number in 0..150 {
            let packet = udp(UE_IP.into(), Ipv4Addr::new(192, 168, 9, 9).into(), 5000, 9, number, 100);
            w.ue.on_packet(Port(0), Packet::new(w.now, packet), w.now);
            w.run_ms(10_000);
            assert!(w.view().resting);
            told.extend(w.upf_events.drain(..).filter_map(|(at, event)| match event {
                UpfEvent::Session { event: SessionEvent::ClosedDestination(_), .. } => Some(at),
                _ => None,
            }));
        }
        assert_eq!(w.upf.drops().get(DropReason::ClosedDestination), 150);
        assert_eq!(told.len(), 3, "in 25 minutes: {told:?}");
        let apart = told.windows(2).map(|pair| pair[1].saturating_since(pair[0]));
        assert!(apart.into_iter().all(|apart| apart >= Duration::from_secs(600)), "{told:?}");
    }
}

/// All settings of two accesses at one end.
fn settings() -> impl Iterator<Item = [Security; 2]> + Clone {
    [PLAIN, SECURE].into_iter().flat_map(|a| [PLAIN, SECURE].map(|b| [a, b]))
}

/// Bytes of the UDP payloads sent here, and of the datagram in which one is sealed.
const PAYLOAD: usize = 420;
const SEALED: usize = PAYLOAD + 28 + 40;

/// Datagrams of user data on one path, in both directions: in the clear, and sealed.
fn data(w: &World, path: u16) -> (usize, usize) {
    let (mut clear, mut sealed) = (0, 0);
    for (_, _, _, packet) in w.tap.iter().filter(|(_, _, on, _)| *on == path) {
        let (_, _, range) = ip::parse_udp(packet).unwrap();
        match packet[range.start] >> 4 {
            8 => clear += 1,
            4 if range.len() == SEALED => sealed += 1,
            _ => {}
        }
    }
    (clear, sealed)
}

fn refused_at_ue(w: &World, path: u8, here: Security) -> usize {
    let event = UeEvent::Session(SessionEvent::AccessRefused { path, here });
    w.ue_events.iter().filter(|(_, e)| *e == event).count()
}

fn refused_at_upf(w: &World, path: u8, here: Security) -> usize {
    let wanted = SessionEvent::AccessRefused { path, here };
    let is = |e: &UpfEvent| matches!(e, UpfEvent::Session { event, .. } if *event == wanted);
    w.upf_events.iter().filter(|(_, e)| is(e)).count()
}

/// Traffic in both directions for a while, then a check that the packets on the wire match the settings.
fn check(w: &mut World, ue: [Security; 2], upf: [Security; 2]) {
    let agreed: Vec<bool> = (0..2).map(|i| ue[i] == upf[i]).collect();
    let (up, down) = (w.at_server.len(), w.at_device.len());
    w.tap.clear();
    for n in 0..40 {
        w.up(n, PAYLOAD);
        w.down(n, PAYLOAD);
        w.run_ms(5);
    }
    w.run_ms(100);
    let mut carried = 0;
    for (path, agreed) in (0u8..).zip(&agreed) {
        let own = ue[usize::from(path)];
        let (clear, sealed) = data(w, path.into());
        let context = format!("path {path}, UE {ue:?}, UPF {upf:?}: {clear} clear, {sealed} sealed");
        assert!(clear == 0 || (*agreed && own == PLAIN), "{context}");
        assert!(*agreed || sealed == 0, "a refused access carries nothing: {context}");
        assert!(sealed == 0 || own == SECURE, "both want it plain: {context}");
        carried += clear + sealed;
        let seen = |views: Vec<PathView>| views.into_iter().find(|view| view.path == path).unwrap();
        if !agreed && w.ue.is_connected() {
            let (here, there) = (seen(w.ue.paths()), seen(w.view().paths));
            assert_eq!((here.up, here.down, here.security), (false, Some(WHY), own), "{context}");
            let other = upf[usize::from(path)];
            assert_eq!((there.up, there.down, there.security), (false, Some(WHY), other), "{context}");
        }
    }
    let expected = if agreed.contains(&true) { 40 } else { 0 };
    let got = (w.at_server.len() - up, w.at_device.len() - down);
    assert_eq!(got, (expected, expected), "UE {ue:?}, UPF {upf:?}");
    assert_eq!(carried, 2 * expected);
}

#[test]
fn no_combination_of_settings_sends_in_the_clear_against_one_end_or_loses_silently() {
    for (upf, rules) in settings().flat_map(|upf| [(upf, standby("5g")), (upf, balance(50, 50))]) {
        for ue in settings() {
            let setup =
                Setup { security: ue, upf_security: Some(upf), upf_rules: rules.clone(), ..Setup::default() };
            let mut w = World::new(setup);
            w.run_ms(1_000);
            let agreed = (0..2).filter(|i| ue[*i] == upf[*i]).count();
            assert_eq!(w.ue.is_connected(), agreed > 0, "UE {ue:?}, UPF {upf:?}");
            check(&mut w, ue, upf);
            // The keys change; nothing else does, and no event is repeated.
            w.run_until(Instant::from_secs(125));
            check(&mut w, ue, upf);
            for path in 0..2u8 {
                let at = usize::from(path);
                let told = usize::from(ue[at] != upf[at] && agreed > 0);
                let counts = (refused_at_ue(&w, path, ue[at]), refused_at_upf(&w, path, upf[at]));
                assert_eq!(counts, (told, told), "path {path}, UE {ue:?}, UPF {upf:?}");
            }
            if agreed == 0 {
                let reason =
                    "[[access]] security is plain at one end and secure at the other on every access";
                let ue_told = |e: &UeEvent| matches!(e, UeEvent::Refused { reason: r, .. } if *r == reason);
                let upf_told =
                    |e: &UpfEvent| matches!(e, UpfEvent::Refused { reason: r, .. } if *r == reason);
                assert!(w.ue_events.iter().any(|(_, e)| ue_told(e)), "{:?}", w.ue_events);
                assert!(w.upf_events.iter().any(|(_, e)| upf_told(e)), "{:?}", w.upf_events);
                assert_eq!(w.upf.session_count(), 0);
            }
        }
    }
}

#[test]
fn an_access_is_used_once_both_ends_agree_again() {
    let mut w = World::new(Setup {
        security: [PLAIN, SECURE],
        upf_security: Some([SECURE, SECURE]),
        upf_rules: balance(50, 50),
        ..Setup::default()
    });
    w.run_ms(1_000);
    check(&mut w, [PLAIN, SECURE], [SECURE, SECURE]);
    // The operator corrects the setting at the UPF, and restarts it.
    w.upf_config.accesses[0].security = PLAIN;
    w.restart_upf(42);
    w.run_ms(5_000);
    assert!(w.ue.paths().iter().all(|path| path.up), "{:?}", w.ue.paths());
    check(&mut w, [PLAIN, SECURE], [PLAIN, SECURE]);
}

#[test]
fn a_refused_access_is_not_tried_continuously_if_it_is_the_only_one() {
    let mut w = World::new(Setup { upf_security: Some([PLAIN, SECURE]), ..Setup::default() });
    w.run_ms(1_000);
    w.channels[1].cut = true;
    w.run_ms(2_000);
    assert!(!w.ue.is_connected());
    w.tap.clear();
    w.run_ms(60_000);
    let inits = w.tap.iter().filter(|(_, up, _, packet)| {
        let (_, _, range) = ip::parse_udp(packet).unwrap();
        *up && packet[range.start] >> 4 == 1
    });
    let count = inits.count();
    assert!((2..=60).contains(&count), "{count} inits in a minute");
    w.channels[1].cut = false;
    w.run_ms(6_000);
    assert!(w.ue.is_connected(), "{:?}", w.ue.paths());
}

/// A plain first path that carries all traffic, up and in use.
fn on_a_plain_path() -> World {
    on_a_plain_path_of(10)
}

/// The same with this one-way delay, in milliseconds.
fn on_a_plain_path_of(delay_ms: u64) -> World {
    let mut w = World::new(Setup {
        security: [PLAIN, SECURE],
        upf_rules: standby("5g"),
        delays_ms: [delay_ms, 5],
        ..Setup::default()
    });
    w.run_ms(1_000 + 10 * delay_ms);
    w.up(0, PAYLOAD);
    w.down(0, PAYLOAD);
    w.run_ms(100 + 4 * delay_ms);
    w
}

fn endpoint(w: &World) -> Option<SocketAddr> {
    w.view().paths[0].endpoint
}

/// Message types of the datagrams on the first path to this address, oldest first.
fn kinds_to(w: &World, to: SocketAddr) -> Vec<u8> {
    let on_path = w.tap.iter().filter(|(_, _, path, _)| *path == 0);
    let kind = |packet: &[u8]| {
        let (_, dst, range) = ip::parse_udp(packet).unwrap();
        (dst == to).then(|| packet[range.start] >> 4)
    };
    on_path.filter_map(|(_, _, _, packet)| kind(packet)).collect()
}

#[test]
fn an_attackers_copy_that_arrives_first_does_not_move_a_plain_path() {
    let mut w = on_a_plain_path();
    let stranger: SocketAddr = "11.1.1.1:4500".parse().unwrap();
    let home = endpoint(&w);
    // The attacker observes the path: its copies of all datagrams arrive before the originals.
    w.channels[0].loss = 1.0;
    w.channels[0].lossy_towards_upf = Some(true);
    let mut copied = 0;
    for n in 1..400 {
        w.tap.clear();
        w.up(n, PAYLOAD);
        w.down(n, PAYLOAD);
        w.run_ms(2);
        assert!(!kinds_to(&w, stranger).contains(&8), "in the clear, to a stranger");
        assert_eq!(endpoint(&w), home);
        for (_, _, _, packet) in w.tap.clone().iter().filter(|(_, up, path, _)| *up && *path == 0) {
            let (_, _, range) = ip::parse_udp(packet).unwrap();
            if packet[range.start] >> 4 == 4 {
                let copy = ip::udp_datagram(stranger, address(0, 1), &packet[range]).unwrap();
                w.inject(true, 1, copy, Duration::ZERO);
                copied += 1;
            }
            w.inject(true, 1, packet.clone(), Duration::from_millis(5));
        }
    }
    assert!(copied > 20, "{copied}");
    // Without the attacker, the path is unchanged.
    w.channels[0].loss = 0.0;
    w.run_ms(5_000);
    w.tap.clear();
    let (up, down) = (w.at_server.len(), w.at_device.len());
    for n in 0..20 {
        w.up(n, PAYLOAD);
        w.down(n, PAYLOAD);
        w.run_ms(5);
    }
    w.run_ms(100);
    assert_eq!((w.at_server.len() - up, w.at_device.len() - down), (20, 20));
    assert_eq!((endpoint(&w), data(&w, 0)), (home, (40, 0)));
}

#[test]
fn a_plain_path_follows_its_ue_to_an_address_that_has_answered_a_probe_there() {
    let nat: SocketAddr = "11.7.7.7:999".parse().unwrap();
    // Round trips shorter and longer than the interval between two probes, which is 20 to 40 ms in traffic.
    for delay_ms in [1, 10, 15, 25, 56, 150, 400] {
        for pace_ms in [1, 5, 35] {
            let mut w = on_a_plain_path_of(delay_ms);
            w.nat = Some(nat);
            w.tap.clear();
            let at = w.now;
            let mut sent = Vec::new();
            for n in 0..u32::try_from(2_000 + 8 * delay_ms).unwrap() / pace_ms {
                sent.push((w.now, n));
                w.up(n, PAYLOAD);
                w.down(n, PAYLOAD);
                w.run_ms(u64::from(pace_ms));
            }
            w.run_ms(100 + 2 * delay_ms);
            let case = format!("{delay_ms} ms one way, a packet each {pace_ms} ms");
            assert_eq!(endpoint(&w), Some(nat), "{case}");
            let kinds = kinds_to(&w, nat);
            assert_eq!(kinds.first(), Some(&4), "sealed until it has answered: {case}");
            // Time for a probe, its answer and the acknowledgement, and the interval before the probe.
            let known = at + Duration::from_millis(4 * delay_ms + 100);
            let late: Vec<u32> = sent.iter().filter(|(at, _)| *at >= known).map(|(_, n)| *n).collect();
            assert!(late.len() > 10, "{case}");
            let (server, device) = (w.server_numbers(), w.device_numbers());
            assert!(late.iter().all(|n| server.contains(n) && device.contains(n)), "{case}");
            assert!(
                kinds.iter().filter(|kind| **kind == 8).count() >= late.len(),
                "and in the clear: {case}"
            );
        }
    }
}

#[test]
fn a_ue_sends_nothing_in_the_clear_to_an_address_of_the_upf_that_has_not_answered() {
    let mut w = on_a_plain_path();
    let new: SocketAddr = "11.9.9.9:4000".parse().unwrap();
    w.channels[0].cut = true;
    w.tap.clear();
    w.ue.on_command(UeCommand::Remote { path: 0, remote: new }, w.now);
    for n in 0..100 {
        w.up(n, PAYLOAD);
        w.run_ms(5);
    }
    let kinds = kinds_to(&w, new);
    assert!(!kinds.is_empty() && !kinds.contains(&8), "{kinds:?}");
    // It is the genuine UPF.
    w.channels[0].cut = false;
    w.run_ms(3_000);
    w.tap.clear();
    (0..20).for_each(|n| {
        w.up(n, PAYLOAD);
        w.run_ms(5);
    });
    assert!(kinds_to(&w, new).contains(&8), "{:?}", w.ue.paths());
}
