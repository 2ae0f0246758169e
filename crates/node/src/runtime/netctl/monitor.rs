//! Usability of accesses (interface, carrier, address, route), with notification of changes.
//!
//! An rtnetlink notification only triggers a check, which reads the current state (interface flags,
//! addresses, a route lookup), so missed or merged notifications do no harm. Only the type of a notification
//! is evaluated, because libraries cannot parse all routes (for example with `congctl cubic`).

use super::port::{self, port_of};
use super::socket::SocketSpec;
use anabranch_engine::udp::interface_of;
use anyhow::Context;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use rtnetlink::packet_core::{NLM_F_REQUEST, NLMSG_ERROR, NetlinkBuffer, NetlinkMessage};
use rtnetlink::packet_route::route::{RouteAttribute, RouteFlags, RouteMessage};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use rtnetlink::sys::{AsyncSocket, AsyncSocketExt, SocketAddr as NetlinkAddr, TokioSocket};
use std::borrow::Cow;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The requirements of an access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    /// Egress interface.
    pub interface: Option<String>,
    /// Required source address.
    pub local: Option<IpAddr>,
    /// Address of the UPF.
    pub remote: SocketAddr,
    /// Firewall mark of the socket.
    pub mark: u32,
}

/// State of an access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Reason why it is unusable; `None`: it is usable.
    pub trouble: Option<Cow<'static, str>>,
    /// Index of its interface; a change means that another interface has the same name.
    pub index: Option<u32>,
}

/// Reasons of an access without a source address.
const NO_ADDRESS: [&str; 3] = [
    "no address",
    "no address: local is not an address of the interface",
    "no address: local is not an address of this machine",
];

impl Watched {
    /// Checks the current state.
    pub fn health(&self) -> Health {
        let index = self.interface.as_deref().and_then(|name| anabranch_kern::interface::index(name).ok());
        let mut trouble = self.trouble(index).map(Cow::Borrowed);
        // The addresses and routes of a port are irrelevant.
        if trouble.as_deref().is_none_or(|trouble| NO_ADDRESS.contains(&trouble))
            && let Some(of) = self.port_of()
        {
            trouble = Some(Cow::Owned(of.to_string()));
        }
        if trouble.is_none() && !self.has_route(index) {
            trouble = Some(Cow::Borrowed("no route to the UPF"));
        }
        Health { trouble, index }
    }

    /// Parameters of the socket for this access.
    pub fn socket(&self) -> SocketSpec {
        let any =
            if self.remote.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        SocketSpec {
            local: SocketAddr::new(self.local.unwrap_or(any), 0),
            interface: self.interface.clone(),
            mark: Some(self.mark),
            shared: false,
        }
    }

    fn port_of(&self) -> Option<port::PortOf> {
        let by_address = || interface_of(self.local?);
        port_of(&self.interface.clone().or_else(by_address)?)
    }

    fn trouble(&self, index: Option<u32>) -> Option<&'static str> {
        if self.interface.is_some() && index.is_none() {
            return Some("no such interface");
        }
        let entries: Vec<_> = getifaddrs().ok()?.collect();
        if let Some(name) = &self.interface {
            let flags = entries.iter().find(|e| &e.interface_name == name).map(|e| e.flags)?;
            if !flags.contains(InterfaceFlags::IFF_UP) {
                return Some("interface is off");
            }
            // IFF_RUNNING follows when the kernel reports the loss, up to a second later.
            if !flags.contains(InterfaceFlags::IFF_RUNNING | InterfaceFlags::IFF_LOWER_UP) {
                return Some("no carrier");
            }
        }
        let usable = |address: IpAddr| {
            address.is_ipv6() == self.remote.is_ipv6() && self.local.is_none_or(|local| local == address)
        };
        let has_address = entries.iter().any(|entry| {
            let address = entry.address.as_ref().and_then(|a| {
                a.as_sockaddr_in()
                    .map(|a| IpAddr::V4(a.ip()))
                    .or_else(|| a.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
            });
            self.interface.as_ref().is_none_or(|name| &entry.interface_name == name)
                && address.is_some_and(usable)
        });
        let [none, not_of_interface, not_of_machine] = NO_ADDRESS;
        let reason = match (self.local, &self.interface) {
            (None, _) => none,
            (Some(_), Some(_)) => not_of_interface,
            (Some(_), None) => not_of_machine,
        };
        (!has_address).then_some(reason)
    }

