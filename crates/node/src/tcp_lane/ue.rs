//! The UE's end: redirected flows continue over Multipath TCP to the UPF's end or, if that is not possible,
//! on the packet lane.
//!
//! ```text
//!  program's SYN ─▶ accepted here ─▶ SYN to the UPF's end ─▶ Connect TLV, and the program's first bytes, in one flight
//!                                      └ late: another one on the next access; the first answered one becomes the connection
//!                                                       ◀─ Extended TCP Header TLV once the server accepted
//!    the lane does not answer, or refuses ─▶ TCP to the server itself, with the same first bytes
//! ```
//!
//! Before the UPF's answer, only the first bytes are read from the program, so no flow is lost with the lane.

use super::converse::{self, ReceiveError};
use super::flows::{Carrier, Entry, FlowProperties, Flows, Reason};
use super::{Namespace, congestion_control};
use crate::runtime::config::UeLaneSection;
use crate::runtime::netctl::{self, Owners};
use crate::runtime::race;
use crate::runtime::relay::{self, failure, reset};
use anabranch_atsss::classify::FlowOwner;
use anabranch_atsss::session::Addresses;
use anabranch_atsss::tcp_lane::Start;
use anabranch_atsss::ue::Ue;
use anabranch_atsss::{PathId, tcp_lane};
use anabranch_engine::worker::{Handle, Worker};
use anabranch_kern::socket::mptcp_paths;
use anabranch_selection::race::RaceConfig;
use anabranch_steer::{Functionality, PathSet};
use anabranch_wire::convert::{ErrorCode, Message, Tlv, encode};
use anabranch_wire::ip::{FlowKey, protocol};
use anyhow::Context;
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

/// Maximum number of bytes read from a program before the UPF's answer: less than a first flight of ten
/// segments.
const FIRST_BYTES: usize = 8192;
/// Number and interval of the attempts to query a busy data path.
const BUSY_TRIES: u32 = 200;
const BUSY_PAUSE: Duration = Duration::from_millis(2);
/// Racing of connections to the UPF's end: time without an answer to a SYN after which another access is
/// tried in parallel, and total time limit. After that the packet lane is used.
const RACE: RaceConfig = RaceConfig {
    attempt_delay: Duration::from_millis(250),
    least_delay: Duration::from_millis(200),
    most_delay: Duration::from_millis(750),
    deadline: Duration::from_millis(1500),
};
/// Time limit for the result of connecting to the server, which the UPF's end reports.
const ANSWER: Duration = Duration::from_secs(90);
/// Time limit for connecting on the packet lane.
const CONNECT: Duration = Duration::from_secs(30);
/// Time for which the packet lane is used directly after the lane did not answer.
const SUSPENSION: Duration = Duration::from_secs(5);
/// The same after a middlebox removed Multipath TCP options, which is unlikely to be temporary.
const STRIPPED_SUSPENSION: Duration = Duration::from_secs(60);

/// The UE's end.
pub struct UeLane {
    /// The open flows.
    pub flows: Arc<Flows>,
    namespace: Namespace,
    session: Ipv4Addr,
    v6: Option<Ipv6Addr>,
    worker: Handle<Ue>,
    owners: Mutex<Owners>,
    config: UeLaneSection,
    /// Paths on which connections may start, as the bits of a [`PathSet`].
    usable: AtomicU8,
    started: Instant,
    /// End of the use of the packet lane, milliseconds since `started`; the second one is for removed
    /// options.
    suspended_until_ms: AtomicU64,
    stripped_until_ms: AtomicU64,
}

/// Result of a failed attempt on the lane.
enum Failure {
    /// The flow uses the packet lane.
    Packets(Reason),
    /// The server is unreachable or refuses the connection.
    Refused(Reason),
}

impl UeLane {
    /// A lane without flows, for the session with the addresses `session` and `v6`. `namespace` has the
    /// lane's device, with an address derived from `session` for each path.
    pub fn new(
        namespace: Namespace,
        session: Ipv4Addr,
        v6: Option<Ipv6Addr>,
        worker: Handle<Ue>,
        config: UeLaneSection,
    ) -> anyhow::Result<Self> {
        let flows = Flows::possible(config.flows, config.workers)?;
        Ok(Self {
            flows: Arc::new(Flows::new(flows, config.flows_per_client as usize)),
            namespace,
            session,
            v6,
            worker,
            owners: Mutex::new(Owners::open()?),
            config,
            usable: AtomicU8::new(PathSet::ALL.bits()),
            started: Instant::now(),
            suspended_until_ms: AtomicU64::new(0),
            stripped_until_ms: AtomicU64::new(0),
        })
    }

    /// The IPv4 address of its session.
    pub const fn session(&self) -> Ipv4Addr {
        self.session
    }

