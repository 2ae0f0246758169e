//! The slice manager with real databases: killed at any moment, alone on SQLite and with other instances on
//! PostgreSQL.

// These tests run in real time.
#![allow(clippy::disallowed_methods)]

mod contract;
mod faults;
mod needs;
#[path = "../run/net.rs"]
#[allow(dead_code, reason = "shared with the tests of the programs")]
mod net;
mod postgres;
#[path = "../run/shim.rs"]
#[allow(dead_code, reason = "shared with the tests of the programs")]
mod shim;
mod usci;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running slice manager; killed when dropped.
pub struct Manager {
    child: Child,
    http: reqwest::Client,
}

impl Manager {
    /// Starts a slice manager and waits until it answers. `name` is unique in the directory.
    pub async fn start(folder: &Path, name: &str, database: &str) -> Self {
        Self::start_with(folder, name, database, "downlink_bps = 100_000_000\nuplink_bps = 100_000_000\n")
            .await
    }

    /// The same, with another cell.
    pub async fn start_with(folder: &Path, name: &str, database: &str, cell: &str) -> Self {
        let socket = folder.join(format!("{name}.sock"));
        let config = folder.join(format!("{name}.toml"));
        let text = format!(
            "[manager]\nname = \"{name}\"\ndatabase = \"{database}\"\nhealth_interval_ms = 100\nttl_s = 10\n\
             [api]\nlisten = \"unix:{}\"\n\
             [[access]]\nname = \"cell\"\n{cell}",
            socket.display()
        );
        std::fs::write(&config, text).unwrap();
        let mut log = std::fs::OpenOptions::new();
        let log = log.create(true).append(true).open(folder.join(format!("{name}.log"))).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_anabranch"));
        command.arg("slice-manager").arg("--config").arg(&config).stderr(log).stdout(Stdio::null());
        let child = command.spawn().unwrap();
        let http = reqwest::Client::builder().no_proxy().unix_socket(socket).build().unwrap();
        let manager = Self { child, http };
        let end = Instant::now() + Duration::from_secs(60);
        while manager.call("GET", "/v1/accesses", None).await.is_none() {
            let log = || std::fs::read_to_string(folder.join(format!("{name}.log"))).unwrap_or_default();
            assert!(Instant::now() < end, "{name} does not answer: {}", log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        manager
    }

    /// Status and answer; `None` if it does not answer.
    pub async fn call(&self, method: &str, path: &str, body: Option<Value>) -> Option<(u16, Value)> {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let mut request =
            self.http.request(method, format!("http://x{path}")).timeout(Duration::from_secs(20));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await.ok()?;
        let status = answer.status().as_u16();
        let text = answer.text().await.ok()?;
        Some((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    /// The slices of the manager.
    pub async fn slices(&self) -> Vec<Value> {
        let (_, list) = self.call("GET", "/v1/slices?limit=1000", None).await.expect("it answers");
        list["slices"].as_array().unwrap().clone()
    }

    /// Waits until no change is in progress; returns the slices.
    pub async fn settled(&self) -> Vec<Value> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let slices = self.slices().await;
            if slices.iter().all(|s| s["state"] == "Running") {
                return slices;
            }
            assert!(Instant::now() < end, "not settled: {slices:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL).unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A request for a slice with this rate, kbit/s.
pub fn slice(name: &str, kbps: u64) -> Option<Value> {
    Some(json!({"name": name, "serviceProfile": {"sst": 1, "dLThptPerSlice": {"guaThpt": kbps}}}))
}

/// Checks that the slices' guarantees are within the cell's capacity, and agree with the accesses' figures.
async fn consistent(manager: &Manager, slices: &[Value]) {
    let sum: u64 = slices.iter().map(|s| s["guarantees"]["cell"]["downlink_bps"].as_u64().unwrap_or(0)).sum();
    let (_, v) = manager.call("GET", "/v1/accesses", None).await.unwrap();
    let cell = &v["accesses"][0];
    assert!(sum <= 100_000_000, "{sum}");
    assert_eq!(cell["downlink_free_bps"].as_u64().unwrap(), 100_000_000 - sum, "{cell}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_survives_kills_at_any_moment() {
    let folder = tempfile::tempdir().unwrap();
    let database = format!("sqlite:{}/slices.db", folder.path().display());
    killed(folder.path(), &database, 12).await;
}

/// Kills a slice manager repeatedly, and checks its state after each restart.
pub async fn killed(folder: &Path, database: &str, rounds: u64) {
    // Answered changes: slices created and not removed, and slices removed.
    let (mut made, mut going) = (BTreeSet::<String>::new(), BTreeSet::<String>::new());
    for round in 0..rounds {
        let mut manager = Manager::start(folder, "one", database).await;
        let settled = manager.settled().await;
        consistent(&manager, &settled).await;
        let there: BTreeSet<String> = settled.iter().map(|s| s["id"].as_str().unwrap().to_owned()).collect();
        assert!(made.is_subset(&there), "round {round}: lost {:?}", made.difference(&there));
        // Slices whose creation was not answered may exist, too.
        made = there.difference(&going).cloned().collect();
        assert!(going.is_disjoint(&there), "round {round}: {:?} came back", going.intersection(&there));
        going.clear();
        // Consecutive requests, and a kill at a time that varies from round to round.
        let pid = Pid::from_raw(manager.child.id() as i32);
        let killer = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(5 + round * 17)).await;
            kill(pid, Signal::SIGKILL).unwrap();
        });
        for i in 0.. {
            let answer = match (i % 4, made.first().cloned()) {
                (3, Some(id)) => {
                    // Removal was requested, whether it is answered or not.
                    let answer = manager.call("DELETE", &format!("/v1/slices/{id}"), None).await;
                    made.remove(&id);
                    if matches!(answer, Some((202, _))) {
                        going.insert(id);
                    } else if answer.is_some() {
                        made.insert(id);
                    }
                    answer
                }
                (2, Some(id)) => manager.call("PUT", &format!("/v1/slices/{id}"), slice("s", 3000 + i)).await,
                _ => {
                    let answer = manager.call("POST", "/v1/slices", slice("s", 2000 + 100 * i)).await;
                    if let Some((201, v)) = &answer {
                        made.insert(v["id"].as_str().unwrap().to_owned());
                    }
                    answer
                }
            };
            let Some((status, problem)) = answer else { break };
            assert!([201, 202, 404, 409].contains(&status), "{status} {problem}");
        }
        killer.await.unwrap();
        manager.kill_late();
    }
}

impl Manager {
    /// Records that another process has killed it.
    fn kill_late(&mut self) {
        self.child.wait().unwrap();
    }
}
