//! Sequence-based reordering per flow for splitting modes, and de-duplication for redundant mode.
//!
//! The paper does not solve splitting in the uplink (JUNCTION §V-D, "Design limitation"). This engine does,
//! in the same way in both directions. Every flow has its own sequence, so a gap in one flow never delays
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
//! | `expected` | delivered from its receive buffer: no copy, no allocation; then all contiguous ones |
//! | ahead, inside the window | held (copied into the pool) |
//! | ahead, beyond it | the oldest held packets are delivered until it fits; if it never does: new sequence |
//! | behind, not seen | late: delivered at once |
//! | behind, seen | duplicate: dropped |
//! | behind the window | reordering: delivered; de-duplicating: dropped; after 250 ms of only such packets:
//! new sequence |
//!
//! A gap ends when it fills; when a packet above it has waited for its hold time (see `law.rs`); when a bound
//! is reached (oldest first; no packet is dropped for a bound); or when it *cannot* fill any more. Paths are
//! FIFO, so once **every** live path of the session has delivered [`FlowLimits::overtakes`] packets of this
//! flow from above the gap, the missing ones are lost. The tolerance of three packets allows for mild
//! reordering inside a path. A packet that arrives after it was taken for lost doubles the tolerance (at most
//! 64), and each RTT report lowers it by one. If a live path carries no packet of the flow, this rule does
//! not apply and the hold time decides, unless the sender states that the flow is on one path
//! ([`Hold::OnPath`]): then only that path counts. A path that carries no packet of the whole session is not
//! live (`law.rs`).
//!
//! A flow first received without its START is adopted: its first packets wait for earlier ones once, as after
//! any gap.
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

/// Lists of held packets: one per path, and one for packets whose hold time the sender states
/// ([`Hold::For`]).
pub(super) const LISTS: usize = MAX_PATHS + 1;
const PATIENT: PathId = MAX_PATHS as PathId;

/// Flows unused for this time are forgotten.
const IDLE: Duration = Duration::from_secs(60);

/// What [`FlowReorder::on_packet`] did with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It was delivered, and possibly others behind it.
    Delivered,
    /// It was copied and is held.
    Held,
    /// It had already been delivered, or is already held: dropped.
    Duplicate,
    /// It arrived after it had been given up: delivered at once, out of order.
    Late,
}

/// How long a packet may wait for earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Not at all: only duplicates are dropped.
    Never,
    /// As long as a packet in flight on another path may take (see `law.rs`).
    Skew,
    /// The same, and the sender states that missing packets can arrive only by the path of this one.
    OnPath,
    /// For this time, because lost packets may be restored. The newest value applies to all packets of the
    /// session that wait in this way.
    For(Duration),
}

impl From<bool> for Hold {
    /// `true`: order is restored.
    fn from(restored: bool) -> Self {
        if restored { Self::Skew } else { Self::Never }
    }
}

/// Counters of one session's flow reordering, in packets unless stated otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowStats {
    /// Delivered without being held.
    pub in_order: u64,
    /// Held because an earlier packet was missing.
    pub held: u64,
    /// Held, and delivered because the gap before them filled.
    pub released_in_order: u64,
    /// Held, and delivered because a hold time ended.
    pub timed_out: u64,
    /// Held, and delivered because the gap could not fill any more.
    pub given_up: u64,
    /// Held, and delivered because a bound was reached, or on request.
    pub early: u64,
    /// Dropped, because they had already been received.
    pub duplicates: u64,
    /// Delivered after they had been given up.
    pub late: u64,
    /// Received from behind the window.
    pub too_old: u64,
    /// New sequences begun in a known flow.
    pub resyncs: u64,
    /// Flows removed to make room for others.
    pub evicted: u64,
    /// Delivered without order because there was no room for the state of the flow.
    pub unordered: u64,
    /// Most packets held at once in this session.
    pub max_depth: u32,
    /// Sum of the hold times, in nanoseconds.
    pub hold_ns: u64,
    /// Longest hold time, in nanoseconds.
    pub max_hold_ns: u64,
}

