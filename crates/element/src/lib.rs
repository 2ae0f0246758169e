//! The contract of all components: every box of the drawing in ARCHITECTURE.md is one [`Element`], and [`drive`] drains it.
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
//! An element never blocks, sleeps, reads a clock or draws its own randomness. The interface here is per packet, for clarity
//! and for the simulator; the data path of `node` calls the batch functions that each element documents beside it, which
//! operate on the same state.
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

/// The side of an element on which a packet enters or leaves. Elements define their ports as constants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Port(pub u16);

/// Reason for which a timer is set; shown in logs and in the simulator's trace.
pub type Reason = &'static str;

/// A sans-IO state machine. Inputs: packets, commands and time; outputs: packets, events and deadlines.
pub trait Element {
    /// Type of commands.
    type Command;
    /// Type of events.
    type Event;

    /// Processes a packet that enters by `port`.
    fn on_packet(&mut self, port: Port, packet: Packet, now: Instant);
    /// Returns the next packet that is ready to leave at `now`, with its port.
    fn poll_transmit(&mut self, now: Instant) -> Option<(Port, Packet)>;
    /// Executes a command.
    fn on_command(&mut self, command: Self::Command, now: Instant);
    /// Returns the next event, oldest first.
    fn poll_event(&mut self) -> Option<Self::Event>;
    /// Does everything that is due at or before `now`; harmless if nothing is.
    fn on_timeout(&mut self, now: Instant);
    /// When to call [`Element::on_timeout`] next, and for what reason.
    fn poll_timeout(&self) -> Option<(Instant, Reason)>;
}

/// Destination of the output that [`drive`] takes from an element.
pub trait Sink<Event> {
    /// Takes a packet that leaves by `port`.
    fn transmit(&mut self, port: Port, packet: Packet);
    /// Takes an event.
    fn event(&mut self, event: Event);
    /// Whether events are wanted now; otherwise they remain queued in the element.
    #[inline(always)]
    fn wants_events(&self) -> bool {
        true
    }
}

/// Does what is due, drains the element's packets and events, and returns its next deadline.
///
/// This is the only loop over an element: the simulator calls it from a heap of deadlines, `node` after each batch of I/O.
/// The returned deadline is always later than `now`: an element that repeatedly requests a time in the past is woken once
/// per call and cannot cause a busy loop.
// Inlined, so that the compiler can drop the reason where the caller ignores it.
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

    /// Delays each packet by a fixed time.
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
        // A late wake-up does not change the logical time of the packet.
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
