//! The command line of `anabranch-lab`.

use crate::backend::{Backend, Progress, Unable};
use crate::claims;
use crate::netns::backend::NetnsBackend;
use crate::netns::program::Interrupted;
use crate::netns::sandbox::{self, Entered, Sandbox};
use crate::output::Count;
use crate::runner::{self, Watch};
use crate::scenario::file::BackendName;
use crate::scenario::walk::Problems;
use crate::scenario::{self, Case, Form, Scenario, Select};
use crate::virtual_backend::VirtualBackend;
use crate::{markdown, matrix, output, report, reproduction};
use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

const EXAMPLES: &str = "\
Examples:
  anabranch-lab run scenarios/papers/junction
      all figures and tables of the paper, in virtual time
  anabranch-lab run scenarios/papers/junction/fig11-handover.toml --out report
      one figure, with an HTML report
  anabranch-lab run my.toml --set link.wifi.down.rate_mbps=30 --seeds 5
      another rate; medians over five seeds
  anabranch-lab run scenarios/atsss --json |
      jq '.claims[] | select(.holds | not)'
      claims that do not hold, or that differ from the paper, with the reason
  anabranch-lab check my.toml
      validate a scenario file

Exit codes:
    0  every claim holds, or differs within the band of a stated reason
    1  a claim does not hold, or a run failed
    2  invalid command line or file
    3  not supported on this machine; the message names what is missing
  130  interrupted

docs/scenarios.md describes the scenario format.";

/// Runs scenarios and checks their claims.
#[derive(Debug, Parser)]
#[command(name = "anabranch-lab", version, about, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// A download that survives the loss of Wi-Fi, live in the terminal.
    Demo(crate::demo::Args),
    /// Run scenarios and check their claims.
    Run(RunArgs),
    /// List the scenarios in folders.
    List {
        /// Scenario files, or folders searched for them.
        #[arg(default_value = "scenarios")]
        paths: Vec<PathBuf>,
    },
    /// Update the page of the papers' figures with results of `run --json`.
    Reproduction {
        /// The page. Tables without a result stay unchanged.
        #[arg(long, default_value = "docs/reproduction.md")]
        page: PathBuf,
        /// Folder with one folder of scenarios per paper.
        #[arg(long, default_value = "scenarios/papers")]
        scenarios: PathBuf,
        /// Files with the output of `run --json`.
        results: Vec<PathBuf>,
    },
    /// Run deterministic fault simulations and check invariants.
    Chaos(crate::chaos::cli::Args),
    /// Benchmark the programs against their peers, in network namespaces.
    Bench(crate::bench::Args),
    /// Traffic source or sink; started by the other subcommands.
    #[command(hide = true)]
    Traffic(crate::netns::traffic::Args),
    /// Check scenario files without running them, and warn of claims that cannot fail.
    Check {
        /// Scenario files, or folders searched for them.
        #[arg(required = true)]
        paths: Vec<PathBuf>,
        /// Change a key first, such as `link.wifi.down.rate_mbps=30`; may be repeated.
        #[arg(long, value_name = "KEY=VALUE")]
        set: Vec<String>,
    },
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Scenario files, or folders searched for them.
    #[arg(required = true, value_name = "SCENARIO")]
    paths: Vec<PathBuf>,
    /// `virtual` (deterministic, needs no root) or `netns` (the real programs and the kernel's TCP); default: the first
    /// that the scenario lists.
    #[arg(long)]
    backend: Option<BackendName>,
    /// Seed of the first run; default: the scenario's.
    #[arg(long)]
    seed: Option<u64>,
    /// Run with this many consecutive seeds and report medians with their spread.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    seeds: u16,
    /// Require each claim to hold at every seed, not only for the median.
    #[arg(long)]
    every_seed: bool,
    /// netns: if a claim does not hold, repeat the run this many times with other seeds and check the medians of those.
    /// Both tables are printed.
    #[arg(long, value_name = "TIMES", conflicts_with = "every_seed", value_parser = clap::value_parser!(u16).range(1..=100))]
    confirm: Option<u16>,
    /// Print the band for each `differs` entry of the scenario file from these seeds: their median, and their full spread
    /// on either side.
    #[arg(long)]
    bands: bool,
    /// Change a key, such as `link.wifi.down.rate_mbps=30`; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Use the short form of scenarios with a `[quick]` table: fewer or shorter runs, same claims.
    #[arg(long)]
    quick: bool,
    /// Run all cells of a matrix, not only its selection.
    #[arg(long, conflicts_with = "filter")]
    whole: bool,
    /// Run the cells of a matrix with these values, such as `"sender=bbr flows=1,4"`; may be repeated for cells that match
    /// any of the filters.
    #[arg(long, value_name = "AXIS=VALUES")]
    filter: Vec<String>,
    /// Print one JSON object per scenario instead of tables.
    #[arg(long)]
    json: bool,
    /// Write a report (HTML, self-contained) and the metrics (JSON) into this folder.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Replace the tables of claims in this Markdown page.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// netns: copy the logs and configuration of every program into this folder.
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
    /// Print only claims that do not hold.
    #[arg(long, short)]
    quiet: bool,
}

