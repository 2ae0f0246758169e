//! Programs that use `anabranch-taps` next to a real `anabranch ue`: their packets use the slice that the
//! policy selected.
//!
//! ```text
//!              ue                                net
//!   slice A  wwan0 10.7.0.2 ──────────── 10.7.0.1 ┐
//!   slice B  wwan1 10.8.0.2 ──────────── 10.8.0.1 ├─ 192.0.2.7 the peer
//!   default  eth0  10.9.0.2 ──────────── 10.9.0.1 ┘
//! ```

// These tests run in real time.
#![allow(clippy::disallowed_methods)]

#[path = "../run/net.rs"]
#[allow(dead_code, reason = "shared with the tests of the programs")]
mod net;

use anabranch_taps::{
    Agent, CapacityProfile, Connection, Error, LocalEndpoint, Multipath, Preconnection, Preference,
    Properties, Protocol, Rate, RemoteEndpoint,
};
use net::{ANABRANCH, Namespace, Program};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const PEER: &str = "192.0.2.7:5000";
/// Bytes sent over each connection: far more than other traffic.
const BYTES: usize = 1 << 20;

struct World {
    ue: Namespace,
    net: Namespace,
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> Option<Self> {
        let (ue, net) = (Namespace::new()?, Namespace::new()?);
        for (i, name) in [(7, "wwan0"), (8, "wwan1"), (9, "eth0")] {
            ue.veth(name, &net, name);
            ue.sh(&format!("ip addr add 10.{i}.0.2/24 dev {name}"));
            net.sh(&format!("ip addr add 10.{i}.0.1/24 dev {name}"));
        }
        net.sh("ip addr add 192.0.2.7/32 dev lo");
        ue.sh("ip route add default via 10.9.0.1");
        Some(Self { ue, net, folder: tempfile::tempdir().unwrap() })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the agent with both slices bound and set.
    fn start_ue(&self) -> Program {
        let folder = self.folder.path().display();
        if !self.file("ue.toml").exists() {
            Command::new(ANABRANCH).args(["keygen", "--out"]).arg(self.file("ue.key")).output().unwrap();
            let config = format!(
                "[ue]\nname = \"phone\"\nprivate_key_file = \"{folder}/ue.key\"\n[upf]\npublic_key = \"vmHhqE8tcZ4WAGqG4kP5IO2rCzYb1eN3mWvPc7yqC2o=\"\n\
                 [[access]]\nname = \"5g\"\nremote = \"192.0.2.1:4500\"\n[api]\nlisten = \"unix:{folder}/ue.sock\"\n\
                 [[slice]]\nslice = \"A\"\ninterface = \"wwan0\"\nmark = 512\ntable = 512\ngateway = \"10.7.0.1\"\n\
                 [[slice]]\nslice = \"B\"\ninterface = \"wwan1\"\nmark = 600\ntable = 600\ngateway = \"10.8.0.1\"\n"
            );
            std::fs::write(self.file("ue.toml"), config).unwrap();
        }
        let config = self.file("ue.toml");
        let program =
            self.ue.spawn(ANABRANCH, &["ue", "--config", config.to_str().unwrap()], &self.file("ue.log"));
        let slice = |interface: &str, mark: u32, rtt_us: u32| {
            json!({"interface": interface, "mark": mark, "table": mark, "ttl_s": 600, "rtt_us": rtt_us,
                   "uplink_guaranteed_bps": 50_000_000, "downlink_guaranteed_bps": 50_000_000})
        };
        let told = json!({"A": slice("wwan0", 512, 29_800), "B": slice("wwan1", 600, 12_000)});
        until("the agent is told of its slices", || self.put("/connections/slices", &told)["B"].is_object());
        until("the slices have their rules", || {
            let rules = self.ue.sh("ip rule");
            rules.contains("lookup 512") && rules.contains("lookup 600")
        });
        program
    }

    fn put(&self, path: &str, body: &Value) -> Value {
        let output = Command::new("curl")
            .args(["-s", "--max-time", "5", "-X", "PUT", "-H", "content-type: application/json", "-d"])
            .arg(body.to_string())
            .arg("--unix-socket")
            .arg(self.file("ue.sock"))
            .arg(format!("http://agent{path}"))
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// Starts the peer: it receives over TCP and UDP, and confirms when it has received everything.
    fn serve(&self) {
        let ready = self.net.run(|| {
            let (tell, ready) = std::sync::mpsc::channel();
            // A thread in this namespace, until the end of the test.
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let listen = async |properties| {
                        let local = LocalEndpoint::from(PEER.parse::<SocketAddr>().unwrap());
                        Preconnection::new(properties).agent(Agent::None).local(local).listen().await.unwrap()
                    };
                    let (streams, datagrams) =
                        (listen(Properties::default()).await, listen(datagrams()).await);
                    tell.send(()).unwrap();
                    loop {
                        let next = tokio::select! { c = streams.next() => c, c = datagrams.next() => c };
                        tokio::spawn(sink(next.unwrap()));
                    }
                });
            });
            ready
        });
        ready.recv_timeout(Duration::from_secs(10)).unwrap();
    }

    /// Bytes sent by each interface of the UE.
    fn sent(&self) -> BTreeMap<String, u64> {
        let text = self.ue.sh("cat /proc/net/dev");
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        lines
            .map(|(name, counts)| {
                let sent = counts.split_whitespace().nth(8).and_then(|n| n.parse().ok()).unwrap();
                (name.trim().to_owned(), sent)
            })
            .collect()
    }

    /// Opens a connection in the UE and sends over it; returns its protocol, the slices of its paths, whether
    /// an agent selected them, and the interfaces that sent its bytes.
    fn send(&self, properties: Properties) -> Result<Sent, Error> {
        let before = self.sent();
        let socket = self.file("ue.sock");
        let info = self.ue.run(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let remote = RemoteEndpoint::from(PEER.parse::<SocketAddr>().unwrap());
                let pre = Preconnection::new(properties).agent(Agent::Socket(socket)).remote(remote);
                let connection = pre.initiate().await?;
                send_all(&connection).await;
                let info = connection.info().unwrap();
                let pvds = info.candidate.paths.iter().map(|p| p.pvd.clone().unwrap_or_default()).collect();
                Ok::<_, Error>((connection.protocol(), pvds, info.by_agent))
            })
        });
        let (protocol, pvds, by_agent) = info?;
        let by = self
            .sent()
            .into_iter()
            .filter(|(name, sent)| sent - before.get(name).unwrap_or(&0) > BYTES as u64 / 2);
        Ok(Sent { protocol, pvds, by_agent, by: by.map(|(name, _)| name).collect() })
    }

    /// Opens a connection that needs more than one slice provides; returns its protocol and its number of
    /// paths.
    fn aggregate(&self) -> (Protocol, u8) {
        let socket = self.file("ue.sock");
        self.ue.run(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let remote = RemoteEndpoint::from(PEER.parse::<SocketAddr>().unwrap());
                let much = Properties { min_send_rate: Rate::bps(80_000_000), ..Properties::default() };
                let pre = Preconnection::new(much).agent(Agent::Socket(socket)).remote(remote);
                let connection = pre.initiate().await.unwrap();
                // Additional paths are opened after the peer has acknowledged data (RFC 8684 §3.2).
                connection.send(vec![1; 1000]).await.unwrap();
                let end = Instant::now() + Duration::from_secs(5);
                while connection.paths() < 2 && Instant::now() < end {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                let paths = connection.paths();
                send_all(&connection).await;
                (connection.protocol(), paths)
            })
        })
    }

    /// Multipath TCP endpoints in the UE.
    fn endpoints(&self) -> Vec<String> {
        let text = self.ue.sh("ip mptcp endpoint show");
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }
}

