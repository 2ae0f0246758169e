//! GTP-U, 3GPP TS 29.281, with the PDU session container of TS 38.415: the protocol of N3.
//!
//! ```text
//! +-----+--+-+-+-+-+---------------+-------------------------------+
//! | v=1 |PT|0|E|S|N| message type  |  length after the TEID        |   255 G-PDU, 1 and 2 echo,
//! +-----+--+-+-+-+-+---------------+-------------------------------+   26 error indication, 31 extensions,
//! |                 tunnel endpoint identifier                     |   254 end marker
//! +-------------------------------+---------------+----------------+
//! |        sequence number        |  N-PDU number | next extension |   if any of E, S, N
//! +-------------------------------+---------------+----------------+
//! | length / 4    | content of the extension …    | next extension |   repeated until the next extension is 0
//! +---------------+---------------+---------------+----------------+
//!
//! PDU session container, extension 0x85, downlink      uplink
//! +-------+---+---+---+-+---+---+---------------+      +-------+---+-----+-----+---+-----+---+-----------+
//! | 0     |QMP|SNP|MSN|0|PPP|RQI|      QFI      |      | 1     |QMP| DLD | ULD |SNP| N3D |New|    QFI    |
//! +-------+---+---+---+-+---+---+---------------+      +-------+---+-----+-----+---+-----+---+-----------+
//! | PPI, if PPP | time sent, if QMP | sequence, if SNP     times, if QMP | delays | sequence, if SNP
//! ```

mod error;
mod extensions;
mod session;

pub use error::ErrorIndication;
pub use extensions::SupportedExtensions;
pub use session::{PduSession, SessionKind};

use crate::WireError;
use crate::read::{need, put, u16_at, u32_at};

/// UDP port (TS 29.281 §4.4.2).
pub const GTPU_PORT: u16 = 2152;
/// Bytes of the header without options.
pub const GTPU_HEADER_LEN: usize = 8;

/// Message types (TS 29.281 §6.1).
pub mod message {
    /// Asks whether the peer is alive (§7.2.1).
    pub const ECHO_REQUEST: u8 = 1;
    /// The answer to an echo request (§7.2.2).
    pub const ECHO_RESPONSE: u8 = 2;
    /// No such tunnel: [`super::ErrorIndication`].
    pub const ERROR_INDICATION: u8 = 26;
    /// Unsupported extension header whose comprehension is required: [`super::SupportedExtensions`].
    pub const SUPPORTED_EXTENSION_HEADERS: u8 = 31;
    /// A user's packet.
    pub const G_PDU: u8 = 255;
}

const UNKNOWN_EXTENSION: &str = "GTP-U extension header type";

/// Whether parsing failed because of an unknown extension header whose comprehension is required (§5.2.1).
#[must_use]
pub fn is_unknown_extension(error: &WireError) -> bool {
    matches!(error, WireError::Value { what: UNKNOWN_EXTENSION, .. })
}

const EXTENSION: u8 = 0x04;
const SEQUENCE: u8 = 0x02;
const N_PDU: u8 = 0x01;
const SESSION_CONTAINER: u8 = 0x85;

/// Header of a GTP-U message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GtpuHeader {
    /// Message type; see [`message`].
    pub message: u8,
    /// Tunnel endpoint identifier at the receiver.
    pub teid: u32,
    /// Sequence number, if present.
    pub sequence: Option<u16>,
    /// PDU session container, if present.
    pub session: Option<PduSession>,
}

impl GtpuHeader {
    /// The header of a user's packet in tunnel `teid`.
    #[must_use]
    pub const fn g_pdu(teid: u32, session: Option<PduSession>) -> Self {
        Self { message: message::G_PDU, teid, sequence: None, session }
    }

    /// Encoded length in bytes.
    #[must_use]
    pub fn header_len(&self) -> usize {
        let options = self.sequence.is_some() || self.session.is_some();
        let session = self.session.map_or(0, |s| s.len() + 2);
        GTPU_HEADER_LEN + if options { 4 } else { 0 } + session
    }

    /// Parses a message; the rest is the tunnelled packet, or the information elements of the message.
    ///
    /// N-PDU numbers and extensions whose comprehension is not required are skipped.
    ///
    /// # Errors
    /// Another version or protocol, a length that does not match the message, an unknown extension whose comprehension is
    /// required, or a container that is inconsistent with its length.
    pub fn parse(b: &[u8]) -> Result<(Self, &[u8]), WireError> {
        const WHAT: &str = "GTP-U message";
        need(b, WHAT, GTPU_HEADER_LEN)?;
        let flags = b[0];
        if flags & 0xf0 != 0x30 {
            return Err(WireError::Value { what: "GTP-U version and protocol", got: u64::from(flags >> 4) });
        }
        let expected = usize::from(u16_at(b, 2)) + GTPU_HEADER_LEN;
        if expected != b.len() {
            return Err(WireError::Length { what: WHAT, expected, have: b.len() });
        }
        let mut header = Self { message: b[1], teid: u32_at(b, 4), sequence: None, session: None };
        if flags & (EXTENSION | SEQUENCE | N_PDU) == 0 {
            return Ok((header, &b[GTPU_HEADER_LEN..]));
        }
        need(b, WHAT, GTPU_HEADER_LEN + 4)?;
        if flags & SEQUENCE != 0 {
            header.sequence = Some(u16_at(b, 8));
        }
        let mut next = if flags & EXTENSION != 0 { b[11] } else { 0 };
        let mut at = GTPU_HEADER_LEN + 4;
        while next != 0 {
            need(b, "GTP-U extension header", at + 1)?;
            let end = at + 4 * usize::from(b[at]);
            if end == at {
                return Err(WireError::Value { what: "length of a GTP-U extension header", got: 0 });
            }
            need(b, "GTP-U extension header", end)?;
            match next {
                SESSION_CONTAINER if header.session.is_some() => {
                    return Err(WireError::Repeated("PDU session container"));
                }
                SESSION_CONTAINER => header.session = Some(PduSession::parse(&b[at + 1..end - 1])?),
                // The two high bits show whether comprehension is required at an endpoint (§5.2.1).
                other if other & 0x80 != 0 => {
                    return Err(WireError::Value { what: UNKNOWN_EXTENSION, got: other.into() });
                }
                _ => {}
            }
            next = b[end - 1];
            at = end;
        }
        Ok((header, &b[at..]))
    }

