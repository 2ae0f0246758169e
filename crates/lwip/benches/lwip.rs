//! Cost of a packet at an LWIP node: ns per packet, with one flow and with 100,000.
//!
//! `cargo bench -p anabranch-lwip --bench lwip` reports each step beside a plain baseline of the same run: the
//! packet is parsed, its 5-tuple hashed, and looked up in a hash map. Packets are in random order of flows, so that
//! a large table has the cache misses of real traffic. Every step includes a copy of the packet, as does the
//! baseline. Before that: memory at the limits, and ten million packets with random 5-tuples.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use anabranch_atsss::FixedHasher;
use anabranch_element::time::Instant as Time;
use anabranch_lwip::{Config, DidaConfig, Hold, Leg, Node, NodeSink, Steering, UeConfig, WifiLeg};
use anabranch_wire::ip::{FlowKey, update_u16};
use anabranch_wire::tcp::{SackBlocks, TcpFlags, TcpHeader, TcpOptions, emit_packet};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use std::collections::HashMap;
use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

const PACKETS: usize = 200_000;
const ROUNDS: usize = 9;
const STRETCH: usize = 500;

struct Sink(u64);

impl NodeSink for Sink {
    fn backhaul(&mut self, packet: &[u8]) {
        self.0 += packet.len() as u64;
    }
    fn leg(&mut self, _: Leg, _: &[u8]) {}
}

fn ends(flow: u32) -> (SocketAddr, SocketAddr) {
    let server = Ipv4Addr::from_bits(0xc633_6401 + flow / 50_000);
    let ue = Ipv4Addr::from_bits(0x0a2d_0002 + flow % 50);
    (SocketAddr::new(server.into(), 443), SocketAddr::new(ue.into(), 1024 + (flow / 50 % 1000) as u16 + 1000))
}

fn ues() -> Vec<UeConfig> {
    let ues = (0..50).map(|n: u32| UeConfig {
        name: format!("ue{n}"),
        addresses: vec![Ipv4Addr::from_bits(0x0a2d_0002 + n).into()],
        wifi: vec![Ipv4Addr::from_bits(0x0a2e_0002 + n).into()],
    });
    ues.collect()
}

/// `dida`: whether SACK blocks are hidden; `None` without DIDA.
fn node(flows: u32, wifi_leg: WifiLeg, dida: Option<bool>) -> Node {
    let hold = Hold::Fixed { ms: 50.0 };
    // Room for one ACK of each flow, at least.
    let held = 1 << 20;
    let dida =
        dida.map(|hide_sack| DidaConfig { let_through: 0, hide_sack, hold, held, ..DidaConfig::default() });
    let config = Config {
        wifi_leg,
        dida,
        steering: Steering::FixedRatio { lte_percent: 50.0 },
        flows: flows.max(4) * 2,
        ues: ues(),
        ..Config::default()
    };
    let mut node = Node::new(config, 7, Time::ZERO).expect("a node");
    // Every flow is known and has much data in flight.
    for flow in 0..flows {
        let (server, ue) = ends(flow);
        let mut sink = Sink(0);
        node.downlink(&mut data(flow, 0), Time::ZERO);
        node.uplink(
            &mut emit_packet(ue, server, &ack(0, false), &[]).expect("a packet"),
            Time::ZERO,
            &mut sink,
        );
        node.downlink(&mut data(flow, 1 << 28), Time::ZERO);
    }
    assert_eq!(node.flow_count(), flows);
    node
}

fn data(flow: u32, seq: u32) -> Vec<u8> {
    let (server, ue) = ends(flow);
    let options = TcpOptions { timestamps: Some((1, 1)), ..TcpOptions::default() };
    let header = TcpHeader { seq, flags: TcpFlags::ACK, window: 500, options, ..TcpHeader::default() };
    emit_packet(server, ue, &header, &[7; 64]).expect("a packet")
}

