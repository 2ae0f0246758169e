//! Fragmentation of messages that are larger than their path carries, and reassembly at the far end.
//!
//! ```text
//!   message (inner header, packet) ── Cut ──▶ Fragment Fragment … ── one path ──▶ Assembler ──▶ message
//! ```
//!
//! The inner packet stays whole, so its sender does not notice the fragmentation, and no path lowers the MTU
//! of another. Fragments are sealed (docs/wire-formats.md, "Fragments"), so only the peer can fill an
//! assembler, and no fragment arrives twice.
//!
//! A peer can make the assembler hold at most [`SLOTS`] messages and [`QUOTA_BYTES`] of buffers, each for
//! [`HOLD`], charged to the pool that all sessions share. A message that is not complete by then, or is
//! displaced by newer ones, is lost and counted. Buffers are kept for the next message, so after the first
//! few nothing is allocated.

use crate::PathId;
use crate::drops::DropReason;
use crate::reorder::Pool;
use anabranch_element::Reason;
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::tunnel::Fragment;
use core::ops::Range;
use serde::Serialize;

/// Largest message that is fragmented or reassembled, in bytes: an inner packet of 9,000 bytes fits.
pub const MAX_MESSAGE: usize = 9216;
/// Most incomplete messages of a session.
pub const SLOTS: usize = 32;
/// Most bytes of buffers per session.
pub const QUOTA_BYTES: usize = 64 * 1024;
/// Longest time between the first and the last fragment of a message.
pub const HOLD: Duration = Duration::from_millis(500);

/// Buffer sizes: for a message slightly larger than one Ethernet frame, and for the largest.
const CLASSES: [usize; 2] = [1536, MAX_MESSAGE];
const WORDS: usize = MAX_MESSAGE / Fragment::UNIT / 64;

/// The division of a message: as few fragments as the path allows, all but the last of equal length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FragmentLayout {
    total: usize,
    piece: usize,
}

impl FragmentLayout {
    /// Divides `total` bytes for a path that carries UDP payloads of `max_payload` bytes. `None` if the
    /// message is too large, or needs only one fragment.
    #[must_use]
    pub fn new(total: usize, max_payload: usize) -> Option<Self> {
        let room = max_payload.saturating_sub(Fragment::OVERHEAD) / Fragment::UNIT * Fragment::UNIT;
        if total > MAX_MESSAGE || room == 0 {
            return None;
        }
        let piece = total.div_ceil(total.div_ceil(room)).next_multiple_of(Fragment::UNIT);
        (piece < total).then_some(Self { total, piece })
    }

    /// The range of each fragment in the message, in order.
    pub fn pieces(self) -> impl Iterator<Item = Range<usize>> {
        (0..self.total).step_by(self.piece).map(move |at| at..self.total.min(at + self.piece))
    }
}

/// Fragment counters of one path, since the session began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FragmentCounters {
    /// Fragments sent.
    pub tx_pieces: u64,
    /// Fragments received.
    pub rx_pieces: u64,
    /// Messages lost because not all their fragments arrived in time.
    pub rx_incomplete: u64,
}

/// A complete message.
#[derive(Debug)]
pub struct ReassembledMessage {
    slot: usize,
    buffer: Vec<u8>,
    len: usize,
}

impl ReassembledMessage {
    /// The message: inner header and contents.
    pub fn message(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.len]
    }
}

/// Reassembles the messages of one session.
#[derive(Default)]
pub struct Assembler {
    slots: Vec<Slot>,
    /// Bytes charged to the pool.
    charged: usize,
}

struct Slot {
    /// When the message is given up.
    due: Instant,
    buffer: Vec<u8>,
    /// Bit mask of the units of the message that have arrived.
    have: [u64; WORDS],
    number: u32,
    /// Bytes of the message; 0: the slot is free.
    total: u16,
    got: u16,
    path: PathId,
}

