//! Explanations of rules, as reported by each end for its own sending direction.

use super::world::{SERVER, Setup, UE_IP, World, udp};
use super::{balance, connected, rule, standby};
use anabranch_atsss::session::{Origin, RuleEvent, RuleView, SessionEvent};
use anabranch_atsss::ue::{UeCommand, UeEvent};
use anabranch_atsss::upf::{UpfCommand, UpfEvent};
use anabranch_element::packet::Packet;
use anabranch_element::{Element, Port};
use anabranch_rules::{Filter, PortRange};
use anabranch_steer::{Cause, Exclusion, Treatment};
use anabranch_steer::{
    Rule, SteeringMode,
    load_balance::{self, Granularity},
};

const WIFI: u8 = 1;

/// The views of the rule `all` at the UE and at the UPF.
fn views(w: &World) -> [RuleView; 2] {
    let find = |views: Vec<RuleView>| views.into_iter().find(|view| view.rule == "all").unwrap();
    [find(w.ue.rule_views(w.now)), find(w.upf.rule_views(&w.entry.key, w.now))]
}

/// The events of rules reported by the two ends.
fn told(w: &World) -> [Vec<RuleEvent>; 2] {
    let of = |event: &SessionEvent| match event {
        SessionEvent::Rule { event, .. } => Some(*event),
        _ => None,
    };
    let ue = w.ue_events.iter().filter_map(|(_, event)| match event {
        UeEvent::Session(event) => of(event),
        _ => None,
    });
    let upf = w.upf_events.iter().filter_map(|(_, event)| match event {
        UpfEvent::Session { event, .. } => of(event),
        _ => None,
    });
    [ue.collect(), upf.collect()]
}

/// The lasting loss of Wi-Fi known to the UE, in either direction.
fn lasting_loss(w: &World) -> u8 {
    let of = |event: &UeEvent| match event {
        UeEvent::Session(SessionEvent::LastingLoss { path: WIFI, percent }) => Some(*percent),
        _ => None,
    };
    w.ue_events.iter().rev().find_map(|(_, event)| of(event)).expect("told with the first probe")
}

fn traffic(w: &mut World, seconds: u32) {
    for number in 0..seconds * 200 {
        w.up(number, 400);
        w.down(number, 400);
        w.run_ms(5);
    }
}

#[test]
fn an_access_beyond_the_loss_limit_is_reported_by_the_end_that_leaves_it() {
    for (towards_upf, end) in [(true, 0), (false, 1)] {
        let mut w = connected(Setup { upf_rules: standby("wifi"), ..Setup::default() });
        traffic(&mut w, 2);
        for view in views(&w) {
            let explanation = view.explanation.unwrap();
            assert_eq!(explanation.treatment, Treatment::One(WIFI, Cause::Preferred));
            assert_eq!(explanation.excluded[0], Some(Exclusion::Standby));
            assert_eq!(explanation.excluded[usize::from(WIFI)], None);
        }
        assert_eq!(lasting_loss(&w), 0);
        (w.channels[1].loss, w.channels[1].lossy_towards_upf) = (0.2, Some(towards_upf));
        traffic(&mut w, 10);
        assert!(
            (6..50).contains(&lasting_loss(&w)),
            "towards the UPF: {towards_upf}, {} %",
            lasting_loss(&w)
        );

        let views = views(&w);
        let (here, there) = (&views[end], &views[1 - end]);
        let explanation = here.explanation.unwrap();
        let Some(Exclusion::SteadyLoss { loss, limit: 5 }) = explanation.excluded[usize::from(WIFI)] else {
            panic!("{explanation:?}");
        };
        assert!((6..50).contains(&loss), "{loss} %");
        assert_eq!((here.path, explanation.treatment), (Some(0), Treatment::One(0, Cause::Fallback)));
        assert_eq!(there.path, Some(WIFI), "{there:?}");
        assert_eq!(there.explanation.unwrap().excluded[usize::from(WIFI)], None);
        let events = told(&w);
        assert!(
            matches!(
                events[end][..],
                [RuleEvent::Excluded { path: WIFI, why: Exclusion::SteadyLoss { .. } }]
            ),
            "{events:?}"
        );
        assert!(events[1 - end].is_empty(), "{events:?}");

        w.channels[1].loss = 0.0;
        traffic(&mut w, 60);
        let events = told(&w);
        assert!(matches!(events[end][1..], [RuleEvent::Included { path: WIFI, .. }]), "{events:?}");
        assert_eq!(lasting_loss(&w), 0);
        let at_upf = |event: &UpfEvent| {
            matches!(event, UpfEvent::Session { event: SessionEvent::LastingLoss { .. }, .. })
        };
        assert!(!w.upf_events.iter().any(|(_, event)| at_upf(event)));
    }
}

