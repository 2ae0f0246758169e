//! `gps_packing` with competitors that could gain more than their share: small packets against large ones, small buffers
//! behind limiters, an MCS that changes per TTI, and slices and UEs that come and go.

use super::*;
use crate::sched::gps_packing::GpsPackingParams;
use std::collections::VecDeque;

/// Source of a UE's RLC buffer.
#[derive(Debug, Clone, Copy)]
enum Feed {
    /// Keeps this number of packets waiting.
    Keep(usize),
    /// Like a limiter that follows the MAC: four thirds of the recent service, plus one packet.
    Paced,
    /// Alternates between the first number of TTIs with 40 waiting packets and the second number without.
    OnOff(u32, u32),
    /// A packet arrives in this number of every 100 TTIs.
    Sparse(u32),
}

#[derive(Debug, Clone)]
struct User {
    slice: u16,
    feed: Feed,
    sizes: (u32, u32),
    /// MCS by TTI, repeated.
    mcs: Vec<u8>,
    rlc: VecDeque<u32>,
    average: f64,
    got: u64,
}

impl User {
    fn new(slice: u16, feed: Feed, bytes: u32) -> Self {
        Self { slice, feed, sizes: (bytes, bytes), mcs: vec![28], rlc: VecDeque::new(), average: 1.0, got: 0 }
    }

    fn bytes(&self) -> u64 {
        self.rlc.iter().map(|p| u64::from(*p)).sum()
    }
}

struct World {
    amc: Amc,
    slices: Vec<SliceConfig>,
    users: Vec<User>,
    scheduler: AnyInter,
    allocation: Allocation,
    rng: ChaCha12Rng,
    tti: usize,
    /// RBs of each slice in the last TTI.
    slice_rbs: Vec<u16>,
}

impl World {
    fn new(config: &InterConfig, rbs: u16, shares: &[f64], users: Vec<User>, seed: u64) -> Self {
        let slices: Vec<_> =
            (0..).zip(shares).map(|(i, s): (u32, _)| SliceConfig::new(i.to_string(), *s)).collect();
        Self {
            amc: Amc::new(&RadioConfig::Lte(LteConfig { rbs, rbg_rbs: None })).unwrap(),
            scheduler: config.build(slices.len(), users.len()).unwrap(),
            slice_rbs: vec![0; slices.len()],
            slices,
            users,
            allocation: Allocation::default(),
            rng: ChaCha12Rng::seed_from_u64(seed),
            tti: 0,
        }
    }

    /// Runs one TTI with `rbs` RBs; returns the RBs granted.
    fn step(&mut self, rbs: u16) -> u16 {
        let tti = self.tti;
        self.tti += 1;
        for user in &mut self.users {
            let mut below = |n: u32| self.rng.next_u32() % n.max(1);
            let (low, high) = user.sizes;
            let mut push = |rlc: &mut VecDeque<u32>| rlc.push_back(low + below(high - low + 1));
            match user.feed {
                Feed::Keep(packets) => (user.rlc.len()..packets).for_each(|_| push(&mut user.rlc)),
                Feed::Paced => {
                    while (user.bytes() as f64) < user.average * 1.33 {
                        push(&mut user.rlc);
                    }
                }
                Feed::OnOff(on, off) if tti as u32 % (on + off) < on => {
                    (user.rlc.len()..40).for_each(|_| push(&mut user.rlc));
                }
                Feed::Sparse(percent) => {
                    let mut rlc = std::mem::take(&mut user.rlc);
                    if self.rng.next_u32() % 100 < percent && rlc.len() < 40 {
                        rlc.push_back(low);
                    }
                    user.rlc = rlc;
                }
                Feed::OnOff(..) => {}
            }
        }
        let (mut queues, mut sizes) = (Vec::new(), Vec::new());
        let mut order: Vec<usize> =
            (0..self.users.len()).filter(|u| !self.users[*u].rlc.is_empty()).collect();
        // Within a slice, the UE that got least goes first.
        order.sort_by_key(|u| (self.users[*u].slice, self.users[*u].got, *u));
        for u in order {
            let user = &self.users[u];
            let from = sizes.len() as u32;
            sizes.extend(user.rlc.iter().take(60));
            let mcs = user.mcs[tti % user.mcs.len()];
            let sizes = from..sizes.len() as u32;
            queues.push(Backlog { ue: u as u32, slice: user.slice, mcs, bytes: user.bytes(), sizes });
        }
        let (table, rbg) = (self.amc.full(), self.amc.rbg());
        let given = Tti { rbs, rbg, table, slices: &self.slices, queues: &queues, sizes: &sizes };
        self.allocation.start(&given);
        self.scheduler.schedule(&given, &mut self.allocation);
        let waits = queues.iter().enumerate().any(|(q, _)| self.allocation.unmet(q) > 0);
        assert!(self.allocation.unused_rbs() == 0 || !waits, "work-conserving");
        let mut taken = vec![0; self.users.len()];
        for (queue, grant) in queues.iter().zip(&self.allocation.grants) {
            let user = &mut self.users[queue.ue as usize];
            user.got += u64::from(*grant);
            let mut bytes = self.amc.full().row(queue.mcs)[usize::from(*grant)];
            while let Some(first) = user.rlc.front_mut() {
                let take = bytes.min(*first);
                *first -= take;
                bytes -= take;
                taken[queue.ue as usize] += take;
                if *first > 0 {
                    break;
                }
                user.rlc.pop_front();
            }
        }
        for (user, taken) in self.users.iter_mut().zip(taken) {
            user.average += 0.7 * (f64::from(taken) - user.average);
        }
        for (slice, rbs) in self.slice_rbs.iter_mut().enumerate() {
            *rbs = self.allocation.slice_rbs(slice);
        }
        self.allocation.grants.iter().sum()
    }

