//! Programs: lookup, running processes with their logs, and termination.

use super::space::Space;
use super::stop::Stop;
use super::topology::READY;
use super::traffic::port_in_use;
use crate::backend::Unable;
use anyhow::{Context, Result, anyhow, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, SysconfVar, sysconf};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Time for a program to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(3);
/// Interval at which a condition is checked.
const LOOK: Duration = Duration::from_millis(5);
/// Length of the log excerpt in an error.
const TAIL_BYTES: u64 = 2000;

/// Path of the `anabranch` program: `ANABRANCH_BIN`, or next to this program.
///
/// # Errors
/// [`Unable`] with the remedy.
pub fn anabranch() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("ANABRANCH_BIN") {
        let path = PathBuf::from(path);
        if !path.is_file() {
            bail!(Unable(format!("ANABRANCH_BIN={}: there is no such file", path.display())));
        }
        return Ok(path);
    }
    let own = std::env::current_exe().context("the path of this program")?;
    // Tests run from target/<profile>/deps.
    let places = [own.parent(), own.parent().and_then(Path::parent)];
    let found = places.into_iter().flatten().map(|p| p.join("anabranch")).find(|p| p.is_file());
    found.ok_or_else(|| {
        anyhow!(Unable(format!(
            "the program anabranch is not beside {}: build it (cargo build -p anabranch-node) or set ANABRANCH_BIN",
            own.display()
        )))
    })
}

/// Creates a file that only its owner may read.
///
/// # Errors
/// The file exists, or cannot be written.
pub fn write_secret(path: &Path, secret: &str) -> Result<()> {
    let opened = File::options().write(true).create_new(true).mode(0o600).open(path);
    opened.and_then(|mut file| writeln!(file, "{secret}")).with_context(|| path.display().to_string())
}

/// Checks that programs are installed; each is given with its Debian package.
///
/// # Errors
/// [`Unable`], with a command to install what is missing.
pub fn require(programs: &[(&str, &str)]) -> Result<()> {
    let missing: Vec<_> = programs.iter().filter(|(name, _)| find(name).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|(name, _)| *name).collect();
    let mut packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    bail!(Unable(format!("missing: {}; install: apt install {}", names.join(", "), packages.join(" "))))
}

/// Whether `log` contains `words`.
#[must_use]
pub fn logged(log: &Path, words: &str) -> bool {
    std::fs::read_to_string(log).is_ok_and(|text| text.contains(words))
}

/// Path of a program, in PATH or the system folders that are missing in an ordinary user's PATH.
#[must_use]
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|dir| dir.join(name)).find(|p| p.is_file())
}

/// The same, or the plain name, so that an error names the program.
#[must_use]
pub fn path_of(name: &str) -> PathBuf {
    find(name).unwrap_or_else(|| name.into())
}

/// A command for an installed program.
pub fn command(name: &str) -> Command {
    Command::new(path_of(name))
}

/// A command with real-time priority for a program that emulates a device with a processor of its own. Requires root; otherwise an
/// ordinary command.
pub fn prompt(program: impl AsRef<OsStr>) -> Command {
    static MAY: OnceLock<bool> = OnceLock::new();
    // In a user namespace, real-time priority is not available.
    let may = MAY.get_or_init(|| {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        nix::unistd::geteuid().is_root()
            && map.split_whitespace().eq(["0", "0", "4294967295"])
            && find("nice").is_some()
    });
    if !may {
        return Command::new(program);
    }
    let mut command = self::command("nice");
    command.args(["-n", "-10"]).arg(program);
    command
}

/// A program running in a namespace, with its output in a log. Killed when dropped.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    log: PathBuf,
    ended: Option<ExitStatus>,
}

