//! The socket of a QUIC endpoint with a DSCP: quinn's own socket writes the whole traffic class with every send, for ECN, which
//! leaves no room for a DSCP. Receiving is delegated to quinn.

use anabranch_kern::datagram::{Datagrams, send};
use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use socket2::SockRef;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// A UDP socket with a DSCP.
#[derive(Debug)]
pub(super) struct Marked {
    io: UdpSocket,
    state: UdpSocketState,
    /// The DSCP, six bits.
    dscp: u8,
    /// Whether the device accepts batches (GSO); cleared when one is refused.
    batches: AtomicBool,
}

impl Marked {
    /// Wraps a bound non-blocking socket; must be called within the runtime.
    pub fn new(socket: std::net::UdpSocket, dscp: u8) -> io::Result<Arc<Self>> {
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Arc::new(Self { io: UdpSocket::from_std(socket)?, state, dscp, batches: AtomicBool::new(true) }))
    }
}

impl AsyncUdpSocket for Marked {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable { socket: self, waits: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let datagrams = Datagrams {
            to: transmit.destination,
            from: transmit.src_ip,
            bytes: transmit.contents,
            segment_bytes: transmit.segment_size.and_then(|bytes| u16::try_from(bytes).ok()),
            class: self.dscp << 2 | transmit.ecn.map_or(0, |ecn| ecn as u8),
        };
        let sent = self.io.try_io(Interest::WRITABLE, || send(&SockRef::from(&self.io), &datagrams));
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            // A refused datagram is lost, as any datagram may be; QUIC retransmits it, then without batches.
            Err(error) => {
                if datagrams.segment_bytes.is_some() && self.batches.swap(false, Relaxed) {
                    tracing::info!("UDP: no batches from now on ({error})");
                }
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.io.poll_recv_ready(cx))?;
            let receive = || self.state.recv((&self.io).into(), buffers, metas);
            match self.io.try_io(Interest::READABLE, receive) {
                Ok(count) => return Poll::Ready(Ok(count)),
                // No longer writable, or an ICMP error about an earlier datagram.
                Err(_) => continue,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        if self.batches.load(Relaxed) { self.state.max_gso_segments() } else { 1 }
    }

    fn max_receive_segments(&self) -> usize {
        self.state.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }
}

type Waits = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

/// A task that waits for room in the socket's buffer; one per connection.
struct Writable {
    socket: Arc<Marked>,
    waits: Option<Waits>,
}

impl std::fmt::Debug for Writable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Writable({:?})", self.socket.io)
    }
}

impl UdpPoller for Writable {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = self.socket.clone();
        let waits = self.waits.get_or_insert_with(|| Box::pin(async move { socket.io.writable().await }));
        let done = ready!(waits.as_mut().poll(cx));
        self.waits = None;
        Poll::Ready(done)
    }
}
