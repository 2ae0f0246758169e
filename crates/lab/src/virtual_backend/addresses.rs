//! The address plan of the virtual backend. The addresses are not visible outside.
//!
//! | what | address |
//! |---|---|
//! | UE number k on link (or, after the links, cell) number L: tunnel, applications without tunnel | 10.128.0.0 + L·4096 + 16 + 2k, + 1 |
//! | UPF p, access a | 172.16.p.(1+a), port 4500 |
//! | UE u inside the tunnel of UPF p | 10.(45+p).0.0 + 2 + u |
//! | UE u of LWIP node n: on the bearer, on Wi-Fi | 10.(64+n).0.0 + 16 + 2u, + 1 |
//! | LWIP node n, source of its measurements of the legs | 10.(64+n).0.1 |
//! | server s | 10.3.s.1 |
//! | any of these over IPv6 | fd00:46::, then the 32 bits |

use crate::scenario::Case;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// UDP port of the tunnel at the UPF.
const TUNNEL_PORT: u16 = 4500;
/// First port of the UEs' applications.
pub const FIRST_PORT: u16 = 20_000;
const LINK_BITS: u32 = 12;
const MAX_LINKS: usize = 1 << 11;
const MAX_UES: usize = 2000;
const MAX_NODES: usize = 32;
const MAX_UPFS: usize = 16;
const MAX_SERVERS: usize = 256;

/// Number of a link; cells follow the links.
pub fn link_number(case: &Case, name: &str) -> Option<usize> {
    let cell = || case.gnbs.keys().position(|gnb| gnb == name).map(|g| case.links.len() + g);
    case.links.keys().position(|link| link == name).or_else(cell)
}

/// Checks that the address plan has room for `case`.
///
/// # Errors
/// There are too many objects of one kind; with their number and the limit.
pub fn enough(case: &Case) -> Result<(), String> {
    let kinds = [
        ("LWIP nodes", case.lwips.len(), MAX_NODES),
        ("links and cells", case.links.len() + case.gnbs.len(), MAX_LINKS),
        ("UEs", case.ues.len(), MAX_UES),
        ("UPFs", case.upfs.len(), MAX_UPFS),
        ("servers", case.servers.len(), MAX_SERVERS),
        ("flows", case.flows.len(), usize::from(u16::MAX - FIRST_PORT)),
    ];
    match kinds.into_iter().find(|(_, have, most)| have > most) {
        Some((what, have, most)) => {
            Err(format!("{have} {what}: the virtual backend has addresses for {most}"))
        }
        None => Ok(()),
    }
}

/// Address of the tunnel end of a UE on a link.
pub fn tunnel(link: usize, ue: usize) -> SocketAddr {
    SocketAddr::new(access(link, 2 * ue).into(), TUNNEL_PORT)
}

/// Address of a UE on a link for applications without tunnel.
pub fn direct(link: usize, ue: usize) -> Ipv4Addr {
    access(link, 2 * ue + 1)
}

fn access(link: usize, host: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x0a80_0000 + ((link as u32) << LINK_BITS) + 16 + host as u32)
}

/// Prefix of a link.
pub fn link(link: usize) -> IpNet {
    let first = Ipv4Addr::from(0x0a80_0000 + ((link as u32) << LINK_BITS));
    net(first, 32 - LINK_BITS as u8)
}

/// Address of a UPF for an access.
pub fn upf(upf: usize, access: usize) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(172, 16, upf as u8, 1 + access as u8).into(), TUNNEL_PORT)
}

/// Address of a UE inside the tunnel.
pub fn inner(upf: usize, ue: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0000 + ((45 + upf as u32) << 16) + 2 + ue as u32)
}

/// Prefix of all UEs inside the tunnel of a UPF.
pub fn pool(upf: usize) -> IpNet {
    net(Ipv4Addr::new(10, 45 + upf as u8, 0, 0), 16)
}

/// Address of a UE of an LWIP node on its bearer.
pub fn bearer(node: usize, ue: usize) -> Ipv4Addr {
    of_node(node, 16 + 2 * ue)
}

/// Address of a UE of an LWIP node on Wi-Fi.
pub fn wifi(node: usize, ue: usize) -> Ipv4Addr {
    of_node(node, 17 + 2 * ue)
}

/// Source address of an LWIP node's measurements of its legs.
pub fn prober(node: usize) -> Ipv4Addr {
    of_node(node, 1)
}

fn of_node(node: usize, host: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x0a40_0000 + ((node as u32) << 16) + host as u32)
}

/// Address of a server.
pub fn server(server: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 3, server as u8, 1)
}

/// A host address as a prefix.
pub fn host(address: Ipv4Addr) -> IpNet {
    net(address, 32)
}

/// The default prefix.
pub fn anywhere() -> IpNet {
    net(Ipv4Addr::UNSPECIFIED, 0)
}

/// The corresponding IPv6 address.
pub fn v6(address: Ipv4Addr) -> Ipv6Addr {
    let bits = (0xfd00_0046_u128 << 96) | u128::from(u32::from(address));
    Ipv6Addr::from(bits)
}

/// The prefix and, if `ipv6`, the corresponding IPv6 prefix.
pub fn both(prefix: IpNet, ipv6: bool) -> impl Iterator<Item = IpNet> {
    let twin = match prefix {
        IpNet::V4(v4) if v4.prefix_len() == 0 => Some(Ipv6Net::default()),
        IpNet::V4(v4) => Ipv6Net::new(v6(v4.network()), 96 + v4.prefix_len()).ok(),
        IpNet::V6(_) => None,
    };
    std::iter::once(prefix).chain(twin.filter(|_| ipv6).map(IpNet::from))
}

fn net(address: Ipv4Addr, bits: u8) -> IpNet {
    // Lengths above 32 do not occur here; they would be truncated to one address.
    Ipv4Net::new(address, bits.min(32)).unwrap_or_else(|_| Ipv4Net::from(address)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_unique() {
        assert!(!link(0).contains(&link(1).addr()));
        assert!(link(MAX_LINKS - 1).contains(&std::net::IpAddr::V4(direct(MAX_LINKS - 1, MAX_UES - 1))));
        assert_ne!(tunnel(3, 4).ip(), direct(3, 4));
        assert!(bearer(0, 5) != wifi(0, 5) && bearer(MAX_NODES - 1, MAX_UES) < direct(0, 0));
        assert!(!pool(MAX_UPFS - 1).contains(&std::net::IpAddr::V4(prober(0))));
        assert!(both(link(7), true).any(|net| net.contains(&std::net::IpAddr::V6(v6(direct(7, 5))))));
        assert!(both(host(server(1)), true).all(|net| !net.contains(&std::net::IpAddr::V6(v6(server(2))))));
        assert_eq!(both(anywhere(), true).count(), 2);
        assert_eq!(both(anywhere(), false).count(), 1);
        assert!(pool(2).contains(&std::net::IpAddr::V4(inner(2, 700))));
    }
}
