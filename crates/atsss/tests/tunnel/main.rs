//! The two tunnel ends together: the guarantees of a session, in virtual time.

mod attack;
mod clock;
mod coded;
mod flap;
mod ioam;
mod lane;
mod life;
mod mtu;
mod rest;
mod security;
mod why;
mod world;

use anabranch_atsss::drops::{DropCounters, DropReason};
use anabranch_atsss::session::{Security, SessionEvent};
use anabranch_atsss::ue::{UeCommand, UeEvent};
use anabranch_atsss::upf::UpfEvent;
use anabranch_element::time::{Duration, Instant};
use anabranch_steer::{
    Rule, SteeringMode, active_standby,
    load_balance::{self, Granularity, Weight},
    redundant, smallest_delay,
};
use world::{Setup, World};

fn rule(steering: SteeringMode) -> Vec<Rule> {
    vec![Rule {
        name: "all".into(),
        filter: Default::default(),
        steering,
        reorder: true,
        functionality: Default::default(),
    }]
}

fn balance(a: u8, b: u8) -> Vec<Rule> {
    let weights =
        vec![Weight { access: "5g".into(), percent: a }, Weight { access: "wifi".into(), percent: b }];
    rule(SteeringMode::LoadBalance(load_balance::Params {
        weights,
        per: Granularity::Packet,
        autonomous: false,
    }))
}

fn standby(primary: &str) -> Vec<Rule> {
    rule(SteeringMode::ActiveStandby(active_standby::Params {
        primary: primary.into(),
        rotate_packets: 0,
        leave_above_loss_percent: 5,
    }))
}

fn connected(setup: Setup) -> World {
    let mut w = World::new(setup);
    w.run_ms(500);
    assert!(w.ue.is_connected(), "{:?} drops {:?} {:?}", w.ue_events, w.ue.drops(), w.upf.drops());
    assert_eq!(w.ue.paths().iter().filter(|p| p.up).count(), 2, "{:?}", w.ue.paths());
    w
}

#[test]
fn a_session_comes_up_over_both_accesses_and_carries_both_directions() {
    for security in [Security::Secure, Security::Plain] {
        let mut w = connected(Setup { security: [security; 2], ..Setup::default() });
        assert!(w.upf_events.iter().any(|(_, e)| matches!(e, UpfEvent::SessionUp { .. })));
        for i in 0..100 {
            w.up(i, 400);
            w.down(i, 400);
            w.run_ms(1);
        }
        w.run_ms(100);
        assert_eq!(w.server_numbers(), (0..100).collect::<Vec<_>>(), "{security:?}");
        assert_eq!(w.device_numbers(), (0..100).collect::<Vec<_>>(), "{security:?}");
        let paths = w.ue.paths();
        assert!((19_000..24_000).contains(&paths[0].rtt_us), "{paths:?}");
        assert!((9_500..13_000).contains(&paths[1].rtt_us), "{paths:?}");
    }
}

#[test]
fn the_first_packets_wait_for_the_handshake() {
    let mut w = World::new(Setup::default());
    for i in 0..10 {
        w.up(i, 100);
    }
    w.run_ms(300);
    assert_eq!(w.server_numbers(), (0..10).collect::<Vec<_>>());
}

#[test]
fn load_balance_splits_by_the_weights_and_arrives_in_order_both_ways() {
    let mut w = connected(Setup { upf_rules: balance(30, 70), delays_ms: [30, 5], ..Setup::default() });
    w.tap.clear();
    for i in 0..1000 {
        w.up(i, 1000);
        w.down(i, 1000);
        w.run_ms(1);
    }
    w.run_ms(300);
    assert_eq!(w.server_numbers(), (0..1000).collect::<Vec<_>>());
    assert_eq!(w.device_numbers(), (0..1000).collect::<Vec<_>>());
    assert_eq!(w.tapped(true, 1000), [300, 700]);
    assert_eq!(w.tapped(false, 1000), [300, 700]);
}

