//! The data path of an LWIP node: the node of `core` on real time, between the backhaul and two legs.
//!
//! ```text
//!   backhaul ─▶ Node::downlink ─┬─▶ LTE            timerfd, absolute ──▶ Node::poll: holds that are over
//!                               └─▶ Wi-Fi          jobs (queue + wake)
//!            ◀─ Node::uplink, or later ◀── LTE, Wi-Fi
//! ```
//!
//! One thread; nothing locks and nothing is allocated per packet. At the end of it held ACKs are sent, then it returns.

use super::backhaul::{Backhaul, Dropped, Tunnels};
use crate::runtime::clock::Clock;
use crate::runtime::config::LwipConfig;
use crate::runtime::engine::device::{Device, DeviceCounters};
use crate::runtime::engine::udp::SocketCounters;
use crate::runtime::thread::{self, EventLoop, Handle, MAX_JOBS};
use anabranch_element::time::{Duration, Instant};
use anabranch_lwip::{Leg, Node, NodeSink};
use anyhow::Context;
use rand_core::{OsRng, TryRngCore};
use std::os::fd::AsRawFd;

/// Frames read from one interface before the others, and the clock, have their turn.
const ROUND: usize = 8;
/// How often the wall clock is looked at, which somebody may have set.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The interfaces.
pub struct Ports {
    /// Where servers are.
    pub backhaul: Backhaul,
    /// The cell.
    pub lte: Device,
    /// The access point, if it is not behind the interface of LTE.
    pub wifi: Option<Device>,
}

/// See the top of this file.
pub struct Worker {
    /// The node.
    pub node: Node,
    ports: Ports,
    clock: Clock,
    /// When the wall clock is looked at next.
    next_look: Instant,
    ready: [bool; 3],
    events: EventLoop<Self>,
    real_time: bool,
    stop: bool,
}

impl Worker {
    /// Registers everything. Time starts now.
    pub fn new(config: &LwipConfig, mut ports: Ports) -> anyhow::Result<(Self, Handle<Self>)> {
        let clock = Clock::start();
        let (events, handle) = EventLoop::new(clock)?;
        let wifi = ports.wifi.as_ref().map(AsRawFd::as_raw_fd);
        let fds = [Some(ports.backhaul.raw_fd()), Some(ports.lte.as_raw_fd()), wifi];
        for (at, fd) in fds.into_iter().enumerate() {
            if let Some(fd) = fd {
                events.register(fd, at)?;
            }
        }
        // Strangers must not know where a flow is in the table.
        let seed = OsRng.try_next_u64().context("random numbers")?;
        let mut node = Node::new(config.node.clone(), seed, clock.now()).map_err(anyhow::Error::new)?;
        if let Some(ioam) = &config.ioam {
            node.set_ioam(ioam.node(Duration::from_nanos(clock.start_unix_ns())));
        }
        let worker = Self {
            node,
            ready: [true, true, ports.wifi.is_some()],
            ports,
            clock,
            next_look: Instant::ZERO,
            events,
            real_time: config.lwip.real_time,
            stop: false,
        };
        Ok((worker, handle))
    }

    /// Counters of the interfaces: those of backhaul, LTE and Wi-Fi that are.
    pub fn device_counters(&self) -> Vec<DeviceCounters> {
        let Ports { backhaul, lte, wifi } = &self.ports;
        let legs = [Some(lte), wifi.as_ref()].into_iter().flatten().map(Device::counters);
        backhaul.device().into_iter().chain(legs).collect()
    }

    /// Counters of the GTP-U socket, and what it dropped, if there is one.
    pub fn gtpu(&mut self) -> Option<(SocketCounters, Dropped)> {
        self.ports.backhaul.gtpu()
    }

    /// Other GTP-U tunnels from the next packet on.
    pub fn set_tunnels(&mut self, tunnels: Tunnels) {
        self.ports.backhaul.set_tunnels(tunnels);
    }

    /// Takes packets in; whether there may be more.
    fn read(&mut self) -> anyhow::Result<bool> {
        let mut more = false;
        for at in 0..self.ready.len() {
            for _ in 0..ROUND {
                if !self.ready[at] {
                    break;
                }
                let now = self.clock.now();
                self.ready[at] = if at == 0 { self.read_backhaul(now)? } else { self.read_leg(at, now)? };
            }
            more |= self.ready[at];
        }
        Ok(more)
    }

