//! Sessions that end, resume, are refused, or have exceptions.

use super::world::{Setup, World, address, udp};
use super::{balance, connected, standby};
use anabranch_atsss::drops::DropReason;
use anabranch_atsss::session::{Addresses, Origin, SessionEvent};
use anabranch_atsss::ue::{UeCommand, UeEvent};
use anabranch_atsss::upf::{SessionEnd, UeEntry, UpfCommand, UpfError, UpfEvent};
use anabranch_atsss::{DatagramSink, PathId};
use anabranch_element::Element;
use anabranch_element::time::{Duration, Instant};
use anabranch_rules::Filter;
use anabranch_steer::{Rule, SteeringMode, active_standby};
use anabranch_wire::ip;
use std::net::SocketAddr;

#[test]
fn a_restarted_ue_continues_at_once_with_the_same_flows() {
    // Sequence numbers of flows start at zero again and must not be taken for old packets.
    let mut w = connected(Setup { upf_rules: balance(50, 50), ..Setup::default() });
    for i in 0..500 {
        w.up(i, 300);
        w.down(i, 300);
        w.run_ms(1);
    }
    w.run_ms(100);
    w.restart_ue(50);
    w.run_ms(300);
    assert!(w.ue.is_connected());
    for i in 500..1000 {
        w.up(i, 300);
        w.down(i, 300);
        w.run_ms(1);
    }
    w.run_ms(300);
    assert_eq!(w.server_numbers(), (0..1000).collect::<Vec<_>>());
    assert_eq!(w.device_numbers(), (0..1000).collect::<Vec<_>>());
    let again = w.upf_events.iter().filter(|(_, e)| {
        matches!(e, UpfEvent::Session { event: SessionEvent::Rekeyed { fresh_peer: true, .. }, .. })
    });
    assert_eq!(again.count(), 1);
    let rules = w.ue_events.iter().filter(|(_, e)| matches!(e, UeEvent::Rules(1)));
    assert_eq!(rules.count(), 2, "the new process was told the rules, too");
}

#[test]
fn a_ue_started_again_after_silence_is_told_its_rules_at_once() {
    // This long after its process ended: its path is still up at the UPF, declared down, or at rest.
    for ms in [10, 500, 3_000, 12_000, 90_000] {
        let mut w = connected(Setup { upf_rules: balance(50, 50), ..Setup::default() });
        w.channels[1].cut = true;
        w.run_ms(2_000);
        w.channels[0].cut = true;
        w.run_ms(ms);
        w.channels[0].cut = false;
        w.restart_ue(50);
        w.ue_events.clear();
        w.run_ms(60);
        assert!(w.ue_events.iter().any(|(_, e)| matches!(e, UeEvent::Rules(_))), "{ms}: {:?}", w.ue_events);
    }
}

#[test]
fn rules_that_a_restarted_ue_no_longer_has_are_not_applied() {
    for again in [Vec::new(), standby("wifi"), standby("5g")] {
        let (upf_rules, ue_rules) = (standby("wifi"), named("own", standby("5g")));
        let mut w = connected(Setup { upf_rules, ue_rules, ..Setup::default() });
        w.run_ms(1_000);
        assert_eq!(downlink(&mut w), [1, 0]);
        let expected = if again == standby("5g") { [1, 0] } else { [0, 1] };
        w.ue_config.rules = named("new", again);
        w.restart_ue(50);
        w.run_ms(1_000);
        assert_eq!(downlink(&mut w), expected, "{:?}", w.ue_config.rules);
        let views = w.upf.rule_views(&w.entry.key, w.now);
        let own: Vec<_> = views.iter().filter(|v| v.origin == Origin::Ue).map(|v| v.rule.as_str()).collect();
        assert_eq!(own, w.ue_config.rules.iter().map(|rule| rule.name.as_str()).collect::<Vec<_>>());
    }
}

fn named(name: &str, rules: Vec<Rule>) -> Vec<Rule> {
    rules.into_iter().map(|rule| Rule { name: name.into(), ..rule }).collect()
}

