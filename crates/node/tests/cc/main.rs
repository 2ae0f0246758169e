//! `anabranch cc`: load, list, show, unload; and the state after a kill.
#![cfg(feature = "bpf")]
// These tests use the real kernel in real time.
#![allow(clippy::disallowed_methods)]

#[path = "../int/registration.rs"]
mod registration;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A process that is killed when the test ends, however it ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn anabranch(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_anabranch")).args(args).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(if output.status.success() { &output.stdout } else { &output.stderr }).into()
}

/// Starts `cc load NAME`; returns its first line, or its error message.
fn load(name: &str) -> Result<Running, String> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_anabranch"))
        .args(["cc", "load", name])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let running = Running(child);
    if line == format!("registered: {name}\n") {
        return Ok(running);
    }
    let mut running = running;
    let mut why = String::new();
    std::io::Read::read_to_string(running.0.stderr.as_mut().unwrap(), &mut why).unwrap();
    Err(why)
}

fn registered(name: &str) -> bool {
    let names = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
    names.split_whitespace().any(|n| n == name)
}

/// The kernel removes what a killed process held with a short delay.
fn gone(name: &str) -> bool {
    let start = Instant::now();
    while registered(name) && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    !registered(name)
}

#[test]
fn a_controllers_life() {
    let _alone = registration::alone();
    let first = match load("int_rate") {
        Ok(running) => running,
        Err(why) if why.contains("kernel programs cannot run here") => {
            let root = nix::unistd::geteuid().is_root();
            assert!(!root || std::env::var_os("CI").is_none(), "CI must be able to: {why}");
            eprintln!("skipped: {why}");
            return;
        }
        Err(why) => panic!("{why}"),
    };
    let list = text(&anabranch(&["cc", "list"]));
    let line = list.lines().find(|l| l.contains("int_rate")).unwrap();
    assert!(line.contains("anabranch") && line.contains(&first.0.id().to_string()), "{list}");
    assert!(list.lines().any(|l| l.contains("int_cubic_l1") && l.contains("not loaded")), "{list}");
    let shown: serde_json::Value =
        serde_json::from_str(&text(&anabranch(&["cc", "show", "--json"]))).unwrap();
    assert!(shown["programs"].as_array().unwrap().iter().any(|p| p["program"] == "int_rate"), "{shown}");

    // Killed: nothing is left, and the next start succeeds.
    drop(first);
    assert!(gone("int_rate"));
    let mut second = load("int_rate").unwrap();
    let unloaded = anabranch(&["cc", "unload", "int_rate"]);
    assert!(unloaded.status.success(), "{}", text(&unloaded));
    assert!(second.0.wait().unwrap().success() && !registered("int_rate"));

    let again = anabranch(&["cc", "unload", "int_rate"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again).contains("int_rate is not registered"), "{}", text(&again));
    let wrong = anabranch(&["cc", "load", "int_rat"]);
    assert!(text(&wrong).contains("did you mean \"int_rate\"?"), "{}", text(&wrong));
    let kernels = load("cubic").err().unwrap();
    assert!(kernels.contains("cubic is not one of the kernel's; there are: int_cubic_l1"), "{kernels}");
}

/// Transfers a megabyte over the loopback interface while `cc trace` runs; other traffic is excluded by port.
#[test]
fn a_trace_shows_a_connection_ack_by_ack() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let start = |form: &[&str]| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_anabranch"))
            .args(["cc", "trace", "--port", &port.to_string()])
            .args(form)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        (Running(child), lines)
    };
    let (mut columns, mut text_lines) = start(&[]);
    let Some(Ok(headings)) = text_lines.next() else {
        let mut why = String::new();
        std::io::Read::read_to_string(columns.0.stderr.as_mut().unwrap(), &mut why).unwrap();
        assert!(why.contains("kernel programs cannot run here"), "{why}");
        let root = nix::unistd::geteuid().is_root();
        assert!(!root || std::env::var_os("CI").is_none(), "CI must be able to: {why}");
        eprintln!("skipped: {why}");
        return;
    };
    assert!(headings.contains("cwnd") && headings.contains("ssthresh"), "{headings}");
    let (json, mut json_lines) = start(&["--json"]);
    // The trace is active once it has printed a line.
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(json_lines.next().unwrap().unwrap()).unwrap());
    let begun = Instant::now();
    let first = loop {
        let mut sender = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        std::thread::spawn(move || std::io::Write::write_all(&mut sender, &[7; 100_000]).unwrap());
        std::io::copy(&mut receiver, &mut std::io::sink()).unwrap();
        if let Ok(line) = told.recv_timeout(Duration::from_millis(100)) {
            break line;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "no event");
    };
    let event: serde_json::Value = serde_json::from_str(&first).unwrap();
    let u64_of = |key: &str| event[key].as_u64().unwrap_or_else(|| panic!("{key}: {event}"));
    assert!(u64_of("cwnd") >= 1 && u64_of("at_us") > 0, "{event}");
    assert!([u64_of("local_port"), u64_of("remote_port")].contains(&port.into()), "{event}");
    let line = text_lines.next().unwrap().unwrap();
    assert!(line.contains(&port.to_string()) && line.split_whitespace().count() == 9, "{line}");
    // On SIGTERM it ends with exit code 0.
    for mut running in [columns, json] {
        let id = nix::unistd::Pid::from_raw(i32::try_from(running.0.id()).unwrap());
        nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGTERM).unwrap();
        drop(running.0.stdout.take());
        assert!(running.0.wait().unwrap().success());
    }
}
