//! Benchmarks of the programs and their peers, in the same namespaces and the same run.
//!
//! ```text
//!   [client] ── veth ── [server]             throughput, latency, sessions: one core each side
//!   [client] ── veth ── [middle] ── veth ── [server]      proxies
//!   [client, proxy] ── veth ── [server]                   proxy: transparent proxy; cc: kernel congestion controls
//! ```
//!
//! `ran` has no namespaces: cells and schedulers run in this process.
//!
//! The exit code states only whether everything ran; it does not depend on the results.

mod churn;
mod controllers;
mod ends;
mod iperf;
mod latency;
mod proxies;
mod proxy;
mod ran;
mod sessions;
mod stats;
mod swarm;
mod throughput;
mod turns;
mod wireguard;

use crate::netns::program;
use crate::netns::sandbox::{self, Entered, Sandbox};
use crate::netns::space::Space;
use anyhow::{Context, Result, ensure};
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use comfy_table::{CellAlignment, Table};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  anabranch-lab bench tunnel
      all parts, about a quarter of an hour
  anabranch-lab bench tunnel throughput --seconds 20
      one part
  anabranch-lab bench tunnel --peers target/peers/bin
      folder with boringtun-cli, wireguard-go, sslocal and ssserver

./x bench tunnel builds the peers first.
Exit codes: 0 success, 1 failure, 3 not supported on this machine.";

/// Arguments of `anabranch-lab bench`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// Tunnel: goodput, added latency, many sessions, comparison with TCP proxies.
    Tunnel(TunnelArgs),
    /// Transparent proxy: goodput with and without it.
    Proxy(proxy::ProxyArgs),
    /// Congestion control with telemetry: goodput over a bare link, compared with CUBIC.
    Cc(controllers::CcArgs),
    /// Cell: speed compared with ns-3, time of an EQP decision, 1,000 UEs.
    Ran(ran::RanArgs),
}

#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
struct TunnelArgs {
    /// Parts to run; default: all.
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Duration of one measurement, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=600))]
    seconds: u32,
    /// Number of rounds of throughput, sessions and proxies, in which the contenders alternate; medians are shown.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,
    /// Maximum number of sessions at the UPF; churn uses 10,000.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1000..=1_000_000))]
    sessions: u32,
    /// Folder with the peers' programs; missing peers are skipped with a message.
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
    /// Only this contender; may be repeated.
    #[arg(long, value_name = "CONTENDER", value_parser = clap::builder::PossibleValuesParser::new(CONTENDERS))]
    only: Vec<String>,
    /// Numbers of flows through the proxies.
    #[arg(long, value_delimiter = ',', default_values_t = proxies::FLOWS, value_parser = clap::value_parser!(u32).range(1..=4096))]
    flows: Vec<u32>,
    /// Print one JSON object at the end instead of tables.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// TCP goodput over one path, compared with boringtun and wireguard-go.
    Throughput,
    /// Added one-way latency at 1,000 packets/s.
    Latency,
    /// Round trips with 1, 1,000 and 100,000 sessions; memory per idle session.
    Sessions,
    /// Round trips of one UE during session churn, a hostile UE and a handshake flood.
    Churn,
    /// Added latency of 1, 64 and 512 TCP flows, compared with nginx stream and shadowsocks-rust.
    Proxies,
}

/// Contenders that `--only` accepts.
const CONTENDERS: [&str; 9] = [
    "direct",
    "secure",
    "secure-polling",
    "plain",
    "plain-kernel",
    "boringtun",
    "wireguard-go",
    "nginx",
    "shadowsocks",
];

/// State shared by the parts.
struct Bench {
    sandbox: Sandbox,
    anabranch: PathBuf,
    peers: Option<PathBuf>,
    seconds: Duration,
    rounds: u32,
    sessions: u32,
    only: Vec<String>,
    flows: Vec<u32>,
    quiet: bool,
}

impl Bench {
    /// Without peers, sessions and flows.
    fn new(sandbox: Sandbox, seconds: u32, rounds: u32, quiet: bool) -> Result<Self> {
        Ok(Self {
            sandbox,
            anabranch: program::anabranch()?,
            peers: None,
            seconds: Duration::from_secs(seconds.into()),
            rounds,
            sessions: 0,
            only: Vec::new(),
            flows: Vec::new(),
            quiet,
        })
    }

    /// Creates a separate folder for a measurement.
    fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = PathBuf::from(sandbox::WORK_DIR).join(name);
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        Ok(folder)
    }

    fn peer(&self, name: &str) -> Option<PathBuf> {
        let own = self.peers.as_ref().map(|dir| dir.join(name)).filter(|path| path.is_file());
        own.or_else(|| program::find(name))
    }

    /// Whether a contender is requested.
    fn wants(&self, contender: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == contender)
    }

    fn doing(&self, what: &str) {
        if !self.quiet {
            eprintln!("bench: {what}");
        }
    }
}

/// Result of a part: a table for people, an object for programs.
struct Result1 {
    name: &'static str,
    table: Table,
    json: Value,
    notes: Vec<String>,
}

