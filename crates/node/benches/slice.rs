//! Signalling of the slice manager: unchanged polls, and one change that reaches 10,000 UEs. Real HTTP over
//! loopback, in a network namespace if permitted; clients and program share the machine.
//!
//! `./x bench slice`; `SLICE_BENCH_UES=1000` for fewer UEs. Fails if a requirement of `docs/slice-manager.md`
//! is not met.

// Benchmarks run in real time.
#![allow(clippy::disallowed_methods)]

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const ADDRESS: &str = "127.0.0.1:8080";
const OPERATOR: &str = "benchmark-operator-token";
const POLLERS: usize = 32;
const POLL_TIME: Duration = Duration::from_secs(5);
/// Polling interval of a UE by default, seconds.
const POLL_EVERY_S: usize = 5;
const IDLE: Duration = Duration::from_secs(30);
/// Requirements: unchanged polls per second, bytes per poll, and time until 99 % of the UEs have received a
/// change.
const LEAST_POLLS: f64 = 5000.0;
const MOST_BYTES: usize = 200;
const MOST_WAIT: Duration = Duration::from_secs(1);

struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() -> Result<()> {
    let ues = std::env::var("SLICE_BENCH_UES").ok().and_then(|n| n.parse().ok()).unwrap_or(10_000_usize);
    if nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).is_ok() {
        ensure!(
            Command::new("ip").args(["link", "set", "lo", "up"]).status()?.success(),
            "ip link set lo up"
        );
    }
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    ensure!(most as usize > ues + 1000, "{most} descriptors are too few: raise them with `ulimit -Hn`");
    let folder = tempfile::tempdir()?;
    let at = folder.path().display();
    std::fs::write(folder.path().join("token"), OPERATOR)?;
    let config = folder.path().join("slice-manager.toml");
    let text = format!(
        "[manager]\ndatabase = \"sqlite:{at}/slices.db\"\n[api]\nlisten = \"{ADDRESS}\"\ntoken_file = \"{at}/token\"\n\
         [limits]\nue_requests_per_s = 1000000\nue_burst = 1000000\nstreams = 100000\n\
         [[access]]\nname = \"cell\"\ndownlink_bps = 1_000_000_000\nuplink_bps = 1_000_000_000\n"
    );
    std::fs::write(&config, text)?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_anabranch"));
    let program = command.args(["--log", "warn", "slice-manager", "--config"]).arg(&config).spawn()?;
    let _program = Program(program);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(ues))
}

