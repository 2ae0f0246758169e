//! Memory per idle session. 100,000 UEs perform handshakes with one UPF over two accesses, probe both, send
//! and receive in three flows, and become idle. Then the growth of the process and the memory held by the
//! allocator are measured. The UEs' own state is freed as soon as they are idle.
//!
//! `cargo bench -p anabranch-atsss --bench idle_sessions [-- SESSIONS]`

#[path = "../tests/swarm/mod.rs"]
mod swarm;

use anabranch_atsss::session::{Session, SessionParams};
use anabranch_element::time::Duration;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use swarm::Swarm;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn held() -> isize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated as isize - stats.bytes_deallocated as isize
}

fn resident_bytes() -> isize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<isize>().ok()).unwrap_or(0) * 1024
}

fn main() {
    let sessions: u32 = std::env::args().filter_map(|a| a.parse().ok()).next().unwrap_or(100_000);
    // Keys live for 180 s, and the handshakes take 170 s.
    let params = SessionParams { cool_after: Duration::from_secs(1), ..SessionParams::default() };
    let mut swarm = Swarm::new(sessions, Vec::new(), params, held);
    // The first session also allocates what is needed once.
    swarm.connect();
    swarm.talk(0, 3);
    swarm.keys.reserve_exact(sessions as usize);
    swarm.ues.reserve_exact(sessions as usize);
    let (resident, base) = (resident_bytes(), swarm.upf_bytes);
    for i in 1..sessions {
        swarm.connect();
        swarm.talk(i, 3);
        swarm.ues[i as usize] = None;
        if i % 20_000 == 19_999 {
            eprintln!("  {} sessions", i + 1);
        }
    }
    let awake = swarm.upf.sessions().filter(|s| !s.resting).count();
    swarm.pass(Duration::from_secs(2), Duration::from_millis(10));
    let n = swarm.upf.session_count() as isize;
    assert_eq!((n, swarm.upf.connected_count() as u32), (sessions as isize, sessions));
    assert!(swarm.upf.sessions().skip(1).all(|s| s.resting), "all but the one whose UE lives");
    println!("sessions            {n}, {awake} of them awake a moment ago");
    println!("held by allocator   {} bytes per session", (swarm.upf_bytes - base) / n);
    println!("resident growth     {} bytes per session (limit 1024)", (resident_bytes() - resident) / n);
    println!("of which Session    {} bytes", size_of::<Session>());
    println!("tables              {} bytes per session", swarm.upf.table_bytes() as isize / n);
    println!("virtual time        {}", swarm.now);
}
