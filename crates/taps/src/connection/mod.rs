//! Connections: sending and receiving messages, events, clones, termination (RFC 9622 §7.4, §8 to §10).
//!
//! ```text
//!  Established ── close, or a failure ──▶ Closing ── all sent ──▶ Closed
//!       └───────────── abort ─────────────────────────────────────────▲
//! ```

mod io;
mod parts;

use crate::error::{Attempt, CloneError, ReceiveError, SendError};
use crate::event::Event;
use crate::framer::Stack;
use crate::group::{ConnectionProperties, Group};
use crate::message::{Message, MessageContext, MessageId};
use crate::queue::Queue;
use crate::transport::{self, Link, Opened, Recipe};
use anabranch_kern::socket::{mptcp_paths, tcp_rtt_us};
use anabranch_selection::plan::Action;
use anabranch_selection::{Candidate, Direction, Properties, Protocol};
use bytes::{Bytes, BytesMut};
use parts::Incoming;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{broadcast, watch};

/// Maximum number of queued events.
const MAX_EVENTS: usize = 256;
/// Maximum number of bytes returned by [`Connection::receive`] for a stream without a framer.
const MAX_PART_BYTES: usize = 64 << 10;
/// Maximum size of a message assembled from parts, unless a framer has a lower limit.
const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// Maximum payload of UDP over IPv4.
const MAX_DATAGRAM_BYTES: usize = 65_507;

/// State of a connection (RFC 9622 §8.1.11.1). A connection exists only after it is established.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It is open.
    Established,
    /// Queued messages are still being sent.
    Closing,
    /// It is over.
    Closed,
}

/// How an initiated connection was established.
#[derive(Debug, Clone)]
pub struct Info {
    /// The successful candidate.
    pub candidate: Candidate,
    /// The steps executed for it.
    pub plan: Vec<Action>,
    /// Whether an agent ranked the candidates; otherwise they are this host's own.
    pub by_agent: bool,
    /// The candidates that failed before.
    pub failed: Vec<Attempt>,
}

/// A connection. When it is dropped, queued messages are still sent, and then it is closed.
pub struct Connection {
    inner: Arc<Inner>,
    events: tokio::sync::Mutex<broadcast::Receiver<Event>>,
    over: AtomicBool,
}

/// State shared by the handle, the tasks and the group.
pub(crate) struct Inner {
    id: u64,
    protocol: Protocol,
    properties: Properties,
    local: SocketAddr,
    remote: SocketAddr,
    pub(crate) info: Option<Info>,
    recipe: Option<Arc<Recipe>>,
    group: Arc<Group>,
    priority: AtomicU32,
    queue: Queue,
    framers: Mutex<Stack>,
    /// The first parts of a message that is sent in parts.
    begun: Mutex<BytesMut>,
    incoming: tokio::sync::Mutex<Option<Incoming>>,
    link: Mutex<Option<Link>>,
    state: watch::Sender<State>,
    events: broadcast::Sender<Event>,
}

/// Parameters of a connection besides its transport.
pub(crate) struct ConnectionParameters {
    pub protocol: Protocol,
    pub properties: Properties,
    pub framers: Stack,
    pub info: Option<Info>,
    pub recipe: Option<Arc<Recipe>>,
    pub group: Arc<Group>,
    pub priority: u32,
}

