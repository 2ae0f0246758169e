//! Data path of a gNB: the cell of crate `ran` in real time, between the interfaces of the UEs and N3.
//!
//! ```text
//!   timerfd, absolute ──▶ slots that are due, each at its own time ─┐
//!   UE devices ─▶ packets ─▶ Gnb ─▶ packets ─▶ N3: device, or GTP-U │ jobs (queue + wake)
//!             ◀──────────────────────────────◀                      │ a report every second (channel)
//! ```
//!
//! Deadlines are absolute times: a slot that runs late delays its own packets but shifts no later slot. A
//! late worker runs all overdue slots in sequence, each at its nominal time; slots that are more than a
//! thousand behind are skipped and counted by the cell. A cell whose slots take longer to compute than they
//! last never catches up; packets and jobs are served nevertheless. There is no lock on the path of a packet,
//! and buffers are reused.

pub mod packets;
pub mod report;

use crate::clock::{Clock, processor_time};
use crate::device::{Device, DeviceCounters};
use crate::gtpu::{Indications, PeerIndication};
use crate::thread::{self, EventLoop, MAX_JOBS};
use crate::udp::{AccessSocket, Inbox, SocketCounters, Sockets};
use anabranch_atsss::{DatagramSink, PacketSink};
use anabranch_element::Element;
use anabranch_element::ioam::IoamStats;
use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant};
use anabranch_ran::amc::Direction;
use anabranch_ran::gnb::{Gnb, GnbCommand, GnbEvent, LinkStats, SlotStats, TelemetryConfig};
use anyhow::Context;
use packets::{Batch, Batches};
use report::{Report, SliceSums, SlotLateness, Sums};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use tokio::sync::{broadcast, mpsc};

/// Headroom in front of a packet for the headers of the cell and of N3, bytes.
const HEADROOM: usize = 48;
/// Maximum number of free buffers that are kept.
const MAX_SPARE: usize = 16_384;
/// Frames read from one device before the other devices and the timer are served.
const ROUND: usize = 8;
/// Timers run at their nominal times in a row; after that, the time of the next slot or the clock applies.
const MAX_TIMERS: usize = 64;
/// Longest run of overdue timers before packets and the control plane are served.
const MAX_RUN: Duration = Duration::from_millis(5);
const SECOND: Duration = Duration::from_secs(1);

/// Tokens of the event sources.
const N3: usize = 0;
const FIRST_DEVICE: usize = 1;

/// The end towards the UPF.
pub enum N3End {
    /// Plain IP.
    Ip(Device),
    /// GTP-U messages to and from one peer.
    Gtpu {
        sockets: Sockets,
        /// Receive buffers.
        inbox: Box<Inbox>,
        /// Rate limits of Error Indications and Supported Extension Headers Notifications.
        indications: Indications,
        /// Address of the UPF.
        peer: SocketAddr,
    },
}

impl N3End {
    /// N3 over GTP-U on a bound socket.
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

/// A device to which UEs are attached.
pub struct UeEnd {
    /// The interface.
    pub device: Device,
    /// The UE, if the device has only one: all incoming packets belong to it.
    pub only: Option<u16>,
}

/// Packets and reports that did not reach the cell or the control plane, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Uplink packets whose source address belongs to no UE of the device.
    pub unknown_source: u64,
    /// GTP-U datagrams from other addresses than the UPF's.
    pub unknown_peer: u64,
    /// Uplink packets for which the UPF reported (Error Indication) that it has no tunnel.
    pub unknown_at_peer: u64,
    /// Notifications of the UPF that it does not support an extension header of the uplink packets.
    pub extension_at_peer: u64,
    /// Packets longer than the largest datagram.
    pub too_big: u64,
    /// Reports that the control plane did not take in time.
    pub reports: u64,
}

/// The control plane's handle of the worker.
pub type Handle = thread::Handle<Worker>;

