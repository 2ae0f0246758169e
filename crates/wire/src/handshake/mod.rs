//! Handshake messages: a Noise IK exchange followed by two MACs.
//!
//! ```text
//! init                                             response
//! +------+---------+-------+------------+          +------+---------+-------+---------+
//! | 0x10 | version | suite | shard hint |          | 0x20 | version | suite | path id |
//! +------+---------+-------+------------+          +------+---------+-------+---------+
//! |            sender index             |          |           sender index           |
//! +-------------------------------------+          +----------------------------------+
//! | Noise message 1:                    |          |          receiver index          |
//! |   e 32, sealed s 48,                |          +----------------------------------+
//! |   sealed (timestamp 8, hello TLVs)  |          | Noise message 2: e 32,           |
//! +-------------------------------------+          |  sealed (sender index 4, welcome)|
//! |               mac1 16               |          +----------------------------------+
//! +-------------------------------------+          |              mac1 16             |
//! |               mac2 16               |          +----------------------------------+
//! +-------------------------------------+          |              mac2 16             |
//!                                                  +----------------------------------+
//! cookie
//! +------+---------+---+---+
//! | 0x30 | version | 0 | 0 |
//! +------+---------+---+---+
//! |    receiver index      |
//! +------------------------+
//! |       nonce 24         |
//! +------------------------+
//! | sealed cookie 16 + 16  |
//! +------------------------+
//! ```
//!
//! mac1 covers all bytes before it; mac2 covers all bytes before it, including mac1. This module defines the layout;
//! `anabranch_atsss::crypto` computes and verifies the contents.
//!
//! Hello and welcome are sequences of TLVs: type 8, length 8, value. Unknown types are skipped, so either end can be extended
//! first.

use crate::read::{array, need, put, u16_at, u32_at, u64_at};
use crate::tunnel::TAG_LEN;
use crate::{MAX_PATHS, WireError};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Version of the protocol implemented by this crate.
pub const VERSION: u8 = 1;
/// Bytes of mac1, and of mac2.
pub const MAC_LEN: usize = 16;
/// Bytes of a cookie.
pub const COOKIE_SECRET_LEN: usize = 16;
/// Bytes of the nonce of a cookie message.
pub const COOKIE_NONCE_LEN: usize = 24;
/// Bytes of a cookie message.
pub const COOKIE_LEN: usize = 8 + COOKIE_NONCE_LEN + COOKIE_SECRET_LEN + TAG_LEN;
/// Bytes that Noise adds to the payload of message 1: e, sealed s, tag.
pub const NOISE_1_OVERHEAD: usize = 32 + 48 + TAG_LEN;
/// Bytes that Noise adds to the payload of message 2: e, tag.
pub const NOISE_2_OVERHEAD: usize = 32 + TAG_LEN;
/// Minimum size of an init; the timestamp is always present.
pub const INIT_MIN: usize = INIT_HEADER + NOISE_1_OVERHEAD + 8 + 2 * MAC_LEN;
/// Minimum size of a response; the sender index is always present.
pub const RESPONSE_MIN: usize = RESPONSE_HEADER + NOISE_2_OVERHEAD + 4 + 2 * MAC_LEN;
/// Maximum size of a handshake message; fits a path of 1280 bytes including outer IPv6 and UDP headers.
pub const HANDSHAKE_MAX: usize = 1232;
/// Maximum length of the name of an access, in bytes.
pub const NAME_MAX: usize = 32;
/// Smallest MTU permitted in hello and welcome, in bytes.
pub const MTU_MIN: u16 = 576;

const INIT_HEADER: usize = 8;
const RESPONSE_HEADER: usize = 12;

/// Bit of the features of a peer: it restores lost packets of a path from the repair packets of that path.
pub const FEATURE_PATH_REPAIRS: u8 = 1;

/// AEAD of the handshake and of the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Suite {
    /// AES-256-GCM, for processors with AES instructions.
    #[default]
    Aes256Gcm = 1,
    /// ChaCha20-Poly1305, for other processors.
    ChaCha20Poly1305 = 2,
}

impl TryFrom<u8> for Suite {
    type Error = WireError;
    fn try_from(value: u8) -> Result<Self, WireError> {
        match value {
            1 => Ok(Self::Aes256Gcm),
            2 => Ok(Self::ChaCha20Poly1305),
            _ => Err(WireError::Value { what: "suite", got: value.into() }),
        }
    }
}

