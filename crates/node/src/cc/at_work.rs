//! Loads controllers, keeps them registered until the process ends, and lists what is registered.

use super::ReportArgs;
use crate::runtime::config::read_private_key;
use anabranch_cc::Algorithm;
use anabranch_cc::int::IntConfig;
use anabranch_kern::bpf::{
    self, BpfError, Controllers, Feedback, FeedbackConfig, ReportKey, Source, SourceConfig,
};
use anyhow::{Context, Result, bail};
use aws_lc_rs::digest::{SHA256, digest};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

/// The signals that end a command: SIGINT (Ctrl-C), SIGTERM and SIGHUP. They are blocked from here on, so
/// that none is lost before it is read.
pub fn ends() -> Result<SigSet> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    signals.thread_block().context("blocking signals")?;
    Ok(signals)
}

fn ready(what: &str) {
    println!("{what}");
}

/// The key that authenticates reports: the first half of the SHA-256 hash of the key file's contents.
fn report_key(path: &Path) -> Result<ReportKey> {
    let key = read_private_key(path)?;
    let digest = digest(&SHA256, key.to_base64().as_bytes());
    let (first, _) = digest.as_ref().split_first_chunk().context("SHA-256 has 32 bytes")?;
    Ok(ReportKey::new(*first))
}

fn feedback_config(args: &ReportArgs) -> Result<FeedbackConfig> {
    let key = args.report_key.as_deref().map(report_key).transpose()?;
    Ok(FeedbackConfig { key, known_routers: args.known_routers })
}

/// `anabranch cc load`.
pub fn load(
    names: &[Algorithm],
    cgroup: Option<&Path>,
    reports: &ReportArgs,
    config: &IntConfig,
) -> Result<()> {
    let ends = ends()?;
    let reports = feedback_config(reports)?;
    let before = holders_before(names)?;
    let controllers = Controllers::load(names, config)?;
    let feedback = cgroup.map(|group| controllers.feedback(group, &reports)).transpose()?;
    // After registration of the new programs, so that open sockets receive reports without interruption.
    for pid in before {
        let pid_t = i32::try_from(pid).context("a process id")?;
        // The process may have ended by itself since; then there is nothing to do.
        let _ = kill(Pid::from_raw(pid_t), Signal::SIGTERM);
        wait_for_end(pid)?;
        ready(&format!("replaced the controllers registered by process {pid}"));
    }
    let names: Vec<&str> = names.iter().map(|a| a.name()).collect();
    ready(&format!("registered: {}", names.join(" ")));
    match cgroup.zip(feedback) {
        Some((group, feedback)) => {
            keep_reports(&ends, group, feedback, || controllers.feedback(group, &reports))
        }
        None => ends.wait().map(drop).context("waiting for signals"),
    }
}

/// The processes that keep any of `names` registered at present. Fails if one of them is not anabranch, or
/// keeps a further controller.
fn holders_before(names: &[Algorithm]) -> Result<BTreeSet<u32>> {
    let registered = bpf::registered()?;
    let mut pids = BTreeSet::new();
    for name in registered.iter().filter(|r| names.iter().any(|n| n.name() == **r)) {
        for pid in bpf::holders(name).context("looking for the processes that keep it registered")? {
            ours(name, pid)?;
            pids.insert(pid);
        }
    }
    for other in registered.iter().filter(|r| !names.iter().any(|n| n.name() == **r)) {
        if let Some(pid) = bpf::holders(other)
            .context("looking for the processes that keep it registered")?
            .iter()
            .find(|p| pids.contains(*p))
        {
            bail!("process {pid}, which this command replaces, also keeps {other}: name that one, too");
        }
    }
    Ok(pids)
}

/// Fails unless process `pid` is an anabranch process.
fn ours(name: &str, pid: u32) -> Result<()> {
    let program = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    if program.trim() != "anabranch" {
        bail!("{name} is kept by process {pid}, which is {}, not anabranch: end it yourself", program.trim());
    }
    Ok(())
}

