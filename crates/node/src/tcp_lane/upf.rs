//! The UPF's end, a Transport Converter (RFC 8803): the first message of a flow has its destination; the flow
//! continues from there with the address of the session and the port of the UE's program.
//!
//! ```text
//!  accepted ─▶ the session by its address ─▶ share left? ─▶ Connect TLV ─▶ may it go there? ─▶ connect from the session's address
//!      both ways until both ends are done ◀── Extended TCP Header TLV ◀── the server accepted
//!                                     close ◀── Error TLV ◀── it did not
//! ```
//!
//! Only authenticated UEs reach the converter, because the lane's device carries only packets of sessions.
//! Nevertheless each step has a time limit, and each session a share.

use super::converse::{self, ReceiveError};
use super::flows::{Carrier, Entry, FlowProperties, Flows, Reason};
use super::{Namespace, congestion_control};
use crate::runtime::config::UpfLaneSection;
use crate::runtime::netctl;
use crate::runtime::relay::{self, failure, reset};
use anabranch_atsss::destinations::Destinations;
use anabranch_atsss::tcp_lane;
use anabranch_engine::ends::UpfEnd;
use anabranch_engine::worker::Handle;
use anabranch_kern::socket::mptcp_paths;
use anabranch_wire::convert::{ErrorCode, MPTCP_OPTION, Message, Tlv, VERSION, encode, refusal};
use anyhow::Context;
use ipnet::IpNet;
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

/// Time for a UE to close a refused connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of bytes discarded during that time.
const MAX_DISCARDED_BYTES: usize = 256 << 10;

/// The UPF's end.
pub struct UpfLane {
    /// The open flows.
    pub flows: Arc<Flows>,
    namespace: Namespace,
    /// Addresses of sessions; flows between sessions use the packet lane.
    pools: Vec<IpNet>,
    /// Permitted destinations of flows.
    destinations: Destinations,
    shards: Vec<Handle<UpfEnd>>,
    config: UpfLaneSection,
}

/// A request in a message.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    /// Connect to this server, from this port if possible.
    Connect(SocketAddr, Option<u16>),
    /// Return the supported extensions.
    Info,
}

impl UpfLane {
    /// A lane without flows. `namespace` has the lane's device, and a route to servers on which all of
    /// `pools` may be the source.
    pub fn new(
        namespace: Namespace,
        pools: Vec<IpNet>,
        destinations: Destinations,
        shards: Vec<Handle<UpfEnd>>,
        config: UpfLaneSection,
    ) -> anyhow::Result<Self> {
        let limit = Flows::possible(config.flows, config.workers)?;
        let flows = Arc::new(Flows::new(limit, config.flows_per_session as usize));
        Ok(Self { flows, namespace, pools, destinations, shards, config })
    }

    /// Resets the flows of a session.
    pub fn reset_flows(&self, session: Ipv4Addr) -> usize {
        let flows = self.flows.of_owner(session.into());
        flows.iter().for_each(|flow| flow.end());
        flows.len()
    }

    /// Opens the socket to which UEs connect.
    pub async fn listen(&self) -> anyhow::Result<std::net::TcpListener> {
        let algorithm = self.config.congestion_control.clone();
        let make = move || {
            netctl::warn_of_kernel();
            let socket = Socket::new(Domain::IPV6, Type::STREAM.nonblocking(), Some(Protocol::MPTCP))
                .context("Multipath TCP (CONFIG_MPTCP)")?;
            // Connections inherit the setting.
            congestion_control(&socket, &algorithm)?;
            socket.set_only_v6(true)?;
            socket.bind(&SockAddr::from(SocketAddr::new(tcp_lane::UPF.into(), tcp_lane::PORT)))?;
            socket.listen(relay::BACKLOG)?;
            Ok(socket.into())
        };
        self.namespace.run(make).await.context("the TCP lane's port")
    }

    fn keepalive(&self) -> Duration {
        Duration::from_secs(self.config.keepalive_s.into())
    }

    /// Whether the destination is permitted. The UPF's own firewall applies in addition, as for packets.
    fn admits(&self, server: SocketAddr) -> bool {
        let ip = server.ip();
        let special = match ip {
            IpAddr::V4(v4) => v4.is_broadcast() || v4.is_link_local() || v4.octets()[0] == 0,
            IpAddr::V6(v6) => v6.is_unicast_link_local() || tcp_lane::contains(ip),
        };
        let own = self.pools.iter().any(|pool| pool.contains(&ip));
        server.port() > 0
            && self.destinations.admits(ip)
            && !(special || own || ip.is_loopback() || ip.is_multicast() || ip.is_unspecified())
    }