/// Nothing that a restarted UE sends under its first keys arrives. Under its next keys, it sends the same to
/// the UPF again.
#[test]
fn a_ue_that_is_cut_off_right_after_its_restart_is_one_that_was_restarted() {
    for outage_ms in (500..6_000).step_by(50).chain([20_000]) {
        let mut w = connected(Setup { upf_rules: balance(50, 50), ..Setup::default() });
        w.up(0, 300);
        w.run_ms(1_000);
        w.restart_ue(50);
        w.ue_events.clear();
        while !w.ue_events.iter().any(|(_, e)| matches!(e, UeEvent::Handshake { .. })) {
            w.run_until(w.now + Duration::from_micros(100));
        }
        w.channels.iter_mut().for_each(|channel| channel.cut = true);
        // Packets sent together with the response are lost, too.
        w.forget_flights();
        w.run_ms(outage_ms);
        w.channels.iter_mut().for_each(|channel| channel.cut = false);
        w.run_ms(5_000);
        let told = w.ue_events.iter().any(|(_, e)| matches!(e, UeEvent::Rules(1)));
        assert!(told, "{outage_ms} ms: {:?}", w.ue_events);
        w.up(1, 300);
        w.run_ms(100);
        assert_eq!(w.server_numbers(), [0, 1], "{outage_ms} ms");
    }
}

/// The rules to be sent by the UPF have not changed, and would be many times the size of the UE's message.
#[test]
fn a_ue_that_changes_its_own_rules_is_not_told_those_of_the_upf_again() {
    let upf_rules = (0..100).flat_map(|n| named(&format!("rule-{n}"), standby("wifi"))).collect();
    let mut w = connected(Setup { upf_rules, ..Setup::default() });
    // Until the search for the path MTU has ended, so that nothing else large is sent down.
    w.run_ms(5_000);
    w.tap.clear();
    for n in 0..20 {
        let primary = if n % 2 == 0 { "wifi" } else { "5g" };
        w.ue.on_command(UeCommand::Rules(named(&format!("own-{n}"), standby(primary))), w.now);
        w.run_ms(200);
    }
    let large = w.tap.iter().filter(|(_, up, _, packet)| !up && packet.len() > 1_000).count();
    assert_eq!(large, 0, "pieces of a document");
    let first = w.upf.rule_views(&w.entry.key, w.now).remove(0);
    assert_eq!((first.rule.as_str(), first.origin), ("own-19", Origin::Ue));
    assert_eq!(downlink(&mut w), [1, 0]);
}

#[test]
fn a_rekey_is_no_restart() {
    let mut w = connected(Setup { upf_rules: balance(50, 50), ..Setup::default() });
    w.run_ms(400_000);
    let fresh = w.upf_events.iter().any(|(_, e)| {
        matches!(e, UpfEvent::Session { event: SessionEvent::Rekeyed { fresh_peer: true, .. }, .. })
    });
    assert!(!fresh);
    assert_eq!(w.ue_events.iter().filter(|(_, e)| matches!(e, UeEvent::Rules(_))).count(), 1);
}

#[test]
fn a_session_closed_by_the_operator_is_reestablished_within_a_second() {
    let mut w = connected(Setup { upf_rules: balance(50, 50), ..Setup::default() });
    let mut sent = 0;
    for _ in 0..5 {
        for _ in 0..50 {
            w.up(sent, 300);
            w.down(sent, 300);
            sent += 1;
            w.run_ms(1);
        }
        w.run_ms(100);
        let close = UpfCommand::CloseSession(w.entry.key);
        w.upf.command(close, w.now).unwrap();
        assert_eq!(w.upf.session_count(), 0);
        w.run_ms(1_000);
        assert!(w.ue.is_connected(), "{:?}", w.ue_events);
    }
    assert_eq!(w.server_numbers(), (0..sent).collect::<Vec<_>>());
    assert_eq!(w.device_numbers(), (0..sent).collect::<Vec<_>>());
    let told =
        w.ue_events.iter().filter(|(_, e)| matches!(e, UeEvent::Session(SessionEvent::Closed { reason: 1 })));
    assert_eq!(told.count(), 5);
}

#[test]
fn packets_sent_while_the_session_is_rebuilt_wait_for_it() {
    let mut w = connected(Setup::default());
    let close = UpfCommand::CloseSession(w.entry.key);
    w.upf.command(close, w.now).unwrap();
    w.run_ms(30);
    for i in 0..20 {
        w.up(i, 100);
    }
    w.run_ms(1_000);
    assert_eq!(w.server_numbers(), (0..20).collect::<Vec<_>>());
}

