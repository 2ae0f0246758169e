//! The trace type: the data requested by a trace, RFC 9197 §4.4.1.

use core::fmt;
use core::ops::BitOr;

/// The 24 bits of a trace type; bit 0 of the RFC is the highest.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct TraceType(u32);

impl TraceType {
    /// Bit 0: hop limit and short node id, 4 bytes.
    pub const HOP: Self = Self::bit(0);
    /// Bit 1: short ids of the interfaces, in and out, 4 bytes.
    pub const INTERFACES: Self = Self::bit(1);
    /// Bit 2: seconds of the time stamp, 4 bytes.
    pub const SECONDS: Self = Self::bit(2);
    /// Bit 3: fraction of the time stamp, 4 bytes; the unit depends on the namespace (Linux: microseconds).
    pub const FRACTION: Self = Self::bit(3);
    /// Bit 4: time spent in the node, 4 bytes.
    pub const TRANSIT_DELAY: Self = Self::bit(4);
    /// Bit 5: data defined by the namespace, 4 bytes.
    pub const NAMESPACE: Self = Self::bit(5);
    /// Bit 6: queue depth, 4 bytes; in Linux and here the bytes at the egress.
    pub const QUEUE_DEPTH: Self = Self::bit(6);
    /// Bit 7: checksum complement, 4 bytes.
    pub const CHECKSUM: Self = Self::bit(7);
    /// Bit 8: hop limit and wide node id, 8 bytes.
    pub const HOP_WIDE: Self = Self::bit(8);
    /// Bit 9: wide ids of the interfaces, in and out, 8 bytes.
    pub const INTERFACES_WIDE: Self = Self::bit(9);
    /// Bit 10: data defined by the namespace, 8 bytes.
    pub const NAMESPACE_WIDE: Self = Self::bit(10);
    /// Bit 11: occupancy of the node's buffers, 4 bytes.
    pub const BUFFER: Self = Self::bit(11);
    /// Bit 22: opaque state snapshot of variable length, not included in NodeLen.
    pub const SNAPSHOT: Self = Self::bit(22);

    /// The data needed for a path report; requested by our IOAM source.
    pub const REPORTED: Self = Self(Self::HOP.0 | Self::QUEUE_DEPTH.0 | Self::SNAPSHOT.0);

    /// Bits 12 to 21 are undefined; each bit set takes 4 bytes.
    const UNDEFINED: u32 = 0x0000_0ffc;

    const fn bit(n: u32) -> Self {
        Self(1 << (23 - n))
    }

    /// The type with these 24 bits; higher bits are ignored, and the reserved bit 23 is cleared.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits & 0x00ff_fffe)
    }

    /// The 24 bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether all data of `other` is requested.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// NodeLen: units of 4 bytes per node without its snapshot, 0 to 25.
    #[must_use]
    pub const fn node_words(self) -> usize {
        let wide = Self::HOP_WIDE.0 | Self::INTERFACES_WIDE.0 | Self::NAMESPACE_WIDE.0;
        (self.0 & !Self::SNAPSHOT.0).count_ones() as usize + (self.0 & wide).count_ones() as usize
    }

    /// Number of undefined bits that are set.
    pub(super) const fn undefined(self) -> usize {
        (self.0 & Self::UNDEFINED).count_ones() as usize
    }
}

impl BitOr for TraceType {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for TraceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceType({:#08x})", self.0)
    }
}
