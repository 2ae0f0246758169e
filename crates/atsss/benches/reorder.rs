//! Cost of reordering per packet of 1400 bytes, on one core.
//!
//! The in-order cases are the cost of every packet of a splitting rule. The skewed cases add two copies of
//! the packet (into the pool and, in practice, out of it) for every early packet.

use anabranch_atsss::reorder::{FlowReorder, Pool, PoolConfig, StreamReorder, StreamSender, Switch};
use anabranch_atsss::{PacketSink, PathId};
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ip::FlowKey;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::net::IpAddr;

const PACKET: usize = 1400;
const BATCH: u32 = 1024;

struct Sink(u64);

impl PacketSink for Sink {
    fn deliver(&mut self, packet: &mut [u8]) {
        self.0 = self.0.wrapping_add(u64::from(black_box(packet)[0]));
    }
}

fn flow(n: u8) -> FlowKey {
    let address = |last| IpAddr::from([10, 0, 0, last]);
    FlowKey { src: address(1), dst: address(n), src_port: 443, dst_port: 50_000, protocol: 6 }
}

/// One packet: flow, sequence, path.
type Plan = Vec<(FlowKey, u32, PathId)>;

/// Feeds `plan` repeatedly, each time with higher sequence numbers.
fn splitting(c: &mut Criterion, name: &str, hold: bool, plan: &Plan, advance: u32) {
    let mut group = c.benchmark_group("flow");
    group.throughput(Throughput::Elements(plan.len() as u64));
    let (mut reorder, mut pool, mut out) = (FlowReorder::new(), Pool::new(PoolConfig::default()), Sink(0));
    reorder.set_path_rtt(0, 10_000);
    reorder.set_path_rtt(1, 40_000);
    let mut packet = [7; PACKET];
    let (mut base, mut now) = (0_u32, Instant::ZERO);
    group.bench_function(name, |b| {
        b.iter(|| {
            for (flow, sequence, path) in plan {
                now += Duration::from_micros(1);
                let sequence = sequence.wrapping_add(base);
                reorder.on_packet(
                    flow,
                    sequence,
                    sequence == 0,
                    hold,
                    *path,
                    &mut packet,
                    now,
                    &mut pool,
                    &mut out,
                );
            }
            base = base.wrapping_add(advance);
        });
    });
    assert!(reorder.depth() <= 64, "{:?}", reorder.stats());
    black_box(out.0);
}

/// Even sequence numbers arrive at once by path 0, odd ones `skew` packets later by path 1.
fn skewed(skew: u32) -> Plan {
    let mut plan: Vec<(u32, Plan)> = (0..BATCH)
        .map(|n| (n + if n % 2 == 1 { skew } else { 0 }, vec![(flow(1), n, (n % 2) as PathId)]))
        .collect();
    plan.sort_by_key(|(at, _)| *at);
    plan.into_iter().flat_map(|(_, packet)| packet).collect()
}

fn flows(c: &mut Criterion) {
    let one: Plan = (0..BATCH).map(|n| (flow(1), n, 0)).collect();
    let sixteen: Plan = (0..BATCH).map(|n| (flow((n % 16) as u8), n / 16, 0)).collect();
    let twice: Plan = (0..BATCH).map(|n| (flow(1), n / 2, (n % 2) as PathId)).collect();
    splitting(c, "in order, one flow", true, &one, BATCH);
    splitting(c, "in order, 16 flows in turn", true, &sixteen, BATCH / 16);
    splitting(c, "two paths, slow one 8 packets later", true, &skewed(8), BATCH);
    splitting(c, "two paths, slow one 64 packets later", true, &skewed(64), BATCH);
    splitting(c, "de-duplication, every packet twice", false, &twice, BATCH / 2);
}

fn streams(c: &mut Criterion) {
    let mut group = c.benchmark_group("stream");
    group.throughput(Throughput::Elements(u64::from(BATCH)));
    let mut packet = [7; PACKET];
    let mut out = Sink(0);
    let mut pool = Pool::new(PoolConfig::default());
    let mut sender = StreamSender::new(1);
    let mut reorder = StreamReorder::new();
    group.bench_function("no switch", |b| {
        b.iter(|| {
            for _ in 0..BATCH {
                reorder.on_packet(sender.stamp(), &mut packet, Instant::ZERO, &mut pool, &mut out);
            }
        });
    });
    // Half of the packets are held in the paused queue, then its marker arrives.
    group.bench_function("a switch every 1024, 512 of them held", |b| {
        b.iter_batched(
            || (),
            |()| {
                let ex = sender.stamp();
                let Switch::Ordered(marker) = sender.switch(true, Duration::from_millis(50), 1) else {
                    return;
                };
                let word = sender.stamp();
                for _ in 0..BATCH / 2 {
                    reorder.on_packet(word, &mut packet, Instant::ZERO, &mut pool, &mut out);
                }
                for _ in 0..BATCH / 2 {
                    reorder.on_packet(ex, &mut packet, Instant::ZERO, &mut pool, &mut out);
                }
                reorder.on_marker(marker.word, Instant::ZERO, &mut pool, &mut out);
            },
            BatchSize::SmallInput,
        );
    });
    assert_eq!(reorder.depth(), 0);
    black_box(out.0);
}

criterion_group!(benches, flows, streams);
criterion_main!(benches);