async fn run(ues: usize) -> Result<()> {
    let http = reqwest::Client::builder().no_proxy().build()?;
    let end = Instant::now() + Duration::from_secs(30);
    while http.get(format!("http://{ADDRESS}/")).send().await.is_err() {
        ensure!(Instant::now() < end, "the slice manager does not answer");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let ask = async |method: &str, path: String, body: Value| -> Result<Value> {
        let request = http.request(method.parse()?, format!("http://{ADDRESS}{path}")).bearer_auth(OPERATOR);
        let answer = request.json(&body).send().await?.error_for_status()?;
        let text = answer.text().await?;
        Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
    };
    let nest = json!({"base_slice_descriptor": {"base_slice_des_id": "gold", "delay_tolerance": false,
        "network_DL_throughput": {"guaranteed": 100_000}, "qos": [{"qi": 82, "packet_delay_budget": 0.012}]}});
    let made =
        http.post(format!("http://{ADDRESS}/api/slice")).bearer_auth(OPERATOR).json(&nest).send().await?;
    let slice = made.error_for_status()?.text().await?;
    let started = Instant::now();
    let mut tokens: Vec<String> = Vec::with_capacity(ues);
    for i in 0..ues {
        let ue = ask("PUT", format!("/v1/ues/ue{i}"), json!({"slices": [slice]})).await?;
        tokens.push(ue["token"].as_str().context("a token")?.to_owned());
    }
    println!("added {ues} UEs in {:.1} s", started.elapsed().as_secs_f64());
    // Memberships are established, and the slice is running.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let idle = tokio::spawn(idle_stream(tokens[0].clone()));
    let unchanged = polls(&tokens).await?;
    let whole = exchange(&request(&format!("/api/policy/neat/{slice}"), &tokens[0], "")).await?;
    let view = exchange(&request("/v1/me", &tokens[0], "")).await?;
    println!(
        "bytes of one poll, request and answer: {whole} of the whole document as Katana's, {view} of the UE's view, {unchanged} unchanged"
    );
    let per_minute = 60 / POLL_EVERY_S;
    let (whole, unchanged, stream) = (whole * per_minute, unchanged * per_minute, idle.await??);
    println!(
        "bytes per UE per minute, without changes: {whole} by polls of the whole document every {POLL_EVERY_S} s, {unchanged} by \
         polls with ETag, {stream:.0} by a stream"
    );
    ensure!(stream < unchanged as f64 / 10.0 && unchanged < whole / 2, "the shorter are to be much shorter");
    change(&tokens, async || {
        let mut change = nest.clone();
        change["base_slice_descriptor"]["network_DL_throughput"]["guaranteed"] = json!(200_000);
        let path = format!("/api/slice/{slice}/modify");
        ask("POST", path, change).await.map(drop)
    })
    .await
}

fn request(path: &str, token: &str, etag: &str) -> String {
    let seen = if etag.is_empty() { String::new() } else { format!("if-none-match: {etag}\r\n") };
    format!("GET {path} HTTP/1.1\r\nhost: {ADDRESS}\r\nauthorization: Bearer {token}\r\n{seen}\r\n")
}

/// Bytes of a request and its answer.
async fn exchange(request: &str) -> Result<usize> {
    let mut stream = TcpStream::connect(ADDRESS).await?;
    stream.write_all(request.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    ensure!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    // For a persistent connection.
    let close = |bytes: &[u8]| if bytes.windows(17).any(|w| w == b"connection: close") { 19 } else { 0 };
    Ok(request.len() + answer.len() - close(&answer))
}

/// Bytes per minute of an idle stream, after its first event.
async fn idle_stream(token: String) -> Result<f64> {
    let mut stream = TcpStream::connect(ADDRESS).await?;
    stream.write_all(request("/v1/me/stream", &token, "").as_bytes()).await?;
    let (mut buffer, mut first) = (vec![0; 65_536], String::new());
    while !first.contains("\ndata: ") || !first.ends_with("\n\n\r\n") {
        let n = stream.read(&mut buffer).await?;
        ensure!(n > 0, "no event");
        first.push_str(&String::from_utf8_lossy(&buffer[..n]));
    }
    let mut bytes = 0;
    let end = tokio::time::sleep(IDLE);
    tokio::pin!(end);
    loop {
        tokio::select! {
            () = &mut end => return Ok(bytes as f64 * 60.0 / IDLE.as_secs_f64()),
            n = stream.read(&mut buffer) => bytes += n?,
        }
    }
}

/// Unchanged polls over persistent connections; returns the bytes of one.
async fn polls(tokens: &[String]) -> Result<usize> {
    let mut tasks = tokio::task::JoinSet::new();
    let until = Instant::now() + POLL_TIME;
    for token in tokens.iter().take(POLLERS) {
        let token = token.clone();
        tasks.spawn(async move {
            let mut stream = TcpStream::connect(ADDRESS).await?;
            stream.set_nodelay(true)?;
            let mut buffer = vec![0; 65_536];
            stream.write_all(request("/v1/me", &token, "").as_bytes()).await?;
            let n = stream.read(&mut buffer).await?;
            let first = String::from_utf8_lossy(&buffer[..n]).into_owned();
            let etag = first.lines().find_map(|l| l.strip_prefix("etag: ")).context(first.clone())?;
            let poll = request("/v1/me", &token, etag);
            let (mut count, mut bytes) = (0_u64, 0);
            while Instant::now() < until {
                stream.write_all(poll.as_bytes()).await?;
                let n = stream.read(&mut buffer).await?;
                ensure!(
                    buffer[..n].starts_with(b"HTTP/1.1 304") && buffer[..n].ends_with(b"\r\n\r\n"),
                    "not 304"
                );
                count += 1;
                bytes = poll.len() + n;
            }
            Ok((count, bytes))
        });
    }
    let (mut count, mut bytes) = (0, 0);
    while let Some(result) = tasks.join_next().await {
        let (n, b) = result??;
        count += n;
        bytes = b;
    }
    let rate = count as f64 / POLL_TIME.as_secs_f64();
    println!("unchanged polls: {rate:.0}/s, {bytes} bytes each");
    ensure!(
        rate >= LEAST_POLLS && bytes <= MOST_BYTES,
        "at least {LEAST_POLLS}/s, of at most {MOST_BYTES} bytes"
    );
    Ok(bytes)
}

/// Executes a change, and records when each stream has delivered it.
async fn change(tokens: &[String], change: impl AsyncFn() -> Result<()>) -> Result<()> {
    let ready = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for token in tokens {
        let (request, told) = (request("/v1/me/stream", token, ""), ready.clone());
        tasks.spawn(async move {
            let mut stream = TcpStream::connect(ADDRESS).await?;
            stream.write_all(request.as_bytes()).await?;
            let (mut text, mut buffer, mut counted, mut bytes) = (String::new(), [0; 4096], false, 0);
            loop {
                let n = stream.read(&mut buffer).await?;
                ensure!(n > 0, "the stream ended: {text}");
                text.push_str(&String::from_utf8_lossy(&buffer[..n]));
                bytes += n;
                if !counted && text.contains("\"dl_guaranteed_bps\":100000000") {
                    counted = true;
                    bytes = 0;
                    told.fetch_add(1, Ordering::Relaxed);
                }
                if text.contains("\"dl_guaranteed_bps\":200000000") {
                    return Ok((Instant::now(), bytes));
                }
            }
        });
        // The listener's backlog is short.
        while tasks.len() > ready.load(Ordering::Relaxed) + 256 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            if let Some(ended) = tasks.try_join_next() {
                ended??;
            }
        }
    }
    while ready.load(Ordering::Relaxed) < tokens.len() {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if let Some(ended) = tasks.try_join_next() {
            ended??;
        }
    }
    let asked = Instant::now();
    change().await?;
    let (mut waits, mut bytes) = (Vec::new(), 0);
    while let Some(result) = tasks.join_next().await {
        let (at, b) = result??;
        waits.push(at.duration_since(asked));
        bytes = b;
    }
    waits.sort();
    let at = |percent: usize| waits[(waits.len() * percent / 100).min(waits.len() - 1)].as_secs_f64() * 1e3;
    println!(
        "a change at {} streams, from the request on: p50 {:.0} ms, p99 {:.0} ms, last {:.0} ms; {bytes} bytes each",
        waits.len(),
        at(50),
        at(99),
        at(100)
    );
    ensure!(at(99) <= MOST_WAIT.as_secs_f64() * 1e3, "p99 at most {MOST_WAIT:?}");
    Ok(())
}
