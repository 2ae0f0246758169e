//! Inner and outer IP packets: addresses and flows, and the few fields that a tunnel must change or generate.

mod checksum;
mod echo;
mod ecn;
mod flow;
mod mss;
mod rewrite;
mod too_big;
mod udp;

pub use checksum::{complete_checksum, fold, internet_checksum, pseudo_header_sum, sum, update_u16};
pub use echo::{ECHO_HEADER_LEN, Echo, emit_echo, parse_echo};
pub use ecn::{Ecn, ecn, set_ce};
pub use flow::{FlowKey, HashKey, IpPacket, dst, is_link_local, protocol_and_port, src_dst};
pub use mss::{clamp_mss, clamp_mss_with, ends_connection};
pub use rewrite::rewrite_dst;
pub use too_big::{may_fragment, packet_too_big};
pub(crate) use udp::{checked_ip, emit_ip, most};
pub use udp::{ip_udp_len, parse_udp, udp_datagram};

/// IANA protocol numbers.
pub mod protocol {
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// RFC 9293.
    pub const TCP: u8 = 6;
    /// RFC 768.
    pub const UDP: u8 = 17;
    /// RFC 4340.
    pub const DCCP: u8 = 33;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
    /// RFC 9260.
    pub const SCTP: u8 = 132;
    /// RFC 3828.
    pub const UDP_LITE: u8 = 136;
}
