//! The interfaces of an emulated link: reading, writing, and selection of the interface for a frame.

use crate::clock::Clock;
use crate::offload::for_each_packet_in_frame;
use anabranch_element::Port as Side;
use anabranch_element::packet::Packet;
use anabranch_kern::interface;
use anabranch_kern::packet::{Options, PacketSocket};
use anabranch_link::DuplexLink;
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
    /// Frames longer than 64 KiB, and damaged ones, which are dropped.
    pub cut: u64,
    /// Frames that were split into packets here: the sender uses segmentation offload.
    pub split: u64,
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
                if self.shared {
                    learn(&mut self.learned, frame.bytes, index);
                }
                let at = clock.at_monotonic(frame.arrived_ns);
                let link_bytes = header_bytes(frame.bytes);
                // A network interface would split the frame and complete its checksum in hardware; at the far end of this link there
                // is none.
                let count = for_each_packet_in_frame(&frame.vnet, frame.bytes, link_bytes, |link, packet| {
                    let mut buffer = self.spare.pop().unwrap_or_default();
                    buffer.extend_from_slice(link);
                    buffer.extend_from_slice(packet);
                    let mut packet = Packet::new(at, buffer);
                    packet.pull_front(link_bytes);
                    each(port.side, packet);
                });
                self.counters.partial_checksums += u64::from(frame.partial_checksum);
                self.counters.split += u64::from(count.is_some_and(|count| count > 1));
                self.counters.cut += u64::from(count.is_none());
            });
            if n.with_context(|| format!("reading from {}", port.name))? < port.socket.batch() {
                break;
            }
        }
        let name = &port.name;
        if before.cut == 0 && self.counters.cut > 0 {
            tracing::warn!("{name}: frames longer than 64 KiB, or damaged, are dropped");
        }
        if before.partial_checksums == 0 && self.counters.partial_checksums > 0 {
            tracing::info!(
                "{name}: offload is on at the far end; frames are split and checksums completed here"
            );
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
        let socket = PacketSocket::open(name, &Options { slot_bytes, offload: true, ..Options::default() })?;
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
    use crate::real_time::{in_private_network, sh};
    use anabranch_wire::ip::{self, IpPacket};
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    use proptest::prelude::*;
    use std::io::IoSlice;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

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
        fn the_header_of_a_frame_includes_its_tags(tags in 0_usize..4) {
            prop_assert_eq!(header_bytes(&frame(tags, 0x0800, &[7; 40])), HEADER_BYTES + TAG_BYTES * tags);
        }

        #[test]
        fn any_frame_is_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(header_bytes(&bytes) <= bytes.len().max(HEADER_BYTES));
        }
    }

    /// The datagrams of one send with UDP_SEGMENT cross a veth pair as one frame; behind the link they are as they were sent, each with
    /// its length and checksum.
    #[test]
    fn frames_of_segmentation_offload_are_split() {
        in_private_network(|| {
            sh("ip link add h0 address 02:00:00:00:00:01 type veth peer name l0; ip link set h0 up; ip link set l0 up
                ip addr add 10.0.0.1/24 dev h0; ip addr add fd00::1/64 dev h0 nodad
                for to in '10.0.0.2 dev h0' 'fd00::2 dev h0'; do
                    ip neigh add $to lladdr 02:00:00:00:00:02 nud permanent
                done");
            let mut ports = Ports::open(&["l0".to_owned()], &[]).unwrap();
            let clock = Clock::start();
            for (from, to, header) in [("10.0.0.1:0", "10.0.0.2:9", 42), ("[fd00::1]:0", "[fd00::2]:9", 62)] {
                let socket = UdpSocket::bind(from).unwrap();
                socket.connect(to).unwrap();
                let data: Vec<u8> = (0..1232 + 64_u32).map(|n| n as u8 ^ (n >> 8) as u8).collect();
                let segment_bytes = [ControlMessage::UdpGsoSegments(&1232)];
                sendmsg::<()>(
                    socket.as_raw_fd(),
                    &[IoSlice::new(&data)],
                    &segment_bytes,
                    MsgFlags::empty(),
                    None,
                )
                .unwrap();
                let mut got = Vec::new();
                let each = |_: Side, mut packet: Packet| {
                    packet.restore_front(packet.headroom());
                    got.push((packet.at, packet.to_vec()));
                };
                ports.read(0, clock, each).unwrap();
                let is_ours = |frame: &[u8]| frame.get(header - 6..header - 4) == Some(&[0, 9]);
                got.retain(|(_, frame): &(_, Vec<u8>)| is_ours(frame));
                let payloads: Vec<&[u8]> = got.iter().map(|(_, frame)| &frame[header..]).collect();
                assert_eq!(payloads, [&data[..1232], &data[1232..]], "{to}");
                assert_eq!(got[0].0, got[1].0, "both arrived with the frame");
                for (_, frame) in &got {
                    let packet = &frame[header_bytes(frame)..];
                    let own = socket.local_addr().unwrap();
                    let alone = ip::udp_datagram(own, to.parse().unwrap(), &frame[header..]).unwrap();
                    let transport = |packet: &[u8]| packet[IpPacket::parse(packet).unwrap().payload].to_vec();
                    assert_eq!(transport(packet), transport(&alone), "{to}");
                }
            }
            assert_eq!((ports.counters().split, ports.counters().cut), (2, 0));
        });
    }
}
