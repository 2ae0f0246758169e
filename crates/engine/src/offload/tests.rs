//! Segmentation and coalescing against each other and against naive copies.

use super::checksum::{fold, pseudo, sum};
use super::header::{GSO_TCP4, GSO_TCP6, GSO_UDP, NEEDS_CHECKSUM, VnetHeader};
use super::*;
use anabranch_wire::ip::complete_checksum;
use proptest::prelude::*;

#[derive(Default)]
struct Frames(Vec<Vec<u8>>);

impl FrameSink for Frames {
    fn write(&mut self, head: &[u8], rest: &[u8]) {
        self.0.push([head, rest].concat());
    }
}

/// A frame as delivered by the kernel, with the sum of the pseudo header in the checksum field.
fn frame(v6: bool, tcp: bool, flags: u8, payload: &[u8], segment_bytes: u16) -> Vec<u8> {
    let transport_header = if tcp { 32 } else { 8 };
    let transport_bytes = transport_header + payload.len();
    let mut packet = if v6 {
        let mut ip = vec![0x60, 0x12, 0x34, 0x56, 0, 0, 0, 63];
        ip[4..6].copy_from_slice(&(transport_bytes as u16).to_be_bytes());
        ip.extend((0..32).map(|i| i * 7));
        ip
    } else {
        let mut ip = vec![0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 63, 0, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        ip[2..4].copy_from_slice(&((20 + transport_bytes) as u16).to_be_bytes());
        ip
    };
    let ip_bytes = packet.len();
    packet[if v6 { 6 } else { 9 }] = if tcp { 6 } else { 17 };
    if !v6 {
        let checksum = !sum(&packet);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
    packet.extend([0x30, 0x39, 0x01, 0xbb]);
    if tcp {
        packet.extend([0xff, 0xff, 0xff, 0x00, 1, 2, 3, 4, 0x80, flags, 0x10, 0x00, 0, 0, 0, 0]);
        packet.extend([1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 8]);
    } else {
        packet.extend((transport_bytes as u16).to_be_bytes());
        packet.extend([0, 0]);
    }
    packet.extend(payload);
    let addresses = if v6 { 8..40 } else { 12..20 };
    let partial = fold(pseudo(&packet[addresses], if tcp { 6 } else { 17 }, transport_bytes));
    let field = ip_bytes + if tcp { 16 } else { 6 };
    packet[field..field + 2].copy_from_slice(&partial.to_be_bytes());
    let header = VnetHeader {
        flags: NEEDS_CHECKSUM,
        gso_type: if payload.len() <= usize::from(segment_bytes) {
            0
        } else if !tcp {
            GSO_UDP
        } else if v6 {
            GSO_TCP6
        } else {
            GSO_TCP4
        },
        header_bytes: (ip_bytes + transport_header) as u16,
        segment_bytes,
        checksum_start: ip_bytes as u16,
        checksum_offset: if tcp { 16 } else { 6 },
    };
    [&header.emit()[..], &packet].concat()
}

fn packets(frame: &[u8]) -> Vec<Vec<u8>> {
    let mut frame = frame.to_vec();
    let mut out = Vec::new();
    let count = for_each_packet(&mut frame, |p| out.push(p.to_vec())).unwrap();
    assert_eq!(count, out.len());
    out
}

fn transport_valid(packet: &[u8]) -> bool {
    let v6 = packet[0] >> 4 == 6;
    let (ip, addresses, protocol) =
        if v6 { (40, &packet[8..40], packet[6]) } else { (20, &packet[12..20], packet[9]) };
    let whole = if v6 {
        40 + usize::from(u16::from_be_bytes([packet[4], packet[5]]))
    } else {
        usize::from(u16::from_be_bytes([packet[2], packet[3]]))
    };
    whole == packet.len()
        && (v6 || sum(&packet[..20]) == 0xffff)
        && fold(pseudo(addresses, protocol, packet.len() - ip) + u64::from(sum(&packet[ip..]))) == 0xffff
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Split, merged, and split again: nothing is lost, and every checksum is correct.
    #[test]
    fn split_and_merge_are_inverse(
        v6: bool, tcp: bool, push: bool,
        payload in proptest::collection::vec(any::<u8>(), 1..9000),
        segment_bytes in 200u16..1500,
    ) {
        let original = frame(v6, tcp, if push { 0x18 } else { 0x10 }, &payload, segment_bytes);
        let split = packets(&original);
        prop_assert_eq!(split.len(), payload.len().div_ceil(usize::from(segment_bytes)));
        let header = if v6 { 40 } else { 20 } + if tcp { 32 } else { 8 };
        let joined: Vec<u8> = split.iter().flat_map(|p| p[header..].iter().copied()).collect();
        prop_assert_eq!(&joined, &payload);
        for packet in &split {
            prop_assert!(transport_valid(packet));
        }
        let mut coalescer = Coalescer::new(true);
        let mut frames = Frames::default();
        for packet in &split {
            coalescer.push(packet, &mut frames);
        }
        coalescer.flush(&mut frames);
        let expected = if tcp { 1 } else { split.len().div_ceil(64) };
        prop_assert_eq!(frames.0.len(), expected);
        let again: Vec<Vec<u8>> = frames.0.iter().flat_map(|f| packets(f)).collect();
        prop_assert_eq!(again.len(), split.len());
        if expected == 1 {
            prop_assert_eq!(again, split);
        }
    }

    /// With a link header, offsets are those in the frame, and every packet comes with that header.
    #[test]
    fn frames_with_a_link_header_are_split_alike(
        v6: bool, tcp: bool, tags in 0usize..3,
        payload in proptest::collection::vec(any::<u8>(), 1..9000),
        segment_bytes in 200u16..1500,
    ) {
        let alone = frame(v6, tcp, 0x18, &payload, segment_bytes);
        let (vnet, packet) = alone.split_first_chunk::<VNET_BYTES>().unwrap();
        let link = vec![0xab; 14 + 4 * tags];
        let mut header = VnetHeader::parse(vnet);
        header.checksum_start += link.len() as u16;
        let mut whole = [&link[..], packet].concat();
        let mut split = Vec::new();
        let count = for_each_packet_in_frame(&header.emit(), &mut whole, link.len(), |before, packet| {
            assert_eq!(before, link);
            split.push(packet.to_vec());
        });
        prop_assert_eq!(count, Some(split.len()));
        prop_assert_eq!(split, packets(&alone));
    }

    #[test]
    fn any_link_header_is_harmless(
        bytes in proptest::collection::vec(any::<u8>(), 0..400), vnet: [u8; VNET_BYTES], link_bytes in 0usize..40
    ) {
        for_each_packet_in_frame(&vnet, &mut bytes.clone(), link_bytes, |_, _| ());
    }

    #[test]
    fn any_frame_is_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut frame = bytes.clone();
        for_each_packet(&mut frame, |_| ());
        let mut frames = Frames::default();
        let mut coalescer = Coalescer::new(true);
        coalescer.push(&bytes, &mut frames);
        coalescer.push(&bytes, &mut frames);
        coalescer.flush(&mut frames);
        let mut packet = bytes;
        complete_checksum(&mut packet);
    }

    /// Damaged headers before a plausible packet reach more code than random bytes.
    #[test]
    fn any_damage_is_harmless(at in 0usize..90, value: u8, v6: bool, tcp: bool) {
        let mut damaged = frame(v6, tcp, 0x10, &[7; 3000], 1000);
        damaged[at] = value;
        let mut frames = Frames::default();
        let mut coalescer = Coalescer::new(true);
        for_each_packet(&mut damaged, |p| coalescer.push(p, &mut frames));
        coalescer.flush(&mut frames);
    }
}

#[test]
fn flags_belong_to_the_first_or_last_segment() {
    let split = packets(&frame(false, true, 0x99, &[1; 2500], 1000)); // CWR ACK PSH FIN
    let flags: Vec<u8> = split.iter().map(|p| p[33]).collect();
    assert_eq!(flags, [0x90, 0x10, 0x19]);
    let ids: Vec<u16> = split.iter().map(|p| u16::from_be_bytes([p[4], p[5]])).collect();
    assert_eq!(ids, [0x1234, 0x1235, 0x1236]);
    assert_eq!(split[2][24..28], 0xffff_ff00u32.wrapping_add(2000).to_be_bytes());
}

#[test]
fn a_corrupt_packet_is_not_merged_and_stays_corrupt() {
    let mut split = packets(&frame(false, true, 0x10, &[1; 3000], 1000));
    split[1][100] ^= 1;
    let mut frames = Frames::default();
    let mut coalescer = Coalescer::new(true);
    for packet in &split {
        coalescer.push(packet, &mut frames);
    }
    coalescer.flush(&mut frames);
    let out: Vec<Vec<u8>> = frames.0.iter().flat_map(|f| packets(f)).collect();
    assert_eq!(out, split);
    assert!(!transport_valid(&out[1]));
}

#[test]
fn a_flow_is_never_reordered() {
    // A segment, a pure ACK, a segment: the ACK must neither overtake the first nor be overtaken.
    let split = packets(&frame(false, true, 0x10, &[1; 2000], 1000));
    let ack = packets(&frame(false, true, 0x10, &[], 1000)).remove(0);
    let order = [&split[0], &ack, &split[1]];
    let mut frames = Frames::default();
    let mut coalescer = Coalescer::new(true);
    for packet in order {
        coalescer.push(packet, &mut frames);
    }
    coalescer.flush(&mut frames);
    let out: Vec<Vec<u8>> = frames.0.iter().map(|f| f[VNET_BYTES..].to_vec()).collect();
    assert_eq!(out.iter().collect::<Vec<_>>(), order);
}

#[test]
fn more_flows_than_slots_lose_nothing() {
    let mut frames = Frames::default();
    let mut coalescer = Coalescer::new(true);
    let packet = packets(&frame(false, true, 0x10, &[1; 500], 1000)).remove(0);
    for port in 0..20u8 {
        let mut other = packet.clone();
        other[21] = port;
        coalescer.push(&other, &mut frames);
    }
    coalescer.flush(&mut frames);
    let ports: Vec<u8> = frames.0.iter().map(|f| f[VNET_BYTES + 21]).collect();
    assert_eq!(ports, (0..20).collect::<Vec<u8>>());
}
