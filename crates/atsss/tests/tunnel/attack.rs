//! A UPF under attack: sessions continue, and memory does not grow.

use super::world::{Setup, World, address};
use super::{connected, standby};
use anabranch_atsss::crypto::{Cookie, Initiator, PrivateKey, Suite};
use anabranch_atsss::drops::DropReason;
use anabranch_atsss::session::SessionEvent;
use anabranch_atsss::upf::UpfEvent;
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::handshake::{Access, Hello};
use anabranch_wire::ip;
use anabranch_wire::tunnel::{MessageType, classify};
use rand_chacha::ChaCha20Rng;
use rand_core::{RngCore, SeedableRng};
use std::net::SocketAddr;

/// An attacker who knows only the UPF's address and public key.
struct Attacker {
    rng: ChaCha20Rng,
    sent: u64,
    /// Bytes sent to the UPF.
    bytes: u64,
}

impl Attacker {
    fn new() -> Self {
        Self { rng: ChaCha20Rng::seed_from_u64(666), sent: 0, bytes: 0 }
    }

    fn init(&mut self, w: &World, cookie: Option<&Cookie>) -> (Initiator, Vec<u8>) {
        let key = PrivateKey::generate(&mut self.rng);
        let hello = Hello {
            path: 0,
            accesses: vec![Access { path: 0, name: "5g".into() }],
            mtu: 1400,
            resume: None,
            plain: 0,
            features: 0,
        };
        let (index, timestamp) = (self.rng.next_u32(), self.rng.next_u64());
        let suite = Suite::Aes256Gcm;
        let upf = &w.ue_config.upf_key;
        Initiator::start(&key, upf, suite, index, timestamp, &hello, cookie, &mut self.rng).unwrap()
    }

    fn anywhere(&mut self) -> SocketAddr {
        let ip = self.rng.next_u32().to_be_bytes();
        SocketAddr::from(([11, ip[1], ip[2], ip[3]], 1024 + (self.rng.next_u32() % 60_000) as u16))
    }

    fn send(&mut self, w: &mut World, from: SocketAddr, payload: &[u8]) {
        self.sent += 1;
        self.bytes += payload.len() as u64;
        let packet = ip::udp_datagram(from, address(0, 1), payload).unwrap();
        w.inject(true, 1, packet, Duration::ZERO);
    }
}

fn refused(w: &World) -> u64 {
    use DropReason::{HandshakeCookie, HandshakeRate, HandshakeUnknownUe};
    [HandshakeCookie, HandshakeRate, HandshakeUnknownUe].iter().map(|r| w.upf.drops().get(*r)).sum()
}

fn rekeys(w: &World) -> usize {
    let rekeyed = |e: &UpfEvent| matches!(e, UpfEvent::Session { event: SessionEvent::Rekeyed { .. }, .. });
    w.upf_events.iter().filter(|(_, e)| rekeyed(e)).count()
}

/// One packet in each direction every 5 ms, while `flood` is called once a millisecond.
fn serve_under(w: &mut World, until: Instant, mut flood: impl FnMut(&mut World)) {
    let mut n = w.at_server.len() as u32;
    while w.now < until {
        flood(w);
        if w.now.as_millis().is_multiple_of(5) {
            w.up(n, 200);
            w.down(n, 200);
            n += 1;
        }
        w.run_ms(1);
    }
    w.run_ms(100);
    assert_eq!(w.server_numbers(), (0..n).collect::<Vec<_>>());
    assert_eq!(w.device_numbers(), (0..n).collect::<Vec<_>>());
}

