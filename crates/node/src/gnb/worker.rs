//! The data path of a gNB: the cell of `core` on real time, interfaces of UEs on one side, N3 on the other.
//!
//! ```text
//!   timerfd, absolute ──▶ slots that are due, each at its own time ─┐
//!   UE devices ─▶ packets ─▶ Gnb ─▶ packets ─▶ N3: device, or GTP-U │ jobs (queue + wake)
//!             ◀──────────────────────────────◀                      │ a report every second (channel)
//! ```
//!
//! Deadlines are instants, never distances: a slot that is run late delays what it carries and shifts nothing
//! after it. A late worker runs every slot it owes, one after another, each with the time it should have had;
//! what is more than a thousand slots behind is left out and counted (`core`). A cell whose slots take longer than they
//! last never catches up: packets and jobs have their turn all the same. Nothing here locks per packet, and buffers are
//! used again.

use super::packets::Batch;
use super::report::{Late, Report, SliceSums, SlotTick, Sums};
use crate::runtime::api::CellPackets;
use crate::runtime::clock::Clock;
use crate::runtime::engine::device::{Device, DeviceCounters};
use crate::runtime::engine::udp::{AccessSocket, Inbox, SocketCounters, Sockets};
use crate::runtime::gtpu::{Heard, Indications};
use crate::runtime::thread::{self, EventLoop, MAX_JOBS};
use anabranch_atsss::{DatagramSink, PacketSink};
use anabranch_element::Element;
use anabranch_element::ioam::IoamStats;
use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant};
use anabranch_ran::amc::Direction;
use anabranch_ran::gnb::{Gnb, GnbCommand, GnbEvent, LinkStats, TelemetryConfig};
use anyhow::Context;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use tokio::sync::{broadcast, mpsc};

/// Room in front of a packet for what the cell and N3 put there.
const HEADROOM: usize = 48;
/// Buffers kept for packets to come.
const MAX_SPARE: usize = 16_384;
/// Frames read from one device before the others, and the clock, have their turn.
const ROUND: usize = 8;
/// Timers in a row that are followed at their own time; then the next slot's counts, or the clock's.
const MAX_TIMERS: usize = 64;
/// How long what is due is done before packets and the control plane have their turn.
const MAX_RUN: Duration = Duration::from_millis(5);
const SECOND: Duration = Duration::from_secs(1);

/// Numbers of what is waited for.
const N3: usize = 0;
const FIRST_DEVICE: usize = 1;

/// The end towards the UPF.
pub enum N3End {
    /// Plain IP.
    Ip(Device),
    /// GTP-U messages to and from one peer.
    Gtpu {
        /// One socket.
        sockets: Sockets,
        /// Where datagrams are received.
        inbox: Box<Inbox>,
        /// Tunnels that one end has and the other has not.
        indications: Indications,
        /// The UPF.
        peer: SocketAddr,
    },
}

impl N3End {
    /// GTP-U over a socket.
    pub fn gtpu(socket: std::net::UdpSocket, peer: SocketAddr) -> std::io::Result<Self> {
        let sockets = Sockets::new(vec![Some(AccessSocket::new(socket, false, true)?)]);
        Ok(Self::Gtpu { sockets, inbox: Box::default(), indications: Indications::default(), peer })
    }

    fn raw_fd(&mut self) -> RawFd {
        match self {
            Self::Ip(device) => device.as_raw_fd(),
            Self::Gtpu { sockets, .. } => sockets.get_mut(0).map_or(-1, |socket| socket.as_raw_fd()),
        }
    }
}

/// A device with UEs behind it.
pub struct UeEnd {
    /// The interface.
    pub device: Device,
    /// The UE, if there is only one: whatever comes in is its.
    pub only: Option<u16>,
}

