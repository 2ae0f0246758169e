//! UDP: a socket connected to one peer, or a listener's socket with peers distinguished by address.

use super::{DATAGRAM, Link, Opened, Read, Reader, Recipe, Writer, is_soft, taken};
use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;

/// Maximum number of simultaneous peers of one listener.
const MAX_PEERS: usize = 4096;
/// Maximum number of datagrams queued for one peer's connection; further ones are dropped, as usual with UDP.
const MAX_WAITING: usize = 128;

pub(super) fn open(recipe: &Recipe) -> io::Result<Opened> {
    let (socket, refused) = recipe.setup.socket(recipe.protocol, recipe.remote, &recipe.local)?;
    socket.connect(&recipe.remote.into())?;
    let socket = Arc::new(UdpSocket::from_std(socket.into())?);
    Ok(Opened {
        reader: Reader::Connected(socket.clone(), BytesMut::new()),
        writer: Writer::Connected(socket.clone()),
        link: Link::Connected(socket),
        refused,
        sent_first: false,
    })
}

pub(super) async fn read(socket: &UdpSocket, buffer: &mut BytesMut) -> io::Result<Read> {
    buffer.reserve(DATAGRAM);
    match socket.recv_buf(buffer).await {
        Ok(_) => Ok(Read::Data(taken(buffer))),
        Err(error) if is_soft(&error) => Ok(Read::Soft(error)),
        Err(error) => Err(error),
    }
}

pub(super) async fn write(
    socket: &UdpSocket,
    peer: Option<SocketAddr>,
    data: &[u8],
    soft: &mut (dyn FnMut(io::Error) + Send),
) -> io::Result<()> {
    let send = async || match peer {
        Some(peer) => socket.send_to(data, peer).await,
        None => socket.send(data).await,
    };
    match send().await {
        // The error was about an earlier datagram, and this one was not sent.
        Err(error) if is_soft(&error) => {
            soft(error);
            match send().await {
                Err(error) if is_soft(&error) => soft(error),
                result => drop(result?),
            }
        }
        result => drop(result?),
    }
    Ok(())
}

/// Interval at which a demultiplexer checks whether it is still in use.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Distributes datagrams to a listener's peers.
pub(crate) struct Demultiplexer {
    socket: Arc<UdpSocket>,
    /// Whether new peers are accepted.
    accepting: Arc<AtomicBool>,
    peers: BTreeMap<SocketAddr, mpsc::Sender<Bytes>>,
    buffer: BytesMut,
}

impl Demultiplexer {
    pub fn new(socket: UdpSocket, accepting: Arc<AtomicBool>) -> Self {
        Self { socket: Arc::new(socket), accepting, peers: BTreeMap::new(), buffer: BytesMut::new() }
    }

    /// Stops accepting new peers.
    pub fn stop(&self) {
        self.accepting.store(false, Relaxed);
    }

    /// Delivers datagrams to their connections; returns the next permitted new peer, with its first datagram. `None` after it was
    /// stopped and its connections are closed.
    pub async fn next(&mut self, allows: impl Fn(IpAddr) -> bool) -> Option<Opened> {
        loop {
            self.buffer.reserve(DATAGRAM);
            let received =
                tokio::time::timeout(CHECK_INTERVAL, self.socket.recv_buf_from(&mut self.buffer)).await;
            let accepting = self.accepting.load(Relaxed);
            if !accepting && self.peers.values().all(mpsc::Sender::is_closed) {
                return None;
            }
            let Ok(received) = received else { continue };
            // The error is about a datagram that was sent earlier.
            let Ok((_, peer)) = received else { continue };
            let data = taken(&mut self.buffer);
            if !allows(peer.ip()) {
                continue;
            }
            let data = match self.peers.get(&peer).map(|to| to.try_send(data.clone())) {
                Some(Ok(()) | Err(mpsc::error::TrySendError::Full(_))) => continue,
                // Its connection is closed: this is the first datagram of a new one.
                Some(Err(mpsc::error::TrySendError::Closed(_))) | None => data,
            };
            if !accepting {
                continue;
            }
            if self.peers.len() >= MAX_PEERS {
                self.peers.retain(|_, to| !to.is_closed());
                if self.peers.len() >= MAX_PEERS {
                    continue;
                }
            }
            let (to, datagrams) = mpsc::channel(MAX_WAITING);
            // A new queue has room.
            let _ = to.try_send(data);
            self.peers.insert(peer, to);
            return Some(Opened {
                reader: Reader::Sorted(datagrams),
                writer: Writer::To(self.socket.clone(), peer),
                link: Link::To(self.socket.clone(), peer),
                refused: Vec::new(),
                sent_first: false,
            });
        }
    }
}
