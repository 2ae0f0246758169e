//! The secure tunnel's cryptography: keys, handshake, packet protection, replay protection.
//!
//! ```text
//! UE                                                                UPF
//! Initiator::start ──── init: e, es, s, ss, (timestamp, hello) ───▶ Responder::inspect
//!                                                                    mac1 ─ not ours ─▶ dropped
//!                  ◀─── cookie (only under load, no state kept) ──── mac2 ─ missing
//! Initiator::on_cookie, start again with it ──────────────────────▶  DH only now
//! Initiator::finish ◀── response: e, ee, se, (index, welcome) ────── Responder::respond
//! SessionKeys::seal ─── secure packets, per path numbers ─────────▶ SessionKeys::open, ReplayWindow
//! ```
//!
//! - Noise IK (Noise Protocol Framework rev. 34, §7.5) over X25519, BLAKE2s, and the suite's AEAD,
//!   through `snow`; Diffie-Hellman and packet protection through AWS-LC. The prologue is
//!   `"anabranch 1"` followed by the init's 8-byte header, so that version, suite, shard hint and sender
//!   index are authenticated.
//! - mac1, mac2 and cookies are those of WireGuard (Donenfeld, NDSS 2017, §5.3, §5.4.4, §5.4.7), with
//!   HMAC-SHA-256 for keyed BLAKE2s.
//! - AEAD nonce: path id as u32, then packet number as u64, big-endian. Path ids and packet numbers never
//!   repeat under one key, so nonces do not.
//!
//! Everything here is sans-IO: randomness comes from a generator or seed of the caller, time from `now`.
//! `docs/wire-formats.md` describes what an attacker can and cannot do.

mod aead;
mod handshake;
mod keys;
mod mac;
mod noise;
mod replay;

pub use aead::{CryptoError, SessionKeys};
pub use anabranch_wire::handshake::Suite;
pub use handshake::{
    Established, HandshakeError, Initiator, PendingInit, Refusal, Responder, UnreadInit, Verdict,
};
pub use keys::{KeyError, PrivateKey, PublicKey};
pub use mac::Cookie;
pub use replay::{Replay, ReplayWindow, TimestampGuard};

use anabranch_element::time::Duration;

/// The UE starts a new handshake when its keys are this old.
pub const REKEY_AFTER: Duration = Duration::from_secs(120);
/// Keys older than this are not used any more, in either direction.
pub const REJECT_AFTER: Duration = Duration::from_secs(180);
/// The UE starts a new handshake at this packet number on any path.
///
/// With AES-GCM the advantage of distinguishing 2^32 full packets from noise is below 2^-50 (RFC 9001
/// appendix B.1.1 with 2^7 blocks per packet). On any link below 400 Gbit/s, 120 s elapse first.
pub const REKEY_AFTER_PACKETS: u64 = 1 << 32;
/// Packet numbers from here on are refused by [`SessionKeys::seal`] and [`SessionKeys::open`].
pub const REJECT_AFTER_PACKETS: u64 = 1 << 34;
/// A cookie is accepted for at least this time after its creation, and for at most twice this time.
pub const COOKIE_LIFETIME: Duration = Duration::from_secs(120);