#[derive(Debug, PartialEq)]
struct Sent {
    protocol: Protocol,
    pvds: Vec<String>,
    by_agent: bool,
    by: Vec<String>,
}

fn sent(protocol: Protocol, pvd: &str, by_agent: bool, interface: &str) -> Sent {
    Sent { protocol, pvds: vec![pvd.into()], by_agent, by: vec![interface.into()] }
}

/// Receives everything, and confirms the end of a stream or every datagram.
async fn sink(connection: Connection) {
    while let Ok(Some(message)) = connection.receive().await {
        if message.end_of_message {
            connection.send("ok").await.unwrap();
        }
    }
}

async fn send_all(connection: &Connection) {
    let work = async {
        if connection.protocol() == Protocol::Udp {
            for _ in 0..BYTES / 1024 {
                connection.send(vec![1; 1024]).await.unwrap();
                assert_eq!(connection.receive().await.unwrap().unwrap().data, "ok");
            }
        } else {
            let last = anabranch_taps::MessageContext::new().last();
            connection.send_with(vec![1; BYTES], &last).await.unwrap();
            assert_eq!(connection.receive().await.unwrap().unwrap().data, "ok");
        }
    };
    tokio::time::timeout(Duration::from_secs(20), work).await.expect("it arrives");
}

fn datagrams() -> Properties {
    Properties {
        preserve_msg_boundaries: Preference::Require,
        reliability: Preference::NoPreference,
        preserve_order: Preference::NoPreference,
        congestion_control: Preference::NoPreference,
        ..Properties::default()
    }
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn packets_use_the_selected_slice() {
    let Some(world) = World::new() else { return };
    world.serve();
    let ue = world.start_ue();
    let quick =
        |p: Properties| Properties { conn_capacity_profile: CapacityProfile::LowLatencyInteractive, ..p };
    let of = |pvd: &str, level| Properties { pvd: [(pvd.to_owned(), level)].into(), ..Properties::default() };

    assert_eq!(world.send(quick(Properties::default())).unwrap(), sent(Protocol::Tcp, "B", true, "wwan1"));
    assert_eq!(world.send(quick(datagrams())).unwrap(), sent(Protocol::Udp, "B", true, "wwan1"));
    let liked = world.send(quick(of("A", Preference::Prefer))).unwrap();
    assert_eq!(liked, sent(Protocol::Tcp, "A", true, "wwan0"), "a wish weighs more than the profile");

    // Prohibited paths are not used, not even by additional subflows.
    world.ue.sh("ip mptcp limits set subflow 8 && ip mptcp endpoint add 10.7.0.2 dev wwan0 subflow && \
         ip mptcp endpoint add 10.8.0.2 dev wwan1 subflow");
    let several = Properties { multipath: Some(Multipath::Active), ..of("A", Preference::Prohibit) };
    let strict = world.send(quick(several)).unwrap();
    assert_eq!(strict, sent(Protocol::Tcp, "B", true, "wwan1"));

    let refused = world.send(of("C", Preference::Require)).unwrap_err();
    assert!(matches!(&refused, Error::Refused { property, .. } if property == "pvd"), "{refused}");

    // Without the agent, connections follow the routes of the host.
    ue.stop();
    let alone = world.send(quick(Properties::default())).unwrap();
    assert_eq!(alone, sent(Protocol::Tcp, "", false, "eth0"));
    let refused = world.send(of("B", Preference::Require)).unwrap_err();
    assert!(matches!(&refused, Error::Refused { property, .. } if property == "pvd"), "{refused}");
}

/// If one slice is not sufficient, the kernel opens subflows from the addresses of the others by itself.
#[test]
fn endpoints_of_a_plan_exist_while_the_agent_runs() {
    let Some(world) = World::new() else { return };
    if !world.ue.try_sh("ip mptcp endpoint show").1 {
        assert!(std::env::var_os("CI").is_none(), "CI must have Multipath TCP");
        return;
    }
    world.serve();
    // An endpoint of another program, with an address that no plan uses.
    world.ue.sh("ip mptcp endpoint add 10.9.0.2 dev eth0 backup id 7");
    let others = world.endpoints();
    let mut ue = world.start_ue();
    // One slice is sufficient: no endpoint.
    world.send(Properties::default()).unwrap();
    assert_eq!(world.endpoints(), others);
    for killed in [true, false] {
        assert_eq!(world.aggregate(), (Protocol::Mptcp, 2), "{}", ue.log());
        let ours = world.endpoints();
        let second = ours.iter().find(|line| line.contains("id 171")).unwrap_or_else(|| panic!("{ours:?}"));
        assert!(second.contains("subflow") && second.contains("dev wwan"), "{second}");
        assert_eq!(ours.len(), others.len() + 1, "{ours:?}");
        if killed {
            ue.signal(nix::sys::signal::Signal::SIGKILL);
            drop(ue);
            assert_eq!(world.endpoints(), ours, "nobody could remove them");
            ue = world.start_ue();
            assert_eq!(world.endpoints(), others, "{}", ue.log());
            assert!(ue.log().contains("that an earlier run left"), "{}", ue.log());
        }
    }
    // The interface disappears, and with it the endpoint; after its return, the next plan restores the
    // endpoint.
    let second = world.endpoints().iter().find(|e| e.contains("id 171")).unwrap().contains("wwan0");
    let second = if second { "wwan0" } else { "wwan1" };
    world.ue.sh(&format!("ip link set {second} down"));
    until("the endpoint is gone", || world.endpoints() == others);
    world.ue.sh(&format!("ip link set {second} up"));
    until("the slice is back", || world.aggregate() == (Protocol::Mptcp, 2));
    assert_eq!(world.endpoints().len(), others.len() + 1);
    ue.stop();
    assert_eq!(world.endpoints(), others);
}
