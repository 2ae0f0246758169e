//! Faults under live traffic: killed and stopped programs, broken files, full disks, accesses that are cut,
//! wrong clocks, exhausted file descriptors, names that change their address. They print the table of
//! docs/testing.md.

use super::live::{self, Flow, Live};
use super::net::{ANABRANCH, Program, World};
use super::shim::{Shim, give_descriptors, take_descriptors};
use super::{Namespace, Options};
use nix::sys::signal::Signal;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

mod names;
mod sequence;
mod steps;
mod together;

/// Addresses of the server behind the UPF.
const SERVER: [&str; 2] = ["192.0.2.2:7", "[2001:db8:6::2]:7"];

/// A world with both programs running, and a path beside the tunnel: packets that do not use the tunnel go
/// over 5G (IPv6: Wi-Fi) to the UPF's machine, which forwards them to the server.
struct Day {
    world: World,
    shim: Shim,
    ue: Option<Program>,
    upf: Option<Program>,
}

impl Day {
    /// `None` where namespaces are not permitted. Starts no program.
    fn new(options: &Options<'_>) -> Option<Self> {
        let world = World::new()?;
        world.configure(options);
        std::fs::create_dir(world.file("ue")).unwrap();
        let text = std::fs::read_to_string(world.file("ue.toml")).unwrap();
        let state = format!("[ue]\nstate_file = \"{}\"\n", world.file("ue/state.json").display());
        std::fs::write(world.file("ue.toml"), text.replace("[ue]\n", &state)).unwrap();
        world.upf.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        world.ue.sh("ip route add default via 10.1.0.1; ip -6 route add default via fd02::1");
        world
            .server
            .sh("ip route add 10.1.0.0/24 via 192.0.2.1; ip -6 route add fd02::/64 via 2001:db8:6::1");
        for at in SERVER {
            live::serve(&world.server, at.parse().unwrap());
        }
        let shim = Shim::new(world.file("ue").parent().unwrap());
        Some(Self { world, shim, ue: None, upf: None })
    }

    /// The same, with both programs running.
    fn at_work() -> Option<Self> {
        let mut day = Self::new(&Options::default())?;
        day.upf = Some(day.world.start_upf());
        day.ue = Some(day.world.start_ue());
        Some(day)
    }

    fn part(&mut self, part: &str) -> &mut Option<Program> {
        if part == "ue" { &mut self.ue } else { &mut self.upf }
    }

    fn pid(&mut self, part: &str) -> u32 {
        self.part(part).as_ref().unwrap().pid()
    }

    fn start(&mut self, part: &str) {
        let program = if part == "ue" { self.world.start_ue() } else { self.world.start_upf() };
        *self.part(part) = Some(program);
    }

    fn kill(&mut self, part: &str) {
        let mut dead = self.part(part).take().unwrap();
        dead.signal(Signal::SIGKILL);
        dead.wait_killed();
    }

    fn pause(&mut self, part: &str, time: Duration) {
        let program = self.part(part).as_ref().unwrap();
        program.signal(Signal::SIGSTOP);
        std::thread::sleep(time);
        program.signal(Signal::SIGCONT);
    }

    /// Checks that destinations beside the tunnel remain reachable.
    fn not_cut_off(&self) {
        self.world.ue.sh("ping -q -c 1 -W 2 10.1.0.1; ping -q -c 1 -W 2 fd02::1");
    }

    fn is_back(&self) {
        let up = |part| self.world.paths_up(part) == 2;
        self.world.until("both paths are back", || up("upf") && up("ue"));
    }

    fn end(mut self) {
        self.ue.take().into_iter().for_each(Program::stop);
        self.upf.take().into_iter().for_each(Program::stop);
    }
}

/// Starts `part` with a broken file.
fn start_broken(world: &World, part: &str) {
    let file = world.file(&format!("{part}.toml"));
    let good = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{good}\n[no-such-section]\n")).unwrap();
    let mut program = world.spawn(part);
    assert_eq!(program.wait(Duration::from_secs(10)), 2, "{}", program.log());
    std::fs::write(&file, good).unwrap();
}

