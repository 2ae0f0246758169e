//! Paths between a sender and a receiver, traffic over them, and the required kernel programs.

use crate::net::{ANABRANCH, Namespace, Program};
use crate::registration;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Controllers are registered for the whole machine: one test runs at a time, including those of crate
/// `kern`. `None` where a test cannot run; the reason is printed.
pub fn alone() -> Option<(MutexGuard<'static, ()>, File)> {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if nix::unistd::geteuid().is_root() {
        return Some((guard, registration::alone()));
    }
    skip("root is needed")
}

/// Prints the reason past the test harness; in CI it is a failure.
pub fn skip<T>(why: &str) -> Option<T> {
    let root = nix::unistd::geteuid().is_root();
    assert!(!root || std::env::var_os("CI").is_none(), "CI must be able to: {why}");
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
    None
}

/// A cgroup for the sockets of iperf3, so that no others are affected.
pub struct Group(PathBuf);

impl Group {
    pub fn new() -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        let root = mounts.lines().find_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            (words[2] == "cgroup2").then(|| PathBuf::from(words[1]))
        });
        let Some(root) = root else { return skip("no cgroup v2 is mounted") };
        let path = root.join(format!("anabranch-int-{}", std::process::id()));
        match std::fs::create_dir(&path) {
            Ok(()) => Some(Self(path)),
            Err(error) => skip(&format!("{}: {error}", path.display())),
        }
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Shell commands that move the shell into the group.
    fn enter(&self) -> String {
        format!("echo $$ > {}/cgroup.procs; ", self.0.display())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Killed processes leave it with a short delay.
        let start = Instant::now();
        while std::fs::remove_dir(&self.0).is_err() && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A running `anabranch cc load`.
pub struct Loaded {
    child: Mutex<Child>,
    names: Vec<String>,
}

impl Loaded {
    pub fn new(names: &[&str], group: &Group, more: &[&str]) -> Option<Self> {
        let mut child = Command::new(ANABRANCH)
            .args(["cc", "load"])
            .args(names)
            .arg("--cgroup")
            .arg(&group.0)
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        while line.is_empty() || line.starts_with("replaced") {
            line.clear();
            if out.read_line(&mut line).unwrap() == 0 {
                break;
            }
        }
        if line.starts_with("registered: ") {
            let names = names.iter().map(|n| (*n).to_owned()).collect();
            return Some(Self { child: Mutex::new(child), names });
        }
        let mut why = String::new();
        let _ = std::io::Read::read_to_string(child.stderr.as_mut().unwrap(), &mut why);
        let _ = child.wait();
        assert!(why.contains("cannot run here"), "{why}");
        skip(why.trim())
    }

    /// Waits until it has ended without being killed; true if it succeeded.
    pub fn ended(&self) -> bool {
        self.child.lock().unwrap().wait().unwrap().success()
    }

    /// Kills it without a chance to clean up.
    pub fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.kill();
        self.names.iter().for_each(|name| wait_gone(name));
    }
}

