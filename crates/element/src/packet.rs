//! A packet: bytes with headroom, and the logical time of its arrival at its present place.

use crate::time::Instant;
use core::fmt;
use core::ops::{Deref, DerefMut};

/// Owned packet bytes plus a logical timestamp.
///
/// `at` is the time at which the packet *logically* arrived at its present place. An element that delays a packet computes
/// from `at`, not from `now`, so that late timers in a real-time run do not accumulate. The bytes in front of the packet (the
/// headroom) allow encapsulation without a copy.
#[derive(Clone, PartialEq, Eq)]
pub struct Packet {
    /// Logical arrival time.
    pub at: Instant,
    buf: Vec<u8>,
    start: usize,
}

impl Packet {
    /// A packet that owns `bytes`, with no headroom.
    #[inline]
    #[must_use]
    pub fn new(at: Instant, bytes: Vec<u8>) -> Self {
        Self { at, buf: bytes, start: 0 }
    }

    /// A packet with a copy of `bytes` behind `headroom` spare bytes.
    #[inline]
    #[must_use]
    pub fn with_headroom(at: Instant, headroom: usize, bytes: &[u8]) -> Self {
        let mut buf = Vec::with_capacity(headroom + bytes.len());
        buf.resize(headroom, 0);
        buf.extend_from_slice(bytes);
        Self { at, buf, start: headroom }
    }

    /// A packet in a buffer whose first `headroom` bytes are spare.
    #[inline]
    #[must_use]
    pub fn behind_headroom(at: Instant, headroom: usize, bytes: Vec<u8>) -> Self {
        let start = headroom.min(bytes.len());
        Self { at, buf: bytes, start }
    }

    /// Adds `n` zeroed bytes in front and returns the whole packet.
    #[inline]
    pub fn push_front(&mut self, n: usize) -> &mut [u8] {
        if self.start < n {
            let missing = n - self.start;
            let len = self.buf.len();
            self.buf.resize(len + missing, 0);
            self.buf.copy_within(..len, missing);
            self.start += missing;
        }
        self.start -= n;
        self.buf[self.start..self.start + n].fill(0);
        &mut self.buf[self.start..]
    }

    /// Spare bytes in front.
    #[inline]
    #[must_use]
    pub fn headroom(&self) -> usize {
        self.start
    }

    /// Removes up to `n` bytes from the front.
    #[inline]
    pub fn pull_front(&mut self, n: usize) {
        self.start = (self.start + n).min(self.buf.len());
    }

    /// Restores up to `n` bytes in front that [`Packet::pull_front`] removed, with their contents.
    #[inline]
    pub fn restore_front(&mut self, n: usize) {
        self.start = self.start.saturating_sub(n);
    }

    /// Shortens the packet to `len` bytes; no effect if it is not longer.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.buf.truncate(self.start.saturating_add(len));
    }

    /// Appends bytes at the end.
    #[inline]
    pub fn extend(&mut self, bytes: &[u8]) {
        self.buf.extend_from_slice(bytes);
    }

    /// The packet's memory, emptied, for another packet.
    #[inline]
    #[must_use]
    pub fn into_buffer(mut self) -> Vec<u8> {
        self.buf.clear();
        self.buf
    }

    /// The packet's memory with all its contents, headroom included, for a user that overwrites every byte.
    #[inline]
    #[must_use]
    pub fn into_used_buffer(self) -> Vec<u8> {
        self.buf
    }

    /// The packet's bytes as a vector, without headroom.
    #[inline]
    #[must_use]
    pub fn into_bytes(mut self) -> Vec<u8> {
        self.buf.drain(..self.start);
        self.buf
    }
}

impl Deref for Packet {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.buf[self.start..]
    }
}

impl DerefMut for Packet {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buf[self.start..]
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packet({} bytes at {})", self.len(), self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headroom_is_used_then_grown() {
        let mut p = Packet::with_headroom(Instant::ZERO, 2, b"abc");
        p.push_front(2)[..2].copy_from_slice(b"12");
        assert_eq!(&*p, b"12abc");
        p.push_front(3)[..3].copy_from_slice(b"xyz");
        assert_eq!(&*p, b"xyz12abc");
        p.pull_front(5);
        assert_eq!(&*p, b"abc");
        p.restore_front(2);
        assert_eq!(&*p, b"12abc");
        p.pull_front(2);
        p.truncate(2);
        assert_eq!(p.into_bytes(), b"ab");
        let mut p = Packet::behind_headroom(Instant::ZERO, 2, b"..abc".to_vec());
        p.push_front(2);
        assert_eq!(p.into_buffer().capacity(), 5, "nothing was moved");
        assert!(Packet::behind_headroom(Instant::ZERO, 9, b"abc".to_vec()).is_empty());
    }
}
