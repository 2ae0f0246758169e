//! `anabranch ctl`: inspects and controls a running `ue`, `upf`, `gnb`, `lwip`, `proxy`, `int monitor` or `slice-manager` through its
//! REST interface (`crate::runtime::api`).
//!
//! ```text
//!  ctl ── unix socket | http://loopback + token ──▶ agent      tables, or --json for scripts
//! ```
//!
//! Exit codes: 0 success, 1 failure, 2 invalid arguments, 3 agent not reachable, 4 request refused by the agent.

pub mod client;
pub mod error;
pub mod events;
pub mod manager;
mod metrics;
pub mod rules;
pub mod sessions;
pub mod status;
pub mod table;
pub mod watch;

pub use error::CtlError;

use crate::runtime::api::{Reloaded, Rules};
use anabranch_steer::Rule;
use client::{Client, INT_SOCKET, MANAGER_SOCKET, PROXY_SOCKET, Target};
use reqwest::Method;
use serde::Serialize;
use std::io::{IsTerminal, Write};

const EXIT_CODES: &str = "Exit codes: 0 success, 1 failure, 2 invalid arguments, 3 agent not reachable,\n            4 request refused by the agent.";

/// Arguments of `anabranch ctl`.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("\
Examples:
  anabranch ctl status
  anabranch ctl --socket /run/anabranch/upf.sock sessions
  anabranch ctl --url http://127.0.0.1:9464 \\
      --token-file /etc/anabranch/token paths --watch
{EXIT_CODES}"))]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Print the agent's JSON, for scripts; with --watch and for events, one object per line.
    #[arg(long, global = true, help_heading = "Global options")]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show the program: version, sessions, drops by reason, accesses.
    #[command(after_help = "\
Examples:
  anabranch ctl status
  anabranch ctl status --watch                every second, with rates
  anabranch ctl status --json | jq .drops")]
    Status {
        #[command(flatten)]
        watch: watch::Watch,
    },
    /// List, show, create and delete sessions.
    #[command(after_help = "\
Examples:
  anabranch ctl sessions
  anabranch ctl sessions create tv \\
      --public-key vmHhqE8tcZ4WAGqG4kP5IO2rCzYb1eN3mWvPc7yqC2o=")]
    Sessions {
        #[command(flatten)]
        page: sessions::Page,
        #[command(subcommand)]
        action: Option<sessions::Action>,
    },
    /// Show paths: state and reason, RTT, loss, bytes, rules that use them.
    #[command(after_help = "\
Examples:
  anabranch ctl paths
  anabranch ctl paths --watch 0.5             live throughput, twice a second
  anabranch ctl --socket /run/anabranch/upf.sock paths laptop")]
    Paths {
        /// Only the paths of this UE.
        ue: Option<String>,
        #[command(flatten)]
        page: sessions::Page,
        #[command(flatten)]
        watch: watch::Watch,
    },
    /// Show steering rules, their origin and their current decisions; add, replace, remove. Changes last until the next
    /// reload or restart.
    #[command(after_help = "\
Examples:
  anabranch ctl rules
  anabranch ctl --socket /run/anabranch/upf.sock rules --ue laptop
  anabranch ctl rules --toml                  as [[rule]] sections of the file
  anabranch ctl rules add calls --mode redundant \\
      --protocol udp --remote-port 3478-3481
  anabranch ctl rules remove calls")]
    Rules {
        /// Print the rules as [[rule]] sections of the configuration file.
        #[arg(long, conflicts_with = "json")]
        toml: bool,
        /// UPF only: show the decisions for this UE; may be omitted if there is only one.
        #[arg(long, value_name = "NAME")]
        ue: Option<String>,
        #[command(subcommand)]
        change: Option<Box<rules::Change>>,
    },
    /// Show the cell of a gNB: carrier, schedulers, lateness of slots, both directions; set schedulers.
    #[command(after_help = "\
Examples:
  anabranch ctl cell --watch
  anabranch ctl cell set --scheduler eqp_exact")]
    Cell {
        #[command(flatten)]
        watch: watch::Watch,
        #[command(subcommand)]
        action: Option<crate::gnb::ctl::CellAction>,
    },
    /// Show the slices of a gNB: shares, throughput, waiting times; set shares.
    #[command(after_help = "\
Examples:
  anabranch ctl slices --watch
  anabranch ctl slices set voice=25 default=75")]
    Slices {
        #[command(flatten)]
        watch: watch::Watch,
        #[command(subcommand)]
        action: Option<crate::gnb::ctl::SliceAction>,
    },
    /// Show the UEs of a gNB: channel, buffers, drops; set slice, channel or queue.
    #[command(after_help = "\