#[test]
fn a_ue_that_closes_is_gone_at_the_upf() {
    let mut w = connected(Setup::default());
    w.ue.on_command(UeCommand::Close, w.now);
    w.run_ms(50);
    let down = w
        .upf_events
        .iter()
        .any(|(_, e)| matches!(e, UpfEvent::SessionDown { reason: SessionEnd::ClosedByUe, .. }));
    assert!(down, "{:?}", w.upf_events);
}

/// Whether each session that has ended at the UPF ends the connections of its UE.
fn ends(w: &World) -> Vec<(SessionEnd, bool)> {
    let down = w.upf_events.iter().filter_map(|(_, event)| match event {
        UpfEvent::SessionDown { reason, .. } => Some((*reason, reason.ends_connections())),
        _ => None,
    });
    down.collect()
}

#[test]
fn connections_end_with_a_session_that_is_closed_not_with_its_keys() {
    let mut w = connected(Setup::default());
    let addresses = w.ue.addresses();
    w.channels.iter_mut().for_each(|channel| channel.cut = true);
    w.run_ms(400_000);
    assert_eq!(ends(&w), [(SessionEnd::KeysExpired, false)]);
    // The UE did not end, so it continues them.
    w.channels.iter_mut().for_each(|channel| channel.cut = false);
    w.run_ms(2_000);
    assert!(w.ue.is_connected() && w.ue.addresses() == addresses);
    let fresh = w.upf_events.iter().any(|(_, event)| {
        matches!(event, UpfEvent::Session { event: SessionEvent::Rekeyed { fresh_peer: true, .. }, .. })
    });
    assert!(!fresh && !w.ue_events.iter().any(|(_, event)| *event == UeEvent::UpfRestarted));
    type End = fn(&mut World);
    let closes: [(End, SessionEnd); 3] = [
        (|w| w.ue.on_command(UeCommand::Close, w.now), SessionEnd::ClosedByUe),
        (|w| w.upf.command(UpfCommand::CloseSession(w.entry.key), w.now).unwrap(), SessionEnd::Closed),
        (|w| w.upf.command(UpfCommand::RemoveUe(w.entry.key), w.now).unwrap(), SessionEnd::Removed),
    ];
    for (close, reason) in closes {
        let mut w = connected(Setup::default());
        close(&mut w);
        w.run_ms(50);
        assert_eq!(ends(&w).first(), Some(&(reason, true)));
    }
}

#[test]
fn when_the_upf_is_full_the_ue_is_told_and_asks_again() {
    let mut w = World::new(Setup { max_sessions: 0, ..Setup::default() });
    w.run_ms(40_000);
    assert!(!w.ue.is_connected());
    let refusals: Vec<_> = w
        .ue_events
        .iter()
        .filter_map(|(at, e)| match e {
            UeEvent::Refused { reason, retry_in } => Some((*at, *reason, *retry_in)),
            _ => None,
        })
        .collect();
    assert_eq!(refusals.len(), 4, "{:?}", w.ue_events);
    assert_eq!(refusals[0].1, "the UPF has no room for another session");
    assert_eq!(refusals.iter().map(|r| r.2.as_secs()).collect::<Vec<_>>(), [5, 10, 20, 40]);
    assert!(w.upf_events.iter().any(|(_, e)| matches!(e, UpfEvent::Refused { ue, .. } if ue == "ue1")));
    assert_eq!(w.upf.drops().get(DropReason::Exhausted), 4);
    assert_eq!(w.upf.session_count(), 0);
    // The refusal does not come from anybody else.
    assert!(refusals[0].0 < Instant::from_millis(100));
}

fn two_rules() -> Vec<Rule> {
    let bulk = Rule {
        name: "bulk".into(),
        filter: Filter {
            remote_port: Some(anabranch_rules::PortRange { first: 9, last: 9 }),
            ..Filter::default()
        },
        steering: SteeringMode::ActiveStandby(active_standby::Params {
            primary: "wifi".into(),
            rotate_packets: 0,
            leave_above_loss_percent: 5,
        }),
        reorder: true,
        functionality: Default::default(),
    };
    let rest = Rule { name: "rest".into(), ..standby("5g").remove(0) };
    vec![bulk, rest]
}

