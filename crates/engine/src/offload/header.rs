//! struct virtio_net_hdr, as used by TUN.
//!
//! ```text
//!   0       1        2         4          6            8
//! +-------+--------+---------+----------+------------+-------------+
//! | flags | gso    | header  | segment  | checksum   | checksum    |   machine byte order
//! |       | type   | bytes   | bytes    | start      | offset      |
//! +-------+--------+---------+----------+------------+-------------+
//! ```

/// Length of the header.
pub const VNET_BYTES: usize = 10;

/// The checksum from `checksum_start` on is not complete yet; the field holds the pseudo header's sum.
pub const NEEDS_CHECKSUM: u8 = 1;
/// Not segmented.
pub const GSO_NONE: u8 = 0;
/// TCP over IPv4.
pub const GSO_TCP4: u8 = 1;
/// TCP over IPv6.
pub const GSO_TCP6: u8 = 4;
/// UDP datagrams of one length.
pub const GSO_UDP: u8 = 5;
/// Flag in the type: the first segment carries CWR.
pub const GSO_ECN: u8 = 0x80;

/// The header, parsed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VnetHeader {
    /// [`NEEDS_CHECKSUM`] or 0.
    pub flags: u8,
    /// `GSO_…`.
    pub gso_type: u8,
    /// Length of IP and transport header together, bytes; only a hint.
    pub header_bytes: u16,
    /// Payload per segment, bytes.
    pub segment_bytes: u16,
    /// Offset of the transport header.
    pub checksum_start: u16,
    /// Offset of the checksum field from there.
    pub checksum_offset: u16,
}

impl VnetHeader {
    /// Parses the first [`VNET_BYTES`] of a frame.
    pub fn parse(bytes: &[u8; VNET_BYTES]) -> Self {
        let word = |i: usize| u16::from_ne_bytes([bytes[i], bytes[i + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            header_bytes: word(2),
            segment_bytes: word(4),
            checksum_start: word(6),
            checksum_offset: word(8),
        }
    }

    /// The header as bytes.
    pub fn emit(self) -> [u8; VNET_BYTES] {
        let mut bytes = [self.flags, self.gso_type, 0, 0, 0, 0, 0, 0, 0, 0];
        let words = [self.header_bytes, self.segment_bytes, self.checksum_start, self.checksum_offset];
        for (to, word) in bytes[2..].chunks_exact_mut(2).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}