#[test]
fn a_move_states_its_reason() {
    let mut w = connected(Setup { upf_rules: standby("wifi"), ..Setup::default() });
    traffic(&mut w, 1);
    w.ue.on_command(UeCommand::Carrier { path: WIFI, up: false }, w.now);
    traffic(&mut w, 1);
    w.ue.on_command(UeCommand::Carrier { path: WIFI, up: true }, w.now);
    traffic(&mut w, 2);
    let moves: Vec<_> = w
        .ue_events
        .iter()
        .filter_map(|(_, event)| match event {
            UeEvent::Session(SessionEvent::Moved { from, to, why, .. }) => Some((*from, *to, *why)),
            _ => None,
        })
        .collect();
    let [first, away, back] = moves[..] else { panic!("{moves:?}") };
    assert_eq!(first, (None, WIFI, None));
    assert!(
        matches!(away, (Some(WIFI), 0, Some(Exclusion::Down { reason: Some(reason) })) if reason.as_str() == "carrier")
    );
    assert_eq!(back, (Some(0), WIFI, Some(Exclusion::Standby)));
}

#[test]
fn rules_state_their_origin_at_both_ends() {
    let named = |name: &str| Rule { name: name.into(), ..standby("wifi")[0].clone() };
    let mut w = connected(Setup {
        ue_rules: vec![named("ours")],
        upf_rules: vec![named("everybody's"), named("ours"), named("other")],
        ..Setup::default()
    });
    let mut entry = w.entry.clone();
    entry.rules = vec![named("one UE's")];
    w.upf.command(UpfCommand::AddUe(entry), w.now).unwrap();
    let follow = UpfCommand::SetException {
        key: w.entry.key,
        application: "everybody's".into(),
        rule: "other".into(),
    };
    w.upf.command(follow, w.now).unwrap();
    w.run_ms(1000);
    let origins = |views: Vec<RuleView>| {
        views.into_iter().map(|view| (view.rule, view.origin, view.follows)).collect::<Vec<_>>()
    };
    let row = |name: &str, origin| (name.to_string(), origin, None);
    assert_eq!(
        origins(w.ue.rule_views(w.now)),
        [
            row("ours", Origin::Ue),
            row("one UE's", Origin::Upf),
            row("everybody's", Origin::Upf),
            row("other", Origin::Upf),
            row("default", Origin::BuiltIn),
        ]
    );
    assert_eq!(
        origins(w.upf.rule_views(&w.entry.key, w.now)),
        [
            row("ours", Origin::Ue),
            row("one UE's", Origin::UpfForUe),
            ("everybody's".into(), Origin::Upf, Some("other".into())),
            row("other", Origin::Upf),
            row("default", Origin::BuiltIn),
        ]
    );
}

#[test]
fn counters_of_a_rule_restart_when_the_rules_change() {
    let mut w = connected(Setup { upf_rules: standby("wifi"), ..Setup::default() });
    for up in [false, true] {
        traffic(&mut w, 1);
        w.ue.on_command(UeCommand::Carrier { path: WIFI, up }, w.now);
    }
    traffic(&mut w, 2);
    assert!(views(&w).iter().all(|view| view.switches > 1 && view.is_used()), "{:?}", views(&w));
    w.upf.command(UpfCommand::Rules(balance(50, 50)), w.now).unwrap();
    w.run_ms(1000);
    for view in views(&w) {
        assert_eq!((view.switches, view.denied, view.is_used()), (0, 0, false), "{view:?}");
    }
}

