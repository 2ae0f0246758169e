//! The TCP lane between the real programs, with the kernel's Multipath TCP.

use super::net::{Namespace, Options, Program, World};
use nix::sched::{CloneFlags, setns};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

pub(super) const RULES: &str = "[[rule]]\nname = \"web\"\nfilter = { protocol = \"tcp\", remote_port = \"8000-8999\" }\n\
    steering = { mode = \"load-balance\" }\nfunctionality = \"mptcp\"\n[tcp_lane]\ncongestion_control = \"cubic\"\n";
pub(super) const ROUTED: &str = "[n6]\nmode = \"routed\"\n[tcp_lane]\ncongestion_control = \"cubic\"\n";
pub(super) const V4: &str = "192.0.2.2";
const V6: &str = "[2001:db8:6::2]";

/// Starts world, UPF and UE; the lane accepts flows.
fn start(upf_more: &str) -> Option<(World, Program, Program)> {
    start_with(RULES, upf_more)
}

pub(super) fn start_with(ue_rules: &str, upf_more: &str) -> Option<(World, Program, Program)> {
    let world = world(&Options { ue_rules, upf_more, ..Options::default() })?;
    let upf = world.start_upf();
    let ue = world.start_ue();
    if upf_more.contains("tcp_lane") {
        world.until("the lane runs", || lane(&world, "ue")["state"] == "runs");
    }
    Some((world, upf, ue))
}

/// A world whose server answers to addresses of sessions. Nothing runs yet.
pub(super) fn world(options: &Options<'_>) -> Option<World> {
    let world = World::new()?;
    world.server.sh("ip route add 10.45.0.0/24 via 192.0.2.1; ip route add fd45::/64 via 2001:db8:6::1");
    world.configure(options);
    Some(world)
}

/// A file with the congestion control that the lane has where none is named.
pub(super) fn by_default(file: &str) -> String {
    file.replace("\"cubic\"", "\"\"")
}

/// What the UE receives by an access is lost, as far as `which` says, until the table `hole` goes.
pub(super) fn lose(world: &World, access: &str, which: &str) {
    world.ue.sh(&format!(
        "nft 'add table inet hole; add chain inet hole in {{ type filter hook input priority 0; }}
         add rule inet hole in iifname \"{access}\" {which} drop'"
    ));
}

pub(super) fn lane(world: &World, part: &str) -> serde_json::Value {
    world.get(part, "/v1/tcp-lane")
}

pub(super) fn carried(world: &World, part: &str, carrier: &str) -> u64 {
    let lane = lane(world, part);
    let rows = lane["carried"].as_array().cloned().unwrap_or_default();
    rows.iter().find(|row| row["carrier"] == carrier).map_or(0, |row| row["flows"].as_u64().unwrap())
}

pub(super) fn listen(on: &Namespace, at: &str) -> TcpListener {
    let at: SocketAddr = at.parse().unwrap();
    on.run(move || TcpListener::bind(at).unwrap())
}

pub(super) fn connect(from: &Namespace, to: &str) -> std::io::Result<TcpStream> {
    let to: SocketAddr = to.parse().unwrap();
    let stream = from.run(move || TcpStream::connect_timeout(&to, Duration::from_secs(10)))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    Ok(stream)
}

/// Sends `bytes` bytes of a pattern in each direction at the same time.
#[track_caller]
pub(super) fn exchange(one: TcpStream, other: TcpStream, bytes: usize) {
    let pattern = |i: usize| (i / 7 % 251) as u8;
    let send = move |mut to: TcpStream| {
        std::thread::spawn(move || {
            let all: Vec<u8> = (0..bytes).map(pattern).collect();
            to.write_all(&all).unwrap();
            to.shutdown(std::net::Shutdown::Write).unwrap();
        })
    };
    let receive = move |mut from: TcpStream| {
        std::thread::spawn(move || {
            let mut all = Vec::new();
            from.read_to_end(&mut all).unwrap();
            assert_eq!(all.len(), bytes);
            assert!(all.iter().enumerate().all(|(i, byte)| *byte == pattern(i)), "other bytes");
        })
    };
    let threads =
        [send(one.try_clone().unwrap()), send(other.try_clone().unwrap()), receive(one), receive(other)];
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Runs `body` in the namespace of a program's lane.
pub(super) fn inside<T: Send>(program: &Program, body: impl FnOnce() -> T + Send) -> T {
    let tasks = format!("/proc/{}/task", program.pid());
    let of_lane = std::fs::read_dir(tasks).unwrap().map(|entry| entry.unwrap().path()).find(|path| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "anb-lane-ns")
    });
    let file = std::fs::File::open(of_lane.expect("it has a lane").join("ns/net")).unwrap();
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            setns(file, CloneFlags::CLONE_NEWNET).unwrap();
            body()
        });
        thread.join().unwrap()
    })
}

