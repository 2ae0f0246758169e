//! Nothing stays behind, however it ends: the demo to its end, by Ctrl-C, by `kill -9` of either process; as root
//! and as an ordinary user. There are no leftovers to detect, because the kernel removes everything with the
//! sandbox; so what is shown after each end is that nothing is left and that the next start works.

// These tests run in real time.
#![allow(clippy::disallowed_methods)]

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// "nobody" everywhere.
const NOBODY: u32 = 65534;
/// A tenth of the demo: loss of Wi-Fi after one second, back after another.
const SHORT: [&str; 6] = [
    "--set",
    "flow.download.bytes=16000000",
    "--set",
    "event.wifi-lost.at_s=1",
    "--set",
    "event.wifi-back.at_s=2",
];
const PROJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

#[test]
fn as_root_nothing_stays_behind() {
    if Uid::effective().is_root() {
        every_end(User::Own);
    } else {
        skip("as root: this user is not root");
    }
}

#[test]
fn as_an_ordinary_user_nothing_stays_behind() {
    every_end(if Uid::effective().is_root() { User::Nobody } else { User::Own });
}

#[test]
fn an_ordinary_user_runs_scenarios_too() {
    let user = if Uid::effective().is_root() { User::Nobody } else { User::Own };
    let Some(machine) = Machine::new(user) else { return };
    let scenario = format!("{PROJECT}/scenarios/demo.toml");
    let mut args = vec!["run", &scenario, "--backend", "netns", "--json"];
    args.extend(SHORT);
    let (code, out, errors) = machine.start(&args).end(Duration::from_secs(60));
    assert_eq!(code, 0, "{out}{errors}");
    let value: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(value["backend"], "netns");
    assert!(value["claims"].as_array().unwrap().iter().all(|claim| claim["holds"] == true), "{out}");
    machine.nothing_is_left("run to its end");
}

#[test]
fn what_does_not_hold_is_measured_again() {
    let Some(machine) = Machine::new(User::Own) else { return };
    let scenario = format!("{PROJECT}/scenarios/demo.toml");
    let mut args = vec!["run", &scenario, "--backend", "netns", "--confirm", "2"];
    args.extend(SHORT);
    let impossible = ["--set", "claim.outage.max=0"];
    args.extend(impossible);
    let (code, out, errors) = machine.start(&args).end(Duration::from_secs(120));
    assert_eq!(code, 1, "{out}{errors}");
    assert!(errors.contains("measuring 2 times more"), "{errors}");
    assert!(errors.contains("the medians of these do not hold either"), "{errors}");
    assert!(out.contains("2 seeds"), "the second table is of both: {out}");
    machine.nothing_is_left("a claim that does not hold");
}

fn every_end(user: User) {
    let Some(machine) = Machine::new(user) else { return };

    let run = machine.demo();
    run.in_the_middle();
    run.signal(run.outer(), Signal::SIGINT);
    let (code, _, errors) = run.end(Duration::from_secs(15));
    assert_eq!(code, 130, "{errors}");
    assert!(errors.contains("interrupted; everything is taken down"), "{errors}");
    machine.nothing_is_left("Ctrl-C");

    let run = machine.demo();
    run.in_the_middle();
    run.signal(run.outer(), Signal::SIGKILL);
    run.end(Duration::from_secs(15));
    machine.nothing_is_left("kill -9");

    let run = machine.demo();
    run.in_the_middle();
    run.signal(run.inner(), Signal::SIGKILL);
    let (code, ..) = run.end(Duration::from_secs(15));
    assert_eq!(code, 137);
    machine.nothing_is_left("kill -9 of the inner process");

    let (code, out, errors) = machine.demo().end(Duration::from_secs(60));
    assert_eq!(code, 0, "{out}{errors}");
    let said: serde_json::Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert_eq!(said["checksum_ok"], true, "{out}");
    // With the header of HTTP.
    assert!((16_000_000..16_001_000).contains(&said["bytes"].as_u64().unwrap()), "{out}");
    assert_eq!(said["moved_to"], "5g");
    for path in said["paths"].as_array().unwrap() {
        assert!(path["bytes"].as_u64().unwrap() > 800_000, "{out}");
    }
    let how = match user {
        User::Own if Uid::effective().is_root() => "as root",
        _ => "as an ordinary user, in a user namespace",
    };
    assert!(errors.contains(how), "{errors}");
    machine.nothing_is_left("its end");
}