/// The data path; the module documentation describes it.
pub struct Worker {
    /// The cell.
    pub gnb: Gnb,
    /// Lateness of slots.
    pub late: SlotLateness,
    /// Traffic of slices.
    pub sums: Sums,
    /// Drops, by reason.
    pub dropped: Dropped,
    /// Delivered packets for the telemetry stream.
    pub packets: Batches,
    clock: Clock,
    n3: N3End,
    devices: Vec<UeEnd>,
    device_of_ue: Vec<u16>,
    /// Address, device and UE, sorted.
    by_source: Vec<(IpAddr, u16, u16)>,
    ready: Vec<bool>,
    spare: Vec<Vec<u8>>,
    events: EventLoop<Self>,
    next_report: Instant,
    reports: mpsc::Sender<Report>,
    slots: broadcast::Sender<SlotStats>,
    real_time: bool,
    stop: bool,
}

/// Components of a worker.
pub struct Parts {
    /// The cell.
    pub gnb: Gnb,
    /// The end towards the UPF.
    pub n3: N3End,
    /// The devices of the UEs.
    pub devices: Vec<UeEnd>,
    /// Index of the device, per UE.
    pub device_of_ue: Vec<u16>,
    /// Addresses, per UE.
    pub addresses: Vec<Vec<IpAddr>>,
    /// Whether to request real-time priority.
    pub real_time: bool,
    /// Receives the report of every second.
    pub reports: mpsc::Sender<Report>,
    /// Receives slots while there is a listener.
    pub slots: broadcast::Sender<SlotStats>,
    /// Receives batches of packets while there is a listener.
    pub packets: broadcast::Sender<Arc<Batch>>,
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
    /// Registers all event sources; the clock starts now.
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
            late: SlotLateness::default(),
            sums: Sums::new(gnb.slices()),
            dropped: Dropped::default(),
            packets: Batches::new(packets),
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

    /// Runs overdue timers, each at its nominal time. Returns the time that the cell has reached; nothing is
    /// due before it.
    fn due(&mut self) -> Instant {
        let (begun, mut timers) = (self.clock.now(), 0);
        loop {
            let now = self.clock.now();
            self.gnb.skip_late_slots(now);
            let Some((at, _)) = self.gnb.poll_timeout().filter(|(at, _)| *at <= now) else { return now };
            // Packets that reach a cell that is behind get the cell's time.
            if now - begun > MAX_RUN {
                return at;
            }
            let slot = self.gnb.slot_due();
            // A slot often coincides with the arrival of a block; the arrival is processed first.
            if let Some(slot) = slot.filter(|slot| *slot <= at) {
                self.late.record(now - slot, self.gnb.amc().slot());
                timers = 0;
            }
            timers += 1;
            let until = if timers > MAX_TIMERS { slot.map_or(now, |slot| slot.min(now)) } else { at };
            self.gnb.on_timeout(until);
        }
    }

