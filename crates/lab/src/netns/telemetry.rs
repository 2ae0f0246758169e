//! In-band telemetry with the real programs: `anabranch cc load` or `int sink`, and `anabranch int source`.
//!
//! Controllers are global to the machine: the kernel has one list of names for all namespaces. Labs therefore take turns, and
//! nothing outlives their programs, which hold what they load by file descriptors and end with the sandbox.

use super::group::{self, Group};
use super::lock;
use super::plan::Plan;
use super::program::{self, Interrupted, Program, logged};
use super::space::Space;
use super::stop::Stop;
use super::topology::{Network, READY};
use crate::backend::{Progress, Unable};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Namespace of the loader, without a network.
const SPACE: &str = "int-loader";
/// Names of all congestion controls of the kernel.
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
/// Routers without telemetry on a path: the UPF of a scenario, which has no queue that drops.
const KNOWN_ROUTERS: u8 = 1;
/// Maximum time to wait for the turn.
const TURN: Duration = Duration::from_secs(300);
/// Interval at which the turn is checked.
const LOOK: Duration = Duration::from_millis(100);
/// Remedy for controllers that no lab has registered.
const REMEDY: &str = "end it (anabranch cc list, anabranch cc unload)";
/// Output of `anabranch cc load` when the controllers are registered.
pub const LOADER_READY: &str = "registered:";
/// Output of `anabranch int source` when it is attached.
pub const SOURCE_READY: &str = "traces in one of";
/// Messages that mean that the machine or the build lacks support; needed are a kernel since 6.6 with BTF and a build with `bpf`.
const CANNOT: [&str; 2] = ["cannot run here", "built without the kernel programs"];

/// Running parts of telemetry. The fields are dropped in this order.
#[derive(Debug, Default)]
pub struct Telemetry {
    sources: Vec<Program>,
    loader: Option<Program>,
    group: Option<Group>,
    _turn: Option<File>,
}

impl Telemetry {
    /// Registers the controllers, before any route refers to them.
    ///
    /// # Errors
    /// [`Unable`] if the machine or the user does not allow it.
    pub fn load(
        plan: &Plan,
        rootless: bool,
        folder: &Path,
        stop: &Stop,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let of = &plan.telemetry;
        if of.controllers.is_empty() && of.flows.is_empty() {
            return Ok(Self::default());
        }
        if rootless {
            bail!(Unable("in-band telemetry loads kernel programs: run it as root".into()));
        }
        let group = if of.flows.is_empty() {
            None
        } else {
            Some(Group::create().map_err(|e| Unable(format!("in-band telemetry: {e:#}")))?)
        };
        let space = Space::create(SPACE)?;
        let names: Vec<String> = of.controllers.iter().map(ToString::to_string).collect();
        let turn = (!names.is_empty()).then(|| turn(&names, stop, progress)).transpose()?;
        let loader = start(&space, plan, &names, group.as_ref(), folder, stop)?;
        space.remove();
        Ok(Self { sources: Vec::new(), loader: Some(loader), group, _turn: turn })
    }

    /// Starts the sources, once the interfaces exist.
    ///
    /// # Errors
    /// A source does not start.
    pub fn start_sources(
        &mut self,
        plan: &Plan,
        network: &Network,
        folder: &Path,
        stop: &Stop,
    ) -> Result<()> {
        let anabranch = program::anabranch()?;
        for (number, ((space, interface), of)) in plan.telemetry.sources.iter().enumerate() {
            let mut command = Command::new(&anabranch);
            // Links create new packets from those that pass.
            command.args(["int", "source", "--beyond-headroom", "--interface", interface]);
            command.args(["--every", &of.every.to_string(), "--nodes", &of.nodes.to_string()]);
            let (name, space) = (format!("int-source-{number}"), network.space(space)?);
            let ready = (SOURCE_READY, READY);
            self.sources.push(Program::start_saying(space, &name, &mut command, ready, folder, stop)?);
        }
        Ok(())
    }

    /// The group of flow `name`, if its sockets send and receive reports.
    #[must_use]
    pub fn group_of(&self, plan: &Plan, name: &str) -> Option<&Group> {
        self.group.as_ref().filter(|_| plan.telemetry.flows.contains(name))
    }

    /// Checks that all programs are running.
    ///
    /// # Errors
    /// The program that ended, with the end of its log.
    pub fn check(&mut self) -> Result<()> {
        for program in self.sources.iter_mut().chain(&mut self.loader) {
            if let Some(status) = program.ended()? {
                bail!("{} ended ({status}): {}", program.name(), program.log_tail());
            }
        }
        Ok(())
    }

