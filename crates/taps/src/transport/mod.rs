//! The protocols, each as a reader, a writer, and a link with information about both.

mod datagram;
mod marked;
mod quic;
mod stream;

pub(crate) use datagram::Demultiplexer;
pub(crate) use quic::{accept_stream, another, server};
pub(crate) use stream::opened as of_stream;

use crate::endpoint::LocalEndpoint;
use crate::group::ConnectionProperties;
use crate::security::Security;
use crate::setup::Setup;
use anabranch_selection::Protocol;
use bytes::{Bytes, BytesMut};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::mpsc;

/// Maximum number of bytes per read.
const READ: usize = 64 << 10;
/// Maximum size of a datagram (RFC 768).
const DATAGRAM: usize = 65_535;

/// Parameters for opening a candidate, and its clones.
#[derive(Debug, Clone)]
pub(crate) struct Recipe {
    pub protocol: Protocol,
    pub remote: SocketAddr,
    pub setup: Setup,
    pub local: LocalEndpoint,
    pub security: Security,
    /// The required name in the peer's certificate.
    pub server_name: String,
    /// Whether ICMP errors are reported.
    pub soft_errors: bool,
}

/// An open connection.
pub(crate) struct Opened {
    pub reader: Reader,
    pub writer: Writer,
    pub link: Link,
    /// Failed steps for the treatment of packets.
    pub refused: Vec<String>,
    /// Whether the first message was sent with the handshake.
    pub sent_first: bool,
}

impl Recipe {
    /// Opens the connection. `first`, if given, may be sent more than once.
    pub async fn open(
        &self,
        connection_properties: &ConnectionProperties,
        first: Option<&Bytes>,
    ) -> io::Result<Opened> {
        match self.protocol {
            Protocol::Tcp | Protocol::Mptcp => stream::open(self, connection_properties).await,
            Protocol::Udp => datagram::open(self),
            Protocol::Quic => quic::open(self, connection_properties, first).await,
        }
    }
}

/// Result of a read.
pub(crate) enum Read {
    /// A part of a stream, or one datagram.
    Data(Bytes),
    /// An error that does not end the connection.
    Soft(io::Error),
    /// The peer will send no further data.
    End,
}

/// Takes the received data. Small amounts are copied, so that they do not keep the whole buffer alive.
fn taken(buffer: &mut BytesMut) -> Bytes {
    if buffer.len() > READ / 4 {
        return buffer.split().freeze();
    }
    let data = Bytes::copy_from_slice(buffer);
    buffer.clear();
    data
}

/// The receiver.
pub(crate) enum Reader {
    Stream(Arc<TcpStream>, BytesMut),
    Connected(Arc<UdpSocket>, BytesMut),
    /// Datagrams of one peer of a listener's socket.
    Sorted(mpsc::Receiver<Bytes>),
    Quic(quinn::RecvStream),
}

impl Reader {
    /// Reads available data, at most `most` bytes of a stream. Cancel-safe.
    pub async fn read(&mut self, most: usize) -> io::Result<Read> {
        match self {
            Self::Stream(socket, buffer) => stream::read(socket, buffer, most.clamp(1, READ)).await,
            Self::Connected(socket, buffer) => datagram::read(socket, buffer).await,
            Self::Sorted(datagrams) => Ok(datagrams.recv().await.map_or(Read::End, Read::Data)),
            Self::Quic(stream) => {
                let chunk = stream.read_chunk(most.clamp(1, READ), true).await?;
                Ok(chunk.map_or(Read::End, |c| Read::Data(c.bytes)))
            }
        }
    }

    /// Whether data read now may be a replay (RFC 9622 §9.3.3.2).
    pub fn is_early(&self) -> bool {
        matches!(self, Self::Quic(stream) if stream.is_0rtt())
    }
}

/// The sender.
pub(crate) enum Writer {
    Stream(Arc<TcpStream>),
    Connected(Arc<UdpSocket>),
    /// To one of a listener's peers.
    To(Arc<UdpSocket>, SocketAddr),
    Quic(quinn::SendStream),
}

