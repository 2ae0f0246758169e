//! Error Indication, TS 29.281 §7.3.1: the sender has no tunnel of the TEID that a G-PDU named.
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
/// Types from here on have a length; below, TS 29.281 has those of 2 bytes in [`SHORT`] and [`TEID_DATA_I`].
const WITH_LENGTH: u8 = 128;
const SHORT: [u8; 1] = [14];

/// Which tunnel is not there, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorIndication {
    /// TEID of the G-PDU.
    pub teid: u32,
    /// Where the G-PDU was sent to.
    pub peer: IpAddr,
}

impl ErrorIndication {
    /// Bytes of the longest message.
    pub const MAX: usize = 12 + 5 + 3 + 16;

    /// Reads the information elements, which follow the header; those that are not known are skipped.
    ///
    /// # Errors
    /// Neither or one of the elements, one that is cut short, or a type below 128 whose length is not known.
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

    /// The whole message, header included, to the front of `out`; returns its length.
    ///
    /// # Errors
    /// `out` is too short; [`Self::MAX`] is enough.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        // The sequence number is there and means nothing (§5.1).
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
    fn what_is_written_is_read_and_looks_as_in_the_specification() {
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
    fn elements_that_are_not_known_are_skipped_where_their_length_is() {
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
