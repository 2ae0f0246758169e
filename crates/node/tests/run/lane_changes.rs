//! Flows of the TCP lane while something beside them changes: files, clocks, a mapping of a NAT, a disk.

use super::Options;
use super::nat::endpoint;
use super::net::{ANABRANCH, Program, World};
use super::shim::Shim;
use super::tcp_lane::{ROUTED, RULES, carried, exchange, flow, lane, transfer, world};
use nix::sys::signal::Signal;
use std::time::Duration;

/// 64 KiB each 10 ms.
const BYTES: usize = 32 << 20;

fn new() -> Option<World> {
    world(&Options { ue_rules: RULES, upf_more: ROUTED, ..Options::default() })
}

/// Whether flows in both directions deliver the same bytes during `change`, and a new one after it.
fn flows_go_on(
    world: &World,
    [upf, ue]: [Program; 2],
    what: &str,
    change: impl FnOnce(&World, &Program, &Program),
) {
    world.until("the lane runs", || lane(world, "ue")["state"] == "runs");
    let [(up, at), (to, down)] = [flow(world), flow(world)];
    let longest = [transfer(up, at, BYTES), transfer(down, to, BYTES)];
    std::thread::sleep(Duration::from_millis(500));
    change(world, &upf, &ue);
    assert_eq!(lane(world, "ue")["flows"], 2, "{what}: it took too long\n{}", lane(world, "ue"));
    let (client, server) = flow(world);
    exchange(client, server, 1 << 20);
    let longest = longest.map(|longest| longest());
    println!("{what}: longest silence, up and down {longest:?}");
    assert!(longest.iter().all(|longest| *longest < Duration::from_secs(2)), "{longest:?}\n{}", world.logs());
    assert_eq!(carried(world, "ue", "mptcp"), 3, "{what}: {}", lane(world, "ue"));
    assert!(!world.logs().contains("panicked"), "{}", world.logs());
}

#[test]
fn a_broken_file_does_not_end_flows() {
    let Some(world) = new() else { return };
    let programs = [world.start_upf(), world.start_ue()];
    flows_go_on(&world, programs, "broken files", |world, upf, ue| {
        for (part, program) in [("ue", ue), ("upf", upf)] {
            let file = world.file(&format!("{part}.toml"));
            let text = std::fs::read_to_string(&file).unwrap();
            for broken in
                [text.replace("[tcp_lane]", "[tcp_lane"), text.replace("mode =", "mood ="), String::new()]
            {
                std::fs::write(&file, broken).unwrap();
                program.signal(Signal::SIGHUP);
                let problem = world.call(part, &["-X", "POST"], "/v1/reload");
                assert_eq!(problem["status"], 400, "{problem}");
            }
            std::fs::write(&file, text).unwrap();
            program.signal(Signal::SIGHUP);
        }
    });
}

#[test]
fn a_wrong_clock_does_not_end_flows() {
    let Some(world) = new() else { return };
    let shim = Shim::new(world.file("ue.toml").parent().unwrap());
    shim.set_clock(0);
    world.environment.replace(shim.clock());
    let programs = [world.start_upf(), world.start_ue()];
    flows_go_on(&world, programs, "clock", |_, _, _| {
        for ahead_s in [86_400, -86_400, 0] {
            shim.set_clock(ahead_s);
            std::thread::sleep(Duration::from_secs(1));
        }
    });
}

/// Datagrams of an access have another source port from one moment to the next.
#[test]
fn another_mapping_of_a_nat_does_not_end_flows() {
    let Some(world) = new() else { return };
    let programs = [world.start_upf(), world.start_ue()];
    flows_go_on(&world, programs, "NAT", |world, _, _| {
        let own = endpoint(world);
        let port = own.rsplit(':').next().unwrap();
        for mapped in [30_001, 30_002, 30_003] {
            world.ue.sh(&format!(
                "nft 'add table ip nat; delete table ip nat; table ip nat {{
                     chain out {{ type filter hook output priority -350; oifname \"5g0\" udp sport {port} udp sport set {mapped}; }}
                     chain in {{ type filter hook prerouting priority -350; iifname \"5g0\" udp dport {mapped} udp dport set {port}; }}
                 }}'"
            ));
            world.until("the UPF follows", || endpoint(world) == format!("10.1.0.2:{mapped}"));
            std::thread::sleep(Duration::from_millis(500));
        }
        world.ue.sh("nft delete table ip nat");
        world.until("the UPF follows", || endpoint(world) == own);
        assert_eq!(world.paths_up("ue"), 2);
    });
}

#[test]
fn a_full_disk_does_not_end_flows() {
    let Some(world) = new() else { return };
    let disk = world.file("small");
    std::fs::create_dir(&disk).unwrap();
    let state = format!("{}/state.json", disk.display());
    for (part, from, to) in [
        ("upf", world.file("state.json").display().to_string(), state.clone()),
        ("ue", "[ue]\n".to_owned(), format!("[ue]\nstate_file = \"{state}\"\n")),
    ] {
        let file = world.file(&format!("{part}.toml"));
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace(&from, &to)).unwrap();
    }
    let start = |part: &str| {
        let ns = if part == "ue" { &world.ue } else { &world.upf };
        let script = format!(
            "mount -t tmpfs -o size=64k tmpfs {} && exec {ANABRANCH} {part} --config {}",
            disk.display(),
            world.file(&format!("{part}.toml")).display()
        );
        let log = world.file(&format!("{part}.log"));
        let program = ns.spawn("unshare", &["--mount", "sh", "-ec", &script], &log);
        world.until("it runs", || program.log().contains(&format!("{part} runs")));
        program
    };
    let programs = [start("upf"), start("ue")];
    flows_go_on(&world, programs, "full disk", |world, upf, ue| {
        for program in [upf, ue] {
            // The directory as the program sees it.
            let fill = format!("/proc/{}/root{}/fill", program.pid(), disk.display());
            let mut file = std::fs::File::create(fill).unwrap();
            let wrote = std::iter::repeat_with(|| std::io::Write::write_all(&mut file, &[7; 4096])).take(64);
            assert!(wrote.into_iter().any(|wrote| wrote.is_err()), "it is not full");
        }
        let body = r#"{"name": "tv", "public_key": "vmHhqE8tcZ4WAGqG4kP5IO2rCzYb1eN3mWvPc7yqC2o="}"#;
        let post = ["-H", "content-type: application/json", "-d", body];
        assert_eq!(world.call("upf", &post, "/v1/sessions")["status"], 503);
        // Both programs have a new handshake.
        world.ue.sh("ip link set wifi0 down; ip link set 5g0 down");
        world.until("no access is left", || world.paths_up("ue") == 0);
        world.ue.sh("ip link set 5g0 up; ip link set wifi0 up; ip addr replace fd02::2/64 dev wifi0");
        world.until("both accesses are up", || world.paths_up("ue") == 2);
    });
}
