//! Segmentation of a frame into packets, in place.

use super::checksum::{fold, pseudo, sum};
use super::header::{GSO_ECN, GSO_NONE, GSO_TCP4, GSO_TCP6, GSO_UDP, NEEDS_CHECKSUM, VNET_BYTES, VnetHeader};

/// Upper bound: IPv6 (40) with extension headers, such as the longest IOAM trace (264), and TCP with all
/// options (60).
const MAX_HEADER_BYTES: usize = 512;
const TCP: u8 = 6;
const UDP: u8 = 17;
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// Calls `each` for every IP packet in `frame`, which starts with a virtio-net header, in order and with
/// complete checksums. Returns their number; `None` for an invalid frame, which is dropped.
pub fn for_each_packet(frame: &mut [u8], each: impl FnMut(&mut [u8])) -> Option<usize> {
    let (head, packet) = frame.split_first_chunk_mut::<VNET_BYTES>()?;
    split(VnetHeader::parse(head), packet, each)
}

/// The same for the IP packet in `frame`, an Ethernet frame with a link header of `link_bytes`, which `vnet` describes. `each` also
/// gets the link header.
pub fn for_each_packet_in_frame(
    vnet: &[u8; VNET_BYTES],
    frame: &mut [u8],
    link_bytes: usize,
    mut each: impl FnMut(&[u8], &mut [u8]),
) -> Option<usize> {
    let (link, packet) = frame.split_at_mut_checked(link_bytes)?;
    let mut header = VnetHeader::parse(vnet);
    header.checksum_start = header.checksum_start.saturating_sub(link_bytes as u16);
    split(header, packet, |packet| each(link, packet))
}

fn split(header: VnetHeader, packet: &mut [u8], mut each: impl FnMut(&mut [u8])) -> Option<usize> {
    if header.gso_type & !GSO_ECN == GSO_NONE {
        if header.flags & NEEDS_CHECKSUM != 0 {
            let start = usize::from(header.checksum_start);
            complete_checksum_at(packet, start, usize::from(header.checksum_offset))?;
        }
        if packet.is_empty() {
            return None;
        }
        each(packet);
        return Some(1);
    }
    let shape = Shape::of(packet, header)?;
    shape.split(packet, each)
}

fn complete_checksum_at(packet: &mut [u8], start: usize, offset: usize) -> Option<()> {
    let covered = packet.get_mut(start..)?;
    let field = offset..offset.checked_add(2)?;
    covered.get(field.clone())?;
    // The field already has the sum of the pseudo header, so the sum over all bytes includes it.
    let value = not_zero_if(offset == 6, !sum(covered));
    covered[field].copy_from_slice(&value.to_be_bytes());
    Some(())
}

/// A computed UDP checksum of zero is sent as 0xffff (RFC 768), because zero means "no checksum".
fn not_zero_if(udp: bool, value: u16) -> u16 {
    if udp && value == 0 { 0xffff } else { value }
}

/// The structure of a frame, checked against its length.
struct Shape {
    v6: bool,
    protocol: u8,
    ip_bytes: usize,
    header_bytes: usize,
    segment_bytes: usize,
}

impl Shape {
    fn of(packet: &[u8], header: VnetHeader) -> Option<Self> {
        let v6 = match packet.first()? >> 4 {
            4 => false,
            6 => true,
            _ => return None,
        };
        let protocol = match (header.gso_type & !GSO_ECN, v6) {
            (GSO_TCP4, false) | (GSO_TCP6, true) => TCP,
            (GSO_UDP, _) => UDP,
            _ => return None,
        };
        // The kernel's header_bytes is only a hint; checksum_start is the length of the IP header.
        let ip_bytes = usize::from(header.checksum_start);
        if ip_bytes < if v6 { 40 } else { 20 } {
            return None;
        }
        let transport_bytes =
            if protocol == TCP { usize::from(*packet.get(ip_bytes + 12)? >> 4) * 4 } else { 8 };
        let header_bytes = ip_bytes + transport_bytes;
        let segment_bytes = usize::from(header.segment_bytes);
        let sane = transport_bytes >= if protocol == TCP { 20 } else { 8 }
            && header_bytes <= packet.len().min(MAX_HEADER_BYTES)
            && segment_bytes > 0;
        sane.then_some(Self { v6, protocol, ip_bytes, header_bytes, segment_bytes })
    }

    fn split(&self, packet: &mut [u8], mut each: impl FnMut(&mut [u8])) -> Option<usize> {
        let mut template = [0; MAX_HEADER_BYTES];
        template[..self.header_bytes].copy_from_slice(&packet[..self.header_bytes]);
        let template = &template[..self.header_bytes];
        let payload_bytes = packet.len() - self.header_bytes;
        let count = payload_bytes.div_ceil(self.segment_bytes).max(1);
        for i in 0..count {
            // The header is written immediately before its payload, over segment i - 1.
            let start = i * self.segment_bytes;
            let end = (start + self.segment_bytes).min(payload_bytes) + self.header_bytes;
            let segment = &mut packet[start..end];
            segment[..self.header_bytes].copy_from_slice(template);
            self.finish(segment, i, i + 1 == count);
            each(segment);
        }
        Some(count)
    }

    /// Lengths, identification, sequence, flags and checksums of segment `i`.
    fn finish(&self, segment: &mut [u8], i: usize, last: bool) {
        let transport_bytes = segment.len() - self.ip_bytes;
        let (ip, transport) = segment.split_at_mut(self.ip_bytes);
        let addresses = if self.v6 {
            // The payload length counts extension headers.
            ip[4..6].copy_from_slice(&((self.ip_bytes - 40 + transport_bytes) as u16).to_be_bytes());
            &ip[8..40]
        } else {
            ip[2..4].copy_from_slice(&((self.ip_bytes + transport_bytes) as u16).to_be_bytes());
            let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(i as u16);
            ip[4..6].copy_from_slice(&id.to_be_bytes());
            ip[10..12].fill(0);
            let checksum = !sum(ip);
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            &ip[12..20]
        };
        let pseudo = pseudo(addresses, self.protocol, transport_bytes);
        let field = if self.protocol == TCP {
            let sequence = u32::from_be_bytes([transport[4], transport[5], transport[6], transport[7]]);
            let sequence = sequence.wrapping_add((i * self.segment_bytes) as u32);
            transport[4..8].copy_from_slice(&sequence.to_be_bytes());
            if i > 0 {
                transport[13] &= !CWR;
            }
            if !last {
                transport[13] &= !(FIN | PSH);
            }
            16..18
        } else {
            transport[4..6].copy_from_slice(&(transport_bytes as u16).to_be_bytes());
            6..8
        };
        transport[field.clone()].fill(0);
        let checksum = !fold(pseudo + u64::from(sum(transport)));
        transport[field].copy_from_slice(&not_zero_if(self.protocol == UDP, checksum).to_be_bytes());
    }
}