impl Assembler {
    /// Accepts a fragment that arrived by `path`; returns the message if it is complete. It must be returned
    /// with [`Assembler::give_back`]. `lost` is called with the path of a message that is given up in favour
    /// of this one.
    ///
    /// # Errors
    /// [`DropReason::Malformed`] if the fragment contradicts others of its message, [`DropReason::NoRoom`] if
    /// quota or pool are exhausted.
    pub fn on_piece(
        &mut self,
        path: PathId,
        piece: &Fragment<'_>,
        now: Instant,
        pool: &mut Pool,
        lost: &mut impl FnMut(PathId),
    ) -> Result<Option<ReassembledMessage>, DropReason> {
        let same = |slot: &Slot| slot.total != 0 && (slot.number, slot.path) == (piece.number, path);
        let at = match self.slots.iter().position(same) {
            Some(at) => at,
            None => {
                let at = self.slot_for(piece.total.into(), pool, lost).ok_or(DropReason::NoRoom)?;
                let slot = &mut self.slots[at];
                (slot.number, slot.path, slot.total, slot.got) = (piece.number, path, piece.total, 0);
                slot.have = [0; WORDS];
                slot.due = now + HOLD;
                at
            }
        };
        let slot = &mut self.slots[at];
        if slot.total != piece.total || !slot.mark(piece) {
            return Err(DropReason::Malformed);
        }
        let from = usize::from(piece.offset);
        slot.buffer[from..from + piece.bytes.len()].copy_from_slice(piece.bytes);
        slot.got += piece.bytes.len() as u16; // no byte counts twice, so this does not exceed `total`
        if slot.got < slot.total {
            return Ok(None);
        }
        let len = usize::from(slot.total);
        slot.total = 0;
        Ok(Some(ReassembledMessage { slot: at, buffer: core::mem::take(&mut slot.buffer), len }))
    }

    /// Reuses the buffer of a message.
    pub fn give_back(&mut self, whole: ReassembledMessage) {
        if let Some(slot) = self.slots.get_mut(whole.slot) {
            slot.buffer = whole.buffer;
        }
    }

    /// Gives up messages that are due; `lost` is called with the path of each.
    pub fn on_timeout(&mut self, now: Instant, lost: &mut impl FnMut(PathId)) {
        for slot in self.slots.iter_mut().filter(|slot| slot.total != 0 && slot.due <= now) {
            slot.total = 0;
            lost(slot.path);
        }
    }

    /// When [`Self::on_timeout`] is due, and the reason.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        self.slots
            .iter()
            .filter(|slot| slot.total != 0)
            .map(|slot| (slot.due, "fragments"))
            .min_by_key(|(at, _)| *at)
    }

    /// Drops everything, and returns its memory to the pool.
    pub fn close(&mut self, pool: &mut Pool) {
        pool.refund(core::mem::take(&mut self.charged));
        self.slots = Vec::new();
    }

    /// A slot with room for `total` bytes: a free one, a new one, or that of the oldest message.
    fn slot_for(&mut self, total: usize, pool: &mut Pool, lost: &mut impl FnMut(PathId)) -> Option<usize> {
        let class = CLASSES.into_iter().find(|&size| total <= size)?;
        let fits = |slot: &Slot| slot.buffer.len() >= total;
        if let Some(at) = self.slots.iter().position(|slot| slot.total == 0 && fits(slot)) {
            return Some(at);
        }
        if let Some(at) = self.grow(class, pool) {
            return Some(at);
        }
        let busy = self.slots.iter().enumerate().filter(|(_, slot)| slot.total != 0 && fits(slot));
        let (at, slot) = busy.min_by_key(|(_, slot)| slot.due)?;
        lost(slot.path);
        Some(at)
    }

    /// A free slot with a buffer of `class` bytes, if quota and pool allow it. Smaller free buffers are
    /// released for it.
    #[cold]
    fn grow(&mut self, class: usize, pool: &mut Pool) -> Option<usize> {
        let at = match self.slots.iter().position(|slot| slot.total == 0) {
            Some(at) => at,
            None if self.slots.len() < SLOTS => {
                self.charge(size_of::<Slot>(), pool)?;
                self.slots.push(Slot {
                    due: Instant::ZERO,
                    buffer: Vec::new(),
                    have: [0; WORDS],
                    number: 0,
                    total: 0,
                    got: 0,
                    path: 0,
                });
                self.slots.len() - 1
            }
            None => return None,
        };
        for other in (0..self.slots.len()).filter(|&other| other != at) {
            let held: usize = self.slots.iter().map(|slot| slot.buffer.len()).sum();
            if held - self.slots[at].buffer.len() + class <= QUOTA_BYTES {
                break;
            }
            if self.slots[other].total == 0 {
                self.shrink(other, pool);
            }
        }
        self.shrink(at, pool);
        let held: usize = self.slots.iter().map(|slot| slot.buffer.len()).sum();
        if held + class > QUOTA_BYTES {
            return None;
        }
        self.charge(class, pool)?;
        self.slots[at].buffer = vec![0; class];
        Some(at)
    }

    fn charge(&mut self, bytes: usize, pool: &mut Pool) -> Option<()> {
        let granted = pool.charge(bytes);
        self.charged += if granted { bytes } else { 0 };
        granted.then_some(())
    }

    fn shrink(&mut self, at: usize, pool: &mut Pool) {
        let buffer = core::mem::take(&mut self.slots[at].buffer);
        self.charged -= buffer.len();
        pool.refund(buffer.len());
    }
}

