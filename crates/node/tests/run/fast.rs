//! The kernel's fast path between the real programs.

use crate::net::{Options, World};
use crate::{download, iperf};
use std::time::Duration;

const ALL_ON_5G: &str =
    "[[rule]]\nname = \"all\"\nsteering = { mode = \"active-standby\", primary = \"5g\" }\n";

fn options() -> Options<'static> {
    Options { security_5g: "plain", fast_path: true, ue_rules: ALL_ON_5G, ..Options::default() }
}

/// The sum of a counter over the workers of `part`.
fn sum(world: &World, part: &str, counter: &str) -> u64 {
    let status = world.get(part, "/v1/status");
    status["workers"].as_array().unwrap().iter().map(|w| w[counter].as_u64().unwrap()).sum()
}

#[test]
fn the_kernel_carries_packets_and_everything_is_counted() {
    let Some(world) = World::new() else { return };
    world.configure(&Options { workers: 2, ..options() });
    let (ue_before, upf_before) = (world.ue.picture(), world.upf.picture());
    let upf = world.start_upf();
    let ue = world.start_ue();
    world.ue.sh("ping -q -i 0.01 -c 20 -W 2 192.0.2.2; ping -q -i 0.01 -c 20 -W 2 2001:db8:6::2");
    let [large, small] = [true, false];
    for (packets, to) in [
        (large, "-c 192.0.2.2"),
        (large, "-c 192.0.2.2 -R"),
        (large, "-c 2001:db8:6::2"),
        (large, "-c 2001:db8:6::2 -R"),
        (small, "-c 192.0.2.2 -u -b 50M"),
        (small, "-c 192.0.2.2"),
        (small, "-c 2001:db8:6::2 -R"),
    ] {
        if packets == small {
            // As on a hardware interface, every datagram is sent by itself.
            let off = "ethtool -K 5g0 tso off gso off tx-udp_tnl-segmentation off >/dev/null";
            [&world.ue, &world.upf].into_iter().for_each(|ns| drop(ns.sh(off)));
        }
        let before = [sum(&world, "ue", "fast_tx_datagrams"), sum(&world, "ue", "fast_rx_datagrams")];
        let read = sum(&world, "ue", "device_rx_packets");
        let bps = iperf(&world, &format!("{to} -t 1"));
        let after = [sum(&world, "ue", "fast_tx_datagrams"), sum(&world, "ue", "fast_rx_datagrams")];
        println!(
            "{to}: {:.0} Mbit/s, {:?} datagrams by the kernel",
            bps / 1e6,
            [after[0] - before[0], after[1] - before[1]]
        );
        assert!(bps > 20e6, "{to}: {bps}\n{}", world.logs());
        let data = usize::from(to.contains("-R"));
        assert!(after[data] - before[data] > 1000, "{to}: {before:?} {after:?}\n{}", world.logs());
        let by_us = sum(&world, "ue", "device_rx_packets") - read;
        assert!(by_us < 500, "{to}: {by_us} packets were read by the program");
    }
    // Packets sent by one end were received by the other or are in flight; the packet counters include those
    // of the fast path.
    let session = world.get("upf", "/v1/sessions/phone");
    assert!(session["rx_bytes"].as_u64().unwrap() > 5_000_000, "{session}");
    assert_eq!(sum(&world, "ue", "fast_failed") + sum(&world, "upf", "fast_failed"), 0);
    for (from, to) in [("ue", "upf"), ("upf", "ue")] {
        // The interfaces between them may drop some.
        let all = sum(&world, from, "fast_tx_datagrams");
        world.until("it has arrived", || {
            let arrived = sum(&world, to, "fast_rx_datagrams");
            assert!(arrived <= all, "{arrived} of {all}");
            arrived > all - all / 100 - 10
        });
    }
    for part in ["ue", "upf"] {
        let path = &world.get(part, "/v1/paths")["paths"][0];
        assert!(path["loss_rx_percent"].as_f64().unwrap() < 20.0, "{path}");
        assert!(path["tx_packets"].as_u64().unwrap() > 1000, "{path}");
    }
    ue.stop();
    assert_eq!(world.ue.picture(), ue_before);
    upf.stop();
    assert_eq!(world.upf.picture(), upf_before);
}

