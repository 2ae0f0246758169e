//! STATUS PDU, TS 38.322 §6.2.2.5.
//!
//! ```text
//! 12 bit SN                          18 bit SN
//! +-+-----+-------+                  +-+-----+-------+         0: control PDU
//! |0| CPT |ACK_SN |                  |0| CPT |ACK_SN |         CPT 000: STATUS
//! +-+-----+-------+                  +-+-----+-------+         ACK_SN: the first SN not reported
//! |    ACK_SN     |                  |    ACK_SN     |
//! +--+------------+                  +-----------+--+-+
//! |E1| R          |                  |  ACK_SN   |E1|R|        E1: a NACK_SN with its E1, E2, E3 follows
//! +--+------------+ ┐                +-----------+--+-+ ┐      E2: SOstart and SOend follow
//! |    NACK_SN    | │                |    NACK_SN     | │      E3: a NACK range follows
//! +-------+--+--+-+ │ one per        +----------------+ │
//! |NACK_SN|E1|E2|E3|R loss           |    NACK_SN     | │
//! +-------+--+--+-+ │                +---+--+--+--+---+ │
//! | SOstart   (16)| │                |SN |E1|E2|E3| R | │      then SOstart, SOend and range as on the left
//! | SOend     (16)| │
//! | range      (8)| │
//! +---------------+ ┘
//! ```

use super::am::AmSn;
use crate::WireError;
use crate::read::{array, need, put, u16_at};

/// The value of SOend that means the end of the SDU.
pub const SO_END: u16 = 0xffff;

/// One loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nack {
    /// The first SDU that is missing, whole or in part.
    pub sn: u32,
    /// First and last missing byte; a last byte of [`SO_END`] means the end of the SDU. With a range, the first byte refers to the
    /// first SDU, the last to the last SDU. `None`: the whole SDUs.
    pub bytes: Option<(u16, u16)>,
    /// Number of consecutive SDUs, at least 1.
    pub count: u8,
}

impl Nack {
    const fn len(&self, sn: AmSn) -> usize {
        let number = match sn {
            AmSn::Bits12 => 2,
            AmSn::Bits18 => 3,
        };
        number + if self.bytes.is_some() { 4 } else { 0 } + if self.count > 1 { 1 } else { 0 }
    }
}

const HEADER_LEN: usize = 3;
const E1: u8 = 4;
const E2: u8 = 2;
const E3: u8 = 1;

/// Position of the three extension bits of a NACK: shift within the last byte of its sequence number.
const fn extension_shift(sn: AmSn) -> u8 {
    match sn {
        AmSn::Bits12 => 1,
        AmSn::Bits18 => 3,
    }
}

/// The E1 bit in the header's third byte.
const fn header_e1(sn: AmSn) -> u8 {
    match sn {
        AmSn::Bits12 => 0x80,
        AmSn::Bits18 => 0x02,
    }
}

/// A validated view of a STATUS PDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusPdu<'a> {
    sn: AmSn,
    /// The first SN that is not reported: all SDUs before it arrived, except those in [`nacks`](Self::nacks).
    pub ack_sn: u32,
    nacks: &'a [u8],
}

impl<'a> StatusPdu<'a> {
    /// Parses a PDU and validates its NACKs.
    ///
    /// # Errors
    /// A control PDU other than STATUS; NACKs that do not end with the PDU; a range of 0; a last missing byte before the first.
    pub fn parse(pdu: &'a [u8], sn: AmSn) -> Result<Self, WireError> {
        need(pdu, "STATUS PDU", HEADER_LEN)?;
        let [first, mid, low] = array(pdu, 0);
        if first & 0xf0 != 0 {
            return Err(WireError::Value { what: "RLC control PDU type", got: u64::from(first >> 4) });
        }
        let ack_sn = match sn {
            AmSn::Bits12 => u32::from_be_bytes([0, 0, first, mid]),
            AmSn::Bits18 => u32::from_be_bytes([0, first, mid, low]) >> 2,
        };
        let status = Self { sn, ack_sn, nacks: &pdu[HEADER_LEN..] };
        let mut more = low & header_e1(sn) != 0;
        let mut rest = status.nacks;
        while more {
            let (nack, e1, after) = read_nack(rest, sn)?;
            if let Some((start, end)) = nack.bytes
                && nack.count == 1
                && start > end
            {
                return Err(WireError::Value { what: "SOend before SOstart", got: end.into() });
            }
            more = e1;
            rest = after;
        }
        if !rest.is_empty() {
            let expected = pdu.len() - rest.len();
            return Err(WireError::Length { what: "STATUS PDU", expected, have: pdu.len() });
        }
        Ok(status)
    }

