//! `anabranch ue` and `anabranch upf` in network namespaces: two accesses, a UPF with NAT, and a server
//! behind it.

// These tests run in real time.
#![allow(clippy::disallowed_methods)]

#[cfg(feature = "bpf")]
mod fast;
mod faults;
mod lane_changes;
mod lane_faults;
mod lane_memory;
#[allow(dead_code, reason = "shared with the tests of other programs")]
mod live;
mod mtu;
mod nat;
#[allow(dead_code, reason = "shared with the tests of other programs")]
mod net;
mod nft;
#[allow(dead_code, reason = "shared with the tests of other programs")]
mod shim;
mod tcp_lane;

use net::{Namespace, Options, Program, World};
use nix::sys::signal::Signal;
use std::time::Duration;

/// Runs iperf3 from the UE through the tunnel; returns the rate, bit/s.
fn iperf(world: &World, args: &str) -> f64 {
    let listens = || world.server.sh("ss -ltn").contains(":5201");
    world.until("the iperf3 server of the run before has closed its port", || !listens());
    world.server.sh("iperf3 -s -1 -D >/dev/null");
    world.until("the iperf3 server listens", listens);
    let text = world.ue.sh(&format!("timeout 60 iperf3 -J -C cubic {args}"));
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let received = &report["end"]["sum_received"]["bits_per_second"];
    received.as_f64().unwrap_or_else(|| panic!("{text}"))
}

fn everything_works(options: &Options<'_>) {
    let Some(world) = World::new() else { return };
    world.configure(options);
    let (ue_before, upf_before) = (world.ue.picture(), world.upf.picture());
    let upf = world.start_upf();
    let ue = world.start_ue();
    let pings = "ping -q -i 0.01 -c 20 -W 2 192.0.2.2; ping -q -i 0.01 -c 20 -W 2 2001:db8:6::2";
    let text = world.ue.sh(pings);
    assert_eq!(text.matches(" 0% packet loss").count(), 2, "{text}\n{}", world.logs());
    // Large packets, which the sender must fragment.
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
fn data_passes_without_tun() {
    everything_works(&Options { device: "packet", ..Options::default() });
}

#[test]
fn data_passes_unencrypted_and_with_several_workers() {
    everything_works(&Options { security_5g: "plain", workers: 3, ..Options::default() });
}

/// The longest time between the arrivals of two answers in `ping -D`, milliseconds.
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
    // There is no 5g0, no wifi0 and no UPF.
    let mut ue =
        ns.spawn(net::ANABRANCH, &["ue", "--config", config.to_str().unwrap()], &world.file("ue.log"));
    world.until("it runs", || ue.log().contains("ue runs"));
    std::thread::sleep(Duration::from_millis(300));
    assert!(ue.is_running(), "{}", ue.log());
    let paths = world.get("ue", "/v1/paths");
    assert_eq!(paths["paths"][0]["why"], "no such interface", "{paths}");
    ue.stop();
}

