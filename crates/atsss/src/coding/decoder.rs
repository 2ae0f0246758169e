//! The receiver: received sources, missing sources, and the equations between them.
//!
//! ```text
//!   position    newest-reach ···················· newest
//!   entries     K K K M K K K K M M K K K K K K K K K        K known: the symbol is here   M missing   L unusable
//!   rows              1         a · · · · · · · ·            one equation each over missing sources, in reduced row
//!                     ·         · 1 · · · · · · ·            echelon form: a row's pivot is in no other row
//! ```
//!
//! A repair becomes a row: the known sources that it covers are subtracted, then multiples of the existing
//! rows to eliminate their pivots. If nothing is left, the repair was redundant. Otherwise the row gets a
//! pivot, which is eliminated from the other rows. A row that consists only of its pivot is a restored
//! source. A source that arrives after all is subtracted from the rows. Thus everything that the equations
//! determine is restored at any time.

use super::{Buffer, MAX_ROWS, POSITION_MASK, SPAN, Work, ahead, gf256};
use anabranch_element::time::{Duration, Instant};
use std::collections::VecDeque;

/// If this many consecutive sources are behind the kept range, the sender has restarted.
const RESTART_AFTER: u8 = 8;
/// After this idle time, no missing source is of use any more.
const QUIET: Duration = Duration::from_secs(2);

/// The header of a repair packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repair {
    /// Position of the newest source it covers.
    pub position: u32,
    /// Sources covered, 1 to [`super::MAX_WINDOW`].
    pub covers: u8,
    /// Row of the code, 0 to 127.
    pub index: u8,
    /// How long a source is of use after its position was passed.
    pub wait: Duration,
}

/// Counters of a decoder, in packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DecoderStats {
    /// Sources received.
    pub sources: u64,
    /// Repairs received.
    pub repairs: u64,
    /// Of these, redundant repairs.
    pub idle: u64,
    /// Of these, repairs that could not be used: they cover sources that are unknown here, or a bound was
    /// reached.
    pub unused: u64,
    /// Sources restored in time.
    pub recovered: u64,
    /// Sources restored after the longest wait, and therefore not delivered.
    pub late: u64,
    /// Sources whose position was passed, and that were neither received nor restored while that was
    /// possible.
    pub given_up: u64,
}

impl DecoderStats {
    /// Adds those of another decoder.
    pub const fn add(&mut self, other: &Self) {
        self.sources += other.sources;
        self.repairs += other.repairs;
        self.idle += other.idle;
        self.unused += other.unused;
        self.recovered += other.recovered;
        self.late += other.late;
        self.given_up += other.given_up;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Missing,
    Known,
    /// It arrived but could not be kept.
    Unusable,
}

#[derive(Debug)]
struct Entry {
    state: State,
    /// Whether its position was passed since the beginning, that is, whether it was sent.
    passed: bool,
    /// When its position was passed.
    noticed: Instant,
    symbol: Buffer,
}

impl Entry {
    /// It was sent and has not been received.
    fn is_lost(&self) -> bool {
        self.passed && self.state == State::Missing
    }
}

#[derive(Debug)]
pub(super) struct Row {
    /// Column of the pivot.
    pivot: u8,
    /// Number of non-zero coefficients.
    weight: u16,
    /// Coefficients by column: position modulo [`SPAN`].
    factors: [u8; SPAN as usize],
    symbol: Buffer,
}

/// Bytes used, and bytes that may still be used.
#[derive(Debug)]
struct Memory {
    bytes: usize,
    room: usize,
}

impl Memory {
    fn reserve(&mut self, buffer: &mut Buffer, len: usize) -> bool {
        let grown = buffer.reserve(len, self.room);
        let growth = grown.unwrap_or(0);
        self.bytes += growth;
        self.room = self.room.saturating_sub(growth);
        grown.is_some()
    }

    fn charge(&mut self, bytes: usize) -> bool {
        let granted = bytes <= self.room;
        if granted {
            self.bytes += bytes;
            self.room -= bytes;
        }
        granted
    }
}

/// The decoder of one stream. See the [module](super).
#[derive(Debug)]
pub struct Decoder {
    /// Newest position known; `None` before the first one.
    newest: Option<u32>,
    heard: Instant,
    /// Consecutive sources behind the kept range.
    behind: u8,
    wait: Duration,
    /// Most sources covered by a repair so far.
    covers: u8,
    entries: Vec<Entry>,
    /// Buffers of entries that were given up.
    free: Vec<Buffer>,
    #[expect(clippy::vec_box, reason = "rows are large, and move between the two lists")]
    pub(super) rows: Vec<Box<Row>>,
    #[expect(clippy::vec_box, reason = "as above")]
    pub(super) spare: Vec<Box<Row>>,
    /// Restored sources that have not been fetched yet.
    recovered: VecDeque<u8>,
    memory: Memory,
    stats: DecoderStats,
}

impl Decoder {
    /// Memory of an empty decoder, bytes.
    pub const BASE_BYTES: usize =
        size_of::<Self>() + SPAN as usize * (size_of::<Entry>() + size_of::<Buffer>() + 1);

