//! A host: applications with sockets, and a port per outgoing interface.
//!
//! ```text
//!   packet ─▶ protocol, local port ─▶ application ─▶ packets by interface
//! ```
//!
//! Packets from the device of a tunnel arrive in batches, as from `anabranch ue`. Segments of a stream that arrive at the same
//! instant are one segment of up to 64 KiB for TCP, which acknowledges it once.

use super::spare;
use super::tcp_app::TcpApp;
use super::udp_app::UdpApp;
use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant};
use anabranch_element::{Element, Port, Reason};
use anabranch_wire::ip::protocol_and_port;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;

/// IP protocol numbers.
const TCP: u8 = 6;
const UDP: u8 = 17;

/// An application of a host.
#[derive(Debug)]
pub enum App {
    /// An application over UDP.
    Udp(Box<UdpApp>),
    /// One end of a TCP connection.
    Tcp(Box<TcpApp>),
}

impl App {
    fn protocol(&self) -> u8 {
        match self {
            Self::Udp(_) => UDP,
            Self::Tcp(_) => TCP,
        }
    }

    fn local(&self) -> SocketAddr {
        match self {
            Self::Udp(app) => app.local(),
            Self::Tcp(app) => app.local(),
        }
    }

    #[inline]
    fn on_packet(&mut self, packet: &Packet, now: Instant) {
        match self {
            Self::Udp(app) => app.on_packet(packet, now),
            Self::Tcp(app) => app.on_packet(packet, now),
        }
    }

    #[inline]
    fn poll_transmit(&mut self, now: Instant) -> Option<Packet> {
        match self {
            Self::Udp(app) => app.poll_transmit(now),
            Self::Tcp(app) => app.poll_transmit(now),
        }
    }

    /// Whether the reply to the last packet may wait for further packets of the same instant.
    #[inline]
    fn may_wait(&self) -> bool {
        match self {
            Self::Udp(_) => false,
            Self::Tcp(app) => app.may_wait(),
        }
    }

    /// Whether there is nothing more to send until a packet arrives or a timer expires. False: poll again.
    #[inline]
    fn has_said_all(&self) -> bool {
        match self {
            Self::Udp(_) => false,
            Self::Tcp(app) => app.has_said_all(),
        }
    }

    fn on_timeout(&mut self, now: Instant) {
        match self {
            // A source checks the time when it is polled.
            Self::Udp(_) => {}
            Self::Tcp(app) => app.on_timeout(now),
        }
    }

    /// The next timer; [`Instant::MAX`] if none is set.
    #[inline(always)]
    fn next(&self) -> Instant {
        match self {
            Self::Udp(app) => app.next_at(),
            Self::Tcp(app) => app.next_at(),
        }
    }
}

/// Index of an application on its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppId(usize);

struct Slot {
    app: App,
    way_out: Port,
    /// The application may have packets to send.
    awake: bool,
    /// The next timer. Updated when the application becomes idle; nothing changes it until it is woken.
    deadline: Instant,
}

/// A host; see the module documentation.
pub struct Host {
    apps: Vec<Slot>,
    /// Sorted by protocol and local port.
    by_port: Vec<((u8, u16), usize)>,
    /// The entry used for the previous packet.
    recent: Option<((u8, u16), usize)>,
    /// The application that is polled at present, usually the only one that may have packets.
    asked: Option<usize>,
    /// Further applications that may have packets, in the order in which they were woken.
    awake: VecDeque<usize>,
    /// The earliest timer of all applications, as of the time when the last of them became idle.
    deadline: Instant,
    /// The port whose packets arrive in batches.
    batched: Option<Port>,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            apps: Vec::new(),
            by_port: Vec::new(),
            recent: None,
            asked: None,
            awake: VecDeque::new(),
            deadline: Instant::MAX,
            batched: None,
        }
    }
}

impl Host {
    /// A host without applications.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, with batches from `port`, the device of a tunnel.
    #[must_use]
    pub fn with_batches_from(self, port: Port) -> Self {
        Self { batched: Some(port), ..self }
    }

    /// Starts an application whose packets leave by `way_out`. Its protocol and local port must be unique on this host; of two
    /// with the same, the later one receives the packets.
    pub fn run(&mut self, app: App, way_out: Port) -> AppId {
        let index = self.apps.len();
        let key = (app.protocol(), app.local().port());
        match self.by_port.binary_search_by_key(&key, |(key, _)| *key) {
            Ok(at) => self.by_port[at].1 = index,
            Err(at) => self.by_port.insert(at, (key, index)),
        }
        self.recent = None;
        self.apps.push(Slot { app, way_out, awake: false, deadline: Instant::MAX });
        self.wake(index);
        AppId(index)
    }

    /// The application with this index.
    #[must_use]
    pub fn app(&self, id: AppId) -> Option<&App> {
        self.apps.get(id.0).map(|slot| &slot.app)
    }

    /// The application that receives packets of a protocol and local port.
    #[inline]
    fn find(&mut self, key: (u8, u16)) -> Option<usize> {
        if let Some((recent, index)) = self.recent
            && recent == key
        {
            return Some(index);
        }
        let at = self.by_port.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        self.recent = Some(self.by_port[at]);
        Some(self.by_port[at].1)
    }

    /// The next timer of an application.
    #[inline]
    fn deadline_of(slot: &Slot) -> Instant {
        if slot.awake { slot.app.next() } else { slot.deadline }
    }

    /// Has an application reply at the end of this instant.
    #[inline]
    fn wake_after(&mut self, index: usize, now: Instant) {
        let slot = &mut self.apps[index];
        if !slot.awake {
            slot.deadline = slot.deadline.min(now + Duration::from_nanos(1));
            self.deadline = self.deadline.min(slot.deadline);
        }
    }

