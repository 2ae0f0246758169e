//! Traffic sources and sinks for measurements that common programs do not offer: delay, order and loss of each packet, the value of
//! each byte, and pauses of milliseconds. They use the kernel's UDP and TCP through ordinary sockets (TCP or MPTCP) and run as
//! separate processes (`anabranch-lab traffic`, hidden).
//!
//! ```text
//!  lab ─▶ task as JSON ─▶ process binds and listens ─▶ "ready" ─▶ lab
//!  lab ─▶ start time of the run ─▶ process works ─▶ report file
//! ```
//!
//! All times are nanoseconds of the wall clock (`CLOCK_REALTIME`), the clock of the kernel's packet time stamps.

mod exchange;
mod messages;
mod pattern;
pub mod quic;
mod stream;
mod udp;

pub use exchange::Answer;
pub use stream::Delivered;
pub use udp::Arrival;

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments of the hidden command: one task as JSON.
#[derive(Debug, clap::Args)]
pub struct Args {
    task: String,
}

/// Runs the task.
///
/// # Errors
/// The task cannot be read, or fails.
pub fn run(args: &Args) -> Result<()> {
    // A late timer would appear as network delay.
    nix::sys::prctl::set_timerslack(1).context("timer slack")?;
    match serde_json::from_str(&args.task).context("the task")? {
        Task::UdpSend(task) => udp::send(&task),
        Task::UdpReceive(task) => udp::receive(&task),
        Task::UdpPing(task) => udp::ping(&task),
        Task::UdpEcho(task) => udp::echo(&task),
        Task::MessagesListen(task) => messages::listen(&task),
        Task::MessagesConnect(task) => messages::connect(&task),
        Task::StreamListen(task) => stream::listen(&task),
        Task::StreamConnect(task) => stream::connect(&task),
        Task::QuicListen(task) => quic::listen(&task),
        Task::QuicConnect(task) => quic::connect(&task),
        Task::ExchangeListen(task) => exchange::listen(&task),
        Task::ExchangeConnect(task) => exchange::connect(&task),
        Task::Command(task) => become_program(&task),
    }
}

fn become_program(task: &Wait) -> Result<()> {
    let (program, arguments) = task.command.split_first().context("a program")?;
    sleep_until(task.when.begin()?.start_ns);
    // Returns only on failure.
    let error = std::process::Command::new(program).args(arguments).stdin(std::process::Stdio::null()).exec();
    Err(error).context(program.clone())
}

/// The task of a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "kebab-case")]
pub enum Task {
    /// Sends UDP.
    UdpSend(UdpSend),
    /// Receives UDP.
    UdpReceive(UdpReceive),
    /// Sends UDP and stores the replies.
    UdpPing(UdpSend),
    /// Replies to UDP with the same payload.
    UdpEcho(UdpEcho),
    /// TCP server of many connections with messages.
    MessagesListen(Messages),
    /// TCP client with many connections, each with messages at a constant rate.
    MessagesConnect(Messages),
    /// TCP server of a one-way stream.
    StreamListen(Stream),
    /// TCP client of a one-way stream.
    StreamConnect(Stream),
    /// QUIC server of a one-way stream.
    QuicListen(Quic),
    /// QUIC client of a one-way stream.
    QuicConnect(Quic),
    /// TCP server that responds to requests.
    ExchangeListen(Exchange),
    /// TCP client that sends requests.
    ExchangeConnect(Exchange),
    /// Executes another program at the given time.
    Command(Wait),
}

/// A program to execute at a given time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Wait {
    /// When; only the start is used.
    pub when: Schedule,
    /// The program and its arguments.
    pub command: Vec<String>,
}

/// Start and end of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskTimes {
    /// Start of sending.
    pub start_ns: u64,
    /// End of sending.
    pub stop_ns: u64,
    /// End of receiving.
    pub until_ns: u64,
}

/// The times of a task, as far as they are known when the process starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Schedule {
    /// Absolute times.
    At(TaskTimes),
    /// Relative to a start time that is passed once everything is ready; see [`READY`].
    OnCommand {
        /// Start of sending.
        start: Duration,
        /// End of sending.
        stop: Duration,
        /// End of receiving.
        until: Duration,
    },
}

