//! TCP segments survive being written and read again. Checksums are made right first, for a fuzzer does not
//! find them.
#![no_main]

use anabranch_wire::ip::{IpPacket, fold, internet_checksum, pseudo_header_sum, sum};
use anabranch_wire::tcp::{emit_packet, parse_packet};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = parse_packet(data);
    let mut packet = data.to_vec();
    let Ok(ip) = IpPacket::parse(&packet) else { return };
    let start = ip.payload.start;
    if ip.payload.len() < 20 {
        return;
    }
    packet[start + 16..start + 18].fill(0);
    let pseudo = pseudo_header_sum(ip.src, ip.dst, 6, ip.payload.len());
    let checksum = !fold(pseudo + sum(&packet[ip.payload.clone()]));
    packet[start + 16..start + 18].copy_from_slice(&checksum.to_be_bytes());
    if ip.src.is_ipv4() {
        packet[10..12].fill(0);
        let checksum = internet_checksum(&packet[..start]);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
    let Ok(tcp) = parse_packet(&packet) else { return };
    let payload = &packet[tcp.payload.clone()];
    // Options may be more than fit in the order and padding that we write.
    let Ok(again) = emit_packet(tcp.src, tcp.dst, &tcp.header, payload) else { return };
    let reread = parse_packet(&again).expect("well-formed");
    assert_eq!((reread.src, reread.dst), (tcp.src, tcp.dst));
    assert_eq!((reread.header.seq, reread.header.ack), (tcp.header.seq, tcp.header.ack));
    assert_eq!((reread.header.flags, reread.header.window), (tcp.header.flags, tcp.header.window));
    assert_eq!(&again[reread.payload], payload);
});