    #[inline]
    fn wake(&mut self, index: usize) {
        let slot = &mut self.apps[index];
        if !slot.awake {
            slot.awake = true;
            match self.asked {
                None => self.asked = Some(index),
                Some(_) => self.awake.push_back(index),
            }
        }
    }
}

impl Element for Host {
    type Command = Infallible;
    type Event = Infallible;

    fn on_packet(&mut self, port: Port, packet: Packet, now: Instant) {
        let Some(index) = protocol_and_port(&packet).ok().and_then(|key| self.find(key)) else {
            return;
        };
        self.apps[index].app.on_packet(&packet, now);
        spare::give(packet.into_used_buffer());
        if self.batched == Some(port) && self.apps[index].app.may_wait() {
            self.wake_after(index, now);
        } else {
            self.wake(index);
        }
    }

    #[inline]
    fn poll_transmit(&mut self, now: Instant) -> Option<(Port, Packet)> {
        while let Some(index) = self.asked {
            let slot = &mut self.apps[index];
            let packet = slot.app.poll_transmit(now);
            if packet.is_none() || slot.app.has_said_all() {
                slot.awake = false;
                slot.deadline = slot.app.next();
                self.asked = self.awake.pop_front();
                if self.asked.is_none() {
                    self.deadline = first(self.apps.iter().map(|slot| slot.deadline));
                }
            }
            if let Some(packet) = packet {
                return Some((self.apps[index].way_out, packet));
            }
        }
        None
    }

    fn on_command(&mut self, command: Infallible, _: Instant) {
        match command {}
    }

    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }

    fn on_timeout(&mut self, now: Instant) {
        for index in 0..self.apps.len() {
            if Self::deadline_of(&self.apps[index]) <= now {
                self.apps[index].app.on_timeout(now);
                self.wake(index);
            }
        }
    }

    #[inline]
    fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        // Applications that are awake are polled for packets before their timers are read.
        (self.deadline < Instant::MAX).then_some((self.deadline, "an application"))
    }
}

/// The earliest of the deadlines.
#[inline]
fn first(deadlines: impl Iterator<Item = Instant>) -> Instant {
    deadlines.fold(Instant::MAX, Instant::min)
}

#[cfg(test)]
mod tests {
    use super::super::tcp::Options;
    use super::super::tcp_app::{End, Script};
    use super::*;

    const TUNNEL: Port = Port(0);

    fn end(local: &str, to: Option<&str>, script: Script, (seed, expects): (u64, u64)) -> App {
        App::Tcp(Box::new(TcpApp::new(End {
            local: local.parse().unwrap(),
            connect_to: to.map(|to| to.parse().unwrap()),
            start: Instant::ZERO,
            stop: Instant::from_secs(9),
            script,
            options: Options::default(),
            seed,
            expects,
        })))
    }

    fn said(host: &mut Host, now: Instant) -> Vec<Packet> {
        if host.poll_timeout().is_some_and(|(at, _)| at <= now) {
            host.on_timeout(now);
        }
        std::iter::from_fn(|| host.poll_transmit(now)).map(|(_, packet)| packet).collect()
    }

    /// Delivers packets at one instant. Returns how many packets were sent before the end of the instant, and all packets sent.
    fn hand_over(to: &mut Host, packets: Vec<Packet>, now: Instant) -> (usize, Vec<Packet>) {
        let mut all = Vec::new();
        for packet in packets {
            to.on_packet(TUNNEL, packet, now);
            all.extend(said(to, now));
        }
        let at_once = all.len();
        all.extend(said(to, now + Duration::from_nanos(1)));
        (at_once, all)
    }

    /// A download in which each flight arrives at one instant. Returns the packets of the second flight that arrive (its second
    /// packet is lost if `lose`), the ACKs sent before the end of the instant, and all ACKs.
    fn second_flight(mut ue: Host, lose: bool) -> (usize, usize, usize) {
        let mut server = Host::new();
        ue.run(end("10.0.0.1:40000", Some("10.0.0.2:80"), Script::Receive, (1, 2)), TUNNEL);
        let sends = Script::Send { bytes: None, limit_bps: None };
        server.run(end("10.0.0.2:80", None, sends, (2, 1)), TUNNEL);
        let at = |ms| Instant::from_millis(ms);
        let syn = said(&mut ue, at(0));
        let (_, syn_ack) = hand_over(&mut server, syn, at(10));
        let (_, ack) = hand_over(&mut ue, syn_ack, at(20));
        let (_, first) = hand_over(&mut server, ack, at(30));
        assert_eq!(first.len(), 10);
        let (_, acks) = hand_over(&mut ue, first, at(40));
        let (_, mut second) = hand_over(&mut server, acks, at(50));
        assert!(second.len() > 15, "{}", second.len());
        if lose {
            second.remove(1);
        }
        let arrived = second.len();
        let (at_once, all) = hand_over(&mut ue, second, at(60));
        (arrived, at_once, all.len())
    }

    #[test]
    fn a_batch_is_acknowledged_once() {
        let batched = || Host::new().with_batches_from(TUNNEL);
        let (_, at_once, all) = second_flight(batched(), false);
        assert_eq!((at_once, all), (0, 1));
        // Behind a gap, the remaining five of the first 16 and three more segments are acknowledged at once, and later ones a
        // millisecond later. The segment before the gap waits for the first of these ACKs.
        let (arrived, at_once, all) = second_flight(batched(), true);
        assert!(arrived > 10, "{arrived}");
        assert_eq!((at_once, all), (8, 8));
        let (arrived, at_once, all) = second_flight(Host::new(), false);
        assert!(at_once == all && all >= arrived / 2, "{arrived} {at_once} {all}");
    }
}