    /// Queries the routing tables in the same way as a socket. A plain look-up is not sufficient: with an
    /// output interface, it treats destinations without a route as on-link.
    fn has_route(&self, index: Option<u32>) -> bool {
        // If there is no answer, the probes will show the state.
        self.request_route(index).unwrap_or(true)
    }

    fn request_route(&self, index: Option<u32>) -> std::io::Result<bool> {
        let to = self.remote.ip();
        let mut route = RouteMessage::default();
        route.header.address_family = if to.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
        route.header.destination_prefix_length = if to.is_ipv6() { 128 } else { 32 };
        route.header.flags = RouteFlags::FibMatch;
        route.attributes = vec![RouteAttribute::Destination(to.into()), RouteAttribute::Mark(self.mark)];
        route.attributes.extend(index.map(RouteAttribute::Oif));
        let mut message = NetlinkMessage::from(RouteNetlinkMessage::GetRoute(route));
        message.header.flags = NLM_F_REQUEST;
        let answer = port::request(message)?;
        let answer = NetlinkBuffer::new_checked(&answer).map_err(std::io::Error::other)?;
        Ok(answer.message_type() != NLMSG_ERROR)
    }
}

/// Notifies of changes of links, addresses, routes and rules.
pub struct Monitor {
    socket: TokioSocket,
}

impl Monitor {
    /// Subscribes; must be called inside the tokio runtime.
    pub fn open() -> anyhow::Result<Self> {
        // RTNLGRP_LINK, IPV4_IFADDR, IPV4_ROUTE, IPV4_RULE, IPV6_IFADDR, IPV6_ROUTE, IPV6_RULE (linux/rtnetlink.h).
        let groups = [1u32, 5, 7, 8, 9, 11, 19].iter().fold(0, |mask, group| mask | 1 << (group - 1));
        let socket = subscribe(NETLINK_ROUTE, groups);
        Ok(Self { socket: socket.context("subscribing to changes of links, addresses, routes and rules")? })
    }

    /// Waits for the next change. Simultaneous changes count as one.
    pub async fn changed(&mut self) -> anyhow::Result<()> {
        let mut taken = self.socket.recv_from_full().await.map(drop);
        loop {
            match taken {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // Notifications were lost (buffer overflow), which also means a change.
                Err(error) if error.raw_os_error() == Some(nix::libc::ENOBUFS) => {}
                Err(error) => return Err(error).context("rtnetlink"),
            }
            taken = self.socket.socket_ref().recv_from_full().map(drop);
        }
    }
}

/// Notifies of removed nftables tables of any program.
pub struct TableMonitor {
    socket: TokioSocket,
}

/// Type of an nfnetlink message (linux/netfilter/nf_tables.h): NFNL_SUBSYS_NFTABLES and NFT_MSG_DELTABLE.
const TABLE_REMOVED: u16 = 10 << 8 | 2;

impl TableMonitor {
    /// Subscribes; must be called inside the tokio runtime.
    pub fn open() -> anyhow::Result<Self> {
        // NFNLGRP_NFTABLES (linux/netfilter/nfnetlink.h).
        let socket = subscribe(NETLINK_NETFILTER, 1 << 6);
        Ok(Self { socket: socket.context("subscribing to changes of nftables")? })
    }

    /// Waits until a table was removed, or may have been because notifications were lost. Cancel-safe.
    pub async fn removed(&mut self) -> anyhow::Result<()> {
        loop {
            match self.socket.recv_from_full().await {
                Ok((messages, _)) if kinds(&messages).any(|kind| kind == TABLE_REMOVED) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(nix::libc::ENOBUFS) => return Ok(()),
                Err(error) => return Err(error).context("nfnetlink"),
            }
        }
    }
}

fn subscribe(protocol: isize, groups: u32) -> std::io::Result<TokioSocket> {
    let mut socket = TokioSocket::new(protocol)?;
    socket.socket_mut().bind(&NetlinkAddr::new(0, groups))?;
    Ok(socket)
}

/// The types of the messages in a datagram (struct nlmsghdr).
fn kinds(mut messages: &[u8]) -> impl Iterator<Item = u16> {
    std::iter::from_fn(move || {
        let [a, b, c, d, e, f, ..] = *messages.first_chunk::<16>()?;
        let length = u32::from_ne_bytes([a, b, c, d]) as usize;
        // A length shorter than the header would cause an endless loop.
        messages = messages.get(length.max(16).next_multiple_of(4)..).unwrap_or_default();
        Some(u16::from_ne_bytes([e, f]))
    })
}