/// Exit status of the program; of several outcomes, the one with the largest number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ExitStatus {
    Good = 0,
    Failed = 1,
    BadInput = 2,
    Unable = 3,
    Interrupted = 130,
}

impl From<ExitStatus> for ExitCode {
    fn from(end: ExitStatus) -> Self {
        Self::from(end as u8)
    }
}

/// Runs the subcommand.
#[must_use]
pub fn run(cli: Cli) -> ExitCode {
    let end = match cli.command {
        Command::Demo(args) => return ExitCode::from(crate::demo::run(&args)),
        Command::Run(args) => return run_all(&args),
        Command::List { paths } => list(&paths),
        Command::Check { paths, set } => check(&paths, &set),
        Command::Reproduction { page, scenarios, results } => {
            match reproduction::write(&page, &scenarios, &results) {
                Ok(()) => ExitStatus::Good,
                Err(error) => {
                    eprintln!("error: {error:#}");
                    ExitStatus::BadInput
                }
            }
        }
        Command::Chaos(args) => match crate::chaos::cli::main(&args) {
            Ok(true) => ExitStatus::Good,
            Ok(false) => ExitStatus::Failed,
            Err(error) => {
                eprintln!("error: {error:#}");
                if error.is::<crate::chaos::cli::BadInput>() {
                    ExitStatus::BadInput
                } else {
                    ExitStatus::Failed
                }
            }
        },
        Command::Bench(args) => {
            return match crate::bench::run(&args) {
                Ok(code) => ExitCode::from(code),
                Err(error) => {
                    eprintln!("error: {error:#}");
                    ExitCode::from(
                        if error.is::<Unable>() { ExitStatus::Unable } else { ExitStatus::Failed } as u8
                    )
                }
            };
        }
        Command::Traffic(args) => match crate::netns::traffic::run(&args) {
            Ok(()) => ExitStatus::Good,
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitStatus::Failed
            }
        },
    };
    end.into()
}