fn ack(ack: u32, gap: bool) -> TcpHeader {
    let mut sack = SackBlocks::default();
    if gap {
        sack.push(1 << 27, 1 << 28);
    }
    let options = TcpOptions { timestamps: Some((1, 1)), sack, ..TcpOptions::default() };
    TcpHeader { seq: 1, ack, flags: TcpFlags::ACK, window: 500, options }
}

/// Median ns per packet of `step`, which gets a copy of each packet and the number of the round. Measured over
/// short intervals, so that those in which other processes had the core do not affect the median.
fn measure(packets: &[Vec<u8>], mut step: impl FnMut(&mut [u8], u32)) -> f64 {
    let mut scratch = [0; 256];
    let mut took = Vec::with_capacity(ROUNDS * packets.len() / STRETCH);
    for round in 0..ROUNDS {
        for stretch in packets.chunks(STRETCH) {
            let start = Instant::now();
            for packet in stretch {
                let copy = &mut scratch[..packet.len()];
                copy.copy_from_slice(packet);
                step(copy, round as u32);
            }
            took.push(start.elapsed().as_nanos() as f64 / stretch.len() as f64);
        }
    }
    took.sort_by(f64::total_cmp);
    took[took.len() / 2]
}

/// Sets the acknowledgment and the checksum: the node verifies an ACK that supersedes others.
fn set_ack(packet: &mut [u8], to: u32) {
    const ACK: usize = 20 + 8;
    const CHECKSUM: usize = 20 + 16;
    let word = |packet: &[u8], at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    let mut checksum = word(packet, CHECKSUM);
    for (at, new) in [(ACK, (to >> 16) as u16), (ACK + 2, to as u16)] {
        checksum = update_u16(checksum, word(packet, at), new);
        packet[at..at + 2].copy_from_slice(&new.to_be_bytes());
    }
    packet[CHECKSUM..CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// Resident memory of this process, bytes; 0 if the system does not report it.
fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok()).unwrap_or(0.0) * 4096.0
}

/// The flows and held ACKs of the default limits.
fn at_the_bounds() {
    const FLOWS: u32 = 65_536;
    let before = resident();
    let dida = DidaConfig { let_through: 0, hold: Hold::Fixed { ms: 50.0 }, ..DidaConfig::default() };
    let config = Config { flows: FLOWS, dida: Some(dida), ues: ues(), ..Config::default() };
    let mut node = Node::new(config, 7, Time::ZERO).expect("a node");
    let mut sink = Sink(0);
    for flow in 0..FLOWS {
        let (server, ue) = ends(flow);
        node.downlink(&mut data(flow, 0), Time::ZERO);
        node.uplink(
            &mut emit_packet(ue, server, &ack(0, false), &[]).expect("a packet"),
            Time::ZERO,
            &mut sink,
        );
        node.uplink(
            &mut emit_packet(ue, server, &ack(0, false), &[]).expect("a packet"),
            Time::ZERO,
            &mut sink,
        );
    }
    println!(
        "at the bounds, {} flows and {} held ACKs: {:.1} MB, resident memory grew by {:.1} MB",
        node.flow_count(),
        node.held_acks(),
        node.bytes() as f64 / 1e6,
        (resident() - before) / 1e6,
    );
}

