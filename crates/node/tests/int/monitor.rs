//! `anabranch int monitor` at the receiver, next to real traffic.

use crate::net::{ANABRANCH, Program};
use crate::paths::{Group, Linked, Routed, alone, until};
use serde_json::Value;
use std::time::Duration;

/// The newest report of a monitor.
pub fn newest(monitor: &Program) -> Option<Value> {
    monitor.log().lines().rev().find_map(|line| serde_json::from_str(line).ok())
}

fn curl(socket: &str) -> String {
    let output = std::process::Command::new("curl")
        .args(["-sS", "--max-time", "5", "--unix-socket", socket, "http://x/metrics"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Both emulated links are hops, the wireless one is the bottleneck with queue and losses, and the metrics
/// agree.
#[test]
fn a_monitor_shows_each_hop_of_real_traffic() {
    let Some(_alone) = alone() else { return };
    let Some(group) = Group::new() else { return };
    let loss = "loss={model=\"bernoulli\", probability=0.01}";
    let Some(path) = Linked::new(&group, loss, "") else { return };
    let socket = path.file("metrics.sock");
    let at = format!("unix:{socket}");
    let rest = path.file("int.sock");
    let api = format!("unix:{rest}");
    let args =
        ["--interface", "r0", "--json", "--interval-ms", "200", "--name", "m", "--metrics", &at, "--map"];
    let mut monitor = path.monitor(&[&args[..], &["--api", &api]].concat());
    let _source = path.source_with(4, &["--detail"]);
    let mut seen = Value::Null;
    path.iperf_while("cubic", Duration::from_secs(3), || {
        until("the monitor sees a queue and a loss", || {
            seen = newest(&monitor).unwrap_or_default();
            let hop = &seen["paths"][0]["hops"][1];
            hop["depth_bytes"]["most"].as_u64() > Some(3000) && hop["medium_losses"].as_u64() > Some(0)
        });
    });
    let path_seen = &seen["paths"][0];
    assert_eq!((&path_seen["name"], &path_seen["bottleneck"]), (&"1-2".into(), &1.into()), "{seen}");
    assert_eq!(path_seen["complete"], true, "{seen}");
    assert_eq!(path_seen["hops"][1]["link_kbps"]["last"], 20_000, "{seen}");
    // The wireless hop has a delay of 10 ms and a queue; both of its ends use this machine's clock.
    let us = |hop: usize| path_seen["hops"][hop]["latency"]["mean_us"].as_u64();
    assert!(us(0).is_some() && (10_000..500_000).contains(&us(1).unwrap()), "{seen}");
    assert_eq!(seen["counters"]["clock_errors"], 0, "{seen}");
    let flow = seen["flows"].as_array().unwrap().iter().find(|f| f["traces"].as_u64() > Some(10));
    assert_eq!(flow.unwrap()["destination"], "[fd00::2]:5201", "{seen}");
    assert_eq!((&seen["counters"]["malformed"], &seen["kernel_drops"]), (&0.into(), &0.into()), "{seen}");

    // The same path in the BPF map.
    let output = std::process::Command::new(ANABRANCH).args(["int", "paths", "--json"]).output().unwrap();
    let shared: Value = serde_json::from_slice(&output.stdout).unwrap();
    let shared = shared["paths"].as_array().unwrap().iter().find(|p| p["name"] == "1-2");
    assert_eq!(shared.unwrap_or_else(|| panic!("{output:?}"))["link_kbps"], 20_000);

    // And over REST with ctl: the flow may have ended by then, but is still known.
    let ctl = |words: &[&str]| {
        let output = std::process::Command::new(ANABRANCH)
            .args(["ctl", "--socket", &rest, "int"])
            .args(words)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let asked: Value = serde_json::from_str(&ctl(&["--json"])).unwrap();
    let hop = &asked["paths"][0]["hops"][1];
    assert_eq!((&asked["total"], &hop["link_kbps"]["last"]), (&1.into(), &20_000.into()), "{asked}");
    let asked: Value = serde_json::from_str(&ctl(&["flows", "--path", "1", "--json"])).unwrap();
    let to: Vec<_> = asked["flows"].as_array().unwrap().iter().map(|f| &f["destination"]).collect();
    assert!(to.contains(&&Value::from("[fd00::2]:5201")), "{asked}");
    let table = ctl(&[]);
    assert!(table.contains("2 *") && table.contains("20.0 Mbit/s"), "{table}");

    let metrics = curl(&socket);
    let rate = "anabranch_int_hop_link_bps{namespace=\"123\",path=\"1-2\",hop=\"2\",node=\"2\"} 20000000";
    assert!(metrics.contains(rate) && metrics.ends_with("# EOF\n"), "{metrics}");
    monitor.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(monitor.wait(Duration::from_secs(5)), 0, "{}", monitor.log());
    assert!(!std::path::Path::new(&socket).exists() && !std::path::Path::new(&rest).exists());
}

/// Unmodified Linux routers are hops, too, with the values that they report.
#[test]
fn a_monitor_shows_linux_routers() {
    let Some(_alone) = alone() else { return };
    let Some(group) = Group::new() else { return };
    let Some(path) = Routed::new(&group) else { return };
    let args = ["--interface", "r0", "--json", "--interval-ms", "200"];
    let monitor = path.monitor(&args);
    let _source = path.source(2);
    let mut seen = Value::Null;
    path.iperf_while("cubic", Duration::from_secs(2), || {
        until("the monitor sees traces", || {
            seen = newest(&monitor).unwrap_or_default();
            seen["counters"]["traces"].as_u64() > Some(10)
        });
    });
    assert_eq!(seen["paths"][0]["name"], "1-2-3", "{seen}");
    let hop = &seen["paths"][0]["hops"][1];
    assert!(hop["depth_bytes"]["last"].is_u64() && hop["queue_drops"].is_null(), "{seen}");
    assert_eq!(seen["paths"][0]["complete"], false, "{seen}");
}

/// A table after a short listening time; an unknown interface is refused with a remedy.
#[test]
fn paths_listens_and_ends() {
    let Some(_alone) = alone() else { return };
    let Some(ns) = crate::net::Namespace::new() else { return };
    let command = |more: &str| ns.try_sh(&format!("{ANABRANCH} int paths --wait-ms 50 {more}"));
    let (text, ok) = command("--interface lo");
    assert!(ok && text == "no traces on lo yet\n", "{text}");
    let (text, ok) = command("--interface lo --interface lo");
    assert!(!ok && text.contains("--interface lo is given twice"), "{text}");
    let (text, ok) = command("--interface nowhere0");
    assert!(!ok && text.contains("--interface nowhere0 (it must exist, and CAP_NET_RAW"), "{text}");
}

/// An interface that disappears and is created again, as a tunnel's, is followed.
#[test]
fn an_interface_created_again_is_followed() {
    let Some(_alone) = alone() else { return };
    let Some(ns) = crate::net::Namespace::new() else { return };
    let make = "ip link add v0 type veth peer v1; ip link set v0 up; ip link set v1 up";
    ns.sh(make);
    let folder = tempfile::tempdir().unwrap();
    let start = |words: &str, log: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        ns.spawn(ANABRANCH, &words, &folder.path().join(log))
    };
    let source = start("int source --interface v1", "source.log");
    let monitor = start("int monitor --interface v0 --interval-ms 100 --json", "monitor.log");
    let traces = || source.log().matches("segments on v1").count();
    until("both are at work", || newest(&monitor).is_some() && traces() == 1);
    ns.sh("ip link del v0");
    until("both say so", || {
        monitor.log().contains("v0 has disappeared") && source.log().contains("no interface \"v1\"")
    });
    ns.sh(make);
    until("the source has the new one", || traces() == 2);
    let followed = || monitor.log().matches("v0 was created again").count();
    until("the monitor, too", || followed() == 1);
    // The existing interface is renamed, and another one gets its name.
    ns.sh("ip link set v0 name w0; ip link set v1 name w1");
    ns.sh(make);
    until("the source has the new one", || traces() == 3);
    until("the monitor, too", || followed() == 2);
}

/// SIGHUP reloads the certificate, as documented, and ends nothing.
#[test]
fn a_certificate_is_read_again() {
    let Some(_alone) = alone() else { return };
    let Some(ns) = crate::net::Namespace::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (certificate, key, log) = (at("cert.pem"), at("key.pem"), folder.path().join("log"));
    let renew = || {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        std::fs::write(&certificate, made.cert.pem()).unwrap();
    };
    renew();
    let args = ["int", "monitor", "--interface", "lo", "--quiet", "--metrics", "127.0.0.1:9465"];
    let tls = ["--tls-certificate", &certificate, "--tls-key", &key];
    let mut monitor = ns.spawn(ANABRANCH, &[&args[..], &tls].concat(), &log);
    let asked = format!("curl -sS --max-time 5 --cacert {certificate} https://localhost:9465/metrics");
    until("it answers", || ns.try_sh(&asked).1);
    renew();
    assert!(!ns.try_sh(&asked).1, "it has the old one still");
    monitor.signal(nix::sys::signal::Signal::SIGHUP);
    until("it has the new one", || ns.try_sh(&asked).1);
    monitor.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(monitor.wait(Duration::from_secs(5)), 0, "{}", monitor.log());
}
