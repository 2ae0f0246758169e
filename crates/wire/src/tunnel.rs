//! The tunnel between UE and UPF: types of UDP payloads, and the two headers of the data path.
//!
//! The high nibble of the first byte of every UDP payload is its type ([`classify`]):
//!
//! ```text
//! 0x1 Init  0x2 Response  0x3 Cookie     see [`crate::handshake`]
//! 0x4 Secure                             secure header, AEAD( inner header, payload ), tag
//! 0x8 Data                               plain form: inner header, payload
//! ```
//!
//! Inner header, 8 bytes: the JUNCTION header (§V-G). It is the only header of the plain form.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------+-------+---------------+-------------------------------+
//! | type  | flags | next protocol |   length after this header    |
//! +-------+-------+---------------+-------------------------------+
//! |                           sequence                            |
//! +---------------------------------------------------------------+
//! ```
//!
//! Secure header, 16 bytes, fully authenticated:
//!
//! ```text
//! +-------+-------+---------------+-------------------------------+
//! | 0x4   | 0     |   path id     |   reserved (0)                |
//! +-------+-------+---------------+-------------------------------+
//! |                      receiver index                           |
//! +---------------------------------------------------------------+
//! |                      packet number (64)                       |
//! |                                                               |
//! +---------------------------------------------------------------+
//! ```
//!
//! The paper's §V-G states an overhead of 32 bytes; IPv4 20 + UDP 8 + header 8 is 36.
//!
//! A message that exceeds the MTU of a path is split into pieces, each sent as a [`Fragment`] in the secure form.

use crate::coding::{CodeWord, RepairHeader};
use crate::handshake;
use crate::read::{need, put, u16_at, u32_at, u64_at};
use crate::{MAX_PATHS, WireError};

/// Size of the AEAD tag at the end of a secure packet.
pub const TAG_LEN: usize = 16;
/// Overhead of the plain form per inner packet inside the UDP payload, bytes.
pub const PLAIN_OVERHEAD: usize = InnerHeader::LEN;
/// Overhead of the secure form per inner packet inside the UDP payload, bytes.
pub const SECURE_OVERHEAD: usize = SecureHeader::LEN + InnerHeader::LEN + TAG_LEN;
/// Size of a repair packet beyond the largest packet it covers, without the overhead of that packet in uncoded form.
pub const REPAIR_OVERHEAD: usize = InnerHeader::LEN + RepairHeader::LEN;
/// Size of the outer IPv4 and UDP headers in bytes.
pub const OUTER_IPV4: usize = 28;
/// Size of the outer IPv6 and UDP headers in bytes.
pub const OUTER_IPV6: usize = 48;

/// Values of the next-protocol field of the inner header (IANA protocol numbers).
pub mod next_protocol {
    /// An IPv4 packet follows.
    pub const IPV4: u8 = 4;
    /// An IPv6 packet follows.
    pub const IPV6: u8 = 41;
    /// No packet follows: a marker, a repair packet or a control message.
    pub const NONE: u8 = 59;
}

/// Flags of [`InnerType::Data`].
pub mod flag {
    /// The sequence field is the per-flow sequence.
    pub const SEQ: u8 = 0x1;
    /// With [`SEQ`]: first packet of the flow's sequence.
    pub const START: u8 = 0x2;
    /// The sequence field is a [`StreamWord`](super::StreamWord).
    pub const STREAM: u8 = 0x4;
    /// With [`STREAM`] alone: last packet on the EX path; no payload.
    pub const MARK: u8 = 0x8;
    /// [`START`] without [`SEQ`]: the sequence field is the per-flow sequence, and no earlier packet of the flow is in flight on
    /// another path. With [`STREAM`]: first packet of the flow's sequence.
    pub const SOLE: u8 = START;
    /// With [`SEQ`]: a [`CodeWord`](crate::coding::CodeWord) precedes the packet. Alone: a repair packet.
    pub const CODED: u8 = MARK;
    /// In Config and MtuProbe: an acknowledgement.
    pub const ACK: u8 = 0x1;
    /// In MtuProbe: a packet of a train that measures the capacity, or its acknowledgement.
    pub const TRAIN: u8 = START;
}

