//! Listeners (RFC 9622 §7.2): one local endpoint, every protocol that satisfies the properties.

use crate::candidates::strict_path_property;
use crate::connection::{Connection, Making};
use crate::endpoint::resolve;
use crate::error::Error;
use crate::framer::Stack;
use crate::group::{Group, Live};
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

/// Connections that wait in the kernel until we take them.
const BACKLOG: i32 = 1024;
/// Most connections that wait here; more than one turn of a task can bring, which has no others' turn in it.
const MOST_WAITING: usize = 256;
/// Ports tried where any will do.
const MOST_PORTS: usize = 256;
/// How long a failed accept rests: out of descriptors, most likely.
const REST: std::time::Duration = std::time::Duration::from_millis(100);

/// Waits for connections. Dropped, it stops; connections that it gave live on.
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

/// Tasks that end with the listener, or with an attempt to make one.
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

/// A connection to be.
struct Received {
    opened: Opened,
    protocol: Protocol,
    group: Arc<Group>,
}

impl Listener {
    /// The next connection (`ConnectionReceived`); none once it has stopped. Waits while the limit of new connections is 0.
    pub async fn next(&self) -> Option<Connection> {
        let mut stopped = self.stopped.subscribe();
        tokio::select! {
            biased;
            _ = stopped.wait_for(|s| *s) => None,
            connection = self.connection() => connection,
        }
    }

    async fn connection(&self) -> Option<Connection> {
        // Held until the connection is counted: the limit is that of all who wait.
        let mut waiting = self.received.lock().await;
        let mut limit = self.limit.subscribe();
        loop {
            let open = *limit.borrow_and_update() != Some(0);
            let received = tokio::select! {
                biased;
                // The sender lives as long as we do.
                _ = limit.changed() => continue,
                received = waiting.recv(), if open => received?,
            };
            let making = Making {
                protocol: received.protocol,
                properties: self.properties.clone(),
                framers: self.framers.clone(),
                info: None,
                recipe: None,
                group: received.group,
                priority: self.properties.conn_priority,
            };
            // One that ended before it was asked for is none.
            if let Ok(connection) = Connection::start(received.opened, making) {
                self.limit.send_modify(|limit| *limit = limit.map(|l| l.saturating_sub(1)));
                return Some(connection);
            }
        }
    }

    /// `SetNewConnectionLimit`: gives so many more connections; none: as many as come.
    pub fn set_new_connection_limit(&self, limit: Option<u64>) {
        self.limit.send_replace(limit);
    }

    /// Where it listens: the port, where any was asked for.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The protocols it listens for. A listener of Multipath TCP takes TCP, too.
    #[must_use]
    pub fn protocols(&self) -> &[Protocol] {
        &self.protocols
    }

