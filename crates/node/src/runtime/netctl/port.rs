//! Interfaces that are ports of another one: of a bridge, a bond, a team, or a virtual switch. Packets
//! received by a port belong to the other interface, so a socket bound to the port receives nothing, without
//! an error.

use anabranch_kern::interface;
use nix::net::if_::if_indextoname;
use rtnetlink::packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{InfoPortKind, LinkAttribute, LinkInfo, LinkMessage};
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{Socket, SocketAddr};
use std::fmt;

/// The interface that owns a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortOf {
    /// Name of the other interface.
    pub name: String,
    /// Kind of that interface, as shown by `ip -d link`.
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

/// The owner of a port; `None` if the interface does not exist or is not a port. A port of a VRF does not
/// count, because it has its own addresses and packets.
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

/// The kernel's data about an interface; `None` if the answer cannot be parsed.
fn link(index: u32) -> Option<LinkMessage> {
    let mut link = LinkMessage::default();
    link.header.index = index;
    let mut message = NetlinkMessage::from(RouteNetlinkMessage::GetLink(link));
    message.header.flags = NLM_F_REQUEST;
    let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) =
        NetlinkMessage::deserialize(&request(message).ok()?).ok()?.payload
    else {
        return None;
    };
    Some(link)
}

/// The kernel's answer to one request.
pub fn request(mut message: NetlinkMessage<RouteNetlinkMessage>) -> std::io::Result<Vec<u8>> {
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    let socket = Socket::new(NETLINK_ROUTE)?;
    // The kernel answers synchronously.
    socket.set_non_blocking(true)?;
    socket.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;
    Ok(socket.recv_from_full()?.0)
}