#[test]
fn an_exception_steers_one_application_of_one_ue_both_ways() {
    let mut w = connected(Setup { upf_rules: two_rules(), ..Setup::default() });
    let shares = |w: &mut World| {
        w.tap.clear();
        for i in 0..20 {
            w.up(i, 1000);
            w.down(i, 1000);
            w.run_ms(1);
        }
        w.run_ms(100);
        (w.tapped(true, 1000), w.tapped(false, 1000))
    };
    assert_eq!(shares(&mut w), ([0, 20], [0, 20]));
    let set = |application: &str, rule: &str| UpfCommand::SetException {
        key: w.entry.key,
        application: application.into(),
        rule: rule.into(),
    };
    let (exception, wrong) = (set("bulk", "rest"), set("bulk", "none"));
    assert_eq!(w.upf.command(wrong, w.now), Err(UpfError::UnknownRule("none".into())));
    w.upf.command(exception, w.now).unwrap();
    w.run_ms(100);
    assert_eq!(shares(&mut w), ([20, 0], [20, 0]));
    // The exception survives the session and changes of the rules.
    let close = UpfCommand::CloseSession(w.entry.key);
    w.upf.command(close, w.now).unwrap();
    w.run_ms(1_000);
    assert_eq!(shares(&mut w), ([20, 0], [20, 0]));
    let mut rules = two_rules();
    rules.insert(
        0,
        Rule { name: "new".into(), filter: Filter { uid: Some(7), ..Filter::default() }, ..rules[1].clone() },
    );
    w.upf.command(UpfCommand::Rules(rules), w.now).unwrap();
    w.run_ms(100);
    assert_eq!(shares(&mut w), ([20, 0], [20, 0]));
    let clear = UpfCommand::ClearException { key: w.entry.key, application: "bulk".into() };
    w.upf.command(clear, w.now).unwrap();
    w.run_ms(100);
    assert_eq!(shares(&mut w), ([0, 20], [0, 20]));
}

#[test]
fn rules_for_all_reach_every_session_while_the_data_path_goes_on() {
    let mut w = connected(Setup { upf_rules: standby("5g"), ..Setup::default() });
    for n in 0..1000u32 {
        let entry = UeEntry {
            name: format!("other{n}"),
            key: anabranch_atsss::crypto::PublicKey([n as u8; 32].map(|b| b ^ (n >> 8) as u8 ^ 0x55)),
            addresses: Addresses { v4: Some(std::net::Ipv4Addr::from(0x0a30_0000 + n)), v6: None },
            rules: Vec::new(),
            accept_rules: true,
        };
        // Some keys are the same: those UEs are changed, not added.
        let _ = w.upf.command(UpfCommand::AddUe(entry), w.now);
    }
    w.upf.command(UpfCommand::Rules(standby("wifi")), w.now).unwrap();
    w.run_ms(200);
    w.tap.clear();
    w.up(1, 1000);
    w.down(1, 1000);
    w.run_ms(100);
    assert_eq!((w.tapped(true, 1000), w.tapped(false, 1000)), ([0, 1], [0, 1]));
    assert!(matches!(Element::poll_timeout(&w.upf), Some((at, _)) if at > w.now));
}

#[test]
fn hints_of_the_ue_survive_rests_and_restarts() {
    let mut w = connected(Setup { upf_rules: by_owner(), ..Setup::default() });
    w.up(0, 100);
    w.run_ms(10);
    assert_eq!(tell_owners(&mut w), 1);
    w.run_ms(200);
    assert_eq!(downlink(&mut w), [0, 1], "the UPF was told");
    w.run_ms(30_000);
    assert!(w.view().resting);
    assert_eq!(downlink(&mut w), [0, 1], "and remembers it at rest");
    w.restart_upf(99);
    w.up(0, 100);
    w.run_ms(3_000);
    w.up(0, 100);
    w.run_ms(10);
    tell_owners(&mut w);
    w.run_ms(200);
    assert_eq!(downlink(&mut w), [0, 1], "a new UPF is told again");
    // Another flow of the same device follows its own rule.
    let other = udp([192, 0, 2, 80].into(), super::world::UE_IP.into(), 9, 6000, 1, 1000);
    w.tap.clear();
    w.upf.on_packet(anabranch_element::Port(0), anabranch_element::packet::Packet::new(w.now, other), w.now);
    w.run_ms(50);
    assert_eq!(w.tapped(false, 1000), [1, 0]);
}

