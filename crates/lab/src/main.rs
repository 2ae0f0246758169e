//! anabranch-lab: runs scenarios and checks what they claim.
#![forbid(unsafe_code)]

use anabranch_lab::cli;
use clap::Parser;

fn main() -> std::process::ExitCode {
    cli::run(cli::Cli::parse())
}
