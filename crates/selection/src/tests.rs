//! The engine as a whole: the paper's examples, named refusals, and properties for any host and request.

use super::plan::{Action, PlanConfig, plan};
use super::*;
use anabranch_element::time::{Duration, Instant};
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;

fn now() -> Instant {
    Instant::from_secs(100)
}

fn facts(rtt_us: u64, up_mbit: u64, down_mbit: u64) -> Option<SliceFacts> {
    Some(SliceFacts {
        as_of: Instant::from_secs(95),
        ttl: Duration::from_secs(30),
        rtt_us: Some(rtt_us),
        uplink_guaranteed_bps: Some(up_mbit * 1_000_000),
        downlink_guaranteed_bps: Some(down_mbit * 1_000_000),
        ..SliceFacts::default()
    })
}

/// The paper's testbed: slice A best effort, 29.8 ms; slice B low latency, 12.0 ms; and a Wi-Fi interface.
fn testbed() -> Host {
    let mut host = Host::with_all_protocols();
    for (i, name) in ["wwan0", "wwan1", "wlan0"].into_iter().enumerate() {
        let interface = Interface {
            kind: if name == "wlan0" { "wifi".into() } else { "cellular".into() },
            up: true,
            addresses: vec![format!("10.0.{i}.2").parse().unwrap()],
            metric: 100,
            ..Interface::default()
        };
        host.interfaces.insert(name.into(), interface);
    }
    let slice = |interface: &str, facts| Slice { interface: interface.into(), facts, ..Slice::default() };
    host.slices.insert("A".into(), slice("wwan0", facts(29_800, 50, 100)));
    host.slices.insert("B".into(), slice("wwan1", facts(12_000, 20, 60)));
    host
}

fn request(properties: serde_json::Value) -> Request {
    Request {
        properties: Properties::from_json(properties).unwrap(),
        remote: vec![Endpoint::new("198.51.100.7".parse().unwrap(), 443)],
        ..Request::default()
    }
}

fn ways(selection: &Selection) -> Vec<String> {
    selection
        .candidates
        .iter()
        .map(|c| {
            let paths: Vec<String> = c.paths.iter().map(ToString::to_string).collect();
            format!("{} {}", c.protocol, paths.join(" + "))
        })
        .collect()
}

fn first(properties: serde_json::Value) -> String {
    ways(&select(&request(properties), &testbed(), now()).unwrap()).swap_remove(0)
}

#[test]
fn a_control_flow_goes_to_the_slice_of_least_delay_and_video_to_that_of_most_capacity() {
    assert_eq!(first(json!({"connCapacityProfile": "lowLatencyInteractive"})), "quic B on wwan1");
    let tcp = json!({"connCapacityProfile": "lowLatencyInteractive", "multistreaming": "avoid"});
    assert_eq!(first(tcp), "tcp B on wwan1");
    let video = json!({"connCapacityProfile": "constantRateStreaming", "multistreaming": "no-preference"});
    assert_eq!(first(video), "tcp A on wwan0");
}

#[test]
fn several_paths_only_when_no_single_slice_meets_the_rate() {
    let ask = |bps: u64, multipath: &str| {
        let mut p = json!({"minRecvRate": bps, "multistreaming": "no-preference"});
        if !multipath.is_empty() {
            p["multipath"] = json!(multipath);
        }
        select(&request(p), &testbed(), now()).unwrap()
    };
    let below = ask(90_000_000, "");
    assert_eq!(ways(&below)[0], "tcp A on wwan0");
    assert!(below.needs.is_empty() && !ways(&below).iter().any(|w| w.contains("mptcp")));

    let above = ask(130_000_000, "");
    assert_eq!(ways(&above)[0], "mptcp B on wwan1 + A on wwan0", "the faster path first");
    assert_eq!(above.needs[0].best_single_bps, 100_000_000);
    assert_eq!(above.needs[0].best_bps, 160_000_000);
    assert_eq!(above.needs[0].slices, ["A", "B"]);

    let forbidden = ask(130_000_000, "disabled");
    assert!(!ways(&forbidden).iter().any(|w| w.contains("mptcp")));
    let wanted = ask(1, "active");
    assert!(ways(&wanted)[0].starts_with("mptcp B on wwan1 + A on wwan0 + wlan0"), "{:?}", ways(&wanted)[0]);
}

