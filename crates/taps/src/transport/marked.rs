//! The socket of a QUIC endpoint whose datagrams have a code point: quinn's own writes the whole traffic class with every
//! send, for ECN, and leaves no room for one. Receiving is quinn's.

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

/// See the file's first lines.
#[derive(Debug)]
pub(super) struct Marked {
    io: UdpSocket,
    state: UdpSocketState,
    /// Six bits.
    dscp: u8,
    /// Whether the device takes batches; until one is refused.
    batches: AtomicBool,
}

impl Marked {
    /// On a bound socket that does not wait; inside the runtime.
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
            // What is refused is lost, as any datagram may be; QUIC sends it again, in single ones.
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
                // Not any more, or what ICMP says of an earlier datagram.
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

/// One task that waits for room in the socket's buffer; there is one per connection.
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
