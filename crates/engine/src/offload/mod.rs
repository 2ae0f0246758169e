//! Segmentation and coalescing for TUN devices with offload (virtio-net headers).
//!
//! The kernel delivers and accepts TCP and UDP in frames of up to 64 KiB; the tunnel carries single packets.
//! Both directions work without allocation, and segmentation also without a copy:
//!
//! ```text
//!  frame    [vnet│IP TCP│ payload 0 │ payload 1 │ payload 2 ]       one read(2)
//!  packet 0      [IP TCP│ payload 0 ]
//!  packet 1             ...   [IP TCP│ payload 1 ]                  the header is written over the end of
//!  packet 2                          ...  [IP TCP│ payload 2 ]      the payload before, which is done with
//! ```
//!
//! Formats: virtio 1.2 §5.1.6 (struct virtio_net_hdr), RFC 9293 (TCP), RFC 768 (UDP), RFC 1071
//! (checksum). What may be coalesced follows the kernel's own GRO (net/ipv4/tcp_offload.c).

mod checksum;
mod coalesce;
mod header;
mod segment;

pub use coalesce::{Coalescer, FrameSink};
pub use header::VNET_BYTES;
pub use segment::{for_each_packet, for_each_packet_in_frame};

/// Longest IP packet.
pub const MAX_PACKET_BYTES: usize = 65535;

#[cfg(test)]
mod tests;