/// Two slices on one interface share its address, but subflows are distinguished by address; and an interface without an address in
/// the peer's family is not a path to it.
#[test]
fn several_paths_use_different_interfaces_that_reach_the_peer() {
    let mut host = testbed();
    for interface in ["wwan0", "wwan1"] {
        host.interfaces.get_mut(interface).unwrap().addresses.push("2001:db8::2".parse().unwrap());
    }
    host.interfaces.get_mut("wlan0").unwrap().addresses = vec!["2001:db8:1::2".parse().unwrap()];
    for (i, (id, up, down)) in [("C", 70, 90), ("D", 10, 10)].into_iter().enumerate() {
        let mark = Some(i as u32 + 1);
        let slice = Slice {
            interface: "wwan0".into(),
            mark,
            table: mark,
            facts: facts(20_000, up, down),
            ..Slice::default()
        };
        host.slices.insert(id.into(), slice);
    }
    let several = |properties: serde_json::Value, remote: &str| {
        let remote = vec![Endpoint::new(remote.parse().unwrap(), 443)];
        let found = select(&Request { remote, ..request(properties) }, &host, now()).unwrap();
        ways(&found).into_iter().filter(|w| w.contains(" + ")).collect::<Vec<_>>()
    };
    // A and C together would have 190, but share one address.
    assert_eq!(several(json!({"minRecvRate": 150_000_000}), "192.0.2.9"), ["mptcp B on wwan1 + A on wwan0"]);
    assert_eq!(
        several(json!({"multipath": "active", "pvd": {"C": "prefer"}}), "192.0.2.9"),
        ["mptcp B on wwan1 + C on wwan0"]
    );
    assert_eq!(
        several(json!({"multipath": "active", "pvd": {"C": "prefer"}}), "2001:db8::9"),
        ["mptcp B on wwan1 + C on wwan0 + wlan0"]
    );
}

#[test]
fn a_route_selection_policy_binds_regardless_of_preferences() {
    let ask = |properties: serde_json::Value, bound_to: &[&str]| {
        let bound_to = bound_to.iter().map(|id| (*id).to_owned()).collect();
        let request = Request { bound_to, ..request(properties) };
        select(&request, &testbed(), now())
            .map(|found| found.candidates.iter().map(|c| c.paths[0].to_string()).collect::<Vec<_>>())
    };
    // A preference among the permitted slices applies, and excludes none; one about other slices does not.
    let found = ask(json!({"pvd": {"B": "prefer"}, "multistreaming": "prohibit"}), &["A", "B"]).unwrap();
    assert_eq!(found, ["B on wwan1", "A on wwan0"]);
    for wish in ["prefer", "no-preference", "avoid"] {
        let found = ask(json!({"pvd": {"B": wish}, "multistreaming": "prohibit"}), &["B"]).unwrap();
        assert_eq!(found, ["B on wwan1"], "{wish}");
    }
    // A requirement of the request applies as well.
    let refused = ask(json!({"pvd": {"A": "require"}}), &["B"]).unwrap_err();
    let why = |candidate: &str| {
        refused.failed.iter().find(|f| f.candidate == candidate).map(|f| f.property.as_str())
    };
    assert_eq!((why("A on wwan0"), why("B on wwan1")), (Some("ursp"), Some("pvd")), "{refused}");
}

#[test]
fn a_refusal_names_the_property_and_the_candidates() {
    let e = select(
        &request(json!({"_slice.latency": {"atMostUs": 5000, "preference": "require"}})),
        &testbed(),
        now(),
    )
    .unwrap_err();
    let text = e.to_string();
    for part in
        ["_slice.latency fails for A on wwan0 (its RTT is up to 29800 us)", "B on wwan1", "in no slice"]
    {
        assert!(text.contains(part), "{text}");
    }
    let none = select(&request(json!({"perMsgReliability": "require"})), &testbed(), now()).unwrap_err();
    assert_eq!(none.failed.iter().filter(|f| f.property == "perMsgReliability").count(), 3, "{none}");
    assert!(none.to_string().contains("reliability fails for udp (udp has it not)"), "{none}");
    let nowhere = select(&Request::default(), &testbed(), now()).unwrap_err();
    assert_eq!(nowhere.failed[0].property, "remote");
}

