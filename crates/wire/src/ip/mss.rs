//! MSS clamping: a TCP sender with a sufficiently small segment size never exceeds the tunnel's MTU.

use super::{FlowKey, IpPacket, protocol, update_u16};
use crate::read::{put, u16_at};
use std::net::IpAddr;

/// Lowers the MSS option of a TCP SYN so that full segments fit into IP packets of `mtu` bytes; the checksum is updated in
/// place (RFC 1624). Returns the old MSS if it was lowered.
///
/// The largest permitted segment is `mtu` minus the fixed IP and TCP headers (RFC 9293 §3.7.1, RFC 6691). A packet that is not
/// a well-formed SYN with an MSS option is not changed.
pub fn clamp_mss(packet: &mut [u8], mtu: u16) -> Option<u16> {
    clamp_mss_with(&IpPacket::parse(packet).ok()?, packet, || mtu)
}

/// Like [`clamp_mss`] for a packet that was parsed as `ip`; `mtu` is called only if there is an MSS option.
pub fn clamp_mss_with(ip: &IpPacket, packet: &mut [u8], mtu: impl FnOnce() -> u16) -> Option<u16> {
    // Nearly every packet returns here: not TCP, or not a SYN.
    if ip.protocol != protocol::TCP || ip.fragment {
        return None;
    }
    let headers = if matches!(ip.src, IpAddr::V4(_)) { 40 } else { 60 };
    let tcp = packet.get_mut(ip.payload.clone())?;
    if tcp.len() < 20 || tcp[13] & 0x02 == 0 {
        return None;
    }
    let header = usize::from(tcp[12] >> 4) * 4;
    let at = mss_offset(tcp.get(20..header)?)? + 20;
    let most = mtu().saturating_sub(headers).max(1);
    let old = u16_at(tcp, at);
    if old <= most {
        return None;
    }
    put(tcp, at, &most.to_be_bytes());
    // At an odd offset the value spans two words, and contributes to the sum with its bytes swapped.
    let (was, is) = if at % 2 == 0 { (old, most) } else { (old.swap_bytes(), most.swap_bytes()) };
    let checksum = update_u16(u16_at(tcp, 16), was, is);
    put(tcp, 16, &checksum.to_be_bytes());
    Some(old)
}

/// Whether a packet that was parsed as `ip` ends the connection in its direction: TCP with FIN or RST.
#[must_use]
pub fn ends_connection(ip: &IpPacket, packet: &[u8]) -> bool {
    const FIN_OR_RST: u8 = 0x05;
    let is_tcp = ip.protocol == protocol::TCP && !ip.fragment;
    is_tcp
        && packet
            .get(ip.payload.clone())
            .and_then(|tcp| tcp.get(13))
            .is_some_and(|flags| flags & FIN_OR_RST > 0)
}

/// Offset of the MSS value within TCP options.
fn mss_offset(options: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match *options.get(at)? {
            0 => return None,
            1 => at += 1,
            2 if options.get(at + 1) == Some(&4) && options.len() >= at + 4 => return Some(at + 2),
            _ => {
                let length = usize::from(*options.get(at + 1)?);
                if length < 2 {
                    return None;
                }
                at += length;
            }
        }
    }
}

impl FlowKey {
    /// Whether this is a TCP flow.
    #[must_use]
    pub const fn is_tcp(&self) -> bool {
        self.protocol == protocol::TCP
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::{self, TcpFlags, TcpHeader, TcpOptions};
    use proptest::prelude::*;
    use std::net::SocketAddr;

    fn syn(v6: bool, mss: u16, flags: TcpFlags) -> Vec<u8> {
        let (src, dst): (SocketAddr, SocketAddr) = if v6 {
            ("[fd00::1]:1000".parse().unwrap(), "[fd00::2]:80".parse().unwrap())
        } else {
            ("10.0.0.1:1000".parse().unwrap(), "10.0.0.2:80".parse().unwrap())
        };
        let header = TcpHeader {
            flags,
            options: TcpOptions { mss: Some(mss), window_scale: Some(7), ..TcpOptions::default() },
            ..TcpHeader::default()
        };
        tcp::emit_packet(src, dst, &header, &[]).unwrap()
    }

    #[test]
    fn lowers_but_never_raises() {
        for (v6, fits) in [(false, 1380), (true, 1360)] {
            let mut p = syn(v6, 1460, TcpFlags::SYN);
            assert_eq!(clamp_mss(&mut p, 1420), Some(1460));
            let t = tcp::parse_packet(&p).expect("checksum still right");
            assert_eq!(t.header.options.mss, Some(fits));
            assert_eq!(clamp_mss(&mut p, 1420), None, "a second time there is nothing to do");
            assert_eq!(clamp_mss(&mut syn(v6, 536, TcpFlags::SYN), 1420), None);
        }
        assert_eq!(clamp_mss(&mut syn(false, 1460, TcpFlags::ACK), 1420), None, "no SYN");
    }

    #[test]
    fn an_mss_at_an_odd_offset_keeps_the_checksum_right() {
        let mut p = syn(false, 1460, TcpFlags::SYN);
        // mss(4) + window scale(3) + padding(1) becomes nop, mss, window scale: MSS value at offset 23.
        p[40..48].copy_from_slice(&[1, 2, 4, 0x05, 0xb4, 3, 3, 7]);
        p[36..38].fill(0);
        let ip = IpPacket::parse(&p).unwrap();
        let pseudo = super::super::pseudo_header_sum(ip.src, ip.dst, 6, p.len() - 20);
        let checksum = !super::super::fold(pseudo + super::super::sum(&p[20..]));
        p[36..38].copy_from_slice(&checksum.to_be_bytes());
        assert_eq!(clamp_mss(&mut p, 1400), Some(1460));
        assert_eq!(tcp::parse_packet(&p).expect("checksum").header.options.mss, Some(1360));
    }

    proptest! {
        #[test]
        fn never_panics_and_touches_nothing_but_mss_and_checksum(
            options in proptest::collection::vec(any::<u8>(), 0..8), mtu: u16, v6: bool,
        ) {
            let mut p = syn(v6, 9000, TcpFlags::SYN);
            let at = if v6 { 60 } else { 40 };
            p[at..at + options.len()].copy_from_slice(&options);
            let before = p.clone();
            clamp_mss(&mut p, mtu);
            let changed: Vec<_> = (0..p.len()).filter(|i| p[*i] != before[*i]).collect();
            let checksum = at - 4..at - 2;
            prop_assert!(changed.iter().filter(|i| !checksum.contains(i)).count() <= 2, "{changed:?}");
            prop_assert!(changed.iter().all(|i| *i >= at || checksum.contains(i)));
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..120), mtu: u16) {
            if bytes.len() > 40 {
                bytes[0] = 0x45;
                bytes[2] = 0;
                bytes[3] = bytes.len() as u8;
                bytes[6..8].fill(0);
                bytes[9] = 6;
                bytes[33] |= 2;
            }
            clamp_mss(&mut bytes, mtu);
        }
    }
}
