//! The contract: every box of the drawing in ARCHITECTURE.md is one [`Element`], and one [`drive`]
//! empties it.
//!
//! ```text
//!            on_command            poll_event
//!                │                     ▲
//!                ▼                     │
//!  on_packet ─▶ ┌───────────────────────┐ ─▶ poll_transmit
//!  (port, now)  │        Element        │    (port)
//!               └───────────────────────┘
//!                ▲                     │
//!                │                     ▼
//!            on_timeout            poll_timeout (when, why)
//! ```
//!
//! An element never blocks, sleeps, reads a clock or draws its own randomness. The shape here is per
//! packet, for reading and for the simulator; the data path of `node` calls the batch forms that each
//! element documents beside it, on the same state.
//!
//! An element that holds each packet for 5 ms, and the loop that drives it:
//!
//! ```
//! use anabranch_element::packet::Packet;
//! use anabranch_element::time::{Duration, Instant};
//! use anabranch_element::{Element, Port, Reason, Sink, drive};
//! use std::collections::VecDeque;
//!
//! #[derive(Default)]
//! struct Delay(VecDeque<Packet>);
//!
//! impl Element for Delay {
//!     type Command = ();
//!     type Event = ();
//!     fn on_packet(&mut self, _: Port, mut packet: Packet, _: Instant) {
//!         packet.at = packet.at + Duration::from_millis(5);
//!         self.0.push_back(packet);
//!     }
//!     fn poll_transmit(&mut self, now: Instant) -> Option<(Port, Packet)> {
//!         self.0.front().filter(|packet| packet.at <= now)?;
//!         Some((Port(1), self.0.pop_front()?))
//!     }
//!     fn on_command(&mut self, (): (), _: Instant) {}
//!     fn poll_event(&mut self) -> Option<()> {
//!         None
//!     }
//!     fn on_timeout(&mut self, _: Instant) {}
//!     fn poll_timeout(&self) -> Option<(Instant, Reason)> {
//!         self.0.front().map(|packet| (packet.at, "delay"))
//!     }
//! }
//!
//! struct Sent(Vec<Packet>);
//! impl Sink<()> for Sent {
//!     fn transmit(&mut self, _: Port, packet: Packet) {
//!         self.0.push(packet);
//!     }
//!     fn event(&mut self, (): ()) {}
//! }
//!
//! let (mut delay, mut sent) = (Delay::default(), Sent(Vec::new()));
//! delay.on_packet(Port(0), Packet::new(Instant::ZERO, vec![1, 2, 3]), Instant::ZERO);
//! assert_eq!(drive(&mut delay, Instant::ZERO, &mut sent), Some((Instant::from_millis(5), "delay")));
//! assert_eq!(drive(&mut delay, Instant::from_millis(5), &mut sent), None);
//! assert_eq!(sent.0.len(), 1);
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod index;
pub mod ioam;
pub mod names;
pub mod packet;
pub mod time;

use crate::packet::Packet;
use crate::time::Instant;

/// Which side of an element a packet enters or leaves by. Elements name their ports as constants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Port(pub u16);

/// Why a timer is set; shown in logs and in the simulator's trace.
pub type Reason = &'static str;

/// A sans-IO state machine: packets, commands and time in; packets, events and deadlines out.
pub trait Element {
    /// Control in.
    type Command;
    /// Telemetry out.
    type Event;

    /// A packet enters by `port`.
    fn on_packet(&mut self, port: Port, packet: Packet, now: Instant);
    /// The next packet that leaves, if one is ready at `now`.
    fn poll_transmit(&mut self, now: Instant) -> Option<(Port, Packet)>;
    /// A command takes effect.
    fn on_command(&mut self, command: Self::Command, now: Instant);
    /// The next event, oldest first.
    fn poll_event(&mut self) -> Option<Self::Event>;
    /// Does whatever is due at or before `now`; harmless when nothing is.
    fn on_timeout(&mut self, now: Instant);
    /// When to call [`Element::on_timeout`] next, and why.
    fn poll_timeout(&self) -> Option<(Instant, Reason)>;
}

