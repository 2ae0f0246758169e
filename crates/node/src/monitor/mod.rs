//! `anabranch int monitor` and `anabranch int paths`: the contents of the traces that arrive at an interface.
//!
//! ```text
//!  interface ──▶ packet socket ──▶ cc::collect ──▶ every interval: Report ─┬─▶ table, or a line of JSON
//!                IPv6 with hop-by-hop options, incoming; the rest            ├─▶ /metrics
//!                never leaves the kernel                                         ├─▶ REST
//!                                                                                └─▶ MQTT: a broker's, or its own
//! ```
//!
//! The monitor is passive: it does not affect the packets. One thread reads and collects; the servers use the
//! last report and never wait for that thread.

mod api;
pub mod ctl;
#[cfg(feature = "bpf")]
mod map;
mod metrics;
mod mqtt;
mod report;
mod schema;
mod served;
mod show;
mod watch;

use crate::runtime::api::tls::Tls;
use crate::runtime::api::{Access, read_token};
use crate::runtime::config::{self, Listen};
use anabranch_cc::collect::CollectConfig;
use anyhow::{Context, Result, bail};
pub use api::{IntFlows, IntPaths};
#[cfg(feature = "bpf")]
use map::{Published, published_paths};
use report::Report;
use served::MonitorServers;
pub use show::{flows_table, hops_table};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use watch::Watch;

/// The interfaces to listen on, and the limits of the tables.
#[derive(Debug, clap::Args)]
pub struct CaptureArgs {
    /// Interface to listen on; may be repeated.
    #[arg(long, value_name = "NAME")]
    interface: Vec<String>,
    /// Only traces of this IOAM namespace; default: all.
    #[arg(long, value_name = "ID")]
    namespace: Option<u16>,
    /// Maximum number of paths; the least recently seen one is evicted.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), default_value_t = 64)]
    max_paths: u32,
    /// Maximum number of flows.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536), default_value_t = 1024)]
    max_flows: u32,
    /// Remove paths and flows after this many seconds without packets.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400), default_value_t = 60)]
    idle_s: u32,
    /// Number of routers on the path that do not fill traces and are known not to drop. A path with more is not complete.
    #[arg(long, value_name = "N", default_value_t = 0)]
    known_routers: u8,
    /// Print one JSON object per report instead of tables.
    #[arg(long)]
    json: bool,
}

impl CaptureArgs {
    fn config(&self, window: Duration) -> CollectConfig {
        CollectConfig {
            namespace: self.namespace,
            paths: self.max_paths as usize,
            flows: self.max_flows as usize,
            idle: Duration::from_secs(self.idle_s.into()),
            window,
            known_routers: self.known_routers,
        }
    }
}

/// Access to the last report: addresses, token, TLS.
#[derive(Debug, clap::Args)]
pub struct ApiArgs {
    /// Address of the REST interface, `GET /v1/int/paths` and others (`/openapi.json`): unix:PATH or ADDRESS:PORT.
    #[arg(long, value_name = "ADDRESS")]
    api: Option<Listen>,
    /// File with the bearer token in its first line; required if --api is reachable from other machines.
    #[arg(long, value_name = "FILE", requires = "api")]
    api_token_file: Option<PathBuf>,
    /// PEM file with the certificate chain of --api and --metrics; required if they are reachable from other machines.
    /// Reloaded on SIGHUP.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// PEM file with the private key of the certificate.
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Serve --api and --metrics to other machines without TLS.
    #[arg(long, conflicts_with = "tls_certificate")]
    without_tls: bool,
}

/// Address of the REST interface, and its token.
type ApiEndpoint<'a> = (&'a Listen, Option<Arc<Access>>);

impl ApiArgs {
    /// Validates the options; `None` if no REST interface is requested.
    fn check(&self) -> Result<Option<ApiEndpoint<'_>>> {
        let Some(at) = &self.api else { return Ok(None) };
        if let (Listen::Tcp(address), None) = (at, &self.api_token_file)
            && !address.ip().is_loopback()
        {
            bail!(
                "--api {address} can be reached from elsewhere: add --api-token-file, or listen on unix:PATH or \
                 127.0.0.1:PORT"
            );
        }
        let token = self.api_token_file.as_deref().map(read_token).transpose().context("--api-token-file")?;
        Ok(Some((at, token.map(|token| Access::of_operator(&token)))))
    }

    /// Whether there is a certificate to reload on SIGHUP.
    fn has_certificate(&self) -> bool {
        self.tls_certificate.is_some()
    }

    /// TLS for the listeners; `None` if no certificate is given. An error if a listener needs one.
    fn tls(&self, metrics: Option<&Listen>) -> Result<Option<Arc<Tls>>> {
        let files = match (&self.tls_certificate, &self.tls_key) {
            (Some(certificate), Some(key)) => {
                Some(config::Tls { certificate: certificate.clone(), key: key.clone() })
            }
            _ => None,
        };
        for (what, at) in [("--api", self.api.as_ref()), ("--metrics", metrics)] {
            if let (Some(Listen::Tcp(address)), None, false) = (at, &files, self.without_tls)
                && !address.ip().is_loopback()
            {
                bail!(
                    "{what} {address} can be reached from elsewhere: add --tls-certificate and --tls-key, or give \
                     --without-tls if the network is trusted"
                );
            }
        }
        Ok(files.as_ref().map(Tls::new).transpose()?.map(Arc::new))
    }
}

