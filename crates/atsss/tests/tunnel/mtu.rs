//! Path MTU: the size of a path is found, even if it changes, and no packet is lost or refused because of it.

use super::world::{Channel, SERVER, Setup, UE_IP, World};
use super::{balance, connected, rule, standby};
use anabranch_atsss::session::Security;
use anabranch_element::packet::Packet;
use anabranch_element::time::Duration;
use anabranch_element::{Element, Port};
use anabranch_steer::{Rule, SteeringMode, active_standby, priority_based, redundant, smallest_delay};
use anabranch_wire::tcp::{TcpFlags, TcpHeader, TcpOptions, emit_packet, parse_packet};
use std::net::SocketAddr;

fn send(w: &mut World, uplink: bool, n: u32, size: usize) {
    if uplink { w.up(n, size) } else { w.down(n, size) }
}

fn got(w: &World, uplink: bool) -> Vec<u32> {
    if uplink { w.server_numbers() } else { w.device_numbers() }
}

/// Payload of the largest packet that the tunnel carries.
const LARGEST: usize = 1400 - 28;

fn modes() -> [Vec<Rule>; 6] {
    [
        standby("wifi"),
        standby("5g"),
        balance(50, 50),
        rule(SteeringMode::SmallestDelay(smallest_delay::Params {
            hysteresis_percent: 10,
            dwell_ms: 200,
            leave_above_loss_percent: 5,
        })),
        rule(SteeringMode::PriorityBased(priority_based::Params {
            primary: "wifi".into(),
            rtt_ms: None,
            loss_percent: Some(5.0),
        })),
        rule(SteeringMode::Redundant(redundant::Params { above_loss_percent: None })),
    ]
}

/// In every mode, with a small path MTU on one or both accesses, in both directions: packets of every size
/// arrive once and in order.
#[test]
fn no_packet_is_lost_to_a_small_path() {
    for security in [Security::Secure, Security::Plain] {
        for (k, rules) in modes().into_iter().enumerate() {
            for mtus in [[1500, 1200], [1200, 1500], [1280, 1300], [576, 1200]] {
                let what = format!("mode {k}, MTUs {mtus:?}, {security:?}");
                let mut w = World::new(Setup {
                    upf_rules: rules.clone(),
                    security: [security; 2],
                    ..Setup::default()
                });
                (w.channels[0].mtu, w.channels[1].mtu) = (mtus[0], mtus[1]);
                w.run_ms(3000);
                assert!(w.ue.is_connected(), "{what}");
                let sizes = [4, 172, 1144, 1172, 1232, 1252, 1300, 1344, LARGEST];
                for n in 0..900 {
                    w.up(n, sizes[n as usize % sizes.len()]);
                    w.down(n, sizes[n as usize % sizes.len()]);
                    w.run_ms(1);
                }
                w.run_ms(600);
                for uplink in [true, false] {
                    assert_eq!(got(&w, uplink), (0..900).collect::<Vec<_>>(), "{what}, uplink {uplink}");
                }
                // The counters of both ends agree.
                let (ue, upf) = (w.ue.paths(), w.view().paths);
                for (ue, upf) in ue.iter().zip(&upf) {
                    assert_eq!((ue.tx_bytes, ue.rx_bytes), (upf.rx_bytes, upf.tx_bytes), "{what}");
                    assert_eq!(ue.fragments.tx_pieces, upf.fragments.rx_pieces, "{what}");
                    assert_eq!(upf.fragments.tx_pieces, ue.fragments.rx_pieces, "{what}");
                    assert_eq!((ue.fragments.rx_incomplete, upf.fragments.rx_incomplete), (0, 0), "{what}");
                }
            }
        }
    }
}

/// The smaller value of both ends applies in both directions, even after the UE was restarted with another
/// value.
#[test]
fn the_ends_agree_on_the_inner_mtu() {
    let mut w = connected(Setup { upf_rules: standby("wifi"), ..Setup::default() });
    for mtu in [1400, 1280, 1350, 1500] {
        w.ue_config.params.inner_mtu = mtu;
        w.restart_ue(mtu as u8);
        w.run_ms(5_000);
        assert!(w.ue.is_connected());
        let agreed = mtu.min(w.upf_config.params.inner_mtu);
        for uplink in [true, false] {
            w.at_device.clear();
            w.at_server.clear();
            send(&mut w, uplink, 1, usize::from(agreed) - 28 + 1);
            send(&mut w, uplink, 2, usize::from(agreed) - 28);
            w.run_ms(100);
            assert_eq!(got(&w, uplink), [2], "{mtu}, uplink {uplink}");
            let icmp = &if uplink { &w.at_device } else { &w.at_server }[0].1;
            assert_eq!((icmp[9], icmp[20], icmp[21]), (1, 3, 4), "fragmentation needed and DF set");
            assert_eq!(u16::from_be_bytes([icmp[26], icmp[27]]), agreed, "{mtu}, uplink {uplink}");
        }
        // TCP segments fit, whichever end sees the SYN first.
        w.at_device.clear();
        w.at_server.clear();
        let options = TcpOptions { mss: Some(8960), ..TcpOptions::default() };
        let header = TcpHeader { flags: TcpFlags::SYN, options, ..TcpHeader::default() };
        let [device, server] = [UE_IP, SERVER].map(|ip| SocketAddr::new(ip.into(), 80));
        let up = Packet::new(w.now, emit_packet(device, server, &header, &[]).unwrap());
        w.ue.on_packet(Port(0), up, w.now);
        let down = Packet::new(w.now, emit_packet(server, device, &header, &[]).unwrap());
        w.upf.on_packet(Port(0), down, w.now);
        w.run_ms(100);
        for at in [&w.at_server, &w.at_device] {
            assert_eq!(parse_packet(&at[0].1).unwrap().header.options.mss, Some(agreed - 40), "{mtu}");
        }
    }
}