/// Type of a UDP payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageType {
    /// Handshake initiation, UE to UPF.
    Init,
    /// Handshake response, UPF to UE.
    Response,
    /// Cookie, UPF to UE under load.
    Cookie,
    /// Authenticated and encrypted packet.
    Secure,
    /// Data in the clear.
    PlainData,
}

/// Determines the type of a UDP payload, and checks its minimum length.
///
/// # Errors
/// [`WireError::Type`] for an unknown type, or for a control message in the clear; [`WireError::Truncated`] if the payload is
/// shorter than the smallest message of its type.
#[inline]
pub fn classify(datagram: &[u8]) -> Result<MessageType, WireError> {
    let Some(&first) = datagram.first() else {
        return Err(WireError::Truncated { what: "datagram", need: 1, have: 0 });
    };
    let (kind, what, least) = match first >> 4 {
        0x4 => (MessageType::Secure, "secure packet", SECURE_OVERHEAD),
        0x8 => (MessageType::PlainData, "plain packet", InnerHeader::LEN),
        0x1 => (MessageType::Init, "init", handshake::INIT_MIN),
        0x2 => (MessageType::Response, "response", handshake::RESPONSE_MIN),
        0x3 => (MessageType::Cookie, "cookie", handshake::COOKIE_LEN),
        _ => return Err(WireError::Type(first)),
    };
    need(datagram, what, least)?;
    Ok(kind)
}

/// Type nibble of the inner header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum InnerType {
    /// A piece of a message too large for the path; see [`Fragment`].
    Fragment = 0x7,
    /// An inner IP packet, or a stream marker.
    Data = 0x8,
    /// First message of the three-way probe.
    ProbeRequest = 0x9,
    /// Second message of the three-way probe.
    ProbeReply = 0xA,
    /// Third message of the three-way probe.
    ProbeAck = 0xB,
    /// An access went down or came up.
    Notify = 0xC,
    /// A fragment of the configuration, or its acknowledgement.
    Config = 0xD,
    /// A path-MTU probe, or its acknowledgement.
    MtuProbe = 0xE,
    /// The session ends.
    Close = 0xF,
}

impl InnerType {
    /// The type whose value is `nibble`; `None` if there is none.
    const fn from_nibble(nibble: u8) -> Option<Self> {
        Some(match nibble {
            0x7 => Self::Fragment,
            0x8 => Self::Data,
            0x9 => Self::ProbeRequest,
            0xA => Self::ProbeReply,
            0xB => Self::ProbeAck,
            0xC => Self::Notify,
            0xD => Self::Config,
            0xE => Self::MtuProbe,
            0xF => Self::Close,
            _ => return None,
        })
    }
}

/// The inner header; see the [module](self) for its layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InnerHeader {
    /// Type of the message.
    pub kind: InnerType,
    /// Low nibble of the first byte; see [`flag`].
    pub flags: u8,
    /// Protocol of the payload; see [`next_protocol`].
    pub next_protocol: u8,
    /// Number of bytes after the header.
    pub length: u16,
    /// Sequence field. For Data, interpret it with [`InnerHeader::order`]; for Fragment, it is the number of the message.
    pub sequence: u32,
}

impl InnerHeader {
    /// Bytes of the header.
    pub const LEN: usize = 8;

    /// Header of a Data message with `payload`: a whole IP packet, preceded by a coding word if coded; empty for a marker; or a
    /// repair.
    ///
    /// The next protocol is derived from the packet's version nibble. `None` if the packet is neither IPv4 nor IPv6 nor empty, or
    /// the payload exceeds 65,535 bytes.
    #[inline]
    #[must_use]
    pub fn data(payload: &[u8], order: DeliveryOrder) -> Option<Self> {
        let next_protocol = match order.packet(payload)?.first().map(|b| b >> 4) {
            Some(4) => next_protocol::IPV4,
            Some(6) => next_protocol::IPV6,
            None => next_protocol::NONE,
            Some(_) => return None,
        };
        let (flags, sequence) = order.to_wire();
        Some(Self {
            kind: InnerType::Data,
            flags,
            next_protocol,
            length: u16::try_from(payload.len()).ok()?,
            sequence,
        })
    }

