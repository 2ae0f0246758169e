//! Hand-made TCP segments.

use super::net::Namespace;
use anabranch_wire::tcp::{TcpFlags, TcpHeader, emit_packet, parse_packet};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io::Read;
use std::net::SocketAddr;

const ETH_P_IP: u16 = 0x0800;
const IPPROTO_RAW: i32 = 255;

/// A segment with `bytes` bytes of data.
pub fn segment(from: SocketAddr, to: SocketAddr, seq: u32, ack: u32, bytes: usize) -> Vec<u8> {
    let header = TcpHeader { seq, ack, window: 500, flags: TcpFlags::ACK, ..TcpHeader::default() };
    emit_packet(from, to, &header, &vec![0x5a; bytes]).unwrap()
}

/// Sends a complete IP packet from a namespace, according to its routes.
pub fn send(from: &Namespace, packet: Vec<u8>) {
    from.run(move || {
        let to = parse_packet(&packet).unwrap().dst;
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(IPPROTO_RAW))).unwrap();
        socket.send_to(&packet, &SockAddr::from(SocketAddr::new(to.ip(), 0))).unwrap();
    });
}

/// Receives copies of the packets that arrive in a namespace.
pub struct Sniffer {
    socket: Socket,
    to: SocketAddr,
}

impl Sniffer {
    /// Copies of packets to `to`, from now on.
    pub fn open(at: &Namespace, to: SocketAddr) -> Self {
        let socket = at.run(|| {
            let protocol = Protocol::from(i32::from(ETH_P_IP.to_be()));
            let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(protocol)).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        });
        Self { socket, to }
    }

    /// Acknowledgment numbers received since the last call, in order.
    pub fn acks(&self) -> Vec<u32> {
        let mut buffer = [0; 2048];
        let mut acks = Vec::new();
        while let Ok(n) = (&self.socket).read(&mut buffer) {
            if let Ok(packet) = parse_packet(&buffer[..n])
                && packet.dst == self.to
            {
                acks.push(packet.header.ack);
            }
        }
        acks
    }
}
