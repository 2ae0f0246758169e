//! Sequence-based reordering per flow for splitting modes, and de-duplication for redundant mode.
//!
//! The paper leaves uplink splitting unsolved (JUNCTION §V-D "Design limitation"); this is our answer,
//! the same in both directions. Every flow has its own sequence, so a gap in one flow never delays
//! another.
//!
//! ```text
//!      delivered, remembered in `seen`         ring: held, by sequence
//!   ◀─────────── WINDOW ───────────▶◀──────────────── ≤ WINDOW ───────────────▶
//!   ▓▓▓▓▓▓▓▓▓▓▓░▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓ ·  ▓ ▓ · ▓ ▓ ▓
//!              ▲                     ▲    ▲
//!              given up; may still   │    held, waiting for `expected`
//!              come, is "late"       expected
//! ```
//!
//! | packet | what happens |
//! |---|---|
//! | `expected` | delivered from where it is: no copy, no allocation; then everything contiguous |
//! | ahead, inside the window | held (copied into the pool) |
//! | ahead, beyond it | oldest held ones leave until it fits; if it never does: new sequence |
//! | behind, not seen | late: delivered at once |
//! | behind, seen | duplicate: dropped |
//! | behind the window | reordering: delivered; de-duplicating: dropped; after 250 ms of nothing else: new sequence |
//!
//! A gap ends when it fills; when a packet above it has waited its hold time (see `law.rs`); when a bound
//! is reached (oldest first; user data is never dropped for a bound); or when it *cannot* fill any more:
//! paths are FIFO, so once **every** live path of the session has delivered [`FlowLimits::overtakes`]
//! packets of this flow from above the gap, what is missing is lost. Three packets of tolerance pass
//! over mild reordering inside a path; a packet that turns up after it was taken for lost doubles the
//! tolerance (at most 64), every RTT report lowers it by one again. A live path that carries nothing of
//! the flow keeps the rule from firing and the hold time decides, unless the sender says that the flow is on
//! one path ([`Hold::OnPath`]): then that path alone counts. A path that carries nothing of the
//! whole session is not live (`law.rs`).
//!
//! A flow first met without its START is adopted: its first packets wait for earlier ones like after
//! any gap, once.
//!
//! [`FlowLimits::overtakes`]: super::FlowLimits::overtakes

mod arrive;
mod release;

use super::flows::Flows;
use super::law::{HoldPolicy, compact};
use super::pool::{Fifo, Pool};
use crate::{MAX_PATHS, PacketSink, PathId};
use anabranch_element::Reason;
use anabranch_element::time::{Duration, Instant};
use anabranch_steer::Arrived;
use anabranch_wire::ip::FlowKey;

/// Lists of held packets: one per path, and one of those that wait as their sender said.
pub(super) const LISTS: usize = MAX_PATHS + 1;
const PATIENT: PathId = MAX_PATHS as PathId;

/// Flows unused this long are forgotten.
const IDLE: Duration = Duration::from_secs(60);

/// What became of a packet given to [`FlowReorder::on_packet`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It was delivered, and perhaps others behind it.
    Delivered,
    /// It was copied and waits.
    Held,
    /// It had been delivered before (or was held already): dropped.
    Duplicate,
    /// It came after its place was given up: delivered at once, out of order.
    Late,
}

/// How long a packet may wait for those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Not at all: only a second copy is dropped.
    Never,
    /// As long as one that is under way on another path may take (see `law.rs`).
    Skew,
    /// The same, and the sender says that what is missing can only come by the path of this packet.
    OnPath,
    /// So long: what is lost may be restored. The latest one told holds for all that wait this way in the session.
    For(Duration),
}

impl From<bool> for Hold {
    /// Whether order is restored.
    fn from(restored: bool) -> Self {
        if restored { Self::Skew } else { Self::Never }
    }
}

/// Counters of one session's flow reordering, in packets where not said otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowStats {
    /// Delivered straight through.
    pub in_order: u64,
    /// Put on hold.
    pub held: u64,
    /// Held, and delivered because the gap before them filled.
    pub released_in_order: u64,
    /// Held, and delivered because a hold time passed.
    pub timed_out: u64,
    /// Held, and delivered because the gap could not fill any more.
    pub given_up: u64,
    /// Held, and delivered because a bound was reached or on request.
    pub early: u64,
    /// Dropped: delivered before.
    pub duplicates: u64,
    /// Delivered after their place was given up.
    pub late: u64,
    /// Came from behind the window.
    pub too_old: u64,
    /// New sequences taken up in a known flow.
    pub resyncs: u64,
    /// Flows forgotten to make room for others.
    pub evicted: u64,
    /// Delivered without any order because there was no room for the flow's state.
    pub unordered: u64,
    /// Most packets held at once in this session.
    pub max_depth: u32,
    /// Sum of the hold times, in nanoseconds.
    pub hold_ns: u64,
    /// Longest hold time, in nanoseconds.
    pub max_hold_ns: u64,
}

/// Flow reordering of one session, one direction. Costs three words until the first packet.
///
/// Memory comes from the [`Pool`] given to each call, which must always be the same one. Call
/// [`Self::close`] before dropping a session, or the pool stays charged.
#[derive(Default)]
pub struct FlowReorder {
    inner: Option<Box<Inner>>,
    /// RTTs learned before the first packet, in 100 µs.
    rtts: [u16; MAX_PATHS],
}