    /// The session's address in the family of the server.
    async fn source(&self, session: Ipv4Addr, server: SocketAddr) -> Option<IpAddr> {
        if server.is_ipv4() {
            return Some(session.into());
        }
        for shard in &self.shards {
            let found = shard.query(move |worker, _| worker.end.upf.addresses_of(session.into())).await;
            if let Ok(Some(addresses)) = found {
                return addresses.v6.map(IpAddr::V6);
            }
        }
        None
    }

    /// Connects to the server from the session's address.
    async fn connect(&self, source: IpAddr, port: Option<u16>, server: SocketAddr) -> io::Result<TcpStream> {
        let taken =
            |error: &io::Error| matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable);
        let with = async |port| {
            let socket = self.socket(SocketAddr::new(source, port), server).await?;
            TcpSocket::from_std_stream(socket.into()).connect(server).await
        };
        match with(port.unwrap_or(0)).await {
            // An earlier connection of the same program still uses the port: with another port the server can
            // distinguish them.
            Err(error) if port.is_some() && taken(&error) => with(0).await,
            other => other,
        }
    }

    async fn socket(&self, from: SocketAddr, server: SocketAddr) -> io::Result<Socket> {
        let keepalive = self.keepalive();
        let make = move || {
            let socket =
                Socket::new(Domain::for_address(server), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
            relay::relayed(&socket, keepalive)?;
            // One port of a session may be used for many servers.
            socket.set_reuse_address(true)?;
            if from.port() == 0 {
                let _ = setsockopt(&socket, sockopt::IpBindAddressNoPort, &true);
            }
            socket.bind(&SockAddr::from(from))?;
            Ok(socket)
        };
        self.namespace.run(make).await.map_err(|error| error.downcast().unwrap_or_else(io::Error::other))
    }

    async fn serve(&self, ue: TcpStream, from: SocketAddr) {
        let Some((session, _)) = tcp_lane::parse(from.ip()) else { return reset(&ue) };
        let Some(entry) = self.flows.open(session.into(), from, FlowProperties::default()) else {
            return reset(&ue);
        };
        let ue = Arc::new(ue);
        entry.serve(&ue, self.convert(&entry, session, &ue)).await;
    }

    async fn convert(&self, entry: &Entry, session: Ipv4Addr, ue: &Arc<TcpStream>) {
        let refused = &self.flows.refused;
        let _ = relay::relayed(&SockRef::from(ue), self.keepalive());
        let refuse = async |why: Reason, code: ErrorCode, value: &[u8]| {
            refused.count(why);
            send_final(ue, &[Tlv::Error { code, value }]).await;
        };
        if self.flows.memory.is_over(session.into()) {
            return refuse(Reason::Memory, ErrorCode::ResourceExceeded, &[0]).await;
        }
        let bytes = match timeout(self.config.first_bytes(), converse::receive(ue)).await {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(ReceiveError::Malformed(error))) => {
                return refuse(Reason::Malformed, refusal(&error), &[VERSION]).await;
            }
            Ok(Err(ReceiveError::Failed(_))) | Err(_) => {
                refused.count(Reason::Silent);
                return reset(ue);
            }
        };
        let (server, port) = match request(&bytes) {
            Ok(Request::Connect(server, port)) => (server, port),
            Ok(Request::Info) => {
                return send_final(ue, &[Tlv::SupportedTcpExtensions { kinds: &[MPTCP_OPTION] }]).await;
            }
            Err((code, value)) => return refuse(Reason::Malformed, code, &[value]).await,
        };
        let flow = &entry.flow.of;
        // Set only here.
        let _ = flow.server.set(server);
        if !self.admits(server) {
            return refuse(Reason::Destination, ErrorCode::NotAuthorized, &[0]).await;
        }
        let Some(source) = self.source(session, server).await else {
            return refuse(Reason::Destination, ErrorCode::DestinationUnreachable, &[0]).await;
        };
        let connected = tokio::select! {
            connected = timeout(self.config.connect(), self.connect(source, port, server)) => connected,
            _ = failure(ue) => return,
        };
        let far = match connected.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())) {
            Ok(far) => Arc::new(far),
            Err(error) => {
                tracing::debug!(ue = %session, %server, "connecting: {error}");
                let (why, code) = explain(&error);
                return refuse(why, code, &[0]).await;
            }
        };
        let multipath = matches!(mptcp_paths(&**ue), Ok(Some(_)));
        let _ = flow.carrier.set(if multipath { Carrier::Mptcp } else { Carrier::Tcp });
        let _ = flow.lane_stream.set(Arc::downgrade(ue));
        let Ok(accepted) = encode(&[Tlv::ExtendedTcpHeader { options: &[] }]) else { return reset(ue) };
        match converse::send(ue, &accepted).await {
            Ok(()) => entry.relay(ue, &far).await,
            Err(error) => entry.reset_both(ue, &far, &error),
        }
    }
}

