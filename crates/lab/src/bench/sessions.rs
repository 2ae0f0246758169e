//! Cost of many idle sessions: round trips of one active session at 1,000 packets/s, and memory.

use super::ends::{self, Kind, PORT, Tunnel, Upf};
use super::{Bench, CLIENT, Core, Pair, Result1, SERVER, figures, stats, swarm, traffic};
use crate::netns::program::Program;
use crate::netns::traffic::{self as tasks, Task, TaskTimes, UdpEcho, UdpSend};
use anabranch_atsss::crypto::PrivateKey;
use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use serde_json::json;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const PAYLOAD_BYTES: usize = 160;
const RATE: u64 = 1000;
/// Time in which the UPF processes the backlog after a stop.
const SETTLE: Duration = Duration::from_secs(2);

/// Time after which an idle UPF has released unused memory.
const AT_REST: Duration = Duration::from_secs(30);

/// Permitted increase of the 99th percentile with many sessions over that with one.
const GOAL_PERCENT: f64 = 10.0;

/// A UPF with a number of sessions, and the measuring UE.
struct Place {
    total: u32,
    pair: Pair,
    folder: PathBuf,
    tunnel: Tunnel,
    /// Memory of the UPF with all UEs configured, before and after they have sessions.
    memory_bytes: [u64; 2],
    /// p50 and p99 of each round, in nanoseconds.
    rounds: Vec<(u64, u64)>,
}

impl Place {
    fn new(bench: &Bench, total: u32, keys: &[PrivateKey]) -> Result<Self> {
        let tag = format!("s{total}");
        let (folder, pair) = (bench.folder(&tag)?, Pair::new(&tag)?);
        let upf = Upf::configure(bench, &folder, keys, Kind::Secure)?;
        let tunnel = upf.connect(bench, &pair.client, &pair.server)?;
        let pid = tunnel.far.as_ref().context("the UPF")?.pid();
        // First the memory used to read the file is released, then that of the handshakes: ciphers are dropped after ten
        // seconds, and their memory is returned some seconds later.
        let settle = || bench.sandbox.stop.sleep(if keys.is_empty() { Duration::ZERO } else { AT_REST });
        settle();
        let before = resident_bytes(pid);
        install(bench, &pair, &upf, keys, total)?;
        settle();
        let memory_bytes = [before, resident_bytes(pid)];
        let place = Self { total, pair, folder, tunnel, memory_bytes, rounds: Vec::new() };
        place.tunnel.signal(Signal::SIGSTOP);
        Ok(place)
    }

    /// A separate round, without another UPF running.
    fn measure(&mut self, bench: &Bench) -> Result<()> {
        self.tunnel.signal(Signal::SIGCONT);
        ends::answers(bench, &self.pair, &self.tunnel)?;
        bench.sandbox.stop.sleep(SETTLE);
        let tag = self.rounds.len().to_string();
        self.rounds.push(ping_pong(bench, &self.pair, &self.tunnel, &self.folder, &tag)?);
        self.tunnel.signal(Signal::SIGSTOP);
        Ok(())
    }

    fn median_ns(&self, which: impl Fn(&(u64, u64)) -> u64) -> u64 {
        stats::quantile(&mut self.rounds.iter().map(which).collect::<Vec<_>>(), 0.5)
    }
}

pub fn run(bench: &Bench) -> Result<Result1> {
    let mut rng = ChaCha20Rng::seed_from_u64(3);
    let keys: Vec<PrivateKey> = (1..bench.sessions).map(|_| PrivateKey::generate(&mut rng)).collect();
    let mut places = Vec::new();
    for total in [1, 1000, bench.sessions] {
        places.push(Place::new(bench, total, &keys[..total as usize - 1])?);
    }
    for round in 1..=bench.rounds {
        for place in &mut places {
            bench.doing(&format!("ping-pong, round {round} of {}: {} sessions", bench.rounds, place.total));
            place.measure(bench)?;
        }
    }
    let mut table = figures(&[
        "sessions",
        "p50 µs",
        "p99 µs",
        "p99 vs 1",
        "UPF memory MiB",
        "bytes per session",
        "and UE's entry",
    ]);
    let mut rows = Vec::new();
    for place in &places {
        let (one, total) = (&places[0], place.total);
        let (p50, p99) = (place.median_ns(|r| r.0), place.median_ns(|r| r.1));
        // Within the same round, because other load on the machine varies between rounds.
        let both = place.rounds.iter().zip(&one.rounds);
        let mut differences: Vec<f64> =
            both.map(|(many, one)| (many.1 as f64 / one.1.max(1) as f64 - 1.0) * 100.0).collect();
        let [least, percent, most] = stats::spread(&mut differences);
        let [before, with] = place.memory_bytes;
        let others = u64::from(total) - 1;
        let each = with.saturating_sub(before).checked_div(others);
        let with_entry = with.saturating_sub(one.memory_bytes[1]).checked_div(others);
        let shown = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), |b| b.to_string());
        table.add_row([
            total.to_string(),
            stats::us(p50),
            stats::us(p99),
            format!("{percent:+.1} % [{least:+.1}, {most:+.1}]"),
            format!("{:.1}", with as f64 / 1048576.0),
            shown(each),
            shown(with_entry),
        ]);
        rows.push(json!({
            "sessions": total, "p50_us": p50 as f64 * 1e-3, "p99_us": p99 as f64 * 1e-3,
            "p99_vs_1_percent": percent, "least_percent": least, "most_percent": most,
            "upf_rss_bytes": with, "bytes_per_session": each, "bytes_per_ue_and_session": with_entry,
        }));
    }
    let notes = vec![format!(
        "round trips through the tunnel; medians of {} alternating rounds, each with the other UPFs stopped; \
         goal: within {GOAL_PERCENT} %",
        bench.rounds
    )];
    for place in places {
        // A stopped process cannot exit.
        place.tunnel.signal(Signal::SIGCONT);
        drop(place.tunnel);
        place.pair.end();
    }
    Ok(Result1 { name: "sessions", table, json: rows.into(), notes })
}

