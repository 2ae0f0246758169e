//! What telemetry and its controllers cost where nothing else limits a flow: goodput over a bare link, beside CUBIC
//! without either.
//!
//! ```text
//!  [client: iperf3, anabranch int source] ── veth "wire", IPv6 ── [server: iperf3, an IOAM node]
//! ```

use super::iperf::Iperf;
use super::{Bench, Pair, figures, machine, sandboxed, stats};
use crate::backend::Unable;
use crate::netns::group::Group;
use crate::netns::program::{self, Program};
use crate::netns::{plan, telemetry};
use crate::scenario::file::CongestionControl;
use anyhow::{Result, bail};
use clap::Args as ClapArgs;
use serde_json::json;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  anabranch-lab bench cc                     CUBIC and our four controllers, seven rounds
  anabranch-lab bench cc --every 1           a trace in every packet

./x bench cc measures nanoseconds per call besides. Needs root. Exit codes: 0 everything ran, 1 something failed,
3 this machine cannot.";

const CONTROLLERS: [CongestionControl; 4] = [
    CongestionControl::IntCubicL1,
    CongestionControl::IntCubicL2,
    CongestionControl::IntCubicSs,
    CongestionControl::IntRate,
];
const CLIENT: &str = "fd00::1";
const SERVER: &str = "fd00::2";
const MTU: u32 = 1500;
/// Nodes of a trace: with the receiver on the same machine longer ones are not safe (docs/int-cc.md, Limits).
const NODES: u8 = 1;
/// More than a veth pair carries, bit/s: the ceiling is not what is measured.
const CEILING_BPS: u64 = 100_000_000_000;
const READY: Duration = Duration::from_secs(10);

/// Arguments of `anabranch-lab bench cc`.
#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub struct CcArgs {
    /// Length of one measurement, in seconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=600))]
    seconds: u32,
    /// Rounds; contenders take turns, medians are shown.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,
    /// One segment in so many carries a trace.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    every: u32,
    /// One JSON object instead of a table.
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
    program::require(&[("ip", "iproute2"), ("iperf3", "iperf3"), ("taskset", "util-linux")])?;
    let bench = Bench::new(sandbox, args.seconds, args.rounds, args.json)?;
    let link = Link::new(&bench, args.every)?;
    let mut cubic = Vec::new();
    let mut ours = CONTROLLERS.map(|cc| (cc, Vec::new()));
    for round in 1..=bench.rounds {
        bench.doing(&format!("round {round} of {}: cubic", bench.rounds));
        cubic.push(link.cubic()?);
        for (cc, measured) in &mut ours {
            bench.doing(&format!("round {round} of {}: {cc}", bench.rounds));
            measured.push(link.controller(*cc)?);
        }
    }
    link.pair.end();

    let mut table = figures(&["one TCP flow over IPv6", "Mbit/s", "of CUBIC's", "least", "most"]);
    let cubic_mbps = stats::median(&mut cubic.clone());
    table.add_row(["cubic, no telemetry", &format!("{cubic_mbps:.0}"), "", "", ""]);
    let mut rows = serde_json::Map::new();
    for (cc, mut measured) in ours {
        // Of the same round: what else the machine does changes from round to round.
        let mut ratios: Vec<f64> = measured.iter().zip(&cubic).map(|(ours, cubic)| ours / cubic).collect();
        let ([least, ratio, most], mbps) = (stats::spread(&mut ratios), stats::median(&mut measured));
        table.add_row([
            cc.to_string(),
            format!("{mbps:.0}"),
            format!("{ratio:.3}"),
            format!("{least:.3}"),
            format!("{most:.3}"),
        ]);
        rows.insert(cc.to_string(), json!({ "mbps": mbps, "of_cubic": ratio, "least": least, "most": most }));
    }
    if args.json {
        println!("{}", json!({"machine": machine(), "cubic_mbps": cubic_mbps, "controllers": rows}));
        return Ok(0);
    }
    println!("\n{table}");
    println!(
        "medians of {} rounds of {} s; veth with segmentation offload; a trace in one segment of {} and its room in \
         all; ends and kernel of a side share one core; the goal is 0.97",
        args.rounds, args.seconds, args.every
    );
    Ok(0)
}

/// The link, and what stays loaded beside it.
struct Link<'a> {
    bench: &'a Bench,
    pair: Pair,
    folder: PathBuf,
    every: String,
    group: Group,
    _loader: Program,
}

impl<'a> Link<'a> {
    fn new(bench: &'a Bench, every: u32) -> Result<Self> {
        let pair = Pair::new("cc")?;
        let folder = bench.folder("cc")?;
        for (space, own) in [(&pair.client, CLIENT), (&pair.server, SERVER)] {
            space.ip(&format!("addr add {own}/64 dev wire nodad"))?;
        }
        // The receiver's kernel fills the trace. IOAM namespace and node as the source and the sink expect them.
        pair.server.sysctl(&[("net/ipv6/conf/wire/ioam6_enabled", "1"), ("net/ipv6/ioam6_id", "7")])?;
        pair.server.ip("ioam namespace add 123")?;
        let names = CONTROLLERS.map(|cc| cc.to_string());
        if let Some(taken) = telemetry::taken(&names)? {
            bail!(Unable(format!("{taken} is registered by another process (anabranch cc list)")));
        }
        let group = Group::create()?;
        let mut command = Command::new(&bench.anabranch);
        command.args(["cc", "load"]).args(&names).arg("--cgroup").arg(group.path());
        command.args(["--ceiling-bps", &CEILING_BPS.to_string()]);
        let (ready, stop) = ((telemetry::LOADER_READY, READY), &bench.sandbox.stop);
        let loader = Program::start_saying(&pair.client, "cc-load", &mut command, ready, &folder, stop)?;
        Ok(Self { bench, pair, folder, every: every.to_string(), group, _loader: loader })
    }

    /// Packets of `mtu` bytes to the server.
    fn room(&self, mtu: u32) -> Result<()> {
        self.pair.client.ip(&format!("-6 route replace {SERVER}/128 dev wire mtu {mtu}"))
    }

    fn cubic(&self) -> Result<f64> {
        self.room(MTU)?;
        let iperf = Iperf { server: SERVER, congestion: "cubic", client: &[], group: None };
        iperf.goodput(self.bench, &self.pair, &self.folder)
    }

    fn controller(&self, cc: CongestionControl) -> Result<f64> {
        self.room(MTU - plan::trace_bytes(NODES))?;
        let mut command = Command::new(&self.bench.anabranch);
        command.args(["int", "source", "--interface", "wire", "--every", &self.every]);
        command.args(["--nodes", &NODES.to_string()]);
        let (ready, stop, folder) =
            ((telemetry::SOURCE_READY, READY), &self.bench.sandbox.stop, &self.folder);
        let source =
            Program::start_saying(&self.pair.client, "int-source", &mut command, ready, folder, stop)?;
        let cc = cc.to_string();
        let iperf = Iperf { server: SERVER, congestion: &cc, client: &[], group: Some(&self.group) };
        let mbps = iperf.goodput(self.bench, &self.pair, folder)?;
        drop(source);
        Ok(mbps)
    }
}
