//! The sender: when a repair is due, which sources it covers, and its contents.

use super::{Buffer, POSITION_MASK, Repair, Work, gf256};
use anabranch_element::time::{Duration, Instant, nanos};
use anabranch_wire::coding::{CodeWord, MAX_COVERS};
use anabranch_wire::tunnel::{InnerHeader, OUTER_IPV4, REPAIR_OVERHEAD, SECURE_OVERHEAD};

/// Most sources a repair covers.
pub const MAX_WINDOW: u8 = MAX_COVERS;
/// Longest wait for a source packet that can be useful.
pub const MAX_WAIT: Duration = Duration::from_secs(1);

/// Bytes of a source datagram that are not in its symbol, and of a repair datagram that are not in its own:
/// outer IPv4 and UDP, the secure header and tag, and the headers of coding.
const SOURCE_EXTRA: usize = OUTER_IPV4 + SECURE_OVERHEAD - InnerHeader::LEN + CodeWord::LEN;
const REPAIR_EXTRA: usize = OUTER_IPV4 + SECURE_OVERHEAD - InnerHeader::LEN + REPAIR_OVERHEAD;
/// Number of repairs for which budget can be accumulated.
const SAVED: i64 = 2;

/// Amount of redundancy, sources covered, and the time for which it is useful.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overhead {
    /// Most bytes of repair datagrams, in percent of the bytes of source datagrams.
    pub percent: u8,
    /// Most sources a repair covers, 1 to [`MAX_WINDOW`].
    pub window: u8,
    /// Sources sent longer ago are not covered any more, and not useful at the far end; at most [`MAX_WAIT`].
    pub wait: Duration,
}

impl Overhead {
    fn slots(&self) -> usize {
        self.window.clamp(1, MAX_WINDOW).into()
    }

    /// After this time without a source, sources that no repair has covered yet are covered, if the budget
    /// allows.
    fn flush_after(&self) -> Duration {
        self.wait / 4
    }
}

/// Counters of an encoder, in packets unless stated otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EncoderStats {
    /// Source packets: packets protected by the code.
    pub sources: u64,
    /// Bytes of their datagrams.
    pub source_bytes: u64,
    /// Repair packets sent.
    pub repairs: u64,
    /// Bytes of their datagrams.
    pub repair_bytes: u64,
    /// Repairs that were due but were not computed because of the limit on work.
    pub skipped: u64,
}

impl EncoderStats {
    /// Adds those of another encoder.
    pub const fn add(&mut self, other: &Self) {
        self.sources += other.sources;
        self.source_bytes += other.source_bytes;
        self.repairs += other.repairs;
        self.repair_bytes += other.repair_bytes;
        self.skipped += other.skipped;
    }
}

#[derive(Debug)]
struct Slot {
    symbol: Buffer,
    sent: Instant,
}

/// The encoder of one stream. See the [module](super).
#[derive(Debug)]
pub struct Encoder {
    overhead: Overhead,
    /// The latest sources, in a ring of at most the window.
    slots: Vec<Slot>,
    /// Index of the next source in the ring.
    at: usize,
    /// Position of the next source.
    pub(super) position: u32,
    /// Index of the next repair.
    pub(super) index: u8,
    /// Bytes of repairs that may be sent, times 100; negative after a flush on credit.
    credit: i64,
    flush_at: Option<Instant>,
    bytes: usize,
    repair: Buffer,
    stats: EncoderStats,
}

impl Encoder {
    /// An encoder whose positions begin at the clock, so that a later encoder does not repeat those of this
    /// one.
    #[must_use]
    pub fn new(overhead: Overhead, now: Instant) -> Self {
        Self {
            overhead,
            slots: Vec::with_capacity(overhead.slots()),
            at: 0,
            position: now.as_micros() as u32 & POSITION_MASK,
            index: 0,
            credit: 0,
            flush_at: None,
            bytes: Self::base_bytes(&overhead),
            repair: Buffer::default(),
            stats: EncoderStats::default(),
        }
    }

    /// Memory of an empty encoder, bytes.
    #[must_use]
    pub fn base_bytes(overhead: &Overhead) -> usize {
        size_of::<Self>() + overhead.slots() * size_of::<Slot>()
    }

    /// Memory used, bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counters so far.
    #[must_use]
    pub const fn stats(&self) -> EncoderStats {
        self.stats
    }

    /// Sets the parameters. Positions continue. After a change of window or wait, earlier sources are not covered any more.
    pub fn set_overhead(&mut self, overhead: Overhead) {
        self.overhead.percent = overhead.percent;
        if self.overhead == overhead {
            return;
        }
        let fresh = Self {
            position: self.position,
            index: self.index,
            stats: self.stats,
            ..Self::new(overhead, Instant::ZERO)
        };
        *self = fresh;
    }

