//! Both ends' settings of an access, in every combination: user data is in the clear only where both want it so.

use super::world::{Setup, UE_IP, World, udp};
use super::{balance, standby};
use anabranch_core::access::destinations::Destinations;
use anabranch_core::access::drops::DropReason;
use anabranch_core::access::session::{PathView, Security, SessionEvent, SessionParams};
use anabranch_core::element::{Element, Port};
use anabranch_core::packet::Packet;
use anabranch_core::time::Instant;
use anabranch_core::ue::UeEvent;
use anabranch_core::upf::{UpfCommand, UpfEvent};
use anabranch_wire::ip;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

const PLAIN: Security = Security::Plain;
const SECURE: Security = Security::Secure;
const WHY: &str = "security is plain at one end and secure at the other";

#[test]
fn packets_for_closed_destinations_go_nowhere_on_any_path_in_any_form_and_are_told_once() {
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

/// Every setting of two accesses at one end.
fn settings() -> impl Iterator<Item = [Security; 2]> + Clone {
    [PLAIN, SECURE].into_iter().flat_map(|a| [PLAIN, SECURE].map(|b| [a, b]))
}

/// Bytes of the UDP payload sent here, and of the datagram in which it goes sealed.
const PAYLOAD: usize = 420;
const SEALED: usize = PAYLOAD + 28 + 40;

/// Datagrams of user data seen on one path, in both directions: in the clear, and sealed.
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

/// Traffic both ways for a while, then what was seen on the wires is as the settings say.
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
fn no_combination_of_settings_sends_in_the_clear_what_one_end_wants_sealed_or_loses_it_silently() {
    for (upf, rules) in settings().flat_map(|upf| [(upf, standby("5g")), (upf, balance(50, 50))]) {
        for ue in settings() {
            let setup =
                Setup { security: ue, upf_security: Some(upf), upf_rules: rules.clone(), ..Setup::default() };
            let mut w = World::new(setup);
            w.run_ms(1_000);
            let agreed = (0..2).filter(|i| ue[*i] == upf[*i]).count();
            assert_eq!(w.ue.is_connected(), agreed > 0, "UE {ue:?}, UPF {upf:?}");
            check(&mut w, ue, upf);
            // The keys change; nothing else does, and nothing is told twice.
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
fn an_access_is_taken_into_use_when_both_ends_say_the_same_again() {
    let mut w = World::new(Setup {
        security: [PLAIN, SECURE],
        upf_security: Some([SECURE, SECURE]),
        upf_rules: balance(50, 50),
        ..Setup::default()
    });
    w.run_ms(1_000);
    check(&mut w, [PLAIN, SECURE], [SECURE, SECURE]);
    // The operator sets it right at the UPF, and restarts it.
    w.upf_config.accesses[0].security = PLAIN;
    w.restart_upf(42);
    w.run_ms(5_000);
    assert!(w.ue.paths().iter().all(|path| path.up), "{:?}", w.ue.paths());
    check(&mut w, [PLAIN, SECURE], [PLAIN, SECURE]);
}

#[test]
fn a_refused_access_that_is_the_only_one_left_is_not_asked_again_and_again() {
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
