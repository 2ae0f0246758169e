//! `anabranch gnb` in network namespaces: two UEs, a cell, and the network behind N3.
//!
//! ```text
//!   phone  ue0 10.45.0.2 ─┐
//!                         ├─ anabranch gnb ─ n3 ─────────────── 10.45.0.1 network          plain IP
//!   tv     ue0 10.45.0.3 ─┘                └ 10.9.0.2 ── 10.9.0.1 ─ a small UPF ─ n6 10.45.0.1     GTP-U
//! ```

// These tests run in real time.
#![allow(clippy::disallowed_methods)]

#[path = "../run/example.rs"]
mod example;
#[path = "../run/net.rs"]
#[allow(dead_code, reason = "shared with the tests of the programs")]
mod net;
mod page;
mod refusals;
mod upf;

use net::{ANABRANCH, Namespace, Program};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Rate of 25 RBs at MCS 28: 2292 bytes per millisecond, in bit/s.
const CELL_BPS: f64 = 2292.0 * 8e3;

struct World {
    phone: Namespace,
    tv: Namespace,
    gnb: Namespace,
    network: Namespace,
    folder: tempfile::TempDir,
}

impl World {
    /// `None` where namespaces are not permitted.
    fn new() -> Option<Self> {
        let [phone, tv, gnb, network] = std::array::from_fn(|_| Namespace::new());
        let world = Self {
            phone: phone?,
            tv: tv?,
            gnb: gnb?,
            network: network?,
            folder: tempfile::tempdir().unwrap(),
        };
        for ns in [&world.phone, &world.tv, &world.gnb, &world.network] {
            ns.sh("sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.all.accept_dad=0");
        }
        Some(world)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a configuration; `n3` is that section, `cell` the remainder of `[cell]`.
    fn configure(&self, kind: &str, n3: &str, cell: &str) {
        let device = |name: &str, ns: &Namespace, address: &str| {
            let path = ns.path();
            format!(
                "[[device]]\nues = [\"{name}\"]\nkind = \"{kind}\"\nname = \"ue0\"\nnetns = \"{path}\"\n\
                 addresses = [\"{address}/24\", \"fd45::{name}/64\"]\n",
                name = name
            )
            .replace("fd45::phone", "fd45::2")
            .replace("fd45::tv", "fd45::3")
        };
        let text = format!(
            "[n3]\n{n3}\n{}{}[api]\nlisten = \"unix:{}\"\n[cell]\n{cell}\n",
            device("phone", &self.phone, "10.45.0.2"),
            device("tv", &self.tv, "10.45.0.3"),
            self.file("gnb.sock").display(),
        );
        std::fs::write(self.file("gnb.toml"), text).unwrap();
    }

    /// N3 as a device in the namespace of the network.
    fn plain(&self, kind: &str) -> String {
        format!(
            "mode = \"ip\"\nkind = \"{kind}\"\nname = \"n3\"\nnetns = \"{}\"\naddresses = [\"10.45.0.1/24\", \"fd45::1/64\"]",
            self.network.path()
        )
    }

    fn start(&self) -> Program {
        let config = self.file("gnb.toml");
        let log = self.file("gnb.log");
        let program = self.gnb.spawn(ANABRANCH, &["gnb", "--config", config.to_str().unwrap()], &log);
        self.until("the gNB runs", || self.file("gnb.sock").exists() && program.log().contains("gnb runs"));
        program
    }

    fn until(&self, what: &str, mut is: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is() {
            assert!(start.elapsed() < Duration::from_secs(15), "not after 15 s: {what}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.file("gnb.log")).unwrap_or_default()
    }

    fn curl(&self, args: &[&str], path: &str) -> String {
        let mut command = Command::new("curl");
        command.args(["-s", "--max-time", "5", "--unix-socket"]).arg(self.file("gnb.sock")).args(args);
        let output = command.arg(format!("http://localhost{path}")).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn get(&self, path: &str) -> Value {
        serde_json::from_str(&self.curl(&[], path)).unwrap_or_default()
    }

    fn put(&self, path: &str, body: &Value) -> Value {
        let body = body.to_string();
        let args = ["-X", "PUT", "-H", "content-type: application/json", "-d", &body];
        serde_json::from_str(&self.curl(&args, path)).unwrap_or_default()
    }

    fn ctl(&self, args: &[&str]) -> String {
        let output = Command::new(ANABRANCH)
            .args(["ctl", "--socket"])
            .arg(self.file("gnb.sock"))
            .args(args)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    fn pictures(&self) -> Vec<String> {
        [&self.phone, &self.tv, &self.gnb, &self.network].map(Namespace::picture).to_vec()
    }

    /// Starts an iperf3 server and waits until it listens.
    fn server(&self, ns: &Namespace) -> Program {
        let server = ns.spawn("iperf3", &["-s"], &self.file("iperf3.log"));
        self.until("iperf3 listens", || !ns.sh("ss -Hltn 'sport = :5201'").is_empty());
        server
    }

    /// Runs iperf3 from a UE to the network; returns the received rate, bit/s.
    fn iperf(&self, ue: &Namespace, args: &str) -> f64 {
        let _server = self.server(&self.network);
        let text = ue.sh(&format!("timeout 60 iperf3 -J -c 10.45.0.1 {args}"));
        let report: Value = serde_json::from_str(&text).unwrap();
        let udp = args.contains("-u");
        let sum = if udp { &report["end"]["sum"] } else { &report["end"]["sum_received"] };
        let lost = if udp { sum["lost_percent"].as_f64().unwrap_or(0.0) } else { 0.0 };
        sum["bits_per_second"].as_f64().unwrap_or_else(|| panic!("{text}")) * (1.0 - lost / 100.0)
    }

    /// Downlink rates of the slices while `during` ran, bit/s.
    fn slice_rates(&self, during: impl FnOnce()) -> Vec<f64> {
        let bytes = || -> Vec<u64> {
            let slices = self.get("/v1/slices");
            let uses = slices["uses"].as_array().unwrap_or_else(|| panic!("{slices}"));
            uses.iter().map(|s| s["downlink"]["bytes"].as_u64().unwrap()).collect()
        };
        let (start, before) = (Instant::now(), bytes());
        during();
        let (after, seconds) = (bytes(), start.elapsed().as_secs_f64());
        before.iter().zip(&after).map(|(a, b)| (b - a) as f64 * 8.0 / seconds).collect()
    }
}

/// Two slices with one UE each, LTE with 25 RBs at MCS 28.
fn cell(queue: &str, scheduler: &str) -> String {
    let ue = |name: &str, slice: &str, last: u8| {
        format!(
            "[[cell.ues]]\nname = \"{name}\"\nslice = \"{slice}\"\naddresses = [\"10.45.0.{last}\", \"fd45::{last}\"]\n\
             teid_downlink = {}\nteid_uplink = {}\nchannel = {{ model = \"constant\", mcs = 28 }}\n\
             bearer = {{ queue = \"{queue}\", uplink_queue = \"vanilla\" }}\n",
            100 + u32::from(last),
            200 + u32::from(last)
        )
    };
    format!(
        "scheduler = \"{scheduler}\"\nradio = {{ rat = \"lte\", rbs = 25 }}\n\
         [[cell.slices]]\nname = \"a\"\nshare_percent = 50\n[[cell.slices]]\nname = \"b\"\nshare_percent = 50\n{}{}",
        ue("phone", "a", 2),
        ue("tv", "b", 3)
    )
}

fn pings(world: &World) {
    for to in ["10.45.0.1", "fd45::1"] {
        let text = world.phone.sh(&format!("ping -q -i 0.02 -c 20 -W 2 {to}"));
        assert!(text.contains(" 0% packet loss"), "{text}\n{}", world.log());
    }
    // Large packets, which the sender must fragment.
    world
        .network
        .sh("ping -q -i 0.02 -c 5 -s 4000 -W 2 10.45.0.3; ping -q -i 0.02 -c 5 -s 4000 -W 2 fd45::2");
}

/// UDP and TCP in both directions.
fn traffic(world: &World, most: f64) {
    for (args, least) in [
        ("-u -b 5M -t 2 -l 1200", 4.5e6),
        ("-u -b 5M -t 2 -l 1200 -R", 4.5e6),
        ("-t 3 -C cubic", 0.6 * most),
        ("-t 3 -C cubic -R", 0.6 * most),
    ] {
        let bps = world.iperf(&world.phone, args);
        println!("{args}: {:.1} Mbit/s", bps / 1e6);
        assert!((least..1.05 * most).contains(&bps), "{args}: {bps}\n{}", world.log());
    }
}

fn lateness(world: &World) {
    let cell = world.get("/v1/cell");
    println!("ticks {}", cell["ticks"]);
    assert!(cell["ticks"]["count"].as_u64().unwrap() > 5000, "{cell}");
    let (p50, p99) = (cell["ticks"]["p50_us"].as_f64().unwrap(), cell["ticks"]["p99_us"].as_f64().unwrap());
    // A generous bound, because other tests use the same cores.
    assert!(p50 < 5_000.0 && p50 <= p99, "{cell}");
}

fn plain_ip(kind: &str) {
    let Some(world) = World::new() else { return };
    world.configure(kind, &world.plain(kind), &cell("e5g_bdp", "gps_packing"));
    let before = world.pictures();
    let gnb = world.start();
    pings(&world);
    traffic(&world, CELL_BPS);
    lateness(&world);
    let phone = world.get("/v1/ues/phone");
    assert_eq!((&phone["slice"], &phone["downlink_mcs"]), (&json!("a"), &json!(28)), "{phone}");
    assert!(phone["bearers"][0]["downlink"]["delivered_bytes"].as_u64().unwrap() > 1_000_000, "{phone}");
    gnb.stop();
    assert_eq!(world.pictures(), before);
    assert!(!world.file("gnb.sock").exists());
    assert!(!world.log().contains("WARN") && !world.log().contains("ERROR"), "{}", world.log());
}

#[test]
fn packets_pass_both_ways_and_nothing_is_left_behind() {
    plain_ip("tun");
}

#[test]
fn packets_pass_without_tun() {
    plain_ip("packet");
}

#[test]
fn over_gtpu_with_a_upf_at_the_other_end() {
    let Some(world) = World::new() else { return };
    world.gnb.veth("n3", &world.network, "n3");
    world.gnb.sh("ip addr add 10.9.0.2/24 dev n3");
    world.network.sh("ip addr add 10.9.0.1/24 dev n3");
    let n3 = "mode = \"gtpu\"\nlisten = \"10.9.0.2:2152\"\npeer = \"10.9.0.1:2152\"";
    world.configure("tun", n3, &cell("e5g_bdp", "gps_packing"));
    let upf = upf::Upf::start(&world.network, "10.9.0.2:2152", &[(2, 102), (3, 103), (9, 999)]);
    world.network.sh("ip addr add 10.45.0.1/24 dev n6; ip addr add fd45::1/64 dev n6; ip link set n6 up");
    let before = world.pictures();
    let gnb = world.start();
    assert!(upf.echo(), "no answer to an echo request\n{}", world.log());
    pings(&world);
    traffic(&world, CELL_BPS);
    lateness(&world);
    assert_eq!(upf.uplink_teids(), [202, 203]);
    // An unknown tunnel: its sender gets an Error Indication.
    world.network.try_sh("ping -q -c 1 -W 1 10.45.0.9");
    assert_eq!(upf.unknown_teids(), [999]);
    let status = world.get("/v1/status");
    assert!(status["workers"][0]["accesses"]["n3"]["rx_datagrams"].as_u64().unwrap() > 1000, "{status}");
    gnb.stop();
    assert_eq!(world.pictures(), before);
}

#[test]
fn shares_changed_live_shift_the_rates() {
    let Some(world) = World::new() else { return };
    world.configure("tun", &world.plain("tun"), &cell("vanilla", "fixed"));
    let gnb = world.start();
    // More than the cell's capacity, to both, during the whole test.
    let load = [(&world.phone, "10.45.0.2"), (&world.tv, "10.45.0.3")].map(|(ns, to)| {
        let server = world.server(ns);
        let args = ["-u", "-b", "20M", "-l", "1200", "-t", "60", "-c", to];
        (world.network.spawn("iperf3", &args, &world.file("iperf3.log")), server)
    });
    let second = || std::thread::sleep(Duration::from_millis(1500));
    second();
    let share = |a: u32, b: u32| json!({"slices": [{"name": "a", "share_percent": a}, {"name": "b", "share_percent": b}]});
    for (a, b) in [(50, 50), (80, 20), (20, 80)] {
        let answer = world.put("/v1/slices", &share(a, b));
        assert_eq!(answer["slices"][0]["share_percent"], f64::from(a), "{answer}");
        std::thread::sleep(Duration::from_millis(200));
        let rates = world.slice_rates(second);
        println!("{a}:{b} {:.1} {:.1} Mbit/s", rates[0] / 1e6, rates[1] / 1e6);
        let part = rates[0] / (rates[0] + rates[1]);
        assert!((part - f64::from(a) / 100.0).abs() < 0.08, "{a}:{b}: {rates:?}\n{}", world.log());
        assert!(rates[0] + rates[1] > 0.8 * CELL_BPS, "{rates:?}");
    }
    // Too much: refused in one sentence without any change.
    let refused = world.put("/v1/slices", &share(80, 40));
    assert_eq!((&refused["status"], &refused["field"]), (&json!(400), &json!("slices")), "{refused}");
    assert!(refused["detail"].as_str().unwrap().contains("sum to 120"), "{refused}");
    assert_eq!(world.get("/v1/slices")["slices"][1]["share_percent"], 80.0);
    // A worse channel and another queue for one of them.
    let change = json!({"channel": {"model": "constant", "mcs": 5}, "queue": "codel"});
    let tv = world.put("/v1/ues/tv", &change);
    assert_eq!((&tv["downlink_mcs"], &tv["uplink_mcs"]), (&json!(5), &json!(28)), "{tv}");
    assert_eq!(tv["bearers"][0]["downlink"]["queue"]["algorithm"], "codel", "{tv}");
    std::thread::sleep(Duration::from_millis(200));
    let rates = world.slice_rates(second);
    assert!(rates[1] < 0.3 * 0.8 * CELL_BPS, "{rates:?}");
    // The unused share of a fixed partition is lost; the other scheduler assigns it to UEs with data.
    let tables = world.ctl(&["slices", "set", "a=10", "b=90"]);
    assert!(tables.contains("a ") && tables.contains("90"), "{tables}");
    world.ctl(&["cell", "set", "--scheduler", "drr"]);
    world.ctl(&["ues", "set", "tv", "--slice", "a", "--channel", "model=\"constant\", cqi=15"]);
    std::thread::sleep(Duration::from_millis(300));
    let rates = world.slice_rates(second);
    assert!(rates[0] > 0.8 * CELL_BPS && rates[1] < 1e5, "both are in slice a: {rates:?}");
    for table in [&["cell"][..], &["slices"], &["ues"], &["ues", "show", "tv"], &["status"]] {
        println!("{}", world.ctl(table));
    }
    // The stream of seconds and slots.
    let text = world.curl(&["--max-time", "2"], "/v1/telemetry?slots=true&packets=true");
    assert!(text.contains("event: second") && text.matches("event: slot").count() > 500, "{text}");
    packets(&text);
    let metrics = world.curl(&[], "/metrics");
    assert!(metrics.contains("anabranch_gnb_tick_lateness_seconds{quantile=\"0.99\"}"), "{metrics}");
    // After a reload, the values of the file are in force.
    let text = std::fs::read_to_string(world.file("gnb.toml")).unwrap();
    std::fs::write(
        world.file("gnb.toml"),
        text.replace("name = \"b\"\nshare_percent = 50", "name = \"b\"\nshare_percent = 30"),
    )
    .unwrap();
    let done: Value = serde_json::from_str(&world.curl(&["-X", "POST"], "/v1/reload")).unwrap();
    assert_eq!(done["changed"], json!(["cell.slices", "ue tv", "downlink scheduler"]), "{done}");
    assert_eq!(done["needs_restart"], json!([]), "{done}");
    assert_eq!(world.get("/v1/slices")["slices"][1]["share_percent"], 30.0);
    assert_eq!(world.get("/v1/rules")["status"], 405);
    drop(load);
    gnb.stop();
}

/// Every packet is reported once, with its times in order.
fn packets(stream: &str) {
    let after = stream.split("event: packets\n").skip(1);
    let batches = after.map(|rest| rest.lines().next().and_then(|line| line.strip_prefix("data: ")).unwrap());
    let mut next = None;
    let mut count = 0;
    for batch in batches {
        let batch: Value = serde_json::from_str(batch).unwrap();
        let first = batch["first"].as_u64().unwrap();
        assert_eq!(first, next.unwrap_or(first));
        let packets = batch["packets"].as_array().unwrap();
        next = Some(first + packets.len() as u64);
        for packet in packets {
            let times = ["arrived", "forwarded", "first_pull", "last_pull", "first_received", "delivered"]
                .map(|what| packet[format!("{what}_ns")].as_u64().unwrap());
            assert!(times.is_sorted_by(|a, b| a <= b) || times[3] > times[4], "{packet}");
            count += usize::from(packet["downlink"] == true && packet["qfi"] == 9);
        }
    }
    assert!(count > 500, "{count} packets told");
}

#[test]
fn a_configuration_that_is_wrong_is_one_sentence_and_exit_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gnb.toml");
    let right = format!(
        "[n3]\nmode = \"ip\"\nname = \"n3\"\n[[device]]\nname = \"ue0\"\n[cell]\n{}",
        cell("e5g_bdp", "eqp_exact")
    );
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let output =
            Command::new(ANABRANCH).args(["gnb", "--check", "--config"]).arg(&file).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(check(&right), (Some(0), String::new()));
    std::fs::write(folder.path().join("bad.csv"), "second,cqi\n0,7\n1,99\n").unwrap();
    let trace = format!("model = \"trace\", file = \"{}/bad.csv\"", folder.path().display());
    for (from, to, part) in [
        ("rbs = 25", "rbs = 0", "0 RBs"),
        ("share_percent = 50", "share_percent = 60", "sum to 110"),
        ("share_percent = 50", "share_percent = nan", "NaN"),
        ("mcs = 28", "mcs = 40", "40"),
        ("rbs = 25", "rbs = 111", "111 RBs are not in the table: LTE has 1 to 110"),
        ("rat = \"lte\", rbs = 25", "rat = \"nr\", rbs = 276", "276"),
        ("model = \"constant\", mcs = 28", &trace, "bad.csv:3"),
        ("model = \"constant\", mcs = 28", "model = \"train\", start_s = nan", "start_s = NaN"),
        ("model = \"constant\", mcs = 28", "model = \"mahimahi\", file = \"/nowhere\"", "/nowhere"),
        ("name = \"ue0\"", "nam = \"ue0\"", "did you mean \"name\"?"),
    ] {
        let (code, text) = check(&right.replacen(from, to, 1));
        assert_eq!((code, text.lines().count()), (Some(2), 1), "{to}: {text}");
        assert!(text.contains(part), "{to}: {text}");
    }
}
