//! The UDP socket of an access.

use anyhow::Context;
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use std::net::{IpAddr, SocketAddr, UdpSocket};

/// Kernel receive buffer: a quarter of a second at 250 Mbit/s.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
/// Kernel send buffer: small, so that a slow interface pushes back instead of adding delay.
const SEND_BUFFER_BYTES: usize = 1 << 20;

/// How to open it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketSpec {
    /// Address and port to bind; port 0 chooses one.
    pub local: SocketAddr,
    /// Interface to bind to.
    pub interface: Option<String>,
    /// Firewall mark.
    pub mark: Option<u32>,
    /// One of several on the same port.
    pub shared: bool,
}

/// Opens and binds a socket.
pub fn bind_access(spec: &SocketSpec) -> anyhow::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(spec.local), Type::DGRAM, Some(Protocol::UDP))?;
    if spec.local.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    if let Some(interface) = &spec.interface {
        socket.bind_device(Some(interface.as_bytes())).with_context(|| {
            format!("binding to interface {interface}; does it exist, and may you (CAP_NET_RAW)?")
        })?;
    }
    if let Some(mark) = spec.mark {
        socket.set_mark(mark).context("setting the firewall mark; CAP_NET_ADMIN is needed")?;
    }
    if spec.shared {
        socket.set_reuse_port(true)?;
    }
    // Past the limits of net.core where we may, up to them where not.
    if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES).is_err() {
        socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    }
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket
        .bind(&spec.local.into())
        .with_context(|| format!("binding to {}; is the address here, and the port free?", spec.local))?;
    Ok(socket.into())
}

/// The interface that has `address`.
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
