//! The command line: one enum, help with an example for each part, exit codes.

#[cfg(feature = "slice-manager")]
use crate::slice_manager;
use crate::{cc, ctl, gnb, keygen, link, lwip, proxy, runtime, ue, upf};
use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// ATSSS for any Linux machine: one session over 5G and Wi-Fi.
#[derive(Debug, Parser)]
#[command(name = "anabranch", version, propagate_version = true)]
#[command(after_help = "Exit codes: 0 success, 1 runtime failure, 2 invalid arguments or configuration;\n\
                  ctl also: 3 agent not reachable, 4 request refused by the agent.")]
pub struct Cli {
    /// Log level, or a tracing filter such as `info,anabranch_engine=debug`.
    #[arg(
        long,
        global = true,
        help_heading = "Global options",
        env = "ANABRANCH_LOG",
        default_value = "info",
        value_name = "FILTER"
    )]
    pub log: String,
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Tunnel endpoint on a device: one session over all its accesses.
    Ue(ue::UeArgs),
    /// Tunnel endpoint at the operator, for many UEs.
    Upf(upf::UpfArgs),
    /// Emulated cell for real packets: slices, schedulers, queues, radio channel.
    Gnb(gnb::GnbArgs),
    /// Node at the radio edge: splits TCP over LTE and Wi-Fi and restores the order of ACKs (LWIP, DIDA).
    Lwip(lwip::LwipArgs),
    /// Transparent proxy: assigns slice, path and pacing to flows of unmodified programs by policy.
    Proxy(proxy::run::ProxyArgs),
    /// Inspect and control a running UE, UPF, gNB, LWIP node, proxy, telemetry monitor or slice manager.
    Ctl(Box<ctl::Args>),
    /// Slice manager with a REST interface: templates, admission, lifecycle, rules for each UE.
    #[cfg(feature = "slice-manager")]
    SliceManager(slice_manager::Args),
    /// Generate a key pair.
    Keygen(keygen::Args),
    /// Emulate an access link between two interfaces.
    Link(link::Args),
    /// Congestion controllers in the kernel that use telemetry: load, unload, list, show, trace.
    Cc(cc::CcArgs),
    /// In-band telemetry: insert traces into packets, return reports to senders, monitor paths.
    Int(cc::IntArgs),
}

/// Runs the subcommand to its end.
pub fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Ue(args) => ue::start(&args),
        Command::Upf(args) => upf::start(&args),
        Command::Gnb(args) => gnb::start(&args),
        Command::Lwip(args) => lwip::start(&args),
        Command::Proxy(args) => proxy::run::start(&args),
        Command::Ctl(args) => ctl::run(&args),
        #[cfg(feature = "slice-manager")]
        Command::SliceManager(args) => slice_manager::run(&args),
        Command::Keygen(args) => keygen::run(&args),
        Command::Link(args) => link::run(args),
        Command::Cc(args) => cc::run_cc(args),
        Command::Int(args) => cc::run_int(args),
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

/// The exit code of an error: 2 when arguments or configuration are invalid, else 1; `ctl` distinguishes
/// further cases.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if let Some(error) = error.downcast_ref::<ctl::CtlError>() {
        return error.exit_code();
    }
    if runtime::is_config_error(error) { 2 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// clap wraps longer lines at the width of the terminal, and a wrapped command cannot be copied.
    #[test]
    fn no_line_of_the_help_is_longer_than_a_terminal_is_wide() {
        fn look(command: &clap::Command, name: &str) {
            for help in [command.get_after_help(), command.get_after_long_help()].into_iter().flatten() {
                for line in help.to_string().lines() {
                    assert!(line.chars().count() <= 80, "{name} --help: {line}");
                }
            }
            for sub in command.get_subcommands() {
                look(sub, &format!("{name} {}", sub.get_name()));
            }
        }
        look(&<Cli as clap::CommandFactory>::command(), "anabranch");
    }

    const PAGES: [(&str, &str); 15] = [
        ("README.md", include_str!("../../../README.md")),
        ("docs/bonding.md", include_str!("../../../docs/bonding.md")),
        ("docs/operations.md", include_str!("../../../docs/operations.md")),
        ("docs/int-cc.md", include_str!("../../../docs/int-cc.md")),
        ("docs/ran.md", include_str!("../../../docs/ran.md")),
        ("docs/lwip-operation.md", include_str!("../../../docs/lwip-operation.md")),
        ("packaging/lwip.example.toml", include_str!("../../../packaging/lwip.example.toml")),
        ("packaging/gnb.example.toml", include_str!("../../../packaging/gnb.example.toml")),
        ("docs/proxy.md", include_str!("../../../docs/proxy.md")),
        ("packaging/proxy.example.toml", include_str!("../../../packaging/proxy.example.toml")),
        ("packaging/README.md", include_str!("../../../packaging/README.md")),
        ("docs/slice-manager.md", include_str!("../../../docs/slice-manager.md")),
        (
            "packaging/slice-manager.example.toml",
            include_str!("../../../packaging/slice-manager.example.toml"),
        ),
        ("packaging/ue.example.toml", include_str!("../../../packaging/ue.example.toml")),
        ("packaging/upf.example.toml", include_str!("../../../packaging/upf.example.toml")),
    ];

    /// The command lines on a page: in code spans, in code blocks, and in comments of examples.
    fn commands(page: &str) -> impl Iterator<Item = &str> {
        page.lines().flat_map(|line| {
            let spans = line.split('`').skip(1).step_by(2);
            let whole = line.split(": ").map(|part| part.trim_start_matches(['#', ' ']));
            spans.chain(whole).filter(|text| text.starts_with("anabranch ")).map(|text| {
                // Up to the first shell operator or trailing remark.
                let end =
                    [" &", "|", ">", "   ", " (", ";", " ──"].iter().filter_map(|stop| text.find(stop)).min();
                text[..end.unwrap_or(text.len())].trim_end_matches([' ', '.'])
            })
        })
    }

    #[test]
    fn every_command_on_the_pages_is_one() {
        let mut seen = 0;
        for (name, page) in PAGES {
            for command in commands(page) {
                let words = crate::testing::words(command);
                // Names of subcommands only, as in "`anabranch ue` and `anabranch ctl`".
                if words.len() == 2 {
                    let parts = <Cli as clap::CommandFactory>::command();
                    assert!(parts.find_subcommand(&words[1]).is_some(), "{name}: {command}");
                } else {
                    let parsed = Cli::try_parse_from(&words);
                    assert!(parsed.is_ok(), "{name}: {command}\n{}", parsed.unwrap_err());
                }
                seen += 1;
            }
        }
        assert!(seen > 40, "{seen}");
    }
}
