//! A lazy view of a TCP segment in transit: nothing is copied, and nothing is verified unless requested.

use super::{SackBlocks, TCP_HEADER_LEN, TcpFlags};
use crate::WireError;
use crate::ip::{IpPacket, fold, protocol, pseudo_header_sum, sum};
use crate::read::{need, u16_at, u32_at};

/// A TCP segment within an IP packet; the length of its header has been validated, its checksum has not.
#[derive(Debug, Clone, Copy)]
pub struct TcpView<'a> {
    tcp: &'a [u8],
    header: usize,
}

impl<'a> TcpView<'a> {
    /// Parses the transport part of an IP packet.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if shorter than the fixed header; [`WireError::Value`] if the header length is less than that or
    /// more than the segment.
    #[inline]
    pub fn parse(tcp: &'a [u8]) -> Result<Self, WireError> {
        need(tcp, "TCP header", TCP_HEADER_LEN)?;
        let header = usize::from(tcp[12] >> 4) * 4;
        if header < TCP_HEADER_LEN || header > tcp.len() {
            return Err(WireError::Value { what: "TCP header length", got: header as u64 });
        }
        Ok(Self { tcp, header })
    }

    /// Source and destination port.
    #[inline]
    #[must_use]
    pub fn ports(&self) -> (u16, u16) {
        (u16_at(self.tcp, 0), u16_at(self.tcp, 2))
    }

    /// Sequence number of the first byte.
    #[inline]
    #[must_use]
    pub fn seq(&self) -> u32 {
        u32_at(self.tcp, 4)
    }

    /// Acknowledgment number; valid with [`TcpFlags::ACK`].
    #[inline]
    #[must_use]
    pub fn ack(&self) -> u32 {
        u32_at(self.tcp, 8)
    }

    /// Control bits (RFC 9293 §3.1), including those of ECN.
    #[inline]
    #[must_use]
    pub fn flags(&self) -> TcpFlags {
        TcpFlags(self.tcp[13])
    }

    /// The ECN bits AE, CWR and ECE (RFC 3168 and accurate ECN), as `0b_AE_CWR_ECE`.
    #[inline]
    #[must_use]
    pub fn ecn_bits(&self) -> u8 {
        (self.tcp[12] & 1) << 2 | self.tcp[13] >> 6
    }

    /// Receive window as on the wire, unscaled.
    #[inline]
    #[must_use]
    pub fn window(&self) -> u16 {
        u16_at(self.tcp, 14)
    }

    /// Length of the payload in bytes.
    #[inline]
    #[must_use]
    pub fn payload_len(&self) -> usize {
        self.tcp.len() - self.header
    }

    /// Length in sequence space: payload, SYN and FIN.
    #[inline]
    #[must_use]
    pub fn sequence_len(&self) -> u32 {
        let flags = self.flags();
        self.payload_len() as u32
            + u32::from(flags.contains(TcpFlags::SYN))
            + u32::from(flags.contains(TcpFlags::FIN))
    }

    /// Iterates over the options.
    #[inline]
    #[must_use]
    pub fn options(&self) -> Options<'a> {
        Options(self.tcp.get(TCP_HEADER_LEN..self.header).unwrap_or_default())
    }

    /// Value and echo of the timestamps option (RFC 7323 §3), if there is one before any malformed option.
    #[inline]
    #[must_use]
    pub fn timestamps(&self) -> Option<(u32, u32)> {
        // The usual position: after two bytes of padding at the start (RFC 7323 appendix A).
        let options = &self.options().0;
        if options.len() >= 12 && options[..4] == [1, 1, 8, 10] {
            return Some((u32_at(options, 4), u32_at(options, 8)));
        }
        self.options().map_while(Result::ok).find_map(|option| match option {
            TcpOption::Timestamps(value, echo) => Some((value, echo)),
            _ => None,
        })
    }

    /// Whether the checksum is correct for the enclosing IP packet.
    #[must_use]
    pub fn verifies(&self, ip: &IpPacket) -> bool {
        fold(pseudo_header_sum(ip.src, ip.dst, protocol::TCP, self.tcp.len()) + sum(self.tcp)) == 0xFFFF
    }
}

/// An option of a TCP header (RFC 9293 §3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TcpOption<'a> {
    /// Maximum segment size.
    Mss(u16),
    /// Shift of the window, 0 to 14.
    WindowScale(u8),
    /// SACK is permitted.
    SackPermitted,
    /// Timestamp value and echo.
    Timestamps(u32, u32),
    /// SACK blocks.
    Sack(SackBlocks),
    /// Any other option: its kind, and its data.
    Other(u8, &'a [u8]),
}

/// Iterates over the options of a segment; ends with the list, or with an error at a malformed option.
#[derive(Debug, Clone)]
pub struct Options<'a>(&'a [u8]);