    /// Header of a control message of `length` bytes.
    #[must_use]
    pub const fn control(kind: InnerType, flags: u8, length: u16) -> Self {
        Self { kind, flags: flags & 0xF, next_protocol: next_protocol::NONE, length, sequence: 0 }
    }

    /// Parses the header and returns it with exactly the bytes it covers.
    ///
    /// # Errors
    /// [`WireError::Truncated`] below 8 bytes; [`WireError::Type`] for a type below 7; [`WireError::Length`] unless the length
    /// field equals the number of bytes that follow, or is 0 in Data without flags, which extends to the end of the datagram;
    /// [`WireError::Value`] if the flags are contradictory, or the next protocol does not match type and payload.
    #[inline]
    pub fn parse(buf: &[u8]) -> Result<(Self, &[u8]), WireError> {
        need(buf, "inner header", Self::LEN)?;
        let kind = InnerType::from_nibble(buf[0] >> 4).ok_or(WireError::Type(buf[0]))?;
        let header = Self {
            kind,
            flags: buf[0] & 0xF,
            next_protocol: buf[1],
            length: u16_at(buf, 2),
            sequence: u32_at(buf, 4),
        };
        let payload = &buf[Self::LEN..];
        // Segmentation offload copies the header and cannot adjust the length of each piece.
        let open = kind == InnerType::Data && (header.flags, header.length) == (0, 0);
        if usize::from(header.length) != payload.len() && !open {
            let expected = header.length.into();
            return Err(WireError::Length { what: "inner length", expected, have: payload.len() });
        }
        if kind == InnerType::Data {
            let order = header.order()?;
            let packet = order.packet(payload).ok_or(WireError::Length {
                what: "what follows the inner header",
                expected: CodeWord::LEN + 1,
                have: payload.len(),
            })?;
            // Only markers and repairs carry no packet, and they must not.
            let version = packet.first().map(|b| b >> 4);
            let bare = matches!(order, DeliveryOrder::Mark(_) | DeliveryOrder::Repair(_));
            let fits = match header.next_protocol {
                next_protocol::IPV4 => version == Some(4),
                next_protocol::IPV6 => version == Some(6),
                next_protocol::NONE => bare && version.is_none(),
                _ => false,
            };
            if !fits || bare != (header.next_protocol == next_protocol::NONE) {
                return Err(WireError::Value { what: "next protocol", got: header.next_protocol.into() });
            }
        } else if header.next_protocol != next_protocol::NONE {
            return Err(WireError::Value { what: "next protocol", got: header.next_protocol.into() });
        }
        Ok((header, payload))
    }

    /// The inner packet of a Data message. Only the room for the fields required by the flags is checked.
    #[inline]
    #[must_use]
    pub fn packet(message: &[u8]) -> Option<&[u8]> {
        let coded = flag::SEQ | flag::CODED;
        let word = if message.first()? & coded == coded { CodeWord::LEN } else { 0 };
        message.get(Self::LEN + word..)
    }

    /// Writes the header into the first 8 bytes of `buf`.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if `buf` is shorter than that.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<(), WireError> {
        need(buf, "inner header", Self::LEN)?;
        buf[0] = (self.kind as u8) << 4 | (self.flags & 0xF);
        buf[1] = self.next_protocol;
        put(buf, 2, &self.length.to_be_bytes());
        put(buf, 4, &self.sequence.to_be_bytes());
        Ok(())
    }

    /// The delivery order required by flags and sequence of a Data message.
    ///
    /// # Errors
    /// [`WireError::Value`] for contradictory flags.
    #[inline]
    pub fn order(&self) -> Result<DeliveryOrder, WireError> {
        DeliveryOrder::from_wire(self.flags, self.sequence)
    }
}

