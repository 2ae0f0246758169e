//! Coded redundancy: repair packets over a sliding window of source packets (`coded` mode).
//!
//! A systematic sliding-window linear code over GF(256), similar to RFC 8681 (FECFRAME, RFC 8680), with a
//! Cauchy matrix instead of pseudo-random coefficients. Packets are sent unchanged and at once. From time to
//! time a repair packet follows, which is the sum of the latest packets, each multiplied by its coefficient.
//! Lost packets are the unknowns of a system of linear equations that the receiver solves as repairs arrive.
//!
//! ```text
//!  sources   s1 s2 s3 ── s4 s5 s6 ── s7 s8 ··          position, 24 bits
//!                       │           │
//!  repairs              r0          r1                 r = Σ c(position, index) · s over the window
//! ```
//!
//! [`Encoder`] decides when a repair is due (by a budget of bytes) and computes it. [`Decoder`] keeps
//! received packets and restores missing ones. Both process bytes only; the session defines the contents of
//! symbols and the paths. Derivation, rules and measurements: docs/atsss-coded.md.
//!
//! Bounds, for any peer: [`Decoder`] keeps [`SPAN`] symbols and [`MAX_ROWS`] equations, both within the
//! memory that its owner grants per call. The work of a call is limited by [`Work`], a budget of bytes
//! multiplied per second.

mod decoder;
mod encoder;
mod gf256;
mod work;

pub use decoder::{Decoder, DecoderStats, Repair};
pub use encoder::{Encoder, EncoderStats, MAX_WAIT, MAX_WINDOW, Overhead};
pub use work::Work;

/// Positions that a decoder keeps behind the newest one: a whole window, and as many again for late repairs.
pub const SPAN: u32 = 256;
/// Most unsolved equations of a decoder.
pub const MAX_ROWS: usize = 64;

/// Width of a position (the sequence number of a source packet) on the wire, bits.
const POSITION_BITS: u32 = 24;
const POSITION_MASK: u32 = (1 << POSITION_BITS) - 1;

/// The distance from `from` to `position`, which may be negative; positions wrap.
const fn ahead(position: u32, from: u32) -> i32 {
    (position.wrapping_sub(from) << (32 - POSITION_BITS)) as i32 >> (32 - POSITION_BITS)
}

/// A buffer that grows in steps and is reused.
#[derive(Debug, Default)]
struct Buffer(Vec<u8>);

impl Buffer {
    /// Allocation granularity, bytes.
    const STEP: usize = 256;

    /// Bytes by which the buffer grows to hold `len`.
    fn growth(&self, len: usize) -> usize {
        len.next_multiple_of(Self::STEP).saturating_sub(self.0.capacity())
    }

    /// Ensures room for `len` bytes, allocating at most `room`. Returns the number of bytes allocated.
    fn reserve(&mut self, len: usize, room: usize) -> Option<usize> {
        let growth = self.growth(len);
        if growth > room {
            return None;
        }
        if growth > 0 {
            let before = self.0.capacity();
            self.0.reserve_exact(len.next_multiple_of(Self::STEP) - self.0.len());
            return Some(self.0.capacity() - before);
        }
        Some(0)
    }

    /// Fills the buffer with the concatenated `parts`, for which there is room.
    fn fill<'a>(&mut self, parts: impl IntoIterator<Item = &'a [u8]>) {
        self.0.clear();
        parts.into_iter().for_each(|part| self.0.extend_from_slice(part));
    }
}

#[cfg(test)]
mod tests;
