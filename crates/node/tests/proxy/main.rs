//! `anabranch proxy` between real programs, next to a real UE agent, in network namespaces.

// These tests run in real time.
#![allow(clippy::disallowed_methods)]

mod faults;
#[path = "../run/live.rs"]
mod live;
#[path = "../run/net.rs"]
#[allow(dead_code, reason = "shared with the tests of the programs")]
mod net;
mod quic;
#[path = "../run/shim.rs"]
#[allow(dead_code, reason = "shared with the tests of the programs")]
mod shim;
mod window;
mod world;

use net::{ANABRANCH, Namespace};
use nix::sys::signal::Signal;
use serde_json::json;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};
use world::{V4, V6, World, connect, exchange};

/// A rule that needs low latency, which slice B has; all other flows use the routes of the host.
const LOW_LATENCY: &str = "[[rule]]\nname = \"control\"\nfilter = { remote_port = \"7000-7099\" }\n\
    properties = { \"_slice.latency\" = { atMostUs = 15000, preference = \"require\" } }\n\
    [[rule]]\nname = \"rest\"\nfilter = { remote_port = \"8000-8099\" }\n";

#[test]
fn tcp_uses_the_slice_of_its_rule_in_both_families() {
    let Some(world) = World::new() else { return };
    let before = world.picture();
    let agent = world.start_agent();
    let with_agent = world.picture();
    world.configure("[intercept]\ninterfaces = [\"lan0\"]", LOW_LATENCY);
    let proxy = world.start_proxy();
    for host in [V4, "[2001:db8::80]"] {
        let control = world.echo(&format!("{host}:7001"));
        let rest = world.echo(&format!("{host}:8001"));
        let other = world.echo(&format!("{host}:9001"));
        // From this host, and from a host behind it.
        for from in [&world.ue, &world.lan] {
            let (a, b) = (world.left_by("sa"), world.left_by("sb"));
            exchange(connect(from, control).unwrap(), 1 << 20);
            assert!(world.left_by("sb") - b > 1 << 20, "{host}: by B\n{}", world.log());
            assert!(world.left_by("sa") - a < 100_000, "{host}: not by A");
            exchange(connect(from, rest).unwrap(), 1 << 20);
            assert!(world.left_by("sa") - a > 1 << 20, "{host}: by A\n{}", world.log());
            let flows = world.proxy()["carried"].to_string();
            // Flows without a rule do not pass through the proxy.
            exchange(connect(from, other).unwrap(), 10_000);
            assert_eq!(world.proxy()["carried"].to_string(), flows);
        }
    }
    let carried = world.proxy()["carried"].clone();
    let of = |rule: &str, slice: &str| {
        let all = carried.as_array().unwrap().iter();
        all.filter(|c| c["rule"] == rule && c["slice"] == slice)
            .map(|c| c["flows"].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!((of("control", "B"), of("control", "A")), (4, 0), "{carried}");
    assert_eq!(of("rest", "A") + of("rest", ""), 4, "{carried}");
    world.until("no flow is left", || world.proxy()["flows"] == 0);
    proxy.stop();
    assert_eq!(world.picture(), with_agent);
    agent.stop();
    assert_eq!(world.picture(), before);
    assert!(!world.file("proxy.sock").exists());
    assert!(!world.log().contains("ERROR") && !world.log().contains("panicked"), "{}", world.log());
}

/// curl, unmodified, and a server that sees the slice's address.
#[test]
fn curl_gets_its_page() {
    let Some(world) = World::new() else { return };
    let _agent = world.start_agent();
    world.configure("", LOW_LATENCY);
    let proxy = world.start_proxy();
    for (host, slice) in [(V4, "10.2.0.2"), ("[2001:db8::80]", "fd02::2")] {
        let at: SocketAddr = format!("{host}:7080").parse().unwrap();
        let listener = world.net.run(move || std::net::TcpListener::bind(at).unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, from) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let len = stream.read(&mut request).unwrap();
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
                .unwrap();
            (String::from_utf8_lossy(&request[..len]).into_owned(), from.ip().to_string())
        });
        let page = world.ue.sh(&format!("curl -gs --max-time 20 http://{host}:7080/page"));
        let (request, from) = server.join().unwrap();
        assert_eq!((page.as_str(), from.as_str()), ("hello", slice), "{}", world.log());
        assert!(request.starts_with("GET /page HTTP/1.1"), "{request}");
    }
    proxy.stop();
}

fn talk(from: &Namespace, local: &str, to: SocketAddr) -> UdpSocket {
    let local: SocketAddr = local.parse().unwrap();
    let socket = from.run(move || UdpSocket::bind(local).unwrap());
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    // Answers come from the server that the program addressed, or not at all.
    socket.connect(to).unwrap();
    socket
}