#[test]
fn expired_facts_are_ignored() {
    let require = request(json!({"_slice.latency": {"atMostUs": 15_000, "preference": "require"}}));
    assert_eq!(ways(&select(&require, &testbed(), now()).unwrap()), ["quic B on wwan1", "tcp B on wwan1"]);
    let e = select(&require, &testbed(), Instant::from_secs(125)).unwrap_err().to_string();
    assert!(e.contains("out of date"), "{e}");
}

#[test]
fn path_preferences_outweigh_protocol_preferences() {
    let mut host = testbed();
    host.protocols.retain(|s| s.protocol == Protocol::Tcp);
    host.protocols.push(Protocol::Quic.into());
    let r = Request {
        properties: Properties::from_json(
            json!({"interface": {"wifi": "prefer", "wwan0": "avoid"}, "multistreaming": "prefer"}),
        )
        .unwrap(),
        remote: vec![Endpoint {
            protocols: [Protocol::Tcp].into(),
            ..Endpoint::new("10.9.9.9".parse().unwrap(), 1)
        }],
        ..Request::default()
    };
    let s = select(&r, &host, now()).unwrap();
    assert_eq!(ways(&s), ["tcp wlan0", "tcp B on wwan1", "tcp A on wwan0"]);
    assert_eq!(s.candidates[0].reasons[0].effect, Effect::Preferred);
    assert!(s.pruned.iter().any(|p| p.candidate.starts_with("quic") && p.property == "protocol"));
}

#[test]
fn address_families_alternate() {
    let mut host = testbed();
    for interface in host.interfaces.values_mut() {
        interface.addresses.push("2001:db8::2".parse().unwrap());
    }
    let remote = ["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::9"];
    let r = Request {
        properties: Properties::from_json(json!({"pvd": {"B": "require"}, "multistreaming": "prohibit"}))
            .unwrap(),
        remote: remote.map(|a| Endpoint::new(a.parse().unwrap(), 80)).to_vec(),
        ..Request::default()
    };
    let s = select(&r, &host, now()).unwrap();
    let order: Vec<String> = s.candidates.iter().map(|c| c.endpoint.address.to_string()).collect();
    assert_eq!(order, ["2001:db8::1", "192.0.2.1", "2001:db8::9", "192.0.2.2"]);
}

#[test]
fn properties_are_read_strictly_and_written_as_read() {
    let wrong = |value| Properties::from_json(value).unwrap_err().to_string();
    let e = wrong(json!({"reliabilty": "require"}));
    assert!(e.contains("did you mean \"reliability\"?"), "{e}");
    assert!(wrong(json!({"minSendRate": -5})).contains("\"minSendRate\": -5 is no rate"));
    assert!(wrong(json!({"reliability": "must"})).contains("\"reliability\": unknown variant `must`"));
    assert!(wrong(json!({"minSendRate": 10, "maxSendRate": 5})).contains("above maxSendRate"));
    assert!(wrong(json!({"_slice.latency": {"atMostMs": 5}})).contains("atMostUs"));
    assert!(wrong(json!([])).contains("an object"));
    let p = Properties::from_json(json!({"_slice.5qi": {"83": "require"}, "pvd": {"A": "avoid"}})).unwrap();
    let text = serde_json::to_value(&p).unwrap();
    assert_eq!(text["_slice.5qi"], json!({"83": "require"}));
    assert_eq!(Properties::from_json(text).unwrap(), p);
    let written = serde_json::to_value(Properties {
        multipath: Some(Multipath::Active),
        slice_latency: Some(LatencyBound {
            at_most_us: 1.try_into().unwrap(),
            preference: Preference::Avoid,
        }),
        slice_send_rate: Some(RateBound {
            at_least_bps: 1.try_into().unwrap(),
            preference: Preference::Avoid,
        }),
        slice_recv_rate: Some(RateBound {
            at_least_bps: 1.try_into().unwrap(),
            preference: Preference::Avoid,
        }),
        slice_isolation: Some(IsolationBound { at_least: Isolation::Logical, preference: Preference::Avoid }),
        ..Properties::default()
    })
    .unwrap();
    let names: Vec<&String> = written.as_object().unwrap().keys().collect();
    assert_eq!(names.len(), Properties::NAMES.len(), "{names:?}");
    assert!(names.iter().all(|n| Properties::NAMES.contains(&n.as_str())));
}