/// Validated view of an init.
#[derive(Debug, Clone, Copy)]
pub struct Init<'a> {
    bytes: &'a [u8],
    suite: Suite,
}

impl<'a> Init<'a> {
    /// Bytes before the Noise message.
    pub const HEADER: usize = INIT_HEADER;

    /// Validates type, version, suite and length.
    ///
    /// # Errors
    /// A [`WireError`] that names the field.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let suite = check(bytes, "init", 0x10, INIT_MIN)?;
        Ok(Self { bytes, suite })
    }

    /// A buffer for an init with a Noise message of `noise` bytes; the header is filled in.
    #[must_use]
    pub fn emit(suite: Suite, shard_hint: u8, sender: u32, noise: usize) -> Vec<u8> {
        let mut b = vec![0; INIT_HEADER + noise + 2 * MAC_LEN];
        put(&mut b, 0, &[0x10, VERSION, suite as u8, shard_hint]);
        put(&mut b, 4, &sender.to_be_bytes());
        b
    }

    /// The requested AEAD.
    #[must_use]
    pub fn suite(&self) -> Suite {
        self.suite
    }
    /// First byte of the hash of the UE's static public key; unauthenticated until mac1 is checked.
    #[must_use]
    pub fn shard_hint(&self) -> u8 {
        self.bytes[3]
    }
    /// Receiver index chosen by the UE.
    #[must_use]
    pub fn sender(&self) -> u32 {
        u32_at(self.bytes, 4)
    }
    /// Noise message 1.
    #[must_use]
    pub fn noise(&self) -> &'a [u8] {
        &self.bytes[INIT_HEADER..self.bytes.len() - 2 * MAC_LEN]
    }
    /// mac1, and the bytes it covers.
    #[must_use]
    pub fn mac1(&self) -> (&'a [u8], &'a [u8]) {
        mac1(self.bytes)
    }
    /// mac2, and the bytes it covers.
    #[must_use]
    pub fn mac2(&self) -> (&'a [u8], &'a [u8]) {
        mac2(self.bytes)
    }
}

/// Validated view of a response.
#[derive(Debug, Clone, Copy)]
pub struct Response<'a> {
    bytes: &'a [u8],
    suite: Suite,
}

impl<'a> Response<'a> {
    /// Bytes before the Noise message.
    pub const HEADER: usize = RESPONSE_HEADER;

    /// Validates type, version, suite, path id and length.
    ///
    /// # Errors
    /// A [`WireError`] that names the field.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let suite = check(bytes, "response", 0x20, RESPONSE_MIN)?;
        path_id(bytes[3])?;
        Ok(Self { bytes, suite })
    }

    /// A buffer for a response with a Noise message of `noise` bytes; the header is filled in.
    #[must_use]
    pub fn emit(suite: Suite, path: u8, sender: u32, receiver: u32, noise: usize) -> Vec<u8> {
        let mut b = vec![0; RESPONSE_HEADER + noise + 2 * MAC_LEN];
        put(&mut b, 0, &[0x20, VERSION, suite as u8, path]);
        put(&mut b, 4, &sender.to_be_bytes());
        put(&mut b, 8, &receiver.to_be_bytes());
        b
    }

    /// The agreed AEAD.
    #[must_use]
    pub fn suite(&self) -> Suite {
        self.suite
    }
    /// The path on which the init arrived.
    #[must_use]
    pub fn path(&self) -> u8 {
        self.bytes[3]
    }
    /// Receiver index chosen by the UPF.
    #[must_use]
    pub fn sender(&self) -> u32 {
        u32_at(self.bytes, 4)
    }
    /// The UE's index, from the init.
    #[must_use]
    pub fn receiver(&self) -> u32 {
        u32_at(self.bytes, 8)
    }
    /// Noise message 2.
    #[must_use]
    pub fn noise(&self) -> &'a [u8] {
        &self.bytes[RESPONSE_HEADER..self.bytes.len() - 2 * MAC_LEN]
    }
    /// mac1, and the bytes it covers.
    #[must_use]
    pub fn mac1(&self) -> (&'a [u8], &'a [u8]) {
        mac1(self.bytes)
    }
    /// mac2, and the bytes it covers.
    #[must_use]
    pub fn mac2(&self) -> (&'a [u8], &'a [u8]) {
        mac2(self.bytes)
    }
}

