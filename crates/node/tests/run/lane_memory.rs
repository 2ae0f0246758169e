//! Memory of flows of the TCP lane that nobody reads.

use super::net::World;
use super::tcp_lane::{ROUTED, RULES, V4, connect, exchange, lane, listen, start_with};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
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
    let mut last = Instant::now();
    while last.elapsed() < Duration::from_secs(2) {
        if flows.iter_mut().flatten().map(End::send).sum::<usize>() > 0 {
            last = Instant::now();
        } else {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
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