#[test]
fn the_plan_binds_marks_paces_and_sets_the_window() {
    let mut host = testbed();
    let b = host.slices.get_mut("B").unwrap();
    (b.mark, b.table) = (Some(0x200), Some(102));
    let p = Properties { multistreaming: Preference::Prohibit, ..Properties::default() };
    let of = |p: &Properties| {
        let r = Request { properties: p.clone(), ..request(json!({})) };
        let s = select(&r, &host, now()).unwrap();
        plan(&s.candidates[0], p, &host, &PlanConfig { alpha: 1.0, ..PlanConfig::default() }, now())
    };
    let only_b = Properties { pvd: BTreeMap::from([("B".into(), Preference::Require)]), ..p.clone() };
    let steps = of(&only_b);
    assert_eq!(steps[0], Action::Mark { mark: 0x200, table: 102 });
    assert_eq!(steps[1], Action::Pacing { bps: 20_000_000 });
    // 20e6 / 8 * 0.012 / 1448 = 20.7
    let Action::InitialWindow { window, route_bucket } = &steps[3] else { panic!("{steps:?}") };
    assert_eq!((window.segments, *route_bucket), (20, 20));
    let both = Properties { min_recv_rate: Rate::bps(130_000_000), ..p };
    let steps = of(&both);
    let endpoint = Action::MptcpEndpoint {
        address: "10.0.0.2".parse().unwrap(),
        interface: "wwan0".into(),
        backup: false,
    };
    assert!(steps.contains(&endpoint), "{steps:?}");
    // A mark would send every subflow over one path.
    assert_eq!(steps[0], Action::Mptcp);
    let Action::LocalAddress { interface, .. } = &steps[1] else { panic!("{steps:?}") };
    assert_eq!(interface, "wwan1");
    assert!(!steps.iter().any(|s| matches!(s, Action::Mark { .. } | Action::Device { .. })), "{steps:?}");
}

fn preference() -> impl Strategy<Value = Preference> {
    proptest::sample::select(Preference::ALL.to_vec())
}

fn bound() -> impl Strategy<Value = Option<(u64, Preference)>> {
    proptest::option::of((1u64..100, preference()))
}

prop_compose! {
    fn any_host()(
        interfaces in proptest::collection::vec((any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), 0u32..3), 0..4),
        slices in proptest::collection::vec(
            (0usize..4, any::<bool>(), proptest::option::of((
                proptest::option::of(1u64..100), proptest::option::of(1u64..100), proptest::option::of(1u64..100),
                0u8..4, any::<bool>(),
            ))),
            0..5,
        ),
        protocols in proptest::collection::vec(proptest::sample::select(Protocol::ALL.to_vec()), 0..6),
    ) -> Host {
        let mut host = Host { protocols: protocols.into_iter().map(Stack::from).collect(), ..Host::default() };
        for (i, (up, four, six, temporary_address, metric)) in interfaces.into_iter().enumerate() {
            let mut addresses = Vec::new();
            if four { addresses.push("10.0.0.2".parse().unwrap()); }
            if six { addresses.push("2001:db8::2".parse().unwrap()); }
            let kind = if i % 2 == 0 { "cellular" } else { "wifi" }.to_owned();
            host.interfaces.insert(format!("if{i}"), Interface { kind, up, addresses, temporary_address, metric });
        }
        for (i, (interface, marked, facts)) in slices.into_iter().enumerate() {
            let facts = facts.map(|(rtt, up, down, qi, fresh)| SliceFacts {
                as_of: Instant::from_secs(if fresh { 95 } else { 5 }),
                ttl: Duration::from_secs(30),
                rtt_us: rtt,
                uplink_guaranteed_bps: up,
                downlink_guaranteed_bps: down,
                five_qi: if qi == 0 { vec![] } else { vec![qi] },
                isolation: [None, Some(Isolation::None), Some(Isolation::Logical), Some(Isolation::Physical)][usize::from(qi)],
                ..SliceFacts::default()
            });
            let mark = marked.then_some(i as u32 + 1);
            host.slices.insert(format!("s{i}"), Slice { interface: format!("if{interface}"), mark, table: mark, facts, ..Slice::default() });
        }
        host
    }
}

