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
  anabranch-lab bench ran
      all parts, about two minutes
  anabranch-lab bench ran eqp ues
      without ns-3
  anabranch-lab bench ran speed --peers target/peers/bin
      folder with ns3-mcs28

./x bench ran installs ns-3 and builds that program first.
Exit codes: 0 success, 1 failure.";

/// Arguments of `anabranch-lab bench ran`.
#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub struct RanArgs {
    /// Parts to run; default: all.
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Simulated time of one run of the scenario, in seconds.
    #[arg(long, default_value_t = 65, value_parser = clap::value_parser!(u32).range(10..=600))]
    seconds: u32,
    /// Number of rounds of the scenario, in which the contenders alternate; medians are shown.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,
    /// Folder with ns3-mcs28; skipped with a message if it is missing.
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
    /// Print one JSON object at the end instead of tables.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Wall time per simulated second of the MCS 28 scenario, compared with ns-3.
    Speed,
    /// Time of an EQP decision with 275 RBs and 64 backlogged queues, and its growth.
    Eqp,
    /// Memory and time per TTI with 1,000 UEs.
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