#[track_caller]
fn udp_exchange(socket: &UdpSocket, sizes: &[usize]) {
    let mut buffer = vec![0; 65_536];
    for (i, len) in sizes.iter().enumerate() {
        let sent = vec![i as u8; *len];
        socket.send(&sent).unwrap();
        let got = socket.recv(&mut buffer).unwrap();
        assert_eq!((got, &buffer[..got]), (*len, &sent[..]));
    }
}

#[test]
fn udp_uses_the_slice_of_its_rule_in_both_families() {
    let Some(world) = World::new() else { return };
    let _agent = world.start_agent();
    world.configure("[intercept]\ninterfaces = [\"lan0\"]\n[limits]\nudp_idle_s = 1", LOW_LATENCY);
    let proxy = world.start_proxy();
    for (host, local) in [(V4, "0.0.0.0:0"), ("[2001:db8::80]", "[::]:0")] {
        let server = world.udp_echo(&format!("{host}:7002"));
        for from in [&world.ue, &world.lan] {
            let (a, b) = (world.left_by("sa"), world.left_by("sb"));
            let (one, two) = (talk(from, local, server), talk(from, local, server));
            // An empty datagram, and one that is fragmented on its path.
            udp_exchange(&one, &[100, 0, 1200, 8000, 1]);
            udp_exchange(&two, &[1200; 50]);
            udp_exchange(&one, &[1200; 50]);
            let (a, b) = (world.left_by("sa") - a, world.left_by("sb") - b);
            assert!(b > 120_000 && a < 20_000, "{host}: {a} by A, {b} by B\n{}", world.log());
        }
    }
    let flows = world.call("proxy", "GET", "/v1/proxy/flows", None);
    assert!(flows["flows"].as_array().unwrap().iter().all(|f| f["transport"] == "udp"), "{flows}");
    world.until("silent flows are forgotten", || world.proxy()["flows"] == 0);
    let node = world.proxy();
    let carried = node["carried"].as_array().unwrap().iter().find(|c| c["slice"] == "B").unwrap();
    assert!(carried["up_bytes"].as_u64().unwrap() >= 4 * 120_000, "{node}");
    assert_eq!(carried["up_bytes"], carried["down_bytes"], "{node}");
    proxy.stop();
}

#[test]
fn refusals_resets_and_half_closed_connections_are_passed_on() {
    let Some(world) = World::new() else { return };
    let _agent = world.start_agent();
    world.configure("", LOW_LATENCY);
    let proxy = world.start_proxy();
    // Nobody listens: the client gets a refusal.
    let nobody: SocketAddr = format!("{V4}:7009").parse().unwrap();
    let start = Instant::now();
    let refused = match connect(&world.ue, nobody) {
        Err(error) => error.kind(),
        Ok(mut stream) => stream.read(&mut [0; 10]).unwrap_err().kind(),
    };
    assert!(matches!(refused, ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset), "{refused:?}");
    assert!(start.elapsed() < Duration::from_secs(20), "not at the deadline: {:?}", start.elapsed());
    assert_eq!(world.proxy()["refused"]["unreachable"], 1, "{}", world.proxy());
    // A connection to the proxy itself is refused instead of being relayed in a loop.
    for port in ["127.0.0.1:15171", "[::1]:15171"] {
        // The reset may arrive before connect(2) returns.
        let reset =
            connect(&world.ue, port.parse().unwrap()).and_then(|mut stream| stream.read(&mut [0; 10]));
        assert_eq!(reset.unwrap_err().kind(), ErrorKind::ConnectionReset);
        let any = if port.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
        talk(&world.ue, any, port.parse().unwrap()).send(b"hello").unwrap();
    }
    world.until("none of it is left", || {
        world.proxy()["refused"]["no_rule"] == 4 && world.proxy()["flows"] == 0
    });
    // A reset of the server is passed on by the proxy, and likewise a reset of the client.
    let at: SocketAddr = format!("{V4}:7010").parse().unwrap();
    let listener = world.net.run(move || std::net::TcpListener::bind(at).unwrap());
    for by_server in [true, false] {
        let mut client = connect(&world.ue, at).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        client.write_all(b"hello").unwrap();
        server.read_exact(&mut [0; 5]).unwrap();
        let (ends, mut waits) = if by_server { (server, client) } else { (client, server) };
        socket2::SockRef::from(&ends).set_linger(Some(Duration::ZERO)).unwrap();
        drop(ends);
        let error = waits.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "by the server: {by_server}");
    }
    drop(listener);
    // The server sends its FIN before the client: the client's data still arrives.
    let at: SocketAddr = format!("{V4}:7011").parse().unwrap();
    let listener = world.net.run(move || std::net::TcpListener::bind(at).unwrap());
    let mut client = connect(&world.ue, at).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    server.write_all(b"all").unwrap();
    server.shutdown(std::net::Shutdown::Write).unwrap();
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"all");
    client.write_all(b"late words").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut got = Vec::new();
    server.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"late words");
    world.until("no flow is left", || world.proxy()["flows"] == 0);
    proxy.stop();
}

