//! The command line: one enum, help with an example for each part, exit codes.

use crate::{agent, ctl, keygen, link};
use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// ATSSS for any Linux machine: one session over 5G and Wi-Fi.
#[derive(Debug, Parser)]
#[command(name = "anabranch", version, propagate_version = true)]
#[command(after_help = "Exit codes: 0 done, 1 failed while running, 2 wrong arguments or configuration.")]
pub struct Cli {
    /// What to log: a level or tracing filter such as `info,anabranch::engine=debug`.
    #[arg(long, global = true, env = "ANABRANCH_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,
    /// The part to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The parts.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// The tunnel end on a device: one session over all of its accesses.
    Ue(agent::UeArgs),
    /// The tunnel end at the operator, for many UEs.
    Upf(agent::UpfArgs),
    /// Ask a running UE or UPF, and change its rules and sessions.
    Ctl(ctl::Args),
    /// Make a key pair.
    Keygen(keygen::Args),
    /// Emulate an access link between two interfaces.
    Link(link::Args),
}

/// Runs the chosen part to its end.
pub fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Ue(args) => agent::run_ue(&args),
        Command::Upf(args) => agent::run_upf(&args),
        Command::Ctl(args) => ctl::run(&args),
        Command::Keygen(args) => keygen::run(&args),
        Command::Link(args) => link::run(args),
    }
}

/// Logs go to standard error, so that standard output stays for results.
pub fn init_logs(filter: &str) {
    let (filter, wrong) = match EnvFilter::try_new(filter) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new("info"), Some(error)),
    };
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi).init();
    if let Some(error) = wrong {
        tracing::warn!("--log: {error}; logging at info");
    }
}

/// The exit code for an error: 2 when the user's input is at fault, else 1; `ctl` tells more apart.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if let Some(error) = error.downcast_ref::<ctl::CtlError>() {
        return error.exit_code();
    }
    if agent::is_config_error(error) { 2 } else { 1 }
}
