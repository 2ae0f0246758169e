//! The UDP socket of an access.

use anabranch_engine::udp::interface_of;
use anyhow::Context;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{SockaddrStorage, setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

/// Kernel receive buffer, bytes: a quarter of a second at 250 Mbit/s.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
/// Kernel send buffer, bytes: small, so that a slow interface causes backpressure instead of delay.
const SEND_BUFFER_BYTES: usize = 1 << 20;

/// Interval and number of attempts to bind an address in use. Until it executes its program, a child of a
/// killed daemon keeps the daemon's sockets.
/// killed keeps the daemon's sockets.
const IN_USE: (Duration, u32) = (Duration::from_millis(20), 50);

/// Repeats `bind` for up to a second while the address is in use.
///
/// # Errors
///
/// The error of the last attempt.
pub fn bind_when_free<T, E: Into<anyhow::Error>>(
    mut bind: impl FnMut() -> Result<T, E>,
) -> anyhow::Result<T> {
    let (pause, most) = IN_USE;
    let in_use = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
    for _ in 0..most {
        match bind().map_err(Into::into) {
            Err(error) if error.downcast_ref().is_some_and(in_use) => std::thread::sleep(pause),
            other => return other,
        }
    }
    bind().map_err(Into::into)
}

/// Parameters of the socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketSpec {
    /// Address and port to bind; port 0 chooses one.
    pub local: SocketAddr,
    /// Interface to bind to.
    pub interface: Option<String>,
    /// Firewall mark.
    pub mark: Option<u32>,
    /// Whether several sockets share the port (SO_REUSEPORT).
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
    // Beyond the limits of net.core if permitted, otherwise up to them.
    if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES).is_err() {
        socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    }
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket
        .bind(&spec.local.into())
        .with_context(|| format!("binding to {}; is the address here, and the port free?", spec.local))?;
    Ok(socket.into())
}

/// The interface of this machine with this address; `None` if the address is not local.
pub fn owner_of(address: IpAddr) -> Option<String> {
    if address.is_loopback() { Some("lo".to_owned()) } else { interface_of(address) }
}

/// The addresses of this namespace except loopback, each with interface and prefix length.
pub fn addresses() -> Vec<(String, IpAddr, u8)> {
    let ip = |a: &SockaddrStorage| {
        let v4 = a.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        v4.or_else(|| a.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
    };
    let entries = nix::ifaddrs::getifaddrs().into_iter().flatten();
    entries
        .filter(|entry| !entry.flags.contains(InterfaceFlags::IFF_LOOPBACK))
        .filter_map(|entry| {
            let address = ip(entry.address.as_ref()?)?;
            let prefix = match ip(entry.netmask.as_ref()?)? {
                IpAddr::V4(mask) => mask.to_bits().count_ones(),
                IpAddr::V6(mask) => mask.to_bits().count_ones(),
            };
            Some((entry.interface_name, address, u8::try_from(prefix).ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_becomes_free_is_bound() {
        let held = UdpSocket::bind("127.0.0.1:0").unwrap();
        let spec =
            SocketSpec { local: held.local_addr().unwrap(), interface: None, mark: None, shared: false };
        assert!(bind_access(&spec).is_err());
        let mut held = Some(held);
        let bound = bind_when_free(|| {
            let bound = bind_access(&spec);
            held = None;
            bound
        });
        assert_eq!(bound.unwrap().local_addr().unwrap(), spec.local);
    }

    #[test]
    fn other_errors_are_returned_at_once() {
        let mut runs = 0;
        let bind = || {
            runs += 1;
            Err::<(), _>(io::Error::from(io::ErrorKind::PermissionDenied))
        };
        assert!(bind_when_free(bind).is_err());
        assert_eq!(runs, 1);
    }
}