/// Order in which a Data packet is delivered at the receiver: the combined meaning of flags and sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryOrder {
    /// Deliver at once. The sequence field is sent as 0 and ignored.
    None,
    /// Per-flow sequence: hold the packet until all earlier ones have arrived or the timeout has expired.
    Flow {
        /// Position in the flow.
        sequence: u32,
        /// First packet of the flow's sequence.
        start: bool,
        /// Every earlier packet of the flow was sent on this path, has arrived, or is lost: missing packets can arrive only on
        /// this path.
        sole: bool,
    },
    /// Per-flow sequence for de-duplication only: drop a second copy, never hold.
    Dedup {
        /// Position in the flow.
        sequence: u32,
        /// First packet of the flow's sequence.
        start: bool,
    },
    /// Stream-wise reordering (JUNCTION §V-D): part of a stream that changed path.
    Stream(StreamWord),
    /// Last packet of a stream on the EX path; no payload.
    Mark(StreamWord),
    /// Per-flow sequence as in [`DeliveryOrder::Flow`] (`hold`) or [`DeliveryOrder::Dedup`], with a coding word.
    Coded {
        /// Position in the flow.
        sequence: u32,
        /// First packet of the flow's sequence.
        start: bool,
        /// The order is restored.
        hold: bool,
    },
    /// A repair of the coded packets up to and including this one.
    Repair(CodeWord),
}

impl DeliveryOrder {
    #[inline]
    fn to_wire(self) -> (u8, u32) {
        let start = |s: bool| if s { flag::START } else { 0 };
        match self {
            Self::None => (0, 0),
            Self::Flow { sequence, start, sole: true } => {
                (flag::SOLE | if start { flag::STREAM } else { 0 }, sequence)
            }
            Self::Flow { sequence, start: s, sole: false } => (flag::SEQ | start(s), sequence),
            Self::Dedup { sequence, start: s } => (flag::SEQ | flag::STREAM | start(s), sequence),
            Self::Stream(word) => (flag::STREAM, word.to_u32()),
            Self::Mark(word) => (flag::STREAM | flag::MARK, word.to_u32()),
            Self::Coded { sequence, start: s, hold } => {
                let (flags, sequence) = Self::sequenced(sequence, s, hold).to_wire();
                (flags | flag::CODED, sequence)
            }
            Self::Repair(word) => (flag::CODED, word.to_u32()),
        }
    }

    /// Per-flow sequence without coding.
    #[must_use]
    pub const fn sequenced(sequence: u32, start: bool, hold: bool) -> Self {
        if hold { Self::Flow { sequence, start, sole: false } } else { Self::Dedup { sequence, start } }
    }

    /// The inner packet in the payload of a message; `None` if a required packet or repair is missing.
    #[inline]
    fn packet(self, payload: &[u8]) -> Option<&[u8]> {
        match self {
            Self::Coded { .. } => payload.get(CodeWord::LEN..).filter(|packet| !packet.is_empty()),
            Self::Repair(_) if payload.len() > RepairHeader::LEN => Some(&[]),
            Self::Repair(_) => None,
            Self::Mark(_) => payload.is_empty().then_some(payload),
            _ => Some(payload).filter(|packet| !packet.is_empty()),
        }
    }

    #[inline]
    fn from_wire(flags: u8, sequence: u32) -> Result<Self, WireError> {
        const SEQ_START: u8 = flag::SEQ | flag::START;
        const SOLE_START: u8 = flag::SOLE | flag::STREAM;
        const DEDUP: u8 = flag::SEQ | flag::STREAM;
        const DEDUP_START: u8 = DEDUP | flag::START;
        const MARK: u8 = flag::STREAM | flag::MARK;
        let start = flags & flag::START != 0;
        Ok(match flags {
            0 => Self::None,
            flag::SEQ | SEQ_START => Self::Flow { sequence, start, sole: false },
            flag::SOLE | SOLE_START => Self::Flow { sequence, start: flags == SOLE_START, sole: true },
            DEDUP | DEDUP_START => Self::Dedup { sequence, start },
            flag::STREAM => Self::Stream(StreamWord::from_u32(sequence)),
            MARK => Self::Mark(StreamWord::from_u32(sequence)),
            flag::CODED => Self::Repair(CodeWord::from_u32(sequence)),
            _ if flags & (flag::SEQ | flag::CODED) == flag::SEQ | flag::CODED => {
                Self::Coded { sequence, start, hold: flags & flag::STREAM == 0 }
            }
            _ => return Err(WireError::Value { what: "data flags", got: flags.into() }),
        })
    }
}