    /// Adds a source symbol, given in two parts, to the window. Returns its position, or `None` if it would
    /// use more than `room` further bytes of memory; then it is not covered.
    pub fn push(&mut self, parts: [&[u8]; 2], now: Instant, room: usize) -> Option<u32> {
        let len = parts[0].len() + parts[1].len();
        // The symbol of a repair is as long as the longest source.
        let own = self.repair.reserve(len, room)?;
        self.bytes += own;
        let room = room - own;
        if self.at == self.slots.len() {
            let mut slot = Slot { symbol: Buffer::default(), sent: now };
            self.bytes += slot.symbol.reserve(len, room)?;
            self.slots.push(slot);
        } else {
            self.bytes += self.slots[self.at].symbol.reserve(len, room)?;
        }
        let slot = &mut self.slots[self.at];
        slot.symbol.fill(parts);
        slot.sent = now;
        self.at = if self.at + 1 == self.overhead.slots() { 0 } else { self.at + 1 };
        let position = self.position;
        self.position = (position + 1) & POSITION_MASK;
        let bytes = len + SOURCE_EXTRA;
        self.stats.sources += 1;
        self.stats.source_bytes += bytes as u64;
        self.credit += bytes as i64 * i64::from(self.overhead.percent);
        self.flush_at = Some(now + self.overhead.flush_after());
        Some(position)
    }

    /// A repair, if one is due by the budget. To be called after [`Self::push`] until it returns `None`.
    pub fn poll(&mut self, now: Instant, work: &mut Work) -> Option<(Repair, &[u8])> {
        let (covers, cost) = self.window(now)?;
        self.credit = self.credit.min(cost * SAVED);
        if self.credit < cost {
            return None;
        }
        self.emit(covers, cost, now, work)
    }

    /// When [`Self::flush`] is due.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.flush_at
    }

    /// No source was sent for a while: a repair for sources that none has covered, if the budget allows the
    /// credit.
    pub fn flush(&mut self, now: Instant, work: &mut Work) -> Option<(Repair, &[u8])> {
        self.flush_at.take_if(|at| *at <= now)?;
        let (covers, cost) = self.window(now)?;
        if self.credit < 0 {
            return None;
        }
        self.emit(covers, cost, now, work)
    }

    /// The number of sources that a repair covers now, and its cost.
    pub(super) fn window(&self, now: Instant) -> Option<(u8, i64)> {
        let fresh = self.latest().take_while(|slot| now.saturating_since(slot.sent) <= self.overhead.wait);
        let (covers, longest) = fresh.fold((0, 0), |(n, len), slot| (n + 1, slot.symbol.0.len().max(len)));
        (covers > 0).then_some((covers, (longest + REPAIR_EXTRA) as i64 * 100))
    }

    /// The sources in the window, newest first.
    fn latest(&self) -> impl Iterator<Item = &Slot> {
        let at = self.at.min(self.slots.len());
        self.slots[..at].iter().rev().chain(self.slots[at..].iter().rev())
    }

    pub(super) fn emit(
        &mut self,
        covers: u8,
        cost: i64,
        now: Instant,
        work: &mut Work,
    ) -> Option<(Repair, &[u8])> {
        let len = (cost / 100) as usize - REPAIR_EXTRA;
        if !work.spend(usize::from(covers) * len, now) {
            self.stats.skipped += 1;
            return None;
        }
        let mut symbol = core::mem::take(&mut self.repair);
        symbol.0.clear();
        symbol.0.resize(len, 0);
        let (newest, index) = (self.position.wrapping_sub(1) & POSITION_MASK, self.index);
        for (back, slot) in (0..u32::from(covers)).zip(self.latest()) {
            let factor = gf256::coefficient(newest.wrapping_sub(back), index);
            gf256::add_scaled(&mut symbol.0, &slot.symbol.0, factor);
        }
        self.repair = symbol;
        self.index = (index + 1) & 127;
        self.credit -= cost;
        self.flush_at = None;
        self.stats.repairs += 1;
        self.stats.repair_bytes += (len + REPAIR_EXTRA) as u64;
        let repair = Repair { position: newest, covers, index, wait: self.overhead.wait };
        Some((repair, &self.repair.0))
    }
}

impl Repair {
    /// The wait in units of 100 us, limited to 16 bits.
    #[must_use]
    pub fn wait_100us(&self) -> u16 {
        u16::try_from(nanos(self.wait) / 100_000).unwrap_or(u16::MAX)
    }
}