/// Written to standard output by a process with a [`Schedule::OnCommand`] when it is ready. It then reads the start time from
/// standard input, in nanoseconds of the wall clock.
pub const READY: &str = "ready";

impl From<TaskTimes> for Schedule {
    fn from(when: TaskTimes) -> Self {
        Self::At(when)
    }
}

impl Schedule {
    /// The absolute times. Called when the process is ready.
    fn begin(&self) -> Result<TaskTimes> {
        match *self {
            Self::At(when) => Ok(when),
            Self::OnCommand { start, stop, until } => {
                println!("{READY}");
                let mut line = String::new();
                std::io::stdin().read_line(&mut line).context("standard input")?;
                let begin: u64 = line.trim().parse().context("the beginning of the run")?;
                let at = |d: Duration| begin.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
                Ok(TaskTimes { start_ns: at(start), stop_ns: at(stop), until_ns: at(until) })
            }
        }
    }
}

/// Options of a socket, set before it connects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// `SO_MARK`: selects a routing table by rules.
    #[serde(default)]
    pub mark: Option<u32>,
    /// `SO_BINDTODEVICE`.
    #[serde(default)]
    pub interface: Option<String>,
    /// `SO_MAX_PACING_RATE`, bit/s; makes TCP pace.
    #[serde(default)]
    pub pacing_bps: Option<u64>,
    /// `TCP_CONGESTION`.
    #[serde(default)]
    pub congestion_control: Option<String>,
    /// DSCP, the upper six bits of `IP_TOS` or `IPV6_TCLASS`.
    #[serde(default)]
    pub dscp: Option<u8>,
}

impl Setup {
    fn apply(&self, socket: &Socket) -> Result<()> {
        if let Some(mark) = self.mark {
            socket.set_mark(mark).context("SO_MARK")?;
        }
        if let Some(interface) = &self.interface {
            socket.bind_device(Some(interface.as_bytes())).context("SO_BINDTODEVICE")?;
        }
        if let Some(name) = &self.congestion_control {
            socket.set_tcp_congestion(name.as_bytes()).with_context(|| format!("TCP_CONGESTION {name}"))?;
        }
        if let Some(dscp) = self.dscp {
            // The two bits below are ECN.
            let byte = u32::from(dscp) << 2;
            match socket.domain().context("SO_DOMAIN")? {
                Domain::IPV6 => socket.set_tclass_v6(byte).context("IPV6_TCLASS")?,
                _ => socket.set_tos_v4(byte).context("IP_TOS")?,
            }
        }
        if let Some(bps) = self.pacing_bps {
            anabranch_kern::socket::set_max_pacing_rate(socket, bps / 8).context("SO_MAX_PACING_RATE")?;
        }
        Ok(())
    }
}

/// A UDP source.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UdpSend {
    /// Local address.
    pub bind: SocketAddr,
    /// Address of the sink.
    pub to: SocketAddr,
    /// Start and end of the task.
    pub when: Schedule,
    /// Payload rate within a burst, bit/s.
    pub rate_bps: u64,
    /// Payload of a packet, bytes; at least 16.
    pub payload_bytes: usize,
    /// Mean lengths of bursts and pauses; `None`: no pauses.
    pub bursts: Option<Bursts>,
    /// Options of its socket.
    #[serde(default)]
    pub setup: Setup,
    /// For a source that stores replies: file for the number of packets sent.
    #[serde(default)]
    pub sent: Option<PathBuf>,
    /// File for the number of packets sent, or for the replies ([`arrivals`]).
    pub report: PathBuf,
}

/// Exponentially distributed bursts and pauses.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Bursts {
    /// Mean length of a burst.
    pub on: Duration,
    /// Mean length of a pause.
    pub off: Duration,
    /// Seed of the lengths.
    pub seed: u64,
}

/// A UDP sink.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UdpReceive {
    /// Local address.
    pub bind: SocketAddr,
    /// Start and end of the task.
    pub when: Schedule,
    /// File for the arrivals; see [`arrivals`].
    pub report: PathBuf,
}

/// A UDP echo server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UdpEcho {
    /// Local address.
    pub bind: SocketAddr,
    /// When; only the end is used.
    pub when: Schedule,
}