/// The sequence field of a packet with the STREAM flag alone:
/// `[stream id 8][epoch 8][hold timeout 16, unit 100 us]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct StreamWord {
    /// Number of the stream in the session.
    pub stream: u8,
    /// Number of path changes of the stream, modulo 256.
    pub epoch: u8,
    /// How long packets on the CURRENT path may wait for the EX path, in units of 100 us (0 to 6.55 s).
    pub timeout_100us: u16,
}

impl StreamWord {
    /// Encodes it as the sequence field.
    #[inline]
    #[must_use]
    pub const fn to_u32(self) -> u32 {
        (self.stream as u32) << 24 | (self.epoch as u32) << 16 | self.timeout_100us as u32
    }

    /// Decodes the sequence field; every value is valid.
    #[inline]
    #[must_use]
    pub const fn from_u32(word: u32) -> Self {
        Self { stream: (word >> 24) as u8, epoch: (word >> 16) as u8, timeout_100us: word as u16 }
    }
}

/// A piece of an inner message (inner header and payload) that exceeds the MTU of its path.
///
/// ```text
/// +-------+-------+---------------+-------------------------------+
/// | 0x7   | 0     |      59       |   length after this header    |
/// +-------+-------+---------------+-------------------------------+
/// |                 number of the message                         |
/// +-------------------------------+-------------------------------+
/// |   bytes of the whole message  |   offset of this piece        |
/// +-------------------------------+-------------------------------+
/// |   bytes of the message ...
/// ```
///
/// Fragments are always sent in the secure form, even on a path with plain data: this prevents insertion of pieces by others,
/// and the receiver index identifies the session. The length of every piece but the last is a multiple of [`Fragment::UNIT`]
/// bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment<'a> {
    /// Number of the message, incremented for each fragmented message on the path in this direction.
    pub number: u32,
    /// Size of the whole message in bytes, at least [`InnerHeader::LEN`] + 1.
    pub total: u16,
    /// Offset of the piece in the message in bytes; a multiple of [`Fragment::UNIT`].
    pub offset: u16,
    /// The piece, at least one byte.
    pub bytes: &'a [u8],
}

impl<'a> Fragment<'a> {
    /// Size of the headers in front of the piece, including the inner header.
    pub const HEADER: usize = InnerHeader::LEN + 4;
    /// Overhead of a piece inside the UDP payload.
    pub const OVERHEAD: usize = SECURE_OVERHEAD + 4;
    /// Unit of offsets, and of the lengths of all pieces but the last.
    pub const UNIT: usize = 8;

    /// Parses a fragment whose inner header has been parsed; `body` are the bytes after the header.
    ///
    /// # Errors
    /// [`WireError::Type`] if it is not a fragment; [`WireError::Truncated`] if the piece is empty; [`WireError::Value`] for flags,
    /// or if the piece extends beyond the message, has an offset that is not a multiple of [`Fragment::UNIT`], or is the whole
    /// message.
    pub fn parse_body(header: &InnerHeader, body: &'a [u8]) -> Result<Self, WireError> {
        if header.kind != InnerType::Fragment {
            return Err(WireError::Type((header.kind as u8) << 4));
        }
        if header.flags != 0 {
            return Err(WireError::Value { what: "fragment flags", got: header.flags.into() });
        }
        need(body, "fragment", 5)?;
        let (total, offset, bytes) = (u16_at(body, 0), u16_at(body, 2), &body[4..]);
        let piece = Self { number: header.sequence, total, offset, bytes };
        piece.check()?;
        Ok(piece)
    }

    /// Writes inner header and piece to the start of `buf`: [`Fragment::HEADER`] bytes plus the length of the piece.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if `buf` is too small; [`WireError::Value`] as in [`Fragment::parse_body`].
    pub fn emit(&self, buf: &mut [u8]) -> Result<(), WireError> {
        self.emit_header(self.bytes.len(), buf)?;
        put(buf, Self::HEADER, self.bytes);
        Ok(())
    }

