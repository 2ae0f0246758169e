//! Connections of all listeners: limits in total and per peer, and time limits.
//!
//! ```text
//!  accept ─▶ a place? ─no─▶ closed        header within 15 s ─▶ answered within 60 s ─▶ taken within 30 s ─▶ next header …
//!              └─yes─▶ TLS, within 15 s ─▶ HTTP/1.1 ─▶
//! ```
//!
//! A peer is an address (for IPv6 a /64, which may belong to one host), or a user at a Unix socket.
//! Connections that have shown a valid token do not count towards the limit per peer, because a thousand UEs
//! may share one address.

use super::super::config::Connections;
use super::problem::Problem;
use super::tls::Tls;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinSet;
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;

/// Time limits of a connection.
#[derive(Debug, Clone, Copy)]
struct Timers {
    /// For the TLS handshake, and for the complete header of a request, from the opening of the connection or
    /// the end of the last answer.
    header: Duration,
    /// From the end of the header to the start of the answer.
    answer: Duration,
    /// Longest time in which the peer reads nothing of an answer.
    taken: Duration,
}

const TIMERS: Timers = Timers {
    header: Duration::from_secs(15),
    answer: Duration::from_secs(60),
    taken: Duration::from_secs(30),
};
/// Before a connection is closed, at most this much of what the peer is still sending is read and discarded, for at most
/// this time. Otherwise the kernel may reset the connection, and a peer that sends its whole request before it reads
/// never sees the answer.
const LINGER: (usize, Duration) = (16 << 20, Duration::from_secs(2));
/// Time for which clients of this crate keep an idle connection; shorter than the server's limit.
pub const REUSED: Duration = Duration::from_secs(5);
/// Maximum length of a header, bytes.
const HEADER_BYTES: usize = 32 << 10;
/// File descriptors reserved for other purposes of the process.
const RESERVED_DESCRIPTORS: u64 = 512;
/// Smallest limit of connections, however few descriptors there are.
const MIN_CONNECTIONS: u64 = 16;

/// A listening socket.
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The origin of a connection, to which the limit per peer applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Peer {
    Address(IpAddr),
    User(u32),
}

impl Peer {
    fn of(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(v6) => {
                let [a, b, c, d, ..] = v6.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
            v4 => v4,
        })
    }
}

#[derive(Default)]
struct ConnectionCounts {
    all: u32,
    /// Connections per peer that have not shown a valid token.
    of: BTreeMap<Peer, u32>,
    refused: u64,
}

/// The connection counts of a listener.
struct ConnectionLimiter {
    limits: Connections,
    counted: Mutex<ConnectionCounts>,
}

impl ConnectionLimiter {
    fn counted(&self) -> MutexGuard<'_, ConnectionCounts> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a connection of `peer`; `None` if a limit is reached.
    fn register(self: &Arc<Self>, peer: Peer) -> Option<Arc<ConnectionGuard>> {
        let mut counted = self.counted();
        let own = counted.of.get(&peer).copied().unwrap_or(0);
        if counted.all >= self.limits.all || own >= self.limits.of_peer {
            counted.refused += 1;
            // Logged at powers of two, so that a flood of connections does not flood the log.
            if counted.refused.is_power_of_two() {
                let (all, refused) = (counted.all, counted.refused);
                tracing::warn!(?peer, of_it = own, all, refused, "connection refused: too many connections");
            }
            return None;
        }
        counted.all += 1;
        counted.of.insert(peer, own + 1);
        drop(counted);
        Some(Arc::new(ConnectionGuard { counts: self.clone(), peer, proved: AtomicBool::new(false) }))
    }
}

/// Registration of a connection, which ends when it is dropped.
pub struct ConnectionGuard {
    counts: Arc<ConnectionLimiter>,
    peer: Peer,
    proved: AtomicBool,
}

impl ConnectionGuard {
    /// Records that a valid token was shown; from then on the connection does not count for its peer.
    pub fn prove(&self) {
        if !self.proved.swap(true, Relaxed) {
            self.leave(&mut self.counts.counted());
        }
    }

    fn leave(&self, counted: &mut ConnectionCounts) {
        if let Some(own) = counted.of.get_mut(&self.peer) {
            *own -= 1;
            if *own == 0 {
                counted.of.remove(&self.peer);
            }
        }
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let mut counted = self.counts.counted();
        counted.all -= 1;
        if !self.proved.load(Relaxed) {
            self.leave(&mut counted);
        }
    }
}

