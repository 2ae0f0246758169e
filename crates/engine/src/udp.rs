//! UDP in batches: datagrams of equal length to one peer are sent in one system call (GSO), and received
//! likewise (GRO).
//!
//! ```text
//!  reserve(access, to, len) ─▶ open batch of the access ── other peer or length, full, end of batch ─▶ sendmsg
//!                              [ dgram │ dgram │ dgram │ short ]    one length; only the last may be shorter
//! ```

use super::fast::{self, Fast, LocalEndpoint};
use anabranch_atsss::fast::FastFlow;
use anabranch_atsss::session::Addresses;
use anabranch_atsss::{DatagramSink, PathId};
use anabranch_element::time::Instant;
use anabranch_wire::ip::FlowKey;
use nix::sys::socket::{setsockopt, sockopt};
use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};

/// Size of a receive buffer: the largest GRO batch that the kernel delivers.
const BUFFER_BYTES: usize = 65536;
/// Number of buffers per receive call.
const BUFFERS: usize = 16;
/// Maximum payload of one GSO send: 64 KiB minus IPv4 and UDP headers, rounded down.
const MAX_BATCH_BYTES: usize = 65000;
/// Maximum number of segments in one GSO send (kernels before 6.9 refuse more).
const MAX_SEGMENTS: usize = 64;
/// Number of peers whose local address is remembered. A socket bound to all addresses sends from the address
/// that the peer used in its last authentic datagram.
const SOURCES: usize = 1024;

/// Counters of an access socket since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SocketCounters {
    /// Datagrams received.
    pub rx_datagrams: u64,
    /// Buffers in which they were received.
    pub rx_buffers: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Datagrams sent.
    pub tx_datagrams: u64,
    /// System calls for sending.
    pub tx_batches: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Datagrams dropped because the socket's buffer was full.
    pub tx_full: u64,
    /// Datagrams that exceeded the interface MTU.
    pub tx_too_big: u64,
    /// Datagrams that the kernel refused for another reason: no route, no address, interface down.
    pub tx_errors: u64,
}

/// The interface with this address.
pub fn interface_of(address: IpAddr) -> Option<String> {
    nix::ifaddrs::getifaddrs().ok()?.find_map(|entry| {
        let a = entry.address?;
        let has = match address {
            IpAddr::V4(v4) => a.as_sockaddr_in().is_some_and(|a| a.ip() == v4),
            IpAddr::V6(v6) => a.as_sockaddr_in6().is_some_and(|a| a.ip() == v6),
        };
        has.then_some(entry.interface_name)
    })
}

/// A UDP socket bound to one access, with batches by GSO and GRO.
pub struct AccessSocket {
    socket: UdpSocket,
    state: UdpSocketState,
    batch: Batch,
    /// Local address used by each peer, by a hash of the peer; only if bound to all addresses.
    sources: Option<Box<[Option<Source>]>>,
    /// Peer and local address of the datagram being processed; answers to it are sent from that address.
    arrived: Option<Source>,
    counters: SocketCounters,
    last_error: Option<i32>,
}

/// A peer and the local address that it used.
type Source = (SocketAddr, IpAddr);

struct Batch {
    bytes: Box<[u8]>,
    len: usize,
    segment_bytes: usize,
    segments: usize,
    to: SocketAddr,
    /// Source address; `None`: the kernel chooses.
    from: Option<IpAddr>,
    /// The last datagram was shorter, so that none can follow.
    closed: bool,
}

impl AccessSocket {
    /// Wraps a bound socket. `replies`: it serves many peers, each of which must be answered from the address
    /// that it used. `gro`: the kernel may deliver several datagrams as one. This must be off with the
    /// kernel's fast path, whose packets would overtake datagrams that wait to be merged.
    pub fn new(socket: UdpSocket, replies: bool, gro: bool) -> io::Result<Self> {
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        if !gro {
            setsockopt(&socket, sockopt::UdpGroSegment, &false)?;
        }
        let local = socket.local_addr()?;
        Ok(Self {
            state,
            batch: Batch {
                bytes: vec![0; BUFFER_BYTES].into_boxed_slice(),
                len: 0,
                segment_bytes: 0,
                segments: 0,
                to: local,
                from: None,
                closed: false,
            },
            sources: (replies && local.ip().is_unspecified()).then(|| vec![None; SOURCES].into_boxed_slice()),
            arrived: None,
            socket,
            counters: SocketCounters::default(),
            last_error: None,
        })
    }

