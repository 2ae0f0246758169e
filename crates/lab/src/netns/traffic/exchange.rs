//! Requests and responses over one TCP connection, one at a time.

use super::{Exchange, LOOK, Listener, dial, now_ns, pattern, sleep_until, timed_out, write_report};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// When the request was sent.
    pub asked_ns: u64,
    /// When the last byte of the response arrived.
    pub answered_ns: u64,
    /// Whether every byte was correct.
    pub intact: bool,
}

/// Size of a read or write.
const CHUNK_BYTES: usize = 64 << 10;

pub fn listen(task: &Exchange) -> Result<()> {
    let listener = Listener::bind(task.local, task.mptcp)?;
    let when = task.when.begin()?;
    while let Some(mut stream) = listener.accept(when.until_ns)? {
        prepare(&stream)?;
        let mut offset = (0, 0);
        while receive(&mut stream, &mut offset.0, task.request_bytes, when.until_ns).is_some()
            && send(&mut stream, &mut offset.1, task.response_bytes, when.until_ns)
        {}
        if !task.reconnect {
            break;
        }
    }
    Ok(())
}

pub fn connect(task: &Exchange) -> Result<()> {
    let to = task.to.context("a server")?;
    let when = task.when.begin()?;
    sleep_until(when.start_ns);
    let mut answers = Vec::new();
    let mut begun_ns = now_ns();
    'connections: while let Ok(mut stream) = dial(task.local, to, task.mptcp, &task.setup, when.stop_ns) {
        prepare(&stream)?;
        let mut offset = (0, 0);
        while now_ns() < when.stop_ns {
            let asked_ns = if task.reconnect { begun_ns } else { now_ns() };
            if !send(&mut stream, &mut offset.0, task.request_bytes, when.until_ns) {
                break;
            }
            let Some(intact) = receive(&mut stream, &mut offset.1, task.response_bytes, when.until_ns) else {
                break;
            };
            answers.push(Answer { asked_ns, answered_ns: now_ns(), intact });
            // A pause beyond the end would delay the whole run.
            let left = Duration::from_nanos(when.stop_ns.saturating_sub(now_ns()));
            std::thread::sleep(task.gap.min(left));
            if task.reconnect {
                begun_ns = now_ns();
                continue 'connections;
            }
        }
        break;
    }
    write_report(&task.report, &answers)
}

fn prepare(stream: &TcpStream) -> Result<()> {
    // MPTCP of some kernels refuses this; then small requests may wait for an acknowledgement.
    let _ = stream.set_nodelay(true);
    stream.set_read_timeout(Some(LOOK)).context("timeout")?;
    stream.set_write_timeout(Some(LOOK)).context("timeout")
}

/// Sends bytes. Returns false when the connection has ended or the time has passed.
fn send(stream: &mut TcpStream, offset: &mut u64, mut bytes: usize, until_ns: u64) -> bool {
    let mut buffer = vec![0; bytes.min(CHUNK_BYTES)];
    while bytes > 0 {
        let n = bytes.min(buffer.len());
        pattern::fill(*offset, &mut buffer[..n]);
        match stream.write(&buffer[..n]) {
            Ok(n) => {
                *offset += n as u64;
                bytes -= n;
            }
            Err(e) if timed_out(&e) && now_ns() < until_ns => {}
            Err(_) => return false,
        }
    }
    true
}

/// Receives bytes. Returns whether all were correct; `None` when the connection has ended or the time has passed.
fn receive(stream: &mut TcpStream, offset: &mut u64, mut bytes: usize, until_ns: u64) -> Option<bool> {
    let mut buffer = vec![0; bytes.min(CHUNK_BYTES)];
    let mut intact = true;
    while bytes > 0 {
        let room = bytes.min(buffer.len());
        match stream.read(&mut buffer[..room]) {
            Ok(0) => return None,
            Ok(n) => {
                intact &= pattern::matches(*offset, &buffer[..n]);
                *offset += n as u64;
                bytes -= n;
            }
            Err(e) if timed_out(&e) && now_ns() < until_ns => {}
            Err(_) => return None,
        }
    }
    Some(intact)
}

#[cfg(test)]
mod tests {
    use super::super::{Args, Setup, Task, from_now, in_time, run};
    use super::*;
    use std::path::Path;

    /// The ends of a server and a UE.
    fn ends(folder: &Path, time: Duration) -> [Exchange; 2] {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let when = from_now(time);
        [(Some(server), None), (None, Some(server))].map(|(local, to)| Exchange {
            local,
            to,
            when: when.into(),
            request_bytes: 300,
            response_bytes: 200_000,
            gap: Duration::from_millis(20),
            reconnect: false,
            mptcp: false,
            setup: Setup::default(),
            report: folder.join("r"),
        })
    }

    fn answers(folder: &Path) -> Vec<Answer> {
        serde_json::from_str(&std::fs::read_to_string(folder.join("r")).unwrap()).unwrap()
    }

    #[test]
    fn a_pause_longer_than_the_run_ends_with_it() {
        in_time(|time| {
            let dir = tempfile::tempdir().unwrap();
            let [server, ue] = ends(dir.path(), time).map(|end| Exchange {
                request_bytes: 1,
                response_bytes: 1,
                gap: Duration::from_secs(600),
                ..end
            });
            let begun = now_ns();
            std::thread::scope(|scope| {
                scope.spawn(|| listen(&server).unwrap());
                scope.spawn(|| connect(&ue).unwrap());
            });
            assert!(now_ns() - begun < 300_000_000_000);
            let answers = answers(dir.path());
            assert!(answers.len() <= 1);
            (answers.len() == 1).then_some(())
        });
    }

    #[test]
    fn every_request_gets_its_answer() {
        in_time(|time| {
            let dir = tempfile::tempdir().unwrap();
            let [server, ue] = ends(dir.path(), time);
            std::thread::scope(|scope| {
                for task in [Task::ExchangeListen(server), Task::ExchangeConnect(ue)] {
                    let task = serde_json::to_string(&task).unwrap();
                    scope.spawn(move || run(&Args { task }).unwrap());
                }
            });
            let answers = answers(dir.path());
            assert!(answers.iter().all(|a| a.intact && a.answered_ns > a.asked_ns));
            (answers.len() >= 5).then_some(())
        });
    }
}
