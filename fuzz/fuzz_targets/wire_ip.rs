//! IP views stay inside the packet, MSS clamping touches nothing else, errors are well-formed.
#![no_main]

use anabranch_wire::ip::{
    FlowKey, IpPacket, clamp_mss, may_fragment, packet_too_big, parse_udp, src_dst, udp_datagram,
};
use libfuzzer_sys::fuzz_target;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

fuzz_target!(|input: (u16, &[u8])| {
    let (mtu, data) = input;
    let _ = may_fragment(data);
    if let Ok(ip) = IpPacket::parse(data) {
        assert!(ip.payload.start <= ip.payload.end && ip.payload.end <= data.len());
        assert_eq!(src_dst(data), Ok((ip.src, ip.dst)));
    }
    if let Ok(key) = FlowKey::parse(data) {
        assert_eq!(key.reversed().reversed(), key);
        assert_eq!(key.hash64((1, 2)), key.hash64((1, 2)));
    }
    let mut clamped = data.to_vec();
    let lowered = clamp_mss(&mut clamped, mtu);
    let changed = data.iter().zip(&clamped).filter(|(a, b)| a != b).count();
    assert!(changed <= 4 && (lowered.is_some() || changed == 0));
    assert_eq!(clamp_mss(&mut clamped, mtu), None, "a second time there is nothing to do");
    for from in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        if let Some(error) = packet_too_big(data, mtu, from) {
            let ip = IpPacket::parse(&error).expect("well-formed");
            assert_eq!(ip.src, from);
            assert_eq!(packet_too_big(&error, mtu, from), None, "no error about an error");
        }
    }
    if let Ok((src, dst, payload)) = parse_udp(data) {
        let again = udp_datagram(src, dst, &data[payload.clone()]).expect("fits, for it was read");
        let (s, d, p) = parse_udp(&again).expect("well-formed");
        assert_eq!((s, d), (src, dst));
        assert_eq!(again[p], data[payload]);
    }
});