fn run_all(args: &RunArgs) -> ExitCode {
    let select = match (args.whole, args.filter.as_slice()) {
        (true, _) => Ok(Select::Whole),
        (false, []) => Ok(Select::Chosen),
        (false, texts) => Select::parse(texts),
    };
    let select = match select {
        Ok(select) => select,
        Err(says) => {
            eprintln!("error: --filter {says}");
            return ExitStatus::BadInput.into();
        }
    };
    let form = if args.quick { Form::Quick } else { Form::Full };
    let Some(scenarios) = load_all(&args.paths, &args.set, form, &select) else {
        return ExitStatus::BadInput.into();
    };
    scenarios.iter().for_each(|(_, scenario)| print_warnings(scenario));
    if let (Some(_), Some((one, other))) = (&args.markdown, same_name(&scenarios)) {
        let (one, other) = (one.display(), other.display());
        eprintln!(
            "error: --markdown: {one} and {other} have the same name, which identifies a table: write them to different pages"
        );
        return ExitStatus::BadInput.into();
    }
    let jobs: Vec<(&Scenario, Choice)> = scenarios
        .iter()
        .map(|(given, scenario)| (scenario, choose(args.backend, *given, scenario)))
        .collect();
    let netns = jobs.iter().any(|(_, choice)| *choice == Choice::Run(BackendName::Netns));
    if let Err(error) = make_folders(args, netns) {
        eprintln!("error: {error:#}");
        return ExitStatus::BadInput.into();
    }
    let mut sandbox = None;
    if netns {
        match sandbox::enter() {
            Ok(Entered::Done(code)) => return ExitCode::from(code),
            Ok(Entered::Sandbox(inside)) => sandbox = Some(inside),
            Err(error) => {
                eprintln!("error: {error}");
                return ExitStatus::Unable.into();
            }
        }
    }
    let mut end = ExitStatus::Good;
    let mut reports = Vec::new();
    let (mut count, mut scenarios_run) = (Count::default(), 0);
    for (scenario, choice) in jobs {
        let backend = match choice {
            Choice::Run(backend) => backend,
            Choice::Skip(says) => {
                eprintln!("skipped: {says}");
                continue;
            }
            Choice::Refuse(says) => {
                eprintln!("error: {says}");
                end = end.max(ExitStatus::BadInput);
                continue;
            }
        };
        let result = one(args, scenario, &report_name(scenario, &scenarios), backend, sandbox.as_ref()).map(
            |(verdicts, report)| {
                reports.extend(report);
                count += verdicts;
                scenarios_run += 1;
                if verdicts.failed > 0 { ExitStatus::Failed } else { ExitStatus::Good }
            },
        );
        end = end.max(result.unwrap_or_else(|error| {
            eprintln!("error: {error:#}");
            let is = |what: fn(&(dyn std::error::Error + 'static)) -> bool| error.chain().any(what);
            if is(|c| c.is::<Interrupted>()) {
                ExitStatus::Interrupted
            } else if is(|c| c.is::<Unable>()) {
                ExitStatus::Unable
            } else {
                ExitStatus::Failed
            }
        }));
        if end == ExitStatus::Interrupted {
            break;
        }
    }
    if scenarios_run > 1 && !args.json && !args.quiet {
        end = end.max(said(say(&format!("{scenarios_run} scenarios, {count}\n"))));
    }
    if let Some(folder) = &args.out
        && reports.len() > 1
        && let Err(error) = report::index(folder, &reports)
    {
        eprintln!("error: {error:#}");
        end = end.max(ExitStatus::Failed);
    }
    end.into()
}

/// Name of the report of a scenario: that of the scenario, preceded by its folder if another scenario has the same name.
fn report_name(scenario: &Scenario, all: &[(bool, Scenario)]) -> String {
    let taken = all.iter().any(|(_, other)| other.name == scenario.name && other.file != scenario.file);
    let folder = scenario.file.parent().and_then(Path::file_name).filter(|_| taken);
    folder.map_or_else(|| scenario.name.clone(), |f| format!("{}-{}", f.to_string_lossy(), scenario.name))
}

/// Two scenario files with the same name, if there are any.
fn same_name(scenarios: &[(bool, Scenario)]) -> Option<(&Path, &Path)> {
    scenarios.iter().enumerate().find_map(|(at, (_, one))| {
        let mut later = scenarios[at + 1..].iter().map(|(_, other)| other);
        let other = later.find(|other| other.name == one.name && other.file != one.file)?;
        Some((one.file.as_path(), other.file.as_path()))
    })
}

/// Creates the requested folders before the runs, so that a wrong path does not discard hours of results. Folders that exist
/// only inside the sandbox are rejected.
fn make_folders(args: &RunArgs, sandboxed: bool) -> anyhow::Result<()> {
    let page = args.markdown.as_ref().and_then(|page| page.parent()).filter(|f| !f.as_os_str().is_empty());
    let folders = [("--out", args.out.as_deref()), ("--logs", args.logs.as_deref()), ("--markdown", page)];
    for (flag, folder) in folders.into_iter().filter_map(|(flag, folder)| Some((flag, folder?))) {
        let context = || format!("{flag}: {}", folder.display());
        std::fs::create_dir_all(folder).with_context(context)?;
        if sandboxed && folder.canonicalize().with_context(context)?.starts_with("/run") {
            anyhow::bail!("{}: the sandbox cannot access /run; use another folder", context());
        }
    }
    Ok(())
}

/// How a scenario is handled.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    /// It runs on this backend.
    Run(BackendName),
    /// It is skipped, for this reason.
    Skip(String),
    /// It is rejected, for this reason.
    Refuse(String),
}

fn choose(asked: Option<BackendName>, given: bool, scenario: &Scenario) -> Choice {
    if !scenario.missing.is_empty() {
        return Choice::Skip(format!("{} needs {}", scenario.file.display(), missing(scenario)));
    }
    let backend = asked.or_else(|| scenario.backends.first().copied()).unwrap_or(BackendName::Virtual);
    if scenario.backends.contains(&backend) {
        return Choice::Run(backend);
    }
    if scenario.backends.is_empty() {
        let file = scenario.file.display();
        let says = format!(
            "{file} selects no variant to run: run all cells of its matrix with --whole or some with --filter, or name some in \
             `matrix.chosen`"
        );
        return if given { Choice::Refuse(says) } else { Choice::Skip(says) };
    }
    let names = scenario.backends.iter().map(|b| b.name()).collect::<Vec<_>>().join(", ");
    let says = format!("{} does not run on {backend}, only on {names}", scenario.file.display());
    if given { Choice::Refuse(says) } else { Choice::Skip(says) }
}

/// The missing files of a scenario, as text.
fn missing(scenario: &Scenario) -> String {
    let files: Vec<String> = scenario.missing.iter().map(|f| f.display().to_string()).collect();
    format!("{}, which is not here", files.join(" and "))
}

fn one(
    args: &RunArgs,
    scenario: &Scenario,
    report_name: &str,
    name: BackendName,
    sandbox: Option<&Sandbox>,
) -> anyhow::Result<(Count, Option<report::Written>)> {
    let backend: Box<dyn Backend> = match (name, sandbox) {
        (BackendName::Virtual, _) => Box::new(VirtualBackend),
        (BackendName::Netns, Some(sandbox)) => {
            Box::new(NetnsBackend::new(sandbox.clone(), args.logs.as_deref())?)
        }
        (BackendName::Netns, None) => anyhow::bail!(Unable("there is no sandbox".into())),
    };
    let measure = |seed: u64, seeds: u16| {
        let bar = Bar::new(scenario, args.quiet);
        let done = runner::run(scenario, &*backend, seed, usize::from(seeds), &bar);
        bar.bar.finish_and_clear();
        done
    };
    let seed = args.seed.unwrap_or(scenario.seed);
    let mut done = measure(seed, args.seeds)?;
    if let (Some(times), BackendName::Netns, true) = (args.confirm, name, done.failed()) {
        eprintln!("{}\nnot all claims hold: measuring {times} times more", output::table(scenario, &done));
        done = measure(seed.wrapping_add(u64::from(args.seeds)), times)?;
        eprintln!("the medians of these {}", if done.failed() { "do not hold either" } else { "hold" });
    }
    if args.every_seed {
        claims::at_every_seed(&mut done.claims);
    }
    let failed = done.failed();
    if args.json {
        let line = serde_json::to_string(&output::line(scenario, &done)).context("metrics as JSON")?;
        say(&format!("{line}\n"))?;
    } else if !args.quiet || failed {
        say(&format!("{}\n", output::table(scenario, &done)))?;
        if let Some(of) = &scenario.matrix {
            say(&format!("{}\n", matrix::text(of, &done)))?;
        }
    }
    if args.bands {
        say(&output::bands(scenario, &done))?;
    }
    if let Some(page) = &args.markdown {
        markdown::put(page, scenario, &done)?;
    }
    let report =
        args.out.as_ref().map(|folder| report::write(folder, report_name, scenario, &done)).transpose()?;
    if let (Some(report), false) = (&report, args.quiet || args.json) {
        say(&format!("report: {}\n", report.html.display()))?;
    }
    Ok((Count::of(&done.claims), report))
}

/// Prints to standard output. A closed pipe (`| head`) is not an error; other failures, such as a full disk, are.
fn say(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).context("standard output"),
        _ => Ok(()),
    }
}