Examples:
  anabranch ctl ues --watch
  anabranch ctl ues show phone
  anabranch ctl ues set phone --queue e5g_bdp")]
    Ues {
        #[command(flatten)]
        page: sessions::Page,
        #[command(flatten)]
        watch: watch::Watch,
        #[command(subcommand)]
        action: Option<Box<crate::gnb::ctl::UeAction>>,
    },
    /// Show an LWIP node: steering, DIDA, legs, ACK statistics, flows; set steering and hold time.
    #[command(after_help = "\
Examples:
  anabranch ctl --socket /run/anabranch/lwip.sock lwip --watch
  anabranch ctl lwip flows
  anabranch ctl lwip set --lte-percent 20 --hold-ms 50")]
    Lwip {
        #[command(flatten)]
        watch: watch::Watch,
        #[command(subcommand)]
        action: Option<crate::lwip::ctl::LwipAction>,
    },
    /// Show a transparent proxy: rules, slices, traffic, policy agent, flows with their plans.
    #[command(after_help = "\
Examples:
  anabranch ctl proxy --watch
  anabranch ctl proxy flows")]
    Proxy {
        #[command(flatten)]
        watch: watch::Watch,
        #[command(subcommand)]
        action: Option<crate::proxy::ctl::ProxyAction>,
    },
    /// Show the TCP lane of a UE or UPF: traffic, reasons why flows did not use it, flows with their subflows.
    #[command(after_help = "\
Examples:
  anabranch ctl tcp-lane
  anabranch ctl tcp-lane flows")]
    TcpLane {
        #[command(subcommand)]
        action: Option<crate::tcp_lane::ctl::TcpLaneAction>,
    },
    /// Show a telemetry monitor (`anabranch int monitor --api`): paths hop by hop, flows.
    #[command(after_help = "\
Examples:
  anabranch ctl int --watch
  anabranch ctl int flows --path 1
  anabranch ctl --url http://127.0.0.1:9465 int --json |
    jq '.paths[].hops[].depth_bytes'")]
    Int {
        #[command(flatten)]
        page: sessions::Page,
        #[command(flatten)]
        watch: watch::Watch,
        #[command(subcommand)]
        action: Option<crate::monitor::ctl::IntAction>,
    },
    /// Show a slice manager: accesses and free capacity, slices and their state, UEs.
    #[command(after_help = "\
Examples:
  anabranch ctl slice-manager
  anabranch ctl slice-manager ues
  anabranch ctl --url http://127.0.0.1:8080 slice-manager --json")]
    SliceManager {
        #[command(flatten)]
        page: sessions::Page,
        #[command(subcommand)]
        action: Option<manager::Action>,
    },
    /// Reload the configuration file; sessions stay up.
    #[command(after_help = "\
Example:
  anabranch ctl reload             shows what changed and what needs a restart")]
    Reload,
    /// Show the last 256 events, then follow new ones until interrupted.
    #[command(after_help = "\
Examples:
  anabranch ctl events
  anabranch ctl events --kind path-down --kind path-up
  anabranch ctl events --since 41 --no-follow --json")]
    Events(events::Args),
    /// Print metrics in the Prometheus text format; docs/operations.md describes each.
    #[command(after_help = "\
Examples:
  anabranch ctl metrics
  anabranch ctl metrics dropped               only lines with this text")]
    Metrics {
        /// Only lines that contain this text.
        contains: Option<String>,
    },
}

/// Destination and format of answers.
pub struct Output<'a> {
    to: &'a mut dyn Write,
    pub(crate) json: bool,
    terminal: bool,
}

impl Output<'_> {
    /// Prints the answer, as JSON if requested, otherwise as text.
    pub(crate) fn show(
        &mut self,
        answer: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), CtlError> {
        if self.json {
            let json = serde_json::to_string_pretty(answer).map_err(|e| CtlError::failed("JSON", e))?;
            writeln!(self.to, "{json}")?;
        } else {
            self.to.write_all(text().as_bytes())?;
        }
        Ok(())
    }

    /// One line of JSON.
    pub(crate) fn line(&mut self, answer: &impl Serialize) -> Result<(), CtlError> {
        let json = serde_json::to_string(answer).map_err(|e| CtlError::failed("JSON", e))?;
        writeln!(self.to, "{json}")?;
        self.to.flush().map_err(CtlError::from)
    }
}

