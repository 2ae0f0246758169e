//! A host: applications with sockets, and a port per way out.
//!
//! ```text
//!   packet ─▶ protocol, local port ─▶ application ─▶ packets by its way out
//! ```

use super::spare;
use super::tcp_app::TcpApp;
use super::udp_app::UdpApp;
use anabranch_core::element::{Element, Port, Reason};
use anabranch_core::packet::Packet;
use anabranch_core::time::Instant;
use anabranch_wire::ip::protocol_and_port;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;

/// IP protocol numbers.
const TCP: u8 = 6;
const UDP: u8 = 17;

/// What runs on a host.
#[derive(Debug)]
pub enum App {
    /// Something over UDP.
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

    /// Whether no packet follows the last one until something comes or a timer is due; false: ask.
    #[inline]
    fn has_said_all(&self) -> bool {
        match self {
            Self::Udp(_) => false,
            Self::Tcp(app) => app.has_said_all(),
        }
    }

    fn on_timeout(&mut self, now: Instant) {
        match self {
            // A source looks at the clock when it is asked for packets.
            Self::Udp(_) => {}
            Self::Tcp(app) => app.on_timeout(now),
        }
    }

    /// Its next timer; [`Instant::MAX`] if none runs.
    #[inline(always)]
    fn next(&self) -> Instant {
        match self {
            Self::Udp(app) => app.next_at(),
            Self::Tcp(app) => app.next_at(),
        }
    }
}

/// A place on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppId(usize);

struct Slot {
    app: App,
    way_out: Port,
    /// It may have packets to send.
    awake: bool,
    /// Its next timer; looked up when it falls asleep, for nothing changes it until it is woken.
    deadline: Instant,
}

/// See the top of this file.
pub struct Host {
    apps: Vec<Slot>,
    /// Sorted by protocol and local port.
    by_port: Vec<((u8, u16), usize)>,
    /// The entry of the packet before.
    recent: Option<((u8, u16), usize)>,
    /// The application that is asked for packets now, most often the only one that may have any.
    asked: Option<usize>,
    /// Those that may have packets to send and are asked after it, in the order in which they were woken.
    awake: VecDeque<usize>,
    /// The first timer of all, as they were when the last application fell asleep.
    deadline: Instant,
    unclaimed: u64,
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
            unclaimed: 0,
        }
    }
}

impl Host {
    /// A host where nothing runs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts an application whose packets leave by `way_out`. Its protocol and local port must be its own
    /// on this host; of two with the same, the later one gets the packets.
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

    /// An application.
    #[must_use]
    pub fn app(&self, id: AppId) -> Option<&App> {
        self.apps.get(id.0).map(|slot| &slot.app)
    }

    /// Packets that no application wanted.
    #[must_use]
    pub fn unclaimed(&self) -> u64 {
        self.unclaimed
    }

    /// The application that packets of a protocol to a port are for.
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

    fn on_packet(&mut self, _: Port, packet: Packet, now: Instant) {
        let Some(index) = protocol_and_port(&packet).ok().and_then(|key| self.find(key)) else {
            self.unclaimed += 1;
            return;
        };
        self.apps[index].app.on_packet(&packet, now);
        spare::give(packet.into_used_buffer());
        self.wake(index);
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
        // Who is awake is asked for packets before it is asked for its timer.
        (self.deadline < Instant::MAX).then_some((self.deadline, "an application"))
    }
}

/// The first of deadlines.
#[inline]
fn first(deadlines: impl Iterator<Item = Instant>) -> Instant {
    deadlines.fold(Instant::MAX, Instant::min)
}