/// Records that the connection of `request` has shown a valid token.
pub fn proved(request: &Request) {
    if let Some(guard) = request.extensions().get::<Arc<ConnectionGuard>>() {
        guard.prove();
    }
}

/// Limits the connections to the available file descriptors, after raising the soft limit of open files as
/// far as needed.
fn possible(mut limits: Connections) -> Connections {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return limits };
    let raised = soft.saturating_add(limits.all.into()).min(hard);
    let now = if setrlimit(Resource::RLIMIT_NOFILE, raised, hard).is_ok() { raised } else { soft };
    let fit = now.saturating_sub(RESERVED_DESCRIPTORS).max(MIN_CONNECTIONS);
    if fit < limits.all.into() {
        tracing::warn!(
            "{} connections need {} open files, {hard} are permitted: limited to {fit}; raise the limit (LimitNOFILE= of \
             the unit, ulimit -n)",
            limits.all,
            u64::from(limits.all) + RESERVED_DESCRIPTORS
        );
        limits.all = u32::try_from(fit).unwrap_or(u32::MAX);
    }
    limits
}

/// Serves `router` for ever.
pub async fn serve(listener: Listener, router: Router, limits: Connections, tls: Option<Arc<Tls>>) {
    serve_within(listener, router, limits, tls, TIMERS).await;
}

async fn serve_within(
    listener: Listener,
    router: Router,
    limits: Connections,
    tls: Option<Arc<Tls>>,
    timers: Timers,
) {
    let counts = Arc::new(ConnectionLimiter { limits: possible(limits), counted: Mutex::default() });
    let router = router.layer(axum::middleware::from_fn_with_state(timers.answer, within));
    let mut open = JoinSet::new();
    let mut failures = 0_u64;
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener) => accepted,
            Some(_) = open.join_next() => continue,
        };
        match accepted {
            Ok((stream, peer)) => {
                if let Some(guard) = counts.register(peer) {
                    open.spawn(one(stream, guard, router.clone(), tls.clone(), timers));
                }
            }
            Err(error) if is_of_connection(&error) => {}
            Err(error) => {
                // Out of descriptors or memory, which open connections may release.
                failures += 1;
                if failures.is_power_of_two() {
                    tracing::warn!(failures, "accepting connections: {error}");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

async fn accept(listener: &Listener) -> io::Result<(Box<dyn Stream>, Peer)> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, from) = listener.accept().await?;
            // Answers are small, so they are sent without delay (TCP_NODELAY).
            stream.set_nodelay(true)?;
            Ok((Box::new(stream), Peer::of(from.ip())))
        }
        Listener::Unix(listener) => {
            let (stream, _) = listener.accept().await?;
            let user = stream.peer_cred()?.uid();
            Ok((Box::new(stream), Peer::User(user)))
        }
    }
}

/// Whether an error concerns only a connection that ended before it was accepted.
fn is_of_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, InvalidInput, NotConnected};
    [ConnectionAborted, ConnectionRefused, ConnectionReset, InvalidInput, NotConnected]
        .contains(&error.kind())
}

async fn one(
    stream: Box<dyn Stream>,
    guard: Arc<ConnectionGuard>,
    router: Router,
    tls: Option<Arc<Tls>>,
    timers: Timers,
) {
    let stream: Box<dyn Stream> = match tls {
        None => stream,
        Some(tls) => {
            // The connection is registered before the TLS handshake, whose duration is limited.
            let handshake = TlsAcceptor::from(tls.current()).accept(stream);
            match tokio::time::timeout(timers.header, handshake).await {
                Ok(Ok(stream)) => Box::new(stream),
                Ok(Err(error)) => return tracing::debug!("TLS: {error}"),
                Err(_) => return tracing::debug!("TLS: the handshake took too long"),
            }
        }
    };
    let io = TokioIo::new(WriteTimeoutStream { stream, taken: timers.taken, waits: None });
    let service = WithConnectionGuard { inner: TowerToHyperService::new(router), guard };
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(timers.header).max_buf_size(HEADER_BYTES);
    match http.serve_connection(io, service).without_shutdown().await {
        Ok(parts) => drop(tokio::time::timeout(LINGER.1, linger(parts.io.into_inner())).await),
        Err(error) => tracing::debug!("connection: {error}"),
    }
}

