//! MAC PDUs of the shared channels, 3GPP TS 38.321 §6.1.2.
//!
//! ```text
//! +-+-+------------+----------------+     F 0: L is one byte, F 1: two bytes
//! |R|F|   LCID     |       L        |     LCID 1 to 32: a logical channel; 63: padding, to the end of the
//! +-+-+------------+----------------+     transport block, without L
//! |      (L)       |  RLC PDU …     |
//! +----------------+----------------+     sub-PDUs follow one another
//! ```
//!
//! Sub-headers are always written with the long form of L: three bytes.

use crate::WireError;
use crate::read::{need, u16_at};

/// LCID of padding (TS 38.321 Table 6.2.1-1).
pub const LCID_PADDING: u8 = 63;
/// Size of a written sub-header in bytes.
pub const MAC_SUBHEADER_LEN: usize = 3;

/// The sub-header of an SDU of `len` bytes.
#[must_use]
#[inline]
pub const fn subheader(lcid: u8, len: u16) -> [u8; MAC_SUBHEADER_LEN] {
    let [high, low] = len.to_be_bytes();
    [0x40 | lcid & 0x3f, high, low]
}

/// Iterates over the sub-PDUs of a transport block, LCID and SDU, until padding or the end.
#[derive(Debug, Clone)]
pub struct MacSubPdus<'a>(&'a [u8]);

impl<'a> MacSubPdus<'a> {
    /// The sub-PDUs of `block`.
    #[must_use]
    pub fn new(block: &'a [u8]) -> Self {
        Self(block)
    }
}

impl<'a> Iterator for MacSubPdus<'a> {
    type Item = Result<(u8, &'a [u8]), WireError>;

    /// The next sub-PDU; an error ends the iteration.
    fn next(&mut self) -> Option<Self::Item> {
        const WHAT: &str = "MAC sub-PDU";
        let block = std::mem::take(&mut self.0);
        let first = *block.first()?;
        let lcid = first & 0x3f;
        if lcid == LCID_PADDING {
            return None;
        }
        let header = if first & 0x40 != 0 { 3 } else { 2 };
        if let Err(error) = need(block, WHAT, header) {
            return Some(Err(error));
        }
        let len = if header == 3 { usize::from(u16_at(block, 1)) } else { usize::from(block[1]) };
        if let Err(error) = need(block, WHAT, header + len) {
            return Some(Err(error));
        }
        self.0 = &block[header + len..];
        Some(Ok((lcid, &block[header..header + len])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sub_pdus_until_padding() {
        let mut block = subheader(4, 300).to_vec();
        block.extend([7; 300]);
        block.extend([5, 2, 8, 8]);
        block.extend([LCID_PADDING, 0, 0]);
        let all: Vec<_> = MacSubPdus::new(&block).map(Result::unwrap).collect();
        assert_eq!(all, [(4, &[7; 300][..]), (5, &[8, 8][..])]);
        assert_eq!(MacSubPdus::new(&[]).count(), 0);
    }

    #[test]
    fn a_length_beyond_the_end_ends_it() {
        let mut block = MacSubPdus::new(&[0x45, 0, 9, 1, 2]);
        assert!(block.next().unwrap().is_err());
        assert!(block.next().is_none());
        assert!(MacSubPdus::new(&[0x05]).next().unwrap().is_err());
    }
}
