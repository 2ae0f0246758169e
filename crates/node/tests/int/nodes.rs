//! UE, UPF and cell as IOAM nodes, next to real traffic with traces.

use crate::monitor::newest;
use crate::net::{ANABRANCH, Namespace, Options, Program, World};
use crate::paths::{alone, until};
use serde_json::Value;
use std::path::Path;

/// A TCP flow with a trace in every second packet, until a monitor has seen enough of it; returns the path.
struct Traced<'a> {
    folder: &'a Path,
    /// Origin, and the interface that inserts traces.
    from: (&'a Namespace, &'a str),
    /// Destination, the monitored interface, and the address.
    to: (&'a Namespace, &'a str),
    address: &'a str,
}

impl Traced<'_> {
    fn run(&self) -> Value {
        let log = |name: &str| {
            let path = self.folder.join(name);
            let _ = std::fs::remove_file(&path);
            path
        };
        let (from, to) = (self.from.0, self.to.0);
        let args = ["int", "monitor", "--interface", self.to.1, "--json", "--interval-ms", "100"];
        let monitor = to.spawn(ANABRANCH, &args, &log("monitor.log"));
        let args = ["int", "source", "--interface", self.from.1, "--every", "2", "--nodes", "2"];
        let source = from.spawn(ANABRANCH, &args, &log("source.log"));
        until("the source is attached", || source.log().contains(self.from.1));
        let _server: Program = to.spawn("iperf3", &["-s", "-1"], &log("server.log"));
        until("iperf3 listens", || !to.sh("ss -Hltn 'sport = :5201'").is_empty());
        // Leaves room for the trace.
        let args = ["-6", "-c", self.address, "-C", "cubic", "-M", "1200", "-b", "4M", "-t", "20"];
        let _client = from.spawn("iperf3", &args, &log("client.log"));
        let mut seen = Value::Null;
        until("the monitor sees traces", || {
            seen = newest(&monitor).unwrap_or_default();
            let told = &seen["paths"][0]["hops"][0]["arrival_kbps"]["last"];
            seen["counters"]["traces"].as_u64() > Some(200) && told.as_u64() > Some(2_000)
        });
        assert_eq!(seen["counters"]["malformed"], 0, "{seen}");
        seen
    }
}

fn stamped(seen: &Value) -> (Value, Value, Vec<Value>) {
    let path = &seen["paths"][0];
    (path["name"].clone(), path["complete"].clone(), path["hops"].as_array().unwrap().clone())
}

/// Inner packets pass both ends of the tunnel in both directions, and both ends fill the trace.
#[test]
fn both_ends_of_the_tunnel_fill_traces_of_inner_packets() {
    let Some(_alone) = alone() else { return };
    for device in ["tun", "packet"] {
        let Some(world) = World::new() else { return };
        let (ue_rules, upf_more) = ("[ioam]\nnode_id = 11\n", "[ioam]\nnode_id = 22\n");
        world.configure(&Options { device, ue_rules, upf_more, ..Options::default() });
        let upf = world.start_upf();
        let ue = world.start_ue();
        let folder = tempfile::tempdir().unwrap();
        let seen = Traced {
            folder: folder.path(),
            from: (&world.ue, "anb0"),
            to: (&world.server, "n6"),
            address: "2001:db8:6::2",
        }
        .run();
        let (name, complete, hops) = stamped(&seen);
        assert_eq!((name, complete), ("11-22".into(), false.into()), "{seen}");
        for hop in &hops {
            assert!(hop["depth_bytes"]["last"].is_u64() && hop["flows"].as_u64() >= Some(1), "{seen}");
            assert!(hop["queue_drops"].is_null() && hop["link_kbps"].is_null(), "{seen}");
        }
        for part in ["ue", "upf"] {
            let traces = world.get(part, "/v1/status")["ioam"].clone();
            assert!(
                traces["marked"].as_u64() > Some(200) && traces["malformed"] == 0,
                "{part} {device}: {traces}"
            );
        }
        ue.stop();
        upf.stop();
    }
}

/// A cell in real time over IPv6 reports queue, rate and radio state in both directions.
#[test]
fn a_cell_in_real_time_fills_traces_in_both_directions() {
    let Some(_alone) = alone() else { return };
    let [phone, gnb, network] = std::array::from_fn(|_| Namespace::new());
    let (Some(phone), Some(gnb), Some(network)) = (phone, gnb, network) else { return };
    for ns in [&phone, &gnb, &network] {
        ns.sh("sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.all.accept_dad=0");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let config = format!(
        "[n3]\nmode = \"ip\"\nkind = \"packet\"\nname = \"n3\"\nnetns = \"{}\"\naddresses = [\"fd45::1/64\"]\n\
         [[device]]\nues = [\"phone\"]\nkind = \"packet\"\nname = \"ue0\"\nnetns = \"{}\"\naddresses = [\"fd45::2/64\"]\n\
         [api]\nlisten = \"unix:{}\"\n[cell]\nioam = {{ node_id = 7 }}\nradio = {{ rat = \"lte\", rbs = 25 }}\n\
         [[cell.slices]]\nname = \"a\"\nshare_percent = 100\n\
         [[cell.ues]]\nname = \"phone\"\nslice = \"a\"\naddresses = [\"fd45::2\"]\n\
         channel = {{ model = \"constant\", mcs = 20 }}\n",
        network.path(),
        phone.path(),
        file("gnb.sock").display()
    );
    std::fs::write(file("gnb.toml"), config).unwrap();
    let program =
        gnb.spawn(ANABRANCH, &["gnb", "--config", file("gnb.toml").to_str().unwrap()], &file("gnb.log"));
    until("the gNB runs", || program.log().contains("gnb runs"));
    until("packets pass", || phone.try_sh("ping -6 -c 1 -W 1 fd45::1 >/dev/null").1);
    for (from, to, address) in
        [((&network, "n3"), (&phone, "ue0"), "fd45::2"), ((&phone, "ue0"), (&network, "n3"), "fd45::1")]
    {
        let seen = Traced { folder: folder.path(), from, to, address }.run();
        let (name, complete, hops) = stamped(&seen);
        assert_eq!((name, complete, hops.len()), ("7".into(), true.into(), 1), "{seen}");
        let hop = &hops[0];
        assert_eq!((&hop["mcs"], &hop["queue_drops"]), (&20.into(), &0.into()), "{seen}");
        // 25 RBs at MCS 20 are about 10 Mbit/s; slots with retransmissions report less.
        assert!((5_000..15_000).contains(&hop["link_kbps"]["last"].as_u64().unwrap()), "{seen}");
        assert!(hop["rb_share_percent"].is_number() && hop["capacity_bytes"].is_u64(), "{seen}");
    }
    let output = std::process::Command::new(ANABRANCH)
        .args(["ctl", "--json", "--socket", file("gnb.sock").to_str().unwrap(), "status"])
        .output()
        .unwrap();
    let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    assert!(status["ioam"]["marked"].as_u64() > Some(400), "{status}");
    program.stop();
}