    fn read_backhaul(&mut self, now: Instant) -> anyhow::Result<bool> {
        let Self { node, ports: Ports { backhaul, lte, wifi }, .. } = self;
        backhaul.receive(|packet| match (node.downlink(packet, now), &mut *wifi) {
            (Leg::Wifi, Some(wifi)) => wifi.send(packet),
            (Leg::Wifi, None) | (Leg::Lte, _) => lte.send(packet),
        })
    }

    fn read_leg(&mut self, at: usize, now: Instant) -> anyhow::Result<bool> {
        let Self { node, ports: Ports { backhaul, lte, wifi }, .. } = self;
        // What the node itself sends while it reads from a leg can go by the other one only when that is read out:
        // it is kept, and it is rare.
        let mut own = Vec::new();
        let mut out = Out { backhaul, legs: Legs::Kept(&mut own) };
        let (section, device) = match (at, &mut *wifi) {
            (2, Some(wifi)) => ("[wifi]", wifi),
            _ => ("[lte]", &mut *lte),
        };
        let read = device
            .receive(|packet| node.uplink(packet, now, &mut out))
            .with_context(|| format!("reading the device of {section}; was it removed?"))?;
        for (leg, packet) in own {
            by_leg(leg, lte, wifi).send(&packet);
        }
        Ok(read > 0)
    }

    /// Does what is due.
    fn due(&mut self, now: Instant) {
        if self.next_look <= now {
            self.next_look = now + LOOK_EVERY;
            self.node.set_ioam_epoch(Duration::from_nanos(self.clock.start_unix_ns()));
        }
        if self.node.poll_timeout().is_some_and(|(at, _)| at <= now) {
            let Self { node, ports: Ports { backhaul, lte, wifi }, .. } = self;
            node.poll(now, &mut Out { backhaul, legs: Legs::There { lte, wifi } });
        }
        // Counters say it all; nobody takes them one by one.
        while self.node.poll_event().is_some() {}
    }

    fn flush(&mut self) {
        let Ports { backhaul, lte, wifi } = &mut self.ports;
        backhaul.flush();
        [Some(lte), wifi.as_mut()].into_iter().flatten().for_each(Device::flush);
    }
}

impl thread::Worker for Worker {
    fn run(mut self) -> anyhow::Result<()> {
        if self.real_time {
            thread::on_time();
        }
        while !self.stop {
            let more = self.read()?;
            let now = self.clock.now();
            for _ in 0..MAX_JOBS {
                let Some(job) = self.events.next_job() else { break };
                job(&mut self, now);
            }
            self.due(now);
            self.flush();
            let next = self.node.poll_timeout().map_or(Instant::MAX, |(at, _)| at);
            self.events.wait(more || self.stop, next, &mut self.ready)?;
        }
        // What is held belongs to somebody: it is sent before the end.
        let now = self.clock.now();
        let holding = self.node.held_acks();
        self.node.set_dida(None, now).map_err(anyhow::Error::new)?;
        self.due(now);
        self.flush();
        if holding > 0 {
            tracing::info!("{holding} held ACKs sent before the end");
        }
        Ok(())
    }

    fn stop(&mut self) {
        self.stop = true;
    }
}

/// Where what leaves the node goes.
struct Out<'a> {
    backhaul: &'a mut Backhaul,
    legs: Legs<'a>,
}

enum Legs<'a> {
    There { lte: &'a mut Device, wifi: &'a mut Option<Device> },
    Kept(&'a mut Vec<(Leg, Vec<u8>)>),
}

impl NodeSink for Out<'_> {
    fn backhaul(&mut self, packet: &[u8]) {
        self.backhaul.send(packet);
    }

    fn leg(&mut self, leg: Leg, packet: &[u8]) {
        match &mut self.legs {
            Legs::There { lte, wifi } => by_leg(leg, lte, wifi).send(packet),
            Legs::Kept(kept) => kept.push((leg, packet.to_vec())),
        }
    }
}

fn by_leg<'a>(leg: Leg, lte: &'a mut Device, wifi: &'a mut Option<Device>) -> &'a mut Device {
    match (leg, wifi) {
        (Leg::Wifi, Some(wifi)) => wifi,
        _ => lte,
    }
}