#[test]
fn smallest_delay_uses_the_faster_access_and_a_switch_keeps_order() {
    let steering = SteeringMode::SmallestDelay(smallest_delay::Params {
        hysteresis_percent: 10,
        dwell_ms: 200,
        leave_above_loss_percent: 5,
    });
    let mut w = connected(Setup { upf_rules: rule(steering), delays_ms: [10, 40], ..Setup::default() });
    w.tap.clear();
    for i in 0..2000 {
        if i == 700 {
            // The faster access becomes the slower one, so packets in flight on it are overtaken.
            w.channels[0].delay = Duration::from_millis(90);
        }
        w.up(i, 1000);
        w.down(i, 1000);
        w.run_ms(2);
    }
    w.run_ms(500);
    assert_eq!(w.server_numbers(), (0..2000).collect::<Vec<_>>());
    assert_eq!(w.device_numbers(), (0..2000).collect::<Vec<_>>());
    let [slow, fast] = w.tapped(true, 1000);
    assert!(slow >= 700 && fast >= 900, "{slow} {fast}");
}

#[test]
fn lost_carrier_moves_traffic_at_once_and_nothing_more_is_lost() {
    let mut w = connected(Setup { upf_rules: standby("wifi"), ..Setup::default() });
    let mut lost_at = Instant::ZERO;
    for i in 0..1000 {
        if i == 500 {
            w.channels[1].cut = true;
            lost_at = w.now;
            w.ue.on_command(UeCommand::Carrier { path: 1, up: false }, w.now);
        }
        w.up(i, 1000);
        w.down(i, 1000);
        w.run_ms(1);
    }
    w.run_ms(500);
    let missing = 1000 - w.server_numbers().len();
    assert!(missing <= 6, "{missing} uplink packets were lost: only those in flight may be");
    let missing = 1000 - w.device_numbers().len();
    assert!(missing <= 25, "{missing} downlink packets were lost: those in flight and one delay more");
    let first = w.at_server.iter().find(|(t, _)| *t > lost_at + Duration::from_millis(5)).unwrap().0;
    assert!(first - lost_at <= Duration::from_millis(20), "{:?}", first - lost_at);
}

#[test]
fn no_packet_waits_for_an_access_that_is_down() {
    for far_ms in [20, 35, 50] {
        let delays_ms = [5, far_ms];
        let mut w = connected(Setup { upf_rules: balance(50, 50), delays_ms, ..Setup::default() });
        for n in 0..500 {
            w.up(n, 500);
            w.down(n, 500);
            w.run_ms(2);
        }
        w.channels[1].cut = true;
        w.ue.on_command(UeCommand::Carrier { path: 1, up: false }, w.now);
        w.run_ms(500);
        w.at_server.clear();
        w.at_device.clear();
        let mut sent = Vec::new();
        for n in 0..100 {
            sent.push(w.now);
            w.channels[0].cut = n % 10 == 5;
            w.up(n, 500);
            w.down(n, 500);
            w.channels[0].cut = false;
            w.run_ms(20);
        }
        w.run_ms(300);
        for (uplink, arrivals) in [(true, &w.at_server), (false, &w.at_device)] {
            assert_eq!(arrivals.len(), 90);
            let took = arrivals.iter().map(|(at, packet)| *at - sent[world::number(packet) as usize]).max();
            assert!(took <= Some(Duration::from_millis(15)), "{far_ms} ms, uplink {uplink}: {took:?}");
        }
    }
}

#[test]
fn a_silent_black_hole_under_traffic_is_left_within_250_ms() {
    for start in 0..20 {
        let mut w = connected(Setup { upf_rules: standby("wifi"), seed: start, ..Setup::default() });
        w.run_ms(start * 7);
        let mut hole = Instant::ZERO;
        for i in 0..1000 {
            if i == 300 {
                w.channels[1].cut = true;
                hole = w.now;
            }
            w.up(i, 1000);
            w.down(i, 1000);
            w.run_ms(1);
        }
        let gap = |at: &[(Instant, Vec<u8>)]| {
            at.iter().find(|(t, _)| *t > hole + Duration::from_millis(6)).map(|(t, _)| *t - hole).unwrap()
        };
        assert!(gap(&w.at_server) <= Duration::from_millis(250), "uplink {:?}", gap(&w.at_server));
        assert!(gap(&w.at_device) <= Duration::from_millis(265), "downlink {:?}", gap(&w.at_device));
        // The access recovers.
        w.channels[1].cut = false;
        w.run_ms(4000);
        assert!(w.ue.paths()[1].up);
    }
}