    /// Writes the counters of the kernel programs to the logs.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn keep_counters(&self, folder: &Path) -> Result<()> {
        if self.loader.is_none() {
            return Ok(());
        }
        let output = Command::new(program::anabranch()?).args(["cc", "show"]).output().context("cc show")?;
        std::fs::write(folder.join("int-counters.log"), output.stdout).context("int-counters.log")
    }
}

/// Waits until this lab may register `names`: no other lab has controllers, for the lifetime of the result, and none of these names
/// is registered.
///
/// # Errors
/// [`Unable`] on timeout.
pub fn turn(names: &[String], stop: &Stop, progress: &dyn Progress) -> Result<File> {
    let deadline = Instant::now() + TURN;
    let lock = wait_for(&group::mounted()?, deadline, stop, progress)?;
    while let Some(taken) = taken(names)? {
        wait(&format!("{taken} is registered by another process"), REMEDY, deadline, stop, progress)?;
    }
    Ok(lock)
}

/// Locks the directory at `path`, which sandboxes share.
fn wait_for(path: &Path, deadline: Instant, stop: &Stop, progress: &dyn Progress) -> Result<File> {
    loop {
        if let Some(lock) = lock::directory(path).with_context(|| path.display().to_string())? {
            return Ok(lock);
        }
        let why = "another lab has registered controllers";
        wait(why, "wait until it has ended", deadline, stop, progress)?;
    }
}

/// Sleeps for a while, unless the time has passed.
fn wait(why: &str, remedy: &str, deadline: Instant, stop: &Stop, progress: &dyn Progress) -> Result<()> {
    if Instant::now() > deadline {
        bail!(Unable(format!("{why}: {remedy}")));
    }
    progress.doing(&format!("waiting: {why}"));
    if stop.sleep(LOOK) {
        bail!(Interrupted);
    }
    Ok(())
}

/// A name of `names` that is registered on this machine.
fn taken(names: &[String]) -> Result<Option<&String>> {
    let all = std::fs::read_to_string(AVAILABLE).context(AVAILABLE)?;
    Ok(names.iter().find(|name| all.split_whitespace().any(|n| n == **name)))
}

/// Starts the loader.
fn start(
    space: &Space,
    plan: &Plan,
    names: &[String],
    group: Option<&Group>,
    folder: &Path,
    stop: &Stop,
) -> Result<Program> {
    let mut command = Command::new(program::anabranch()?);
    let ready = if names.is_empty() { "reports for" } else { LOADER_READY };
    if names.is_empty() {
        command.args(["int", "sink"]);
    } else {
        command.args(["cc", "load"]).args(names);
        if let Some(bounds) = &plan.telemetry.bounds {
            let ceiling_bps = (bounds.ceiling_mbps * 1e6).round() as u64;
            for (flag, value) in [
                ("--ceiling-bps", ceiling_bps),
                ("--increment", bounds.increment.into()),
                ("--growth-cap", bounds.growth_cap.into()),
                ("--stale-rtts", bounds.stale_rtts.into()),
            ] {
                command.args([flag, &value.to_string()]);
            }
        }
    }
    if let Some(group) = group {
        command.arg("--cgroup").arg(group.path());
        command.args(["--known-routers", &KNOWN_ROUTERS.to_string()]);
    }
    let mut loader = Program::start(space, "int-loader", &mut command, folder, None)?;
    let log = loader.log().to_owned();
    match loader.wait_ready(READY, stop, || logged(&log, ready)) {
        Ok(()) => Ok(loader),
        Err(_) if CANNOT.iter().any(|words| logged(&log, words)) => bail!(Unable(loader.log_tail())),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Quiet;

    #[test]
    fn only_one_lab_registers_controllers_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let stop = Stop::default();
        let locked = |deadline| wait_for(folder.path(), deadline, &stop, &Quiet);
        let later = Instant::now() + Duration::from_secs(300);
        let first = locked(later).unwrap();
        let refused = locked(Instant::now()).unwrap_err();
        assert!(refused.is::<Unable>() && refused.to_string().contains("another lab"), "{refused:#}");
        std::thread::scope(|scope| {
            let second = scope.spawn(|| locked(later).map(drop));
            drop(first);
            second.join().unwrap().unwrap();
            let third = locked(later).unwrap();
            let waiting = scope.spawn(|| locked(later).map(drop));
            stop.request();
            assert!(waiting.join().unwrap().unwrap_err().is::<Interrupted>());
            drop(third);
        });
    }
}