#[test]
fn a_transfer_survives_an_outage_of_its_access() {
    let Some(world) = World::new() else { return };
    world.configure(&options());
    let upf = world.start_upf();
    let ue = world.start_ue();
    let (_server, mut client) = download(&world, 24);
    let carried = |least: u64| {
        let before = sum(&world, "ue", "fast_rx_datagrams");
        world.until("the kernel carries it", || sum(&world, "ue", "fast_rx_datagrams") > before + least);
    };
    carried(500);
    world.ue.sh("ip link set 5g0 down");
    world.until("traffic is on wifi", || world.logs().contains("rule all moved from 5g to wifi"));
    world.ue.sh("ip link set 5g0 up; ip addr add 10.1.0.2/24 dev 5g0 2>/dev/null || true");
    world.until("5g is back", || world.paths_up("ue") == 2);
    carried(500);
    assert_eq!(client.wait(Duration::from_secs(30)), 0, "{}\n{}", client.log(), world.logs());
    assert!(sum(&world, "ue", "fast_taken_back") >= 1);
    ue.stop();
    upf.stop();
}

/// Sends a datagram per millisecond for three seconds; returns the longest time without one at the server,
/// milliseconds. Uplink only, so that the UPF's end has no lane and its program receives the packets of the
/// UE's kernel.
#[test]
fn a_black_hole_is_detected_although_no_packet_passes_user_space() {
    let Some(world) = World::new() else { return };
    world.configure(&options());
    let upf = world.start_upf();
    let ue = world.start_ue();
    let sink = "import socket,time
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind(('192.0.2.2',9000)); s.settimeout(2)
last=None; gap=0; n=0
try:
    while True:
        s.recv(2048); now=time.monotonic(); n+=1
        gap=max(gap,now-last) if last else 0; last=now
except socket.timeout: print(n, int(gap*1000))";
    let mut sink = world.server.spawn("python3", &["-c", sink], &world.file("sink.log"));
    let source = "import socket,time
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)
for i in range(3000): s.sendto(bytes(200),('192.0.2.2',9000)); time.sleep(0.001)";
    std::thread::sleep(Duration::from_millis(300));
    let mut source = world.ue.spawn("python3", &["-c", source], &world.file("source.log"));
    world.until("the kernel carries it", || sum(&world, "ue", "fast_tx_datagrams") > 300);
    assert_eq!(sum(&world, "upf", "fast_lanes"), 0);
    // Frames are sent to a MAC address that nobody has.
    world.ue.sh("ip neigh replace 10.1.0.1 lladdr 02:00:00:00:00:99 dev 5g0 nud permanent");
    assert_eq!((source.wait(Duration::from_secs(20)), sink.wait(Duration::from_secs(20))), (0, 0));
    let said = sink.log();
    let mut said = said.split_whitespace().map(|n| n.parse::<u64>().unwrap());
    let (received, gap) = (said.next().unwrap(), said.next().unwrap());
    println!("{received} of 3000 datagrams, {gap} ms without one");
    assert!(gap < 1000, "{received} {gap}\n{}", world.logs());
    assert!(received + gap + 200 > 3000, "lost beside the hole: {received} {gap}\n{}", world.logs());
    assert!(world.logs().contains("5g is down: silence"), "{}", world.logs());
    ue.stop();
    upf.stop();
}

#[test]
fn unsupported_configurations_are_refused_in_one_line() {
    let Some(world) = World::new() else { return };
    for (options, needs) in [
        (Options { security_5g: "secure", ..options() }, "security = \"plain\""),
        (Options { device: "packet", ..options() }, "kind = \"tun\""),
        (Options { ue_rules: "[ioam]\nnode_id = 7\n", ..options() }, "no section [ioam]"),
    ] {
        world.configure(&options);
        let text = world.refused("ue");
        assert!(text.contains("[device] fast_path = true needs") && text.contains(needs), "{text}");
    }
}
