//! A named network namespace, and operations in it.

use anyhow::{Context, Result, bail};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Directory of names used by `ip netns`; private to the sandbox.
const NAMES: &str = "/run/netns";

/// A network namespace of the sandbox. It exists until the sandbox ends, or until [`Space::remove`] and the end of its last process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Space {
    name: String,
}

impl Space {
    /// Creates an empty namespace, known to `ip netns` as `name`.
    ///
    /// # Errors
    /// The system refuses, or the name is in use.
    pub fn create(name: &str) -> Result<Self> {
        let space = Self { name: name.to_owned() };
        let path = space.path();
        File::create_new(&path).with_context(|| format!("namespace {name}"))?;
        let made = on_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET).context("unshare")?;
            let own = Some("/proc/thread-self/ns/net");
            mount(own, &path, None::<&str>, MsFlags::MS_BIND, None::<&str>).context("bind mount")
        });
        if let Err(error) = made {
            // Do not leave a name without a namespace.
            let _ = std::fs::remove_file(&path);
            return Err(error.context(format!("namespace {name}")));
        }
        Ok(space)
    }

    /// Name of the network namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Removes the name; the namespace ends with its last process.
    pub fn remove(self) {
        let path = self.path();
        // If this fails, it is removed with the sandbox.
        let _ = nix::mount::umount2(&path, nix::mount::MntFlags::MNT_DETACH);
        let _ = std::fs::remove_file(&path);
    }

    /// Runs `body` inside, on a separate thread.
    ///
    /// # Errors
    /// Those of `body`, and of entering.
    pub fn enter<T: Send>(&self, body: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let file = File::open(self.path()).with_context(|| format!("namespace {}", self.name))?;
        on_thread(move || {
            setns(&file, CloneFlags::CLONE_NEWNET).context("setns")?;
            body()
        })
        .with_context(|| format!("in namespace {}", self.name))
    }

    /// Starts a program inside.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(&self, command: &mut Command) -> Result<Child> {
        self.enter(|| {
            let name = command.get_program().to_string_lossy().into_owned();
            command.spawn().with_context(|| format!("{name} cannot be started"))
        })
    }

    /// Sets kernel parameters, `net/...` as under /proc/sys.
    ///
    /// # Errors
    /// The first value that is refused.
    pub fn sysctl(&self, values: &[(&str, &str)]) -> Result<()> {
        self.enter(|| {
            for (key, value) in values {
                std::fs::write(format!("/proc/sys/{key}"), value)
                    .with_context(|| format!("sysctl {key} = {value}"))?;
            }
            Ok(())
        })
    }

    /// Runs the lines through `ip -batch`; those that begin with `-6` come last.
    ///
    /// # Errors
    /// The line that failed, with the error of `ip`.
    pub fn ip(&self, lines: &str) -> Result<()> {
        let (of_6, others): (Vec<&str>, Vec<&str>) =
            lines.lines().filter(|l| !l.trim().is_empty()).partition(|l| l.starts_with("-6 "));
        self.ip_batch(&[], &others)?;
        self.ip_batch(&["-6"], &of_6.iter().map(|l| l.trim_start_matches("-6 ")).collect::<Vec<_>>())
    }

    fn ip_batch(&self, flags: &[&str], lines: &[&str]) -> Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let mut command = super::program::command("ip");
        command.args(flags).args(["-batch", "-"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = self.spawn(&mut command)?;
        if let Some(mut stdin) = child.stdin.take() {
            // If `ip` stops reading, its exit status shows the reason.
            let _ = writeln!(stdin, "{}", lines.join("\n"));
        }
        let output = child.wait_with_output().context("ip")?;
        if output.status.success() {
            return Ok(());
        }
        let says = String::from_utf8_lossy(&output.stderr);
        let number = says.rsplit("Command failed -:").next().and_then(|n| n.trim().parse::<usize>().ok());
        let line = number.and_then(|n| lines.get(n.saturating_sub(1))).copied().unwrap_or_default();
        bail!("in namespace {}: ip {}: {}", self.name, line.trim(), says.lines().next().unwrap_or("failed"))
    }

    /// Runs a program to completion and returns its standard output.
    ///
    /// # Errors
    /// It cannot be started or fails; with its standard error.
    pub fn output(&self, command: &mut Command) -> Result<String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = self.spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))?;
        let output = child.wait_with_output().with_context(|| name.clone())?;
        if !output.status.success() {
            let says = String::from_utf8_lossy(&output.stderr);
            bail!("in namespace {}: {name}: {}: {}", self.name, output.status, says.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(NAMES).join(&self.name)
    }
}

/// Runs `body` on another thread, since namespaces are per thread and this one must not change.
fn on_thread<T: Send>(body: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| match scope.spawn(body).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
