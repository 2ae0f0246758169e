//! Namespaces, the UE's agent with two slices, the proxy, and servers.
//!
//! ```text
//!   lan                     ue (anabranch ue, anabranch proxy)              net
//!   lan0 10.3.0.2 ───────── lan0 10.3.0.1    sa 10.1.0.2 ────────────────── sa 10.1.0.1   192.0.2.80
//!        fd03::2                 fd03::1       fd01::2   default route        fd01::1     2001:db8::80
//!                                            sb 10.2.0.2 ────────────────── sb 10.2.0.1
//!                                              fd02::2   slice B              fd02::1
//! ```

use super::net::{ANABRANCH, Namespace, Program};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const V4: &str = "192.0.2.80";
pub const V6: &str = "2001:db8::80";

pub struct World {
    pub lan: Namespace,
    pub ue: Namespace,
    pub net: Arc<Namespace>,
    folder: tempfile::TempDir,
}

impl World {
    /// `None` where namespaces are not permitted.
    pub fn new() -> Option<Self> {
        let (lan, ue, net) = (Namespace::new()?, Namespace::new()?, Arc::new(Namespace::new()?));
        for ns in [&lan, &ue, &net] {
            ns.sh("sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.all.accept_dad=0");
        }
        ue.veth("sa", &net, "sa");
        ue.veth("sb", &net, "sb");
        lan.veth("lan0", &ue, "lan0");
        ue.sh("ip addr add 10.1.0.2/24 dev sa; ip addr add fd01::2/64 dev sa nodad
               ip addr add 10.2.0.2/24 dev sb; ip addr add fd02::2/64 dev sb nodad
               ip addr add 10.3.0.1/24 dev lan0; ip addr add fd03::1/64 dev lan0 nodad
               ip route add default via 10.1.0.1; ip -6 route add default via fd01::1
               sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        net.sh("ip addr add 10.1.0.1/24 dev sa; ip addr add fd01::1/64 dev sa nodad
                ip addr add 10.2.0.1/24 dev sb; ip addr add fd02::1/64 dev sb nodad
                ip addr add 192.0.2.80/32 dev lo; ip addr add 2001:db8::80/128 dev lo nodad
                ip route add 10.3.0.0/24 via 10.1.0.2; ip -6 route add fd03::/64 via fd01::2
                sysctl -qw net.ipv4.conf.all.rp_filter=0; ip link set sb address 02:00:00:00:00:b1");
        // The slice has no IPv6 router, so all addresses are on-link, where this one would not be resolved.
        ue.sh("ip -6 neigh add 2001:db8::80 lladdr 02:00:00:00:00:b1 dev sb nud permanent");
        lan.sh("ip addr add 10.3.0.2/24 dev lan0; ip addr add fd03::2/64 dev lan0 nodad
                ip route add default via 10.3.0.1; ip -6 route add default via fd03::1");
        Some(Self { lan, ue, net, folder: tempfile::tempdir().unwrap() })
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the agent of a UE with the slices A (through `sa`) and B (through `sb`, mark 512).
    pub fn start_agent(&self) -> Program {
        self.start_agent_with("")
    }

    /// The same, with `more` added to `[ue]`.
    pub fn start_agent_with(&self, more: &str) -> Program {
        let folder = self.folder.path().display();
        Command::new(ANABRANCH).args(["keygen", "--out"]).arg(self.file("ue.key")).output().unwrap();
        // The key of a UPF that does not exist.
        let key = "vmHhqE8tcZ4WAGqG4kP5IO2rCzYb1eN3mWvPc7yqC2o=";
        let text = format!(
            "[ue]\nname = \"phone\"\nprivate_key_file = \"{folder}/ue.key\"\n{more}[upf]\npublic_key = \"{key}\"\n\
             [[access]]\nname = \"5g\"\nremote = \"10.1.0.1:4500\"\n[api]\nlisten = \"unix:{folder}/ue.sock\"\n\
             [[slice]]\nslice = \"A\"\ninterface = \"sa\"\n\
             [[slice]]\nslice = \"B\"\ninterface = \"sb\"\nmark = 512\ntable = 512\ngateway = \"10.2.0.1\"\n",
        );
        if !self.file("ue.toml").exists() {
            std::fs::write(self.file("ue.toml"), text).unwrap();
        }
        let config = self.file("ue.toml").display().to_string();
        let program = self.ue.spawn(ANABRANCH, &["ue", "--config", &config], &self.file("ue.log"));
        self.until("the UE's agent answers", || self.call("ue", "GET", "/v1/status", None).is_object());
        self.set_slices(json!({}));
        program
    }

    /// Sets the facts about the slices; `b` overrides those of B.
    pub fn set_slices(&self, b: Value) {
        let mut slices = json!({
            "A": {"interface": "sa", "ttl_s": 3600, "rtt_us": 29_800, "uplink_guaranteed_bps": 50_000_000},
            "B": {"interface": "sb", "ttl_s": 3600, "rtt_us": 12_000, "uplink_guaranteed_bps": 20_000_000, "mark": 512,
                  "table": 512},
        });
        for (key, value) in b.as_object().into_iter().flatten() {
            slices["B"][key] = value.clone();
        }
        let told = self.call("ue", "PUT", "/connections/slices", Some(&slices));
        assert!(told.get("B").is_some(), "{told}");
        // Waits until both tables of B and their rules exist.
        self.until("the tables of B are there", || {
            let rules = self.ue.sh("ip rule; ip -6 rule");
            let before = self.picture();
            std::thread::sleep(Duration::from_millis(200));
            rules.matches("fwmark 0x201").count() == 2 && self.picture() == before
        });
    }

    /// Writes proxy.toml: `head`, then `rules`.
    pub fn configure(&self, head: &str, rules: &str) {
        let folder = self.folder.path().display();
        let text = format!(
            "[agent]\nconnect = \"unix:{folder}/ue.sock\"\nrefresh_ms = 100\nttl_s = 10\ntimeout_ms = 10000\n\
             [api]\nlisten = \"unix:{folder}/proxy.sock\"\n{head}\n{rules}"
        );
        std::fs::write(self.file("proxy.toml"), text).unwrap();
    }

    pub fn spawn_proxy(&self) -> Program {
        self.spawn_proxy_with(&[])
    }

    /// With environment variables, in the form of env(1).
    pub fn spawn_proxy_with(&self, environment: &[String]) -> Program {
        let config = self.file("proxy.toml").display().to_string();
        let mut args: Vec<&str> = environment.iter().map(String::as_str).collect();
        args.extend([ANABRANCH, "--log", "anabranch=debug", "proxy", "--config", &config]);
        self.ue.spawn("env", &args, &self.file("proxy.log"))
    }

    pub fn start_proxy(&self) -> Program {
        let before = self.log().matches("proxy runs").count();
        let program = self.spawn_proxy();
        self.until("the proxy runs", || self.log().matches("proxy runs").count() > before);
        program
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.file("proxy.log")).unwrap_or_default()
    }

    #[track_caller]
    pub fn until(&self, what: &str, mut is: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is() {
            let log = || std::fs::read_to_string(self.file("ue.log")).unwrap_or_default();
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "not after 30 s: {what}\n{}\n{}",
                self.log(),
                log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The answer of an agent; null if there is none.
    pub fn call(&self, part: &str, method: &str, path: &str, body: Option<&Value>) -> Value {
        let mut command = Command::new("curl");
        command.args(["-s", "--max-time", "5", "-X", method, "--unix-socket"]);
        command.arg(self.file(&format!("{part}.sock")));
        if let Some(body) = body {
            command.args(["-H", "content-type: application/json", "-d", &body.to_string()]);
        }
        let output = command.arg(format!("http://localhost{path}")).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    pub fn proxy(&self) -> Value {
        self.call("proxy", "GET", "/v1/proxy", None)
    }

    /// Output and exit code of `ctl` with the proxy.
    pub fn ctl(&self, args: &[&str]) -> (String, i32) {
        let mut command = Command::new(ANABRANCH);
        command.args(["ctl", "--socket"]).arg(self.file("proxy.sock")).args(args).stdin(Stdio::null());
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (String::from_utf8_lossy(&text).into_owned(), output.status.code().unwrap_or(-1))
    }

    /// Bytes sent through an interface of the UE.
    pub fn left_by(&self, interface: &str) -> u64 {
        let text = self.ue.sh(&format!("ip -s -j link show dev {interface}"));
        let all: Value = serde_json::from_str(&text).unwrap();
        all[0]["stats64"]["tx"]["bytes"].as_u64().unwrap()
    }

    /// A TCP server that echoes its input, and ends when the client does.
    pub fn echo(&self, at: &str) -> SocketAddr {
        let at: SocketAddr = at.parse().unwrap();
        let listener = self.net.run(move || TcpListener::bind(at).unwrap());
        let address = listener.local_addr().unwrap();
        echo_at(listener);
        address
    }

    /// A UDP server that answers with the sender's address and the payload.
    pub fn udp_echo(&self, at: &str) -> SocketAddr {
        let at: SocketAddr = at.parse().unwrap();
        let socket = self.net.run(move || UdpSocket::bind(at).unwrap());
        let address = socket.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..len], from);
            }
        });
        address
    }

    /// The complete state of the UE's namespace that an anabranch program may change.
    pub fn picture(&self) -> String {
        self.ue.picture()
    }
}

/// Echoes the input of every client.
pub fn echo_at(listener: TcpListener) {
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut copy = stream.try_clone().unwrap();
                let _ = std::io::copy(&mut stream, &mut copy);
                let _ = copy.shutdown(Shutdown::Write);
            });
        }
    });
}

/// Opens a connection from a namespace.
pub fn connect(from: &Namespace, to: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = from.run(move || TcpStream::connect_timeout(&to, Duration::from_secs(10)))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    Ok(stream)
}

/// Sends `bytes` bytes and reads the echo until the end.
#[track_caller]
pub fn exchange(mut stream: TcpStream, len: usize) {
    let sent: Vec<u8> = (0..len).map(|i| (i * 31 + i / 251) as u8).collect();
    let mut write = stream.try_clone().unwrap();
    let copy = sent.clone();
    let writer = std::thread::spawn(move || {
        write.write_all(&copy).unwrap();
        // Half-close: the echo still arrives.
        write.shutdown(Shutdown::Write).unwrap();
    });
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    writer.join().unwrap();
    assert!(got == sent, "{} bytes came back of {len}", got.len());
}
