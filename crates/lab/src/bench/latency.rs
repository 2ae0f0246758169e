//! One-way latency of 1,000 small packets per second, from kernel time stamps.

use super::ends::{self, Kind};
use super::{Bench, Core, Pair, Result1, figures, stats, traffic};
use crate::netns::program::Program;
use crate::netns::traffic::{self as tasks, Task, TaskTimes, UdpReceive, UdpSend};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const KINDS: [Kind; 7] = [
    Kind::Direct,
    Kind::Secure,
    Kind::SecurePolling,
    Kind::Plain,
    Kind::PlainKernel,
    Kind::WireGuardGo,
    Kind::BoringTun,
];
/// Packet size in bytes, and packets per second.
const PAYLOAD_BYTES: usize = 160;
const RATE: u64 = 1000;

pub fn run(bench: &Bench) -> Result<Result1> {
    let mut table = figures(&["1,000 packets/s", "p50 µs", "p99 µs", "added p50", "added p99", "lost"]);
    let mut json = serde_json::Map::new();
    let mut direct = None;
    for kind in KINDS.into_iter().filter(|k| k.program(bench).is_some()) {
        bench.doing(&format!("one-way latency: {}", kind.name()));
        let (mut delays, lost) = once(bench, kind)?;
        let (p50, p99) = (stats::quantile(&mut delays, 0.5), stats::quantile(&mut delays, 0.99));
        let (base50, base99) = *direct.get_or_insert((p50, p99));
        let added = |value: u64, base: u64| (value as f64 - base as f64) * 1e-3;
        table.add_row([
            kind.name().to_owned(),
            stats::us(p50),
            stats::us(p99),
            format!("{:+.1}", added(p50, base50)),
            format!("{:+.1}", added(p99, base99)),
            lost.to_string(),
        ]);
        let object: Value = json!({
            "p50_us": p50 as f64 * 1e-3, "p99_us": p99 as f64 * 1e-3,
            "added_p50_us": added(p50, base50), "added_p99_us": added(p99, base99), "lost": lost,
        });
        json.insert(kind.key().to_owned(), object);
    }
    let notes = vec![
        "from the time before the send call to the time stamp of the receiving kernel; client to server"
            .to_owned(),
    ];
    Ok(Result1 { name: "latency", table, json: json.into(), notes })
}

fn once(bench: &Bench, kind: Kind) -> Result<(Vec<u64>, u64)> {
    let tag = format!("l{}", kind.key());
    let folder = bench.folder(&tag)?;
    let pair = Pair::new(&tag)?;
    let tunnel = ends::establish(bench, &pair, kind, &folder)?;
    let start_ns = tasks::now_ns() + 500_000_000;
    let stop_ns = start_ns + u64::try_from(bench.seconds.as_nanos()).unwrap_or(u64::MAX / 2);
    let when = TaskTimes { start_ns, stop_ns, until_ns: stop_ns + 300_000_000 };
    let to = format!("{}:7000", tunnel.server).parse().context("address")?;
    let (sent, got) = (folder.join("sent"), folder.join("got"));
    let receive = Task::UdpReceive(UdpReceive { bind: to, when: when.into(), report: got.clone() });
    let send = Task::UdpSend(UdpSend {
        bind: format!("{}:0", tunnel.client).parse().context("address")?,
        to,
        when: when.into(),
        rate_bps: PAYLOAD_BYTES as u64 * 8 * RATE,
        payload_bytes: PAYLOAD_BYTES,
        bursts: None,
        setup: Default::default(),
        sent: None,
        report: sent.clone(),
    });
    let mut sink =
        Program::start(&pair.server, "sink", &mut traffic(Core::Server, &receive)?, &folder, None)?;
    let mut source =
        Program::start(&pair.client, "source", &mut traffic(Core::Client, &send)?, &folder, None)?;
    let deadline = Instant::now() + bench.seconds + Duration::from_secs(5);
    source.wait_success(deadline, &bench.sandbox.stop)?;
    sink.wait_success(deadline, &bench.sandbox.stop)?;
    let arrivals = tasks::arrivals(&got)?;
    let sent: u64 = std::fs::read_to_string(&sent).context("sent")?.trim().parse().context("sent")?;
    let lost = sent.saturating_sub(arrivals.len() as u64);
    let delays = arrivals.iter().map(|a| a.arrived_ns.saturating_sub(a.sent_ns)).collect();
    drop((source, sink, tunnel));
    pair.end();
    Ok((delays, lost))
}
