//! Coded mode between the two ends: lost packets are restored with the configured overhead, and other packets
//! are not affected.

use super::world::{SERVER, Setup, UE_IP, World, number, udp};
use super::{connected, rule};
use anabranch_atsss::drops::DropReason;
use anabranch_atsss::session::Security;
use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant};
use anabranch_element::{Element, Port};
use anabranch_steer::{Rule, SteeringMode, active_standby, coded, load_balance};
use std::collections::BTreeSet;

fn coded(overhead_percent: u8, longest_wait_ms: u16) -> SteeringMode {
    SteeringMode::Coded(coded::Params { overhead_percent, window_packets: 64, longest_wait_ms })
}

fn unordered(mode: SteeringMode) -> Vec<Rule> {
    rule(mode).into_iter().map(|rule| Rule { reorder: false, ..rule }).collect()
}

/// Sends one uplink packet, which is lost on any access.
fn lose_up(w: &mut World, number: u32, size: usize) {
    let before: Vec<f64> = w.channels.iter().map(|channel| channel.loss).collect();
    w.channels.iter_mut().for_each(|channel| channel.loss = 1.0);
    w.up(number, size);
    w.channels.iter_mut().zip(before).for_each(|(channel, loss)| channel.loss = loss);
}

fn user_bytes(w: &World, to_upf: bool, least: usize) -> usize {
    w.tap
        .iter()
        .filter(|(_, up, _, bytes)| *up == to_upf && bytes.len() >= least)
        .map(|(.., bytes)| bytes.len())
        .sum()
}

#[test]
fn loss_on_both_accesses_is_repaired_in_both_directions_and_forms() {
    for (security, seed) in [(Security::Secure, 1), (Security::Plain, 2)] {
        for rules in [rule(coded(50, 200)), unordered(coded(50, 200))] {
            let ordered = rules[0].reorder;
            let mut w =
                connected(Setup { upf_rules: rules, security: [security; 2], seed, ..Setup::default() });
            w.channels.iter_mut().for_each(|channel| channel.loss = 0.05);
            let sizes = |n: u32| 60 + (n as usize * 37) % 1200;
            for n in 0..2000 {
                w.up(n, sizes(n));
                w.down(n, sizes(n));
                w.run_ms(2);
            }
            w.channels.iter_mut().for_each(|channel| channel.loss = 0.0);
            w.run_ms(500);
            for (which, packets) in [("up", &w.at_server), ("down", &w.at_device)] {
                let numbers: Vec<u32> = packets.iter().map(|(_, packet)| number(packet)).collect();
                let once: BTreeSet<u32> = numbers.iter().copied().collect();
                assert_eq!(once.len(), numbers.len(), "{which}: delivered twice");
                assert!(once.len() >= 1990, "{which} {security:?}: {} of 2000", once.len());
                if ordered {
                    assert!(numbers.is_sorted(), "{which}: order");
                }
                for (_, packet) in packets {
                    let n = number(packet);
                    let (from, to) = if which == "up" { (UE_IP, SERVER) } else { (SERVER, UE_IP) };
                    let ports = if which == "up" { (5000, 9) } else { (9, 5000) };
                    assert_eq!(
                        *packet,
                        udp(from.into(), to.into(), ports.0, ports.1, n, sizes(n)),
                        "{which} {n}"
                    );
                }
            }
            // The UDP checksum of a restored packet is that of the sender, so every byte is correct.
            assert_eq!(w.upf.drops().get(DropReason::Malformed) + w.ue.drops().get(DropReason::Malformed), 0);
        }
    }
}

