//! Faults of the proxy under live traffic: killed at any moment of its start, stopped, without file
//! descriptors, ended.

use super::live::{self, Flow, Live};
use super::net::{Namespace, Program};
use super::shim::{Shim, give_descriptors, take_descriptors};
use super::world::{V4, World, connect, exchange};
use nix::sys::signal::Signal;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

const HEAD: &str = "[intercept]\ninterfaces = [\"lan0\"]\n";
const ALL: &str = "[[rule]]\nname = \"all\"\n";

/// Time for which new flows of the host and of the LAN, in both families, may be refused.
#[track_caller]
fn new_flows(world: &World, servers: &[SocketAddr; 2], grace: Duration, why: &str) {
    for server in servers {
        for from in [&world.ue, &world.lan] {
            let stream = connect_soon(from, *server, grace)
                .unwrap_or_else(|e| panic!("{why}: {server}: {e}\n{}", world.log()));
            exchange(stream, 1000);
        }
    }
}

/// Until nft has noticed the end of a proxy, its socket is closed but its table remains, and connections are
/// refused.
const DEATH: Duration = Duration::from_millis(500);

fn connect_soon(from: &Namespace, server: SocketAddr, grace: Duration) -> std::io::Result<TcpStream> {
    let start = Instant::now();
    loop {
        match connect(from, server) {
            Err(e) if e.kind() == ErrorKind::ConnectionRefused && start.elapsed() < grace => {
                std::thread::sleep(Duration::from_millis(20));
            }
            answer => return answer,
        }
    }
}

fn servers(world: &World) -> [SocketAddr; 2] {
    [V4, "[2001:db8::80]"].map(|host| {
        let at: SocketAddr = format!("{host}:8020").parse().unwrap();
        live::serve(&world.net, at);
        at
    })
}

/// Killed right after each request to the kernel and to nft during its start, and after every other kill a
/// start that fails. Existing flows are not affected; new flows continue at once.
#[test]
fn a_proxy_killed_at_any_step_of_its_start_blocks_no_flow() {
    let Some(world) = World::new() else { return };
    let shim = Shim::new(world.file("x").parent().unwrap());
    let before = world.picture();
    let servers = servers(&world);
    world.configure(HEAD, ALL);
    let mut program = world.spawn_proxy_with(&shim.count());
    world.until("it runs", || world.log().contains("proxy runs"));
    let steps = shim.steps();
    program.signal(Signal::SIGTERM);
    assert_eq!(program.wait(Duration::from_secs(20)), 0);
    assert_eq!(world.picture(), before);
    assert!((5..200).contains(&steps), "{steps} steps");
    let traffic = [&world.ue, &world.lan].map(|from| Live::start(from, servers[0]));
    for last in 1..=steps {
        let starts = world.log().matches("proxy runs").count();
        let mut program = world.spawn_proxy_with(&shim.die_after(last));
        world.until("it dies, or needs fewer steps", || {
            !program.is_running() || world.log().matches("proxy runs").count() > starts
        });
        if program.is_running() {
            program.signal(Signal::SIGKILL);
        }
        program.wait_killed();
        // A table disappears as soon as nft notices the end of the proxy; a dropped SYN is retransmitted
        // after a second.
        let start = Instant::now();
        new_flows(&world, &servers, DEATH, &format!("killed after step {last} of {steps}"));
        assert!(start.elapsed() < Duration::from_millis(2500), "step {last}: {:?}", start.elapsed());
        if last % 2 == 0 {
            world.configure(&format!("nonsense = 1\n{HEAD}"), ALL);
            assert_eq!(world.spawn_proxy().wait(Duration::from_secs(20)), 2);
            assert_eq!(world.picture(), before, "after step {last}, a start that failed has cleaned up");
            new_flows(
                &world,
                &servers,
                Duration::ZERO,
                &format!("killed after step {last}, and a start that failed"),
            );
            world.configure(HEAD, ALL);
        }
    }
    let proxy = world.start_proxy();
    new_flows(&world, &servers, Duration::ZERO, "with a proxy");
    for (traffic, of) in traffic.into_iter().zip(["host", "LAN"]) {
        let name =
            format!("proxy killed after each of {steps} steps of its start; flows of the {of} from before");
        Flow::judge(&traffic.end(), &name, [500.0, 500.0], || world.log());
    }
    proxy.stop();
    assert_eq!(world.picture(), before);
}