impl FlowReorder {
    /// Nothing known, nothing held.
    #[must_use]
    pub const fn new() -> Self {
        Self { inner: None, rtts: [0; MAX_PATHS] }
    }

    /// One packet of `flow` with its `sequence` arrived by `path`.
    ///
    /// `start`: it is the first of the flow's sequence. `hold`: whether and how order is restored. Whatever is due to leave goes to `out`, this packet included
    /// unless the outcome is [`Outcome::Held`] or [`Outcome::Duplicate`].
    #[expect(
        clippy::too_many_arguments,
        reason = "the packet and its header; a struct would only rename them"
    )]
    pub fn on_packet(
        &mut self,
        flow: &FlowKey,
        sequence: u32,
        start: bool,
        hold: impl Into<Hold>,
        path: PathId,
        packet: &mut [u8],
        now: Instant,
        pool: &mut Pool,
        out: &mut impl PacketSink,
    ) -> Outcome {
        let rtts = self.rtts;
        let inner = self.inner.get_or_insert_with(|| Box::new(Inner::new(&pool.config().flow, &rtts)));
        let hold = hold.into();
        let arrival = Arrival { sequence, start, hold, path: path.min(MAX_PATHS as PathId - 1) };
        inner.on_packet(flow, arrival, packet, &mut Ctx { now, pool, out })
    }

    /// Delivers what has waited long enough, forgets flows that are no longer used.
    pub fn on_timeout(&mut self, now: Instant, pool: &mut Pool, out: &mut impl PacketSink) {
        if let Some(inner) = &mut self.inner {
            inner.on_timeout(&mut Ctx { now, pool, out });
        }
    }

    /// When [`Self::on_timeout`] is due, and why.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        self.inner.as_ref()?.poll_timeout()
    }

    /// A new round-trip time of `path` in microseconds; 0: the path is down.
    pub fn set_path_rtt(&mut self, path: PathId, rtt_us: u32) {
        if let Some(inner) = &mut self.inner {
            inner.law.on_rtt(path, rtt_us);
            inner.overtakes = inner.overtakes.saturating_sub(1).max(inner.base_overtakes);
        } else if let Some(rtt) = self.rtts.get_mut(usize::from(path)) {
            *rtt = compact(rtt_us);
        }
    }

    /// What arrived of `flow` since this was asked last.
    pub fn take_arrived(&mut self, flow: &FlowKey) -> Arrived {
        let Some(inner) = &mut self.inner else { return Arrived::default() };
        let index = inner.flows.find(flow);
        index.map(|index| core::mem::take(&mut inner.flows.get(index).arrived)).unwrap_or_default()
    }

    /// How long a packet that came by `path` waits at most, as the law stands now.
    #[must_use]
    pub fn hold_time(&self, path: PathId) -> Duration {
        self.inner.as_ref().map_or(Duration::ZERO, |inner| inner.law.hold(path))
    }

    /// Packets held now.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.inner.as_ref().map_or(0, |inner| inner.held as usize)
    }

    /// Flows with state now.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.inner.as_ref().map_or(0, |inner| inner.flows.len())
    }

    /// Counters since the session began.
    #[must_use]
    pub fn stats(&self) -> FlowStats {
        self.inner.as_ref().map(|inner| inner.stats).unwrap_or_default()
    }

    /// Delivers everything held, each flow in order, at once.
    pub fn flush(&mut self, now: Instant, pool: &mut Pool, out: &mut impl PacketSink) {
        if let Some(inner) = &mut self.inner {
            inner.flush(&mut Ctx { now, pool, out });
        }
    }

    /// Ends the session: drops what is held and gives all memory back. Counters and RTTs start anew.
    pub fn close(&mut self, pool: &mut Pool) {
        if let Some(mut inner) = self.inner.take() {
            let ctx = &mut Ctx { now: Instant::ZERO, pool, out: &mut Nowhere };
            inner.flush(ctx);
            while let Some(index) = inner.flows.oldest() {
                inner.forget(index, ctx);
            }
        }
        self.rtts = [0; MAX_PATHS];
    }
}

struct Nowhere;
impl PacketSink for Nowhere {
    fn deliver(&mut self, _: &mut [u8]) {}
}

struct Arrival {
    sequence: u32,
    start: bool,
    hold: Hold,
    path: PathId,
}

/// What every step needs from outside.
struct Ctx<'a, S> {
    now: Instant,
    pool: &'a mut Pool,
    out: &'a mut S,
}

/// Why held packets leave.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Filled,
    TimedOut,
    GivenUp,
    Early,
}

/// The state of a session that has had packets; `arrive.rs` and `release.rs` are its two halves.
struct Inner {
    law: HoldPolicy,
    flows: Flows,
    /// Everything held, by the path it came by, oldest first: the heads have the next deadlines. What waits for as
    /// long as its sender said ([`Hold::For`]) is in the last one, as if it had come by a path of its own.
    lists: [Fifo; LISTS],
    /// When the head of each list came.
    firsts: [Instant; LISTS],
    /// How long what is in the last list waits.
    patience: Duration,
    held: u32,
    held_bytes: u32,
    overtakes: u16,
    base_overtakes: u16,
    idle_at: Option<Instant>,
    stats: FlowStats,
}

#[cfg(test)]
mod tests;
