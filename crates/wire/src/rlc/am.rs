//! AMD PDU, TS 38.322 §6.2.2.4.

use super::Segment;
use super::status::StatusPdu;
use crate::WireError;
use crate::read::{array, need, put};

/// Length of the sequence number in acknowledged mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AmSn {
    /// 12 bits.
    Bits12,
    /// 18 bits.
    Bits18,
}

impl AmSn {
    /// Number of sequence numbers.
    #[must_use]
    pub const fn modulus(self) -> u32 {
        match self {
            Self::Bits12 => 1 << 12,
            Self::Bits18 => 1 << 18,
        }
    }
}

/// Header of an AMD PDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AmHeader {
    /// The sender requests a STATUS PDU.
    pub poll: bool,
    /// Part of the SDU in the PDU.
    pub segment: Segment,
    /// Sequence number.
    pub sn: u32,
    /// Offset of the segment in the SDU in bytes; 0 for a first segment or a complete SDU.
    pub offset: u16,
}

impl AmHeader {
    /// Maximum size in bytes.
    pub const MAX_LEN: usize = 5;

    /// Encoded length in bytes.
    #[must_use]
    pub const fn len(segment: Segment, sn: AmSn) -> usize {
        let number = match sn {
            AmSn::Bits12 => 2,
            AmSn::Bits18 => 3,
        };
        number + if segment.has_offset() { 2 } else { 0 }
    }

    /// Writes the header to the start of `out`; returns its length.
    ///
    /// # Errors
    /// `out` is too short.
    pub fn emit(&self, sn: AmSn, out: &mut [u8]) -> Result<usize, WireError> {
        let len = Self::len(self.segment, sn);
        need(out, "room for an AMD header", len)?;
        let first = 0x80 | u8::from(self.poll) << 6 | self.segment.bits() << 4;
        match sn {
            AmSn::Bits12 => put(out, 0, &(u16::from(first) << 8 | (self.sn & 0xfff) as u16).to_be_bytes()),
            AmSn::Bits18 => {
                let [_, high, mid, low] = (self.sn & 0x3_ffff).to_be_bytes();
                put(out, 0, &[first | high, mid, low]);
            }
        }
        if self.segment.has_offset() {
            put(out, len - 2, &self.offset.to_be_bytes());
        }
        Ok(len)
    }
}

/// A PDU of acknowledged mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AmPdu<'a> {
    /// Header and SDU or segment.
    Data(AmHeader, &'a [u8]),
    /// A report of received PDUs.
    Status(StatusPdu<'a>),
}

impl<'a> AmPdu<'a> {
    /// Parses a PDU.
    ///
    /// # Errors
    /// Too short; an offset of 0 in a middle or last segment; a control PDU other than STATUS, or one whose length is
    /// inconsistent.
    pub fn parse(pdu: &'a [u8], sn: AmSn) -> Result<Self, WireError> {
        need(pdu, "RLC AM PDU", 3)?;
        let [first, mid, low] = array(pdu, 0);
        if first & 0x80 == 0 {
            return StatusPdu::parse(pdu, sn).map(Self::Status);
        }
        let segment = Segment::from_bits(first >> 4);
        let len = AmHeader::len(segment, sn);
        need(pdu, "AMD PDU", len + 1)?;
        let number = match sn {
            AmSn::Bits12 => u32::from_be_bytes([0, 0, first & 0x0f, mid]),
            AmSn::Bits18 => u32::from_be_bytes([0, first & 0x03, mid, low]),
        };
        let offset = super::offset(pdu, segment, len - 2)?;
        Ok(Self::Data(AmHeader { poll: first & 0x40 != 0, segment, sn: number, offset }, &pdu[len..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_drawn() {
        let mut out = [0xff; 5];
        let whole = AmHeader { poll: true, segment: Segment::Complete, sn: 0x9a7, offset: 0 };
        assert_eq!((whole.emit(AmSn::Bits12, &mut out), &out[..2]), (Ok(2), &[0xc9, 0xa7][..]));
        let middle = AmHeader { poll: false, segment: Segment::Middle, sn: 0x2_89ab, offset: 0x102 };
        let bytes = [0xb2, 0x89, 0xab, 0x01, 0x02];
        assert_eq!((middle.emit(AmSn::Bits18, &mut out), out), (Ok(5), bytes));
    }

    #[test]
    fn round_trip() {
        for sn in [AmSn::Bits12, AmSn::Bits18] {
            for segment in [Segment::Complete, Segment::First, Segment::Last, Segment::Middle] {
                for number in (0..sn.modulus()).step_by(777) {
                    let header = AmHeader {
                        poll: number % 2 == 0,
                        segment,
                        sn: number,
                        offset: if segment.has_offset() { 1 + number as u16 / 2 } else { 0 },
                    };
                    let mut pdu = [7; 9];
                    let len = header.emit(sn, &mut pdu).unwrap();
                    assert_eq!(AmPdu::parse(&pdu, sn), Ok(AmPdu::Data(header, &pdu[len..])));
                    assert!(AmPdu::parse(&pdu[..len], sn).is_err(), "a header alone");
                }
            }
        }
    }
}
