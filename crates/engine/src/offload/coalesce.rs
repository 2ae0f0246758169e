//! Coalescing: consecutive segments of a flow become one frame, as with the kernel's GRO.
//!
//! ```text
//!  push(packet) ── starts or extends ──▶ slot per flow ── flush, or anything out of line ──▶ FrameSink
//! ```
//!
//! A packet is held at most until the end of its batch; order within a flow is preserved. Only packets with a
//! valid checksum are merged, so a corrupt packet stays corrupt and its receiver detects it.

use super::MAX_PACKET_BYTES;
use super::checksum::{fold, pseudo, sum};
use super::header::{GSO_NONE, GSO_TCP4, GSO_TCP6, GSO_UDP, NEEDS_CHECKSUM, VNET_BYTES, VnetHeader};

/// Number of flows that are open at once; the oldest is written first.
const SLOTS: usize = 8;
/// Maximum number of UDP segments per frame that the kernel accepts (UDP_MAX_SEGMENTS).
const MAX_UDP_SEGMENTS: usize = 64;
const TCP: u8 = 6;
const UDP: u8 = 17;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const ECE: u8 = 0x40;

/// Receiver of frames: virtio-net header and IP packet.
pub trait FrameSink {
    /// Writes one frame, given in two pieces (the second may be empty).
    fn write(&mut self, head: &[u8], rest: &[u8]);
}

/// Coalesces TCP and, if the device takes it, UDP.
pub struct Coalescer {
    slots: Vec<Slot>,
    /// Indices of open slots, oldest first.
    open: Vec<u8>,
    udp: bool,
}

struct Slot {
    /// The frame: virtio-net header and merged packets.
    frame: Box<[u8]>,
    /// Number of bytes in use.
    len: usize,
    shape: Shape,
    segments: usize,
    /// Expected TCP sequence number of the next segment.
    next_sequence: u32,
    /// Whether the first packet's checksum was found valid.
    verified: bool,
    /// Nothing can be appended (the last segment was short or had PSH).
    closed: bool,
}

/// A packet that is a candidate for merging.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Shape {
    v6: bool,
    protocol: u8,
    ip_bytes: usize,
    header_bytes: usize,
    payload_bytes: usize,
}

impl Coalescer {
    /// `udp`: the device takes frames of UDP segments.
    pub fn new(udp: bool) -> Self {
        let slot = || Slot {
            frame: vec![0; VNET_BYTES + MAX_PACKET_BYTES].into_boxed_slice(),
            len: 0,
            shape: Shape::default(),
            segments: 0,
            next_sequence: 0,
            verified: false,
            closed: false,
        };
        Self { slots: (0..SLOTS).map(|_| slot()).collect(), open: Vec::with_capacity(SLOTS), udp }
    }

    /// Takes one IP packet, of at most [`MAX_PACKET_BYTES`].
    pub fn push(&mut self, packet: &[u8], sink: &mut impl FrameSink) {
        let flow = Flow::of(packet);
        if let Some(flow) = &flow
            && let Some(at) = self.open.iter().position(|&i| self.slots[usize::from(i)].is_flow(flow))
        {
            if let Some(shape) = Shape::of(packet, flow, self.udp)
                && self.slots[usize::from(self.open[at])].append(packet, shape)
            {
                return;
            }
            // The next packet of this flow must not overtake.
            self.slots[usize::from(self.open.remove(at))].write(sink);
        }
        match flow.and_then(|flow| Shape::of(packet, &flow, self.udp)) {
            Some(shape) => self.start(packet, shape, sink),
            None => sink.write(&VnetHeader::default().emit(), packet),
        }
    }

    /// Writes all frames.
    pub fn flush(&mut self, sink: &mut impl FrameSink) {
        for i in self.open.drain(..) {
            self.slots[usize::from(i)].write(sink);
        }
    }

    fn start(&mut self, packet: &[u8], shape: Shape, sink: &mut impl FrameSink) {
        let free = (0..SLOTS as u8).find(|i| !self.open.contains(i));
        let index = free.unwrap_or_else(|| {
            let oldest = self.open.remove(0);
            self.slots[usize::from(oldest)].write(sink);
            oldest
        });
        self.open.push(index);
        let slot = &mut self.slots[usize::from(index)];
        slot.frame[VNET_BYTES..VNET_BYTES + packet.len()].copy_from_slice(packet);
        slot.len = VNET_BYTES + packet.len();
        slot.segments = 1;
        slot.verified = false;
        slot.shape = shape;
        slot.closed = false;
        if shape.protocol == TCP {
            let transport = &packet[shape.ip_bytes..];
            slot.next_sequence = sequence(transport).wrapping_add(shape.payload_bytes as u32);
            slot.closed = transport[13] & PSH != 0;
        }
    }
}

