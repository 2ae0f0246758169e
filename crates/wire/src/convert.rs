//! The 0-RTT TCP Convert Protocol (RFC 8803): messages between a client and a Transport Converter at the start of a TCP
//! connection, before the payload of the proxied connection.
//!
//! ```text
//!  0               1               2               3
//! +---------------+---------------+-------------------------------+
//! | version = 1   | total length  | magic = 0x2263                |   lengths in units of 4 bytes
//! +---------------+---------------+-------------------------------+
//! | type          | length        | value ..                      |   one or more TLVs, each padded to a multiple of 4
//! +---------------+---------------+-------------------------------+
//!
//!  1    Info                       length 1, 2 zero bytes
//!  10   Connect                    port (2), address (16; IPv4 as ::ffff:a.b.c.d), TCP options
//!  20   Extended TCP Header        2 zero bytes, TCP options of the server
//!  21   Supported TCP Extensions   2 zero bytes, kinds of TCP options
//!  22   Cookie                     2 zero bytes, opaque
//!  30   Error                      code (1), value
//!  192  Source port (private use)  port (2): source port towards the server; specific to this project, not in the RFC
//! ```
//!
//! A message has at most [`MAX_BYTES`] bytes. The bytes after it belong to the proxied connection.

use crate::WireError;
use crate::read::{array, need, put, u16_at};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The implemented version (RFC 8803, section 6.1).
pub const VERSION: u8 = 1;
/// Magic of the fixed header.
pub const MAGIC: u16 = 0x2263;
/// Bytes of the fixed header.
pub const HEADER_BYTES: usize = 4;
/// Maximum size of a message: 255 units of four bytes.
pub const MAX_BYTES: usize = 255 * UNIT;
/// TCP option kind of Multipath TCP (RFC 8684).
pub const MPTCP_OPTION: u8 = 30;

const UNIT: usize = 4;
const CONNECT_BYTES: usize = 20;
const INFO: u8 = 1;
const CONNECT: u8 = 10;
const EXTENDED_HEADER: u8 = 20;
const SUPPORTED: u8 = 21;
const COOKIE: u8 = 22;
const ERROR: u8 = 30;
const SOURCE_PORT: u8 = 192;

/// Error codes of a converter (RFC 8803, section 6.2.8). Codes not listed there are kept as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// The version of the fixed header is not supported.
    UnsupportedVersion,
    /// A field or TLV of the message has an invalid value or length.
    MalformedMessage,
    /// The message is well-formed but not supported.
    UnsupportedMessage,
    /// A cookie is missing or wrong.
    MissingCookie,
    /// The client is not authorised for this connection.
    NotAuthorized,
    /// A requested TCP option is not supported.
    UnsupportedTcpOption,
    /// The converter lacks resources.
    ResourceExceeded,
    /// A failure of the network between converter and server.
    NetworkFailure,
    /// The server reset the connection.
    ConnectionReset,
    /// The server is unreachable.
    DestinationUnreachable,
    /// Any other code.
    Other(u8),
}

impl ErrorCode {
    const KNOWN: [(Self, u8); 10] = [
        (Self::UnsupportedVersion, 0),
        (Self::MalformedMessage, 1),
        (Self::UnsupportedMessage, 2),
        (Self::MissingCookie, 3),
        (Self::NotAuthorized, 32),
        (Self::UnsupportedTcpOption, 33),
        (Self::ResourceExceeded, 64),
        (Self::NetworkFailure, 65),
        (Self::ConnectionReset, 96),
        (Self::DestinationUnreachable, 97),
    ];

    /// The code on the wire.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Other(number) => number,
            known => Self::KNOWN.iter().find(|(code, _)| *code == known).map_or(0, |(_, number)| *number),
        }
    }

    /// The code for a number on the wire.
    #[must_use]
    pub fn of(number: u8) -> Self {
        Self::KNOWN.iter().find(|(_, n)| *n == number).map_or(Self::Other(number), |(code, _)| *code)
    }
}

