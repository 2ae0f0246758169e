//! The command line: one enum, help with an example for each part, exit codes.

#[cfg(feature = "slice-manager")]
use crate::slice_manager;
use crate::{cc, ctl, gnb, keygen, link, lwip, proxy, runtime, ue, upf};
use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// ATSSS for any Linux machine: one session over 5G and Wi-Fi.
#[derive(Debug, Parser)]
#[command(name = "anabranch", version, propagate_version = true)]
#[command(after_help = "Exit codes: 0 done, 1 failed while running, 2 wrong arguments or configuration;\n\
                  ctl also: 3 agent not reachable, 4 the agent refused.")]
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
    Ue(ue::UeArgs),
    /// The tunnel end at the operator, for many UEs.
    Upf(upf::UpfArgs),
    /// A cell in the path of real packets: slices, schedulers, queues, radio channel.
    Gnb(gnb::GnbArgs),
    /// A node beside the cell: splits TCP over LTE and Wi-Fi, and repairs the order of ACKs (LWIP, DIDA).
    Lwip(lwip::LwipArgs),
    /// A transparent proxy: flows of unmodified programs get slice, path and pacing by policy.
    Proxy(proxy::run::ProxyArgs),
    /// Ask a running UE, UPF, gNB, LWIP node or proxy, and change its rules, sessions or slices.
    Ctl(Box<ctl::Args>),
    /// Slices over REST: templates, admission, lifecycle, and what each UE is told.
    #[cfg(feature = "slice-manager")]
    SliceManager(slice_manager::Args),
    /// Make a key pair.
    Keygen(keygen::Args),
    /// Emulate an access link between two interfaces.
    Link(link::Args),
    /// Congestion controllers by telemetry, in the kernel: load, list, show, unload.
    Cc(cc::CcArgs),
    /// In-band telemetry: traces into packets, reports back to their senders.
    Int(cc::IntArgs),
}

/// Runs the chosen part to its end.
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

/// The exit code for an error: 2 when the user's input is at fault, else 1; `ctl` tells more apart.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if let Some(error) = error.downcast_ref::<ctl::CtlError>() {
        return error.exit_code();
    }
    if runtime::is_config_error(error) { 2 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// clap breaks longer ones where the terminal ends, and a command that is broken cannot be copied.
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

    /// Command lines of a page: in code spans, in code blocks, and in comments of examples.
    fn commands(page: &str) -> impl Iterator<Item = &str> {
        page.lines().flat_map(|line| {
            let spans = line.split('`').skip(1).step_by(2);
            let whole = line.split(": ").map(|part| part.trim_start_matches(['#', ' ']));
            spans.chain(whole).filter(|text| text.starts_with("anabranch ")).map(|text| {
                // Up to where the shell, or a remark, takes over.
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
                // Names of parts, as in "`anabranch ue` and `anabranch ctl`".
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