    pub fn counters(&self) -> SocketCounters {
        self.counters
    }

    /// The error of the last refused send; reset by this call.
    pub fn take_error(&mut self) -> Option<io::Error> {
        self.last_error.take().map(io::Error::from_raw_os_error)
    }

    fn reserve(&mut self, to: SocketAddr, len: usize) -> Option<&mut [u8]> {
        if len > MAX_BATCH_BYTES {
            return None;
        }
        let from = self.source_for(to);
        let batch = &self.batch;
        let follows = batch.len > 0
            && !batch.closed
            && batch.to == to
            && batch.from == from
            && len <= batch.segment_bytes
            && batch.len + len <= MAX_BATCH_BYTES
            && batch.segments < MAX_SEGMENTS.min(self.state.max_gso_segments());
        if !follows {
            self.flush();
            (self.batch.to, self.batch.from) = (to, from);
            self.batch.segment_bytes = len;
        }
        let batch = &mut self.batch;
        batch.closed = len < batch.segment_bytes;
        batch.segments += 1;
        let at = batch.len;
        batch.len += len;
        Some(&mut batch.bytes[at..at + len])
    }

    /// Removes the datagram that was reserved last from the batch.
    fn withdraw(&mut self) {
        let batch = &mut self.batch;
        batch.segments = batch.segments.saturating_sub(1);
        // All datagrams but the last have the length of the first.
        batch.len = batch.segments * batch.segment_bytes;
        batch.closed = false;
    }

    /// Sends the open batch.
    pub fn flush(&mut self) {
        if self.batch.len == 0 {
            return;
        }
        let Batch { len, segment_bytes, segments, to, from: src_ip, .. } = self.batch;
        match self.send(0..len, (segments > 1).then_some(segment_bytes), to, src_ip) {
            Ok(()) => self.sent(segments, len),
            // Offload was refused, or a datagram is too long for it: send each by itself.
            Err(error) if segments > 1 && is_too_big_or_unsupported(&error) => {
                for start in (0..len).step_by(segment_bytes) {
                    let end = (start + segment_bytes).min(len);
                    match self.send(start..end, None, to, src_ip) {
                        Ok(()) => self.sent(1, end - start),
                        Err(error) => self.refused(1, &error),
                    }
                }
            }
            Err(error) => self.refused(segments, &error),
        }
        self.batch.len = 0;
        self.batch.segments = 0;
        self.batch.closed = false;
    }

    fn send(
        &self,
        range: std::ops::Range<usize>,
        segment_size: Option<usize>,
        destination: SocketAddr,
        src_ip: Option<IpAddr>,
    ) -> io::Result<()> {
        let transmit =
            Transmit { destination, ecn: None, contents: &self.batch.bytes[range], segment_size, src_ip };
        self.state.try_send(UdpSockRef::from(&self.socket), &transmit)
    }

    fn sent(&mut self, datagrams: usize, bytes: usize) {
        self.counters.tx_batches += 1;
        self.counters.tx_datagrams += datagrams as u64;
        self.counters.tx_bytes += bytes as u64;
    }

    fn refused(&mut self, datagrams: usize, error: &io::Error) {
        let counter = match error.kind() {
            ErrorKind::WouldBlock => &mut self.counters.tx_full,
            _ if error.raw_os_error() == Some(nix::libc::EMSGSIZE) => &mut self.counters.tx_too_big,
            _ => {
                self.last_error = error.raw_os_error();
                &mut self.counters.tx_errors
            }
        };
        *counter += datagrams as u64;
    }