/// The agent answers, changes its answers, disappears and returns: flows always continue.
#[test]
fn flows_continue_whatever_happens_to_the_agent() {
    let Some(world) = World::new() else { return };
    let agent = world.start_agent();
    let strict = "[[rule]]\nname = \"strict\"\nfilter = { remote_port = 7500 }\nunmet = \"refuse\"\n\
                  properties = { \"_slice.latency\" = { atMostUs = 5000, preference = \"require\" } }\n";
    world.configure("", &format!("{LOW_LATENCY}{strict}"));
    let proxy = world.start_proxy();
    let (server, refused) = (world.echo(&format!("{V4}:7003")), world.echo(&format!("{V4}:7500")));
    let by_b = || {
        let b = world.left_by("sb");
        exchange(connect(&world.ue, server).unwrap(), 200_000);
        world.left_by("sb") - b > 200_000
    };
    assert!(by_b());
    // No slice meets the requirements, and the rule says `refuse`.
    let error = connect(&world.ue, refused).and_then(|mut s| s.read(&mut [0; 1])).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused), "{error}");
    assert_eq!(world.proxy()["refused"]["unmet"], 1);
    // B becomes slow: no slice meets the requirements of the control rule, and its flows use the routes of
    // the host.
    world.set_slices(json!({"rtt_us": 40_000}));
    world.until("the answer is asked for again", || !by_b());
    world.set_slices(json!({}));
    world.until("and again", by_b);
    // Killed: the last plan is valid for ten seconds. The routing rules of B remain, because nobody could
    // remove them.
    agent.signal(Signal::SIGKILL);
    drop(agent);
    assert!(by_b(), "{}", world.log());
    world.until("then flows go on without", || !by_b());
    let node = world.proxy();
    assert!(
        node["plans"]["last"].as_u64().unwrap() > 0 && node["plans"]["plain"].as_u64().unwrap() > 0,
        "{node}"
    );
    assert_eq!(node["agent"]["answers"], false, "{node}");
    let agent = world.start_agent();
    world.until("an agent that is back is asked", by_b);
    agent.stop();
    proxy.stop();
}

#[test]
fn a_proxy_can_be_killed_restarted_and_reloaded() {
    let Some(world) = World::new() else { return };
    let _agent = world.start_agent();
    let before = world.picture();
    world.configure("", LOW_LATENCY);
    let server = world.echo(&format!("{V4}:7004"));
    let proxy = world.start_proxy();
    let installed = world.picture();
    assert_ne!(installed, before);
    // A second proxy does not start, and does not affect the first.
    let mut second = world.spawn_proxy();
    assert_eq!(second.wait(Duration::from_secs(20)), 2);
    assert!(world.log().contains("another program listens there"), "{}", world.log());
    assert_eq!(world.picture(), installed);
    exchange(connect(&world.ue, server).unwrap(), 1000);
    proxy.signal(Signal::SIGKILL);
    drop(proxy);
    let proxy = world.start_proxy();
    assert_eq!(world.picture(), installed, "once, not twice");
    exchange(connect(&world.ue, server).unwrap(), 1000);
    // New rules after a reload; an existing connection continues.
    let open = connect(&world.ue, server).unwrap();
    world.until("it is there", || world.proxy()["flows"] == 1);
    world.configure("[limits]\nflows = 1", &LOW_LATENCY.replace("7000-7099", "7100-7199"));
    proxy.signal(Signal::SIGHUP);
    world.until("it has read it", || world.log().contains("reloaded"));
    exchange(connect(&world.ue, server).unwrap(), 1000);
    assert_eq!(world.proxy()["refused"]["limit"], 0, "what no rule is about does not come here");
    let other = world.echo(&format!("{V4}:7104"));
    let error = connect(&world.ue, other).and_then(|mut s| s.read(&mut [0; 1])).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused), "{error}");
    assert_eq!(world.proxy()["refused"]["limit"], 1, "{}", world.proxy());
    assert!(world.log().contains("flows are refused"), "{}", world.log());
    exchange(open, 100_000);
    world.until("there is room", || world.proxy()["flows"] == 0);
    exchange(connect(&world.ue, other).unwrap(), 1000);
    // An invalid file changes nothing.
    world.configure("[limits]\nflows = 0", LOW_LATENCY);
    let wrong = world.call("proxy", "POST", "/v1/reload", None);
    assert_eq!(wrong["status"], 400, "{wrong}");
    exchange(connect(&world.ue, other).unwrap(), 1000);
    proxy.signal(Signal::SIGINT);
    let mut proxy = proxy;
    assert_eq!(proxy.wait(Duration::from_secs(20)), 0);
    assert_eq!(world.picture(), before);
}