/// What cannot be given to the cell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Uplink packets with the source address of no UE of their device.
    pub unknown_source: u64,
    /// GTP-U datagrams from somebody else than the UPF.
    pub unknown_peer: u64,
    /// Uplink packets that the UPF has no tunnel for, as far as it says so.
    pub unknown_at_peer: u64,
    /// Messages of the UPF that it does not know an extension header of uplink packets.
    pub extension_at_peer: u64,
    /// Datagrams that were longer than a datagram can be.
    pub too_big: u64,
    /// Reports nobody took in time.
    pub reports: u64,
}

/// How the control plane reaches the worker.
pub type Handle = thread::Handle<Worker>;

/// See the top of this file.
pub struct Worker {
    /// The cell.
    pub gnb: Gnb,
    /// How late slots were.
    pub late: Late,
    /// What slices carried.
    pub sums: Sums,
    /// What could not be given to the cell.
    pub dropped: Dropped,
    /// Packets that are told.
    pub packets: Batch,
    clock: Clock,
    n3: N3End,
    devices: Vec<UeEnd>,
    device_of_ue: Vec<u16>,
    /// Address, device and UE; sorted.
    by_source: Vec<(IpAddr, u16, u16)>,
    ready: Vec<bool>,
    spare: Vec<Vec<u8>>,
    events: EventLoop<Self>,
    next_report: Instant,
    reports: mpsc::Sender<Report>,
    slots: broadcast::Sender<SlotTick>,
    real_time: bool,
    stop: bool,
}

/// What a worker is made of.
pub struct Parts {
    /// The cell.
    pub gnb: Gnb,
    /// Towards the UPF.
    pub n3: N3End,
    /// Towards UEs.
    pub devices: Vec<UeEnd>,
    /// By number of the UE.
    pub device_of_ue: Vec<u16>,
    /// Addresses of UEs, by number.
    pub addresses: Vec<Vec<IpAddr>>,
    /// Whether to ask for real-time priority.
    pub real_time: bool,
    /// Where the report of every second goes.
    pub reports: mpsc::Sender<Report>,
    /// Where slots go while somebody listens.
    pub slots: broadcast::Sender<SlotTick>,
    /// Where packets go while somebody listens.
    pub packets: broadcast::Sender<Arc<CellPackets>>,
}

impl thread::Worker for Worker {
    fn run(mut self) -> anyhow::Result<()> {
        if self.real_time {
            thread::on_time();
        }
        while !self.stop {
            self.due();
            let more = self.read()?;
            let now = self.due();
            self.send(now);
            self.report(now);
            for _ in 0..MAX_JOBS {
                let Some(job) = self.events.next_job() else { break };
                job(&mut self, now);
            }
            let next = self.next_due();
            self.events.wait(more, next, &mut self.ready)?;
        }
        Ok(())
    }

    fn stop(&mut self) {
        self.stop = true;
    }
}

impl Worker {
    /// Registers everything. Time starts now.
    pub fn new(parts: Parts) -> anyhow::Result<(Self, Handle)> {
        let Parts { mut gnb, mut n3, devices, device_of_ue, addresses, real_time, reports, slots, packets } =
            parts;
        let clock = Clock::start();
        gnb.set_ioam_epoch(Duration::from_nanos(clock.start_unix_ns()));
        let (events, handle) = EventLoop::new(clock)?;
        events.register(n3.raw_fd(), N3)?;
        for (at, end) in devices.iter().enumerate() {
            events.register(end.device.as_raw_fd(), FIRST_DEVICE + at)?;
        }
        let mut by_source: Vec<_> = (0_u16..)
            .zip(addresses.iter().zip(&device_of_ue))
            .flat_map(|(ue, (addresses, device))| addresses.iter().map(move |a| (*a, *device, ue)))
            .collect();
        by_source.sort_unstable();
        let worker = Self {
            late: Late::default(),
            sums: Sums::new(gnb.slices()),
            dropped: Dropped::default(),
            packets: Batch::new(packets),
            clock,
            ready: vec![true; devices.len() + 1],
            gnb,
            n3,
            devices,
            device_of_ue,
            by_source,
            spare: Vec::new(),
            events,
            next_report: Instant::ZERO + SECOND,
            reports,
            slots,
            real_time,
            stop: false,
        };
        Ok((worker, handle))
    }

