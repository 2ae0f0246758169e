//! The NEAT-compatible mode compared with answers recorded from NEAT's Python policy manager by `tests/data/neat_record.py`:
//! `neat.json` contains our own questions about every feature; `neat_published.json` those about NEAT's published examples, which are
//! not included here. `NEAT_POLICY` is the path of the folder `policy` of a checkout.

use anabranch_selection::neat::{Manager, Node, Policy};
use serde_json::{Value, json};

const NOW: u64 = 1_800_000_000;

/// A document in its original text: from here, or from a file of NEAT.
fn text(document: &Value) -> String {
    if let Some(file) = document["file"].as_str() {
        let folder = std::env::var("NEAT_POLICY").expect("NEAT_POLICY");
        let path = std::path::Path::new(&folder).join(file);
        return std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    document.as_str().map_or_else(|| document.to_string(), str::to_owned)
}

fn manager(case: &Value) -> Manager {
    let all = |kind: &str| case[kind].as_array().into_iter().flatten().map(text).collect::<Vec<_>>();
    let mut manager = Manager::default();
    for profile in all("profiles") {
        manager.profiles.insert(Policy::from_json(&profile).expect("a profile")).expect("room");
    }
    for policy in all("policies") {
        manager.policies.insert(Policy::from_json(&policy).expect("a policy")).expect("room");
    }
    for node in all("cib") {
        manager.cib.insert(Node::from_json(&node, NOW).expect("a node")).expect("room");
    }
    manager
}

/// The answer in recorded form: groups of equal score, each sorted by text; sets sorted by text.
fn answer(manager: &Manager, case: &Value) -> Value {
    let request = text(&case["request"]);
    let candidates = manager.query(&request, NOW).expect("an answer");
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for candidate in candidates {
        let number = |n: f64| if n.fract() == 0.0 { json!(n as i64) } else { json!(n) };
        let score = json!([number(candidate.score.evaluated), number(candidate.score.other)]);
        let properties = in_order(candidate.properties.json());
        match groups.last_mut() {
            Some((same, group)) if *same == score => group.push(properties),
            _ => groups.push((score, vec![properties])),
        }
    }
    groups.iter_mut().for_each(|(_, group)| group.sort_by_key(Value::to_string));
    json!(groups.into_iter().map(|(score, c)| json!({"score": score, "candidates": c})).collect::<Vec<_>>())
}

fn in_order(value: Value) -> Value {
    match value {
        Value::Array(mut all) => {
            all.sort_by_key(Value::to_string);
            all.into()
        }
        Value::Object(map) => map.into_iter().map(|(k, v)| (k, in_order(v))).collect(),
        other => other,
    }
}

/// Recorded answers, with groups sorted by our text form.
fn recorded(case: &Value) -> Value {
    let mut groups = case["answer"]["groups"].clone();
    for group in groups.as_array_mut().into_iter().flatten() {
        let sorted = in_order(group["candidates"].take());
        let mut all: Vec<Value> = sorted.as_array().cloned().unwrap_or_default();
        all.sort_by_key(Value::to_string);
        group["candidates"] = all.into();
    }
    groups
}

fn compare(vectors: &Value) -> usize {
    let cases = vectors["cases"].as_array().expect("cases");
    for case in cases {
        let mut whole = case.clone();
        if let Some(setting) = case["setting"].as_str() {
            for kind in ["profiles", "policies", "cib"] {
                whole[kind] = vectors["settings"][setting][kind].clone();
            }
        }
        let ours = answer(&manager(&whole), &whole);
        assert_eq!(ours, recorded(case), "{}", case["name"]);
    }
    cases.len()
}

#[test]
fn the_same_ranked_candidates_as_neat() {
    let vectors = serde_json::from_str(include_str!("data/neat.json")).expect("vectors");
    assert!(compare(&vectors) >= 50);
}

#[test]
fn the_same_for_the_published_neat_examples() {
    if std::env::var_os("NEAT_POLICY").is_none() {
        println!("skipped: NEAT_POLICY does not say where NEAT's examples are");
        return;
    }
    let vectors = serde_json::from_str(include_str!("data/neat_published.json")).expect("vectors");
    let compared = compare(&vectors);
    assert!(compared >= 90);
    println!("{compared} questions agree");
}
