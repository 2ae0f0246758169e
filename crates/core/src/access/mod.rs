//! ATSSS: steering, switching and splitting of a session over several accesses.
//!
//! The leaf modules know nothing of one another's state; a session composes them.

pub mod steer;

use std::net::SocketAddr;

/// Index of an access path within a session; equal on both ends.
pub type PathId = u8;

/// Most paths one session may have.
pub const MAX_PATHS: usize = 8;

/// Where datagrams for the far tunnel end are written (batch form of the contract).
pub trait DatagramSink {
    /// Room for one datagram of exactly `len` bytes to `to` by way of `path`.
    ///
    /// `None` means there is no room: the packet is dropped and counted by the caller.
    fn reserve(&mut self, path: PathId, to: SocketAddr, len: usize) -> Option<&mut [u8]>;
}

/// Where inner IP packets are delivered, in order (batch form of the contract).
pub trait PacketSink {
    /// One complete inner IP packet.
    fn deliver(&mut self, packet: &mut [u8]);
}