/// The UE has the response to its rekey, but the UPF does not receive a packet under the new keys for longer
/// than it keeps unused keys. It takes the UE for a restarted one, and the UE must learn that.
#[test]
fn the_ue_repeats_its_documents_after_an_outage_right_after_a_rekey() {
    for (outage_ms, own) in [(20_000, false), (20_000, true), (5_000, true), (60_000, true)] {
        let ue_rules = if own { vec![by_owner().remove(0)] } else { Vec::new() };
        let upf_rules = if own { vec![by_owner().remove(1)] } else { by_owner() };
        let mut w = connected(Setup { upf_rules, ue_rules, ..Setup::default() });
        w.up(0, 100);
        w.run_ms(10);
        assert_eq!(tell_owners(&mut w), 1);
        w.run_ms(1_000);
        assert_eq!(downlink(&mut w), [0, 1]);
        // Until the response is in flight and nothing that the UE sends after it arrives.
        let handshakes =
            |w: &World| w.upf_events.iter().filter(|(_, e)| matches!(e, UpfEvent::Handshake { .. })).count();
        while handshakes(&w) < 2 {
            w.run_ms(1);
        }
        let answered = |w: &World| w.ue_events.iter().any(|(_, e)| matches!(e, UeEvent::Handshake { .. }));
        w.ue_events.clear();
        w.channels.iter_mut().for_each(|channel| channel.cut = true);
        w.run_ms(30);
        assert!(answered(&w), "the response was under way");
        w.run_ms(outage_ms);
        w.channels.iter_mut().for_each(|channel| channel.cut = false);
        w.run_ms(3_000);
        w.up(0, 100);
        w.run_ms(10);
        tell_owners(&mut w);
        w.run_ms(500);
        assert_eq!(downlink(&mut w), [0, 1], "{outage_ms} ms, rules of its own: {own}");
    }
}

/// A rule that matches by the owner of the flow, which only the UE can determine, and one for the rest.
fn by_owner() -> Vec<Rule> {
    let own = Rule {
        name: "late".into(),
        filter: Filter { uid: Some(1000), ..Filter::default() },
        ..standby("wifi").remove(0)
    };
    vec![own, Rule { name: "rest".into(), ..standby("5g").remove(0) }]
}

/// Answers every request for an owner with the owner of that rule. Returns their number.
fn tell_owners(w: &mut World) -> usize {
    let asked: Vec<_> = w
        .ue_events
        .drain(..)
        .filter_map(|(_, e)| match e {
            UeEvent::OwnerWanted(key) => Some(key),
            _ => None,
        })
        .collect();
    let count = asked.len();
    for key in asked {
        let owner = anabranch_atsss::classify::FlowOwner { uid: Some(1000), cgroup: None };
        w.ue.on_command(UeCommand::Owner { key, owner }, w.now);
    }
    count
}

fn downlink(w: &mut World) -> [usize; 2] {
    w.tap.clear();
    w.down(1, 300);
    w.run_ms(50);
    w.tapped(false, 300)
}

#[test]
fn an_unknown_ue_gets_no_answer_and_is_counted() {
    let mut w = World::new(Setup::default());
    let remove = UpfCommand::RemoveUe(w.entry.key);
    w.upf.command(remove, w.now).unwrap();
    w.run_ms(3_000);
    assert!(!w.ue.is_connected());
    assert!(w.upf.drops().get(DropReason::HandshakeUnknownUe) >= 3);
    assert!(w.tap.iter().all(|(_, up, ..)| *up), "nothing came back");
    // It is accepted once it is configured.
    let add = UpfCommand::AddUe(w.entry.clone());
    w.upf.command(add, w.now).unwrap();
    w.run_until(w.now + Duration::from_secs(5));
    assert!(w.ue.is_connected());
}

/// Found by fuzzing: the UPF took the probes of the new UE for late ones of the old, and declared its paths
/// down.
#[test]
fn the_paths_of_a_restarted_ue_that_is_idle_stay_up() {
    let mut w = connected(Setup { delays_ms: [25, 128], ..Setup::default() });
    w.run_ms(63_000);
    w.restart_ue(33);
    w.run_ms(300);
    w.ue_events.clear();
    w.upf_events.clear();
    w.run_ms(20_000);
    let down = |e: &SessionEvent| matches!(e, SessionEvent::PathDown { .. });
    assert!(!w.upf_events.iter().any(|(_, e)| matches!(e, UpfEvent::Session { event, .. } if down(event))));
    assert!(!w.ue_events.iter().any(|(_, e)| matches!(e, UeEvent::Session(event) if down(event))));
    assert!(w.view().paths.iter().all(|p| p.up), "{:?}", w.view());
}