/// The output and exit code of a proxy with `own` in `[proxy]`, and REST interface and name of its own.
fn another(world: &World, from: &Namespace, own: &str, intercept: &str, flag: &str) -> (String, String) {
    let file = world.file("another.toml").display().to_string();
    let socket = world.file("another.sock").display().to_string();
    let text = format!(
        "[proxy]\nname = \"another\"\n{own}\n[intercept]\n{intercept}\n[api]\nlisten = \"unix:{socket}\"\n{LOW_LATENCY}"
    );
    std::fs::write(&file, text).unwrap();
    let run = format!("timeout 20 {ANABRANCH} proxy --config {file} {flag} 2>&1 || echo \"code $?\"");
    let text = from.sh(&run);
    let (said, code) = text.rsplit_once("code ").unwrap_or((&text, "0"));
    (said.to_owned(), code.trim().to_owned())
}

/// Marks and tables of a running proxy, of the slices of a UE, and of other programs are refused at a start and by a check,
/// and stay as they are.
#[test]
fn a_mark_that_another_program_uses_is_refused() {
    let Some(world) = World::new() else { return };
    let agent = world.start_agent();
    world.configure("[proxy]\nmark = 900\n", LOW_LATENCY);
    let server = world.echo(&format!("{V4}:7004"));
    let proxy = world.start_proxy();
    world.ue.sh("ip route add default via 10.1.0.1 table 520; ip rule add fwmark 531 lookup main");
    let open = connect(&world.ue, server).unwrap();
    world.until("it is there", || world.proxy()["flows"] == 1);
    let installed = world.picture();
    let asked =
        |mark: u32, flag: &str| another(&world, &world.ue, &format!("port = 15300\nmark = {mark}"), "", flag);
    for (mark, why) in [
        (899, "has mark and routing table 900"),
        (900, "has mark and routing table 900"),
        (901, "has mark and routing table 901"),
        // Slice B has 512, and 513 for its window.
        (511, "has mark and routing table 512"),
        (512, "has mark and routing table 512"),
        (513, "has mark and routing table 513"),
        (520, "another program has routes in table 520"),
        (530, "a rule of another program uses mark 531"),
    ] {
        for flag in ["--check", ""] {
            let (said, code) = asked(mark, flag);
            assert_eq!(code, "2", "{mark} {flag}: {said}");
            let parts = [&format!("another.toml: [proxy] mark = {mark}: "), why, "set another mark"];
            assert!(parts.iter().all(|part| said.contains(part)), "{said}");
            assert_eq!(said.lines().filter(|line| line.starts_with("anabranch: ")).count(), 1, "{said}");
            assert_eq!(world.picture(), installed);
        }
    }
    assert_eq!(asked(902, "--check"), (String::new(), "0".to_owned()));
    // In another network namespace, the marks are free.
    assert_eq!(another(&world, &world.lan, "mark = 900", "", "--check").1, "0");
    exchange(open, 100_000);
    exchange(connect(&world.ue, server).unwrap(), 1000);
    world.until("both passed the proxy", || world.proxy()["carried"][0]["flows"] == 2);
    // A killed proxy leaves nothing that blocks the next one.
    proxy.signal(Signal::SIGKILL);
    drop(proxy);
    assert_eq!(asked(900, "--check").1, "0");
    agent.stop();
    // A UE does not take the mark of a running proxy either.
    world.configure("[proxy]\nmark = 512\n", LOW_LATENCY);
    let proxy = world.start_proxy();
    let installed = world.picture();
    let config = world.file("ue.toml").display().to_string();
    let (said, started) = world.ue.try_sh(&format!("timeout 20 {ANABRANCH} ue --config {config} 2>&1"));
    assert!(!started && said.contains("[[slice]] B: another anabranch program"), "{said}");
    assert!(said.contains("has mark and routing table 512"), "{said}");
    assert_eq!(world.picture(), installed);
    exchange(connect(&world.ue, server).unwrap(), 1000);
    world.until("it passed the proxy", || world.proxy()["carried"][0]["flows"] == 1);
    proxy.stop();
}

/// A check reports an interface that does not exist; a running proxy warns once, and waits for it.
#[test]
fn missing_interfaces_are_reported() {
    let Some(world) = World::new() else { return };
    let check = |intercept: &str| another(&world, &world.ue, "", intercept, "--check");
    assert_eq!(check("interfaces = [\"lan0\"]"), (String::new(), "0".to_owned()));
    let (said, code) = check("interfaces = [\"lan0\", \"nope0\"]");
    assert_eq!(code, "2", "{said}");
    assert!(said.contains("another.toml: [intercept] interfaces \"nope0\": "), "{said}");
    // A running proxy waits for it.
    world.configure("[intercept]\ninterfaces = [\"lan0\", \"nope0\"]\n", LOW_LATENCY);
    let proxy = world.start_proxy();
    let warning = "\"nope0\" does not exist at present";
    world.until("it warns", || world.log().contains(warning));
    world.ue.sh("ip link add nope0 type veth peer name nope1");
    world.until("it has noticed the interface", || world.log().contains("\"nope0\" exists now"));
    assert_eq!(world.log().matches(warning).count(), 1);
    proxy.stop();
}

