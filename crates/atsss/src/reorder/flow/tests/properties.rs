//! Properties over random channels.

use super::*;
use proptest::prelude::*;
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};

/// A packet at the end of the channel.
#[derive(Debug, Clone, Copy)]
struct Arriving {
    at_us: u64,
    flow: u8,
    sequence: u32,
    start: bool,
    path: PathId,
}

#[derive(Debug, Clone)]
struct Channel {
    seed: u64,
    packets: u32,
    flows: u8,
    first: u32,
    gap_us: u64,
    delay_us: [u64; 3],
    paths: u8,
    jitter_us: u64,
    fifo: bool,
    loss_permille: u64,
    duplicate_permille: u64,
}

fn channel(loss: u64, duplicates: u64, jitter_us: u64, fifo: bool) -> impl Strategy<Value = Channel> {
    (
        any::<u64>(),
        1..500_u32,
        1..4_u8,
        any::<u32>(),
        20..2_000_u64,
        prop::array::uniform3(0..60_000_u64),
        1..4_u8,
    )
        .prop_map(move |(seed, packets, flows, first, gap_us, delay_us, paths)| Channel {
            seed,
            packets,
            flows,
            first,
            gap_us,
            delay_us,
            paths,
            jitter_us,
            fifo,
            loss_permille: loss,
            duplicate_permille: duplicates,
        })
}

impl Channel {
    /// Arrivals in order of time. Packets of all flows are sent in turn; each path preserves its own order if
    /// `fifo`.
    fn run(&self) -> Vec<Arriving> {
        let mut rng = ChaCha12Rng::seed_from_u64(self.seed);
        let mut below = |n: u64| if n == 0 { 0 } else { rng.next_u64() % n };
        let mut last = [0_u64; 3];
        let mut arrivals = Vec::new();
        for n in 0..self.packets {
            for flow in 0..self.flows {
                let copies = 1 + u32::from(below(1000) < self.duplicate_permille);
                for _ in 0..copies {
                    let path = below(u64::from(self.paths)) as usize;
                    let sent = u64::from(n) * self.gap_us;
                    let mut at_us = sent + self.delay_us[path] + below(self.jitter_us + 1);
                    if self.fifo {
                        at_us = at_us.max(last[path]);
                        last[path] = at_us;
                    }
                    if below(1000) >= self.loss_permille {
                        let sequence = self.first.wrapping_add(n);
                        arrivals.push(Arriving {
                            at_us,
                            flow,
                            sequence,
                            start: n == 0,
                            path: path as PathId,
                        });
                    }
                }
            }
        }
        arrivals.sort_by_key(|arriving| arriving.at_us); // stable: the order of sending breaks ties
        arrivals
    }
}

/// Delivered packets: (instant, flow, sequence).
type Left = Vec<(Instant, u8, u32)>;

impl TestBed {
    /// Runs timers up to `until`, each exactly when it is due.
    fn run_timers(&mut self, until: Instant, left: &mut Left) {
        let mut fired = 0;
        while let Some((at, _)) = self.reorder.poll_timeout().filter(|(at, _)| *at <= until) {
            self.now = self.now.max(at);
            let Self { reorder, pool, out, now, .. } = self;
            reorder.on_timeout(*now, pool, out);
            assert!(reorder.poll_timeout().is_none_or(|(at, _)| at > *now), "would spin");
            self.collect(left);
            fired += 1;
            assert!(fired < 10_000);
        }
    }

    fn collect(&mut self, left: &mut Left) {
        let now = self.now;
        left.extend(self.out.0.drain(..).map(|(flow, sequence)| (now, flow, sequence)));
    }

    /// Feeds a channel, then runs all timers.
    fn feed(&mut self, arrivals: &[Arriving], hold: bool) -> Left {
        let mut left = Vec::new();
        for arriving in arrivals {
            let at = Instant::from_micros(arriving.at_us);
            self.run_timers(at, &mut left);
            self.now = at;
            self.packet(arriving.flow, arriving.sequence, arriving.start, hold, arriving.path);
            assert!(self.pool.resident_bytes() <= self.pool.config().bytes);
            self.collect(&mut left);
        }
        self.run_timers(Instant::MAX, &mut left);
        assert_eq!((self.reorder.depth(), self.reorder.flows(), self.pool.used_bytes()), (0, 0, 0));
        left
    }