#[test]
fn the_overhead_stays_below_the_configured_one() {
    let run = |mode| {
        let mut w = connected(Setup { upf_rules: unordered(mode), ..Setup::default() });
        w.tap.clear();
        for n in 0..1000 {
            w.up(n, 300 + (n as usize % 7) * 100);
            w.run_ms(5);
        }
        let on =
            |path| w.tap.iter().filter(|(_, up, p, bytes)| *up && *p == path && bytes.len() >= 320).count();
        (user_bytes(&w, true, 320) as f64, [on(0), on(1)])
    };
    let (plain, _) = run(SteeringMode::ActiveStandby(active_standby::Params {
        primary: "wifi".into(),
        rotate_packets: 0,
        leave_above_loss_percent: 5,
    }));
    for percent in [10, 30, 50, 100] {
        let (bytes, [nr, wifi]) = run(coded(percent, 200));
        let overhead = (bytes / plain - 1.0) * 100.0;
        // In addition to the repairs, each packet has four bytes of coding word, less than 1 % here.
        assert!(
            overhead > f64::from(percent) * 0.9 && overhead < f64::from(percent) * 1.01 + 1.0,
            "{percent}: {overhead}"
        );
        assert!(wifi > 0 && nr > 0, "sources on the faster access, repairs on the other: {nr} {wifi}");
    }
}

#[test]
fn the_last_packet_before_a_pause_is_restored_by_the_timer() {
    let mut w = connected(Setup { upf_rules: rule(coded(30, 100)), ..Setup::default() });
    for n in 0..50 {
        w.up(n, 200);
        w.run_ms(20);
    }
    let at = w.now;
    lose_up(&mut w, 50, 200);
    w.run_ms(200);
    let (came, packet) = w.at_server.last().unwrap();
    assert_eq!(number(packet), 50);
    // A quarter of the longest wait, and the delay of the other access.
    assert!(*came - at <= Duration::from_millis(25 + 11), "{:?}", *came - at);
}

#[test]
fn a_gap_in_one_flow_delays_no_other_and_its_own_for_the_longest_wait_at_most() {
    let mut w = connected(Setup { upf_rules: rule(coded(10, 80)), ..Setup::default() });
    let send = |w: &mut World, port: u16, n: u32| {
        let packet = udp(UE_IP.into(), SERVER.into(), port, 9, n, 400);
        w.ue.on_packet(Port(0), Packet::new(w.now, packet), w.now);
        w.run_until(w.now);
    };
    // A repair has stated how long to wait.
    for n in 0..40 {
        send(&mut w, 5000 + (n % 2) as u16, n);
        w.run_ms(10);
    }
    w.run_ms(200);
    w.at_server.clear();
    // More packets are lost at once than 10 % of repairs can restore.
    let all = |w: &mut World, loss| w.channels.iter_mut().for_each(|channel| channel.loss = loss);
    all(&mut w, 1.0);
    for n in 100..108 {
        send(&mut w, 5000, n);
    }
    all(&mut w, 0.0);
    let mut sent: Vec<(u32, Instant)> = Vec::new();
    for n in 200..240 {
        send(&mut w, if n % 2 == 0 { 5000 } else { 5001 }, n);
        sent.push((n, w.now));
        w.run_ms(5);
    }
    w.run_ms(300);
    for (n, at) in sent {
        let (came, _) = w.at_server.iter().find(|(_, packet)| number(packet) == n).expect("arrives");
        // The slower access, to which the loss may have moved the packets.
        let most = if n % 2 == 0 { 10 + 80 + 1 } else { 10 };
        assert!(*came - at <= Duration::from_millis(most), "{n} took {:?}", *came - at);
    }
    let own: Vec<u32> = w.server_numbers().into_iter().filter(|n| n % 2 == 0 && *n >= 200).collect();
    assert!(own.is_sorted());
}

#[test]
fn with_one_access_left_repairs_still_help() {
    let mut w = connected(Setup { upf_rules: unordered(coded(50, 200)), ..Setup::default() });
    for n in 0..100 {
        w.up(n, 300);
        w.run_ms(5);
    }
    w.channels[1].cut = true;
    w.run_ms(1500);
    assert!(!w.ue.paths()[1].up);
    w.channels[0].loss = 0.1;
    for n in 1000..2000 {
        w.up(n, 300);
        w.down(n, 300);
        w.run_ms(5);
    }
    w.channels[0].loss = 0.0;
    w.run_ms(500);
    for numbers in [w.server_numbers(), w.device_numbers()] {
        let came = numbers.iter().filter(|n| **n >= 1000).count();
        assert!(came >= 985, "{came} of 1000, where 100 are lost");
    }
}

