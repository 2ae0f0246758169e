//! Removal of SACK blocks from an ACK (`hide_sack`).
//!
//! An ACK that advances may report the next gap. Where packets alternate between two legs and one leg is late,
//! every ACK does. A sender that evaluates SACK blocks (RFC 6675, RFC 8985) then takes late packets for lost,
//! although it never receives a duplicate. The blocks are therefore removed, and the original ACK is held like a
//! duplicate: it is sent when the timer expires, and never if the gap closes. SACK is advisory (RFC 2018 §8), so a
//! sender without the blocks has less information, but no false information.
//!
//! A duplicate SACK is forwarded at once, ahead of the held ACKs. It gets the timestamp of the oldest held ACK,
//! because a stack that checks timestamps may drop the held ACKs otherwise (PAWS, RFC 7323 §5).

use super::dida::before;
use super::pool::MAX_HELD_BYTES;
use anabranch_wire::ip::{IpPacket, update_u16};
use anabranch_wire::tcp::{TcpOption, TcpView};

const FIXED_HEADER: usize = 20;
const CHECKSUM: usize = 16;
const OPTION_NOP: u8 = 1;
const OPTION_SACK: u8 = 5;
const OPTION_TIMESTAMPS: u8 = 8;
const BLOCK: usize = 8;
const OPTION_MD5: u8 = 19;
const OPTION_AO: u8 = 29;

/// Whether an ACK has SACK blocks that may be removed: no option authenticates the others, and all options are
/// readable.
pub(super) fn can_hide(tcp: &TcpView<'_>) -> bool {
    let mut has_blocks = false;
    for option in tcp.options() {
        match option {
            Ok(TcpOption::Sack(blocks)) => has_blocks |= !blocks.as_slice().is_empty(),
            Ok(TcpOption::Other(OPTION_MD5 | OPTION_AO, _)) | Err(_) => return false,
            Ok(_) => {}
        }
    }
    has_blocks
}

/// Which SACK blocks of an ACK are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetainedBlocks {
    /// None.
    None,
    /// The first, which is a duplicate SACK (RFC 2883).
    First,
    /// All but the first, if there are any.
    Others,
}

/// The timestamp of a held packet.
pub(super) fn stamp_of(packet: &[u8]) -> Option<u32> {
    let ip = IpPacket::parse(packet).ok()?;
    let tcp = TcpView::parse(packet.get(ip.payload)?).ok()?;
    tcp.timestamps().map(|(value, _)| value)
}

/// A copy of `packet` in which the other SACK blocks are replaced by padding, with timestamp `stamp` if its own is
/// newer, and with a correct checksum.
pub(super) fn with_blocks<'a>(
    ip: &IpPacket,
    packet: &[u8],
    retained: RetainedBlocks,
    stamp: Option<u32>,
    copy: &'a mut [u8; MAX_HELD_BYTES],
) -> Option<&'a [u8]> {
    let copy = copy.get_mut(..packet.len())?;
    copy.copy_from_slice(packet);
    let tcp = copy.get_mut(ip.payload.clone())?;
    let header = usize::from(tcp.get(12)? >> 4) * 4;
    let mut at = FIXED_HEADER;
    while at < header {
        match *tcp.get(at)? {
            0 => break,
            OPTION_NOP => at += 1,
            kind => {
                let len = usize::from(*tcp.get(at + 1)?);
                if len < 2 || at + len > header {
                    return None;
                }
                if kind == OPTION_SACK {
                    retain_blocks(tcp.get_mut(at..at + len)?, retained)?;
                } else if kind == OPTION_TIMESTAMPS
                    && let Some(stamp) = stamp
                    && let Some(value) =
                        tcp.get_mut(at + 2..at + len).and_then(|option| option.first_chunk_mut())
                    && before(stamp, u32::from_be_bytes(*value))
                {
                    *value = stamp.to_be_bytes();
                }
                at += len;
            }
        }
    }
    // Options begin at an even offset and consist of whole words, so the checksum can be updated word by word.
    let before = packet.get(ip.payload.clone())?.get(FIXED_HEADER..header)?;
    let mut checksum = u16::from_be_bytes([*tcp.get(CHECKSUM)?, *tcp.get(CHECKSUM + 1)?]);
    for (old, new) in before.chunks_exact(2).zip(tcp.get(FIXED_HEADER..header)?.chunks_exact(2)) {
        if old != new {
            let word = |of: &[u8]| u16::from_be_bytes([of[0], of[1]]);
            checksum = update_u16(checksum, word(old), word(new));
        }
    }
    tcp.get_mut(CHECKSUM..CHECKSUM + 2)?.copy_from_slice(&checksum.to_be_bytes());
    Some(copy)
}

