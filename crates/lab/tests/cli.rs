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
    assert_eq!(
        code(&["run", TABLE5, "--set", "claim.junction-1.min=99", "--set", "claim.junction-1.max=100"]),
        Some(1)
    );
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

const SMALL: &str = "title = \"t\"\nduration_s = 1\n[link.w]\n[ue.u]\naccesses = [{ name = \"w\", link = \"w\" }]\n\
    [flow.f]\nkind = \"bulk_tcp\"\nbytes = 1_000_000_000\nvia = \"direct:w\"\n\
    [[claim]]\nid = \"rate\"\nwhat = \"w\"\nmetric = \"flow.f.goodput_mbps\"\nmin = 1\n\
    [[claim]]\nid = \"time\"\nwhat = \"w\"\nmetric = \"flow.f.completion_s\"\nmax = 1\n";

#[test]
fn a_transfer_that_does_not_complete_fails_its_claim_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("s.toml");
    std::fs::write(&file, SMALL).unwrap();
    let out = lab(&["run", file.to_str().unwrap()]);
    let said = text(&out.stdout);
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
    assert!(said.contains("NO · time: the run has no `flow.f.completion_s`"), "{said}");
    assert!(said.contains("Mbit/s") || said.contains("yes"), "{said}");
    let out = lab(&["run", file.to_str().unwrap(), "--json", "--seeds", "2"]);
    let line: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        (line["claims"][0]["holds"].as_bool(), line["claims"][1]["verdict"].as_str()),
        (Some(true), Some("fails"))
    );
    assert!(line["claims"][1]["spread"].is_null());
}

#[test]
fn results_that_cannot_be_written_are_an_error() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_anabranch-lab"));
    command.current_dir(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.."));
    let out = command.args(["run", TABLE5, "--json"]).stdout(full).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("error: standard output: No space left"), "{}", text(&out.stderr));
    // Before anything runs.
    let out = lab(&["run", TABLE5, "--out", "/dev/null/report"]);
    assert_eq!((out.status.code(), out.stdout.len()), (Some(2), 0));
    assert!(text(&out.stderr).starts_with("error: --out: /dev/null/report: "), "{}", text(&out.stderr));
}

#[test]
fn scenarios_of_one_name_have_a_report_each() {
    let folder = tempfile::tempdir().unwrap();
    for part in ["one", "two"] {
        std::fs::create_dir(folder.path().join(part)).unwrap();
        std::fs::write(folder.path().join(part).join("same.toml"), SMALL).unwrap();
    }
    let out = folder.path().join("report");
    lab(&["run", folder.path().to_str().unwrap(), "--out", out.to_str().unwrap()]);
    let index = std::fs::read_to_string(out.join("index.html")).unwrap();
    for part in ["one", "two"] {
        assert!(out.join(format!("{part}-same.virtual.html")).is_file());
        assert!(index.contains(&format!("{part}-same.virtual.html")), "{index}");
    }
    // In a page, the second table would replace the first.
    let page = folder.path().join("page.md");
    let done = lab(&["run", folder.path().to_str().unwrap(), "--markdown", page.to_str().unwrap()]);
    let says = text(&done.stderr);
    assert_eq!((done.status.code(), page.exists()), (Some(2), false), "{says}");
    assert!(
        says.contains("one/same.toml and ") && says.contains("two/same.toml have the same name"),
        "{says}"
    );
}
