//! Flows: creation, eviction, sequence wrap-around, and flows that began before the node.

use super::*;

fn gap(w: &mut World, from: u32) {
    for right in [3000, 4000, 5000] {
        w.dup(from, from + 1000, from + right);
    }
}

#[test]
fn sequence_numbers_wrap_around() {
    for base in [0u32.wrapping_sub(4500), (1 << 31) - 4500, 0u32.wrapping_sub(1)] {
        let mut w = World::new(config(Some(50.0)), false);
        w.base = base;
        w.handshake();
        for n in 0..10 {
            w.data(n, 1000);
        }
        w.ack(3000);
        gap(&mut w, 3000);
        assert_eq!((w.out.len(), w.node.held_acks()), (3, 1), "{base}");
        w.ack(8000);
        assert_eq!(w.acks(), [3000, 3000, 3000, 8000]);
    }
}

#[test]
fn a_flow_that_began_before_the_node_is_picked_up() {
    let mut w = World::new(config(Some(50.0)), false);
    w.base = 77;
    // An ACK before any data: the flow is unknown.
    w.ack(5000);
    assert_eq!(w.node.stats().passed[PassReason::UnknownFlow.index()], 1);
    for n in 5..15 {
        w.data(n, 1000);
    }
    w.ack(5000);
    w.ack(6000);
    gap(&mut w, 6000);
    assert_eq!((w.out.len(), w.node.held_acks()), (5, 1));
    // An acknowledgment of data that took another path.
    w.ack(20_000);
    assert_eq!((w.out.len(), w.node.held_acks()), (7, 0));
    assert_eq!(w.node.stats().releases[ReleaseReason::Resync.index()], 1);
}

#[test]
fn a_new_connection_on_the_same_ports_is_another_flow() {
    let mut w = World::new(config(Some(50.0)), false);
    w.handshake();
    for n in 0..10 {
        w.data(n, 1000);
    }
    w.ack(1000);
    gap(&mut w, 1000);
    assert_eq!(w.node.held_acks(), 1);
    w.out.clear();
    // The UE opens a new connection: held ACKs are sent first.
    w.base = 3_000_000_000;
    let syn = TcpHeader { flags: TcpFlags::SYN, ..TcpHeader::default() };
    w.up(w.uplink_packet(&syn, &[]));
    assert_eq!((w.out.len(), w.node.held_acks()), (2, 0));
    w.out.clear();
    w.handshake();
    for n in 0..10 {
        w.data(n, 1000);
    }
    w.ack(2000);
    gap(&mut w, 2000);
    assert_eq!((w.out.len(), w.node.held_acks(), w.node.flow_count()), (3, 1, 1));
    // Without a visible SYN, the server's sequence numbers show the new connection.
    w.base = 3_000_000;
    w.out.clear();
    for n in 0..3 {
        w.data(n, 1000);
    }
    w.ack(1000);
    w.ack(2000);
    assert!(w.acks().ends_with(&[1000, 2000]));
}

#[test]
fn a_downlink_syn_or_rst_releases_held_acks() {
    for flags in [TcpFlags::SYN, TcpFlags::RST] {
        let mut w = World::new(config(Some(50.0)), false);
        w.handshake();
        for n in 0..10 {
            w.data(n, 1000);
        }
        w.ack(1000);
        gap(&mut w, 1000);
        let packet = w.segment(50_000, 0, flags);
        assert_eq!(w.down(packet).0, Leg::Lte);
        assert_eq!(w.node.poll_timeout().map(|(at, _)| at), Some(Instant::ZERO));
        w.pass(Duration::ZERO);
        assert_eq!((w.out.len(), w.node.held_acks()), (4, 0));
    }
}

