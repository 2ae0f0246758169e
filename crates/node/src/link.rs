//! `anabranch link`: an emulated access between two interfaces.

use anyhow::bail;

/// Arguments of `anabranch link`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs until stopped.
pub fn run(_args: Args) -> anyhow::Result<()> {
    bail!("this build has no link emulation")
}