#[test]
fn packets_of_any_size_go_through_and_repairs_fit_where_they_do() {
    let mut w = connected(Setup { upf_rules: unordered(coded(100, 200)), ..Setup::default() });
    w.run_ms(3000); // the path MTU is known
    for n in 0..600 {
        let size = if n % 3 == 0 { 1372 } else { 4 + n as usize % 1300 };
        if n % 10 == 7 {
            lose_up(&mut w, n, size)
        } else {
            w.up(n, size)
        }
        w.run_ms(4);
    }
    w.run_ms(500);
    let came: BTreeSet<u32> = w.server_numbers().into_iter().collect();
    assert!(came.len() >= 598, "{}", came.len());
    assert!(w.tap.iter().filter(|(.., bytes)| bytes.len() > 1500).count() == 0);
}

#[test]
fn after_a_restart_of_either_end_packets_are_restored_again() {
    for upf in [true, false] {
        let mut w = connected(Setup { upf_rules: unordered(coded(50, 200)), ..Setup::default() });
        let mut n = 0;
        let mut phase = |w: &mut World, count: u32| {
            let first = n;
            for _ in 0..count {
                if n % 20 == 9 {
                    lose_up(w, n, 300)
                } else {
                    w.up(n, 300)
                }
                n += 1;
                w.run_ms(5);
            }
            first..n
        };
        phase(&mut w, 200);
        if upf {
            w.restart_upf(77)
        } else {
            w.restart_ue(78)
        }
        phase(&mut w, 2000);
        let range = phase(&mut w, 400);
        w.run_ms(500);
        let came: BTreeSet<u32> = w.server_numbers().into_iter().collect();
        let missing: Vec<u32> = range.filter(|n| !came.contains(n)).collect();
        assert!(missing.is_empty(), "UPF restarted: {upf}: {missing:?}");
    }
}

#[test]
fn the_session_frees_its_memory_when_it_rests() {
    let mut w = connected(Setup { upf_rules: unordered(coded(50, 200)), ..Setup::default() });
    for n in 0..300 {
        w.up(n, 1000);
        w.down(n, 1000);
        w.run_ms(5);
    }
    assert!(w.upf.pool().used_bytes() > 100_000, "symbols are charged to the pool");
    w.run_ms(60_000);
    assert_eq!(w.upf.pool().used_bytes(), 0);
}

/// A stream over UDP that nothing acknowledges, 8 Mbit/s: each loss harms it.
#[test]
fn lost_packets_of_a_lossy_path_are_restored() {
    let run = |mode: &SteeringMode, security, seed| {
        let setup =
            Setup { upf_rules: rule(mode.clone()), security: [security; 2], seed, ..Setup::default() };
        let mut w = connected(setup);
        w.channels.iter_mut().for_each(|channel| channel.loss = 0.01);
        for n in 0..12_000 {
            w.up(n, 1000);
            w.run_ms(1);
        }
        w.channels.iter_mut().for_each(|channel| channel.loss = 0.0);
        w.run_ms(500);
        w.server_numbers().into_iter().filter(|n| *n >= 6_000).collect::<Vec<u32>>()
    };
    let autonomous = load_balance::Params { autonomous: true, ..load_balance::Params::default() };
    let standby =
        active_standby::Params { primary: "wifi".into(), rotate_packets: 0, leave_above_loss_percent: 100 };
    for seed in 1..4 {
        let standby = SteeringMode::ActiveStandby(standby.clone());
        let unprotected = run(&standby, Security::Secure, seed);
        assert!(unprotected.len() < 5_970, "{} of 6000 arrived", unprotected.len());
        let autonomous = SteeringMode::LoadBalance(autonomous.clone());
        let protected = run(&autonomous, Security::Secure, seed);
        assert!(protected.is_sorted());
        assert!(protected.len() >= 5_997, "{} of 6000 arrived", protected.len());
        // A forged plain packet could corrupt what is restored.
        let plain = run(&autonomous, Security::Plain, seed);
        assert!(plain.len() < 5_970, "{} of 6000 arrived", plain.len());
    }
}