/// How often the UPF reported two devices with one key, and how often one was displaced.
fn shared_keys(w: &World) -> (usize, u64) {
    let told = w.upf_events.iter().filter(|(_, event)| matches!(event, UpfEvent::SharedKey { .. })).count();
    (told, w.upf.key_conflicts())
}

#[test]
fn two_devices_with_one_key_are_told_once_a_minute() {
    for seed in 1..6 {
        let mut w = World::new(Setup { seed, ..Setup::default() });
        w.run_ms(3_000);
        w.start_twin(40 + seed as u8);
        for n in 0..1_500 {
            w.up(n, 500);
            w.run_ms(20);
        }
        let (told, turns) = shared_keys(&w);
        assert_eq!(told, 1, "{seed}: {turns} turns");
        assert!(turns >= 3, "{seed}: {turns}");
        w.run_ms(120_000);
        let (told, after) = shared_keys(&w);
        assert!((2..=4).contains(&told) && after > turns, "{seed}: {told} {after}");
        // One of the devices is switched off.
        w.twin = None;
        w.run_ms(70_000);
        let before = shared_keys(&w);
        w.run_ms(300_000);
        assert_eq!(shared_keys(&w), before);
        assert!(w.ue.is_connected());
    }
}

#[test]
fn a_ue_that_is_restarted_sleeps_or_loses_much_has_a_key_of_its_own() {
    let mut w = World::new(Setup::default());
    for seed in 0..40 {
        w.run_ms(1_500);
        w.restart_ue(seed);
    }
    for secs in [10, 50, 150, 400, 1_000] {
        w.run_ms(5_000);
        w.channels.iter_mut().for_each(|channel| channel.cut = true);
        w.run_ms(secs * 1_000);
        w.channels.iter_mut().for_each(|channel| channel.cut = false);
    }
    for towards_upf in [Some(true), Some(false), None] {
        for loss in [0.3, 0.7, 0.9] {
            w.channels
                .iter_mut()
                .for_each(|channel| (channel.loss, channel.lossy_towards_upf) = (loss, towards_upf));
            w.run_ms(200_000);
        }
        w.channels.iter_mut().for_each(|channel| channel.loss = 0.0);
        w.restart_upf(90);
        w.run_ms(20_000);
    }
    assert_eq!(shared_keys(&w).0, 0, "{:?}", shared_keys(&w));
}

/// Datagrams sent by a UPF.
#[derive(Default)]
struct Sent(Vec<(PathId, SocketAddr, Vec<u8>)>);

impl DatagramSink for Sent {
    fn reserve(&mut self, path: PathId, to: SocketAddr, len: usize) -> Option<&mut [u8]> {
        self.0.push((path, to, vec![0; len]));
        self.0.last_mut().map(|(_, _, bytes)| bytes.as_mut_slice())
    }

    fn withdraw(&mut self, _path: PathId) {
        self.0.pop();
    }
}

/// Runs for `ms`. Each handshake received is computed, then `between` is called, and then it is answered.
fn run_deferring(w: &mut World, ms: u64, mut between: impl FnMut(&mut World)) -> usize {
    let mut answered = 0;
    for _ in 0..ms {
        w.run_ms(1);
        while let Some(init) = w.upf.poll_handshake() {
            let computed = if answered % 2 == 0 { init.compute() } else { init.read() };
            between(w);
            let mut out = Sent::default();
            w.upf.finish_handshake(computed, w.now, &mut out);
            for (path, to, bytes) in out.0 {
                let packet = ip::udp_datagram(address(path, 1), to, &bytes).unwrap();
                w.inject(false, 1 + u16::from(path), packet, Duration::from_millis(1));
                answered += 1;
            }
        }
    }
    answered
}

#[test]
fn a_handshake_computed_elsewhere_opens_the_session_and_changes_its_keys() {
    let mut w = World::new(Setup { upf_rules: balance(50, 50), ..Setup::default() });
    w.upf.defer_handshakes();
    assert_eq!(run_deferring(&mut w, 500, |_| {}), 1);
    assert!(w.ue.is_connected());
    for i in 0..20 {
        w.up(i, 300);
        w.down(i, 300);
        run_deferring(&mut w, 2, |_| {});
    }
    run_deferring(&mut w, 300_000, |_| {});
    assert!(w.upf_events.iter().any(|(_, e)| {
        matches!(e, UpfEvent::Session { event: SessionEvent::Rekeyed { fresh_peer: false, .. }, .. })
    }));
    assert_eq!((w.server_numbers().len(), w.device_numbers().len()), (20, 20));
}

