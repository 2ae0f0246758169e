//! UMD PDU, TS 38.322 §6.2.2.3.

use super::Segment;
use crate::WireError;
use crate::read::{array, need, put};

/// Length of the sequence number in unacknowledged mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UmSn {
    /// 6 bits.
    Bits6,
    /// 12 bits.
    Bits12,
}

impl UmSn {
    /// Number of sequence numbers.
    #[inline]
    #[must_use]
    pub const fn modulus(self) -> u32 {
        match self {
            Self::Bits6 => 1 << 6,
            Self::Bits12 => 1 << 12,
        }
    }
}

/// Header of a UMD PDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UmHeader {
    /// Part of the SDU in the PDU.
    pub segment: Segment,
    /// Sequence number; 0 for a complete SDU, which has none.
    pub sn: u16,
    /// Offset of the segment in the SDU in bytes; 0 for a first segment or a complete SDU.
    pub offset: u16,
}

impl UmHeader {
    /// Maximum size in bytes.
    pub const MAX_LEN: usize = 4;

    /// Encoded length in bytes.
    #[inline]
    #[must_use]
    pub const fn len(segment: Segment, sn: UmSn) -> usize {
        let number = match (segment, sn) {
            (Segment::Complete, _) | (_, UmSn::Bits6) => 1,
            (_, UmSn::Bits12) => 2,
        };
        number + if segment.has_offset() { 2 } else { 0 }
    }

    /// Parses a PDU: the header, and the SDU or segment.
    ///
    /// # Errors
    /// Shorter than a header and one byte of data; an offset of 0 in a middle or last segment.
    #[inline]
    pub fn parse(pdu: &[u8], sn: UmSn) -> Result<(Self, &[u8]), WireError> {
        need(pdu, "UMD PDU", 2)?;
        let [first, second] = array(pdu, 0);
        let segment = Segment::from_bits(first >> 6);
        let len = Self::len(segment, sn);
        need(pdu, "UMD PDU", len + 1)?;
        let number = match (segment, sn) {
            (Segment::Complete, _) => 0,
            (_, UmSn::Bits6) => u16::from(first & 0x3f),
            (_, UmSn::Bits12) => u16::from_be_bytes([first & 0x0f, second]),
        };
        let offset = super::offset(pdu, segment, len.saturating_sub(2))?;
        Ok((Self { segment, sn: number, offset }, &pdu[len..]))
    }

    /// Writes the header to the start of `out`; returns its length.
    ///
    /// # Errors
    /// `out` is too short.
    #[inline]
    pub fn emit(&self, sn: UmSn, out: &mut [u8]) -> Result<usize, WireError> {
        let len = Self::len(self.segment, sn);
        need(out, "room for a UMD header", len)?;
        let si = self.segment.bits() << 6;
        match (self.segment, sn) {
            (Segment::Complete, _) => out[0] = si,
            (_, UmSn::Bits6) => out[0] = si | (self.sn & 0x3f) as u8,
            (_, UmSn::Bits12) => put(out, 0, &(u16::from(si) << 8 | self.sn & 0x0fff).to_be_bytes()),
        }
        if self.segment.has_offset() {
            put(out, len - 2, &self.offset.to_be_bytes());
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_drawn() {
        let mut out = [0xff; 4];
        let complete = UmHeader { segment: Segment::Complete, sn: 0, offset: 0 };
        assert_eq!((complete.emit(UmSn::Bits12, &mut out), out[0]), (Ok(1), 0));
        let first = UmHeader { segment: Segment::First, sn: 0xabc, offset: 0 };
        assert_eq!((first.emit(UmSn::Bits12, &mut out), &out[..2]), (Ok(2), &[0x4a, 0xbc][..]));
        let last = UmHeader { segment: Segment::Last, sn: 0x2a, offset: 0x1234 };
        assert_eq!((last.emit(UmSn::Bits6, &mut out), &out[..3]), (Ok(3), &[0xaa, 0x12, 0x34][..]));
    }

    #[test]
    fn round_trip() {
        for sn in [UmSn::Bits6, UmSn::Bits12] {
            for segment in [Segment::Complete, Segment::First, Segment::Last, Segment::Middle] {
                for number in (0..sn.modulus()).step_by(13) {
                    let header = UmHeader {
                        segment,
                        sn: if segment == Segment::Complete { 0 } else { number as u16 },
                        offset: if segment.has_offset() { 65_535 - number as u16 } else { 0 },
                    };
                    let mut pdu = [7; 8];
                    let len = header.emit(sn, &mut pdu).unwrap();
                    assert_eq!(UmHeader::parse(&pdu, sn), Ok((header, &pdu[len..])));
                    assert!(UmHeader::parse(&pdu[..len], sn).is_err(), "a header alone");
                }
            }
        }
    }

    #[test]
    fn a_later_segment_does_not_start_at_0() {
        assert_eq!(
            UmHeader::parse(&[0xc1, 0, 0, 9], UmSn::Bits6),
            Err(WireError::Value { what: "segment offset", got: 0 })
        );
        assert!(UmHeader::parse(&[], UmSn::Bits6).is_err());
    }
}
