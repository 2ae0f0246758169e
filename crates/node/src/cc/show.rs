//! `anabranch cc show`: the counters of the loaded programs, and the sockets that use them.

use crate::ctl::table::{rate, table};
use anabranch_kern::bpf::{self, Counters, SocketState};
use anyhow::Result;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Maximum number of sockets in the table; JSON has all of them.
const MOST_ROWS: usize = 200;

/// Runs `anabranch cc show`.
pub fn show(as_json: bool) -> Result<()> {
    let (programs, sockets) = (bpf::shown()?, bpf::sockets()?);
    if as_json {
        println!("{}", to_json(&programs, &sockets));
        return Ok(());
    }
    if programs.is_empty() && sockets.is_empty() {
        println!("no anabranch program is loaded");
        return Ok(());
    }
    let rows = programs.iter().map(|(name, _, counts)| {
        let parts: Vec<String> = fields(counts)
            .into_iter()
            .filter(|f| f.1 > 0)
            .map(|(key, value)| format!("{key} {value}"))
            .collect();
        vec![name.clone(), if parts.is_empty() { "nothing yet".to_owned() } else { parts.join(", ") }]
    });
    print!("{}", table(&["program", "counted"], rows));
    if !sockets.is_empty() {
        println!();
        print!("{}", table(&COLUMNS, sockets.iter().take(MOST_ROWS).map(row)));
    }
    if sockets.len() > MOST_ROWS {
        println!("and {} more: --json prints all of them", sockets.len() - MOST_ROWS);
    }
    Ok(())
}

const COLUMNS: [&str; 11] = [
    "local",
    "remote",
    "controller",
    "law",
    ">cwnd",
    ">ssthresh",
    ">paced at",
    ">resent (congestion + medium)",
    ">losses (back)",
    ">report age",
    "clamp",
];

fn row(s: &SocketState) -> Vec<String> {
    let dash = || "-".to_owned();
    vec![
        s.local.to_string(),
        s.remote.to_string(),
        s.controller.clone(),
        law(s).to_owned(),
        s.cwnd.to_string(),
        s.ssthresh.map_or_else(dash, |v| v.to_string()),
        s.pacing_bps.map_or_else(dash, |v| rate(v as f64)),
        format!("{} ({} + {})", s.resent, s.resent_congestion, s.resent_medium),
        format!("{} + {} ({})", s.losses_congestion, s.losses_medium, s.losses_taken_back),
        s.report_age.map_or_else(dash, |age| format!("{} ms", age.as_millis())),
        clamp(s).to_owned(),
    ]
}

/// The control law that a socket uses at present.
fn law(s: &SocketState) -> &'static str {
    match s.controller.as_str() {
        "int_rate" if s.rate_bps.is_some() => "telemetry",
        "int_cubic_l1" | "int_cubic_l2" | "int_cubic_ss" if s.fresh => "telemetry",
        name if name.starts_with("int_") => "cubic",
        _ if s.trace_age.is_some() => "receiver",
        _ => "the kernel's",
    }
}

/// The limit that bounds the socket besides its control law.
fn clamp(s: &SocketState) -> &'static str {
    match (s.at_ceiling, s.cwnd_clamp.is_some_and(|most| s.cwnd >= most)) {
        (true, _) => "ceiling",
        (false, true) => "cwnd_clamp",
        (false, false) => "-",
    }
}

fn to_json(programs: &[(String, u32, Counters)], sockets: &[SocketState]) -> Value {
    let programs: Vec<_> = programs
        .iter()
        .map(|(name, id, counts)| {
            let counts: Map<_, _> =
                fields(counts).into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
            json!({ "program": name, "map": id, "counts": counts })
        })
        .collect();
    let us = |t: Duration| u64::try_from(t.as_micros()).unwrap_or(u64::MAX);
    let sockets: Vec<_> = sockets
        .iter()
        .map(|s| {
            json!({
                "cookie": s.cookie, "netns": s.netns, "local": s.local, "remote": s.remote,
                "controller": s.controller, "law": law(s), "clamp": clamp(s),
                "cwnd_segments": s.cwnd, "ssthresh_segments": s.ssthresh, "cwnd_clamp_segments": s.cwnd_clamp,
                "in_flight_segments": s.in_flight, "pacing_bps": s.pacing_bps, "srtt_us": us(s.srtt),
                "resent": s.resent, "resent_congestion": s.resent_congestion, "resent_medium": s.resent_medium,
                "losses_congestion": s.losses_congestion, "losses_medium": s.losses_medium,
                "losses_taken_back": s.losses_taken_back,
                "report_age_us": s.report_age.map(us), "trace_age_us": s.trace_age.map(us),
                "fresh": s.fresh, "complete": s.complete, "rate_bps": s.rate_bps, "link_kbps": s.link_kbps,
                "depth_bytes": s.depth_bytes, "flows": s.flows,
            })
        })
        .collect();
    json!({ "programs": programs, "sockets": sockets })
}

fn fields(c: &Counters) -> [(&'static str, u64); 11] {
    [
        ("acks", c.acks),
        ("losses_medium", c.losses_medium),
        ("losses_congestion", c.losses_congestion),
        ("losses_taken_back", c.losses_taken_back),
        ("acks_stale", c.acks_stale),
        ("reports_in", c.reports_in),
        ("reports_out", c.reports_out),
        ("reports_bad", c.reports_bad),
        ("traces_in", c.traces_in),
        ("traces_out", c.traces_out),
        ("traces_skipped", c.traces_skipped),
    ]
}