/// One end of many TCP connections, each with messages of one size at a constant rate.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Messages {
    /// Address to listen on, or to connect to.
    pub address: SocketAddr,
    /// Start and end of the task.
    pub when: TaskTimes,
    /// Number of connections.
    pub flows: usize,
    /// Size of a message, bytes; at least 8.
    pub message_bytes: usize,
    /// Time between two messages of a connection.
    pub interval: Duration,
    /// File for the delay of each message in nanoseconds ([`delays`]) at the server, and for the number of messages sent at the
    /// client.
    pub report: PathBuf,
}

/// One end of a one-way TCP stream.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Stream {
    /// Local address: to listen on, or (its IP part, if given) to connect from.
    pub local: Option<SocketAddr>,
    /// The server, for the client.
    pub to: Option<SocketAddr>,
    /// Start and end of the task.
    pub when: Schedule,
    /// Whether this end sends.
    pub sends: bool,
    /// Number of bytes to send; `None`: until the end of sending.
    pub bytes: Option<u64>,
    /// Rate at which the application writes, bit/s; `None`: as fast as TCP accepts.
    pub limit_bps: Option<u64>,
    /// MPTCP instead of TCP.
    pub mptcp: bool,
    /// Options of the client's socket.
    #[serde(default)]
    pub setup: Setup,
    /// File for the data received by the receiving end ([`Delivered`], JSON).
    pub report: PathBuf,
}

/// One end of a one-way QUIC stream.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Quic {
    /// The stream; `limit_bps` and `mptcp` are not used.
    pub stream: Stream,
    /// `cubic`, `bbr` or `reno`, as implemented by quinn.
    pub congestion_control: String,
    /// File with the server's certificate, which the client trusts (DER).
    pub certificate: PathBuf,
    /// File with the server's key (DER); the client has none.
    pub key: Option<PathBuf>,
}

/// One end of a TCP connection with requests and responses.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Exchange {
    /// Local address: to listen on, or (its IP part, if given) to connect from.
    pub local: Option<SocketAddr>,
    /// The server, for the client.
    pub to: Option<SocketAddr>,
    /// Start and end of the task.
    pub when: Schedule,
    /// Size of a request, bytes.
    pub request_bytes: usize,
    /// Size of a response, bytes.
    pub response_bytes: usize,
    /// Pause after a response.
    pub gap: Duration,
    /// Whether each request has a connection of its own.
    #[serde(default)]
    pub reconnect: bool,
    /// MPTCP instead of TCP.
    pub mptcp: bool,
    /// Options of the client's socket.
    #[serde(default)]
    pub setup: Setup,
    /// File for the responses received by the client ([`Answer`]s, JSON).
    pub report: PathBuf,
}

/// The wall clock.
#[must_use]
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_REALTIME).map(Duration::from).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Reads the file written by a [`UdpReceive`].
///
/// # Errors
/// It cannot be read.
pub fn arrivals(path: &Path) -> Result<Vec<Arrival>> {
    udp::read(path)
}

/// Reads the file written by the server of [`Messages`].
///
/// # Errors
/// It cannot be read.
pub fn delays(path: &Path) -> Result<Vec<u64>> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    Ok(bytes.as_chunks::<8>().0.iter().map(|b| u64::from_be_bytes(*b)).collect())
}

fn sleep_until(ns: u64) {
    let left = ns.saturating_sub(now_ns());
    if left > 0 {
        std::thread::sleep(Duration::from_nanos(left));
    }
}

/// Maximum duration of a blocking call before the time is checked.
const LOOK: Duration = Duration::from_millis(50);

/// A TCP connection to `to`, from `local` if given. Retries until `until_ns`.
fn dial(
    local: Option<SocketAddr>,
    to: SocketAddr,
    mptcp: bool,
    setup: &Setup,
    until_ns: u64,
) -> Result<TcpStream> {
    loop {
        let socket = tcp_socket(to, mptcp)?;
        setup.apply(&socket)?;
        if let Some(local) = local {
            let any_port = SocketAddr::new(local.ip(), 0);
            socket.bind(&any_port.into()).with_context(|| format!("bind to {}", local.ip()))?;
        }
        let left = Duration::from_nanos(until_ns.saturating_sub(now_ns())).max(LOOK);
        match socket.connect_timeout(&to.into(), left) {
            Ok(()) => return Ok(socket.into()),
            Err(_) if now_ns() < until_ns => std::thread::sleep(LOOK),
            Err(error) => return Err(error).with_context(|| format!("connect to {to}")),
        }
    }
}