impl Connection {
    /// Creates a connection over an open transport, and starts its tasks.
    pub(crate) fn start(opened: Opened, parameters: ConnectionParameters) -> std::io::Result<Self> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let (events, receiver) = broadcast::channel(MAX_EVENTS);
        let inner = Arc::new(Inner {
            id: IDS.fetch_add(1, Relaxed),
            protocol: parameters.protocol,
            properties: parameters.properties,
            local: opened.link.local()?,
            remote: opened.link.remote()?,
            info: parameters.info,
            recipe: parameters.recipe,
            group: parameters.group,
            priority: AtomicU32::new(parameters.priority),
            queue: Queue::default(),
            framers: Mutex::new(parameters.framers),
            begun: Mutex::default(),
            incoming: tokio::sync::Mutex::new(Some(Incoming::new(opened.reader))),
            link: Mutex::new(Some(opened.link)),
            state: watch::Sender::new(State::Established),
            events,
        });
        inner.emit(Event::Ready);
        for refused in opened.refused {
            inner.emit(Event::SoftError(refused));
        }
        inner.group.join(&inner);
        tokio::spawn(io::write(inner.clone(), opened.writer));
        if matches!(inner.protocol, Protocol::Mptcp | Protocol::Quic) {
            tokio::spawn(io::watch_paths(Arc::downgrade(&inner)));
        }
        Ok(Self { inner, events: tokio::sync::Mutex::new(receiver), over: AtomicBool::new(false) })
    }

    /// Sends a message with default properties. Waits while the queue is full (1 MiB or 1024 messages).
    ///
    /// # Errors
    /// The message cannot be sent over this connection.
    pub async fn send(&self, data: impl Into<Bytes>) -> Result<MessageId, SendError> {
        self.send_with(data, &MessageContext::new()).await
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The connection cannot send the message or support one of its properties.
    pub async fn send_with(
        &self,
        data: impl Into<Bytes>,
        context: &MessageContext,
    ) -> Result<MessageId, SendError> {
        let (data, inner) = (data.into(), &self.inner);
        inner.check(data.len(), context)?;
        let expires = context.lifetime.and_then(|l| Instant::now().checked_add(l));
        inner.queue.push(data, context.rank(&inner.properties), expires, context.last).await
    }

    /// Sends a part of a message (RFC 9622 §9.2.3). Over a stream without framers it is sent at once; otherwise it waits until the
    /// message is complete, and only then an identifier is returned.
    ///
    /// # Errors
    /// Those of [`Connection::send_with`]; earlier parts are discarded.
    pub async fn send_partial(
        &self,
        data: impl Into<Bytes>,
        context: &MessageContext,
        end_of_message: bool,
    ) -> Result<Option<MessageId>, SendError> {
        let (data, inner) = (data.into(), &self.inner);
        if inner.protocol != Protocol::Udp && locked(&inner.framers).is_empty() {
            let context = MessageContext { last: context.last && end_of_message, ..context.clone() };
            return self.send_with(data, &context).await.map(Some);
        }
        let whole = {
            let mut begun = locked(&inner.begun);
            let (bytes, most) = (begun.len() + data.len(), inner.most_bytes());
            if bytes > most {
                begun.clear();
                return Err(SendError::TooLong { bytes, most });
            }
            begun.extend_from_slice(&data);
            if !end_of_message {
                return Ok(None);
            }
            begun.split().freeze()
        };
        self.send_with(whole, context).await.map(Some)
    }

    /// Receives the next message, or the next part of a stream without framers; `None` after the peer's last message. Cancel-safe:
    /// dropping the future loses no data.
    ///
    /// # Errors
    /// The connection is closed or has failed, or the received data is not a valid message.
    pub async fn receive(&self) -> Result<Option<Message>, ReceiveError> {
        self.receive_part(0, MAX_PART_BYTES).await
    }

    /// Like [`Connection::receive`]; for a stream without framers at least `least` bytes, unless the peer ends before, and at most
    /// `most`.
    ///
    /// # Errors
    /// Those of [`Connection::receive`].
    pub async fn receive_part(&self, least: usize, most: usize) -> Result<Option<Message>, ReceiveError> {
        let inner = &self.inner;
        let received = tokio::select! {
            () = inner.closed() => Err(ReceiveError::Closed),
            received = async {
                let mut incoming = inner.incoming.lock().await;
                match incoming.as_mut() {
                    Some(incoming) => incoming.receive(inner, least, most).await,
                    None => Err(ReceiveError::Closed),
                }
            } => received,
        };
        match received {
            Ok(Some(parts::Part { data, end_of_message, last, early })) => {
                inner.emit(Event::Received { bytes: data.len(), end_of_message });
                let (remote, local) = (inner.remote, inner.local);
                Ok(Some(Message { data, end_of_message, last, early, remote, local }))
            }
            Err(error @ (ReceiveError::Io(_) | ReceiveError::Framer(_))) => {
                inner.end(Some(error.to_string()));
                Err(error)
            }
            other => other.map(|_| None),
        }
    }

    /// Records that the first message was sent with the handshake.
    pub(crate) fn sent_early(&self, last: bool) -> MessageId {
        let id = self.inner.queue.skip(last);
        self.inner.emit(Event::Sent(id));
        id
    }

    /// The next event; `None` after `Closed` or `ConnectionError`.
    pub async fn event(&self) -> Option<Event> {
        let mut events = self.events.lock().await;
        if self.over.load(Relaxed) {
            return None;
        }
        match events.recv().await {
            Ok(event) => {
                let over = matches!(event, Event::Closed | Event::ConnectionError(_));
                self.over.store(over, Relaxed);
                Some(event)
            }
            Err(broadcast::error::RecvError::Lagged(lost)) => Some(Event::Lost(lost)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }

    /// Opens another connection to the same peer, in the same group (`Clone`): over QUIC an additional stream, otherwise an additional
    /// connection over the same path. Framers are copied in their initial state.
    ///
    /// # Errors
    /// The connection is closed, the clone cannot be opened, or this side did not open the connection.
    pub async fn clone_connection(&self) -> Result<Self, CloneError> {
        let framers = locked(&self.inner.framers).clone();
        self.clone_with(framers).await
    }

    pub(crate) async fn clone_with(&self, framers: Stack) -> Result<Self, CloneError> {
        let inner = &self.inner;
        let link = locked(&inner.link).clone().ok_or(CloneError::Closed)?;
        let opened = match (&link, &inner.recipe) {
            (Link::Quic(connection, endpoint), _) => transport::another(connection, endpoint).await?,
            (_, Some(recipe)) => {
                // Two connections cannot have the same port.
                let local = crate::endpoint::LocalEndpoint { port: None, ..recipe.local.clone() };
                Recipe { local, ..Recipe::clone(recipe) }
                    .open(&inner.group.connection_properties(), None)
                    .await?
            }
            (_, None) => return Err(CloneError::Passive(inner.protocol)),
        };
        let parameters = ConnectionParameters {
            protocol: inner.protocol,
            properties: inner.properties.clone(),
            framers,
            info: inner.info.clone(),
            recipe: inner.recipe.clone(),
            group: inner.group.clone(),
            priority: inner.priority.load(Relaxed),
        };
        Ok(Self::start(opened, parameters)?)
    }

    /// The open connections of the group by [`Connection::id`], including this one.
    #[must_use]
    pub fn grouped_connections(&self) -> Vec<u64> {
        self.inner.group.members().iter().map(|m| m.id).collect()
    }

    /// Sends queued messages, signals the end to the peer, and closes. [`Event::Closed`] reports completion.
    pub fn close(&self) {
        self.inner.close();
    }

    /// Closes at once: queued messages are lost, and a failure is signalled to the peer where the protocol can.
    pub fn abort(&self) {
        self.inner.abort();
    }

    /// Closes every connection of the group.
    pub fn close_group(&self) {
        self.inner.group.members().iter().for_each(|m| m.close());
    }

    /// Aborts every connection of the group.
    pub fn abort_group(&self) {
        self.inner.group.members().iter().for_each(|m| m.abort());
    }

    /// Current connection properties that can change, shared by the group.
    #[must_use]
    pub fn connection_properties(&self) -> ConnectionProperties {
        self.inner.group.connection_properties()
    }

    /// Changes them for the whole group.
    ///
    /// # Errors
    /// The property that cannot be set on this connection; the others are then unchanged.
    pub fn set_connection_properties(
        &self,
        connection_properties: ConnectionProperties,
    ) -> std::io::Result<()> {
        self.inner.group.set(connection_properties, &self.inner)
    }

    /// `connPriority` among the connections of the group, smaller first. Effective only with QUIC.
    #[must_use]
    pub fn priority(&self) -> u32 {
        self.inner.priority.load(Relaxed)
    }

    /// Changes the priority of this connection alone.
    pub fn set_priority(&self, priority: u32) {
        self.inner.priority.store(priority, Relaxed);
    }

    /// A number that is unique within this process.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// `connState`.
    #[must_use]
    pub fn state(&self) -> State {
        *self.inner.state.borrow()
    }

    /// `canSend`.
    #[must_use]
    pub fn can_send(&self) -> bool {
        self.inner.queue.is_open() && self.inner.properties.direction != Direction::UnidirectionalReceive
    }

    /// `canReceive`; known only until the peer ends.
    #[must_use]
    pub fn can_receive(&self) -> bool {
        self.state() == State::Established && self.inner.properties.direction != Direction::UnidirectionalSend
    }

    /// The protocol in use.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.inner.protocol
    }

    /// The selection properties with which it was established.
    #[must_use]
    pub fn properties(&self) -> &Properties {
        &self.inner.properties
    }

    /// How it was established; `None` for a connection from a listener.
    #[must_use]
    pub fn info(&self) -> Option<&Info> {
        self.inner.info.as_ref()
    }

    /// The local address.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.inner.local
    }

    /// The remote address.
    #[must_use]
    pub fn remote(&self) -> SocketAddr {
        self.inner.remote
    }

    /// The smoothed round-trip time; `None` over UDP, which measures none, and after it is closed.
    #[must_use]
    pub fn rtt(&self) -> Option<Duration> {
        match locked(&self.inner.link).as_ref()? {
            Link::Stream(socket) => tcp_rtt_us(&**socket).ok().map(|us| Duration::from_micros(us.into())),
            Link::Quic(connection, _) => Some(connection.rtt()),
            Link::Connected(_) | Link::To(..) => None,
        }
    }

    /// Number of paths in use: the subflows of Multipath TCP; 1 for all other protocols, and for Multipath TCP with a peer that
    /// supports only TCP; 0 after it is closed.
    #[must_use]
    pub fn paths(&self) -> u8 {
        self.inner.paths()
    }

    /// `sendMsgMaxLen`, in bytes; 0 if nothing can be sent.
    #[must_use]
    pub fn send_msg_max_len(&self) -> usize {
        if self.can_send() { self.inner.most_bytes() } else { 0 }
    }

    /// `recvMsgMaxLen`, in bytes; 0 if nothing can be received.
    #[must_use]
    pub fn recv_msg_max_len(&self) -> usize {
        if self.can_receive() { self.inner.most_bytes() } else { 0 }
    }

    /// `singularTransmissionMsgMaxLen`, in bytes: what fits in one packet. Not applicable to streams.
    #[must_use]
    pub fn singular_transmission_msg_max_len(&self) -> Option<usize> {
        self.inner.singular()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.inner.close();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (inner, state) = (&self.inner, self.state());
        write!(f, "Connection({} {} to {}, {state:?})", inner.protocol, inner.local, inner.remote)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} to {}", self.protocol, self.local, self.remote)
    }
}

