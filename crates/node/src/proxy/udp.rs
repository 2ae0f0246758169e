//! Reception of the first datagrams of UDP flows.
//!
//! Each flow has a socket of its own with the server's address, connected to the client, which receives the
//! later datagrams. Datagrams that arrive here before that socket is open wait in the flow's queue.

use super::flows::{FlowProperties, Refused};
use super::rules::Transport;
use super::{Proxy, udp_flow};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg};
use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Maximum number of datagrams of a flow that wait until its sockets are open.
const QUEUE: usize = 32;
/// Size of a buffer for any datagram, bytes.
const BUFFER_BYTES: usize = 65_536;
/// Datagrams read before other tasks run.
const BATCH: usize = 64;

/// Addresses of the client and of the server.
pub type FlowAddresses = (SocketAddr, SocketAddr);

/// Queues of the flows for datagrams that arrive at the listening socket.
#[derive(Clone, Default)]
pub struct FlowQueues(Arc<Mutex<HashMap<FlowAddresses, mpsc::Sender<Vec<u8>>>>>);

impl FlowQueues {
    fn with<T>(&self, with: impl FnOnce(&mut HashMap<FlowAddresses, mpsc::Sender<Vec<u8>>>) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Registration of a flow's queue, which ends when it is dropped.
pub struct QueueGuard {
    queues: FlowQueues,
    ends: FlowAddresses,
}

impl Drop for QueueGuard {
    fn drop(&mut self) {
        self.queues.with(|queues| queues.remove(&self.ends));
    }
}

/// Receives datagrams of new flows; returns only if the socket fails.
pub async fn receive(proxy: Arc<Proxy>, socket: UdpSocket, queues: FlowQueues) -> anyhow::Error {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut control = nix::cmsg_space!(nix::libc::sockaddr_in6, nix::libc::sockaddr_in6);
    // The tasks of flows end with the listener.
    let mut flows = JoinSet::new();
    loop {
        tokio::select! {
            ready = socket.readable() => if let Err(error) = ready { return error.into() },
            Some(_) = flows.join_next() => continue,
        }
        for _ in 0..BATCH {
            let one = socket.try_io(Interest::READABLE, || take(&socket, &mut buffer, &mut control));
            match one {
                Ok(Some((ends, len))) => deliver(&proxy, &queues, &mut flows, ends, &buffer[..len]),
                // A datagram without an original destination was not redirected.
                Ok(None) => proxy.flows.counters.drop_datagram(),
                Err(_) => break,
            }
        }
        tokio::task::coop::consume_budget().await;
    }
}

fn deliver(
    proxy: &Arc<Proxy>,
    queues: &FlowQueues,
    flows: &mut JoinSet<()>,
    ends: FlowAddresses,
    bytes: &[u8],
) {
    if let Some(door) = queues.with(|queues| queues.get(&ends).cloned()) {
        // The queue is full or the flow is ending; datagrams may be lost.
        if door.try_send(bytes.to_vec()).is_err() {
            proxy.flows.counters.drop_datagram();
        }
        return;
    }
    let (client, server) = ends;
    let known = FlowProperties::new(Transport::Udp, server);
    let Some(entry) = proxy.flows.open(client.ip(), client, known) else {
        return proxy.flows.counters.drop_datagram();
    };
    let (door, waiting) = mpsc::channel(QUEUE);
    // A new queue has room for one datagram.
    let _ = door.try_send(bytes.to_vec());
    queues.with(|queues| queues.insert(ends, door));
    let door = QueueGuard { queues: queues.clone(), ends };
    let proxy = proxy.clone();
    flows.spawn(async move {
        if let Err(why) = udp_flow::serve(&proxy, &entry, waiting).await {
            proxy.flows.refused.count(why);
        }
        drop(door);
    });
}

/// Receives one datagram: client, server and length. `Ok(None)`: it was not redirected.
fn take(
    socket: &UdpSocket,
    buffer: &mut [u8],
    control: &mut [u8],
) -> io::Result<Option<(FlowAddresses, usize)>> {
    let mut parts = [IoSliceMut::new(buffer)];
    let message =
        recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(control), MsgFlags::MSG_DONTWAIT)?;
    let server = message.cmsgs()?.find_map(|one| match one {
        ControlMessageOwned::Ipv4OrigDstAddr(a) => {
            let ip = u32::from_be(a.sin_addr.s_addr).into();
            Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(a.sin_port))))
        }
        ControlMessageOwned::Ipv6OrigDstAddr(a) => {
            let port = u16::from_be(a.sin6_port);
            Some(SocketAddr::V6(SocketAddrV6::new(a.sin6_addr.s6_addr.into(), port, 0, 0)))
        }
        _ => None,
    });
    let client = message.address.as_ref().and_then(|a| {
        a.as_sockaddr_in()
            .map(|a| SocketAddr::V4((*a).into()))
            .or_else(|| a.as_sockaddr_in6().map(|a| SocketAddr::V6((*a).into())))
    });
    Ok(client.zip(server).map(|ends| (ends, message.bytes)))
}

impl Refused {
    /// The reason for refusal that corresponds to an error of a socket.
    pub fn of_socket(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(nix::libc::ENETUNREACH | nix::libc::EHOSTUNREACH | nix::libc::ENETDOWN) => Self::Unreachable,
            _ => Self::Socket,
        }
    }
}
