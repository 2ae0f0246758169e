//! `anabranch-lab chaos`.
#![allow(
    clippy::disallowed_methods,
    reason = "how long the whole takes is told to people, and decides nothing"
)]

use super::check::Violation;
use super::many::{Summary, many};
use super::run::{run, run_traced};
use super::shrink::shrink;
use super::system::{self, System};
use super::{cell, lwip, slices, tunnel};
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  anabranch-lab chaos --seed 7 --steps 5000
      one seed; a failing plan is shrunk and written to a file
  anabranch-lab chaos --seeds 0..10000
      many seeds on all cores, with a table of results
  anabranch-lab chaos --system slices --seeds 0..1000
      slice manager, its store and its agents
  anabranch-lab chaos --replay chaos/seed-7.toml --trace
      replay a plan byte for byte, with its events

docs/testing.md describes the systems, the faults and the invariants.";

/// Simulate faults: a system in virtual time, and what must hold whatever happens.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// System to simulate. A plan replayed with --replay names its own.
    #[arg(long, value_enum, default_value_t = Which::Tunnel, conflicts_with = "replay")]
    system: Which,
    /// Seed of the plan.
    #[arg(long, default_value_t = 0, conflicts_with_all = ["seeds", "replay"])]
    seed: u64,
    /// Run the seeds from A to B, excluding B.
    #[arg(long, value_name = "A..B", value_parser = seeds, conflicts_with = "replay")]
    seeds: Option<Range<u64>>,
    /// Number of steps (events) before the faults stop.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000), conflicts_with = "replay")]
    steps: u64,
    /// Run the plan of this file.
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Folder for failing plans.
    #[arg(long, value_name = "DIR", default_value = "chaos")]
    out: PathBuf,
    /// Number of seeds to run in parallel; default: one per core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Maximum number of runs to shrink a failing plan; 0: do not shrink.
    #[arg(long, value_name = "RUNS", default_value_t = 400)]
    shrink: u32,
    /// Print the plan of the seed without running it.
    #[arg(long, conflicts_with_all = ["seeds", "replay"])]
    plan: bool,
    /// Print the faults, events and drops of the run.
    #[arg(long, conflicts_with = "seeds")]
    trace: bool,
    /// Print no progress.
    #[arg(long, short)]
    quiet: bool,
}

/// The systems that can be simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Which {
    /// UEs, accesses, UPFs, a hostile UE and unauthenticated senders.
    Tunnel,
    /// Slice manager, its store and its agents.
    Slices,
    /// gNB, honest UEs, and a flooding one.
    Cell,
    /// LWIP node, its legs and UEs.
    Lwip,
    /// All of these, one after the other.
    All,
}