impl Program {
    /// Starts `command` in `space`. `name` is unique within the run; the log is `<folder>/<name>.log`. Standard output goes to
    /// `output` if given, else to the log.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(
        space: &Space,
        name: &str,
        command: &mut Command,
        folder: &Path,
        output: Option<&Path>,
    ) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("{}", log.display()))?;
        let out = match output {
            Some(path) => File::create(path).with_context(|| format!("{}", path.display()))?,
            None => file.try_clone().context("log")?,
        };
        let child = space.spawn(command.stdin(Stdio::null()).stdout(out).stderr(file))?;
        Ok(Self { name: name.to_owned(), child, log, ended: None })
    }

    /// Starts a server, and waits until a TCP or else UDP port is in use.
    ///
    /// # Errors
    /// It does not start, or not in time.
    pub fn start_listening(
        space: &Space,
        name: &str,
        command: &mut Command,
        (port, tcp): (u16, bool),
        folder: &Path,
        stop: &Stop,
    ) -> Result<Self> {
        let mut program = Self::start(space, name, command, folder, None)?;
        let listens = || space.enter(|| Ok(port_in_use(port, tcp))).unwrap_or(false);
        program.wait_ready(READY, stop, listens)?;
        Ok(program)
    }

    /// Starts a program, and waits until its log contains the given words.
    ///
    /// # Errors
    /// It does not start, or not in time.
    pub fn start_saying(
        space: &Space,
        name: &str,
        command: &mut Command,
        (words, within): (&str, Duration),
        folder: &Path,
        stop: &Stop,
    ) -> Result<Self> {
        let mut program = Self::start(space, name, command, folder, None)?;
        let log = program.log.clone();
        program.wait_ready(within, stop, || logged(&log, words))?;
        Ok(program)
    }

    /// As [`Program::start`], with a pipe for input and output: [`Program::says`], [`Program::write_line`].
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_told(space: &Space, name: &str, command: &mut Command, folder: &Path) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("{}", log.display()))?;
        let child = space.spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(file))?;
        Ok(Self { name: name.to_owned(), child, log, ended: None })
    }

    /// Whether it has written a line that begins with `word`. Does not block.
    pub fn says(&mut self, word: &str) -> bool {
        let Some(output) = &mut self.child.stdout else { return false };
        let mut fds = [PollFd::new(output.as_fd(), PollFlags::POLLIN)];
        if !poll(&mut fds, PollTimeout::ZERO).is_ok_and(|n| n > 0) {
            return false;
        }
        let mut said = [0; 64];
        output.read(&mut said).is_ok_and(|n| said[..n].starts_with(word.as_bytes()))
    }

    /// Writes a line to its standard input.
    ///
    /// # Errors
    /// It does not read its input; with the end of its log.
    pub fn write_line(&mut self, line: &str) -> Result<()> {
        let told = self.child.stdin.as_mut().map(|input| writeln!(input, "{line}"));
        match told {
            Some(Ok(())) => Ok(()),
            _ => bail!("{} does not listen: {}", self.name, self.log_tail()),
        }
    }

    /// Name in messages and of its log file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id within the sandbox.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its exit status, if it has ended.
    ///
    /// # Errors
    /// The status cannot be read.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().with_context(|| self.name.clone())?;
        }
        Ok(self.ended)
    }

    /// Waits until `ready` holds.
    ///
    /// # Errors
    /// The program ends before, or the time has passed, with the end of its log; or a stop is requested.
    pub fn wait_ready(
        &mut self,
        within: Duration,
        stop: &Stop,
        mut ready: impl FnMut() -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + within;
        while !ready() {
            if let Some(status) = self.ended()? {
                bail!("{} ended before it was ready ({status}): {}", self.name, self.log_tail());
            }
            if Instant::now() > deadline {
                bail!("{} was not ready within {} s: {}", self.name, within.as_secs(), self.log_tail());
            }
            if stop.sleep(LOOK) {
                bail!(Interrupted);
            }
        }
        Ok(())
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// It fails or does not end in time (it is killed then), with the end of its log; or a stop is
    /// requested.
    pub fn wait_success(&mut self, until: Instant, stop: &Stop) -> Result<()> {
        loop {
            match self.ended()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("{} failed ({status}): {}", self.name, self.log_tail()),
                None if Instant::now() > until => {
                    bail!("{} did not end in time: {}", self.name, self.log_tail())
                }
                None => {}
            }
            if stop.sleep(LOOK) {
                bail!(Interrupted);
            }
        }
    }

    /// Sends SIGTERM and waits; kills it if it does not end.
    pub fn stop(&mut self) -> Option<ExitStatus> {
        if let Ok(Some(status)) = self.ended() {
            return Some(status);
        }
        self.signal(Signal::SIGTERM);
        let deadline = Instant::now() + GRACE;
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.ended() {
                return Some(status);
            }
            std::thread::sleep(LOOK);
        }
        tracing::warn!("{} did not end within {} s of SIGTERM and is killed", self.name, GRACE.as_secs());
        self.kill();
        None
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        // It may have ended in the meantime.
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), signal);
    }

    /// Path of its log.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The end of its log, on one line.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let text = tail(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
        let from = lines.len().saturating_sub(5);
        if lines.is_empty() { "its log is empty".to_owned() } else { lines[from..].join(" | ") }
    }

    fn kill(&mut self) {
        // Both fail only if it has ended, as intended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !matches!(self.ended(), Ok(Some(_))) {
            self.kill();
        }
    }
}

/// Resident memory of a process, if it runs.
#[must_use]
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Processor time of a process so far, seconds, including system time.
#[must_use]
pub fn cpu_s(pid: u32) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain any character. After it, the state is field 3, and these are fields 14 and 15.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    let per_second = sysconf(SysconfVar::CLK_TCK).ok()??;
    Some(ticks as f64 / per_second as f64)
}

/// The user asked to stop.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// The first line of the output of `name --version` (or the given flag).
#[must_use]
pub fn version(name: &str, flag: &str) -> Option<String> {
    let output = command(name).arg(flag).stdin(Stdio::null()).output().ok()?;
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    let text = String::from_utf8_lossy(&text);
    Some(text.lines().next()?.trim().to_owned()).filter(|line| !line.is_empty())
}

fn tail(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
