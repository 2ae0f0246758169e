//! What a packet costs at an LWIP node: ns per packet, with one flow and with 100,000.
//!
//! `cargo bench -p anabranch-core --bench lwip` prints each step beside a plain baseline of the same run: the packet
//! parsed, its 5-tuple hashed, and looked up in a hash map. Packets come in random order of flows, so that a large
//! table meets the cache misses it would meet in service. Every step copies the packet first, as the baseline does.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use anabranch_core::access::FixedHasher;
use anabranch_core::lwip::{Config, DidaConfig, Hold, Leg, Node, NodeSink, Steering, UeConfig, WifiLeg};
use anabranch_core::time::Instant as Time;
use anabranch_wire::ip::FlowKey;
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

fn node(flows: u32, wifi_leg: WifiLeg, dida: bool) -> Node {
    let ues = (0..50).map(|n: u32| UeConfig {
        name: format!("ue{n}"),
        addresses: vec![Ipv4Addr::from_bits(0x0a2d_0002 + n).into()],
        wifi: vec![Ipv4Addr::from_bits(0x0a2e_0002 + n).into()],
    });
    let dida =
        dida.then(|| DidaConfig { let_through: 0, hold: Hold::Fixed { ms: 50.0 }, ..DidaConfig::default() });
    let config = Config {
        wifi_leg,
        dida,
        steering: Steering::FixedRatio { lte_percent: 50.0 },
        flows: flows.max(4) * 2,
        ues: ues.collect(),
        ..Config::default()
    };
    let mut node = Node::new(config, 7, Time::ZERO).expect("a node");
    // Every flow is known, and has much under way.
    for flow in 0..flows {
        let (server, ue) = ends(flow);
        let mut sink = Sink(0);
        node.downlink(&mut data(flow, 0), Time::ZERO);
        node.uplink(&emit_packet(ue, server, &ack(0, false), &[]).expect("a packet"), Time::ZERO, &mut sink);
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

/// Median ns per packet of `step`, which gets a copy of each packet and the number of the round. Taken over short
/// stretches: one in which others had the core does not count.
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

fn advance(packet: &mut [u8], by: u32) {
    packet[20 + 8..20 + 12].copy_from_slice(&by.to_be_bytes());
}

fn main() {
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
        let lookup = |packets: &[Vec<u8>]| {
            measure(packets, |packet, _| {
                black_box(FlowKey::parse(packet).ok().and_then(|key| map.get(&key)));
            })
        };
        let (base_down, base_up) = (lookup(&down), lookup(&acks));
        let mut sink = Sink(0);
        let now = Time::from_millis(1);
        let mut results = vec![("parse and look up, downlink", base_down, base_down)];
        for (name, leg) in
            [("downlink, to a tunnel", WifiLeg::Tunnel), ("downlink, half translated", WifiLeg::Translate)]
        {
            let mut node = node(flows, leg, true);
            let ns = measure(&down, |packet, _| {
                black_box(node.downlink(packet, now));
            });
            results.push((name, ns, base_down));
            memory = node.bytes() as f64 / f64::from(flows);
        }
        results.push(("parse and look up, uplink", base_up, base_up));
        for (name, dida) in
            [("uplink, ACKs that advance, no DIDA", false), ("uplink, ACKs that advance", true)]
        {
            let mut node = node(flows, WifiLeg::Tunnel, dida);
            let mut count = 0;
            let ns = measure(&acks, |packet, _| {
                count += 1;
                advance(packet, count);
                node.uplink(packet, now, &mut sink);
            });
            assert!(node.stats().advances as usize >= PACKETS * ROUNDS);
            results.push((name, ns, base_up));
        }
        let mut node = node(flows, WifiLeg::Tunnel, true);
        let mut held = 0;
        let ns = measure(&dups, |packet, round| {
            node.uplink(packet, now, &mut sink);
            // Not more than a few are held of each flow: the rest of the run would measure something else.
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
