//! Cost of telemetry and its controllers without another bottleneck: goodput over a bare link, compared with plain CUBIC.
//!
//! ```text
//!                ┌── veth flow0, IPv6 ── cubic ──────────────────────┐
//!  [client]      ├── veth flow1 ──────── cubic again (control) ──────┤ [server: an IOAM node]
//!                ├── veth flow2 ──────── int_cubic_l1, int source ───┤
//!                └── ...                                             ┘
//! ```

use super::turns::{self, Flow, TURN};
use super::{Bench, figures, machine, sandboxed, stats};
use crate::backend::{Quiet, Unable};
use crate::netns::group::Group;
use crate::netns::program::{self, Program};
use crate::netns::space::Space;
use crate::netns::{plan, telemetry};
use crate::scenario::file::CongestionControl;
use anyhow::{Result, bail};
use clap::Args as ClapArgs;
use serde_json::json;
use std::fs::File;
use std::net::Ipv6Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  anabranch-lab bench cc
      CUBIC and our four controllers, seven rounds
  anabranch-lab bench cc --every 1
      a trace in every packet that the per-flow interval allows

./x bench cc also measures nanoseconds per call. Requires root.
Exit codes: 0 success, 1 failure, 3 not supported on this machine.";

/// CUBIC without telemetry occurs twice; the second one shows the difference between equal contenders.
const CONTENDERS: [(&str, Option<CongestionControl>); 6] = [
    ("cubic, no telemetry", None),
    ("the same again", None),
    ("int_cubic_l1", Some(CongestionControl::IntCubicL1)),
    ("int_cubic_l2", Some(CongestionControl::IntCubicL2)),
    ("int_cubic_ss", Some(CongestionControl::IntCubicSs)),
    ("int_rate", Some(CongestionControl::IntRate)),
];
const MTU: u32 = 1500;
/// Nodes of a trace. If the receiver is on the same machine, longer traces are not safe (docs/int-cc.md, Limits).
const NODES: u8 = 1;
/// Rate ceiling, bit/s: above the rate of a veth pair, so that it does not limit the flow.
const CEILING_BPS: u64 = 100_000_000_000;
const READY: Duration = Duration::from_secs(10);

/// Arguments of `anabranch-lab bench cc`.
#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub struct CcArgs {
    /// Sending time of each contender in one round, in seconds; contenders alternate.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Number of rounds, each with new connections; medians are shown.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,
    /// Insert a trace into one segment in N.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    every: u32,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark. Must be called while the process has only one thread.
///
/// # Errors
/// No sandbox, kernel programs cannot be loaded, or a measurement failed.
pub fn run(args: &CcArgs) -> Result<u8> {
    let sandbox = match sandboxed() {
        Ok(sandbox) => sandbox,
        Err(code) => return Ok(code),
    };
    if sandbox.rootless {
        bail!(Unable("controllers are kernel programs: run it as root".into()));
    }
    program::require(&[("ip", "iproute2")])?;
    let bench = Bench::new(sandbox, args.seconds, args.rounds, args.json)?;
    let links = Links::new(&bench, args.every)?;
    let mut rounds = Vec::new();
    for round in 1..=bench.rounds {
        bench.doing(&format!("round {round} of {}: {} flows in turns", bench.rounds, CONTENDERS.len()));
        rounds.push(turns::run(&bench, links.connect()?, round.into())?);
    }
    links.end();

    let mut table = figures(&["one TCP flow over IPv6", "Mbit/s", "of CUBIC's", "least", "most"]);
    let mut rows = serde_json::Map::new();
    for (number, (name, _)) in CONTENDERS.iter().enumerate() {
        let of = |which: usize| rounds.iter().map(|round| round[number][which]).collect::<Vec<f64>>();
        let (mbps, [least, ratio, most]) = (stats::median(&mut of(0)), stats::spread(&mut of(1)));
        let mut row = vec![(*name).to_owned(), format!("{mbps:.0}")];
        row.extend(
            [ratio, least, most].map(|of| if number == 0 { String::new() } else { format!("{of:.3}") }),
        );
        table.add_row(row);
        rows.insert(
            (*name).to_owned(),
            json!({ "mbps": mbps, "of_cubic": ratio, "least": least, "most": most }),
        );
    }
    if args.json {
        println!("{}", json!({"machine": machine(), "contenders": rows}));
        return Ok(0);
    }
    println!("\n{table}");
    println!(
        "medians of {} rounds, in each the median of turns of {} ms that flows of one process take in changing order, {} s \
         each; veth with segmentation offload; a trace in one segment of {}, but not sooner than 1 ms after the last of \
         its flow; the sender on one core, the readers on another; the goal is 0.97",
        args.rounds,
        TURN.as_millis(),
        args.seconds,
        args.every
    );
    Ok(0)
}

