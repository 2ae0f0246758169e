//! TCP goodput of one flow through one tunnel, with one core per side.

use super::ends::{self, Kind};
use super::iperf::Iperf;
use super::{Bench, Pair, Result1, figures, stats};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const KINDS: [Kind; 6] =
    [Kind::Direct, Kind::Secure, Kind::Plain, Kind::PlainKernel, Kind::WireGuardGo, Kind::BoringTun];

pub fn run(bench: &Bench) -> Result<Result1> {
    let mut measured: BTreeMap<&str, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
    let mut notes = Vec::new();
    let here = |kind: &Kind| kind.program(bench).is_some();
    for kind in KINDS.iter().filter(|k| !here(k) && bench.wants(k.key())) {
        notes.push(format!("left out: {} is not installed (./x bench tunnel builds it)", kind.name()));
    }
    for round in 0..bench.rounds {
        for kind in KINDS.into_iter().filter(here) {
            bench.doing(&format!("goodput, round {} of {}: {}", round + 1, bench.rounds, kind.name()));
            let up = once(bench, kind, round, false)?;
            let down = once(bench, kind, round, true)?;
            let entry = measured.entry(kind.key()).or_default();
            entry.0.push(up);
            entry.1.push(down);
        }
    }
    let mut medians: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for (key, (up, down)) in &mut measured {
        medians.insert(key, (stats::median(up), stats::median(down)));
    }
    let ratio = |of: &str, to: &str| {
        let of = medians.get(of)?;
        let to = medians.get(to)?;
        Some((of.0 / to.0, of.1 / to.1))
    };
    let mut table = figures(&["one TCP flow", "up Mbit/s", "down Mbit/s", "× boringtun", "× wireguard-go"]);
    for kind in KINDS {
        let Some((up, down)) = medians.get(kind.key()) else { continue };
        let cell = |to| ratio(kind.key(), to).map_or_else(String::new, |(u, d)| format!("{u:.2} / {d:.2}"));
        table.add_row([
            kind.name().to_owned(),
            format!("{up:.0}"),
            format!("{down:.0}"),
            cell("boringtun"),
            cell("wireguard-go"),
        ]);
    }
    let json: serde_json::Map<String, Value> = medians
        .iter()
        .map(|(key, (up, down))| ((*key).to_owned(), json!({ "up_mbps": up, "down_mbps": down })))
        .collect();
    notes.push(format!(
        "medians of {} rounds of {} s; CUBIC; ends, iperf3 and kernel of a side share one core",
        bench.rounds,
        bench.seconds.as_secs()
    ));
    Ok(Result1 { name: "throughput", table, json: json.into(), notes })
}

/// Received Mbit/s.
fn once(bench: &Bench, kind: Kind, round: u32, down: bool) -> Result<f64> {
    let direction = if down { "down" } else { "up" };
    let tag = format!("t{round}{}{direction}", kind.key());
    let folder = bench.folder(&tag)?;
    let pair = Pair::new(&tag)?;
    let tunnel = ends::establish(bench, &pair, kind, &folder)?;
    let client: &[&str] = if down { &["--reverse"] } else { &[] };
    let mbps = Iperf { server: &tunnel.server, congestion: "cubic", client }
        .goodput(bench, &pair, &folder)
        .with_context(|| kind.name())?;
    drop(tunnel);
    pair.end();
    Ok(mbps)
}
