//! Effect of other sessions at the same UPF on one UE: 10,000 sessions with a churn of 1,000 per second, a hostile UE, and a
//! handshake flood from unknown keys. The UE measures round trips at 1,000 packets/s.
//!
//! ```text
//!   core 0: measuring UE and its ping; the load, at the lowest priority      core 1: UPF (one worker), echo
//!   each round:  10,000 new sessions ─▶ idle ─▶ churn ─▶ plus hostile UE ─▶ plus flood
//! ```
//!
//! Silent sessions expire, so each round begins by creating all of them.

use super::ends::{self, Kind, Upf};
use super::sessions::{install, ping_pong, upf_of};
use super::swarm::{self, Nowhere, Out, SessionCounts};
use super::{Bench, Core, Pair, Result1, core_number, figures, stats};
use crate::netns::agent::Agent;
use anabranch_atsss::crypto::PrivateKey;
use anabranch_element::time::Instant as Time;
use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use serde_json::json;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// p50 and p99 in nanoseconds; new sessions, hostile datagrams and flood handshakes per second, processor share of the UPF in percent.
type Round = (u64, u64, [f64; 4]);

const SESSIONS: u32 = 10_000;
/// Sessions that are created and removed per second.
const NEW_SESSIONS_PER_S: f64 = 1000.0;
/// Number of keys for these sessions; a key is reused after two seconds at the earliest.
const CHURN_KEYS: u32 = 2000;
/// Datagrams per second of an authorised but hostile UE: see [`Hostile`].
const HOSTILE_PER_S: f64 = 5000.0;
/// Handshakes per second from unauthorised keys: five times as many as a worker can compute.
const FLOOD_PER_S: f64 = 10_000.0;
/// Number of /24 networks from which they come.
const FLOOD_NETWORKS: u32 = 1000;
/// Time until a new load has reached its rate.
const SETTLE: Duration = Duration::from_secs(1);
/// Permitted increase of the 99th percentile over that without load.
const GOAL_PERCENT: f64 = 10.0;
/// Kinds of load, each added to the previous ones.
const LOADS: [&str; 4] = ["no other load", "churn of 1,000/s", "plus a hostile UE", "plus a handshake flood"];

/// Work done by the load in one measurement.
#[derive(Debug, Default)]
struct LoadCounters {
    session_counts: Mutex<SessionCounts>,
    hostile: AtomicU64,
    flood: AtomicU64,
}

/// Keys of the UEs other than the measuring one.
struct Keys {
    idle: Vec<PrivateKey>,
    churn: Vec<PrivateKey>,
    hostile: PrivateKey,
}