    /// Like [`Fragment::emit`] without the piece: the caller appends `len` bytes. [`Fragment::bytes`] is ignored.
    ///
    /// # Errors
    /// Those of [`Fragment::emit`].
    pub fn emit_header(&self, len: usize, buf: &mut [u8]) -> Result<(), WireError> {
        self.check_len(len)?;
        need(buf, "fragment", Self::HEADER + len)?;
        // `check_len` has bounded the length by `total`.
        let mut header = InnerHeader::control(InnerType::Fragment, 0, len as u16 + 4);
        header.sequence = self.number;
        header.emit(buf)?;
        put(buf, InnerHeader::LEN, &self.total.to_be_bytes());
        put(buf, InnerHeader::LEN + 2, &self.offset.to_be_bytes());
        Ok(())
    }

    fn check(&self) -> Result<(), WireError> {
        self.check_len(self.bytes.len())
    }

    fn check_len(&self, len: usize) -> Result<(), WireError> {
        let (total, offset) = (usize::from(self.total), usize::from(self.offset));
        let (end, last) = (offset + len, offset + len == total);
        let fits = len > 0 && end <= total && len < total && total > InnerHeader::LEN && total < 1 << 15;
        let aligned = offset.is_multiple_of(Self::UNIT) && (last || len.is_multiple_of(Self::UNIT));
        if fits && aligned {
            Ok(())
        } else {
            Err(WireError::Value { what: "fragment offset", got: self.offset.into() })
        }
    }
}

/// The secure header; see the [module](self) for its layout. It is fully authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecureHeader {
    /// The path on which the packet was sent, below [`MAX_PATHS`]; selects the packet-number space and the replay window.
    pub path: u8,
    /// Index that the receiver assigned to this key epoch in the handshake.
    pub receiver: u32,
    /// Counts from 0 per path, direction and key epoch.
    pub packet_number: u64,
}

impl SecureHeader {
    /// Bytes of the header.
    pub const LEN: usize = 16;

    /// Parses the header of a whole secure packet; the sealed part is `datagram[SecureHeader::LEN..]`.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if shorter than header, inner header and tag; [`WireError::Type`] if it is not a secure packet;
    /// [`WireError::Value`] for a path id of [`MAX_PATHS`] or more, or a non-zero reserved field.
    #[inline]
    pub fn parse(datagram: &[u8]) -> Result<Self, WireError> {
        need(datagram, "secure packet", SECURE_OVERHEAD)?;
        if datagram[0] != 0x40 {
            return Err(WireError::Type(datagram[0]));
        }
        let path = datagram[1];
        if usize::from(path) >= MAX_PATHS {
            return Err(WireError::Value { what: "path id", got: path.into() });
        }
        let reserved = u16_at(datagram, 2);
        if reserved != 0 {
            return Err(WireError::Value {
                what: "reserved field of the secure header",
                got: reserved.into(),
            });
        }
        Ok(Self { path, receiver: u32_at(datagram, 4), packet_number: u64_at(datagram, 8) })
    }

