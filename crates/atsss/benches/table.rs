//! Lookup cost of the tables of a tunnel end, from one session to 128k (JUNCTION Fig. 9: flat).
//!
//! `cargo bench -p anabranch-atsss --bench table`
//!
//! Addresses are drawn at random, so that a large table has the cache misses of real traffic. A table that
//! fits into a cache level is always faster than one that does not. "Flat" therefore means a difference of
//! nanoseconds, compared with the microseconds that a packet takes.
#![allow(missing_docs, reason = "criterion_group! makes undocumented functions")]

use anabranch_atsss::classify::RuleSet;
use anabranch_atsss::table::flow::FlowTable;
use anabranch_atsss::table::session::SessionTable;
use anabranch_atsss::table::{Slab, SlabLayout};
use anabranch_element::time::Instant;
use anabranch_steer::PathStates;
use anabranch_steer::Rule;
use anabranch_wire::ip::FlowKey;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const SESSIONS: [u32; 4] = [1, 1024, 16 * 1024, 128 * 1024];
/// Lookups per iteration: sufficient to exceed a core's own cache if the table does.
const DRAWS: usize = 64 * 1024;

fn v4(n: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a00_0000 + n).into()
}

fn v6(n: u32) -> IpAddr {
    Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(n) << 64 | 1).into()
}

fn draws(sessions: u32) -> Vec<u32> {
    let mut rng = ChaCha12Rng::seed_from_u64(7);
    (0..DRAWS).map(|_| rng.next_u32() % sessions).collect()
}

fn sessions(c: &mut Criterion) {
    for (name, address) in [("session_v4", v4 as fn(u32) -> IpAddr), ("session_v6", v6)] {
        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Elements(DRAWS as u64));
        for sessions in SESSIONS {
            let mut table = SessionTable::new(1);
            for n in 0..sessions {
                table.insert(address(n), n).expect("below the limit");
            }
            let wanted: Vec<IpAddr> = draws(sessions).into_iter().map(address).collect();
            // Each lookup depends on the previous one: the latency of a single packet.
            group.bench_with_input(BenchmarkId::new("one by one", sessions), &wanted, |b, wanted| {
                b.iter(|| {
                    let mut last = 0;
                    for address in wanted {
                        let bit = last & 0x8000_0000;
                        let address = match *address {
                            IpAddr::V4(a) => Ipv4Addr::from_bits(a.to_bits() | bit).into(),
                            IpAddr::V6(a) => Ipv6Addr::from_bits(a.to_bits() | u128::from(bit)).into(),
                        };
                        last = table.by_address(address).unwrap_or(0);
                    }
                    black_box(last)
                });
            });
            let mut users = vec![None; DRAWS];
            group.bench_with_input(BenchmarkId::new("batch", sessions), &wanted, |b, wanted| {
                b.iter(|| table.by_addresses(black_box(wanted), black_box(&mut users)));
            });
        }
    }
}

/// All levels: address, user's path states, rule, exception.
fn hierarchy(c: &mut Criterion) {
    let mut group = c.benchmark_group("hierarchy");
    group.throughput(Throughput::Elements(DRAWS as u64));
    let rules: Vec<Rule> = Vec::new();
    let rules = RuleSet::compile(&rules, &["5g".into(), "wifi".into()]).expect("no rule is wrong");
    for sessions in SESSIONS {
        let mut table = SessionTable::new(1);
        let mut users = Slab::new("users", SlabLayout::single(sessions));
        for n in 0..sessions {
            users.insert(PathStates::default()).expect("below the limit");
            table.insert(v4(n), n).expect("below the limit");
        }
        let wanted: Vec<IpAddr> = draws(sessions).into_iter().map(v4).collect();
        group.bench_function(BenchmarkId::from_parameter(sessions), |b| {
            b.iter(|| {
                for address in &wanted {
                    let user = table.by_address(*address).unwrap_or(0);
                    let (rule, sequence) = table.steer(user, 0);
                    let up = users.at_slot(user).map(|(_, paths)| paths.up());
                    black_box((rules.get(rule), sequence, up));
                }
            });
        });
    }
}

fn receivers(c: &mut Criterion) {
    let mut group = c.benchmark_group("receiver_index");
    group.throughput(Throughput::Elements(DRAWS as u64));
    for sessions in SESSIONS {
        let mut slab = Slab::new("receiver indices", SlabLayout::single(sessions));
        let indices: Vec<u32> =
            (0..sessions).map(|n| slab.insert((n, 0u8)).expect("below the limit")).collect();
        let wanted: Vec<u32> = draws(sessions).into_iter().map(|n| indices[n as usize]).collect();
        group.bench_function(BenchmarkId::from_parameter(sessions), |b| {
            b.iter(|| wanted.iter().filter(|&&index| slab.get(black_box(index)).is_some()).count());
        });
    }
}

fn flows(c: &mut Criterion) {
    let mut group = c.benchmark_group("flow");
    group.throughput(Throughput::Elements(DRAWS as u64));
    let flow =
        |n: u32| FlowKey { src: v4(1), dst: v4(n % 256), src_port: n as u16, dst_port: 443, protocol: 6 };
    for flows in [1, 64, 4096] {
        let mut table = FlowTable::new(1);
        (0..flows).for_each(|n| {
            table.entry(&flow(n), Instant::ZERO);
        });
        let wanted: Vec<FlowKey> = draws(flows).into_iter().map(flow).collect();
        group.bench_function(BenchmarkId::new("known", flows), |b| {
            b.iter(|| {
                for key in &wanted {
                    black_box(table.entry(black_box(key), Instant::ZERO).next_sequence());
                }
            });
        });
    }
    let mut n = 0;
    let mut table = FlowTable::new(1);
    group.bench_function("new, evicting", |b| {
        b.iter(|| {
            for _ in 0..DRAWS {
                n += 1;
                black_box(table.entry(&flow(n), Instant::ZERO));
            }
        });
    });
}

criterion_group!(benches, sessions, hierarchy, receivers, flows);
criterion_main!(benches);