/// One TLV of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tlv<'a> {
    /// Requests the list of supported TCP extensions.
    Info,
    /// Requests a connection to this server, with these options in the SYN.
    Connect {
        /// The server; an IPv4-mapped IPv6 address means IPv4.
        server: SocketAddr,
        /// TCP options in header format, padded with zeros to a multiple of four bytes.
        options: &'a [u8],
    },
    /// The server has accepted the connection, with these options.
    ExtendedTcpHeader {
        /// TCP options in header format, padded with zeros to a multiple of four bytes.
        options: &'a [u8],
    },
    /// TCP option kinds supported by the converter; zeros are padding.
    SupportedTcpExtensions {
        /// Option kinds.
        kinds: &'a [u8],
    },
    /// A cookie that the converter requires in the next request.
    Cookie {
        /// Opaque; padded with zeros to a multiple of four bytes.
        cookie: &'a [u8],
    },
    /// The connection is refused.
    Error {
        /// Reason for the refusal (RFC 8803 §4.2.8).
        code: ErrorCode,
        /// Additional information, depending on the code; padded with zeros so that code and value fill multiples of four bytes.
        value: &'a [u8],
    },
    /// The source port for the connection to the server.
    SourcePort(u16),
    /// A TLV of unknown type; the reader decides whether to ignore it.
    Unknown {
        /// Type of the TLV.
        kind: u8,
        /// Contents without the header.
        value: &'a [u8],
    },
}

/// A validated message: every TLV is readable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    body: &'a [u8],
}

/// Length in bytes of the message whose fixed header is at the start of `b`.
///
/// # Errors
/// [`WireError::Truncated`] if `b` is shorter than [`HEADER_BYTES`]; [`WireError::Value`] if it is not a Convert message, or
/// has another version.
pub fn message_bytes(b: &[u8]) -> Result<usize, WireError> {
    need(b, "Convert header", HEADER_BYTES)?;
    let magic = u16_at(b, 2);
    if magic != MAGIC {
        return Err(WireError::Value { what: "magic of a Convert message", got: magic.into() });
    }
    let [version, units] = array(b, 0);
    if version != VERSION {
        return Err(WireError::Value { what: VERSION_FIELD, got: version.into() });
    }
    let bytes = usize::from(units) * UNIT;
    if bytes < HEADER_BYTES {
        return Err(WireError::Length { what: "Convert message", expected: HEADER_BYTES, have: bytes });
    }
    Ok(bytes)
}

const VERSION_FIELD: &str = "version of a Convert message";

/// The error code that answers a message for which parsing failed.
#[must_use]
pub fn refusal(error: &WireError) -> ErrorCode {
    match error {
        WireError::Value { what, .. } if *what == VERSION_FIELD => ErrorCode::UnsupportedVersion,
        _ => ErrorCode::MalformedMessage,
    }
}

impl<'a> Message<'a> {
    /// Parses the message at the start of `b`; also returns the bytes after it.
    ///
    /// # Errors
    /// Those of [`message_bytes`]; [`WireError::Truncated`] if the message is incomplete; [`WireError::Length`] or
    /// [`WireError::Value`] from a TLV.
    pub fn parse(b: &'a [u8]) -> Result<(Self, &'a [u8]), WireError> {
        let bytes = message_bytes(b)?;
        need(b, "Convert message", bytes)?;
        let (message, rest) = b.split_at(bytes);
        let mut left = &message[HEADER_BYTES..];
        while !left.is_empty() {
            left = one(left)?.1;
        }
        Ok((Self { body: &message[HEADER_BYTES..] }, rest))
    }

    /// The TLVs in order.
    pub fn tlvs(&self) -> impl Iterator<Item = Tlv<'a>> + use<'a> {
        let mut left = self.body;
        core::iter::from_fn(move || {
            let (tlv, rest) = one(left).ok()?;
            left = rest;
            Some(tlv)
        })
    }
}