/// Runs the benchmark. Must be called while the process has only one thread.
///
/// # Errors
/// No sandbox, or a part failed.
pub fn run(args: &Args) -> Result<u8> {
    let args = match &args.benchmark {
        Benchmark::Tunnel(args) => args,
        Benchmark::Proxy(args) => return proxy::run(args),
        Benchmark::Cc(args) => return controllers::run(args),
        Benchmark::Ran(args) => return ran::run(args),
    };
    let sandbox = match sandboxed() {
        Ok(sandbox) => sandbox,
        Err(code) => return Ok(code),
    };
    program::require(&[("ip", "iproute2"), ("iperf3", "iperf3"), ("taskset", "util-linux")])?;
    // Proxies use two descriptors per flow, the swarm one per UE; child processes inherit the limit.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).context("limit of open files")?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most).context("limit of open files")?;
    let bench = Bench {
        peers: args.peers.clone(),
        sessions: args.sessions,
        only: args.only.clone(),
        flows: args.flows.clone(),
        ..Bench::new(sandbox, args.seconds, args.rounds, args.json)?
    };
    let all = [Part::Throughput, Part::Latency, Part::Sessions, Part::Churn, Part::Proxies];
    let parts = if args.parts.is_empty() { &all[..] } else { &args.parts[..] };
    let mut object = json!({ "machine": machine() });
    for part in parts {
        let result = match part {
            Part::Throughput => throughput::run(&bench),
            Part::Latency => latency::run(&bench),
            Part::Sessions => sessions::run(&bench),
            Part::Churn => churn::run(&bench),
            Part::Proxies => proxies::run(&bench),
        }?;
        if args.json {
            object[result.name] = result.json;
        } else {
            println!("\n{}\n{}", result.name, result.table);
            result.notes.iter().for_each(|note| println!("{note}"));
        }
    }
    if args.json {
        println!("{object}");
    }
    Ok(0)
}

/// The sandbox, or the exit code: if there is no sandbox, or in the outer process after the inner one has ended.
fn sandboxed() -> std::result::Result<Sandbox, u8> {
    match sandbox::enter() {
        Ok(Entered::Done(code)) => Err(code),
        Ok(Entered::Sandbox(sandbox)) => Ok(sandbox),
        Err(error) => {
            eprintln!("error: {error}");
            Err(sandbox::EXIT_NO_SANDBOX)
        }
    }
}

/// Description of the machine.
fn machine() -> Value {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    json!({ "cpu": model.trim_start_matches([' ', '\t', ':']), "cores": cores, "kernel": kernel.trim() })
}

/// Two namespaces joined by a veth pair. All programs of the client side run on one core and all of the server side on
/// another, so that no contender gains an advantage from threads.
struct Pair {
    client: Space,
    server: Space,
}

/// Outer addresses.
const CLIENT: &str = "192.0.2.1";
const SERVER: &str = "192.0.2.2";

impl Pair {
    fn new(tag: &str) -> Result<Self> {
        let client = Space::create(&format!("{tag}-client"))?;
        let server = Space::create(&format!("{tag}-server"))?;
        join(&client, &server, "wire", [CLIENT, SERVER], 30)?;
        Ok(Self { client, server })
    }

    fn end(self) {
        self.client.remove();
        self.server.remove();
    }
}

/// Creates a veth pair named `name` at both ends.
fn join(a: &Space, b: &Space, name: &str, addresses: [&str; 2], prefix: u8) -> Result<()> {
    a.ip(&format!("link set lo up\nlink add {name} type veth peer name {name} netns {}", b.name()))?;
    a.ip(&format!("addr add {}/{prefix} dev {name}\nlink set {name} up", addresses[0]))?;
    b.ip(&format!("link set lo up\naddr add {}/{prefix} dev {name}\nlink set {name} up", addresses[1]))
}

/// Core of a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Core {
    Client,
    Server,
}

/// Command for `program` on the core of one side, or on the only core.
fn pinned(core: Core, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = program::command("taskset");
    command.args(["-c", &core_number(core).to_string()]).arg(program);
    command
}

fn core_number(core: Core) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    usize::from(core == Core::Server && cores > 1)
}

/// A table with a left-aligned first column and right-aligned figures.
fn figures(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset("     ──            ").set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The traffic program of this lab.
fn traffic(core: Core, task: &crate::netns::traffic::Task) -> Result<Command> {
    let own = std::env::current_exe().context("the path of this program")?;
    let mut command = pinned(core, own);
    command.arg("traffic").arg(serde_json::to_string(task).context("task")?);
    Ok(command)
}

/// Waits for a condition.
fn wait_for(what: &str, within: Duration, bench: &Bench, mut ready: impl FnMut() -> bool) -> Result<()> {
    let deadline = std::time::Instant::now() + within;
    while !ready() {
        ensure!(std::time::Instant::now() < deadline, "{what}: not within {} s", within.as_secs());
        ensure!(!bench.sandbox.stop.sleep(Duration::from_millis(20)), program::Interrupted);
    }
    Ok(())
}
