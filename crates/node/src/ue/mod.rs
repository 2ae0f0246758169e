//! `anabranch ue`: the tunnel end on a device, and Transport Services of its programs (`taps`).

pub mod access;
pub mod config;
pub mod requests;
pub mod run;
pub mod taps;

use crate::runtime::{Common, current_thread, preflight, run_to_end};

/// Arguments of `anabranch ue`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
The smallest ue.toml:
  [ue]
  # anabranch keygen --out /etc/anabranch/ue.key
  private_key_file = \"/etc/anabranch/ue.key\"
  [upf]
  public_key = \"…\"                         # what the UPF's keygen printed
  [[access]]
  name = \"wifi\"
  interface = \"wlan0\"
  remote = \"198.51.100.10:4501\"

SIGHUP reloads the file. SIGINT and SIGTERM stop the program and remove every
device, address, route and rule.")]
pub struct UeArgs {
    #[command(flatten)]
    pub common: Common,
}

/// Runs a UE until it is stopped.
pub fn start(args: &UeArgs) -> anyhow::Result<()> {
    let config = run::load(&args.common)?;
    preflight::ue(&args.common, &config)?;
    if args.common.check {
        return Ok(());
    }
    preflight::may_configure()?;
    run_to_end(current_thread()?, run::run(&args.common, config))
}
