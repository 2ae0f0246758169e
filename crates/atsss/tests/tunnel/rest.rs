//! Idle sessions: they go to rest, stay alive, and wake without losing packets or sequence.

use super::world::{Setup, World};
use super::{balance, connected, rule, standby};
use anabranch_atsss::drops::DropReason;
use anabranch_atsss::session::Security;
use anabranch_steer::{Rule, SteeringMode, active_standby, redundant, smallest_delay};

fn talk(w: &mut World, from: u32, count: u32) {
    for i in from..from + count {
        w.up(i, 600);
        w.down(i, 600);
        w.run_ms(1);
    }
}

/// Bursts with pauses in which the session rests. Every packet arrives once and in order.
fn bursts(rules: Vec<Rule>, security: Security) {
    let mut w = connected(Setup { upf_rules: rules, security: [security; 2], ..Setup::default() });
    let mut sent = 0;
    for pause_ms in [11_000, 30_000, 11_000, 130_000, 200_000] {
        talk(&mut w, sent, 40);
        sent += 40;
        assert!(!w.view().resting);
        w.run_ms(pause_ms);
        let view = w.view();
        assert!(view.resting && view.paths.iter().all(|p| p.up), "{view:?}");
    }
    talk(&mut w, sent, 40);
    w.run_ms(500);
    let all: Vec<u32> = (0..sent + 40).collect();
    assert_eq!(w.server_numbers(), all);
    assert_eq!(w.device_numbers(), all);
}

#[test]
fn packets_after_a_rest_arrive_in_order_whatever_the_mode() {
    for security in [Security::Secure, Security::Plain] {
        bursts(standby("wifi"), security);
        bursts(balance(50, 50), security);
        bursts(
            rule(SteeringMode::SmallestDelay(smallest_delay::Params {
                hysteresis_percent: 10,
                dwell_ms: 200,
                leave_above_loss_percent: 5,
            })),
            security,
        );
        bursts(rule(SteeringMode::Redundant(redundant::Params { above_loss_percent: None })), security);
    }
}

#[test]
fn the_first_answer_after_a_rest_is_not_held() {
    for pause_ms in [2_500, 11_000, 60_000] {
        // Streams that have switched state that the far end may have to wait. The pause ends that, whichever
        // end sends first.
        let rules = rule(SteeringMode::ActiveStandby(active_standby::Params {
            primary: "5g".into(),
            rotate_packets: 5,
            leave_above_loss_percent: 5,
        }));
        let mut w = connected(Setup { ue_rules: rules, delays_ms: [37, 63], ..Setup::default() });
        talk(&mut w, 0, 23);
        w.run_ms(pause_ms);
        let (server, device) = (w.at_server.len(), w.at_device.len());
        w.down(100, 600);
        w.run_ms(70);
        assert_eq!(w.at_device.len(), device + 1, "{pause_ms}");
        w.up(100, 600);
        w.run_ms(70);
        assert_eq!(w.at_server.len(), server + 1, "{pause_ms}");
    }
}

#[test]
fn rest_ends_with_the_first_packet_of_either_side_and_keeps_what_was_measured() {
    let mut w = connected(Setup { upf_rules: standby("5g"), ..Setup::default() });
    w.channels[0].loss = 0.2;
    for i in 0..1000 {
        w.down(i, 600);
        w.run_ms(1);
    }
    w.run_ms(300);
    let before = w.view();
    assert!((100_000..300_000).contains(&before.paths[0].loss_tx_ppm), "{before:?}");
    w.channels[0].loss = 0.0;
    w.run_ms(11_000);
    let at_rest = w.view();
    assert!(at_rest.resting && at_rest.paths[0].rtt_us > 0, "{at_rest:?}");
    let loss = at_rest.paths[0].loss_tx_ppm;
    assert!(loss > 0 && loss <= before.paths[0].loss_tx_ppm);
    w.run_ms(60_000);
    assert_eq!(w.view().paths[0].loss_tx_ppm, loss, "not measured at rest, and not forgotten");
    w.down(1000, 600);
    assert!(!w.view().resting);
    w.run_ms(12_000);
    assert!(w.view().resting);
    w.up(1, 600);
    w.run_ms(50);
    assert!(!w.view().resting);
    assert_eq!(w.server_numbers(), [1]);
}

#[test]
fn a_path_lost_at_rest_is_known_when_the_session_wakes() {
    let mut w = connected(Setup { upf_rules: standby("wifi"), ..Setup::default() });
    talk(&mut w, 0, 10);
    w.run_ms(12_000);
    w.channels[1].cut = true;
    w.run_ms(6_000);
    let view = w.view();
    assert!(view.resting && !view.paths[1].up && view.paths[0].up, "{view:?}");
    w.at_device.clear();
    for i in 0..10 {
        w.down(i, 600);
    }
    w.run_ms(100);
    assert_eq!(w.device_numbers(), (0..10).collect::<Vec<_>>(), "not one goes to the dead path");
    w.channels[1].cut = false;
    w.run_ms(3_000);
    assert!(w.view().paths[1].up);
}

#[test]
fn a_small_path_mtu_is_still_known_after_a_rest() {
    let mut w = World::new(Setup { upf_rules: standby("wifi"), ..Setup::default() });
    w.channels[1].mtu = 1350;
    w.run_ms(1_000);
    w.down(0, 100);
    w.run_ms(12_000);
    let mtu = w.view().paths[1].mtu_bytes;
    assert!((1200..=1350 - 28).contains(&mtu), "{mtu}");
    w.run_ms(10_000);
    assert!(w.view().resting);
    assert_eq!(w.view().paths[1].mtu_bytes, mtu);
    // The first packet that is too large is fragmented, not lost.
    w.down(1, 1350);
    w.run_ms(50);
    assert_eq!(w.device_numbers().last(), Some(&1));
    assert!(w.view().paths[1].fragments.tx_pieces >= 2);
}

#[test]
fn forged_packets_do_not_keep_a_session_from_resting() {
    let mut w = connected(Setup::default());
    w.tap.clear();
    talk(&mut w, 0, 5);
    w.run_ms(12_000);
    assert!(w.view().resting);
    let (_, _, path, bytes) = w.tap.iter().find(|t| t.1).unwrap().clone();
    let (src, dst, payload) = anabranch_wire::ip::parse_udp(&bytes).unwrap();
    let forged_before = w.upf.drops().get(DropReason::Forged);
    for n in 0..100u64 {
        let mut inner = bytes[payload.clone()].to_vec();
        // A packet number of its own, to pass the replay window.
        inner[8..16].copy_from_slice(&(1_000_000 + n).to_be_bytes());
        let forged = anabranch_wire::ip::udp_datagram(src, dst, &inner).unwrap();
        w.inject(true, path + 1, forged, std::time::Duration::ZERO);
    }
    w.run_ms(5);
    assert_eq!(w.upf.drops().get(DropReason::Forged), forged_before + 100);
    assert!(w.view().resting);
}
