//! ATSSS: steering, switching and splitting of a session over several accesses.
//!
//! The leaf modules are independent of one another's state; a session composes them.
//!
//! Parts can be used without a tunnel, for example coded redundancy: each repair packet covers the last 64
//! packets sent, and the receiver restores lost ones from it.
//!
//! ```
//! use anabranch_atsss::coding::{Encoder, Overhead, Work};
//! use anabranch_element::time::{Duration, Instant};
//!
//! let start = Instant::from_secs(1);
//! let overhead = Overhead { percent: 50, window: 64, wait: Duration::from_millis(100) };
//! let (mut encoder, mut work) = (Encoder::new(overhead, start), Work::new(start));
//! let mut repairs = 0;
//! for n in 0..100u8 {
//!     let now = start + Duration::from_millis(5 * u64::from(n));
//!     encoder.push([&[n; 1200], &[]], now, 1 << 20);
//!     while encoder.poll(now, &mut work).is_some() {
//!         repairs += 1;
//!     }
//! }
//! assert!((40..=50).contains(&repairs), "{repairs}");
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod classify;
pub mod coding;
pub mod config_channel;
pub mod crypto;
pub mod destinations;
pub mod dns;
pub mod document;
pub mod drops;
pub mod fast;
pub mod fragment;
pub mod keyring;
pub(crate) mod marks;
pub mod memory;
pub mod mtu;
pub mod path;
pub mod reorder;
pub mod session;
pub mod table;
pub mod tcp_lane;
pub(crate) mod tunnel_element;
pub mod ue;
pub mod upf;

use anabranch_element::time::Instant;
use anabranch_wire::ip::FlowKey;
use drops::DropReason;
use fast::FastFlow;
use session::Addresses;
use siphasher::sip::SipHasher13;
use std::hash::BuildHasher;
use std::net::SocketAddr;

pub use anabranch_steer::{MAX_PATHS, PathId};

/// Receives the datagrams for the far tunnel end (batch form of the element interface).
pub trait DatagramSink {
    /// Room for one datagram of exactly `len` bytes to `to` by `path`.
    ///
    /// `None` if there is no room: the caller drops and counts the packet.
    fn reserve(&mut self, path: PathId, to: SocketAddr, len: usize) -> Option<&mut [u8]>;

    /// The last datagram for which room was given by `path` is not to be sent. Called before any other call
    /// to the sink.
    fn withdraw(&mut self, path: PathId);

    /// Until [`DatagramSink::revoke`], packets of this flow may bypass the session in the same way as the
    /// last one was sent. A sink without a faster data path does nothing.
    fn offload(&mut self, _flow: &FastFlow, _now: Instant) {}

    /// From now on, the session must process every packet of this flow, with the key as in its packets;
    /// without a flow, of all flows that it handed over.
    fn revoke(&mut self, _session: Addresses, _flow: Option<&FlowKey>) {}
}

/// Writes one datagram of exactly `len` bytes to `to` by `path`. If `fill` fails, the datagram is not sent,
/// and nothing of it remains in the sink's buffer, which may contain plaintext that could not be sealed, or
/// an earlier datagram.
///
/// # Errors
/// [`DropReason::NoRoom`], or the error of `fill`.
#[inline]
pub(crate) fn put(
    out: &mut impl DatagramSink,
    path: PathId,
    to: SocketAddr,
    len: usize,
    fill: impl FnOnce(&mut [u8]) -> Result<(), DropReason>,
) -> Result<(), DropReason> {
    let slot = out.reserve(path, to, len).ok_or(DropReason::NoRoom)?;
    let filled = fill(slot);
    if filled.is_err() {
        slot.fill(0);
        out.withdraw(path);
    }
    filled
}

/// Receives inner IP packets, in order (batch form of the element interface).
pub trait PacketSink {
    /// One complete inner IP packet.
    fn deliver(&mut self, packet: &mut [u8]);
}

/// Builds keyed SipHash-1-3 hashers: resistant to crafted keys, and reproducible for a given seed.
#[derive(Debug, Clone)]
pub struct FixedHasher(u64);

impl FixedHasher {
    /// A builder with this key.
    #[must_use]
    pub const fn new(key: u64) -> Self {
        Self(key)
    }
}

impl BuildHasher for FixedHasher {
    type Hasher = SipHasher13;
    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, !self.0)
    }
}
