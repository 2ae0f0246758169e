//! The interface for inner packets: TUN with offload, or one end of a veth pair.

use super::offload::{Coalescer, FrameSink, MAX_PACKET_BYTES, VNET_BYTES, for_each_packet};
use anabranch_atsss::PacketSink;
use anabranch_kern::packet::{Framing, Options, PacketSocket};
use anabranch_wire::ip;
use anyhow::Context;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsRawFd, RawFd};
use tun_rs::{DeviceBuilder, SyncDevice};

/// Counters of an inner interface since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Frames read.
    pub rx_frames: u64,
    /// Packets in these frames.
    pub rx_packets: u64,
    /// Frames written.
    pub tx_frames: u64,
    /// Packets in these frames.
    pub tx_packets: u64,
    /// Invalid frames, and frames that the kernel refused.
    pub errors: u64,
}

/// One queue of the inner interface.
pub struct Device {
    port: Port,
    frame: Box<[u8]>,
    coalescer: Coalescer,
    counters: DeviceCounters,
}

enum Port {
    Tun(SyncDevice),
    Packet(PacketSocket),
}

impl Device {
    /// Creates the TUN interface `name` with one queue per worker; it is removed with the last queue.
    pub fn tun(name: &str, mtu: u16, queues: usize) -> anyhow::Result<Vec<Self>> {
        let first = DeviceBuilder::new()
            .name(name)
            .mtu(mtu)
            .offload(true)
            .multi_queue(queues > 1)
            .build_sync()
            .with_context(|| {
                format!(
                    "device {name}: cannot create a TUN interface; run as root (or with CAP_NET_ADMIN), and make \
                     sure that /dev/net/tun is open to you (or set [device] kind = \"packet\")"
                )
            })?;
        first.set_nonblocking(true).context("TUN device")?;
        let mut devices = Vec::with_capacity(queues);
        for _ in 1..queues {
            let queue = first.try_clone().with_context(|| format!("device {name}: another queue"))?;
            queue.set_nonblocking(true).context("TUN device")?;
            devices.push(Self::new(queue.udp_gso(), Port::Tun(queue)));
        }
        devices.insert(0, Self::new(first.udp_gso(), Port::Tun(first)));
        Ok(devices)
    }

    /// Opens `inside`, the end of a veth pair whose other end has the MAC address `peer`.
    pub fn packet(inside: &str, peer: [u8; 6], mtu: u16) -> anyhow::Result<Self> {
        let options = Options {
            framing: Framing::Ip { peer },
            batch: 64,
            slot_bytes: usize::from(mtu) + 32,
            buffer_bytes: 4 << 20,
            ..Options::default()
        };
        let socket = PacketSocket::open(inside, &options)
            .with_context(|| format!("device {inside}: cannot open a packet socket (CAP_NET_RAW)"))?;
        Ok(Self::new(false, Port::Packet(socket)))
    }

    fn new(udp: bool, port: Port) -> Self {
        Self {
            port,
            frame: vec![0; VNET_BYTES + MAX_PACKET_BYTES].into_boxed_slice(),
            coalescer: Coalescer::new(udp),
            counters: DeviceCounters::default(),
        }
    }

    /// Passes the packets of one frame (TUN) or one batch (packet) to `each`; returns their number, 0 if none
    /// were waiting.
    pub fn receive(&mut self, mut each: impl FnMut(&mut [u8])) -> io::Result<usize> {
        let counters = &mut self.counters;
        match &mut self.port {
            Port::Tun(tun) => loop {
                let len = match tun.recv(&mut self.frame) {
                    Ok(len) => len,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                };
                counters.rx_frames += 1;
                match for_each_packet(&mut self.frame[..len], &mut each) {
                    Some(count) => {
                        counters.rx_packets += count as u64;
                        return Ok(count);
                    }
                    None => counters.errors += 1,
                }
            },
            Port::Packet(socket) => {
                let count = socket.recv(|received| {
                    if received.wire_bytes > received.bytes.len() {
                        counters.errors += 1;
                        return;
                    }
                    if received.partial_checksum {
                        ip::complete_checksum(received.bytes);
                    }
                    counters.rx_packets += 1;
                    each(received.bytes);
                })?;
                counters.rx_frames += count as u64;
                Ok(count)
            }
        }
    }

    /// Writes the packets queued by [`PacketSink::deliver`]; called at the end of every batch.
    pub fn flush(&mut self) {
        match &mut self.port {
            Port::Tun(tun) => self.coalescer.flush(&mut TunWriter { tun, counters: &mut self.counters }),
            Port::Packet(socket) => flush_packets(socket, &mut self.counters),
        }
    }

    pub fn counters(&self) -> DeviceCounters {
        self.counters
    }
}

impl PacketSink for Device {
    fn deliver(&mut self, packet: &mut [u8]) {
        self.send(packet);
    }
}

impl Device {
    /// Like [`PacketSink::deliver`], for callers that may not modify the packet.
    pub fn send(&mut self, packet: &[u8]) {
        self.counters.tx_packets += 1;
        match &mut self.port {
            Port::Tun(tun) => {
                self.coalescer.push(packet, &mut TunWriter { tun, counters: &mut self.counters });
            }
            Port::Packet(socket) => {
                if socket.room() == 0 {
                    flush_packets(socket, &mut self.counters);
                }
                if !socket.push(packet) {
                    self.counters.errors += 1;
                }
            }
        }
    }
}

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        match &self.port {
            Port::Tun(tun) => tun.as_raw_fd(),
            Port::Packet(socket) => socket.as_raw_fd(),
        }
    }
}

fn flush_packets(socket: &mut PacketSocket, counters: &mut DeviceCounters) {
    match socket.flush() {
        Ok(flushed) => {
            counters.tx_frames += flushed.sent as u64;
            counters.errors += flushed.dropped as u64;
        }
        Err(_) => counters.errors += 1,
    }
}

struct TunWriter<'a> {
    tun: &'a SyncDevice,
    counters: &'a mut DeviceCounters,
}

impl FrameSink for TunWriter<'_> {
    fn write(&mut self, head: &[u8], rest: &[u8]) {
        let result = if rest.is_empty() {
            self.tun.send(head)
        } else {
            self.tun.send_vectored(&[IoSlice::new(head), IoSlice::new(rest)])
        };
        match result {
            Ok(_) => self.counters.tx_frames += 1,
            Err(_) => self.counters.errors += 1,
        }
    }
}