/// New connections in both families, with an answer.
#[track_caller]
fn new_connections(from: &Namespace, why: &str) {
    for at in SERVER {
        let answered = new_connection(from, at, Duration::from_secs(3));
        assert!(answered.is_ok(), "{why}: {at}: {answered:?}");
    }
}

/// Opens a new connection and waits for an answer, each within this time.
fn new_connection(from: &Namespace, at: &str, within: Duration) -> std::io::Result<()> {
    let at: SocketAddr = at.parse().unwrap();
    from.run(move || {
        let mut stream = std::net::TcpStream::connect_timeout(&at, within)?;
        stream.set_read_timeout(Some(within))?;
        std::io::Write::write_all(&mut stream, b"there?")?;
        std::io::Read::read_exact(&mut stream, &mut [0; 6])
    })
}

/// A fault under traffic; afterwards everything must be running again.
type Fault = fn(&mut Day);

/// Applies the faults one by one, each to a new world, with upper bounds of the outages of TCP and UDP in
/// milliseconds, which include a margin for a busy machine.
fn suffer(faults: &[(&str, [f64; 2], Fault)]) {
    for (name, most_ms, fault) in faults {
        let Some(mut day) = Day::at_work() else { return };
        let traffic = Live::start(&day.world.ue, SERVER[0].parse().unwrap());
        std::thread::sleep(Duration::from_millis(500));
        fault(&mut day);
        day.is_back();
        new_connections(&day.world.ue, name);
        std::thread::sleep(Duration::from_millis(500));
        Flow::judge(&traffic.end(), name, *most_ms, || day.world.logs());
        day.end();
    }
}

#[test]
fn flows_survive_programs_that_are_killed() {
    suffer(&[
        ("UPF killed", [6_000.0, 4_000.0], |day| {
            day.kill("upf");
            day.not_cut_off();
            day.start("upf");
        }),
        ("UPF killed, started with a broken file, then a good one", [6_500.0, 4_500.0], |day| {
            day.kill("upf");
            start_broken(&day.world, "upf");
            day.not_cut_off();
            day.start("upf");
        }),
        ("UE killed", [6_000.0, 4_000.0], |day| {
            day.kill("ue");
            day.not_cut_off();
            day.start("ue");
        }),
        ("UE killed, started with a broken file, then a good one", [6_500.0, 4_500.0], |day| {
            day.kill("ue");
            start_broken(&day.world, "ue");
            day.not_cut_off();
            day.start("ue");
        }),
    ]);
}

#[test]
fn flows_survive_programs_that_are_stopped() {
    suffer(&[
        ("UPF stopped for 2 s (SIGSTOP)", [7_000.0, 4_500.0], |day| day.pause("upf", Duration::from_secs(2))),
        ("UE stopped for 2 s (SIGSTOP)", [7_000.0, 4_500.0], |day| day.pause("ue", Duration::from_secs(2))),
    ]);
}

/// Drops all packets of these interfaces in both directions for this time, without any notification.
fn cut(world: &World, interfaces: &str, time: Duration) {
    for ns in [&world.ue, &world.upf] {
        ns.sh(&format!(
            "nft add table inet cut; nft 'add chain inet cut in {{ type filter hook prerouting priority -310; }}'
             nft 'add rule inet cut in iifname {{ {interfaces} }} drop'"
        ));
    }
    std::thread::sleep(time);
    for ns in [&world.ue, &world.upf] {
        ns.sh("nft delete table inet cut");
    }
}

#[test]
fn flows_survive_accesses_that_are_cut() {
    let both = [7_000.0, 4_500.0];
    suffer(&[
        ("5G cut for 2 s", [1_500.0, 1_500.0], |day| cut(&day.world, "\"5g0\"", Duration::from_secs(2))),
        ("Wi-Fi cut for 2 s", [1_500.0, 1_500.0], |day| cut(&day.world, "wifi0", Duration::from_secs(2))),
        ("both cut for 2 s", both, |day| cut(&day.world, "\"5g0\", wifi0", Duration::from_secs(2))),
    ]);
}

