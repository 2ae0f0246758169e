//! The UE as an [`Element`], for the simulator: whole IP packets on every port.

use super::{Ue, UeCommand, UeEvent};
use crate::tunnel_element::{AccessPackets, InnerPackets};
use anabranch_element::packet::Packet;
use anabranch_element::time::Instant;
use anabranch_element::{Element, Port, Reason};
use anabranch_wire::ip;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// The port of the device's own IP packets; port `1 + path` is the access with that path id.
pub const IP_PORT: Port = Port(0);

/// Packets waiting for `poll_transmit`.
pub(super) type Outbox = VecDeque<(Port, Packet)>;

impl Element for Ue {
    type Command = UeCommand;
    type Event = UeEvent;

    fn on_packet(&mut self, port: Port, mut packet: Packet, now: Instant) {
        let locals = self.locals();
        let mut access = AccessPackets::new(&locals, now);
        if port == IP_PORT {
            self.uplink(&mut packet, now, &mut access);
        } else if let Ok((source, _, payload)) = ip::parse_udp(&packet) {
            let path = u8::try_from(port.0 - 1).unwrap_or(u8::MAX);
            let mut inner = InnerPackets::default();
            self.datagram(path, source, &mut packet[payload], now, &mut inner);
            self.packets.extend(inner.into_packets(IP_PORT, now));
        }
        self.packets.extend(access.into_packets());
        self.settle(now);
    }

    fn poll_transmit(&mut self, _now: Instant) -> Option<(Port, Packet)> {
        self.packets.pop_front()
    }

    fn on_command(&mut self, command: UeCommand, now: Instant) {
        Self::on_command(self, command, now);
        self.settle(now);
    }

    fn poll_event(&mut self) -> Option<UeEvent> {
        Self::poll_event(self)
    }

    fn on_timeout(&mut self, now: Instant) {
        self.settle(now);
    }

    fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        Self::poll_timeout(self)
    }
}

impl Ue {
    fn locals(&self) -> Vec<Option<SocketAddr>> {
        self.config.accesses.iter().map(|a| a.local).collect()
    }

    fn settle(&mut self, now: Instant) {
        let locals = self.locals();
        let mut access = AccessPackets::new(&locals, now);
        let mut inner = InnerPackets::default();
        self.poll(now, &mut access, &mut inner);
        self.packets.extend(access.into_packets());
        self.packets.extend(inner.into_packets(IP_PORT, now));
    }
}
