//! MQTT output of a monitor, received with mosquitto's programs: through mosquitto, and from the built-in
//! broker.

use crate::net::Program;
use crate::paths::{Group, Linked, alone, skip, until};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

fn has(program: &str) -> bool {
    ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"]
        .iter()
        .any(|folder| std::path::Path::new(folder).join(program).exists())
}

/// The messages that a subscriber has received so far: the last one of each topic.
fn heard(subscriber: &Program) -> BTreeMap<String, String> {
    let log = subscriber.log();
    log.lines().filter_map(|line| line.split_once(' ')).map(|(t, p)| (t.to_owned(), p.to_owned())).collect()
}

/// Status, path, flow and counters are published; the path equals that in the monitor's JSON. After a kill:
/// `offline`.
fn follow(path: &Linked, broker: &str, own: bool) {
    let at = if own { "--mqtt-listen" } else { "--mqtt" };
    let args = ["--interface", "r0", "--json", "--interval-ms", "200", "--name", "m", at, broker];
    let mut monitor = path.monitor(&args);
    let (host, port) = broker.split_once(':').unwrap();
    path.until_listens(broker.parse().unwrap());
    let listen = ["-h", host, "-p", port, "-v", "-t", "anabranch/int/m/#"];
    let subscriber = path.at_receiver("mosquitto_sub", &listen);
    let _source = path.source(4);
    let topic = "anabranch/int/m/paths/123/1-2";
    path.iperf_while("cubic", Duration::from_secs(8), || {
        until("a path with a queue is published", || {
            let all = heard(&subscriber);
            let path: Value = all.get(topic).and_then(|p| serde_json::from_str(p).ok()).unwrap_or_default();
            path["hops"][1]["depth_bytes"]["most"].as_u64() > Some(3000)
        });
    });
    let all = heard(&subscriber);
    assert_eq!(all["anabranch/int/m/status"], "online");
    assert!(all.keys().any(|t| t.starts_with("anabranch/int/m/flows/[fd00::1]:")), "{:?}", all.keys());
    let counters: Value = serde_json::from_str(&all["anabranch/int/m/counters"]).unwrap();
    assert_eq!(counters["malformed"], 0);
    // Retained messages are delivered at once to late subscribers.
    let later = path.at_receiver("mosquitto_sub", &[&listen[..5], &["-C", "1", "-t", topic]].concat());
    until("the retained path comes", || heard(&later).contains_key(topic));
    if own {
        // The broker distributes messages of others, and their last wills.
        let note = ["-h", host, "-p", port, "-q", "1", "-t", "anabranch/int/m/note", "-m", "hello"];
        let mut publisher = path.at_receiver("mosquitto_pub", &note);
        assert_eq!(publisher.wait(Duration::from_secs(10)), 0, "{}", publisher.log());
        until("the note is passed on", || heard(&subscriber).contains_key("anabranch/int/m/note"));
    }
    monitor.signal(nix::sys::signal::Signal::SIGKILL);
    monitor.wait(Duration::from_secs(10));
    if !own {
        until("the last will is published", || heard(&subscriber)["anabranch/int/m/status"] == "offline");
    }
}

#[test]
fn mosquitto_receives_a_monitors_messages() {
    let Some(_alone) = alone() else { return };
    let Some(group) = Group::new() else { return };
    if !has("mosquitto") || !has("mosquitto_sub") {
        return skip::<()>("mosquitto and mosquitto-clients are not installed").unwrap_or_default();
    }
    let Some(path) = Linked::new(&group, "", "") else { return };
    // Without a configuration it listens on loopback only, without authentication.
    let _broker = path.at_receiver("mosquitto", &["-p", "18830"]);
    follow(&path, "127.0.0.1:18830", false);
    follow(&path, "127.0.0.1:18831", true);
}