/// The kernel reports the second lost carrier within a second late, and the access is silent until then. Not if the ends of a veth
/// pair have different indices.
#[test]
fn a_lost_carrier_is_found_before_the_kernel_reports_it() {
    let rules = "[[rule]]\nname = \"all\"\nsteering = { mode = \"redundant\" }\n";
    let Some(mut day) = Day::new(&Options { ue_rules: rules, ..Options::default() }) else { return };
    let upf = format!("nsenter --net={} ip", day.world.upf.path());
    day.world.ue.sh(&format!(
        "ip link add d0 type veth peer d1; ip link set d0 up; ip link set d1 up
         ip link del 5g0; ip link add 5g0 index 500 type veth peer name 5g0 index 500 netns {}
         {upf} link set 5g0 up; {upf} addr add 10.1.0.1/24 dev 5g0; ip link set 5g0 up; ip addr add 10.1.0.2/24 dev 5g0; ip route add default via 10.1.0.1",
        day.world.upf.path()
    ));
    day.start("upf");
    day.start("ue");
    // On a busy machine, the silence may be noticed before; and Linux reports earlier when a namespace ends.
    let found = (0..4).filter(|_| {
        day.is_back();
        let told = day.ue.as_ref().unwrap().log().len();
        day.world.ue.sh(&format!(
            "ping -q -i 0.005 -w 2 192.0.2.2 & sleep 0.7; ip link set d1 down; {upf} link set 5g0 down; sleep 0.6
             ip link set d1 up; {upf} link set 5g0 up; wait"
        ));
        let log = day.ue.as_ref().unwrap().log();
        let why = log[told..].split("5g is down: ").nth(1).expect("it is noticed");
        println!("{}", why.lines().next().unwrap_or_default());
        why.starts_with("carrier")
    });
    assert!(found.count() >= 3, "{}", day.world.logs());
    day.end();
}

/// Without descriptors no new client is served and existing ones are; afterwards all are.
fn without_descriptors(day: &mut Day, part: &str) {
    let pid = day.pid(part);
    let limit = take_descriptors(pid);
    let start = Instant::now();
    assert!(day.world.call(part, &["--max-time", "1"], "/v1/status").is_null(), "there are none left");
    std::thread::sleep(Duration::from_secs(2).saturating_sub(start.elapsed()));
    new_connections(&day.world.ue, "without descriptors");
    give_descriptors(pid, &limit);
    day.world.until("it answers", || day.world.get(part, "/v1/status").is_object());
}

#[test]
fn flows_survive_exhausted_descriptors() {
    suffer(&[
        ("UPF without descriptors for 2 s (EMFILE)", [1_000.0, 1_000.0], |day| {
            without_descriptors(day, "upf")
        }),
        ("UE without descriptors for 2 s (EMFILE)", [1_000.0, 1_000.0], |day| without_descriptors(day, "ue")),
    ]);
}

const HOUR_S: i64 = 3600;

/// Kills a program and starts it with a wrong wall clock, which is set once more at run time; then with a
/// right one.
fn wrong_clock(day: &mut Day, part: &str, ahead_s: i64) {
    *day.world.environment.borrow_mut() = day.shim.clock();
    for ahead_s in [ahead_s, 0] {
        day.shim.set_clock(ahead_s);
        day.kill(part);
        day.start(part);
        day.is_back();
        day.shim.set_clock(2 * ahead_s);
        // Lets TCP recover before the next fault.
        std::thread::sleep(Duration::from_millis(1500));
    }
    day.world.environment.borrow_mut().clear();
}

#[test]
fn flows_survive_clocks_that_are_wrong() {
    let most_ms = [6_000.0, 4_000.0];
    suffer(&[
        ("UE killed twice, started with its wall clock 1 h ahead, and right again", most_ms, |day| {
            wrong_clock(day, "ue", HOUR_S);
        }),
        ("the same, 1 h behind", most_ms, |day| wrong_clock(day, "ue", -HOUR_S)),
        ("UPF killed twice, started with its wall clock 1 h ahead, and right again", most_ms, |day| {
            wrong_clock(day, "upf", HOUR_S);
        }),
        ("the same, 1 h behind", most_ms, |day| wrong_clock(day, "upf", -HOUR_S)),
    ]);
}