/// Exit status after output.
fn said(result: anyhow::Result<()>) -> ExitStatus {
    match result {
        Ok(()) => ExitStatus::Good,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitStatus::Failed
        }
    }
}

fn check(paths: &[PathBuf], sets: &[String]) -> ExitStatus {
    let Some(scenarios) = load_all(paths, sets, Form::Full, &Select::Whole) else {
        return ExitStatus::BadInput;
    };
    if load_all(paths, sets, Form::Quick, &Select::Chosen).is_none() {
        return ExitStatus::BadInput;
    }
    let mut end = ExitStatus::Good;
    for (_, scenario) in &scenarios {
        print_warnings(scenario);
        let claims = scenario.claims.len();
        if !scenario.missing.is_empty() {
            let line = format!("{}: not checked, it needs {}\n", scenario.file.display(), missing(scenario));
            end = end.max(said(say(&line)));
            continue;
        }
        end = end.max(said(say(&format!("{}: good, {claims} claims\n", scenario.file.display()))));
        // `run` accepts it nevertheless.
        for line in Problems::new(&scenario.file, claims::audit::audit(scenario)).to_string().lines() {
            eprintln!("warning: {line}");
        }
    }
    end
}

fn list(paths: &[PathBuf]) -> ExitStatus {
    let Some(scenarios) = load_all(paths, &[], Form::Full, &Select::Chosen) else {
        return ExitStatus::BadInput;
    };
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING).set_header(["scenario", "shows", "from", "backends"]);
    for (_, scenario) in &scenarios {
        let mut backends = scenario.backends.iter().map(|b| b.name()).collect::<Vec<_>>().join(", ");
        if !scenario.missing.is_empty() {
            backends = format!("none: needs {}", missing(scenario));
        }
        let paper = scenario.paper.clone().unwrap_or_default();
        table.add_row([scenario.file.display().to_string(), scenario.title.clone(), paper, backends]);
    }
    said(say(&format!("{}\n", table.trim_fmt())))
}