prop_compose! {
    fn any_properties()(
        features in proptest::array::uniform12(preference()),
        strict in any::<bool>(),
        interface in proptest::collection::btree_map("if[0-3]|wifi", preference(), 0..3),
        pvd in proptest::collection::btree_map("s[0-4]", preference(), 0..3),
        temporary in preference(),
        multipath in proptest::option::of(proptest::sample::select(vec![Multipath::Disabled, Multipath::Active, Multipath::Passive])),
        profile in proptest::sample::select(vec![
            CapacityProfile::Default, CapacityProfile::Scavenger, CapacityProfile::LowLatencyInteractive,
            CapacityProfile::LowLatencyNonInteractive, CapacityProfile::ConstantRateStreaming, CapacityProfile::CapacitySeeking,
        ]),
        rates in (0u64..150, 0u64..150),
        latency in bound(), send in bound(), recv in bound(),
        five_qi in proptest::collection::btree_map(1u8..4, preference(), 0..2),
        isolation in proptest::option::of((proptest::sample::select(vec![Isolation::None, Isolation::Logical, Isolation::Physical]), preference())),
    ) -> Properties {
        // Twelve random features leave no protocol: in half of the cases only some are requested.
        let f = |i: usize| if strict || i.is_multiple_of(4) { features[i] } else { Preference::NoPreference };
        let rate = |b: Option<(u64, Preference)>| b.map(|(v, preference)| RateBound { at_least_bps: v.try_into().unwrap(), preference });
        Properties {
            reliability: f(0), preserve_msg_boundaries: f(1), per_msg_reliability: f(2), preserve_order: f(3),
            zero_rtt_msg: f(4), multistreaming: f(5), full_checksum_send: f(6), full_checksum_recv: f(7),
            congestion_control: f(8), keep_alive: f(9), soft_error_notify: f(10), active_read_before_send: f(11),
            interface, pvd, use_temporary_local_address: temporary, multipath, conn_capacity_profile: profile,
            min_send_rate: Rate::bps(rates.0), min_recv_rate: Rate::bps(rates.1),
            slice_latency: latency.map(|(v, preference)| LatencyBound { at_most_us: v.try_into().unwrap(), preference }),
            slice_send_rate: rate(send), slice_recv_rate: rate(recv), slice_5qi: five_qi,
            slice_isolation: isolation.map(|(at_least, preference)| IsolationBound { at_least, preference }),
            ..Properties::default()
        }
    }
}

fn any_remote() -> impl Strategy<Value = Vec<Endpoint>> {
    let one = (
        any::<bool>(),
        0u8..3,
        0u16..2,
        proptest::collection::btree_set(proptest::sample::select(Protocol::ALL.to_vec()), 0..3),
    )
        .prop_map(|(six, host, priority, protocols)| Endpoint {
            priority,
            address: if six { format!("2001:db8::{host}") } else { format!("192.0.2.{host}") }
                .parse()
                .unwrap(),
            port: 443,
            protocols,
        });
    proptest::collection::vec(one, 0..5)
}

/// Requirements and prohibitions about a set of values, of which one may be present.
fn set_is_kept(wanted: impl Iterator<Item = (bool, Preference)>) -> bool {
    let all: Vec<(bool, Preference)> = wanted.collect();
    let required = all.iter().any(|(_, l)| *l == Preference::Require);
    !all.iter().any(|(has, l)| *has && *l == Preference::Prohibit)
        && (!required || all.iter().any(|(has, l)| *has && *l == Preference::Require))
}