    fn local_endpoint(&self, to: SocketAddr) -> Option<LocalEndpoint> {
        fast::local_endpoint(&self.socket, to, self.source_for(to))
    }

    fn source_for(&self, to: SocketAddr) -> Option<IpAddr> {
        let learned = self.sources.as_ref()?[slot(to)];
        let known = [self.arrived, learned].into_iter().flatten();
        known.into_iter().find(|(peer, _)| *peer == to).map(|(_, source)| source)
    }
}

impl AsRawFd for AccessSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// The sockets of all accesses: the [`DatagramSink`] of the data path.
pub struct Sockets {
    accesses: Vec<Option<AccessSocket>>,
    fast: Option<Fast>,
}

impl Sockets {
    /// One socket per access, in the order of path ids; `None` for an access without a socket.
    pub fn new(accesses: Vec<Option<AccessSocket>>) -> Self {
        Self { accesses, fast: None }
    }

    /// Enables the kernel's fast path for flows that sessions give away.
    pub fn set_fast(&mut self, fast: Option<Fast>) {
        self.fast = fast;
    }

    /// Time of the next collection from the kernel's fast path.
    pub fn next_look(&self) -> Option<Instant> {
        self.fast.as_ref()?.next()
    }

    /// The kernel's fast path, if enabled.
    pub fn fast(&mut self) -> Option<&mut Fast> {
        self.fast.as_mut()
    }

    /// The socket of an access.
    pub fn get_mut(&mut self, access: usize) -> Option<&mut AccessSocket> {
        self.accesses.get_mut(access)?.as_mut()
    }

    /// Replaces the socket of an access; returns the old one.
    pub fn replace(&mut self, access: usize, socket: Option<AccessSocket>) -> Option<AccessSocket> {
        if let (Some(fast), Ok(access)) = (&mut self.fast, PathId::try_from(access)) {
            fast.moved(access);
        }
        self.accesses.get_mut(access).and_then(|slot| std::mem::replace(slot, socket))
    }

    /// Number of accesses.
    pub(crate) fn len(&self) -> usize {
        self.accesses.len()
    }

    /// Starts processing a datagram from `peer` to the local address `local`.
    pub fn begin(&mut self, access: PathId, peer: SocketAddr, local: Option<IpAddr>) {
        if let Some(socket) = self.get_mut(access.into()) {
            socket.arrived = local.map(|local| (peer, local));
        }
    }

    /// Ends processing a datagram. Only an authentic one determines the local address that the peer uses,
    /// because the source of others may be forged.
    pub fn end(&mut self, access: PathId, authentic: bool) {
        if let Some(socket) = self.get_mut(access.into())
            && let Some(source) = socket.arrived.take()
            && let Some(sources) = socket.sources.as_mut().filter(|_| authentic)
        {
            sources[slot(source.0)] = Some(source);
        }
    }

    /// All accesses that have a socket.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut AccessSocket)> {
        self.accesses.iter_mut().enumerate().filter_map(|(i, s)| Some((i, s.as_mut()?)))
    }

    /// Sends all open batches; called at the end of every batch of input.
    pub fn flush(&mut self) {
        for (_, socket) in self.iter_mut() {
            socket.flush();
        }
    }
}

impl DatagramSink for Sockets {
    fn reserve(&mut self, path: PathId, to: SocketAddr, len: usize) -> Option<&mut [u8]> {
        self.accesses.get_mut(usize::from(path))?.as_mut()?.reserve(to, len)
    }

    fn withdraw(&mut self, path: PathId) {
        if let Some(socket) = self.get_mut(path.into()) {
            socket.withdraw();
        }
    }

    fn offload(&mut self, flow: &FastFlow, now: Instant) {
        let Self { accesses, fast } = self;
        let socket = accesses.get(usize::from(flow.lane.access)).and_then(Option::as_ref);
        if let (Some(fast), Some(socket)) = (fast, socket) {
            fast.offload(flow, now, || socket.local_endpoint(flow.lane.to));
        }
    }

