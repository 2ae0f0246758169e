//! Listeners (RFC 9622 §7.2): one local endpoint, with every protocol that satisfies the properties.

use crate::candidates::strict_path_property;
use crate::connection::{Connection, ConnectionParameters};
use crate::endpoint::resolve;
use crate::error::Error;
use crate::framer::Stack;
use crate::group::{ConnectionProperties, Group};
use crate::preconnection::Preconnection;
use crate::security::Security;
use crate::setup::{set_dscp, set_rate};
use crate::transport::{self, Demultiplexer, Opened};
use anabranch_element::time::Instant;
use anabranch_kern::socket::mptcp_paths;
use anabranch_selection::{
    Endpoint, Host, Interface, Multipath, Preference, Properties, Protocol, Rate, Request, plan, select,
};
use socket2::{Domain, SockRef, Socket, Type};
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinHandle;

/// Number of connections queued in the kernel.
const BACKLOG: i32 = 1024;
/// Maximum number of connections queued here; more than one poll of a task can add without yielding.
const MAX_WAITING: usize = 256;
/// Number of ports tried if any port is acceptable.
const MAX_PORTS: usize = 256;
/// Pause after a failed accept, most likely due to a lack of descriptors.
const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Waits for connections. It stops when dropped; the connections it returned remain open.
pub struct Listener {
    local: SocketAddr,
    protocols: Vec<Protocol>,
    received: Mutex<mpsc::Receiver<Received>>,
    limit: watch::Sender<Option<u64>>,
    stopped: watch::Sender<bool>,
    accepting: Arc<AtomicBool>,
    tasks: Tasks,
    properties: Properties,
    framers: Stack,
}

/// Tasks that end with the listener, or with an attempt to create one.
struct Tasks(Vec<JoinHandle<()>>);

impl Tasks {
    fn abort(&self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.abort();
    }
}

/// A connection not yet returned.
struct Received {
    opened: Opened,
    protocol: Protocol,
    group: Arc<Group>,
}

impl Listener {
    /// The next connection (`ConnectionReceived`); `None` after it has stopped. Waits while the limit of new connections is 0.
    pub async fn next(&self) -> Option<Connection> {
        let mut stopped = self.stopped.subscribe();
        tokio::select! {
            biased;
            _ = stopped.wait_for(|s| *s) => None,
            connection = self.connection() => connection,
        }
    }

    async fn connection(&self) -> Option<Connection> {
        // Locked until the connection is counted, because the limit applies to all waiting callers together.
        let mut waiting = self.received.lock().await;
        let mut limit = self.limit.subscribe();
        loop {
            let open = *limit.borrow_and_update() != Some(0);
            let received = tokio::select! {
                biased;
                // The sender exists as long as this object.
                _ = limit.changed() => continue,
                received = waiting.recv(), if open => received?,
            };
            let parameters = ConnectionParameters {
                protocol: received.protocol,
                properties: self.properties.clone(),
                framers: self.framers.clone(),
                info: None,
                recipe: None,
                group: received.group,
                priority: self.properties.conn_priority,
            };
            // A connection that ended before it was requested is skipped.
            if let Ok(connection) = Connection::start(received.opened, parameters) {
                self.limit.send_modify(|limit| *limit = limit.map(|l| l.saturating_sub(1)));
                return Some(connection);
            }
        }
    }

    /// `SetNewConnectionLimit`: returns at most this number of further connections; `None`: unlimited.
    pub fn set_new_connection_limit(&self, limit: Option<u64>) {
        self.limit.send_replace(limit);
    }

    /// The local address, with the port that was selected if any was acceptable.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The protocols it listens for. A listener for Multipath TCP also accepts TCP.
    #[must_use]
    pub fn protocols(&self) -> &[Protocol] {
        &self.protocols
    }

    /// Stops; [`Listener::next`] returns `None` from now on. The connections it returned remain open.
    pub fn stop(&self) {
        self.stopped.send_replace(true);
        self.accepting.store(false, Relaxed);
        self.tasks.abort();
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({} {:?})", self.local, self.protocols)
    }
}