pub fn run(bench: &Bench) -> Result<Result1> {
    let silent = SESSIONS.min(bench.sessions);
    let mut rng = ChaCha20Rng::seed_from_u64(4);
    let mut keys =
        |count: u32| -> Vec<PrivateKey> { (0..count).map(|_| PrivateKey::generate(&mut rng)).collect() };
    let keys = Keys { idle: keys(silent), churn: keys(CHURN_KEYS), hostile: keys(1).remove(0) };
    let all: Vec<PrivateKey> = keys.idle.iter().chain(&keys.churn).chain([&keys.hostile]).cloned().collect();
    let (folder, pair) = (bench.folder("churn")?, Pair::new("churn")?);
    let upf = Upf::configure(bench, &folder, &all, Kind::Secure)?;
    let tunnel = upf.connect(bench, &pair.client, &pair.server)?;
    // p50 and p99, in nanoseconds; work done by the load; processor time of the UPF, in percent of a core.
    let mut measured: [Vec<(u64, u64, [f64; 4])>; LOADS.len()] = Default::default();
    let mut sessions = Vec::new();
    for round in 1..=bench.rounds {
        install(bench, &pair, &upf, &keys.idle, silent)?;
        for (who, measured) in measured.iter_mut().enumerate() {
            bench.doing(&format!("ping-pong, round {round} of {}: {}", bench.rounds, LOADS[who]));
            ends::answers(bench, &pair, &tunnel)?;
            let (done, stop) = (LoadCounters::default(), AtomicBool::new(false));
            let pid = tunnel.far.as_ref().context("the UPF")?.pid();
            let result = std::thread::scope(|scope| {
                let others = scope.spawn(|| pair.client.enter(|| others(who, &keys, &upf, &done, &stop)));
                bench.sandbox.stop.sleep(SETTLE);
                let (start, busy) = (Instant::now(), processor_s(pid));
                let times = ping_pong(bench, &pair, &tunnel, &folder, &format!("{round}-{who}"));
                let busy = (processor_s(pid) - busy) / start.elapsed().as_secs_f64() * 100.0;
                stop.store(true, Relaxed);
                others.join().unwrap_or_else(|_| anyhow::bail!("a thread failed"))?;
                let seconds = (SETTLE + start.elapsed()).as_secs_f64();
                let session_counts =
                    *done.session_counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                anyhow::ensure!(session_counts.late == 0, "{} UEs got no session", session_counts.late);
                let per_s = |count: u64| count as f64 / seconds;
                let did = [
                    per_s(session_counts.up as u64),
                    per_s(done.hostile.load(Relaxed)),
                    per_s(done.flood.load(Relaxed)),
                    busy,
                ];
                times.map(|(p50, p99)| (p50, p99, did))
            })?;
            measured.push(result);
        }
        sessions.push(Agent::new("upf", &folder.join("upf.sock")).status()?.connected);
    }
    let mut table = figures(&[
        "beside it",
        "p50 µs",
        "p99 µs",
        "p99 vs alone",
        "UPF busy",
        "came /s",
        "hostile /s",
        "flood /s",
    ]);
    let mut rows = Vec::new();
    for (who, rounds) in measured.iter().enumerate() {
        let middle =
            |of: &dyn Fn(&Round) -> f64| stats::median(&mut rounds.iter().map(of).collect::<Vec<_>>());
        let (p50, p99) = (middle(&|r| r.0 as f64), middle(&|r| r.1 as f64));
        // Within the same round, because other load on the machine varies between rounds.
        let mut differences: Vec<f64> = rounds
            .iter()
            .zip(&measured[0])
            .map(|(r, alone)| (r.1 as f64 / alone.1.max(1) as f64 - 1.0) * 100.0)
            .collect();
        let [least, percent, most] = stats::spread(&mut differences);
        let [sessions, hostile, flood, busy] = std::array::from_fn(|i| middle(&|r| r.2[i]));
        table.add_row([
            LOADS[who].to_owned(),
            stats::us(p50 as u64),
            stats::us(p99 as u64),
            format!("{percent:+.1} % [{least:+.1}, {most:+.1}]"),
            format!("{busy:.0} %"),
            format!("{sessions:.0}"),
            format!("{hostile:.0}"),
            format!("{flood:.0}"),
        ]);
        rows.push(json!({
            "beside": LOADS[who], "p50_us": p50 * 1e-3, "p99_us": p99 * 1e-3, "p99_vs_alone_percent": percent,
            "least_percent": least, "most_percent": most, "upf_busy_percent": busy, "came_per_s": sessions,
            "hostile_per_s": hostile, "flood_per_s": flood,
        }));
    }
    let notes = vec![
        format!("sessions at the UPF after each round: {sessions:?}"),
        format!(
            "round trips of one UE; medians of {} rounds, in which the four cases alternate; goal: within {GOAL_PERCENT} %",
            bench.rounds
        ),
    ];
    drop(tunnel);
    pair.end();
    Ok(Result1 { name: "churn", table, json: rows.into(), notes })
}

/// Generates the load until it is stopped. It uses only idle time of the client's core.
fn others(who: usize, keys: &Keys, upf: &Upf, done: &LoadCounters, stop: &AtomicBool) -> Result<()> {
    let upf = upf_of(upf)?;
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        if who >= 1 {
            threads.push(scope.spawn(|| {
                at_lowest_priority()?;
                swarm::come(keys.churn.iter().cycle(), upf, NEW_SESSIONS_PER_S, true, |session_counts| {
                    *done.session_counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
                        session_counts;
                    Ok(!stop.load(Relaxed))
                })
            }));
        }
        if who >= 2 {
            threads.push(scope.spawn(|| {
                at_lowest_priority()?;
                let mut hostile = Hostile::connect(&keys.hostile, upf)?;
                at_rate(HOSTILE_PER_S, stop, &done.hostile, |number| hostile.send(number))
            }));
        }
        if who >= 3 {
            threads.push(scope.spawn(|| {
                at_lowest_priority()?;
                flood(upf, stop, &done.flood)
            }));
        }
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| anyhow::bail!("a thread failed")))
    })
}

/// Binds this thread to the client's core, with the lowest priority.
fn at_lowest_priority() -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core_number(Core::Client)).context("a core")?;
    sched_setaffinity(Pid::from_raw(0), &set).context("sched_setaffinity")?;
    // Other threads preempt it immediately. With a nice value alone, a thread would keep the core to the end of its time slice.
    anabranch_kern::priority::idle().context("SCHED_IDLE")
}

