//! Wall time per simulated second of the MCS 28 scenario: ours, and ns-3's LTE module.
//!
//! Both do the same work: 25 RBs, MCS 28, one UE, RLC UM with 1 MB, a bulk TCP flow (CUBIC, SACK) and a VoIP
//! call, and nothing is drawn or traced. Ours checks every byte of every packet and makes its metrics in that
//! time. What ns-3's program leaves out to be fast is said on top of `bench/peers/ns3/mcs28.cc`.

use super::super::{Result1, figures, stats};
use super::RanArgs;
use crate::backend::{Backend, Quiet};
use crate::netns::program;
use crate::scenario;
use crate::virtual_backend::VirtualBackend;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The scenario that is timed, as it ships.
const SCENARIO: &str = include_str!("../../../../../scenarios/papers/rlc/table2-mcs28.toml");
/// Its variants that are; ns-3 has the first only.
const VARIANTS: [&str; 3] = ["vanilla", "e5g_bdp", "jit"];
/// The program of `bench/peers/ns3`.
const PEER: &str = "ns3-mcs28";
/// How ns-3 is run: `--features`, and what that is.
const FEATURES: [(&str, &str); 2] = [("pared", "ns-3, pared down"), ("default", "ns-3, its defaults")];
/// Simulated seconds in which transport blocks are counted by MCS.
const CHECK_S: u32 = 3;

/// What the peer prints.
#[derive(Debug, Deserialize)]
struct Ns3 {
    build_wall_s: f64,
    run_wall_s: f64,
    goodput_mbps: f64,
    voip_packets: u32,
    blocks_by_mcs: BTreeMap<String, u64>,
}

#[derive(Debug, Default)]
struct Contender {
    name: String,
    /// Wall seconds per simulated second, of each round.
    each: Vec<f64>,
    goodput_mbps: f64,
    voip_packets: u32,
}

pub fn run(args: &RanArgs) -> Result<Result1> {
    let peer = peer(args.peers.as_deref());
    let mut notes = vec![
        "Wall time from building the network to the end of the run; metrics and the check of every byte included \
         in ours."
            .to_owned(),
    ];
    let mut ours: Vec<Contender> =
        VARIANTS.iter().map(|name| contender(format!("anabranch, {name}"))).collect();
    let mut theirs: Vec<Contender> =
        FEATURES.iter().map(|(_, title)| contender((*title).to_owned())).collect();
    match &peer {
        Some(peer) => {
            let blocks = ns3(peer, CHECK_S, &["--check=1"])?.blocks_by_mcs;
            ensure!(blocks.keys().eq(["28"]), "ns-3 used other MCS than 28: {blocks:?}");
            notes.push(format!("ns-3: MCS 28 in all {} blocks of a run that counted them.", blocks["28"]));
        }
        None => {
            theirs.clear();
            notes.push(format!(
                "Without ns-3: there is no {PEER}; ./x bench ran installs ns-3 and builds it."
            ));
        }
    }
    for round in 0..args.rounds {
        doing(args, &format!("round {} of {}", round + 1, args.rounds));
        for (variant, into) in VARIANTS.iter().zip(&mut ours) {
            once(args, variant, into)?;
        }
        for ((features, _), into) in FEATURES.iter().zip(&mut theirs) {
            let peer = peer.as_deref().context("a peer")?;
            let run = ns3(peer, args.seconds, &[&format!("--features={features}")])?;
            into.each.push((run.build_wall_s + run.run_wall_s) / f64::from(args.seconds));
            (into.goodput_mbps, into.voip_packets) = (run.goodput_mbps, run.voip_packets);
        }
    }
    let mut table =
        figures(&["", "wall ms per simulated s", "TCP Mbit/s", "VoIP packets", "times vanilla's"]);
    let mut rows = Vec::new();
    let first = stats::median(&mut ours[0].each.clone());
    for contender in ours.iter_mut().chain(&mut theirs) {
        let each = stats::median(&mut contender.each);
        table.add_row([
            contender.name.clone(),
            format!("{:.2}", each * 1e3),
            format!("{:.2}", contender.goodput_mbps),
            contender.voip_packets.to_string(),
            format!("{:.1}", each / first),
        ]);
        rows.push(json!({
            "contender": contender.name, "wall_s_per_simulated_s": each, "goodput_mbps": contender.goodput_mbps,
            "voip_packets": contender.voip_packets, "times_vanilla": each / first,
        }));
    }
    notes.push(format!("{} simulated seconds, median of {} rounds in turn.", args.seconds, args.rounds));
    for contender in &mut theirs {
        let ratio = stats::median(&mut contender.each) / first;
        notes.push(format!("{}: {ratio:.0} times our wall time.", contender.name));
    }
    let json = Value::from(rows);
    Ok(Result1 { name: "speed", table, json, notes })
}

fn contender(name: String) -> Contender {
    Contender { name, ..Contender::default() }
}

fn doing(args: &RanArgs, what: &str) {
    if !args.json {
        eprintln!("bench: {what}");
    }
}

/// One run of a variant in virtual time.
fn once(args: &RanArgs, variant: &str, into: &mut Contender) -> Result<()> {
    let sets = [format!("duration_s={}", args.seconds)];
    let parsed = scenario::parse(Path::new("table2-mcs28.toml"), SCENARIO, &sets);
    let scenario = parsed.map_err(|problems| anyhow::anyhow!("{problems:?}"))?;
    let case = scenario.cases.iter().find(|case| case.variant.as_deref() == Some(variant));
    let case = case.with_context(|| format!("variant {variant}"))?;
    let from = Instant::now();
    let outcome = VirtualBackend.run(case, scenario.seed, &Quiet)?;
    into.each.push(from.elapsed().as_secs_f64() / f64::from(args.seconds));
    let metric = |name: &str| outcome.metrics.get(name).copied().with_context(|| format!("metric {name}"));
    ensure!(metric("flow.bulk.intact")? == 1.0, "{variant}: not every byte is the one that was sent");
    into.goodput_mbps = metric("flow.bulk.goodput_mbps")?;
    into.voip_packets = (metric("flow.voip.sent_packets")? - metric("flow.voip.lost_packets")?) as u32;
    Ok(())
}

fn peer(folder: Option<&Path>) -> Option<PathBuf> {
    let own = folder.map(|folder| folder.join(PEER)).filter(|path| path.is_file());
    own.or_else(|| program::find(PEER))
}

fn ns3(program: &Path, seconds: u32, more: &[&str]) -> Result<Ns3> {
    let mut command = Command::new(program);
    let output = command.arg(format!("--seconds={seconds}")).args(more).output();
    let output = output.with_context(|| program.display().to_string())?;
    if !output.status.success() {
        bail!("{}: {}", program.display(), String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).with_context(|| format!("what {} printed", program.display()))
}
