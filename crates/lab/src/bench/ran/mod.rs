//! The cell: how fast a scenario runs beside ns-3, how long EQP decides, and what a thousand UEs cost.
//!
//! Needs no namespaces and no root. No figure here decides a test; the exit code says only whether everything
//! ran.

mod eqp;
mod speed;
mod ues;

use super::{Result1, machine};
use anyhow::Result;
use clap::{Args as ClapArgs, ValueEnum};
use serde_json::json;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  anabranch-lab bench ran                             everything, some two minutes
  anabranch-lab bench ran eqp ues                     without ns-3
  anabranch-lab bench ran speed --peers target/peers/bin   where ns3-mcs28 is

./x bench ran installs ns-3 and builds that program first. Exit codes: 0 everything ran, 1 something failed.";

/// Arguments of `anabranch-lab bench ran`.
#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub struct RanArgs {
    /// Parts to run; all by default.
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Simulated seconds of one run of the scenario.
    #[arg(long, default_value_t = 65, value_parser = clap::value_parser!(u32).range(10..=600))]
    seconds: u32,
    /// Rounds of the scenario; contenders take turns, medians are shown.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,
    /// Folder with ns3-mcs28; left out if it is not there, and said.
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
    /// One JSON object at the end instead of tables.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Wall time per simulated second of the MCS 28 scenario, beside ns-3.
    Speed,
    /// EQP's decision: 275 RBs and 64 backlogged queues, and how it grows.
    Eqp,
    /// 1,000 UEs: memory, and time per TTI.
    Ues,
}

/// Runs the benchmark.
///
/// # Errors
/// A part failed.
pub fn run(args: &RanArgs) -> Result<u8> {
    let all = [Part::Speed, Part::Eqp, Part::Ues];
    let parts = if args.parts.is_empty() { &all[..] } else { &args.parts[..] };
    let mut object = json!({ "machine": machine() });
    for part in parts {
        let Result1 { name, table, json, notes } = match part {
            Part::Speed => speed::run(args)?,
            Part::Eqp => eqp::run()?,
            Part::Ues => ues::run()?,
        };
        if args.json {
            object[name] = json;
        } else {
            println!("\n{name}\n{table}");
            notes.iter().for_each(|note| println!("{note}"));
        }
    }
    if args.json {
        println!("{object}");
    }
    Ok(0)
}