/// A disk that reports failed syncs: no answer confirms a change, and sessions continue.
#[test]
fn failed_fsync_refuses_changes_and_nothing_else() {
    let Some(mut day) = Day::new(&Options::default()) else { return };
    *day.world.environment.borrow_mut() = day.shim.fsync();
    day.start("upf");
    day.start("ue");
    let traffic = Live::start(&day.world.ue, SERVER[0].parse().unwrap());
    let key = "vmHhqE8tcZ4WAGqG4kP5IO2rCzYb1eN3mWvPc7yqC2o=";
    let body = serde_json::json!({"name": "tv", "public_key": key, "address_v4": "10.45.0.9"}).to_string();
    let post = ["-H", "content-type: application/json", "-d", &body];
    day.shim.fail_fsync(true);
    let answer = day.world.call("upf", &post, "/v1/sessions");
    assert_eq!(answer["status"], 503, "{answer}");
    assert_eq!(day.world.get("upf", "/v1/sessions/tv")["status"], 404);
    // The timestamp of the UE's handshake cannot be stored.
    day.kill("ue");
    day.start("ue");
    day.is_back();
    day.shim.fail_fsync(false);
    assert_eq!(day.world.call("upf", &post, "/v1/sessions")["addresses"][0], "10.45.0.9");
    Flow::judge(&traffic.end(), "fsync fails, UE killed", [6_000.0, 4_000.0], || day.world.logs());
    day.end();
}

/// A full disk: no answer confirms a change that could not be stored, sessions continue, and the UPF stops as requested.
#[test]
fn a_full_disk_refuses_changes_and_nothing_else() {
    let Some(world) = World::new() else { return };
    world.configure(&Options::default());
    let before = world.upf.picture();
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
    let mut upf = world.upf.spawn("unshare", &["--mount", "sh", "-ec", &script], &world.file("upf.log"));
    world.until("the UPF listens", || world.file("upf.sock").exists() && upf.log().contains("upf runs"));
    let ue = world.start_ue();
    // The directory as the UPF sees it.
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
    let answer = world.call("upf", &post, "/v1/sessions");
    assert_eq!(answer["status"], 503, "{answer}");
    assert!(answer["detail"].as_str().unwrap().contains("nothing has changed"), "{answer}");
    assert_eq!(world.get("upf", "/v1/sessions/tv")["status"], 404);
    world.ue.sh("ping -q -i 0.01 -c 20 -W 2 192.0.2.2");
    std::fs::remove_file(&fill).unwrap();
    assert_eq!(world.call("upf", &post, "/v1/sessions")["addresses"][0], "10.45.0.9");
    let saved = || -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(format!("{disk}/state.json")).unwrap()).unwrap()
    };
    assert_eq!(saved()["ues"][0]["public_key"], key, "what was said to be there is on the disk");

    is_full();
    let answer = world.call("upf", &["-X", "DELETE"], "/v1/sessions/tv");
    assert_eq!(answer["status"], 503, "{answer}");
    assert_eq!(world.get("upf", "/v1/sessions/tv")["addresses"][0], "10.45.0.9");
    std::fs::remove_file(&fill).unwrap();
    world.call("upf", &["-X", "DELETE"], "/v1/sessions/tv");
    assert_eq!(world.get("upf", "/v1/sessions/tv")["status"], 404);
    assert_eq!(saved()["ues"], serde_json::json!([]));

    is_full();
    ue.stop();
    let ue = world.start_ue();
    let handle = std::fs::File::open(&disk).unwrap();
    let told = upf.log().len();
    upf.signal(Signal::SIGTERM);
    assert_eq!(upf.wait(Duration::from_secs(20)), 0, "{}", upf.log());
    assert_eq!(world.upf.picture(), before);
    let left = std::fs::read_dir(format!("/proc/self/fd/{}", handle.as_raw_fd())).unwrap();
    let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["fill", "state.json"], "no temporary file, and no settings to restore");
    for once in ["since the last write are lost", "its settings in /proc/sys stay"] {
        assert_eq!(upf.log()[told..].matches(once).count(), 1, "{once}: {}", upf.log());
    }
    ue.stop();
}