/// Accepts flows of UEs for ever; their tasks end with it.
pub async fn accept(lane: Arc<UpfLane>, listener: TcpListener) -> Infallible {
    let serve = |ue, from| {
        let lane = lane.clone();
        async move { lane.serve(ue, from).await }
    };
    relay::accept(&lane.flows, listener, serve).await
}

/// The request in a message, or code and value of the error that answers it.
fn request(bytes: &[u8]) -> Result<Request, (ErrorCode, u8)> {
    let (message, _) = Message::parse(bytes).map_err(|error| (refusal(&error), VERSION))?;
    let (mut server, mut port, mut info) = (None, None, false);
    for tlv in message.tlvs() {
        match tlv {
            Tlv::Connect { server: to, options } => {
                // Only options that the kernel adds to a SYN by itself are supported.
                if let Some(kind) = options.iter().find(|kind| **kind > 1) {
                    return Err((ErrorCode::UnsupportedTcpOption, *kind));
                }
                if server.replace(to).is_some() {
                    return Err((ErrorCode::MalformedMessage, 0));
                }
            }
            Tlv::SourcePort(wanted) => port = Some(wanted).filter(|port| *port > 0),
            Tlv::Info => info = true,
            // No cookie has been issued.
            Tlv::Cookie { .. } => {}
            _ => return Err((ErrorCode::UnsupportedMessage, 0)),
        }
    }
    match server {
        Some(server) => Ok(Request::Connect(server, port)),
        None if info => Ok(Request::Info),
        None => Err((ErrorCode::UnsupportedMessage, 0)),
    }
}

/// Converts a failure to connect into an error of the protocol.
fn explain(error: &io::Error) -> (Reason, ErrorCode) {
    match error.kind() {
        _ if relay::no_descriptors(error) => (Reason::Socket, ErrorCode::ResourceExceeded),
        ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset => {
            (Reason::Reset, ErrorCode::ConnectionReset)
        }
        ErrorKind::PermissionDenied => (Reason::Destination, ErrorCode::NotAuthorized),
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::TimedOut => {
            (Reason::Unreachable, ErrorCode::DestinationUnreachable)
        }
        ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable => (Reason::Socket, ErrorCode::ResourceExceeded),
        _ => (Reason::Unreachable, ErrorCode::NetworkFailure),
    }
}

/// Sends a final message so that it arrives: closing a connection with unread data would reset it.
async fn send_final(stream: &TcpStream, word: &[Tlv<'_>]) {
    let Ok(bytes) = encode(word) else { return reset(stream) };
    let said = async {
        converse::send(stream, &bytes).await?;
        SockRef::from(stream).shutdown(Shutdown::Write)?;
        let (mut left, mut buffer) = (MAX_DISCARDED_BYTES, [0; 4096]);
        while left > 0 {
            stream.readable().await?;
            match stream.try_read(&mut buffer) {
                Ok(0) => break,
                Ok(got) => left = left.saturating_sub(got),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok::<_, io::Error>(())
    };
    // A peer that does not close in time is disconnected.
    let _ = timeout(CLOSE_TIMEOUT, said).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_a_connection_or_a_query() {
        let of = |tlvs: &[Tlv<'_>]| request(&encode(tlvs).unwrap());
        let server: SocketAddr = "192.0.2.1:80".parse().unwrap();
        let connect = Tlv::Connect { server, options: &[] };
        assert_eq!(of(&[connect]), Ok(Request::Connect(server, None)));
        assert_eq!(of(&[connect, Tlv::SourcePort(7)]), Ok(Request::Connect(server, Some(7))));
        assert_eq!(of(&[connect, Tlv::SourcePort(0)]), Ok(Request::Connect(server, None)));
        assert_eq!(of(&[Tlv::Info]), Ok(Request::Info));
        assert_eq!(of(&[connect, connect]), Err((ErrorCode::MalformedMessage, 0)));
        assert_eq!(of(&[]), Err((ErrorCode::UnsupportedMessage, 0)));
        assert_eq!(of(&[Tlv::Unknown { kind: 99, value: &[0, 0] }]), Err((ErrorCode::UnsupportedMessage, 0)));
        let options = Tlv::Connect { server, options: &[34, 2, 0, 0] };
        assert_eq!(of(&[options]), Err((ErrorCode::UnsupportedTcpOption, 34)));
        assert_eq!(request(&[2, 1, 0x22, 0x63]), Err((ErrorCode::UnsupportedVersion, VERSION)));
    }
}