/// SYNs, ACKs and data with random 5-tuples, to a node with a thousand flows that hold an ACK each.
fn flood() {
    const FLOOD: usize = 10_000_000;
    const BATCH: usize = 1_000;
    let dida = DidaConfig { let_through: 0, hold: Hold::Fixed { ms: 10_000.0 }, ..DidaConfig::default() };
    let dida = DidaConfig { respect_rto: false, ..dida };
    let config = Config { dida: Some(dida), ues: ues(), ..Config::default() };
    let mut node = Node::new(config, 7, Time::ZERO).expect("a node");
    let mut sink = Sink(0);
    for flow in 0..1_000 {
        let (server, ue) = ends(flow);
        node.downlink(&mut data(flow, 0), Time::ZERO);
        for _ in 0..2 {
            let mut packet = emit_packet(ue, server, &ack(0, false), &[]).expect("a packet");
            node.uplink(&mut packet, Time::ZERO, &mut sink);
        }
    }
    let held = node.held_acks();
    let mut rng = ChaCha12Rng::seed_from_u64(2);
    let mut took = Vec::with_capacity(FLOOD / BATCH);
    let mut rss = [0.0; 2];
    for batch in 0..FLOOD / BATCH {
        let mut packets: Vec<(bool, Vec<u8>)> = Vec::with_capacity(BATCH);
        for n in 0..BATCH {
            let (a, b) = (rng.next_u32(), rng.next_u32());
            let server = SocketAddr::new(Ipv4Addr::from_bits(a | 1).into(), b as u16);
            let ue =
                SocketAddr::new(Ipv4Addr::from_bits(0x0a2d_0002 + (b >> 16) % 50).into(), (a >> 8) as u16);
            let syn = TcpHeader { flags: TcpFlags::SYN, ..ack(0, false) };
            let (up, packet) = match n % 3 {
                0 => (true, emit_packet(ue, server, &syn, &[])),
                1 => (true, emit_packet(ue, server, &ack(a, false), &[])),
                _ => (false, emit_packet(server, ue, &ack(b, false), &[7; 64])),
            };
            packets.push((up, packet.expect("a packet")));
        }
        let now = Time::from_micros(batch as u64 * 100);
        let start = Instant::now();
        for (up, packet) in &mut packets {
            if *up {
                node.uplink(packet, now, &mut sink);
            } else {
                node.downlink(packet, now);
            }
        }
        took.push(start.elapsed().as_nanos() as f64 / BATCH as f64);
        // The table reaches its size after a hundredth of the flood.
        match batch {
            100 => rss[0] = resident(),
            _ if batch + 1 == FLOOD / BATCH => rss[1] = resident(),
            _ => {}
        }
    }
    took.sort_by(f64::total_cmp);
    println!(
        "flood, {} packets with 5-tuples at random: {:.0} ns each (median), {} flows made, {} evicted, {} remembered, \
         {} of {held} ACKs still held; {:.1} MB, resident memory {:.1} MB after a hundredth and {:.1} MB in the end",
        FLOOD,
        took[took.len() / 2],
        node.stats().new_flows,
        node.stats().evicted_flows,
        node.flow_count(),
        node.held_acks(),
        node.bytes() as f64 / 1e6,
        rss[0] / 1e6,
        rss[1] / 1e6,
    );
    black_box(sink.0);
}