    fn revoke(&mut self, session: Addresses, flow: Option<&FlowKey>) {
        if let Some(fast) = &mut self.fast {
            fast.revoke(session, flow);
        }
    }
}

/// Receive buffers, shared by the sockets of a worker.
pub struct Inbox {
    bytes: Box<[u8]>,
    meta: [RecvMeta; BUFFERS],
    filled: usize,
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            bytes: vec![0; BUFFERS * BUFFER_BYTES].into_boxed_slice(),
            meta: [RecvMeta::default(); BUFFERS],
            filled: 0,
        }
    }
}

impl Inbox {
    /// Receives the waiting datagrams of `socket`, at most [`BUFFERS`] buffers; returns their number, 0 if
    /// none were waiting.
    pub fn receive(&mut self, socket: &mut AccessSocket) -> io::Result<usize> {
        self.filled = 0;
        let mut chunks = self.bytes.chunks_exact_mut(BUFFER_BYTES);
        let mut buffers: [IoSliceMut<'_>; BUFFERS] =
            std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
        let filled = match socket.state.recv(UdpSockRef::from(&socket.socket), &mut buffers, &mut self.meta) {
            Ok(filled) => filled,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Ok(0);
            }
            // An ICMP error about an earlier datagram; there may be datagrams nevertheless.
            Err(error)
                if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable) =>
            {
                return Ok(0);
            }
            Err(error) => return Err(error),
        };
        for meta in &self.meta[..filled] {
            socket.counters.rx_buffers += 1;
            socket.counters.rx_bytes += meta.len as u64;
            socket.counters.rx_datagrams += meta.len.div_ceil(meta.stride.max(1)) as u64;
        }
        self.filled = filled;
        Ok(filled)
    }

    /// Whether more may be waiting after a receive of this many buffers: a call that does not fill all of
    /// them has reached the end.
    pub fn may_be_more(filled: usize) -> bool {
        filled == BUFFERS
    }

    /// Passes every received datagram to `each`, in order: source address, local destination address,
    /// payload.
    pub fn for_each(&mut self, mut each: impl FnMut(SocketAddr, Option<IpAddr>, &mut [u8])) {
        let buffers = self.bytes.chunks_exact_mut(BUFFER_BYTES);
        for (buffer, meta) in buffers.zip(&self.meta[..self.filled]) {
            let len = meta.len.min(buffer.len());
            for datagram in buffer[..len].chunks_mut(meta.stride.max(1)) {
                each(meta.addr, meta.dst_ip, datagram);
            }
        }
        self.filled = 0;
    }
}

fn slot(peer: SocketAddr) -> usize {
    let address = match peer.ip() {
        IpAddr::V4(a) => u64::from(u32::from(a)),
        IpAddr::V6(a) => {
            let bits = u128::from(a);
            (bits >> 64) as u64 ^ bits as u64
        }
    };
    // Fibonacci hashing: the high bits depend on every bit of the input.
    let hash = (address << 16 ^ u64::from(peer.port())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> 54) as usize % SOURCES
}