/// Says why something is not tested.
fn skip(why: &str) {
    // Not through the harness, which keeps what passes to itself.
    let line = format!("skipped: crates/lab/tests/sandbox.rs {why}\n");
    let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
}

#[derive(Debug, Clone, Copy)]
enum User {
    Own,
    Nobody,
}

/// This machine before anything ran, and where what runs may write.
struct Machine {
    user: User,
    lab: PathBuf,
    folder: tempfile::TempDir,
    mark: String,
    before: BTreeSet<String>,
    /// One at a time: they would measure each other.
    _turn: MutexGuard<'static, ()>,
}

impl Machine {
    fn new(user: User) -> Option<Self> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let lab = PathBuf::from(env!("CARGO_BIN_EXE_anabranch-lab"));
        let anabranch = lab.with_file_name("anabranch");
        if !anabranch.is_file() {
            assert!(std::env::var_os("CI").is_none(), "CI builds the workspace");
            skip(&format!("needs {} (cargo build -p anabranch-node)", anabranch.display()));
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let mark = format!("ANABRANCH_TEST={}", folder.path().display());
        let mut machine = Self { user, lab, folder, mark, before: BTreeSet::new(), _turn: turn };
        fs::create_dir(machine.temp()).unwrap();
        if let User::Nobody = user {
            for path in [machine.folder.path(), &machine.temp()] {
                chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
            machine.make_reachable(&anabranch);
        }
        // A namespace of its own is all that is needed; why not, is its own message.
        let mut tried = machine.command(Path::new("unshare"));
        if !Uid::effective().is_root() || matches!(user, User::Nobody) {
            tried.args(["--user", "--map-root-user"]);
        }
        let tried = tried.args(["--net", "--pid", "--mount", "--fork", "true"]).output().unwrap();
        if !tried.status.success() {
            let why = String::from_utf8_lossy(&tried.stderr).trim().to_owned();
            skip(&format!("({user:?}): this machine allows no namespaces to that user ({why})"));
            return None;
        }
        machine.before = picture();
        Some(machine)
    }

    /// Programs in a home folder are closed to others: a copy is not.
    fn make_reachable(&mut self, anabranch: &Path) {
        let reached = self.command(Path::new("test")).arg("-x").arg(&self.lab).status().unwrap();
        if reached.success() {
            return;
        }
        let bin = self.folder.path().join("bin");
        fs::create_dir(&bin).unwrap();
        for program in [&self.lab, anabranch] {
            let copy = bin.join(program.file_name().unwrap());
            fs::copy(program, &copy).unwrap();
            fs::set_permissions(copy, fs::Permissions::from_mode(0o755)).unwrap();
        }
        self.lab = bin.join("anabranch-lab");
    }

    fn temp(&self) -> PathBuf {
        self.folder.path().join("tmp")
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = match self.user {
            User::Own => Command::new(program),
            User::Nobody => {
                let (uid, gid) = (format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"));
                let mut command = Command::new("setpriv");
                command.args([&uid, &gid, "--clear-groups", "--"]).arg(program);
                command
            }
        };
        let (name, value) = self.mark.split_once('=').unwrap();
        command.env(name, value).env("TMPDIR", self.temp()).current_dir(self.folder.path());
        command
    }

    fn start(&self, args: &[&str]) -> Run<'_> {
        let mut command = self.command(&self.lab);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Run { machine: self, child: command.spawn().unwrap() }
    }

    fn demo(&self) -> Run<'_> {
        let mut args = vec!["demo", "--json", "--out", "report"];
        args.extend(SHORT);
        self.start(&args)
    }

