//! `anabranch lwip` in network namespaces: a server, the node, and a UE with LTE and Wi-Fi.
//!
//! ```text
//!   server               ran                                   ue
//!   n3 10.9.0.1 ┄┄┄┄┄┄┄ ran0   lte  10.45.0.1 ──────────────── lte   10.45.0.2  default route
//!      (anabranch lwip)        wifi 10.46.0.1 ─ anabranch link ─ wifi 10.46.0.2  turned back by nftables
//! ```

// These tests run in real time.
#![allow(clippy::disallowed_methods)]

#[path = "../run/example.rs"]
mod example;
mod gtpu;
mod hundred;
#[path = "../run/net.rs"]
#[allow(dead_code, reason = "shared with the tests of the programs")]
mod net;
mod page;
mod raw;
mod tunnel;
#[path = "../gnb/upf.rs"]
mod upf;

use net::{ANABRANCH, Namespace, Program};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

struct World {
    server: Namespace,
    ran: Namespace,
    ue: Namespace,
    folder: tempfile::TempDir,
    _link: Program,
    _air: Namespace,
}

impl World {
    /// `None` where namespaces are not permitted. The one-way delay of Wi-Fi exceeds that of LTE by
    /// `wifi_ms`.
    fn new(kind: &str, wifi_ms: u32) -> Option<Self> {
        let [server, ran, ue, air] = std::array::from_fn(|_| Namespace::new());
        let (server, ran, ue, air) = (server?, ran?, ue?, air?);
        for ns in [&server, &ran, &ue, &air] {
            ns.sh("sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.all.accept_dad=0
                   sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0");
        }
        air.sh("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
        ran.veth("lte", &ue, "lte");
        ran.veth("wifi", &air, "a0");
        air.veth("b0", &ue, "wifi");
        for (ns, interface) in [(&ran, "wifi"), (&ue, "wifi"), (&air, "a0"), (&air, "b0")] {
            ns.sh(&format!("ethtool -K {interface} tso off gso off gro off tx off >/dev/null"));
        }
        ran.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
                ip addr add 10.45.0.1/24 dev lte; ip addr add fd45::1/64 dev lte nodad
                ip addr add 10.46.0.1/24 dev wifi; ip addr add fd46::1/64 dev wifi nodad
                ip neigh add 10.45.0.9 lladdr 02:00:00:00:00:09 dev lte nud permanent");
        ue.sh("ip addr add 10.45.0.2/24 dev lte; ip addr add fd45::2/64 dev lte nodad
               ip addr add 10.46.0.2/24 dev wifi; ip addr add fd46::2/64 dev wifi nodad
               ip route add default via 10.45.0.1; ip -6 route add default via fd45::1");
        let folder = tempfile::tempdir().unwrap();
        let link = ["link", "--a", "a0", "--b", "b0", "--both", &format!("delay_ms={wifi_ms}")];
        let _link = air.spawn(ANABRANCH, &link, &folder.path().join("link.log"));
        let world = Self { server, ran, ue, folder, _link, _air: air };
        world.configure(kind);
        Some(world)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn configure(&self, kind: &str) {
        let text = format!(
            "[backhaul]\nkind = \"{kind}\"\nname = \"n3\"\nnetns = \"{}\"\n\
             addresses = [\"10.9.0.1/24\", \"fd09::1/64\"]\nroutes = [\"10.45.0.0/24\", \"fd45::/64\"]\n\
             [lte]\nkind = \"{kind}\"\nname = \"ran0\"\nroutes = [\"10.9.0.0/24\", \"fd09::/64\"]\n\
             [api]\nlisten = \"unix:{}\"\n\
             [node]\nsteering = {{ mode = \"fixed_ratio\", lte_percent = 50 }}\n\
             dida = {{ let_through = 2, hold = {{ mode = \"fixed\", ms = 50 }} }}\n\
             [[node.ues]]\nname = \"phone\"\naddresses = [\"10.45.0.2\", \"fd45::2\"]\nwifi = [\"10.46.0.2\", \"fd46::2\"]\n\
             [[node.ues]]\nname = \"ghost\"\naddresses = [\"10.45.0.9\"]\n",
            self.server.path(),
            self.file("lwip.sock").display(),
        );
        std::fs::write(self.file("lwip.toml"), text).unwrap();
    }

    fn start(&self, more: &[&str]) -> Program {
        let config = self.file("lwip.toml").display().to_string();
        let args: Vec<&str> = ["lwip", "--config", &config].iter().chain(more).copied().collect();
        let program = self.ran.spawn(ANABRANCH, &args, &self.file("lwip.log"));
        self.until("the node runs", || {
            self.file("lwip.sock").exists() && program.log().contains("lwip runs")
        });
        program
    }

    /// Installs the UE's nftables rules that translate its Wi-Fi address back.
    fn turn_back(&self) {
        let config = self.file("lwip.toml").display().to_string();
        let rules = format!("{ANABRANCH} lwip --config {config} --ue-rules phone --ue-interface wifi");
        // Twice, because existing rules must be replaced.
        self.ue.sh(&format!("{rules} | nft -f -; {rules} | nft -f -"));
    }

    fn until(&self, what: &str, mut is: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is() {
            assert!(start.elapsed() < Duration::from_secs(15), "not after 15 s: {what}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.file("lwip.log")).unwrap_or_default()
    }

    fn curl(&self, args: &[&str], path: &str) -> String {
        let mut command = Command::new("curl");
        command.args(["-s", "--max-time", "5", "--unix-socket"]).arg(self.file("lwip.sock")).args(args);
        let output = command.arg(format!("http://localhost{path}")).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn node(&self) -> Value {
        serde_json::from_str(&self.curl(&[], "/v1/lwip")).unwrap_or_default()
    }

    fn acks(&self, what: &str) -> u64 {
        let node = self.node();
        node["acks"][what].as_u64().unwrap_or_else(|| panic!("{what}: {node}"))
    }

    fn put(&self, body: &Value) -> Value {
        let body = body.to_string();
        let args = ["-X", "PUT", "-H", "content-type: application/json", "-d", &body];
        serde_json::from_str(&self.curl(&args, "/v1/lwip")).unwrap_or_default()
    }

    /// Output and exit code of `ctl`.
    fn ctl(&self, args: &[&str]) -> (String, i32) {
        let mut command = Command::new(ANABRANCH);
        command.args(["ctl", "--socket"]).arg(self.file("lwip.sock")).args(args).stdin(Stdio::null());
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (String::from_utf8_lossy(&text).into_owned(), output.status.code().unwrap_or(-1))
    }

    fn pictures(&self) -> Vec<String> {
        [&self.server, &self.ran, &self.ue].map(Namespace::picture).to_vec()
    }

    /// Runs a download; returns its rate, bit/s.
    fn download(&self, from: &str, seconds: u32) -> f64 {
        let _server = self.server.spawn("iperf3", &["-s"], &self.file("iperf3.log"));
        self.until("iperf3 listens", || !self.server.sh("ss -Hltn 'sport = :5201'").is_empty());
        let text = self.ue.sh(&format!("timeout 60 iperf3 -J -R -C cubic -c {from} -t {seconds}"));
        let report: Value = serde_json::from_str(&text).unwrap();
        report["end"]["sum_received"]["bits_per_second"].as_f64().unwrap_or_else(|| panic!("{text}"))
    }
}

/// Packets with data over LTE and over Wi-Fi.
fn steered(node: &Value) -> [f64; 2] {
    let of = |at: usize| node["legs"][at]["steered"].as_f64().unwrap_or_else(|| panic!("{node}"));
    [of(0), of(1)]
}

fn a_download_by_both_legs(kind: &str) {
    let Some(world) = World::new(kind, 5) else { return };
    let before = world.pictures();
    let node = world.start(&[]);
    world.turn_back();
    for server in ["10.9.0.1", "fd09::1"] {
        world.ue.sh(&format!("ping -q -i 0.02 -c 5 -W 2 {server}"));
        let [lte, wifi] = steered(&world.node());
        let bps = world.download(server, 1);
        let now = steered(&world.node());
        let (lte, wifi) = (now[0] - lte, now[1] - wifi);
        println!("{server}: {:.1} Mbit/s, {lte} and {wifi} packets", bps / 1e6);
        assert!(bps > 2e6, "{server}: {bps}\n{}", world.log());
        assert!((lte - wifi).abs() <= 8.0 && wifi > 100.0, "{server}: {lte} {wifi}");
    }
    let translated = world.ue.sh("nft list table inet anabranch_lwip");
    assert_eq!(translated.matches("packets 0 ").count(), 0, "both families were turned back: {translated}");
    // Wi-Fi is slower: duplicate ACKs occur, and are held until the missing data has arrived.
    assert!(world.acks("held") > 10 && world.acks("superseded") > 10, "{}", world.node());
    world.ue.sh("nft delete table inet anabranch_lwip");
    node.stop();
    assert_eq!(world.pictures(), before);
    assert!(!world.file("lwip.sock").exists());
    assert!(!world.log().contains("WARN") && !world.log().contains("ERROR"), "{}", world.log());
}

#[test]
fn a_download_is_split_and_nothing_is_left_behind() {
    a_download_by_both_legs("tun");
}

#[test]
fn a_download_is_split_without_tun() {
    a_download_by_both_legs("packet");
}

#[test]
fn steering_and_hold_change_live() {
    let Some(world) = World::new("tun", 5) else { return };
    // Flags take precedence over the file.
    let node = world.start(&["--lte-percent", "20", "--hold-ms", "40"]);
    world.turn_back();
    let now = world.node();
    assert_eq!((&now["steering"]["lte_percent"], &now["dida"]["hold"]["ms"]), (&json!(20.0), &json!(40.0)));
    // All over LTE: in order, so nothing is held.
    let put = world.put(&json!({"steering": {"mode": "fixed_ratio", "lte_percent": 100}}));
    assert_eq!(put["steering"]["lte_percent"], 100.0, "{put}");
    world.download("10.9.0.1", 1);
    assert_eq!(steered(&world.node())[1], 0.0);
    // Split with DIDA off: duplicate ACKs occur and none is held; then with DIDA on they are.
    let (text, code) = world.ctl(&["lwip", "set", "--lte-percent", "50", "--dida", "off"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("dida") && text.contains("off"), "{text}");
    let held = world.acks("held");
    world.download("10.9.0.1", 1);
    assert!(world.acks("duplicates") > 20, "{}", world.node());
    assert_eq!(world.acks("held"), held);
    let put = world.put(&json!({"dida": true, "let_through": 0}));
    let dida = &put["dida"];
    assert_eq!((&dida["hold"]["ms"], &dida["let_through"]), (&json!(40.0), &json!(0)), "as it was: {put}");
    world.download("10.9.0.1", 1);
    assert!(world.acks("held") > held + 10, "{}", world.node());
    // Refused in one sentence without any change.
    let refused = world.put(&json!({"hold": {"mode": "fixed", "ms": -1}, "let_through": 5}));
    assert_eq!(refused["status"], 400, "{refused}");
    assert!(refused["detail"].as_str().unwrap().contains("0 to 10000"), "{refused}");
    assert_eq!(world.node()["dida"]["let_through"], 0);
    let (text, code) = world.ctl(&["lwip", "set", "--lte-percent", "120"]);
    assert_eq!(code, 4, "{text}");
    // All displays.
    for args in [&["lwip"][..], &["lwip", "flows"], &["status"], &["lwip", "--watch", "0.1", "--count", "2"]]
    {
        let (text, code) = world.ctl(args);
        println!("{text}");
        assert_eq!(code, 0, "{text}");
    }
    let flows: Value = serde_json::from_str(&world.curl(&[], "/v1/lwip/flows")).unwrap();
    let flow = &flows["flows"][0];
    assert!(flows["total"].as_u64().unwrap() >= 3 && flow["ue"].as_str().unwrap().contains("10.45.0.2:"));
    let metrics = world.curl(&[], "/metrics");
    assert!(metrics.contains("anabranch_lwip_hold_seconds_bucket{le=\"+Inf\"}"), "{metrics}");
    // After a reload, the values of the file are in force, except those set by flags.
    let text = std::fs::read_to_string(world.file("lwip.toml")).unwrap();
    let text = text.replace("let_through = 2", "let_through = 7") + "[metrics]\nlisten = \"off\"\n";
    std::fs::write(world.file("lwip.toml"), text).unwrap();
    let done: Value = serde_json::from_str(&world.curl(&["-X", "POST"], "/v1/reload")).unwrap();
    assert_eq!(done["changed"], json!(["steering", "dida"]), "{done}");
    let now = world.node();
    assert_eq!((&now["steering"]["lte_percent"], &now["dida"]["let_through"]), (&json!(20.0), &json!(7)));
    let rules: Value = serde_json::from_str(&world.curl(&[], "/v1/rules")).unwrap();
    assert_eq!(rules["status"], 405);
    let events = world.ctl(&["events", "--no-follow"]).0;
    assert!(events.contains("lwip-changed") && events.contains("reloaded"), "{events}");
    node.stop();
}

/// Hand-made segments between addresses that no kernel answers: the UE sends duplicate ACKs, and the node is
/// stopped while it holds them.
#[test]
fn held_acks_are_sent_at_shutdown() {
    let Some(world) = World::new("tun", 5) else { return };
    let node = world.start(&["--hold-ms", "10000"]);
    // The sender's timer would end the hold earlier, so it is disabled here.
    let text = std::fs::read_to_string(world.file("lwip.toml")).unwrap();
    std::fs::write(
        world.file("lwip.toml"),
        text.replace("let_through = 2,", "let_through = 2, respect_rto = false,"),
    )
    .unwrap();
    world.curl(&["-X", "POST"], "/v1/reload");
    let server = raw::Sniffer::open(&world.server, "10.9.0.77:80".parse().unwrap());
    let (from, to) = ("10.9.0.77:80".parse().unwrap(), "10.45.0.9:4000".parse().unwrap());
    for segment in 0..9 {
        raw::send(&world.server, raw::segment(from, to, 1000 + 100 * segment, 1, 100));
    }
    world.until("the data has passed", || steered(&world.node()).iter().sum::<f64>() >= 9.0);
    raw::send(&world.ue, raw::segment(to, from, 1, 1100, 0));
    for _ in 0..6 {
        raw::send(&world.ue, raw::segment(to, from, 1, 1100, 0));
    }
    world.until("four of six duplicates are held", || world.acks("holding") == 4);
    assert_eq!(server.acks(), vec![1100; 3], "one that advances, and two duplicates");
    node.stop();
    assert!(world.log().contains("4 held ACKs sent at shutdown"), "{}", world.log());
    assert_eq!(server.acks(), vec![1100; 4], "and the four that were held");
}
