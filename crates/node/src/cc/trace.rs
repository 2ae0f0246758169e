//! `anabranch cc trace`: windows and losses of TCP sockets as they change.

use super::at_work::ends;
use anabranch_kern::bpf::{Trace, TraceEvent, TraceFilter};
use anyhow::{Context, Result};
use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde_json::json;
use std::io::{BufWriter, ErrorKind, Write};
use std::time::Duration;

/// Longest wait for an event before the signals are checked.
const LOOK: Duration = Duration::from_millis(100);

/// Runs `anabranch cc trace`.
pub fn trace(filter: TraceFilter, as_json: bool) -> Result<()> {
    let ends: SigSet = ends()?;
    let ends = SignalFd::with_flags(&ends, SfdFlags::SFD_NONBLOCK).context("signals")?;
    let trace = Trace::attach(filter)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let begun = if as_json { Ok(()) } else { writeln!(out, "{HEADINGS}") };
    if until_closed(begun.and_then(|()| out.flush()))? {
        return Ok(());
    }
    while ends.read_signal().context("signals")?.is_none() {
        for event in trace.wait(LOOK)? {
            let written = if as_json { json_line(&mut out, &event) } else { line(&mut out, &event) };
            if until_closed(written)? {
                return Ok(());
            }
        }
        if until_closed(out.flush())? {
            return Ok(());
        }
    }
    let lost = trace.lost()?;
    if lost > 0 {
        eprintln!("{lost} events arrived faster than they could be written: restrict the trace with --port");
    }
    Ok(())
}

const HEADINGS: &str =
    "       time s         ports event            cwnd  ssthresh   srtt ms in flight  resent  lost";

fn line(out: &mut impl Write, e: &TraceEvent) -> std::io::Result<()> {
    let ports = format!("{}>{}", e.local_port, e.remote_port);
    let ssthresh = e.ssthresh.map_or_else(|| "-".to_owned(), |value| value.to_string());
    writeln!(
        out,
        "{:>13.6} {ports:>13} {:<13} {:>7} {ssthresh:>9} {:>9.3} {:>9} {:>7} {:>5}",
        e.at.as_secs_f64(),
        e.kind.name(),
        e.cwnd,
        e.srtt.as_secs_f64() * 1000.0,
        e.in_flight,
        e.retransmitted,
        e.lost
    )
}

fn json_line(out: &mut impl Write, e: &TraceEvent) -> std::io::Result<()> {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let line = json!({
        "at_us": micros(e.at),
        "socket": e.socket,
        "local_port": e.local_port,
        "remote_port": e.remote_port,
        "event": e.kind.name(),
        "cwnd": e.cwnd,
        "ssthresh": e.ssthresh,
        "srtt_us": micros(e.srtt),
        "in_flight": e.in_flight,
        "retransmitted": e.retransmitted,
        "lost": e.lost,
    });
    writeln!(out, "{line}")
}

/// Maps the result of a write: true if the reader has closed the pipe (`| head`), which ends the command
/// without an error.
fn until_closed(written: std::io::Result<()>) -> Result<bool> {
    match written {
        Ok(()) => Ok(false),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(true),
        Err(error) => Err(error).context("writing"),
    }
}