/// A cookie message: a UPF under load requires the UE to prove its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CookieMessage {
    /// The UE's index, from the init.
    pub receiver: u32,
    /// Nonce of the sealed cookie.
    pub nonce: [u8; COOKIE_NONCE_LEN],
    /// The sealed cookie with its tag.
    pub sealed: [u8; COOKIE_SECRET_LEN + TAG_LEN],
}

impl CookieMessage {
    /// Parses a cookie message.
    ///
    /// # Errors
    /// A [`WireError`] that names the field.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        exactly(bytes, "cookie", COOKIE_LEN)?;
        if bytes[0] != 0x30 {
            return Err(WireError::Type(bytes[0]));
        }
        version(bytes[1])?;
        let reserved = u16_at(bytes, 2);
        if reserved != 0 {
            return Err(WireError::Value { what: "reserved field of the cookie", got: reserved.into() });
        }
        Ok(Self { receiver: u32_at(bytes, 4), nonce: array(bytes, 8), sealed: array(bytes, 32) })
    }

    /// The encoded message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; COOKIE_LEN] {
        let mut b = [0; COOKIE_LEN];
        put(&mut b, 0, &[0x30, VERSION]);
        put(&mut b, 4, &self.receiver.to_be_bytes());
        put(&mut b, 8, &self.nonce);
        put(&mut b, 32, &self.sealed);
        b
    }
}

/// One access of the UE, as announced in [`Hello`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// Path id, below [`MAX_PATHS`].
    pub path: u8,
    /// Name: 1 to 32 bytes of letters, digits, `-`, `_`, `.`.
    pub name: String,
}

/// Contents of the init from the UE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The path on which this init is sent.
    pub path: u8,
    /// The UE's accesses, each path at most once.
    pub accesses: Vec<Access>,
    /// Largest inner packet accepted by the UE, in bytes; at least [`MTU_MIN`].
    pub mtu: u16,
    /// The UPF's receiver index of the previous key epoch, if this is a rekey or a resumption.
    pub resume: Option<u32>,
    /// Bit *i*: the UE offers user data in the clear on path *i*. Only for announced paths.
    pub plain: u8,
    /// Features of the UE, as bits; unknown ones are ignored.
    pub features: u8,
}

mod hello_tlv {
    pub const PATH: u8 = 1;
    pub const ACCESS: u8 = 2;
    pub const MTU: u8 = 3;
    pub const RESUME: u8 = 4;
    pub const PLAIN: u8 = 5;
    pub const FEATURES: u8 = 6;
}

impl Hello {
    /// Encodes the payload of Noise message 1: the timestamp (unix time in ns), then the hello.
    ///
    /// # Errors
    /// A [`WireError`] if a field is out of range.
    pub fn encode(&self, timestamp_ns: u64) -> Result<Vec<u8>, WireError> {
        path_id(self.path)?;
        mtu(self.mtu)?;
        let mut b = timestamp_ns.to_be_bytes().to_vec();
        b.extend_from_slice(&[hello_tlv::PATH, 1, self.path]);
        let mut seen = 0;
        for access in &self.accesses {
            once(&mut seen, access.path)?;
            name(access.name.as_bytes())?;
            b.extend_from_slice(&[hello_tlv::ACCESS, 1 + access.name.len() as u8, access.path]);
            b.extend_from_slice(access.name.as_bytes());
        }
        b.extend_from_slice(&[hello_tlv::MTU, 2]);
        b.extend_from_slice(&self.mtu.to_be_bytes());
        if let Some(index) = self.resume {
            b.extend_from_slice(&[hello_tlv::RESUME, 4]);
            b.extend_from_slice(&index.to_be_bytes());
        }
        if plain_of(self.plain, seen)? != 0 {
            b.extend_from_slice(&[hello_tlv::PLAIN, 1, self.plain]);
        }
        if self.features != 0 {
            b.extend_from_slice(&[hello_tlv::FEATURES, 1, self.features]);
        }
        Ok(b)
    }

