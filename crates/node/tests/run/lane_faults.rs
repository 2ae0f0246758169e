//! Flows of the TCP lane when something fails: an access while one end of the flow has sent all, so that the kernel gives it no
//! further subflow, and either program.

use super::net::World;
use super::tcp_lane::{
    ROUTED, RULES, by_default, exchange, flow, lane, lose, start_with, subflows, transfer,
};
use nix::sys::signal::Signal;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// What happens to the access of the only subflow.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// Its interface has no carrier any more.
    Carrier,
    /// Its packets vanish, both ways.
    Vanish,
    /// It loses three packets of ten on the way to the UE.
    Loss,
}

impl Fault {
    fn begin(self, world: &World) {
        match self {
            Self::Carrier => drop(world.ue.sh("ip link set 5g0 down")),
            Self::Vanish => drop(world.ue.sh(
                "nft 'add table inet hole; add chain inet hole in { type filter hook input priority 0; }
                 add chain inet hole out { type filter hook output priority 0; }
                 add rule inet hole in iifname \"5g0\" drop; add rule inet hole out oifname \"5g0\" drop'",
            )),
            Self::Loss => lose(world, "5g0", "numgen random mod 100 < 30"),
        }
    }

    fn end(self, world: &World) {
        world.ue.sh(match self {
            Self::Carrier => "ip link set 5g0 up",
            Self::Vanish | Self::Loss => "nft delete table inet hole",
        });
    }
}

/// A transfer of some seconds that begins while only one access is up; that is lost as soon as there is another one. How long the
/// receiver waited at most.
fn survives(world: &World, up: bool, fault: Fault) -> Duration {
    world.ue.sh("ip link set wifi0 down");
    world.until("only one access may be used", || {
        let left = lane(world, "ue")["left"].to_string();
        left.contains("wifi") && !left.contains("5g")
    });
    let (client, server) = flow(world);
    let (from, to) = if up { (client, server) } else { (server, client) };
    to.shutdown(Shutdown::Write).unwrap();
    let longest = transfer(from, to, 40 << 20);
    std::thread::sleep(Duration::from_millis(200));
    world.ue.sh("ip link set wifi0 up; ip addr replace fd02::2/64 dev wifi0");
    world.until("both accesses may be used", || {
        world.paths_up("ue") == 2 && lane(world, "ue")["left"].is_null()
    });
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(subflows(world), 1, "up {up}, {fault:?}: it gets no other one");
    fault.begin(world);
    let start = Instant::now();
    let longest = longest();
    println!(
        "up {up}, {fault:?}: longest silence {longest:?}, {:?} from the fault to the end",
        start.elapsed()
    );
    fault.end(world);
    world.until("both accesses are up", || world.paths_up("ue") == 2);
    longest
}

fn survives_each(up: bool) {
    let Some((world, upf, ue)) = start_with(&by_default(RULES), &by_default(ROUTED)) else { return };
    // Loss is remembered: it comes last.
    for fault in [Fault::Carrier, Fault::Vanish, Fault::Loss] {
        let longest = survives(&world, up, fault);
        assert!(longest < Duration::from_secs(2), "up {up}, {fault:?}: {longest:?}\n{}", world.logs());
    }
    ue.stop();
    upf.stop();
}

#[test]
fn an_upload_whose_server_has_sent_all_goes_on_when_its_access_is_lost() {
    survives_each(true);
}

#[test]
fn a_download_whose_client_has_sent_all_goes_on_when_its_access_is_lost() {
    survives_each(false);
}

