//! The node as an [`Element`]: port 0 backhaul, 1 LTE, 2 Wi-Fi.

use super::Leg;
use super::config::{ConfigError, DidaConfig, OtherTraffic, Steering, UeConfig};
use super::events::Event;
use super::node::{Node, NodeSink};
use anabranch_element::packet::Packet;
use anabranch_element::time::Instant;
use anabranch_element::{Element, Port, Reason};
use std::collections::VecDeque;

/// Most packets waiting to be taken out; further ones are dropped.
const MAX_OUT: usize = 65_536;

/// A change of the configuration while the node runs.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Another steering, from the next packet on.
    Steering(Steering),
    /// Switches DIDA on or off, or changes it; held ACKs are sent.
    Dida(Option<DidaConfig>),
    /// The leg of UDP.
    Other(OtherTraffic),
    /// Other UEs. Flows of UEs that remain are kept.
    Ues(Vec<UeConfig>),
}

#[derive(Default)]
pub(super) struct Outbox {
    packets: VecDeque<(Port, Packet)>,
}

/// Copies outgoing packets into buffers of their own.
struct Out {
    packets: VecDeque<(Port, Packet)>,
    at: Instant,
}

impl Out {
    fn push(&mut self, port: Port, packet: Packet) {
        if self.packets.len() < MAX_OUT {
            self.packets.push_back((port, packet));
        }
    }
}

impl NodeSink for Out {
    fn backhaul(&mut self, packet: &[u8]) {
        self.push(Node::BACKHAUL, Packet::new(self.at, packet.to_vec()));
    }

    fn leg(&mut self, leg: Leg, packet: &[u8]) {
        self.push(Node::port(leg), Packet::new(self.at, packet.to_vec()));
    }
}

impl Node {
    /// N3, or whatever network is behind the node.
    pub const BACKHAUL: Port = Port(0);
    /// The cell.
    pub const LTE: Port = Port(1);
    /// The access point.
    pub const WIFI: Port = Port(2);

    /// The port of a leg.
    #[must_use]
    pub const fn port(leg: Leg) -> Port {
        match leg {
            Leg::Lte => Self::LTE,
            Leg::Wifi => Self::WIFI,
        }
    }

    /// Applies a command at `now`.
    ///
    /// # Errors
    /// The reason why it cannot be applied; then nothing has changed.
    pub fn apply(&mut self, command: Command, now: Instant) -> Result<(), ConfigError> {
        match command {
            Command::Steering(steering) => self.set_steering(steering, now),
            Command::Dida(dida) => self.set_dida(dida, now),
            Command::Other(other) => {
                self.set_other(other);
                Ok(())
            }
            Command::Ues(ues) => self.set_ues(ues, now),
        }
    }

    fn with_out<T>(&mut self, at: Instant, call: impl FnOnce(&mut Self, &mut Out) -> T) -> T {
        let mut out = Out { packets: core::mem::take(&mut self.packets.packets), at };
        let result = call(self, &mut out);
        self.packets.packets = out.packets;
        result
    }
}

impl Element for Node {
    type Command = Command;
    type Event = Event;

    fn on_packet(&mut self, port: Port, mut packet: Packet, now: Instant) {
        if port == Self::BACKHAUL {
            let leg = self.downlink(&mut packet, now);
            self.with_out(now, |_, out| out.push(Self::port(leg), packet));
        } else {
            self.with_out(packet.at, |node, out| node.uplink(&mut packet, now, out));
        }
    }

    fn poll_transmit(&mut self, _: Instant) -> Option<(Port, Packet)> {
        self.packets.packets.pop_front()
    }

    fn on_command(&mut self, command: Command, now: Instant) {
        if let Err(why) = self.apply(command, now) {
            self.event(Event::Refused(why));
        }
    }

    fn poll_event(&mut self) -> Option<Event> {
        Self::poll_event(self)
    }

    fn on_timeout(&mut self, now: Instant) {
        self.with_out(now, |node, out| node.poll(now, out));
    }

    fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        Self::poll_timeout(self)
    }
}