    /// Decodes the payload of Noise message 1.
    ///
    /// # Errors
    /// A [`WireError`] if a part is missing, repeated, malformed or out of range.
    pub fn decode(payload: &[u8]) -> Result<(u64, Self), WireError> {
        need(payload, "hello timestamp", 8)?;
        let (mut path, mut mtu_value, mut resume) = (None, None, None);
        let (mut plain, mut features) = (None, None);
        let mut accesses = Vec::new();
        let mut seen = 0;
        for tlv in Tlvs(&payload[8..]) {
            let (kind, value) = tlv?;
            match kind {
                hello_tlv::PATH => {
                    exactly(value, "hello path", 1)?;
                    set(&mut path, path_id(value[0])?, "hello path")?;
                }
                hello_tlv::ACCESS => {
                    need(value, "hello access", 2)?;
                    once(&mut seen, value[0])?;
                    accesses.push(Access { path: value[0], name: name(&value[1..])?.to_owned() });
                }
                hello_tlv::MTU => {
                    exactly(value, "hello MTU", 2)?;
                    set(&mut mtu_value, mtu(u16_at(value, 0))?, "hello MTU")?;
                }
                hello_tlv::RESUME => {
                    exactly(value, "hello resume", 4)?;
                    set(&mut resume, u32_at(value, 0), "hello resume")?;
                }
                hello_tlv::PLAIN => {
                    exactly(value, "hello plain", 1)?;
                    set(&mut plain, value[0], "hello plain")?;
                }
                hello_tlv::FEATURES => {
                    exactly(value, "hello features", 1)?;
                    set(&mut features, value[0], "hello features")?;
                }
                _ => {}
            }
        }
        let path = path.ok_or(WireError::Missing("hello path"))?;
        let mtu = mtu_value.ok_or(WireError::Missing("hello MTU"))?;
        // By default everything is sealed.
        let plain = plain_of(plain.unwrap_or(0), seen)?;
        let features = features.unwrap_or(0);
        Ok((u64_at(payload, 0), Self { path, accesses, mtu, resume, plain, features }))
    }
}

/// Contents of the response from the UPF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// Virtual IPv4 address of the session, and its prefix length (0 to 32).
    pub ipv4: Option<(Ipv4Addr, u8)>,
    /// Virtual IPv6 address of the session, and its prefix length (0 to 128).
    pub ipv6: Option<(Ipv6Addr, u8)>,
    /// MTU of the inner packets, in bytes; at least [`MTU_MIN`].
    pub inner_mtu: u16,
    /// Free reordering queues at the UPF (JUNCTION §V-D, admission control).
    pub reorder_available: u16,
    /// Random for every instance of the session at the UPF. A different value means that the earlier state there is lost.
    pub instance: u32,
    /// Bit *i*: the UPF offers user data in the clear on path *i* of those announced by the UE.
    pub plain: u8,
    /// Features of the UPF, as bits; unknown ones are ignored.
    pub features: u8,
}

mod welcome_tlv {
    pub const IPV4: u8 = 1;
    pub const IPV6: u8 = 2;
    pub const INNER_MTU: u8 = 3;
    pub const REORDER: u8 = 4;
    pub const INSTANCE: u8 = 5;
    pub const REFUSED: u8 = 6;
    pub const PLAIN: u8 = 7;
    pub const FEATURES: u8 = 8;
}

/// The UPF knows the UE but refuses the session. Sent in place of a [`Welcome`], so that it is authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Refused(
    /// Reason code; see [`Refused::as_str`].
    pub u8,
);

impl Refused {
    /// The configured maximum number of sessions is reached.
    pub const FULL: Self = Self(1);
    /// The announced paths are inconsistent.
    pub const ACCESSES: Self = Self(2);
    /// There is no access with the same security setting at both ends.
    pub const SECURITY: Self = Self(3);
    /// The time stamp of the init is too far in the future.
    pub const CLOCK_AHEAD: Self = Self(4);
    /// The time stamp is older than one accepted before.
    pub const CLOCK_BEHIND: Self = Self(5);

    /// The reason as text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FULL => "the UPF has no room for another session",
            Self::ACCESSES => "the UPF cannot use the accesses announced",
            Self::SECURITY => {
                "[[access]] security is plain at one end and secure at the other on every access"
            }
            Self::CLOCK_AHEAD => {
                "the UE's clock is more than a day ahead of the UPF's: set the one that is wrong"
            }
            Self::CLOCK_BEHIND => {
                "the handshake is older than one before: a recording, or the UE's clock went back; set it, or reset the time stamp at \
                 the UPF with `anabranch ctl sessions reset-clock`"
            }
            _ => "the UPF refused, with a reason unknown to this version",
        }
    }

    /// Encodes the payload of Noise message 2 for a refusal: the reason, without a sender index, as there is no session.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        vec![0, 0, 0, 0, welcome_tlv::REFUSED, 1, self.0]
    }

    /// Decodes a refusal from the payload of a Noise message 2, if it is one.
    #[must_use]
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let mut tlvs = Tlvs(payload.get(4..)?);
        tlvs.find_map(|tlv| match tlv {
            Ok((welcome_tlv::REFUSED, &[reason])) => Some(Self(reason)),
            _ => None,
        })
    }
}

