//! The socket towards a server, configured according to a plan.

use super::flows::Counters;
use super::policy::Candidate;
use crate::runtime::netctl;
use crate::runtime::relay::transparent;
use anabranch_selection::Protocol as Carrier;
use anabranch_selection::plan::Action;
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;

/// Creates an unconnected socket for a candidate. `source` is the client's address, if the server is to see
/// it. `own_mark` prevents packets that carry no slice's mark from being redirected to the proxy.
///
/// # Errors
/// The kernel refuses the socket, or a step of the plan that determines the path.
pub fn socket(
    candidate: &Candidate,
    server: SocketAddr,
    source: Option<IpAddr>,
    own_mark: u32,
    counters: &Counters,
) -> io::Result<Socket> {
    let (kind, protocol) = match candidate.protocol {
        Carrier::Mptcp => {
            netctl::warn_of_kernel();
            (Type::STREAM, Protocol::MPTCP)
        }
        Carrier::Udp | Carrier::Quic => (Type::DGRAM, Protocol::UDP),
        Carrier::Tcp => (Type::STREAM, Protocol::TCP),
    };
    let socket = Socket::new(Domain::for_address(server), kind.nonblocking(), Some(protocol))?;
    let mut mark = own_mark;
    let mut local = source;
    for action in &candidate.plan {
        match action {
            Action::Mark { mark: slice, .. } => mark = *slice,
            Action::Device { interface } => socket.bind_device(Some(interface.as_bytes()))?,
            Action::LocalAddress { address, .. } => local = local.or(Some(*address)),
            Action::Pacing { bps } => {
                refine(counters, "pacing", anabranch_kern::socket::set_max_pacing_rate(&socket, bps / 8));
            }
            Action::CongestionControl { name } => {
                refine(counters, "congestion control", socket.set_tcp_congestion(name.as_bytes()));
            }
            Action::Dscp { dscp } => refine(counters, "code point", set_dscp(&socket, *dscp)),
            // Set elsewhere: by the protocol; by a route or the agent; by the kernel's path manager.
            Action::Mptcp | Action::InitialWindow { .. } | Action::MptcpEndpoint { .. } => {}
            // An unknown step may be one that the path depends on.
            Action::Unknown => return Err(io::ErrorKind::Unsupported.into()),
        }
    }
    socket.set_mark(mark)?;
    if let Some(address) = local {
        if source.is_some() {
            transparent(&socket, address.is_ipv6())?;
        }
        // The port is chosen when the server is known, because many flows may share an address.
        refine(
            counters,
            "late port",
            setsockopt(&socket, sockopt::IpBindAddressNoPort, &true).map_err(Into::into),
        );
        socket.bind(&SockAddr::from(SocketAddr::new(address, 0)))?;
    }
    Ok(socket)
}

fn set_dscp(socket: &Socket, dscp: u8) -> io::Result<()> {
    let field = u32::from(dscp) << 2;
    if socket.domain()? == Domain::IPV6 { socket.set_tclass_v6(field) } else { socket.set_tos_v4(field) }
}

/// Applies a step that improves a flow without changing its path; if the kernel refuses it, the flow
/// continues without it.
fn refine(counters: &Counters, what: &str, done: io::Result<()>) {
    if let Err(error) = done {
        if counters.plan_failures.fetch_add(1, Relaxed) == 0 {
            tracing::warn!("{what}: the kernel refuses it ({error}); flows continue without it");
        } else {
            tracing::debug!("{what}: the kernel refuses it ({error})");
        }
    }
}
