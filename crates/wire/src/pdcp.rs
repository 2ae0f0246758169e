//! PDCP data PDU of a data radio bearer, 3GPP TS 38.323 §6.2.2.
//!
//! ```text
//! 12 bit SN                    18 bit SN
//! +-+-----+--------+           +-+---------+----+        1: data
//! |1| R   |   SN   |           |1| R       | SN |
//! +-+-----+--------+           +-+---------+----+
//! |      SN        |           |      SN        |
//! +----------------+           +----------------+
//! | SDU …                      |      SN        |
//! ```

use crate::WireError;
use crate::read::{need, put};

/// Length of the PDCP sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PdcpSn {
    /// 12 bits.
    Bits12,
    /// 18 bits.
    Bits18,
}

impl PdcpSn {
    /// Number of sequence numbers.
    #[must_use]
    pub const fn modulus(self) -> u32 {
        match self {
            Self::Bits12 => 1 << 12,
            Self::Bits18 => 1 << 18,
        }
    }

    /// Bytes of the header.
    #[must_use]
    pub const fn header_len(self) -> usize {
        match self {
            Self::Bits12 => 2,
            Self::Bits18 => 3,
        }
    }

    /// Parses a data PDU: its sequence number and its SDU.
    ///
    /// # Errors
    /// Too short, or a control PDU.
    pub fn parse(self, pdu: &[u8]) -> Result<(u32, &[u8]), WireError> {
        need(pdu, "PDCP PDU", self.header_len())?;
        let first = pdu[0];
        if first & 0x80 == 0 {
            let got = first >> 4;
            return Err(WireError::Value {
                what: "PDCP control PDU, where only data is read: type",
                got: got.into(),
            });
        }
        let [first, mid, low] = match self {
            Self::Bits12 => [0, first & 0x0f, pdu[1]],
            Self::Bits18 => [first & 3, pdu[1], pdu[2]],
        };
        Ok((u32::from_be_bytes([0, first, mid, low]), &pdu[self.header_len()..]))
    }

    /// Writes the header to the start of `out`.
    ///
    /// # Errors
    /// `out` is too short.
    pub fn emit(self, sn: u32, out: &mut [u8]) -> Result<(), WireError> {
        need(out, "room for a PDCP header", self.header_len())?;
        let [_, high, mid, low] = (sn % self.modulus()).to_be_bytes();
        match self {
            Self::Bits12 => put(out, 0, &[0x80 | mid, low]),
            Self::Bits18 => put(out, 0, &[0x80 | high, mid, low]),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let mut out = [9; 4];
        PdcpSn::Bits12.emit(0x1abc, &mut out).unwrap();
        assert_eq!(out, [0x8a, 0xbc, 9, 9]);
        assert_eq!(PdcpSn::Bits12.parse(&out), Ok((0xabc, &[9, 9][..])));
        PdcpSn::Bits18.emit(0x3_abcd, &mut out).unwrap();
        assert_eq!(out, [0x83, 0xab, 0xcd, 9]);
        assert_eq!(PdcpSn::Bits18.parse(&out), Ok((0x3_abcd, &[9][..])));
        assert_eq!(PdcpSn::Bits12.parse(&[0x80, 0x01]), Ok((1, &[][..])), "the header alone is long enough");
        assert!(PdcpSn::Bits18.parse(&out[..2]).is_err());
        assert!(PdcpSn::Bits12.parse(&[0x10, 0, 0]).unwrap_err().to_string().contains("control PDU"));
    }
}
