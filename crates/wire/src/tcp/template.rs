//! The headers of one direction of a connection.
//!
//! Addresses, ports and constant IP fields are prepared, with their sums; only the variable fields are added per packet. The
//! same template parses packets of that direction: packets of the usual form are compared with it instead of being parsed
//! field by field.

use super::{TCP_HEADER_LEN, TCP_OPTIONS_MAX, TcpFlags, TcpHeader, TcpOptions};
use crate::WireError;
use crate::ip::{emit_ip, fold, most, protocol, pseudo_header_sum, sum};
use crate::read::{need, put, u16_at, u32_at};
use std::net::SocketAddr;

/// Sizes of an IPv4 and of an IPv6 header in bytes.
const IP_LEN: [usize; 2] = [20, 40];

/// Size of the usual headers in bytes: IPv4, TCP, timestamps.
const USUAL_LEN: usize = 20 + TCP_HEADER_LEN + 12;

/// Headers of one direction of a connection; see the module documentation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpTemplate {
    v4: bool,
    /// The IP header without length; IPv4 in the first 20 bytes.
    ip: [u8; 40],
    /// Sum of the IPv4 header.
    ip_sum: u64,
    src_port: u16,
    dst_port: u16,
    /// Sum of the pseudo header without length, plus the ports.
    fixed_sum: u64,
}

impl TcpTemplate {
    /// The template for packets from `src` to `dst`.
    ///
    /// # Errors
    /// [`WireError::Family`] if the families differ.
    #[inline]
    pub fn new(src: SocketAddr, dst: SocketAddr) -> Result<Self, WireError> {
        let v4 = dst.is_ipv4();
        let mut ip = [0; 40];
        emit_ip(&mut ip[..IP_LEN[usize::from(!v4)]], src.ip(), dst.ip(), protocol::TCP)?;
        // Length and checksum differ per packet.
        if v4 {
            ip[2..4].fill(0);
            ip[10..12].fill(0);
        }
        let ports = u64::from(src.port()) + u64::from(dst.port());
        Ok(Self {
            v4,
            ip,
            ip_sum: sum(&ip[..20]),
            src_port: src.port(),
            dst_port: dst.port(),
            fixed_sum: pseudo_header_sum(src.ip(), dst.ip(), protocol::TCP, 0) + ports,
        })
    }

    /// Size of the IP and TCP headers in front of a payload.
    #[inline]
    #[must_use]
    pub fn headers_len(&self, header: &TcpHeader) -> usize {
        IP_LEN[usize::from(!self.v4)] + TCP_HEADER_LEN + header.options.len()
    }

    /// Writes the headers in front of a payload that is already in `b`, at offset [`TcpTemplate::headers_len`], and whose [`sum`]
    /// is `payload_sum`.
    ///
    /// # Errors
    /// [`WireError::TooLong`] if options or packet would be too long; [`WireError::Truncated`] if `b` is shorter than the headers.
    #[inline]
    pub fn emit(&self, b: &mut [u8], header: &TcpHeader, payload_sum: u64) -> Result<(), WireError> {
        let total = b.len();
        if let (true, 0..=0xFFFF, Some(timestamps), Some((head, _))) =
            (self.v4, total, header.options.only_timestamps(), b.split_first_chunk_mut())
        {
            self.emit_usual(head, total, header, timestamps, payload_sum);
            return Ok(());
        }
        self.emit_any(b, header, payload_sum)
    }

