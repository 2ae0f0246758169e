//! A TCP connection that carries verified data in one direction.

use super::{LOOK, Listener, Stream, TaskTimes, dial, now_ns, pattern, sleep_until, timed_out, write_report};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// Data received.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Delivered {
    /// Times, and bytes since the previous entry.
    pub deliveries: Vec<(u64, u64)>,
    /// Whether every byte was correct.
    pub intact: bool,
}

/// Reads within this time are merged into one entry.
const SAME_NS: u64 = 1_000_000;
/// Number of writes per second of a rate-limited sender.
const STEPS_PER_S: u64 = 1000;
/// How long a finished connection is kept open: several readings of the kernel's counters.
const LINGER: Duration = Duration::from_millis(50);

pub fn listen(task: &Stream) -> Result<()> {
    let listener = Listener::bind(task.local, task.mptcp)?;
    let when = task.when.begin()?;
    run(task, when, listener.accept(when.until_ns)?)
}

pub fn connect(task: &Stream) -> Result<()> {
    let to = task.to.context("a server")?;
    let when = task.when.begin()?;
    sleep_until(when.start_ns);
    run(task, when, dial(task.local, to, task.mptcp, &task.setup, when.stop_ns).ok())
}

fn run(task: &Stream, when: TaskTimes, stream: Option<TcpStream>) -> Result<()> {
    match stream {
        Some(stream) if task.sends => send(task, when, stream),
        Some(stream) => receive(task, when, stream),
        None if task.sends => Ok(()),
        // No connection: nothing was delivered, and nothing is wrong.
        None => write_report(&task.report, &Delivered { intact: true, ..Delivered::default() }),
    }
}

fn send(task: &Stream, when: TaskTimes, mut stream: TcpStream) -> Result<()> {
    stream.set_write_timeout(Some(LOOK)).context("timeout")?;
    let started = now_ns();
    let total = task.bytes.unwrap_or(u64::MAX);
    let mut written = 0u64;
    let mut buffer = vec![0; 64 << 10];
    while written < total {
        let now = now_ns();
        if now >= when.stop_ns {
            break;
        }
        let allowed = task.limit_bps.map_or(u64::MAX, |bps| {
            let due = u128::from(bps) * u128::from(now - started) / 8_000_000_000;
            u64::try_from(due).unwrap_or(u64::MAX).saturating_sub(written)
        });
        // In steps, to avoid writing byte by byte; at a low rate, waits for the next byte.
        if allowed < task.limit_bps.map_or(0, |bps| (bps / STEPS_PER_S / 8).max(1)).min(total - written) {
            std::thread::sleep(Duration::from_secs(1) / STEPS_PER_S as u32);
            continue;
        }
        let n = usize::try_from(allowed.min(total - written)).unwrap_or(usize::MAX).min(buffer.len());
        pattern::fill(written, &mut buffer[..n]);
        match stream.write(&buffer[..n]) {
            Ok(n) => written += n as u64,
            Err(e) if timed_out(&e) => {}
            // The peer has ended; the data it received is in its report.
            Err(_) => return Ok(()),
        }
    }
    if stream.shutdown(Shutdown::Write).is_err() {
        return Ok(());
    }
    // The connection stays open until the peer has read everything, so that the kernel's counters can be read.
    stream.set_read_timeout(Some(LOOK)).context("timeout")?;
    while now_ns() < when.until_ns {
        match stream.read(&mut buffer) {
            Err(e) if timed_out(&e) => {}
            _ => break,
        }
    }
    Ok(())
}

fn receive(task: &Stream, when: TaskTimes, mut stream: TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(LOOK)).context("timeout")?;
    let mut report = Delivered { deliveries: Vec::new(), intact: true };
    let mut total = 0u64;
    let mut buffer = vec![0; 256 << 10];
    while now_ns() < when.until_ns {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                let now = now_ns();
                report.intact &= pattern::matches(total, &buffer[..n]);
                total += n as u64;
                match report.deliveries.last_mut() {
                    Some((at, bytes)) if now.saturating_sub(*at) < SAME_NS => *bytes += n as u64,
                    _ => report.deliveries.push((now, n as u64)),
                }
            }
            Err(e) if timed_out(&e) => {}
            Err(_) => break,
        }
    }
    // Leaves time to read the sender's counters once more before its socket closes.
    std::thread::sleep(LINGER);
    write_report(&task.report, &report)
}

#[cfg(test)]
mod tests {
    use super::super::{Args, Setup, Task, from_now, in_time, run};
    use super::*;

    #[test]
    fn a_limited_stream_keeps_its_rate_and_its_bytes() {
        in_time(|time| {
            let dir = tempfile::tempdir().unwrap();
            let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let when = from_now(time);
            let one = |sends, local, to, name: &str| Stream {
                local,
                to,
                when: when.into(),
                sends,
                bytes: None,
                limit_bps: Some(16_000_000),
                mptcp: false,
                setup: Setup::default(),
                report: dir.path().join(name),
            };
            let listen = Task::StreamListen(one(true, Some(server), None, "none"));
            let client = Some("127.0.0.1:0".parse().unwrap());
            let connect = Task::StreamConnect(one(false, client, Some(server), "in"));
            std::thread::scope(|scope| {
                for task in [listen, connect] {
                    let task = serde_json::to_string(&task).unwrap();
                    scope.spawn(move || run(&Args { task }).unwrap());
                }
            });
            let text = std::fs::read_to_string(dir.path().join("in")).unwrap();
            let report: Delivered = serde_json::from_str(&text).unwrap();
            assert!(report.intact);
            let bytes: u64 = report.deliveries.iter().map(|(_, n)| n).sum();
            let most = time.as_millis() as u64 * 2000;
            assert!(bytes <= most, "{bytes} bytes in {time:?} at 16 Mbit/s");
            (bytes >= most * 7 / 8).then_some(())
        });
    }
}