#[test]
fn redundant_mode_hides_the_loss_of_one_access() {
    let mut w = connected(Setup {
        upf_rules: rule(SteeringMode::Redundant(redundant::Params { above_loss_percent: None })),
        ..Setup::default()
    });
    w.channels[0].loss = 0.3;
    for i in 0..1000 {
        w.up(i, 500);
        w.down(i, 500);
        w.run_ms(1);
    }
    w.run_ms(300);
    assert_eq!(w.server_numbers(), (0..1000).collect::<Vec<_>>());
    assert_eq!(w.device_numbers(), (0..1000).collect::<Vec<_>>());
    assert!(w.upf.drops().get(DropReason::Duplicate) > 500);
    let traffic = w.view().traffic;
    assert_eq!([traffic.tx_packets, traffic.rx_packets], [1000; 2], "copies do not count");
}

#[test]
fn keys_change_under_traffic_without_a_lost_packet() {
    let mut w = connected(Setup::default());
    let mut sent = 0;
    while w.now < Instant::from_secs(400) {
        w.up(sent, 200);
        sent += 1;
        w.run_ms(50);
    }
    w.run_ms(200);
    let rekeys = w
        .upf_events
        .iter()
        .filter(|(_, e)| matches!(e, UpfEvent::Session { event: SessionEvent::Rekeyed { .. }, .. }));
    assert!(rekeys.count() >= 4, "first keys and a change every two minutes");
    assert_eq!(w.server_numbers(), (0..sent).collect::<Vec<_>>());
}

#[test]
fn a_restarted_upf_is_found_again_by_itself() {
    let mut w = connected(Setup::default());
    w.up(0, 100);
    w.run_ms(100);
    w.restart_upf(77);
    let mut i = 1;
    let restart = w.now;
    while w.now < restart + Duration::from_secs(4) {
        w.up(i, 100);
        i += 1;
        w.run_ms(10);
    }
    let back = w.at_server.iter().find(|(t, _)| *t > restart).expect("the session is rebuilt").0;
    assert!(back - restart < Duration::from_millis(1500), "{:?}", back - restart);
    assert!(w.ue.is_connected());
}

#[test]
fn replayed_and_forged_datagrams_are_counted_and_harmless() {
    let mut w = connected(Setup::default());
    w.tap.clear();
    for i in 0..50 {
        w.up(i, 300);
        w.run_ms(1);
    }
    w.run_ms(100);
    let recorded = w.tap.clone();
    let before = w.at_server.len();
    for (_, up, path, bytes) in recorded.iter().filter(|t| t.1) {
        w.inject(*up, path + 1, bytes.clone(), Duration::from_millis(1));
        let mut bent = bytes.clone();
        let last = bent.len() - 1;
        bent[last] ^= 1;
        // The UDP checksum is corrected, so that the tunnel itself must detect the change.
        if let Ok((src, dst, payload)) = anabranch_wire::ip::parse_udp(bytes) {
            let mut inner = bytes[payload].to_vec();
            *inner.last_mut().unwrap() ^= 1;
            let forged = anabranch_wire::ip::udp_datagram(src, dst, &inner).unwrap();
            w.inject(*up, path + 1, forged, Duration::from_millis(1));
        }
    }
    w.run_ms(100);
    assert_eq!(w.at_server.len(), before, "nothing is delivered twice or forged");
    assert!(w.upf.drops().get(DropReason::Replayed) >= 50, "{:?}", w.upf.drops());
    let refused = w.upf.drops().get(DropReason::Forged) + w.upf.drops().get(DropReason::Replayed);
    assert!(refused >= 100, "{:?}", w.upf.drops());
    w.up(99, 300);
    w.run_ms(50);
    assert_eq!(w.server_numbers().last(), Some(&99));
}

#[test]
fn a_replayed_init_opens_nothing() {
    let mut w = connected(Setup::default());
    let init = w.tap.iter().find(|(_, up, _, _)| *up).unwrap().clone();
    w.inject(true, init.2 + 1, init.3, Duration::from_millis(1));
    w.run_ms(50);
    assert_eq!(w.upf.drops().get(DropReason::HandshakeReplayed), 1);
    w.up(1, 100);
    w.run_ms(50);
    assert_eq!(w.server_numbers(), [1]);
}

#[test]
fn a_spoofed_inner_source_is_refused() {
    let mut w = connected(Setup::default());
    let packet = world::udp([10, 9, 9, 9].into(), world::SERVER.into(), 1, 2, 3, 100);
    use anabranch_element::Element;
    w.ue.on_packet(anabranch_element::Port(0), anabranch_element::packet::Packet::new(w.now, packet), w.now);
    w.run_ms(50);
    assert_eq!(w.upf.drops().get(DropReason::SpoofedSource), 1);
    assert!(w.at_server.is_empty());
}