    /// Writes headers of the usual form for a packet of `total` bytes.
    #[inline]
    fn emit_usual(
        &self,
        head: &mut [u8; USUAL_LEN],
        total: usize,
        header: &TcpHeader,
        (value, echo): (u32, u32),
        payload_sum: u64,
    ) {
        const WORDS: u8 = (USUAL_LEN as u8 - 20) / 4;
        let TcpHeader { seq, ack, flags, window, .. } = header;
        head[..20].copy_from_slice(&self.ip[..20]);
        head[2..4].copy_from_slice(&(total as u16).to_be_bytes());
        head[10..12].copy_from_slice(&(!fold(self.ip_sum + total as u64)).to_be_bytes());
        let tcp = &mut head[20..];
        tcp[0..2].copy_from_slice(&self.src_port.to_be_bytes());
        tcp[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        tcp[4..8].copy_from_slice(&seq.to_be_bytes());
        tcp[8..12].copy_from_slice(&ack.to_be_bytes());
        (tcp[12], tcp[13]) = (WORDS << 4, flags.0);
        tcp[14..16].copy_from_slice(&window.to_be_bytes());
        tcp[18..22].copy_from_slice(&[0, 0, 8, 10]);
        tcp[22..26].copy_from_slice(&value.to_be_bytes());
        tcp[26..30].copy_from_slice(&echo.to_be_bytes());
        tcp[30..].copy_from_slice(&[1, 1]);
        // In one's complement, a 32-bit word is congruent to the sum of its halves.
        let words = u64::from(*seq) + u64::from(*ack) + u64::from(value) + u64::from(echo);
        let halves = u64::from(WORDS) << 12 | u64::from(flags.0);
        let fixed = self.fixed_sum + 0x080a + 0x0101 + (total - 20) as u64;
        let all = fixed + words + halves + u64::from(*window) + payload_sum;
        tcp[16..18].copy_from_slice(&(!fold(all)).to_be_bytes());
    }

    fn emit_any(&self, b: &mut [u8], header: &TcpHeader, payload_sum: u64) -> Result<(), WireError> {
        let options = header.options.len();
        if options > TCP_OPTIONS_MAX {
            return Err(WireError::TooLong { what: "TCP options", most: TCP_OPTIONS_MAX, have: options });
        }
        let tcp_len = TCP_HEADER_LEN + options;
        let start = IP_LEN[usize::from(!self.v4)];
        need(b, "TCP packet", start + tcp_len)?;
        let total = b.len();
        if self.v4 {
            most(total, 0xFFFF)?;
            put(b, 0, &self.ip[..20]);
            put(b, 2, &(total as u16).to_be_bytes());
            put(b, 10, &(!fold(self.ip_sum + total as u64)).to_be_bytes());
        } else {
            most(total, 0xFFFF + 40)?;
            put(b, 0, &self.ip);
            put(b, 4, &((total - 40) as u16).to_be_bytes());
        }
        let tcp = &mut b[start..];
        let mut fixed = [0; TCP_HEADER_LEN];
        fixed[0..2].copy_from_slice(&self.src_port.to_be_bytes());
        fixed[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        fixed[4..8].copy_from_slice(&header.seq.to_be_bytes());
        fixed[8..12].copy_from_slice(&header.ack.to_be_bytes());
        fixed[12] = (tcp_len as u8 / 4) << 4;
        fixed[13] = header.flags.0;
        fixed[14..16].copy_from_slice(&header.window.to_be_bytes());
        let own = &mut tcp[TCP_HEADER_LEN..tcp_len];
        header.options.emit(own);
        let options_sum = sum(own);
        let total = self.fixed_sum
            + fold(tcp.len() as u64) as u64
            + halves(header.seq)
            + halves(header.ack)
            + u64::from(u16::from_be_bytes([fixed[12], fixed[13]]))
            + u64::from(header.window)
            + options_sum
            + payload_sum;
        fixed[16..18].copy_from_slice(&(!fold(total)).to_be_bytes());
        put(tcp, 0, &fixed);
        Ok(())
    }

    /// Parses a packet of this direction that has the usual form: IPv4 and timestamps without other options, not a fragment, nothing
    /// after it. Returns its header and the offset of its payload; both checksums are verified, with `payload_sum` as in
    /// [`parse_packet_with`](super::parse_packet_with). `None` is not an error: that function accepts any packet, with the same
    /// result for the usual form.
    #[inline]
    #[must_use]
    pub fn read(
        &self,
        packet: &[u8],
        payload_sum: impl FnOnce(&TcpHeader, &[u8]) -> Option<u64>,
    ) -> Option<(TcpHeader, usize)> {
        let (head, payload) = packet.split_first_chunk::<USUAL_LEN>()?;
        let (ip, tcp) = head.split_first_chunk::<20>()?;
        let tcp = tcp.first_chunk::<{ USUAL_LEN - 20 }>()?;
        let unlike = u32_at(tcp, 0) ^ (u32::from(self.src_port) << 16 | u32::from(self.dst_port));
        let whole = usize::from(u16_at(ip, 2)) == packet.len() && u16_at(ip, 6) & 0x3FFF == 0;
        let ours = self.v4 && ip[0] == 0x45 && ip[9] == protocol::TCP && ip[12..20] == self.ip[12..20];
        if unlike != 0 || !whole || !ours || tcp[12] >> 4 != 8 {
            return None;
        }
        let ([8, 10, v @ .., 1, 1] | [1, 1, 8, 10, v @ ..]) = tcp.last_chunk::<12>()? else { return None };
        let timestamps = Some((u32_at(v, 0), u32_at(v, 4)));
        let header = TcpHeader {
            seq: u32_at(tcp, 4),
            ack: u32_at(tcp, 8),
            flags: TcpFlags(tcp[13]),
            window: u16_at(tcp, 14),
            options: TcpOptions { timestamps, ..TcpOptions::default() },
        };
        let payload_sum = payload_sum(&header, payload).unwrap_or_else(|| sum(payload));
        let length = (tcp.len() + payload.len()) as u64;
        // The ports are part of both the prepared sum and the packet's sum.
        let ports = u64::from(self.src_port) + u64::from(self.dst_port);
        let total = self.fixed_sum - ports + length + sum_of_words(tcp) + payload_sum;
        let intact = fold(sum_of_words(ip)) == 0xFFFF && fold(total) == 0xFFFF;
        intact.then_some((header, USUAL_LEN))
    }
}

/// The sum of a short header of whole 32-bit words, without carries.
#[inline(always)]
fn sum_of_words<const N: usize>(header: &[u8; N]) -> u64 {
    let (words, _) = header.as_chunks::<4>();
    let total = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    // A sum of native-order words has its bytes swapped (RFC 1071 §2 (B)).
    u64::from(u16::from_be_bytes(fold(total).to_ne_bytes()))
}

/// The sum of the two halves of a 32-bit word.
#[inline]
fn halves(word: u32) -> u64 {
    u64::from(word >> 16) + u64::from(word & 0xFFFF)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::{SackBlocks, TcpFlags, TcpOptions, parse_packet, parse_packet_with};
    use proptest::prelude::*;

    proptest! {
        /// With any previous content of the buffer, and with or without a precomputed payload sum.
        #[test]
        fn packets_are_the_same_whoever_knows_the_sum(
            v6: bool, numbers: (u32, u32, u16, u8), timestamps: Option<(u32, u32)>, block: Option<(u32, u32)>,
            payload in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let (src, dst) = if v6 { ("[fd00::1]:9", "[fd00::2]:80") } else { ("10.0.0.1:9", "10.9.0.2:80") };
            let template = TcpTemplate::new(src.parse().unwrap(), dst.parse().unwrap()).unwrap();
            let mut sack = SackBlocks::default();
            if let Some((l, r)) = block {
                sack.push(l, r);
            }
            let (seq, ack, window, flags) = numbers;
            let options = TcpOptions { timestamps, sack, ..TcpOptions::default() };
            let header = TcpHeader { seq, ack, flags: TcpFlags(flags), window, options };
            let headers = template.headers_len(&header);
            let mut b = vec![0xa5; headers + payload.len()];
            b[headers..].copy_from_slice(&payload);
            let mut any = b.clone();
            template.emit(&mut b, &header, sum(&payload)).unwrap();
            template.emit_any(&mut any, &header, sum(&payload)).unwrap();
            prop_assert_eq!(&b, &any, "the usual packet is written as any other");
            let read = parse_packet(&b).unwrap();
            prop_assert_eq!(read.header, header);
            prop_assert_eq!(&b[read.payload.clone()], &payload[..]);
            let known = parse_packet_with(&b, |h, p| (*h == header).then(|| sum(p)));
            prop_assert_eq!(known.as_ref(), Ok(&read));
            // A wrong sum is detected.
            prop_assert!(parse_packet_with(&b, |_, p| Some(sum(p) + 1)).is_err());
            prop_assert!(template.read(&b, |_, p| Some(sum(p) + 1)).is_none());
        }

        /// A template parses the same as the general parser, and it parses every packet of the usual form.
        #[test]
        fn a_template_reads_what_everybody_reads(
            v6 in 0u8..8, numbers: (u32, u32, u16, u8), ttl in 1u8.., block in 0u8..4,
            payload in proptest::collection::vec(any::<u8>(), 0..100),
            damage in proptest::option::of((0usize..72, 1u8..)), mend: bool,
        ) {
            let ends = if v6 == 0 { ("[fd00::1]:9", "[fd00::2]:80") } else { ("10.0.0.1:9", "10.9.0.2:80") };
            let (src, dst) = (ends.0.parse().unwrap(), ends.1.parse().unwrap());
            let mut sack = SackBlocks::default();
            if block == 0 {
                sack.push(1, 2);
            }
            let (seq, ack, window, flags) = numbers;
            let options = TcpOptions { timestamps: Some((seq ^ 1, ack)), sack, ..TcpOptions::default() };
            let header = TcpHeader { seq, ack, flags: TcpFlags(flags), window, options };
            let mut b = crate::tcp::emit_packet(src, dst, &header, &payload).unwrap();
            if v6 > 0 {
                // A router decrements the TTL.
                let old = u16::from_be_bytes([b[8], b[9]]);
                b[8] = ttl;
                let new = u16::from_be_bytes([b[8], b[9]]);
                let checksum = crate::ip::update_u16(u16::from_be_bytes([b[10], b[11]]), old, new);
                b[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            if let Some((at, bits)) = damage {
                let at = at % b.len();
                b[at] ^= bits;
                if mend && v6 > 0 && at < 20 {
                    b[10..12].fill(0);
                    let checksum = crate::ip::internet_checksum(&b[..20]);
                    b[10..12].copy_from_slice(&checksum.to_be_bytes());
                }
            }
            let template = TcpTemplate::new(src, dst).unwrap();
            let read = template.read(&b, |_, p| Some(sum(p)));
            let anybody = parse_packet(&b);
            if let Some((header, start)) = &read {
                let anybody = anybody.as_ref().unwrap();
                prop_assert_eq!(&anybody.header, header);
                prop_assert_eq!(&anybody.payload, &(*start..b.len()));
                prop_assert_eq!((anybody.src, anybody.dst), (src, dst));
            }
            if v6 > 0 && block > 0 && damage.is_none() {
                prop_assert!(read.is_some());
            }
        }
    }

    #[test]
    fn packets_that_are_too_long_are_refused() {
        let (v4, v6) = ("10.0.0.1:9".parse().unwrap(), "[fd00::2]:80".parse().unwrap());
        assert_eq!(TcpTemplate::new(v4, v6), Err(WireError::Family));
        let template = TcpTemplate::new(v4, v4).unwrap();
        assert!(template.emit(&mut [0; 39], &TcpHeader::default(), 0).is_err());
        assert!(template.emit(&mut vec![0; 70_000], &TcpHeader::default(), 0).is_err());
    }
}