    fn told(&mut self, channel: &Channel) {
        for path in 0..channel.paths {
            let rtt_us = 2 * channel.delay_us[usize::from(path)] + 1_000;
            self.reorder.set_path_rtt(path, rtt_us as u32);
        }
    }
}

/// When each packet first arrived.
fn first_arrivals(arrivals: &[Arriving]) -> BTreeMap<(u8, u32), u64> {
    let mut first = BTreeMap::new();
    for arriving in arrivals {
        first.entry((arriving.flow, arriving.sequence)).or_insert(arriving.at_us);
    }
    first
}

fn small() -> impl Strategy<Value = PoolConfig> {
    (0..40_usize, 1..30_u16, 300..20_000_u32, 300..20_000_u32).prop_map(
        |(kib, packets_per_flow, bytes_per_flow, bytes)| PoolConfig {
            bytes: kib * 1024,
            flow: FlowLimits { packets_per_flow, bytes_per_flow, bytes, ..FlowLimits::default() },
            ..PoolConfig::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// With loss, duplication, reordering inside paths and wrong RTTs, every packet that arrives is delivered
    /// exactly once, and none waits longer than the largest hold time.
    #[test]
    fn exactly_once_and_in_time(channel in channel(50, 30, 5_000, false)) {
        let arrivals = channel.run();
        let mut bed = TestBed::new(PoolConfig::default());
        bed.reorder.set_path_rtt(0, 20_000);
        let left = bed.feed(&arrivals, true);
        let came = first_arrivals(&arrivals);
        prop_assert_eq!(left.len(), came.len());
        for (at, flow, sequence) in left {
            let came = came[&(flow, sequence)];
            let waited = at.saturating_since(Instant::from_micros(came));
            prop_assert!(waited <= Duration::from_millis(200), "{sequence} waited {waited:?}");
        }
        let stats = bed.reorder.stats();
        prop_assert_eq!(stats.duplicates as usize, arrivals.len() - came.len());
        prop_assert_eq!(
            stats.in_order + stats.late + stats.released_in_order + stats.timed_out + stats.given_up + stats.early,
            came.len() as u64
        );
    }

    /// The same with very little memory: packets are delivered early, but still exactly once.
    #[test]
    fn exactly_once_when_bounds_are_hit(channel in channel(50, 0, 5_000, false), config in small()) {
        let arrivals = channel.run();
        let mut bed = TestBed::new(config);
        let left = bed.feed(&arrivals, true);
        let once: BTreeSet<_> = left.iter().map(|(_, flow, sequence)| (*flow, *sequence)).collect();
        prop_assert_eq!((left.len(), once.len()), (arrivals.len(), arrivals.len()));
    }

    /// Without loss, with FIFO paths and correct RTTs, packets are delivered in the order of sending for any
    /// skew.
    #[test]
    fn lossless_skew_comes_out_in_order(channel in channel(0, 0, 500, true)) {
        let arrivals = channel.run();
        let mut bed = TestBed::new(PoolConfig::default());
        bed.told(&channel);
        let left = bed.feed(&arrivals, true);
        prop_assert_eq!(left.len(), arrivals.len());
        for flow in 0..channel.flows {
            let out: Vec<_> = left.iter().filter(|(_, f, _)| *f == flow).map(|(_, _, sequence)| *sequence).collect();
            let sent: Vec<_> = (0..channel.packets).map(|n| channel.first.wrapping_add(n)).collect();
            prop_assert_eq!(out, sent);
        }
    }

    /// A flow without gaps is delivered on arrival, whatever happens to the other flows.
    #[test]
    fn no_flow_waits_for_another(channel in channel(100, 20, 5_000, false)) {
        let mut arrivals = channel.run();
        let quiet = 200;
        arrivals.extend((0..500_u32).map(|n| Arriving {
            at_us: u64::from(n) * 333,
            flow: quiet,
            sequence: n,
            start: n == 0,
            path: (n % 2) as PathId,
        }));
        arrivals.sort_by_key(|arriving| arriving.at_us);
        let came = first_arrivals(&arrivals);
        let mut bed = TestBed::new(PoolConfig::default());
        let left = bed.feed(&arrivals, true);
        for (at, flow, sequence) in left.into_iter().filter(|(_, flow, _)| *flow == quiet) {
            prop_assert_eq!(at, Instant::from_micros(came[&(flow, sequence)]));
        }
    }

    /// Compares de-duplication with a plain set, with the rule of the window.
    #[test]
    fn duplicates_are_those_of_a_set(first in any::<u32>(), steps in prop::collection::vec((0..9_u32, 0..6000_u32), 1..600)) {
        let mut bed = TestBed::new(PoolConfig::default());
        let (mut highest, mut seen) = (0_u64, BTreeSet::new());
        for (n, (forward, back)) in steps.into_iter().enumerate() {
            // Mostly small steps; a copy is up to `back` behind the highest number.
            highest += if forward == 8 { 3000 } else { u64::from(forward) };
            for (position, is_copy) in [(highest, false), (highest.saturating_sub(u64::from(back)), true)] {
                let sequence = first.wrapping_add(position as u32);
                let outcome = bed.packet(1, sequence, n == 0 && !is_copy, false, u8::from(is_copy));
                let fresh = seen.insert(position);
                let inside = highest - position < u64::from(WINDOW);
                prop_assert_eq!(outcome != Outcome::Duplicate, fresh && inside, "{:?} at {}", outcome, position);
            }
        }
        prop_assert_eq!(bed.reorder.depth(), 0);
    }

    /// For any sequence of calls: no panic, no packet lost, no memory leaked, no busy loop.
    #[test]
    fn any_calls_are_survived(
        config in small(),
        calls in prop::collection::vec((0..14_u8, 0..6_u8, any::<u32>(), any::<bool>(), 0..10_u8, 0..300_u64), 1..400),
    ) {
        let mut bed = TestBed::new(PoolConfig { flow: FlowLimits { flows: 4, ..config.flow.clone() }, ..config });
        let (mut given, mut dropped, mut left) = (0, 0, Vec::new());
        let mut sequences = [7_u32; 6];
        for (what, flow, number, flag, path, ms) in calls {
            bed.now += Duration::from_millis(ms / 10);
            let next = &mut sequences[usize::from(flow)];
            let sequence = match what {
                0..=6 => next.wrapping_add(number % 9),
                7 => next.wrapping_sub(number % 9),
                8 => next.wrapping_add(number % (2 * WINDOW)),
                9 => number,
                10 => {
                    bed.reorder.set_path_rtt(path, number % 400_000 * u32::from(flag));
                    continue;
                }
                11 => {
                    bed.at(bed.now.as_millis() + ms);
                    bed.collect(&mut left);
                    continue;
                }
                12 if flag => {
                    let TestBed { reorder, pool, out, now, .. } = &mut bed;
                    reorder.flush(*now, pool, out);
                    prop_assert_eq!(bed.reorder.depth(), 0);
                    continue;
                }
                _ => *next,
            };
            *next = sequence.wrapping_add(1);
            bed.size = 5 + (number % 1500) as usize;
            given += 1;
            let outcome = bed.packet(flow, sequence, flag && number % 7 == 0, what != 6, path);
            dropped += usize::from(outcome == Outcome::Duplicate);
            bed.collect(&mut left);
            prop_assert_eq!(left.len() + dropped + bed.reorder.depth(), given);
            prop_assert!(bed.pool.resident_bytes() <= bed.pool.config().bytes);
        }
        bed.run_timers(Instant::MAX, &mut left);
        prop_assert_eq!(left.len() + dropped, given);
        prop_assert_eq!((bed.reorder.flows(), bed.pool.used_bytes()), (0, 0));
    }
}
