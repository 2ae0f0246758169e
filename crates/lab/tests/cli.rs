//! The program as a person or a script meets it: exit codes, JSON, reports.

use std::path::PathBuf;
use std::process::{Command, Output};

fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_anabranch-lab"))
        .current_dir(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .args(args)
        .output()
        .expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const TABLE5: &str = "scenarios/papers/junction/table5-memory.toml";

#[test]
fn exit_codes_mean_something() {
    let code = |args: &[&str]| lab(args).status.code();
    assert_eq!(code(&["run", TABLE5]), Some(0));
    assert_eq!(code(&["run", TABLE5, "--set", "claim.both-1.min=99", "--quiet"]), Some(2));
    assert_eq!(code(&["run", TABLE5, "--set", "claim.junction-1.min=99"]), Some(1));
    assert_eq!(code(&["run", TABLE5, "--backend", "netns"]), Some(2));
    assert_eq!(code(&["run", "no-such-file.toml"]), Some(2));
    assert_eq!(code(&["run"]), Some(2));
    assert_eq!(code(&["check", "scenarios"]), Some(0));
    assert_eq!(code(&["list"]), Some(0));
}

#[test]
fn json_is_one_object_per_scenario_with_the_documented_keys() {
    let out = lab(&["run", TABLE5, "--json", "--seed", "3"]);
    let said = text(&out.stdout);
    assert_eq!(said.lines().count(), 1);
    let value: serde_json::Value = serde_json::from_str(&said).unwrap();
    let keys = |v: &serde_json::Value| v.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&value), ["backend", "claims", "metrics", "scenario", "seed"]);
    assert_eq!(keys(&value["claims"][0]), ["holds", "id", "measured", "paper", "unit", "verdict", "what"]);
    assert_eq!((value["seed"].as_u64(), value["backend"].as_str()), (Some(3), Some("virtual")));
    assert!(value["metrics"]["filter.memory.8.junction_users"].as_f64().unwrap() > 0.0);
    // A scenario runs once, as text or as JSON: nothing else is on standard output.
    assert!(said.starts_with("{\"scenario\":\"table5-memory\""), "{said}");
}

#[test]
fn a_bad_file_is_told_with_place_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.toml");
    std::fs::write(&file, "title = \"x\"\n[link.w.down]\nrate_mpbs = 3\n").unwrap();
    let out = lab(&["check", file.to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(2));
    let says = text(&out.stderr);
    assert!(
        says.contains("bad.toml:3: link.w.down.rate_mpbs: unknown key; did you mean \"rate_mbps\"?"),
        "{says}"
    );
    std::fs::write(&file, "title = ").unwrap();
    let says = text(&lab(&["run", file.to_str().unwrap()]).stderr);
    assert!(says.contains("bad.toml:1: "), "{says}");
}

#[test]
fn a_report_needs_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("report");
    let done = lab(&["run", TABLE5, "--out", out.to_str().unwrap()]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let page = std::fs::read_to_string(out.join("table5-memory.virtual.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("differs"));
    let without_namespace = page.replace("http://www.w3.org/2000/svg", "");
    for fetches in ["http:", "https:", "<script", "@import", "url("] {
        assert!(!without_namespace.contains(fetches), "the page fetches: {fetches}");
    }
    let json = std::fs::read_to_string(out.join("table5-memory.virtual.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&json).unwrap();
}
