//! Coded redundancy: headers of coded packets and repair packets.
//!
//! A coded source packet is a Data message with SEQ and CODED: a coding word precedes the inner packet. A repair packet is a
//! Data message with CODED alone and without an inner packet: its sequence field is the coding word of the newest source
//! packet it covers, followed by a repair header and the repair symbol.
//!
//! ```text
//! coding word                                    repair header
//! +---------------+-----------------------------+ +---------------+---------------+-------------------+
//! |   stream id   |        position (24)        | |    covers     |     index     | wait, unit 100 us |
//! +---------------+-----------------------------+ +---------------+---------------+-------------------+
//! ```
//!
//! The source symbol, the data that is coded, is the message as it would be without coding (an inner header with the length of
//! the packet and without CODED, then the packet), padded with zeros. The code is specified in docs/atsss-coded.md.

use crate::WireError;
use crate::read::{need, u16_at};

/// Maximum number of source packets covered by one repair packet.
pub const MAX_COVERS: u8 = 128;

/// Identifies a source packet of a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CodeWord {
    /// Stream of the session; corresponds to a rule of the sender.
    pub stream: u8,
    /// Number of the source packet in the stream, modulo 2^24.
    pub position: u32,
}

impl CodeWord {
    /// Bytes of the word.
    pub const LEN: usize = 4;
    /// Bits of a position.
    pub const BITS: u32 = 24;

    /// Encodes it as a 32-bit field. Higher bits of the position are dropped.
    #[inline]
    #[must_use]
    pub const fn to_u32(self) -> u32 {
        (self.stream as u32) << Self::BITS | self.position & ((1 << Self::BITS) - 1)
    }

    /// Decodes a 32-bit field; every value is valid.
    #[inline]
    #[must_use]
    pub const fn from_u32(word: u32) -> Self {
        Self { stream: (word >> Self::BITS) as u8, position: word & ((1 << Self::BITS) - 1) }
    }

    /// Splits the payload of a coded source packet into the coding word and the packet.
    #[inline]
    #[must_use]
    pub fn split(payload: &mut [u8]) -> Option<(Self, &mut [u8])> {
        let (word, packet) = payload.split_first_chunk_mut::<{ Self::LEN }>()?;
        Some((Self::from_u32(u32::from_be_bytes(*word)), packet))
    }
}

/// The source packets summed in a repair symbol, and its useful lifetime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RepairHeader {
    /// Number of source packets covered, up to and including the one in the sequence field: 1 to [`MAX_COVERS`].
    pub covers: u8,
    /// Row of the code: 0 to 127.
    pub index: u8,
    /// How long after its position was passed in the delivery order a source packet is still of use, in units of 100 us.
    pub wait_100us: u16,
}

impl RepairHeader {
    /// Bytes of the header.
    pub const LEN: usize = 4;

    /// Parses the payload of a repair packet: the repair header and the symbol.
    ///
    /// # Errors
    /// [`WireError::Truncated`] without a symbol; [`WireError::Value`] if the number of covered packets is 0 or too large, or the
    /// index is above 127.
    #[inline]
    pub fn parse(payload: &[u8]) -> Result<(Self, &[u8]), WireError> {
        need(payload, "repair packet", Self::LEN + 1)?;
        let (covers, index) = (payload[0], payload[1]);
        if covers == 0 || covers > MAX_COVERS {
            return Err(WireError::Value { what: "sources a repair covers", got: covers.into() });
        }
        if index > 127 {
            return Err(WireError::Value { what: "repair index", got: index.into() });
        }
        Ok((Self { covers, index, wait_100us: u16_at(payload, 2) }, &payload[Self::LEN..]))
    }

    /// The encoded header.
    #[inline]
    #[must_use]
    pub const fn to_bytes(self) -> [u8; Self::LEN] {
        let [high, low] = self.wait_100us.to_be_bytes();
        [self.covers, self.index, high, low]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden() {
        let word = CodeWord { stream: 3, position: 0x04_0506 };
        assert_eq!(word.to_u32(), 0x0304_0506);
        let mut bytes = [3, 4, 5, 6, 0x45, 1];
        assert_eq!(CodeWord::split(&mut bytes), Some((word, &mut [0x45, 1][..])));
        assert_eq!(CodeWord::split(&mut [1, 2, 3]), None);
        let header = RepairHeader { covers: 64, index: 5, wait_100us: 1000 };
        assert_eq!(header.to_bytes(), [64, 5, 3, 0xE8]);
        assert_eq!(RepairHeader::parse(&[64, 5, 3, 0xE8, 9]), Ok((header, &[9][..])));
        for bad in [&[64, 5, 3, 0xE8][..], &[0, 5, 0, 0, 9], &[129, 5, 0, 0, 9], &[1, 128, 0, 0, 9]] {
            assert!(RepairHeader::parse(bad).is_err());
        }
    }

    proptest! {
        #[test]
        fn every_word_round_trips(word: u32) {
            prop_assert_eq!(CodeWord::from_u32(word).to_u32(), word);
        }

        #[test]
        fn what_parses_emits_the_same_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..9)) {
            if let Ok((header, symbol)) = RepairHeader::parse(&bytes) {
                prop_assert_eq!(&header.to_bytes()[..], &bytes[..4]);
                prop_assert_eq!(symbol, &bytes[4..]);
            }
        }
    }
}
