//! `anabranch-lab demo`: the scenario `scenarios/demo.toml`, live in the terminal.
//!
//! ```text
//!                       ┌─ Wi-Fi ─┐
//!  nginx ──── UPF ──────┤         ├────── UE ──── curl
//!                       └─── 5G ──┘
//! ```

mod live;
mod picture;

use crate::backend::{Outcome, Progress, Unable};
use crate::claims::Verdict;
use crate::netns::backend::{NetnsBackend, ObservedRun, RunObserver};
use crate::netns::program::{self, Interrupted};
use crate::netns::sandbox::{self, Entered, Sandbox};
use crate::netns::stop::Stop;
use crate::netns::topology;
use crate::netns::tunnels::Device;
use crate::netns::web;
use crate::runner::{self, Finished, Watch};
use crate::scenario::{self, Case, Scenario};
use crate::{output, report};
use anyhow::{Result, anyhow};
use live::Screen;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  anabranch-lab demo
  anabranch-lab demo --hold
      keep the network up afterwards, with commands to enter each namespace
  anabranch-lab demo --json | tail -1
      for scripts
  anabranch-lab demo --set gnb.nr.rbs=20 --set event.wifi-lost.how=black_hole
      a smaller cell, and a Wi-Fi link that drops packets silently

Exit codes: 0 the file arrived intact over both accesses, 1 it did not,
2 invalid command line, 3 not supported on this machine (the message names what
is missing), 130 interrupted.";

/// Arguments of `anabranch-lab demo`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Keep the network up after the download, until Ctrl-C.
    #[arg(long)]
    hold: bool,
    /// Print one line of JSON on standard output at the end; all other output goes to standard error.
    #[arg(long)]
    json: bool,
    /// Folder of the report (HTML, self-contained).
    #[arg(long, value_name = "DIR", default_value = "demo-report", overrides_with = "out")]
    out: PathBuf,
    /// Seed of losses, jitter, keys and the file.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Change a key of the scenario, such as `link.wifi.down.rate_mbps=30`; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Copy the logs and configuration of every program into this folder.
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
}

const SCENARIO: &str = include_str!("../../../../scenarios/demo.toml");
/// Its path from the root of the project.
const SCENARIO_FILE: &str = "scenarios/demo.toml";

/// Least share of the file that each access must have carried, percent.
const LEAST_SHARE: f64 = 5.0;

/// The values read after the run.
#[derive(Debug, Default)]
struct FinalValues {
    moved_to: Option<String>,
}

/// Runs the demo; returns the exit code. Must be called while the process has only one thread.
#[must_use]
pub fn run(args: &Args) -> u8 {
    let scenario = match scenario::parse(Path::new(SCENARIO_FILE), SCENARIO, &args.set) {
        Ok(scenario) => scenario,
        Err(problems) => {
            for problem in problems {
                eprintln!("error: {problem}");
            }
            return 2;
        }
    };
    let sandbox = match sandbox::enter() {
        Ok(Entered::Done(code)) => return code,
        Ok(Entered::Sandbox(sandbox)) => sandbox,
        Err(error) => {
            eprintln!("error: {error}");
            return sandbox::EXIT_NO_SANDBOX;
        }
    };
    match demo(args, &scenario, &sandbox) {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(error) if error.chain().any(|c| c.is::<Interrupted>()) => {
            eprintln!("interrupted; everything is taken down");
            130
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            if error.chain().any(|c| c.is::<Unable>()) { 3 } else { 1 }
        }
    }
}

/// Whether the file arrived intact over both accesses.
fn demo(args: &Args, scenario: &Scenario, sandbox: &Sandbox) -> Result<bool> {
    let programs: Vec<(&str, &str)> = topology::PROGRAMS.iter().chain(web::PROGRAMS).copied().collect();
    program::require(&programs)?;
    let case = scenario.cases.first().ok_or_else(|| anyhow!("the scenario has no case"))?;
    let screen = Arc::new(Screen::new(args.json));
    let final_values = Arc::new(Mutex::new(FinalValues::default()));
    let eyes = ProgressView {
        screen: Arc::clone(&screen),
        final_values: Arc::clone(&final_values),
        case: case.clone(),
        sandbox: sandbox.clone(),
        hold: args.hold,
    };
    let backend = NetnsBackend::new(sandbox.clone(), args.logs.as_deref())?.with_observer(Box::new(eyes));
    introduce(&screen, case, &backend, sandbox);
    let watch = Steps(Arc::clone(&screen));
    let done = runner::run(scenario, &backend, args.seed, 1, &watch)?;
    let written = report::write(&args.out, &scenario.name, scenario, &done)?;
    let final_values = std::mem::take(&mut *final_values.lock().unwrap_or_else(PoisonError::into_inner));
    let verdict = Verdicts::of(case, &done);
    conclude(&screen, &done, verdict);
    screen.line(&format!("report: {}", written.html.display()));
    if args.json {
        println!("{}", summary(case, &done, &final_values, verdict));
    }
    Ok(verdict.intact && verdict.both)
}

/// The claims that determine the exit code.
#[derive(Debug, Clone, Copy)]
struct Verdicts {
    intact: bool,
    both: bool,
}

