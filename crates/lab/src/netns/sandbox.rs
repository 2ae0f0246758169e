//! The sandbox: nothing inside is visible outside, and nothing remains after it ends.
//!
//! ```text
//!  anabranch-lab (outer)            receives signals, waits, passes on the exit code
//!   │ user namespace (only if not root), PID namespace
//!   └─ anabranch-lab (inner, PID 1) own mount, network, IPC and host-name namespaces,
//!       │                           own /proc, empty tmpfs on /run
//!       ├─ ip netns add ...         names are in that /run
//!       └─ iperf3, nginx, anabranch
//! ```
//!
//! The kernel cleans up. When the inner process ends in any way, every process of its PID namespace is killed. The last references
//! to the mount and network namespaces disappear with them, and so does every device, address, route, qdisc, rule and temporary
//! file. The inner process ends with the outer one, even on `kill -9`, through its parent-death signal and through the end of its
//! standard input. A request to stop uses the same pipe: no signal is handled or blocked inside, so programs started there
//! inherit nothing unusual.

use super::stop::Stop;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, getgid, getpid, getuid};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;

/// Exit code if the sandbox was refused.
pub const EXIT_NO_SANDBOX: u8 = 3;

/// Set in the environment of the inner process.
const MARK: &str = "ANABRANCH_SANDBOX";

/// Folder for files of the inner process; it is removed with the sandbox.
pub const WORK_DIR: &str = "/run/anabranch";

/// Why the sandbox was refused; one line, with the remedy.
#[derive(Debug, thiserror::Error)]
#[error("no sandbox: {what}: {cause}; {remedy}")]
pub struct SandboxError {
    what: String,
    cause: String,
    remedy: &'static str,
}

/// The side of the sandbox on which this process is.
#[derive(Debug)]
pub enum Entered {
    /// Inside; the program continues here.
    Sandbox(Sandbox),
    /// Outside; the inner process has ended with this exit code, which is to be returned.
    Done(u8),
}

/// The inside of the sandbox.
#[derive(Debug, Clone)]
pub struct Sandbox {
    /// Process id of PID 1 of the sandbox as seen from outside.
    pub outer_pid: u32,
    /// Whether the sandbox has a user namespace of its own (the user is not root).
    pub rootless: bool,
    /// Set when the user requests a stop (SIGINT, SIGTERM, SIGHUP).
    pub stop: Arc<Stop>,
}

impl Sandbox {
    /// A command line that enters the network namespace `name` of this sandbox from outside.
    #[must_use]
    pub fn enter_command(&self, name: &str) -> String {
        let user = if self.rootless { "--user --preserve-credentials " } else { "" };
        format!("nsenter --target {} {user}--mount --pid --net ip netns exec {name} bash", self.outer_pid)
    }
}

/// Starts this program again, with the same arguments, inside a new sandbox, and waits for it. In that process, it completes the
/// setup and returns [`Entered::Sandbox`].
///
/// Must be called while the process has only one thread.
///
/// # Errors
/// The system does not allow the namespaces; exit with [`EXIT_NO_SANDBOX`].
pub fn enter() -> Result<Entered, SandboxError> {
    match std::env::var(MARK) {
        Ok(mark) if getpid() == Pid::from_raw(1) => inner(&mark).map(Entered::Sandbox),
        _ => outer().map(Entered::Done),
    }
}

const HOW_TO_ALLOW: &str = "run it as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, \
     user.max_user_namespaces > 0, and on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0)";

fn refused(what: impl Into<String>) -> impl FnOnce(Errno) -> SandboxError {
    let what = what.into();
    move |errno| SandboxError { what, cause: errno.desc().to_lowercase(), remedy: HOW_TO_ALLOW }
}