    fn got(&self, slice: u16) -> u64 {
        self.users.iter().filter(|u| u.slice == slice).map(|u| u.got).sum()
    }
}

fn gps(limit: u32) -> InterConfig {
    InterConfig::GpsPacking(GpsPackingParams { lag_limit_rbs: limit })
}

/// A slice with few waiting packets gets its share, whatever the packets of the other slice, if its packets could carry that
/// share: one packet of 16 RBs per TTI, possibly partly sent, is enough for a share of half.
#[test]
fn small_buffers_do_not_lose_to_small_packets() {
    for (share, keep) in [(0.5, 1), (0.5, 2), (0.5, 8), (0.25, 1), (0.1, 1), (0.75, 2), (0.9, 2), (0.9, 16)] {
        for (bytes, limit) in [(40, 100), (60, 100), (60, 30), (172, 100), (400, 30), (1500, 100)] {
            for feed in [Feed::Keep(keep), Feed::Paced] {
                let users = vec![User::new(0, feed, 1500), User::new(1, Feed::Keep(100), bytes)];
                let shares = [share * 100.0, 100.0 - share * 100.0];
                let mut world = World::new(&gps(limit), 25, &shares, users, 1);
                (0..4000).for_each(|_| _ = world.step(25));
                let part = world.got(0) as f64 / (4000.0 * 25.0);
                // 2 L RBs, plus a few groups.
                let off = (part - share).abs() * 4000.0 * 25.0;
                assert!(
                    off <= f64::from(2 * limit) + 10.0,
                    "{share}, {feed:?} against {bytes} B, L {limit}: {part}"
                );
            }
        }
    }
}

/// The same for UEs of one slice.
#[test]
fn a_ue_of_small_packets_starves_no_ue_of_its_slice() {
    for (others, bytes) in [(1, 60), (1, 1500), (3, 40), (7, 172), (7, 60), (19, 100)] {
        for feed in [Feed::Keep(1), Feed::Keep(2), Feed::Paced] {
            let mut users = vec![User::new(0, feed, 1500)];
            users.extend((0..others).map(|_| User::new(0, Feed::Keep(100), bytes)));
            let mut world = World::new(&gps(100), 25, &[100.0], users, 1);
            (0..8000).for_each(|_| _ = world.step(25));
            let fair = 8000.0 * 25.0 / f64::from(others + 1);
            for user in &world.users {
                let off = (user.got as f64 - fair).abs();
                assert!(off <= 310.0, "{feed:?} and {others} of {bytes} B: {off} RBs off {fair}");
            }
        }
    }
}

