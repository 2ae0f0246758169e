//! Cost of coded redundancy per source packet on one core: both ends, without headers and encryption.
//!
//! The sender's cost is that of its repairs (window × overhead × packet length bytes multiplied per source).
//! The receiver copies each source, and multiplies only if something is missing.

use anabranch_atsss::coding::{Decoder, Encoder, Overhead, Repair, Work};
use anabranch_element::time::{Duration, Instant};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;

const BATCH: usize = 1024;
const ROOM: usize = 64 << 20;
const WAIT: Duration = Duration::from_millis(500);
/// Time between two packets, long enough never to exhaust the budget of work.
const GAP: Duration = Duration::from_millis(5);

fn overhead(percent: u8, window: u8) -> Overhead {
    // The window is limited by packets, never by time.
    Overhead { percent, window, wait: Duration::from_secs(1) }
}

fn encode(c: &mut Criterion) {
    let mut group = c.benchmark_group("encode");
    group.throughput(Throughput::Elements(BATCH as u64));
    for (percent, window, len) in [(30, 64, 200), (30, 64, 1200), (30, 32, 1200), (100, 128, 1200)] {
        let mut now = Instant::from_secs(1);
        let (mut encoder, mut work) = (Encoder::new(overhead(percent, window), now), Work::new(now));
        let packet = vec![7; len];
        group.bench_function(format!("{percent} %, window {window}, {len} bytes"), |b| {
            b.iter(|| {
                for _ in 0..BATCH {
                    now += GAP;
                    let _ = black_box(encoder.push([&packet, &[]], now, ROOM));
                    while let Some(repair) = encoder.poll(now, &mut work) {
                        black_box(repair);
                    }
                }
            });
        });
    }
    group.finish();
}

enum Message {
    Source(u32, Vec<u8>),
    Repair(Repair, Vec<u8>),
}

/// Sources and repairs of [`BATCH`] packets, of which one in `lost` is missing (0: none).
fn messages(percent: u8, window: u8, len: usize, lost: usize) -> Vec<Message> {
    let now = Instant::from_secs(1);
    let (mut encoder, mut work) = (Encoder::new(overhead(percent, window), now), Work::new(now));
    let mut all = Vec::new();
    for n in 0..BATCH {
        let packet: Vec<u8> = (0..len).map(|i| (i * 31 + n * 7) as u8).collect();
        let Some(position) = encoder.push([&packet, &[]], now, ROOM) else { continue };
        if lost == 0 || n % lost != lost / 2 {
            all.push(Message::Source(position, packet));
        }
        // A new budget each time, because the cost is to be measured.
        work = if encoder.stats().repairs % 8 == 0 { Work::new(now) } else { work };
        while let Some((repair, symbol)) = encoder.poll(now, &mut work) {
            all.push(Message::Repair(Repair { wait: WAIT, ..repair }, symbol.to_vec()));
        }
    }
    all
}

fn decode(c: &mut Criterion) {
    let mut group = c.benchmark_group("decode");
    group.throughput(Throughput::Elements(BATCH as u64));
    for (name, lost, len) in [
        ("nothing lost, 200 bytes", 0, 200),
        ("nothing lost, 1200 bytes", 0, 1200),
        ("1 in 20 lost, 200 bytes", 20, 200),
        ("1 in 20 lost, 1200 bytes", 20, 1200),
        ("1 in 10 lost, 1200 bytes", 10, 1200),
    ] {
        let messages = messages(30, 64, len, lost);
        group.bench_function(name, |b| {
            b.iter_batched_ref(
                || (Decoder::new(Instant::from_secs(1)), Work::new(Instant::from_secs(1))),
                |(decoder, work)| {
                    let mut now = Instant::from_secs(1);
                    for message in &messages {
                        now += GAP;
                        match message {
                            Message::Source(position, bytes) => {
                                decoder.on_source(*position, [bytes, &[]], now, ROOM, work);
                            }
                            Message::Repair(repair, symbol) => {
                                decoder.on_repair(repair, symbol, now, ROOM, work)
                            }
                        }
                        while let Some(symbol) = decoder.pop_recovered() {
                            black_box(symbol);
                        }
                    }
                },
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, encode, decode);
criterion_main!(benches);