/// A link for each contender, and the programs that stay loaded.
struct Links {
    client: Space,
    server: Space,
    group: Group,
    programs: Vec<Program>,
    _turn: File,
}

/// Address of contender `number` on its own link.
fn address(number: usize, end: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, number as u16, 0, 0, 0, 0, 0, end)
}

impl Links {
    fn new(bench: &Bench, every: u32) -> Result<Self> {
        let (client, server) = (Space::create("cc-client")?, Space::create("cc-server")?);
        let folder = bench.folder("cc")?;
        for space in [&client, &server] {
            space.ip("link set lo up")?;
            // A flow keeps its window between its turns.
            space.sysctl(&[
                ("net/ipv4/tcp_slow_start_after_idle", "0"),
                ("net/ipv4/tcp_no_metrics_save", "1"),
            ])?;
        }
        // The receiver's kernel fills the trace, with the IOAM namespace and node that source and sink expect.
        server.sysctl(&[("net/ipv6/ioam6_id", "7")])?;
        server.ip("ioam namespace add 123")?;
        let ours: Vec<String> = CONTENDERS.iter().filter_map(|(_, cc)| cc.map(|cc| cc.to_string())).collect();
        let turn = telemetry::turn(&ours, &bench.sandbox.stop, &Quiet)?;
        let group = Group::create()?;
        let mut loader = Command::new(&bench.anabranch);
        loader.args(["cc", "load"]).args(&ours).arg("--cgroup").arg(group.path());
        loader.args(["--ceiling-bps", &CEILING_BPS.to_string()]);
        let start = |name: &str, command: &mut Command, says: &str, folder: &Path| {
            Program::start_saying(&client, name, command, (says, READY), folder, &bench.sandbox.stop)
        };
        let mut programs = vec![start("cc-load", &mut loader, telemetry::LOADER_READY, &folder)?];
        for (number, (_, cc)) in CONTENDERS.iter().enumerate() {
            let (link, own, other) = (format!("flow{number}"), address(number, 1), address(number, 2));
            client.ip(&format!(
                "link add {link} type veth peer name {link} netns {}\naddr add {own}/64 dev {link} nodad\n\
                 link set {link} up",
                server.name()
            ))?;
            server.ip(&format!("addr add {other}/64 dev {link} nodad\nlink set {link} up"))?;
            if cc.is_none() {
                continue;
            }
            server.sysctl(&[(&format!("net/ipv6/conf/{link}/ioam6_enabled"), "1")])?;
            let mtu = MTU - plan::trace_bytes(NODES);
            client.ip(&format!("-6 route replace {other}/128 dev {link} mtu {mtu}"))?;
            let mut source = Command::new(&bench.anabranch);
            source.args(["int", "source", "--interface", &link, "--every", &every.to_string()]);
            source.args(["--nodes", &NODES.to_string()]);
            programs.push(start(
                &format!("int-source-{number}"),
                &mut source,
                telemetry::SOURCE_READY,
                &folder,
            )?);
        }
        Ok(Self { client, server, group, programs, _turn: turn })
    }

    /// New connections of all contenders; the telemetry programs process them.
    fn connect(&self) -> Result<Vec<Flow>> {
        let flow = |(number, (_, cc)): (usize, &(&str, Option<CongestionControl>))| {
            let connect =
                |congestion: &str| Flow::connect(&self.client, &self.server, address(number, 2), congestion);
            match cc {
                None => connect("cubic"),
                Some(cc) => self.group.joined(|| connect(&cc.to_string())),
            }
        };
        CONTENDERS.iter().enumerate().map(flow).collect()
    }

    fn end(self) {
        drop(self.programs);
        self.client.remove();
        self.server.remove();
    }
}
