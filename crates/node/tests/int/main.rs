//! In-band telemetry with the real programs and the kernel's TCP, in network namespaces.
//!
//! ```text
//!   sender ── anabranch link (AP1) ── anabranch link (AP2: 20 Mbit/s, 20 ms, 100 packets, loss) ── receiver
//!   sender ── Linux router ── Linux router ── Linux router ── receiver
//! ```
//!
//! Controllers are registered for the whole machine, so one loader serves all tests of this program; it holds
//! what it loads by file descriptors and is always killed at the end.
#![cfg(feature = "bpf")]
// These tests run in real time.
#![allow(clippy::disallowed_methods)]

#[path = "../run/net.rs"]
#[allow(dead_code, reason = "shared with the tests of the programs")]
mod net;
mod paths;
mod registration;

mod monitor;
mod mqtt;
mod nodes;
mod tags;

use net::ANABRANCH;
use paths::{Group, Linked, Loaded, Routed, alone};
use std::process::Command;
use std::time::Duration;

const S: Duration = Duration::from_secs(1);

/// Fig. 6 of the paper with the kernel's TCP, at one loss rate: telemetry makes the difference, delivered in
/// band.
#[test]
fn medium_loss_costs_less_with_telemetry() {
    let Some(_alone) = alone() else { return };
    let Some(group) = Group::new() else { return };
    let Some(_loaded) = Loaded::new(&["int_rate", "int_cubic_l1"], &group, &[]) else { return };
    let Some(path) = Linked::new(&group, "loss={model=\"bernoulli\", probability=0.1}", "") else { return };
    let goodput = |cc: &str| {
        let source = cc.starts_with("int_").then(|| path.source(8));
        let run = path.iperf(cc, 4 * S);
        drop(source);
        run
    };
    let (cubic, l1, rate) = (goodput("cubic"), goodput("int_cubic_l1"), goodput("int_rate"));
    eprintln!(
        "10 % loss, Mbit/s: cubic {:.2}, int_cubic_l1 {:.2}, int_rate {:.2}",
        cubic.mbps, l1.mbps, rate.mbps
    );
    // On an idle machine the ratio is 6 and more; half of that is required for a busy one.
    assert!(rate.mbps > 3.0 * cubic.mbps, "int_rate {} over cubic {}", rate.mbps, cubic.mbps);
    let shown = path.shown("int_rate");
    assert!(shown["acks"].as_u64() > Some(0), "{shown}");
    let reports = path.shown("reports");
    assert!(
        reports["reports_in"].as_u64() > Some(10) && reports["reports_bad"].as_u64() == Some(0),
        "{reports}"
    );
}