    /// The losses in the order of the PDU.
    pub fn nacks(&self) -> impl Iterator<Item = Nack> + 'a {
        let (mut rest, sn) = (self.nacks, self.sn);
        std::iter::from_fn(move || {
            let (nack, _, after) = read_nack(rest, sn).ok()?;
            rest = after;
            Some(nack)
        })
    }
}

/// Parses a NACK; returns whether another follows, and the remaining bytes.
fn read_nack(b: &[u8], sn: AmSn) -> Result<(Nack, bool, &[u8]), WireError> {
    const WHAT: &str = "NACK of a STATUS PDU";
    need(b, WHAT, 2)?;
    let (number, extensions, mut at) = match sn {
        AmSn::Bits12 => (u32::from(u16_at(b, 0) >> 4), b[1], 2),
        AmSn::Bits18 => {
            need(b, WHAT, 3)?;
            let [high, mid, low] = array(b, 0);
            (u32::from_be_bytes([0, high, mid, low]) >> 6, low, 3)
        }
    };
    let has = |bit: u8| extensions & bit << extension_shift(sn) != 0;
    let mut nack = Nack { sn: number, bytes: None, count: 1 };
    if has(E2) {
        need(b, WHAT, at + 4)?;
        nack.bytes = Some((u16_at(b, at), u16_at(b, at + 2)));
        at += 4;
    }
    if has(E3) {
        need(b, WHAT, at + 1)?;
        nack.count = b[at];
        at += 1;
        if nack.count == 0 {
            return Err(WireError::Value { what: "NACK range", got: 0 });
        }
    }
    Ok((nack, has(E1), &b[at..]))
}

/// Appends a STATUS PDU to a buffer, as far as there is room.
#[derive(Debug)]
pub struct StatusWriter<'a> {
    sn: AmSn,
    out: &'a mut Vec<u8>,
    start: usize,
    room: usize,
    /// Byte and mask of the E1 bit that announces another NACK.
    e1: (usize, u8),
}

impl<'a> StatusWriter<'a> {
    /// Starts a PDU of at most `room` bytes; `None` if not even its header fits.
    #[must_use]
    pub fn new(sn: AmSn, room: usize, out: &'a mut Vec<u8>) -> Option<Self> {
        if room < HEADER_LEN {
            return None;
        }
        let start = out.len();
        out.extend_from_slice(&[0; HEADER_LEN]);
        Some(Self { sn, out, start, room: room - HEADER_LEN, e1: (start + 2, header_e1(sn)) })
    }

    /// Adds a loss; returns `false`, and writes nothing, if it does not fit.
    pub fn push(&mut self, nack: Nack) -> bool {
        let len = nack.len(self.sn);
        if len > self.room {
            return false;
        }
        self.room -= len;
        self.out[self.e1.0] |= self.e1.1;
        let mut extensions = 0;
        extensions |= if nack.bytes.is_some() { E2 } else { 0 };
        extensions |= if nack.count > 1 { E3 } else { 0 };
        let shifted = extensions << extension_shift(self.sn);
        match self.sn {
            AmSn::Bits12 => {
                let [high, low] = (((nack.sn & 0xfff) as u16) << 4).to_be_bytes();
                self.out.extend_from_slice(&[high, low | shifted]);
            }
            AmSn::Bits18 => {
                let [_, high, mid, low] = ((nack.sn & 0x3_ffff) << 6).to_be_bytes();
                self.out.extend_from_slice(&[high, mid, low | shifted]);
            }
        }
        self.e1 = (self.out.len() - 1, E1 << extension_shift(self.sn));
        if let Some((from, to)) = nack.bytes {
            self.out.extend_from_slice(&from.to_be_bytes());
            self.out.extend_from_slice(&to.to_be_bytes());
        }
        if nack.count > 1 {
            self.out.push(nack.count);
        }
        true
    }

