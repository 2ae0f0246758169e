//! A UDP flow: two connected sockets, with batches copied between them.
//!
//! ```text
//!  client ──▶ [ bound to the server's address, connected to the client ] ─ GRO ─▶ GSO ─ [ by the plan ] ──▶ server
//! ```

use super::flows::{Counters, Entry, OpenedCandidate, Refused};
use super::{ChosenCandidates, Proxy, open};
use anabranch_kern::datagram::{self, Datagrams};
use nix::sys::socket::{setsockopt, sockopt};
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use std::cell::RefCell;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;

/// Size of a receive buffer; GRO coalesces at most this many bytes.
const BUFFER_BYTES: usize = 65_536;
/// Maximum payload of one GSO send, bytes.
const MAX_SEND_BYTES: usize = 65_000;
/// Socket buffers in each direction, bytes. Three coalesced GRO batches would fill the default buffer, and
/// bursts are longer. The kernel counts this twice, and all sockets against `udp_mem`.
const WAITING_BYTES: usize = 1 << 20;
/// Receives in a row before other tasks run.
const ROUNDS: usize = 4;
/// Idle time after which a flow with one request and one answer (such as DNS) is removed when flows are
/// scarce. Each such exchange is a flow of its own, and a host may send more of them than it may have flows.
const ANSWERED: Duration = Duration::from_secs(5);

thread_local! {
    /// Receive buffer, one per thread: it is empty whenever a flow waits.
    static BATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER_BYTES * BATCH_SIZE]);
}

/// One of the two sockets of a flow.
struct FlowSocket {
    io: UdpSocket,
    state: UdpSocketState,
    peer: SocketAddr,
    /// DSCP of the packets sent.
    dscp: Option<u8>,
}

impl FlowSocket {
    fn new(socket: Socket, peer: SocketAddr, dscp: Option<u8>) -> io::Result<Self> {
        socket.connect(&SockAddr::from(peer))?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // RCVBUFFORCE may exceed `rmem_max` and `wmem_max` but needs CAP_NET_ADMIN; without it, those limits
        // apply.
        if setsockopt(&socket, sockopt::RcvBufForce, &WAITING_BYTES).is_err() {
            socket.set_recv_buffer_size(WAITING_BYTES)?;
        }
        socket.set_send_buffer_size(WAITING_BYTES)?;
        // Datagrams that are too long for a link are fragmented, as they would be without the proxy.
        if peer.is_ipv4() {
            set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::WANT)?;
        } else {
            set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::WANT)?;
            setsockopt(&socket, sockopt::Ipv6DontFrag, &false)?;
        }
        Ok(Self { io: UdpSocket::from_std(socket.into())?, state, peer, dscp })
    }

    /// Sends a batch with the segmentation in `meta`; returns the number of bytes sent.
    fn send(&self, bytes: &[u8], meta: &RecvMeta, counters: &Counters) -> usize {
        let stride = meta.stride.max(1);
        let most = (MAX_SEND_BYTES / stride).min(self.state.max_gso_segments()).max(1);
        // An empty datagram is sent, too.
        let parts = bytes.chunks(stride * most).chain(bytes.is_empty().then_some(bytes));
        let mut sent = 0;
        for part in parts {
            match self.one(part, (part.len() > stride).then_some(stride), meta) {
                Ok(()) => sent += part.len(),
                // If offload is refused, each datagram is sent by itself.
                Err(_) if part.len() > stride => {
                    for single in part.chunks(stride) {
                        match self.one(single, None, meta) {
                            Ok(()) => sent += single.len(),
                            Err(_) => counters.drop_datagram(),
                        }
                    }
                }
                Err(_) => counters.drop_datagram(),
            }
        }
        sent
    }

    fn one(&self, contents: &[u8], segment_size: Option<usize>, meta: &RecvMeta) -> io::Result<()> {
        // Not through the runtime, which takes a new socket for one that is not writable.
        if let Some(dscp) = self.dscp {
            let datagrams = Datagrams {
                to: self.peer,
                from: None,
                bytes: contents,
                segment_bytes: segment_size.and_then(|bytes| u16::try_from(bytes).ok()),
                class: dscp << 2 | meta.ecn.map_or(0, |ecn| ecn as u8),
            };
            return datagram::send(&SockRef::from(&self.io), &datagrams);
        }
        let transmit =
            Transmit { destination: self.peer, ecn: meta.ecn, contents, segment_size, src_ip: None };
        self.state.try_send(UdpSockRef::from(&self.io), &transmit)
    }
}