impl Writer {
    /// Sends all data, or one datagram. `soft` is called for errors that do not end the connection.
    pub async fn write(&mut self, data: Bytes, soft: &mut (dyn FnMut(io::Error) + Send)) -> io::Result<()> {
        match self {
            Self::Stream(socket) => stream::write(socket, &data, soft).await,
            Self::Connected(socket) => datagram::write(socket, None, &data, soft).await,
            Self::To(socket, peer) => datagram::write(socket, Some(*peer), &data, soft).await,
            Self::Quic(stream) => stream.write_chunk(data).await.map_err(Into::into),
        }
    }

    /// Sets the priority, smaller is more urgent; effective only among streams of one connection.
    pub fn prioritise(&self, priority: u32) {
        if let Self::Quic(stream) = self {
            // A stream that was reset has no priority.
            let _ = stream.set_priority(-i32::try_from(priority).unwrap_or(i32::MAX));
        }
    }

    /// Whether an error means only the loss of the message: a datagram that is too long, or for which there was no buffer or no
    /// permission.
    pub fn loses_only(&self, error: &io::Error) -> bool {
        let here = [nix::libc::EMSGSIZE, nix::libc::ENOBUFS, nix::libc::EPERM];
        matches!(self, Self::Connected(_) | Self::To(..))
            && error.raw_os_error().is_some_and(|code| here.contains(&code))
    }

    /// Signals the end to the peer where the protocol can, and waits for the acknowledgement of all data where it is visible.
    pub async fn finish(&mut self) -> io::Result<()> {
        match self {
            Self::Stream(socket) => socket2::SockRef::from(&**socket).shutdown(std::net::Shutdown::Write),
            Self::Connected(_) | Self::To(..) => Ok(()),
            Self::Quic(stream) => quic::finish(stream).await,
        }
    }
}

/// Information about an open connection.
#[derive(Clone)]
pub(crate) enum Link {
    Stream(Arc<TcpStream>),
    Connected(Arc<UdpSocket>),
    To(Arc<UdpSocket>, SocketAddr),
    /// The endpoint ends with its last link.
    Quic(quinn::Connection, quinn::Endpoint),
}

impl Link {
    pub fn remote(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Stream(socket) => socket.peer_addr(),
            Self::Connected(socket) => socket.peer_addr(),
            Self::To(_, peer) => Ok(*peer),
            Self::Quic(connection, _) => Ok(connection.remote_address()),
        }
    }

    pub fn local(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Stream(socket) => socket.local_addr(),
            Self::Connected(socket) | Self::To(socket, _) => socket.local_addr(),
            Self::Quic(connection, endpoint) => {
                let bound = endpoint.local_addr()?;
                Ok(SocketAddr::new(connection.local_ip().unwrap_or(bound.ip()), bound.port()))
            }
        }
    }

    /// The socket used only by this connection.
    pub fn own_socket(&self) -> Option<socket2::SockRef<'_>> {
        match self {
            Self::Stream(socket) => Some(socket2::SockRef::from(&**socket)),
            Self::Connected(socket) => Some(socket2::SockRef::from(&**socket)),
            Self::To(..) | Self::Quic(..) => None,
        }
    }

    /// Makes the connection end abruptly once all parts are dropped.
    pub fn cut(&self) {
        match self {
            Self::Stream(socket) => {
                // Fails only if the connection is already gone.
                let _ = socket2::SockRef::from(&**socket).set_linger(Some(std::time::Duration::ZERO));
            }
            Self::Connected(_) | Self::To(..) => {}
            Self::Quic(connection, _) => connection.close(quinn::VarInt::from_u32(1), b"aborted"),
        }
    }
}

/// Transient errors from ICMP (RFC 1122 §4.2.3.9): the connection continues.
fn is_soft(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    matches!(error.kind(), HostUnreachable | NetworkUnreachable | ConnectionRefused)
}