/// Waits until the process has ended and its programs are gone, at most 5 s.
fn wait_for_end(pid: u32) -> Result<()> {
    for _ in 0..100 {
        let gone = bpf::LOADABLE.iter().all(|a| !bpf::holders(a.name()).unwrap_or_default().contains(&pid));
        if gone {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!(
        "process {pid} has not ended within 5 s of SIGTERM: nothing is lost, this process registers its controllers as well"
    )
}

/// `anabranch int source`.
pub fn source(interface: &str, config: SourceConfig) -> Result<()> {
    let ends = SignalFd::with_flags(&ends()?, SfdFlags::SFD_CLOEXEC).context("signals")?;
    let mut source = Source::attach(interface, config)?;
    let working = || ready(&format!("traces in one of {} segments on {interface}", config.every));
    working();
    let mut reported = None;
    while !ended(&ends, LOOK)? {
        if !source.is_gone() {
            continue;
        }
        // The interface of a tunnel is created anew when its program restarts; then the program must be
        // attached again.
        match Source::attach(interface, config) {
            Ok(anew) => {
                (source, reported) = (anew, None);
                working();
            }
            Err(error) => {
                let why = Some(error.to_string());
                if reported != why {
                    tracing::warn!("no traces: {error}; trying again every second");
                    reported = why;
                }
            }
        }
    }
    Ok(())
}

/// Interval of the checks whether the interface or cgroup is still the same.
const LOOK: Duration = Duration::from_secs(1);

/// Waits at most `within` for a signal that ends the command; true if there was one.
fn ended(ends: &SignalFd, within: Duration) -> Result<bool> {
    let mut polled = [PollFd::new(ends.as_fd(), PollFlags::POLLIN)];
    match ppoll(&mut polled, Some(TimeSpec::from(within)), None) {
        Ok(ready) => Ok(ready > 0),
        Err(nix::errno::Errno::EINTR) => Ok(false),
        Err(error) => Err(error).context("waiting for signals"),
    }
}

/// `anabranch int sink`.
pub fn sink(cgroup: &Path, reports: &ReportArgs) -> Result<()> {
    let ends = ends()?;
    let config = feedback_config(reports)?;
    let attach = || Feedback::receiver(cgroup, &config);
    let feedback = attach()?;
    ready(&format!("reports for the sockets of {}", cgroup.display()));
    keep_reports(&ends, cgroup, feedback, attach)
}

/// Keeps the feedback program attached to the cgroup with this path until a signal ends the command. A service manager
/// creates a service's cgroup anew with each start; then the program must be attached again.
fn keep_reports(
    ends: &SigSet,
    cgroup: &Path,
    mut feedback: Feedback,
    attach: impl Fn() -> Result<Feedback, BpfError>,
) -> Result<()> {
    let ends = SignalFd::with_flags(ends, SfdFlags::SFD_CLOEXEC).context("signals")?;
    let mut reported = None;
    while !ended(&ends, LOOK)? {
        if !feedback.is_gone() {
            continue;
        }
        if reported.is_none() {
            tracing::warn!("the cgroup {} has been removed: no reports for its sockets", cgroup.display());
        }
        match attach() {
            Ok(anew) => {
                (feedback, reported) = (anew, None);
                tracing::info!("the cgroup {} was created again: reports for its sockets", cgroup.display());
            }
            Err(error) => {
                let why = Some(error.to_string());
                if reported != why {
                    tracing::warn!("no reports: {error}; trying again every second");
                    reported = why;
                }
            }
        }
    }
    Ok(())
}

/// `anabranch cc unload`.
pub fn unload(names: &[Algorithm]) -> Result<()> {
    let registered = bpf::registered()?;
    let wanted: Vec<&str> =
        if names.is_empty() { registered.clone() } else { names.iter().map(|a| a.name()).collect() };
    let mut ended = BTreeSet::new();
    for name in &wanted {
        if !registered.contains(name) {
            bail!("{name} is not registered");
        }
        let holders = bpf::holders(name).context("looking for the processes that keep it registered")?;
        if holders.is_empty() {
            bail!("no visible process keeps {name} registered: is it pinned in /sys/fs/bpf?");
        }
        for pid in holders {
            ours(name, pid)?;
            if ended.insert(pid) {
                kill(Pid::from_raw(pid as i32), Signal::SIGTERM).with_context(|| format!("process {pid}"))?;
            }
        }
    }
    // The names disappear when the last of the processes has ended.
    for _ in 0..100 {
        let left = bpf::registered()?;
        if !wanted.iter().any(|name| left.contains(name)) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!("still registered 5 s after SIGTERM: {}", bpf::registered()?.join(" "))
}

/// `anabranch cc list`.
pub fn list() -> Result<()> {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING).set_header(["name", "kind", "kept by"]);
    let available = bpf::available().context("the kernel's controllers")?;
    let ours = bpf::LOADABLE.map(Algorithm::name);
    for name in &available {
        let (kind, by) = if ours.contains(&name.as_str()) {
            let pids = bpf::holders(name).unwrap_or_default();
            ("anabranch", pids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "))
        } else {
            ("kernel", String::new())
        };
        table.add_row([name.as_str(), kind, &by]);
    }
    for name in ours {
        if !available.iter().any(|n| n == name) {
            table.add_row([name, "not loaded", ""]);
        }
    }
    println!("{table}");
    Ok(())
}
