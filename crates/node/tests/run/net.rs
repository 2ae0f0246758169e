//! Network namespaces, and the real binary inside them.
//!
//! ```text
//!        ue                          upf                     server
//!   5g0  10.1.0.2 ──────────── 10.1.0.1  5g0
//!   wifi0 10.2.0.2 ─────────── 10.2.0.1  wifi0
//!         fd02::2               fd02::1
//!                                  n6 192.0.2.1 ──────────── 192.0.2.2 n6
//!                                     2001:db8:6::1           2001:db8:6::2
//! ```
//!
//! A namespace is represented by a thread inside it. It and its interfaces disappear with the thread and the
//! processes started in it.

use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::cell::RefCell;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace.
pub struct Namespace {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    tid: i32,
}

impl Namespace {
    /// A new one with loopback up; `None` where that is not permitted.
    pub fn new() -> Option<Self> {
        let (jobs, take) = mpsc::channel::<Job>();
        let (made, is_made) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let result = unshare(CloneFlags::CLONE_NEWNET).map(|()| nix::unistd::gettid().as_raw());
            let ok = result.is_ok();
            made.send(result).unwrap();
            while ok && let Ok(job) = take.recv() {
                job();
            }
        });
        match is_made.recv().unwrap() {
            Ok(tid) => {
                let namespace = Self { jobs: Some(jobs), thread: Some(thread), tid };
                namespace.sh("ip link set lo up");
                Some(namespace)
            }
            Err(error) => {
                assert!(
                    std::env::var_os("CI").is_none(),
                    "CI must be able to make a network namespace: {error}"
                );
                // Written directly, because the test harness captures output of passing tests.
                let _ =
                    writeln!(std::io::stderr(), "skipped: needs root to make a network namespace ({error})");
                None
            }
        }
    }

    /// Path of the namespace.
    pub fn path(&self) -> String {
        format!("/proc/{}/task/{}/ns/net", std::process::id(), self.tid)
    }

    /// Runs `body` inside.
    pub fn run<T: Send + 'static>(&self, body: impl FnOnce() -> T + Send + 'static) -> T {
        let (answer, answered) = mpsc::channel();
        let job = Box::new(move || drop(answer.send(body())));
        self.jobs.as_ref().unwrap().send(job).unwrap();
        answered.recv().expect("the job panicked")
    }

    /// Creates a veth pair between this namespace and another one, with both ends up.
    pub fn veth(&self, name: &str, other: &Self, other_name: &str) {
        let (tid, ns) = (other.tid, other.path());
        // By path, because `ip link set netns` accepts only process ids otherwise, and the namespace belongs
        // to a thread.
        self.sh(&format!(
            "ip link add {name} type veth peer name x{tid} && ip link set x{tid} netns {tid}
             nsenter --net={ns} ip link set x{tid} name {other_name}
             ip link set {name} up; nsenter --net={ns} ip link set {other_name} up"
        ));
    }

    /// Runs shell commands inside; returns standard output and whether they succeeded.
    pub fn try_sh(&self, commands: &str) -> (String, bool) {
        let commands = commands.to_owned();
        self.run(move || {
            let output = Command::new("sh").args(["-ec", &commands]).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr);
            (text, output.status.success())
        })
    }

    /// Runs shell commands inside, which must succeed; returns standard output.
    #[track_caller]
    pub fn sh(&self, commands: &str) -> String {
        let (text, ok) = self.try_sh(commands);
        assert!(ok, "{commands}\n{text}");
        text
    }

    /// Starts a program inside.
    pub fn spawn(&self, program: &str, args: &[&str], log: &Path) -> Program {
        let mut command = Command::new(program);
        let file = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        command.args(args).stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        let name = format!("{program} {}", args.join(" "));
        Program { child: self.run(move || command.spawn().unwrap()), name, log: log.to_owned() }
    }

    /// The complete state that an anabranch program may have changed.
    pub fn picture(&self) -> String {
        self.sh(
            "ip -o link | sed 's/ state .*//; s/<.*>//'; ip -o addr | awk '{print $2,$3,$4}'; ip rule; ip -6 rule
             ip -o route show table all; ip -o -6 route show table all | grep -v 'expires' | awk '{print $1,$2,$3}'
             nft list ruleset; cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding
             cat /proc/sys/net/ipv4/conf/*/rp_filter",
        )
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A running program; killed when dropped.
pub struct Program {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Program {
    /// Its output so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Whether it is still running.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end; returns the exit code.
    #[track_caller]
    pub fn wait(&mut self, within: Duration) -> i32 {
        let start = Instant::now();
        while start.elapsed() < within {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{} still runs after {within:?}\n{}", self.name, self.log());
    }

    /// Waits for the end of a killed program: the kernel waits for other processors before it removes an interface, more than
    /// 15 s on a busy machine.
    #[track_caller]
    pub fn wait_killed(&mut self) {
        self.wait(Duration::from_secs(60));
    }

    /// Sends SIGTERM and checks that it ends without an error.
    #[track_caller]
    pub fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        let code = self.wait(Duration::from_secs(10));
        assert_eq!(code, 0, "{}\n{}", self.name, self.log());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The three namespaces, keys and files.
pub struct World {
    pub ue: Namespace,
    pub upf: Namespace,
    pub server: Namespace,
    folder: tempfile::TempDir,
    upf_key: String,
    ue_key: String,
    /// Environment of programs started from now on, in the form of env(1).
    pub environment: RefCell<Vec<String>>,
}

pub const ANABRANCH: &str = env!("CARGO_BIN_EXE_anabranch");

/// The differences between worlds.
#[derive(Debug, Clone)]
pub struct Options<'a> {
    pub device: &'static str,
    pub security_5g: &'static str,
    pub workers: u32,
    pub fast_path: bool,
    /// Appended to ue.toml.
    pub ue_rules: &'a str,
    /// Appended to upf.toml.
    pub upf_more: &'a str,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            device: "tun",
            security_5g: "secure",
            workers: 1,
            fast_path: false,
            ue_rules: "",
            upf_more: "",
        }
    }
}

/// Writes a new private key to `file`; returns the public key.
pub fn generate_key(file: &Path) -> String {
    let made = Command::new(ANABRANCH).args(["keygen", "--out"]).arg(file).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8(made.stdout).unwrap().trim().to_owned()
}

impl World {
    /// `None` where namespaces are not permitted.
    pub fn new() -> Option<Self> {
        let (ue, upf, server) = (Namespace::new()?, Namespace::new()?, Namespace::new()?);
        for ns in [&ue, &upf, &server] {
            ns.sh("sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.all.accept_dad=0");
        }
        ue.veth("5g0", &upf, "5g0");
        ue.veth("wifi0", &upf, "wifi0");
        upf.veth("n6", &server, "n6");
        ue.sh("ip addr add 10.1.0.2/24 dev 5g0; ip addr add 10.2.0.2/24 dev wifi0; ip addr add fd02::2/64 dev wifi0");
        upf.sh("ip addr add 10.1.0.1/24 dev 5g0; ip addr add 10.2.0.1/24 dev wifi0; ip addr add fd02::1/64 dev wifi0
                ip addr add 192.0.2.1/24 dev n6; ip addr add 2001:db8:6::1/64 dev n6");
        server.sh("ip addr add 192.0.2.2/24 dev n6; ip addr add 2001:db8:6::2/64 dev n6");
        let folder = tempfile::tempdir().unwrap();
        let [upf_key, ue_key] = ["upf.key", "ue.key"].map(|name| generate_key(&folder.path().join(name)));
        Some(Self { ue, upf, server, folder, upf_key, ue_key, environment: RefCell::default() })
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The UPF's public key, parsed from its text form.
    pub fn upf_key<T: std::str::FromStr<Err: std::fmt::Debug>>(&self) -> T {
        self.upf_key.parse().unwrap()
    }

    /// Writes both configurations.
    pub fn configure(&self, options: &Options<'_>) {
        let folder = self.folder.path().display();
        let Options { device, security_5g, workers, fast_path, ue_rules, upf_more } = options;
        let ue = format!(
            "[ue]\nname = \"phone\"\nprivate_key_file = \"{folder}/ue.key\"\n[upf]\npublic_key = \"{}\"\n\
             [[access]]\nname = \"5g\"\ninterface = \"5g0\"\nremote = \"10.1.0.1:4500\"\nsecurity = \"{security_5g}\"\n\
             [[access]]\nname = \"wifi\"\ninterface = \"wifi0\"\nremote = \"[fd02::1]:4501\"\n\
             [device]\nkind = \"{device}\"\nfast_path = {fast_path}\nroutes = [\"0.0.0.0/0\", \"::/0\"]\n\
             [api]\nlisten = \"unix:{folder}/ue.sock\"\n{ue_rules}",
            self.upf_key
        );
        let upf = format!(
            "[upf]\nprivate_key_file = \"{folder}/upf.key\"\nworkers = {workers}\nstate_file = \"{folder}/state.json\"\n\
             [[access]]\nname = \"5g\"\nlisten = \"0.0.0.0:4500\"\nsecurity = \"{security_5g}\"\n\
             [[access]]\nname = \"wifi\"\nlisten = \"[::]:4501\"\n\
             [device]\nkind = \"{device}\"\nfast_path = {fast_path}\n[pool]\nv4 = \"10.45.0.0/24\"\nv6 = \"fd45::/64\"\n\
             [[ue]]\nname = \"phone\"\npublic_key = \"{}\"\n[api]\nlisten = \"unix:{folder}/upf.sock\"\n{upf_more}",
            self.ue_key
        );
        std::fs::write(self.file("ue.toml"), ue).unwrap();
        std::fs::write(self.file("upf.toml"), upf).unwrap();
    }

    /// Starts a program with its configuration file, without waiting.
    pub fn spawn(&self, part: &str) -> Program {
        let ns = if part == "ue" { &self.ue } else { &self.upf };
        let config = self.file(&format!("{part}.toml")).display().to_string();
        let environment = self.environment.borrow();
        let mut args: Vec<&str> = environment.iter().map(String::as_str).collect();
        args.extend([ANABRANCH, part, "--config", &config]);
        ns.spawn("env", &args, &self.file(&format!("{part}.log")))
    }

    pub fn start_upf(&self) -> Program {
        let program = self.spawn("upf");
        self.until("the UPF listens", || {
            self.file("upf.sock").exists() && program.log().contains("upf runs")
        });
        program
    }

    pub fn start_ue(&self) -> Program {
        let program = self.spawn("ue");
        self.until("the UE is connected", || self.file("ue.sock").exists() && self.paths_up("ue") == 2);
        program
    }

    /// The error message of a program that refuses its configuration.
    pub fn refused(&self, part: &str) -> String {
        let config = self.file(&format!("{part}.toml"));
        let output = Command::new(ANABRANCH).args([part, "--config"]).arg(config).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        text
    }

    /// The answer to a GET at an agent; null if it does not answer.
    pub fn get(&self, part: &str, path: &str) -> serde_json::Value {
        self.call(part, &["-X", "GET"], path)
    }

    /// The answer to a request; `args` are arguments of curl.
    pub fn call(&self, part: &str, args: &[&str], path: &str) -> serde_json::Value {
        let socket = self.file(&format!("{part}.sock"));
        let output = Command::new("curl")
            .args(["-s", "--max-time", "5", "--unix-socket"])
            .arg(socket)
            .args(args)
            .arg(format!("http://localhost{path}"))
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    pub fn paths_up(&self, part: &str) -> usize {
        let paths = self.get(part, "/v1/paths");
        paths["paths"].as_array().map_or(0, |p| p.iter().filter(|p| p["up"] == true).count())
    }

    /// Waits until a condition is met.
    #[track_caller]
    pub fn until(&self, what: &str, mut is: impl FnMut() -> bool) -> Duration {
        let start = Instant::now();
        while !is() {
            if start.elapsed() > Duration::from_secs(15) {
                panic!("not after 15 s: {what}\n{}", self.logs());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        start.elapsed()
    }

    pub fn logs(&self) -> String {
        let read = |name: &str| {
            let mut text = String::new();
            if let Ok(mut file) = std::fs::File::open(self.file(name)) {
                let _ = file.read_to_string(&mut text);
            }
            format!("--- {name}\n{text}\n")
        };
        read("ue.log") + &read("upf.log")
    }
}
