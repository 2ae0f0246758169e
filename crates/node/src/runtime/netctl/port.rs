//! Interfaces that are ports of another one: a bridge's, a bond's, a team's, a virtual switch's. What comes in by a port is the
//! other one's, so that a socket that is bound to the port hears nothing, and says nothing about it.

use anabranch_kern::interface;
use nix::net::if_::if_indextoname;
use rtnetlink::packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{InfoPortKind, LinkAttribute, LinkInfo, LinkMessage};
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{Socket, SocketAddr};
use std::fmt;

/// What an interface is a port of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortOf {
    /// Name of the other interface.
    pub name: String,
    /// Its kind, as `ip -d link` has it.
    pub kind: String,
}

impl fmt::Display for PortOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, kind } = self;
        write!(
            f,
            "it is a port of {name} ({kind}), which takes what comes in by it: name {name}, or take it out of there"
        )
    }
}

/// What the interface is a port of; none: of nothing, of a VRF (whose ports have their own addresses and packets), or there is no
/// such interface.
pub fn port_of(name: &str) -> Option<PortOf> {
    let link = link(interface::index(name).ok()?)?;
    let index = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Controller(index) if *index != 0 => Some(*index),
        _ => None,
    })?;
    let infos = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => Some(infos),
        _ => None,
    });
    let kind = infos.into_iter().flatten().find_map(|info| match info {
        LinkInfo::PortKind(kind) => Some(kind),
        _ => None,
    });
    if kind == Some(&InfoPortKind::Vrf) {
        return None;
    }
    let name = if_indextoname(index).ok()?.into_string().ok()?;
    Some(PortOf { name, kind: kind.map_or_else(|| "of another kind".to_owned(), ToString::to_string) })
}

/// What the kernel says of an interface. An answer that cannot be read says nothing.
fn link(index: u32) -> Option<LinkMessage> {
    let mut link = LinkMessage::default();
    link.header.index = index;
    let mut message = NetlinkMessage::from(RouteNetlinkMessage::GetLink(link));
    message.header.flags = NLM_F_REQUEST;
    let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) =
        NetlinkMessage::deserialize(&ask(message).ok()?).ok()?.payload
    else {
        return None;
    };
    Some(link)
}

/// The kernel's answer to one question.
pub fn ask(mut message: NetlinkMessage<RouteNetlinkMessage>) -> std::io::Result<Vec<u8>> {
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    let socket = Socket::new(NETLINK_ROUTE)?;
    // The kernel has answered by the time it has taken the question.
    socket.set_non_blocking(true)?;
    socket.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;
    Ok(socket.recv_from_full()?.0)
}