impl Verdicts {
    fn of(case: &Case, done: &Finished) -> Self {
        let metric = |name: &str| done.metrics.get(name).copied().unwrap_or(0.0);
        let each = |what: &dyn Fn(&str, u64) -> bool| {
            case.flows.iter().all(|(name, flow)| match flow.traffic {
                crate::scenario::model::Traffic::BulkTcp { bytes: Some(bytes), .. } => what(name, bytes),
                _ => true,
            })
        };
        let intact = |flow: &str, _| {
            metric(&format!("flow.{flow}.completed")) >= 1.0 && metric(&format!("flow.{flow}.intact")) >= 1.0
        };
        let both = |_: &str, bytes: u64| {
            case.ues.iter().all(|(ue, of)| {
                of.accesses.iter().all(|access| {
                    let carried = metric(&format!("ue.{ue}.path.{}.down_bytes", access.name));
                    carried * 100.0 >= LEAST_SHARE * bytes as f64
                })
            })
        };
        Self { intact: each(&intact), both: each(&both) }
    }
}

/// The line of `--json`.
fn summary(case: &Case, done: &Finished, final_values: &FinalValues, verdict: Verdicts) -> Value {
    let metric = |name: String| done.metrics.get(&name).copied();
    let file = case.flows.keys().next().cloned().unwrap_or_default();
    let mut paths = Vec::new();
    for (ue, of) in &case.ues {
        for access in &of.accesses {
            let of_path = |what: &str| metric(format!("ue.{ue}.path.{}.{what}", access.name));
            paths.push(json!({
                "access": access.name,
                "bytes": of_path("down_bytes").unwrap_or(0.0) as u64,
                "rtt_ms": of_path("rtt_ms").map(|ms| (ms * 100.0).round() / 100.0),
            }));
        }
    }
    json!({
        "checksum_ok": verdict.intact,
        "bytes": metric(format!("flow.{file}.delivered_bytes")).unwrap_or(0.0) as u64,
        "outage_ms": metric(format!("flow.{file}.outage_ms")).map(|ms| (ms * 10.0).round() / 10.0),
        "moved_to": final_values.moved_to,
        "paths": paths,
    })
}

fn introduce(screen: &Screen, case: &Case, backend: &NetnsBackend, sandbox: &Sandbox) {
    screen.line(&live::title(case));
    let user = if sandbox.rootless { "as an ordinary user, in a user namespace" } else { "as root" };
    screen.line(&format!("everything runs in network namespaces of its own, {user}"));
    if backend.device() == Device::Packet {
        screen.line(
            "/dev/net/tun is closed to you: a veth pair and packet sockets take its place, which is slower \
             (as root, chmod 0666 /dev/net/tun opens it)",
        );
    }
}

fn conclude(screen: &Screen, done: &Finished, verdict: Verdicts) {
    for claim in &done.claims {
        let mark = if claim.verdict == Verdict::Holds { "✓" } else { "✗" };
        // A claim without a unit is a yes-or-no value.
        let measured = if claim.claim.unit.is_empty() {
            String::new()
        } else {
            format!(": {}", output::measured(claim))
        };
        screen.line(&format!("{mark} {}{measured}", claim.claim.what));
    }
    if !verdict.both {
        screen.line("the file did not need both accesses: the demo shows nothing");
    }
}

/// Draws the progress on the terminal.
struct ProgressView {
    screen: Arc<Screen>,
    final_values: Arc<Mutex<FinalValues>>,
    case: Case,
    sandbox: Sandbox,
    hold: bool,
}

impl RunObserver for ProgressView {
    fn observe(&self, observed: &ObservedRun, start: Instant, end: &Stop) -> Result<()> {
        let moved_to = live::watch(&self.screen, &self.case, observed, start, end)?;
        self.final_values.lock().unwrap_or_else(PoisonError::into_inner).moved_to = moved_to;
        Ok(())
    }

    fn over(&self, observed: &ObservedRun, _: &Outcome) -> Result<()> {
        if self.hold {
            self.keep_up(observed);
        }
        Ok(())
    }
}

impl ProgressView {
    /// Keeps the network up until the user interrupts.
    fn keep_up(&self, observed: &ObservedRun) {
        let say = |text: &str| self.screen.line(text);
        say("");
        say("The network is up until Ctrl-C. To enter a namespace, from another terminal:");
        for space in &observed.spaces {
            say(&format!("  {:<10} {}", space.name(), self.sandbox.enter_command(space.name())));
        }
        say("Try in the UE's namespace:");
        if let Some(download) = observed.downloads.first() {
            say(&format!("  curl -o /dev/null {}", download.url));
        }
        if let Ok(anabranch) = program::anabranch() {
            for ue in &observed.ues {
                if let Some(agent) = &ue.agent {
                    let (program, socket) = (anabranch.display(), agent.socket().display());
                    say(&format!("  {program} ctl --socket {socket} paths"));
                }
                for access in &ue.accesses {
                    let interface = &access.interface;
                    say(&format!("  ip link set {interface} down        and up again: this access is lost"));
                }
            }
        }
        while !self.sandbox.stop.sleep(Duration::from_secs(3600)) {}
        say("");
    }
}

/// Prints the steps before the download.
struct Steps(Arc<Screen>);

impl Watch for Steps {
    fn begin(&self, _: usize) {}
    fn run(&self, _: &Case, _: usize) -> Box<dyn Progress> {
        Box::new(Step(Arc::clone(&self.0)))
    }
    fn done(&self) {}
}

struct Step(Arc<Screen>);

impl Progress for Step {
    fn at(&self, _: f64) {}
    fn doing(&self, what: &str) {
        if what != "running" {
            self.0.line(what);
        }
    }
}
