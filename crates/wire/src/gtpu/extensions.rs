//! Supported Extension Headers Notification, TS 29.281 §7.2.3: the sender does not support an extension header whose
//! comprehension is required, and lists the supported ones.
//!
//! ```text
//! +------+--------+-----------------------------------+
//! | 141  | length | types of extension headers (§8.5) |
//! +------+--------+-----------------------------------+
//! ```

use super::{GtpuHeader, SESSION_CONTAINER, message};
use crate::WireError;
use crate::read::{need, put};

const EXTENSION_TYPES: u8 = 141;

/// Extension header types supported by an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SupportedExtensions<'a>(&'a [u8]);

impl SupportedExtensions<'static> {
    /// The types supported by this implementation.
    pub const OWN: Self = Self(&[SESSION_CONTAINER]);
    /// Size in bytes of the message with [`OWN`](Self::OWN).
    pub const OWN_LEN: usize = 12 + 2 + 1;
}

impl<'a> SupportedExtensions<'a> {
    /// Parses the information element after the header; anything after it is ignored.
    ///
    /// # Errors
    /// Another element, or a truncated one.
    pub fn parse(b: &'a [u8]) -> Result<Self, WireError> {
        const WHAT: &str = "GTP-U extension header type list";
        need(b, WHAT, 2)?;
        if b[0] != EXTENSION_TYPES {
            return Err(WireError::Value { what: "GTP-U information element", got: b[0].into() });
        }
        let end = 2 + usize::from(b[1]);
        need(b, WHAT, end)?;
        Ok(Self(&b[2..end]))
    }

    /// Whether PDU session containers are supported.
    #[must_use]
    pub fn has_session_container(&self) -> bool {
        self.0.contains(&SESSION_CONTAINER)
    }

    /// Writes the whole message, including the header, to the start of `out`; returns its length.
    ///
    /// # Errors
    /// `out` is too short, or there are more than 255 types.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        const WHAT: &str = "GTP-U extension header type list";
        // The sequence number is present but meaningless (§5.1).
        let header = GtpuHeader {
            message: message::SUPPORTED_EXTENSION_HEADERS,
            sequence: Some(0),
            ..GtpuHeader::g_pdu(0, None)
        };
        let have = self.0.len();
        let count = u8::try_from(have).map_err(|_| WireError::TooLong { what: WHAT, most: 255, have })?;
        let at = header.emit(2 + have, out)?;
        need(out, WHAT, at + 2 + have)?;
        put(out, at, &[EXTENSION_TYPES, count]);
        put(out, at + 2, self.0);
        Ok(at + 2 + have)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_layout_of_the_specification() {
        let mut out = [0xff; 32];
        let len = SupportedExtensions::OWN.emit(&mut out).unwrap();
        assert_eq!(out[..len], [0x32, 31, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 141, 1, 0x85]);
        assert_eq!(len, SupportedExtensions::OWN_LEN);
        let (header, elements) = GtpuHeader::parse(&out[..len]).unwrap();
        assert_eq!((header.message, header.teid), (message::SUPPORTED_EXTENSION_HEADERS, 0));
        assert_eq!(SupportedExtensions::parse(elements), Ok(SupportedExtensions::OWN));
        for short in 0..elements.len() {
            assert!(SupportedExtensions::parse(&elements[..short]).is_err(), "{short}");
        }
        assert!(SupportedExtensions::OWN.emit(&mut out[..14]).is_err());
        assert!(SupportedExtensions(&[0; 256]).emit(&mut [0; 300]).is_err());
    }

    #[test]
    fn lists_with_and_without_a_session_container() {
        let of = |list: &[u8]| SupportedExtensions::parse(list).unwrap().has_session_container();
        assert!(of(&[141, 2, 0x40, 0x85]) && of(&[141, 1, 0x85, 255, 0, 0]));
        assert!(!of(&[141, 0]) && !of(&[141, 1, 0x40, 0x85]));
        assert!(SupportedExtensions::parse(&[14, 1, 0x85]).is_err());
    }
}