    /// Stops; [`Listener::next`] gives none from now on. Connections that it gave live on.
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

/// What every accepting task needs.
#[derive(Clone)]
struct Accept {
    to: mpsc::Sender<Received>,
    from: Arc<BTreeSet<IpAddr>>,
    live: Live,
    /// Whether data from before the end of the handshake is taken.
    early: bool,
}

pub(crate) async fn listen(pre: &Preconnection) -> Result<Listener, Error> {
    let wanted = protocols(pre)?;
    let from = if pre.remotes.is_empty() {
        BTreeSet::new()
    } else {
        let resolved = resolve(&pre.remotes).await?;
        if let Some(error) = resolved.failed {
            // That peer would never be taken.
            return Err(error);
        }
        resolved.endpoints.iter().map(|e| e.address).collect()
    };
    let (to, received) = mpsc::channel(MOST_WAITING);
    let (live, accepting) = (pre.live(), Arc::new(AtomicBool::new(true)));
    // Who must prove who they are do so with the handshake's end.
    let early = matches!(pre.properties.zero_rtt_msg, Preference::Require | Preference::Prefer)
        && !pre.security.asks_for_proof();
    let accept = Accept { to, from: Arc::new(from), live, early };
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
                // It serves the connections it gave after it has stopped, so nobody aborts it.
                tokio::spawn(accept.datagrams(Demultiplexer::new(socket, accepting.clone())));
                None
            }
            Protocol::Quic => {
                let endpoint =
                    transport::server(socket.into(), &pre.security, early, &live).map_err(bound)?;
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

    /// Whether there is still somebody to give connections to.
    async fn give(&self, opened: Opened, protocol: Protocol, group: Arc<Group>) -> bool {
        self.to.send(Received { opened, protocol, group }).await.is_ok()
    }

    async fn streams(self, listener: TcpListener) {
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!("accept: {error}");
                    tokio::time::sleep(REST).await;
                    continue;
                }
            };
            if !self.allows(peer.ip()) {
                continue;
            }
            // A peer that speaks only TCP gets it from a listener of Multipath TCP, too.
            let multipath = mptcp_paths(&stream).is_ok_and(|paths| paths.is_some());
            let protocol = if multipath { Protocol::Mptcp } else { Protocol::Tcp };
            let treated = treat(&SockRef::from(&stream), &self.live);
            let mut opened = transport::of_stream(stream);
            opened.refused.extend(treated.err().map(|e| e.to_string()));
            if !self.give(opened, protocol, Group::new(self.live)).await {
                return;
            }
        }
    }

    async fn datagrams(self, mut from: Demultiplexer) {
        while let Some(opened) = from.next(|peer| self.allows(peer)).await {
            let (protocol, group) = (Protocol::Udp, Group::new(self.live));
            // Nobody waits for room here: those that are connected get their datagrams from this task, too.
            match self.to.try_send(Received { opened, protocol, group }) {
                // Without room its first datagram is lost, as any may be; with the next it comes again.
                Ok(()) | Err(TrySendError::Full(_)) => {}
                Err(TrySendError::Closed(_)) => from.stop(),
            }
        }
    }

    /// Where early data is taken, streams are, too, before the handshake has ended.
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
                let group = Group::new(accept.live);
                // Until the connection ends, or the listener.
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

/// Connection properties on a socket that was accepted.
fn treat(socket: &SockRef<'_>, live: &Live) -> io::Result<()> {
    live.apply_all(socket)?;
    match plan::dscp(live.capacity_profile) {
        0 => {}
        dscp => set_dscp(socket, dscp)?,
    }
    if live.max_send_rate != Rate::Unlimited {
        set_rate(socket, live.max_send_rate)?;
    }
    Ok(())
}

/// Where to listen.
fn address(pre: &Preconnection) -> SocketAddr {
    // Every address of both families, if nothing is said.
    let ip = pre.local.address.unwrap_or(Ipv6Addr::UNSPECIFIED.into());
    SocketAddr::new(ip, pre.local.port.unwrap_or(0))
}

/// A socket for each protocol, all with one port. Where any will do, one that the first is given may be another's already.
fn sockets(pre: &Preconnection, wanted: &[Protocol]) -> Result<Vec<(Protocol, Socket)>, Error> {
    let place = address(pre);
    // Held meanwhile, so that each try is given another port.
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
        if !again || held.len() > MOST_PORTS {
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
        // A kernel without it; what offers Multipath TCP offers TCP.
        Err(_) if protocol == Protocol::Mptcp => return self::socket(pre, Protocol::Tcp, at),
        other => other?,
    };
    socket.set_nonblocking(true)?;
    if at.ip() == Ipv6Addr::UNSPECIFIED {
        socket.set_only_v6(false)?;
    }
    if kind == Type::STREAM {
        // A restart need not wait for the last connections to be forgotten.
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
        // Bound to it, it gives nothing else.
        bound.interface.retain(|name, level| !(name == interface && *level == Preference::Require));
    }
    if let Some(property) = strict_path_property(&bound) {
        let reason = format!(
            "{property} rules out paths, and a listener takes what comes by any; restrict it by LocalEndpoint::interface or ::ip"
        );
        return Err(Error::Refused { property: property.into(), reason });
    }
    // Paths do not matter: every protocol over one that is always there.
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

/// One for streams, one for datagrams: two cannot share a port.
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