/// A port that another program has is reported at a start and by a check, but not that of the running proxy itself.
#[test]
fn a_port_in_use_is_reported() {
    let Some(world) = World::new() else { return };
    for (at, is_tcp) in [("127.0.0.1", true), ("[::1]", true), ("0.0.0.0", false), ("[::1]", false)]
        .map(|(ip, is_tcp)| (format!("{ip}:15171").parse::<SocketAddr>().unwrap(), is_tcp))
    {
        let held: Box<dyn std::any::Any + Send> = world.ue.run(move || {
            if is_tcp {
                Box::new(std::net::TcpListener::bind(at).unwrap()) as Box<dyn std::any::Any + Send>
            } else {
                Box::new(UdpSocket::bind(at).unwrap())
            }
        });
        for flag in ["--check", ""] {
            let (said, code) = another(&world, &world.ue, "", "", flag);
            assert_eq!(code, "2", "{at} {flag}: {said}");
            let protocol = if is_tcp { "TCP" } else { "UDP" };
            let why = format!("[proxy] port = 15171: another program has {protocol} port ");
            assert!(said.contains(&why) && said.contains("set another port"), "{said}");
        }
        drop(held);
    }
    world.configure("", LOW_LATENCY);
    let proxy = world.start_proxy();
    let own = format!("{ANABRANCH} proxy --check --config {}", world.file("proxy.toml").display());
    assert_eq!(world.ue.sh(&own), "");
    proxy.stop();
}