    /// Writes the header into the first 16 bytes of `buf`.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if `buf` is shorter than that.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<(), WireError> {
        need(buf, "secure header", Self::LEN)?;
        buf[..Self::LEN].copy_from_slice(&self.to_bytes());
        Ok(())
    }

    /// The encoded header, which precedes the sealed part and is its additional data.
    #[inline]
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[0] = 0x40;
        b[1] = self.path;
        put(&mut b, 4, &self.receiver.to_be_bytes());
        put(&mut b, 8, &self.packet_number.to_be_bytes());
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn inner_header_golden() {
        let word = StreamWord { stream: 1, epoch: 2, timeout_100us: 0x0304 };
        let packet = [0x45, 1, 2];
        let h = InnerHeader::data(&packet, DeliveryOrder::Stream(word)).unwrap();
        let mut b = [0; 11];
        h.emit(&mut b).unwrap();
        b[8..].copy_from_slice(&packet);
        assert_eq!(b[..8], [0x84, 4, 0, 3, 1, 2, 3, 4]);
        assert_eq!(InnerHeader::parse(&b).unwrap(), (h, &packet[..]));
        assert_eq!(h.order(), Ok(DeliveryOrder::Stream(word)));
        assert_eq!(classify(&b), Ok(MessageType::PlainData));
        // A marker consists of the header alone.
        let h = InnerHeader::data(&[], DeliveryOrder::Mark(word)).unwrap();
        let mut b = [0; 8];
        h.emit(&mut b).unwrap();
        assert_eq!(b, [0x8C, 59, 0, 0, 1, 2, 3, 4]);
        assert!(InnerHeader::parse(&b).is_ok());
    }

    #[test]
    fn inner_header_refuses_contradictions() {
        let good = [0x81, 4, 0, 1, 0, 0, 0, 9, 0x45];
        assert!(InnerHeader::parse(&good).is_ok());
        for (at, value) in [
            (0, 0x8E), // START, STREAM and MARK
            (0, 0x88), // a repair with a packet
            (0, 0x89), // a coding word is missing
            (0, 0x8A), // MARK with START
            (0, 0x8C), // a marker with a payload
            (0, 0x61), // no inner type
            (1, 41),   // says IPv6, carries IPv4
            (1, 59),   // nothing follows, yet something does
            (1, 17),   // neither
            (3, 0),
            (3, 2), // length is not what follows
        ] {
            let mut bad = good;
            bad[at] = value;
            assert!(InnerHeader::parse(&bad).is_err(), "byte {at} = {value:#x}");
        }
        assert!(InnerHeader::parse(&[0x80, 59, 0, 0, 0, 0, 0, 0]).is_err(), "data without a packet");
        let coded = [0x89, 4, 0, 5, 0, 0, 0, 9, 1, 2, 3, 4, 0x45];
        assert!(InnerHeader::parse(&coded).is_ok());
        assert!(
            InnerHeader::parse(&[0x89, 4, 0, 4, 0, 0, 0, 9, 1, 2, 3, 4]).is_err(),
            "coded, without a packet"
        );
        let repair = [0x88, 59, 0, 5, 1, 0, 0, 9, 1, 0, 0, 10, 0x7F];
        assert!(InnerHeader::parse(&repair).is_ok());
        assert!(
            InnerHeader::parse(&[0x88, 59, 0, 4, 1, 0, 0, 9, 1, 0, 0, 10]).is_err(),
            "a repair of nothing"
        );
        assert!(InnerHeader::parse(&[0x90, 4, 0, 0, 0, 0, 0, 0]).is_err(), "control with a packet");
    }

    #[test]
    fn secure_header_golden() {
        let h = SecureHeader { path: 3, receiver: 0x0102_0304, packet_number: 0x1112_1314_1516_1718 };
        let mut b = [0; SECURE_OVERHEAD];
        h.emit(&mut b).unwrap();
        let golden = [0x40, 3, 0, 0, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18];
        assert_eq!(b[..16], golden);
        assert_eq!(SecureHeader::parse(&b), Ok(h));
        assert_eq!(classify(&b), Ok(MessageType::Secure));
        assert!(SecureHeader::parse(&b[..39]).is_err());
        for (at, value) in [(0, 0x41), (0, 0x80), (1, 8), (2, 1), (3, 1)] {
            let mut bad = b;
            bad[at] = value;
            assert!(SecureHeader::parse(&bad).is_err(), "byte {at} = {value:#x}");
        }
    }

    #[test]
    fn fragment_golden() {
        let f = Fragment {
            number: 0x0102_0304,
            total: 0x0580,
            offset: 0x02C0,
            bytes: &[7, 8, 9, 10, 11, 12, 13, 14],
        };
        let mut b = [0; 20];
        f.emit(&mut b).unwrap();
        assert_eq!(b, [0x70, 59, 0, 12, 1, 2, 3, 4, 5, 0x80, 2, 0xC0, 7, 8, 9, 10, 11, 12, 13, 14]);
        let (header, body) = InnerHeader::parse(&b).unwrap();
        assert_eq!(Fragment::parse_body(&header, body), Ok(f));
        assert_eq!(classify(&b), Err(WireError::Type(0x70)), "never in the clear");
        for (at, value) in [
            (0, 0x71),  // a flag
            (0, 0x90),  // another message
            (8, 0x02),  // ends behind the message
            (8, 0x80),  // no message is that large
            (11, 0xC1), // not at a multiple
        ] {
            let mut bad = b;
            bad[at] = value;
            let read = InnerHeader::parse(&bad).and_then(|(h, body)| Fragment::parse_body(&h, body));
            assert!(read.is_err(), "byte {at} = {value:#x}");
        }
        let odd = Fragment { bytes: &[1; 7], ..f };
        assert!(odd.emit(&mut b).is_err(), "only the last may be odd");
        assert!(Fragment { total: 0x02C7, ..odd }.emit(&mut b).is_ok());
        assert!(Fragment { offset: 0, total: 8, ..f }.emit(&mut b).is_err(), "the whole is no piece");
        assert!(Fragment { bytes: &[], ..f }.emit(&mut b).is_err());
    }

    #[test]
    fn control_in_the_clear_is_refused() {
        for nibble in [0u8, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15] {
            assert_eq!(classify(&[nibble << 4; 200]), Err(WireError::Type(nibble << 4 | nibble << 4)));
        }
        assert!(matches!(classify(&[]), Err(WireError::Truncated { .. })));
    }

    proptest! {
        #[test]
        fn inner_header_round_trips(
            sequence: u32, kind in 0usize..8, start: bool, sole: bool, v6: bool, len in 1usize..200,
        ) {
            let word = StreamWord::from_u32(sequence);
            prop_assert_eq!(word.to_u32(), sequence);
            let order = [
                DeliveryOrder::None,
                DeliveryOrder::Flow { sequence, start, sole },
                DeliveryOrder::Dedup { sequence, start },
                DeliveryOrder::Stream(word),
                DeliveryOrder::Mark(word),
                DeliveryOrder::Coded { sequence, start, hold: true },
                DeliveryOrder::Coded { sequence, start, hold: false },
                DeliveryOrder::Repair(CodeWord::from_u32(sequence)),
            ][kind];
            let before = [0, 0, 0, 0, 0, 4, 4, 4][kind];
            let mut packet = vec![0u8; if kind == 4 { 0 } else { before + len }];
            if let Some(first) = packet.get_mut(before) {
                *first = if v6 { 0x60 } else { 0x45 };
            }
            let header = InnerHeader::data(&packet, order).unwrap();
            let mut buf = vec![0; InnerHeader::LEN];
            header.emit(&mut buf).unwrap();
            buf.extend_from_slice(&packet);
            let (parsed, payload) = InnerHeader::parse(&buf).unwrap();
            prop_assert_eq!(parsed, header);
            prop_assert_eq!(payload, &packet[..]);
            prop_assert_eq!(parsed.order(), Ok(order));
        }

        #[test]
        fn fragment_round_trips(number: u32, units in 0u16..300, bytes in proptest::collection::vec(any::<u8>(), 1..300), more in 0u16..2000) {
            let offset = units * 8;
            let total = offset + bytes.len() as u16 + more;
            let f = Fragment { number, total, offset, bytes: &bytes };
            let mut b = vec![0; Fragment::HEADER + bytes.len()];
            if f.emit(&mut b).is_ok() {
                let (header, body) = InnerHeader::parse(&b).unwrap();
                prop_assert_eq!(Fragment::parse_body(&header, body), Ok(f));
            } else {
                prop_assert!((more > 0 && !bytes.len().is_multiple_of(8)) || (offset == 0 && more == 0) || total <= 8);
            }
        }

        #[test]
        fn what_parses_emits_the_same_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = classify(&bytes);
            if let Ok((h, payload)) = InnerHeader::parse(&bytes) {
                let mut out = [0; 8];
                h.emit(&mut out).unwrap();
                prop_assert_eq!(&out[..], &bytes[..8]);
                prop_assert_eq!(payload, &bytes[8..]);
                if let Ok(f) = Fragment::parse_body(&h, payload) {
                    let mut out = vec![0; bytes.len()];
                    f.emit(&mut out).unwrap();
                    prop_assert_eq!(&out[..], &bytes[..]);
                }
            }
            if let Ok(h) = SecureHeader::parse(&bytes) {
                prop_assert_eq!(&h.to_bytes()[..], &bytes[..16]);
            }
        }

        #[test]
        fn secure_header_round_trips(path in 0u8..8, receiver: u32, packet_number: u64) {
            let h = SecureHeader { path, receiver, packet_number };
            let mut b = [0; SECURE_OVERHEAD];
            h.emit(&mut b).unwrap();
            prop_assert_eq!(SecureHeader::parse(&b), Ok(h));
        }
    }
}