impl Which {
    /// The systems by name.
    const EACH: [(&'static str, Self); 4] = [
        (tunnel::plan::Plan::NAME, Self::Tunnel),
        (slices::Plan::NAME, Self::Slices),
        (cell::Plan::NAME, Self::Cell),
        (lwip::Plan::NAME, Self::Lwip),
    ];
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let wrong = || format!("\"{text}\": write a first and an end, such as 0..1000");
    let (from, to) = text.split_once("..").ok_or_else(wrong)?;
    let range = from.parse().map_err(|_| wrong())?..to.parse().map_err(|_| wrong())?;
    if range.is_empty() { Err(wrong()) } else { Ok(range) }
}

/// An error in the arguments of the caller.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadInput(String);

/// Runs the command. Returns whether all invariants hold.
///
/// # Errors
/// [`BadInput`], or a file that cannot be written.
pub fn main(args: &Args) -> Result<bool> {
    // A panic is a result of a run and is reported as such.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let held = each(args);
    std::panic::set_hook(hook);
    held
}

fn each(args: &Args) -> Result<bool> {
    let (which, text) = match &args.replay {
        Some(file) => {
            let bad = |why: String| BadInput(format!("{}: {why}", file.display()));
            let text = std::fs::read_to_string(file).map_err(|error| bad(error.to_string()))?;
            let name = system::named(&text).map_err(bad)?;
            let which = Which::EACH.into_iter().find(|(known, _)| *known == name);
            let names = Which::EACH.map(|(known, _)| known).join(", ");
            let which = which.ok_or_else(|| bad(format!("system = \"{name}\": write one of {names}")))?;
            (which.1, Some(text))
        }
        None => (args.system, None),
    };
    let mut held = true;
    for (_, each) in Which::EACH.into_iter().filter(|(_, each)| which == Which::All || which == *each) {
        held &= match each {
            Which::Slices => all::<slices::Plan>(args, text.as_deref())?,
            Which::Cell => all::<cell::Plan>(args, text.as_deref())?,
            Which::Lwip => all::<lwip::Plan>(args, text.as_deref())?,
            _ => all::<tunnel::plan::Plan>(args, text.as_deref())?,
        };
    }
    Ok(held)
}

fn all<S: System>(args: &Args, text: Option<&str>) -> Result<bool> {
    if args.plan {
        print!("{}", S::of(args.seed, args.steps).to_toml()?);
        return Ok(true);
    }
    if let Some(seeds) = &args.seeds {
        return run_many::<S>(args, seeds);
    }
    let (name, plan) = match (&args.replay, text) {
        (Some(file), Some(text)) => {
            let bad = |why: String| BadInput(format!("{}: {why}", file.display()));
            (file.display().to_string(), S::from_toml(text).map_err(bad)?)
        }
        _ => (format!("seed {}", args.seed), S::of(args.seed, args.steps)),
    };
    let (outcome, trace) = if args.trace { run_traced(&plan) } else { (run(&plan), Vec::new()) };
    trace.iter().for_each(|line| println!("{line}"));
    let violation = outcome.violation.clone();
    let failed = violation.clone().map(|violation| (plan.seed(), violation)).into_iter().collect();
    print!("{}", Summary::<S>::new(1, outcome.tally, failed).text());
    match &violation {
        None => println!("{name}: everything holds"),
        Some(violation) => {
            println!("{name}: {violation}");
            if args.replay.is_none() {
                write_small(args, &plan, violation)?;
            }
        }
    }
    Ok(violation.is_none())
}

fn run_many<S: System>(args: &Args, seeds: &Range<u64>) -> Result<bool> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = args.jobs.map_or(cores, usize::from);
    let bar = if args.quiet { ProgressBar::hidden() } else { ProgressBar::new(seeds.end - seeds.start) };
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {per_sec}, {eta} left {msg}")
    {
        bar.set_style(style);
    }
    let begin = Instant::now();
    let summary = many::<S>(seeds.clone(), args.steps, threads, |seed, violation| {
        bar.inc(1);
        if let Some(violation) = violation {
            bar.println(format!("seed {seed}: {violation}"));
        }
    });
    bar.finish_and_clear();
    print!("{}", summary.text());
    let seconds = begin.elapsed().as_secs_f64();
    println!("{seconds:.1} s with {threads} threads: {:.1} seeds/s", summary.seeds as f64 / seconds);
    for (seed, violation) in summary.failed.iter().take(20) {
        println!("seed {seed}: {violation}");
    }
    // Only the first failure of each kind is shrunk: later ones usually have the same cause.
    let mut told = std::collections::BTreeSet::new();
    for (seed, violation) in &summary.failed {
        if told.insert(violation.invariant) {
            write_small(args, &S::of(*seed, args.steps), violation)?;
        }
    }
    Ok(summary.failed.is_empty() && summary.without_effect().is_empty() && summary.unchecked().is_empty())
}

fn write_small<S: System>(args: &Args, plan: &S, violation: &Violation) -> Result<()> {
    let small = shrink(plan, violation, args.shrink);
    // Plan files of the tunnel have no system in their names.
    let system = if S::NAME == tunnel::plan::Plan::NAME { String::new() } else { format!("{}-", S::NAME) };
    let name = format!("{system}seed-{}-{}.toml", plan.seed(), violation.invariant.name());
    let file = args.out.join(name);
    write(&file, &small.plan, &small.violation)?;
    println!(
        "shrunk in {} runs from {} steps and {} faults to {} and {}: {}",
        small.runs,
        plan.steps(),
        plan.faults().len(),
        small.plan.steps(),
        small.plan.faults().len(),
        small.violation
    );
    println!("{}\nwritten to {}", small.plan.to_toml()?, file.display());
    Ok(())
}

fn write<S: System>(file: &Path, plan: &S, violation: &Violation) -> Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let text = format!("# {}\n{}", violation.to_string().replace('\n', " "), plan.to_toml()?);
    std::fs::write(file, text).with_context(|| file.display().to_string())
}