#[test]
fn a_flood_is_bounded_and_loses_nothing() {
    let mut w = World::new(Config { flows: 64, ..config(Some(50.0)) }, false);
    w.handshake();
    for n in 0..10 {
        w.data(n, 1000);
    }
    w.ack(1000);
    gap(&mut w, 1000);
    let before = w.node.bytes();
    let (server, ue) = (w.server, w.ue);
    for port in 5_000..25_000u16 {
        w.server.set_port(port);
        let data = w.segment(0, 100, TcpFlags::ACK);
        w.down(data);
        w.ue.set_port(port);
        w.server = server;
        let syn = TcpHeader { flags: TcpFlags::SYN, ..TcpHeader::default() };
        w.up(w.uplink_packet(&syn, &[]));
        w.ue = ue;
    }
    assert!(w.node.flow_count() <= 64);
    assert!(w.node.bytes() < before + 64 * 1024, "{} {}", before, w.node.bytes());
    assert_eq!(w.node.held_acks(), 1, "the flow with data in both directions is still there");
    w.out.clear();
    w.ack(5000);
    assert_eq!(w.acks(), [5000]);
    // Without proven flows, held ACKs are sent before their flow is evicted.
    let mut w = World::new(Config { flows: 1, ..config(Some(50.0)) }, false);
    w.handshake();
    for n in 0..10 {
        w.data(n, 1000);
    }
    w.ack(1000);
    gap(&mut w, 1000);
    w.out.clear();
    w.server.set_port(81);
    w.data(0, 100);
    w.pass(Duration::ZERO);
    assert_eq!((w.out.len(), w.node.held_acks(), w.node.stats().evicted_flows), (1, 0, 1));
}

#[test]
fn silent_flows_are_forgotten() {
    let mut w = World::new(Config { idle_s: 5, ..config(Some(50.0)) }, false);
    w.handshake();
    w.data(0, 1000);
    w.pass(Duration::from_secs(4));
    assert_eq!(w.node.flow_count(), 1);
    w.pass(Duration::from_secs(2));
    assert_eq!((w.node.flow_count(), w.node.poll_timeout()), (0, None));
}

#[test]
fn changes_while_it_runs() {
    let mut w = World::new(config(Some(50.0)), false);
    w.handshake();
    for n in 0..10 {
        w.data(n, 1000);
    }
    w.ack(1000);
    gap(&mut w, 1000);
    w.node.apply(Command::Dida(None), w.now).unwrap();
    w.pass(Duration::ZERO);
    assert_eq!((w.out.len(), w.node.held_acks()), (4, 0));
    w.node.apply(Command::Steering(Steering::FixedRatio { lte_percent: 100.0 }), w.now).unwrap();
    assert!((10..20).all(|n| w.data(n, 1000).0 == Leg::Lte));
    let mut ues = w.node.config().ues.clone();
    ues[0].wifi.clear();
    w.node.apply(Command::Steering(Steering::FixedRatio { lte_percent: 0.0 }), w.now).unwrap();
    assert!((20..25).all(|n| w.data(n, 1000).0 == Leg::Wifi));
    w.node.apply(Command::Ues(ues), w.now).unwrap();
    assert!((25..30).all(|n| w.data(n, 1000).0 == Leg::Lte), "no Wi-Fi address");
    assert_eq!(w.node.stats().passed[PassReason::NoWifiAddress.index()], 5);
    assert!(w.node.apply(Command::Ues(vec![UeConfig::default()]), w.now).is_err());
    w.node.apply(Command::Ues(Vec::new()), w.now).unwrap();
    assert_eq!(w.node.flow_count(), 0);
    assert_eq!(w.data(30, 1000).0, Leg::Lte);
    assert_eq!(w.node.stats().passed[PassReason::UnknownUe.index()], 1);
}

/// A sender with a window of 40 segments and a round trip of 100 ms, 70 ms of which are in front of the node.
fn steady(w: &mut World, rounds: u32) -> u32 {
    for round in 0..rounds {
        for n in 0..40 {
            w.data(round * 40 + n, 1000);
        }
        w.pass(Duration::from_millis(30));
        for n in 0..20 {
            let ack = (round * 40 + 2 * n + 2) * 1000;
            w.stamped_ack(ack);
        }
        w.pass(Duration::from_millis(70));
        w.echo = w.stamp();
    }
    rounds * 40
}

