//! The egress of a socket's datagrams, which the kernel needs in order to send without the socket.

use crate::udp::interface_of;
use anabranch_kern::interface;
use socket2::{Domain, SockRef, Socket, Type};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, UdpSocket};

/// Length of an Ethernet header, bytes.
const ETHERNET: u32 = 14;

/// Local end of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalEndpoint {
    /// Local address towards the peer.
    pub local: SocketAddrV4,
    /// Interface index.
    pub interface: u32,
    /// Firewall mark of the datagrams.
    pub mark: u32,
}

/// The egress of datagrams from `socket` to `to`; `None` if it cannot be determined with certainty. The
/// conditions: IPv4; `source` is given if the peer used that address and the socket is bound to all
/// addresses; and the interface is an Ethernet interface with that address, to which the socket is bound or
/// to which the route with this source leads.
pub fn local_endpoint(socket: &UdpSocket, to: SocketAddr, source: Option<IpAddr>) -> Option<LocalEndpoint> {
    let SocketAddr::V4(_) = to else { return None };
    let SocketAddr::V4(bound) = socket.local_addr().ok()? else { return None };
    let asked = SockRef::from(socket);
    let mark = asked.mark().ok()?;
    let device = asked.device().ok()?;
    // The kernel determines the source: that of a connected socket.
    let probe = Socket::new(Domain::IPV4, Type::DGRAM, None).ok()?;
    probe.bind_device(device.as_deref()).ok()?;
    probe.set_mark(mark).ok()?;
    if !bound.ip().is_unspecified() {
        probe.bind(&SocketAddrV4::new(*bound.ip(), 0).into()).ok()?;
    }
    probe.connect(&to.into()).ok()?;
    let routed = *probe.local_addr().ok()?.as_socket_ipv4()?.ip();
    if source.is_some_and(|source| source != IpAddr::V4(routed)) {
        return None;
    }
    let name = match device {
        Some(name) => String::from_utf8(name).ok()?,
        None => interface_of(routed.into())?,
    };
    if interface::link_header_bytes(&name).ok()? != ETHERNET {
        return None;
    }
    let interface = interface::index(&name).ok()?;
    Some(LocalEndpoint { local: SocketAddrV4::new(routed, bound.port()), interface, mark })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_determines_address_and_interface() {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let found = local_endpoint(&socket, "127.0.0.1:9".parse().unwrap(), None).unwrap();
        assert_eq!(found.local, SocketAddrV4::new([127, 0, 0, 1].into(), port));
        assert_eq!(found.interface, interface::index("lo").unwrap());
        let other = Some("127.0.0.2".parse().unwrap());
        assert_eq!(
            local_endpoint(&socket, "127.0.0.1:9".parse().unwrap(), other),
            None,
            "answered from another address"
        );
        assert_eq!(local_endpoint(&socket, "[::1]:9".parse().unwrap(), None), None, "IPv4 only");
    }
}