fn one(b: &[u8]) -> Result<(Tlv<'_>, &[u8]), WireError> {
    need(b, "Convert TLV", UNIT)?;
    let [kind, units] = array(b, 0);
    let bytes = usize::from(units) * UNIT;
    if bytes < UNIT || bytes > b.len() {
        return Err(WireError::Length { what: "Convert TLV", expected: bytes.max(UNIT), have: b.len() });
    }
    let (tlv, rest) = b.split_at(bytes);
    let value = &tlv[2..];
    // Two zero bytes fill the unit where there are no other fixed fields.
    let after_zeros = &tlv[UNIT..];
    let tlv = match kind {
        INFO if bytes == UNIT => Tlv::Info,
        INFO => return Err(WireError::Length { what: "Info TLV", expected: UNIT, have: bytes }),
        CONNECT => {
            need(tlv, "Connect TLV", CONNECT_BYTES)?;
            let address = IpAddr::V6(Ipv6Addr::from(array::<16>(tlv, 4))).to_canonical();
            let server = SocketAddr::new(address, u16_at(tlv, 2));
            Tlv::Connect { server, options: &tlv[CONNECT_BYTES..] }
        }
        EXTENDED_HEADER => Tlv::ExtendedTcpHeader { options: after_zeros },
        SUPPORTED => Tlv::SupportedTcpExtensions { kinds: after_zeros },
        COOKIE => Tlv::Cookie { cookie: after_zeros },
        ERROR => Tlv::Error { code: ErrorCode::of(tlv[2]), value: &tlv[3..] },
        SOURCE_PORT if bytes == UNIT => Tlv::SourcePort(u16_at(tlv, 2)),
        SOURCE_PORT => {
            return Err(WireError::Length { what: "source port TLV", expected: UNIT, have: bytes });
        }
        kind => Tlv::Unknown { kind, value },
    };
    Ok((tlv, rest))
}

impl Tlv<'_> {
    /// Encoded length in bytes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let bytes = match self {
            Self::Info | Self::SourcePort(_) => UNIT,
            Self::Connect { options, .. } => CONNECT_BYTES + options.len(),
            Self::ExtendedTcpHeader { options: more }
            | Self::SupportedTcpExtensions { kinds: more }
            | Self::Cookie { cookie: more } => UNIT + more.len(),
            Self::Error { value, .. } => 3 + value.len(),
            Self::Unknown { value, .. } => 2 + value.len(),
        };
        bytes.next_multiple_of(UNIT)
    }

    /// Writes the TLV into `b`, which is zeroed and has the length of the TLV.
    fn write(&self, b: &mut [u8]) {
        let units = (b.len() / UNIT) as u8;
        let kind = match self {
            Self::Info => INFO,
            Self::Connect { .. } => CONNECT,
            Self::ExtendedTcpHeader { .. } => EXTENDED_HEADER,
            Self::SupportedTcpExtensions { .. } => SUPPORTED,
            Self::Cookie { .. } => COOKIE,
            Self::Error { .. } => ERROR,
            Self::SourcePort(_) => SOURCE_PORT,
            Self::Unknown { kind, .. } => *kind,
        };
        put(b, 0, &[kind, units]);
        match self {
            Self::Info => {}
            Self::Connect { server, options } => {
                let address = match server.ip() {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                    IpAddr::V6(v6) => v6,
                };
                put(b, 2, &server.port().to_be_bytes());
                put(b, 4, &address.octets());
                put(b, CONNECT_BYTES, options);
            }
            Self::ExtendedTcpHeader { options: more }
            | Self::SupportedTcpExtensions { kinds: more }
            | Self::Cookie { cookie: more } => put(b, UNIT, more),
            Self::Error { code, value } => {
                put(b, 2, &[code.number()]);
                put(b, 3, value);
            }
            Self::SourcePort(port) => put(b, 2, &port.to_be_bytes()),
            Self::Unknown { value, .. } => put(b, 2, value),
        }
    }
}

