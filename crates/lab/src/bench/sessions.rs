//! What many sessions cost the one that works: ping-pong at 1,000 packets/s, and memory.

use super::ends::{PORT, Upf};
use super::{Bench, CLIENT, Core, Pair, Result1, SERVER, figures, stats, swarm, traffic};
use crate::netns::program::Program;
use crate::netns::traffic::{self as tasks, Task, UdpEcho, UdpSend, When};
use anabranch_core::access::crypto::PrivateKey;
use anyhow::{Context, Result};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use serde_json::json;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const PAYLOAD_BYTES: usize = 160;
const RATE: u64 = 1000;

pub fn run(bench: &Bench) -> Result<Result1> {
    let mut rng = ChaCha20Rng::seed_from_u64(3);
    let keys: Vec<PrivateKey> = (1..bench.sessions).map(|_| PrivateKey::generate(&mut rng)).collect();
    let folder = bench.folder("sessions")?;
    let pair = Pair::new("sessions")?;
    let upf = Upf::configure(bench, &folder, &keys, super::ends::Kind::Secure)?;
    let tunnel = upf.connect(bench, &pair.client, &pair.server)?;
    let far = tunnel.far.as_ref().context("the UPF")?;
    let mut table =
        figures(&["sessions", "p50 µs", "p99 µs", "p99 vs 1", "UPF memory MiB", "bytes per session"]);
    let mut rows = Vec::new();
    let mut notes = Vec::new();
    let (mut installed, mut first_p99, mut first_rss) = (0, 0, 0);
    for total in [1, 1000, bench.sessions] {
        let more = &keys[installed..total as usize - 1];
        install(bench, &pair, &upf, more, total)?;
        installed += more.len();
        // What the handshakes stirred up settles: ciphers are put away after ten seconds.
        if !more.is_empty() {
            bench.sandbox.stop.sleep(Duration::from_secs(20));
        }
        bench.doing(&format!("ping-pong with {total} sessions"));
        let mut rounds = Vec::new();
        for round in 0..bench.rounds {
            rounds.push(ping_pong(bench, &pair, &tunnel, &folder, &format!("{total}-{round}"))?);
        }
        rounds.sort_by_key(|(_, p99)| *p99);
        let (p50, p99) = rounds[rounds.len() / 2];
        let rss = resident_bytes(far.pid());
        if total == 1 {
            (first_p99, first_rss) = (p99, rss);
        }
        let each = (rss.saturating_sub(first_rss)).checked_div(u64::from(total) - 1);
        let percent = (p99 as f64 / first_p99.max(1) as f64 - 1.0) * 100.0;
        table.add_row([
            total.to_string(),
            stats::us(p50),
            stats::us(p99),
            format!("{percent:+.1} %"),
            format!("{:.1}", rss as f64 / 1048576.0),
            each.map_or_else(|| "-".to_owned(), |b| b.to_string()),
        ]);
        rows.push(json!({
            "sessions": total, "p50_us": p50 as f64 * 1e-3, "p99_us": p99 as f64 * 1e-3,
            "p99_vs_1_percent": percent, "upf_rss_bytes": rss, "bytes_per_session": each,
        }));
    }
    notes.push(format!("round trips through the tunnel; median of {} rounds", bench.rounds));
    drop(tunnel);
    pair.end();
    Ok(Result1 { name: "sessions", table, json: rows.into(), notes })
}

fn install(bench: &Bench, pair: &Pair, upf: &Upf, keys: &[PrivateKey], total: u32) -> Result<()> {
    if keys.is_empty() {
        return Ok(());
    }
    bench.doing(&format!("installing {} sessions, {total} in all", keys.len()));
    // Any address of theirs can be bound to without giving an interface each.
    pair.client.ip(&format!("route replace local {} dev lo", swarm::NETWORK))?;
    pair.server.ip(&format!("route replace {} via {CLIENT}", swarm::NETWORK))?;
    let remote = SocketAddr::new(SERVER.parse().context("address")?, PORT);
    pair.client.enter(|| {
        swarm::install(keys, upf.key.public(), remote, |done| {
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
fn ping_pong(
    bench: &Bench,
    pair: &Pair,
    tunnel: &super::ends::Tunnel,
    folder: &std::path::Path,
    tag: &str,
) -> Result<(u64, u64)> {
    let start_ns = tasks::now_ns() + 300_000_000;
    let stop_ns = start_ns + u64::try_from(bench.seconds.as_nanos()).unwrap_or(u64::MAX / 2);
    let when = When { start_ns, stop_ns, until_ns: stop_ns + 200_000_000 };
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

/// What a process holds of memory.
fn resident_bytes(pid: u32) -> u64 {
    // taskset executes the program in its own place, so the id is the program's.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0) * 1024
}
