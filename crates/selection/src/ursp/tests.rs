//! Import, export, errors, and the matching of flows to slices.

use super::*;
use crate::{Host, Request, Slice};
use anabranch_rules::PortRange;
use proptest::prelude::*;

const EXAMPLE: &str = r#"{
  "anyUeInd": true,
  "urspGuidance": [
    {
      "trafficDesc": {
        "appDescs": {"97a498e3-fc92-5c94-8986-0333d06e4e47": {"osId": "97a498e3-fc92-5c94-8986-0333d06e4e47", "appIds": {"1": "pilot"}}},
        "flowDescs": ["permit out 6 from 198.51.100.0/24 5760,14550-14560 to assigned"]
      },
      "relatPrecedence": 1,
      "routeSelParamSets": [
        {"snssai": {"sst": 2, "sd": "00000B"}, "dnn": "control", "precedence": 1},
        {"snssai": {"sst": 1}, "precedence": 2}
      ]
    },
    {
      "trafficDesc": {"domainDescs": ["video.example.org"], "connCaps": ["INTERNET"]},
      "relatPrecedence": 2,
      "routeSelParamSets": [{"snssai": {"sst": 1}}]
    },
    {"relatPrecedence": 255, "routeSelParamSets": [{"dnn": "internet"}]}
  ]
}"#;

fn host() -> Host {
    let mut host = Host::default();
    for (id, sst, sd, dnn) in [("A", 1, None, "internet"), ("B", 2, Some(11), "control")] {
        let slice = Slice {
            interface: "wwan0".into(),
            snssai: Some(Snssai { sst, sd }),
            dnn: Some(dnn.into()),
            ..Slice::default()
        };
        host.slices.insert(id.into(), slice);
    }
    host
}

#[test]
fn a_flow_is_mapped_to_its_slice() {
    let ursp = Ursp::from_json(EXAMPLE).unwrap();
    let pilot = Flow {
        application: Some(("97a498e3-fc92-5c94-8986-0333d06e4e47".into(), "pilot".into())),
        server: Some((6, "198.51.100.9:14555".parse().unwrap())),
        ..Flow::default()
    };
    let found = ursp.find(&pilot, &host()).unwrap();
    assert_eq!((found.rule, found.route, &found.slices[..]), (0, 0, &["B".to_owned()][..]));
    let mut without = host();
    without.slices.remove("B");
    let found = ursp.find(&pilot, &without).unwrap();
    assert_eq!((found.rule, found.route), (0, 1), "the next route, if the first leads nowhere");

    let other_port = Flow { server: Some((6, "198.51.100.9:80".parse().unwrap())), ..pilot };
    assert_eq!(ursp.find(&other_port, &host()).unwrap().rule, 2, "every kind of component must match");
    let video = Flow {
        domain: Some("Video.Example.org.".into()),
        capability: Some("INTERNET".into()),
        ..Flow::default()
    };
    let found = ursp.find(&video, &host()).unwrap();
    assert_eq!(found.rule, 1);
    let mut request = Request::default();
    found.apply(&mut request);
    assert_eq!(request.bound_to, ["A"]);
    assert_eq!(ursp.find(&video, &Host::default()), None);
}