impl Inner {
    fn check(&self, bytes: usize, context: &MessageContext) -> Result<(), SendError> {
        if self.properties.direction == Direction::UnidirectionalReceive {
            let reason = "this connection only receives".to_owned();
            return Err(SendError::Property { property: "direction", reason });
        }
        let most = self.most_bytes();
        if bytes > most {
            return Err(SendError::TooLong { bytes, most });
        }
        let singular =
            if context.no_segmentation || context.no_fragmentation { self.singular() } else { None };
        context.check(bytes, self.protocol, self.group.connection_properties().capacity_profile, singular)
    }

    fn most_bytes(&self) -> usize {
        let transport = if self.protocol == Protocol::Udp { MAX_DATAGRAM_BYTES } else { MAX_MESSAGE_BYTES };
        locked(&self.framers).most().unwrap_or(usize::MAX).min(transport)
    }

    fn singular(&self) -> Option<usize> {
        match locked(&self.link).as_ref()? {
            Link::Connected(socket) if self.remote.is_ipv4() => {
                let mtu = nix::sys::socket::getsockopt(&**socket, nix::sys::socket::sockopt::IpMtu).ok()?;
                // Headers of IPv4 and UDP.
                usize::try_from(mtu).ok()?.checked_sub(28)
            }
            // What every IPv6 path takes, and nearly every IPv4 path, without headers.
            Link::Connected(_) | Link::To(..) => Some(1232),
            Link::Stream(_) | Link::Quic(..) => None,
        }
    }