#[test]
fn a_flood_of_inits_from_everywhere_costs_no_session_and_no_memory() {
    let mut w = connected(Setup { upf_rules: standby("wifi"), ..Setup::default() });
    let mut attacker = Attacker::new();
    let inits: Vec<_> = (0..50).map(|_| attacker.init(&w, None).1).collect();
    let (tables, sessions, before) = (w.upf.table_bytes(), w.upf.session_count(), rekeys(&w));
    w.run_ms(110_000);
    w.tap.clear();
    // 5000 a second, until after the UE has changed its keys.
    serve_under(&mut w, Instant::from_secs(130), |w| {
        for _ in 0..5 {
            let from = attacker.anywhere();
            let init = &inits[attacker.sent as usize % inits.len()];
            attacker.send(w, from, init);
        }
    });
    assert!(attacker.sent >= 90_000);
    // The UE's own init may have been answered with a cookie, too.
    assert!((attacker.sent..attacker.sent + 20).contains(&refused(&w)), "{:?}", w.upf.drops());
    assert!(w.upf.drops().get(DropReason::HandshakeUnknownUe) <= 20 * 10 * 20 + 20, "computed: few");
    assert_eq!((w.upf.table_bytes(), w.upf.session_count()), (tables, sessions));
    assert_eq!(rekeys(&w), before + 1, "the UE got new keys meanwhile");
    // The UPF does not amplify traffic.
    let to_strangers: usize = w
        .tap
        .iter()
        .filter_map(|(_, up, _, packet)| {
            let (_, to, payload) = ip::parse_udp(packet).ok().filter(|_| !up)?;
            (to.ip().to_string().starts_with("11.")).then_some(payload.len())
        })
        .sum();
    assert!(to_strangers as u64 <= attacker.bytes / 2, "{to_strangers} of {}", attacker.bytes);
}

#[test]
fn an_attacker_who_proves_its_address_has_a_share_and_no_more() {
    let mut w = connected(Setup { upf_rules: standby("wifi"), ..Setup::default() });
    let before = rekeys(&w);
    w.run_ms(115_000);
    let mut attacker = Attacker::new();
    let home: SocketAddr = "11.1.1.1:4500".parse().unwrap();
    // Enough inits to be answered with a cookie, which the attacker receives.
    let (initiator, init) = attacker.init(&w, None);
    w.tap.clear();
    for _ in 0..30 {
        attacker.send(&mut w, home, &init);
    }
    w.run_ms(1);
    let cookie = w.tap.iter().find_map(|(_, _, _, packet)| {
        let (_, to, payload) = ip::parse_udp(packet).ok()?;
        (to == home).then(|| initiator.on_cookie(&packet[payload]).ok())?
    });
    let cookie = cookie.expect("a cookie");
    let inits: Vec<_> = (0..200).map(|_| attacker.init(&w, Some(&cookie)).1).collect();
    serve_under(&mut w, Instant::from_secs(125), |w| {
        for _ in 0..2 {
            let init = &inits[attacker.sent as usize % inits.len()];
            attacker.send(w, home, init);
        }
    });
    let computed = w.upf.drops().get(DropReason::HandshakeUnknownUe);
    assert!((1_500..=6_000).contains(&computed), "50 in 100 ms, for ten seconds: {computed}");
    assert!(w.upf.drops().get(DropReason::HandshakeRate) > 10_000);
    assert_eq!(rekeys(&w), before + 1, "the UE got new keys meanwhile");
}

#[test]
fn attackers_in_many_networks_do_not_prevent_a_live_session_from_changing_keys() {
    let mut w = connected(Setup { upf_rules: standby("wifi"), ..Setup::default() });
    let before = rekeys(&w);
    w.run_ms(115_000);
    let mut attacker = Attacker::new();
    let homes: Vec<SocketAddr> = (1..=12).map(|n| SocketAddr::from(([11, n, 1, 1], 4500))).collect();
    let inits: Vec<(SocketAddr, Vec<Vec<u8>>)> = homes
        .iter()
        .map(|home| {
            let (initiator, init) = attacker.init(&w, None);
            w.tap.clear();
            (0..30).for_each(|_| attacker.send(&mut w, *home, &init));
            w.run_ms(1);
            let cookie = w.tap.iter().find_map(|(_, _, _, packet)| {
                let (_, to, payload) = ip::parse_udp(packet).ok()?;
                (to == *home).then(|| initiator.on_cookie(&packet[payload]).ok())?
            });
            let cookie = cookie.expect("a cookie");
            (*home, (0..20).map(|_| attacker.init(&w, Some(&cookie)).1).collect())
        })
        .collect();
    // 12,000 a second, six times the number computed, until after the UE has changed its keys.
    serve_under(&mut w, Instant::from_secs(125), |w| {
        for (home, inits) in &inits {
            let init = &inits[attacker.sent as usize % inits.len()];
            attacker.send(w, *home, init);
        }
    });
    let computed = w.upf.drops().get(DropReason::HandshakeUnknownUe);
    assert!(computed > 10_000, "the attackers use what strangers may: {computed}");
    assert!(w.upf.drops().get(DropReason::HandshakeRate) > 50_000, "{:?}", w.upf.drops());
    assert_eq!(rekeys(&w), before + 1, "the UE got new keys meanwhile");
    let timeouts = w.ue_events.iter().filter(|(at, e)| {
        *at > Instant::from_secs(115) && matches!(e, anabranch_atsss::ue::UeEvent::HandshakeTimeout { .. })
    });
    assert_eq!(timeouts.count(), 0, "and at the first try that had a cookie");
}

