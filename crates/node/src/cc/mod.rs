//! `anabranch cc` and `anabranch int`: the command line of the kernel programs.
//!
//! Both hold what they load by file descriptors, so the kernel removes it when the process ends, in whatever
//! way. There is no state on disk that could become stale; the state of the machine is always queried from
//! the kernel.

#[cfg(feature = "bpf")]
mod at_work;
#[cfg(feature = "bpf")]
mod show;
#[cfg(feature = "bpf")]
mod trace;

use crate::monitor;
use anabranch_cc::Algorithm;
use anabranch_cc::int::IntConfig;
#[cfg(feature = "bpf")]
use anabranch_kern::bpf::{MOST_NODES_DETAIL, SourceConfig, TraceFilter};
use anyhow::Result;
use std::path::PathBuf;

/// Arguments of `anabranch cc`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Controllers: int_cubic_l1, int_cubic_l2, int_cubic_ss, int_rate
(docs/int-cc.md). A loaded one is available by name in every network namespace.
Select it by setsockopt(TCP_CONGESTION), `ip route … congctl NAME`, or
net.ipv4.tcp_congestion_control of a namespace. Without reports each behaves as
the kernel's CUBIC.

Example:
  anabranch cc load int_rate int_cubic_l1 \\
      --cgroup /sys/fs/cgroup/telemetry --ceiling-bps 100_000_000
  iperf3 -c fd00::2 --congestion int_rate       in another terminal
  anabranch cc show
  anabranch cc trace --port 5201
  anabranch cc unload int_rate")]
pub struct CcArgs {
    #[command(subcommand)]
    command: CcCommand,
}

