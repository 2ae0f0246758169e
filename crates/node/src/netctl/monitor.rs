//! Whether an access can be used at all: interface, carrier, address, route; told the moment it changes.
//!
//! rtnetlink says *that* something changed; what it means is read afresh (interface flags, addresses, a
//! route lookup), so a missed or merged notification cannot leave a wrong picture.

use super::Net;
use super::socket::SocketSpec;
use anyhow::Context;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use rtnetlink::packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::route::{RouteAttribute, RouteFlags, RouteMessage};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::proto::sys::AsyncSocket;
use rtnetlink::sys::SocketAddr as NetlinkAddr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use tokio_stream::{Stream, StreamExt};

/// An access as the kernel must show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    /// Interface it leaves by.
    pub interface: Option<String>,
    /// Source address it must have.
    pub local: Option<IpAddr>,
    /// The far end.
    pub remote: SocketAddr,
    /// Firewall mark of its socket.
    pub mark: u32,
}

/// What an access looks like now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Why it cannot be used; `None`: it can.
    pub trouble: Option<&'static str>,
    /// Index of its interface: another one means another interface of the same name.
    pub index: Option<u32>,
}

impl Watched {
    /// Looks.
    pub async fn health(&self, net: &Net) -> Health {
        let index = self.interface.as_deref().and_then(|name| anabranch_kern::interface::index(name).ok());
        let mut trouble = self.trouble(index);
        if trouble.is_none() && !self.has_route(net, index).await {
            trouble = Some("no route to the UPF");
        }
        Health { trouble, index }
    }

    /// The socket this access uses.
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
            if !flags.contains(InterfaceFlags::IFF_RUNNING) {
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
        (!has_address).then_some("no address")
    }

    /// Asks the routing tables, as a socket of ours would. The plain lookup will not do: for a socket that
    /// is bound to an interface it takes everything without a route for on-link.
    async fn has_route(&self, net: &Net, index: Option<u32>) -> bool {
        let to = self.remote.ip();
        let mut route = RouteMessage::default();
        route.header.address_family = if to.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
        route.header.destination_prefix_length = if to.is_ipv6() { 128 } else { 32 };
        route.header.flags = RouteFlags::FibMatch;
        route.attributes = vec![RouteAttribute::Destination(to.into()), RouteAttribute::Mark(self.mark)];
        route.attributes.extend(index.map(RouteAttribute::Oif));
        let mut message = NetlinkMessage::from(RouteNetlinkMessage::GetRoute(route));
        message.header.flags = NLM_F_REQUEST;
        let mut handle = net.handle.clone();
        let Ok(mut answers) = handle.request(message) else { return true };
        // No answer is no verdict: the probes will find out.
        !matches!(answers.next().await, Some(NetlinkMessage { payload: NetlinkPayload::Error(_), .. }))
    }
}

/// Tells when something about links, addresses or routes changed.
pub struct Monitor {
    messages: Pin<Box<dyn Stream<Item = (NetlinkMessage<RouteNetlinkMessage>, NetlinkAddr)> + Send>>,
}

impl Monitor {
    /// Subscribes; must be called inside the tokio runtime.
    pub fn open() -> anyhow::Result<Self> {
        // RTNLGRP_LINK, IPV4_IFADDR, IPV4_ROUTE, IPV6_IFADDR, IPV6_ROUTE (linux/rtnetlink.h).
        let groups = [1u32, 5, 7, 9, 11].iter().fold(0, |mask, group| mask | 1 << (group - 1));
        let (mut connection, _, messages) = rtnetlink::new_connection().context("opening rtnetlink")?;
        connection
            .socket_mut()
            .socket_mut()
            .bind(&NetlinkAddr::new(0, groups))
            .context("subscribing to link, address and route changes")?;
        tokio::spawn(connection);
        Ok(Self { messages: Box::pin(messages) })
    }

    /// Waits for the next change. Changes that came together count as one.
    pub async fn changed(&mut self) -> anyhow::Result<()> {
        self.messages.next().await.context("rtnetlink ended")?;
        let more = std::time::Duration::ZERO;
        while let Ok(message) = tokio::time::timeout(more, self.messages.next()).await {
            message.context("rtnetlink ended")?;
        }
        Ok(())
    }
}