    pub(crate) fn paths(&self) -> u8 {
        match locked(&self.link).as_ref() {
            None => 0,
            Some(Link::Stream(socket)) if self.protocol == Protocol::Mptcp => {
                mptcp_paths(&**socket).ok().flatten().unwrap_or(1)
            }
            Some(_) => 1,
        }
    }

    pub(crate) fn apply(
        &self,
        connection_properties: &ConnectionProperties,
        old: &ConnectionProperties,
    ) -> std::io::Result<()> {
        let closed = || std::io::Error::new(std::io::ErrorKind::NotConnected, "the connection is closed");
        let link = locked(&self.link).clone().ok_or_else(closed)?;
        let planned = self.recipe.as_ref().and_then(|r| r.setup.pacing_bps);
        // The plan's rate includes the program's own limit: the rest is that of the slice.
        let of_slice = planned.filter(|bps| Some(*bps) != self.properties.max_send_rate.get());
        connection_properties.apply(old, &link, self.protocol, of_slice)
    }

    pub(crate) fn emit(&self, event: Event) {
        // The handle may have been dropped.
        let _ = self.events.send(event);
    }

    pub(crate) fn is_open(&self) -> bool {
        *self.state.borrow() == State::Established
    }

    async fn closed(&self) {
        // The sender exists as long as this object.
        let _ = self.state.subscribe().wait_for(|s| *s == State::Closed).await;
    }

    pub(crate) fn close(&self) {
        self.state.send_if_modified(|state| {
            let open = *state == State::Established;
            if open {
                *state = State::Closing;
            }
            open
        });
        self.queue.close();
    }

    pub(crate) fn abort(&self) {
        if let Some(link) = locked(&self.link).as_ref() {
            link.cut();
        }
        self.end(None);
    }

    /// Ends the connection, regularly or with a failure. Only the first call has an effect.
    pub(crate) fn end(&self, failure: Option<String>) {
        let first = self.state.send_if_modified(|state| {
            let open = *state != State::Closed;
            *state = State::Closed;
            open
        });
        if first {
            self.queue.abort();
            locked(&self.link).take();
            self.emit(failure.map_or(Event::Closed, Event::ConnectionError));
        }
    }
}

/// A panic while the lock is held leaves the data consistent.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
