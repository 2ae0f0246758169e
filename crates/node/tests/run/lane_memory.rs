//! Memory of flows of the TCP lane that nobody reads.

use super::Options;
use super::net::{ANABRANCH, Namespace, Program, World, generate_key};
use super::tcp_lane::{ROUTED, RULES, V4, carried, connect, exchange, lane, listen, start_with, world};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const FLOWS: usize = 40;
const WARM_BYTES: usize = 8 << 20;
const SHARE_MB: u64 = 64;

/// An end of a flow, which does not block.
struct End {
    stream: TcpStream,
    sent: usize,
    got: usize,
}

impl End {
    fn new(stream: TcpStream) -> Self {
        stream.set_nonblocking(true).unwrap();
        Self { stream, sent: 0, got: 0 }
    }

    /// Number of bytes that were accepted.
    fn send(&mut self) -> usize {
        let sent = now(self.stream.write(&[7; 1 << 16]));
        self.sent += sent;
        sent
    }

    /// Number of bytes that were there.
    fn read(&mut self) -> usize {
        let got = now(self.stream.read(&mut [0; 1 << 16]));
        self.got += got;
        got
    }
}

fn now(result: std::io::Result<usize>) -> usize {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        other => other.unwrap(),
    }
}

/// Both ends have received what the other sent.
fn complete([client, server]: &[End; 2]) -> bool {
    client.got == server.sent && server.got == client.sent
}

