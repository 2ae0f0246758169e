//! `anabranch cc` and `anabranch int`: the kernel programs, on the command line.
//!
//! Both parts hold what they load by file descriptors: when they end, in whatever way, it is gone. There is no
//! state on disk to become stale; what is at work on the machine is asked of the kernel.

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
(docs/int-cc.md). A loaded one is known by its name in every network namespace,
and used by none that does not ask for it: setsockopt(TCP_CONGESTION),
`ip route … congctl NAME`, or net.ipv4.tcp_congestion_control of a namespace.
Without reports each is the kernel's CUBIC.

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
    /// Register controllers until this command ends (Ctrl-C). What another such command keeps is replaced, and that
    /// one ended: new connections run the new version, open ones the old one until they close.
    Load(LoadArgs),
    /// End the commands that keep these controllers registered; without names, all of ours.
    Unload {
        /// Controllers.
        names: Vec<Algorithm>,
    },
    /// Which controllers the kernel has, and who keeps ours.
    List,
    /// What the programs at work have counted, and the sockets they are at work on.
    Show {
        /// One JSON object instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Congestion window, slow-start threshold and losses of TCP sockets as they change, one line per event, until this
    /// command ends. Any controller; sockets of this network namespace.
    Trace {
        /// Only sockets with this port, at either end.
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
        port: Option<u16>,
        /// Sockets of every network namespace.
        #[arg(long)]
        every_namespace: bool,
        /// One JSON object per line instead of columns.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
struct LoadArgs {
    /// Controllers.
    #[arg(required = true)]
    names: Vec<Algorithm>,
    /// Reports for the sockets of this cgroup (v2) and below; without it the controllers hear nothing and are
    /// CUBIC.
    #[arg(long, value_name = "DIR")]
    cgroup: Option<PathBuf>,
    /// No telemetry raises a flow above this rate, bit/s.
    #[arg(long, value_name = "BPS", value_parser = number, default_value = "1_000_000_000")]
    ceiling_bps: u64,
    /// Increment of Eq. 1 (int_cubic_ss).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16), default_value_t = IntConfig::default().increment)]
    increment: u32,
    /// Most segments Eq. 1 adds per acknowledged one (int_cubic_ss).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16), default_value_t = IntConfig::default().growth_cap)]
    growth_cap: u32,
    #[command(flatten)]
    reports: ReportArgs,
    /// Reports older than this many round trips count for nothing.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=255), default_value_t = IntConfig::default().stale_rtts)]
    stale_rtts: u32,
}

/// How reports are made and read.
#[derive(Debug, clap::Args)]
struct ReportArgs {
    /// Take only reports with the tag of this key, and send none without it: a file of `anabranch keygen --out`, the same at both
    /// ends.
    #[arg(long, value_name = "FILE", requires = "cgroup")]
    report_key: Option<PathBuf>,
    /// Routers on the way of traces that fill none and are known to have no queue that drops. With more of them, what is lost is
    /// taken for congestion.
    #[arg(long, value_name = "N", requires = "cgroup", default_value_t = 0)]
    known_routers: u8,
}

/// Arguments of `anabranch int`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
A source puts empty IOAM traces (RFC 9197, 9486) into TCP over IPv6; nodes on
the way fill them; a sink at the receiver tells the sender on its ACKs
(docs/int-cc.md). Lower the MTU of the route by 160 for the trace (88 for two
nodes). A monitor looks at the traces that arrive at an interface, and shows
each path hop by hop.

Example:
  ip -6 route replace fd00:2::/64 via fd00:1::1 mtu 1340
  anabranch int source --interface eth0 --every 8
  anabranch int sink --cgroup /sys/fs/cgroup/telemetry      at the receiver
  anabranch int monitor --interface eth0                    where they pass")]
pub struct IntArgs {
    #[command(subcommand)]
    command: IntCommand,
}

#[derive(Debug, clap::Subcommand)]
enum IntCommand {
    /// Put empty traces into TCP packets that leave by an interface, until this command ends.
    Source {
        /// The interface.
        #[arg(long)]
        interface: String,
        /// One data segment in so many carries a trace, but none of a flow sooner than 1 ms after the last.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), default_value_t = 8)]
        every: u32,
        /// Nodes a trace has room for: 16 bytes and 36 per node, up to 8n.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=4), default_value_t = 4)]
        nodes: u8,
        /// Ask nodes for time stamps and buffer occupancy, too, so that a monitor can tell latencies and a cell its RLC: 16
        /// bytes and 48 per node, at most 3 nodes.
        #[arg(long)]
        detail: bool,
        /// Traces also in packets that the kernel has to move to a larger buffer for them; else those go without. Not where the
        /// receiver is on this machine (loopback, another namespace): it can stop connections for ever, or the kernel
        /// (docs/int-cc.md, Limits).
        #[arg(long)]
        beyond_headroom: bool,
        /// IOAM namespace.
        #[arg(long, value_name = "ID", default_value_t = 123)]
        namespace: u16,
    },
    /// Report the traces that reach the sockets of a cgroup (v2) and below, until this command ends.
    Sink {
        /// The cgroup's directory.
        #[arg(long, value_name = "DIR")]
        cgroup: PathBuf,
        #[command(flatten)]
        reports: ReportArgs,
    },
    /// Show what the traces tell that arrive at an interface, path by path and hop by hop, until this command ends.
    Monitor(Box<monitor::MonitorArgs>),
    /// The same once, after listening for a moment.
    Paths(monitor::PathsArgs),
}

/// Numbers as in configuration files: `100_000_000`.
fn number(text: &str) -> Result<u64, String> {
    match text.replace('_', "").parse() {
        Ok(0) | Err(_) => Err("a whole number above 0 is wanted, such as 100_000_000".into()),
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

/// Says that this build cannot.
#[cfg(not(feature = "bpf"))]
pub fn run_cc(_: CcArgs) -> Result<()> {
    anyhow::bail!(WITHOUT)
}

/// Says what this build cannot.
#[cfg(not(feature = "bpf"))]
pub fn run_int(args: IntArgs) -> Result<()> {
    match args.command {
        IntCommand::Monitor(args) => monitor::run(&args),
        IntCommand::Paths(args) => monitor::paths(&args),
        IntCommand::Source { .. } | IntCommand::Sink { .. } => anyhow::bail!(WITHOUT),
    }
}