/// A path whose MTU shrinks silently during a flow: packets arrive again within two seconds.
fn black_hole(uplink: bool, carries: usize) {
    let mut w = connected(Setup { upf_rules: standby("wifi"), ..Setup::default() });
    for i in 0..500 {
        send(&mut w, uplink, i, 1300);
        w.run_ms(2);
    }
    w.run_ms(100);
    assert_eq!(got(&w, uplink), (0..500).collect::<Vec<_>>());
    w.channels[1].mtu = carries;
    // As a TCP sender: a window is lost, then single retransmissions.
    for i in 500..600u32 {
        send(&mut w, uplink, i, 1300);
        w.run_ms(if i < 520 { 1 } else { 50 });
    }
    w.run_ms(100);
    let arrived = got(&w, uplink);
    assert!(arrived.len() > 555, "{carries}: {}", arrived.len());
    assert_eq!(arrived.last(), Some(&599));
    // Both paths stayed up, because the path itself has not failed.
    assert!(w.ue.paths().iter().all(|p| p.up));
    // The path MTU grows again: packets are soon sent whole.
    w.channels[1].mtu = 1500;
    w.run_ms(30_000);
    let pieces =
        |w: &World| if uplink { w.ue.paths()[1].fragments } else { w.view().paths[1].fragments }.tx_pieces;
    let before = pieces(&w);
    send(&mut w, uplink, 10_000, 1300);
    w.run_ms(100);
    assert_eq!((got(&w, uplink).last(), pieces(&w)), (Some(&10_000), before));
}

#[test]
fn a_silent_black_hole_of_a_shrunken_path_is_found() {
    for carries in [576, 1000, 1200, 1280, 1300] {
        black_hole(true, carries);
        black_hole(false, carries);
    }
}

#[test]
fn losses_of_a_congested_path_cost_few_probes_and_no_size() {
    let mut w = connected(Setup { upf_rules: standby("wifi"), ..Setup::default() });
    w.run_ms(5_000);
    w.channels[1].loss = 0.6;
    w.tap.clear();
    for i in 0..10_000 {
        w.up(i, 1000);
        w.run_ms(1);
        assert!(w.ue.paths()[1].mtu_bytes >= 1400, "{:?}", w.ue.paths()[1]);
    }
    let probes = w.tap.iter().filter(|(_, up, _, p)| *up && p.len() >= 1490).count();
    assert!(probes <= 60, "{probes} MTU probes in 10 s");
}

/// Redundant mode with one access without loss: whatever the other loses, no packet is lost or late.
#[test]
fn redundant_packets_never_wait_for_a_lossy_access() {
    for uplink in [true, false] {
        for (loss, burst) in [(0.4, true), (0.4, false), (0.2, true)] {
            for mtu in [1500, 1200] {
                let rules = rule(SteeringMode::Redundant(redundant::Params { above_loss_percent: None }));
                let mut w = connected(Setup { upf_rules: rules, delays_ms: [20, 5], ..Setup::default() });
                w.channels[1] = Channel { loss, burst, mtu, ..w.channels[1] };
                for n in 0..10_000 {
                    send(&mut w, uplink, n, 1172);
                    w.run_ms(3);
                }
                w.run_ms(300);
                let arrivals = if uplink { &w.at_server } else { &w.at_device };
                let what = format!("uplink {uplink}, loss {loss}, burst {burst}, MTU {mtu}");
                assert_eq!(got(&w, uplink), (0..10_000).collect::<Vec<_>>(), "{what}");
                let silence = arrivals.windows(2).map(|pair| pair[1].0 - pair[0].0).max().unwrap();
                assert!(silence <= Duration::from_millis(50), "{what}: {silence:?}");
            }
        }
    }
}

/// Losses on a path that fragments: each packet arrives whole or not at all, and incomplete ones are counted.
#[test]
fn a_lost_piece_is_a_lost_packet_and_counted() {
    // A rule that stays on the access whatever its loss.
    let stay = SteeringMode::ActiveStandby(active_standby::Params {
        primary: "wifi".into(),
        rotate_packets: 0,
        leave_above_loss_percent: 100,
    });
    let mut w = World::new(Setup { upf_rules: rule(stay), ..Setup::default() });
    w.channels[1].mtu = 1200;
    w.run_ms(3000);
    w.channels[1].loss = 0.2;
    for n in 0..2000 {
        w.up(n, 1300);
        w.run_ms(2);
    }
    w.channels[1].loss = 0.0;
    w.run_ms(2000);
    let (sent, upf) = (w.ue.paths()[1].fragments, w.view().paths[1].fragments);
    let arrived = w.server_numbers().len() as u64;
    assert_eq!(sent.tx_pieces, 4000);
    assert!((1200..1360).contains(&arrived), "{arrived} of 2000 at 0.8 squared");
    assert_eq!(upf.rx_pieces, 2 * arrived + upf.rx_incomplete);
    let drops = w.upf.drops().get(anabranch_atsss::drops::DropReason::Incomplete);
    assert_eq!(drops, upf.rx_incomplete);
    assert!(w.server_numbers().is_sorted());
}

/// Configuration is not lost on small paths either.
#[test]
fn rules_arrive_over_small_paths() {
    let rules: Vec<_> =
        (0..40).map(|n| Rule { name: format!("rule-{n}"), ..standby("wifi").remove(0) }).collect();
    let mut w = World::new(Setup { upf_rules: rules, ..Setup::default() });
    w.channels.iter_mut().for_each(|channel| channel.mtu = 576);
    w.run_ms(8000);
    assert_eq!(w.ue.rule_views(w.now).len(), 41);
}
