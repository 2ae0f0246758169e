//! ATSSS: steering, switching and splitting of a session over several accesses.
//!
//! The leaf modules know nothing of one another's state; a session composes them.
//!
//! Parts can be used without a tunnel. Coded redundancy, for instance: of every packet that is sent a repair covers the last 64,
//! so that the receiver restores what was lost.
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

/// Where datagrams for the far tunnel end are written (batch form of the contract).
pub trait DatagramSink {
    /// Room for one datagram of exactly `len` bytes to `to` by way of `path`.
    ///
    /// `None` means there is no room: the packet is dropped and counted by the caller.
    fn reserve(&mut self, path: PathId, to: SocketAddr, len: usize) -> Option<&mut [u8]>;

    /// The datagram that room was last given for by way of `path` is not to be sent. Called before anything else is asked
    /// of the sink.
    fn withdraw(&mut self, path: PathId);

    /// Packets of this flow may go by without the session, as the last one went, until [`DatagramSink::revoke`]. Who
    /// has no faster way does nothing.
    fn offload(&mut self, _flow: &FastFlow, _now: Instant) {}

    /// From now on the session wants to see every packet of this flow, as its packets have it; without one, of every flow
    /// that it gave away.
    fn revoke(&mut self, _session: Addresses, _flow: Option<&FlowKey>) {}
}

/// Writes one datagram of exactly `len` bytes to `to` by way of `path`. One that `fill` fails to complete is not sent, and
/// nothing of it stays in the sink's buffer: it may be the plaintext of what could not be sealed, or what was sent from
/// there before.
///
/// # Errors
/// [`DropReason::NoRoom`], or what `fill` says.
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

/// Where inner IP packets are delivered, in order (batch form of the contract).
pub trait PacketSink {
    /// One complete inner IP packet.
    fn deliver(&mut self, packet: &mut [u8]);
}

/// Builds keyed SipHash-1-3 hashers: safe against crafted keys, and the same in every run of a seed.
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