impl Slot {
    /// Notes that a fragment has arrived; `false` if a byte of it had already arrived.
    fn mark(&mut self, piece: &Fragment<'_>) -> bool {
        let first = usize::from(piece.offset) / Fragment::UNIT;
        let end = first + piece.bytes.len().div_ceil(Fragment::UNIT);
        let masks = move |word: usize| {
            let (low, high) = (first.max(word * 64) - word * 64, end.min(word * 64 + 64) - word * 64);
            (u64::MAX << low) & (u64::MAX >> (64 - high))
        };
        let words = first / 64..(end - 1) / 64 + 1;
        if words.clone().any(|word| self.have[word] & masks(word) != 0) {
            return false;
        }
        words.for_each(|word| self.have[word] |= masks(word));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reorder::PoolConfig;
    use proptest::prelude::*;

    fn ms(v: u64) -> Instant {
        Instant::from_millis(v)
    }

    fn pool() -> Pool {
        Pool::new(PoolConfig::default())
    }

    /// The message with this number, from which its length and bytes follow.
    fn message(number: u32, total: usize) -> Vec<u8> {
        (0..total).map(|i| (i as u32 ^ number.wrapping_mul(31)) as u8).collect()
    }

    fn piece<'a>(number: u32, message: &'a [u8], at: Range<usize>) -> Fragment<'a> {
        Fragment { number, total: message.len() as u16, offset: at.start as u16, bytes: &message[at] }
    }

    struct TestBed {
        assembler: Assembler,
        pool: Pool,
        lost: Vec<PathId>,
        whole: Vec<Vec<u8>>,
    }

    impl TestBed {
        fn new() -> Self {
            Self { assembler: Assembler::default(), pool: pool(), lost: Vec::new(), whole: Vec::new() }
        }

        fn take(&mut self, path: PathId, piece: &Fragment<'_>, now: Instant) -> bool {
            let lost = &mut self.lost;
            let taken = self.assembler.on_piece(path, piece, now, &mut self.pool, &mut |p| lost.push(p));
            if let Ok(Some(mut whole)) = taken {
                self.whole.push(whole.message().to_vec());
                self.assembler.give_back(whole);
                return true;
            }
            taken.is_ok()
        }
    }

    #[test]
    fn a_message_is_cut_into_as_few_pieces_as_fit() {
        let lengths = |total, max| {
            FragmentLayout::new(total, max).map(|layout| layout.pieces().map(|p| p.len()).collect::<Vec<_>>())
        };
        assert_eq!(lengths(1408, 1172), Some(vec![704, 704]));
        assert_eq!(lengths(1301, 1172), Some(vec![656, 645]));
        assert_eq!(lengths(1408, 548), Some(vec![472, 472, 464]));
        assert_eq!(lengths(1408, 1472), None, "one piece is no cut");
        assert_eq!(lengths(9217, 1472), None, "too large");
        assert_eq!(lengths(100, 51), None, "no room");
    }

    #[test]
    fn pieces_come_in_any_order_and_paths_and_numbers_are_kept_apart() {
        let mut bed = TestBed::new();
        let (a, b, c) = (message(1, 1408), message(2, 1000), message(3, 1408));
        let (ab, bb) = (704, 504);
        assert!(bed.take(0, &piece(7, &a, ab..1408), ms(0)));
        assert!(bed.take(0, &piece(8, &b, 0..bb), ms(0)));
        assert!(bed.take(1, &piece(7, &c, 0..ab), ms(1)));
        assert!(bed.take(0, &piece(7, &a, 0..ab), ms(2)));
        assert!(bed.take(1, &piece(7, &c, ab..1408), ms(2)));
        assert!(bed.take(0, &piece(8, &b, bb..1000), ms(3)));
        assert_eq!(bed.whole, [a, c, b]);
        assert!(bed.lost.is_empty());
        let charged = bed.pool.used_bytes();
        assert!(charged > 0 && charged < 3 * 2048, "{charged}");
        bed.assembler.close(&mut bed.pool);
        assert_eq!(bed.pool.used_bytes(), 0);
    }

    #[test]
    fn contradicting_fragments_are_rejected_and_the_first_ones_stay() {
        let mut bed = TestBed::new();
        let (a, evil) = (message(1, 1408), vec![0xEE; 1408]);
        assert!(bed.take(0, &piece(1, &a, 0..704), ms(0)));
        assert!(!bed.take(0, &piece(1, &evil, 0..704), ms(0)), "a second time");
        assert!(!bed.take(0, &piece(1, &evil, 696..1408), ms(0)), "overlaps by a unit");
        assert!(!bed.take(0, &piece(1, &evil[..1400], 704..1400), ms(0)), "of a message of another length");
        assert!(bed.take(0, &piece(1, &a, 704..1408), ms(0)));
        assert_eq!(bed.whole, [a]);
    }

    #[test]
    fn incomplete_messages_are_given_up_in_time() {
        let mut bed = TestBed::new();
        let a = message(1, 1408);
        bed.take(3, &piece(1, &a, 0..704), ms(100));
        assert_eq!(bed.assembler.poll_timeout(), Some((ms(100) + HOLD, "fragments")));
        let lost = &mut bed.lost;
        bed.assembler.on_timeout(ms(599), &mut |p| lost.push(p));
        assert!(lost.is_empty());
        bed.assembler.on_timeout(ms(600), &mut |p| lost.push(p));
        assert_eq!((lost.as_slice(), bed.assembler.poll_timeout()), (&[3][..], None));
        assert!(
            bed.take(3, &piece(1, &a, 704..1408), ms(601)),
            "the remaining fragment begins a new message"
        );
        assert!(bed.whole.is_empty());
    }

    #[test]
    fn the_oldest_is_displaced_and_the_quota_holds() {
        for total in [1408, 9000] {
            let mut bed = TestBed::new();
            let a = message(1, total);
            for n in 0..1000 {
                assert!(bed.take(0, &piece(n, &a, 0..704), ms(u64::from(n) / 10)));
                let (held, most) = (bed.pool.used_bytes(), QUOTA_BYTES + SLOTS * size_of::<Slot>());
                assert!(held <= most, "{held}");
            }
            // The newest few are still there.
            assert!(bed.take(0, &piece(999, &a, 704..total), ms(100)));
            assert!(bed.take(0, &piece(995, &a, 704..total), ms(100)));
            assert_eq!(bed.whole.len(), 2);
            assert!(bed.lost.len() >= 1000 - SLOTS);
            // Small messages do not lock out large ones, nor vice versa.
            bed.assembler.on_timeout(ms(10_000), &mut |_| {});
            for total in [9000, 1408, 9000] {
                let a = message(5, total);
                bed.take(0, &piece(5000, &a, 0..704), ms(10_000));
                assert!(bed.take(0, &piece(5000, &a, 704..total), ms(10_000)));
                assert_eq!(bed.whole.last(), Some(&a));
            }
        }
    }

    #[test]
    fn without_a_pool_there_is_no_room() {
        let mut bed = TestBed::new();
        bed.pool = Pool::new(PoolConfig { bytes: 1000, ..PoolConfig::default() });
        assert!(!bed.take(0, &piece(1, &message(1, 1408), 0..704), ms(0)));
        bed.assembler.close(&mut bed.pool);
        assert_eq!(bed.pool.used_bytes(), 0);
    }

    proptest! {
        #[test]
        fn pieces_cover_the_message_and_fit(total in 1usize..=MAX_MESSAGE, max in 0usize..2000) {
            if let Some(layout) = FragmentLayout::new(total, max) {
                let mut end = 0;
                for at in layout.pieces() {
                    prop_assert_eq!(at.start, end);
                    prop_assert!(!at.is_empty() && at.len() + Fragment::OVERHEAD <= max);
                    prop_assert!(at.end == total || at.len().is_multiple_of(Fragment::UNIT));
                    end = at.end;
                }
                prop_assert_eq!(end, total);
                let room = (max - Fragment::OVERHEAD) / 8 * 8;
                prop_assert_eq!(layout.pieces().count(), total.div_ceil(room), "as few as possible");
            }
        }

        /// Messages of any size over paths of any size: each is completed exactly if all its fragments
        /// arrived, for any order within a window, and whatever a hostile peer sends under other numbers.
        #[test]
        fn messages_with_all_fragments_are_reassembled(
            sizes in prop::collection::vec((600usize..9000, 556usize..1500), 1..12),
            order in prop::collection::vec((any::<u32>(), 0u8..10), 300),
            junk in prop::collection::vec((0u32..4, 9u16..9300, any::<u16>(), prop::collection::vec(any::<u8>(), 1..700)), 0..40),
        ) {
            let messages: Vec<_> = sizes.iter().enumerate().map(|(n, (total, _))| message(n as u32, *total)).collect();
            let mut pieces = Vec::new();
            for (n, (total, max)) in sizes.iter().enumerate() {
                pieces.extend(FragmentLayout::new(*total, *max).into_iter().flat_map(FragmentLayout::pieces).map(|at| (n, at)));
            }
            // Shuffled within a few places, some lost.
            let mut keyed: Vec<_> = pieces.iter().enumerate().map(|(i, p)| {
                let (random, lose) = order[i % order.len()];
                (i as u32 * 2 + random % 6, lose == 0, p)
            }).collect();
            keyed.sort_by_key(|(key, ..)| *key);
            let mut bed = TestBed::new();
            let mut complete: Vec<_> = (0..sizes.len()).map(|n| pieces.iter().any(|(m, _)| *m == n)).collect();
            let mut junk = junk.iter().cycle();
            for (_, lost, (n, at)) in keyed {
                if let Some((number, total, offset, bytes)) = junk.next() {
                    let bad = Fragment { number: number + 1_000_000, total: *total, offset: *offset, bytes };
                    if bad.emit(&mut [0; 2000]).is_ok() {
                        bed.take(1, &bad, ms(1));
                    }
                }
                if lost {
                    complete[*n] = false;
                } else {
                    prop_assert!(bed.take(0, &piece(*n as u32, &messages[*n], at.clone()), ms(1)) || !bed.lost.is_empty());
                }
            }
            let expected: Vec<_> = (0..sizes.len()).filter(|n| complete[*n]).collect();
            for n in expected.iter().filter(|_| bed.lost.is_empty()) {
                prop_assert!(bed.whole.contains(&messages[*n]), "{} of {:?}", n, sizes);
            }
            prop_assert!(bed.pool.used_bytes() <= QUOTA_BYTES + SLOTS * size_of::<Slot>());
            bed.assembler.close(&mut bed.pool);
            prop_assert_eq!(bed.pool.used_bytes(), 0);
        }

        /// Meaningless fragments, as a peer with valid keys may send them.
        #[test]
        fn hostile_fragments_have_no_effect_on_other_messages(
            pieces in prop::collection::vec((0u8..3, 0u32..6, 9u16..9400, 0u16..1200, 1usize..1500, 0u64..2000), 1..400)
        ) {
            let (mut bed, bytes, mut now) = (TestBed::new(), [7; 1500], 0);
            for (path, number, total, unit, len, wait) in pieces {
                now += wait / 10;
                let len = len.min(usize::from(total).saturating_sub(usize::from(unit) * 8));
                let piece = Fragment { number, total, offset: unit.wrapping_mul(8), bytes: &bytes[..len] };
                if piece.emit(&mut [0; 2000]).is_ok() {
                    bed.take(path, &piece, ms(now));
                }
                let lost = &mut bed.lost;
                bed.assembler.on_timeout(ms(now), &mut |p| lost.push(p));
                prop_assert!(bed.pool.used_bytes() <= QUOTA_BYTES + SLOTS * size_of::<Slot>());
                prop_assert!(bed.assembler.poll_timeout().is_none_or(|(at, _)| at > ms(now)));
            }
            prop_assert!(bed.whole.iter().all(|whole| whole.iter().all(|&b| b == 7)), "no byte is made up");
            bed.assembler.close(&mut bed.pool);
            prop_assert_eq!(bed.pool.used_bytes(), 0);
        }
    }
}