/// Sends at all ends until none has accepted anything for this time.
fn send_until_still(flows: &mut [[End; 2]], time: Duration) {
    let mut last = Instant::now();
    while last.elapsed() < time {
        if flows.iter_mut().flatten().map(End::send).sum::<usize>() > 0 {
            last = Instant::now();
        } else {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn held_mb(world: &World, part: &str) -> u64 {
    lane(world, part)["held_bytes"].as_u64().unwrap() >> 20
}

/// Flows that were fast, so that the kernel has enlarged their buffers, are not read any more.
#[test]
fn flows_that_stand_hold_no_more_than_their_share_and_do_not_slow_others() {
    let upf_more = format!("{ROUTED}memory_per_session_mb = {SHARE_MB}\n");
    // A client has at most half.
    let ue_rules = format!("{RULES}memory_mb = {}\n", 2 * SHARE_MB);
    let Some((world, upf, ue)) = start_with(&ue_rules, &upf_more) else { return };
    let listener = listen(&world.server, &format!("{V4}:8080"));
    let open = || {
        let client = connect(&world.ue, &format!("{V4}:8080")).unwrap();
        (client, listener.accept().unwrap().0)
    };
    let mut flows = Vec::new();
    for _ in 0..FLOWS {
        let (client, server) = open();
        let mut flow = [End::new(client), End::new(server)];
        while flow.iter().any(|end| end.sent < WARM_BYTES) || !complete(&flow) {
            for end in &mut flow {
                if end.sent < WARM_BYTES {
                    end.send();
                }
                end.read();
            }
        }
        flows.push(flow);
    }
    send_until_still(&mut flows, Duration::from_secs(2));
    let held = ["ue", "upf"].map(|part| held_mb(&world, part));
    println!("held by UE and UPF: {held:?} MiB; {}", lane(&world, "upf"));
    for (part, held) in ["ue", "upf"].into_iter().zip(held) {
        // What arrives between two measurements comes in addition.
        assert!((SHARE_MB / 4..=SHARE_MB * 2).contains(&held), "{part}: {held} MiB; {}", lane(&world, part));
    }
    let start = Instant::now();
    let (client, server) = open();
    exchange(client, server, 8 << 20);
    println!("another flow took {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}\n{}", start.elapsed(), world.logs());
    let start = Instant::now();
    while !flows.iter().all(complete) {
        if flows.iter_mut().flatten().map(End::read).sum::<usize>() == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(start.elapsed() < Duration::from_secs(120), "flows do not go on\n{}", lane(&world, "ue"));
    }
    println!("all had gone on after {:?}", start.elapsed());
    for part in ["ue", "upf"] {
        world.until("nothing is limited any more", || {
            let lane = lane(&world, part);
            (lane["held_bytes"].as_u64(), lane["limited"].as_u64()) == (Some(0), Some(0))
        });
    }
    drop(flows);
    ue.stop();
    upf.stop();
}

/// Starts a second UE with its own accesses; its agent is `laptop`.
fn start_laptop(world: &World, ns: &Namespace, ue_rules: &str) -> Program {
    ns.veth("5g0", &world.upf, "5g1");
    ns.veth("wifi0", &world.upf, "wifi1");
    ns.sh("ip addr add 10.3.0.2/24 dev 5g0; ip addr add 10.4.0.2/24 dev wifi0");
    world.upf.sh("ip addr add 10.3.0.1/24 dev 5g1; ip addr add 10.4.0.1/24 dev wifi1");
    let text = std::fs::read_to_string(world.file("ue.toml")).unwrap();
    let text = text
        .replace("name = \"phone\"", "name = \"laptop\"")
        .replace("/ue.key", "/laptop.key")
        .replace("/ue.sock", "/laptop.sock")
        .replace("10.1.0.1:4500", "10.3.0.1:4500")
        .replace("[fd02::1]:4501", "10.4.0.1:4501");
    assert!(text.ends_with(ue_rules));
    std::fs::write(world.file("laptop.toml"), text).unwrap();
    let config = world.file("laptop.toml").display().to_string();
    let program = ns.spawn(ANABRANCH, &["ue", "--config", &config], &world.file("laptop.log"));
    world.until("the lane of the second UE runs", || {
        world.paths_up("laptop") == 2 && lane(world, "laptop")["state"] == "runs"
    });
    program
}

/// All flows of one UE stand, and hold more than the UPF has for all, because a buffer has a least size.
#[test]
fn a_ue_whose_flows_stand_does_not_take_the_lane_from_another_one() {
    const MB: usize = 16;
    let more = format!("{ROUTED}memory_mb = {MB}\n");
    let Some(world) = world(&Options { ue_rules: RULES, upf_more: &more, ..Options::default() }) else {
        return;
    };
    let Some(laptop) = Namespace::new() else { return };
    let key = generate_key(&world.file("laptop.key"));
    let text = std::fs::read_to_string(world.file("upf.toml")).unwrap();
    let ue = format!("[[ue]]\nname = \"laptop\"\npublic_key = \"{key}\"\n[api]");
    std::fs::write(world.file("upf.toml"), text.replace("[api]", &ue)).unwrap();
    let (upf, phone) = (world.start_upf(), world.start_ue());
    world.until("the lane runs", || lane(&world, "ue")["state"] == "runs");
    let other = start_laptop(&world, &laptop, RULES);
    let listener = listen(&world.server, &format!("{V4}:8080"));
    let go = |listener: &TcpListener| {
        let client = connect(&laptop, &format!("{V4}:8080")).unwrap();
        let start = Instant::now();
        exchange(client, listener.accept().unwrap().0, 16 << 20);
        start.elapsed()
    };
    let alone = go(&listener);
    // At the last measurement, this transfer may have held more than the share.
    world.until("the UPF has measured again", || lane(&world, "upf")["held_bytes"] == 0);
    // It holds something, but less than its share.
    let mut client = connect(&laptop, &format!("{V4}:8080")).unwrap();
    let _waits = listener.accept().unwrap();
    client.write_all(&[7; 1 << 20]).unwrap();
    world.until("the UPF holds some of it", || lane(&world, "upf")["waiting_bytes"].as_u64() > Some(0));
    // They are opened before they hold anything.
    let mut flows: Vec<[End; 2]> = (0..3 * MB)
        .map(|_| {
            let client = connect(&world.ue, &format!("{V4}:8080")).unwrap();
            [End::new(client), End::new(listener.accept().unwrap().0)]
        })
        .collect();
    send_until_still(&mut flows, Duration::from_secs(1));
    let held = held_mb(&world, "upf") as usize;
    assert!(held > MB, "{held} MiB");
    let beside = go(&listener);
    println!("16 MiB each way took {alone:?}, beside {held} MiB that stand {beside:?}");
    assert_eq!(carried(&world, "laptop", "mptcp"), 3, "{}", lane(&world, "laptop"));
    // Where stalled flows take the memory, a minute or more.
    assert!(beside < Duration::from_secs(20), "{alone:?}, {beside:?}");
    for program in [other, phone, upf] {
        program.stop();
    }
}