/// State needed by every accepting task.
#[derive(Clone)]
struct Accept {
    to: mpsc::Sender<Received>,
    from: Arc<BTreeSet<IpAddr>>,
    connection_properties: ConnectionProperties,
    /// Whether data sent before the end of the handshake is accepted.
    early: bool,
}

pub(crate) async fn listen(pre: &Preconnection) -> Result<Listener, Error> {
    let wanted = protocols(pre)?;
    let from = if pre.remotes.is_empty() {
        BTreeSet::new()
    } else {
        let resolved = resolve(&pre.remotes).await?;
        if let Some(error) = resolved.failed {
            // This peer would never be accepted.
            return Err(error);
        }
        resolved.endpoints.iter().map(|e| e.address).collect()
    };
    let (to, received) = mpsc::channel(MAX_WAITING);
    let (connection_properties, accepting) = (pre.connection_properties(), Arc::new(AtomicBool::new(true)));
    // Peers that must authenticate do so at the end of the handshake.
    let early = matches!(pre.properties.zero_rtt_msg, Preference::Require | Preference::Prefer)
        && !pre.security.requests_certificates();
    let accept = Accept { to, from: Arc::new(from), connection_properties, early };
    let sockets = sockets(pre, &wanted)?;
    let (mut tasks, mut protocols, mut local) = (Tasks(Vec::new()), Vec::new(), None);
    for (protocol, socket) in sockets {
        let bound = |e: io::Error| Error::Listen(format!("{protocol}: {e}"));
        local = socket.local_addr().map_err(bound)?.as_socket();
        let accept = accept.clone();
        let task = match protocol {
            Protocol::Tcp | Protocol::Mptcp => {
                socket.listen(BACKLOG).map_err(bound)?;
                let listener = TcpListener::from_std(socket.into()).map_err(bound)?;
                Some(tokio::spawn(accept.streams(listener)))
            }
            Protocol::Udp => {
                let socket = UdpSocket::from_std(socket.into()).map_err(bound)?;
                // It continues to serve its connections after the listener has stopped, so it is not aborted.
                tokio::spawn(accept.datagrams(Demultiplexer::new(socket, accepting.clone())));
                None
            }
            Protocol::Quic => {
                let endpoint = transport::server(socket.into(), &pre.security, early, &connection_properties)
                    .map_err(bound)?;
                Some(tokio::spawn(accept.quic(endpoint)))
            }
        };
        tasks.0.extend(task);
        protocols.push(protocol);
    }
    let nothing = || Error::Listen("no protocol of this kernel is left".into());
    Ok(Listener {
        local: local.ok_or_else(nothing)?,
        protocols,
        received: Mutex::new(received),
        limit: watch::Sender::new(None),
        stopped: watch::Sender::new(false),
        accepting,
        tasks,
        properties: pre.properties.clone(),
        framers: pre.framers.clone(),
    })
}

impl Accept {
    fn allows(&self, peer: IpAddr) -> bool {
        self.from.is_empty() || self.from.contains(&peer.to_canonical())
    }

    /// Queues a connection; returns whether the listener still exists.
    async fn give(&self, opened: Opened, protocol: Protocol, group: Arc<Group>) -> bool {
        self.to.send(Received { opened, protocol, group }).await.is_ok()
    }