#[test]
fn changes_during_the_computation_of_a_handshake_count() {
    // Removed: the handshake belongs to no UE any more.
    let mut w = World::new(Setup::default());
    w.upf.defer_handshakes();
    let key = w.entry.key;
    let answered =
        run_deferring(&mut w, 100, |w| w.upf.command(UpfCommand::RemoveUe(key), w.now).unwrap_or(()));
    assert_eq!(answered, 0);
    assert!(w.upf.drops().get(DropReason::HandshakeUnknownUe) >= 1, "{:?}", w.upf.drops());
    assert_eq!((w.upf.session_count(), w.ue.is_connected()), (0, false));
    // Added again: the next handshake is answered.
    w.upf.command(UpfCommand::AddUe(w.entry.clone()), w.now).unwrap();
    run_deferring(&mut w, 5_000, |_| {});
    assert!(w.ue.is_connected());
    // Closed by the operator: a new session.
    let mut closed = 0;
    w.restart_ue(9);
    run_deferring(&mut w, 5_000, |w| {
        if closed < 2 {
            closed += 1;
            w.upf.command(UpfCommand::CloseSession(key), w.now).unwrap_or(());
        }
    });
    assert!(w.ue.is_connected() && closed > 0);
    assert_eq!((w.upf.session_count(), w.upf.connected_count()), (1, 1));
}

#[test]
fn copies_of_an_init_are_computed_but_only_one_is_answered() {
    let mut w = World::new(Setup::default());
    w.upf.defer_handshakes();
    w.run_ms(5);
    let init = w.tap.iter().find(|(_, up, _, _)| *up).unwrap().clone();
    for _ in 0..3 {
        w.inject(true, init.2 + 1, init.3.clone(), Duration::from_millis(6));
    }
    w.run_ms(20);
    assert_eq!(run_deferring(&mut w, 1, |_| {}), 1);
    assert_eq!(w.upf.drops().get(DropReason::HandshakeReplayed), 3);
    assert_eq!(w.upf.session_count(), 1);
}

#[test]
fn a_session_comes_about_and_lives_where_answers_take_longer_than_tries() {
    // One-way delays in ms: equal accesses, and a slow first one next to one that is cut.
    for (delays_ms, cut, within_s) in [
        ([2_500, 2_500], false, 6),
        ([2_500, 10], true, 6),
        ([4_000, 4_000], false, 9),
        ([6_500, 6_500], true, 15),
        ([7_000, 7_000], false, 15),
    ] {
        let mut w = World::new(Setup { delays_ms, ..Setup::default() });
        w.channels[1].cut = cut;
        w.run_ms(within_s * 1_000);
        assert!(w.ue.is_connected(), "{delays_ms:?}");
        let tries = w.ue_events.iter().filter(|(_, e)| matches!(e, UeEvent::HandshakeTimeout { .. })).count();
        assert!(tries < 14, "{delays_ms:?}: {tries} tries");
        // During several lifetimes of keys.
        w.ue_events.clear();
        let before = w.upf.drops().get(DropReason::HandshakeReplayed);
        w.run_ms(400_000);
        let again = w.ue_events.iter().filter(|(_, e)| matches!(e, UeEvent::Connected { .. })).count();
        assert_eq!((w.ue.is_connected(), again), (true, 0), "{delays_ms:?}: {:?}", w.ue_events);
        assert_eq!(w.upf.drops().get(DropReason::HandshakeReplayed), before);
        for number in 0..10 {
            w.up(number, 300);
            w.run_ms(1_000);
        }
        w.run_ms(15_000);
        assert_eq!(w.server_numbers(), (0..10).collect::<Vec<_>>(), "{delays_ms:?}");
    }
}

#[test]
fn a_splitting_rule_in_the_place_of_a_switching_one_is_on_no_single_path() {
    let mut w = connected(Setup { ue_rules: standby("wifi"), ..Setup::default() });
    let path = |w: &World| w.ue.rule_views(w.now)[0].path;
    for number in 0..10 {
        w.up(number, 300);
        w.run_ms(1);
    }
    assert_eq!(path(&w), Some(1));
    w.ue.on_command(UeCommand::Rules(balance(50, 50)), w.now);
    for number in 10..30 {
        w.up(number, 300);
        w.run_ms(1);
    }
    w.run_ms(100);
    assert_eq!((path(&w), w.server_numbers().len()), (None, 30));
}