    /// Runs what is due, each at its own time; returns the time that the cell has got to, at which nothing is due before.
    fn due(&mut self) -> Instant {
        let (begun, mut timers) = (self.clock.now(), 0);
        loop {
            let now = self.clock.now();
            self.gnb.leave_out(now);
            let Some((at, _)) = self.gnb.poll_timeout().filter(|(at, _)| *at <= now) else { return now };
            // Whatever comes to a cell that is behind comes at its own time.
            if now - begun > MAX_RUN {
                return at;
            }
            let slot = self.gnb.slot_due();
            // A slot often coincides with the arrival of a block, which goes first.
            if let Some(slot) = slot.filter(|slot| *slot <= at) {
                self.late.record(now - slot, self.gnb.amc().slot());
                timers = 0;
            }
            timers += 1;
            let until = if timers > MAX_TIMERS { slot.map_or(now, |slot| slot.min(now)) } else { at };
            self.gnb.on_timeout(until);
        }
    }

    /// Takes packets in; whether there may be more.
    fn read(&mut self) -> anyhow::Result<bool> {
        let mut more = false;
        for at in 0..self.ready.len() {
            for _ in 0..ROUND {
                if !self.ready[at] {
                    break;
                }
                // The cell runs its slots before it is given anything newer.
                let now = self.due();
                self.ready[at] = if at == 0 { self.read_n3(now)? } else { self.read_device(at - 1, now)? };
            }
            more |= self.ready[at];
        }
        Ok(more)
    }

    fn read_n3(&mut self, now: Instant) -> anyhow::Result<bool> {
        let Self { gnb, n3, spare, dropped, .. } = self;
        match n3 {
            N3End::Ip(device) => {
                let each = |packet: &mut [u8]| gnb.on_packet(Gnb::N3, own(spare, packet, now), now);
                Ok(device.receive(each).context("reading the N3 device; was it removed?")? > 0)
            }
            N3End::Gtpu { sockets, inbox, indications, peer } => {
                let Some(socket) = sockets.get_mut(0) else { return Ok(false) };
                let filled = inbox.receive(socket).context("receiving on N3")?;
                inbox.for_each(|from, at, datagram| {
                    if from != *peer {
                        dropped.unknown_peer += 1;
                        return;
                    }
                    match indications.hear(*peer, datagram) {
                        Some(Heard::NoTunnel) => dropped.unknown_at_peer += 1,
                        Some(Heard::UnknownExtension) => dropped.extension_at_peer += 1,
                        None => {
                            gnb.on_packet(Gnb::N3, own(spare, datagram, now), now);
                            if let Some(fault) = gnb.take_n3_fault() {
                                indications.tell(sockets, *peer, at, fault, datagram.len());
                            }
                        }
                    }
                });
                // The cell may have nothing to send.
                sockets.flush();
                Ok(Inbox::may_be_more(filled))
            }
        }
    }

    fn read_device(&mut self, at: usize, now: Instant) -> anyhow::Result<bool> {
        let Self { gnb, devices, spare, by_source, dropped, .. } = self;
        let Some(UeEnd { device, only }) = devices.get_mut(at) else { return Ok(false) };
        let read = device.receive(|packet| {
            let ue = only.or_else(|| ue_of(by_source, at, packet));
            match ue {
                Some(ue) => gnb.on_packet(Gnb::ue(ue), own(spare, packet, now), now),
                None => dropped.unknown_source += 1,
            }
        });
        Ok(read.context("reading the device of a UE; was it removed?")? > 0)
    }