#[test]
fn entries_that_are_not_evaluated_match_nothing() {
    let rule = |traffic: &str, place: &str| {
        let text =
            format!(r#"[{{"trafficDesc": {traffic}, "routeSelParamSets": [{{"dnn": "internet"{place}}}]}}]"#);
        let flow = Flow { domain: Some("a.example".into()), ..Flow::default() };
        Ursp::from_json(&text).unwrap().find(&flow, &host()).is_some()
    };
    assert!(rule(r#"{"domainDescs": ["a.example"]}"#, ""));
    assert!(!rule(r#"{"domainDescs": [".*"]}"#, ""));
    assert!(!rule(r#"{"domainDescs": ["a.example"], "ethFlowDescs": [{"ethType": "0800"}]}"#, ""));
    assert!(!rule(r#"{"domainDescs": ["a.example"]}"#, r#", "spatialValidityTais": [{}]"#));
}

#[test]
fn import_and_export_preserve_everything() {
    let ursp = Ursp::from_json(EXAMPLE).unwrap();
    let out = ursp.json();
    assert_eq!(out["anyUeInd"], true);
    assert_eq!(out["urspGuidance"][0]["routeSelParamSets"][0]["snssai"]["sd"], "00000b");
    let flow = &out["urspGuidance"][0]["trafficDesc"]["flowDescs"][0];
    assert_eq!(flow, "permit out 6 from 198.51.100.0/24 5760,14550-14560 to any");
    assert_eq!(Ursp::from_json(&out.to_string()).unwrap(), ursp);
}

#[test]
fn errors_state_the_place_and_the_remedy() {
    let rule = |traffic: &str, route: &str| {
        let text =
            format!(r#"{{"urspGuidance": [{{"trafficDesc": {traffic}, "routeSelParamSets": [{route}]}}]}}"#);
        Ursp::from_json(&text).unwrap_err().to_string()
    };
    let (some, dnn) = (r#"{"dnns": ["x"]}"#, r#"{"dnn": "x"}"#);
    for (text, place, part) in [
        (rule("{}", dnn), "urspGuidance[0].trafficDesc:", "it is empty"),
        (rule(r#"{"domainDesc": ["x"]}"#, dnn), "trafficDesc:", "did you mean \"domainDescs\"?"),
        (rule(r#"{"flowDescs": ["deny out 6 from any to any"]}"#, dnn), "flowDescs[0]:", "permits"),
        (rule(r#"{"flowDescs": ["permit out 6 from any 9-2 to any"]}"#, dnn), "flowDescs[0]:", "no port"),
        (
            rule(r#"{"flowDescs": ["permit out 6 from any to 10.0.0.1"]}"#, dnn),
            "flowDescs[0]:",
            "the UE's side",
        ),
        (rule(r#"{"flowDescs": ["permit out 600 from any to any"]}"#, dnn), "flowDescs[0]:", "0 to 255"),
        (rule(r#"{"appDescs": {"a": {"osId": "b", "appIds": {"x": "y"}}}}"#, dnn), "appDescs.a:", "osId"),
        (rule(some, "{}"), "routeSelParamSets[0]:", "neither"),
        (rule(some, r#"{"snssai": {"sst": 300}}"#), "snssai.sst:", "0 to 255"),
        (rule(some, r#"{"snssai": {"sst": 1, "sd": "B"}}"#), "snssai.sd:", "six hexadecimal"),
        (rule(some, r#"{"dnn": "x", "precedence": -1}"#), "precedence:", "whole number"),
        (Ursp::from_json("{}").unwrap_err().to_string(), "document:", "urspGuidance"),
        (Ursp::from_json("[]").unwrap_err().to_string(), "urspGuidance:", "1 to 1024"),
        (Ursp::from_json("[").unwrap_err().to_string(), "document:", "no JSON"),
    ] {
        assert!(text.contains(place) && text.contains(part), "{text}");
    }
}

fn word() -> impl Strategy<Value = String> {
    "[a-z*.]{1,8}"
}

prop_compose! {
    fn any_flow()(
        protocol: Option<u8>, server in proptest::option::of((any::<bool>(), any::<u128>(), 0u8..=128)),
        ports in proptest::collection::vec((any::<u16>(), any::<u16>()), 0..3),
    ) -> FlowDescription {
        FlowDescription {
            protocol,
            server: server.map(|(six, bits, length)| {
                let address: std::net::IpAddr =
                    if six { std::net::Ipv6Addr::from(bits).into() } else { std::net::Ipv4Addr::from(bits as u32).into() };
                ipnet::IpNet::new(address, if six { length } else { length.min(32) }).unwrap().trunc()
            }),
            ports: ports.into_iter().map(|(a, b)| PortRange { first: a.min(b), last: a.max(b) }).collect(),
        }
    }
}

prop_compose! {
    fn any_traffic()(
        applications in proptest::collection::btree_map(word(), proptest::collection::btree_map(word(), word(), 1..3), 0..2),
        flows in proptest::collection::vec(any_flow(), 0..3),
        domains in proptest::collection::vec(word(), 0..3),
        dnns in proptest::collection::vec(word(), 0..2),
        capabilities in proptest::collection::vec(word(), 1..3),
        ethernet in proptest::collection::vec(Just(json!({"ethType": "88f7"})), 0..2),
    ) -> TrafficDescriptor {
        TrafficDescriptor { applications, flows, domains, dnns, capabilities, ethernet }
    }
}

prop_compose! {
    fn any_route()(
        dnn in proptest::option::of(word()), sst: u8, sd in proptest::option::of(0u32..0x100_0000),
        slice: bool, precedence: Option<u32>, place: bool,
    ) -> Route {
        let places = if place { Map::from_iter([("spatialValidityTais".to_owned(), json!([{"tac": "1"}]))]) } else { Map::new() };
        let snssai = (slice || dnn.is_none()).then_some(Snssai { sst, sd });
        Route { dnn, snssai, precedence, places }
    }
}

prop_compose! {
    fn any_rule()(
        traffic in proptest::option::of(any_traffic()), precedence: Option<u32>,
        routes in proptest::collection::vec(any_route(), 1..4),
    ) -> Rule {
        Rule { traffic, precedence, routes }
    }
}

proptest! {
    #[test]
    fn every_policy_survives_the_round_trip(rules in proptest::collection::vec(any_rule(), 1..5)) {
        let ursp = Ursp { rules, other: Map::new() };
        prop_assert_eq!(Ursp::from_json(&ursp.json().to_string()).unwrap(), ursp);
    }
}
