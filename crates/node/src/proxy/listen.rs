//! The listening sockets of the proxy on 127.0.0.1 and ::1. They are transparent, so their local address is
//! the program's destination.

use super::udp::{self, FlowQueues};
use super::{Proxy, tcp};
use crate::runtime::relay;
use anyhow::Context;
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Protocol, Type};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;

/// Receive buffer for the first datagrams of flows, bytes.
const UDP_BUFFER_BYTES: usize = 4 << 20;

/// The open sockets.
pub struct Listeners {
    tcp: Vec<TcpListener>,
    udp: Vec<UdpSocket>,
    v6: bool,
}

impl Listeners {
    /// Opens the sockets. Their mark, which connections inherit, prevents that their packets are redirected
    /// again.
    ///
    /// # Errors
    /// The port is in use, or capabilities are missing.
    pub fn bind(port: u16, own_mark: u32) -> anyhow::Result<Self> {
        let mut listeners = Self { tcp: Vec::new(), udp: Vec::new(), v6: true };
        for ip in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            let at = SocketAddr::new(ip, port);
            let place = || format!("[proxy] port = {port}: {at}");
            let tcp = match relay::intercepting_socket(at, Type::STREAM, Protocol::TCP, own_mark) {
                Err(error) if ip.is_ipv6() && relay::no_ipv6(&error) => {
                    tracing::info!("no IPv6 on this machine: only IPv4 is intercepted");
                    listeners.v6 = false;
                    continue;
                }
                other => other.with_context(place)?,
            };
            tcp.listen(relay::BACKLOG).with_context(place)?;
            listeners.tcp.push(TcpListener::from_std(tcp.into())?);
            let udp =
                relay::intercepting_socket(at, Type::DGRAM, Protocol::UDP, own_mark).with_context(place)?;
            if ip.is_ipv4() {
                setsockopt(&udp, sockopt::Ipv4OrigDstAddr, &true)?;
            } else {
                setsockopt(&udp, sockopt::Ipv6OrigDstAddr, &true)?;
            }
            if setsockopt(&udp, sockopt::RcvBufForce, &UDP_BUFFER_BYTES).is_err() {
                udp.set_recv_buffer_size(UDP_BUFFER_BYTES)?;
            }
            listeners.udp.push(UdpSocket::from_std(udp.into())?);
        }
        Ok(listeners)
    }

    /// Whether IPv6 is available.
    pub const fn v6(&self) -> bool {
        self.v6
    }

    /// Serves connections and datagrams until the returned set is dropped; a task ends only with an error.
    pub fn serve(self, proxy: &Arc<Proxy>) -> JoinSet<anyhow::Error> {
        let mut tasks = JoinSet::new();
        for listener in self.tcp {
            let proxy = proxy.clone();
            tasks.spawn(async move {
                let serve = |client, from| tcp::serve(proxy.clone(), client, from);
                match relay::accept(&proxy.flows, listener, serve).await {}
            });
        }
        for socket in self.udp {
            tasks.spawn(udp::receive(proxy.clone(), socket, FlowQueues::default()));
        }
        tasks
    }
}