    async fn streams(self, listener: TcpListener) {
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!("accept: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            if !self.allows(peer.ip()) {
                continue;
            }
            // A peer that supports only TCP gets TCP from a listener for Multipath TCP.
            let multipath = mptcp_paths(&stream).is_ok_and(|paths| paths.is_some());
            let protocol = if multipath { Protocol::Mptcp } else { Protocol::Tcp };
            let treated = apply_to_accepted(&SockRef::from(&stream), &self.connection_properties);
            let mut opened = transport::of_stream(stream);
            opened.refused.extend(treated.err().map(|e| e.to_string()));
            if !self.give(opened, protocol, Group::new(self.connection_properties)).await {
                return;
            }
        }
    }

    async fn datagrams(self, mut from: Demultiplexer) {
        while let Some(opened) = from.next(|peer| self.allows(peer)).await {
            let (protocol, group) = (Protocol::Udp, Group::new(self.connection_properties));
            // Must not wait for room: this task also delivers datagrams to existing connections.
            match self.to.try_send(Received { opened, protocol, group }) {
                // Without room, its first datagram is lost, as any datagram may be; the next one creates the peer again.
                Ok(()) | Err(TrySendError::Full(_)) => {}
                Err(TrySendError::Closed(_)) => from.stop(),
            }
        }
    }

    /// If early data is accepted, so are streams before the end of the handshake.
    async fn handshake(
        &self,
        incoming: quinn::Incoming,
    ) -> Result<quinn::Connection, quinn::ConnectionError> {
        let connecting = incoming.accept()?;
        if !self.early {
            return connecting.await;
        }
        match connecting.into_0rtt() {
            Ok((connection, _)) => Ok(connection),
            Err(connecting) => connecting.await,
        }
    }

    async fn quic(self, endpoint: quinn::Endpoint) {
        while let Some(incoming) = endpoint.accept().await {
            if !self.allows(incoming.remote_address().ip()) {
                incoming.refuse();
                continue;
            }
            let (accept, endpoint) = (self.clone(), endpoint.clone());
            tokio::spawn(async move {
                let connection = match accept.handshake(incoming).await {
                    Ok(connection) => connection,
                    Err(error) => return tracing::debug!("a handshake failed: {error}"),
                };
                let group = Group::new(accept.connection_properties);
                // Until the connection or the listener ends.
                loop {
                    let opened = tokio::select! {
                        () = accept.to.closed() => return,
                        opened = transport::accept_stream(&connection, &endpoint) => opened,
                    };
                    let Ok(opened) = opened else { return };
                    if !accept.give(opened, Protocol::Quic, group.clone()).await {
                        return;
                    }
                }
            });
        }
    }
}

/// Applies connection properties to an accepted socket.
fn apply_to_accepted(socket: &SockRef<'_>, connection_properties: &ConnectionProperties) -> io::Result<()> {
    connection_properties.apply_all(socket)?;
    match plan::dscp(connection_properties.capacity_profile) {
        0 => {}
        dscp => set_dscp(socket, dscp)?,
    }
    if connection_properties.max_send_rate != Rate::Unlimited {
        set_rate(socket, connection_properties.max_send_rate)?;
    }
    Ok(())
}

/// The address to listen on.
fn address(pre: &Preconnection) -> SocketAddr {
    // By default every address of both families.
    let ip = pre.local.address.unwrap_or(Ipv6Addr::UNSPECIFIED.into());
    SocketAddr::new(ip, pre.local.port.unwrap_or(0))
}

/// One socket per protocol, all with the same port. If any port is acceptable, the port of the first socket may be in use for
/// another protocol; then further ports are tried.
fn sockets(pre: &Preconnection, wanted: &[Protocol]) -> Result<Vec<(Protocol, Socket)>, Error> {
    let place = address(pre);
    // Kept open in the meantime, so that each attempt gets another port.
    let mut held = Vec::new();
    loop {
        let (mut at, mut sockets) = (place, Vec::new());
        let failed = wanted.iter().find_map(|&protocol| {
            let bound = socket(pre, protocol, at).and_then(|socket| Ok((socket.local_addr()?, socket)));
            let (local, socket) = match bound {
                Ok(bound) => bound,
                Err(error) => return Some((protocol, at, error)),
            };
            at = local.as_socket().unwrap_or(at);
            sockets.push((protocol, socket));
            None
        });
        let Some((protocol, at, error)) = failed else { return Ok(sockets) };
        let again = place.port() == 0 && error.kind() == io::ErrorKind::AddrInUse && !sockets.is_empty();
        held.append(&mut sockets);
        if !again || held.len() > MAX_PORTS {
            return Err(Error::Listen(format!("{protocol} at {at}: {error}")));
        }
    }
}