impl Slot {
    fn packet(&self) -> &[u8] {
        &self.frame[VNET_BYTES..self.len]
    }

    fn is_flow(&self, flow: &Flow<'_>) -> bool {
        let ports = &self.frame[VNET_BYTES + self.shape.ip_bytes..][..4];
        let at = VNET_BYTES + if self.shape.v6 { 8 } else { 12 };
        flow.protocol == self.shape.protocol
            && flow.ports == ports
            && flow.addresses.len() == if self.shape.v6 { 32 } else { 8 }
            && flow.addresses == &self.frame[at..at + flow.addresses.len()]
    }

    /// Appends `packet` if possible. If false, only `verified` may have changed.
    fn append(&mut self, packet: &[u8], shape: Shape) -> bool {
        let first = self.shape;
        let fits = !self.closed
            && shape.ip_bytes == first.ip_bytes
            && shape.header_bytes == first.header_bytes
            && shape.payload_bytes <= first.payload_bytes
            && self.len - VNET_BYTES + shape.payload_bytes <= MAX_PACKET_BYTES
            && (shape.protocol == TCP || self.segments < MAX_UDP_SEGMENTS);
        if !fits || !self.same_headers(packet, shape) {
            return false;
        }
        if !self.verified {
            if !checksum_valid(self.packet(), first) {
                return false;
            }
            self.verified = true;
        }
        if !checksum_valid(packet, shape) {
            return false;
        }
        let payload = &packet[shape.header_bytes..];
        self.frame[self.len..self.len + payload.len()].copy_from_slice(payload);
        self.len += payload.len();
        self.segments += 1;
        self.closed = shape.payload_bytes < first.payload_bytes;
        if shape.protocol == TCP {
            self.next_sequence = self.next_sequence.wrapping_add(payload.len() as u32);
            let pushed = packet[shape.ip_bytes + 13] & PSH;
            self.frame[VNET_BYTES + first.ip_bytes + 13] |= pushed;
            self.closed |= pushed != 0;
        }
        true
    }

    /// Whether all header fields are equal that the kernel copies from the first header.
    fn same_headers(&self, packet: &[u8], shape: Shape) -> bool {
        let held = self.packet();
        let (ip, transport) = packet.split_at(shape.ip_bytes);
        let (held_ip, held_transport) = held.split_at(shape.ip_bytes);
        let same_ip = if shape.v6 {
            // Version, traffic class, flow label; next header and hop limit.
            ip[..4] == held_ip[..4] && ip[6..8] == held_ip[6..8]
        } else {
            // TOS; DF; TTL and protocol. Segmentation increments the identification.
            ip[1] == held_ip[1] && ip[6] == held_ip[6] && ip[8..10] == held_ip[8..10]
        };
        let same_transport = shape.protocol == UDP || {
            let options = 20..shape.header_bytes - shape.ip_bytes;
            sequence(transport) == self.next_sequence
                && transport[8..13] == held_transport[8..13] // acknowledgement, header length
                && (transport[13] ^ held_transport[13]) & !PSH == 0
                && transport[14..16] == held_transport[14..16] // window
                && transport[options.clone()] == held_transport[options]
        };
        same_ip && same_transport
    }