#[derive(Debug, clap::Subcommand)]
enum CcCommand {
    /// Register controllers until this command ends (Ctrl-C). Replaces controllers registered by an earlier `load`, which
    /// then ends: new connections use the new version, open ones keep the old one.
    Load(LoadArgs),
    /// End the `load` commands that keep these controllers registered; without names, all of them.
    Unload {
        /// Names of controllers.
        names: Vec<Algorithm>,
    },
    /// List the kernel's controllers, and the processes that keep ours registered.
    List,
    /// Show the counters of the loaded programs and the sockets that use them.
    Show {
        /// Print one JSON object instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Trace congestion window, slow-start threshold and losses of TCP sockets, one line per change, until this command
    /// ends. Works with any controller; covers the sockets of this network namespace.
    Trace {
        /// Only sockets with this local or remote port.
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
        port: Option<u16>,
        /// Cover the sockets of all network namespaces.
        #[arg(long)]
        every_namespace: bool,
        /// Print one JSON object per line instead of columns.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
struct LoadArgs {
    /// Names of controllers.
    #[arg(required = true)]
    names: Vec<Algorithm>,
    /// Deliver reports to the sockets of this cgroup (v2) and its descendants; without it the controllers receive no
    /// reports and behave as CUBIC.
    #[arg(long, value_name = "DIR")]
    cgroup: Option<PathBuf>,
    /// Upper bound on the rate that telemetry may give a flow, bit/s.
    #[arg(long, value_name = "BPS", value_parser = number, default_value = "1_000_000_000")]
    ceiling_bps: u64,
    /// Increment of Eq. 1 (int_cubic_ss).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16), default_value_t = IntConfig::default().increment)]
    increment: u32,
    /// Maximum number of segments that Eq. 1 adds per acknowledged segment (int_cubic_ss).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16), default_value_t = IntConfig::default().growth_cap)]
    growth_cap: u32,
    #[command(flatten)]
    reports: ReportArgs,
    /// Ignore reports older than this many round trips.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=255), default_value_t = IntConfig::default().stale_rtts)]
    stale_rtts: u32,
}

/// Generation and validation of reports.
#[derive(Debug, clap::Args)]
struct ReportArgs {
    /// Key file, written by `anabranch keygen --out` and the same at both ends: reports carry its authentication tag, and
    /// reports without it are ignored.
    #[arg(long, value_name = "FILE", requires = "cgroup")]
    report_key: Option<PathBuf>,
    /// Number of routers on the path that do not fill traces and are known not to drop. If there are more, a loss counts as
    /// congestion.
    #[arg(long, value_name = "N", requires = "cgroup", default_value_t = 0)]
    known_routers: u8,
}

/// Arguments of `anabranch int`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
A source inserts empty IOAM traces (RFC 9197, 9486) into TCP over IPv6. Nodes
on the path fill them. A sink at the receiver returns reports to the sender in
TCP options of its ACKs (docs/int-cc.md). Reduce the MTU of the route by 160
bytes for the trace (88 for two nodes). A monitor reads the traces that arrive
at an interface and shows each path hop by hop.

Example:
  ip -6 route replace fd00:2::/64 via fd00:1::1 mtu 1340
  anabranch int source --interface eth0 --every 8
  anabranch int sink --cgroup /sys/fs/cgroup/telemetry      at the receiver
  anabranch int monitor --interface eth0                    on the path")]
pub struct IntArgs {
    #[command(subcommand)]
    command: IntCommand,
}

#[derive(Debug, clap::Subcommand)]
enum IntCommand {
    /// Insert empty traces into TCP packets that leave through an interface, until this command ends.
    Source {
        /// The interface.
        #[arg(long)]
        interface: String,
        /// Insert a trace into one data segment in N, at intervals of at least 1 ms per flow.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), default_value_t = 8)]
        every: u32,
        /// Number of nodes that fit into a trace, which takes 16 bytes and 36 per node.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=4), default_value_t = 4)]
        nodes: u8,
        /// Also request time stamps and buffer occupancy, for the latencies of a monitor and the RLC buffer of a cell: 16
        /// bytes and 48 per node, at most 3 nodes.
        #[arg(long)]
        detail: bool,
        /// Also insert traces into packets that the kernel must first copy to a larger buffer; by default these get none.
        /// Do not use it when the receiver is on this machine (loopback, another namespace): connections or the kernel can
        /// hang (docs/int-cc.md, Limits).
        #[arg(long)]
        beyond_headroom: bool,
        /// IOAM namespace.
        #[arg(long, value_name = "ID", default_value_t = 123)]
        namespace: u16,
    },
    /// Report the traces that reach the sockets of a cgroup (v2) and its descendants, until this command ends.
    Sink {
        /// Directory of the cgroup.
        #[arg(long, value_name = "DIR")]
        cgroup: PathBuf,
        #[command(flatten)]
        reports: ReportArgs,
    },
    /// Show the contents of the traces that arrive at an interface, per path and hop, until this command ends.
    Monitor(Box<monitor::MonitorArgs>),
    /// Show the paths once, after listening for --wait-ms.
    Paths(monitor::PathsArgs),
}

/// Parses a number as configuration files have it: `100_000_000`.
fn number(text: &str) -> Result<u64, String> {
    match text.replace('_', "").parse() {
        Ok(0) | Err(_) => Err("expected a whole number above 0, such as 100_000_000".into()),
        Ok(number) => Ok(number),
    }
}

/// Runs `anabranch cc`.
#[cfg(feature = "bpf")]
pub fn run_cc(args: CcArgs) -> Result<()> {
    match args.command {
        CcCommand::Load(args) => {
            let LoadArgs { names, cgroup, reports, ceiling_bps, increment, growth_cap, stale_rtts } = args;
            let config = IntConfig { ceiling_bps, increment, growth_cap, stale_rtts };
            at_work::load(&names, cgroup.as_deref(), &reports, &config)
        }
        CcCommand::Unload { names } => at_work::unload(&names),
        CcCommand::List => at_work::list(),
        CcCommand::Show { json } => show::show(json),
        CcCommand::Trace { port, every_namespace, json } => {
            trace::trace(TraceFilter { port, every_namespace }, json)
        }
    }
}

/// Runs `anabranch int`.
#[cfg(feature = "bpf")]
pub fn run_int(args: IntArgs) -> Result<()> {
    match args.command {
        IntCommand::Source { interface, every, nodes, detail, beyond_headroom, namespace } => {
            let nodes = if detail { nodes.min(MOST_NODES_DETAIL) } else { nodes };
            at_work::source(&interface, SourceConfig { namespace, every, nodes, detail, beyond_headroom })
        }
        IntCommand::Sink { cgroup, reports } => at_work::sink(&cgroup, &reports),
        IntCommand::Monitor(args) => monitor::run(&args),
        IntCommand::Paths(args) => monitor::paths(&args),
    }
}

#[cfg(not(feature = "bpf"))]
const WITHOUT: &str = "this anabranch was built without the kernel programs: build it with `./x setup`, or with \
                       `--features bpf` where clang, libelf-dev and zlib1g-dev are installed";

/// Reports that this build lacks the feature `bpf`.
#[cfg(not(feature = "bpf"))]
pub fn run_cc(_: CcArgs) -> Result<()> {
    anyhow::bail!(WITHOUT)
}

/// Runs the parts that need no kernel program; for the others, reports that this build lacks the feature
/// `bpf`.
#[cfg(not(feature = "bpf"))]
pub fn run_int(args: IntArgs) -> Result<()> {
    match args.command {
        IntCommand::Monitor(args) => monitor::run(&args),
        IntCommand::Paths(args) => monitor::paths(&args),
        IntCommand::Source { .. } | IntCommand::Sink { .. } => anyhow::bail!(WITHOUT),
    }
}