#[test]
fn junk_of_every_kind_is_counted_and_changes_nothing() {
    let mut w = connected(Setup { upf_rules: standby("wifi"), ..Setup::default() });
    let mut attacker = Attacker::new();
    let (tables, total) = (w.upf.table_bytes(), w.upf.drops().total());
    let recorded: Vec<_> = w.tap.iter().filter(|t| t.1).map(|t| t.3.clone()).collect();
    let mut junk = 0;
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    serve_under(&mut w, Instant::from_secs(3), |w| {
        for _ in 0..4 {
            // Genuine datagrams of the session, damaged, from other addresses; and noise of every type.
            let (_, _, payload) = ip::parse_udp(&recorded[junk % recorded.len()]).unwrap();
            let mut bytes = recorded[junk % recorded.len()][payload].to_vec();
            if junk.is_multiple_of(2) {
                let at = rng.next_u32() as usize % bytes.len();
                bytes[at] ^= 1 << (rng.next_u32() % 8);
            } else {
                rng.fill_bytes(&mut bytes);
                bytes[0] = (junk as u8) << 4;
                bytes.truncate(rng.next_u32() as usize % 200);
            }
            let from = attacker.anywhere();
            attacker.send(w, from, &bytes);
            junk += 1;
        }
    });
    assert_eq!(w.upf.drops().total() - total, junk as u64, "{:?}", w.upf.drops());
    assert_eq!((w.upf.table_bytes(), w.upf.session_count()), (tables, 1));
    let moved = w.view().paths.iter().any(|p| p.endpoint.unwrap().ip().to_string().starts_with("11."));
    assert!(!moved, "{:?}", w.view());
}

#[test]
fn a_session_replayed_from_another_address_moves_no_path() {
    let mut w = connected(Setup { upf_rules: standby("wifi"), ..Setup::default() });
    for i in 0..50 {
        w.up(i, 300);
        w.run_ms(2);
    }
    let recorded: Vec<_> = w.tap.iter().filter(|t| t.1).cloned().collect();
    let mut attacker = Attacker::new();
    let home: SocketAddr = "11.1.1.1:4500".parse().unwrap();
    let endpoints: Vec<_> = w.view().paths.iter().map(|p| p.endpoint).collect();
    for _ in 0..3 {
        for (_, _, _, packet) in &recorded {
            let (_, _, payload) = ip::parse_udp(packet).unwrap();
            attacker.send(&mut w, home, &packet[payload]);
        }
        w.run_ms(500);
    }
    assert_eq!(w.view().paths.iter().map(|p| p.endpoint).collect::<Vec<_>>(), endpoints);
    assert_eq!(w.server_numbers(), (0..50).collect::<Vec<_>>());
    let drops = w.upf.drops();
    assert_eq!(drops.get(DropReason::HandshakeReplayed), 3, "{drops:?}");
    assert_eq!(drops.get(DropReason::HandshakeReplayed) + drops.get(DropReason::Replayed), attacker.sent);
}

#[test]
fn another_version_or_suite_is_counted_by_its_own_reason_and_not_answered() {
    let mut w = World::new(Setup::default());
    w.ue_config.accesses.clear();
    let mut attacker = Attacker::new();
    let home: SocketAddr = "11.1.1.1:4500".parse().unwrap();
    for (version, suite, reason) in [
        (2, 1, DropReason::HandshakeVersion),
        (0, 1, DropReason::HandshakeVersion),
        (1, 9, DropReason::HandshakeInvalid),
    ] {
        let (_, mut init) = attacker.init(&w, None);
        (init[1], init[2]) = (version, suite);
        let before = w.upf.drops().get(reason);
        attacker.send(&mut w, home, &init);
        w.run_ms(1);
        assert_eq!(w.upf.drops().get(reason), before + 1, "{version} {suite}");
    }
    assert!(w.tap.iter().all(|(_, up, ..)| *up));
}