/// Flow reordering of one session in one direction. Takes three words until the first packet.
///
/// Memory comes from the [`Pool`] passed to each call, which must always be the same one. Call
/// [`Self::close`] before dropping a session; otherwise its memory stays charged to the pool.
#[derive(Default)]
pub struct FlowReorder {
    inner: Option<Box<Inner>>,
    /// RTTs reported before the first packet, in units of 100 µs.
    rtts: [u16; MAX_PATHS],
}

impl FlowReorder {
    /// No flows, nothing held.
    #[must_use]
    pub const fn new() -> Self {
        Self { inner: None, rtts: [0; MAX_PATHS] }
    }

    /// A packet of `flow` with this `sequence` has arrived by `path`.
    ///
    /// `start`: it is the first one of the flow's sequence. `hold`: whether and how order is restored. All
    /// packets that are due are passed to `out`, including this one unless the outcome is [`Outcome::Held`]
    /// or [`Outcome::Duplicate`].
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

    /// Delivers packets whose hold time is over, and forgets unused flows.
    pub fn on_timeout(&mut self, now: Instant, pool: &mut Pool, out: &mut impl PacketSink) {
        if let Some(inner) = &mut self.inner {
            inner.on_timeout(&mut Ctx { now, pool, out });
        }
    }

    /// When [`Self::on_timeout`] is due, and the reason.
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

    /// The packets of `flow` that arrived since the last call.
    pub fn take_arrived(&mut self, flow: &FlowKey) -> Arrived {
        let Some(inner) = &mut self.inner else { return Arrived::default() };
        let index = inner.flows.find(flow);
        index.map(|index| core::mem::take(&mut inner.flows.get(index).arrived)).unwrap_or_default()
    }

    /// Longest current hold time of a packet that arrives by `path`.
    #[must_use]
    pub fn hold_time(&self, path: PathId) -> Duration {
        self.inner.as_ref().map_or(Duration::ZERO, |inner| inner.law.hold(path))
    }

    /// Number of packets held now.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.inner.as_ref().map_or(0, |inner| inner.held as usize)
    }

    /// Number of flows with state now.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.inner.as_ref().map_or(0, |inner| inner.flows.len())
    }

    /// Counters since the session began.
    #[must_use]
    pub fn stats(&self) -> FlowStats {
        self.inner.as_ref().map(|inner| inner.stats).unwrap_or_default()
    }

    /// Delivers all held packets at once, each flow in order.
    pub fn flush(&mut self, now: Instant, pool: &mut Pool, out: &mut impl PacketSink) {
        if let Some(inner) = &mut self.inner {
            inner.flush(&mut Ctx { now, pool, out });
        }
    }

    /// Ends the session: drops all held packets and frees all memory. Counters and RTTs are reset.
    pub fn close(&mut self, pool: &mut Pool) {
        if let Some(mut inner) = self.inner.take() {
            let ctx = &mut Ctx { now: Instant::ZERO, pool, out: &mut DiscardSink };
            inner.flush(ctx);
            while let Some(index) = inner.flows.oldest() {
                inner.forget(index, ctx);
            }
        }
        self.rtts = [0; MAX_PATHS];
    }
}

struct DiscardSink;
impl PacketSink for DiscardSink {
    fn deliver(&mut self, _: &mut [u8]) {}
}

struct Arrival {
    sequence: u32,
    start: bool,
    hold: Hold,
    path: PathId,
}

/// The environment of each step.
struct Ctx<'a, S> {
    now: Instant,
    pool: &'a mut Pool,
    out: &'a mut S,
}

/// Why held packets are delivered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Filled,
    TimedOut,
    GivenUp,
    Early,
}

/// The state of a session that has received packets. Its methods are in `arrive.rs` and `release.rs`.
struct Inner {
    law: HoldPolicy,
    flows: Flows,
    /// All held packets by the path on which they arrived, oldest first, so the heads have the next
    /// deadlines. Packets whose hold time the sender states ([`Hold::For`]) are in the last list.
    lists: [Fifo; LISTS],
    /// Arrival times of the heads of the lists.
    firsts: [Instant; LISTS],
    /// Hold time of the packets in the last list.
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
