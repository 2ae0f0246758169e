//! Taking an option out of a segment on its way, as a middlebox does that does not know it.

use super::{TCP_HEADER_LEN, TcpView};
use crate::WireError;
use crate::ip::{IpPacket, fold, protocol, pseudo_header_sum, sum};
use crate::read::put;

/// Overwrites every option of this kind with padding; the segment keeps its length. True if there was one. A
/// packet that is no TCP segment, is a fragment or has a wrong checksum stays as it is.
///
/// # Errors
/// Not an IP packet, or a TCP header or option that ends beyond it.
pub fn blank_option(packet: &mut [u8], kind: u8) -> Result<bool, WireError> {
    let ip = IpPacket::parse(packet)?;
    if ip.protocol != protocol::TCP || ip.fragment {
        return Ok(false);
    }
    let tcp = &mut packet[ip.payload.clone()];
    let view = TcpView::parse(tcp)?;
    let header = TCP_HEADER_LEN.max(tcp.len() - view.payload_len());
    let mut at = TCP_HEADER_LEN;
    let mut found = false;
    while at < header {
        let length = match tcp[at] {
            0 => break,
            1 => 1,
            other => {
                let length = usize::from(*tcp.get(at + 1).unwrap_or(&0));
                if length < 2 || at + length > header {
                    return Err(WireError::Length {
                        what: "TCP option",
                        expected: length,
                        have: header - at,
                    });
                }
                if other == kind {
                    if !found && !TcpView::parse(tcp)?.verifies(&ip) {
                        return Ok(false);
                    }
                    tcp[at..at + length].fill(1);
                    found = true;
                }
                length
            }
        };
        at += length;
    }
    if found {
        put(tcp, 16, &[0, 0]);
        let checksum = !fold(pseudo_header_sum(ip.src, ip.dst, protocol::TCP, tcp.len()) + sum(tcp));
        put(tcp, 16, &checksum.to_be_bytes());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ioam::{Feedback, TCP_OPTION_KIND};
    use crate::tcp::{TcpHeader, TcpOptions, emit_packet, parse_packet};
    use proptest::prelude::*;

    #[test]
    fn an_option_goes_and_the_rest_stays() {
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