/// Reduces a SACK option to the blocks that are kept.
fn retain_blocks(option: &mut [u8], retained: RetainedBlocks) -> Option<()> {
    let len = option.len();
    match retained {
        RetainedBlocks::None => option.fill(OPTION_NOP),
        RetainedBlocks::First => {
            option.get_mut(2 + BLOCK..)?.fill(OPTION_NOP);
            option[1] = 2 + BLOCK as u8;
        }
        RetainedBlocks::Others => {
            if len < 2 + 2 * BLOCK {
                return None;
            }
            option.get_mut(..BLOCK)?.fill(OPTION_NOP);
            option.get_mut(BLOCK..BLOCK + 2)?.copy_from_slice(&[OPTION_SACK, (len - BLOCK) as u8]);
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_wire::tcp::{SackBlocks, TcpFlags, TcpHeader, TcpOptions, emit_packet, parse_packet};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn only_the_blocks_are_gone(
            ack: u32,
            blocks in prop::collection::vec((any::<u32>(), any::<u32>()), 1..4),
            timestamps: bool,
            v6: bool,
            stamp: Option<u32>,
        ) {
            let mut sack = SackBlocks::default();
            for (l, r) in &blocks {
                sack.push(*l, *r);
            }
            let options = TcpOptions { sack, timestamps: timestamps.then_some((7, 9)), ..TcpOptions::default() };
            let header = TcpHeader { seq: 1, ack, flags: TcpFlags::ACK, window: 99, options };
            let [from, to] = if v6 { ["[fd00::1]:9", "[fd00::2]:80"] } else { ["10.0.0.1:9", "10.0.0.2:80"] };
            let packet = emit_packet(from.parse().unwrap(), to.parse().unwrap(), &header, &[]).unwrap();
            let ip = IpPacket::parse(&packet).unwrap();
            prop_assert!(can_hide(&TcpView::parse(&packet[ip.payload.clone()]).unwrap()));
            let mut copy = [0; MAX_HELD_BYTES];
            let hidden = with_blocks(&ip, &packet, RetainedBlocks::None, None, &mut copy).unwrap();
            let tcp = TcpView::parse(&hidden[ip.payload.clone()]).unwrap();
            prop_assert!(tcp.verifies(&ip) && !can_hide(&tcp));
            let read = parse_packet(hidden).unwrap().header;
            prop_assert_eq!((read.ack, read.window, read.options.timestamps), (ack, 99, options_of(timestamps)));
            let mut left = |retained| {
                let part = with_blocks(&ip, &packet, retained, stamp, &mut copy)?;
                let tcp = TcpView::parse(&part[ip.payload.clone()]).unwrap();
                assert!(tcp.verifies(&ip));
                let options = parse_packet(part).unwrap().header.options;
                let older = stamp.filter(|stamp| before(*stamp, 7)).unwrap_or(7);
                assert_eq!(options.timestamps, timestamps.then_some((older, 9)));
                Some(options.sack.as_slice().to_vec())
            };
            prop_assert_eq!(left(RetainedBlocks::First), Some(blocks[..1].to_vec()));
            prop_assert_eq!(left(RetainedBlocks::Others), (blocks.len() > 1).then(|| blocks[1..].to_vec()));
        }

        #[test]
        fn garbage_does_no_harm(mut bytes in prop::collection::vec(any::<u8>(), 40..100)) {
            bytes[0] = 0x45;
            bytes[9] = 6;
            if let Ok(ip) = IpPacket::parse(&bytes) {
                let mut copy = [0; MAX_HELD_BYTES];
                for retained in [RetainedBlocks::None, RetainedBlocks::First, RetainedBlocks::Others] {
                    let _ = with_blocks(&ip, &bytes, retained, Some(1), &mut copy);
                }
            }
        }
    }

    fn options_of(timestamps: bool) -> Option<(u32, u32)> {
        timestamps.then_some((7, 9))
    }
}