impl Welcome {
    /// Encodes the payload of Noise message 2: the response's sender index, repeated here to authenticate it, then the welcome.
    ///
    /// # Errors
    /// A [`WireError`] if a field is out of range or there is no address.
    pub fn encode(&self, sender: u32) -> Result<Vec<u8>, WireError> {
        mtu(self.inner_mtu)?;
        if self.ipv4.is_none() && self.ipv6.is_none() {
            return Err(WireError::Missing("welcome address"));
        }
        let mut b = Vec::with_capacity(48);
        b.extend_from_slice(&sender.to_be_bytes());
        if let Some((address, length)) = self.ipv4 {
            b.extend_from_slice(&[welcome_tlv::IPV4, 5]);
            b.extend_from_slice(&address.octets());
            b.push(prefix(length, 32)?);
        }
        if let Some((address, length)) = self.ipv6 {
            b.extend_from_slice(&[welcome_tlv::IPV6, 17]);
            b.extend_from_slice(&address.octets());
            b.push(prefix(length, 128)?);
        }
        b.extend_from_slice(&[welcome_tlv::INNER_MTU, 2]);
        b.extend_from_slice(&self.inner_mtu.to_be_bytes());
        b.extend_from_slice(&[welcome_tlv::REORDER, 2]);
        b.extend_from_slice(&self.reorder_available.to_be_bytes());
        b.extend_from_slice(&[welcome_tlv::INSTANCE, 4]);
        b.extend_from_slice(&self.instance.to_be_bytes());
        if self.plain != 0 {
            b.extend_from_slice(&[welcome_tlv::PLAIN, 1, self.plain]);
        }
        if self.features != 0 {
            b.extend_from_slice(&[welcome_tlv::FEATURES, 1, self.features]);
        }
        Ok(b)
    }

    /// Decodes the payload of Noise message 2: the sender index, and the welcome.
    ///
    /// # Errors
    /// A [`WireError`] if a part is missing, repeated, malformed or out of range.
    pub fn decode(payload: &[u8]) -> Result<(u32, Self), WireError> {
        need(payload, "welcome sender index", 4)?;
        let (mut ipv4, mut ipv6, mut inner_mtu) = (None, None, None);
        let (mut reorder, mut instance, mut plain, mut features) = (None, None, None, None);
        for tlv in Tlvs(&payload[4..]) {
            let (kind, value) = tlv?;
            match kind {
                welcome_tlv::IPV4 => {
                    exactly(value, "welcome IPv4", 5)?;
                    let address = Ipv4Addr::from(array::<4>(value, 0));
                    set(&mut ipv4, (address, prefix(value[4], 32)?), "welcome IPv4")?;
                }
                welcome_tlv::IPV6 => {
                    exactly(value, "welcome IPv6", 17)?;
                    let address = Ipv6Addr::from(array::<16>(value, 0));
                    set(&mut ipv6, (address, prefix(value[16], 128)?), "welcome IPv6")?;
                }
                welcome_tlv::INNER_MTU => {
                    exactly(value, "welcome MTU", 2)?;
                    set(&mut inner_mtu, mtu(u16_at(value, 0))?, "welcome MTU")?;
                }
                welcome_tlv::REORDER => {
                    exactly(value, "welcome reorder", 2)?;
                    set(&mut reorder, u16_at(value, 0), "welcome reorder")?;
                }
                welcome_tlv::INSTANCE => {
                    exactly(value, "welcome instance", 4)?;
                    set(&mut instance, u32_at(value, 0), "welcome instance")?;
                }
                welcome_tlv::PLAIN => {
                    exactly(value, "welcome plain", 1)?;
                    set(&mut plain, value[0], "welcome plain")?;
                }
                welcome_tlv::FEATURES => {
                    exactly(value, "welcome features", 1)?;
                    set(&mut features, value[0], "welcome features")?;
                }
                _ => {}
            }
        }
        if ipv4.is_none() && ipv6.is_none() {
            return Err(WireError::Missing("welcome address"));
        }
        let welcome = Self {
            ipv4,
            ipv6,
            inner_mtu: inner_mtu.ok_or(WireError::Missing("welcome MTU"))?,
            reorder_available: reorder.unwrap_or(0),
            instance: instance.unwrap_or(0),
            // By default everything is sealed.
            plain: plain.unwrap_or(0),
            features: features.unwrap_or(0),
        };
        Ok((u32_at(payload, 0), welcome))
    }
}