/// Downloads `mib` MiB at about 40 Mbit/s from the server, in the background.
fn download(world: &World, mib: u32) -> (Program, Program) {
    let server = format!(
        "import socket,time,os
s=socket.create_server(('192.0.2.2',8080)); c,_=s.accept()
for i in range({mib}*16):
    c.sendall(bytes([i%251])*65536); time.sleep(0.013)
c.close()"
    );
    let client = format!(
        "import socket
c=socket.create_connection(('192.0.2.2',8080),timeout=20); got=b''; n=0
while True:
    d=c.recv(1<<16)
    if not d: break
    for i in (0,len(d)-1):
        assert d[i]==((n+i)//65536)%251, (n,i)
    n+=len(d)
assert n=={mib}<<20, n
print('intact')"
    );
    let server = world.server.spawn("python3", &["-c", &server], &world.file("server.log"));
    std::thread::sleep(Duration::from_millis(300));
    let client = world.ue.spawn("python3", &["-c", &client], &world.file("client.log"));
    (server, client)
}

#[test]
fn tcp_survives_a_restart_of_the_upf() {
    let Some(world) = World::new() else { return };
    world.configure(&Options { workers: 2, ..Options::default() });
    // A killed run cannot restore the original values; here forwarding is on already.
    world.upf.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
    let upf_before = world.upf.picture();
    let mut upf = world.start_upf();
    let ue = world.start_ue();
    let addresses = world.get("upf", "/v1/sessions/phone")["addresses"].clone();
    let (_server, mut client) = download(&world, 20);
    for signal in [Signal::SIGKILL, Signal::SIGUSR1] {
        std::thread::sleep(Duration::from_millis(700));
        upf.signal(signal);
        upf.wait_killed();
        std::thread::sleep(Duration::from_millis(300));
        upf = world.start_upf();
        let took = world.until("the UE is back", || world.paths_up("upf") == 2);
        println!("{signal}: both paths back {took:?} after the new UPF listens");
        assert!(client.is_running(), "{}", client.log());
    }
    assert_eq!(client.wait(Duration::from_secs(30)), 0, "{}\n{}", client.log(), world.logs());
    assert_eq!(world.get("upf", "/v1/sessions/phone")["addresses"], addresses);
    ue.stop();
    upf.stop();
    assert_eq!(world.upf.picture(), upf_before);
}

#[test]
fn reload_changes_rules_routes_and_ues_under_traffic() {
    let Some(world) = World::new() else { return };
    let rule = |primary: &str| {
        format!(
            "[[rule]]\nname = \"all\"\nsteering = {{ mode = \"active-standby\", primary = \"{primary}\" }}\n"
        )
    };
    world.configure(&Options { ue_rules: &rule("wifi"), ..Options::default() });
    let upf = world.start_upf();
    let ue = world.start_ue();
    let (_server, mut client) = download(&world, 8);
    world.until("the download runs", || {
        world.get("ue", "/v1/sessions/phone")["tx_packets"].as_u64() > Some(10)
    });

    let on = |access: &str| {
        let rules = world.get("ue", "/v1/rules");
        rules["uses"]
            .as_array()
            .is_some_and(|u| u.iter().any(|u| u["rule"] == "all" && u["access"] == access))
    };
    world.until("traffic is on wifi", || on("wifi"));
    world.configure(&Options { ue_rules: &rule("5g"), ..Options::default() });
    let ue_toml = std::fs::read_to_string(world.file("ue.toml")).unwrap();
    std::fs::write(world.file("ue.toml"), ue_toml.replace(", \"::/0\"]", "]")).unwrap();
    ue.signal(Signal::SIGHUP);
    world.until("traffic is on 5g", || on("5g"));
    assert!(!world.ue.sh("ip -6 rule").contains("21002"));

    // An invalid file changes nothing, and the error is reported.
    std::fs::write(world.file("ue.toml"), ue_toml.replace("\"5g\" }", "\"lte\" }")).unwrap();
    let problem = world.call("ue", &["-X", "POST"], "/v1/reload");
    assert_eq!(problem["status"], 400, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("lte"), "{problem}");
    assert!(on("5g"));

    // Another UE and another rule at the UPF; sections that need a restart are named.
    let key = "vmHhqE8tcZ4WAGqG4kP5IO2rCzYb1eN3mWvPc7yqC2o=";
    let more = format!(
        "connections = 99\n[[ue]]\nname = \"tv\"\npublic_key = \"{key}\"\naddress_v4 = \"10.45.0.9\"\n{}",
        rule("5g")
    );
    world.configure(&Options { upf_more: &more, workers: 3, ue_rules: &rule("5g"), ..Options::default() });
    let done = world.call("upf", &["-X", "POST"], "/v1/reload");
    assert_eq!(done["changed"], serde_json::json!(["ue", "rule"]), "{done}");
    assert_eq!(done["needs_restart"], serde_json::json!(["upf", "api"]), "{done}");
    assert_eq!(world.get("upf", "/v1/sessions/tv")["addresses"][0], "10.45.0.9");
    assert_eq!(client.wait(Duration::from_secs(30)), 0, "{}\n{}", client.log(), world.logs());
    ue.stop();
    upf.stop();
}

/// New routes together with rules that are refused: no route is changed at any time, and the running
/// configuration stays.
#[test]
fn a_refused_reload_changes_nothing() {
    let Some(world) = World::new() else { return };
    // The maximum number of rules is valid by itself; together with the UPF's rules it is one too many.
    let rule = |name: &str| {
        format!(
            "[[rule]]\nname = \"{name}\"\nsteering = {{ mode = \"active-standby\", primary = \"wifi\" }}\n"
        )
    };
    world.configure(&Options { upf_more: &rule("theirs"), ..Options::default() });
    let upf = world.start_upf();
    let ue = world.start_ue();
    world.until("the UPF's rule is there", || ue.log().contains("1 rules in force"));
    let before = world.ue.picture();
    let rules = world.get("ue", "/v1/rules")["rules"].clone();
    let monitor = world.file("monitor");
    let script = format!("exec ip -o monitor route rule address > {}", monitor.display());
    let watched = world.ue.spawn("sh", &["-c", &script], &world.file("monitor.log"));
    std::thread::sleep(Duration::from_millis(500));
    let text = std::fs::read_to_string(world.file("ue.toml")).unwrap();
    let other = text.replace("routes = [\"0.0.0.0/0\", \"::/0\"]", "routes = [\"192.0.2.0/24\"]");
    assert_ne!(other, text);
    let many: String = (0..248).map(|i| rule(&format!("r{i}"))).collect();
    std::fs::write(world.file("ue.toml"), format!("{other}{many}")).unwrap();
    let problem = world.call("ue", &["-X", "POST"], "/v1/reload");
    assert_eq!((&problem["status"], &problem["field"]), (&400.into(), &"rules".into()), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("249 rules"), "{problem}");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(std::fs::read_to_string(&monitor).unwrap(), "");
    drop(watched);
    assert_eq!(world.ue.picture(), before);
    assert_eq!(world.get("ue", "/v1/rules")["rules"], rules);
    // The kernel refuses the last of the new routes' rules: the earlier ones are undone, and the old ones
    // stay.
    world.ue.sh("ip rule add not fwmark 43866 lookup 43866 pref 21000 proto 171");
    let before = world.ue.picture();
    std::fs::write(world.file("ue.toml"), text.replace("\"::/0\"]", "\"::/0\", \"192.0.2.0/24\"]")).unwrap();
    let problem = world.call("ue", &["-X", "POST"], "/v1/reload");
    assert_eq!(problem["field"], "device.routes", "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("rule 21000"), "{problem}");
    assert_eq!(world.ue.picture(), before);
    world.ue.sh("ip rule del pref 21000");
    let done = world.call("ue", &["-X", "POST"], "/v1/reload");
    assert_eq!(done["changed"], serde_json::json!(["device.routes"]), "{done}");
    world.ue.sh("ping -n -c 1 -W 2 192.0.2.2");
    ue.stop();
    upf.stop();
}

#[test]
fn a_reload_with_an_unresolved_name_reports_it_and_keeps_the_address() {
    let Some(world) = World::new() else { return };
    world.configure(&Options::default());
    let upf = world.start_upf();
    let ue = world.start_ue();
    let text = std::fs::read_to_string(world.file("ue.toml")).unwrap();
    std::fs::write(world.file("ue.toml"), text.replace("\"10.1.0.1:", "\"upf.invalid:")).unwrap();
    let done = world.call("ue", &["-X", "POST"], "/v1/reload");
    assert_eq!(done["changed"], serde_json::json!(["access 5g remote"]), "{done}");
    let trouble = || world.get("ue", "/v1/status")["trouble"]["phone"].as_str().map(str::to_owned);
    let told = trouble().expect("trouble");
    assert!(
        told.contains("upf.invalid") && told.contains("10.1.0.1:") && told.contains("stays in use"),
        "{told}"
    );
    let said = || ue.log().matches("kind=\"remote\"").count();
    assert_eq!(said(), 1, "{}", ue.log());
    world.ue.sh("ping -n -c 1 -W 2 192.0.2.2");
    // The other access keeps its name; this one resolves again, although another key of it needs a restart.
    let with_local = text.replacen("[[access]]", "[[access]]\nlocal = \"10.1.0.2\"", 1);
    std::fs::write(world.file("ue.toml"), with_local).unwrap();
    let done = world.call("ue", &["-X", "POST"], "/v1/reload");
    assert_eq!(done["changed"], serde_json::json!(["access 5g remote"]), "{done}");
    assert_eq!(done["needs_restart"], serde_json::json!(["access 5g local"]), "{done}");
    assert_eq!(trouble(), None);
    world.ue.sh("ping -n -c 1 -W 2 192.0.2.2");
    ue.stop();
    upf.stop();
}

#[test]
fn ues_are_added_and_removed_over_rest() {
    let Some(world) = World::new() else { return };
    world.configure(&Options::default());
    // The UE is not in the file.
    let text = std::fs::read_to_string(world.file("upf.toml")).unwrap();
    let (head, tail) = text.split_once("[[ue]]").unwrap();
    let key = tail.split('"').nth(3).unwrap().to_owned();
    let api = &tail[tail.find("[api]").unwrap()..];
    std::fs::write(world.file("upf.toml"), format!("{head}{api}")).unwrap();
    let upf = world.start_upf();
    let body =
        serde_json::json!({"name": "phone", "public_key": key, "address_v4": "10.45.0.77"}).to_string();
    let post: [&str; 4] = ["-H", "content-type: application/json", "-d", &body];
    assert_eq!(world.call("upf", &post, "/v1/sessions")["addresses"][0], "10.45.0.77");
    assert_eq!(world.call("upf", &post, "/v1/sessions")["status"], 409);
    let ue = world.start_ue();
    world.ue.sh("ping -c 1 -W 2 192.0.2.2; ip addr show anb0 | grep 10.45.0.77");

    // It is remembered across a restart.
    upf.stop();
    let upf = world.start_upf();
    world.until("the UE is back", || world.get("upf", "/v1/status")["connected"] == 1);
    // A path is up once a probe is answered, after the handshake.
    world.until("the paths of the UE are up", || world.paths_up("upf") == 2);
    let metrics = std::process::Command::new("curl")
        .args(["-s", "--unix-socket", world.file("upf.sock").to_str().unwrap(), "http://x/metrics"])
        .output()
        .unwrap();
    let metrics = String::from_utf8(metrics.stdout).unwrap();
    assert!(metrics.contains("anabranch_upf_sessions_connected 1"), "{metrics}");
    assert!(metrics.contains("anabranch_upf_path_up{ue=\"phone\",access=\"wifi\"}"), "{metrics}");

    // New rules for it in one request: the session continues.
    let put = |body: &serde_json::Value, path: &str| {
        let body = body.to_string();
        world.call("upf", &["-X", "PUT", "-H", "content-type: application/json", "-d", &body], path)
    };
    let rule = serde_json::json!({"name": "all", "steering": {"mode": "active-standby", "primary": "wifi"}});
    let mut phone =
        serde_json::json!({"name": "phone", "public_key": key, "address_v4": "10.45.0.77", "rule": [rule]});
    let events = |kind: &str| upf.log().matches(&format!("kind=\"{kind}\"")).count();
    let (ups, downs) = (events("session-up"), events("session-down"));
    let answer = put(&phone, "/v1/sessions/phone");
    assert_eq!(
        (&answer["connected"], &answer["addresses"][0]),
        (&true.into(), &"10.45.0.77".into()),
        "{answer}"
    );
    world.until("the UE has the rule", || {
        world.get("ue", "/v1/rules")["uses"].as_array().is_some_and(|uses| {
            uses.iter().any(|used| used["origin"] == "upf-for-ue" || used["rule"] == "all")
        })
    });
    world.ue.sh("ping -c 1 -W 2 192.0.2.2");
    assert_eq!((events("session-up"), events("session-down")), (ups, downs), "{}", upf.log());
    assert_eq!(put(&phone, "/v1/sessions/tablet")["field"], "name");
    assert_eq!(put(&serde_json::json!({"name": "tv", "public_key": key}), "/v1/sessions/tv")["status"], 409);
    // Another device takes over its name and address.
    phone["public_key"] = "vmHhqE8tcZ4WAGqG4kP5IO2rCzYb1eN3mWvPc7yqC2o=".into();
    let answer = put(&phone, "/v1/sessions/phone");
    assert_eq!(
        (&answer["connected"], &answer["addresses"][0]),
        (&false.into(), &"10.45.0.77".into()),
        "{answer}"
    );
    world.until("the UE lost its paths", || world.paths_up("ue") == 0);
    phone["public_key"] = key.into();
    put(&phone, "/v1/sessions/phone");
    world.until("the UE is back", || world.get("upf", "/v1/status")["connected"] == 1);

    world.call("upf", &["-X", "DELETE"], "/v1/sessions/phone");
    assert_eq!(world.get("upf", "/v1/sessions/phone")["status"], 404);
    world.until("the UE lost its paths", || world.paths_up("ue") == 0);
    ue.stop();
    upf.stop();
}

/// systemd-networkd removes foreign rules when it restarts; other programs flush all rules.
#[test]
fn configuration_removed_by_others_is_restored() {
    let Some(world) = World::new() else { return };
    world.configure(&Options::default());
    let (before_ue, before_upf) = (world.ue.picture(), world.upf.picture());
    let (upf, ue) = (world.start_upf(), world.start_ue());
    // Through the tunnel, or not at all.
    let passes = || world.ue.try_sh("ping -n -c 1 -W 1 192.0.2.2 && ping -n -c 1 -W 1 2001:db8:6::2").1;
    world.until("packets pass", passes);
    let ours = || {
        world.ue.sh("ip rule; ip -6 rule; ip route show table 43867; ip -6 route show table 43867
             ip -o addr show dev anb0 | awk '{print $4}' | grep -v fe80")
    };
    let all = ours();
    for remove in [
        "for n in 21001 21002; do ip rule del pref $n; ip -6 rule del pref $n; done",
        "ip route flush table 43867; ip -6 route flush table 43867",
        "ip addr flush dev anb0",
        "ip link set anb0 down; ip link set anb0 up",
    ] {
        world.ue.sh(remove);
        let taken = world.until(remove, || passes() && ours() == all);
        assert!(taken < Duration::from_secs(4), "{remove}: {taken:?}");
    }
    // IPv6 off during the start, and on again; then off and on.
    let switch = |off: u8| world.ue.sh(&format!("sysctl -qw net.ipv6.conf.all.disable_ipv6={off}"));
    switch(1);
    ue.stop();
    let ue = world.spawn("ue");
    world.until("a session without IPv6", || world.ue.try_sh("ping -n -c 1 -W 1 192.0.2.2").1);
    for _ in 0..2 {
        switch(0);
        world.ue.sh("ip addr replace fd02::2/64 dev wifi0");
        world.until("IPv6 is back", || passes() && ours() == all);
        switch(1);
        world.until("IPv4 goes on", || world.ue.try_sh("ping -n -c 1 -W 1 192.0.2.2").1);
    }
    switch(0);
    world.ue.sh("ip addr replace fd02::2/64 dev wifi0");
    world.until("IPv6 is back", || passes() && ours() == all);
    // The UPF is notified of removed tables, and checks its addresses every 5 s.
    let tables = world.upf.sh("nft list tables");
    assert!(tables.contains("anabranch_anb0"), "{tables}");
    world.upf.sh("nft flush ruleset");
    let taken = world.until("the table is back", || world.upf.sh("nft list tables") == tables);
    assert!(taken < Duration::from_secs(2), "{taken:?}");
    world.upf.sh("ip addr flush dev anb0");
    world.until("the UPF's addresses are back", passes);
    world.upf.sh("ip route flush dev anb0; ip -6 route flush dev anb0");
    world.until("the UPF's routes to its pools are back", passes);
    ue.stop();
    upf.stop();
    assert_eq!((world.ue.picture(), world.upf.picture()), (before_ue, before_upf));
}
