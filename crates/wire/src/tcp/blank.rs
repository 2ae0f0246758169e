//! Removes an option from a segment in transit, as a middlebox does with unknown options.

use super::{TCP_HEADER_LEN, TCP_OPTIONS_MAX, TcpView};
use crate::WireError;
use crate::ip::{IpPacket, fold, protocol, pseudo_header_sum, sum};
use crate::read::put;

/// Overwrites every option of this kind with padding; the segment keeps its length. Returns whether there was one. A packet
/// that is not TCP, is a fragment, has a wrong checksum or is malformed is not changed.
///
/// # Errors
/// Not an IP packet, or a TCP header or option that extends beyond it.
pub fn blank_option(packet: &mut [u8], kind: u8) -> Result<bool, WireError> {
    let ip = IpPacket::parse(packet)?;
    if ip.protocol != protocol::TCP || ip.fragment {
        return Ok(false);
    }
    let tcp = &mut packet[ip.payload.clone()];
    let view = TcpView::parse(tcp)?;
    let header = tcp.len() - view.payload_len();
    // Work on a copy until all options have been parsed.
    let mut options = [0; TCP_OPTIONS_MAX];
    let options = &mut options[..header - TCP_HEADER_LEN];
    options.copy_from_slice(&tcp[TCP_HEADER_LEN..header]);
    let (mut at, mut found) = (0, false);
    while at < options.len() {
        let length = match options[at] {
            0 => break,
            1 => 1,
            other => {
                let length = usize::from(*options.get(at + 1).unwrap_or(&0));
                let have = options.len() - at;
                if length < 2 || length > have {
                    return Err(WireError::Length { what: "TCP option", expected: length, have });
                }
                if other == kind {
                    options[at..at + length].fill(1);
                    found = true;
                }
                length
            }
        };
        at += length;
    }
    if !found || !view.verifies(&ip) {
        return Ok(false);
    }
    put(tcp, TCP_HEADER_LEN, options);
    put(tcp, 16, &[0, 0]);
    let checksum = !fold(pseudo_header_sum(ip.src, ip.dst, protocol::TCP, tcp.len()) + sum(tcp));
    put(tcp, 16, &checksum.to_be_bytes());
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ioam::{Feedback, TCP_OPTION_KIND};
    use crate::tcp::{TcpHeader, TcpOptions, emit_packet, parse_packet};
    use proptest::prelude::*;

    #[test]
    fn only_the_given_option_is_blanked() {
        let (src, dst) = ("[fd00::1]:1".parse().unwrap(), "[fd00::2]:2".parse().unwrap());
        let mut options = TcpOptions { timestamps: Some((1, 2)), ..TcpOptions::default() };
        Feedback { flows: 3, ..Feedback::default() }.emit(&mut options.report).unwrap();
        let header = TcpHeader { seq: 9, options, ..TcpHeader::default() };
        let mut packet = emit_packet(src, dst, &header, b"abc").unwrap();
        assert_eq!(blank_option(&mut packet, TCP_OPTION_KIND), Ok(true));
        let after = parse_packet(&packet).unwrap();
        assert_eq!((after.header.seq, after.header.options.timestamps), (9, Some((1, 2))));
        assert_eq!(after.header.options.report, [0; 16]);
        assert_eq!(blank_option(&mut packet, TCP_OPTION_KIND), Ok(false), "none is left");
        let mut wrong = emit_packet(src, dst, &header, b"abc").unwrap();
        *wrong.last_mut().unwrap() ^= 1;
        let before = wrong.clone();
        assert_eq!(
            (blank_option(&mut wrong, TCP_OPTION_KIND), wrong),
            (Ok(false), before),
            "not ours to mend"
        );
        // The option after the report extends beyond the header: nothing is changed.
        let mut broken = emit_packet(src, dst, &header, b"abc").unwrap();
        let end = broken.len() - 3;
        broken[end - 2..end].copy_from_slice(&[0x73, 9]);
        broken[56..58].fill(0);
        let pseudo =
            pseudo_header_sum("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap(), 6, broken.len() - 40);
        let checksum = !fold(pseudo + sum(&broken[40..]));
        broken[56..58].copy_from_slice(&checksum.to_be_bytes());
        let before = broken.clone();
        assert!(blank_option(&mut broken, TCP_OPTION_KIND).is_err());
        assert_eq!(broken, before);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..100), v6: bool) {
            if let Some(first) = bytes.first_mut() {
                *first = if v6 { 0x60 } else { 0x45 };
            }
            let _ = blank_option(&mut bytes, 0x72);
        }
    }
}
