//! Explanations of rules, as reported by each end for its own sending direction.

use super::world::{Setup, World};
use super::{balance, connected, rule, standby};
use anabranch_atsss::session::{Origin, RuleEvent, RuleView, SessionEvent};
use anabranch_atsss::ue::{UeCommand, UeEvent};
use anabranch_atsss::upf::{UpfCommand, UpfEvent};
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
