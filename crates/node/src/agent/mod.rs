//! The control plane of `anabranch ue`, `upf`, `gnb`, `lwip` and `proxy`: one thread that never touches a user's packet.
//!
//! ```text
//!  signals ─┐                       orders ┌──────────┐
//!  REST ────┼──▶ control loop ────────────▶│ worker 0 │   (engine::worker; one per core)
//!  netlink ─┘     │       ▲                │ worker … │
//!                 ▼       └──── events ────└──────────┘
//!              netctl (addresses, routes, NAT; undone at the end)
//! ```

mod crew;
mod gnb;
mod leases;
mod lwip;
pub(crate) mod metrics;
mod place;
mod preflight;
mod proxy;
pub mod service;
mod state_file;
mod tcp_lane;
mod thread;
mod trouble;
mod ue;
mod ue_access;
mod upf;
mod upf_api;
mod views;
mod why;

use crate::config::{Api, ConfigError, Listen, Metrics};
use anabranch_lwip::{Config as LwipNode, DidaConfig, Hold, Steering};
use std::path::PathBuf;

/// Arguments of `anabranch ue`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
The smallest ue.toml:
  [ue]
  private_key_file = \"/etc/anabranch/ue.key\"      # anabranch keygen --out /etc/anabranch/ue.key
  [upf]
  public_key = \"…\"                                # what the UPF's keygen printed
  [[access]]
  name = \"wifi\"
  interface = \"wlan0\"
  remote = \"198.51.100.10:4501\"

SIGHUP reads the file again; SIGINT and SIGTERM stop it and remove every device, address, route and rule.")]
pub struct UeArgs {
    #[command(flatten)]
    common: Common,
}

/// Arguments of `anabranch upf`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
The smallest upf.toml:
  [upf]
  private_key_file = \"/etc/anabranch/upf.key\"     # anabranch keygen --out /etc/anabranch/upf.key
  [pool]
  v4 = \"10.45.0.0/16\"
  [[access]]
  name = \"wifi\"
  listen = \"0.0.0.0:4501\"
  [[ue]]
  name = \"laptop\"
  public_key = \"…\"                                # what the UE's keygen printed

SIGHUP reads the file again; SIGINT and SIGTERM stop it and remove every device, address, route and rule.")]
pub struct UpfArgs {
    #[command(flatten)]
    common: Common,
}