fn failed(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> SandboxError {
    let what = what.into();
    move |error| SandboxError { what, cause: error.to_string(), remedy: HOW_TO_ALLOW }
}

fn outer() -> Result<u8, SandboxError> {
    let (uid, gid) = (getuid(), getgid());
    // Root without CAP_SYS_ADMIN (in a container) is treated as an ordinary user.
    let rootless = unshare(CloneFlags::CLONE_NEWPID).is_err();
    if rootless {
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWPID)
            .map_err(refused("user and PID namespaces were refused"))?;
        write("/proc/self/setgroups", "deny")?;
        write("/proc/self/uid_map", &format!("0 {uid} 1"))?;
        write("/proc/self/gid_map", &format!("0 {gid} 1"))?;
    }

    let program = std::env::current_exe().map_err(failed("the path of this program is unknown"))?;
    let mut arguments = std::env::args_os();
    let mut command = Command::new(&program);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let mut child = command
        .args(arguments)
        .env(MARK, if rootless { "rootless" } else { "root" })
        .stdin(Stdio::piped())
        // A process group of its own: signals of the terminal reach only the outer process, which forwards them once.
        .process_group(0)
        .spawn()
        .map_err(failed(format!("{} cannot be started again", program.display())))?;
    // Held open to the end: its closing notifies the inner process that this one has ended.
    let Some(mut lifeline) = child.stdin.take() else { unreachable!("its standard input is a pipe") };
    // If the child has already ended, its exit status shows that.
    let _ = writeln!(lifeline, "{}", child.id());

    // Not earlier: a signal before this point ends this process and the inner one, which has done nothing yet.
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGCHLD] {
        signals.add(signal);
    }
    signals.thread_block().map_err(refused("signals cannot be blocked"))?;
    let signals =
        SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC).map_err(refused("signals cannot be read"))?;
    wait(&mut child, &mut lifeline, &signals)
}

/// Forwards the first request to stop; the second one kills. Returns the exit code.
fn wait(child: &mut Child, lifeline: &mut ChildStdin, signals: &SignalFd) -> Result<u8, SandboxError> {
    let mut asked = false;
    loop {
        if let Some(status) = child.try_wait().map_err(failed("the inner process is lost"))? {
            let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
            return Ok(u8::try_from(code).unwrap_or(1));
        }
        match signals.read_signal() {
            Ok(Some(info)) if info.ssi_signo == Signal::SIGCHLD as u32 => {}
            Ok(Some(_)) if !asked => {
                asked = true;
                // If it has ended, the next iteration detects that.
                let _ = lifeline.write_all(b"stop\n");
            }
            Ok(Some(_)) => child.kill().map_err(failed("the inner process is lost"))?,
            Ok(None) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(refused("signals cannot be read")(errno)),
        }
    }
}

fn inner(mark: &str) -> Result<Sandbox, SandboxError> {
    set_pdeathsig(Signal::SIGKILL).map_err(refused("the parent-death signal was refused"))?;
    let mut lifeline = BufReader::new(std::io::stdin());
    let mut line = String::new();
    lifeline.read_line(&mut line).map_err(failed("the outer process does not answer"))?;
    let Ok(outer_pid) = line.trim().parse() else {
        // The outer process died before the parent-death signal was set.
        std::process::exit(i32::from(EXIT_NO_SANDBOX));
    };

    unshare(
        CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWNET
            | CloneFlags::CLONE_NEWIPC
            | CloneFlags::CLONE_NEWUTS,
    )
    .map_err(refused("mount and network namespaces were refused"))?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount_on("/", None, private)?;
    let plain = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount_on("/proc", Some("proc"), plain | MsFlags::MS_NOEXEC)?;
    mount_on("/run", Some("tmpfs"), plain)?;
    // Namespaces created from here have a socket table of their own, small enough to be listed every few milliseconds. Older kernels
    // lack this setting; listing is only slower there.
    let _ = std::fs::write("/proc/sys/net/ipv4/tcp_child_ehash_entries", "1024");
    for dir in ["/run/netns", WORK_DIR] {
        std::fs::create_dir(dir).map_err(failed(format!("{dir} cannot be made")))?;
    }

    let stop = Arc::new(Stop::default());
    let asked = Arc::clone(&stop);
    let thread = std::thread::Builder::new().name("lifeline".to_owned()).spawn(move || {
        while lifeline.read(&mut [0]).is_ok_and(|n| n > 0) {
            asked.request();
        }
        // The outer process has ended, so this one has no purpose.
        std::process::exit(137);
    });
    thread.map_err(failed("a thread cannot be started"))?;
    Ok(Sandbox { outer_pid, rootless: mark == "rootless", stop })
}

fn mount_on(target: &str, kind: Option<&str>, flags: MsFlags) -> Result<(), SandboxError> {
    mount(kind, target, kind, flags, None::<&str>).map_err(refused(format!("mounting {target} was refused")))
}

fn write(path: &str, text: &str) -> Result<(), SandboxError> {
    std::fs::write(Path::new(path), text).map_err(failed(format!("{path} cannot be written")))
}
