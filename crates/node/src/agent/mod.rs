//! The control plane of `anabranch ue`, `anabranch upf` and `anabranch gnb`: one thread that never touches a user's packet.
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
mod metrics;
mod place;
mod service;
mod thread;
mod ue;
mod ue_access;
mod upf;
mod upf_api;
mod views;

use crate::config::{Api, ConfigError, Listen, Metrics};
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

#[derive(Debug, clap::Args)]
struct Common {
    /// Configuration file; packaging/*.example.toml shows every key.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Only check the file: 0 if it is right, 2 and a sentence if not.
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
            *metrics = Some(Metrics { listen: listen.clone() });
        }
        Ok(())
    }
}

/// Runs a UE until it is told to stop.
pub fn run_ue(args: &UeArgs) -> anyhow::Result<()> {
    let config = ue::load(&args.common)?;
    if args.common.check {
        return Ok(());
    }
    runtime()?.block_on(ue::run(&args.common, config))
}

/// Runs a UPF until it is told to stop.
pub fn run_upf(args: &UpfArgs) -> anyhow::Result<()> {
    let config = upf::load(&args.common)?;
    if args.common.check {
        return Ok(());
    }
    runtime()?.block_on(upf::run(&args.common, config))
}

/// Runs a gNB until it is told to stop.
pub fn run_gnb(args: &GnbArgs) -> anyhow::Result<()> {
    let config = gnb::load(&args.common)?;
    if args.common.check {
        return Ok(());
    }
    gnb::run(&args.common, config)
}

/// Whether an error is the fault of what the user wrote.
pub fn is_config_error(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<ConfigError>())
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}