pub(super) fn sh(commands: &str) -> String {
    let output = std::process::Command::new("sh").args(["-ec", commands]).output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{commands}\n{text}");
    text
}

#[test]
fn bytes_are_the_same_the_server_sees_the_session_and_nothing_is_left_behind() {
    let options = Options { ue_rules: RULES, upf_more: ROUTED, workers: 2, ..Options::default() };
    let Some(world) = world(&options) else { return };
    let (ue_before, upf_before) = (world.ue.picture(), world.upf.picture());
    let (upf, ue) = (world.start_upf(), world.start_ue());
    world.until("the lane runs", || lane(&world, "ue")["state"] == "runs");
    for host in [V4, V6] {
        let listener = listen(&world.server, &format!("{host}:8080"));
        let client = connect(&world.ue, &format!("{host}:8080")).unwrap();
        let (server, from) = listener.accept().unwrap();
        assert_eq!(from, client.local_addr().unwrap(), "the session's address, and the program's port");
        world.until("each access has its subflow", || subflows(&world) == 2);
        exchange(client, server, 4 << 20);
    }
    // Flows without the rule do not use the lane.
    let listener = listen(&world.server, &format!("{V4}:9080"));
    let client = connect(&world.ue, &format!("{V4}:9080")).unwrap();
    exchange(client, listener.accept().unwrap().0, 100_000);
    // A refusal is passed on to the program.
    let refused = connect(&world.ue, &format!("{V4}:8009")).and_then(|mut stream| stream.read(&mut [0; 1]));
    assert!(refused.is_err(), "{refused:?}");
    for part in ["ue", "upf"] {
        world.until("it is over", || lane(&world, part)["flows"] == 0);
        assert_eq!(carried(&world, part, "mptcp"), 2, "{part}: {}\n{}", lane(&world, part), world.logs());
        assert_eq!(lane(&world, part)["refused"], serde_json::json!({"reset": 1}), "{part}");
    }
    let rows = lane(&world, "upf")["carried"][0].clone();
    assert_eq!((&rows["up_bytes"], &rows["down_bytes"]), (&(8 << 20).into(), &(8 << 20).into()), "{rows}");
    let sent: Vec<u64> = world.get("ue", "/v1/paths")["paths"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["tx_bytes"].as_u64().unwrap())
        .collect();
    assert!(sent.iter().all(|bytes| *bytes > 100_000), "both accesses carry: {sent:?}");
    ue.stop();
    assert_eq!(world.ue.picture(), ue_before);
    upf.stop();
    assert_eq!(world.upf.picture(), upf_before);
    assert!(!world.logs().contains("ERROR") && !world.logs().contains("panicked"), "{}", world.logs());
}

/// Subflows of the first flow of the UE's lane.
pub(super) fn subflows(world: &World) -> serde_json::Value {
    world.get("ue", "/v1/tcp-lane/flows")["flows"][0]["subflows"].clone()
}

/// Starts a download of `bytes` bytes at about 50 Mbit/s with comparison of every byte; the result is the
/// client's longest wait for data.
fn download(world: &World, bytes: usize) -> impl FnOnce() -> Duration + use<> {
    let (client, server) = flow(world);
    transfer(server, client, bytes)
}

/// The same in the uplink.
fn upload(world: &World, bytes: usize) -> impl FnOnce() -> Duration + use<> {
    let (client, server) = flow(world);
    transfer(client, server, bytes)
}

/// A flow of the rule: the ends of program and server.
pub(super) fn flow(world: &World) -> (TcpStream, TcpStream) {
    let listener = listen(&world.server, &format!("{V4}:8080"));
    let client = connect(&world.ue, &format!("{V4}:8080")).unwrap();
    let (server, _) = listener.accept().unwrap();
    server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    (client, server)
}

