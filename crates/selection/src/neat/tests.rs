//! Properties not covered by recorded answers: errors, time, and independence of order.

use super::*;
use anabranch_element::time::{Duration, Instant};
use proptest::prelude::*;
use serde_json::json;

const NOW: u64 = 1_800_000_000;

fn node(value: serde_json::Value) -> Node {
    Node::from_value(&value, NOW).unwrap()
}

fn policy(value: serde_json::Value) -> Policy {
    Policy::from_value(&value).unwrap()
}

fn value(json: serde_json::Value) -> Value {
    Value::from_json(&json).unwrap()
}

#[test]
fn intersections_of_values() {
    for (a, b, both) in [
        (json!("TCP"), json!(["TCP", "UDP"]), Some(json!("TCP"))),
        (json!([1, 2, 3]), json!({"start": 2, "end": 9}), Some(json!([2, 3]))),
        (json!({"start": 0, "end": 5}), json!({"start": 5, "end": "Inf"}), Some(json!(5))),
        (json!({"start": 0, "end": 5}), json!({"start": 6, "end": 7}), None),
        (json!({"start": 0, "end": 5}), json!("three"), None),
        (json!(true), json!(1), Some(json!(1))),
        (json!(null), json!({"start": 1, "end": "inf"}), Some(json!({"start": 1, "end": "Inf"}))),
        (json!([1500]), json!({"start": 0, "end": 9000}), Some(json!(1500))),
        (json!([1, 2]), json!({"start": 5, "end": 9}), None),
    ] {
        let (a, b) = (value(a), value(b));
        assert_eq!(a.intersection(&b).map(|v| v.json()), both, "{a} and {b}");
        assert_eq!(b.intersection(&a).is_some(), both.is_some(), "{b} and {a}");
    }
}

#[test]
fn infinity_is_written_as_a_text() {
    let array =
        PropertyArray::from_json(&json!({"x": {"value": {"start": "-infinity", "end": "Inf"}}})).unwrap();
    assert_eq!(array.json()["x"]["value"], json!({"start": "-Inf", "end": "Inf"}));
    let node = Node::from_json(
        r#"{"uid": "a", "properties": {"x": {"value": {"start": 1, "end": Infinity}}}}"#,
        NOW,
    );
    assert!(node.unwrap().json().to_string().contains("\"Inf\""));
}

