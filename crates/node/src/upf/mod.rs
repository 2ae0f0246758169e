//! `anabranch upf`: the tunnel end at the operator.

pub mod config;
pub mod leases;
pub mod requests;
pub mod run;

use crate::runtime::{Common, current_thread, preflight, run_to_end};

/// Arguments of `anabranch upf`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
The smallest upf.toml:
  [upf]
  # anabranch keygen --out /etc/anabranch/upf.key
  private_key_file = \"/etc/anabranch/upf.key\"
  [pool]
  v4 = \"10.45.0.0/16\"
  [[access]]
  name = \"wifi\"
  listen = \"0.0.0.0:4501\"
  [[ue]]
  name = \"laptop\"
  public_key = \"…\"                         # what the UE's keygen printed

SIGHUP reloads the file. SIGINT and SIGTERM stop the program and remove every
device, address, route and rule.")]
pub struct UpfArgs {
    #[command(flatten)]
    pub common: Common,
}

/// Runs a UPF until it is stopped.
pub fn start(args: &UpfArgs) -> anyhow::Result<()> {
    let config = run::load(&args.common)?;
    preflight::upf(&args.common, &config)?;
    if args.common.check {
        return leases::Leases::load(&config.upf.state_file, &config.pool).map(drop);
    }
    preflight::may_configure()?;
    run_to_end(current_thread()?, run::run(&args.common, config))
}