pub(super) fn transfer(
    mut from: TcpStream,
    mut to: TcpStream,
    bytes: usize,
) -> impl FnOnce() -> Duration + use<> {
    let sender = std::thread::spawn(move || {
        for i in 0..bytes >> 16 {
            from.write_all(&[i as u8; 1 << 16]).unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let reader = std::thread::spawn(move || {
        let (mut got, mut longest, mut last) = (0, Duration::ZERO, Instant::now());
        let mut buffer = vec![0; 1 << 16];
        while got < bytes {
            let len = to.read(&mut buffer).unwrap();
            assert!(len > 0, "ended after {got}");
            for at in [0, len - 1] {
                assert_eq!(buffer[at], ((got + at) >> 16) as u8, "at {}", got + at);
            }
            got += len;
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
        longest
    });
    move || {
        sender.join().unwrap();
        reader.join().unwrap()
    }
}

#[test]
fn a_flow_survives_an_outage_of_an_access() {
    let Some((world, upf, ue)) = start(ROUTED) else { return };
    let longest = download(&world, 48 << 20);
    let two = || {
        world.until("the access is back", || world.paths_up("ue") == 2);
        world.until("the open flow has both subflows", || subflows(&world) == 2);
    };
    two();
    for access in ["5g0", "wifi0"] {
        std::thread::sleep(Duration::from_millis(700));
        world.ue.sh(&format!("ip link set {access} down"));
        std::thread::sleep(Duration::from_millis(700));
        world.ue.sh(&format!("ip link set {access} up"));
        if access == "wifi0" {
            world.ue.sh("ip addr replace fd02::2/64 dev wifi0");
        }
        two();
        // Packets on the access are dropped without any notification.
        lose(&world, access, "");
        world.until("the flow leaves it", || subflows(&world) == 1);
        world.ue.sh("nft delete table inet hole");
        two();
    }
    let longest = longest();
    println!("longest silence: {longest:?}");
    // 250 ms on an idle machine.
    assert!(longest < Duration::from_secs(2), "{longest:?}\n{}", world.logs());
    ue.stop();
    upf.stop();
}

#[test]
fn an_upload_survives_that_packets_of_an_access_vanish() {
    let Some((world, upf, ue)) = start(ROUTED) else { return };
    let longest = upload(&world, 32 << 20);
    for access in ["5g0", "wifi0"] {
        world.until("the flow has both subflows", || subflows(&world) == 2);
        std::thread::sleep(Duration::from_millis(300));
        // In both directions, without any notification.
        world.ue.sh(&format!(
            "nft 'add table inet hole; add chain inet hole in {{ type filter hook input priority 0; }}
             add chain inet hole out {{ type filter hook output priority 0; }}
             add rule inet hole in iifname \"{access}\" drop; add rule inet hole out oifname \"{access}\" drop'"
        ));
        world.until("the flow leaves it", || subflows(&world) == 1);
        std::thread::sleep(Duration::from_millis(300));
        world.ue.sh("nft delete table inet hole");
    }
    let longest = longest();
    println!("longest silence: {longest:?}");
    assert!(longest < Duration::from_secs(2), "{longest:?}\n{}", world.logs());
    ue.stop();
    upf.stop();
}

#[test]
fn a_flow_survives_an_outage_of_all_accesses() {
    let Some((world, upf, ue)) = start(ROUTED) else { return };
    let longest = download(&world, 32 << 20);
    world.until("the flow has both subflows", || subflows(&world) == 2);
    let link = |access: &str, to: &str| {
        world.ue.sh(&format!("ip link set {access} {to}"));
        if (access, to) == ("wifi0", "up") {
            world.ue.sh("ip addr replace fd02::2/64 dev wifi0");
        }
    };
    // The access that failed first, which has no endpoint any more, returns first; then the other way round.
    for [first, second] in [["5g0", "wifi0"], ["wifi0", "5g0"]] {
        link(first, "down");
        world.until("the flow leaves it", || subflows(&world) == 1);
        link(second, "down");
        world.until("no access is left", || world.paths_up("ue") == 0);
        link(first, "up");
        world.until("it carries alone", || world.paths_up("ue") == 1);
        std::thread::sleep(Duration::from_millis(500));
        link(second, "up");
        world.until("both are back", || world.paths_up("ue") == 2 && subflows(&world) == 2);
    }
    let longest = longest();
    println!("longest silence: {longest:?}");
    assert!(longest < Duration::from_secs(10), "{longest:?}\n{}", world.logs());
    ue.stop();
    upf.stop();
}

#[test]
fn an_access_that_loses_too_much_is_left() {
    // BBR continues to send there, so the loss is known after two seconds; CUBIC almost stops.
    let Some((world, upf, ue)) = start_with(&by_default(RULES), &by_default(ROUTED)) else { return };
    let longest = download(&world, 96 << 20);
    let left = || lane(&world, "ue")["left"].to_string();
    world.until("both carry it", || subflows(&world) == 2);
    // The loss is in the UE's receiving direction, so the UPF must be informed.
    lose(&world, "wifi0", "numgen random mod 100 < 30");
    let took = world.until("the flow leaves it", || subflows(&world) == 1 && left().contains("loss"));
    assert!(left().contains("wifi"), "{}", left());
    // A new connection does not start on that access.
    let listener = listen(&world.server, &format!("{V4}:8081"));
    let client = connect(&world.ue, &format!("{V4}:8081")).unwrap();
    let (server, _) = listener.accept().unwrap();
    exchange(client, server, 100_000);
    // It is better than no access.
    world.ue.sh("ip link set 5g0 down");
    world.until("it carries again", || left().contains("5g") && !left().contains("wifi"));
    world.ue.sh("ip link set 5g0 up");
    world.until("the other one is back", || left().contains("wifi") && !left().contains("5g"));
    world.until("the flow leaves it again", || subflows(&world) == 1);
    println!("left after {took:?}; longest silence {:?}", longest());
    let log = world.logs();
    for message in ["TCP lane leaves wifi: loss", "TCP lane may use wifi again: loss"] {
        assert!(log.contains(message), "{message}: {log}");
    }
    ue.stop();
    upf.stop();
}

/// An access that drops SYNs although its probes are answered is detected only by an attempt.
#[test]
fn a_connection_whose_first_syn_is_lost_starts_on_another_access() {
    let Some((world, upf, ue)) = start(ROUTED) else { return };
    for path in 0..2 {
        inside(&upf, || {
            sh(&format!(
                "nft 'add table inet hole; add chain inet hole in {{ type filter hook prerouting priority -400; }}
                 add rule inet hole in ip6 saddr fd6b:97c2:5e1a:40{path}::/64 tcp flags syn drop'"
            ))
        });
        for _ in 0..3 {
            let (client, server) = flow(&world);
            exchange(client, server, 100_000);
        }
        inside(&upf, || sh("nft delete table inet hole"));
    }
    let lane = lane(&world, "ue");
    assert_eq!((carried(&world, "ue", "mptcp"), &lane["fallbacks"]), (6, &serde_json::json!({})), "{lane}");
    ue.stop();
    upf.stop();
}

#[test]
fn an_access_that_was_never_up_has_no_subflow() {
    let (ue_rules, upf_more) = (&by_default(RULES), &by_default(ROUTED));
    let Some(world) = world(&Options { ue_rules, upf_more, ..Options::default() }) else { return };
    world.ue.sh("ip link set 5g0 down");
    // Another program has the lane's port at the start.
    let port = listen(&world.ue, "127.0.0.1:15172");
    let (upf, ue) = (world.start_upf(), world.spawn("ue"));
    world.until("the lane is missed", || lane(&world, "ue")["state"] == "failed");
    drop(port);
    world.until("the lane runs", || lane(&world, "ue")["state"] == "runs");
    let longest = download(&world, 40 << 20);
    let left = || lane(&world, "ue")["left"].to_string();
    world.until("one carries it", || subflows(&world) == 1);
    assert!(left().contains("5g") && left().contains("down"), "{}", left());
    lose(&world, "wifi0", "numgen random mod 100 < 30");
    world.until("it loses, and is all there is", || {
        let paths = world.get("ue", "/v1/paths")["paths"].as_array().cloned().unwrap_or_default();
        let loss = |path: &serde_json::Value| path["load"]["lasting_loss_rx_percent"].as_f64();
        paths.iter().any(|path| path["access"] == "wifi" && loss(path) > Some(15.0))
    });
    assert!(!left().contains("wifi"), "{}", left());
    world.ue.sh("nft delete table inet hole; ip link set 5g0 up");
    world.until("both are up", || world.paths_up("ue") == 2);
    println!("longest silence: {:?}", longest());
    ue.stop();
    upf.stop();
}

/// An access that is not the best route to the UPF, with a strict reverse-path filter (`rp_filter = 1`), and
/// whose interface disappears and returns with another index.
#[test]
fn a_returned_interface_accepts_answers_on_a_non_best_route() {
    let Some(world) = World::new() else { return };
    world.configure(&Options::default());
    let file = std::fs::read_to_string(world.file("ue.toml")).unwrap();
    std::fs::write(world.file("ue.toml"), file.replace("10.1.0.1:4500", "192.0.2.1:4500")).unwrap();
    world.ue.sh("sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.default.rp_filter=1
                 ip route add 192.0.2.1 via 10.2.0.1 dev wifi0 metric 10");
    let route = "ip route add 192.0.2.1 via 10.1.0.1 dev 5g0 metric 20";
    world.ue.sh(route);
    let upf = world.start_upf();
    let ue = world.start_ue();
    for _ in 0..2 {
        world.ue.sh("ip link del 5g0");
        world.until("it is gone", || world.paths_up("ue") == 1);
        world.ue.veth("5g0", &world.upf, "5g0");
        world.upf.sh("ip addr add 10.1.0.1/24 dev 5g0");
        world.ue.sh(&format!("ip addr add 10.1.0.2/24 dev 5g0; {route}"));
        world.until("it is back", || world.paths_up("ue") == 2);
    }
    ue.stop();
    upf.stop();
    let rp_filter =
        world.ue.sh("cat /proc/sys/net/ipv4/conf/5g0/rp_filter /proc/sys/net/ipv4/conf/wifi0/rp_filter");
    assert_eq!(rp_filter, "1\n0\n", "as the interfaces had it");
}

/// Connections left by a killed UPF must not prevent the next start, and changes of the host's own rules must
/// not remove the lane's return path.
#[test]
fn a_upf_that_was_killed_starts_again_and_rules_of_the_host_may_change() {
    let Some((world, upf, ue)) = start(ROUTED) else { return };
    let listener = listen(&world.server, &format!("{V4}:8080"));
    let mut client = connect(&world.ue, &format!("{V4}:8080")).unwrap();
    let (_server, _) = listener.accept().unwrap();
    client.write_all(b"open").unwrap();
    upf.signal(nix::sys::signal::Signal::SIGKILL);
    drop(upf);
    let start = Instant::now();
    let upf = world.start_upf();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    world.until("the lane runs", || world.paths_up("ue") == 2 && lane(&world, "ue")["state"] == "runs");
    // Its flows are gone, and that is told: a program that only waits would not notice.
    let ended = client.read(&mut [0; 1]);
    assert!(ended.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset), "{ended:?}");
    world.upf.sh("nft flush ruleset");
    let go = || {
        let client = connect(&world.ue, &format!("{V4}:8080")).unwrap();
        exchange(client, listener.accept().unwrap().0, 100_000);
    };
    let before = carried(&world, "upf", "mptcp");
    world.until("flows go by the lane", || {
        go();
        carried(&world, "upf", "mptcp") > before
    });
    ue.stop();
    upf.stop();
}

/// A UE whose data path has failed ends, with or without a lane, so that it is restarted.
#[test]
fn a_ue_whose_device_is_removed_ends() {
    let Some((world, upf, mut ue)) = start(ROUTED) else { return };
    world.until("the lane runs", || lane(&world, "ue")["state"] == "runs");
    world.ue.sh("ip link del anb0");
    assert_eq!(ue.wait(Duration::from_secs(15)), 1, "{}", ue.log());
    upf.stop();
}

/// ICMP errors of the UPF's host about a flow reach the lane: Packet Too Big, and refusals by its rules.
#[test]
fn icmp_errors_of_the_upfs_host_reach_the_lane() {
    let Some((world, upf, ue)) = start(ROUTED) else { return };
    world.upf.sh("ip link set n6 mtu 1280; nft 'add table inet host
         add chain inet host forward { type filter hook forward priority 0; }
         add rule inet host forward tcp dport 8081 reject'");
    for host in [V4, V6] {
        let listener = listen(&world.server, &format!("{host}:8080"));
        let client = connect(&world.ue, &format!("{host}:8080")).unwrap();
        exchange(client, listener.accept().unwrap().0, 2 << 20);
        let start = Instant::now();
        let refused = connect(&world.ue, &format!("{host}:8081")).and_then(|mut to| to.read(&mut [0; 1]));
        assert!(refused.is_err(), "{refused:?}");
        assert!(start.elapsed() < Duration::from_secs(2), "{host}: {:?}", start.elapsed());
    }
    assert_eq!(carried(&world, "ue", "mptcp"), 2, "{}", lane(&world, "ue"));
    ue.stop();
    upf.stop();
}

#[test]
fn without_a_lane_at_the_upf_flows_use_the_packet_lane() {
    let Some((world, upf, ue)) = start("[n6]\nmode = \"routed\"\n") else { return };
    let listener = listen(&world.server, &format!("{V4}:8080"));
    let client = connect(&world.ue, &format!("{V4}:8080")).unwrap();
    exchange(client, listener.accept().unwrap().0, 100_000);
    for part in ["ue", "upf"] {
        assert_eq!(lane(&world, part)["state"], "unused", "{}", lane(&world, part));
    }
    ue.stop();
    upf.stop();
}

#[test]
fn loss_of_multipath_tcp_or_of_the_lane_ends_no_flow() {
    let Some((world, upf, ue)) = start(ROUTED) else { return };
    let table = "nft add table inet middle; nft 'add chain inet middle every { type filter hook prerouting priority -400; }'";
    let go = |bytes| {
        let listener = listen(&world.server, &format!("{V4}:8080"));
        let start = Instant::now();
        let client = connect(&world.ue, &format!("{V4}:8080")).unwrap();
        exchange(client, listener.accept().unwrap().0, bytes);
        start.elapsed()
    };
    inside(&upf, || {
        sh(&format!("{table}; nft 'add rule inet middle every tcp flags syn reset tcp option mptcp'"))
    });
    go(1 << 20);
    assert_eq!(carried(&world, "ue", "tcp"), 1, "{}", lane(&world, "ue"));
    assert_eq!(lane(&world, "ue")["why"], "stripped");
    go(1 << 20);
    assert_eq!(carried(&world, "ue", "packets"), 1, "{}", lane(&world, "ue"));
    ue.stop();
    // The UPF's lane does not answer at all.
    inside(&upf, || {
        sh("nft flush chain inet middle every; nft 'add rule inet middle every tcp dport 5124 drop'")
    });
    let ue = world.start_ue();
    world.until("the lane runs", || lane(&world, "ue")["state"] == "runs");
    let took = go(100_000);
    println!("by packets after {took:?}");
    assert!(took < Duration::from_secs(6), "{took:?}");
    assert_eq!(lane(&world, "ue")["fallbacks"], serde_json::json!({"no_lane": 1}), "{}", lane(&world, "ue"));
    assert_eq!(lane(&world, "ue")["why"], "no_lane");
    go(100_000);
    ue.stop();
    upf.stop();
}

/// The possibilities of a malicious UE with a key, and of others without one.
#[test]
fn a_hostile_ue_gets_its_share_and_an_unknown_peer_nothing() {
    let limits = format!("{ROUTED}first_bytes_s = 1\nflows_per_session = 3\n");
    let Some((world, upf, ue)) = start(&limits) else { return };
    let at: SocketAddr = "[fd6b:97c2:5e1a::1]:5124".parse().unwrap();
    let try_dial = || inside(&ue, || TcpStream::connect_timeout(&at, Duration::from_secs(5)));
    let dial = || {
        let stream = try_dial().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    };
    let answer = |bytes: &[u8]| {
        let mut stream = dial();
        stream.write_all(bytes).unwrap();
        let mut said = Vec::new();
        // The connection may end with a reset after the answer.
        let _ = stream.read_to_end(&mut said);
        said
    };
    let error = |code: u8, value: u8| vec![1, 2, 0x22, 0x63, 30, 1, code, value];
    assert_eq!(answer(b"GET / HTTP/1.1\r\n\r\n"), error(1, 1), "malformed");
    assert_eq!(answer(&[9, 2, 0x22, 0x63, 1, 1, 0, 0]), error(0, 1), "another version");
    assert_eq!(answer(&[1, 2, 0x22, 0x63, 1, 1, 0, 0]), [1, 3, 0x22, 0x63, 21, 2, 0, 0, 30, 0, 0, 0], "info");
    let ask = |v4: [u8; 4], port: u16| {
        let mut bytes = vec![1, 6, 0x22, 0x63, 10, 5];
        bytes.extend(port.to_be_bytes());
        bytes.extend([0; 10]);
        bytes.extend([0xff; 2]);
        bytes.extend(v4);
        bytes
    };
    for forbidden in
        [[10, 45, 0, 1], [10, 45, 0, 9], [127, 0, 0, 1], [224, 0, 0, 1], [0, 0, 0, 0], [169, 254, 0, 1]]
    {
        assert_eq!(answer(&ask(forbidden, 22)), error(32, 0), "{forbidden:?} is not served");
    }
    assert_eq!(answer(&ask([192, 0, 2, 2], 9)), error(96, 0), "refused");
    // Connections that send nothing are ended.
    let start = Instant::now();
    let mut silent = dial();
    silent.write_all(&[1, 6]).unwrap();
    assert!(silent.read(&mut [0; 1]).map_or(true, |got| got == 0));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    world.until("none is left", || lane(&world, "upf")["flows"] == 0);
    let mut held: Vec<TcpStream> = (0..3).map(|_| dial()).collect();
    world.until("they are there", || lane(&world, "upf")["flows"] == 3);
    // One more is reset sooner or later.
    if let Ok(mut more) = try_dial() {
        more.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert!(more.read(&mut [0; 1]).map_or(true, |got| got == 0));
    }
    // Flows of programs continue on the packet lane.
    let listener = listen(&world.server, &format!("{V4}:8080"));
    let client = connect(&world.ue, &format!("{V4}:8080")).unwrap();
    exchange(client, listener.accept().unwrap().0, 100_000);
    held.clear();
    let refused = lane(&world, "upf")["refused"].clone();
    assert!(refused["session_limit"].as_u64() >= Some(2), "{refused}");
    assert_eq!(
        (&refused["malformed"], &refused["destination"], &refused["reset"]),
        (&2.into(), &6.into(), &1.into()),
        "{refused}"
    );
    // Without a session: not from an access, not from the network behind, not from the UPF's own host.
    world.ue.sh("ip -6 route add fd6b:97c2:5e1a::/48 via fd02::1 dev wifi0");
    world.server.sh("ip -6 route add fd6b:97c2:5e1a::/48 via 2001:db8:6::1");
    for from in [&world.ue, &world.server, &world.upf] {
        let stranger = from.run(move || TcpStream::connect_timeout(&at, Duration::from_millis(500)));
        assert!(stranger.is_err());
    }
    assert!(!world.logs().contains("panicked"), "{}", world.logs());
    ue.stop();
    upf.stop();
}

/// A thousand simultaneous flows; none is confused with another, and all end.
#[test]
fn a_thousand_flows_at_once() {
    const FLOWS: usize = 1000;
    let Some((world, upf, ue)) = start(ROUTED) else { return };
    let (_, most) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, most, most).unwrap();
    let listener = listen(&world.server, &format!("{V4}:8080"));
    let accepting =
        std::thread::spawn(move || (0..FLOWS).map(|_| listener.accept().unwrap().0).collect::<Vec<_>>());
    let start = Instant::now();
    let mut clients: Vec<TcpStream> =
        (0..FLOWS).map(|_| connect(&world.ue, &format!("{V4}:8080")).unwrap()).collect();
    for (i, client) in clients.iter_mut().enumerate() {
        client.write_all(&(i as u32).to_be_bytes()).unwrap();
    }
    let mut servers = accepting.join().unwrap();
    for server in &mut servers {
        let mut name = [0; 4];
        server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        server.read_exact(&mut name).unwrap();
        server.write_all(&[name, name].concat()).unwrap();
    }
    for (i, client) in clients.iter_mut().enumerate() {
        let mut name = [0; 8];
        client.read_exact(&mut name).unwrap();
        assert_eq!(name, [(i as u32).to_be_bytes(); 2].concat()[..]);
    }
    println!("all of them are answered after {:?}", start.elapsed());
    for part in ["ue", "upf"] {
        assert_eq!(lane(&world, part)["flows"], FLOWS, "{part}");
        // A SYN dropped twice on a busy machine makes the kernel fall back to plain TCP; such a flow works
        // nevertheless.
        let [mptcp, tcp] = ["mptcp", "tcp"].map(|carrier| carried(&world, part, carrier));
        assert_eq!(mptcp + tcp, FLOWS as u64, "{part}: {}", lane(&world, part));
        assert!(mptcp >= FLOWS as u64 / 10 * 9, "{part}: {}", lane(&world, part));
    }
    drop((clients, servers));
    world.until("all have ended", || ["ue", "upf"].iter().all(|part| lane(&world, part)["flows"] == 0));
    ue.stop();
    upf.stop();
}

/// The UE is a router: flows of machines behind it use the lane, too, with the session's address.
#[test]
fn flows_of_machines_behind_the_ue_use_the_lane() {
    // The first rule matches nobody behind the UE.
    let ue_rules = format!(
        "[[rule]]\nname = \"root\"\nfilter = {{ uid = 0 }}\nsteering = {{ mode = \"load-balance\" }}\n\
         {RULES}interfaces = [\"lan0\"]\nflows_per_client = 3\n"
    );
    let Some(world) = world(&Options { ue_rules: &ue_rules, upf_more: ROUTED, ..Options::default() }) else {
        return;
    };
    let Some(lan) = Namespace::new() else { return };
    world.ue.veth("lan0", &lan, "eth0");
    world.ue.sh(
        "ip addr add 192.168.7.1/24 dev lan0; ip addr add fd07::1/64 dev lan0 nodad
         echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
         nft 'add table inet bonding; add chain inet bonding out { type nat hook postrouting priority srcnat; }
         add rule inet bonding out iifname \"lan0\" masquerade'",
    );
    lan.sh(
        "ip addr add 192.168.7.2/24 dev eth0; ip addr add 192.168.7.3/24 dev eth0
         ip addr add fd07::2/64 dev eth0 nodad; ip route add default via 192.168.7.1; ip route add default via fd07::1",
    );
    let before = world.ue.picture();
    let (upf, ue) = (world.start_upf(), world.start_ue());
    world.until("the lane runs", || lane(&world, "ue")["state"] == "runs");
    for (host, session) in [(V4, "10.45.0.2"), (V6, "fd45::2")] {
        let listener = listen(&world.server, &format!("{host}:8080"));
        let client = connect(&lan, &format!("{host}:8080")).unwrap();
        let (server, from) = listener.accept().unwrap();
        assert_eq!(from.ip().to_string(), session);
        world.until("each access has its subflow", || subflows(&world) == 2);
        exchange(client, server, 4 << 20);
        world.until("it is over", || lane(&world, "ue")["flows"] == 0);
    }
    assert_eq!(carried(&world, "ue", "mptcp"), 2, "{}", lane(&world, "ue"));
    // Flows without the rule are forwarded, and so are flows that do not use the tunnel.
    for (to, at) in [("192.0.2.2:9080", &world.server), ("10.1.0.1:8080", &world.upf)] {
        let listener = listen(at, to);
        let client = connect(&lan, to).unwrap();
        exchange(client, listener.accept().unwrap().0, 100_000);
    }
    // Destinations that the UPF does not permit continue on the packet lane, with an address of the session.
    let listener = listen(&world.upf, "10.45.0.1:8080");
    let client = connect(&lan, "10.45.0.1:8080").unwrap();
    let (server, from) = listener.accept().unwrap();
    assert_eq!(from.ip().to_string(), "10.45.0.2");
    exchange(client, server, 100_000);
    assert_eq!((carried(&world, "ue", "mptcp"), carried(&world, "ue", "packets")), (2, 1));
    // One machine has its share, and does not affect others.
    let listener = listen(&world.server, &format!("{V4}:8080"));
    let busy: Vec<_> = (0..3).map(|_| connect(&lan, &format!("{V4}:8080")).unwrap()).collect();
    let served: Vec<_> = (0..3).map(|_| listener.accept().unwrap()).collect();
    let refused = connect(&lan, &format!("{V4}:8080")).and_then(|mut stream| stream.read(&mut [0; 1]));
    assert!(refused.is_err(), "{refused:?}");
    let other = lan.run(|| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&"192.168.7.3:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        socket.connect(&format!("{V4}:8080").parse::<SocketAddr>().unwrap().into()).unwrap();
        TcpStream::from(socket)
    });
    exchange(other, listener.accept().unwrap().0, 100_000);
    assert_eq!(lane(&world, "ue")["refused"], serde_json::json!({"session_limit": 1}));
    drop((busy, served));
    ue.stop();
    assert_eq!(world.ue.picture(), before);
    upf.stop();
    assert!(!world.logs().contains("ERROR") && !world.logs().contains("panicked"), "{}", world.logs());
}

/// The `nft` that keeps a table at either end is killed: the table is restored at once, before the next
/// check, and an event is recorded.
#[test]
fn a_table_whose_nft_was_killed_is_restored_and_reported() {
    let Some((world, upf, ue)) = start(ROUTED) else { return };
    let (mut took, mut kills) = (Duration::ZERO, 0);
    for (host, program) in [(&world.ue, &ue), (&world.upf, &upf)] {
        let rules = host.sh("nft list ruleset");
        assert!(rules.contains("_lane"), "{rules}");
        for _ in 0..3 {
            host.sh(&format!("kill -9 $(pgrep -P {} -x nft)", program.pid()));
            kills += 1;
            took += world.until("the table is there again", || {
                let told = world.logs().matches("(its nft has ended); it is there again").count();
                told == kills && host.sh("nft list ruleset") == rules
            });
        }
    }
    println!("there again after {:?}", took / kills as u32);
    assert!(took < Duration::from_millis(1500) * kills as u32, "{took:?}");
    let (client, server) = flow(&world);
    exchange(client, server, 100_000);
    assert_eq!(carried(&world, "upf", "mptcp"), 1, "{}", lane(&world, "upf"));
    ue.stop();
    upf.stop();
}
