//! Data path of an LWIP node: the node of crate `lwip` in real time, between the backhaul and the two legs.
//!
//! ```text
//!   backhaul ─▶ Node::downlink ─┬─▶ LTE            timerfd, absolute ──▶ Node::poll: holds that are over
//!                               └─▶ Wi-Fi          jobs (queue + wake)
//!            ◀─ Node::uplink, or later ◀── LTE, Wi-Fi
//! ```
//!
//! One thread without locks; it allocates no memory per packet. At shutdown it sends the held ACKs before it
//! ends.

pub mod backhaul;

use crate::clock::Clock;
use crate::device::{Device, DeviceCounters};
use crate::thread::{self, EventLoop, Handle, MAX_JOBS};
use crate::udp::SocketCounters;
use anabranch_element::ioam::IoamConfig;
use anabranch_element::time::{Duration, Instant};
use anabranch_lwip::{Config, Leg, Node, NodeSink};
use anyhow::Context;
use backhaul::{Backhaul, Dropped, Tunnels};
use std::os::fd::AsRawFd;

/// Frames read from one interface before the other interfaces and the timer are served.
const ROUND: usize = 8;
/// Interval at which the wall clock is read, because it may have been set.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The interfaces.
pub struct Ports {
    /// The backhaul, towards servers.
    pub backhaul: Backhaul,
    /// The interface of the cell.
    pub lte: Device,
    /// The interface of the access point; `None`: the Wi-Fi leg uses the interface of LTE.
    pub wifi: Option<Device>,
}

/// The data path; the module documentation describes it.
pub struct Worker {
    pub node: Node,
    ports: Ports,
    clock: Clock,
    /// Time of the next reading of the wall clock.
    next_clock_check: Instant,
    ready: [bool; 3],
    events: EventLoop<Self>,
    real_time: bool,
    stop: bool,
}

/// Components of a worker.
pub struct Parts {
    /// Configuration of the node.
    pub config: Config,
    /// Identity of the node for filling the traces of passing packets.
    pub ioam: Option<IoamConfig>,
    /// Random number, so that others cannot predict the place of a flow in the hash table.
    pub seed: u64,
    /// The interfaces.
    pub ports: Ports,
    /// Whether to request real-time priority.
    pub real_time: bool,
}

impl Worker {
    /// Registers all event sources; the clock starts now.
    ///
    /// # Errors
    /// The configuration of the node is not valid, or the system reports an error.
    pub fn new(parts: Parts) -> anyhow::Result<(Self, Handle<Self>)> {
        let Parts { config, ioam, seed, mut ports, real_time } = parts;
        let clock = Clock::start();
        let (events, handle) = EventLoop::new(clock)?;
        let wifi = ports.wifi.as_ref().map(AsRawFd::as_raw_fd);
        let fds = [Some(ports.backhaul.raw_fd()), Some(ports.lte.as_raw_fd()), wifi];
        for (at, fd) in fds.into_iter().enumerate() {
            if let Some(fd) = fd {
                events.register(fd, at)?;
            }
        }
        let mut node = Node::new(config, seed, clock.now()).map_err(anyhow::Error::new)?;
        if let Some(ioam) = ioam {
            node.set_ioam(ioam.node(Duration::from_nanos(clock.start_unix_ns())));
        }
        let worker = Self {
            node,
            ready: [true, true, ports.wifi.is_some()],
            ports,
            clock,
            next_clock_check: Instant::ZERO,
            events,
            real_time,
            stop: false,
        };
        Ok((worker, handle))
    }

    /// Counters of the existing interfaces, in the order backhaul, LTE, Wi-Fi.
    pub fn device_counters(&self) -> Vec<DeviceCounters> {
        let Ports { backhaul, lte, wifi } = &self.ports;
        let legs = [Some(lte), wifi.as_ref()].into_iter().flatten().map(Device::counters);
        backhaul.device().into_iter().chain(legs).collect()
    }

    /// Counters of the GTP-U socket and its drops; `None` if the backhaul is an interface.
    pub fn gtpu(&mut self) -> Option<(SocketCounters, Dropped)> {
        self.ports.backhaul.gtpu()
    }

    /// Replaces the GTP-U tunnels, from the next packet on.
    pub fn set_tunnels(&mut self, tunnels: Tunnels) {
        self.ports.backhaul.set_tunnels(tunnels);
    }

    /// Reads packets; true if there may be more.
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
        // Packets that the node itself sends while it reads from a leg may have to leave by the other leg,
        // which is possible only after the read. They are buffered; this is rare.
        let mut own = Vec::new();
        let mut out = Output { backhaul, legs: Legs::Buffered(&mut own) };
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

    /// Runs the timers that are due.
    fn due(&mut self, now: Instant) {
        if self.next_clock_check <= now {
            self.next_clock_check = now + CLOCK_CHECK_INTERVAL;
            self.node.set_ioam_epoch(Duration::from_nanos(self.clock.start_unix_ns()));
        }
        if self.node.poll_timeout().is_some_and(|(at, _)| at <= now) {
            let Self { node, ports: Ports { backhaul, lte, wifi }, .. } = self;
            node.poll(now, &mut Output { backhaul, legs: Legs::Devices { lte, wifi } });
        }
        // Counters cover the events, so they are discarded here.
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
        // Held ACKs are sent before the end, so that no sender loses them.
        let now = self.clock.now();
        let holding = self.node.held_acks();
        self.node.set_dida(None, now).map_err(anyhow::Error::new)?;
        self.due(now);
        self.flush();
        if holding > 0 {
            tracing::info!("{holding} held ACKs sent at shutdown");
        }
        Ok(())
    }

    fn stop(&mut self) {
        self.stop = true;
    }
}

/// Destination of the packets that leave the node.
struct Output<'a> {
    backhaul: &'a mut Backhaul,
    legs: Legs<'a>,
}

enum Legs<'a> {
    Devices { lte: &'a mut Device, wifi: &'a mut Option<Device> },
    Buffered(&'a mut Vec<(Leg, Vec<u8>)>),
}

impl NodeSink for Output<'_> {
    fn backhaul(&mut self, packet: &[u8]) {
        self.backhaul.send(packet);
    }

    fn leg(&mut self, leg: Leg, packet: &[u8]) {
        match &mut self.legs {
            Legs::Devices { lte, wifi } => by_leg(leg, lte, wifi).send(packet),
            Legs::Buffered(kept) => kept.push((leg, packet.to_vec())),
        }
    }
}

fn by_leg<'a>(leg: Leg, lte: &'a mut Device, wifi: &'a mut Option<Device>) -> &'a mut Device {
    match (leg, wifi) {
        (Leg::Wifi, Some(wifi)) => wifi,
        _ => lte,
    }
}
