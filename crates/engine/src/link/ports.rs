//! The interfaces of an emulated link: reading, writing, and selection of the interface for a frame.

use crate::clock::Clock;
use anabranch_element::Port as Side;
use anabranch_element::packet::Packet;
use anabranch_kern::interface;
use anabranch_kern::packet::{Options, PacketSocket};
use anabranch_link::DuplexLink;
use anabranch_wire::ip;
use anyhow::{Context, Result, bail};
use std::os::fd::{AsFd, BorrowedFd};

/// Length of an Ethernet header: destination, source, EtherType. It passes the link with the packet but does
/// not count as load; the same holds for VLAN tags.
const HEADER_BYTES: usize = 14;
/// A VLAN tag (IEEE 802.1Q).
const TAG_BYTES: usize = 4;
/// Maximum number of interfaces on one link.
const MAX_PORTS: usize = 64;
/// Maximum number of learned addresses; frames to further ones are flooded.
const MAX_ADDRESSES: usize = 1024;
/// Maximum number of free packet buffers that are kept.
const MAX_SPARE: usize = 4096;
/// Batches read from one interface before the others are served.
const ROUNDS: usize = 4;

/// All interfaces of a link.
#[derive(Debug)]
pub struct Ports {
    ports: Vec<Port>,
    /// Address, and index of the port behind which it was last seen.
    learned: Vec<([u8; 6], usize)>,
    /// Whether a side has more than one interface, so that addresses are needed.
    shared: bool,
    spare: Vec<Vec<u8>>,
    counters: Counters,
}

/// Frames dropped or repaired at the interfaces.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub(super) struct Counters {
    /// Frames longer than the MTU, which are dropped: the sender uses segmentation offload.
    pub cut: u64,
    /// Frames whose checksum was completed here: the sender uses checksum offload.
    pub partial_checksums: u64,
    /// Frames that an interface refused to send.
    pub refused: u64,
    /// Frames for which the kernel had no buffer.
    pub kernel_drops: u64,
}

#[derive(Debug)]
struct Port {
    name: String,
    side: Side,
    socket: PacketSocket,
}

impl Ports {
    pub fn open(a: &[String], b: &[String]) -> Result<Self> {
        if a.len() + b.len() > MAX_PORTS {
            bail!("{} interfaces: a link has at most {MAX_PORTS}", a.len() + b.len());
        }
        let sides = a.iter().map(|n| (DuplexLink::A, n)).chain(b.iter().map(|n| (DuplexLink::B, n)));
        let mut ports = Vec::new();
        for (side, name) in sides {
            let flag = if side == DuplexLink::A { "--a" } else { "--b" };
            let port = Port::open(side, name).with_context(|| {
                format!("{flag} {name} cannot be opened (needs an interface of this network namespace, CAP_NET_RAW and CAP_NET_ADMIN)")
            })?;
            ports.push(port);
        }
        let shared = a.len() > 1 || b.len() > 1;
        Ok(Self { ports, learned: Vec::new(), shared, spare: Vec::new(), counters: Counters::default() })
    }

    pub(super) fn len(&self) -> usize {
        self.ports.len()
    }

    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ports.iter().map(|p| p.socket.as_fd())
    }

    /// Reads the frames waiting at port `index` and passes them to `each` with their side, in the time of `clock`.
    pub(super) fn read(
        &mut self,
        index: usize,
        clock: Clock,
        mut each: impl FnMut(Side, Packet),
    ) -> Result<()> {
        let Some(port) = self.ports.get_mut(index) else { return Ok(()) };
        let before = self.counters;
        for _ in 0..ROUNDS {
            let n = port.socket.recv(|frame| {
                if frame.bytes.len() < HEADER_BYTES {
                    return;
                }
                if frame.wire_bytes > frame.bytes.len() {
                    self.counters.cut += 1;
                    return;
                }
                if frame.partial_checksum {
                    // A network interface would do this in hardware; at the far end of this link there is
                    // none.
                    self.counters.partial_checksums += 1;
                    complete(frame.bytes);
                }
                if self.shared {
                    learn(&mut self.learned, frame.bytes, index);
                }
                let mut buffer = self.spare.pop().unwrap_or_default();
                buffer.extend_from_slice(frame.bytes);
                let at = clock.at_monotonic(frame.arrived_ns);
                let mut packet = Packet::new(at, buffer);
                packet.pull_front(header_bytes(&packet));
                each(port.side, packet);
            });
            if n.with_context(|| format!("reading from {}", port.name))? < port.socket.batch() {
                break;
            }
        }
        let name = &port.name;
        if before.cut == 0 && self.counters.cut > 0 {
            tracing::warn!(
                "{name}: packets longer than the MTU, dropped; at the far end: ethtool -K IF tso off gso off"
            );
        }
        if before.partial_checksums == 0 && self.counters.partial_checksums > 0 {
            tracing::info!("{name}: checksum offload is on at the far end; checksums are completed here");
        }
        Ok(())
    }

    /// Queues a packet that leaves the link on `side` at the interface of its destination, or at all
    /// interfaces of the side if the destination is unknown.
    pub(super) fn write(&mut self, side: Side, mut packet: Packet) -> Result<()> {
        packet.restore_front(packet.headroom());
        let only = if self.shared { self.port_of(side, &packet) } else { None };
        for (index, port) in self.ports.iter_mut().enumerate() {
            if port.side == side && only.is_none_or(|only| only == index) {
                if port.socket.room() == 0 {
                    port.flush(&mut self.counters)?;
                }
                self.counters.refused += u64::from(!port.socket.push(&packet));
            }
        }
        let mut buffer = packet.into_bytes();
        if self.spare.len() < MAX_SPARE {
            buffer.clear();
            self.spare.push(buffer);
        }
        Ok(())
    }

    /// Sends all batches.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.ports.iter_mut().try_for_each(|port| port.flush(&mut self.counters))
    }

    /// Switches the carrier of the interfaces on one side on or off, as the hosts behind them see it.
    pub(super) fn set_carrier(&self, side: Side, up: bool) {
        for port in self.ports.iter().filter(|port| port.side == side) {
            if let Err(error) = interface::set_up(&port.name, up) {
                let name = &port.name;
                tracing::warn!("{name}: the carrier cannot be changed ({error}); this needs CAP_NET_ADMIN");
            }
        }
    }

    pub(super) fn counters(&mut self) -> Counters {
        for port in &self.ports {
            self.counters.kernel_drops += port.socket.kernel_drops().unwrap_or(0);
        }
        self.counters
    }

    fn port_of(&self, side: Side, frame: &[u8]) -> Option<usize> {
        let to = frame.first_chunk::<6>()?;
        let index = self.learned.iter().find(|(mac, _)| mac == to)?.1;
        self.ports.get(index).is_some_and(|p| p.side == side).then_some(index)
    }
}