fn socket(pre: &Preconnection, protocol: Protocol, at: SocketAddr) -> io::Result<Socket> {
    let (kind, by) = match protocol {
        Protocol::Tcp => (Type::STREAM, socket2::Protocol::TCP),
        Protocol::Mptcp => (Type::STREAM, socket2::Protocol::MPTCP),
        Protocol::Udp | Protocol::Quic => (Type::DGRAM, socket2::Protocol::UDP),
    };
    let socket = match Socket::new(Domain::for_address(at), kind, Some(by)) {
        // A host without IPv6.
        Err(error) if at.ip() == Ipv6Addr::UNSPECIFIED && error.raw_os_error() == Some(97) => {
            let at = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), at.port());
            return self::socket(pre, protocol, at);
        }
        // A kernel without Multipath TCP: fall back to TCP.
        Err(_) if protocol == Protocol::Mptcp => return self::socket(pre, Protocol::Tcp, at),
        other => other?,
    };
    socket.set_nonblocking(true)?;
    if at.ip() == Ipv6Addr::UNSPECIFIED {
        socket.set_only_v6(false)?;
    }
    if kind == Type::STREAM {
        // A restart need not wait for TIME_WAIT connections.
        socket.set_reuse_address(true)?;
    }
    if let Some(device) = &pre.local.interface {
        socket.bind_device(Some(device.as_bytes()))?;
    }
    socket.bind(&at.into())?;
    Ok(socket)
}

/// The protocols that satisfy the properties, one per kind of socket.
fn protocols(pre: &Preconnection) -> Result<Vec<Protocol>, Error> {
    let p = &pre.properties;
    p.check()?;
    let mut bound = p.clone();
    if let Some(interface) = &pre.local.interface {
        // Bound to this interface, the listener satisfies the requirement.
        bound.interface.retain(|name, level| !(name == interface && *level == Preference::Require));
    }
    if let Some(property) = strict_path_property(&bound) {
        let reason = format!(
            "{property} rules out paths, and a listener takes what comes by any; restrict it by LocalEndpoint::interface or ::ip"
        );
        return Err(Error::Refused { property: property.into(), reason });
    }
    // Paths are irrelevant: evaluate every protocol over one that always exists.
    let disabled = p.multipath == Some(Multipath::Disabled);
    let properties = Properties {
        multipath: (!disabled).then_some(Multipath::Passive),
        interface: [].into(),
        pvd: [].into(),
        ..p.clone()
    };
    let mut host = Host::with_all_protocols();
    let lo = Interface { up: true, addresses: vec![Ipv4Addr::LOCALHOST.into()], ..Interface::default() };
    host.interfaces.insert("lo".into(), lo);
    let remote = vec![Endpoint::new(Ipv4Addr::LOCALHOST.into(), 1)];
    let request = Request { properties, remote, ..Request::default() };
    let fit = select(&request, &host, Instant::ZERO)?.candidates;
    let fit: Vec<Protocol> = fit.iter().map(|c| c.protocol).collect();
    let chosen = one_of_a_kind(&fit, &pre.security);
    if chosen.is_empty() {
        let names: Vec<&str> = fit.iter().map(|p| p.name()).collect();
        let reason = format!(
            "{} would do, but security leaves none of it: quic takes Security::identity_pem",
            names.join(", ")
        );
        return Err(Error::Refused { property: "security".into(), reason });
    }
    Ok(chosen)
}

/// One protocol for streams and one for datagrams, because two of a kind cannot share a port.
fn one_of_a_kind(fit: &[Protocol], security: &Security) -> Vec<Protocol> {
    let has = |protocol| fit.contains(&protocol);
    let plain = security.allows_plain();
    let mut chosen = Vec::new();
    if plain && has(Protocol::Mptcp) {
        chosen.push(Protocol::Mptcp);
    } else if plain && has(Protocol::Tcp) {
        chosen.push(Protocol::Tcp);
    }
    if security.allows_quic() && security.has_identity() && has(Protocol::Quic) {
        chosen.push(Protocol::Quic);
    } else if plain && has(Protocol::Udp) {
        chosen.push(Protocol::Udp);
    }
    chosen
}