    /// Reads packets; true if there may be more.
    fn read(&mut self) -> anyhow::Result<bool> {
        let mut more = false;
        for at in 0..self.ready.len() {
            for _ in 0..ROUND {
                if !self.ready[at] {
                    break;
                }
                // The cell runs its due slots before it receives a newer packet.
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
                Ok(device.receive(each).context("reading the N3 device (was it removed?)")? > 0)
            }
            N3End::Gtpu { sockets, inbox, indications, peer } => {
                let Some(socket) = sockets.get_mut(0) else { return Ok(false) };
                let filled = inbox.receive(socket).context("receiving on N3")?;
                inbox.for_each(|from, at, datagram| {
                    if from != *peer {
                        dropped.unknown_peer += 1;
                        return;
                    }
                    match indications.on_message(*peer, datagram) {
                        Some(PeerIndication::NoTunnel) => dropped.unknown_at_peer += 1,
                        Some(PeerIndication::UnknownExtension) => dropped.extension_at_peer += 1,
                        None => {
                            gnb.on_packet(Gnb::N3, own(spare, datagram, now), now);
                            if let Some(fault) = gnb.take_n3_fault() {
                                indications.send_indication(sockets, *peer, at, fault, datagram.len());
                            }
                        }
                    }
                });
                // There may be nothing to send.
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

    /// Sends the packets that the cell has delivered.
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

    /// Processes events of the cell, and sends the report of every second.
    fn report(&mut self, now: Instant) {
        while let Some(event) = self.gnb.poll_event() {
            match event {
                GnbEvent::Packet(times) => {
                    let slice = self.gnb.slice_of(times.ue).unwrap_or_default();
                    self.sums.packet(slice, &times);
                    self.packets.packet(&times, now);
                }
                // A missing listener is noticed at the end of the second.
                GnbEvent::Slot(slot) => drop(self.slots.send(slot)),
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
        // The wall clock may have been set.
        self.gnb.set_ioam_epoch(Duration::from_nanos(clock.start_unix_ns()));
        self.sums.end_second();
        let report = Report {
            links: self.link_stats(now),
            late: self.late.end_second(),
            processor: processor_time(),
            slices: self.slice_sums(),
        };
        if self.reports.try_send(report).is_err() {
            self.dropped.reports += 1;
        }
        if self.gnb.telemetry().slots && self.slots.receiver_count() == 0 {
            self.report_slots(false, now);
        }
    }

    /// Enables or disables the stream of slots.
    pub fn report_slots(&mut self, slots: bool, now: Instant) {
        let telemetry = TelemetryConfig { slots, ..self.gnb.telemetry() };
        self.gnb.on_command(GnbCommand::Telemetry(telemetry), now);
    }

    /// Traffic of the slices, with the current scheduler balances.
    pub fn slice_sums(&self) -> Vec<SliceSums> {
        self.sums.all(Direction::ALL.map(|direction| self.gnb.balances(direction)))
    }

    /// Counters of in-band telemetry.
    pub fn ioam_stats(&self) -> IoamStats {
        self.gnb.ioam_stats()
    }

    /// Counters of both directions.
    pub fn link_stats(&mut self, now: Instant) -> [LinkStats; 2] {
        Direction::ALL.map(|direction| self.gnb.link_stats(direction, now))
    }

    /// Counters of the devices: N3 if it is a device, then the devices of the UEs.
    pub fn device_counters(&self) -> Vec<DeviceCounters> {
        let n3 = match &self.n3 {
            N3End::Ip(device) => Some(device.counters()),
            N3End::Gtpu { .. } => None,
        };
        n3.into_iter().chain(self.devices.iter().map(|end| end.device.counters())).collect()
    }

    /// Counters of the GTP-U socket and its last error; `None` if N3 is a device.
    pub fn socket(&mut self) -> Option<(SocketCounters, Option<std::io::Error>)> {
        match &mut self.n3 {
            N3End::Ip(_) => None,
            N3End::Gtpu { sockets, .. } => {
                sockets.get_mut(0).map(|socket| (socket.counters(), socket.take_error()))
            }
        }
    }

    /// Time of the next deadline.
    fn next_due(&self) -> Instant {
        let due = self.gnb.poll_timeout().map_or(Instant::MAX, |(at, _)| at);
        due.min(self.next_report).min(self.packets.due())
    }
}

/// Copies a packet into a buffer that is reused, if there is one.
fn own(spare: &mut Vec<Vec<u8>>, bytes: &[u8], now: Instant) -> Packet {
    let Some(mut buffer) = spare.pop() else { return Packet::with_headroom(now, HEADROOM, bytes) };
    buffer.clear();
    buffer.resize(HEADROOM, 0);
    buffer.extend_from_slice(bytes);
    let mut packet = Packet::new(now, buffer);
    packet.pull_front(HEADROOM);
    packet
}

/// The UE of a device that sent a packet, by source address.
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

    /// Thousands of UEs in a slice of one RB, whose blocks carry nothing: each slot of 62.5 µs takes longer
    /// than it lasts, and no queued packet ever leaves.
    #[test]
    fn a_cell_that_overloads_the_machine_does_not_starve_packets_and_jobs() {
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