impl Port {
    fn open(side: Side, name: &str) -> std::io::Result<Self> {
        interface::set_up(name, true)?;
        // One tag within the frame, and one that the interface strips.
        let slot_bytes = (interface::mtu(name)? as usize + HEADER_BYTES + 2 * TAG_BYTES).max(2048);
        let socket = PacketSocket::open(name, &Options { slot_bytes, ..Options::default() })?;
        Ok(Self { name: name.to_owned(), side, socket })
    }

    fn flush(&mut self, counters: &mut Counters) -> Result<()> {
        let flushed = self.socket.flush().with_context(|| format!("writing to {}", self.name))?;
        counters.refused += flushed.dropped as u64;
        Ok(())
    }
}

/// Length of the header of an Ethernet frame, VLAN tags included.
fn header_bytes(frame: &[u8]) -> usize {
    let mut end = HEADER_BYTES;
    while let Some([0x81, 0x00] | [0x88, 0xa8]) = frame.get(end - 2..end)
        && frame.len() >= end + TAG_BYTES
    {
        end += TAG_BYTES;
    }
    end
}

/// Completes the checksum of the IP packet in an Ethernet frame, with or without VLAN tags.
fn complete(frame: &mut [u8]) {
    let end = header_bytes(frame);
    if let Some([0x08, 0x00] | [0x86, 0xdd]) = frame.get(end - 2..end) {
        ip::complete_checksum(&mut frame[end..]);
    }
}

fn learn(learned: &mut Vec<([u8; 6], usize)>, frame: &[u8], index: usize) {
    let Some(from) = frame.get(6..).and_then(<[u8]>::first_chunk::<6>) else { return };
    if let Some(entry) = learned.iter_mut().find(|(mac, _)| mac == from) {
        entry.1 = index;
    } else if learned.len() < MAX_ADDRESSES {
        learned.push((*from, index));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A frame with this EtherType and number of VLAN tags.
    fn frame(tags: usize, kind: u16, packet: &[u8]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        (0..tags).for_each(|n| frame.extend([[0x81, 0x00, 0, 7], [0x88, 0xa8, 0, 9]][n % 2]));
        frame.extend(kind.to_be_bytes());
        frame.extend(packet);
        frame
    }

    proptest! {
        #[test]
        fn checksums_are_completed_in_frames_of_every_kind(
            tags in 0_usize..4, v6 in any::<bool>(), payload in proptest::collection::vec(any::<u8>(), 0..1400), from: u16
        ) {
            let (a, b) = if v6 { ("[fd00::1]", "[fd00::2]") } else { ("10.0.0.1", "10.0.0.2") };
            let address = |host: &str, port: u16| format!("{host}:{port}").parse().unwrap();
            let right = ip::udp_datagram(address(a, from), address(b, 9), &payload).unwrap();
            let parsed = ip::IpPacket::parse(&right).unwrap();
            let at = parsed.payload.start + 6;
            let sum = ip::pseudo_header_sum(parsed.src, parsed.dst, 17, parsed.payload.len());
            let mut open = right.clone();
            open[at..at + 2].copy_from_slice(&ip::fold(sum).to_be_bytes());
            prop_assume!(open != right);
            let kind = if v6 { 0x86dd } else { 0x0800 };
            prop_assert_eq!(header_bytes(&frame(tags, kind, &open)), HEADER_BYTES + TAG_BYTES * tags);
            let mut offloaded = frame(tags, kind, &open);
            complete(&mut offloaded);
            prop_assert_eq!(offloaded, frame(tags, kind, &right));
            let mut other = frame(tags, 0x88cc, &open);
            complete(&mut other);
            prop_assert_eq!(other, frame(tags, 0x88cc, &open));
        }

        #[test]
        fn any_frame_is_harmless(mut bytes in proptest::collection::vec(any::<u8>(), 0..64), tags in 0_usize..20) {
            complete(&mut bytes);
            prop_assert!(header_bytes(&bytes) <= bytes.len().max(HEADER_BYTES));
            complete(&mut frame(tags, 0x0800, &bytes));
        }
    }
}