/// All scenarios of the paths, each with whether it was named directly. If one is wrong, prints why and returns `None`.
fn load_all(
    paths: &[PathBuf],
    sets: &[String],
    form: Form,
    select: &Select,
) -> Option<Vec<(bool, Scenario)>> {
    let mut files = Vec::new();
    let mut good = true;
    for path in paths {
        let mut found = Vec::new();
        if let Err(error) = files_in(path, 0, &mut found) {
            eprintln!("error: {}: {error}", path.display());
            good = false;
        } else if found.is_empty() {
            eprintln!("error: {}: no scenario (*.toml) in this folder", path.display());
            good = false;
        }
        found.sort();
        files.extend(found.into_iter().map(|f| (path.is_file(), f)));
    }
    let mut scenarios = Vec::new();
    for (given, file) in files {
        match scenario::load_cells(&file, sets, form, select) {
            Ok(scenario) => scenarios.push((given, scenario)),
            Err(problems) => {
                print_problems(&problems);
                good = false;
            }
        }
    }
    good.then_some(scenarios)
}

/// Prints settings that are valid but probably not intended, once for all variants.
fn print_warnings(scenario: &Scenario) {
    let all: BTreeSet<&String> = scenario.cases.iter().flat_map(|case| &case.warnings).collect();
    for warning in all {
        eprintln!("warning: {}: {warning}", scenario.file.display());
    }
}