/// Both accesses lose their carriers, first the one with the only subflow of a connection.
#[test]
fn a_flow_goes_on_after_no_access_was_up() {
    let Some((world, upf, ue)) = start_with(RULES, ROUTED) else { return };
    let down = |access: &str, up: usize| {
        world.ue.sh(&format!("ip link set {access} down"));
        world.until("the access is down", || world.paths_up("ue") == up);
    };
    let up = |access: &str| {
        world.ue.sh(&format!("ip link set {access} up"));
        if access == "wifi0" {
            world.ue.sh("ip addr replace fd02::2/64 dev wifi0");
        }
    };
    let both = || world.until("both accesses are up", || world.paths_up("ue") == 2);
    for [only, other] in [["5g0", "wifi0"], ["wifi0", "5g0"]] {
        down(other, 1);
        let (client, mut server) = flow(&world);
        server.write_all(b"all").unwrap();
        server.shutdown(Shutdown::Write).unwrap();
        (&client).read_exact(&mut [0; 3]).unwrap();
        up(other);
        both();
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(subflows(&world), 1, "it gets no other one");
        down(only, 1);
        down(other, 0);
        // Longer than the pause before needed endpoints are checked again.
        std::thread::sleep(Duration::from_secs(2));
        up(only);
        up(other);
        println!("{only}: both up after {:?}", both());
        transfer(client, server, 1 << 20)();
    }
    ue.stop();
    upf.stop();
}

/// How long until a connection on which nobody sends is reset.
#[track_caller]
fn until_reset(stream: &mut TcpStream, what: &str) -> Duration {
    let start = Instant::now();
    let ended = stream.read(&mut [0; 1]);
    let reset = ended.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset);
    assert!(reset, "{what}: {ended:?} after {:?}", start.elapsed());
    start.elapsed()
}

/// Both ends of idle flows are told, as well as the programs that ended can.
#[test]
fn idle_flows_are_reset_when_either_program_ends() {
    let Some((world, mut upf, mut ue)) = start_with(RULES, ROUTED) else { return };
    let runs = || world.paths_up("ue") == 2 && lane(&world, "ue")["state"] == "runs";
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let (mut client, mut server) = flow(&world);
        world.until("both ends have the flow", || {
            ["ue", "upf"].iter().all(|part| lane(&world, part)["flows"] == 1)
        });
        upf.signal(signal);
        // A thread of low priority may be the last to end.
        upf.wait(Duration::from_secs(30));
        if signal == Signal::SIGTERM {
            let took = until_reset(&mut server, "the server");
            assert!(took < Duration::from_secs(2), "{took:?}");
        }
        upf = world.start_upf();
        world.until("the lane runs again", runs);
        println!("UPF, {signal}: the client is told after {:?}", until_reset(&mut client, "the client"));
    }
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let (mut client, mut server) = flow(&world);
        world.until("both ends have the flow", || {
            ["ue", "upf"].iter().all(|part| lane(&world, part)["flows"] == 1)
        });
        ue.signal(signal);
        ue.wait(Duration::from_secs(30));
        let took = until_reset(&mut client, "the client");
        assert!(took < Duration::from_secs(2), "{took:?}");
        if signal == Signal::SIGTERM {
            let took = until_reset(&mut server, "the server");
            assert!(took < Duration::from_secs(2), "{took:?}");
        }
        ue = world.start_ue();
        world.until("the lane runs again", runs);
        if signal == Signal::SIGKILL {
            // The UE has a new session.
            let took = until_reset(&mut server, "the server");
            assert!(took < Duration::from_secs(2), "{took:?}");
            let (client, server) = flow(&world);
            exchange(client, server, 100_000);
        }
    }
    ue.stop();
    upf.stop();
}

#[test]
fn flows_end_when_their_ue_is_removed_from_the_file() {
    let Some((world, upf, ue)) = start_with(RULES, ROUTED) else { return };
    let (_client, mut server) = flow(&world);
    world.until("both ends have the flow", || {
        ["ue", "upf"].iter().all(|part| lane(&world, part)["flows"] == 1)
    });
    let text = std::fs::read_to_string(world.file("upf.toml")).unwrap();
    let (before, rest) = text.split_once("[[ue]]").unwrap();
    let without = format!("{before}{}", &rest[rest.find("[api]").unwrap()..]);
    std::fs::write(world.file("upf.toml"), without).unwrap();
    upf.signal(Signal::SIGHUP);
    let took = until_reset(&mut server, "the server");
    assert!(took < Duration::from_secs(2), "{took:?}");
    ue.stop();
    upf.stop();
}
