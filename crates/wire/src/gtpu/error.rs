//! Error Indication, TS 29.281 §7.3.1: the sender has no tunnel with the TEID of a received G-PDU.
//!
//! ```text
//! +------+-------------------------------+------+---------------+------------------------------+
//! | 16   | TEID of the G-PDU             | 133  | length 4 / 16 | address the G-PDU was sent to |
//! +------+-------------------------------+------+---------------+------------------------------+
//! ```

use super::{GtpuHeader, message};
use crate::WireError;
use crate::read::{need, put, u16_at, u32_at};
use std::net::IpAddr;

const TEID_DATA_I: u8 = 16;
const PEER_ADDRESS: u8 = 133;
/// Information elements from this type on have a length field. Below it the length depends on the type: 5 bytes for
/// [`TEID_DATA_I`], 2 bytes for the types in [`SHORT`].
const WITH_LENGTH: u8 = 128;
const SHORT: [u8; 1] = [14];

/// The missing tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorIndication {
    /// TEID of the G-PDU.
    pub teid: u32,
    /// Address to which the G-PDU was sent.
    pub peer: IpAddr,
}

impl ErrorIndication {
    /// Size of the longest message in bytes.
    pub const MAX: usize = 12 + 5 + 3 + 16;

    /// Parses the information elements after the header; unknown elements are skipped.
    ///
    /// # Errors
    /// An element is missing or truncated, or has a type below 128 with an unknown length.
    pub fn parse(mut b: &[u8]) -> Result<Self, WireError> {
        const WHAT: &str = "GTP-U error indication";
        let (mut teid, mut peer) = (None, None);
        while let Some(&kind) = b.first() {
            let end = match kind {
                TEID_DATA_I => 5,
                short if SHORT.contains(&short) => 2,
                kind if kind < WITH_LENGTH => {
                    return Err(WireError::Value { what: "GTP-U information element", got: kind.into() });
                }
                _ => {
                    need(b, WHAT, 3)?;
                    3 + usize::from(u16_at(b, 1))
                }
            };
            need(b, WHAT, end)?;
            match (kind, &b[3.min(end)..end]) {
                (TEID_DATA_I, _) => teid = Some(u32_at(b, 1)),
                (PEER_ADDRESS, address) => {
                    let v4 = <[u8; 4]>::try_from(address).map(IpAddr::from);
                    peer = v4.or_else(|_| <[u8; 16]>::try_from(address).map(IpAddr::from)).ok();
                }
                _ => {}
            }
            b = &b[end..];
        }
        match (teid, peer) {
            (Some(teid), Some(peer)) => Ok(Self { teid, peer }),
            _ => Err(WireError::Length { what: WHAT, expected: 12, have: 0 }),
        }
    }

    /// Writes the whole message, including the header, to the start of `out`; returns its length.
    ///
    /// # Errors
    /// `out` is too short; [`Self::MAX`] bytes are always enough.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        // The sequence number is present but meaningless (§5.1).
        let header = GtpuHeader {
            message: message::ERROR_INDICATION,
            sequence: Some(0),
            ..GtpuHeader::g_pdu(0, None)
        };
        let (v4, v6);
        let address: &[u8] = match self.peer {
            IpAddr::V4(address) => {
                v4 = address.octets();
                &v4
            }
            IpAddr::V6(address) => {
                v6 = address.octets();
                &v6
            }
        };
        let at = header.emit(8 + address.len(), out)?;
        need(out, "room for a GTP-U error indication", at + 8 + address.len())?;
        put(out, at, &[TEID_DATA_I]);
        put(out, at + 1, &self.teid.to_be_bytes());
        put(out, at + 5, &[PEER_ADDRESS, 0, address.len() as u8]);
        put(out, at + 8, address);
        Ok(at + 8 + address.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_layout_of_the_specification() {
        for peer in ["10.1.2.3", "fd00::1"] {
            let told = ErrorIndication { teid: 0x0102_0304, peer: peer.parse().unwrap() };
            let mut out = [0xff; ErrorIndication::MAX];
            let len = told.emit(&mut out).unwrap();
            let (header, elements) = GtpuHeader::parse(&out[..len]).unwrap();
            assert_eq!((header.message, header.teid, header.sequence), (26, 0, Some(0)));
            assert_eq!(ErrorIndication::parse(elements), Ok(told));
            if peer == "10.1.2.3" {
                let expected =
                    [0x32, 26, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 16, 1, 2, 3, 4, 133, 0, 4, 10, 1, 2, 3];
                assert_eq!(out[..len], expected);
            }
            for short in 0..elements.len() {
                assert!(ErrorIndication::parse(&elements[..short]).is_err(), "{short}");
            }
            assert!(told.emit(&mut [0; 20]).is_err());
        }
    }

    #[test]
    fn unknown_elements_of_known_length_are_skipped() {
        let teid = [16, 0, 0, 0, 7];
        let peer = [133, 0, 4, 10, 0, 0, 1];
        let of = |parts: &[&[u8]]| ErrorIndication::parse(&parts.concat());
        let expected = ErrorIndication { teid: 7, peer: "10.0.0.1".parse().unwrap() };
        assert_eq!(of(&[&[14, 3], &peer, &[255, 0, 2, 1, 2], &teid]), Ok(expected));
        for bad in [&[99, 1][..], &[133, 0, 9, 1], &[133, 0]] {
            assert!(of(&[&teid, &peer, bad]).is_err(), "{bad:?}");
        }
        assert!(of(&[&teid, &[133, 0, 3, 1, 2, 3]]).is_err());
        assert!(of(&[&peer]).is_err());
    }
}
