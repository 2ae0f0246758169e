//! The UPF as an [`Element`], for the simulator: whole IP packets on every port.

use super::{Upf, UpfCommand, UpfEvent};
use crate::tunnel_element::{AccessPackets, InnerPackets};
use anabranch_element::packet::Packet;
use anabranch_element::time::Instant;
use anabranch_element::{Element, Port, Reason};
use anabranch_wire::ip;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// The port towards the data network; port `1 + access` is the access with that number.
pub const N6_PORT: Port = Port(0);

/// Packets waiting for `poll_transmit`.
pub(super) type Outbox = VecDeque<(Port, Packet)>;

impl Element for Upf {
    type Command = UpfCommand;
    type Event = UpfEvent;

    fn on_packet(&mut self, port: Port, mut packet: Packet, now: Instant) {
        let locals = self.locals();
        let mut out = AccessPackets::new(&locals, now);
        if port == N6_PORT {
            self.downlink(&mut packet, now, &mut out);
        } else if let Ok((source, _, payload)) = ip::parse_udp(&packet) {
            let access = u8::try_from(port.0 - 1).unwrap_or(u8::MAX);
            let mut inner = InnerPackets::default();
            self.datagram(access, source, &mut packet[payload], now, &mut out, &mut inner);
            self.packets.extend(inner.into_packets(N6_PORT, now));
        }
        self.packets.extend(out.into_packets());
        self.settle(now);
    }

    fn poll_transmit(&mut self, _now: Instant) -> Option<(Port, Packet)> {
        self.packets.pop_front()
    }

    fn on_command(&mut self, command: UpfCommand, now: Instant) {
        if let Err(error) = self.command(command, now) {
            self.event(UpfEvent::BadConfig { ue: String::new(), error: error.to_string() });
        }
        self.settle(now);
    }

    fn poll_event(&mut self) -> Option<UpfEvent> {
        Self::poll_event(self)
    }

    fn on_timeout(&mut self, now: Instant) {
        self.settle(now);
    }

    fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        Self::poll_timeout(self)
    }
}

impl Upf {
    fn locals(&self) -> Vec<Option<SocketAddr>> {
        self.config.accesses.iter().map(|a| a.local).collect()
    }

    fn settle(&mut self, now: Instant) {
        let locals = self.locals();
        let mut out = AccessPackets::new(&locals, now);
        let mut inner = InnerPackets::default();
        self.poll(now, &mut out, &mut inner);
        self.packets.extend(out.into_packets());
        self.packets.extend(inner.into_packets(N6_PORT, now));
    }
}
