//! Several instances on one PostgreSQL server, which the test starts itself.

use super::{Manager, killed, slice};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A PostgreSQL server on a Unix socket only; removed when dropped.
pub struct Postgres {
    folder: tempfile::TempDir,
    server: Child,
}

fn bin(program: &str) -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    versions.filter_map(|v| Some(v.ok()?.path().join("bin").join(program))).find(|path| path.exists())
}

/// A command as an unprivileged user, because PostgreSQL refuses root.
fn unprivileged(program: PathBuf) -> Command {
    if !nix::unistd::Uid::effective().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    let user = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    command.args([format!("--reuid={}", user.uid), format!("--regid={}", user.gid), "--clear-groups".into()]);
    command.arg("--").arg(program);
    command
}

fn checked(output: Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

impl Postgres {
    /// `None` if PostgreSQL is not installed.
    pub async fn start() -> Option<Self> {
        Self::start_in("UTF8").await
    }

    /// The same with this encoding.
    async fn start_in(encoding: &str) -> Option<Self> {
        let (Some(initdb), Some(_)) = (bin("initdb"), bin("postgres")) else {
            assert!(std::env::var_os("CI").is_none(), "CI must have PostgreSQL (package postgresql-15)");
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "skipped: needs PostgreSQL (package postgresql-15)");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        if nix::unistd::Uid::effective().is_root() {
            let user = nix::unistd::User::from_name("nobody").unwrap().unwrap();
            std::os::unix::fs::chown(folder.path(), Some(user.uid.as_raw()), Some(user.gid.as_raw()))
                .unwrap();
        }
        let data = folder.path().join("data");
        let mut command = unprivileged(initdb);
        let args = ["-A", "trust", "-U", "anabranch", "--no-sync", "-E", encoding, "--locale=C", "-D"];
        command.args(args).arg(&data).current_dir(folder.path()).env("TZ", "UTC");
        checked(command.output().unwrap());
        let server = Self::run(folder.path()).await;
        Some(Self { folder, server })
    }

    /// Starts the server and waits until it accepts connections.
    async fn run(folder: &Path) -> Child {
        let mut command = unprivileged(bin("postgres").unwrap());
        command.arg("-D").arg(folder.join("data")).args(["-c", "listen_addresses="]);
        command.args(["-c", "fsync=off", "-c", "shared_buffers=16MB"]);
        command.arg("-c").arg(format!("unix_socket_directories={}", folder.display()));
        let command = command.current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null());
        let server = command.spawn().unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while std::os::unix::net::UnixStream::connect(folder.join(".s.PGSQL.5432")).is_err() {
            assert!(Instant::now() < end, "PostgreSQL does not start");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        server
    }

    /// Ends all of its processes at once.
    pub fn kill(&mut self) {
        // "Immediate shutdown": the server kills its children and leaves recovery to the next start.
        let id = nix::unistd::Pid::from_raw(self.server.id() as i32);
        nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGQUIT).unwrap();
        self.server.wait().unwrap();
    }

    /// Starts the server after [`Postgres::kill`].
    pub async fn restart(&mut self) {
        self.server = Self::run(self.folder.path()).await;
    }

    /// Sends a signal to all of its processes.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        for id in self.processes() {
            nix::sys::signal::kill(id, signal).unwrap();
        }
    }

    /// Its child processes, followed by the server itself.
    fn processes(&self) -> Vec<nix::unistd::Pid> {
        let id = self.server.id();
        // A process that has ended has no children.
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        let children = children.split_whitespace().map(|id| id.parse().unwrap());
        children.chain([id as i32]).map(nix::unistd::Pid::from_raw).collect()
    }

    /// The server's answer to these statements.
    pub fn sql(&self, statements: &[&str]) -> String {
        let output = self.psql(statements).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        checked(output);
        said
    }

    /// Makes each COMMIT wait for a standby that does not exist, until the next start of the server.
    pub async fn commits_wait(&self) {
        self.sql(&["ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()"]);
        // In force once the server has reread its configuration and notified its processes.
        let waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        for trial in 0..1000 {
            let mut psql = self.psql(&[&format!("CREATE TABLE trial_{trial} ()")]).spawn().unwrap();
            while psql.try_wait().unwrap().is_none() {
                if self.sql(&[&format!("SELECT count(*) {waiting}")]).trim() != "0" {
                    self.sql(&[
                        "ALTER SYSTEM RESET synchronous_standby_names",
                        &format!("SELECT pg_cancel_backend(pid) {waiting}"),
                    ]);
                    psql.wait().unwrap();
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        }
        panic!("no COMMIT waits for a standby");
    }

    fn psql(&self, statements: &[&str]) -> Command {
        let mut command = Command::new(bin("psql").unwrap());
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", "anabranch", "postgres", "-h"]);
        command.arg(self.folder.path());
        command.args(statements.iter().flat_map(|statement| ["-c", statement]));
        command
    }

    pub fn url(&self) -> String {
        self.url_of("anabranch")
    }

    /// URL of the database for another user.
    fn url_of(&self, user: &str) -> String {
        let host = self.folder.path().display().to_string().replace('/', "%2F");
        format!("postgres://{user}@{host}/postgres")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        use nix::sys::signal::{Signal, kill};
        let ended = |server: &mut Child| !matches!(server.try_wait(), Ok(None));
        if ended(&mut self.server) {
            return;
        }
        let all = self.processes();
        // Suspended processes (SIGSTOP) would not end.
        for id in all {
            let _ = kill(id, Signal::SIGCONT);
        }
        // Fast shutdown, including its children.
        let _ = kill(nix::unistd::Pid::from_raw(self.server.id() as i32), Signal::SIGINT);
        let end = Instant::now() + Duration::from_secs(10);
        while !ended(&mut self.server) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        if !ended(&mut self.server) {
            for id in self.processes() {
                let _ = kill(id, Signal::SIGKILL);
            }
            let _ = self.server.wait();
        }
    }
}

/// If a test fails while the server is suspended, the test ends and leaves no process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_or_killed_server_ends_with_its_test() {
    for how in ["runs", "stopped", "killed"] {
        let Some(mut postgres) = Postgres::start().await else { return };
        // The kernel's list of children may be incomplete while processes start and end.
        let end = Instant::now() + Duration::from_secs(10);
        let mut all = postgres.processes();
        while all.len() < 2 && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(10)).await;
            all = postgres.processes();
        }
        assert!(all.len() > 1, "{all:?}");
        match how {
            "stopped" => postgres.signal(nix::sys::signal::Signal::SIGSTOP),
            "killed" => postgres.kill(),
            _ => {}
        }
        let (gone, is_gone) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(postgres);
            let _ = gone.send(());
        });
        is_gone.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| panic!("{how}: drop waits"));
        let end = Instant::now() + Duration::from_secs(20);
        while all.iter().any(|id| nix::sys::signal::kill(*id, None).is_ok()) {
            assert!(Instant::now() < end, "{how}: a process is left");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_instances_are_one_slice_manager() {
    let Some(postgres) = Postgres::start().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let url = postgres.url();
    let (a, b) = (Manager::start(folder.path(), "a", &url), Manager::start(folder.path(), "b", &url));
    // Concurrent starts: both create the tables, or find them.
    let (mut a, b) = futures_util::future::join(a, b).await;

    // Changes at one instance are visible at the other; they are propagated without requests.
    let (status, made) = a.call("POST", "/v1/slices", slice("video", 30_000)).await.unwrap();
    assert_eq!(status, 201, "{made}");
    let id = made["id"].as_str().unwrap().to_owned();
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match b.call("GET", &format!("/v1/slices/{id}"), None).await.unwrap() {
            (200, v) if v["state"] == "Running" => break,
            (_, v) => assert!(Instant::now() < end, "{v}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The same token is valid at both.
    let (_, ue) = b.call("PUT", "/v1/ues/phone", Some(json!({"slices": [id]}))).await.unwrap();
    assert!(ue["token"].is_string(), "{ue}");

    // Both get requests beyond the capacity: together they grant no more than one would.
    let all = (0..12).map(|i| {
        let manager = if i % 2 == 0 { &a } else { &b };
        async move { manager.call("POST", "/v1/slices", slice(&format!("s{i}"), 20_000)).await }
    });
    let answers = futures_util::future::join_all(all).await;
    let given = answers.iter().filter(|answer| matches!(answer, Some((201, _)))).count();
    assert_eq!(given, 3, "30 + 3 * 20 of the 95 Mbit/s that RBs are there for: {answers:?}");

    // One is killed during a removal; the other continues.
    let (_, made) = a.call("DELETE", &format!("/v1/slices/{id}"), None).await.unwrap();
    a.kill();
    assert!(made.is_null() || made == json!(""), "{made}");
    // Changes of one instance reach the other shortly after.
    let end = Instant::now() + Duration::from_secs(60);
    while !matches!(b.call("GET", &format!("/v1/slices/{id}"), None).await, Some((404, _))) {
        assert!(Instant::now() < end, "it is not removed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let slices = b.settled().await;
    assert!(slices.len() == 3 && slices.iter().all(|s| s["id"] != id.as_str()), "{slices:?}");
    let (_, ue): (u16, Value) = b.call("GET", "/v1/ues/phone", None).await.unwrap();
    assert_eq!(ue["slices"], json!([]));
    // A restarted instance has the complete state.
    let a = Manager::start(folder.path(), "a", &url).await;
    assert_eq!(a.slices().await.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_on_a_server_survives_kills_at_any_moment() {
    let Some(postgres) = Postgres::start().await else { return };
    let folder = tempfile::tempdir().unwrap();
    killed(folder.path(), &postgres.url(), 8).await;
}

/// A server with unusual settings, and a user who may not create tables that already exist.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusual_server_settings_and_restricted_users_are_supported() {
    let Some(postgres) = Postgres::start().await else { return };
    let folder = tempfile::tempdir().unwrap();
    drop(Manager::start(folder.path(), "first", &postgres.url()).await);
    postgres.sql(&[
        "CREATE ROLE plain LOGIN",
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON anabranch_record, anabranch_meta, anabranch_lease TO plain",
        "ALTER ROLE plain SET default_transaction_isolation = 'serializable'",
    ]);
    let url = postgres.url_of("plain");
    let (a, b) = (Manager::start(folder.path(), "a", &url), Manager::start(folder.path(), "b", &url));
    let (a, b) = futures_util::future::join(a, b).await;
    let writers = (0..8).map(|i| {
        let manager = if i % 2 == 0 { &a } else { &b };
        async move {
            for round in 0..20 {
                let path = format!("/api/base_slice_des/w{i}");
                let body = Some(json!({"base_slice_des_id": format!("w{i}"), "round": round}));
                let answer = manager.call("PUT", &path, body).await;
                assert!(matches!(answer, Some((200 | 201, _))), "{answer:?}");
            }
        }
    });
    futures_util::future::join_all(writers).await;
}

/// A database whose encoding lacks characters is refused at the start, instead of at each change that has
/// one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_with_an_incomplete_encoding_is_refused() {
    let Some(postgres) = Postgres::start_in("LATIN1").await else { return };
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("one.toml");
    let text = format!(
        "[manager]\ndatabase = \"{}\"\n[api]\nlisten = \"unix:{}/one.sock\"\n\
         [[access]]\nname = \"cell\"\ndownlink_bps = 1\nuplink_bps = 1\n",
        postgres.url(),
        folder.path().display()
    );
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new("timeout");
    command.args(["20", env!("CARGO_BIN_EXE_anabranch"), "slice-manager", "--config"]).arg(&config);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("LATIN1") && said.contains("ENCODING 'UTF8'"),
        "{said}"
    );
}
