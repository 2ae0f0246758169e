//! The initial window of a slice, set by a route and by a kernel program: the value that a connection
//! actually uses.

use super::LOW_LATENCY;
use super::world::{V4, V6, World, connect};
use anabranch_kern::socket::tcp_window_segments;
use serde_json::json;
use socket2::{Domain, Socket, Type};
use std::net::SocketAddr;

/// The initial window of a connection of the UE with this mark, segments.
fn start(world: &World, to: SocketAddr, mark: u32) -> u32 {
    let socket = world.ue.run(move || {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
        socket.set_mark(mark).unwrap();
        socket.set_tcp_congestion(b"cubic").unwrap();
        socket.connect(&to.into()).unwrap();
        socket
    });
    tcp_window_segments(&socket).unwrap()
}

/// 0.5 · 150 Mbit/s · 12 ms / 1448 bytes is 77 segments; the next step below is 75.
fn a_connection_starts_with(more: &str, segments: u32) {
    let Some(world) = World::new() else { return };
    let before = world.picture();
    let agent = world.start_agent_with(more);
    world.set_slices(json!({"uplink_guaranteed_bps": 150_000_000}));
    world.configure("", LOW_LATENCY);
    let proxy = world.start_proxy();
    for host in [V4, V6] {
        let to = SocketAddr::new(host.parse().unwrap(), 9012);
        world.echo(&to.to_string());
        assert_eq!(start(&world, to, 513), segments, "{more}");
        assert_eq!(start(&world, to, 512), 10, "it is for those who pace");
        // The same for an unmodified program.
        let to = SocketAddr::new(to.ip(), 7012);
        world.echo(&to.to_string());
        let _client = connect(&world.ue, to).unwrap();
        let sockets = || world.ue.sh("ss -tinHO state established 'dport = :7012'");
        world.until("the proxy is connected", || sockets().contains(&format!("cwnd:{segments} ")));
        let flows = world.call("proxy", "GET", "/v1/proxy/flows", None);
        let plan = flows["flows"][0]["way"]["plan"].to_string();
        assert!(plan.contains("\"mark\":513") && plan.contains("pacing"), "{flows}");
        let (text, code) = world.ctl(&["proxy", "flows"]);
        assert!(code == 0 && text.contains("mark 513") && text.contains("window 75"), "{text}");
    }
    // When the facts about the slice change, so does the window.
    world.set_slices(json!({"uplink_guaranteed_bps": 1_000_000}));
    let to = SocketAddr::new(V4.parse().unwrap(), 9012);
    world.until("ten again", || start(&world, to, 513) == 10);
    proxy.stop();
    agent.stop();
    assert_eq!(world.picture(), before);
}

#[test]
fn a_route_sets_the_window_in_steps() {
    a_connection_starts_with("initial_window = \"route\"\n", 75);
}

#[test]
fn a_kernel_program_sets_the_exact_window() {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let group = mounts.lines().map(|l| l.split(' ').collect::<Vec<_>>()).find(|words| words[2] == "cgroup2");
    let (Some(group), true) = (group, std::path::Path::new("/sys/kernel/btf/vmlinux").exists()) else {
        assert!(std::env::var_os("CI").is_none(), "CI must have cgroup v2 and BTF");
        eprintln!("skipped: no cgroup v2, or a kernel without BTF");
        return;
    };
    let more = format!("initial_window = \"sockops\"\ninitial_window_cgroup = \"{}\"\n", group[1]);
    a_connection_starts_with(&more, 77);
}