/// Where [`drive`] puts what an element produced.
pub trait Sink<Event> {
    /// A packet left by `port`.
    fn transmit(&mut self, port: Port, packet: Packet);
    /// Something worth telling happened.
    fn event(&mut self, event: Event);
    /// Whether events are wanted now; otherwise they stay with the element, until it is asked for them.
    #[inline(always)]
    fn wants_events(&self) -> bool {
        true
    }
}

/// Fires what is due, drains everything the element has to say, and returns its next deadline.
///
/// This is the only loop over an element: the simulator calls it from a heap of deadlines, `node`
/// after each batch of I/O. The deadline returned is later than `now`: an element that keeps asking
/// for an instant already past is woken once per call, never spun on.
// Where it stands is where the reason of the deadline is wanted or not.
#[inline(always)]
pub fn drive<E: Element + ?Sized>(
    element: &mut E,
    now: Instant,
    sink: &mut impl Sink<E::Event>,
) -> Option<(Instant, Reason)> {
    if element.poll_timeout().is_some_and(|(at, _)| at <= now) {
        element.on_timeout(now);
    }
    while let Some((port, packet)) = element.poll_transmit(now) {
        sink.transmit(port, packet);
    }
    while sink.wants_events()
        && let Some(event) = element.poll_event()
    {
        sink.event(event);
    }
    element
        .poll_timeout()
        .map(|(at, why)| (at.max(Instant::from_nanos(now.as_nanos().saturating_add(1))), why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;
    use std::collections::VecDeque;

    /// Holds each packet for a fixed time.
    struct Delay(Duration, VecDeque<(Instant, Packet)>);

    impl Element for Delay {
        type Command = ();
        type Event = Instant;
        fn on_packet(&mut self, _: Port, packet: Packet, _: Instant) {
            self.1.push_back((packet.at + self.0, packet));
        }
        fn poll_transmit(&mut self, now: Instant) -> Option<(Port, Packet)> {
            let (due, _) = self.1.front()?;
            if *due > now {
                return None;
            }
            let (due, mut packet) = self.1.pop_front()?;
            packet.at = due;
            Some((Port(1), packet))
        }
        fn on_command(&mut self, (): (), _: Instant) {}
        fn poll_event(&mut self) -> Option<Instant> {
            None
        }
        fn on_timeout(&mut self, _: Instant) {}
        fn poll_timeout(&self) -> Option<(Instant, Reason)> {
            self.1.front().map(|(due, _)| (*due, "delay"))
        }
    }

    #[derive(Default)]
    struct Out(Vec<(Port, Packet)>);
    impl Sink<Instant> for Out {
        fn transmit(&mut self, port: Port, packet: Packet) {
            self.0.push((port, packet));
        }
        fn event(&mut self, _: Instant) {}
    }

    #[test]
    fn drive_drains_and_reports_the_next_deadline() {
        let mut d = Delay(Duration::from_millis(5), VecDeque::new());
        let mut out = Out::default();
        d.on_packet(Port(0), Packet::new(Instant::ZERO, vec![1]), Instant::ZERO);
        d.on_packet(Port(0), Packet::new(Instant::from_millis(2), vec![2]), Instant::from_millis(2));
        assert_eq!(
            drive(&mut d, Instant::from_millis(2), &mut out),
            Some((Instant::from_millis(5), "delay"))
        );
        // A late wake-up does not move the logical time of the packet.
        assert_eq!(
            drive(&mut d, Instant::from_millis(6), &mut out),
            Some((Instant::from_millis(7), "delay"))
        );
        assert_eq!(out.0.len(), 1);
        assert_eq!(out.0[0].1.at, Instant::from_millis(5));
        assert_eq!(drive(&mut d, Instant::from_millis(7), &mut out), None);
        assert_eq!(out.0.len(), 2);
    }
}
