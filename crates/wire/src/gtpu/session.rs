//! PDU session container, TS 38.415 §5.5.2: downlink (type 0) and uplink (type 1) PDU session information.

use crate::WireError;
use crate::read::{array, need, put, u64_at};

/// Direction of the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionKind {
    /// To the UE.
    Downlink,
    /// From the UE.
    Uplink,
}

/// Contents of a PDU session container. Delay measurements of the uplink are skipped when parsed, and never written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PduSession {
    /// Downlink or uplink information.
    pub kind: SessionKind,
    /// QoS flow identifier, 0 to 63.
    pub qfi: u8,
    /// Reflective QoS applies; downlink only.
    pub reflective: bool,
    /// Paging policy indicator, 0 to 7; downlink only.
    pub paging: Option<u8>,
    /// Time stamp of the UPF for QoS monitoring, seconds and fraction in NTP format; downlink only.
    pub sent: Option<u64>,
    /// Sequence number of the QoS flow, 24 bits.
    pub sequence: Option<u32>,
}

const QMP: u8 = 0x08;

impl PduSession {
    /// For a downlink packet of a QoS flow.
    #[must_use]
    pub const fn downlink(qfi: u8) -> Self {
        let kind = SessionKind::Downlink;
        Self { kind, qfi, reflective: false, paging: None, sent: None, sequence: None }
    }

    /// For an uplink packet of a QoS flow.
    #[must_use]
    pub const fn uplink(qfi: u8) -> Self {
        Self { kind: SessionKind::Uplink, ..Self::downlink(qfi) }
    }

    /// Encoded length in bytes, padded so that it fills whole words together with the length and next-type fields around it.
    pub(super) fn len(&self) -> usize {
        let mut len = 2 + if self.sequence.is_some() { 3 } else { 0 };
        if self.kind == SessionKind::Downlink {
            len += usize::from(self.paging.is_some()) + if self.sent.is_some() { 8 } else { 0 };
        }
        (len + 2).next_multiple_of(4) - 2
    }

    pub(super) fn parse(b: &[u8]) -> Result<Self, WireError> {
        const WHAT: &str = "PDU session container";
        need(b, WHAT, 2)?;
        let (first, second) = (b[0], b[1]);
        let mut at = 2;
        let mut take = |present: bool, bytes: usize| {
            let from = at;
            at += if present { bytes } else { 0 };
            need(b, WHAT, at).map(|()| present.then_some(from))
        };
        let sequence_at = |at: usize| {
            let [high, mid, low] = array(b, at);
            u32::from_be_bytes([0, high, mid, low])
        };
        let mut session = Self { qfi: second & 0x3f, ..Self::downlink(0) };
        match first >> 4 {
            0 => {
                session.reflective = second & 0x40 != 0;
                session.paging = take(second & 0x80 != 0, 1)?.map(|at| b[at] >> 5);
                session.sent = take(first & QMP != 0, 8)?.map(|at| u64_at(b, at));
                session.sequence = take(first & 0x04 != 0, 3)?.map(sequence_at);
            }
            1 => {
                session.kind = SessionKind::Uplink;
                take(first & QMP != 0, 24)?;
                take(first & 0x04 != 0, 4)?;
                take(first & 0x02 != 0, 4)?;
                session.sequence = take(first & 0x01 != 0, 3)?.map(sequence_at);
            }
            other => {
                return Err(WireError::Value {
                    what: "PDU type of a PDU session container",
                    got: other.into(),
                });
            }
        }
        Ok(session)
    }

    pub(super) fn emit(&self, out: &mut [u8]) -> Result<(), WireError> {
        need(out, "room for a PDU session container", self.len())?;
        let mut at = 2;
        let mut write = |bytes: &[u8]| {
            put(out, at, bytes);
            at += bytes.len();
        };
        let has = |present: bool, bit: u8| if present { bit } else { 0 };
        let (mut first, mut second) = (0, self.qfi & 0x3f);
        let sequence_bit = match self.kind {
            SessionKind::Downlink => {
                first |= has(self.sent.is_some(), QMP);
                second |= has(self.paging.is_some(), 0x80) | has(self.reflective, 0x40);
                if let Some(paging) = self.paging {
                    write(&[paging << 5]);
                }
                if let Some(sent) = self.sent {
                    write(&sent.to_be_bytes());
                }
                0x04
            }
            SessionKind::Uplink => {
                first |= 0x10;
                0x01
            }
        };
        if let Some(sequence) = self.sequence {
            first |= sequence_bit;
            write(&sequence.to_be_bytes()[1..]);
        }
        put(out, 0, &[first, second]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_uplink_packet_with_delays_is_skipped_over() {
        let mut b = vec![0x1f, 5];
        b.extend([1; 24 + 4 + 4]);
        b.extend([0, 1, 2]);
        let session = PduSession { sequence: Some(0x0102), ..PduSession::uplink(5) };
        assert_eq!(PduSession::parse(&b), Ok(session));
        assert!(PduSession::parse(&b[..b.len() - 1]).is_err());
        assert!(PduSession::parse(&[0x20, 0]).is_err());
        assert_eq!(PduSession::parse(&[0x00, 0xc7, 0xa0]).unwrap().paging, Some(5));
    }
}