    /// Writes the header of a message with `payload_len` bytes of payload to the start of `out`; returns the header's length.
    ///
    /// # Errors
    /// `out` is too short, or the message too long for its length field.
    pub fn emit(&self, payload_len: usize, out: &mut [u8]) -> Result<usize, WireError> {
        let len = self.header_len();
        need(out, "room for a GTP-U header", len)?;
        let have = len - GTPU_HEADER_LEN + payload_len;
        let most = usize::from(u16::MAX);
        let length =
            u16::try_from(have).map_err(|_| WireError::TooLong { what: "GTP-U message", most, have })?;
        let mut flags = 0x30;
        flags |= if self.session.is_some() { EXTENSION } else { 0 };
        flags |= if self.sequence.is_some() { SEQUENCE } else { 0 };
        out[..len].fill(0);
        put(out, 0, &[flags, self.message]);
        put(out, 2, &length.to_be_bytes());
        put(out, 4, &self.teid.to_be_bytes());
        if let Some(sequence) = self.sequence {
            put(out, 8, &sequence.to_be_bytes());
        }
        if let Some(session) = self.session {
            out[11] = SESSION_CONTAINER;
            out[12] = ((len - 12) / 4) as u8;
            session.emit(&mut out[13..len - 1])?;
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_downlink_packet_of_qfi_9() {
        let header = GtpuHeader::g_pdu(0x0102_0304, Some(PduSession::downlink(9)));
        let mut out = [0xff; 64];
        assert_eq!(header.emit(5, &mut out), Ok(16));
        assert_eq!(
            out[..16],
            [0x34, 255, 0, 13, 1, 2, 3, 4, 0, 0, 0, 0x85, 1, 0x00, 9, 0],
            "E, length, TEID, next extension, one word: type 0, QFI 9, no next"
        );
        assert_eq!(GtpuHeader::parse(&out[..21]), Ok((header, &[0xff; 5][..])));
    }

    #[test]
    fn round_trip() {
        let sessions = [
            None,
            Some(PduSession::downlink(63)),
            Some(PduSession::uplink(1)),
            Some(PduSession { reflective: true, paging: Some(5), ..PduSession::downlink(2) }),
            Some(PduSession {
                sent: Some(u64::MAX - 1),
                sequence: Some(0xab_cdef),
                ..PduSession::downlink(2)
            }),
            Some(PduSession { sequence: Some(7), ..PduSession::uplink(4) }),
        ];
        for session in sessions {
            for sequence in [None, Some(0x1234)] {
                let header = GtpuHeader { message: 255, teid: 7, sequence, session };
                let mut out = vec![9; header.header_len() + 3];
                assert_eq!(header.emit(3, &mut out), Ok(header.header_len()));
                assert_eq!(header.header_len() % 4, 0);
                assert_eq!(GtpuHeader::parse(&out), Ok((header, &[9; 3][..])));
            }
        }
    }

    #[test]
    fn refusals() {
        let why = |b: &[u8]| GtpuHeader::parse(b).unwrap_err().to_string();
        assert_eq!(why(&[0x50, 255, 0, 0, 0, 0, 0, 0]), "GTP-U version and protocol: value 5 is not allowed");
        assert_eq!(why(&[0x30, 255, 0, 1, 0, 0, 0, 0]), "GTP-U message: says or must be 9 bytes, has 8");
        let with = |next: u8, extension: [u8; 4]| {
            let mut b = vec![0x34, 255, 0, 8, 0, 0, 0, 1, 0, 0, 0, next];
            b.extend(extension);
            b
        };
        assert!(GtpuHeader::parse(&with(0x20, [1, 0, 0, 0])).is_ok(), "need not be understood");
        assert_eq!(why(&with(0xc0, [1, 0, 0, 0])), "GTP-U extension header type: value 192 is not allowed");
        let unknown = |b: &[u8]| is_unknown_extension(&GtpuHeader::parse(b).unwrap_err());
        assert!(unknown(&with(0xc0, [1, 0, 0, 0])) && unknown(&with(0x81, [1, 0, 0, 0])));
        assert!(!unknown(&with(0x20, [0, 0, 0, 0])) && !unknown(&with(0x85, [1, 0x08, 9, 0])));
        assert_eq!(
            why(&with(0x20, [0, 0, 0, 0])),
            "length of a GTP-U extension header: value 0 is not allowed"
        );
        assert!(why(&with(0x20, [2, 0, 0, 0])).contains("needs 20 bytes"));
        assert!(why(&with(0x85, [1, 0x08, 9, 0])).contains("PDU session container"));
        assert!(GtpuHeader::g_pdu(1, None).emit(70_000, &mut [0; 8]).is_err());
    }
}