/// Closes the connection in the sending direction, then reads until the peer closes it.
async fn linger(mut stream: WriteTimeoutStream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut discarded = [0; 4096];
    let mut left = LINGER.0;
    loop {
        let read = stream.read(&mut discarded).await?;
        left = left.saturating_sub(read);
        if read == 0 || left == 0 {
            return Ok(());
        }
    }
}

/// Adds the connection's registration to every request.
struct WithConnectionGuard {
    inner: TowerToHyperService<Router>,
    guard: Arc<ConnectionGuard>,
}

impl Service<hyper::Request<Incoming>> for WithConnectionGuard {
    type Response = Response;
    type Error = std::convert::Infallible;
    type Future = <TowerToHyperService<Router> as Service<hyper::Request<Incoming>>>::Future;

    fn call(&self, mut request: hyper::Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(self.guard.clone());
        self.inner.call(request)
    }
}

/// Middleware: an answer that does not start in time is replaced by a refusal.
async fn within(State(answer): State<Duration>, request: Request, next: Next) -> Response {
    match tokio::time::timeout(answer, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let detail = format!("the request was not whole, or not answered, within {} s", answer.as_secs());
            let remedy = "send it completely, and read the current state before you try again";
            Problem::new(StatusCode::REQUEST_TIMEOUT, detail, remedy).into_response()
        }
    }
}

/// A stream that fails if the peer does not read for too long.
struct WriteTimeoutStream {
    stream: Box<dyn Stream>,
    taken: Duration,
    waits: Option<Pin<Box<Sleep>>>,
}

impl WriteTimeoutStream {
    fn taken<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.waits = None;
            return polled;
        }
        let taken = self.taken;
        let waits = self.waits.get_or_insert_with(|| Box::pin(tokio::time::sleep(taken)));
        ready!(waits.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read")))
    }
}

impl AsyncRead for WriteTimeoutStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, to)
    }
}