/// The kernel removes the controller of a killed process with a short delay, and only after the last
/// connection that uses it.
pub fn wait_gone(name: &str) {
    let start = Instant::now();
    loop {
        let all = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
        if !all.split_whitespace().any(|n| n == name) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{name} is still registered");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Result of an iperf3 run.
#[derive(Debug)]
pub struct Run {
    pub mbps: f64,
}

/// Both ends of a path, and programs on them.
struct Ends {
    sender: Namespace,
    receiver: Namespace,
    folder: tempfile::TempDir,
    enter: String,
}

impl Ends {
    fn log(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn source(&self, every: u32, more: &[&str]) -> Program {
        let every = every.to_string();
        // The kernel of a test machine may have small limits. Connections here are short, and most cross
        // links.
        let args =
            [&["int", "source", "--interface", "s0", "--beyond-headroom", "--every", &every], more].concat();
        let log = self.log("source.log");
        let _ = std::fs::remove_file(&log);
        let source = self.sender.spawn(ANABRANCH, &args, &log);
        until("the source is attached", || source.log().contains("s0"));
        source
    }

    /// Starts `anabranch int monitor` at the receiver and waits until it listens.
    fn monitor(&self, more: &[&str]) -> Program {
        let args: Vec<&str> = ["int", "monitor"].iter().chain(more).copied().collect();
        let log = self.log("monitor.log");
        let _ = std::fs::remove_file(&log);
        let monitor = self.receiver.spawn(ANABRANCH, &args, &log);
        until("the monitor reports", || !monitor.log().is_empty());
        monitor
    }

    fn iperf_while(&self, options: &str, time: Duration, during: impl FnOnce()) -> Run {
        let log = self.log("server.log");
        let _ = std::fs::remove_file(&log);
        let serve = format!("{}exec iperf3 -s -1 --forceflush", self.enter);
        let _server = self.receiver.spawn("sh", &["-ec", &serve], &log);
        until("iperf3 listens", || {
            std::fs::read_to_string(&log).is_ok_and(|text| text.contains("listening"))
        });
        let command = format!(
            "{}exec iperf3 -6 -c fd00::2 {options} -t {} -J --get-server-output",
            self.enter,
            time.as_secs()
        );
        let result = self.log("client.json");
        let _ = std::fs::remove_file(&result);
        let mut client = self.sender.spawn("sh", &["-ec", &command], &result);
        during();
        client.wait(time + Duration::from_secs(30));
        let text = client.log();
        let value: Value =
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("iperf3 {options}: {e}\n{text}"));
        let bps = value["end"]["sum_received"]["bits_per_second"].as_f64();
        Run { mbps: bps.unwrap_or_else(|| panic!("iperf3 {options}: {value}")) / 1e6 }
    }
}

/// Waits for a condition that is met soon on any machine.
#[track_caller]
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(20), "not after 20 s: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Two emulated links, the second of which is the bottleneck.
pub struct Linked {
    ends: Ends,
    _links: [Program; 2],
    _air: Namespace,
}

impl Linked {
    /// `down` and `up`: keys of the wireless hop, in addition to the fixed ones.
    pub fn new(group: &Group, down: &str, up: &str) -> Option<Self> {
        let [sender, air, receiver] = std::array::from_fn(|_| Namespace::new());
        let (sender, air, receiver) = (sender?, air?, receiver?);
        for ns in [&sender, &receiver] {
            ns.sh("sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.all.accept_dad=0
                   sysctl -qw net.ipv4.tcp_no_metrics_save=1");
        }
        air.sh("sysctl -qw net.ipv6.conf.default.disable_ipv6=1
                ip link add m0 type veth peer name m1; ip link set m0 up; ip link set m1 up");
        sender.veth("s0", &air, "a0");
        air.veth("b1", &receiver, "r0");
        for (ns, interface) in
            [(&sender, "s0"), (&air, "a0"), (&air, "m0"), (&air, "m1"), (&air, "b1"), (&receiver, "r0")]
        {
            ns.sh(&format!("ethtool -K {interface} tso off gso off gro off tx off >/dev/null"));
        }
        // Leaves room for the trace. Each end has static neighbour entries, so that loss does not affect
        // neighbour discovery. /sys is the host's here.
        let mac = |ns: &Namespace, name: &str| {
            let link = ns.sh(&format!("ip -o link show {name}"));
            link.split_whitespace().skip_while(|w| *w != "link/ether").nth(1).unwrap().to_owned()
        };
        let (s, r) = (mac(&sender, "s0"), mac(&receiver, "r0"));
        sender.sh(&format!(
            "ip addr add fd00::1/64 dev s0 nodad; ip -6 route replace fd00::2/128 dev s0 mtu 1340
             ip neigh replace fd00::2 lladdr {r} dev s0 nud permanent"
        ));
        receiver.sh(&format!(
            "ip addr add fd00::2/64 dev r0 nodad; ip neigh replace fd00::1 lladdr {s} dev r0 nud permanent"
        ));
        let folder = tempfile::tempdir().unwrap();
        let keys = |both: &str, more: &str| {
            [both, more].iter().filter(|k| !k.is_empty()).copied().collect::<Vec<_>>().join(", ")
        };
        let first = air.spawn(
            ANABRANCH,
            &["link", "--a", "a0", "--b", "m0", "--both", "ioam_node=1"],
            &folder.path().join("ap1.log"),
        );
        let wireless = "rate_bps=20_000_000, delay_ms=10, queue_packets=100";
        let (a_to_b, b_to_a) = (keys("ioam_node=2", down), keys("", up));
        let second = air.spawn(
            ANABRANCH,
            &["link", "--a", "m1", "--b", "b1", "--both", wireless, "--a-to-b", &a_to_b, "--b-to-a", &b_to_a],
            &folder.path().join("ap2.log"),
        );
        until("packets pass", || sender.try_sh("ping -6 -c 1 -W 1 fd00::2 >/dev/null").1);
        let ends = Ends { sender, receiver, folder, enter: group.enter() };
        Some(Self { ends, _links: [first, second], _air: air })
    }

    /// Starts `anabranch int source` at the sender.
    pub fn source(&self, every: u32) -> Program {
        self.ends.source(every, &[])
    }

    /// Starts `anabranch int monitor` at the receiver.
    pub fn monitor(&self, args: &[&str]) -> Program {
        self.ends.monitor(args)
    }

    /// Starts another program at the receiver.
    pub fn at_receiver(&self, program: &str, args: &[&str]) -> Program {
        let log = self.ends.log(&format!("{program}-{}.log", args.concat().replace('/', "_")));
        let _ = std::fs::remove_file(&log);
        self.ends.receiver.spawn(program, args, &log)
    }

    /// Waits until a program at the receiver listens at this address.
    pub fn until_listens(&self, at: SocketAddr) {
        until("somebody listens", || self.ends.receiver.run(move || TcpStream::connect(at).is_ok()));
    }

    /// The path of a file of the test.
    pub fn file(&self, name: &str) -> String {
        self.ends.log(name).display().to_string()
    }

    /// The same, with additional arguments.
    pub fn source_with(&self, every: u32, more: &[&str]) -> Program {
        self.ends.source(every, more)
    }

    /// Runs a TCP flow to the receiver.
    pub fn iperf(&self, cc: &str, time: Duration) -> Run {
        self.ends.iperf_while(&format!("-C {cc}"), time, || ())
    }

    /// Runs a TCP flow to the receiver, and `during` at the same time.
    pub fn iperf_while(&self, cc: &str, time: Duration, during: impl FnOnce()) -> Run {
        self.ends.iperf_while(&format!("-C {cc}"), time, during)
    }

    /// The sender's sockets that use one of the controllers at present.
    #[allow(clippy::unused_self, reason = "there is something to show only while a path is there")]
    pub fn sockets(&self, controller: &str) -> Vec<Value> {
        let output = Command::new(ANABRANCH).args(["cc", "show", "--json"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let all: Value = serde_json::from_slice(&output.stdout).unwrap();
        let of =
            |s: &&Value| s["controller"] == controller && s["remote"].as_str().unwrap().contains("[fd00::2]");
        all["sockets"].as_array().unwrap().iter().filter(of).cloned().collect()
    }

    /// Counters of a loaded program, by its name in `cc show`.
    #[allow(clippy::unused_self, reason = "there is something to show only while a path is there")]
    pub fn shown(&self, program: &str) -> Value {
        let output = Command::new(ANABRANCH).args(["cc", "show", "--json"]).output().unwrap();
        let all: Value = serde_json::from_slice(&output.stdout).unwrap();
        let found = all["programs"].as_array().unwrap().iter().find(|p| p["program"] == program);
        found.unwrap_or_else(|| panic!("no {program} in {all}"))["counts"].clone()
    }
}

/// Three unmodified Linux routers.
pub struct Routed {
    ends: Ends,
    routers: [Namespace; 3],
}

/// The observations of tshark at the receiver.
#[derive(Debug)]
pub struct Seen {
    /// Packets with a trace.
    pub traces: usize,
    /// Number of nodes in the last of them.
    pub nodes: usize,
    /// Packets marked as having a trace.
    pub marks: usize,
    /// ACKs with a report.
    pub reports: usize,
    /// Errors that it found in packets with a trace or report.
    pub complaints: Vec<String>,
}

impl Routed {
    pub fn new(group: &Group) -> Option<Self> {
        let [sender, a, b, c, receiver] = std::array::from_fn(|_| Namespace::new());
        let (sender, routers, receiver) = (sender?, [a?, b?, c?], receiver?);
        let chain = [&sender, &routers[0], &routers[1], &routers[2], &receiver];
        for (i, ns) in chain.iter().enumerate() {
            ns.sh("sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.all.accept_dad=0
                   sysctl -qw net.ipv6.conf.all.forwarding=1");
            if (1..=3).contains(&i) {
                ns.sh(&format!("ip ioam namespace add 123; sysctl -qw net.ipv6.ioam6_id={i}"));
            }
        }
        // fd01:N:: is the link between hops N and N+1; the ends additionally have fd00::1 and fd00::2.
        for (i, pair) in chain.windows(2).enumerate() {
            let (right, left) = (if i == 0 { "s0" } else { "right" }, if i == 3 { "r0" } else { "left" });
            pair[0].veth(right, pair[1], left);
            pair[0].sh(&format!("ip addr add fd01:{i}::1/64 dev {right} nodad"));
            pair[1].sh(&format!("ip addr add fd01:{i}::2/64 dev {left} nodad"));
            if i < 3 {
                pair[1].sh(&format!("sysctl -qw net.ipv6.conf.{left}.ioam6_enabled=1"));
            }
        }
        sender.sh("ip addr add fd00::1/128 dev lo nodad
                   ip -6 route add fd00::2/128 via fd01:0::2 src fd00::1 mtu 1340");
        receiver.sh(
            "ip addr add fd00::2/128 dev lo nodad; ip -6 route add fd00::1/128 via fd01:3::1 src fd00::2",
        );
        for (i, router) in routers.iter().enumerate() {
            router.sh(&format!(
                "ip -6 route add fd00::2/128 via fd01:{}::2; ip -6 route add fd00::1/128 via fd01:{i}::1",
                i + 1
            ));
        }
        until("packets pass", || sender.try_sh("ping -6 -c 1 -W 1 fd00::2 >/dev/null").1);
        let folder = tempfile::tempdir().unwrap();
        let ends = Ends { sender, receiver, folder, enter: group.enter() };
        Some(Self { ends, routers })
    }

    /// Starts `anabranch int source` at the sender.
    pub fn source(&self, every: u32) -> Program {
        self.ends.source(every, &[])
    }

    /// Starts `anabranch int monitor` at the receiver.
    pub fn monitor(&self, args: &[&str]) -> Program {
        self.ends.monitor(args)
    }

    /// Runs a TCP flow to the receiver, and `during` at the same time.
    pub fn iperf_while(&self, cc: &str, time: Duration, during: impl FnOnce()) -> Run {
        self.ends.iperf_while(&format!("-C {cc}"), time, during)
    }

    /// Number of loss recoveries of the sender's TCP during one second of a flow that fills no queue.
    pub fn recoveries(&self) -> u64 {
        let count = || -> u64 {
            let shown = self.ends.sender.sh("cat /proc/thread-self/net/netstat");
            let mut lines = shown.lines().filter(|line| line.starts_with("TcpExt:"));
            let [names, values] = std::array::from_fn(|_| lines.next().unwrap().split(' ').skip(1));
            let found = names.zip(values).find(|(name, _)| *name == "TCPSackRecovery");
            found.unwrap_or_else(|| panic!("{shown}")).1.parse().unwrap()
        };
        let before = count();
        self.ends.iperf_while("-C cubic -b 100M", Duration::from_secs(1), || ());
        count() - before
    }

    /// Sets the MTU of the last link, and the MTU of the sender's route.
    pub fn narrow(&self, mtu: u32, route: u32) {
        self.routers[2].sh(&format!("ip link set right mtu {mtu}"));
        self.ends.receiver.sh(&format!("ip link set r0 mtu {mtu}"));
        // Clears what it has learned about the path.
        self.ends.sender.sh(&format!(
            "ip -6 route flush cache; ip -6 route replace fd00::2/128 via fd01:0::2 src fd00::1 mtu {route}"
        ));
        until("packets pass", || self.ends.sender.try_sh("ping -6 -c 1 -W 1 fd00::2 >/dev/null").1);
    }

    /// Captures one second of TCP at the receiver, and dissects the packets with a trace or with options
    /// beyond time stamps.
    pub fn capture(&self, cc: &str) -> Option<Seen> {
        if Command::new("tshark").arg("--version").output().is_err() {
            return skip("tshark is not installed");
        }
        let file = self.ends.log("seen.pcap");
        // Packets with a hop-by-hop header, or a TCP header of more than 32 bytes. The number of other
        // packets depends on offload.
        let filter = "ip6 and (ip6[6] = 0 or (ip6[6] = 6 and ip6[52] >= 0x90))";
        let args = ["-q", "-i", "r0", "-f", filter, "-c", "60", "-s", "400", "-w"];
        let args: Vec<&str> = args.into_iter().chain([file.to_str().unwrap()]).collect();
        let log = self.ends.log("tshark.log");
        let mut capture = self.ends.receiver.spawn("tshark", &args, &log);
        until("tshark captures", || capture.log().contains("Capturing on"));
        self.ends.iperf_while(&format!("-C {cc}"), Duration::from_secs(1), || ());
        capture.wait(Duration::from_secs(20));
        let fields = |filter: &str, field: &str| read(&file, filter, field);
        let traces = fields("ipv6.opt.type == 0x31", "ipv6.opt.ioam.trace.node.hlim");
        let with = "ipv6.opt.type == 0x31 || tcp.option_kind == 0x72 || tcp.option_kind == 0x73";
        let mut complaints =
            fields(&format!("({with}) && _ws.expert.severity >= 0x600000"), "_ws.expert.message");
        complaints.extend(fields(&format!("({with}) && _ws.malformed"), "frame.number"));
        // The packets are truncated on purpose.
        complaints.retain(|text| !text.contains("segment") && !text.contains("ACK"));
        complaints.dedup();
        Some(Seen {
            traces: traces.len(),
            nodes: traces.last().map_or(0, |limits| limits.split(',').filter(|l| !l.is_empty()).count()),
            marks: fields("ipv6.opt.type == 0x31 && tcp.option_kind == 0x73", "frame.number").len(),
            reports: fields("tcp.option_kind == 0x72", "frame.number").len(),
            complaints,
        })
    }
}

fn read(file: &Path, filter: &str, field: &str) -> Vec<String> {
    let output = Command::new("tshark")
        .arg("-r")
        .arg(file)
        // TCP's reactions to losses and windows do not matter here.
        .args(["-o", "tcp.analyze_sequence_numbers:FALSE"])
        .args(["-Y", filter, "-T", "fields", "-e", field])
        .output()
        .unwrap();
    assert!(output.status.success(), "{filter}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}
