//! Latency with many sessions installed (JUNCTION Fig. 9): the cost of one packet in the UPF, uplink and
//! downlink, with 1, 1,000 and 100,000 sessions. Each figure is for single packets, timed individually.
//!
//! - *one*: all packets belong to one session and the others are idle, as in the ping-pong of `./x bench`
//! - *many*: packets of 1,000 sessions in turn, so that nothing is in the nearest caches of the processor
//! - *first*: the packet that wakes a resting session
//!
//! `cargo bench -p anabranch-atsss --bench upf_flat [-- SESSIONS...]`
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

#[path = "../tests/swarm/mod.rs"]
mod swarm;

use anabranch_atsss::session::SessionParams;
use anabranch_element::time::Duration;
use anabranch_wire::ip;
use std::ops::Range;
use std::time::Instant;
use swarm::{REMOTE, SERVER, Swarm, from, virtual_ip};

/// UEs that stay active and take turns: the last ones to connect, which have the newest keys.
const TALKERS: u32 = 1000;
const PACKETS: usize = 100_000;
const PAYLOAD: [u8; 100] = [0; 100];

fn main() {
    let mut sizes: Vec<u32> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![1, 1_000, 100_000];
    }
    println!("nanoseconds per packet: median, 99th percentile");
    println!(
        "{:>9} {:>15} {:>15} {:>15} {:>15} {:>15} {:>15}",
        "sessions", "one, up", "one, down", "many, up", "many, down", "first, up", "first, down"
    );
    for sessions in sizes {
        let params = SessionParams { cool_after: Duration::from_secs(1), ..SessionParams::default() };
        let mut swarm = Swarm::new(sessions, Vec::new(), params, || 0);
        for i in 0..sessions {
            swarm.connect();
            swarm.talk(i, 1);
            if i + TALKERS < sessions {
                swarm.ues[i as usize] = None;
            }
        }
        let talkers = sessions.saturating_sub(TALKERS)..sessions;
        print!("{sessions:>9}");
        let (up, down) = packets(&mut swarm, talkers.start..talkers.start + 1, PACKETS);
        print!(" {up} {down}");
        let (up, down) = packets(&mut swarm, talkers.clone(), PACKETS);
        print!(" {up} {down}");
        let (up, down) = wakes(&mut swarm, talkers);
        println!(" {up} {down}");
        assert_eq!(swarm.upf.session_count(), sessions as usize);
    }
}

/// Median and 99th percentile.
struct Figure(u64, u64);

impl Figure {
    fn of(mut ns: Vec<u64>) -> Self {
        ns.sort_unstable();
        Self(ns[ns.len() / 2], ns[ns.len() * 99 / 100])
    }
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:>7} {:>7}", self.0, self.1)
    }
}

/// Packets of these sessions in turn, uplink and downlink.
fn packets(swarm: &mut Swarm, talkers: Range<u32>, packets: usize) -> (Figure, Figure) {
    let before = (swarm.at_upf.0, swarm.at_ues.0);
    let (mut up, mut down) = (Vec::with_capacity(packets), Vec::with_capacity(packets));
    for n in 0..packets {
        let i = talkers.start + n as u32 % (talkers.end - talkers.start);
        let (u, d) = exchange(swarm, i);
        up.push(u);
        down.push(d);
        // End of a batch: probes are answered and timers served. Not part of the figure.
        if n % 64 == 63 {
            swarm.now += Duration::from_micros(200);
            let now = swarm.now;
            swarm.upf.poll(now, &mut swarm.to_ue, &mut swarm.at_upf);
            swarm.deliver();
            swarm.settle(i);
        }
    }
    assert_eq!((swarm.at_upf.0 - before.0, swarm.at_ues.0 - before.1), (packets, packets));
    (Figure::of(up), Figure::of(down))
}

/// Time in the UPF of one packet up and one down, in nanoseconds.
fn exchange(swarm: &mut Swarm, i: u32) -> (u64, u64) {
    let (device, server) = ((virtual_ip(i), 5000).into(), (SERVER, 9).into());
    let now = swarm.now;
    let mut packet = ip::udp_datagram(device, server, &PAYLOAD).expect("same family");
    let ue = swarm.ues[i as usize].as_mut().expect("alive");
    ue.uplink(&mut packet, now, &mut swarm.to_upf);
    let (upf, to_ue, at_upf) = (&mut swarm.upf, &mut swarm.to_ue, &mut swarm.at_upf);
    let mut up = 0;
    swarm.to_upf.drain(|path, _, bytes| {
        let start = Instant::now();
        upf.datagram(path, from(i, path), bytes, now, to_ue, at_upf);
        up = start.elapsed().as_nanos() as u64;
    });
    let mut packet = ip::udp_datagram(server, device, &PAYLOAD).expect("same family");
    let start = Instant::now();
    upf.downlink(&mut packet, now, to_ue);
    let down = start.elapsed().as_nanos() as u64;
    let (ues, at_ues) = (&mut swarm.ues, &mut swarm.at_ues);
    let ue = ues[i as usize].as_mut().expect("alive");
    to_ue.drain(|path, _, bytes| ue.datagram(path, REMOTE, bytes, now, at_ues));
    (up, down)
}

/// Packets that wake sessions: a few rounds of a rest and one packet for each session.
fn wakes(swarm: &mut Swarm, talkers: Range<u32>) -> (Figure, Figure) {
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for round in 0..6 {
        swarm.pass(Duration::from_millis(1500), Duration::from_millis(50));
        for i in talkers.clone() {
            let (device, server) = ((virtual_ip(i), 5000).into(), (SERVER, 9).into());
            let now = swarm.now;
            if round % 2 == 0 {
                let mut packet = ip::udp_datagram(device, server, &PAYLOAD).expect("same family");
                let ue = swarm.ues[i as usize].as_mut().expect("alive");
                ue.uplink(&mut packet, now, &mut swarm.to_upf);
                let (upf, to_ue, at_upf) = (&mut swarm.upf, &mut swarm.to_ue, &mut swarm.at_upf);
                swarm.to_upf.drain(|path, _, bytes| {
                    let start = Instant::now();
                    upf.datagram(path, from(i, path), bytes, now, to_ue, at_upf);
                    up.push(start.elapsed().as_nanos() as u64);
                });
            } else {
                let mut packet = ip::udp_datagram(server, device, &PAYLOAD).expect("same family");
                let start = Instant::now();
                swarm.upf.downlink(&mut packet, now, &mut swarm.to_ue);
                down.push(start.elapsed().as_nanos() as u64);
            }
            swarm.deliver();
        }
        let now = swarm.now;
        swarm.upf.poll(now, &mut swarm.to_ue, &mut swarm.at_upf);
        swarm.deliver();
    }
    (Figure::of(up), Figure::of(down))
}