#[test]
fn a_spoofed_source_of_plain_data_gets_in_only_with_both_addresses_right() {
    use anabranch_atsss::session::Security;
    let mut w = connected(Setup { security: [Security::Plain; 2], ..Setup::default() });
    w.up(1, 100);
    w.run_ms(50);
    w.tap.retain(|(_, up, _, p)| *up && ip::parse_udp(p).is_ok_and(|(_, _, range)| p[range][0] >> 4 == 8));
    let (_, _, path, packet) = w.tap.last().expect("plain data").clone();
    let (src, _, payload) = ip::parse_udp(&packet).unwrap();
    let payload = packet[payload].to_vec();
    let mut attacker = Attacker::new();
    // From another address; from the right address and port on the other access; with another inner source.
    let elsewhere = attacker.anywhere();
    for (from, access, inner_source) in
        [(elsewhere, path, None), (src, 1 - path, None), (src, path, Some(77u8))]
    {
        let mut payload = payload.clone();
        if let Some(last) = inner_source {
            payload[8 + 15] = last;
        }
        let outer = ip::udp_datagram(from, address(access as u8, 1), &payload).unwrap();
        let before = w.upf.drops().get(DropReason::UnknownEndpoint);
        w.inject(true, access + 1, outer, Duration::ZERO);
        w.run_ms(5);
        assert_eq!(w.upf.drops().get(DropReason::UnknownEndpoint), before + 1, "{from} {access}");
    }
    assert_eq!(w.server_numbers(), [1]);
}

/// Drops at the UPF by reason, without those that are zero.
fn by_reason(w: &World) -> Vec<(DropReason, u64)> {
    w.upf.drops().iter().filter(|(_, n)| *n > 0).collect()
}

#[test]
fn every_truncation_of_every_message_is_dropped_and_counted_by_its_reason() {
    let mut w = connected(Setup { upf_rules: standby("wifi"), ..Setup::default() });
    w.up(1, 100);
    w.run_ms(50);
    let (tables, delivered) = (w.upf.table_bytes(), w.at_server.len());
    let first = |kind: u8| {
        let is = |p: &[u8]| ip::parse_udp(p).is_ok_and(|(_, _, range)| p[range][0] >> 4 == kind);
        w.tap.iter().find(|(_, up, _, p)| *up && is(p)).expect("one of this kind").clone()
    };
    // A truncated init is never an init, because its length is part of its format. (Its first tag covers
    // every byte.)
    let (init, data) = (first(1), first(4));
    let (source, _, range) = ip::parse_udp(&init.3).unwrap();
    let mut reasons = Vec::new();
    for cut in 0..range.len() {
        let payload = &init.3[range.start..range.start + cut];
        let packet = ip::udp_datagram(source, address(init.2 as u8, 1), payload).unwrap();
        let before = by_reason(&w);
        w.inject(true, init.2 + 1, packet, Duration::ZERO);
        w.run_until(w.now);
        let new: Vec<_> = by_reason(&w).into_iter().filter(|row| !before.contains(row)).collect();
        assert_eq!(new.len(), 1, "init cut to {cut}: {new:?}");
        reasons.push(new[0].0);
    }
    reasons.dedup();
    use DropReason::{Forged, HandshakeMac, Malformed, UnknownType};
    assert!(reasons.iter().all(|r| [Malformed, UnknownType, HandshakeMac].contains(r)), "{reasons:?}");
    // A sealed message is either too short for its header and tag, or does not verify.
    let (source, _, range) = ip::parse_udp(&data.3).unwrap();
    for cut in 0..range.len() {
        let payload = &data.3[range.start..range.start + cut];
        let packet = ip::udp_datagram(source, address(data.2 as u8, 1), payload).unwrap();
        let (malformed, forged) = (w.upf.drops().get(Malformed), w.upf.drops().get(Forged));
        w.inject(true, data.2 + 1, packet, Duration::ZERO);
        w.run_until(w.now);
        let short = cut < 16 + 16;
        let is = (w.upf.drops().get(Malformed) - malformed, w.upf.drops().get(Forged) - forged);
        // Replay is checked first: a number already received is not decrypted.
        let seen = w.upf.drops().get(DropReason::Replayed);
        assert!(is == (1, 0) || (!short && (is == (0, 1) || seen > 0)), "data cut to {cut}: {is:?} {seen}");
    }
    assert_eq!((w.upf.table_bytes(), w.at_server.len()), (tables, delivered));
    w.up(2, 100);
    w.run_ms(50);
    assert_eq!(w.server_numbers(), [1, 2]);
}