impl AsyncWrite for WriteTimeoutStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.taken(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.taken(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.taken(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.taken(cx, polled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::{get, post};
    use proptest::prelude::*;
    use socket2::{Domain, Socket, Type};
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::time::Instant;

    const SHORT: Timers = Timers {
        header: Duration::from_millis(600),
        answer: Duration::from_millis(800),
        taken: Duration::from_millis(700),
    };
    const LONG: Timers = Timers {
        header: Duration::from_secs(600),
        answer: Duration::from_secs(600),
        taken: Duration::from_secs(600),
    };

    /// Starts a listener in a runtime of its own, which serves until the runtime is dropped.
    fn start(limits: Connections, timers: Timers) -> (SocketAddr, tokio::runtime::Runtime) {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let prove = async |request: Request| {
            if request.headers().contains_key("authorization") {
                proved(&request);
            }
            "hello"
        };
        let endless = async || {
            let parts = futures_util::stream::repeat_with(|| Ok::<_, io::Error>(vec![0_u8; 65_536]));
            axum::body::Body::from_stream(parts)
        };
        let router = Router::new()
            .route("/", get(prove))
            .route("/endless", get(endless))
            .route("/body", post(async |body: axum::body::Bytes| body.len().to_string()));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let at = listener.local_addr().unwrap();
        runtime.spawn(serve_within(Listener::Tcp(listener), router, limits, None, timers));
        (at, runtime)
    }

    fn connect(from: &str, to: SocketAddr) -> TcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(from.parse().unwrap(), 0).into()).unwrap();
        socket.connect(&to.into()).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    /// Whether a request on this connection is answered.
    fn answers(stream: &mut TcpStream, header: &str) -> bool {
        let sent = write!(stream, "GET / HTTP/1.1\r\nHost: x\r\n{header}\r\n");
        let mut got = [0; 1024];
        let len = sent.and_then(|()| stream.read(&mut got)).unwrap_or(0);
        got[..len].ends_with(b"hello")
    }

    #[track_caller]
    fn until(what: &str, mut is: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is() {
            assert!(start.elapsed() < Duration::from_secs(30), "not after 30 s: {what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn one_peer_cannot_exclude_others_and_closed_connections_are_released() {
        for (all, of_peer) in [(8, 3), (40, 1), (100, 64)] {
            let (at, _runtime) = start(Connections { all, of_peer }, LONG);
            let mut flood: Vec<TcpStream> = (0..of_peer + 5).map(|_| connect("127.0.0.7", at)).collect();
            let served = flood.iter_mut().filter_map(|stream| answers(stream, "").then_some(())).count();
            assert_eq!(served, of_peer as usize);
            assert!(answers(&mut connect("127.0.0.8", at), ""), "another peer");
            // Other peers can use the rest, and no more.
            let mut others = Vec::new();
            for peer in 10..10 + all {
                let mut stream = connect(&format!("127.0.1.{peer}"), at);
                let served = answers(&mut stream, "");
                others.push((stream, served));
            }
            let served = others.iter().filter(|(_, served)| *served).count();
            assert!(served <= (all - of_peer) as usize && served + 1 >= (all - of_peer) as usize, "{served}");
            drop((flood, others));
            until("there is room again", || answers(&mut connect("127.0.0.7", at), ""));
        }
    }

    #[test]
    fn a_token_takes_a_connection_out_of_its_peers_share() {
        let (at, _runtime) = start(Connections { all: 50, of_peer: 2 }, LONG);
        // A connection that has shown a token makes room for another one.
        let mut proved: Vec<TcpStream> = (0..2).map(|_| connect("127.0.0.7", at)).collect();
        for stream in &mut proved {
            assert!(answers(stream, "Authorization: Bearer x\r\n"));
        }
        for _ in 0..30 {
            let mut next = connect("127.0.0.7", at);
            assert!(
                answers(&mut next, "Authorization: Bearer x\r\n")
                    && answers(&mut next, "Authorization: y\r\n")
            );
            proved.push(next);
        }
        // Two more without a token.
        let mut plain: Vec<TcpStream> = (0..4).map(|_| connect("127.0.0.7", at)).collect();
        let served = plain.iter_mut().filter_map(|stream| answers(stream, "").then_some(())).count();
        assert_eq!(served, 2);
    }

    /// A client that sends its whole request before it reads, as Python's does.
    #[test]
    fn a_refusal_reaches_a_client_that_still_sends_its_body() {
        let (at, _runtime) = start(Connections { all: 50, of_peer: 50 }, LONG);
        for (path, length) in [("/", 200_000), ("/nowhere", 200_000), ("/body", 6_000_000), ("/nowhere", 2)] {
            for _ in 0..10 {
                let mut stream = connect("127.0.0.1", at);
                write!(stream, "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n")
                    .unwrap();
                std::thread::sleep(Duration::from_millis(5));
                for part in vec![b'x'; length].chunks(50_000) {
                    stream.write_all(part).unwrap();
                }
                let mut answer = [0; 12];
                stream.read_exact(&mut answer).unwrap();
                assert!(answer.starts_with(b"HTTP/1.1 4"), "{path}: {}", String::from_utf8_lossy(&answer));
            }
        }
    }

    #[test]
    fn silent_slow_and_non_reading_peers_are_disconnected() {
        let (at, _runtime) = start(Connections { all: 1, of_peer: 1 }, SHORT);
        let closed = |mut stream: TcpStream| {
            let mut rest = Vec::new();
            // Reset or closed: the connection has ended.
            let _ = stream.read_to_end(&mut rest);
            String::from_utf8_lossy(&rest).into_owned()
        };
        let guard = || {
            let mut stream = None;
            until("there is a place", || {
                let mut tried = connect("127.0.0.1", at);
                let is = answers(&mut tried, "");
                stream = is.then_some(tried);
                is
            });
            stream.unwrap()
        };
        // Silent after an answer; half a header; a header without end.
        closed(guard());
        let mut half = guard();
        half.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nX-").unwrap();
        closed(half);
        let mut drip = guard();
        drip.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nX: ").unwrap();
        until("the drip ends", || {
            std::thread::sleep(Duration::from_millis(20));
            drip.write_all(b"x").is_err()
        });
        let mut long = guard();
        let _ = long.write_all(
            format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}", "x".repeat(2 * HEADER_BYTES)).as_bytes(),
        );
        closed(long);
        // Half a body.
        let mut body = guard();
        body.write_all(b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf").unwrap();
        let said = closed(body);
        assert!(said.starts_with("HTTP/1.1 408") && said.contains("not whole"), "{said}");
        // Reads nothing of an endless answer: the connection is replaced by another.
        let mut full = guard();
        full.write_all(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        drop(guard());
        drop(full);
    }

    proptest! {
        /// Connections that open, show a token and close in any order: the counts are correct and within the
        /// limits.
        #[test]
        fn counts_are_right(steps in prop::collection::vec((0_u8..6, 0_u8..3, any::<usize>()), 0..200), all in 1_u32..9, of_peer in 1_u32..5) {
            let counts = Arc::new(ConnectionLimiter { limits: Connections { all, of_peer }, counted: Mutex::default() });
            let mut places: Vec<(u8, bool, Arc<ConnectionGuard>)> = Vec::new();
            for (step, peer, which) in steps {
                let of = |places: &[(u8, bool, Arc<ConnectionGuard>)]| places.iter().filter(|p| p.0 == peer && !p.1).count();
                match step {
                    0..3 => {
                        let full = places.len() >= all as usize || of(&places) >= of_peer as usize;
                        let guard = counts.register(Peer::User(peer.into()));
                        prop_assert_eq!(guard.is_none(), full);
                        places.extend(guard.map(|guard| (peer, false, guard)));
                    }
                    3 if !places.is_empty() => {
                        let at = which % places.len();
                        places[at].1 = true;
                        places[at].2.prove();
                    }
                    _ if !places.is_empty() => drop(places.swap_remove(which % places.len())),
                    _ => {}
                }
                prop_assert_eq!(counts.counted().all as usize, places.len());
                prop_assert_eq!(counts.counted().of.get(&Peer::User(peer.into())).copied().unwrap_or(0) as usize, of(&places));
            }
        }
    }

    /// Peers that do not complete a TLS handshake are limited in time, and by their own share.
    #[test]
    fn an_endless_handshake_affects_only_its_peer() {
        let folder = tempfile::tempdir().unwrap();
        let tls = Tls::new(&super::super::auth::tests::certificate(folder.path())).unwrap();
        let limits = Connections { all: 64, of_peer: 4 };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let at = listener.local_addr().unwrap();
        let router = Router::new().route("/", get(async || "hello"));
        runtime.spawn(serve_within(Listener::Tcp(listener), router, limits, Some(Arc::new(tls)), SHORT));
        let answers = || {
            use super::super::client::{Trust, builder};
            let ca = folder.path().join("ca.pem");
            let http = builder(Trust::Authorities(&ca)).unwrap().pool_max_idle_per_host(0).build().unwrap();
            runtime.block_on(async move { http.get(format!("https://{at}/")).send().await.is_ok() })
        };
        assert!(answers());
        // No data; half a record; an invalid record; a byte now and then.
        let starts: [&[u8]; 4] = [b"", &[22, 3, 1, 0x02, 0], b"GET / HTTP/1.1\r\n\r\n", &[22]];
        let mut strangers: Vec<TcpStream> = (0..16).map(|_| connect("127.0.0.9", at)).collect();
        for (stranger, start) in strangers.iter_mut().zip(starts.iter().cycle()) {
            let _ = stranger.write_all(start);
        }
        assert!(answers(), "one peer keeps others out");
        // All of them are closed, including those that continue to send.
        let end = Instant::now() + SHORT.header + Duration::from_secs(10);
        for mut stranger in strangers {
            stranger.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            loop {
                let _ = stranger.write_all(&[0]);
                match stranger.read(&mut [0; 64]) {
                    Ok(0) => break,
                    Err(error)
                        if ![io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut].contains(&error.kind()) =>
                    {
                        break;
                    }
                    _ => assert!(Instant::now() < end, "still open"),
                }
            }
        }
        // Afterwards the peer can connect again.
        until("no place", || {
            let mut again = connect("127.0.0.9", at);
            again.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            matches!(again.read(&mut [0; 1]), Err(error) if [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut].contains(&error.kind()))
        });
        assert!(answers());
    }

    #[test]
    fn a_host_with_many_addresses_is_one_peer() {
        let of = |text: &str| Peer::of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1:2:3"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