/// Killed with flows: new flows of host and LAN continue at once, also after a start that fails. `--clean`
/// removes the leftovers, and affects neither a running proxy nor the configuration of other programs.
#[test]
fn a_killed_proxy_blocks_no_flow() {
    let Some(world) = World::new() else { return };
    let before = world.picture();
    let head = "[intercept]\ninterfaces = [\"lan0\"]";
    let all = "[[rule]]\nname = \"all\"\n";
    let servers = [V4, "[2001:db8::80]"].map(|host| world.echo(&format!("{host}:8004")));
    let udp = world.udp_echo(&format!("{V4}:8005"));
    let new_flows = |why: &str| {
        for server in servers {
            for from in [&world.ue, &world.lan] {
                let stream = connect(from, server).unwrap_or_else(|e| panic!("{why}: {server}: {e}"));
                exchange(stream, 10_000);
            }
        }
        udp_exchange(&talk(&world.ue, "0.0.0.0:0", udp), &[100]);
    };
    let clean = || world.ue.sh(&format!("{ANABRANCH} proxy --clean"));
    for (round, name) in ["proxy", "other-name"].into_iter().enumerate() {
        let own =
            format!("[proxy]\nname = \"{name}\"\nport = {}\nmark = {}\n", 15_300 + round, 900 + 10 * round);
        world.configure(&format!("{own}{head}"), all);
        let proxy = world.start_proxy();
        new_flows("with a proxy");
        // A running proxy is not affected.
        let installed = world.picture();
        clean();
        assert_eq!(world.picture(), installed);
        let busy: Vec<_> = servers.iter().map(|server| connect(&world.ue, *server).unwrap()).collect();
        world.until("they pass it", || world.proxy()["flows"].as_u64() >= Some(2));
        proxy.signal(Signal::SIGKILL);
        drop(proxy);
        // The kernel removes the table when its owner's end of the pipe closes.
        world.until("nothing leads flows to it", || !world.ue.sh("nft list tables").contains("anabranch"));
        new_flows("killed");
        drop(busy);
        world.configure(&format!("nonsense = 1\n{head}"), all);
        assert_eq!(world.spawn_proxy().wait(Duration::from_secs(20)), 2);
        new_flows("after a start that failed");
        assert_eq!(world.picture(), before, "the failed start has cleaned up");
    }
    // On a kernel without owned tables, the table remains; the result is the same.
    world.configure(head, all);
    let proxy = world.start_proxy();
    let table = world.ue.sh("nft list ruleset").replace("flags owner", "");
    proxy.signal(Signal::SIGKILL);
    drop(proxy);
    world.until("nothing leads flows to it", || !world.ue.sh("nft list tables").contains("anabranch"));
    clean();
    let leave = || {
        std::fs::write(world.file("table.nft"), &table).unwrap();
        world.ue.sh(&format!("nft -f {}", world.file("table.nft").display()));
        world.ue.sh("ip rule add fwmark 43872 table 43872 priority 20600 proto 171
                     ip route add local default dev lo table 43872 proto 171");
        let server = servers[0];
        let cut_off = world.ue.run(move || TcpStream::connect_timeout(&server, Duration::from_secs(1)));
        assert!(cut_off.is_err(), "the leftover takes flows");
    };
    leave();
    clean();
    new_flows("after --clean");
    assert_eq!(world.picture(), before);
    leave();
    world.configure("nonsense = 1", all);
    assert_eq!(world.spawn_proxy().wait(Duration::from_secs(20)), 2);
    new_flows("after a start that failed");
    assert_eq!(world.picture(), before);
}

/// An `nft` that ends right after each start, or a moment later: it is restarted with growing pauses, which
/// is reported once, and the table is restored when one is stable.
#[test]
fn an_unstable_nft_is_restarted_with_growing_pauses_and_reported_once() {
    for dies in ["exit 3", "timeout -s KILL 0.5 $nft \"$@\"; exit 3"] {
        let Some(world) = World::new() else { return };
        world.configure("", "[[rule]]\nname = \"all\"\n");
        let (starts, dying) = (world.file("starts"), world.file("dying"));
        std::fs::create_dir(world.file("bin")).unwrap();
        let script = format!(
            "#!/bin/sh\nnft=$(PATH=${{PATH#*:}} command -v nft)\ncase \"$*\" in *-i*) echo >> {}; [ -e {} ] && {{ {dies}; }};; esac\n\
             exec $nft \"$@\"\n",
            starts.display(),
            dying.display()
        );
        std::fs::write(world.file("bin/nft"), script).unwrap();
        world.ue.sh(&format!("chmod +x {}", world.file("bin/nft").display()));
        let path = format!("PATH={}:{}", world.file("bin").display(), std::env::var("PATH").unwrap());
        let proxy = world.spawn_proxy_with(&[path]);
        world.until("the proxy runs", || world.log().contains("proxy runs"));
        let there = || world.ue.sh("nft list tables").contains("anabranch");
        assert!(there());
        let count = || std::fs::read_to_string(&starts).unwrap().lines().count();
        assert_eq!(count(), 1);
        std::fs::write(&dying, "").unwrap();
        let begun = Instant::now();
        world.ue.sh(&format!("kill -9 $(pgrep -P {} -x nft)", proxy.pid()));
        let told = || world.log().matches("kind=\"not-restored\"").count();
        world.until("it is told", || told() > 0);
        // At once, and 1, 3 and 7 s after that.
        assert!(begun.elapsed() > Duration::from_millis(2500), "{:?}", begun.elapsed());
        assert!((4..=5).contains(&count()), "{} starts\n{}", count(), world.log());
        std::fs::remove_file(&dying).unwrap();
        world.until("the table is there again", || there() && world.log().contains("it is there again"));
        std::thread::sleep(Duration::from_millis(1500));
        assert!(there());
        assert_eq!(told(), 1, "{}", world.log());
        proxy.stop();
        assert!(!there());
    }
}

/// nftables cannot match the cgroup of a rule, so flows of other programs and machines reach the proxy, too.
#[test]
fn flows_that_differ_from_a_rule_only_in_cgroup_continue() {
    let Some(world) = World::new() else { return };
    world.configure(
        "[intercept]\ninterfaces = [\"lan0\"]",
        "[[rule]]\nname = \"apps\"\nfilter = { cgroup = \"no/such/group\", remote_port = \"7000-7099\" }\n",
    );
    let proxy = world.start_proxy();
    let (tcp, udp) = (world.echo(&format!("{V4}:7021")), world.udp_echo(&format!("{V4}:7022")));
    for from in [&world.ue, &world.lan] {
        exchange(connect(from, tcp).unwrap(), 10_000);
        udp_exchange(&talk(from, "0.0.0.0:0", udp), &[100, 1000]);
    }
    let node = world.proxy();
    assert_eq!((&node["refused"]["no_rule"], &node["plans"]["plain"]), (&json!(0), &json!(4)), "{node}");
    proxy.stop();
}

/// A resolver uses another port for every request, so each is a flow. A longer exchange that is idle for as
/// long stays.
#[test]
fn answered_requests_make_room_for_other_flows() {
    let Some(world) = World::new() else { return };
    world.configure(
        "[limits]\nudp_flows_per_client = 4",
        "[[rule]]\nname = \"all\"\nfilter = { protocol = \"udp\" }\n",
    );
    let proxy = world.start_proxy();
    let server = world.udp_echo(&format!("{V4}:7053"));
    let conversation = talk(&world.ue, "0.0.0.0:0", server);
    udp_exchange(&conversation, &[100, 100]);
    let begin = Instant::now();
    for question in 0..8 {
        let one = talk(&world.ue, "0.0.0.0:0", server);
        one.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        world.until("it is answered", || {
            one.send(&[question]).unwrap();
            one.recv(&mut [0; 10]).is_ok()
        });
    }
    assert!(begin.elapsed() > Duration::from_secs(4), "there was no room for all of them");
    let flows = world.call("proxy", "GET", "/v1/proxy/flows", None);
    let client = format!("10.1.0.2:{}", conversation.local_addr().unwrap().port());
    assert!(flows["flows"].as_array().unwrap().iter().any(|f| f["client"] == client), "{flows}");
    proxy.stop();
}

/// The server sees the client's address, and its answers arrive.
#[test]
fn the_clients_address_is_kept_if_the_rule_says_so() {
    let Some(world) = World::new() else { return };
    world.configure(
        "[intercept]\nlocal = false\ninterfaces = [\"lan0\"]",
        "[[rule]]\nname = \"keep\"\nfilter = { remote_port = 7005 }\nsource = \"client\"\n",
    );
    let before = world.picture();
    let proxy = world.start_proxy();
    for (host, client) in [(V4, "10.3.0.2"), (V6, "fd03::2")] {
        let at = SocketAddr::new(host.parse().unwrap(), 7005);
        let listener = world.net.run(move || std::net::TcpListener::bind(at).unwrap());
        let mut stream = connect(&world.lan, at).unwrap();
        stream.write_all(b"who am I").unwrap();
        let (mut server, from) = listener.accept().unwrap();
        assert_eq!(from.ip().to_string(), client);
        server.write_all(b"you").unwrap();
        stream.read_exact(&mut [0; 3]).unwrap();
        let udp = world.udp_echo(&at.to_string());
        let any = if at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        udp_exchange(&talk(&world.lan, any, udp), &[100, 1000]);
    }
    let node = world.proxy();
    assert_eq!(node["agent"]["answers"], false, "there is none: {node}");
    assert_eq!(node["plans"]["plain"], 4, "{node}");
    proxy.stop();
    assert_eq!(world.picture(), before);
}

/// A thousand simultaneous flows; all descriptors are released.
#[test]
fn a_thousand_flows_at_once() {
    const FLOWS: usize = 1000;
    let Some(world) = World::new() else { return };
    let (_, most) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, most, most).unwrap();
    let _agent = world.start_agent();
    world.configure("[proxy]\nworkers = 2", LOW_LATENCY);
    let proxy = world.start_proxy();
    let server = world.echo(&format!("{V4}:7006"));
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", proxy.pid())).unwrap().count();
    exchange(connect(&world.ue, server).unwrap(), 1000);
    world.until("it is over", || world.proxy()["flows"] == 0);
    let before = descriptors();
    let mut streams: Vec<_> = (0..FLOWS).map(|_| connect(&world.ue, server).unwrap()).collect();
    for (i, stream) in streams.iter_mut().enumerate() {
        stream.write_all(&[i as u8; 100]).unwrap();
    }
    for (i, stream) in streams.iter_mut().enumerate() {
        let mut got = [0; 100];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(got, [i as u8; 100]);
    }
    let node = world.proxy();
    assert_eq!(node["flows"], FLOWS, "{node}");
    assert!(node["agent"]["asked"].as_u64().unwrap() < 100, "one question for many flows: {node}");
    let page = world.call("proxy", "GET", "/v1/proxy/flows?offset=990&limit=100", None);
    assert_eq!((&page["total"], page["flows"].as_array().unwrap().len()), (&json!(FLOWS), 10));
    assert_eq!(page["flows"][0]["way"]["slice"], "B", "{page}");
    drop(streams);
    world.until("no flow is left", || world.proxy()["flows"] == 0);
    // Pipes kept by threads, and connections of the agent and of this request, remain.
    world.until("no descriptor stays", || descriptors() <= before + 2 * 64 * 2 + 8);
    proxy.stop();
}