/// Encodes a message from TLVs.
///
/// # Errors
/// [`WireError::TooLong`] if the message exceeds [`MAX_BYTES`].
pub fn encode(tlvs: &[Tlv<'_>]) -> Result<Vec<u8>, WireError> {
    let bytes = HEADER_BYTES + tlvs.iter().map(Tlv::encoded_len).sum::<usize>();
    if bytes > MAX_BYTES {
        return Err(WireError::TooLong { what: "Convert message in bytes", most: MAX_BYTES, have: bytes });
    }
    let mut b = vec![0; bytes];
    put(&mut b, 0, &[VERSION, (bytes / UNIT) as u8]);
    put(&mut b, 2, &MAGIC.to_be_bytes());
    let mut at = HEADER_BYTES;
    for tlv in tlvs {
        let end = at + tlv.encoded_len();
        tlv.write(&mut b[at..end]);
        at = end;
    }
    Ok(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_layouts() {
        let connect = encode(&[
            Tlv::Connect { server: "192.0.2.1:443".parse().unwrap(), options: &[] },
            Tlv::SourcePort(40_000),
        ]);
        #[rustfmt::skip]
        let bytes = [
            1, 7, 0x22, 0x63,
            10, 5, 0x01, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1,
            192, 1, 0x9c, 0x40,
        ];
        assert_eq!(connect.unwrap(), bytes);
        let (message, rest) = Message::parse(&bytes).unwrap();
        let server = "192.0.2.1:443".parse().unwrap();
        assert_eq!(
            message.tlvs().collect::<Vec<_>>(),
            [Tlv::Connect { server, options: &[] }, Tlv::SourcePort(40_000)]
        );
        assert!(rest.is_empty());
        let code = ErrorCode::UnsupportedVersion;
        assert_eq!(encode(&[Tlv::Error { code, value: &[1] }]).unwrap(), [1, 2, 0x22, 0x63, 30, 1, 0, 1]);
        assert_eq!(encode(&[Tlv::Info]).unwrap(), [1, 2, 0x22, 0x63, 1, 1, 0, 0]);
        let kinds = Tlv::SupportedTcpExtensions { kinds: &[MPTCP_OPTION] };
        let bytes = [1, 3, 0x22, 0x63, 21, 2, 0, 0, 30, 0, 0, 0];
        assert_eq!(encode(&[kinds]).unwrap(), bytes);
    }

    /// First bytes that an unrelated client, a browser or a later version might send.
    #[test]
    fn bytes_that_are_no_message_are_refused_with_the_matching_code() {
        let code = |bytes: &[u8]| refusal(&Message::parse(bytes).unwrap_err());
        assert_eq!(code(b"GET / HTTP/1.1\r\n"), ErrorCode::MalformedMessage);
        assert_eq!(code(&[2, 2, 0x22, 0x63, 1, 1, 0, 0]), ErrorCode::UnsupportedVersion);
        for wrong in [
            &[1, 0, 0x22, 0x63][..],
            &[1, 2, 0x22, 0x63, 10, 1, 0, 80],
            &[1, 2, 0x22, 0x63, 1, 0, 0, 0],
            &[1, 2, 0x22, 0x63, 1, 2, 0, 0],
            &[1, 3, 0x22, 0x63, 1, 2, 0, 0, 0, 0, 0, 0],
            &[1, 3, 0x22, 0x63, 192, 2, 0, 0, 0, 0, 0, 0],
        ] {
            assert_eq!(code(wrong), ErrorCode::MalformedMessage, "{wrong:?}");
        }
        assert!(matches!(Message::parse(&[1, 2, 0x22]), Err(WireError::Truncated { .. })));
        assert!(matches!(Message::parse(&[1, 2, 0x22, 0x63, 1]), Err(WireError::Truncated { .. })));
        assert!(matches!(encode(&[Tlv::Cookie { cookie: &[0; 1020] }]), Err(WireError::TooLong { .. })));
    }

    fn units() -> impl Strategy<Value = Vec<u8>> {
        (0..20usize).prop_flat_map(|n| prop::collection::vec(any::<u8>(), n * UNIT))
    }

    /// A TLV whose fields fill whole units, so that there is no padding.
    #[derive(Debug, Clone)]
    enum Made {
        Info,
        Connect(SocketAddr, Vec<u8>),
        Extended(Vec<u8>),
        Supported(Vec<u8>),
        Cookie(Vec<u8>),
        Error(u8, Vec<u8>),
        SourcePort(u16),
        Unknown(Vec<u8>),
    }

    impl Made {
        fn tlv(&self) -> Tlv<'_> {
            match self {
                Self::Info => Tlv::Info,
                Self::Connect(server, options) => Tlv::Connect { server: *server, options },
                Self::Extended(options) => Tlv::ExtendedTcpHeader { options },
                Self::Supported(kinds) => Tlv::SupportedTcpExtensions { kinds },
                Self::Cookie(cookie) => Tlv::Cookie { cookie },
                Self::Error(code, value) => Tlv::Error { code: ErrorCode::of(*code), value },
                Self::SourcePort(port) => Tlv::SourcePort(*port),
                Self::Unknown(value) => Tlv::Unknown { kind: 200, value },
            }
        }
    }

    fn made() -> impl Strategy<Value = Made> {
        let server = (any::<[u8; 16]>(), any::<u16>(), any::<bool>()).prop_map(|(ip, port, v4)| {
            let ip = Ipv6Addr::from(ip);
            let ip = if v4 { IpAddr::from([ip.octets()[0], 2, 3, 4]) } else { IpAddr::V6(ip).to_canonical() };
            SocketAddr::new(ip, port)
        });
        prop_oneof![
            Just(Made::Info),
            (server, units()).prop_map(|(s, o)| Made::Connect(s, o)),
            units().prop_map(Made::Extended),
            units().prop_map(Made::Supported),
            units().prop_map(Made::Cookie),
            (any::<u8>(), units(), any::<u8>()).prop_map(|(code, mut value, last)| {
                value.push(last);
                Made::Error(code, value)
            }),
            any::<u16>().prop_map(Made::SourcePort),
            (units(), any::<[u8; 2]>()).prop_map(|(mut value, last)| {
                value.extend(last);
                Made::Unknown(value)
            }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(made in prop::collection::vec(made(), 0..8), more in any::<Vec<u8>>()) {
            let tlvs: Vec<Tlv<'_>> = made.iter().map(Made::tlv).collect();
            let Ok(mut bytes) = encode(&tlvs) else { return Ok(()) };
            bytes.extend(&more);
            let (message, rest) = Message::parse(&bytes).unwrap();
            prop_assert_eq!(message.tlvs().collect::<Vec<_>>(), tlvs);
            prop_assert_eq!(rest, &more[..]);
        }

        #[test]
        fn whatever_is_read_can_be_written_again(mut bytes in prop::collection::vec(any::<u8>(), 4..200), header: bool) {
            if header {
                let units = (bytes.len() / UNIT) as u8;
                put(&mut bytes, 0, &[VERSION, units, 0x22, 0x63]);
            }
            let Ok((message, _)) = Message::parse(&bytes) else { return Ok(()) };
            let tlvs: Vec<Tlv<'_>> = message.tlvs().collect();
            let again = encode(&tlvs).unwrap();
            prop_assert_eq!(Message::parse(&again).unwrap().0.tlvs().collect::<Vec<_>>(), tlvs);
        }

        #[test]
        fn codes_keep_their_number(number: u8) {
            prop_assert_eq!(ErrorCode::of(number).number(), number);
        }
    }
}