/// A rule for a remote port.
fn of_port(name: &str, port: u16, primary: &str) -> Rule {
    let remote_port = Some(PortRange { first: port, last: port });
    let filter = Filter { remote_port, ..Filter::default() };
    Rule { name: name.into(), filter, ..standby(primary)[0].clone() }
}

/// Paths of a packet to and from this port of the server.
fn paths_of(w: &mut World, port: u16) -> [[usize; 2]; 2] {
    w.tap.clear();
    let up = udp(UE_IP.into(), SERVER.into(), 5000, port, 0, 300);
    w.ue.on_packet(Port(0), Packet::new(w.now, up), w.now);
    let down = udp(SERVER.into(), UE_IP.into(), port, 5000, 0, 300);
    w.upf.on_packet(Port(0), Packet::new(w.now, down), w.now);
    w.run_ms(100);
    [w.tapped(true, 300), w.tapped(false, 300)]
}

#[test]
fn rules_with_one_name_in_several_lists_all_steer_and_are_told_apart() {
    const ON_5G: [[usize; 2]; 2] = [[1, 0]; 2];
    const ON_WIFI: [[usize; 2]; 2] = [[0, 1]; 2];
    let mut w = connected(Setup {
        ue_rules: vec![of_port("bond", 1001, "wifi")],
        upf_rules: vec![of_port("bond", 1002, "wifi"), of_port("bond (upf)", 1003, "wifi")],
        ..Setup::default()
    });
    let mut entry = w.entry.clone();
    entry.rules = vec![of_port("bond", 1004, "wifi"), of_port("other", 1005, "wifi")];
    w.upf.command(UpfCommand::AddUe(entry), w.now).unwrap();
    w.run_ms(1000);
    for port in 1001..=1005 {
        assert_eq!(paths_of(&mut w, port), ON_WIFI, "{port}");
    }
    assert_eq!(paths_of(&mut w, 1006), ON_5G);
    let rows = |views: Vec<RuleView>| -> Vec<_> {
        let port = |view: &RuleView| Some(view.definition.as_ref()?.filter.remote_port?.first);
        views.iter().map(|view| (view.rule.clone(), view.origin, port(view), view.is_used())).collect()
    };
    let expected = |of_upf: [Origin; 2]| -> Vec<(String, Origin, Option<u16>, bool)> {
        let [for_ue, for_all] = of_upf;
        vec![
            ("bond".into(), Origin::Ue, Some(1001), true),
            ("bond (upf 2)".into(), for_ue, Some(1004), true),
            ("other".into(), for_ue, Some(1005), true),
            ("bond (all UEs)".into(), for_all, Some(1002), true),
            ("bond (upf)".into(), for_all, Some(1003), true),
            ("default".into(), Origin::BuiltIn, None, true),
        ]
    };
    assert_eq!(rows(w.ue.rule_views(w.now)), expected([Origin::Upf; 2]));
    assert_eq!(
        rows(w.upf.rule_views(&w.entry.key, w.now)),
        expected([Origin::UpfForUe, Origin::Upf]),
        "the same names at both ends"
    );
    // An exception names rules of the UPF.
    let set = UpfCommand::SetException { key: w.entry.key, application: "other".into(), rule: "bond".into() };
    w.upf.command(set, w.now).unwrap();
    let follows =
        w.upf.rule_views(&w.entry.key, w.now).into_iter().find_map(|view| Some((view.rule, view.follows?)));
    assert_eq!(follows, Some(("other".into(), "bond (upf 2)".into())));
    // The names follow live changes at either end.
    w.ue.on_command(UeCommand::Rules(vec![of_port("mine", 1001, "wifi")]), w.now);
    w.run_ms(1000);
    let names = |views: Vec<RuleView>| views.into_iter().map(|view| view.rule).collect::<Vec<_>>();
    let now = ["mine", "bond", "other", "bond (all UEs)", "bond (upf)", "default"];
    assert_eq!(names(w.ue.rule_views(w.now)), now);
    assert_eq!(names(w.upf.rule_views(&w.entry.key, w.now)), now);
    w.upf.command(UpfCommand::Rules(vec![of_port("mine", 1007, "wifi")]), w.now).unwrap();
    w.run_ms(1000);
    let now = ["mine", "bond", "other", "mine (upf)", "default"];
    assert_eq!(names(w.ue.rule_views(w.now)), now);
    assert_eq!(names(w.upf.rule_views(&w.entry.key, w.now)), now);
    assert_eq!([1001, 1004, 1007].map(|port| paths_of(&mut w, port)), [ON_WIFI; 3]);
    assert_eq!([1002, 1003].map(|port| paths_of(&mut w, port)), [ON_5G; 2]);
}

