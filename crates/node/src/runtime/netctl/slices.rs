//! Routes and rules of slices: a mark, or the properties of a flow, select the routing table of the slice.
//!
//! ```text
//!  20600:      fwmark M      lookup M        redirected to the transparent proxy: local, through lo
//!  20700 + 2i: fwmark M      lookup T        slice i of [[slice]]
//!  20701 + 2i: fwmark M + 1  lookup T + 1    the same, with the initial window of its guarantee (initcwnd)
//!  20830 + i:  from A        lookup T        A: an address for which plans of Multipath TCP have slice i
//!  20900 + j:  a flow        lookup T…       [[mapping]] j
//! ```
//!
//! Their priorities precede the rules of the tunnel ([`super::plan`]), so packets of slices bypass the
//! tunnel.

use super::steps::PROTOCOL;
use anyhow::Context;
use ipnet::IpNet;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteMetric, RouteProtocol, RouteScope};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage, RulePortRange, RuleUidRange};
use rtnetlink::packet_route::{AddressFamily, IpProtocol};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Priority of the rule for packets redirected to the transparent proxy.
pub const PROXY_PRIORITY: u32 = 20_600;
/// Priority of the first rule of slices' marks.
pub const MARK_PRIORITY: u32 = 20_700;
/// Priority of the first rule of slices' addresses.
pub const SOURCE_PRIORITY: u32 = 20_830;
/// Priority of the first rule of mappings.
pub const MAPPING_PRIORITY: u32 = 20_900;

/// The packets that a rule selects; absent fields match everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    /// For IPv6.
    pub v6: bool,
    /// Firewall mark.
    pub mark: Option<u32>,
    /// Source address.
    pub local: Option<IpAddr>,
    /// IP protocol number.
    pub protocol: Option<u8>,
    /// Destination prefix.
    pub remote: Option<IpNet>,
    /// Destination ports, first and last.
    pub remote_port: Option<(u16, u16)>,
    /// User id of the sending process.
    pub uid: Option<u32>,
}

/// A default route in the table of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceRoute {
    /// For IPv6.
    pub v6: bool,
    /// Egress device.
    pub device: String,
    /// Router; `None`: all addresses are on-link.
    pub gateway: Option<IpAddr>,
    /// Routing table.
    pub table: u32,
    /// Initial window, segments; `None`: the kernel's default.
    pub initcwnd: Option<u32>,
}

pub(super) fn rule(priority: u32, table: u32, by: &Selector) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = if by.v6 { AddressFamily::Inet6 } else { AddressFamily::Inet };
    message.header.action = RuleAction::ToTable;
    message.header.table = u8::try_from(table).unwrap_or(0);
    let attributes = &mut message.attributes;
    attributes.extend([
        RuleAttribute::Priority(priority),
        RuleAttribute::Table(table),
        RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)),
    ]);
    attributes.extend(by.mark.map(RuleAttribute::FwMark));
    attributes.extend(by.protocol.map(|p| RuleAttribute::IpProtocol(IpProtocol::from(i32::from(p)))));
    let ports = by.remote_port.map(|(start, end)| RulePortRange { start, end });
    attributes.extend(ports.map(RuleAttribute::DestinationPortRange));
    attributes.extend(by.uid.map(|uid| RuleAttribute::UidRange(RuleUidRange { start: uid, end: uid })));
    if let Some(local) = by.local {
        message.header.src_len = if local.is_ipv6() { 128 } else { 32 };
        message.attributes.push(RuleAttribute::Source(local));
    }
    if let Some(remote) = by.remote.filter(|r| r.prefix_len() > 0) {
        message.header.dst_len = remote.prefix_len();
        message.attributes.push(RuleAttribute::Destination(remote.network()));
    }
    message
}

pub(super) fn route(index: u32, route: &SliceRoute) -> anyhow::Result<RouteMessage> {
    let all = if route.v6 { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
    let on_link = route.gateway.is_none() && !route.v6;
    let mut builder = RouteMessageBuilder::<IpAddr>::new()
        .destination_prefix(all, 0)
        .context("default route")?
        .output_interface(index)
        .table_id(route.table)
        .protocol(RouteProtocol::Other(PROTOCOL))
        .scope(if on_link { RouteScope::Link } else { RouteScope::Universe });
    if let Some(gateway) = route.gateway {
        builder = builder.gateway(gateway).with_context(|| format!("gateway {gateway}"))?;
    }
    let mut message = builder.build();
    if let Some(segments) = route.initcwnd {
        message.attributes.push(RouteAttribute::Metrics(vec![RouteMetric::InitCwnd(segments)]));
    }
    Ok(message)
}