/// Arguments of `anabranch gnb`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
The smallest gnb.toml: one UE behind ue0, the network behind n3, LTE with 25 RBs.
  [n3]
  mode = \"ip\"
  name = \"n3\"
  [[device]]
  name = \"ue0\"
  netns = \"phone\"                                # ip netns add phone
  addresses = [\"10.45.0.2/32\"]
  routes = [\"0.0.0.0/0\"]
  [cell]
  [[cell.ues]]
  name = \"phone\"
  addresses = [\"10.45.0.2\"]
  channel = { model = \"constant\", mcs = 28 }
  bearer = { queue = \"e5g_bdp\" }

SIGHUP reads the file again; SIGINT and SIGTERM stop it and remove every device, address and route.")]
pub struct GnbArgs {
    #[command(flatten)]
    common: Common,
}

/// Arguments of `anabranch lwip`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
The smallest lwip.toml: servers behind n3, one UE, LTE and Wi-Fi behind ran0, where routes part.
  [backhaul]
  name = \"n3\"
  routes = [\"10.45.0.2/32\"]                      # what servers send to the UE
  [lte]
  name = \"ran0\"
  netns = \"ran\"                                 # ip netns add ran
  routes = [\"0.0.0.0/0\"]                        # what UEs send
  [node]
  steering = { mode = \"fixed_ratio\", lte_percent = 50 }
  dida = { hold = { mode = \"fixed\", ms = 50 } }
  [[node.ues]]
  name = \"phone\"
  addresses = [\"10.45.0.2\"]                      # of the bearer: what servers know
  wifi = [\"10.46.0.2\"]                           # by way of the access point

What the UE runs to turn its Wi-Fi address back:
  anabranch lwip --config lwip.toml --ue-rules phone --ue-interface wlan0 | ssh phone nft -f -

SIGHUP reads the file again; SIGINT and SIGTERM send what is held, stop it and remove every device, address and route.")]
pub struct LwipArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    flags: LwipFlags,
    /// Print the nftables rules that a UE needs for its Wi-Fi leg, and do nothing else.
    #[arg(long, value_name = "UE")]
    ue_rules: Option<String>,
    /// The UE's Wi-Fi interface, for --ue-rules; default: any.
    #[arg(long, value_name = "INTERFACE", requires = "ue_rules")]
    ue_interface: Option<String>,
}

/// Arguments of `anabranch proxy`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
The smallest proxy.toml: every TCP and UDP flow of this machine goes as `anabranch ue` beside it says.
  [[rule]]
  name = \"all\"

Video on what guarantees 5 Mbit/s, everything else left alone:
  [[rule]]
  name = \"video\"
  filter = { protocol = \"tcp\", remote_port = 1935 }
  properties = { minSendRate = 5000000 }

Example:
  anabranch proxy --config proxy.toml
  anabranch ctl proxy flows

SIGHUP reads the file again; SIGINT and SIGTERM stop it and remove every rule, route and table. What one that was killed
left is removed at the next start, before the file is read, or by:
  anabranch proxy --clean")]
pub struct ProxyArgs {
    /// Only remove what proxies that were killed have left in this network namespace: tables of nftables, rules and routes.
    /// Those that run are not touched.
    #[arg(long, exclusive = true)]
    clean: bool,
    #[command(flatten)]
    common: Option<Common>,
}

/// What wins over `[node]`.
#[derive(Debug, Clone, Default, clap::Args)]
struct LwipFlags {
    /// A fixed share of TCP over LTE, percent, instead of what the file says.
    #[arg(long, value_name = "PERCENT")]
    lte_percent: Option<f64>,
    /// How long duplicate ACKs are held, milliseconds, instead of what the file says; 0: DIDA is off.
    #[arg(long, value_name = "MS")]
    hold_ms: Option<f64>,
}

impl LwipFlags {
    fn win(&self, node: &mut LwipNode) -> Result<(), ConfigError> {
        if let Some(lte_percent) = self.lte_percent {
            node.steering = Steering::FixedRatio { lte_percent };
            node.check().map_err(|e| ConfigError::new("--lte-percent", e.to_string()))?;
        }
        if let Some(ms) = self.hold_ms {
            let dida = DidaConfig { hold: Hold::Fixed { ms }, ..node.dida.unwrap_or_default() };
            node.dida = (ms != 0.0).then_some(dida);
            node.check().map_err(|e| ConfigError::new("--hold-ms", e.to_string()))?;
        }
        Ok(())
    }
}

#[derive(Debug, clap::Args)]
struct Common {
    /// Configuration file; packaging/*.example.toml shows every key.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Only check the file, and what it names on this machine (keys, interfaces, ports that the program does not have itself):
    /// 0 if it is right, 2 and a sentence if not.
    #[arg(long)]
    check: bool,
    /// Where the REST interface listens, instead of what the file says: unix:PATH, ADDRESS:PORT or off.
    #[arg(long, value_name = "LISTEN")]
    api: Option<Listen>,
    /// Where Prometheus metrics are served, instead of what the file says.
    #[arg(long, value_name = "LISTEN")]
    metrics: Option<Listen>,
}

impl Common {
    /// Flags win over the file.
    fn win(&self, api: &mut Api, metrics: &mut Option<Metrics>) -> Result<(), ConfigError> {
        if let Some(listen) = &self.api {
            api.listen = listen.clone();
            api.check().map_err(|e| ConfigError::new("--api", e))?;
        }
        if let Some(listen) = &self.metrics {
            let given = metrics.take();
            let tls = given.as_ref().and_then(|m| m.tls.clone());
            let without_tls = given.is_some_and(|m| m.without_tls);
            *metrics = Some(Metrics { listen: listen.clone(), tls, without_tls });
            Metrics::check(metrics.as_ref()).map_err(|e| ConfigError::new("--metrics", e))?;
        }
        Ok(())
    }
}

/// Runs a UE until it is told to stop.
pub fn run_ue(args: &UeArgs) -> anyhow::Result<()> {
    let config = ue::load(&args.common)?;
    preflight::ue(&args.common, &config)?;
    if args.common.check {
        return Ok(());
    }
    preflight::may_configure()?;
    runtime()?.block_on(ue::run(&args.common, config))
}

/// Runs a UPF until it is told to stop.
pub fn run_upf(args: &UpfArgs) -> anyhow::Result<()> {
    let config = upf::load(&args.common)?;
    preflight::upf(&args.common, &config)?;
    if args.common.check {
        return Ok(());
    }
    preflight::may_configure()?;
    runtime()?.block_on(upf::run(&args.common, config))
}

/// Runs a gNB until it is told to stop.
pub fn run_gnb(args: &GnbArgs) -> anyhow::Result<()> {
    let config = gnb::load(&args.common)?;
    preflight::agent(&args.common, &config.api, config.metrics.as_ref())?;
    if args.common.check {
        return Ok(());
    }
    preflight::may_configure()?;
    gnb::run(&args.common, config)
}

/// Runs an LWIP node until it is told to stop.
pub fn run_lwip(args: &LwipArgs) -> anyhow::Result<()> {
    let config = lwip::load(args)?;
    if let Some(ue) = &args.ue_rules {
        return lwip::print_ue_rules(args, &config, ue);
    }
    preflight::agent(&args.common, &config.api, config.metrics.as_ref())?;
    if args.common.check {
        return Ok(());
    }
    preflight::may_configure()?;
    lwip::run(args, config)
}

/// Runs a transparent proxy until it is told to stop.
pub fn run_proxy(args: &ProxyArgs) -> anyhow::Result<()> {
    let Some(common) = args.common.as_ref().filter(|_| !args.clean) else {
        return preflight::may_configure().and_then(|()| proxy::clean());
    };
    if !common.check
        && preflight::may_configure().is_ok()
        && let Err(error) = proxy::clean()
    {
        // A file that is wrong ends this start: until then, who was left cut off is not any more.
        let text = format!("{error:#}");
        if text.contains("not permitted") {
            tracing::debug!("{text}");
        } else {
            tracing::warn!("{text}");
        }
    }
    let config = proxy::load(common)?;
    preflight::agent(common, &config.api, config.metrics.as_ref())?;
    if common.check {
        return Ok(());
    }
    preflight::may_configure()?;
    proxy::run(common, config)
}

/// Whether an error is the fault of what the user wrote.
pub fn is_config_error(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<ConfigError>())
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}