/// A middlebox removes the traces or the reports: the connection continues as CUBIC, and had received reports
/// before. With a key.
#[test]
fn middleboxes_that_strip_do_no_harm() {
    let Some(_alone) = alone() else { return };
    let Some(group) = Group::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("report.key").display().to_string();
    let made = Command::new(ANABRANCH).args(["keygen", "--out", &key]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let Some(_loaded) = Loaded::new(&["int_rate"], &group, &["--report-key", &key]) else { return };
    for (strip, there) in [("", true), ("traces", false), ("reports", false)] {
        let (down, up) = match strip {
            "" => (String::new(), String::new()),
            "traces" => ("strip=\"traces\"".into(), String::new()),
            _ => (String::new(), "strip=\"reports\"".into()),
        };
        let Some(path) = Linked::new(&group, &down, &up) else { return };
        let _source = path.source(8);
        let before = path.shown("reports")["reports_in"].as_u64().unwrap_or(0);
        let run = path.iperf("int_rate", 2 * S);
        let heard = path.shown("reports")["reports_in"].as_u64().unwrap_or(0) - before;
        eprintln!("strip {strip:?}: {:.2} Mbit/s, {heard} reports", run.mbps);
        assert!(run.mbps > 8.0, "{strip:?}: {} Mbit/s", run.mbps);
        assert_eq!(heard > 0, there, "{strip:?}: {heard} reports");
    }
}

/// Unmodified routers fill the trace, and tshark finds no error in any option.
#[test]
fn unmodified_routers_fill_the_trace() {
    let Some(_alone) = alone() else { return };
    let Some(group) = Group::new() else { return };
    let Some(_loaded) = Loaded::new(&["int_cubic_l1"], &group, &[]) else { return };
    let Some(path) = Routed::new(&group) else { return };
    let _source = path.source(2);
    let Some(seen) = path.capture("int_cubic_l1") else { return };
    assert!(seen.traces >= 5, "{seen:?}");
    assert_eq!(seen.nodes, 3, "every router wrote: {seen:?}");
    assert_eq!(seen.marks, seen.traces, "{seen:?}");
    assert!(seen.reports >= 1, "{seen:?}");
    assert_eq!(seen.complaints, [""; 0], "tshark");
}

/// A link on the path that passes the segments but not the longer ones with traces: TCP would retransmit them
/// for ever, because it has no reason to use shorter segments. Also where it has a reason, and where segments
/// leave just enough room on the narrowest link.
#[test]
fn a_narrow_link_costs_no_more_than_telemetry() {
    let Some(_alone) = alone() else { return };
    let Some(group) = Group::new() else { return };
    let Some(path) = Routed::new(&group) else { return };
    for (mtu, route) in [(1400, 1340), (1280, 1340), (1300, 1280), (1280, 1120)] {
        path.narrow(mtu, route);
        // Each source discovers the path's capacity anew, without loss for the flow.
        let lost = {
            let _source = path.source(8);
            path.recoveries()
        };
        assert_eq!(lost, 0, "{mtu}, {route}");
        // On a busy machine two runs occasionally differ by more: a single loss in slow start has a limited
        // effect, repeated ones reduce the rate to a hundredth.
        let costs_little = || {
            let without = path.iperf_while("cubic", 2 * S, || ()).mbps;
            let source = path.source(8);
            let with = path.iperf_while("cubic", 2 * S, || ()).mbps;
            drop(source);
            eprintln!("{mtu} bytes, segments for {route}: {without:.0} Mbit/s, {with:.0} with traces");
            with > 0.4 * without
        };
        assert!((0..4).any(|_| costs_little()), "{mtu}, {route}");
    }
}

/// The loader is killed during a flow with its controller: the flow continues, and nothing is left.
#[test]
fn a_killed_loader_leaves_nothing() {
    let Some(_alone) = alone() else { return };
    let Some(group) = Group::new() else { return };
    let Some(loaded) = Loaded::new(&["int_rate"], &group, &[]) else { return };
    let Some(path) = Linked::new(&group, "", "") else { return };
    let source = path.source(8);
    let run = path.iperf_while("int_rate", 3 * S, || {
        std::thread::sleep(S);
        loaded.kill();
        drop(source);
    });
    eprintln!("loader killed after 1 of 3 s: {:.2} Mbit/s", run.mbps);
    assert!(run.mbps > 8.0, "{} Mbit/s", run.mbps);
    paths::wait_gone("int_rate");
}

/// A newer version replaces one that an open connection uses: the connection keeps the old version and
/// continues to receive reports, new connections use the new version, and the old loader ends. Everything
/// ends with the last loader.
#[test]
fn a_loaded_controller_is_replaced_while_flows_run() {
    let Some(_alone) = alone() else { return };
    let Some(group) = Group::new() else { return };
    let Some(first) = Loaded::new(&["int_rate"], &group, &["--ceiling-bps", "6_000_000"]) else { return };
    let Some(path) = Linked::new(&group, "", "") else { return };
    let _source = path.source(4);
    let mut second = None;
    let mut heard = Vec::new();
    path.iperf_while("int_rate", 6 * S, || {
        paths::until("the flow hears reports, and meets the ceiling", || {
            path.sockets("int_rate").iter().any(|s| s["law"] == "telemetry" && s["clamp"] == "ceiling")
        });
        second = Loaded::new(&["int_rate"], &group, &["--ceiling-bps", "15_000_000"]);
        assert!(first.ended(), "the first loader");
        // Reports are counted only by the second loader's programs, and the open connection still receives
        // them.
        paths::until("the open flow's reports come to the second loader", || {
            heard = path.sockets("int_rate");
            let data = heard.iter().find(|s| s["clamp"] == "ceiling");
            let fresh = data.is_some_and(|s| s["law"] == "telemetry" && s["fresh"] == true);
            fresh && path.shown("reports")["reports_in"].as_u64() > Some(5)
        });
    });
    assert!(second.is_some());
    // The open connection kept the old version: its ceiling is 6 Mbit/s, not 15.
    let old = heard.iter().filter_map(|s| s["rate_bps"].as_u64()).max();
    assert!(old.is_some_and(|bps| bps <= 6_000_000), "{heard:?}");
    let mut new = Vec::new();
    path.iperf_while("int_rate", 4 * S, || {
        paths::until("a new flow runs the new version", || {
            new = path.sockets("int_rate");
            new.iter().any(|s| s["rate_bps"].as_u64() > Some(8_000_000))
        });
    });
    assert!(new.iter().all(|s| s["rate_bps"].as_u64().unwrap_or(0) <= 15_000_000), "{new:?}");
    assert!(first.ended());
    drop(second);
    paths::wait_gone("int_rate");
}

/// A cgroup that is removed and created again, as that of a service at each start, is followed.
#[test]
fn a_cgroup_created_again_is_followed() {
    let Some(_alone) = alone() else { return };
    let Some(group) = Group::new() else { return };
    let Some(ns) = net::Namespace::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let cgroup = group.path().display().to_string();
    let start = |words: &str, log: &str| {
        let words: Vec<&str> = words.split(' ').chain(["--cgroup", &cgroup]).collect();
        ns.spawn(ANABRANCH, &words, &folder.path().join(log))
    };
    let mut programs = [start("int sink", "sink.log"), start("cc load int_rate", "load.log")];
    paths::until("both are at work, or cannot run here", || {
        let at_work = [("reports for the sockets of", 0), ("registered: int_rate", 1)];
        at_work.iter().all(|(text, at)| programs[*at].log().contains(text))
            || programs.iter_mut().any(|program| !program.is_running())
    });
    for program in &mut programs {
        if !program.is_running() {
            assert!(program.log().contains("cannot run here"), "{}", program.log());
            return paths::skip(program.log().trim()).unwrap_or_default();
        }
    }
    let count = |text: &str| programs.each_ref().map(|program| program.log().matches(text).count());
    std::fs::remove_dir(group.path()).unwrap();
    paths::until("both say so", || count("has been removed") == [1; 2]);
    std::thread::sleep(2 * S);
    assert_eq!(count("trying again every second"), [1; 2], "said once");
    std::fs::create_dir(group.path()).unwrap();
    paths::until("both have the new one", || count("was created again") == [1; 2]);
    // Removed and created between two checks.
    std::fs::remove_dir(group.path()).unwrap();
    std::fs::create_dir(group.path()).unwrap();
    paths::until("both have the new one", || count("was created again") == [2; 2]);
    // The receiver of the new cgroup counts the reports of its sockets.
    let attached = ns.try_sh(&format!("bpftool cgroup show {cgroup}"));
    if let (text, true) = attached {
        assert_eq!(text.matches("ab_feedback").count(), 2, "{text}");
    }
    drop(programs);
    paths::wait_gone("int_rate");
}

/// A newer version must replace all controllers of a loader, or none.
#[test]
fn a_loader_is_replaced_completely_or_not_at_all() {
    let Some(_alone) = alone() else { return };
    let Some(group) = Group::new() else { return };
    let Some(_loaded) = Loaded::new(&["int_rate", "int_cubic_l1"], &group, &[]) else { return };
    let output =
        std::process::Command::new(net::ANABRANCH).args(["cc", "load", "int_rate"]).output().unwrap();
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && why.contains("also keeps int_cubic_l1: name that one, too"), "{why}");
}