fn main() {
    // Before anything else is allocated.
    at_the_bounds();
    flood();
    println!("{:<44} {:>14} {:>8} {:>14} {:>8}", "ns per packet", "1 flow", "", "100,000 flows", "");
    let mut table: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
    let mut memory = 0.0;
    for flows in [1, 100_000] {
        let mut rng = ChaCha12Rng::seed_from_u64(1);
        let order: Vec<u32> = (0..PACKETS).map(|_| rng.next_u32() % flows).collect();
        let down: Vec<Vec<u8>> = order.iter().map(|flow| data(*flow, 0)).collect();
        let up = |gap| -> Vec<Vec<u8>> {
            let header = ack(0, gap);
            let packet = |flow: &u32| {
                let (server, ue) = ends(*flow);
                emit_packet(ue, server, &header, &[]).expect("a packet")
            };
            order.iter().map(packet).collect()
        };
        let (acks, dups) = (up(false), up(true));
        let mut map: HashMap<FlowKey, u32, FixedHasher> = HashMap::with_hasher(FixedHasher::new(7));
        for flow in 0..flows {
            let key = FlowKey::parse(&data(flow, 0)).expect("a key");
            map.insert(key, flow);
        }
        // The table contains downlink flows, as that of the node.
        let lookup = |packets: &[Vec<u8>], up: bool| {
            measure(packets, |packet, _| {
                let key = FlowKey::parse(packet).map(|key| if up { key.reversed() } else { key });
                black_box(key.ok().and_then(|key| map.get(&key)));
            })
        };
        let (base_down, base_up) = (lookup(&down, false), lookup(&acks, true));
        // A widely used parser, without a look-up.
        let peer = measure(&down, |packet, _| {
            black_box(etherparse::SlicedPacket::from_ip(packet).is_ok());
        });
        let mut sink = Sink(0);
        let now = Time::from_millis(1);
        let mut results = vec![
            ("parse and look up, downlink", base_down, base_down),
            ("etherparse alone, downlink", peer, base_down),
        ];
        for (name, leg) in
            [("downlink, to a tunnel", WifiLeg::Tunnel), ("downlink, half translated", WifiLeg::Translate)]
        {
            let mut node = node(flows, leg, Some(true));
            let ns = measure(&down, |packet, _| {
                black_box(node.downlink(packet, now));
            });
            results.push((name, ns, base_down));
            memory = node.bytes() as f64 / f64::from(flows);
        }
        results.push(("parse and look up, uplink", base_up, base_up));
        for (name, dida) in
            [("uplink, ACKs that advance, no DIDA", None), ("uplink, ACKs that advance", Some(true))]
        {
            let mut node = node(flows, WifiLeg::Tunnel, dida);
            let mut count = 0;
            let ns = measure(&acks, |packet, _| {
                count += 1;
                set_ack(packet, count);
                node.uplink(packet, now, &mut sink);
            });
            assert!(node.stats().advances as usize >= PACKETS * ROUNDS);
            results.push((name, ns, base_up));
        }
        let mut superseding = |packets: &[Vec<u8>], hides: bool| {
            let mut node = node(flows, WifiLeg::Tunnel, Some(hides));
            let (mut una, mut at) = (vec![0u32; flows as usize], 0);
            let ns = measure(packets, |packet, _| {
                let una = &mut una[order[at % PACKETS] as usize];
                at += 1;
                // A duplicate, unless the last ACK already reported the gap.
                if !hides {
                    set_ack(packet, *una);
                    node.uplink(packet, now, &mut sink);
                }
                *una += 1;
                set_ack(packet, *una);
                node.uplink(packet, now, &mut sink);
            });
            let superseded = node.stats().superseded_acks as usize;
            assert!(superseded + flows as usize >= PACKETS * ROUNDS, "{superseded}");
            ns
        };
        let pair = superseding(&acks, false) / 2.0;
        results.push(("uplink, held, and superseded by the next ACK", pair, base_up));
        let hidden = superseding(&dups, true);
        results.push(("uplink, advance, gap hidden and superseded", hidden, base_up));
        let mut node = node(flows, WifiLeg::Tunnel, Some(true));
        let mut held = 0;
        let ns = measure(&dups, |packet, round| {
            node.uplink(packet, now, &mut sink);
            // Only a few are held per flow: otherwise the rest of the run would measure something else.
            held += 1;
            if held % 4096 == 0 {
                node.poll(now + std::time::Duration::from_millis(51 + u64::from(round)), &mut sink);
            }
        });
        results.push(("uplink, duplicates, held and released", ns, base_up));
        black_box(sink.0);
        for (i, (name, ns, base)) in results.into_iter().enumerate() {
            if table.len() <= i {
                table.push((name, Vec::new()));
            }
            table[i].1.push((ns, ns / base));
        }
    }
    for (name, cells) in table {
        let row: Vec<String> = cells.iter().map(|(ns, ratio)| format!("{ns:>14.0} {ratio:>7.2}x")).collect();
        println!("{name:<44} {}", row.join(" "));
    }
    println!("memory with 100,000 flows: {memory:.0} bytes a flow");
}
