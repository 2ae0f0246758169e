//! In steady state a cell allocates nothing per packet, and a thousand idle UEs use little memory.

use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant};
use anabranch_element::{Sink, drive};
use anabranch_ran::channel::ChannelConfig;
use anabranch_ran::gnb::{BearerConfig, Gnb, GnbConfig, GnbEvent, UeConfig};
use anabranch_ran::queue::Algorithm;
use anabranch_ran::sched::{InterAlgorithm, SliceConfig};
use anabranch_wire::ip::udp_datagram;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn address(ue: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(0x0a2d_0000 + ue))
}

fn cell(ues: u32, scheduler: InterAlgorithm, queue: Algorithm) -> Gnb {
    let mut config: GnbConfig = serde_json::from_str(r#"{"ues": []}"#).unwrap();
    config.slices = vec![SliceConfig::new("a", 25.0), SliceConfig::new("b", 75.0)];
    config.scheduler = scheduler.into();
    config.harq.bler = 0.1;
    config.ues = (0..ues)
        .map(|n| UeConfig {
            addresses: vec![address(n)],
            bearer: BearerConfig::with_queue(queue),
            ..UeConfig::new(format!("ue{n}"), if n % 2 == 0 { "a" } else { "b" }, ChannelConfig::mcs(28))
        })
        .collect();
    Gnb::new(&config, &mut |file| Err(format!("no file {file}"))).unwrap()
}

/// Returns every packet's buffer to the sender.
struct Recycle(Vec<Vec<u8>>);

impl Sink<GnbEvent> for Recycle {
    fn transmit(&mut self, _: anabranch_element::Port, packet: Packet) {
        self.0.push(packet.into_buffer());
    }
    fn event(&mut self, _: GnbEvent) {}
}

/// Sends a packet to each of two UEs and one back every 4.1 ms until `end`.
fn run(gnb: &mut Gnb, sink: &mut Recycle, packets: &[Vec<u8>; 3], from: Instant, end: Instant) -> u64 {
    let (mut now, mut sent) = (from, 0);
    while now < end {
        for (place, packet) in packets.iter().enumerate() {
            let mut buffer = sink.0.pop().unwrap_or_else(|| Vec::with_capacity(2048));
            buffer.extend_from_slice(packet);
            let port = if place < 2 { Gnb::N3 } else { Gnb::ue(0) };
            anabranch_element::Element::on_packet(gnb, port, Packet::new(now, buffer), now);
            drive(gnb, now, sink);
            sent += 1;
        }
        let next = now + Duration::from_micros(4100);
        while let Some((at, _)) = anabranch_element::Element::poll_timeout(gnb).filter(|(at, _)| *at <= next)
        {
            drive(gnb, at, sink);
        }
        now = next;
    }
    sent
}

/// A single test, because the allocator counts for the whole process.
#[test]
fn packets_do_not_allocate_and_resting_ues_are_small() {
    let far: SocketAddr = "198.51.100.1:9".parse().unwrap();
    let down = |ue| udp_datagram(far, SocketAddr::new(address(ue), 7), &[0; 1400]).unwrap();
    let up = udp_datagram(SocketAddr::new(address(0), 7), far, &[0; 40]).unwrap();
    let packets = [down(0), down(1), up];
    for (scheduler, queue) in [
        (InterAlgorithm::EqpExact, Algorithm::E5gBdp),
        (InterAlgorithm::GpsPacking, Algorithm::Jit),
        (InterAlgorithm::Fixed, Algorithm::Drql),
    ] {
        let (mut gnb, mut sink) = (cell(2, scheduler, queue), Recycle(Vec::with_capacity(4096)));
        let warm = Instant::from_secs(4);
        run(&mut gnb, &mut sink, &packets, Instant::ZERO, warm);
        let region = Region::new(ALLOCATOR);
        let sent = run(&mut gnb, &mut sink, &packets, warm, Instant::from_secs(8));
        let change = region.change();
        let allocations = change.allocations + change.reallocations;
        println!("{scheduler}, {queue}: {allocations} allocations for {sent} packets");
        // A queue may grow beyond its previous maximum; single packets do not allocate.
        assert!(allocations as u64 * 200 < sent, "{scheduler}, {queue}: {allocations} for {sent} packets");
    }
    let region = Region::new(ALLOCATOR);
    let gnb = cell(1000, InterAlgorithm::EqpExact, Algorithm::E5gBdp);
    let change = region.change();
    let each = (change.bytes_allocated - change.bytes_deallocated) / 1000;
    println!("{each} bytes per UE at rest, of {} UEs", gnb.ue_names().count());
    assert!(each < 8000);
}