    /// Sets the first SN that is not reported, and returns the length of the PDU.
    pub fn finish(self, ack_sn: u32) -> usize {
        match self.sn {
            AmSn::Bits12 => put(self.out, self.start, &((ack_sn & 0xfff) as u16).to_be_bytes()),
            AmSn::Bits18 => {
                let [_, high, mid, low] = ((ack_sn & 0x3_ffff) << 2).to_be_bytes();
                let e1 = self.out[self.start + 2] & header_e1(self.sn);
                put(self.out, self.start, &[high, mid, low | e1]);
            }
        }
        self.out.len() - self.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(sn: AmSn, ack_sn: u32, room: usize, nacks: &[Nack]) -> Vec<u8> {
        let mut out = vec![0xee];
        let mut writer = StatusWriter::new(sn, room, &mut out).unwrap();
        for nack in nacks {
            if !writer.push(*nack) {
                break;
            }
        }
        assert_eq!(writer.finish(ack_sn), out.len() - 1);
        out.remove(0);
        out
    }

    #[test]
    fn as_drawn() {
        let lost = Nack { sn: 0x123, bytes: None, count: 1 };
        assert_eq!(write(AmSn::Bits12, 0xabc, 99, &[]), [0x0a, 0xbc, 0]);
        assert_eq!(write(AmSn::Bits12, 0xabc, 99, &[lost]), [0x0a, 0xbc, 0x80, 0x12, 0x30]);
        let part = Nack { sn: 0x124, bytes: Some((1, SO_END)), count: 3 };
        assert_eq!(
            write(AmSn::Bits12, 0xabc, 99, &[lost, part]),
            [0x0a, 0xbc, 0x80, 0x12, 0x38, 0x12, 0x46, 0, 1, 0xff, 0xff, 3]
        );
        assert_eq!(
            write(AmSn::Bits18, 0x3_ffff, 99, &[Nack { sn: 0x2_0001, ..part }]),
            [0x0f, 0xff, 0xfe, 0x80, 0x00, 0x40 | 0x18, 0, 1, 0xff, 0xff, 3]
        );
    }

    #[test]
    fn round_trip() {
        let nacks = [
            Nack { sn: 5, bytes: None, count: 1 },
            Nack { sn: 6, bytes: Some((100, 200)), count: 1 },
            Nack { sn: 9, bytes: None, count: 255 },
            Nack { sn: 4000, bytes: Some((900, 7)), count: 2 },
        ];
        for sn in [AmSn::Bits12, AmSn::Bits18] {
            for room in 3..40 {
                let pdu = write(sn, 4090, room, &nacks);
                assert!(pdu.len() <= room);
                let status = StatusPdu::parse(&pdu, sn).unwrap();
                let read: Vec<Nack> = status.nacks().collect();
                assert_eq!((status.ack_sn, &read[..]), (4090, &nacks[..read.len()]));
                for cut in 0..pdu.len() {
                    assert!(StatusPdu::parse(&pdu[..cut], sn).is_err(), "{sn:?} {cut} of {}", pdu.len());
                }
            }
        }
    }

    #[test]
    fn refusals() {
        let why = |b: &[u8]| StatusPdu::parse(b, AmSn::Bits12).unwrap_err().to_string();
        assert_eq!(why(&[0x10, 0, 0]), "RLC control PDU type: value 1 is not allowed");
        assert_eq!(why(&[0, 0, 0, 0]), "STATUS PDU: says or must be 3 bytes, has 4");
        assert_eq!(why(&[0, 0, 0x80, 0, 0x02, 0]), "NACK range: value 0 is not allowed");
        assert_eq!(why(&[0, 0, 0x80, 0, 0x04, 0, 2, 0, 1]), "SOend before SOstart: value 1 is not allowed");
        assert!(StatusWriter::new(AmSn::Bits12, 2, &mut Vec::new()).is_none());
    }
}