/// Key and address of the UPF for its UEs.
pub(super) fn upf_of(upf: &Upf) -> Result<swarm::Upf> {
    Ok(swarm::Upf {
        key: upf.key.public(),
        remote: SocketAddr::new(SERVER.parse().context("address")?, PORT),
    })
}

/// Establishes a session for each key.
pub(super) fn install(bench: &Bench, pair: &Pair, upf: &Upf, keys: &[PrivateKey], total: u32) -> Result<()> {
    if keys.is_empty() {
        return Ok(());
    }
    bench.doing(&format!("installing {} sessions, {total} in total", keys.len()));
    // Lets sockets bind to all of their addresses without assigning each to an interface.
    pair.client.ip(&format!("route replace local {} dev lo", swarm::NETWORK))?;
    pair.server.ip(&format!("route replace {} via {CLIENT}", swarm::NETWORK))?;
    let upf = upf_of(upf)?;
    pair.client.enter(|| {
        swarm::install(keys, upf, |done| {
            anyhow::ensure!(!bench.sandbox.stop.requested(), crate::netns::program::Interrupted);
            if done % 10_000 == 0 && done > 0 && !bench.quiet {
                eprint!("\r  {done}");
            }
            Ok(())
        })
    })?;
    if !bench.quiet {
        eprint!("\r        \r");
    }
    Ok(())
}

/// p50 and p99 of the round-trip time, in nanoseconds.
pub(super) fn ping_pong(
    bench: &Bench,
    pair: &Pair,
    tunnel: &Tunnel,
    folder: &std::path::Path,
    tag: &str,
) -> Result<(u64, u64)> {
    let start_ns = tasks::now_ns() + 300_000_000;
    let stop_ns = start_ns + u64::try_from(bench.seconds.as_nanos()).unwrap_or(u64::MAX / 2);
    let when = TaskTimes { start_ns, stop_ns, until_ns: stop_ns + 200_000_000 };
    let to: SocketAddr = format!("{}:7001", tunnel.server).parse().context("address")?;
    let report = folder.join(format!("answers-{tag}"));
    let echo = Task::UdpEcho(UdpEcho { bind: to, when: when.into() });
    let ping = Task::UdpPing(UdpSend {
        bind: format!("{}:0", tunnel.client).parse().context("address")?,
        to,
        when: when.into(),
        rate_bps: PAYLOAD_BYTES as u64 * 8 * RATE,
        payload_bytes: PAYLOAD_BYTES,
        bursts: None,
        setup: Default::default(),
        sent: None,
        report: report.clone(),
    });
    let name = |what: &str| format!("{what}-{tag}");
    let mut echo =
        Program::start(&pair.server, &name("echo"), &mut traffic(Core::Server, &echo)?, folder, None)?;
    let mut ping =
        Program::start(&pair.client, &name("ping"), &mut traffic(Core::Client, &ping)?, folder, None)?;
    let deadline = Instant::now() + bench.seconds + Duration::from_secs(5);
    ping.wait_success(deadline, &bench.sandbox.stop)?;
    echo.wait_success(deadline, &bench.sandbox.stop)?;
    let mut times: Vec<u64> =
        tasks::arrivals(&report)?.iter().map(|a| a.arrived_ns.saturating_sub(a.sent_ns)).collect();
    anyhow::ensure!(!times.is_empty(), "no ping was answered");
    Ok((stats::quantile(&mut times, 0.5), stats::quantile(&mut times, 0.99)))
}

/// Memory used by a process.
fn resident_bytes(pid: u32) -> u64 {
    // taskset executes the program in its own process, so the id is that of the program.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0) * 1024
}