fn print_problems(problems: &Problems) {
    for line in problems.to_string().lines() {
        eprintln!("error: {line}");
    }
}

/// Maximum depth of the search; it ends loops of symbolic links.
const MAX_DEPTH: u32 = 8;

fn files_in(path: &Path, depth: u32, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if path.is_file() {
        found.push(path.to_owned());
        return Ok(());
    }
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        if path.is_dir() && depth < MAX_DEPTH {
            files_in(&path, depth + 1, found)?;
        } else if path.extension().is_some_and(|e| e == "toml") {
            found.push(path);
        }
    }
    Ok(())
}

/// The progress bar: completed runs and the current one. If standard error is not a terminal, a few lines in its place if there
/// are many runs.
struct Bar {
    bar: ProgressBar,
    /// Whether it prints lines instead of a bar.
    lines: bool,
    count: AtomicUsize,
    done: AtomicUsize,
}

/// Minimum number of runs for progress lines.
const MIN_RUNS_FOR_LINES: usize = 100;
/// Number of progress lines for all runs together.
const LINES: usize = 20;

impl Bar {
    fn new(scenario: &Scenario, quiet: bool) -> Self {
        let bar = ProgressBar::no_length();
        if quiet || !std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let style =
            ProgressStyle::with_template("{prefix:.bold} {bar:30} {percent:>3} % {elapsed} {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix(scenario.name.clone());
        let lines = !quiet && !std::io::stderr().is_terminal();
        Self { bar, lines, count: AtomicUsize::new(0), done: AtomicUsize::new(0) }
    }
}

/// Steps of the bar per run.
const STEPS: u64 = 1000;

impl Watch for Bar {
    fn begin(&self, count: usize) {
        self.bar.set_length(count as u64 * STEPS);
        self.count.store(count, Ordering::Relaxed);
    }

    fn run(&self, case: &Case, _: usize) -> Box<dyn Progress> {
        if let Some(variant) = &case.variant {
            self.bar.set_message(variant.clone());
        }
        Box::new(BarRun { bar: self.bar.clone(), reported_steps: std::sync::Mutex::new(0) })
    }

    fn done(&self) {
        let count = self.count.load(Ordering::Relaxed);
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if self.lines && count >= MIN_RUNS_FOR_LINES && done * LINES / count > (done - 1) * LINES / count {
            eprintln!("{}: {done} of {count} runs", self.bar.prefix());
        }
    }
}

struct BarRun {
    bar: ProgressBar,
    reported_steps: std::sync::Mutex<u64>,
}

impl Progress for BarRun {
    fn at(&self, share: f64) {
        let step = (share.clamp(0.0, 1.0) * STEPS as f64) as u64;
        if let Ok(mut reported_steps) = self.reported_steps.lock()
            && step > *reported_steps
        {
            self.bar.inc(step - *reported_steps);
            *reported_steps = step;
        }
    }

    fn doing(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }
}

impl Drop for BarRun {
    fn drop(&mut self) {
        self.at(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// Results (`run --json`, `reproduction`) and tables in pages are identified by the name alone.
    #[test]
    fn scenario_names_are_unique() {
        let (mut files, mut names) = (Vec::new(), BTreeSet::new());
        files_in(Path::new("../../scenarios"), 0, &mut files).unwrap();
        assert!(files.len() > 50);
        for file in files {
            let name = file.file_stem().unwrap().to_owned();
            assert!(names.insert(name), "{}: another scenario has this name", file.display());
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        let cli =
            Cli::try_parse_from(["anabranch-lab", "run", "a.toml", "--backend", "netns", "--seeds", "5"]);
        assert!(cli.is_ok(), "{cli:?}");
        let cli = Cli::try_parse_from(["anabranch-lab", "run", "a.toml", "--backend", "nets"]);
        assert!(cli.unwrap_err().to_string().contains("write one of virtual, netns"));
    }
}
