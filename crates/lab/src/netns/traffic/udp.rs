//! UDP at a constant rate or in bursts; every packet has a sequence number and a time stamp.

use super::{Bursts, LOOK, TaskTimes, UdpEcho, UdpReceive, UdpSend, now_ns, sleep_until, timed_out};
use anyhow::{Context, Result, ensure};
use nix::sys::socket::{self, ControlMessageOwned, MsgFlags, setsockopt, sockopt};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use socket2::SockRef;
use std::io::{IoSliceMut, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

/// A received packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Its number, from 0.
    pub number: u64,
    /// When it was sent.
    pub sent_ns: u64,
    /// When the receiver's kernel received it.
    pub arrived_ns: u64,
}

/// Length of the sequence number and the time stamp.
const HEADER_BYTES: usize = 16;
/// Maximum number of arrivals kept, 384 MiB. 4 hours at 10,000 packets/s would be 3.4 GB.
const MAX_ARRIVALS: usize = 16 << 20;
/// Receive buffer, as far as the system allows.
const BUFFER_BYTES: usize = 4 << 20;

pub fn send(task: &UdpSend) -> Result<()> {
    let socket = bind(task.bind)?;
    task.setup.apply(&SockRef::from(&socket))?;
    let sent = send_on(&socket, task, task.when.begin()?)?;
    std::fs::write(&task.report, sent.to_string()).with_context(|| task.report.display().to_string())
}

/// Sends as [`send`] does, and stores the replies as [`receive`] does: an [`Arrival`] is a reply.
pub fn ping(task: &UdpSend) -> Result<()> {
    let socket = bind(task.bind)?;
    task.setup.apply(&SockRef::from(&socket))?;
    set_up(&socket)?;
    let when = task.when.begin()?;
    let answers = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| receive_on(&socket, when.until_ns));
        let sent = send_on(&socket, task, when)?;
        if let Some(place) = &task.sent {
            std::fs::write(place, sent.to_string()).with_context(|| place.display().to_string())?;
        }
        receiver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    write(&task.report, &answers)
}

/// Replies with the same payload.
pub fn echo(task: &UdpEcho) -> Result<()> {
    let socket = bind(task.bind)?;
    socket.set_read_timeout(Some(LOOK)).context("timeout")?;
    let when = task.when.begin()?;
    let mut buffer = [0; 2048];
    while now_ns() < when.until_ns {
        match socket.recv_from(&mut buffer) {
            Ok((length, from)) => {
                // A reply that the system does not accept counts as lost.
                let _ = socket.send_to(&buffer[..length], from);
            }
            Err(error) if timed_out(&error) => {}
            Err(error) => return Err(error).context("receive"),
        }
    }
    Ok(())
}

fn bind(address: SocketAddr) -> Result<UdpSocket> {
    UdpSocket::bind(address).with_context(|| format!("bind to {address}"))
}

fn send_on(socket: &UdpSocket, task: &UdpSend, when: TaskTimes) -> Result<u64> {
    ensure!(task.payload_bytes >= HEADER_BYTES, "a packet has at least {HEADER_BYTES} bytes");
    let interval_ns = task.payload_bytes as f64 * 8e9 / task.rate_bps.max(1) as f64;
    let mut bursts = task.bursts.map(Switch::new);
    let mut packet = vec![0; task.payload_bytes];
    // Relative to the start: an absolute wall-clock time does not fit a float to the nanosecond.
    let length_ns = when.stop_ns.saturating_sub(when.start_ns) as f64;
    let (mut sent, mut due) = (0u64, 0.0);
    loop {
        if let Some(bursts) = &mut bursts {
            due = bursts.next_on(due);
        }
        // A sender that cannot keep the rate sends less, and still ends in time.
        if due >= length_ns || now_ns() >= when.until_ns {
            break;
        }
        sleep_until(when.start_ns + due as u64);
        packet[..8].copy_from_slice(&sent.to_be_bytes());
        packet[8..HEADER_BYTES].copy_from_slice(&now_ns().to_be_bytes());
        // A packet that the system does not accept (no route at present, no buffer) counts as lost.
        let _ = socket.send_to(&packet, task.to);
        sent += 1;
        due += interval_ns;
    }
    Ok(sent)
}

pub fn receive(task: &UdpReceive) -> Result<()> {
    let socket = bind(task.bind)?;
    // Receive from now on, so that early packets are not missed.
    set_up(&socket)?;
    let when = task.when.begin()?;
    write(&task.report, &receive_on(&socket, when.until_ns)?)
}

fn set_up(socket: &UdpSocket) -> Result<()> {
    socket.set_read_timeout(Some(LOOK)).context("timeout")?;
    if setsockopt(socket, sockopt::RcvBufForce, &BUFFER_BYTES).is_err() {
        setsockopt(socket, sockopt::RcvBuf, &BUFFER_BYTES).context("receive buffer")?;
    }
    setsockopt(socket, sockopt::ReceiveTimestampns, &true).context("time stamps")
}