#[test]
fn errors_name_the_place() {
    let wrong = |v: serde_json::Value| Policy::from_value(&v).unwrap_err().to_string();
    let e = wrong(json!({"uid": "P", "properties": {"x": {"value": 1, "precedence": 3}}}));
    assert_eq!(e, "policy \"p\": property \"x\": precedence 3 is none; write 0, 1 or 2");
    assert!(wrong(json!({"properties": {"x": 5}})).contains("write {\"value\": 5"));
    assert!(wrong(json!({"properties": {"x": {"value": {"start": 2, "end": 1}}}})).contains("after its end"));
    let twice = json!({"properties": {"x": [{"value": 1, "precedence": 2}, {"value": 2, "precedence": 2}]}});
    assert!(wrong(twice).contains("both of precedence 2"));
    assert!(wrong(json!({"match": {"x": {"value": []}}})).contains("an empty set"));
    assert!(wrong(json!({"priority": "high"})).contains("priority"));
    let many = json!([[{"a": {}}, {"a": {}}, {"a": {}}, {"a": {}}]]);
    let many: Vec<_> = std::iter::repeat_n(many[0].clone(), 7).collect();
    assert!(wrong(json!({"properties": many})).contains("more than 1024"));
    let named = Policy::named("y", r#"{"uid": "x", "properties": {"z": {"value": 1, "precedence": 3}}}"#);
    assert!(named.unwrap_err().to_string().starts_with("policy \"y\": property \"z\""));
    let node = Node::named("y", r#"{"match": 5}"#, NOW).unwrap_err();
    assert_eq!(node.place, "CIB node \"y\": match");
    let m = Manager::default();
    for (request, part) in [
        ("{}", "a list of requests"),
        ("[{\"local_endpoint\": {\"value\": \"10.0.0.1\"}}]", "address@interface"),
        ("[5]", "request 1"),
        ("[", "no JSON"),
    ] {
        let e = m.query(request, NOW).unwrap_err().to_string();
        assert!(e.contains(part), "{e}");
    }
}

#[test]
fn facts_are_immutable_until_they_expire() {
    let slice = crate::Slice {
        interface: "wwan0".into(),
        facts: Some(crate::SliceFacts {
            as_of: Instant::from_secs(10),
            ttl: Duration::from_secs(5),
            rtt_us: Some(12_000),
            downlink_guaranteed_bps: Some(60_000_000),
            five_qi: vec![82, 83],
            ..Default::default()
        }),
        ..Default::default()
    };
    let interface = crate::Interface {
        addresses: vec!["10.0.0.2".parse().unwrap(), "2001:db8::2".parse().unwrap()],
        ..Default::default()
    };
    let at = |s: u64| slice_node("B", &slice, &interface, Instant::from_secs(s), NOW).unwrap();
    assert_eq!(at(15), None);
    let node = at(12).unwrap();
    assert_eq!(node.expires_unix_s, Some(NOW as f64 + 3.0));
    let mut m = Manager::default();
    m.cib.insert(node).unwrap();
    assert_eq!(m.cib.rows(NOW).unwrap().len(), 2);
    assert!(m.cib.rows(NOW).unwrap()[0].iter().all(|(_, p)| p.precedence == Precedence::Immutable));
    // It cannot be overridden: a request for less delay finds no row.
    let ask = |rtt: u64| {
        let request = json!([{"rtt": {"value": {"start": 0, "end": rtt}, "precedence": 2}, "transport": {"value": "TCP"}}]);
        m.query_value(&request, NOW).unwrap()
    };
    assert_eq!((ask(50).len(), ask(5).len()), (3, 1));
    assert_eq!(ask(50)[1].properties.json()["rtt"]["value"], json!(12));
    assert_eq!(m.cib.rows(NOW + 4).unwrap(), []);
}

/// A thousand rows, and nodes that add a thousand alternatives to each of them.
#[test]
fn rows_are_bounded_while_they_are_made() {
    let many = |key: &str| -> Vec<serde_json::Value> {
        let alternatives = |i: usize| [0, 1].map(|j| json!({format!("{key}{i}"): {"value": j}}));
        (0..10).map(|i| json!(alternatives(i))).collect()
    };
    let mut cib = Cib::default();
    cib.insert(node(json!({"uid": "root", "root": true, "properties": many("r")}))).unwrap();
    assert_eq!(cib.rows(NOW).unwrap().len(), 1024);
    for i in 0..100 {
        cib.insert(node(json!({"uid": i.to_string(), "match": [{}], "properties": many("m")}))).unwrap();
    }
    assert!(cib.rows(NOW).unwrap_err().to_string().contains("more than 1024"));
}

#[test]
fn entries_are_identified_by_uid() {
    let mut pib = Pib::default();
    pib.insert(policy(json!({"uid": "One", "priority": 1}))).unwrap();
    pib.insert(policy(json!({"uid": "ONE", "priority": 2}))).unwrap();
    assert_eq!(pib.uids().collect::<Vec<_>>(), ["one"]);
    assert_eq!(pib.get("oNe").unwrap().priority, 2);
    assert!(pib.remove("one").is_some() && pib.remove("one").is_none());
    let unnamed = policy(json!({"priority": 1})).uid;
    assert_eq!(unnamed, policy(json!({"priority": 1})).uid, "made from the content");
    assert_ne!(unnamed, policy(json!({"priority": 2})).uid);
}

fn any_value() -> impl Strategy<Value = serde_json::Value> {
    prop_oneof![
        Just(json!(null)),
        (0i64..4).prop_map(|n| json!(n)),
        any::<bool>().prop_map(|b| json!(b)),
        "[AB]".prop_map(|s| json!(s)),
        proptest::collection::vec(0i64..5, 1..4).prop_map(|v| json!(v)),
        (0i64..4, 0i64..4).prop_map(|(a, b)| json!({"start": a, "end": a + b})),
    ]
}

fn any_property() -> impl Strategy<Value = serde_json::Value> {
    (any_value(), 0u8..3, -2i64..3).prop_map(
        |(value, precedence, score)| json!({"value": value, "precedence": precedence, "score": score}),
    )
}

fn any_properties() -> impl Strategy<Value = serde_json::Value> {
    proptest::collection::btree_map("[xyz]|transport", any_property(), 0..3).prop_map(|m| json!(m))
}

fn any_policy() -> impl Strategy<Value = serde_json::Value> {
    (any_properties(), proptest::collection::vec(any_properties(), 1..3), 0i64..3, any::<bool>()).prop_map(
        |(matches, alternatives, priority, replace)| {
            json!({"match": matches, "properties": [alternatives], "priority": priority, "replace_matched": replace})
        },
    )
}

fn any_node() -> impl Strategy<Value = serde_json::Value> {
    (0u8..5, any_properties(), any_properties(), any::<bool>(), any::<bool>()).prop_map(
        |(uid, properties, matches, root, link)| {
            json!({"uid": uid.to_string(), "properties": properties, "match": [matches], "root": root, "link": link, "expire": -1})
        },
    )
}

proptest! {
    #[test]
    fn the_answer_does_not_depend_on_the_order_of_entries(
        profiles in proptest::collection::vec(any_policy(), 0..3),
        policies in proptest::collection::vec(any_policy(), 0..3),
        nodes in proptest::collection::btree_map(0u8..5, any_node(), 0..5),
        requests in proptest::collection::vec(any_properties(), 1..3),
    ) {
        let build = |backwards: bool| {
            let mut m = Manager::default();
            let turn = |v: &[serde_json::Value]| -> Vec<serde_json::Value> {
                if backwards { v.iter().rev().cloned().collect() } else { v.to_vec() }
            };
            for p in turn(&profiles) { m.profiles.insert(policy(p)).unwrap(); }
            for p in turn(&policies) { m.policies.insert(policy(p)).unwrap(); }
            // One node of each name, so that the order of insertion does not decide which one is present.
            let nodes: Vec<_> = nodes.iter().map(|(i, n)| { let mut n = n.clone(); n["uid"] = json!(i.to_string()); n }).collect();
            for n in turn(&nodes) { m.cib.insert(node(n)).unwrap(); }
            m
        };
        let question = json!(requests);
        let (a, b) = (build(false).query_value(&question, NOW), build(true).query_value(&question, NOW));
        prop_assert_eq!(&a, &b);
        if let Ok(candidates) = a {
            prop_assert!(candidates.len() <= 10);
            for pair in candidates.windows(2) {
                prop_assert!(pair[0].score.best_first(&pair[1].score).is_le());
            }
        }
    }

    #[test]
    fn what_is_written_is_read_again(p in any_policy(), n in any_node()) {
        let p = policy(p);
        prop_assert_eq!(&Policy::from_value(&p.json()).unwrap(), &p);
        let n = node(n);
        prop_assert_eq!(&Node::from_value(&n.json(), NOW).unwrap(), &n);
    }
}
