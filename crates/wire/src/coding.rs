//! Coded redundancy: what the header of a coded packet and of a repair packet say.
//!
//! A coded source packet is a Data message with SEQ and CODED: a coding word stands between the inner header and the
//! packet. A repair packet is a Data message with CODED alone and no packet: its sequence field is the coding word of
//! the newest source it covers, a repair header and the repair symbol follow.
//!
//! ```text
//! coding word                                    repair header
//! +---------------+-----------------------------+ +---------------+---------------+-------------------+
//! |   stream id   |        position (24)        | |    covers     |     index     | wait, unit 100 us |
//! +---------------+-----------------------------+ +---------------+---------------+-------------------+
//! ```
//!
//! The source symbol, what is coded: the message as it would be without coding (inner header with the length of the
//! packet and without CODED, then the packet), continued with zeros. docs/atsss-coded.md has the code.

use crate::WireError;
use crate::read::{need, u16_at};

/// Most source packets one repair packet covers.
pub const MAX_COVERS: u8 = 128;

/// Which source packet of which code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CodeWord {
    /// Which stream of the session: the sender's rule.
    pub stream: u8,
    /// Counts the source packets of the stream, modulo 2^24.
    pub position: u32,
}

impl CodeWord {
    /// Bytes of the word.
    pub const LEN: usize = 4;
    /// Bits of a position.
    pub const BITS: u32 = 24;

    /// As a 32-bit field. Higher bits of the position are left out.
    #[inline]
    #[must_use]
    pub const fn to_u32(self) -> u32 {
        (self.stream as u32) << Self::BITS | self.position & ((1 << Self::BITS) - 1)
    }

    /// From a 32-bit field; every value means something.
    #[inline]
    #[must_use]
    pub const fn from_u32(word: u32) -> Self {
        Self { stream: (word >> Self::BITS) as u8, position: word & ((1 << Self::BITS) - 1) }
    }

    /// Splits what follows the inner header of a coded source packet into the word and the packet.
    #[inline]
    #[must_use]
    pub fn split(payload: &mut [u8]) -> Option<(Self, &mut [u8])> {
        let (word, packet) = payload.split_first_chunk_mut::<{ Self::LEN }>()?;
        Some((Self::from_u32(u32::from_be_bytes(*word)), packet))
    }
}

/// What a repair symbol is the sum of, and for how long it is of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RepairHeader {
    /// Source packets covered, up to the one the sequence field names: 1 to [`MAX_COVERS`].
    pub covers: u8,
    /// Row of the code: 0 to 127.
    pub index: u8,
    /// How long after its place was passed a source packet is still wanted, in units of 100 us.
    pub wait_100us: u16,
}

impl RepairHeader {
    /// Bytes of the header.
    pub const LEN: usize = 4;

    /// Reads what follows the inner header of a repair packet: the repair header and the symbol.
    ///
    /// # Errors
    /// [`WireError::Truncated`] without a symbol; [`WireError::Value`] if it covers nothing or too much, or the index is
    /// above 127.
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

    /// The header's bytes.
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