#[test]
fn messages_out_of_order_are_taken_inside_the_window_and_counted_outside() {
    let mut w = connected(Setup { upf_rules: standby("wifi"), ..Setup::default() });
    let old_init = w.tap.iter().find(|(_, up, _, _)| *up).expect("the first init").clone();
    // Two early packets are delayed by the network.
    w.channels[1].cut = true;
    w.tap.clear();
    w.up(0, 100);
    w.up(1, 100);
    let mut kept = w.tap.iter().filter(|(_, up, _, p)| *up && (160..220).contains(&p.len())).cloned();
    let (late, later) = (kept.next().expect("sent"), kept.next().expect("sent"));
    drop(kept);
    w.channels[1].cut = false;
    for i in 2..100 {
        w.up(i, 100);
        w.run_ms(1);
    }
    w.inject(true, late.2 + 1, late.3, Duration::ZERO);
    w.run_ms(50);
    assert!(w.server_numbers().contains(&0), "inside the window it counts");
    for i in 100..20_000 {
        w.up(i, 100);
        if i % 50 == 0 {
            w.run_ms(1);
        }
    }
    w.run_ms(50);
    let too_old = w.upf.drops().get(DropReason::TooOld);
    w.inject(true, later.2 + 1, later.3, Duration::ZERO);
    w.run_ms(50);
    assert_eq!(w.upf.drops().get(DropReason::TooOld), too_old + 1, "{:?}", w.upf.drops());
    assert!(!w.server_numbers().contains(&1));
    // An init that was overtaken by a newer one of the same UE opens no session.
    w.restart_ue(70);
    w.run_ms(2_000);
    let (replayed, view) = (w.upf.drops().get(DropReason::HandshakeReplayed), w.view());
    w.inject(true, old_init.2 + 1, old_init.3, Duration::ZERO);
    w.run_ms(50);
    assert_eq!(w.upf.drops().get(DropReason::HandshakeReplayed), replayed + 1);
    assert_eq!(w.view().paths.len(), view.paths.len());
    assert!(w.ue.is_connected());
}

#[test]
fn an_init_that_was_recorded_while_a_upf_was_away_delays_nothing() {
    let is_init = |packet: &[u8]| {
        ip::parse_udp(packet).is_ok_and(|(_, _, bytes)| classify(&packet[bytes]) == Ok(MessageType::Init))
    };
    let run = |away_ms: u64, replayed: usize, at_ms: u64, delays_ms: [u64; 2]| {
        let mut w = connected(Setup { delays_ms, ..Setup::default() });
        w.channels.iter_mut().for_each(|channel| channel.cut = true);
        w.tap.clear();
        w.run_ms(away_ms);
        let inits: Vec<_> = w.tap.iter().filter(|(_, up, _, bytes)| *up && is_init(bytes)).cloned().collect();
        w.channels.iter_mut().for_each(|channel| channel.cut = false);
        w.restart_upf(77);
        let Some((_, _, access, bytes)) = inits.get(replayed) else { return false };
        w.inject(true, access + 1, bytes.clone(), Duration::from_millis(at_ms));
        w.run_ms(4_500);
        let up = w.ue.paths().iter().filter(|path| path.up).count();
        assert!(
            up > 0,
            "away {away_ms} ms, init {replayed} after {at_ms} ms, {delays_ms:?}: {:?}",
            w.ue_events
        );
        let before = w.server_numbers().len();
        (0..10).for_each(|number| w.up(number, 300));
        w.run_ms(500);
        assert_eq!(w.server_numbers().len() - before, 10);
        true
    };
    let mut runs = 0;
    for away_ms in [1_500, 4_000, 8_024, 14_000, 31_000] {
        for at_ms in [1, 700, 1_500, 3_500] {
            for delays_ms in [[5, 78], [40, 40]] {
                runs += (0..12).take_while(|replayed| run(away_ms, *replayed, at_ms, delays_ms)).count();
            }
        }
    }
    assert!(runs > 150, "{runs}");
}
