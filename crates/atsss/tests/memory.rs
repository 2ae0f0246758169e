//! Memory of a UPF with many sessions, measured at its allocator; and a check that no packet allocates.

mod swarm;

use anabranch_atsss::session::SessionParams;
use anabranch_element::time::Duration;
use anabranch_steer::{
    Rule, SteeringMode, active_standby, coded,
    load_balance::{self, Granularity, Weight},
    redundant, smallest_delay,
};
use anabranch_wire::ip;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use swarm::{SERVER, Swarm, virtual_ip};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn held() -> isize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated as isize - stats.bytes_deallocated as isize
}

fn rule(steering: SteeringMode) -> Vec<Rule> {
    vec![Rule {
        name: "all".into(),
        filter: Default::default(),
        steering,
        reorder: true,
        functionality: Default::default(),
    }]
}

/// A single test, because the allocator counts for the whole process.
#[test]
fn a_resting_session_is_small_and_packets_do_not_allocate() {
    resting_sessions_are_small();
    packets_do_not_allocate();
}

/// A swarm of resting sessions, the memory of its UPF without them, and the memory of a session in use and at
/// rest.
fn resting_swarm(n: isize) -> (Swarm, isize, isize, isize) {
    let params = SessionParams { cool_after: Duration::from_secs(2), ..SessionParams::default() };
    let mut swarm = Swarm::new(1024, Vec::new(), params, held);
    let base = swarm.upf_bytes;
    for _ in 0..n {
        let i = swarm.connect();
        swarm.talk(i, 3);
    }
    let awake = (swarm.upf_bytes - base) / n;
    swarm.pass(Duration::from_secs(4), Duration::from_millis(20));
    assert!(swarm.upf.sessions().all(|s| s.resting && s.paths.iter().all(|p| p.up)));
    let resting = (swarm.upf_bytes - base) / n;
    (swarm, base, awake, resting)
}

fn resting_sessions_are_small() {
    let n = 512; // whole chunks of the slabs
    // The allocator also counts the thread of the test harness, which may allocate a kilobyte once.
    let (first, second) = (resting_swarm(n), resting_swarm(n));
    let (mut swarm, base, awake, resting) = if first.3 < second.3 { first } else { second };
    println!("bytes per session: {awake} awake, {resting} resting");
    assert!(resting <= 896, "{resting} bytes per resting session, the UE's record included");
    assert!(awake <= 8 * 1024, "{awake} bytes per session with three flows");
    // The session wakes with the first packet, goes to rest again, and is as small as before.
    let before = swarm.at_upf.0;
    swarm.talk(7, 3);
    assert_eq!(swarm.at_upf.0, before + 3);
    assert!(swarm.upf.sessions().any(|s| !s.resting));
    swarm.pass(Duration::from_secs(4), Duration::from_millis(20));
    let again = (swarm.upf_bytes - base) / n;
    assert!((again - resting).abs() <= 8, "{again} after {resting}");
    // A session that ends leaves only the capacity of the tables.
    for i in 0..n as usize {
        let (key, now) = (swarm.keys[i], swarm.now);
        swarm.ues[i] = None;
        let remove = anabranch_atsss::upf::UpfCommand::RemoveUe(key);
        swarm.upf(|s| s.upf.command(remove, now)).expect("known");
    }
    let now = swarm.now;
    swarm.upf(|s| s.upf.poll(now, &mut s.to_ue, &mut s.at_upf));
    while swarm.upf(|s| s.upf.poll_event()).is_some() {}
    assert_eq!((swarm.upf.session_count(), swarm.upf.pool().used_bytes()), (0, 0));
    let left = (swarm.upf_bytes - base) as usize;
    let tables = swarm.upf.table_bytes();
    assert!(left <= tables + 64 * 1024, "{left} bytes are left, {tables} of them tables");
}

fn packets_do_not_allocate() {
    let weight = |access: &str, percent| Weight { access: access.into(), percent };
    let modes = [
        SteeringMode::ActiveStandby(active_standby::Params {
            primary: "wifi".into(),
            rotate_packets: 0,
            leave_above_loss_percent: 5,
        }),
        SteeringMode::SmallestDelay(smallest_delay::Params {
            hysteresis_percent: 10,
            dwell_ms: 200,
            leave_above_loss_percent: 5,
        }),
        SteeringMode::LoadBalance(load_balance::Params {
            weights: vec![weight("5g", 50), weight("wifi", 50)],
            per: Granularity::Packet,
            autonomous: false,
        }),
        SteeringMode::Redundant(redundant::Params { above_loss_percent: None }),
        SteeringMode::Coded(coded::Params { overhead_percent: 30, window_packets: 64, longest_wait_ms: 100 }),
    ];
    // The same with each packet fragmented in two.
    for (mode, carries) in modes.into_iter().flat_map(|mode| [(mode.clone(), usize::MAX), (mode, 1000)]) {
        let name = format!("{mode:?}, datagrams of {carries} bytes");
        let mut swarm = Swarm::new(4, rule(mode), SessionParams::default(), held);
        (swarm.to_upf.carries, swarm.to_ue.carries) = (carries, carries);
        swarm.connect();
        let mut up = ip::udp_datagram((virtual_ip(0), 5000).into(), (SERVER, 9).into(), &[0; 1000]).unwrap();
        let mut down =
            ip::udp_datagram((SERVER, 9).into(), (virtual_ip(0), 5000).into(), &[0; 1000]).unwrap();
        let mut batches = |swarm: &mut Swarm, batches: usize| {
            for _ in 0..batches {
                let now = swarm.now;
                for _ in 0..32 {
                    if let Some(ue) = swarm.ues[0].as_mut() {
                        ue.uplink(&mut up, now, &mut swarm.to_upf);
                    }
                    swarm.upf.downlink(&mut down, now, &mut swarm.to_ue);
                }
                let (upf, to_ue, at_upf) = (&mut swarm.upf, &mut swarm.to_ue, &mut swarm.at_upf);
                swarm.to_upf.drain(|path, _, bytes| {
                    upf.datagram(path, swarm::from(0, path), bytes, now, to_ue, at_upf);
                });
                swarm.deliver();
                swarm.upf.poll(now, &mut swarm.to_ue, &mut swarm.at_upf);
                swarm.deliver();
            }
        };
        // Tables grow to their size, buffers enter the pool, and probes are sent.
        for _ in 0..100 {
            batches(&mut swarm, 1);
            swarm.pass(Duration::from_millis(5), Duration::from_millis(5));
        }
        let (before, packets) = (Region::new(ALLOCATOR), swarm.at_upf.0 + swarm.at_ues.0);
        batches(&mut swarm, 20);
        let change = before.change();
        assert_eq!(swarm.at_upf.0 + swarm.at_ues.0 - packets, 20 * 64, "{name}");
        assert_eq!((change.allocations, change.reallocations), (0, 0), "{name}: {change:?}");
    }
}