    /// Puts out what the cell has.
    fn send(&mut self, now: Instant) {
        let mut used = false;
        while let Some((port, mut packet)) = self.gnb.poll_transmit(now) {
            used = true;
            match (port.0.checked_sub(1), &mut self.n3) {
                (None, N3End::Ip(device)) => device.deliver(&mut packet),
                (None, N3End::Gtpu { sockets, peer, .. }) => match sockets.reserve(0, *peer, packet.len()) {
                    Some(room) => room.copy_from_slice(&packet),
                    None => self.dropped.too_big += 1,
                },
                (Some(ue), _) => {
                    let device = self.device_of_ue.get(usize::from(ue)).map(|at| usize::from(*at));
                    if let Some(end) = device.and_then(|at| self.devices.get_mut(at)) {
                        end.device.deliver(&mut packet);
                    }
                }
            }
            if self.spare.len() < MAX_SPARE {
                self.spare.push(packet.into_buffer());
            }
        }
        if used {
            match &mut self.n3 {
                N3End::Ip(device) => device.flush(),
                N3End::Gtpu { sockets, .. } => sockets.flush(),
            }
            self.devices.iter_mut().for_each(|end| end.device.flush());
        }
    }

    /// Counts what happened, and reports every second.
    fn report(&mut self, now: Instant) {
        while let Some(event) = self.gnb.poll_event() {
            match event {
                GnbEvent::Packet(times) => {
                    let slice = self.gnb.slice_of(times.ue).unwrap_or_default();
                    self.sums.packet(slice, &times);
                    self.packets.packet(&times, now);
                }
                // Nobody listens any more: noticed at the next second.
                GnbEvent::Slot(slot) => drop(self.slots.send(slot.into())),
                GnbEvent::Ue(_) => {}
                GnbEvent::Refused(why) => tracing::warn!("{why}"),
            }
        }
        let clock = self.clock;
        self.packets.send(now, || clock.start_unix_ns());
        if now < self.next_report {
            return;
        }
        while self.next_report <= now {
            self.next_report += SECOND;
        }
        // Somebody may have set the wall clock.
        self.gnb.set_ioam_epoch(Duration::from_nanos(clock.start_unix_ns()));
        self.sums.end_second();
        let report =
            Report { links: self.link_stats(now), late: self.late.end_second(), slices: self.slice_sums() };
        if self.reports.try_send(report).is_err() {
            self.dropped.reports += 1;
        }
        if self.gnb.telemetry().slots && self.slots.receiver_count() == 0 {
            self.report_slots(false, now);
        }
    }

    /// Whether slots are told.
    pub fn report_slots(&mut self, slots: bool, now: Instant) {
        let telemetry = TelemetryConfig { slots, ..self.gnb.telemetry() };
        self.gnb.on_command(GnbCommand::Telemetry(telemetry), now);
    }

    /// What slices carried, and what they are owed now.
    pub fn slice_sums(&self) -> Vec<SliceSums> {
        self.sums.all(Direction::ALL.map(|direction| self.gnb.balances(direction)))
    }

    /// What became of traces.
    pub fn ioam_stats(&self) -> IoamStats {
        self.gnb.ioam_stats()
    }

    /// Counters of both directions.
    pub fn link_stats(&mut self, now: Instant) -> [LinkStats; 2] {
        Direction::ALL.map(|direction| self.gnb.link_stats(direction, now))
    }

    /// Counters of the devices: N3 if it is one, then those of UEs.
    pub fn device_counters(&self) -> Vec<DeviceCounters> {
        let n3 = match &self.n3 {
            N3End::Ip(device) => Some(device.counters()),
            N3End::Gtpu { .. } => None,
        };
        n3.into_iter().chain(self.devices.iter().map(|end| end.device.counters())).collect()
    }

    /// Counters of the GTP-U socket, and its last error.
    pub fn socket(&mut self) -> Option<(SocketCounters, Option<std::io::Error>)> {
        match &mut self.n3 {
            N3End::Ip(_) => None,
            N3End::Gtpu { sockets, .. } => {
                sockets.get_mut(0).map(|socket| (socket.counters(), socket.take_error()))
            }
        }
    }