    /// Processes that descend from what was started, and their names.
    fn processes(&self) -> Vec<(i32, String)> {
        let numbers =
            fs::read_dir("/proc").unwrap().filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
        let ours = |pid: &i32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|b| *b == 0).any(|entry| entry == self.mark.as_bytes())
        };
        let name =
            |pid| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned();
        numbers.filter(ours).map(|pid| (pid, name(pid))).collect()
    }

    #[track_caller]
    fn nothing_is_left(&self, after: &str) {
        // The last process of a namespace dies a moment after the one that was waited for.
        let start = Instant::now();
        while !self.processes().is_empty() {
            assert!(start.elapsed() < Duration::from_secs(5), "after {after}: {:?}", self.processes());
            std::thread::sleep(Duration::from_millis(10));
        }
        let new: Vec<String> = picture().difference(&self.before).cloned().collect();
        assert!(new.is_empty(), "after {after}: {new:#?}");
        let files: Vec<PathBuf> = fs::read_dir(self.temp()).unwrap().map(|e| e.unwrap().path()).collect();
        assert!(files.is_empty(), "after {after}: {files:?}");
    }
}

/// What can be seen of a sandbox from outside: devices, namespaces with a name, mounts, rules, files.
fn picture() -> BTreeSet<String> {
    let list = |folder: &str| {
        let entries = fs::read_dir(folder).into_iter().flatten();
        entries.map(|e| e.unwrap().path().display().to_string()).collect::<Vec<_>>()
    };
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    // The number of a mount, its parent and place.
    let mounts = mounts.lines().map(|line| line.split(' ').take(5).collect::<Vec<_>>().join(" "));
    let rules = Command::new("ip").args(["rule"]).output().unwrap();
    let rules = String::from_utf8_lossy(&rules.stdout).into_owned();
    let rules: Vec<String> = rules.lines().map(|line| format!("rule {line}")).collect();
    let lists = ["/sys/class/net", "/run/netns", "/run/anabranch"].into_iter().flat_map(list);
    lists.chain(mounts).chain(rules).collect()
}

/// A running anabranch-lab.
struct Run<'a> {
    machine: &'a Machine,
    child: Child,
}

impl Run<'_> {
    fn outer(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Process 1 of the sandbox, seen from here.
    fn inner(&self) -> i32 {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.outer())).unwrap();
        children.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Waits until the download runs, with everything that belongs to it.
    #[track_caller]
    fn in_the_middle(&self) {
        let start = Instant::now();
        loop {
            let running = self.machine.processes();
            let runs = |name: &str| running.iter().any(|(_, running)| running == name);
            if runs("curl") && runs("nginx") && runs("anabranch") {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "no download after 30 s: {running:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        // Something must be there to stay behind, or its absence afterwards shows nothing.
        let own = fs::metadata("/proc/self/ns/net").unwrap().ino();
        let foreign = |(pid, _): &(i32, String)| {
            fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|ns| ns.ino() != own)
        };
        assert!(self.machine.processes().iter().filter(|p| foreign(p)).count() >= 4);
        std::thread::sleep(Duration::from_millis(300));
    }

    fn signal(&self, pid: i32, signal: Signal) {
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    /// Exit code (128 + n by signal n), standard output and standard error.
    #[track_caller]
    fn end(mut self, within: Duration) -> (i32, String, String) {
        use std::os::unix::process::ExitStatusExt;
        // Read beside, so that no pipe fills up.
        fn read(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
            std::thread::spawn(move || {
                let mut text = String::new();
                let _ = from.read_to_string(&mut text);
                text
            })
        }
        let (out, errors) =
            (read(self.child.stdout.take().unwrap()), read(self.child.stderr.take().unwrap()));
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if start.elapsed() > within {
                drop(self);
                panic!("still runs after {within:?}: {}{}", out.join().unwrap(), errors.join().unwrap());
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap());
        (code, out.join().unwrap(), errors.join().unwrap())
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