/// Runs a flow until it has been idle for long enough.
///
/// # Errors
/// The flow cannot be opened.
pub async fn serve(
    proxy: &Arc<Proxy>,
    entry: &Entry,
    mut waiting: mpsc::Receiver<Vec<u8>>,
) -> Result<(), Refused> {
    let flow = &entry.flow;
    let (near, far) = open(proxy, entry).await?;
    let idle = proxy.limits.load().udp_idle();
    let counters = &proxy.flows.counters;
    let mut last = Instant::now();
    let mut look = last + idle.min(ANSWERED);
    // Whether the server has answered, and whether the client has sent again after that.
    let (mut answered, mut goes_on) = (false, false);
    loop {
        tokio::select! {
            Some(bytes) = waiting.recv() => {
                let meta = one(flow.client, bytes.len());
                flow.up.fetch_add(far.send(&bytes, &meta, counters) as u64, Relaxed);
                (last, goes_on) = (Instant::now(), answered);
            }
            ready = near.io.readable() => {
                if ready.is_ok() && pump(&near, &far, &flow.up, counters) {
                    (last, goes_on) = (Instant::now(), answered);
                }
            }
            ready = far.io.readable() => {
                if ready.is_ok() && pump(&far, &near, &flow.down, counters) {
                    (last, answered) = (Instant::now(), true);
                }
            }
            () = tokio::time::sleep_until(look.into()) => {
                let silent = last.elapsed();
                let in_the_way = || !goes_on && silent >= ANSWERED && proxy.flows.is_tight(flow.client.ip());
                if silent >= idle || in_the_way() {
                    return Ok(());
                }
                look = (last + idle).min(Instant::now() + ANSWERED);
            }
        }
        tokio::task::coop::consume_budget().await;
    }
}

/// Opens both sockets.
async fn open(proxy: &Arc<Proxy>, entry: &Entry) -> Result<(FlowSocket, FlowSocket), Refused> {
    let (client, server) = (entry.flow.client, entry.flow.of.server);
    let ChosenCandidates { candidates, origin, source } = proxy.choose(&entry.flow).await?;
    let mut failure = Refused::Unreachable;
    for candidate in &candidates {
        let far = open::socket(candidate, server, source, proxy.own_mark, &proxy.flows.counters)
            .and_then(|socket| FlowSocket::new(socket, server, candidate.dscp()));
        match far {
            Ok(far) => {
                let near = near(client, server, proxy.own_mark).map_err(|error| {
                    tracing::debug!(%client, %server, "a socket with the server's address: {error}");
                    Refused::of_socket(&error)
                })?;
                let _ = entry.flow.of.opened.set(OpenedCandidate { candidate: candidate.clone(), origin });
                return Ok((near, far));
            }
            Err(error) => {
                tracing::debug!(%client, %server, interface = candidate.interface, "opening: {error}");
                proxy.flows.counters.retries.fetch_add(1, Relaxed);
                failure = Refused::of_socket(&error);
            }
        }
    }
    Err(failure)
}

/// Opens the socket that answers the client with the server's address.
fn near(client: SocketAddr, server: SocketAddr, own_mark: u32) -> io::Result<FlowSocket> {
    let kind = Type::DGRAM.nonblocking();
    let socket = Socket::new(Domain::for_address(server), kind, Some(Protocol::UDP))?;
    crate::runtime::relay::transparent(&socket, server.is_ipv6())?;
    // Many clients may use one server; each has a socket with its address.
    socket.set_reuse_address(true)?;
    socket.set_mark(own_mark)?;
    socket.bind(&server.into())?;
    FlowSocket::new(socket, client, None)
}

/// Copies the waiting datagrams from one side to the other; true if there were any.
fn pump(from: &FlowSocket, to: &FlowSocket, bytes: &AtomicU64, counters: &Counters) -> bool {
    let mut came = false;
    BATCH.with_borrow_mut(|buffer| {
        for _ in 0..ROUNDS {
            let mut metas = [RecvMeta::default(); BATCH_SIZE];
            let mut chunks = buffer.chunks_exact_mut(BUFFER_BYTES);
            let mut parts: [IoSliceMut<'_>; BATCH_SIZE] =
                std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
            let received = from.io.try_io(Interest::READABLE, || {
                from.state.recv(UdpSockRef::from(&from.io), &mut parts, &mut metas)
            });
            match received {
                Ok(count) => {
                    came = true;
                    for (meta, part) in metas[..count].iter().zip(&parts) {
                        let part = &part[..meta.len.min(part.len())];
                        bytes.fetch_add(to.send(part, meta, counters) as u64, Relaxed);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // An ICMP error for an earlier datagram; the flow continues, as it would without the proxy.
                Err(_) => return,
            }
        }
    });
    came
}

/// Metadata of a datagram that was received by itself.
fn one(from: SocketAddr, len: usize) -> RecvMeta {
    RecvMeta { addr: from, len, stride: len, ecn: None, dst_ip: None }
}