/// Applies a fault to a proxy with flows; `most_ms` are upper bounds of the outages of TCP and UDP,
/// milliseconds.
fn suffer(name: &str, most_ms: [f64; 2], fault: impl FnOnce(&World, &mut Program, &[SocketAddr; 2])) {
    let Some(world) = World::new() else { return };
    let servers = servers(&world);
    world.configure(HEAD, ALL);
    let before = world.picture();
    let mut proxy = world.start_proxy();
    let traffic = Live::start(&world.lan, servers[0]);
    std::thread::sleep(Duration::from_millis(500));
    assert!(world.proxy()["flows"].as_u64() >= Some(2), "{}", world.proxy());
    fault(&world, &mut proxy, &servers);
    new_flows(&world, &servers, Duration::ZERO, name);
    std::thread::sleep(Duration::from_millis(300));
    Flow::judge(&traffic.end(), name, most_ms, || world.log());
    proxy.stop();
    assert_eq!(world.picture(), before);
}

#[test]
fn flows_survive_a_proxy_that_is_stopped() {
    suffer("proxy stopped for 2 s (SIGSTOP)", [4_000.0, 3_000.0], |_, proxy, _| {
        proxy.signal(Signal::SIGSTOP);
        std::thread::sleep(Duration::from_secs(2));
        proxy.signal(Signal::SIGCONT);
    });
}

/// New connections wait for a file descriptor or are refused; existing ones continue; both are logged.
#[test]
fn flows_survive_a_proxy_without_descriptors() {
    suffer("proxy without descriptors for 2 s (EMFILE)", [500.0, 500.0], |world, proxy, servers| {
        let limit = take_descriptors(proxy.pid());
        let waits = connect(&world.lan, servers[0]);
        std::thread::sleep(Duration::from_secs(2));
        assert!(world.log().contains("is the limit of open files too low?"), "{}", world.log());
        give_descriptors(proxy.pid(), &limit);
        // A waiting connection is served now.
        exchange(waits.unwrap(), 1000);
        assert!(world.proxy()["refused"]["socket"].as_u64() >= Some(1), "{}", world.proxy());
        assert!(proxy.is_running());
    });
}

/// When a proxy ends, its connections are reset, and a program that connects again at once bypasses it; so do the datagrams
/// of open flows.
#[test]
fn a_proxy_that_ends_refuses_no_flow() {
    let Some(world) = World::new() else { return };
    let servers = servers(&world);
    world.configure(HEAD, ALL);
    let before = world.picture();
    for round in 0..4 {
        let proxy = world.start_proxy();
        std::thread::scope(|scope| {
            for from in [&world.ue, &world.lan] {
                let server = servers[round % 2];
                let mut open = connect(from, server).unwrap();
                open.write_all(b"x").unwrap();
                open.read_exact(&mut [0]).unwrap();
                scope.spawn(move || {
                    let error = open.read(&mut [0]).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                    exchange(connect(from, server).unwrap(), 1000);
                });
                let any: SocketAddr = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
                let socket = from.run(move || UdpSocket::bind(any).unwrap());
                socket.connect(server).unwrap();
                socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
                scope.spawn(move || {
                    let start = Instant::now();
                    while start.elapsed() < Duration::from_secs(2) {
                        socket.send(b"x").unwrap();
                        // The proxy may have taken the last one with it.
                        let answer = socket.recv(&mut [0; 8]).map_err(|error| error.kind());
                        assert!(matches!(answer, Ok(1) | Err(ErrorKind::WouldBlock)), "{answer:?}");
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    socket.send(b"x").unwrap();
                    assert_eq!(socket.recv(&mut [0; 8]).unwrap(), 1);
                });
            }
            std::thread::sleep(Duration::from_millis(500));
            proxy.stop();
        });
        assert_eq!(world.picture(), before);
    }
}