/// Runs the query and prints the answer.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let terminal = std::io::stdout().is_terminal();
    let mut to = Pipe(std::io::stdout());
    let mut output = Output { to: &mut to, json: args.json, terminal };
    Ok(runtime.block_on(execute(args, &mut output))?)
}

async fn execute(args: &Args, output: &mut Output<'_>) -> Result<(), CtlError> {
    let mut target = args.target.clone();
    let own = match args.command {
        Command::Proxy { .. } => Some(PROXY_SOCKET),
        Command::Int { .. } => Some(INT_SOCKET),
        Command::SliceManager { .. } => Some(MANAGER_SOCKET),
        _ => None,
    };
    if let (Some(own), None) = (own, &target.url) {
        target.socket.get_or_insert_with(|| own.into());
    }
    let client = Client::new(&target)?;
    match &args.command {
        Command::Status { watch } => status::status(&client, watch, output).await,
        Command::Sessions { page, action } => sessions::run(&client, page, action.as_ref(), output).await,
        Command::Paths { ue, page, watch } => {
            status::paths(&client, ue.as_deref(), page, watch, output).await
        }
        Command::Rules { toml, ue, change } => {
            rules(&client, *toml, ue.as_deref(), change.as_deref(), output).await
        }
        Command::Cell { watch, action } => {
            crate::gnb::ctl::cell(&client, action.as_ref(), watch, output).await
        }
        Command::Slices { watch, action } => {
            crate::gnb::ctl::slices(&client, action.as_ref(), watch, output).await
        }
        Command::Ues { page, watch, action } => {
            crate::gnb::ctl::ues(&client, action.as_deref(), page, watch, output).await
        }
        Command::Lwip { watch, action } => {
            crate::lwip::ctl::lwip(&client, action.as_ref(), watch, output).await
        }
        Command::Proxy { watch, action } => {
            crate::proxy::ctl::proxy(&client, action.as_ref(), watch, output).await
        }
        Command::TcpLane { action } => crate::tcp_lane::ctl::tcp_lane(&client, action.as_ref(), output).await,
        Command::Int { page, watch, action } => {
            crate::monitor::ctl::int(&client, action.as_ref(), page, watch, output).await
        }
        Command::SliceManager { page, action } => manager::run(&client, action.as_ref(), page, output).await,
        Command::Reload => reload(&client, output).await,
        Command::Events(args) => events::run(&client, args, output).await,
        Command::Metrics { contains } => metrics::run(&client, contains.as_deref(), output).await,
    }
}

async fn rules(
    client: &Client,
    toml: bool,
    ue: Option<&str>,
    change: Option<&rules::Change>,
    output: &mut Output<'_>,
) -> Result<(), CtlError> {
    let path = ["v1", "rules"];
    let mut now: Rules = client.get(&path, &[]).await?;
    if let Some(change) = change {
        #[derive(Serialize)]
        struct NewRules {
            rules: Vec<Rule>,
        }
        let new = NewRules { rules: change.apply(now.rules)? };
        now = client.send_json(Method::PUT, &path, &new).await?;
    }
    if toml {
        output.to.write_all(rules::to_toml(&now.rules)?.as_bytes())?;
        return Ok(());
    }
    let session = sessions::of_rules(client, ue).await?;
    if let Some(session) = &session {
        now.uses.clone_from(&session.uses);
    }
    let coded = session.and_then(|session| session.coded);
    output.show(&now, || rules::show(&now, coded.as_ref()))?;
    if change.is_some() && output.terminal && !output.json {
        eprintln!(
            "Until the next reload or restart. To keep it, put the output of anabranch ctl rules --toml into the configuration file."
        );
    }
    Ok(())
}

async fn reload(client: &Client, output: &mut Output<'_>) -> Result<(), CtlError> {
    let done: Reloaded = client.post(&["v1", "reload"]).await?;
    output.show(&done, || {
        let names = |list: &[String]| if list.is_empty() { "nothing".into() } else { list.join(", ") };
        table::list(&[("changed", names(&done.changed)), ("needs restart", names(&done.needs_restart))])
    })
}

/// Standard output. A reader that exits early (`| head`) is not a failure.
struct Pipe(std::io::Stdout);

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes).inspect_err(leave_if_gone)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush().inspect_err(leave_if_gone)
    }
}

fn leave_if_gone(error: &std::io::Error) {
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
}

#[cfg(test)]
pub mod tests;