#[test]
fn a_hint_names_the_rule_of_the_upf_although_the_ue_has_one_with_its_name() {
    let by_user =
        Rule { filter: Filter { uid: Some(1000), ..Filter::default() }, ..of_port("bond", 1, "wifi") };
    let mut w = connected(Setup {
        ue_rules: vec![of_port("bond", 1001, "5g")],
        upf_rules: vec![by_user],
        ..Setup::default()
    });
    w.run_ms(1000);
    paths_of(&mut w, 1002);
    let wanted = w.ue_events.iter().find_map(|(_, event)| match event {
        UeEvent::OwnerWanted(key) => Some(*key),
        _ => None,
    });
    let owner = anabranch_atsss::classify::FlowOwner { uid: Some(1000), cgroup: None };
    w.ue.on_command(UeCommand::Owner { key: wanted.unwrap(), owner }, w.now);
    paths_of(&mut w, 1002);
    w.run_ms(500);
    assert_eq!(paths_of(&mut w, 1002), [[0, 1], [0, 1]]);
}

#[test]
fn packets_are_counted_by_path_and_a_rest_ends_the_count() {
    let mode = SteeringMode::LoadBalance(load_balance::Params {
        weights: vec![],
        per: Granularity::Packet,
        autonomous: true,
    });
    let mut w = connected(Setup { upf_rules: rule(mode), ..Setup::default() });
    assert!(views(&w).iter().all(|view| view.explanation.is_none() && view.law.is_none()));
    traffic(&mut w, 2);
    for view in views(&w) {
        assert_eq!(view.packets.iter().sum::<u64>(), 400);
        let law = view.law.unwrap();
        assert_eq!((law.counts.at_home[1], law.counts.placed[1], law.paused), (400, 1, None));
        let explanation = view.explanation.unwrap();
        assert_eq!(explanation.treatment, Treatment::One(WIFI, Cause::Home));
        assert!(matches!(explanation.excluded[0], Some(Exclusion::HomeNotFull { home: WIFI, .. })));
    }
    let loads: Vec<_> = w.ue.session().path_loads(w.now).collect();
    assert!(loads.iter().all(|path| path.load.base_us.is_some()), "{loads:?}");
    w.run_ms(30_000);
    let [ue, upf] = views(&w);
    assert_eq!((ue.packets[1], upf.is_used(), upf.explanation), (400, false, None));
}

#[test]
fn rules_that_conflict_with_those_of_the_upf_are_rejected_in_advance() {
    let many = |of: &str| -> Vec<Rule> {
        let rule = |i| Rule { name: format!("{of}{i}"), ..balance(50, 50)[0].clone() };
        (0..126).map(rule).collect()
    };
    let w = connected(Setup { upf_rules: many("upf"), ..Setup::default() });
    let error = w.ue.check_rules(&many("ue")).unwrap_err();
    assert_eq!(error.to_string(), "252 rules: at most 248 are supported");
    assert_eq!(w.ue.check_rules(&many("upf")), Ok(()), "one's own of the same name count");
}
