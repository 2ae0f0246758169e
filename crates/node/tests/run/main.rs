//! The real programs in namespaces of their own: two accesses, a UPF with NAT, a server behind it.

mod net;

use net::{Namespace, Options, World};
use std::time::Duration;

/// iperf3 from the UE through the tunnel; bits per second.
fn iperf(world: &World, args: &str) -> f64 {
    world.server.sh("iperf3 -s -1 -D >/dev/null; sleep 0.3");
    let text = world.ue.sh(&format!("timeout 60 iperf3 -J -C cubic {args}"));
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let received = &report["end"]["sum_received"]["bits_per_second"];
    received.as_f64().unwrap_or_else(|| panic!("{text}"))
}

fn everything_works(options: &Options) {
    let Some(world) = World::new() else { return };
    world.configure(options);
    let (ue_before, upf_before) = (world.ue.picture(), world.upf.picture());
    let upf = world.start_upf();
    let ue = world.start_ue();
    let pings = "ping -q -i 0.01 -c 20 -W 2 192.0.2.2; ping -q -i 0.01 -c 20 -W 2 2001:db8:6::2";
    let text = world.ue.sh(pings);
    assert_eq!(text.matches(" 0% packet loss").count(), 2, "{text}\n{}", world.logs());
    // Large ones, which the sender must fragment.
    world
        .ue
        .sh("ping -q -i 0.01 -c 5 -s 4000 -W 2 192.0.2.2; ping -q -i 0.01 -c 5 -s 4000 -W 2 2001:db8:6::2");
    for to in ["-c 192.0.2.2", "-c 192.0.2.2 -R", "-c 2001:db8:6::2"] {
        let bps = iperf(&world, &format!("{to} -t 1"));
        println!("{options:?} {to}: {:.0} Mbit/s", bps / 1e6);
        assert!(bps > 20e6, "{to}: {bps}\n{}", world.logs());
    }
    let session = world.get("upf", "/v1/sessions/phone");
    assert_eq!(session["connected"], true, "{session}");
    assert!(session["rx_bytes"].as_u64().unwrap() > 1_000_000, "{session}");
    let status = world.get("ue", "/v1/status");
    assert_eq!(status["connected"], 1, "{status}");

    ue.stop();
    assert_eq!(world.ue.picture(), ue_before);
    upf.stop();
    assert_eq!(world.upf.picture(), upf_before);
    assert!(!world.file("ue.sock").exists() && !world.file("upf.sock").exists());
}

#[test]
fn data_passes_and_nothing_is_left_behind() {
    everything_works(&Options::default());
}

#[test]
fn also_without_tun() {
    everything_works(&Options { device: "packet", ..Options::default() });
}

#[test]
fn also_in_the_clear_and_with_several_workers() {
    everything_works(&Options { security_5g: "plain", workers: 3, ..Options::default() });
}

/// Milliseconds between the arrivals of two answers in `ping -D`; the longest.
fn longest_gap_ms(ping: &str) -> f64 {
    let at: Vec<f64> = ping
        .lines()
        .filter(|line| line.contains("icmp_seq"))
        .filter_map(|line| line.strip_prefix('[')?.split(']').next()?.parse().ok())
        .collect();
    at.windows(2).map(|w| (w[1] - w[0]) * 1000.0).fold(0.0, f64::max)
}

#[test]
fn traffic_moves_when_an_access_goes_down() {
    let Some(world) = World::new() else { return };
    let rules = "[[rule]]\nname = \"all\"\nsteering = { mode = \"active-standby\", primary = \"wifi\" }\n";
    world.configure(&Options { ue_rules: rules, ..Options::default() });
    let upf = world.start_upf();
    let ue = world.start_ue();
    world.ue.sh("ping -q -c 2 -i 0.05 192.0.2.2");
    for (down, up) in [
        (
            "ip link set wifi0 down",
            "ip link set wifi0 up; ip addr add fd02::2/64 dev wifi0 2>/dev/null || true",
        ),
        ("ip addr del fd02::2/64 dev wifi0", "ip addr add fd02::2/64 dev wifi0"),
    ] {
        let text = world.ue.sh(&format!(
            "ping -D -i 0.002 -w 2 192.0.2.2 & p=$!; sleep 0.7; {down}; sleep 0.7; {up}; wait $p || true"
        ));
        let gap = longest_gap_ms(&text);
        println!("{down}: longest gap {gap:.1} ms");
        assert!(text.contains("icmp_seq") && gap < 150.0, "gap {gap}\n{}", world.logs());
        world.until("wifi is back", || world.paths_up("ue") == 2);
    }
    let events = world.logs();
    assert!(events.contains("wifi is down: carrier"), "{events}");
    ue.stop();
    upf.stop();
}

#[test]
fn a_wrong_configuration_is_refused_with_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ue.toml");
    std::fs::write(&file, "[ue]\nprivat_key_file = \"x\"\n").unwrap();
    let output = std::process::Command::new(net::ANABRANCH)
        .args(["ue", "--config", file.to_str().unwrap()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("ue.toml:2") && text.contains("private_key_file"), "{text}");
}

#[test]
fn without_an_access_it_starts_and_waits() {
    let Some(ns) = Namespace::new() else { return };
    let Some(world) = World::new() else { return };
    world.configure(&Options::default());
    let config = world.file("ue.toml");
    // No 5g0, no wifi0, no UPF here.
    let mut ue =
        ns.spawn(net::ANABRANCH, &["ue", "--config", config.to_str().unwrap()], &world.file("ue.log"));
    world.until("it runs", || ue.log().contains("ue runs"));
    std::thread::sleep(Duration::from_millis(300));
    assert!(ue.is_running(), "{}", ue.log());
    let paths = world.get("ue", "/v1/paths");
    assert_eq!(paths["paths"][0]["why"], "no such interface", "{paths}");
    ue.stop();
}
