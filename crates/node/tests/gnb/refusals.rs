//! Invalid requests: each is refused in one sentence with place and remedy, and changes nothing.

use super::{ANABRANCH, World, cell};
use serde_json::{Value, json};
use std::process::Command;

impl World {
    fn put_text(&self, path: &str, body: &str) -> Value {
        let args = ["-X", "PUT", "-H", "content-type: application/json", "-d", body];
        serde_json::from_str(&self.curl(&args, path)).unwrap_or_default()
    }

    /// Exit code and error message of an `anabranch ctl` that fails.
    fn ctl_fails(&self, args: &[&str]) -> (Option<i32>, String) {
        let socket = self.file("gnb.sock");
        let output =
            Command::new(ANABRANCH).args(["ctl", "--socket"]).arg(socket).args(args).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// The state that requests can change.
    fn state(&self) -> [Value; 4] {
        let tv = self.get("/v1/ues/tv");
        let queue = tv["bearers"][0]["downlink"]["queue"].clone();
        [
            self.get("/v1/slices")["slices"].clone(),
            tv["channel"].clone(),
            queue,
            self.get("/v1/cell")["scheduler"].clone(),
        ]
    }
}

#[test]
fn a_wrong_request_is_refused_in_one_sentence_and_changes_nothing() {
    let Some(world) = World::new() else { return };
    world.configure("tun", &world.plain("tun"), &cell("vanilla", "fixed"));
    let write = |name: &str, text: &str| {
        std::fs::write(world.file(name), text).unwrap();
        world.file(name).display().to_string()
    };
    let csv = write("bad.csv", "second,cqi\n0,7\n1,99\n");
    let words = write("words.csv", "second,cqi\nzero,7\n");
    let nan = write("nan.csv", "second,cqi\n0,7\nNaN,8\n");
    let empty = write("empty.csv", "second,cqi\n");
    let mahimahi = write("bad.trace", "1\n-1\n");
    let gnb = world.start();
    let before = world.state();

    let slices = |a: &str, b: &str| {
        format!(
            r#"{{"slices": [{{"name": "a", "share_percent": {a}}}, {{"name": "b", "share_percent": {b}}}]}}"#
        )
    };
    let channel = |keys: &str| format!(r#"{{"channel": {{{keys}}}}}"#);
    let trace = |model: &str, file: &str| channel(&format!(r#""model": "{model}", "file": "{file}""#));
    for (path, body, parts) in [
        // Shares.
        ("/v1/slices", slices("60", "60"), &["share_percent", "sum to 120 %", "100 at most"][..]),
        ("/v1/slices", slices("101", "0"), &["slice \"a\"", "share_percent = 101", "0 to 100"]),
        ("/v1/slices", slices("-1", "0"), &["share_percent = -1", "0 to 100"]),
        ("/v1/slices", slices("NaN", "0"), &["line 1 column"]),
        ("/v1/slices", slices("1e999", "0"), &["number out of range"]),
        ("/v1/slices", r#"{"slices": []}"#.to_owned(), &["slice"]),
        // MCS and CQI.
        ("/v1/ues/tv", channel(r#""model": "constant", "mcs": 29"#), &["MCS 29 is out of range", "0 to 28"]),
        ("/v1/ues/tv", channel(r#""model": "constant", "mcs": -1"#), &["channel", "-1"]),
        ("/v1/ues/tv", channel(r#""model": "constant", "cqi": 16"#), &["CQI 16 is out of range", "0 to 15"]),
        ("/v1/ues/tv", channel(r#""model": "constant""#), &["mcs and cqi", "one of the two"]),
        // Traces.
        ("/v1/ues/tv", trace("trace", "/nowhere.csv"), &["/nowhere.csv", "give a file that can be read"]),
        ("/v1/ues/tv", trace("trace", &csv), &["bad.csv:3", "CQI \"99\"", "0 to 15"]),
        ("/v1/ues/tv", trace("trace", &words), &["words.csv:2", "\"zero\"", "second,cqi"]),
        ("/v1/ues/tv", trace("trace", &nan), &["nan.csv:3", "NaN", "0 to 30 days"]),
        ("/v1/ues/tv", trace("trace", &empty), &["empty.csv"]),
        ("/v1/ues/tv", trace("mahimahi", &mahimahi), &["bad.trace:2", "-1"]),
        // The number of RBs belongs to the carrier and cannot change at run time.
        ("/v1/cell", r#"{"rbs": 0}"#.to_owned(), &["rbs", "scheduler"]),
        ("/v1/cell", r#"{"scheduler": "eqp"}"#.to_owned(), &["no scheduler \"eqp\"", "eqp_exact"]),
        (
            "/v1/cell",
            r#"{"scheduler": {"algorithm": "eqp_exact", "quantum_limit_rbs": 0}}"#.to_owned(),
            &["quantum_limit_rbs = 0", "1 to 1000000"],
        ),
        ("/v1/ues/tv", r#"{"queue": "codle"}"#.to_owned(), &["codle", "did you mean \"codel\"?"]),
        ("/v1/ues/tv", r#"{"queue": "codel", "drb": 9}"#.to_owned(), &["bearer 9"]),
        ("/v1/ues/tv", r#"{"slice": "gold"}"#.to_owned(), &["slice", "gold"]),
    ] {
        let answer = world.put_text(path, &body);
        let status = answer["status"].as_u64().unwrap_or_default();
        let (detail, remedy) = (answer["detail"].as_str(), answer["remedy"].as_str());
        let (Some(detail), Some(remedy)) = (detail, remedy) else { panic!("{path} {body}: {answer}") };
        assert!((400..500).contains(&status) && !remedy.is_empty(), "{path} {body}: {answer}");
        assert_eq!(detail.lines().count(), 1, "{path} {body}: {detail}");
        assert!(parts.iter().all(|part| detail.contains(part)), "{path} {body}: {detail}");
    }

    let channel = |keys: &str| format!("model=\"constant\", {keys}");
    let file = |model: &str, file: &str| format!("model=\"{model}\", file=\"{file}\"");
    for (args, parts) in [
        (&["slices", "set", "a=60", "b=60"][..], &["/v1/slices", "sum to 120 %", "100 at most"][..]),
        (&["slices", "set", "a=101"], &["a=101", "0 to 100"]),
        (&["slices", "set", "a=nan"], &["a=nan", "0 to 100"]),
        (&["slices", "set", "gold=1"], &["no slice \"gold\"", "a, b"]),
        (&["ues", "set", "tv", "--channel", &channel("mcs=29")], &["MCS 29", "0 to 28"]),
        (&["ues", "set", "tv", "--channel", "model=\"train\", start_s=nan"], &["start_s = nan", "finite"]),
        (&["ues", "set", "tv", "--channel", &file("trace", &csv)], &["bad.csv:3", "0 to 15"]),
        (&["ues", "set", "tv", "--channel", &file("mahimahi", &mahimahi)], &["bad.trace:2"]),
        (&["ues", "set", "nobody", "--slice", "a"], &["nobody"]),
        (&["cell", "set", "--scheduler", "eqp"], &["eqp", "eqp_exact"]),
        (&["cell", "set", "--scheduler", "algorithm=\"drr\", rbs=0"], &["rbs"]),
    ] {
        let (code, text) = world.ctl_fails(args);
        assert!(matches!(code, Some(2 | 4)), "{args:?}: {code:?} {text}");
        let said: Vec<&str> = text.lines().filter(|line| line.contains(parts[0])).collect();
        assert_eq!(said.len(), 1, "{args:?}: {text}");
        assert!(parts.iter().all(|part| text.contains(part)), "{args:?}: {text}");
        assert!(!text.contains("panicked"), "{text}");
    }
    assert_eq!(world.state(), before);
    assert_eq!(json!("a"), before[0][0]["name"]);
    gnb.stop();
}