    /// An empty decoder.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        let entry =
            || Entry { state: State::Missing, passed: false, noticed: now, symbol: Buffer::default() };
        Self {
            newest: None,
            heard: now,
            behind: 0,
            wait: Duration::ZERO,
            covers: 0,
            free: Vec::with_capacity(SPAN as usize),
            entries: core::iter::repeat_with(entry).take(SPAN as usize).collect(),
            rows: Vec::new(),
            spare: Vec::new(),
            recovered: VecDeque::with_capacity(SPAN as usize),
            memory: Memory { bytes: Self::BASE_BYTES, room: 0 },
            stats: DecoderStats::default(),
        }
    }

    /// Memory used, bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.memory.bytes
    }

    /// Counters so far.
    #[must_use]
    pub const fn stats(&self) -> DecoderStats {
        self.stats
    }

    /// How long a missing source is worth waiting for; zero before the first repair.
    #[must_use]
    pub const fn wait(&self) -> Duration {
        self.wait
    }

    /// A source arrived; its symbol is in two parts. May use `room` further bytes of memory.
    pub fn on_source(
        &mut self,
        position: u32,
        parts: [&[u8]; 2],
        now: Instant,
        room: usize,
        work: &mut Work,
    ) {
        self.memory.room = room;
        self.stats.sources += 1;
        let Some(newest) = self.arrive(now) else {
            self.restart(position, now);
            return self.keep(position, parts, now, work);
        };
        let distance = ahead(position, newest);
        if distance <= -(self.reach() as i32) {
            self.behind += 1;
            if self.behind < RESTART_AFTER {
                return;
            }
            self.restart(position, now);
        } else if distance >= SPAN as i32 {
            self.restart(position, now);
        } else if distance > 0 {
            self.advance(newest, distance as u32, now);
        } else if self.differs(position, parts) {
            self.restart(position, now);
        }
        self.behind = 0;
        self.keep(position, parts, now, work);
    }

    /// A repair arrived. May use `room` further bytes of memory.
    pub fn on_repair(&mut self, repair: &Repair, symbol: &[u8], now: Instant, room: usize, work: &mut Work) {
        self.memory.room = room;
        self.stats.repairs += 1;
        let newest = match self.arrive(now) {
            Some(newest) => newest,
            None => {
                self.restart(repair.position, now);
                repair.position
            }
        };
        let distance = ahead(repair.position, newest);
        let oldest = distance - i32::from(repair.covers) + 1;
        if distance >= SPAN as i32 || oldest <= -(SPAN as i32) || repair.covers == 0 {
            self.stats.unused += 1;
            return;
        }
        self.wait = repair.wait;
        self.covers = self.covers.max(repair.covers);
        if distance > 0 {
            self.advance(newest, distance as u32, now);
        }
        match self.equation(repair, symbol, now, work) {
            Some(row) => {
                self.insert(row);
                self.harvest(now);
            }
            None => self.stats.unused += 1,
        }
    }

    /// The symbol of a source that was restored in time, possibly followed by zeros. To be called after each
    /// arrival until it returns `None`.
    pub fn pop_recovered(&mut self) -> Option<&[u8]> {
        let at = self.recovered.pop_front()?;
        Some(&self.entries[usize::from(at)].symbol.0)
    }

    /// Updates the time of the last arrival, and returns the newest position so far. After a long idle time,
    /// the missing sources are forgotten.
    fn arrive(&mut self, now: Instant) -> Option<u32> {
        if now.saturating_since(self.heard) >= QUIET {
            self.newest = None;
        }
        self.heard = now;
        self.newest
    }

    /// Restarts at `position` without any state.
    fn restart(&mut self, position: u32, now: Instant) {
        self.newest = Some(position & POSITION_MASK);
        self.behind = 0;
        self.recovered.clear();
        self.spare.append(&mut self.rows);
        for entry in &mut self.entries {
            self.stats.given_up += u64::from(entry.is_lost());
            (entry.state, entry.passed, entry.noticed) = (State::Missing, false, now);
        }
    }

    /// Advances by `by` positions, less than [`SPAN`]. They replace the oldest ones.
    fn advance(&mut self, newest: u32, by: u32, now: Instant) {
        let reach = self.reach();
        for position in (1..=by).map(|n| newest.wrapping_add(n)) {
            self.give_up(column(position.wrapping_sub(reach)));
            let at = column(position);
            self.give_up(at);
            let entry = &mut self.entries[at];
            (entry.state, entry.passed, entry.noticed) = (State::Missing, true, now);
        }
        self.newest = Some(newest.wrapping_add(by) & POSITION_MASK);
    }

    /// Positions that are kept: as many as a repair covers, as many again for late repairs, and some for
    /// windows that grow. Before the first repair, all of them.
    fn reach(&self) -> u32 {
        match self.covers {
            0 => SPAN - 1,
            covers => (2 * u32::from(covers) + 64).min(SPAN - 1),
        }
    }

    /// Gives up the entry and the rows of a column; its buffer is reused.
    fn give_up(&mut self, at: usize) {
        self.drop_rows(at);
        let entry = &mut self.entries[at];
        self.stats.given_up += u64::from(entry.is_lost());
        entry.state = State::Unusable;
        if entry.symbol.0.capacity() > 0 {
            self.free.push(core::mem::take(&mut entry.symbol));
        }
    }

    /// Whether a different source is known at this position: the sender has restarted.
    fn differs(&self, position: u32, [head, rest]: [&[u8]; 2]) -> bool {
        let entry = &self.entries[column(position)];
        let known = &entry.symbol.0;
        let is = |known: &[u8]| {
            known
                .strip_prefix(head)
                .and_then(|k| k.strip_prefix(rest))
                .is_some_and(|k| k.iter().all(|b| *b == 0))
        };
        entry.state == State::Known && !is(known)
    }

    /// Keeps a source that was not known, and subtracts it from the rows.
    fn keep(&mut self, position: u32, parts: [&[u8]; 2], now: Instant, work: &mut Work) {
        let at = column(position);
        let entry = &mut self.entries[at];
        if entry.state != State::Missing {
            return;
        }
        if entry.symbol.0.capacity() == 0 {
            entry.symbol = self.free.pop().unwrap_or_default();
        }
        if !self.memory.reserve(&mut entry.symbol, parts[0].len() + parts[1].len()) {
            entry.state = State::Unusable;
            return self.drop_rows(at);
        }
        entry.symbol.fill(parts);
        entry.state = State::Known;
        if self.rows.iter().any(|row| row.factors[at] != 0) {
            self.take_out(at, now, work);
        }
    }

    /// Subtracts a source that is now known from the rows.
    fn take_out(&mut self, at: usize, now: Instant, work: &mut Work) {
        let longest = self.rows.iter().map(|row| row.symbol.0.len()).max().unwrap_or(0);
        // Once for each row, and once more with the row that may need another pivot.
        if !work.spend(3 * self.rows.len() * longest, now) {
            return self.drop_rows(at);
        }
        let symbol = core::mem::take(&mut self.entries[at].symbol);
        let (mut i, mut pivotless) = (0, None);
        while let Some(row) = self.rows.get_mut(i) {
            let factor = core::mem::take(&mut row.factors[at]);
            if factor != 0 {
                row.weight -= 1;
                let fits = extend(&mut row.symbol, symbol.0.len(), &mut self.memory);
                gf256::add_scaled(&mut row.symbol.0, &symbol.0, factor);
                if !fits {
                    self.spare.push(self.rows.swap_remove(i));
                    continue;
                }
                if usize::from(row.pivot) == at {
                    pivotless = Some(self.rows.swap_remove(i));
                    continue;
                }
            }
            i += 1;
        }
        self.entries[at].symbol = symbol;
        if let Some(row) = pivotless {
            self.insert(row);
        }
        self.harvest(now);
    }

    /// The row of a repair, with the known sources subtracted; `None` if it cannot be used.
    fn equation(
        &mut self,
        repair: &Repair,
        symbol: &[u8],
        now: Instant,
        work: &mut Work,
    ) -> Option<Box<Row>> {
        let covered = || (0..u32::from(repair.covers)).map(|back| repair.position.wrapping_sub(back));
        let states = || covered().map(|position| self.entries[column(position)].state);
        let missing = states().filter(|state| *state == State::Missing).count();
        let unusable = states().any(|state| state == State::Unusable);
        // If nothing is missing, the row is empty and need not be computed.
        let known = if missing == 0 { 0 } else { usize::from(repair.covers) - missing };
        let enough = missing <= MAX_ROWS;
        let mut affordable = || work.spend((known + 2 * self.rows.len() + 1) * symbol.len(), now);
        if missing > 0 && (unusable || !enough || !affordable()) {
            return None;
        }
        if self.rows.len() == MAX_ROWS {
            self.drop_heaviest();
        }
        let mut row = match self.spare.pop() {
            Some(row) => row,
            None => {
                if !self.memory.charge(size_of::<Row>() + 2 * size_of::<Box<Row>>()) {
                    return None;
                }
                Box::new(Row { pivot: 0, weight: 0, factors: [0; SPAN as usize], symbol: Buffer::default() })
            }
        };
        (row.factors, row.weight) = ([0; SPAN as usize], 0);
        row.symbol.0.clear();
        if missing == 0 {
            return Some(row);
        }
        if !self.memory.reserve(&mut row.symbol, symbol.len()) {
            self.spare.push(row);
            return None;
        }
        row.symbol.fill([symbol]);
        for position in covered() {
            let (at, factor) = (column(position), gf256::coefficient(position, repair.index));
            let entry = &self.entries[at];
            if entry.state == State::Missing {
                row.factors[at] = factor;
                row.weight += 1;
                continue;
            }
            gf256::add_scaled(&mut row.symbol.0, &entry.symbol.0, factor);
            // A repair is as long as the longest source it covers.
            if entry.symbol.0.get(symbol.len()..).is_some_and(|beyond| beyond.iter().any(|b| *b != 0)) {
                self.spare.push(row);
                return None;
            }
        }
        Some(row)
    }

    /// Inserts a row into the reduced form, or finds that it is redundant.
    fn insert(&mut self, mut row: Box<Row>) {
        for other in &self.rows {
            let factor = row.factors[usize::from(other.pivot)];
            if factor != 0 && !row.add(other, factor, &mut self.memory) {
                self.spare.push(row);
                return;
            }
        }
        let Some(pivot) = row.factors.iter().position(|factor| *factor != 0) else {
            self.stats.idle += 1;
            self.spare.push(row);
            return;
        };
        let factor = gf256::inverse(row.factors[pivot]);
        gf256::scale(&mut row.factors, factor);
        gf256::scale(&mut row.symbol.0, factor);
        row.pivot = pivot as u8;
        row.count();
        let mut i = 0;
        while let Some(other) = self.rows.get_mut(i) {
            let factor = other.factors[pivot];
            if factor != 0 && !other.add(&row, factor, &mut self.memory) {
                self.spare.push(self.rows.swap_remove(i));
                continue;
            }
            i += 1;
        }
        self.rows.push(row);
    }

    /// Rows with a single unknown are restored sources.
    fn harvest(&mut self, now: Instant) {
        let mut i = 0;
        while let Some(row) = self.rows.get(i) {
            if row.weight != 1 {
                i += 1;
                continue;
            }
            let mut row = self.rows.swap_remove(i);
            let entry = &mut self.entries[usize::from(row.pivot)];
            if entry.symbol.0.capacity() == 0 {
                entry.symbol = self.free.pop().unwrap_or_default();
            }
            core::mem::swap(&mut entry.symbol, &mut row.symbol);
            entry.state = State::Known;
            if now.saturating_since(entry.noticed) <= self.wait {
                self.stats.recovered += 1;
                self.recovered.push_back(row.pivot);
            } else {
                self.stats.late += 1;
            }
            self.spare.push(row);
        }
    }

    /// Gives up the row with the most unknowns, which is least likely to be solved.
    fn drop_heaviest(&mut self) {
        if let Some((i, _)) = self.rows.iter().enumerate().max_by_key(|(_, row)| row.weight) {
            self.spare.push(self.rows.swap_remove(i));
        }
    }

    /// Gives up the rows with a coefficient in a column.
    fn drop_rows(&mut self, at: usize) {
        let mut i = 0;
        while let Some(row) = self.rows.get(i) {
            if row.factors[at] != 0 {
                self.stats.unused += 1;
                self.spare.push(self.rows.swap_remove(i));
            } else {
                i += 1;
            }
        }
    }
}

impl Row {
    /// Adds `other` times `factor`; `false` if there is no room for it.
    fn add(&mut self, other: &Self, factor: u8, memory: &mut Memory) -> bool {
        if !extend(&mut self.symbol, other.symbol.0.len(), memory) {
            return false;
        }
        gf256::add_scaled(&mut self.factors, &other.factors, factor);
        gf256::add_scaled(&mut self.symbol.0, &other.symbol.0, factor);
        self.count();
        true
    }

    fn count(&mut self) {
        self.weight = self.factors.iter().map(|factor| u16::from(*factor != 0)).sum();
    }
}

/// Extends a symbol with zeros to `len` bytes, if there is room.
fn extend(symbol: &mut Buffer, len: usize, memory: &mut Memory) -> bool {
    if symbol.0.len() >= len {
        return true;
    }
    let fits = memory.reserve(symbol, len);
    if fits {
        symbol.0.resize(len, 0);
    }
    fits
}

/// Index of a position's entry and factors.
const fn column(position: u32) -> usize {
    (position % SPAN) as usize
}
