//! Sinks that turn the batch output of the tunnel ends into packets of an element. Datagrams get their outer
//! IP and UDP headers, so that simulated links carry the true overhead.

use super::{DatagramSink, PacketSink, PathId};
use anabranch_element::Port;
use anabranch_element::packet::Packet;
use anabranch_element::time::Instant;
use anabranch_wire::ip;
use std::net::SocketAddr;

/// Collects datagrams per access.
pub(crate) struct AccessPackets<'a> {
    locals: &'a [Option<SocketAddr>],
    now: Instant,
    datagrams: Vec<(PathId, SocketAddr, Vec<u8>)>,
}

impl<'a> AccessPackets<'a> {
    /// `locals` are our own addresses, by path id.
    pub(crate) fn new(locals: &'a [Option<SocketAddr>], now: Instant) -> Self {
        Self { locals, now, datagrams: Vec::new() }
    }

    /// Outer packets, on port `1 + path`. Datagrams of an access without an address are dropped.
    pub(crate) fn into_packets(self) -> impl Iterator<Item = (Port, Packet)> {
        let (locals, now) = (self.locals, self.now);
        self.datagrams.into_iter().filter_map(move |(path, to, payload)| {
            let from = locals.get(usize::from(path)).copied().flatten()?;
            let packet = Packet::new(now, ip::udp_datagram(from, to, &payload).ok()?);
            Some((Port(1 + u16::from(path)), packet))
        })
    }
}

impl DatagramSink for AccessPackets<'_> {
    fn reserve(&mut self, path: PathId, to: SocketAddr, len: usize) -> Option<&mut [u8]> {
        self.datagrams.push((path, to, vec![0; len]));
        self.datagrams.last_mut().map(|(_, _, bytes)| bytes.as_mut_slice())
    }

    fn withdraw(&mut self, _path: PathId) {
        self.datagrams.pop();
    }
}

/// Collects inner packets.
#[derive(Default)]
pub(crate) struct InnerPackets(Vec<Vec<u8>>);

impl InnerPackets {
    /// The packets, on `port`.
    pub(crate) fn into_packets(self, port: Port, now: Instant) -> impl Iterator<Item = (Port, Packet)> {
        self.0.into_iter().map(move |bytes| (port, Packet::new(now, bytes)))
    }
}

impl PacketSink for InnerPackets {
    fn deliver(&mut self, packet: &mut [u8]) {
        self.0.push(packet.to_vec());
    }
}