    /// When something is due next.
    fn next_due(&self) -> Instant {
        let due = self.gnb.poll_timeout().map_or(Instant::MAX, |(at, _)| at);
        due.min(self.next_report).min(self.packets.due())
    }
}

/// A packet of its own, in memory that another one had.
fn own(spare: &mut Vec<Vec<u8>>, bytes: &[u8], now: Instant) -> Packet {
    let Some(mut buffer) = spare.pop() else { return Packet::with_headroom(now, HEADROOM, bytes) };
    buffer.clear();
    buffer.resize(HEADROOM, 0);
    buffer.extend_from_slice(bytes);
    let mut packet = Packet::new(now, buffer);
    packet.pull_front(HEADROOM);
    packet
}

/// Which UE of a device sent a packet.
fn ue_of(by_source: &[(IpAddr, u16, u16)], device: usize, packet: &[u8]) -> Option<u16> {
    let (from, _) = anabranch_wire::ip::src_dst(packet).ok()?;
    let at = by_source.binary_search_by_key(&from, |(address, ..)| *address).ok()?;
    let (_, of, ue) = by_source[at];
    (usize::from(of) == device).then_some(ue)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_ran::channel::ChannelConfig;
    use anabranch_ran::gnb::{GnbConfig, UeConfig};
    use anabranch_wire::ip::udp_datagram;

    /// Thousands of UEs in a slice of one RB, whose blocks carry nothing: each of the slots of 62.5 µs takes longer than it lasts,
    /// and nothing that waits ever leaves.
    #[test]
    fn a_cell_that_is_too_much_for_the_machine_leaves_the_others_their_turn() {
        const UES: u32 = 4000;
        let address = |ue: u32| IpAddr::from((0x0a2d_0000 + ue).to_be_bytes());
        let text = r#"{
            "ues": [], "radio": {"rat": "nr", "rbs": 20, "numerology": 4, "rbg_rbs": 1}, "scheduler": "fixed",
            "slices": [{"name": "default", "share_percent": 5}, {"name": "other", "share_percent": 95}]
        }"#;
        let mut config: GnbConfig = serde_json::from_str(text).unwrap();
        config.ues = (0..UES)
            .map(|ue| UeConfig {
                addresses: vec![address(ue)],
                ..UeConfig::new(format!("ue{ue}"), "default", ChannelConfig::mcs(0))
            })
            .collect();
        let mut gnb = Gnb::new(&config, &mut |file| Err(file.to_owned())).unwrap();
        for ue in 0..UES {
            let to = (address(ue), 9).into();
            let packet = udp_datagram("192.0.2.1:9".parse().unwrap(), to, &[0; 1000]).unwrap();
            gnb.on_packet(Gnb::N3, Packet::new(Instant::ZERO, packet), Instant::ZERO);
        }
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let peer = socket.local_addr().unwrap();
        let parts = Parts {
            gnb,
            n3: N3End::gtpu(socket, peer).unwrap(),
            devices: Vec::new(),
            device_of_ue: vec![0; UES as usize],
            addresses: (0..UES).map(|ue| vec![address(ue)]).collect(),
            real_time: false,
            reports: mpsc::channel(1).0,
            slots: broadcast::channel(1).0,
            packets: broadcast::channel(1).0,
        };
        let (mut worker, _handle) = Worker::new(parts).unwrap();
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let turns: Vec<Instant> = (0..100).map(|_| worker.due()).collect();
            let _ = done.send((turns, worker.late.slots));
        });
        let told = is_done.recv_timeout(std::time::Duration::from_secs(20));
        let (turns, late) = told.expect("what is due has an end");
        assert!(turns.is_sorted() && turns[99] > turns[0] && late > 50, "{late} {turns:?}");
    }
}