/// A UE that was alone in its slice for long, beside many slices with little data, shares equally with a new one.
#[test]
fn no_member_pays_for_rbs_that_others_left_unused() {
    let mut users = vec![User::new(0, Feed::Keep(20), 1500)];
    users.extend((0..19).map(|_| User::new(0, Feed::Sparse(5), 200)));
    users.push(User::new(0, Feed::OnOff(4000, 4000), 1500));
    users[20].feed = Feed::OnOff(0, 4000);
    let mut world = World::new(&gps(100), 25, &[100.0], users, 3);
    (0..4000).for_each(|_| _ = world.step(25));
    world.users[20].feed = Feed::Keep(20);
    let before = world.users[0].got;
    (0..100).for_each(|_| _ = world.step(25));
    let first = world.users[0].got - before;
    assert!(first >= 500, "half of what is left in 100 TTIs, less the bound: {first} RBs");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// The bound derived in docs/ran-scheduler.md.
    #[test]
    fn shares_hold_within_the_bound(
        seed in any::<u64>(),
        shares in prop::collection::vec(1u32..=100, 2..6),
        feeds in prop::collection::vec((0usize..6, 0usize..7, 40u32..=1500, 40u32..=1500, 0u8..4), 2..12),
        (wide, limit) in (any::<bool>(), 20u32..200),
    ) {
        let total: u32 = shares.iter().sum();
        let percent: Vec<f64> = shares.iter().map(|s| f64::from(*s) * 100.0 / f64::from(total)).collect();
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let mut below = |n: u32| rng.next_u32() % n;
        let users: Vec<User> = feeds.iter().map(|(slice, feed, low, high, channel)| {
            let feed = match feed {
                0 => Feed::Keep(100),
                1 => Feed::Keep(1),
                2 => Feed::Keep(2),
                3 | 4 => Feed::Paced,
                5 => Feed::OnOff(1 + below(60), 1 + below(400)),
                _ => Feed::Sparse(1 + below(60)),
            };
            let slice = (slice % shares.len()) as u16;
            let mcs = match channel {
                0 => vec![28],
                1 => (0..97).map(|_| below(29) as u8).collect(),
                2 => (0..40).map(|tti| if tti < 20 { 5 } else { 26 }).collect(),
                _ => vec![9],
            };
            let sizes = (*low.min(high), *low.max(high));
            User { sizes, mcs, ..User::new(slice, feed, 0) }
        }).collect();
        let rbs = if wide { 100 } else { 25 };
        let mut world = World::new(&gps(limit), rbs, &percent, users, seed);
        let group = i32::from(world.amc.rbg());
        let n = shares.len() as i32;
        // B + g · (1/2 + … + 1/n), and −L minus the rounding to groups of each member.
        let bounds = -(limit as i32) - group * n..=limit as i32 + group * (1 + n / 2);
        // For a slice that never runs dry: the maximum lag behind its share of all RBs over any stretch of time.
        let mut behind = vec![(0.0_f64, 0.0_f64); shares.len()];
        let mut least = vec![f64::INFINITY; shares.len()];
        for _ in 0..600 {
            let free = if world.rng.next_u32().is_multiple_of(8) { (world.rng.next_u32() % (u32::from(rbs) + 1)) as u16 } else { rbs };
            world.step(free);
            let balances = world.scheduler.balances();
            prop_assert!(balances.iter().all(|b| bounds.contains(b)), "L {}: {:?}", limit, balances);
            for slice in 0..shares.len() {
                let deep = world.users.iter().any(|u| usize::from(u.slice) == slice && matches!(u.feed, Feed::Keep(100)) && u.sizes.0 >= 120);
                if deep {
                    let due = f64::from(free) * percent[slice] / 100.0;
                    behind[slice].0 += due - f64::from(world.slice_rbs[slice]);
                    least[slice] = least[slice].min(behind[slice].0);
                    behind[slice].1 = behind[slice].1.max(behind[slice].0 - least[slice].min(0.0));
                }
            }
        }
        for (slice, (_, most)) in behind.iter().enumerate() {
            let bound = f64::from(2 * limit as i32 + group * (2 * n + 2));
            prop_assert!(*most <= bound, "slice {} was {} RBs behind, bound {}", slice, most, bound);
        }
    }
}