/// Checks every requirement and prohibition of a candidate using only the description of the host.
fn is_kept(p: &Properties, c: &Candidate, host: &Host) -> Result<(), String> {
    let fail = |what: &str| Err(format!("{what}: {c:?}"));
    for feature in Feature::ALL {
        let has = c.protocol.features().contains(&feature);
        match feature.wanted(p) {
            Preference::Require if !has => return fail(feature.name()),
            Preference::Prohibit if has => return fail(feature.name()),
            _ => {}
        }
    }
    let (mut up, mut down) = (Some(0), Some(0));
    for path in &c.paths {
        let interface = &host.interfaces[&path.interface];
        let facts = path.pvd.as_ref().and_then(|id| host.slices[id].facts_at(now()));
        if !interface.up {
            return fail("down");
        }
        let is = |n: &String| *n == path.interface || *n == interface.kind;
        if !set_is_kept(p.interface.iter().map(|(n, l)| (is(n), *l))) {
            return fail("interface");
        }
        if !set_is_kept(p.pvd.iter().map(|(n, l)| (path.pvd.as_ref() == Some(n), *l))) {
            return fail("pvd");
        }
        if !set_is_kept(p.slice_5qi.iter().map(|(q, l)| (facts.is_some_and(|f| f.five_qi.contains(q)), *l))) {
            return fail("5qi");
        }
        if !p.use_temporary_local_address.allows(Some(interface.temporary_address)) {
            return fail("temporary");
        }
        if let Some(b) = p.slice_latency
            && !b.preference.allows(facts.and_then(|f| f.rtt_us).map(|r| r <= b.at_most_us.get()))
        {
            return fail("latency");
        }
        if let Some(b) = p.slice_isolation
            && !b.preference.allows(facts.and_then(|f| f.isolation).map(|i| i >= b.at_least))
        {
            return fail("isolation");
        }
        if !interface.addresses.iter().any(|a| a.is_ipv6() == c.endpoint.address.is_ipv6()) {
            return fail("family");
        }
        let add = |sum: Option<u64>, has: Option<u64>| Some(sum? + has?);
        up = add(up, facts.and_then(|f| f.uplink_guaranteed_bps));
        down = add(down, facts.and_then(|f| f.downlink_guaranteed_bps));
    }
    for (bound, has) in [(p.slice_send_rate, up), (p.slice_recv_rate, down)] {
        if let Some(b) = bound
            && !b.preference.allows(has.map(|h| h >= b.at_least_bps.get()))
        {
            return fail("guaranteed rate");
        }
    }
    if c.paths.len() > 1 && (p.multipath == Some(Multipath::Disabled) || !c.protocol.is_multipath()) {
        return fail("multipath");
    }
    if c.endpoint.refuses(c.protocol) {
        return fail("endpoint");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_candidate_violates_a_requirement_or_a_prohibition(
        host in any_host(), properties in any_properties(), remote in any_remote(),
        bound_to in proptest::collection::vec("s[0-4]", 0..3),
    ) {
        let request = Request { properties, remote, bound_to };
        match select(&request, &host, now()) {
            Ok(s) => {
                prop_assert!(!s.candidates.is_empty());
                for c in &s.candidates {
                    let kept = is_kept(&request.properties, c, &host);
                    prop_assert!(kept.is_ok(), "{}", kept.unwrap_err());
                    let slices: Vec<&String> = c.paths.iter().filter_map(|p| p.pvd.as_ref()).collect();
                    let bound = slices.len() == c.paths.len() && slices.iter().all(|s| request.bound_to.contains(s));
                    prop_assert!(request.bound_to.is_empty() || bound, "{:?}: {c:?}", request.bound_to);
                    let interfaces: std::collections::BTreeSet<_> = c.paths.iter().map(|p| &p.interface).collect();
                    prop_assert_eq!(interfaces.len(), c.paths.len(), "each subflow has an address of its own");
                }
            }
            Err(refusal) => prop_assert!(!refusal.failed.is_empty(), "a refusal names something"),
        }
    }

    #[test]
    fn the_order_is_total_and_does_not_depend_on_that_of_the_input(
        host in any_host(), properties in any_properties(), remote in any_remote(), turn in 0usize..7,
    ) {
        let mut turned = host.clone();
        let mut remote_turned = remote.clone();
        if !turned.protocols.is_empty() {
            let by = turn % turned.protocols.len();
            turned.protocols.rotate_left(by);
        }
        if !remote_turned.is_empty() {
            let by = turn % remote_turned.len();
            remote_turned.rotate_left(by);
            remote_turned.reverse();
        }
        let a = select(&Request { properties: properties.clone(), remote, ..Request::default() }, &host, now());
        let b = select(&Request { properties, remote: remote_turned, ..Request::default() }, &turned, now());
        prop_assert_eq!(&a, &b);
        if let Ok(s) = a {
            for (i, c) in s.candidates.iter().enumerate() {
                prop_assert_eq!(c.rank, i);
                for other in &s.candidates[i + 1..] {
                    let same = c.paths == other.paths && c.protocol == other.protocol && c.endpoint == other.endpoint;
                    prop_assert!(!same, "no two candidates are the same");
                    prop_assert!(c.path_points >= other.path_points, "paths before protocols");
                    if c.paths == other.paths {
                        prop_assert!(c.protocol_points >= other.protocol_points);
                    }
                }
            }
        }
    }
}
