//! Bad days with live traffic: programs that are killed or stopped, files that are broken, disks that are full. The table
//! of docs/testing.md is what these print.

use super::download;
use super::net::{ANABRANCH, Program, World};
use super::{Options, longest_gap_ms};
use nix::sys::signal::Signal;
use std::time::Duration;

/// Between two packets of the flow whose outage is measured, seconds.
const EVERY: f64 = 0.005;

/// What is done to a world under traffic; afterwards everything must run again.
type Fault = fn(&World, &mut Option<Program>, &mut Option<Program>);

/// The same name, with a file that is wrong in the place of a good one.
fn start_broken(world: &World, part: &str) {
    let file = world.file(&format!("{part}.toml"));
    let good = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{good}\n[no-such-section]\n")).unwrap();
    let ns = if part == "ue" { &world.ue } else { &world.upf };
    let args = [part, "--config", file.to_str().unwrap()];
    let mut program = ns.spawn(ANABRANCH, &args, &world.file("broken.log"));
    assert_eq!(program.wait(Duration::from_secs(10)), 2, "{}", program.log());
    std::fs::write(&file, good).unwrap();
}

/// However dead the program is, the host reaches what is beside the tunnel.
fn not_cut_off(world: &World) {
    world.ue.sh("ping -q -c 1 -W 2 10.1.0.1");
}

fn kill(program: &mut Option<Program>) {
    let mut dead = program.take().unwrap();
    dead.signal(Signal::SIGKILL);
    dead.wait(Duration::from_secs(5));
}

fn pause(program: &Option<Program>, time: Duration) {
    let program = program.as_ref().unwrap();
    program.signal(Signal::SIGSTOP);
    std::thread::sleep(time);
    program.signal(Signal::SIGCONT);
}

/// Faults, and the longest outage that is accepted, milliseconds: what takes part in it, and a margin for a busy machine.
const FAULTS: [(&str, f64, Fault); 6] = [
    ("UPF killed", 4_000.0, |world, _, upf| {
        kill(upf);
        not_cut_off(world);
        *upf = Some(world.start_upf());
    }),
    ("UPF killed, started with a broken file, then a good one", 4_500.0, |world, _, upf| {
        kill(upf);
        start_broken(world, "upf");
        not_cut_off(world);
        *upf = Some(world.start_upf());
    }),
    ("UE killed", 4_000.0, |world, ue, _| {
        kill(ue);
        not_cut_off(world);
        *ue = Some(world.start_ue());
    }),
    ("UE killed, started with a broken file, then a good one", 4_500.0, |world, ue, _| {
        kill(ue);
        start_broken(world, "ue");
        not_cut_off(world);
        *ue = Some(world.start_ue());
    }),
    ("UPF stopped for 2 s (SIGSTOP)", 4_500.0, |_, _, upf| pause(upf, Duration::from_secs(2))),
    ("UE stopped for 2 s (SIGSTOP)", 4_500.0, |_, ue, _| pause(ue, Duration::from_secs(2))),
];

#[test]
fn flows_survive_faults_and_the_host_is_never_cut_off() {
    for (name, most_ms, fault) in FAULTS {
        let Some(world) = World::new() else { return };
        world.configure(&Options::default());
        // A killed UPF cannot say what these were before.
        world.upf.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        let (mut upf, mut ue) = (Some(world.start_upf()), Some(world.start_ue()));
        let every = EVERY.to_string();
        let ping = ["-D", "-i", every.as_str(), "192.0.2.2"];
        let mut ping = world.ue.spawn("ping", &ping, &world.file("ping.log"));
        let (_server, mut client) = download(&world, 12);
        std::thread::sleep(Duration::from_millis(800));
        fault(&world, &mut ue, &mut upf);
        world.until("both paths are back", || world.paths_up("upf") == 2 && world.paths_up("ue") == 2);
        assert_eq!(client.wait(Duration::from_secs(40)), 0, "{name}\n{}\n{}", client.log(), world.logs());
        assert!(client.log().contains("intact"), "{name}: {}", client.log());
        ping.signal(Signal::SIGINT);
        ping.wait(Duration::from_secs(5));
        let log = ping.log();
        let outage = longest_gap_ms(&log);
        println!("| {name} | {outage:.0} ms | {:.0} | 0 of {} |", outage / 1_000.0 / EVERY - 1.0, 12 << 20);
        assert!(outage < most_ms, "{name}: {outage} ms\n{}", world.logs());
        ue.into_iter().for_each(Program::stop);
        upf.into_iter().for_each(Program::stop);
    }
}

/// What a full disk does not take is not done: no answer says that it is, and sessions go on.
#[test]
fn a_full_disk_refuses_changes_and_nothing_else() {
    let Some(world) = World::new() else { return };
    world.configure(&Options::default());
    let folder = world.file("small");
    std::fs::create_dir(&folder).unwrap();
    let text = std::fs::read_to_string(world.file("upf.toml")).unwrap();
    let state = world.file("state.json").display().to_string();
    let small = folder.join("state.json").display().to_string();
    std::fs::write(world.file("upf.toml"), text.replace(&state, &small)).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=64k tmpfs {} && exec {ANABRANCH} upf --config {}",
        folder.display(),
        world.file("upf.toml").display()
    );
    let upf = world.upf.spawn("unshare", &["--mount", "sh", "-ec", &script], &world.file("upf.log"));
    world.until("the UPF listens", || world.file("upf.sock").exists() && upf.log().contains("upf runs"));
    let ue = world.start_ue();
    // As the UPF sees it.
    let disk = format!("/proc/{}/root{}", upf.pid(), folder.display());
    let fill = format!("{disk}/fill");
    let key = "vmHhqE8tcZ4WAGqG4kP5IO2rCzYb1eN3mWvPc7yqC2o=";
    let body = serde_json::json!({"name": "tv", "public_key": key, "address_v4": "10.45.0.9"}).to_string();
    let post = ["-H", "content-type: application/json", "-d", &body];
    let is_full = || {
        let mut file = std::fs::File::create(&fill).unwrap();
        let wrote = std::iter::repeat_with(|| std::io::Write::write_all(&mut file, &[7; 4096])).take(64);
        assert!(wrote.into_iter().any(|wrote| wrote.is_err()), "it is not full");
    };

    is_full();
    let answer = world.ask("upf", &post, "/v1/sessions");
    assert_eq!(answer["status"], 503, "{answer}");
    assert!(answer["detail"].as_str().unwrap().contains("nothing has changed"), "{answer}");
    assert_eq!(world.get("upf", "/v1/sessions/tv")["status"], 404);
    world.ue.sh("ping -q -i 0.01 -c 20 -W 2 192.0.2.2");
    std::fs::remove_file(&fill).unwrap();
    assert_eq!(world.ask("upf", &post, "/v1/sessions")["addresses"][0], "10.45.0.9");
    let saved = || -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(format!("{disk}/state.json")).unwrap()).unwrap()
    };
    assert_eq!(saved()["ues"][0]["public_key"], key, "what was said to be there is on the disk");

    is_full();
    let answer = world.ask("upf", &["-X", "DELETE"], "/v1/sessions/tv");
    assert_eq!(answer["status"], 503, "{answer}");
    assert_eq!(world.get("upf", "/v1/sessions/tv")["addresses"][0], "10.45.0.9");
    std::fs::remove_file(&fill).unwrap();
    world.ask("upf", &["-X", "DELETE"], "/v1/sessions/tv");
    assert_eq!(world.get("upf", "/v1/sessions/tv")["status"], 404);
    assert_eq!(saved()["ues"], serde_json::json!([]));
    ue.stop();
    upf.stop();
}