impl<'a> Iterator for Options<'a> {
    type Item = Result<TcpOption<'a>, WireError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (&kind, tail) = self.0.split_first()?;
            match kind {
                0 => {
                    self.0 = &[];
                    return None;
                }
                1 => self.0 = tail,
                _ => return Some(self.take(kind)),
            }
        }
    }
}

impl<'a> Options<'a> {
    #[inline]
    fn take(&mut self, kind: u8) -> Result<TcpOption<'a>, WireError> {
        let all = core::mem::take(&mut self.0);
        let length = usize::from(*all.get(1).unwrap_or(&0));
        if length < 2 || length > all.len() {
            return Err(WireError::Length { what: "TCP option", expected: length, have: all.len() });
        }
        let (option, rest) = all.split_at(length);
        let read = match (kind, length) {
            (2, 4) => TcpOption::Mss(u16_at(option, 2)),
            (3, 3) => TcpOption::WindowScale(option[2].min(14)),
            (4, 2) => TcpOption::SackPermitted,
            (8, 10) => TcpOption::Timestamps(u32_at(option, 2), u32_at(option, 6)),
            (5, 10 | 18 | 26 | 34) => {
                let mut blocks = SackBlocks::default();
                for block in option[2..].chunks_exact(8) {
                    blocks.push(u32_at(block, 0), u32_at(block, 4));
                }
                TcpOption::Sack(blocks)
            }
            (2..=5 | 8, _) => {
                return Err(WireError::Value { what: "length of a TCP option", got: length as u64 });
            }
            _ => TcpOption::Other(kind, &option[2..]),
        };
        self.0 = rest;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::{TcpHeader, TcpOptions, emit_packet, parse_packet};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sees_what_the_parser_reads(
            seq: u32, ack: u32, flags: u8, window: u16, mss: Option<u16>, sack_permitted: bool,
            timestamps: Option<(u32, u32)>, block: Option<(u32, u32)>, shift in proptest::option::of(0u8..=14),
            payload in proptest::collection::vec(any::<u8>(), 0..40), v6: bool, bit in 0usize..160,
        ) {
            let (s, d) = if v6 { ("[fd00::1]:1", "[fd00::2]:2") } else { ("10.0.0.1:1", "10.0.0.2:2") };
            let mut sack = SackBlocks::default();
            if let Some((left, right)) = block {
                sack.push(left, right);
            }
            let report = [0; crate::ioam::FEEDBACK_LEN];
            let options = TcpOptions { mss, window_scale: shift, sack_permitted, timestamps, sack, report };
            let header = TcpHeader { seq, ack, flags: TcpFlags(flags), window, options };
            let mut p = emit_packet(s.parse().unwrap(), d.parse().unwrap(), &header, &payload).unwrap();
            let ip = IpPacket::parse(&p).unwrap();
            {
                let tcp = TcpView::parse(&p[ip.payload.clone()]).unwrap();
                prop_assert_eq!(tcp.ports(), (1, 2));
                prop_assert_eq!((tcp.seq(), tcp.ack(), tcp.flags().0, tcp.window()), (seq, ack, flags, window));
                prop_assert_eq!(tcp.payload_len(), payload.len());
                prop_assert!(tcp.verifies(&ip));
                let mut seen = TcpOptions::default();
                for option in tcp.options() {
                    match option.unwrap() {
                        TcpOption::Mss(mss) => seen.mss = Some(mss),
                        TcpOption::WindowScale(shift) => seen.window_scale = Some(shift),
                        TcpOption::SackPermitted => seen.sack_permitted = true,
                        TcpOption::Timestamps(value, echo) => seen.timestamps = Some((value, echo)),
                        TcpOption::Sack(blocks) => seen.sack = blocks,
                        TcpOption::Other(..) => prop_assert!(false, "not written"),
                    }
                }
                prop_assert_eq!(seen, parse_packet(&p).unwrap().header.options);
            }
            let start = ip.payload.start;
            p[start + bit / 8] ^= 1 << (bit % 8);
            if let Ok(tcp) = TcpView::parse(&p[ip.payload.clone()]) {
                prop_assert!(!tcp.verifies(&ip));
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(tcp) = TcpView::parse(&bytes) {
                prop_assert!(tcp.options().count() <= 40);
                prop_assert!(tcp.sequence_len() as usize >= tcp.payload_len());
            }
        }
    }

    #[test]
    fn malformed_options_end_the_list() {
        for bad in [&[2u8, 3, 0][..], &[5, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[8, 1], &[8], &[3, 4, 0, 0]] {
            let mut options = Options(bad);
            assert!(options.next().is_some_and(|option| option.is_err()), "{bad:?}");
            assert!(options.next().is_none());
        }
        assert_eq!(
            Options(&[1, 30, 4, 7, 7, 0, 9]).map(Result::unwrap).collect::<Vec<_>>(),
            [TcpOption::Other(30, &[7, 7])]
        );
    }
}
