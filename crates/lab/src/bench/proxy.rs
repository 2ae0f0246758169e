//! Transparent proxy: TCP goodput of the same flows over the same link, with and without it.
//!
//! ```text
//!  [client: iperf3, anabranch proxy] ── veth "wire" (tbf at both ends, or none) ── [server: iperf3]
//! ```
//!
//! Client, proxy and kernel of that side share one core. On an unshaped link the ratio therefore shows the processing cost of the
//! proxy; on a shaped link it shows whether the proxy keeps up.

use super::iperf::{Iperf, PORT};
use super::{Bench, CLIENT, Core, Pair, SERVER, figures, machine, pinned, sandboxed, stats};
use crate::netns::program::{self, Program};
use anyhow::{Context, Result};
use clap::Args as ClapArgs;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  anabranch-lab bench proxy
      1 Gbit/s and unshaped, 1 and 64 flows, three rounds
  anabranch-lab bench proxy --rate-mbit 300 --flows 1
      one link, one flow

Exit codes: 0 success, 1 failure, 3 not supported on this machine.";
/// Share of the goodput of a direct connection that the proxy should reach on a shaped link.
const GOAL: f64 = 0.9;

/// Arguments of `anabranch-lab bench proxy`.
#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub struct ProxyArgs {
    /// Duration of one measurement, in seconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=600))]
    seconds: u32,
    /// Number of rounds, in which direct and proxied flows alternate; medians are shown.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,
    /// Rate of the shaped link.
    #[arg(long, default_value_t = 1000, value_name = "MBIT", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate_mbit: u32,
    /// Numbers of flows.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 64], value_parser = clap::value_parser!(u32).range(1..=128))]
    flows: Vec<u32>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark. Must be called while the process has only one thread.
///
/// # Errors
/// No sandbox, or a measurement failed.
pub fn run(args: &ProxyArgs) -> Result<u8> {
    let sandbox = match sandboxed() {
        Ok(sandbox) => sandbox,
        Err(code) => return Ok(code),
    };
    program::require(&[
        ("ip", "iproute2"),
        ("iperf3", "iperf3"),
        ("taskset", "util-linux"),
        ("nft", "nftables"),
    ])?;
    let bench = Bench::new(sandbox, args.seconds, args.rounds, args.json)?;
    let mut table = figures(&["TCP", "", "direct Mbit/s", "proxied Mbit/s", "ratio"]);
    let mut rows = Vec::new();
    for rate in [Some(args.rate_mbit), None] {
        let link = rate.map_or_else(|| "unshaped".to_owned(), |mbit| format!("{mbit} Mbit/s"));
        for &flows in &args.flows {
            for down in [false, true] {
                let way = if down { "down" } else { "up" };
                let (mut direct, mut proxied) = (Vec::new(), Vec::new());
                for round in 0..bench.rounds {
                    bench.doing(&format!(
                        "{link}, {flows} flows {way}, round {} of {}",
                        round + 1,
                        bench.rounds
                    ));
                    let tag = format!("p{}{flows}{way}{round}", rate.unwrap_or(0));
                    direct.push(once(&bench, &format!("{tag}d"), rate, flows, down, false)?);
                    proxied.push(once(&bench, &format!("{tag}p"), rate, flows, down, true)?);
                }
                let (direct, proxied) = (stats::median(&mut direct), stats::median(&mut proxied));
                let ratio = proxied / direct;
                let below = rate.is_some() && ratio < GOAL;
                table.add_row([
                    link.clone(),
                    format!("{flows} {way}"),
                    format!("{direct:.0}"),
                    format!("{proxied:.0}"),
                    format!("{ratio:.3}{}", if below { format!(", below {GOAL}") } else { String::new() }),
                ]);
                rows.push(json!({
                    "rate_mbit": rate, "flows": flows, "direction": way, "direct_mbps": direct, "proxied_mbps": proxied,
                    "ratio": ratio,
                }));
            }
        }
    }
    if args.json {
        println!("{}", json!({"machine": machine(), "proxy": rows}));
    } else {
        println!("\n{table}");
        println!(
            "medians of {} rounds of {} s; CUBIC; client, proxy and kernel of that side share one core; the goal on the \
             shaped link is {GOAL}",
            bench.rounds, args.seconds
        );
    }
    Ok(0)
}

/// Received Mbit/s.
fn once(bench: &Bench, tag: &str, rate: Option<u32>, flows: u32, down: bool, proxied: bool) -> Result<f64> {
    let folder = bench.folder(tag)?;
    let pair = Pair::new(tag)?;
    for (space, own) in [(&pair.client, CLIENT), (&pair.server, SERVER)] {
        // Set by route for all flows: a namespace cannot have a restricted congestion control as its default.
        space.ip(&format!("route replace 192.0.2.0/30 dev wire scope link src {own} congctl cubic"))?;
        if let Some(mbit) = rate {
            let mut tc = Command::new(program::find("tc").context("tc (iproute2)")?);
            tc.args(["qdisc", "add", "dev", "wire", "root", "tbf", "rate", &format!("{mbit}mbit")]);
            space.output(tc.args(["burst", "256kb", "latency", "20ms"]))?;
        }
    }
    let proxy = if proxied { Some(proxy(bench, &pair, &folder)?) } else { None };
    let flow_count = flows.to_string();
    let mut client = vec!["--bind", CLIENT, "--parallel", &flow_count];
    if down {
        client.push("--reverse");
    }
    let mbps = Iperf { server: SERVER, congestion: "cubic", client: &client }
        .goodput(bench, &pair, &folder)
        .with_context(|| proxy.as_ref().map(Program::log_tail).unwrap_or_default())?;
    if proxied {
        // The control flow of iperf3 and the measured flows: none bypassed the proxy.
        let seen = carried(&folder)?;
        anyhow::ensure!(seen > u64::from(flows), "only {seen} flows passed the proxy");
    }
    drop(proxy);
    pair.end();
    Ok(mbps)
}

fn proxy(bench: &Bench, pair: &Pair, folder: &Path) -> Result<Program> {
    let text = format!(
        "[proxy]\nworkers = 1\n[agent]\nconnect = \"off\"\n[api]\nlisten = \"unix:{}\"\n\
         [[rule]]\nname = \"bench\"\nfilter = {{ protocol = \"tcp\", remote_port = {PORT} }}\n",
        socket(folder).display()
    );
    let file = folder.join("proxy.toml");
    std::fs::write(&file, text).with_context(|| file.display().to_string())?;
    let mut command = pinned(Core::Client, &bench.anabranch);
    command.args(["--log", "info", "proxy", "--config"]).arg(&file);
    let ready = ("proxy runs", Duration::from_secs(30));
    Program::start_saying(&pair.client, "proxy", &mut command, ready, folder, &bench.sandbox.stop)
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("proxy.sock")
}

/// Number of flows through the proxy.
fn carried(folder: &Path) -> Result<u64> {
    let mut ask = Command::new(program::anabranch()?);
    ask.args(["ctl", "--json", "--socket"]).arg(socket(folder)).arg("proxy");
    let output = ask.output().context("anabranch ctl proxy")?;
    let node: Value = serde_json::from_slice(&output.stdout).context("anabranch ctl proxy")?;
    Ok(node["carried"].as_array().into_iter().flatten().filter_map(|c| c["flows"].as_u64()).sum())
}