    /// Writes the frame and empties the slot.
    fn write(&mut self, sink: &mut impl FrameSink) {
        let Shape { v6, protocol, ip_bytes, header_bytes, payload_bytes } = self.shape;
        let mut header = VnetHeader { gso_type: GSO_NONE, ..VnetHeader::default() };
        if self.segments > 1 {
            let packet = &mut self.frame[VNET_BYTES..self.len];
            let bytes = packet.len();
            let transport_bytes = bytes - ip_bytes;
            let addresses = if v6 {
                packet[4..6].copy_from_slice(&((bytes - 40) as u16).to_be_bytes());
                8..40
            } else {
                packet[2..4].copy_from_slice(&(bytes as u16).to_be_bytes());
                packet[10..12].fill(0);
                let checksum = !sum(&packet[..ip_bytes]);
                packet[10..12].copy_from_slice(&checksum.to_be_bytes());
                12..20
            };
            let offset = if protocol == TCP { 16 } else { 6 };
            if protocol == UDP {
                packet[ip_bytes + 4..ip_bytes + 6].copy_from_slice(&(transport_bytes as u16).to_be_bytes());
            }
            // The kernel completes the checksum of each segment from the sum of the pseudo header.
            let partial = fold(pseudo(&packet[addresses], protocol, transport_bytes));
            packet[ip_bytes + offset..ip_bytes + offset + 2].copy_from_slice(&partial.to_be_bytes());
            header = VnetHeader {
                flags: NEEDS_CHECKSUM,
                gso_type: match (protocol, v6) {
                    (TCP, false) => GSO_TCP4,
                    (TCP, true) => GSO_TCP6,
                    _ => GSO_UDP,
                },
                header_bytes: header_bytes as u16,
                segment_bytes: payload_bytes as u16,
                checksum_start: ip_bytes as u16,
                checksum_offset: offset as u16,
            };
        }
        self.frame[..VNET_BYTES].copy_from_slice(&header.emit());
        sink.write(&self.frame[..self.len], &[]);
        self.len = 0;
        self.segments = 0;
    }
}

/// The key of a flow.
struct Flow<'a> {
    protocol: u8,
    ip_bytes: usize,
    addresses: &'a [u8],
    ports: &'a [u8],
}

impl<'a> Flow<'a> {
    /// TCP or UDP in unfragmented IPv4 without options, or in IPv6 without extension headers; otherwise
    /// `None`.
    fn of(packet: &'a [u8]) -> Option<Self> {
        let (ip_bytes, protocol, addresses) = match packet.first()? {
            0x45 if packet.len() >= 28 => {
                if packet[6] & 0x3f != 0 || packet[7] != 0 {
                    return None;
                }
                (20, packet[9], &packet[12..20])
            }
            first if first >> 4 == 6 && packet.len() >= 48 => (40, packet[6], &packet[8..40]),
            _ => return None,
        };
        (protocol == TCP || protocol == UDP).then(|| Self {
            protocol,
            ip_bytes,
            addresses,
            ports: &packet[ip_bytes..ip_bytes + 4],
        })
    }
}

impl Shape {
    fn of(packet: &[u8], flow: &Flow<'_>, udp: bool) -> Option<Self> {
        let v6 = flow.addresses.len() == 32;
        let ip_bytes = flow.ip_bytes;
        let said = if v6 {
            40 + usize::from(u16::from_be_bytes([packet[4], packet[5]]))
        } else {
            usize::from(u16::from_be_bytes([packet[2], packet[3]]))
        };
        let transport = &packet[ip_bytes..];
        let header_bytes = ip_bytes
            + if flow.protocol == TCP {
                let bytes = usize::from(*transport.get(12)? >> 4) * 4;
                let plain = bytes >= 20
                    && transport.len() > bytes
                    && transport[13] & ACK != 0
                    && transport[13] & !(ACK | PSH | ECE) == 0;
                if !plain {
                    return None;
                }
                bytes
            } else {
                // Zero means "no checksum", which a frame cannot express.
                let whole = usize::from(u16::from_be_bytes([transport[4], transport[5]])) == transport.len();
                if !udp || !whole || transport.len() <= 8 || transport[6..8] == [0, 0] {
                    return None;
                }
                8
            };
        (said == packet.len() && said <= MAX_PACKET_BYTES).then(|| Self {
            v6,
            protocol: flow.protocol,
            ip_bytes,
            header_bytes,
            payload_bytes: packet.len() - header_bytes,
        })
    }
}

fn checksum_valid(packet: &[u8], shape: Shape) -> bool {
    let addresses = if shape.v6 { &packet[8..40] } else { &packet[12..20] };
    let transport = &packet[shape.ip_bytes..];
    let ip_ok = shape.v6 || sum(&packet[..shape.ip_bytes]) == 0xffff;
    ip_ok && fold(pseudo(addresses, shape.protocol, transport.len()) + u64::from(sum(transport))) == 0xffff
}

fn sequence(transport: &[u8]) -> u32 {
    u32::from_be_bytes([transport[4], transport[5], transport[6], transport[7]])
}