/// Calls a function at a given rate per second, as far as time permits.
fn at_rate(per_s: f64, stop: &AtomicBool, count: &AtomicU64, mut act: impl FnMut(u64)) -> Result<()> {
    let start = Instant::now();
    let mut number = 0;
    while !stop.load(Relaxed) {
        // Missed calls are not made up for, to avoid bursts.
        let due = ((start.elapsed().as_secs_f64() * per_s) as u64).saturating_sub(number);
        for _ in 0..due.min(50) {
            act(number);
            number += 1;
            count.fetch_add(1, Relaxed);
        }
        number += due.saturating_sub(50);
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// An authorised but hostile UE. It sends, in turn: packets of new flows, packets with a spoofed source address, replayed
/// datagrams, and corrupted datagrams.
struct Hostile {
    ue: anabranch_atsss::ue::Ue,
    socket: std::net::UdpSocket,
    start: Instant,
    address: std::net::Ipv4Addr,
    last: Vec<u8>,
}

impl Hostile {
    fn connect(key: &PrivateKey, upf: swarm::Upf) -> Result<Self> {
        let start = Instant::now();
        let ue = swarm::ue(key, upf, swarm::unix_ns()?, 0, Time::from_nanos(0))?;
        let socket = swarm::socket(u32::from(std::net::Ipv4Addr::new(10, 143, 255, 1)), upf.remote)?;
        let address = std::net::Ipv4Addr::UNSPECIFIED;
        let mut this = Self { ue, socket, start, address, last: Vec::new() };
        while start.elapsed() < Duration::from_secs(10) {
            this.serve(upf.remote);
            if let Some(own) = this.ue.addresses().v4.filter(|_| this.ue.is_connected()) {
                this.address = own;
                return Ok(this);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        anyhow::bail!("the hostile UE has no session: {:?}", this.ue.drops())
    }

    fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Processes its timers and received datagrams.
    fn serve(&mut self, remote: std::net::SocketAddr) {
        let (mut out, now) = (Vec::new(), self.now());
        let mut buffer = [0; 2048];
        while let Ok(len) = self.socket.recv(&mut buffer) {
            self.ue.datagram(0, remote, &mut buffer[..len], now, &mut Nowhere);
        }
        self.ue.poll(now, &mut Out(&mut out), &mut Nowhere);
        while self.ue.poll_event().is_some() {}
        self.flush(out);
    }

    fn flush(&mut self, out: Vec<Vec<u8>>) {
        for datagram in out {
            let _ = self.socket.send(&datagram);
            self.last = datagram;
        }
    }

    fn send(&mut self, number: u64) {
        if number.is_multiple_of(20)
            && let Ok(remote) = self.socket.peer_addr()
        {
            self.serve(remote);
        }
        let source =
            if number.is_multiple_of(2) { self.address } else { std::net::Ipv4Addr::new(10, 64, 0, 2) };
        match number % 4 {
            0 | 1 => {
                let (mut out, now) = (Vec::new(), self.now());
                self.ue.uplink(&mut udp(source, (number >> 2) as u16), now, &mut Out(&mut out));
                self.flush(out);
            }
            2 => drop(self.socket.send(&self.last)),
            _ => {
                let mut changed = self.last.clone();
                if let Some(byte) = changed.last_mut() {
                    *byte ^= 1;
                }
                let _ = self.socket.send(&changed);
            }
        }
    }
}

/// A UDP packet of 100 bytes to the inner address of the UPF.
fn udp(source: std::net::Ipv4Addr, port: u16) -> Vec<u8> {
    let mut packet = vec![0; 128];
    packet[..12].copy_from_slice(&[0x45, 0, 0, 128, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    packet[12..16].copy_from_slice(&source.octets());
    packet[16..20].copy_from_slice(&[10, 64, 0, 1]);
    let sum: u32 = packet[..20].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet[20..22].copy_from_slice(&port.to_be_bytes());
    packet[22..26].copy_from_slice(&[0, 9, 0, 108]);
    packet
}

/// First messages of handshakes from unauthorised keys, from many networks.
fn flood(upf: swarm::Upf, stop: &AtomicBool, count: &AtomicU64) -> Result<()> {
    let mut rng = ChaCha20Rng::seed_from_u64(5);
    let mut words = Vec::new();
    for turn in 0..200 {
        let key = PrivateKey::generate(&mut rng);
        let now = Time::from_nanos(0);
        swarm::ue(&key, upf, swarm::unix_ns()?, turn, now)?.poll(now, &mut Out(&mut words), &mut Nowhere);
    }
    let first = u32::from(std::net::Ipv4Addr::new(10, 136, 0, 1));
    let sockets = (0..FLOOD_NETWORKS)
        .map(|i| swarm::socket(first + (i << 8), upf.remote))
        .collect::<Result<Vec<_>>>()?;
    at_rate(FLOOD_PER_S, stop, count, |number| {
        let (socket, word) = (number as usize % sockets.len(), number as usize % words.len());
        let _ = sockets[socket].send(&words[word]);
    })
}

/// Processor time of a process, in seconds.
fn processor_s(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default();
    // utime and stime are fields 14 and 15, in hundredths of a second (proc(5)).
    after.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>()
        / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_of_the_hostile_ue_is_one() {
        let packet = udp(std::net::Ipv4Addr::new(10, 64, 3, 7), 4000);
        let (from, to, payload) = anabranch_wire::ip::parse_udp(&packet).unwrap();
        assert_eq!((from.to_string(), to.to_string()), ("10.64.3.7:4000".into(), "10.64.0.1:9".into()));
        assert_eq!(payload, 28..128);
        let sum: u32 = packet[..20].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }
}