#[test]
fn an_optimal_hold_is_that_of_the_model() {
    let mut w = World::new(config(None), false);
    let dida = DidaConfig { hold: Hold::Optimal, min_rto_ms: 1000, ..printed() };
    w.node.set_dida(Some(dida), w.now).unwrap();
    w.handshake();
    let n = steady(&mut w, 300);
    for i in 0..10 {
        w.data(n + i, 1000);
    }
    let view = w.node.flows().next().unwrap();
    let trips = view.round_trips.unwrap();
    assert!((trips.smoothed_s - 0.1).abs() < 0.002, "{trips:?}");
    assert!((30.0..40.0).contains(&view.window_segments), "{view:?}");
    // w = 33, T_E = 30 s, R = 0.1 s.
    let expected = holding_time::Model::of_flow(view.window_segments, 30.0, 0.1).optimum_s();
    assert!((view.optimum_s - expected).abs() < 0.001 && expected > 0.05, "{view:?} {expected}");
    w.node.poll_event();
    for right in [2, 3, 4] {
        w.dup(n * 1000, n * 1000 + 1000, (n + right) * 1000);
    }
    assert_eq!(w.node.held_acks(), 1);
    let (until, _) = w.node.poll_timeout().unwrap();
    assert!((until.saturating_since(w.now).as_secs_f64() - view.optimum_s).abs() < 0.001);
}

#[test]
fn a_hold_respects_the_senders_timer() {
    for (min_rto_ms, respect_rto, at_most_ms) in [(200, true, 200), (1000, true, 990), (200, false, 5000)] {
        let mut w = World::new(config(None), false);
        let hold = Hold::Fixed { ms: 5000.0 };
        w.node.set_dida(Some(DidaConfig { hold, respect_rto, min_rto_ms, ..printed() }), w.now).unwrap();
        w.handshake();
        let n = steady(&mut w, 80);
        for i in 0..10 {
            w.data(n + i, 1000);
        }
        w.pass(Duration::from_millis(30));
        w.stamped_ack(n * 1000 + 1000);
        let advanced = w.now;
        w.pass(Duration::from_millis(5));
        for right in [3, 4, 5] {
            w.dup(n * 1000 + 1000, n * 1000 + 2000, (n + right) * 1000);
        }
        assert_eq!(w.node.held_acks(), 1);
        let (until, _) = w.node.poll_timeout().unwrap();
        let held = until.saturating_since(advanced).as_millis();
        assert!(held <= at_most_ms + 5 && held * 10 > at_most_ms * 3, "{min_rto_ms} {held}");
    }
}

#[test]
fn an_adaptive_hold_follows_how_late_packets_are() {
    let mut w = World::new(config(None), false);
    let dida = DidaConfig { hold: Hold::Adaptive, min_rto_ms: 1000, ..printed() };
    w.node.set_dida(Some(dida), w.now).unwrap();
    w.handshake();
    let mut n = steady(&mut w, 80);
    let mut holds = Vec::new();
    for round in 0..60 {
        for i in 0..40 {
            w.data(n + i, 1000);
        }
        for right in 2..8 {
            w.dup(n * 1000, n * 1000 + 1000, (n + right) * 1000);
        }
        if w.node.held_acks() > 0 {
            holds.push(w.node.poll_timeout().unwrap().0.saturating_since(w.now).as_millis());
        }
        // Late by 20 ms, and later by 45 ms. If the sender was informed, it retransmits.
        w.pass(Duration::from_millis(if round < 30 { 20 } else { 45 }));
        n += 40;
        w.stamped_ack(n * 1000);
        w.pass(Duration::from_millis(20));
        w.echo = w.stamp();
    }
    assert!((45..=55).contains(&holds[0]), "half a round trip at first: {holds:?}");
    assert!((20..32).contains(&holds[25]), "{holds:?}");
    assert!((45..91).contains(holds.last().unwrap()), "{holds:?}");
    assert_eq!((w.node.stats().late_gaps, w.node.stats().lost_gaps), (60, 0));
    // From now on packets are lost: only a retransmission ends the gap.
    holds.clear();
    for _ in 0..200 {
        for i in 0..40 {
            w.data(n + i, 1000);
        }
        for right in 2..8 {
            w.dup(n * 1000, n * 1000 + 1000, (n + right) * 1000);
        }
        holds.push(match w.node.held_acks() {
            0 => 0,
            _ => w.node.poll_timeout().unwrap().0.saturating_since(w.now).as_millis(),
        });
        w.pass(Duration::from_millis(120));
        w.data(n, 1000);
        w.pass(Duration::from_millis(31));
        n += 40;
        w.stamped_ack(n * 1000);
        w.pass(Duration::from_millis(20));
        w.echo = w.stamp();
    }
    assert_eq!((w.node.stats().lost_gaps, holds.last()), (200, Some(&0)), "{holds:?}");
}
