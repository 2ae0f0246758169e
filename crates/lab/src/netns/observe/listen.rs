//! Capture of packets that arrive in a namespace by packet sockets, and their assignment to flows.

use super::super::diag::Side;
use anyhow::{Context, Result};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{ErrorKind, Read};
use std::time::Duration;

/// Maximum time before captured packets are read.
pub(super) const LOOK: Duration = Duration::from_millis(20);
pub(super) const ETH_P_IP: u16 = 0x0800;
pub(super) const ETH_P_IPV6: u16 = 0x86dd;
/// Buffer of a socket for times without the processor.
const BUFFER_BYTES: usize = 8 << 20;

/// A socket for packets that arrive in this thread's namespace. It is bound to one protocol, so packets sent by the namespace itself
/// are not captured.
pub(super) fn packet_socket(protocol: u16) -> Result<Socket> {
    let protocol = Protocol::from(i32::from(protocol.to_be()));
    let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(protocol)).context("packet socket")?;
    socket.set_recv_buffer_size(BUFFER_BYTES).context("its buffer")?;
    socket.set_nonblocking(true).context("packet socket")?;
    Ok(socket)
}

/// Passes on all packets that wait in a socket; longer ones are truncated to `buffer`.
pub(super) fn drain(socket: &mut Socket, buffer: &mut [u8], mut packet: impl FnMut(&[u8])) -> Result<()> {
    loop {
        match socket.read(buffer) {
            Ok(n) => packet(&buffer[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock) => return Ok(()),
            Err(e) if matches!(e.kind(), ErrorKind::Interrupted) => {}
            Err(e) => return Err(e).context("reading packets"),
        }
    }
}

/// The flow of a packet between two ports.
pub(super) fn flow_of(flows: &[(String, Side)], source: u16, destination: u16) -> Option<&str> {
    let of = flows.iter().find(|(_, side)| match side {
        Side::Local(port) => destination == *port,
        Side::Remote(port) => source == *port,
    });
    of.map(|(flow, _)| flow.as_str())
}