/// Packets that the kernels of both ends send to assumed neighbours on their interface: duplicate address
/// detection, multicast listener reports, router solicitations.
#[test]
fn link_local_packets_of_a_kernel_do_not_count_as_spoofed() {
    use anabranch_element::{Element, Port, packet::Packet};
    use std::net::IpAddr;
    let mut w = connected(Setup::default());
    let all: [IpAddr; 3] = ["ff02::16", "ff02::2", "224.0.0.22"].map(|a| a.parse().unwrap());
    let mut sent = 0;
    for from in ["::", "fe80::1", "169.254.7.7", "0.0.0.0"].map(|a| a.parse::<IpAddr>().unwrap()) {
        for to in all.into_iter().filter(|to| to.is_ipv4() == from.is_ipv4()) {
            sent += 1;
            let packet = || Packet::new(w.now, world::udp(from, to, 1, 2, 3, 100));
            w.ue.on_packet(Port(0), packet(), w.now);
            w.upf.on_packet(Port(0), packet(), w.now);
        }
    }
    w.run_ms(50);
    let counted = |drops: &DropCounters| -> Vec<_> { drops.iter().filter(|(_, n)| *n > 0).collect() };
    assert_eq!(counted(w.ue.drops()), [(DropReason::LinkLocal, sent)]);
    assert_eq!(counted(w.upf.drops()), [(DropReason::LinkLocal, sent)]);
    // From a UE that sends such packets.
    w.up(1, 100);
    w.run_ms(50);
    assert_eq!(w.server_numbers(), [1]);
}

#[test]
fn rules_of_the_upf_reach_the_ue() {
    let w = connected(Setup { upf_rules: balance(50, 50), ..Setup::default() });
    assert!(w.ue_events.iter().any(|(_, e)| *e == UeEvent::Rules(1)), "{:?}", w.ue_events);
}

#[test]
fn traffic_that_new_rules_move_arrives_in_order() {
    let mut w = connected(Setup { upf_rules: standby("wifi"), delays_ms: [5, 40], ..Setup::default() });
    w.tap.clear();
    for i in 0..1200 {
        if i % 300 == 150 {
            let primary = if i % 600 == 150 { "5g" } else { "wifi" };
            w.ue.on_command(UeCommand::Rules(standby(primary)), w.now);
        }
        w.up(i, 1000);
        w.down(i, 1000);
        w.run_ms(1);
    }
    w.run_ms(300);
    assert_eq!(w.server_numbers(), (0..1200).collect::<Vec<_>>());
    assert_eq!(w.device_numbers(), (0..1200).collect::<Vec<_>>());
    assert_eq!(w.tapped(true, 1000), [600, 600]);
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let run = || {
        let mut w = connected(Setup { upf_rules: balance(50, 50), ..Setup::default() });
        w.channels[0].loss = 0.05;
        for i in 0..200 {
            w.up(i, 300);
            w.run_ms(1);
        }
        w.tap
    };
    assert!(run() == run());
}

#[test]
fn a_packet_above_the_tunnels_mtu_is_answered_from_its_destination() {
    let mut w = connected(Setup { upf_rules: standby("wifi"), ..Setup::default() });
    for uplink in [true, false] {
        w.at_device.clear();
        w.at_server.clear();
        if uplink {
            w.up(1, 1400)
        } else {
            w.down(1, 1400)
        }
        w.run_ms(10);
        let answers = if uplink { &w.at_device } else { &w.at_server };
        let icmp = &answers.first().expect("an ICMP message").1;
        assert_eq!((icmp[9], icmp[20], icmp[21]), (1, 3, 4), "fragmentation needed and DF set");
        assert_eq!(u16::from_be_bytes([icmp[26], icmp[27]]), 1400);
        let (from, to) = if uplink { (world::SERVER, world::UE_IP) } else { (world::UE_IP, world::SERVER) };
        assert_eq!((&icmp[12..16], &icmp[16..20]), (&from.octets()[..], &to.octets()[..]));
        if uplink {
            w.up(2, 1372)
        } else {
            w.down(2, 1372)
        }
        w.run_ms(50);
        assert_eq!(
            if uplink { w.server_numbers() } else { w.device_numbers() },
            [2],
            "the size told goes through"
        );
    }
}