/// A listener for one connection.
struct Listener(TcpListener);

impl Listener {
    fn bind(local: Option<SocketAddr>, mptcp: bool) -> Result<Self> {
        let local = local.context("an address to listen at")?;
        let socket = tcp_socket(local, mptcp)?;
        let bound = socket
            .set_reuse_address(true)
            .and_then(|()| socket.bind(&local.into()))
            .and_then(|()| socket.listen(1))
            .and_then(|()| socket.set_nonblocking(true));
        bound.with_context(|| format!("listen at {local}"))?;
        Ok(Self(socket.into()))
    }

    /// The connection, if it is opened in time.
    fn accept(&self, until_ns: u64) -> Result<Option<TcpStream>> {
        loop {
            match self.0.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).context("connection")?;
                    return Ok(Some(stream));
                }
                Err(e) if timed_out(&e) && now_ns() < until_ns => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(e) if timed_out(&e) => return Ok(None),
                Err(e) => return Err(e).context("accept"),
            }
        }
    }
}

fn tcp_socket(address: SocketAddr, mptcp: bool) -> Result<Socket> {
    let protocol = if mptcp { Protocol::MPTCP } else { Protocol::TCP };
    let what = if mptcp { "an MPTCP socket (the kernel needs CONFIG_MPTCP)" } else { "a TCP socket" };
    Socket::new(Domain::for_address(address), Type::STREAM, Some(protocol)).context(what)
}

/// Accepts this many connections in non-blocking mode; an error if they are not opened in time.
fn accept_all(listener: &TcpListener, count: usize, until_ns: u64) -> Result<Vec<TcpStream>> {
    listener.set_nonblocking(true).context("listener")?;
    let mut streams = Vec::new();
    while streams.len() < count {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true).context("connection")?;
                streams.push(stream);
            }
            Err(error) if timed_out(&error) && now_ns() < until_ns => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) if timed_out(&error) => {
                anyhow::bail!("only {} of {count} connections came in time", streams.len())
            }
            Err(error) => return Err(error).context("accept"),
        }
    }
    Ok(streams)
}

fn timed_out(error: &std::io::Error) -> bool {
    use std::io::ErrorKind as K;
    matches!(error.kind(), K::WouldBlock | K::TimedOut | K::Interrupted)
}

fn write_report(path: &Path, report: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(report).context("report")?;
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

/// Whether a TCP port is listened on, or a UDP port bound, in the calling thread's namespace.
#[must_use]
pub fn port_in_use(port: u16, tcp: bool) -> bool {
    let tables = if tcp { ["tcp", "tcp6"] } else { ["udp", "udp6"] };
    tables.iter().any(|table| {
        let text = std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
        text.lines().skip(1).any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let local = fields.next().and_then(|f| f.rsplit(':').next()).unwrap_or_default();
            let state = fields.nth(1).unwrap_or_default();
            u16::from_str_radix(local, 16) == Ok(port) && (!tcp || state == "0A")
        })
    })
}

/// Runs a test with a duration of 200 ms and, if the machine was too slow for it (`None`), with ten and with a hundred times as
/// much.
#[cfg(test)]
fn in_time<T>(mut attempt: impl FnMut(Duration) -> Option<T>) -> T {
    [200, 2_000, 20_000]
        .into_iter()
        .find_map(|ms| attempt(Duration::from_millis(ms)))
        .expect("20 s are not enough either")
}

/// Starts soon, for `time`, and waits as long again for the last packets.
#[cfg(test)]
fn from_now(time: Duration) -> TaskTimes {
    let ns = time.as_nanos() as u64;
    let start_ns = now_ns() + ns;
    TaskTimes { start_ns, stop_ns: start_ns + ns, until_ns: start_ns + 2 * ns }
}