#[test]
fn a_wrong_file_is_refused_with_place_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("proxy.toml");
    for (text, parts) in [
        ("", &["no [[rule]]", "name = \"all\""][..]),
        (
            "[[rule]]\nname = \"x\"\nfilter = { protocl = \"tcp\" }\n",
            &["proxy.toml:3", "did you mean \"protocol\"?"],
        ),
        ("[proxy]\nport = 0\n[[rule]]\nname = \"x\"\n", &["[proxy] port = 0", "1 to 65535"]),
    ] {
        std::fs::write(&file, text).unwrap();
        let output = Command::new(ANABRANCH).args(["proxy", "--config"]).arg(&file).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// The DSCP of a rule's capacity profile is set in every packet, for both protocols and families.
#[test]
fn a_capacity_profile_sets_its_dscp() {
    let Some(world) = World::new() else { return };
    let _agent = world.start_agent();
    let calls = "[[rule]]\nname = \"calls\"\nfilter = { remote_port = 7300 }\n\
                 properties = { pvd = { B = \"require\" }, connCapacityProfile = \"lowLatencyInteractive\" }\n";
    world.configure("", calls);
    let proxy = world.start_proxy();
    world
        .net
        .sh("nft add table inet seen; nft 'add chain inet seen got { type filter hook input priority 0; }'");
    for dscp in ["ip dscp af41", "ip6 dscp af41", "ip dscp != af41", "ip6 dscp != af41"] {
        let ours = "meta l4proto '{ tcp, udp }' th dport 7300";
        world.net.sh(&format!("nft add rule inet seen got {ours} {dscp} counter"));
    }
    for (host, local) in [(V4, "0.0.0.0:0"), ("[2001:db8::80]", "[::]:0")] {
        let at = format!("{host}:7300");
        udp_exchange(&talk(&world.ue, local, world.udp_echo(&at)), &[100, 1200, 0]);
        exchange(connect(&world.ue, world.echo(&at)).unwrap(), 10_000);
    }
    let seen = world.net.sh("nft -j list table inet seen");
    let seen: serde_json::Value = serde_json::from_str(&seen).unwrap();
    let rules = seen["nftables"].as_array().unwrap().iter().filter_map(|one| one["rule"]["expr"].as_array());
    let packets: Vec<u64> =
        rules.map(|expr| expr.iter().find_map(|e| e["counter"]["packets"].as_u64()).unwrap()).collect();
    assert!(packets[0] > 6 && packets[1] > 6, "{packets:?}\n{}", world.log());
    assert_eq!(packets[2..], [0, 0], "{packets:?}");
    proxy.stop();
}

/// The best slice does not answer: the next one carries the connection shortly after.
#[test]
fn the_next_candidate_is_tried_when_the_first_is_dead() {
    let Some(world) = World::new() else { return };
    let _agent = world.start_agent();
    let prefer = "[[rule]]\nname = \"quick\"\nfilter = { remote_port = 7400 }\n\
                  properties = { \"_slice.latency\" = { atMostUs = 15000 }, interface = { sa = \"no-preference\" } }\n";
    world.configure("", prefer);
    let proxy = world.start_proxy();
    let server = world.echo(&format!("{V4}:7400"));
    exchange(connect(&world.ue, server).unwrap(), 1000);
    world
        .net
        .sh("nft add table inet dead; nft 'add chain inet dead got { type filter hook input priority 0; }'
                  nft add rule inet dead got iifname sb drop");
    let start = Instant::now();
    exchange(connect(&world.ue, server).unwrap(), 1000);
    assert!(start.elapsed() < Duration::from_secs(20), "not at the deadline: {:?}", start.elapsed());
    let node = world.proxy();
    let slices: Vec<&str> =
        node["carried"].as_array().unwrap().iter().map(|c| c["slice"].as_str().unwrap()).collect();
    assert_eq!(slices, ["A", "B"], "{node}");
    assert!(node["retries"].as_u64().unwrap() >= 1, "{node}");
    proxy.stop();
}

/// No slice has the rate alone, but both together have: the connection to the server uses Multipath TCP,
/// whether the server supports it or not; the program uses TCP. A server that supports it receives less data
/// than Linux 6.18 may corrupt (docs/limitations.md).
#[test]
fn multipath_tcp_is_used_if_the_plan_says_so() {
    let Some(world) = World::new() else { return };
    let _agent = world.start_agent();
    world.configure(
        "",
        "[[rule]]\nname = \"both\"\nfilter = { remote_port = \"7600-7699\" }\nproperties = { minSendRate = 60_000_000 }\n",
    );
    let proxy = world.start_proxy();
    for (host, port) in [(V4, 7601), (V6, 7602)] {
        let plain = SocketAddr::new(host.parse().unwrap(), port);
        exchange(connect(&world.ue, world.echo(&plain.to_string())).unwrap(), 1 << 20);
        let speaks = SocketAddr::new(plain.ip(), port + 10);
        let listener = world.net.run(move || {
            let mptcp = Some(socket2::Protocol::MPTCP);
            let socket =
                socket2::Socket::new(socket2::Domain::for_address(speaks), socket2::Type::STREAM, mptcp);
            let socket = socket.unwrap();
            socket.bind(&speaks.into()).unwrap();
            socket.listen(8).unwrap();
            std::net::TcpListener::from(socket)
        });
        world::echo_at(listener);
        let stream = connect(&world.ue, speaks).unwrap();
        world.until("it is connected", || {
            let flows = world.call("proxy", "GET", "/v1/proxy/flows", None);
            flows["flows"].as_array().is_some_and(|all| all.iter().any(|f| f["way"]["protocol"] == "mptcp"))
        });
        let sockets = world.ue.sh(&format!("ss -MHn state established 'dport = :{}'", speaks.port()));
        assert!(!sockets.trim().is_empty(), "one of Multipath TCP\n{}", world.log());
        exchange(stream, 48 << 10);
    }
    proxy.stop();
}
