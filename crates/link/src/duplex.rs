//! Both directions of a link, as an element.
//!
//! ```text
//!  port A (0) ──▶ a_to_b ──▶ port B (1)
//!             ◀── b_to_a ◀──
//! ```

use super::link::{Link, LinkChange, LinkConfig, LinkStats};
use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant};
use anabranch_element::{Element, Port, Reason};
use serde::{Deserialize, Serialize};

/// The directions to which a change applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// From port A to port B.
    AToB,
    /// From port B to port A.
    BToA,
    /// Both directions.
    #[default]
    Both,
}

/// A change to a running duplex link.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkCommand {
    /// The directions it applies to.
    pub direction: Direction,
    /// New setting of the link.
    pub change: LinkChange,
}

/// An event of a duplex link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkEvent {
    /// Carrier was gained or lost. A link has carrier when both directions are up.
    Carrier {
        /// Whether there is carrier now.
        up: bool,
    },
}

/// A link between two ports.
#[derive(Debug, Clone)]
pub struct DuplexLink {
    a_to_b: Link,
    b_to_a: Link,
    /// Pending carrier event; a newer state replaces an older one.
    carrier_event: Option<bool>,
    carrier_told: bool,
}

impl DuplexLink {
    /// Port A.
    pub const A: Port = Port(0);
    /// Port B.
    pub const B: Port = Port(1);

    /// Creates a link from its two directions, each with its own random stream derived from `seed`.
    #[must_use]
    pub fn new(a_to_b: LinkConfig, b_to_a: LinkConfig, seed: u64) -> Self {
        let up = a_to_b.up && b_to_a.up;
        Self {
            a_to_b: Link::new(a_to_b, seed),
            b_to_a: Link::new(b_to_a, seed ^ 0x9e37_79b9_7f4a_7c15),
            carrier_event: None,
            carrier_told: up,
        }
    }

    /// Whether both directions are up.
    #[must_use]
    pub fn has_carrier(&self) -> bool {
        self.a_to_b.is_up() && self.b_to_a.is_up()
    }

    /// Counters as of `now`: A to B, then B to A.
    pub fn stats(&mut self, now: Instant) -> [LinkStats; 2] {
        [self.a_to_b.stats(now), self.b_to_a.stats(now)]
    }

    /// Calls [`Link::set_ioam_epoch`] for both directions.
    pub fn set_ioam_epoch(&mut self, epoch: Duration) {
        self.a_to_b.set_ioam_epoch(epoch);
        self.b_to_a.set_ioam_epoch(epoch);
    }

    /// The two directions, A to B first, for callers that run one thread per direction.
    #[must_use]
    pub fn split(self) -> (Link, Link) {
        (self.a_to_b, self.b_to_a)
    }
}

impl Element for DuplexLink {
    type Command = LinkCommand;
    type Event = LinkEvent;

    #[inline]
    fn on_packet(&mut self, port: Port, mut packet: Packet, now: Instant) {
        packet.at = packet.at.min(now);
        match port {
            Self::A => self.a_to_b.offer(packet),
            Self::B => self.b_to_a.offer(packet),
            _ => {}
        }
    }

    #[inline]
    fn poll_transmit(&mut self, now: Instant) -> Option<(Port, Packet)> {
        if let Some(packet) = self.a_to_b.take(now) {
            return Some((Self::B, packet));
        }
        self.b_to_a.take(now).map(|packet| (Self::A, packet))
    }

    fn on_command(&mut self, command: LinkCommand, now: Instant) {
        let LinkCommand { direction, change } = command;
        match direction {
            Direction::AToB => self.a_to_b.change(change, now),
            Direction::BToA => self.b_to_a.change(change, now),
            Direction::Both => {
                self.a_to_b.change(change.clone(), now);
                self.b_to_a.change(change, now);
            }
        }
        let up = self.has_carrier();
        if up != self.carrier_told {
            self.carrier_told = up;
            self.carrier_event = Some(up);
        }
    }

    #[inline]
    fn poll_event(&mut self) -> Option<LinkEvent> {
        self.carrier_event.take().map(|up| LinkEvent::Carrier { up })
    }

    #[inline]
    fn on_timeout(&mut self, _: Instant) {}

    #[inline]
    fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        let next = match (self.a_to_b.next_at(), self.b_to_a.next_at()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        next.map(|at| (at, "link"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::Rate;
    use anabranch_element::time::Duration;

    fn link() -> DuplexLink {
        let fast = LinkConfig {
            rate: Rate::Fixed(12_000_000),
            delay: Duration::from_millis(5),
            ..Default::default()
        };
        let slow = LinkConfig { rate: Rate::Fixed(1_200_000), ..fast.clone() };
        DuplexLink::new(fast, slow, 1)
    }

    #[test]
    fn directions_are_independent() {
        let mut l = link();
        for port in [DuplexLink::A, DuplexLink::B] {
            l.on_packet(port, Packet::new(Instant::ZERO, vec![0; 1500]), Instant::ZERO);
        }
        assert_eq!(l.poll_timeout(), Some((Instant::from_millis(6), "link")));
        let (port, packet) = l.poll_transmit(Instant::from_millis(6)).unwrap();
        assert_eq!((port, packet.at), (DuplexLink::B, Instant::from_millis(6)));
        assert!(l.poll_transmit(Instant::from_millis(14)).is_none());
        let (port, packet) = l.poll_transmit(Instant::from_millis(20)).unwrap();
        assert_eq!((port, packet.at), (DuplexLink::A, Instant::from_millis(15)));
    }

    #[test]
    fn each_carrier_change_causes_one_event() {
        let mut l = link();
        let set = |l: &mut DuplexLink, direction, up| {
            l.on_command(LinkCommand { direction, change: LinkChange::Up(up) }, Instant::ZERO);
            l.poll_event()
        };
        assert_eq!(set(&mut l, Direction::Both, true), None);
        assert_eq!(set(&mut l, Direction::AToB, false), Some(LinkEvent::Carrier { up: false }));
        assert_eq!(set(&mut l, Direction::BToA, false), None);
        assert_eq!(set(&mut l, Direction::Both, true), Some(LinkEvent::Carrier { up: true }));
    }
}
