//! Many TCP connections, each with time-stamped messages at a constant rate, to measure the latency added by a proxy.
//!
//! A message that the kernel does not accept at once keeps the time stamp of the first attempt, so waiting counts as delay.

use super::{LOOK, Messages, accept_all, dial, now_ns, sleep_until, timed_out};
use anyhow::{Context, Result, ensure};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

/// Length of the time stamp at the start of a message.
const STAMP_BYTES: usize = 8;
/// Connections served between two waits.
const AT_ONCE: usize = 64;

/// A connection of the client, and the unsent rest of a message.
struct Source {
    stream: TcpStream,
    unsent: Vec<u8>,
}

impl Source {
    fn flush(&mut self) -> Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(0) => anyhow::bail!("the connection takes nothing more"),
                Ok(n) => drop(self.unsent.drain(..n)),
                Err(error) if timed_out(&error) => break,
                Err(error) => return Err(error).context("send"),
            }
        }
        Ok(())
    }
}

pub fn connect(task: &Messages) -> Result<()> {
    ensure!(task.message_bytes >= STAMP_BYTES, "a message has at least {STAMP_BYTES} bytes");
    let mut sources = (0..task.flows)
        .map(|_| {
            let stream = dial(None, task.address, false, &super::Setup::default(), task.when.start_ns)?;
            stream.set_nodelay(true).context("TCP_NODELAY")?;
            stream.set_nonblocking(true).context("connection")?;
            Ok(Source { stream, unsent: Vec::new() })
        })
        .collect::<Result<Vec<_>>>()?;
    let interval_ns = u64::try_from(task.interval.as_nanos()).unwrap_or(u64::MAX).max(1);
    let gap_ns = interval_ns / task.flows.max(1) as u64;
    let mut message = vec![0; task.message_bytes];
    let mut sent = 0u64;
    for number in 0.. {
        let due = task.when.start_ns + number * gap_ns;
        if due >= task.when.stop_ns {
            break;
        }
        sleep_until(due);
        let flow = usize::try_from(number).unwrap_or(0) % sources.len();
        let source = &mut sources[flow];
        message[..STAMP_BYTES].copy_from_slice(&now_ns().to_be_bytes());
        source.unsent.extend_from_slice(&message);
        source.flush()?;
        sent += 1;
    }
    while now_ns() < task.when.until_ns && sources.iter().any(|s| !s.unsent.is_empty()) {
        sources.iter_mut().try_for_each(Source::flush)?;
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    std::fs::write(&task.report, sent.to_string()).with_context(|| task.report.display().to_string())
}

/// A connection of the server, and the received part of a message.
struct Sink {
    stream: TcpStream,
    stamp: [u8; STAMP_BYTES],
    at: usize,
}

impl Sink {
    /// Consumes bytes of messages of `size`; appends the delay of each complete one.
    fn take(&mut self, mut bytes: &[u8], size: usize, now: u64, delays: &mut Vec<u64>) {
        while let Some(&byte) = bytes.first() {
            if self.at < STAMP_BYTES {
                self.stamp[self.at] = byte;
                self.at += 1;
                bytes = &bytes[1..];
            } else {
                let step = bytes.len().min(size - self.at);
                self.at += step;
                bytes = &bytes[step..];
            }
            if self.at == size {
                delays.push(now.saturating_sub(u64::from_be_bytes(self.stamp)));
                self.at = 0;
            }
        }
    }
}

pub fn listen(task: &Messages) -> Result<()> {
    ensure!(task.message_bytes >= STAMP_BYTES, "a message has at least {STAMP_BYTES} bytes");
    let listener = TcpListener::bind(task.address).with_context(|| format!("listen at {}", task.address))?;
    let streams = accept_all(&listener, task.flows, task.when.start_ns)?;
    let mut sinks: Vec<Sink> =
        streams.into_iter().map(|stream| Sink { stream, stamp: [0; STAMP_BYTES], at: 0 }).collect();
    let mut delays = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    let timeout = EpollTimeout::try_from(LOOK).unwrap_or(EpollTimeout::ZERO);
    let epoll = Epoll::new(EpollCreateFlags::empty()).context("epoll")?;
    for (index, sink) in sinks.iter().enumerate() {
        epoll.add(&sink.stream, EpollEvent::new(EpollFlags::EPOLLIN, index as u64)).context("epoll")?;
    }
    let mut open = sinks.len();
    let mut events = vec![EpollEvent::empty(); AT_ONCE];
    while now_ns() < task.when.until_ns && open > 0 {
        let ready = match epoll.wait(&mut events, timeout) {
            Ok(ready) => ready,
            Err(nix::errno::Errno::EINTR) => continue,
            Err(errno) => return Err(errno).context("epoll"),
        };
        for event in &events[..ready] {
            let sink = &mut sinks[usize::try_from(event.data()).unwrap_or(0)];
            match sink.stream.read(&mut buffer) {
                Ok(n) if n > 0 => sink.take(&buffer[..n], task.message_bytes, now_ns(), &mut delays),
                Err(error) if timed_out(&error) => {}
                Ok(_) | Err(_) => {
                    epoll.delete(&sink.stream).context("epoll")?;
                    open -= 1;
                }
            }
        }
    }
    let bytes: Vec<u8> = delays.iter().flat_map(|d| d.to_be_bytes()).collect();
    std::fs::write(&task.report, bytes).with_context(|| task.report.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::super::{from_now, in_time};
    use super::*;

    #[test]
    fn every_message_arrives_with_its_delay() {
        in_time(|time| {
            let folder = tempfile::tempdir().unwrap();
            let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let when = from_now(time);
            let task = |report: &str| Messages {
                address,
                when,
                flows: 3,
                message_bytes: 1250,
                interval: time / 20,
                report: folder.path().join(report),
            };
            // An end whose peer does not connect before the start gives up.
            std::thread::scope(|scope| {
                let server = scope.spawn(|| listen(&task("delays")));
                let client = connect(&task("sent"));
                server.join().unwrap().and(client)
            })
            .ok()?;
            let sent = std::fs::read_to_string(folder.path().join("sent")).unwrap();
            assert!(["60", "61"].contains(&&*sent), "{sent}");
            let delays = super::super::delays(&folder.path().join("delays")).unwrap();
            assert!(delays.iter().all(|d| *d > 0 && u128::from(*d) < 2 * time.as_nanos()));
            (delays.len().to_string() == sent).then_some(())
        });
    }

    #[test]
    fn a_message_in_pieces_is_one_message() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut sink = Sink { stream, stamp: [0; STAMP_BYTES], at: 0 };
        let mut message = 1000u64.to_be_bytes().to_vec();
        message.resize(20, 0);
        let twice = [message.clone(), message].concat();
        let mut delays = Vec::new();
        for piece in twice.chunks(3) {
            sink.take(piece, 20, 1500, &mut delays);
        }
        assert_eq!(delays, [500, 500]);
    }
}