fn receive_on(socket: &UdpSocket, until_ns: u64) -> Result<Vec<Arrival>> {
    let mut arrivals = Vec::new();
    let mut buffer = [0; 2048];
    let mut control = nix::cmsg_space!(nix::sys::time::TimeSpec);
    while now_ns() < until_ns {
        let mut vector = [IoSliceMut::new(&mut buffer)];
        let received =
            socket::recvmsg::<()>(socket.as_raw_fd(), &mut vector, Some(&mut control), MsgFlags::empty());
        let (length, stamp) = match received {
            Ok(message) => {
                let stamp = message.cmsgs().context("control messages")?.find_map(|c| match c {
                    ControlMessageOwned::ScmTimestampns(t) => Some(Duration::from(t).as_nanos() as u64),
                    _ => None,
                });
                (message.bytes, stamp)
            }
            Err(errno) if timed_out(&errno.into()) => continue,
            Err(errno) => return Err(errno).context("receive"),
        };
        let field = |at: usize| {
            buffer[..length].get(at..)?.first_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes))
        };
        if let (Some(number), Some(sent_ns)) = (field(0), field(8)) {
            ensure!(arrivals.len() < MAX_ARRIVALS, "more than {MAX_ARRIVALS} packets: make the run shorter");
            arrivals.push(Arrival { number, sent_ns, arrived_ns: stamp.unwrap_or_else(now_ns) });
        }
    }
    Ok(arrivals)
}

fn write(path: &Path, arrivals: &[Arrival]) -> Result<()> {
    let name = || path.display().to_string();
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).with_context(name)?);
    for a in arrivals {
        for field in [a.number, a.sent_ns, a.arrived_ns] {
            file.write_all(&field.to_be_bytes()).with_context(name)?;
        }
    }
    file.flush().with_context(name)
}

pub fn read(path: &Path) -> Result<Vec<Arrival>> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    let fields: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|b| u64::from_be_bytes(*b)).collect();
    let arrival = |f: &[u64; 3]| Arrival { number: f[0], sent_ns: f[1], arrived_ns: f[2] };
    Ok(fields.as_chunks::<3>().0.iter().map(arrival).collect())
}

/// Exponentially distributed bursts and pauses, a burst first.
struct Switch {
    lengths: Bursts,
    rng: ChaCha12Rng,
    on_until: Option<f64>,
}

impl Switch {
    fn new(lengths: Bursts) -> Self {
        Self { lengths, rng: ChaCha12Rng::seed_from_u64(lengths.seed), on_until: None }
    }

    /// `due` if it is in a burst, else the start of the next one.
    fn next_on(&mut self, due: f64) -> f64 {
        let mut until = match self.on_until {
            Some(until) => until,
            None => due + self.draw(self.lengths.on),
        };
        let mut at = due;
        while at >= until {
            let start = until + self.draw(self.lengths.off);
            until = start + self.draw(self.lengths.on);
            at = at.max(start);
        }
        self.on_until = Some(until);
        at
    }

    fn draw(&mut self, mean: Duration) -> f64 {
        let uniform = ((self.rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        -uniform.ln() * mean.as_nanos() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Args, Setup, Task, from_now, in_time, run};
    use super::*;

    /// Maximum number of packets of a test.
    const MOST: u64 = 200;

    #[test]
    fn packets_are_numbered_stamped_and_counted() {
        in_time(|time| {
            let dir = tempfile::tempdir().unwrap();
            let file = |name: &str| dir.path().join(name);
            let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let when = from_now(time);
            let receive = Task::UdpReceive(UdpReceive { bind: port, when: when.into(), report: file("in") });
            let send = Task::UdpSend(UdpSend {
                bind: "127.0.0.1:0".parse().unwrap(),
                to: port,
                when: when.into(),
                rate_bps: MOST * 8_000_000 / time.as_millis() as u64,
                payload_bytes: 1000,
                bursts: None,
                setup: Setup::default(),
                sent: None,
                report: file("out"),
            });
            std::thread::scope(|scope| {
                for task in [receive, send] {
                    let task = serde_json::to_string(&task).unwrap();
                    scope.spawn(move || run(&Args { task }).unwrap());
                }
            });
            let sent: u64 = std::fs::read_to_string(file("out")).unwrap().parse().unwrap();
            assert!(sent <= MOST, "{sent}");
            let got = read(&file("in")).unwrap();
            assert!(got.iter().all(|a| a.sent_ns >= when.start_ns && a.arrived_ns >= a.sent_ns));
            // An end that starts late sends less, or misses some packets.
            (sent == MOST && got.iter().map(|a| a.number).eq(0..MOST)).then_some(())
        });
    }

    #[test]
    fn an_unreachable_rate_ends_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
        let start_ns = now_ns();
        let when = TaskTimes { start_ns, stop_ns: start_ns + 200_000_000, until_ns: start_ns + 300_000_000 };
        let report = dir.path().join("out");
        let task = UdpSend {
            bind: "127.0.0.1:0".parse().unwrap(),
            to: sink.local_addr().unwrap(),
            when: when.into(),
            // A hundred million packets.
            rate_bps: 100_000_000_000,
            payload_bytes: 25,
            bursts: None,
            setup: Setup::default(),
            sent: None,
            report: report.clone(),
        };
        send(&task).unwrap();
        let sent: u64 = std::fs::read_to_string(report).unwrap().parse().unwrap();
        assert!((1..100_000_000).contains(&sent) && now_ns() - start_ns < 30_000_000_000, "{sent}");
    }

    #[test]
    fn bursts_have_the_mean_lengths_asked_for() {
        let lengths = Bursts { on: Duration::from_millis(100), off: Duration::from_millis(300), seed: 1 };
        let mut switch = Switch::new(lengths);
        let (mut due, mut sent) = (0.0, 0);
        while due < 1000e9 {
            due = switch.next_on(due) + 1e6;
            sent += 1;
        }
        let share = f64::from(sent) / 1e6;
        assert!((0.23..0.27).contains(&share), "{share}");
    }
}