    /// All addresses of its session.
    pub const fn addresses(&self) -> Addresses {
        Addresses { v4: Some(self.session), v6: self.v6 }
    }

    /// Restricts the start of connections to these paths.
    pub fn set_usable(&self, usable: PathSet) {
        self.usable.store(usable.bits(), Relaxed);
    }

    /// The paths in `order` on which a connection may start; if there is none, the first one.
    fn starts(&self, order: &[Start]) -> Vec<Start> {
        let usable = PathSet::from_bits(self.usable.load(Relaxed));
        let mut starts: Vec<Start> =
            order.iter().filter(|start| usable.contains(start.path)).copied().collect();
        if starts.is_empty() {
            starts.push(Start { path: usable.first().unwrap_or(0), rtt_us: 0, loss_ppm: None });
        }
        starts
    }

    /// Resets the flows that are connected to the UPF's end. It is unknown what a server has received of one that waits
    /// for the UPF's answer.
    pub fn reset_flows(&self) {
        let flows = self.flows.list(0, usize::MAX);
        flows.iter().filter(|flow| flow.of.is_connected()).for_each(|flow| flow.end());
    }

    /// Runs `job` in the lane's namespace.
    pub async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        self.namespace.run(job).await
    }

    /// The reason why flows use the packet lane at present; `None` if they do not.
    pub fn suspended_by(&self) -> Option<Reason> {
        let now = self.millis();
        if self.stripped_until_ms.load(Relaxed) > now {
            Some(Reason::Stripped)
        } else {
            (self.suspended_until_ms.load(Relaxed) > now).then_some(Reason::NoLane)
        }
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn suspend(&self, since: &AtomicU64, time: Duration) {
        since.store(self.millis() + u64::try_from(time.as_millis()).unwrap_or(0), Relaxed);
    }

    fn keepalive(&self) -> Duration {
        Duration::from_secs(self.config.keepalive_s.into())
    }

    /// The source of a flow of `client` in the tunnel: forwarded flows use an address of the session.
    fn source(&self, client: IpAddr, server: SocketAddr) -> IpAddr {
        self.addresses().iter().find(|ip| ip.is_ipv4() == server.is_ipv4()).unwrap_or(client)
    }

    /// The functionality of a flow's rule, its name, and the order in which it tries paths; `own`: whether a
    /// program of the UE opened it.
    async fn verdict(
        &self,
        from: SocketAddr,
        server: SocketAddr,
        own: bool,
    ) -> (Functionality, String, Vec<Start>) {
        let key = FlowKey {
            src: self.source(from.ip(), server),
            dst: server.ip(),
            src_port: from.port(),
            dst_port: server.port(),
            protocol: protocol::TCP,
        };
        let ask = move |worker: &mut Worker<Ue>, now: anabranch_element::time::Instant, owner: Option<_>| {
            let asks_owner = worker.end.session().rules().uses_owner();
            let rule = worker.end.verdict(&key, owner.as_ref(), now);
            (asks_owner, (rule.functionality, rule.name.clone(), worker.end.lane_starts()))
        };
        let mut first = self.worker.query(move |worker, now| ask(worker, now, None)).await;
        // When many flows arrive at once, the queue of jobs is full for a moment.
        for _ in 0..BUSY_TRIES {
            if first.is_ok() {
                break;
            }
            tokio::time::sleep(BUSY_PAUSE).await;
            first = self.worker.query(move |worker, now| ask(worker, now, None)).await;
        }
        let Ok((asks_owner, verdict)) = first else { return (Functionality::Ll, String::new(), Vec::new()) };
        if !asks_owner {
            return verdict;
        }
        let owner = if own {
            // A panic of another task can at worst leave an unread answer in the socket, which the next query
            // discards.
            self.owners.lock().unwrap_or_else(PoisonError::into_inner).owner(&key)
        } else {
            FlowOwner::default()
        };
        match self.worker.query(move |worker, now| ask(worker, now, Some(owner))).await {
            Ok((_, verdict)) => verdict,
            Err(_) => verdict,
        }
    }

    /// Returns the connection to the UPF's end, once that has connected to the server.
    async fn connect_by_lane(
        self: &Arc<Self>,
        entry: &Entry,
        order: &[Start],
        from: SocketAddr,
        server: SocketAddr,
        client: &TcpStream,
        first: &mut Vec<u8>,
    ) -> Result<Arc<TcpStream>, Failure> {
        if let Some(why) = self.suspended_by() {
            return Err(Failure::Packets(why));
        }
        // On the packet lane, a flow needs less memory.
        if self.flows.memory.is_over(from.ip()) {
            return Err(Failure::Packets(Reason::Memory));
        }
        let connect = [Tlv::Connect { server, options: &[] }, Tlv::SourcePort(from.port())];
        let mut bytes = encode(&connect).map_err(|_| Failure::Packets(Reason::Malformed))?;
        let starts = self.starts(order);
        let delays = starts.iter().map(|start| RACE.delay(Some(start.rtt_us.into()))).collect();
        // Nothing is sent before the race is decided.
        let stream = match race::first(delays, &RACE, |i| self.clone().connect(starts[i].path)).await {
            Ok((_, stream)) => Arc::new(stream),
            Err(Some(Reason::Socket)) => return Err(Failure::Packets(Reason::Socket)),
            Err(_) => {
                self.suspend(&self.suspended_until_ms, SUSPENSION);
                return Err(Failure::Packets(Reason::NoLane));
            }
        };
        // Set only here.
        let _ = entry.flow.of.lane_stream.set(Arc::downgrade(&stream));
        *first = available_bytes(client);
        bytes.extend_from_slice(first);
        let answer = async {
            converse::send(&stream, &bytes).await?;
            converse::receive(&stream).await
        };
        match timeout(ANSWER, answer).await {
            Ok(Ok(answer)) => read_answer(&answer)?,
            Ok(Err(ReceiveError::Failed(_) | ReceiveError::Malformed(_))) => {
                return Err(Failure::Packets(Reason::NoLane));
            }
            Err(_) => return Err(Failure::Refused(Reason::Unreachable)),
        }
        let carrier = if matches!(mptcp_paths(&*stream), Ok(Some(_))) {
            Carrier::Mptcp
        } else {
            if self.suspended_by().is_none() {
                tracing::warn!(
                    "TCP lane: something on the way to the UPF takes the options of Multipath TCP away"
                );
            }
            self.suspend(&self.stripped_until_ms, STRIPPED_SUSPENSION);
            Carrier::Tcp
        };
        let _ = entry.flow.of.carrier.set(carrier);
        Ok(stream)
    }

    /// Connects to the UPF's end, starting on `path`.
    async fn connect(self: Arc<Self>, path: PathId) -> Result<TcpStream, Reason> {
        let socket = self.socket(path).await.map_err(|error| {
            tracing::debug!("TCP lane: {error:#}");
            Reason::Socket
        })?;
        let to = SocketAddr::new(tcp_lane::UPF.into(), tcp_lane::PORT);
        TcpSocket::from_std_stream(socket.into()).connect(to).await.map_err(|_| Reason::NoLane)
    }

    /// An unconnected socket of `path`.
    async fn socket(&self, path: PathId) -> anyhow::Result<Socket> {
        let (session, keepalive) = (self.session, self.keepalive());
        let algorithm = self.config.congestion_control.clone();
        let make = move || {
            netctl::warn_of_kernel();
            let socket = Socket::new(Domain::IPV6, Type::STREAM.nonblocking(), Some(Protocol::MPTCP))
                .context("Multipath TCP (CONFIG_MPTCP)")?;
            relay::relayed(&socket, keepalive)?;
            congestion_control(&socket, &algorithm)?;
            // The port is chosen when the destination is known, because more flows than there are ports may
            // share an address.
            let _ = setsockopt(&socket, sockopt::IpBindAddressNoPort, &true);
            socket.bind(&SockAddr::from(SocketAddr::new(tcp_lane::address(session, path).into(), 0)))?;
            Ok(socket)
        };
        self.run(make).await
    }

    /// Connects to the server on the packet lane, from an address of the session and without being redirected
    /// again.
    async fn connect_by_packet_lane(&self, client: IpAddr, server: SocketAddr) -> io::Result<TcpStream> {
        let socket =
            Socket::new(Domain::for_address(server), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        socket.set_mark(self.config.own_mark())?;
        relay::relayed(&socket, self.keepalive())?;
        let _ = setsockopt(&socket, sockopt::IpBindAddressNoPort, &true);
        socket.bind(&SockAddr::from(SocketAddr::new(self.source(client, server), 0)))?;
        let connected = TcpSocket::from_std_stream(socket.into()).connect(server);
        timeout(CONNECT, connected).await.map_err(|_| ErrorKind::TimedOut)?
    }

    async fn connect_flow(
        self: &Arc<Self>,
        entry: &Entry,
        from: SocketAddr,
        server: SocketAddr,
        client: &TcpStream,
    ) -> Result<Arc<TcpStream>, Reason> {
        let (functionality, rule, order) = self.verdict(from, server, entry.flow.of.own).await;
        let _ = entry.flow.rule.set(rule);
        let mut first = Vec::new();
        let mut why = Reason::Rule;
        if functionality == Functionality::Mptcp {
            match self.connect_by_lane(entry, &order, from, server, client, &mut first).await {
                Ok(stream) => {
                    entry.flow.up.fetch_add(first.len() as u64, Relaxed);
                    return Ok(stream);
                }
                Err(Failure::Refused(why)) => return Err(why),
                Err(Failure::Packets(other)) => why = other,
            }
        }
        self.flows.counters.packets.count(why);
        let direct = async {
            let stream = self.connect_by_packet_lane(from.ip(), server).await?;
            converse::send(&stream, &first).await?;
            Ok(stream)
        };
        let stream = direct.await.map_err(|error: io::Error| {
            tracing::debug!(client = %from, %server, "by the packet lane: {error}");
            match error.kind() {
                _ if relay::no_descriptors(&error) => Reason::Socket,
                ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset => Reason::Reset,
                _ => Reason::Unreachable,
            }
        })?;
        entry.flow.up.fetch_add(first.len() as u64, Relaxed);
        let _ = entry.flow.of.carrier.set(Carrier::Packets);
        Ok(Arc::new(stream))
    }
}

/// Accepts flows of programs for ever; their tasks end with it.
pub async fn accept(lane: Arc<UeLane>, listener: TcpListener) -> Infallible {
    relay::accept(&lane.flows, listener, |client, from| serve(lane.clone(), client, from)).await
}

async fn serve(lane: Arc<UeLane>, client: TcpStream, from: SocketAddr) {
    // The local address is the program's destination.
    let Ok(server) = client.local_addr() else { return reset(&client) };
    // A connection to the port itself would be relayed to itself in a loop.
    if server.ip().to_canonical().is_loopback() {
        lane.flows.refused.count(Reason::Destination);
        return reset(&client);
    }
    let own = lane.addresses().contains(from.ip());
    let known = FlowProperties { server: server.into(), own, ..FlowProperties::default() };
    let Some(entry) = lane.flows.open(from.ip(), from, known) else { return reset(&client) };
    // A reset is also sent if this program ends before the server is reached.
    reset(&client);
    let client = Arc::new(client);
    entry.serve(&client, forward(&lane, &entry, from, server, &client)).await;
}

async fn forward(
    lane: &Arc<UeLane>,
    entry: &Entry,
    from: SocketAddr,
    server: SocketAddr,
    client: &Arc<TcpStream>,
) {
    let _ = relay::relayed(&SockRef::from(client), lane.keepalive());
    let far = tokio::select! {
        far = lane.connect_flow(entry, from, server, client) => far,
        // A client that closes the connection meanwhile ends the attempt.
        _ = failure(client) => return,
    };
    match far {
        Ok(far) => entry.relay(client, &far).await,
        Err(why) => {
            lane.flows.refused.count(why);
            reset(client);
        }
    }
}

/// The bytes that the program has sent so far.
fn available_bytes(client: &TcpStream) -> Vec<u8> {
    let mut bytes = vec![0; FIRST_BYTES];
    // The next reader detects a failure or the end of the connection.
    let got = client.try_read(&mut bytes).unwrap_or(0);
    bytes.truncate(got);
    bytes
}

fn read_answer(bytes: &[u8]) -> Result<(), Failure> {
    let (message, _) = Message::parse(bytes).map_err(|_| Failure::Packets(Reason::NoLane))?;
    for tlv in message.tlvs() {
        match tlv {
            Tlv::ExtendedTcpHeader { .. } => return Ok(()),
            Tlv::Error { code, .. } => {
                return Err(match code {
                    ErrorCode::ConnectionReset => Failure::Refused(Reason::Reset),
                    ErrorCode::DestinationUnreachable | ErrorCode::NetworkFailure => {
                        Failure::Refused(Reason::Unreachable)
                    }
                    ErrorCode::NotAuthorized => Failure::Packets(Reason::Destination),
                    _ => Failure::Packets(Reason::NoLane),
                });
            }
            _ => {}
        }
    }
    Err(Failure::Packets(Reason::NoLane))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::relay::Named;

    #[test]
    fn an_answer_determines_whether_and_how_the_flow_continues() {
        let of = |tlvs: &[Tlv<'_>]| match read_answer(&encode(tlvs).unwrap()) {
            Ok(()) => "on".to_owned(),
            Err(Failure::Refused(why)) => format!("refused: {}", why.name()),
            Err(Failure::Packets(why)) => format!("packets: {}", why.name()),
        };
        let error = |code| of(&[Tlv::Error { code, value: &[0] }]);
        assert_eq!(of(&[Tlv::ExtendedTcpHeader { options: &[] }]), "on");
        assert_eq!(error(ErrorCode::ConnectionReset), "refused: reset");
        assert_eq!(error(ErrorCode::DestinationUnreachable), "refused: unreachable");
        assert_eq!(error(ErrorCode::NotAuthorized), "packets: destination");
        assert_eq!(error(ErrorCode::ResourceExceeded), "packets: no_lane");
        assert_eq!(error(ErrorCode::Other(200)), "packets: no_lane");
        assert_eq!(of(&[]), "packets: no_lane");
    }
}