/// Arguments of `anabranch int monitor`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Reads the traces (RFC 9197) of packets that arrive at an interface. Requires
CAP_NET_RAW, but no kernel programs. Latencies are differences of time stamps:
the clocks of the nodes must be synchronised, and the source must use --detail.

Example:
  anabranch int monitor --interface eth0 --metrics 127.0.0.1:9464
  anabranch int monitor --interface eth0 --quiet --mqtt 127.0.0.1:1883
  anabranch int monitor --interface eth0 --api unix:/run/anabranch/int.sock
  anabranch ctl int                             in another terminal
  anabranch int monitor --interface eth0 --json |
    jq '.paths[].hops[].depth_bytes.most'")]
pub struct MonitorArgs {
    #[command(flatten)]
    listening: CaptureArgs,
    /// Interval between reports in milliseconds; maxima cover the last one to two intervals.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(100..=60_000), default_value_t = 1000)]
    interval_ms: u32,
    /// Exit after this many reports.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// Print nothing; only serve.
    #[arg(long, conflicts_with = "json")]
    quiet: bool,
    /// Address for Prometheus metrics, under /metrics: ADDRESS:PORT or unix:PATH.
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<Listen>,
    /// Name of this monitor in what it publishes; default: the host name.
    #[arg(long, value_name = "NAME", value_parser = sink_name)]
    name: Option<String>,
    /// Publish the paths in the BPF map `ab_paths`, for BPF programs and other processes. Requires root and the feature
    /// bpf.
    #[arg(long)]
    map: bool,
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    mqtt: mqtt::MqttArgs,
}

/// Arguments of `anabranch int paths`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Without --interface it shows the paths that monitors on this machine publish
with --map, and does not listen itself.

Example:
  anabranch int paths --interface eth0 --wait-ms 5000
  anabranch int paths --json")]
pub struct PathsArgs {
    #[command(flatten)]
    listening: CaptureArgs,
    /// Listening time in milliseconds.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(10..=600_000), default_value_t = 2000)]
    wait_ms: u32,
}

fn sink_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 200 || text.contains(char::is_control) {
        return Err("expected a name of 1 to 200 bytes without control characters".into());
    }
    Ok(text.to_owned())
}

/// Moves the cursor home and erases from there on, which redraws without flicker.
const REDRAW: &str = "\x1b[H\x1b[J";

/// Runs `anabranch int monitor`.
pub fn run(args: &MonitorArgs) -> Result<()> {
    anyhow::ensure!(!args.listening.interface.is_empty(), "name an interface with --interface");
    let every = Duration::from_millis(args.interval_ms.into());
    let name = args.name.clone().unwrap_or_else(report::host_name);
    let (interfaces, config) = (&args.listening.interface, args.listening.config(every));
    let mut watch = Watch::open(name.clone(), interfaces, config, args.api.has_certificate())?;
    let served = MonitorServers::start(&name, &args.api, args.metrics.as_ref(), &args.mqtt)?;
    let mut published = Published::new(args.map, args.listening.max_paths)?;
    let terminal = std::io::stdout().is_terminal();
    if !args.quiet && !args.listening.json && !terminal {
        tracing::info!("listening on {}", args.listening.interface.join(" "));
    }
    let mut left = args.count;
    watch.run(every, |report| {
        if !args.quiet {
            let page = if args.listening.json { report.json()? } else { show::text(&report) };
            let redraw = if terminal && !args.listening.json { REDRAW } else { "" };
            print(&format!("{redraw}{page}"))?;
        }
        published.set(&report);
        served.set(report);
        left = left.map(|n| n - 1);
        Ok(left != Some(0))
    })
}

/// Runs `anabranch int paths`.
pub fn paths(args: &PathsArgs) -> Result<()> {
    if args.listening.interface.is_empty() {
        return print(&published_paths(args.listening.json)?);
    }
    let wait = Duration::from_millis(args.wait_ms.into());
    let (interfaces, config) = (&args.listening.interface, args.listening.config(wait));
    let mut watch = Watch::open(report::host_name(), interfaces, config, false)?;
    watch.run(wait, |report: Report| {
        print(&if args.listening.json { report.json()? } else { show::text(&report) })?;
        Ok(false)
    })
}

#[cfg(not(feature = "bpf"))]
const WITHOUT: &str = "this anabranch was built without the kernel programs (feature bpf): name an interface with \
                       --interface, and leave --map out";

/// Replacement for builds without the feature bpf; publishes nothing.
#[cfg(not(feature = "bpf"))]
struct Published;

#[cfg(not(feature = "bpf"))]
impl Published {
    fn new(wanted: bool, _: u32) -> Result<Self> {
        anyhow::ensure!(!wanted, WITHOUT);
        Ok(Self)
    }

    fn set(&mut self, _: &Report) {}
}

#[cfg(not(feature = "bpf"))]
fn published_paths(_: bool) -> Result<String> {
    anyhow::bail!(WITHOUT)
}

/// Writes to standard output. A reader that exits early (`| head`) is not a failure.
fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    Ok(out.write_all(text.as_bytes()).and_then(|()| out.flush())?)
}