fn is_too_big_or_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(nix::libc::EMSGSIZE | nix::libc::EINVAL | nix::libc::EIO))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Sockets, AccessSocket, SocketAddr) {
        let bind = || AccessSocket::new(UdpSocket::bind("127.0.0.1:0").unwrap(), true, true).unwrap();
        let (a, b) = (bind(), bind());
        let to = b.socket.local_addr().unwrap();
        (Sockets::new(vec![Some(a)]), b, to)
    }

    fn received(socket: &mut AccessSocket, want: usize) -> Vec<Vec<u8>> {
        let (mut inbox, mut got) = (Inbox::default(), Vec::new());
        for _ in 0..200 {
            inbox.receive(socket).unwrap();
            inbox.for_each(|_, _, d| got.push(d.to_vec()));
            if got.len() >= want {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        got
    }

    #[test]
    fn datagrams_keep_their_boundaries_and_order() {
        let (mut sockets, mut far, to) = pair();
        let lengths: Vec<usize> = (0..300).map(|i| if i % 50 < 40 { 1200 } else { 100 + i }).collect();
        for (i, len) in lengths.iter().enumerate() {
            sockets.reserve(0, to, *len).unwrap().fill(i as u8);
            if i % 100 == 99 {
                sockets.flush();
                let got = received(&mut far, 100);
                let want: Vec<Vec<u8>> = (i - 99..=i).map(|j| vec![j as u8; lengths[j]]).collect();
                assert_eq!(got, want);
            }
        }
        let counters = sockets.get_mut(0).unwrap().counters();
        assert_eq!(counters.tx_datagrams, 300);
        assert!(counters.tx_batches < 150, "{counters:?}");
    }

    #[test]
    fn a_withdrawn_datagram_is_not_sent_and_the_others_are() {
        let (mut sockets, mut far, to) = pair();
        for (n, len) in [1000, 1000, 300, 1000, 1000].into_iter().enumerate() {
            sockets.reserve(0, to, len).unwrap().fill(n as u8);
            if n != 1 && n != 4 {
                let withdrawn = sockets.reserve(0, to, 200 + n).unwrap();
                withdrawn.fill(0xbb);
                sockets.withdraw(0);
            } else {
                sockets.withdraw(0);
            }
        }
        sockets.flush();
        let got = received(&mut far, 3);
        assert_eq!(got, [vec![0; 1000], vec![2; 300], vec![3; 1000]]);
        assert_eq!(sockets.get_mut(0).unwrap().counters().tx_datagrams, 3);
        sockets.reserve(0, to, 10).unwrap();
        sockets.withdraw(0);
        sockets.withdraw(7);
        sockets.flush();
        assert_eq!(sockets.get_mut(0).unwrap().counters().tx_datagrams, 3, "nothing is left of it");
    }

    #[test]
    fn only_authentic_datagrams_set_the_local_address_for_a_peer() {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let mut sockets = Sockets::new(vec![Some(AccessSocket::new(socket, true, true).unwrap())]);
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        peer.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        let to = peer.local_addr().unwrap();
        // Sends a datagram to a local address, processes and answers it; returns the source address of the
        // answer and of later datagrams.
        let mut hears = |local: &str, authentic: bool| {
            peer.send_to(b"x", (local, port)).unwrap();
            let mut inbox = Inbox::default();
            while inbox.receive(sockets.get_mut(0).unwrap()).unwrap() == 0 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            inbox.for_each(|from, local, _| {
                sockets.begin(0, from, local);
                sockets.reserve(0, from, 5).unwrap().fill(1);
                sockets.end(0, authentic);
            });
            sockets.reserve(0, to, 5).unwrap().fill(2);
            sockets.flush();
            let by = || {
                (0..2).map(|_| peer.recv_from(&mut [0; 9]).unwrap().1.ip().to_string()).collect::<Vec<_>>()
            };
            by()
        };
        assert_eq!(hears("127.0.0.1", true), ["127.0.0.1", "127.0.0.1"]);
        let spoofed = hears("127.0.0.2", false);
        assert_eq!(spoofed, ["127.0.0.2", "127.0.0.1"], "the answer, and what the session sends");
        assert_eq!(hears("127.0.0.3", true), ["127.0.0.3", "127.0.0.3"]);
    }

    #[test]
    fn failed_sends_are_counted_and_the_others_are_sent() {
        let (mut sockets, mut far, to) = pair();
        assert!(sockets.reserve(1, to, 10).is_none());
        assert!(sockets.reserve(0, to, 65_001).is_none());
        let nowhere = "255.255.255.255:9".parse().unwrap();
        sockets.reserve(0, nowhere, 10).unwrap();
        sockets.reserve(0, to, 10).unwrap().fill(7);
        sockets.flush();
        assert_eq!(received(&mut far, 1), [[7; 10]]);
        let socket = sockets.get_mut(0).unwrap();
        assert_eq!(socket.counters().tx_errors, 1);
        assert!(socket.take_error().is_some() && socket.take_error().is_none());
    }
}