/// Iterates over type, length and value; stops at the first TLV that does not fit.
struct Tlvs<'a>(&'a [u8]);

impl<'a> Iterator for Tlvs<'a> {
    type Item = Result<(u8, &'a [u8]), WireError>;
    fn next(&mut self) -> Option<Self::Item> {
        let rest = core::mem::take(&mut self.0);
        let (kind, length) = match rest {
            [] => return None,
            [kind, length, ..] => (*kind, usize::from(*length)),
            [_] => return Some(Err(WireError::Truncated { what: "TLV", need: 2, have: 1 })),
        };
        let Some((value, rest)) = rest[2..].split_at_checked(length) else {
            let have = rest.len() - 2;
            return Some(Err(WireError::Truncated { what: "TLV value", need: length, have }));
        };
        self.0 = rest;
        Some(Ok((kind, value)))
    }
}

fn check(bytes: &[u8], what: &'static str, first: u8, least: usize) -> Result<Suite, WireError> {
    need(bytes, what, least)?;
    if bytes.len() > HANDSHAKE_MAX {
        return Err(WireError::TooLong { what, most: HANDSHAKE_MAX, have: bytes.len() });
    }
    if bytes[0] != first {
        return Err(WireError::Type(bytes[0]));
    }
    version(bytes[1])?;
    Suite::try_from(bytes[2])
}

fn mac1(bytes: &[u8]) -> (&[u8], &[u8]) {
    let (rest, _) = bytes.split_at(bytes.len() - MAC_LEN);
    let (covered, mac) = rest.split_at(rest.len() - MAC_LEN);
    (mac, covered)
}

fn mac2(bytes: &[u8]) -> (&[u8], &[u8]) {
    let (covered, mac) = bytes.split_at(bytes.len() - MAC_LEN);
    (mac, covered)
}

fn version(got: u8) -> Result<(), WireError> {
    if got == VERSION { Ok(()) } else { Err(WireError::Value { what: "version", got: got.into() }) }
}

fn path_id(path: u8) -> Result<u8, WireError> {
    if usize::from(path) < MAX_PATHS {
        Ok(path)
    } else {
        Err(WireError::Value { what: "path id", got: path.into() })
    }
}

/// Returns `plain` if all of its paths are in `announced`.
fn plain_of(plain: u8, announced: u8) -> Result<u8, WireError> {
    let stranger = plain & !announced;
    if stranger == 0 { Ok(plain) } else { Err(WireError::Value { what: "plain path", got: plain.into() }) }
}

fn mtu(value: u16) -> Result<u16, WireError> {
    if value >= MTU_MIN { Ok(value) } else { Err(WireError::Value { what: "MTU", got: value.into() }) }
}

fn prefix(length: u8, most: u8) -> Result<u8, WireError> {
    if length <= most {
        Ok(length)
    } else {
        Err(WireError::Value { what: "prefix length", got: length.into() })
    }
}

fn name(bytes: &[u8]) -> Result<&str, WireError> {
    let fits = (1..=NAME_MAX).contains(&bytes.len())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b));
    if fits { std::str::from_utf8(bytes).ok() } else { None }.ok_or(WireError::Name("access name"))
}

/// Adds `path` to the bit set `seen`; an error if it is already in it.
fn once(seen: &mut u8, path: u8) -> Result<(), WireError> {
    let bit = 1 << path_id(path)?;
    if *seen & bit != 0 {
        return Err(WireError::Repeated("hello access"));
    }
    *seen |= bit;
    Ok(())
}

fn set<T>(slot: &mut Option<T>, value: T, what: &'static str) -> Result<(), WireError> {
    if slot.replace(value).is_some() { Err(WireError::Repeated(what)) } else { Ok(()) }
}

fn exactly(value: &[u8], what: &'static str, expected: usize) -> Result<(), WireError> {
    if value.len() == expected {
        Ok(())
    } else {
        Err(WireError::Length { what, expected, have: value.len() })
    }
}

#[cfg(test)]
mod tests;
